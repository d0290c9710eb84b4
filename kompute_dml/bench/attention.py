"""Cases of attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import kompute_dml as dml

from ..cases import Scale
from ..device import Device
from ..dtypes import DataType
from .case import Case, Peer, Recipe, shape, touched_bytes
from .peers import Torch
from .values import Output, host, numbers

_ROWS = 4
"""Queries of the first head that are checked."""


@dataclass(frozen=True)
class Heads:
    """The sizes of an attention. One query is decoding."""

    data_type: DataType
    batches: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    size: int
    causal: bool = False

    def __str__(self) -> str:
        heads = f"{self.heads}" + f":{self.key_heads}" * (self.heads != self.key_heads)
        return (f"{self.batches} x {heads} heads x {self.queries} x {self.keys} x {self.size}"
                + " causal" * self.causal)


def attention(kind: Heads) -> Recipe:
    """Decoding reads keys and values by head, as caches store them. Else all tensors are by
    token."""
    operator = "DML_OPERATOR_MULTIHEAD_ATTENTION1"
    types = f"{kind.data_type.family} {kind}"
    decodes = kind.queries == 1

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        h = kind
        queries, keys = (max(scale.of(n), 1) for n in (h.queries, h.keys))
        shapes = [(h.batches, queries, h.heads * h.size)] + 2 * [
            (h.batches, h.key_heads, keys, h.size) if decodes
            else (h.batches, keys, h.key_heads * h.size)]
        patterns = [numbers(h.data_type.dtype, int(np.prod(s)), -2, 2, 3 + i)
                    for i, s in enumerate(shapes)]
        q, k, v = (p.tensor(device).reshape(*s) for p, s in zip(patterns, shapes))
        result = device.empty(shapes[0], h.data_type)
        more: dict[str, Any] = dict(
            scale=h.size**-0.5, query_head_count=h.heads, key_value_head_count=h.key_heads)
        out: Any = result
        if decodes:
            arrays: tuple[Any, ...] = (q,)
            more |= dict(past_key=k, past_value=v)
        else:
            arrays = (q, k, v)
        if h.causal:
            caches = [device.empty((h.batches, h.key_heads, keys, h.size), h.data_type)
                      for _ in range(2)]
            more |= dict(past_sequence_lengths=np.zeros(h.batches, np.int32),
                         output_present_key=True, output_present_value=True)
            out = (result, *caches)
            more["past_sequence_lengths"] = device.tensor(more["past_sequence_lengths"])

        def dispatch() -> Any:
            dml.multihead_attention1(*arrays, **more, out=out)
            return result

        def first_head(i: int) -> np.ndarray:
            x = patterns[i].host()[: int(np.prod(shapes[i][1:]))].reshape(shapes[i][1:])
            x = x[0] if x.ndim == 3 else x[:, : h.size]
            return x.astype(np.float64)

        def check(output: Output) -> str:
            q, k, v = (first_head(i) for i in range(3))
            scores = q[:_ROWS] @ k.T * h.size**-0.5
            if h.causal:
                scores[np.arange(keys) > np.arange(len(scores))[:, None]] = -np.inf
            power = np.exp(scores - scores.max(1, keepdims=True))
            expected = power / power.sum(1, keepdims=True) @ v
            got = host(output[0:1, : len(scores), : h.size])[0]
            worst = float(np.abs(got - expected).max())
            room = 4e-3 if h.data_type is DataType.FLOAT16 else 1e-4
            return "" if worst <= room else f"{worst} off"

        def torch_peers(library: Torch) -> Iterator[Peer]:
            f = library.torch.nn.functional.scaled_dot_product_attention
            heads = []
            for p, s in zip(patterns, shapes):
                x = library.tensor(p).reshape(s)
                heads.append(x if x.dim() == 4 else x.reshape(*s[:2], -1, h.size).transpose(1, 2))

            def call() -> Any:
                y = f(*heads, is_causal=h.causal, enable_gqa=h.heads != h.key_heads)
                return y.transpose(1, 2).reshape(shapes[0])

            yield Peer("torch", call)

        yield Case(
            operator, types, shape(shapes[0]), dispatch, check,
            touched_bytes(t.desc for t in (q, k, v, result)),
            4 * h.batches * h.heads * queries * keys * h.size // (2 if h.causal else 1),
            peers={"torch": torch_peers})

    return Recipe(operator, types, make)
