"""Convolutions as matrix products in tiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...dtypes import DataType
from ...layout import Ints, packed_strides, product
from ...lowering import measured
from ...lowering.activation import NOTHING, Fused
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel
from ...lowering.plan import TEMPORARY, Operand
from ...runtime.shader_library import sizes
from ...runtime.traits import DeviceTraits
from . import ends, packing
from .layer import Layer
from .problem import Problem

UNITS, LINES, FLOATS = "convolution_coopmat", "convolution_lines", "convolution_floats"
BLOCKS, DOTS, CORE = "convolution_blocks", "convolution_dots", "convolution"
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)


def _multiplications(c: Problem) -> int:
    return c.rows * c.k * c.out_channels * c.groups


@dataclass(frozen=True)
class Tiles(Kernel[Layer]):
    """Tiles of rows and columns, whose K may be shared by several workgroups. Input and filter are
    vectors of channels."""

    axes: str
    """The variant of the shader."""
    splits: int = 1
    """Splits of K, each for a workgroup of its own."""
    file = UNITS
    each = 8
    """Channels of a vector of outputs."""
    scales = True
    """Whether it can scale sums of bytes to floats."""

    @property
    def tile(self) -> Ints:
        """Rows and columns of a tile, and K of a step."""
        known = sizes(f"{self.file}.{self.axes}")
        return known["rows"], known["columns"], known["k"]

    @property
    def finishes(self) -> bool:
        """Whether its shader only knows finished outputs and sums, and no types of them."""
        return self.file == UNITS

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.axes.rpartition('.')[2]}-{self.splits}"

    def shader(self, layer: Layer) -> str:
        return layer.variant(f"{self.file}.{self.axes}")

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        return None if layer.fills_fragments else (
            "fewer than 16 rows, output channels or products of each, or too many taps")

    def forms(self, layer: Layer, traits: DeviceTraits) -> Iterable[Tiles]:
        least = measured.count(traits, CORE, "tile_steps")  # of K in a split
        most = 1 if layer.ends == "sums" else layer.packed.k // (self.tile[2] * least)
        return [form for form in self._in_splits if form.splits == 1 or form.splits <= most]

    @functools.cached_property
    def _in_splits(self) -> list[Tiles]:
        return [replace(self, splits=n) for n in _SPLITS]

    def estimate(self, layer: Layer, traits: DeviceTraits) -> float:
        """Microseconds of the core with the most workgroups, of adding splits, and of packing. Of a
        CPU only the order counts: loads take most of its time.

        Measured are the workgroups that a core runs at a time, its microseconds for a step of one
        workgroup, and the extra steps that the beginning and the end cost. Of all tiles: the part
        of that time that one workgroup takes alone, the bytes of a filter that caches do not hold,
        and how much longer a step takes then."""
        c, (rows, columns, depth) = layer.packed, self.tile
        if traits.is_cpu:
            waste = c.tiles(rows, columns) * rows * columns / (c.rows * c.out_channels * c.groups)
            return self.splits * waste * (1 + 128 / columns + 128 / rows)
        known = measured.figures(traits.device_class, f"{self.file}.{self.axes}")
        step, resident = known["step"], known["resident"]
        every = measured.figures(traits.device_class, CORE)
        if resident == 1 and layer.w.total_tensor_size_in_bytes > every["far"]:
            step *= every["from_far"]  # no other workgroup hides the filter's latency
        cores, groups = traits.cores, c.tiles(rows, columns) * self.splits
        rounds, rest = divmod(groups, cores * resident)
        last = max(-(-rest // cores), every["alone"] * resident) if rest else 0
        steps = math.ceil(math.ceil(c.k / depth) / self.splits) + known["extra"]
        time = (rounds * resident + last) * steps * step
        if self.splits > 1:
            time += packing.adding(c, self.splits, traits)
        return time + layer.packing(traits)

    def lower(self, layer: Layer, p: PlanBuilder) -> None:
        ends.lower(p, layer, self)

    def dispatch(
        self, p: PlanBuilder, c: Problem, y: Operand, y_strides: Ints, spec: Mapping[str, int],
        push: Mapping[str, Any], more: Ints, operands: Mapping[str, Any], fused: Fused = NOTHING,
    ) -> None:
        """Dispatch the tiles of a packed convolution. ``operands`` are input, filter, and those
        after the output."""
        words, tile = c.words(y_strides), self.tile
        x, w, *others = operands.items()
        own = c.push(tile, self.splits, y_strides)
        if self.file == UNITS:
            own["w_strides"] = c.w_strides[:2]
        p.dispatch(
            fused.variant(f"{self.file}.{self.axes}"), c.tiles(*tile[:2]) * self.splits,
            **{**dict([x, w]), "y": y, **dict(others)}, params=[*words, *more],
            push={**own, "activation_at": len(words), **push},
            spec={"OUTPUT_ALONG_ROWS": y_strides[1] >= y_strides[-1], **spec,
                  "PLAIN": packing.is_plain(p, c, y_strides, self.each, y)})


class _ConvolutionOnUnits(Tiles):
    """A step of K is some vectors of 16 bytes."""

    bytes = 2
    """Of an element."""

    @property
    def tile(self) -> Ints:
        known = sizes(f"{self.file}.{self.axes}")
        return known["rows"], known["columns"], known["vectors"] * 16 // self.bytes

    def multiplies(self, traits: DeviceTraits, element: str, total: str) -> bool:
        """Whether the device has matrix units of its shape, and subgroups of its size."""
        known = sizes(f"{self.file}.{self.axes}")
        return traits.multiplies(known["m"], known["n"], known["deep"] // self.bytes, element,
                                 total, known["lanes"])


class _Halves(_ConvolutionOnUnits):
    """FLOAT16 on matrix units."""

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        if layer.type is not DataType.FLOAT16 or not self.multiplies(traits, "f16", "f32"):
            return "no FLOAT16, or no matrix units of its shape for it"
        # Where they multiply empty columns, they still are faster than a core.
        few = layer.c.groups == 1 and layer.fills_rows
        return None if few else super().serves(layer, traits)

    def estimate(self, layer: Layer, traits: DeviceTraits) -> float:
        time = super().estimate(layer, traits)
        return packing.in_two(time, traits) if self.splits > 1 else time


class _Bytes(_ConvolutionOnUnits):
    """Bytes on matrix units."""

    bytes = 1

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        if layer.type.itemsize > 1 or not self.multiplies(traits, "i8", "i32"):
            return "no bytes, or no matrix units of its shape for them"
        return super().serves(layer, traits)


@dataclass(frozen=True)
class _Dots(Tiles):
    """Bytes without matrix units, by products of four at once."""

    file = DOTS
    each = 4
    scales = False

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"dots-{super().name}"

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        if layer.type.itemsize > 1 or layer.has_units(traits):
            return "no bytes, or there are matrix units for them"
        return super().serves(layer, traits)

    def estimate(self, layer: Layer, traits: DeviceTraits) -> float:
        # A CPU computes no four products at once.
        return math.inf if traits.is_cpu else super().estimate(layer, traits)

    def dispatch(
        self, p: PlanBuilder, c: Problem, y: Operand, y_strides: Ints, spec: Mapping[str, int],
        push: Mapping[str, Any], more: Ints, operands: Mapping[str, Any], fused: Fused = NOTHING,
    ) -> None:
        x, w, *others = ((n, o) for n, o in operands.items() if n not in ("tail", "zeroed"))
        own = c.push(self.tile, self.splits, y_strides)
        p.dispatch(
            f"{self.file}.{self.axes}", c.tiles(*self.tile[:2]) * self.splits,
            **{**dict([x, w]), "y": y, **dict(others)}, params=c.words(y_strides),
            push={**own, "w_strides": c.w_strides[:2], **push},
            spec={"OUTPUT_ALONG_ROWS": y_strides[1] >= y_strides[-1], **spec,
                  "PLAIN": packing.is_plain(p, c, y_strides, self.each, y)})


@dataclass(frozen=True)
class _Lines(Tiles):
    """Floats in vectors of four channels."""

    file = LINES
    each = 4
    adds_tails: bool = True
    """Whether it computes tails of outputs that are no vectors, one by one."""

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        if not layer.type.is_float or layer.has_units(traits):
            return "elements are no floats, or FLOAT16 for which there are matrix units"
        return super().serves(layer, traits)

    def forms(self, layer: Layer, traits: DeviceTraits) -> Iterable[Tiles]:
        # Sums go to memory where so many tails are computed one by one.
        least = 1 if self.adds_tails or not layer.has_tail or layer.is_plain(4) else 2
        return [k for k in super().forms(layer, traits) if k.splits >= least]


@dataclass(frozen=True)
class _WideConvolution(_Lines):
    """FLOAT32 in tiles that fill a core, tap by tap. It was faster with several taps; one was not
    timed."""

    file = FLOATS

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        c, (_, *axes) = layer.packed, layer.packed.axes
        if not layer.type is layer.desc.output_tensor.data_type is DataType.FLOAT32:
            return "elements are not FLOAT32"
        if not (layer.is_flat and 1 < c.first_taps <= 32 and c.taps_in_line):
            return "not 2 to 32 taps in line along two axes"
        if any(a.transposed or a.filter_step != 1 for a in axes) or c.in_channels % self.tile[2]:
            return f"it is transposed or mirrored, or channels are no multiple of {self.tile[2]}"
        if not layer.is_plain(4):
            return "the output's channels are no vectors"
        return super().serves(layer, traits)

    def forms(self, layer: Layer, traits: DeviceTraits) -> Iterable[Tiles]:
        return (self,)

    def estimate(self, layer: Layer, traits: DeviceTraits) -> float:
        # No CPU gains from large tiles.
        return math.inf if traits.is_cpu else super().estimate(layer, traits)

    def dispatch(
        self, p: PlanBuilder, c: Problem, y: Operand, y_strides: Ints, spec: Mapping[str, int],
        push: Mapping[str, Any], more: Ints, operands: Mapping[str, Any], fused: Fused = NOTHING,
    ) -> None:
        rows, columns, depth = self.tile
        row_tiles, column_tiles = -(-c.rows // rows), -(-c.out_channels // columns)
        x, w, *others = operands.items()
        own = {name: n for name, n in spec.items() if name not in ("TYPE", "OUTPUT_TYPE")}
        p.dispatch(
            fused.variant(f"{self.file}.{self.axes}"), row_tiles * column_tiles * c.groups,
            **{**dict([x, w]), "y": y, **dict(others)}, params=more or (0,),
            push={"chunks": c.in_channels // depth, "first": [first for first, _ in c.reaches],
                  **c.image_push(4, y_strides), "activation_at": 0, **push},
            spec={**c.image_spec(steps=True), "ROW_TILES": row_tiles, "COLUMN_TILES": column_tiles,
                  **own})


@dataclass(frozen=True)
class _ConvolutionBlocks(Tiles):
    """Floats without shared memory, for drivers on which that is slow."""

    file = BLOCKS

    @property
    def tile(self) -> Ints:
        known = sizes(f"{self.file}.{self.axes}")
        return known["rows"], known["columns"], 4

    is_large: bool = False
    """Whether it is for many multiplications. A CPU compiles large blocks twice as long."""

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        if not layer.type.is_float or not traits.slow_barriers or layer.is_narrow:
            return "for floats, where shared memory is slow, and groups are no single channels"
        if layer.packed.k > 4 * traits.max_loop_passes:
            return f"K is longer than {4 * traits.max_loop_passes}"
        return None

    def forms(self, layer: Layer, traits: DeviceTraits) -> Iterable[Tiles]:
        return (self,)

    def estimate(self, layer: Layer, traits: DeviceTraits) -> float:
        if not traits.is_cpu:
            return layer.packing(traits)  # as fast as what it was compared with: nothing
        large = _multiplications(layer.packed) >= measured.figure(
            traits, CORE, "worth_large_blocks")
        return 0.5 if large == self.is_large else 1

    def dispatch(
        self, p: PlanBuilder, c: Problem, y: Operand, y_strides: Ints, spec: Mapping[str, int],
        push: Mapping[str, Any], more: Ints, operands: Mapping[str, Any], fused: Fused = NOTHING,
    ) -> None:
        words, local_size = c.words(y_strides), 32
        every = {**c.push(self.tile, 1, y_strides), "activation_at": len(words), **push}
        del every["splits"], every["steps"]
        x, w, *others = operands.items()
        p.dispatch(
            fused.variant(f"{self.file}.{self.axes}"),
            -(-c.tiles(*self.tile[:2]) // local_size),
            **{**dict([x, w]), "y": y, **dict(others)}, params=[*words, *more], push=every,
            spec={**spec, "LOCAL_SIZE": local_size, "PADDED": _is_padded(c),
                  "FOURS": _fours(p, c, y, y_strides)})


def _is_padded(c: Problem) -> bool:
    """Whether taps lie outside of the input."""
    return any(
        at < 0 or at + (a.positions - 1) * a.input_step + (n - 1) * a.tap_step >= a.in_size
        for a in c.axes for _, n, at in a.phases)


def _fours(p: PlanBuilder, c: Problem, y: Operand, y_strides: Ints) -> int:
    """What lies side by side in the output, in whole vectors of four: rows (1) or columns (2)."""
    if y.slot != TEMPORARY and not p.tensor("output_tensor").is_aligned:
        return 0
    batch, channel, *steps = y_strides
    if channel == 1:
        return 0 if any(n % 4 for n in (c.out_channels, batch, *steps)) else 2
    sizes = [a.out_size for a in c.axes]
    dense = all(n == 1 or s == packed for n, s, packed in zip(sizes, steps, packed_strides(sizes)))
    whole = not any(n % 4 for n in (product(sizes), batch, channel))
    return 1 if dense and whole and c.phases == 1 else 0


class Core(Kernel[Layer]):
    """Any layout, without copies."""

    name = "core"

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        return "groups have few channels" if layer.is_narrow and layer.ends == "float" else None

    def estimate(self, layer: Layer, traits: DeviceTraits) -> float:
        """Microseconds, by the million operations of a core in one. Of a CPU only the order
        counts."""
        c = layer.packed
        if layer.is_narrow:
            return 1e9  # most columns of its tiles are empty
        if traits.is_cpu:
            worth = "worth_blocks" if traits.slow_barriers else "worth_lines"
            return 0 if _multiplications(c) < measured.figure(traits, CORE, worth) else 1e9
        if layer.fills_fragments and layer.has_units(traits):
            return 1e9  # they would be idle
        tiles = -(-c.tiles(64, 64) // traits.cores)
        speed = measured.figure(traits, CORE, "speed")
        return tiles * 2 * 64 * 64 * c.k / 1e6 / speed

    def lower(self, layer: Layer, p: PlanBuilder) -> None:
        ends.lower(p, layer, None)


HALVES = tuple(_Halves(f"f16.{tile}") for tile in (
    "t128", "t256x64", "t128x160", "t256", "t96", "t128d", "t96d", "t128x64", "t64", "t64s"))
BYTES = tuple(_Bytes(f"i8.{tile}") for tile in (
    "t128x160", "t256", "t96", "t96d", "t128x64", "t64", "t64s", "t64k16", "t64m8n16", "t32m8n8"))
OF_DOTS = (_Dots("t128"), _Dots("t128x64"), _Dots("t64"))
OF_LINES = (_Lines("t128", adds_tails=False), _Lines("t128x64"), _Lines("t64"))
WIDE = (_WideConvolution("t192x128"),)
OF_BLOCKS = (_ConvolutionBlocks("t8"), _ConvolutionBlocks("t16", is_large=True))
