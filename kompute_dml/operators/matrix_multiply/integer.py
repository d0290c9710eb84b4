"""MATRIX_MULTIPLY_INTEGER: exact products modulo 2^32. Checks that integer products share."""

from __future__ import annotations

from ...errors import expect
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import choose
from ..base import OperatorDesc, operator
from .kernels import KERNELS, SHADERS
from .product import Product

_VECTORS = {
    "a_scale_tensor": -2, "a_zero_point_tensor": -2, "b_scale_tensor": -1,
    "b_zero_point_tensor": -1, "output_scale_tensor": -2, "output_zero_point_tensor": -2,
}
"""The axis along which a scale or zero point may have a value for each row or column."""


def check_matrices(desc: OperatorDesc) -> None:
    """Raise if B or the output does not fit A."""
    name = desc.operator.name
    (*batches, m, k), n = desc.a_tensor.sizes, desc.b_tensor.sizes[-1]
    for tensor, field, sizes, rule in (
        (desc.b_tensor, "BTensor", [*batches, k, n], "the leading sizes of ATensor, then {K, N}"),
        (desc.output_tensor, "OutputTensor", [*batches, m, n],
         "the leading sizes of ATensor, then {M, N}"),
    ):
        if tensor is not None:
            expect(list(tensor.sizes) == sizes, name, f"{field}.Sizes", f"be {sizes} ({rule})",
                   list(tensor.sizes))


def check_vectors(desc: OperatorDesc) -> None:
    """Raise if a scale or zero point is neither one value nor one for each row or column."""
    for f in desc.operator.spec.tensors:
        axis, tensor = _VECTORS.get(f.snake), getattr(desc, f.snake)
        if axis is None or tensor is None:
            continue
        one = [1] * tensor.dimension_count
        each = one.copy()
        each[max(axis, -len(one))] = (desc.a_tensor if axis == -2 else desc.b_tensor).sizes[axis]
        per = "row of ATensor" if axis == -2 else "column of BTensor"
        expect(
            list(tensor.sizes) in (one, each), desc.operator.name, f"{f.name}.Sizes",
            f"be {one} (one value) or {each} (one per {per})", list(tensor.sizes),
        )


def _check(desc: OperatorDesc, strict: bool) -> None:
    check_matrices(desc)
    check_vectors(desc)


def multiply_integers(desc: OperatorDesc, p: PlanBuilder) -> None:
    """Builds the plan of an integer product, scaled or not."""
    product = Product(desc)
    choose(KERNELS, product, p).lower(product, p)


@operator("MATRIX_MULTIPLY_INTEGER", shaders=SHADERS, check=_check)
def MatrixMultiplyIntegerOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    multiply_integers(d, p)
