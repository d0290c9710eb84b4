"""Models in the wire format of Protocol Buffers: the provider works without the package onnx."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..onnx.graph import DTYPES, OnnxNode, OnnxValue

IR_VERSION = 10
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_FLOAT, _INT, _STRING, _TENSOR, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 4, 6, 7, 8


def number(field: int, value: int) -> bytes:
    """A field of an integer. Negative ones take ten bytes."""
    return _varint(field << 3) + _varint(value & (1 << 64) - 1)


def content(field: int, data: bytes) -> bytes:
    """A field of bytes, a text or a message."""
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def model(
    nodes: Sequence[OnnxNode], inputs: Iterable[OnnxValue], outputs: Iterable[OnnxValue],
    constants: Mapping[str, np.ndarray],
) -> bytes:
    """A model of these nodes. The operator sets are the oldest in which all nodes are as they
    are."""
    graph = b"".join(content(1, _node(n)) for n in nodes) + content(2, b"region")
    graph += b"".join(content(5, _tensor(x, name)) for name, x in constants.items())
    graph += b"".join(content(11, _info(v)) for v in inputs)
    graph += b"".join(content(12, _info(v)) for v in outputs)
    since: dict[str, int] = {"": 1}
    for n in nodes:
        since[n.domain] = max(since.get(n.domain, 1), n.since)
    return number(1, IR_VERSION) + content(7, graph) + b"".join(
        content(8, content(1, domain.encode()) + number(2, version))
        for domain, version in since.items())


def _node(node: OnnxNode) -> bytes:
    names = [[b"" if v is None else v.name.encode() for v in values]
             for values in (node.inputs, node.outputs)]
    text = b"".join(content(field, name) for field, listed in zip((1, 2), names) for name in listed)
    text += content(3, node.name.encode()) + content(4, node.op.encode())
    text += b"".join(content(5, _attribute(*a)) for a in node.attributes.items())
    return text + content(7, node.domain.encode())


def _attribute(name: str, value: Any) -> bytes:
    text = content(1, name.encode())
    if isinstance(value, np.ndarray):
        return text + content(5, _tensor(value, "")) + number(20, _TENSOR)
    if isinstance(value, str):
        return text + content(4, value.encode()) + number(20, _STRING)
    if isinstance(value, float):
        return text + _float(2, value) + number(20, _FLOAT)
    if isinstance(value, int):
        return text + number(3, value) + number(20, _INT)
    if any(isinstance(x, str) for x in value):
        return text + b"".join(content(9, x.encode()) for x in value) + number(20, _STRINGS)
    if any(isinstance(x, float) for x in value):
        return text + b"".join(_float(7, x) for x in value) + number(20, _FLOATS)
    return text + b"".join(number(8, x) for x in value) + number(20, _INTS)


def _tensor(x: np.ndarray, name: str) -> bytes:
    return b"".join(number(1, n) for n in x.shape) + number(2, _CODES[x.dtype]) + content(
        8, name.encode()) + content(9, x.tobytes())


def _info(value: OnnxValue) -> bytes:
    """Without sizes. ONNX Runtime infers what is not known."""
    text = content(1, value.name.encode())
    return text if value.dtype is None else text + content(
        2, content(1, number(1, _CODES[value.dtype])))


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])
