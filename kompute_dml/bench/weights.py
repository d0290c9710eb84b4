"""Cases of weights of 4 bits in blocks: products of few rows, and conversion to and from them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

import kompute_dml as dml

from ..attributes import QuantizationType
from ..cases import Scale
from ..desc import TensorDesc
from ..device import Device
from ..dtypes import DataType
from ..graph.desc import (
    GraphDesc,
    InputGraphEdgeDesc,
    IntermediateGraphEdgeDesc,
    OperatorGraphNodeDesc,
    OutputGraphEdgeDesc,
)
from .case import Case, Recipe, product_operations, touched_bytes
from .values import Output, close, host, numbers

_UINT4 = DataType.UINT4
_MIDDLE = 8
"""The zero point of UINT4 where none is given."""
_CHECKED = 128
"""Columns that are compared with NumPy, at each end."""
_COLD_BYTES = 256 << 20
"""Bytes of all copies of B that take turns: more than a cache holds."""


def weights(data_type: DataType, m: int, k: int, n: int, block: int = 32) -> Recipe:
    """A graph of DEQUANTIZE and GEMM, as ONNX's MatMulNBits is. B is read from memory, and only its
    bytes count."""
    types = f"{data_type.family} x u4 in blocks of {block}, cold B"

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        rows, columns = m, scale.of(n)
        blocks = -(-scale.of(k) // block)
        inner = blocks * block
        rng = np.random.default_rng(5)
        a = (rng.integers(-8, 9, (rows, inner)) / 8).astype(data_type.dtype)
        packed = rng.integers(0, 256, (columns, inner // 2), np.uint8)
        by = (2.0 ** rng.integers(-9, -6, (columns, blocks))).astype(data_type.dtype)
        b_desc = TensorDesc(_UINT4, (columns, inner))
        compiled = _graph(device, TensorDesc(data_type, a.shape), b_desc,
                          TensorDesc(data_type, by.shape))
        copies = max(1, _COLD_BYTES // packed.nbytes) if not device.adapter.is_cpu else 1
        x, scales = device.tensor(a), device.tensor(by)
        out = device.empty((rows, columns), data_type)
        temporary = device.create_buffer(max(
            4, compiled.binding_properties.temporary_resource_size))

        def table(b: dml.Tensor) -> Any:
            bindings = device.create_binding_table(compiled)
            bindings.bind_inputs([_bound(t) for t in (x, b, scales)])
            bindings.bind_outputs([_bound(out)])
            if compiled.binding_properties.temporary_resource_size:
                bindings.bind_temporary_resource(dml.BufferBinding(temporary))
            return bindings

        turns = itertools.cycle([table(device.tensor(packed)) for _ in range(copies)])

        def dispatch() -> Any:
            device.record_dispatch(compiled, next(turns))
            return out

        def check(output: Output) -> str:
            got = host(output)
            for part in (slice(0, _CHECKED), slice(max(0, columns - _CHECKED), columns)):
                y = np.stack([packed[part] & 15, packed[part] >> 4], -1).reshape(-1, inner)
                real = (y.astype(np.float32) - _MIDDLE) * np.repeat(
                    by[part].astype(np.float32), block, 1)
                expected = a.astype(np.float32) @ real.T  # exact: small numbers times powers of 2
                room = 2.0**-10 * np.abs(expected) + 1e-4
                if not (np.abs(got[:, part] - expected) <= room).all():
                    return "wrong"
            return ""

        yield Case(
            "DML_OPERATOR_GEMM", types, f"[{rows}, {inner}] x [{inner}, {columns}]", dispatch,
            check, touched_bytes([b_desc]), product_operations(x.desc, out.desc))

    return Recipe("DML_OPERATOR_GEMM", types, make)


def _bound(t: dml.Tensor) -> Any:
    return dml.BufferBinding(dml.Buffer(t.device, t.allocation, t.desc.total_tensor_size_in_bytes))


def _graph(device: Device, a: TensorDesc, b: TensorDesc, scales: TensorDesc) -> Any:
    """The inputs are A, the quantized B and its scales."""
    real = TensorDesc(a.data_type, b.sizes)
    dequantize = dml.DequantizeOperatorDesc(
        input_tensor=b, quantization_tensors=(scales,), output_tensor=real,
        quantization_type=QuantizationType.SCALE)
    gemm = dml.GemmOperatorDesc(
        a_tensor=a, b_tensor=real, trans_a=0, trans_b=1, alpha=1.0, beta=1.0,
        output_tensor=TensorDesc(a.data_type, (a.sizes[0], b.sizes[0])))
    nodes = [OperatorGraphNodeDesc(device.create_operator(d)) for d in (dequantize, gemm)]
    return device.compile_graph(GraphDesc(
        3, 1, nodes, [InputGraphEdgeDesc(0, 1, 0), InputGraphEdgeDesc(1, 0, 0),
                      InputGraphEdgeDesc(2, 0, 1)],
        [OutputGraphEdgeDesc(1, 0, 0)], [IntermediateGraphEdgeDesc(0, 0, 1, 1)]))


def quantization(data_type: DataType, way: str, across: bool = False, side: int = 16384) -> Recipe:
    """``way`` is "QUANTIZE" or "DEQUANTIZE", in blocks of 32 along rows, or ``across`` them."""
    operator, kinds = f"DML_OPERATOR_{way}", [data_type.family, "u4"]
    order = kinds if way == "QUANTIZE" else kinds[::-1]
    types = f"{order[0]} -> {order[1]}, blocks {'across rows' if across else 'along rows'}"

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        n = -(-scale.of(side) // 32) * 32
        pattern = numbers(data_type.dtype, n * n, -6, 6, 3)
        x = pattern.tensor(device).reshape(n, n)
        blocks = (n // 32, n) if across else (n, n // 32)
        by = (2.0 ** np.random.default_rng(4).integers(-2, 2, blocks)).astype(data_type.dtype)
        scales, kind = device.tensor(by), QuantizationType.SCALE
        q, y = device.empty((n, n), _UINT4), device.empty((n, n), data_type)

        def quantize() -> Any:
            return dml.quantize(x, (scales,), data_type=_UINT4, quantization_type=kind, out=q)

        def dequantize() -> Any:
            return dml.dequantize(q, (scales,), quantization_type=kind, out=y)

        def check(output: Output) -> str:
            """Dequantized again, for NumPy has no types of 4 bits."""
            back = dequantize()
            for row in sorted({0, n // 2, n - 1}):
                values = pattern.at(np.arange(row * n, (row + 1) * n)).astype(np.float64)
                each = by[row // 32] if across else np.repeat(by[row], 32)
                steps = np.clip(np.rint(values / each) + _MIDDLE, 0, 15) - _MIDDLE
                if problem := close(host(back[row]), (steps * each).astype(data_type.dtype)):
                    return f"{problem} (in row {row})"
            return ""

        quantize()
        ends = (x, scales, q) if way == "QUANTIZE" else (q, scales, y)
        yield Case(operator, types, f"[{n}, {n}]", quantize if way == "QUANTIZE" else dequantize,
                   check, touched_bytes(t.desc for t in ends))

    return Recipe(operator, types, make)
