"""Lowers an elementwise operator to dispatches of a shader that includes ``elementwise.glsl``."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..desc import TensorDesc
from ..dtypes import DataType, Scalar, saturate
from ..layout import (
    Ints,
    begin_with_vectors,
    coalesce,
    extent,
    is_packed,
    memory_order,
    product,
)
from ..runtime.shader_library import Variant
from ..runtime.traits import DeviceTraits
from .builder import PlanBuilder
from .copy import CopyView, copied, in_order_of_output
from .plan import TEMPORARY, UNUSED, reads, writes

if TYPE_CHECKING:
    from ..operators.base import OperatorDesc

_MANY = 1 << 16
"""Invocations that fill a GPU, and elements that are worth a separate dispatch."""
_WORTH_TABLES = 8
"""The least parts per byte of a table of results. Every workgroup fills one, which takes time."""
_SMALL_TABLE = 1 << 12
"""Bytes of a small table. Few larger ones fit a multiprocessor, so more invocations share one."""
_TABLES = {False: (256, 4), True: (1024, 8)}
"""Invocations of a workgroup and the most parts of each, for small (False) and large tables."""
_LOOKING_UP = 1 << 17
"""The least invocations that should share work with tables."""
_MAX_RANK = 5
"""Dimensions that one dispatch walks. Each index of a further dimension takes a dispatch."""
_STRIDED, _ANYWHERE, _ALIGNED, _EVEN = range(4)
"""LAYOUT of the shader."""


@dataclass
class _WalkedOperand:
    """An operand of the shader, and its strides along the walked dimensions."""

    name: str
    slot: str | None
    desc: TensorDesc
    walk: Ints
    start: int = 0


def elementwise_lowering(
    p: PlanBuilder,
    variant: Variant,
    inputs: Sequence[tuple[str | None, TensorDesc] | None],
    result: tuple[str, TensorDesc],
    *,
    push: Mapping[str, int | Sequence[int]] | None = None,
    spec: Mapping[str, int] | None = None,
    more: Mapping[str, Any] | None = None,
    select: tuple[int, int] | None = None,
    first: int = 0,
    guesses: bool = False,
    long: bool = False,
    backwards: bool = False,
    table: Variant | None = None,
) -> None:
    """Add the dispatches of a shader that includes ``elementwise.glsl``.

    ``inputs`` are its operands a, b, c as (slot, description); None for an absent one. An operand
    without a slot is no tensor: the shader computes its elements as numbers from its strides.
    ``result`` is the output in the same form, which begins at element ``first`` of its slot.
    ``more`` are the shader's own bindings. ``select`` is (dimension, index) if only that part of
    the tensors is walked. ``guesses``: the shader may compute a part twice. ``long``: its
    arithmetic takes as long as its memory accesses. ``backwards``: the last parts come first,
    because a cache may hold them. ``table`` is a TABULATED variant, for many bytes on a GPU. Also
    on a GPU, inputs that are contiguous along another dimension than the output are transposed
    first.
    """
    sizes, walked = _walk(p, inputs, result, select)
    walked[0].start += first
    outer, inner = _split(sizes)
    *row_sizes, size = (sizes[d] for d in inner)
    tensors = [w for w in walked if w.slot]
    layout, each = _layout(sizes, inner[-1], tensors)
    rows = product(row_sizes)
    # An unaligned row has at most one part more.
    per_row = -(-size // each) + (layout == _ANYWHERE)
    moving = [w for w in tensors if w.walk[inner[-1]]]
    one_row = layout >= _ALIGNED and rows == 1

    traits = p.device
    local_size, parts, times = traits.local_size, 1, 1
    if table and one_row and len(moving) == len(tensors) and _is_worth(table, per_row, traits):
        variant = table
        wanted, most = _TABLES[table.shared_bytes > _SMALL_TABLE]
        local_size = min(wanted, traits.max_invocations)
        times = max(min(most, per_row // _LOOKING_UP), 1)
    elif traits.is_cpu:
        # CPU drivers unroll neither long loops nor loops around the one that computes a part again.
        parts += one_row and per_row >= _MANY and not guesses
    else:
        moved = each * sum(w.desc.data_type.itemsize for w in moving)
        parts += layout != _STRIDED and _in_pairs(
            rows * per_row, moved, result[1].data_type, long)
    span = local_size * parts
    groups, groups_by_row = -(-rows * per_row // span), rows * -(-per_row // span)
    by_row = 16 * groups_by_row <= 17 * groups
    groups = -(-(groups_by_row if by_row else groups) // times)

    steps = {w.name: tuple(w.walk[d] for d in inner) for w in walked}
    fields: dict[str, int | Sequence[int]] = {
        "rows": rows, "sizes": (*row_sizes, size), **(push or {}),
        **{f"{name}_strides": step for name, step in steps.items()},
    }
    constants: dict[str, int] = {
        "LOCAL_SIZE": local_size,
        "LAYOUT": layout,
        "ON_CPU": traits.is_cpu,
        "EXACT_UNITS": traits.exact_units,
        "IEEE_UNITS": traits.ieee_units,
        "PARTS": parts,
        "RANK": len(inner),
        "BY_ROW": by_row,
        "BACKWARDS": backwards,
        **{which: sum((steps[name][-1] == last) << i for i, name in enumerate("abc")
                      if name in steps)
           for last, which in enumerate(("REPEATED", "CONTIGUOUS"))},
        **{f"{w.name.upper()}_TYPE": w.desc.data_type.code for w in walked},
        **(spec or {}),
    }

    for index in itertools.product(*(range(sizes[d]) for d in outer)):
        operands: dict[str, Any] = dict.fromkeys("abc"[: len(inputs)], UNUSED)
        numbers: dict[str, int] = {}
        for w in (*walked[1:], walked[0]):  # in the order of the bindings
            begin = w.start + sum(i * w.walk[d] for i, d in zip(index, outer))
            if w.slot is None:
                numbers[f"{w.name}_offset"] = begin
                continue
            make = reads if w.name in "abc" else writes
            reach = extent((*row_sizes, size), steps[w.name])
            operands[w.name] = make(w.slot, w.desc, f"{w.name}_offset", begin, reach)
        p.dispatch(variant, groups, **operands, **(more or {}),
                   push={**fields, **numbers}, spec=constants)


def _walk(
    p: PlanBuilder, inputs: Sequence[tuple[str | None, TensorDesc] | None],
    result: tuple[str, TensorDesc], select: tuple[int, int] | None,
) -> tuple[Ints, list[_WalkedOperand]]:
    """The walked sizes, and the operands' strides along them. Inputs may be copied first."""
    walked = [_WalkedOperand(name, *slot, slot[1].strides)
              for name, slot in zip(("out", *"abc"), (result, *inputs)) if slot is not None]
    sizes = result[1].sizes
    if select is not None:
        d, i = select
        sizes = (*sizes[:d], 1, *sizes[d + 1 :])
        for w in walked:
            w.start = i * w.walk[d]
    sizes = _in_order_of_output(sizes, walked)
    if select is None and not p.device.is_cpu:
        _transpose(p, sizes, walked)
        sizes = _in_order_of_output(sizes, walked)
    return sizes, walked


