"""DirectML's data types and their NumPy counterparts."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import UnsupportedError, ValidationError


class DataType(enum.Enum):
    """DML_TENSOR_DATA_TYPE, without its prefix. The value is DirectML's."""

    FLOAT32 = 1
    FLOAT16 = 2
    UINT32 = 3
    UINT16 = 4
    UINT8 = 5
    INT32 = 6
    INT16 = 7
    INT8 = 8
    FLOAT64 = 9
    UINT64 = 10
    INT64 = 11
    UINT4 = 12
    INT4 = 13

    def __init__(self, _value: int) -> None:
        self._kind = self.name[0].lower()
        self._bits = int(self.name.lstrip("FLOATUIN"))
        self._itemsize = max(self._bits // 8, 1)
        self._dtype = np.dtype(self.name.lower()) if self._bits >= 8 else None

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy data type of one element. For types of 4 bits it comes from ml_dtypes."""
        return _narrow(self.name.lower()) if self._dtype is None else self._dtype

    @property
    def itemsize(self) -> int:
        """Bytes of one element; 1 for types of 4 bits, although two share a byte."""
        return self._itemsize

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return self._bits

    @property
    def is_float(self) -> bool:
        """Whether it is FLOAT16, FLOAT32 or FLOAT64."""
        return self._kind == "f"

    @property
    def is_signed(self) -> bool:
        """Whether it has negative numbers."""
        return self._kind != "u"

    @property
    def family(self) -> str:
        """Kind and width as in shader names: ``f32``, ``i8``, ``u64``."""
        return f"{self._kind}{self._bits}"

    @property
    def code(self) -> int:
        """The shaders' code: the number of bytes, + 16 if a signed integer, + 32 if floating
        point."""
        return self.itemsize + {"u": 0, "i": 16, "f": 32}[self._kind]

    @property
    def unsigned(self) -> DataType:
        """The unsigned integer type of this width."""
        return DataType[f"UINT{self._bits}"]

    @property
    def width(self) -> str:
        """The width, for shaders that only move bits: ``b8`` to ``b64``."""
        return f"b{self._bits}"

    def nbytes(self, elements: int) -> int:
        """Bytes of so many contiguous elements."""
        return (elements * self._bits + 7) // 8

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    @classmethod
    def of(cls, value: Any) -> DataType:
        """The data type of a DirectML name, a NumPy name, dtype or scalar type."""
        if isinstance(value, cls):
            return value
        if isinstance(value, np.dtype) and value in _BY_DTYPE:
            return _BY_DTYPE[value]
        if isinstance(value, str):
            name = value.upper().removeprefix("DML_TENSOR_DATA_TYPE_")
            if name in cls.__members__:
                return cls[name]
        try:
            if value is not None:  # NumPy takes None for float64
                return cls[np.dtype(value).name.upper()]
        except (TypeError, KeyError):
            pass
        names = ", ".join(cls.__members__)
        hint = "; kompute_dml.fft.pairs(x) takes the parts of complex numbers" if (
            isinstance(value, (type, np.dtype)) and np.dtype(value).kind == "c") else ""
        raise ValidationError(
            f"expected a data type among {names} (or its NumPy name; truth values are UINT8), "
            f"but got {value!r}{hint}"
        )


def element_type(value: Any) -> np.dtype[Any]:
    """The element type of a name, a type or a DataType."""
    if value is not None and not isinstance(value, DataType):
        try:
            if np.dtype(value) == BOOL:
                return BOOL
        except TypeError:
            pass
    return DataType.of(value).dtype


BOOL = np.dtype(bool)
"""Stands for truth values: bytes of 0 and 1 on the device."""
_BY_DTYPE = {t._dtype: t for t in DataType if t._dtype is not None}


def _narrow(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedError(
            f"{name.upper()}: NumPy has no such type; the package ml_dtypes has") from None
    return np.dtype(getattr(ml_dtypes, name))


def pack_halves(values: np.ndarray) -> np.ndarray:
    """Elements of 4 bits, two to a byte, the first one in the low half."""
    bits = values.reshape(-1).view(np.uint8) & 15
    bits = np.append(bits, np.zeros(bits.size % 2, np.uint8))
    packed: np.ndarray = bits[::2] | bits[1::2] << 4
    return packed


def unpack_halves(packed: np.ndarray, data_type: DataType) -> np.ndarray:
    """The inverse of :func:`pack_halves`: one element to a byte."""
    bits = np.stack([packed & 15, packed >> 4], -1).reshape(-1)
    if data_type.is_signed:
        return ((bits.astype(np.int8) ^ 8) - 8).astype(data_type.dtype)
    return bits.astype(data_type.dtype)


@dataclass(frozen=True)
class Scalar:
    """A typed scalar, kept as its bits (DML_SCALAR_UNION): NaN payloads and -0.0 survive."""

    data_type: DataType
    bits: int

    @classmethod
    def of(cls, value: object, data_type: DataType) -> Scalar:
        """``value`` as ``data_type``: a number that the type can hold, or raw bytes of its size.

        Floats are rounded to the type. An integer type takes only whole numbers in its range.
        Raises ValidationError for anything else.
        """
        data_type = DataType.of(data_type)
        if isinstance(value, Scalar):
            if value.data_type is data_type:
                return value
        elif isinstance(value, (bytes, bytearray)):
            if len(value) == data_type.itemsize:
                return cls(data_type, int.from_bytes(value, "little"))
        elif isinstance(value, (bool, int, float, np.generic)):
            array = _exact(value, data_type)
            if array is not None:
                return cls(data_type, int.from_bytes(array.tobytes(), "little"))
        raise ValidationError(
            f"expected Value to be a scalar that {data_type} can hold, but got {value!r}"
        )

    @property
    def words(self) -> tuple[int, int]:
        """The low and the high 32 bits."""
        return self.bits & 0xFFFFFFFF, self.bits >> 32

    def item(self) -> Any:
        """The Python number."""
        raw = self.bits.to_bytes(self.data_type.itemsize, "little")
        return np.frombuffer(raw, self.data_type.dtype)[0].item()


def _exact(value: object, data_type: DataType) -> np.ndarray | None:
    if np.asarray(value).dtype == data_type.dtype:
        return np.asarray(value)
    if data_type.is_float:
        if not isinstance(value, (int, float, np.integer, np.floating)):
            return None
        with np.errstate(over="ignore"):
            try:
                result = np.asarray(value, np.float64).astype(data_type.dtype)
            except OverflowError:
                return None
        finite = np.isfinite(np.float64(value))
        return None if finite and not np.isfinite(result) else result
    if not isinstance(value, (int, np.integer)) and (
        not isinstance(value, (float, np.floating)) or value != np.floor(value)
        or np.isinf(value)
    ):
        return None
    info = np.iinfo(data_type.dtype)
    number = int(value)
    return np.asarray(number, data_type.dtype) if info.min <= number <= info.max else None


def saturate(value: float, data_type: DataType) -> Scalar:
    """A FLOAT attribute as an integer (truncated toward zero, saturated, NaN as 0) or float.

    The value is rounded to FLOAT32 first, as in DirectML's structures.
    """
    with np.errstate(over="ignore"):
        number = np.float32(value)
        if data_type.is_float:
            bits = number.astype(data_type.dtype)
            return Scalar(data_type, int.from_bytes(bits.tobytes(), "little"))
    info = np.iinfo(data_type.dtype)
    if np.isnan(number):
        whole = 0
    elif np.isinf(number):
        whole = info.max if number > 0 else info.min
    else:
        whole = min(max(int(number), int(info.min)), int(info.max))
    return Scalar.of(whole, data_type)
