"""What to use instead of names that NumPy, CuPy, PyTorch and DirectML.h have, for messages."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, NoReturn

from .names import ALIASES

_RANDOM = "use dml.tensor(array) with NumPy's random numbers, or dml.random_generator"
_GRADIENTS = ("nothing records gradients: they are operators, such as dml.activation_relu_grad; "
              "examples/train.py trains with them")
_LAYERS = "layers are functions, such as dml.convolution and dml.softmax"
_DEVICES = "use dml.list_devices() and dml.Device"
_ON_HOST = "use numpy.asarray(x): it is computed on the host"
_MODULE = {
    "DMLCalcBufferTensorSize": "use dml.TensorDesc(...).total_tensor_size_in_bytes",
    "DMLCreateDevice": "use dml.Device",
    "DMLCreateDevice1": "use dml.Device",
    "FloatTensor": "use dml.tensor(data, 'float32')",
    "asnumpy": "use x.numpy()",
    "autograd": _GRADIENTS,
    "bfloat16": "use dml.float16: DirectML has no bfloat16",
    "cross_entropy": "use dml.log_softmax and dml.take_along_axis",
    "cuda": f"{_DEVICES}; 'import kompute_dml.cuda' shares memory with CUDA",
    "fft": _ON_HOST,
    "from_numpy": "use dml.tensor(array)",
    "functional": _LAYERS,
    "is_available": _DEVICES,
    "linalg": f"use x @ y and numpy.linalg.norm(x); for the others, {_ON_HOST}",
    "linear": "use x @ weights.T + bias",
    "load": "use dml.tensor(numpy.load(path))",
    "manual_seed": _RANDOM,
    "mse_loss": "use ((x - y) ** 2).mean()",
    "nn": _LAYERS,
    "no_grad": _GRADIENTS,
    "optim": "use dml.adam_optimizer; examples/train.py trains with it",
    "rand": _RANDOM,
    "randint": _RANDOM,
    "randn": _RANDOM,
    "random": _RANDOM,
    "save": "use numpy.save(path, x)",
    "synchronize": "use dml.default_device().synchronize()",
}
_TENSOR = {
    "backward": _GRADIENTS,
    "chunk": "use numpy.split(x, sections, axis)",
    "ctypes": "use x.numpy(), which copies to the host",
    "cuda": "use x.to(device); dml.list_devices() names the devices that Vulkan finds, and "
            "kompute_dml.cuda shares memory with CUDA",
    "data_ptr": "use x.numpy(): memory of Vulkan has no address on the host",
    "detach": "use x itself: nothing records gradients",
    "dim": "use x.ndim",
    "double": "use x.astype('float64'), which DirectML only moves",
    "element_size": "use x.itemsize",
    "expand_as": "use x.expand(y.shape)",
    "flat": "use x.ravel()",
    "float": "use x.astype('float32')",
    "gather": "use dml.take_along_axis(x, indices, axis)",
    "grad": _GRADIENTS,
    "half": "use x.astype('float16')",
    "imag": "DirectML has no complex numbers here",
    "int": "use x.astype('int32')",
    "is_contiguous": "use x.desc.is_packed",
    "is_cuda": "use x.device",
    "long": "use x.astype('int64')",
    "masked_fill": "use dml.where(mask, value, x), or x[mask] = value",
    "matmul": "use x @ y",
    "mm": "use x @ y",
    "bmm": "use x @ y",
    "median": "use numpy.median(x.numpy()), on the host",
    "nelement": "use x.size",
    "new_zeros": "use dml.zeros(sizes)",
    "nonzero": "use dml.nonzero_coordinates(x), a count and coordinates",
    "norm": "use numpy.linalg.norm(x), which computes on the device",
    "numel": "use x.size",
    "partition": "use dml.topk(x, k)",
    "real": "use x itself",
    "requires_grad": "use x itself: nothing records gradients",
    "requires_grad_": "use x itself: nothing records gradients",
    "resize": "use x.reshape(sizes)",
    "scatter_": "use x[indices] = values, or dml.scatter",
    "split": "use numpy.split(x, sections, axis)",
    "stride": "use x.strides",
    "t": "use x.T",
    "tobytes": "use x.numpy().tobytes()",
    "tofile": "use x.numpy().tofile(path)",
    "type": "use x.astype(dtype)",
    "unbind": "use list(x)",
    "view_as": "use x.view(y.shape)",
    "zero_": "use x.fill(0)",
}
_HEADER = {"buffertensordesc": "TensorDesc", "tensordatatype": "DataType",
           "tensorflag": "TensorFlags", "executionflag": "ExecutionFlags"}
"""Structures and enumerations of DirectML.h, in one word -> their class here."""


def of_module(name: str, known: Collection[str]) -> str:
    """The end of a message that refuses ``kompute_dml.name``, or ""."""
    if name in _MODULE:
        return f"; {_MODULE[name]}"
    ours = _of_header(name, known) if name.startswith("DML_") else ""
    return f"; use dml.{ours}" if ours else ""


def _of_header(name: str, known: Collection[str]) -> str:
    """The name here of a structure, operator or enumerator of DirectML.h, or ""."""
    import kompute_dml

    classes = {k.casefold(): k for k in known if k[0].isupper()} | _HEADER
    words = name.split("_")[1:]
    for whole in (words, [*words[1:], "OPERATOR", "DESC"]):  # DML_OPERATOR_GEMM is GemmOperatorDesc
        if found := classes.get("".join(whole).casefold()):
            return found
    for n in range(1, len(words)):
        found, value = classes.get("".join(words[:n]).casefold(), ""), "_".join(words[n:])
        for member in (value, f"FL_{value}"):
            if found and hasattr(getattr(kompute_dml, found), member):
                return f"{found}.{member}"
    return ""


def of_tensors(name: str) -> str:
    """The end of a message that refuses a tensor's attribute, or ""."""
    if name in _TENSOR:
        return f"; {_TENSOR[name]}"
    import kompute_dml

    plain = name.rstrip("_")
    for function in (plain, ALIASES.get(plain, plain)):
        if not name.startswith("_") and callable(getattr(kompute_dml, function, None)):
            return f"; use dml.{function}" + (" with out=x" if name != plain else "")
    return ""


class SnakeCase:
    """Unknown attributes in C++'s spelling are refused with the name here."""

    if not TYPE_CHECKING:  # type checkers must report missing attributes

        def __getattr__(self, name: str) -> NoReturn:
            snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
            names = [n for n in (snake, snake.removeprefix("get_")) if hasattr(type(self), n)]
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}"
                                 + (f"; use {names[0]}" if names else ""))
