"""Sizes in turn: what a run takes at sizes that were never seen, and at the same ones again.
`python benchmarks/sizes_in_turn.py [SIZES]`, in the environment that `make test` sets up.

Three models of any size: an encoder of 6 layers at numbers of tokens, convolutions at sizes of
images, and attention of 8 layers whose caches grow by a row in each run. The second run comes right
after the first one, whose plan is kept then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from tabulate import tabulate

import kompute_dml.onnxruntime as kompute
from made_models import FLOAT, encoder, model, node

Feed = dict[str, np.ndarray]
_WIDTH, _HEADS, _SIZE, _LAYERS = 64, 4, 16, 8
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
    models = {"texts": _texts, "images": _images, "growing caches": _tokens}
    print(tabulate(
        [_row(name, make(rng), count) for name, make in models.items()],
        headers=("model", "sizes", "new, ms", "again, ms", "ratio", "new, ms of the host's thread",
                 "again"), floatfmt=".2f"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
