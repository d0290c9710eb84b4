"""Eager operators that ran before: what they gave to the device is given again.

All that an operator does follows from its other arguments and from the types, sizes and strides of
its tensors, unless it reads or uploads elements. So its second call notes which compiled operators
ran, and where their tensors lay: in an argument, in memory that the call made, or in a constant.
Later calls run these with new memory. What was read, uploaded or submitted otherwise has no tape.
"""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from ..compiler import CompiledOperator
from ..functions.call import Run, noted
from ..runtime.heap import Allocation
from . import memory
from .layouts import dense_order
from .lists import ListPlan, planned

MAX_TAPES = 2048
"""The oldest one is dropped."""
_TRIES = 3
"""Calls that note, before an operator counts as one without a tape."""
_PLAIN = frozenset((bool, int, str, type(None), torch.dtype, torch.device, torch.memory_format,
                    torch.layout))


class Signature(NamedTuple):
    """A call, as far as what it does depends on it, and its tensors."""

    key: tuple[Any, ...]
    tensors: list[torch.Tensor]
    memories: list[Allocation | None]
    starts: list[int]
    """The byte where each tensor starts in its memory."""

    def still_holds(self, shapes: Sequence[Any]) -> bool:
        """Whether no tensor was resized or given another storage since."""
        return self.shapes() == shapes and all(
            getattr(x.untyped_storage(), "kompute_dml_allocation", None) is held
            for x, held in zip(self.tensors, self.memories))

    def shapes(self) -> list[Any]:
        """Sizes, strides and beginnings of the tensors."""
        return [(x.shape, x.stride(), x.storage_offset()) for x in self.tensors]


class _UnknownArgument(Exception):
    """An argument that belongs to no signature."""


def signature(op: object, args: Sequence[Any], kwargs: dict[str, Any]) -> Signature | None:
    """The signature of a call whose tensors all lie on the device, else None."""
    # The operator of C++, whose hash takes no call of Python's.
    parts: list[Any] = [getattr(op, "_op", op), torch.get_default_dtype(), torch.is_grad_enabled()]
    tensors: list[torch.Tensor] = []
    memories: list[Allocation | None] = []
    starts: list[int] = []
    try:
        for x in args:
            _add(x, parts, tensors, memories, starts)
        for name, x in kwargs.items():
            parts.append(name)
            _add(x, parts, tensors, memories, starts)
    except _UnknownArgument:
        return None
    return Signature(tuple(parts), tensors, memories, starts)


def _add(x: Any, parts: list[Any], tensors: list[torch.Tensor],
         memories: list[Allocation | None], starts: list[int]) -> None:
    """Values that differ in type or in a bit differ."""
    kind = type(x)
    if isinstance(x, torch.Tensor):
        if x.is_cpu or x.is_conj() or x.is_neg():
            raise _UnknownArgument
        held = getattr(x.untyped_storage(), "kompute_dml_allocation", None)
        if held is None and x.device.type != memory.NAME:
            raise _UnknownArgument
        start = x.storage_offset() * x.element_size()
        parts += (x.dtype, x.shape, x.stride(), start & 15, x.requires_grad)
        for i, other in enumerate(memories):  # tensors may lie in each other
            if other is held is not None:
                parts += (i, start - starts[i])
                break
        tensors.append(x)
        memories.append(held)
        starts.append(start)
    elif kind in _PLAIN:
        parts += (kind, x)
    elif kind is float:
        parts.append(struct.pack("<d", x))
    elif kind is list or kind is tuple:
        parts += (kind, len(x))
        for item in x:
            _add(item, parts, tensors, memories, starts)
    else:
        raise _UnknownArgument


class _TapePlace(NamedTuple):
    """Where a tensor of a run lies: so many bytes after the start of a memory."""

    memory: int
    """Of the arguments, then what is made, then constants."""
    begin: int
    """In an argument, bytes after that argument's start."""


