"""NumPy's functions that query or print an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..tensors import Tensor
from .operand import as_tensor
from .registry import NUMPY, array_function


@array_function(public=False)
def shape(x: Any) -> tuple[int, ...]:
    return as_tensor(x).shape


@array_function(public=False)
def ndim(x: Any) -> int:
    return as_tensor(x).ndim


@array_function(public=False)
def size(x: Any, axis: int | None = None) -> int:
    return as_tensor(x).size if axis is None else as_tensor(x).shape[axis]


@array_function(public=False)
def result_type(*values: Any) -> np.dtype[Any]:
    return np.result_type(*(v.dtype if isinstance(v, Tensor) else v for v in values))


@array_function(public=False)
def can_cast(from_: Any, to: Any, casting: Any = "safe") -> bool:
    return np.can_cast(from_.dtype if isinstance(from_, Tensor) else from_,
                       to.dtype if isinstance(to, Tensor) else to, casting)


@array_function(public=False)
def iscomplexobj(x: Any) -> bool:
    return False


@array_function(public=False)
def isrealobj(x: Any) -> bool:
    return True


def _on_the_host(function: Any) -> Any:
    def host(value: Any) -> Any:
        return value.numpy() if isinstance(value, Tensor) else value

    return lambda *args, **kwargs: function(
        *map(host, args), **{k: host(v) for k, v in kwargs.items()})


for _name in ("save", "savez", "savez_compressed", "savetxt", "array_repr", "array_str",
              "array2string"):
    NUMPY[_name] = _on_the_host(getattr(np, _name))
