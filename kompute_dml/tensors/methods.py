"""The methods of tensors, with the names of NumPy, CuPy and PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ValidationError, expect
from .memory import Memory

if TYPE_CHECKING:
    from ..device import Device
    from . import Tensor


def _numpys(name: str) -> Any:
    """Our function for NumPy's function of this name."""
    from ..arrays import functions
    from ..arrays.registry import NUMPY

    functions()
    return NUMPY[name]


def _over(name: str, x: Any, axis: Any, options: dict[str, Any]) -> Any:
    """Call NumPy's reduction. ``dim`` is PyTorch's name for the axis."""
    return _numpys(name)(x, axis=options.pop("dim", axis), **options)


class Methods(Memory):
    """Conversions, copies, reductions, and elements."""

    __slots__ = ()

    # Elements

    def __len__(self) -> int:
        return self.sizes[0]

    def __iter__(self) -> Iterator[Tensor]:
        for i in range(len(self)):
            yield self[i]

    def __getitem__(self, key: Any) -> Tensor:
        """A view by integers, slices, Ellipsis and None. A copy by an array of indices.

        A tensor has at least one dimension: an integer for each gives sizes ``[1]``.
        """
        from ..arrays.selection import get

        return get(self, key)  # type: ignore[arg-type]

    def __setitem__(self, key: Any, value: Any) -> None:
        from ..arrays.selection import put

        put(self, key, value)  # type: ignore[arg-type]

    def item(self, *index: Any) -> Any:
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
        return round(self.item(), decimals)

    def __bytes__(self) -> bytes:
        return self.numpy().tobytes()

    def __index__(self) -> int:
        x: Any = self
        if x.dtype.kind not in "iu":
            raise TypeError(f"{x.summary()} is no integer")
        return int(self.item())

    def tolist(self) -> list[Any]:
        """The elements as nested lists."""
        return self.numpy().tolist()

    def cpu(self) -> np.ndarray:
        """A copy on the host, as an array of NumPy's; also ``get()`` and ``numpy()``."""
        return self.numpy()

    get = cpu

    def fill(self, value: Any) -> None:
        """``x[...] = value``."""
        self[...] = value

    # Copies

    def astype(self, dtype: Any, copy: bool = True) -> Tensor:
        """The elements as another type; as bool, whether they are not 0."""
        from ..arrays.operand import cast, copied
        from ..arrays.types import element_type

        x: Any = self
        y = cast(x, element_type(dtype))
        return copied(y) if copy and y.allocation is x.allocation else y

    def to(self, target: Any) -> Tensor:
        """The tensor on another device, or with another type; itself if nothing changes."""
        from ..arrays.creation import asarray
        from ..device import Device

        x: Any = self
        if isinstance(target, (Device, int)):
            return asarray(x, device=target)
        try:
            return self.astype(target, copy=False)
        except ValidationError:
            if isinstance(target, str):
                return asarray(x, device=target)
            raise

    def copy(self) -> Tensor:
        """A packed copy on the same device; also ``clone()``."""
        return _numpys("copy")(self)

    clone = copy

    def contiguous(self) -> Tensor:
        """The tensor itself if it is packed, else a packed copy."""
        x: Any = self
        return x if x.desc.is_packed else self.copy()

    def flatten(self) -> Tensor:
        """A copy of one dimension."""
        return self.copy().ravel()

    # Views

    def reshape(self, *sizes: Any) -> Tensor:
        """Other sizes (one may be -1): a view where possible, else a copy."""
        from ..arrays.operand import reshape

        return reshape(self, *sizes)  # type: ignore[arg-type]

    def view(self, *sizes: Any) -> Tensor:
        """A view with other sizes, or with another type of the same width. Raises ValidationError
        if the sizes need a copy."""
        from ..arrays.types import BOOL, device_type, element_type

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

    def expand(self, *sizes: Any) -> Tensor:
        """A view that repeats dimensions of size 1; -1 keeps a size."""
        x: Any = self
        wanted = list(sizes[0]) if len(sizes) == 1 and np.iterable(sizes[0]) else list(sizes)
        kept = [1] * (len(wanted) - x.ndim) + list(x.sizes)
        return x.broadcast_to([k if n == -1 else n for n, k in zip(wanted, kept)])

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """A view with two dimensions exchanged."""
        return _numpys("swapaxes")(self, axis1, axis2)

    def squeeze(self, axis: Any = None) -> Tensor:
        """A view without dimensions of size 1; one dimension stays."""
        return _numpys("squeeze")(self, axis)

    def unsqueeze(self, axis: int) -> Tensor:
        """A view with a new dimension of size 1."""
        return _numpys("expand_dims")(self, axis)

    # Reductions, scans, sorts

    def sum(self, axis: Any = None, **options: Any) -> Tensor:
        """The sum over ``axis``; small integers and truth values in 64 bits."""
        return _over("sum", self, axis, options)

    def prod(self, axis: Any = None, **options: Any) -> Tensor:
        """The product over ``axis``; small integers and truth values in 64 bits."""
        return _over("prod", self, axis, options)

    def mean(self, axis: Any = None, **options: Any) -> Tensor:
        """The mean over ``axis``. Integers are averaged in float32."""
        return _over("mean", self, axis, options)

    def var(self, axis: Any = None, **options: Any) -> Tensor:
        """The variance over ``axis``; ``ddof`` is 0."""
        return _over("var", self, axis, options)

    def std(self, axis: Any = None, **options: Any) -> Tensor:
        """The root of the variance over ``axis``; ``ddof`` is 0."""
        return _over("std", self, axis, options)

    def max(self, axis: Any = None, **options: Any) -> Tensor:
        """The largest element over ``axis``; NaN where there is one."""
        return _over("max", self, axis, options)

    def min(self, axis: Any = None, **options: Any) -> Tensor:
        """The smallest element over ``axis``; NaN where there is one."""
        return _over("min", self, axis, options)

    def any(self, axis: Any = None, **options: Any) -> Tensor:
        """Whether any element over ``axis`` is not 0."""
        return _over("any", self, axis, options)

    def all(self, axis: Any = None, **options: Any) -> Tensor:
        """Whether no element over ``axis`` is 0."""
        return _over("all", self, axis, options)

    def argmax(self, axis: Any = None, **options: Any) -> Tensor:
        """The index of the largest element, INT64."""
        return _over("argmax", self, axis, options)

    def argmin(self, axis: Any = None, **options: Any) -> Tensor:
        """The index of the smallest element, INT64."""
        return _over("argmin", self, axis, options)

    def cumsum(self, axis: Any = None, **options: Any) -> Tensor:
        """Sums of all elements up to each."""
        return _over("cumsum", self, axis, options)

    def cumprod(self, axis: Any = None, **options: Any) -> Tensor:
        """Products of all elements up to each."""
        return _over("cumprod", self, axis, options)

    def sort(self, axis: int = -1, **options: Any) -> None:
        """Sort in place, as NumPy's method does; ``dml.sort(x)`` gives a copy."""
        from ..arrays.reductions import sort_in_place

        sort_in_place(self, options.pop("dim", axis), **options)  # type: ignore[arg-type]

    def argsort(self, axis: int | None = -1, **options: Any) -> Tensor:
        """The indices that sort, INT64."""
        return _numpys("argsort")(self, axis, **options)

    def clip(self, min: Any = None, max: Any = None, **options: Any) -> Tensor:
        """Elements limited to two bounds; also ``clamp``."""
        return _numpys("clip")(self, min, max, **options)

    clamp = clip

    def round(self, decimals: int = 0) -> Tensor:
        """Rounded to ``decimals``, halves to even."""
        return _numpys("round")(self, decimals)

    def dot(self, other: Any) -> Tensor:
        """The product of vectors and matrices."""
        return _numpys("dot")(self, other)

    def take(self, indices: Any, axis: int | None = None) -> Tensor:
        """Elements by index along ``axis``."""
        return _numpys("take")(self, indices, axis)

    def repeat(self, repeats: int, axis: int | None = None) -> Tensor:
        """Each element ``repeats`` times, as numpy.repeat."""
        return _numpys("repeat")(self, repeats, axis)

    def to_device(self, device: Device | int | str) -> Tensor:
        """The tensor on another device, through the host."""
        from ..arrays.creation import asarray

        return asarray(self, device=device)  # type: ignore[arg-type]