class _TapeStep(NamedTuple):
    compiled: CompiledOperator
    places: tuple[_TapePlace | None, ...]
    new: tuple[tuple[int, int], ...]
    """What is allocated before: memory and bytes."""
    gone: tuple[int, ...]
    """What nothing uses afterwards."""


class _Output(NamedTuple):
    """A tensor of the result: an argument, or a new one."""

    argument: int = -1
    memory: int = -1
    """-1 for a tensor without elements."""
    form: memory.CapsuleForm | None = None


class _Kept:
    """A result of a call that reads no elements, and so gives the same ones each time."""

    def __init__(self, y: torch.Tensor) -> None:
        self._y, self._storage = y, y.untyped_storage()
        self._uses, self._writes = self._count(), memory.writes(y)

    def _count(self) -> int:
        uses: int = torch._C._storage_Use_Count(self._storage._cdata)
        return uses

    def again(self) -> torch.Tensor | None:
        """The result, if nobody has it any more, and nobody has written it."""
        if self._count() != self._uses or memory.writes(self._y) != self._writes or (
                self._y.is_inference() != torch.is_inference_mode_enabled()):
            return None
        return self._y.detach()


_SMALL = 4 << 10
"""The most bytes of a result that is kept."""


@dataclass
class Tape:
    """What a call does."""

    steps: list[_TapeStep]
    total: int
    """Memories, without constants."""
    constants: list[Allocation]
    written: tuple[int, ...]
    """Arguments whose storages are written."""
    outputs: list[_Output | None]
    result: Any
    """How the outputs form the result."""
    same: bool
    """Whether the result is one small tensor with the same elements each time."""
    kept: _Kept | None = None
    """The last result, if it is the same each time."""

    def play(self, call: Signature) -> Any:
        """Do it for other tensors."""
        runtime = memory.device().runtime
        if self.same:
            with runtime.lock:
                if self.kept is None or (y := self.kept.again()) is None:
                    self.kept = _Kept(self._run(runtime, call)[0])
                    y = self.kept.again()
                return y if self.result is None else pytree.tree_unflatten([y], self.result)
        outputs = self._run(runtime, call)
        for i in self.written:
            held = call.memories[i]
            assert held is not None
            memory.note_write(held)
        return outputs[0] if self.result is None else pytree.tree_unflatten(outputs, self.result)

    def _run(self, runtime: Any, call: Signature) -> list[torch.Tensor | None]:
        """The outputs."""
        tensors = call.tensors
        memories: list[Any] = [*call.memories, *[None] * (self.total - len(tensors)),
                               *self.constants]
        starts = [*call.starts, *[0] * (len(memories) - len(tensors))]
        with runtime.lock:
            for compiled, places, new, gone in self.steps:
                for i, nbytes in new:
                    memories[i] = runtime.allocate(nbytes)
                slots = [None if p is None else (memories[p[0]], starts[p[0]] + p[1])
                         for p in places]
                own = compiled.plan.temporary_bytes
                slots.append((runtime.allocate(own), 0) if own else None)
                slots.append(None)
                compiled.run(slots)
                for i in gone:
                    memories[i] = None
        return [None if y is None else tensors[y.argument] if y.form is None else memory.adopt_as(
            None if y.memory < 0 else memories[y.memory], y.form) for y in self.outputs]


class _Taping(threading.local):
    active = False


_notes = _Taping()
_tapes: dict[tuple[Any, ...], Tape | ListPlan | int] = {}
"""By signature. A number says how often the call was tried."""


class TapeStatistics:
    """What tests ask."""

    played = 0


statistics = TapeStatistics()


