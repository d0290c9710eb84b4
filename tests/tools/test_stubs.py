"""The public names, as a type checker sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kompute_dml as dml
from kompute_dml import stubs

_USE = """
import numpy as np
import kompute_dml as dml

x = dml.default_device().tensor(np.zeros((2, 3), np.float32))
reveal_type(dml.add(x, 1.0))
reveal_type(dml.activation_softmax1(x, axes=(0,)))
reveal_type(dml.dynamic_quantize_linear(x))
with dml.Graph() as g:
    e = g.input([2, 3])
    reveal_type(dml.add(e, 1.0))
    reveal_type(dml.gemm(x, e))
    reveal_type(dml.activation_relu(e @ x + 1.0))
    reveal_type(dml.dynamic_quantize_linear(e))
    reveal_type(dml.concatenate([e, e]))
    reveal_type(dml.join([e, e], axis=0))
dml.ActivationSoftmax1OperatorDesc(input_tensor=x.desc, output_tensor=x.desc, axes=(1,))
dml.nonexistent(1)
dml.activation_softmax1(x, axes="hello", nothing=1)
"""


def test_checkers_know_every_public_name(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    stubs.write()
    (tmp_path / "use.py").write_text(_USE)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "use.py"], cwd=tmp_path,
        env={"MYPYPATH": str(Path(dml.__file__).parents[1]), "PATH": ""}, text=True,
        capture_output=True).stdout
    lines = [line for line in checked.splitlines() if line.startswith("use.py")]
    tensor = '"kompute_dml.tensors.Tensor"'
    assert [tensor in line for line in lines[:2]] == [True, True], checked
    assert "tuple[kompute_dml.tensors.Tensor" in lines[2]
    made = '"kompute_dml.graph.expression.Expression"'
    assert [made in line for line in (*lines[3:6], *lines[7:9])] == [True] * 5, checked
    assert "tuple[kompute_dml.graph.expression.Expression" in lines[6]
    wrong = [line for line in lines if "error" in line]
    assert len(wrong) == 3, checked
    assert all(part in line for part, line in zip(("nonexistent", "nothing", '"str"'), wrong))


def test_the_stub_has_every_public_name() -> None:
    text = stubs.write().read_text("utf-8")
    missing = [name for name in dml.__dir__()
               if f"def {name}(" not in text and f"class {name}(" not in text
               and f" as {name}\n" not in text and f"{name}:" not in text]
    assert missing == []
