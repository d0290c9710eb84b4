"""Lowerings of matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import UnsupportedError, ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import broadcast_sizes, product
from ..graph import OnnxNode
from ..lowerings import Build, Inputs, Seen, along_axis, emit_elementwise, given
from ..row import MICROSOFT, Mapping, Refusal
from .quantization import dynamic_quantize

_ACTIVATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "Relu": ("RELU", {}), "Tanh": ("TANH", {}), "Sigmoid": ("SIGMOID", {}),
    "Softsign": ("SOFTSIGN", {}), "Softplus": ("SOFTPLUS", {}),
    "LeakyRelu": ("LEAKY_RELU", {"alpha": 0.01}), "Elu": ("ELU", {"alpha": 1.0}),
    "ThresholdedRelu": ("THRESHOLDED_RELU", {"alpha": 1.0}),
    "HardSigmoid": ("HARD_SIGMOID", {"alpha": 0.2, "beta": 0.5}),
    "ScaledTanh": ("SCALED_TANH", {"alpha": 1.0, "beta": 1.0}),
    "ParametricSoftplus": ("PARAMETRIC_SOFTPLUS", {"alpha": 1.0, "beta": 1.0}),
    "Selu": ("SCALED_ELU", {"alpha": 1.67326319217681884765625,
                            "gamma": 1.05070102214813232421875}),
}
"""What com.microsoft's fused products may name: DirectML's activation, and its fields."""
_ALONG_AXIS = {"Softmax": "ACTIVATION_SOFTMAX1", "LogSoftmax": "ACTIVATION_LOG_SOFTMAX1",
               "Hardmax": "ACTIVATION_HARDMAX1"}
_MAX_BATCHES = 2
"""The most leading dimensions of DirectML's products."""


def _padded(inputs: Inputs, count: int) -> list[Array | None]:
    absent: list[Array | None] = [None] * (count - len(inputs))
    return [*inputs, *absent]


