"""Shape arithmetic: nodes whose inputs the host knows while it plans are evaluated with NumPy.

The host knows small constants, the shape of every value, and what follows from them. Such nodes do
not use the device. Their results decide sizes, axes and bounds of other nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ValidationError
from ..sizes import numbers, whole
from .graph import OnnxNode, OnnxValue, number_type

HOST_BYTES = 4 << 10
"""The most bytes of a constant of which the host keeps a copy: sizes, axes and bounds are small."""
_WHOLE = (2**31 - 1, 2**63 - 1)
LARGE = 1 << 20
"""The most elements that the host computes if a row can compute them on the device."""

Arrays = Sequence["np.ndarray | None"]
Evaluator = Callable[[OnnxNode, Arrays], Any]


def can(node: OnnxNode) -> bool:
    """Whether the host can evaluate such a node."""
    return (
        not node.domain and node.op in _EVALUATORS
        and all(value is not None for value in node.attributes.values())
        and all(value is None or value.dtype is not None for value in node.inputs)
    )


def reads(node: OnnxNode) -> list[OnnxValue]:
    """The inputs whose values an evaluation needs."""
    return [] if node.op in _OF_SIZES else [value for value in node.inputs if value is not None]


def evaluate(node: OnnxNode, inputs: Arrays) -> list[np.ndarray]:
    """The node's outputs. An input may hold any values if only its shape counts."""
    try:
        with np.errstate(all="ignore"):  # quotients by 0 are infinite, as on the device
            results = _EVALUATORS[node.op](node, inputs)
    except ZeroDivisionError:
        raise ValidationError("an integer is divided by 0") from None
    return [np.asarray(y) for y in (results if isinstance(results, list) else [results])]


def _given(inputs: Arrays, index: int) -> np.ndarray:
    x = inputs[index] if index < len(inputs) else None
    if x is None:
        raise ValidationError(f"expected input {index} to be given")
    return x


def _numbers(node: OnnxNode, inputs: Arrays, index: int, name: str) -> list[int] | None:
    """Whole numbers from an input, or in older versions from an attribute."""
    x = inputs[index] if index < len(inputs) else None
    values = node.attributes.get(name) if x is None else x.reshape(-1).tolist()
    return None if values is None else [whole(n) for n in values]


