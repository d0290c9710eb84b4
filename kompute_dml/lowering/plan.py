"""What an operator lowers to: shaders, operands and scalars. Knows no Vulkan and no buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..desc import TensorDesc
from ..layout import extent
from ..runtime.shader_library import ShaderLibrary, Variant
from ..runtime.traits import DeviceTraits

TEMPORARY = "temporary"
PERSISTENT = "persistent"
PARAMS = "params"
"""Words that are known when the plan is made. They are uploaded once."""
ZEROED = "zeroed"
"""The device's own memory. It is zero before a dispatch, and the dispatch leaves it zero."""


@dataclass(frozen=True)
class Target:
    """What a lowering may ask about the device: its legal shaders and its traits."""

    library: ShaderLibrary
    traits: DeviceTraits
    device_key: str = ""
    """Under which measured choices are kept; see :mod:`kompute_dml.tuning`."""
    halves: bool = False
    """Whether FLOAT32 products may be computed of FLOAT16 factors."""


@dataclass(frozen=True)
class Operand:
    """One storage-buffer binding of a dispatch.

    ``slot`` names what is bound there: a tensor field (``"input_tensor"``), :data:`TEMPORARY`,
    :data:`PERSISTENT`, :data:`ZEROED`, :data:`PARAMS`, or None where the shader declares a binding
    that this dispatch does not use. The range touched begins ``offset`` elements after the slot's
    start and is ``length`` elements long. ``offset_field`` is the push field that takes where
    element ``first`` of the range lies, counted from the start of the buffer that is bound.
    """

    slot: str | None
    offset_field: str | None = None
    itemsize: int = 4
    length: int = 0
    offset: int = 0
    writes: bool = False
    first: int = 0

    def reading(self) -> Operand:
        """The same range, only read."""
        return replace(self, writes=False)

    def part(self, first: int, length: int) -> Operand:
        """``length`` elements of it, from ``first`` on."""
        return replace(self, offset=self.offset + first, length=length)


def reads(slot: str, desc: TensorDesc, offset_field: str, offset: int = 0,
          length: int | None = None) -> Operand:
    """The operand that reads tensor ``slot``; ``length`` defaults to all that ``desc`` reaches."""
    if length is None:
        length = extent(desc.sizes, desc.strides)
    return Operand(slot, offset_field, desc.data_type.itemsize, length, offset)


def writes(slot: str, desc: TensorDesc, offset_field: str, offset: int = 0,
           length: int | None = None) -> Operand:
    """The operand that writes tensor ``slot``."""
    operand = reads(slot, desc, offset_field, offset, length)
    return Operand(slot, offset_field, operand.itemsize, operand.length, offset, writes=True)


def in_units(operand: Operand, unit: int) -> Operand:
    """The operand, counted in units of so many bytes."""
    return replace(operand, itemsize=unit, length=operand.length * operand.itemsize // unit)


UNUSED = Operand(None)


@dataclass(frozen=True)
class Dispatch:
    """One shader invocation grid.

    ``groups`` is the number of workgroups. Shaders read theirs with group_index(). They ignore
    numbers past the work, because the count may be rounded up. ``spec`` and ``push`` are by
    the names that the shader declares; push fields take whole numbers (floats bit-cast to uint32).
    """

    variant: Variant
    groups: int
    operands: tuple[Operand, ...]
    push: Mapping[str, int | Sequence[int]]
    spec: Mapping[str, int] = field(default_factory=dict)
    unless_same: tuple[str, str] | None = None
    """Two slots. There is nothing to do where both are the same memory."""


@dataclass(frozen=True)
class Plan:
    """All dispatches of an operator, in order, and the memory they share.

    ``initialize`` runs once, ``execute`` at every call. Resource sizes are in bytes. An input
    that is OWNED_BY_DML is copied into the persistent resource and read from there. Inputs named in
    ``repacked`` are not copied: ``initialize`` stores them in another form.
    """

    execute: tuple[Dispatch, ...]
    initialize: tuple[Dispatch, ...] = ()
    temporary_bytes: int = 0
    persistent_bytes: int = 0
    repacked: frozenset[str] = frozenset()
    zeroed_bytes: int = 0
    params: tuple[int, ...] = ()
    """Words of :data:`PARAMS`, negative ones modulo 2^32."""
