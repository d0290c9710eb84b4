"""Graph capture: ONNX Runtime repeats a run with the same tensors without its executor.

Before a run ONNX Runtime asks whether its graph is captured. If it is, the graph is replayed and
nothing else happens: no tensor is bound, checked or copied. So a captured graph keeps what each
region was given in its run, and is of use while those tensors exist.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from ..errors import ValidationError
from . import allocation
from .capi import CData, callback, ffi, guarded

if TYPE_CHECKING:
    from ..graph.recorded import RecordedPlan
    from .arguments import Bound
    from .kernel import RegionKernel, Repeat

OPTION = "enable_graph_capture"
SINCE = 26
"""ONNX Runtime's first version that asks providers for captured graphs."""
_SKIP = -1
"""The ``gpu_graph_id`` of a run that is neither captured nor replayed."""


class CapturedGraph:
    """A run: its regions, in order, with what ONNX Runtime gave them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls: list[tuple[RegionKernel, list[Bound], list[Bound]]] = []
        self._repeats: dict[int, Repeat | None] = {}
        """By call: what repeats it."""
        self._places: list[_SamePlaces] = []
        """By call: where its results go."""
        self._held: list[int] = []
        """Addresses of the tensors that must exist: those from outside and the model's outputs."""
        self._between: list[tuple[int, int]] = []
        """Addresses and bytes of the tensors that only regions know."""
        self._frees: tuple[int, ...] = ()
        """What was freed when all tensors existed."""

    def complete(self, results: Collection[str]) -> None:
        """All regions have run. ``results`` are the names of the model's outputs."""
        written: set[int] = set()
        for kernel, inputs, outputs in self.calls:
            self._places.append(_SamePlaces(kernel, outputs))
            self._held += [x.address for x in inputs if x.nbytes and x.address not in written]
            for value, y in zip(kernel.region.outputs, outputs):
                written.add(y.address)
                if y.nbytes and value.name in results:
                    self._held.append(y.address)
                elif y.nbytes:
                    self._between.append((y.address, y.nbytes))

    def is_alive(self) -> bool:
        """Whether all its tensors exist."""
        frees = allocation.frees()
        if frees != self._frees:
            if not all(map(allocation.holds, self._held)):
                return False
            self._frees = frees
        return True

    def replay(self) -> None:
        for n, (kernel, inputs, _) in enumerate(self.calls):
            self._repeats[n] = kernel.start(inputs, self._places[n], self._repeats.get(n))
        for address, nbytes in self._between:
            if (memory := allocation.found(address)) is not None:
                memory.forget(address, nbytes)


class _SamePlaces:
    """The places of a captured run's results."""

    def __init__(self, kernel: RegionKernel, outputs: Sequence[Bound]) -> None:
        self._kernel = kernel
        self._outputs = outputs
        self._addresses = [y.address for y in outputs]
        self._checked: RecordedPlan | None = None

    def __call__(self, plan: RecordedPlan) -> list[int]:
        """Their addresses. Raises where the sizes are others now."""
        if plan is not self._checked:
            for value, y, shape in zip(self._kernel.region.outputs, self._outputs, plan.shapes):
                if shape != y.shape:
                    raise ValidationError(
                        f"{OPTION}: expected {value.name!r} to have the sizes of the captured run, "
                        f"{list(y.shape)}, but got {list(shape)}")
            self._checked = plan
        return self._addresses


class _Thread(threading.local):
    def __init__(self) -> None:
        self.graphs: dict[int, CapturedGraph] = {}
        """By number: the ``gpu_graph_id`` of a run's options."""
        self.recording: CapturedGraph | None = None
        """The run that is going on."""
        self.is_unbound = False


class Capture:
    """The captured graphs of a session: those of each thread, because runs of several threads
    have tensors of their own."""

    def __init__(self, results: Callable[[], Collection[str]], regions: Callable[[], int]) -> None:
        """``results`` are the names of the model's outputs, ``regions`` how many run each time."""
        self._results = results
        self._regions = regions
        self._thread = _Thread()

    def has(self, number: int) -> bool:
        """Whether a graph can be replayed. If not, the run that comes now is captured.

        ONNX Runtime asks before a run, and again after one that was to be captured.
        """
        thread = self._thread
        graph = thread.graphs.get(number)
        if graph is not None and graph.is_alive():
            return True
        recorded, thread.recording = thread.recording, None
        if recorded is not None and recorded.number == number and (
                len(recorded.calls) == self._regions()):
            recorded.complete(self._results())
            if recorded.is_alive():
                thread.graphs[number] = recorded
                return True
            # Tensors that are gone when their run has just ended were not the user's.
            thread.is_unbound = True
        if number != _SKIP:
            thread.recording = CapturedGraph(number)
        return False

    def check(self) -> None:
        """Raise ValidationError where the last run could not be captured."""
        if self._thread.is_unbound:
            self._thread.is_unbound = False
            raise ValidationError(
                f"{OPTION}: expected all inputs and outputs to be bound to tensors on the device "
                "that exist from run to run, but got some that end with the run: use an IOBinding")

    def add(self, kernel: RegionKernel, inputs: Sequence[Bound], outputs: Sequence[Bound]) -> None:
        """A region was run."""
        if (graph := self._thread.recording) is not None:
            graph.calls.append((kernel, list(inputs), list(outputs)))

    def replay(self, number: int) -> None:
        self._thread.graphs[number].replay()

    def release(self, number: int) -> None:
        self._thread.graphs.pop(number, None)
        self._thread.recording = None


# Callbacks


def _capture(ep: CData) -> Capture | None:
    capture: Capture | None = ffi.from_handle(ep.self).capture
    return capture


@callback("bool(const Ep *)")
def is_enabled(this: CData) -> bool:
    return _capture(this) is not None


@callback("bool(const Ep *, int)")
def is_captured(this: CData, number: int) -> bool:
    capture = _capture(this)
    return capture is not None and capture.has(number)


@guarded("(Ep *, int)")
def replay(this: CData, number: int) -> None:
    capture = _capture(this)
    assert capture is not None  # ONNX Runtime asked
    capture.replay(number)


@guarded("(Ep *, int)")
def release(this: CData, number: int) -> None:
    if (capture := _capture(this)) is not None:
        capture.release(number)
