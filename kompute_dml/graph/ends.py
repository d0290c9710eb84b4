"""Where the inputs and outputs of plans lie: the same for all plans that share memory."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..layout import Ints
from ..runtime.heap import Allocation, Slot
from .array import Array
from .memory import Storage

if TYPE_CHECKING:
    from ..device import Device


class OuterTensor(NamedTuple):
    """An input or an output, in any size."""

    dtype: np.dtype[Any]
    storage: Storage | None

    @staticmethod
    def of(array: Array) -> OuterTensor:
        """That of an array."""
        return OuterTensor(array.dtype, array.storage)

    @property
    def begin(self) -> int:
        """Where it begins in its allocation."""
        return 0 if self.storage is None else self.storage.offset

    def view(self, shape: Ints, raw: np.ndarray) -> np.ndarray:
        """The elements in the bytes of its allocation."""
        return np.ndarray(shape, self.dtype, raw, self.begin)


@dataclass(eq=False)
class Large:
    """An input with an allocation of its own. What lies on the device already is read there, or
    copied."""

    index: int
    storage: Storage
    own: Allocation | None
    """Where copies lie. None until there is one."""
    last: tuple[weakref.ref[Allocation], int] | None = None
    """Where the input of the last run was, which need not exist any more."""

    @property
    def slot(self) -> Slot:
        """Where it lies in this run."""
        assert self.storage.allocation is not None
        return Slot(self.storage.allocation, self.storage.offset)

    def bind(self, slot: Slot) -> None:
        self.storage.allocation, self.storage.offset = slot

    def let_go(self) -> None:
        """Refer to no memory of others."""
        self.storage.allocation, self.storage.offset = self.own, 0

    def was_at(self, slot: Slot) -> bool:
        return self.last is not None and (self.last[0]() is slot.allocation) and (
            self.last[1] == slot.byte_offset)


class Ends:
    """The inputs and outputs of plans that share memory."""

    def __init__(
        self, device: Device, inputs: Sequence[OuterTensor], together: Sequence[int],
        outputs: Sequence[OuterTensor], kept: Mapping[int, int],
        words: OuterTensor | None = None,
    ) -> None:
        """Inputs that lie ``together`` share an allocation, in which also lie the ``words`` of a
        plan, and so do all outputs but those that are ``kept`` where an input lies: outputs by
        input. Other inputs have an allocation each."""
        self.inputs, self.outputs, self.kept = inputs, outputs, kept
        self.together = together
        windows = device.runtime.windows
        self.incoming, nbytes = _range(
            x for x in (*[inputs[i] for i in together], words) if x is not None)
        self.upload = windows.upload(self.incoming, nbytes) if self.incoming else None
        self.staged = self.upload.bytes if self.upload else np.zeros(nbytes, np.uint8)
        """The bytes of what lies together, on the host."""
        self.words = self.staged[:0] if words is None else self.staged[words.begin:]
        """Those from the words on."""
        self.staged_at = [(i, inputs[i].dtype, inputs[i].begin) for i in together]
        """These inputs, their types, and where they begin there."""
        staged = {*together}
        self.large = [
            Large(i, x.storage, x.storage.allocation) for i, x in enumerate(inputs)
            if i not in staged and x.storage is not None
            and (x.storage.allocation is not None or i in kept)]
        fresh = [y for j, y in enumerate(outputs) if j not in kept.values()]
        self.slots = [
            None if y.storage is None or y.storage.root.allocation is None else y.storage.slot()
            for y in outputs]
        """Where outputs lie that are not kept where an input lies. None for empty ones."""
        self.outgoing, self.outgoing_bytes = _range(fresh)
        if any(y.storage and y.storage.allocation is not self.outgoing for y in fresh):
            self.outgoing = None  # they lie in several buffers
        self.download = (
            windows.download(self.outgoing, self.outgoing_bytes) if self.outgoing else None)


def _range(ends: Iterable[OuterTensor]) -> tuple[Allocation | None, int]:
    """The allocation that these share, and its bytes up to the end of the last one."""
    storages = [x.storage for x in ends if x.storage is not None]
    if not storages:
        return None, 0
    return storages[0].allocation, max(s.offset + s.nbytes for s in storages)
