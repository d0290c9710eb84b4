"""The steps of a graph: compiled operators, and the storage of each of their slots."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ..compiler import CompiledOperator, ExecutionFlags, Operator
from ..desc import TensorDesc, TensorFlags
from ..operators.base import OperatorDesc, bits
from ..runtime.pipelines import SLOW, Compiled, Shader
from .memory import MemoryUse, Storage, most_alive, share
from .switches import IN_PLACE, MEMORY, REPACKING, disabled

if TYPE_CHECKING:
    from ..device import Device


class Step:
    """A compiled operator, and for every slot a storage or None."""

    def __init__(self, compiled: CompiledOperator, storages: Sequence[Storage | None]) -> None:
        self.compiled = compiled
        self.storages = storages
        self.group = -1
        """Steps that follow each other and have the same number do not depend on one another."""


class SlotTensor(NamedTuple):
    """A tensor of an operator's description."""

    slot: str
    """Its name among :attr:`CompiledOperator.slots`."""
    path: str
    """Its name in messages."""
    desc: TensorDesc | None
    """None where it is absent."""


def tensors(operator: Operator) -> tuple[list[SlotTensor], list[SlotTensor]]:
    """Inputs and outputs of an operator, in the order of its description."""
    inputs, outputs = (
        [SlotTensor(f.snake, f.name, operator.tensor(f)) for f in operator.slots if f.kind == kind]
        for kind in ("input", "output")
    )
    return inputs, outputs


def plan_memory(steps: Sequence[Step], inner: Sequence[Storage]) -> tuple[list[Storage], MemoryUse]:
    """Give the storages of values inside a graph offsets. Returns those that are left."""
    left_out = disabled()
    if IN_PLACE not in left_out:
        run_in_place(steps, inner)
    storages = list(dict.fromkeys(s.root for s in inner))
    apart = MEMORY in left_out
    alive = most_alive(storages)
    _last_for_groups(steps, storages)
    return storages, replace(share(storages, apart=apart), alive=alive)


def _last_for_groups(steps: Sequence[Step], storages: Iterable[Storage]) -> None:
    """Let storages be alive as long as the steps beside their first and last ones: where these
    wrote over each other's memory, they would have to wait."""
    first, last = [*range(len(steps))], [*range(len(steps))]
    for i in range(1, len(steps)):
        if steps[i].group == steps[i - 1].group:
            first[i] = first[i - 1]
    for i in reversed(range(len(steps) - 1)):
        if steps[i].group == steps[i + 1].group:
            last[i] = last[i + 1]
    for storage in storages:
        if storage.first >= 0:
            storage.first, storage.last = first[storage.first], last[storage.last]


def run_in_place(steps: Sequence[Step], free: Collection[Storage]) -> None:
    """Merge storages where an operator may write over an input that has no later reader.

    ``free`` are the storages that may be merged. ``first`` and ``last`` are known.
    """
    inner = set(free)
    for number, step in enumerate(steps):
        if not step.compiled.definition.in_place:
            continue
        read, written = _accesses(step)
        taken: set[Storage] = set()
        for output, layout in written:
            if output not in inner or output.first != number:
                continue
            for storage, _ in read:
                root = storage.root
                alike = _has_layout(read, root, layout)
                if storage in inner and alike and root.last == number and root not in taken:
                    taken.add(root)
                    root.merge(output)
                    break


def runs_over(step: Step, source: Storage, target: Storage) -> bool:
    """Whether a step may write ``target`` in the memory of ``source``, which it reads last."""
    if not step.compiled.definition.in_place:
        return False
    read, written = _accesses(step)
    layouts = [layout for s, layout in written if s.root is target.root]
    return (len(layouts) == 1 and _has_layout(read, source.root, layouts[0])
            and not any(s.root is source.root and s.begin for s, _ in written))


