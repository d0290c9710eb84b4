"""Reads ONNX models into the mapping's graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.shape_inference

from ..errors import UnsupportedError, ValidationError
from .bfloat16 import STORED, widened
from .graph import BFLOAT16, DTYPES, OnnxGraph, OnnxNode, OnnxValue, number_type
from .operators import branches

_BFLOAT16_OF_ONNX = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(BFLOAT16))
NUMPYS_BFLOAT16 = _BFLOAT16_OF_ONNX if _BFLOAT16_OF_ONNX.name == "bfloat16" else STORED
"""BFLOAT16 of the package ml_dtypes; UINT16 where onnx is older."""


def load(model: Any) -> onnx.ModelProto:
    """A checked model from a ModelProto, bytes or a path. Raises ValidationError."""
    try:
        if not isinstance(model, onnx.ModelProto):
            is_bytes = isinstance(model, (bytes, bytearray))
            model = onnx.load_model_from_string(model) if is_bytes else onnx.load(model)
        model = _without_a_name_for_the_empty_domain(model)
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, OSError) as error:
        raise ValidationError(f"expected an ONNX model, but: {error}") from None
    except Exception as error:  # protobuf's decoding errors have no common public base
        raise ValidationError(f"expected an ONNX model, but it cannot be read: {error}") from None
    newest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain == "" and opset.version > newest:
            raise ValidationError(f"expected ONNX's operator set to be at most {newest}, which "
                                  f"onnx {onnx.__version__} knows, but got {opset.version}")
    if node := splits_into_too_few(model):
        raise ValidationError(f"Split {node.name!r}: expected num_outputs to be at least the "
                              f"{len(node.output)} outputs, but got fewer")
    return model


def splits_into_too_few(model: onnx.ModelProto) -> onnx.NodeProto | None:
    """A Split whose attribute says fewer outputs than it has, if there is one. ONNX's inference of
    sizes, which is ONNX Runtime's, too, ends the process with it."""
    return next((node for node in _nodes(model.graph) if node.op_type == "Split" and any(
        a.name == "num_outputs" and a.i < len(node.output) for a in node.attribute)), None)


def _without_a_name_for_the_empty_domain(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove the domain ai.onnx of ONNX's own operators, which onnx before 1.23 refuses."""
    if not any(_is_named(item) for item in (*model.opset_import, *_nodes(model.graph))):
        return model
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)  # the caller's model is unchanged
    for item in (*renamed.opset_import, *_nodes(renamed.graph)):
        if _is_named(item):
            item.domain = ""
    return renamed


def _is_named(item: onnx.OperatorSetIdProto | onnx.NodeProto) -> bool:
    return item.domain == "ai.onnx"


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, including those of nested graphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for nested in attribute.graphs:
                    yield from _nodes(nested)


