"""Random numbers."""

from __future__ import annotations

from ..attributes import RandomGeneratorType
from ..errors import expect
from ..layout import product
from ..lowering.builder import PlanBuilder
from ..lowering.walk import Walk
from .base import OperatorDesc, operator

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
    state, y, following = d.input_state_tensor, d.output_tensor, d.output_state_tensor
    walk = Walk(y.sizes, y.strides)
    local_size = min(_LOCAL_SIZE, p.device.max_invocations)
    longs = p.library.find("random_generator", "longs")
    p.dispatch(
        longs or p.library.get("random_generator", "words"),
        -(-walk.count // (4 * _BLOCKS * local_size)),
        state=p.read("input_state_tensor"), y=p.write("output_tensor"),
        next=p.write("output_state_tensor"), params=walk.words,
        push={"count": walk.count, "state_stride": state.strides[-1],
              "next_stride": following.strides[-1] if following is not None else 0},
        spec={"LOCAL_SIZE": local_size, "CONTIGUOUS": walk.contiguous,
              "NEXT": following is not None, "EACH": _BLOCKS},
    )
