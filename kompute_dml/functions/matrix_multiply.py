"""Functions of products whose arguments differ from the structure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtypes import DataType
from ..errors import ValidationError, expect, refuse
from ..layout import broadcast_sizes, pad_left
from ..operators.matrix_multiply.gemm import GemmOperatorDesc
from ..operators.matrix_multiply.integer import MatrixMultiplyIntegerOperatorDesc
from ..operators.matrix_multiply.product import SLOTS, VECTORS
from ..operators.matrix_multiply.quantized import QuantizedLinearMatrixMultiplyOperatorDesc
from ..operators.matrix_multiply.to_float import MatrixMultiplyIntegerToFloatOperatorDesc
from .call import as_tensor, device_of, output, run, whole_numbers
from .registry import function

if TYPE_CHECKING:
    from ..operators.base import OperatorDesc
    from ..tensors import Tensor
    from ..tensors.types import DataTypeLike, TensorLike


@function
def gemm(
    a: TensorLike, b: TensorLike, c: TensorLike | None = None, *, trans_a: int = False,
    trans_b: int = False, alpha: float = 1.0, beta: float = 1.0,
    fused_activation: OperatorDesc | None = None, out: Tensor | None = None
) -> Tensor:
    """``alpha * (a @ b) + beta * c``, then an activation (DML_GEMM_OPERATOR_DESC).

    ``a`` {.., M, K} and ``b`` {.., K, N} are FLOAT32 or FLOAT16, of 2 to 4 dimensions.
    ``trans_a`` and ``trans_b`` exchange their last two sizes. Leading sizes broadcast, and ``c``
    broadcasts to {.., M, N}. FLOAT16 is summed in float32. ``fused_activation`` is the description
    of an activation without tensors.

    Returns ``out`` or a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    name = "gemm"
    device = device_of(a, b, c, out)
    a = as_tensor(device, name, "a", a)
    b = as_tensor(device, name, "b", b, a.data_type)
    leading = _leading(name, a, b)
    a, b = (t.broadcast_to(*leading, *t.sizes[-2:]) for t in (a, b))
    rows = a.sizes[-1] if trans_a else a.sizes[-2]
    sizes = (*leading, rows, b.sizes[-2] if trans_b else b.sizes[-1])
    y = output(device, out, name, sizes, a.data_type)
    if c is not None:
        c = _broadcast(name, "c", as_tensor(device, name, "c", c, a.data_type), sizes)
    run(GemmOperatorDesc, device,
        {"a_tensor": a, "b_tensor": b, "c_tensor": c, "output_tensor": y},
        trans_a=int(trans_a), trans_b=int(trans_b), alpha=alpha, beta=beta,
        fused_activation=fused_activation)
    return y


@function
def matrix_multiply_integer(
    a: TensorLike, b: TensorLike, *, a_zero_point: TensorLike | None = None,
    b_zero_point: TensorLike | None = None, out: Tensor | None = None
) -> Tensor:
    """``(a - a_zero_point) @ (b - b_zero_point)`` as INT32, modulo 2^32
    (DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC).

    ``a`` {.., M, K} and ``b`` {.., K, N} are INT8 or UINT8. Leading sizes broadcast. Zero points
    have their matrix's type. They are single values, vectors of length M (for ``a``) and N (for
    ``b``), or {.., M, 1} and {.., 1, N}.

    Returns ``out`` or a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    name = "matrix_multiply_integer"
    device = device_of(a, b, a_zero_point, b_zero_point, out)
    a, b = as_tensor(device, name, "a", a), as_tensor(device, name, "b", b)
    leading = _leading(name, a, b)
    y = output(device, out, name, (*leading, a.sizes[-2], b.sizes[-1]), DataType.INT32)
    zeros = {
        "a_zero": None if a_zero_point is None else whole_numbers(
            device, name, "a_zero_point", a_zero_point, a.data_type),
        "b_zero": None if b_zero_point is None else whole_numbers(
            device, name, "b_zero_point", b_zero_point, b.data_type),
    }
    rank = max(2, *(0 if t is None else t.ndim for t in zeros.values()))
    run(MatrixMultiplyIntegerOperatorDesc, device, {
        "a_tensor": a.broadcast_to(*leading, *a.sizes[-2:]),
        "b_tensor": b.broadcast_to(*leading, *b.sizes[-2:]),
        "output_tensor": y,
        **{SLOTS[n]: _along(t, VECTORS[n], rank) for n, t in zeros.items()},
    })
    return y


@function
def quantized_linear_matrix_multiply(
    a: TensorLike, a_scale: TensorLike, b: TensorLike, b_scale: TensorLike,
    output_scale: TensorLike, *, a_zero_point: TensorLike | None = None,
    b_zero_point: TensorLike | None = None, output_zero_point: TensorLike | None = None,
    data_type: DataTypeLike | None = None, out: Tensor | None = None
) -> Tensor:
    """``(a - a_zero_point) @ (b - b_zero_point) * a_scale * b_scale / output_scale``, rounded half
    to even, plus ``output_zero_point``, clamped
    (DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC).

    ``a`` {.., M, K} and ``b`` {.., K, N} are INT8 or UINT8. Leading sizes broadcast. Scales,
    FLOAT32, and zero points are single values, vectors of length M (for ``a`` and the output) and N
    (for ``b``), or {.., M, 1} and {.., 1, N}. ``data_type`` is the output's: by default that of
    ``out``, else of ``output_zero_point``, else of ``a``.

    Returns ``out`` or a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    name = "quantized_linear_matrix_multiply"
    device = device_of(a, a_scale, b, b_scale, output_scale, a_zero_point, b_zero_point,
                       output_zero_point, out)
    a, b = as_tensor(device, name, "a", a), as_tensor(device, name, "b", b)
    leading = _leading(name, a, b)
    if data_type is None:
        known = out if out is not None else output_zero_point
        data_type = getattr(known, "dtype", a.data_type)
    kind = DataType.of(data_type)
    y = output(device, out, name, (*leading, a.sizes[-2], b.sizes[-1]), kind)
    vectors: dict[str, tuple[Tensor | None, int]] = {}
    for field, axis, scale, zero, matrix_kind in (
        ("a", -2, a_scale, a_zero_point, a.data_type),
        ("b", -1, b_scale, b_zero_point, b.data_type),
        ("output", -2, output_scale, output_zero_point, kind),
    ):
        vectors[f"{field}_scale"] = (
            as_tensor(device, name, f"{field}_scale", scale, DataType.FLOAT32), axis)
        vectors[f"{field}_zero_point"] = (None if zero is None else whole_numbers(
            device, name, f"{field}_zero_point", zero, matrix_kind), axis)
    rank = max(2, *(t.ndim for t, _ in vectors.values() if t is not None))
    run(QuantizedLinearMatrixMultiplyOperatorDesc, device, {
        "a_tensor": a.broadcast_to(*leading, *a.sizes[-2:]),
        "b_tensor": b.broadcast_to(*leading, *b.sizes[-2:]),
        "output_tensor": y,
        **{f"{n}_tensor": _along(t, axis, rank) for n, (t, axis) in vectors.items()},
    })
    return y


