"""What a model file says, checked against the specification. Needs no device.

The format is DxDispatch's: a root object with ``resources`` (buffers and their contents),
``dispatchables`` (operators) and ``commands``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import spec
from ..desc import TensorDesc, TensorFlags
from ..dtypes import DataType
from ..errors import ValidationError
from . import jsonc
from .node import Node, closest

_UINT = 2**32 - 1
_RANGES = {"INT": (-(2**31), 2**31 - 1), "UINT": (0, _UINT), "UINT64": (0, 2**64 - 1)}
_IMAGES = (".jpg", ".jpeg", ".png")
_FOREIGN_KINDS = {
    "hlsl": "an HLSL shader",
    "onnx": "an ONNX model",
    "dmlserializedgraph": "a serialized DirectML graph",
}


class Size2D(NamedTuple):
    """DML_SIZE_2D."""

    width: int
    height: int


class ScaleBias(NamedTuple):
    """DML_SCALE_BIAS."""

    scale: float
    bias: float


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
    unsupported: str = ""
    """Why this package cannot make it, in words; empty where it can."""


@dataclass(frozen=True)
class Operator:
    """An operator's structure: any of DirectML's, implemented here or not."""

    name: str
    fields: Mapping[str, Any]
    """By name in snake case. Tensors are TensorDesc; nested operators are Operator."""

    @property
    def spec(self) -> spec.OperatorSpec:
        return spec.operator(self.name)


@dataclass(frozen=True)
class Binding:
    """A range of a resource; what is None follows from the resource."""

    resource: str
    element_offset: int = 0
    element_count: int | None = None
    element_size: int | None = None


Bindings = Mapping[str, tuple[Binding, ...]]


@dataclass(frozen=True)
class Dispatchable:
    """Something to execute."""

    name: str
    operator: Operator | None
    bindings: Bindings = field(default_factory=dict)
    """What initialization gets: inputs that are OWNED_BY_DML."""
    unsupported: str = ""
    """Why this package cannot run it, in words; empty where it can."""


@dataclass(frozen=True)
class Dispatch:
    dispatchable: str
    bindings: Bindings


@dataclass(frozen=True)
class Print:
    resource: str
    verbose: bool


@dataclass(frozen=True)
class WriteFile:
    resource: str
    path: str
    dimensions: tuple[int, ...]


Command = Dispatch | Print | WriteFile


@dataclass(frozen=True)
class Model:
    """A model file."""

    resources: Mapping[str, Resource]
    dispatchables: Mapping[str, Dispatchable]
    commands: tuple[Command, ...]


def load(path: str | os.PathLike[str]) -> Model:
    """Read a model file. Raises ValidationError with the place of what is wrong."""
    file = Path(path)
    try:
        text = file.read_text("utf-8-sig")
    except OSError as error:
        raise ValidationError(f"{file}: cannot read the model: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValidationError(f"{file}: expected JSON in UTF-8, but got other bytes") from None
    return parse(text, str(file), file.parent)


def parse(text: str, source: str = "model", folder: Path = Path()) -> Model:
    """Read a model from text; ``folder`` is where its files are looked for first."""
    root = Node(jsonc.parse(text, source), source)
    root.known("resources", "dispatchables", "commands")
    resources = {n: _resource(n, node, folder) for n, node in root.need("resources").members()}
    dispatchables = {
        n: _dispatchable(n, node, resources) for n, node in root.need("dispatchables").members()
    }
    commands = tuple(
        _command(node, resources, dispatchables) for node in root.need("commands").items()
    )
    return Model(resources, dispatchables, commands)


# -- resources


def _resource(name: str, node: Node, folder: Path) -> Resource:
    node.known(
        "type", "initialValues", "initialValuesDataType", "initialValuesOffsetInBytes",
        "sizeInBytes", "resampleSize", "resampleMode",
    )
    kind = node.get("type")
    if kind is not None and kind.string() != "buffer":
        kind.fail('"buffer"')
    type_node = node.get("initialValuesDataType")
    data_type = None if type_node is None else _data_type(type_node, unknown=True)
    initial = node.need("initialValues")
    if initial.value == "deferred":
        return Resource(name, data_type, np.zeros(0, np.uint8), 0, 0,
                        "is sized while an ONNX model runs, which no operator does")
    if isinstance(initial.value, list):
        values = _mixed(initial) if data_type is None else initial.array(data_type)
    elif isinstance(initial.value, dict):
        if initial.has("sourcePath"):
            path = _find(initial.known("sourcePath").need("sourcePath"), folder)
            if path.suffix.lower() in _IMAGES:
                return Resource(name, data_type, np.zeros(0, np.uint8), 0, 0,
                                f"is read from the image {path.name}, and images are not decoded; "
                                "convert it to .npy first")
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


def _mixed(node: Node) -> np.ndarray:
    parts = []
    for item in node.items():
        item.known("name", "type", "value")
        data_type = _data_type(item.need("type"))
        parts.append(item.need("value").scalar(data_type).tobytes())
    return np.frombuffer(b"".join(parts), np.uint8)


def _generated(node: Node, data_type: DataType) -> np.ndarray:
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


def _find(node: Node, folder: Path) -> Path:
    name = node.string()
    for path in (folder / name, Path(name)):
        if path.is_file():
            return path
    raise node.error(f"no file {name!r} in {folder.resolve()} or in the current directory")


def _file(node: Node, path: Path, data_type: DataType | None) -> np.ndarray:
    if path.suffix.lower() == ".npy":
        try:
            array = np.load(path, allow_pickle=False)
        except (ValueError, OSError) as error:
            raise node.error(f"{path} is not a .npy file: {error}") from None
        if array.dtype == np.bool_:
            array = array.astype(np.uint8)
        try:
            found = DataType.of(array.dtype.newbyteorder("="))
        except ValidationError:
            raise node.error(f"{path} holds {array.dtype}, which is no DirectML type") from None
        if data_type not in (None, found):
            raise node.error(
                f"expected the data of {path} to be initialValuesDataType {data_type}, "
                f"but got {found}"
            )
        return np.ascontiguousarray(array, found.dtype).reshape(-1)
    if data_type is None:
        raise node.error("a raw file needs initialValuesDataType, which is not given")
    data = path.read_bytes()
    if len(data) % data_type.itemsize:
        raise node.error(f"expected {path} to hold whole {data_type} values, but got {len(data)} "
                         "bytes")
    return np.frombuffer(data, data_type.dtype)


# -- dispatchables


def _dispatchable(name: str, node: Node, resources: Mapping[str, Resource]) -> Dispatchable:
    kind = node.need("type", "Type")
    foreign = _FOREIGN_KINDS.get(kind.string().lower())
    if foreign:
        return Dispatchable(name, None, unsupported=f"is {foreign}, which is not supported: only "
                                                    "DirectML operators are")
    operator = _operator(node, also=("dmlCompileType", "executionFlags", "bindings"))
    compile_type = node.get("dmlCompileType")
    if compile_type is not None and compile_type.value not in ("DmlCompileOp", "DmlCompileGraph"):
        compile_type.fail("DmlCompileOp or DmlCompileGraph")
    execution_flags = node.get("executionFlags")
    if execution_flags is not None:
        _flags(execution_flags, "DML_EXECUTION_FLAGS")
    bindings = node.get("bindings")
    return Dispatchable(
        name, operator, {} if bindings is None else _bindings(bindings, operator, resources)
    )


def _operator(node: Node, also: tuple[str, ...] = (), fused: bool = False) -> Operator:
    type_node = node.need("Type", "type")
    name = "DML_OPERATOR_" + type_node.string().removeprefix("DML_OPERATOR_")
    if name not in spec.operator_names():
        raise type_node.error(f"{type_node.value!r} is none of DirectML's operators"
                              f"{closest(name, spec.operator_names())}")
    entry = spec.operator(name)
    known = tuple(f.name for f in entry.fields)
    desc = node.get("Desc", "desc")
    if desc is None:
        desc = node.known("type", "Type", *also, *known)
    else:
        node.known("type", "Type", "desc", "Desc", *also)
        desc.known(*known)
    return Operator(name, {f.snake: _field(desc, entry, f, fused) for f in entry.fields})


def _count_fields(operator: str) -> dict[str, str]:
    """Array field -> the field that holds its length."""
    return {
        f["name"]: f["count_field"]
        for f in spec.document()["operators"][operator]["fields"]
        if "count_field" in f
    }


def _field(desc: Node, entry: spec.OperatorSpec, f: spec.Field, fused: bool) -> Any:
    if f.is_tensor and fused:
        return None  # the operator that it is fused into has the tensors
    counts = _count_fields(entry.name)
    node = desc.get(f.name)
    if node is None and f.name in counts.values():
        arrays = [desc.get(array) for array, count in counts.items() if count == f.name]
        lengths = [len(array.items()) for array in arrays if array is not None]
        if lengths:
            return lengths[0]
    if node is None:
        if not f.optional:
            raise desc.error(f"field {f.name!r} is required by {entry.name}")
        return None
    value = _attribute(node, desc, entry, f)
    count = desc.get(counts.get(f.name, ""))
    if count is not None and count.integer() != len(value):
        raise count.error(f"expected {count.value} entries in {f.name}, but got {len(value)}")
    return value


def _attribute(node: Node, desc: Node, entry: spec.OperatorSpec, f: spec.Field) -> Any:
    if f.type == "TENSOR_DESC":
        return _tensor(node)
    if f.type == "TENSOR_DESC_ARRAY":
        return tuple(_tensor(item) for item in node.items())
    if f.type == "OPERATOR_DESC":
        return _operator(node, fused=True)
    if f.type == "OPERATOR_DESC_ARRAY":
        return tuple(_operator(item, fused=True) for item in node.items())
    if f.enum == "DML_TENSOR_DATA_TYPE":
        return _data_type(node)
    if f.enum is not None:
        return _enum(node, f.enum)
    if f.type in ("UINT", "BOOL") and isinstance(node.value, bool):
        return int(node.value)  # the specification spells some of DirectML's BOOLs as UINT
    if f.type == "BOOL":
        return node.integer(0, 1)
    if f.type in _RANGES:
        return node.integer(*_RANGES[f.type])
    if f.type.removesuffix("_ARRAY") in _RANGES:
        return tuple(i.integer(*_RANGES[f.type.removesuffix("_ARRAY")]) for i in node.items())
    if f.type == "FLOAT":
        return float(node.scalar(DataType.FLOAT32))
    if f.type == "FLOAT_ARRAY":
        return tuple(float(v) for v in node.array(DataType.FLOAT32))
    if f.type == "SIZE_2D":
        node.known("Width", "Height")
        return Size2D(*(node.need(n).integer(0, _UINT) for n in ("Width", "Height")))
    if f.type == "SCALE_BIAS":
        node.known("Scale", "Bias")
        return ScaleBias(*(float(node.need(n).scalar(DataType.FLOAT32))
                           for n in ("Scale", "Bias")))
    if f.type == "SCALAR_UNION":
        type_field = next(g for g in entry.fields if g.enum == "DML_TENSOR_DATA_TYPE")
        return _scalar_union(node, _data_type(desc.need(type_field.name)))
    raise NotImplementedError(f"{entry.name}.{f.name} has type {f.type}")


def _scalar_union(node: Node, data_type: DataType) -> Any:
    """A number, or DML_SCALAR_UNION's member of the type: ``{"Int32": 5}``."""
    if not isinstance(node.value, dict):
        return node.scalar(data_type)
    if data_type is DataType.FLOAT16:  # the union has no half: its bits stand in UInt16
        bits = node.known("UInt16").need("UInt16").scalar(DataType.UINT16)
        return bits.view(np.float16)
    member = data_type.name.capitalize().replace("Uint", "UInt")
    return node.known(member).need(member).scalar(data_type)


