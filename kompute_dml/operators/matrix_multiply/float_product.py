"""GEMM's products as its kernels see them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...layout import Ints, coalesce
from ...lowering.plan import Operand
from ...lowering.walk import Walk
from ...tuning import work_key


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
    """The product that shaders compute: ``batches`` of ``rows`` x ``k`` by ``k`` x ``columns``.
    With a view of ``groups``, which takes the place of C, B has the matrices of groups, and each
    batch takes the one of its group."""

    def __init__(
        self, sizes: Ints, k: int, itemsize: int, views: Mapping[str, MatrixView],
        element: str = ""
    ) -> None:
        *leading, self.rows, self.columns = self.sizes = sizes
        self.k, self.itemsize, self.views = k, itemsize, views
        self.element = element or f"f{8 * itemsize}"
        """The type of factors, as matrix units have it."""
        strides = {name: v.strides for name, v in views.items()}
        heads = [strides[name][:-2] if name in strides else (0,) * len(leading) for name in "abcy"]
        counts = {"a": (self.rows, k), "b": (k, self.columns)}
        self.steps = {
            name: tuple(0 if n == 1 else s for n, s in zip(
                counts.get(name, (self.rows, self.columns)), all_strides[-2:]))
            for name, all_strides in strides.items()}
        if "groups" not in views and math.prod(leading) > 1 and not any(
                s for s, n in zip(heads[1], leading) if n > 1):
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

    def replaced(self, k: int, **views: MatrixView) -> FloatProduct:
        """The product with copies of matrices, up to another K."""
        return FloatProduct(self.sizes, k, self.itemsize, {**self.views, **views}, self.element)

    @property
    def group_step(self) -> int:
        """From group to group: elements of B, as the shader counts them."""
        return self.views["b"].strides[0]

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
        return work_key(f"gemm {self.element} {' '.join(ways)}", self.rows, self.k, self.columns,
                        self.batches)

    def tiles(self, rows: int, columns: int) -> int:
        """Tiles of so many rows and columns that cover the output."""
        return self.batches * -(-self.rows // rows) * -(-self.columns // columns)

    def fills(self, rows: int, columns: int, cores: int) -> bool:
        """Whether such tiles give each core one, and none is larger than twice the product."""
        return (self.tiles(rows, columns) >= cores and 2 * self.rows > rows
                and 2 * self.columns > columns)

    @property
    def multiplications(self) -> int:
        return self.b_size * self.rows

    @property
    def b_size(self) -> int:
        """Elements of B in all batches."""
        return self.batches * self.k * self.columns

    @property
    def is_rounded(self) -> bool:
        """Whether factors were rounded to FLOAT16, and the output was not."""
        return self.views["y"].operand.itemsize != self.itemsize

    @property
    def is_padded(self) -> bool:
        return self.views["a"].padded or self.views["b"].padded

    @property
    def skinny_axis(self) -> str:
        """The axis of B's whole vectors, and A's if that is K, for up to eight rows. Else ""."""
        each = 16 // self.itemsize
        axis = self.vectors("b", each) if self.rows <= 8 else ""
        return "" if axis == "k" and self.vectors("a", each) != "k" else axis


@dataclass(frozen=True)
class FloatLaunch:
    """A shader variant, and the part of the output that one workgroup of it computes."""

    shader: str
    rows: int
    columns: int
    k: int
    """A part of K is a multiple of this."""
    each: int = 0
    """Elements of A, and of B, in one read; 0 where the shader says so itself."""
    longest: int = 1 << 31
    """The most of K for one workgroup."""
    parts: int = 1
    """The parts of K that are aimed at, ..."""
    busy: int = 0
    """... or the workgroups that are to share all tiles and K, if this is above 0."""
    spec: Mapping[str, int] = field(default_factory=dict)
    """Specialization constants that only this kernel has."""
    packed_b: bool = False
    """Whether it reads B in the order of matrix units (gemm_pack.comp)."""
    apart: int = 1 << 31
    """From so many parts of K on, another dispatch adds them up, where one can."""

    def tiles(self, g: FloatProduct) -> int:
        return g.tiles(self.rows, self.columns)

    def area(self, g: FloatProduct) -> int:
        """Elements of all tiles."""
        return self.tiles(g) * self.rows * self.columns

    def part_k(self, g: FloatProduct) -> int:
        """K of one workgroup."""
        parts = max(1, self.busy // self.tiles(g)) if self.busy else self.parts
        each = -(-g.k // parts)
        return min(-(-each // self.k) * self.k, self.longest)
