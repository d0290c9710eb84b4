"""Serialized graphs of DirectML as ONNX Runtime writes them, for the tests."""

from __future__ import annotations

import struct
from typing import Any

from flatbuffers import Builder

_UINT, _FLOAT, _ACTIVATION, _UNION = 3, 6, 1, 12


class Attribute:
    """A value of a kind of the schema: ``Attribute(_FLOAT, 0.5)``."""

    def __init__(self, kind: int, value: Any) -> None:
        self.kind, self.value = kind, value


def uint(value: int) -> Attribute:
    return Attribute(_UINT, struct.pack("<I", value))


def number(value: float) -> Attribute:
    return Attribute(_FLOAT, struct.pack("<f", value))


def union(value: bytes) -> Attribute:
    return Attribute(_UNION, value.ljust(8, b"\0"))


def activation(name: str, *attributes: Attribute) -> Attribute:
    return Attribute(_ACTIVATION, (name, attributes))


class Writer:
    """Builds the nodes of a graph, then its bytes."""

    def __init__(self) -> None:
        self._b = Builder(1024)
        self._nodes: list[int] = []

    def constant(self, edge: str, *, name: str = "", data: bytes = b"") -> None:
        """Of a file by its name, or of bytes."""
        what = (self._table([("o", self._b.CreateString(name))]) if name
                else self._table([("o", self._b.CreateByteVector(data))]))
        desc = self._table([("b", 1 if name else 2), ("o", what)])
        self._node(2, desc, [], [edge])

    def operator(self, name: str, inputs: dict[str, Any], outputs: dict[str, Any],
                 attributes: list[Attribute | None]) -> None:
        """``inputs`` and ``outputs``: edges and (data type, sizes); '' is an absent tensor."""
        sides = [self._vector([self._tensor(*each) for edge, each in side.items() if edge])
                 for side in (inputs, outputs)]
        desc = self._table([("o", self._b.CreateString(name)), *(("o", side) for side in sides),
                            ("o", self._vector([self._attribute(a) for a in attributes]))])
        self._node(1, desc, list(inputs), list(outputs))

    def done(self, inputs: list[str], outputs: list[str]) -> bytes:
        root = self._table([("o", self._vector(self._nodes)), ("o", self._strings(inputs)),
                            ("o", self._strings(outputs))])
        self._b.Finish(root)
        return bytes(self._b.Output())

    def _node(self, kind: int, desc: int, inputs: list[str], outputs: list[str]) -> None:
        self._nodes.append(self._table([
            ("b", kind), ("o", desc), ("o", self._b.CreateString(f"node{len(self._nodes)}")),
            ("o", self._strings(inputs)), ("o", self._strings(outputs))]))

    def _tensor(self, data_type: str, sizes: list[int]) -> int:
        return self._table([
            ("o", self._b.CreateString(f"DML_TENSOR_DATA_TYPE_{data_type}")),
            ("o", self._numbers(sizes))])

    def _attribute(self, attribute: Attribute | None) -> int:
        if attribute is None:
            return self._table([])
        if attribute.kind == _ACTIVATION:
            name, given = attribute.value
            value = self._table([("o", self._b.CreateString(name)),
                                 ("o", self._vector([self._attribute(a) for a in given]))])
        elif attribute.kind == _UNION:
            value = self._table([("b", 1), ("o", self._struct(attribute.value))])
        else:
            value = self._struct(attribute.value)
        return self._table([("o", self._b.CreateString("")), ("b", attribute.kind), ("o", value)])

    def _struct(self, data: bytes) -> int:
        self._b.Prep(len(data), 0)
        for byte in reversed(data):
            self._b.PrependByte(byte)
        return self._b.Offset()

    def _numbers(self, values: list[int]) -> int:
        self._b.StartVector(4, len(values), 4)
        for value in reversed(values):
            self._b.PrependUint32(value)
        return self._b.EndVector()

    def _strings(self, values: list[str]) -> int:
        return self._vector([self._b.CreateString(value) for value in values])

    def _vector(self, offsets: list[int]) -> int:
        self._b.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._b.PrependUOffsetTRelative(offset)
        return self._b.EndVector()

    def _table(self, fields: list[tuple[str, int]]) -> int:
        self._b.StartObject(len(fields))
        for slot, (kind, value) in enumerate(fields):
            if kind == "b":
                self._b.PrependByteSlot(slot, value, 0)
            else:
                self._b.PrependUOffsetTRelativeSlot(slot, value, 0)
        return self._b.EndObject()
