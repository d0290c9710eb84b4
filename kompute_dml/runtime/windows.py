"""The host's side of device ranges that are transferred at every run of a recording."""

from __future__ import annotations

from .heap import Allocation, Block
from .kp_engine import HostBuffer
from .recorder import Recorder
from .transfer import Transfer

SIZE = 1 << 20
"""Bytes that fit the shared buffers. Plain transfers serve larger ranges better."""


class MemoryWindow:
    """A device range that the host accesses through ``bytes``: directly if it can, else through a
    buffer that all windows share. Callers hold the device's lock from the first write to the last
    read."""

    def __init__(
        self, owner: Windows, recorder: Recorder, transfer: Transfer, host: Allocation,
        device: Allocation, nbytes: int,
    ) -> None:
        self._owner = owner
        self._recorder = recorder
        self._transfer = transfer
        self._host = host
        self._device = device
        begin = host.offset
        self.bytes = HostBuffer(host.block.buffer).bytes[begin : begin + nbytes]

    def wait(self) -> None:
        """Wait until the device is done with the memory."""
        if self._host.last_use is not None:
            self._recorder.finish(self._host.last_use)

    def turn(self) -> int:
        """Take the memory for a download. Returns the number of this download."""
        self._owner.turns += 1
        return self._owner.turns

    def holds(self, turn: int) -> bool:
        """Whether the memory still holds that download."""
        return self._host is self._device or turn == self._owner.turns

    def record_upload(self) -> None:
        if self._host is not self._device:
            self._transfer.copy(self._host, 0, self._device, 0, self.bytes.nbytes)

    def record_download(self) -> None:
        if self._host is not self._device:
            self._transfer.copy(self._device, 0, self._host, 0, self.bytes.nbytes)
            self._recorder.show_host(self._host.block.buffer)


class Windows:
    """Makes the windows of one device."""

    def __init__(self, recorder: Recorder, transfer: Transfer) -> None:
        self._recorder = recorder
        self._transfer = transfer
        self._engine = recorder.engine
        self._shared: dict[bool, Allocation] = {}
        self.turns = 0
        """Downloads so far."""

    def upload(self, device: Allocation, nbytes: int) -> MemoryWindow | None:
        """A window for writing, or None if :class:`Transfer` must do it."""
        return self._window(device, nbytes, self._engine.host_writes_storage, True)

    def download(self, device: Allocation, nbytes: int) -> MemoryWindow | None:
        """A window for reading, or None."""
        return self._window(device, nbytes, self._engine.host_reads_storage, False)

    def _window(
        self, device: Allocation, nbytes: int, reached: bool, writes: bool
    ) -> MemoryWindow | None:
        if reached:
            host = device
        elif nbytes <= SIZE and self._engine.records_barriers:
            host = self._buffer(writes)
        else:
            return None
        return MemoryWindow(self, self._recorder, self._transfer, host, device, nbytes)

    def _buffer(self, writes: bool) -> Allocation:
        if writes not in self._shared:
            make = self._engine.upload_buffer if writes else self._engine.readback_buffer
            self._shared[writes] = Allocation(Block(make(SIZE).buffer, SIZE), 0, SIZE)
        return self._shared[writes]
