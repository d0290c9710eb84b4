"""Plans for GPUs of what networks are made of: FLOAT16 takes no more dispatches than FLOAT32.

They are planned on any device, and not run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.onnx.backend import PreparedModel
from kompute_dml.onnx.model import load, read
from made_models import node
from onnx_graphs import model
from plans import checked, without_pipelines
from record_plans import targets

_CODES = {np.float32: onnx.TensorProto.FLOAT, np.float16: onnx.TensorProto.FLOAT16}


class _Network:
    """A network under construction. Its results are named."""

    def __init__(self, dtype: Any, *sizes: int) -> None:
        self.dtype, self.sizes = dtype, sizes
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def then(self, op: str, *inputs: str, **attributes: Any) -> str:
        y = f"{op}_{len(self.nodes)}"
        self.nodes.append(node(op, " ".join(inputs), y, **attributes))
        return y

    def constant(self, values: Any, dtype: Any = None) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(values, dtype or self.dtype)
        return name

    def weights(self, *sizes: int) -> str:
        return self.constant(np.ones(sizes))

    def convolution(self, x: str, channels: int, outputs: int, side: int, stride: int = 1,
                    groups: int = 1) -> str:
        return self.then("Conv", x, self.weights(outputs, channels // groups, side, side),
                         self.weights(outputs), group=groups, strides=[stride] * 2,
                         pads=[side // 2] * 4)

    def activated(self, x: str, op: str = "Relu") -> str:
        return self.then("Mul", x, self.then("Sigmoid", x)) if op == "Swish" else self.then(op, x)

    def dense(self, x: str, width: int, outputs: int) -> str:
        return self.then("Add", self.then("MatMul", x, self.weights(width, outputs)),
                         self.weights(outputs))

    def normalized(self, x: str, width: int) -> str:
        return self.then("LayerNormalization", x, self.weights(width), self.weights(width), axis=-1)

    def shaped(self, x: str, *sizes: int) -> str:
        return self.then("Reshape", x, self.constant(sizes, np.int64))

    def attention(self, x: str, of: str, width: int, heads: int, queries: int, keys: int,
                  single: str) -> str:
        """As PyTorch writes it. ``single``: where the softmax of FLOAT16 is cast to FLOAT32,
        ``behind`` it or ``around`` it."""
        size = width // heads
        q, k, v = (self.dense(s, width, width) for s in (x, of, of))
        q = self.then("Transpose", self.shaped(q, 1, queries, heads, size), perm=[0, 2, 1, 3])
        k = self.then("Transpose", self.shaped(k, 1, keys, heads, size), perm=[0, 2, 3, 1])
        v = self.then("Transpose", self.shaped(v, 1, keys, heads, size), perm=[0, 2, 1, 3])
        scores = self.then("Mul", self.then("MatMul", q, k), self.constant(size**-0.5))
        if single == "around":
            scores = self.then("Cast", scores, to=onnx.TensorProto.FLOAT)
        shares = self.then("Softmax", scores, axis=-1)
        if single == "behind":
            shares = self.then("Cast", shares, to=onnx.TensorProto.FLOAT)
        if single:
            shares = self.then("Cast", shares, to=_CODES[self.dtype])
        y = self.then("Transpose", self.then("MatMul", shares, v), perm=[0, 2, 1, 3])
        return self.dense(self.shaped(y, 1, queries, width), width, width)

    def built(self, y: str) -> bytes:
        return model([*self.nodes, node("Identity", y, "y")],
                     [("x", _CODES[self.dtype], self.sizes)],
                     [("y", _CODES[self.dtype], [None] * len(self.sizes))], self.constants)


def _first_layer(dtype: Any, side: int, outputs: int, filter_side: int, stride: int) -> bytes:
    g = _Network(dtype, 1, 3, side, side)
    y = g.convolution("x", 3, outputs, filter_side, stride)
    return g.built(g.activated(g.convolution(g.activated(y), outputs, outputs, 1)))


def _dense_block(dtype: Any) -> bytes:
    """Of densenet121."""
    g = _Network(dtype, 1, 256, 14, 14)
    x, channels = "x", 256
    for _ in range(3):
        y = g.activated(g.convolution(g.activated(x), channels, 128, 1))
        x = g.then("Concat", x, g.convolution(y, 128, 32, 3), axis=1)
        channels += 32
    return g.built(g.convolution(x, channels, channels // 2, 1))


def _inverted_bottleneck(dtype: Any) -> bytes:
    """Of efficientnet_b0, with its squeeze and excitation."""
    g = _Network(dtype, 1, 80, 14, 14)
    x = g.convolution("x", 80, 80, 3)
    y = g.activated(g.convolution(x, 80, 480, 1), "Swish")
    y = g.activated(g.convolution(y, 480, 480, 5, groups=480), "Swish")
    means = g.then("GlobalAveragePool", y)
    gates = g.convolution(g.activated(g.convolution(means, 480, 20, 1), "Swish"), 20, 480, 1)
    y = g.then("Mul", y, g.then("Sigmoid", gates))
    return g.built(g.then("Add", x, g.convolution(y, 480, 80, 1)))


def _transformer_layer(dtype: Any, width: int, heads: int, queries: int, keys: int,
                       single: str = "") -> bytes:
    """Its keys are the rows of the input, or fewer, of strided convolutions, as segformer's."""
    g = _Network(dtype, 1, queries, width)
    x = g.normalized("x", width)
    of = x if keys == queries else g.then(
        "Slice", x, g.constant([0], np.int64), g.constant([keys], np.int64),
        g.constant([1], np.int64))
    x = g.then("Add", "x", g.attention(x, of, width, heads, queries, keys,
                                       single if dtype == np.float16 else ""))
    y = g.dense(g.normalized(x, width), width, 4 * width)
    return g.built(g.then("Add", x, g.dense(g.activated(y, "Swish"), 4 * width, width)))


