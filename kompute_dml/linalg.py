"""Linear algebra: NumPy's names. Decompositions that the device does not compute take
``host=True``, which copies to the host, computes there and brings the results back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .arrays.creation import tensor
from .arrays.linear_algebra import (
    LinAlgError,
    cholesky,
    det,
    inv,
    matrix_power,
    multi_dot,
    on_host,
    qr,
    slogdet,
    solve,
)
from .arrays.matmul import matmul, outer, tensordot, trace
from .arrays.movement import cross, diagonal, matrix_transpose
from .arrays.reductions import norm
from .functions.call import device_of
from .tensors import Tensor

__all__ = [  # noqa: RUF022  (the device's first)
    "LinAlgError", "cholesky", "cross", "det", "diagonal", "inv", "matmul", "matrix_power",
    "matrix_transpose", "multi_dot", "norm", "outer", "qr", "slogdet", "solve", "tensordot",
    "trace", "cond", "eig", "eigh", "eigvals", "eigvalsh", "lstsq", "matrix_rank", "pinv", "svd",
    "svdvals",
]


def _of_host(name: str) -> Callable[..., Any]:
    numpys = getattr(np.linalg, name)

    def call(*operands: object, host: bool = False, **options: object) -> Any:
        if not host:
            raise on_host(name)
        device = device_of(*operands)

        def back(value: object) -> Any:
            if isinstance(value, tuple):
                return tuple(map(back, value))
            real = isinstance(value, (np.ndarray, np.generic)) and not np.iscomplexobj(value)
            return tensor(np.asarray(value), device=device) if real else value

        arrays = [x.numpy() if isinstance(x, Tensor) else x for x in operands]
        return back(numpys(*arrays, **options))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = (f"numpy.linalg.{name}, computed on the host, as ``host=True`` must say. "
                    "Complex results stay there.")
    return call


cond = _of_host("cond")
eig = _of_host("eig")
eigh = _of_host("eigh")
eigvals = _of_host("eigvals")
eigvalsh = _of_host("eigvalsh")
lstsq = _of_host("lstsq")
matrix_rank = _of_host("matrix_rank")
pinv = _of_host("pinv")
svd = _of_host("svd")
svdvals = _of_host("svdvals") if hasattr(np.linalg, "svdvals") else None
