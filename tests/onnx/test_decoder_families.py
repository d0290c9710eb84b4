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
    "SmolLM3": {"unturned": (1,), "tied": True},
    "LFM2": {"mixers": ("convolution", "attention"), "norms": True},
    "gpt-oss": {"sinks": True, "window": 4, "biased": True, "mlp": "swiglu experts"},
    "Mixtral": {"mlp": "experts"}, "Qwen3-MoE": {"mlp": "experts", "norms": True},
    "GLM, interleaved": {"interleaved": 1, "turned": 16},
    "DeepSeek-V3": {"mixers": ("latent", "latent"), "mlp": "routed", "opset": 24},
    "Mamba": {"mixers": ("scanned", "scanned"), "mlp": "", "counts": (1, 1, 1)},
    "Mamba 2": {"mixers": ("decayed", "decayed"), "mlp": ""},
    "Qwen3-Next": {"mixers": ("delta", "attention"), "mlp": "shared", "norms": True, "turned": 16},
    "Qwen2.5-VL": {"placed": (4, 6, 6), "unturned": (0, 1), "biased": True},
    "Qwen3-VL": {"placed": (6, 5, 5), "unturned": (0, 1), "norms": True},
}
"""``mixers`` are those of the layers. Nothing follows them where ``mlp`` is empty. ``placed`` are
images' tokens among others: angles that follow a token's time, its height and its width."""


