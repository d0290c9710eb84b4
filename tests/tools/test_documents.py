"""The documents: tables are up to date, snippets run, links are valid."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import documents
from kompute_dml.bench import baseline
from kompute_dml.cli import cli
from kompute_dml.toolchain import site

_ROOT = documents.ROOT
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]
_SPEC = sorted((_ROOT / "kompute_dml" / "spec").glob("*.md"))
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


def _headings(page: Path) -> set[str]:
    """What `#name` leads to on a page, as GitHub and the site name headings."""
    text = page.read_text("utf-8")
    outside = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", outside, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*_PAGES, *_SPEC], ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    wrong = []
    for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
        target = (page.parent / link) if link else page
        if not target.exists() or (anchor and anchor not in _headings(target)):
            wrong.append(f"{link}#{anchor}")
    assert wrong == []


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"),
                      re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_snippets_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    blocks = _blocks(page, "python")
    with_models = [block for block in blocks if "onnxruntime" in block]
    if with_models:
        _model(tmp_path / "model.onnx", names)
        monkeypatch.chdir(tmp_path)
    if any("import torch" in block for block in blocks):
        pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
    for block in blocks:
        exec(block, names)


def _model(path: Path, names: dict[str, Any]) -> None:
    """What the pages' model.onnx stands for; a cache of keys goes in and comes out."""
    pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
    pytest.importorskip("cffi", reason="the provider needs cffi")
    pytest.importorskip("onnx", reason="the model is built with onnx")
    from onnx_graphs import FLOAT, model, node

    names.update(np=np, shape=(2, 2))
    path.write_bytes(model([node("MatMul", "past past", "present")],
                           [("past", FLOAT, [2, 2])], [("present", FLOAT, [2, 2])]))


def _lines(page: Path, first: str) -> list[str]:
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines() if line.startswith(first)]


def test_commands_of_the_pages_are_there() -> None:
    """Each `kompute-dml` line names a command and options that there are, each `make` a job."""
    make = (_ROOT / "Makefile").read_text("utf-8")
    commands = [line.split("  ")[0].split() for page in _PAGES for line in _lines(page, "kompute-")]
    jobs = [line.split()[1] for page in _PAGES for line in _lines(page, "make ")]
    assert len(commands) > 5 and len(jobs) > 2
    for words in commands:
        known = {option for p in cli.commands[words[1]].params for option in p.opts}
        assert {word for word in words if word.startswith("-")} <= known, words
    for job in jobs:
        assert re.search(rf"^{job}:", make, re.MULTILINE), job


def test_what_stands_beside_cpp_is_there() -> None:
    """The Python columns of the tables in life-cycle.md."""
    text = (_ROOT / "docs/life-cycle.md").read_text("utf-8")
    device = dml.default_device()
    x = dml.TensorDesc("float32", [2])
    compiled = device.compile_operator(device.create_operator(
        dml.ElementWiseAbsOperatorDesc(input_tensor=x, output_tensor=x)))
    known = {"dml": dml, "device": device, "compiled": compiled, "desc": x,
             "buffer": device.create_buffer(16), "table": device.create_binding_table(compiled)}
    rows = re.findall(r"^\| .* \| (.*) \|$", text, re.MULTILINE)
    named = re.findall(r"`(\w+)\.(\w+)", " ".join(rows))
    assert len(named) == 23
    assert [f"{of}.{name}" for of, name in named if not hasattr(known[of], name)] == []


def test_the_example_of_an_operator_is_what_the_files_hold() -> None:
    text = (_ROOT / "docs/contributing.md").read_text("utf-8")
    steps = re.findall(r"^\d\. (.*?)(?=^\d\. |^\S)", text, re.DOTALL | re.MULTILINE)
    shows = 0
    for step in steps:
        named = re.search(r"`((?:shaders|kompute_dml|tests)/[\w./]+)`", step)
        assert named
        held = (_ROOT / named[1]).read_text("utf-8")
        for shown in re.findall(r"^ +```\w*\n(.*?)^ +```", step, re.DOTALL | re.MULTILINE):
            shows += 1
            lines = [line.strip() for line in shown.splitlines()]
            assert all(line.removesuffix(" ...") in held for line in lines), named[1]
            assert any(line.endswith(" ...") for line in lines) or textwrap.dedent(
                shown) in held or textwrap.indent(textwrap.dedent(shown), "    ") in held, named[1]
    assert len(steps) == 12 and shows == 8
    for name, lines in re.findall(r"`(\S+\.py)` \((\d+) lines\)", text):
        assert len((_ROOT / name).read_text("utf-8").splitlines()) == int(lines), name


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


_KINDS = {"NoDeviceError", "DeviceLostError", "OutOfMemoryError", "UnsupportedError",
          "ToolchainError"}


def _said(node: ast.expr) -> str:
    """The text of a message, with {} for what is not known before it is raised."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_said, node.values))
    if isinstance(node, ast.BinOp):
        return _said(node.left) + _said(node.right)
    return "{}"


def test_troubleshooting_has_every_error() -> None:
    """All but those of a broken rule, and onnx/'s reasons, which `kompute-dml explain` prints."""
    page = (_ROOT / "docs/troubleshooting.md").read_text("utf-8")
    texts = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    missing, seen = [], 0
    for path in sorted((_ROOT / "kompute_dml").rglob("*.py")):
        if "onnx" in path.relative_to(_ROOT / "kompute_dml").parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = getattr(getattr(node, "func", None), "id", "")
            if not isinstance(node, ast.Call) or name not in _KINDS or not node.args:
                continue
            said = _said(node.args[0])
            if len(re.findall(r"[A-Za-z]+", said)) < 2:
                continue  # passes another's words on
            seen += 1
            if not any(text in said for text in texts):
                missing.append(f"{path.name}:{node.lineno}: {said}")
    assert seen > 80 and missing == []


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
