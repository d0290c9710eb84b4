"""Rotary embedding of new queries and keys, which go to a cache with their values, in one dispatch;
and attention to such a cache. Graphs make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..desc import TensorDesc
from ..dtypes import DataType
from ..lowering.builder import PlanBuilder
from ..lowering.plan import UNUSED, Plan, Target
from ..lowering.walk import Walk
from ..runtime.traits import DeviceTraits
from ..spec import Field
from .attention import MultiheadAttention1OperatorDesc
from .base import OperatorDesc, widened

SHADER = "rotary_append"
_BINDINGS = 10
_WORD = 4


def serves(traits: DeviceTraits) -> bool:
    """Whether a device binds as many buffers as the kernel needs."""
    return traits.max_bindings >= _BINDINGS


def takes(fresh: Sequence[TensorDesc], head: int, value: int, rotated: int) -> bool:
    """Whether the kernel can read queries, keys and values [batch, token, all heads] of heads of so
    many elements, of which some are rotated. UINT16 is BFLOAT16."""
    kind = fresh[0].data_type
    return (kind.is_float or kind == DataType.UINT16) and kind.itemsize <= _WORD and not (
        head % 4 or value % 4 or rotated % 4) and all(
            t.strides[-1] == 1 and t.base_alignment % _WORD == 0
            and not any(s * kind.itemsize % _WORD for s, n in zip(t.strides[:-1], t.sizes) if n > 1)
            for t in fresh)


def _lower(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    q, key, value = d.query_tensor, d.output_present_key_tensor, d.output_present_value_tensor
    batches, queries, features = q.sizes
    heads, key_heads = d.query_head_count, d.key_value_head_count
    head = features // heads
    local = min(256, p.device.max_invocations)
    for which in ("key", "value"):  # what is past, where the cache does not lie in place
        if getattr(d, f"past_{which}_tensor") is not None:
            copy_past(d, p, which, local)
    fours, value_fours = head // 4, value.sizes[-1] // 4
    count = batches * queries * (heads * fours + key_heads * (fours + value_fours))
    ids = d.position_ids_tensor
    p.dispatch(
        SHADER, -(-count // local),
        q=p.read("query_tensor"), k=p.read("key_tensor"), v=p.read("value_tensor"),
        cos=p.read("cos_tensor"), sin=p.read("sin_tensor"),
        lengths=p.read("past_sequence_lengths_tensor"), ids=p.read("position_ids_tensor"),
        y=p.write("output_tensor"), key=p.write("output_present_key_tensor"),
        value=p.write("output_present_value_tensor"),
        push={"count": count, "queries": queries, "heads": heads, "key_heads": key_heads,
              "fours": fours, "value_fours": value_fours,
              "turned_fours": d.cos_tensor.sizes[-1] // 2, "capacity": key.sizes[-2],
              "positions": d.cos_tensor.sizes[-2],
              "lengths_by": d.past_sequence_lengths_tensor.strides[-1],
              "q_by": q.strides[:2], "k_by": d.key_tensor.strides[:2],
              "v_by": d.value_tensor.strides[:2], "key_by": key.strides[:3],
              "value_by": value.strides[:3]},
        spec={"LOCAL_SIZE": local, "TYPE": q.data_type.code, "INTERLEAVED": bool(d.interleaved),
              "OF_BFLOAT16": q.data_type == DataType.UINT16,
              "IDS": 0 if ids is None else ids.data_type.itemsize // _WORD})
    return p.build()


def copy_past(d: OperatorDesc, p: PlanBuilder, which: str, local: int) -> None:
    past, to = getattr(d, f"past_{which}_tensor"), getattr(d, f"output_present_{which}_tensor")
    walk = Walk(past.sizes, past.strides, to.strides, (0,) * 4,
                (d.past_sequence_lengths_tensor.strides[-1], 0, 0, 0), (0, 0, 1, 0))
    p.dispatch(
        "attention_cache", -(-walk.count // local), x=p.read(f"past_{which}_tensor"), bias=UNUSED,
        lengths=p.read("past_sequence_lengths_tensor"),
        y=p.write(f"output_present_{which}_tensor"), more=UNUSED, params=walk.words,
        push={"count": walk.count, "first": 0, "capacity": to.sizes[-2],
              "row_stride": to.strides[2], "more_count": 0, "more_first": 0, "more_walk": 0},
        spec={"LOCAL_SIZE": local, "TYPE": past.data_type.code, "BIAS": False, "LENGTHS": True,
              "PAST": True, "VECTORS": False, "JOINS": False})


ROTARY_FIELDS = (
    *(Field(name, "input", "TENSOR_DESC", True)
      for name in ("CosTensor", "SinTensor", "PositionIdsTensor")),
    Field("Interleaved", "attribute", "UINT", True))
"""What tells how queries and keys are rotated."""

RotaryAppendDesc: Any = widened(
    MultiheadAttention1OperatorDesc, *ROTARY_FIELDS, name="ROTARY_APPEND", lower=_lower,
    in_place=False)
"""Queries, keys and values are [batch, token, all heads], caches [batch, head, row, element]. Cos
and Sin are packed [position, pair]. Position ids are packed [batch, token]; without them positions
follow the past. The output are the queries, packed. The first elements of a head are rotated.
UINT16 is BFLOAT16."""

AppendedAttentionDesc: Any = widened(
    MultiheadAttention1OperatorDesc, Field("Appended", "attribute", "UINT", True),
    Field("Window", "attribute", "UINT", True), Field("SoftCap", "attribute", "FLOAT", True),
    Field("SinkTensor", "input", "TENSOR_DESC", True))
"""Attention with past lengths. Appended: past keys and values already hold the new ones, after as
many rows as the lengths say. Window: a query sees so many keys at most, of which its own is the
last. SoftCap: scores s become SoftCap * tanh(s / SoftCap). Sink: packed [head], a score of no key,
which takes its share. Without one of these, it is not so."""