def is_transposition(x: TensorDesc, y: TensorDesc, traits: DeviceTraits) -> bool:
    """Whether ``x`` would be copied to the order of ``y``, which has no gaps, and is done then."""
    sizes, steps, packed = in_order_of_output(y.sizes, x.strides, y.strides)
    return (not traits.is_cpu and x.data_type is y.data_type and all(steps)
            and is_packed(sizes, packed) and _is_across(x, sizes, steps))


def _is_across(x: TensorDesc, sizes: Ints, steps: Ints) -> bool:
    """Whether it is contiguous along another dimension than the last one, and not small."""
    return (x.data_type.itemsize in (2, 4) and product(sizes) >= _MANY and steps[-1] > 1
            and 1 in steps)


def _in_order_of_output(sizes: Ints, walked: Sequence[_WalkedOperand]) -> Ints:
    """The fewest dimensions that walk all operands, in the order of the output's memory."""
    order = memory_order(walked[0].walk)
    merged, walks = coalesce(*([v[d] for d in order] for v in (sizes, *(w.walk for w in walked))))
    for w, walk in zip(walked, walks):
        w.walk = walk
    return merged


def _transpose(p: PlanBuilder, sizes: Ints, walked: Sequence[_WalkedOperand]) -> None:
    """Copy inputs that are not contiguous along the output's contiguous dimension."""
    for w in walked[1:]:
        x_sizes = tuple(n if step else 1 for n, step in zip(sizes, w.walk))
        itemsize = w.desc.data_type.itemsize
        if w.slot is None or walked[0].walk[-1] != 1 or not _is_across(w.desc, x_sizes, w.walk):
            continue
        x, y = w.desc.replace(sizes=x_sizes, strides=w.walk), TensorDesc(w.desc.data_type, x_sizes)
        begin = p.temporary(itemsize, y.element_count).offset
        p.add(copied(p, x_sizes, CopyView.whole(w.slot, x),
                     CopyView(TEMPORARY, y, y.strides, begin)))
        w.slot, w.desc, w.start = TEMPORARY, y, begin
        w.walk = tuple(step and packed for step, packed in zip(w.walk, y.strides))


