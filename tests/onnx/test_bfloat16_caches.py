"""Attention whose caches are of BFLOAT16, as long as they may grow or growing: it reads and writes
them as they are. The backend's inputs and outputs of BFLOAT16 are those of ml_dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", "1.19", reason="older ones have no BFLOAT16 for NumPy")
pytest.importorskip("onnxruntime", "1.26", reason="older operators have fewer inputs")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="it has BFLOAT16 for NumPy")

import kompute_dml as dml  # noqa: E402
import kompute_dml.onnx_backend as backend  # noqa: E402
from kompute_dml.graph.builder import Builder  # noqa: E402
from kompute_dml.layout import product  # noqa: E402
from kompute_dml.onnx.model import read  # noqa: E402
from kompute_dml.onnx.region import Region  # noqa: E402
from kompute_dml.onnx.row import MICROSOFT  # noqa: E402
from onnx_graphs import BOOL, FLOAT, INT64, cpu, model, node  # noqa: E402
from test_shared_caches import appended, attended, built  # noqa: E402

_BFLOAT16 = onnx.TensorProto.BFLOAT16
_INT32 = 6
_HEADS, _KEY_HEADS, _SIZE, _ROWS = 4, 2, 32, 80


def _built(kind: int, tokens: int, batches: int, inputs: str, **more: Any) -> bytes:
    sizes: dict[str, tuple[int, ...]] = {
        "q": (batches, tokens, _HEADS * _SIZE), "k": (batches, tokens, _KEY_HEADS * _SIZE),
        "v": (batches, tokens, _KEY_HEADS * _SIZE), "past.k": (batches, _KEY_HEADS, _ROWS, _SIZE),
        "past.v": (batches, _KEY_HEADS, _ROWS, _SIZE), "cos": (_ROWS, _SIZE // 2),
        "sin": (_ROWS, _SIZE // 2), "sink": (_HEADS,)}
    names = f"q k v past.k past.v lengths total {inputs}"
    read_ones = [(name, kind, sizes[name]) for name in sizes if name in names.split()]
    return model(
        [node("GroupQueryAttention", names, "y present.k present.v", MICROSOFT, num_heads=_HEADS,
              kv_num_heads=_KEY_HEADS, **more)],
        [*read_ones, ("lengths", _INT32, (batches,)), ("total", _INT32, (1,))],
        [("y", kind, sizes["q"]), ("present.k", kind, sizes["past.k"]),
         ("present.v", kind, sizes["past.k"])])


_TURNS = {"do_rotary": 1}


@pytest.mark.parametrize(("tokens", "inputs", "more"), [
    (1, "cos sin", {**_TURNS, "rotary_interleaved": 1}),
    (1, "cos sin - - sink", {**_TURNS, "local_window_size": 20}), (3, "cos sin", _TURNS),
    (24, "cos sin", _TURNS), (2, "", {"softcap": 2.0})])
def test_caches_stay_as_they_are(
    tokens: int, inputs: str, more: dict[str, Any], device: dml.Device, rng: np.random.Generator
) -> None:
    batches = 2 if tokens in (1, 24) else 1  # the CPU provider has no others
    total = 64 if tokens < 24 else 24
    exact = _built(FLOAT, tokens, batches, inputs, **more)
    fed: dict[str, np.ndarray] = {}
    for info in onnx.load_model_from_string(exact).graph.input:
        sizes = [d.dim_value for d in info.type.tensor_type.shape.dim]
        x = rng.standard_normal(sizes)
        if info.name == "lengths":
            fed[info.name] = np.int32([total - 1, total - 1 - (tokens == 1)][:batches])
        elif info.name == "total":
            fed[info.name] = np.int32([total])
        else:
            fed[info.name] = x.astype(ml_dtypes.bfloat16)
    stored = onnx.load_model_from_string(_built(_BFLOAT16, tokens, batches, inputs, **more))
    results = backend.run_model(stored, fed)
    wanted = cpu(exact, False).run(None, {
        n: x if x.dtype == np.int32 else x.astype(np.float32) for n, x in fed.items()})
    assert all(y.dtype == ml_dtypes.bfloat16 for y in results)
    # What is computed of queries and keys is rounded, and so are the results.
    np.testing.assert_allclose(results[0].astype(np.float32), wanted[0], rtol=2.0**-8, atol=2.0**-6)
    for got, expected in zip(results[1:], wanted[1:]):
        for own, theirs, last in zip(got, expected, fed["lengths"]):
            np.testing.assert_allclose(own[:, : last + 1].astype(np.float32),
                                       theirs[:, : last + 1], rtol=2.0**-8, atol=2.0**-8)
    assert not _whole_caches(stored, fed, device)


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 24, reason="TensorScatter is of opset 24")
@pytest.mark.parametrize("tokens", [1, 5])
def test_caches_that_slide(tokens: int, rng: np.random.Generator) -> None:
    """Those of a window (sliding_window_cache) have the results of FLOAT32."""
    stored, exact = (onnx.load_model_from_string(_built(
        kind, tokens, 1, "cos sin - - sink", **_TURNS, local_window_size=20,
        sliding_window_cache=1)) for kind in (_BFLOAT16, FLOAT))
    fed: dict[str, np.ndarray] = {}
    for info in stored.graph.input:
        sizes = [d.dim_value for d in info.type.tensor_type.shape.dim]
        fed[info.name] = rng.standard_normal(sizes).astype(ml_dtypes.bfloat16)
    fed |= {"lengths": np.int32([69]), "total": np.int32([70])}
    results = backend.run_model(stored, fed)
    wanted = backend.run_model(exact, {
        n: x if x.dtype == np.int32 else x.astype(np.float32) for n, x in fed.items()})
    for own, expected in zip(results, wanted):
        assert own.dtype == ml_dtypes.bfloat16
        np.testing.assert_allclose(own.astype(np.float32), expected, 2.0**-8, 2.0**-8)


@pytest.mark.parametrize(("tokens", "mask"), [(1, False), (3, True)])
def test_a_scatter_and_attention(
    tokens: int, mask: bool, device: dml.Device, rng: np.random.Generator
) -> None:
    cache = (2, _KEY_HEADS, _ROWS, _SIZE)
    sizes = {"q": (2, _HEADS, tokens, _SIZE), "past.k": cache, "past.v": cache,
             **dict.fromkeys("kv", (2, _KEY_HEADS, tokens, _SIZE))}
    if mask:
        sizes["mask"] = (1, 1, tokens, _ROWS)

    def scattered(kind: int) -> bytes:
        nodes = [node("TensorScatter", f"past.{n} {n} places", f"present.{n}", axis=2)
                 for n in "kv"]
        added = "mask" if mask else "-"
        nodes.append(node("Attention", f"q present.k present.v {added} - - filled", "y",
                          is_causal=1))
        return model(nodes, [*((n, kind, x) for n, x in sizes.items()),
                             *((n, INT64, (2,)) for n in ("places", "filled"))],
                     [("y", kind, sizes["q"]), ("present.k", kind, cache),
                      ("present.v", kind, cache)], opset=24)

    fed = {n: rng.standard_normal(x).astype(ml_dtypes.bfloat16) for n, x in sizes.items()}
    fed["places"] = np.array([60, 7])
    fed["filled"] = fed["places"] + tokens
    stored = onnx.load_model_from_string(scattered(_BFLOAT16))
    y, *present = backend.run_model(stored, fed)
    wanted, *expected = cpu(scattered(FLOAT), False).run(None, {
        n: x if x.dtype == np.int64 else x.astype(np.float32) for n, x in fed.items()})
    np.testing.assert_allclose(y.astype(np.float32), wanted, rtol=2.0**-8, atol=2.0**-6)
    for got, exact in zip(present, expected):
        np.testing.assert_array_equal(got.astype(np.float32), exact)
    assert _whole_caches(stored, fed, device) == ["APPEND", "APPEND"]


@pytest.mark.parametrize(("op", "tokens", "beams"), [
    ("MultiHeadAttention", 3, False), ("MultiHeadAttention", 1, True),
    ("DecoderMaskedMultiHeadAttention", 1, False), ("DecoderMaskedMultiHeadAttention", 1, True)])
def test_caches_of_as_many_heads_as_queries(
    op: str, tokens: int, beams: bool, device: dml.Device, rng: np.random.Generator
) -> None:
    """The beams of two texts. Rows that nobody wrote are never read."""
    batches, past, (heads, rows, size) = 6, 5, (2, 12, 8)
    fed = {n: rng.standard_normal((batches, tokens, heads * size)) for n in "qkv"}
    fed |= {f"past_{n}": rng.standard_normal((batches, heads, rows, size)) for n in "kv"}
    fed = {n: x.astype(ml_dtypes.bfloat16) for n, x in fed.items()}
    exact = {n: x.astype(np.float32) for n, x in fed.items()}
    own = np.arange(batches)[:, None].repeat(rows, axis=1)
    if beams:
        fed["beams"] = rng.integers(0, 3, (2, 3, rows)).astype(np.int32)
        old = fed["beams"].reshape(batches, rows) + own // 3 * 3
        own = np.where(np.arange(rows) < past, old, own)
    for n in "kv":
        fed[f"past_{n}"][:, :, past:] = np.nan
    fed["past"] = np.int32([past])
    stored = onnx.load_model_from_string(
        built(op, batches, tokens, beams=beams, bias=False, kind=_BFLOAT16))
    y, *present = backend.run_model(stored, fed)
    caches = [appended(exact[f"past_{n}"], exact[n], past) for n in "kv"]
    for got, cache in zip(present, caches):
        end = past + tokens
        np.testing.assert_array_equal(got[:, :, :end].astype(np.float32), cache[:, :, :end])
    seen = [x[own, :, np.arange(rows)].transpose(0, 2, 1, 3) for x in caches]
    np.testing.assert_allclose(y.astype(np.float32), attended(exact["q"], *seen, past),
                               rtol=2.0**-8, atol=2.0**-6)
    if not beams:
        assert _whole_caches(stored, fed, device) == ["APPEND", "APPEND"]


@pytest.mark.parametrize("past", [0, 5, 40])
@pytest.mark.parametrize(("op", "tokens", "more"), [
    ("Attention", 1, {"is_causal": 1}), ("Attention", 3, {"mask": _BFLOAT16}),
    ("Attention", 12, {"is_causal": 1, "mask": BOOL, "softcap": 2.0}),
    ("Attention", 2, {"by_head": True}), ("MultiHeadAttention", 1, {"unidirectional": 1}),
    ("MultiHeadAttention", 3, {"bias": True, "mask": _BFLOAT16}),
    ("DecoderMaskedMultiHeadAttention", 1, {})])
def test_growing_caches_stay_as_they_are(
    op: str, tokens: int, more: dict[str, Any], past: int, device: dml.Device,
    rng: np.random.Generator
) -> None:
    is_onnx, keys = op == "Attention", past + tokens
    key_heads = _KEY_HEADS if is_onnx else _HEADS
    attributes = {name: x for name, x in more.items() if isinstance(x, (int, float)) and (
        name not in ("mask", "by_head", "bias"))}
    attributes |= {"q_num_heads": _HEADS, "kv_num_heads": key_heads} if is_onnx else {
        "num_heads": _HEADS}
    sizes: dict[str, tuple[int, ...]] = {}
    for name, heads in (("q", _HEADS), ("k", key_heads), ("v", key_heads)):
        sizes[name] = (2, heads, tokens, _SIZE) if "by_head" in more else (
            2, tokens, heads * _SIZE)
    if "by_head" in more:
        attributes = {}
    sizes |= {f"past_{n}": (2, key_heads, past, _SIZE) for n in "kv"}
    if "mask" in more:
        sizes["mask"] = (2, _HEADS, tokens, keys)
    if "bias" in more:
        sizes["bias"] = (3 * _HEADS * _SIZE,)
    bias, mask = ("bias" if "bias" in more else "-"), ("mask" if "mask" in more else "-")
    inputs = {"Attention": f"q k v {mask} past_k past_v",
              "MultiHeadAttention": f"q k v {bias} - {mask} past_k past_v",
              "DecoderMaskedMultiHeadAttention": "q k v - - past_k past_v"}

    def grown(kind: int, op: str) -> bytes:
        def kind_of(name: str) -> int:
            return BOOL if name == "mask" and more["mask"] == BOOL else kind

        present = (2, key_heads, keys, _SIZE)
        return model(
            [node(op, inputs[op], "y present_k present_v", "" if is_onnx else MICROSOFT,
                  **attributes)],
            [(n, kind_of(n), x) for n, x in sizes.items()],
            [("y", kind, sizes["q"]), ("present_k", kind, present),
             ("present_v", kind, present)], opset=23)

    fed = {n: rng.standard_normal(x).astype(ml_dtypes.bfloat16) for n, x in sizes.items()}
    if more.get("mask") == BOOL:
        fed["mask"] = rng.random(sizes["mask"]) < 0.7
        fed["mask"][..., 0] = True
    stored = onnx.load_model_from_string(grown(_BFLOAT16, op))
    y, *present = backend.run_model(stored, fed)
    # The CPU provider's operator for one token wants caches that are as long as they may grow.
    reference = "Attention" if is_onnx else "MultiHeadAttention"
    wanted, *expected = cpu(grown(FLOAT, reference), False).run(None, {
        n: x if x.dtype == bool else x.astype(np.float32) for n, x in fed.items()})
    # Fresh keys and values that a bias was added to are rounded.
    for got, exact in zip(present, expected):
        np.testing.assert_allclose(got.astype(np.float32), exact, rtol=2.0**-8)
    np.testing.assert_allclose(y.astype(np.float32), wanted, rtol=2.0**-7, atol=2.0**-6)
    if past > 5:
        assert not _whole_caches(stored, fed, device)


def _whole_caches(
    stored: Any, fed: dict[str, np.ndarray], device: dml.Device
) -> list[str]:
    """The operators that read or write a whole cache and are no attention."""
    graph = read(stored)
    region = Region(device, graph.nodes, graph.inputs, graph.outputs)
    builder = Builder(device)
    total = {i: fed[v.name] for i, v in enumerate(graph.inputs) if v.name == "total"}
    region._emit(builder, [fed[v.name].shape for v in graph.inputs], total)
    cache = max(product(x.shape) for n, x in fed.items() if "past" in n)
    return [n.name for n in builder.nodes
            if "ATTENTION" not in n.name and n.name != "ROTARY_APPEND" and any(
                product(n.tensor(slot).sizes) >= cache for slot in n.storages)]
