"""A and B with K contiguous, as matrix units read them. Other layouts are repacked."""

from __future__ import annotations

from dataclasses import dataclass

from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.plan import UNUSED, Operand
from .product import MAX_K, SHADER, SLOTS, Product

REPACK = SHADER + "_repack"
SUMS = SHADER + "_sums"
_SUMS_EACH = 8
"""Sums for each workgroup of that shader."""


def is_readable(product: Product, side: str, multiple: int) -> bool:
    """Whether A or B needs no repacking. A tensor that is OWNED_BY_DML is always repacked."""
    return not product.side(side)[0].owned_by_dml and has_vectors(product, side, multiple)


def has_vectors(product: Product, side: str, multiple: int) -> bool:
    """Whether a kernel that takes ``multiple`` elements of K at a time can read A or B in vectors
    of 16 elements along K, and none past the end."""
    t, k_axis, axis = product.side(side)
    return (
        t.strides[k_axis] == 1
        and t.base_alignment % 16 == 0
        and (product.k % multiple == 0 or _is_padded(product, side, multiple))
        and all(step % 16 == 0 for step in (t.strides[axis], *product.steps[side]))
    )


def _is_padded(product: Product, side: str, multiple: int) -> bool:
    """Whether there is memory between A's rows up to a multiple, which B's padding multiplies by
    zeros."""
    t, _, axis = product.side(side)
    pitch = -(-product.k // multiple) * multiple
    return (side == "a" and not product.needs_sums(side) and product.outer * product.batches == 1
            and multiple > 16 and t.strides[axis] >= pitch
            and t.total_tensor_size_in_bytes >= t.sizes[axis] * t.strides[axis])


@dataclass(frozen=True)
class _Side:
    """A or B as the kernel reads it. Rows are A's rows or B's columns."""

    elements: Operand | None
    """The repacked elements; None for the tensor itself."""
    sums: Operand | None
    strides: tuple[int, int, int]
    """Strides by batch, row and K."""
    bytes_each: int
    sums_each: int
    """Sums from one outer dispatch to the next."""
    sums_of_chunk: int


class Repacked:
    """A and B with K contiguous and padded to a multiple, and the sums along K of A's rows and B's
    columns.

    A tensor that is OWNED_BY_DML is repacked once, at initialization. Repacking also computes the
    sums. A side that needs no repacking is summed here only if ``gives_sums``. The same holds if
    the sums would come in several parts: the kernel computes them faster than it reads the parts.
    """

    def __init__(self, product: Product, multiple: int, p: PlanBuilder, gives_sums: bool = False
                 ) -> None:
        self.product, self.multiple, self.gives_sums, self.p = product, multiple, gives_sums, p
        self.chunk = self._chunk()
        self.sides = {side: self._repack(side, product.needs_sums(side)) for side in "ab"}

    def _chunk(self) -> int:
        """K that one workgroup repacks, so that enough workgroups run. It depends on B alone: a
        constant B is repacked in the same way for any number of rows."""
        p = self.product
        # More parts take longer to add. Initialization is not urgent.
        if all(p.side(s)[0].owned_by_dml or is_readable(p, s, self.multiple) for s in "ab"):
            return MAX_K
        blocks, chunk = -(-p.columns // 128), MAX_K
        busy = measured.figure(self.p.device, REPACK, "busy")
        while chunk > 128 and blocks * -(-p.k // chunk) < busy:
            chunk //= 2
        return chunk

    def _repack(self, side: str, wants_sums: bool) -> _Side:
        product, p = self.product, self.p
        t, k_axis, axis = product.side(side)
        outer_step, batch_step = product.steps[side]
        own = (batch_step, t.strides[axis], t.strides[k_axis])
        readable = is_readable(product, side, self.multiple)
        whole = not readable and min(product.k, MAX_K) <= self.chunk
        wants_sums = wants_sums and (self.gives_sums or whole)
        if readable and not wants_sums:
            return _Side(None, None, own, 0, 0, 0)

        count = t.sizes[axis]
        batches = product.batches if batch_step else 1
        outer = product.outer if outer_step else 1
        chunks = -(-product.k // self.chunk)
        sums_of_chunk = batches * count
        sums_each = sums_of_chunk * chunks
        pitch = -(-product.k // self.multiple) * self.multiple
        bytes_each = 0 if readable else batches * count * pitch
        elements = None if readable else self._memory(side, 1, outer * bytes_each)
        sums = self._memory(side, 4, outer * sums_each) if wants_sums else None
        push = {
            "batches": batches, "rows": count, "K": product.k, "chunk": self.chunk,
            "is_signed": int(t.data_type.is_signed),
        }
        for index in range(outer):
            matrix = product.operand(p, side, index, 0, product.k)
            into_sums = sums and sums.part(index * sums_each, sums_each)
            if elements is None:
                assert into_sums is not None
                p.dispatch(SUMS, -(-sums_each // _SUMS_EACH), matrix=matrix, sums=into_sums,
                           push={**push, "strides": own[:2]})
                continue
            to = elements.part(index * bytes_each, bytes_each)
            p.dispatch(
                REPACK, batches * -(-count // 128) * chunks, once=t.owned_by_dml,
                matrix=matrix, matrix_vectors=matrix, repacked=to,
                # A binding that the shader may write to must not be an input.
                sums=into_sums or to,
                push={**push, "strides": own, "pitch": pitch, "keeps_sums": int(wants_sums)},
            )
        return _Side(
            elements and elements.reading(), sums and sums.reading(),
            own if readable else (count * pitch if batch_step else 0, pitch, 1),
            bytes_each if outer_step else 0, sums_each if outer_step else 0, sums_of_chunk,
        )

    def _memory(self, side: str, itemsize: int, length: int) -> Operand:
        if self.product.side(side)[0].owned_by_dml:
            return self.p.persistent(SLOTS[side], itemsize, length)
        return self.p.temporary(itemsize, length)

    def elements(self, side: str, index: int, begin: int, k: int) -> Operand:
        """The part of A or B for outer dispatch ``index``: ``k`` of K, from ``begin`` on. Its
        offset goes to the push field of A or B, also under other names of the binding."""
        s = self.sides[side]
        if s.elements is None:
            view = self.product.operand(self.p, side, index, begin, k)
        else:
            first = index * s.bytes_each + begin
            view = s.elements.part(first, s.elements.length - first)
        return view._replace(offset_field=f"{side}_offset")

    def sums(self, side: str, index: int, begin: int) -> Operand:
        """The sums of A's rows or B's columns, from element ``begin`` of K on."""
        s = self.sides[side]
        if s.sums is None:
            return UNUSED
        first = index * s.sums_each + begin // self.chunk * s.sums_of_chunk
        return s.sums.part(first, s.sums.length - first)

    def strides(self) -> dict[str, tuple[int, int, int]]:
        (a_batch, a_row, a_k), (b_batch, b_column, b_k) = (
            self.sides[side].strides for side in "ab"
        )
        return {"a_strides": (a_batch, a_row, a_k), "b_strides": (b_batch, b_k, b_column)}

    def sum_count(self, k: int) -> int:
        """The number of parts of the sums of ``k`` elements, if sums are given."""
        has_sums = any(s.sums is not None for s in self.sides.values())
        return -(-k // self.chunk) if has_sums else 1

    def spec(self, *kinds: str) -> dict[str, bool]:
        """Whether each side is REPACKED, or SUMMED."""
        return {
            f"{side.upper()}_{kind}": (s.elements if kind == "REPACKED" else s.sums) is not None
            for side, s in self.sides.items() for kind in kinds
        }