def _layout(sizes: Ints, last: int, tensors: Sequence[_WalkedOperand]) -> tuple[int, int]:
    """LAYOUT and EACH of the shader."""
    if tensors[0].walk[last] != 1:
        return _STRIDED, 1
    moving = [w for w in tensors if w.walk[last]]
    widths = [w.desc.data_type.itemsize for w in moving]
    each = max(16 // max(widths), 4 // widths[0])
    for w, width in zip(moving, widths):
        if (each * width < 4 or not w.desc.is_aligned
                or not begin_with_vectors(each, w.walk, last, w.start)):
            return _ANYWHERE, each
    return _ALIGNED if sizes[last] % each else _EVEN, each


def _is_worth(table: Variant, parts: int, device: DeviceTraits) -> bool:
    """Whether the device is a GPU with shared memory for the table, and there are enough parts."""
    return (not device.is_cpu and table.shared_bytes <= device.max_shared_memory
            and parts >= _WORTH_TABLES * table.shared_bytes)


def _in_pairs(parts: int, moved: int, kind: DataType, long: bool) -> bool:
    """Whether an invocation should compute two parts: if half as many invocations fill the GPU, and
    a part moves few bytes or takes long arithmetic."""
    return parts >= _MANY and (kind is DataType.FLOAT16 or moved < 32 or long)


def _split(sizes: Ints) -> tuple[list[int], list[int]]:
    """The dimensions that the host walks (the shortest), and those that a dispatch walks."""
    by_size = sorted(range(len(sizes)), key=lambda d: sizes[d])
    outer = sorted(by_size[: max(len(sizes) - _MAX_RANK, 0)])
    return outer, [d for d in range(len(sizes)) if d not in outer]


def float_bits(value: float) -> int:
    """A FLOAT as a word for a push field. Beyond its range it is infinite."""
    number = float(value)
    try:
        packed = struct.pack("<f", number)
    except OverflowError:
        packed = struct.pack("<f", math.copysign(math.inf, number))
    return int.from_bytes(packed, "little")


def parameter(value: Scalar | float, data_type: DataType) -> Ints:
    """A FLOAT or SCALAR_UNION attribute as words for a kernel of ``data_type``."""
    scalar = value if isinstance(value, Scalar) else saturate(value, DataType.FLOAT32
                                                              if data_type.is_float else data_type)
    if data_type.is_float:
        return (float_bits(scalar.item()),)
    if data_type.itemsize == 8:
        return scalar.words
    return (scalar.item() & 0xFFFFFFFF,)


def parameters(desc: OperatorDesc, data_type: DataType) -> Ints:
    """All such attributes of ``desc``, in the order of its structure."""
    words: list[int] = []
    for f in desc.operator.spec.fields:
        value = getattr(desc, f.snake)
        if f.type == "SCALAR_UNION":
            value = Scalar.of(value, data_type)
        if f.type in ("FLOAT", "SCALAR_UNION"):
            words += parameter(value, data_type)
    return tuple(words)