def matmul_integer_to_float(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """A, B, scales, zero points and bias, A's per row and B's per column."""
    a, b, a_scale, b_scale, a_zero, b_zero, bias = _padded(inputs, 7)
    if a is None or b is None or a_scale is None or b_scale is None:
        raise ValidationError("expected A, B and both scales to be given")
    return [_product(
        builder, "MATRIX_MULTIPLY_INTEGER_TO_FLOAT", a, b,
        {"a_scale_tensor": (a_scale, -2), "b_scale_tensor": (b_scale, -1),
         "a_zero_point_tensor": (unless_zero(a_zero), -2),
         "b_zero_point_tensor": (unless_zero(b_zero), -1)},
        a_scale.dtype, bias,
    )]


def matmul_integer(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    a, b, a_zero, b_zero = _padded(inputs, 4)
    if a is None or b is None:
        raise ValidationError("expected A and B to be given")
    return [_product(
        builder, "MATRIX_MULTIPLY_INTEGER", a, b,
        {"a_zero_point_tensor": (unless_zero(a_zero), -2),
         "b_zero_point_tensor": (unless_zero(b_zero), -1)},
        np.dtype("int32"), None,
    )]


def unless_zero(zero: Array | None) -> Array | None:
    """Zero points that are known to be 0 only cost the sums of the other matrix."""
    return None if zero is not None and zero.host is not None and not zero.host.any() else zero


def qlinear_matmul(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (
        given(inputs, i) for i in range(8))
    a_scale, b_scale, y_scale = (
        t if t.dtype == np.float32 else emit_elementwise(
            builder, "CAST", [t], np.dtype("float32"), {}) for t in (a_scale, b_scale, y_scale))
    return [_product(
        builder, "QUANTIZED_LINEAR_MATRIX_MULTIPLY", a, b,
        {"a_scale_tensor": (a_scale, -2), "a_zero_point_tensor": (a_zero, -2),
         "b_scale_tensor": (b_scale, -1), "b_zero_point_tensor": (b_zero, -1),
         "output_scale_tensor": (y_scale, -2), "output_zero_point_tensor": (y_zero, -2)},
        y_zero.dtype, None,
    )]


def matmul(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """MatMul, and FusedMatMul's attributes."""
    a, b = given(inputs, 0), given(inputs, 1)
    read = node.attributes.get
    a, b = _rows_first(a, read("transBatchA", 0)), _rows_first(b, read("transBatchB", 0))
    a, b = transposed(a, read("transA", 0)), transposed(b, read("transB", 0))
    return [_product(builder, "GEMM", a, b, {}, a.dtype, None, **_factors(read("alpha", 1.0)))]


def activated(build: Build) -> Build:
    """FusedGemm and FusedMatMulActivation: a product, then an activation."""

    def built(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
        (y,) = build(builder, node, inputs)
        name = node.attributes.get("activation", "")
        if not name:
            return [y]
        if name in _ALONG_AXIS:
            axis = {"axis": node.attributes.get("activation_axis", -1)}
            return list(along_axis(_ALONG_AXIS[name])(
                builder, replace(node, attributes=axis), [y]))
        operator, defaults = _ACTIVATIONS[name]
        values = {field: float(node.attributes.get(f"activation_{field}", default))
                  for field, default in defaults.items()}
        if name == "Softplus":
            values["steepness"] = 1.0
        return [emit_elementwise(builder, f"ACTIVATION_{operator}", [y], y.dtype, values)]

    return built


def activation_refusal(node: OnnxNode) -> str | None:
    name = node.attributes.get("activation", "")
    return None if not name or name in _ALONG_AXIS or name in _ACTIVATIONS else (
        f"activation={name!r}")


def product_of(builder: Builder, a: Array, b: Array, c: Array | None = None) -> Array:
    """A by B, and C."""
    return _product(builder, "GEMM", a, b, {}, a.dtype, c, **_factors(1.0))


def gemm(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    a, b, c = given(inputs, 0), given(inputs, 1), _padded(inputs, 3)[2]
    read = node.attributes.get
    a, b = transposed(a, read("transA", 0)), transposed(b, read("transB", 0))
    beta = read("beta", 1.0)
    if 0 in a.shape and c is not None and beta != 1:
        raise UnsupportedError("a sum of nothing, and a scaled C")
    return [_product(builder, "GEMM", a, b, {}, a.dtype, c if beta else None,
                     **_factors(read("alpha", 1.0), beta))]


def _factors(alpha: float, beta: float = 1.0) -> dict[str, Any]:
    return dict(trans_a=0, trans_b=0, alpha=float(alpha), beta=float(beta))


def transposed(x: Array, transposes: int) -> Array:
    """A view with the last two dimensions exchanged."""
    rank = len(x.shape)
    if not transposes or rank < 2:
        return x
    return x.transpose((*range(rank - 2), rank - 1, rank - 2))


def _rows_first(x: Array, applies: int) -> Array:
    """FusedMatMul's transBatch: the first dimension counts rows, the ones after it batches."""
    rank = len(x.shape)
    if not applies or rank < 3:
        return x
    return x.transpose((*range(1, rank - 1), 0, rank - 1))


def dynamic_quantize_matmul(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    a, b, b_scale, b_zero, bias = _padded(inputs, 5)
    y, scale, zero = dynamic_quantize(builder, node, [a])
    return matmul_integer_to_float(builder, node, [y, b, scale, b_scale, zero, b_zero, bias])


def _product(
    builder: Builder, operator: str, a: Array, b: Array,
    vectors: dict[str, tuple[Array | None, int]], dtype: np.dtype, bias: Array | None,
    **attributes: Any,
) -> Array:
    """NumPy's matmul. ``vectors`` maps tensor fields to scales and zero points, and their axis."""
    before, after = a.shape[:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    a = builder.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a
    b = builder.reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else b
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise ValidationError(
            f"expected matrices of matching K, but got {list(a.shape)} and {list(b.shape)}"
        )
    (rows, k), columns = a.shape[-2:], b.shape[-1]
    leading = broadcast_sizes(a.shape[:-2], b.shape[:-2])
    whole = (*leading, rows, columns)
    y = builder.new(whole, dtype)
    result = builder.reshape(y, (*leading, *before[-1:], *after))
    if y.storage is None:
        return result
    if k == 0:
        # DirectML has no empty tensors. An empty sum leaves the bias.
        sums = builder.constant(np.zeros((), dtype)) if bias is None else bias
        return builder.reshape(builder.copy(sums.broadcast_to(whole)), result.shape)
    heads: tuple[int, ...] = ()
    if product(b.shape[:-2]) == 1:
        # With one B for all, the rows of all As are rows of a single product.
        rows = product(leading) * rows
    else:
        heads = leading if len(leading) <= _MAX_BATCHES else (product(leading),)

    def matrix(x: Array, height: int, width: int) -> Seen:
        x = builder.reshape(x, (*heads, height, width))
        return x, x.shape, x.strides

    def vector(x: Array | None, axis: int) -> Seen | None:
        if x is None:
            return None
        count = rows if axis == -2 else columns
        if axis == -2 and x.size not in (1, count):
            column = builder.reshape(x, (*x.shape, 1)) if len(x.shape) == 1 else x
            x = column.broadcast_to((*whole[:-1], 1))
        if x.size not in (1, count):
            raise ValidationError(
                f"expected scales and zero points of 1 or {count} elements, but got {list(x.shape)}"
            )
        x = builder.reshape(x, (x.size,))
        return x, x.shape, x.strides

    tensors = {f: vector(x, axis) for f, (x, axis) in vectors.items()}
    tensors["a_tensor"] = matrix(_lead(a, leading), rows, k)
    tensors["b_tensor"] = matrix(_lead(b, leading) if heads else b, k, columns)
    tensors["output_tensor"] = matrix(y, rows, columns)
    if bias is not None:
        field = "c_tensor" if operator == "GEMM" else "bias_tensor"
        tensors[field] = matrix(bias.broadcast_to(whole), rows, columns)
    builder.emit(operator, tensors, **attributes)
    return result


def _lead(x: Array, leading: Sequence[int]) -> Array:
    return x.broadcast_to((*leading, *x.shape[-2:]))


_TRANSPOSED = ("alpha", "transA", "transB", "transBatchA", "transBatchB")


def _matrices(node: OnnxNode) -> str | None:
    return _no_matrix(node, 0, 1)


def _no_matrix(node: OnnxNode, *indices: int) -> str | None:
    """Only a run may know the rank of a matrix."""
    for value in map(node.input, indices):
        if value is None or value.shape == ():
            return "a matrix without dimensions"
    return None


def _qlinear_matrices(node: OnnxNode) -> str | None:
    for index, axis in ((1, -2), (2, -2), (4, -1), (5, -1), (6, -2), (7, -2)):
        vector = node.input(index)
        if vector is None or vector.shape is None:
            return "a scale or zero point of unknown shape"
        if len(vector.shape) > 1 and any(
                n != 1 for d, n in enumerate(vector.shape, -len(vector.shape)) if d != axis):
            return "a scale or zero point for each batch"
    return _no_matrix(node, 0, 3)


def _vectors(*, a: tuple[int, ...], b: tuple[int, ...]) -> Refusal:
    """Refuse scales and zero points of A's rows and B's columns that vary over batches."""
    axes = {**dict.fromkeys(a, -2), **dict.fromkeys(b, -1)}

    def refuses(node: OnnxNode) -> str | None:
        for i, axis in axes.items():
            vector = node.input(i)
            if vector is None:
                continue
            if vector.shape is None:
                return "a scale or zero point of unknown shape"
            if any(n != 1 for d, n in enumerate(vector.shape, -len(vector.shape))
                   if d != axis and len(vector.shape) > 1):
                return "a scale or zero point for each batch"
        return _matrices(node)

    return refuses


ROWS: tuple[Mapping, ...] = (
    # Quantized products
    Mapping("MatMulIntegerToFloat", (1,), "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
        matmul_integer_to_float, MICROSOFT,
        fields=("ATensor", "BTensor", "AScaleTensor", "BScaleTensor", "AZeroPointTensor",
                "BZeroPointTensor", "BiasTensor"),
        refuses=_vectors(a=(2, 4), b=(3, 5)), multiplies=True),
    Mapping("MatMulInteger", (10,), "MATRIX_MULTIPLY_INTEGER", matmul_integer,
        fields=("ATensor", "BTensor", "AZeroPointTensor", "BZeroPointTensor"),
        refuses=_vectors(a=(2,), b=(3,)), multiplies=True),
    Mapping("DynamicQuantizeMatMul", (1,), "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
        dynamic_quantize_matmul, MICROSOFT,
        # A has the output's type until it is quantized.
        fields=("OutputTensor", "BTensor", "BScaleTensor", "BZeroPointTensor", "BiasTensor"),
        refuses=_vectors(a=(), b=(2, 3)), multiplies=True),
    # Products
    Mapping("QLinearMatMul", (10, 21), "QUANTIZED_LINEAR_MATRIX_MULTIPLY", qlinear_matmul,
        fields=("ATensor", None, "AZeroPointTensor", "BTensor", None, "BZeroPointTensor", None,
                "OutputZeroPointTensor"),
        refuses=_qlinear_matrices, multiplies=True),
    Mapping("MatMul", (1, 9, 13), "GEMM", matmul, refuses=_matrices, multiplies=True),
    Mapping("FusedMatMul", (1,), "GEMM", matmul, MICROSOFT,
        attributes=_TRANSPOSED, refuses=_matrices, multiplies=True),
    Mapping("TransposeMatMul", (1,), "GEMM", matmul, MICROSOFT, attributes=_TRANSPOSED,
        refuses=_matrices, multiplies=True),
    Mapping("Gemm", (1, 6, 7, 9, 11, 13), "GEMM", gemm,
        attributes=("alpha", "beta", "broadcast", "transA", "transB"), refuses=_matrices,
        multiplies=True),
    *[Mapping(op, (1,), "GEMM", activated(build), MICROSOFT,
          attributes=(*attributes, "activation", "activation_alpha", "activation_axis",
                      "activation_beta", "activation_gamma"),
          refuses=lambda node: activation_refusal(node) or _matrices(node),
          multiplies=True)
      for op, build, attributes in (
          ("FusedGemm", gemm, ("alpha", "beta", "transA", "transB")),
          ("FusedMatMulActivation", matmul, _TRANSPOSED))],
)
