"""Small decoders with what families of language models are made of, in one region, beside the CPU
provider: a prompt, and tokens after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")

from kompute_dml.onnx.row import MICROSOFT
from kompute_dml.onnxruntime import capi
from kompute_dml.onnxruntime.kernel import RegionKernel
from onnx_graphs import FLOAT, INT64, RELEASE, cpu, model, needs_provider, node
from provider_tools import session

pytestmark = [needs_provider, pytest.mark.skipif(
    RELEASE < [1, 32], reason="this ONNX Runtime's operators have fewer inputs")]
_INT32 = 6
_WORDS, _WIDTH, _HEADS, _KEY_HEADS, _SIZE, _INNER, _ROWS, _EXPERTS = 40, 32, 4, 2, 32, 48, 12, 6

_FAMILIES: dict[str, dict[str, Any]] = {
    "Llama, SmolLM2": {}, "Qwen2": {"biased": True}, "Qwen3": {"norms": True},
    "Phi3": {"packed": True, "window": 5}, "Phi4-mini": {"packed": True, "turned": 16},
    "Mistral": {"window": 4}, "Granite": {"scale": 0.2, "gain": 0.5},
    "Nemotron": {"mlp": "squared", "layer_norms": True, "turned": 16},
    "Gemma 2": {"cap": 3.0, "window": 4, "gain": 2.0, "after": True, "mlp": "gelu", "end_cap": 5.0},
    "Gemma 3": {"norms": True, "window": 3, "after": True, "mlp": "gelu"},
    "SmolLM3": {"unturned": (1,), "tied": True}, "LFM2": {"convolved": (0,), "norms": True},
    "gpt-oss": {"sinks": True, "window": 4, "biased": True, "mlp": "swiglu experts"},
    "Mixtral": {"mlp": "experts"}, "Qwen3-MoE": {"mlp": "experts", "norms": True},
    "GLM, interleaved": {"interleaved": 1, "turned": 16},
}


class _Decoder:
    """``family``: see :data:`_FAMILIES`."""

    def __init__(self, seed: int, **family: Any) -> None:
        self.rng, self.has = np.random.default_rng(seed), family
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.states: list[tuple[str, list[int]]] = []

    def of(self, op: str, inputs: str, y: str, domain: str = "", **attributes: Any) -> str:
        self.nodes.append(node(op, inputs, y, domain, **attributes))
        return y.split()[0]

    def constant(self, name: str, *sizes: int, gain: float = 1.0) -> str:
        self.constants[name] = gain * self.rng.standard_normal(sizes, np.float32)
        return name

    def exactly(self, name: str, values: Any) -> str:
        self.constants[name] = np.asarray(values)
        return name

    def product(self, x: str, y: str, depth: int, columns: int, biased: bool = False) -> str:
        w = self.constant(f"{y}.w", depth, columns, gain=depth**-0.5)
        x = self.of("MatMul", f"{x} {w}", f"{y}.product" if biased else y)
        return self.of("Add", f"{x} {self.constant(f'{y}.b', columns)}", y) if biased else x

    def norm(self, x: str, y: str, size: int = _WIDTH) -> str:
        scale = self.constant(f"{y}.scale", size)
        if self.has.get("layer_norms"):
            return self.of("LayerNormalization", f"{x} {scale}", y, axis=-1)
        return self.of("SimplifiedLayerNormalization", f"{x} {scale}", y, axis=-1, epsilon=1e-6,
                       stash_type=1)

    def by_head(self, x: str, y: str, heads: int) -> str:
        x = self.of("Reshape", f"{x} {self.exactly(f'{y}.h', [0, 0, heads, _SIZE])}", f"{y}.heads")
        flat = self.exactly(f"{y}.f", [0, 0, heads * _SIZE])
        return self.of("Reshape", f"{self.norm(x, f'{y}.norm', _SIZE)} {flat}", y)

    def attention(self, n: int, x: str) -> str:
        has, sizes = self.has, [_HEADS * _SIZE, _KEY_HEADS * _SIZE, _KEY_HEADS * _SIZE]
        if has.get("packed"):
            q, k, v = self.product(x, f"{n}.qkv", _WIDTH, sum(sizes)), "-", "-"
        else:
            q, k, v = (self.product(x, f"{n}.{name}", _WIDTH, size, has.get("biased", False))
                       for name, size in zip("qkv", sizes))
        if has.get("norms"):
            q, k = (self.by_head(t, f"{t}.normed", heads)
                    for t, heads in ((q, _HEADS), (k, _KEY_HEADS)))
        turns = n not in has.get("unturned", ())
        kinds = " ".join(f"{p}.{n}.{kind}" for p in ("past", "present") for kind in "kv").split()
        for kind in kinds[:2]:
            self.states.append((kind, [1, _KEY_HEADS, _ROWS, _SIZE]))
        sink = f" - - {self.constant(f'{n}.sink', _HEADS)}" if has.get("sinks") else ""
        more = {"local_window_size": has["window"]} if has.get("window") and not n % 2 else {}
        y = self.of(
            "GroupQueryAttention", f"{q} {k} {v} {kinds[0]} {kinds[1]} lengths total"
            f"{' cos sin' if turns else ' - -'}{sink}", f"{n}.y {kinds[2]} {kinds[3]}", MICROSOFT,
            num_heads=_HEADS, kv_num_heads=_KEY_HEADS, do_rotary=int(turns),
            rotary_interleaved=has.get("interleaved", 0), scale=has.get("scale", 0.0),
            softcap=has.get("cap", 0.0), **more)
        return self.product(y, f"{n}.o", _HEADS * _SIZE, _WIDTH, has.get("biased", False))

    def convolution(self, n: int, x: str) -> str:
        b, c, x = (self.product(x, f"{n}.{name}", _WIDTH, _WIDTH) for name in "bcx")
        x = self.of("Mul", f"{b} {x}", f"{n}.bx")
        x = self.of("Transpose", x, f"{n}.columns", perm=[0, 2, 1])
        self.states.append((f"past.{n}", [1, _WIDTH, 2]))
        x = self.of("CausalConvWithState", f"{x} {self.constant(f'{n}.w', _WIDTH, 1, 3)} - "
                    f"past.{n}", f"{n}.conv present.{n}", MICROSOFT)
        x = self.of("Transpose", x, f"{n}.rows", perm=[0, 2, 1])
        return self.product(self.of("Mul", f"{c} {x}", f"{n}.cx"), f"{n}.o", _WIDTH, _WIDTH)

    def mlp(self, n: int, x: str) -> str:
        kind = self.has.get("mlp", "silu")
        if "experts" in kind:
            gated = "swiglu" in kind
            router = self.of(
                "Reshape", f"{self.product(x, f'{n}.router', _WIDTH, _EXPERTS)} "
                f"{self.exactly(f'{n}.flat', [-1, _EXPERTS])}", f"{n}.routes")
            w1 = self.constant(f"{n}.w1", _EXPERTS, (1 + gated) * _INNER, _WIDTH, gain=0.2)
            w2 = self.constant(f"{n}.w2", _EXPERTS, _WIDTH, _INNER, gain=0.2)
            more = {"swiglu_fusion": 1, "activation_beta": 1.0} if gated else {}
            return self.of("MoE", f"{x} {router} {w1} - {w2}", f"{n}.mlp", MICROSOFT, k=2,
                           activation_type="swiglu" if gated else "silu",
                           normalize_routing_weights=1, **more)
        gate = self.product(x, f"{n}.gate", _WIDTH, _INNER)
        if kind == "squared":
            x = self.of("Relu", gate, f"{n}.relu")
            return self.product(self.of("Mul", f"{x} {x}", f"{n}.squared"), f"{n}.down", _INNER,
                                _WIDTH)
        active = (self.of("Gelu", gate, f"{n}.gelu", approximate="tanh") if kind == "gelu" else
                  self.of("Mul", f"{gate} {self.of('Sigmoid', gate, f'{n}.s')}", f"{n}.silu"))
        up = self.product(x, f"{n}.up", _WIDTH, _INNER)
        return self.product(self.of("Mul", f"{active} {up}", f"{n}.gated"), f"{n}.down", _INNER,
                            _WIDTH)

    def built(self) -> bytes:
        has = self.has
        turned = has.get("turned", _SIZE)
        angles = np.outer(np.arange(_ROWS), 10.0 ** -np.linspace(0, 3, turned // 2))
        for name, of in (("cos", np.cos), ("sin", np.sin)):
            self.exactly(name, of(angles).astype(np.float32))
        if has.get("tied"):  # of 8 bits, which the last product reads, too
            self.constants["words"] = self.rng.integers(0, 256, (_WORDS, _WIDTH)).astype(np.uint8)
            self.exactly("scales", self.rng.uniform(0.005, 0.02, (_WORDS, 2)).astype(np.float32))
            x = self.of("GatherBlockQuantized", "words ids scales", "x", MICROSOFT, bits=8,
                        block_size=16, gather_axis=0, quantize_axis=1)
        else:
            x = self.of("Gather", f"{self.constant('embedding', _WORDS, _WIDTH)} ids", "x")
        if gain := has.get("gain"):
            x = self.of("Mul", f"{x} {self.exactly('gain', np.float32(gain))}", "x.scaled")
        for n in range(2):
            attends = n not in has.get("convolved", ())
            for part in ("attention" if attends else "convolution", "mlp"):
                y = getattr(self, part)(n, self.norm(x, f"{n}.{part}.norm"))
                if has.get("after"):
                    y = self.norm(y, f"{n}.{part}.after")
                x = self.of("Add", f"{x} {y}", f"{n}.{part}.sum")
        x = self.norm(x, "normal")
        if has.get("tied"):
            self.exactly("blocks", self.constants["words"].reshape(_WORDS, 2, 16))
            x = self.of("MatMulNBits", f"{x} blocks scales", "logits", MICROSOFT, K=_WIDTH,
                        N=_WORDS, bits=8, block_size=16)
        else:
            x = self.product(x, "uncapped" if has.get("end_cap") else "logits", _WIDTH, _WORDS)
        if cap := has.get("end_cap"):
            x = self.of("Div", f"{x} {self.exactly('cap', np.float32(cap))}", "of.cap")
            self.of("Mul", f"{self.of('Tanh', x, 'tanh')} cap", "logits")
        return model(self.nodes, [
            ("ids", INT64, [1, "n"]), ("lengths", _INT32, [1]), ("total", _INT32, [1]),
            *((name, FLOAT, sizes) for name, sizes in self.states)],
            [("logits", FLOAT, [1, "n", _WORDS]),
             *((name.replace("past", "present"), FLOAT, sizes) for name, sizes in self.states)],
            self.constants, 20)


def _regions() -> list[RegionKernel]:
    return [x for x in capi.alive.values() if isinstance(x, RegionKernel)]


@pytest.mark.parametrize("family", _FAMILIES)
def test_a_family(family: str, rng: np.random.Generator) -> None:
    decoder = _Decoder(7, **_FAMILIES[family])
    built = decoder.built()
    before = _regions()
    ours, theirs = session(built, False, claim="all", strict=True), cpu(built, False)
    assert len([x for x in _regions() if not any(x is y for y in before)]) == 1
    states = [{name: np.zeros(sizes, np.float32) for name, sizes in decoder.states}
              for _ in range(2)]
    end = 0
    for count in (6, 1, 1):
        end += count
        feed = {"ids": rng.integers(0, _WORDS, (1, count)), "lengths": np.int32([end - 1]),
                "total": np.int32([end])}
        logits = []
        for one, (which, state) in enumerate(zip((ours, theirs), states)):
            y, *after = which.run(None, {**feed, **state})
            states[one] = dict(zip(state, after))
            logits.append(y)
        np.testing.assert_allclose(logits[0], logits[1], rtol=1e-3,
                                   atol=1e-4 * abs(logits[1]).max())
        assert np.ptp(logits[1]) > 0.1
