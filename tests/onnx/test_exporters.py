"""Decoders as mobius-onnx writes them, with random weights, in one region and beside the CPU
provider: a prompt, and tokens after it. And what reads images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime", "1.32", reason="older operators have fewer inputs")
pytest.importorskip("cffi", reason="the provider needs cffi")
transformers = pytest.importorskip("transformers", reason="mobius-onnx reads its configurations")
mobius = pytest.importorskip("mobius", reason="mobius-onnx writes the models")
ir = pytest.importorskip("onnx_ir", reason="mobius-onnx writes the models")

from mobius import _config_resolver as resolver  # noqa: E402

import kompute_dml.onnxruntime as kompute  # noqa: E402
from onnx_graphs import needs_provider  # noqa: E402
from provider_tools import session  # noqa: E402

pytestmark = needs_provider
_WORDS, _WIDTH = 256, 64
_USUAL: dict[str, Any] = {
    "vocab_size": _WORDS, "hidden_size": _WIDTH, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64}
_SSM: dict[str, Any] = {
    "vocab_size": _WORDS, "hidden_size": _WIDTH, "num_hidden_layers": 2, "state_size": 16}
_TURNS = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}
_VISION: dict[str, Any] = {"depth": 2, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2,
                           "out_hidden_size": _WIDTH}
_FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Llama": ("LlamaConfig", _USUAL, {}),
    "Mamba": ("MambaConfig", _SSM, {}),
    "Mamba 2": ("Mamba2Config", {**_SSM, "num_heads": 8, "head_dim": 16, "n_groups": 2}, {}),
    "Qwen3-Next": ("Qwen3NextConfig", {
        **_USUAL, **_EXPERTS, "linear_num_value_heads": 4, "linear_num_key_heads": 2,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "layer_types": ["linear_attention", "full_attention"]}, {}),
    "DeepSeek-V3": ("DeepseekV3Config", {
        **{name: x for name, x in _USUAL.items() if name != "head_dim"}, "num_key_value_heads": 4,
        "moe_intermediate_size": 32, "n_routed_experts": 8, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1,
        "q_lora_rank": 64, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16,
        "v_head_dim": 32}, {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}),
    "Qwen2.5-VL": ("Qwen2_5_VLConfig", {
        "image_token_id": 7,
        "text_config": {**{name: x for name, x in _USUAL.items() if name != "head_dim"},
                        "rope_parameters": {**_TURNS, "mrope_section": [2, 3, 3]}},
        "vision_config": {**_VISION, "fullatt_block_indexes": [1]}}, {}),
    "Qwen3-VL": ("Qwen3VLConfig", {
        "image_token_id": 7,
        "text_config": {**_USUAL, "rope_parameters": _TURNS},
        "vision_config": {**_VISION, "deepstack_visual_indexes": [0]}}, {}),
}
"""Configurations of transformers, and what mobius-onnx reads of checkpoints beside them."""
_ONE_BY_ONE = ("Mamba",)
"""mobius-onnx's Mamba takes a token at a time."""


def _weighted(model: Any, rng: np.random.Generator) -> None:
    for name, value in model.graph.initializers.items():
        if value.const_value is None:
            sizes = [int(n) for n in value.shape]
            w = rng.standard_normal(sizes) * (0.3 if len(sizes) < 2 else sizes[-1] ** -0.5)
            if name.endswith("A_log"):
                w = np.log(rng.uniform(1, 8, sizes))
            elif "norm" in name:
                w += 1
            value.const_value = ir.tensor(w.astype(value.dtype.numpy()), name=name)


def _package(family: str) -> Any:
    name, sizes, more = _FAMILIES[family]
    config = getattr(transformers, name)(**sizes)
    written = mobius.registry.get(config.model_type)
    parent = config if hasattr(config, "text_config") else None
    own = resolver._config_from_hf(
        config.text_config if parent else config, parent_config=parent, module_class=written)
    for key, value in more.items():
        setattr(own, key, value)
    task = (mobius.registry.get_task(config.model_type)
            or resolver._default_task_for_model(config.model_type))
    return mobius.build_from_module(written(own), own, task)


