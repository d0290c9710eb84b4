"""``python -m kompute_dml.cli`` is ``kompute-dml``."""

from . import main

main()
