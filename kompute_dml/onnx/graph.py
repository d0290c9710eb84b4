"""A graph for the mapping, read from ONNX Runtime or from a model file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..layout import product

_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
}
FLOAT8 = np.dtype("V1")
"""FLOAT8E4M3FN, which NumPy lacks: bytes that are no numbers. Few rows understand them."""
DTYPES = {number: np.dtype(name) for number, name in _DTYPES.items()} | {17: FLOAT8}
"""NumPy's data types by TensorProto.DataType, whose numbers ONNX Runtime also uses."""

BFLOAT16 = 16
"""TensorProto.BFLOAT16. Its numbers are computed as FLOAT32, and stored in two bytes outside of
regions."""

Shape = tuple[int | None, ...]


def number_type(code: int) -> np.dtype[Any] | None:
    """NumPy's data type that numbers of a TensorProto.DataType are computed as. None if there is
    none."""
    return np.dtype(np.float32) if code == BFLOAT16 else DTYPES.get(code)


@dataclass(eq=False)
class OnnxValue:
    """A tensor that nodes write and read."""

    name: str
    dtype: np.dtype[Any] | None = None
    """None if it is no tensor, or has a type that NumPy lacks."""
    shape: Shape | None = None
    """None instead of a size, or of the shape, that only a run knows."""
    constant: np.ndarray | None = None
    is_bfloat16: bool = False
    """Whether it is of BFLOAT16. Its ``dtype`` is FLOAT32, and so is its ``constant``."""

    @property
    def nbytes(self) -> int:
        """The bytes of the value. Unknown sizes count as 1."""
        if self.shape is None or self.dtype is None:
            return 0
        return product([1 if n is None else n for n in self.shape]) * self.dtype.itemsize


@dataclass(eq=False)
class Stack(OnnxValue):
    """Constants of equal sizes, which lie one after the other on the device. The first dimension
    counts them. Only a region has their numbers, so ``constant`` is None."""

    members: tuple[OnnxValue, ...] = ()


@dataclass(eq=False)
class OnnxNode:
    """An operator applied to values. Absent optional inputs and outputs are None."""

    op: str
    domain: str
    """Empty for ONNX's own operators."""
    since: int
    """The operator set that introduced this version of the operator."""
    inputs: tuple[OnnxValue | None, ...]
    outputs: tuple[OnnxValue | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    parts: tuple[OnnxNode, ...] = ()
    """The nodes of the original graph that a fused node stands for."""

    @property
    def label(self) -> str:
        return f"{self.domain}.{self.op}" if self.domain else self.op

    @property
    def originals(self) -> tuple[OnnxNode, ...]:
        return self.parts or (self,)

    def input(self, index: int) -> OnnxValue | None:
        return self.inputs[index] if index < len(self.inputs) else None


@dataclass(eq=False)
class OnnxGraph:
    """Nodes in any order. :func:`.fusion.fuse` returns them in an order in which they can run."""

    nodes: list[OnnxNode]
    inputs: list[OnnxValue]
    outputs: list[OnnxValue]

    def __post_init__(self) -> None:
        # Exporters name optional outputs that nothing reads. An operator's first one stays.
        read = {*self.outputs, *uses(self.nodes)}
        for node in self.nodes:
            first, *others = node.outputs or (None,)
            node.outputs = (first, *[v if v in read else None for v in others])


def uses(nodes: Iterable[OnnxNode]) -> dict[OnnxValue, list[OnnxNode]]:
    """The nodes that read each value."""
    result: dict[OnnxValue, list[OnnxNode]] = {}
    for node in nodes:
        for value in node.inputs:
            if value is not None:
                result.setdefault(value, []).append(node)
    return result


def makers(nodes: Iterable[OnnxNode]) -> dict[OnnxValue, OnnxNode]:
    """The node that makes each value."""
    return {value: node for node in nodes for value in node.outputs if value is not None}


def constants(nodes: Iterable[OnnxNode]) -> dict[OnnxValue, np.ndarray]:
    """The constants that nodes read, those of stacks one by one."""
    read = (v for node in nodes for v in node.inputs if v is not None)
    each = (m for v in read for m in (v.members if isinstance(v, Stack) else (v,)))
    return {v: v.constant for v in each if v.constant is not None}


def topological(nodes: Sequence[OnnxNode]) -> list[OnnxNode]:
    """The nodes in an order in which each comes after those that it reads from, otherwise
    unchanged."""
    made_by = makers(nodes)
    done: set[OnnxNode] = set()
    result: list[OnnxNode] = []
    stack = list(reversed(nodes))
    while stack:
        node = stack[-1]
        waits = [
            maker for value in node.inputs
            if value is not None and (maker := made_by.get(value)) is not None
            and maker not in done
        ]
        if node in done or not waits:
            stack.pop()
            if node not in done:
                done.add(node)
                result.append(node)
        else:
            stack.extend(waits)
    return result


def replacing(nodes: Sequence[OnnxNode], replaced: Mapping[OnnxNode, OnnxNode]) -> list[OnnxNode]:
    """The nodes with others in the place of those that are replaced, in topological order."""
    if not replaced:
        return list(nodes)
    return topological(list(dict.fromkeys(replaced.get(n, n) for n in nodes)))
