"""Hints in messages: what to use instead of names that NumPy, CuPy, PyTorch and DirectML.h have,
and names that are similar to an unknown one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, NoReturn

import kompute_dml

from .names import aliases

ALIASES = aliases()
"""NumPy's or PyTorch's name -> the name here."""

_GRADIENTS = ("nothing records gradients: they are operators, such as dml.activation_relu_grad; "
              "examples/train.py trains with them")
_LAYERS = "layers are functions, such as dml.convolution and dml.softmax"
_DEVICES = "use dml.list_devices() and dml.Device"
_KERNELS = "kernels are DirectML's operators; dml.Graph compiles functions of them together"
_QUEUES = "a device has one queue, which keeps the order of calls; dml.synchronize() waits for it"
_MODULE = {
    "DMLCalcBufferTensorSize": "use dml.TensorDesc(...).total_tensor_size_in_bytes",
    "DMLCreateDevice": "use dml.Device",
    "DMLCreateDevice1": "use dml.Device",
    "FloatTensor": "use dml.tensor(data, 'float32')",
    "ElementwiseKernel": _KERNELS,
    "Event": f"{_QUEUES}, and device.elapsed(work) times",
    "RawKernel": _KERNELS,
    "ReductionKernel": _KERNELS,
    "Stream": _QUEUES,
    "autograd": _GRADIENTS,
    "compile": "use dml.Graph, whose compile() takes expressions",
    "config": "environment variables such as KOMPUTE_DML_DEVICE configure it",
    "get_default_memory_pool": "use device.memory_used and device.memory_reserved",
    "jit": "use dml.Graph, whose compile() takes expressions",
    "scatter_add": "use numpy.add.at(x, indices, values), or dml.scatter_reduce",
    "bfloat16": "use dml.float16: DirectML has no bfloat16",
    "cross_entropy": "use dml.log_softmax and dml.take_along_axis",
    "cuda": f"{_DEVICES}; kompute_dml.cuda shares memory with CUDA",
    "functional": _LAYERS,
    "is_available": _DEVICES,
    "linear": "use x @ weights.T + bias",
    "mse_loss": "use ((x - y) ** 2).mean()",
    "nn": _LAYERS,
    "no_grad": _GRADIENTS,
    "optim": "use dml.adam_optimizer; examples/train.py trains with it",
}
_TENSOR = {
    "backward": _GRADIENTS,
    "ctypes": "use x.numpy(), which copies to the host",
    "cuda": "use x.to(device); dml.list_devices() names the devices that Vulkan finds, and "
            "kompute_dml.cuda shares memory with CUDA",
    "data_ptr": "use x.numpy(): memory of Vulkan has no address on the host",
    "grad": _GRADIENTS,
    "imag": "DirectML has no complex numbers here",
    "is_cuda": "use x.device",
    "partition": "use dml.topk(x, k)",
    "real": "use x itself",
    "requires_grad": "use x itself: nothing records gradients",
    "requires_grad_": "use x itself: nothing records gradients",
    "resize": "use x.reshape(sizes)",
    "scatter_": "use x[indices] = values, or dml.scatter",
    "stride": "use x.strides",
    "type": "use x.astype(dtype)",
}
_DEVICE = {
    "mem_info": "use device.memory_used, device.memory_reserved and device.adapter.device_memory",
    "memory_info": "use device.memory_used, device.memory_reserved and "
                   "device.adapter.device_memory",
    "name": "use device.adapter.name",
    "type": "use device.adapter.type",
    "index": "use device.adapter.index",
    "use": "use 'with device:'",
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
    classes = {k.casefold(): k for k in known if k[0].isupper()} | _HEADER
    words = name.split("_")[1:]
    for whole in (words, [*words[1:], "OPERATOR", "DESC"]):  # DML_OPERATOR_GEMM is GemmOperatorDesc
        if owner := classes.get("".join(whole).casefold()):
            return owner
    for n in range(1, len(words)):
        owner, value = classes.get("".join(words[:n]).casefold(), ""), "_".join(words[n:])
        for member in (value, f"FL_{value}"):
            if owner and hasattr(getattr(kompute_dml, owner), member):
                return f"{owner}.{member}"
    return ""


def of_tensors(name: str) -> str:
    """The end of a message that refuses a tensor's attribute, or ""."""
    if name in _TENSOR:
        return f"; {_TENSOR[name]}"
    plain = name.rstrip("_")
    for function in (plain, ALIASES.get(plain, plain)):
        if not name.startswith("_") and callable(getattr(kompute_dml, function, None)):
            return f"; use dml.{function}" + (" with out=x" if name != plain else "")
    return ""


def hint(name: str, known: Collection[str]) -> str:
    """The end of a message that refuses ``name``: similar ``known`` names, the most similar first,
    or ""."""
    # Functions have DirectML's names without this prefix.
    name = name.casefold().removeprefix("element_wise_")
    folded = {k.casefold(): k for k in known}
    wanted = name if name in folded else ALIASES.get(name, name)
    names = [wanted] if wanted in folded else sorted(
        (k for k in folded if f"_{wanted}_" in f"_{k}_"), key=len)[:3]
    if not names:
        names = difflib.get_close_matches(wanted, folded, 3, cutoff=0.7)
    return f"; did you mean {' or '.join(folded[k] for k in names)}?" if names else ""


def _of_class(cls: type, name: str) -> str:
    """The end of a message that refuses an attribute of DirectML's classes, or ""."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    for ours in (snake, snake.removeprefix("get_")):
        if ours != name and ours in dir(cls):
            return f"; use {ours}"
    return f"; {_DEVICE[name]}" if name in _DEVICE and cls.__name__ == "Device" else ""


class _Hinting(type):
    if not TYPE_CHECKING:  # type checkers must report missing attributes

        def __getattr__(cls, name: str) -> NoReturn:
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}"
                                 + _of_class(cls, name))


class SnakeCase(metaclass=_Hinting):
    """Unknown attributes in C++'s spelling, and those of other libraries, are refused with the name
    here."""

    if not TYPE_CHECKING:  # type checkers must report missing attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}"
                                 + _of_class(type(self), name))
