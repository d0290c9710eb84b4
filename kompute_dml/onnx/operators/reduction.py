"""Lowerings of reductions, scans and TopK."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...attributes import AxisDirection, ReduceFunction
from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import packed_strides
from ..graph import OnnxNode
from ..lowerings import Build, Inputs, dimension, given, host, named_axes
from ..row import Mapping


def _seen(x: Array) -> tuple[Array, Sequence[int], Sequence[int]]:
    return x, x.shape or (1,), x.strides or (1,)


def _of_nothing(dtype: np.dtype[Any], attributes: dict[str, Any]) -> Any:
    """ONNX Runtime's result of a reduction without elements, which DirectML does not allow."""
    function = attributes.get("function")
    if function is None:
        raise ValidationError("without elements there is no index")
    least, largest = (-np.inf, np.inf) if dtype.kind == "f" else (False, True) if (
        dtype.kind == "b") else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if function in (ReduceFunction.MAX, ReduceFunction.LOG_SUM, ReduceFunction.LOG_SUM_EXP):
        return least
    if function is ReduceFunction.MIN:
        return largest
    return int(function is ReduceFunction.MULTIPLY)  # 0 is also the mean


def reduced(
    builder: Builder, operator: str, x: Array, axes: Sequence[int], keep: bool,
    dtype: np.dtype | str, **attributes: Any,
) -> list[Array]:
    """A reduction of ``axes``, which may be all axes."""
    axes = sorted({dimension(a, len(x.shape)) for a in axes})
    sizes = [1 if d in axes else n for d, n in enumerate(x.shape)]
    y = builder.new(sizes if keep else [n for d, n in enumerate(sizes) if d not in axes], dtype)
    if y.storage is not None:
        if x.storage is None:
            return [builder.constant(np.full(y.shape, _of_nothing(x.dtype, attributes), y.dtype))]
        builder.emit(
            operator,
            {"input_tensor": _seen(x), "output_tensor": (y, sizes or (1,), packed_strides(sizes)
                                                         or (1,))},
            axis_count=len(axes), axes=tuple(axes), **attributes)
    return [y]


def reduction(function: ReduceFunction) -> Build:
    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        axes = named_axes(node, inputs)
        if not axes:
            axes = [] if node.attributes.get("noop_with_empty_axes", 0) else [
                *range(len(x.shape))]
        keep = bool(node.attributes.get("keepdims", 1))
        return reduced(builder, "REDUCE", x, axes, keep, x.dtype, function=function)

    return build


def argument(operator: str) -> Build:
    """ArgMin and ArgMax."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        direction = (AxisDirection.DECREASING if node.attributes.get("select_last_index", 0)
                     else AxisDirection.INCREASING)
        return reduced(builder, operator, given(inputs, 0), [node.attributes.get("axis", 0)],
                        bool(node.attributes.get("keepdims", 1)), "int64",
                        axis_direction=direction)

    return build


def _one(inputs: Inputs, index: int) -> int:
    """The only number of an input."""
    values = host(inputs, index)
    if values is None or values.size != 1:
        raise ValidationError(f"expected input {index} to hold one number")
    return int(values.reshape(-1)[0])


def top_k(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    axis = dimension(node.attributes.get("axis", -1), len(x.shape))
    k = node.attributes["k"] if "k" in node.attributes else _one(inputs, 1)
    sizes = [k if d == axis else n for d, n in enumerate(x.shape)]
    values, indices = builder.new(sizes, x.dtype), builder.new(sizes, "int64")
    if values.storage is not None:
        largest = node.attributes.get("largest", 1)
        # Indices are not negative, so as UINT64 they have the same bits.
        unsigned = replace(indices, dtype=np.dtype("uint64"))
        builder.emit(
            "TOP_K1",
            {"input_tensor": _seen(x), "output_value_tensor": _seen(values),
             "output_index_tensor": _seen(unsigned)},
            axis=axis, k=k,
            axis_direction=AxisDirection.DECREASING if largest else AxisDirection.INCREASING)
    return [values, indices]


def cumulative(operator: str, exclusive: str) -> Build:
    """CumSum and CumProd. ``exclusive`` is DirectML's field."""

    def build(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        x = given(inputs, 0)
        axis = dimension(_one(inputs, 1), len(x.shape))
        y = builder.new(x.shape, x.dtype)
        if y.storage is not None:
            reverse = node.attributes.get("reverse", 0)
            builder.emit(
                operator, {"input_tensor": _seen(x), "output_tensor": _seen(y)}, axis=axis,
                axis_direction=AxisDirection.DECREASING if reverse else AxisDirection.INCREASING,
                **{exclusive: int(node.attributes.get("exclusive", 0))})
        return [y]

    return build


ROWS: tuple[Mapping, ...] = (
    *[Mapping(op, since, "REDUCE", reduction(function), host=(1,),
          function="DML_REDUCE_FUNCTION_" + function.name,
          attributes=("axes", "keepdims", "noop_with_empty_axes"))
      for op, since, function in (
          ("ReduceSum", (1, 11, 13), ReduceFunction.SUM),
          ("ReduceMean", (1, 11, 13, 18), ReduceFunction.AVERAGE),
          ("ReduceProd", (1, 11, 13, 18), ReduceFunction.MULTIPLY),
          ("ReduceMax", (1, 11, 12, 13, 18, 20), ReduceFunction.MAX),
          ("ReduceMin", (1, 11, 12, 13, 18, 20), ReduceFunction.MIN),
          ("ReduceL1", (1, 11, 13, 18), ReduceFunction.L1),
          ("ReduceL2", (1, 11, 13, 18), ReduceFunction.L2),
          ("ReduceLogSum", (1, 11, 13, 18, 28), ReduceFunction.LOG_SUM),
          ("ReduceLogSumExp", (1, 11, 13, 18, 28), ReduceFunction.LOG_SUM_EXP),
          ("ReduceSumSquare", (1, 11, 13, 18), ReduceFunction.SUM_SQUARE))],
    *[Mapping(op, (1, 11, 12, 13), op.upper(), argument(op.upper()),
          attributes=("axis", "keepdims", "select_last_index")) for op in ("ArgMax", "ArgMin")],
    Mapping("TopK", (1, 10, 11, 24), "TOP_K1", top_k, host=(1,),
        results=("OutputValueTensor", None),
        attributes=("axis", "k", "largest", "sorted")),
    Mapping("CumSum", (11, 14), "CUMULATIVE_SUMMATION",
        cumulative("CUMULATIVE_SUMMATION", "has_exclusive_sum"), host=(1,),
        attributes=("exclusive", "reverse")),
    Mapping("CumProd", (26,), "CUMULATIVE_PRODUCT",
        cumulative("CUMULATIVE_PRODUCT", "has_exclusive_product"), host=(1,),
        attributes=("exclusive", "reverse")),
)
