"""``python -m kompute_dml`` is ``kompute-dml``."""

from __future__ import annotations

import importlib
import importlib.util
import sys

NEEDED = ("click", "tabulate", "tqdm")
"""What the command needs and the library does not."""


def main() -> None:
    """The entry point of ``kompute-dml``."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"error: the command line needs {', '.join(missing)}: "
                 "pip install 'kompute-dml[cli]', or '.[cli]' in a clone")
    importlib.import_module(".cli", __package__).main()


if __name__ == "__main__":
    main()
