"""Attention: softmax(Scale * Q K^T + position bias + mask) V, in one pass over the keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..attributes import MultiheadAttentionMaskType as MaskType
from ..desc import TensorDesc
from ..errors import expect, refuse
from ..layout import Ints, extent, packed_strides, pad_left, product
from ..lowering.builder import PlanBuilder
from ..lowering.kernel import choose
from ..lowering.plan import TEMPORARY, UNUSED, Operand
from ..lowering.walk import Walk
from ..sizes import whole
from .attention_kernels import KERNELS, SHADERS
from .attention_problem import Attention, Lines
from .base import OperatorDesc, Output, operator

_SOURCES = (("query_tensor", "stacked_query_key_tensor", "stacked_query_key_value_tensor"),
            ("key_tensor", "stacked_query_key_tensor", "stacked_key_value_tensor",
             "stacked_query_key_value_tensor"),
            ("value_tensor", "stacked_key_value_tensor", "stacked_query_key_value_tensor"))
"""Fields that may hold queries, keys and values."""
_PLACES = {"stacked_query_key_tensor": (0, 1, None), "stacked_key_value_tensor": (None, 0, 1),
           "stacked_query_key_value_tensor": (0, 1, 2)}
"""The positions of queries, keys and values in a stack."""


def _field(snake: str) -> str:
    return "".join(part.capitalize() for part in snake.split("_"))


def _last(desc: OperatorDesc, snake: str, count: int) -> TensorDesc:
    """The last ``count`` dimensions of a tensor. Those before must have size 1."""
    t: TensorDesc = getattr(desc, snake)
    fits = len(t.sizes) >= count and product(t.sizes[:-count]) == 1
    expect(fits, desc.operator.name, f"{_field(snake)}.Sizes",
           f"have {count} dimensions, after ones", list(t.sizes))
    return TensorDesc(t.data_type, t.sizes[-count:], t.strides[-count:])


@dataclass(frozen=True)
class HeadView:
    """Heads in a tensor: (batch, head, position, element)."""

    slot: str
    offset: int
    sizes: Ints
    strides: Ints

    def read(self, p: PlanBuilder) -> Operand:
        """The operand that reads them."""
        return p.read(self.slot, self.offset, extent(self.sizes, self.strides))


class AttentionHeads:
    """A description of attention, with its tensors seen as heads."""

    def __init__(self, desc: OperatorDesc) -> None:
        self.desc, self.name = desc, desc.operator.name
        grouped = hasattr(desc, "query_head_count")
        self.heads = desc.query_head_count if grouped else desc.head_count
        self.key_heads = desc.key_value_head_count if grouped else desc.head_count
        field = "QueryHeadCount" if grouped else "HeadCount"
        expect(self.heads >= 1, self.name, field, "be at least 1", self.heads)
        expect(self.key_heads >= 1 and self.heads % self.key_heads == 0, self.name,
               "KeyValueHeadCount", f"divide QueryHeadCount, {self.heads}", self.key_heads)
        self.lengths = "past_sequence_lengths_tensor" if getattr(
            desc, "past_sequence_lengths_tensor", None) is not None else None
        self.query, self.key, self.value = (
            self._source(i, heads) for i, heads in
            enumerate((self.heads, self.key_heads, self.key_heads)))
        self.past_key, self.past_value = (self._past(n) for n in ("key", "value"))
        self._check_sources()

    def _source(self, which: int, heads: int) -> HeadView | None:
        slots = [f for f in _SOURCES[which] if getattr(self.desc, f) is not None]
        rule = f"be the only one that gives {('queries', 'keys', 'values')[which]}"
        for f in slots[1:]:
            refuse(self.name, _field(f), rule, f"{_field(slots[0])}, too")
        if not slots:
            return None
        slot = slots[0]
        if slot not in _PLACES:
            t = _last(self.desc, slot, 3)
            batch, length, features = t.sizes
            expect(features % heads == 0, self.name, f"{_field(slot)}.Sizes",
                   f"end with a multiple of {heads} heads", features)
            size = features // heads
            by_batch, by_position, by_element = t.strides
            return HeadView(slot, 0, (batch, heads, length, size),
                        (by_batch, size * by_element, by_position, by_element))
        t, place = _last(self.desc, slot, 5), _PLACES[slot][which]
        batch, length, count, stacked, size = t.sizes
        wanted = 3 - _PLACES[slot].count(None)
        expect(count == heads and stacked == wanted, self.name, f"{_field(slot)}.Sizes",
               f"be [batch, length, {heads}, {wanted}, head size]", list(t.sizes))
        by_batch, by_position, by_head, by_stack, by_element = t.strides
        return HeadView(slot, (place or 0) * by_stack, (batch, heads, length, size),
                    (by_batch, by_head, by_position, by_element))

    def _past(self, which: str) -> HeadView | None:
        if getattr(self.desc, slot := f"past_{which}_tensor") is None:
            return None
        t = _last(self.desc, slot, 4)
        return HeadView(slot, 0, t.sizes, t.strides)

    def _check_sources(self) -> None:
        expect(self.query is not None, self.name, "QueryTensor", "be given, or stacked", None)
        for new, past, what in ((self.key, self.past_key, "Key"),
                                (self.value, self.past_value, "Value")):
            expect(new is not None or (past is not None and (
                self.lengths is None or getattr(self.desc, "appended", 0))), self.name,
                   f"{what}Tensor", f"be given, or stacked, or all in Past{what}Tensor", None)
        for one, other, prefix in ((self.key, self.value, ""),
                                   (self.past_key, self.past_value, "Past")):
            expect((one is None) == (other is None), self.name, f"{prefix}ValueTensor",
                   f"be given with {prefix}KeyTensor, and only then", one and one.slot)
        assert self.query is not None
        self.batches, _, self.queries, self.head_size = self.query.sizes
        value = self.value or self.past_value
        assert value is not None
        self.value_size = value.sizes[3]
        self.fresh = self.key.sizes[2] if self.key is not None else 0
        self.past = self.past_key.sizes[2] if self.past_key is not None else 0
        for view, length, size in (
            (self.key, self.fresh, self.head_size), (self.value, self.fresh, self.value_size),
            (self.past_key, self.past, self.head_size),
            (self.past_value, self.past, self.value_size),
        ):
            wanted = (self.batches, self.key_heads, length, size)
            if view is not None:
                expect(view.sizes == wanted, self.name, f"{_field(view.slot)}.Sizes",
                       "give [batch, heads, length, head size] " + str(list(wanted)),
                       list(view.sizes))

    @property
    def keys(self) -> int:
        """The number of keys that a query may see: past and new keys, or the capacity of the
        caches."""
        if self.lengths is None:
            return self.past + self.fresh
        for slot in ("output_present_key_tensor", "past_key_tensor"):
            if getattr(self.desc, slot) is not None:
                return whole(getattr(self.desc, slot).sizes[-2])
        refuse(self.name, "OutputPresentKeyTensor", "be given with PastSequenceLengthsTensor", None)

    def infer(self) -> dict[str, Output]:
        """The outputs, with the rank of the description's output, or else of an input."""
        kind = getattr(self.desc, self.query.slot).data_type  # type: ignore[union-attr]

        def result(slot: str, like: str, *sizes: int) -> Output:
            tensor = getattr(self.desc, slot) or getattr(self.desc, like)
            rank = len(sizes) if tensor is None else tensor.dimension_count
            return Output(pad_left(sizes, rank, 1), kind)

        present = (self.batches, self.key_heads, self.keys)
        return {
            "output_tensor": result("output_tensor", "query_tensor", self.batches, self.queries,
                                    self.heads * self.value_size),
            "output_present_key_tensor": result("output_present_key_tensor", "past_key_tensor",
                                                *present, self.head_size),
            "output_present_value_tensor": result(
                "output_present_value_tensor", "past_value_tensor", *present, self.value_size),
        }

    def output(self, slot: str) -> HeadView:
        """OutputTensor, or a present output, as heads."""
        if slot != "output_tensor":
            t = _last(self.desc, slot, 4)
            return HeadView(slot, 0, t.sizes, t.strides)
        t = _last(self.desc, slot, 3)
        by_batch, by_position, by_element = t.strides
        return HeadView(slot, 0, (self.batches, self.heads, self.queries, self.value_size),
                    (by_batch, self.value_size * by_element, by_position, by_element))


