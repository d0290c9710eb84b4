"""The kernels of integer products. A new one is an entry in ``KERNELS``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel
from ...runtime.shader_library import Variant, described, sizes
from ...runtime.traits import DeviceTraits
from ...sizes import said
from .integer_dispatch import FINISH, IntegerDispatch
from .product import MAX_K, SHADER, Product
from .repacking import REPACK, SUMS, has_vectors, is_readable

_SKINNY, _UNITS, _PACKED, _IDLE = range(0, 400, 100)
"""Estimates are ranks of groups, in the order of what was measured, and below 100 those of a
group's kernels."""
_LAST = 90.0
SHADERS = (
    *(SHADER + suffix
      for suffix in ("", "_packed", "_few_rows", "_few_rows_subgroups", "_few_rows_coopmat",
                     "_few_rows_transposed", "_coopmat")),
    REPACK, SUMS, FINISH,
)


class IntegerKernel(Kernel[Product]):
    """A shader variant, and the part of the output that one workgroup of it computes."""

    axes: str
    """The variant, joined by hyphens."""
    rows: int
    columns: int
    k: int
    """Repacked rows are padded to a multiple of this; 0 for shaders that take any strides."""
    file = SHADER
    needs_sums = False
    """Whether it needs the sums along K, because it does not compute them."""
    lowers = True
    """Whether it makes unsigned numbers signed. Else both sides are unsigned, need no repacking and
    have no zero points."""
    makes_sums = False
    """Whether separate workgroups compute the sums, each for as many rows as a tile has."""
    splits_k = False
    """Whether several workgroups may split K of a tile."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.file.removeprefix(SHADER).strip('_')}-{self.axes}".strip("-")

    @property
    def variant(self) -> str:
        return f"{self.file}.{self.axes.replace('-', '.')}"

    def shader(self, product: Product) -> str:
        return self.variant

    def serves(self, product: Product, traits: DeviceTraits) -> str | None:
        return "elements are no bytes" if product.a.data_type.itemsize > 1 else None

    def quantizes(self, product: Product) -> bool:
        """Whether it can store quantized sums."""
        variant = described(self.variant)
        return variant is not None and "QUANTIZED" in variant.spec_ids and (
            product.stores_words and product.k <= MAX_K)

    def tiles(self, product: Product) -> int:
        """Workgroups of one dispatch."""
        return product.tiles(self.rows, self.columns)

    def summing(self, product: Product, sides: Iterable[str]) -> int:
        """Workgroups that compute the sums of these sides."""
        return sum(-(-product.row_count(side) // self.rows) for side in sides)

    def parts(
        self, product: Product, k: int, variant: Variant, traits: DeviceTraits
    ) -> int:
        """Workgroups that split K of a tile into parts, equal but for the last one: as many as keep
        the device busy."""
        if not self.splits_k:
            return 1
        _, vectors = variant.spec_ids["PART_VECTORS"]
        pieces = -(-k // (16 * vectors))
        busy = measured.count(traits, self.variant, "busy")
        wanted = max(1, busy // self.tiles(product))
        return -(-pieces // -(-pieces // wanted))

    def lower(self, product: Product, p: PlanBuilder) -> None:
        IntegerDispatch(product, self, p)


@dataclass(frozen=True)
class FixedKernel(IntegerKernel):
    """A kernel whose shader has the sizes of its tile as constants."""

    axes: str
    rows: int
    columns: int
    k: int = 0


@dataclass(frozen=True)
class _OfSizes(IntegerKernel):
    """A kernel whose shader's header has the sizes."""

    axes: str

    @property
    def rows(self) -> int:  # type: ignore[override]
        return sizes(self.variant)["rows"]

    @property
    def columns(self) -> int:  # type: ignore[override]
        return sizes(self.variant)["columns"]


class _AnyBytes(FixedKernel):
    """Any layout of bytes, with packed dot products or without."""

    file = SHADER + "_packed"

    def estimate(self, product: Product, traits: DeviceTraits) -> float:
        return _PACKED + (self.axes == "core")


@dataclass(frozen=True)
class _WideElements(_OfSizes):
    """Elements of two or four bytes."""

    width: str = ""
    k = 0

    def serves(self, product: Product, traits: DeviceTraits) -> str | None:
        width = product.a.data_type.width
        return None if width == self.width else f"elements are {width}"


class _WideFlat(_WideElements):
    def estimate(self, product: Product, traits: DeviceTraits) -> float:
        return float(product.rows > 4 * self.rows)


class _WideSquare(_WideElements):
    cost = 0.5


# Few rows


