"""Lowers an elementwise operator to dispatches of a shader that includes ``elementwise.glsl``."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..desc import TensorDesc
from ..dtypes import DataType, Scalar, saturate
from ..layout import Ints, coalesce, extent, product
from ..runtime.shader_library import Variant
from .plan import UNUSED, Dispatch, Operand, Target, reads, writes

_LOCAL_SIZE = 256
EXACT_UNITS = ("NVIDIA",)
"""Drivers whose fma rounds once, whose float16 conversions are IEEE's, and whose exp2, log2,
inversesqrt and quotients are good to a few ulp and keep NaN, as the tests confirm."""
_MANY_PARTS = 1 << 16
_MAX_RANK = 5
"""Dimensions that one dispatch walks; each further one (after merging) becomes dispatches."""


def frame(
    target: Target,
    variant: Variant,
    inputs: Sequence[tuple[str | None, TensorDesc] | None],
    result: tuple[str, TensorDesc],
    *,
    push: Mapping[str, int | Sequence[int]] | None = None,
    spec: Mapping[str, int] | None = None,
    more: Sequence[Operand] = (),
    select: tuple[int, int] | None = None,
) -> tuple[Dispatch, ...]:
    """The dispatches of a shader that includes ``elementwise.glsl``.

    ``inputs`` are its operands a, b, c as (field, description), None for one that is absent. An
    operand without a field is no tensor: the shader takes what its strides say as numbers.
    ``result`` is the output in the same form, and ``more`` are bindings of the shader's own.
    ``select`` is (dimension, index) where only that part of the tensors is walked.
    """
    descs = [result[1], *[t[1] for t in inputs if t is not None]]
    whole_sizes, starts = result[1].sizes, [0] * len(descs)
    if select is not None:
        d, i = select
        whole_sizes = (*whole_sizes[:d], 1, *whole_sizes[d + 1 :])
        starts = [i * t.strides[d] for t in descs]
    sizes, walks = coalesce(whole_sizes, *(t.strides for t in descs))
    outer, inner = _split(sizes)
    inner_sizes = tuple(sizes[d] for d in inner)
    steps = [tuple(walk[d] for d in inner) for walk in walks]
    whole = steps[0][-1] == 1
    # EACH of the shader
    walked = zip((result, *[t for t in inputs if t is not None]), steps)
    widths = [t.data_type.itemsize for (field, t), step in walked if field and step[-1] != 0]
    each = max(16 // max(widths), 4 // widths[0]) if whole else 1
    lines = product(inner_sizes[:-1])
    # A line of n elements meets so many parts at most.
    work = lines * ((inner_sizes[-1] + each - 2) // each + 1 if whole else inner_sizes[-1])

    on_cpu = _runs_on_cpu(target)
    kind = result[1].data_type
    paired = whole and not on_cpu and _in_pairs(work, each * sum(widths), lines, kind)
    parts = 2 if paired else 1

    fields: dict[str, int | Sequence[int]] = {"lines": lines, "rank": len(inner), **(push or {})}
    fields["sizes"], fields["out_strides"] = inner_sizes, steps[0]
    constants: dict[str, int] = {
        "LOCAL_SIZE": _LOCAL_SIZE,
        "WHOLE": whole,
        "ON_CPU": on_cpu,
        "EXACT_UNITS": target.adapter.driver in EXACT_UNITS,
        "OUT_TYPE": result[1].data_type.code,
        "PARTS": parts,
        "ONE_LINE": lines == 1,
        **(spec or {}),
    }
    walk_of: list[tuple[str, int, Ints, Ints] | None] = []
    rest = iter(zip(starts[1:], walks[1:], steps[1:]))
    for name, given in zip("abc", inputs):
        constants.setdefault(f"{name.upper()}_TYPE", given[1].data_type.code if given else 0)
        if given is None:
            walk_of.append(None)
            continue
        start, walk, step = next(rest)
        fields[f"{name}_strides"] = step
        walk_of.append((name, start, walk, step))
        if step[-1] in (0, 1):
            which = ("REPEATED", "GAPLESS")[step[-1]]
            constants[which] = constants.get(which, 0) | 1 << "abc".index(name)

    def dispatch(index: Sequence[int]) -> Dispatch:
        def operand(make: Any, slot: tuple[str, TensorDesc], name: str, start: int, walk: Ints,
                    step: Ints) -> Operand:
            skip = start + sum(i * walk[d] for i, d in zip(index, outer))
            made: Operand = make(*slot, f"{name}_offset", skip, extent(inner_sizes, step))
            return made

        operands, numbers = [], {}
        for slot, place in zip(inputs, walk_of):
            if slot is None or place is None:
                operands.append(UNUSED)
            elif slot[0] is None:
                operands.append(UNUSED)
                numbers[f"{place[0]}_offset"] = sum(i * place[2][d] for i, d in zip(index, outer))
            else:
                operands.append(operand(reads, (slot[0], slot[1]), *place))
        made = operand(writes, result, "out", starts[0], walks[0], steps[0])
        return Dispatch(variant, -(-work // (_LOCAL_SIZE * parts)), (*operands, made, *more),
                        {**fields, **numbers}, constants)

    return tuple(map(dispatch, itertools.product(*(range(sizes[d]) for d in outer))))


def _in_pairs(parts: int, moved: int, lines: int, kind: DataType) -> bool:
    """Whether half as many invocations fill a GPU too, and a part is little for one: what it moves,
    or what there is to do besides its arithmetic."""
    return parts >= _MANY_PARTS and (kind is DataType.FLOAT16 or (lines == 1 and moved < 32))


def _runs_on_cpu(target: Target) -> bool:
    return target.adapter.type == "cpu"


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
