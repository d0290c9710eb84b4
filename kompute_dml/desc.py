"""Tensor descriptions: DML_BUFFER_TENSOR_DESC as an immutable value."""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .dtypes import DataType
from .errors import ValidationError, integers, whole
from .layout import extent, is_packed, overlaps_itself, packed_strides

MAX_DIMENSIONS = 8
MAX_ELEMENTS = 2**32 - 1
MINIMUM_ALIGNMENT = 16
"""DML_MINIMUM_BUFFER_TENSOR_ALIGNMENT. Bound ranges start at multiples of it."""


class TensorFlags(enum.IntFlag):
    """DML_TENSOR_FLAGS."""

    NONE = 0
    OWNED_BY_DML = 1


def buffer_tensor_size(data_type: DataType, sizes: Sequence[int], strides: Sequence[int]) -> int:
    """The least bytes of a tensor, rounded up to 4 (DMLCalcBufferTensorSize)."""
    return (data_type.nbytes(extent(sizes, strides)) + 3) & ~3


@dataclass(frozen=True)
class TensorDesc:
    """Describes a tensor that lies in a range of a buffer (DML_BUFFER_TENSOR_DESC).

    ``sizes`` has 1 to 8 entries of at least 1. ``strides`` counts elements, one entry per size; 0
    repeats the data along that dimension; None means packed row-major.
    ``total_tensor_size_in_bytes`` defaults to the smallest size that holds every element, rounded
    up to 4 bytes. ``guaranteed_base_offset_alignment`` is 0 or a power of two in bytes.

    Raises :class:`~kompute_dml.ValidationError` if a rule is broken.
    """

    data_type: DataType
    sizes: tuple[int, ...]
    strides: tuple[int, ...] = None  # type: ignore[assignment]
    flags: TensorFlags = TensorFlags.NONE
    total_tensor_size_in_bytes: int = None  # type: ignore[assignment]
    guaranteed_base_offset_alignment: int = 0
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        mine = self.__dict__  # which a frozen dataclass lets change
        data_type = mine["data_type"] = DataType.of(self.data_type)
        sizes = mine["sizes"] = integers("TensorDesc", "Sizes", self.sizes)
        if not 1 <= len(sizes) <= MAX_DIMENSIONS:
            raise ValidationError(
                f"TensorDesc: expected DimensionCount to be in [1, {MAX_DIMENSIONS}], "
                f"but got {len(sizes)} (Sizes {list(sizes)})"
            )
        elements = 1
        for i, size in enumerate(sizes):
            if size < 1:
                raise ValidationError(
                    f"TensorDesc: expected Sizes[{i}] to be at least 1, but got {size}"
                )
            elements *= size
        if elements > MAX_ELEMENTS:
            raise ValidationError(
                f"TensorDesc: expected at most {MAX_ELEMENTS} elements, but got {elements}"
            )
        if self.strides is None:
            mine["strides"] = packed_strides(sizes)
        else:
            mine["strides"] = integers("TensorDesc", "Strides", self.strides)
            if len(self.strides) != len(sizes):
                raise ValidationError(
                    "TensorDesc: expected Strides to have one entry per size, but got "
                    f"{len(self.strides)} strides and {len(sizes)} sizes"
                )
            if min(self.strides) < 0:
                raise ValidationError(
                    "TensorDesc: expected Strides to be at least 0 (strides are unsigned), "
                    f"but got {list(self.strides)}"
                )
        needed = buffer_tensor_size(data_type, sizes, self.strides)
        total = self.total_tensor_size_in_bytes
        total = needed if total is None else whole("TensorDesc", "TotalTensorSizeInBytes", total)
        mine["total_tensor_size_in_bytes"] = total
        if total < needed:
            raise ValidationError(
                f"TensorDesc: expected TotalTensorSizeInBytes to be at least {needed} (what "
                f"Sizes and Strides reach), but got {total}"
            )
        if total % 4:
            raise ValidationError(
                "TensorDesc: expected TotalTensorSizeInBytes to be a multiple of 4, "
                f"but got {total}"
            )
        if self.flags not in (TensorFlags.NONE, TensorFlags.OWNED_BY_DML):
            raise ValidationError(
                f"TensorDesc: expected Flags to be NONE or OWNED_BY_DML, but got {self.flags!r}"
            )
        mine["flags"] = TensorFlags(self.flags)
        alignment = whole("TensorDesc", "GuaranteedBaseOffsetAlignment",
                          self.guaranteed_base_offset_alignment)
        mine["guaranteed_base_offset_alignment"] = alignment
        if alignment and (alignment & (alignment - 1) or alignment < data_type.itemsize):
            raise ValidationError(
                "TensorDesc: expected GuaranteedBaseOffsetAlignment to be 0 or a power of two "
                f"of at least the element size {self.data_type.itemsize}, but got {alignment}"
            )
        mine["_hash"] = hash((data_type.value, sizes, self.strides, mine["flags"].value, total,
                              alignment))

    def __hash__(self) -> int:
        return self._hash

    @staticmethod
    def packed(data_type: object, sizes: Sequence[int]) -> TensorDesc:
        """A packed description. Equal arguments give the same object, which is checked once."""
        return _packed(DataType.of(data_type), integers("TensorDesc", "Sizes", sizes))

    @property
    def dimension_count(self) -> int:
        """Entries of ``sizes``."""
        return len(self.sizes)

    @functools.cached_property
    def element_count(self) -> int:
        """The number of elements, including repeated ones."""
        count = 1
        for size in self.sizes:
            count *= size
        return count

    @property
    def is_aligned(self) -> bool:
        """Whether it begins at a multiple of 16 bytes, as all bound tensors do."""
        return self.guaranteed_base_offset_alignment % MINIMUM_ALIGNMENT == 0

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes from the first element to the end of the last."""
        return self.data_type.nbytes(extent(self.sizes, self.strides))

    @functools.cached_property
    def is_packed(self) -> bool:
        """Whether the elements are row-major and contiguous."""
        return is_packed(self.sizes, self.strides)

    @property
    def overlaps_itself(self) -> bool:
        """Whether two coordinates share an address (a broadcast, or strides that collide)."""
        return overlaps_itself(self.sizes, self.strides)

    @property
    def base_alignment(self) -> int:
        """The first element lies at a multiple of so many bytes: at least 16 for bindings. Views at
        function level may have less.
        """
        return self.guaranteed_base_offset_alignment or MINIMUM_ALIGNMENT

    @property
    def owned_by_dml(self) -> bool:
        """Whether it is bound once, to the operator's initializer."""
        return self.flags is TensorFlags.OWNED_BY_DML

    def replace(self, **changes: Any) -> TensorDesc:
        """A copy with other fields. The byte size is computed again unless given."""
        fields = {
            "data_type": self.data_type,
            "sizes": self.sizes,
            "strides": self.strides,
            "flags": self.flags,
            "guaranteed_base_offset_alignment": self.guaranteed_base_offset_alignment,
        }
        return TensorDesc(**{**fields, **changes})


def tensor_of(desc: object, slot: str) -> TensorDesc | None:
    """The description in a slot of an operator's: a field, or ``field[i]`` of an array."""
    result: TensorDesc | None
    if slot[-1] != "]":
        result = getattr(desc, slot)
    else:
        field, _, index = slot.partition("[")
        result = getattr(desc, field)[int(index[:-1])]
    return result


@functools.lru_cache(1024)
def _packed(data_type: DataType, sizes: tuple[int, ...]) -> TensorDesc:
    return TensorDesc(data_type, sizes)
