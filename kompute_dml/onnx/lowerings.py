"""What the lowerings of nodes share: from ONNX's shape rules and argument order to DirectML's
fields.

A lowering takes the builder, the node, and an array per input (None for an absent one), and returns
an array per output. :mod:`.operators` has those of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..desc import MAX_DIMENSIONS
from ..errors import UnsupportedError, ValidationError
from ..graph.array import Array
from ..graph.builder import Builder, supported
from ..graph.recorded import Allowed
from ..layout import broadcast_sizes, coalesce, packed_strides, pad_left, product
from ..operators import base
from .graph import OnnxNode

Inputs = Sequence[Array | None]
Build = Callable[[Builder, OnnxNode, Inputs], Sequence[Array]]
Attributes = Callable[[OnnxNode, Inputs], Mapping[str, Any]]

Seen = tuple[Array, Sequence[int], Sequence[int]]
"""An array with the sizes and strides for an operator."""


def seen(x: Array) -> Seen:
    return x, x.shape, x.strides


def packed(x: Array | None, ones: int = 0) -> Seen | None:
    """A packed array with dimensions of size 1 in front."""
    sizes = () if x is None else (1,) * ones + x.shape
    return None if x is None else (x, sizes, packed_strides(sizes))


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


def emit_elementwise(
    builder: Builder, operator: str, arrays: Sequence[Array], dtype: np.dtype[Any],
    attributes: Mapping[str, Any],
) -> Array:
    """Add an elementwise operator over broadcast inputs, in the order of its input fields."""
    shape = broadcast_sizes(*[a.shape for a in arrays])
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


def expect(builder: Builder, node: OnnxNode, numbers: Array, *allowed: Allowed) -> None:
    """Raise if a number that the host knows is out of range."""
    builder.expect(numbers, allowed, f"{node.label} {node.name!r}")


def named_axes(node: OnnxNode, inputs: Inputs) -> list[int] | None:
    values = host(inputs, 1)
    axes = node.attributes.get("axes") if values is None else values.reshape(-1)
    return None if axes is None else [int(a) for a in axes]
