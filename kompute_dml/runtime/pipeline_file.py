"""A device's pipelines in a file of the user's cache folder, so that other processes find them.

Not every driver keeps what it has compiled (one does not for root), and then each process
would compile for seconds. A driver may crash on data that is broken or another driver's, and runs
what it reads. So a file is checked before the driver sees a byte: it must be this user's own, in a
folder that nobody else can write to.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

from ..toolchain.folders import user_cache
from .adapters import Adapter

MAX_BYTES = 128 << 20
"""A larger file is begun anew."""
_MAGIC = b"kompute_dml pipelines 1\n"
_CHECKSUM = struct.Struct("<I")
_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


def folder() -> Path | None:
    """Where the files are: ``KOMPUTE_DML_PIPELINES`` (empty: none), or in the user's cache."""
    named = os.environ.get("KOMPUTE_DML_PIPELINES")
    if named is not None:
        return Path(named) if named else None
    with contextlib.suppress(RuntimeError):  # there is no home
        return user_cache() / "pipelines"
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
            with _Folder.opened(self.path.parent) as inside:
                kept = inside.read(self.path.name)
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
        with contextlib.suppress(OSError):
            _Folder.make(self.path.parent)
            with _Folder.opened(self.path.parent) as inside:
                inside.replace(self.path.name, _before(data) + data)
        self._seen, self._holds = self._state(), holds

    def _state(self) -> object:
        try:
            status = self.path.lstat()  # type: ignore[union-attr]  # only called where there is one
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


class _PosixFolder:
    """An open folder that is this user's own, and that nobody else can write to."""

    def __init__(self, inside: int) -> None:
        self._inside = inside

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path) -> Iterator[_PosixFolder]:
        """Raises OSError for a link, and for a folder that is not this user's own or that others
        can write to."""
        inside = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _check_own(inside)
            yield cls(inside)
        finally:
            os.close(inside)

    @staticmethod
    def make(path: Path) -> None:
        """Make a folder that only this user can enter, unless it is there.

        Raises PermissionError inside another user's folder: root may run with that user's HOME.
        What is there in the user's cache is closed to others. A folder that the environment names
        is not changed.
        """
        if not path.exists():
            above = next(p for p in path.parents if p.exists())
            if above.stat().st_uid not in (os.geteuid(), _ROOT):
                raise PermissionError(f"{above} is another user's")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
        elif "KOMPUTE_DML_PIPELINES" not in os.environ:
            inside = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(inside).st_uid == os.geteuid():
                    os.fchmod(inside, 0o700)
            finally:
                os.close(inside)

    def read(self, name: str) -> bytes:
        """The bytes of a file. Raises OSError unless it is one of this user's own."""
        # A pipe would keep a reader waiting.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=self._inside), "rb") as file:
            status = _check_own(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                return b""
            return file.read(MAX_BYTES + 1)

    def replace(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all, for this user alone."""
        partial = _partial(name)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial, dir_fd=self._inside)  # of a process that was killed
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(partial, flags, 0o600, dir_fd=self._inside), "wb") as file:
                file.write(data)
            os.replace(partial, name, src_dir_fd=self._inside, dst_dir_fd=self._inside)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=self._inside)


class _WindowsFolder:
    """A folder of Windows, which keeps a user's profile from other users by access lists. They are
    inherited by what is made there. A link is not followed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path) -> Iterator[_WindowsFolder]:
        """Raises OSError for a link, and for what is no folder."""
        if not stat.S_ISDIR(path.lstat().st_mode):
            raise NotADirectoryError(f"expected {path} to be a folder")
        yield cls(path)

    @staticmethod
    def make(path: Path) -> None:
        """Make a folder, unless it is there."""
        path.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> bytes:
        """The bytes of a file. Raises OSError for a link."""
        path = self._path / name
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            return b""
        return path.read_bytes()

    def replace(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all. Raises PermissionError while another process reads
        it."""
        partial = self._path / _partial(name)
        partial.unlink(missing_ok=True)  # of a process that was killed
        try:
            with open(partial, "xb") as file:
                file.write(data)
            partial.replace(self._path / name)
        finally:
            partial.unlink(missing_ok=True)


_Folder = _WindowsFolder if sys.platform == "win32" else _PosixFolder


def _check_own(descriptor: int) -> os.stat_result:
    """Raise PermissionError unless a file or folder is the effective user's and nobody else can
    write to it."""
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & _OF_OTHERS:
        raise PermissionError("expected a file or folder that only this user can write to")
    return status


def _partial(name: str) -> str:
    """The name of a file that is being written."""
    return f".{os.getpid()}.{threading.get_ident()}.{name}"


def _before(data: bytes) -> bytes:
    """What lies before the driver's data in a file."""
    return _MAGIC + _CHECKSUM.pack(zlib.crc32(data))


def _name(header: bytes) -> str:
    vendor, device, uuid = struct.unpack("<8x2I16s", header) if header else (0, 0, b"")
    return f"{vendor:04x}-{device:04x}-{uuid.hex()}"
