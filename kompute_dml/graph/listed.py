"""The dispatches of an open plan in arrays. So other sizes cost a few functions of numbers, words
at their places, and one call that records all dispatches.

An operator's class has its dispatches in arrays once, by slots. A step has the sources of these
slots. The steps of a choice of classes are these arrays, one after the other.

A *source* here is where a slot of a step lies: a storage, words that are uploaded for each size, or
memory of the operator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from ..compiler import Changed, CompiledOperator
from ..lowering.plan import PARAMS, ZEROED
from ..runtime.hazards import Spans
from ..runtime.heap import Allocation, Block, Place
from ..runtime.kp_engine import Dispatches, Pipeline
from ..runtime.shader_library import Variant
from ..sizes import Line
from .memory import Storage

if TYPE_CHECKING:
    from ..device import Device

MAX_BOUND = 4
"""The most blocks of memory, in which moving tensors lie, for which a list stays bound. The least
recently used ones are dropped."""
_WORTH_BINDING = 8
"""Binding steps to blocks takes about as long as recording so many runs one by one."""
_MAX_PIPELINES = 1 << 12
"""The most choices of a class and of blocks whose pipelines are remembered."""


class Unlisted(Exception):
    """These steps cannot be listed."""


@dataclass(eq=False)
class Words:
    """A source: words of an operator that are uploaded for each size, where a list says."""


Source: TypeAlias = "Storage | Words | Place"


class Lies(NamedTuple):
    """Where a source lies."""

    within: Allocation | Storage | None
    """What does not move, a storage that may, or None for what is uploaded for each size."""
    offset: int
    """Bytes before it in there."""
    number: int | None = None
    """The place among the plan's numbers of bytes that come on top of these."""


class _Arrays(NamedTuple):
    """Dispatches by slots. Numbers are places in a line."""

    dispatches: Sequence[_Dispatch]
    push: np.ndarray
    """The words of all dispatches, without those that change."""
    groups: np.ndarray
    """By dispatch: a number."""
    words: np.ndarray
    """A row for each word that changes: its place, and a number."""
    offsets: np.ndarray
    """A row for each word that says where a slot lies: its place, the slot, the bytes of an
    element, and two numbers of elements before."""
    touches: np.ndarray
    """A row for each access: dispatch, slot, bytes of an element, number of the first element,
    number of elements, and whether it writes."""

    @property
    def counts(self) -> tuple[int, ...]:
        """How many there are of each."""
        return (len(self.dispatches), *[len(rows) for rows in self[1:]])


class _Dispatch(NamedTuple):
    variant: Variant
    spec: bytes
    bindings: tuple[int, ...]
    """Slots, -1 for none."""
    touched: tuple[int, ...]
    """The slots that it touches."""


