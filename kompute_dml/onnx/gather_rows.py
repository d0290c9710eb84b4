"""How rows of gathers, scatters and non-zeros lower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..dtypes import DataType
from ..errors import UnsupportedError
from ..graph.array import Array, device_type
from ..graph.builder import Builder, scalar, supported
from ..layout import pad_left, product
from .graph import Node
from .rows import Inputs, Seen, dimension, emit_elementwise, given, host

_INDICES = (DataType.INT64, DataType.INT32, DataType.UINT64, DataType.UINT32)


def _seen(x: Array, rank: int) -> Seen:
    """With 1s in front until there are ``rank`` dimensions."""
    return x, pad_left(x.shape, rank, 1), pad_left(x.strides, rank, 0)


def _rank(builder: Builder, operator: str, *arrays: Array) -> int:
    """Dimensions under which an operator sees the arrays."""
    table = supported(builder.device, "DML_OPERATOR_" + operator, "OutputTensor")
    return max(table.dimension_counts[0], *(len(a.shape) for a in arrays))


def gather(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    x, indices = given(inputs, 0), given(inputs, 1)
    axis = dimension(node.attributes.get("axis", 0), len(x.shape))
    before, after = x.shape[:axis], x.shape[axis + 1:]
    y = builder.new((*before, *indices.shape, *after), x.dtype)
    if y.storage is None:
        return [y]
    # The axis in the middle of three: any rank will do.
    line = (product(before), x.shape[axis], product(after))
    x = builder.reshape(x, line)
    listed = builder.reshape(indices, (indices.size,))
    made = builder.reshape(y, (line[0], indices.size, line[2]))
    rank = _rank(builder, "GATHER", x)
    builder.emit(
        "GATHER", {"input_tensor": _seen(x, rank), "indices_tensor": _seen(listed, rank),
                   "output_tensor": _seen(made, rank)},
        axis=rank - 2, index_dimensions=1)
    return [y]


def gather_elements(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    x, indices = given(inputs, 0), given(inputs, 1)
    axis = dimension(node.attributes.get("axis", 0), len(x.shape))
    y = builder.new(indices.shape, x.dtype)
    if y.storage is None:
        return [y]
    rank = _rank(builder, "GATHER_ELEMENTS", x)
    builder.emit(
        "GATHER_ELEMENTS", {"input_tensor": _seen(x, rank), "indices_tensor": _seen(indices, rank),
                            "output_tensor": _seen(y, rank)},
        axis=axis + rank - len(x.shape))
    return [y]


def gather_nd(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    x, indices = given(inputs, 0), given(inputs, 1)
    batches = node.attributes.get("batch_dims", 0)
    slices = x.shape[batches + indices.shape[-1]:]
    y = builder.new((*indices.shape[:-1], *slices), x.dtype)
    if y.storage is None:
        return [y]
    rank = _rank(builder, "GATHER_ND1", x, indices, y)
    builder.emit(
        "GATHER_ND1", {"input_tensor": _seen(x, rank), "indices_tensor": _seen(indices, rank),
                       "output_tensor": _seen(y, rank)},
        input_dimension_count=len(x.shape), indices_dimension_count=len(indices.shape),
        batch_dimension_count=batches)
    return [y]


def scatter(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    x, indices, updates = (given(inputs, i) for i in range(3))
    if indices.storage is None:
        return [x]
    y = builder.new(x.shape, x.dtype)
    axis = dimension(node.attributes.get("axis", 0), len(x.shape))
    rank = _rank(builder, "SCATTER", x)
    builder.emit("SCATTER", _scattered(rank, x, indices, updates, y),
                 axis=axis + rank - len(x.shape))
    return [y]


def scatter_nd(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    x, indices, updates = (given(inputs, i) for i in range(3))
    if updates.storage is None:
        return [x]
    y = builder.new(x.shape, x.dtype)
    rank = _rank(builder, "SCATTER_ND", x, indices, updates)
    builder.emit("SCATTER_ND", _scattered(rank, x, indices, updates, y),
                 input_dimension_count=len(x.shape), indices_dimension_count=len(indices.shape))
    return [y]


def _scattered(
    rank: int, x: Array, indices: Array, updates: Array, y: Array
) -> dict[str, Seen | None]:
    return {"input_tensor": _seen(x, rank), "indices_tensor": _seen(indices, rank),
            "updates_tensor": _seen(updates, rank), "output_tensor": _seen(y, rank)}


def one_hot(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    indices, values, depth = given(inputs, 0), given(inputs, 2), host(inputs, 1)
    assert depth is not None
    axis = dimension(node.attributes.get("axis", -1), len(indices.shape) + 1)
    sizes: Sequence[int] = (*indices.shape[:axis], int(depth.reshape(-1)[0]), *indices.shape[axis:])
    y = builder.new(sizes, values.dtype)
    if y.storage is None:
        return [y]
    if device_type(indices.dtype) not in _INDICES:
        indices = emit_elementwise(builder, "CAST", [indices], np.dtype("int32"), {})
    indices = builder.reshape(indices, [1 if d == axis else n for d, n in enumerate(sizes)])
    rank = _rank(builder, "ONE_HOT", y)
    builder.emit(
        "ONE_HOT", {"indices_tensor": _seen(indices, rank), "values_tensor": _seen(values, rank),
                    "output_tensor": _seen(y, rank)},
        axis=axis + rank - len(sizes))
    return [y]


def nonzero(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
    """Where the model says how many there are."""
    x, out = given(inputs, 0), node.outputs[0]
    assert out is not None and out.shape is not None
    count, rank = int(out.shape[1] or 0), len(x.shape)
    if not count or not rank:
        return [builder.new((rank, count), "int64")]
    # The low halves of int64, a row for each dimension; the high ones are 0.
    whole = builder.new((rank, x.size), "int64")
    line = whole, (whole.size,), (1,)
    builder.emit("FILL_VALUE_CONSTANT", {"output_tensor": line},
                 value_data_type=device_type(whole.dtype), value=scalar(0, whole.dtype))
    table = supported(builder.device, "DML_OPERATOR_NONZERO_COORDINATES", "InputTensor")
    if table is None:
        raise UnsupportedError("NONZERO_COORDINATES is not there at this feature level")
    dimensions = max(rank, table.dimension_counts[0])
    halves = replace(whole, dtype=np.dtype("uint32"))
    found = builder.new((1,), "uint32")
    outer = max(table.dimension_counts[0], 2) - 2
    builder.emit("NONZERO_COORDINATES", {
        "input_tensor": _seen(x, dimensions),
        "output_count_tensor": _seen(found, table.dimension_counts[0]),
        "output_coordinates_tensor": (halves, (*(1,) * outer, x.size, rank),
                                      (*(0,) * outer, 2, 2 * x.size)),
    })
    return [whole.view((rank, count), (x.size, 1))]
