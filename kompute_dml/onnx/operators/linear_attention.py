"""LinearAttention: a state of keys by values in place of a cache, which each token changes.

    state = exp(decay) * state + key x update,  output = scale * query . state

where the update is the value or, by the delta rules, beta * (value - key . exp(decay) * state).
Tokens are taken in chunks. What a chunk's own tokens do to each other are products of matrices, for
all chunks at once; only the state goes from chunk to chunk, within one dispatch (CARRIED_STATE).
"""

from __future__ import annotations

import numpy as np

from ...attributes import ReduceFunction
from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...operators.carried_state import CarriedStateDesc
from ..graph import OnnxNode
from ..lowerings import Inputs, converted, emit_elementwise, given, optional
from ..row import MICROSOFT, Mapping
from . import movement
from .products import product_of, transposed
from .reduction import reduced

_FLOAT = np.dtype("float32")
_MOST = 32
"""The most tokens of a chunk: a power of two."""


def linear_attention(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    read = node.attributes
    heads, query_heads = read["kv_num_heads"], read["q_num_heads"]
    rule = read.get("update_rule", "gated_delta")
    first, before = given(inputs, 0), optional(inputs, 3)
    batches, tokens, features = first.shape
    fits = heads > 0 and query_heads > 0 and max(heads, query_heads) % heads == 0
    if not first.size or not fits or features % query_heads:
        raise ValidationError(f"expected tokens with q_num_heads={query_heads} and kv_num_heads="
                              f"{heads}, but got sizes {list(first.shape)}")
    # com.microsoft's may have fewer queries and keys than values and states.
    size = features // query_heads
    q = _shared(builder, first, size, max(heads, query_heads))
    groups = max(heads, query_heads) // heads
    each = min(_MOST, 1 << (tokens - 1).bit_length())
    layout = _TokenChunks(batches, heads, tokens, each)
    q = layout.split(builder, q, heads * groups)
    k = layout.split(builder, _shared(builder, given(inputs, 1), size, heads), heads)
    v = layout.split(builder, given(inputs, 2), heads)
    width = v.shape[-1]
    # [batch and head, chunk, group, token, feature]: groups share keys, values and states.
    q = builder.reshape(q, (batches * heads, groups, *q.shape[1:])).transpose((0, 2, 1, 3, 4))
    scale = float(read.get("scale", 0.0)) or size ** -0.5
    q = _times(builder, q, builder.constant(np.full((), scale, _FLOAT)))
    if before is None:
        state = builder.constant(np.zeros((batches * heads, size, width), _FLOAT))
    else:
        state = builder.reshape(converted(builder, before, _FLOAT), (batches * heads, size, width))
    if state.storage is None:
        raise ValidationError("expected values to have features")

    decay = _Decay(builder, layout.split(builder, given(inputs, 4), heads)
                   if rule.startswith("gated") else None, each)
    shares = _rows(builder, decay.products(_rows(builder, q), k, groups))
    into, out_of = _rows(builder, decay.since_begin(q, 1)), decay.until_end(k)
    taken = None
    if rule.endswith("delta"):
        beta = given(inputs, 5)
        beta = layout.split(builder, beta.broadcast_to((batches, tokens, heads)), heads)
        solved = _solved(builder, _times(
            builder, decay.products(k, k, 0), beta,
            builder.constant(np.tri(each, k=-1, dtype=_FLOAT))))
        v, old = _times(builder, v, beta), _times(builder, decay.since_begin(k, 0), beta)
        if solved is not None:
            v, old = product_of(builder, solved, v), product_of(builder, solved, old)
        taken = _times(builder, old, builder.constant(np.full((), -1, _FLOAT)))

    seen, update, state = _carried(builder, v, out_of, taken, into, decay.of_chunks(size), state)
    y = product_of(builder, shares, update, seen)
    y = builder.reshape(y, (batches, heads, layout.chunks, groups, each, width))
    y = builder.reshape(y.transpose((0, 2, 4, 1, 3, 5)),
                        (batches, layout.chunks * each, heads * groups * width))
    y = movement.part(y, (0,) * 3, (batches, tokens, heads * groups * width), (1,) * 3)
    state = builder.reshape(state, (batches, heads, size, width))
    return [converted(builder, y, first.dtype),
            converted(builder, state, first.dtype if before is None else before.dtype)]


def _rows(builder: Builder, x: Array) -> Array:
    """The tokens of all groups as rows of one matrix for each chunk."""
    return builder.reshape(x, (*x.shape[:2], x.shape[2] * x.shape[3], x.shape[4]))


def _carried(
    builder: Builder, v: Array, keys: Array, taken: Array | None, into: Array, kept: Array | None,
    state: Array,
) -> tuple[Array, Array, Array]:
    """What each chunk sees of the state before it, the chunks' updates, and the last state."""
    matrices, chunks, each, width = v.shape
    seen = into.shape[-2]
    rows = seen if taken is None else seen + each
    state = builder.pack(state)
    y = builder.new((matrices, chunks, rows, width), _FLOAT)
    last = builder.new(state.shape, _FLOAT)
    arrays = {"a_tensor": v, "b_tensor": keys, "taken_tensor": taken, "into_tensor": into,
              "kept_tensor": kept, "state_tensor": state, "output_tensor": y, "last_tensor": last}
    present = {slot: x for slot, x in arrays.items() if x is not None and x.storage is not None}
    builder.add_own(
        CarriedStateDesc(**{slot: None if x is None else x.desc(x.shape, x.strides)
                            for slot, x in arrays.items()}),
        {slot: x.storage for slot, x in present.items() if x.storage is not None})
    by = (y.strides[0], y.strides[1], width, 1)
    return (y.view((matrices, chunks, seen, width), by),
            v if taken is None else y.view((matrices, chunks, each, width), by, seen * width),
            last)


def _shared(builder: Builder, x: Array, size: int, heads: int) -> Array:
    """Each head of queries or keys as often as it takes for all ``heads``."""
    *outer, features = x.shape
    own, rest = divmod(features, size)
    if rest or not own or heads % own:
        raise ValidationError(
            f"expected {heads} heads to share those of {features} features, {size} each")
    if own == heads:
        return x
    one = builder.reshape(x, (*outer, own, 1, size))
    spread = one.broadcast_to((*outer, own, heads // own, size))
    return builder.reshape(spread, (*outer, heads * size))


def refusal(node: OnnxNode) -> str | None:
    """Why a node is not served, or None."""
    if node.attributes.get("state_window", 0):
        return f"state_window={node.attributes['state_window']}"
    rule = node.attributes.get("update_rule", "gated_delta")
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        return f"update_rule={rule!r}"
    if rule.startswith("gated") and node.input(4) is None:
        return "no decay"
    if rule.endswith("delta") and node.input(5) is None:
        return "no beta"
    return None


class _TokenChunks:
    """Tokens in chunks: [batch and head, chunk, token, feature]."""

    def __init__(self, batches: int, heads: int, tokens: int, each: int) -> None:
        self.batches, self.heads, self.tokens, self.each = batches, heads, tokens, each
        self.chunks = -(-tokens // each)

    def split(self, builder: Builder, x: Array, heads: int) -> Array:
        """What is 0 at the end of the last chunk changes nothing."""
        features, rest = divmod(x.shape[-1], heads)
        if rest or x.shape[:2] != (self.batches, self.tokens):
            raise ValidationError(
                f"expected [{self.batches}, {self.tokens}, a multiple of {heads} heads], but got "
                f"{list(x.shape)}")
        x = converted(builder, x, _FLOAT)
        x = builder.reshape(x, (*x.shape[:2], heads, features)).transpose((0, 2, 1, 3))
        if missing := self.chunks * self.each - self.tokens:
            zero = builder.constant(np.zeros((), _FLOAT))
            zeros = zero.broadcast_to((*x.shape[:2], missing, features))
            x = movement.joined(builder, [x, zeros], 2)
        return builder.reshape(
            x, (self.batches * heads, self.chunks, self.each, features))


class _Decay:
    """What is left of a state after some tokens. The sums of logarithms have those tokens only."""

    def __init__(self, builder: Builder, logs: Array | None, each: int) -> None:
        """``logs`` are by feature of the keys, or one for all."""
        self._builder, self._between, self._begin = builder, None, None
        self._each = each
        if logs is None:
            return
        row, column, token = np.ogrid[:each, :each, :each]
        spans = ((column < token) & (token <= row)).astype(_FLOAT).reshape(each * each, each)
        sums = product_of(builder, builder.constant(spans), logs)
        sums = builder.reshape(sums, (*logs.shape[:2], each, each, logs.shape[3]))
        later = np.where(np.tri(each, dtype=bool), 0, -np.inf).astype(_FLOAT)[..., None]
        self._between = _exponential(builder, emit_elementwise(
            builder, "ELEMENT_WISE_ADD", [sums, builder.constant(later)], _FLOAT, {}))
        """[batch and head, chunk, later token, earlier token, feature]"""
        lower = builder.constant(np.tri(each, dtype=_FLOAT))
        self._begin = _exponential(builder, product_of(builder, lower, logs))

    def products(self, a: Array, k: Array, groups: int) -> Array:
        """Of a's tokens and the keys up to each, times what is left of these. a has the tokens of
        ``groups``, one after the other, and so does the result: [.., group, token, earlier token].
        """
        builder, between, each = self._builder, self._between, self._each
        if between is None or between.shape[-1] == 1:
            plain = product_of(builder, a, transposed(k, 1))
            plain = _apart(builder, plain, groups, each)
            if between is None:
                return _times(builder, plain, builder.constant(np.tri(each, dtype=_FLOAT)))
            return _times(builder, plain, _spread(
                builder, builder.reshape(between, between.shape[:-1]), groups))
        a = _apart(builder, a, groups, each)
        a = builder.reshape(a, (*a.shape[:-1], 1, a.shape[-1]))
        k = builder.reshape(k, (*k.shape[:-2], 1, *k.shape[-2:]))
        whole = _times(builder, a, _spread(builder, between, groups), _spread(builder, k, groups))
        (y,) = reduced(builder, "REDUCE", whole, [len(whole.shape) - 1], False, _FLOAT,
                       function=ReduceFunction.SUM)
        return y

    def since_begin(self, x: Array, groups: int) -> Array:
        if self._begin is None:
            return x
        return _times(self._builder, x, _spread(self._builder, self._begin, groups))

    def until_end(self, x: Array) -> Array:
        if self._between is None:
            return x
        a, b, *_, e = self._between.shape
        last = movement.part(self._between, (0, 0, self._each - 1, 0, 0),
                             (a, b, 1, self._each, e), (1,) * 5)
        return _times(self._builder, x, self._builder.reshape(last, (a, b, self._each, e)))

    def of_chunks(self, size: int) -> Array | None:
        """What is left of the state after each chunk, by feature. None for all."""
        if self._begin is None:
            return None
        a, b, each, e = self._begin.shape
        last = movement.part(self._begin, (0, 0, each - 1, 0), (a, b, 1, e), (1,) * 4)
        return self._builder.reshape(last, (a, b, e)).broadcast_to((a, b, size))


def _solved(builder: Builder, lower: Array) -> Array | None:
    """The inverse of 1 + a matrix below its diagonal, from that of blocks of twice the size each
    time. None for 1."""
    *outer, each, _ = lower.shape
    count = int(np.prod(outer))
    lower = builder.pack(builder.reshape(lower, (count, each, each)))
    size, solved = 1, None
    while size < each:
        pairs, area = each // (2 * size), size * size
        below = lower.view((count, pairs, size, size),
                           (each * each, 2 * size * (each + 1), each, 1), size * each)
        if solved is None:
            one = builder.constant(np.ones((1, 1, 1, 1), _FLOAT)).broadcast_to(below.shape)
            first = second = one
        else:
            solved = builder.pack(solved)
            first, second = (solved.view(
                below.shape, (each * size, 2 * area, size, 1), i * area) for i in range(2))
            below = product_of(builder, second, product_of(builder, below, first))
        minus = _times(builder, below, builder.constant(np.full((), -1, _FLOAT)))
        zero = builder.constant(np.zeros((), _FLOAT)).broadcast_to(below.shape)
        solved = movement.joined(builder, [movement.joined(builder, [first, zero], 3),
                                   movement.joined(builder, [minus, second], 3)], 2)
        size *= 2
    return None if solved is None else builder.reshape(solved, (*outer, each, each))


def _apart(builder: Builder, x: Array, groups: int, each: int) -> Array:
    """Rows by group, unless there are none."""
    return builder.reshape(x, (*x.shape[:-2], groups, each, x.shape[-1])) if groups else x


def _spread(builder: Builder, x: Array, groups: int) -> Array:
    return builder.reshape(x, (*x.shape[:2], 1, *x.shape[2:])) if groups else x


def _times(builder: Builder, x: Array, *factors: Array) -> Array:
    for factor in factors:
        x = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [x, factor], _FLOAT, {})
    return x


def _exponential(builder: Builder, x: Array) -> Array:
    return emit_elementwise(builder, "ELEMENT_WISE_EXP", [x], _FLOAT, {})


ROWS: tuple[Mapping, ...] = (
    *[Mapping("LinearAttention", since, "GEMM", linear_attention, domain,
          fields=("ATensor",), results=("OutputTensor",) * 2, refuses=refusal,
          attributes=("chunk_size", "kv_num_heads", "q_num_heads", "scale", "state_window",
                      "update_rule"), multiplies=True)
      for since, domain in (((27,), ""), ((1,), MICROSOFT))],
)
