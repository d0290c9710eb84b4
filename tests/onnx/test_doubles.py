"""FLOAT64 that exporters write out of habit cuts no region."""

from __future__ import annotations

import numpy as np

import kompute_dml.onnxruntime as kompute
from kompute_dml.onnxruntime.provider import decisions
from onnx_graphs import BOOL, FLOAT, INT64, cpu, model, needs_provider, node
from provider_tools import last_kernel, session

DOUBLE, HALF = 11, 10
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e308, -1e308,
           1 + 2.0**-52]
A, B = (np.array(x) for x in zip(*[(a, b) for a in SPECIAL for b in SPECIAL]))
ONE = {
    "IsNaN": np.isnan(A), "IsInf": np.isinf(A), "Neg": -A, "Abs": np.abs(A),
}
TWO = {
    "Equal": A == B, "Greater": A > B, "Less": A < B, "GreaterOrEqual": A >= B,
    "LessOrEqual": A <= B, "Max": np.maximum(A, B), "Min": np.minimum(A, B),
}


@needs_provider
def test_values_of_doubles() -> None:
    nodes = [*(node(op, "a", op) for op in ONE), *(node(op, "a b", op) for op in TWO),
             node("IsInf", "a", "above", detect_negative=0),
             node("IsInf", "a", "below", detect_positive=0), node("Where", "Less a b", "picked")]
    expected = {**ONE, **TWO, "above": np.inf == A, "below": -np.inf == A,
                "picked": np.where(A < B, A, B)}
    outputs = [(name, BOOL if y.dtype == bool else DOUBLE, None) for name, y in expected.items()]
    built = model(nodes, [(x, DOUBLE, A.shape) for x in "ab"], outputs, opset=16)
    got = session(built, False, claim="all", strict=True).run(None, {"a": A, "b": B})
    for (name, y), x in zip(expected.items(), got):
        np.testing.assert_array_equal(x, y, name, strict=True)
        if name in ("Neg", "Abs"):
            assert (np.signbit(x) == np.signbit(y)).all(), name


@needs_provider
def test_what_torch_writes_around_isinf_cuts_no_region() -> None:
    """As T5 clamps FLOAT16: where any element is infinite, by a smaller bound."""
    nodes = [node("MatMul", "x w", "h"), node("Cast", "h", "d", to=DOUBLE), node("IsInf", "d", "i"),
             node("Cast", "i", "n", to=6), node("ReduceMax", "n", "any", keepdims=0),
             node("Cast", "any", "some", to=BOOL), node("Where", "some small large", "bound"),
             node("Neg", "bound", "least"), node("Clip", "h least bound", "y")]
    w = np.full((4, 4), 200, np.float16)
    built = model(nodes, [("x", HALF, [3, 4])], [("y", HALF, None)], {
        "w": w, "small": np.float16(64504), "large": np.float16(65504)}, opset=17)
    decided, _ = kompute.decided(built, claim="all")
    assert {d.where for d in decided} == {"region 0"}
    x = np.full((3, 4), 100, np.float16)
    bound = float(np.float16(64504))
    for feed in (x, x / np.float16(4)):
        run = session(built, claim="all", strict=True)
        y = run.run(None, {"x": feed})[0]
        np.testing.assert_array_equal(y, np.clip(feed.astype(np.float64) @ w, -bound, bound))
    (plan,) = last_kernel().region._plans.values()
    assert plan.operators[:2] == ["GEMM", "ELEMENT_WISE_IS_INFINITY"]