class _Decoder:
    """``family``: see :data:`_FAMILIES`."""

    def __init__(self, seed: int, **family: Any) -> None:
        self.rng, self.has = np.random.default_rng(seed), family
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self.states: list[tuple[str, list[Any]]] = []

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
        if sections := has.get("placed"):
            q, k = (self.of("MRotaryEmbedding", f"{t} places cos sin", f"{t}.placed", MICROSOFT,
                            num_heads=heads, mrope_section=sections, mrope_layout=0)
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

    def silu(self, x: str, y: str) -> str:
        return self.of("Mul", f"{x} {self.of('Sigmoid', x, f'{y}.s')}", y)

    def split(self, x: str, y: str, *sizes: int, axis: int = -1) -> list[str]:
        names = [f"{y}.{i}" for i in range(len(sizes))]
        self.of("Split", f"{x} {self.exactly(f'{y}.sizes', [*sizes])}", " ".join(names), axis=axis)
        return names

    def shaped(self, x: str, y: str, *sizes: int) -> str:
        return self.of("Reshape", f"{x} {self.exactly(f'{y}.shape', [*sizes])}", y)

    def convolved(self, n: int, x: str, width: int) -> str:
        """[batch, token, channel], each with the three before it."""
        x = self.of("Transpose", x, f"{n}.columns", perm=[0, 2, 1])
        self.states.append((f"past.{n}.conv", [1, width, 3]))
        w, bias = self.constant(f"{n}.conv.w", width, 1, 4), self.constant(f"{n}.conv.b", width)
        x = self.of("CausalConvWithState", f"{x} {w} {bias} past.{n}.conv",
                    f"{n}.conv present.{n}.conv", MICROSOFT, activation="silu")
        return self.of("Transpose", x, f"{n}.rows", perm=[0, 2, 1])

    def delta(self, n: int, x: str) -> str:
        """A gated delta net of Qwen3-Next, as onnxruntime-genai's builder writes it."""
        heads, key_heads, size = 4, 2, 16
        keys, values = key_heads * size, heads * size
        parts = self.convolved(n, self.product(x, f"{n}.qkv", _WIDTH, 2 * keys + values),
                               2 * keys + values)
        z, a, b = (self.product(x, f"{n}.{name}", _WIDTH, width)
                   for name, width in (("z", values), ("a", heads), ("b", heads)))
        q, k, v = self.split(parts, f"{n}.parts", keys, keys, values)
        q, k = (self.shaped(self.of(
            "LpNormalization", self.shaped(t, f"{t}.heads", 0, 0, key_heads, size), f"{t}.unit",
            axis=-1, p=2), f"{t}.flat", 0, 0, keys) for t in (q, k))
        q = self.of("Mul", f"{q} {self.exactly(f'{n}.scale', np.float32(size**-0.5))}", f"{n}.q")
        speeds = self.exactly(f"{n}.speeds", -self.rng.uniform(0.5, 4, heads).astype(np.float32))
        self.of("LinearAttentionGate", f"{a} {self.constant(f'{n}.bias', heads)} {speeds} {b}",
                f"{n}.decay {n}.beta", MICROSOFT)
        self.states.append((f"past.{n}.state", [1, heads, size, size]))
        y = self.of("LinearAttention", f"{q} {k} {v} past.{n}.state {n}.decay {n}.beta",
                    f"{n}.linear present.{n}.state", MICROSOFT, q_num_heads=key_heads,
                    kv_num_heads=heads, update_rule="gated_delta", scale=1.0)
        y = self.of("GatedRMSNorm", f"{y} {self.constant(f'{n}.scales', size)} {z}", f"{n}.gated",
                    MICROSOFT, epsilon=1e-6)
        return self.product(y, f"{n}.o", values, _WIDTH)

    def decayed(self, n: int, x: str) -> str:
        """Mamba 2, as mobius-onnx writes it."""
        heads, size, groups, state = 4, 16, 2, 8
        inner, shares = heads * size, groups * state
        gate, mixed, step = self.split(self.product(
            x, f"{n}.in", _WIDTH, 2 * inner + 2 * shares + heads), f"{n}.ins", inner,
            inner + 2 * shares, heads)
        mixed = self.convolved(n, mixed, inner + 2 * shares)
        x, k, q = self.split(mixed, f"{n}.parts", inner, shares, shares)
        step = self.of("Softplus", self.of(
            "Add", f"{step} {self.constant(f'{n}.bias', heads)}", f"{n}.biased"), f"{n}.step")
        speeds = self.exactly(f"{n}.speeds", -self.rng.uniform(0.5, 4, heads).astype(np.float32))
        decay = self.of("Mul", f"{speeds} {step}", f"{n}.decay")
        last = self.exactly("last", [-1])
        by_head = self.shaped(x, f"{n}.heads", 0, 0, heads, size)
        v = self.shaped(self.of("Mul", f"{self.of('Unsqueeze', f'{step} {last}', f'{n}.steps')} "
                                f"{by_head}", f"{n}.scaled"), f"{n}.v", 0, 0, inner)
        q, k = (self.shaped(self.of(
            "Expand", f"{self.shaped(t, f'{t}.groups', 0, 0, groups, 1, state)} "
            f"{self.exactly(f'{n}.each', [1, 1, 1, heads // groups, 1])}", f"{t}.spread"),
            f"{t}.all", 0, 0, heads * state) for t in (q, k))
        self.states.append((f"past.{n}.state", [1, heads, state, size]))
        y = self.of("LinearAttention", f"{q} {k} {v} past.{n}.state {decay}",
                    f"{n}.linear present.{n}.state", MICROSOFT, q_num_heads=heads,
                    kv_num_heads=heads, update_rule="gated", scale=1.0)
        direct = self.shaped(self.of("Mul", f"{self.constant(f'{n}.d', 1, 1, heads, 1)} {by_head}",
                                     f"{n}.direct"), f"{n}.past", 0, 0, inner)
        y = self.of("Add", f"{y} {direct}", f"{n}.both")
        y = self.of("Mul", f"{y} {self.silu(gate, f'{n}.gate')}", f"{n}.gated")
        return self.product(self.norm(y, f"{n}.normed", inner), f"{n}.o", inner, _WIDTH)

    def scanned(self, n: int, x: str) -> str:
        """Mamba, a token at a time, as mobius-onnx writes it."""
        inner, state, rank = 2 * _WIDTH, 8, 2
        x, gate = self.split(self.product(x, f"{n}.in", _WIDTH, 2 * inner), f"{n}.ins", inner,
                             inner)
        x = self.of("Transpose", x, f"{n}.columns", perm=[0, 2, 1])
        self.states.append((f"past.{n}.conv", [1, inner, 3]))
        x = self.of("Concat", f"past.{n}.conv {x}", f"{n}.four", axis=2)
        first, end, axis = (self.exactly(f"slice.{name}", [number]) for name, number in (
            ("first", 1), ("end", 2**63 - 1), ("axis", 2)))
        self.of("Slice", f"{x} {first} {end} {axis}", f"present.{n}.conv")
        x = self.of("Conv", f"{x} {self.constant(f'{n}.conv.w', inner, 1, 4)}", f"{n}.conv",
                    group=inner, kernel_shape=[4], pads=[0, 0], strides=[1])
        x = self.of("Add", f"{x} {self.constant(f'{n}.conv.b', 1, inner, 1)}", f"{n}.conv.sum")
        x = self.of("Transpose", self.silu(x, f"{n}.conv.y"), f"{n}.x", perm=[0, 2, 1])
        step, b, c = self.split(self.product(x, f"{n}.proj", inner, rank + 2 * state),
                                f"{n}.parts", rank, state, state)
        step = self.of("Softplus", self.product(step, f"{n}.dt", rank, inner, True), f"{n}.step")
        last, one, two = (self.exactly(f"at.{i}", [i]) for i in (-1, 1, 2))
        step = self.of("Unsqueeze", f"{step} {last}", f"{n}.steps")
        speeds = -self.rng.uniform(0.5, 4, (1, 1, inner, state)).astype(np.float32)
        self.exactly(f"{n}.speeds", speeds)
        decay = self.of("Exp", self.of("Mul", f"{step} {n}.speeds", f"{n}.logs"), f"{n}.decay")
        more = self.of("Mul", f"{step} {self.of('Unsqueeze', f'{b} {two}', f'{n}.b')}", f"{n}.sb")
        more = self.of("Mul", f"{more} {self.of('Unsqueeze', f'{x} {last}', f'{n}.each')}",
                       f"{n}.more")
        self.states.append((f"past.{n}.state", [1, inner, state]))
        decay, more, c, x = (self.of("Squeeze", f"{t} {one}", f"{t}.now")
                             for t in (decay, more, c, x))
        left = self.of("Mul", f"{decay} past.{n}.state", f"{n}.left")
        after = self.of("Add", f"{left} {more}", f"present.{n}.state")
        c = self.of("Unsqueeze", f"{c} {one}", f"{n}.c")
        y = self.of("ReduceSum", f"{self.of('Mul', f'{after} {c}', f'{n}.reads')} {last}",
                    f"{n}.read", keepdims=0)
        direct = self.of("Mul", f"{self.constant(f'{n}.d', inner)} {x}", f"{n}.direct")
        y = self.of("Add", f"{y} {direct}", f"{n}.both")
        y = self.of("Mul", f"{self.of('Unsqueeze', f'{y} {one}', f'{n}.y')} "
                    f"{self.silu(gate, f'{n}.gate')}", f"{n}.gated")
        return self.product(y, f"{n}.o", inner, _WIDTH)

    def latent(self, n: int, x: str) -> str:
        """DeepSeek's attention, of which keys and values come from a few features, and a part of
        each key from none but its place."""
        turned, plain, size, rank = 8, 16, 24, 16
        q = self.norm(self.product(x, f"{n}.q.a", _WIDTH, 24), f"{n}.q.norm", 24)
        q = self.shaped(self.product(q, f"{n}.q.b", 24, _HEADS * (plain + turned)), f"{n}.q.heads",
                        0, 0, _HEADS, plain + turned)
        q, q_turned = self.split(q, f"{n}.q.parts", plain, turned)
        low, k_turned = self.split(self.product(x, f"{n}.kv.a", _WIDTH, rank + turned),
                                   f"{n}.kv.parts", rank, turned)
        low = self.product(self.norm(low, f"{n}.kv.norm", rank), f"{n}.kv.b", rank,
                           _HEADS * (plain + size))
        k, v = self.split(self.shaped(low, f"{n}.kv.heads", 0, 0, _HEADS, plain + size),
                          f"{n}.kv.both", plain, size)
        q_turned = self.shaped(q_turned, f"{n}.q.flat", 0, 0, _HEADS * turned)
        q_turned, k_turned = (self.of(
            "RotaryEmbedding", f"{t} cos sin ids.places", f"{t}.turned", interleaved=1,
            num_heads=heads) for t, heads in ((q_turned, _HEADS), (k_turned, 1)))
        q_turned, k_turned = (self.shaped(t, f"{t}.heads", 0, 0, heads, turned)
                              for t, heads in ((q_turned, _HEADS), (k_turned, 1)))
        k_turned = self.of("Expand", f"{k_turned} {self.exactly('heads', [1, 1, _HEADS, 1])}",
                           f"{n}.k.turned")
        q, k = (self.shaped(self.of("Concat", f"{t} {more}", f"{n}.{name}.whole", axis=-1),
                            f"{n}.{name}", 0, 0, _HEADS * (plain + turned))
                for name, t, more in (("q", q, q_turned), ("k", k, k_turned)))
        v = self.shaped(v, f"{n}.v", 0, 0, _HEADS * size)
        kinds = " ".join(f"{p}.{n}.{kind}" for p in ("past", "present") for kind in "kv").split()
        self.states += [(kinds[0], [1, _HEADS, "past", plain + turned]),
                        (kinds[1], [1, _HEADS, "past", size])]
        y = self.of("Attention", f"{q} {k} {v} - {kinds[0]} {kinds[1]}",
                    f"{n}.y {kinds[2]} {kinds[3]}", q_num_heads=_HEADS, kv_num_heads=_HEADS,
                    is_causal=1, scale=(plain + turned) ** -0.5)
        return self.product(y, f"{n}.o", _HEADS * size, _WIDTH)

    def routed(self, n: int, x: str) -> str:
        """DeepSeek-V3's experts: each group's two best ones tell which groups a token takes. What
        chooses has a bias, what weighs does not."""
        groups, each, best = 2, _EXPERTS // 2, 2
        scores = self.of("Sigmoid", self.product(x, f"{n}.router", _WIDTH, _EXPERTS),
                         f"{n}.scores")
        choice = self.of("Add", f"{scores} {self.constant(f'{n}.correction', _EXPERTS, gain=0.2)}",
                         f"{n}.choice")
        flat = self.shaped(choice, f"{n}.choices", -1, _EXPERTS)
        two, one = (self.exactly(f"count.{i}", [i]) for i in (best, 1))
        self.of("TopK", f"{self.shaped(flat, f'{n}.groups', 0, groups, each)} {two}",
                f"{n}.top {n}.top.at", axis=-1)
        last = self.exactly("last", [-1])
        sums = self.of("ReduceSum", f"{n}.top {last}", f"{n}.sums", keepdims=0)
        self.of("TopK", f"{sums} {one}", f"{n}.group {n}.group.at", axis=-1)
        chosen = self.of("OneHot", f"{n}.group.at {self.exactly('groups', [groups])} "
                         f"{self.exactly('off.on', np.float32([0, 1]))}", f"{n}.hot", axis=-1)
        chosen = self.of("ReduceMax", f"{chosen} {self.exactly('at.1', [1])}", f"{n}.one",
                         keepdims=0)
        chosen = self.shaped(self.of(
            "Expand", f"{self.shaped(chosen, f'{n}.mask', 0, groups, 1)} "
            f"{self.exactly('members', [1, 1, each])}", f"{n}.members"), f"{n}.all", 0, _EXPERTS)
        chosen = self.of("Greater", f"{chosen} {self.exactly('zero', np.float32(0))}", f"{n}.is")
        masked = self.of("Where", f"{chosen} {flat} {self.exactly('least', np.float32(-np.inf))}",
                         f"{n}.masked")
        shape = self.of("Shape", choice, f"{n}.choice.shape")
        self.of("TopK", f"{self.of('Reshape', f'{masked} {shape}', f'{n}.back')} {two}",
                f"{n}.best {n}.experts", axis=-1)
        weights = self.of("GatherElements", f"{scores} {n}.experts", f"{n}.weights", axis=-1)
        total = self.of("ReduceSum", f"{weights} {last}", f"{n}.total", keepdims=1)
        weights = self.of("Div", f"{weights} {total}", f"{n}.shares")
        y = self.gated(n, x, f"{n}.shared")
        for i in range(_EXPERTS):
            match = self.of("Cast", self.of("Equal", f"{n}.experts {self.exactly(f'of.{i}', i)}",
                                            f"{n}.{i}.is"), f"{n}.{i}.one", to=FLOAT)
            share = self.of("ReduceSum", f"{self.of('Mul', f'{weights} {match}', f'{n}.{i}.w')} "
                            f"{last}", f"{n}.{i}.share", keepdims=1)
            part = self.of("Mul", f"{self.gated(n, x, f'{n}.{i}')} {share}", f"{n}.{i}.part")
            y = self.of("Add", f"{y} {part}", f"{n}.{i}.sum")
        return y

    def gated(self, n: int, x: str, y: str) -> str:
        gate, up = (self.product(x, f"{y}.{name}", _WIDTH, _INNER) for name in ("gate", "up"))
        inner = self.of("Mul", f"{self.silu(gate, f'{y}.silu')} {up}", f"{y}.gated")
        return self.product(inner, f"{y}.down", _INNER, _WIDTH)

    def experts(self, n: int, x: str, gated: bool) -> str:
        router = self.of(
            "Reshape", f"{self.product(x, f'{n}.router', _WIDTH, _EXPERTS)} "
            f"{self.exactly(f'{n}.flat', [-1, _EXPERTS])}", f"{n}.routes")
        w1 = self.constant(f"{n}.w1", _EXPERTS, (1 + gated) * _INNER, _WIDTH, gain=0.2)
        w2 = self.constant(f"{n}.w2", _EXPERTS, _WIDTH, _INNER, gain=0.2)
        more = {"swiglu_fusion": 1, "activation_beta": 1.0} if gated else {}
        return self.of("MoE", f"{x} {router} {w1} - {w2}", f"{n}.mlp", MICROSOFT, k=2,
                       activation_type="swiglu" if gated else "silu",
                       normalize_routing_weights=1, **more)

    def mlp(self, n: int, x: str) -> str:
        kind = self.has.get("mlp", "silu")
        if kind == "routed":
            return self.routed(n, x)
        if kind == "shared":
            gate = self.of("Sigmoid", self.product(x, f"{n}.expert", _WIDTH, 1), f"{n}.part")
            return self.of("GatedAdd", f"{self.experts(n, x, False)} "
                           f"{self.gated(n, x, f'{n}.shared')} {gate}", f"{n}.sum", MICROSOFT)
        if "experts" in kind:
            return self.experts(n, x, "swiglu" in kind)
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
        turned = 8 if "latent" in has.get("mixers", ()) else has.get("turned", _SIZE)
        angles = np.outer(np.arange(_ROWS), 10.0 ** -np.linspace(0, 3, turned // 2))
        for name, of in (("cos", np.cos), ("sin", np.sin)):
            self.exactly(name, of(angles).astype(np.float32))
        if has.get("tied"):  # of 8 bits, which the last product reads, too
            self.constants["words"] = self.rng.integers(0, 256, (_WORDS, _WIDTH)).astype(np.uint8)
            self.exactly("scales", self.rng.uniform(0.005, 0.02, (_WORDS, 2)).astype(np.float32))
            x = self.of("GatherBlockQuantized", "words ids scales", "x", MICROSOFT, bits=8,
                        block_size=16, gather_axis=0, quantize_axis=1)
        elif has.get("placed"):
            x = "embedded"
        else:
            x = self.of("Gather", f"{self.constant('embedding', _WORDS, _WIDTH)} ids", "x")
        if gain := has.get("gain"):
            x = self.of("Mul", f"{x} {self.exactly('gain', np.float32(gain))}", "x.scaled")
        for n in range(2):
            mixer = has["mixers"][n] if "mixers" in has else "attention"
            for part in (mixer, "mlp") if has.get("mlp", "silu") else (mixer,):
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
        places: list[tuple[str, int, list[int | str]]] = [
            ("ids", INT64, [1, "n"]), ("ids.places", INT64, [1, "n"]), ("lengths", _INT32, [1]),
            ("total", _INT32, [1]), ("places", INT64, [3, 1, "n"]),
            ("embedded", FLOAT, [1, "n", _WIDTH])]
        read = {name for node in self.nodes for name in node.input}
        return model(
            self.nodes, [*(x for x in places if x[0] in read),
                         *((name, FLOAT, sizes) for name, sizes in self.states)],
            [("logits", FLOAT, [1, "n", _WORDS]),
             *((name.replace("past", "present"), FLOAT, ["present" if n == "past" else n
                                                         for n in sizes])
               for name, sizes in self.states)], self.constants, has.get("opset", 20))


def _regions() -> list[RegionKernel]:
    return [x for x in capi.alive.values() if isinstance(x, RegionKernel)]


@pytest.mark.parametrize("family", _FAMILIES)
def test_a_family(family: str, rng: np.random.Generator) -> None:
    decoder = _Decoder(7, **_FAMILIES[family])
    built = decoder.built()
    before = _regions()
    ours, theirs = session(built, False, claim="all", strict=True), cpu(built, False)
    assert len([x for x in _regions() if not any(x is y for y in before)]) == 1
    states = [{name: np.zeros([0 if n == "past" else n for n in sizes], np.float32)
               for name, sizes in decoder.states} for _ in range(2)]
    end, names = 0, {x.name for x in theirs.get_inputs()}
    for count in _FAMILIES[family].get("counts", (6, 1, 1)):
        begin, end = end, end + count
        feed = {"ids": rng.integers(0, _WORDS, (1, count)), "lengths": np.int32([end - 1]),
                "total": np.int32([end]), "ids.places": np.arange(begin, end)[None],
                "places": rng.integers(0, _ROWS, (3, 1, count)),
                "embedded": rng.standard_normal((1, count, _WIDTH), np.float32)}
        feed = {name: x for name, x in feed.items() if name in names}
        logits = []
        for one, (which, state) in enumerate(zip((ours, theirs), states)):
            y, *after = which.run(None, {**feed, **state})
            states[one] = dict(zip(state, after))
            logits.append(y)
        np.testing.assert_allclose(logits[0], logits[1], rtol=1e-3,
                                   atol=1e-4 * abs(logits[1]).max())
        assert np.ptp(logits[1]) > 0.1
