"""A device's link to CUDA: imported blocks, and two timeline semaphores that order the work.

The queue signals *ready*, and CUDA's streams wait for it. CUDA signals *done*, and the queue waits
for it. One stream of our own gives all signals of *done*: values of a timeline semaphore must grow,
and other streams end in any order. The host waits for nothing.

Vulkan's specification asks for a transfer of ownership to VK_QUEUE_FAMILY_EXTERNAL as well.
NVIDIA's own samples of buffers that CUDA shares do without, and so does this.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ..device import Device
from ..errors import UnsupportedError
from ..runtime.adapters import SHARING_EXTENSIONS
from ..runtime.kp_engine import Engine
from ..runtime.recorder import Recorder
from .driver import Context, MemoryMapping, Semaphore
from .exports import ExportBatch, Exporter


class Link:
    """Callers hold the device's lock, except for :meth:`wait_ready`."""

    def __init__(self, engine: Engine) -> None:
        adapter = engine.adapter
        self.context = Context(adapter)
        handles = engine.handles()
        if handles is None:
            raise UnsupportedError(
                "kompute_dml.cuda: expected kp with its fixes ('python -m kompute_dml.toolchain "
                "kp' builds it), but the one installed shows no Vulkan handles")
        missing = [e for e in SHARING_EXTENSIONS if e not in adapter.extensions]
        if "timelineSemaphore" not in engine.features:
            missing.append("timelineSemaphore")
        if missing:
            raise UnsupportedError(
                "kompute_dml.cuda: expected a Vulkan driver that exports memory and semaphores, "
                f"but that of {adapter.name} has no {', '.join(missing)}")
        self._exporter = Exporter(*handles)
        self._mappings = engine.imports
        """By kp's tensor. Views refer to them, too: they may outlive the device."""
        engine.at_close.callback(self._close)
        self._vulkan: list[Any] = []
        self._cuda: list[tuple[str, Any]] = []
        with self.context:
            self._stream = self.context.stream()
            self._cuda.append(("cuStreamDestroy_v2", self._stream))
            self._event = self.context.event()
            self._cuda.append(("cuEventDestroy_v2", self._event))
            self._signal_ready, self._ready = self._timeline(waits=False)
            self._wait_done, self._done = self._timeline(waits=True)

    def _timeline(self, waits: bool) -> tuple[ExportBatch, Semaphore]:
        """A timeline semaphore: what the queue does with it, and CUDA's side of it."""
        semaphore = self._exporter.timeline()
        self._vulkan.append(semaphore)
        imported = Semaphore(self.context, self._exporter.semaphore_fd(semaphore))
        self._cuda.append(("cuDestroyExternalSemaphore", imported.handle))
        return ExportBatch(semaphore, waits), imported

    def mapping(self, buffer: Any) -> MemoryMapping:
        """Import the memory of a block, at the first call for it."""
        mapping: MemoryMapping | None = self._mappings.get(buffer)
        if mapping is None:
            if not buffer.exportable():
                raise UnsupportedError(
                    "kompute_dml.cuda: expected memory that Vulkan's driver exports, but this "
                    "device's memory cannot be exported")
            mapping = MemoryMapping(self.context, *self._exporter.memory(*buffer.handles()),
                              buffer.dedicated())
            self._mappings[buffer] = mapping
        return mapping

    def signal_ready(self, recorder: Recorder) -> int:
        """Submit what is pending, and a signal after it. Returns the value to wait for."""
        recorder.check()
        recorder.flush()
        self._signal_ready.value += 1
        self._exporter.submit(self._signal_ready)
        return self._signal_ready.value

    def wait_ready(self, value: int, streams: Sequence[int]) -> None:
        """Make the streams' later work wait for the signal."""
        with self.context:
            for stream in streams:
                self._ready.wait(value, stream)

    def wait_done(self, recorder: Recorder, streams: Sequence[int]) -> None:
        """Make the device's later submits wait for the streams' work so far."""
        recorder.check()
        call = self.context.call
        with self.context:
            for stream in streams:
                call("cuEventRecord", self._event, stream)
                call("cuStreamWaitEvent", self._stream, self._event, 0)
            self._done.signal(self._wait_done.value + 1, self._stream)
        self._wait_done.value += 1
        self._exporter.submit(self._wait_done)

    @property
    def stream(self) -> int:
        """Our own stream."""
        return self._stream

    def _close(self) -> None:
        """Let the work on both sides end, and destroy what was made."""
        self.context.synchronize()
        self._exporter.destroy(*self._vulkan)
        self.context.destroy(*self._cuda)
        self._mappings.clear()


_links: weakref.WeakKeyDictionary[Engine, Link] = weakref.WeakKeyDictionary()


def link_of(device: Device) -> Link:
    """The device's link, made at first use. Callers hold the device's lock."""
    engine = device.runtime.engine
    link = _links.get(engine)
    if link is None:
        device.recorder.check()
        link = _links[engine] = Link(engine)
    return link
