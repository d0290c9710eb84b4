"""Quantization: to and from integers by a scale and a zero point, and sums of such tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import UnsupportedError, expect
from ..layout import coalesce, product
from ..lowering.elementwise import elementwise_lowering
from ..lowering.plan import TEMPORARY, UNUSED, Dispatch, Operand, Plan, Target, reads, writes
from ..spec import FeatureLevel
from .base import define

if TYPE_CHECKING:
    pass

_LINEAR, _ADD, _RANGE = "quantize_linear", "quantized_linear_add", "quantize_range"
_LOCAL_SIZE = 256
_EACH = 16
"""Elements of a range that an invocation should read at least."""
_MAX_GROUPS, _MAX_GROUPS_ON_CPU = 1024, 32
"""Workgroups that read a range: so many fill a device."""


_Slot = tuple[str, TensorDesc]


def _linear(
    target: Target, operation: str, x: _Slot, scale: _Slot, zero: tuple[str, TensorDesc | None],
    y: _Slot, backwards: bool = False,
) -> Plan:
    third = None if zero[1] is None else (zero[0], zero[1])
    return elementwise_lowering(
        target, target.library.get(_LINEAR, operation), [x, scale, third], y,
        guesses=operation == "quantize", backwards=backwards)


def _lower_linear(operation: str) -> Any:
    def lower(desc: Any, target: Target) -> Plan:
        names = ("input_tensor", "scale_tensor", "zero_point_tensor", "output_tensor")
        x, scale, zero, y = ((n, getattr(desc, n)) for n in names)
        return _linear(target, operation, x, scale, zero, y)

    return lower


def _check_quantize(desc: Any, strict: bool) -> None:
    x, scale = desc.input_tensor.data_type, desc.scale_tensor.data_type
    wanted = DataType.FLOAT32 if x is DataType.INT32 else x
    expect(scale is wanted, "DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR", "ScaleTensor.DataType",
           f"be {wanted} for an InputTensor of {x}", scale)


def _newer_linear(desc: Any) -> Iterator[tuple[FeatureLevel, str, str, Any]]:
    if desc.zero_point_tensor is None:
        yield FeatureLevel.FL_6_2, "ZeroPointTensor", "be given", None


ElementWiseQuantizeLinearOperatorDesc = define(
    "ELEMENT_WISE_QUANTIZE_LINEAR", _lower_linear("quantize"), shaders=(_LINEAR,),
    check=_check_quantize, newer=_newer_linear)
ElementWiseDequantizeLinearOperatorDesc = define(
    "ELEMENT_WISE_DEQUANTIZE_LINEAR", _lower_linear("dequantize"), shaders=(_LINEAR,),
    newer=_newer_linear)


_SCALARS = {
    "a_scale": "a_scale_tensor", "a_zero": "a_zero_point_tensor",
    "b_scale": "b_scale_tensor", "b_zero": "b_zero_point_tensor",
    "out_scale": "output_scale_tensor", "out_zero": "output_zero_point_tensor",
}


def _lower_add(desc: Any, target: Target) -> Plan:
    scalars: list[Operand] = []
    for name, slot in _SCALARS.items():
        t = getattr(desc, slot)
        scalars.append(UNUSED if t is None else reads(slot, t, f"{name}_offset"))
    return elementwise_lowering(
        target, target.library.get(_ADD),
        [("a_tensor", desc.a_tensor), ("b_tensor", desc.b_tensor)],
        ("output_tensor", desc.output_tensor),
        spec={f"HAS_{n.upper()}": getattr(desc, slot) is not None
              for n, slot in _SCALARS.items() if n.endswith("zero")},
        more=scalars,
        guesses=True,
    )


def _check_add(desc: Any, strict: bool) -> None:
    _check_shapes("ELEMENT_WISE_QUANTIZED_LINEAR_ADD", desc, ("ATensor", "BTensor"),
                  ("AScaleTensor", "AZeroPointTensor", "BScaleTensor", "BZeroPointTensor",
                   "OutputScaleTensor", "OutputZeroPointTensor"))


def _check_shapes(name: str, desc: Any, full: tuple[str, ...], single: tuple[str, ...]) -> None:
    """The pages imply it: ``full`` tensors have the output's sizes, ``single`` ones one element."""
    entry = {f.name: getattr(desc, f.snake) for f in desc.operator.spec.fields}
    sizes = list(desc.output_tensor.sizes)
    for field in full:
        expect(list(entry[field].sizes) == sizes, "DML_OPERATOR_" + name, f"{field}.Sizes",
               "equal OutputTensor.Sizes", list(entry[field].sizes), sizes)
    for field in single:
        if entry[field] is not None:
            expect(entry[field].element_count == 1, "DML_OPERATOR_" + name, f"{field}.Sizes",
                   "have one element", list(entry[field].sizes))


