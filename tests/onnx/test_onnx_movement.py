"""Slices and splits in ONNX graphs are views; joins and padding of views."""

from __future__ import annotations

import numpy as np
import pytest

import kompute_dml as dml

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", reason="the models are compared with ONNX Runtime's")

import kompute_dml.onnx_backend as backend
from kompute_dml.graph.array import Array
from kompute_dml.graph.builder import Builder
from onnx_graphs import FLOAT, cpu, model, node


def _check(nodes: list, outputs: str, constants: dict, x: np.ndarray) -> None:
    """Compare with ONNX Runtime."""
    made = [(y, FLOAT, [None] * x.ndim) for y in outputs.split()]
    built = model(nodes, [("x", FLOAT, x.shape)], made,
                  {k: np.int64(v) for k, v in constants.items()})
    expected = cpu(built).run(None, {"x": x})
    for got, wanted in zip(backend.prepare(built).run([x]), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("start, end, step", [
    (1, 4, 1), (0, 9, 2), (-1, -9, -1), (5, 0, -2),
    (4, 2**31 - 1, -2),  # "to the end" in either direction
    (-9, -9, -1),  # begins before the first element
])
def test_slices(start: int, end: int, step: int, rng: np.random.Generator) -> None:
    x = rng.normal(size=(6, 7)).astype(np.float32)
    _check([node("Slice", "x b e a s", "y"), node("Relu", "y", "z")], "z y",
           dict(b=[start, 1], e=[end, 6], a=[0, 1], s=[step, 2]), x)


def test_pixels_of_transposed_channels_roll_along_both_axes(rng: np.random.Generator) -> None:
    """Windows of Swin that move, over what a convolution wrote channel by channel: rows of pixels
    are read, and rows of channels are written."""
    x = rng.normal(size=(1, 16, 8, 8)).astype(np.float32)
    nodes = [node("Transpose", "x", "r0", perm=[0, 2, 3, 1])]
    for axis in (1, 2):
        before, after = f"r{axis - 1}", f"r{axis}"
        nodes += [node("Slice", f"{before} zero two a{axis}", f"{after}.end"),
                  node("Slice", f"{before} two eight a{axis}", f"{after}.begin"),
                  node("Concat", f"{after}.begin {after}.end", after, axis=axis)]
    _check([*nodes, node("Neg", "r2", "y")], "y",
           dict(zero=[0], two=[2], eight=[8], a1=[1], a2=[2]), x)


@pytest.mark.parametrize("unfused", ["", "elementwise_fusion,epilogue"])
def test_what_overlaps_is_not_overwritten(
    unfused: str, device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum, or a chain that begins with one, may overwrite an input, but not if that overlaps the
    other input."""
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", unfused)
    for begin in (0, 1):
        builder = Builder(device)
        x, a, s, n, y = (builder.new([i], "float32") for i in (9, 9, 8, 8, 8))

        def emit(name: str, builder: Builder = builder, **tensors: Array) -> None:
            builder.emit(name, {k: (t, t.shape, t.strides) for k, t in tensors.items()})

        emit("ELEMENT_WISE_ABS", input_tensor=x, output_tensor=a)
        first, second = a.view([8], [1]), a.view([8], [1], begin)
        emit("ELEMENT_WISE_ADD", a_tensor=first, b_tensor=second, output_tensor=s)
        emit("ELEMENT_WISE_NEGATE", input_tensor=s, output_tensor=n)
        emit("ACTIVATION_SOFTMAX", input_tensor=n, output_tensor=y)
        builder.finish([x], [y])
        assert s.storage is not None and a.storage is not None and n.storage is not None
        assert (s.storage.first < 0) == (not unfused), "the sum is a step of a chain"
        assert n.storage.first >= 0
        assert (n.storage.root is a.storage.root) == (begin == 0)


def test_pieces_of_an_odd_offset_are_joined_again(rng: np.random.Generator) -> None:
    x = rng.normal(size=(5, 7)).astype(np.float32)
    _check([node("Abs", "x", "a"), node("Split", "a sizes", "p q r", axis=1),
            node("Concat", "r p q", "y", axis=1), node("Pad", "q pads", "z", mode="reflect")],
           "y z p", dict(sizes=[1, 4, 2], pads=[2, -1, 0, 1]), x)


def test_views_that_begin_inside_a_vector(rng: np.random.Generator) -> None:
    x = rng.normal(size=(65,)).astype(np.float32)
    _check([node("Abs", "x", "a"), node("Slice", "a b e", "p"), node("Neg", "p", "y")], "y",
           dict(b=[1], e=[65]), x)
