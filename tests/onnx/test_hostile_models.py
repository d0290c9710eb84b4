"""Wrong models get an error that names node, rule and value, and never a crash or a hang."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", "1.23", reason="its node tests are built in memory")
pytest.importorskip("cffi", reason="the provider needs cffi")

import hostile_models
from onnx_graphs import FLOAT, INT64, model, needs_provider, node
from provider_tools import session

pytestmark = needs_provider
SECONDS = 60
"""Within which each batch of wrong models must be done."""


@pytest.mark.parametrize("first, count", [
    (0, 40), pytest.param(1000, 500, marks=pytest.mark.slow)])
def test_wrong_models_end_in_errors(first: int, count: int) -> None:
    """In a process of its own, which must end by itself."""
    done = subprocess.run(
        [sys.executable, hostile_models.__file__, str(first), str(count)],
        cwd=Path(hostile_models.__file__).parent, capture_output=True, text=True,
        timeout=SECONDS * max(1, count // 60),
    )
    assert done.returncode == 0, (done.stdout[-500:], done.stderr[-2000:])
    *errors, last = done.stdout.splitlines()
    assert re.fullmatch(rf"{count} models, \d+ errors", last)
    # Each error of this package names a node, and is none of Python's own errors.
    for text in errors:
        assert "with inputs of sizes" in text or ": expected " in text, text
        assert not re.search(r"kompute_dml: \w+(Error|Exception)\(", text), text


@pytest.mark.parametrize("op, sizes, wrong, valid", [
    ("Gather", [5, 3], [0, 5], [0, -5]),
    ("GatherElements", [5], [-6], [4]),
    ("GatherND", [2, 4], [[1, 4]], [[-2, 3]]),
])
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "input"])
def test_an_index_out_of_range(
    op: str, sizes: list[int], wrong: list[int], valid: list[int], constant: bool,
    rng: np.random.Generator,
) -> None:
    data = rng.standard_normal(sizes).astype(np.float32)

    def run(indices: list[int]) -> None:
        i = np.array(indices)
        constants = {"data": data, **({"i": i} if constant else {})}
        infos = [("x", FLOAT, [1]), *([] if constant else [("i", INT64, i.shape)])]
        built = model([node(op, "data i", "taken"), node("Add", "taken x", "y")], infos,
                      [("y", FLOAT, None)], constants)
        feed = {"x": np.zeros(1, np.float32), **({} if constant else {"i": i})}
        session(built, False, claim="all").run(None, feed)

    run(valid)
    # A constant is known when nodes are claimed, so the CPU gets that node, and refuses it, too.
    said = "taken" if constant else rf"{op} 'taken': expected indices to be in \[-\d"
    with pytest.raises(Exception, match=said):
        run(wrong)
