"""Rows that are written to a cache from a place on, which each batch has. Graphs make it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..lowering.builder import PlanBuilder
from ..lowering.copy import copied_input
from ..lowering.plan import UNUSED, Plan, Target
from ..lowering.walk import Walk
from .base import widened
from .gather import ScatterOperatorDesc

if TYPE_CHECKING:
    from ..desc import TensorDesc
    from .base import OperatorDesc

_VECTOR = 16


def _lower(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    x, y, first = d.updates_tensor, d.output_tensor, d.indices_tensor
    if d.input_tensor is not None:  # else the cache lies in the output
        p.add(copied_input(p, d.input_tensor, y))
    each = _VECTOR // y.data_type.itemsize
    vectors = x.is_aligned and y.is_aligned and x.strides[3] == y.strides[3] == 1 and not any(
        n % each for n in (*x.strides[:3], *y.strides[:3], x.sizes[3]))
    unit = each if vectors else 1

    def in_units(t: TensorDesc) -> tuple[int, ...]:
        return (*(s // unit for s in t.strides[:3]), t.strides[3])

    walk = Walk((*x.sizes[:3], x.sizes[3] // unit), in_units(x), in_units(y), (0,) * 4,
                (first.strides[-1], 0, 0, 0), (0, 0, 1, 0))
    local = min(256, p.device.max_invocations)
    p.dispatch(
        "attention_cache", -(-walk.count // local), x=p.read("updates_tensor"), bias=UNUSED,
        lengths=p.read("indices_tensor"), y=p.write("output_tensor"), more=UNUSED,
        params=walk.words,
        push={"count": walk.count, "first": 0, "capacity": y.sizes[2],
              "row_stride": in_units(y)[2], "more_count": 0, "more_first": 0, "more_walk": 0},
        spec={"LOCAL_SIZE": local, "TYPE": y.data_type.code, "BIAS": False, "LENGTHS": True,
              "PAST": False, "VECTORS": vectors, "JOINS": False})
    return p.build()


AppendDesc: Any = widened(ScatterOperatorDesc, name="APPEND", lower=_lower, in_place=False)
"""Updates [batch, outer, row, element] go to the output, of the same dimensions, from the row on
that Indices [batch] say, as far as there is room. The output is the input before, or what it holds.
"""
