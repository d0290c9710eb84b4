"""Classifies the files of a folder with Ray Data, an actor for each Vulkan device:
python examples/ray_data.py FOLDER

For those whom one device or one machine no longer serves. Ray starts a process for each actor; each
opens the next device that no other has. `pip install 'ray[data]' magika onnxruntime` first.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np

import kompute_dml as dml

sys.path.append(str(Path(__file__).parent / "demo"))


class Devices:
    """An actor of Ray's that gives each who asks another device. When all have one it begins anew,
    for a process that Ray starts in the place of another."""

    def __init__(self, uuids: list[str]) -> None:
        self.turns = itertools.cycle(uuids)

    def take(self) -> str:
        return next(self.turns)


class Classifier:
    """A session on one device; Ray makes one in each of its processes."""

    def __init__(self, devices: Any) -> None:
        import ray

        import kompute_dml.onnxruntime as kompute
        from real_models import Magika

        self.device = ray.get(devices.take.remote())
        self.magika = Magika()
        kompute.register()
        self.session = kompute.session(str(self.magika.path), adapter=self.device)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        rows = np.stack([self.magika.features(content) for content in batch["bytes"]])
        (scores,) = self.session.run(None, {self.session.get_inputs()[0].name: rows})
        labels = [self.magika.labels[i] for i in scores.argmax(axis=1)]
        return {"path": batch["path"], "label": labels, "device": [self.device] * len(labels)}


def classify(folder: Path) -> list[dict[str, Any]]:
    """A row for each file: its path, its label, and the device that said so."""
    import ray

    uuids = [adapter.uuid for adapter in dml.list_devices()]
    devices = ray.remote(num_cpus=0)(Devices).remote(uuids)
    files = ray.data.read_binary_files(str(folder), include_paths=True)
    rows = files.repartition(2 * len(uuids)).map_batches(
        Classifier, fn_constructor_args=(devices,), concurrency=len(uuids), batch_size=16)
    found: list[dict[str, Any]] = rows.take_all()
    return sorted(found, key=lambda row: row["path"])


if __name__ == "__main__":
    for row in classify(Path(sys.argv[1])):
        print(f"{row['label']:12} {row['device']}  {row['path']}")
