"""Folders with tiny models that write tokens, in the forms that exporters give them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from made_models import FLOAT, INT64, model, node

WORDS, WIDTH, HEADS, KEY_HEADS, SIZE, POSITIONS = 48, 32, 4, 2, 16, 96
END = 1
ADAPTED = {"lora_A": (HEADS * SIZE, 4), "lora_B": (4, WIDTH)}
"""Inputs of an adapter, and their sizes."""
_INT32 = 6
Info = tuple[str, int, Sequence[Any] | None]


class _Graph:
    """Nodes and constants. Weights keep numbers near 1."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def add(self, op: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(node(op, inputs, outputs, domain, **attributes))
        return outputs.split()[0]

    def constant(self, name: str, x: Any) -> str:
        self.constants[name] = np.asarray(x)
        return name

    def random(self, *sizes: int) -> np.ndarray:
        return self._rng.standard_normal(sizes).astype(np.float32)

    def product(self, x: str, y: str, depth: int, columns: int) -> str:
        w = (self._rng.standard_normal((depth, columns)) * depth**-0.5).astype(np.float32)
        return self.add("MatMul", f"{x} {self.constant(f'{y}.w', w)}", y)

    def embedded(self) -> str:
        table = self._rng.standard_normal((WORDS, WIDTH)).astype(np.float32)
        return self.add("Gather", f"{self.constant('embedding', table)} input_ids", "x")

    def ended(self, x: str) -> None:
        """Logits of a sum. The end is the most probable word of none."""
        self.constant("end.scale", np.ones(WIDTH, np.float32))
        self.add("LayerNormalization", f"{x} end.scale", "normal", axis=-1)
        self.product("normal", "logits", WIDTH, WORDS)
        self.constants["logits.w"][:, END] = 0

    def write(
        self, path: Path, inputs: Sequence[Info], outputs: Sequence[Info], opset: int
    ) -> None:
        path.write_bytes(model(self.nodes, inputs, outputs, self.constants, opset))


