"""A compiled region as ONNX Runtime calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import UnsupportedError
from ..graph.recorded import Input, Resident, Result
from ..layout import Ints, product
from ..onnx.fusion import fuse
from ..onnx.region import Constants, Region
from . import allocation, capi
from .capi import api, callback, ffi, guarded
from .graph import GraphReader
from .trace import now

if TYPE_CHECKING:
    from .provider import Provider


class Bound(NamedTuple):
    """A tensor that ONNX Runtime hands to a region."""

    address: int
    shape: Ints
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return product(self.shape) * self.dtype.itemsize


class Kernel:
    """A compiled region, as ONNX Runtime calls it."""

    def __init__(self, provider: Provider, reader: GraphReader, shared: Constants) -> None:
        graph = reader.graph
        self.region = Region(provider.device, fuse(graph), graph.inputs, graph.outputs, shared,
                             provider.rows)
        self._provider = provider
        self.handle = ffi.new_handle(self)
        self.table = ffi.new("Kernel *", {
            "version": capi.API_VERSION, "CreateState": _create_state, "Compute": _compute,
            "ReleaseState": _release_state, "self": self.handle,
        })

    def compute(self, context: Any) -> None:
        ort, capture = api(), self._provider.capture
        if capture is not None:
            capture.check()
        given = []
        for i in range(len(self.region.inputs)):
            value = ort.input(context, i)
            sizes, dtype = ort.described(value)
            given.append(Bound(ort.address(value), tuple(sizes), dtype))
        made = []
        for i, result in enumerate(self.launch(given)):
            y = result.array
            value = ort.output(context, i, y.shape)
            made.append(Bound(ort.address(value), y.shape, y.dtype))
            self.deliver(result, made[-1])
        if capture is not None:
            capture.add(self, given, made)

    def launch(self, given: Sequence[Bound]) -> list[Result]:
        """Start a run."""
        host = self.region.host_inputs
        return self._run([self._input(x, i in host) for i, x in enumerate(given)])

    @staticmethod
    def deliver(result: Result, bound: Bound) -> None:
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

    def _run(self, inputs: Sequence[Input]) -> list[Result]:
        traces = self._provider.traces()
        if not traces:
            return self.region.launch(inputs)
        results: list[Result] = []
        plan = self.region.plan(inputs)
        begin = now()
        try:
            times = self.region.device.time(
                lambda: results.extend(plan.launch(inputs, anew=True)))
        except UnsupportedError:
            # No timestamps on this device: the host's clock has to do.
            times = []
            results += plan.launch(inputs)
            self.region.device.synchronize()
        end = now()
        for trace in traces:
            trace.add(self.region.label, begin, end, times)
        return results


def _on_host(x: Bound) -> np.ndarray:
    return allocation.host(x.address, x.nbytes).view(x.dtype).reshape(x.shape)


# Callbacks


@guarded("(Kernel *, void *, void **)")
def _create_state(this: Any, context: Any, out: Any) -> None:
    out[0] = this


@guarded("(Kernel *, void *, void *)")
def _compute(this: Any, state: Any, context: Any) -> None:
    ffi.from_handle(this.self).compute(context)


@callback("void(Kernel *, void *)")
def _release_state(this: Any, state: Any) -> None:
    pass
