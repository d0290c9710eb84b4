"""NumPy's universal functions, computed by DirectML's operators."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..attributes import RoundingMode
from ..dtypes import DataType
from ..errors import UnsupportedError, ValidationError, expect
from ..functions import functions as directml
from ..functions.call import device_of
from ..names import OURS
from ..tensors import Tensor
from ..tensors.attached import UFUNCS
from ..tensors.types import (
    BOOL,
    DataTypeLike,
    DType,
    TensorLike,
    computable,
    element_type,
    floating,
    frames_inside,
    host_array,
    is_number,
    promoted,
    python_number,
)
from .matmul import matmul
from .operand import (
    as_tensor,
    as_truth,
    cast,
    computed,
    constant,
    copied,
    dml,
    is_expression,
    meets,
    operand,
    result,
    store,
)
from .registry import publish

Compute = Callable[..., Tensor]


def define(name: str, inputs: int, compute: Callable[..., Any], about: str = "") -> None:
    """Define a ufunc by ``compute(name, operands, dtype, out)``."""
    places = ["x"] if inputs == 1 else ["a", "b"]

    def call(*operands: object, out: Any = None, dtype: DataTypeLike | None = None) -> Tensor:
        if len(operands) != inputs:
            raise TypeError(f"{name}() takes {inputs} operands, but {len(operands)} were given")
        if isinstance(out, tuple):
            (out,) = out
        for place, value in zip(places, operands):
            if value is None:
                raise ValidationError(
                    f"{name}, {place}: expected a tensor or an array, but got None")
        kind = None if dtype is None else element_type(dtype)
        operands = tuple(map(python_number, operands))
        y = compute(name, operands, kind, out)
        return y if y is out else result(name, y, out)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "kompute_dml"
    call.__doc__ = about or f"numpy.{name}, on the device."
    call.__signature__ = _signature(places)  # type: ignore[attr-defined]
    UFUNCS[name] = call
    publish(name, _either(name, inputs, call) if name in directml() else call)


def _either(name: str, inputs: int, numpys: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """NumPy's function, or DirectML's of the same name where operands are passed by name or its own
    arguments are used."""
    directmls = directml()[name]

    def call(*operands: object, **options: object) -> Tensor:
        numpy_like = len(operands) == inputs and not options.keys() - {"out", "dtype"}
        return (numpys if numpy_like else directmls)(*operands, **options)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "kompute_dml"
    call.__doc__ = (f"numpy.{name}. Types promote as those of operators do. With operands by name "
                    f"or its own arguments, DirectML's function:\n\n{directmls.__doc__}")
    call.__signature__ = inspect.signature(directmls)  # type: ignore[attr-defined]
    return call


def _signature(inputs: list[str]) -> inspect.Signature:
    place = inspect.Parameter
    return inspect.Signature(
        [*(place(n, place.POSITIONAL_ONLY, annotation="TensorLike") for n in inputs),
         place("out", place.KEYWORD_ONLY, default=None, annotation="Tensor | None"),
         place("dtype", place.KEYWORD_ONLY, default=None, annotation="DataTypeLike | None")],
        return_annotation="Tensor")


def _operands(values: Sequence[object], dtype: DType[np.generic]) -> list[Any]:
    """The operands as elements of ``dtype``. At least one is a tensor."""
    device = device_of(*values)
    if all(is_number(v) for v in values):
        first = constant(np.asarray(values[0], dtype), device)
        return [first, *(operand(v, dtype, device) for v in values[1:])]
    return [operand(v, dtype, device) for v in values]


def _into(
    out: object, dtype: DType[np.generic], function: str, tensors: Sequence[object],
    **options: object
) -> Tensor:
    """Call the function level's ``function``, directly into ``out`` if that has its sizes and
    type."""
    fits = (isinstance(out, Tensor) and out.dtype == dtype and not meets(out, *tensors)
            and not out.desc.overlaps_itself
            and out.sizes == np.broadcast_shapes(*(getattr(t, "sizes", ()) for t in tensors)))
    return dml(function)(*tensors, out=out if fits else None, **options)


def _arithmetic(function: str, of_truth: str | None = None) -> Compute:
    """Functions whose operands and result have one type."""

    def compute(
        name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
    ) -> Tensor:
        dtype = computable(name, dtype or promoted(name, *values))
        tensors = _operands(values, dtype)
        if dtype != BOOL:
            return _into(out, dtype, function, tensors)
        if of_truth is None:
            raise UnsupportedError(f"{name}: expected numbers, but got truth values, of which "
                                   "NumPy has none either; use ^ or ~")
        return as_truth(dml(of_truth)(*_all_tensors(tensors)))

    return compute


def _tensor(value: object, beside: Sequence[object]) -> Tensor:
    """An operand as a tensor, which nothing may write."""
    if isinstance(value, Tensor):
        return value
    return constant(host_array(value), device_of(*beside))


def _all_tensors(operands: list[object]) -> list[Tensor]:
    device = device_of(*operands)
    return [v if isinstance(v, Tensor) else constant(np.asarray(v), device) for v in operands]


def _divide(
    name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
) -> Tensor:
    dtype = dtype or promoted(name, *values)
    if dtype.kind != "f":
        dtype = np.dtype("float32")  # NumPy's is float64
    return _into(out, dtype, "divide", _operands(values, computable(name, dtype)))


def _remainder(function: str) -> Compute:
    """Remainders. That of a division of integers by 0 is 0, as in NumPy."""

    def compute(
        name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
    ) -> Tensor:
        dtype = computable(name, dtype or promoted(name, *values))
        if dtype == BOOL:
            dtype = np.dtype("int8")
        a, b = _operands(values, dtype)
        if dtype.kind == "f":
            return _into(out, dtype, function, [a, b])
        if isinstance(b, Tensor):
            return _unless_zero(b, dml(function)(a, b))
        if b == 0:
            return _of_no_division(name, a)
        return _into(out, dtype, function, [a, b])

    return compute


def _of_no_division(name: str, a: Tensor) -> Tensor:
    """What NumPy gives for integers over the number 0."""
    warnings.warn(f"divide by zero encountered in {name}", RuntimeWarning,
                  stacklevel=frames_inside())
    return cast(zeros_of(a.shape, a), a.dtype)


def zeros_of(shape: Sequence[int], like: Tensor) -> Tensor:
    """Zeros of this shape, with the type and on the device of ``like``."""
    return store(like.device.empty(shape, like.data_type), 0)


def _unless_zero(b: Tensor, y: Tensor) -> Tensor:
    """``y``, but 0 where the divisor is 0."""
    zero = dml("logical_equals")(b, 0).broadcast_to(y.shape)
    return dml("if_")(zero, zeros_of((), y).broadcast_to(y.shape), y)


def _floor_divide(
    name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
) -> Tensor:
    dtype = computable(name, dtype or promoted(name, *values))
    if dtype == BOOL:
        dtype = np.dtype("int8")
    a, b = _operands(values, dtype)
    if dtype.kind != "f" and not isinstance(b, Tensor) and b == 0:
        return _of_no_division(name, a)
    rest = dml("modulus_floor")(a, b)
    quotient = dml("divide")(dml("subtract")(a, rest), b)
    if dtype.kind != "f":
        return _unless_zero(b, quotient) if isinstance(b, Tensor) else quotient
    # As in NumPy, the result of a division by 0 is the quotient.
    whole = dml("round")(quotient)
    return dml("if_")(dml("logical_equals")(b, 0.0) if isinstance(b, Tensor) else np.uint8(b == 0),
                      dml("divide")(a, b), whole)


def _power(
    name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
) -> Tensor:
    dtype = computable(name, dtype or promoted(name, *values))
    if dtype == BOOL:
        dtype = np.dtype("int8")
    exponent = values[1]
    if dtype.kind != "f" and is_number(exponent):
        expect(exponent >= 0, name, "the exponent of integers",
               "be at least 0 (x.astype('float32') takes others)", exponent)
    if is_number(exponent):
        (base,) = _operands(values[:1], dtype)
        base = as_tensor(base)
        if exponent == 2:
            return _into(out, dtype, "multiply", [base, base])
        if exponent == 0.5 and dtype.kind == "f":
            return _into(out, dtype, "sqrt", [base])
        if dtype.kind == "f":
            return dml("constant_pow")(base, float(exponent))
        if exponent == 1:
            return copied(base)
        if dtype.itemsize == 8:  # POW has no 64-bit type
            return _by_squaring(base, int(exponent))
        return _into(out, dtype, "pow", [base, operand(exponent, dtype, base.device)])
    if dtype.kind != "f" and dtype.itemsize == 8:
        base, by = (v if isinstance(v, Tensor) else constant(
            np.asarray(v, dtype), device_of(*values)) for v in _operands(values, dtype))
        return _powers(name, base, by)
    return _into(out, dtype, "pow", _operands(values, dtype))


def _powers(name: str, base: Tensor, exponents: Tensor) -> Tensor:
    """64-bit powers, a bit of the exponents after the other. The largest exponent is read to know
    how many bits there are; a graph takes all."""
    base, exponents = (t.broadcast_to(np.broadcast_shapes(base.shape, exponents.shape))
                       for t in (base, exponents))
    bits = 63
    if not is_expression(exponents) and exponents.size:
        host = exponents.numpy()
        expect(host.min() >= 0, name, "the exponents of integers",
               "be at least 0 (x.astype('float32') takes others)", host.min())
        bits = int(host.max()).bit_length()
    unsigned = exponents.data_type.unsigned
    left = exponents.viewed_as(unsigned)
    y = store(base.device.empty(base.shape, base.data_type), 1)
    for bit in range(bits):
        has = dml("cast")(dml("bit_and")(dml("bit_shift_right")(left, bit), 1), DataType.UINT8)
        y = dml("if_")(has, dml("multiply")(y, base), y)
        if bit < bits - 1:
            base = dml("multiply")(base, base)
    return y


def _by_squaring(base: Tensor, exponent: int) -> Tensor:
    if exponent == 0:
        return dml("fill_value_constant")(base.sizes, value=1, data_type=base.data_type)
    if exponent == 1:
        return base
    half = _by_squaring(dml("multiply")(base, base), exponent // 2)
    return dml("multiply")(half, base) if exponent % 2 else half


def _comparison(function: str, inverse: bool = False) -> Compute:
    def compute(
        name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: object
    ) -> Tensor:
        kind = computable(name, promoted(name, *values))
        for v in values:
            if kind.kind in "iu" and isinstance(v, int):
                limits = np.iinfo(kind)
                if not limits.min <= v <= limits.max:
                    kind = np.dtype(np.int64)  # as NumPy, for numbers that the type cannot hold
        tensors = _operands(values, kind)
        tensors = _all_tensors(tensors) if kind == BOOL else tensors
        y = dml(function)(*tensors)
        return as_truth(dml("logical_not")(y) if inverse else y)

    return compute


def _logical(function: str) -> Compute:
    """Functions of whether the operands are not 0."""

    def compute(
        name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
    ) -> Tensor:
        return as_truth(dml(function)(*(cast(_tensor(v, values), BOOL) for v in values)))

    return compute


def _bits(function: str, of_truth: str) -> Compute:
    def compute(
        name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
    ) -> Tensor:
        dtype = dtype or promoted(name, *values)
        if dtype.kind == "f":
            raise UnsupportedError(f"{name}: expected integers or truth values, but got {dtype}; "
                                   f"kompute_dml.{function} takes the bits of floats")
        tensors = _operands(values, dtype)
        if dtype == BOOL:
            return as_truth(dml(of_truth)(*_all_tensors(tensors)))
        return _into(out, dtype, function, tensors)

    return compute


def _shift(function: str) -> Compute:
    """DirectML shifts unsigned numbers. Left shifts of signed numbers give the same bits. For right
    shifts, negative numbers are complemented before and after."""

    def compute(
        name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: object
    ) -> Tensor:
        dtype = dtype or promoted(name, *values)
        if dtype == BOOL:
            dtype = np.dtype("int8")
        if dtype.kind == "f":
            raise UnsupportedError(f"{name}: expected integers, but got {dtype}")
        a, b = (v if isinstance(v, Tensor) else constant(np.asarray(v, dtype), device_of(*values))
                for v in _operands(values, dtype))
        kind, unsigned = a.data_type, a.data_type.unsigned
        by = b.viewed_as(unsigned)
        if dtype.kind == "u" or name == "left_shift":
            return dml(function)(a.viewed_as(unsigned), by).viewed_as(kind)
        negative = dml("logical_less_than")(a, 0)
        bits = a.viewed_as(unsigned)
        shifted = dml(function)(dml("if_")(negative, dml("bit_not")(bits), bits), by)
        return dml("if_")(negative, dml("bit_not")(shifted), shifted).viewed_as(kind)

    return compute


def _float(function: str) -> Compute:
    """Functions of floats. Integers are converted as in NumPy."""

    def compute(
        name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
    ) -> Tensor:
        tensors = [_tensor(v, values) for v in values]
        dtype = dtype or floating(name, promoted(name, *values) if len(values) > 1
                                  else tensors[0].dtype)
        return _into(out, dtype, function, [cast(x, computable(name, dtype)) for x in tensors])

    return compute


def _whole(function: str, **options: object) -> Compute:
    """Functions that round. Integers stay as they are."""

    def compute(
        name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
    ) -> Tensor:
        x = computed(*values)
        if x.dtype.kind != "f":
            return copied(x)
        return _into(out, computable(name, x.dtype), function, [x], **options)

    return compute


def _signed(function: str) -> Compute:
    """Functions of signed numbers. Unsigned ones are computed in another way."""

    def compute(
        name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
    ) -> Tensor:
        x = computed(*values)
        if x.dtype == BOOL:
            if name != "absolute":
                raise UnsupportedError(f"{name}: expected numbers, but got truth values; use ~")
            return copied(x)
        if x.dtype.kind == "u":
            return copied(x) if name != "negative" else dml("subtract")(0, x)
        return _into(out, computable(name, x.dtype), function, [x])

    return compute


def _test(
    name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
) -> Tensor:
    """isnan, isinf, isfinite."""
    x = computed(*values)
    if x.dtype.kind != "f":
        y = dml("fill_value_constant")(x.sizes, value=int(name == "isfinite"), data_type="uint8")
        return as_truth(y)
    computable(name, x.dtype)
    if name == "isfinite":
        return as_truth(dml("logical_not")(dml("logical_or")(dml("is_nan")(x),
                                                             dml("is_infinity")(x))))
    return as_truth(dml(OURS[name])(x))


def _square(
    name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
) -> Tensor:
    x = computed(values[0])
    return UFUNCS["multiply"](*[cast(x, np.dtype("int8")) if x.truth else x] * 2, dtype=dtype)


def _positive(
    name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
) -> Tensor:
    return copied(as_tensor(*values))


def _degrees(factor: float) -> Compute:
    def compute(
        name: str, values: Sequence[object], dtype: DType[np.generic] | None, out: Tensor | None
    ) -> Tensor:
        x = computed(*values)
        return dml("multiply")(cast(x, floating(name, x.dtype)), factor)

    return compute


def _matmul(
    name: str, values: Sequence[TensorLike], dtype: DType[np.generic] | None, out: Tensor | None
) -> Tensor:
    return matmul(*values)


_ALIKE: dict[Callable[[str], Compute], str] = {
    _float: "fabs reciprocal exp log sqrt sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh "
            "arccosh arctanh arctan2",
    _arithmetic: "subtract sign",
    _remainder: "remainder mod fmod",
    _comparison: "equal less less_equal greater greater_equal",
    _logical: "logical_and logical_or logical_xor logical_not",
    _shift: "left_shift right_shift",
    _signed: "negative absolute",
    _whole: "floor ceil rint",
}
"""What computes ufuncs by the functions that the record names."""

for _name, _compute in {
    **{name: of(OURS[name]) for of, names in _ALIKE.items() for name in names.split()},
    "add": _arithmetic(OURS["add"], "logical_or"),
    "multiply": _arithmetic(OURS["multiply"], "logical_and"),
    "maximum": _arithmetic(OURS["maximum"], "logical_or"),
    "minimum": _arithmetic(OURS["minimum"], "logical_and"),
    "divide": _divide,
    "true_divide": _divide,
    "floor_divide": _floor_divide,
    "power": _power,
    "matmul": _matmul,
    "not_equal": _comparison(OURS["equal"], inverse=True),
    "bitwise_and": _bits(OURS["bitwise_and"], "logical_and"),
    "bitwise_or": _bits(OURS["bitwise_or"], "logical_or"),
    "bitwise_xor": _bits(OURS["bitwise_xor"], "logical_xor"),
    "invert": _bits(OURS["invert"], "logical_not"),
    "positive": _positive,
    "conjugate": _positive,
    "square": _square,
    "isnan": _test,
    "isinf": _test,
    "isfinite": _test,
    "trunc": _whole("round", rounding_mode=RoundingMode.TOWARD_ZERO),
    "deg2rad": _degrees(math.pi / 180),
    "radians": _degrees(math.pi / 180),
    "rad2deg": _degrees(180 / math.pi),
    "degrees": _degrees(180 / math.pi),
}.items():
    define(_name, getattr(np, _name).nin, _compute)
