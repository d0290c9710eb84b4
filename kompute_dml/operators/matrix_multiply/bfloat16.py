"""GEMM of BFLOAT16: the upper halves of FLOAT32. DirectML has no such type, so it is described as
UINT16. Graphs make such a B of constants, and A is FLOAT32. In PyTorch both are BFLOAT16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...desc import TensorDesc
from ...dtypes import DataType
from ...layout import is_packed
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel, choose
from ...lowering.plan import Operand, Plan, Target
from ...lowering.walk import Walk
from ...runtime.traits import DeviceTraits
from ...sizes import said
from ...tuning import work_key
from .. import elementwise as _elementwise  # noqa: F401  (registers CAST)
from ..base import OperatorDesc, definitions, fields_of, widened
from .float_dispatch import dispatch_product, matrix_views, oriented
from .float_kernels import OF_BFLOAT16
from .float_product import FloatLaunch, FloatProduct, MatrixView
from .gemm import GemmOperatorDesc

VECTOR = 8
"""Elements of B in 16 bytes."""
MOST_ROWS = 8
_WORD = 4
_WIDEN, _INVOCATIONS = "widen_bfloat16", 256
_SIZES = {"k": (8, 2048), "mn": (128, 32)}
"""Columns of a tile, and what its parts of K are multiples of, by the axis of B's vectors."""


