"""If whose branches are constants: it runs with what reads them, and the plan knows which one is
taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("cffi", reason="the provider needs cffi")

import kompute_dml.onnx_backend as backend
import tiny_decoders
from kompute_dml.errors import UnsupportedError
from onnx_graphs import BOOL, FLOAT, cpu, model, needs_provider, node
from provider_tools import session

_SHORT = 6


def _branch(*values: np.ndarray, constants: bool = True, more: Any = ()) -> onnx.GraphProto:
    """Both branches name their values alike."""
    tensors = [numpy_helper.from_array(x, f"c{i}") for i, x in enumerate(values)]
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in tensors]
    return helper.make_graph(
        [*(nodes if constants else []), *more], "branch", [],
        [helper.make_tensor_value_info(t.name, FLOAT, t.dims) for t in tensors],
        [] if constants else tensors)


def _sum(condition: str, **branches: onnx.GraphProto) -> bytes:
    """y = x + the first constant of the branch. Nobody reads the second one."""
    nodes = [node("Shape", "x", "sizes"), node("Gather", "sizes zero", "n"),
             node("Greater", "n limit", "many"),
             helper.make_node("If", [condition], ["a", "b"], **branches), node("Add", "x a", "y")]
    inputs = [("x", FLOAT, ["n", 4])] + [("given", BOOL, [])] * (condition == "given")
    if condition == "given":
        nodes = nodes[3:]
    return model(nodes, inputs, [("y", FLOAT, ["n", 4])], {
        "zero": np.int64(0), "limit": np.int64(2)} if condition == "many" else {})


def _rows(rng: np.random.Generator, *sizes: int) -> np.ndarray:
    return rng.standard_normal(sizes, np.float32)


@pytest.mark.parametrize("constants", [False, True])
@pytest.mark.parametrize("condition", ["many", "given"])
def test_constants_of_one_size_and_of_two(
    condition: str, constants: bool, rng: np.random.Generator
) -> None:
    for sizes in ((1, 4), (1, 1)):
        built = _sum(condition, then_branch=_branch(_rows(rng, *sizes), _rows(rng, 3)),
                     else_branch=_branch(_rows(rng, 1, 4), _rows(rng, 2), constants=constants))
        prepared = backend.prepare(onnx.load_model_from_string(built))
        for n in (1, 2, 3, 2, 5, 1):
            fed = {"x": _rows(rng, n, 4)}
            if condition == "given":
                fed["given"] = np.array(n > 2)
            np.testing.assert_array_equal(
                prepared.run(list(fed.values()))[0], cpu(built).run(None, fed)[0])


def test_branches_that_compute_are_refused(rng: np.random.Generator) -> None:
    x = _rows(rng, 4)
    plain = _branch(x, x)
    computes = _branch(x, x, more=[helper.make_node("Neg", ["c0"], ["c2"])])
    computes.output[0].name = "c2"
    built = _sum("many", then_branch=computes, else_branch=plain)
    with pytest.raises(UnsupportedError, match="branches that compute"):
        backend.prepare(onnx.load_model_from_string(built))


@needs_provider
@pytest.mark.parametrize("grows", [False, True])
def test_short_and_long_texts(grows: bool, tmp_path: Path, rng: np.random.Generator) -> None:
    """Texts that become longer than the short angles reach, token by token and at once; strict, so
    that no node is on the CPU. Caches grow, or are as long as they may grow."""
    path = tiny_decoders.language_model(tmp_path, shares=True, short=_SHORT) / "model.onnx"
    ours, theirs = session(path.read_bytes(), strict=True), cpu(path.read_bytes())
    capacity = 12
    for steps in ([3, 1, 1, 1, 1, 1], [5, 4], [9, 1], [_SHORT, 1], [1] * 9):
        caches = [{name: np.zeros((1, tiny_decoders.KEY_HEADS, 0 if grows else capacity,
                                   tiny_decoders.SIZE), np.float32)
                   for name in (i.name for i in theirs.get_inputs()) if "past" in name}
                  for _ in range(2)]
        total = 0
        for count in steps:
            total += count
            fed = {"input_ids": rng.integers(2, tiny_decoders.WORDS, (1, count)),
                   "attention_mask": np.ones((1, total), np.int64)}
            results = []
            for cache, run in zip(caches, (ours, theirs)):
                outputs = dict(zip((o.name for o in run.get_outputs()),
                                   run.run(None, {**fed, **cache})))
                cache |= {name.replace("present", "past_key_values"): x
                          for name, x in outputs.items() if name != "logits"}
                results.append(outputs["logits"])
            np.testing.assert_allclose(*results, rtol=0, atol=2e-4)
