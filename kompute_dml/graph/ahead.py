"""What plans for other sizes take. Once second sizes come, a model's sizes do change. Threads
compile what more of them may take, before they come.

A kernel may tell a few classes of sizes apart: short rows from long ones, rows of whole vectors
from others. Here nobody knows which. The same lowerings run for sizes around those that came.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..compiler import CompiledOperator
from ..layout import Ints
from ..operators.base import OperatorDesc
from ..runtime.pipelines import Shader
from ..runtime.uploads import Uploads
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
_ENDS = tuple((4, rests) for rests in ((0,), (1,), (2,))) + ((16, (0,)),)
"""What sizes leave, one after the other, divided by a number: whole vectors, odd numbers, halves of
vectors; and whole tiles."""
_MIXED = ((4, (1, 0)), (4, (0, 1)))
"""The same, of sizes about as long: whole vectors and odd numbers in turn."""
_SCALES = ((2.0,), (0.5,), (2.0, 1.0), (0.5, 1.0), (4.0,), (0.25,))
"""How much longer or shorter sizes are, one after the other: all of them, or every other."""
_FEW_ROWS = (1, 2, 4, 8)
"""Sizes that are alone may be rows of a product, whose kernels are others for few rows."""


def compiles_ahead(device: Device) -> bool:
    """Whether a device has what sizes to come may take compiled before they come. A CPU does not:
    its compiler takes the cores that compute, and its kernels tell few sizes apart."""
    return not device.target.traits.is_cpu and AHEAD not in disabled()


def sizes_around(values: Sequence[int]) -> list[Ints]:
    """Values of the variables of sizes that may come beside these, each once."""
    found: dict[Ints, None] = {}
    kinds = [((1.0,), end) for end in (*_ENDS, *_MIXED)]
    for scales, (unit, rests) in (*kinds, *itertools.product(_SCALES, _ENDS)):
        found[tuple([max(int(n * scale) // unit * unit + rest, rest or unit) for n, scale, rest
                     in zip(values, itertools.cycle(scales), itertools.cycle(rests))])] = None
    if len(values) == 1:
        found.update(dict.fromkeys((n,) for n in _FEW_ROWS))
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

    def constant(self, values: np.ndarray, uploads: Uploads | None = None) -> Array:
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
