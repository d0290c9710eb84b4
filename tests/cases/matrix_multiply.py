"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types, Values
from layouts import ALL, PACKED, PADDED, SHIFTED, SLICED, TRANSPOSED

F32, F16 = dml.DataType.FLOAT32, dml.DataType.FLOAT16
I8, I16, I32 = dml.DataType.INT8, dml.DataType.INT16, dml.DataType.INT32
U8, U16, U32 = dml.DataType.UINT8, dml.DataType.UINT16, dml.DataType.UINT32


# The oracle


def nearest_float32(exact: np.ndarray) -> np.ndarray:
    """Integers of any size, rounded once, ties to even."""

    def convert(n: int) -> np.float32:
        magnitude = abs(n)
        # 53 bits: the leading bits, and a last bit that is 1 if any other bit is.
        shift = max(magnitude.bit_length() - 52, 0)
        lost = magnitude & ((1 << shift) - 1)
        kept = ((magnitude >> shift) | bool(lost)) << shift
        return np.float32(float(kept if n >= 0 else -kept))

    return np.array([convert(int(n)) for n in exact.flat], np.float32).reshape(exact.shape)


def _reference(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    a, b = x["a_tensor"], x["b_tensor"]
    # Sums of narrow types fit 64 bits. Sums of wide ones are Python integers.
    exact = np.dtype(np.int64 if a.itemsize < 4 else object)

    def differences(matrix: np.ndarray, zero: np.ndarray | None, line: tuple[int, int]
                    ) -> np.ndarray:
        wide = matrix.astype(exact)
        return wide if zero is None else wide - zero.astype(exact).reshape(line)

    a_wide = differences(a, x.get("a_zero_point_tensor"), (-1, 1))
    b_wide = differences(b, x.get("b_zero_point_tensor"), (1, -1))
    sums = a_wide @ b_wide
    y = nearest_float32(sums)
    y = y * x["a_scale_tensor"].astype(np.float32).reshape(-1, 1)
    y = y * x["b_scale_tensor"].astype(np.float32).reshape(1, -1)
    if "bias_tensor" in x:
        y = y + x["bias_tensor"].astype(np.float32)
    return y.astype(types["output_tensor"].dtype)


# Contents


def _integers(rng: np.random.Generator, data_type: dml.DataType, sizes: Any) -> np.ndarray:
    """The whole range; for 32-bit types a range whose sums fit 64 bits."""
    limits = np.iinfo(data_type.dtype)
    low, high = max(limits.min, -(2**27)), min(limits.max, 2**27)
    return rng.integers(low, high, sizes, data_type.dtype, endpoint=True)


def _scales(rng: np.random.Generator, data_type: dml.DataType, sizes: Any) -> np.ndarray:
    """Both signs, and small enough that most products of narrow types fit FLOAT16."""
    values = rng.uniform(0.5, 1, sizes) * rng.choice([-1, 1], sizes) / 128
    return values.astype(data_type.dtype)


def _biases(rng: np.random.Generator, data_type: dml.DataType, sizes: Any) -> np.ndarray:
    return rng.normal(0, 100, sizes).astype(data_type.dtype)


def of(*values: Any) -> Values:
    """These values, repeated, in the operand's type."""
    return lambda rng, data_type, sizes: np.resize(np.array(values), sizes).astype(data_type.dtype)


_VALUES: dict[str, Values] = {
    "a_tensor": _integers, "a_scale_tensor": _scales, "a_zero_point_tensor": _integers,
    "b_tensor": _integers, "b_scale_tensor": _scales, "b_zero_point_tensor": _integers,
    "bias_tensor": _biases,
}


_UNIT = {"a_scale_tensor": of(1), "b_scale_tensor": of(1)}


# Cases


def _call(x: Mapping[str, Any], attributes: Mapping[str, Any], types: Types, out: Any
          ) -> dml.Tensor:
    named = {name.removesuffix("_tensor"): value for name, value in x.items()}
    return dml.matrix_multiply_integer_to_float(
        **named, output_data_type=types["output_tensor"], out=out
    )


def types(a: dml.DataType, b: dml.DataType, y: dml.DataType) -> Types:
    """The data types of all tensors."""
    return {
        "a_tensor": a, "a_zero_point_tensor": a, "b_tensor": b, "b_zero_point_tensor": b,
        "a_scale_tensor": y, "b_scale_tensor": y, "bias_tensor": y, "output_tensor": y,
    }


def multiply(
    name: str, a: Sequence[int], b: Sequence[int], *,
    scales: str = "one", zeros: str = "none", without: str = "", bias: bool = False,
    rank: int | None = None,
    of_types: Sequence[tuple[dml.DataType, dml.DataType, dml.DataType]] | None = None,
    values: Mapping[str, Any] | None = None, **more: Any,
) -> Case:
    """``scales`` and ``zeros`` are ``none``, ``one`` or ``each`` (per row of A, per column of B).
    ``without`` (``a`` or ``b``) takes one zero point away."""
    rank = len(a) if rank is None else rank
    sizes: dict[str, Sequence[int]] = {"a_tensor": a, "b_tensor": b}

    def vector(kind: str, count: int, axis: int) -> list[int]:
        result = [1] * rank
        result[max(axis, -rank)] = count if kind == "each" else 1
        return result

    for kind, suffix in ((scales, "scale"), (zeros, "zero_point")):
        if kind != "none":
            sizes[f"a_{suffix}_tensor"] = vector(kind, a[-2], -2)
            sizes[f"b_{suffix}_tensor"] = vector(kind, b[-1], -1)
    sizes.pop(f"{without}_zero_point_tensor", None)
    y = [*a[:-1], b[-1]]
    if bias:
        sizes["bias_tensor"] = y
    sizes["output_tensor"] = y
    return Case(
        "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
        name,
        sizes,
        reference=_reference,
        call=_call,
        values={**_VALUES, **(values or {})},
        types=None if of_types is None else
        [{k: v for k, v in types(*t).items() if k in sizes} for t in of_types],
        compare="stepwise",
        **more,
    )


def _exact(name: str, kind: dml.DataType, a: Any, b: Any, sizes: tuple[int, int, int],
           other: dml.DataType | None = None, zeros: tuple[Any, Any] | None = None,
           **more: Any) -> Case:
    """Chosen elements, scales of one and FLOAT32 output. ``sizes`` is M, K, N; ``zeros`` has one
    entry per row of A, and one per column of B."""
    m, k, n = sizes
    values = {"a_tensor": a, "b_tensor": b, **_UNIT}
    if zeros:
        values["bias_tensor"] = of(0)
        values["a_zero_point_tensor"], values["b_zero_point_tensor"] = (of(*z) for z in zeros)
    return multiply(
        f"{name}-{kind.family}", (m, k), (k, n), zeros="each" if zeros else "none",
        bias=zeros is not None, values=values,
        of_types=[(kind, kind if other is None else other, F32)], layouts=[SHIFTED], **more,
    )


def _extremes(name: str, kind: dml.DataType, depth: int, **more: Any) -> Case:
    """The largest differences of both signs in A and in B, all along K."""
    low, high = np.iinfo(kind.dtype).min, np.iinfo(kind.dtype).max
    return _exact(
        name, kind, np.array([[low], [high]]), np.array([[high, low, high]]), (2, depth, 3),
        zeros=((high, low), (low, high, high)), **more,
    )


_SOME = [(U8, U8, F32), (I8, I8, F16), (U16, U16, F16), (I16, I16, F32), (I32, I32, F32),
         (U32, U32, F16)]
_NARROW = [(U8, U8, F32), (I8, I8, F16)]

# Each combination of signedness, zero points, bias and output type needs a pipeline, which takes
# CPU drivers a second to compile. So the cases share a few combinations.
CASES = [
    multiply("one", (1, 1), (1, 1), layouts=FEW),
    multiply("plain", (5, 7), (7, 3), layouts=FEW),
    multiply("everything", (2, 3, 5, 19), (2, 3, 19, 7), scales="each", zeros="each", bias=True,
              of_types=[(U8, U8, F16), (I16, I16, F16), (I32, I32, F32)], layouts=ALL),
    multiply("everything-shifted", (2, 3, 5, 19), (2, 3, 19, 7), scales="each", zeros="each",
              bias=True, layouts=[SHIFTED]),
    multiply("per-tensor", (3, 6, 21), (3, 21, 4), zeros="one", bias=True, of_types=_SOME,
              layouts=[SHIFTED, PADDED]),
    multiply("mixed", (5, 21), (21, 6), scales="each", zeros="each", bias=True, layouts=FEW,
              of_types=[(U8, I8, F32), (I8, U8, F16), (U16, I16, F32), (I32, U32, F16)]),
    # A zero point on one side only.
    *(
        multiply(f"only-{side}-zero-point", (5, 21), (21, 6), zeros="each", without=other,
                  of_types=[(U8, U8, F32), (I16, I16, F32)], layouts=[SHIFTED])
        for side, other in (("a", "b"), ("b", "a"))
    ),
    # Vectors of every rank, with matrices of another rank.
    *(
        multiply(f"rank-{rank}-{kind}", (*batch, 3, 9), (*batch, 9, 4), scales=kind, zeros=kind,
                  rank=rank, bias=True, of_types=[(I8, I8, F32), (U16, U16, F16)],
                  layouts=[SHIFTED])
        for rank, batch in ((1, ()), (2, (2,)), (3, ()), (4, (2,)))
        for kind in ("one", "each")
    ),
    # One past the tiles of the shaders.
    multiply("past-a-tile", (65, 65), (65, 67), scales="each", zeros="each", bias=True,
              of_types=_SOME, layouts=[PACKED, TRANSPOSED], levels=["descriptor"]),
    multiply("past-a-large-tile", (129, 131), (131, 130), scales="each", zeros="each", bias=True,
              of_types=_NARROW, layouts=[PADDED], levels=["descriptor"]),
    multiply("past-a-band", (1033, 5), (5, 70), of_types=_NARROW, layouts=[PACKED],
              levels=["descriptor"]),
    multiply("vector-by-matrix", (1, 300), (300, 257), scales="each", of_types=_NARROW,
              layouts=[PACKED, TRANSPOSED], levels=["function"]),
    multiply("matrix-by-vector", (257, 300), (300, 1), zeros="one", bias=True, of_types=_NARROW,
              layouts=[PACKED, TRANSPOSED], levels=["function"]),
    # Exact sums: any K for narrow types. One level only, because CPUs are slow.
    _exact("all-255", U8, of(255), of(255), (2, 200_000, 3), levels=["function"]),
    # At and beyond the longest K of one dispatch, with sums for every batch.
    _exact("a-dispatch-deep", U8, of(0), of(255), (1, 1 << 15, 1), levels=["function"]),
    _extremes("past-a-dispatch", I8, (1 << 16) + 1, levels=["function"]),
    multiply("batches-past-a-dispatch", (2, 2, 2, (1 << 15) + 1), (2, 2, (1 << 15) + 1, 3),
             scales="each", zeros="each", bias=True, of_types=[(U16, U16, F32)], layouts=[SLICED],
             levels=["descriptor"]),
    _extremes("extremes", U8, 1000),
    _extremes("extremes", U16, 1000),
    _extremes("extremes", I16, 1000),
    _exact("all-65535", U16, of(65535), of(65535), (1, 1000, 2)),
    _exact("unsigned-by-signed", U8, of(255), of(-128), (1, 1000, 2), other=I8),
    _exact("unsigned-by-signed", U16, of(65535), of(-32768), (1, 1000, 2), other=I16),
    # 32-bit types, up to the limit of 64 bits.
    _exact("largest-square", I32, of(-(2**31)), of(-(2**31)), (1, 1, 2)),
    _exact("largest-sum", I32, of(-(2**31), -(2**31) + 1), of(-(2**31)), (1, 2, 1)),
    _exact("smallest-sum", I32, of(-(2**31)), of(2**31 - 1, 2**31 - 1, 2), (1, 3, 1)),
    _exact("lowest-sum", I32, of(-(2**31), 2**31 - 2), of(2**31 - 1, 0), (1, 2, 1),
           zeros=([2**31 - 1], [-1])),
    _exact("overflow-and-back", I32, of(-(2**31)),
           of(-(2**31), -(2**31), -(2**31), 2**31 - 1, 2**31 - 1), (1, 5, 1)),
    _exact("largest-square", U32, of(2**32 - 1), of(2**32 - 1), (1, 1, 2)),
    _exact("above-two-to-63", U32, of(2**32 - 1, 2**31), of(2**32 - 2, 1), (1, 2, 1)),
    _exact("unsigned-by-signed", U32, of(2**32 - 1), of(-(2**31)), (1, 1, 2), other=I32),
    _exact("differences", U32, of(0, 5), of(2**31, 4), (1, 2, 1), zeros=([2**32 - 1], [3])),
    # Rounding of sums: an odd 33-bit number, ties to even in both directions, and beyond ties.
    _exact("ties", I32, of(1), of(2**24 + 1, 2**24 + 3, -(2**24) - 1, 2**25 + 2, 2**25 + 3,
                                  2**31 - 1, 2**31 - 65, -(2**31) + 64), (1, 1, 8)),
    _exact("wide-ties", I32, of(2**20, 1), np.array([[2**24 + 1] * 4, [0, 1, -1, 2**19]]),
           (1, 2, 4)),
    multiply("random-sums", (67, 3), (3, 5), of_types=[(I32, I32, F32), (U32, U32, F32)],
              values=_UNIT, layouts=[PACKED]),
    # Rounding to FLOAT16: ties, the largest number and beyond, denormals.
    multiply("half-ties", (1, 1), (1, 8), of_types=[(I32, I32, F16)], layouts=[SHIFTED], values={
        **_UNIT, "a_tensor": of(1),
        "b_tensor": of(2049, 2051, -2049, 65519, 65520, -65520, 65504, 4098)}),
    multiply("half-denormals", (1, 1), (1, 9), of_types=[(I16, I16, F16)], layouts=[SHIFTED],
              values={"a_scale_tensor": of(2.0**-13), "b_scale_tensor": of(2.0**-13),
                      "a_tensor": of(1), "b_tensor": of(1, 2, 3, 5, 6, 7, -2, -10, 4095)}),
    multiply("special-floats", (4, 3), (3, 7), scales="each", zeros="each", bias=True,
              of_types=[(I8, I8, F32), (U8, U8, F16), (I16, I16, F32)], layouts=[SHIFTED], values={
                  "a_scale_tensor": of(np.nan, 1, np.inf, -1),
                  "b_scale_tensor": of(1, 2, -0.0, -np.inf, np.nan, 3, 0.0),
                  "bias_tensor": of(0, -np.inf, np.inf, np.nan, -0.0)}),
    multiply("signed-zeros", (2, 3), (3, 2), scales="each", layouts=[SHIFTED],
             of_types=[(I8, I8, F32), (U16, U16, F16)],
             values={"a_tensor": of(0), "a_scale_tensor": of(-1, 1)}),
]


# Errors


def _desc(data_type: dml.DataType, *sizes: int, **more: Any) -> dml.TensorDesc:
    return dml.TensorDesc(data_type, sizes, **more)


def _error(name: str, parts: list[str], strict: bool = False, **fields: Any) -> ErrorCase:
    usual = dict(
        a_tensor=_desc(U8, 4, 5), a_scale_tensor=_desc(F32, 1, 1),
        b_tensor=_desc(U8, 5, 3), b_scale_tensor=_desc(F32, 1, 1), output_tensor=_desc(F32, 4, 3),
    )
    return ErrorCase("MATRIX_MULTIPLY_INTEGER_TO_FLOAT", name, usual | fields, parts,
                     strict=strict)


ERRORS = [
    _error("mismatched-k", ["BTensor.Sizes", "[5, 3]", "[6, 3]"], b_tensor=_desc(U8, 6, 3)),
    _error("mismatched-batches", ["BTensor.Sizes", "[2, 5, 3]", "[1, 5, 3]"],
           a_tensor=_desc(U8, 2, 4, 5), b_tensor=_desc(U8, 1, 5, 3),
           output_tensor=_desc(F32, 2, 4, 3)),
    _error("output-sizes", ["OutputTensor.Sizes", "[4, 3]", "[3, 4]"],
           output_tensor=_desc(F32, 3, 4)),
    _error("bias-sizes", ["BiasTensor.Sizes", "[4, 3]", "[1, 3]"], bias_tensor=_desc(F32, 1, 3)),
    _error("bias-type", ["DataType", "FLOAT16", "FLOAT32"], bias_tensor=_desc(F16, 4, 3)),
    _error("bias-rank", ["DimensionCount", "3", "2"], bias_tensor=_desc(F32, 1, 4, 3)),
    _error("float-a", ["ATensor.DataType", "INT32", "FLOAT32"], a_tensor=_desc(F32, 4, 5)),
    _error("wide-a", ["ATensor.DataType", "UINT64"], a_tensor=_desc(dml.DataType.UINT64, 4, 5)),
    _error("widths-differ", ["ATensor.DataType", "width", "UINT8", "UINT16"],
           b_tensor=_desc(U16, 5, 3)),
    _error("integer-output", ["OutputTensor.DataType", "FLOAT32", "INT32"],
           output_tensor=_desc(I32, 4, 3)),
    _error("scale-type", ["DataType", "FLOAT16", "FLOAT32"], a_scale_tensor=_desc(F16, 1, 1)),
    _error("vector-a", ["ATensor.DimensionCount", "[2, 4]", "1"], a_tensor=_desc(U8, 5)),
    _error("five-dimensional", ["ATensor.DimensionCount", "[2, 4]", "5"],
           a_tensor=_desc(U8, 1, 1, 1, 4, 5)),
    _error("ranks-differ", ["ATensor.DimensionCount", "3", "2"], a_tensor=_desc(U8, 1, 4, 5)),
    _error("scale-ranks-differ", ["AScaleTensor.DimensionCount", "1", "2"],
           a_scale_tensor=_desc(F32, 1)),
    _error("scale-count", ["AScaleTensor.Sizes", "[4, 1]", "[3, 1]"],
           a_scale_tensor=_desc(F32, 3, 1)),
    _error("scale-on-wrong-axis", ["AScaleTensor.Sizes", "[4, 1]", "[1, 4]"],
           a_scale_tensor=_desc(F32, 1, 4)),
    _error("b-scale-count", ["BScaleTensor.Sizes", "[1, 3]", "[1, 5]"],
           b_scale_tensor=_desc(F32, 1, 5)),
    _error("b-scale-on-wrong-axis", ["BScaleTensor.Sizes", "[1, 3]", "[3, 1]"],
           b_scale_tensor=_desc(F32, 3, 1)),
    _error("zero-point-count", ["AZeroPointTensor.Sizes", "[4, 1]", "[5, 1]"],
           a_zero_point_tensor=_desc(U8, 5, 1)),
    _error("b-zero-point-count", ["BZeroPointTensor.Sizes", "[1, 3]", "[1, 4]"],
           b_zero_point_tensor=_desc(U8, 1, 4)),
    _error("zero-point-type", ["ZeroPointTensor.DataType", "INT8", "UINT8"],
           a_zero_point_tensor=_desc(I8, 1, 1)),
    _error("zero-point-rank", ["DimensionCount", "3", "2"],
           b_zero_point_tensor=_desc(U8, 1, 1, 1)),
    _error("no-scale", ["AScaleTensor", "be given"], a_scale_tensor=None),
    _error("no-b", ["BTensor", "be given"], b_tensor=None),
    _error("stride-0-output", ["OutputTensor.Strides", "[0, 1]"],
           output_tensor=_desc(F32, 4, 3, strides=[0, 1])),
    _error("mixed-signedness-where-strict", ["ATensor.DataType", "UINT8", "INT8"], strict=True,
           b_tensor=_desc(I8, 5, 3)),
]
