"""What a model file says, checked against the specification. Needs no device.

The format is DxDispatch's: a root object with ``resources`` (buffers and their contents),
``dispatchables`` (operators) and ``commands``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..compiler import ExecutionFlags
from ..errors import ValidationError
from . import image, jsonc, serialized
from .node import NodeModel, closest
from .onnx_model import OnnxModel
from .operator import OperatorModel, read_flags, read_operator
from .resource import Resource, find_file, read_resource
from .serialized import SerializedGraph

_UINT = 2**32 - 1


@dataclass(frozen=True)
class Binding:
    """A range of a resource; what is None follows from the resource."""

    resource: str
    element_offset: int = 0
    element_count: int | None = None
    element_size: int | None = None
    shape: tuple[int, ...] | None = None
    """Of an ONNX model's tensor."""


Bindings = Mapping[str, tuple[Binding, ...]]


@dataclass(frozen=True)
class DispatchableModel:
    """Something to execute: an operator, a serialized graph or an ONNX model."""

    name: str
    operator: OperatorModel | None = None
    graph: SerializedGraph | None = None
    onnx: OnnxModel | None = None
    bindings: Bindings = field(default_factory=dict)
    """What initialization gets: inputs that are OWNED_BY_DML."""
    as_graph: bool = False
    """Whether it is compiled as a graph of this one operator."""
    flags: ExecutionFlags = ExecutionFlags.NONE
    unsupported: str = ""
    """Why this package cannot run it, in words; empty where it can."""


@dataclass(frozen=True)
class DispatchCommand:
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


Command = DispatchCommand | Print | WriteFile


@dataclass(frozen=True)
class Model:
    """A model file."""

    resources: Mapping[str, Resource]
    dispatchables: Mapping[str, DispatchableModel]
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
    root = NodeModel(jsonc.parse(text, source), source)
    root.known("resources", "dispatchables", "commands")
    resources = {n: read_resource(n, node, folder) for n, node in root.need("resources").members()}
    dispatchables = {
        n: _dispatchable(n, node, resources, folder)
        for n, node in root.need("dispatchables").members()
    }
    commands = tuple(
        _command(node, resources, dispatchables) for node in root.need("commands").items()
    )
    return Model(resources, dispatchables, commands)


# -- dispatchables


def _dispatchable(
    name: str, node: NodeModel, resources: Mapping[str, Resource], folder: Path
) -> DispatchableModel:
    match node.need("type", "Type").string().lower():
        case "hlsl":
            return DispatchableModel(name,
                                     unsupported="is an HLSL shader, which is not supported: it "
                                "would take Microsoft's compiler; write it in GLSL for kp instead")
        case "onnx":
            return DispatchableModel(name, onnx=_onnx_model(node, folder))
        case "dmlserializedgraph":
            node.known("type", "sourcePath", "executionFlags", "bindings")
            path = find_file(node.need("sourcePath"), folder)
            return DispatchableModel(name, graph=serialized.load(path), flags=_flags(node))
    operator = read_operator(node, also=("dmlCompileType", "executionFlags", "bindings"))
    compile_type = node.get("dmlCompileType")
    if compile_type is not None and compile_type.value not in ("DmlCompileOp", "DmlCompileGraph"):
        compile_type.fail("DmlCompileOp or DmlCompileGraph")
    bindings = node.get("bindings")
    return DispatchableModel(
        name, operator,
        bindings={} if bindings is None else _bindings(bindings, operator, resources),
        as_graph=compile_type is not None and compile_type.value == "DmlCompileGraph",
        flags=_flags(node),
    )


def _flags(node: NodeModel) -> ExecutionFlags:
    flags = node.get("executionFlags")
    return ExecutionFlags(0 if flags is None else read_flags(flags, "DML_EXECUTION_FLAGS"))


def _onnx_model(node: NodeModel, folder: Path) -> OnnxModel:
    node.known("type", "sourcePath", "freeDimensionNameOverrides", "graphOptimizationLevel",
               "freeDimensionDenotationOverrides", "sessionOptionsConfigEntries", "loggingLevel")

    def pairs(name: str) -> Iterator[tuple[str, NodeModel]]:
        table = node.get(name)
        return iter(()) if table is None else table.members()

    level, logging = node.get("graphOptimizationLevel"), node.get("loggingLevel")
    return OnnxModel(
        find_file(node.need("sourcePath"), folder),
        {n: v.integer(0, _UINT) for n, v in pairs("freeDimensionNameOverrides")},
        {n: v.integer(0, _UINT) for n, v in pairs("freeDimensionDenotationOverrides")},
        {n: v.string() for n, v in pairs("sessionOptionsConfigEntries")},
        99 if level is None else level.integer(0, 99),
        2 if logging is None else logging.integer(0, 4),
    )


