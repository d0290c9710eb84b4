"""Plans for many sizes. A builder traces the operators over sizes that are open; what is left to do
for a size that comes is to evaluate words, grids and places.

Memory is laid out for sizes somewhat larger than those that came, so that it serves many.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..compiler import CompiledOperator
from ..desc import MINIMUM_ALIGNMENT
from ..layout import Ints
from ..lowering.plan import PERSISTENT
from ..operators.base import OperatorDesc, bits
from ..runtime.heap import Allocation, AllocationPart, Slot
from ..runtime.pipelines import Compiled, Shader
from ..runtime.windows import SIZE as WINDOW
from ..sizes import Line, Settled, Size, SizeTrace, about, any_open, evaluator, is_open
from .ahead import FIRST_SIZES, compiles_ahead, sizes_around
from .array import Array
from .builder import Builder
from .ends import Ends, OuterTensor
from .listed import (
    Forms,
    Lies,
    ListedSteps,
    Piece,
    PlacedSources,
    Source,
    Sources,
    Unlisted,
    Words,
)
from .memory import MemoryUse, Storage, aligned, share, side_by_side
from .node import Node
from .open_operator import OpenOperator, OperatorClass, SizesOnly, open_sizes
from .planner import Preparations
from .recorded import RecordedPlan, Result
from .step import Step, begin, begin_ahead, run_in_place
from .switches import IN_PLACE, MEMORY, disabled

if TYPE_CHECKING:
    from ..device import Device

_LEAST, _SHARE, _GROWS = 16, 8, 2
"""Memory is laid out for larger sizes, in steps of so many; the first time by at least one part in
so many, and where sizes have outgrown it again and again, by one part in so few, of the variables
together."""


def room_for(size: int, part: int) -> int:
    """The size that memory is laid out for: larger by at least one part in ``part``."""
    return -(-(size + size // part + 1) // _LEAST) * _LEAST


class OpenBuilder(Builder):
    """Collects the operators of a plan over open sizes."""

    def __init__(self, device: Device, trace: SizeTrace, values: Sequence[int],
                 prepared: Preparations | None = None) -> None:
        super().__init__(device, prepared)
        self.trace: SizeTrace = trace
        self.values = values
        self.written: list[tuple[Array, list[object]]] = []
        """Arrays of numbers that depend on sizes. They are uploaded where the sizes are known."""
        self.open: dict[int, OpenOperator] = {}
        """Operators by what was compiled for the first sizes."""
        self.nodes_of: dict[int, Node] = {}
        """By step."""
        self._known: dict[Hashable, CompiledOperator] = {}

    def filled(self, shape: Sequence[int], number: int, dtype: npt.DTypeLike) -> Array:
        return self.numbers(np.full(shape, number, object), dtype) if is_open(
            number) else super().filled(shape, number, dtype)

    def numbers(self, values: np.ndarray, dtype: npt.DTypeLike) -> Array:
        if not any_open(values.flat):
            return super().numbers(values, dtype)
        x = self.new(values.shape, dtype)
        self.written.append((x, values.reshape(-1).tolist()))
        return replace(x, host=values)

    @property
    def expectations(self) -> int:
        return super().expectations + len(self.written)

    def lower(
        self, inputs: Sequence[Array], outputs: Sequence[Array], *, runs: bool = False
    ) -> list[Step]:
        return super().lower([*inputs, *[x for x, _ in self.written]], outputs, runs=runs)

    def runs_once(self, node: Node, visible: Collection[Storage]) -> bool:
        return not open_sizes(node.desc) and super().runs_once(node, visible)

    def step_of(self, node: Node) -> Step:
        self.trace.label = node.label
        step = super().step_of(node)
        self.nodes_of[id(step)] = node
        return step

    def compiled_for(self, desc: OperatorDesc, constants: frozenset[str]) -> CompiledOperator:
        if not open_sizes(desc):
            return super().compiled_for(desc, constants)
        key = bits(desc), constants
        compiled = self._known.get(key)
        if compiled is None:
            operator = OpenOperator(
                self.device, self.trace, desc, constants, self.flags, self.trace.label)
            compiled = self._known[key] = operator.at(self.values)[0].compiled
            self.open[id(compiled)] = operator
        return compiled

    @property
    def allocated(self) -> int:
        """Bytes of the plan's own memory so far."""
        return self._allocated

    def prepare(self) -> None:
        """Note what constants need before the next run."""
        self._prepare()

    def bound(self, node: Node, compiled: CompiledOperator) -> list[Storage | None]:
        """The storages of a step, but for its scratch memory. What constants need is noted."""
        storages = node.storages
        plan = compiled.plan
        places: dict[str, Storage | None] = {
            f: s for f, s in storages.items() if f not in plan.repacked}
        if plan.repacked:
            places[PERSISTENT] = self._initialize(compiled, storages)
        return [places.get(slot) for slot in compiled.slots]

    def finish_open(
        self, inputs: Sequence[Array], outputs: Sequence[Array], resident: Sequence[Array] = (),
        *, bound: bool = False,
    ) -> OpenPlan:
        """:meth:`finish`, for many sizes."""
        ends = self._ends(inputs, outputs, bound)
        kept = {} if bound else self._append_in_place(inputs, ends)
        steps = self.lower(inputs, ends, runs=True)
        ours = {id(a.storage) for a in (*inputs, *ends, *[x for x, _ in self.written])}
        inner = [s for s in self.storages
                 if s.first >= 0 and not s.constant and id(s) not in ours]
        if IN_PLACE not in disabled():
            run_in_place(steps, inner)
        return OpenPlan(self, steps, inputs, ends, resident, kept, inner, bound)


