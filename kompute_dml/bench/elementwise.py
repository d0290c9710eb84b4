"""Cases of operators that treat each element alone, and of their like."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from ..dtypes import DataType
from ..functions import functions
from ..operators.base import Definition, definitions
from .case import Case, Peer, Recipe, Scale, shape, touched_bytes
from .references import REFERENCES, Reference
from .values import Pattern, close, numbers, offsets, sampled

_TORCH_NAMES = {
    "activation_gelu": "nn.functional.gelu", "activation_relu": "relu",
    "activation_celu": "celu", "activation_elu": "nn.functional.elu",
    "activation_hard_swish": "nn.functional.hardswish", "activation_scaled_elu": "selu",
    "activation_leaky_relu": "nn.functional.leaky_relu",
    "activation_softplus": "nn.functional.softplus", "activation_tanh": "tanh",
    "activation_softsign": "nn.functional.softsign", "activation_sigmoid": "sigmoid",
    "activation_swish": "nn.functional.silu", "add1": "add", "atan_yx": "atan2",
    "bit_and": "bitwise_and", "bit_not": "bitwise_not", "bit_or": "bitwise_or",
    "bit_xor": "bitwise_xor", "identity": "clone", "if_": "where", "is_infinity": "isinf",
    "is_nan": "isnan", "logical_equals": "eq", "logical_greater_than": "gt",
    "logical_greater_than_or_equal": "ge", "logical_less_than": "lt",
    "logical_less_than_or_equal": "le", "max": "maximum", "min": "minimum", "negate": "neg",
    "recip": "reciprocal",
}
"""PyTorch's, where it differs; a name of DirectML's that PyTorch lacks has no peer."""

_ONNX_NAMES = {
    "activation_celu": "Celu", "activation_elu": "Elu", "activation_leaky_relu": "LeakyRelu",
    "activation_relu": "Relu", "activation_scaled_elu": "Selu", "activation_sigmoid": "Sigmoid",
    "activation_softplus": "Softplus", "activation_softsign": "Softsign",
    "activation_tanh": "Tanh", "activation_hard_sigmoid": "HardSigmoid",
    "activation_hard_swish": "HardSwish", "activation_thresholded_relu": "ThresholdedRelu",
    "add1": "Add", "divide": "Div", "logical_equals": "Equal", "logical_greater_than": "Greater",
    "logical_greater_than_or_equal": "GreaterOrEqual", "logical_less_than": "Less",
    "logical_less_than_or_equal": "LessOrEqual", "multiply": "Mul", "negate": "Neg",
    "recip": "Reciprocal", "subtract": "Sub", "is_nan": "IsNaN", "is_infinity": "IsInf",
    **{name: name.capitalize() for name in (
        "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh",
        "erf", "exp", "floor", "identity", "log", "max", "mean", "min", "pow", "round", "sign",
        "sin", "sinh", "sqrt", "tan", "tanh")},
}


def elementwise(name: str, reference: Reference) -> Recipe:
    """Of arrays of as many bytes, whatever the width."""
    operator = "DML_OPERATOR_" + name
    data_type = DataType.of(reference.data_type)
    types = data_type.family

    def make(device: Any, scale: Scale) -> Iterator[Case]:
        import kompute_dml as dml

        definition = definitions()[operator]
        function = definition.function_name
        compute = getattr(dml, function)
        expected = reference.compute
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
    patterns: list[Pattern], count: int, compute: Callable[..., Any]
) -> Callable[[Any], str]:
    """Parts of the output against ``compute`` in float64."""

    def expected(key: Any) -> np.ndarray:
        at = offsets(key, (count,), (1,))
        parts = [p.at(at) for p in patterns]
        return np.asarray(compute(*[
            x.astype(np.float64) if x.dtype.kind == "f" else x for x in parts
        ]))

    return sampled((count,), expected, close)


def _peers(
    function: str, patterns: list[Pattern], compute: Callable[..., Any], attributes: dict[str, Any]
) -> dict[str, Any]:
    def torch_peers(library: Any) -> Iterator[Peer]:
        found = library.torch
        for part in _TORCH_NAMES.get(function, function).split("."):
            found = getattr(found, part, None)
        # Attributes have other names and meanings there.
        if found is None or attributes:
            return
        inputs = [library.tensor(p) for p in patterns]
        yield Peer("torch", lambda: found(*inputs))

    def onnxruntime_peers(library: Any) -> Iterator[Peer]:
        if function not in _ONNX_NAMES or attributes:
            return
        yield Peer("onnxruntime",
                   library.session(_ONNX_NAMES[function], [p.host() for p in patterns]))

    def numpy_peers(library: Any) -> Iterator[Peer]:
        arrays = [p.host() for p in patterns]
        yield Peer("numpy", lambda: np.asarray(compute(*arrays)), checked=False)

    return {"torch": torch_peers, "onnxruntime": onnxruntime_peers, "numpy": numpy_peers}


def other(
    name: str,
    types: str,
    inputs: Callable[[int], list[Pattern]],
    compute: Callable[..., Any],
    reference: Callable[..., np.ndarray],
    out_type: Any = "float32",
    whole: bool = False,
) -> Recipe:
    """An operator that is called in its own way: ``compute(dml, constants, out, *inputs)``.

    ``reference`` is NumPy's ``(at, *inputs)`` of the elements at these places, or of all where the
    ``whole`` input decides each element.
    """
    operator = "DML_OPERATOR_" + name

    def make(device: Any, scale: Scale) -> Iterator[Case]:
        import kompute_dml as dml

        n = scale.elements
        patterns = inputs(n)
        tensors, out = [p.tensor(device) for p in patterns], device.empty([n], out_type)
        constants = device.tensor(_STEP), device.tensor(_ZERO)

        def dispatch() -> Any:
            compute(dml, constants, out, *tensors)
            return out

        def expected(key: Any) -> np.ndarray:
            at = offsets(key, (n,), (1,))
            if whole:
                return reference(np.arange(n), *[p.host() for p in patterns])[at]
            return reference(at, *[p.at(at) for p in patterns])

        def numpy_peers(library: Any) -> Iterator[Peer]:
            arrays, at = [p.host() for p in patterns], np.arange(n)
            yield Peer("numpy", lambda: reference(at, *arrays), checked=False)

        yield Case(
            operator, types, f"[{n}]", dispatch, sampled((n,), expected, close),
            touched_bytes(t.desc for t in (*tensors, out)), peers={"numpy": numpy_peers},
        )

    return Recipe(operator, types, make)


def _floats(n: int, *seeds: int) -> list[Pattern]:
    return [numbers(np.float32, n, -1, 1, seed) for seed in seeds]


def _bytes(n: int, *seeds: int, limit: int = 256) -> list[Pattern]:
    return [numbers(np.uint8, n, 0, limit, seed) for seed in seeds]


_STEP = np.array([1 / 64], np.float32)
_ZERO = np.array([128], np.uint8)


def _dynamically_quantized(at: Any, x: np.ndarray) -> np.ndarray:
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    step = (high - low) / np.float32(255)
    zero = np.clip(np.rint(-low / step), 0, 255)
    return np.clip(np.rint(x / step) + zero, 0, 255)


def _dynamic(dml: Any, constants: Any, out: Any, x: Any) -> None:
    step, zero = (out.device.empty([1], t) for t in ("float32", "uint8"))
    dml.dynamic_quantize_linear(x, out=(out, step, zero))


def _chosen(at: Any, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(condition, x, y)


def _scaled(dml: Any, constants: Any, out: Any, x: Any) -> None:
    x, out = x.reshape(1, 1, 1, -1), out.reshape(1, 1, 1, -1)
    dml.value_scale_2d(x, scale=2.0, bias=[0.5], out=out)


_WRITTEN: tuple[Recipe, ...] = (
    *(elementwise(name, reference) for name, reference in REFERENCES.items()),
    other("DYNAMIC_QUANTIZE_LINEAR", "f32 -> u8", lambda n: _floats(n, 5), _dynamic,
          _dynamically_quantized, "uint8", whole=True),
    other("ELEMENT_WISE_QUANTIZE_LINEAR", "f32 -> u8", lambda n: _floats(n, 5),
          lambda dml, c, out, x: dml.quantize_linear(x, *c, out=out),
          lambda at, x: np.clip(np.rint(x / _STEP) + np.float32(128), 0, 255), "uint8"),
    other("ELEMENT_WISE_DEQUANTIZE_LINEAR", "u8 -> f32", lambda n: _bytes(n, 5),
          lambda dml, c, out, x: dml.dequantize_linear(x, *c, out=out),
          lambda at, x: (x.astype(np.float32) - 128) * _STEP),
    other("ELEMENT_WISE_QUANTIZED_LINEAR_ADD", "u8", lambda n: _bytes(n, 5, 6),
          lambda dml, c, out, x, y: dml.quantized_linear_add(x, *c, y, *c, *c, out=out),
          lambda at, x, y: np.clip(x.astype(np.int16) + y - 128, 0, 255), "uint8"),
    other("ELEMENT_WISE_IF", "u8, f32", lambda n: [*_bytes(n, 5, limit=2), *_floats(n, 6, 7)],
          lambda dml, c, out, *x: dml.if_(*x, out=out), _chosen),
    other("FILL_VALUE_CONSTANT", "f32", lambda n: [],
          lambda dml, c, out: dml.fill_value_constant(out.sizes, value=2.5, out=out),
          lambda at: np.full(at.shape, 2.5, np.float32)),
    other("FILL_VALUE_SEQUENCE", "f32", lambda n: [],
          lambda dml, c, out: dml.fill_value_sequence(
              out.sizes, value_start=1.0, value_delta=0.25, out=out),
          lambda at: 1 + 0.25 * at),
    other("VALUE_SCALE_2D", "f32", lambda n: _floats(n, 5), _scaled,
          lambda at, x: 2 * x + np.float32(0.5)),
)


def _by_itself(definition: Definition, kind: DataType) -> Reference:
    """Where nobody wrote down what NumPy does: its own results on tensors with gaps.

    Another path through its shader makes those.
    """
    function = functions()[definition.function_name]
    options = inspect.signature(function).parameters.values()
    needed = {p.name: 1.0 for p in options
              if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name != "data_type"}

    def compute(device: Any, *parts: np.ndarray) -> np.ndarray:
        gaps = [device.tensor(np.repeat(p.astype(kind.dtype), 2))[::2] for p in parts]
        result: np.ndarray = function(*gaps, **needed).numpy()
        return result

    low, high = (0.1, 0.9) if kind.is_float else (1, 100)
    return Reference(compute, kind.dtype.name, needed, low, high, on_device=True)


def _types(definition: Definition) -> tuple[DataType, ...]:
    """Of the first input, at the newest feature level."""
    types: tuple[DataType, ...] = definition.spec.support[0][1][
        definition.spec.inputs[0].name].data_types
    return types


def _usual(definition: Definition) -> DataType:
    types = _types(definition)
    return DataType.FLOAT32 if DataType.FLOAT32 in types else types[0]


def _shaders(definition: Definition) -> bool:
    return definition.shaders[0].startswith("elementwise_")


_NAMED = {recipe.operator for recipe in _WRITTEN}

ELEMENTWISE = (*_WRITTEN, *(
    elementwise(name.removeprefix("DML_OPERATOR_"), _by_itself(definition, _usual(definition)))
    for name, definition in definitions().items()
    if name not in _NAMED and _shaders(definition)
))


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
"""Unary and binary operators with each of the types that neural networks compute in."""
