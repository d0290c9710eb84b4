"""The demonstration in examples/demo."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("onnx", reason="the models are read with onnx")
pytest.importorskip("onnxruntime", reason="it runs the whole model")

import classify
import demo
import kompute_dml as dml
import layers
from onnx_graphs import cpu, installed
from real_models import Magika, sample_files


def succeed(*arguments: str) -> str:
    outcome = CliRunner().invoke(demo.demo, arguments)
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_demo_names_what_is_missing(monkeypatch):
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    outcome = CliRunner().invoke(demo.demo)
    assert "needs onnx, onnxruntime, magika: in a checkout, pip install '.[demo]'" in str(
        outcome.exception)


def test_demo_says_when_the_gpu_is_the_cpu(device, monkeypatch):
    monkeypatch.setattr(demo, "_need", lambda *packages: None)
    for part in ("model", "diagonals"):
        monkeypatch.setattr(layers, part, lambda *arguments: [True])
    assert ("the CPU posing as a GPU" in succeed()) == device.adapter.is_cpu


def test_demo_diagonals(device, capsys):
    assert list(layers.diagonals(device)) == [True, True]
    assert "· · · ██· " in capsys.readouterr().out


@pytest.mark.parametrize(("least_snr", "holds"), [(30.0, True), (1000.0, False)])
def test_demo_product_is_judged(device, rng, monkeypatch, least_snr, holds):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(layers, "_LEAST_SNR", least_snr)
    layer = layers._Layer("layer", rng.standard_normal((4, 64)).astype(np.float32),
                        rng.standard_normal((64, 8)).astype(np.float32),
                        rng.standard_normal(8).astype(np.float32))
    layer.activations[1] = 0  # a row and a column without a scale
    layer.weight[:, 2] = 0
    assert list(layers._product(device, layer)) == [True, True, holds]


def _written(folder: Path, count: int) -> list[Path]:
    paths = []
    for name, content in list(sample_files().items())[-count:]:
        paths.append(folder / name.replace("/", "-"))
        paths[-1].write_bytes(content)
    return paths


@pytest.mark.slow
def test_demo_holds(tmp_path, device):
    installed(Magika)
    files = _written(tmp_path, 6)
    text = succeed("--files", str(tmp_path))
    assert "2 matrix products among them" in text and "ok    6 of 6 files" in text
    assert all(f"{path.name} " in text for path in files)
    *_, count, last = text.splitlines()
    assert "comparisons hold" in count and "FAIL" not in text
    assert last.startswith("One file takes ")
    assert ("both are the same CPU" in last) == device.adapter.is_cpu


def test_another_label_fails(tmp_path, monkeypatch, capsys):
    magika, files = installed(Magika), _written(tmp_path, 6)
    for path in files:
        assert (magika.features_of(path) == magika.features(path.read_bytes())).all()
    monkeypatch.setattr(classify, "_sessions", lambda path, adapter: (cpu(path), cpu(path)))
    run, turns = classify._run, iter([lambda scores: scores[:, ::-1], lambda scores: scores])

    def reversed_labels(*arguments):
        scores, times = run(*arguments)
        return next(turns)(scores), times

    monkeypatch.setattr(classify, "_run", reversed_labels)
    closing = []
    adapter = dataclasses.replace(dml.list_devices()[0], type="discrete")
    assert list(classify.classify(adapter, magika, files, closing)) == [False, False]
    (line,) = closing
    assert f" ms on {adapter.name}, " in line and "same CPU" not in line
    assert "FAIL  0 of 6 files" in capsys.readouterr().out


def test_demo_goes_on_without_the_provider(tmp_path, monkeypatch, capsys):
    magika, files = installed(Magika), _written(tmp_path, 1)
    monkeypatch.setattr("onnxruntime.__version__", "1.23.2")
    assert list(classify.classify(dml.list_devices()[0], magika, files, [])) == []
    assert "left out: ONNX Runtime 1.23.2 is not supported" in capsys.readouterr().out
