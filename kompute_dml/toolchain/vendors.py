"""Other vendors' Vulkan drivers, without their GPUs: they compile shaders, and run nothing.

Mesa's drivers ask the kernel for a GPU. A shim of Mesa's own source answers instead. The drivers
are the newest that Debian has, and run with the C library that came with them. The shims are built
from the source of an older version, with `fixes/mesa`, and so are the drivers that Debian does not
have for this processor. Nothing is installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import debian, patches
from .system import ToolchainError, cache_dir, require_program, run, say

_NEWEST = "sid"
_DRIVERS = ("mesa-vulkan-drivers", "libvulkan1")
_SOURCE = ("bookworm", "bookworm-backports")
"""The releases of the source of the shims, and of what builds them."""
_TOOLS = (
    *(f"{name}/{_SOURCE[1]}" for name in (
        "libdrm2", "libdrm-amdgpu1", "libdrm-intel1", "libdrm-dev")),
    "flex", "bison", "m4", "libpciaccess0", "libpciaccess-dev", "libdrm-radeon1",
    "zlib1g-dev", "libexpat1-dev", "spirv-tools")
_PYTHON = ("meson==1.7.0", "ninja", "mako", "pyyaml", "packaging")
_OPTIONS = (
    "vulkan-drivers=intel,amd,freedreno,panfrost,broadcom", "freedreno-kmds=msm",
    "gallium-drivers=", "tools=drm-shim,intel", "platforms=", "glx=disabled", "egl=disabled",
    "gbm=disabled", "opengl=false", "gles1=disabled", "gles2=disabled", "llvm=disabled",
    "video-codecs=", "valgrind=disabled", "libunwind=disabled", "buildtype=release",
    "intel-rt=disabled", "xmlconfig=disabled", "zstd=disabled", "android-libbacktrace=disabled",
    "shader-cache=disabled", "mesa-clc=system", "precomp-compiler=system")
_SHIMS = ("intel", "amdgpu", "freedreno", "panfrost", "v3d")
_BUILT = ("panfrost", "broadcom")
"""The drivers that are built, too."""
_UNUSED = ("mesa_clc", "vtn_bindgen")
"""Programs that Mesa's build looks for, and that no shim needs."""


class PackagesMissing(ToolchainError):
    """The drivers, or what the shims are built of, are not to be had."""


@dataclass(frozen=True)
class VendorDevice:
    """A GPU that a shim stands in for."""

    name: str
    shim: str
    driver: str
    """The beginning of the name of its driver's description."""
    variable: str = ""
    """The shim's environment variable that names the GPU, if it knows several."""
    number: str = ""
    """What the variable says, if it is not the name."""
    is_slow: bool = False
    """Whether its compiler takes a minute for a kernel that spills."""

    def environment(self, folder: Path) -> Mapping[str, str]:
        """What makes it the only Vulkan device of a process."""
        description = folder / f"{self.driver}_icd.json"
        named = {self.variable: self.number or self.name} if self.variable else {}
        return {
            **os.environ, **named,
            "VK_DRIVER_FILES": str(description),
            "VK_ICD_FILENAMES": str(description),  # of older loaders
            "LD_PRELOAD": str(folder / f"lib{self.shim}_noop_drm_shim.so"),
            "NODEVICE_SELECT": "1", "MESA_SHADER_CACHE_DISABLE": "true",
            "KOMPUTE_DML_DEVICE": "", "KOMPUTE_DML_PIPELINES": "", "KOMPUTE_DML_TUNING": ""}


DEVICES = (
    *(VendorDevice(name, "amdgpu", "radeon", "AMDGPU_GPU_ID")
      for name in ("navi31", "gfx1201", "navi21", "vega10")),
    *(VendorDevice(name, "intel", "intel", "INTEL_STUB_GPU_PLATFORM")
      for name in ("bmg", "dg2", "lnl", "tgl")),
    VendorDevice("a740", "freedreno", "freedreno", "FD_GPU_ID", "740"),
    VendorDevice("g610", "panfrost", "panfrost", "PAN_GPU_ID", "a867", is_slow=True),
    VendorDevice("v3d", "v3d", "broadcom", is_slow=True))


def interpreter(folder: Path) -> list[str]:
    """The command of this interpreter with the C library of the drivers."""
    libraries = _libraries(folder / "root")
    return [str(next(libraries.glob("ld-linux*.so.*"))), "--library-path", str(libraries),
            "--argv0", sys.executable, os.path.realpath(sys.executable)]


