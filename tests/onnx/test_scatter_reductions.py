"""ScatterElements and ScatterND that reduce the updates of a place, against ONNX Runtime's CPU
provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

from onnx import NodeProto, helper

from onnx_graphs import cpu, needs_provider, placement
from provider_tools import NAME, session

pytestmark = needs_provider

Arrays = Mapping[str, np.ndarray]
_REDUCTIONS = ("add", "mul", "min", "max")


def _model(nodes: Sequence[NodeProto], outputs: Sequence[str], given: Arrays) -> bytes:
    infos = [helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(x.dtype), [f"{name}{d}" for d in range(x.ndim)])
        for name, x in given.items()]
    graph = helper.make_graph(
        nodes, "g", infos, [helper.make_empty_tensor_value_info(name) for name in outputs])
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return bytes(built.SerializeToString())


def _compared(nodes: Sequence[NodeProto], outputs: Sequence[str], given: dict[str, Any],
              room: float = 0.0) -> Any:
    """The session, whose results are the CPU's."""
    model = _model(nodes, outputs, given)
    ours = session(model, False, claim="all")
    for name, got, want in zip(outputs, ours.run(None, given), cpu(model, False).run(None, given)):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=room, atol=room, err_msg=name)
    return ours


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "uint8", "int8", "bool"])
def test_each_reduction(dtype: str, rng: np.random.Generator) -> None:
    """Places come several times, counted from the end, too; numbers are small and whole."""
    reductions = _REDUCTIONS[:2] if dtype == "bool" else _REDUCTIONS  # the CPU has no others
    nodes = [helper.make_node(op, ["x", index, updates], [f"{op}_{how}"], reduction=how, **more)
             for how in reductions for op, index, updates, more in (
                 ("ScatterElements", "along", "each", {"axis": 1}),
                 ("ScatterND", "rows", "slices", {}))]
    x, each, slices = (rng.integers(-1 if dtype[0] in "fi" else 0, 2, sizes).astype(dtype)
                       for sizes in ((6, 5), (4, 30), (40, 5)))
    given = {"x": x, "along": rng.integers(-5, 5, (4, 30)), "each": each,
             "rows": rng.integers(-6, 6, (40, 1)), "slices": slices}
    ours = _compared(nodes, [n.output[0] for n in nodes], given)
    assert placement(ours, NAME) == [
        op for op in ("ScatterElements", "ScatterND") for _ in reductions]


def test_a_graph_network_is_one_region(rng: np.random.Generator) -> None:
    """Messages along edges are added at their ends, whose numbers are expanded to all features, and
    divided by their number."""
    made = helper.make_node
    nodes = [
        made("Gather", ["x", "from"], ["message"]),
        made("Shape", ["message"], ["sizes"]),
        made("Unsqueeze", ["to", "one"], ["column"]),
        made("Expand", ["column", "sizes"], ["ends"]),
        made("Mul", ["x", "zero"], ["nothing"]),
        made("ScatterElements", ["nothing", "ends", "message"], ["sum"], axis=0, reduction="add"),
        made("ScatterElements", ["x", "ends", "message"], ["largest"], axis=0, reduction="max"),
        made("Add", ["sum", "largest"], ["y"]),
        made("Relu", ["y"], ["z"]),
    ]
    constants = [
        made("Constant", [], ["one"], value_ints=[1]),
        made("Constant", [], ["zero"], value_float=0.0),
    ]
    given = {"x": rng.normal(size=(50, 16)).astype(np.float32),
             "from": rng.integers(0, 50, 3000), "to": rng.integers(0, 50, 3000)}
    ours = _compared([*constants, *nodes], ["z"], given, 2e-5)
    assert placement(ours, NAME).count("ScatterElements") == 2
    assert len([p for p in ours.get_provider_graph_assignment_info() if p.ep_name == NAME]) == 1


@pytest.mark.parametrize("place", [6, -7])
def test_an_index_outside_is_refused(place: int) -> None:
    given: dict[str, Any] = {"x": np.zeros(6, np.float32), "at": np.array([1, place]),
                             "new": np.ones(2, np.float32)}
    model = _model([helper.make_node("ScatterElements", ["x", "at", "new"], ["y"],
                                     reduction="add")], ["y"], given)
    for each in (session(model, False, claim="all"), cpu(model, False)):
        with pytest.raises(Exception, match="indices"):
            each.run(None, given)
