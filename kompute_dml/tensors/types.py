"""Element types by NumPy's names, and their promotion."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import TYPE_CHECKING, Any, TypeGuard, Union

import numpy as np
from numpy.typing import ArrayLike

from ..dtypes import BOOL as BOOL
from ..dtypes import DataType
from ..dtypes import element_type as element_type
from ..errors import UnsupportedError, ValidationError

if TYPE_CHECKING:
    from . import Tensor

TensorLike = Union["Tensor", ArrayLike]
DataTypeLike = Union[DataType, str, type, "np.dtype[Any]"]
DType = np.dtype  # bool stands for truth values, bytes of 0 and 1 on the device

FLOAT32, FLOAT64 = np.dtype("float32"), np.dtype("float64")

float16, float32, float64 = np.float16, np.float32, np.float64
int8, int16, int32, int64 = np.int8, np.int16, np.int32, np.int64
uint8, uint16, uint32, uint64 = np.uint8, np.uint16, np.uint32, np.uint64
bool_ = np.bool_


@functools.cache  # NumPy's comparisons of types are slow
def device_type(dtype: DType[np.generic]) -> DataType:
    """The data type of such elements on a device: UINT8 for bool, else the same type."""
    return DataType.UINT8 if dtype == BOOL else DataType.of(dtype)


def is_number(value: object) -> TypeGuard[bool | int | float | np.number | np.bool_]:
    """Whether it is a number of Python's or NumPy's. Its type is weak: it takes the type of the
    other operand, as a Python number does in NEP 50."""
    return isinstance(value, (bool, int, float, np.number, np.bool_))


def python_number(value: Any) -> Any:
    """A number of NumPy's as one of Python's. NumPy hands its scalars over as arrays without
    dimensions at times."""
    scalar = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim)
    return value.item() if scalar and value.dtype.kind in "biuf" else value


def frames_inside() -> int:
    """``stacklevel`` of a warning that the caller issues, so that it names the line which called
    this package."""
    frame, count = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        frame, count = frame.f_back, count + 1
    return max(count, 1)


_PACKAGE = __name__.partition(".")[0]
_warned = False


def without_float64() -> DType[Any]:
    """FLOAT32, the type in which FLOAT64 operands are computed. Warns once in each process."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn("DirectML does not compute in FLOAT64: such operands become FLOAT32 (this is "
                      "said once)", RuntimeWarning, stacklevel=frames_inside())
    return FLOAT32


def dtype_of(value: object) -> DType[Any]:
    """The type of the elements of a tensor or an array."""
    kind = getattr(value, "dtype", None)
    return kind if isinstance(kind, np.dtype) else host_array(value).dtype


def host_array(value: object) -> np.ndarray:
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


def promoted(name: str, *values: object) -> DType[Any]:
    """The type that NumPy 2 computes with for these operands (NEP 50), with FLOAT32 for every
    float64. Numbers of NumPy's are as weak as those of Python's."""
    strong = [dtype_of(v) for v in values if not is_number(v)]
    numbers = [python_number(v) for v in values if is_number(v)]
    if FLOAT64 in strong:
        without_float64()
        strong = [FLOAT32 if t == FLOAT64 else t for t in strong]
    if not strong:
        strong = [np.dtype(np.result_type(*map(type, numbers)))]
        return FLOAT32 if strong[0] == FLOAT64 else strong[0]
    try:
        common: DType[Any] = np.dtype(np.result_type(*strong))
    except TypeError as error:
        raise ValidationError(f"{name}: expected types that promote, but {error}") from None
    if any(isinstance(v, float) for v in numbers) and common.kind != "f":
        return FLOAT32  # DirectML has no arithmetic in float64, NumPy's default
    if common == BOOL and not all(isinstance(v, bool) for v in numbers):
        return np.dtype(np.int64)
    if common == FLOAT64:
        if all(t.kind in "iu" for t in strong):
            raise UnsupportedError(
                f"{name}: expected integers of types that a common integer type holds, but got "
                f"{' and '.join(map(str, strong))}; x.astype('int64') converts")
        return FLOAT32
    return common


def computable(name: str, dtype: DType[np.generic]) -> DType[Any]:
    """``dtype``, which the caller chose and must be one that DirectML computes with."""
    if dtype == FLOAT64:
        raise UnsupportedError(
            f"{name}: expected a type that DirectML computes with, but got FLOAT64, which it only "
            "moves; tensor.astype('float32') or array.astype('float32') converts")
    return dtype


def floating(name: str, dtype: DType[np.generic]) -> DType[Any]:
    """The float type in which NumPy computes a function of ``dtype``; float32 instead of a float64
    that no operand has."""
    if dtype.kind == "f":
        return without_float64() if dtype == FLOAT64 else dtype
    if dtype.kind not in "biu":
        raise UnsupportedError(f"{name}: expected numbers, but got {dtype}")
    return np.dtype("float16") if dtype.itemsize == 1 else FLOAT32
