"""A range of device memory with a description, and views of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import layout
from ..desc import TensorDesc
from ..dtypes import DataType, unpack_halves
from ..errors import OutOfRangeError, ValidationError, expect, integers
from ..layout import product, reshape_strides
from ..runtime.heap import Allocation

if TYPE_CHECKING:
    from ..device import Device
    from . import Tensor

BOOL = np.dtype(bool)


def _given(operation: str, field: str, values: tuple[Any, ...]) -> list[int]:
    """Integers that are given as separate arguments, or as one sequence."""
    if len(values) == 1 and not isinstance(values[0], (int, np.integer)):
        values = values[0]
    return list(integers(operation, field, values))


class Memory:
    """Elements on a device: attributes, views, and copies to the host."""

    __slots__ = ("__weakref__", "allocation", "byte_offset", "desc", "device", "truth")

    device: Device
    """Where the elements lie."""
    truth: bool
    """Whether the elements are truth values, bytes of 0 and 1; ``dtype`` is bool then."""

    def __init__(
        self, device: Device, allocation: Allocation, byte_offset: int, desc: TensorDesc,
        truth: bool = False,
    ) -> None:
        self.device = device
        self.allocation = allocation
        self.byte_offset = byte_offset
        self.desc = desc
        self.truth = truth

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements along each dimension. Another name is ``shape``."""
        return self.desc.sizes

    shape = sizes

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements, as in DirectML (NumPy counts bytes)."""
        return self.desc.strides

    @property
    def data_type(self) -> DataType:
        """The type of the elements, as DirectML names it."""
        return self.desc.data_type

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements, as NumPy names it."""
        return BOOL if self.truth else self.desc.data_type.dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.data_type.itemsize

    @property
    def ndim(self) -> int:
        """Number of dimensions, 1 to 8."""
        return len(self.desc.sizes)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.desc.element_count

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        return self.desc.nbytes

    def summary(self) -> str:
        """Type, sizes and device, for messages."""
        packed = "" if self.desc.is_packed else f", strides={list(self.strides)}"
        kind = "bool" if self.truth else self.data_type
        return (f"<Tensor {kind} {list(self.sizes)}{packed}, "
                f"on {self.device.adapter.name!r}>")

    def numpy(self) -> np.ndarray:
        """The elements as a new array. Waits for all work recorded before."""
        itemsize = self.data_type.itemsize
        start = self.byte_offset // 4 * 4
        skipped = self.byte_offset - start
        raw = self.device._read(self.allocation, start, skipped + self.nbytes)[skipped:]
        if skipped % itemsize:
            raw = raw.copy()
        narrow = self.data_type.bits < 8
        flat = unpack_halves(raw, self.data_type) if narrow else raw.view(self.dtype)
        if self.desc.is_packed:
            return flat[: self.size].reshape(self.sizes)
        view: np.ndarray = np.lib.stride_tricks.as_strided(
            flat, self.sizes, [s * itemsize for s in self.strides], writeable=False
        )
        return view.copy()

    def free(self) -> None:
        """Free the memory now, also that of views. Any later use raises ValidationError.

        Without this call the memory is freed with the last reference.
        """
        self.device._free(self.allocation)

    # Views

    def _view(
        self, sizes: Sequence[int], strides: Sequence[int], skip_elements: int = 0
    ) -> Tensor:
        skip_bits = skip_elements * self.data_type.bits
        expect(skip_bits % 8 == 0, "Tensor", "a view", "begin with a byte",
               f"element {skip_elements} of {self.data_type}")
        offset = self.byte_offset + skip_bits // 8
        desc = TensorDesc(
            self.data_type,
            tuple(sizes),
            tuple(strides),
            guaranteed_base_offset_alignment=offset & -offset if offset % 16 else 0,
        )
        return type(self)(  # type: ignore[return-value]
            self.device, self.allocation, offset, desc, self.truth)

    def window(self, key: Any) -> Tensor:
        """A view, by integers, slices of positive step, Ellipsis and None, as in NumPy.

        DirectML's tensors have at least one dimension: an integer for each gives sizes ``[1]``.
        """
        try:
            sizes, strides, skip = layout.index(self.sizes, self.strides, key)
        except IndexError as error:
            raise OutOfRangeError(f"{self.summary()}[...]: {error}") from None
        except ValueError as error:
            raise ValidationError(f"{self.summary()}[...]: {error}") from None
        return self._view(sizes or (1,), strides or (1,), skip)

    def transpose(self, *axes: int) -> Tensor:
        """A view with its dimensions in another order; reversed by default."""
        order = _given("Tensor.transpose", "axes", axes) or list(reversed(range(self.ndim)))
        try:
            sizes, strides = layout.transpose(self.sizes, self.strides, order)
        except ValueError as error:
            raise ValidationError(f"{self.summary()}.transpose: {error}") from None
        return self._view(sizes, strides)

    @property
    def T(self) -> Tensor:
        """A view with its dimensions in reversed order."""
        return self.transpose()

    @property
    def mT(self) -> Tensor:
        """A view with its last two dimensions exchanged."""
        expect(self.ndim > 1, "Tensor.mT", "the tensor", "have two dimensions", self.summary())
        return self.transpose(*range(self.ndim - 2), -1, -2)

    def reshaped(self, *sizes: Any) -> Tensor | None:
        """A view with other sizes (one may be -1). None if that needs a copy."""
        wanted = _given("Tensor.reshape", "sizes", sizes)
        if wanted.count(-1) == 1:
            known = product([n for n in wanted if n != -1])
            if known and self.size % known == 0:
                wanted[wanted.index(-1)] = self.size // known
        if product(wanted) != self.size or min(wanted, default=1) < 1:
            raise ValidationError(f"{self.summary()}.reshape: expected sizes of {self.size} "
                                  f"elements, but got {list(sizes)}")
        strides = reshape_strides(self.sizes, self.strides, wanted)
        return None if strides is None else self._view(wanted or [1], strides or [1])

    def viewed_as(self, data_type: DataType, truth: bool = False) -> Tensor:
        """The same bytes, as elements of another type of the same width."""
        expect(data_type.bits == self.data_type.bits, "Tensor.view", "the data type",
               f"have {self.data_type.bits} bits", data_type)
        return type(self)(  # type: ignore[return-value]
            self.device, self.allocation, self.byte_offset, self.desc.replace(data_type=data_type),
            truth)

    def broadcast_to(self, *sizes: Any) -> Tensor:
        """A view that repeats dimensions of size 1, by zero strides."""
        wanted = _given("Tensor.broadcast_to", "sizes", sizes)
        try:
            strides = layout.broadcast_strides(self.sizes, self.strides, wanted)
        except ValueError:
            raise ValidationError(f"{self.summary()} does not broadcast to {wanted}") from None
        return self._view(wanted, strides)
