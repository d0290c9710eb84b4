"""A group normalization that is spelled out: groups of channels are normalized, then each channel
has a scale and a bias of its own."""

from __future__ import annotations

from typing import Any

from ...desc import TensorDesc
from ...layout import Ints, packed_strides, product
from ..node import (
    OTHER,
    SUMS,
    Node,
    Nodes,
    alike,
    fused_by,
    moved,
    output_of,
    seen_as,
)
from ..rewrite import rewrite


@rewrite("group_norm_pattern",
         "a normalization of groups of channels takes the scale and the bias of each channel", 135)
def group_norm_pattern(g: Nodes) -> None:
    for node in g:
        if node.name == "MEAN_VARIANCE_NORMALIZATION1":
            _take_affine(g, node)


def _take_affine(g: Nodes, norm: Node) -> None:
    d = norm.desc
    x = d.input_tensor
    rank = x.dimension_count
    if tuple(d.axes) != tuple(range(2, rank)) or fused_by(norm) or (
            "addend_tensor" in norm.storages or not _changes_nothing(norm)):
        return
    parts, slot, last = [norm], "output_tensor", norm
    shape: Ints | None = None
    y: TensorDesc | None = None
    fields: dict[str, Any] = {}
    storages = {"input_tensor": norm.storages["input_tensor"]}
    for field, names in (("scale_tensor", ("ELEMENT_WISE_MULTIPLY",)), ("bias_tensor", SUMS)):
        user = g.only_user(last)
        if user is None or user[0].name not in names or fused_by(last) is not None:
            return
        last, slot = user
        shape = shape or _grouped(last.tensor(slot), x)
        if shape is None:
            return
        own = moved(output_of(norm), shape, packed_strides(shape))
        t, y = (seen_as(last, slot, s, own) for s in (OTHER[slot], "output_tensor"))
        if t is None or y is None or any(t.strides[axis] for axis in (0, 3) if t.sizes[axis] > 1):
            return
        if y.data_type is not t.data_type or (last.name not in SUMS and not alike(y, own)):
            return
        fields[field] = moved(t, (1, *shape[1:3], 1), (0, *t.strides[1:3], 0))
        storages[field] = last.storages[OTHER[slot]]
        parts.append(last)
    assert shape is not None and y is not None
    storages["output_tensor"] = last.storages["output_tensor"]
    seen = moved(x, shape, packed_strides(shape))
    g.replace(parts, Node(d.changed(
        input_tensor=seen, output_tensor=y, axes=(2, 3), axis_count=2,
        fused_activation=fused_by(last), **fields), storages, norm.label))


def _grouped(seen: TensorDesc, x: TensorDesc) -> Ints | None:
    """Images, groups, the channels of a group and places of an image with channels; None where
    ``x`` is no packed one in groups."""
    n, groups, *_ = x.sizes
    plane = product(seen.sizes[2:])
    if seen.dimension_count < 3 or seen.sizes[0] != n or seen.sizes[1] % groups or (
            x.strides != packed_strides(x.sizes) or n * seen.sizes[1] * plane != x.element_count):
        return None
    return n, groups, seen.sizes[1] // groups, plane


def _changes_nothing(norm: Node) -> bool:
    """Whether the normalization's own scale is 1, and its bias 0, or it has none."""
    return all(norm.number(slot) == value for slot, value in
               (("scale_tensor", 1), ("bias_tensor", 0)) if slot in norm.storages)
