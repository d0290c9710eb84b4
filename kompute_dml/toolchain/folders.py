"""The user's cache folder. It imports little, because every start of a program asks for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_cache() -> Path:
    """The package's folder in ``XDG_CACHE_HOME``, or in the system's place for caches.

    Raises RuntimeError where the user has no home.
    """
    named = os.environ.get("XDG_CACHE_HOME")
    if not named and sys.platform == "win32":
        named = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif not named:
        named = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    return Path(named).expanduser() / "kompute_dml"
