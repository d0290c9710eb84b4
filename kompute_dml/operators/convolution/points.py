"""Convolutions of one tap with small constant filters, which lie in shared memory."""

from __future__ import annotations

from typing import NamedTuple

from ...layout import coalesce
from ...lowering.activation import Fused
from ...lowering.builder import PlanBuilder
from ...tuning import work_key
from . import matrix_units, packed
from .problem import Problem

SHADER = "convolution_points_coopmat"
_FRAGMENT, _CHUNK, _STRIP = 16, 32, 64
"""Pixels of a tile, and channels and columns that are packed together."""
_CHUNKS, _PAIRS = 8, 16
"""The most vectors of an invocation that are on their way of each of two pixels, and the most pairs
of a strip and a chunk in a workgroup: all of them are one piece of code."""
_START, _BYTES, _FROM_L2, _OWN_FROM_L2, _SHARED = 1.0, 2.9e6, 5e6, 63e3, 250e3
"""Microseconds of a dispatch, and bytes in one: of tensors, from the L2 cache for all cores and for
one, and of the filter in shared memory."""
_TAIL = 1.2e6
"""Outputs for which a tail's tensor takes other kernels a microsecond longer than this one."""


class Tile(NamedTuple):
    name: str
    subgroups: int
    """A core runs one workgroup at a time."""


# As measured on an H200.
TILES = (Tile("s12", 12), Tile("s16", 16))


class Choice(NamedTuple):
    tile: Tile
    chunks: int
    strips: int
    """Of a workgroup."""
    column_tiles: int
    row_groups: int
    """Workgroups that share the tiles of a column tile."""

    @property
    def subgroups(self) -> int:
        """Those that share the tiles of a column tile."""
        return self.tile.subgroups * self.row_groups

    def together(self, rows: int) -> int:
        """Tiles of a subgroup that are on their way: as many as leave the fewest for one subgroup.
        More than one of several strips are too many registers."""
        def most(together: int) -> int:
            return -(-rows // (_FRAGMENT * together * self.subgroups)) * together

        ways = range(max(_CHUNKS // self.chunks, 1), 0, -1)
        return 1 if self.strips > 1 else min(ways, key=most)

    def microseconds(self, c: Problem, cores: int) -> float:
        """The estimated time."""
        tiles = -(-c.rows // (_FRAGMENT * self.subgroups)) * self.tile.subgroups  # of a core
        rows = _FRAGMENT * tiles * cores / self.column_tiles
        own_filter = self.chunks * self.strips * 2 * _CHUNK * _STRIP
        return _START + own_filter / _OWN_FROM_L2 + max(
            2 * rows * (c.in_channels + c.out_channels) / _BYTES, tiles * own_filter / _SHARED,
            2 * rows * (c.in_channels * self.column_tiles + c.out_channels) / _FROM_L2)


def chosen(p: PlanBuilder, c: Problem) -> Choice | None:
    """What the device can run, or None."""
    w, (z, *axes) = p.tensor("filter_tensor"), c.axes
    chunks, strips = -(-c.in_channels // _CHUNK), -(-c.out_channels // _STRIP)
    if not (w.owned_by_dml and p.device.fragments_alike and matrix_units.takes_halves(p)
            and c.groups == 1 and c.in_channels >= _FRAGMENT and chunks <= _CHUNKS
            and z.in_size * z.out_size == 1
            and not any(a.transposed or a.filter_size > 1 for a in c.axes)
            and all(a.phases[0][2] == 0 and (a.out_size - 1) * a.input_step < a.in_size
                    for a in axes)
            and matrix_units.is_plain(p, c, p.write("output_tensor"), c.y_strides)):
        return None
    room = p.device.max_shared_memory // (16 * (256 * chunks + _STRIP // 4))
    column_tiles = -(-strips // max(min(room, _PAIRS // chunks), 1))
    own = -(-strips // column_tiles)
    tile = TILES[1 if own > 1 else 0]
    if not room or column_tiles > p.device.cores or p.library.find(SHADER, tile.name) is None:
        return None
    row_groups = min(p.device.cores // column_tiles, -(-c.rows // (_FRAGMENT * tile.subgroups)))
    return Choice(tile, chunks, own, column_tiles, row_groups)


def lower(p: PlanBuilder, c: Problem, fused: Fused) -> bool:
    """Lower the convolution if the kernel presumably is the fastest. Returns whether it is."""
    choice = chosen(p, c)
    if choice is None:
        return False
    others = packed.microseconds(p, c)
    if fused.has_tensor:
        others += c.rows * c.out_channels / _TAIL
    wins = choice.microseconds(c, p.device.cores) < others
    kind = "points with a tail" if fused.has_tensor else "points"
    work = work_key(kind, c.rows, c.in_channels, c.out_channels)
    if p.choose(work, ["points", "other"] if wins else ["other", "points"]) == "other":
        return False
    dispatch(p, c, choice, fused)
    return True


def dispatch(p: PlanBuilder, c: Problem, choice: Choice, fused: Fused) -> None:
    """Dispatch the kernel."""
    made, x = matrix_units.packed_input(p, c, matrix_units.planned(p, c))
    axes = c.axes[1:]
    steps = [a.input_step for a in axes]
    x_strides = (made.x_strides[0], *(s * n for s, n in zip(made.x_strides[-2:], steps)))
    y_strides = (c.y_strides[0], *c.y_strides[-2:])
    sizes = (c.batches, *(a.out_size for a in axes))
    _, lines = coalesce(sizes, x_strides, y_strides)
    if all(len(each) == 1 for each in lines):  # pixels in one line
        sizes, x_strides, y_strides = (c.rows, 1, 1), (lines[0][0], 0, 0), (lines[1][0], 0, 0)
    bias = p.tensor("bias_tensor")
    p.dispatch(
        fused.variant(f"{SHADER}.{choice.tile.name}"), choice.row_groups * choice.column_tiles,
        x=x, w=packed.filter_in_order(p, c), y=p.write("output_tensor"),
        bias=p.read("bias_tensor"), **p.read_tail(), params=fused.words or (0,),
        push={"rows": c.rows, "out_channels": c.out_channels, "x_strides": x_strides,
              "y_strides": y_strides,
              "bias_stride": bias.strides[1] if bias is not None and c.out_channels > 1 else 0,
              "activation_at": 0},
        spec={"HAS_BIAS": bias is not None, "CHUNKS": choice.chunks, "STRIPS": choice.strips,
              "TOGETHER": choice.together(c.rows), "CHANNELS": made.in_channels,
              "SIZE_Y": sizes[1], "SIZE_X": sizes[2], "COLUMN_TILES": choice.column_tiles,
              **fused.spec})
