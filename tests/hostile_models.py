"""Models that are wrong: ONNX's node tests with attributes, sizes and values changed at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

_WHOLE = (-(2**62), -(2**31), -7, -2, -1, 0, 1, 2, 3, 5, 64, 2**20, 2**31, 2**62)
_REAL = (0.0, -1.0, 1e-30, 3e38, float("inf"), float("-inf"), float("nan"))


def _attribute(a: onnx.AttributeProto, rng: np.random.Generator) -> None:
    if a.type == onnx.AttributeProto.INT:
        a.i = int(rng.choice(_WHOLE))
    elif a.type == onnx.AttributeProto.FLOAT:
        a.f = float(rng.choice(_REAL))
    elif a.type == onnx.AttributeProto.INTS:
        values = list(a.ints)
        if values and rng.random() < 0.7:
            values[rng.integers(len(values))] = int(rng.choice(_WHOLE))
        else:
            values = values[:-1] if values and rng.random() < 0.5 else [*values, 1]
        del a.ints[:]
        a.ints.extend(values)
    elif a.type == onnx.AttributeProto.STRING:
        a.s = b"nonsense"


def _values(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Some elements changed, or other sizes."""
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "iufb":
        return x
    y = x.copy()
    if rng.random() < 0.5 and y.size:
        at = rng.integers(0, y.size, max(1, y.size // 4))
        pool: Any = _REAL if y.dtype.kind == "f" else _WHOLE
        flat = y.reshape(-1)
        with np.errstate(all="ignore"):
            flat[at] = np.array(rng.choice(pool, at.size)).astype(y.dtype)
        return y
    if y.ndim:
        axis, n = rng.integers(y.ndim), int(rng.choice([0, 1, 2, 3]))
        return np.resize(y, [n if d == axis else m for d, m in enumerate(y.shape)])
    return y


def change(
    model: onnx.ModelProto, inputs: list[np.ndarray], rng: np.random.Generator
) -> tuple[bytes, dict[str, np.ndarray]]:
    """A wrong model, or one that is right by chance, and what to give it."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    graph = model.graph
    given = dict(zip((i.name for i in graph.input), inputs))
    for _ in range(rng.integers(1, 3)):
        attributes = [a for n in graph.node for a in n.attribute]
        kind = rng.integers(4)
        if kind == 0 and attributes:
            _attribute(attributes[rng.integers(len(attributes))], rng)
        elif kind == 1 and given:
            name = list(given)[rng.integers(len(given))]
            given[name] = _values(given[name], rng)
        elif kind == 2 and graph.node:
            node = graph.node[rng.integers(len(graph.node))]
            if node.input and rng.random() < 0.5:
                node.input.pop()
            elif node.input:
                at = rng.integers(len(node.input))
                node.input[at] = list(given)[rng.integers(len(given))] if given else ""
        elif kind == 3 and given:
            name = list(given)[rng.integers(len(given))]
            x = given[name]
            if isinstance(x, np.ndarray) and x.dtype.kind in "iufb":
                graph.initializer.append(numpy_helper.from_array(_values(x, rng), name))
                del given[name]
                for i, info in enumerate(graph.input):
                    if info.name == name:
                        del graph.input[i]
                        break
    for info in (*graph.input, *graph.output):
        if info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape"):
            for d in info.type.tensor_type.shape.dim:
                d.ClearField("dim_value")
                d.dim_param = ""
    names = {i.name for i in graph.input}
    return model.SerializeToString(), {n: x for n, x in given.items() if n in names}


def run(first: int, count: int) -> None:
    """Run ``count`` wrong models, and print what this package says of them."""
    import faulthandler
    import sys
    import warnings
    from pathlib import Path

    import onnxruntime as ort

    sys.path.insert(0, str(Path(__file__).parent / "onnx"))
    import conformance
    import kompute_dml.onnxruntime as kompute

    warnings.simplefilter("ignore")
    faulthandler.enable()
    ort.set_default_logger_severity(4)
    # With random attributes, its CPU kernel may take very long.
    cases = [c for c in conformance._cases(None) if "tfidf" not in c.name]
    errors = 0
    for seed in range(first, first + count):
        rng = np.random.default_rng(seed)
        case = cases[rng.integers(len(cases))]
        inputs = [x if x is None or isinstance(x, (list, dict)) else np.asarray(x)
                  for x in case.data_sets[0][0]]
        built, feed = change(case.model, inputs, rng)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        try:
            kompute.session(built, session_options=options, claim="all").run(None, feed)
        except Exception as error:
            errors += 1
            if "kompute_dml" in str(error):
                print(seed, case.name, str(error).replace("\n", " "), flush=True)
    print(f"{count} models, {errors} errors")


if __name__ == "__main__":
    import sys

    run(*[int(number) for number in sys.argv[1:]])
