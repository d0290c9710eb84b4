"""Hooks of the site's generator (mkdocs): README is the first page, and documents beside the code
are pages, too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_PAGES = {"index.md": "README.md", "semantics.md": "kompute_dml/spec/semantics.md",
          "accuracy.md": "kompute_dml/spec/accuracy.md"}
"""Page of the site -> its source file."""


def linked(text: str, source: str) -> str:
    """The page of `source` with links of the site."""
    places = {file: page for page, file in _PAGES.items()}

    def as_page(match: re.Match[str]) -> str:
        target = (_ROOT / source).parent / match[1]
        path = target.resolve().relative_to(_ROOT).as_posix()
        here = source.removeprefix("docs/") if source.startswith("docs/") else places[source]
        up = "../" * here.count("/")
        return f"]({up}{places.get(path, path.removeprefix('docs/'))}{match[2] or ''})"

    return re.sub(r"\]\(([^)#:]+)(#[^)]*)?\)", as_page, text)


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for page, source in _PAGES.items():
        text = linked((_ROOT / source).read_text("utf-8"), source)
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    source = page.file.src_uri
    return markdown if source in _PAGES else linked(markdown, f"docs/{source}")
