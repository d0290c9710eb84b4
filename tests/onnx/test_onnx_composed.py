"""Rows with several of DirectML's operators, against ONNX Runtime's CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="its CPU's results are the expected ones")
pytest.importorskip("onnx", reason="the nodes are built with onnx")

from onnx import helper

import kompute_dml as dml
import kompute_dml.onnx_backend as backend
import onnx_cpu
from onnx_graphs import FLOAT, INT64, Info, cpu, model, node

MICROSOFT = "com.microsoft"
X = np.linspace(-9, 9, 36, dtype=np.float32).reshape(3, 12)
BIAS = np.linspace(-1, 1, 12, dtype=np.float32)
EDGES = np.float32([0.0, -0.0, 1e-30, -3, np.inf, np.nan])


def _check(op: str, inputs: list[Any], bound: float, domain: str = "", **attributes: Any) -> None:
    names = " ".join(f"x{i}" for i in range(len(inputs)))
    wanted = onnx_cpu.result(op, *inputs, domain=domain, opset=22, **attributes)

    def info(name: str, x: np.ndarray) -> Info:
        return name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape

    built = model(
        [node(op, names, "y", domain, **attributes)],
        [info(f"x{i}", x) for i, x in enumerate(inputs)], [info("y", wanted)], opset=22)
    (got,) = backend.run_model(built, inputs)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    if wanted.dtype == bool:
        np.testing.assert_array_equal(got, wanted)
    else:
        # A few operations on values of at most 9 (or 9 x 9 x 9), each with a relative error of
        # 2**-24.
        np.testing.assert_allclose(got, wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize("op, inputs, domain, attributes", [
    ("Cast", [EDGES], "", {"to": 9}), ("Cast", [np.arange(-2, 3)], "", {"to": 9}),
    ("Mean", [X, X[:1], BIAS], "", {}), ("Mean", [X], "", {}),
    ("Pow", [X, np.array(3)], "", {}), ("Pow", [X, np.arange(12, dtype=np.int32) % 4], "", {}),
    ("Pow", [np.int32([16, 9, 2, 3]), np.float32(0.5)], "", {}),
    ("Mish", [X], "", {}), ("Gelu", [X], "", {"approximate": "tanh"}),
    ("FastGelu", [X, BIAS], MICROSOFT, {}), ("FastGelu", [X], MICROSOFT, {}),
    ("BiasGelu", [X, BIAS], MICROSOFT, {}),
], ids=lambda p: p if type(p) is str else "")
def test_composed(op: str, inputs: list[Any], domain: str, attributes: dict[str, Any]) -> None:
    _check(op, inputs, 2**-20, domain, **attributes)


@pytest.mark.parametrize("low, high", [(None, 0.5), (-1.5, None), (-1.5, 0.5), (2, -2)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
def test_clip_between_bounds_of_the_device(dtype: str, low: float, high: float) -> None:
    x = np.append(X, np.nan).astype(dtype) if dtype.startswith("f") else X.astype(dtype)
    bounds = [None if n is None else np.array(n, dtype) for n in (low, high)]
    given = {"x": x} | {name: np.asarray(-b) for name, b in zip("lh", bounds) if b is not None}
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    clip = " ".join(["x", *("-" if b is None else f"{n}0" for n, b in zip("lh", bounds))])
    built = model(
        [*(node("Neg", name, f"{name}0") for name in given if name != "x"),
         node("Clip", clip, "y")],
        [(name, kind, v.shape) for name, v in given.items()], [("y", kind, x.shape)], opset=13)
    (got,) = backend.run_model(built, list(given.values()))
    wanted = cpu(built).run(None, given)[0]
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("op, given", [
    ("LeakyRelu", {"alpha": 0.25}), ("Elu", {"alpha": 2.5}), ("Celu", {"alpha": 2.5}),
    ("Selu", {"alpha": 1.5, "gamma": 2.5}), ("ThresholdedRelu", {"alpha": 2.5}),
    ("HardSigmoid", {"alpha": 0.25, "beta": 0.125}), ("HardSwish", {}),
    ("Shrink", {"bias": 0.25, "lambd": 1.5}), ("QuickGelu", {"alpha": 2.5}),
])
def test_activations_with_and_without_attributes(op: str, given: dict[str, Any]) -> None:
    domain = MICROSOFT if op == "QuickGelu" else ""
    for attributes in [{}, given]:
        _check(op, [X], 2**-20, domain, **attributes)


@pytest.mark.parametrize("equation, sizes", [
    ("ij,jk->ik", [(3, 4), (4, 5)]), ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("bhqk,bkhd->bqhd", [(2, 3, 4, 5), (2, 5, 3, 6)]), ("i,j->ji", [(3,), (4,)]),
    ("ij,ij->", [(3, 4), (3, 4)]), ("ba, bc", [(3, 2), (3, 4)]),
    ("abc,cb->a", [(2, 3, 4), (4, 3)]), ("ij->ji", [(3, 4)]), ("ij->", [(3, 4)]),
    ("...ii->...i", [(2, 3, 3)]), ("...ij,...jk->...ik", [(1, 3, 4), (5, 4, 2)]),
    ("...i,i...", [(2, 3), (3, 2)]), ("ii,ij->j", [(3, 3), (3, 4)]), ("ij,jk->k", [(3, 4), (4, 5)]),
    ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 2)]), ("bij,bjk,bk->bi", [(2, 3, 4), (2, 4, 5), (2, 5)]),
    ("ab,ab->ab", [(3, 4), (3, 4)]),
])
def test_einsum(
    equation: str, sizes: list[tuple[int, ...]], rng: np.random.Generator
) -> None:
    given = [rng.uniform(-1, 1, n).astype(np.float32) for n in sizes]
    _check("Einsum", given, 2**-20, equation=equation)


@pytest.mark.parametrize("equation, sizes, why", [
    ("ij,jk->ik", [(3, 4), (5, 4)], "'j' has sizes 4 and 5"),
    ("ii->i", [(3, 4)], "'i' has sizes"), ("ij->k", [(3, 4)], "no operand has the index 'k'"),
    ("ij,jk->ik", [(3, 4)], "expected 2 operands"), ("ijk->i", [(3, 4)], "does not fit"),
])
def test_einsums_that_do_not_fit(equation: str, sizes: list[tuple[int, ...]], why: str) -> None:
    names = [f"x{i}" for i in range(len(sizes))]
    built = model([node("Einsum", " ".join(names), "y", equation=equation)],
                  [(name, FLOAT, n) for name, n in zip(names, sizes)],
                  [("y", FLOAT, [None] * len(equation.partition("->")[2]))])
    with pytest.raises(dml.DmlError, match=why):
        backend.run_model(built, [np.ones(n, np.float32) for n in sizes])


@pytest.mark.parametrize("size", [(9,), (5, 7), (4, 3, 5)], ids=str)
def test_max_pool_counts_by_columns(size: tuple[int, ...], rng: np.random.Generator) -> None:
    x = rng.permutation(6 * int(np.prod(size))).astype(np.float32).reshape(2, 3, *size)
    by_rows, by_columns = (
        backend.run_model(model(
            [node("MaxPool", "x", "y i", kernel_shape=[2] * len(size), storage_order=order)],
            [("x", FLOAT, x.shape)], [("y", FLOAT, [None] * x.ndim), ("i", INT64, [None] * x.ndim)],
        ), [x])[1] for order in (0, 1))
    plane = int(np.prod(size))
    places = np.unravel_index(by_rows % plane, size)
    wanted = by_rows // plane * plane + np.ravel_multi_index(places, size, order="F")
    np.testing.assert_array_equal(by_columns, wanted)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_a_window_larger_than_what_it_pools(op: str, rng: np.random.Generator) -> None:
    """With ceil_mode, one window hangs over the end."""
    x = rng.standard_normal((2, 3, 4, 9)).astype(np.float32)
    window = {"kernel_shape": [3, 2], "strides": [3, 2], "dilations": [2, 1], "ceil_mode": 1}
    (got,) = backend.run_model(model(
        [node(op, "x", "y", **window)], [("x", FLOAT, x.shape)], [("y", FLOAT, [None] * 4)],
        opset=22), [x])
    np.testing.assert_allclose(got, onnx_cpu.result(op, x, opset=22, **window), rtol=1e-5)
