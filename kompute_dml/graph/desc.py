"""DirectML's description of a graph: nodes, and the edges between their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..compiler import Operator


@dataclass(frozen=True)
class OperatorGraphNodeDesc:
    """A node that runs an operator (DML_OPERATOR_GRAPH_NODE_DESC)."""

    operator: Operator
    name: str = ""
    """Used in messages only, as all names of a graph."""


@dataclass(frozen=True)
class ConstantDataGraphNodeDesc:
    """A node whose only output is ``data`` (DML_CONSTANT_DATA_GRAPH_NODE_DESC).

    CompileGraph copies the bytes.
    """

    data: bytes
    name: str = ""


@dataclass(frozen=True)
class InputGraphEdgeDesc:
    """From an input of the graph to an input of a node (DML_INPUT_GRAPH_EDGE_DESC)."""

    graph_input_index: int
    to_node_index: int
    to_node_input_index: int
    name: str = ""


@dataclass(frozen=True)
class OutputGraphEdgeDesc:
    """From an output of a node to an output of the graph (DML_OUTPUT_GRAPH_EDGE_DESC)."""

    from_node_index: int
    from_node_output_index: int
    graph_output_index: int
    name: str = ""


@dataclass(frozen=True)
class IntermediateGraphEdgeDesc:
    """From an output of a node to an input of another (DML_INTERMEDIATE_GRAPH_EDGE_DESC)."""

    from_node_index: int
    from_node_output_index: int
    to_node_index: int
    to_node_input_index: int
    name: str = ""


@dataclass(frozen=True)
class GraphDesc:
    """Operators wired together (DML_GRAPH_DESC).

    Indices of a node's inputs and outputs count the tensors of its description in order, including
    absent ones. Both ends of an intermediate edge have the same TotalTensorSizeInBytes. Their
    types, sizes and strides may differ: the consumer's own description tells how it reads the
    bytes. Nodes that no output of the graph needs are left out.
    """

    input_count: int
    output_count: int
    nodes: Sequence[OperatorGraphNodeDesc | ConstantDataGraphNodeDesc]
    input_edges: Sequence[InputGraphEdgeDesc] = ()
    output_edges: Sequence[OutputGraphEdgeDesc] = ()
    intermediate_edges: Sequence[IntermediateGraphEdgeDesc] = ()