def _axis_of_few(product: Product) -> str:
    """The axis along which few rows are multiplied by vectors of B: "k", "n", or "" for neither."""
    a, b = product.a, product.b
    if product.k % 16:
        return ""
    if all(t.owned_by_dml or is_readable(product, side, 16) for side, t in (("a", a), ("b", b))):
        return "k"
    if has_vectors(product, "a", 16) and b.strides[-1] == 1 and product.b_is_multiple(4):
        return "n"
    return ""


@dataclass(frozen=True)
class _IntegerSkinny(FixedKernel):
    """Up to eight rows, or up to 128 on matrix units."""

    axis: str = "k"
    file = SHADER + "_few_rows"

    def most(self, product: Product, traits: DeviceTraits) -> int:
        """The most rows that it takes."""
        return self.rows

    def serves(self, product: Product, traits: DeviceTraits) -> str | None:
        if (reason := super().serves(product, traits)) is not None:
            return reason
        if _axis_of_few(product) != self.axis:
            return f"no vectors along {self.axis}"
        most = self.most(product, traits)
        return None if product.rows <= most else f"it has more than {most} rows"


class _DotVectors(_IntegerSkinny):
    """Dot products of vectors. Fewer rows than the kernel has are multiplied by zeros."""

    def estimate(self, product: Product, traits: DeviceTraits) -> float:
        return _SKINNY + 20 + self.rows / 100


@dataclass(frozen=True)
class _Columns(_DotVectors):
    """The same of a B whose columns are contiguous."""

    splits_k = True

    def estimate(self, product: Product, traits: DeviceTraits) -> float:
        counts = self.axes.startswith("n_contiguous64")
        return super().estimate(product, traits) + (0.0 if counts else 1.0)


class _Subgroups(_IntegerSkinny):
    """Subgroups of 32 of their own. They store whole words, and keep no sums for another
    dispatch."""

    file = SHADER + "_few_rows_subgroups"

    def serves(self, product: Product, traits: DeviceTraits) -> str | None:
        if not _multiplies(traits, "i"):
            return "measured only where there are matrix units"
        if product.kinds["HALF"] or product.k > MAX_K:
            return f"outputs are FLOAT16, or K is above {MAX_K}"
        return super().serves(product, traits)

    def estimate(self, product: Product, traits: DeviceTraits) -> float:
        # With four rows a lane reads one vector at a time, so it takes many lanes to keep a device
        # busy.
        columns = measured.figure(traits, self.file, "columns")
        busy = product.rows == 1 or (product.rows > 2 and product.columns >= columns)
        return _SKINNY + (10 if busy else 25) + self.rows / 100


