"""A model's large weights stay in its file: ONNX Runtime maps them into memory as it maps those of
models whose weights lie in files beside them, and does not copy them.

Protocol Buffers' reader copies a file of a gigabyte, and ONNX Runtime copies its weights once more.
So a session of a file is made of the same model, in which each large initializer of the graph says
where in the file its bytes lie (``external_data`` of ONNX's TensorProto).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .protobuf import content, number

if TYPE_CHECKING:
    import onnxruntime

_FOLDER = "session.model_external_initializers_file_folder_path"
"""The option of a session that says where files beside a model of bytes lie."""
_WRITES = "ep.context_enable"
"""The option of a session that writes a model."""
_LEAST_FILE = 16 << 20
"""Smaller files are read whole."""
_LEAST = 64 << 10
"""Smaller weights stay in the model: ONNX Runtime's passes read them."""
_GRAPH, _INITIALIZER = 7, 5
_RAW, _EXTERNAL, _LOCATION = 9, 13, 14
_ELSEWHERE = content(1, b"location")
"""What a tensor has whose bytes lie in another file."""
_VARINT, _LONG, _BYTES, _SHORT = 0, 1, 2, 5


class _Field(NamedTuple):
    """A field of a message, by where it lies in the file."""

    number: int
    kind: int
    begin: int
    """Where its number lies, ..."""
    data: int
    """... its content, ..."""
    end: int
    """... and the next field."""


def model_of(
    model: str | bytes | os.PathLike[str], options: onnxruntime.SessionOptions
) -> str | bytes | os.PathLike[str]:
    """What ONNX Runtime makes a session of, with these options, for the weights of ``model`` to
    stay in its file. The options note the file's folder. ``model`` itself where it is small or not
    a file of ONNX, and where the session writes a model, which would name the file, too."""
    if isinstance(model, bytes) or options.optimized_model_filepath or _writes(options):
        return model
    path = os.path.realpath(model)
    try:
        if os.path.getsize(path) < _LEAST_FILE:
            return model
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            without = _without_weights(data, os.path.basename(path))
    except (OSError, ValueError, IndexError):  # ONNX Runtime says what is wrong with it
        return model
    if without is None:
        return model
    options.add_session_config_entry(_FOLDER, os.path.dirname(path))
    return without


def _writes(options: onnxruntime.SessionOptions) -> bool:
    try:
        return options.get_session_config_entry(_WRITES) == "1"
    except RuntimeError:  # there is no such entry
        return False


def _without_weights(data: mmap.mmap, name: str) -> bytes | None:
    """The model in a file of this name. None where its large weights are not the most of it, and
    where some lie in another file: ONNX Runtime looks for all in one folder."""
    (graph,) = [f for f in _fields(data, 0, len(data)) if f.number == _GRAPH]
    rest: list[tuple[int, int]] = []
    tensors: list[bytes] = []
    done = moved = 0
    for field in _fields(data, graph.data, graph.end):
        if field.number != _INITIALIZER or field.end - field.data < _LEAST:
            continue
        fields = [*_fields(data, field.data, field.end)]
        raw = [f for f in fields if f.number == _RAW]
        if len(raw) == 1 and raw[0].end - raw[0].data >= _LEAST:
            tensors.append(_tensor(data, fields, raw[0], name))
            rest.append((done, field.begin))
            done = field.end
            moved += raw[0].end - raw[0].data
    if moved < len(data) // 2:
        return None
    texts = [data[begin:end] for begin, end in (*rest, (done, len(data)))]
    if any(_ELSEWHERE in text for text in texts):
        return None
    head, texts[0] = texts[0][: graph.begin], texts[0][graph.data :]
    texts[-1], tail = (texts[-1][: graph.end - done], texts[-1][graph.end - done :])
    parts = [texts[0]]
    for tensor, text in zip(tensors, texts[1:]):
        parts += [content(_INITIALIZER, tensor), text]
    return b"".join((head, content(_GRAPH, b"".join(parts)), tail))


def _tensor(data: mmap.mmap, fields: Sequence[_Field], raw: _Field, name: str) -> bytes:
    """An initializer that says where its bytes are."""
    text = b"".join(data[f.begin : f.end] for f in fields if f is not raw)
    place = {"location": name, "offset": raw.data, "length": raw.end - raw.data}
    for key, value in place.items():
        text += content(_EXTERNAL, content(1, key.encode()) + content(2, str(value).encode()))
    return text + number(_LOCATION, 1)


def _fields(data: mmap.mmap, begin: int, end: int) -> Iterator[_Field]:
    """The fields between two places. Raises ValueError or IndexError for what has none."""
    while begin < end:
        tag, at = _varint(data, begin)
        kind = tag & 7
        if kind == _VARINT:
            after = _varint(data, at)[1]
        elif kind == _BYTES:
            length, at = _varint(data, at)
            after = at + length
        elif kind in (_LONG, _SHORT):
            after = at + (8 if kind == _LONG else 4)
        else:
            raise ValueError(f"no kind of field: {kind}")
        if after > end:
            raise ValueError("a field ends after its message")
        yield _Field(tag >> 3, kind, begin, at, after)
        begin = after


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    """A number, and where the next one is."""
    value = data[at]
    at += 1
    if value < 128:
        return value, at
    value &= 127
    shift = 7
    while True:
        part = data[at]
        at += 1
        value |= (part & 127) << shift
        if part < 128:
            return value, at
        shift += 7
