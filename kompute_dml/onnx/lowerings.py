"""Lowerings of nodes: from ONNX's shape rules and argument order to DirectML's fields.

Each function takes the builder, the node, and an array per input (None for an absent one), and
returns an array per output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import spec
from ..desc import MAX_DIMENSIONS
from ..errors import UnsupportedError, ValidationError
from ..graph.array import Array, device_type
from ..graph.builder import Builder, scalar, supported
from ..graph.recorded import Allowed
from ..layout import coalesce, packed_strides, pad_left, product
from ..operators import base
from .graph import DTYPES, OnnxNode

Inputs = Sequence[Array | None]
Build = Callable[[Builder, OnnxNode, Inputs], Sequence[Array]]
Attributes = Callable[[OnnxNode, Inputs], Mapping[str, Any]]

Seen = tuple[Array, Sequence[int], Sequence[int]]
"""An array with the sizes and strides for an operator."""
_MAX_RANK = 4
"""Dimensions that DirectML's products and diagonals take."""
_INT32 = (-(2**31), 2**31 - 1)
_QUANTIZED_SUM = "DML_OPERATOR_ELEMENT_WISE_QUANTIZED_LINEAR_ADD"


def seen(x: Array) -> Seen:
    return x, x.shape, x.strides


def given(inputs: Inputs, index: int) -> Array:
    x = inputs[index]
    if x is None:
        raise ValidationError(f"expected input {index} to be given")
    return x


def optional(inputs: Inputs, index: int) -> Array | None:
    return inputs[index] if index < len(inputs) else None


def host(inputs: Inputs, index: int) -> np.ndarray | None:
    """The values of an input that the row needs on the host; None if it is absent."""
    x = inputs[index] if index < len(inputs) else None
    if x is not None and x.host is None:
        raise UnsupportedError(f"only the device knows the values of input {index}")
    return None if x is None else x.host


def dimension(axis: int, rank: int) -> int:
    """``axis`` counted from the first of ``rank`` dimensions. A negative one counts from the
    last."""
    if not -rank <= axis < rank:
        raise ValidationError(f"expected an axis of {rank} dimensions, but got {axis}")
    return axis % rank


def _broadcast(arrays: Sequence[Array]) -> tuple[int, ...]:
    return np.broadcast_shapes(*[a.shape for a in arrays])


# Elementwise


def emit_elementwise(
    builder: Builder, operator: str, arrays: Sequence[Array], dtype: np.dtype[Any],
    attributes: Mapping[str, Any],
) -> Array:
    """Add an elementwise operator over broadcast inputs, in the order of its input fields."""
    shape = _broadcast(arrays)
    y = builder.like(arrays, shape, dtype)
    if y.storage is None:
        return y
    definition = base.definitions()["DML_OPERATOR_" + operator]
    seen = [a.broadcast_to(shape) for a in arrays]
    sizes, strides = shape, [a.strides for a in (*seen, y)]
    support = supported(builder.device, definition.name, definition.spec.tensors[0].name)
    least, most = support.dimension_counts if support else (1, MAX_DIMENSIONS)
    if len(sizes) > most:  # unmerged dimensions allow fusion with neighbours
        sizes, strides = coalesce(shape, *strides)
    rank = max(len(sizes), least)
    sizes = pad_left(sizes, rank, 1)
    places: list[Seen] = [(a, sizes, pad_left(s, rank, 0)) for a, s in zip([*seen, y], strides)]
    names = [f.snake for f in definition.spec.inputs]
    tensors: dict[str, Seen | None] = {**dict.fromkeys(names), **dict(zip(names, places[:-1]))}
    tensors["output_tensor"] = places[-1]
    builder.emit(operator, tensors, **attributes)
    return y


def converted(builder: Builder, x: Array, dtype: np.dtype[Any]) -> Array:
    return x if x.dtype == dtype else emit_elementwise(builder, "CAST", [x], dtype, {})


def elementwise(
    operator: str, attributes: Attributes = lambda node, inputs: {}, *, tensors: int | None = None,
) -> Build:
    """Inputs broadcast against each other; the first ``tensors`` of them are tensors."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        arrays = [x for x in inputs[:tensors] if x is not None]
        out = node.outputs[0]
        dtype = arrays[0].dtype if out is None or out.dtype is None else out.dtype
        return [emit_elementwise(builder, operator, arrays, dtype, attributes(node, inputs))]

    return build


def folded(operator: str) -> Build:
    """Any number of inputs, two at a time."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        result = given(inputs, 0)
        for i in range(1, len(inputs)):
            pair = [result, given(inputs, i)]
            result = emit_elementwise(builder, operator, pair, result.dtype, {})
        return [result]

    return build


