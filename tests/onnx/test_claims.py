"""What ``claim=auto`` takes: estimates of a region's time on the device and on the CPU."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import kompute_dml.onnxruntime as kompute
from kompute_dml.onnx import cost, mapping
from kompute_dml.onnx.graph import OnnxGraph, OnnxNode, OnnxValue
from kompute_dml.onnx.placement import place
from onnx_graphs import FLOAT, INT64, model, needs_provider, node

F32 = np.dtype("float32")


def _value(name: str, *sizes: int | None, constant: bool = False) -> OnnxValue:
    held = np.zeros([n or 1 for n in sizes], F32) if constant else None
    return OnnxValue(name, F32, sizes, held)


@pytest.mark.parametrize("op, inputs, result, count", [
    ("MatMul", [(5, 7), (7, 11)], (5, 11), 5 * 7 * 11),
    ("MatMul", [(3, 5, 7), (7, 11)], (3, 5, 11), 3 * 5 * 7 * 11),
    ("Gemm", [(7, 5), (11, 7), (11,)], (5, 11), 5 * 7 * 11),
    ("Conv", [(2, 6, 9, 9), (8, 6, 3, 3), (8,)], (2, 8, 7, 7), 2 * 8 * 7 * 7 * 6 * 9),
    ("Conv", [(2, 6, 9, 9), (6, 1, 3, 3)], (2, 6, 7, 7), 2 * 6 * 7 * 7 * 9),
    ("ConvTranspose", [(2, 6, 7, 7), (6, 8, 3, 3)], (2, 8, 9, 9), 2 * 6 * 7 * 7 * 8 * 9),
    ("LSTM", [(13, 2, 5), (1, 28, 5), (1, 28, 7)], (13, 1, 2, 7), 13 * 2 * 28 * (5 + 7)),
    ("MultiHeadAttention", [(2, 5, 8), (2, 5, 8), (2, 5, 8)], (2, 5, 8), 80 ** 1.5),
    ("MultiHeadAttention", [(2, 5, 2, 3, 4)], (2, 5, 8), 80 ** 1.5),
    ("MultiHeadAttention", [(2, 1, 8), (2, 9, 2, 2, 4)], (2, 1, 8), 144 * 4),
    ("MatMul", [(None, 7), (7, 11)], (None, 11), cost.UNKNOWN * 7 * 11),
])
def test_multiplications(
    op: str, inputs: list[Any], result: tuple[int, ...], count: int
) -> None:
    values = tuple(_value(f"x{i}", *sizes) for i, sizes in enumerate(inputs))
    made = OnnxNode(op, "", 1, values, (_value("y", *result),))
    assert cost.multiplications(made) == pytest.approx(count)


def test_multiplications_of_what_is_not_known() -> None:
    """No sizes at all, or no inputs: still a number."""
    unknown = OnnxValue("x")
    for op in ("MatMul", "Conv", "LSTM"):
        assert cost.multiplications(OnnxNode(op, "", 1, (unknown, unknown), (unknown,))) > 0


def _tried(monkeypatch: pytest.MonkeyPatch, device: Any, nodes: list[OnnxNode]) -> list[str]:
    """The names of the nodes that are compiled on trial to place all. Each has a place."""
    found = []

    def trial(row: Any, tried: OnnxNode, on: Any) -> str | None:
        found.append(tried.name)
        return None

    monkeypatch.setattr(mapping, "trial", trial)
    placed = place(nodes, device)
    assert all(made in placed for made in nodes)
    return found


def _convolution(name: str, channels: int, size: int, **attributes: Any) -> OnnxNode:
    w = _value("w", channels, 1, 3, 3, constant=True)
    w.constant += channels
    return OnnxNode("Conv", "", 11, (_value("x", 1, channels, size, size), w),
                    (_value("y", 1, channels, size - 2, size - 2),),
                    {"group": channels, "kernel_shape": [3, 3], **attributes}, name)


def test_nodes_are_tried_for_their_types_ranks_and_attributes(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def relu(name: str, dtype: Any, *sizes: int | None) -> OnnxNode:
        return OnnxNode("Relu", "", 14, (OnnxValue("x", np.dtype(dtype), sizes),),
                        (OnnxValue("y", np.dtype(dtype), sizes),), {}, name)

    nodes = [
        _convolution("first", 8, 9), _convolution("other sizes", 16, 30),
        _convolution("pads", 8, 9, pads=[1, 1, 1, 1]),
        relu("relu", F32, 1, 8, 7, 7), relu("smaller", F32, 1, 8, 3, 3), relu("rank", F32, 8, 9),
        relu("type", "float16", 1, 8, 7, 7), relu("unknown", F32, None, 8, 7, 7),
        relu("nothing", F32, 0, 8, 7, 7),
    ]
    assert _tried(monkeypatch, device, nodes) == [
        "first", "pads", "relu", "rank", "type", "unknown", "nothing"]


def test_nodes_whose_sizes_matter_are_tried_for_each(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [
        OnnxNode("GlobalAveragePool", "", 1, (_value("x", 1, 8, n, n),), (_value("y", 1, 8, 1, 1),),
                 {}, str(n)) for n in (7, 9, 7)]
    assert _tried(monkeypatch, device, nodes) == ["7", "9"]


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("op, types, axes, taken", [
    ("Conv", ("float32",), 3, True), ("Conv", ("float32",), 4, False),
    ("ConvInteger", ("uint8",), 2, True), ("ConvInteger", ("uint8",), 3, False),
    ("QLinearConv", ("uint8", "float32", "uint8"), 2, True),
    ("QLinearConv", ("uint8", "float32", "uint8"), 3, False),
])
def test_ranks_that_the_operator_lacks_are_refused_at_all_sizes(
    op: str, types: tuple[str, ...], axes: int, taken: bool, known: bool, device: Any
) -> None:
    kinds = [np.dtype(t) for t in types]
    batch, side = (2, 5) if known else (None, None)
    tensors = [(batch, 3, *[side] * axes), (4, 3, *[2] * axes)]
    inputs = [OnnxValue(f"{sizes}.{i}", kind, sizes if i == 0 else ())
              for sizes in tensors for i, kind in enumerate(kinds)]
    if op == "QLinearConv":
        inputs += [OnnxValue(f"y{i}", kind, ()) for i, kind in enumerate(kinds[1:])]
    kind = np.dtype("int32") if op == "ConvInteger" else kinds[0]
    made = OnnxNode(op, "", 11 if op == "Conv" else 10, tuple(inputs),
                    (OnnxValue("y", kind, (batch, 4, *[None] * axes)),))
    assert (made in place([made], device)) is taken


def _chain(device: Any, rows: int | None, k: int, elementwise: int = 0, parts: int = 1) -> Any:
    """Products with constants, each in a region of its own, and what follows each."""
    nodes, regions, inputs, outputs = [], [], [], []
    for part in range(parts):
        x = _value(f"x{part}", rows, k)
        inputs.append(x)
        inside = []
        if k:
            w, y = _value(f"w{part}", k, k, constant=True), _value(f"p{part}", rows, k)
            inside.append(OnnxNode("MatMul", "", 13, (x, w), (y,), name="product"))
            x = y
        for i in range(elementwise):
            y = _value(f"y{part}.{i}", rows, k)
            inside.append(OnnxNode("Neg", "", 13, (x,), (y,)))
            x = y
        outputs.append(x)
        regions.append(inside)
        nodes += inside
    graph = OnnxGraph(nodes, inputs, outputs)
    return regions, place(nodes, device), graph


def test_estimates_add_up(device: Any) -> None:
    (region,), placed, graph = _chain(device, 100, 64, elementwise=2)
    on_device, on_cpu = cost.estimates(region, placed, set(graph.outputs))
    border, inner = 100 * 64 * 4, 64 * 64 * 4
    moved = 6 * border + inner  # three nodes that read and write, and the weights
    assert on_device.fixed == cost.RUN and on_device.launches == 3 * cost.LAUNCH
    assert on_device.transfers == 2 * border / cost.TRANSFERRED  # no weights: they are there
    assert on_device.memory == moved / cost.DEVICE_BYTES
    assert on_cpu.memory == moved / cost.CPU_BYTES
    assert on_device.products == pytest.approx(100 * 64 * 64 / cost.DEVICE_PRODUCTS)
    assert on_cpu.total == pytest.approx(
        3 * cost.CALL + moved / cost.CPU_BYTES + 100 * 64 * 64 / cost.CPU_PRODUCTS)


@pytest.mark.parametrize("rows, k, parts, left", [
    (512, 512, 1, 0), (512, 512, 9, 0), (None, 2048, 9, 0),  # much work
    (2, 8, 1, 0), (2, 8, 2, 0),  # little of it, in doubt
    (2, 8, 40, 38), (None, 8, 40, 38),  # little, forty times
])
def test_products_that_are_taken(
    device: Any, rows: int | None, k: int, parts: int, left: int
) -> None:
    reasons = cost.refusals(*_chain(device, rows, k, parts=parts))
    assert sum(r is not None for r in reasons) == left
    for reason in reasons:
        assert reason is None or re.match(
            r"its region would take about \d+ us \(to begin 60.* on the CPU: claim=all", reason)
    assert cost.refusals(*_chain(device, rows, k, parts=parts), everything=True) == [None] * parts


@pytest.mark.parametrize("rows, nodes, taken", [
    (1 << 10, 3, False), (1 << 14, 3, False), (1 << 16, 3, False), (1 << 16, 30, True)])
def test_elementwise_work_is_taken_where_it_moves_more_than_it_transfers(
    device: Any, rows: int, nodes: int, taken: bool
) -> None:
    regions, placed, graph = _chain(device, rows, 16, elementwise=nodes)
    region = regions[0][1:]
    whole = OnnxGraph(region, [regions[0][0].outputs[0]], graph.outputs)
    (reason,) = cost.refusals([region], placed, whole)
    assert (reason is None) == taken


@needs_provider
@pytest.mark.parametrize("function, claimed", [("Mean", False), ("Max", True), ("L2", False)])
def test_a_reduction_takes_the_types_of_its_function(function: str, claimed: bool) -> None:
    built = model([node("Reduce" + function, "x", "y")], [("x", INT64, ["n", 2])],
                  [("y", INT64, [1, 1])])
    (decision,), _ = kompute.decided(built, claim="all")
    assert (decision.where != "CPU") is claimed, decision.why


@needs_provider
def test_explain_tells_the_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    built = model([node("Neg", "x", "y")], [("x", FLOAT, [4])], [("y", FLOAT, [4])])
    kompute.explain(built)
    assert "take about 63 us (to begin 60, nodes 3) on the device and 2 us" in (
        capsys.readouterr().out)