def _widen(p: PlanBuilder, slot: str, y: Operand, count: int) -> None:
    """Write the numbers of a slot."""
    vectors = -(-count // VECTOR)
    p.dispatch(_WIDEN, -(-vectors // _INVOCATIONS), x=p.read(slot, 0, count), y=y,
               push={"count": vectors}, spec={"LOCAL_SIZE": _INVOCATIONS})


def _lower_widen(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    _widen(p, "input_tensor", p.write("output_tensor"), d.output_tensor.element_count)
    return p.build()


WidenDesc: Any = widened(
    definitions()["DML_OPERATOR_CAST"].desc_class, name="BFLOAT16_TO_FLOAT", lower=_lower_widen,
    in_place=False)
"""From UINT16 to FLOAT32, both packed and aligned to 16 bytes, a multiple of 8 elements."""


def _lower_conversion(way: str) -> Callable[[OperatorDesc, Target], Plan]:
    def lower(d: OperatorDesc, target: Target) -> Plan:
        p, x, y = PlanBuilder(target, d), d.input_tensor, d.output_tensor
        halves = x if way == "widen" else y
        in_order = halves.base_alignment % _WORD == 0 and all(
            is_packed(t.sizes, t.strides) for t in (x, y))
        walk = Walk(y.sizes, x.strides, y.strides)
        p.dispatch(
            p.library.get("convert_bfloat16", way),
            -(-walk.count // (_INVOCATIONS * (2 if in_order else 1))), x=p.read("input_tensor"),
            y=p.write("output_tensor"), params=walk.words, push={"count": walk.count},
            spec={"LOCAL_SIZE": _INVOCATIONS, "PACKED": in_order})
        return p.build()

    return lower


WidenAnyDesc: Any = widened(
    definitions()["DML_OPERATOR_CAST"].desc_class, name="BFLOAT16_TO_FLOAT_ANY",
    lower=_lower_conversion("widen"), in_place=False)
"""From UINT16 to FLOAT32, of any strides."""
NarrowDesc: Any = widened(
    definitions()["DML_OPERATOR_CAST"].desc_class, name="FLOAT_TO_BFLOAT16",
    lower=_lower_conversion("narrow"), in_place=False)
"""The other way round, rounded to the nearest, halves to even. NaN is 0x7FC0."""


class WideningProduct(FloatProduct):
    """A product by such a B."""

    def __init__(self, p: PlanBuilder) -> None:
        d = p.desc
        y = d.output_tensor
        output = MatrixView(p.write("output_tensor"), y.strides, y.base_alignment)
        k = oriented(d.a_tensor.sizes, d.trans_a)[-1]
        super().__init__(y.sizes, k, y.data_type.itemsize, matrix_views(p, output))

    @property
    def skinny_axis(self) -> str:
        axis = self.vectors("b", VECTOR) if self.rows <= MOST_ROWS else ""
        return "" if axis == "k" and self.vectors("a", 4) != "k" else axis

    @property
    def work(self) -> str:
        return work_key("gemm f32 b16", self.rows, self.k, self.columns, self.batches)


@dataclass(frozen=True)
class _NarrowRows(Kernel[WideningProduct]):
    """Up to eight rows, by vectors of B."""

    axis: str
    rows: int

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._variant.replace(".", "-")

    @property
    def _variant(self) -> str:
        return f"gemm_few_rows.{'k' if self.axis == 'k' else 'n'}_bfloat16.r{self.rows}"

    def shader(self, g: WideningProduct) -> str:
        return self._variant

    def serves(self, g: WideningProduct, traits: DeviceTraits) -> str | None:
        if traits.slow_compiler:
            return "compiling is slow"
        if g.skinny_axis != self.axis:
            return f"it has more than eight rows, or no vectors along {self.axis}"
        return None if self.rows // 2 < g.rows <= self.rows else f"it has {said(g.rows)} rows"

    def lower(self, g: WideningProduct, p: PlanBuilder) -> None:
        columns, k = _SIZES[self.axis]
        traits = p.device
        dispatch_product(p, g, FloatLaunch(
            self._variant, self.rows, columns, k, longest=k * (traits.max_loop_passes // 2),
            busy=4 * traits.cores))


class _Widened(Kernel[WideningProduct]):
    """The numbers of B first."""

    name = "widened"
    cost = 1.0

    def lower(self, g: WideningProduct, p: PlanBuilder) -> None:
        d = p.desc
        b: TensorDesc = d.b_tensor
        reach = p.read("b_tensor").length
        numbers = p.temporary(4, -(-reach // VECTOR) * VECTOR)
        _widen(p, "b_tensor", numbers, reach)
        product = GemmOperatorDesc(**fields_of(GemmOperatorDesc, d) | {
            "b_tensor": TensorDesc(DataType.FLOAT32, b.sizes, b.strides)})
        p.include(product.operator.lower(product, p.target), {"b_tensor": numbers.reading()})


KERNELS: tuple[Kernel[WideningProduct], ...] = (
    *(_NarrowRows(axis, rows) for axis in _SIZES for rows in (1, 2, 4, 8)), _Widened())


def _lower(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    g = WideningProduct(p)
    choose(KERNELS, g, p).lower(g, p)
    return p.build()


WideningGemmDesc: Any = widened(GemmOperatorDesc, lower=_lower)
"""B is UINT16, packed and aligned to 16 bytes, a multiple of 8 elements."""


def _lower_narrow(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    y = d.output_tensor
    views = matrix_views(p, MatrixView(p.write("output_tensor"), y.strides, y.base_alignment))
    k = oriented(d.a_tensor.sizes, d.trans_a)[-1]
    g = FloatProduct(y.sizes, k, y.data_type.itemsize, views, "bf16")
    choose(OF_BFLOAT16, g, p).lower(g, p)
    return p.build()


NarrowGemmDesc: Any = widened(
    GemmOperatorDesc, name="GEMM_OF_BFLOAT16", lower=_lower_narrow, in_place=False,
    data_types=(DataType.UINT16,))
"""A, B, C and the output are UINT16. It takes matrix units of BFLOAT16 (multiplies_bfloat16), sums
in FLOAT32, and rounds once. It fuses no activation."""


def serves(d: OperatorDesc, target: Target) -> bool:
    """Whether a product by B's upper halves is one that a kernel reads as they are."""
    g = WideningProduct(PlanBuilder(target, d))
    return any(kernel.serves(g, target.traits) is None for kernel in KERNELS[:-1])