def _infer(desc: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    return AttentionHeads(desc).infer()


def _check(desc: OperatorDesc, strict: bool) -> None:
    heads, name = AttentionHeads(desc), desc.operator.name
    for f in ("output_tensor", "output_present_key_tensor", "output_present_value_tensor"):
        if getattr(desc, f) is not None:
            heads.output(f)
    wanted = {
        MaskType.KEY_SEQUENCE_LENGTH: (1, heads.batches),
        MaskType.KEY_SEQUENCE_END_START: (2, heads.batches),
        MaskType.KEY_QUERY_SEQUENCE_LENGTH_START_END: (3 * heads.batches + 2,),
        MaskType.BOOLEAN: (heads.batches, heads.heads, heads.queries, heads.keys),
    }.get(desc.mask_type)
    expect((desc.mask_tensor is not None) == (wanted is not None), name, "MaskTensor",
           "be given where MaskType is not NONE, and only there", desc.mask_tensor)
    if wanted is not None:
        mask = _last(desc, "mask_tensor", len(wanted))
        expect(mask.sizes == wanted, name, "MaskTensor.Sizes", f"be {list(wanted)}, after ones",
               list(desc.mask_tensor.sizes))
    if desc.relative_position_bias_tensor is not None:
        sizes = (heads.batches, heads.heads, heads.queries, heads.keys)
        bias = _last(desc, "relative_position_bias_tensor", 4)
        expect(bias.sizes == sizes, name, "RelativePositionBiasTensor.Sizes",
               f"be {list(sizes)}, after ones", list(bias.sizes))
    if desc.bias_tensor is not None:
        size = (heads.heads + heads.key_heads) * heads.head_size + (
            heads.key_heads * heads.value_size)
        bias = _last(desc, "bias_tensor", 1)
        expect(bias.sizes == (size,), name, "BiasTensor.Sizes",
               f"be [{size}], after ones", list(desc.bias_tensor.sizes))
    if heads.lengths is not None:
        bias = _last(desc, heads.lengths, 1)
        expect(bias.sizes == (heads.batches,), name, "PastSequenceLengthsTensor.Sizes",
               f"be [{heads.batches}], after ones", list(desc.past_sequence_lengths_tensor.sizes))
        for f in ("output_present_key_tensor", "output_present_value_tensor"):
            expect(getattr(desc, f) is not None, name, _field(f),
                   "be given with PastSequenceLengthsTensor", None)


class _AttentionLowering:
    def __init__(self, desc: OperatorDesc, p: PlanBuilder) -> None:
        self.p, self.desc, self.h = p, desc, AttentionHeads(desc)
        self.type = desc.output_tensor.data_type
        self.local_size = min(256, p.device.max_invocations)

    def lower(self) -> None:
        h = self.h
        assert h.query is not None
        query: tuple[Operand, Ints] = h.query.read(self.p), h.query.strides
        if self.desc.bias_tensor is not None:
            to = self._made(h.query.sizes)
            self._put([(h.query, 0, 0)], to, whole=True)
            query = to[0].reading(), to[1]
        at = h.heads * h.head_size
        key = self._collected("key", h.key, h.past_key, at, h.head_size)
        value = self._collected("value", h.value, h.past_value, at + h.key_heads * h.head_size,
                                h.value_size)
        self._attend(query, key, value)

    def _made(self, sizes: Ints) -> tuple[Operand, Ints]:
        return self.p.temporary(self.type.itemsize, product(sizes)), packed_strides(sizes)

    def _collected(
        self, which: str, new: HeadView | None, past: HeadView | None, bias: int, size: int
    ) -> tuple[Operand, Ints]:
        """Where all keys (or values) lie: an input, or a copy that joins past and new ones."""
        h, slot = self.h, f"output_present_{which}_tensor"
        wanted = getattr(self.desc, slot) is not None
        only = past if new is None else new if past is None else None
        if only is not None and not wanted and (self.desc.bias_tensor is None or new is None):
            return only.read(self.p), only.strides
        if wanted:
            to = self.p.write(slot), h.output(slot).strides
        else:
            to = self._made((h.batches, h.key_heads, h.keys, size))
        parts = [(view, begin, first) for view, begin, first in (
            (past, None, 0), (new, bias, h.past)) if view is not None]
        # Where both are vectors, or neither is, one dispatch writes both.
        if len({self._in_vectors(view, to, begin) for view, begin, _ in parts}) == 1:
            self._put(parts, to)
        else:
            for part in parts:
                self._put([part], to)
        return to[0].reading(), to[1]

    def _is_biased(self, bias: int | None) -> bool:
        return bias is not None and self.desc.bias_tensor is not None

    def _in_vectors(self, view: HeadView, to: tuple[Operand, Ints], bias: int | None) -> bool:
        """Whether heads may be copied in vectors of 16 bytes."""
        lines = [Lines(*ends, self._begins_aligned(ends[0]), view.sizes[3])
                 for ends in ((view.read(self.p), view.strides), to)]
        return not self._is_biased(bias) and all(x.aligned(self.type.itemsize) for x in lines)

    def _put(self, parts: list[tuple[HeadView, int | None, int]], to: tuple[Operand, Ints],
             whole: bool = False) -> None:
        """Copy heads and add their bias. Of each part: the heads, the element at which their bias
        begins (None: they are past heads), and their first row. ``whole``: the rows are not those
        of a cache."""
        p, desc, h = self.p, self.desc, self.h
        lengths = None if whole else h.lengths
        capacity = h.queries if whole else h.keys
        by_length = getattr(desc, lengths).strides[-1] if lengths else 0
        vectors = self._in_vectors(parts[0][0], to, parts[0][1])
        unit = 16 // self.type.itemsize if vectors else 1

        def in_units(strides: Ints) -> Ints:
            """Strides count vectors. The next vector is contiguous."""
            return (*(s // unit for s in strides[:3]), strides[3])

        walks = []
        for view, bias, _ in parts:
            by = desc.bias_tensor.strides[-1] if self._is_biased(bias) else 0
            walks.append(Walk(
                (*view.sizes[:3], view.sizes[3] // unit), in_units(view.strides), in_units(to[1]),
                (0, view.sizes[3] * by, 0, by), (by_length, 0, 0, 0), (0, 0, 1, 0)))
        (view, _, first), (last, bias, then) = parts[0], parts[-1]
        biased = self._is_biased(bias)
        by = desc.bias_tensor.strides[-1] if biased else 0
        joins = len(parts) > 1
        count = sum(walk.count for walk in walks)
        p.dispatch(
            "attention_cache", -(-count // self.local_size), x=view.read(p),
            bias=p.read("bias_tensor", (bias or 0) * by, 1 + (
                last.sizes[1] * last.sizes[3] - 1) * by) if biased else UNUSED,
            lengths=p.read(lengths) if lengths else UNUSED, y=to[0],
            more=last.read(p) if joins else UNUSED,
            params=[word for walk in walks for word in walk.words],
            push={"count": walks[0].count, "first": first, "capacity": capacity,
                  "row_stride": in_units(to[1])[2], "more_count": walks[1].count if joins else 0,
                  "more_first": then, "more_walk": len(walks[0].words)},
            spec={"LOCAL_SIZE": self.local_size, "TYPE": self.type.code, "BIAS": biased,
                  "LENGTHS": bool(lengths), "PAST": parts[0][1] is None, "VECTORS": vectors,
                  "JOINS": joins},
        )

    def _attend(self, query: tuple[Operand, Ints], key: tuple[Operand, Ints],
                value: tuple[Operand, Ints]) -> None:
        h = self.h
        q, k, v = (Lines(*operand, self._begins_aligned(operand[0]), size) for operand, size in (
            (query, h.head_size), (key, h.head_size), (value, h.value_size)))
        problem = Attention(self.desc, h, q, k, v, h.output("output_tensor").strides)
        choose(KERNELS, problem, self.p).lower(problem, self.p)

    def _begins_aligned(self, operand: Operand) -> bool:
        """Whether it begins at a multiple of 16 bytes."""
        alignment = 16
        if operand.slot is not None and operand.slot != TEMPORARY:
            alignment = self.p.tensor(operand.slot).base_alignment
        return alignment % 16 == 0 and operand.offset * operand.itemsize % 16 == 0


_DEFAULTS: dict[str, Any] = {"mask_filter_value": -10000.0, "mask_type": MaskType.NONE}
_SHADERS = (*SHADERS, "attention_cache")


@operator("MULTIHEAD_ATTENTION", output=_infer, shaders=_SHADERS, check=_check, in_place=False,
          **_DEFAULTS)
def MultiheadAttentionOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _AttentionLowering(d, p).lower()


@operator("MULTIHEAD_ATTENTION1", output=_infer, shaders=_SHADERS, check=_check, in_place=False,
          **_DEFAULTS)
def MultiheadAttention1OperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _AttentionLowering(d, p).lower()
