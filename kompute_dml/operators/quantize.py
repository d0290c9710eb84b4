"""Quantization: to and from integers by a scale and a zero point, and sums of such tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import UnsupportedError, expect, whole
from ..layout import coalesce, product
from ..spec import FeatureLevel
from .base import define, function
from .broadcasting import broadcast
from .call import as_tensor, device_of, output, run, whole_numbers
from .frame import frame
from .plan import TEMPORARY, UNUSED, Dispatch, Operand, Plan, Target, reads, writes

if TYPE_CHECKING:
    from ..tensor import Tensor

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
    return frame(target, target.library.get(_LINEAR, operation), [x, scale, third], y,
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
    return frame(
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
                 _MAX_GROUPS_ON_CPU if target.adapter.is_cpu else _MAX_GROUPS)

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


def _axis(name: str, axis: int | None, x: Tensor) -> int | None:
    """``axis``, if ``x`` has it."""
    if axis is not None:
        axis = whole(name, "axis", axis)
        expect(-x.ndim <= axis < x.ndim, name, "axis",
               f"be in [{-x.ndim}, {x.ndim}) (x has {x.ndim} dimensions)", axis)
    return axis


def _along(axis: int | None, value: Tensor, x: Tensor) -> Tensor:
    """A vector of scales or zero points along ``axis``; anything else broadcasts as in NumPy."""
    if axis is not None and value.ndim == 1 and value.size > 1:
        sizes = [1] * x.ndim
        sizes[axis] = value.size
        value = value.reshape(sizes)
    return value


@function
def quantize_linear(
    x: Any, scale: Any, zero_point: Any = None, *, axis: int | None = None,
    data_type: Any = None, out: Tensor | None = None,
) -> Tensor:
    """``clamp(round(x / scale) + zero_point)`` (DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC).

    ``x`` is FLOAT32, FLOAT16 or INT32 of 1 to 8 dimensions, ``scale`` of its type (FLOAT32 for
    INT32), the result INT8 or UINT8 as ``data_type`` says, else as ``zero_point`` is, else UINT8.
    Halves round to even. ``scale`` and ``zero_point`` broadcast as in NumPy; vectors lie along
    ``axis``. Raises ValidationError or UnsupportedError.
    """
    name, device = "quantize_linear", device_of(x, scale, zero_point, out)
    x = as_tensor(device, name, "x", x)
    at = _axis(name, axis, x)
    scale_type = DataType.FLOAT32 if x.data_type is DataType.INT32 else x.data_type
    scale = _along(at, as_tensor(device, name, "scale", scale, scale_type), x)
    if zero_point is not None:
        data_type = DataType.of(data_type or getattr(zero_point, "dtype", "uint8"))
        zero_point = _along(
            at, whole_numbers(device, name, "zero_point", zero_point, data_type), x)
    y = output(device, out, name, x.sizes, DataType.of(data_type or "uint8"))
    scale, zero_point = (None if t is None else _spread(name, t, x) for t in (scale, zero_point))
    run(ElementWiseQuantizeLinearOperatorDesc, device, {
        "input_tensor": x, "scale_tensor": scale, "zero_point_tensor": zero_point,
        "output_tensor": y})
    return y


@function
def dequantize_linear(
    x: Any, scale: Any, zero_point: Any = None, *, axis: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``(x - zero_point) * scale`` (DML_ELEMENT_WISE_DEQUANTIZE_LINEAR_OPERATOR_DESC).

    ``x`` and ``zero_point`` have one integer type of 8, 16 or 32 bits, ``scale`` and the result are
    FLOAT32 or FLOAT16. ``scale`` and ``zero_point`` broadcast as in NumPy; vectors lie along
    ``axis``. Raises ValidationError or UnsupportedError.
    """
    name, device = "dequantize_linear", device_of(x, scale, zero_point, out)
    x = as_tensor(device, name, "x", x)
    at = _axis(name, axis, x)
    scale_type = "float32" if isinstance(scale, float) else None
    scale = _along(at, as_tensor(device, name, "scale", scale, scale_type), x)
    if zero_point is not None:
        zero_point = _along(
            at, whole_numbers(device, name, "zero_point", zero_point, x.data_type), x)
    y = output(device, out, name, x.sizes, scale.data_type)
    scale, zero_point = (None if t is None else _spread(name, t, x) for t in (scale, zero_point))
    run(ElementWiseDequantizeLinearOperatorDesc, device, {
        "input_tensor": x, "scale_tensor": scale, "zero_point_tensor": zero_point,
        "output_tensor": y})
    return y


