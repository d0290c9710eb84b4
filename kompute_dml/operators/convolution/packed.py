"""Convolutions on matrix units whose constant filters lie in the order of registers."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, NamedTuple

from ...layout import Ints, extent, product
from ...lowering.activation import Fused
from ...lowering.builder import PlanBuilder
from ...lowering.plan import Operand
from ...tuning import work_key
from . import matrix_units
from .problem import Problem

SHADER, PACK = "convolution_packed_coopmat", "convolution_pack_filter"
_CHUNK, _STRIP, _VECTORS = 32, 64, 4
"""Channels in shared memory, columns that are packed together, and vectors of those channels."""
_MAX_PHASES, _MAX_LOADS = 4, 4
"""Limits of the shader: phases of an axis, and vectors that an invocation reads for each tap."""
_BEYOND = _PASS = 2 * 128
"""Vectors behind a packed filter, which are read but not used, and those of a pass."""
_INVOCATIONS = 256


class Tile(NamedTuple):
    name: str
    down: int
    """Subgroups one below the other, ..."""
    across: int
    """... and side by side."""
    fragments: Ints
    """Rows and columns of fragments of a subgroup."""
    resident: int
    """Workgroups that a core runs at a time."""
    step: float
    """Microseconds that these take for 32 of K, ..."""
    extra: float
    """... and for their beginning and end."""
    pixels_left: bool = False
    """Pixels are left operands, so the filter is packed for right ones."""
    turns: int = 1
    """Column tiles that a workgroup makes, one after the other. Their time is in ``extra``."""
    passes: bool = False
    """The filter's loads of a pass share an address. It begins at a multiple of a pass in its
    buffer."""

    @property
    def rows(self) -> int:
        return 16 * self.down * self.fragments[0]

    @property
    def columns(self) -> int:
        return 16 * self.across * self.fragments[1]

    @property
    def invocations(self) -> int:
        return 32 * self.down * self.across


# As measured on an H200.
TILES = (
    Tile("t96", 2, 2, (3, 4), 2, 0.48, 5), Tile("t48x256", 1, 4, (3, 4), 2, 0.53, 4),
    Tile("t64x256", 1, 4, (4, 4), 2, 0.6, 5, True), Tile("t128x256", 2, 4, (4, 4), 1, 0.57, 7.5),
    Tile("t192x64", 4, 1, (3, 4), 2, 0.7, 5.5), Tile("t64x256x2", 1, 4, (4, 4), 2, 0.6, 8, True, 2),
    # Better from 22 passes (chunks x taps) a turn on.
    Tile("t64x256p2", 1, 4, (4, 4), 2, 0.553, 10, True, 2, True))
_ALONE = 0.6
"""The part of ``Tile.step`` that one workgroup of two takes without the other."""
_WORTH = 0.93
"""The part of other kernels' estimated time from which on these are taken."""
_BANDS, _SPLITS = 8, 16
"""The most bands of columns that are tried, and splits of K."""


