"""A device's pipelines in a file of the user's cache folder, so that other processes find them.

Not every driver keeps what it has compiled (NVIDIA's does not for root), and then each process
would compile for seconds. A driver may crash on data that is broken or another driver's, so a file
is checked before the driver sees it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from pathlib import Path

from ..files import replaced
from .adapters import Adapter

MAX_BYTES = 128 << 20
"""A larger file is begun anew."""
_MAGIC = b"kompute_dml pipelines 1\n"
_CHECKSUM = struct.Struct("<I")


def folder() -> Path | None:
    """Where the files are: ``KOMPUTE_DML_PIPELINES`` (empty: none), or in the user's cache."""
    named = os.environ.get("KOMPUTE_DML_PIPELINES")
    if named is not None:
        return Path(named) if named else None
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with contextlib.suppress(RuntimeError):  # there is no home
        return Path(cache).expanduser() / "kompute_dml" / "pipelines"
    return None


class PipelineFile:
    """The file of a device with its driver."""

    def __init__(self, adapter: Adapter) -> None:
        self._header = adapter.pipeline_header
        where = folder()
        self.path = where and where / f"{_name(self._header)}.bin"
        self._seen: object = None
        """What the file was when it was read or written, ..."""
        self._holds: tuple[int, int] | None = None
        """... and the size and checksum of the data that it held."""

    def load(self) -> bytes:
        """The driver's data; none if there is no such file, or no valid one."""
        self._holds = None
        if self.path is None or not self._header:
            return b""
        try:
            self._seen = self._state()
            if self.path.stat().st_size > MAX_BYTES:
                return b""
            kept = self.path.read_bytes()
        except OSError:
            return b""
        data = kept[len(_MAGIC) + _CHECKSUM.size:]
        if not data.startswith(self._header) or kept[: -len(data)] != _before(data):
            return b""
        self._holds = len(data), zlib.crc32(data)
        return data

    def others(self) -> bytes:
        """What another process has written since, or nothing."""
        return b"" if self.path is None or self._state() == self._seen else self.load()

    def save(self, data: bytes) -> None:
        """Write the driver's data, if there is any, and if the folder can be written."""
        holds = len(data), zlib.crc32(data)
        is_any = data.startswith(self._header) and len(data) > len(self._header) > 0
        if self.path is None or not is_any or holds == self._holds:
            return
        with contextlib.suppress(OSError), replaced(self.path) as partial:
            partial.write_bytes(_before(data) + data)
        self._seen, self._holds = self._state(), holds

    def _state(self) -> object:
        try:
            found = self.path.stat()  # type: ignore[union-attr]  # only called where there is one
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def _before(data: bytes) -> bytes:
    """What lies before the driver's data in a file."""
    return _MAGIC + _CHECKSUM.pack(zlib.crc32(data))


def _name(found: bytes) -> str:
    vendor, device, uuid = struct.unpack("<8x2I16s", found) if found else (0, 0, b"")
    return f"{vendor:04x}-{device:04x}-{uuid.hex()}"
