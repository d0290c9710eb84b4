"""Random numbers: Philox of DirectML, keyed by PyTorch's generator.

``torch.manual_seed`` repeats them. They are not those that CUDA or the CPU give for the same seed:
DirectML's RANDOM_GENERATOR counts otherwise.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator

import numpy as np
import torch

import kompute_dml as dml

from ...tensors import Tensor
from ..table import call, lowers
from ..values import F32, I64, Number, Sizes, Unsupported, Value, cast, empty, full, value

STATE = (1, 1, 1, 6)
"""Sizes of the state of Philox in DirectML."""


_local = threading.local()


@contextlib.contextmanager
def drawn_from(generator: torch.Generator | None) -> Iterator[None]:
    """Draw states from this generator in this thread, from PyTorch's default one for None."""
    before = getattr(_local, "generator", None)
    _local.generator = generator
    try:
        yield
    finally:
        _local.generator = before


def new_state() -> np.ndarray:
    """The next state, drawn from PyTorch's generator of the CPU."""
    words = torch.randint(0, 1 << 32, (6,), dtype=torch.int64, device="cpu",
                          generator=getattr(_local, "generator", None))
    return words.numpy().astype(np.uint32).reshape(STATE)


@contextlib.contextmanager
def states_from(source: Callable[[], Tensor]) -> Iterator[None]:
    """Take states from here in this thread: inputs of the graph that is being written."""
    _local.source = source
    try:
        yield
    finally:
        _local.source = None


def _state() -> Tensor | np.ndarray:
    source = getattr(_local, "source", None)
    return new_state() if source is None else source()


def uniform(shape: Sizes, dtype: torch.dtype) -> Value:
    """Uniform in [0, 1), of 24 bits."""
    n = math.prod(shape)
    if not n:
        return empty(shape, dtype)
    words = dml.random_generator(_state(), sizes=[1, 1, 1, n])
    numbers = dml.multiply(dml.cast(dml.bit_shift_right(words, 8), "float32"), 2.0 ** -24)
    return cast(value(numbers, shape, F32), dtype)


def normal(shape: Sizes, dtype: torch.dtype) -> Value:
    """Box and Muller's transform."""
    radius = call("sqrt", call("mul.Tensor", call(
        "log", call("rsub.Scalar", uniform(shape, F32), 1.0)), -2.0))
    angle = call("mul.Tensor", uniform(shape, F32), 2 * math.pi)
    return cast(call("mul.Tensor", radius, call("cos", angle)), dtype)


@lowers("rand", "rand.generator")
def rand(size: Sizes, dtype: torch.dtype | None = None, **other: object) -> Value:
    return uniform(size, dtype or torch.get_default_dtype())


@lowers("rand_like")
def rand_like(x: Value, dtype: torch.dtype | None = None, **other: object) -> Value:
    return uniform(x.shape, dtype or x.dtype)


@lowers("randn", "randn.generator")
def randn(size: Sizes, dtype: torch.dtype | None = None, **other: object) -> Value:
    return normal(size, dtype or torch.get_default_dtype())


@lowers("randn_like")
def randn_like(x: Value, dtype: torch.dtype | None = None, **other: object) -> Value:
    return normal(x.shape, dtype or x.dtype)


@lowers("randint.low", "randint.low_generator")
def randint_low(low: int, high: int, size: Sizes, dtype: torch.dtype | None = None,
                **other: object) -> Value:
    if high - low > 1 << 24:
        raise Unsupported("random integers of more than 24 bits")
    steps = call("floor", call("mul.Tensor", uniform(size, F32), float(high - low)))
    return cast(call("add.Tensor", cast(call("clamp", steps, 0, high - low - 1), I64), low),
                dtype or I64)


@lowers("randint", "randint.generator")
def randint(high: int, size: Sizes, dtype: torch.dtype | None = None, **other: object) -> Value:
    return randint_low(0, high, size, dtype)


@lowers("randint_like.low_dtype")
def randint_like_low(x: Value, low: int, high: int, dtype: torch.dtype | None = None,
                     **other: object) -> Value:
    return randint_low(low, high, x.shape, dtype or x.dtype)


@lowers("randint_like")
def randint_like(x: Value, high: int, dtype: torch.dtype | None = None, **other: object) -> Value:
    return randint_low(0, high, x.shape, dtype or x.dtype)


@lowers("uniform")
def uniform_(x: Value, low: Number = 0.0, high: Number = 1.0, **other: object) -> Value:
    return cast(call("add.Tensor", call("mul.Tensor", uniform(x.shape, F32), high - low), low),
                x.dtype)


@lowers("normal_functional")
def normal_(x: Value, mean: Number = 0.0, std: Number = 1.0, **other: object) -> Value:
    return cast(call("add.Tensor", call("mul.Tensor", normal(x.shape, F32), std), mean), x.dtype)


@lowers("bernoulli")
def bernoulli(x: Value, **other: object) -> Value:
    return cast(call("lt.Tensor", uniform(x.shape, F32), cast(x, F32)), x.dtype)


@lowers("bernoulli.p")
def bernoulli_p(x: Value, p: float = 0.5, **other: object) -> Value:
    return cast(call("lt.Scalar", uniform(x.shape, F32), p), x.dtype)


@lowers("bernoulli.Tensor")
def bernoulli_tensor(x: Value, p: Value, **other: object) -> Value:
    return cast(call("lt.Tensor", uniform(x.shape, F32), cast(p, F32)), x.dtype)


@lowers("exponential")
def exponential(x: Value, rate: float = 1.0, **other: object) -> Value:
    y = call("log", call("rsub.Scalar", uniform(x.shape, F32), 1.0))
    return cast(call("mul.Tensor", y, -1 / rate), x.dtype)


@lowers("native_dropout")
def dropout(x: Value, p: float, train: bool | None) -> list[Value]:
    if train is False or p == 0:
        return [x, full(x.shape, True, torch.bool)]
    kept = call("ge.Scalar", uniform(x.shape, F32), p)
    scaled = call("mul.Tensor", x, 0.0 if p == 1 else 1 / (1 - p))
    return [call("where.self", kept, scaled, full((), 0.0, x.dtype)), kept]


@lowers("rrelu_with_noise_functional")
def rrelu(x: Value, noise: Value, lower: Number = 0.125, upper: Number = 1 / 3,
          training: bool = False, **other: object) -> list[Value]:
    """Below 0 with slopes that are drawn, or with their average. The slopes are returned, too."""
    if not training:
        return [call("leaky_relu", x, (lower + upper) / 2), noise]
    slopes = call("where.self", call("le.Scalar", x, 0), uniform_(x, lower, upper), 1.0)
    return [call("mul.Tensor", x, slopes), slopes]


@lowers("randperm")
def randperm(n: int, dtype: torch.dtype = I64, **other: object) -> Value:
    if n > 1 << 16:
        raise Unsupported("a permutation of more than 65,536, whose random keys may be equal")
    return cast(call("sort", uniform((n,), F32))[1], dtype) if n else empty((0,), dtype)
