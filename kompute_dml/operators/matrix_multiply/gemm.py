"""GEMM: products of floating-point matrices, with C, scales and a fused activation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from ...desc import TensorDesc
from ...errors import expect
from ...lowering.builder import PlanBuilder
from ...lowering.copy import SHADERS as COPIES
from ...lowering.kernel import choose
from .. import halves
from ..base import OperatorDesc, Output, axes_in, operator
from .float_dispatch import matrix_views, oriented, row_activation
from .float_kernels import KERNELS, SHADERS, has_units
from .float_product import FloatProduct, MatrixView

_NAME = "DML_OPERATOR_GEMM"

# The description


def _infer(d: OperatorDesc) -> Mapping[str, Output]:
    *batches, m, k = oriented(d.a_tensor.sizes, d.trans_a)
    n = oriented(d.b_tensor.sizes, d.trans_b)[-1]
    sizes = oriented((*batches, k, n), d.trans_b)
    expect(
        d.b_tensor.sizes == sizes, _NAME, "BTensor.Sizes",
        f"be {list(sizes)} (the leading sizes of ATensor, then K and N)", list(d.b_tensor.sizes))
    return {"output_tensor": Output((*batches, m, n), d.a_tensor.data_type)}


def _check(d: OperatorDesc, strict: bool) -> None:
    fused = row_activation(d)
    if fused is not None and hasattr(fused, "axes"):
        axes_in(_NAME, fused.axes, d.output_tensor)


# The plan


def _plain(d: OperatorDesc, p: PlanBuilder, y: MatrixView) -> None:
    """Compute the product into ``y``, without an activation that needs whole rows."""
    k = oriented(d.a_tensor.sizes, d.trans_a)[-1]
    g = FloatProduct(d.output_tensor.sizes, k, d.a_tensor.data_type.itemsize, matrix_views(p, y))
    choose(KERNELS, g, p).lower(g, p)


@operator("GEMM", output=_infer,
          shaders=(*SHADERS, *COPIES, "padding", "convolution_sum"), check=_check,
          any_size=True, trans_a=0, trans_b=0, alpha=1.0, beta=1.0)
def GemmOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    y, fused = d.output_tensor, row_activation(d)
    k = oriented(d.a_tensor.sizes, d.trans_a)[-1]
    if (y.sizes[-2] > 8 and has_units(p)
            and halves.pay_off(p, d.a_tensor, k * math.prod(y.sizes))):
        halves.lower(p, d, ("a_tensor", "b_tensor"))
        return
    if fused is None:
        _plain(d, p, MatrixView(p.write("output_tensor"), y.strides, y.base_alignment))
        return
    x = TensorDesc.packed(y.data_type, y.sizes)
    sums = p.temporary(y.data_type.itemsize, x.element_count)
    _plain(d, p, MatrixView(sums, x.strides, 16))
    activation = replace(fused, input_tensor=x, output_tensor=y)
    p.include(fused.operator.lower(activation, p.target),
              {"input_tensor": sums.reading(), "output_tensor": p.write("output_tensor")})