def run(op: object, args: Sequence[Any], kwargs: dict[str, Any], plain: Callable[..., Any]) -> Any:
    """The result of ``plain``, which takes an operator and its arguments, or of a tape."""
    if _notes.active:
        return plain(op, *args, **kwargs)
    call = signature(op, args, kwargs)
    if call is None:
        return plain(op, *args, **kwargs)
    known = _tapes.get(call.key)
    if isinstance(known, Tape):
        statistics.played += 1
        return known.play(call)
    if isinstance(known, ListPlan):
        statistics.played += 1
        return known.play(call.tensors)
    tape: Tape | ListPlan | None = None
    if known is None or known > _TRIES:
        result = plain(op, *args, **kwargs)
    elif (listed := planned(op, args, kwargs, call.tensors)) is not None:
        tape, result = listed
    else:
        result, tape = _noted(call, functools.partial(plain, op, *args, **kwargs))
    with memory.device().runtime.lock:
        _tapes[call.key] = tape or (known or 0) + 1
        if len(_tapes) > MAX_TAPES:
            del _tapes[next(iter(_tapes))]
    return result


def _noted(call: Signature, plain: Callable[[], Any]) -> tuple[Any, Tape | None]:
    """The result, and the tape if there is one."""
    runtime = memory.device().runtime
    recorder, transfer = runtime.recorder, runtime.transfer
    _notes.active = True
    try:
        with runtime.lock, noted() as runs, memory.noted_writes() as written:
            before, shapes = (recorder.dispatches, recorder.replays, transfer.moves), call.shapes()
            result = plain()
            after = recorder.dispatches, recorder.replays, transfer.moves
    finally:
        _notes.active = False
    dispatches = sum(len(run.compiled.plan.execute) for run in runs)
    if after != (before[0] + dispatches, *before[1:]) or not call.still_holds(shapes):
        return result, None
    return result, _tape(call, runs, written, result)


def _tape(call: Signature, runs: Sequence[Run], written: Sequence[Allocation], result: Any
          ) -> Tape | None:
    count = len(call.tensors)
    places: dict[int, int] = {}
    for i, held in enumerate(call.memories):
        if held is not None:
            places.setdefault(id(held), i)
    made: dict[int, Allocation] = {}
    constants: dict[int, Allocation] = {}
    for run in runs:
        for i, t in enumerate(run.tensors):
            if t is None or id(t.allocation) in places or id(t.allocation) in constants:
                continue
            is_output = i >= run.compiled.binding_counts[0]
            if not is_output and id(t.allocation) not in made:
                constants[id(t.allocation)] = t.allocation
            made.setdefault(id(t.allocation), t.allocation) if is_output else None
    if any(i in constants for i in made):
        return None
    places |= {key: count + n for n, key in enumerate(made)}
    total = count + len(made)
    places |= {key: total + n for n, key in enumerate(constants)}
    outputs = _outputs(call, result, made, places)
    if outputs is None:
        return None
    structure = pytree.tree_structure(result, is_leaf=lambda x: x is None)
    kept = {y.memory for y in outputs if y is not None}
    begins = [*call.starts, *[0] * (total + len(constants) - count)]
    bare = [(run.compiled, [None if t is None else _TapePlace(
        at := places[id(t.allocation)], t.byte_offset - begins[at]) for t in run.tensors])
        for run in runs]
    nbytes = {places[key]: a.nbytes for key, a in made.items()}
    steps = _steps(_without_copies(bare, nbytes.keys() - kept), nbytes, kept)
    changed = {id(a) for a in written}
    same = not changed and len(outputs) == 1 and len(kept) == 1 and all(
        nbytes.get(i, _SMALL + 1) <= _SMALL for i in kept) and all(
        p is None or p.memory >= count for step in steps for p in step.places)
    return Tape(steps, total, [*constants.values()],
                tuple(i for i, a in enumerate(call.memories) if id(a) in changed), outputs,
                None if isinstance(result, torch.Tensor) else structure, same)


_Bare = tuple[CompiledOperator, list["_TapePlace | None"]]


