"""Checks a graph's description, and finds the source of each tensor."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, NamedTuple

from ..compiler import Operator
from ..desc import TensorDesc
from ..errors import UnsupportedError, expect, refuse, whole
from ..spec import FeatureLevel
from .desc import (
    ConstantDataGraphNodeDesc,
    GraphDesc,
    InputGraphEdgeDesc,
    IntermediateGraphEdgeDesc,
    OperatorGraphNodeDesc,
    OutputGraphEdgeDesc,
)
from .step import SlotTensor, tensors

if TYPE_CHECKING:
    from ..device import Device

_GRAPH = "DML_GRAPH_DESC"
_EDGES = {
    "input_edges": ("InputEdges", InputGraphEdgeDesc),
    "output_edges": ("OutputEdges", OutputGraphEdgeDesc),
    "intermediate_edges": ("IntermediateEdges", IntermediateGraphEdgeDesc),
}


_MOST = 1 << 20
"""The most inputs and outputs of a graph. Each takes memory here."""


class Source(NamedTuple):
    """Where a tensor comes from: an output of a node, or an input of the graph."""

    node: int | None
    """The node's number; None for the graph itself."""
    slot: int


@dataclass(frozen=True)
class WiredOperator:
    """An operator of the graph."""

    operator: Operator
    inputs: list[SlotTensor]
    outputs: list[SlotTensor]
    sources: list[Source | None]
    """The source of each input; None for an absent one."""


@dataclass(frozen=True)
class Wiring:
    """A checked graph."""

    nodes: dict[int, WiredOperator]
    """The operators that the graph's outputs need, by number, in an order in which they can run."""
    constants: dict[int, bytes]
    outputs: list[Source]
    """The source of each output of the graph."""
    input_paths: list[str]
    """The names of the graph's inputs in messages."""
    output_paths: list[str]


def check(device: Device, desc: GraphDesc) -> Wiring:
    """The graph of ``desc``. Raises ValidationError or UnsupportedError if it is not valid."""
    return _Checker(device, desc).check()