class _SkinnyOnUnits(_IntegerSkinny):
    """Matrix units, which pay off from some rows on."""

    file = SHADER + "_few_rows_coopmat"

    def most(self, product: Product, traits: DeviceTraits) -> int:
        known = measured.figures(traits.device_class, SHADER + "_few_rows_coopmat")
        if self.axis == "k":
            return int(known["few_most" if self._has_few_tiles(product, traits) else "most"])
        wide = product.b_is_multiple(16) and self._is_wide(product, traits)
        return int(known["wide_most" if wide else "columns_most"])

    def serves(self, product: Product, traits: DeviceTraits) -> str | None:
        if not _multiplies(traits, "i"):
            return "no matrix units for bytes"
        return super().serves(product, traits)

    def estimate(self, product: Product, traits: DeviceTraits) -> float:
        few = measured.figure(traits, SHADER + "_few_rows_coopmat", "few_rows")
        return _SKINNY + (10 if product.rows > few else 30) + self._rank(product, traits)

    def _rank(self, product: Product, traits: DeviceTraits) -> float:
        """With one tile per core, tiles get more subgroups. Larger tiles would leave cores idle."""
        more = self.axes == "k_contiguous8"
        return float(self.axis == "k" and more != self._has_few_tiles(product, traits))

    def _has_few_tiles(self, product: Product, traits: DeviceTraits) -> bool:
        few = measured.figure(traits, SHADER + "_few_rows_coopmat", "few_tiles")
        return product.batches * -(-product.columns // 32) < few

    def _is_wide(self, product: Product, traits: DeviceTraits) -> bool:
        """Whether wide tiles pay off. They read faster, but have much to transpose before they
        multiply."""
        known = measured.figures(traits.device_class, SHADER + "_few_rows_transposed")
        return product.k * product.columns >= known["worth"] or (
            max(product.k, product.columns) >= known["side"])


@dataclass(frozen=True)
class _Transposed(_SkinnyOnUnits):
    """Wide tiles of rows of B, which are transposed."""

    splits_k = True
    file = SHADER + "_few_rows_transposed"

    def serves(self, product: Product, traits: DeviceTraits) -> str | None:
        if not product.b_is_multiple(16):
            return "rows of B are not aligned to vectors"
        if (product.rows > 16) != (self.rows > 16):
            return f"it has {said(product.rows)} rows"
        return super().serves(product, traits)

    def _rank(self, product: Product, traits: DeviceTraits) -> float:
        return -1.0 if self._is_wide(product, traits) else 1.0


# Matrix units


_UNIT = {"m": 16, "n": 16, "depth": 32, "lanes": 32}
"""What most kernels are made for."""


def _multiplies(
    traits: DeviceTraits, kind: str, unit: Mapping[str, int] = _UNIT
) -> bool:
    """Whether the device multiplies matrices of signed ("i") or unsigned ("u") bytes in a shape and
    size of subgroups."""
    m, n, depth, lanes = (unit[name] for name in _UNIT)
    return traits.multiplies(m, n, depth, f"{kind}8", f"{kind}32", lanes)


def _is_ready(product: Product, multiple: int) -> bool:
    """Whether A and B need no repacking before each product."""
    return all(product.side(side)[0].owned_by_dml or is_readable(product, side, multiple)
               for side in "ab")


@dataclass(frozen=True)
class _IntegerTile(_OfSizes):
    """Tiles on matrix units. The first that suits a product is the fastest as a rule: the largest
    that keeps all cores busy, or one that takes one wave instead of two."""

    rank: int = 0
    file = SHADER + "_coopmat"

    @property
    def k(self) -> int:  # type: ignore[override]
        known = sizes(self.variant)
        return known["k"] * known["slices"]

    def serves(self, product: Product, traits: DeviceTraits) -> str | None:
        if not _multiplies(traits, "i", sizes(self.variant)):
            return "no matrix units of its shape for bytes"
        return super().serves(product, traits)

    def suits(self, product: Product, traits: DeviceTraits) -> bool:
        """Whether it is fast for a product."""
        raise NotImplementedError

    def figure(self, traits: DeviceTraits, name: str) -> float:
        return measured.figure(traits, self.variant, name)

    def estimate(self, product: Product, traits: DeviceTraits) -> float:
        # Repacking is a separate dispatch: small products take less time without it.
        known = measured.figures(traits.device_class, self.file)
        work = product.outer * product.batches * product.rows * product.columns * product.k
        if not _is_ready(product, 64) and work < known["worth"]:
            return _IDLE + self.rank
        rank = self.rank if self.suits(product, traits) else _LAST
        repacks = not _is_ready(product, self.k) and _is_ready(product, 64) and (
            work < known["repacks"])
        return _UNITS + rank + (_LAST if repacks else 0)


class _Rows16(_IntegerTile):
    def suits(self, product: Product, traits: DeviceTraits) -> bool:
        return product.rows <= 16


class _ManyTiles(_IntegerTile):
    """More tiles of 128 than cores, which compute the sums along K beside."""

    def suits(self, product: Product, traits: DeviceTraits) -> bool:
        return product.rows > 16 and product.tiles(128, 128) > traits.cores

    def summed(self, product: Product) -> list[str]:
        """The sides whose sums are not computed once."""
        return [side for side in "ab" if product.needs_sums(side)
                and not product.side(side)[0].owned_by_dml]

    def gathers(self, product: Product, traits: DeviceTraits) -> bool:
        """Whether a separate dispatch computes the sums. Row sums are computed while a side is
        repacked. A dispatch for the other side pays off from many tiles on."""
        ready = [side for side in self.summed(product) if is_readable(product, side, 128)]
        many = measured.figure(traits, self.file, "gathers")
        return not ready or (len(ready) == 1 and product.tiles(128, 128) >= many)


class _Unsigned(_ManyTiles):
    """Unsigned numbers, not made signed."""

    lowers = False

    def serves(self, product: Product, traits: DeviceTraits) -> str | None:
        if not _multiplies(traits, "u") or any(product.kinds[kind] for kind in (
                "A_SIGNED", "B_SIGNED", "HAS_A_ZERO", "HAS_B_ZERO")):
            return "there are signs or zero points, or no matrix units for unsigned bytes"
        if not all(is_readable(product, side, self.k) for side in "ab"):
            return "A or B must be repacked"
        return super().serves(product, traits)


class _Aside(_ManyTiles):
    """Separate workgroups compute the sums."""

    makes_sums = True

    def serves(self, product: Product, traits: DeviceTraits) -> str | None:
        variant = described(self.variant)
        if variant is not None:  # one word counts the workgroups that compute sums and the others
            _, bit = variant.spec_ids["TILES_BIT"]
            if self.summing(product, "ab") >= 1 << bit or self.tiles(product) >= 1 << 32 - bit:
                return "more workgroups than one word counts"
        return super().serves(product, traits)

    def suits(self, product: Product, traits: DeviceTraits) -> bool:
        """Not if tiles take little time. If sums add a wave, or a dispatch that gathers them is as
        fast, they pay off only with many waves (fewer for FLOAT16 outputs)."""
        known, summed = measured.figures(traits.device_class, self.file), self.summed(product)
        if not summed or product.k < known["aside_k"] or not super().suits(product, traits):
            return False
        gathers = self.gathers(product, traits)
        ready = [side for side in summed if is_readable(product, side, 128)]
        if ready != summed and gathers:
            return False
        places, tiles = 2 * traits.cores, product.tiles(128, 128)
        waves = -(-tiles // places)
        adds_none = -(-(tiles + self.summing(product, summed)) // places) == waves
        many = known["half_waves" if product.kinds["HALF"] else "waves"]
        return waves >= (2 if adds_none and not gathers else many)


class _Gathering(_ManyTiles):
    """A separate dispatch computes the sums."""

    needs_sums = True

    def suits(self, product: Product, traits: DeviceTraits) -> bool:
        return super().suits(product, traits) and self.gathers(product, traits)


class _OneWave(_IntegerTile):
    """Tiles for which each core has a place, and of 64 there are more."""

    def suits(self, product: Product, traits: DeviceTraits) -> bool:
        return (product.tiles(64, 64) > self.figure(traits, "places") * traits.cores
                and self.tiles(product) <= traits.cores and product.k >= self.figure(traits, "k"))


class _TwoWaves(_IntegerTile):
    """The same, for which some have no place."""

    def suits(self, product: Product, traits: DeviceTraits) -> bool:
        return product.tiles(64, 64) > 2 * traits.cores


class _Medium(_IntegerTile):
    def suits(self, product: Product, traits: DeviceTraits) -> bool:
        return product.tiles(64, 64) >= min(self.figure(traits, "tiles"), traits.cores + 1)


class _IntegerDeep(_IntegerTile):
    """Tiles whose subgroups divide much of K, for no more tiles than cores."""

    def suits(self, product: Product, traits: DeviceTraits) -> bool:
        tiles = product.tiles(64, 64)
        return self.figure(traits, "tiles") <= tiles <= traits.cores and (
            product.k >= self.figure(traits, "k"))


class _IntegerSmall(_IntegerTile):
    def suits(self, product: Product, traits: DeviceTraits) -> bool:
        return product.k >= self.figure(traits, "k")


class _IntegerOnly(_IntegerTile):
    """The only tile of a shape."""

    def suits(self, product: Product, traits: DeviceTraits) -> bool:
        return True


KERNELS: tuple[IntegerKernel, ...] = (
    *(kind(f"{width}-{shape}", width) for width in ("b16", "b32")
      for kind, shape in ((_WideFlat, "flat"), (_WideSquare, "square"))),
    *(_DotVectors(f"k_contiguous-r{rows}", rows, columns, 16)
      for rows, columns in ((1, 8), (2, 16), (4, 8), (8, 16))),
    *(_Columns(f"{axis}-r{rows}", rows, 128, axis="n")
      for axis in ("n_contiguous64", "n_contiguous") for rows in (1, 2, 4, 8)),
    _Subgroups("r1", 1, 4, 16), _Subgroups("r4", 4, 16, 16),
    _SkinnyOnUnits("k_contiguous", 16, 32, 16), _SkinnyOnUnits("k_contiguous8", 16, 32, 16),
    _SkinnyOnUnits("n_contiguous", 16, 32, axis="n"),
    _Transposed("r16", 16, 128, axis="n"), _Transposed("r32", 32, 128, axis="n"),
    _Rows16("t16", 0), _Unsigned("t128u", 1), _Aside("t128s", 2), _Gathering("t128w", 3),
    _ManyTiles("t128", 4), _OneWave("t96x128", 5), _TwoWaves("t128d", 6), _OneWave("t48x96", 7),
    _OneWave("t64x96", 8), _IntegerDeep("t64d", 9), _Medium("t64", 10), _IntegerSmall("t32d", 11),
    _IntegerSmall("t32", 12), _IntegerOnly("t64k16", 13), _IntegerOnly("t64m8n16", 14),
    _IntegerOnly("t32m8n8", 15),
    _AnyBytes("dot", 64, 64), _AnyBytes("core", 64, 64))
