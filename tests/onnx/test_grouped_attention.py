"""What newer models ask of GroupQueryAttention and of their embeddings, beside the CPU provider."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")

from kompute_dml.onnx.row import MICROSOFT
from onnx_graphs import FLOAT, INT64, RELEASE, cpu, model, needs_provider, node
from provider_tools import session

pytestmark = needs_provider
_INT8, _INT32 = 3, 6
_HEADS, _KEY_HEADS, _SIZE, _ROWS = 4, 2, 16, 10


def _grouped(more: str, constants: dict[str, Any], *, norms: bool, cache: int = _ROWS,
             **attributes: Any) -> bytes:
    """``norms``: of queries and keys as nodes before it, which is what its inputs mean. ``cache``:
    the caches' rows."""
    width, nodes, names = _SIZE, [], {"q": "q", "k": "k"}
    constants = {"cos": np.cos(np.arange(_ROWS * width // 2)).reshape(_ROWS, -1).astype(np.float32),
                 "sin": np.sin(np.arange(_ROWS * width // 2)).reshape(_ROWS, -1).astype(np.float32),
                 **constants}
    if norms:
        for n, heads in (("q", _HEADS), ("k", _KEY_HEADS)):
            constants |= {f"{n}.heads": np.int64([0, 0, heads, width]),
                          f"{n}.flat": np.int64([0, 0, heads * width])}
            nodes += [node("Reshape", f"{n} {n}.heads", f"{n}.by_head"),
                      node("SimplifiedLayerNormalization", f"{n}.by_head {n}_norm", f"{n}.normal",
                           axis=-1, epsilon=1e-6, stash_type=1),
                      node("Reshape", f"{n}.normal {n}.flat", f"{n}.normed")]
            names[n] = f"{n}.normed"
    nodes.append(node(
        "GroupQueryAttention",
        f"{names['q']} {names['k']} v past_k past_v lengths total cos sin {more}",
        "y present_k present_v", MICROSOFT, num_heads=_HEADS, kv_num_heads=_KEY_HEADS, do_rotary=1,
        **attributes))
    sizes = [2, _KEY_HEADS, cache, width]
    return model(nodes, [
        ("q", FLOAT, [2, "n", _HEADS * width]),
        *((n, FLOAT, [2, "n", _KEY_HEADS * width]) for n in "kv"),
        *((f"past_{n}", FLOAT, sizes) for n in "kv"), ("lengths", _INT32, [2]),
        ("total", _INT32, [1])],
        [("y", FLOAT, None), *((f"present_{n}", FLOAT, None) for n in "kv")], constants)


_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a sink": ("- - sink", {}), "a sink and a window": ("- - sink", {"local_window_size": 3}),
    "a smooth softmax": ("", {"smooth_softmax": 1}),
    "a sink and a soft cap": ("- - sink", {"softcap": 2.0}),
    "norms": ("- - - - - q_norm k_norm", {"qk_norm_epsilon": 1e-6}),
    "norms and a sink": ("- - sink - - q_norm k_norm", {}),
}


@pytest.mark.skipif(RELEASE < [1, 32], reason="this ONNX Runtime's operator has fewer inputs")
@pytest.mark.parametrize("case", _CASES)
def test_grouped_attention(case: str, rng: np.random.Generator) -> None:
    """A prompt and tokens after it. Rows that nobody wrote hold no numbers."""
    more, attributes = _CASES[case]
    constants = {"sink": rng.standard_normal(_HEADS, np.float32),
                 **{f"{n}_norm": rng.uniform(0.5, 1.5, _SIZE).astype(np.float32) for n in "qk"}}
    ours = session(_grouped(more, constants, norms=False, **attributes), False, claim="all",
                   strict=True)
    plain = {k: v for k, v in attributes.items() if "norm" not in k}
    theirs = cpu(_grouped(" ".join(more.split()[:3]), constants, norms="norms" in case, **plain),
                 False)
    caches = {f"past_{n}": np.full((2, _KEY_HEADS, _ROWS, _SIZE), np.nan, np.float32)
              for n in "kv"}
    end = 0
    for count in (4, 1, 1):
        end += count
        feed = {n: rng.standard_normal((2, count, heads * _SIZE), np.float32)
                for n, heads in (("q", _HEADS), ("k", _KEY_HEADS), ("v", _KEY_HEADS))}
        feed |= {"lengths": np.int32([end - 1, end - 1]), "total": np.int32([end]), **caches}
        y, *present = ours.run(None, feed)
        expected, *caches_after = theirs.run(None, feed)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        for a, b in zip(present, caches_after):
            np.testing.assert_allclose(a[:, :, :end], b[:, :, :end], rtol=1e-4, atol=1e-5)
        caches = dict(zip(caches, present))


@pytest.mark.skipif(RELEASE < [1, 32], reason="this ONNX Runtime's operator has fewer inputs")
@pytest.mark.parametrize("sink", [False, True])
def test_caches_as_long_as_a_window(sink: bool, rng: np.random.Generator) -> None:
    """Two texts, whose caches lose the oldest rows, beside caches that hold all. A prompt may be
    longer than the caches. Rows that nobody wrote hold no numbers."""
    window, rows = 3, 4
    constants = {"sink": rng.standard_normal(_HEADS, np.float32)}
    more = "- - sink" if sink else ""
    ours = session(_grouped(more, constants, norms=False, local_window_size=window, cache=rows,
                            sliding_window_cache=1), False, claim="all", strict=True)
    theirs = cpu(_grouped(more, constants, norms=False, local_window_size=window), False)
    held, all_rows = ({f"past_{n}": np.full((2, _KEY_HEADS, count, _SIZE), np.nan, np.float32)
                       for n in "kv"} for count in (rows, _ROWS))
    end = 0
    for count in (3, 1, 1) if sink else (6, 1):
        end += count
        feed = {n: rng.standard_normal((2, count, heads * _SIZE), np.float32)
                for n, heads in (("q", _HEADS), ("k", _KEY_HEADS), ("v", _KEY_HEADS))}
        feed |= {"lengths": np.int32([end - 1, end - 1]), "total": np.int32([end])}
        y, *present = ours.run(None, {**feed, **held})
        expected, *whole = theirs.run(None, {**feed, **all_rows})
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        kept = min(end, rows)
        for a, b in zip(present, whole):
            np.testing.assert_allclose(a[:, :, :kept], b[:, :, end - kept : end], rtol=1e-4,
                                       atol=1e-5)
        held, all_rows = dict(zip(held, present)), dict(zip(all_rows, whole))


@pytest.mark.skipif(RELEASE < [1, 32], reason="this ONNX Runtime's operator has fewer inputs")
@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
def test_caches_of_8_bits(kind: str, rng: np.random.Generator) -> None:
    """A prompt of one text and tokens after it. What attention reads is what the caches hold."""
    shape = (1,) if kind == "PER_TENSOR" else (1, _KEY_HEADS, 1, _SIZE)
    scales = {f"{n}_scale": rng.uniform(0.01, 0.03, shape).astype(np.float32) for n in "kv"}
    cache = [1, _KEY_HEADS, _ROWS, _SIZE]
    built = model([node(
        "GroupQueryAttention", "q k v past_k past_v lengths total - - - - - k_scale v_scale",
        "y present_k present_v", MICROSOFT, num_heads=_HEADS, kv_num_heads=_KEY_HEADS,
        k_quant_type=kind, v_quant_type=kind, kv_cache_bit_width=8)], [
        ("q", FLOAT, [1, "n", _HEADS * _SIZE]),
        *((n, FLOAT, [1, "n", _KEY_HEADS * _SIZE]) for n in "kv"),
        *((f"past_{n}", _INT8, cache) for n in "kv"), ("lengths", _INT32, [1]),
        ("total", _INT32, [1])],
        [("y", FLOAT, None), *((f"present_{n}", _INT8, None) for n in "kv")], scales)
    ours = session(built, False, claim="all", strict=True)
    caches = {f"past_{n}": np.full(cache, 99, np.int8) for n in "kv"}
    end = 0
    for count in (4, 1, 1):
        begin, end = end, end + count
        feed = {n: rng.standard_normal((1, count, heads * _SIZE), np.float32)
                for n, heads in (("q", _HEADS), ("k", _KEY_HEADS), ("v", _KEY_HEADS))}
        y, *present = ours.run(None, {
            **feed, "lengths": np.int32([end - 1]), "total": np.int32([end]), **caches})
        held = []
        for n, found in zip("kv", present):
            new = feed[n].reshape(1, count, _KEY_HEADS, _SIZE).transpose(0, 2, 1, 3)
            wanted = np.clip(np.rint(new / scales[f"{n}_scale"]), -128, 127)
            np.testing.assert_array_equal(found[:, :, begin:end], wanted)
            np.testing.assert_array_equal(found[:, :, :begin], caches[f"past_{n}"][:, :, :begin])
            numbers = (found[:, :, :end] * scales[f"{n}_scale"])[0]
            held.append(np.repeat(numbers, _HEADS // _KEY_HEADS, 0))
        q = feed["q"].reshape(count, _HEADS, _SIZE).transpose(1, 0, 2)
        scores = q @ held[0].transpose(0, 2, 1) * _SIZE**-0.5
        scores += np.where(np.arange(end) > np.arange(begin, end)[:, None], -np.inf, 0)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        expected = (shares @ held[1]).transpose(1, 0, 2).reshape(y.shape)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        caches = dict(zip(caches, present))


@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (4, True), (8, False), (8, True)])
def test_rows_of_an_embedding_in_blocks(
    bits: int, zeros: bool, rng: np.random.Generator
) -> None:
    words, blocks, block = 20, 3, 16
    constants = {
        "data": rng.integers(0, 256, (words, blocks * block * bits // 8)).astype(np.uint8),
        "scales": rng.uniform(0.1, 1, (words, blocks)).astype(np.float32)}
    if zeros:
        constants["zeros"] = rng.integers(
            0, 256, (words, -(-blocks * bits // 8))).astype(np.uint8)
    built = model(
        [node("GatherBlockQuantized", f"data ids scales {'zeros' if zeros else ''}", "y", MICROSOFT,
              bits=bits, block_size=block, gather_axis=0, quantize_axis=1)],
        [("ids", INT64, [2, "n"])], [("y", FLOAT, None)], constants)
    ours = session(built, False, claim="all", strict=True)
    for count in (5, 1):
        ids = rng.integers(0, words, (2, count))
        np.testing.assert_allclose(ours.run(None, {"ids": ids})[0],
                                   cpu(built, False).run(None, {"ids": ids})[0], rtol=1e-6)