def language_model(
    folder: Path, *, shares: bool, masks: bool = False, adapts: bool = False, embeds: bool = True,
    placed: bool = False, short: int = 0, seed: int = 0, layers: int = 2,
) -> Path:
    """A decoder and its tokenizer. ``shares``: its caches may be as long as they may grow, as those
    of onnxruntime-genai's builder; else they grow, as those of optimum's exports, where inputs may
    be a mask of tokens (``masks``) and their positions. ``adapts``: the first layer adds a product
    with :data:`ADAPTED`, inputs that are 0 where nobody gives them. Unless it ``embeds`` tokens, an
    input has their embeddings. ``placed``: each token has a time, a height and a width. ``short``:
    texts of more tokens have other angles."""
    g = _Graph(seed)
    x = g.embedded() if embeds else "inputs_embeds"
    if shares:
        g.constant("one", np.int64(1))
        g.add("ReduceSum", f"attention_mask {g.constant('across', np.int64([1]))}", "counts",
              keepdims=0)
        g.add("Sub", "counts one", "last")
        g.add("Cast", "last", "lengths", to=_INT32)
        g.add("Shape", "attention_mask", "mask.sizes")
        g.add("Gather", "mask.sizes one", "mask.length")
        g.add("Cast", "mask.length", "total", to=_INT32)
        steps = 1000.0 ** -(np.arange(0, SIZE, 2) / SIZE)
        angles = np.outer(np.arange(POSITIONS), steps).astype(np.float32)
        if short:
            g.add("Greater", f"mask.length {g.constant('short', np.int64(short))}", "is.long")
            g.nodes.append(helper.make_node(
                "If", ["is.long"], ["cos", "sin"], then_branch=_constants(
                    "long", np.cos(angles / 4), np.sin(angles / 4)),
                else_branch=_constants("short", np.cos(angles[:short]), np.sin(angles[:short]))))
        else:
            g.constant("cos", np.cos(angles))
            g.constant("sin", np.sin(angles))
    if masks:
        g.add("Cast", "attention_mask", "mask.bool", to=9)
        g.add("Unsqueeze", f"mask.bool {g.constant('middle', np.int64([1, 2]))}", "mask.row")
        g.add("Shape", "input_ids", "tokens", start=1, end=2)
        g.add("Concat", f"{g.constant('ones', np.int64([1, 1]))} tokens "
                        f"{g.constant('last', np.int64([1]))}", "mask.sizes", axis=0)
        g.add("Expand", "mask.row mask.sizes", "mask")
        steps = np.random.default_rng(seed).standard_normal((POSITIONS, WIDTH)).astype(np.float32)
        g.add("Gather", f"{g.constant('steps', steps)} position_ids", "place")
        x = g.add("Add", f"{x} place", "x.placed")
    for n in range(layers):
        q = g.product(x, f"{n}.q", WIDTH, HEADS * SIZE)
        k, v = (g.product(x, f"{n}.{name}", WIDTH, KEY_HEADS * SIZE) for name in "kv")
        past, present = (f"{p}.{n}.key {p}.{n}.value" for p in ("past_key_values", "present"))
        if placed:
            q, k = (g.add("MRotaryEmbedding", f"{x} position_ids cos sin", f"{x}.placed",
                          "com.microsoft", num_heads=heads, mrope_section=[2, 3, 3])
                    for x, heads in ((q, HEADS), (k, KEY_HEADS)))
        if shares:
            y = g.add("GroupQueryAttention",
                      f"{q} {k} {v} {past} lengths total{'' if placed else ' cos sin'}",
                      f"{n}.y {present}", "com.microsoft", num_heads=HEADS,
                      kv_num_heads=KEY_HEADS, do_rotary=int(not placed))
        else:
            y = g.add("Attention", f"{q} {k} {v} {'mask' if masks else '-'} {past}",
                      f"{n}.y {present}", is_causal=1, q_num_heads=HEADS, kv_num_heads=KEY_HEADS)
        o = g.product(y, f"{n}.o", HEADS * SIZE, WIDTH)
        if adapts and not n:
            for name, sizes in ADAPTED.items():
                g.constant(name, np.zeros(sizes, np.float32))
            g.add("MatMul", f"{y} lora_A", "few")
            o = g.add("Add", f"{o} {g.add('MatMul', 'few lora_B', 'more')}", "adapted")
        x = g.add("Add", f"{x} {o}", f"{n}.x")
    g.ended(x)
    mask: list[Info] = [("attention_mask", INT64, ["batch", "total"])] if shares or masks else []
    if masks or placed:
        mask.append(("position_ids", INT64, [3] * placed + ["batch", "length"]))
    g.write(folder / "model.onnx", [
        ("input_ids", INT64, ["batch", "length"]) if embeds else
        ("inputs_embeds", FLOAT, ["batch", "length", WIDTH]), *mask,
        *((name, FLOAT, sizes) for name, sizes in ADAPTED.items() if adapts),
        *_caches("past_key_values", layers, KEY_HEADS, "past")], [
        ("logits", FLOAT, ["batch", "length", WORDS]),
        *_caches("present", layers, KEY_HEADS, "all")], 17 if shares else 23)
    (folder / "config.json").write_text(json.dumps(
        {"eos_token_id": END, "max_position_embeddings": POSITIONS}))
    _genai_config(folder, layers)
    write_tokenizer(folder)
    return folder


def _constants(name: str, *values: np.ndarray) -> onnx.GraphProto:
    """A graph that has them as outputs, as onnxruntime-genai's builder writes it."""
    nodes = [helper.make_node("Constant", [], [f"{name}.{i}"], value=numpy_helper.from_array(x))
             for i, x in enumerate(values)]
    return helper.make_graph(nodes, name, [], [
        helper.make_tensor_value_info(f"{name}.{i}", FLOAT, x.shape)
        for i, x in enumerate(values)])


