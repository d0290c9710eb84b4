"""Checks of plans that this device may be unable to run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from kompute_dml.desc import tensor_of
from kompute_dml.graph import builder, compiled, planner
from kompute_dml.lowering.kernel import Kernel
from kompute_dml.lowering.plan import PARAMS, PERSISTENT, TEMPORARY, ZEROED, Plan
from kompute_dml.runtime.pipelines import Pipelines


def checked(desc: Any, plan: Plan) -> Plan:
    """The plan. Its dispatches have the constants, push fields and as many bindings as their
    shaders; what they bind lies within the memory of its slot."""
    tensors = {f.snake: tensor_of(desc, f.snake) for f in desc.operator.slots(desc)}
    limits = {slot: t.total_tensor_size_in_bytes for slot, t in tensors.items() if t is not None}
    limits |= {TEMPORARY: plan.temporary_bytes, PERSISTENT: plan.persistent_bytes,
               ZEROED: plan.zeroed_bytes, PARAMS: 4 * len(plan.params)}
    for d in (*plan.initialize, *plan.execute):
        d.variant.pack_spec(d.spec)
        d.variant.pack_push(d.push)
        assert len(d.operands) == d.variant.bindings
        for o in d.operands:
            if o.slot is not None:
                assert o.offset_field is None or o.offset_field in d.variant.push_fields, (
                    d.variant.name, o)
                assert (o.offset + o.length) * o.itemsize <= limits[o.slot], (
                    d.variant.name, o)
    return plan


def without_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads compile no pipelines of graphs, of shaders that this device may not take."""
    for name in ("begin", "begin_slow"):
        monkeypatch.setattr(planner, name, lambda *_, **__: None)
    for module in (builder, compiled):
        monkeypatch.setattr(module, "begin", lambda *_, **__: None)
    monkeypatch.setattr(Pipelines, "begin_ahead", lambda *_: None)


class _Unchanged:
    """Stands for a problem. Kernels take the variants that they are named by for it."""

    def variant(self, name: str) -> str:
        return name


def shaders_of(kernels: Iterable[Kernel[Any]]) -> set[str]:
    """The shader variants of kernels that take the same ones for all problems."""
    problem: Any = _Unchanged()
    return {kernel.shader(problem) for kernel in kernels}
