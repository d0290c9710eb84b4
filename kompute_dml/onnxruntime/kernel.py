"""A compiled region as ONNX Runtime calls it."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import OutOfMemoryError, UnsupportedError
from ..graph.recorded import Input, RecordedPlan, Resident, Result
from ..graph.recordings import Places
from ..layout import Ints
from ..onnx.fusion import fuse
from ..onnx.graph import constants
from ..onnx.region import MAX_PLANS, Constants, Region
from . import allocation, capi
from .arguments import Bound, NodeArguments, outputs_of
from .capi import CData, api, callback, ffi, guarded
from .graph import GraphReader
from .host import HostRegion
from .trace import now

if TYPE_CHECKING:
    from .memory import DeviceMemory, Span
    from .provider import Provider


@dataclass(eq=False)
class Repeat:
    """A run that may be repeated, as long as the inputs that it shares lie where they did."""

    plan: RecordedPlan
    shared: dict[int, int]
    """Results that are written where an input lies, by input."""
    places: Places
    pieces: list[tuple[DeviceMemory, int, weakref.ref[Span]]]
    """What lies at the addresses of the shared inputs. It does not hold their memory."""
    moves: list[tuple[DeviceMemory, int]]
    """Memories, and how often anything had moved there when all was as it was."""
    addresses: list[int]
    """Those of the shared inputs."""
    others: list[int]
    """The inputs that are not shared."""
    written: list[int]
    """The results that are not shared."""
    limits: dict[int, int]
    """Up to where their numbers have the same plan."""
    values: list[object]
    """What the plan depends on of them."""
    _placed: tuple[list[int], list[Bound]] = field(default_factory=lambda: ([], []))
    """The addresses of all results, and those that are not shared, of the last run."""

    def stands(self) -> bool:
        """Whether all is as it was."""
        if not self.plan.has(self.places):
            return False
        if any(memory.moves != moves for memory, moves in self.moves):
            moves = [(memory, memory.moves) for memory, _ in self.moves]
            if not all(memory.piece_at(address) is piece()
                       for memory, address, piece in self.pieces):
                return False
            self.moves = moves
        return True

    def reads(self, addresses: Sequence[int]) -> bool:
        """Whether the shared inputs are at the same addresses."""
        return [addresses[i] for i in self.shared] == self.addresses

    def outputs(self, addresses: list[int]) -> list[Bound] | None:
        """The results that are not shared, where results have these addresses. None if the shared
        ones are elsewhere now."""
        before, outputs = self._placed
        if addresses != before:
            if [addresses[j] for j in self.shared.values()] != self.addresses:
                return None
            shapes, dtypes = self.plan.shapes, self.plan.dtypes
            outputs = [Bound(addresses[j], shapes[j], dtypes[j]) for j in self.written]
            self._placed = addresses, outputs  # at once: other threads may repeat the run, too
        return outputs


class LastRun(NamedTuple):
    """The run before."""

    words: bytes
    """Types and sizes of its inputs."""
    bound: list[Bound]
    repeat: Repeat


_ELSEWHERE = np.empty(0, np.uint8)
"""In the place of an input that a repeated run finds itself."""


class RegionKernel:
    """A compiled region, as ONNX Runtime calls it."""

    def __init__(self, provider: Provider, reader: GraphReader, shared: Constants) -> None:
        graph = reader.graph
        values = constants(graph.nodes)
        nodes = fuse(graph, provider.device.runtime.engine.max_buffer)
        self.region = Region(
            provider.device, nodes, graph.inputs, graph.outputs, shared, provider.rows)
        self._host = HostRegion(graph, values, self.region)
        self._too_large: dict[tuple[Ints, ...], str] = {}
        """Sizes of inputs for which the device has no room, and what it said."""
        self._provider = provider
        self._arguments = NodeArguments(len(self.region.inputs), len(self.region.outputs))
        self._last: LastRun | None = None
        self.handle = ffi.new_handle(self)
        self.table = ffi.new("Kernel *", {
            "version": capi.API_VERSION, "CreateState": _create_state, "Compute": _compute,
            "ReleaseState": _release_state, "self": self.handle,
        })

    def compute(self, context: CData) -> None:
        arguments, capture = self._arguments, self._provider.capture
        if capture is not None:
            capture.check()
        addresses, words = tensors = arguments.inputs(context)
        last, repeat = self._last, None
        if last is not None and last.words == words:
            bound = [x if x.address == address else x._replace(address=address)
                     for x, address in zip(last.bound, addresses)]
            repeat = last.repeat if last.repeat.reads(addresses) else None
        else:
            bound = tensors.bounds()

        placed: list[tuple[RecordedPlan, list[int]]] = []

        def places(plan: RecordedPlan) -> list[int]:
            placed.append((plan, arguments.outputs(context, plan)))
            return placed[-1][1]

        shapes = tuple([x.shape for x in bound]) if self._too_large else ()
        try:
            if shapes in self._too_large:
                raise OutOfMemoryError(self._too_large[shapes])
            repeat = self.start(bound, places, repeat)
        except OutOfMemoryError as error:
            if capture is not None:
                raise  # a replay would run nothing
            self._run_on_host(context, bound, error)
            self._note_too_large(tuple([x.shape for x in bound]), error)
            return
        self._last = None if repeat is None else LastRun(words, bound, repeat)
        if capture is not None:
            capture.add(self, bound, outputs_of(*placed[-1]))

    def start(
        self, bound: Sequence[Bound], places: Callable[[RecordedPlan], list[int]],
        last: Repeat | None,
    ) -> Repeat | None:
        """Start a run. ``places`` says where the results of a plan shall lie, ``last`` is what was
        returned for an earlier run with tensors of these sizes. What the next one needs is
        returned."""
        if last is not None and not self._provider.traces() and last.stands():
            host = self.region.host_inputs
            inputs: list[Input] = [_ELSEWHERE] * len(bound)
            for i in last.others:
                inputs[i] = self._input(bound[i], i in host)
            if self.region.settled(inputs, last.others, last.limits) == last.values:
                addresses = places(last.plan)
                if (outputs := last.outputs(addresses)) is not None:
                    self._forget([bound[i] for i in last.others], outputs)
                    results = self.region.launch(inputs, last.plan, last.shared, last.places)
                    for j, y in zip(last.written, outputs):
                        if (result := results[j]) is not None:
                            self._deliver(result, y)
                    return last
                return self._start(bound, lambda _: addresses)
        return self._start(bound, places)

    def _start(
        self, bound: Sequence[Bound], places: Callable[[RecordedPlan], list[int]]
    ) -> Repeat | None:
        """Start a run. A result that has the place of an input is written there, if the plan keeps
        it where that input lies."""
        host = self.region.host_inputs
        inputs = [self._input(x, i in host) for i, x in enumerate(bound)]
        plan = self.region.plan(inputs)
        outputs = outputs_of(plan, places(plan))
        shared = {i: j for i, j in plan.kept.items() if outputs[j].address == bound[i].address
                  and self._owns(bound[i], inputs, i)}
        self._forget(bound, outputs)
        for result, y in zip(self._launch(inputs, plan, shared), outputs):
            if result is not None:
                self._deliver(result, y)
        return self._repeatable(bound, inputs, plan, shared)

    @staticmethod
    def _forget(inputs: Sequence[Bound], outputs: Sequence[Bound]) -> None:
        """Let go of what results will overwrite, so that the last run's need not move. ``inputs``
        may lie at the same addresses."""
        read = {x.address for x in inputs}
        for bound in outputs:
            if bound.address not in read and (nbytes := bound.nbytes) and (
                    memory := allocation.found(bound.address)) is not None:
                memory.forget(bound.address, nbytes)

    def _repeatable(
        self, bound: Sequence[Bound], inputs: list[Input], plan: RecordedPlan,
        shared: dict[int, int],
    ) -> Repeat | None:
        places = plan.places_of(inputs, shared)
        # Sizes that come often get a plan of their own, but a decoder does not wait for it.
        if places is None or (not shared and plan.common is not None):
            return None
        pieces = []
        for i in shared:
            memory = allocation.found(bound[i].address)
            piece = None if memory is None else memory.piece_at(bound[i].address)
            if memory is None or piece is None:
                return None
            pieces.append((memory, bound[i].address, weakref.ref(piece)))
        moves = [(memory, memory.moves) for memory in {memory for memory, _, _ in pieces}]
        others = [i for i in range(len(bound)) if i not in shared]
        written = [j for j in range(len(plan.shapes)) if j not in shared.values()]
        limits = self.region.limits([x.shape for x in bound])
        values = self.region.settled(inputs, others, limits)
        return Repeat(plan, shared, places, pieces, moves, [bound[i].address for i in shared],
                      others, written, limits, values)

    def _run_on_host(
        self, context: CData, bound_inputs: Sequence[Bound], why: OutOfMemoryError
    ) -> None:
        """A run by ONNX Runtime's CPU kernels. Raises ``why`` where they cannot, too."""
        inputs = [np.asarray(self._input(x, on_host=True)) for x in bound_inputs]
        ort = api()
        for i, y in enumerate(self._host.run(inputs, why)):
            bound = Bound(ort.address(ort.output(context, i, y.shape)), y.shape, y.dtype)
            if not y.nbytes:
                continue
            data = np.ascontiguousarray(y)
            if (memory := allocation.found(bound.address)) is not None:
                memory.write(bound.address, data.reshape(-1).view(np.uint8))
            else:
                _on_host(bound)[...] = data

    def _note_too_large(self, shapes: tuple[Ints, ...], error: OutOfMemoryError) -> None:
        if shapes not in self._too_large:
            if len(self._too_large) >= MAX_PLANS:
                self._too_large.clear()
            self._too_large[shapes] = str(error)
            warnings.warn(f"a region runs on the CPU with inputs of these sizes: {error}",
                          stacklevel=2)

    def _owns(self, x: Bound, inputs: list[Input], i: int) -> bool:
        """Let a tensor on the region's device lie in memory of its own, where it may be
        overwritten. False for others."""
        memory = allocation.found(x.address)
        if memory is None or not x.nbytes:
            return False
        owned = memory.owned(x.address, x.nbytes)
        if owned.device is self.region.device and owned.stays:
            inputs[i] = owned._replace(shape=x.shape)
            return True
        return False

    @staticmethod
    def _deliver(result: Result, bound: Bound) -> None:
        """Let a result lie where ONNX Runtime wants it."""
        if not result.nbytes:
            return
        if (memory := allocation.found(bound.address)) is not None:
            memory.put(bound.address, result)
        else:
            result.values(_on_host(bound))

    def _input(self, x: Bound, on_host: bool) -> Input:
        """A tensor where it lies; on the host if the host must know it."""
        nbytes = x.nbytes
        if not nbytes:
            return np.empty(x.shape, x.dtype)
        memory = allocation.found(x.address)
        if memory is None:
            return _on_host(x)
        lies = memory.read(x.address, nbytes) if on_host else memory.find(x.address, nbytes)
        if isinstance(lies, Resident):
            if lies.device is self.region.device:
                return lies._replace(shape=x.shape)
            lies = memory.read(x.address, nbytes)
        return lies.view(x.dtype).reshape(x.shape)

    def _launch(
        self, inputs: Sequence[Input], plan: RecordedPlan, shared: Collection[int]
    ) -> list[Result | None]:
        traces = self._provider.traces()
        if not traces:
            return self.region.launch(inputs, plan, shared)
        results: list[Result | None] = []
        begin = now()
        try:
            times = self.region.device.time(
                lambda: results.extend(plan.launch(inputs, anew=True, shared=shared)))
        except UnsupportedError:
            # No timestamps on this device: the host's clock has to do.
            times = []
            results += plan.launch(inputs, shared=shared)
            self.region.device.synchronize()
        end = now()
        for trace in traces:
            trace.add(self.region.label, begin, end, times)
        return results


def _on_host(x: Bound) -> np.ndarray:
    return allocation.host(x.address, x.nbytes).view(x.dtype).reshape(x.shape)


# Callbacks


@guarded("(Kernel *, void *, void **)")
def _create_state(this: CData, context: CData, out: CData) -> None:
    out[0] = this


@guarded("(Kernel *, void *, void *)")
def _compute(this: CData, state: CData, context: CData) -> None:
    ffi.from_handle(this.self).compute(context)


@callback("void(Kernel *, void *)")
def _release_state(this: CData, state: CData) -> None:
    pass
