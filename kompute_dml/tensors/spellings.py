"""Functions as methods, as PyTorch spells them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import kompute_dml

from ..errors import expect
from .memory import Memory

if TYPE_CHECKING:
    from . import Tensor


def _published(name: str) -> Any:
    return getattr(kompute_dml, name)


def _function(name: str) -> Callable[..., Any]:
    """The method that calls ``kompute_dml.name`` of the tensor."""
    def call(self: Tensor, *args: object, **options: object) -> Any:
        return _published(name)(self, *args, **options)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"``kompute_dml.{name}`` of the tensor."
    return call


def _in_place(name: str) -> Callable[..., Any]:
    """The method that writes the result of a function to the tensor itself."""
    def call(self: Tensor, *args: object, **options: object) -> Any:
        self[...] = _published(name)(self, *args, **options)
        return self

    call.__name__ = call.__qualname__ = f"{name}_"
    call.__doc__ = f"``kompute_dml.{name}`` of the tensor, written to itself."
    return call


def _typed(name: str) -> Callable[..., Any]:
    """The method that converts the elements."""
    def call(self: Tensor) -> Any:
        return self.astype(name, copy=False)

    call.__doc__ = f"The elements as {name}; the tensor itself if it has that type."
    return call


class Spellings(Memory):
    """PyTorch's names of functions of one tensor, and of conversions."""

    __slots__ = ()

    exp, exp2, expm1 = map(_function, ("exp", "exp2", "expm1"))
    log, log2, log10, log1p = map(_function, ("log", "log2", "log10", "log1p"))
    sqrt, square, reciprocal = map(_function, ("sqrt", "square", "reciprocal"))
    sin, cos, tan = map(_function, ("sin", "cos", "tan"))
    sinh, cosh, tanh = map(_function, ("sinh", "cosh", "tanh"))
    abs, neg, sign = map(_function, ("absolute", "negative", "sign"))
    floor, ceil, trunc = map(_function, ("floor", "ceil", "trunc"))
    isnan, isinf, isfinite = map(_function, ("isnan", "isinf", "isfinite"))
    nan_to_num = _function("nan_to_num")
    relu, sigmoid, gelu, silu, erf = map(_function, ("relu", "sigmoid", "gelu", "silu", "erf"))
    softmax, log_softmax = map(_function, ("softmax", "log_softmax"))
    add, sub, mul, div = map(_function, ("add", "subtract", "multiply", "divide"))
    pow, remainder = map(_function, ("power", "remainder"))
    eq, ne, lt = map(_function, ("equal", "not_equal", "less"))
    le, gt, ge = map(_function, ("less_equal", "greater", "greater_equal"))
    maximum, minimum = map(_function, ("maximum", "minimum"))
    logical_and, logical_or = map(_function, ("logical_and", "logical_or"))
    logical_not = _function("logical_not")
    matmul, mm, bmm, mv = map(_function, ("matmul",) * 4)
    outer, trace = map(_function, ("outer", "trace"))
    tril, triu, diag, diagonal = map(_function, ("tril", "triu", "diag", "diagonal"))
    topk, unique, nonzero = map(_function, ("topk", "unique", "nonzero"))
    argwhere, compress = map(_function, ("argwhere", "compress"))
    searchsorted = _function("searchsorted")
    median, quantile = map(_function, ("median", "quantile"))
    ptp, diff, flip, roll = map(_function, ("ptp", "diff", "flip", "roll"))
    take_along_dim = _function("take_along_axis")
    isclose, allclose = map(_function, ("isclose", "allclose"))

    add_, sub_, mul_, div_ = map(_in_place, ("add", "subtract", "multiply", "divide"))
    pow_, exp_, sqrt_, neg_ = map(_in_place, ("power", "exp", "sqrt", "negative"))
    abs_, relu_, clamp_ = map(_in_place, ("absolute", "relu", "clip"))

    float, double, half = map(_typed, ("float32", "float64", "float16"))
    short, int, long = map(_typed, ("int16", "int32", "int64"))
    bool, byte, char = map(_typed, ("bool", "uint8", "int8"))

    # PyTorch's names of what tensors have

    def numel(self) -> Any:
        """The number of elements: ``x.size``."""
        return self.size

    nelement = numel

    def dim(self) -> Any:
        """The number of dimensions: ``x.ndim``."""
        return self.ndim

    def element_size(self) -> Any:
        """Bytes of one element: ``x.itemsize``."""
        return self.itemsize

    def is_contiguous(self) -> Any:
        """Whether the elements are row-major and contiguous."""
        return self.desc.is_packed

    def t(self) -> Tensor:
        """The transposed matrix: ``x.T``."""
        return self.T

    def detach(self) -> Tensor:
        """The tensor itself: nothing records gradients."""
        return self  # type: ignore[return-value]

    def view_as(self, other: Tensor) -> Tensor:
        """A view with the sizes of ``other``."""
        x: Any = self
        return x.view(*other.shape)

    def expand_as(self, other: Tensor) -> Tensor:
        """A view with the sizes of ``other``, which repeats dimensions of size 1."""
        return self.broadcast_to(other.shape)

    def type_as(self, other: Tensor) -> Tensor:
        """The elements as the type of ``other``."""
        x: Any = self
        return x.astype(other.dtype, copy=False)

    def _created(self, name: str, sizes: Any, options: dict[str, Any]) -> Tensor:
        options.setdefault("dtype", self.dtype)
        y: Tensor = _published(name)(*sizes, device=self.device, **options)
        return y

    def new_zeros(self, *sizes: object, **options: object) -> Tensor:
        """Zeros of the type of the tensor, on its device."""
        return self._created("zeros", sizes, options)

    def new_ones(self, *sizes: object, **options: object) -> Tensor:
        """Ones of the type of the tensor, on its device."""
        return self._created("ones", sizes, options)

    def new_full(self, size: object, fill_value: object, **options: object) -> Tensor:
        """One number everywhere, of the type of the tensor, on its device."""
        return self._created("full", (size, fill_value), options)

    def fill_(self, value: object) -> Tensor:
        """``x[...] = value``; returns the tensor."""
        x: Any = self
        x[...] = value
        return x

    def zero_(self) -> Tensor:
        """``x[...] = 0``; returns the tensor."""
        return self.fill_(0)

    copy_ = fill_

    def masked_fill(self, mask: object, value: object) -> Tensor:
        """A copy with ``value`` where the mask is true."""
        y: Tensor = _published("where")(mask, value, self)
        return y

    def masked_select(self, mask: object) -> Tensor:
        """The elements where the mask is true."""
        x: Any = self
        return x[mask]

    def index_select(self, dim: object, index: object) -> Tensor:
        """Elements by index along ``dim``."""
        x: Any = self
        return x.take(index, dim)

    def gather(self, dim: object, index: object) -> Tensor:
        """``y[i][j] = x[index[i][j]][j]`` for dim 0 (torch.gather)."""
        y: Tensor = _published("take_along_axis")(self, index, dim)
        return y

    def unbind(self, dim: object = 0) -> tuple[Tensor, ...]:
        """The slices along ``dim``."""
        return tuple(_published("moveaxis")(self, dim, 0))

    def split(self, split_size: Any, dim: Any = 0) -> tuple[Tensor, ...]:
        """Parts of ``split_size`` along ``dim``, the last one smaller, or of several sizes
        (torch.Tensor.split)."""
        n = self.shape[dim]
        at = dim % self.ndim
        if isinstance(split_size, (list, tuple)):
            sizes = list(split_size)
            expect(sum(sizes) == n, "Tensor.split", "the sizes", f"make {n}", sizes)
            ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        else:
            expect(split_size > 0, "Tensor.split", "split_size", "be at least 1", split_size)
            ends = [*range(0, n, split_size), n]
        before = (slice(None),) * at
        return tuple(self.window((*before, slice(a, b))) for a, b in itertools.pairwise(ends))

    def chunk(self, chunks: Any, dim: Any = 0) -> tuple[Tensor, ...]:
        """At most ``chunks`` parts of one size along ``dim``, the last one smaller."""
        return self.split(max(-(-self.shape[dim] // chunks), 1), dim)

    def norm(self, p: object = 2, dim: object = None, keepdim: object = False) -> Tensor:
        """The root of the sum of squares over ``dim``, or the sum of sizes for ``p`` of 1."""
        x: Any = self
        y: Tensor = _published("linalg").norm(
            x if dim is not None else x.reshape(-1),
            ord=None if p in (2, "fro") else p, axis=dim, keepdims=keepdim)
        return y
