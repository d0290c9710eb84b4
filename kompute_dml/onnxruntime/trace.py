"""Times of regions in a trace-event file, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

_DEVICE = 0
"""The lane of the device. A thread's lane is its number."""


class Trace:
    """Events of one session, for a file, or without a path for take()."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._process = os.getpid()
        self._events: list[dict[str, Any]] = [{
            "ph": "M", "name": "thread_name", "pid": self._process, "tid": _DEVICE,
            "args": {"name": "Vulkan device"},
        }]
        self._lock = threading.RLock()

    def add(
        self, region: str, begin_ns: int, end_ns: int, dispatches: list[tuple[str, float]]
    ) -> None:
        """Add a call of a region, and the device's time in each of its dispatches (nanoseconds)."""
        def event(lane: int, name: str, kind: str, begin: float, ns: float) -> dict[str, Any]:
            return {"ph": "X", "pid": self._process, "tid": lane, "name": name, "cat": kind,
                    "ts": begin / 1e3, "dur": ns / 1e3}

        spent = sum(ns for _, ns in dispatches)
        call = event(threading.get_native_id(), region, "region", begin_ns, end_ns - begin_ns)
        events = [{**call, "args": {"gpu_us": spent / 1e3}}]
        # The device's clock has another origin, so dispatches are placed before the end of the
        # call.
        at = end_ns - spent
        for name, ns in dispatches:
            events.append(event(_DEVICE, name, "dispatch", at, ns))
            at += ns
        with self._lock:
            self._events += events

    def take(self) -> list[dict[str, Any]]:
        """Remove and return the events so far."""
        with self._lock:
            events, self._events = self._events, []
        return events

    def save(self) -> None:
        if self.path is None:
            return
        with self._lock:
            text = json.dumps({"traceEvents": self._events, "displayTimeUnit": "ns"})
        scratch = f"{self.path}.{os.getpid()}.tmp"
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(scratch, self.path)


def now() -> int:
    return time.perf_counter_ns()
