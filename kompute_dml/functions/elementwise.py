"""Functions of elementwise operators whose arguments differ from the structure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import expect
from ..operators.base import definitions
from ..operators.elementwise import ValueScale2dOperatorDesc
from .broadcasting import make_broadcasting
from .call import as_tensor, device_of, output, run
from .registry import function

if TYPE_CHECKING:
    from ..tensors import Tensor
    from ..tensors.types import TensorLike

_add, _add1 = (make_broadcasting(definitions()[f"DML_OPERATOR_ELEMENT_WISE_{name}"])
               for name in ("ADD", "ADD1"))


@function
def add(
    a: TensorLike, b: TensorLike, *, fused_activation: object = None, out: Tensor | None = None
) -> Tensor:
    if fused_activation is None:
        return _add(a, b, out=out)
    return _add1(a, b, fused_activation=fused_activation, out=out)


add.__doc__ = f"""{_add.__doc__}

``fused_activation`` is a description such as ``ActivationReluOperatorDesc()``. It is applied to the
sum before rounding (ELEMENT_WISE_ADD1; FLOAT32 and FLOAT16 only).
"""


@function
def value_scale_2d(
    x: TensorLike, *, scale: float, bias: Sequence[float], out: Tensor | None = None
) -> Tensor:
    """``y[n, c, h, w] = scale * x[n, c, h, w] + bias[c]`` (DML_VALUE_SCALE_2D_OPERATOR_DESC).

    ``x`` has 4 dimensions with 1 or 3 channels, any strides, FLOAT32 or FLOAT16. Returns ``out`` or
    a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    name, device = "value_scale_2d", device_of(x, out)
    x = as_tensor(device, name, "x", x)
    expect(np.iterable(bias), name, "bias", "be a sequence of numbers", bias)
    y = output(device, out, name, x.sizes, x.data_type)
    run(ValueScale2dOperatorDesc, device, {"input_tensor": x, "output_tensor": y},
        scale=scale, channel_count=len(bias), bias=tuple(bias))
    return y
