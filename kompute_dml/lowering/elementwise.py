"""Lowers an elementwise operator to dispatches of a shader that includes ``elementwise.glsl``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..desc import MINIMUM_ALIGNMENT, TensorDesc
from ..dtypes import DataType, Scalar, saturate
from ..layout import Ints, begin_with_vectors, coalesce, extent, product
from ..runtime.shader_library import Variant
from .copy import View, copied
from .plan import TEMPORARY, UNUSED, Dispatch, Operand, Plan, Target, reads, writes

_MANY = 1 << 16
"""Invocations that fill a GPU, and elements that are worth a dispatch of their own."""
_WORTH_TABLES = 8
"""Parts for each byte of a table of results, where every workgroup makes one."""
_SMALL_TABLE = 1 << 12
"""Bytes; few larger ones fit a multiprocessor, so more invocations share them."""
_TABLES = {False: (256, 4), True: (1024, 8)}
"""Invocations of a workgroup, and parts that each makes at most, by whether tables are large."""
_LOOKING_UP = 1 << 17
"""Invocations that should share such work at least."""
_MAX_RANK = 5
"""Dimensions that one dispatch walks; each further one (after merging) becomes dispatches."""
_STRIDED, _ANYWHERE, _ALIGNED, _EVEN = range(4)
"""LAYOUT of the shader."""


@dataclass
class _Walked:
    """An operand of the shader, and how the dimensions are walked in it."""

    name: str
    field: str | None
    desc: TensorDesc
    walk: Ints
    start: int = 0


def elementwise_lowering(
    target: Target,
    variant: Variant,
    inputs: Sequence[tuple[str | None, TensorDesc] | None],
    result: tuple[str, TensorDesc],
    *,
    push: Mapping[str, int | Sequence[int]] | None = None,
    spec: Mapping[str, int] | None = None,
    more: Sequence[Operand] = (),
    select: tuple[int, int] | None = None,
    first: int = 0,
    guesses: bool = False,
    long: bool = False,
    backwards: bool = False,
    table: Variant | None = None,
) -> Plan:
    """The plan of a shader that includes ``elementwise.glsl``.

    ``inputs`` are its operands a, b, c as (field, description), None for one that is absent. An
    operand without a field is no tensor: the shader takes what its strides say as numbers.
    ``result`` is the output in the same form, and ``more`` are bindings of the shader's own.
    ``select`` is (dimension, index) where only that part of the tensors is walked; ``result``
    begins at element ``first`` of what is bound. ``guesses`` says that the shader may make a part
    twice, ``long`` that its arithmetic takes as long as what it moves, and ``backwards`` that the
    last parts, which may be in a cache, should come first. For a GPU, inputs that lie gapless along
    another dimension than the output are turned into temporary memory before, and many bytes are
    looked up by ``table``, a TABULATED variant.
    """
    sizes, walked, copies, temporary_bytes = _walk(target, inputs, result, select)
    walked[0].start += first
    outer, inner = _split(sizes)
    *line_sizes, size = (sizes[d] for d in inner)
    tensors = [w for w in walked if w.field]
    layout, each = _layout(sizes, inner[-1], tensors)
    lines = product(line_sizes)
    # One that begins anywhere meets so many parts at most.
    per_line = -(-size // each) + (layout == _ANYWHERE)
    moving = [w for w in tensors if w.walk[inner[-1]]]
    one_line = layout >= _ALIGNED and lines == 1

    traits = target.traits
    local_size, parts, times = traits.local_size, 1, 1
    if table and one_line and len(moving) == len(tensors) and _is_worth(table, per_line, target):
        variant = table
        wanted, most = _TABLES[table.shared_bytes > _SMALL_TABLE]
        local_size = min(wanted, traits.max_invocations)
        times = max(min(most, per_line // _LOOKING_UP), 1)
    elif traits.is_cpu:
        # Mesa unrolls no long loop over both, nor one that holds a loop which makes a part anew.
        parts += one_line and per_line >= _MANY and not guesses
    else:
        moved = each * sum(w.desc.data_type.itemsize for w in moving)
        parts += layout != _STRIDED and _in_pairs(
            lines * per_line, moved, result[1].data_type, long)
    span = local_size * parts
    groups, groups_by_line = -(-lines * per_line // span), lines * -(-per_line // span)
    by_line = 16 * groups_by_line <= 17 * groups
    groups = -(-(groups_by_line if by_line else groups) // times)

    steps = {w.name: tuple(w.walk[d] for d in inner) for w in walked}
    fields: dict[str, int | Sequence[int]] = {
        "lines": lines, "sizes": (*line_sizes, size), **(push or {}),
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
        "BY_LINE": by_line,
        "BACKWARDS": backwards,
        **{which: sum((steps[name][-1] == last) << i for i, name in enumerate("abc")
                      if name in steps)
           for last, which in enumerate(("REPEATED", "GAPLESS"))},
        **{f"{w.name.upper()}_TYPE": w.desc.data_type.code for w in walked},
        **(spec or {}),
    }

    def dispatch(index: Sequence[int]) -> Dispatch:
        operands: dict[str, Operand] = {}
        numbers: dict[str, int] = {}
        for w in walked:
            begin = w.start + sum(i * w.walk[d] for i, d in zip(index, outer))
            if w.field is None:
                numbers[f"{w.name}_offset"] = begin
                continue
            make = reads if w.name in "abc" else writes
            reach = extent((*line_sizes, size), steps[w.name])
            operands[w.name] = make(w.field, w.desc, f"{w.name}_offset", begin, reach)
        slots = [operands.get(name, UNUSED) for name in "abc"[: len(inputs)]]
        return Dispatch(variant, groups, (*slots, operands["out"], *more),
                        {**fields, **numbers}, constants)

    dispatches = map(dispatch, itertools.product(*(range(sizes[d]) for d in outer)))
    return Plan((*copies, *dispatches), temporary_bytes=temporary_bytes)


def _walk(
    target: Target, inputs: Sequence[tuple[str | None, TensorDesc] | None],
    result: tuple[str, TensorDesc], select: tuple[int, int] | None,
) -> tuple[Ints, list[_Walked], list[Dispatch], int]:
    """The sizes that are walked, the operands in them, the copies made before, and their bytes."""
    walked = [_Walked(name, *slot, slot[1].strides)
              for name, slot in zip(("out", *"abc"), (result, *inputs)) if slot is not None]
    sizes = result[1].sizes
    if select is not None:
        d, i = select
        sizes = (*sizes[:d], 1, *sizes[d + 1 :])
        for w in walked:
            w.start = i * w.walk[d]
    sizes = _in_order_of_output(sizes, walked)
    if select is not None or target.traits.is_cpu:
        return sizes, walked, [], 0
    copies, temporary_bytes = _turn(target, sizes, walked)
    return _in_order_of_output(sizes, walked), walked, copies, temporary_bytes


def _in_order_of_output(sizes: Ints, walked: Sequence[_Walked]) -> Ints:
    """The fewest sizes that all operands walk, the output through memory from first to last."""
    order = sorted(range(len(sizes)), key=lambda d: -walked[0].walk[d])
    merged, walks = coalesce(*([v[d] for d in order] for v in (sizes, *(w.walk for w in walked))))
    for w, walk in zip(walked, walks):
        w.walk = walk
    return merged


def _turn(target: Target, sizes: Ints, walked: Sequence[_Walked]) -> tuple[list[Dispatch], int]:
    """Copies of the inputs that are not gapless where the output is, and the bytes they take."""
    copies: list[Dispatch] = []
    nbytes = 0
    for w in walked[1:]:
        x_sizes = tuple(n if step else 1 for n, step in zip(sizes, w.walk))
        itemsize = w.desc.data_type.itemsize
        if (
            w.field is None or itemsize not in (2, 4) or product(x_sizes) < _MANY
            or walked[0].walk[-1] != 1 or w.walk[-1] < 2 or 1 not in w.walk
        ):
            continue
        x, y = w.desc.replace(sizes=x_sizes, strides=w.walk), TensorDesc(w.desc.data_type, x_sizes)
        begin = nbytes // itemsize
        copies.append(copied(target, x_sizes, View.whole(w.field, x),
                             View(TEMPORARY, y, y.strides, begin)))
        w.field, w.desc, w.start = TEMPORARY, y, begin
        w.walk = tuple(step and packed for step, packed in zip(w.walk, y.strides))
        nbytes += -(-y.total_tensor_size_in_bytes // MINIMUM_ALIGNMENT) * MINIMUM_ALIGNMENT
    return copies, nbytes


def _layout(sizes: Ints, last: int, tensors: Sequence[_Walked]) -> tuple[int, int]:
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


def _is_worth(table: Variant, parts: int, target: Target) -> bool:
    """Whether a GPU has memory to share for the table, and enough parts to look up in it."""
    return (not target.traits.is_cpu and table.shared_bytes <= target.traits.max_shared_memory
            and parts >= _WORTH_TABLES * table.shared_bytes)


def _in_pairs(parts: int, moved: int, kind: DataType, long: bool) -> bool:
    """Whether half as many invocations fill a GPU too, and a part is little for one: what it moves,
    or what there is to do besides its arithmetic."""
    return parts >= _MANY and (kind is DataType.FLOAT16 or moved < 32 or long)


def _split(sizes: Ints) -> tuple[list[int], list[int]]:
    """The dimensions left to the host, the shortest ones, and those that a dispatch walks."""
    by_size = sorted(range(len(sizes)), key=lambda d: sizes[d])
    outer = sorted(by_size[: max(len(sizes) - _MAX_RANK, 0)])
    return outer, [d for d in range(len(sizes)) if d not in outer]


def float_bits(value: float) -> int:
    """A FLOAT as the word that a push field takes."""
    with np.errstate(over="ignore"):
        return int(np.float32(value).view(np.uint32))


def parameter(value: Any, data_type: DataType) -> Ints:
    """A FLOAT or SCALAR_UNION attribute as the words that a kernel for ``data_type`` takes."""
    scalar = value if isinstance(value, Scalar) else saturate(value, DataType.FLOAT32
                                                              if data_type.is_float else data_type)
    if data_type.is_float:
        return (float_bits(scalar.item()),)
    if data_type.itemsize == 8:
        return scalar.words
    return (scalar.item() & 0xFFFFFFFF,)


def parameters(desc: Any, data_type: DataType) -> Ints:
    """All such attributes of ``desc``, in the order of its structure."""
    words: list[int] = []
    for f in desc.operator.spec.fields:
        value = getattr(desc, f.snake)
        if f.type == "SCALAR_UNION":
            value = Scalar.of(value, data_type)
        if f.type in ("FLOAT", "SCALAR_UNION"):
            words += parameter(value, data_type)
    return tuple(words)