def _tensor(node: Node) -> TensorDesc:
    fields = ("DataType", "Flags", "DimensionCount", "Sizes", "Strides",
              "TotalTensorSizeInBytes", "GuaranteedBaseOffsetAlignment")
    kind = node.get("Type")
    if kind is not None:
        _enum(kind, "DML_TENSOR_TYPE")
    desc = node.get("Desc")
    if desc is None:
        desc = node.known("Type", *fields)
    else:
        node.known("Type", "Desc")
        desc.known(*fields)
    data_type = _data_type(desc.need("DataType"))
    sizes = [n.integer(0, _UINT) for n in desc.need("Sizes").items()]
    strides, count = desc.get("Strides"), desc.get("DimensionCount")
    flags, total = desc.get("Flags"), desc.get("TotalTensorSizeInBytes")
    alignment = desc.get("GuaranteedBaseOffsetAlignment")
    if count is not None and count.integer() != len(sizes):
        raise count.error(f"expected {count.value} entries in Sizes, but got {len(sizes)}")
    try:
        return TensorDesc(
            data_type,
            tuple(sizes),
            tuple(n.integer(0, _UINT) for n in strides.items()) or None if strides else None,  # type: ignore[arg-type]
            TensorFlags.NONE if flags is None else TensorFlags(_flags(flags, "DML_TENSOR_FLAGS")),
            (total.integer() or None) if total else None,  # type: ignore[arg-type]
            0 if alignment is None else alignment.integer(0, _UINT),
        )
    except ValidationError as error:
        raise desc.error(str(error)) from None


