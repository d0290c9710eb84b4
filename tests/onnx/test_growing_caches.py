"""Caches that grow by a row: every length, in turn and in any order, gives the CPU's results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

from kompute_dml.onnx.region import MAX_PLANS, Region
from onnx_graphs import cpu, needs_provider
from provider_tools import last_kernel, session
from tiny_decoders import KEY_HEADS, SIZE, WORDS, language_model

pytestmark = needs_provider
_LAYERS, _MOST = 4, 300


def test_all_lengths_in_any_order(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(language_model(tmp_path, shares=False, layers=_LAYERS) / "model.onnx")
    ours, theirs = session(path, claim="all"), cpu(path)
    region = last_kernel().region
    built: list[int] = []
    build = Region._build

    def counted(self: Region, shapes: Any, *more: Any) -> Any:
        plan = build(self, shapes, *more)
        built.append(max(shape[2] for shape in shapes if len(shape) == 4))
        return plan

    monkeypatch.setattr(Region, "_build", counted)
    caches = [x.name for x in theirs.get_inputs() if x.name.startswith("past")]
    numbers = rng.standard_normal((len(caches), 1, KEY_HEADS, _MOST, SIZE), np.float32)
    up = [*range(1, _MOST + 1)]
    held: list[tuple[int, int]] = []
    for lengths in (up, up[::-1], rng.permutation(up).tolist()):
        built.clear()
        for n in lengths:
            feed = {"input_ids": rng.integers(0, WORDS, (1, 1)), **{
                name: np.ascontiguousarray(x[:, :, :n]) for name, x in zip(caches, numbers)}}
            for name, y, expected in zip(theirs.get_outputs(), ours.run(None, feed),
                                         theirs.run(None, feed)):
                np.testing.assert_allclose(y, expected, 1e-4, 1e-4, err_msg=f"{name.name}, {n}")
        # What the turn before left is there for its last lengths only.
        assert len(built) >= _MOST - MAX_PLANS and len({*built}) == len(built)
        held.append((len(region._plans), len(region._shaders)))
        assert sum(plan.nbytes for plan in region._plans.values()) < 16 << 20
    assert held == [held[0]] * 3 and held[0][0] == MAX_PLANS
