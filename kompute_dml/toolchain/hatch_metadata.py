"""The README and the addresses in a package's metadata, where no file lies beside them."""

from __future__ import annotations

import os
import re
import subprocess
from email.parser import HeaderParser
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

ADDRESS = "KOMPUTE_DML_REPOSITORY"
"""Names the repository's address, where git's `origin` is not it."""
_SOURCE = "Source"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\((?![a-z]+:|#)([^)\s]+)\)")
_OTHERS = {
    "DirectML's operators": "https://learn.microsoft.com/windows/ai/directml/",
    "Kompute": "https://github.com/KomputeProject/kompute",
}


class Metadata(MetadataHookInterface):
    def update(self, metadata: dict[str, object]) -> None:
        root = Path(self.root)
        address = repository(root)
        text = (root / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, address)}
        metadata["urls"] = urls(address)


def repository(root: Path) -> str | None:
    """The repository's address: as the environment names it, as the source distribution in `root`
    has it, or git's `origin`. None where none of these is a web address."""
    named = os.environ.get(ADDRESS) or _of_distribution(root / "PKG-INFO") or _of_git(root)
    as_https = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", named.strip())
    return as_https.removesuffix("/").removesuffix(".git") if as_https[:8] == "https://" else None


def absolute(text: str, address: str | None) -> str:
    """A README whose links lead to the repository. Without an address, files of the repository have
    no links, and its pictures are left out."""
    def link(match: re.Match[str]) -> str:
        picture, label, path = match.groups()
        label = _LINK.sub(link, label)
        if address is None:
            return "" if picture else label
        return f"{picture}[{label}]({address}/{'raw' if picture else 'blob'}/HEAD/{path})"

    return _LINK.sub(link, text)


def urls(address: str | None) -> dict[str, str]:
    if address is None:
        return _OTHERS
    return {_SOURCE: address, "Documentation": f"{address}/tree/HEAD/docs",
            "Issues": f"{address}/issues", **_OTHERS}


def _of_distribution(path: Path) -> str:
    if not path.is_file():
        return ""
    for line in HeaderParser().parsestr(path.read_text("utf-8")).get_all("Project-URL", []):
        name, _, address = line.partition(", ")
        if name == _SOURCE:
            return str(address)
    return ""


def _of_git(root: Path) -> str:
    """What git says of a checkout. A folder inside another repository is none."""
    if not (root / ".git").exists():
        return ""
    try:
        return subprocess.run(["git", "-C", root, "remote", "get-url", "origin"], text=True,
                              capture_output=True).stdout
    except OSError:
        return ""