def read(model: onnx.ModelProto) -> OnnxGraph:
    """The main graph of a model, with constants in place and types inferred."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except (onnx.shape_inference.InferenceError, MemoryError, ValueError) as error:
        raise ValidationError(f"the model's types do not fit together: {error}") from None
    graph = inferred.graph
    opsets = {o.domain: o.version for o in model.opset_import}
    values: dict[str, OnnxValue] = {}
    for info in (*graph.input, *graph.output, *graph.value_info):
        dtype, shape, is_bfloat16 = _type(info)
        values[info.name] = OnnxValue(info.name, dtype, shape, None, is_bfloat16)
    for tensor in graph.initializer:
        try:
            _set_constant(values, tensor.name, onnx.numpy_helper.to_array(tensor))
        except ValueError as error:  # onnx's checker lets more elements than sizes pass
            raise ValidationError(f"initializer {tensor.name!r}: {error}") from None
        except KeyError:
            raise ValidationError(f"initializer {tensor.name!r}: expected one of ONNX's data "
                                  f"types, but got {tensor.data_type}") from None
    nodes = []
    for proto in graph.node:
        attributes = {a.name: _attribute(a) for a in proto.attribute}
        if proto.op_type == "Constant" and not proto.domain:
            _set_constant(values, proto.output[0], _constant(attributes))
        else:
            numbers = {k: _numbers(v) if isinstance(v, np.ndarray) else v
                       for k, v in attributes.items()}
            node = _node(proto, numbers, opsets, values)
            if node.label == "If":
                taken, other = (_constants_of(numbers[name], f"{proto.output[0]}.{name}", values)
                                for name in branches.NAMES)
                if taken and other:
                    node = branches.with_constants(node, taken, other)
            nodes.append(node)
    inputs = [values[i.name] for i in graph.input if values[i.name].constant is None]
    return OnnxGraph(nodes, inputs, [values[o.name] for o in graph.output])


def _constants_of(
    branch: onnx.GraphProto, prefix: str, values: dict[str, OnnxValue]
) -> list[OnnxValue]:
    """The outputs of a branch if they are constants, which get names of their own; else none."""
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in branch.initializer}
    tensors |= {node.output[0]: _constant({a.name: _attribute(a) for a in node.attribute})
                for node in branch.node if node.op_type == "Constant" and not node.domain}
    if any(output.name not in tensors for output in branch.output):
        return []
    for output in branch.output:
        _set_constant(values, f"{prefix}.{output.name}", tensors[output.name])
    return [values[f"{prefix}.{output.name}"] for output in branch.output]


def _set_constant(values: dict[str, OnnxValue], name: str, array: np.ndarray) -> None:
    value = values.setdefault(name, OnnxValue(name))
    value.is_bfloat16, array = _is_bfloat16(array), _numbers(array)
    dtype = array.dtype if array.dtype in set(DTYPES.values()) else None
    value.dtype, value.shape, value.constant = dtype, array.shape, array


def _is_bfloat16(array: np.ndarray) -> bool:
    return array.dtype.name == "bfloat16"


def _numbers(array: np.ndarray) -> np.ndarray:
    """The array, or FLOAT32 in place of BFLOAT16."""
    return widened(array.view(STORED)) if _is_bfloat16(array) else array


def _constant(attributes: Mapping[str, Any]) -> np.ndarray:
    if not attributes:
        raise ValidationError("expected a Constant to have a value, but got none")
    name, value = next(iter(attributes.items()))
    if name.startswith("value_float"):
        return np.asarray(value, np.float32)
    return np.asarray(value, np.int64) if name.startswith("value_int") else np.asarray(value)


def _node(
    proto: onnx.NodeProto, attributes: dict[str, Any], opsets: Mapping[str, int],
    values: dict[str, OnnxValue],
) -> OnnxNode:
    def of(names: Iterable[str]) -> tuple[OnnxValue | None, ...]:
        return tuple(values.setdefault(n, OnnxValue(n)) if n else None for n in names)

    try:
        schema = onnx.defs.get_schema(proto.op_type, opsets.get(proto.domain, 1), proto.domain)
        since = schema.since_version
    except onnx.defs.SchemaError:
        since = 1
    return OnnxNode(proto.op_type, proto.domain, since, of(proto.input), of(proto.output),
                    attributes, proto.name)


def _type(
    info: onnx.ValueInfoProto
) -> tuple[np.dtype[Any] | None, tuple[int | None, ...] | None, bool]:
    """The data type, the sizes, and whether the type is BFLOAT16."""
    if not info.type.HasField("tensor_type"):
        return None, None, False
    tensor = info.type.tensor_type
    shape = None
    if tensor.HasField("shape"):
        # Some exporters write -1 for an unknown size.
        shape = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
                      for d in tensor.shape.dim)
    return number_type(tensor.elem_type), shape, tensor.elem_type == BFLOAT16


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode()
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [text.decode() for text in value]
    return list(value) if attribute.type in _LISTS else value


_LISTS = (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS)


def check_inputs(graph: OnnxGraph, inputs: Any) -> list[np.ndarray]:
    """The graph's inputs, from a list, a mapping by name or a single array; those of BFLOAT16 as
    UINT16. Raises ValidationError."""
    names = [value.name for value in graph.inputs]
    if isinstance(inputs, Mapping):
        if inputs.keys() != set(names):
            raise ValidationError(f"expected the inputs {names}, but got {sorted(inputs)}")
        inputs = [inputs[name] for name in names]
    elif isinstance(inputs, np.ndarray) and len(names) == 1:
        inputs = [inputs]
    if len(inputs) != len(names):
        raise ValidationError(f"expected {len(names)} inputs ({names}), but got {len(inputs)}")
    arrays = []
    for value, array in zip(graph.inputs, inputs):
        if array is None:
            raise UnsupportedError(f"input {value.name!r}: only tensors are supported")
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        sizes = array.shape if value.shape is None else value.shape
        wanted = NUMPYS_BFLOAT16 if value.is_bfloat16 else value.dtype
        if array.dtype != wanted or len(sizes) != array.ndim or any(
            n not in (None, m) for n, m in zip(sizes, array.shape)
        ):
            raise ValidationError(
                f"expected input {value.name!r} to be {wanted} of sizes {value.shape}, but "
                f"got {array.dtype} of {array.shape}"
            )
        arrays.append(array.view(STORED) if value.is_bfloat16 else array)
    return arrays
