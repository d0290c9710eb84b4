"""Places where PyTorch asks a device's C++ for what a device registered from Python cannot give.

Each is one function of PyTorch's that is wrapped, with the reason. A test pins each.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._tensor_str
import torch.fx
from torch import _tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import backend, memory


def _ours(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.device.type == memory.NAME


def _printing(before: Callable[..., str]) -> Callable[..., str]:
    """Printing computes in FLOAT64."""
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        return before(self.cpu() if _ours(self) else self, indent)

    return tensor_str


def _synchronizing(before: Callable[..., None]) -> Callable[..., None]:
    """The guard of a device registered from Python has no synchronize."""
    def synchronize(device: torch.device | str | int | None = None, /) -> None:
        torch.kompute.synchronize()

    return functools.wraps(before)(synchronize)


def _compiling(before: Callable[..., object]) -> Callable[..., Any]:
    """torch.compile without a backend takes Inductor, which knows no such device."""
    def call(self: object, model: object, inputs: Sequence[object], **options: object) -> Any:
        held: list[object] = []
        if isinstance(model, torch.nn.Module):
            held += [*model.parameters(), *model.buffers()]
        if isinstance(model, torch.fx.GraphModule):  # tensors that it makes
            held += [node.meta.get("example_value") for node in model.graph.nodes]
        if any(map(_ours, (*inputs, *held))):
            return backend.backend(model, inputs)
        return before(self, model, inputs, **options)

    return call


def _pinning(before: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The device has no allocator of pinned memory, for it copies from any memory.

    Where CUDA is there, memory is pinned for CUDA, as it is without this package.
    """
    def pin_memory(
        self: torch.Tensor, device: torch.device | str | int | None = None
    ) -> torch.Tensor:
        if not torch.cuda.is_available():
            return self
        return torch.ops.aten._pin_memory(self, torch.device("cuda" if device is None else device))

    return functools.wraps(before)(pin_memory)


def _moving(before: Callable[..., torch.nn.Module]) -> Callable[..., torch.nn.Module]:
    """A parameter that moves stays the same object, for it may be tied, and an optimizer may have
    it. PyTorch assigns to ``x.data`` for this, which it allows between its own devices only. Its
    other way, ``torch.__future__.set_swap_module_params_on_conversion``, concerns all devices, and
    refuses a parameter that a graph or a weak reference holds."""
    def apply(self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor],
              recurse: bool = True) -> torch.nn.Module:
        if isinstance(self, torch.jit.ScriptModule):  # C++ holds its parameters
            return before(self, fn.convert if isinstance(fn, _Move) else fn, recurse)
        return before(self, fn if isinstance(fn, _Move) else _Move(fn), recurse)

    return functools.wraps(before)(apply)


class _Move:
    """What a module applies to its parameters, gradients and buffers. A parameter that comes to the
    device, or leaves it, takes the memory of its result, and goes on with its hooks."""

    def __init__(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.convert = convert

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convert(x)
        if not isinstance(x, torch.nn.Parameter) or _ours(x) == _ours(y) or (
                isinstance(y, FakeTensor) or is_traceable_wrapper_subclass(y)):
            return y
        gradient, hooks, after = x.grad, x._backward_hooks, x._post_accumulate_grad_hooks
        if x.requires_grad and not is_lazy(x):
            torch.autograd.graph.get_gradient_edge(x).node.register_prehook(_refuse)
        torch._C._swap_tensor_impl(x, torch.nn.Parameter(y, x.requires_grad))
        x._backward_hooks, x._post_accumulate_grad_hooks = hooks, after
        if gradient is not None:
            x.grad = self.convert(gradient)
        return x.data


def _refuse(gradients: object) -> None:
    """The gradient would go to where the parameter lay."""
    raise RuntimeError(f"{memory.NAME}: a module moved to another device between its forward and "
                       "its backward pass: move it before the forward pass")


class Guard(torch._C._acc.DeviceGuard):
    """What PyTorch asks for the device's type. It also asks while an error of a backward pass
    unwinds, and Python ends the process where a function returns with an error pending."""

    def type_(self) -> object:
        """The type. A pending error is raised here, and kept for :func:`_running_backward`."""
        try:
            _raise_pending()
        except BaseException as error:
            _local.pending = error
        return _PRIVATE


_PRIVATE = torch._C._autograd.DeviceType.PrivateUse1
_raise_pending = ctypes.pythonapi.PyErr_Occurred
"""Called so, it raises the error itself."""
_raise_pending.restype = ctypes.c_void_p
_local = threading.local()


def _running_backward(before: Callable[..., object]) -> Callable[..., object]:
    """Where the guard has kept an error, PyTorch has lost it."""
    def run(*args: object, **kwargs: object) -> object:
        try:
            return before(*args, **kwargs)
        except SystemError:
            error = getattr(_local, "pending", None)
            if error is None:
                raise
            raise error from None
        finally:
            _local.pending = None

    return functools.wraps(before)(run)


def register() -> None:
    """Wrap the functions."""
    for module in (torch.autograd, torch.autograd.graph):
        module._engine_run_backward = _running_backward(module._engine_run_backward)
    torch._tensor_str._tensor_str = _printing(torch._tensor_str._tensor_str)
    torch.accelerator.synchronize = _synchronizing(torch.accelerator.synchronize)
    wrapper = torch._TorchCompileInductorWrapper
    wrapper.__call__ = _compiling(wrapper.__call__)
    torch.Tensor.pin_memory = _pinning(_tensor.Tensor.pin_memory)
    torch.nn.Module._apply = _moving(torch.nn.Module._apply)
