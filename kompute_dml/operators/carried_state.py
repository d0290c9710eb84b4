"""A state that chunks of tokens change one after the other, in one dispatch. Graphs make it."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedError
from ..lowering.builder import PlanBuilder
from ..lowering.plan import UNUSED, Plan, Target
from ..spec import Field
from .base import OperatorDesc, widened
from .elementwise import ElementWiseAdd1OperatorDesc

SHADER = "carried_state"
_MOST = 1024
"""Vectors of four that a workgroup keeps: rows of the state and of an update."""
_INVOCATIONS = 256


def _lower(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    matrices, chunks, tokens, columns = d.a_tensor.sizes
    seen, height = d.into_tensor.sizes[-2:]
    taken, kept = d.taken_tensor, d.kept_tensor
    fours = _fours(matrices, columns, height + tokens, target)
    rows = seen + (tokens if taken is not None else 0)
    local = min(_INVOCATIONS, p.device.max_invocations)
    passes = -(-rows * fours // local) * (height + 1) + -(-height * fours // local) * (tokens + 1)
    span = max(1, min(chunks, p.device.max_loop_passes // (2 * passes)))  # and as many to be sure
    steps = {name: (0,) * 4 if t is None else t.strides for name, t in (
        ("values", d.a_tensor), ("keys", d.b_tensor), ("taken", taken), ("into", d.into_tensor))}
    for first in range(0, chunks, span):
        p.dispatch(
            SHADER, matrices * -(-columns // (4 * fours)), values=p.read("a_tensor"),
            keys=p.read("b_tensor"), taken=p.read("taken_tensor"), into=p.read("into_tensor"),
            kept=p.read("kept_tensor"), state=p.read("state_tensor") if not first else UNUSED,
            y=p.write("output_tensor"), last=p.write("last_tensor"),
            push={"matrices": matrices, "chunks": chunks, "first": first,
                  "count": min(span, chunks - first), "columns": columns,
                  "kept_by": (0,) * 3 if kept is None else kept.strides,
                  **{f"{name}_by": by for name, by in steps.items()}},
            spec={"LOCAL_SIZE": local, "HEIGHT": height, "FOURS": fours, "TOKENS": tokens,
                  "SEEN_ROWS": seen, "HAS_TAKEN": taken is not None,
                  "HAS_KEPT": kept is not None, "CONTINUES": first > 0})
    return p.build()


def _fours(matrices: int, columns: int, height: int, target: Target) -> int:
    """Columns of a workgroup, in vectors of four: as many as fit, but work for every core."""
    if height > _MOST:
        raise UnsupportedError(
            f"a state of {height} rows with a chunk's tokens: more than {_MOST} are not supported")
    fours = min(4, 1 << (-(-columns // 4) - 1).bit_length())
    while fours > 1 and (height * fours > _MOST or (
            matrices * -(-columns // (4 * fours)) < target.traits.cores)):
        fours //= 2
    return fours


CarriedStateDesc: Any = widened(
    ElementWiseAdd1OperatorDesc, Field("TakenTensor", "input", "TENSOR_DESC", True),
    Field("IntoTensor", "input", "TENSOR_DESC", False),
    Field("KeptTensor", "input", "TENSOR_DESC", True),
    Field("StateTensor", "input", "TENSOR_DESC", False),
    Field("LastTensor", "output", "TENSOR_DESC", False),
    name="CARRIED_STATE", lower=_lower, in_place=False)
"""All FLOAT32. A are values [matrix, chunk, token, column], B keys [matrix, chunk, token, feature],
Taken is like B, Into [matrix, chunk, row, feature], Kept [matrix, chunk, feature]. State and Last
are packed [matrix, feature, column]. The packed output of a chunk are the rows that Into sees of
the state, then, with Taken, the chunk's update."""
