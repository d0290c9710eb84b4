"""The function level: from tensors and arrays to a compiled operator that runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..bindings import check_alias
from ..desc import TensorDesc
from ..device import Device, default_device
from ..dtypes import DataType
from ..errors import ValidationError, expect, integers, refuse
from ..layout import Ints
from ..operators.base import OperatorDesc, bits, definition_of
from ..runtime.heap import Place
from ..tensors import Tensor
from ..tracing import Tracer, tracing

if TYPE_CHECKING:
    from ..compiler import CompiledOperator
    from ..tensors.types import DataTypeLike


def device_of(*values: object) -> Device:
    """The device of the tensors among ``values``, or the graph of the expressions. Without either:
    the graph of the ``with`` block, else the default device."""
    devices: set[Any] = {v.device for v in values if isinstance(v, Tensor)}
    if not devices and (graph := tracing.get()) is not None:
        devices.add(graph)
    # Tensors of a graph's device become its constants.
    devices -= {d.device for d in devices if isinstance(d, Tracer)}
    if len(devices) > 1:
        raise ValidationError(
            f"expected all tensors of a call on one device, but they lie on {len(devices)}, "
            f"{' and '.join(sorted(map(repr, devices)))}; device.tensor(x) brings one over"
        )
    if devices:
        device: Device = devices.pop()
        return device
    return default_device()


def as_tensor(
    device: Device, name: str, field: str, value: object, data_type: DataTypeLike | None = None
) -> Tensor:
    """``value`` itself if it is a tensor, else a tensor with its elements, which nothing may
    write."""
    if isinstance(value, Tensor):
        return value
    number = isinstance(value, (bool, int, float, np.generic)) or (
        isinstance(value, np.ndarray) and value.ndim == 0)
    try:
        return (device.number if number else device.tensor)(value, data_type)
    except ValidationError as error:
        raise ValidationError(f"{name}, {field}: {error}") from None


def whole_numbers(
    device: Device, name: str, field: str, value: object, data_type: DataType
) -> Tensor:
    """``value`` as a tensor of a type that must hold every number. A tensor stays as it is."""
    if isinstance(value, Tensor):
        return value
    numbers = np.asarray(value)
    if numbers.size and not data_type.is_float:
        limits = np.iinfo(data_type.dtype)
        whole = numbers.dtype.kind in "iu" and (
            limits.min <= numbers.min() and numbers.max() <= limits.max)
        expect(whole, name, field, f"hold numbers of type {data_type}", value)
    return as_tensor(device, name, field, numbers, data_type)


def output(
    device: Device, out: Tensor | None, name: str, sizes: tuple[int, ...], data_type: DataType
) -> Tensor:
    """``out``, which must have these sizes and this type. Without ``out``, a new tensor."""
    if out is None:
        return device.empty(sizes, data_type)
    expect(isinstance(out, Tensor), name, "out", "be a Tensor", type(out).__name__)
    if out.sizes != sizes:
        refuse(name, "out.sizes", f"be {list(sizes)}", list(out.sizes))
    if out.data_type is not data_type:
        refuse(name, "out.data_type", f"be {data_type}", out.data_type)
    return out


def chosen(name: str, field: str, sizes: object, like: Ints | None) -> Ints:
    """The sizes that the caller chose, or those of a tensor that must be there then."""
    if sizes is None and like is not None:
        return like
    expect(sizes is not None, name, field, "be given", None)
    return tuple(integers(name, field, sizes))


def run(
    desc_class: type[OperatorDesc],
    device: Device,
    tensors: Mapping[str, Tensor | Sequence[Tensor] | None],
    **attributes: Any,
) -> None:
    """Record ``desc_class`` over ``tensors`` (by field name; None for an absent one, a sequence for
    an array).

    Compiled operators are kept per description. Raises what ``create_operator`` raises.
    """
    if _is_empty(desc_class, tensors):
        return
    descs: dict[str, Any] = {}
    slots: dict[str, Tensor | None] = {}
    for name, t in tensors.items():
        if t is None or isinstance(t, Tensor):
            slots[name], descs[name] = t, None if t is None else t.desc
        else:
            slots |= {f"{name}[{i}]": x for i, x in enumerate(t)}
            descs[name] = tuple([x.desc for x in t])
    if isinstance(device, Tracer):
        device.add(desc_class(**descs, **attributes),
                   {name: t for name, t in slots.items() if t is not None})
        return
    key = (desc_class, *descs.values(), *[bits(v) for v in attributes.values()])
    with device.runtime.lock:
        try:
            compiled = device.compiled.get(key)
        except TypeError:  # not hashable: no operator takes such an attribute
            device.create_operator(desc_class(**descs, **attributes))
            raise
        if compiled is None:
            desc: OperatorDesc = desc_class(**descs, **attributes)
            compiled = device.compile_cached(desc, key)
        execute(device, compiled, [slots.get(f.snake) for f in compiled.tensors])


def _is_empty(
    desc_class: type[OperatorDesc], tensors: Mapping[str, Tensor | Sequence[Tensor] | None]
) -> bool:
    """Whether nothing is to be computed, because the outputs have no elements. Raises if they have
    elements, but an input has none."""
    for t in tensors.values():
        if isinstance(t, Tensor):
            if 0 in t.shape:
                break
        elif t is not None and any(0 in x.shape for x in t):
            break
    else:
        return False
    operator = definition_of(desc_class)
    outputs = [t for f in operator.spec.outputs if (t := tensors.get(f.snake)) is not None]
    empty = all(0 in x.shape for t in outputs for x in ([t] if isinstance(t, Tensor) else t))
    expect(empty, operator.name, "the inputs", "have elements", "a tensor without any")
    return True


class Run(NamedTuple):
    """An operator that ran."""

    compiled: CompiledOperator
    tensors: Sequence[Tensor | None]
    """By slot: inputs, then outputs."""


class _NotedRuns(threading.local):
    runs: list[Run] | None = None


_notes = _NotedRuns()


@contextlib.contextmanager
def noted() -> Iterator[list[Run]]:
    """The operators that this thread runs inside the block."""
    outer = _notes.runs
    inner = _notes.runs = []
    try:
        yield inner
    finally:
        _notes.runs = outer
        if outer is not None:
            outer += inner


def execute(
    device: Device, compiled: CompiledOperator, tensors: Sequence[Tensor | None]
) -> None:
    """Record a compiled operator over the tensors of its slots. Callers hold the device's lock."""
    places: list[Place | None] = []
    allocations = set()
    shared = False
    for x in tensors:
        if x is None:
            places.append(None)
            continue
        allocation = x.allocation
        shared = shared or allocation in allocations
        allocations.add(allocation)
        places.append((allocation, x.byte_offset))
    if shared:
        _check_sharing(compiled, tensors)
    temporary = compiled.plan.temporary_bytes
    places.append((device.allocate(temporary), 0) if temporary else None)
    places.append(None)
    device.recorder.check()
    compiled.run(places)
    if _notes.runs is not None:
        _notes.runs.append(Run(compiled, tensors))


