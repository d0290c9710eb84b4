"""The dispatches of an open plan in arrays, for one class of each of its operators. So other sizes
cost one function of all numbers, words at their places, and one call that records all dispatches.

A *source* here is where a slot of a step lies: a storage, words that are uploaded for each size, or
memory of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from ..compiler import Changed, CompiledOperator
from ..lowering.plan import PARAMS, ZEROED, Dispatch
from ..runtime.hazards import Spans
from ..runtime.heap import Allocation, Block, Place
from ..runtime.kp_engine import Dispatches
from ..runtime.shader_library import Variant
from ..sizes import Joined
from .memory import Storage

if TYPE_CHECKING:
    from ..device import Device

MAX_BOUND = 4
"""The most blocks of memory, in which moving tensors lie, for which a list stays bound. The least
recently used ones are dropped."""


class Unlisted(Exception):
    """These steps cannot be listed."""


class Words(NamedTuple):
    """A source: bytes of what is uploaded for each size."""

    offset: int


Source: TypeAlias = "Storage | Words | Place"


class Lies(NamedTuple):
    """Where a source lies."""

    within: Allocation | Storage | None
    """What does not move, a storage that may, or None for what is uploaded for each size."""
    offset: int
    """Bytes before it in there."""
    number: int | None = None
    """The place among all numbers of bytes that come on top of these."""


class _Dispatch(NamedTuple):
    """A dispatch, by the numbers of sources."""

    variant: Variant
    spec: bytes
    bindings: tuple[int, ...]


class _Form(NamedTuple):
    """A dispatch of an operator, by slots. Numbers are places among all numbers."""

    dispatch: Dispatch
    spec: bytes
    push: list[int]
    groups: int
    words: list[tuple[int, int]]
    """(word, number)"""
    offsets: list[tuple[int, str, int, int, int]]
    """Words that say where slots lie: (word, slot, bytes of an element, and two numbers of elements
    before)"""
    touches: list[tuple[str, int, int, int, bool]]
    """(slot, bytes of an element, number of the first element, number of elements, whether it
    writes)"""


class ListedSteps:
    """Steps in arrays. They are added one by one."""

    def __init__(
        self, device: Device, joined: Joined, same: Callable[[Source, Source], bool]
    ) -> None:
        """``same`` says whether two sources are the same memory now."""
        self.device, self._joined, self._is_same = device, joined, same
        self.sources: list[Source] = []
        self.dispatches: list[_Dispatch] = []
        self.same: list[tuple[int, int, bool]] = []
        """Whether two sources are the same memory, where a dispatch is left out for that."""
        self._forms: dict[int, tuple[CompiledOperator, list[_Form]]] = {}
        self._push: list[int] = []
        self._groups: list[int] = []
        self._words: list[tuple[int, int]] = []
        self._offsets: list[tuple[int, int, int, int, int]] = []
        self._touches: list[tuple[int, int, int, int, int, bool]] = []
        self._numbers: dict[object, int] = {}
        self._bound: list[_BoundSteps] = []

    def _source(self, source: Source) -> int:
        """The number of a source."""
        key: object = source if isinstance(source, Words) else id(source)
        if key not in self._numbers:
            self._numbers[key] = len(self.sources)
            self.sources.append(source)
        return self._numbers[key]

    def add(
        self, compiled: CompiledOperator, places: Sequence[Source | None],
        changes: Sequence[Changed] | None,
    ) -> None:
        """Add a step. ``places`` are those of the operator's slots and of its own memory.
        ``changes`` has what sizes change of its dispatches. Raises Unlisted, and TypeError for
        numbers that are not whole."""
        sources = {slot: self._source(place) for slot, place in zip(
            (*compiled.slots, ZEROED, PARAMS), places) if place is not None}
        if id(compiled) not in self._forms:
            self._forms[id(compiled)] = compiled, self._forms_of(compiled, changes)
        for dispatch, spec, push, groups, words, offsets, touches in self._forms[id(compiled)][1]:
            if dispatch.unless_same is not None:
                a, b = (sources[slot] for slot in dispatch.unless_same)
                same = self._is_same(self.sources[a], self.sources[b])
                self.same.append((a, b, same))
                if same:
                    continue
            first, number = len(self._push), len(self.dispatches)
            touched = [(number, sources[slot], each, begin, count, writes)
                       for slot, each, begin, count, writes in touches if slot in sources]
            if not touched:
                raise Unlisted("a dispatch that touches nothing")
            filler = touched[0][1]  # for bindings that a dispatch does not use
            self._touches += touched
            self._offsets += [(first + word, sources[slot], each, begin, more)
                              for word, slot, each, begin, more in offsets if slot in sources]
            self._words += [(first + word, n) for word, n in words]
            self._groups.append(groups)
            self._push += push
            self.dispatches.append(_Dispatch(dispatch.variant, spec, tuple([
                sources.get(o.slot or "", filler) for o in dispatch.operands])))

    def _forms_of(
        self, compiled: CompiledOperator, changes: Sequence[Changed] | None
    ) -> list[_Form]:
        if compiled.copies_constants:
            raise Unlisted("constants that are copied")
        number, forms = self._joined.add, []
        for i, (dispatch, recordable) in enumerate(
                zip(compiled.plan.execute, compiled.dispatches)):
            groups, words, operands = Changed(
                recordable.groups, (), None) if changes is None else changes[i]
            # A shader that binds a tensor as words and as vectors has an operand for each.
            offsets: dict[tuple[int, str, int, int, int], None] = {}
            touches: dict[tuple[str, int, int, int, bool], None] = {}
            for o in operands or dispatch.operands:
                if o.slot is None:
                    continue
                first = number(o.offset)
                if o.offset_field is not None:
                    word = dispatch.variant.push_fields[o.offset_field][0]
                    offsets[word, o.slot, o.itemsize, first, number(o.first)] = None
                touches[o.slot, o.itemsize, first, number(o.length), o.writes] = None
            forms.append(_Form(
                dispatch, recordable.spec, recordable.push.tolist(), number(groups),
                [(at, number(n)) for at, n in words], [*offsets], [*touches]))
        return forms

    def finish(self) -> None:
        """All steps are there. Raises Unlisted where these are none."""
        if not self.dispatches:
            raise Unlisted("no dispatches")
        self.push = np.array(self._push, np.uint32)
        """The words of all dispatches, without those that change."""
        self.groups = np.array(self._groups)
        """By dispatch: a number."""
        self.words = _columns(self._words, 2)
        """Words, and numbers that go there."""
        self.offsets = _columns(self._offsets, 5)
        """Words that say where sources lie, the sources, the bytes of their elements, and two
        numbers of elements before."""
        *self.touches, writes = _columns(self._touches, 6)
        """By access: dispatch, source, bytes of an element, number of the first element, and number
        of elements."""
        self.writes = writes.astype(bool)
        del self._push, self._groups, self._words, self._offsets, self._touches, self._forms
        del self._numbers

    def bound(self, blocks: list[Block]) -> _BoundSteps:
        """The steps, where sources lie in these blocks."""
        for i, known in enumerate(self._bound):
            if known.blocks == blocks:
                self._bound.append(self._bound.pop(i))
                return known
        self._bound.append(_BoundSteps(self, blocks))
        del self._bound[:-MAX_BOUND]
        return self._bound[-1]


class PlacedSteps:
    """Listed steps in a layout of memory."""

    def __init__(self, steps: ListedSteps, lies: Sequence[Lies]) -> None:
        """``lies`` says where each source lies."""
        self._steps = steps
        within: dict[int, int] = {}
        self._moves: list[tuple[int, Storage | None]] = []
        """What need not lie where it did."""
        self._allocations: list[Allocation | None] = []
        self._begins = np.zeros(len(lies), np.int64)
        """Where each of these begins in its block."""
        for each in lies:
            if id(each.within) not in within:
                number = within[id(each.within)] = len(within)
                if isinstance(each.within, Allocation):
                    self._allocations.append(each.within)
                    self._begins[number] = each.within.offset
                else:
                    self._allocations.append(None)
                    self._moves.append((number, each.within))
        self._which = np.array([within[id(each.within)] for each in lies])
        """By source: in which allocation it lies."""
        self._before = np.array([each.offset for each in lies], np.int64)
        self._parts = _columns(
            [(i, each.number) for i, each in enumerate(lies) if each.number is not None], 2)
        self._bound: tuple[list[Block], _BoundSteps] | None = None

    def record(self, numbers: np.ndarray, uploaded: Allocation | None) -> bool:
        """Record all dispatches, with these numbers and words. False if that cannot be."""
        steps = self._steps
        recorder = steps.device.runtime.recorder
        if not recorder.takes_many(len(steps.dispatches)):
            return False
        allocations, begins = [*self._allocations], self._begins
        for i, storage in self._moves:
            allocation, before = (uploaded, 0) if storage is None else storage.slot()
            if allocation is None:
                return False
            allocations[i], begins[i] = allocation, allocation.offset + before
        lying = [a for a in allocations if a is not None]
        bases = self._before + begins[self._which]
        sources, at = self._parts
        bases[sources] += numbers[at]
        blocks = [a.block for a in lying]
        if self._bound is None or self._bound[0] != blocks:
            self._bound = blocks, steps.bound([blocks[i] for i in self._which.tolist()])
        bound = self._bound[1]
        for a, b, same in steps.same:
            if same != (bases[a] == bases[b] and bound.blocks[a] is bound.blocks[b]):
                return False
        push = steps.push.copy()
        at, of = steps.words
        push[at] = numbers[of]  # negative ones modulo 2^32
        at, of, itemsize, first, more = steps.offsets
        push[at] = bases[of] // itemsize + numbers[first] + numbers[more]
        _, of, itemsize, first, length = steps.touches
        base = bases[of] + numbers[first] * itemsize
        ends = (base + numbers[length] * itemsize + 3) & ~3  # shaders touch whole words
        try:
            dispatches = bound.over(base & ~3, ends)
        except Unlisted:
            return False
        recorder.dispatch_all(dispatches, numbers[steps.groups], push, lying, bound.whole)
        return True


class _BoundSteps:
    """Listed steps, bound to blocks of memory."""

    def __init__(self, steps: ListedSteps, blocks: list[Block]) -> None:
        runtime = steps.device.runtime
        self.blocks = blocks
        """Those of the sources."""
        whole = {block: Allocation(block, 0, block.size) for block in blocks}
        self.whole = [*whole.values()]
        """Each of them once, as a whole."""
        self._engine = runtime.engine
        self._by_block = runtime.recorder.counts_blocks
        self._spans = Spans(steps.touches[0], [
            whole[blocks[i]] for i in steps.touches[1].tolist()], steps.writes)
        pipelines = {d: runtime.pipelines.get(
            d.variant, d.spec, tuple([blocks[i] for i in d.bindings]), 1)
            for d in dict.fromkeys(steps.dispatches)}
        self._pipelines = [pipelines[d] for d in steps.dispatches]
        self._dispatches: Dispatches | None = None

    def over(self, begins: np.ndarray, ends: np.ndarray) -> Dispatches:
        """The dispatches, with the waits that these ranges need. Raises Unlisted."""
        if self._by_block and self._dispatches is None:
            begins, ends = np.zeros_like(begins), np.full_like(ends, 1)
        if self._dispatches is None or not (
                self._by_block or self._spans.hold(begins, ends)):
            self._dispatches = None
            if not self._spans.order(begins, ends):
                raise Unlisted("too many dispatches that do not wait")
            self._dispatches = Dispatches(self._engine, self._pipelines, self._spans.waits)
        return self._dispatches


def _columns(rows: Collection[Sequence[int]], count: int) -> list[np.ndarray]:
    return [*np.array([*rows], np.int64).reshape(-1, count).T]