def _caches(prefix: str, layers: int, heads: int, length: str) -> list[Info]:
    return [(f"{prefix}.{n}.{kind}", FLOAT, ["batch", heads, length, SIZE])
            for n in range(layers) for kind in ("key", "value")]


def _genai_config(folder: Path, layers: int) -> None:
    """What onnxruntime-genai's builder writes beside a model."""
    decoder = {
        "session_options": {"provider_options": []}, "filename": "model.onnx",
        "head_size": SIZE, "hidden_size": WIDTH, "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS, "num_hidden_layers": layers,
        "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask",
                   "past_key_names": "past_key_values.%d.key",
                   "past_value_names": "past_key_values.%d.value"},
        "outputs": {"logits": "logits", "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value"}}
    search = {"max_length": POSITIONS, "past_present_share_buffer": True, "num_beams": 1}
    (folder / "genai_config.json").write_text(json.dumps({
        "model": {"type": "llama", "vocab_size": WORDS, "context_length": POSITIONS,
                  "bos_token_id": 0, "eos_token_id": END, "pad_token_id": 0, "decoder": decoder},
        "search": search}))


def write_tokenizer(folder: Path) -> None:
    """Words ``w2``, ``w3``, ..., of which token 0 begins a text and END ends it."""
    words = {"<s>": 0, "</s>": END, **{f"w{n}": n for n in range(2, WORDS - 1)}, "?": WORDS - 1}
    special = [{"id": n, "content": word, "special": True, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False} for word, n in words.items() if n <= END]
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": words, "unk_token": "?"}}))


_MELS, _FRAMES = 8, 24


def whisper(folder: Path, *, merged: bool, seed: int = 0) -> Path:
    """An encoder of sound and a decoder in optimum's form, of two models or ``merged`` by If."""
    g = _Graph(seed)
    g.add("Transpose", "input_features", "by_frame", perm=[0, 2, 1])
    g.product("by_frame", "last_hidden_state", _MELS, WIDTH)
    g.write(folder / "encoder_model.onnx", [("input_features", FLOAT, ["batch", _MELS, _FRAMES])],
            [("last_hidden_state", FLOAT, ["batch", _FRAMES, WIDTH])], 23)
    ids: Info = ("input_ids", INT64, ["batch", "length"])
    encoded: Info = ("encoder_hidden_states", FLOAT, ["batch", _FRAMES, WIDTH])
    past, own, cross = (
        [(f"{name}.0.{part}.{kind}", FLOAT, ["batch", HEADS, f"{name} {part}", SIZE])
         for kind in ("key", "value") for part in parts]
        for name, parts in (("past_key_values", ("decoder", "encoder")),
                            ("present", ("decoder",)), ("present", ("encoder",))))
    logits: Info = ("logits", FLOAT, ["batch", "length", WORDS])
    first, later = (_heard(seed, with_past) for with_past in (False, True))
    if merged:
        outputs = [logits, *own, *cross]
        for kind in ("key", "value"):  # which later runs do not make
            later.add("Identity", f"past_key_values.0.encoder.{kind}", f"present.0.encoder.{kind}")
        infos = [helper.make_tensor_value_info(*y) for y in outputs]
        g = _Graph(seed)
        g.constants = first.constants
        g.nodes.append(helper.make_node(
            "If", ["use_cache_branch"], [y[0] for y in outputs], name="if",
            then_branch=helper.make_graph(later.nodes, "later", [], infos),
            else_branch=helper.make_graph(first.nodes, "first", [], infos)))
        g.write(folder / "decoder_model_merged.onnx",
                [ids, encoded, *past, ("use_cache_branch", 9, [1])], outputs, 23)
    else:
        first.write(folder / "decoder_model.onnx", [ids, encoded], [logits, *own, *cross], 23)
        later.write(folder / "decoder_with_past_model.onnx", [ids, *past], [logits, *own], 23)
    (folder / "config.json").write_text(json.dumps(
        {"decoder_start_token_id": 0, "eos_token_id": END, "num_mel_bins": _MELS}))
    (folder / "generation_config.json").write_text(json.dumps({
        "suppress_tokens": [2, 3], "begin_suppress_tokens": [END],
        "lang_to_id": {"<|de|>": 4, "<|en|>": 5}, "task_to_id": {"transcribe": 6}}))
    write_tokenizer(folder)
    return folder