class Forms:
    """The dispatches of an operator, or of a class of one, in arrays."""

    def __init__(
        self, compiled: CompiledOperator, changes: Sequence[Changed] | None, line: Line
    ) -> None:
        """``changes`` has what sizes change of its dispatches, None for nothing. Numbers are added
        to ``line``. Raises Unlisted, and TypeError for numbers that are not whole."""
        if compiled.copies_constants:
            raise Unlisted("constants that are copied")
        slots = {slot: i for i, slot in enumerate((*compiled.slots, ZEROED, PARAMS))}
        self.unless_same: list[tuple[int, int] | None] = []
        """By dispatch: two slots in whose one place it is left out."""
        self._each: list[_Arrays] = []
        self._without: dict[tuple[int, ...], _Arrays] = {}
        for i, (dispatch, recordable) in enumerate(
                zip(compiled.plan.execute, compiled.dispatches)):
            groups, words, operands = Changed(
                recordable.groups, (), None) if changes is None else changes[i]
            same = dispatch.unless_same
            self.unless_same.append(same and (slots[same[0]], slots[same[1]]))
            # A shader that binds a tensor as words and as vectors has an operand for each.
            offsets: dict[tuple[int, ...], None] = {}
            touches: dict[tuple[int, ...], None] = {}
            for o in operands or dispatch.operands:
                if o.slot is None:
                    continue
                first = line.add(o.offset)
                if o.offset_field is not None:
                    word = dispatch.variant.push_fields[o.offset_field][0]
                    offsets[word, slots[o.slot], o.itemsize, first, line.add(o.first)] = None
                touches[0, slots[o.slot], o.itemsize, first, line.add(o.length), o.writes] = None
            bindings = tuple([-1 if o.slot is None else slots[o.slot] for o in dispatch.operands])
            self._each.append(_Arrays(
                (_Dispatch(dispatch.variant, recordable.spec, bindings,
                           tuple(dict.fromkeys(row[1] for row in touches))),),
                recordable.push, np.array([line.add(groups)]),
                _rows([(at, line.add(n)) for at, n in words], 2), _rows([*offsets], 5),
                _rows([*touches], 6)))

    def without(self, left_out: tuple[int, ...]) -> _Arrays:
        """All dispatches but these."""
        if left_out not in self._without:
            each = [one for i, one in enumerate(self._each) if i not in left_out]
            self._without[left_out] = _Arrays(
                tuple([d for one in each for d in one.dispatches]),
                *_joined(each, _columns([one.counts for one in each]))) if each else _NOTHING
        return self._without[left_out]


def _joined(parts: Sequence[_Arrays], counts: np.ndarray) -> list[np.ndarray]:
    """All but the dispatches, one after the other, with the counts of each part in a column. Many
    parts may be the same."""
    numbers: dict[int, int] = {}
    which = [numbers.setdefault(id(part), len(numbers)) for part in parts]
    _, *each = zip(*{id(part): part for part in parts}.values())
    before = np.cumsum(counts, 1) - counts
    joined = []
    for arrays, of, first in zip(each, counts[1:], before[1:]):
        length = np.array([*map(len, arrays)])
        begins = (np.cumsum(length) - length)[which] - first
        joined.append(np.concatenate(arrays)[np.repeat(begins, of) + np.arange(of.sum())])
    _, _, words, offsets, touches = joined
    for rows, of, first in ((words, counts[3], before[1]), (offsets, counts[4], before[1]),
                            (touches, counts[5], before[0])):
        rows[:, 0] += np.repeat(first, of)
    return joined


class Sources:
    """The sources of a plan's steps, by number."""

    def __init__(self) -> None:
        self.all: list[Source] = []
        self._numbers: dict[int, int] = {}

    def number(self, source: Source) -> int:
        """The number of a source."""
        if id(source) not in self._numbers:
            self._numbers[id(source)] = len(self.all)
            self.all.append(source)
        return self._numbers[id(source)]


