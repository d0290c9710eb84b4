"""Wrong models get an error that names node, rule and value, and never a crash or a hang."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", "1.23", reason="its node tests are built in memory")
pytest.importorskip("cffi", reason="the provider needs cffi")

import onnx

import hostile_models
import kompute_dml as dml
from kompute_dml import onnx_backend
from onnx_graphs import FLOAT, INT64, cpu, model, needs_provider, node
from provider_tools import session

pytestmark = needs_provider
INT32 = onnx.TensorProto.INT32
SECONDS = 120
"""Within which 60 wrong models must be done."""


@pytest.mark.slow
def test_wrong_models_end_in_errors(request: pytest.FixtureRequest) -> None:
    """In a process of its own, which must end by itself. Each --turn has other models."""
    count = request.config.getoption("--wrong-models")
    first = request.config.getoption("--turn") * 1000
    done = subprocess.run(
        [sys.executable, hostile_models.__file__, str(first), str(count)],
        cwd=Path(hostile_models.__file__).parent, capture_output=True, text=True,
        timeout=SECONDS * (1 + count // 60),
    )
    # The last seed that was printed is that of the model that ended the process.
    assert done.returncode == 0, (first, done.stdout[-500:], done.stderr[-2000:])
    *errors, last = done.stdout.splitlines()
    assert re.fullmatch(rf"{count} models, \d+ errors", last)
    # Each error of this package names a node, and is none of Python's own errors.
    for text in errors:
        assert "with inputs of sizes" in text or ": expected " in text, text
        assert not re.search(r"kompute_dml: \w+(Error|Exception)\(", text), text


def _resized(scale: float) -> bytes:
    return model([node("Resize", "x - s", "y")], [("x", FLOAT, [1, 1, 2, 2])],
                 [("y", FLOAT, [1, 1, "n", 2])], {"s": np.float32([1, 1, scale, 1])})


def _split(count: int) -> bytes:
    return model([node("Split", "x", "a b y", axis=3, num_outputs=count)],
                 [("x", FLOAT, [1, 1, 2, 2])], [("y", FLOAT, ["n"] * 4)], opset=18)


def _with_more_elements_than_sizes() -> bytes:
    built = onnx.load_model_from_string(
        model([node("Neg", "k", "y")], [], [("y", FLOAT, [1])], {"k": np.ones(1, np.float32)}))
    built.graph.initializer[0].raw_data = bytes(12)
    return bytes(built.SerializeToString())


def _of_an_unknown_type() -> bytes:
    built = onnx.load_model_from_string(
        model([node("Add", "x k", "y")], [("x", FLOAT, [1])], [("y", FLOAT, [1])],
              {"k": np.ones(1, np.float32)}))
    built.graph.initializer[0].data_type = 99
    return bytes(built.SerializeToString())


@pytest.mark.parametrize("built, words", [
    (model([node("Neg", "x", "y")], [("x", FLOAT, [1])], [("y", FLOAT, [1])], opset=999),
     r"operator set to be at most \d+, which onnx .*, but got 999"),
    (_of_an_unknown_type(), "initializer 'k': expected one of ONNX's data types, but got 99"),
    (_resized(float("inf")), "scales to be above 0 and finite, but got inf"),
    (_resized(float("nan")), "scales to be above 0 and finite, but got nan"),
    (_split(1), "at least the 3 outputs, but got fewer"),
    (_split(2**62), "types do not fit together"),
    (_with_more_elements_than_sizes(), r"initializer 'k': cannot reshape array of size 3"),
    (model([node("Pad", "x two", "y", mode="nonsense")], [("x", FLOAT, [1, 1, 2, 2])],
           [("y", FLOAT, ["n"] * 4)], {"two": np.ones(8, np.int64)}),
     "Pad .*not known: 'nonsense'"),
    (model([node("Constant", "", "y")], [], [("y", FLOAT, [1])]), "Constant"),
    (model([node("Expand", "e n", "z"), node("Neg", "z", "y")],
           [("e", FLOAT, [0, 1]), ("n", INT64, [2])], [("y", FLOAT, ["n", "m"])]),
     r"array that NumPy can have.*4611686018427387905"),
], ids=["operator set", "data type", "infinite scale", "no number", "few outputs", "many outputs",
        "too long", "unknown mode", "no value", "sizes beyond all"])
def test_a_backend_names_what_is_wrong(built: bytes, words: str) -> None:
    x = {"x": np.ones((1, 1, 2, 2), np.float32), "e": np.ones((0, 1), np.float32),
         "n": np.array([0, 2**62 + 1])}
    names = [i.name for i in onnx.load_model_from_string(built).graph.input]
    with pytest.raises(dml.DmlError, match=words):
        onnx_backend.run_model(built, [x[name] for name in names])


@pytest.mark.parametrize("op, sizes, wrong, valid", [
    ("Gather", [5, 3], [0, 5], [0, -5]),
    ("GatherElements", [5], [-6], [4]),
    ("GatherND", [2, 4], [[1, 4]], [[-2, 3]]),
])
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "input"])
def test_an_index_out_of_range(
    op: str, sizes: list[int], wrong: list[int], valid: list[int], constant: bool,
    rng: np.random.Generator,
) -> None:
    data = rng.standard_normal(sizes).astype(np.float32)

    def run(indices: list[int]) -> None:
        i = np.array(indices)
        constants = {"data": data, **({"i": i} if constant else {})}
        infos = [("x", FLOAT, [1]), *([] if constant else [("i", INT64, i.shape)])]
        built = model([node(op, "data i", "taken"), node("Add", "taken x", "y")], infos,
                      [("y", FLOAT, None)], constants)
        feed = {"x": np.zeros(1, np.float32), **({} if constant else {"i": i})}
        session(built, False, claim="all").run(None, feed)

    run(valid)
    # A constant is known when nodes are claimed, so the CPU gets that node, and refuses it, too.
    said = "taken" if constant else rf"{op} 'taken': expected indices to be in \[-\d"
    with pytest.raises(Exception, match=said):
        run(wrong)


def test_indices_that_come_transposed(rng: np.random.Generator) -> None:
    """As those of a mask do: NonZero has a row for each dimension, GatherND wants a column."""
    data = rng.standard_normal((2, 5)).astype(np.float32)
    built = model(
        [node("Transpose", "i", "t"), node("GatherND", "data t", "taken"),
         node("Add", "taken x", "y")],
        [("x", FLOAT, [1]), ("i", INT64, [2, "n"])], [("y", FLOAT, ["n"])], {"data": data})
    ours, x = session(built, False, claim="all", strict=True), np.zeros(1, np.float32)
    for count in (3, 4, 6, 2):
        i = np.stack([rng.integers(0, n, count) for n in data.shape])
        i[1, 0] = 4  # no index of the first dimension
        (y,) = ours.run(None, {"x": x, "i": i})
        np.testing.assert_array_equal(y, data[tuple(i)])
        with pytest.raises(Exception, match=r"to be in \[-2, 2\) .* but got 2"):
            ours.run(None, {"x": x, "i": np.full_like(i, 2)})


@pytest.mark.parametrize("op, more, feed, changed, words", [
    ("ReverseSequence", {"batch_axis": 0, "time_axis": 1},
     {"x": np.ones((2, 3)), "i": [0, 3]}, {"i": [4, 1]}, r"lengths to be in \[0, 4\), but got 4"),
    ("ReverseSequence", {"batch_axis": 0, "time_axis": 1},
     {"x": np.ones((2, 3)), "i": [0, 3]}, {"i": [1, -1]}, r"lengths to be in \[0, 4\), but got -1"),
    ("RoiAlign", {},
     {"x": np.ones((2, 1, 4, 4)), "r": [[0.0, 0.0, 2.0, 2.0]], "i": [1]}, {"i": [2]},
     r"batch indices to be in \[0, 2\), but got 2"),
    ("MaxUnpool", {"kernel_shape": [2, 2], "strides": [2, 2]},
     {"x": np.ones((1, 1, 1, 1)), "i": [[[[3]]]]}, {"i": [[[[4]]]]},
     r"indices to be in \[0, 4\), but got 4"),
    ("DepthToSpace", {"blocksize": 2}, {"x": np.ones((1, 4, 1, 1))}, {"x": np.ones((1, 3, 1, 1))},
     r"block size that divides \[1, 3, 1, 1\], but got 2"),
    ("SpaceToDepth", {"blocksize": 2}, {"x": np.ones((1, 1, 2, 2))}, {"x": np.ones((1, 1, 2, 3))},
     r"block size that divides \[1, 1, 2, 3\], but got 2"),
    ("Unsqueeze", {}, {"x": np.ones(2), "i": [0, 1]}, {"i": [0, -3]}, "each axis once"),
    ("Slice", {}, {"x": np.ones((4, 5)), "i": [0, 0], "j": [2, 3], "k": [0, 1]}, {"k": [1, -1]},
     "each axis once"),
    ("Reshape", {}, {"x": np.ones((0, 3)), "i": [-1, 3]}, {"i": [0, -1]},
     r"no size for -1 follows from \[0, -1\] and \[0, 3\]"),
    ("Pad", {}, {"x": np.ones((2, 3)), "i": [-2, 0, 0, 0]}, {"i": [-3, 0, 0, 0]},
     r"leave sizes of at least 0, but got \[-3, 0, 0, 0\] for \[2, 3\]"),
    ("Resize", {}, {"x": np.ones((1, 1, 2, 2)), "": None, "-": None, "i": [1, 1, 4, 4]},
     {"x": np.ones((1, 1, 0, 2))}, r"sizes that \[1, 1, 0, 2\] is resized to"),
    ("Conv", {}, {"x": np.ones((1, 1, 3, 3)), "w": np.ones((1, 1, 3, 3))},
     {"x": np.ones((1, 1, 1, 3))}, r"filter that fits .*\[1, 1, 3, 3\] for \[1, 1, 1, 3\]"),
], ids=lambda v: v if isinstance(v, str) and " " not in v else "")
def test_values_and_sizes_that_break_a_rule_at_run_time(
    op: str, more: dict[str, Any], feed: dict[str, Any], changed: dict[str, Any], words: str
) -> None:
    """ONNX Runtime's CPU refuses them, too. The run after that is right."""
    names = [n if feed[n] is not None else "-" for n in feed]
    given = {n: np.asarray(v, np.float32 if np.asarray(v).dtype.kind == "f" else np.int64)
             for n, v in feed.items() if v is not None}
    wrong = given | {n: np.asarray(v, given[n].dtype) for n, v in changed.items()}
    infos = [(n, INT64, v.shape) if v.dtype == np.int64 else
             (n, FLOAT, [f"{n}{d}" for d in range(v.ndim)]) for n, v in given.items()]
    nodes = [node(op, " ".join(names), "z", **more), node("Neg", "z", "y")]
    built = model(nodes, infos, [("y", FLOAT, None)])
    ours, theirs = session(built, False, claim="all", strict=True), cpu(built, False)
    with pytest.raises(Exception, match="ONNXRuntime"):
        theirs.run(None, wrong)
    for _ in range(2):
        with pytest.raises(Exception, match=f"kompute_dml: {op} 'z'.*: .*{words}"):
            ours.run(None, wrong)
        np.testing.assert_allclose(ours.run(None, given)[0], theirs.run(None, given)[0], rtol=1e-6)


