"""Models from installed packages: the CPU provider's results, in few regions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="onnx ships models of its own")
pytest.importorskip("cffi", reason="the provider needs cffi")

import onnx

from kompute_dml.errors import UnsupportedError
from kompute_dml.onnxruntime import provider
from onnx_graphs import cpu, needs_provider
from provider_tools import session
from real_models import package_file
from threads import in_threads

pytestmark = [needs_provider, pytest.mark.slow]
BOUND = 2**-16
"""For outputs of at most 1, whose sums have another order: 30 times the difference between the CPU
provider's own optimization levels."""


def _file(package: str, pattern: str) -> str:
    try:
        return str(package_file(package, pattern))
    except UnsupportedError as error:
        pytest.skip(str(error))


def _voice(path: str, batch: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A step of 32 ms of noise, and the state before it."""
    feed = {}
    for info in cpu(path).get_inputs():
        sizes = [n if isinstance(n, int) and n > 0 else batch for n in info.shape]
        if info.name == "input":
            feed[info.name] = (rng.standard_normal((sizes[0], 576)) / 8).astype(np.float32)
        elif info.name == "sr":
            feed[info.name] = np.array(16000)
        else:
            feed[info.name] = rng.standard_normal(sizes).astype(np.float32) / 8
    return feed


@pytest.mark.parametrize("name, regions", [
    ("silero_vad", 4), ("silero_vad_16k_op15", 2), ("silero_vad_16k_sequence", 1),
    ("silero_vad_half", 2), ("silero_vad_op18_ifless", 1), ("silero_vad_openvino_16k", 1),
])
def test_voice_detectors(name: str, regions: int, rng: np.random.Generator) -> None:
    """The branches of an If have regions of their own."""
    path = _file("silero_vad", f"data/{name}.onnx")
    with provider.decisions() as decisions:
        ours = session(path)
    assert len({d.where for d in decisions} - {"CPU"}) <= regions
    theirs = cpu(path)
    for batch in range(1, 5):
        feed = _voice(path, batch, rng)
        for got, wanted in zip(ours.run(None, feed), theirs.run(None, feed), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=0, atol=BOUND)


def test_a_voice_detector_in_twelve_threads() -> None:
    path = _file("silero_vad", "data/silero_vad_op18_ifless.onnx")
    ours, theirs = session(path), cpu(path)

    def work(seed: int) -> None:
        feed = _voice(path, 1 + seed % 3, np.random.default_rng(seed))
        for got, wanted in zip(ours.run(None, feed), theirs.run(None, feed), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=0, atol=BOUND)

    in_threads(12, work)


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_classifiers_that_onnx_ships(name: str, rng: np.random.Generator) -> None:
    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    path = folder / f"light_{name}.onnx"
    if not path.is_file():
        pytest.skip(f"this onnx has no {path.name}")
    with provider.decisions() as decisions:
        ours = session(str(path))
    assert {d.where for d in decisions} == {"region 0"}
    theirs = cpu(str(path))
    info = theirs.get_inputs()[0]
    feed = {info.name: rng.standard_normal(info.shape).astype(np.float32)}
    for got, wanted in zip(ours.run(None, feed), theirs.run(None, feed), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2**-14, atol=2**-14)
