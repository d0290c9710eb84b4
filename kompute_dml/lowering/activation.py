"""Fused activations and the operators of chains, as ``include/chain_operators.glsl`` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..dtypes import DataType
from ..layout import Ints
from .elementwise import parameters

NAMES = (
    "none", "relu", "leaky_relu", "thresholded_relu", "linear", "hard_sigmoid", "shrink", "elu",
    "celu", "scaled_elu", "sigmoid", "tanh", "scaled_tanh", "softplus", "parametric_softplus",
    "softsign", "gelu", "clip", "hard_swish", "swish",
    "add", "subtract", "multiply", "divide", "max", "min", "abs", "negate", "recip", "sqrt", "exp",
    "log", "erf", "square", "floor", "ceil", "sign", "clip1",
)
"""The index is the code. The second half is in chains only."""


class Step(NamedTuple):
    """An operator of a chain. A source is a tensor (0 to 2), an earlier step (from 3 on), or the
    only number."""

    code: int
    sources: tuple[int, ...]
    words: tuple[int, ...]
    """Attributes of the operator, or the number."""


def encoded(steps: Sequence[Step], first: int = 0) -> tuple[Ints, Ints]:
    """A word for each step, as the shaders take it, and the words that steps find from ``first``
    on."""
    codes: list[int] = []
    words: list[int] = []
    for step in steps:
        left, right = (*step.sources, 0)[:2]
        codes.append(step.code | left << 8 | right << 12 | (first + len(words)) << 16)
        words += step.words
    return tuple(codes), tuple(words)


class Fused(NamedTuple):
    """What an operator does to its finished result: an activation, and a tail of other operators
    (``include/tail.glsl``)."""

    code: int
    words: Ints
    """Words for the params buffer."""
    tail: Ints = ()
    has_tensor: bool = False

    def variant(self, shader: str) -> str:
        """The variant of a shader's variant that takes the tail, if there is one."""
        return f"{shader}.tail" if self.tail else shader

    @property
    def spec(self) -> dict[str, int]:
        """Specialization constants."""
        constants: dict[str, int] = {"FUSED_ACTIVATION": self.code}
        if self.tail:
            constants |= {f"TAIL_{i}": word for i, word in enumerate(self.tail)}
            constants["HAS_TAIL_TENSOR"] = self.has_tensor
        return constants


NOTHING = Fused(0, ())


def activation(desc: Any) -> Fused:
    """The code and words of an activation's description."""
    name = desc.operator.function_name.removeprefix("activation_")
    if name == "identity":
        return NOTHING
    return Fused(NAMES.index(name), parameters(desc, DataType.FLOAT32))


def fused_activation(desc: Any) -> Fused:
    """The activation that an operator fuses, and its tail. Code 0 is no activation."""
    fused = getattr(desc, "fused_activation", None)
    made = NOTHING if fused is None else activation(fused)
    steps = getattr(desc, "tail", None)
    if not steps:
        return made
    tail, words = encoded(steps, len(made.words))
    return Fused(made.code, (*made.words, *words), tail, desc.tail_tensor is not None)