def _shape(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    sizes = _given(inputs, 0).shape
    begin, end = node.attributes.get("start", 0), node.attributes.get("end", len(sizes))
    return numbers(sizes[begin:end])


def _binary(function: Callable[..., Any]) -> Evaluator:
    def evaluator(node: OnnxNode, inputs: Arrays) -> Any:
        return function(_given(inputs, 0), _given(inputs, 1))

    return evaluator


def _unary(function: Callable[..., Any]) -> Evaluator:
    return lambda node, inputs: function(_given(inputs, 0))


def _folded(function: Callable[..., Any]) -> Evaluator:
    def evaluator(node: OnnxNode, inputs: Arrays) -> Any:
        result = _given(inputs, 0)
        for i in range(1, len(inputs)):
            result = function(result, _given(inputs, i))
        return result

    return evaluator


def _divide(a: np.ndarray, b: np.ndarray) -> Any:
    if a.dtype.kind == "f":
        return a / b
    if not b.all():
        raise ZeroDivisionError
    quotient = abs(a) // abs(b)
    return np.where((a < 0) == (b < 0), quotient, -quotient).astype(a.dtype)


def _modulus(node: OnnxNode, inputs: Arrays) -> Any:
    a, b = _given(inputs, 0), _given(inputs, 1)
    if a.dtype.kind != "f" and not b.all():
        raise ZeroDivisionError
    return np.fmod(a, b) if node.attributes.get("fmod", 0) else np.mod(a, b)


def _power(a: np.ndarray, b: np.ndarray) -> Any:
    if a.dtype.kind != "f" and (b.dtype.kind == "f" or (b < 0).any()):
        # In FLOAT64, and then rounded to 0, as on ONNX Runtime's CPU. Open sizes are of INT64.
        power = np.power(a.astype(np.float64), b.astype(np.float64))
        return power.astype(np.int64 if a.dtype.hasobject else a.dtype)
    return np.power(a, b.astype(a.dtype)).astype(a.dtype)


def _clip(node: OnnxNode, inputs: Arrays) -> Any:
    y = _given(inputs, 0)
    for i, name, function in ((1, "min", np.maximum), (2, "max", np.minimum)):
        bound = inputs[i] if i < len(inputs) else None
        bound = node.attributes.get(name) if bound is None else bound
        y = y if bound is None else function(y, bound)
    return y


def _cast(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    return _given(inputs, 0).astype(number_type(node.attributes["to"]))


def _gather(node: OnnxNode, inputs: Arrays) -> Any:
    axis = node.attributes.get("axis", 0)
    return np.take(_given(inputs, 0), _given(inputs, 1), axis)


def _concat(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    return np.concatenate([x for x in inputs if x is not None], node.attributes.get("axis", 1))


def window(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """The first element, and the number of elements, that Slice takes of a dimension."""
    if step == 0:
        raise ValidationError("expected steps other than 0")
    if step < 0 and end in _WHOLE:
        end = -1  # ONNX Runtime takes them for "to the end", whatever the direction
    elif end < 0:
        end += size
    low, high = (0, size) if step > 0 else (-1, size - 1)
    begin = min(max(start + size if start < 0 else start, 0), high)
    return begin, max(-(-(min(max(end, low), high) - begin) // step), 0)


def _slice(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    x = _given(inputs, 0)
    starts = _numbers(node, inputs, 1, "starts") or []
    ends = _numbers(node, inputs, 2, "ends") or []
    axes = _numbers(node, inputs, 3, "axes") or list(range(len(starts)))
    steps = _numbers(node, inputs, 4, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        begin, count = window(x.shape[axis], start, end, step)
        x = np.take(x, begin + step * np.arange(count), axis)
    return x


def _split(node: OnnxNode, inputs: Arrays) -> list[np.ndarray]:
    x, axis = _given(inputs, 0), node.attributes.get("axis", 0)
    sizes = _numbers(node, inputs, 1, "split")
    if sizes is None:
        each = -(-x.shape[axis] // len(node.outputs))
        sizes = [each] * (len(node.outputs) - 1)
        ends = np.cumsum(sizes)
    else:
        ends = np.cumsum(sizes[:-1])
    return np.split(x, ends.astype(int), axis)


def _squeeze(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    axes = _numbers(node, inputs, 1, "axes")
    return np.squeeze(_given(inputs, 0), None if axes is None else tuple(axes))


def _unsqueeze(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    return np.expand_dims(_given(inputs, 0), tuple(_numbers(node, inputs, 1, "axes") or ()))


def _reshape(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    x, sizes = _given(inputs, 0), _given(inputs, 1).reshape(-1).tolist()
    if not node.attributes.get("allowzero", 0):
        sizes = [x.shape[d] if n == 0 else n for d, n in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    x = _given(inputs, 0)
    axis = node.attributes.get("axis", 1)
    return x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1)


def _transpose(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    return np.transpose(_given(inputs, 0), node.attributes.get("perm"))


def _expand(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    x, sizes = _given(inputs, 0), _given(inputs, 1).reshape(-1).tolist()
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(sizes)))


def _constant_of_shape(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    value = np.asarray(node.attributes.get("value", np.zeros(1, np.float32)))
    return np.broadcast_to(value.reshape(()), _given(inputs, 0).reshape(-1).tolist())


def _range(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    start, limit, delta = (_given(inputs, i).reshape(())[()] for i in range(3))
    if delta == 0:
        raise ZeroDivisionError
    count = max(int(np.ceil((limit - start) / delta)), 0)
    return start + np.arange(count, dtype=start.dtype) * delta


def _where(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    return np.where(_given(inputs, 0), _given(inputs, 1), _given(inputs, 2))


def _reduced(function: Callable[..., Any]) -> Evaluator:
    def evaluator(node: OnnxNode, inputs: Arrays) -> Any:
        x, axes = _given(inputs, 0), _numbers(node, inputs, 1, "axes")
        if not axes:
            if node.attributes.get("noop_with_empty_axes", 0):
                return x
            axes = list(range(x.ndim))
        keeps = bool(node.attributes.get("keepdims", 1))
        return function(x, axis=tuple(axes), keepdims=keeps).astype(x.dtype)

    return evaluator


def depth_of(values: np.ndarray) -> int:
    """How many elements OneHot makes of an index."""
    count = int(values.reshape(-1)[0]) if values.size else 0
    if count < 1:
        raise ValidationError(f"expected a depth of at least 1, but got {count}")
    return count


def _one_hot(node: OnnxNode, inputs: Arrays) -> np.ndarray:
    indices, depth, (off, on) = (np.asarray(_given(inputs, i)) for i in range(3))
    count = depth_of(depth)
    axis = node.attributes.get("axis", -1) % (indices.ndim + 1)
    places = np.arange(count).reshape(-1, *[1] * (indices.ndim - axis))
    indices = np.where(indices < 0, indices + count, indices)
    return np.where(np.expand_dims(indices, axis) == places, on, off)


_OF_SIZES = ("Shape", "Size")
_EVALUATORS: dict[str, Evaluator] = {
    "Shape": _shape,
    "Size": lambda node, inputs: np.int64(_given(inputs, 0).size),
    "Identity": _unary(np.asarray), "Cast": _cast, "Reshape": _reshape, "Flatten": _flatten,
    "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Transpose": _transpose, "Expand": _expand,
    "Gather": _gather, "OneHot": _one_hot, "Concat": _concat, "Slice": _slice, "Split": _split,
    "Tile": _binary(np.tile), "Range": _range, "ConstantOfShape": _constant_of_shape,
    "NonZero": _unary(lambda x: np.array(np.nonzero(np.atleast_1d(x)), np.int64)),
    "Add": _binary(np.add), "Sub": _binary(np.subtract), "Mul": _binary(np.multiply),
    "Div": _binary(_divide), "Mod": _modulus, "Pow": _binary(_power),
    "Min": _folded(np.minimum), "Max": _folded(np.maximum), "Sum": _folded(np.add),
    "Neg": _unary(np.negative), "Abs": _unary(np.abs), "Sign": _unary(np.sign),
    "Floor": _unary(np.floor), "Ceil": _unary(np.ceil), "Round": _unary(np.rint),
    "Exp": _unary(np.exp), "Log": _unary(np.log), "Clip": _clip,
    "Sqrt": _unary(np.sqrt), "Reciprocal": _unary(np.reciprocal),
    "Equal": _binary(np.equal), "Greater": _binary(np.greater), "Less": _binary(np.less),
    "GreaterOrEqual": _binary(np.greater_equal), "LessOrEqual": _binary(np.less_equal),
    "Not": _unary(np.logical_not), "And": _binary(np.logical_and), "Or": _binary(np.logical_or),
    "Xor": _binary(np.logical_xor), "Where": _where,
    "ReduceProd": _reduced(np.prod), "ReduceSum": _reduced(np.sum),
    "ReduceMax": _reduced(np.max), "ReduceMin": _reduced(np.min),
}
