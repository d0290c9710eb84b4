"""The examples do what their docstrings say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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
