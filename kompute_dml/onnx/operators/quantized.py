"""Products of quantized matrices, and matrices that are quantized in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from ...attributes import QuantizationType
from ...desc import TensorDesc
from ...dtypes import DataType
from ...errors import UnsupportedError, ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ..graph import OnnxNode
from ..lowerings import Inputs, Seen, emit_elementwise, given, optional
from ..row import MICROSOFT, Mapping
from . import products
from .gather import gather
from .movement import joined


class _Nibbles(Array):
    """Bytes seen as twice as many UINT4 elements. Sizes and strides count elements."""

    def desc(self, sizes: Sequence[int], strides: Sequence[int]) -> TensorDesc:
        packed = super().desc(sizes, strides)
        return TensorDesc(DataType.UINT4, packed.sizes, packed.strides,
                          guaranteed_base_offset_alignment=packed.base_alignment)


def nibbles(x: Array) -> Array:
    """Bytes as twice as many elements, for sizes and strides that count these."""
    return _Nibbles(x.dtype, x.shape, x.strides, x.storage)


def _quantized(x: Array, bits: int, sizes: Sequence[int], pitch: int) -> Seen:
    """Rows of ``bits``-bit elements that are ``pitch`` bytes apart."""
    return x if bits == 8 else nibbles(x), sizes, (pitch * 8 // bits, 1)


PREPACKED = ("weights in the order of CUDA's kernels (weight_prepacked), which ONNX Runtime's CPU "
             "provider takes for the usual order, so that its results are wrong")


def blocked_weights(node: OnnxNode) -> str | None:
    """Why this MatMulNBits is not supported, or None."""
    if node.attributes.get("weight_prepacked", 0):
        return PREPACKED
    if node.attributes.get("bits", 4) not in (4, 8):
        return "elements of neither 4 nor 8 bits"
    a, zero = node.input(0), node.input(3)
    if zero is not None and zero.dtype != np.uint8 and (a is None or zero.dtype != a.dtype):
        return "zero points that are neither packed as B is nor of A's type"
    if a is None or a.shape == ():
        return "a matrix without dimensions"
    return None


def matmul_bits(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """MatMulNBits: B's columns are stored as rows of blocks, with a scale and a zero point each."""
    a, b, scales = (given(inputs, i) for i in range(3))
    zeros, groups, bias = (optional(inputs, i) for i in (3, 4, 5))
    bits, block = node.attributes.get("bits", 4), node.attributes["block_size"]
    k, n = node.attributes["K"], node.attributes["N"]
    blocks = -(-k // block)
    pitch = blocks * block * bits // 8
    zero_pitch = blocks if _is_float(zeros) else -(-blocks * bits // 8)
    for name, x, size in (("B", b, n * pitch), ("scales", scales, n * blocks),
                          ("zero_points", zeros, n * zero_pitch)):
        if x is not None and x.size != size:
            raise ValidationError(f"expected {name} to have {size} elements, but got {x.size}")
    sizes = n, blocks, block
    if groups is None:
        weights = in_blocks(builder, a.dtype, b, scales, zeros, sizes, bits)
    elif groups.size not in (k, blocks * block):
        raise ValidationError(f"expected g_idx to have {k} elements, but got {groups.size}")
    else:
        places = builder.pack(groups).view((k,), (1,))
        by_row = replace(node, attributes={"axis": 1})
        weights = _grouped(a.dtype, b, scales, zeros, sizes, bits, k, builder, lambda x: gather(
            builder, by_row, [x, places])[0])
    columns = weights.view((k, n), (1, weights.shape[1]))
    return [products.product_of(builder, a, columns, bias)]


def _grouped(
    dtype: np.dtype[Any], b: Array, scales: Array, zeros: Array | None,
    sizes: tuple[int, int, int], bits: int, depth: int, builder: Builder,
    of_rows: Callable[[Array], Array],
) -> Array:
    """:func:`in_blocks` of ``depth`` rows of B. Each has a scale and a zero point of its own, which
    ``of_rows`` takes from those of the blocks."""
    n, blocks, block = sizes
    rows = blocks * block

    def numbers(x: Array, count: int) -> Array:
        """Elements as distances from the middle of their range."""
        one = builder.constant(np.ones((), dtype)).broadcast_to((n,))
        return in_blocks(builder, dtype, x, one, None, (n, 1, count), bits)

    x = numbers(b, rows).view((n, depth), (rows, 1))
    if _is_float(zeros):
        middle = builder.constant(np.array(1 << bits - 1, dtype))
        zeros = emit_elementwise(builder, "ELEMENT_WISE_SUBTRACT", [
            builder.reshape(zeros, (n, blocks)), middle], dtype, {})
    elif zeros is not None:
        count = -(-blocks * bits // 8) * 8 // bits
        zeros = numbers(zeros, count).view((n, blocks), (count, 1))
    if zeros is not None:
        x = emit_elementwise(builder, "ELEMENT_WISE_SUBTRACT", [x, of_rows(zeros)], dtype, {})
    return emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [
        x, of_rows(builder.reshape(scales, (n, blocks)))], dtype, {})


def gathered_blocks(node: OnnxNode) -> str | None:
    """Why this GatherBlockQuantized is not supported, or None."""
    read, data = node.attributes, node.input(0)
    if read.get("bits", 4) not in (4, 8):
        return "elements of neither 4 nor 8 bits"
    if data is None or data.dtype != np.uint8 or data.shape is None or len(data.shape) != 2:
        return "data other than a matrix of bytes"
    if read.get("gather_axis", 0) not in (0, -2) or read.get("quantize_axis", 1) not in (1, -1):
        return "an axis other than rows to gather, or columns to quantize"
    scales, zeros = node.input(2), node.input(3)
    if scales is None or scales.dtype not in (np.float16, np.float32) or (
            zeros is not None and zeros.dtype != np.uint8):
        return "scales that are neither FLOAT16 nor FLOAT32, or zero points other than bytes"
    return None


def gather_blocks(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """GatherBlockQuantized: rows of a matrix in blocks, of which only these are dequantized."""
    data, indices, scales = (given(inputs, i) for i in range(3))
    zeros = optional(inputs, 3)
    bits, block = node.attributes.get("bits", 4), node.attributes.get("block_size", 128)
    width, blocks = data.shape[1] * 8 // bits, scales.shape[1]
    if blocks != -(-width // block):
        raise ValidationError(f"expected blocks of {block} elements in {width}, but got scales of "
                              f"{blocks}")
    places = builder.reshape(indices, (indices.size,))

    def rows(x: Array) -> Array:
        (taken,) = gather(builder, replace(node, attributes={"axis": 0}), [x, places])
        return builder.pack(taken)

    taken, whole = rows(data), blocks * block
    if whole != width:  # the last block is shorter
        rest = builder.constant(np.zeros((), data.dtype)).broadcast_to(
            (indices.size, (whole - width) * bits // 8))
        taken = joined(builder, [taken, rest], 1)
    y = in_blocks(builder, scales.dtype, taken, rows(scales),
                 None if zeros is None else rows(zeros), (indices.size, blocks, block), bits)
    return [builder.reshape(y.view((indices.size, width), (whole, 1)), (*indices.shape, width))]


def in_blocks(
    builder: Builder, dtype: np.dtype[Any], b: Array, scales: Array, zeros: Array | None,
    sizes: tuple[int, int, int], bits: int,
) -> Array:
    """The columns of B as rows of numbers. ``sizes`` are columns, blocks and elements of a
    block."""
    n, blocks, block = sizes
    if _is_float(zeros):
        # DEQUANTIZE takes integers. Here it gives distances from the middle of the range.
        each = (n, blocks, 1)
        one = builder.constant(np.ones((), dtype)).broadcast_to((n * blocks,))
        x = builder.reshape(in_blocks(builder, dtype, b, one, None, sizes, bits), sizes)
        middle = builder.constant(np.array(1 << bits - 1, dtype))
        zeros = emit_elementwise(builder, "ELEMENT_WISE_SUBTRACT", [
            builder.reshape(zeros, each), middle], dtype, {})
        x = emit_elementwise(builder, "ELEMENT_WISE_SUBTRACT", [x, zeros], dtype, {})
        x = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [
            x, builder.reshape(scales, each)], dtype, {})
        return builder.reshape(x, (n, blocks * block))
    y = builder.new((n, blocks * block), dtype)
    if y.storage is None:
        return y
    scales = builder.reshape(scales, (n, blocks))
    tensors: dict[str, Seen | None] = {
        "input_tensor": _quantized(builder.pack(b), bits, y.shape, blocks * block * bits // 8),
        "quantization_tensors[0]": (scales, scales.shape, scales.strides),
        "output_tensor": (y, y.shape, y.strides),
    }
    if zeros is not None:
        tensors["quantization_tensors[1]"] = _quantized(
            builder.pack(zeros), bits, scales.shape, -(-blocks * bits // 8))
    # The default zero points are half of the range, in DirectML as in ONNX Runtime.
    kind = QuantizationType.SCALE if zeros is None else QuantizationType.SCALE_ZERO_POINT
    builder.emit("DEQUANTIZE", tensors, quantization_type=kind)
    return y


def _is_float(zeros: Array | None) -> TypeGuard[Array]:
    return zeros is not None and zeros.dtype.kind == "f"


def integer_matrices(node: OnnxNode) -> str | None:
    """Why this QGemm is not supported, or None."""
    for index in (0, 3):
        value = node.input(index)
        if value is None or value.shape is None or len(value.shape) != 2:
            return "matrices of unknown rank"
    return None


def qgemm(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """com.microsoft QGemm: A, B and their scales and zero points, C, and those of the output."""
    a, a_scale, a_zero, b, b_scale, b_zero = (optional(inputs, i) for i in range(6))
    c, y_scale, y_zero = (optional(inputs, i) for i in range(6, 9))
    if a is None or b is None or a_scale is None or b_scale is None:
        raise ValidationError("expected A, B and both scales to be given")
    read = node.attributes.get
    a = products.transposed(a, read("transA", 0))
    b = products.transposed(b, read("transB", 0))
    (x,) = products.matmul_integer(builder, node, [a, b, a_zero, b_zero])
    if c is not None:
        x = emit_elementwise(builder, "ELEMENT_WISE_ADD", [x, c], x.dtype, {})
    real = np.dtype("float32")
    x = emit_elementwise(builder, "CAST", [x], real, {})
    scale = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [a_scale, b_scale], real, {})
    if read("alpha", 1.0) != 1:
        alpha = builder.constant(np.array(read("alpha", 1.0), real))
        scale = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [scale, alpha], real, {})
    x = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [x, scale], real, {})
    if y_scale is None:
        return [x]
    if y_zero is None:
        raise UnsupportedError("a scale of the output without a zero point")
    return [emit_elementwise(builder, "ELEMENT_WISE_QUANTIZE_LINEAR", [x, y_scale, y_zero],
                             y_zero.dtype, {})]


ROWS: tuple[Mapping, ...] = (
    Mapping("QGemm", (1,), "MATRIX_MULTIPLY_INTEGER", qgemm, MICROSOFT,
        fields=("ATensor", None, "AZeroPointTensor", "BTensor", None, "BZeroPointTensor", None),
        attributes=("alpha", "transA", "transB"), results=(None,),
        refuses=integer_matrices, multiplies=True),
    Mapping("MatMulNBits", (1,), "GEMM", matmul_bits, MICROSOFT,
        fields=("ATensor", None, "ATensor", None, None, "CTensor"),
        attributes=("K", "N", "accuracy_level", "bits", "block_size", "weight_prepacked"),
        refuses=blocked_weights, multiplies=True),
    Mapping("GatherBlockQuantized", (1,), "DEQUANTIZE", gather_blocks, MICROSOFT,
        fields=(None,), attributes=("bits", "block_size", "gather_axis", "quantize_axis"),
        refuses=gathered_blocks),
)
