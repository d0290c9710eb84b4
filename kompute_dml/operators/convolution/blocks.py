"""Convolutions of floats without shared memory, for drivers on which that is slow."""

from __future__ import annotations

from typing import Any

from ...layout import Ints, packed_strides, product
from ...lowering.builder import PlanBuilder
from ...lowering.plan import TEMPORARY, Operand
from .problem import Problem

SHADER = "convolution_blocks"
TILES = {"t8": (8, 8, 4), "t16": (16, 16, 4)}
"""Rows and columns of an invocation's block, and a step of K."""
MAX_K = 4 * 65_000
"""lavapipe silently ends loops after 65,535 passes in all."""
_INVOCATIONS = 32
_ROWS, _COLUMNS = 1, 2


def dispatch(
    p: PlanBuilder, c: Problem, variant: str, tile: Ints, y: Operand, y_strides: Ints,
    spec: dict[str, int], push: dict[str, int], params: Ints, operands: dict[str, Any],
) -> None:
    """``operands``: in the order of the shader's bindings."""
    every = {**c.push(tile, 1, y_strides), **push}
    del every["splits"], every["steps"]
    p.dispatch(
        variant, -(-c.tiles(*tile[:2]) // _INVOCATIONS), **operands, params=params, push=every,
        spec={**spec, "LOCAL_SIZE": _INVOCATIONS, "PADDED": _is_padded(c),
              "FOURS": _fours(p, c, y, y_strides)})


def _is_padded(c: Problem) -> bool:
    """Whether taps lie outside of the input."""
    return any(
        at < 0 or at + (a.positions - 1) * a.input_step + (n - 1) * a.tap_step >= a.in_size
        for a in c.axes for _, n, at in a.phases)


def _fours(p: PlanBuilder, c: Problem, y: Operand, y_strides: Ints) -> int:
    """What lies side by side in the output, in whole vectors of four."""
    if y.slot != TEMPORARY and not p.tensor("output_tensor").is_aligned:
        return 0
    batch, channel, *steps = y_strides
    if channel == 1:
        return 0 if any(n % 4 for n in (c.out_channels, batch, *steps)) else _COLUMNS
    sizes = [a.out_size for a in c.axes]
    dense = all(n == 1 or s == packed for n, s, packed in zip(sizes, steps, packed_strides(sizes)))
    whole = not any(n % 4 for n in (product(sizes), batch, channel))
    return _ROWS if dense and whole and c.phases == 1 else 0