def _heard(seed: int, with_past: bool) -> _Graph:
    """A decoder's nodes: attention to its own tokens, then to the encoder's."""
    g = _Graph(seed + 1)
    x = g.embedded()
    q, k, v = (g.product(x, f"own.{name}", WIDTH, HEADS * SIZE) for name in "qkv")
    past = " - past_key_values.0.decoder.key past_key_values.0.decoder.value" if with_past else ""
    y = g.add("Attention", f"{q} {k} {v}{past}",
              "own.y present.0.decoder.key present.0.decoder.value", is_causal=1,
              q_num_heads=HEADS, kv_num_heads=HEADS)
    x = g.add("Add", f"{x} {g.product(y, 'own.o', HEADS * SIZE, WIDTH)}", "own.x")
    q = g.product(x, "cross.q", WIDTH, HEADS * SIZE)
    g.constant("by_head", np.int64([0, 0, HEADS, SIZE]))
    made = []
    for kind in ("key", "value"):
        flat = g.product("encoder_hidden_states", f"cross.{kind}", WIDTH, HEADS * SIZE)
        if with_past:
            g.nodes.pop()  # drawn, so that all other weights are those of the first model
            del g.constants[f"{flat}.w"]
            made.append(f"past_key_values.0.encoder.{kind}")
            continue
        g.add("Reshape", f"{flat} by_head", f"{flat}.heads")
        made.append(g.add("Transpose", f"{flat}.heads", f"present.0.encoder.{kind}",
                          perm=[0, 2, 1, 3]))
    g.add("Reshape", f"{q} by_head", "cross.q.heads")
    g.add("Transpose", "cross.q.heads", "cross.q.by_head", perm=[0, 2, 1, 3])
    g.add("Attention", f"cross.q.by_head {made[0]} {made[1]}", "cross.y")
    g.add("Transpose", "cross.y", "cross.y.tokens", perm=[0, 2, 1, 3])
    g.add("Reshape", f"cross.y.tokens {g.constant('flat', np.int64([0, 0, HEADS * SIZE]))}",
          "cross.flat")
    x = g.add("Add", f"{x} {g.product('cross.flat', 'cross.o', HEADS * SIZE, WIDTH)}", "cross.x")
    g.ended(x)
    return g


GENAI_MELS, GENAI_FRAMES = 8, 3000
"""What onnxruntime-genai's whisper hears; it has 3000 frames always."""