def _residual_dense_block(dtype: Any) -> bytes:
    """Of ESRGAN."""
    g = _Network(dtype, 1, 64, 128, 128)
    parts = ["x"]
    for i in range(4):
        x = parts[0] if i == 0 else g.then("Concat", *parts, axis=1)
        parts.append(g.activated(g.convolution(x, 64 + 32 * i, 32, 3)))
    last = g.convolution(g.then("Concat", *parts, axis=1), 192, 64, 3)
    return g.built(g.then("Add", g.then("Mul", last, g.constant(0.2)), "x"))


def _convolutions(dtype: Any) -> bytes:
    """Of convnext_tiny: a depthwise convolution, a normalization and two products."""
    g = _Network(dtype, 1, 96, 56, 56)
    y = g.then("Transpose", g.convolution("x", 96, 96, 7, groups=96), perm=[0, 2, 3, 1])
    y = g.activated(g.dense(g.normalized(y, 96), 96, 384), "Swish")
    y = g.then("Mul", g.dense(y, 384, 96), g.weights(96))
    return g.built(g.then("Add", "x", g.then("Transpose", y, perm=[0, 3, 1, 2])))


NETWORKS: dict[str, Callable[[Any], bytes]] = {
    "first layer, 3 x 3 / 2": lambda t: _first_layer(t, 224, 32, 3, 2),
    "first layer, 7 x 7 / 2": lambda t: _first_layer(t, 224, 64, 7, 2),
    "first layer, 7 x 7 / 4 of 512": lambda t: _first_layer(t, 512, 32, 7, 4),
    "dense block": _dense_block,
    "inverted bottleneck": _inverted_bottleneck,
    "residual dense block": _residual_dense_block,
    "convolutions of a ConvNeXt": _convolutions,
    "layer of a vision transformer": lambda t: _transformer_layer(t, 768, 12, 50, 50, "behind"),
    "layer whose softmax is cast": lambda t: _transformer_layer(t, 384, 6, 1370, 1370, "around"),
    "one head, few keys": lambda t: _transformer_layer(t, 32, 1, 16384, 256, "behind"),
    "two heads, few keys": lambda t: _transformer_layer(t, 64, 2, 4096, 256, "behind"),
    "attention of a text": lambda t: _transformer_layer(t, 320, 8, 4096, 77),
}


def _variants(built: bytes, device: dml.Device) -> tuple[str, ...]:
    prepared = PreparedModel(read(load(built)), device)
    (plan,) = prepared._region._plans.values()  # of the sizes that the model has
    for compiled, _ in plan._steps:
        checked(compiled.operator.desc, compiled.plan)
    return plan.variants


_DIVIDED = "first layer, 7 x 7 / 4 of 512", "no_matrix_units"
"""Its three channels fill vectors of eight in FLOAT16, of four in FLOAT32: K is longer, so that
workgroups share it."""


@pytest.mark.parametrize(("name", "gpu"), [
    (name, gpu) for gpu in ("h200", "no_matrix_units") for name in NETWORKS
    if (name, gpu) != _DIVIDED])
def test_no_more_dispatches_than_in_float32(
    name: str, gpu: str, own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pipelines(monkeypatch)
    monkeypatch.setattr(own, "target", targets()[gpu])
    with tuning.trial({}):
        single, half = (_variants(NETWORKS[name](t), own) for t in (np.float32, np.float16))
    assert len(half) <= len(single), f"{half}\n{single}"


def test_a_small_filter_is_packed_once(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the plan is built. The image is packed at each run."""
    without_pipelines(monkeypatch)
    monkeypatch.setattr(own, "target", targets()["h200"])
    g = _Network(np.float16, 1, 3, 32, 32)
    with tuning.trial({}):
        variants = _variants(g.built(g.convolution("x", 3, 24, 3)), own)
    assert variants == ("convolution_pack.b16", "convolution_coopmat.f16.t64",
                        "elementwise_integer.identity")
