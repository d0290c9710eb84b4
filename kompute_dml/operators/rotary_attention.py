"""Attention of new queries to a cache, with their rotary embedding, and that of the new keys, which
go to the cache with their values. Graphs make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..desc import TensorDesc
from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import float_bits
from ..lowering.kernel import Kernel, choose
from ..lowering.plan import UNUSED, Plan, Target
from ..runtime.shader_library import Variant, sizes
from ..runtime.traits import DeviceTraits
from ..tuning import work_key
from .attention import AttentionHeads, HeadView
from .attention_kernels import ByLines
from .attention_problem import Attention, Lines
from .base import OperatorDesc, fields_of, widened
from .rotary_append import ROTARY_FIELDS, AppendedAttentionDesc, RotaryAppendDesc, copy_past

SHADER = "attention_rotary"
_WORD = 4
FAN_IN = 16
"""Parts of the keys that are combined at a time, if there are more than twice as many."""
_ROWS_TOGETHER = 4
"""Rows whose sums lie in shared memory at a time, as the shader has it."""


class _Rotated:
    """A description, and what attention is left once queries and keys are rotated and appended."""

    def __init__(self, p: PlanBuilder) -> None:
        self.desc = d = p.desc
        caches = d.output_present_key_tensor, d.output_present_value_tensor
        own = fields_of(AppendedAttentionDesc, d)
        self.appended = AppendedAttentionDesc(**own | {
            "query_tensor": _packed(d.query_tensor), "key_tensor": None, "value_tensor": None,
            "past_key_tensor": caches[0], "past_value_tensor": caches[1],
            "output_present_key_tensor": None, "output_present_value_tensor": None, "appended": 1})
        h = AttentionHeads(self.appended)
        assert h.query is not None and h.past_key is not None and h.past_value is not None

        def lines(slot: str, view: HeadView) -> Lines:
            return Lines(p.read(slot), view.strides, p.tensor(slot).base_alignment % 16 == 0,
                         view.sizes[3])

        self.attention = Attention(
            self.appended, h, lines("query_tensor", h.query),
            lines("output_present_key_tensor", h.past_key),
            lines("output_present_value_tensor", h.past_value),
            h.output("output_tensor").strides)

    @property
    def work(self) -> str:
        a = self.attention
        kind = "b" if a.is_bfloat16 else "f"
        return work_key(f"rotary attention {kind}{8 * a.itemsize}", a.rows, a.reach, a.h.head_size,
                        a.stacks)


class _Apart(Kernel[_Rotated]):
    """Rotary embedding, then attention."""

    name = "apart"
    cost = 1.0

    def lower(self, problem: _Rotated, p: PlanBuilder) -> None:
        d, attention = problem.desc, problem.appended
        y = attention.query_tensor
        turned = p.temporary(y.data_type.itemsize, y.element_count)
        rotary = RotaryAppendDesc(**fields_of(RotaryAppendDesc, d) | {"output_tensor": y})
        p.include(rotary.operator.lower(rotary, p.target), {"output_tensor": turned})
        p.include(attention.operator.lower(attention, p.target), {
            "query_tensor": turned.reading(),
            "past_key_tensor": p.read("output_present_key_tensor"),
            "past_value_tensor": p.read("output_present_value_tensor")})


@dataclass(frozen=True)
class _Together(Kernel[_Rotated]):
    """One query, in one dispatch."""

    lines: ByLines
    name = "together"

    def shader(self, problem: _Rotated) -> str:
        return self.lines.shader(problem.attention).replace("attention_lines", SHADER)

    def serves(self, problem: _Rotated, traits: DeviceTraits) -> str | None:
        d, a = problem.desc, problem.attention
        pairs, y = d.cos_tensor.sizes[-1], d.output_tensor
        if a.h.queries > 1:
            return f"there are {a.h.queries} queries"
        if not d.interleaved and pairs % 4:
            return f"{pairs} pairs are no multiple of 4"
        if a.h.batches > 1 and d.past_sequence_lengths_tensor.strides[-1] != 1:
            return "lengths are apart"
        if y.strides[-1] != 1 or y.base_alignment % _WORD or y.strides[0] * a.itemsize % _WORD:
            return "outputs are no words"
        return self.lines.serves(a, traits)

    def takes(self, problem: _Rotated, variant: Variant, traits: DeviceTraits) -> tuple[int, int]:
        a = problem.attention
        launch = self.lines.launch(a, traits)
        local, lanes, vectors = (launch.spec[n] for n in ("LOCAL_SIZE", "LANES", "VALUE_VECTORS"))
        more = min(sizes(self.shader(problem))["rows"], _ROWS_TOGETHER) - 1
        sums = 16 * local * -(-vectors // lanes) * (4 // a.itemsize)
        fresh = (a.h.head_size + a.h.value_size) * a.itemsize
        return local, launch.shared + more * sums + fresh + _WORD

    def lower(self, problem: _Rotated, p: PlanBuilder) -> None:
        d, a = problem.desc, problem.attention
        h, launch = a.h, self.lines.launch(a, p.device)
        parts, _ = launch.split(a, p.device)
        local, groups = min(256, p.device.max_invocations), -(-parts // FAN_IN)
        for which in ("key", "value"):
            if getattr(d, f"past_{which}_tensor") is not None:
                copy_past(d, p, which, local)
        ids = d.position_ids_tensor
        p.dispatch(
            self.shader(problem), a.stacks * parts, q=p.read("query_tensor"),
            k=p.write("output_present_key_tensor"), v=p.write("output_present_value_tensor"),
            lengths=p.read("past_sequence_lengths_tensor"), y=p.write("output_tensor"),
            records=p.temporary(4, h.heads * h.batches * (parts + groups) * (h.value_size + 4)),
            arrived=p.zeroed(4, a.stacks * (groups + 1)), fresh_k=p.read("key_tensor"),
            fresh_v=p.read("value_tensor"), cos=p.read("cos_tensor"), sin=p.read("sin_tensor"),
            ids=p.read("position_ids_tensor"), sink=p.read("sink_tensor") if a.sinks else UNUSED,
            push={"batches": h.batches, "key_heads": h.key_heads, "group": h.heads // h.key_heads,
                  "keys": h.keys, "parts": parts, "scale": float_bits(d.scale),
                  "q_by": d.query_tensor.strides[0], "y_by": a.y_strides[0],
                  "fresh_by": (d.key_tensor.strides[0], d.value_tensor.strides[0]),
                  "k_by": a.key.strides[:3], "v_by": a.value.strides[:3],
                  "positions": d.cos_tensor.sizes[-2]},
            spec={"TYPE": a.type.code, "OF_BFLOAT16": a.is_bfloat16,
                  "INTERLEAVED": bool(d.interleaved),
                  "IDS": 0 if ids is None else ids.data_type.itemsize // _WORD, "SINK": a.sinks,
                  "FAN_IN": FAN_IN, "PAIRS": d.cos_tensor.sizes[-1], "WINDOW": a.window,
                  "SOFT_CAP": float_bits(a.soft_cap), **launch.spec})


KERNELS: tuple[Kernel[_Rotated], ...] = (_Together(ByLines(8, least=2)), _Apart())


def _lower(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    problem = _Rotated(p)
    choose(KERNELS, problem, p).lower(problem, p)
    return p.build()


def _packed(t: TensorDesc) -> TensorDesc:
    return TensorDesc(t.data_type, t.sizes)


RotaryAttentionDesc: Any = widened(
    AppendedAttentionDesc, *ROTARY_FIELDS, name="ROTARY_ATTENTION", lower=_lower, in_place=False)
"""Fields are those of :data:`RotaryAppendDesc`, but for the output, and of
:data:`AppendedAttentionDesc`, whose past keys and values are the present ones here."""