def _steps(bare: Sequence[_Bare], nbytes: dict[int, int], kept: set[int]) -> list[_TapeStep]:
    """The steps, with the memories that each of them needs first, and last."""
    used = {p.memory: n for n, (_, places) in enumerate(bare) for p in places if p is not None}
    steps: list[_TapeStep] = []
    seen: set[int] = set()
    for n, (compiled, places) in enumerate(bare):
        here = {p.memory for p in places if p is not None}
        new = [(i, nbytes[i]) for i in sorted(here - seen) if i in nbytes]
        gone = [i for i in sorted(here - kept) if i in nbytes and used[i] == n]
        seen |= here
        steps.append(_TapeStep(compiled, tuple(places), tuple(new), tuple(gone)))
    return steps


def _without_copies(bare: list[_Bare], inner: Collection[int]) -> list[_Bare]:
    """Let operators write at once where a copy would put what they make, as in-place variants do.
    ``inner`` are memories that nothing sees afterwards."""
    steps = list(bare)
    for copy in range(len(steps) - 1, 0, -1):
        compiled, places = steps[copy]
        if compiled.definition.short_name != "ELEMENT_WISE_IDENTITY" or len(places) != 2 or (
                getattr(compiled.operator.desc, "scale_bias", None) is not None):
            continue
        source, target = places
        if source is None or target is None or source.memory not in inner or source.begin:
            continue
        users = [n for n, (_, at) in enumerate(steps) if any(
            p is not None and p.memory == source.memory for p in at)]
        if len(users) == 2 and _may_write(steps, users[0], copy, source, target):
            made, at = steps[users[0]]
            steps[users[0]] = made, [target if p == source else p for p in at]
            del steps[copy]
    return steps


def _may_write(steps: Sequence[_Bare], maker: int, copy: int, source: _TapePlace, target: _TapePlace
               ) -> bool:
    """Whether the step ``maker`` may write ``target`` instead of ``source``."""
    compiled, places = steps[maker]
    seen = _descs(steps[copy][0])
    if _layout(seen[0]) != _layout(seen[1]) or not seen[1].is_aligned or seen[1].nbytes % 4:
        return False
    between = [p for _, at in steps[maker + 1:copy] for p in at if p is not None]
    if any(p.memory == target.memory for p in between):
        return False
    inputs, descs = compiled.binding_counts[0], _descs(compiled)
    written = [d for p, d in zip(places[inputs:], descs[inputs:]) if p == source]
    if len(written) != 1 or _layout(written[0]) != _layout(seen[0]) or any(
            p is not None and p.memory == target.memory for p in places[inputs:]):
        return False
    read = [(p, d) for p, d in zip(places[:inputs], descs) if p and p.memory == target.memory]
    return not read or (compiled.definition.in_place and all(
        p == target and _layout(d) == _layout(written[0]) for p, d in read))


def _descs(compiled: CompiledOperator) -> list[Any]:
    return [compiled.operator.tensor(f) for f in compiled.tensors]


def _layout(desc: Any) -> Any:
    return desc and (desc.data_type, desc.sizes, desc.strides)


def _outputs(call: Signature, result: Any, made: dict[int, Allocation], places: dict[int, int]
             ) -> list[_Output | None] | None:
    """What the tensors of the result are. None if they are no new, dense tensors apart."""
    outputs: list[_Output | None] = []
    taken: set[int] = set()
    for y in pytree.tree_leaves(result, is_leaf=lambda x: x is None):
        if y is None:
            outputs.append(None)
            continue
        if not isinstance(y, torch.Tensor) or y.device.type != memory.NAME:
            return None
        same = [i for i, x in enumerate(call.tensors) if x is y]
        if same:
            outputs.append(_Output(same[0]))
            continue
        shape = tuple(y.shape)
        if not y.numel():
            outputs.append(_Output(-1, -1, memory.form(shape, y.dtype)))
            continue
        held = memory.allocation_of(y)
        if id(held) not in made or id(held) in taken or y.storage_offset() or (
                dense_order(y.shape, y.stride()) is None):
            return None
        taken.add(id(held))
        strides = None if y.is_contiguous() else y.stride()
        outputs.append(_Output(-1, places[id(held)], memory.form(shape, y.dtype, strides)))
    return outputs
