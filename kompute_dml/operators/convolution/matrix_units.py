"""FLOAT16 convolutions on matrix units: channels side by side, in vectors of 8."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...dtypes import DataType
from ...layout import Ints, packed_strides, product
from ...lowering.builder import PlanBuilder
from ...lowering.plan import Operand
from ...lowering.walk import Walk
from .problem import Problem

SHADER, PACK = "convolution_coopmat", "convolution_pack"
_EACH = 8
"""Elements of a vector."""
_PACK_LINES = 32
"""Of a workgroup that packs."""
_INVOCATIONS = 256


class Kernel(NamedTuple):
    name: str
    tile: Ints
    """Rows, columns, and a step of K."""
    per_core: int
    """Workgroups that a multiprocessor holds at once."""


_KERNELS = (Kernel("t128", (128, 128, 64), 2), Kernel("t128x64", (128, 64, 64), 3),
            Kernel("t64", (64, 64, 64), 4))


def kernel_of(p: PlanBuilder, c: Problem) -> Kernel | None:
    """The largest tile of which there is one for each core; None where matrix units are of no use.
    """
    if (p.tensor("input_tensor").data_type is not DataType.FLOAT16
            or not p.device.multiplies(16, 16, 16, "f16", "f32")
            or min(c.out_channels, c.depth) < 16 or c.rows < 16):
        return None
    found = [k for k in _KERNELS if (v := p.library.find(SHADER, k.name)) is not None
             and v.shared_bytes <= p.device.max_shared_memory]
    narrow = [k for k in found if k.tile[1] <= 64]
    for kernel in found if c.out_channels > 64 else narrow:
        if c.tiles(*kernel.tile[:2]) >= p.device.cores:
            return kernel
    return found[-1] if found else None


def packed(p: PlanBuilder, c: Problem) -> tuple[Problem, dict[str, Any]]:
    """The same convolution, of an input and a filter that hold vectors of channels: they do, or are
    brought into that form. Filters that are OWNED_BY_DML are so once."""
    width = -(-c.in_channels // _EACH) * _EACH
    x_sizes = (c.batches, *(a.in_size for a in c.axes), c.groups)
    x_lines = (c.x_strides[0], *c.x_strides[2:], c.in_channels * c.x_strides[1])
    w_sizes = (c.groups, c.out_channels, *(a.filter_size for a in c.axes))
    x, x_steps = _lines(p, "input_tensor", c, x_sizes, x_lines, c.x_strides[1], width)
    w, w_steps = _lines(p, "filter_tensor", c, w_sizes, (*c.w_strides[:2], *c.w_strides[3:]),
                        c.w_strides[2], width)
    return c._replace(
        in_channels=width, x_strides=(x_steps[0], 1, *x_steps[1:4]),
        w_strides=(*w_steps[:2], 1, *w_steps[2:]),
    ), {"x": x, "w": w}


def _lines(p: PlanBuilder, slot: str, c: Problem, sizes: Ints, strides: Ints, channel: int,
           width: int) -> tuple[Operand, Ints]:
    """A tensor as lines of channels: where it lies, and the strides of its ``sizes``."""
    t = p.tensor(slot)
    moving = [s for n, s in zip(sizes, strides) if n > 1]
    if (width == c.in_channels and channel == 1 and t.is_aligned
            and not any(s % _EACH for s in moving)):
        return p.read(slot), strides
    lines, walk = product(sizes), Walk(sizes, strides)
    make = p.persistent if t.owned_by_dml else lambda _, *size: p.temporary(*size)
    y = make(slot, 2, lines * width)
    p.dispatch(
        PACK, -(-lines // _PACK_LINES), x=p.read(slot), y=y, params=walk.words,
        push={"lines": lines, "channels": c.in_channels, "vectors": width // _EACH,
              "channel_stride": channel},
        spec={"LOCAL_SIZE": _INVOCATIONS}, once=t.owned_by_dml)
    return y.reading(), tuple(width * s for s in packed_strides(sizes))


def dispatch(
    p: PlanBuilder, c: Problem, kernel: Kernel, parts: int, y: Operand, y_strides: Ints,
    spec: dict[str, int], push: dict[str, int], more_params: Ints, operands: dict[str, Any],
) -> None:
    words = c.words(y_strides)
    p.dispatch(
        f"{SHADER}.{kernel.name}", c.tiles(*kernel.tile[:2]) * parts, **operands, y=y,
        bias=p.read("bias_tensor"), params=[*words, *more_params],
        push={**c.push(kernel.tile, parts, y_strides), "activation_at": len(words), **push},
        spec={"OUTPUT_ALONG_ROWS": y_strides[1] >= y_strides[-1], "UNFINISHED": not push, **spec})
