"""Tensor: a range of device memory with a description, and NumPy-like views of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from . import layout
from .desc import TensorDesc
from .dtypes import DataType, unpack_halves
from .errors import OutOfRangeError, UnsupportedError, ValidationError, expect, integers
from .layout import extent, product, reshape_strides
from .names import ALIASES
from .runtime.heap import Allocation

if TYPE_CHECKING:
    from .device import Device


def _given(operation: str, field: str, values: tuple[Any, ...]) -> list[int]:
    """Integers that were given one by one, or as one sequence."""
    if len(values) == 1 and not isinstance(values[0], (int, np.integer)):
        values = values[0]
    return list(integers(operation, field, values))


def _on_the_host(operation: str, name: str) -> UnsupportedError:
    """The error for what NumPy would compute on the host; ``name`` is NumPy's for it."""
    import kompute_dml

    function = ALIASES.get(name, name)
    there = hasattr(kompute_dml, function)
    return UnsupportedError(
        f"{operation}: expected arrays, but got a Tensor, which lies on a device; "
        + (f"kompute_dml.{function} computes there, " if there else "")
        + "numpy.asarray(tensor) copies it to the host"
    )


class Tensor:
    """Elements on a device. Made by ``device.tensor(array)``, ``device.empty(...)`` and operators.

    Indexing with integers and slices, ``transpose``, ``T``, ``reshape`` and ``broadcast_to`` give
    views of the same memory. ``numpy()`` and ``numpy.asarray(tensor)`` wait for what is pending
    and copy to the host.
    """

    __slots__ = ("__weakref__", "allocation", "byte_offset", "desc", "device")

    def __init__(
        self, device: Device, allocation: Allocation, byte_offset: int, desc: TensorDesc
    ) -> None:
        self.device = device
        self.allocation = allocation
        self.byte_offset = byte_offset
        self.desc = desc

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements along each dimension; ``shape`` is another name for it."""
        return self.desc.sizes

    shape = sizes

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements, as DirectML counts them (NumPy counts bytes)."""
        return self.desc.strides

    @property
    def data_type(self) -> DataType:
        """The type of the elements, as DirectML names it."""
        return self.desc.data_type

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements, as NumPy names it."""
        return self.desc.data_type.dtype

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
        return self.data_type.nbytes(extent(self.sizes, self.strides))

    def __repr__(self) -> str:
        packed = "" if self.desc.is_packed else f", strides={list(self.strides)}"
        return (
            f"<Tensor {self.data_type} {list(self.sizes)}{packed}, "
            f"on {self.device.adapter.name!r}>"
        )

    def __len__(self) -> int:
        return self.sizes[0]

    def __bool__(self) -> bool:
        """Whether the only element is true, as NumPy's arrays say it; many have no answer."""
        expect(self.size == 1, "bool(tensor)", "the tensor",
               "have one element (the truth of several is ambiguous)", repr(self))
        return bool(self.numpy())

    def __eq__(self, other: object) -> NoReturn:
        """Raises: neither identity nor elements on the host are what ``==`` asks for."""
        raise UnsupportedError(
            "tensor == other: expected kompute_dml.logical_equals, which compares elements on the "
            "device, or numpy.asarray(tensor), which copies them to the host ('is' tells whether "
            f"two names stand for one tensor), but got {self!r} and {type(other).__name__}"
        )

    __hash__ = object.__hash__

    def numpy(self) -> np.ndarray:
        """The elements as a new array, once everything recorded before is computed."""
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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        expect(copy is not False, "numpy.asarray(tensor)", "copy",
               "be True or None (a tensor lies on a device)", copy)
        array = self.numpy()
        return array if dtype is None else np.asarray(array, dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> NoReturn:
        """Raises: NumPy's functions and operators would compute on the host unseen."""
        raise _on_the_host(f"numpy.{ufunc.__name__}", ufunc.__name__)

    def __copy__(self) -> NoReturn:
        raise UnsupportedError(
            f"copy: expected a call that says where, but got {self!r}; "
            "kompute_dml.identity(tensor) copies on the device, tensor.numpy() to the host"
        )

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} stays on its device: send tensor.numpy() to other processes")

    def item(self) -> Any:
        """The only element, as a Python scalar."""
        expect(self.size == 1, "Tensor.item", "the tensor", "have one element", repr(self))
        return self.numpy().item()

    def free(self) -> None:
        """Give the memory back now, views included. Every later use raises ValidationError.

        Without it the memory goes back with the last reference.
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
        return Tensor(self.device, self.allocation, offset, desc)

    def __getitem__(self, key: Any) -> Tensor:
        """A view, by integers, slices of positive step, Ellipsis and None, as in NumPy.

        DirectML's tensors have at least one dimension: integers for every one give sizes ``[1]``.
        """
        try:
            sizes, strides, skip = layout.index(self.sizes, self.strides, key)
        except IndexError as error:
            raise OutOfRangeError(f"{self!r}[...]: {error}") from None
        except ValueError as error:
            raise ValidationError(f"{self!r}[...]: {error}") from None
        return self._view(sizes or (1,), strides or (1,), skip)

    def transpose(self, *axes: int) -> Tensor:
        """A view with its dimensions in another order; reversed by default."""
        order = _given("Tensor.transpose", "axes", axes) or list(reversed(range(self.ndim)))
        try:
            sizes, strides = layout.transpose(self.sizes, self.strides, order)
        except ValueError as error:
            raise ValidationError(f"{self!r}.transpose: {error}") from None
        return self._view(sizes, strides)

    @property
    def T(self) -> Tensor:
        """A view with its dimensions in reversed order."""
        return self.transpose()

    def reshape(self, *sizes: Any) -> Tensor:
        """A view under other sizes (one may be -1). Raises ValidationError where only a copy can
        have them."""
        wanted = _given("Tensor.reshape", "sizes", sizes)
        if wanted.count(-1) == 1:
            known = product([n for n in wanted if n != -1])
            if known and self.size % known == 0:
                wanted[wanted.index(-1)] = self.size // known
        if product(wanted) != self.size or min(wanted, default=1) < 1:
            raise ValidationError(
                f"{self!r}.reshape: expected sizes of {self.size} elements, but got {list(sizes)}"
            )
        strides = reshape_strides(self.sizes, self.strides, wanted)
        if strides is None:
            raise ValidationError(
                f"{self!r}.reshape: its strides cannot be seen as {wanted} without a copy"
            )
        return self._view(wanted or [1], strides or [1])

    def broadcast_to(self, *sizes: Any) -> Tensor:
        """A view that repeats dimensions of size 1, by zero strides."""
        wanted = _given("Tensor.broadcast_to", "sizes", sizes)
        try:
            strides = layout.broadcast_strides(self.sizes, self.strides, wanted)
        except ValueError:
            raise ValidationError(f"{self!r} does not broadcast to {wanted}") from None
        return self._view(wanted, strides)
