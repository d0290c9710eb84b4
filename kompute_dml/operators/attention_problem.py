"""What the kernels of attention compute: queries, keys and values as lines."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol

from ..attributes import MultiheadAttentionMaskType as MaskType
from ..dtypes import DataType
from ..layout import Ints
from ..lowering.plan import Operand
from ..tuning import work_key


class Sizes(Protocol):
    """What kernels ask of heads."""

    heads: int
    key_heads: int
    batches: int
    queries: int
    head_size: int
    value_size: int
    lengths: str | None

    @property
    def keys(self) -> int: ...


@dataclass(frozen=True)
class Lines:
    """Queries, keys or values: (batch, head, position, element)."""

    operand: Operand
    strides: Ints
    begins_aligned: bool
    size: int

    def of_vectors(self, each: int) -> bool:
        """Whether each head's elements are whole vectors of ``each`` elements."""
        return self.strides[3] == 1 and not any(
            n % each for n in (*self.strides[:3], self.size, self.operand.offset))

    def aligned(self, itemsize: int) -> bool:
        """Whether they are aligned vectors of 16 bytes wherever the tensor lies."""
        return self.begins_aligned and self.of_vectors(16 // itemsize)


@dataclass(frozen=True)
class Attention:
    """Queries, keys and values as lines, once biases are added and keys are collected."""

    desc: Any
    h: Sizes
    query: Lines
    key: Lines
    value: Lines
    y_strides: Ints
    """Of the output: batch, head, position, element."""

    @property
    def type(self) -> DataType:
        """The type that shaders take: FLOAT16 for BFLOAT16, too."""
        data_type: DataType = self.desc.output_tensor.data_type
        return DataType.FLOAT16 if self.is_bfloat16 else data_type

    @property
    def is_bfloat16(self) -> bool:
        """Whether elements are BFLOAT16, which descriptions have as UINT16."""
        return bool(self.desc.output_tensor.data_type == DataType.UINT16)

    @property
    def itemsize(self) -> int:
        return self.type.itemsize

    @property
    def lines(self) -> tuple[Lines, Lines, Lines]:
        return self.query, self.key, self.value

    @property
    def work(self) -> str:
        """The tuning key."""
        h = self.h
        kind = "b" if self.is_bfloat16 else "f"
        return work_key(f"attention {kind}{8 * self.itemsize}", self.rows, self.reach, h.head_size,
                        self.stacks)

    @property
    def window(self) -> int:
        """The keys that a query sees at most, of which its own is the last; 0: all before it."""
        return int(getattr(self.desc, "window", None) or 0)

    @property
    def reach(self) -> int:
        """The keys that all queries together see at most."""
        keys = self.h.keys
        return min(keys, self.window + self.h.queries - 1) if self.window else keys

    @property
    def soft_cap(self) -> float:
        """What scores stay below; 0: nothing."""
        return float(getattr(self.desc, "soft_cap", None) or 0)

    @property
    def sinks(self) -> bool:
        """Whether a score of no key takes its share, for each head."""
        return getattr(self.desc, "sink_tensor", None) is not None

    @functools.cached_property
    def rows(self) -> int:
        """Queries of a key head, counting all heads that share it."""
        return self.h.heads // self.h.key_heads * self.h.queries

    @property
    def stacks(self) -> int:
        """Key heads of all batches."""
        return self.h.batches * self.h.key_heads

    @property
    def longest(self) -> int:
        """Elements of a query or of a value, of which there are more."""
        return max(self.h.head_size, self.h.value_size)

    def of_vectors(self, each: int) -> bool:
        """Whether queries, keys and values are whole vectors of ``each`` elements."""
        return all(x.of_vectors(each) for x in self.lines)

    @functools.cached_property
    def are_aligned(self) -> bool:
        """Whether queries, keys and values are aligned vectors of 16 bytes."""
        return all(x.aligned(self.itemsize) for x in self.lines)

    def stores_vectors(self, each: int) -> bool:
        """Whether each head's output consists of aligned vectors of ``each`` elements."""
        y = self.desc.output_tensor
        return y.base_alignment % 16 == 0 and y.strides[-1] == 1 and not any(
            s % each for s in (*y.strides[-3:-1], self.h.value_size))

    @property
    def adds(self) -> bool:
        """Whether there are masks or biases."""
        return (self.desc.mask_type != MaskType.NONE
                or self.desc.relative_position_bias_tensor is not None)

    @functools.cached_property
    def by_row(self) -> bool:
        """Whether masks or biases differ between the rows of a key head."""
        h, desc = self.h, self.desc
        added = [self.mask_strides] if desc.mask_type == MaskType.BOOLEAN else []
        if (relative := desc.relative_position_bias_tensor) is not None:
            added.append(relative.strides[-4:])
        return any((s[1] and h.heads > h.key_heads) or (s[2] and h.queries > 1) for s in added)

    @property
    def mask_strides(self) -> Ints:
        """Strides by batch, head, query and key. For masks of lengths, by batch and row."""
        t, kind = self.desc.mask_tensor, self.desc.mask_type
        if t is None:
            return (0,) * 4
        if kind == MaskType.BOOLEAN:
            return tuple(t.strides[-4:])
        by_row = t.strides[-2] if kind == MaskType.KEY_SEQUENCE_END_START else 0
        return (t.strides[-1], by_row, 0, 0)
