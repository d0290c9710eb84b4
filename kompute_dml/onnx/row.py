"""A row of the mapping table: what an ONNX operator lowers to, and which nodes it refuses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import spec
from ..desc import MAX_DIMENSIONS
from ..graph.array import device_type
from ..operators import base
from . import lowerings
from .graph import FLOAT8, OnnxNode, OnnxValue

if TYPE_CHECKING:
    from ..device import Device

MICROSOFT = "com.microsoft"
_OF_MEMORY = {"consumed_inputs"}
"""Attributes by which ONNX's first versions told where a result may lie."""
FLOAT = 1
"""float32's number among ONNX's data types."""
FOLDED = (1, 6, 8, 12, 13)
"""Versions of Max, Mean, Min and Sum, which take any number of inputs."""
TWO = ("ATensor", "BTensor")
COPY = "ELEMENT_WISE_IDENTITY"
"""The operator of views: it copies those that leave a region."""
Refusal = Callable[[OnnxNode], "str | None"]
Alike = Callable[[Sequence["Sequence[int | None] | None"]], "int | None"]
WITHOUT_EFFECT: dict[str, object] = {
    "left_window_size": -1, "right_window_size": -1,
    "qk_norm_epsilon": 9.999999974752427e-07,  # 1e-6, as a float32
    "weight_prepacked": 0,
}
"""Attributes that say nothing at these values, which are their defaults: ONNX Runtime spells them
out, whether a model has them or not."""


@dataclass(frozen=True)
class Mapping:
    """An ONNX operator, or a use of it."""

    op: str
    since: tuple[int, ...]
    """Versions of the operator that this mapping understands."""
    operator: str
    """The DirectML operator, without ``DML_OPERATOR_``. For views, the one that copies them."""
    build: lowerings.Build
    domain: str = ""
    fields: tuple[str | None, ...] = ()
    """The DirectML tensor of each input, if the order differs from DirectML's. The last one also
    stands for all further inputs."""
    attributes: tuple[str, ...] = ()
    """Supported attributes. Nodes with others are refused."""
    host: tuple[int, ...] = ()
    """Inputs whose values the plan depends on, so that the host must know them."""
    alike: Alike = lambda sizes: None
    """What takes the sizes of all inputs, as far as they are known, to the most that a number of an
    input in ``host`` may be with the same plan. None if each number has a plan of its own."""
    refuses: Refusal = lambda node: None
    """Why this mapping refuses the node, or None."""
    multiplies: bool = False
    """Whether it is a product or a convolution: work that is worth a transfer."""
    function: str | None = None
    """The function of a reduction, on which the data types depend."""
    results: tuple[str | None, ...] = ()
    """The DirectML tensor of each output, if its type differs from the table's."""
    any_size: bool = False
    """Whether a device serves all valid nodes of the same types, ranks and attributes, or none."""
    stored: tuple[int, ...] = ()
    """Inputs whose numbers of BFLOAT16 it takes as they are stored: UINT16."""
    of_float8: bool = False
    """Whether it understands FLOAT8E4M3FN, where its fields name no types."""
    repetition: Callable[[OnnxNode], float] = lambda node: 1.0
    """How many times as much the device multiplies as the CPU."""

    @property
    def is_view(self) -> bool:
        """Whether it computes nothing."""
        return self.operator == COPY

    def refusal(self, node: OnnxNode, device: Device) -> str | None:
        """Why this mapping refuses ``node`` on ``device``, or None."""
        if node.since not in self.since:
            return f"version {node.since} of the operator is not known, only {self.since}"
        known = {*self.attributes, *_OF_MEMORY}
        unknown = {name for name, value in node.attributes.items()
                   if name not in known and value != WITHOUT_EFFECT.get(name)}
        if unknown:
            return f"attribute {', '.join(sorted(unknown))} is not understood"
        return self.refuses(node) or self._refuses_types(node, device)

    def _refuses_types(self, node: OnnxNode, device: Device) -> str | None:
        if not self.of_float8 and any(
                v is not None and v.dtype == FLOAT8 for v in (*node.inputs, *node.outputs)):
            return "FLOAT8 is no type that DirectML has"
        name = "DML_OPERATOR_" + self.operator
        entry = spec.operator(name)
        if name not in base.definitions():
            return f"{name} is not implemented"
        level = device.feature_level
        if entry.tensors[0].name not in _tensors(name, None, level):
            return f"{name} needs feature level {entry.introduced}, not {level}"
        tensors, newest = (_tensors(name, self.function, at) for at in (level, _NEWEST))
        most = device.runtime.engine.max_buffer
        inputs, outputs = _fields(name)
        inputs, outputs = self.fields or inputs, self.results or outputs
        for i, value in enumerate(node.inputs):
            if value is not None:
                field = inputs[min(i, len(inputs) - 1)] if inputs and i not in self.host else None
                if reason := _refuses_value(value, field, tensors, newest, most):
                    return f"input {i}: {reason}"
        for i, value in enumerate(node.outputs):
            if value is not None:
                field = outputs[i] if i < len(outputs) else None
                if reason := _refuses_value(value, field, tensors, newest, most):
                    return f"output {i}: {reason}"
        return None


