"""Rows of products, quantized ones, and quantization."""

from __future__ import annotations

from .. import lowerings, products, quantized
from ..graph import OnnxNode
from ..row import MICROSOFT, Mapping, Refusal, quantization

_QUANTIZED = (10, 13, 19, 21, 23, 24, 25, 28)
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
        products.matmul_integer_to_float, MICROSOFT,
        fields=("ATensor", "BTensor", "AScaleTensor", "BScaleTensor", "AZeroPointTensor",
                "BZeroPointTensor", "BiasTensor"),
        refuses=_vectors(a=(2, 4), b=(3, 5)), multiplies=True),
    Mapping("MatMulInteger", (10,), "MATRIX_MULTIPLY_INTEGER", products.matmul_integer,
        fields=("ATensor", "BTensor", "AZeroPointTensor", "BZeroPointTensor"),
        refuses=_vectors(a=(2,), b=(3,)), multiplies=True),
    Mapping("DynamicQuantizeMatMul", (1,), "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
        products.dynamic_quantize_matmul, MICROSOFT,
        # A has the output's type until it is quantized.
        fields=("OutputTensor", "BTensor", "BScaleTensor", "BZeroPointTensor", "BiasTensor"),
        refuses=_vectors(a=(), b=(2, 3)), multiplies=True),
    # Products
    Mapping("QLinearMatMul", (10, 21), "QUANTIZED_LINEAR_MATRIX_MULTIPLY", products.qlinear_matmul,
        fields=("ATensor", None, "AZeroPointTensor", "BTensor", None, "BZeroPointTensor", None,
                "OutputZeroPointTensor"),
        refuses=_qlinear_matrices, multiplies=True),
    Mapping("MatMul", (1, 9, 13), "GEMM", products.matmul, refuses=_matrices, multiplies=True),
    Mapping("FusedMatMul", (1,), "GEMM", products.matmul, MICROSOFT,
        attributes=_TRANSPOSED, refuses=_matrices, multiplies=True),
    Mapping("TransposeMatMul", (1,), "GEMM", products.matmul, MICROSOFT, attributes=_TRANSPOSED,
        refuses=_matrices, multiplies=True),
    Mapping("Gemm", (1, 6, 7, 9, 11, 13), "GEMM", products.gemm,
        attributes=("alpha", "beta", "broadcast", "transA", "transB"), refuses=_matrices,
        multiplies=True),
    *[Mapping(op, (1,), "GEMM", products.activated(build), MICROSOFT,
          attributes=(*attributes, "activation", "activation_alpha", "activation_axis",
                      "activation_beta", "activation_gamma"),
          refuses=lambda node: products.activation_refusal(node) or _matrices(node),
          multiplies=True)
      for op, build, attributes in (
          ("FusedGemm", products.gemm, ("alpha", "beta", "transA", "transB")),
          ("FusedMatMulActivation", products.matmul, _TRANSPOSED))],
    Mapping("QGemm", (1,), "MATRIX_MULTIPLY_INTEGER", quantized.qgemm, MICROSOFT,
        fields=("ATensor", None, "AZeroPointTensor", "BTensor", None, "BZeroPointTensor", None),
        attributes=("alpha", "transA", "transB"), results=(None,),
        refuses=quantized.integer_matrices, multiplies=True),
    Mapping("MatMulNBits", (1,), "GEMM", quantized.matmul_bits, MICROSOFT,
        fields=("ATensor", None, "ATensor", None, None, "CTensor"),
        attributes=("K", "N", "accuracy_level", "bits", "block_size"),
        refuses=quantized.blocked_weights, multiplies=True),
    Mapping("GatherBlockQuantized", (1,), "DEQUANTIZE", quantized.gather_blocks, MICROSOFT,
        fields=(None,), attributes=("bits", "block_size", "gather_axis", "quantize_axis"),
        refuses=quantized.gathered_blocks),
    # Quantization
    Mapping("DynamicQuantizeLinear", (11,), "DYNAMIC_QUANTIZE_LINEAR", lowerings.dynamic_quantize),
    Mapping("QuantizeLinear", _QUANTIZED, "ELEMENT_WISE_QUANTIZE_LINEAR",
        quantized.quantization("QUANTIZE"),
        attributes=("axis", "block_size", "output_dtype", "precision", "saturate"),
        refuses=quantization),
    Mapping("DequantizeLinear", _QUANTIZED, "ELEMENT_WISE_DEQUANTIZE_LINEAR",
        quantized.quantization("DEQUANTIZE"),
        attributes=("axis", "block_size", "output_dtype"), refuses=quantization),
    Mapping("QLinearAdd", (1,), "ELEMENT_WISE_QUANTIZED_LINEAR_ADD", lowerings.quantized_sum,
            MICROSOFT),
)
