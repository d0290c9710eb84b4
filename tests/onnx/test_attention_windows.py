"""Windows, soft caps and sinks of GroupQueryAttention, by every kernel that this device has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.lowering.builder import target_of
from kompute_dml.lowering.plan import Plan
from kompute_dml.onnx.row import MICROSOFT
from kompute_dml.operators.rotary_append import AppendedAttentionDesc
from kompute_dml.runtime.traits import DeviceClass
from onnx_graphs import FLOAT, model, needs_provider, node
from provider_tools import session
from test_convolution import EveryWork

pytestmark = needs_provider
_INT32, _FLOAT16 = 6, 10
_SIZE = 64

_ALIKE = ("lines-4", "lines-16", "few-rows-8", "few-rows-16")
"""Kernels that differ from others only in the number of parts."""


def _built(kind: int, heads: tuple[int, int], rows: int, sink: bool, **attributes: Any) -> bytes:
    own, of_keys = heads
    infos = [("q", kind, [2, "n", own * _SIZE]),
             *((n, kind, [2, "n", of_keys * _SIZE]) for n in "kv"),
             *((f"past_{n}", kind, [2, of_keys, rows, _SIZE]) for n in "kv"),
             ("lengths", _INT32, [2]), ("total", _INT32, [1]),
             *([("sink", kind, [own])] if sink else [])]
    return model([node(
        "GroupQueryAttention", f"q k v past_k past_v lengths total{' - - - - sink' * sink}",
        "y present_k present_v", MICROSOFT, num_heads=own, kv_num_heads=of_keys, **attributes)],
        infos, [("y", kind, None), *((f"present_{n}", kind, None) for n in "kv")])


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, past: int, window: int, cap: float,
               sink: np.ndarray | None) -> np.ndarray:
    """Of one text: [head, token, element], in float64."""
    scores = q @ k.swapaxes(1, 2) * _SIZE**-0.5
    if cap:
        scores = cap * np.tanh(scores / cap)
    ahead = np.arange(k.shape[1]) - past - np.arange(q.shape[1])[:, None]
    hidden = (ahead > 0) | (ahead <= -window if window else False)
    scores = np.where(hidden, -np.inf, scores)
    if sink is not None:
        of_head = sink[:, None, None].repeat(q.shape[1], 1)
        scores = np.concatenate([scores, of_head], 2)
    shares = np.exp(scores - scores.max(2, keepdims=True))
    shares /= shares.sum(2, keepdims=True)
    return shares[:, :, : k.shape[1]] @ v


_WORK = [  # heads, tokens, rows, what is past by text, window, soft cap, sink
    ((4, 2), 1, 200, (150, 40), 20, 0.0, False), ((1, 1), 1, 200, (199, 3), 0, 3.0, False),
    ((6, 1), 1, 100, (70, 99), 7, 2.0, True), ((2, 2), 150, 300, (140, 100), 9, 0.0, False),
    ((16, 1), 3, 400, (396, 5), 64, 4.0, True),
]


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("work", _WORK, ids=str)
def test_every_kernel(work: Any, kind: Any, rng: np.random.Generator) -> None:
    """Rows that no query sees hold no numbers."""
    heads, tokens, rows, pasts, window, cap, sinks = work
    own, of_keys = heads
    feed = {n: rng.normal(0, 2, (2, tokens, count * _SIZE)).astype(kind)
            for n, count in (("q", own), ("k", of_keys), ("v", of_keys))}
    caches = {n: rng.normal(0, 2, (2, of_keys, rows, _SIZE)).astype(kind) for n in "kv"}
    for x in caches.values():
        for text, past in enumerate(pasts):
            x[text, :, past:] = np.nan
            x[text, :, : max(past + 1 - window, 0) if window else 0] = np.nan
    sink = rng.normal(0, 2, own).astype(kind) if sinks else None
    expected = []
    for text, past in enumerate(pasts):
        q, *new = (feed[n][text].reshape(tokens, -1, _SIZE).swapaxes(0, 1).astype(float)
                   for n in "qkv")
        k, v = (np.concatenate([np.nan_to_num(caches[n][text, :, :past].astype(float)), x], 1)
                for n, x in zip("kv", new))
        k, v = (x.repeat(own // of_keys, 0) for x in (k, v))
        y = _attention(q, k, v, past, window, cap, None if sink is None else sink.astype(float))
        expected.append(y.swapaxes(0, 1).reshape(tokens, -1))
    inputs = {**feed, **{f"past_{n}": x for n, x in caches.items()},
              "lengths": np.int32([n + tokens - 1 for n in pasts]),
              "total": np.int32([max(pasts) + tokens])}
    if sink is not None:
        inputs["sink"] = sink
    built = _built(FLOAT if kind == np.float32 else _FLOAT16, heads, rows, sinks, softcap=cap,
                   **({"local_window_size": window} if window else {}))

    def run(name: str) -> tuple[np.ndarray, list[str]]:
        with tuning.trial(EveryWork(name)) as tried:
            y = session(built, False, claim="all", strict=True).run(["y"], inputs)[0]
        return y, [n for names in tried.asked.values() for n in names]

    y, names = run("")
    room = 2e-5 if kind == np.float32 else 2e-2
    np.testing.assert_allclose(y, np.stack(expected), rtol=room, atol=room)
    is_cpu = dml.default_device().adapter.is_cpu
    for name in names:
        if is_cpu and ((name.startswith("blocks") and (kind == np.float16 or name != "blocks-s64"))
                       or name in _ALIKE):
            continue  # they take seconds to compile, and differ only in loads and constants
        np.testing.assert_allclose(run(name)[0], np.stack(expected), rtol=room, atol=room,
                                   err_msg=name)


def test_a_prompt_reads_the_windows_of_its_tile_only(rng: np.random.Generator) -> None:
    """A share of 0 of a value that is no number would be no number."""
    tokens, window = 400, 5
    feed = {n: rng.standard_normal((2, tokens, _SIZE), np.float32) for n in "qkv"}
    feed["k"][:, 0] = feed["v"][:, 0] = np.nan
    caches = {f"past_{n}": np.zeros((2, 1, tokens, _SIZE), np.float32) for n in "kv"}
    y = session(_built(FLOAT, (1, 1), tokens, False, local_window_size=window), False, claim="all",
                strict=True).run(["y"], {
                    **feed, **caches, "lengths": np.int32([tokens - 1] * 2),
                    "total": np.int32([tokens])})[0]
    assert np.isnan(y[:, :window]).all() and np.isfinite(y[:, 256:]).all()


def _plan(capacity: int, window: int | None, queries: int, kind: str = "float16") -> Plan:
    """For a GPU without matrix units."""
    device = dml.default_device()
    target = target_of(device.target.library, replace(
        device.adapter, cores=132, subgroup_size=32, max_shared_memory=48 << 10))
    target = replace(target, traits=replace(target.traits, device_class=DeviceClass.UNKNOWN))
    cache = dml.TensorDesc(kind, (1, 8, capacity, 64))
    tokens = dml.TensorDesc(kind, (1, queries, 512))
    desc = AppendedAttentionDesc(
        query_tensor=tokens, past_key_tensor=cache, past_value_tensor=cache, output_tensor=tokens,
        past_sequence_lengths_tensor=dml.TensorDesc("int32", (1,)), appended=1, window=window,
        scale=1.0, query_head_count=8, key_value_head_count=8, mask_filter_value=-1e4,
        mask_type=dml.MultiheadAttentionMaskType.NONE)
    return desc.operator.lower(desc, target)


@pytest.mark.parametrize("queries", [1, 300])
def test_work_follows_the_window(queries: int) -> None:
    """The workgroups of a cache of 131,072 rows are those of one as long as a window."""
    window = 128
    long, short = (_plan(rows, window, queries) for rows in (1 << 17, window + queries - 1))
    assert [d.groups for d in long.execute] == [d.groups for d in short.execute]
    assert long.temporary_bytes == short.temporary_bytes
    assert long.temporary_bytes < _plan(1 << 17, None, queries).temporary_bytes or queries > 1
