"""A case of an operator: inputs, the function's arguments, and a NumPy reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Scale:
    """The sizes of the cases."""

    elements: int
    """Elements of a case that is bound by memory."""
    side: int
    """Rows and columns of a square matrix."""
    products: tuple[tuple[int, int, int], ...]
    """(M, K, N) of matrix products."""
    shrink: int
    """Divisor of sizes that are given for a large GPU."""
    deep: int
    """Size of each dimension of a tensor with eight dimensions."""
    bandwidth: float = 0.0
    """The least GB/s of copying for this scale."""

    def of(self, size: int) -> int:
        return -(-size // self.shrink)


TINY = Scale(1013, 13, ((5, 37, 7),), 256, 2)
"""The scale of tests and the self-test."""


@dataclass(frozen=True)
class Given:
    """An input of random numbers."""

    sizes: tuple[int, ...]
    low: float = 0.1
    high: float = 0.9
    dtype: Any = np.float32
    shared: bool = False
    """Whether each item of the output needs the whole input. Other inputs have one item for
    each."""

    def array(self, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(self.low, self.high, self.sizes).astype(self.dtype)


def _call(function: Callable[..., Any], /, *inputs: object, **arguments: Any) -> Any:
    return function(*inputs, **arguments)


@dataclass(frozen=True)
class OperatorCase:
    """An ordinary use of an operator's function."""

    reference: Callable[..., Any]
    """NumPy's result for some items of the inputs (float64 or int64): one array for each output."""
    inputs: tuple[Any, ...]
    """:class:`Given`, or arrays, which all items share."""
    arguments: Mapping[str, Any]
    out: tuple[int, ...] | None = None
    """The sizes of an output that do not follow from the arguments, ..."""
    operations: int = 0
    """Multiplications and additions; 0 where the rate is a bandwidth."""
    room: float = 1e-5
    """The largest error of a float, relative to the largest float."""
    call: Callable[..., Any] = _call
    """(the function, inputs and arguments) -> outputs."""
    out_type: Any = np.float32
    """... and its type."""

    def expected(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """The outputs of these inputs, in float64 or int64."""
        wide = (x.astype(np.float64 if x.dtype.kind == "f" else np.int64) for x in inputs)
        return tuple(map(np.asarray, as_tuple(self.reference(*wide))))

    def wrong(self, outputs: object, *inputs: np.ndarray) -> str:
        """What is wrong with ``outputs`` (arrays) of these inputs, or ""."""
        return next(filter(None, (_near(got, wanted, self.room) for got, wanted in zip(
            as_tuple(outputs), self.expected(*inputs), strict=True))), "")


Entry = Callable[[Scale], OperatorCase]


def of_halves(c: OperatorCase) -> OperatorCase:
    """The case with FLOAT16 for FLOAT32."""
    inputs = (replace(x, dtype=np.float16) if isinstance(x, Given) and x.dtype is np.float32 else x
              for x in c.inputs)
    return replace(c, inputs=tuple(inputs), out_type=np.float16, room=max(c.room, 1e-3))


def case(
    reference: Callable[..., Any], *inputs: object, out: tuple[int, ...] | None = None,
    operations: int = 0, room: float = 1e-5, call: Callable[..., Any] = _call, **arguments: Any,
) -> OperatorCase:
    return OperatorCase(reference, inputs, arguments, out, operations, room, call)


def each(names: str, entry: Entry) -> dict[str, Entry]:
    """The same entry for several operators."""
    return dict.fromkeys(names.split(), entry)


def as_tuple(outputs: object) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def _near(got: np.ndarray, expected: np.ndarray, room: float) -> str:
    if got.shape != expected.shape:
        return f"expected sizes {list(expected.shape)}, but got {list(got.shape)}"
    off = np.abs(got.astype(np.float64) - expected)
    allowed = room * np.abs(expected).max() if got.dtype.kind == "f" else 0
    worst = np.unravel_index(np.where(np.isnan(off), np.inf, off).argmax(), off.shape)
    # A NaN is not within any bound.
    return "" if off[worst] <= allowed else (
        f"{off[worst]} off at {[int(i) for i in worst]}: "
        f"expected {expected[worst]}, but got {got[worst]}")


# Inputs that several families share


def rows(s: Scale, low: float = 0.1, high: float = 0.9, dtype: npt.DTypeLike = np.float32) -> Given:
    return Given((s.side, s.side), low, high, dtype)


def whole(array: Given) -> Given:
    return replace(array, shared=True)


def matrix(s: Scale, dtype: npt.DTypeLike = np.float32, high: float = 0.9) -> Given:
    return Given((s.side, s.side), 0.1, high, dtype, shared=True)


def images(s: Scale, low: float = 0.1, high: float = 0.9, dtype: npt.DTypeLike = np.float32, *,
           smaller: int = 1) -> Given:
    """Images whose sides are even, or so many times smaller."""
    side = min(s.side, 128) // 2 * 2
    channels = min(64, max(1, s.elements // side**2 // 2))
    count = max(1, s.elements // (channels * side**2))
    return Given((count, channels, side // smaller, side // smaller), low, high, dtype)


def per_channel(s: Scale, low: float = 0.1, high: float = 0.9) -> Given:
    return Given((1, images(s).sizes[1], 1, 1), low, high, shared=True)


def one(value: float, dtype: npt.DTypeLike = np.float32) -> np.ndarray:
    return np.array([value], dtype)


def coarse(terms: int) -> np.ndarray:
    """A power of two that scales sums of so many terms to bytes."""
    return one(2.0 ** (math.ceil(math.log2(terms)) - 4))