def _files(family: str, folder: Path) -> dict[str, Path]:
    rng, files = np.random.default_rng(3), {}
    for part, model in _package(family).items():
        _weighted(model, rng)
        files[part] = folder / f"{part}.onnx"
        ir.save(model, files[part])
    return files


def _regions(path: Path, claim: str = "all") -> dict[str, int]:
    """The nodes of each."""
    decisions, _ = kompute.decided(path, claim=claim)
    counts: dict[str, int] = {}
    for d in decisions:
        counts[d.where] = counts.get(d.where, 0) + 1
    return counts


def _turns(family: str, names: list[str], rng: np.random.Generator
           ) -> Iterator[dict[str, np.ndarray]]:
    end = 0
    for count in (1,) * 4 if family in _ONE_BY_ONE else (6, 1, 1):
        begin, end = end, end + count
        places = np.tile(np.arange(begin, end), (2, 1))
        feed = {
            "input_ids": rng.integers(0, _WORDS, (2, count)),
            "inputs_embeds": rng.standard_normal((2, count, _WIDTH)).astype(np.float32),
            "attention_mask": np.ones((2, end), np.int64),
            "position_ids": np.stack([places, places + 1, places * 2]) if "VL" in family
            else places}
        yield {name: x for name, x in feed.items() if name in names}


@pytest.mark.parametrize("family", _FAMILIES)
def test_decoders_run_in_one_region(family: str, tmp_path: Path, rng: np.random.Generator) -> None:
    files = _files(family, tmp_path)
    path = files.get("model") or files["decoder"]
    assert [*_regions(path)] == ["region 0"]
    ours = session(str(path), claim="all", strict=True)
    theirs = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs, outputs = theirs.get_inputs(), [y.name for y in theirs.get_outputs()]
    past = {x.name: np.zeros([2 if n == "batch" else 0 if isinstance(n, str) else n
                              for n in x.shape], np.float32)
            for x in inputs if x.name.startswith("past")}
    states = [past, past]
    for feed in _turns(family, [x.name for x in inputs], rng):
        results = [dict(zip(outputs, which.run(None, {**feed, **state})))
                   for which, state in zip((ours, theirs), states)]
        for name, wanted in results[1].items():
            np.testing.assert_allclose(results[0][name], wanted, rtol=1e-3,
                                       atol=1e-4 * abs(wanted).max(), err_msg=name)
        assert np.ptp(results[1]["logits"]) > 0.1
        states = [{name: y[name.replace("past_key_values", "present").replace(
            "past_states", "present")] for name in past} for y in results]


@pytest.mark.parametrize("family", ["Qwen2.5-VL", "Qwen3-VL"])
def test_an_image(family: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """All layers are one region. Only a run tells how many places images have, so ONNX Runtime
    counts them. Qwen3-VL also interpolates embeddings of places, in the graph that a Scan runs for
    each image. The images' rows then take the places of tokens."""
    files = _files(family, tmp_path)
    counts = _regions(files["vision_encoder"])
    nested = ["region 0"] if family == "Qwen3-VL" else []
    layers = f"region {len(nested)}"
    assert {*counts} == {*nested, layers, "CPU"} and counts[layers] > 100
    config = getattr(transformers, _FAMILIES[family][0])(**_FAMILIES[family][1])
    vision = config.vision_config
    features = 3 * vision.temporal_patch_size * vision.patch_size**2
    grid = np.int64([[1, 8, 4], [1, 4, 12]])
    pixels = rng.standard_normal((80, features)).astype(np.float32)
    feed = {"pixel_values": pixels, "image_grid_thw": grid}
    runs = []
    for part in ("vision_encoder", "embedding"):
        ours = session(str(files[part]), claim="all")
        theirs = ort.InferenceSession(str(files[part]), providers=["CPUExecutionProvider"])
        runs = [which.run(None, feed) for which in (ours, theirs)]
        for got, wanted in zip(*runs):
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4 * abs(wanted).max())
        tokens = np.full((1, 26), config.image_token_id)
        tokens[0, :6] = 5
        names = [x.name for x in ort.InferenceSession(
            str(files["embedding"]), providers=["CPUExecutionProvider"]).get_inputs()]
        feed = {"input_ids": tokens, names[1]: runs[1][0]}
