"""Functions of operators that quantize."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..dtypes import DataType
from ..errors import expect, whole
from ..operators.quantize import (
    DynamicQuantizeLinearOperatorDesc,
    ElementWiseDequantizeLinearOperatorDesc,
    ElementWiseQuantizedLinearAddOperatorDesc,
    ElementWiseQuantizeLinearOperatorDesc,
)
from .broadcasting import broadcast
from .call import as_tensor, device_of, output, run, whole_numbers
from .registry import function

if TYPE_CHECKING:
    from ..tensors import Tensor
    from ..tensors.types import DataTypeLike, TensorLike


def _axis(name: str, axis: int | None, x: Tensor) -> int | None:
    """``axis``, which ``x`` must have."""
    if axis is not None:
        axis = whole(name, "axis", axis)
        expect(-x.ndim <= axis < x.ndim, name, "axis",
               f"be in [{-x.ndim}, {x.ndim}) (x has {x.ndim} dimensions)", axis)
    return axis


def _along(axis: int | None, value: Tensor, x: Tensor) -> Tensor:
    """A vector of scales or zero points along ``axis``; anything else broadcasts as in NumPy."""
    if axis is not None and value.ndim == 1 and value.size > 1:
        sizes = [1] * x.ndim
        sizes[axis] = value.size
        value = value.reshape(sizes)
    return value


@function
def quantize_linear(
    x: TensorLike, scale: TensorLike, zero_point: TensorLike | None = None, *,
    axis: int | None = None, data_type: DataTypeLike | None = None, out: Tensor | None = None
) -> Tensor:
    """``clamp(round(x / scale) + zero_point)`` (DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC).

    ``x`` is FLOAT32, FLOAT16 or INT32 of 1 to 8 dimensions. ``scale`` has its type (FLOAT32 for
    INT32). The result has ``data_type``, INT8 or UINT8; else ``zero_point``'s type, else UINT8.
    Halves round to even. ``scale`` and ``zero_point`` broadcast as in NumPy; vectors lie along
    ``axis``. Raises ValidationError or UnsupportedError.
    """
    name, device = "quantize_linear", device_of(x, scale, zero_point, out)
    x = as_tensor(device, name, "x", x)
    at = _axis(name, axis, x)
    scale_type = DataType.FLOAT32 if x.data_type is DataType.INT32 else x.data_type
    scale = _along(at, as_tensor(device, name, "scale", scale, scale_type), x)
    if zero_point is not None:
        data_type = DataType.of(data_type or getattr(zero_point, "dtype", "uint8"))
        zero_point = _along(
            at, whole_numbers(device, name, "zero_point", zero_point, data_type), x)
    y = output(device, out, name, x.sizes, DataType.of(data_type or "uint8"))
    scale = _spread(name, scale, x)
    zero_point = None if zero_point is None else _spread(name, zero_point, x)
    run(ElementWiseQuantizeLinearOperatorDesc, device, {
        "input_tensor": x, "scale_tensor": scale, "zero_point_tensor": zero_point,
        "output_tensor": y})
    return y


@function
def dequantize_linear(
    x: TensorLike, scale: TensorLike, zero_point: TensorLike | None = None, *,
    axis: int | None = None, out: Tensor | None = None
) -> Tensor:
    """``(x - zero_point) * scale`` (DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC).

    ``x`` and ``zero_point`` have one integer type of 8, 16 or 32 bits. ``scale`` and the result are
    FLOAT32 or FLOAT16. ``scale`` and ``zero_point`` broadcast as in NumPy; vectors lie along
    ``axis``. Raises ValidationError or UnsupportedError.
    """
    name, device = "dequantize_linear", device_of(x, scale, zero_point, out)
    x = as_tensor(device, name, "x", x)
    at = _axis(name, axis, x)
    scale_type = "float32" if isinstance(scale, float) else None
    scale = _along(at, as_tensor(device, name, "scale", scale, scale_type), x)
    if zero_point is not None:
        zero_point = _along(
            at, whole_numbers(device, name, "zero_point", zero_point, x.data_type), x)
    y = output(device, out, name, x.sizes, scale.data_type)
    scale = _spread(name, scale, x)
    zero_point = None if zero_point is None else _spread(name, zero_point, x)
    run(ElementWiseDequantizeLinearOperatorDesc, device, {
        "input_tensor": x, "scale_tensor": scale, "zero_point_tensor": zero_point,
        "output_tensor": y})
    return y


def _spread(name: str, value: Tensor, x: Tensor) -> Tensor:
    return broadcast(name, [x, value])[1]


@function
def quantized_linear_add(
    a: TensorLike, a_scale: TensorLike, a_zero_point: TensorLike, b: TensorLike,
    b_scale: TensorLike, b_zero_point: TensorLike, output_scale: TensorLike,
    output_zero_point: TensorLike | None = None, *, data_type: DataTypeLike | None = None,
    out: Tensor | None = None
) -> Tensor:
    """A quantized sum (DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC).

    ``a`` and ``b`` are INT8 or UINT8 and broadcast as in NumPy; they and the result have one scale
    and one zero point each (None for 0). The result has the type of ``output_zero_point``, else
    ``data_type``, else the type of ``a``. Raises ValidationError or UnsupportedError.
    """
    name = "quantized_linear_add"
    device = device_of(a, a_scale, a_zero_point, b, b_scale, b_zero_point, output_scale,
                       output_zero_point, out)
    a, b = broadcast(name, [as_tensor(device, name, "a", a), as_tensor(device, name, "b", b)])
    kind = DataType.of(data_type or getattr(output_zero_point, "dtype", a.data_type))

    def single(value: object, kind: DataType) -> Tensor | None:
        if value is None:
            return None
        t = (as_tensor(device, name, "every scale", value, kind) if kind.is_float
             else whole_numbers(device, name, "every zero point", value, kind))
        expect(t.size == 1, name, "every scale and zero point", "have one element", list(t.sizes))
        return t.reshape([1] * a.ndim)

    y = output(device, out, name, a.sizes, kind)
    run(ElementWiseQuantizedLinearAddOperatorDesc, device, {
        "a_tensor": a, "a_scale_tensor": single(a_scale, DataType.FLOAT32),
        "a_zero_point_tensor": single(a_zero_point, a.data_type),
        "b_tensor": b, "b_scale_tensor": single(b_scale, DataType.FLOAT32),
        "b_zero_point_tensor": single(b_zero_point, b.data_type),
        "output_scale_tensor": single(output_scale, DataType.FLOAT32),
        "output_zero_point_tensor": single(output_zero_point, kind), "output_tensor": y})
    return y


@function
def dynamic_quantize_linear(
    x: TensorLike, *, data_type: DataTypeLike = "uint8",
    out: tuple[Tensor, Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """``x`` quantized by its own range (DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC).

    Returns the quantized tensor, its scale and its zero point (one element each). The range always
    includes 0. A tensor of zeros has scale 1. ``x`` is FLOAT32 or FLOAT16, the result UINT8 or
    INT8. ``out`` is a tuple of the three. Raises ValidationError or UnsupportedError.
    """
    name = "dynamic_quantize_linear"
    outs = (None, None, None) if out is None else out
    expect(isinstance(outs, (tuple, list)) and len(outs) == 3, name, "out",
           "be a tuple of three tensors", out)
    device = device_of(x, *outs)
    x = as_tensor(device, name, "x", x)
    kind, ones = DataType.of(data_type), (1,) * x.ndim
    y = output(device, outs[0], name, x.sizes, kind)
    scale = output(device, outs[1], name, ones, DataType.FLOAT32)
    zero = output(device, outs[2], name, ones, kind)
    run(DynamicQuantizeLinearOperatorDesc, device, {
        "input_tensor": x, "output_tensor": y, "output_scale_tensor": scale,
        "output_zero_point_tensor": zero})
    return y, scale, zero
