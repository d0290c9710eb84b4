"""A region of claimed nodes on a device: constants uploaded once, one plan per set of sizes."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DmlError, OutOfMemoryError, UnsupportedError, ValidationError
from ..graph.array import Array, device_type
from ..graph.builder import Builder, Preparations
from ..graph.fusion import VIEWS, left_out
from ..graph.memory import aligned
from ..graph.recorded import Input, RecordedPlan, Resident, Result
from ..layout import Ints, packed_strides
from ..runtime.heap import DEDICATED
from ..runtime.windows import SIZE as WINDOW
from . import mapping, placement, shapes
from .graph import Node, Value

if TYPE_CHECKING:
    from ..device import Device

MAX_PLANS = 16
"""The most plans of a region. The least recently used one is dropped first."""
_SMALL = 64 << 10
"""The most bytes of a constant that is uploaded with others."""
_STAND_INS = (1, 256)
"""Substitutes for unknown sizes: operators choose other shaders for few rows."""


class Constants:
    """Constants that several regions share, while their memory is held."""

    def __init__(self) -> None:
        self.prepared = Preparations()
        """Constants that operators have prepared."""
        self._arrays: dict[tuple[Any, ...], tuple[np.ndarray, Array]] = {}
        """Arrays by memory, with the values, whose memory must not be reused meanwhile."""

    def uploaded(self, builder: Builder, wanted: Sequence[np.ndarray]) -> list[Array]:
        """Constants on the device, uploaded once for the same memory, small ones together."""
        keys = [(x.ctypes.data if x.size else 0, x.shape, x.dtype) for x in wanted]
        new = {key: x for key, x in zip(keys, wanted) if key not in self._arrays}
        small = {key: x for key, x in new.items() if x.size and x.nbytes <= _SMALL
                 and device_type(x.dtype).bits >= 8}
        builder.device._reserve(sum(
            aligned(x.nbytes) for x in new.values() if x.nbytes <= DEDICATED))
        if len(small) > 1:
            for key, array in zip(small, builder.constants([*small.values()])):
                self._arrays[key] = small[key], array
        for key, x in new.items():
            if key not in self._arrays:
                self._arrays[key] = x, builder.constant(x)
        return [self._arrays[key][1] for key in keys]


def _zeros(x: np.ndarray) -> np.ndarray | None:
    """A line of zero points that all are 0, in no more memory than one; None for other arrays."""
    if x.ndim != 1 or x.dtype.itemsize > 1 or x.any():
        return None
    return np.broadcast_to(np.zeros((), x.dtype), x.shape)


class Region:
    """Nodes that run as one. Safe to use from several threads."""

    def __init__(
        self, device: Device, nodes: Sequence[Node], inputs: Sequence[Value],
        outputs: Sequence[Value], shared: Constants | None = None,
        rows: placement.Rows | None = None,
    ) -> None:
        """``nodes`` are in an order in which they can run, and :func:`.place` has placed each:
        ``rows`` are those that it found. ``shared`` has the constants of regions that are made
        together.
        """
        self.device = device
        self.nodes = nodes
        self.inputs = inputs
        self.outputs = outputs
        self._placement = placement.within(nodes, device, rows)
        self.host_inputs = [
            i for i, value in enumerate(inputs) if value in self._placement.wanted
        ]
        """Inputs whose values a plan depends on."""
        self._constants: dict[Value, Array] = {}
        shared = shared or Constants()
        self._upload_constants(shared)
        self._prepared = shared.prepared
        self._plans: OrderedDict[Any, RecordedPlan] = OrderedDict()
        self._lock = threading.Lock()
        self._plan_ahead()

    @property
    def label(self) -> str:
        return " ".join(node.label for node in self.nodes)

    def run(self, inputs: Sequence[Input]) -> list[np.ndarray]:
        """The outputs for contiguous ``inputs``. Raises DmlError."""
        return self.plan(inputs).run(inputs)

    def launch(self, inputs: Sequence[Input], *, anew: bool = False) -> list[Result]:
        """Start a run, whose results need not leave the device. Raises DmlError."""
        return self.plan(inputs).launch(inputs, anew=anew)

    def plan(self, inputs: Sequence[Input]) -> RecordedPlan:
        """The plan for inputs of these sizes. Inputs whose values it depends on are on the host."""
        given = {i: x for i in self.host_inputs if isinstance(x := inputs[i], np.ndarray)}
        # Large inputs have transfers of their own.
        resident = [i for i, x in enumerate(inputs)
                    if isinstance(x, Resident) and x.nbytes <= WINDOW]
        key = (*[x.shape for x in inputs], *[x.tobytes() for x in given.values()], *resident)
        with self._lock:
            plan = self._plans.get(key)
            if plan is None:
                known = {i: x.copy() for i, x in given.items()}
                plan = self._plans[key] = self._build(
                    [x.shape for x in inputs], known, resident)
                if len(self._plans) > MAX_PLANS:
                    self._plans.popitem(last=False)
            else:
                self._plans.move_to_end(key)
        if self._prepared.pending:
            self._prepared.record(self.device)
        return plan

    def _upload_constants(self, shared: Constants) -> None:
        """Upload the constants that the device reads."""
        builder = Builder(self.device)
        wanted = {v: v.constant for v in self._device_values() if v.constant is not None}
        self._constants.update(zip(wanted, shared.uploaded(builder, [*wanted.values()])))
        read = [v for node in self.nodes for v in node.inputs if v is not None]
        for value in (*read, *self.outputs):
            if value.constant is None:
                continue
            # A copy, because the memory of a constant may be freed once the region is made.
            small = value.constant.nbytes <= shapes.HOST_BYTES
            value.constant = value.constant.copy() if small else _zeros(value.constant)
            if value.constant is not None and value not in self._constants:
                self._constants[value] = _on_host(value.constant)
            elif value in self._constants:
                self._constants[value] = replace(self._constants[value], host=value.constant)

    def _device_values(self) -> Iterator[Value]:
        """Values that rows and the region's outputs need on the device."""
        for node in self.nodes:
            row = self._placement.rows.get(node)
            if row is not None:
                yield from (v for i, v in enumerate(node.inputs)
                            if v is not None and i not in row.host)
        yield from self.outputs

    def _plan_ahead(self) -> None:
        """Plan now if all sizes are known. Else let operators prepare their constants now."""
        sizes = [v.shape for v in self.inputs]
        if self.host_inputs or None in sizes:
            return
        for stand_in in _STAND_INS:
            shapes = [tuple(stand_in if n is None else n for n in s or ()) for s in sizes]
            if shapes == sizes:
                self._plans[tuple(shapes)] = self._build(shapes, {})
                return
            # Without a plan's memory. Substitutes for unknown sizes need not fit together.
            with contextlib.suppress(DmlError):
                builder = Builder(self.device, self._prepared)
                builder.lower(*self._emit(builder, shapes, {}))

    def _build(
        self, shapes: Sequence[Ints], known: dict[int, np.ndarray],
        resident: Collection[int] = (),
    ) -> RecordedPlan:
        builder = Builder(self.device, self._prepared)
        given, results = self._emit(builder, shapes, known)
        return builder.finish(given, results, [given[i] for i in resident])

    def _emit(
        self, builder: Builder, shapes: Sequence[Ints], known: dict[int, np.ndarray]
    ) -> tuple[list[Array], list[Array]]:
        """Add the operators of all nodes. Returns the arrays of inputs and outputs."""
        arrays = dict(self._constants)
        given = []
        for i, (value, shape) in enumerate(zip(self.inputs, shapes)):
            if value.dtype is None:
                raise ValidationError(f"input {value.name!r} has no data type that this reads")
            try:
                array = replace(builder.new(shape, value.dtype), host=known.get(i))
            except OutOfMemoryError as error:
                raise OutOfMemoryError(f"input {value.name!r}: {error}") from None
            arrays[value] = array
            given.append(array)
        for node in self.nodes:
            self._add(builder, node, arrays)
        for value in self.outputs:
            _upload(builder, value, arrays)
        return given, [arrays[v] for v in self.outputs]

    def _add(self, builder: Builder, node: Node, arrays: dict[Value, Array]) -> None:
        builder.label = f"{node.label} {node.name!r}"
        try:
            results = self._evaluated(node, arrays) or self._built(builder, node, arrays)
            if any(v is not None for v in node.outputs[len(results):]):
                raise ValidationError(
                    f"expected {len(results)} outputs, but {len(node.outputs)} are named")
        except Exception as error:  # every error gets the node's name
            kind: type[Exception] = ValidationError
            if isinstance(error, (DmlError, MemoryError)):
                kind = type(error) if isinstance(error, DmlError) else OutOfMemoryError
            sizes = [None if v is None else list(arrays[v].shape) for v in node.inputs]
            raise kind(f"{node.label} {node.name!r} with inputs of sizes {sizes}: "
                       f"{mapping.said(error)}") from None
        for value, array in zip(node.outputs, results):
            if value is not None:
                arrays[value] = array

    def _evaluated(self, node: Node, arrays: dict[Value, Array]) -> Sequence[Array] | None:
        """The node's outputs on the host, if it knows the inputs and the device is not needed."""
        if node not in self._placement.host:
            return None
        if any(arrays[value].host is None for value in shapes.reads(node)):
            return None
        results = shapes.evaluate(
            node, [None if v is None else _seen(arrays[v]) for v in node.inputs]
        )
        if node in self._placement.rows and any(y.size > shapes.LARGE for y in results):
            return None
        return [_on_host(y) for y in results]

    def _built(
        self, builder: Builder, node: Node, arrays: dict[Value, Array]
    ) -> Sequence[Array]:
        row = self._placement.rows.get(node)
        if row is None:
            raise UnsupportedError("only the device knows the values of its inputs")
        for i, value in enumerate(node.inputs):
            if value is not None and i not in row.host:
                _upload(builder, value, arrays)
        made = row.build(builder, node, [None if v is None else arrays[v] for v in node.inputs])
        if node.op in _VIEWS and VIEWS in left_out():
            return [builder.copy(y) for y in made]
        return made


_VIEWS = ("Slice", "Split", "Transpose", "Expand", "Tile")
"""Nodes whose results are views of their inputs, where strides allow that."""


def _on_host(values: np.ndarray) -> Array:
    """An array that only the host holds."""
    return Array(values.dtype, values.shape, packed_strides(values.shape), None, values)


def _seen(x: Array) -> np.ndarray:
    """The array's values, or any values of its sizes if the host does not know them."""
    return np.broadcast_to(x.dtype.type(0), x.shape) if x.host is None else x.host


def _upload(builder: Builder, value: Value, arrays: dict[Value, Array]) -> None:
    """Upload a value that only the host has."""
    x = arrays[value]
    if x.host is not None and x.storage is None and x.size:
        arrays[value] = builder.constant(np.ascontiguousarray(x.host).reshape(x.shape))
