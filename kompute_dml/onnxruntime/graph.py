"""Converts ONNX Runtime's graphs to graphs of the mapping."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UnsupportedError, ValidationError
from ..onnx.graph import BFLOAT16, OnnxGraph, OnnxNode, OnnxValue, number_type
from ..onnx.operators import branches
from .capi import Api, CData, ffi
from .replaced import Replaced

_USUAL_BYTES = 1024
"""Of an attribute: more take a second call."""
_FEW = 16
"""Dimensions that are read without new memory."""
_SIZES = {"int64_t": 8, "float": 4}
_POINTERS = {name: ffi.typeof(f"{name} *") for name in _SIZES}
# OrtOpAttrType
_INT, _INTS, _FLOAT, _FLOATS, _STRING, _STRINGS, _GRAPH, _TENSOR = range(1, 9)


class GraphReader:
    """Reads one OrtGraph. ``handles`` maps nodes back to ONNX Runtime's."""

    def __init__(self, api: Api, graph: CData, replaced: Replaced,
                 whole: GraphReader | None = None) -> None:
        """``replaced`` are values of initializers other than the model's. ``whole`` has read a
        graph that this one is a part of."""
        self._api = api
        self._replaced = replaced
        self._values: dict[str, OnnxValue] = {} if whole is None else dict(whole._values)
        self._known_nodes = {} if whole is None else whole._nodes
        self._nodes: dict[int, OnnxNode] = {}
        """Nodes by ONNX Runtime's number."""
        self._known: dict[Any, OnnxValue | None] = {}
        """Values by handle, which asks for no name."""
        self._data, self._needed = ffi.new("char[]", _USUAL_BYTES), ffi.new("size_t *")
        self._numbers = {name: ffi.cast(kind, self._data) for name, kind in _POINTERS.items()}
        """The same memory, as numbers."""
        self._few = ffi.new("int64_t[]", _FEW)
        parent = api.get(api.Graph_GetParentNode, "const void *", graph)
        self.is_nested = parent != ffi.NULL
        """Whether it is a nested graph, such as a branch of an If."""
        self.handles: dict[OnnxNode, Any] = {}
        nodes = [self._node(handle) for handle in api.items("Graph_Nodes", graph)]
        self._replace()
        inputs = [self._value(v) for v in api.items("Graph_Inputs", graph)]
        outputs = [self._value(v) for v in api.items("Graph_Outputs", graph)]
        self.graph = OnnxGraph(
            nodes,
            [v for v in inputs if v is not None],
            [v for v in outputs if v is not None],
        )
        around = [self._value(v) for v in api.items("Node_Outputs", parent)] if parent else []
        self.key = (api.text(api.Graph_GetName, graph), tuple(v and v.name for v in around),
                    tuple(v.name for v in self.graph.outputs))
        """Equal for the same graph of the model, whatever its nodes have become."""

    def _node(self, handle: CData) -> OnnxNode:
        api = self._api
        number = api.get(api.Node_GetId, "size_t", handle)
        node = self._known_nodes.get(number)
        if node is None:
            node = self._with_constants(self._new_node(handle), handle)
        elif any(v is not None and v.constant is not None for v in node.inputs):
            held = api.items("Node_Inputs", handle)
            if node.label == "If":
                held += [x for branch in self._branches(handle) for x in branch]
            for value, ort_value in zip(node.inputs, held):
                if value is not None and value.constant is not None:
                    self._read_constant(value, ort_value)  # the last one's memory may be gone
        self._nodes[number] = node
        self.handles[node] = handle
        return node

    def _new_node(self, handle: CData) -> OnnxNode:
        api = self._api
        # Values that a nested graph reads from outside count as inputs.
        captured = [self._value(v) for v in api.items("Node_ImplicitInputs", handle)]
        return OnnxNode(
            op=api.text(api.Node_GetOperatorType, handle),
            domain=api.text(api.Node_GetDomain, handle),
            since=api.get(api.Node_GetSinceVersion, "int", handle),
            inputs=tuple([self._value(v) for v in api.items("Node_Inputs", handle)] + captured),
            outputs=tuple(self._value(v) for v in api.items("Node_Outputs", handle)),
            attributes=dict(
                self._attribute(a) for a in api.items("Node_Attributes", handle) if a
            ),
            name=api.text(api.Node_GetName, handle),
        )

    def _with_constants(self, node: OnnxNode, handle: CData) -> OnnxNode:
        """The node with the constants of its branches, if it is an If of such."""
        if node.label != "If":
            return node
        found: list[list[OnnxValue]] = []
        for name, branch in zip(branches.NAMES, self._branches(handle)):
            found.append([])
            for place, x in enumerate(branch):
                code, _ = self._type(x)
                value = OnnxValue(f"{node.name}.{name}.{place}", number_type(code),
                                  is_bfloat16=code == BFLOAT16)
                if not self._api.get(self._api.ValueInfo_IsConstantInitializer, "bool", x) or not (
                        self._read_constant(value, x)):
                    return node
                assert value.constant is not None
                value.shape = value.constant.shape
                found[-1].append(value)
        return branches.with_constants(node, *found) if len(found) == 2 else node

    def _branches(self, handle: CData) -> list[list[Any]]:
        """The outputs of each branch of an If, in the order of :data:`.branches.NAMES`."""
        api = self._api
        count = api.get(api.Node_GetNumSubgraphs, "size_t", handle)
        graphs, names = ffi.new("const void *[]", count), ffi.new("const char *[]", count)
        api.check(api.Node_GetSubgraphs(handle, graphs, count, names))
        by_name = {ffi.string(name).decode(): graph for name, graph in zip(names, graphs)}
        return [api.items("Graph_Outputs", by_name[name]) for name in branches.NAMES]

    def _value(self, handle: CData) -> OnnxValue | None:
        if handle not in self._known:
            self._known[handle] = self._new_value(handle) if handle else None
        return self._known[handle]

    def _new_value(self, handle: CData) -> OnnxValue | None:
        api = self._api
        name = api.text(api.GetValueInfoName, handle)
        if not name:
            return None
        value = self._values.get(name)
        if value is None:
            value = self._values[name] = OnnxValue(name)
            is_constant = api.get(api.ValueInfo_IsConstantInitializer, "bool", handle)
            if is_constant and self._read_constant(value, handle):
                assert value.constant is not None
                # The array knows them, which asks ONNX Runtime for less.
                value.dtype, value.shape = value.constant.dtype, value.constant.shape
            else:
                code, value.shape = self._type(handle)
                value.dtype, value.is_bfloat16 = number_type(code), code == BFLOAT16
        return value

    def _read_constant(self, value: OnnxValue, handle: CData) -> bool:
        """Read a constant. Returns whether NumPy has its type: 4-bit integers get a byte each, and
        numbers of BFLOAT16 become FLOAT32."""
        api = self._api
        if value.is_bfloat16 and value.constant is not None and (
                value.name not in self._replaced.values):
            return True  # in memory of its own
        ort_value = self._replaced.values.get(value.name) or api.get(
            api.ValueInfo_GetInitializerValue, "const void *", handle)
        value.constant = None
        return bool(ort_value) and self._take(value, ort_value)

    def _take(self, value: OnnxValue, ort_value: CData) -> bool:
        """Take a constant from an OrtValue. Returns whether NumPy has its type."""
        sizes, dtype = self._api.typed(ort_value)
        if self._api.is_bfloat16:
            value.is_bfloat16, value.constant = True, self._api.tensor(ort_value)
            return True
        if dtype is None:
            value.constant = self._api.four_bits(ort_value)
            return False
        value.constant = self._api.memory(ort_value, sizes, dtype)
        return True

    def _replace(self) -> None:
        """Give constants the values that the session's options have for them."""
        constants = {v.name: v for v in self._values.values() if v.constant is not None}
        for name, ort_value in self._replaced.of(constants).items():
            value, (sizes, dtype) = constants[name], self._api.typed(ort_value)
            if self._api.is_bfloat16:
                dtype = value.dtype if value.is_bfloat16 else None
            if (tuple(sizes), dtype) != (value.shape, value.dtype):
                raise ValidationError(
                    f"add_initializer: expected {name!r} to be {value.dtype} of "
                    f"{list(value.shape or ())} as in the model, but got {dtype} of {sizes}")
            self._take(value, ort_value)

    def _type(self, handle: CData) -> tuple[int, tuple[int | None, ...] | None]:
        """TensorProto.DataType and sizes of a value. 0 if it is no tensor."""
        api = self._api
        info = api.get(api.GetValueInfoTypeInfo, "const void *", handle)
        if not info:
            return 0, None
        tensor = api.get(api.CastTypeInfoToTensorInfo, "const void *", info)
        if not tensor:
            return 0, None
        code = api.get(api.GetTensorElementType, "int", tensor)
        rank = api.get(api.GetDimensionsCount, "size_t", tensor)
        if not rank:
            return code, () if api.TensorTypeAndShape_HasShape(tensor) else None
        sizes = self._few if rank <= _FEW else ffi.new("int64_t[]", rank)
        if status := api.GetDimensions(tensor, sizes, rank):
            api.check(status)
        return code, tuple([n if n >= 0 else None for n in ffi.unpack(sizes, rank)])

    def _attribute(self, handle: CData) -> tuple[str, Any]:
        api = self._api
        name = api.text(api.OpAttr_GetName, handle)
        kind = api.get(api.OpAttr_GetType, "int", handle)
        if kind in (_INT, _INTS):
            values = self._read(handle, kind, "int64_t")
        elif kind in (_FLOAT, _FLOATS):
            values = self._read(handle, kind, "float")
        elif kind == _STRING:
            return name, bytes(self._read(handle, kind, "char")).rstrip(b"\0").decode()
        elif kind == _STRINGS:  # one after the other, with a zero behind each
            texts = bytes(self._read(handle, kind, "char")).split(b"\0")
            return name, [text.decode() for text in texts[:-1]]
        elif kind == _TENSOR:
            return name, self._tensor(handle)
        else:
            return name, None  # no row reads graphs, so only their names are kept
        return name, values[0] if kind in (_INT, _FLOAT) else values

    def _tensor(self, handle: CData) -> np.ndarray | None:
        api = self._api
        value = api.get(api.OpAttr_GetTensorAttributeAsOrtValue, "void *", handle)
        try:
            return api.tensor(value).copy()
        except UnsupportedError:
            return None  # a type that NumPy lacks
        finally:
            api.ReleaseValue(value)

    def _read(self, handle: CData, kind: int, element: str) -> Any:
        api, data, needed = self._api, self._data, self._needed
        needed[0] = 0
        if status := api.ReadOpAttr(handle, kind, data, _USUAL_BYTES, needed):
            api.ReleaseStatus(status)
            if needed[0] > _USUAL_BYTES:  # the error came with the number of bytes
                data = ffi.new("char[]", needed[0])
                api.check(api.ReadOpAttr(handle, kind, data, needed[0], needed))
        if element == "char":
            return ffi.unpack(data, needed[0])
        numbers = (self._numbers[element] if data is self._data
                   else ffi.cast(_POINTERS[element], data))
        return ffi.unpack(numbers, needed[0] // _SIZES[element])
