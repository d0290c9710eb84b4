"""What a dispatchable becomes on a device: it is bound, and then recorded as often as wanted."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..bindings import BufferBinding
from ..compiler import Operator
from ..device import Device
from ..errors import UnsupportedError, ValidationError
from ..graph import compiled as _compiled  # noqa: F401  (devices compile graphs then)
from ..graph.desc import (
    ConstantDataGraphNodeDesc,
    GraphDesc,
    InputGraphEdgeDesc,
    IntermediateGraphEdgeDesc,
    OperatorGraphNodeDesc,
    OutputGraphEdgeDesc,
)
from ..graph.step import tensors
from ..operators.base import definitions
from . import onnx_model
from .model import Binding, Bindings, DispatchableModel
from .operator import OperatorModel
from .serialized import SerializedGraph


class Resources(Protocol):
    """What an executable needs of the runner."""

    device: Any

    def binding(self, source: Binding) -> Any: ...
    def bytes_of(self, source: Binding) -> np.ndarray: ...
    def fill(self, source: Binding, values: np.ndarray) -> None: ...


class Executable(Protocol):
    """A dispatchable that was compiled and initialized."""

    clock: Any
    """What is timed: the device, or a stand-in without timestamps of its own."""

    def bind(self, bindings: Bindings) -> None: ...
    def record(self) -> None: ...
    def finish(self) -> None: ...


def executable(resources: Resources, dispatchable: DispatchableModel) -> Executable:
    if dispatchable.onnx is not None:
        return OnnxExecutable(resources, dispatchable)
    return CompiledExecutable(resources, dispatchable)


def operator_desc(operator: OperatorModel) -> Any:
    """The descriptor of the package for ``operator``; UnsupportedError where it is missing."""
    definition = definitions().get(operator.name)
    if definition is None:
        raise UnsupportedError(
            f"{operator.name} is not implemented by this package (see 'kompute-dml ops')"
        )

    def nested(value: object) -> Any:
        if isinstance(value, OperatorModel):
            return operator_desc(value)
        if type(value) is tuple:
            return tuple(map(nested, value))
        return value

    return definition.desc_class(**{name: nested(v) for name, v in operator.fields.items()})


class CompiledExecutable:
    """A compiled and initialized operator or graph, with its temporary and persistent resources."""

    def __init__(self, resources: Resources, dispatchable: DispatchableModel) -> None:
        self._resources = resources
        self.clock = self._device = device = resources.device
        self._operator, self._graph = dispatchable.operator, dispatchable.graph
        self._as_graph = dispatchable.as_graph
        if self._graph is not None:
            self._compiled = device.compile_graph(
                _graph_of_nodes(device, self._graph), dispatchable.flags)
        else:
            assert self._operator is not None
            operator = device.create_operator(operator_desc(self._operator))
            flags = dispatchable.flags
            self._compiled = (
                device.compile_graph(_graph_of_one(operator), flags) if self._as_graph
                else device.compile_operator(operator, flags))
        properties = self._compiled.binding_properties
        self._temporary = self._scratch(properties.temporary_resource_size)
        self._persistent = self._scratch(properties.persistent_resource_size)
        self._table: Any = None

        initializer = device.create_operator_initializer([self._compiled])
        table = device.create_binding_table(initializer)
        table.bind_inputs([self._ranges("input", dispatchable.bindings)])
        if self._persistent is not None:
            table.bind_outputs([self._persistent])
        scratch = self._scratch(initializer.binding_properties.temporary_resource_size)
        if scratch is not None:
            table.bind_temporary_resource(scratch)
        device.record_dispatch(initializer, table)
        device.synchronize()

    def bind(self, bindings: Bindings) -> None:
        self._table = table = self._device.create_binding_table(self._compiled)
        table.bind_inputs(self._ranges("input", bindings))
        table.bind_outputs(self._ranges("output", bindings))
        if self._temporary is not None:
            table.bind_temporary_resource(self._temporary)
        if self._persistent is not None:
            table.bind_persistent_resource(self._persistent)

    def record(self) -> None:
        self._device.record_dispatch(self._compiled, self._table)

    def finish(self) -> None:
        """Results lie in the resources already."""

    def _ranges(self, kind: str, bindings: Bindings) -> list[Any]:
        """One range per tensor of the structure, in order; None where nothing is bound.

        A graph has no inputs and outputs for tensors that are absent.
        """
        if self._graph is not None:
            names = self._graph.inputs if kind == "input" else self._graph.outputs
            return [self._resources.binding(bindings[n][0]) if n in bindings else None
                    for n in names]
        assert self._operator is not None
        ranges: list[Any] = []
        for f in self._operator.spec.tensors:
            if f.kind != kind:
                continue
            described = self._operator.fields[f.snake]
            if described is None and self._as_graph:
                continue
            count = len(described) if isinstance(described, tuple) else 1
            sources = bindings.get(f.name)
            ranges += map(self._resources.binding, sources) if sources else [None] * count
        return ranges

    def _scratch(self, size: int) -> BufferBinding | None:
        return BufferBinding(self._device.create_buffer(size)) if size else None


def _graph_of_one(operator: Operator) -> GraphDesc:
    """A graph of one operator; its inputs and outputs are the tensors that are not absent."""
    inputs, outputs = (
        [(i, t.path) for i, t in enumerate(side) if t.desc is not None]
        for side in tensors(operator)
    )
    return GraphDesc(
        len(inputs), len(outputs), [OperatorGraphNodeDesc(operator)],
        [InputGraphEdgeDesc(number, 0, slot, name) for number, (slot, name) in enumerate(inputs)],
        [OutputGraphEdgeDesc(0, slot, number, name) for number, (slot, name) in enumerate(outputs)],
    )


def _graph_of_nodes(device: Device, graph: SerializedGraph) -> Any:
    nodes: list[Any] = []
    inputs, between, outputs = [], [], []
    makers: dict[str, tuple[int, int]] = {}
    for number, node in enumerate(graph.nodes):
        if isinstance(node.what, bytes):
            nodes.append(ConstantDataGraphNodeDesc(node.what, node.name))
        else:
            operator = device.create_operator(operator_desc(node.what))
            nodes.append(OperatorGraphNodeDesc(operator, node.name))
        for slot, name in enumerate(node.inputs):
            if name in graph.inputs:
                inputs.append(InputGraphEdgeDesc(graph.inputs.index(name), number, slot, name))
            elif name in makers:
                between.append(IntermediateGraphEdgeDesc(*makers[name], number, slot, name))
            elif name:
                raise ValidationError(f"node {node.name!r}: no node before it makes {name!r}")
        for slot, name in enumerate(node.outputs):
            makers[name] = number, slot
            if name in graph.outputs:
                outputs.append(OutputGraphEdgeDesc(number, slot, graph.outputs.index(name), name))
    return GraphDesc(len(graph.inputs), len(graph.outputs), nodes, inputs, outputs, between)


class OnnxExecutable:
    """An ONNX model in a session. Its time is the host's, transfers of inputs and outputs in it."""

    def __init__(self, resources: Resources, dispatchable: DispatchableModel) -> None:
        assert dispatchable.onnx is not None
        self._resources = resources
        self._session = onnx_model.Session(dispatchable.onnx, resources.device.adapter)
        self.clock = _HostClock()
        self._bindings: Bindings = {}
        self._feed: dict[str, np.ndarray] = {}
        self._made: dict[str, np.ndarray] = {}

    def bind(self, bindings: Bindings) -> None:
        """Inputs that are not bound are zeros, as outputs that are not bound go nowhere."""
        known = {t.name for t in (*self._session.inputs, *self._session.outputs)}
        for name, sources in bindings.items():
            if name not in known or len(sources) != 1 or sources[0].element_offset:
                raise ValidationError(
                    f"{name}: expected one of {', '.join(sorted(known))}, bound to one resource "
                    "from its start on")
        self._bindings = bindings
        self._feed = {}
        for tensor in self._session.inputs:
            source = bindings[tensor.name][0] if tensor.name in bindings else None
            self._feed[tensor.name] = (
                onnx_model.shaped(tensor, self._resources.bytes_of(source), source.shape)
                if source else np.zeros([n or 1 for n in tensor.shape], tensor.dtype))

    def record(self) -> None:
        self._made = self._session.run(self._feed)

    def finish(self) -> None:
        for name, values in self._made.items():
            for source in self._bindings.get(name, ()):
                if source.shape not in (None, values.shape):
                    raise ValidationError(f"{name}: expected shape {list(source.shape)}, but got "
                                          f"{list(values.shape)}")
                self._resources.fill(source, values)


class _HostClock:
    """In the place of a device that is timed, where only the host's clock counts."""

    def synchronize(self) -> None:
        """A session has ended when its call has."""

    def elapsed(self, work: object) -> float:
        raise UnsupportedError("no valid timestamps here: an ONNX Runtime session has none")