def genai_whisper(folder: Path, *, own_options: bool = False, seed: int = 0) -> Path:
    """An encoder of sound, which computes the keys and values that the decoder attends to, and a
    decoder, in the form of onnxruntime-genai's builder. ``own_options``: the encoder has session
    options, as the builder writes them."""
    g = _Graph(seed)
    weight = np.random.default_rng(seed).standard_normal((WIDTH, GENAI_MELS, 3)) * 0.3
    g.add("Conv", f"audio_features {g.constant('conv', weight.astype(np.float32))}", "sound",
          strides=[2], pads=[1, 1])
    g.add("Transpose", "sound", "encoder_hidden_states", perm=[0, 2, 1])
    g.constant("by_head", np.int64([0, 0, HEADS, SIZE]))
    heard = GENAI_FRAMES // 2
    for kind in ("key", "value"):
        y = g.product("encoder_hidden_states", f"cross.{kind}", WIDTH, HEADS * SIZE)
        g.add("Reshape", f"{y} by_head", f"{y}.heads")
        g.add("Transpose", f"{y}.heads", f"present_{kind}_cross_0", perm=[0, 2, 1, 3])
    cross: list[list[Info]] = [
        [(f"{name}_{kind}_cross_0", FLOAT, ["batch", HEADS, heard, SIZE])
         for kind in ("key", "value")] for name in ("past", "present")]
    own: list[list[Info]] = [
        [(f"{name}_{kind}_self_0", FLOAT, ["batch", HEADS, name, SIZE])
         for kind in ("key", "value")] for name in ("past", "present")]
    g.write(folder / "encoder.onnx",
            [("audio_features", FLOAT, ["batch", GENAI_MELS, GENAI_FRAMES])],
            [("encoder_hidden_states", FLOAT, ["batch", heard, WIDTH]), *cross[1]], 17)

    g = _Graph(seed + 1)
    x = g.embedded()
    for name, keys in (("self", " - - - past_key_self_0 past_value_self_0"), ("cross", "")):
        q = g.product(x, f"{name}.q", WIDTH, HEADS * SIZE)
        k, v = ((g.product(x, f"self.{n}", WIDTH, HEADS * SIZE) for n in "kv") if keys else
                ("past_key_cross_0", "past_value_cross_0"))
        y = g.add("MultiHeadAttention", f"{q} {k} {v}{keys}",
                  f"{name}.y" + " present_key_self_0 present_value_self_0" * bool(keys),
                  "com.microsoft", num_heads=HEADS, **({"unidirectional": 1} if keys else {}))
        x = g.add("Add", f"{x} {g.product(y, f'{name}.o', HEADS * SIZE, WIDTH)}", f"{name}.x")
    g.ended(x)
    g.write(folder / "decoder.onnx", [
        ("input_ids", _INT32, ["batch", "length"]), *own[0], *cross[0]],
        [("logits", FLOAT, ["batch", "length", WORDS]), *own[1]], 17)
    sizes = {"head_size": SIZE, "hidden_size": WIDTH, "num_attention_heads": HEADS,
             "num_key_value_heads": HEADS, "num_hidden_layers": 1}
    names = {f"cross_{name}_{kind}_names": f"{name}_{kind}_cross_%d"
             for name in ("present", "past") for kind in ("key", "value")}
    (folder / "genai_config.json").write_text(json.dumps({
        "model": {
            "type": "whisper", "vocab_size": WORDS, "context_length": POSITIONS,
            "bos_token_id": 0, "eos_token_id": END, "pad_token_id": END,
            "decoder_start_token_id": 0,
            "encoder": {
                **sizes, "filename": "encoder.onnx",
                **({"session_options": {"provider_options": [{"webgpu": {}}]}} if own_options
                   else {}),
                "inputs": {"audio_features": "audio_features"},
                "outputs": {"encoder_hidden_states": "encoder_hidden_states",
                            **{n: x for n, x in names.items() if "present" in n}}},
            "decoder": {
                **sizes, "filename": "decoder.onnx",
                "session_options": {"provider_options": []},
                "inputs": {"input_ids": "input_ids", "past_key_names": "past_key_self_%d",
                           "past_value_names": "past_value_self_%d",
                           **{n: x for n, x in names.items() if "past" in n}},
                "outputs": {"logits": "logits", "present_key_names": "present_key_self_%d",
                            "present_value_names": "present_value_self_%d"}}},
        "search": {"max_length": POSITIONS, "past_present_share_buffer": False,
                   "num_beams": 1}}))
    write_tokenizer(folder)
    return folder


