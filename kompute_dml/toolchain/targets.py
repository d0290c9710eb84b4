"""What the parts of a wheel are compiled for: systems and machines, as each tool names them."""

from __future__ import annotations

import platform
import re
import struct
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import debian
from .system import ToolchainError

HERE = platform.machine()
"""The target for machines as this one, which has Linux."""
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
RELEASES = {
    "debian": {"3.11": "bookworm", "3.13": "trixie", "3.14": "sid"},
    "ubuntu": {"3.10": "jammy", "3.12": "noble"},
}
"""The release of each distribution whose archive has a CPython, with headers and source."""
_MOVING = "sid"
"""No release: its sources are replaced at any time."""
# What configure finds out on macOS, as far as CPython's headers ask.
_PYCONFIG_MACOS = "".join(f"#define {name} {value}\n" for name, value in {
    "SIZEOF_VOID_P": 8, "SIZEOF_SIZE_T": 8, "SIZEOF_LONG": 8, "SIZEOF_LONG_LONG": 8,
    "SIZEOF_INT": 4, "SIZEOF_SHORT": 2, "SIZEOF_FLOAT": 4, "SIZEOF_DOUBLE": 8, "SIZEOF_PID_T": 4,
    "SIZEOF_WCHAR_T": 4, "SIZEOF_UINTPTR_T": 8, "SIZEOF_OFF_T": 8, "SIZEOF_TIME_T": 8,
    "ALIGNOF_LONG": 8, "ALIGNOF_SIZE_T": 8, "ALIGNOF_MAX_ALIGN_T": 8,
    "HAVE_LONG_LONG": 1, "HAVE_SSIZE_T": 1, "HAVE_WCHAR_H": 1, "HAVE_PTHREAD_H": 1, "HAVE_FORK": 1,
    "HAVE_SYS_TYPES_H": 1, "HAVE_SYS_STAT_H": 1, "HAVE_SYS_TIME_H": 1, "HAVE_UNISTD_H": 1,
    "HAVE_STAT_H": 1, "HAVE_STDINT_H": 1, "HAVE_INTTYPES_H": 1, "HAVE_STD_ATOMIC": 1,
    "HAVE_BUILTIN_ATOMIC": 1, "HAVE_THREAD_LOCAL": 1, "HAVE_PROTOTYPES": 1, "STDC_HEADERS": 1,
    "WITH_DOC_STRINGS": 1, "WITH_PYMALLOC": 1, "WITH_THREAD": 1,
}.items())


@dataclass(frozen=True)
class WheelTarget:
    compiler: str
    """What Zig's compiler calls it."""
    platform: str
    """What ``sysconfig.get_platform()`` says there; a wheel's tag follows from it."""
    extension: str
    """The end of an extension module's name, with a place for CPython's version without its dot."""
    library: str
    """The end of a library's name."""
    system: str = "linux"
    options: tuple[str, ...] = ("-fPIC",)
    """The compiler's options for code of libraries."""
    fixes: tuple[str, ...] = ()
    """Folders of kp's fixes that only this system needs."""

    def suffix(self, version: str) -> str:
        """The end of an extension module's name, for a version of CPython."""
        return self.extension.format(version.replace(".", ""))

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions of CPython that a wheel is for by default. For other systems their headers
        come with the source, which the archive of the system here keeps for a release."""
        if self.system == "linux":
            return VERSIONS
        releases = RELEASES.get(debian.distribution(), {})
        return tuple(version for version, release in releases.items() if release != _MOVING)


def _linux(machine: str) -> WheelTarget:
    return WheelTarget(f"{machine}-linux-gnu.2.28", f"linux-{machine}",
                       f".cpython-{{}}-{machine}-linux-gnu.so", ".so")


TARGETS = {
    **{machine: _linux(machine) for machine in (HERE, "x86_64", "aarch64")},
    "windows": WheelTarget("x86_64-windows-gnu", "win-amd64", ".cp{}-win_amd64.pyd", ".dll",
                           "windows", options=()),
    # The first macOS of these machines.
    "macos": WheelTarget("aarch64-macos.11.0-none", "macosx-11.0-arm64", ".cpython-{}-darwin.so",
                         ".dylib", "macos", fixes=("macos",)),
}


def headers_of_source(version: str, target: WheelTarget, folder: Path) -> list[str]:
    """The options that find a CPython's headers for another system.

    They come from the source: all systems share them, but for ``pyconfig.h``. Raises
    ToolchainError where the archives lack the version.
    """
    release = RELEASES.get(debian.distribution(), {}).get(version)
    if release is None:
        raise ToolchainError(f"no archive is known that has the source of CPython {version}")
    config = folder / f"pyconfig-{version}"
    config.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        source = debian.source(f"python{version}", release, Path(scratch))
        (source / "Include").rename(folder / f"include-{version}")
        text = _PYCONFIG_MACOS
        if target.system == "windows":
            # Since 3.13 it is a template, which says as it is that there is a global lock.
            (found,) = (source / "PC").glob("pyconfig.h*")
            text = found.read_text("utf-8")
    (config / "pyconfig.h").write_text(text, "utf-8")
    return [f"-I{config}", f"-I{folder / f'include-{version}'}"]


_COFF_HEADER, _COFF_SYMBOL = struct.Struct("<8xII"), struct.Struct("<8sIhxxBB")
_EXTERNAL = 2
_IMPORTED = "__imp_"


def undefined_names(coff: bytes) -> set[str]:
    """The names that an object file for Windows leaves to others. Its layout is of Microsoft's
    "PE Format", 4.1 and 5.4."""
    start, count = _COFF_HEADER.unpack_from(coff)
    strings = start + count * _COFF_SYMBOL.size
    names = set()
    at = 0
    while at < count:
        name, value, section, kind, others = _COFF_SYMBOL.unpack_from(
            coff, start + at * _COFF_SYMBOL.size)
        at += 1 + others
        if section or value or kind != _EXTERNAL:
            continue
        if not any(name[:4]):
            begin = strings + int.from_bytes(name[4:], "little")
            name = coff[begin:coff.index(b"\0", begin)]
        names.add(name.rstrip(b"\0").decode().removeprefix(_IMPORTED))
    return names


def definition(library: str, pattern: str, names: Iterable[str]) -> str:
    """A module definition of a library of Windows with those names that match."""
    exports = sorted(name for name in names if re.match(pattern, name))
    return "\n".join([f'LIBRARY "{library}"', "EXPORTS", *(f"  {name}" for name in exports), ""])
