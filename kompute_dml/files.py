"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Where to write what becomes ``path`` when the block ends; nothing stays of an interrupt.

    The suffix is that of ``path``, by which writers choose a format.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{os.getpid()}.{threading.get_ident()}.{path.name}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
