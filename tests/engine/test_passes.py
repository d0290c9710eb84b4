"""Each pass: its example with and without it, and a new one, which is two files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.graph import switches
from kompute_dml.graph.memory import Storage
from kompute_dml.graph.node import Node
from kompute_dml.graph.rewrite import REWRITES
from passes import Example, examples
from test_convolution import set_traits

_ROOT = Path(__file__).parents[2]
_EXAMPLES = examples()


def _run(device: dml.Device, example: Example, arrays: Any) -> tuple[list[Any], list[np.ndarray]]:
    """The descriptions of the operators that run, and the results."""
    with dml.Graph(device) as g:
        outputs = example.build(*[g.input(a.shape, a.dtype) for a in arrays])
        run = g.compile(outputs if isinstance(outputs, list) else [outputs])
    descs = [compiled.operator.desc for compiled, _ in run._plan._steps]
    return descs, run(*arrays)


def test_each_pass_has_an_example() -> None:
    assert _EXAMPLES.keys() == REWRITES.keys()


@pytest.mark.parametrize("name", _EXAMPLES)
def test_a_pass_is_left_out_by_its_name(
    name: str, own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes what runs, and not the results."""
    example = _EXAMPLES[name]
    missing = own.target.library.missing(example.needs) if example.needs else None
    if missing:
        pytest.skip(missing)
    set_traits(own, **example.traits)
    arrays = example.arrays(rng)
    monkeypatch.setenv(switches.SWITCH, example.alone)
    descs, results = _run(own, example, arrays)
    monkeypatch.setenv(switches.SWITCH, f"{example.alone},{name}")
    others, expected = _run(own, example, arrays)
    assert descs != others and len(descs) <= len(others)
    for got, wanted in zip(results, expected, strict=True):
        most = example.close * float(np.abs(wanted.astype(np.float64)).max())
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=0, atol=most)
        assert np.unique(wanted).size > 1 or wanted.size == 1


@pytest.mark.parametrize(("values", "number"), [
    ([0.5], 0.5), ([0.5] * 4, 0.5), ([0.5, 0.5, 0.5, 1], None), (None, None)])
def test_a_number_is_a_constant_of_equal_elements(
    values: list[float] | None, number: float | None
) -> None:
    sizes = (3, 4)
    x = dml.TensorDesc("float32", sizes)
    factor = dml.TensorDesc("float32", sizes, (0, int(values is None or len(values) > 1)))
    storage = Storage(16, constant=True)
    if values is not None:
        storage.values = np.float32(values).view(np.uint8)
    node = Node(dml.ElementWiseMultiplyOperatorDesc(a_tensor=x, b_tensor=factor, output_tensor=x),
                {"a_tensor": Storage(48), "b_tensor": storage, "output_tensor": Storage(48)})
    assert node.number("b_tensor") == number and node.number("a_tensor") is None


_PASS = '''"""Negating twice is left out."""

from __future__ import annotations

from ..node import Node, Nodes, class_of, has_scale_bias, output_of
from ..rewrite import rewrite

_NAME = "ELEMENT_WISE_NEGATE"


@rewrite("double_negation", "negating twice is left out", 25)
def double_negation(g: Nodes) -> None:
    for outer in g:
        inner = g.maker(outer, "input_tensor") if outer.name == _NAME else None
        if inner is None or inner.name != _NAME or has_scale_bias(inner) or has_scale_bias(outer):
            continue
        copy = class_of("ELEMENT_WISE_IDENTITY")(
            input_tensor=inner.tensor("input_tensor"), output_tensor=output_of(outer),
            scale_bias=None)
        storages = {"input_tensor": inner.storages["input_tensor"],
                    "output_tensor": outer.storages["output_tensor"]}
        g.replace([outer], Node(copy, storages, outer.label))
'''
_EXAMPLE = '''"""Two negations."""

from __future__ import annotations

import kompute_dml as dml
from passes import Example, normal

EXAMPLE = Example(lambda x: dml.negate(dml.negate(x)), normal((4, 6)),
                  alone="elementwise_fusion")
'''
_USE = """
import numpy as np
import kompute_dml as dml
from kompute_dml.graph import switches
from kompute_dml.graph.memory import Storage
from kompute_dml.graph.node import Node

assert "| `double_negation` | negating twice is left out |" in switches.as_table()
with dml.Graph() as g:
    run = g.compile(dml.activation_softmax1(dml.negate(dml.negate(g.input((2, 3))))))
assert run.operators[-1] == "ACTIVATION_SOFTMAX1" and "ELEMENT_WISE_NEGATE" not in run.operators
"""


@pytest.mark.slow
def test_a_new_pass_is_a_file_and_its_example(tmp_path: Path) -> None:
    """The switch, its documentation and its test follow."""
    ignored = shutil.ignore_patterns("__pycache__", "spirv", "models", "onnx", "tools")
    for folder in ("kompute_dml", "tests"):
        shutil.copytree(_ROOT / folder, tmp_path / folder, ignore=(
            shutil.ignore_patterns("__pycache__", "spirv") if folder == "kompute_dml"
            else ignored))
    (tmp_path / "kompute_dml" / "spirv").symlink_to(_ROOT / "kompute_dml" / "spirv")
    shutil.copy(_ROOT / "pyproject.toml", tmp_path)
    new = {"kompute_dml/graph/passes/double_negation.py": _PASS,
           "tests/passes/double_negation.py": _EXAMPLE}
    for name, text in new.items():
        (tmp_path / name).write_text(text, "utf-8")
    assert len(new) == 2
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), switches.SWITCH: ""}
    for command in (["-c", _USE], ["-m", "pytest", "-q", "-p", "no:cacheprovider",
                                   "tests/engine/test_passes.py", "-k",
                                   "double_negation or each_pass"]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True,
                              text=True, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