# -- commands


def _command(
    node: NodeModel, resources: Mapping[str, Resource], dispatchables: Mapping[str,
                                                                               DispatchableModel]
) -> Command:
    kind = node.need("type")
    match kind.string().lower():
        case "dispatch":
            node.known("type", "dispatchable", "bindings", "threadGroupCount")
            target = dispatchables[_reference(node.need("dispatchable"), dispatchables,
                                              "dispatchable")]
            bindings = _bindings(node.need("bindings"), target.operator, resources)
            if target.graph is not None:
                _check_edges(node.need("bindings"), target.graph)
            return DispatchCommand(target.name, bindings)
        case "print":
            node.known("type", "resource", "verbose")
            verbose = node.get("verbose")
            return Print(_typed_resource(node, resources),
                         False if verbose is None else verbose.boolean())
        case "writefile":
            node.known("type", "resource", "targetPath", "dimensions")
            dimensions, path = node.get("dimensions"), node.need("targetPath").string()
            name = _reference(node.need("resource"), resources, "resource")
            if Path(path).suffix.lower() in (".npy", *image.SUFFIXES):
                _typed_resource(node, resources)
            return WriteFile(name, path, () if dimensions is None else tuple(
                n.integer(1, _UINT) for n in dimensions.items()))
    kind.fail('"dispatch", "print" or "writeFile"')


def _reference(node: NodeModel, known: Mapping[str, object], what: str) -> str:
    name = node.string()
    if name not in known:
        raise node.error(f"the model has no {what} {name!r}{closest(name, known)}")
    return name


def _typed_resource(node: NodeModel, resources: Mapping[str, Resource]) -> str:
    name = _reference(node.need("resource"), resources, "resource")
    if resources[name].data_type is None:
        raise node.error(f"resource {name!r} has initialValuesDataType UNKNOWN, so its values "
                         "have no one type to show them in")
    return name


def _bindings(
    node: NodeModel, operator: OperatorModel | None, resources: Mapping[str, Resource]
) -> dict[str, tuple[Binding, ...]]:
    result = {}
    for name, target in node.members():
        sources = target.items() if isinstance(target.value, list) else [target]
        result[name] = tuple(_binding(source, resources) for source in sources)
        if operator is not None:
            _check_bind_point(target, name, len(sources), operator)
    return result


def _check_edges(node: NodeModel, graph: SerializedGraph) -> None:
    known = (*graph.inputs, *graph.outputs)
    for name, target in node.members():
        if name not in known:
            raise target.error(f"the graph has no tensor {name!r}{closest(name, known)}; it has "
                               f"{', '.join(known)}")
    for name in known:
        node.need(name)


def _check_bind_point(node: NodeModel, name: str, bound: int, operator: OperatorModel) -> None:
    fields = {f.name: f for f in operator.spec.tensors}
    if name not in fields:
        raise node.error(f"{operator.name} has no tensor {name!r}{closest(name, fields)}; it has "
                         f"{', '.join(fields)}")
    described = operator.fields[fields[name].snake]
    needed = len(described) if isinstance(described, tuple) else int(described is not None)
    if needed != bound:
        raise node.error(f"expected {needed} resources for {name} (as many tensors as the desc "
                         f"has), but got {bound}")


def _binding(node: NodeModel, resources: Mapping[str, Resource]) -> Binding:
    if isinstance(node.value, str):
        return Binding(_reference(node, resources, "resource"))
    # format and counter are for HLSL, shape for ONNX; operators take no notice of them.
    node.known("name", "elementCount", "elementSizeInBytes", "elementStride", "elementOffset",
               "format", "counter", "counterOffsetBytes", "shape")
    offset, count = node.get("elementOffset"), node.get("elementCount")
    size, shape = node.get("elementSizeInBytes", "elementStride"), node.get("shape")
    return Binding(
        _reference(node.need("name"), resources, "resource"),
        0 if offset is None else offset.integer(),
        None if count is None else count.integer() or None,
        None if size is None else size.integer() or None,
        None if shape is None else tuple(n.integer() for n in shape.items()) or None,
    )
