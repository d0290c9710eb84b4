"""LinearAttention: a state of keys by values in place of a cache, which each token changes.

    state = exp(decay) * state + key x update,  output = scale * query . state

where the update is the value or, by the delta rules, beta * (value - key . exp(decay) * state).
Tokens are taken in chunks. What a chunk's own tokens do to each other are products of matrices, for
all chunks at once; only the state goes from chunk to chunk.
"""

from __future__ import annotations

import numpy as np

from ..attributes import ReduceFunction
from ..errors import ValidationError
from ..graph.array import Array
from ..graph.builder import Builder
from . import movement
from .graph import Node
from .lowerings import Inputs, converted, emit_elementwise, given, optional
from .products import product_of, transposed
from .reduction import reduced

_FLOAT = np.dtype("float32")
_MOST = 32
"""The most tokens of a chunk: a power of two."""


def linear_attention(builder: Builder, node: Node, inputs: Inputs) -> list[Array]:
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
    layout = _Layout(batches, heads, tokens, each)
    q = layout.split(builder, q, heads * groups)
    k = layout.split(builder, _shared(builder, given(inputs, 1), size, heads), heads)
    v = layout.split(builder, given(inputs, 2), heads)
    width = v.shape[-1]
    q = builder.reshape(q, (batches * heads, groups, *q.shape[1:]))
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
    shares = decay.products(q, k, 1)
    into, out_of = decay.since_begin(q, 1), decay.until_end(k)
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

    results = []
    for i in range(layout.chunks):
        update = _at(builder, v, i)
        if taken is not None:
            update = product_of(builder, _at(builder, taken, i), state, update)
        seen, made = (builder.reshape(t, (batches * heads, 1, *t.shape[1:]))
                      for t in (state, update))
        results.append(product_of(builder, _at(builder, shares, i), made,
                                  product_of(builder, _at(builder, into, i), seen)))
        kept = decay.of_chunk(state, i)
        state = product_of(builder, transposed(_at(builder, out_of, i), 1), update, kept)
    y = movement.joined(builder, results, 2)  # [batch and head, group, token, feature]
    y = builder.reshape(y, (batches, heads * groups, y.shape[2], width)).transpose((0, 2, 1, 3))
    y = movement.part(y, (0,) * 4, (batches, tokens, heads * groups, width), (1,) * 4)
    y = builder.reshape(y, (batches, tokens, heads * groups * width))
    state = builder.reshape(state, (batches, heads, size, width))
    return [converted(builder, y, first.dtype),
            converted(builder, state, first.dtype if before is None else before.dtype)]


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


def refusal(node: Node) -> str | None:
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


class _Layout:
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
        """Of a's tokens and the keys up to each, times what is left of these. ``groups``: a has
        groups of heads after the first dimension."""
        builder, between = self._builder, self._between
        k = _spread(builder, k, groups)
        if between is None:
            later = builder.constant(np.tri(self._each, dtype=_FLOAT))
            return _times(builder, product_of(builder, a, transposed(k, 1)), later)
        between = _spread(builder, between, groups)
        if between.shape[-1] == 1:
            plain = product_of(builder, a, transposed(k, 1))
            return _times(builder, plain, builder.reshape(between, between.shape[:-1]))
        a = builder.reshape(a, (*a.shape[:-1], 1, a.shape[-1]))
        k = builder.reshape(k, (*k.shape[:-2], 1, *k.shape[-2:]))
        whole = _times(builder, a, between, k)
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

    def of_chunk(self, state: Array, i: int) -> Array:
        """What is left of the state after a chunk."""
        if self._begin is None:
            return state
        a, _, _, e = self._begin.shape
        last = movement.part(self._begin, (0, i, self._each - 1, 0), (a, 1, 1, e), (1,) * 4)
        return _times(self._builder, state, self._builder.reshape(last, (a, e, 1)))


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


def _at(builder: Builder, x: Array, chunk: int) -> Array:
    """One chunk, whose dimension is the third from the end."""
    begins = [0] * len(x.shape)
    begins[-3] = chunk
    sizes = (*x.shape[:-3], 1, *x.shape[-2:])
    part = movement.part(x, begins, sizes, (1,) * len(sizes))
    return part.view((*x.shape[:-3], *x.shape[-2:]), (*part.strides[:-3], *part.strides[-2:]))


def _spread(builder: Builder, x: Array, groups: int) -> Array:
    return builder.reshape(x, (x.shape[0], 1, *x.shape[1:])) if groups else x


def _times(builder: Builder, x: Array, *factors: Array) -> Array:
    for factor in factors:
        x = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [x, factor], _FLOAT, {})
    return x


def _exponential(builder: Builder, x: Array) -> Array:
    return emit_elementwise(builder, "ELEMENT_WISE_EXP", [x], _FLOAT, {})
