"""What newer models ask of GroupQueryAttention and of their embeddings, beside the CPU provider."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")
ort = pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="onnx needs it")

import kompute_dml as dml  # noqa: E402
from kompute_dml.graph.builder import Builder  # noqa: E402
from kompute_dml.onnx.operators import float8, quantized_caches  # noqa: E402
from kompute_dml.onnx.row import MICROSOFT  # noqa: E402
from onnx_graphs import FLOAT, INT64, RELEASE, cpu, model, needs_provider, node  # noqa: E402
from provider_tools import session  # noqa: E402

pytestmark = needs_provider
_UINT8, _INT8, _INT32, _FLOAT8 = 2, 3, 6, 17
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
@pytest.mark.parametrize(("sink", "rows"), [(False, 4), (True, 4), (False, 3), (False, 6)])
def test_caches_as_long_as_a_window(sink: bool, rows: int, rng: np.random.Generator) -> None:
    """Two texts, whose caches lose the oldest rows, beside caches that hold all, and beside the CPU
    provider's caches of this kind. A prompt may be longer than the caches. A full cache keeps a
    window's rows: it loses the others at once. Rows that hold nothing hold no numbers. In such rows
    the CPU provider leaves what its memory had before."""
    window = 3
    constants = {"sink": rng.standard_normal(_HEADS, np.float32)}
    more = "- - sink" if sink else ""
    sliding = _grouped(more, constants, norms=False, local_window_size=window, cache=rows,
                       sliding_window_cache=1)
    ours, same = session(sliding, False, claim="all", strict=True), cpu(sliding, False)
    theirs = cpu(_grouped(more, constants, norms=False, local_window_size=window), False)
    held, all_rows = ({f"past_{n}": np.full((2, _KEY_HEADS, count, _SIZE), np.nan, np.float32)
                       for n in "kv"} for count in (rows, _ROWS))
    end = 0
    for count in (3, 1, 1, 1, 1) if sink else (7, 1, 1):
        end += count
        feed = {n: rng.standard_normal((2, count, heads * _SIZE), np.float32)
                for n, heads in (("q", _HEADS), ("k", _KEY_HEADS), ("v", _KEY_HEADS))}
        feed |= {"lengths": np.int32([end - 1, end - 1]), "total": np.int32([end])}
        y, *present = ours.run(None, {**feed, **held})
        expected, *whole = theirs.run(None, {**feed, **all_rows})
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        same_y, *same_present = same.run(None, {**feed, **held})
        np.testing.assert_allclose(y, same_y, rtol=1e-4, atol=1e-5)
        at_once = rows - window + 1
        kept = end - at_once * max(-((rows - end) // at_once), 0)
        assert min(end, window) <= kept <= rows
        for a, b, c in zip(present, whole, same_present):
            np.testing.assert_allclose(a[:, :, :kept], b[:, :, end - kept : end], rtol=1e-4,
                                       atol=1e-5)
            np.testing.assert_allclose(a[:, :, :kept], c[:, :, :kept], rtol=1e-4, atol=1e-5)
            a[:, :, kept:] = np.nan
        held, all_rows = dict(zip(held, present)), dict(zip(all_rows, whole))


def _quantized(bits: int, kinds: tuple[str, str], scales: dict[str, Any], cache: list[int],
               **attributes: Any) -> bytes:
    """Of 0 ``bits``: caches of FLOAT32."""
    turns = " cos sin" if attributes.get("do_rotary") else " - -"
    angles = np.outer(np.arange(_ROWS), np.arange(1, _SIZE // 2 + 1)).astype(np.float32)
    constants = {**scales, **({"cos": np.cos(angles), "sin": np.sin(angles)}
                              if "cos" in turns else {})}
    kind = attributes.pop("kind", {0: FLOAT, 4: _UINT8, 8: _INT8}[bits])
    if bits:
        attributes |= {"k_quant_type": kinds[0], "v_quant_type": kinds[1],
                       "kv_cache_bit_width": bits}
    return model([node(
        "GroupQueryAttention",
        f"q k v past_k past_v lengths total{turns}{' - - - k_scale v_scale' if bits else ''}",
        "y present_k present_v", MICROSOFT, num_heads=_HEADS, kv_num_heads=_KEY_HEADS,
        **attributes)], [
        ("q", FLOAT, [1, "n", _HEADS * _SIZE]),
        *((n, FLOAT, [1, "n", _KEY_HEADS * _SIZE]) for n in "kv"),
        *((f"past_{n}", kind, cache) for n in "kv"), ("lengths", _INT32, [1]),
        ("total", _INT32, [1])],
        [("y", FLOAT, None), *((f"present_{n}", kind, None) for n in "kv")], constants)


@pytest.mark.skipif(RELEASE < [1, 32], reason="this ONNX Runtime's operator has fewer inputs")
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("kind", "more"), [
    ("PER_TENSOR", {}), ("PER_CHANNEL", {}), ("PER_CHANNEL", {"do_rotary": 1}),
    ("PER_TENSOR", {"local_window_size": 3}), ("PER_CHANNEL", {"softcap": 2.0}),
], ids=str)
def test_quantized_caches(kind: str, bits: int, more: Any, rng: np.random.Generator) -> None:
    """A prompt of one text and tokens after it, with numbers beyond the largest that caches hold.
    What attention reads is what the caches hold, on the CPU, too."""
    shape = (1,) if kind == "PER_TENSOR" else (1, _KEY_HEADS, 1, _SIZE)
    scales = {f"{n}_scale": (rng.uniform(1, 3, shape) / 2**bits).astype(np.float32) for n in "kv"}
    cache = [1, _KEY_HEADS, _ROWS, _SIZE * bits // 8]
    built = _quantized(bits, (kind, kind), scales, cache, **more)
    ours, theirs = session(built, False, claim="all", strict=True), cpu(built, False)
    caches = {f"past_{n}": np.full(cache, 99, np.int8 if bits == 8 else np.uint8) for n in "kv"}
    end, most = 0, 0.0
    for count in (4, 1, 1):
        begin, end = end, end + count
        feed = {n: rng.standard_normal((1, count, heads * _SIZE), np.float32)
                for n, heads in (("q", _HEADS), ("k", _KEY_HEADS), ("v", _KEY_HEADS))}
        feed |= {"lengths": np.int32([end - 1]), "total": np.int32([end]), **caches}
        y, *present = ours.run(None, feed)
        expected, *whole = theirs.run(None, feed)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        for a, b in zip(present, whole):
            np.testing.assert_array_equal(a[:, :, :end], b[:, :, :end])
        # The first key's numbers, rounded by NumPy.
        if not more and not begin:
            new = feed["k"].reshape(1, count, _KEY_HEADS, _SIZE).transpose(0, 2, 1, 3)
            whole_numbers = np.clip(np.rint(new / scales["k_scale"]), -2**(bits - 1),
                                    2**(bits - 1) - 1).astype(int)
            if bits == 4:
                whole_numbers = whole_numbers[..., ::2] + 8 | whole_numbers[..., 1::2] + 8 << 4
            np.testing.assert_array_equal(present[0][:, :, :end], whole_numbers)
            most = abs(new / scales["k_scale"]).max()
        caches = dict(zip(caches, present))
    assert more or most > 2**(bits - 1)


@pytest.mark.skipif(RELEASE < [1, 32], reason="this ONNX Runtime's operator has fewer inputs")
def test_caches_of_keys_and_values_have_scales_of_their_own(rng: np.random.Generator) -> None:
    """One scale of keys, and one of each channel of values. ONNX Runtime's CPU refuses these: those
    with the same scale in each channel are what it computes."""
    one = np.float32([0.02])
    by_channel = rng.uniform(0.01, 0.03, (1, _KEY_HEADS, 1, _SIZE)).astype(np.float32)
    cache, results = [1, _KEY_HEADS, _ROWS, _SIZE], []
    feed = {n: rng.standard_normal((1, 4, heads * _SIZE), np.float32)
            for n, heads in (("q", _HEADS), ("k", _KEY_HEADS), ("v", _KEY_HEADS))}
    feed |= {"lengths": np.int32([3]), "total": np.int32([4]),
             **{f"past_{n}": np.zeros(cache, np.int8) for n in "kv"}}
    for kinds, keys in ((("PER_TENSOR", "PER_CHANNEL"), one),
                        (("PER_CHANNEL", "PER_CHANNEL"), np.full_like(by_channel, one[0]))):
        built = _quantized(8, kinds, {"k_scale": keys, "v_scale": by_channel}, cache)
        results.append(session(built, False, claim="all", strict=True).run(None, feed)[0])
        if kinds[0] == kinds[1]:
            results.append(cpu(built, False).run(None, feed)[0])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
    np.testing.assert_allclose(results[0], results[2], rtol=1e-4, atol=1e-5)


def _of_bytes(x: np.ndarray) -> np.ndarray:
    return x.view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def _to_bytes(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


@pytest.mark.skipif(RELEASE < [1, 32], reason="this ONNX Runtime's operator has fewer inputs")
@pytest.mark.parametrize(("kind", "more"), [
    ("PER_TENSOR", {}), ("PER_CHANNEL", {}), ("PER_TENSOR", {"local_window_size": 3}),
    ("PER_CHANNEL", {"softcap": 2.0})], ids=str)
def test_caches_of_float8(kind: str, more: Any, rng: np.random.Generator) -> None:
    """ONNX Runtime's CPU provider has none, so it gets caches of FLOAT32 with the same numbers, and
    keys and values that are rounded before."""
    shape = (1,) if kind == "PER_TENSOR" else (1, _KEY_HEADS, 1, _SIZE)
    scales = {f"{n}_scale": rng.uniform(1e-3, 1, shape).astype(np.float32) for n in "kv"}
    cache = [1, _KEY_HEADS, _ROWS, _SIZE]
    ours = session(_quantized(8, (kind, kind), scales, cache, kind=_FLOAT8, **more), False,
                   claim="all", strict=True)
    theirs = cpu(_quantized(0, (kind, kind), {}, cache, **more), False)
    caches = {f"past_{n}": np.full(cache, 0x7F, np.uint8) for n in "kv"}  # no numbers
    end = 0
    for count in (4, 1, 1):
        begin, end = end, end + count
        feed = {n: rng.standard_normal((1, count, heads * _SIZE), np.float32)
                for n, heads in (("q", _HEADS), ("k", _KEY_HEADS), ("v", _KEY_HEADS))}
        lengths = {"lengths": np.int32([end - 1]), "total": np.int32([end])}
        values = {n: ort.OrtValue.ortvalue_from_numpy(x) for n, x in (feed | lengths).items()}
        values |= {n: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(x, _FLOAT8)
                   for n, x in caches.items()}
        y, *present = [x.numpy() for x in ours.run_with_ort_values(None, values)]
        held = {}
        for n, x in zip("kv", present):
            scale = scales[f"{n}_scale"].reshape(-1, *([1, _SIZE] if kind != "PER_TENSOR" else []))
            new = feed[n].reshape(1, count, _KEY_HEADS, _SIZE).transpose(0, 2, 1, 3) / scale
            np.testing.assert_array_equal(x[:, :, begin:end], _to_bytes(new))
            np.testing.assert_array_equal(x[:, :, :begin], caches[f"past_{n}"][:, :, :begin])
            held[f"past_{n}"] = np.nan_to_num(_of_bytes(x) * scale)
            feed[n] = held[f"past_{n}"][:, :, begin:end].transpose(0, 2, 1, 3).reshape(
                1, count, -1)
        expected = theirs.run(None, {**feed, **lengths, **held})[0]
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        caches = dict(zip(caches, present))


def test_bytes_of_float8(device: dml.Device, rng: np.random.Generator) -> None:
    """Every byte, what lies between two numbers, and what is beyond the largest."""
    every = np.arange(256, dtype=np.uint8)
    numbers = np.sort(_of_bytes(every)[np.isfinite(_of_bytes(every))])
    middle = (numbers[1:] + numbers[:-1]) / 2
    x = np.concatenate([
        numbers, middle, *(np.nextafter(middle, np.float32(to)) for to in (-1e9, 1e9)),
        np.float32([449, 464, 465, 1e30, -1e30, np.inf, -np.inf, np.nan, 1e-40, -1e-40]),
        rng.standard_normal(4096, np.float32) * np.float32(2.0) ** rng.integers(-12, 10, 4096)])
    x = x.astype(np.float32)
    for given, of, wanted in ((x, float8.encoded, _to_bytes(x)),
                              (every, float8.decoded, _of_bytes(every))):
        builder = Builder(device)
        array = builder.new(given.shape, given.dtype)
        (y,) = builder.finish([array], [of(builder, array)]).run([given])
        np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize(("kind", "bits", "queries"), [
    ("V1", 4, "float32"), ("uint8", 8, "float32"), ("int8", 4, "float32"), ("int8", 2, "float32"),
])
def test_quantized_caches_that_are_refused(kind: str, bits: int, queries: str) -> None:
    cache = SimpleNamespace(dtype=np.dtype(kind))
    q = SimpleNamespace(dtype=np.dtype(queries), shape=(1, 4, 64))
    inputs = {0: q, 3: cache, 4: cache, 12: q, 13: q}
    described = SimpleNamespace(
        attributes={"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR",
                    "kv_cache_bit_width": bits}, input=inputs.get, outputs=(q, cache, cache))
    reason = quantized_caches.refusal(described)  # type: ignore[arg-type]
    assert reason is not None and "INT8 or FLOAT8E4M3FN (8 bits)" in reason


@pytest.mark.parametrize("width", [48, 40])
@pytest.mark.parametrize(("kind", "zeros"), [
    (kind, zeros) for kind in ("4", "8", "int4", "uint4") for zeros in (False, True)])
def test_rows_of_an_embedding_in_blocks(
    kind: str, zeros: bool, width: int, rng: np.random.Generator
) -> None:
    """In bytes of one or two numbers, or as 4-bit integers. The last block may be shorter."""
    words, blocks, block, bits = 20, 3, 16, 8 if kind == "8" else 4

    def numbers(columns: int) -> Any:
        if "int" not in kind:
            return rng.integers(0, 256, (words, -(-columns * bits // 8))).astype(np.uint8)
        low = -8 if kind == "int4" else 0
        return rng.integers(low, low + 16, (words, columns)).astype(getattr(ml_dtypes, kind))

    constants = {"data": numbers(width),
                 "scales": rng.uniform(0.1, 1, (words, blocks)).astype(np.float32)}
    if zeros:
        constants["zeros"] = numbers(blocks)
    built = model(
        [node("GatherBlockQuantized", f"data ids scales {'zeros' if zeros else ''}", "y", MICROSOFT,
              bits=bits, block_size=block, gather_axis=0, quantize_axis=1)],
        [("ids", INT64, [2, "n"])], [("y", FLOAT, None)], constants)
    ours = session(built, False, claim="all", strict=True)
    for count in (5, 1):
        ids = rng.integers(0, words, (2, count))
        np.testing.assert_allclose(ours.run(None, {"ids": ids})[0],
                                   cpu(built, False).run(None, {"ids": ids})[0], rtol=1e-6)
