"""What random ONNX nodes are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

F32, F16 = np.float32, np.float16
END = 2**31 - 1
"""Where a Slice ends that goes to the end."""


@dataclass
class RandomNode:
    """A node and what it is given. An input of None is absent."""

    op: str
    inputs: Sequence[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    domain: str = ""
    opset: int = 21
    older: bool = False
    """Whether only this operator set, and those next to it, have the node in this form."""
    host: Sequence[int] = ()
    """Inputs that are constants, as in models."""


class Draw:
    """Random numbers, and what is made of them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def whole(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def of(self, *items: Any) -> Any:
        return items[self.rng.integers(len(items))]

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def some(self, **values: Any) -> dict[str, Any]:
        """Each of the values, or not."""
        return {name: value for name, value in values.items() if self.chance()}

    def sizes(self, least: int = 1, most: int = 4, longest: int = 6) -> list[int]:
        return [self.whole(1, longest) for _ in range(self.whole(least, most))]

    def wholes(self, count: int, low: int, high: int) -> list[int]:
        return [self.whole(low, high) for _ in range(count)]

    def axis(self, sizes: Sequence[int]) -> int:
        return self.whole(-len(sizes), len(sizes) - 1)

    def axes(self, sizes: Sequence[int], least: int = 0) -> list[int]:
        """Different axes, some counted from the last."""
        count = self.whole(least, len(sizes))
        found = self.rng.permutation(len(sizes))[:count]
        return [int(a) - self.of(0, len(sizes)) for a in found]

    def floats(self, *sizes: int, dtype: Any = F32) -> np.ndarray:
        return (self.rng.standard_normal(sizes) * 2).astype(dtype)

    def integers(self, sizes: Sequence[int], dtype: Any, low: int = -9, high: int = 9) -> Any:
        low = 0 if np.dtype(dtype).kind == "u" else low
        return np.asarray(self.rng.integers(low, high + 1, sizes)).astype(dtype)

    def numbers(self, sizes: Sequence[int], *dtypes: Any) -> np.ndarray:
        dtype = self.of(*dtypes)
        return (self.floats(*sizes, dtype=dtype) if np.dtype(dtype).kind == "f"
                else self.integers(sizes, dtype))

    def anything(self, sizes: Sequence[int]) -> np.ndarray:
        return self.numbers(sizes, F32, F32, F16, np.float64, np.int8, np.uint8, np.int32, np.int64)

    def indices(self, size: int, shape: Sequence[int]) -> np.ndarray:
        return self.integers(shape, np.int64, -size, size - 1)


Maker = Callable[[Draw], RandomNode]


def long(*values: int) -> np.ndarray:
    return np.array(values, np.int64)
