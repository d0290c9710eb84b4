"""The one planner of graphs: it runs the passes, folds constants and compiles what is left.

Expressions, ONNX models and :meth:`Device.compile_graph` feed it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..compiler import CompiledOperator, ExecutionFlags
from ..errors import DmlError
from ..layout import Ints
from ..lowering.plan import PARAMS, PERSISTENT, TEMPORARY, Dispatch, Plan
from ..operators.base import OperatorDesc, bits
from ..runtime.heap import Allocation, Slot
from ..runtime.pipelines import Shader
from .branches import in_groups
from .fusion import folds, fuse, is_of_constants, room_for_weights
from .memory import Storage
from .node import Node, Nodes
from .step import Step, begin, begin_slow, compile_repacking

if TYPE_CHECKING:
    from ..device import Device


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside the block, which makes a plan's many objects and no garbage. A
    full collection takes as long as the block where a process has loaded large libraries."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Preparations(list["Prepared"]):
    """Constants that operators' initializations have prepared, or will before the next run."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Callable[[], None]] = []
        """What records those that are left, in this order."""
        self.states: dict[object, Allocation] = {}
        """Memory that goes on from run to run, by whose it is."""
        self._of: dict[tuple[Slot | None, ...], list[Prepared]] = {}
        """By the places of the constants: a model has hundreds."""

    def append(self, prepared: Prepared) -> None:
        super().append(prepared)
        self._of.setdefault(prepared.places, []).append(prepared)

    def find(
        self, places: tuple[Slot | None, ...], dispatches: tuple[Dispatch, ...], params: Ints
    ) -> Prepared | None:
        """What these dispatches have prepared of constants in these places, or will."""
        return next((p for p in self._of.get(places, ())
                     if (p.dispatches, p.params) == (dispatches, params)), None)

    def record(self, device: Device) -> None:
        """Record what is left."""
        with device.runtime.lock:
            while self.pending:
                self.pending[0]()
                del self.pending[0]


def _what_prepares(plan: Plan) -> tuple[tuple[Dispatch, ...], Ints]:
    """The dispatches of an initialization, and the bytes that they fill with the words of the
    params buffer that they read, wherever in it. Other words tell sizes of which constants know
    nothing."""
    dispatches, words = [], [plan.persistent_bytes]
    for dispatch in plan.initialize:
        for o in dispatch.operands:
            if o.slot == PARAMS:
                words += plan.params[o.offset : o.offset + o.length]
        dispatches.append(replace(dispatch, operands=tuple(
            o._replace(offset=0) if o.slot == PARAMS else o for o in dispatch.operands)))
    return tuple(dispatches), tuple(words)


@dataclass(frozen=True, eq=False)
class Prepared:
    """Constants that an operator's initialization has prepared."""

    places: tuple[Slot | None, ...]
    dispatches: tuple[Dispatch, ...]
    params: Ints
    """What else they depend on: words of the params buffer."""
    result: Allocation | None


