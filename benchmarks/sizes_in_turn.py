"""Sizes in turn: what a run takes at sizes that were never seen, and at the same ones again.
`python benchmarks/sizes_in_turn.py [SIZES]`, in the environment that `make test` sets up.

Three models of any size: an encoder of 6 layers at numbers of tokens, convolutions at sizes of
images, and attention of 8 layers whose caches grow by a row in each run. The second run comes right
after the first one, whose plan is kept then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper
from tabulate import tabulate

import kompute_dml.onnxruntime as kompute
from made_models import FLOAT, INT64, encoder, model, node

Feed = dict[str, np.ndarray]
_WIDTH, _HEADS, _SIZE, _LAYERS = 64, 4, 16, 8
_DEEP = 16
_WARM = 3
"""Sizes before those that are timed: kernels of other classes of sizes are compiled there."""


def _texts(rng: np.random.Generator) -> tuple[bytes, Callable[[int], Feed]]:
    def feed(number: int) -> Feed:
        return {"x": rng.standard_normal((1, 8 + 7 * number, _WIDTH), np.float32)}

    return encoder(rng, layers=6, width=_WIDTH, quantized=False), feed


def _images(rng: np.random.Generator) -> tuple[bytes, Callable[[int], Feed]]:
    constants, nodes, x, channels = {}, [], "x", 3
    for n, wide in enumerate((16, 32, 32, 64, 64)):
        constants[f"w{n}"] = rng.standard_normal((wide, channels, 3, 3), np.float32) / 9
        nodes += [node("Conv", f"{x} w{n}", f"c{n}", pads=[1] * 4, strides=[1 + n % 2] * 2),
                  node("Relu", f"c{n}", f"r{n}")]
        x, channels = f"r{n}", wide

    def feed(number: int) -> Feed:
        return {"x": rng.standard_normal((1, 3, 40 + 3 * number, 56 + 5 * number), np.float32)}

    return model(nodes, [("x", FLOAT, [1, 3, "height", "width"])], [(x, FLOAT, None)],
                 constants), feed


def _tokens(rng: np.random.Generator) -> tuple[bytes, Callable[[int], Feed]]:
    constants, nodes, x = {}, [], "x"
    for n in range(_LAYERS):
        for part in "qkvo":
            constants[f"{part}{n}.w"] = rng.standard_normal((_WIDTH, _WIDTH), np.float32) / 8
            nodes.append(node("MatMul", f"{x if part != 'o' else f'y{n}'} {part}{n}.w",
                              f"{part}{n}"))
            if part == "v":
                nodes.append(node(
                    "Attention", f"q{n} k{n} v{n} - past{n}.k past{n}.v",
                    f"y{n} now{n}.k now{n}.v", is_causal=1, q_num_heads=_HEADS,
                    kv_num_heads=_HEADS))
        nodes.append(node("Add", f"{x} o{n}", f"x{n}"))
        x = f"x{n}"
    caches = [f"{n}.{part}" for n in range(_LAYERS) for part in "kv"]
    sizes = [1, _HEADS, "past", _SIZE]

    def feed(number: int) -> Feed:
        shape = (1, _HEADS, 16 + number, _SIZE)
        return {"x": rng.standard_normal((1, 1, _WIDTH), np.float32),
                **{f"past{c}": rng.standard_normal(shape, np.float32) for c in caches}}

    given = [("x", FLOAT, [1, 1, _WIDTH]), *((f"past{c}", FLOAT, sizes) for c in caches)]
    made = [(x, FLOAT, None), *((f"now{c}", FLOAT, None) for c in caches)]
    return model(nodes, given, made, constants, opset=23), feed


def _decoder(rng: np.random.Generator) -> tuple[bytes, Callable[[int], Feed]]:
    """A decoder as optimum exports it, of small operators: 1,126 nodes in 16 layers."""
    heads, key_heads, size, inner, words = 4, 2, 16, 128, 64
    constants: dict[str, np.ndarray] = {
        "embedding": rng.standard_normal((words, _WIDTH), np.float32),
        "angles": (1000.0 ** -(np.arange(0, size, 2) / size)).astype(np.float32).reshape(1, -1),
        "two": np.float32(2), "epsilon": np.float32(1e-5), "scale": np.float32(size ** -0.5),
        "lowest": np.float32(-1e9), "half": np.int64([size // 2]), "zero": np.int64([0]),
        "end": np.int64([size]), "axis 3": np.int64([3]), "axis 2": np.int64([2]),
        "axis 1": np.int64([1]), "last": np.int64([-1]), "axes": np.int64([0, 1]),
        "first": np.int64(0), "second": np.int64(1), "third": np.int64(2),
        "repeats": np.int64([heads // key_heads]), "groups": np.int64([key_heads]),
        "size": np.int64([size]), "all heads": np.int64([heads]), "width": np.int64([_WIDTH])}
    nodes = []

    def add(op: str, inputs: Sequence[str], y: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [y], name=y, **attributes))
        return y

    def product(x: str, y: str, depth: int, columns: int) -> str:
        constants[f"{y}.w"] = (rng.standard_normal((depth, columns)) * depth ** -0.5).astype(
            np.float32)
        return add("MatMul", [x, f"{y}.w"], y)

    def normal(x: str, y: str) -> str:
        constants[f"{y}.w"] = np.ones(_WIDTH, np.float32)
        add("Pow", [x, "two"], f"{y}.square")
        add("ReduceMean", [f"{y}.square", "last"], f"{y}.mean")
        add("Add", [f"{y}.mean", "epsilon"], f"{y}.sum")
        add("Sqrt", [f"{y}.sum"], f"{y}.root")
        add("Div", [x, f"{y}.root"], f"{y}.ratio")
        return add("Mul", [f"{y}.w", f"{y}.ratio"], y)

    def by_head(x: str, y: str, count: str) -> str:
        sizes = add("Concat", ["batch", "length", count, "size"], f"{y}.sizes", axis=0)
        return add("Transpose", [add("Reshape", [x, sizes], f"{y}.split")], y, perm=[0, 2, 1, 3])

    def turned(x: str, y: str) -> str:
        low = add("Slice", [x, "zero", "half", "axis 3"], f"{y}.low")
        high = add("Slice", [x, "half", "end", "axis 3"], f"{y}.high")
        other = add("Concat", [add("Neg", [high], f"{y}.negative"), low], f"{y}.other", axis=-1)
        return add("Add", [add("Mul", [x, "cos"], f"{y}.cos"),
                           add("Mul", [other, "sin"], f"{y}.sin")], y)

    def repeated(x: str, y: str) -> str:
        total = add("Unsqueeze", [add("Gather", [add("Shape", [x], f"{y}.shape"), "third"],
                                      f"{y}.total"), "zero"], f"{y}.total.1")
        sizes = add("Concat", ["batch", "groups", "repeats", total, "size"], f"{y}.sizes", axis=0)
        flat = add("Concat", ["batch", "all heads", total, "size"], f"{y}.flat", axis=0)
        wide = add("Expand", [add("Unsqueeze", [x, "axis 2"], f"{y}.row"), sizes], f"{y}.wide")
        return add("Reshape", [wide, flat], y)

    add("Gather", ["embedding", "ids"], "x")
    sizes = add("Shape", ["ids"], "ids.shape")
    for name, index in (("batch", "first"), ("length", "second")):
        add("Unsqueeze", [add("Gather", [sizes, index], f"{name}.0"), "zero"], name)
    add("Cast", ["positions"], "positions.float", to=FLOAT)
    add("Unsqueeze", ["positions.float", "axis 2"], "positions.column")
    add("MatMul", ["positions.column", "angles"], "angle.half")
    add("Concat", ["angle.half", "angle.half"], "angle", axis=-1)
    add("Unsqueeze", [add("Cos", ["angle"], "cos.row"), "axis 1"], "cos")
    add("Unsqueeze", [add("Sin", ["angle"], "sin.row"), "axis 1"], "sin")
    add("Cast", ["mask"], "mask.float", to=FLOAT)
    constants["one"] = np.float32(1)
    add("Unsqueeze", [add("Mul", [add("Sub", ["one", "mask.float"], "masked"), "lowest"],
                          "mask.bias"), "axis 1"], "mask.3")
    add("Unsqueeze", ["mask.3", "axis 1"], "bias")
    x = "x"
    for n in range(_DEEP):
        a = normal(x, f"{n}.first")
        q = turned(by_head(product(a, f"{n}.q", _WIDTH, heads * size), f"{n}.q.heads",
                           "all heads"), f"{n}.q.turned")
        k = turned(by_head(product(a, f"{n}.k", _WIDTH, key_heads * size), f"{n}.k.heads",
                           "groups"), f"{n}.k.turned")
        v = by_head(product(a, f"{n}.v", _WIDTH, key_heads * size), f"{n}.v.heads", "groups")
        k, v = (add("Concat", [f"past.{n}.{kind}", y], f"now.{n}.{kind}", axis=2)
                for kind, y in (("key", k), ("value", v)))
        keys = add("Transpose", [repeated(k, f"{n}.k.all")], f"{n}.k.columns", perm=[0, 1, 3, 2])
        scores = add("Mul", [add("MatMul", [q, keys], f"{n}.scores.all"), "scale"], f"{n}.scores")
        shares = add("Softmax", [add("Add", [scores, "bias"], f"{n}.biased")], f"{n}.shares",
                     axis=-1)
        y = add("MatMul", [shares, repeated(v, f"{n}.v.all")], f"{n}.attention")
        flat = add("Concat", ["batch", "length", "width"], f"{n}.flat", axis=0)
        y = add("Reshape", [add("Transpose", [y], f"{n}.tokens", perm=[0, 2, 1, 3]), flat],
                f"{n}.row")
        x = add("Add", [x, product(y, f"{n}.o", heads * size, _WIDTH)], f"{n}.middle")
        a = normal(x, f"{n}.second")
        gate = product(a, f"{n}.gate", _WIDTH, inner)
        silu = add("Mul", [gate, add("Sigmoid", [gate], f"{n}.sigmoid")], f"{n}.silu")
        y = add("Mul", [silu, product(a, f"{n}.up", _WIDTH, inner)], f"{n}.inner")
        x = add("Add", [x, product(y, f"{n}.down", inner, _WIDTH)], f"{n}.end")
    product(normal(x, "normal"), "logits", _WIDTH, words)
    caches = [f"{n}.{kind}" for n in range(_DEEP) for kind in ("key", "value")]

    def feed(number: int) -> Feed:
        past = 16 + number
        shape = (1, key_heads, past, size)
        return {"ids": rng.integers(0, words, (1, 1)), "positions": np.int64([[past]]),
                "mask": np.ones((1, past + 1), np.int64),
                **{f"past.{c}": rng.standard_normal(shape, np.float32) for c in caches}}

    given = [("ids", INT64, [1, "length"]), ("positions", INT64, [1, "length"]),
             ("mask", INT64, [1, "total"]),
             *((f"past.{c}", FLOAT, [1, key_heads, "past", size]) for c in caches)]
    made = [("logits", FLOAT, None), *((f"now.{c}", FLOAT, None) for c in caches)]
    return model(nodes, given, made, constants, opset=18), feed


def _row(name: str, made: tuple[bytes, Callable[[int], Feed]], count: int) -> list[Any]:
    built, feed = made
    session = kompute.session(built, claim="all")
    new, again = [], []
    for number in range(_WARM + count):
        x = feed(number)
        for times in (new, again):
            begin, host = time.perf_counter(), time.thread_time()
            session.run(None, x)
            times.append((time.perf_counter() - begin, time.thread_time() - host))
    (first, first_host), (second, second_host) = (
        np.median(times[_WARM:], axis=0) * 1e3 for times in (new, again))
    return [name, count, first, second, first / second, first_host, second_host]


def main(count: int) -> None:
    rng = np.random.default_rng(0)
    models = {"texts": _texts, "images": _images, "growing caches": _tokens,
              "decoder of small operators": _decoder}
    print(tabulate(
        [_row(name, make(rng), count) for name, make in models.items()],
        headers=("model", "sizes", "new, ms", "again, ms", "ratio", "new, ms of the host's thread",
                 "again"), floatfmt=".2f"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