def _spread(name: str, value: Tensor, x: Tensor) -> Tensor:
    return broadcast(name, [x, value])[1]


@function
def quantized_linear_add(
    a: Any, a_scale: Any, a_zero_point: Any, b: Any, b_scale: Any, b_zero_point: Any,
    output_scale: Any, output_zero_point: Any = None, *, data_type: Any = None,
    out: Tensor | None = None,
) -> Tensor:
    """A quantized sum (DML_ELEMENT_WISE_QUANTIZED_LINEAR_ADD_OPERATOR_DESC).

    ``a`` and ``b`` are INT8 or UINT8 and broadcast as in NumPy; each has one scale and one zero
    point (None for 0), and so has the result, which is of ``output_zero_point``'s type, or
    ``data_type``, or that of ``a``. Raises ValidationError or UnsupportedError.
    """
    name = "quantized_linear_add"
    device = device_of(a, a_scale, a_zero_point, b, b_scale, b_zero_point, output_scale,
                       output_zero_point, out)
    a, b = broadcast(name, [as_tensor(device, name, "a", a), as_tensor(device, name, "b", b)])
    kind = DataType.of(data_type or getattr(output_zero_point, "dtype", a.data_type))

    def single(value: Any, kind: DataType) -> Tensor | None:
        if value is None:
            return None
        t = (as_tensor(device, name, "every scale", value, kind) if kind.is_float
             else whole_numbers(device, name, "every zero point", value, kind))
        expect(t.size == 1, name, "every scale and zero point", "have one element", list(t.sizes))
        return t.reshape([1] * a.ndim)

    y = output(device, out, name, a.sizes, kind)
    run(ElementWiseQuantizedLinearAddOperatorDesc, device, {
        "a_tensor": a, "a_scale_tensor": single(a_scale, DataType.FLOAT32),
        "a_zero_point_tensor": single(a_zero_point, a.data_type),
        "b_tensor": b, "b_scale_tensor": single(b_scale, DataType.FLOAT32),
        "b_zero_point_tensor": single(b_zero_point, b.data_type),
        "output_scale_tensor": single(output_scale, DataType.FLOAT32),
        "output_zero_point_tensor": single(output_zero_point, kind), "output_tensor": y})
    return y


@function
def dynamic_quantize_linear(
    x: Any, *, data_type: Any = "uint8", out: tuple[Tensor, Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """``x`` quantized by its own range (DML_DYNAMIC_QUANTIZE_LINEAR_OPERATOR_DESC).

    Returns the quantized tensor, its scale and its zero point (one element each). The range always
    holds 0; a tensor of zeros has scale 1. ``x`` is FLOAT32 or FLOAT16, the result UINT8 or INT8.
    ``out`` is a tuple of the three. Raises ValidationError or UnsupportedError.
    """
    name = "dynamic_quantize_linear"
    given = (None, None, None) if out is None else out
    expect(isinstance(given, (tuple, list)) and len(given) == 3, name, "out",
           "be a tuple of three tensors", out)
    device = device_of(x, *given)
    x = as_tensor(device, name, "x", x)
    kind, ones = DataType.of(data_type), (1,) * x.ndim
    y = output(device, given[0], name, x.sizes, kind)
    scale = output(device, given[1], name, ones, DataType.FLOAT32)
    zero = output(device, given[2], name, ones, kind)
    run(DynamicQuantizeLinearOperatorDesc, device, {
        "input_tensor": x, "output_tensor": y, "output_scale_tensor": scale,
        "output_zero_point_tensor": zero})
    return y, scale, zero