def _enum(node: Node, enum: str) -> int:
    """A value of a DirectML enumeration, by its full name or without its prefix."""
    values: dict[str, int] = spec.document()["enums"][enum]
    prefix = enum.removesuffix("S") if enum.endswith("FLAGS") else enum
    name = node.string()
    for full in (name, f"{prefix}_{name}"):
        if full in values:
            return values[full]
    names = ", ".join(v.removeprefix(prefix + "_") for v in values)
    raise node.error(f"expected {enum} to be one of {names}, but got {name!r}")


def _flags(node: Node, enum: str) -> int:
    if isinstance(node.value, str):
        return _enum(node, enum)
    flags = 0
    for item in node.items():
        flags |= _enum(item, enum)
    return flags


def _data_type(node: Node, unknown: bool = False) -> Any:
    """The data type named; None for UNKNOWN where that is allowed."""
    name = node.string().removeprefix("DML_TENSOR_DATA_TYPE_")
    if name in DataType.__members__:
        return DataType[name]
    if unknown and name == "UNKNOWN":
        return None
    raise node.error(f"expected a data type among {', '.join(DataType.__members__)}, "
                     f"but got {node.value!r}")


# -- commands


def _command(
    node: Node, resources: Mapping[str, Resource], dispatchables: Mapping[str, Dispatchable]
) -> Command:
    kind = node.need("type")
    match kind.string().lower():
        case "dispatch":
            node.known("type", "dispatchable", "bindings", "threadGroupCount")
            target = dispatchables[_reference(node.need("dispatchable"), dispatchables,
                                              "dispatchable")]
            return Dispatch(
                target.name, _bindings(node.need("bindings"), target.operator, resources)
            )
        case "print":
            node.known("type", "resource", "verbose")
            verbose = node.get("verbose")
            return Print(_typed_resource(node, resources),
                         False if verbose is None else verbose.boolean())
        case "writefile":
            node.known("type", "resource", "targetPath", "dimensions")
            dimensions, path = node.get("dimensions"), node.need("targetPath").string()
            name = _reference(node.need("resource"), resources, "resource")
            if path.lower().endswith(".npy"):
                _typed_resource(node, resources)
            return WriteFile(name, path, () if dimensions is None else tuple(
                n.integer(1, _UINT) for n in dimensions.items()))
    kind.fail('"dispatch", "print" or "writeFile"')


