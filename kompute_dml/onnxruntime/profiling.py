"""Events for ONNX Runtime's profiler: the device's time in regions and dispatches."""

from __future__ import annotations

from . import capi
from .capi import CData, api, callback, ffi, guarded
from .trace import Trace, now

_KERNEL, _API = 2, 3
_CATEGORIES = {"dispatch": _KERNEL, "region": _API}


class Profiler:
    """Collects the events of one session while ONNX Runtime profiles it."""

    def __init__(self) -> None:
        self.trace: Trace | None = None
        """The trace while profiling is on."""
        self.origin = 0
        """The start of ONNX Runtime's profile, in nanoseconds of our clock."""
        self.handle = ffi.new_handle(self)
        self.table = ffi.new("Profiler *", {
            "version": capi.EP_VERSION, "Release": _release, "StartProfiling": _start,
            "StartEvent": _start_event, "StopEvent": _stop_event, "EndProfiling": _end,
            "self": self.handle,
        })


@callback("void(Profiler *)")
def _release(this: CData) -> None:
    capi.let_go(this)


@guarded("(Profiler *, int64_t)")
def _start(this: CData, since_ns: int) -> None:
    profiler = ffi.from_handle(this.self)
    profiler.origin = now() - since_ns
    profiler.trace = Trace(None)


@guarded("(Profiler *, uint64_t)")
def _start_event(this: CData, number: int) -> None:
    pass


@guarded("(Profiler *, uint64_t, const void *)")
def _stop_event(this: CData, number: int, event: CData) -> None:
    pass


@guarded("(Profiler *, void *)")
def _end(this: CData, container: CData) -> None:
    profiler, ort = ffi.from_handle(this.self), api()
    trace, profiler.trace = profiler.trace, None
    for event in trace.take() if trace else ():
        if event["ph"] != "X":
            continue
        begin = int(event["ts"] - profiler.origin / 1e3)
        profiled = ort.get(
            ort.CreateProfilingEvent, "void *", _CATEGORIES[event["cat"]], event["pid"],
            event["tid"], event["name"].encode(), begin, round(event["dur"]),
            ffi.NULL, ffi.NULL, 0)
        try:
            ort.check(ort.AddProfilingEvents(container, [profiled], 1))
        finally:
            ort.ReleaseProfilingEvent(profiled)
