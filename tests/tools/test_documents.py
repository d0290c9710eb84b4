"""The documents: tables are up to date, snippets run, links are valid."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from kompute_dml.bench import baseline
from kompute_dml.toolchain import documents, site

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
def test_snippets_run(page: Path) -> None:
    text = page.read_text("utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if "onnxruntime" not in block:  # test_onnxruntime.py runs what needs a model
            exec(block, names)


def test_the_example_of_an_operator_is_what_the_files_hold() -> None:
    text = (_ROOT / "docs/contributing.md").read_text("utf-8")
    steps = re.findall(r"^\d\. (.*?)(?=^\d\. |^\S)", text, re.DOTALL | re.MULTILINE)
    assert len(steps) == 3
    for step in steps:
        named = re.search(r"`((?:shaders|kompute_dml)/[\w./]+)`", step)
        assert named
        held = (_ROOT / named[1]).read_text("utf-8")
        (shown,) = re.findall(r"^ +```\w*\n(.*?)^ +```", step, re.DOTALL | re.MULTILINE)
        assert textwrap.dedent(shown) in held, named[1]


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_files_that_pages_name_exist(page: Path) -> None:
    named = re.findall(r"`((?:shaders|kompute_dml|tests|docs|examples|benchmarks)/[\w./-]+)`",
                       page.read_text("utf-8"))
    assert [name for name in named if not (_ROOT / name).exists()] == []


def test_troubleshooting_quotes_what_messages_say() -> None:
    page = (_ROOT / "docs/troubleshooting.md").read_text("utf-8")
    texts = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    code = "".join(path.read_text("utf-8") for path in (_ROOT / "kompute_dml").rglob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", code)
    assert len(texts) > 20 and [text for text in texts if text not in said] == []


def test_the_site_has_every_page() -> None:
    nav = (_ROOT / "mkdocs.yml").read_text("utf-8")
    assert [str(p) for p in _PAGES[1:] if p.relative_to(_ROOT / "docs").as_posix() not in nav] == []


def test_links_lead_where_the_site_has_the_page() -> None:
    assert site.linked("[a](docs/x.md) [b](kompute_dml/spec/semantics.md)", "README.md") == (
        "[a](x.md) [b](semantics.md)")
    assert site.linked("[a](../kompute_dml/spec/accuracy.md#one)", "docs/x.md") == (
        "[a](accuracy.md#one)")
    assert site.linked("[a](../../README.md)", "docs/performance/x.md") == "[a](../index.md)"


def test_pages_say_how_many_goals_are_met() -> None:
    limits = " ".join((_ROOT / "docs/performance/limits.md").read_text("utf-8").split())
    for stem, said in {
        "nvidia-h200-elementwise": "[{} on an H200](elementwise.md)",
        "nvidia-h100": "[{}](h100.md)",
    }.items():
        table = baseline.markdown(baseline.load(_BASELINES / f"{stem}.json"))
        (met,) = re.findall(r"(\d+ of \d+) goals are met", table)
        assert said.format(met) in limits
