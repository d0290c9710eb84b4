"""Lowerings of operators that move elements. Views cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...attributes import DepthSpaceOrder, PaddingMode
from ...errors import ValidationError
from ...graph.array import BOOL, Array, device_type
from ...graph.builder import Builder, scalar, supported
from ...graph.recorded import Allowed
from ...layout import channels_last_strides, pad_left
from ...sizes import any_open, whole
from ..graph import OnnxNode
from ..lowerings import Build, Inputs, Seen, dimension, expect, given, host
from ..row import Mapping
from ..shapes import window

_MODES = {"constant": PaddingMode.CONSTANT, "edge": PaddingMode.EDGE,
          "reflect": PaddingMode.REFLECTION, "wrap": PaddingMode.WRAP}
_ORDERS = {"DCR": DepthSpaceOrder.DEPTH_COLUMN_ROW, "CRD": DepthSpaceOrder.COLUMN_ROW_DEPTH}


def _numbers(node: OnnxNode, inputs: Inputs, index: int, *names: str) -> list[int] | None:
    """Whole numbers from an input, or in older versions from an attribute."""
    values = host(inputs, index)
    numbers = next((node.attributes[n] for n in names if n in node.attributes), None)
    given_ = numbers if values is None else values.reshape(-1)
    return None if given_ is None else [whole(n) for n in given_]


def _rank(builder: Builder, operator: str, tensor: str, x: Array) -> int:
    """The number of dimensions for an operator over an array."""
    support = supported(builder.device, "DML_OPERATOR_" + operator, tensor)
    return max(len(x.shape), support.dimension_counts[0] if support else 1)


def _seen(x: Array, rank: int) -> Seen:
    return x, pad_left(x.shape, rank, 1), pad_left(x.strides, rank, 0)


def part(x: Array, begins: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> Array:
    strides = [a * b for a, b in zip(x.strides, steps)]
    return x.view(sizes, strides, sum(a * b for a, b in zip(x.strides, begins)))


def slice_(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    rank = len(x.shape)
    starts, ends = (_numbers(node, inputs, i, name) or [] for i, name in
                    ((1, "starts"), (2, "ends")))
    axes = _numbers(node, inputs, 3, "axes") or list(range(len(starts)))
    steps = _numbers(node, inputs, 4) or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ValidationError("expected as many starts as ends, axes and steps")
    begins, sizes, strides = [0] * rank, list(x.shape), [1] * rank
    where = [dimension(a, rank) for a in axes]
    if len({*where}) < len(where):
        raise ValidationError(f"expected each axis once, but got {axes}")
    for start, end, d, step in zip(starts, ends, where, steps):
        strides[d] = step
        begins[d], sizes[d] = window(x.shape[d], start, end, step)
    if min(strides, default=1) > 0 or 0 in sizes:
        return [part(x, begins, sizes, strides)]
    y = builder.new(sizes, x.dtype)
    rank = _rank(builder, "SLICE1", "InputTensor", x)
    reach = [(n - 1) * s for n, s in zip(sizes, strides)]
    builder.emit(
        "SLICE1", {"input_tensor": _seen(x, rank), "output_tensor": _seen(y, rank)},
        input_window_offsets=pad_left([b + min(r, 0) for b, r in zip(begins, reach)], rank, 0),
        input_window_sizes=pad_left([abs(r) + 1 for r in reach], rank, 1),
        input_window_strides=pad_left(strides, rank, 1),
    )
    return [y]


def split(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    axis = dimension(node.attributes.get("axis", 0), len(x.shape))
    n = x.shape[axis]
    sizes = _numbers(node, inputs, 1, "split")
    if sizes is None:
        count = node.attributes.get("num_outputs", len(node.outputs))
        each = -(-n // count)
        sizes = [min(each, max(n - i * each, 0)) for i in range(count)]
    if sum(sizes) != n or min(sizes) < 0:
        raise ValidationError(f"expected sizes whose sum is {n}, but got {sizes}")
    ones, results, begin = [1] * len(x.shape), [], 0
    for size in sizes:
        begins = [begin if d == axis else 0 for d in range(len(x.shape))]
        shape = [size if d == axis else m for d, m in enumerate(x.shape)]
        results.append(part(x, begins, shape, ones))
        begin += size
    return results


def joined(builder: Builder, parts: Sequence[Array], axis: int) -> Array:
    """The arrays side by side along a dimension."""
    (y,) = concat(builder, OnnxNode("Concat", "", 13, (), (), {"axis": axis}), parts)
    return y


def concat(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    arrays = [given(inputs, i) for i in range(len(inputs))]
    axis = dimension(node.attributes.get("axis", 1), len(arrays[0].shape))
    shape = list(arrays[0].shape)
    shape[axis] = sum(a.shape[axis] for a in arrays)
    held = [a for a in arrays if a.storage is not None]
    if len(held) == 1:
        return held
    y = builder.new(shape, arrays[0].dtype)
    if len(shape) > 3 and all(a.has_channels_inside for a in held):
        y = y.view(y.shape, channels_last_strides(y.shape))
    if y.storage is not None:
        rank = _rank(builder, "JOIN", "OutputTensor", y)
        tensors: dict[str, Seen | None] = {
            f"input_tensors[{i}]": _seen(a, rank) for i, a in enumerate(held)}
        tensors["output_tensor"] = _seen(y, rank)
        builder.emit("JOIN", tensors, axis=axis + rank - len(shape))
    return [y]


def pad(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    rank = len(x.shape)
    pads = _numbers(node, inputs, 1, "pads", "paddings") or []
    axes = [dimension(a, rank) for a in _numbers(node, inputs, 3) or range(rank)]
    if len(pads) != 2 * len(axes):
        raise ValidationError(f"expected {2 * len(axes)} pads, but got {pads}")
    start, end = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        start[axis], end[axis] = pads[i], pads[i + len(axes)]
    if any(n < 0 for n in (*start, *end)):
        sizes = [n + min(s, 0) + min(e, 0) for n, s, e in zip(x.shape, start, end)]
        if min(sizes) < 0:
            raise ValidationError(f"expected negative pads to leave sizes of at least 0, but got "
                                  f"{pads} for {list(x.shape)}")
        x = part(x, [max(-s, 0) for s in start], sizes, [1] * rank)
        start, end = ([max(n, 0) for n in ns] for ns in (start, end))
    if not any((*start, *end)):
        return [x]
    y = builder.new([n + s + e for n, s, e in zip(x.shape, start, end)], x.dtype)
    if y.storage is None:
        return [y]
    mode = node.attributes.get("mode", "constant")
    known = host(inputs, 2)
    value = node.attributes.get("value", 0.0) if known is None or not known.size \
        else known.reshape(-1)[0]
    kind = np.dtype("uint8") if x.dtype == BOOL else x.dtype
    filling: Any = scalar(np.asarray(value).astype(kind)[()], x.dtype)
    if x.storage is None:
        if mode != "constant":
            raise ValidationError(f"mode {mode!r} has nothing to repeat in {list(x.shape)}")
        builder.emit("FILL_VALUE_CONSTANT", {"output_tensor": _seen(y, rank)},
                     value_data_type=device_type(x.dtype), value=filling)
        return [y]
    seen = _rank(builder, "PADDING1", "InputTensor", x)
    builder.emit(
        "PADDING1", {"input_tensor": _seen(x, seen), "output_tensor": _seen(y, seen)},
        padding_mode=_MODES[mode], padding_value_data_type=device_type(x.dtype),
        padding_value=filling, start_padding=pad_left(start, seen, 0),
        end_padding=pad_left(end, seen, 0),
    )
    return [y]


def center_crop_pad(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Both ends lose or get as much; what is left over the last one does."""
    x, wanted = given(inputs, 0), host(inputs, 1)
    rank = len(x.shape)
    axes = [dimension(a, rank) for a in node.attributes.get("axes", range(rank))]
    pads = [[0] * rank, [0] * rank]
    for axis, n in zip(axes, [] if wanted is None else wanted.reshape(-1), strict=True):
        more = int(n) - x.shape[axis]
        first = (abs(more) // 2) * (1 if more > 0 else -1)
        pads[0][axis], pads[1][axis] = first, more - first
    values = np.array(pads).reshape(-1)
    (y,) = pad(builder, replace(node, attributes={}), [
        x, Array(values.dtype, values.shape, (1,), None, values)])
    return [y]


def tile(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    repeats = _numbers(node, inputs, 1) or []
    if node.since == 1:
        axis = dimension((_numbers(node, inputs, 2) or [0])[0], len(x.shape))
        repeats = [repeats[0] if d == axis else 1 for d in range(len(x.shape))]
    if len(repeats) != len(x.shape) or min(repeats, default=1) < 0:
        raise ValidationError(f"expected {len(x.shape)} repeats, but got {repeats}")
    if all(n == 1 or m == 1 for n, m in zip(x.shape, repeats)):
        return [x.broadcast_to([n * m for n, m in zip(x.shape, repeats)])]
    y = builder.new([n * m for n, m in zip(x.shape, repeats)], x.dtype)
    if y.storage is not None:
        rank = _rank(builder, "TILE", "InputTensor", x)
        builder.emit("TILE", {"input_tensor": _seen(x, rank), "output_tensor": _seen(y, rank)},
                     repeats=pad_left(repeats, rank, 1))
    return [y]


def blocks(operator: str) -> Build:
    """DepthToSpace and SpaceToDepth."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x, b = given(inputs, 0), node.attributes["blocksize"]
        if len(x.shape) != 4:
            raise ValidationError(f"expected 4 dimensions, but got {list(x.shape)}")
        n, c, h, w = x.shape
        deepens = operator != "DEPTH_TO_SPACE1"
        if b < 1 or (h % b or w % b if deepens else c % (b * b)):
            raise ValidationError(
                f"expected a block size that divides {list(x.shape)}, but got {b}")
        shape = ((n, c * b * b, h // b, w // b) if deepens else (n, c // (b * b), h * b, w * b))
        y = builder.new(shape, x.dtype)
        if y.storage is not None:
            builder.emit(operator, {"input_tensor": _seen(x, 4), "output_tensor": _seen(y, 4)},
                         block_size=b, order=_ORDERS[node.attributes.get("mode", "DCR")])
        return [y]

    return build


def reverse_sequence(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, lengths = given(inputs, 0), given(inputs, 1)
    rank = len(x.shape)
    time, batch = (dimension(node.attributes.get(f"{name}_axis", default), rank)
                   for name, default in (("time", 0), ("batch", 1)))
    if lengths.shape != (x.shape[batch],):
        raise ValidationError(f"expected {x.shape[batch]} lengths, but got {list(lengths.shape)}")
    expect(builder, node, lengths, Allowed("lengths", 0, x.shape[time] + 1))
    y = builder.new(x.shape, x.dtype)
    if y.storage is None:
        return [y]
    # Lengths are not negative, so as unsigned numbers they have the same bits.
    lengths = replace(lengths, dtype=np.dtype("uint64")).view(
        [1 if d == time else n for d, n in enumerate(x.shape)],
        [lengths.strides[0] if d == batch else 0 for d in range(rank)])
    seen = _rank(builder, "REVERSE_SUBSEQUENCES", "InputTensor", x)
    builder.emit(
        "REVERSE_SUBSEQUENCES",
        {"input_tensor": _seen(x, seen), "sequence_lengths_tensor": _seen(lengths, seen),
         "output_tensor": _seen(y, seen)}, axis=time + seen - rank)
    return [y]


def constant_of_shape(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    sizes, value = host(inputs, 0), node.attributes.get("value", np.zeros(1, np.float32))
    y = builder.new([] if sizes is None else [whole(n) for n in sizes.reshape(-1)], value.dtype)
    if y.storage is not None:
        kind = np.dtype("uint8") if y.dtype == BOOL else y.dtype
        rank = _rank(builder, "FILL_VALUE_CONSTANT", "OutputTensor", y)
        builder.emit("FILL_VALUE_CONSTANT", {"output_tensor": _seen(y, rank)},
                     value_data_type=device_type(y.dtype),
                     value=scalar(value.reshape(-1)[0].astype(kind)[()], y.dtype))
    return [y]


def range_(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    start, limit, delta = (
        np.zeros((), np.int64)[()] if (x := host(inputs, i)) is None else x.reshape(())[()]
        for i in range(3))
    if not delta:
        raise ValidationError("expected a step other than 0")
    count = whole(-((start - limit) // delta) if any_open((start, limit))
                  else np.ceil((limit - start) / delta))
    y = builder.new((max(count, 0),), given(inputs, 1).dtype)
    if y.storage is not None:
        rank = _rank(builder, "FILL_VALUE_SEQUENCE", "OutputTensor", y)
        builder.emit("FILL_VALUE_SEQUENCE", {"output_tensor": _seen(y, rank)},
                     value_data_type=device_type(y.dtype), value_start=scalar(start, y.dtype),
                     value_delta=scalar(delta, y.dtype))
    return [y]


ROWS: tuple[Mapping, ...] = (
    Mapping("Slice", (1,), "SLICE1", slice_, attributes=("axes", "ends", "starts")),
    Mapping("Slice", (10, 11, 13), "SLICE1", slice_, host=(1, 2, 3, 4)),
    Mapping("Split", (1, 2, 11, 13, 18), "SPLIT", split,
        attributes=("axis", "num_outputs", "split"), host=(1,)),
    Mapping("Concat", (1, 4, 11, 13), "JOIN", concat, attributes=("axis",)),
    Mapping("Pad", (1, 2, 11, 13, 18, 19, 21, 23, 24, 25), "PADDING1", pad,
        attributes=("mode", "pads", "paddings", "value"), host=(1, 2, 3)),
    Mapping("Tile", (1, 6, 13), "TILE", tile, host=(1, 2)),
    Mapping("DepthToSpace", (1, 11, 13, 28), "DEPTH_TO_SPACE1",
        blocks("DEPTH_TO_SPACE1"), attributes=("blocksize", "mode")),
    Mapping("SpaceToDepth", (1, 13, 28), "SPACE_TO_DEPTH1",
        blocks("SPACE_TO_DEPTH1"), attributes=("blocksize", "mode")),
    Mapping("ReverseSequence", (10, 28), "REVERSE_SUBSEQUENCES", reverse_sequence,
        attributes=("batch_axis", "time_axis"), fields=("InputTensor", None)),
    # Filled tensors: large ones, whose sizes and values the host knows
    Mapping("ConstantOfShape", (9, 20, 21, 23, 24, 25), "FILL_VALUE_CONSTANT",
            constant_of_shape, fields=(None,), attributes=("value",), host=(0,)),
    Mapping("Range", (11, 27), "FILL_VALUE_SEQUENCE", range_, fields=(None,),
            host=(0, 1, 2), attributes=("stash_type",)),
    Mapping("CenterCropPad", (18,), "PADDING1", center_crop_pad, attributes=("axes",),
        host=(1,)),
)
