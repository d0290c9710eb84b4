"""Compiles graphs of operators (IDMLDevice1::CompileGraph) into one dispatchable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ..bindings import Dispatchable, Need
from ..compiler import CompiledOperator, ExecutionFlags
from ..desc import MINIMUM_ALIGNMENT
from ..device import Device
from ..errors import ValidationError
from ..runtime.heap import Allocation, Slot
from .desc import GraphDesc
from .fusion import is_of_constants, room_for_weights
from .memory import Storage, aligned, side_by_side
from .node import Node
from .planner import Planner
from .step import Step, begin, plan_memory
from .switches import BRANCHES, disabled
from .wiring import Source, WiredOperator, Wiring, check

_COPIES = ("DML_OPERATOR_ACTIVATION_IDENTITY", "DML_OPERATOR_ELEMENT_WISE_IDENTITY")


@dataclass(frozen=True)
class _BoundPlace:
    """A place in a resource that is bound to the graph."""

    slot: int
    offset: int = 0

    def within(self, places: Sequence[Slot | None]) -> Slot:
        base = places[self.slot]
        assert base is not None  # checked with the bindings
        return Slot(base.allocation, base.byte_offset + self.offset)


Places = list[_BoundPlace | None]


class CompiledGraph(Dispatchable):
    """A graph of operators that is bound and dispatched as one (IDMLCompiledOperator).

    It needs initialization if it has constants or inputs that are OWNED_BY_DML. Values between its
    operators lie in the temporary resource.
    """

    def __init__(self, device: Device, planner: _Planner) -> None:
        self.device = device
        self.name = "DML_GRAPH"
        self.binding_counts = planner.binding_counts
        self.needs = planner.needs
        self.needs_initialization = planner.needs_initialization
        self.initialized = not self.needs_initialization
        self.initializer_temporary_bytes = planner.initializer_temporary_bytes
        self._initializer_needs = planner.initializer_needs
        self.memory = planner.memory
        """The use of the temporary resource by values between the operators."""
        self._steps = planner.placed
        self._pipelines = planner.pipelines
        """What the operators run, held so that a full cache does not let them be compiled anew."""
        self._in_order = BRANCHES in disabled()
        self._copies = planner.copies
        self._kept = planner.kept
        self._folded = planner.folded
        self._prepare = planner.prepare
        self._constants = planner.constants

    def __repr__(self) -> str:
        return f"<CompiledGraph of {len(self._steps)} operators>"

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the shader variants that run at every dispatch."""
        return tuple(v for compiled, _ in self._steps for v in compiled.variants)

    def initializer_needs(self, prefix: str) -> list[Need]:
        """The bindings of an initialization, by slot. ``prefix`` names this graph in messages."""
        return [need._replace(path=prefix + need.path) for need in self._initializer_needs]

    def check_alias(self, a: str, b: str, identical: bool) -> NoReturn:
        """Raise: an input and an output of a graph may not overlap."""
        raise ValidationError(f"{self.name}: expected the ranges of {a} and {b} not to overlap "
                              "(a graph does not run in place), but got ranges that do")

    def run(self, places: Sequence[Slot | None]) -> None:
        """Record the dispatches with checked places: inputs, outputs, temporary, persistent."""
        for compiled, inner in self._steps:
            if self._in_order:
                self.device.runtime.recorder.order_next()
            compiled.run(_resolve(inner, places))
        for source, target, nbytes in self._copies:
            self._copy(source.within(places), target.within(places), nbytes)

    def initialize(self, places: Sequence[Slot | None]) -> None:
        """Record what fills the persistent resource."""
        fixed = [*places, *[Slot(allocation, 0) for allocation in self._constants]]
        for source, target, nbytes in self._kept:
            self._copy(source.within(fixed), target.within(fixed), nbytes)
        for compiled, inner in self._folded:
            compiled.run(_resolve(inner, fixed))
        for compiled, inner in self._prepare:
            compiled.initialize(_resolve(inner, fixed))
        self._constants = []  # copied to the persistent resource
        self.initialized = True

    def _copy(self, source: Slot, target: Slot, nbytes: int) -> None:
        self.device.runtime.transfer.copy(
            source.allocation, source.byte_offset, target.allocation, target.byte_offset, nbytes)


def _resolve(
    inner: Iterable[_BoundPlace | None], places: Sequence[Slot | None]
) -> list[Slot | None]:
    return [None if place is None else place.within(places) for place in inner]


def compile_graph(device: Device, desc: GraphDesc, flags: ExecutionFlags) -> CompiledGraph:
    """Check and compile a graph, for :meth:`Device.compile_graph`."""
    return CompiledGraph(device, _Planner(device, check(device, desc), flags))


Device.graph_compiler = compile_graph


