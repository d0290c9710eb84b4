"""What this package needs of each release of PyTorch, in one place.

======== ==========================================================================================
release  what is needed
======== ==========================================================================================
2.9      not served: nothing there registers a device's guard and hooks from Python
2.10     ``_setup_privateuseone_for_python_backend``: the first that registers a device from Python
2.10     traced graphs lose checks of matrices: :func:`keep_checks`
2.10     a module that was compiled on the host cannot move, and says so: PyTorch swaps none of the
         parameters that traced graphs refer to weakly. Move it, or a copy, before
2.14     nothing else
2.15     nothing else. The tests of this list, of eager tensors and of complex numbers have run
======== ==========================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

OLDEST = (2, 10)


def check() -> None:
    """Raise ImportError for a release that is too old."""
    version = tuple(int(n) for n in re.findall(r"\d+", torch.__version__)[:2])
    if version < OLDEST:
        raise ImportError(f"kompute_dml.torch: expected PyTorch {OLDEST[0]}.{OLDEST[1]} or later, "
                          f"but got {torch.__version__}")


def tensor_guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """What says by one call whether as many tensors have the same types, sizes, strides and
    devices. torch.compile asks the same of a graph's arguments."""
    guards = torch._C._dynamo.guards.TensorGuards(
        *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    check: Callable[..., bool] = guards.check
    return check


def redispatching(op: Any) -> Callable[..., Any]:
    """What runs an operator's kernel for dispatch keys, its first argument. ``op.redispatch`` calls
    the same in a frame of Python's."""
    function: Callable[..., Any] = op._handle.redispatch_boxed
    return function


def keep_checks() -> None:
    """Else a compiled graph of a singular matrix goes on with infinities."""
    torch.fx.node._side_effectful_functions.add(torch.ops.aten._linalg_check_errors.default)
