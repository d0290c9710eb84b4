"""Functions of products whose arguments differ from the structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..dtypes import DataType
from ..errors import ValidationError, expect, refuse
from ..layout import broadcast_sizes, pad_left
from ..operators.matrix_multiply.bfloat16 import NarrowGemmDesc
from ..operators.matrix_multiply.float_kernels import multiplies_bfloat16
from ..operators.matrix_multiply.gemm import GemmOperatorDesc
from ..operators.matrix_multiply.grouped import GroupedGemmDesc, GroupRowsDesc, RowTiles
from ..operators.matrix_multiply.integer import MatrixMultiplyIntegerOperatorDesc
from ..operators.matrix_multiply.quantized import QuantizedLinearMatrixMultiplyOperatorDesc
from ..operators.matrix_multiply.to_float import MatrixMultiplyIntegerToFloatOperatorDesc
from ..tracing import Tracer
from .call import as_tensor, device_of, output, run, whole_numbers
from .registry import function

if TYPE_CHECKING:
    from ..device import Device
    from ..operators.base import OperatorDesc
    from ..runtime.traits import DeviceTraits
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


def _traits_of(device: Device | Tracer) -> DeviceTraits:
    """Those of the device on which this runs."""
    return (device.device if isinstance(device, Tracer) else device).target.traits


def gemm_of_bfloat16(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, beta: float = 1.0
) -> Tensor | None:
    """:func:`gemm` of BFLOAT16, whose bits are UINT16; None on a device without matrix units for
    it."""
    name, device = "gemm_of_bfloat16", device_of(a, b, c)
    if not multiplies_bfloat16(_traits_of(device)):
        return None
    leading = _leading(name, a, b)
    sizes = (*leading, a.sizes[-2], b.sizes[-1])
    y = device.empty(sizes, DataType.UINT16)
    run(NarrowGemmDesc, device, {
        "a_tensor": a.broadcast_to(*leading, *a.sizes[-2:]),
        "b_tensor": b.broadcast_to(*leading, *b.sizes[-2:]),
        "c_tensor": None if c is None else _broadcast(name, "c", c, sizes), "output_tensor": y},
        trans_a=0, trans_b=0, alpha=alpha, beta=beta, fused_activation=None)
    return y


def rows_in_tiles(indices: Tensor, groups: int, filler: int = 0) -> RowTiles[Tensor]:
    """Tiles of rows whose groups are ``indices``, of 32 bits. ``filler`` is at places without
    a row."""
    device = device_of(indices)
    tiles: RowTiles[Tensor] = RowTiles.of(
        _traits_of(device), indices.sizes[0], groups,
        lambda count: device.empty((count,), DataType.UINT32))
    run(GroupRowsDesc, device, tiles.sorting(indices), groups=groups, each=tiles.each, per=1,
        filler=filler)
    return tiles


def gemm_of_tiles(a: Tensor, b: Tensor, tiles: RowTiles[Tensor]) -> Tensor | None:
    """Tiles of rows by the matrix of each one's group, of {groups, K, N}. UINT16 is BFLOAT16; None
    on a device without matrix units for it."""
    device = device_of(a, b)
    if a.data_type is DataType.UINT16 and not multiplies_bfloat16(_traits_of(device)):
        return None
    y = device.empty((*a.sizes[:-1], b.sizes[-1]), a.data_type)
    run(GroupedGemmDesc, device, {
        "a_tensor": a, "b_tensor": b, "groups_tensor": tiles.groups, "output_tensor": y},
        trans_a=0, trans_b=0, alpha=1.0, beta=1.0)
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
    return _product(
        MatrixMultiplyIntegerOperatorDesc, name, device, a, b, out, DataType.INT32,
        _zeros(device, name, a=(a_zero_point, a.data_type), b=(b_zero_point, b.data_type)))


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
    if data_type is None:
        known = out if out is not None else output_zero_point
        data_type = getattr(known, "dtype", a.data_type)
    kind = DataType.of(data_type)
    vectors = {
        **_scales(device, name, DataType.FLOAT32, a=a_scale, b=b_scale, output=output_scale),
        **_zeros(device, name, a=(a_zero_point, a.data_type), b=(b_zero_point, b.data_type),
                 output=(output_zero_point, kind))}
    return _product(QuantizedLinearMatrixMultiplyOperatorDesc, name, device, a, b, out, kind,
                    vectors)


def _scales(
    device: Device, name: str, kind: DataType, **scales: TensorLike
) -> dict[str, Tensor | None]:
    """Scales by matrix."""
    return {f"{side}_scale": as_tensor(device, name, f"{side}_scale", scale, kind)
            for side, scale in scales.items()}


def _zeros(
    device: Device, name: str, **zeros: tuple[TensorLike | None, DataType]
) -> dict[str, Tensor | None]:
    """Zero points by matrix."""
    return {f"{side}_zero_point": None if zero is None else whole_numbers(
        device, name, f"{side}_zero_point", zero, kind) for side, (zero, kind) in zeros.items()}


def _product(
    desc: type[OperatorDesc], name: str, device: Device, a: Tensor, b: Tensor,
    out: Tensor | None, kind: DataType, vectors: Mapping[str, Tensor | None],
    bias: TensorLike | None = None
) -> Tensor:
    """A product of integers. ``vectors`` lie along the rows of A and of the output, or along the
    columns of B."""
    leading = _leading(name, a, b)
    sizes = (*leading, a.sizes[-2], b.sizes[-1])
    y = output(device, out, name, sizes, kind)
    more = {} if bias is None else {
        "bias_tensor": _broadcast(name, "bias", as_tensor(device, name, "bias", bias, kind), sizes)}
    rank = max(2, *(0 if t is None else t.ndim for t in vectors.values()))
    run(desc, device, {
        "a_tensor": a.broadcast_to(*leading, *a.sizes[-2:]),
        "b_tensor": b.broadcast_to(*leading, *b.sizes[-2:]), "output_tensor": y, **more,
        **{f"{field}_tensor": _along(t, -1 if field[0] == "b" else -2, rank)
           for field, t in vectors.items()}})
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
    if output_data_type is None:
        model = getattr(out if out is not None else a_scale, "dtype", None)
        output_data_type = "float16" if model == np.float16 else "float32"
    kind = DataType.of(output_data_type)
    vectors = {**_scales(device, name, kind, a=a_scale, b=b_scale), **_zeros(
        device, name, a=(a_zero_point, a.data_type), b=(b_zero_point, b.data_type))}
    return _product(MatrixMultiplyIntegerToFloatOperatorDesc, name, device, a, b, out, kind,
                    vectors, bias)


def _along(t: Tensor | None, axis: int, rank: int) -> Tensor | None:
    """A vector seen along its axis. Any tensor gets sizes of 1 in front, up to ``rank``."""
    if t is None:
        return None
    if t.ndim == 1:
        t = t[:, None] if axis == -2 else t[None, :]
    return t.reshape(pad_left(t.sizes, rank, 1))
