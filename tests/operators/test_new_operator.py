"""A new elementwise operator is a line of GLSL, a row and a case. All else follows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kompute_dml.toolchain import glslang
from kompute_dml.toolchain.system import ToolchainError

_ROOT = Path(__file__).parents[2]
_GLSL = "OPERATOR(excess, subtract64(add64(x, x), y))\n"
_ROW = 'row("ELEMENT_WISE_EXCESS", "excess")\n'
_CASE = """\
    "ELEMENT_WISE_EXCESS": Reference(lambda x, y: 2 * x - y, "int64", low=-99, high=99),
"""

_USE = """
import json
import numpy as np
import kompute_dml as dml
from kompute_dml import dxdispatch, support
from kompute_dml.cases import TINY
from kompute_dml.bench.cases import RECIPES
from kompute_dml.cli import cli
from click.testing import CliRunner

device = dml.default_device()
a = np.array([[1, 2, 3], [-4, 5, 2**40]])
x = device.tensor(a)
assert dml.excess(x, 7).numpy().tolist() == (2 * a - 7).tolist()
assert dml.excess(x.T, a.T[:, :1]).numpy().tolist() == (2 * a.T - a.T[:, :1]).tolist()
assert dml.excess(x, x, out=x) is x
assert x.numpy().tolist() == a.tolist()
assert "2*a - b" in dml.excess.__doc__ and "INT64" in dml.excess.__doc__

t = dml.TensorDesc("int64", [3])
desc = dml.ElementWiseExcessOperatorDesc(a_tensor=t, b_tensor=t, output_tensor=t)
low = dml.Device(feature_level=dml.FeatureLevel.FL_2_1)
try:
    low.create_operator(desc)
    raise AssertionError("INT64 came later")
except dml.UnsupportedError:
    low.close()
try:
    dml.excess(x, x[:, :2])
    raise AssertionError("the sizes differ")
except dml.ValidationError:
    pass

row = next(r for r in support.rows() if r.operator == "DML_OPERATOR_ELEMENT_WISE_EXCESS")
assert row.function == "excess" and row.in_place and "INT64" in row.data_types
assert row.operator.removeprefix("DML_OPERATOR_") in support.markdown_table()
assert "EXCESS" in CliRunner().invoke(cli, ["ops"]).output

recipe = next(r for r in RECIPES if r.operator == row.operator)
for case in recipe.make(device, TINY):
    assert case.check(case.dispatch()) == ""

tensor = {"DataType": "INT64", "Sizes": [3]}
values = {n: {"initialValuesDataType": "INT64", "initialValues": [1, 2, 3]} for n in "ABY"}
fields = dict(zip(("ATensor", "BTensor", "OutputTensor"), "ABY"))
model = dxdispatch.parse(json.dumps({
    "resources": values,
    "dispatchables": {"op": {"type": "ELEMENT_WISE_EXCESS", "desc": dict.fromkeys(fields, tensor)}},
    "commands": [{"type": "dispatch", "dispatchable": "op", "bindings": fields},
                 {"type": "print", "resource": "Y"}],
}))
lines = []
dxdispatch.Runner(model, device, write=lines.append).run()
assert lines[-1] == "Resource 'Y': 1, 2, 3", lines
"""


def _compiler() -> bool:
    try:
        return bool(glslang.find())
    except ToolchainError:
        return False


def _insert(path: Path, line: str, before: str) -> None:
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, line + before, 1), "utf-8")


@pytest.mark.slow
@pytest.mark.skipif(not _compiler(), reason="there is no glslangValidator")
def test_a_line_of_glsl_a_row_and_a_case(tmp_path: Path) -> None:
    for folder in ("kompute_dml", "shaders"):
        shutil.copytree(_ROOT / folder, tmp_path / folder,
                        ignore=shutil.ignore_patterns("__pycache__"))
    document = tmp_path / "kompute_dml" / "spec" / "operators.json"
    facts = json.loads(document.read_text("utf-8"))
    like = facts["operators"]["DML_OPERATOR_ELEMENT_WISE_SUBTRACT"]
    newest = like["support"][0]
    of_int64 = {name: {**t, "data_types": ["INT64"]} for name, t in newest["tensors"].items()}
    facts["operators"]["DML_OPERATOR_ELEMENT_WISE_EXCESS"] = {
        **like, "formula": "y = 2*a - b", "support": [{**newest, "tensors": of_int64}]}
    document.write_text(json.dumps(facts), "utf-8")

    shader = tmp_path / "shaders" / "elementwise" / "elementwise_integer64.comp"
    _insert(shader, _GLSL, before="OPERATOR(add,")
    _insert(tmp_path / "kompute_dml" / "operators" / "elementwise.py", _ROW, before="row(\"CAST")
    _insert(tmp_path / "kompute_dml" / "cases" / "elementwise.py", _CASE,
            before='    "ELEMENT_WISE_EXP"')

    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    compiler = glslang.find().path
    for command in (["-m", "kompute_dml.toolchain", "spirv"], ["-c", _USE]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True,
                              text=True, env={**environment, "GLSLANG_VALIDATOR": compiler})
        assert done.returncode == 0, done.stdout + done.stderr
