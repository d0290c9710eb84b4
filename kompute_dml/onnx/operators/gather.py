"""Lowerings of gathers, scatters and non-zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...attributes import ReduceFunction
from ...dtypes import DataType
from ...errors import UnsupportedError, ValidationError
from ...graph.array import BOOL, Array, device_type
from ...graph.builder import Builder, scalar, supported
from ...graph.recorded import Allowed
from ...layout import packed_strides, pad_left, product
from ...operators.append import AppendDesc
from ..bfloat16 import STORED, to_bfloat16
from ..graph import OnnxNode
from ..lowerings import Build, Inputs, Seen, dimension, emit_elementwise, expect, given, host
from ..row import Mapping, only, only_not
from ..shapes import depth_of

_INDICES = (DataType.INT64, DataType.INT32, DataType.UINT64, DataType.UINT32)

_BYTE = 8


def _seen(x: Array, rank: int) -> Seen:
    """An array with 1s in front, up to ``rank`` dimensions."""
    return x, pad_left(x.shape, rank, 1), pad_left(x.strides, rank, 0)


def _rank(builder: Builder, operator: str, *arrays: Array) -> int:
    """The number of dimensions for an operator over these arrays."""
    table = supported(builder.device, "DML_OPERATOR_" + operator, "OutputTensor")
    return max(table.dimension_counts[0], *(len(a.shape) for a in arrays))


def _emit(
    builder: Builder, operator: str, rank: int, attributes: dict[str, Any], **tensors: Array
) -> None:
    """Add an operator whose tensors all have ``rank`` dimensions."""
    builder.emit(operator, {f"{name}_tensor": _seen(x, rank) for name, x in tensors.items()},
                 **attributes)


def _expect(builder: Builder, node: OnnxNode, indices: Array, *sizes: int) -> None:
    """Raise if an index that the host knows is out of range. The device keeps others inside its
    tensors."""
    expect(builder, node, indices, *(
        Allowed("indices", -n, n, " (a dimension has {end} elements)") for n in sizes))


def gather(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, indices = given(inputs, 0), given(inputs, 1)
    axis = dimension(node.attributes.get("axis", 0), len(x.shape))
    _expect(builder, node, indices, x.shape[axis])
    return [taken(builder, x, indices, axis)]


def taken(builder: Builder, x: Array, indices: Array, axis: int) -> Array:
    """What ``indices``, which are in range, take along an axis."""
    if (view := _sliced(x, indices, axis)) is not None:
        return view
    before, after = x.shape[:axis], x.shape[axis + 1:]
    y = builder.new((*before, *indices.shape, *after), x.dtype)
    if y.storage is None:
        return y
    # Three dimensions with the axis in the middle serve any rank.
    sizes = (product(before), x.shape[axis], product(after))
    x = builder.reshape(x, sizes)
    listed = builder.reshape(indices, (indices.size,))
    y_view = builder.reshape(y, (sizes[0], indices.size, sizes[2]))
    rank = _rank(builder, "GATHER", x)
    _emit(builder, "GATHER", rank, {"axis": rank - 2, "index_dimensions": 1},
          input=x, indices=listed, output=y_view)
    return y


def _sliced(x: Array, indices: Array, axis: int) -> Array | None:
    """What known indices that are evenly spaced take, as a view; None for others."""
    if indices.host is None or len(indices.shape) > 1 or not indices.size or not x.size:
        return None
    places = [int(i) % x.shape[axis] for i in indices.host.reshape(-1)]
    step = places[1] - places[0] if len(places) > 1 else 1
    if step < 1 or places != [*range(places[0], places[0] + step * len(places), step)]:
        return None
    count = [len(places)] if indices.shape else []
    strides = [step * x.strides[axis]] if indices.shape else []
    return x.view((*x.shape[:axis], *count, *x.shape[axis + 1:]),
                  (*x.strides[:axis], *strides, *x.strides[axis + 1:]),
                  places[0] * x.strides[axis])


def gather_elements(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, indices = given(inputs, 0), given(inputs, 1)
    axis = dimension(node.attributes.get("axis", 0), len(x.shape))
    _expect(builder, node, indices, x.shape[axis])
    y = builder.new(indices.shape, x.dtype)
    if y.storage is None:
        return [y]
    rank = _rank(builder, "GATHER_ELEMENTS", x)
    _emit(builder, "GATHER_ELEMENTS", rank, {"axis": axis + rank - len(x.shape)},
          input=x, indices=indices, output=y)
    return [y]


def gather_nd(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, indices = given(inputs, 0), given(inputs, 1)
    batches = node.attributes.get("batch_dims", 0)
    _expect(builder, node, indices, *x.shape[batches : batches + indices.shape[-1]])
    slices = x.shape[batches + indices.shape[-1]:]
    y = builder.new((*indices.shape[:-1], *slices), x.dtype)
    if y.storage is None:
        return [y]
    rank = _rank(builder, "GATHER_ND1", x, indices, y)
    _emit(builder, "GATHER_ND1", rank,
          {**_counts(x, indices), "batch_dimension_count": batches},
          input=x, indices=indices, output=y)
    return [y]


_REDUCTIONS = {"add": ReduceFunction.SUM, "mul": ReduceFunction.MULTIPLY,
               "min": ReduceFunction.MIN, "max": ReduceFunction.MAX}
_OF_TRUTH = {"add": ReduceFunction.MAX, "mul": ReduceFunction.MIN}
"""Truth values are added and multiplied as numbers that are not 0."""


def _function(node: OnnxNode, x: Array) -> dict[str, Any]:
    """The field of operators that reduce the updates of a place."""
    name = node.attributes.get("reduction", "none")
    if name not in _REDUCTIONS:
        return {}
    return {"function": (_OF_TRUTH if x.dtype == BOOL else {}).get(name, _REDUCTIONS[name])}


def scatter(operator: str) -> Build:
    """SCATTER or SCATTER_ND, or one that reduces the updates of a place."""
    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x, indices, updates = (given(inputs, i) for i in range(3))
        if updates.storage is None:
            return [x]
        y = builder.new(x.shape, x.dtype)
        attributes = _function(node, x)
        if operator.startswith("SCATTER_ND"):
            _expect(builder, node, indices, *x.shape[: indices.shape[-1]])
            rank = _rank(builder, operator, x, indices, updates)
            attributes |= _counts(x, indices)
        else:
            rank = _rank(builder, operator, x)
            axis = dimension(node.attributes.get("axis", 0), len(x.shape))
            _expect(builder, node, indices, x.shape[axis])
            attributes["axis"] = axis + rank - len(x.shape)
        _emit(builder, operator, rank, attributes,
              input=x, indices=indices, updates=updates, output=y)
        return [y]

    return build


def tensor_scatter(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Lines of a cache from a place on, which each of the first dimension has; in a circle if told.
    """
    x, updates = given(inputs, 0), given(inputs, 1)
    if x.dtype == STORED and updates.dtype == np.float32:
        updates = to_bfloat16(builder, updates)
    axis = dimension(node.attributes.get("axis", -2), len(x.shape))
    count, most = updates.shape[axis], x.shape[axis]
    kind = np.dtype("int32")
    if count > most or axis == 0:
        raise ValidationError(f"expected at most {most} lines, and an axis but the first, but got "
                              f"{count} along axis {axis}")
    circular = node.attributes.get("mode", "linear") == "circular"
    if not circular and x.storage is not None and updates.storage is not None and (
            device_type(x.dtype).bits >= _BYTE):
        return [_written_from(builder, x, updates, inputs[2] if len(inputs) > 2 else None, axis)]
    places = builder.constant(np.arange(count, dtype=kind)[None])
    if len(inputs) > 2 and inputs[2] is not None:
        first = emit_elementwise(builder, "CAST", [inputs[2]], kind, {})
        first = builder.reshape(first, (x.shape[0], 1))
        places = emit_elementwise(builder, "ELEMENT_WISE_ADD", [places, first], kind, {})
        if circular:
            size = builder.constant(np.array(most, kind))
            places = emit_elementwise(
                builder, "ELEMENT_WISE_MODULUS_FLOOR", [places, size], kind, {})
    sizes = [n if d in (0, axis) else 1 for d, n in enumerate(updates.shape)]
    seen = builder.reshape(places.broadcast_to((x.shape[0], count)), sizes)
    return list(scatter("SCATTER")(builder, replace(node, attributes={"axis": axis}), [
        x, seen.broadcast_to(updates.shape), updates]))


