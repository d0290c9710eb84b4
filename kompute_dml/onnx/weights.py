"""Finds nodes whose constant weights are in blocks, and stores these anew: as unsigned bytes.

    DequantizeLinear (blocks of INT4, UINT4, INT8 or UINT8) -> MatMul   becomes one MatMulNBits
    GatherBlockQuantized (INT4 or UINT4)                                becomes one of bytes
    DequantizeLinear (INT4 or UINT4) elsewhere                          becomes one of bytes

Gemm is a MatMul; C becomes the bias. MatMulNBits has the columns of B as rows. The last block may
be shorter than the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .graph import OnnxNode, OnnxValue
from .qdq import OnlyUser, is_product

_BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}
_LEAST_BLOCK = 16


def of_blocks(
    node: OnnxNode, made_by: dict[OnnxValue, OnnxNode], only_user: OnlyUser,
    is_bias: Callable[[OnnxValue, OnnxValue | None], bool],
) -> OnnxNode | None:
    """The MatMulNBits that replaces a product and the DequantizeLinear of its weights, or None."""
    if node.label not in ("MatMul", "Gemm") or (
            node.op == "Gemm" and not is_product(node, is_bias)):
        return None
    a, b = node.inputs[:2]
    w = None if b is None else made_by.get(b)
    if a is None or w is None or w.label != "DequantizeLinear" or (
            only_user(w, (node.op,)) is not node):
        return None
    transposed = bool(node.attributes.get("transB", 0))
    q, scale, zero = (None if v is None else v.constant for v in (*w.inputs, None)[:3])
    block = w.attributes.get("block_size", 0)
    if q is None or scale is None or (zero is None and w.input(2) is not None) or q.ndim != 2 or (
            w.attributes.get("axis", 1) % 2 != int(transposed) or scale.dtype != a.dtype):
        return None
    bits = _BITS.get(q.dtype.name, 0)
    matrix, scales = (x if transposed else x.T for x in (q, scale))
    columns, k = matrix.shape
    # MatMulNBits has blocks of powers of 2.
    if not bits or block < _LEAST_BLOCK or block & (block - 1) or (
            scales.shape != (columns, blocks := -(-k // block))):
        return None
    whole = np.pad(_unsigned(matrix, bits), ((0, 0), (0, blocks * block - k)))
    values = [whole, np.ascontiguousarray(scales).reshape(-1)]
    if zero is not None or q.dtype.name.startswith("u"):
        zeros = np.zeros_like(scales, q.dtype) if zero is None else zero if transposed else zero.T
        values.append(_packed(_unsigned(zeros, bits), bits).reshape(-1))
    values[0] = _packed(values[0], bits).reshape(columns, blocks, -1)
    constants = [OnnxValue(f"{node.name} {name}", v.dtype, v.shape, v)
                 for name, v in zip(("weights", "scales", "zero points"), values)]
    inputs = (a, *constants, *[None] * (4 - len(constants)), node.input(2))
    attributes = {"K": k, "N": columns, "bits": bits, "block_size": block}
    return OnnxNode("MatMulNBits", "com.microsoft", 1, inputs, node.outputs, attributes, node.name,
                    (w, node))


def rows_of_blocks(node: OnnxNode) -> OnnxNode | None:
    """The GatherBlockQuantized of bytes that replaces one of 4-bit integers, or None."""
    q, scale, zero = (None if v is None else v.constant for v in (
        node.input(0), node.input(2), node.input(3)))
    if node.label != "com.microsoft.GatherBlockQuantized" or q is None or q.ndim != 2 or (
            _BITS.get(q.dtype.name) != 4 or q.shape[1] % 2 or scale is None
            or (zero is None and node.input(3) is not None)):
        return None
    values = {0: q}
    if zero is not None or q.dtype.name == "uint4":
        values[3] = np.zeros(scale.shape, q.dtype) if zero is None else zero
    inputs = [*node.inputs, None][:4]
    for i, x in values.items():
        stored = _packed(_unsigned(x, 4), 4)
        inputs[i] = OnnxValue(f"{node.name} bytes {i}", stored.dtype, stored.shape, stored)
    return OnnxNode(node.op, node.domain, node.since, tuple(inputs), node.outputs,
                    {**node.attributes, "bits": 4}, node.name, (node,))


def in_bytes(node: OnnxNode) -> OnnxNode | None:
    """The DequantizeLinear of bytes that replaces one of 4-bit integers, or None."""
    values = [None if v is None else v.constant for v in node.inputs]
    if node.op != "DequantizeLinear" or values[0] is None or (
            _BITS.get(values[0].dtype.name) != 4 or (values[-1] is None and len(values) > 2)):
        return None
    kind = np.dtype(values[0].dtype.name.replace("4", "8"))
    inputs = [*node.inputs]
    for i in {0, 2} & {*range(len(values))}:
        x = values[i]
        assert x is not None
        inputs[i] = OnnxValue(f"{node.name} bytes {i}", kind, x.shape, x.astype(kind))
    return OnnxNode(node.op, node.domain, node.since, tuple(inputs), node.outputs,
                    node.attributes, node.name, (node,))


def _unsigned(x: np.ndarray, bits: int) -> np.ndarray:
    """Integers from 0 on. The middle of the range stays the middle."""
    if x.dtype.name.startswith("u"):
        return np.ascontiguousarray(x).astype(np.uint8)
    return (np.ascontiguousarray(x).astype(np.int16) + (1 << bits - 1)).astype(np.uint8)


def _packed(x: np.ndarray, bits: int) -> Any:
    """Rows of elements, the first one in the low bits, padded to whole bytes."""
    if bits == 8:
        return x
    x = np.pad(x, ((0, 0), (0, x.shape[1] % 2)))
    return x[:, ::2] | x[:, 1::2] << 4