class _Checker:
    def __init__(self, device: Device, desc: GraphDesc) -> None:
        expect(isinstance(desc, GraphDesc), "compile_graph", "desc", "be a GraphDesc", repr(desc))
        _expect_level(device, FeatureLevel.FL_2_1, "graphs need")
        self._device = device
        self._desc = desc
        for field, name in (("nodes", "Nodes"), *((f, n) for f, (n, _) in _EDGES.items())):
            value = getattr(desc, field)
            expect(isinstance(value, Sequence), _GRAPH, name, "be a list", repr(value))
        self._input_count = _count("InputCount", desc.input_count, 0)
        self._output_count = _count("OutputCount", desc.output_count, 1)
        self._input_paths = [f"input {i}" for i in range(self._input_count)]
        self._output_paths = [f"output {i}" for i in range(self._output_count)]
        self._nodes: dict[int, WiredOperator] = {}
        self._constants: dict[int, bytes] = {}

    def check(self) -> Wiring:
        for i, described in enumerate(self._desc.nodes):
            self._add_node(i, described)
        for name, (field, kind) in _EDGES.items():
            for i, edge in enumerate(getattr(self._desc, name)):
                expect(isinstance(edge, kind), _GRAPH, f"{field}[{i}]", f"be a {kind.__name__}",
                       repr(edge))
        owned: dict[int, tuple[str, bool]] = {}
        for i, edge in enumerate(self._desc.input_edges):
            self._add_input_edge(f"InputEdges[{i}]", edge, owned)
        for i, link in enumerate(self._desc.intermediate_edges):
            self._add_intermediate_edge(f"IntermediateEdges[{i}]", link)
        outputs = self._output_sources()
        for number, node in self._nodes.items():
            for tensor, source in zip(node.inputs, node.sources):
                expect(tensor.desc is None or source is not None, _GRAPH,
                       f"{self._name(number)}.{tensor.path}", "be the end of an edge", "none")
        order = self._order()
        needed = self._needed(outputs)
        return Wiring({n: self._nodes[n] for n in order if n in needed}, self._constants, outputs,
                      self._input_paths, self._output_paths)

    def _add_node(self, number: int, node: Any) -> None:
        path = f"Nodes[{number}]"
        if isinstance(node, OperatorGraphNodeDesc):
            expect(isinstance(node.operator, Operator), _GRAPH, f"{path}.Operator",
                   "be an Operator", repr(node.operator))
            expect(node.operator.device is self._device, _GRAPH, f"{path}.Operator",
                   f"be of {self._device!r}", f"one of {node.operator.device!r}")
            inputs, outputs = tensors(node.operator)
            self._nodes[number] = WiredOperator(
                node.operator, inputs, outputs, [None] * len(inputs))
            return
        expect(isinstance(node, ConstantDataGraphNodeDesc), _GRAPH, path,
               "be an OperatorGraphNodeDesc or a ConstantDataGraphNodeDesc", repr(node))
        _expect_level(self._device, FeatureLevel.FL_6_2, f"{path}: constant nodes need")
        expect(isinstance(node.data, (bytes, bytearray, memoryview)), _GRAPH, f"{path}.Data",
               "be bytes", repr(node.data))
        data = bytes(node.data)
        expect(data, _GRAPH, f"{path}.DataSize", "be at least 1", 0)
        self._constants[number] = data + bytes(-len(data) % 4)

    def _name(self, number: int) -> str:
        return f"Nodes[{number}]" + _quoted(self._desc.nodes[number].name)

    # Edges

    def _add_input_edge(
        self, path: str, edge: InputGraphEdgeDesc, owned: dict[int, tuple[str, bool]]
    ) -> None:
        index = _index(f"{path}.GraphInputIndex", edge.graph_input_index, self._input_count,
                       "inputs of the graph")
        if edge.name:
            self._input_paths[index] = f"input {index}" + _quoted(edge.name)
        end, desc = self._connect(path, edge, Source(None, index))
        other, flag = owned.setdefault(index, (end, desc.owned_by_dml))
        if flag != desc.owned_by_dml:
            refuse(_GRAPH, f"{end}.Flags",
                   f"equal those of {other}, which has the same graph input {index}",
                   *("OWNED_BY_DML" if f else "NONE" for f in (desc.owned_by_dml, flag)))

    def _add_intermediate_edge(self, path: str, edge: IntermediateGraphEdgeDesc) -> None:
        source, begin, size = self._source(path, edge)
        end, desc = self._connect(path, edge, source)
        expect(size == desc.total_tensor_size_in_bytes, _GRAPH, end,
               f"have as many bytes (TotalTensorSizeInBytes) as {begin}",
               desc.total_tensor_size_in_bytes, size)
        expect(not desc.owned_by_dml, _GRAPH, f"{end}.Flags",
               "be NONE (only what a graph input feeds may be OWNED_BY_DML)", "OWNED_BY_DML")

    def _output_sources(self) -> list[Source]:
        outputs: dict[int, Source] = {}
        for i, edge in enumerate(self._desc.output_edges):
            path = f"OutputEdges[{i}]"
            index = _index(f"{path}.GraphOutputIndex", edge.graph_output_index,
                           self._output_count, "outputs of the graph")
            expect(index not in outputs, _GRAPH, f"{path}.GraphOutputIndex",
                   "be that of no other edge", index)
            self._output_paths[index] = f"output {index}" + _quoted(edge.name)
            outputs[index], begin, _ = self._source(path, edge)
            expect(outputs[index].node not in self._constants, _GRAPH, f"{path}.FromNodeIndex",
                   "be an operator (a copy of a constant takes an IDENTITY)", begin)
        for index in range(self._output_count):
            expect(index in outputs, _GRAPH, f"output {index} of the graph",
                   "be the end of an output edge", "none")
        return [outputs[i] for i in range(self._output_count)]

    def _connect(
        self, path: str, edge: InputGraphEdgeDesc | IntermediateGraphEdgeDesc, source: Source
    ) -> tuple[str, TensorDesc]:
        """Connect an edge to a node's input. Returns that input's path and description."""
        number = self._node_index(f"{path}.ToNodeIndex", edge.to_node_index)
        expect(number in self._nodes, _GRAPH, f"{path}.ToNodeIndex",
               "be an operator (a constant has no inputs)", number)
        node = self._nodes[number]
        slot = _index(f"{path}.ToNodeInputIndex", edge.to_node_input_index, len(node.inputs),
                      f"inputs of {self._name(number)}")
        tensor = node.inputs[slot]
        end = f"{self._name(number)}.{tensor.path}"
        if tensor.desc is None:
            refuse(_GRAPH, f"{path}.ToNodeInputIndex",
                   "be a tensor that the operator has", f"{slot}, the absent {end}")
        expect(node.sources[slot] is None, _GRAPH, f"{path}.ToNodeInputIndex",
               "be an input that no other edge ends at", f"{slot}, which is {end}")
        node.sources[slot] = source
        assert tensor.desc is not None
        return end, tensor.desc

    def _source(
        self, path: str, edge: OutputGraphEdgeDesc | IntermediateGraphEdgeDesc
    ) -> tuple[Source, str, int]:
        """The source of an edge, the path of that tensor, and its bytes."""
        number = self._node_index(f"{path}.FromNodeIndex", edge.from_node_index)
        field, name = f"{path}.FromNodeOutputIndex", self._name(number)
        if number in self._constants:
            slot = _index(field, edge.from_node_output_index, 1, f"outputs of {name}")
            return Source(number, slot), name, len(self._constants[number])
        outputs = self._nodes[number].outputs
        slot = _index(field, edge.from_node_output_index, len(outputs), f"outputs of {name}")
        begin, desc = f"{name}.{outputs[slot].path}", outputs[slot].desc
        if desc is None:
            refuse(_GRAPH, field, "be a tensor that the operator has",
                   f"{slot}, the absent {begin}")
        return Source(number, slot), begin, desc.total_tensor_size_in_bytes

    def _node_index(self, path: str, value: object) -> int:
        return _index(path, value, len(self._desc.nodes), "nodes")

    # Order

    def _order(self) -> list[int]:
        """All operators, each after those it reads from, otherwise by number."""
        sorter = TopologicalSorter({
            number: {s.node for s in node.sources if s is not None and s.node in self._nodes}
            for number, node in self._nodes.items()
        })
        try:
            sorter.prepare()
        except CycleError as error:
            circle = " -> ".join(self._name(n) for n in error.args[1])
            refuse(_GRAPH, "IntermediateEdges", "lead to no node again", circle)
        order: list[int] = []
        ready = sorted(sorter.get_ready())
        while ready:
            order.append(heapq.heappop(ready))
            sorter.done(order[-1])
            for number in sorter.get_ready():
                heapq.heappush(ready, number)
        return order

    def _needed(self, outputs: Sequence[Source]) -> set[int]:
        """The operators that the graph's outputs depend on."""
        needed: set[int] = set()
        stack = [s.node for s in outputs]
        while stack:
            number = stack.pop()
            if number in self._nodes and number not in needed:
                needed.add(number)
                stack += [s.node for s in self._nodes[number].sources if s is not None]
        return needed


def _quoted(name: str) -> str:
    return f" ({name!r})" if name else ""


def _expect_level(device: Device, level: FeatureLevel, what: str) -> None:
    if device.feature_level < level:
        raise UnsupportedError(f"{_GRAPH}: {what} feature level {level}, but the device was "
                               f"created at {device.feature_level}")


def _count(field: str, value: object, least: int) -> int:
    number = whole(_GRAPH, field, value)
    expect(number >= least, _GRAPH, field, f"be at least {least}", number)
    expect(number <= _MOST, _GRAPH, field, f"be at most {_MOST}", number)
    return number


def _index(path: str, value: object, count: int, what: str) -> int:
    number = whole(_GRAPH, path, value)
    expect(0 <= number < count, _GRAPH, path, f"be below {count} (the number of {what})", number)
    return number
