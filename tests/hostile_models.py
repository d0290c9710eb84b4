"""Models that are wrong: ONNX's node tests with attributes, sizes, types and values changed at
random.

    python tests/hostile_models.py FIRST COUNT      of the seeds from FIRST on
"""

from __future__ import annotations

import faulthandler
import resource
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_WHOLE = (-(2**62), -(2**31), -7, -2, -1, 0, 1, 2, 3, 5, 64, 2**20, 2**31, 2**62)
_REAL = (0.0, -1.0, 1e-30, 3e38, float("inf"), float("-inf"), float("nan"))
_TYPES = ("float32", "float16", "float64", "int8", "uint8", "int32", "int64", "uint32", "bool")
_MEMORY = 12 << 30
"""Bytes of addresses that the process may have: what asks for more gets an error."""
_SECONDS = 60
"""Within which one model must be done."""

Rng = np.random.Generator


class Hostile:
    """A model that is about to be changed, and what it is given."""

    def __init__(self, model: onnx.ModelProto, inputs: list[Any], rng: Rng) -> None:
        self.model = onnx.ModelProto.FromString(model.SerializeToString())
        self.graph = self.model.graph
        self.given: dict[str, Any] = dict(zip((i.name for i in self.graph.input), inputs))
        self.rng = rng
        self.keeps_sizes = False

    def pick(self, items: Any) -> Any:
        items = list(items)
        return items[self.rng.integers(len(items))]

    def tensor(self) -> str | None:
        """An input that is a tensor of numbers."""
        names = [n for n, x in self.given.items()
                 if isinstance(x, np.ndarray) and x.dtype.kind in "iufb"]
        return self.pick(names) if names else None

    def info(self, name: str) -> Any:
        return next(i for i in self.graph.input if i.name == name)