_NEWEST = max(spec.FeatureLevel)


@functools.cache  # a model has thousands of nodes of few operators
def _tensors(
    operator: str, function: str | None, level: spec.FeatureLevel
) -> dict[str, spec.TensorSupport]:
    """What a feature level supports of an operator's tensors: none before its first level."""
    return spec.operator(operator).support_at(level, function) or {}


@functools.cache
def _fields(operator: str) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
    """The names of an operator's inputs and of its outputs."""
    entry = spec.operator(operator)
    return tuple(f.name for f in entry.inputs), tuple(f.name for f in entry.outputs)


def _refuses_value(
    value: OnnxValue, field: str | None, tensors: dict[str, spec.TensorSupport],
    newest: dict[str, spec.TensorSupport], most: int,
) -> str | None:
    """``tensors`` are what the device's feature level supports, ``newest`` what the newest does.
    ``most`` is the largest buffer of the device, in bytes."""
    if value.dtype is None:
        return f"{value.name!r} is not a tensor of a type that DirectML has"
    if value.shape is not None and len(value.shape) > MAX_DIMENSIONS:
        return f"{value.name!r} has more than {MAX_DIMENSIONS} dimensions"
    if value.nbytes > most:
        return f"{value.name!r} takes {value.nbytes} bytes, of {most} in a buffer at most"
    if field in tensors and (kind := device_type(value.dtype)) not in tensors[field].data_types:
        older = field in newest and kind in newest[field].data_types
        return f"{field} cannot be {kind} at {'this' if older else 'any'} feature level"
    return None


# What several modules of rows use


def same_types(node: OnnxNode) -> str | None:
    dtypes = {v.dtype for v in node.inputs if v is not None}
    return None if len(dtypes) == 1 else "the inputs differ in data type"


def only(name: str, value: object, default: object) -> Refusal:
    """Refuse nodes with another value of an attribute."""

    def refuses(node: OnnxNode) -> str | None:
        got = node.attributes.get(name, default)
        return None if got == value else f"{name}={got!r}"

    return refuses


def only_not(name: str, value: object, default: object) -> Refusal:
    """Refuse nodes with this value of an attribute."""

    def refuses(node: OnnxNode) -> str | None:
        return f"{name}={value!r}" if node.attributes.get(name, default) == value else None

    return refuses


def elementwise(
    op: str, since: tuple[int, ...], operator: str, attributes: lowerings.Attributes | None = None,
    *, reads: tuple[str, ...] = (), fields: tuple[str | None, ...] = (),
    refuses: Refusal = lambda node: None, domain: str = "", tensors: int | None = None,
) -> Mapping:
    build = lowerings.elementwise(
        operator, attributes or lowerings.constants(), tensors=tensors)
    return Mapping(op, since, operator, build, domain, fields, reads, refuses=refuses,
                   any_size=True)
