"""What a run of a plan binds, and what becomes of its outputs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..graph.recorded import RecordedPlan
from ..runtime.heap import ALIGNMENT, Allocation, AllocationPart, Place
from ..tensors import Tensor
from . import memory, versions
from .layouts import dense_strides
from .mirrors import Mirror
from .values import Value

Arguments = Sequence[Any]  # tensors, and numbers for sizes
_SMALL, _TOGETHER = 256 << 10, 16 << 20
"""The most bytes of an output that shares memory with others, and of what they share."""


class GraphOutput(NamedTuple):
    """What becomes of an output of the FX graph."""

    kind: str
    """"value", "argument", "empty" or "other"."""
    place: int
    """Of the plan's output or of the argument."""
    value: Any
    order: tuple[int, ...] | None = None
    """The dimensions by falling stride, if PyTorch expects another layout than packed."""
    host: bool = False


class WrittenArgument(NamedTuple):
    """A result that goes where an argument lies."""

    target: int
    """The argument that is written."""
    place: int = -1
    """Of the plan's output; -1 for none."""
    value: Value | None = None
    """Its sizes and type."""
    like: bool = False
    """Whether the argument lies on the device and has the result's sizes and type."""
    in_place: bool = False
    """Whether the plan itself writes there."""

    def over(self, plan: RecordedPlan, bound: Sequence[int], tensor: Tensor | None
             ) -> WrittenArgument:
        """Let the plan write there if nothing reads the argument afterwards. ``tensor`` is the
        argument's, whose layout is the plan's."""
        if not self.like or tensor is None or not tensor.desc.is_packed or tensor.byte_offset & 15:
            return self
        i = bound.index(self.target) if self.target in bound else -1
        return self._replace(in_place=i < 0 or plan.may_write_over(self.place, i))

    def finish(self, args: Arguments, bound: Sequence[Place]) -> None:
        """Write what the plan has not written."""
        assert self.value is not None
        with torch.no_grad():
            args[self.target].copy_(memory.adopt(
                bound[self.place][0], self.value.shape, self.value.dtype))


class ReadyRun(NamedTuple):
    """A plan for one set of sizes and layouts, or what those of many sizes have in common."""

    plan: RecordedPlan | None
    """None if nothing is to be computed."""
    bound: list[int]
    """The argument of each of the plan's inputs; -1 for a state of the random numbers."""
    results: list[GraphOutput]
    written: list[WrittenArgument]


