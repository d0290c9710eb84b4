"""``python -m kompute_dml.cli`` is ``kompute-dml``, too."""

from __future__ import annotations

from ..__main__ import main

main()
