"""The kernels of GEMM's products, and which is the fastest for a product."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...layout import Ints, coalesce
from ...lowering.builder import PlanBuilder
from ...lowering.plan import Operand
from ...lowering.walk import Walk
from ...runtime.shader_library import Variant
from ...tuning import work_key

_MAX_K = 1 << 20
"""The longest K of one workgroup: lavapipe silently ends loops after 65,535 passes in all."""
_WORTH_REPACKING = 1 << 24
"""The least multiplications for which copying a matrix without vectors pays off."""
_WORTH_BLOCKS, _WORTH_LARGE_BLOCKS = 1 << 20, 1 << 27
"""The least multiplications for which kernels without shared memory pay off."""
WORTH_FRAGMENTS = 1 << 23
"""The least elements of B for which few rows are multiplied by elements straight from memory."""
_WORTH_PIECES = 1 << 17
"""The same where A or B has no vectors of 16 bytes, so that other kernels copy it, or read single
elements."""
MANY_COLUMNS = 8192
"""The columns from which fewer subgroups share one."""


@dataclass(frozen=True)
class MatrixView:
    """A matrix, or a stack of them, as the product sees it: A is rows x K, B is K x columns."""

    operand: Operand
    strides: Ints
    alignment: int
    """The position of the first element is a multiple of so many bytes."""
    padded: bool = False
    """Whether its rows, or columns, are padded to whole vectors of eight elements."""
    constant: bool = False
    """Whether it is OWNED_BY_DML."""


class FloatProduct:
    """The product that shaders compute: ``batches`` of ``rows`` x ``k`` by ``k`` x ``columns``."""

    def __init__(self, sizes: Ints, k: int, itemsize: int, views: Mapping[str, MatrixView]) -> None:
        *leading, self.rows, self.columns = sizes
        self.k, self.itemsize, self.views = k, itemsize, views
        strides = {name: v.strides for name, v in views.items()}
        heads = [strides[name][:-2] if name in strides else (0,) * len(leading) for name in "abcy"]
        counts = {"a": (self.rows, k), "b": (k, self.columns)}
        self.steps = {
            name: tuple(0 if n == 1 else s for n, s in zip(
                counts.get(name, (self.rows, self.columns)), all_strides[-2:]))
            for name, all_strides in strides.items()}
        if math.prod(leading) > 1 and not any(s for s, n in zip(heads[1], leading) if n > 1):
            # All batches share B. If the rows of a batch follow those of the batch before, the
            # batches are rows of one product.
            row_steps = [(*head, self.steps[name][0] if name in strides else 0)
                         for name, head in zip("acy", (heads[0], heads[2], heads[3]))]
            merged, steps = coalesce((*leading, self.rows), *row_steps)
            if len(merged) == 1:
                (self.rows,), leading, heads = merged, [], [()] * 4
                for name, step in zip("acy", steps):
                    if name in strides:
                        self.steps[name] = (step[0], self.steps[name][1])
        self.walk = Walk(leading or (1,), *(h or (0,) for h in heads))
        self.batches = self.walk.count

    def layout(self, side: str) -> tuple[int, int, int]:
        """A's stride between rows, stride along K, and number of rows. For B, columns instead of
        rows."""
        if side == "a":
            stride, k_stride = self.steps["a"]
            return stride, k_stride, self.rows
        k_stride, stride = self.steps["b"]
        return stride, k_stride, self.columns

    def begins_with_vectors(self, name: str, each: int, stride: int) -> bool:
        """Whether all multiples of ``stride`` are aligned to vectors of ``each`` elements."""
        heads = self.walk.strides["abcy".index(name)] if self.batches > 1 else ()
        return not any(s % each for s in (stride, *heads)) and (
            self.views[name].alignment % (each * self.views[name].operand.itemsize) == 0)

    def vectors(self, side: str, each: int) -> str:
        """The axis of A or B with vectors of ``each`` contiguous elements: "k" for K, "mn" for A's
        rows or B's columns, "" for neither."""
        stride, k_stride, count = self.layout(side)
        padded = self.views[side].padded
        if k_stride == 1 and (padded or self.k % each == 0) and (
                self.begins_with_vectors(side, each, stride)):
            return "k"
        if stride == 1 and (padded or count % each == 0) and (
                self.begins_with_vectors(side, each, k_stride)):
            return "mn"
        return ""

    def widest(self, side: str) -> tuple[str, int]:
        """The axis of A or B with the longest vectors of up to 16 bytes, and their elements; "" if
        no axis is contiguous."""
        each = 16 // self.itemsize
        while each > 1 and not self.vectors(side, each):
            each //= 2
        return self.vectors(side, each), each

    @property
    def work(self) -> str:
        ways = [self.vectors(side, 16 // self.itemsize) or "strided" for side in "ab"]
        if self.views["b"].constant:
            ways.append("constant")
        return work_key(f"gemm f{8 * self.itemsize} {' '.join(ways)}", self.rows, self.k,
                        self.columns, self.batches)


# The kernels


@dataclass(frozen=True)
class FloatKernel:
    """A shader variant, and the part of the output that one workgroup of it makes."""

    shader: str
    rows: int
    columns: int
    k: int
    """A part of K is a multiple of this."""
    busy: float
    """The workgroups for each core that split-K aims at."""
    each: int
    """Elements of A, and of B, in one read."""
    longest: int = _MAX_K
    split: bool = False
    parts: int = 0
    """The parts of K that split-K makes; 0: as many as ``busy`` asks for."""
    spec: tuple[tuple[str, int], ...] = ()
    """Specialization constants that only this kernel has."""
    packed_b: bool = False
    """Whether it reads B in the order of matrix units (gemm_pack.comp)."""
    a_along_k: bool = False
    """Whether it reads A along K. Where A is not contiguous there, it is copied."""

    @property
    def name(self) -> str:
        return self.shader.replace(".", "-") + ("-split" if self.split else "") + (
            str(self.parts) if self.parts else "")

    def tiles(self, g: FloatProduct) -> int:
        return g.batches * -(-g.rows // self.rows) * -(-g.columns // self.columns)

    def area(self, g: FloatProduct) -> int:
        """Elements of all tiles."""
        return self.tiles(g) * self.rows * self.columns

    def part_k(self, g: FloatProduct, cores: int) -> int:
        """K of one workgroup."""
        parts = self.parts or (
            max(1, int(self.busy * cores) // self.tiles(g)) if self.split else 1)
        each = -(-g.k // parts)
        return min(-(-each // self.k) * self.k, self.longest)

    def variant(self, p: PlanBuilder) -> Variant | None:
        """The shader variant, or None if the device cannot run it."""
        found = p.library.find(*self.shader.split("."))
        fits = found is not None and (
            found.shared_bytes <= p.device.max_shared_memory
            and dict(self.spec).get("LOCAL_SIZE", math.prod(found.workgroup_size))
            <= p.device.max_invocations)
        return found if fits else None


_TILES = [
    FloatKernel("gemm.t128", 128, 128, 8, 2, 4), FloatKernel("gemm.t64", 64, 64, 16, 4, 4),
    FloatKernel("gemm.t32", 32, 32, 32, 8, 4),
]
_OBLONG = [
    FloatKernel("gemm.t128x64", 128, 64, 8, 3, 4), FloatKernel("gemm.t128x64d", 128, 64, 16, 2, 4),
    FloatKernel("gemm.t32x64", 32, 64, 16, 6, 4),
]
_BLOCKS = [FloatKernel(f"gemm_blocks.t{side}", side, side, 4, 0, 4, 1 << 17) for side in (64, 128)]
"""Without shared memory."""
COOPMAT = [
    FloatKernel(f"gemm_coopmat.{axis}", rows, columns, k, busy, 8)
    for axis, rows, columns, k, busy in (
        ("t128", 128, 128, 32, 2), ("t64", 64, 64, 64, 3), ("t64d", 64, 64, 128, 1),
        ("t32x64", 32, 64, 128, 1), ("t32", 32, 32, 128, 4), ("t16", 16, 32, 256, 2),
    )
]
_LARGE, _SMALL = COOPMAT[:2]
_PACKED = FloatKernel("gemm_coopmat.t64x256p", 64, 256, 32, 2, 8, packed_b=True)
_CONSTANT_ROWS, _VARIABLE_ROWS, _PACKED_K = 512, 1536, 512
"""The least rows for which a packed B pays off if it is constant, and if it is packed for each
product; and the least K."""
_DEEP, _FLAT, _LOW = COOPMAT[2:5]
"""Tiles for products of fewer tiles than cores."""
_LONG_K, _MOST_PARTS = 2048, 8
"""The least K for which the deep tile is split, and the most parts."""
_AT_ONCE, _AT_ONCE_TILES, _SLICED_K = 64, 16, 512
"""The most K that a subgroup reads at once, the most tiles of that kind for each core, and the
least K for which subgroups share it and read A from memory."""
_FEW_ROWS = {
    way: [FloatKernel(f"gemm_few_rows.{axis}.r{rows}", rows, columns, k, 4, 0, longest, True)
          for rows in (1, 2, 4, 8)]
    for way, axis, columns, k, longest in (
        ("k", "k_contiguous", 8, 1024, _MAX_K), ("mn", "n_contiguous", 128, 32, _MAX_K))
}
_DIRECT = "gemm_direct_coopmat"
_FRAGMENTS, _FRAGMENTS_OF_BLOCKS = "gemm_few_rows_coopmat", "gemm_blocked_weights_coopmat"
_SPAN, _LONGEST_A = 256, 1 << 14
"""For one row and a B in blocks: elements of K that a subgroup multiplies at a time, and of a part
of K, for which A lies in shared memory."""
PACK, STRIP = "gemm_pack", 64
"""Packs B in strips of so many columns, and so many of K at a time."""
SHADERS: tuple[str, ...] = (
    "gemm", "gemm_blocks", "gemm_coopmat", _DIRECT, PACK, "gemm_few_rows", _FRAGMENTS,
    "gemm_blocked_weights", _FRAGMENTS_OF_BLOCKS)


def candidates(g: FloatProduct, p: PlanBuilder) -> list[FloatKernel]:
    """The kernels that this device can run on a product, the presumably fastest first."""
    if g.views["y"].operand.itemsize != g.itemsize:  # of factors that were rounded
        return _on_matrix_units(g, p)
    few = [k for k in _few_rows(g) if k.variant(p)]
    tiles = _tiles(g, p)
    work = g.batches * g.rows * g.k * g.columns
    if p.device.slow_barriers:
        # The large blocks take two to six seconds to compile.
        large = work >= _WORTH_LARGE_BLOCKS and min(g.rows, g.columns) > 64
        blocks = _BLOCKS[::-1] if large else _BLOCKS
        return [*blocks, *few, *tiles] if work >= _WORTH_BLOCKS else [*few, *tiles, *blocks]
    size, whole = g.batches * g.k * g.columns, all(g.vectors(side, 8) for side in "ab")
    best, large = _fragments(g, p), size >= WORTH_FRAGMENTS
    in_pieces = (
        best is not None and size >= _WORTH_PIECES and not whole and g.widest("a")[0] == "k")
    if g.itemsize == 2 and p.device.multiplies(16, 16, 16, "f16", "f32") and (
            large or in_pieces or work >= _WORTH_REPACKING or whole):
        tiles = [*_on_matrix_units(g, p), *tiles]
        if few and g.rows > 1:  # matrix units are as fast as memory for any number of rows
            few, tiles = [], [*tiles[:1], *few, *tiles[1:]]
        if best:  # first where it was measured
            if few:  # for one row
                return [best, *few, *tiles] if large and g.k % 8 == 0 else [*few, best, *tiles]
            return [best, *tiles] if large or in_pieces else [tiles[0], best, *tiles[1:]]
    if g.itemsize == 4 and g.rows > 4 and g.vectors("b", 4) == "mn" and not p.device.is_cpu:
        few, tiles = [], [*tiles[:1], *few, *tiles[1:]]
    return [*few, *tiles]


def _few_rows(g: FloatProduct) -> list[FloatKernel]:
    each = 16 // g.itemsize
    if g.rows > 8 or not (way := g.vectors("b", each)):
        return []
    if way == "k" and g.vectors("a", each) != "k":
        return []
    return [k for k in _FEW_ROWS[way] if k.rows >= g.rows][:1]


def _height(g: FloatProduct, p: PlanBuilder) -> int:
    """The rows of a kernel that fills left operands from memory; 0 if this device runs none."""
    height = next((n for n in (1, 8, 16) if n >= g.rows), 0)
    able = g.itemsize == 2 and p.device.fragments_alike and (
        p.device.multiplies(16, 16 if height > 8 else 8, 16, "f16", "f32"))
    return height if able else 0


def _fragments(g: FloatProduct, p: PlanBuilder) -> FloatKernel | None:
    """The kernel for few rows that reads A and B straight from memory, if this device runs it."""
    (way, each), height = g.widest("b"), _height(g, p)
    if not height or not way or g.k < 8 or g.views["a"].padded or g.views["b"].padded:
        return None
    a_way, a_each = g.widest("a")
    if a_way != "k":  # it is copied
        a_each = math.gcd(g.k, 8)
    # The vectors of B, subgroups along K, fragments of 16 columns, steps that a subgroup multiplies
    # at a time, and whether it reads the next ones meanwhile: the fastest of some on an H200.
    wide, low = g.columns * g.batches >= MANY_COLUMNS, height <= 8
    if way == "mn" and wide and low:
        shape = ("n", 8, 4, 1, 0) if each >= 4 else ("n4", 8, 2, 1, 0)
    elif way == "mn" and wide:
        # A core holds 20 such subgroups at once, or 16 if it reads words.
        strips = -(-g.batches * -(-g.columns // 32) // p.device.cores)
        shape = ("n4", 6, 2, 3, 0) if each >= 4 and strips <= 3 else ("n4", 4, 2, 4, 0)
    elif way == "mn":
        shape = ("n4", 16, 2, 2, 0)
    elif wide:
        shape = ("k", 8, 2, 1, 0) if low else ("k", 4, 2, 2, 1)
    else:
        shape = ("k", 16, 2, 1, 1) if low else ("k", 16, 2, 2, 0)
    axis, subgroups, count, steps, ahead = shape
    spec = {"LOCAL_SIZE": 32 * subgroups, "STEPS": steps, "AHEAD": ahead,
            "ENDS_INSIDE": g.k % (32 * steps) != 0, "ENDS_ODDLY": g.k % 8 != 0,
            "A_EACH": a_each, "B_EACH": min(each, 4) if axis == "n4" else each}
    if axis == "k":
        spec["FRAGMENTS"] = count
    kernel = FloatKernel(
        f"{_FRAGMENTS}.{axis}.r{height}", height, 16 * count, 32 * steps * subgroups, 1, 0,
        split=True, spec=tuple(spec.items()), a_along_k=True)
    return kernel if kernel.variant(p) else None


def fragments_of_blocks(g: FloatProduct, p: PlanBuilder) -> FloatKernel | None:
    """The kernel for few rows and a B of 4 bits in blocks that fills left operands from memory, if
    this device runs it."""
    if not (height := _height(g, p)):
        return None
    # Subgroups, those of them that divide K, fragments of 16 columns for each, vectors of A that an
    # invocation reads at a time: the fastest of many on an H200.
    every, step = g.columns * g.batches, 128
    if height == 1:
        step = _SPAN
        shape = (8, 4, 1, 0) if every >= MANY_COLUMNS else (
            16, 8 if every > 16 * p.device.cores else 16, 1, 0)
    else:
        shape = (16, 4, 1, 1) if height == 8 else (16, 4, 2, 2)
    subgroups, along, count, reads = shape
    if height == 1:  # A lies in shared memory as a whole
        reads = -(-min(-(-g.k // step) * step, _LONGEST_A) // (8 * 32 * subgroups))
    spec = {"LOCAL_SIZE": 32 * subgroups, "SUBGROUPS_K": along, "FRAGMENTS": count,
            "A_READS": reads, "A_VECTORS": g.vectors("a", 8) == "k" and not g.views["a"].padded,
            "ENDS_INSIDE": g.k % step != 0}
    kernel = FloatKernel(
        f"{_FRAGMENTS_OF_BLOCKS}.r{height}", height, subgroups // along * 16 * count, step * along,
        1, 0, _LONGEST_A if height == 1 else _MAX_K, split=True, spec=tuple(spec.items()))
    return kernel if kernel.variant(p) else None


class _Speed(NamedTuple):
    """Microseconds of a core of an H200 for one of K, as measured."""

    step: float
    """Of a tile among several, ..."""
    alone: float
    """... and of one alone."""
    together: int = 8
    """Tiles that a core computes at a time."""


_SPEEDS = {"gemm.t128": _Speed(0.0935, 0.106, 2), "gemm.t128x64": _Speed(0.048, 0.06, 3),
           "gemm.t128x64d": _Speed(0.053, 0.051, 2), "gemm.t64": _Speed(0.0293, 0.032),
           "gemm.t32x64": _Speed(0.0161, 0.02), "gemm.t32": _Speed(0.0135, 0.0112)}
_PARTS = (2, 3, 4, 6, 8, 12, 16)
_BEGIN, _SPLIT, _MORE_BYTES = 3.0, 5.5, 2.5e-6
"""Microseconds: of a dispatch, of one with split-K, and of a sum that is stored and added up."""
_OFFERED = 6
"""The kernels of float32 sums that tuning tries."""


def _tiles(g: FloatProduct, p: PlanBuilder) -> list[FloatKernel]:
    """The kernels of float32 sums, the presumably fastest first."""
    known = _sorted(_TILES, g, p)
    if p.device.is_cpu:
        return known
    able = [k for k in (*_TILES, *_OBLONG) if k.variant(p)]
    timed = [each for k in able for each in _timed(k, g, p.device.cores)]
    timed.sort(key=lambda t: t[0])
    found = [k for _, k in timed[:_OFFERED]]
    return list({k.name: k for k in (*found, *known)}.values())


@functools.cache
def _in_parts(kernel: FloatKernel) -> list[FloatKernel]:
    """The kernel with K in so many parts."""
    return [replace(kernel, split=True, parts=parts) for parts in _PARTS]


@functools.cache
def _split(kernel: FloatKernel) -> FloatKernel:
    """The kernel with K in as many parts as keep the device busy."""
    return replace(kernel, split=True)


def _timed(
    kernel: FloatKernel, g: FloatProduct, cores: int
) -> Iterator[tuple[float, FloatKernel]]:
    """The kernel, and with K in parts, after the estimated microseconds: of the core with the most
    workgroups, and of adding up parts."""
    tiles, (step, alone, together) = kernel.tiles(g), _SPEEDS[kernel.shader]
    many = max(together * step, alone)
    # Where nothing else reads the same rows:
    slower = 1.25 if kernel.columns < kernel.rows and g.columns <= kernel.columns else 1.0
    for form in (kernel, *_in_parts(kernel)):
        part_k = form.part_k(g, cores)
        if form.parts and part_k >= g.k:
            continue
        parts = -(-g.k // part_k)
        rounds, rest = divmod(-(-tiles * parts // cores), together)
        time = part_k * slower * (rounds * many + (max(rest * step, alone) if rest else 0))
        if parts == 1:
            yield time + _BEGIN, form
        else:
            yield time + _SPLIT + parts * _MORE_BYTES * g.batches * g.rows * g.columns, form


def _on_matrix_units(g: FloatProduct, p: PlanBuilder) -> list[FloatKernel]:
    """The kernels on matrix units, the presumably fastest first."""
    tiles = _sorted(COOPMAT, g, p)
    direct = _direct(g, p)
    best = direct.get(_best_direct(g, p.device.cores, tiles[0], direct))
    found = list(dict.fromkeys((best or tiles[0], *tiles, *direct.values())))
    if not p.device.fragments_alike or not _PACKED.variant(p) or g.k < _PACKED_K:
        return found
    # As measured, its tiles pay off even if a tenth of the cores has none.
    fills = tiles[0] == _LARGE or 10 * _PACKED.tiles(g) >= 9 * p.device.cores
    wastes = 10 * _PACKED.area(g) > 11 * _LARGE.area(g)
    least = _CONSTANT_ROWS if g.views["b"].constant else _VARIABLE_ROWS
    worth = fills and not wastes and g.rows >= least
    return [_PACKED, *found] if worth else [found[0], _PACKED, *found[1:]]


def _direct(g: FloatProduct, p: PlanBuilder) -> dict[str, FloatKernel]:
    """The kernels that read A straight from memory, if they can run, by their tiles."""
    if not p.device.fragments_alike or g.vectors("a", 8) != "k" or (
            g.views["a"].padded or g.views["b"].padded):
        return {}
    # Rows, columns, subgroups along K of each part of a tile, and its parts: the fastest of some
    # that were timed on an H200.
    shapes = {
        "k": {"t32k": (32, 32, 1 if g.k <= _AT_ONCE else 16, 1),
              "t64k": (64, 64, 8 if _DEEP.tiles(g) <= p.device.cores else 4, 1)},
        "mn": {"t32n": (32, 32, 1 if g.k <= _AT_ONCE else 12 if g.k >= _LONG_K else 8, 1),
               "t64s": (64, 64, 4, 2), "t128x64s": (128, 64, 2, 4)},
    }.get(g.vectors("b", 8), {})
    found = {}
    for tile, (rows, columns, along, parts) in shapes.items():
        ends = g.k % (32 * along if tile.endswith("s") else 32) != 0
        found[tile] = FloatKernel(
            f"{_DIRECT}.{tile}", rows, columns, 32, 1, 0,
            spec=(("LOCAL_SIZE", 32 * along * parts), ("ENDS_INSIDE", ends)))
    return {tile: kernel for tile, kernel in found.items() if kernel.variant(p)}


def _best_direct(
    g: FloatProduct, cores: int, other: FloatKernel, direct: Mapping[str, FloatKernel]
) -> str:
    """The tile of :func:`_direct` that is faster than ``other`` kernel, as measured on an H200; ""
    if none is."""
    small = next((tile for tile in direct if tile.startswith("t32")), "")
    if small and g.rows > 16:
        tiles = direct[small].tiles(g)
        if g.batches > 1 and g.k <= _AT_ONCE and tiles <= _AT_ONCE_TILES * cores:
            return small
        # Not timed where B comes from memory, or most cores have no tile.
        shared = other in (_split(_DEEP), _split(_LOW))
        if shared and tiles <= cores <= 2 * tiles and g.k * g.columns < WORTH_FRAGMENTS:
            return small
    if g.k < _SLICED_K:
        return ""
    square = "t64k" if "t64k" in direct else "t64s"
    if other == _DEEP:
        return square
    wide = direct.get("t128x64s")
    if other != _SMALL:
        return ""
    if wide is None:
        return square
    return "t128x64s" if 10 * wide.area(g) <= 11 * _SMALL.area(g) else ""


def _sorted(kernels: list[FloatKernel], g: FloatProduct, p: PlanBuilder) -> list[FloatKernel]:
    """The largest tile that gives each core a workgroup comes first, else the smallest, with
    split-K."""
    able = [k for k in kernels if k.variant(p)]
    split = [_split(k) for k in able]
    split = [k for k in split if k.part_k(g, p.device.cores) < g.k]
    # Fewer tiles keep matrix units busy where subgroups split K. t16 is for few rows.
    tall = [k for k in able if k != _FLAT and (k.rows > 16 or g.rows <= 16)]
    # A tile that exceeds the product wastes time.
    best = next((k for k in tall[:-1] if k.tiles(g) >= p.device.cores
                 and 2 * g.rows > k.rows and 2 * g.columns > k.columns), None)
    if best is None:
        best = _of_few_tiles(able, g, p.device.cores) or tall[-1]
    shared = _split(tall[-1])
    # Split-K pays off from four parts on, as measured.
    few = 4 * best.tiles(g) < best.busy * p.device.cores
    if best is tall[-1] and few and g.k >= 1024 and shared in split:
        best = shared
    return sorted([*able, *split], key=lambda k: k != best)


def _of_few_tiles(able: list[FloatKernel], g: FloatProduct, cores: int) -> FloatKernel | None:
    """The tile for matrix units if there are fewer tiles than cores, as measured on an H200. No
    core gets a second workgroup of it, which would take as long again."""
    if _DEEP not in able or g.rows <= 32:
        return None
    tiles = _DEEP.tiles(g)
    if g.k >= _LONG_K and 2 <= cores // tiles <= _MOST_PARTS:
        return _split(_DEEP)
    if 3 * tiles < cores:
        return None
    return _FLAT if _FLAT in able and _FLAT.tiles(g) <= cores else _DEEP
