"""The protocols of NumPy, DLPack, pickle, copy and print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..errors import DmlError, UnsupportedError, expect
from ..names import ALIASES
from .memory import Memory

if TYPE_CHECKING:
    from . import Tensor

_CPU = (1, 0)  # DLPack's kDLCPU
_REDUCTIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min",
               "logical_and": "all", "logical_or": "any"}
_INSTEAD = {
    "backward": "dml's gradients are operators of their own, such as dml.activation_relu_grad",
    "ctypes": "x.numpy() copies to the host",
    "cuda": "Vulkan finds the GPU: dml.list_devices() names the devices, x.to(device) moves, "
            "kompute_dml.cuda shares memory with CUDA",
    "data_ptr": "memory of Vulkan has no address on the host; x.numpy() copies",
    "detach": "tensors record no gradients: x itself",
    "dim": "x.ndim",
    "double": "DirectML does not compute with float64; x.astype('float64') converts",
    "flat": "x.ravel()",
    "float": "x.astype('float32')",
    "grad": "dml's gradients are operators of their own, such as dml.activation_relu_grad",
    "half": "x.astype('float16')",
    "imag": "DirectML has no complex numbers here",
    "int": "x.astype('int32')",
    "is_cuda": "x.device",
    "long": "x.astype('int64')",
    "masked_fill": "dml.where(mask, value, x), or x[mask] = value",
    "nonzero": "dml.nonzero_coordinates(x), a count and coordinates",
    "numel": "x.size",
    "partition": "dml.topk(x, k)",
    "real": "x itself",
    "requires_grad": "tensors record no gradients",
    "requires_grad_": "tensors record no gradients",
    "resize": "x.reshape(sizes)",
    "tobytes": "x.numpy().tobytes()",
    "tofile": "x.numpy().tofile(path)",
    "topk": "dml.topk(x, k)",
    "type": "x.astype(dtype)",
    "zero_": "x.fill(0)",
}
"""What to use instead of attributes that tensors of other libraries have."""


def _refused(operation: str, name: str) -> UnsupportedError:
    """The error for a NumPy function ``name`` that the device does not compute."""
    import kompute_dml

    function = ALIASES.get(name, name)
    there = hasattr(kompute_dml, function)
    return UnsupportedError(
        f"{operation}: expected a function that the device computes, but it has none for this call"
        + (f"; kompute_dml.{function} is similar" if there else "")
        + "; numpy.asarray(tensor) copies a Tensor to the host"
    )


def _made(host: np.ndarray, data_type: str) -> Tensor:
    """Unpickle a tensor, on the default device."""
    from ..device import default_device

    kind = None if host.dtype == bool else data_type
    return default_device().tensor(host, kind)


class Protocols(Memory):
    """NumPy's functions compute on the device. Other protocols get copies on the host."""

    __slots__ = ()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        expect(copy is not False, "numpy.asarray(tensor)", "copy",
               "be True or None (a tensor lies on a device)", copy)
        array: np.ndarray = self.numpy()
        return array if dtype is None else np.asarray(array, dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's universal functions, on the device. Raises UnsupportedError for others, and
        where the result should go to an array on the host."""
        from ..arrays.registry import NUMPY
        from ..arrays.ufuncs import UFUNCS
        from . import Tensor

        name = ufunc.__name__
        out = options.pop("out", None)
        for array in out or ():
            if array is not None and not isinstance(array, Tensor):
                raise UnsupportedError(
                    f"numpy.{name}: expected a Tensor to write to, but got an array; "
                    "tensor.numpy() copies to the host, and computes there with the array")
        target = out[0] if out else None
        if method == "__call__" and name in UFUNCS and not options.keys() - {"dtype"}:
            return UFUNCS[name](*inputs, out=target, **options)
        if method == "reduce" and name in _REDUCTIONS and options.pop("where", True) is True:
            axis = options.pop("axis", 0)
            options = {k: v for k, v in options.items() if v is not None}
            return NUMPY[_REDUCTIONS[name]](*inputs, axis=axis, out=target, **options)
        if method == "accumulate" and name in ("add", "multiply"):
            axis = options.get("axis", 0)
            return NUMPY["cumsum" if name == "add" else "cumprod"](*inputs, axis=axis, out=target)
        raise _refused(f"numpy.{name}" + ("" if method == "__call__" else f".{method}"), name)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions, on the device. Raises UnsupportedError for others."""
        from ..arrays import functions
        from ..arrays.registry import NUMPY

        functions()
        name = function.__name__
        module = (function.__module__ or "").removeprefix("numpy").strip(".")
        ours = NUMPY.get(f"{module}.{name}" if module else name)
        if ours is None:
            raise _refused(f"numpy.{name}", name)
        try:
            return ours(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"numpy.{name} of tensors: {error}") from None

    # DLPack

    def __dlpack__(self, **options: Any) -> Any:
        """A copy in the host's memory."""
        options = {k: v for k, v in options.items() if v is not None}
        if options.pop("copy", True) is False:
            raise BufferError("a tensor lies on a device: DLPack takes a copy of it")
        wanted = options.pop("dl_device", _CPU)
        if tuple(wanted) != _CPU or options.pop("stream", None) is not None:
            raise BufferError(f"expected DLPack's device {_CPU}, the host, but got {wanted}")
        try:
            return self.numpy().__dlpack__(**options)
        except TypeError:  # NumPy before 2.1 has no max_version
            return self.numpy().__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    # Copies

    def __copy__(self) -> Tensor:
        x: Any = self
        return x.copy()

    def __deepcopy__(self, memo: Any) -> Tensor:
        x: Any = self
        return x.copy()

    def __reduce__(self) -> Any:
        """Values and type are pickled. Unpickling makes a tensor on the default device."""
        x: Any = self
        return _made, (x.numpy(), x.data_type.name)

    # Text

    def __repr__(self) -> str:
        """The values and their type, as NumPy prints them. Waits for the device."""
        from .printing import text

        x: Any = self
        try:
            values, short = text(x, "tensor(")
        except DmlError:  # freed, or the device is gone
            return str(x.summary())
        sizes = f", shape={x.shape}" if short else ""
        kind = x.dtype.name if x.data_type.bits >= 8 else x.data_type.name.lower()
        return f"tensor({values}{sizes}, dtype={kind})"

    def __str__(self) -> str:
        from .printing import text

        try:
            x: Any = self
            return text(x)[0]
        except DmlError:
            return str(self.summary())

    def __format__(self, spec: str) -> str:
        """Format the only element, as NumPy's scalars do."""
        x: Any = self
        return format(x.item(), spec) if spec else str(self)

    if not TYPE_CHECKING:  # type checkers must report missing attributes

        def __getattr__(self, name: str) -> NoReturn:
            instead = f"; use {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise AttributeError(f"'Tensor' has no attribute {name!r}{instead}")
