"""Random models on the provider, compared with ONNX Runtime's CPU provider.

    python tests/random_models.py nodes FIRST COUNT     of one node, of the seeds from FIRST on
    python tests/random_models.py graphs FIRST COUNT    of several nodes

with tests and benchmarks in PYTHONPATH.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnx_graphs import cpu
from provider_tools import session
from random_draw import F16, F32, Draw, RandomNode
from random_graphs import RandomGraph
from random_nodes import MAKERS

_ROOM = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-9}
"""Of the largest element of a result. What the CPU itself is off by comes on top."""
_OPSETS = 7, 25
LEFT, ALIKE, REFUSED = "left to the CPU", "alike", "refused by the CPU"


def of_node(seed: int) -> tuple[bytes, dict[str, np.ndarray], str]:
    """A model of one node, its inputs, and a text that describes it."""
    d = Draw(seed)
    made: RandomNode = d.of(*MAKERS)(d)
    given = {f"x{i}": np.array(x, order="C") for i, x in enumerate(made.inputs) if x is not None}
    host = {f"x{i}" for i in made.host}
    held = {name for name in given if name in host or (name != "x0" and d.chance())}
    infos = [helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(x.dtype),
        [n if d.chance(0.7) else f"{name}_{a}" for a, n in enumerate(x.shape)])
        for name, x in given.items() if name not in held]
    outputs = [f"y{i}" for i in range(made.outputs)]
    names = ["" if x is None else f"x{i}" for i, x in enumerate(made.inputs)]
    graph = helper.make_graph(
        [helper.make_node(made.op, names, outputs, domain=made.domain, **made.attributes)],
        "random", infos, [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(given[name], name) for name in sorted(held)])
    # ONNX Runtime refuses nodes that an older operator set does not have.
    opset = made.opset
    if not made.domain and not made.older and d.chance(0.3):
        opset = d.whole(*_OPSETS)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    inputs = [None if x is None else (str(x.dtype), *x.shape) for x in made.inputs]
    return (model.SerializeToString(), {n: x for n, x in given.items() if n not in held},
            f"{made.op} of operator set {opset}, of {inputs}, {made.attributes}, "
            f"constants {sorted(held)}")


def of_graph(seed: int) -> tuple[bytes, dict[str, np.ndarray], str]:
    """A model of several nodes, its inputs, and a text that describes it."""
    made = RandomGraph(seed)
    return made.model(), made.feed(), ", ".join(node.op_type for node in made.nodes)


MODELS: dict[str, Callable[[int], tuple[bytes, dict[str, np.ndarray], str]]] = {
    "nodes": of_node, "graphs": of_graph}


def _in_float32(model: bytes) -> bytes:
    """A FLOAT16 model whose values are FLOAT32: a reference for both."""
    wide = onnx.load_model_from_string(model)
    for constant in wide.graph.initializer:
        if constant.data_type == onnx.TensorProto.FLOAT16:
            values = numpy_helper.to_array(constant).astype(F32)
            constant.CopyFrom(numpy_helper.from_array(values, constant.name))
    for info in wide.graph.input:
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16:
            info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return bytes(wide.SerializeToString())


def _differs(got: np.ndarray, wanted: np.ndarray, exact: np.ndarray, rounds: bool) -> str:
    """What is wrong with a result, or nothing."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{got.dtype} of {got.shape}, not {wanted.dtype} of {wanted.shape}"
    if got.dtype.kind != "f":
        off = np.abs(got.astype(np.int64) - wanted.astype(np.int64)).max(initial=0)
        return f"off by {off}" if off > rounds else ""
    wide = exact.astype(np.float64)
    known = np.isfinite(wide)  # elsewhere the CPU's own formulas may overflow
    if not known.any():
        return ""
    off, own = (np.abs(np.where(known, y - wide, 0)).max() for y in (got, wanted))
    top = max(np.abs(wide[known]).max(), 1e-3)
    return f"off by {off:.2g} of {top:.2g}, the CPU by {own:.2g}" if not (
        off <= _ROOM[got.dtype.name] * top + 4 * own) else ""


def compare(model: bytes, feed: dict[str, np.ndarray]) -> str:
    """Whether the results of a model are alike; else what is wrong."""
    try:
        # Not optimized: the optimizer of ONNX Runtime 1.32 crashes at some FLOAT16 graphs.
        wanted = cpu(model, False).run(None, feed)
    except Exception:  # ONNX Runtime's exceptions have no class in common
        return REFUSED
    exact = wanted
    if any(x.dtype == F16 for x in feed.values()) and all(y.dtype == F16 for y in wanted):
        exact = cpu(_in_float32(model), False).run(None, {
            name: x.astype(F32) if x.dtype == F16 else x for name, x in feed.items()})
    own = session(model, claim="all")
    placed = {part.ep_name for part in own.get_provider_graph_assignment_info()}
    if placed == {"CPUExecutionProvider"}:
        return LEFT
    rounds = any(n.op_type.startswith(("Quantize", "QLinear"))
                 for n in onnx.load_model_from_string(model).graph.node)
    for run in range(2):  # the second one uses the plan that is kept
        for i, results in enumerate(zip(own.run(None, feed), wanted, exact, strict=True)):
            if wrong := _differs(*(np.asarray(y) for y in results), rounds):
                return f"run {run}, output {i}: {wrong}"
    return ALIKE


def tried(kind: str, first: int, count: int) -> tuple[Counter[str], list[str]]:
    """How many models ended in what way, and what is wrong with which."""
    counts: Counter[str] = Counter()
    wrong = []
    for seed in range(first, first + count):
        model, feed, text = MODELS[kind](seed)
        try:
            found: Any = compare(model, feed)
        except Exception as error:
            found = str(error)
        if found in (ALIKE, LEFT, REFUSED):
            counts[found] += 1
        else:
            counts["wrong"] += 1
            wrong.append(f"{kind} {seed}: {found}: {text}")
    return counts, wrong


if __name__ == "__main__":
    ends, problems = tried(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    print(*problems, dict(ends), sep="\n")
    sys.exit(bool(problems))
