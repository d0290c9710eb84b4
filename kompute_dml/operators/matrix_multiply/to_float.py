"""MATRIX_MULTIPLY_INTEGER_TO_FLOAT: a product of quantized matrices, scaled to floating point."""

from __future__ import annotations

from ... import spec
from ...errors import expect
from ...lowering.builder import PlanBuilder
from ..base import OperatorDesc, Same, operator
from .integer import check_matrices, check_vectors, multiply_integers
from .kernels import SHADERS

_NAME = "DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"


def _same(strict: bool) -> Same:
    """The table's constraints; unless strict, A and B may differ in signedness."""
    for tensors, properties in spec.operator(_NAME).same:
        if properties == ("data type",) and "BTensor" in tensors and not strict:
            yield ("ATensor", "AZeroPointTensor"), properties
            yield ("BTensor", "BZeroPointTensor"), properties
        else:
            yield tensors, properties


def _check(desc: OperatorDesc, strict: bool) -> None:
    check_matrices(desc)
    expect(
        desc.a_tensor.data_type.itemsize == desc.b_tensor.data_type.itemsize, _NAME,
        "ATensor.DataType", "have the width of BTensor.DataType", desc.a_tensor.data_type,
        desc.b_tensor.data_type,
    )
    (*batches, m, _), n = desc.a_tensor.sizes, desc.b_tensor.sizes[-1]
    if desc.bias_tensor is not None:
        expect(
            list(desc.bias_tensor.sizes) == [*batches, m, n], _NAME, "BiasTensor.Sizes",
            f"be {[*batches, m, n]} (the sizes of OutputTensor)", list(desc.bias_tensor.sizes),
        )
    check_vectors(desc)


@operator(_NAME.removeprefix("DML_OPERATOR_"), shaders=SHADERS, check=_check, same=_same)
def MatrixMultiplyIntegerToFloatOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    multiply_integers(d, p)