def floats(**defaults: float) -> Attributes:
    """FLOAT fields from attributes: ``field=default``, or ``field__attribute=default``."""

    def read(node: OnnxNode, inputs: Inputs) -> dict[str, Any]:
        result = {}
        for key, default in defaults.items():
            name, _, attribute = key.partition("__")
            result[name] = float(node.attributes.get(attribute or name, default))
        return result

    return read


def constants(**values: Any) -> Attributes:
    return lambda node, inputs: values


def clip_bounds(node: OnnxNode, inputs: Inputs) -> dict[str, Any]:
    dtype = given(inputs, 0).dtype
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    bounds: dict[str, Any] = {"min_max_data_type": device_type(dtype)}
    for i, (name, default) in enumerate((("min", limits.min), ("max", limits.max)), 1):
        bound = host(inputs, i)
        value = node.attributes.get(name, default) if bound is None else bound.reshape(())[()]
        bounds[name] = np.asarray(value).astype(dtype)[()]
    # If they cross, ONNX's result is the upper bound everywhere.
    bounds["min"] = min(bounds["min"], bounds["max"])
    return {**bounds, **{name: scalar(bounds[name], dtype) for name in ("min", "max")}}


def infinity_mode(node: OnnxNode, inputs: Inputs) -> dict[str, Any]:
    # DML_IS_INFINITY_MODE: EITHER, POSITIVE, NEGATIVE
    wanted = (node.attributes.get("detect_positive", 1), node.attributes.get("detect_negative", 1))
    return {"infinity_mode": {(1, 1): 0, (1, 0): 1, (0, 1): 2}[wanted]}


def along_axis(operator: str, default_axis: int = -1) -> Build:
    """Operators over one axis, for which DirectML has a list."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        axis = node.attributes.get("axis", default_axis) % max(len(x.shape), 1)
        x = builder.pack(x)
        # Three dimensions with the axis in the middle serve any rank.
        length = x.shape[axis] if x.shape else 1
        sizes: Sequence[int] = (product(x.shape[:axis]), length, product(x.shape[axis + 1 :]))
        y = builder.new(x.shape, x.dtype)
        if y.storage is not None:
            name = "DML_OPERATOR_" + operator
            support = supported(builder.device, name, "InputTensor")
            rank = max(3, support.dimension_counts[0] if support else 3)
            sizes = pad_left(sizes, rank, 1)
            strides = packed_strides(sizes)
            builder.emit(
                operator,
                {"input_tensor": (x, sizes, strides), "output_tensor": (y, sizes, strides)},
                axis_count=1, axes=(rank - 2,),
            )
        return [y]

    return build


def quantization(operator: str) -> Build:
    """QuantizeLinear and DequantizeLinear, with one scale and zero point, or one for each index."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        axis = node.attributes.get("axis", 1)
        rank = len(x.shape)

        def spread(p: Array) -> Array:
            if product(p.shape) == 1:
                return builder.reshape(p, (1,) * rank)
            at = dimension(axis, rank)
            return builder.reshape(p, [p.shape[0] if d == at else 1 for d in range(rank)])

        arrays = [x, *[spread(p) for p in inputs[1:] if p is not None]]
        out = node.outputs[0]
        default = np.dtype("uint8") if operator.endswith("_QUANTIZE_LINEAR") else arrays[1].dtype
        dtype = default if out is None or out.dtype is None else out.dtype
        return [emit_elementwise(builder, operator, arrays, dtype, {})]

    return build


