"""Functions of neural networks under PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..tensors import Tensor
from ..tensors.types import TensorLike
from .operand import as_tensor, dml
from .registry import publish, spelled


def _activation(name: str) -> Callable[..., Tensor]:
    def call(x: TensorLike, *, out: Tensor | None = None) -> Tensor:
        return dml(f"activation_{name}")(as_tensor(x), out=out)

    call.__doc__ = f"``activation_{name}`` of DirectML's."
    return call


def _along(name: str) -> Callable[..., Tensor]:
    def call(x: TensorLike, axis: int = -1, *, out: Tensor | None = None) -> Tensor:
        return dml(f"activation_{name}1")(as_tensor(x), axes=(axis,), out=out)

    call.__doc__ = f"``activation_{name}1`` of DirectML's, along one axis."
    return call


def _leaky_relu(x: TensorLike, negative_slope: float = 0.01, *,
                out: Tensor | None = None) -> Tensor:
    """``activation_leaky_relu`` of DirectML's."""
    return dml("activation_leaky_relu")(as_tensor(x), alpha=negative_slope, out=out)


def _silu(x: TensorLike, *, out: Tensor | None = None) -> Tensor:
    """``x * sigmoid(x)``: DirectML's ``activation_swish``."""
    return dml("activation_swish")(as_tensor(x), out=out)


_FUNCTIONS: dict[str, Any] = {
    **{name: _activation(name) for name in ("relu", "sigmoid", "gelu", "elu", "softplus")},
    **{name: _along(name) for name in ("softmax", "log_softmax")},
    "leaky_relu": _leaky_relu,
    "silu": _silu,
}
for _name, _function in _FUNCTIONS.items():
    _function.__name__ = _function.__qualname__ = _name
    publish(_name, spelled(_function))