def _leading(name: str, a: Tensor, b: Tensor) -> tuple[int, ...]:
    """The leading sizes, broadcast."""
    for field, t in (("a", a), ("b", b)):
        expect(t.ndim >= 2, name, f"{field}.sizes", "have at least 2 dimensions", list(t.sizes))
    try:
        leading = broadcast_sizes(a.sizes[:-2] or (1,), b.sizes[:-2] or (1,))
    except ValueError:
        refuse(name, "the leading sizes of a and b", "broadcast", list(a.sizes), list(b.sizes))
    return leading[len(leading) + 2 - max(a.ndim, b.ndim) :]


def _broadcast(name: str, field: str, t: Tensor, sizes: tuple[int, ...]) -> Tensor:
    try:
        return t.broadcast_to(sizes)
    except ValidationError:
        refuse(name, f"{field}.sizes", f"broadcast to {list(sizes)}", list(t.sizes))


@function
def matrix_multiply_integer_to_float(
    a: TensorLike,
    a_scale: TensorLike,
    b: TensorLike,
    b_scale: TensorLike,
    *,
    a_zero_point: TensorLike | None = None,
    b_zero_point: TensorLike | None = None,
    bias: TensorLike | None = None,
    output_data_type: DataTypeLike | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``((a - a_zero_point) @ (b - b_zero_point)) * a_scale * b_scale + bias``, summed exactly
    (DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC).

    ``a`` {.., M, K} and ``b`` {.., K, N} are integers of 8, 16 or 32 bits, of equal width; unless
    the device is strict, one may be signed and the other not. Leading sizes broadcast, and so does
    ``bias`` to {.., M, N}. Scales and zero points are single values, vectors of length M (for
    ``a``) and N (for ``b``), or {.., M, 1} and {.., 1, N}. Zero points have their matrix's type.
    Scales and bias have the output's type; arrays and numbers are converted to it. It is FLOAT32 or
    FLOAT16: by default that of ``out``, else FLOAT16 if ``a_scale`` is, else FLOAT32.

    Returns ``out`` or a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    name = "matrix_multiply_integer_to_float"
    device = device_of(a, a_scale, b, b_scale, a_zero_point, b_zero_point, bias, out)
    a, b = as_tensor(device, name, "a", a), as_tensor(device, name, "b", b)
    leading = _leading(name, a, b)
    sizes = (*leading, a.sizes[-2], b.sizes[-1])

    if output_data_type is None:
        model = getattr(out if out is not None else a_scale, "dtype", None)
        output_data_type = "float16" if model == np.float16 else "float32"
    kind = DataType.of(output_data_type)
    y = output(device, out, name, sizes, kind)
    if bias is not None:
        bias = _broadcast(name, "bias", as_tensor(device, name, "bias", bias, kind), sizes)
    vectors = {
        "a_scale": as_tensor(device, name, "a_scale", a_scale, kind),
        "a_zero": None if a_zero_point is None else whole_numbers(
            device, name, "a_zero_point", a_zero_point, a.data_type),
        "b_scale": as_tensor(device, name, "b_scale", b_scale, kind),
        "b_zero": None if b_zero_point is None else whole_numbers(
            device, name, "b_zero_point", b_zero_point, b.data_type),
    }
    rank = max(2, *(t.ndim for t in vectors.values() if t is not None))
    tensors = {
        "a": a.broadcast_to(*leading, *a.sizes[-2:]),
        "b": b.broadcast_to(*leading, *b.sizes[-2:]),
        "bias": bias,
        "out": y,
        **{name: _along(t, VECTORS[name], rank) for name, t in vectors.items()},
    }
    run(
        MatrixMultiplyIntegerToFloatOperatorDesc,
        device,
        {SLOTS[name]: t for name, t in tensors.items()},
    )
    return y


def _along(t: Tensor | None, axis: int, rank: int) -> Tensor | None:
    """A vector seen along its axis. Any tensor gets sizes of 1 in front, up to ``rank``."""
    if t is None:
        return None
    if t.ndim == 1:
        t = t[:, None] if axis == -2 else t[None, :]
    return t.reshape(pad_left(t.sizes, rank, 1))
