"""Fused activations and the operators of chains, as ``include/chain_operators.glsl`` takes them.

Their codes stand there. The build gives them to :func:`codes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..dtypes import DataType
from ..layout import Ints
from ..runtime.shader_library import codes
from .elementwise import parameters

if TYPE_CHECKING:
    from ..operators.base import OperatorDesc


class ActivationStep(NamedTuple):
    """An operator of a chain. A source is a tensor (0 to 2), an earlier step (from 3 on), or the
    only number."""

    code: int
    sources: tuple[int, ...]
    words: tuple[int, ...]
    """Attributes of the operator, or the number."""


def encoded(steps: Sequence[ActivationStep], first: int = 0) -> tuple[Ints, Ints]:
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


def activation(desc: OperatorDesc) -> Fused:
    """The code and words of an activation's description."""
    name = desc.operator.function_name.removeprefix("activation_")
    if name == "identity":
        return NOTHING
    return Fused(codes()[name], parameters(desc, DataType.FLOAT32))


def fused_activation(desc: OperatorDesc | None) -> Fused:
    """The activation that an operator fuses, and its tail. Code 0 is no activation."""
    fused = getattr(desc, "fused_activation", None)
    fused_in = NOTHING if fused is None else activation(fused)
    if desc is None or not (steps := getattr(desc, "tail", None)):
        return fused_in
    tail, words = encoded(steps, len(fused_in.words))
    return Fused(fused_in.code, (*fused_in.words, *words), tail, desc.tail_tensor is not None)
