"""Lines of A and B as the matrix units want them: prepared where they do not lie so already."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...lowering.plan import PERSISTENT, UNUSED, Dispatch, Operand, Target
from .product import MAX_DEPTH, SHADER, SLOTS, Product

LINES = SHADER + "_lines"
SUMS = SHADER + "_sums"
_SUMS_EACH = 8
"""Sums that one workgroup of that shader makes."""


class Scratch:
    """The temporary or the persistent resource, handed out in ranges."""

    def __init__(self, slot: str) -> None:
        self.slot = slot
        self.bytes = 0

    def take(self, offset_field: str, itemsize: int, length: int) -> Operand:
        begin = -(-self.bytes // 256) * 256
        self.bytes = begin + itemsize * length
        return Operand(self.slot, offset_field, itemsize, length, begin // itemsize, writes=True)


def is_ready(product: Product, side: str, multiple: int) -> bool:
    """Whether the lines of A or B are read as they are: what is OWNED_BY_DML is prepared anyway."""
    return not product.side(side)[0].owned_by_dml and lies_ready(product, side, multiple)


def lies_ready(product: Product, side: str, multiple: int) -> bool:
    """Whether the lines of A or B can be read as they are, 16 elements of the depth at a time and
    none past the end, by a kernel that goes by ``multiple`` elements."""
    t, along, across = product.side(side)
    line, batches = t.strides[across], product.steps[side]
    return (
        t.strides[along] == 1
        and t.base_alignment % 16 == 0
        and product.depth % multiple == 0
        and all(step % 16 == 0 for step in (line, *batches))
    )


@dataclass(frozen=True)
class _Side:
    """A or B as the kernel reads it."""

    lines: Operand | None
    """None for the tensor itself."""
    sums: Operand | None
    strides: tuple[int, int, int]
    """batch, line, depth"""
    bytes_each: int
    sums_each: int
    """from one outer dispatch to the next"""
    sums_of_chunk: int


class PreparedLines:
    """A and B laid out for the matrix units, the depth filled up to a multiple, and the sums of
    their lines.

    What is OWNED_BY_DML is prepared once, at initialization, and kept. Lines that need not be
    prepared are summed only where ``gives_sums``, and so are those whose sums would come in several
    parts: else the kernel adds them up itself, which is sooner done than to gather the parts.
    """

    def __init__(
        self, product: Product, multiple: int, target: Target, temporary: Scratch,
        gives_sums: bool = False,
    ) -> None:
        self.product, self.multiple, self.gives_sums = product, multiple, gives_sums
        self.library = target.library
        self.execute: list[Dispatch] = []
        self.initialize: list[Dispatch] = []
        self.repacked: list[str] = []
        self.temporary, self.persistent = temporary, Scratch(PERSISTENT)
        self.chunk = self._chunk()
        self.sides = {side: self._prepare(side, product.needs_sums(side)) for side in "ab"}

    def _chunk(self) -> int:
        """Depth that one workgroup prepares: short enough that some 250 of them are at work. It
        goes by B alone, so that a constant B is prepared alike for any number of rows."""
        p = self.product
        # The more parts there are, the longer their reader adds them up: what is constant has time.
        if all(p.side(s)[0].owned_by_dml or is_ready(p, s, self.multiple) for s in "ab"):
            return MAX_DEPTH
        blocks = -(-p.columns // 128)
        chunk = MAX_DEPTH
        while chunk > 128 and blocks * -(-p.depth // chunk) < 250:
            chunk //= 2
        return chunk

    def _prepare(self, side: str, wants_sums: bool) -> _Side:
        p = self.product
        t, along, across = p.side(side)
        outer_step, batch_step = p.steps[side]
        own = (batch_step, t.strides[across], t.strides[along])
        ready = is_ready(p, side, self.multiple)
        whole = not ready and min(p.depth, MAX_DEPTH) <= self.chunk
        wants_sums = wants_sums and (self.gives_sums or whole)
        if ready and not wants_sums:
            return _Side(None, None, own, 0, 0, 0)

        count = t.sizes[across]
        batches = p.batches if batch_step else 1
        outer = p.outer if outer_step else 1
        chunks = -(-p.depth // self.chunk)
        sums_of_chunk = batches * count
        sums_each = sums_of_chunk * chunks
        pitch = -(-p.depth // self.multiple) * self.multiple
        bytes_each = 0 if ready else batches * count * pitch
        scratch = self.persistent if t.owned_by_dml else self.temporary
        into = self.initialize if t.owned_by_dml else self.execute
        if t.owned_by_dml:
            self.repacked.append(SLOTS[side])
        lines = None if ready else scratch.take("prepared_offset", 1, outer * bytes_each)
        sums = scratch.take("sums_offset", 4, outer * sums_each) if wants_sums else None
        push = {
            "batches": batches, "lines": count, "depth": p.depth, "chunk": self.chunk,
            "is_signed": int(t.data_type.is_signed),
        }
        for index in range(outer):
            matrix = replace(p.operand(side, index, 0, p.depth), offset_field="matrix_offset")
            into_sums = sums and _part(sums, index * sums_each, sums_each)
            if lines is None:
                assert into_sums is not None
                into.append(Dispatch(
                    self.library.get(SUMS), -(-sums_each // _SUMS_EACH), (matrix, into_sums),
                    {**push, "strides": own[:2]},
                ))
                continue
            to = _part(lines, index * bytes_each, bytes_each)
            into.append(Dispatch(
                self.library.get(LINES),
                batches * -(-count // 128) * chunks,
                (
                    matrix, replace(matrix, offset_field=None), to,
                    # A binding that the shader may write to must not stand on an input.
                    into_sums or replace(to, offset_field=None),
                ),
                {**push, "strides": own, "pitch": pitch, "keeps_sums": int(wants_sums)},
            ))
        return _Side(
            lines and replace(lines, offset_field=f"{side}_offset", writes=False),
            sums and replace(sums, writes=False),
            own if ready else (count * pitch if batch_step else 0, pitch, 1),
            bytes_each if outer_step else 0, sums_each if outer_step else 0, sums_of_chunk,
        )

    def lines(self, index: int, begin: int, depth: int) -> list[Operand]:
        """Of A and of B."""
        found = []
        for side in "ab":
            s = self.sides[side]
            if s.lines is None:
                found.append(self.product.operand(side, index, begin, depth))
            else:
                first = index * s.bytes_each + begin
                found.append(_part(s.lines, first, s.lines.length - first))
        return found

    def line_sums(self, index: int, begin: int) -> list[Operand]:
        """Of rows and of columns."""
        found = []
        for side, field in (("a", "row_sums_offset"), ("b", "column_sums_offset")):
            s = self.sides[side]
            if s.sums is None:
                found.append(UNUSED)
            else:
                first = index * s.sums_each + begin // self.chunk * s.sums_of_chunk
                part = _part(s.sums, first, s.sums.length - first)
                found.append(replace(part, offset_field=field))
        return found

    def strides(self) -> dict[str, tuple[int, int, int]]:
        (a_batch, a_line, a_depth), (b_batch, b_line, b_depth) = (
            self.sides[side].strides for side in "ab"
        )
        return {"a_strides": (a_batch, a_line, a_depth), "b_strides": (b_batch, b_depth, b_line)}

    def sum_count(self, depth: int) -> int:
        """Parts in which the sums of ``depth`` elements come, where any are given."""
        given = any(s.sums is not None for s in self.sides.values())
        return -(-depth // self.chunk) if given else 1

    def spec(self, *kinds: str) -> dict[str, bool]:
        """Of each side, whether it is PREPARED, or SUMMED."""
        return {
            f"{side.upper()}_{kind}": (s.lines if kind == "PREPARED" else s.sums) is not None
            for side, s in self.sides.items() for kind in kinds
        }


def _part(operand: Operand, first: int, length: int) -> Operand:
    return replace(operand, offset=operand.offset + first, length=length)