IMAGE, BEFORE_IMAGE, _SIDE, _PATCH = 7, 6, 8, 4
"""The token in whose places an image's features go and the one before them; an image's pixels and
those of a patch, on a side."""
IMAGE_TOKENS = (_SIDE // _PATCH) ** 2


def genai_vision(folder: Path, *, placed: bool = False, seed: int = 0) -> Path:
    """A language model with images in onnxruntime-genai's form: a part that reads images, one that
    puts their features among the embeddings of tokens, and a decoder of embeddings. It is like
    Gemma 3, or, ``placed``, like Qwen2.5-VL, whose images are rows of pixels of patches."""
    language_model(folder, shares=True, embeds=False, placed=placed, seed=seed)
    g = _Graph(seed + 1)
    if placed:  # four patches, side by side, are a token
        x = g.product("pixel_values", "patches", 3 * _PATCH**2, WIDTH // 4)
        g.add("Cast", "image_grid_thw", "grid", to=FLOAT)
        g.add("Gather", f"grid {g.constant('second', np.int64([1]))}", "heights", axis=1)
        g.add("ReduceSum", "heights", "height", keepdims=0)
        g.add("Div", f"{x} height", "by_height")
        x = g.add("Reshape", f"by_height {g.constant('fours', np.int64([1, -1, WIDTH]))}", "rows")
    else:
        w = g.random(WIDTH, 3, _PATCH, _PATCH)
        g.add("Conv", f"pixel_values {g.constant('patches.w', w / _PATCH)}", "patches",
              kernel_shape=[_PATCH] * 2, strides=[_PATCH] * 2)
        g.add("Reshape", f"patches {g.constant('lines', np.int64([0, WIDTH, -1]))}", "by_channel")
        x = g.add("Transpose", "by_channel", "rows", perm=[0, 2, 1])
    q, k, v = (g.product(x, f"seen.{name}", WIDTH, WIDTH) for name in "qkv")
    y = g.add("MultiHeadAttention", f"{q} {k} {v}", "seen", "com.microsoft", num_heads=HEADS)
    g.add("Add", f"{x} {g.product(y, 'seen.o', WIDTH, WIDTH)}", "seen.x")
    g.add("Reshape", f"seen.x {g.constant('features', np.int64([-1, WIDTH]))}", "image_features")
    pixels: list[Info] = [
        ("pixel_values", FLOAT, ["patches", 3 * _PATCH**2]), ("image_grid_thw", INT64, ["n", 3])
    ] if placed else [("pixel_values", FLOAT, ["images", 3, _SIDE, _SIDE])]
    g.write(folder / "vision.onnx", pixels, [("image_features", FLOAT, ["places", WIDTH])], 17)

    g = _Graph(seed)
    x = g.embedded()
    g.add("Equal", f"input_ids {g.constant('image', np.int64(IMAGE))}", "is")
    g.add("Unsqueeze", f"is {g.constant('last', np.int64([-1]))}", "is.row")
    g.add("Cast", "is", "ones", to=INT64)
    g.add("CumSum", f"ones {g.constant('one', np.int64(1))}", "numbers")
    g.add("Sub", "numbers one", "before")
    g.add("Clip", f"before {g.constant('zero', np.int64(0))}", "places")
    g.add("Concat", f"image_features {g.constant('none', np.zeros((1, WIDTH), np.float32))}",
          "all", axis=0)  # a text may have no image
    g.add("Gather", "all places", "placed", axis=0)
    g.add("Where", f"is.row placed {x}", "inputs_embeds")
    g.write(folder / "embedding.onnx", [("input_ids", INT64, ["batch", "length"]),
                                        ("image_features", FLOAT, ["places", WIDTH])],
            [("inputs_embeds", FLOAT, ["batch", "length", WIDTH])], 17)
    path = folder / "genai_config.json"
    config = json.loads(path.read_text())
    described = config["model"]
    described["type"] = "qwen2_5_vl" if placed else "gemma3"
    inputs = described["decoder"]["inputs"]
    del inputs["input_ids"]
    inputs["inputs_embeds"] = "inputs_embeds"
    described["vision"] = {
        "filename": "vision.onnx", "inputs": {name: name for name, *_ in pixels},
        "outputs": {"image_features": "image_features"}}
    if placed:
        inputs["position_ids"] = "position_ids"
        described |= {"image_token_id": IMAGE, "vision_start_token_id": BEFORE_IMAGE}
        described["vision"] |= {"spatial_merge_size": 2, "patch_size": _PATCH}
    described["embedding"] = {
        "filename": "embedding.onnx",
        "inputs": {"input_ids": "input_ids", "image_features": "image_features"},
        "outputs": {"inputs_embeds": "inputs_embeds"}}
    path.write_text(json.dumps(config))
    return folder
