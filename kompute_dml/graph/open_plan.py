"""Plans for many sizes. A builder traces the operators over sizes that are open; what is left to do
for a size that comes is to evaluate words, grids and places.

Memory is laid out for sizes somewhat larger than those that came, so that it serves many.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..compiler import CompiledOperator
from ..desc import MINIMUM_ALIGNMENT
from ..layout import packed_strides
from ..lowering.plan import PERSISTENT
from ..operators.base import OperatorDesc, bits
from ..runtime.heap import Slot
from ..runtime.pipelines import Compiled, Shader
from ..runtime.windows import SIZE as WINDOW
from ..sizes import Guards, Settled, Size, SizeTrace, any_open, evaluator, is_open
from .ahead import FIRST_SIZES, compiles_ahead, sizes_around
from .array import Array
from .builder import Builder
from .memory import MemoryUse, Storage, aligned, share, side_by_side
from .node import Node
from .open_operator import OpenOperator, OperatorClass, SizesOnly, open_sizes
from .planner import Preparations
from .recorded import Allowed, RecordedPlan, Result
from .step import Step, begin, begin_ahead, run_in_place
from .switches import IN_PLACE, MEMORY, disabled

if TYPE_CHECKING:
    from ..device import Device

_LEAST, _SHARE = 16, 8
"""Memory is laid out for sizes that are larger by at least one part in so many, in steps of so
many."""


def room_for(size: int) -> int:
    """The size that memory is laid out for."""
    return -(-(size + size // _SHARE + 1) // _LEAST) * _LEAST


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
            compiled = self._known[key] = operator.at(self.values).compiled
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
        ends = self._ends(inputs, outputs)
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
        """By class."""


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
        every = dict.fromkeys([*ends, *[s for step in steps for s in step.storages
                                        if s is not None and s.root.allocation is None]])
        written = {x.storage: x for x, _ in builder.written}
        self._every = [s for s in every if s not in self._scratch and s.root not in written]
        self._written = [(x, evaluator(trace, values)) for x, values in builder.written]
        self._of_written = [s for s in every if s.root in written]
        """What lies in arrays that are uploaded for each size."""
        self._roots = list(dict.fromkeys(s.root for s in self._every))
        outer = {s.root for s in ends}
        self._inner = [s for s in self._roots if s not in outer]
        self._bytes = evaluator(trace, [s.nbytes for s in self._roots])
        self._parts = [s for s in self._every if type(s.begin) is Size]
        """What begins where sizes say."""
        checks: dict[tuple[int, Sequence[Allowed]], str] = {}
        for i, a in enumerate(inputs):
            for x, allowed, where in builder.expected:
                if x.storage is a.storage and x.size == a.size:
                    checks.setdefault((i, allowed), where)
        self._checks = checks
        self._rest = evaluator(trace, [
            *[s.begin for s in self._parts],
            *[n for a in (*inputs, *outputs) for n in a.shape],
            *[n for _, allowed in checks for each in allowed for n in (each.low, each.end)]])
        self._guards = Guards(trace)
        self._moving = {*self._parts, *self._of_written}
        self._placed: dict[
            int, tuple[OperatorClass | SizesOnly | None, list[Storage | None]]] = {}
        """By step: the storages with memory of this layout, and of which class they are."""
        self._closed: dict[int, Step] = {}
        """Steps of this layout whose operators have no open sizes."""
        self._capacity: list[int] = []
        self._twins: dict[Storage, Storage] = {}
        """Storages with memory, by those that were traced."""
        self._together: list[int] = []
        self._memory = MemoryUse(0, 0)
        self.nbytes = 0
        """Bytes of its memory, without constants."""
        self._pipelines: weakref.WeakKeyDictionary[OperatorClass | SizesOnly, list[Compiled]]
        self._pipelines = weakref.WeakKeyDictionary()
        self.results: list[weakref.ref[Result]] = []
        """Of the last run, whatever its sizes."""
        self.layouts = 0
        """How often memory was laid out."""
        self._came = 0
        """How many sizes came so far."""
        self.lowered = 0
        """Operators that were lowered, for a class of sizes each."""

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
    def sized(self) -> list[str]:
        """The operators that are lowered anew for each size, and why."""
        return [o.why for o in self._operators if o.why]

    def serves(self, values: Sequence[int]) -> bool:
        """Whether it has a plan for these values of the trace's variables."""
        return self._guards.hold(values)

    def at(self, values: Sequence[int]) -> RecordedPlan | None:
        """The plan for these values of the trace's variables. None if it does not serve them."""
        if not self.serves(values):
            return None
        builder = self._builder
        classes: dict[OpenOperator, OperatorClass | SizesOnly] = {}
        compiled: dict[OpenOperator, CompiledOperator] = {}
        new: list[OpenOperator] = []
        for operator in self._operators:
            c = classes[operator] = operator.at(values)
            compiled[operator] = c.at(values)
            if c not in self._pipelines:
                self._pipelines[c] = begin(builder.device, [c.compiled])
                self.lowered += 1
                if self._came < FIRST_SIZES or not builder.shaders.issuperset(
                        c.compiled.pipelines()):
                    new.append(operator)
                builder.shaders.update(c.compiled.pipelines())
        self._came += 1
        self._compile_ahead(values, new)
        self._make_room(values, compiled)
        rest = self._rest(*values)
        twins = self._twins
        if self._parts:
            twins = {**twins, **{s: twins[s.root].part(rest[i], 0)
                                 for i, s in enumerate(self._parts)}}
        twins = {**twins, **self._upload(values, [*compiled.values()])}
        steps = []
        for number, (step, opened) in enumerate(zip(self._steps, self._open)):
            if opened is None:
                closed = self._closed.get(number)
                if closed is None:
                    closed = Step(step.compiled, self._places(number, None, step.storages, twins))
                    if number in self._placed:
                        self._closed[number] = closed
                steps.append(closed)
                continue
            c, now = classes[opened.operator], compiled[opened.operator]
            storages = opened.storages.get(c)
            if storages is None:
                storages = opened.storages[c] = builder.bound(opened.node, c.compiled)
            places = self._places(number, c, storages, twins)
            if now.plan.temporary_bytes:
                places = [*places[:-2], twins[opened.scratch], places[-1]]
            steps.append(Step(now, places))
        builder.prepare()
        return self._recorded(steps, rest[len(self._parts):])

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
        self, number: int, of: OperatorClass | SizesOnly | None,
        storages: Sequence[Storage | None], twins: Mapping[Storage, Storage],
    ) -> list[Storage | None]:
        """The storages of a step with memory. They are the same for all sizes of a layout, but for
        those that begin where sizes say."""
        known, places = self._placed.get(number, (None, None))
        if places is None or known is not of:
            places = [None if s is None else twins.get(s, s) for s in storages]
            if self._moving.isdisjoint(storages):
                self._placed[number] = of, places
        return places

    def _upload(
        self, values: Sequence[int], operators: Sequence[CompiledOperator]
    ) -> dict[Storage, Storage]:
        """Upload the words that operators read, and numbers that depend on sizes, all of them
        together. Returns storages with memory for those of such numbers."""
        device, parts, end = self._builder.device, list[np.ndarray](), 0
        chunks = [(np.array(o.plan.params, np.int64) & 0xFFFFFFFF).astype(np.uint32)
                  for o in operators if o.plan.params]
        chunks += [np.array(read(*values)).astype(x.dtype) for x, read in self._written]
        places = []
        for chunk in chunks:
            places.append(end)
            parts += [chunk.view(np.uint8), np.zeros(-chunk.nbytes % MINIMUM_ALIGNMENT, np.uint8)]
            end += chunk.nbytes + -chunk.nbytes % MINIMUM_ALIGNMENT
        if not end:
            return {}
        with device.runtime.lock:
            held = device.allocate(end)
            device.runtime.transfer.upload(np.concatenate(parts), held, 0)
        at = iter(places)
        for operator in operators:
            if operator.plan.params:
                operator.reads_words_at(Slot(held, next(at)))
        roots = {x.storage: Storage(x.storage.nbytes, allocation=held, offset=first)
                 for (x, _), first in zip(self._written, at) if x.storage is not None}
        return {s: roots[s.root].part(s.begin, 0) for s in self._of_written}

    def _make_room(
        self, values: Sequence[int], compiled: Mapping[OpenOperator, CompiledOperator]
    ) -> None:
        """Lay out memory anew where these sizes need more."""
        larger = False
        for opened in self._open:
            if opened is not None:
                nbytes = compiled[opened.operator].plan.temporary_bytes
                if nbytes > self._scratch[opened.scratch]:
                    self._scratch[opened.scratch] = room_for(nbytes)
                    larger = True
        sizes = self._bytes(*values)
        if larger or not self._twins or any(map(int.__gt__, sizes, self._capacity)):
            self._lay_out(values, sizes)

    def _lay_out(self, values: Sequence[int], sizes: Sequence[int]) -> None:
        """Lay out memory for somewhat larger sizes. Plans that were made before keep theirs."""
        builder = self._builder
        self.layouts += 1
        self._placed, self._closed = {}, {}
        room = list(sizes)
        try:
            room = self._bytes(*map(room_for, values))
            if max(room, default=0) > builder.device.runtime.engine.max_buffer:
                room = list(sizes)
        except (ArithmeticError, ValueError):
            pass
        self._capacity = [*map(max, room, sizes)]
        twins = self._twins = {
            s: Storage(n, s.first, s.last) for s, n in zip(self._roots, self._capacity)}
        for s in self._every:
            if s is not s.root and type(s.begin) is not Size:
                twins[s] = twins[s.root].part(s.begin, 0)
        twins.update({s: Storage(n, s.first, s.last) for s, n in self._scratch.items()})
        used = [i for i, a in enumerate(self._inputs) if not self._bound
                and a.storage is not None and a.storage.first >= 0 and i not in self.kept]
        staged = [i for i in used if self._inputs[i] not in self._resident]
        self._together, end = [], 0
        for i in sorted(staged, key=lambda i: self._twin(self._inputs[i]).nbytes):
            end += aligned(self._twin(self._inputs[i]).nbytes)
            if end <= WINDOW:
                self._together.append(i)
        fresh = [y for j, y in enumerate(self._outputs)
                 if not self._bound and j not in self.kept.values()]
        before = builder.allocated
        for group in ([self._inputs[i] for i in self._together],
                      *[[self._inputs[i]] for i in used if i not in self._together], fresh):
            present = [self._twin(a) for a in group if a.storage is not None]
            builder.allocate(present, side_by_side(present), side_by_side)
        inner = [s for s in (*map(twins.__getitem__, self._inner),
                             *map(twins.__getitem__, self._scratch)) if s.nbytes]
        apart = MEMORY in disabled()
        self._memory = share(inner, apart=apart)
        builder.allocate(inner, self._memory.planned, side_by_side if apart else share)
        self.nbytes = builder.allocated - before

    def _twin(self, a: Array) -> Storage:
        assert a.storage is not None
        return self._twins[a.storage]

    def _recorded(self, steps: Sequence[Step], rest: Sequence[int]) -> RecordedPlan:
        at, arrays = 0, []
        for a in (*self._inputs, *self._outputs):
            shape = tuple(rest[at : at + len(a.shape)])
            at += len(shape)
            arrays.append(Array(a.dtype, shape, packed_strides(shape),
                                None if a.storage is None else self._twins[a.storage]))
        left = iter(rest[at:])
        expected = [(i, tuple([each._replace(low=low, end=end)
                               for each, low, end in zip(allowed, left, left)]), where)
                    for (i, allowed), where in self._checks.items()]
        count = len(self._inputs)
        plan = RecordedPlan(
            self._builder.device, steps, arrays[:count], [arrays[i] for i in self._together],
            arrays[count:], self._memory, self.nbytes, expected, self.kept)
        plan.pipelines = [p for each in self._pipelines.values() for p in each]
        plan.common = self
        return plan
