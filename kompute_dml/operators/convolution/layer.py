"""A convolution of any operator as its kernels see it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ...desc import TensorDesc, tensor_of
from ...dtypes import DataType
from ...layout import product
from ...lowering.activation import NOTHING, Fused
from ...runtime.traits import DeviceTraits
from ...tuning import work_key
from . import packing
from .problem import Problem

_MAX_TAPS, _MAX_BITS = 63, 31
"""Limits of convolution_coopmat.comp."""
_UNITS_OF_BYTES = ((16, 16, 32, 32), (16, 16, 16, 32), (8, 16, 32, 16), (8, 8, 32, 8))
"""Shapes of matrix units for which there are kernels, and their sizes of subgroups."""
FEW, _MAX_DIRECT = 8, 1024
"""The most output channels of a group, and the longest K, for a sum in one invocation."""


@dataclass(frozen=True)
class Layer:
    """A convolution, and what becomes of its sums."""

    desc: Any
    c: Problem
    ends: str = "float"
    """``float``, INT32 ``sums``, or these ``scaled`` to floats or ``quantized``."""
    fused: Fused = NOTHING

    def tensor(self, slot: str) -> Any:
        """The description of a slot's tensor. None where the tensor is absent."""
        return tensor_of(self.desc, slot)

    @functools.cached_property
    def x(self) -> TensorDesc:
        """The input."""
        tensor: TensorDesc = self.desc.input_tensor
        return tensor

    @functools.cached_property
    def w(self) -> TensorDesc:
        """The filter."""
        tensor: TensorDesc = self.desc.filter_tensor
        return tensor

    @property
    def type(self) -> DataType:
        """The type of the input's elements."""
        return self.x.data_type

    @property
    def output_code(self) -> int:
        """The code of the output's type."""
        return int(self.desc.output_tensor.data_type.code)

    @functools.cached_property
    def packed(self) -> Problem:
        """The convolution of vectors of channels."""
        return packing.planned(self, self.c).problem

    @property
    def tail_is_aligned(self) -> bool:
        """Whether vectors of the output are vectors of a tail's tensor, which has its strides."""
        tail = getattr(self.desc, "tail_tensor", None)
        return tail is None or bool(tail.is_aligned)

    @property
    def has_tail(self) -> bool:
        """Whether other operators are at its end."""
        return bool(getattr(self.desc, "tail", None))

    def variant(self, shader: str) -> str:
        """The variant of a shader's variant that takes the tail, if there is one."""
        return f"{shader}.tail" if self.has_tail else shader

    def is_plain(self, each: int = 8) -> bool:
        """Whether each ``each`` channels of the output are an aligned vector."""
        return packing.is_plain(self, self.c, self.c.y_strides, each)

    @functools.cached_property
    def stores_vectors(self) -> bool:
        """Whether each eight channels of the output are an aligned vector."""
        return self.is_plain()

    def packing(self, traits: DeviceTraits) -> float:
        """Microseconds that an input takes whose channels are apart."""
        return packing.packing(self, self.c, traits)

    @functools.cached_property
    def is_narrow(self) -> bool:
        """Whether each sum of its groups is one invocation's: too few for tiles of a product."""
        return self.c.groups > 1 and self.c.out_channels <= FEW and self.c.k <= _MAX_DIRECT

    @property
    def bias_stride(self) -> int:
        """The stride between the bias' channels; 0 without one, or with one channel."""
        bias = self.tensor("bias_tensor")
        return int(bias.strides[1]) if bias is not None and bias.sizes[1] > 1 else 0

    @functools.cached_property
    def is_flat(self) -> bool:
        """Whether it has at most two axes."""
        z = self.c.axes[0]
        return z.in_size * z.out_size * z.filter_size == 1

    @functools.cached_property
    def is_depthwise(self) -> bool:
        """Whether each channel has its own filter."""
        return self.c.in_channels == self.c.out_channels == 1

    @functools.cached_property
    def fills_fragments(self) -> bool:
        """Whether it has 16 rows, output channels and products for each, and as many taps as fit
        the word of convolution_coopmat.comp."""
        return self.packed.out_channels >= 16 and self.fills_rows

    @functools.cached_property
    def fills_rows(self) -> bool:
        """The same of any number of output channels."""
        c = self.packed
        taps = [max(n for _, n, _ in a.phases) for a in c.axes]
        return min(c.k, c.rows) >= 16 and product(taps) <= _MAX_TAPS and sum(taps) <= _MAX_BITS

    def has_units(self, traits: DeviceTraits) -> bool:
        """Whether the device has matrix units for its type."""
        if self.type.itemsize == 1:
            return any(traits.multiplies(m, n, depth, "i8", "i32", lanes)
                       for m, n, depth, lanes in _UNITS_OF_BYTES)
        return self.type is DataType.FLOAT16 and traits.multiplies(16, 16, 16, "f16", "f32")

    def lacks_halves(self, traits: DeviceTraits) -> str | None:
        """Why it is none of FLOAT16 numbers on matrix units. None if it is."""
        if self.type.is_float and not self.has_units(traits):
            return "elements are not FLOAT16, or the device has no matrix units for it"
        if not self.type is self.desc.output_tensor.data_type is DataType.FLOAT16:
            return "input and output are not FLOAT16"
        return None if self.stores_vectors else "the output's channels are no vectors"

    def lacks_order(self, traits: DeviceTraits) -> str | None:
        """Why its filter cannot lie in the order of matrix units of FLOAT16. None if it can."""
        if not self.w.owned_by_dml:
            return "the filter is not constant"
        if not traits.fragments_alike:
            return "nobody knows where elements of fragments lie"
        return self.lacks_halves(traits)

    @functools.cached_property
    def work(self) -> str:
        """The tuning key."""
        c, marks = self.c, [self.type.family]
        marks += ["depthwise"] * self.is_depthwise + [self.ends] * (self.ends != "float")
        marks += ["last"] * (c.y_strides[1] == 1) + ["constant"] * bool(self.w.owned_by_dml)
        marks += ["tail"] * self.fused.has_tensor
        return work_key(f"convolution {' '.join(marks)}", c.rows, c.in_channels, c.k,
                        c.out_channels, c.groups)
