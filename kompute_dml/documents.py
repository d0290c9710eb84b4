"""Writes the generated parts of the documents, and the picture of the kept runs.

A part stands between ``<!-- name -->`` and ``<!-- end -->``.
``python -m kompute_dml.toolchain docs`` writes them all; a test says when one is stale.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import support
from .bench import baseline, plot
from .files import replaced as replaced_file
from .graph import switches

ROOT = Path(__file__).parents[1]
_BASELINES = ROOT / "benchmarks" / "baseline"


_MODELS = "nvidia-h200-models"
_SHOWN = ("resnet50, 1", "resnet50, 32", "MiniLM-L6, 1 x 128", "bert-base, 8 x 512")
"""Models of README's table."""
_PICTURE = "docs/performance/nvidia-h200.svg"


def _kept(stem: str) -> dict[str, Any]:
    return baseline.load(_BASELINES / f"{stem}.json")


def _table_of(stem: str) -> Callable[[], str]:
    return lambda: baseline.markdown(_kept(stem))


PARTS: dict[tuple[str, str], Callable[[], str]] = {
    ("README.md", "counts"): support.counts,
    ("README.md", "models"): lambda: baseline.short_markdown(_kept(_MODELS), _SHOWN),
    ("docs/performance/models.md", "models"): _table_of(_MODELS),
    ("docs/tensors.md", "optimizations"): switches.as_table,
    ("docs/operators.md", "support table"): support.markdown_table,
    ("docs/operators.md", "extension table"): lambda: support.markdown_table(support.extensions()),
    ("docs/performance/limits.md", "benchmark table"): _table_of("nvidia-h200"),
    ("docs/performance/families.md", "benchmark table"): _table_of("nvidia-h200-families"),
    ("docs/performance/elementwise.md", "benchmark table"): _table_of("nvidia-h200-elementwise"),
    ("docs/performance/h100.md", "benchmark table"): _table_of("nvidia-h100"),
    ("docs/performance/cpu.md", "benchmark table"): _table_of("llvmpipe-numpy"),
}
"""Functions that make the parts, by document and name."""


def replaced(text: str, name: str, part: str) -> str:
    """``text`` with a new part between the marks. Raises ValueError if they are missing."""
    marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not marked.search(text):
        raise ValueError(f"there is no <!-- {name} --> with its <!-- end -->")
    return marked.sub(lambda m: f"{m[1]}{part}\n{m[2]}", text, count=1)


def stale() -> list[str]:
    """The documents that :func:`write` would change."""
    return [page for page, text in _pages().items()
            if not (ROOT / page).exists() or (ROOT / page).read_text("utf-8") != text]


def write() -> list[str]:
    """Bring all documents up to date. Returns those that changed."""
    changed = stale()
    for page, text in _pages().items():
        if page in changed:
            with replaced_file(ROOT / page) as file:
                file.write_text(text, "utf-8")
    return changed


def _pages() -> dict[str, str]:
    pages = {_PICTURE: plot.picture(_kept("nvidia-h200"), _kept(_MODELS))}
    for (page, name), part in PARTS.items():
        text = pages.get(page) or (ROOT / page).read_text("utf-8")
        pages[page] = replaced(text, name, part())
    return pages
