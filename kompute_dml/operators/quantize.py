"""Conversion to and from integers by scale and zero point, and sums of quantized tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import UnsupportedError, expect
from ..layout import coalesce, product
from ..lowering import measured
from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import elementwise_lowering
from ..lowering.plan import UNUSED, Operand
from ..spec import FeatureLevel, Field
from .base import OperatorDesc, operator

_LINEAR, RANGE = "quantize_linear", "quantize_range"
_ADD, _FACTORS = "quantized_linear_add", "quantized_linear_add_factors"
_LOCAL_SIZE = 256


_Slot = tuple[str, TensorDesc]


def _linear(
    p: PlanBuilder, operation: str, x: _Slot, scale: _Slot, zero: tuple[str, TensorDesc | None],
    y: _Slot, backwards: bool = False,
) -> None:
    third = None if zero[1] is None else (zero[0], zero[1])
    elementwise_lowering(p, p.library.get(_LINEAR, operation), [x, scale, third], y,
                         guesses=operation == "quantize", backwards=backwards)


def _lower_linear(operation: str) -> Callable[[Any, PlanBuilder], None]:
    def lower(d: OperatorDesc, p: PlanBuilder) -> None:
        names = ("input_tensor", "scale_tensor", "zero_point_tensor", "output_tensor")
        x, scale, zero, y = ((n, getattr(d, n)) for n in names)
        _linear(p, operation, x, scale, zero, y)

    return lower


def _check_quantize(desc: OperatorDesc, strict: bool) -> None:
    x, scale = desc.input_tensor.data_type, desc.scale_tensor.data_type
    wanted = DataType.FLOAT32 if x is DataType.INT32 else x
    expect(scale is wanted, "DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR", "ScaleTensor.DataType",
           f"be {wanted} for an InputTensor of {x}", scale)


def _newer_linear(desc: OperatorDesc) -> Iterator[tuple[FeatureLevel, str, str, Any]]:
    if desc.zero_point_tensor is None:
        yield FeatureLevel.FL_6_2, "ZeroPointTensor", "be given", None


ElementWiseQuantizeLinearOperatorDesc = operator(
    "ELEMENT_WISE_QUANTIZE_LINEAR", shaders=(_LINEAR,), check=_check_quantize, newer=_newer_linear,
)(_lower_linear("quantize"))
ElementWiseDequantizeLinearOperatorDesc = operator(
    "ELEMENT_WISE_DEQUANTIZE_LINEAR", shaders=(_LINEAR,), newer=_newer_linear,
)(_lower_linear("dequantize"))


# Sums


def _check_add(desc: OperatorDesc, strict: bool) -> None:
    _check_shapes("ELEMENT_WISE_QUANTIZED_LINEAR_ADD", desc, ("ATensor", "BTensor"),
                  ("AScaleTensor", "AZeroPointTensor", "BScaleTensor", "BZeroPointTensor",
                   "OutputScaleTensor", "OutputZeroPointTensor"))


def _check_shapes(name: str, desc: OperatorDesc, full: tuple[str, ...], single: tuple[str,
                                                                                      ...]) -> None:
    """Raise unless ``full`` tensors have the output's sizes and ``single`` tensors one element, as
    DirectML's pages imply."""
    entry = {f.name: getattr(desc, f.snake) for f in desc.operator.spec.fields}
    sizes = list(desc.output_tensor.sizes)
    for field in full:
        expect(list(entry[field].sizes) == sizes, "DML_OPERATOR_" + name, f"{field}.Sizes",
               "equal OutputTensor.Sizes", list(entry[field].sizes), sizes)
    for field in single:
        if entry[field] is not None:
            expect(entry[field].element_count == 1, "DML_OPERATOR_" + name, f"{field}.Sizes",
                   "have one element", list(entry[field].sizes))


_SCALARS = {
    "a_scale": "a_scale_tensor", "a_zero": "a_zero_point_tensor",
    "b_scale": "b_scale_tensor", "b_zero": "b_zero_point_tensor",
    "out_scale": "output_scale_tensor", "out_zero": "output_zero_point_tensor",
}


