"""Decoders in other libraries, each in a process of its own: llama.cpp's Vulkan backend, PyTorch on
CUDA, and ONNX Runtime's WebGPU provider.

``python -m kompute_dml.bench.decoder_peers LIBRARY MODEL FOLDER`` prints one JSON object: tokens a
second by name, as :mod:`.generation` asks for them.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from .decoders import SHAPES, Part, Shape
from .generator import GeneratorBinding, TokenGenerator

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import CUDAGraph

PROMPT, TOKENS = 512, 64
CONTEXTS = (512, 4096)
PACKAGES = {"llama.cpp": "cyllama.llama.llama_cpp", "torch": "torch",
            "webgpu": "onnxruntime_ep_webgpu"}
"""The module that each library needs."""
_WARM = 4
_WORDS = 7919
"""Steps between the tokens of a prompt."""


def measured(library: str, shape: Shape, folder: Path, seconds: float) -> dict[str, Any]:
    """What a library's process says, or ``{"problem": ...}``."""
    command = [sys.executable, "-m", __spec__.name, library, shape.name, str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"problem": f"more than {seconds:.0f} s"}
    for line in done.stdout.splitlines()[::-1]:
        if line.startswith("{"):
            figures: dict[str, Any] = json.loads(line)
            return figures
    return {"problem": " ".join(done.stderr.split())[-200:] or f"exit code {done.returncode}"}


def prompt_of(shape: Shape, count: int) -> np.ndarray:
    """The tokens of a prompt."""
    return np.arange(1, count + 1) * _WORDS % shape.words


def rate(step: Callable[[int], Any], count: int = TOKENS, seconds: float = 15.0) -> float:
    """Steps a second, after some that are not counted."""
    for n in range(_WARM):
        step(n)
    begin, done = time.perf_counter(), 0
    while done < count and time.perf_counter() - begin < seconds:
        step(_WARM + done)
        done += 1
    return done / (time.perf_counter() - begin)


