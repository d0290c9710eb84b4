"""Random models get the results of ONNX Runtime's CPU provider."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxruntime", "1.27", reason="older ones lack operators of new operator sets")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import random_models
from onnx_graphs import needs_provider

pytestmark = needs_provider


@pytest.mark.slow
@pytest.mark.parametrize("kind, least", [("nodes", 0.7), ("graphs", 0.95)])
def test_random_models(kind: str, least: float, request: pytest.FixtureRequest) -> None:
    """The same ones each time. ``python tests/random_models.py`` tries others."""
    count = request.config.getoption("--random-models")
    ends, wrong = random_models.tried(kind, 0, count)
    assert not wrong, "\n".join(wrong)
    assert ends[random_models.ALIKE] >= least * count, ends