class Piece:
    """A step of a class."""

    def __init__(
        self, forms: Forms, places: Sequence[Source | None], sources: Sources,
        is_same: Callable[[Source, Source], bool],
    ) -> None:
        """``places`` are those of the operator's slots and of its own memory. ``is_same`` says
        whether two sources are the same memory now. Raises Unlisted."""
        self.sources = np.array(
            [-1 if s is None else sources.number(s) for s in places], np.int64)
        """By slot, -1 for none."""
        self.same: list[tuple[int, int, bool]] = []
        """Whether two sources are the same memory, where a dispatch is left out for that."""
        left_out = []
        for i, pair in enumerate(forms.unless_same):
            if pair is None:
                continue
            a, b = (places[slot] for slot in pair)
            assert a is not None and b is not None
            same = is_same(a, b)
            self.same.append((int(self.sources[pair[0]]), int(self.sources[pair[1]]), same))
            if same:
                left_out.append(i)
        self.arrays = forms.without(tuple(left_out))
        self.fillers = [next((s for s in d.touched if places[s] is not None), -1)
                        for d in self.arrays.dispatches]
        """By dispatch: a slot for bindings that it does not use."""
        if -1 in self.fillers:
            raise Unlisted("a dispatch that touches nothing")
        self.needed = self.sources[self.sources >= 0].tolist()
        self.counts = *self.arrays.counts, len(self.sources)
        """Of its arrays, and of its slots."""
        self._bound: tuple[Sequence[Block], list[Pipeline]] | None = None

    def bound(
        self, device: Device, blocks: Sequence[Block], known: KnownPipelines
    ) -> list[Pipeline]:
        """The pipelines of its dispatches, where sources lie in these blocks."""
        if self._bound is None or self._bound[0] is not blocks:
            key = self, tuple([blocks[n] for n in self.needed])
            if key not in known:
                known[key] = self._pipelines(device, key[1])
            self._bound = blocks, known[key]
        return self._bound[1]

    def _pipelines(self, device: Device, blocks: Sequence[Block]) -> list[Pipeline]:
        """With the blocks of its slots in order, those of none left out."""
        left, get = iter(blocks), device.runtime.pipelines.get
        by_slot = [None if n < 0 else next(left) for n in self.sources.tolist()]
        found = []
        for (variant, spec, bindings, _), filler in zip(self.arrays.dispatches, self.fillers):
            bound = [by_slot[filler] if slot < 0 else by_slot[slot] or by_slot[filler]
                     for slot in bindings]
            found.append(get(variant, spec, tuple([b for b in bound if b is not None]), 1))
        return found


