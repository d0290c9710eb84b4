"""A model's operators: DirectML's structures as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import spec
from ..attributes import ScaleBias, Size2d
from ..desc import TensorDesc, TensorFlags
from ..dtypes import DataType
from ..errors import ValidationError
from .node import NodeModel, closest

_UINT = 2**32 - 1
_RANGES = {"INT": (-(2**31), 2**31 - 1), "UINT": (0, _UINT), "UINT64": (0, 2**64 - 1)}


@dataclass(frozen=True)
class OperatorModel:
    """An operator's structure: any of DirectML's, implemented here or not."""

    name: str
    fields: Mapping[str, Any]
    """By name in snake case. Tensors are TensorDesc; nested operators are Operator."""

    @property
    def spec(self) -> spec.OperatorSpec:
        return spec.operator(self.name)


def read_operator(node: NodeModel, also: tuple[str, ...] = (),
                  fused: bool = False) -> OperatorModel:
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
    return OperatorModel(name, {f.snake: _field(desc, entry, f, fused) for f in entry.fields})


def _count_fields(operator: str) -> dict[str, str]:
    """Array field -> the field that holds its length."""
    return {
        f["name"]: f["count_field"]
        for f in spec.document()["operators"][operator]["fields"]
        if "count_field" in f
    }


def _field(desc: NodeModel, entry: spec.OperatorSpec, f: spec.Field, fused: bool) -> Any:
    if fused and (f.is_tensor or f.type.startswith("OPERATOR_DESC")):
        return None  # the operator that it is fused into has the tensors; it fuses none itself
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


def _attribute(node: NodeModel, desc: NodeModel, entry: spec.OperatorSpec, f: spec.Field) -> Any:
    if f.type == "TENSOR_DESC":
        return _tensor(node)
    if f.type == "TENSOR_DESC_ARRAY":
        return tuple(_tensor(item) for item in node.items())
    if f.type == "OPERATOR_DESC":
        return read_operator(node, fused=True)
    if f.type == "OPERATOR_DESC_ARRAY":
        return tuple(read_operator(item, fused=True) for item in node.items())
    if f.enum == "DML_TENSOR_DATA_TYPE":
        return read_data_type(node)
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
        return Size2d(*(node.need(n).integer(0, _UINT) for n in ("Width", "Height")))
    if f.type == "SCALE_BIAS":
        node.known("Scale", "Bias")
        return ScaleBias(*(float(node.need(n).scalar(DataType.FLOAT32))
                           for n in ("Scale", "Bias")))
    if f.type == "SCALAR_UNION":
        type_field = next(g for g in entry.fields if g.enum == "DML_TENSOR_DATA_TYPE")
        return _scalar_union(node, read_data_type(desc.need(type_field.name)))
    raise NotImplementedError(f"{entry.name}.{f.name} has type {f.type}")


def _scalar_union(node: NodeModel, data_type: DataType) -> Any:
    """A number, or DML_SCALAR_UNION's member of the type: ``{"Int32": 5}``."""
    if not isinstance(node.value, dict):
        return node.scalar(data_type)
    if data_type is DataType.FLOAT16:  # the union has no half: its bits stand in UInt16
        bits = node.known("UInt16").need("UInt16").scalar(DataType.UINT16)
        return bits.view(np.float16)
    member = data_type.name.capitalize().replace("Uint", "UInt")
    return node.known(member).need(member).scalar(data_type)


def _tensor(node: NodeModel) -> TensorDesc:
    fields = ("DataType", "Flags", "DimensionCount", "Sizes", "Strides",
              "TotalTensorSizeInBytes", "GuaranteedBaseOffsetAlignment")
    kind = node.get("Type")
    if kind is not None and not _enum(kind, "DML_TENSOR_TYPE"):
        kind.fail("BUFFER")
    desc = node.get("Desc")
    if desc is None:
        desc = node.known("Type", *fields)
    else:
        node.known("Type", "Desc")
        desc.known(*fields)
    data_type = read_data_type(desc.need("DataType"))
    sizes = [n.integer(0, _UINT) for n in desc.need("Sizes").items()]
    strides, count = desc.get("Strides"), desc.get("DimensionCount")
    flags, total = desc.get("Flags"), desc.get("TotalTensorSizeInBytes")
    alignment = desc.get("GuaranteedBaseOffsetAlignment")
    if count is not None and count.integer() != len(sizes):
        raise count.error(f"expected {count.value} entries in Sizes, but got {len(sizes)}")
    arguments = (
        data_type,
        tuple(sizes),
        tuple(n.integer(0, _UINT) for n in strides.items()) or None if strides else None,
        TensorFlags(0 if flags is None else read_flags(flags, "DML_TENSOR_FLAGS")),
        (total.integer() or None) if total else None,
        0 if alignment is None else alignment.integer(0, _UINT),
    )
    try:
        return TensorDesc(*arguments)  # type: ignore[arg-type]
    except ValidationError as error:
        raise desc.error(str(error)) from None


def _enum(node: NodeModel, enum: str) -> int:
    """A value of a DirectML enumeration, by its full name or without its prefix."""
    values: dict[str, int] = spec.document()["enums"][enum]
    prefix = enum.removesuffix("S")  # of FLAGS
    name = node.string()
    for full in (name, f"{prefix}_{name}"):
        if full in values:
            return values[full]
    names = ", ".join(v.removeprefix(prefix + "_") for v in values)
    raise node.error(f"expected {enum} to be one of {names}, but got {name!r}")


def read_flags(node: NodeModel, enum: str) -> int:
    if isinstance(node.value, str):
        return _enum(node, enum)
    if not isinstance(node.value, list):
        node.fail("a string or an array of strings")
    flags = 0
    for item in node.items():
        flags |= _enum(item, enum)
    return flags


def read_data_type(node: NodeModel, unknown: bool = False) -> Any:
    """The data type named; None for UNKNOWN where that is allowed."""
    name = node.string().removeprefix("DML_TENSOR_DATA_TYPE_")
    if name in DataType.__members__:
        return DataType[name]
    if unknown and name == "UNKNOWN":
        return None
    raise node.error(f"expected a data type among {', '.join(DataType.__members__)}, "
                     f"but got {node.value!r}")
