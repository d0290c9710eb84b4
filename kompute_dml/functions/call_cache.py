"""Calls that were seen before find their compiled operator and the descriptions of their outputs.

A function checks its arguments, infers sizes and ends with one :func:`~.call.run`. All of that
follows from the descriptions of its tensors and the values of its other arguments, never from the
elements of tensors. So it is done once for each such signature and device.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ..attributes import ScaleBias, Size2d
from ..desc import TensorDesc
from ..dtypes import Scalar
from ..layout import Ints
from ..operators.base import OperatorDesc
from ..tensors import Tensor
from .call import Run, execute, noted

if TYPE_CHECKING:
    from ..compiler import CompiledOperator
    from ..device import Device

F = TypeVar("F", bound=Callable[..., Any])

MAX_CALLS = 1024
"""Signatures that a device keeps. The least recently used one is dropped first."""
_MOST = 32
"""The longest sequence in a signature."""
_PLAIN = {int, bool, str}
_TRUTH = object()
"""Marks a tensor of truth values."""


class _Call(NamedTuple):
    """What a call with a known signature does. Numbers count the tensors that are given, then those
    that are made, then constants; -1 is none."""

    compiled: CompiledOperator
    slots: tuple[int, ...]
    made: tuple[tuple[TensorDesc, Ints], ...]
    constants: tuple[Tensor, ...]
    """Numbers of the signature, as tensors."""
    result: int | tuple[int, ...]

    def repeat(self, device: Device, arguments: Sequence[Tensor]) -> Any:
        new = [device.new(desc, shape=shape) for desc, shape in self.made] if self.made else ()
        tensors = (*arguments, *new, *self.constants, None)
        execute(device, self.compiled, [tensors[i] for i in self.slots])
        if isinstance(self.result, int):
            return tensors[self.result]
        return tuple([tensors[i] for i in self.result])


class _UnknownValue(Exception):
    """A value that belongs to no signature, such as an array."""


def cached_call(f: F) -> F:
    """``f``, which ends with one :func:`~.call.run`. It only runs for signatures that are new."""

    @functools.wraps(f)
    def call(*args: object, **kwargs: object) -> Any:
        tensors: list[Tensor] = []
        parts: list[Any] = [f, *kwargs]
        try:
            for value in (*args, *kwargs.values()) if kwargs else args:
                if isinstance(value, Tensor):
                    tensors.append(value)
                    parts.append(value.desc)
                    if value.truth:
                        parts.append(_TRUTH)
                    if value.shape != value.desc.sizes:
                        parts.append(value.shape)
                else:
                    parts.append(_part(value, tensors))
        except _UnknownValue:
            return f(*args, **kwargs)
        device: Any = tensors[0].device if tensors else None
        for x in tensors:
            if x.device is not device:
                return f(*args, **kwargs)
        if len(tensors) > 1 and len(ids := [*map(id, tensors)]) > len(set(ids)):
            parts.append(tuple(map(ids.index, ids)))
        compiled = getattr(device, "compiled", None)
        if compiled is None:  # a graph, or no tensor
            return f(*args, **kwargs)
        key = tuple(parts)
        with device.runtime.lock:
            known = compiled.calls.get(key)
            if known is not None:
                compiled.calls.move_to_end(key)
                return known.repeat(device, tensors)
        with noted() as runs:
            result = f(*args, **kwargs)
        known = _remembered(runs, tensors, result)
        if known is not None:
            with device.runtime.lock:
                compiled.calls[key] = known
                if len(compiled.calls) > MAX_CALLS:
                    compiled.calls.popitem(last=False)
        return result

    return call  # type: ignore[return-value]


def _part(value: Any, tensors: list[Tensor], inside: bool = False) -> Any:
    """An argument as a part of a signature. Values that differ in type or in a bit differ."""
    kind = type(value)
    if value is None:
        return None
    if kind in _PLAIN or isinstance(value, (enum.Enum, type, np.dtype)):
        return kind, value
    if kind is float:
        return struct.pack("<d", value)
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.desc, value.truth, value.shape
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if isinstance(value, (ScaleBias, Size2d, Scalar, OperatorDesc)):
        fields = [getattr(value, f.name) for f in dataclasses.fields(value)]
        return (kind, *[_part(v, tensors) for v in fields])
    if (kind is tuple or kind is list) and len(value) <= _MOST and not inside:
        return (kind, *[_part(v, tensors, True) for v in value])
    raise _UnknownValue


def _remembered(runs: Sequence[Run], arguments: Sequence[Tensor], result: object) -> _Call | None:
    """What the call did, as far as it can be repeated with other tensors."""
    if len(runs) != 1:
        return None
    (run,) = runs
    inputs = run.compiled.binding_counts[0]
    temporaries: list[Tensor] = []
    constants: list[Tensor] = []
    slots: list[Any] = []
    for i, t in enumerate(run.tensors):
        if t is None:
            slots.append(None)
            continue
        same = [x for x in arguments if x.allocation is t.allocation]
        if same:
            # A view that begins where one argument does, and which no other one can be.
            if t.byte_offset != same[0].byte_offset or any(x is not same[0] for x in same):
                return None
            slots.append(same[0])
        else:
            if i >= inputs and (not t.desc.is_packed or t.truth):
                return None
            (constants if i < inputs else temporaries).append(t)
            slots.append(t)
    tensors = [*arguments, *temporaries, *constants]

    def at(t: object) -> int | None:
        return next((i for i, x in enumerate(tensors) if x is t), None)

    results = list(map(at, result)) if isinstance(result, tuple) else [at(result)]
    if None in results:
        return None
    return _Call(
        run.compiled, tuple(-1 if t is None else at(t) or 0 for t in slots),
        tuple((t.desc, t.shape) for t in temporaries), tuple(constants),
        tuple(results) if isinstance(result, tuple) else results[0],  # type: ignore[arg-type]
    )