class ListedSteps:
    """Steps in arrays."""

    def __init__(
        self, device: Device, pieces: Sequence[Piece], places: Sequence[tuple[int, int]]
    ) -> None:
        """``places`` say of each piece where its line's numbers begin among all numbers: those
        that change, and, counted from the end, the others. Raises Unlisted where there are no
        dispatches."""
        self.device, self.pieces = device, pieces
        counts = _columns([piece.counts for piece in pieces])
        self.count = int(counts[0].sum())
        if not self.count:
            raise Unlisted("no dispatches")
        self.push, groups, words, offsets, touches = _joined(
            [piece.arrays for piece in pieces], counts)
        begins, ends = _columns(places)
        slots = np.cumsum(counts[-1]) - counts[-1]
        sources = np.concatenate([piece.sources for piece in pieces])

        def of_all(numbers: np.ndarray, by: np.ndarray) -> np.ndarray:
            """The places of numbers among all, of so many rows of each piece."""
            first, end = ((np.repeat(each, by), np.repeat(each, by)[:, None])[numbers.ndim - 1]
                          for each in (begins, ends))
            return numbers + np.where(numbers < 0, -end, first)

        def of_sources(rows: np.ndarray, by: np.ndarray) -> list[np.ndarray]:
            """Columns with sources instead of slots. Rows of none are left out."""
            rows[:, 3:5] = of_all(rows[:, 3:5], by)
            rows[:, 1] = sources[np.repeat(slots, by) + rows[:, 1]]
            return [*rows[rows[:, 1] >= 0].T]

        self.groups = of_all(groups, counts[0])
        """By dispatch: a number, and the push words."""
        self.word_counts = [
            d.variant.push_words for piece in pieces for d in piece.arrays.dispatches]
        self.words = words[:, 0], of_all(words[:, 1], counts[3])
        """Words, and numbers that go there."""
        self.offsets = of_sources(offsets, counts[4])
        """Words that say where sources lie, the sources, the bytes of their elements, and two
        numbers of elements before."""
        *self.touches, writes = of_sources(touches, counts[5])
        """By access: dispatch, source, bytes of an element, number of the first element, and number
        of elements."""
        self.writes = writes.astype(bool)
        self.same = [same for piece in pieces for same in piece.same]
        is_needed = np.zeros(sources.max() + 2, bool)
        is_needed[sources] = True  # the last one stands for none
        self.needed = np.flatnonzero(is_needed[:-1]).tolist()
        """The sources of all steps."""
        self._bound: list[_BoundSteps] = []
        """The last used ones at the end, as are those of a layout of memory where what moves lies
        in these blocks."""
        self._found: list[
            tuple[weakref.ref[PlacedSources], Sequence[Block], _BoundSteps]] = []
        self._runs = self._binds = 0
        """How often they came, and how often with blocks to which they were not bound."""

    def found(self, layout: PlacedSources, moving: Sequence[Block]) -> _BoundSteps | None:
        """The steps in a layout, where what moves lies in these blocks, if they came so before."""
        self._runs += 1
        for i, (known, blocks, bound) in enumerate(self._found):
            if known() is layout and blocks == moving:
                self._found.append(self._found.pop(i))
                return bound
        return None

    def bound(
        self, layout: PlacedSources, moving: Sequence[Block], blocks: Sequence[Block],
        pipelines: KnownPipelines, bases: np.ndarray, moves: np.ndarray,
    ) -> _BoundSteps | None:
        """The steps, where sources lie in these blocks and, unless they move, at these bytes. None
        while other blocks come so often that binding to them takes longer than it saves."""
        needed = [blocks[i] for i in self.needed]
        stay = np.where(moves, -1, bases)[self.needed]
        bound = next((known for known in self._bound
                      if known.blocks == needed and np.array_equal(known.stay, stay)), None)
        if bound is not None:
            self._bound.remove(bound)
        elif self._binds > MAX_BOUND and self._binds * _WORTH_BINDING > self._runs:
            return None
        else:
            self._binds += 1
            bound = _BoundSteps(self, needed, stay, [
                p for piece in self.pieces
                for p in piece.bound(self.device, blocks, pipelines)], moves)
        self._bound.append(bound)
        self._found.append((weakref.ref(layout), moving, bound))
        del self._bound[:-MAX_BOUND], self._found[:-MAX_BOUND]
        return bound

    def all_words(self, bases: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """The push words of all dispatches."""
        push = self.push.copy()
        at, of = self.words
        push[at] = numbers[of]  # negative ones modulo 2^32
        at, *offsets = self.offsets
        push[at] = _elements(offsets, bases, numbers)
        return push


KnownPipelines: TypeAlias = "dict[tuple[Piece, tuple[Block, ...]], list[Pipeline]]"
"""Those of steps, by the blocks that they are bound to."""


class PlacedSources:
    """Sources in a layout of memory. Others may come later."""

    def __init__(self, sources: Sources, lies: Callable[[Source], Lies]) -> None:
        """``lies`` says where a source lies."""
        self._sources, self._lies = sources, lies
        self._count = 0
        self._within: dict[int, int] = {}
        self._moving: list[tuple[int, Storage | None]] = []
        """What need not lie where it did."""
        self._stay: list[Allocation] = []
        """Other memory."""
        self._allocations: list[Allocation | None] = []
        """All of it, None for what moves."""
        self._begins = self._which = np.zeros(0, np.int64)
        """Where each of these begins in its block; and by source in which of them it lies."""
        self._bases = np.zeros(0, np.int64)
        """The bytes before a source in its block, or in what moves."""
        self._parts = np.zeros((2, 0), np.int64)
        self._in_moving, self._moves = np.zeros(0, np.int64), np.zeros(0, bool)
        """The sources in what moves, and by source whether its place may change."""
        self._pipelines: KnownPipelines = {}

    def _extend(self) -> None:
        """Take the sources that are new."""
        which, before, parts, begins = [], [], [], [*self._begins.tolist()]
        new = self._sources.all[self._count:]
        for i, source in enumerate(new, self._count):
            each = self._lies(source)
            if id(each.within) not in self._within:
                number = self._within[id(each.within)] = len(begins)
                if isinstance(each.within, Allocation):
                    self._allocations.append(each.within)
                    self._stay.append(each.within)
                    begins.append(each.within.offset)
                else:
                    self._allocations.append(None)
                    self._moving.append((number, each.within))
                    begins.append(0)
            which.append(self._within[id(each.within)])
            before.append(each.offset)
            if each.number is not None:
                parts.append((i, each.number))
        self._count += len(new)
        self._begins = np.array(begins, np.int64)
        self._which = np.append(self._which, np.array(which, np.int64))
        self._bases = np.append(
            self._bases, self._begins[which] + np.array(before, np.int64))
        self._parts = np.append(self._parts, _rows(parts, 2).T, axis=1)
        moves = np.isin(self._which, [number for number, _ in self._moving])
        self._in_moving = np.flatnonzero(moves)
        moves[self._parts[0]] = True
        self._moves = moves

    def record(
        self, steps: ListedSteps, numbers: np.ndarray, words: tuple[np.ndarray, np.ndarray],
        uploaded: Allocation | None,
    ) -> bool:
        """Record all dispatches, with these numbers. ``words`` are sources among what is uploaded,
        and where they lie in there. False if that cannot be."""
        recorder = steps.device.runtime.recorder
        if not recorder.takes_many(steps.count):
            return False
        if self._count < len(self._sources.all):
            self._extend()
        moving: list[Allocation] = []
        begins = self._begins.copy()
        anywhere = next(iter(self._stay), None)
        for i, storage in self._moving:
            # Where nothing is uploaded, only other steps have words.
            allocation, before = (uploaded or anywhere, 0) if storage is None else storage.slot()
            if allocation is None:
                return False
            moving.append(allocation)
            begins[i] = allocation.offset + before
        bases = self._bases.copy()
        bases[self._in_moving] += begins[self._which[self._in_moving]]
        for sources, more in ((self._parts[0], numbers[self._parts[1]]), words):
            bases[sources] += more
        bound = self._bound_to(steps, [a.block for a in moving], bases)
        if bound is None or not bound.holds(bases):
            return False
        try:
            dispatches, groups, push = bound.at(bases, numbers)
        except Unlisted:
            return False
        recorder.dispatch_all(dispatches, groups, push, [*self._stay, *moving], bound.whole)
        return True

    def _bound_to(self, steps: ListedSteps, blocks: Sequence[Block], bases: np.ndarray
                  ) -> _BoundSteps | None:
        """The steps, where what moves lies in these blocks. None if it is not worth that."""
        bound = steps.found(self, blocks)
        if bound is not None:
            return bound
        left = iter(blocks)
        each = [next(left) if a is None else a.block for a in self._allocations]
        if len(self._pipelines) > _MAX_PIPELINES:
            self._pipelines.clear()
        return steps.bound(self, blocks, [each[i] for i in self._which.tolist()],
                           self._pipelines, bases, self._moves)


class _BoundSteps:
    """Listed steps, bound to blocks of memory. Most of their words never change there."""

    def __init__(self, steps: ListedSteps, blocks: Sequence[Block], stay: np.ndarray,
                 pipelines: Sequence[Pipeline], moves: np.ndarray) -> None:
        """``blocks`` are those of the sources that are needed, which ``stay`` at these bytes, -1
        for those that move. ``moves`` says the same of each source."""
        runtime = steps.device.runtime
        self.blocks, self.stay = blocks, stay
        whole = {block: Allocation(block, 0, block.size) for block in blocks}
        self.whole = [*whole.values()]
        """Each of the blocks once, as a whole."""
        self._steps, self._pipelines = steps, pipelines
        self._engine = runtime.engine
        self._by_block = runtime.recorder.counts_blocks
        of = dict(zip(steps.needed, [whole[block] for block in blocks]))
        touching, touched, _, begin, length = steps.touches
        self._spans = Spans(
            touching, [*map(of.__getitem__, touched.tolist())], steps.writes,
            moves[touched] | (begin >= 0) | (length >= 0))
        self._same = [(a, b, same, of[a].block is of[b].block) for a, b, same in steps.same]
        self._dispatches: Dispatches | None = None
        self._watched: Sequence[np.ndarray] = ()
        """The accesses that must not meet."""
        words_at, of_words = steps.words
        offsets_at, sources, _, first, more = steps.offsets
        place_changes = moves[sources] | (first >= 0) | (more >= 0)
        by_word = np.repeat(np.arange(steps.count), steps.word_counts)
        self._changes = steps.groups >= 0
        """By dispatch: whether its words or groups do."""
        self._changes[by_word[words_at]] = True
        self._changes[by_word[offsets_at[place_changes]]] = True
        self._groups = steps.groups[self._changes]
        """Of those that change: numbers, ..."""
        self._is_changing = self._changes[by_word]
        among = np.cumsum(self._is_changing) - 1
        self._words = among[words_at], of_words
        """... words, and ..."""
        self._offsets = [column[place_changes] for column in steps.offsets]
        """... those that say where sources lie, ..."""
        self._offsets[0] = among[self._offsets[0]]
        self._push = np.zeros(0, np.uint32)
        """... among these."""

    def holds(self, bases: np.ndarray) -> bool:
        """Whether the same sources are the same memory as where dispatches were left out."""
        return all(same == (in_one and bases[a] == bases[b])
                   for a, b, same, in_one in self._same)

    def at(
        self, bases: np.ndarray, numbers: np.ndarray
    ) -> tuple[Dispatches, np.ndarray, np.ndarray]:
        """The dispatches, and the groups and push words of those that change. Raises Unlisted."""
        if self._dispatches is None or not (self._by_block or self._hold(bases, numbers)):
            self._dispatches = None
            self._dispatches = self._ordered(bases, numbers)
        push = self._push.copy()
        at, of = self._words
        push[at] = numbers[of]  # negative ones modulo 2^32
        at, *offsets = self._offsets
        if len(at):
            push[at] = _elements(offsets, bases, numbers)
        return self._dispatches, numbers[self._groups], push

    def _hold(self, bases: np.ndarray, numbers: np.ndarray) -> bool:
        """Whether the waits are enough now."""
        return not self._spans.watched.size or self._spans.hold(
            *_ranges(self._watched, bases, numbers))

    def _ordered(self, bases: np.ndarray, numbers: np.ndarray) -> Dispatches:
        """The dispatches, with the waits that they need now. Raises Unlisted."""
        steps = self._steps
        begins, ends = _ranges(steps.touches[1:], bases, numbers)
        if self._by_block:
            begins, ends = np.zeros_like(begins), np.full_like(ends, 1)
        if not self._spans.order(begins, ends):
            raise Unlisted("too many dispatches that do not wait")
        self._watched = [column[self._spans.watched] for column in steps.touches[1:]]
        push = steps.all_words(bases, numbers)
        self._push = push[self._is_changing]
        return Dispatches(self._engine, self._pipelines, self._spans.waits, self._changes,
                          numbers[steps.groups], push)


def _elements(
    offsets: Sequence[np.ndarray], bases: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """Where sources lie, in elements."""
    of, itemsize, first, more = offsets
    return bases[of] // itemsize + numbers[first] + numbers[more]


def _ranges(
    touches: Sequence[np.ndarray], bases: np.ndarray, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where accesses begin and end in their blocks. Shaders touch whole words."""
    of, itemsize, first, length = touches
    begins = bases[of] + numbers[first] * itemsize
    return begins & ~3, (begins + numbers[length] * itemsize + 3) & ~3


_NOTHING = _Arrays((), np.zeros(0, np.uint32), np.zeros(0, np.int64), *[
    np.zeros((0, count), np.int64) for count in (2, 5, 6)])


def _columns(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """A row of each column."""
    return np.array([*rows], np.int64).T


def _rows(rows: Sequence[Sequence[int]], count: int) -> np.ndarray:
    return np.array([*rows], np.int64).reshape(-1, count)
