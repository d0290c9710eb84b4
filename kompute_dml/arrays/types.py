"""Element types by NumPy's names, and their promotion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import ArrayLike

from ..dtypes import DataType
from ..errors import UnsupportedError, ValidationError

if TYPE_CHECKING:
    from ..tensors import Tensor

TensorLike = Union["Tensor", ArrayLike]
DataTypeLike = Union[DataType, str, type, "np.dtype[Any]"]
DType = np.dtype  # bool stands for truth values, bytes of 0 and 1 on the device

BOOL = np.dtype(bool)
FLOAT32, FLOAT64 = np.dtype("float32"), np.dtype("float64")

float16, float32, float64 = np.float16, np.float32, np.float64
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
bool_ = np.bool_


def element_type(value: Any) -> DType[Any]:
    """The element type of a name, a type or a DataType."""
    if value is not None and not isinstance(value, DataType):
        try:
            if np.dtype(value) == BOOL:
                return BOOL
        except TypeError:
            pass
    return DataType.of(value).dtype


def device_type(dtype: DType[Any]) -> DataType:
    """The data type of such elements on a device."""
    return DataType.UINT8 if dtype == BOOL else DataType.of(dtype)


def is_number(value: Any) -> bool:
    """Whether it is a Python number. Its type is weak: it takes the type of the other operand.

    numpy.float64 is a subclass of float and counts as one.
    """
    return isinstance(value, (bool, int, float))


def dtype_of(value: Any) -> DType[Any]:
    """The type of the elements of a tensor or an array."""
    found = getattr(value, "dtype", None)
    return found if isinstance(found, np.dtype) else host_array(value).dtype


def host_array(value: Any) -> np.ndarray:
    """A NumPy array. Python floats, alone and in lists, become float32, as DirectML does not
    compute with float64."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValidationError(f"expected what NumPy makes an array of, but got "
                              f"{type(value).__name__}: {error}") from None
    if array.dtype == np.float64 and isinstance(value, (list, tuple, int, float)):
        return array.astype(np.float32)
    return array


def promoted(name: str, *values: Any) -> DType[Any]:
    """The type that NumPy 2 computes with for these operands.

    Where that is float64 though no operand is, as for int32 beside 0.5, it is float32.
    """
    strong = [dtype_of(v) for v in values if not is_number(v)]
    numbers = [v for v in values if is_number(v)]
    if not strong:
        strong = [np.dtype(np.result_type(*map(type, numbers)))]
        return FLOAT32 if strong[0] == FLOAT64 else strong[0]
    try:
        found: DType[Any] = np.dtype(np.result_type(*strong))
    except TypeError as error:
        raise ValidationError(f"{name}: expected types that promote, but {error}") from None
    if any(isinstance(v, float) for v in numbers) and found.kind != "f":
        return FLOAT32  # DirectML has no arithmetic in float64, NumPy's default
    if found == BOOL and not all(isinstance(v, bool) for v in numbers):
        return np.dtype(np.int64)
    if found == FLOAT64 and FLOAT64 not in strong:
        if all(t.kind in "iu" for t in strong):
            raise UnsupportedError(
                f"{name}: expected integers of types that a common integer type holds, but got "
                f"{' and '.join(map(str, strong))}; x.astype('int64') converts")
        return FLOAT32
    return found


def computable(name: str, dtype: DType[Any]) -> DType[Any]:
    """``dtype``, which must be one that DirectML computes with."""
    if dtype == FLOAT64:
        raise UnsupportedError(
            f"{name}: expected a type that DirectML computes with, but got FLOAT64, which it only "
            "moves; tensor.astype('float32') or array.astype('float32') converts")
    return dtype


def floating(name: str, dtype: DType[Any]) -> DType[Any]:
    """The float type in which NumPy computes a function of ``dtype``; float32 instead of a float64
    that no operand has."""
    if dtype.kind == "f":
        return computable(name, dtype)
    if dtype.kind not in "biu":
        raise UnsupportedError(f"{name}: expected numbers, but got {dtype}")
    return np.dtype("float16") if dtype.itemsize == 1 else FLOAT32