def _accesses(step: Step) -> tuple[list[tuple[Storage, Any]], list[tuple[Storage, Any]]]:
    """What a step reads, and what it writes, with the layouts."""
    inputs, outputs = tensors(step.compiled.operator)
    read, written = ([(s, _layout(t.desc)) for t, s in zip(slots, storages) if s is not None]
                     for slots, storages in ((inputs, step.storages),
                                             (outputs, step.storages[len(inputs):])))
    return read, written


def _has_layout(read: Sequence[tuple[Storage, Any]], root: Storage, layout: object) -> bool:
    """Whether all reads of this memory have the layout."""
    return all(seen == layout and not s.begin for s, seen in read if s.root is root)


def _layout(desc: TensorDesc | None) -> Any:
    """The strides of dimensions of one element say nothing."""
    return None if desc is None else (
        [(n, stride) for n, stride in zip(desc.sizes, desc.strides) if n != 1],
        desc.data_type.itemsize)


def begin(device: Device, operators: Iterable[CompiledOperator], *, once: bool = False
          ) -> list[Compiled]:
    """Let threads compile the shaders of a graph's operators, or with ``once`` those that run
    before its first dispatch. Returns their pipelines, which a plan holds.

    Once all operators are known: a thread that begins takes the interpreter from the one that
    plans.
    """
    return _begin(device, [key for compiled in operators for key in compiled.pipelines(once=once)])


def begin_slow(device: Device, compiled: CompiledOperator) -> None:
    """Let threads compile those of an operator's shaders that the first run would wait for, while
    the other operators are planned."""
    slow = [key for key in compiled.pipelines() if key[0].compile_cost >= SLOW]
    if slow:
        _begin(device, slow)


def begin_ahead(device: Device, shaders: Collection[Shader]) -> None:
    """Let threads compile shaders that sizes to come may take, once there is nothing else to do."""
    runtime = device.runtime
    with runtime.lock:
        runtime.pipelines.begin_ahead(shaders)


def _begin(device: Device, wanted: list[Shader]) -> list[Compiled]:
    runtime = device.runtime
    with runtime.lock:
        return runtime.pipelines.begin(wanted)


def compile_repacking(
    device: Device, desc: OperatorDesc, constants: Iterable[str],
    flags: ExecutionFlags = ExecutionFlags.NONE,
) -> CompiledOperator:
    """Compile an operator. Those of ``constants`` that it repacks are OWNED_BY_DML.

    The others would only be copied. The description was checked before.
    """
    wanted = wanted_of(desc, constants)

    def compiled() -> CompiledOperator:
        plan = device.plan(Operator(device, owning(desc, wanted)), flags)
        # What is not repacked is read where it lies: the plan is the same if it is not
        # OWNED_BY_DML.
        return CompiledOperator(Operator(device, owning(desc, plan.repacked)), plan, flags)

    return device.validation_cache.compiled(device.target, (bits(desc), wanted, flags), compiled)


def wanted_of(desc: OperatorDesc, constants: Iterable[str]) -> frozenset[str]:
    """Those of an operator's constants that it may repack."""
    repacks = desc.operator.owned and REPACKING not in disabled()
    return frozenset(constants if repacks else ())


def owning(desc: OperatorDesc, slots: Collection[str]) -> OperatorDesc:
    """The description with these inputs OWNED_BY_DML, and no others."""
    def flagged(slot: str, tensor: TensorDesc | None) -> TensorDesc | None:
        flags = TensorFlags.OWNED_BY_DML if slot in slots else TensorFlags.NONE
        if tensor is None or tensor.flags == flags:
            return tensor
        return tensor.replace(
            flags=flags, total_tensor_size_in_bytes=tensor.total_tensor_size_in_bytes)

    changes = {}
    for f in desc.operator.spec.inputs:
        value = getattr(desc, f.snake)
        owned = (tuple(flagged(f"{f.snake}[{i}]", t) for i, t in enumerate(value)) if f.is_array
                 else flagged(f.snake, value))
        if owned != value:
            changes[f.snake] = owned
    return desc.changed(**changes) if changes else desc
