"""The kernels of GEMM's products. A new one is an entry in ``KERNELS``."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ...layout import Ints
from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel
from ...runtime.shader_library import Variant, sizes
from ...runtime.traits import DeviceTraits
from ...sizes import said
from .float_dispatch import PACK, dispatch_product, packed, repacked
from .float_product import FloatLaunch, FloatProduct

_FIRST, _VECTORS, _SECOND, _PACKED, _UNITS, _THIRD, _SHARED, _SLOW = range(0, 800, 100)
"""Estimates are ranks of groups, in the order of what was measured, and below 100 those of a
group's kernels. The kernels of float32 sums count microseconds there."""
_LAST, _MOST_MICROSECONDS = 99.0, 1e7
_PARTS = (2, 3, 4, 6, 8, 12, 16)
SHADERS: tuple[str, ...] = (
    "gemm", "gemm_blocks", "gemm_coopmat", "gemm_direct_coopmat", PACK, "gemm_short",
    "gemm_few_rows", "gemm_few_rows_coopmat", "gemm_blocked_weights",
    "gemm_blocked_weights_coopmat")


class FloatKernel(Kernel[FloatProduct]):
    """A kernel of products."""

    variant: str
    """The variant of the shader."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Of its tile: rows, columns and more."""
        return sizes(self.variant)

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.variant.replace(".", "-")

    def shader(self, g: FloatProduct) -> str:
        return self.variant

    def launch(self, g: FloatProduct, traits: DeviceTraits) -> FloatLaunch:
        """What it runs."""
        raise NotImplementedError

    def takes(self, g: FloatProduct, variant: Variant, traits: DeviceTraits) -> tuple[int, int]:
        invocations, shared = super().takes(g, variant, traits)
        return self.launch(g, traits).spec.get("LOCAL_SIZE", invocations), shared

    def prepared(self, g: FloatProduct, p: PlanBuilder) -> FloatProduct:
        """The product with copies of what it cannot read."""
        return g

    def lower(self, g: FloatProduct, p: PlanBuilder) -> None:
        launch, g = self.launch(g, p.device), self.prepared(g, p)
        steps = [s[0] for s in g.walk.strides] if g.walk.words[0] == 1 else []
        dispatch_product(p, g, launch, more_push={"batch_steps": steps})


