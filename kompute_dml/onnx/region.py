"""A region of claimed nodes on a device: constants uploaded once, one plan per set of sizes."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DmlError, ValidationError
from ..graph.array import Array
from ..graph.builder import Builder, Prepared
from ..graph.recorded import RecordedPlan
from ..layout import Ints
from . import mapping
from .graph import Node, Value

if TYPE_CHECKING:
    from ..device import Device

MAX_PLANS = 16
"""Plans that a region keeps for sizes it has met; the one unused longest goes first."""
_STAND_INS = (1, 256)
"""For sizes that only a run will tell: operators choose another shader for few rows."""
_KEPT_ON_HOST = 4 << 10
"""Bytes of a constant up to which the host keeps a copy: rows may want sizes, axes or bounds."""


class Region:
    """Nodes that run as one. Safe to use from several threads."""

    def __init__(
        self, device: Device, nodes: Sequence[Node], inputs: Sequence[Value],
        outputs: Sequence[Value],
    ) -> None:
        """``nodes`` in an order in which they can run, each with a row in the mapping table."""
        self.device = device
        self.nodes = nodes
        self.inputs = inputs
        self.outputs = outputs
        self._rows = [mapping.find(node, device) for node in nodes]
        on_host = {
            value for node, row in zip(nodes, self._rows) for i in row.host
            if (value := node.input(i)) is not None
        }
        self._host_inputs = [i for i, value in enumerate(inputs) if value in on_host]
        self._constants: dict[Value, Array] = {}
        self._upload_constants()
        self._prepared: list[Prepared] = []
        self._plans: OrderedDict[Any, RecordedPlan] = OrderedDict()
        self._lock = threading.Lock()
        self._plan_ahead()

    @property
    def label(self) -> str:
        return " ".join(node.label for node in self.nodes)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs for contiguous ``inputs``. Raises DmlError."""
        return self.plan(inputs).run(inputs)

    def plan(self, inputs: Sequence[np.ndarray]) -> RecordedPlan:
        """The plan for inputs of these sizes."""
        key = (
            *[x.shape for x in inputs], *[inputs[i].tobytes() for i in self._host_inputs]
        )
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                known = {i: inputs[i].copy() for i in self._host_inputs}
                plan = self._plans[key] = self._build([x.shape for x in inputs], known)
                if len(self._plans) > MAX_PLANS:
                    self._plans.popitem(last=False)
            else:
                self._plans.move_to_end(key)
        return plan

    def _upload_constants(self) -> None:
        builder = Builder(self.device)
        for value in [v for node in self.nodes for v in node.inputs] + list(self.outputs):
            if value is None or value.constant is None or value in self._constants:
                continue
            array = builder.constant(value.constant)
            # A copy, if at all: the memory of a constant may go once the region is made.
            host = value.constant.copy() if value.constant.nbytes <= _KEPT_ON_HOST else None
            self._constants[value] = replace(array, host=host)
        for value, array in self._constants.items():
            value.constant = array.host

    def _plan_ahead(self) -> None:
        """Plan now where all sizes are known; else let operators prepare their constants now."""
        sizes = [v.shape for v in self.inputs]
        if self._host_inputs or None in sizes:
            return
        for stand_in in _STAND_INS:
            shapes = [tuple(stand_in if n is None else n for n in s or ()) for s in sizes]
            if shapes == sizes:
                self._plans[tuple(shapes)] = self._build(shapes, {})
                return
            # Without a plan's memory; and sizes that stand in for others need not fit together.
            with contextlib.suppress(DmlError):
                self._emit(Builder(self.device, self._prepared), shapes, {})

    def _build(self, shapes: Sequence[Ints], known: dict[int, np.ndarray]) -> RecordedPlan:
        builder = Builder(self.device, self._prepared)
        return builder.finish(*self._emit(builder, shapes, known))

    def _emit(
        self, builder: Builder, shapes: Sequence[Ints], known: dict[int, np.ndarray]
    ) -> tuple[list[Array], list[Array]]:
        """Every node's operators; returns the arrays of the inputs and the outputs."""
        arrays = dict(self._constants)
        given = []
        for i, (value, shape) in enumerate(zip(self.inputs, shapes)):
            if value.dtype is None:
                raise ValidationError(f"input {value.name!r} has no data type that this reads")
            array = replace(builder.new(shape, value.dtype), host=known.get(i))
            arrays[value] = array
            given.append(array)
        for node, row in zip(self.nodes, self._rows):
            self._add(builder, node, row, arrays)
        return given, [arrays[v] for v in self.outputs]

    def _add(
        self, builder: Builder, node: Node, row: mapping.Row, arrays: dict[Value, Array]
    ) -> None:
        inputs = [None if v is None else arrays[v] for v in node.inputs]
        try:
            results = row.build(builder, node, inputs)
        except (DmlError, ValueError, LookupError) as error:
            kind = type(error) if isinstance(error, DmlError) else ValidationError
            shapes = [None if x is None else list(x.shape) for x in inputs]
            raise kind(
                f"{node.label} {node.name!r} with inputs of sizes {shapes}: {error}"
            ) from None
        for value, array in zip(node.outputs, results):
            if value is not None:
                arrays[value] = array
