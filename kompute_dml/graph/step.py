"""The steps of a graph: compiled operators, and the storage of each of their slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from ..desc import TensorFlags
from ..operators.base import OperatorDesc
from .memory import Storage

if TYPE_CHECKING:
    from ..compiler import CompiledOperator
    from ..device import Device


class Step:
    """A compiled operator with a storage for every slot, or None."""

    def __init__(self, compiled: CompiledOperator, storages: Sequence[Storage | None]) -> None:
        self.compiled = compiled
        self.storages = storages


def run_in_place(steps: Sequence[Step], free: Collection[Storage]) -> None:
    """Merge storages where an operator may write over an input that nothing reads any more.

    ``free`` are those that may be merged; ``first`` and ``last`` of all are known.
    """
    inner = set(free)
    for number, step in enumerate(steps):
        compiled = step.compiled
        if not compiled.definition.in_place:
            continue
        spec = compiled.definition.spec
        layouts = [
            None if (t := compiled.operator.tensor(f)) is None
            else (t.sizes, t.strides, t.data_type.itemsize)
            for f in (*spec.inputs, *spec.outputs)
        ]
        count = len(spec.inputs)
        taken: set[Storage] = set()
        for output, layout in zip(step.storages[count:], layouts[count:]):
            if output is None or output not in inner or output.first != number:
                continue
            for storage in step.storages[:count]:
                if storage is None or storage not in inner:
                    continue
                root = storage.root
                # Whatever else of the step has this memory must be seen alike.
                alike = all(
                    seen == layout for s, seen in zip(step.storages[:count], layouts)
                    if s is not None and s.root is root
                )
                if alike and root.last == number and root not in taken:
                    taken.add(root)
                    root.merge(output)
                    break


def compile_repacking(
    device: Device, desc: OperatorDesc, constants: Iterable[str]
) -> CompiledOperator:
    """Compile with those of ``constants`` OWNED_BY_DML that the operator keeps in its own form.

    The others would only be copied.
    """
    def own(fields: Iterable[str]) -> CompiledOperator:
        changes = {}
        for f in desc.operator.spec.inputs:
            tensor = getattr(desc, f.snake)
            if tensor is not None:
                flags = TensorFlags.OWNED_BY_DML if f.snake in fields else TensorFlags.NONE
                changes[f.snake] = tensor.replace(
                    flags=flags, total_tensor_size_in_bytes=tensor.total_tensor_size_in_bytes)
        owned = dataclasses.replace(desc, **changes)
        return device.compile_operator(device.create_operator(owned))

    wanted = frozenset(constants)
    compiled = own(wanted)
    return compiled if compiled.plan.repacked == wanted else own(compiled.plan.repacked)
