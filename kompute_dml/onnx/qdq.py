"""Finds products, convolutions and sums between a DequantizeLinear of each input and a
QuantizeLinear.

    DequantizeLinear x 2 -> Conv [-> Relu] -> QuantizeLinear    becomes one QLinearConv
    DequantizeLinear x 2 -> MatMul -> QuantizeLinear            becomes one QLinearMatMul
    DequantizeLinear x 2 -> MatMul [-> Add]                     becomes one MatMulIntegerToFloat
    DequantizeLinear x 2 -> Add [-> Relu] -> QuantizeLinear     becomes one QLinearAdd

Gemm is a MatMul; with C it becomes a MatMulIntegerToFloat, whose bias C is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .graph import OnnxNode, OnnxValue

_BYTES = (np.dtype("uint8"), np.dtype("int8"))
_SINGLE = np.dtype("float32")
OnlyUser = Callable[[OnnxNode, "tuple[str, ...]"], "OnnxNode | None"]
"""The only reader of a node's first output, if its operator is one of these."""


def of_bytes(
    node: OnnxNode, made_by: dict[OnnxValue, OnnxNode], only_user: OnlyUser,
    is_bias: Callable[[OnnxValue, OnnxValue | None], bool],
) -> OnnxNode | None:
    """The quantized node that replaces a float node and its neighbours, or None."""
    if node.label == "Add":
        return _sum(node, made_by, only_user)
    if node.label not in ("Conv", "MatMul", "Gemm"):
        return None
    transposed = node.op == "Gemm" and bool(node.attributes.get("transB", 0))
    axis = 0 if node.op == "Conv" or transposed else 1
    x, w = (_dequantized(v, made_by) for v in node.inputs[:2])
    if x is None or w is None or not _scalar(x.input(1)) or not _scales(w, axis):
        return None
    parts = [d for d in (x, w) if only_user(d, (node.op,)) is node]
    bias = None
    if node.op == "Gemm":
        if not is_product(node, is_bias) or (transposed and _constant(w) is None):
            return None
        bias = node.input(2)
    elif len(node.inputs) > 2 and node.inputs[2] is not None:
        maker = made_by.get(node.inputs[2])
        bias = None if maker is None else _sums(maker, x, w)
        if maker is None or bias is None:
            return None
        parts += [maker] if only_user(maker, (node.op,)) is node else []
    parts.append(node)
    last = _quantized(node, only_user) if bias is None or node.op == "Conv" else None
    if last is not None:
        parts += last
        y = last[-1]
        operator = "QLinearConv" if node.op == "Conv" else "QLinearMatMul"
        values = [*_triple(x), *_triple(w, transposed), y.input(1), y.input(2)]
        values += [bias] if operator == "QLinearConv" else []
        attributes = node.attributes if node.op == "Conv" else {}
        return OnnxNode(operator, "", 10, tuple(values), y.outputs, attributes, node.name,
                        tuple(parts))
    if node.op == "Conv":
        return None
    total = only_user(node, ("Add",))
    if total is not None and bias is None:
        left, right = total.inputs
        other = right if left is node.outputs[0] else left
        if other is not None and is_bias(other, node.outputs[0]):
            bias = other
            parts.append(total)
    (a, a_scale, a_zero), (b, b_scale, b_zero) = _triple(x), _triple(w, transposed)
    return OnnxNode(
        "MatMulIntegerToFloat", "com.microsoft", 1,
        (a, b, a_scale, b_scale, a_zero, b_zero, bias), parts[-1].outputs, {}, node.name,
        tuple(parts))


def _sum(add: OnnxNode, made_by: dict[OnnxValue, OnnxNode], only_user: OnlyUser) -> OnnxNode | None:
    operands = [_dequantized(v, made_by) for v in add.inputs]
    last = _quantized(add, only_user)
    if last is None or not all(d is not None and _scalar(d.input(1)) for d in operands):
        return None
    a, b = (d for d in operands if d is not None)
    y, zero, x = last[-1], last[-1].input(2), a.input(0)
    if a is b or zero is None or x is None or zero.dtype != x.dtype:
        return None
    parts = [d for d in (a, b) if only_user(d, ("Add",)) is add]
    values = (*_triple(a), *_triple(b), y.input(1), zero)
    return OnnxNode("QLinearAdd", "com.microsoft", 1, values, y.outputs, {}, add.name,
                    (*parts, add, *last))


