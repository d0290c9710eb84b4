"""Descriptions that a device has accepted. A model repeats its operators, and is looked at twice:
when its nodes are claimed, and when they are planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..compiler import Operator
from ..operators.base import OperatorDesc, bits

if TYPE_CHECKING:
    from ..device import Device

MAX_CHECKED = 4096
"""The most descriptions that are remembered. Then all are forgotten."""


class Checked:
    """What need not be checked again on a device."""

    def __init__(self) -> None:
        self._valid: set[Any] = set()
        self._compiles: set[Any] = set()

    def operator(self, device: Device, desc: OperatorDesc) -> Operator:
        """``device.create_operator(desc)``."""
        key = bits(desc)
        if key in self._valid:
            return Operator(device, desc)
        made = device.create_operator(desc)
        _add(self._valid, key)
        return made

    def compile(self, operator: Operator) -> None:
        """Raise if the device has no shaders for the operator."""
        key = bits(operator.desc)
        if key not in self._compiles:
            operator.definition.lower(operator.desc, operator.device._target)
            _add(self._compiles, key)


def _add(known: set[Any], key: Any) -> None:
    if len(known) >= MAX_CHECKED:
        known.clear()
    known.add(key)
