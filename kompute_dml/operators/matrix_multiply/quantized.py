"""QUANTIZED_LINEAR_MATRIX_MULTIPLY: an exact product of integers, and the way of its sums into
quantized numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...desc import TensorDesc
from ...dtypes import DataType
from ...lowering.builder import PlanBuilder
from ...lowering.walk import Walk
from ..base import Output, operator
from .integer import (
    MatrixMultiplyIntegerOperatorDesc,
    check_matrices,
    check_vectors,
    lower_integers,
)
from .kernels import SHADERS


def _infer(d: Any) -> Mapping[str, Output]:
    check_matrices(d)
    zero = d.output_zero_point_tensor
    sizes = (*d.a_tensor.sizes[:-1], d.b_tensor.sizes[-1])
    return {"output_tensor": Output(sizes, None if zero is None else zero.data_type)}


def _check(d: Any, strict: bool) -> None:
    check_vectors(d)


def _stride(t: TensorDesc | None, axis: int) -> int:
    """From one row's or column's value to the next."""
    if t is None:
        return 0
    axis = max(axis, -t.dimension_count)
    return t.strides[axis] if t.sizes[axis] > 1 else 0


@operator("QUANTIZED_LINEAR_MATRIX_MULTIPLY", output=_infer, shaders=("requantize", *SHADERS),
          check=_check)
def QuantizedLinearMatrixMultiplyOperatorDesc(d: Any, p: PlanBuilder) -> None:
    y, zero = d.output_tensor, d.output_zero_point_tensor
    whole = TensorDesc.packed(DataType.INT32, y.sizes)
    sums = p.temporary(4, whole.element_count)
    product = MatrixMultiplyIntegerOperatorDesc(
        a_tensor=d.a_tensor, a_zero_point_tensor=d.a_zero_point_tensor, b_tensor=d.b_tensor,
        b_zero_point_tensor=d.b_zero_point_tensor, output_tensor=whole)
    p.include(lower_integers(product, p.target), {"output_tensor": sums})
    *leading, rows, columns = y.sizes
    along_rows = [(*[0] * len(leading), _stride(t, -2))
                  for t in (d.a_scale_tensor, d.output_scale_tensor, zero)]
    lines = Walk((*leading, rows), y.strides[:-1], *along_rows)
    words = columns % 4 == 0 and y.strides[-1] == 1 and y.base_alignment % 4 == 0 and not any(
        s % 4 for s, n in zip(y.strides[:-1], y.sizes) if n > 1)
    p.dispatch(
        "requantize", -(-lines.count * -(-columns // 4) // p.device.local_size),
        sums=sums.reading(), a_scale=p.read("a_scale_tensor"), b_scale=p.read("b_scale_tensor"),
        y_scale=p.read("output_scale_tensor"), y_zero=p.read("output_zero_point_tensor"),
        y=p.write("output_tensor"), params=lines.words,
        push={"lines": lines.count, "columns": columns, "y_column": y.strides[-1],
              "b_scale_step": _stride(d.b_scale_tensor, -1)},
        spec={"LOCAL_SIZE": p.device.local_size, "TYPE": y.data_type.code,
              "HAS_ZERO": zero is not None, "WORDS": words},
    )