def _values(h: Hostile, x: np.ndarray) -> np.ndarray:
    """Some elements changed, or other sizes."""
    rng, y = h.rng, x.copy()
    if rng.random() < 0.5 and y.size:
        at = rng.integers(0, y.size, max(1, y.size // 4))
        pool: Any = _REAL if y.dtype.kind == "f" else _WHOLE
        with np.errstate(all="ignore"):
            y.reshape(-1)[at] = np.array(rng.choice(pool, at.size)).astype(y.dtype)
    elif y.ndim and rng.random() < 0.8:
        axis, n = rng.integers(y.ndim), int(rng.choice([0, 1, 2, 3]))
        y = np.resize(y, [n if d == axis else m for d, m in enumerate(y.shape)])
    else:
        y = y[None] if rng.random() < 0.5 or not y.ndim else y[0] if len(y) else y.reshape(0)
    return y


def _attribute(h: Hostile) -> None:
    attributes = [a for n in h.graph.node for a in n.attribute]
    if not attributes:
        return
    a, rng = h.pick(attributes), h.rng
    if a.type == onnx.AttributeProto.INT:
        a.i = int(rng.choice(_WHOLE))
    elif a.type == onnx.AttributeProto.FLOAT:
        a.f = float(rng.choice(_REAL))
    elif a.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        whole = a.type == onnx.AttributeProto.INTS
        kept = a.ints if whole else a.floats
        values: list[Any] = list(kept)
        if values and rng.random() < 0.7:
            pool: Any = _WHOLE if whole else _REAL
            values[rng.integers(len(values))] = rng.choice(pool).item()
        else:
            values = values[:-1] if values and rng.random() < 0.5 else [*values, 1]
        del kept[:]
        kept.extend(values)
    elif a.type == onnx.AttributeProto.STRING:
        a.s = b"nonsense"
    elif a.type == onnx.AttributeProto.TENSOR:
        x = numpy_helper.to_array(a.t)
        if x.dtype.kind in "iufb":
            a.t.CopyFrom(numpy_helper.from_array(_values(h, x), a.t.name))


def _attribute_left_out_or_added(h: Hostile) -> None:
    node = h.pick(h.graph.node)
    if node.attribute and h.rng.random() < 0.5:
        del node.attribute[h.rng.integers(len(node.attribute))]
        return
    known = onnx.defs.get_schema(node.op_type, node.domain).attributes
    missing = [a for a in known if a not in {given.name for given in node.attribute}]
    if missing:
        kind = known[name := h.pick(missing)].type
        value: Any = {"INT": lambda: int(h.rng.choice(_WHOLE)),
                      "FLOAT": lambda: float(h.rng.choice(_REAL)),
                      "INTS": lambda: [int(n) for n in h.rng.choice(_WHOLE, 2)],
                      "STRING": lambda: "nonsense"}.get(kind.name, lambda: None)()
        if value is not None:
            node.attribute.append(helper.make_attribute(name, value))


def _fed(h: Hostile) -> None:
    if (name := h.tensor()) is not None:
        h.given[name] = _values(h, h.given[name])


def _inputs_of_a_node(h: Hostile) -> None:
    node = h.pick(h.graph.node)
    if node.input and h.rng.random() < 0.5:
        node.input.pop()
    elif node.input:
        at = h.rng.integers(len(node.input))
        node.input[at] = h.pick(h.given) if h.given else ""


def _outputs_of_a_node(h: Hostile) -> None:
    node = h.pick(h.graph.node)
    if len(node.output) > 1 and h.rng.random() < 0.5:
        node.output[h.rng.integers(len(node.output))] = ""
    else:
        node.output.append("one_more")


def _constant(h: Hostile) -> None:
    """An input becomes an initializer, which may be at odds with itself."""
    if (name := h.tensor()) is None:
        return
    tensor = numpy_helper.from_array(_values(h, h.given.pop(name)), name)
    if h.rng.random() < 0.1 and tensor.raw_data:
        tensor.raw_data = tensor.raw_data[: len(tensor.raw_data) // 2]
    elif h.rng.random() < 0.1 and tensor.dims:
        tensor.dims[h.rng.integers(len(tensor.dims))] = int(h.rng.choice(_WHOLE))
    h.graph.initializer.append(tensor)
    h.graph.input.remove(h.info(name))


def _data_type(h: Hostile) -> None:
    if (name := h.tensor()) is None:
        return
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        h.given[name] = x = h.given[name].astype(h.pick(_TYPES))
    h.info(name).type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    for info in h.graph.output:
        if info.type.HasField("tensor_type"):
            info.ClearField("type")


def _declared_sizes(h: Hostile) -> None:
    """Sizes that a model promises, and breaks."""
    h.keeps_sizes = True
    dims = [d for i in (*h.graph.input, *h.graph.output) if i.type.HasField("tensor_type")
            for d in i.type.tensor_type.shape.dim]
    if dims:
        h.pick(dims).dim_value = int(h.rng.choice([0, 1, 2, 7, 2**20, 2**40]))


def _operator_set(h: Hostile) -> None:
    h.pick(h.model.opset_import).version = int(h.rng.choice([1, 6, 7, 9, 11, 12, 13, 18, 21]))


def _what_follows(h: Hostile) -> None:
    """A node after an output, so that a region has several."""
    info = h.pick(h.graph.output)
    if not info.type.HasField("tensor_type"):
        return
    whole = [int(n) for n in h.rng.choice([-7, -1, 0, 1, 2, 3, 2**20, 2**31], 3)]
    op, extra, more = h.pick([
        ("Reshape", [whole[:2]], {}), ("Expand", [whole], {}), ("Tile", [whole[:1]], {}),
        ("Slice", [whole[:1], whole[1:2]], {}), ("Gather", [whole], {"axis": whole[0] % 5 - 2}),
        ("Unsqueeze", [whole[:1]], {}), ("Squeeze", [whole[:1]], {}), ("Pad", [whole], {}),
        ("Transpose", [], {"perm": whole[:2]}), ("Flatten", [], {"axis": whole[0]}),
        ("Concat", [], {"axis": whole[0]}), ("Softmax", [], {"axis": whole[0]}),
        ("ReduceSum", [whole[:1]], {}), ("CumSum", [whole[0]], {}),
        ("Shape", [], {"end": whole[0]}), ("Abs", [], {}),
    ])
    names = [f"extra{i}" for i in range(len(extra))]
    for name, value in zip(names, extra):
        h.graph.initializer.append(numpy_helper.from_array(np.array(value, np.int64), name))
    h.graph.node.append(helper.make_node(op, [info.name, *names], ["followed"], **more))
    h.graph.output.append(helper.make_empty_tensor_value_info("followed"))


_CHANGES: tuple[Callable[[Hostile], None], ...] = (
    _attribute, _attribute, _attribute_left_out_or_added, _fed, _fed, _inputs_of_a_node,
    _outputs_of_a_node, _constant, _constant, _data_type, _declared_sizes, _operator_set,
    _what_follows, _what_follows,
)


def change(
    model: onnx.ModelProto, inputs: list[Any], rng: Rng
) -> tuple[bytes, dict[str, Any]]:
    """A wrong model (or a valid one by chance) and its inputs."""
    h = Hostile(model, inputs, rng)
    for _ in range(rng.integers(1, 4)):
        h.pick(_CHANGES)(h)
    if not h.keeps_sizes:
        for info in (*h.graph.input, *h.graph.output):
            if info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape"):
                for d in info.type.tensor_type.shape.dim:
                    d.ClearField("dim_value")
                    d.dim_param = ""
    names = {i.name for i in h.graph.input}
    return h.model.SerializeToString(), {n: x for n, x in h.given.items() if n in names}


def run(first: int, count: int) -> None:
    """Run ``count`` wrong models, and print what this package says of them: as a provider, and as
    a backend, which is given what ONNX Runtime would refuse.

    Each model's seed goes to stderr before it runs: the last one is to blame if the process ends.
    """
    import onnxruntime as ort

    sys.path.insert(0, str(Path(__file__).parent / "onnx"))
    import conformance
    import kompute_dml.onnxruntime as kompute
    from kompute_dml import onnx_backend
    from kompute_dml.errors import DmlError
    from kompute_dml.onnx.model import splits_into_too_few

    warnings.simplefilter("ignore")
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    ort.set_default_logger_severity(4)
    # With random attributes, its CPU kernel may take very long.
    cases = [c for c in conformance._cases(None) if "tfidf" not in c.name]
    errors = 0
    for seed in range(first, first + count):
        faulthandler.dump_traceback_later(_SECONDS, exit=True)
        rng = np.random.default_rng(seed)
        case = cases[rng.integers(len(cases))]
        print(seed, case.name, file=sys.stderr, flush=True)
        inputs = [x if x is None or isinstance(x, (list, dict)) else np.asarray(x)
                  for x in case.data_sets[0][0]]
        built, feed = change(case.model, inputs, rng)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        try:
            if splits_into_too_few(onnx.load_model_from_string(built)):
                raise ValueError("ONNX Runtime ends the process while it reads this")
            kompute.session(built, session_options=options, claim="all").run(None, feed)
        except Exception as error:
            errors += 1
            if "kompute_dml" in str(error):
                print(seed, case.name, str(error).replace("\n", " "), flush=True)
        try:
            onnx_backend.run_model(built, list(feed.values()))
        except DmlError:
            pass  # what it should be
        except Exception as error:
            print(seed, case.name, f"backend: {error!r}", flush=True)
    print(f"{count} models, {errors} errors")


if __name__ == "__main__":
    run(*[int(number) for number in sys.argv[1:]])
