"""What a decoder multiplies for each token: a few rows, normalized or not, by up to three matrices
of 4- or 8-bit elements in blocks, or of FLOAT16, in one dispatch. Graphs make it from
normalizations, GEMM and SWISH."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...desc import TensorDesc
from ...dtypes import DataType
from ...layout import product
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import choose
from ...lowering.plan import Plan, Target
from ...spec import Field
from ..base import OperatorDesc, widened
from .decode_kernels import ACROSS, KERNELS, MOST_ROWS, TEAMS, DecodeProblem, parts, pays
from .gemm import GemmOperatorDesc


def tile_columns(gated: bool) -> int:
    """Columns of each matrix must be a multiple of this."""
    return TEAMS * (2 if gated else 4)


def serves(target: Target, products: Sequence[OperatorDesc]) -> bool:
    """Whether a device has a kernel for products, all in blocks or all plain, as one, and was
    measured to gain by it."""
    first = products[0]
    return pays(target, _problem(first, [product.b_tensor for product in products]))


def _problem(d: OperatorDesc, matrices: Sequence[TensorDesc]) -> DecodeProblem:
    """What is computed of A and matrices."""
    return DecodeProblem(
        d.output_tensor.sizes[-2], d.a_tensor.sizes[-1], tuple(b.sizes[-1] for b in matrices),
        matrices[0].data_type.bits, getattr(d, "block_size", None) or 0,
        d.a_tensor.base_alignment % 16 == 0)


def takes(d: OperatorDesc) -> bool:
    """Whether the kernel can do a product by blocked weights, alone or beside others."""
    x, b, scale, zero, c, y = (d.a_tensor, d.b_tensor, d.b_scale_tensor, d.b_zero_point_tensor,
                               d.c_tensor, d.output_tensor)
    rows, columns = y.sizes[-2:]
    depth, each = x.sizes[-1], 128 // b.data_type.bits
    halves = all(t is None or t.data_type is DataType.FLOAT16 for t in (x, scale, c, y))
    return bool(
        halves and product(y.sizes[:-2]) == 1 and rows <= MOST_ROWS
        and d.alpha == 1 and (c is None or d.beta == 1) and d.fused_activation is None
        and not d.trans_a and not d.trans_b and depth % each == 0
        and columns % tile_columns(False) == 0
        and x.strides[-1] == 1 and x.base_alignment % 16 == 0 and (
            rows == 1 or x.strides[-2] % 8 == 0)
        and b.base_alignment % 16 == 0 and b.strides[-2] == 1 and b.strides[-1] % each == 0
        and (d.block_size % each == 0 or d.block_size == 16)
        and all(t is None or t.strides[1] == 1 or t.sizes[1] == 1 for t in (scale, zero))
        and all(t is None or (t.strides[-1] == 1 and t.base_alignment % 4 == 0 and (
            rows == 1 or t.strides[-2] % 2 == 0)) for t in (c, y))
        and (c is None or rows == 1 or c.strides[-2] in (0, y.strides[-2])))


def takes_plain(d: OperatorDesc) -> bool:
    """Whether the kernel can do a product by FLOAT16 as it is, alone or beside others."""
    x, b, c, y = d.a_tensor, d.b_tensor, d.c_tensor, d.output_tensor
    rows, columns = y.sizes[-2:]
    return bool(
        all(t is None or t.data_type is DataType.FLOAT16 for t in (x, b, c, y))
        and product(y.sizes[:-2]) == 1 and product(b.sizes[:-2]) == 1 and rows <= MOST_ROWS
        and d.alpha == 1 and (c is None or d.beta == 1) and d.fused_activation is None
        and not d.trans_a and not d.trans_b and x.sizes[-1] % 2 == 0
        and columns % (8 * ACROSS[-1]) == 0
        and b.strides[-1] == 1 and b.strides[-2] % 8 == 0 and b.base_alignment % 16 == 0
        and all(t is None or (t.strides[-1] == 1 and t.base_alignment % 4 == 0 and (
            rows == 1 or t.strides[-2] % 2 == 0)) for t in (x, c, y))
        and (c is None or rows == 1 or c.strides[-2] in (0, y.strides[-2])))


def _lower(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    g = _problem(d, [part.b for part in parts(d)])
    choose(KERNELS, g, p).lower(g, p)
    return p.build()


def _fields() -> Iterator[Field]:
    yield Field("GammaTensor", "input", "TENSOR_DESC", True)
    for n in ("", "1", "2"):
        if n:
            yield Field(f"B{n}Tensor", "input", "TENSOR_DESC", True)
            yield Field(f"C{n}Tensor", "input", "TENSOR_DESC", True)
        yield Field(f"B{n}ScaleTensor", "input", "TENSOR_DESC", True)
        yield Field(f"B{n}ZeroPointTensor", "input", "TENSOR_DESC", True)
        if n:
            yield Field(f"Output{n}Tensor", "output", "TENSOR_DESC", True)
    yield Field("BlockSize", "attribute", "UINT", True)
    yield Field("Epsilon", "attribute", "FLOAT", True)
    yield Field("Gated", "attribute", "UINT", True)


DecodeProductDesc: Any = widened(
    GemmOperatorDesc, *_fields(), name="DECODE_PRODUCT", lower=_lower, in_place=False)
"""A is normalized by its root mean square and Gamma, if that is there. Each B is FLOAT16, K x
columns, or has the form of :data:`BlockedGemmDesc`'s with scales and zero points. Beside it are C
(a row, or one for each row) and an output. Gated: the output is SiLU of the first product times the
second."""