def _libraries(root: Path) -> Path:
    return next(root.glob("usr/lib/*-linux-gnu"))


def ready(folder: Path | None = None) -> Path:
    """The folder of drivers and shims, built at first use: some ten minutes on two cores. Raises
    PackagesMissing where the packages are not to be had, and ToolchainError where they do not
    build."""
    folder = folder or cache_dir("vendors")
    key, mark = _key(), folder / "ready"
    if not mark.is_file() or mark.read_text() != key:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _build(folder)
        mark.write_text(key)
    return folder


def _key() -> str:
    """What the folder is built of."""
    fixes = [patch.text for patch in patches.load(patches.FOLDER / "mesa")]
    what = (_DRIVERS, _SOURCE, _OPTIONS, _SHIMS, _BUILT, fixes)
    return hashlib.sha256(repr(what).encode()).hexdigest()


def _build(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        tools, programs = Path(scratch) / "root", Path(scratch) / "programs"
        try:
            source = _packages(folder / "root", tools, programs, Path(scratch))
        except ToolchainError as error:
            raise PackagesMissing(str(error)) from None
        for path in (folder / "root/usr/share/vulkan/icd.d").glob("*.json"):
            described = json.loads(path.read_text())
            described["ICD"]["library_path"] = str(
                _libraries(folder / "root") / Path(described["ICD"]["library_path"]).name)
            (folder / path.name).write_text(json.dumps(described))
        for path in _libraries(tools).glob("pkgconfig/*.pc"):
            path.write_text(re.sub(r"(?m)=/usr\b", f"={tools / 'usr'}", path.read_text()))
        patches.apply(source, patches.load(patches.FOLDER / "mesa"))
        _libraries_of(folder, tools, programs, source)


def _packages(drivers: Path, tools: Path, programs: Path, scratch: Path) -> Path:
    """Unpack the drivers, and what builds the shims, into folders. Returns Mesa's source."""
    if debian.distribution() != "debian":
        raise ToolchainError("only Debian's archive is known to have them")
    require_program("pkg-config", "pkg-config", "to build shims of GPUs")
    say(f"drivers of Debian {_NEWEST}")
    debian.unpack(_DRIVERS, [_NEWEST], drivers, needs=True)
    debian.unpack(_TOOLS, _SOURCE, tools)
    run([sys.executable, "-m", "pip", "install", "--quiet", "--target", programs, *_PYTHON])
    return debian.source("mesa", _SOURCE[1], scratch)


def _libraries_of(folder: Path, root: Path, programs: Path, source: Path) -> None:
    """Build shims and drivers of a source of Mesa, with ``programs`` of Python's index."""
    say(f"shims and drivers of {', '.join(_BUILT)} from Mesa's source")
    build, own = source / "build", source / "programs"
    own.mkdir()
    for name in _UNUSED:
        (own / name).write_text("#!/bin/sh\n")
        (own / name).chmod(0o755)
    (own / "python3").symlink_to(sys.executable)
    env = {
        **os.environ, "PYTHONPATH": str(programs), "M4": str(root / "usr/bin/m4"),
        "BISON_PKGDATADIR": str(root / "usr/share/bison"),
        "PKG_CONFIG_LIBDIR": str(_libraries(root) / "pkgconfig"),  # and none of the system's
        "PATH": ":".join(map(str, (
            own, programs / "bin", root / "usr/bin", os.environ.get("PATH", ""))))}
    run([sys.executable, "-m", "mesonbuild.mesonmain", "setup", build, source,
         *(f"-D{option}" for option in _OPTIONS)], env=env)
    names = [*(f"lib{shim}_noop_drm_shim.so" for shim in _SHIMS),
             *(f"libvulkan_{driver}.so" for driver in _BUILT)]
    targets = run(["ninja", "-C", build, "-t", "targets", "all"], env=env)
    paths = [m for m in re.findall(r"(?m)^(\S+\.so):", targets) if Path(m).name in names]
    if len(paths) != len(names):
        raise ToolchainError(f"Mesa's source no longer builds {', '.join(names)}")
    run(["ninja", "-C", build, *paths], env=env)
    for path in paths:
        shutil.copy(build / path, folder)
    for driver in _BUILT:
        library = {"library_path": str(folder / f"libvulkan_{driver}.so"), "api_version": "1.3.0"}
        (folder / f"{driver}_icd.json").write_text(
            json.dumps({"file_format_version": "1.0.0", "ICD": library}))
