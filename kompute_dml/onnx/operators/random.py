"""Lowerings of random numbers: words of RANDOM_GENERATOR, converted to a distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...attributes import ScaleBias
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import packed_strides, product
from ...lowering.elementwise import float_bits
from ..graph import DTYPES, OnnxNode
from ..lowerings import Build, Inputs, converted, emit_elementwise, given
from ..row import Mapping
from .elementwise import apply

_SHARE = 2.0**-24
"""float32 holds 24 bits of a word exactly, so numbers are multiples of it."""


def _uniform(builder: Builder, node: OnnxNode, shape: Sequence[int], stream: int) -> Array:
    """Multiples of 2^-24 in [0, 1). The key is the seed's bits, the counter begins with
    ``stream``."""
    seed = float_bits(node.attributes["seed"])
    state = builder.constant(np.array([0, 0, 0, stream, seed, 0], np.uint32))
    words = builder.new(shape, "uint32")
    if words.storage is None:
        return builder.new(shape, "float32")
    flat = (product(shape),)
    builder.emit("RANDOM_GENERATOR", {
        "input_state_tensor": (state, (1, 1, 1, 6), (6, 6, 6, 1)),
        "output_tensor": (words, flat, packed_strides(flat))}, type=0)
    shift = builder.constant(np.full((), 8, np.uint32))
    upper = emit_elementwise(
        builder, "ELEMENT_WISE_BIT_SHIFT_RIGHT", [words, shift], words.dtype, {})
    return emit_elementwise(builder, "CAST", [upper], np.dtype("float32"), {})


def _scaled(scale: float, bias: float) -> dict[str, Any]:
    return {"scale_bias": ScaleBias(scale, bias)}


def _made(builder: Builder, node: OnnxNode, shape: Sequence[int]) -> Array:
    read, whole = node.attributes, _uniform(builder, node, shape, 0)
    if "Uniform" in node.op:
        low, high = read.get("low", 0.0), read.get("high", 1.0)
        return apply(builder, "ELEMENT_WISE_IDENTITY", whole,
                     **_scaled(_SHARE * (high - low), low))
    # The Box-Muller transform. The logarithm's argument is in (0, 1].
    logarithm = apply(builder, "ELEMENT_WISE_LOG", whole, **_scaled(_SHARE, _SHARE))
    radius = apply(builder, "ELEMENT_WISE_SQRT", logarithm, **_scaled(-2.0, 0.0))
    turn = apply(builder, "ELEMENT_WISE_COS", _uniform(builder, node, shape, 1),
                 **_scaled(2 * math.pi * _SHARE, 0.0))
    product_ = apply(builder, "ELEMENT_WISE_MULTIPLY", radius, turn)
    return apply(builder, "ELEMENT_WISE_IDENTITY", product_,
                 **_scaled(read.get("scale", 1.0), read.get("mean", 0.0)))


def random(like: bool) -> Build:
    """RandomUniform and RandomNormal. ``like``: with the input's shape and type."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        shape = given(inputs, 0).shape if like else tuple(node.attributes["shape"])
        default = given(inputs, 0).dtype if like else np.dtype("float32")
        number = node.attributes.get("dtype", 0)
        y = _made(builder, node, shape)
        dtype = DTYPES[number] if number else default
        return [converted(builder, y, dtype)]

    return build


def refusal(node: OnnxNode) -> str | None:
    """Why random numbers are not supported, or None."""
    if "seed" not in node.attributes:
        return "no seed"
    out = node.outputs[0]
    if out is None or out.dtype is None or out.dtype.name not in ("float32", "float16"):
        return "numbers that are not float32 or float16"
    return None


ROWS: tuple[Mapping, ...] = (
    *[Mapping(f"Random{kind}{'Like' * like}", (1, 22), "RANDOM_GENERATOR", random(like),
          fields=(None,), results=(None,), refuses=refusal,
          attributes=("dtype", "seed", "shape", *parameters))
      for kind, parameters in (("Uniform", ("high", "low")), ("Normal", ("mean", "scale")))
      for like in (False, True)],
)
