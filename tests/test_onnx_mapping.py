"""The mapping table against the operators that this package implements."""

from __future__ import annotations

import numpy as np
import pytest

import kompute_dml as dml

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", "1.24", reason="the models are compared with ONNX Runtime's")

import onnx.defs

import kompute_dml.onnx_backend as backend
from kompute_dml.onnx import mapping
from kompute_dml.operators import base
from onnx_graphs import FLOAT, INT8, UINT8, cpu, model, node

_OPSET = min(28, onnx.defs.onnx_opset_version())
"""The newest that was looked at."""

WITHOUT_ROW = {
    "ACTIVATION_LINEAR": "ONNX's Affine was experimental and is gone",
    "ACTIVATION_PARAMETRIC_SOFTPLUS": "ONNX's was experimental and is gone",
    "ACTIVATION_SCALED_TANH": "ONNX's was experimental and is gone",
    "ELEMENT_WISE_ADD1": "Add, and the activation behind it",
    "ELEMENT_WISE_ATAN_YX": "no ONNX operator",
    "ELEMENT_WISE_BIT_COUNT": "no ONNX operator",
    "ELEMENT_WISE_CLIP": "CLIP1 serves Clip",
    "ELEMENT_WISE_CONSTANT_POW": "POW serves Pow",
    "ELEMENT_WISE_DIFFERENCE_SQUARE": "no ONNX operator",
    "ELEMENT_WISE_IDENTITY": "Identity and its kin are views; their copies use it",
    "ELEMENT_WISE_TANH": "ACTIVATION_TANH serves Tanh",
    "ELEMENT_WISE_THRESHOLD": "no ONNX operator",
}


def test_every_elementwise_operator_and_activation_has_a_row_or_a_reason() -> None:
    rows = {row.operator for row in mapping.TABLE}
    names = {name.removeprefix("DML_OPERATOR_") for name in base.definitions()}
    implemented = {n for n in names if n.startswith(("ELEMENT_WISE_", "ACTIVATION_"))}
    assert implemented - rows == WITHOUT_ROW.keys()


def test_rows_know_the_newest_versions_of_their_operators() -> None:
    """A version that no row knows is refused, and its node tests with it: nothing else would tell.
    """
    known: dict[str, set[int]] = {}
    for row in mapping.TABLE:
        if not row.domain:
            known.setdefault(row.op, set()).update(row.since)
    newest = {op: onnx.defs.get_schema(op, _OPSET, "").since_version for op in known}
    assert {op for op, version in newest.items() if version not in known[op]} == set()


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("shapes", [((3, 5), (3, 5)), ((2, 3, 5), (5,)), ((1,), (4, 1)), ((), ())])
def test_quantized_sum(kind: type, shapes: tuple, rng: np.random.Generator) -> None:
    info = np.iinfo(kind)
    a, b = (rng.integers(info.min, info.max, s).astype(kind) for s in shapes)
    constants = {
        "as": np.float32(0.02), "az": kind(3), "bs": np.float32(0.07), "bz": kind(9),
        "ys": np.float32(0.05), "yz": kind(11),
    }
    number = UINT8 if kind is np.uint8 else INT8
    built = model(
        [node("QLinearAdd", "a as az b bs bz ys yz", "y", "com.microsoft")],
        [("a", number, shapes[0]), ("b", number, shapes[1])],
        [("y", number, np.broadcast_shapes(*shapes))],
        {name: np.asarray(value) for name, value in constants.items()},
    )
    (got,) = backend.run_model(built, [a, b])
    expected = cpu(built).run(None, {"a": a, "b": b})[0]
    assert got.dtype == expected.dtype and got.shape == expected.shape
    # ONNX Runtime multiplies with the reciprocal of the scale: a tie may fall either way.
    assert np.abs(got.astype(int) - expected.astype(int)).max() <= 1


def test_mean(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, 3)).astype(np.float32), np.float32([[1], [2]])
    infos = [("a", FLOAT, [2, 3]), ("b", FLOAT, [2, 1])]
    two = model([node("Mean", "a b", "y")], infos, [("y", FLOAT, [2, 3])])
    (got,) = backend.run_model(two, [a, b])
    np.testing.assert_allclose(got, (a + b) / 2, rtol=1e-6)
    three = model([node("Mean", "a b b", "y")], infos, [("y", FLOAT, [2, 3])])
    with pytest.raises(dml.UnsupportedError, match="more or fewer than two"):
        backend.prepare(three)
