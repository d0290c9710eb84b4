"""Tensors without elements: reductions of nothing, and detectors that find nothing, against ONNX
Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

from onnx import NodeProto, helper, numpy_helper

from onnx_graphs import cpu, needs_provider
from provider_tools import session

pytestmark = needs_provider

Arrays = Mapping[str, np.ndarray]
_N, _F32, _I64 = helper.make_node, np.float32, np.int64
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL1",
               "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")


def _model(
    nodes: Sequence[NodeProto], outputs: Sequence[str], given: Arrays, held: Arrays
) -> bytes:
    """Its sizes are known only when it runs."""
    infos = [helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(x.dtype), [f"{name}{d}" for d in range(x.ndim)])
        for name, x in given.items()]
    graph = helper.make_graph(
        nodes, "g", infos, [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(x, name) for name, x in held.items()])
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return bytes(built.SerializeToString())


def _alike(nodes: Sequence[NodeProto], outputs: Sequence[str], given: Arrays, held: Arrays) -> None:
    """The provider's results are the CPU's."""
    model = _model(nodes, outputs, given, held)
    wanted = cpu(model, False).run(None, dict(given))
    got = session(model, False, claim="all").run(None, dict(given))
    for name, x, y in zip(outputs, got, wanted, strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert (x.dtype, x.shape) == (y.dtype, y.shape), name
        np.testing.assert_array_equal(x, y, err_msg=name)


@pytest.mark.parametrize("dtype", [_F32, np.float16, np.int32, _I64])
def test_reductions_of_nothing(dtype: Any) -> None:
    nodes = [_N(op, ["x", "axis"], [op], keepdims=i % 2) for i, op in enumerate(_REDUCTIONS)]
    _alike(nodes, _REDUCTIONS, {"x": np.zeros((3, 0), dtype)}, {"axis": _I64([1])})
    _alike(nodes, _REDUCTIONS, {"x": np.zeros((0, 3), dtype)}, {"axis": _I64([1])})


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_positions_of_nothing(op: str) -> None:
    """Rows that are not there have no position. One without elements is refused, as by the CPU."""
    _alike([_N(op, ["x"], ["y"], axis=1)], ["y"], {"x": np.zeros((0, 5), _F32)}, {})
    none = {"x": np.zeros((0, 5), _F32)}
    ours = session(_model([_N(op, ["x"], ["y"], axis=0)], ["y"], none, {}), False, claim="all")
    with pytest.raises(Exception, match="no index"):
        ours.run(None, none)


def test_a_detector_that_finds_nothing() -> None:
    """No box is left; what is gathered, sorted, joined and reduced is empty."""
    nodes = [
        _N("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["chosen"]),
        _N("Gather", ["chosen", "two"], ["at"], axis=1),
        _N("Gather", ["x", "at"], ["found"]),
        _N("Mul", ["found", "found"], ["square"]),
        _N("ReduceMax", ["square", "one"], ["best"], keepdims=0),
        _N("ArgMax", ["square"], ["class"], axis=1, keepdims=0),
        _N("TopK", ["best", "zero"], ["values", "order"], axis=0),
        _N("Gather", ["square", "order"], ["sorted"]),
        _N("Concat", ["sorted", "square", "x"], ["joined"], axis=0),
        _N("Concat", ["sorted", "square"], ["both"], axis=0),
        _N("ReduceMean", ["both", "zero"], ["mean"]),
        _N("Gather", ["chosen", "pair"], ["chosen_pairs"], axis=1),
        _N("GatherND", ["x", "chosen_pairs"], ["pairs"]),
        _N("Unsqueeze", ["at", "one"], ["at_column"]),
        _N("ScatterND", ["x", "at_column", "square"], ["written"]),
        _N("Softmax", ["both"], ["shares"]),
    ]
    outputs = ["found", "best", "class", "values", "order", "joined", "mean", "pairs", "written",
               "shares"]
    x = np.arange(24, dtype=_F32).reshape(6, 4)
    _alike(nodes, outputs,
           {"boxes": np.ones((1, 6, 4), _F32), "scores": np.zeros((1, 1, 6), _F32), "x": x},
           {"most": _I64([10]), "overlap": _F32([0.5]), "least": _F32([0.9]),
            "two": np.array(2), "one": _I64([1]), "zero": _I64([0]), "pair": _I64([0, 1])})
