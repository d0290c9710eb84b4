"""The protocols of NumPy, DLPack, pickle, copy and print."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

import kompute_dml

from ..errors import DmlError, UnsupportedError, expect
from ..hints import ALIASES, of_tensors
from .attached import METHODS, NUMPY, UFUNCS
from .memory import Memory

if TYPE_CHECKING:
    from . import Tensor
    from .types import DataTypeLike

_CPU = (1, 0)  # DLPack's kDLCPU
_REDUCTIONS = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min",
               "logical_and": "all", "logical_or": "any"}


def _refused(operation: str, name: str) -> UnsupportedError:
    """The error for a NumPy function ``name`` that the device does not compute."""
    function = ALIASES.get(name, name)
    there = hasattr(kompute_dml, function)
    return UnsupportedError(
        f"{operation}: expected a function that the device computes, but it has none for this call"
        + (f"; kompute_dml.{function} is similar" if there else "")
        + "; numpy.asarray(tensor) copies a Tensor to the host"
    )


class Protocols(Memory):
    """NumPy's functions compute on the device. Other protocols get copies on the host."""

    __slots__ = ()

    def __array__(self, dtype: DataTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        expect(copy is not False, "numpy.asarray(tensor)", "copy",
               "be True or None (a tensor lies on a device)", copy)
        array: np.ndarray = self.numpy()
        return array if dtype is None else np.asarray(array, dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's universal functions, on the device. Raises UnsupportedError for others, and
        where the result should go to an array on the host."""
        name = ufunc.__name__
        out = options.pop("out", None)
        for array in out or ():
            if array is not None and not isinstance(array, Memory):
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
        if method == "outer" and name in UFUNCS:
            a: Any = inputs[0] if isinstance(inputs[0], Memory) else np.asarray(inputs[0])
            b: Any = inputs[1] if isinstance(inputs[1], Memory) else np.asarray(inputs[1])
            return UFUNCS[name](a.reshape(*a.shape, *[1] * b.ndim), b, out=target, **options)
        if method == "at" and isinstance(inputs[0], Memory):
            return METHODS["reduce_at"](name, *inputs)
        raise _refused(f"numpy.{name}" + ("" if method == "__call__" else f".{method}"), name)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """NumPy's functions, on the device. Raises UnsupportedError for others."""
        name = function.__name__
        module = (function.__module__ or "").removeprefix("numpy").strip(".")
        full = f"{module}.{name}" if module else name
        ours = NUMPY.get(full)
        if ours is None and module == "fft":
            ours = getattr(getattr(kompute_dml, "fft"), name, None)  # noqa: B009  (no stub has it)
        if ours is None:
            raise _refused(f"numpy.{full}", name)
        try:
            return ours(*args, **kwargs)
        except TypeError as error:
            text = str(error).replace(f"{ours.__name__}()", f"{name}()")
            raise TypeError(f"numpy.{name} of tensors: {text}") from None

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

    def __deepcopy__(self, memo: object) -> Tensor:
        x: Any = self
        return x.copy()

    def __reduce__(self) -> Any:
        """Values and type are pickled. Unpickling makes a tensor on the default device."""
        x: Any = self
        return METHODS["unpickled"], (x.numpy(), x.data_type.name)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        """The module of functions for tensors."""
        return kompute_dml

    # Text

    def _repr_html_(self) -> str:
        """The text in Jupyter."""
        return f"<pre>{html.escape(repr(self))}</pre>"

    def __repr__(self) -> str:
        """The values and their type, as NumPy prints them. Waits for the device."""
        x: Any = self
        try:
            values, short = METHODS["text"](x, "tensor(")
        except DmlError:  # freed, or the device is gone
            return str(x.summary())
        sizes = f", shape={x.shape}" if short else ""
        kind = x.dtype.name if x.data_type.bits >= 8 else x.data_type.name.lower()
        return f"tensor({values}{sizes}, dtype={kind})"

    def __str__(self) -> str:
        try:
            return str(METHODS["text"](self)[0])
        except DmlError:
            return str(self.summary())

    def __format__(self, spec: str) -> str:
        """Format the only element, as NumPy's scalars do."""
        x: Any = self
        return format(x.item(), spec) if spec else str(self)

    if not TYPE_CHECKING:  # type checkers must report missing attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"'Tensor' has no attribute {name!r}{of_tensors(name)}")
