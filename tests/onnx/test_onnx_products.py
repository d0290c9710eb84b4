"""ONNX's matrix products, against NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", reason="the models' helpers import it")

import kompute_dml.onnx_backend as backend  # noqa: E402
from onnx_graphs import FLOAT, INT64, cpu, model, node  # noqa: E402


def _transposed(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


@pytest.mark.parametrize(("op", "shapes", "expected", "attributes"), [
    ("MatMul", [(4,), (4, 5)], np.matmul, {}),
    ("MatMul", [(2, 3, 4), (4,)], np.matmul, {}),
    ("MatMul", [(4,), (4,)], np.matmul, {}),
    ("MatMul", [(2, 7, 3, 4), (4, 6)], np.matmul, {}),
    ("MatMul", [(2, 1, 3, 4), (5, 4, 6)], np.matmul, {}),
    ("MatMul", [(2, 1, 3, 3, 4), (1, 5, 1, 4, 6)], np.matmul, {}),
    ("Gemm", [(3, 4), (4, 5)], np.matmul, {}),
    ("Gemm", [(3, 4), (4, 5), (5,)], lambda a, b, c: a @ b / 2 + 2 * c,
     {"alpha": 0.5, "beta": 2.0}),
    ("Gemm", [(4, 3), (5, 4), (3, 1)], lambda a, b, c: a.T @ b.T + c,
     {"transA": 1, "transB": 1}),
    ("com.microsoft.FusedMatMul", [(2, 4, 3), (2, 5, 4)],
     lambda a, b: _transposed(a) @ _transposed(b) / 2, {"transA": 1, "transB": 1, "alpha": 0.5}),
    ("com.microsoft.FusedMatMul", [(3, 2, 6, 4), (4, 2, 6, 5)],
     lambda a, b: np.moveaxis(a, 0, -2) @ np.moveaxis(b, 0, -2),
     {"transBatchA": 1, "transBatchB": 1}),
])
def test_product(
    op: str, shapes: list[tuple[int, ...]], expected: Callable[..., Any],
    attributes: dict[str, Any], rng: np.random.Generator,
) -> None:
    values = [rng.normal(0, 1, s).astype(np.float32) for s in shapes]
    y = expected(*values)
    domain, _, name = op.rpartition(".")
    names = [f"x{i}" for i in range(len(shapes))]
    built = model([node(name, " ".join(names), "y", domain, **attributes)],
                  [(n, FLOAT, s) for n, s in zip(names, shapes)], [("y", FLOAT, y.shape)])
    got = backend.prepare(built).run(values)[0]
    np.testing.assert_allclose(got, y, rtol=1e-5, atol=1e-5, strict=True)


def test_matrices_whose_rank_only_a_run_knows(rng: np.random.Generator) -> None:
    b = rng.standard_normal((4, 5)).astype(np.float32)
    built = model([node("Reshape", "x sizes", "a"), node("MatMul", "a b", "ab"),
                   node("Reshape", "ab all", "y")],
                  [("x", FLOAT, ["n"]), ("sizes", INT64, ["rank"])], [("y", FLOAT, ["m"])],
                  {"b": b, "all": np.array([-1])})
    prepared = backend.prepare(built)
    for sizes in ((4,), (3, 4), (2, 3, 4), (3, 4)):
        a = rng.standard_normal(sizes).astype(np.float32)
        got = prepared.run([a.reshape(-1), np.array(sizes)])[0]
        np.testing.assert_allclose(got, (a @ b).reshape(-1), rtol=1e-5, atol=1e-5)


def _packed(x: np.ndarray, bits: int) -> np.ndarray:
    """Rows of elements of ``bits`` bits, the first one in the low bits, padded to whole bytes."""
    if bits == 8:
        return x
    x = np.pad(x, ((0, 0), (0, x.shape[1] % 2)))
    return x[:, ::2] | x[:, 1::2] << 4


@pytest.mark.parametrize("zeros", ["", "packed", "numbers"])
@pytest.mark.parametrize(("bits", "k", "block"), [(4, 96, 32), (4, 100, 16), (8, 64, 64)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_weights_in_blocks_of_bits(
    dtype: Any, bits: int, k: int, block: int, zeros: str, rng: np.random.Generator
) -> None:
    n, blocks = 5, -(-k // block)
    a = rng.integers(-8, 9, (2, 3, k)).astype(dtype)
    b = rng.integers(0, 1 << bits, (n, blocks * block), np.uint8)
    scales = (2.0 ** rng.integers(-9, -6, (n, blocks))).astype(dtype)
    zero: Any = rng.integers(0, 1 << bits, (n, blocks), np.uint8)
    values = [a, _packed(b, bits).reshape(n, blocks, -1), scales.reshape(-1)]
    if zeros == "packed":
        values.append(_packed(zero, bits).reshape(-1))
    elif zeros:
        zero = zero / 2 + 0.25
        values.append(zero.astype(dtype))
    else:
        zero[:] = 1 << (bits - 1)
    spread = [np.repeat(x, block, 1) for x in (zero.astype(np.float64), scales)]
    y = a.astype(np.float64) @ ((b - spread[0]) * spread[1])[:, :k].T
    names = ["a", "b", "scales", "zero"][: len(values)]
    built = model(
        [node("MatMulNBits", " ".join(names), "y", "com.microsoft", K=k, N=n, bits=bits,
              block_size=block)],
        [(name, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
         for name, v in zip(names, values)],
        [("y", onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), y.shape)])
    got = backend.prepare(built).run(values)[0]
    np.testing.assert_allclose(got, y, rtol=2e-3 if dtype is np.float16 else 1e-6, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 40])
def test_activations_stay_exact_at_every_accuracy_level(
    rows: int, rng: np.random.Generator
) -> None:
    """Builders write level 4, by which the CPU provider rounds activations to 8 bits. So models of
    4 bits differ from it by some hundredths."""
    k, n, block = 128, 64, 32
    constants = {"b": rng.integers(0, 256, (n, k // block, block // 2), np.uint8),
                 "scales": rng.uniform(0.01, 0.1, n * k // block).astype(np.float32)}
    a = rng.standard_normal((rows, k), np.float32)
    exact, rounded = (model(
        [node("MatMulNBits", "a b scales", "y", "com.microsoft", K=k, N=n, bits=4,
              block_size=block, accuracy_level=level)],
        [("a", FLOAT, ["n", k])], [("y", FLOAT, ["n", n])], constants) for level in (1, 4))
    expected, coarse = (cpu(built).run(None, {"a": a})[0] for built in (exact, rounded))
    got = backend.prepare(rounded).run([a])[0]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
    assert abs(coarse - expected).max() > 20 * abs(got - expected).max()


@pytest.mark.parametrize("zeros", ["", "packed", "numbers"])
@pytest.mark.parametrize(("bits", "k", "block"), [(4, 90, 32), (8, 64, 16)])
def test_weights_whose_rows_choose_their_blocks(
    bits: int, k: int, block: int, zeros: str, rng: np.random.Generator
) -> None:
    """g_idx says which block's scale and zero point each row of B has."""
    n, blocks = 5, -(-k // block)
    a = rng.integers(-8, 9, (3, k)).astype(np.float32)
    b = rng.integers(0, 1 << bits, (n, blocks * block), np.uint8)
    scales = (2.0 ** rng.integers(-9, -6, (n, blocks))).astype(np.float32)
    zero: Any = rng.integers(0, 1 << bits, (n, blocks), np.uint8)
    given = {"b": _packed(b, bits).reshape(n, blocks, -1), "scales": scales.reshape(-1)}
    if zeros == "packed":
        given["zero"] = _packed(zero, bits).reshape(-1)
    elif zeros:
        zero = (zero / 2 + 0.25).astype(np.float32)
        given["zero"] = zero
    else:
        zero[:] = 1 << bits - 1
    groups = given["groups"] = rng.integers(0, blocks, k).astype(np.int32)
    y = a @ ((b[:, :k] - zero[:, groups].astype(np.float64)) * scales[:, groups]).T
    names = f"a b scales {'zero' if zeros else '-'} groups"
    built = model(
        [node("MatMulNBits", names, "y", "com.microsoft", K=k, N=n, bits=bits, block_size=block)],
        [("a", FLOAT, a.shape)], [("y", FLOAT, y.shape)], given)
    got = backend.prepare(built).run([a])[0]
    np.testing.assert_allclose(got, y, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
def test_qgemm(quantized: bool, transposed: int, rng: np.random.Generator) -> None:
    a, b = (rng.integers(0, 256, s, np.uint8) for s in ((7, 12), (12, 9)))
    c = rng.integers(-999, 999, 9).astype(np.int32)
    scales = np.float32(0.25), (2.0 ** rng.integers(-4, -1, 9)).astype(np.float32)
    zeros = np.uint8(120), rng.integers(100, 140, 9).astype(np.uint8)
    y = ((a.astype(int) - zeros[0]) @ (b.astype(int) - zeros[1]) + c) * (scales[0] * scales[1] / 2)
    values = [a.T.copy() if transposed else a, scales[0], zeros[0],
              b.T.copy() if transposed else b, scales[1], zeros[1], c]
    if quantized:
        values += [np.float32(32), np.uint8(99)]
        y = np.clip(np.rint(y / 32) + 99, 0, 255).astype(np.uint8)
    names = [f"x{i}" for i in range(len(values))]
    kinds = [onnx.helper.np_dtype_to_tensor_dtype(np.asarray(v).dtype) for v in (*values, y)]
    built = model(
        [node("QGemm", " ".join(names), "y", "com.microsoft", alpha=0.5, transA=transposed,
              transB=transposed)],
        [(name, kind, np.shape(v)) for name, kind, v in zip(names, kinds, values)],
        [("y", kinds[-1] if quantized else FLOAT, y.shape)])
    got = backend.prepare(built).run([np.asarray(v) for v in values])[0]
    np.testing.assert_allclose(got, y, rtol=1e-6)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_quantization_in_blocks(dtype: Any, zeros: bool, rng: np.random.Generator) -> None:
    limits = np.iinfo(dtype)
    q = rng.integers(limits.min, limits.max, (3, 12, 5), dtype, endpoint=True)
    scale = (2.0 ** rng.integers(-3, 3, (3, 3, 5))).astype(np.float32)
    zero = rng.integers(-20 if limits.min else 0, 20, scale.shape).astype(dtype)
    values = {"q": q, "s": scale, **({"z": zero} if zeros else {})}
    offset = np.repeat(zero, 4, 1).astype(np.float32) if zeros else 0
    x = (q.astype(np.float32) - offset) * np.repeat(scale, 4, 1)
    kinds = {k: onnx.helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in values.items()}
    rest = " ".join([*values][1:])
    options = {} if zeros else {"output_dtype": kinds["q"]}
    built = model(
        [node("DequantizeLinear", f"q {rest}", "x", axis=1, block_size=4),
         node("QuantizeLinear", f"x {rest}", "y", axis=1, block_size=4, **options)],
        [(k, kinds[k], v.shape) for k, v in values.items()],
        [("x", FLOAT, x.shape), ("y", kinds["q"], q.shape)], opset=21)
    got = backend.prepare(built).run([*values.values()])
    np.testing.assert_array_equal(got[0], x)
    np.testing.assert_array_equal(got[1], q)


@pytest.mark.parametrize("opset", [1, 6])
def test_gemm_of_the_first_opsets(opset: int, rng: np.random.Generator) -> None:
    a, b, c = (rng.normal(0, 1, s).astype(np.float32) for s in ((3, 4), (4, 5), (5,)))
    built = model([node("Gemm", "a b c", "y", broadcast=1)],
                  [(n, FLOAT, x.shape) for n, x in zip("abc", (a, b, c))],
                  [("y", FLOAT, (3, 5))], opset=opset)
    got = backend.prepare(built).run([a, b, c])[0]
    np.testing.assert_allclose(got, a @ b + c, rtol=1e-5, atol=1e-5)
