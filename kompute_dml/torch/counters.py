"""What tests ask of compiled graphs."""

from __future__ import annotations


class Statistics:
    """What tests ask: how often plans were made, and what was uploaded."""

    plans = 0
    lists = 0
    """Those of the plans that serve eager operators of lists."""
    looked = 0
    """Calls of a plan that looked at each argument, which are not like those of the call before."""
    uploads = 0
    fallbacks = 0
    """Graphs that were split because of nodes without a lowering."""


statistics = Statistics()