class RunOutputs:
    """What a run of a plan makes: memory for its outputs, and tensors over it."""

    def __init__(self, ready: ReadyRun, shared_from: int) -> None:
        """Results from ``shared_from`` on may share memory."""
        self.over = [(w.place, w.target) for w in ready.written if w.in_place]
        """Outputs that go where an argument lies, and that argument."""
        self.written = [w for w in ready.written if not w.in_place and w.value is not None]
        """What the plan does not write itself."""
        self.states = [at for at, i in enumerate(ready.bound) if i < 0]
        """The plan's inputs that are states of the random numbers."""
        outputs = () if ready.plan is None else ready.plan.outputs
        nbytes = [(y.size * y.dtype.itemsize + 3) & ~3 for y in outputs]
        shared = {r.place for r in ready.results[shared_from:] if r.kind == "value"}
        self.count = len(nbytes)
        self.apart: list[tuple[int, int]] = []
        """Outputs with memory of their own, and its bytes."""
        self.together: list[tuple[list[tuple[int, int, int]], int]] = []
        """Small outputs that share memory, with where each begins and its bytes; and all bytes."""
        written = {place for place, _ in self.over}
        parts: list[tuple[int, int, int]] = []
        end = 0
        for j, n in enumerate(nbytes):
            if j in written:
                continue
            if j not in shared or n > _SMALL:
                self.apart.append((j, n))
                continue
            if end + n > _TOGETHER:
                self.together.append((parts, end))
                parts, end = [], 0
            parts.append((j, end, n))
            end = -(-(end + n) // ALIGNMENT) * ALIGNMENT
        if parts:
            self.together.append((parts, end))
        self.results = [_made(r) for r in ready.results]

    def places(self, args: Sequence[Place | None]) -> list[Place]:
        """Memory for a run. Callers hold the device's lock."""
        allocate = memory.device().runtime.allocate
        places: list[Any] = [None] * self.count
        for j, n in self.apart:
            places[j] = allocate(n), 0
        for parts, nbytes in self.together:
            whole = allocate(nbytes)
            for j, begin, n in parts:
                places[j] = AllocationPart(whole, begin, n), 0
        for j, target in self.over:
            places[j] = args[target]
        return places


class _Made(NamedTuple):
    """How a result becomes a tensor."""

    place: int
    """Of the plan's output; -1 for a tensor without elements."""
    form: memory.CapsuleForm | None = None
    """None for what is no new tensor."""
    host: bool = False
    argument: int = -1
    """The argument that the result is; -1 for ``value``."""
    value: Any = None


def _made(r: GraphOutput) -> _Made:
    if r.kind == "argument":
        return _Made(-1, argument=r.place)
    if r.kind == "other":
        return _Made(-1, value=r.value)
    shape, strides = tuple(r.value.shape), None
    if r.order is not None:
        strides = dense_strides(shape, r.order)
    return _Made(r.place if r.kind == "value" else -1, memory.form(shape, r.value.dtype, strides),
                 r.host)


class ConstantTensor(NamedTuple):
    """A tensor of the device that is a constant of the plan."""

    argument: int
    memory: Allocation
    version: int
    writes: int
    """How often it was written without a new version."""


class MirroredParameter(NamedTuple):
    """A parameter of the host that an earlier call had as this argument."""

    argument: int
    mirror: Mirror
    uploads: int
    """How often the mirror may have been uploaded anew if it is a constant; -1 if it is none."""


_storage_of, _offset_of = torch.Tensor.untyped_storage, torch.Tensor.storage_offset
_memory_of = operator.attrgetter("kompute_dml_allocation")


class KnownRun:
    """A run, and the arguments for which it is right."""

    def __init__(
        self, ready: ReadyRun, outputs: RunOutputs, args: Arguments, read: Sequence[bool],
        bound: Sequence[int], constants: Sequence[ConstantTensor],
        mirrored: Sequence[MirroredParameter], staged: Sequence[int],
        form: memory.StagedForm | None,
    ) -> None:
        """For these ``args``, as far as they are ``read``. Those of ``bound`` lie on the device,
        and those of ``staged`` are uploaded to where ``form`` says."""
        self.ready, self.outputs, self._staged, self._form = ready, outputs, staged, form
        self._bound, self._constants, self._mirrored = bound, constants, mirrored
        self._offsets = [args[i].storage_offset() for i in bound]
        self._begins = [n * args[i].element_size() & ~15 for n, i in zip(self._offsets, bound)]
        self._numbers = [(i, x) for i, x in enumerate(args)
                         if read[i] and not isinstance(x, torch.Tensor)]
        tensors: dict[int, int] = {}
        self._repeated: list[tuple[int, int]] = []
        """Arguments that are the same tensor as one before, which the guard wants once: what a
        graph saves twice comes so."""
        for i, x in enumerate(args):
            if read[i] and isinstance(x, torch.Tensor):
                first = tensors.setdefault(id(x), i)
                if first != i:
                    self._repeated.append((i, first))
        self._like = versions.tensor_guard([args[i] for i in tensors.values()])
        """Says of tensors whether they have the types, sizes, strides and devices of these."""
        self._tensors = None if len(tensors) == len(args) else [*tensors.values()]
        """Their arguments. None for all."""

    def places(self, args: Arguments) -> list[Place | None] | None:
        """Where the arguments lie, but those that are uploaded. None if they are other ones."""
        for i, number in self._numbers:
            if args[i] != number:
                return None
        for i, first in self._repeated:
            if args[i] is not args[first]:
                return None
        if not self._like(*(args if self._tensors is None else [args[i] for i in self._tensors])):
            return None
        places: list[Place | None] = [None] * len(args)
        bound = [args[i] for i in self._bound]
        if [*map(_offset_of, bound)] != self._offsets:
            return None
        try:
            held = [*map(_memory_of, map(_storage_of, bound))]
            for i, memory_then, version, writes in self._constants:
                x = args[i]
                if _memory_of(_storage_of(x)) is not memory_then or (
                        memory_then.writes != writes or x._version != version):
                    return None
        except AttributeError:  # memory of another one's
            return None
        if None in held:
            return None
        for i, place in zip(self._bound, zip(held, self._begins)):
            places[i] = place
        for i, mirror, count in self._mirrored:
            if not mirror.serves(args[i]):
                return None
            mirror.refresh(args[i])
            if count >= 0 and count != mirror.count:
                return None
            places[i] = mirror.tensor.allocation, mirror.tensor.byte_offset
        return places

    def upload(self, args: Arguments, places: list[Place | None]) -> None:
        """Upload the arguments of the host that come with each call, and say where they lie."""
        if self._form is not None:
            copies = self._form.upload([args[i] for i in self._staged])
            for i, t in zip(self._staged, copies):
                places[i] = t.allocation, t.byte_offset