HABITS = {
    # name: nodes from x (FLOAT), h (FLOAT16) and mask (INT64) to a result of this name
    "counted": [node("Cast", "mask", "c1", to=DOUBLE), node("CumSum", "c1 axis", "c2"),
                node("Cast", "c2", "c3", to=FLOAT), node("Mul", "c3 x", "counted")],
    "arithmetic": [node("Cast", "h", "a1", to=DOUBLE), node("Mul", "a1 third", "a2"),
                   node("Add", "a2 two", "a3"), node("Sqrt", "a3", "a4"),
                   node("Div", "a4 third", "a5"), node("Sub", "a5 two", "a6"),
                   node("Cast", "a6", "arithmetic", to=HALF)],
    "powers": [node("Pow", "x two", "p1"), node("Pow", "p1 whole", "p2"),
               node("Cast", "x", "p3", to=DOUBLE), node("Pow", "two p3", "p4"),
               node("Cast", "p4", "p5", to=FLOAT), node("Add", "p2 p5", "powers")],
    "scaled": [node("Shape", "x", "s1"), node("Gather", "s1 one", "s2"),
               node("Cast", "s2", "s3", to=DOUBLE), node("Sqrt", "s3", "s4"),
               node("Div", "two s4", "s5"), node("Cast", "s5", "s6", to=FLOAT),
               node("Mul", "x s6", "scaled")],
    "ranged": [node("Range", "zero third step", "r1"), node("Cast", "r1", "r2", to=FLOAT),
               node("ReduceSum", "r2", "r3", keepdims=0), node("Mul", "x r3", "ranged")],
    "hidden": [node("Cast", "mask", "h1", to=DOUBLE), node("Sub", "two h1", "h2"),
               node("Cast", "h2", "h3", to=BOOL), node("Cast", "x", "h4", to=DOUBLE),
               node("Where", "h3 lowest h4", "h5"), node("Softmax", "h5", "h6", axis=-1),
               node("Cast", "h6", "hidden", to=FLOAT)],
    "bounded": [node("Cast", "x", "b1", to=DOUBLE), node("Max", "b1 third", "b2"),
                node("Min", "b2 two", "b3"), node("Clip", "b3 third two", "b4"),
                node("Cast", "b4", "bounded", to=FLOAT)],
    "halved": [node("Cast", "mask", "f1", to=DOUBLE), node("Div", "f1 two", "f2"),
               node("Floor", "f2", "f3"), node("Cast", "f3", "halved", to=INT64)],
    "centred": [node("Cast", "h", "m1", to=DOUBLE), node("ReduceMean", "m1", "m2", axes=[-1]),
                node("Sub", "m1 m2", "m3"), node("Cast", "m3", "centred", to=HALF)],
}
CONSTANTS = {
    "axis": np.int64(1), "one": np.int64(1), "whole": np.int64(3), "two": np.float64(2),
    "third": np.float64(0.3), "zero": np.float64(0), "step": np.float64(0.1),
    "lowest": np.float64(-1.7e38)}
TYPES = {"halved": INT64, "arithmetic": HALF, "centred": HALF}


@needs_provider
def test_habits_of_exporters_cut_no_region(rng: np.random.Generator) -> None:
    """Range counts in FLOAT64: of 0.3 by steps of 0.1 there are 3, which FLOAT32 need not give."""
    outputs = [(name, TYPES.get(name, FLOAT), None) for name in HABITS]
    inputs = [("x", FLOAT, [2, 6]), ("h", HALF, [2, 6]), ("mask", INT64, [2, 6])]
    built = model([n for nodes in HABITS.values() for n in nodes], inputs, outputs, CONSTANTS,
                  opset=17)
    with decisions(quiet=True) as decided:
        run = session(built, claim="all", strict=True)
    assert {d.where for d in decided} == {"region 0"}, [
        d for d in decided if d.where != "region 0"]
    x = rng.uniform(0.5, 2.0, (2, 6)).astype(np.float32)
    feed = {"x": x, "h": x.astype(np.float16), "mask": rng.integers(0, 4, (2, 6))}
    expected = cpu(built).run(None, feed)
    for name, y, z in zip(HABITS, run.run(None, feed), expected):
        assert y.dtype == z.dtype, name
        bound = 2e-3 if y.dtype == np.float16 else 2e-6
        np.testing.assert_allclose(y, z, bound, 1e-6, err_msg=name)


@needs_provider
def test_doubles_of_the_model_are_computed_on_the_cpu() -> None:
    """They would lose digits. What only becomes FLOAT64 on the way does not keep others apart."""
    nodes = [node("Add", "d d", "e"), node("Cast", "e", "f", to=FLOAT), node("Exp", "f", "g"),
             node("Cast", "g", "k", to=DOUBLE), node("Mul", "k k", "y")]
    built = model(nodes, [("d", DOUBLE, [4])], [("y", DOUBLE, None)], opset=17)
    decided, _ = kompute.decided(built, claim="all")
    assert [d.where for d in decided] == ["CPU", *["region 0"] * 3, "CPU"]
    assert decided[0].why == "input 0: ATensor cannot be FLOAT64 at any feature level"