class _OpenStep:
    """A step whose operator has open sizes."""

    def __init__(self, operator: OpenOperator, node: Node, scratch: Storage) -> None:
        self.operator, self.node, self.scratch = operator, node, scratch
        self.storages: weakref.WeakKeyDictionary[OperatorClass | SizesOnly, list[Storage | None]]
        self.storages = weakref.WeakKeyDictionary()
        """By class, as are ..."""
        self.pieces: weakref.WeakKeyDictionary[OperatorClass, Piece] = weakref.WeakKeyDictionary()
        """... its dispatches in arrays."""


class _MemoryLayout:
    """Memory for somewhat larger sizes than those that came."""

    def __init__(self, capacity: Sequence[int], twins: dict[Storage, Storage]) -> None:
        self.capacity = np.array(capacity, np.int64)
        """Bytes of each storage that is no part of another, those of scratch memory last."""
        self.twins = twins
        """Storages with memory, by those that were traced."""
        self.memory = MemoryUse(0, 0)
        self.nbytes = 0
        """Bytes of its memory, without constants."""
        self.placed: dict[
            int, tuple[OperatorClass | SizesOnly | None, list[Storage | None]]] = {}
        """By step: the storages with memory, and of which class they are."""
        self.closed: dict[int, Step] = {}
        """Steps whose operators have no open sizes."""
        self.ends: Ends | None = None
        """Where inputs and outputs lie, once these have memory."""
        self.moving: set[Storage] = set()
        """What lies elsewhere in each run, by its twin."""
        self.words: Allocation | None = None
        """Where the words lie that depend on sizes, if they come with the inputs."""
        self.sources: PlacedSources | None = None
        """Where the sources of listed steps lie."""

    def anywhere(self) -> Allocation | None:
        """Any memory of it, for what needs none."""
        return next((s.root.allocation for s in self.twins.values()
                     if s.root.allocation is not None), None)


class _Listing:
    """The steps of one class of each operator in arrays."""

    def __init__(
        self, steps: ListedSteps, classes: Classes, pipelines: Sequence[Compiled],
        lines: Sequence[Line], settled: Sequence[int], begins: Sequence[int],
    ) -> None:
        """All numbers are those of the lines from ``begins`` on, and from the end the ``settled``
        ones."""
        self._lines = lines
        self.steps, self.classes, self.pipelines = steps, classes, pipelines
        self._count = begins[-1]
        self._numbers = np.array([*[0] * begins[-1], *reversed(settled)], np.int64)
        self.needs = self.of = self.scratch = np.zeros(0, np.int64)
        """Bytes that are needed, and of which storages of a layout's capacity; and the bytes of
        scratch memory of each step with open sizes, by number, as is all that follows."""
        self.words = np.zeros(0, np.uint8)
        """What is uploaded, but for numbers that change."""
        self.words_at = np.zeros((2, 0), np.int64)
        """Sources that are words of an operator, and where they lie in there."""
        self.changes: list[tuple[np.dtype[Any], np.ndarray, np.ndarray]] = []
        """The types of elements there, their places, and the numbers that go there."""

    def at(self, values: Sequence[int]) -> np.ndarray | None:
        """All numbers for these values of the variables. None for values that it does not serve.
        Values that are about as large as others have the kernels of these."""
        lines: list[Sequence[int]] = []
        for line in self._lines:
            if (numbers := line.of(values)) is None:
                return None
            lines.append(numbers)
        return self.numbers(lines)

    def numbers(self, lines: Iterable[Sequence[int]]) -> np.ndarray:
        """All numbers, by line."""
        numbers = self._numbers.copy()
        numbers[:self._count] = [*chain.from_iterable(lines)]
        return numbers


