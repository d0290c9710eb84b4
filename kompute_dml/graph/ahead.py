"""What plans for other sizes take. Once second sizes come, a model's sizes do change. Threads
compile what more of them may take, before they come.

A kernel may tell a few classes of sizes apart: short rows from long ones, rows of whole vectors
from others. Here nobody knows which. The same lowerings run for sizes around those that came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TYPE_CHECKING

import numpy as np

from ..compiler import CompiledOperator
from ..layout import Ints
from ..operators.base import OperatorDesc
from ..runtime.pipelines import Shader
from .array import Array
from .builder import Builder
from .memory import Storage
from .node import Node
from .switches import AHEAD, disabled

if TYPE_CHECKING:
    from ..device import Device

FIRST_SIZES = 3
"""How many sizes after the first ones all operators are looked at around. Later sizes count only
for an operator that takes a shader then that nobody expected."""
_SCALES = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4))
"""How much longer and shorter, as fractions."""
_ENDS = tuple((4, rests) for rests in ((0,), (1,), (2,), (1, 0), (0, 1))) + ((16, (0,)),)
"""What sizes leave, one after the other, divided by a number: whole vectors, odd numbers, halves of
vectors, mixtures of them; and whole tiles."""


def compiles_ahead(device: Device) -> bool:
    """Whether a device has what sizes to come may take compiled before they come. A CPU does not:
    its compiler takes the cores that compute, and its kernels tell few sizes apart."""
    return not device.target.traits.is_cpu and AHEAD not in disabled()


def sizes_around(values: Sequence[int]) -> list[Ints]:
    """Values of the variables of sizes that may come beside these, each once."""
    found: dict[Ints, None] = {}
    for times, parts in _SCALES:
        for unit, rests in _ENDS:
            found[tuple([
                max(n * times // parts // unit * unit + rest, rest or unit)
                for n, rest in zip(values, islice(cycle(rests), len(values)))])] = None
    found.pop(tuple(values), None)
    return [*found]


class Survey(Builder):
    """Collects the operators of sizes that may come, and their shaders. It takes no memory for what
    constants become, and runs nothing."""

    def shaders_of(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> set[Shader]:
        """The shaders of the operators that make ``outputs`` of ``inputs``."""
        ends = self._ends(inputs, outputs)
        self._append_in_place(inputs, ends)
        self.lower(inputs, ends)
        return self.shaders

    def compiled_for(self, desc: OperatorDesc, constants: frozenset[str]) -> CompiledOperator:
        compiled = super().compiled_for(desc, constants)
        self.shaders.update(compiled.pipelines())
        return compiled

    def constant(self, values: np.ndarray) -> Array:
        array = self.new(values.shape, values.dtype)
        if array.storage is not None:
            self._hold(array.storage, values, None)
        return replace(array, host=values)

    def constants(self, values: Sequence[np.ndarray]) -> list[Array]:
        return [*map(self.constant, values)]

    def _run_once(self, node: Node, slot: str, storage: Storage) -> bool:
        self.compiled_for(node.desc, frozenset())
        storage.constant = True
        return True

    def _initialize(
        self, compiled: CompiledOperator, storages: Mapping[str, Storage]
    ) -> Storage | None:
        self.shaders.update(compiled.pipelines(once=True))
        return None
