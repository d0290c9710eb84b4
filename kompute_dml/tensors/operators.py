"""Python's operators on tensors. Each calls NumPy's function for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .attached import NUMPY, UFUNCS

if TYPE_CHECKING:
    from typing_extensions import Self


def _call(name: str, *operands: object, out: object = None) -> Any:
    """Call NumPy's function of this name. NotImplemented if an operand is no array."""
    for x in operands:
        if x is None or isinstance(x, (str, bytes, dict, set, type)):
            return NotImplemented
    return UFUNCS[name](*operands, out=out)


def _compared(name: str, x: object, other: object) -> Any:
    """Whether elements are equal. To what is neither a number nor an array, none is."""
    if other is None or isinstance(other, str):
        return NUMPY["full_like"](x, name == "not_equal", bool)
    return _call(name, x, other)


class Operators:
    """Arithmetic, comparison, bitwise and matrix operators."""

    __slots__ = ()

    def __add__(self, other: object) -> Self: return _call("add", self, other)
    def __radd__(self, other: object) -> Self: return _call("add", other, self)
    def __iadd__(self, other: object) -> Self: return _call("add", self, other, out=self)
    def __sub__(self, other: object) -> Self: return _call("subtract", self, other)
    def __rsub__(self, other: object) -> Self: return _call("subtract", other, self)
    def __isub__(self, other: object) -> Self: return _call("subtract", self, other, out=self)
    def __mul__(self, other: object) -> Self: return _call("multiply", self, other)
    def __rmul__(self, other: object) -> Self: return _call("multiply", other, self)
    def __imul__(self, other: object) -> Self: return _call("multiply", self, other, out=self)
    def __truediv__(self, other: object) -> Self: return _call("divide", self, other)
    def __rtruediv__(self, other: object) -> Self: return _call("divide", other, self)
    def __itruediv__(self, other: object) -> Self: return _call("divide", self, other, out=self)
    def __floordiv__(self, other: object) -> Self: return _call("floor_divide", self, other)
    def __rfloordiv__(self, other: object) -> Self: return _call("floor_divide", other, self)

    def __ifloordiv__(self, other: object) -> Self:
        return _call("floor_divide", self, other, out=self)

    def __mod__(self, other: object) -> Self: return _call("remainder", self, other)
    def __rmod__(self, other: object) -> Self: return _call("remainder", other, self)
    def __imod__(self, other: object) -> Self: return _call("remainder", self, other, out=self)
    def __divmod__(self, other: object) -> tuple[Self, Self]: return self // other, self % other
    def __rdivmod__(self, other: object) -> tuple[Self, Self]: return other // self, other % self
    def __pow__(self, other: object) -> Self: return _call("power", self, other)
    def __rpow__(self, other: object) -> Self: return _call("power", other, self)
    def __ipow__(self, other: object) -> Self: return _call("power", self, other, out=self)
    def __matmul__(self, other: object) -> Self: return _call("matmul", self, other)
    def __rmatmul__(self, other: object) -> Self: return _call("matmul", other, self)
    def __imatmul__(self, other: object) -> Self: return _call("matmul", self, other, out=self)

    def __and__(self, other: object) -> Self: return _call("bitwise_and", self, other)
    def __rand__(self, other: object) -> Self: return _call("bitwise_and", other, self)
    def __iand__(self, other: object) -> Self: return _call("bitwise_and", self, other, out=self)
    def __or__(self, other: object) -> Self: return _call("bitwise_or", self, other)
    def __ror__(self, other: object) -> Self: return _call("bitwise_or", other, self)
    def __ior__(self, other: object) -> Self: return _call("bitwise_or", self, other, out=self)
    def __xor__(self, other: object) -> Self: return _call("bitwise_xor", self, other)
    def __rxor__(self, other: object) -> Self: return _call("bitwise_xor", other, self)
    def __ixor__(self, other: object) -> Self: return _call("bitwise_xor", self, other, out=self)
    def __lshift__(self, other: object) -> Self: return _call("left_shift", self, other)
    def __rlshift__(self, other: object) -> Self: return _call("left_shift", other, self)
    def __ilshift__(self, other: object) -> Self: return _call("left_shift", self, other, out=self)
    def __rshift__(self, other: object) -> Self: return _call("right_shift", self, other)
    def __rrshift__(self, other: object) -> Self: return _call("right_shift", other, self)
    def __irshift__(self, other: object) -> Self: return _call("right_shift", self, other, out=self)

    def __neg__(self) -> Self: return _call("negative", self)
    def __pos__(self) -> Self: return _call("positive", self)
    def __abs__(self) -> Self: return _call("absolute", self)
    def __invert__(self) -> Self: return _call("invert", self)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return _compared("equal", self, other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return _compared("not_equal", self, other)

    def __lt__(self, other: object) -> Self: return _call("less", self, other)
    def __le__(self, other: object) -> Self: return _call("less_equal", self, other)
    def __gt__(self, other: object) -> Self: return _call("greater", self, other)
    def __ge__(self, other: object) -> Self: return _call("greater_equal", self, other)

    __hash__ = object.__hash__  # sets and dictionaries compare tensors by identity

    def __contains__(self, value: object) -> bool:
        equal: Any = self == value
        return equal is not False and bool(np.asarray(equal).any())