@operator("ELEMENT_WISE_QUANTIZED_LINEAR_ADD", shaders=(_ADD, _FACTORS), check=_check_add)
def ElementWiseQuantizedLinearAddOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    """If the device binds 9 buffers, one dispatch reads the six scalars. Else a first dispatch
    computes factors from them."""
    scalars: dict[str, Any] = {name: p.read(slot) for name, slot in _SCALARS.items()}
    present: dict[str, int] = {f"HAS_{n.upper()}": getattr(d, slot) is not None
                               for n, slot in _SCALARS.items() if n.endswith("zero")}
    variant = p.library.find(_ADD, "scalars")
    if variant is None:
        types = {"A": d.a_tensor, "B": d.b_tensor, "OUT": d.output_tensor}
        factors = p.temporary(4, 3)
        p.dispatch(_FACTORS, 1, **scalars, factors=factors,
                   spec={**{f"{n}_TYPE": t.data_type.code for n, t in types.items()}, **present})
        variant, present = p.library.get(_ADD, "factors"), {}
        scalars = {"factors": factors.reading()}
    elementwise_lowering(
        p, variant, [("a_tensor", d.a_tensor), ("b_tensor", d.b_tensor)],
        ("output_tensor", d.output_tensor), spec=present, more=scalars, guesses=True)


# Quantization by the range of the values

RANGE_FIELDS = (Field("RangeScaleTensor", "output", "TENSOR_DESC", True),
                Field("RangeZeroPointTensor", "output", "TENSOR_DESC", True))
"""Outputs of operators that find the range of their outputs: scale and zero point."""


def _check_dynamic(desc: OperatorDesc, strict: bool) -> None:
    _check_shapes("DYNAMIC_QUANTIZE_LINEAR", desc, ("InputTensor",),
                  ("OutputScaleTensor", "OutputZeroPointTensor"))


@operator("DYNAMIC_QUANTIZE_LINEAR", shaders=(RANGE, _LINEAR), check=_check_dynamic)
def DynamicQuantizeLinearOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    """Compute the range, whose last workgroup makes scale and zero point, then convert the
    elements."""
    x, y = d.input_tensor, d.output_tensor
    scale, zero = d.output_scale_tensor, d.output_zero_point_tensor
    find_range(p, "input_tensor", y.data_type, "output_scale_tensor", "output_zero_point_tensor")
    nowhere = (0,) * x.dimension_count
    each_scale, each_zero = (t.replace(sizes=x.sizes, strides=nowhere) for t in (scale, zero))
    _linear(p, "quantize", ("input_tensor", x), ("output_scale_tensor", each_scale),
            ("output_zero_point_tensor", each_zero), ("output_tensor", y), backwards=True)


def made_range(p: PlanBuilder) -> dict[str, Operand]:
    """The operands of a kernel that finds the range of its output (include/made_range.glsl), if
    that is an output."""
    if p.tensor("range_scale_tensor") is None:
        return dict.fromkeys(("zeroed", "range_scale", "range_zero"), UNUSED)
    return {"zeroed": p.zeroed(4, 3), "range_scale": p.write("range_scale_tensor"),
            "range_zero": p.write("range_zero_point_tensor")}


def find_range(p: PlanBuilder, slot: str, to: DataType, scale: str, zero: str) -> None:
    """Dispatch what finds the range of a tensor, and writes the scale and the zero point of its
    quantization."""
    x = p.tensor(slot)
    sizes, (strides,) = coalesce(x.sizes, x.strides)
    count = product(sizes)
    # Workgroups that fill a device, whose invocations read enough elements.
    known = measured.figures(p.device.device_class, "quantize_range")
    groups = min(-(-count // (_LOCAL_SIZE * int(known["elements"]))), int(known["groups"]))
    most = (1 << 32) - groups * _LOCAL_SIZE
    if count > most:
        # The number of an invocation's next element would exceed 32 bits.
        raise UnsupportedError(
            f"DYNAMIC_QUANTIZE_LINEAR of {count} elements: more than {most} are not supported")

    operands: dict[str, Any] = {
        "in": p.read(slot), "zeroed": p.zeroed(4, 3) if groups > 1 else UNUSED,
        "scale": p.write(scale), "zero": p.write(zero)}
    p.dispatch(
        RANGE, groups, **operands,
        push={"count": count, "rank": len(sizes), "sizes": sizes, "in_strides": strides,
              "groups": groups},
        spec={"LOCAL_SIZE": _LOCAL_SIZE, "IN_TYPE": x.data_type.code,
              "OUT_TYPE": to.code, "PACKED": strides == (1,)})