def median_rate(call: Callable[[], object], tokens: int, calls: int = 5) -> float:
    """Tokens a second of the median call, after one that is not counted."""
    call()
    took = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return tokens / sorted(took)[calls // 2]


# llama.cpp


def _write_gguf(shape: Shape, path: Path) -> None:
    """The decoder's shape with random weights: Q4_0, which has blocks of 32, or FLOAT16."""
    gguf: Any = importlib.import_module("gguf")
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, value in (
        ("context_length", shape.positions), ("embedding_length", shape.width),
        ("block_count", shape.layers), ("feed_forward_length", shape.inner),
        ("head_count", shape.heads), ("head_count_kv", shape.key_heads),
        ("layer_norm_rms_eps", 1e-5), ("rope_freq_base", 500000.0),
        ("rope_dimension_count", shape.head), ("key_length", shape.head),
        ("value_length", shape.head), ("vocab_size", shape.words),
        ("tokenizer_model", "no_vocab"),
    ):
        getattr(writer, f"add_{name}")(value)
    quantized = shape.bits == 4
    kind = gguf.GGMLQuantizationType.Q4_0 if quantized else gguf.GGMLQuantizationType.F16
    known: dict[tuple[int, int], np.ndarray] = {}

    def matrix(name: str, rows: int, depth: int) -> None:
        if (rows, depth) not in known:
            scale = depth ** -0.5
            if quantized:
                blocks = np.empty((rows, depth // 32, 18), np.uint8)
                pool = rng.integers(0, 256, 1 << 24, dtype=np.uint8)
                blocks[..., 2:] = np.resize(pool, (rows, depth // 32, 16))
                blocks[..., :2] = np.array([scale / 4.61], np.float16).view(np.uint8)
                known[rows, depth] = blocks.reshape(rows, -1)
            else:
                pool = (rng.standard_normal(1 << 22, np.float32) * scale).astype(np.float16)
                known[rows, depth] = np.resize(pool, (rows, depth))
        writer.add_tensor(name, known[rows, depth], raw_dtype=kind)

    ones, rows, keys = (np.ones(shape.width, np.float32), shape.heads * shape.head,
                        shape.key_heads * shape.head)
    matrix("token_embd.weight", shape.words, shape.width)
    matrix("output.weight", shape.words, shape.width)
    writer.add_tensor("output_norm.weight", ones)
    for n in range(shape.layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{n}.{name}.weight", ones)
        for name, height, depth in (
            ("attn_q", rows, shape.width), ("attn_k", keys, shape.width),
            ("attn_v", keys, shape.width), ("attn_output", shape.width, rows),
            ("ffn_gate", shape.inner, shape.width), ("ffn_up", shape.inner, shape.width),
            ("ffn_down", shape.width, shape.inner),
        ):
            matrix(f"blk.{n}.{name}.weight", height, depth)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _llama(shape: Shape, folder: Path) -> dict[str, Any]:
    library: Any = importlib.import_module(PACKAGES["llama.cpp"])
    path = folder / "decoder.gguf"
    _write_gguf(shape, path)
    library.disable_logging()
    library.ggml_backend_load_all()
    devices = [d["description"] for d in library.ggml_backend_dev_info()
               if d["name"].startswith("Vulkan")]
    if not devices:
        return {"problem": "it finds no Vulkan device"}
    of_model, of_context = library.LlamaModelParams(), library.LlamaContextParams()
    of_model.n_gpu_layers = 999
    model = library.LlamaModel(str(path), of_model)
    path.unlink()
    of_context.n_ctx = max(CONTEXTS) + 2 * TOKENS
    of_context.n_batch = of_context.n_ubatch = PROMPT
    of_context.flash_attn_type = 1
    context = library.LlamaContext(model, of_context)

    def run(ids: Sequence[int], before: int) -> None:
        batch = library.LlamaBatch(n_tokens=len(ids), embd=0, n_seq_max=1)
        batch.set_batch(list(ids), before, False)
        batch.set_last_logits_to_true()
        context.decode(batch)
        context.synchronize()

    ids = prompt_of(shape, PROMPT).tolist()

    def prompt() -> None:
        context.kv_cache_clear()
        run(ids, 0)

    figures: dict[str, Any] = {
        "device": devices[0], f"prompt {PROMPT}": median_rate(prompt, PROMPT)}
    for before in CONTEXTS:
        context.kv_cache_clear()
        for first in range(0, before, PROMPT):
            run(ids, first)

        def step(n: int, before: int = before) -> None:
            run([ids[n]], before + n)

        figures[f"decode {before}"] = rate(step)
    return figures


# PyTorch


def _torch(shape: Shape, folder: Path) -> dict[str, Any]:
    """FLOAT16 weights, caches of a fixed size, and a CUDA graph for each token."""
    import torch

    if not torch.cuda.is_available():
        return {"problem": "it has no CUDA"}
    torch.set_grad_enabled(False)
    decoder = _TorchDecoder(torch, shape, folder)
    prompt = torch.from_numpy(prompt_of(shape, PROMPT)).cuda()
    decoder.begin(PROMPT + 2 * TOKENS)

    def whole() -> None:
        decoder.run(prompt, torch.arange(PROMPT, device="cuda"), PROMPT, True)
        torch.cuda.synchronize()

    figures: dict[str, Any] = {f"prompt {PROMPT}": median_rate(whole, PROMPT)}
    for before in CONTEXTS:
        decoder.begin(before + 2 * TOKENS)
        token = torch.tensor([5], device="cuda")
        place = torch.tensor([before], device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                decoder.run(token, place, before + 1, False)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = decoder.run(token, place, before + 1, False)

        def step(
            n: int, token: Tensor = token, graph: CUDAGraph = graph, logits: Tensor = logits
        ) -> None:
            token.fill_(n)
            graph.replay()
            logits.argmax().item()

        figures[f"decode {before}"] = rate(step)
    return figures


class _TorchDecoder:
    def __init__(self, torch: ModuleType, shape: Shape, folder: Path) -> None:
        self._torch, self._shape = torch, shape
        raw = json.loads((folder / "parts.json").read_text())
        self._parts = {name: Part(*part) for name, part in raw.items()}
        self._file = np.memmap(folder / "weights.bin", np.uint8, "r")
        self.embedding = self._tensor("embedding")
        self.layers = []
        for n in range(shape.layers):
            q, k, v, o, gate, up, down = (
                self._weights(f"{n}.{x}") for x in ("q", "k", "v", "o", "gate", "up", "down"))
            self.layers.append((torch.cat([q, k, v]), o, torch.cat([gate, up]), down))
        self.head = self._weights("head")
        steps = 500000.0 ** -(torch.arange(0, shape.head, 2, device="cuda") / shape.head)
        angles = torch.outer(torch.arange(shape.positions, device="cuda").float(), steps)
        self.cos, self.sin = (torch.cat([x, x], -1).half() for x in (angles.cos(), angles.sin()))
        self.norm = torch.ones(shape.width, dtype=torch.float16, device="cuda")

    def _tensor(self, name: str) -> Any:
        part = self._parts[name]
        raw = np.array(self._file[part.offset : part.offset + part.nbytes]).view(part.dtype)
        return self._torch.from_numpy(raw.reshape(part.sizes)).cuda()

    def _weights(self, name: str) -> Any:
        """[columns, K], as linear() takes them."""
        torch, bits = self._torch, self._shape.bits
        w = self._tensor(name)
        if bits == 16:
            return w.t().contiguous()
        scales = self._tensor(f"{name}.scales").reshape(*w.shape[:2], 1)
        elements = w if bits == 8 else torch.stack([w & 15, w >> 4], -1).flatten(2)
        return ((elements.half() - 2 ** (bits - 1)) * scales).flatten(1)

    def begin(self, capacity: int) -> None:
        shape = self._shape
        sizes = (shape.layers, 2, 1, shape.key_heads, capacity, shape.head)
        self.caches = self._torch.zeros(sizes, dtype=self._torch.float16, device="cuda")

    def run(self, ids: Tensor, places: Tensor, total: int, causal: bool) -> Any:
        shape, torch = self._shape, self._torch
        nn, count = torch.nn.functional, len(ids)
        cos, sin = self.cos[places][:, None], self.sin[places][:, None]

        def turned(x: Tensor) -> Any:
            low, high = x.chunk(2, -1)
            return x * cos + torch.cat([-high, low], -1) * sin

        x = self.embedding[ids]
        for (qkv, o, gate_up, down), (keys, values) in zip(self.layers, self.caches):
            y = nn.linear(nn.rms_norm(x, x.shape[-1:], self.norm, 1e-5), qkv)
            q, k, v = y.view(count, -1, shape.head).split(
                [shape.heads, shape.key_heads, shape.key_heads], 1)
            keys[0].index_copy_(1, places, turned(k).transpose(0, 1))
            values[0].index_copy_(1, places, v.transpose(0, 1))
            y = nn.scaled_dot_product_attention(
                turned(q).transpose(0, 1)[None], keys[:, :, :total], values[:, :, :total],
                is_causal=causal, enable_gqa=True)
            x = x + nn.linear(y[0].transpose(0, 1).reshape(count, -1), o)
            gate, up = nn.linear(
                nn.rms_norm(x, x.shape[-1:], self.norm, 1e-5), gate_up).chunk(2, -1)
            x = x + nn.linear(nn.silu(gate) * up, down)
        return nn.linear(nn.rms_norm(x[-1:], x.shape[-1:], self.norm, 1e-5), self.head)


# WebGPU


def _webgpu(shape: Shape, folder: Path) -> dict[str, Any]:
    import onnxruntime

    package = importlib.import_module(PACKAGES["webgpu"])
    name = package.get_ep_name()
    onnxruntime.register_execution_provider_library(name, package.get_library_path())
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == name][:1]
    if not devices:
        return {"problem": "it finds no device"}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_provider_for_devices(devices, {})
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
    memory = devices[0].memory_info(onnxruntime.OrtDeviceMemoryType.DEFAULT)
    return rates(TokenGenerator(session, shape, memory))


def rates(
    one: TokenGenerator, prompt: int = PROMPT, contexts: Sequence[int] = CONTEXTS
) -> dict[str, Any]:
    """Tokens a second of a :class:`.TokenGenerator`: of a prompt, and one by one after others."""
    ids = prompt_of(one.shape, prompt)[None]
    one.begin(prompt + 2 * TOKENS)
    bound = one.bind(prompt)
    figures: dict[str, Any] = {
        f"prompt {prompt}": median_rate(lambda: one.step(bound, ids, 0, prompt), prompt)}
    for before in contexts:
        one.begin(before + 2 * TOKENS, seed=1)
        token = one.bind(1)

        def step(n: int, before: int = before, token: GeneratorBinding = token) -> None:
            one.step(token, [[n]], before + n, before + n + 1)

        figures[f"decode {before}"] = rate(step)
    return figures


_LIBRARIES: Mapping[str, Callable[[Shape, Path], dict[str, Any]]] = {
    "llama.cpp": _llama, "torch": _torch, "webgpu": _webgpu}


def main(library: str, model: str, folder: str) -> None:
    """Measure one library, and print what it found."""
    try:
        figures = _LIBRARIES[library](SHAPES[model], Path(folder))
    except Exception as error:  # of any library
        figures = {"problem": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