def _reference(node: Node, known: Mapping[str, Any], what: str) -> str:
    name = node.string()
    if name not in known:
        raise node.error(f"the model has no {what} {name!r}{closest(name, known)}")
    return name


def _typed_resource(node: Node, resources: Mapping[str, Resource]) -> str:
    name = _reference(node.need("resource"), resources, "resource")
    if resources[name].data_type is None:
        raise node.error(f"resource {name!r} has initialValuesDataType UNKNOWN, so its values "
                         "have no one type to show them in")
    return name


def _bindings(
    node: Node, operator: Operator | None, resources: Mapping[str, Resource]
) -> dict[str, tuple[Binding, ...]]:
    result = {}
    for name, target in node.members():
        sources = target.items() if isinstance(target.value, list) else [target]
        result[name] = tuple(_binding(source, resources) for source in sources)
        if operator is not None:
            _check_bind_point(target, name, len(sources), operator)
    return result


def _check_bind_point(node: Node, name: str, bound: int, operator: Operator) -> None:
    fields = {f.name: f for f in operator.spec.tensors}
    if name not in fields:
        raise node.error(f"{operator.name} has no tensor {name!r}{closest(name, fields)}; it has "
                         f"{', '.join(fields)}")
    described = operator.fields[fields[name].snake]
    needed = len(described) if isinstance(described, tuple) else int(described is not None)
    if needed != bound:
        raise node.error(f"expected {needed} resources for {name} (as many tensors as the desc "
                         f"has), but got {bound}")


def _binding(node: Node, resources: Mapping[str, Resource]) -> Binding:
    if isinstance(node.value, str):
        return Binding(_reference(node, resources, "resource"))
    # format, counter and shape are for HLSL and ONNX; DirectML operators take no notice of them.
    node.known("name", "elementCount", "elementSizeInBytes", "elementStride", "elementOffset",
               "format", "counter", "counterOffsetBytes", "shape")
    offset, count = node.get("elementOffset"), node.get("elementCount")
    size = node.get("elementSizeInBytes", "elementStride")
    return Binding(
        _reference(node.need("name"), resources, "resource"),
        0 if offset is None else offset.integer(),
        None if count is None else count.integer(1),
        None if size is None else size.integer(1),
    )