def dynamic_quantize(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    y = builder.like([x], x.shape, "uint8")
    if not y.is_channels_last:
        x = builder.pack(x)
    scale, zero = (builder.new((), t) for t in ("float32", "uint8"))
    if x.storage is None:
        one, nothing = np.ones((), "float32"), np.zeros((), "uint8")
        return [y, builder.constant(one), builder.constant(nothing)]
    line = (x.size,)
    builder.emit("DYNAMIC_QUANTIZE_LINEAR", {
        "input_tensor": (x, line, (1,)),
        "output_tensor": (y, line, (1,)),
        "output_scale_tensor": (scale, (1,), (1,)),
        "output_zero_point_tensor": (zero, (1,), (1,)),
    })
    return [y, scale, zero]


def quantized_sum(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """com.microsoft QLinearAdd: inputs in DirectML's order, scales of a single element."""
    terms = [given(inputs, 0), given(inputs, 3)]
    shape = _broadcast(terms)
    y = builder.like(terms, shape, terms[0].dtype)
    if y.storage is None:
        return [y]
    a, b = (given(inputs, i).broadcast_to(shape) for i in (0, 3))
    sizes, strides = coalesce(shape, a.strides, b.strides, y.strides)
    tensors: dict[str, Seen | None] = {}
    for i, field in enumerate(spec.operator(_QUANTIZED_SUM).inputs):
        x = inputs[i] if i < len(inputs) else None
        one = (1,) * len(sizes)
        tensors[field.snake] = None if x is None else (x, one, one)
    tensors["a_tensor"], tensors["b_tensor"], tensors["output_tensor"] = (
        (x, sizes, steps) for x, steps in zip((a, b, y), strides)
    )
    builder.emit(_QUANTIZED_SUM.removeprefix("DML_OPERATOR_"), tensors)
    return [y]


# Diagonals


def eye_like(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    if len(x.shape) != 2:
        raise ValidationError(f"expected a matrix, but got {list(x.shape)}")
    number = node.attributes.get("dtype")
    y = builder.new(x.shape, x.dtype if number is None else DTYPES[number])
    if y.storage is not None:
        k = min(max(node.attributes.get("k", 0), _INT32[0]), _INT32[1])
        builder.emit("DIAGONAL_MATRIX", {"output_tensor": (y, y.shape, y.strides)},
                     offset=k, value=1.0)
    return [y]


def trilu(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    if len(x.shape) < 2:
        raise ValidationError(f"expected at least 2 dimensions, but got {list(x.shape)}")
    number = host(inputs, 1)
    k = 0 if number is None else int(number.reshape(-1)[0])
    y = builder.new(x.shape, x.dtype)
    if y.storage is None:
        return [y]
    if len(x.shape) > _MAX_RANK:
        x = builder.reshape(x, (product(x.shape[:-2]), *x.shape[-2:]))
    upper = node.attributes.get("upper", 1)
    begin, end = (_INT32[0], k) if upper else (k + 1, _INT32[1])
    begin, end = (min(max(bound, _INT32[0]), _INT32[1]) for bound in (begin, end))
    builder.emit(
        "DIAGONAL_MATRIX1",
        {"input_tensor": (x, x.shape, x.strides),
         "output_tensor": (y, x.shape, packed_strides(x.shape))},
        value_data_type=device_type(x.dtype), value=scalar(0, x.dtype),
        diagonal_fill_begin=begin, diagonal_fill_end=end,
    )
    return [y]


# Views: nothing to compute


def identity(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    return [given(inputs, 0)]


def expect(builder: Builder, node: OnnxNode, numbers: Array, *allowed: Allowed) -> None:
    """Raise if a number that the host knows is out of range."""
    builder.expect(numbers, allowed, f"{node.label} {node.name!r}")


def dropout(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Inference drops nothing. The mask says so; before version 10 it has the input's type."""
    x = given(inputs, 0)
    one = np.ones((), x.dtype if node.since < 10 else np.dtype(bool))
    mask = builder.constant(one).broadcast_to(x.shape)
    return [x, mask][: len(node.outputs)]


def reshape(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, wanted = given(inputs, 0), host(inputs, 1)
    sizes = [int(n) for n in (() if wanted is None else wanted.reshape(-1))]
    if not node.attributes.get("allowzero", 0):
        sizes = [x.shape[d] if n == 0 else n for d, n in enumerate(sizes)]
    if -1 in sizes:
        known = product([n for n in sizes if n != -1])
        if not known:
            raise ValidationError(f"no size for -1 follows from {sizes} and {list(x.shape)}")
        sizes[sizes.index(-1)] = x.size // known
    return [_reshaped(builder, x, sizes)]


def _reshaped(builder: Builder, x: Array, sizes: Sequence[int]) -> Array:
    if product(sizes) != x.size:
        raise ValidationError(f"{list(x.shape)} cannot take the sizes {list(sizes)}")
    return builder.reshape(x, tuple(sizes))


def flatten(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    axis = node.attributes.get("axis", 1)
    return [_reshaped(builder, x, (product(x.shape[:axis]), product(x.shape[axis:])))]


def named_axes(node: OnnxNode, inputs: Inputs) -> list[int] | None:
    values = host(inputs, 1)
    axes = node.attributes.get("axes") if values is None else values.reshape(-1)
    return None if axes is None else [int(a) for a in axes]


def squeeze(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, axes = given(inputs, 0), named_axes(node, inputs)
    rank = len(x.shape)
    gone = ({dimension(a, rank) for a in axes} if axes is not None
            else {d for d, n in enumerate(x.shape) if n == 1})
    return [_reshaped(builder, x, [n for d, n in enumerate(x.shape) if d not in gone])]


def unsqueeze(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, axes = given(inputs, 0), named_axes(node, inputs) or []
    rank = len(x.shape) + len(axes)
    new, old = {dimension(a, rank) for a in axes}, iter(x.shape)
    if len(new) < len(axes):
        raise ValidationError(f"expected each axis once, but got {axes}")
    return [_reshaped(builder, x, [1 if d in new else next(old) for d in range(rank)])]


def transpose(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    return [x.transpose(node.attributes.get("perm", list(reversed(range(len(x.shape))))))]


def expand(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, wanted = given(inputs, 0), host(inputs, 1)
    sizes = tuple(int(n) for n in (() if wanted is None else wanted.reshape(-1)))
    return [x.broadcast_to(np.broadcast_shapes(x.shape, sizes))]
