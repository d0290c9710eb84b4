"""Quantized rows are written as far apart as matrix units read them."""

from __future__ import annotations

from typing import Any

from ...desc import TensorDesc
from ...layout import extent, is_packed, packed_strides, product
from ..node import Node, Nodes, changed
from ..rewrite import rewrite

_QUANTIZE = ("DYNAMIC_QUANTIZE_LINEAR", "ELEMENT_WISE_QUANTIZE_LINEAR")
_FEW, _DEEP = 16, 1024
"""Rows that other kernels multiply, and K from which steps are twice as long."""
_VECTOR, _STEP = 16, 128
"""Elements of a vector of channels, and of a product's step of K."""


@rewrite("row_pitch",
         "rows that are quantized for matrix units are written as far apart as the units read them",
         230)
def row_pitch(g: Nodes) -> None:
    """A product's rows, or an image's channels, would be copied first if they were no whole
    vectors. What lies between them is multiplied by zeros."""
    if not g.folds or not g.traits.multiplies(16, 16, 32, "i8", "i32"):
        return
    for node in g:
        if node.name not in _QUANTIZE:
            continue
        user = _only_reader(g, node)
        seen = None if user is None else _padded(*user)
        if user is not None and seen is not None:
            _replace(g, node, *user, seen)


def _only_reader(g: Nodes, node: Node) -> tuple[Node, str] | None:
    storage = node.storages["output_tensor"]
    readers = g.readers(storage)
    if len(readers) != 1 or not g.is_whole(storage) or readers[0][0].storages[
            readers[0][1]].begin:
        return None
    return readers[0]


def _padded(user: Node, slot: str) -> TensorDesc | None:
    """The quantized tensor with distances between its rows. None where it needs none, or they would
    be read."""
    d = user.desc
    if user.name == "MATRIX_MULTIPLY_INTEGER_TO_FLOAT" and slot == "a_tensor":
        x, weights, zero = d.a_tensor, d.b_tensor, d.b_zero_point_tensor
        *leading, rows, width = x.sizes
        step = _STEP * (2 if width >= _DEEP else 1)
        if not is_packed(x.sizes, x.strides) or rows <= _FEW or product(leading) > 1:
            return None
        strides = (*x.strides[:-2], -(-width // step) * step, 1)
    elif user.name == "CONVOLUTION_INTEGER_TO_FLOAT" and slot == "input_tensor":
        x, weights, zero = d.input_tensor, d.filter_tensor, d.filter_zero_point_tensor
        width, step = x.sizes[1], _VECTOR
        if d.group_count > 1 or x.strides[1] != 1 or width < step or (
                extent(x.sizes, x.strides) != x.element_count):
            return None
        pitch = -(-width // step) * step
        strides = tuple(s if i == 1 else s // width * pitch for i, s in enumerate(x.strides))
        if any(s % width and n > 1 for i, (s, n) in enumerate(zip(x.strides, x.sizes)) if i != 1):
            return None
    else:
        return None
    if width % step == 0 or zero is not None or not weights.data_type.is_signed:
        return None
    pitch = -(-width // step) * step
    return TensorDesc(x.data_type, x.sizes, strides,
                      total_tensor_size_in_bytes=x.element_count // width * pitch)


def _replace(g: Nodes, node: Node, user: Node, slot: str, seen: TensorDesc) -> None:
    d = node.desc
    width = seen.sizes[1 if slot == "input_tensor" else -1]
    rows = seen.element_count // width
    count = seen.element_count
    if not all(is_packed(t.sizes, t.strides) and t.element_count == count
               for t in (d.input_tensor, d.output_tensor)):
        return
    pitch = seen.total_tensor_size_in_bytes // rows
    sizes = (rows, width)
    fields: dict[str, Any] = {
        "input_tensor": TensorDesc(d.input_tensor.data_type, sizes, packed_strides(sizes)),
        "output_tensor": TensorDesc(seen.data_type, sizes, (pitch, 1))}
    for field in ("scale_tensor", "zero_point_tensor"):
        if (t := getattr(d, field, None)) is not None:
            if any(s and n > 1 for s, n in zip(t.strides, t.sizes)):
                return
            fields[field] = TensorDesc(t.data_type, sizes, (0, 0))
    for field in ("output_scale_tensor", "output_zero_point_tensor"):
        if (t := getattr(d, field, None)) is not None:
            fields[field] = TensorDesc(t.data_type, (1, 1))
    storage = g.make(seen.total_tensor_size_in_bytes)
    g.replace([node], changed(node, {"output_tensor": storage}, **fields))
    g.replace([user], changed(user, {slot: storage}, **{slot: seen}))
