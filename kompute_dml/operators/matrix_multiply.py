"""MATRIX_MULTIPLY_INTEGER_TO_FLOAT: a product of quantized matrices, scaled to floating point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import spec, tuning
from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import ValidationError, expect
from ..layout import broadcast_sizes, pad_left
from .base import Same, define, function
from .call import as_tensor, device_of, output, run, whole_numbers
from .matrix_multiply_kernels import SHADERS, candidates, lower
from .matrix_multiply_product import SLOTS, VECTORS, Product
from .plan import Plan, Target

if TYPE_CHECKING:
    from ..tensor import Tensor

_NAME = "DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"
def _same(strict: bool) -> Same:
    """The table's constraints; unless strict, A and B may differ in signedness."""
    for tensors, properties in spec.operator(_NAME).same:
        if properties == ("data type",) and "BTensor" in tensors and not strict:
            yield ("ATensor", "AZeroPointTensor"), properties
            yield ("BTensor", "BZeroPointTensor"), properties
        else:
            yield tensors, properties


def _check(desc: Any, strict: bool) -> None:
    a, b, out = desc.a_tensor, desc.b_tensor, desc.output_tensor
    expect(
        a.data_type.itemsize == b.data_type.itemsize, _NAME, "ATensor.DataType",
        "have the width of BTensor.DataType", a.data_type, b.data_type,
    )
    (*batches, m, k), n = a.sizes, b.sizes[-1]
    for tensor, field, sizes, rule in (
        (b, "BTensor", [*batches, k, n], "the leading sizes of ATensor, then {K, N}"),
        (out, "OutputTensor", [*batches, m, n], "the leading sizes of ATensor, then {M, N}"),
        (desc.bias_tensor, "BiasTensor", [*batches, m, n], "the sizes of OutputTensor"),
    ):
        if tensor is not None:
            expect(
                list(tensor.sizes) == sizes, _NAME, f"{field}.Sizes", f"be {sizes} ({rule})",
                list(tensor.sizes),
            )
    for tensor, field, axis, count in (
        (desc.a_scale_tensor, "AScaleTensor", -2, m),
        (desc.a_zero_point_tensor, "AZeroPointTensor", -2, m),
        (desc.b_scale_tensor, "BScaleTensor", -1, n),
        (desc.b_zero_point_tensor, "BZeroPointTensor", -1, n),
    ):
        if tensor is not None:
            _check_vector(tensor, field, axis, count)


def _check_vector(tensor: TensorDesc, field: str, axis: int, count: int) -> None:
    """One value, or ``count`` of them along ``axis`` (of a vector: along its only one)."""
    one = [1] * tensor.dimension_count
    each = one.copy()
    each[max(axis, -len(one))] = count
    per = "row of ATensor" if axis == -2 else "column of BTensor"
    expect(
        list(tensor.sizes) in (one, each), _NAME, f"{field}.Sizes",
        f"be {one} (one value) or {each} (one per {per})", list(tensor.sizes),
    )


def _lower(desc: Any, target: Target) -> Plan:
    product = Product(desc)
    kernels = candidates(product, target)
    taken = tuning.pick(target.adapter, product.work, [kernel.name for kernel in kernels])
    return lower(product, kernels[taken], target)


MatrixMultiplyIntegerToFloatOperatorDesc = define(
    _NAME.removeprefix("DML_OPERATOR_"),
    _lower,
    shaders=SHADERS,
    check=_check,
    same=_same,
)


@function
def matrix_multiply_integer_to_float(
    a: Any,
    a_scale: Any,
    b: Any,
    b_scale: Any,
    *,
    a_zero_point: Any = None,
    b_zero_point: Any = None,
    bias: Any = None,
    output_data_type: Any = None,
    out: Tensor | None = None,
) -> Tensor:
    """``((a - a_zero_point) @ (b - b_zero_point)) * a_scale * b_scale + bias``, summed exactly
    (DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC).

    ``a`` {.., M, K} and ``b`` {.., K, N} are integers of 8, 16 or 32 bits, of equal width; unless
    the device is strict, one may be signed and the other not. Leading sizes broadcast, and so does
    ``bias`` to {.., M, N}. Scales and zero points are single values, vectors of length M (for
    ``a``) and N (for ``b``), or {.., M, 1} and {.., 1, N}. Zero points have their matrix's type;
    scales and bias have the output's, to which arrays and numbers are converted: FLOAT32 or
    FLOAT16, by default that of ``out``, else of ``a_scale`` where it is FLOAT16, else FLOAT32.

    Returns ``out`` or a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    name = "matrix_multiply_integer_to_float"
    device = device_of(a, a_scale, b, b_scale, a_zero_point, b_zero_point, bias, out)
    a, b = as_tensor(device, name, "a", a), as_tensor(device, name, "b", b)
    for field, t in (("a", a), ("b", b)):
        expect(t.ndim >= 2, name, f"{field}.sizes", "have at least 2 dimensions", list(t.sizes))
    try:
        leading = broadcast_sizes(a.sizes[:-2] or (1,), b.sizes[:-2] or (1,))
    except ValueError:
        expect(False, name, "the leading sizes of a and b", "broadcast",
               list(a.sizes), list(b.sizes))
    leading = leading[len(leading) + 2 - max(a.ndim, b.ndim) :]
    sizes = (*leading, a.sizes[-2], b.sizes[-1])

    if output_data_type is None:
        model = getattr(out if out is not None else a_scale, "dtype", None)
        output_data_type = "float16" if model == np.float16 else "float32"
    kind = DataType.of(output_data_type)
    y = output(device, out, name, sizes, kind)
    if bias is not None:
        bias = as_tensor(device, name, "bias", bias, kind)
        try:
            bias = bias.broadcast_to(sizes)
        except ValidationError:
            expect(False, name, "bias.sizes", f"broadcast to {list(sizes)}", list(bias.sizes))
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
    """A vector laid along its axis; any tensor with sizes of 1 in front until it has ``rank``."""
    if t is None:
        return None
    if t.ndim == 1:
        t = t[:, None] if axis == -2 else t[None, :]
    return t.reshape(pad_left(t.sizes, rank, 1))
