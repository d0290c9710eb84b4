"""GEMM: products of floating-point matrices, with C, scales and a fused activation."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ...attributes import MatrixTransform
from ...desc import TensorDesc
from ...errors import expect
from ...layout import Ints, coalesce, packed_strides
from ...lowering.activation import fused_activation
from ...lowering.builder import PlanBuilder
from ...lowering.copy import SHADERS as COPIES
from ...lowering.copy import View, copied
from ...lowering.plan import TEMPORARY, UNUSED, Operand
from ...lowering.walk import Walk
from ...runtime.shader_library import Variant
from ...tuning import work_key
from .. import halves
from ..base import Output, axes_in, operator

_NAME = "DML_OPERATOR_GEMM"
_MAX_K = 1 << 20
"""The longest K of one workgroup: lavapipe silently ends loops after 65,535 passes in all."""
_WORTH_REPACKING = 1 << 24
"""The least multiplications for which copying a matrix without vectors pays off."""
_WORTH_BLOCKS, _WORTH_LARGE_BLOCKS = 1 << 20, 1 << 27
"""The least multiplications for which kernels without shared memory pay off."""
WORTH_FRAGMENTS = 1 << 23
"""The least elements of B for which few rows are multiplied by elements straight from memory."""
MANY_COLUMNS = 8192
"""The columns from which fewer subgroups share one, and from which 16 rows are multiplied so."""


# The description


def oriented(sizes: Ints, transform: int) -> Ints:
    """Sizes or strides after the transform."""
    if transform == MatrixTransform.NONE:
        return sizes
    return (*sizes[:-2], sizes[-1], sizes[-2])


def _infer(d: Any) -> Mapping[str, Output]:
    *batches, m, k = oriented(d.a_tensor.sizes, d.trans_a)
    n = oriented(d.b_tensor.sizes, d.trans_b)[-1]
    sizes = oriented((*batches, k, n), d.trans_b)
    expect(
        d.b_tensor.sizes == sizes, _NAME, "BTensor.Sizes",
        f"be {list(sizes)} (the leading sizes of ATensor, then K and N)", list(d.b_tensor.sizes))
    return {"output_tensor": Output((*batches, m, n), d.a_tensor.data_type)}


def _softmax(d: Any) -> Any:
    """The fused activation if it needs whole rows; else None."""
    fused = d.fused_activation
    name = "" if fused is None else fused.operator.name
    return fused if name.startswith("DML_OPERATOR_ACTIVATION_SOFTMAX") else None


def _check(d: Any, strict: bool) -> None:
    fused = _softmax(d)
    if fused is not None and hasattr(fused, "axes"):
        axes_in(_NAME, fused.axes, d.output_tensor)


# The product


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
_COOPMAT = [
    FloatKernel(f"gemm_coopmat.{axis}", rows, columns, k, busy, 8)
    for axis, rows, columns, k, busy in (
        ("t128", 128, 128, 32, 2), ("t64", 64, 64, 64, 3), ("t64d", 64, 64, 128, 1),
        ("t32x64", 32, 64, 128, 1), ("t32", 32, 32, 128, 4), ("t16", 16, 32, 256, 2),
    )
]
_LARGE, _SMALL = _COOPMAT[:2]
_PACKED = FloatKernel("gemm_coopmat.t64x256p", 64, 256, 32, 2, 8, packed_b=True)
_CONSTANT_ROWS, _VARIABLE_ROWS, _PACKED_K = 512, 1536, 512
"""The least rows for which a packed B pays off if it is constant, and if it is packed for each
product; and the least K."""
_DEEP, _FLAT, _LOW = _COOPMAT[2:5]
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
_FRAGMENTS = "gemm_few_rows_coopmat"
_SPAN, _LONGEST_A = 256, 1 << 14
"""For one row and a B in blocks: elements of K that a subgroup multiplies at a time, and of a part
of K, for which A lies in shared memory."""
_PACK, _STRIP = "gemm_pack", 64
"""Packs B in strips of so many columns, and so many of K at a time."""
SHADERS = ("gemm", "gemm_blocks", "gemm_coopmat", _DIRECT, _PACK, "gemm_few_rows", _FRAGMENTS,
           "gemm_blocked_weights", *COPIES)


def _candidates(g: FloatProduct, p: PlanBuilder) -> list[FloatKernel]:
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
    if g.itemsize == 2 and p.device.multiplies(16, 16, 16, "f16", "f32") and (
            work >= _WORTH_REPACKING or all(g.vectors(side, 8) for side in "ab")):
        tiles = [*_on_matrix_units(g, p), *tiles]
        if few and g.rows > 1:  # matrix units are as fast as memory for any number of rows
            few, tiles = [], [*tiles[:1], *few, *tiles[1:]]
        way = g.vectors("b", 8)
        if way and not g.views["b"].padded and (best := fragments(g, p, way)):
            # It was measured for large B.
            worth = g.batches * g.k * g.columns >= WORTH_FRAGMENTS
            if worth and (g.rows <= 8 or g.batches * g.columns >= MANY_COLUMNS):
                return [best, *few, *tiles]
            few = [*few[:1], best] if few else []
            return [*few, *tiles] if few else [*tiles[:1], best, *tiles[1:]]
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


def fragments(g: FloatProduct, p: PlanBuilder, way: str) -> FloatKernel | None:
    """The kernel that fills left operands from memory, if this device runs it. ``way``: the axis of
    B with vectors, or "blocks"."""
    height = next((n for n in (1, 8, 16) if n >= g.rows), 0)
    across = 16 if height > 8 else 8
    if not height or g.itemsize != 2 or not p.device.fragments_alike or not (
            p.device.multiplies(16, across, 16, "f16", "f32")):
        return None
    # Subgroups, those of them that divide K, fragments of 16 columns for each, vectors of A that an
    # invocation reads at a time, workgroups for each core: the fastest of many on an H200.
    every = g.columns * g.batches
    wide = every >= MANY_COLUMNS
    axis, step = {
        "k": ("k_contiguous", 64), "mn": ("n_contiguous", 32), "blocks": ("blocks", 128)}[way]
    one_of_blocks = way == "blocks" and height == 1
    if one_of_blocks:
        step, along = _SPAN, 8 if every > 16 * p.device.cores else 16
        shape = (8, 4, 1, 0, 1) if wide else (16, along, 1, 0, 1)
    elif way == "k" and height == 8 and wide and every <= 32 * 3 * p.device.cores:
        shape = 8, 4, 1, 1, 1  # all of its workgroups run at a time
    elif way == "mn" and height == 8 and wide and every <= 128 * 0.8 * p.device.cores:
        shape = 8, 4, 4, 1, 2  # else too many cores have no workgroup
    else:
        shape = {
            ("k", 1): (8, 8, 2, 1, 1) if wide else (8, 8, 1, 1, 2),
            ("k", 8): (16, 4, 2, 1, 1), ("k", 16): (16, 4, 1, 1, 1),
            ("mn", 1): (8, 8, 4, 1, 2),
            ("mn", 8): (16, 8, 4, 1, 1) if wide else (16, 16, 4, 1, 1),
            ("mn", 16): (8, 2, 4, 1, 1),
            ("blocks", 8): (16, 4, 1, 1, 1), ("blocks", 16): (16, 4, 2, 2, 1),
        }[way, height]
    subgroups, along, count, reads, busy = shape
    if one_of_blocks:  # A lies in shared memory as a whole
        reads = -(-min(-(-g.k // step) * step, _LONGEST_A) // (8 * 32 * subgroups))
    spec = {"LOCAL_SIZE": 32 * subgroups, "SUBGROUPS_K": along, "FRAGMENTS": count,
            "A_READS": reads, "A_VECTORS": g.vectors("a", 8) == "k" and not g.views["a"].padded,
            "ENDS_INSIDE": g.k % step != 0}
    if way == "mn":
        del spec["FRAGMENTS"]
    kernel = FloatKernel(
        f"{_FRAGMENTS}.{axis}.r{height}", height, subgroups // along * 16 * count, step * along,
        busy, 0, _LONGEST_A if one_of_blocks else _MAX_K, split=True, spec=tuple(spec.items()))
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
    split = [part for k in able for part in _parted(k)]
    found = [*able, *(k for k in split if k.part_k(g, p.device.cores) < g.k)]
    found.sort(key=lambda k: _microseconds(k, g, p.device.cores))
    return list({k.name: k for k in (*found[:_OFFERED], *known)}.values())


@functools.cache
def _parted(kernel: FloatKernel) -> list[FloatKernel]:
    """The kernel with K in so many parts."""
    return [replace(kernel, split=True, parts=parts) for parts in _PARTS]


def _microseconds(kernel: FloatKernel, g: FloatProduct, cores: int) -> float:
    """The estimated time: of the core with the most workgroups, and of adding up parts."""
    part_k = kernel.part_k(g, cores)
    parts, speed = -(-g.k // part_k), _SPEEDS[kernel.shader]
    most = -(-kernel.tiles(g) * parts // cores)
    # Where nothing else reads the same rows:
    slower = 1.25 if kernel.columns < kernel.rows and g.columns <= kernel.columns else 1.0
    rounds, rest = divmod(most, speed.together)
    time = part_k * slower * (rounds * max(speed.together * speed.step, speed.alone)
                              + (max(rest * speed.step, speed.alone) if rest else 0))
    if parts == 1:
        return time + _BEGIN
    return time + _SPLIT + parts * _MORE_BYTES * g.batches * g.rows * g.columns


def _on_matrix_units(g: FloatProduct, p: PlanBuilder) -> list[FloatKernel]:
    """The kernels on matrix units, the presumably fastest first."""
    tiles = _sorted(_COOPMAT, g, p)
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
        shared = other in (replace(_DEEP, split=True), replace(_LOW, split=True))
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
    split = [replace(k, split=True) for k in able]
    split = [k for k in split if k.part_k(g, p.device.cores) < g.k]
    # Fewer tiles keep matrix units busy where subgroups split K. t16 is for few rows.
    tall = [k for k in able if k != _FLAT and (k.rows > 16 or g.rows <= 16)]
    # A tile that exceeds the product wastes time.
    best = next((k for k in tall[:-1] if k.tiles(g) >= p.device.cores
                 and 2 * g.rows > k.rows and 2 * g.columns > k.columns), None)
    if best is None:
        best = _of_few_tiles(able, g, p.device.cores) or tall[-1]
    shared = replace(tall[-1], split=True)
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
        return replace(_DEEP, split=True)
    if 3 * tiles < cores:
        return None
    return _FLAT if _FLAT in able and _FLAT.tiles(g) <= cores else _DEEP


# The plan


def matrix_views(d: Any, p: PlanBuilder, y: MatrixView) -> dict[str, MatrixView]:
    """The matrices of a product into ``y``, by the shaders' names."""
    views = {"y": y}
    for name, slot, transform in (("a", "a_tensor", d.trans_a), ("b", "b_tensor", d.trans_b),
                                  ("c", "c_tensor", 0)):
        t = getattr(d, slot)
        if t is not None and (name != "c" or d.beta != 0):
            views[name] = MatrixView(
                p.read(slot), oriented(t.strides, transform), t.base_alignment,
                constant=name == "b" and t.owned_by_dml)
    return views


