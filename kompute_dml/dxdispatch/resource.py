"""A model's resources: buffers and where their first contents come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError

import numpy as np

from ..dtypes import DataType
from ..errors import ValidationError
from . import image
from .node import NodeModel
from .operator import read_data_type

_UINT = 2**32 - 1


@dataclass(frozen=True)
class Resource:
    """A buffer and what it holds at first."""

    name: str
    data_type: DataType | None
    """None where the initializer mixes types."""
    values: np.ndarray
    """Contents from ``offset`` on, flat; bytes where types are mixed."""
    offset: int
    size: int
    """Bytes, as the model says or the values need."""
    deferred: bool = False
    """Whether an ONNX model's output sizes and fills it."""


def read_resource(name: str, node: NodeModel, folder: Path) -> Resource:
    node.known(
        "type", "initialValues", "initialValuesDataType", "initialValuesOffsetInBytes",
        "sizeInBytes", "resampleSize", "resampleMode",
    )
    kind = node.get("type")
    if kind is not None and kind.string() != "buffer":
        kind.fail('"buffer"')
    type_node = node.get("initialValuesDataType")
    data_type = None if type_node is None else read_data_type(type_node, unknown=True)
    initial = node.need("initialValues")
    if initial.value == "deferred":
        return Resource(name, data_type, np.zeros(0, np.uint8), 0, 0, deferred=True)
    if isinstance(initial.value, list):
        values = _mixed(initial) if data_type is None else initial.array(data_type)
    elif isinstance(initial.value, dict):
        if initial.has("sourcePath"):
            path = find_file(initial.known("sourcePath").need("sourcePath"), folder)
            if path.suffix.lower() in image.SUFFIXES:
                values = _image(node, path, data_type)
            else:
                values = _file(initial, path, data_type)
            data_type = DataType.of(values.dtype)
        elif data_type is None:
            raise node.error("field 'initialValuesDataType' is required")
        else:
            values = _generated(initial, data_type)
    else:
        initial.fail("an array, an object or \"deferred\"")
    if not values.size:
        initial.fail("at least one value")

    offset_node, size_node = node.get("initialValuesOffsetInBytes"), node.get("sizeInBytes")
    offset = 0 if offset_node is None else offset_node.integer()
    size = offset + values.nbytes
    if size_node is not None:
        declared = size_node.integer(1)
        if declared < size:
            raise size_node.error(
                f"expected at least {size} bytes ({values.nbytes} of initialValues at offset "
                f"{offset}), but got {declared}"
            )
        size = declared
    return Resource(name, data_type, values, offset, size)


def _mixed(node: NodeModel) -> np.ndarray:
    parts = []
    for item in node.items():
        item.known("name", "type", "value")
        data_type = read_data_type(item.need("type"))
        parts.append(item.need("value").scalar(data_type).tobytes())
    return np.frombuffer(b"".join(parts), np.uint8)


def _generated(node: NodeModel, data_type: DataType) -> np.ndarray:
    if node.has("value"):
        node.known("valueCount", "value")
        count = node.need("valueCount").integer(1, _UINT)
        return np.full(count, node.need("value").scalar(data_type))
    if node.has("valueStart"):
        node.known("valueCount", "valueStart", "valueDelta")
        steps = np.full(
            node.need("valueCount").integer(1, _UINT), node.need("valueDelta").scalar(data_type)
        )
        steps[0] = node.need("valueStart").scalar(data_type)
        # Summed one by one in the data type itself, as DxDispatch does.
        with np.errstate(over="ignore", invalid="ignore"):
            return np.add.accumulate(steps, dtype=data_type.dtype)
    raise node.error("expected one of the fields value, valueStart or sourcePath")


def find_file(node: NodeModel, folder: Path) -> Path:
    """The file that ``node`` names, beside the model or in the current directory."""
    name = node.string()
    for path in (folder / name, Path(name)):
        if path.is_file():
            return path
    raise node.error(f"no file {name!r} in {folder.resolve()} or in the current directory")


def _image(node: NodeModel, path: Path, data_type: DataType | None) -> np.ndarray:
    size, mode = node.get("resampleSize"), node.get("resampleMode")
    if mode is not None and mode.string() != "scale":
        mode.fail('"scale"')
    sizes = [] if size is None else [n.integer(1, _UINT) for n in size.items()]
    if data_type is None:
        raise node.error("an image needs initialValuesDataType, which is not given")
    try:
        return image.decode(path, data_type, sizes)
    except ValidationError as error:
        raise node.error(str(error)) from None


def _file(node: NodeModel, path: Path, data_type: DataType | None) -> np.ndarray:
    if path.suffix.lower() == ".npy":
        try:
            with path.open("rb") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
        except (ValueError, SyntaxError, OverflowError, TokenError) as error:  # of its header
            raise node.error(f"{path} is not a .npy file: {error}") from None
        if array.dtype == np.bool_:
            array = array.astype(np.uint8)
        try:
            own = DataType.of(array.dtype.newbyteorder("="))
        except ValidationError:
            raise node.error(f"{path} holds {array.dtype}, which is no DirectML type") from None
        if data_type not in (None, own):
            raise node.error(
                f"expected the data of {path} to be initialValuesDataType {data_type}, "
                f"but got {own}"
            )
        return np.ascontiguousarray(array, own.dtype).reshape(-1)
    if data_type is None:
        raise node.error("a raw file needs initialValuesDataType, which is not given")
    data = path.read_bytes()
    if len(data) % data_type.itemsize:
        raise node.error(f"expected {path} to hold whole {data_type} values, but got {len(data)} "
                         "bytes")
    return np.frombuffer(data, data_type.dtype)