def _check_sharing(compiled: CompiledOperator, tensors: Sequence[Tensor | None]) -> None:
    """Refuse an output that shares bytes with another output, or with an input unless the call is
    truly in place."""
    first = compiled.binding_counts[0]
    for i, out_field in enumerate(compiled.tensors[first:], first):
        out = tensors[i]
        if out is None:
            continue
        for field, other in zip(compiled.tensors[:i], tensors):
            if other is None or other.allocation is not out.allocation:
                continue
            a, b = other.byte_offset, out.byte_offset
            if a + other.nbytes <= b or b + out.nbytes <= a:
                continue
            if _interleave(other.desc, a, out.desc, b):
                continue
            expect(field.kind == "input", compiled.definition.name,
                   f"the ranges of {field.name} and {out_field.name}",
                   "not overlap (both are outputs)", "ranges that do")
            check_alias(compiled, field.name, out_field.name, a == b)


def _interleave(x: TensorDesc, x_offset: int, y: TensorDesc, y_offset: int) -> bool:
    """Whether two views whose ranges overlap share no byte, such as columns of one matrix.

    This is proved for views with equal strides and disjoint columns. Other views are assumed to
    share bytes.
    """
    if x.strides != y.strides or x.data_type.itemsize != y.data_type.itemsize:
        return False
    step = max(x.strides) * x.data_type.itemsize
    if not step or x.strides.count(max(x.strides)) != 1:
        return False
    row = x.strides.index(max(x.strides))

    def columns(desc: TensorDesc, offset: int) -> tuple[int, int]:
        inner = sum(
            (n - 1) * s for d, (n, s) in enumerate(zip(desc.sizes, desc.strides)) if d != row
        )
        begin = offset % step
        return begin, begin + (inner + 1) * desc.data_type.itemsize

    (a, b), (c, d) = columns(x, x_offset), columns(y, y_offset)
    return max(b, d) <= step and (b <= c or d <= a)