def _plain(d: Any, p: PlanBuilder, y: MatrixView) -> None:
    """Compute the product into ``y``, without an activation that needs whole rows."""
    sizes, kind = d.output_tensor.sizes, d.a_tensor.data_type
    k, views = oriented(d.a_tensor.sizes, d.trans_a)[-1], matrix_views(d, p, y)
    g = FloatProduct(sizes, k, kind.itemsize, views)
    kernel = p.choose(g.work, _candidates(g, p), lambda k: k.name)
    if kernel.each == 8:
        for side, transform in (("a", d.trans_a), ("b", d.trans_b)):
            t, way = getattr(d, f"{side}_tensor"), g.vectors(side, 8)
            if side == "b" and kernel.packed_b:
                views[side] = _packed(p, views[side], t, transform, way)
            elif not way:
                views[side] = _repacked(p, side, t, transform)
        g = FloatProduct(sizes, k, kind.itemsize, views)
    steps = [s[0] for s in g.walk.strides] if g.walk.words[0] == 1 else []
    dispatch_product(d, p, g, kernel, more_push={"batch_steps": steps})


def _repacked(p: PlanBuilder, side: str, t: TensorDesc, transform: int) -> MatrixView:
    """A copy of A (or B) whose rows or columns begin with vectors."""
    sizes, strides = oriented(t.sizes, transform), oriented(t.strides, transform)
    sizes = tuple(n if s or i >= len(sizes) - 2 else 1
                  for i, (n, s) in enumerate(zip(sizes, strides)))
    transposed = strides[-2] < strides[-1]  # the axis of the smaller stride becomes contiguous
    *heads, height, width = oriented(sizes, transposed)
    padded = (*heads, height, -(-width // 8) * 8)
    to = oriented(packed_strides(padded), transposed)
    made = p.temporary(t.data_type.itemsize, math.prod(padded))
    x = t.replace(sizes=sizes, strides=strides)
    y = TensorDesc(t.data_type, sizes, to)
    p.add(copied(p.target, sizes, View.whole(f"{side}_tensor", x),
                 View(TEMPORARY, y, to, made.offset)))
    steps = tuple(0 if n == 1 and i < len(sizes) - 2 else s
                  for i, (n, s) in enumerate(zip(sizes, to)))
    return MatrixView(made.reading(), steps, 16, padded=True)


def _packed(p: PlanBuilder, b: MatrixView, t: TensorDesc, transform: int, way: str) -> MatrixView:
    """B in the order of matrix units. If it is OWNED_BY_DML, it is packed once. ``way``: the axis
    with vectors."""
    *heads, k, columns = oriented(t.sizes, transform)
    *steps, b_k, b_column = b.strides
    heads = [n if s else 1 for n, s in zip(heads, steps)]
    each = _STRIP * _STRIP * -(-k // _STRIP) * -(-columns // _STRIP)
    walk = Walk(heads or (1,), steps or (0,))
    make = p.persistent if t.owned_by_dml else lambda _, *size: p.temporary(*size)
    made = make("b_tensor", 2, walk.count * each)
    p.dispatch(
        _PACK, walk.count * each // _STRIP**2, once=t.owned_by_dml, params=walk.words,
        push={"batches": walk.count, "K": k, "columns": columns, "b_k": b_k, "b_column": b_column},
        spec={"LOCAL_SIZE": 256, "VECTORS": {"k": 1, "mn": 2}.get(way, 0)},
        b=b.operand, packed=made)
    to = [0 if n == 1 else s * each for n, s in zip(heads, packed_strides(heads))]
    return MatrixView(made.reading(), (*to, 1, each), 16, padded=True)


def dispatch_product(
    d: Any, p: PlanBuilder, g: FloatProduct, kernel: FloatKernel, *,
    more_push: Mapping[str, Any] | None = None, more_spec: Mapping[str, int] | None = None,
    **more: Any,
) -> None:
    """Add the dispatch of a kernel. ``more`` operands are bound after those of all kernels."""
    tiles, part_k = kernel.tiles(g), kernel.part_k(g, p.device.cores)
    parts = -(-g.k // part_k)
    y = g.views["y"].operand
    partial = arrived = y  # a binding that the shader may write to must not be an input
    if parts > 1:
        partial = p.temporary(4, parts * g.batches * g.rows * g.columns)
        arrived = p.zeroed(4, tiles)
    fused = fused_activation(None if _softmax(d) else d)
    push: dict[str, Any] = {
        "batches": g.batches, "rows": g.rows, "K": g.k, "columns": g.columns,
        "alpha": _word(d.alpha), "beta": _word(d.beta), "part_k": part_k, "parts": parts,
        "activation_at": len(g.walk.words),
    }
    for name, axes in (("a", ("row", "k")), ("b", ("k", "column")), ("c", ("row", "column")),
                       ("y", ("row", "column"))):
        push |= {f"{name}_{axis}": s for axis, s in zip(axes, g.steps.get(name, (0, 0)))}
    (row, column), (c_row, c_column) = g.steps["y"], g.steps.get("c", (0, 0))
    spec: dict[str, int] = {
        "TYPE": d.output_tensor.data_type.code, "HAS_C": "c" in g.views, "SPLIT": parts > 1,
        "Y_VECTORS": column == 1 and p.tail_is_aligned and g.begins_with_vectors("y", 4, row),
        "C_VECTORS": c_column == 1 and g.columns % 4 == 0 and g.begins_with_vectors("c", 4, c_row),
        "C_ROWS": c_row != 0, "SUM_VECTORS": g.columns % 4 == 0, "WALK_RANK": g.walk.words[0],
        **dict(kernel.spec), **fused.spec,
    }
    if kernel.each:
        for side in "a" if kernel.packed_b else "ab":
            way = g.vectors(side, kernel.each)
            stride, k_stride, _ = g.layout(side)
            spec[f"{side.upper()}_MN_CONTIGUOUS"] = way == "mn" if way else stride < k_stride
            if kernel.each == 4:
                spec[f"{side.upper()}_VECTORS"] = bool(way)
        spec["ENDS_INSIDE"] = g.k % kernel.k != 0
    p.dispatch(
        fused.variant(kernel.shader), tiles * parts, params=[*g.walk.words, *fused.words],
        push={**push, **(more_push or {})}, spec={**spec, **(more_spec or {})},
        a=g.views["a"].operand, b=g.views["b"].operand,
        c=g.views["c"].operand if "c" in g.views else UNUSED, y=y, partial=partial,
        arrived=arrived, **more, **p.read_tail())


def _word(x: float) -> int:
    """The bits of a float."""
    return int(np.float32(x).view(np.uint32))


@operator("GEMM", output=_infer, shaders=SHADERS, check=_check, trans_a=0, trans_b=0, alpha=1.0,
          beta=1.0)
def GemmOperatorDesc(d: Any, p: PlanBuilder) -> None:
    y, fused = d.output_tensor, _softmax(d)
    k = oriented(d.a_tensor.sizes, d.trans_a)[-1]
    if (y.sizes[-2] > 8 and any(kernel.variant(p) for kernel in _COOPMAT)
            and halves.pay_off(p, d.a_tensor, k * math.prod(y.sizes))):
        halves.lower(p, d, ("a_tensor", "b_tensor"))
        return
    if fused is None:
        _plain(d, p, MatrixView(p.write("output_tensor"), y.strides, y.base_alignment))
        return
    x = TensorDesc.packed(y.data_type, y.sizes)
    sums = p.temporary(y.data_type.itemsize, x.element_count)
    _plain(d, p, MatrixView(sums, x.strides, 16))
    activation = replace(fused, input_tensor=x, output_tensor=y)
    p.include(fused.operator.lower(activation, p.target),
              {"input_tensor": sums.reading(), "output_tensor": p.write("output_tensor")})
