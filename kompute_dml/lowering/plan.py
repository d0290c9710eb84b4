"""The result of a lowering: shaders, operands and scalars. Knows neither Vulkan nor buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..desc import TensorDesc
from ..errors import DmlError
from ..layout import extent
from ..runtime.shader_library import ShaderLibrary, Variant
from ..runtime.traits import DeviceTraits

TEMPORARY = "temporary"
PERSISTENT = "persistent"
PARAMS = "params"
"""Slot of words that are known when the plan is made. They are uploaded once."""
ZEROED = "zeroed"
"""Slot of the device's own memory. It is zero before a dispatch, which must leave it zero."""


@dataclass(frozen=True)
class Target:
    """The shaders and the traits of a device, for lowerings."""

    library: ShaderLibrary
    traits: DeviceTraits
    device_key: str = ""
    """The key of the device's measured choices; see :mod:`kompute_dml.tuning`."""
    halves: bool = False
    """Whether FLOAT32 products may be computed of FLOAT16 factors."""


class Operand(NamedTuple):
    """One storage-buffer binding of a dispatch.

    ``slot`` names the bound resource: a tensor field (``"input_tensor"``), :data:`TEMPORARY`,
    :data:`PERSISTENT`, :data:`ZEROED`, :data:`PARAMS`, or None for a binding that this dispatch
    does not use. The range begins at element ``offset`` of the slot and has ``length`` elements.
    ``offset_field`` is the push field that takes the position of element ``first`` of the range,
    counted from the start of the bound buffer.
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
        return self._replace(writes=False)

    def part(self, first: int, length: int) -> Operand:
        """``length`` elements of the range, from ``first`` on."""
        return self._replace(offset=self.offset + first, length=length)


def reads(slot: str, desc: TensorDesc, offset_field: str | None, offset: int = 0,
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
    """The operand, counted in units of ``unit`` bytes."""
    return operand._replace(itemsize=unit, length=operand.length * operand.itemsize // unit)


UNUSED = Operand(None)


@dataclass(frozen=True)
class Dispatch:
    """One dispatch of a shader.

    ``groups`` is the number of workgroups. It may be rounded up, so shaders ignore workgroups whose
    group_index() is past the work. ``spec`` and ``push`` have the names that the shader declares.
    Push fields are whole numbers (floats bit-cast to uint32).
    """

    variant: Variant
    groups: int
    operands: tuple[Operand, ...]
    push: Mapping[str, int | Sequence[int]]
    spec: Mapping[str, int] = field(default_factory=dict)
    unless_same: tuple[str, str] | None = None
    """Two slots. The dispatch is left out if both are the same memory."""

    def __post_init__(self) -> None:
        if len(self.operands) != self.variant.bindings:
            raise DmlError(
                f"{self.variant.name} has {self.variant.bindings} bindings, "
                f"but {len(self.operands)} operands were given")


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
