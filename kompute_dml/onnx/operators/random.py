"""Lowerings of random numbers: words of RANDOM_GENERATOR, converted to a distribution. Its state
goes on from run to run, as that of ONNX Runtime's CPU provider does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...attributes import AxisDirection, ReduceFunction, ScaleBias
from ...errors import ValidationError
from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ...layout import packed_strides, product
from ...lowering.elementwise import float_bits
from ...operators.random import DrawDesc
from ..graph import DTYPES, OnnxNode
from ..lowerings import Build, Inputs, converted, emit_elementwise, given
from ..row import Mapping
from .elementwise import apply
from .reduction import reduced

_FLOAT = np.dtype("float32")

_BITS = 24
"""float32 holds so many bits of a word exactly, so numbers are multiples of 2**-24."""
_SHARE = 2.0**-_BITS
_INDEX = np.dtype("int32")


def _words(builder: Builder, node: OnnxNode, shape: Sequence[int]) -> Array:
    """Random words, other ones in each run. The seed's bits are the key of the first ones; without
    a seed it is drawn."""

    def begin() -> np.ndarray:
        seed = node.attributes.get("seed")
        key = (np.random.SeedSequence().generate_state(2) if seed is None
               else np.array([float_bits(seed), 0], np.uint32))
        return np.concatenate([np.zeros(4, np.uint32), key])

    words = builder.new(shape, "uint32")
    if words.storage is not None:
        state, flat = builder.state(node, (6,), begin), (product(shape),)
        four = state, (1, 1, 1, 6), (6, 6, 6, 1)
        builder.emit_own(DrawDesc, {
            "input_state_tensor": four, "output_tensor": (words, flat, packed_strides(flat)),
            "output_state_tensor": four}, type=0)
    return words


def _whole(builder: Builder, words: Array, bits: int) -> Array:
    """The upper bits of words, as numbers."""
    shift = builder.constant(np.full((), 32 - bits, np.uint32))
    upper = emit_elementwise(
        builder, "ELEMENT_WISE_BIT_SHIFT_RIGHT", [words, shift], words.dtype, {})
    return emit_elementwise(builder, "CAST", [upper], np.dtype("float32"), {})


def _scaled(scale: float, bias: float) -> dict[str, Any]:
    return {"scale_bias": ScaleBias(scale, bias)}


def _distributed(builder: Builder, node: OnnxNode, shape: Sequence[int]) -> Array:
    read = node.attributes
    if "Uniform" in node.op:
        low, high = read.get("low", 0.0), read.get("high", 1.0)
        return apply(builder, "ELEMENT_WISE_IDENTITY", _whole(
            builder, _words(builder, node, shape), _BITS), **_scaled(_SHARE * (high - low), low))
    # The Box-Muller transform. The logarithm's argument is in (0, 1].
    words = _words(builder, node, (2, *shape))
    first, second = (_whole(builder, words.view(shape, packed_strides(shape), i * product(shape)),
                            _BITS) for i in range(2))
    logarithm = apply(builder, "ELEMENT_WISE_LOG", first, **_scaled(_SHARE, _SHARE))
    radius = apply(builder, "ELEMENT_WISE_SQRT", logarithm, **_scaled(-2.0, 0.0))
    turn = apply(builder, "ELEMENT_WISE_COS", second, **_scaled(2 * math.pi * _SHARE, 0.0))
    product_ = apply(builder, "ELEMENT_WISE_MULTIPLY", radius, turn)
    return apply(builder, "ELEMENT_WISE_IDENTITY", product_,
                 **_scaled(read.get("scale", 1.0), read.get("mean", 0.0)))


def random(like: bool) -> Build:
    """RandomUniform and RandomNormal. ``like``: with the input's shape and type."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        shape = given(inputs, 0).shape if like else tuple(node.attributes["shape"])
        default = given(inputs, 0).dtype if like else np.dtype("float32")
        number = node.attributes.get("dtype", 0)
        y = _distributed(builder, node, shape)
        dtype = DTYPES[number] if number else default
        return [converted(builder, y, dtype)]

    return build


