"""Values while a plan is built: strided views of memory that is allocated later."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import layout
from ..desc import MINIMUM_ALIGNMENT, TensorDesc
from ..dtypes import BOOL as BOOL
from ..dtypes import DataType
from ..errors import ValidationError
from ..layout import Ints, product
from ..tensors.types import device_type as device_type
from .memory import Storage


@functools.lru_cache(maxsize=4096)
def described(data_type: DataType, sizes: Ints, strides: Ints, alignment: int) -> TensorDesc:
    """A description. A model has many tensors of few kinds."""
    return TensorDesc(data_type, sizes, strides, guaranteed_base_offset_alignment=alignment)


@dataclass(eq=False)  # not frozen: a model has thousands, which would take twice as long
class Array:
    """A value while the plan is built. It does not change. ``shape`` may be (), or hold a 0; then
    ``storage`` is None."""

    dtype: np.dtype[Any]
    shape: Ints
    strides: Ints
    storage: Storage | None
    """Memory that begins with the array's first element."""
    host: np.ndarray | None = None
    """The values, if the host knows them."""

    @property
    def size(self) -> int:
        return product(self.shape)

    @property
    def packed(self) -> bool:
        return layout.is_packed(self.shape, self.strides)

    @property
    def is_channels_last(self) -> bool:
        """Whether the second dimension, the channels, is innermost in memory."""
        return len(self.shape) > 2 and not self.packed and (
            self.strides == layout.channels_last_strides(self.shape))

    @property
    def has_channels_inside(self) -> bool:
        """Whether it is channels-last, or some channels of an array that is."""
        if len(self.shape) < 3 or self.packed or self.shape[1] < 2 or self.strides[1] != 1:
            return False
        places, strides = (self.shape[0], *self.shape[2:]), (self.strides[0], *self.strides[2:])
        pitch = strides[-1]
        return pitch >= self.shape[1] and strides == tuple(
            pitch * s for s in layout.packed_strides(places))

    def desc(self, sizes: Sequence[int], strides: Sequence[int]) -> TensorDesc:
        begin = 0 if self.storage is None else self.storage.begin % MINIMUM_ALIGNMENT
        return described(device_type(self.dtype), tuple(sizes) or (1,), tuple(strides) or (1,),
                          begin & -begin)

    def view(self, shape: Sequence[int], strides: Sequence[int], start: int = 0) -> Array:
        """Other sizes and strides, from element ``start`` on, of no more memory than this has."""
        reach = start + layout.extent(shape, strides)
        if product(shape) and (start < 0 or reach > layout.extent(self.shape, self.strides)):
            raise ValidationError(
                f"expected elements of {list(self.shape)}, but got {list(shape)} with strides "
                f"{list(strides)} from {start} on")
        storage = self.storage if product(shape) else None
        if storage is not None and start:
            storage = storage.part(start * self.dtype.itemsize)
        return Array(self.dtype, tuple(shape), tuple(strides), storage)

    def broadcast_to(self, shape: Sequence[int]) -> Array:
        if tuple(shape) == self.shape:
            return self
        return self.view(shape, layout.broadcast_strides(self.shape, self.strides, shape))

    def transpose(self, order: Sequence[int]) -> Array:
        return self.view(*layout.transpose(self.shape, self.strides, order))
