"""Cases of elementwise operators and quantization."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ..cases import Scale
from ..cases.elementwise import REFERENCES, Reference
from ..device import Device
from ..dtypes import DataType
from ..functions import functions
from ..names import NAMES, Names, torch_name
from ..operators.base import Definition, definitions
from .case import Case, Peer, Recipe, shape, touched_bytes
from .ordinary import ordinary
from .peers import NumPy, OnnxRuntime, Torch
from .values import Key, Pattern, close, numbers, offsets, sampled


def elementwise(name: str, reference: Reference) -> Recipe:
    """Cases of arrays that have the same number of bytes for every type."""
    operator = "DML_OPERATOR_" + name
    data_type = DataType.of(reference.data_type)
    types = data_type.family

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        definition = definitions()[operator]
        function = definition.function_name
        compute = functions()[function]  # DirectML's, also where NumPy has one of this name
        expected = reference.with_attributes()
        if reference.on_device:
            expected = partial(expected, device)
        count = scale.elements * 4 // data_type.itemsize
        patterns = [
            numbers(reference.data_type, count, reference.low, reference.high, 4 + i)
            for i in range(len(definition.spec.inputs))
        ]
        inputs = [p.tensor(device) for p in patterns]
        out = compute(*inputs, **reference.attributes)
        yield Case(
            operator, types, shape(out.sizes),
            lambda: compute(*inputs, **reference.attributes, out=out),
            _check(patterns, count, expected),
            touched_bytes(t.desc for t in (*inputs, out)),
            peers=_peers(function, patterns, expected, reference.attributes),
        )

    return Recipe(operator, types, make)


def _check(
    patterns: list[Pattern], count: int, compute: Callable[..., object]
) -> Callable[[Any], str]:
    """Compare parts of the output with ``compute`` in float64."""

    def expected(key: Key) -> np.ndarray:
        at = offsets(key, (count,), (1,))
        parts = [p.at(at) for p in patterns]
        return np.asarray(compute(*[
            x.astype(np.float64) if x.dtype.kind == "f" else x for x in parts
        ]))

    return sampled((count,), expected, close)


def _peers(
    function: str, patterns: list[Pattern], compute: Callable[..., object],
    attributes: dict[str, object]
) -> dict[str, Any]:
    def torch_peers(library: Torch) -> Iterator[Peer]:
        member = library.torch
        for part in torch_name(function).split("."):
            member = getattr(member, part, None)
        # PyTorch's attributes have other names and meanings.
        if member is None or attributes:
            return
        inputs = [library.tensor(p) for p in patterns]
        yield Peer("torch", lambda: member(*inputs))

    def onnxruntime_peers(library: OnnxRuntime) -> Iterator[Peer]:
        name = NAMES.get(function, Names()).onnx
        if not name or attributes:
            return
        yield Peer("onnxruntime",
                   library.session(name, [p.host() for p in patterns]))

    def numpy_peers(library: NumPy) -> Iterator[Peer]:
        arrays = [p.host() for p in patterns]
        yield Peer("numpy", lambda: np.asarray(compute(*arrays)), checked=False)

    return {"torch": torch_peers, "onnxruntime": onnxruntime_peers, "numpy": numpy_peers}


def _by_itself(definition: Definition, kind: DataType) -> Reference:
    """For types without a reference: the operator's own results on tensors with gaps.

    These take another path through its shader.
    """
    function = functions()[definition.function_name]
    options = inspect.signature(function).parameters.values()
    attributes = {f.snake for f in definition.spec.fields if not f.is_tensor}
    needed = {p.name: 1.0 for p in options if p.name in attributes and p.default is p.empty}

    def compute(device: Device, *parts: np.ndarray, **attributes: float) -> np.ndarray:
        gaps = [device.tensor(np.repeat(p.astype(kind.dtype), 2))[::2] for p in parts]
        result: np.ndarray = function(*gaps, **attributes).numpy()
        return result

    low, high = (0.1, 0.9) if kind.is_float else (1, 100)
    return Reference(compute, kind.dtype.name, needed, low, high, on_device=True)


def _types(definition: Definition) -> tuple[DataType, ...]:
    """The types of the first input at the newest feature level."""
    types: tuple[DataType, ...] = definition.spec.support[0][1][
        definition.spec.inputs[0].name].data_types
    return types


def _shaders(definition: Definition) -> bool:
    return definition.shaders[0].startswith("elementwise_")


_OTHERS = {
    "DYNAMIC_QUANTIZE_LINEAR": "f32 -> u8", "ELEMENT_WISE_QUANTIZE_LINEAR": "f32 -> u8",
    "ELEMENT_WISE_DEQUANTIZE_LINEAR": "u8 -> f32", "ELEMENT_WISE_QUANTIZED_LINEAR_ADD": "u8",
    "ELEMENT_WISE_IF": "u8, f32", "FILL_VALUE_CONSTANT": "f32", "FILL_VALUE_SEQUENCE": "f32",
    "VALUE_SCALE_2D": "f32",
}
"""Operators whose calls differ from the others'."""

ELEMENTWISE = (
    *(elementwise(name, reference) for name, reference in REFERENCES.items()),
    *(ordinary("DML_OPERATOR_" + name, types) for name, types in _OTHERS.items()),
)


def _of_type(name: str, definition: Definition, kind: DataType) -> Reference:
    written = REFERENCES.get(name)
    if written and kind.is_float and DataType.of(written.data_type).is_float:
        return written._replace(data_type=kind.dtype.name)
    return _by_itself(definition, kind)


def _of_types(*kinds: DataType) -> tuple[Recipe, ...]:
    return tuple(
        elementwise(name, _of_type(name, definition, kind))
        for operator, definition in definitions().items()
        for name in [operator.removeprefix("DML_OPERATOR_")]
        if _shaders(definition) and name not in ("CAST", "VALUE_SCALE_2D")
        for kind in kinds
        if kind in _types(definition)
    )


EVERY_TYPE = _of_types(DataType.FLOAT32, DataType.FLOAT16, DataType.INT8)
"""Unary and binary operators in each type that neural networks compute in."""
