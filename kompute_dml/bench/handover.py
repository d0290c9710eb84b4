"""A tensor that is handed over to CUDA and back, by the host's clock."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..cases import Scale
from ..device import Device
from ..errors import DmlError
from .case import Case, Recipe, shape

if TYPE_CHECKING:
    from torch import Tensor

_WHAT = "hand over to CUDA and back"


def handover() -> Recipe:
    """PyTorch takes a tensor by DLPack, and its stream gives it back. No byte is copied. There is
    no case where the device is none of CUDA's, or PyTorch is not there."""

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        try:
            torch, cuda = (importlib.import_module(name) for name in ("torch", "kompute_dml.cuda"))
            x = device.empty([scale.elements])
            pointer = cuda.view(x).pointer
        except (ImportError, DmlError):
            return

        def dispatch() -> Any:
            array = torch.from_dlpack(cuda.view(x))
            cuda.release(x, torch.cuda.current_stream())
            return array

        def check(array: Tensor) -> str:
            return "" if array.data_ptr() == pointer else "PyTorch has a copy"

        yield Case(_WHAT, "f32", shape(x.sizes), dispatch, check, 0, on_host=True)

    return Recipe(_WHAT, "f32", make)
