"""Random numbers: NumPy's names, drawn by RANDOM_GENERATOR.

Equal seeds give equal numbers on every driver, but not NumPy's. Each draw takes words of Philox
4x32-10 from where the one before it ended.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np

from .arrays.creation import arange
from .arrays.operand import DeviceLike, as_tensor, cast, dml, find_device, reshape
from .arrays.reductions import argsort, cumsum
from .arrays.selection import take
from .dtypes import DataType, element_type
from .errors import expect, integers
from .layout import product
from .tensors import Tensor
from .tensors.attached import UFUNCS
from .tensors.types import DataTypeLike, TensorLike

Size = int | Sequence[int] | None
_WORDS = 4
"""Words of a block of Philox."""


class Generator:
    """Numbers from one seed, as numpy.random.Generator.

    ``size`` is the shape of the result; None gives a number without dimensions. ``device`` is where
    the numbers are drawn. Without a seed, the system's randomness is one.
    """

    def __init__(self, seed: int | None = None, *, device: DeviceLike = None) -> None:
        entropy = int.from_bytes(os.urandom(8), "little") if seed is None else seed
        expect(isinstance(entropy, (int, np.integer)) and entropy >= 0, "default_rng", "seed",
               "be an integer of at least 0", seed)
        words = np.random.SeedSequence(int(entropy)).generate_state(2, np.uint32)
        self._key = [int(w) for w in words]
        self._blocks = 0
        self._device = device

    def __repr__(self) -> str:
        return f"<Generator after {self._blocks} blocks of Philox 4x32-10>"

    def _words(self, count: int) -> Tensor:
        """So many random words, UINT32."""
        device = find_device(self._device)
        counter = [self._blocks >> 32 * i & 0xFFFFFFFF for i in range(4)]
        self._blocks += -(-count // _WORDS)
        state = device.tensor(np.array([[*counter, *self._key]], np.uint32))
        words: Tensor = dml("random_generator")(state, sizes=(count,))
        return words

    def _uniform(self, count: int) -> Tensor:
        """Multiples of 2^-24 in [0, 1)."""
        bits = dml("bit_shift_right")(self._words(count), 8)
        unit: Tensor = dml("multiply")(dml("cast")(bits, DataType.FLOAT32), 2.0**-24)
        return unit

    def random(self, size: Size = None, dtype: DataTypeLike = "float32") -> Tensor:
        """Numbers in [0, 1), multiples of 2^-24."""
        shape = _shape(size)
        n = product(shape)
        values = self._uniform(n) if n else self._nothing()
        return cast(reshape(values, *shape), element_type(dtype))

    def _nothing(self) -> Tensor:
        return find_device(self._device).empty([0])

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Size = None) -> Tensor:
        """Numbers in [low, high)."""
        return self.random(size) * (high - low) + low

    def normal(self, loc: float = 0.0, scale: float = 1.0, size: Size = None) -> Tensor:
        """Numbers of the normal distribution, by Box and Muller's transform."""
        shape = _shape(size)
        n = product(shape)
        if not n:
            return reshape(self._nothing(), *shape)
        half = -(-n // 2)
        pairs = self._uniform(2 * half)
        # 1 - u is in (0, 1], whose logarithm is finite.
        radius = UFUNCS["sqrt"](UFUNCS["log"](1.0 - pairs[:half]) * -2.0)
        angle = pairs[half:] * (2 * math.pi)
        numbers = dml("join")(
            [radius * UFUNCS["cos"](angle), radius * UFUNCS["sin"](angle)], axis=0)
        return reshape(numbers[:n], *shape) * scale + loc

    def standard_normal(self, size: Size = None) -> Tensor:
        """:meth:`normal` about 0 with a deviation of 1."""
        return self.normal(size=size)

    def exponential(self, scale: float = 1.0, size: Size = None) -> Tensor:
        """Numbers of the exponential distribution."""
        return UFUNCS["log"](1.0 - self.random(size)) * -scale

    def integers(self, low: int, high: int | None = None, size: Size = None,
                 dtype: DataTypeLike = "int64", endpoint: bool = False) -> Tensor:
        """Integers in [low, high), or in [0, low) without ``high``; up to ``high`` with
        ``endpoint``. A range of n numbers may draw each with a probability that is off by at most
        n / 2^32, relatively."""
        if high is None:
            low, high = 0, low
        count = int(high) - int(low) + bool(endpoint)
        expect(0 < count <= 1 << 32, "integers", "the range", "have 1 to 2^32 numbers", low, high)
        shape = _shape(size)
        n = product(shape)
        if not n:
            return cast(reshape(self._nothing(), *shape), element_type(dtype))
        words = dml("cast")(self._words(n), DataType.UINT64)
        # The high half of a product, as a remainder would favour small numbers.
        drawn = dml("bit_shift_right")(dml("multiply")(words, count), 32)
        return cast(reshape(cast(drawn, np.dtype(np.int64)) + int(low), *shape),
                    element_type(dtype))

    def permutation(self, x: int | TensorLike, axis: int = 0) -> Tensor:
        """``x`` in a random order along ``axis``; of an integer, that of ``arange(x)``."""
        t = arange(int(x), device=self._device) if isinstance(x, (int, np.integer)) else (
            as_tensor(x))
        n = t.shape[axis]
        return take(t, argsort(self._words(n)), axis) if n else t

    def shuffle(self, x: Tensor, axis: int = 0) -> None:
        """Put ``x`` itself into a random order along ``axis``."""
        expect(isinstance(x, Tensor), "shuffle", "x", "be a Tensor", type(x).__name__)
        x[...] = self.permutation(x, axis)

    def choice(self, a: int | TensorLike, size: Size = None, replace: bool = True,
               p: TensorLike | None = None, axis: int = 0) -> Tensor:
        """Elements of ``a``, or of ``arange(a)``, along ``axis``. ``p`` are their probabilities,
        which need ``replace``."""
        t = arange(int(a), device=self._device) if isinstance(a, (int, np.integer)) else (
            as_tensor(a))
        shape, n = _shape(size), t.shape[axis]
        count = product(shape)
        expect(n > 0 or not count, "choice", "a", "have an element to choose", t.summary())
        if p is not None:
            expect(replace, "choice", "replace", "be True with probabilities", replace)
            ends = cumsum(as_tensor(p, t))
            expect(ends.shape == (n,), "choice", "p", f"have {n} elements", list(ends.shape))
            drawn = self.random((count, 1)) * ends[-1]
            at = UFUNCS["minimum"]((drawn >= ends).sum(1), n - 1)
        elif replace:
            at = self.integers(0, n, count)
        else:
            expect(count <= n, "choice", "size", f"be at most {n} without replacement", size)
            at = argsort(self._words(n))[:count]
        return take(t, reshape(at, *shape), axis)


def _shape(size: Size) -> tuple[int, ...]:
    if size is None:
        return ()
    return integers("random", "size", [size] if isinstance(size, (int, np.integer)) else size)


def default_rng(seed: int | None = None, *, device: DeviceLike = None) -> Generator:
    """A generator, as numpy.random.default_rng."""
    return Generator(seed, device=device)


_shared = Generator()


def seed(value: int | None = None) -> None:
    """Begin the functions of this module anew, as numpy.random.seed and torch.manual_seed."""
    _shared.__init__(value)  # type: ignore[misc]


manual_seed = seed


def randperm(n: int) -> Tensor:
    """The integers below ``n`` in a random order, as torch.randperm."""
    return _shared.permutation(n)


def rand(*sizes: int) -> Tensor:
    """Numbers in [0, 1)."""
    return _shared.random(sizes)


def randn(*sizes: int) -> Tensor:
    """Numbers of the normal distribution."""
    return _shared.normal(size=sizes)


# The methods of one generator, as in NumPy's module
random, uniform, normal = _shared.random, _shared.uniform, _shared.normal
randint, permutation = _shared.integers, _shared.permutation
shuffle, choice = _shared.shuffle, _shared.choice
