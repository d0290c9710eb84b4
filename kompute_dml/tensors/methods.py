"""The methods of tensors, with the names of NumPy, CuPy and PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import expect
from .attached import METHODS, NUMPY
from .memory import Memory
from .types import BOOL, device_type, element_type

if TYPE_CHECKING:
    from ..device import Device
    from . import Tensor
    from .types import DataTypeLike


def _over(name: str, x: object, axis: object, options: dict[str, Any]) -> Any:
    """Call NumPy's reduction. ``dim`` is PyTorch's name for the axis, ``unbiased`` for a ddof
    of 1."""
    if "unbiased" in options:
        options["ddof"] = int(options.pop("unbiased"))
    return NUMPY[name](x, axis=options.pop("dim", axis), **options)


class Methods(Memory):
    """Conversions, copies, reductions, and elements."""

    __slots__ = ()

    # Elements

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len of {self.summary()}, which has no dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, key: object) -> Tensor:
        """A view by integers, slices, Ellipsis and None. A copy by an array of indices, by a mask,
        and by a slice of negative step."""
        return METHODS["get"](self, key)

    def __setitem__(self, key: object, value: object) -> None:
        METHODS["put"](self, key, value)

    def item(self, *index: object) -> Any:
        """The only element, or the one at ``index``, as a Python scalar."""
        x: Any = self
        if index:
            x = x.ravel()[index[0]] if len(index) == 1 and x.ndim > 1 else x[index]
        expect(x.size == 1, "Tensor.item", "the tensor", "have one element", x.summary())
        return x.numpy().item()

    def __bool__(self) -> bool:
        """Whether the only element is true, as in NumPy. Raises for several elements."""
        x: Any = self
        expect(x.size == 1, "bool(tensor)", "the tensor",
               "have one element (the truth of several is ambiguous: use any() or all())",
               x.summary())
        return bool(x.numpy())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __round__(self, decimals: int | None = None) -> Any:
        """The only element, rounded, as of NumPy's scalars."""
        value = self.item()
        return round(value if decimals is None else self.dtype.type(value), decimals)

    def __bytes__(self) -> bytes:
        return self.numpy().tobytes()

    def __index__(self) -> int:
        x: Any = self
        if x.dtype.kind not in "iu":
            raise TypeError(f"{x.summary()} is no integer")
        return int(self.item())

    @property
    def flat(self) -> Tensor:
        """The elements in one dimension, to read: :meth:`ravel`."""
        return self.ravel()

    def tobytes(self) -> bytes:
        """The bytes of the elements in row-major order."""
        return self.numpy().tobytes()

    def tofile(self, file: Any) -> None:
        """Write the bytes of the elements to a file, as numpy.ndarray.tofile."""
        self.numpy().tofile(file)

    def block_until_ready(self) -> Tensor:
        """Wait until the elements are computed. Returns the tensor."""
        self.device.synchronize()
        return self  # type: ignore[return-value]

    def tolist(self) -> Any:
        """The elements as nested lists; the element itself without dimensions."""
        return self.numpy().tolist()

    def cpu(self) -> np.ndarray:
        """A copy on the host, as an array of NumPy's; also ``get()`` and ``numpy()``."""
        return self.numpy()

    get = cpu

    def to_numpy(self, dtype: DataTypeLike | None = None, copy: bool = False) -> np.ndarray:
        """A copy on the host (pandas.Series.to_numpy), of ``dtype`` if that is not None."""
        return np.asarray(self.numpy(), dtype)

    def fill(self, value: object) -> None:
        """``x[...] = value``."""
        self[...] = value

    # Copies

    def astype(self, dtype: object, copy: bool = True) -> Tensor:
        """The elements as another type; as bool, whether they are not 0."""
        return METHODS["astype"](self, dtype, copy)

    def to(self, target: object) -> Any:
        """The tensor on another device, or with another type; itself if nothing changes. For
        "cpu", an array of NumPy's."""
        return METHODS["to"](self, target)

    def copy(self) -> Tensor:
        """A packed copy on the same device; also ``clone()``."""
        return NUMPY["copy"](self)

    clone = copy

    def contiguous(self) -> Tensor:
        """The tensor itself if it is packed, else a packed copy."""
        x: Any = self
        return x if x.desc.is_packed else self.copy()

    def flatten(self) -> Tensor:
        """A copy of one dimension."""
        return self.copy().ravel()

    # Views

    def reshape(self, *sizes: object, order: str = "C") -> Tensor:
        """Other sizes (one may be -1): a view where possible, else a copy. ``order`` is that in
        which elements are read and placed: C, or F for columns first."""
        return NUMPY["reshape"](self, sizes[0] if len(sizes) == 1 else sizes, order)

    def view(self, *sizes: object) -> Tensor:
        """A view with other sizes, or with another type of the same width. Raises ValidationError
        if the sizes need a copy."""
        x: Any = self
        if len(sizes) == 1 and not isinstance(sizes[0], (tuple, list, int, np.integer)):
            kind = element_type(sizes[0])
            return x.viewed_as(device_type(kind), kind == BOOL)
        y = x.reshaped(*sizes)
        expect(y is not None, "Tensor.view", "the strides",
               f"show {list(sizes)} without a copy (reshape copies)", x.summary())
        return y

    def ravel(self) -> Tensor:
        """One dimension: a view where possible, else a copy."""
        return self.reshape(-1)

    def permute(self, *axes: Any) -> Tensor:
        """A view with its dimensions in another order."""
        return self.transpose(*axes)

    def expand(self, *sizes: object) -> Tensor:
        """A view that repeats dimensions of size 1; -1 keeps a size."""
        x: Any = self
        wanted = list(sizes[0]) if len(sizes) == 1 and np.iterable(sizes[0]) else list(sizes)
        kept = [1] * (len(wanted) - x.ndim) + list(x.sizes)
        return x.broadcast_to([k if n == -1 else n for n, k in zip(wanted, kept)])

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """A view with two dimensions exchanged."""
        return NUMPY["swapaxes"](self, axis1, axis2)

    def squeeze(self, axis: object = None) -> Tensor:
        """A view without dimensions of size 1."""
        return NUMPY["squeeze"](self, axis)

    def unsqueeze(self, axis: int) -> Tensor:
        """A view with a new dimension of size 1."""
        return NUMPY["expand_dims"](self, axis)

    # Reductions, scans, sorts

    def sum(self, axis: object = None, **options: object) -> Tensor:
        """The sum over ``axis``; small integers and truth values in 64 bits."""
        return _over("sum", self, axis, options)

    def prod(self, axis: object = None, **options: object) -> Tensor:
        """The product over ``axis``; small integers and truth values in 64 bits."""
        return _over("prod", self, axis, options)

    def mean(self, axis: object = None, **options: object) -> Tensor:
        """The mean over ``axis``. Integers are averaged in float32."""
        return _over("mean", self, axis, options)

    def var(self, axis: object = None, **options: object) -> Tensor:
        """The variance over ``axis``; ``ddof`` is 0."""
        return _over("var", self, axis, options)

    def std(self, axis: object = None, **options: object) -> Tensor:
        """The root of the variance over ``axis``; ``ddof`` is 0."""
        return _over("std", self, axis, options)

    def max(self, axis: object = None, **options: object) -> Tensor:
        """The largest element over ``axis``; NaN where there is one."""
        return _over("max", self, axis, options)

    def min(self, axis: object = None, **options: object) -> Tensor:
        """The smallest element over ``axis``; NaN where there is one."""
        return _over("min", self, axis, options)

    def any(self, axis: object = None, **options: object) -> Tensor:
        """Whether any element over ``axis`` is not 0."""
        return _over("any", self, axis, options)

    def all(self, axis: object = None, **options: object) -> Tensor:
        """Whether no element over ``axis`` is 0."""
        return _over("all", self, axis, options)

    def argmax(self, axis: object = None, **options: object) -> Tensor:
        """The index of the largest element, INT64."""
        return _over("argmax", self, axis, options)

    def argmin(self, axis: object = None, **options: object) -> Tensor:
        """The index of the smallest element, INT64."""
        return _over("argmin", self, axis, options)

    def cumsum(self, axis: object = None, **options: object) -> Tensor:
        """Sums of all elements up to each."""
        return _over("cumsum", self, axis, options)

    def cumprod(self, axis: object = None, **options: object) -> Tensor:
        """Products of all elements up to each."""
        return _over("cumprod", self, axis, options)

    def sort(self, axis: int = -1, **options: object) -> None:
        """Sort in place, as NumPy's method does; ``dml.sort(x)`` gives a copy."""
        METHODS["sort_in_place"](self, options.pop("dim", axis), **options)

    def argsort(self, axis: int | None = -1, **options: object) -> Tensor:
        """The indices that sort, INT64."""
        return NUMPY["argsort"](self, axis, **options)

    def clip(self, min: object = None, max: object = None, **options: object) -> Tensor:
        """Elements limited to two bounds; also ``clamp``."""
        return NUMPY["clip"](self, min, max, **options)

    clamp = clip

    def round(self, decimals: int = 0) -> Tensor:
        """Rounded to ``decimals``, halves to even."""
        return NUMPY["round"](self, decimals)

    def dot(self, other: object) -> Tensor:
        """The product of vectors and matrices."""
        return NUMPY["dot"](self, other)

    def take(self, indices: object, axis: int | None = None) -> Tensor:
        """Elements by index along ``axis``."""
        return NUMPY["take"](self, indices, axis)

    def repeat(self, repeats: int, axis: int | None = None) -> Tensor:
        """Each element ``repeats`` times, as numpy.repeat."""
        return NUMPY["repeat"](self, repeats, axis)

    def to_device(self, device: Device | int | str) -> Tensor:
        """The tensor on another device, through the host."""
        return METHODS["to_device"](self, device)
