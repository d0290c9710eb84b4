"""Graphs of DirectML that ONNX Runtime serialized: FlatBuffers of operators, edges by name.

ONNX Runtime writes them where the session option ``ep.dml.enable_graph_serialization`` is 1. The
schema is DmlGraphDesc; numbers below are its fields' places and its unions' members.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import spec
from ..attributes import ScaleBias, Size2d
from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import UnsupportedError, ValidationError
from .operator import OperatorModel

_OPERATOR, _CONSTANT = 1, 2
_BY_NAME, _RAW = 1, 2
_ACTIVATION, _ACTIVATIONS, _UNION = 1, 2, 12
_STRUCTS = {3: "<I", 4: "<Q", 5: "<i", 6: "<f", 10: "<ff", 11: "<II", 13: "<?"}
_ARRAYS = {7: "u4", 8: "i4", 9: "f4"}


@dataclass(frozen=True)
class SerializedNode:
    """An operator or a constant, and the names of its edges: empty where a tensor is absent."""

    name: str
    what: OperatorModel | bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class SerializedGraph:
    nodes: tuple[SerializedNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def load(path: Path) -> SerializedGraph:
    """Read a graph; constants that it only names are the files NAME.bin beside it."""
    try:
        from flatbuffers.table import Table
    except ModuleNotFoundError:
        raise UnsupportedError(
            "flatbuffers is needed for serialized graphs: pip install flatbuffers"
        ) from None
    data = path.read_bytes()
    try:
        root = _Table(Table(data, struct.unpack_from("<I", data)[0]))
        nodes = tuple(_node(node, path.parent) for node in root.tables(0))
        return SerializedGraph(nodes, root.strings(1), root.strings(2))
    except (struct.error, IndexError, UnicodeDecodeError, ValueError, TypeError, KeyError,
            OverflowError) as error:
        raise ValidationError(f"{path} is no serialized graph that can be read: {error}") from None


def _node(node: _Table, folder: Path) -> SerializedNode:
    name, (kind, desc) = node.string(2), node.union(0)
    if kind == _CONSTANT:
        stored, constant = desc.union(0)
        if stored == _RAW:
            what: OperatorModel | bytes = constant.array(0, "u1").tobytes()
        elif stored == _BY_NAME:
            file = folder / f"{constant.string(0)}.bin"
            try:
                what = file.read_bytes()
            except OSError as error:
                raise ValueError(f"cannot read its constant {file}: {error.strerror}") from None
        else:
            raise ValueError(f"the constant {name!r} has no data")
    elif kind == _OPERATOR:
        what = _operator(desc, node.strings(3), node.strings(4))
    else:
        raise ValueError(f"the node {name!r} is neither an operator nor a constant")
    return SerializedNode(name, what, node.strings(3), node.strings(4))


def _operator(node: _Table, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> OperatorModel:
    """Absent tensors have an empty edge name and no description; attributes stand in order."""
    name = node.string(0)
    if name not in spec.operator_names():
        raise ValueError(f"{name!r} is none of DirectML's operators")
    sides = {"input": (iter(inputs), iter(node.tables(1))),
             "output": (iter(outputs), iter(node.tables(2)))}
    attributes = iter(node.tables(3))
    fields: dict[str, Any] = {}
    for f in spec.operator(name).fields:
        if f.is_tensor and f.is_array:
            fields[f.snake] = tuple(map(_tensor, sides[f.kind][1]))
        elif f.is_tensor:
            edges, descs = sides[f.kind]
            fields[f.snake] = _tensor(next(descs)) if next(edges, "") else None
        else:
            fields[f.snake] = _attribute(next(attributes, None), f, fields)
    return OperatorModel(name, fields)


def _activation(node: _Table) -> OperatorModel:
    name, attributes = node.string(0), iter(node.tables(1))
    return OperatorModel(name, {
        f.snake: None if f.is_tensor else _attribute(next(attributes, None), f, {})
        for f in spec.operator(name).fields})


def _tensor(node: _Table) -> TensorDesc:
    data_type = DataType[node.string(0).removeprefix("DML_TENSOR_DATA_TYPE_")]
    sizes, strides = (tuple(map(int, node.array(field, "u4"))) for field in (1, 2))
    # DirectML's zeros are the defaults.
    optional: dict[str, Any] = {"strides": strides,
                                "total_tensor_size_in_bytes": int(node.number(3, "<Q"))}
    return TensorDesc(data_type, sizes, **{n: v for n, v in optional.items() if v})


def _attribute(node: _Table | None, f: spec.Field, fields: dict[str, Any]) -> Any:
    kind, value = (0, None) if node is None else node.union(1)
    if not kind or value is None:
        return None
    if kind == _ACTIVATION:
        return _activation(value)
    if kind == _ACTIVATIONS:
        return tuple(map(_activation, value.tables(0)))
    if kind == _UNION:
        # DML_SCALAR_UNION's bytes; the type stands in the attribute before it.
        chosen = next(v for v in fields.values() if isinstance(v, DataType))
        return np.frombuffer(value.union(0)[1].bytes(8), chosen.dtype, 1)[0]
    if kind in _ARRAYS:
        return tuple(value.array(0, _ARRAYS[kind]).tolist())
    parts = value.struct(_STRUCTS[kind])
    if f.enum == "DML_TENSOR_DATA_TYPE":
        return DataType(parts[0])
    struct = {"SCALE_BIAS": ScaleBias, "SIZE_2D": Size2d}.get(f.type)
    return struct(*parts) if struct else parts[0]


class _Table:
    """A table of FlatBuffers whose fields are read by their number in the schema."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def _at(self, field: int) -> int:
        """Where a field's value is; 0 where it is absent."""
        offset = self._table.Offset(4 + 2 * field)
        return self._table.Pos + offset if offset else 0

    def number(self, field: int, form: str) -> Any:
        at = self._at(field)
        return struct.unpack_from(form, self._table.Bytes, at)[0] if at else 0

    def string(self, field: int) -> str:
        at = self._at(field)
        return str(self._table.String(at).decode()) if at else ""

    def array(self, field: int, dtype: str) -> np.ndarray:
        at = self._at(field)
        if not at:
            return np.zeros(0, dtype)
        start = self._table.Indirect(at)
        count = struct.unpack_from("<I", self._table.Bytes, start)[0]
        return np.frombuffer(self._table.Bytes, np.dtype(dtype).newbyteorder("<"), count, start + 4)

    def _elements(self, field: int) -> Iterator[int]:
        at = self._at(field)
        if at:
            start = self._table.Indirect(at)
            count = struct.unpack_from("<I", self._table.Bytes, start)[0]
            yield from range(start + 4, start + 4 + 4 * count, 4)

    def tables(self, field: int) -> tuple[_Table, ...]:
        return tuple(self._new(self._table.Indirect(at)) for at in self._elements(field))

    def strings(self, field: int) -> tuple[str, ...]:
        return tuple(self._table.String(at).decode() for at in self._elements(field))

    def union(self, field: int) -> tuple[int, Any]:
        """The member's number and what it is, of a field and the one after it."""
        kind, at = self.number(field, "<B"), self._at(field + 1)
        return kind, self._new(self._table.Indirect(at)) if at else None

    def struct(self, form: str) -> tuple[Any, ...]:
        return struct.unpack_from(form, self._table.Bytes, self._table.Pos)

    def bytes(self, count: int) -> bytes:
        return bytes(self._table.Bytes[self._table.Pos : self._table.Pos + count])

    @property
    def _new(self) -> Callable[[int], _Table]:
        return lambda at: _Table(type(self._table)(self._table.Bytes, at))
