"""Descriptions that a device has accepted. A model repeats its operators, and is looked at twice:
when its nodes are claimed, and when they are planned. The next session looks at it again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import tuning
from .compiler import CompiledOperator, Operator
from .desc import TensorDesc
from .lowering.plan import Target
from .operators.base import OperatorDesc, bits

if TYPE_CHECKING:
    from .device import Device

MAX_CHECKED = 4096
"""The most descriptions that are remembered. Then all are forgotten."""
MAX_COMPILED = 512
"""The most compiled operators that are, some 10 KB each. The least recently used one is forgotten,
so that many sizes leave those of no size."""


_Compiled = OrderedDict[object, CompiledOperator]


class ValidationCache:
    """What need not be checked again on a device."""

    def __init__(self) -> None:
        self._valid: set[Any] = set()
        self._compiles: set[Any] = set()
        self._compiled: tuple[Target | None, object, _Compiled] = None, None, OrderedDict()
        """A target, choices of kernels, and what was compiled for these, by key. It was never used.
        All are replaced at once, as threads may share them."""
        self._last: tuple[OperatorDesc | None, Any] = None, None

    def operator(self, device: Device, desc: OperatorDesc) -> Operator:
        """``device.create_operator(desc)``."""
        key = self._key(desc)
        if key in self._valid:
            return Operator(device, desc)
        operator = device.create_operator(desc)
        _add(self._valid, key)
        return operator

    def _key(self, desc: OperatorDesc) -> Any:
        """The key of a description, which is looked up twice in a row."""
        last, key = self._last
        if last is not desc:
            key = bits(desc)
            self._last = desc, key
        return key

    def compile(self, operator: Operator) -> None:
        """Raise if the device has no shaders for the operator."""
        desc = operator.desc
        key = _without_sizes(desc) if operator.definition.any_size else self._key(desc)
        if key not in self._compiles:
            operator.definition.lower(desc, operator.device.target)
            _add(self._compiles, key)

    def compiled(
        self, target: Target, key: object, make: Callable[[], CompiledOperator]
    ) -> CompiledOperator:
        """What ``make`` compiles, or what it has compiled for the same target and ``key`` before,
        as new. Both have their own parameters and state."""
        chosen = tuning.choices()
        of, by, known = self._compiled
        if of is not target or by is not chosen:
            known = OrderedDict()
            self._compiled = target, chosen, known
        compiled = known.pop(key, None) or make()
        if len(known) >= MAX_COMPILED:
            known.popitem(last=False)
        known[key] = compiled
        return compiled.unused()


def _without_sizes(desc: OperatorDesc) -> Any:
    """The key of a description without what sizes and windows are."""
    return type(desc), *[
        (value.data_type, value.dimension_count) if isinstance(value, TensorDesc) else bits(value)
        for value in (getattr(desc, name) for name in desc.operator.kinds)]


def _add(known: set[Any], key: object) -> None:
    if len(known) >= MAX_CHECKED:
        known.clear()
    known.add(key)
