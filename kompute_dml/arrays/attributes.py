"""NumPy's functions that query or print an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import expect
from ..tensors import Tensor
from ..tensors.attached import NUMPY
from ..tensors.types import TensorLike
from .operand import as_tensor
from .registry import array_function, publish


@array_function(public=False)
def shape(x: TensorLike) -> tuple[int, ...]:
    return as_tensor(x).shape


@array_function(public=False)
def ndim(x: TensorLike) -> int:
    return as_tensor(x).ndim


@array_function(public=False)
def size(x: TensorLike, axis: int | None = None) -> int:
    return as_tensor(x).size if axis is None else as_tensor(x).shape[axis]


@array_function(public=False)
def result_type(*values: Any) -> np.dtype[Any]:
    return np.result_type(*(v.dtype if isinstance(v, Tensor) else v for v in values))


@array_function(public=False)
def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    return np.can_cast(from_.dtype if isinstance(from_, Tensor) else from_,
                       to.dtype if isinstance(to, Tensor) else to, casting)


@array_function(public=False)
def iscomplexobj(x: TensorLike) -> bool:
    return False


@array_function(public=False)
def isrealobj(x: TensorLike) -> bool:
    return True


def _on_the_host(function: Any) -> Any:
    def host(value: object) -> Any:
        return value.numpy() if isinstance(value, Tensor) else value

    return lambda *args, **kwargs: function(
        *map(host, args), **{k: host(v) for k, v in kwargs.items()})


def save(file: Any, x: Any) -> None:
    """Write a tensor to a file, as numpy.save does."""
    expect(not isinstance(file, Tensor), "save", "the file", "come first, as in numpy.save",
           type(file).__name__)
    np.save(file, x.numpy() if isinstance(x, Tensor) else x)


def savez(file: object, *arrays: object, **named: object) -> None:
    """Write tensors to one file, as numpy.savez does."""
    _on_the_host(np.savez)(file, *arrays, **named)


publish("save", save)
publish("savez", savez)
for _name in ("save", "savez", "savez_compressed", "savetxt", "array_repr", "array_str",
              "array2string"):
    NUMPY[_name] = _on_the_host(getattr(np, _name))
