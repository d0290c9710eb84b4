"""A range of device memory with a description, and views of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import layout
from ..desc import TensorDesc
from ..dtypes import BOOL, DataType, unpack_halves
from ..errors import OutOfRangeError, ValidationError, expect, integers
from ..layout import Ints, product, reshape_strides
from ..runtime.heap import Allocation

if TYPE_CHECKING:
    from ..device import Device
    from . import Tensor


def standing_for(data_type: DataType, shape: Sequence[int]) -> TensorDesc:
    """The description of a packed tensor of these sizes. DirectML has no tensor without dimensions,
    or with a size of 0: the description that stands for it has sizes of 1 there."""
    return TensorDesc.packed(data_type, [n or 1 for n in shape] or (1,))


def _given(operation: str, field: str, values: tuple[Any, ...]) -> list[int]:
    """Integers that are given as separate arguments, or as one sequence."""
    if len(values) == 1 and not isinstance(values[0], (int, np.integer)):
        values = values[0]
    return list(integers(operation, field, values))


class Memory:
    """Elements on a device: attributes, views, and copies to the host."""

    __slots__ = ("__weakref__", "allocation", "byte_offset", "desc", "device", "shape", "truth")

    device: Device
    """Where the elements lie."""
    desc: TensorDesc
    """DirectML's description, which has 1 to 8 sizes of at least 1. That of a tensor without
    dimensions has sizes ``[1]``. That of a tensor without elements stands for nothing."""
    shape: Ints
    """Elements along each dimension, as in NumPy: () for one element without dimensions."""
    truth: bool
    """Whether the elements are truth values, bytes of 0 and 1; ``dtype`` is bool then."""

    def __init__(
        self, device: Device, allocation: Allocation | None = None, byte_offset: int = 0,
        desc: TensorDesc | None = None, truth: bool = False, shape: Ints | None = None,
    ) -> None:
        if allocation is None or desc is None:
            raise TypeError("Tensor takes memory of a device: dml.tensor(data) makes one of data")
        self.device = device
        self.allocation = allocation
        self.byte_offset = byte_offset
        self.desc = desc
        self.truth = truth
        self.shape = desc.sizes if shape is None else shape

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements along each dimension. Another name is ``shape``."""
        return self.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in elements, as in DirectML (NumPy counts bytes)."""
        return self.desc.strides if self.shape else ()

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
        """Number of dimensions, 0 to 8."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return 0 if 0 in self.shape else self.desc.element_count

    @property
    def nbytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        return 0 if 0 in self.shape else self.desc.nbytes

    def summary(self) -> str:
        """Type, sizes and device, for messages."""
        packed = "" if self.desc.is_packed else f", strides={list(self.strides)}"
        kind = "bool" if self.truth else self.data_type
        return (f"<Tensor {kind} {list(self.sizes)}{packed}, "
                f"on {self.device.adapter.name!r}>")

    def numpy(self) -> np.ndarray:
        """The elements as a new array. Waits for all work recorded before."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        itemsize = self.data_type.itemsize
        start = self.byte_offset // 4 * 4
        skipped = self.byte_offset - start
        raw = self.device.read(self.allocation, start, skipped + self.nbytes)[skipped:]
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
        self.device.free(self.allocation)

    # Views

    def strided(
        self, sizes: Sequence[int], strides: Sequence[int], skip_elements: int = 0
    ) -> Tensor:
        """A view with these strides, in elements, from an element on. Nothing is checked."""
        sizes = tuple(sizes)
        if 0 in sizes:
            desc, skip_elements = standing_for(self.data_type, sizes), 0
        skip_bits = skip_elements * self.data_type.bits
        expect(skip_bits % 8 == 0, "Tensor", "a view", "begin with a byte",
               f"element {skip_elements} of {self.data_type}")
        offset = self.byte_offset + skip_bits // 8
        if 0 not in sizes:
            desc = TensorDesc(
                self.data_type,
                sizes or (1,),
                tuple(strides) or (1,),
                guaranteed_base_offset_alignment=offset & -offset if offset % 16 else 0,
            )
        return type(self)(  # type: ignore[return-value]
            self.device, self.allocation, offset, desc, self.truth, sizes)

    def window(self, key: object) -> Tensor:
        """A view, by integers, slices of positive step, Ellipsis and None, as in NumPy."""
        try:
            sizes, strides, skip = layout.index(self.sizes, self.strides, key)
        except IndexError as error:
            raise OutOfRangeError(f"{self.summary()}[...]: {error}") from None
        except ValueError as error:
            raise ValidationError(f"{self.summary()}[...]: {error}") from None
        return self.strided(sizes, strides, skip)

    def diagonal_view(self) -> Tensor:
        """A view of the elements with equal indices on the last two axes."""
        n = min(self.shape[-2:])
        return self.strided((*self.sizes[:-2], n), (*self.strides[:-2], sum(self.strides[-2:])))

    def transpose(self, *axes: int) -> Tensor:
        """A view with its dimensions in another order; reversed by default."""
        order = _given("Tensor.transpose", "axes", axes) or list(reversed(range(self.ndim)))
        try:
            sizes, strides = layout.transpose(self.sizes, self.strides, order)
        except ValueError as error:
            raise ValidationError(f"{self.summary()}.transpose: {error}") from None
        return self.strided(sizes, strides)

    @property
    def T(self) -> Tensor:
        """A view with its dimensions in reversed order."""
        return self.transpose()

    @property
    def mT(self) -> Tensor:
        """A view with its last two dimensions exchanged."""
        expect(self.ndim > 1, "Tensor.mT", "the tensor", "have two dimensions", self.summary())
        return self.transpose(*range(self.ndim - 2), -1, -2)

    def reshaped(self, *sizes: object) -> Tensor | None:
        """A view with other sizes (one may be -1). None if that needs a copy."""
        wanted = _given("Tensor.reshape", "sizes", sizes)
        if wanted.count(-1) == 1:
            known = product([n for n in wanted if n != -1])
            if known and self.size % known == 0:
                wanted[wanted.index(-1)] = self.size // known
        if product(wanted) != self.size or min(wanted, default=1) < 0:
            raise ValidationError(f"{self.summary()}.reshape: expected sizes of {self.size} "
                                  f"elements, but got {list(sizes)}")
        strides = reshape_strides(self.sizes, self.strides, wanted)
        return None if strides is None else self.strided(wanted, strides)

    def viewed_as(self, data_type: DataType, truth: bool = False) -> Tensor:
        """The same bytes, as elements of another type of the same width."""
        expect(data_type.bits == self.data_type.bits, "Tensor.view", "the data type",
               f"have {self.data_type.bits} bits", data_type)
        return type(self)(  # type: ignore[return-value]
            self.device, self.allocation, self.byte_offset, self.desc.replace(data_type=data_type),
            truth, self.shape)

    def broadcast_to(self, *sizes: object) -> Tensor:
        """A view that repeats dimensions of size 1, by zero strides."""
        wanted = _given("Tensor.broadcast_to", "sizes", sizes)
        try:
            strides = layout.broadcast_strides(self.sizes, self.strides, wanted)
        except ValueError:
            raise ValidationError(f"{self.summary()} does not broadcast to {wanted}") from None
        return self.strided(wanted, strides)