def is_product(gemm: OnnxNode, is_bias: Callable[[OnnxValue, OnnxValue | None], bool]) -> bool:
    """Whether a Gemm is a product of A as it is, and C as a bias."""
    read, c = gemm.attributes.get, gemm.input(2)
    return not read("transA", 0) and read("alpha", 1.0) == 1 and (
        c is None or (read("beta", 1.0) == 1 and is_bias(c, gemm.outputs[0])))


def _constant(dequantize: OnnxNode) -> np.ndarray | None:
    value = dequantize.input(0)
    return None if value is None else value.constant


def _dequantized(value: OnnxValue | None, made_by: dict[OnnxValue, OnnxNode]) -> OnnxNode | None:
    """The DequantizeLinear of a value, if it converts bytes with scales along at most one axis."""
    maker = None if value is None else made_by.get(value)
    if maker is None or maker.label != "DequantizeLinear" or maker.attributes.get("block_size", 0):
        return None
    x, scale = maker.input(0), maker.input(1)
    fits = x is not None and x.dtype in _BYTES and x.shape is not None and (
        scale is not None and scale.dtype == _SINGLE and scale.shape is not None)
    return maker if fits and maker.input(2) is not None else None


def _scalar(value: OnnxValue | None) -> bool:
    return value is not None and value.shape is not None and all(n == 1 for n in value.shape)


def _scales(w: OnnxNode, axis: int) -> bool:
    """Whether there is one scale, or one for each output channel."""
    scale, x = w.input(1), w.input(0)
    if _scalar(scale):
        return True
    rank = len(x.shape) if x is not None and x.shape is not None else 0
    named = w.attributes.get("axis", 1)
    # In a stack of matrices, each matrix would have one.
    return named % max(rank, 1) == axis and (axis == 0 or rank == 2)


def _sums(maker: OnnxNode, x: OnnxNode, w: OnnxNode) -> OnnxValue | None:
    """An INT32 bias that has the product's scale."""
    values = maker.input(0)
    scales = [v.constant if v is not None else None
              for v in (maker.input(1), x.input(1), w.input(1))]
    if maker.label != "DequantizeLinear" or values is None or values.dtype != np.dtype("int32"):
        return None
    if any(s is None for s in scales):
        return None
    own, left, right = (np.asarray(s, np.float64) for s in scales)
    zero = maker.input(2)
    whole = zero is None or (zero.constant is not None and not zero.constant.any())
    close = np.allclose(own, left.reshape(()) * right, rtol=1e-5, atol=0)
    return values if whole and close else None


def _quantized(node: OnnxNode, only_user: OnlyUser) -> list[OnnxNode] | None:
    """QuantizeLinear to bytes with one scale, after a Relu that its clamping replaces."""
    parts = []
    relu = only_user(node, ("Relu",))
    if relu is not None:
        parts.append(relu)
    last = only_user(parts[-1] if parts else node, ("QuantizeLinear",))
    if last is None or not _scalar(last.input(1)) or last.attributes.get("block_size", 0):
        return None
    zero = last.input(2)
    if zero is None or zero.dtype not in _BYTES or not _scalar(zero):
        return None
    if relu is not None and (zero.constant is None or (
            zero.constant.reshape(()) != np.iinfo(zero.constant.dtype).min)):
        return None
    return [*parts, last]


def _triple(
    dequantize: OnnxNode, transposed: bool = False
) -> tuple[OnnxValue | None, OnnxValue | None, OnnxValue | None]:
    """Bytes, scale and zero point; the bytes of a constant matrix ``transposed``, if told."""
    x = dequantize.input(0)
    if transposed and x is not None and x.constant is not None:
        matrix = np.ascontiguousarray(x.constant.T)
        x = OnnxValue(f"{x.name} transposed", x.dtype, matrix.shape, matrix)
    return x, dequantize.input(1), dequantize.input(2)
