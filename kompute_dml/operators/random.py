"""Random numbers."""

from __future__ import annotations

from typing import Any

from ..attributes import RandomGeneratorType
from ..errors import expect
from ..layout import product
from ..lowering.builder import PlanBuilder
from ..lowering.copy import CopyView, copied
from ..lowering.plan import Operand, Plan, Target
from ..lowering.walk import Walk
from .base import OperatorDesc, operator, widened

_LOCAL_SIZE = 256
_BLOCKS = 4
"""Blocks of four words for each invocation."""
STATE_WORDS = 6
"""A counter of four words, the lowest first, and a key of two."""


def _check(desc: OperatorDesc, strict: bool) -> None:
    sizes = desc.input_state_tensor.sizes
    expect(sizes[-1] == STATE_WORDS and product(sizes) == STATE_WORDS, desc.operator.name,
           "InputStateTensor.Sizes", f"be {STATE_WORDS}, after ones", list(sizes))


@operator("RANDOM_GENERATOR", shaders=("random_generator",), check=_check, in_place=False,
          type=RandomGeneratorType.PHILOX_4X32_10)
def RandomGeneratorOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    following = d.output_state_tensor
    _draw(d, p, p.write("output_state_tensor"), 0 if following is None else following.strides[-1])


def _draw(d: OperatorDesc, p: PlanBuilder, following: Operand, next_stride: int) -> None:
    """Words of ``d``, and the state after them. It has no stride where it is not wanted."""
    state, y = d.input_state_tensor, d.output_tensor
    walk = Walk(y.sizes, y.strides)
    local_size = min(_LOCAL_SIZE, p.device.max_invocations)
    longs = p.library.find("random_generator", "longs")
    p.dispatch(
        longs or p.library.get("random_generator", "words"),
        -(-walk.count // (4 * _BLOCKS * local_size)),
        state=p.read("input_state_tensor"), y=p.write("output_tensor"), next=following,
        params=walk.words,
        push={"count": walk.count, "state_stride": state.strides[-1], "next_stride": next_stride},
        spec={"LOCAL_SIZE": local_size, "CONTIGUOUS": walk.contiguous,
              "NEXT": next_stride > 0, "EACH": _BLOCKS},
    )


def _draw_on(d: OperatorDesc, target: Target) -> Plan:
    """Every workgroup reads the state, so that the next one is written after them all."""
    p = PlanBuilder(target, d)
    following = p.temporary(4, STATE_WORDS)
    _draw(d, p, following, 1)
    state = d.input_state_tensor
    source, to = (CopyView.whole(slot, state) for slot in ("next", "output_state_tensor"))
    p.include(Plan((copied(p, state.sizes, source, to),)), {"next": following.reading()})
    return p.build()


DrawDesc: Any = widened(RandomGeneratorOperatorDesc, name="DRAW", lower=_draw_on, in_place=False)
"""RANDOM_GENERATOR whose next state goes where the state lies, which is packed. The output state is
the same memory. Graphs make it."""
