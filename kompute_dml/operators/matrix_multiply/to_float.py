"""MATRIX_MULTIPLY_INTEGER_TO_FLOAT: a product of quantized matrices, scaled to floating point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import spec, tuning
from ...desc import TensorDesc
from ...errors import expect
from ...lowering.plan import Plan, Target
from ..base import Same, define
from .kernels import SHADERS, candidates, lower
from .product import Product

if TYPE_CHECKING:
    pass

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
    taken = tuning.pick(target.device_key, product.work, [kernel.name for kernel in kernels])
    return lower(product, kernels[taken], target)


MatrixMultiplyIntegerToFloatOperatorDesc = define(
    _NAME.removeprefix("DML_OPERATOR_"),
    _lower,
    shaders=SHADERS,
    check=_check,
    same=_same,
)