Classes: TypeAlias = "dict[OpenOperator, OperatorClass | SizesOnly]"
MAX_LISTINGS, _MAX_SOURCES = 32, 1 << 14
"""The most choices of classes whose steps are in arrays, of which the least recently used one is
dropped, and the most sources of steps: then all are listed anew."""


class OpenPlan:
    """What the plans of many sizes have in common."""

    def __init__(
        self, builder: OpenBuilder, steps: Sequence[Step], inputs: Sequence[Array],
        outputs: Sequence[Array], resident: Sequence[Array], kept: Mapping[int, int],
        inner: Sequence[Storage], bound: bool,
    ) -> None:
        self._bound = bound
        """Whether each run brings the memory of inputs and outputs."""
        self._builder, self._steps, self.kept = builder, steps, kept
        self._inputs, self._outputs, self._resident = inputs, outputs, resident
        self._trace = trace = builder.trace
        self._variables = len(builder.values)
        self._operators: list[OpenOperator] = []
        self._open: list[_OpenStep | None] = []
        self._scratch: dict[Storage, int] = {}
        """The bytes of the memory that only a step uses."""
        for number, step in enumerate(steps):
            operator = builder.open.get(id(step.compiled))
            if operator is None:
                self._open.append(None)
                continue
            scratch = step.storages[-2] or Storage(0, number, number)
            self._scratch[scratch] = 0
            self._open.append(_OpenStep(operator, builder.nodes_of[id(step)], scratch))
            if operator not in self._operators:
                self._operators.append(operator)
        ends = [a.storage for a in (*inputs, *outputs) if a.storage is not None]
        used = dict.fromkeys([*ends, *[s for step in steps for s in step.storages
                                       if s is not None]])
        every = [s for s in used if s.root.allocation is None]
        written = {x.storage: x for x, _ in builder.written}
        self._every = [s for s in every if s not in self._scratch and s.root not in written]
        self._written = [(x, evaluator(trace, values)) for x, values in builder.written]
        self._of_written = {s for s in every if s.root in written}
        """What lies in arrays that are uploaded for each size, ..."""
        self._written_at = dict(zip(written, _side_by_side(self._chunks(()))))
        """... and where these lie in there."""
        self._roots = list(dict.fromkeys(s.root for s in self._every))
        outer = {s.root for s in ends}
        self._inner = [s for s in self._roots if s not in outer]
        self._twinned = {*self._every, *self._scratch}
        self._bytes = evaluator(trace, [s.nbytes for s in self._roots])
        self._checks = checks = builder.checks(inputs)
        self._line = line = Line(trace)
        shapes = [tuple([line.add(n) for n in a.shape]) for a in (*inputs, *outputs)]
        each_once = {shape: i for i, shape in enumerate(dict.fromkeys(shapes))}
        self._shape_of = [each_once[shape] for shape in shapes]
        """The numbers of the shapes of inputs and outputs: caches of many layers have the same."""
        self._ranks = [*map(len, each_once)]
        """Of each shape, whose sizes and then ..."""
        self._of_rest = np.array([*chain.from_iterable(each_once), *[
            line.add(n) for _, allowed in checks for each in allowed
            for n in (each.low, each.end, each.step)]], np.int64)
        """... the bounds of numbers that are checked are in these places in the plan's line."""
        self._begins = {s: line.add(s.begin) for s in used
                        if s.root not in written and is_open(s.begin)}
        """Where parts begin that do so where sizes say, by place in the line, as are ..."""
        self._of_bytes = [line.add(s.nbytes) for s in self._roots]
        self._of_written_numbers = self._in_line([n for _, n in builder.written])
        """... the numbers of arrays that depend on sizes. None if some are not whole."""
        self._sources = Sources()
        self._closed: dict[int, Piece] = {}
        """By step without open sizes."""
        self._params: dict[OpenOperator, Words] = {}
        self._moving = {*self._begins, *self._of_written}
        self._layout: _MemoryLayout | None = None
        self._words_room = 0
        """The most bytes of words that depend on sizes, so far, and as many more."""
        self._listings: dict[Sequence[object], _Listing | None] = {}
        """By the classes of operators, the last used ones at the end. None where these cannot be
        listed."""
        self._listed_at: dict[Ints, _Listing] = {}
        """By how large the variables are, those of the last values that are about as large: kernels
        are chosen by that."""
        self._pipelines: weakref.WeakKeyDictionary[OperatorClass | SizesOnly, list[Compiled]]
        self._pipelines = weakref.WeakKeyDictionary()
        self.results: list[weakref.ref[Result]] = []
        """Of the last run, whatever its sizes."""
        self.layouts = 0
        """How often memory was laid out."""
        self._count = 0
        """How many sizes came so far."""
        self.lowered = 0
        """Operators that were lowered, for a class of sizes each."""

    @property
    def nbytes(self) -> int:
        """Bytes of its memory, without constants."""
        return 0 if self._layout is None else self._layout.nbytes

    @property
    def shaders(self) -> set[Shader]:
        """The shaders of all its plans."""
        return self._builder.shaders

    @property
    def settled(self) -> list[Settled]:
        """Where code took a number that depends on sizes."""
        return [*self._trace.settled,
                *[s for o in self._operators for c in o.classes for s in c.settled]]

    @property
    def listed(self) -> int:
        """For how many choices of classes the steps are in arrays."""
        return sum(listing is not None for listing in self._listings.values())

    @property
    def sized(self) -> list[str]:
        """The operators that are lowered anew for each size, and why."""
        return [o.why for o in self._operators if o.why]

    def serves(self, values: Sequence[int]) -> bool:
        """Whether it has a plan for these values of the trace's variables."""
        return self._line.of(values) is not None

    def at(self, values: Sequence[int]) -> RecordedPlan | None:
        """The plan for these values of the trace's variables. None if it does not serve them."""
        magnitudes = tuple([about(n) for n in values])
        listing = self._listed_at.get(magnitudes)
        if listing is not None and (all_numbers := listing.at(values)) is not None:
            self._count += 1
            return self._listed(values, listing, all_numbers)
        lines: list[Sequence[int]] = []
        if (plan_numbers := self._line.of(values)) is None:
            return None
        lines.append(plan_numbers)
        classes: Classes = {}
        new: list[OpenOperator] = []
        for operator in self._operators:
            c, numbers = operator.at(values)
            classes[operator] = c
            lines.append(numbers)
            if c not in self._pipelines:
                self._pipelines[c] = begin(self._builder.device, [c.compiled])
                self.lowered += 1
                if self._count < FIRST_SIZES or not self._builder.shaders.issuperset(
                        c.compiled.pipelines()):
                    new.append(operator)
                self._builder.shaders.update(c.compiled.pipelines())
        self._count += 1
        self._compile_ahead(values, new)
        listing = self._listing(classes, lines)
        if listing is not None:
            self._listed_at[magnitudes] = listing
            return self._listed(values, listing, listing.numbers(lines))
        compiled = {operator: c.at(values) for operator, c in classes.items()}
        layout = self._room(values, [compiled[opened.operator].plan.temporary_bytes
                                     for opened in self._open if opened is not None])
        held = self._upload(self._words(values, compiled.values()))
        all_numbers = np.array([*plan_numbers, *reversed(self._line.settled)], np.int64)
        steps = self._steps_at(all_numbers, layout, classes, compiled, held)
        return self._recorded(layout, steps, all_numbers, [
            p for each in self._pipelines.values() for p in each])

    def _in_line(self, lists: Sequence[Sequence[object]]) -> list[list[int]] | None:
        """The places of numbers in the plan's line. None if some are not whole."""
        try:
            return [[self._line.add(n) for n in numbers] for numbers in lists]
        except TypeError:
            return None

    def _steps_at(
        self, numbers: np.ndarray, layout: _MemoryLayout, classes: Classes,
        compiled: Mapping[OpenOperator, CompiledOperator], held: Allocation | None,
    ) -> list[Step]:
        """The steps, with memory. ``numbers`` are those of the plan's line."""
        twins, builder = layout.twins, self._builder
        if self._begins:
            twins = {**twins, **{s: twins.get(s.root, s.root).part(int(numbers[at]), 0)
                                 for s, at in self._begins.items()}}
        if held is not None:
            at = iter(_side_by_side(self._chunks(
                [len(o.plan.params) for o in compiled.values()])))
            roots = {x.storage: Storage(x.storage.nbytes, allocation=held, offset=next(at))
                     for x, _ in self._written if x.storage is not None}
            for operator in compiled.values():
                if operator.plan.params:
                    operator.reads_words_at(Slot(held, next(at)))
            twins = {**twins, **{s: roots[s.root].part(s.begin, 0) for s in self._of_written}}
        steps = []
        for number, (step, opened) in enumerate(zip(self._steps, self._open)):
            if opened is None:
                closed = layout.closed.get(number)
                if closed is None:
                    closed = Step(step.compiled, self._places(
                        layout, number, None, step.storages, twins))
                    if number in layout.placed:
                        layout.closed[number] = closed
                steps.append(closed)
                continue
            c, now = classes[opened.operator], compiled[opened.operator]
            places = self._places(layout, number, c, self._storages(opened, c), twins)
            if now.plan.temporary_bytes:
                places = [*places[:-2], twins[opened.scratch], places[-1]]
            steps.append(Step(now, places))
        builder.prepare()
        return steps

    def _storages(
        self, opened: _OpenStep, of: OperatorClass | SizesOnly
    ) -> list[Storage | None]:
        """The storages of a step, but for its scratch memory."""
        if of not in opened.storages:
            opened.storages[of] = self._builder.bound(opened.node, of.compiled)
        return opened.storages[of]

    def _compile_ahead(self, values: Sequence[int], operators: Sequence[OpenOperator]) -> None:
        """Let threads compile what operators take at sizes around these."""
        device = self._builder.device
        if not operators or not compiles_ahead(device):
            return
        around = [v for v in sizes_around(values) if self.serves(v)]
        shaders = set().union(*(operator.shaders_at(around) for operator in operators))
        begin_ahead(device, shaders)
        self._builder.shaders.update(shaders)

    def _places(
        self, layout: _MemoryLayout, number: int, of: OperatorClass | SizesOnly | None,
        storages: Sequence[Storage | None], twins: Mapping[Storage, Storage],
    ) -> list[Storage | None]:
        """The storages of a step with memory. They are the same for all sizes of a layout, but for
        those that begin where sizes say."""
        known, places = layout.placed.get(number, (None, None))
        if places is None or known is not of:
            places = [None if s is None else twins.get(s, s) for s in storages]
            if self._moving.isdisjoint(storages):
                layout.placed[number] = of, places
        return places

    def _chunks(self, params: Iterable[int]) -> list[int]:
        """The bytes of what is uploaded for each size: numbers that depend on sizes, and then the
        words that operators read, so many of each."""
        return [*[x.size * x.dtype.itemsize for x, _ in self._written],
                *[4 * count for count in params if count]]

    def _words(
        self, values: Sequence[int], operators: Collection[CompiledOperator]
    ) -> np.ndarray:
        """What is uploaded for these sizes, together."""
        chunks = [np.array(read(*values)).astype(x.dtype) for x, read in self._written]
        chunks += [(np.array(o.plan.params, np.int64) & 0xFFFFFFFF).astype(np.uint32)
                   for o in operators if o.plan.params]
        *places, end = _side_by_side(self._chunks([len(o.plan.params) for o in operators]))
        words = np.zeros(end, np.uint8)
        for first, chunk in zip(places, chunks):
            words[first : first + chunk.nbytes] = chunk.view(np.uint8)
        return words

    def _upload(self, words: np.ndarray) -> Allocation | None:
        if not words.size:
            return None
        device = self._builder.device
        with device.runtime.lock:
            held = device.allocate(words.size, True)
            device.runtime.transfer.upload(words, held, 0)
        return held

    def _listing(self, classes: Classes, lines: Sequence[Sequence[int]]) -> _Listing | None:
        """The steps of these classes in arrays, whose lines have so many numbers. None where they
        cannot be listed."""
        if not self._builder.device.runtime.engine.records_many:
            return None
        key = tuple(classes.values())
        if key in self._listings:
            listing = self._listings[key] = self._listings.pop(key)
            return listing
        if len(self._sources.all) > _MAX_SOURCES:
            self._list_anew()
        listing = None
        with contextlib.suppress(Unlisted, TypeError):  # of numbers that are not whole
            listing = self._in_arrays(classes, lines)
        self._listings[key] = listing
        if len(self._listings) > MAX_LISTINGS:
            del self._listings[next(iter(self._listings))]
        if len(self._listed_at) >= MAX_LISTINGS:
            self._listed_at.clear()
        return listing

    def _list_anew(self) -> None:
        """Forget all sources, and what refers to them."""
        self._sources = Sources()
        self._listings.clear()
        self._listed_at.clear()
        self._closed.clear()
        for opened in self._open:
            if opened is not None:
                opened.pieces.clear()
        if self._layout is not None:
            self._layout.sources = None

    def _in_arrays(self, classes: Classes, lines: Sequence[Sequence[int]]) -> _Listing:
        """The steps of these classes in arrays. Raises Unlisted, or TypeError."""
        of = {o: c for o, c in classes.items() if isinstance(c, OperatorClass)}
        if len(of) < len(classes) or self._of_written_numbers is None:
            raise Unlisted("operators that are lowered for each size")
        pieces: list[Piece] = []
        operators: list[OpenOperator | None] = []
        for number, opened in enumerate(self._open):
            pieces.append(self._closed_piece(number) if opened is None else self._piece(
                opened, of[opened.operator]))
            operators.append(None if opened is None else opened.operator)
        self._builder.prepare()
        # After the pieces: those without open sizes add numbers to the plan's line.
        begins = [0, *accumulate(map(len, lines))]
        settled, ends = self._line.settled, dict[OpenOperator, int]()
        for o, c in of.items():
            ends[o] = len(settled)
            settled += c.line.settled
        places: dict[OpenOperator | None, tuple[int, int]] = {None: (0, 0), **{
            o: (begin, ends[o]) for o, begin in zip(of, begins[1:])}}

        def of_all(o: OpenOperator | None, n: int) -> int:
            """The place of a number of an operator's line, or of the plan's, among all."""
            begin, end = places[o]
            return n + begin if n >= 0 else n - end

        listing = _Listing(
            ListedSteps(self._builder.device, pieces, [places[o] for o in operators]), classes,
            [p for c in classes.values() for p in self._pipelines[c]],
            [self._line, *[c.line for c in of.values()]], settled, begins)
        scratch = {s: i for i, s in enumerate(self._scratch, len(self._roots))}
        listing.scratch = np.array([of_all(o, of[o].of_scratch) for o in operators if o], np.int64)
        listing.needs = np.array([*self._of_bytes, *listing.scratch], np.int64)
        listing.of = np.array([*range(len(self._roots)), *[
            scratch[opened.scratch] for opened in self._open if opened is not None]], np.int64)
        *firsts, end = _side_by_side(self._chunks([len(c.of_params) for c in of.values()]))
        listing.words = np.zeros(end, np.uint8)
        at = iter(firsts)
        changes: dict[np.dtype[Any], list[tuple[int, int]]] = {}
        for (x, _), numbers, first in zip(self._written, self._of_written_numbers, at):
            changes.setdefault(x.dtype, []).extend(
                (first // x.dtype.itemsize + i, n) for i, n in enumerate(numbers))
        of_words = []
        for o, c in of.items():
            if c.of_params:
                first = next(at)
                changes.setdefault(np.dtype(np.uint32), []).extend(
                    (first // 4 + i, of_all(o, n)) for i, n in enumerate(c.of_params))
                of_words.append((self._sources.number(self._params[o]), first))
        listing.words_at = np.array(of_words, np.int64).reshape(-1, 2).T
        listing.changes = [(dtype, *np.array(pairs, np.int64).reshape(-1, 2).T)
                           for dtype, pairs in changes.items()]
        return listing

    def _piece(self, opened: _OpenStep, c: OperatorClass) -> Piece:
        """A step of a class in arrays. Raises Unlisted."""
        if c not in opened.pieces:
            if c.forms is None:
                raise Unlisted("a class without forms")
            runtime = self._builder.device.runtime
            *tensors, _, persistent = map(self._source, self._storages(opened, c))
            with runtime.lock:
                nbytes = c.compiled.plan.zeroed_bytes
                zeroed = runtime.zeros.take(nbytes) if nbytes else None
            params = self._params.setdefault(opened.operator, Words()) if c.of_params else None
            opened.pieces[c] = Piece(
                c.forms, [*tensors, opened.scratch, persistent, zeroed, params], self._sources,
                _same)
        return opened.pieces[c]

    def _closed_piece(self, number: int) -> Piece:
        """A step without open sizes in arrays. Raises Unlisted, or TypeError."""
        if number not in self._closed:
            step = self._steps[number]
            with self._builder.device.runtime.lock:
                own = step.compiled.own_memory()
            self._closed[number] = Piece(
                Forms(step.compiled, None, self._line),
                [*map(self._source, step.storages), *own], self._sources, _same)
        return self._closed[number]

    def _source(self, s: Storage | None) -> Storage | None:
        """The source at a slot. Raises Unlisted."""
        if s is not None and s in self._of_written and is_open(s.begin):
            raise Unlisted("a part of numbers that begins where sizes say")
        return s

    def _listed(
        self, values: Sequence[int], listing: _Listing, numbers: np.ndarray
    ) -> RecordedPlan:
        """The plan for these values, by steps in arrays."""
        if listing.words.size > self._words_room:
            self._words_room = 2 * listing.words.size
            if self._layout is not None and self._layout.words is not None:
                self._layout = None
        layout = self._layout
        if layout is None or np.any(numbers[listing.needs] > layout.capacity[listing.of]):
            layout = self._room(values, numbers[listing.scratch].tolist())
        words = listing.words.copy()
        for dtype, places, of in listing.changes:
            words.view(dtype)[places] = numbers[of]
        held = self._upload(words) if layout.words is None else layout.words

        def steps() -> list[Step]:
            return self._steps_at(
                numbers, layout, listing.classes,
                {o: c.at(values) for o, c in listing.classes.items()}, held)

        plan = self._recorded(layout, steps, numbers, listing.pipelines)
        if layout.words is not None:
            plan.words = words
        if layout.sources is None:
            layout.sources = PlacedSources(self._sources, lambda source: self._lies(source, layout))
        sources, at = layout.sources, (listing.words_at[0], listing.words_at[1])
        plan.record_at_once = lambda: sources.record(listing.steps, numbers, at, held)
        return plan

    def _lies(self, source: Source, layout: _MemoryLayout) -> Lies:
        """Where a source lies in a layout."""
        if isinstance(source, Words):
            return Lies(layout.words, 0)
        if isinstance(source, tuple):
            return Lies(*source)
        if source.root in self._written_at:
            return Lies(layout.words, self._written_at[source.root] + source.begin)
        number = self._begins.get(source)
        if source not in self._twinned:
            return Lies(*(source if number is None else source.root).slot(), number)
        here = layout.twins[source if number is None else source.root]
        root, begin = here.root, here.begin
        if root in layout.moving:
            return Lies(root, begin, number)
        if root.allocation is None:  # it has no bytes, as no step needs them
            return Lies(layout.anywhere(), 0)
        return Lies(root.allocation, root.offset + begin, number)

    def _room(self, values: Sequence[int], scratch: Iterable[int]) -> _MemoryLayout:
        """A layout of memory for these sizes, and for so many bytes of scratch memory of each step
        with open sizes. A new one if they need more."""
        larger = False
        for opened, nbytes in zip([x for x in self._open if x is not None], scratch):
            if nbytes > self._scratch[opened.scratch]:
                self._scratch[opened.scratch] = room_for(nbytes, self._part)
                larger = True
        sizes, layout = self._bytes(*values), self._layout
        if larger or layout is None or np.any(layout.capacity[:len(sizes)] < sizes):
            layout = self._layout = self._lay_out(values, sizes)
        return layout

    @property
    def _part(self) -> int:
        """Sizes that grow on and on outgrow memory ever less often: it grows by a larger part each
        time."""
        return max(_SHARE >> self.layouts, _GROWS * self._variables)

    def _lay_out(self, values: Sequence[int], sizes: Sequence[int]) -> _MemoryLayout:
        """Memory for somewhat larger sizes. Plans that were made before keep theirs."""
        builder, part = self._builder, self._part
        self.layouts += 1
        room = list(sizes)
        try:
            room = self._bytes(*[room_for(n, part) for n in values])
            if max(room, default=0) > builder.device.runtime.engine.max_buffer:
                room = list(sizes)
        except (ArithmeticError, ValueError):
            pass
        capacity = [*map(max, room, sizes)]
        twins = {s: Storage(n, s.first, s.last) for s, n in zip(self._roots, capacity)}
        layout = _MemoryLayout([*capacity, *self._scratch.values()], twins)
        for s in self._every:
            if s is not s.root and type(s.begin) is not Size:
                twins[s] = twins[s.root].part(s.begin, 0)
        twins.update({s: Storage(n, s.first, s.last) for s, n in self._scratch.items()})

        def twin(a: Array) -> Storage:
            assert a.storage is not None
            return twins[a.storage]

        used = [i for i, a in enumerate(self._inputs) if not self._bound
                and a.storage is not None and a.storage.first >= 0 and i not in self.kept]
        staged = [i for i in used if self._inputs[i] not in self._resident]
        together: list[int] = []
        words = Storage(self._words_room)
        end = aligned(words.nbytes)
        for i in sorted(staged, key=lambda i: twin(self._inputs[i]).nbytes):
            end += aligned(twin(self._inputs[i]).nbytes)
            if end <= WINDOW:
                together.append(i)
        layout.moving = {twin(a).root for i, a in enumerate(self._inputs)
                         if a.storage is not None and i not in together}
        if self._bound:
            layout.moving |= {twin(y).root for y in self._outputs if y.storage is not None}
        fresh = [y for j, y in enumerate(self._outputs)
                 if not self._bound and j not in self.kept.values()]
        with_words = bool(together and words.nbytes)
        before = builder.allocated
        for n, group in enumerate([[self._inputs[i] for i in together], *[
                [self._inputs[i]] for i in used if i not in together], fresh]):
            present = [twin(a) for a in group if a.storage is not None]
            if with_words and not n:
                present.append(words)
            builder.allocate(present, side_by_side(present), side_by_side)
        if with_words and words.allocation is not None:
            layout.words = AllocationPart(words.allocation, words.offset, words.nbytes)
        inputs, outputs = ([OuterTensor(a.dtype, None if a.storage is None else twin(a))
                            for a in arrays] for arrays in (self._inputs, self._outputs))
        layout.ends = Ends(builder.device, inputs, together, outputs, self.kept,
                           OuterTensor(np.dtype(np.uint8), words) if with_words else None)
        inner = [s for s in (*map(twins.__getitem__, self._inner),
                             *map(twins.__getitem__, self._scratch)) if s.nbytes]
        apart = MEMORY in disabled()
        layout.memory = share(inner, apart=apart)
        builder.allocate(inner, layout.memory.planned, side_by_side if apart else share)
        layout.nbytes = builder.allocated - before
        return layout

    def _recorded(
        self, layout: _MemoryLayout, steps: Sequence[Step] | Callable[[], Sequence[Step]],
        numbers: np.ndarray, pipelines: Sequence[Compiled],
    ) -> RecordedPlan:
        """The plan, with ``numbers`` of the plan's line."""
        assert layout.ends is not None
        rest = iter(numbers[self._of_rest].tolist())
        shapes = [tuple(islice(rest, rank)) for rank in self._ranks]
        expected = [(i, tuple([each._replace(low=low, end=end, step=step)
                               for each, low, end, step in zip(allowed, rest, rest, rest)]), where)
                    for (i, allowed), where in self._checks.items()]
        plan = RecordedPlan(
            self._builder.device, steps, layout.ends, [shapes[i] for i in self._shape_of],
            layout.memory, layout.nbytes, expected)
        plan.pipelines = pipelines
        plan.common = self
        return plan


def _side_by_side(chunks: Sequence[int]) -> list[int]:
    """Where chunks of so many bytes begin, and where the last one ends."""
    return [0, *accumulate(-(-n // MINIMUM_ALIGNMENT) * MINIMUM_ALIGNMENT for n in chunks)]


def _same(a: Source, b: Source) -> bool:
    """Whether two sources are the same memory, as far as that is known before they have any."""
    if not isinstance(a, Storage) or not isinstance(b, Storage) or a.root is not b.root:
        return False
    return not any_open((a.begin, b.begin)) and a.begin == b.begin
