"""Convolutions on matrix units whose constant filters lie in the order of registers."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...layout import Ints, product
from ...lowering import measured
from ...lowering.activation import NOTHING
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel
from ...lowering.plan import Operand
from ...runtime.shader_library import shared_bytes, sizes
from ...runtime.traits import DeviceTraits
from . import ends, packing
from .layer import Layer
from .problem import Problem

SHADER, PACK = "convolution_packed_coopmat", "convolution_pack_filter"
_CHUNK, _STRIP, _VECTORS = 32, 64, 4
"""Channels in shared memory, columns that are packed together, and vectors of those channels."""
_MAX_PHASES, _MAX_LOADS, _MOST_LOADS, _OWN_TAPS = 4, 4, 8, 3
"""Limits of the shader: phases of an axis, vectors that an invocation reads for each tap, and where
subgroups share taps, for all, and the taps of a share."""
_BEYOND = _PASS = 2 * 128
"""Vectors behind a packed filter, which are read but not used, and those of a pass."""
_INVOCATIONS = 256


_BANDS, _NARROW, _SPLITS = 8, 16, 16
"""The most bands of columns that are tried, the width of the narrowest ones where subgroups share
taps, and splits of K."""


def careful(traits: DeviceTraits) -> float:
    """How much longer times are taken for that are less sure than those of tiles."""
    return 1 / measured.figure(traits, SHADER, "sure")


@dataclass(frozen=True)
class PackedFilter(Kernel[Layer]):
    """Tiles of rows in bands of columns: a workgroup keeps their pixels for all taps."""

    tile: str
    band: int = 0
    """Positions along x that a tile's rows go through before the next y."""
    pixels: int = 0
    """The most pixels of a tile."""
    splits: int = 1

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.tile}-b{self.band}-{self.splits}" if self.band else self.tile

    @property
    def _sizes(self) -> Mapping[str, int]:
        return sizes(f"{SHADER}.{self.tile}")

    @property
    def rows(self) -> int:
        return self._sizes["rows"]

    @property
    def columns(self) -> int:
        return self._sizes["columns"]

    @property
    def down(self) -> int:
        """Subgroups one below the other."""
        return self._sizes["down"]

    @property
    def across(self) -> int:
        """Subgroups side by side."""
        return self._sizes["across"]

    @property
    def pixels_left(self) -> bool:
        """Whether pixels are left operands, so that the filter is packed for right ones."""
        return self._sizes["pixels_left"] > 0

    @property
    def turns(self) -> int:
        """Column tiles that a workgroup makes, one after the other. Their time is in ``extra``."""
        return self._sizes["turns"]

    @property
    def passes(self) -> bool:
        """Whether the filter's loads of a pass share an address. It begins at a multiple of a pass
        in its buffer."""
        return self._sizes["passes"] > 0

    @property
    def along(self) -> int:
        """Subgroups that share the taps of their sums."""
        return self._sizes["along"]

    @property
    def invocations(self) -> int:
        return 32 * self.down * self.across * self.along

    def shader(self, layer: Layer) -> str:
        return layer.variant(f"{SHADER}.{self.tile}")

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        if (reason := _lacks(layer, traits)) is not None:
            return reason
        c = layer.c
        # All columns of a subgroup belong to one phase.
        if c.phases > 1 and _columns(c) % (self.columns // self.across):
            return "columns of a subgroup belong to several phases"
        if self.turns > 1 and (c.phases == 1 or self.column_tiles(c) % self.turns):
            return "turns gained nothing in forward convolutions, or leave a column tile"
        if self.along > 1 and c.first_taps != _OWN_TAPS * self.along:
            return f"{c.first_taps} taps"
        if c.phases > 1 and self.columns < _STRIP:
            return "several phases"
        return None

    def forms(self, layer: Layer, traits: DeviceTraits) -> Iterable[PackedFilter]:
        """The width of bands that asks for the fewest tiles, then the fewest pixels, with each
        number of splits."""
        c, best, least = layer.c, None, None
        width = c.axes[2].positions
        room = traits.max_shared_memory - shared_bytes(f"{SHADER}.{self.tile}")
        room -= 4 * self.columns * (self.turns - 1)  # their biases
        most, bands = _MAX_LOADS, _BANDS
        if self.along > 1:
            most, bands = _MOST_LOADS, max(bands, -(-width // _NARROW))
        for band in {-(-width // n) for n in range(1, bands + 1)}:
            form = replace(self, band=band, pixels=_pixels(c, self.rows, band))
            if 16 * form.shared + 4 * form.pixels <= room and form.loads(c) <= most:
                asked = form.row_tiles(c), form.pixels
                if least is None or asked < least:
                    best, least = form, asked
        if best is None:
            return ()
        every = _splits(c) if self.turns == 1 else {1} & _splits(c)
        return [replace(best, splits=n) if n > 1 else best for n in every]

    @property
    def shared(self) -> int:
        """Vectors of shared memory."""
        sums = self.rows * self.columns // 4 if self.along > 1 else 0
        return max(2 * (self.pixels + 1) * _VECTORS, sums)

    def row_tiles(self, c: Problem) -> int:
        y, x = c.axes[1:]
        lines = c.batches * -(-x.positions // self.band) * y.positions
        return -(-lines * self.band // self.rows)

    def column_tiles(self, c: Problem) -> int:
        columns = c.out_channels if c.phases == 1 else c.phases * _columns(c)
        return -(-columns // self.columns)

    def loads(self, c: Problem) -> int:
        """Vectors of pixels that an invocation reads for each tap, or for all of its share."""
        every = -(-_VECTORS * self.pixels // self.invocations)
        return every if self.along > 1 else -(-every // c.first_taps)

    def _is_regular(self, c: Problem) -> bool:
        """Whether rows of all tiles lie alike, and a subgroup's eight rows in a line."""
        band, part = self.band, self.rows // self.down
        return not (band % 8 or max(band, part) % min(band, part) or self.rows % band
                    or c.axes[1].positions * band % self.rows)

    def estimate(self, layer: Layer, traits: DeviceTraits) -> float:
        """Microseconds of the core with the most workgroups, and of adding splits. Measured are the
        workgroups that a core runs at a time, what these take for a step of 32 of K, what for
        their beginning and end, and how long the dispatch that adds splits waits for them, where
        that is known; and of all tiles the part of a step that one workgroup of two takes without
        the other."""
        c, known = layer.c, measured.figures(traits.device_class, f"{SHADER}.{self.tile}")
        resident, step, extra = (known[name] for name in ("resident", "step", "extra"))
        groups = self.row_tiles(c) * self.column_tiles(c) * c.groups
        steps = -(-_chunks(c) // self.splits) * c.first_taps * self.turns
        rounds, rest = divmod(groups // self.turns * self.splits, traits.cores * resident)
        time = rounds * (extra + steps * step)
        if rest:
            is_alone = rest <= traits.cores and resident > 1
            time += extra + steps * step * (
                measured.figure(traits, SHADER, "alone") if is_alone else 1.0)
        if self.splits > 1:
            adds = known.get("adds")
            time += (adds or 0.0) + packing.adding(c, self.splits, traits)
            if adds is None:
                return packing.in_two(careful(traits) * time, traits)
        return careful(traits) * time

    def lower(self, layer: Layer, p: PlanBuilder) -> None:
        c, y, bias = layer.c, p.write("output_tensor"), p.tensor("bias_tensor")
        layer_in, x = packing.packed_input(p, c, packing.planned(p, c))
        w = filter_in_order(p, c, self)

        def dispatch(y: Operand, y_strides: Ints, last: bool) -> None:
            self._dispatch(layer, p, layer_in, x, w, y, y_strides, last)

        if self.splits == 1:
            dispatch(y, c.y_strides, True)
        else:
            ends.in_splits(p, c, self.splits, y, dispatch, layer.fused,
                           {"bias_stride": ends.channel_stride(bias, 1)},
                           {"HAS_BIAS": bias is not None, **layer.fused.spec})

    def _dispatch(self, layer: Layer, p: PlanBuilder, c: Problem, x: Operand, w: Operand,
                  y: Operand, y_strides: Ints, last: bool) -> None:
        """Dispatch the packed convolution. ``last``: the output is finished, else the sums of
        splits."""
        fused, axes, bias = layer.fused if last else NOTHING, c.axes[1:], p.tensor("bias_tensor")
        (first_y, reach_y), (first_x, reach_x) = c.reaches
        height, width = (a.positions for a in axes)
        bands, step_x = -(-width // self.band), axes[1].input_step
        taps = [a.phases[0][1] for a in axes]
        phases_at = [sum(at - first << 8 * i for i, (_, _, at) in enumerate(a.phases))
                     for a, first in zip(axes, (first_y, first_x))]
        chunks, row_tiles, column_tiles = _chunks(c), self.row_tiles(c), self.column_tiles(c)
        p.dispatch(
            fused.variant(f"{SHADER}.{self.tile}"),
            row_tiles * column_tiles // self.turns * self.splits * c.groups, x=x, w=w, y=y,
            bias=p.read("bias_tensor"), **(p.read_tail() if last else {}),
            params=fused.words or (0,),
            push={"own_chunks": -(-chunks // self.splits), "chunks": chunks, "groups": c.groups,
                  "batches": c.batches, "in_channels": c.in_channels,
                  "out_channels": c.out_channels,
                  "first": (first_y, first_x), "in_sizes": [a.in_size for a in axes],
                  "x_strides": (c.x_strides[0], *c.x_strides[-2:]),
                  "y_strides": (y_strides[0], *y_strides[-2:]), "phases_at": phases_at,
                  "split_stride": c.split_stride, "bias_stride": layer.bias_stride,
                  "activation_at": 0},
            spec={"HAS_BIAS": last and bias is not None, "UNFINISHED": not last,
                  "PIXELS": self.pixels, "REGULAR": self._is_regular(c), "LOADS": self.loads(c),
                  "BAND_WIDTH": self.band, "POSITIONS_Y": height, "POSITIONS_X": width,
                  "BANDS": bands, "WIDTH": (self.band - 1) * step_x + reach_x, "REACH_Y": reach_y,
                  "STEP_Y": axes[0].input_step, "STEP_X": step_x, "TAPS_Y": taps[0],
                  "TAPS_X": taps[1], "TAP_STEP_Y": axes[0].tap_step,
                  "TAP_STEP_X": axes[1].tap_step, "PHASES_Y": len(axes[0].phases),
                  "PHASES_X": len(axes[1].phases), "PHASE_COLUMNS": _columns(c),
                  "ROW_TILES": row_tiles, "COLUMN_TILES": column_tiles,
                  "SPLITS": self.splits, **({"TURNS": self.turns} if self.turns > 1 else {}),
                  **({"SHARED": self.shared} if self.along > 1 else {}),
                  **fused.spec})


def _lacks(layer: Layer, traits: DeviceTraits) -> str | None:
    """Why no tile can compute a layer."""
    c, axes = layer.c, layer.c.axes[1:]
    if (reason := layer.lacks_order(traits)) is not None:
        return reason
    if not layer.is_flat or c.in_channels < 16:
        return "not two axes, or fewer than 16 input channels"
    if not all(len({n for _, n, _ in a.phases}) == 1 and a.phases[0][1] > 0
               and a.out_size % a.output_step == 0 and len(a.phases) <= _MAX_PHASES
               and max(at for _, _, at in a.phases) - min(at for _, _, at in a.phases) < 256
               for a in axes):
        return "phases differ, or are too many"
    return None


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


@functools.lru_cache(maxsize=256)
def _every_split(chunks: int) -> frozenset[int]:
    return frozenset({-(-chunks // own) for own in range(-(-chunks // _SPLITS), chunks + 1)})


def _splits(c: Problem) -> frozenset[int]:
    """Numbers of splits, none of which is empty."""
    return _every_split(_chunks(c))


def _chunks(c: Problem) -> int:
    return -(-c.in_channels // _CHUNK)


def _columns(c: Problem) -> int:
    """Columns of a phase, filled up to whole strips."""
    return -(-c.out_channels // _STRIP) * _STRIP


def filter_in_order(p: PlanBuilder, c: Problem, tile: PackedFilter | None = None) -> Operand:
    """The packed filter. Without a tile pixels are right operands."""
    passes, pixels_left = tile is not None and tile.passes, tile is not None and tile.pixels_left
    y, x = c.axes[1:]
    strips, chunks = _columns(c) // _STRIP, -(-c.in_channels // _CHUNK)
    taps = [a.phases[0][1] for a in (y, x)]
    count = c.groups * c.phases * strips * chunks * product(taps) * 2 * _STRIP // 16 * 32
    along = 1 if tile is None else tile.along
    packed = p.persistent("filter_tensor", 2, 8 * (count + _BEYOND * along + _PASS * passes))
    firsts = [first * s for a, s in zip((y, x), c.w_strides[-2:]) for first, _, _ in a.phases]
    steps = [a.filter_step * s & 0xFFFFFFFF for a, s in zip((y, x), c.w_strides[-2:])]
    p.dispatch(
        PACK, -(-count // _INVOCATIONS), once=True, filter=p.read("filter_tensor"), packed=packed,
        params=firsts,
        push={"count": count, "phases_y": len(y.phases), "phases_x": len(x.phases),
              "strips": strips, "chunks": chunks, "taps_y": taps[0], "taps_x": taps[1],
              "in_channels": c.in_channels, "out_channels": c.out_channels,
              "strides": (*c.w_strides[:3], *steps)},
        spec={"LOCAL_SIZE": _INVOCATIONS, "PIXELS_LEFT": pixels_left,
              "UNIT": _PASS if passes else 1})
    return packed.reading()


# p2 is better from 22 passes (chunks x taps) a turn on.
KERNELS: tuple[PackedFilter, ...] = tuple(map(PackedFilter, (
    "t96", "t48x256", "t64x256", "t128x256", "t192x64", "t64x256x2", "t64x256p2",
    "t64x32", "t128x32", "t128x64")))