def _written_from(
    builder: Builder, x: Array, updates: Array, first: Array | None, axis: int
) -> Array:
    """A cache with lines along an axis from a place on, which each of the first dimension has."""
    kind = np.dtype("int32")
    batches = x.shape[0]
    places = builder.constant(np.zeros(batches, kind)) if first is None else emit_elementwise(
        builder, "CAST", [builder.reshape(first, (batches,))], kind, {})
    y = builder.new(x.shape, x.dtype)

    def rows(t: Array) -> Seen:
        sizes = (batches, product(t.shape[1:axis]), t.shape[axis], product(t.shape[axis + 1:]))
        return t, sizes, packed_strides(sizes)

    builder.emit_own(AppendDesc, {
        "input_tensor": rows(builder.pack(x)), "indices_tensor": _seen(places, 1),
        "updates_tensor": rows(builder.pack(updates)), "output_tensor": rows(y)}, axis=2)
    return y


def _counts(x: Array, indices: Array) -> dict[str, int]:
    return {"input_dimension_count": len(x.shape), "indices_dimension_count": len(indices.shape)}


def one_hot(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    indices, values, depth = given(inputs, 0), given(inputs, 2), host(inputs, 1)
    assert depth is not None
    axis = dimension(node.attributes.get("axis", -1), len(indices.shape) + 1)
    sizes: Sequence[int] = (*indices.shape[:axis], depth_of(depth), *indices.shape[axis:])
    y = builder.new(sizes, values.dtype)
    if y.storage is None:
        return [y]
    if device_type(indices.dtype) not in _INDICES:
        indices = emit_elementwise(builder, "CAST", [indices], np.dtype("int32"), {})
    indices = builder.reshape(indices, [1 if d == axis else n for d, n in enumerate(sizes)])
    rank = _rank(builder, "ONE_HOT", y)
    _emit(builder, "ONE_HOT", rank, {"axis": axis + rank - len(sizes)},
          indices=indices, values=values, output=y)
    return [y]


def nonzero(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """NonZero, if the model states the number of non-zeros."""
    x, out = given(inputs, 0), node.outputs[0]
    assert out is not None and out.shape is not None
    count, rank = int(out.shape[1] or 0), len(x.shape)
    if not count or not rank:
        return [builder.new((rank, count), "int64")]
    # The low words of int64, a row for each dimension. The high words are 0.
    whole = builder.new((rank, x.size), "int64")
    vector = whole, (whole.size,), (1,)
    builder.emit("FILL_VALUE_CONSTANT", {"output_tensor": vector},
                 value_data_type=device_type(whole.dtype), value=scalar(0, whole.dtype))
    table = supported(builder.device, "DML_OPERATOR_NONZERO_COORDINATES", "InputTensor")
    if table is None:
        raise UnsupportedError("NONZERO_COORDINATES is not there at this feature level")
    dimensions = max(rank, table.dimension_counts[0])
    halves = replace(whole, dtype=np.dtype("uint32"))
    total = builder.new((1,), "uint32")
    outer = max(table.dimension_counts[0], 2) - 2
    builder.emit("NONZERO_COORDINATES", {
        "input_tensor": _seen(x, dimensions),
        "output_count_tensor": _seen(total, table.dimension_counts[0]),
        "output_coordinates_tensor": (halves, (*(1,) * outer, x.size, rank),
                                      (*(0,) * outer, 2, 2 * x.size)),
    })
    return [whole.view((rank, count), (x.size, 1))]


def _counted(node: OnnxNode) -> str | None:
    out = node.outputs[0]
    if out is None or out.shape is None or None in out.shape:
        return "how many elements are found is known only after a run"
    return None


ROWS: tuple[Mapping, ...] = (
    Mapping("Gather", (1, 11, 13), "GATHER", gather, attributes=("axis",)),
    Mapping("GatherElements", (11, 13), "GATHER_ELEMENTS", gather_elements,
        attributes=("axis",)),
    Mapping("GatherND", (11, 12, 13), "GATHER_ND1", gather_nd, attributes=("batch_dims",)),
    *(Mapping(op, since, "SCATTER", scatter("SCATTER"), attributes=("axis", "reduction"),
          refuses=only("reduction", "none", "none"))
      for op, since in (("Scatter", (9, 11)), ("ScatterElements", (11, 13, 16, 18)))),
    Mapping("ScatterND", (11, 13, 16, 18), "SCATTER_ND", scatter("SCATTER_ND"),
        attributes=("reduction",), refuses=only("reduction", "none", "none")),
    *(Mapping(op, since, operator, scatter(operator), attributes=attributes,
              refuses=only_not("reduction", "none", "none"))
      for op, since, operator, attributes in (
          ("ScatterElements", (16, 18), "SCATTER_REDUCE", ("axis", "reduction")),
          ("ScatterND", (16, 18), "SCATTER_ND_REDUCE", ("reduction",)))),
    Mapping("OneHot", (9, 11, 28), "ONE_HOT", one_hot, attributes=("axis",), host=(1,),
        fields=(None, None, "ValuesTensor")),
    # Filled with 0 first, then the low words are written.
    Mapping("NonZero", (9, 13), "FILL_VALUE_CONSTANT", nonzero, refuses=_counted,
        fields=(None,)),
    Mapping("Compress", (9, 11, 28), "GATHER", gather, attributes=("axis",),
        refuses=lambda node: "how many elements are kept is known only after a run"),
    Mapping("TensorScatter", (24,), "SCATTER", tensor_scatter,
        fields=("InputTensor", "UpdatesTensor", None), attributes=("axis", "mode"), stored=(0,)),
)
