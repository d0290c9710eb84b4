"""MULTIHEAD_ATTENTION and MULTIHEAD_ATTENTION1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types, Values
from kompute_dml import MultiheadAttentionMaskType as MaskType
from layouts import PACKED, REPEATED_FIRST, Sizes

_NAMES = {
    "q": "query_tensor", "k": "key_tensor", "v": "value_tensor", "qk": "stacked_query_key_tensor",
    "kv": "stacked_key_value_tensor", "qkv": "stacked_query_key_value_tensor",
    "bias": "bias_tensor", "mask": "mask_tensor", "relative": "relative_position_bias_tensor",
    "past_k": "past_key_tensor", "past_v": "past_value_tensor",
    "lengths": "past_sequence_lengths_tensor", "y": "output_tensor",
    "present_k": "output_present_key_tensor", "present_v": "output_present_value_tensor",
}


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.normal(0, 1, sizes).astype(data_type.dtype)


def _whole(low: int, high: int) -> Values:
    def values(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
        return rng.integers(low, high, sizes).astype(data_type.dtype)

    return values


def _split(x: np.ndarray, heads: int) -> np.ndarray:
    """{batch, length, features} as {batch, head, length, size}."""
    batch, length, features = x.shape[-3:]
    return x.reshape(batch, length, heads, features // heads).transpose(0, 2, 1, 3)


def _masked(x: Arrays, kind: int, scores: np.ndarray) -> np.ndarray:
    keys, batches = np.arange(scores.shape[3]), scores.shape[0]
    if kind == MaskType.NONE:
        return np.zeros(scores.shape, bool)
    if kind == MaskType.BOOLEAN:
        return x["mask"].reshape(scores.shape) == 0
    flat = x["mask"].reshape(-1)
    masked = keys >= flat[:batches, None]
    if kind == MaskType.KEY_SEQUENCE_END_START:
        masked |= keys < flat[batches:, None]
    return np.broadcast_to(masked[:, None, None, :], scores.shape)


class _Answer:
    """Attention in float64. ``caches`` are the contents of the present outputs before the call."""

    def __init__(self, given: Arrays, attributes: Mapping[str, Any], caches: Any = None) -> None:
        full = {short: given[f].astype(np.float64) for short, f in _NAMES.items() if f in given}
        heads = attributes.get("head_count") or attributes["query_head_count"]
        key_heads = attributes.get("key_value_head_count", heads)
        q, k, v = full.get("q"), full.get("k"), full.get("v")
        parts = [_split(x, n) if x is not None else None
                 for x, n in ((q, heads), (k, key_heads), (v, key_heads))]
        for name, places in (("qk", (0, 1)), ("kv", (1, 2)), ("qkv", (0, 1, 2))):
            if name in full:
                for i, place in enumerate(places):
                    parts[place] = full[name][:, :, :, i].transpose(0, 2, 1, 3)
        q, k, v = parts
        assert q is not None
        rounds = 0.0
        if "bias" in full:
            bias, size = full["bias"].reshape(-1), q.shape[3]
            ends = np.cumsum([heads * size, key_heads * size])
            q = q + bias[:ends[0]].reshape(heads, 1, size)
            if k is not None:
                k = k + bias[ends[0]:ends[1]].reshape(key_heads, 1, size)
                v = v + bias[ends[1]:].reshape(key_heads, 1, -1)
            rounds = float(np.finfo(next(iter(given.values())).dtype).eps)
        queries = np.arange(q.shape[2])
        hidden = np.zeros((1, 1, 1, 1), bool)
        if "lengths" in full:
            lengths = full["lengths"].reshape(-1).astype(int)
            k, v = (self._cached(c, full.get(p), new, lengths) for c, p, new in
                    zip(caches, ("past_k", "past_v"), (k, v)))
            hidden = (np.arange(k.shape[2]) > lengths[:, None, None] + queries[:, None])[:, None]
        elif "past_k" in full:
            past = [full[n].reshape(full[n].shape[-4:]) for n in ("past_k", "past_v")]
            k, v = (old if new is None else np.concatenate([old, new], 2)
                    for old, new in zip(past, (k, v)))
        assert k is not None and v is not None
        self.present = k, v
        k, v = (np.repeat(x, heads // key_heads, 1) for x in (k, v))
        scores = attributes["scale"] * (q @ k.swapaxes(2, 3))
        sizes = np.abs(attributes["scale"]) * (np.abs(q) @ np.abs(k).swapaxes(2, 3))
        if "relative" in full:
            relative = full["relative"].reshape(full["relative"].shape[-4:])
            scores, sizes = scores + relative, sizes + np.abs(relative)
        masked = _masked(full, attributes["mask_type"], scores)
        scores = scores + attributes["mask_filter_value"] * masked
        scores = np.where(hidden, -np.inf, scores)
        power = np.exp(scores - scores.max(3, keepdims=True))
        power /= power.sum(3, keepdims=True)
        self.y = self._joined(power @ v)
        # Errors of float32 sums and products, and of sums with the bias.
        sizes = np.where(hidden, 0.0, sizes + np.abs(attributes["mask_filter_value"]) * masked)
        off = (sizes.max(3, keepdims=True)) * (2.0**-23 * (q.shape[3] + 8) + 2 * rounds)
        share = 2 * off + 2.0**-23 * (k.shape[2] + 16) + rounds
        self.room = self._joined((power @ np.abs(v)) * share)

    @staticmethod
    def _cached(cache: np.ndarray, past: Any, new: Any, lengths: np.ndarray) -> np.ndarray:
        result = cache.astype(np.float64)
        for b, length in enumerate(lengths):
            if past is not None:
                result[b, :, :length] = past[b, :, :length]
            there = min(new.shape[2], result.shape[2] - length)
            result[b, :, length : length + there] = new[b, :, :there]
        return result

    @staticmethod
    def _joined(y: np.ndarray) -> np.ndarray:
        batch, heads, length, size = y.shape
        return y.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def _case(operator: str, name: str, sizes: Mapping[str, Sizes], layouts: Any = (PACKED,),
          values: Mapping[str, Any] | None = None, caches: Any = None, **attributes: Any) -> Case:
    attributes = {"scale": 0.4, "mask_filter_value": -3.0, "mask_type": 0, **attributes}
    outputs = [n for n in ("y", "present_k", "present_v") if n in sizes]

    def shaped(answer: _Answer, of_y: np.ndarray, of_present: Any) -> Any:
        made = dict(zip(("y", "present_k", "present_v"), (of_y, *of_present)))
        result = tuple(made[n].reshape(sizes[n]) if isinstance(made[n], np.ndarray) else made[n]
                       for n in outputs)
        return result if len(result) > 1 else result[0]

    def reference(x: Arrays, given: Mapping[str, Any], types: Types) -> Any:
        answer = _Answer(x, given, caches)
        return shaped(answer, answer.y, answer.present)

    def room(x: Arrays, given: Mapping[str, Any]) -> Any:
        answer = _Answer(x, given, caches)
        return shaped(answer, answer.room, (0.0, 0.0))

    contents = {_NAMES[n]: _numbers for n in sizes if n not in outputs}
    contents |= {_NAMES[n]: v for n, v in (values or {}).items()}
    if caches is not None:
        contents |= {_NAMES[n]: c for n, c in zip(("present_k", "present_v"), caches)}
    return Case(
        operator, name, {_NAMES[n]: s for n, s in sizes.items()}, reference,
        attributes=attributes, values=contents, layouts=layouts, room=room,
        levels=("descriptor", "function") if caches is not None else Case.levels)


def _mha(name: str, sizes: Mapping[str, Sizes], **more: Any) -> Case:
    return _case("MULTIHEAD_ATTENTION", name, sizes, **more)


def _mha1(name: str, sizes: Mapping[str, Sizes], heads: tuple[int, int], **more: Any) -> Case:
    return _case("MULTIHEAD_ATTENTION1", name, sizes, query_head_count=heads[0],
                 key_value_head_count=heads[1], **more)


_MASKS = {
    "key-length": (MaskType.KEY_SEQUENCE_LENGTH, (1, 2), (0, 9)),
    "end-start": (MaskType.KEY_SEQUENCE_END_START, (1, 1, 1, 2, 2), (-1, 9)),
    "long": (MaskType.KEY_QUERY_SEQUENCE_LENGTH_START_END, (8,), (0, 9)),
    "boolean": (MaskType.BOOLEAN, (2, 3, 5, 7), (0, 2)),
}
_PLAIN: dict[str, Sizes] = {"q": (2, 5, 12), "k": (2, 7, 12), "v": (2, 7, 6), "y": (2, 5, 6)}


def _grown(sizes: Mapping[str, Sizes], rank: int) -> dict[str, Sizes]:
    return {n: (1,) * (rank - len(s)) + s for n, s in sizes.items()}


def _shared(heads: Any, make: Any, few: Any) -> list[Case]:
    """Cases for both operators, with one head count or two. ``few`` are fewer layouts."""
    return [
        make("plain", _PLAIN, layouts=few, **heads(3)),
        make("five-dimensions", _grown({
            **_PLAIN, "bias": (30,), "relative": (2, 3, 5, 16), "past_k": (2, 3, 9, 4),
            "past_v": (2, 3, 9, 2), "present_k": (2, 3, 16, 4), "present_v": (2, 3, 16, 2)}, 5),
            **heads(3)),
        make("past", {
            **_PLAIN, "bias": (30,), "relative": (2, 3, 5, 16), "past_k": (2, 3, 9, 4),
            "past_v": (2, 3, 9, 2), "present_k": (2, 3, 16, 4), "present_v": (2, 3, 16, 2)},
            layouts=few, **heads(3)),
        make("past-only", {"q": (2, 5, 12), "past_k": (2, 3, 9, 4), "past_v": (2, 3, 9, 2),
                           "y": (2, 5, 6)}, **heads(3)),
        make("query-key", {"qk": (2, 5, 3, 2, 4), "v": (2, 5, 6), "bias": (30,), "y": (2, 5, 6)},
             **heads(3)),
        make("key-value", {"q": (2, 5, 12), "kv": (2, 7, 3, 2, 4), "bias": (36,),
                           "y": (2, 5, 12)}, **heads(3)),
        make("query-key-value", {"qkv": (2, 5, 3, 3, 4), "y": (2, 5, 12),
                                 "present_k": (2, 3, 5, 4), "present_v": (2, 3, 5, 4)},
             **heads(3)),
        *(make(name, {**_PLAIN, "mask": sizes}, mask_type=kind,
               values={"mask": _whole(*limits)}, **heads(3),
               layouts=(PACKED, REPEATED_FIRST) if name == "boolean" else few[:1])
          for name, (kind, sizes, limits) in _MASKS.items()),
    ]


CASES = [
    *_shared(lambda n: {"head_count": n}, _mha, FEW),
    *_shared(lambda n: {"heads": (n, n)}, _mha1, (PACKED,)),
    _mha("several-tiles", {"q": (1, 67, 72), "k": (1, 131, 72), "v": (1, 131, 136),
                           "y": (1, 67, 136)}, head_count=1),
    _mha("split-keys", {"q": (1, 2, 8), "k": (1, 7001, 8), "v": (1, 7001, 8), "y": (1, 2, 8)},
         head_count=1),
    _mha1("few-rows", {"q": (2, 1, 128), "k": (2, 70, 64), "v": (2, 70, 96), "lengths": (2,),
                       "y": (2, 1, 192), "present_k": (2, 2, 90, 32), "present_v": (2, 2, 90, 48)},
          (4, 2), layouts=FEW, values={"lengths": np.array([11, 20], np.int32)},
          caches=(np.linspace(-1, 1, 2 * 2 * 90 * 32).astype(np.float16).reshape(2, 2, 90, 32),
                  np.linspace(2, -1, 2 * 2 * 90 * 48).astype(np.float16).reshape(2, 2, 90, 48))),
    _mha1("eight-rows", {"q": (1, 4, 64), "k": (1, 600, 32), "v": (1, 600, 32), "y": (1, 4, 64),
                         "relative": (1, 2, 4, 600), "mask": (1, 2, 4, 600)}, (2, 1),
          mask_type=MaskType.BOOLEAN, values={"mask": _whole(0, 2)}),
    _mha1("grouped", {"q": (2, 5, 24), "k": (2, 7, 8), "v": (2, 7, 10), "bias": (42,),
                      "y": (2, 5, 30)}, (6, 2), layouts=FEW),
    *(_mha1(f"cache-{name}", {
        "q": (2, 3, 24), "k": (2, 3, 8), "v": (2, 3, 10), "lengths": lengths, "y": (2, 3, 30),
        "present_k": (2, 2, 11, 4), "present_v": (2, 2, 11, 5), **more}, (6, 2), layouts=layouts,
        values={"lengths": np.array([8, 4], np.int32).reshape(lengths)},
        caches=(np.linspace(-1, 1, 176).astype(np.float16).reshape(2, 2, 11, 4),
                np.linspace(2, -1, 220).astype(np.float16).reshape(2, 2, 11, 5)))
      for name, lengths, layouts, more in (
          ("lengths", (2,), FEW, {}), ("lengths-deep", (1, 1, 1, 1, 2), (PACKED,), {}),
          ("past", (2,), (PACKED,), {"past_k": (2, 2, 11, 4), "past_v": (2, 2, 11, 5)}))),
]


def _desc(*sizes: int, data_type: str = "float32") -> dml.TensorDesc:
    return dml.TensorDesc(data_type, sizes)


def _wrong(name: str, parts: list[str], grouped: bool = False, **changes: Any) -> ErrorCase:
    fields = {_NAMES[n]: _desc(*s) for n, s in _PLAIN.items()}
    fields |= dict(scale=1.0, mask_filter_value=-1.0, mask_type=0)
    fields |= dict(query_head_count=3, key_value_head_count=3) if grouped else dict(head_count=3)
    fields |= {_NAMES.get(n, n): v for n, v in changes.items()}
    return ErrorCase("MULTIHEAD_ATTENTION" + "1" * grouped, name, fields, parts)


ERRORS = [
    _wrong("no-heads", ["HeadCount", "at least 1", "0"], head_count=0),
    _wrong("heads", ["QueryTensor.Sizes", "5 heads", "12"], head_count=5),
    _wrong("no-query", ["QueryTensor", "given", "None"], q=None),
    _wrong("two-queries", ["StackedQueryKeyTensor", "only one", "QueryTensor"],
           qk=_desc(2, 5, 3, 2, 4)),
    _wrong("no-value", ["ValueTensor", "given", "None"], v=None),
    _wrong("stack", ["StackedKeyValueTensor.Sizes", "3, 2", "[2, 7, 3, 3, 4]"], k=None, v=None,
           kv=_desc(2, 7, 3, 3, 4)),
    _wrong("key-size", ["KeyTensor.Sizes", "[2, 3, 7, 4]", "[2, 3, 7, 5]"], k=_desc(2, 7, 15)),
    _wrong("leading", ["QueryTensor.Sizes", "after ones", "[2, 2, 5, 12]"], q=_desc(2, 2, 5, 12)),
    _wrong("past", ["PastKeyTensor.Sizes", "[2, 3, 9, 4]", "[2, 3, 9, 5]"],
           past_k=_desc(2, 3, 9, 5), past_v=_desc(2, 3, 9, 2)),
    _wrong("past-value", ["PastValueTensor", "PastKeyTensor"], past_k=_desc(2, 3, 9, 4)),
    _wrong("mask", ["MaskTensor", "MaskType"], mask=_desc(1, 2, data_type="int32")),
    _wrong("mask-sizes", ["MaskTensor.Sizes", "[2, 3, 5, 7]", "[2, 1, 5, 7]"], mask_type=4,
           mask=_desc(2, 1, 5, 7, data_type="int32")),
    _wrong("relative", ["RelativePositionBiasTensor.Sizes", "[2, 3, 5, 7]", "[2, 3, 5, 6]"],
           relative=_desc(2, 3, 5, 6)),
    _wrong("bias", ["BiasTensor.Sizes", "[30]", "[31]"], bias=_desc(31)),
    _wrong("output", ["OutputTensor.Sizes", "[2, 5, 6]", "[2, 5, 7]"], y=_desc(2, 5, 7)),
    _wrong("group", ["KeyValueHeadCount", "divide", "2"], True, key_value_head_count=2),
    _wrong("lengths", ["PastSequenceLengthsTensor.Sizes", "[2]", "[3]"], True,
           lengths=_desc(3, data_type="int32"), present_k=_desc(2, 3, 9, 4),
           present_v=_desc(2, 3, 9, 2)),
    _wrong("no-cache", ["OutputPresentKeyTensor", "PastSequenceLengthsTensor"], True,
           lengths=_desc(2, data_type="int32")),
]
