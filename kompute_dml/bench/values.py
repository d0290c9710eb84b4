"""Inputs that cost the host little, and checks of samples of outputs.

A large input repeats a block of random elements. Its length is prime to all sizes used, so an
element from a wrong place has another value. Only the block is uploaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

import kompute_dml as dml

from ..device import Device
from ..dtypes import DataType

if TYPE_CHECKING:
    import torch

_PERIOD = 1_000_003
_SAMPLES = 24
"""Parts of an output that are checked, ..."""
_PART = 1 << 15
"""... and the most elements of each."""

Output: TypeAlias = "dml.Tensor | torch.Tensor | np.ndarray"
"""What a case or a peer computes."""
Key: TypeAlias = "tuple[int | slice, ...]"
"""An index of a part of an output."""


class Pattern:
    """``count`` elements: ``block``, repeated."""

    def __init__(self, block: np.ndarray, count: int) -> None:
        self.block, self.count = block[:count], count

    @property
    def repeats(self) -> int:
        return -(-self.count // len(self.block))

    def at(self, offsets: np.ndarray) -> np.ndarray:
        return self.block[offsets % len(self.block)]

    def host(self) -> np.ndarray:
        return np.tile(self.block, self.repeats)[: self.count]

    def tensor(self, device: Device) -> Any:
        """The elements as a vector on the device."""
        block = device.tensor(self.block)
        if self.repeats == 1:
            return block
        whole = device.empty([self.repeats, len(self.block)], block.data_type)
        dml.identity(block.broadcast_to(whole.sizes), out=whole)
        return whole.reshape(-1)[: self.count]


def bits(data_type: DataType, count: int, seed: int = 1) -> Pattern:
    """Random bits, for operators that only move elements."""
    words = np.random.default_rng(seed).integers(0, 2**32, 2 * _PERIOD, np.uint32)
    return Pattern(words.view(data_type.dtype)[: min(_PERIOD, count)], count)


def numbers(dtype: npt.DTypeLike, count: int, low: float, high: float, seed: int) -> Pattern:
    uniform = np.random.default_rng(seed).uniform(low, high, min(_PERIOD, count))
    return Pattern(uniform.astype(dtype), count)


def integers(rng: np.random.Generator, data_type: DataType, sizes: tuple[int, ...]) -> np.ndarray:
    """Integers of the whole range. Those of 32 bits are small: float64 holds sums of their
    products."""
    info = np.iinfo(data_type.dtype)
    low, high = max(info.min, -(2**20)), min(info.max, 2**20)
    if (low, high) != (info.min, info.max):
        return rng.integers(low, high, sizes, data_type.dtype)
    count = int(np.prod(sizes)) * info.bits // 8
    words = rng.integers(0, 2**64, -(-count // 8), np.uint64)
    return words.view(np.uint8)[:count].view(data_type.dtype).reshape(sizes)


def host(part: Output) -> np.ndarray:
    """A part of an output of the device, PyTorch or NumPy, as an array."""
    if hasattr(part, "desc") and not part.desc.is_packed:
        part = part.copy()  # else all that lies between its elements is read
    if hasattr(part, "cpu"):
        part = part.cpu()
    return np.asarray(part.numpy() if hasattr(part, "numpy") else part)


def samples(sizes: Sequence[int]) -> Iterator[Key]:
    """Indices of parts, the first and the last among them, spread over a tensor."""
    inner, depth = 1, len(sizes)
    while depth > 1 and inner * sizes[depth - 1] <= _PART:
        depth -= 1
        inner *= sizes[depth]
    # The axis at depth - 1 is sliced. Axes before it are indexed.
    length = max(1, _PART // inner)
    *lead, axis = sizes[:depth]
    rng = np.random.default_rng(7)
    slices = -(-axis // length)
    total = int(np.prod(lead, dtype=np.int64)) * slices
    chosen = {0, total - 1, *rng.integers(0, total, min(total, _SAMPLES)).tolist()}
    for flat in sorted(chosen):
        where, start = divmod(flat, slices)
        index = tuple(int(i) for i in np.unravel_index(where, lead)) if lead else ()
        yield (*index, slice(start * length, min((start + 1) * length, axis)))


def offsets(key: Key, sizes: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """Offsets of the elements that ``key`` selects, in a tensor of these strides."""
    total = np.zeros((), np.int64)
    for axis, (size, stride) in enumerate(zip(sizes, strides)):
        at = key[axis] if axis < len(key) else slice(None)
        if isinstance(at, slice):
            total = total[..., None] + np.arange(*at.indices(size)) * stride
        else:
            total = total + at * stride
    return total


def sampled(
    sizes: Sequence[int],
    expected: Callable[[Key], np.ndarray],
    compare: Callable[[np.ndarray, np.ndarray], str],
) -> Callable[[Output], str]:
    """A check that compares parts of an output with ``expected``."""

    def check(output: Output) -> str:
        for key in samples(sizes):
            problem = compare(host(output[key]), expected(key))
            if problem:
                return f"{problem} (in the part {_text(key)})"
        return ""

    return check


def _text(key: Key) -> str:
    return f"[{', '.join(f'{k.start}:{k.stop}' if isinstance(k, slice) else str(k) for k in key)}]"


def same_bits(got: np.ndarray, expected: np.ndarray) -> str:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"expected {expected.dtype}{expected.shape}, but got {got.dtype}{got.shape}"
    view = f"u{got.itemsize}"
    wrong = np.ascontiguousarray(got).view(view) != np.ascontiguousarray(expected).view(view)
    return _first(wrong, got, expected, "differ")


def room(dtype: npt.DTypeLike) -> float:
    """How far a float may be off, relative to its size: one unit of FLOAT16."""
    return 1e-3 if dtype == np.float16 else 1e-5


def close(got: np.ndarray, expected: np.ndarray) -> str:
    """Compare integers exactly, floats to :func:`room`."""
    if got.shape != expected.shape:
        return f"expected sizes {list(expected.shape)}, but got {list(got.shape)}"
    if got.dtype.kind == "f":
        wrong = ~np.isclose(got.astype(np.float64), expected, rtol=room(got.dtype), atol=1e-6)
    else:
        wrong = got != expected
    return _first(wrong, got, expected, "are off")


def _first(wrong: np.ndarray, got: np.ndarray, expected: np.ndarray, how: str) -> str:
    if not wrong.any():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(wrong))
    return (f"{int(wrong.sum())} of {wrong.size} elements {how}, the first at {list(at)}: "
            f"expected {expected[at]}, but got {got[at]}")