@pytest.mark.parametrize("nodes, sizes, words", [
    ([node("RotaryEmbedding", "x cos sin", "y")], {"x": [1, 2, 3, 4], "cos": [1, 3, 64],
                                                  "sin": [1, 3, 64]}, "of 4 in a head"),
    ([node("RotaryEmbedding", "x cos sin", "y", rotary_embedding_dim=2)],
     {"x": [1, 2, 3, 4], "cos": [1, 3, 2], "sin": [1, 3, 2]}, "of 4 in a head"),
    ([node("RotaryEmbedding", "x cos sin", "y")],
     {"x": [1, 2, 3, 4], "cos": [1, 3, 1], "sin": [1, 3, 1]}, "half the 4 elements"),
    ([node("Attention", "q q q - past past", "y k v", q_num_heads=4, kv_num_heads=4)],
     {"q": [1, 3, 8], "past": [1, 2, 0, 2]}, r"1 batches and 4 heads, but got \[1, 2, 0, 2\]"),
    ([node("Attention", "x w b - past", "y present", "com.microsoft", num_heads=2)],
     {"x": [1, 3, 8], "w": [8, 24], "b": [24], "past": [1, 1, 2, 5, 4]},
     r"expected elements of \[1, 1, 2, 5, 4\]"),
    ([node("Cast", "lengths", "mask", to=INT32),
      node("MultiHeadAttention", "q q q - mask", "y", "com.microsoft", num_heads=2)],
     {"q": [1, 3, 8], "lengths": [4]}, r"mask of 1 lengths, or by key, but got one of \[4\]"),
    ([node("MultiHeadAttention", "qkv", "y", "com.microsoft", num_heads=2)],
     {"qkv": [1, 3, 2, 2, 4]}, r"\[batch, length, 2, 3, head size\], but got \[1, 3, 2, 2, 4\]"),
    ([node("MultiHeadAttention", "q kv", "y", "com.microsoft", num_heads=2, unidirectional=1)],
     {"q": [1, 3, 8], "kv": [1, 3, 4, 2, 2]},
     r"\[batch, length, 2, 2, head size\], but got \[1, 3, 4, 2, 2\]"),
    ([node("MultiHeadAttention", "q kv", "y", "com.microsoft", num_heads=2)],
     {"q": [1, 3, 8], "kv": [1, 3, 2, 2, 2]}, r"\[1, 2, 3, 4\], but got \[1, 2, 3, 2\]"),
], ids=["wide cosines", "cosines of more", "cosines of fewer", "heads of a cache",
        "keys without values", "lengths of others", "a stack of two", "heads of a stack",
        "heads of other sizes"])
def test_sizes_of_several_inputs_that_are_at_odds(
    nodes: list[onnx.NodeProto], sizes: dict[str, list[int]], words: str
) -> None:
    """What is read past one's end would be another tensor."""
    built = model(nodes, [(name, FLOAT, [f"{name}{d}" for d in range(len(n))])
                          for name, n in sizes.items()],
                  [(name, FLOAT, None) for name in nodes[-1].output], opset=23)
    feed = {name: np.ones(n, np.float32) for name, n in sizes.items()}
    with pytest.raises(Exception, match=words):
        session(built, False, claim="all", strict=True).run(None, feed)
