"""Programs from Debian's and Ubuntu's archives, unpacked privately: nothing is installed.

The system's own apt downloads them, with its mirror, proxy and keys, but without root.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .system import ToolchainError, require_program, run

GLSLANG_PROGRAMS = ("glslangValidator", "spirv-val", "spirv-dis")


@dataclass(frozen=True)
class _Suite:
    """A release with a new enough glslang, and its keyring."""

    name: str
    components: str
    keyring: str


_NEWER = {
    "debian": _Suite("trixie", "main", "/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": _Suite("noble", "main universe", "/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}


def distribution() -> str:
    """The ID in os-release; an empty string without one."""
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line[3:].strip('"') for line in lines if line.startswith("ID=")), "")


def newer_glslang(folder: Path) -> None:
    """Puts the glslang of a newer release, with its C library, into `folder`/bin."""
    suite = _NEWER.get(distribution())
    if suite is None:
        raise ToolchainError("only Debian's and Ubuntu's archives are known to offer it")
    with tempfile.TemporaryDirectory() as scratch:
        sources = _sources("deb", [suite.name], Path(scratch))
        names = ["glslang-tools", "spirv-tools", "libc6", "libstdc++6", "libgcc-s1"]
        root = Path(scratch) / "root"
        for package in _download(Path(scratch), names, sources):
            run(["dpkg", "-x", package, root])
        loader = next(root.rglob("ld-linux-*.so.*"), None)
        if loader is None:
            raise ToolchainError("the newer C library holds no loader")
        shutil.rmtree(root / "usr" / "share", ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(root, folder / "root", symlinks=True)
        libraries = sorted({path.parent.relative_to(root) for path in root.rglob("lib*.so.*")})
        start = loader.relative_to(root)
    (folder / "bin").mkdir()
    for program in GLSLANG_PROGRAMS:
        path = ":".join(f"$root/{library}" for library in libraries)
        script = folder / "bin" / program
        script.write_text(
            '#!/bin/sh\nroot=$(dirname "$(readlink -f "$0")")/../root\n'
            f'exec "$root/{start}" --library-path "{path}" "$root/usr/bin/{program}" "$@"\n'
        )
        script.chmod(0o755)


def swiftshader(folder: Path) -> Path:
    """Puts SwiftShader into `folder`. Returns the description for VK_DRIVER_FILES."""
    library = folder / "libvk_swiftshader.so"
    with tempfile.TemporaryDirectory() as scratch:
        (package,) = _download(Path(scratch), ["chromium-common"])
        run(["dpkg", "-x", package, Path(scratch) / "root"])
        driver = next((Path(scratch) / "root").rglob(library.name), None)
        if driver is None:
            raise ToolchainError("chromium-common no longer ships SwiftShader")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(driver, library)
    description = folder / "swiftshader_icd.json"
    # Relative to the description, so that the folder may be moved.
    icd = {"library_path": f"./{library.name}", "api_version": "1.3.0"}
    description.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": icd}))
    return description


def unpack(
    names: Sequence[str], releases: Sequence[str], folder: Path, needs: bool = False
) -> None:
    """Unpacks packages of releases of this system's distribution into `folder`, with ``needs`` all
    that they depend on, too. A name may end with a slash and the release that it is of."""
    with tempfile.TemporaryDirectory() as scratch:
        sources = _sources("deb", releases, Path(scratch))
        take = _download_with_needs if needs else _download
        for package_file in take(Path(scratch), names, sources):
            run(["dpkg", "-x", package_file, folder])


def source(name: str, release: str, folder: Path) -> Path:
    """Unpacks a package's source as its authors published it, without Debian's changes, into
    `folder`. Returns its root."""
    with tempfile.TemporaryDirectory() as scratch:
        sources = _sources("deb-src", [release], Path(scratch))
        options = _options(Path(scratch), sources)
        run(["apt-get", *options, "update", "-qq"])
        run(["apt-get", *options, "source", "-qq", "--download-only", "--tar-only",
             f"{name}/{release}"], cwd=Path(scratch))
        (archive,) = Path(scratch).glob(f"{name}_*.orig.tar.*[!c]")
        own = folder / f"source-{name}"
        own.mkdir()
        run(["tar", "-xf", archive, "-C", own])
    (root,) = own.iterdir()
    return root


def codename() -> str:
    """The name of this system's release."""
    lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    names = [line.partition("=")[2] for line in lines if line.startswith("VERSION_CODENAME=")]
    if not names or distribution() not in _NEWER:
        raise ToolchainError("only Debian's and Ubuntu's archives are known")
    return names[0].strip('"')


def _sources(kind: str, releases: Sequence[str], scratch: Path) -> Path:
    """A list of sources for apt with these releases."""
    suite, path = _NEWER[distribution()], scratch / "sources.list"
    path.write_text("".join(
        f"{kind} [signed-by={suite.keyring}] {_mirror()} {release} {suite.components}\n"
        for release in releases))
    return path


def _mirror() -> str:
    """The address of the archive that this system uses."""
    targets = run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    ).splitlines()
    archive = f"/{distribution()}"
    mirrors = [uri for uri in targets if uri.rstrip("/").endswith(archive)]
    if not mirrors:
        raise ToolchainError("apt has no package lists: run apt-get update")
    return mirrors[0]


def _download(scratch: Path, names: Sequence[str], sources: Path | None = None) -> list[Path]:
    """Downloads packages, from the releases in `sources` if given."""
    require_program("apt-get", "apt", "to fetch packages")
    require_program("dpkg", "dpkg", "to unpack packages")
    debs = scratch / "debs"
    debs.mkdir()
    options = _options(scratch, sources)
    if sources is not None:
        run(["apt-get", *options, "update", "-qq"])
    run(["apt-get", *options, "download", "-qq", *names], cwd=debs)
    return sorted(debs.glob("*.deb"))


def _download_with_needs(scratch: Path, names: Sequence[str], sources: Path) -> list[Path]:
    """Downloads packages and all that they depend on, as for an empty system."""
    options = [*_options(scratch, sources), f"-oDir::State::status={scratch}/status"]
    (scratch / "status").touch()
    run(["apt-get", *options, "update", "-qq"])
    run(["apt-get", *options, "install", "-qq", "--yes", "--download-only",
         "--no-install-recommends", *names])
    return sorted((scratch / "cache" / "archives").glob("*.deb"))


def _options(scratch: Path, sources: Path | None) -> list[str]:
    """Options of apt that leave the system alone."""
    options = ["-oAPT::Sandbox::User=", "-oDebug::NoLocking=1", f"-oDir::Cache={scratch}/cache"]
    (scratch / "cache" / "archives" / "partial").mkdir(parents=True)
    if sources is not None:
        (scratch / "lists" / "partial").mkdir(parents=True)
        options += [
            f"-oDir::Etc::SourceList={sources}",
            "-oDir::Etc::SourceParts=/dev/null",
            f"-oDir::State::Lists={scratch}/lists",
        ]
    return options
