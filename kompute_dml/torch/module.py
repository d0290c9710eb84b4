"""``torch.kompute``: what code asks of a device's module."""

from __future__ import annotations

import contextlib
import time
import types
from collections.abc import Iterator

import torch

from ..runtime.adapters import choose
from . import memory


class Stream:
    """The one queue of the device. Work runs in the order of the calls."""

    def __init__(self, device: torch.device | str | int | None = None, priority: int = 0) -> None:
        self.device = torch.device(memory.NAME, 0)
        self.stream_id = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def synchronize(self) -> None:
        """Wait for all work."""
        memory.device().synchronize()

    def query(self) -> bool:
        """Whether all work is done. It waits, as the device's queue cannot be asked."""
        self.synchronize()
        return True

    def wait_stream(self, stream: Stream) -> None:
        """Nothing: there is one queue."""

    def wait_event(self, event: Event) -> None:
        """Nothing: there is one queue."""

    def record_event(self, event: Event | None = None) -> Event:
        """An event after all calls so far."""
        event = event or Event()
        event.record(self)
        return event


class Event:
    """A point in the device's work. It waits for the work when it is recorded with timing."""

    def __init__(
        self, device: torch.device | str | int | None = None, enable_timing: bool = False,
        **other: object
    ) -> None:
        self._timed, self._at = enable_timing, 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Take this point."""
        if self._timed:
            memory.device().synchronize()
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        """Wait for the work before this point, and for what came after it."""
        memory.device().synchronize()

    def wait(self, stream: Stream | None = None) -> None:
        """Nothing: there is one queue."""

    def query(self) -> bool:
        """Whether the work is done. It waits."""
        self.synchronize()
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two events with timing."""
        if not (self._timed and end._timed):
            raise ValueError("elapsed_time: expected both events to have enable_timing=True")
        return (end._at - self._at) * 1e3


class Module(types.ModuleType):
    """The functions that ``torch.cuda`` has under the same names."""

    def __init__(self) -> None:
        super().__init__("torch.kompute", self.__doc__)
        self.Stream, self.Event = Stream, Event
        self._peak = 0

    def is_available(self) -> bool:
        """Whether there is a Vulkan device. It opens none: packages ask at their import, and a
        process may fork afterwards."""
        if self.is_initialized():
            return not self._is_in_bad_fork()
        try:
            return choose() is not None
        except Exception:  # no loader, no driver: whatever says that there is no device
            return False

    def is_initialized(self) -> bool:
        """Whether the device is open."""
        return memory.opened.cache_info().currsize > 0

    def init(self) -> None:
        """Open the device."""
        memory.device()

    _lazy_init = init

    def _is_in_bad_fork(self) -> bool:
        """Whether this process was forked after the device was opened."""
        return self.is_initialized() and memory.opened().recorder.lost is not None

    def device_count(self) -> int:
        """1: PyTorch's guard of devices registered from Python counts no further."""
        return 1

    def current_device(self) -> int:
        """The number of the device."""
        return 0

    def set_device(self, device: torch.device | str | int | None) -> None:
        """Nothing for device 0. Raises NotImplementedError for another."""
        index = device if isinstance(device, int) else torch.device(device).index
        if index:
            memory.device(index)

    @contextlib.contextmanager
    def device(self, device: torch.device | str | int | None) -> Iterator[None]:
        """A block with this device as the current one."""
        self.set_device(device)
        yield

    def get_device_name(self, device: torch.device | str | int | None = None) -> str:
        """The name of the adapter."""
        return memory.device().adapter.name

    def synchronize(self, device: torch.device | str | int | None = None) -> None:
        """Wait for all work on the device."""
        memory.device().synchronize()

    def current_stream(self, device: torch.device | str | int | None = None) -> Stream:
        """The device's queue."""
        return Stream()

    default_stream = current_stream

    def stream(self, stream: Stream) -> Stream:
        """A block on this stream."""
        return stream

    def set_stream(self, stream: Stream) -> None:
        """Nothing: there is one queue."""

    def memory_allocated(self, device: torch.device | str | int | None = None) -> int:
        """Bytes that tensors use."""
        return memory.device().memory_used

    def max_memory_allocated(self, device: torch.device | str | int | None = None) -> int:
        """The most bytes that tensors used at once, since the peak was reset."""
        return memory.device().memory_peak

    def reset_peak_memory_stats(self, device: torch.device | str | int | None = None) -> None:
        """Measure :meth:`max_memory_allocated` from here on."""
        memory.device().reset_memory_peak()

    def memory_reserved(self, device: torch.device | str | int | None = None) -> int:
        """Bytes taken from Vulkan."""
        return memory.device().memory_reserved

    def mem_get_info(self, device: torch.device | str | int | None = None) -> tuple[int, int]:
        """Bytes that this process has not used, and bytes of the device's memory."""
        total = memory.device().adapter.device_memory
        return max(0, total - memory.device().memory_reserved), total

    def empty_cache(self) -> None:
        """Give unused memory back to Vulkan. Until then it stays for later tensors."""
        if self.is_initialized():
            memory.device().release_unused()

    def manual_seed(self, seed: int) -> None:
        """Seed PyTorch's generator of the CPU, which random numbers of the device follow."""
        torch.default_generator.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """What torch.manual_seed calls. It has seeded that generator."""

    def seed(self) -> int:
        """Seed from the system."""
        return torch.default_generator.seed()

    def initial_seed(self) -> int:
        """The seed in use."""
        return torch.default_generator.initial_seed()

    def get_rng_state(self, device: torch.device | str | int | None = None) -> torch.Tensor:
        """The generator's state."""
        return torch.default_generator.get_state()

    def set_rng_state(
        self, state: torch.Tensor, device: torch.device | str | int | None = None
    ) -> None:
        """Set the generator's state."""
        torch.default_generator.set_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """The types that autocast may compute in."""
        return [torch.float16, torch.bfloat16]

    def is_bf16_supported(self) -> bool:
        """True: BFLOAT16 is stored, and computed in FLOAT32. Matrix units that a device has for it
        take its products."""
        return True
