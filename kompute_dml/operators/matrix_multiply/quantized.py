"""QUANTIZED_LINEAR_MATRIX_MULTIPLY: an exact integer product with quantized outputs."""

from __future__ import annotations

from collections.abc import Mapping

from ...desc import TensorDesc
from ...dtypes import DataType
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import choose
from ...lowering.walk import Walk
from ..base import OperatorDesc, Output, operator
from .integer import MatrixMultiplyIntegerOperatorDesc, check_matrices, check_vectors
from .kernels import KERNELS, SHADERS
from .product import Product, vector_stride


def _infer(d: OperatorDesc) -> Mapping[str, Output]:
    check_matrices(d)
    zero = d.output_zero_point_tensor
    sizes = (*d.a_tensor.sizes[:-1], d.b_tensor.sizes[-1])
    return {"output_tensor": Output(sizes, None if zero is None else zero.data_type)}


def _check(d: OperatorDesc, strict: bool) -> None:
    check_vectors(d)


@operator("QUANTIZED_LINEAR_MATRIX_MULTIPLY", output=_infer, shaders=("requantize", *SHADERS),
          check=_check)
def QuantizedLinearMatrixMultiplyOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    """Kernels on matrix units quantize their sums. Other kernels need a second dispatch."""
    y, zero = d.output_tensor, d.output_zero_point_tensor
    quantized = Product(d)
    kernel = choose(KERNELS, quantized, p)
    if kernel.quantizes(quantized):
        kernel.lower(quantized, p)
        return
    whole = TensorDesc.packed(DataType.INT32, y.sizes)
    sums = p.temporary(4, whole.element_count)
    product = MatrixMultiplyIntegerOperatorDesc(
        a_tensor=d.a_tensor, a_zero_point_tensor=d.a_zero_point_tensor, b_tensor=d.b_tensor,
        b_zero_point_tensor=d.b_zero_point_tensor, output_tensor=whole)
    exact = PlanBuilder(p.target, product)
    kernel.lower(Product(product), exact)
    p.include(exact.build(), {"output_tensor": sums})
    *leading, rows, columns = y.sizes
    of_rows = [(*[0] * len(leading), vector_stride(t, -2))
               for t in (d.a_scale_tensor, d.output_scale_tensor, zero)]
    all_rows = Walk((*leading, rows), y.strides[:-1], *of_rows)
    p.dispatch(
        "requantize", -(-all_rows.count * -(-columns // 4) // p.device.local_size),
        sums=sums.reading(), a_scale=p.read("a_scale_tensor"), b_scale=p.read("b_scale_tensor"),
        y_scale=p.read("output_scale_tensor"), y_zero=p.read("output_zero_point_tensor"),
        y=p.write("output_tensor"), params=all_rows.words,
        push={"rows": all_rows.count, "columns": columns, "y_column": y.strides[-1],
              "b_scale_step": vector_stride(d.b_scale_tensor, -1)},
        spec={"LOCAL_SIZE": p.device.local_size, "TYPE": y.data_type.code,
              "HAS_ZERO": zero is not None, "WORDS": quantized.stores_words},
    )
