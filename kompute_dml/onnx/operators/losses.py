"""How ONNX's losses lower: what the classes' shares are worth where the target says."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...attributes import ReduceFunction
from ...errors import ValidationError
from ...graph.array import BOOL, Array
from ...graph.builder import Builder
from ..graph import OnnxNode
from ..lowerings import Inputs, along_axis, emit_elementwise, given
from ..row import Mapping
from .gather import gather, gather_elements
from .reduction import reduced

_INDEX = np.dtype("int32")


def likelihood(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """NegativeLogLikelihoodLoss."""
    x, target = given(inputs, 0), given(inputs, 1)
    weight = inputs[2] if len(inputs) > 2 else None
    reduction = node.attributes.get("reduction", "mean")
    if len(x.shape) < 2 or target.shape != (x.shape[0], *x.shape[2:]):
        raise ValidationError(f"expected a class for each of {list(x.shape)} but the second "
                              f"dimension, but got {list(target.shape)}")
    zero = builder.constant(np.zeros((), x.dtype))
    target = _of(builder, "CAST", _INDEX, target)
    ignored = None
    if "ignore_index" in node.attributes:
        number = builder.constant(np.array(node.attributes["ignore_index"], _INDEX))
        ignored = _of(builder, "ELEMENT_WISE_LOGICAL_EQUALS", BOOL, target, number)
        any_class = builder.constant(np.zeros((), _INDEX))
        target = _of(builder, "ELEMENT_WISE_IF", _INDEX, ignored, any_class, target)
    indices = builder.reshape(target, (x.shape[0], 1, *x.shape[2:]))
    (chosen,) = gather_elements(builder, _with(node, axis=1), [x, indices])
    loss = _of(builder, "ELEMENT_WISE_NEGATE", x.dtype, builder.reshape(chosen, target.shape))
    weights = None if weight is None else gather(builder, _with(node, axis=0), [weight, target])[0]
    if weights is not None:
        loss = _of(builder, "ELEMENT_WISE_MULTIPLY", x.dtype, loss, weights)
    if ignored is not None:
        loss = _of(builder, "ELEMENT_WISE_IF", x.dtype, ignored, zero, loss)
        one = builder.constant(np.ones((), x.dtype)) if weights is None else weights
        weights = _of(builder, "ELEMENT_WISE_IF", x.dtype, ignored, zero, one)
    if reduction == "none":
        return [loss]
    if reduction == "mean" and weights is None:
        return [_total(builder, loss, ReduceFunction.AVERAGE)]
    total = _total(builder, loss, ReduceFunction.SUM)
    if reduction == "mean" and weights is not None:
        total = _of(builder, "ELEMENT_WISE_DIVIDE", x.dtype, total,
                    _total(builder, weights, ReduceFunction.SUM))
    return [total]


def cross_entropy(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """SoftmaxCrossEntropyLoss: of the logarithms of the classes' shares, which are an output."""
    (shares,) = along_axis("ACTIVATION_LOG_SOFTMAX1")(
        builder, _with(node, axis=1), [given(inputs, 0)])
    loss = likelihood(builder, node, [shares, *inputs[1:]])
    return [*loss, shares][: len(node.outputs)]


def _with(node: OnnxNode, **attributes: int) -> OnnxNode:
    return OnnxNode(node.op, node.domain, node.since, node.inputs, node.outputs, dict(attributes),
                    node.name)


def _of(builder: Builder, operator: str, dtype: np.dtype[Any], *arrays: Array) -> Array:
    return emit_elementwise(builder, operator, list(arrays), dtype, {})


def _total(builder: Builder, x: Array, function: ReduceFunction) -> Array:
    (y,) = reduced(builder, "REDUCE", x, range(len(x.shape)), False, x.dtype, function=function)
    return y


def _typed(node: OnnxNode) -> str | None:
    """The weights of a loss have the type of the shares."""
    x, weights = node.input(0), node.input(2)
    differ = x is not None and weights is not None and x.dtype != weights.dtype
    return "weights of another type" if differ else None


ROWS: tuple[Mapping, ...] = (
    *[Mapping(op, since, "REDUCE", build, fields=("InputTensor", None),
              attributes=("ignore_index", "reduction"), results=("OutputTensor",) * 2,
              refuses=_typed)
      for op, since, build in (
          ("NegativeLogLikelihoodLoss", (12, 13, 22), likelihood),
          ("SoftmaxCrossEntropyLoss", (12, 13), cross_entropy))],
)
