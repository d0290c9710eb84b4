"""Cases of floating-point matrix products, and of products with quantized outputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import erf
from typing import Any

import numpy as np

import kompute_dml as dml

from ..cases import Scale
from ..device import Device
from ..dtypes import DataType
from .case import Case, Peer, Recipe, product_operations, touched_bytes
from .constants import initialized
from .peers import Torch
from .values import Output, host

_GEMM = "DML_OPERATOR_GEMM"
_CHECKED = 64
"""Rows that are compared with NumPy."""
_COLD_BYTES = 256 << 20
"""Bytes of all copies of B that take turns: more than a cache holds."""


def _small(
    rng: np.random.Generator, sizes: tuple[int, ...], dtype: np.dtype[np.generic]
) -> np.ndarray:
    """Multiples of 1/8 from -1 to 1. Sums of their products are exact in float32."""
    return (rng.integers(-8, 9, sizes) / 8).astype(dtype)


def gemm(
    data_type: DataType, m: int, k: int, n: int, *, trans_a: bool = False, trans_b: bool = False,
    fused: bool = False, cold: bool = False, constant: bool = False, batches: int = 0,
) -> Recipe:
    """``fused``: with a bias for each column, and GELU. ``cold``: B is read from memory, and only
    its bytes count. ``constant``: B is OWNED_BY_DML, so its preparation is not timed."""
    types = " ".join([data_type.family, "NT"[trans_a] + "NT"[trans_b],
                      *["bias, GELU"] * fused, *["cold B"] * cold,
                      *["constant B"] * constant])

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        rows, inner, columns = (scale.of(x) for x in (m, k, n))
        rng = np.random.default_rng(5)
        lead = (batches,) if batches else ()
        dtype = data_type.dtype
        a = _small(rng, (*lead, *((inner, rows) if trans_a else (rows, inner))), dtype)
        b = _small(rng, (*lead, *((columns, inner) if trans_b else (inner, columns))), dtype)
        bias = _small(rng, (columns,), dtype)
        copies = max(1, _COLD_BYTES // b.nbytes) if cold and not device.adapter.is_cpu else 1
        left, bs = device.tensor(a), [device.tensor(b) for _ in range(copies)]
        c = device.tensor(bias).broadcast_to((*lead, rows, columns)) if fused else None
        out = device.empty((*lead, rows, columns), data_type)
        turns = itertools.cycle(bs)
        activation = dml.ActivationGeluOperatorDesc() if fused else None

        def check(output: Output) -> str:
            got = host(output)
            x = np.swapaxes(a, -1, -2) if trans_a else a
            y = np.swapaxes(b, -1, -2) if trans_b else b
            x, y = (t.astype(np.float32).reshape(-1, *t.shape[-2:])[0] for t in (x, y))
            got = got.reshape(-1, rows, columns)[0, :_CHECKED].astype(np.float64)
            sums = (x[:_CHECKED] @ y).astype(np.float64)
            expected = _gelu(sums + bias) if fused else sums
            room = 2.0**-10 * np.abs(expected) + 1e-2
            return "" if (np.abs(got - expected) <= room).all() else "wrong"

        def torch_peers(library: Torch) -> Iterator[Peer]:
            torch = library.torch
            x = library.send(a)
            ys = [library.send(b) for _ in range(copies)]
            x = x.transpose(-1, -2) if trans_a else x
            ys = [y.transpose(-1, -2) if trans_b else y for y in ys]
            columns_bias, each = library.send(bias), itertools.cycle(ys)
            if fused:
                yield Peer("torch", lambda: torch.nn.functional.gelu(
                    torch.addmm(columns_bias, x, next(each))))
            else:
                yield Peer("torch", lambda: torch.matmul(x, next(each)))

        def dispatch() -> Any:
            return dml.gemm(left, next(turns), c, trans_a=trans_a, trans_b=trans_b,
                            fused_activation=activation, out=out)

        if constant:
            tensors = {"a_tensor": left, "b_tensor": bs[0], "output_tensor": out}
            dispatch = initialized(
                device, dml.GemmOperatorDesc, "b_tensor",
                tensors if c is None else {**tensors, "c_tensor": c}, trans_a=int(trans_a),
                trans_b=int(trans_b), alpha=1.0, beta=1.0, fused_activation=activation)
        counted = (bs[0],) if cold else (left, bs[0], out)
        batch = f"{batches} of " if batches else ""
        yield Case(
            _GEMM, types, f"{batch}[{rows}, {inner}] x [{inner}, {columns}]",
            dispatch, check, touched_bytes(t.desc for t in counted),
            2 * inner * out.desc.element_count, peers={"torch": torch_peers})

    return Recipe(_GEMM, types, make)


def _gelu(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = x * 0.5 * (1 + np.vectorize(erf)(x / 2**0.5))
    return result


def requantized(m: int, k: int, n: int) -> Recipe:
    """INT8 to INT8, with zero points and a row-major B."""
    name = "DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY"
    types = "int8"

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        rng = np.random.default_rng(6)
        rows, inner, columns = (scale.of(x) for x in (m, k, n))
        a, b = (rng.integers(-128, 128, s, np.int8) for s in ((rows, inner), (inner, columns)))
        one = [device.tensor(np.array([[v]], np.float32)) for v in (0.5, 0.5, 2.0**12)]
        zeros = [device.tensor(np.array([[v]], np.int8)) for v in (3, -5, 7)]
        x, y, out = device.tensor(a), device.tensor(b), device.empty((rows, columns), "int8")

        def check(output: Output) -> str:
            got = host(output)[:_CHECKED].astype(int)
            sums = (a[:_CHECKED].astype(np.float64) - 3) @ (b.astype(np.float64) + 5)
            expected = np.clip(np.rint(sums.astype(np.float32) * np.float32(2.0**-14)) + 7,
                               -128, 127)
            return "" if (got == expected).all() else "wrong"

        yield Case(
            name, types, f"[{rows}, {inner}] x [{inner}, {columns}]",
            lambda: dml.quantized_linear_matrix_multiply(
                x, one[0], y, one[1], one[2], a_zero_point=zeros[0], b_zero_point=zeros[1],
                output_zero_point=zeros[2], out=out),
            check, touched_bytes((x.desc, y.desc, out.desc)),
            product_operations(x.desc, out.desc))

    return Recipe(name, types, make)
