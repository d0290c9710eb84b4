"""Passes over a graph's operators that make one of several.

Each has a name among :data:`PASSES`. ``KOMPUTE_DML_UNFUSED`` names those that are left out, or
``all``; some that work elsewhere have a name here, too. An operator takes another one up only where
nothing else reads what lies between them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence

from ..errors import ValidationError
from . import epilogues, patterns, spelled
from .chains import fuse_chains
from .draft import Draft, Drafts
from .memory import Storage
from .scales import fold_normalizations
from .siblings import Make, join_products

_SWITCH = "KOMPUTE_DML_UNFUSED"
SIBLINGS, FOLDING, BATCH_NORMALIZATIONS = "siblings", "folding", "batch_normalizations"
"""Products of one matrix are joined; operators of constants run when a plan is built."""
CHANNELS_LAST = "channels_last"
"""No pass: FLOAT16 convolutions make their results with channels innermost."""
QDQ = "qdq"
"""No pass here: ONNX models' products between DequantizeLinear and QuantizeLinear are of bytes."""


def fuse(
    drafts: Sequence[Draft], free: Collection[Storage], make: Make | None = None
) -> list[Draft]:
    """The operators that are left. ``free`` are storages that nothing outside of them sees.

    ``make`` makes more of them, where operators on constants run before all others.
    """
    found, left = Drafts(drafts, free), left_out()
    folds = make is not None and FOLDING not in left

    def more(nbytes: int) -> Storage:
        assert make is not None
        return found.free(make(nbytes))

    if folds and BATCH_NORMALIZATIONS not in left:
        fold_normalizations(found, more)
    for name, run in PASSES.items():
        if name not in left:
            run(found)
    if folds and SIBLINGS not in left:
        join_products(found, more)
    return found.without_dead()


def left_out() -> set[str]:
    """The passes that ``KOMPUTE_DML_UNFUSED`` switches off."""
    names = {n.strip() for n in os.environ.get(_SWITCH, "").split(",")} - {""}
    known = {*PASSES, SIBLINGS, FOLDING, BATCH_NORMALIZATIONS, CHANNELS_LAST, QDQ}
    if unknown := names - known - {"all"}:
        raise ValidationError(
            f"{_SWITCH}: expected all or names among {', '.join(sorted(known))}, but got "
            f"{', '.join(sorted(unknown))}")
    return known if "all" in names else names


PASSES: dict[str, Callable[[Drafts], None]] = {
    "copies": epilogues.copies, "layer_norms": spelled.layer_norms, "gelu": patterns.gelu,
    "tanh_gelus": spelled.tanh_gelus, "gates": patterns.gates,
    "attention": patterns.attention, "sums": epilogues.sums, "residuals": epilogues.residuals,
    "activations": epilogues.activations, "chains": fuse_chains, "joins": epilogues.joins,
}
"""In the order in which they run."""