class _Planner(Planner):
    """Gives every tensor of a checked graph its place.

    The slots are inputs, outputs, temporary and persistent resource, in this order. At
    initialization constants follow. What happens once is left to the initialization.
    """

    numbers_once = False

    def __init__(self, device: Device, wiring: Wiring, flags: ExecutionFlags) -> None:
        super().__init__(device)
        self.flags = flags
        self._wiring = wiring
        self.binding_counts = (len(wiring.input_paths), len(wiring.outputs))
        self._temporary = sum(self.binding_counts)
        self._persistent = self._temporary + 1
        constants = {s.node for n in wiring.nodes.values() for s in n.sources if s is not None}
        numbers = [n for n in wiring.constants if n in constants]
        self._fixed = {Source(n, 0): self._persistent + 1 + i for i, n in enumerate(numbers)}
        """The slot at initialization of each tensor that does not change between dispatches."""
        self._input_needs, self._initializer_inputs = self._needs_of_inputs()
        # A tensor that is several outputs of the graph is written to the first of them.
        self._ends: dict[Source, int] = {}
        for i, source in enumerate(wiring.outputs):
            self._ends.setdefault(source, self.binding_counts[0] + i)
        self._of_source: dict[Source, Storage] = {}
        self._sources: dict[Storage, Source] = {}
        self._slots: dict[Storage, int] = {}
        """Where storages lie that are not in the temporary resource."""
        self._once: list[tuple[CompiledOperator, list[_BoundPlace | Storage | None]]] = []
        """Operators that initialize themselves."""
        self._folded: list[tuple[CompiledOperator, list[_BoundPlace | Storage | None]]] = []
        self._results: list[Storage] = []
        """What operators of constants make, at the initialization."""
        self.nodes = [node for n, wired in wiring.nodes.items()
                      if (node := self._node(n, wired)) is not None]
        steps = self.plan(set(self._slots), runs=True)
        self._finish(steps, numbers)
        self.pipelines = begin(device, (step.compiled for step in steps))

    def _needs_of_inputs(self) -> tuple[list[Need], list[Need]]:
        """The bindings of the graph's inputs, for a dispatch and for the initialization."""
        needs = [Need(path, "input") for path in self._wiring.input_paths]
        initial = list(needs)
        for node in self._wiring.nodes.values():
            for tensor, source in zip(node.inputs, node.sources):
                if source is None or source.node is not None or tensor.desc is None:
                    continue
                i, size = source.slot, tensor.desc.total_tensor_size_in_bytes
                alignment = max(MINIMUM_ALIGNMENT, tensor.desc.guaranteed_base_offset_alignment)
                if tensor.desc.owned_by_dml:
                    self._fixed[source] = i
                    needs[i] = needs[i]._replace(
                        absent="OWNED_BY_DML: it is bound to the initializer")
                    initial[i] = _larger(initial[i], size, alignment)
                else:
                    needs[i] = _larger(needs[i], size, alignment)
                    initial[i] = initial[i]._replace(absent="not OWNED_BY_DML")
        return needs, initial

    def _node(self, number: int, wired: WiredOperator) -> Node | None:
        """The operator of a node. None for a copy that is not needed."""
        if (size := _kept_bytes(wired)) and Source(number, 0) not in self._ends:
            assert wired.sources[0] is not None  # checked with the wiring
            self._of_source[Source(number, 0)] = self._storage(wired.sources[0], size)
            return None
        outputs = [Source(number, i) for i in range(len(wired.outputs))]
        return Node(wired.operator.desc, {
            t.slot: self._storage(s, t.desc.total_tensor_size_in_bytes)
            for t, s in (*zip(wired.inputs, wired.sources), *zip(wired.outputs, outputs))
            if s is not None and t.desc is not None
        })

    @property
    def weights_taken(self) -> int:
        return sum(s.nbytes for s in self._results)

    def _run_once(self, node: Node, slot: str, storage: Storage) -> bool:
        """Let an operator of constants run at the initialization.

        One of no inputs at all runs at every dispatch: a graph without constants needs none.
        """
        room = room_for_weights(self.device, self.weights_taken)
        if not is_of_constants(node, room) or not any(node.slots("input")):
            return False
        compiled = self.compiled_for(node.desc, frozenset())
        scratch = _BoundPlace(self._temporary) if compiled.plan.temporary_bytes else None
        places = [self._first_place(node.storages.get(t)) for t in compiled.slots[:-2]]
        self._folded.append((compiled, [*places, scratch, None]))
        self._slots[storage], storage.constant = self._persistent, True
        self._results.append(storage)
        return True

    def _initialize(
        self, compiled: CompiledOperator, storages: Mapping[str, Storage]
    ) -> Storage | None:
        nbytes, repacked = compiled.plan.persistent_bytes, compiled.plan.repacked
        persistent = self.storage(nbytes) if nbytes else None
        if persistent is not None:
            self._slots[persistent] = self._persistent
        places = [self._first_place(storages[t]) if t in repacked else None
                  for t in compiled.slots[:-2]]
        scratch = _BoundPlace(self._temporary) if compiled.initializer_temporary_bytes else None
        self._once.append((compiled, [*places, scratch, persistent]))
        return persistent

    def _prepare(self) -> None:
        begin(self.device, (c for c, _ in (*self._once, *self._folded)), once=True)

    def _first_place(self, storage: Storage | None) -> _BoundPlace | Storage | None:
        """Where a constant lies at the initialization."""
        source = None if storage is None else self._sources.get(storage.root)
        if storage is None or source not in self._fixed:
            return storage
        return _BoundPlace(self._fixed[source], storage.begin)

    def _storage(self, source: Source, nbytes: int) -> Storage:
        """The storage of a tensor."""
        storage = self._of_source.get(source)
        if storage is None:
            storage = self._of_source[source] = self.storage(0)
            storage.constant = source in self._fixed
            if storage.constant:
                self._slots[storage] = self._persistent
            elif source.node is None:
                self._slots[storage] = source.slot
            elif source in self._ends:
                self._slots[storage] = self._ends[source]
            self._sources[storage] = source
            data = self._wiring.constants.get(-1 if source.node is None else source.node)
            storage.values = None if data is None else np.frombuffer(data, np.uint8)
        storage.nbytes = max(storage.nbytes, nbytes)
        return storage

    def _finish(self, steps: Sequence[Step], constants: Sequence[int]) -> None:
        # What only the initialization reads lies behind its operators' scratch memory.
        scratch = max([0, *(c.initializer_temporary_bytes for c, _ in self._once),
                       *(c.plan.temporary_bytes for c, _ in self._folded)])
        passing = [s for s in self._results if s.first < 0]
        self.initializer_temporary_bytes = scratch
        if passing:
            begin = aligned(scratch)
            self.initializer_temporary_bytes = begin + side_by_side(passing)
            for storage in passing:
                del self._slots[storage]
                storage.offset += begin
        # Fusion and repacking leave some storages unused.
        used = [s for s in self.storages if s.first >= 0]
        _, self.memory = plan_memory(steps, [s for s in used if s not in self._slots])
        temporary = self.memory.planned
        persistent = side_by_side(s for s in used if self._slots.get(s) == self._persistent)
        self.placed = [(s.compiled, self._places(s.storages)) for s in steps]
        self.folded = [(compiled, self._places(p)) for compiled, p in self._folded]
        self.prepare = [(compiled, self._places(p)) for compiled, p in self._once]
        self.kept = [
            (_BoundPlace(self._fixed[source]), self._place(storage), storage.nbytes)
            for storage, source in self._sources.items()
            if source in self._fixed and storage.first >= 0
        ]
        self.copies = [
            (_BoundPlace(self._ends[source]), _BoundPlace(slot), self._of_source[source].nbytes)
            for slot, source in enumerate(self._wiring.outputs, self.binding_counts[0])
            if slot != self._ends[source]
        ]
        self.needs_initialization = bool(self.folded or self.prepare or self.kept)
        outputs = [Need(path, "output") for path in self._wiring.output_paths]
        kept = Need.resource("persistent", persistent)
        self.needs = [
            *self._input_needs,
            *[_larger(need, self._of_source[s].nbytes, self._alignment(s))
              for need, s in zip(outputs, self._wiring.outputs)],
            Need.resource("temporary", temporary), kept,
        ]
        self.initializer_needs = [
            *self._initializer_inputs, *outputs,
            Need.resource("temporary", self.initializer_temporary_bytes), kept,
        ]
        self.constants = [self._upload(self._wiring.constants[n]) for n in constants]

    def _alignment(self, source: Source) -> int:
        assert source.node is not None
        desc = self._wiring.nodes[source.node].outputs[source.slot].desc
        assert desc is not None
        return max(MINIMUM_ALIGNMENT, desc.guaranteed_base_offset_alignment)

    def _place(self, storage: Storage) -> _BoundPlace:
        root = storage.root
        return _BoundPlace(self._slots.get(root, self._temporary), root.offset + storage.begin)

    def _places(self, places: Sequence[_BoundPlace | Storage | None]) -> Places:
        return [self._place(p) if isinstance(p, Storage) else p for p in places]

    def _upload(self, data: bytes) -> Allocation:
        return self.device.tensor(np.frombuffer(data, np.uint8)).allocation


def _kept_bytes(node: WiredOperator) -> int:
    """The bytes that an operator copies without a change of layout; 0 for other operators."""
    desc = node.operator.desc
    if desc.operator.name not in _COPIES or getattr(desc, "scale_bias", None) is not None:
        return 0
    x, y = (
        (t.data_type, t.sizes, t.strides, t.total_tensor_size_in_bytes)
        for t in (desc.input_tensor, desc.output_tensor)
    )
    return int(x[-1]) if x == y else 0


def _larger(need: Need, size: int, alignment: int) -> Need:
    """``need``, enlarged for a tensor of this many bytes."""
    return need._replace(size=max(need.size, size), alignment=max(need.alignment, alignment))