def multinomial(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Numbers of classes. A random part of the sum of all probabilities is reached in the class
    that is drawn: the first one of those up to which the sum is larger. Its own probability is not
    0, whatever sums are rounded to."""
    x, count = given(inputs, 0), node.attributes.get("sample_size", 1)
    if len(x.shape) != 2 or count < 1 or not x.shape[1]:
        raise ValidationError(f"expected logarithms of probabilities, [batch, class], and at least "
                              f"one sample of each, but got {list(x.shape)} and {count}")
    dtype = DTYPES[node.attributes.get("dtype", 6)]
    (batches, classes), shape = x.shape, (x.shape[0], count)
    if not batches:
        return [builder.new(shape, dtype)]
    x = converted(builder, x, _FLOAT)
    (most,) = reduced(builder, "REDUCE", x, [1], True, _FLOAT, function=ReduceFunction.MAX)
    shares = apply(builder, "ELEMENT_WISE_EXP", apply(
        builder, "ELEMENT_WISE_SUBTRACT", x, most))
    sums = builder.new(x.shape, _FLOAT)
    builder.emit("CUMULATIVE_SUMMATION", {
        "input_tensor": (shares, x.shape, shares.strides), "output_tensor": (
            sums, x.shape, sums.strides)}, axis=1, axis_direction=AxisDirection.INCREASING,
        has_exclusive_sum=0)
    total = sums.view((batches, 1), (classes, 0), classes - 1)
    # One bit less: a part of a sum is less than the sum, however it is rounded.
    part = apply(builder, "ELEMENT_WISE_IDENTITY", _whole(
        builder, _words(builder, node, shape), _BITS - 1), **_scaled(2 * _SHARE, 0.0))
    part = apply(builder, "ELEMENT_WISE_MULTIPLY", part, total)
    reached = emit_elementwise(builder, "ELEMENT_WISE_LOGICAL_GREATER_THAN", [
        builder.reshape(sums, (batches, 1, classes)), builder.reshape(part, (*shape, 1))], BOOL, {})
    possible = emit_elementwise(builder, "ELEMENT_WISE_LOGICAL_GREATER_THAN", [
        builder.reshape(shares, (batches, 1, classes)),
        builder.constant(np.zeros((), _FLOAT))], BOOL, {})
    both = emit_elementwise(
        builder, "ELEMENT_WISE_LOGICAL_AND", [reached, possible], BOOL, {})
    (y,) = reduced(builder, "ARGMAX", emit_elementwise(
        builder, "CAST", [both], _FLOAT, {}), [2], False, _INDEX,
        axis_direction=AxisDirection.INCREASING)
    return [converted(builder, y, dtype)]


def refusal(node: OnnxNode) -> str | None:
    """Why random numbers are not supported, or None."""
    out = node.outputs[0]
    if out is None or out.dtype is None or out.dtype.name not in ("float32", "float16"):
        return "numbers that are not float32 or float16"
    return None


def multinomial_refusal(node: OnnxNode) -> str | None:
    """Why Multinomial is not supported, or None."""
    x = node.input(0)
    if x is None or x.dtype is None or x.dtype.name not in ("float32", "float16"):
        return "logarithms that are not float32 or float16"
    return None


ROWS: tuple[Mapping, ...] = (
    *[Mapping(f"Random{kind}{'Like' * like}", (1, 22), "RANDOM_GENERATOR", random(like),
          fields=(None,), results=(None,), refuses=refusal,
          attributes=("dtype", "seed", "shape", *parameters))
      for kind, parameters in (("Uniform", ("high", "low")), ("Normal", ("mean", "scale")))
      for like in (False, True)],
    Mapping("Multinomial", (7, 22), "RANDOM_GENERATOR", multinomial, fields=(None,),
        results=(None,), refuses=multinomial_refusal,
        attributes=("dtype", "sample_size", "seed")),
)
