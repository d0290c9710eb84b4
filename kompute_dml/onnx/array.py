"""Values of a region while its plan is built: strided views of memory that is given out later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import ValidationError
from ..layout import is_packed, pad_left, product
from ..runtime.heap import Allocation, Slot

Ints = tuple[int, ...]
BOOL = np.dtype("bool")


def device_type(dtype: np.dtype[Any]) -> DataType:
    """How values of an ONNX type lie on the device: bool as UINT8, the others as they are."""
    return DataType.UINT8 if dtype == BOOL else DataType.of(dtype)


@dataclass(eq=False)
class Storage:
    """A range of memory that the plan will need."""

    nbytes: int
    first: int = -1
    """The step that first touches it; -1 before any."""
    last: int = -1
    allocation: Allocation | None = None
    offset: int = 0
    constant: bool = False

    def slot(self) -> Slot:
        """Where it lies."""
        assert self.allocation is not None
        return Slot(self.allocation, self.offset)


@dataclass(frozen=True, eq=False)
class Array:
    """A value while the plan is built. ``shape`` may be empty, or hold a 0; then no ``storage``."""

    dtype: np.dtype[Any]
    shape: Ints
    strides: Ints
    storage: Storage | None
    """Its first element is the array's."""
    host: np.ndarray | None = None
    """What it holds, where the host knows."""

    @property
    def size(self) -> int:
        return product(self.shape)

    @property
    def packed(self) -> bool:
        return is_packed(self.shape, self.strides)

    def desc(self, sizes: Sequence[int], strides: Sequence[int]) -> TensorDesc:
        return TensorDesc(device_type(self.dtype), tuple(sizes) or (1,), tuple(strides) or (1,))

    def view(self, shape: Sequence[int], strides: Sequence[int]) -> Array:
        storage = self.storage if product(shape) else None
        return replace(self, shape=tuple(shape), strides=tuple(strides), storage=storage, host=None)

    def broadcast_to(self, shape: Sequence[int]) -> Array:
        sizes = pad_left(self.shape, len(shape), 1)
        strides = pad_left(self.strides, len(shape), 0)
        if len(sizes) > len(shape) or any(n not in (1, m) for n, m in zip(sizes, shape)):
            raise ValidationError(f"{list(self.shape)} does not broadcast to {list(shape)}")
        if tuple(shape) == self.shape:
            return self
        return self.view(shape, [s if n == m else 0 for n, m, s in zip(sizes, shape, strides)])

    def transpose(self, order: Sequence[int]) -> Array:
        return self.view([self.shape[d] for d in order], [self.strides[d] for d in order])

    def place(self) -> Slot | None:
        """Where the first element lies."""
        return None if self.storage is None else self.storage.slot()
