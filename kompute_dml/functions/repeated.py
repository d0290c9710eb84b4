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
from ..operators.base import OperatorDesc
from ..tensors import Tensor
from .call import Run, execute, noted

if TYPE_CHECKING:
    from ..compiler import CompiledOperator

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
    made: tuple[TensorDesc, ...]
    constants: tuple[Tensor, ...]
    """Numbers of the signature, as tensors."""
    result: int | tuple[int, ...]

    def repeat(self, device: Any, given: Sequence[Tensor]) -> Any:
        new = [device._new(desc) for desc in self.made] if self.made else ()
        tensors = (*given, *new, *self.constants, None)
        execute(device, self.compiled, [tensors[i] for i in self.slots])
        if isinstance(self.result, int):
            return tensors[self.result]
        return tuple([tensors[i] for i in self.result])


class _Unknown(Exception):
    """A value that belongs to no signature, such as an array."""


def repeated(f: F) -> F:
    """``f``, which ends with one :func:`~.call.run`. It only runs for signatures that are new."""

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        given: list[Tensor] = []
        parts: list[Any] = [f, *kwargs]
        try:
            for value in (*args, *kwargs.values()) if kwargs else args:
                if isinstance(value, Tensor):
                    given.append(value)
                    parts.append(value.desc)
                    if value.truth:
                        parts.append(_TRUTH)
                else:
                    parts.append(_part(value, given))
        except _Unknown:
            return f(*args, **kwargs)
        device: Any = given[0].device if given else None
        for x in given:
            if x.device is not device:
                return f(*args, **kwargs)
        if len(given) > 1 and len(ids := [*map(id, given)]) > len(set(ids)):
            parts.append(tuple(map(ids.index, ids)))
        compiled = getattr(device, "_compiled", None)
        if compiled is None:  # a graph, or no tensor
            return f(*args, **kwargs)
        key = tuple(parts)
        with device._runtime.lock:
            seen = compiled.calls.get(key)
            if seen is not None:
                compiled.calls.move_to_end(key)
                return seen.repeat(device, given)
        with noted() as runs:
            result = f(*args, **kwargs)
        seen = _remembered(runs, given, result)
        if seen is not None:
            with device._runtime.lock:
                compiled.calls[key] = seen
                if len(compiled.calls) > MAX_CALLS:
                    compiled.calls.popitem(last=False)
        return result

    return call  # type: ignore[return-value]


def _part(value: Any, given: list[Tensor], inside: bool = False) -> Any:
    """An argument as a part of a signature. Values that differ in type or in a bit differ."""
    kind = type(value)
    if value is None:
        return None
    if kind in _PLAIN or isinstance(value, (enum.Enum, type, np.dtype)):
        return kind, value
    if kind is float:
        return struct.pack("<d", value)
    if isinstance(value, Tensor):
        given.append(value)
        return value.desc, value.truth
    if isinstance(value, np.generic):
        return kind, value.tobytes()
    if isinstance(value, (ScaleBias, Size2d, Scalar, OperatorDesc)):
        fields = [getattr(value, f.name) for f in dataclasses.fields(value)]
        return (kind, *[_part(v, given) for v in fields])
    if (kind is tuple or kind is list) and len(value) <= _MOST and not inside:
        return (kind, *[_part(v, given, True) for v in value])
    raise _Unknown


def _remembered(runs: Sequence[Run], given: Sequence[Tensor], result: Any) -> _Call | None:
    """What the call did, as far as it can be repeated with other tensors."""
    if len(runs) != 1:
        return None
    (run,) = runs
    inputs = run.compiled.binding_counts[0]
    made: list[Tensor] = []
    constants: list[Tensor] = []
    slots: list[Any] = []
    for i, t in enumerate(run.tensors):
        if t is None:
            slots.append(None)
            continue
        same = [x for x in given if x.allocation is t.allocation]
        if same:
            # A view that begins where one argument does, and which no other one can be.
            if t.byte_offset != same[0].byte_offset or any(x is not same[0] for x in same):
                return None
            slots.append(same[0])
        else:
            if i >= inputs and (not t.desc.is_packed or t.truth):
                return None
            (constants if i < inputs else made).append(t)
            slots.append(t)
    tensors = [*given, *made, *constants]

    def at(t: Any) -> int | None:
        return next((i for i, x in enumerate(tensors) if x is t), None)

    results = list(map(at, result)) if isinstance(result, tuple) else [at(result)]
    if None in results:
        return None
    return _Call(
        run.compiled, tuple(-1 if t is None else at(t) or 0 for t in slots),
        tuple(t.desc for t in made), tuple(constants),
        tuple(results) if isinstance(result, tuple) else results[0],  # type: ignore[arg-type]
    )