class Choice(NamedTuple):
    tile: Tile
    band: int
    """Positions along x that a tile's rows go through before the next y."""
    pixels: int
    """The most pixels of a tile."""
    splits: int

    @property
    def name(self) -> str:
        return f"{self.tile.name}-b{self.band}-{self.splits}"

    @property
    def shared(self) -> int:
        """Vectors of shared memory."""
        return 2 * (self.pixels + 1) * _VECTORS

    def row_tiles(self, c: Problem) -> int:
        y, x = c.axes[1:]
        lines = c.batches * -(-x.positions // self.band) * y.positions
        return -(-lines * self.band // self.tile.rows)

    def column_tiles(self, c: Problem) -> int:
        return _column_tiles(c, self.tile)


def _pixels(c: Problem, rows: int, band: int) -> int:
    """The most pixels of ``rows`` successive positions in bands of so many columns."""
    (_, reach_y), (_, reach_x) = c.reaches
    y, x = c.axes[1:]
    image = y.positions * band
    lines = (band - math.gcd(rows, band) + rows - 1) // band + 1
    if rows % image == 0 or image % rows == 0:
        more = max(rows // image - 1, 0)
    else:
        more = (y.positions - 1 + lines - 1) // y.positions
    down = (lines - 1) * y.input_step + reach_y + more * max(reach_y - y.input_step, 0)
    return down * ((band - 1) * x.input_step + reach_x)


def _serves(p: PlanBuilder, c: Problem) -> bool:
    """Whether the kernel can compute the convolution."""
    w, z, axes = p.tensor("filter_tensor"), c.axes[0], c.axes[1:]
    return (
        bool(w.owned_by_dml) and p.device.fragments_alike and matrix_units.takes_halves(p)
        and z.in_size * z.out_size * z.filter_size == 1 and c.in_channels >= 16
        and all(len({n for _, n, _ in a.phases}) == 1 and a.phases[0][1] > 0
                and a.out_size % a.output_step == 0 and len(a.phases) <= _MAX_PHASES
                and max(at for _, _, at in a.phases) - min(at for _, _, at in a.phases) < 256
                for a in axes)
        and matrix_units.is_plain(p, c, p.write("output_tensor"), c.y_strides)
        and extent(c.output_sizes, c.y_strides) == product(c.output_sizes))


def _choices(p: PlanBuilder, c: Problem) -> list[tuple[float, Choice]]:
    """What the device can run after the estimated times, the presumably fastest first."""
    every = _splits(c)
    found = [each for tile in TILES if (banded := _banded(p, c, tile))
             for each in _timed(p, c, banded, every)]
    found.sort(key=lambda each: each[0])
    return found


def _banded(p: PlanBuilder, c: Problem, tile: Tile) -> Choice | None:
    """The tile with the width of bands that asks for the fewest tiles, then the fewest pixels."""
    variant, width = p.library.find(SHADER, tile.name), c.axes[2].positions
    # All columns of a subgroup belong to one phase.
    if variant is None or (c.phases > 1 and _columns(c) % (tile.columns // tile.across)):
        return None
    if tile.turns > 1 and (c.phases == 1 or _column_tiles(c, tile) % tile.turns):
        return None  # turns gained nothing in forward convolutions with several taps
    best, least, room = None, None, p.device.max_shared_memory - variant.shared_bytes
    room -= 4 * tile.columns * (tile.turns - 1)  # their biases
    for band in {-(-width // bands) for bands in range(1, _BANDS + 1)}:
        choice = Choice(tile, band, _pixels(c, tile.rows, band), 1)
        if 16 * choice.shared + 4 * choice.pixels <= room and _loads(choice, c) <= _MAX_LOADS:
            asked = choice.row_tiles(c), choice.pixels
            if least is None or asked < least:
                best, least = choice, asked
    return best


def _splits(c: Problem) -> set[int]:
    """Numbers of splits, none of which is empty."""
    chunks = -(-c.in_channels // _CHUNK)
    return {-(-chunks // own) for own in range(-(-chunks // _SPLITS), chunks + 1)}


def _columns(c: Problem) -> int:
    """Columns of a phase, filled up to whole strips."""
    return -(-c.out_channels // _STRIP) * _STRIP


def _column_tiles(c: Problem, tile: Tile) -> int:
    return -(-c.phases * _columns(c) // tile.columns)


def _timed(
    p: PlanBuilder, c: Problem, of: Choice, every: Collection[int]
) -> list[tuple[float, Choice]]:
    """The choice with each number of splits after the estimated microseconds: of the core with the
    most workgroups, and of adding splits."""
    tile, cores = of.tile, p.device.cores
    groups, chunks = of.row_tiles(c) * of.column_tiles(c) * c.groups, -(-c.in_channels // _CHUNK)
    found = []
    for splits in every if tile.turns == 1 else {1} & {*every}:
        steps = -(-chunks // splits) * c.first_taps * tile.turns
        rounds, rest = divmod(groups // tile.turns * splits, cores * tile.resident)
        time = rounds * (tile.extra + steps * tile.step)
        if rest:
            alone = _ALONE if rest <= cores and tile.resident > 1 else 1.0
            time += tile.extra + alone * steps * tile.step
        if splits > 1:
            time += matrix_units.adding(c, splits)
        found.append((time, Choice(tile, of.band, of.pixels, splits)))
    return found


def _regular(choice: Choice, c: Problem) -> bool:
    """Whether rows of all tiles lie alike, and a subgroup's eight rows in a line."""
    band, part = choice.band, choice.tile.rows // choice.tile.down
    return not (band % 8 or max(band, part) % min(band, part) or choice.tile.rows % band
                or c.axes[1].positions * band % choice.tile.rows)


def _loads(choice: Choice, c: Problem) -> int:
    """Vectors of pixels that an invocation reads for each tap."""
    every = -(-_VECTORS * choice.pixels // choice.tile.invocations)
    return -(-every // c.first_taps)


def chosen(p: PlanBuilder, c: Problem) -> Choice | None:
    """The tile, or None if another kernel should compute the convolution."""
    if not _serves(p, c):
        return None
    timed = _choices(p, c)
    if not timed:
        return None
    worth = _WORTH * matrix_units.estimate(p, matrix_units.planned(p, c).problem)
    able = [choice for _, choice in timed]
    found = [*able, None] if timed[0][0] < worth else [None, *able]
    work = work_key("packed convolution", c.rows, c.in_channels, c.k, c.out_channels, c.groups)
    return p.choose(work, found, lambda choice: "other" if choice is None else choice.name)


def microseconds(p: PlanBuilder, c: Problem) -> float:
    """The estimated time of this kernel, or of others if they are faster."""
    able = _choices(p, c) if _serves(p, c) else []
    others = matrix_units.estimate(p, matrix_units.planned(p, c).problem)
    return min([others, *(time for time, _ in able[:1])])


def outdoes_kept(c: Problem, fused: Fused) -> bool:
    """Whether this is faster than a kernel that keeps the filter in registers, if both can."""
    return (c.out_channels == _STRIP and not fused.has_tensor
            and any(a.filter_size > 1 for a in c.axes))


def operands(p: PlanBuilder, c: Problem, tile: Tile) -> tuple[Problem, dict[str, Any]]:
    """The convolution of packed tensors, and these."""
    made, x = matrix_units.packed_input(p, c, matrix_units.planned(p, c))
    return made, {"x": x, "w": filter_in_order(p, c, tile)}


def filter_in_order(p: PlanBuilder, c: Problem, tile: Tile | None = None) -> Operand:
    """The packed filter. Without a tile pixels are right operands."""
    passes, pixels_left = tile is not None and tile.passes, tile is not None and tile.pixels_left
    y, x = c.axes[1:]
    strips, chunks = _columns(c) // _STRIP, -(-c.in_channels // _CHUNK)
    taps = [a.phases[0][1] for a in (y, x)]
    count = c.groups * c.phases * strips * chunks * product(taps) * 2 * _STRIP // 16 * 32
    made = p.persistent("filter_tensor", 2, 8 * (count + _BEYOND + _PASS * passes))
    firsts = [first * s for a, s in zip((y, x), c.w_strides[-2:]) for first, _, _ in a.phases]
    steps = [a.filter_step * s & 0xFFFFFFFF for a, s in zip((y, x), c.w_strides[-2:])]
    p.dispatch(
        PACK, -(-count // _INVOCATIONS), once=True, filter=p.read("filter_tensor"), packed=made,
        params=firsts,
        push={"count": count, "phases_y": len(y.phases), "phases_x": len(x.phases),
              "strips": strips, "chunks": chunks, "taps_y": taps[0], "taps_x": taps[1],
              "in_channels": c.in_channels, "out_channels": c.out_channels,
              "strides": (*c.w_strides[:3], *steps)},
        spec={"LOCAL_SIZE": _INVOCATIONS, "PIXELS_LEFT": pixels_left,
              "UNIT": _PASS if passes else 1})
    return made.reading()


def dispatch(p: PlanBuilder, c: Problem, choice: Choice, y: Operand, y_strides: Ints, last: bool,
             bound: dict[str, Any], fused: Fused, more: dict[str, Any]) -> None:
    """Dispatch the kernel. ``last``: the output is finished, else the sums of splits. ``more``:
    operands of the tail."""
    tile, axes, bias = choice.tile, c.axes[1:], p.tensor("bias_tensor")
    (first_y, reach_y), (first_x, reach_x) = c.reaches
    height, width = (a.positions for a in axes)
    bands, step_x = -(-width // choice.band), axes[1].input_step
    taps = [a.phases[0][1] for a in axes]
    phases_at = [sum(at - first << 8 * i for i, (_, _, at) in enumerate(a.phases))
                 for a, first in zip(axes, (first_y, first_x))]
    chunks = -(-c.in_channels // _CHUNK)
    row_tiles, column_tiles = choice.row_tiles(c), choice.column_tiles(c)
    p.dispatch(
        fused.variant(f"{SHADER}.{tile.name}"),
        row_tiles * column_tiles // tile.turns * choice.splits * c.groups, **bound, y=y,
        bias=p.read("bias_tensor"), **more, params=fused.words or (0,),
        push={"own_chunks": -(-chunks // choice.splits), "chunks": chunks, "groups": c.groups,
              "batches": c.batches, "in_channels": c.in_channels, "out_channels": c.out_channels,
              "first": (first_y, first_x), "in_sizes": [a.in_size for a in axes],
              "x_strides": (c.x_strides[0], *c.x_strides[-2:]),
              "y_strides": (y_strides[0], *y_strides[-2:]), "phases_at": phases_at,
              "split_stride": c.split_stride,
              "bias_stride": bias.strides[1] if bias is not None and bias.sizes[1] > 1 else 0,
              "activation_at": 0},
        spec={"HAS_BIAS": last and bias is not None, "UNFINISHED": not last,
              "PIXELS": choice.pixels, "REGULAR": _regular(choice, c), "LOADS": _loads(choice, c),
              "BAND_WIDTH": choice.band, "POSITIONS_Y": height, "POSITIONS_X": width,
              "BANDS": bands, "WIDTH": (choice.band - 1) * step_x + reach_x, "REACH_Y": reach_y,
              "STEP_Y": axes[0].input_step, "STEP_X": step_x, "TAPS_Y": taps[0],
              "TAPS_X": taps[1], "TAP_STEP_Y": axes[0].tap_step, "TAP_STEP_X": axes[1].tap_step,
              "PHASES_Y": len(axes[0].phases), "PHASES_X": len(axes[1].phases),
              "PHASE_COLUMNS": _columns(c), "ROW_TILES": row_tiles, "COLUMN_TILES": column_tiles,
              "SPLITS": choice.splits, **({"TURNS": tile.turns} if tile.turns > 1 else {}),
              **fused.spec})
