"""The documents: their tables are up to date, their snippets run, their links lead somewhere."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import pytest

from kompute_dml.bench import baseline
from kompute_dml.toolchain import documents

_ROOT = documents.ROOT
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]
_BASELINES = _ROOT / "benchmarks" / "baseline"


def test_the_tables_are_up_to_date() -> None:
    assert documents.stale() == [], "run python -m kompute_dml.toolchain docs"


def test_every_baseline_has_a_page() -> None:
    pages = "".join(page.read_text("utf-8") for page in _PAGES)
    for path in _BASELINES.glob("*.json"):
        assert baseline.markdown(baseline.load(path)) in pages, path.name


def test_a_part_goes_between_its_marks() -> None:
    text = "a\n<!-- one -->\nold\n<!-- end -->\n<!-- two -->\nkept\n<!-- end -->\n"
    assert documents.replaced(text, "one", "new") == text.replace("old", "new")
    with pytest.raises(ValueError, match="three"):
        documents.replaced(text, "three", "")


def test_the_readme_is_short() -> None:
    assert len((_ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_snippets_run(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = page.read_text("utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if "onnxruntime" not in block:  # test_onnxruntime.py runs what needs a model
            exec(block, names)
    stated = re.search(r"print\(y\) +# (<Tensor .*, on )", text)
    if stated:
        assert capsys.readouterr().out.startswith(stated[1])


def test_pages_say_how_many_goals_are_met() -> None:
    limits = " ".join((_ROOT / "docs/performance/limits.md").read_text("utf-8").split())
    for stem, said in {
        "nvidia-h200-elementwise": "[{} on an H200](elementwise.md)",
        "nvidia-h100": "[{}](h100.md)",
    }.items():
        table = baseline.markdown(baseline.load(_BASELINES / f"{stem}.json"))
        (met,) = re.findall(r"(\d+ of \d+) goals are met", table)
        assert said.format(met) in limits


def test_install_says_what_a_wheel_weighs() -> None:
    stated = re.search(r"wheel \(([\d.]+) MB\)", (_ROOT / "docs/install.md").read_text("utf-8"))
    assert stated
    files = [p for p in (_ROOT / "kompute_dml").rglob("*") if p.is_file() and "__pycache__" not in
             p.parts]
    megabytes = sum(len(zlib.compress(p.read_bytes())) for p in files) / 1e6
    assert megabytes == pytest.approx(float(stated[1]), rel=0.25)
