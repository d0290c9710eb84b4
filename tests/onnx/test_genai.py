"""onnxruntime-genai on the device: the tokens that it writes on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

for _package in ("onnxruntime_genai", "cffi", "onnx"):
    pytest.importorskip(_package, reason=f"onnxruntime-genai's models need {_package}")

import kompute_dml.genai as genai  # noqa: E402
import kompute_dml.onnxruntime as kompute  # noqa: E402
import tiny_decoders  # noqa: E402
from kompute_dml.errors import UnsupportedError  # noqa: E402
from kompute_dml.onnxruntime import capture, identity  # noqa: E402
from onnx_graphs import needs_provider  # noqa: E402

pytestmark = needs_provider
_TESTS = Path(__file__).parents[1]
_RUNS = ("greedy", "greedy, a batch", "top-k", "top-k, a batch", "beams", "beams, a batch",
         "growing caches", "append_tokens", "rewind_to", "several lengths",
         "several lengths, rewind_to", "several lengths, beams", "growing caches, rewind_to",
         "growing caches, several lengths", "adapters", "long texts",
         "long texts, rewind_to", "whisper", "whisper, beams", "images", "images with places")
_APART = ("adapters", "whisper", *(run for run in _RUNS if any(
    word in run for word in ("growing", "beams"))))
"""Of which onnxruntime-genai captures none, and models that the runs do not capture."""


def _write_adapter(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = {name: rng.standard_normal(sizes, np.float32)
               for name, sizes in tiny_decoders.ADAPTED.items()}
    adapter = ort.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters({  # which share the arrays' memory
        name: ort.OrtValue.ortvalue_from_numpy(x) for name, x in weights.items()})
    adapter.export_adapter(str(path))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What genai_runs.py prints, which runs once."""
    folder = tiny_decoders.language_model(tmp_path_factory.mktemp("genai"), shares=True)
    for name, options in (("whisper", False), ("whisper-own", True)):
        (folder / name).mkdir()
        tiny_decoders.genai_whisper(folder / name, own_options=options)
    for name in ("images", "placed"):
        (folder / name).mkdir()
        tiny_decoders.genai_vision(folder / name, placed=name == "placed")
    (folder / "long").mkdir()
    tiny_decoders.language_model(folder / "long", shares=True, short=8)
    (folder / "adapted").mkdir()
    tiny_decoders.language_model(folder / "adapted", shares=True, adapts=True)
    for seed, name in enumerate("ab"):
        _write_adapter(folder / "adapted" / f"{name}.onnx_adapter", seed)
    paths = (_TESTS.parent, _TESTS, _TESTS.parent / "benchmarks", os.environ.get("PYTHONPATH", ""))
    done = subprocess.run(
        [sys.executable, _TESTS / "genai_runs.py", folder], text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))})
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("where", "run"), [
    *(("captured", run) for run in _RUNS if run not in _APART),
    *(("not captured", run) for run in _RUNS)])
def test_tokens_are_those_of_the_cpu(found: Any, run: str, where: str) -> None:
    assert found["runs"].keys() == {*_RUNS}
    expected = found["runs"][run]["cpu"]
    assert found["runs"][run][where] == expected
    assert all(len({*text}) > 4 for text in expected)  # not one word again and again


@pytest.mark.parametrize("where", ["captured", "not captured"])
@pytest.mark.parametrize("name", ["logits", "logits, long texts"])
def test_logits_are_those_of_the_cpu(found: Any, name: str, where: str) -> None:
    np.testing.assert_allclose(found[name][where], found[name]["cpu"], rtol=0, atol=2e-5)


@pytest.mark.parametrize("run", ["adapters", "whisper", "images", "images with places"])
def test_adapters_sounds_and_images_change_what_is_written(found: Any, run: str) -> None:
    texts = found["runs"][run]["cpu"]
    assert len({tuple(text) for text in texts}) == len(texts) > 1


def test_caches_apart_are_not_captured(found: Any) -> None:
    assert "past_present_share_buffer set to false" in found["captured, caches apart"]


def test_the_device_runs_every_node(found: Any) -> None:
    assert found["on the CPU"] == []


@pytest.mark.parametrize("where", ["captured", "not captured"])
def test_caches_stay_on_the_device(found: Any, where: str) -> None:
    """Copies of a token are inputs and logits, none as large as a cache."""
    cache = 48 * tiny_decoders.KEY_HEADS * tiny_decoders.SIZE * 4
    assert found["copies"][where] and max(found["copies"][where]) < cache / 4


def test_another_provider_of_the_name_is_refused(found: Any) -> None:
    assert "WebGpuExecutionProvider is registered already" in found["beside WebGPU's"]


def test_the_patch_names_what_the_provider_is() -> None:
    patch = (_TESTS.parent / "packages/onnxruntime-genai/kompute.patch").read_text("utf-8")
    own = identity.OWN
    assert f'"{own.provider}"' in patch and f'"{own.memory}"' in patch
    assert f"kVendorId = 0x{own.vendor:X};" in patch
    assert f'value.first == "{capture.OPTION}"' in patch


def test_an_encoder_with_options_of_its_own_is_refused(found: Any) -> None:
    """onnxruntime-genai runs it on the CPU, with outputs in memory of the device."""
    assert "model.encoder in genai_config.json has session_options" in found["an encoder's options"]


def test_an_option_that_is_none_is_an_error(found: Any) -> None:
    assert "has no option claims" in found["an option"]


def test_one_onnx_runtime_at_a_time(found: Any) -> None:
    """Neither ONNX Runtime takes the provider after the other."""
    assert "another ONNX Runtime of this process" in found["after it"]
    kompute.register()
    with pytest.raises(UnsupportedError, match="another ONNX Runtime of this process"):
        genai.register()
    assert not genai.is_registered()