class Planner:
    """Makes steps of operators. What constants need is done before the first run."""

    flags = ExecutionFlags.NONE
    """How operators are compiled."""
    numbers_once = True
    """Whether operators without inputs run once, if operators of constants do."""

    def __init__(self, device: Device, prepared: Preparations | None = None) -> None:
        """``prepared`` are constants that earlier plans have prepared. Who gives them has the
        others recorded, before the first run; else they are recorded with the plan."""
        self.device = device
        self.nodes: list[Node] = []
        self.storages: list[Storage] = []
        self._prepared = Preparations() if prepared is None else prepared
        self._records = prepared is None
        self.shaders: set[Shader] = set()
        """The shaders of steps that run, and of what happens once."""
        self._compiled_before: dict[Any, CompiledOperator] = {}
        self._preparing = Preparations()
        """Constants to prepare once all operators are compiled."""
        self._own: set[Allocation] = set()
        """Constants of this plan only, and what is prepared of them, which no other plan reads."""
        self._preparers: list[CompiledOperator] = []
        """The operators that do so."""

    def storage(self, nbytes: int) -> Storage:
        """Memory for a value."""
        storage = Storage(nbytes)
        self.storages.append(storage)
        return storage

    def plan(self, visible: Collection[Storage], *, runs: bool = False) -> list[Step]:
        """Run the passes, and compile the operators that are left. Storages that are ``visible``
        are seen from outside. If the steps are those that a plan ``runs``, threads begin to compile
        slow shaders."""
        free = [s for s in self.storages if not s.constant and s.root not in visible]
        room = room_for_weights(self.device, self.weights_taken)
        steps: list[Step] = []
        running: set[CompiledOperator] = set()
        target = self.device.target
        nodes = fuse(Nodes(self.nodes, free, target, self.storage if folds() else None, room,
                           numbers=self.numbers_once))
        for node, group in in_groups(nodes, target.traits.is_cpu):
            try:
                if self.runs_once(node, visible):
                    continue
                step = self.step_of(node)
                step.group = group
            except DmlError as error:
                if not node.label:
                    raise
                raise type(error)(f"{node.label}: {error}") from None
            if runs and step.compiled not in running:
                running.add(step.compiled)
                begin_slow(self.device, step.compiled)
                self.shaders.update(step.compiled.pipelines())
            for storage in step.storages:
                if storage is not None:
                    storage.touch(len(steps))
            steps.append(step)
        self._prepare()
        return steps

    @property
    def weights_taken(self) -> int:
        """Bytes beside which weights are dequantized, if there is room."""
        return self.device.runtime.engine.reserved

    def runs_once(self, node: Node, visible: Collection[Storage]) -> bool:
        """Run an operator of constants once, so that its result is a constant. Not if the result is
        large or ``visible``."""
        slot, storage = next(node.slots("output"))
        if storage in visible or not is_of_constants(node, storage.nbytes):
            return False
        return self._run_once(node, slot, storage)

    def step_of(self, node: Node) -> Step:
        storages = node.storages
        compiled = self.compiled_for(node.desc, frozenset(
            f for f, s in storages.items() if s.is_constant))
        bound: dict[str, Storage | None] = {
            f: s for f, s in storages.items() if f not in compiled.plan.repacked
        }
        if nbytes := compiled.plan.temporary_bytes:
            bound[TEMPORARY] = self.storage(nbytes)
        if compiled.plan.repacked:
            bound[PERSISTENT] = self._initialize(compiled, storages)
        return Step(compiled, [bound.get(slot) for slot in compiled.slots])

    def compiled_for(self, desc: OperatorDesc, constants: frozenset[str]) -> CompiledOperator:
        """Compile an operator. Equal operators are compiled once."""
        key = bits(desc), constants
        if key not in self._compiled_before:
            self._compiled_before[key] = compile_repacking(
                self.device, desc, constants, self.flags)
        return self._compiled_before[key]

    # What happens once: now, or where a subclass says

    def _run_once(self, node: Node, slot: str, storage: Storage) -> bool:
        inputs, device = dict(node.slots("input")), self.device
        compiled = self.compiled_for(node.desc, frozenset())
        places = tuple(inputs[f].slot() if f in inputs else None for f in compiled.slots[:-2])
        key = places, compiled.plan.execute, compiled.plan.params
        prepared = self._find_prepared(*key)
        if prepared is None:
            room = room_for_weights(device, self.weights_taken)
            if not is_of_constants(node, room):
                return False
            prepared = Prepared(*key, device.allocate(storage.nbytes))
            temporary, result = compiled.plan.temporary_bytes, prepared.result

            def record() -> None:
                assert result is not None
                scratch = Slot(device.allocate(temporary), 0) if temporary else None
                compiled.run([*(Slot(result, 0) if f == slot else place
                                for f, place in zip(compiled.slots, places)), scratch, None])

            self._is_preparing(prepared, compiled, record)
        storage.allocation, storage.constant = prepared.result, True
        return True

    def _initialize(
        self, compiled: CompiledOperator, storages: Mapping[str, Storage]
    ) -> Storage | None:
        """Prepare constants, unless a plan for other sizes has prepared them already."""
        device, plan = self.device, compiled.plan
        places = tuple(
            storages[f].slot() if f in plan.repacked and f in storages else None
            for f in compiled.slots[:-2]
        )
        key = places, *_what_prepares(plan)
        prepared = self._find_prepared(*key)
        if prepared is None:
            nbytes = plan.persistent_bytes
            prepared = Prepared(*key, device.allocate(nbytes) if nbytes else None)
            result = prepared.result

            def record() -> None:
                temporary = device.allocate(plan.temporary_bytes) if plan.temporary_bytes else None
                compiled.initialize(
                    [*places, *[None if a is None else Slot(a, 0) for a in (temporary, result)]])

            self._is_preparing(prepared, compiled, record)
        result = prepared.result
        if result is None:
            return None
        return Storage(result.nbytes, allocation=result, constant=True)

    def _find_prepared(
        self, places: tuple[Slot | None, ...], dispatches: tuple[Dispatch, ...], params: Ints
    ) -> Prepared | None:
        """Constants that are prepared already, or are to be."""
        key = places, dispatches, params
        return self._prepared.find(*key) or self._preparing.find(*key)

    def _is_preparing(
        self, prepared: Prepared, compiled: CompiledOperator, record: Callable[[], None]
    ) -> None:
        """Note constants to prepare once all operators are compiled, by which operator, and what
        records that."""
        if self._is_own(prepared) and prepared.result is not None:
            self._own.add(prepared.result)
        self._preparing.append(prepared)
        self._preparing.pending.append(record)
        self._preparers.append(compiled)

    def _is_own(self, prepared: Prepared) -> bool:
        return any(p is not None and p.allocation in self._own for p in prepared.places)

    def _prepare(self) -> None:
        """Let threads compile what prepares constants."""
        begin(self.device, self._preparers, once=True)
        for compiled in self._preparers:
            self.shaders.update(compiled.pipelines(once=True))
        for prepared in self._preparing:
            if not self._is_own(prepared):
                self._prepared.append(prepared)
        self._prepared.pending += self._preparing.pending
        self._preparing, self._preparers = Preparations(), []
        if self._records:
            self._prepared.record(self.device)