def _loops(k: int, traits: DeviceTraits) -> int:
    """The most of K for one workgroup that multiplies ``k`` in each pass of a loop."""
    return k * (traits.max_loop_passes // 2)  # and as many passes to be sure


@dataclass(frozen=True)
class _FloatTile(FloatKernel):
    """A workgroup computes a tile. Several workgroups may share its K."""

    variant: str
    split: bool = False
    parts: int = 0
    """The parts of K in a split; 0: as many as ``busy`` asks for."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return super().name + ("-split" if self.split else "") + (
            str(self.parts) if self.parts else "")

    each = 4

    @property
    def rows(self) -> int:
        return self.sizes["rows"]

    @property
    def columns(self) -> int:
        return self.sizes["columns"]

    @property
    def k(self) -> int:
        return self.sizes["k"]

    def busy(self, traits: DeviceTraits) -> int:
        """The workgroups that a split of K aims at."""
        variant = self.variant.removesuffix(".bfloat16")
        return measured.count(traits, variant, "busy") * traits.cores

    def launch(self, g: FloatProduct, traits: DeviceTraits) -> FloatLaunch:
        busy = self.busy(traits) if self.split and not self.parts else 0
        return FloatLaunch(
            self.variant, self.rows, self.columns, self.k, self.each, _loops(self.k, traits),
            self.parts or 1, busy)

    def forms(self, g: FloatProduct, traits: DeviceTraits) -> Iterable[_FloatTile]:
        """Also with K in parts: as many as keep the device busy."""
        return self._forms(g, traits, (0,))

    def _forms(
        self, g: FloatProduct, traits: DeviceTraits, parts: Ints
    ) -> Iterable[_FloatTile]:
        return (self, *(form for form in (_split(self, n) for n in parts)
                        if form.launch(g, traits).part_k(g) < g.k))

    def _rank_by_size(self, g: FloatProduct, traits: DeviceTraits, is_smallest: bool) -> float:
        """The largest tile that gives each core a workgroup comes first, else the smallest one,
        whose K is split if that makes four parts or more."""
        if is_smallest:
            known = measured.figures(traits.device_class, "gemm_coopmat")
            few = 4 * g.tiles(self.rows, self.columns) < self.busy(traits) and (
                g.k >= known["split_k"])
            return 50.0 - few if self.split else 49.5
        if self.split or not g.fills(self.rows, self.columns, traits.cores):
            return _LAST
        return 1 - self.rows * self.columns / 1e6


@functools.cache
def _split(kernel: _FloatTile, parts: int) -> _FloatTile:
    return replace(kernel, split=True, parts=parts)


# Float32 sums


class _Sums(_FloatTile):
    """Tiles in shared memory."""

    def serves(self, g: FloatProduct, traits: DeviceTraits) -> str | None:
        return "factors are rounded for matrix units" if g.is_rounded else None

    def forms(self, g: FloatProduct, traits: DeviceTraits) -> Iterable[_FloatTile]:
        return self._forms(g, traits, (0,) if traits.is_cpu else _PARTS)

    def launch(self, g: FloatProduct, traits: DeviceTraits) -> FloatLaunch:
        launch = super().launch(g, traits)
        if traits.is_cpu:
            return launch  # measured are GPUs
        return replace(launch, apart=measured.count(traits, "gemm", "apart"))

    def estimate(self, g: FloatProduct, traits: DeviceTraits) -> float:
        if traits.is_cpu:
            return _SHARED + self._rank_by_size(g, traits, self.rows == 32)
        return _SHARED + _LAST * self._microseconds(g, traits) / _MOST_MICROSECONDS

    def _microseconds(self, g: FloatProduct, traits: DeviceTraits) -> float:
        """Of the core with the most workgroups, and of adding up parts. Measured are those of a
        core for one of K, of a tile among several and of one alone, and the tiles that it computes
        at a time."""
        every = measured.figures(traits.device_class, "gemm")
        known = measured.figures(traits.device_class, self.variant)
        step, alone, together = (known[name] for name in ("step", "alone", "together"))
        # Where nothing else reads the same rows:
        slower = every["alone"] if self.columns < self.rows and g.columns <= self.columns else 1.0
        part_k = self.launch(g, traits).part_k(g)
        parts = -(-g.k // part_k)
        rounds, rest = divmod(-(-g.tiles(self.rows, self.columns) * parts // traits.cores),
                              int(together))
        time = part_k * slower * (
            rounds * max(together * step, alone) + (max(rest * step, alone) if rest else 0))
        if parts == 1:
            return time + every["begin"]
        return time + every["split"] + parts * every["sum"] * g.batches * g.rows * g.columns


class _Oblong(_Sums):
    """The same, of other shapes than squares."""

    def serves(self, g: FloatProduct, traits: DeviceTraits) -> str | None:
        return super().serves(g, traits) or ("no CPU gains from it" if traits.is_cpu else None)


@dataclass(frozen=True)
class _GemmBlocks(FloatKernel):
    """An invocation reads all that its block takes, where shared memory is slow."""

    variant: str
    is_large: bool = False

    def serves(self, g: FloatProduct, traits: DeviceTraits) -> str | None:
        if g.is_rounded:
            return "factors are rounded for matrix units"
        return None if traits.slow_barriers else "shared memory is fast"

    def estimate(self, g: FloatProduct, traits: DeviceTraits) -> float:
        known = measured.figures(traits.device_class, "gemm_blocks")
        # The large ones take two to six seconds to compile.
        large = g.multiplications >= known["worth_large"] and min(g.rows, g.columns) > 64
        group = _FIRST if g.multiplications >= known["worth"] else _SLOW
        return group + (large != self.is_large)

    def launch(self, g: FloatProduct, traits: DeviceTraits) -> FloatLaunch:
        rows, columns = self.sizes["rows"], self.sizes["columns"]
        return FloatLaunch(self.variant, rows, columns, 4, 4, _loops(4, traits))


class _LittleCode(_GemmBlocks):
    """The same of little code, where compiling is slow."""

    def serves(self, g: FloatProduct, traits: DeviceTraits) -> str | None:
        if g.is_rounded:
            return "factors are rounded for matrix units"
        return None if traits.slow_compiler else "compiling is fast"

    def estimate(self, g: FloatProduct, traits: DeviceTraits) -> float:
        return _FIRST - 1


@dataclass(frozen=True)
class _FloatSkinny(FloatKernel):
    """Up to eight rows, by vectors of B."""

    axis: str
    """The axis of the vectors, as in :meth:`FloatProduct.vectors`."""
    rows: int
    columns: int
    k: int

    @property
    def variant(self) -> str:  # type: ignore[override]
        return f"gemm_few_rows.{'k' if self.axis == 'k' else 'n'}_contiguous.r{self.rows}"

    @property
    def name(self) -> str:  # type: ignore[override]
        return super().name + "-split"

    def serves(self, g: FloatProduct, traits: DeviceTraits) -> str | None:
        if g.is_rounded:
            return "factors are rounded for matrix units"
        if g.skinny_axis != self.axis:
            return f"it has more than eight rows, or no vectors along {self.axis}"
        return None if self.rows // 2 < g.rows <= self.rows else f"it has {said(g.rows)} rows"

    def estimate(self, g: FloatProduct, traits: DeviceTraits) -> float:
        # Matrix units are as fast as memory for any number of rows, tiles for more than four.
        slow = g.rows > 1 and multiplies(g, traits)
        slow |= g.itemsize == 4 and g.rows > 4 and self.axis == "mn" and not (
            traits.is_cpu or traits.slow_barriers)
        return _SLOW if slow else _VECTORS

    def launch(self, g: FloatProduct, traits: DeviceTraits) -> FloatLaunch:
        busy = measured.count(traits, "gemm_few_rows", "busy") * traits.cores
        return FloatLaunch(self.variant, self.rows, self.columns, self.k,
                           longest=_loops(self.k, traits), busy=busy)


@dataclass(frozen=True)
class _Short(FloatKernel):
    """Up to eight rows of a short K, where nobody waits for the sums of others."""

    variant: str

    def serves(self, g: FloatProduct, traits: DeviceTraits) -> str | None:
        if g.is_rounded:
            return "factors are rounded for matrix units"
        if g.rows > 8 or g.vectors("b", 4) != "mn":
            return "it has more than eight rows, or no vectors along columns"
        return None

    def estimate(self, g: FloatProduct, traits: DeviceTraits) -> float:
        short = g.k <= measured.figure(traits, self.variant, "k")
        fills = self.sizes["columns"] <= 2 * g.columns
        return _FIRST - 1 if short and fills and g.rows == 1 else _SLOW + _LAST

    def launch(self, g: FloatProduct, traits: DeviceTraits) -> FloatLaunch:
        return FloatLaunch(self.variant, 1, self.sizes["columns"], 1)


# FLOAT16 on matrix units


_UNIT = {"m": 16, "n": 16, "depth": 16, "lanes": 32}
"""What most kernels are made for."""


def multiplies(
    g: FloatProduct, traits: DeviceTraits, unit: Mapping[str, int] = _UNIT
) -> bool:
    """Whether matrix units of this shape and size of subgroups multiply it, and make up for copying
    what has no vectors."""
    m, n, depth, lanes = (unit[name] for name in _UNIT)
    if g.itemsize != 2 or not traits.multiplies(m, n, depth, g.element, "f32", lanes):
        return False
    if g.element == "bf16":
        return True
    worth = measured.figure(traits, "gemm_coopmat", "worth")
    if g.is_rounded or traits.slow_barriers:
        return g.is_rounded
    return (g.multiplications >= worth or all(g.vectors(side, 8) for side in "ab")
            or _is_large(g, traits) or _in_pieces(g, traits))


def _is_large(g: FloatProduct, traits: DeviceTraits) -> bool:
    """Whether few rows are multiplied by elements of B straight from memory."""
    return g.b_size >= measured.figure(traits, "gemm_few_rows_coopmat", "worth")


def _in_pieces(g: FloatProduct, traits: DeviceTraits) -> bool:
    """The same where A or B has no vectors of 16 bytes, so that others copy it."""
    worth = measured.figure(traits, "gemm_few_rows_coopmat", "worth_pieces")
    return (fragment_axis(g, traits) != "" and g.b_size >= worth and g.widest("a")[0] == "k"
            and not all(g.vectors(side, 8) for side in "ab"))


class _GemmOnUnits(FloatKernel):
    """A kernel on matrix units that reads vectors of eight elements."""

    def serves(self, g: FloatProduct, traits: DeviceTraits) -> str | None:
        return None if multiplies(g, traits) else "no matrix units, or little to multiply"

    def prepared(self, g: FloatProduct, p: PlanBuilder) -> FloatProduct:
        views = {side: repacked(p, side) for side in "ba" if not g.vectors(side, 8)}
        return g.replaced(g.k, **views) if views else g


@dataclass(frozen=True)
class _Coopmat(_GemmOnUnits, _FloatTile):
    """Tiles in shared memory, for matrix units of any shape."""

    each = 8

    def serves(self, g: FloatProduct, traits: DeviceTraits) -> str | None:
        able = multiplies(g, traits, self.sizes)
        return None if able else "no matrix units of its shape, or little to multiply"

    def estimate(self, g: FloatProduct, traits: DeviceTraits) -> float:
        return _UNITS + self._rank(g, traits)

    def _rank(self, g: FloatProduct, traits: DeviceTraits) -> float:
        return self._rank_by_size(g, traits, False)


class _FloatSmall(_Coopmat):
    """The smallest tile. Sixteen rows have one of their own."""

    def _rank(self, g: FloatProduct, traits: DeviceTraits) -> float:
        if (g.rows <= 16) != (self.rows == 16):
            return _LAST
        return self._rank_by_size(g, traits, True)


class _FloatOnly(_Coopmat):
    """The only tile of a shape."""

    def _rank(self, g: FloatProduct, traits: DeviceTraits) -> float:
        return self._rank_by_size(g, traits, True)


def _shares_k(g: FloatProduct, traits: DeviceTraits) -> bool:
    """Whether K is long, and tiles of 64 are so few that two to eight workgroups share one."""
    known = measured.figures(traits.device_class, "gemm_coopmat")
    return g.rows > 32 and g.k >= known["long_k"] and (
        2 <= traits.cores // g.tiles(64, 64) <= known["most_parts"])


def _is_alone(g: FloatProduct, traits: DeviceTraits) -> bool:
    """Whether most cores have one tile of 64."""
    return g.rows > 32 and 3 * g.tiles(64, 64) >= traits.cores


class _FloatDeep(_Coopmat):
    """A tile whose subgroups divide K, for fewer tiles than cores. No core gets a second workgroup
    of it, which would take as long again."""

    def _rank(self, g: FloatProduct, traits: DeviceTraits) -> float:
        if self.split:
            return 20.0 if _shares_k(g, traits) else _LAST
        return 30.0 if _is_alone(g, traits) else _LAST


class _Flat(_Coopmat):
    """The same of half as many rows."""

    def _rank(self, g: FloatProduct, traits: DeviceTraits) -> float:
        alone = _is_alone(g, traits) and g.tiles(self.rows, self.columns) <= traits.cores
        return 25.0 if alone and not self.split else _LAST


class _PackedB(_GemmOnUnits):
    """B in the order of matrix units. Its tiles pay off even if a tenth of the cores has none."""

    variant = "gemm_coopmat.t64x256p"

    def serves(self, g: FloatProduct, traits: DeviceTraits) -> str | None:
        least = measured.figure(traits, self.variant, "k")
        if g.k < least or not traits.fragments_alike:
            return f"K is below {least}, or nobody knows where elements of fragments lie"
        return super().serves(g, traits)

    def launch(self, g: FloatProduct, traits: DeviceTraits) -> FloatLaunch:
        rows, columns, k = (self.sizes[name] for name in ("rows", "columns", "k"))
        return FloatLaunch(self.variant, rows, columns, k, 8, packed_b=True)

    def estimate(self, g: FloatProduct, traits: DeviceTraits) -> float:
        known = measured.figures(traits.device_class, self.variant)
        launch = self.launch(g, traits)
        fills = g.fills(128, 128, traits.cores) or 10 * launch.tiles(g) >= 9 * traits.cores
        wastes = 10 * launch.area(g) > 11 * g.tiles(128, 128) * 128 * 128
        least = known["constant_rows" if g.views["b"].constant else "variable_rows"]
        return _PACKED if fills and not wastes and g.rows >= least else _UNITS + _LAST

    def prepared(self, g: FloatProduct, p: PlanBuilder) -> FloatProduct:
        k, way = g.k, g.vectors("a", 8)
        views = {"b": packed(p, g.views["b"], g.vectors("b", 8))}
        # A kernel whose K ends inside a slice takes a fifth longer. From so many columns on that
        # makes up for a copy of A.
        if not way or g.columns >= measured.figure(p.device, self.variant, "whole_columns"):
            k = -(-k // self.sizes["k"]) * self.sizes["k"]  # packed B has zeros there
        if not way or k > g.k:
            views["a"] = repacked(p, "a", k - g.k)
        return g.replaced(k, **views)


@dataclass(frozen=True)
class _Direct(_GemmOnUnits):
    """A comes straight from memory."""

    tile: str
    axis: str
    """The axis of B's vectors."""

    @property
    def variant(self) -> str:  # type: ignore[override]
        return f"gemm_direct_coopmat.{self.tile}"

    def serves(self, g: FloatProduct, traits: DeviceTraits) -> str | None:
        if not traits.fragments_alike or g.is_padded:
            return "nobody knows where elements of fragments lie, or rows are padded"
        if (g.vectors("a", 8), g.vectors("b", 8)) != ("k", self.axis):
            return f"A has no vectors along K, or B none along {self.axis}"
        return super().serves(g, traits)

    def along(self, g: FloatProduct, traits: DeviceTraits) -> int:
        """The subgroups that divide K of a part of a tile: the fastest of some."""
        known = measured.figures(traits.device_class, self.variant)
        return int(known["subgroups"])

    def launch(self, g: FloatProduct, traits: DeviceTraits) -> FloatLaunch:
        along = self.along(g, traits)
        ends = g.k % (32 * along if self.sizes["shared"] else 32) != 0
        return FloatLaunch(
            self.variant, self.sizes["rows"], self.sizes["columns"], 32,
            spec={"LOCAL_SIZE": 32 * along * self.sizes["parts"], "ENDS_INSIDE": ends})

    def estimate(self, g: FloatProduct, traits: DeviceTraits) -> float:
        if g.k < measured.figure(traits, "gemm_direct_coopmat", "sliced_k"):
            return _UNITS + _LAST
        return _UNITS + self._rank(g, traits)

    def _rank(self, g: FloatProduct, traits: DeviceTraits) -> float:
        """The large tile is as fast as larger ones of shared memory where each core has a tile."""
        fills = g.fills(64, 64, traits.cores) and (
            10 * self.launch(g, traits).area(g) <= 11 * g.tiles(64, 64) * 64 * 64)
        return 0.99 if fills else _LAST


class _DirectSmall(_Direct):
    """Tiles of 32 for products of few tiles, and of little K."""

    def along(self, g: FloatProduct, traits: DeviceTraits) -> int:
        known = measured.figures(traits.device_class, self.variant)
        if g.k <= measured.figure(traits, "gemm_direct_coopmat", "at_once"):
            return 1
        long = g.k >= measured.figure(traits, "gemm_coopmat", "long_k")
        return int(known["long_subgroups" if long else "subgroups"])

    def estimate(self, g: FloatProduct, traits: DeviceTraits) -> float:
        kind, tiles = traits.device_class, g.tiles(32, 32)
        known, split = (measured.figures(kind, n) for n in ("gemm_direct_coopmat", "gemm_coopmat"))
        if g.rows > 16:
            if g.batches > 1 and g.k <= known["at_once"] and (
                    tiles <= known["at_once_tiles"] * traits.cores):
                return _UNITS
            few = g.k >= split["split_k"] and tiles < traits.cores and not _is_alone(g, traits)
            # Not timed where B comes from memory, or most cores have no tile.
            if ((_shares_k(g, traits) or few) and tiles <= traits.cores <= 2 * tiles
                    and g.k * g.columns < measured.figures(
                        kind, "gemm_few_rows_coopmat")["worth"]):
                return _UNITS + 15
        return _UNITS + _LAST


class _DirectSquare(_Direct):
    """Tiles of 64 for about as many tiles as cores."""

    def along(self, g: FloatProduct, traits: DeviceTraits) -> int:
        known = measured.figures(traits.device_class, self.variant)
        alone = g.tiles(64, 64) <= traits.cores
        return int(known["alone_subgroups" if alone else "subgroups"])

    def _rank(self, g: FloatProduct, traits: DeviceTraits) -> float:
        if self.axis == "k" and (rank := super()._rank(g, traits)) < _LAST:
            return rank
        return 29.0 if _is_alone(g, traits) else _LAST


def height_of_fragments(g: FloatProduct, traits: DeviceTraits) -> int:
    """The rows of a kernel that fills left operands from memory; 0 if this device runs none."""
    height = next((n for n in (1, 8, 16) if n >= g.rows), 0)
    able = g.itemsize == 2 and traits.fragments_alike and (
        traits.multiplies(16, 16 if height > 8 else 8, 16, "f16", "f32"))
    return height if able else 0


def _is_wide(g: FloatProduct, traits: DeviceTraits) -> bool:
    """Whether B has so many columns that fewer subgroups share one."""
    return g.columns * g.batches >= measured.figure(traits, "gemm_few_rows_coopmat", "columns")


def fragment_axis(g: FloatProduct, traits: DeviceTraits) -> str:
    """The vectors of B that a kernel for few rows reads straight from memory: along K, or of eight
    or four columns ("n", "n4"). "" if this device runs none."""
    (way, each), height = g.widest("b"), height_of_fragments(g, traits)
    if not height or not way or g.k < 8 or g.is_padded:
        return ""
    if way == "k":
        return way
    return "n" if _is_wide(g, traits) and height <= 8 and each >= 4 else "n4"


@dataclass(frozen=True)
class _Fragments(FloatKernel):
    """Up to 16 rows, by elements of A and B straight from memory."""

    axis: str
    height: int

    @property
    def variant(self) -> str:  # type: ignore[override]
        return f"gemm_few_rows_coopmat.{self.axis}.r{self.height}"

    @property
    def name(self) -> str:  # type: ignore[override]
        return super().name + "-split"

    def serves(self, g: FloatProduct, traits: DeviceTraits) -> str | None:
        axis = fragment_axis(g, traits)
        if g.is_rounded or not axis or height_of_fragments(g, traits) != self.height:
            return f"it does not have {self.height} rows, or the device no such matrix units"
        if axis != self.axis:
            return f"such a B is read along {axis}"
        return None if multiplies(g, traits) else "there is little to multiply"

    def estimate(self, g: FloatProduct, traits: DeviceTraits) -> float:
        """First where it was measured."""
        if g.rows == 1 and g.skinny_axis:
            return _FIRST if _is_large(g, traits) and g.k % 8 == 0 else _SECOND
        return _FIRST if _is_large(g, traits) or _in_pieces(g, traits) else _THIRD

    def launch(self, g: FloatProduct, traits: DeviceTraits) -> FloatLaunch:
        known = measured.figures(traits.device_class, self.variant)
        each, (a_way, a_each) = g.widest("b")[1], g.widest("a")
        if a_way != "k":  # it is copied
            a_each = math.gcd(g.k, 8)
        # Subgroups along K, steps that each multiplies at a time, and whether it reads the next
        # ones meanwhile: the fastest of some.
        of = "wide_" if _is_wide(g, traits) else ""
        if of and self.axis == "n4" and self.height > 8:
            # A core holds 20 such subgroups at once, or 16 if it reads words.
            strips = -(-g.batches * -(-g.columns // 32) // traits.cores)
            of = "few_" if each >= 4 and strips <= known["few_strips"] else of
        subgroups, steps, ahead = (int(known[of + n]) for n in ("subgroups", "steps", "ahead"))
        fragments = 4 if self.axis == "n" else 2
        spec = {"LOCAL_SIZE": 32 * subgroups, "STEPS": steps, "AHEAD": ahead,
                "ENDS_INSIDE": g.k % (32 * steps) != 0, "ENDS_ODDLY": g.k % 8 != 0,
                "A_EACH": a_each, "B_EACH": min(each, 4) if self.axis == "n4" else each}
        if self.axis == "k":
            spec["FRAGMENTS"] = fragments
        return FloatLaunch(self.variant, self.height, 16 * fragments, 32 * steps * subgroups,
                           busy=traits.cores, spec=spec)

    def prepared(self, g: FloatProduct, p: PlanBuilder) -> FloatProduct:
        if g.widest("a")[0] == "k":
            return g
        return g.replaced(g.k, a=repacked(p, "a", along_k=True))


def _skinny(**shapes: tuple[int, int]) -> Iterator[_FloatSkinny]:
    for axis, (columns, k) in shapes.items():
        yield from (_FloatSkinny(axis, rows, columns, k) for rows in (1, 2, 4, 8))


KERNELS: tuple[FloatKernel, ...] = (
    _LittleCode("gemm_blocks.t32"), _GemmBlocks("gemm_blocks.t64"),
    _GemmBlocks("gemm_blocks.t128", True),
    *_skinny(k=(8, 1024), mn=(128, 32)), _Short("gemm_short.t512"),
    *(_Fragments(axis, rows) for axis, heights in (("k", (1, 8, 16)), ("n", (1, 8)),
                                                   ("n4", (1, 8, 16))) for rows in heights),
    _PackedB(), _DirectSmall("t32k", "k"), _DirectSmall("t32n", "mn"),
    _DirectSquare("t64k", "k"), _DirectSquare("t64s", "mn"), _Direct("t128x64s", "mn"),
    _Coopmat("gemm_coopmat.t128"), _Coopmat("gemm_coopmat.t64"),
    _FloatDeep("gemm_coopmat.t64d"), _Flat("gemm_coopmat.t32x64"),
    _FloatSmall("gemm_coopmat.t32"), _FloatSmall("gemm_coopmat.t16"),
    *(_FloatOnly(f"gemm_coopmat.{tile}") for tile in ("t64m8n16", "t32m8n8", "t16m8n8d8")),
    _Sums("gemm.t128"), _Sums("gemm.t64"), _Sums("gemm.t32"),
    _Oblong("gemm.t128x64"), _Oblong("gemm.t128x64d"), _Oblong("gemm.t32x64"))


OF_BFLOAT16: tuple[FloatKernel, ...] = tuple(
    replace(k, variant=f"{k.variant}.bfloat16") for k in KERNELS if isinstance(k, _Coopmat))
"""Those that multiply BFLOAT16 as it is."""


@functools.cache
def multiplies_bfloat16(traits: DeviceTraits) -> bool:
    """Whether a device has matrix units of BFLOAT16."""
    return any(traits.multiplies(n["m"], n["n"], n["depth"], "bf16", "f32", n["lanes"])
               for n in (kernel.sizes for kernel in OF_BFLOAT16))


def has_units(p: PlanBuilder) -> bool:
    """Whether the device runs tiles on matrix units."""
    variants = (p.library.find(*k.variant.split(".")) for k in KERNELS if isinstance(k, _Coopmat))
    return any(v is not None and v.shared_bytes <= p.device.max_shared_memory
               and math.prod(v.workgroup_size) <= p.device.max_invocations for v in variants)