ElementWiseQuantizedLinearAddOperatorDesc = define(
    "ELEMENT_WISE_QUANTIZED_LINEAR_ADD", _lower_add, shaders=(_ADD,), check=_check_add)


def _lower_dynamic(desc: Any, target: Target) -> Plan:
    """Ranges of parts of the input, the range of all, then the conversion with what it gave."""
    x, y = desc.input_tensor, desc.output_tensor
    scale, zero = desc.output_scale_tensor, desc.output_zero_point_tensor
    sizes, (strides,) = coalesce(x.sizes, x.strides)
    groups = min(-(-product(sizes) // (_LOCAL_SIZE * _EACH)),
                 _MAX_GROUPS_ON_CPU if target.traits.is_cpu else _MAX_GROUPS)

    if product(sizes) + groups * _LOCAL_SIZE > 1 << 32:
        # The next one that an invocation reads would have a number beyond 32 bits.
        raise UnsupportedError(
            f"DYNAMIC_QUANTIZE_LINEAR of {product(sizes)} elements: more than "
            f"{(1 << 32) - groups * _LOCAL_SIZE} are not served")

    def step(name: str, count: int, *operands: Operand) -> Dispatch:
        return Dispatch(
            target.library.get(_RANGE, name), count, operands,
            {"count": product(sizes), "rank": len(sizes), "sizes": sizes, "in_strides": strides},
            {"LOCAL_SIZE": _LOCAL_SIZE, "GROUPS": groups, "IN_TYPE": x.data_type.code,
             "OUT_TYPE": y.data_type.code, "PACKED": strides == (1,)},
        )

    ranges = Operand(TEMPORARY, "ranges_offset", 4, 2 * groups)
    written = Operand(TEMPORARY, "ranges_offset", 4, 2 * groups, writes=True)
    nowhere = (0,) * x.dimension_count
    each_scale, each_zero = (t.replace(sizes=x.sizes, strides=nowhere) for t in (scale, zero))
    last = _linear(target, "quantize", ("input_tensor", x), ("output_scale_tensor", each_scale),
                   ("output_zero_point_tensor", each_zero), ("output_tensor", y),
                   backwards=True)
    return Plan(
        (
            step("partial", groups, reads("input_tensor", x, "in_offset"), written),
            step("final", 1, ranges, writes("output_scale_tensor", scale, "scale_offset"),
                 writes("output_zero_point_tensor", zero, "zero_offset")),
            *last.execute,
        ),
        temporary_bytes=max(-(-8 * groups // 256) * 256, last.temporary_bytes),
    )


def _check_dynamic(desc: Any, strict: bool) -> None:
    _check_shapes("DYNAMIC_QUANTIZE_LINEAR", desc, ("InputTensor",),
                  ("OutputScaleTensor", "OutputZeroPointTensor"))


DynamicQuantizeLinearOperatorDesc = define(
    "DYNAMIC_QUANTIZE_LINEAR", _lower_dynamic, shaders=(_RANGE, _LINEAR), check=_check_dynamic)


# -- the function level
