"""Serves a model with Ray Serve, one replica for each Vulkan device: python examples/ray_serve.py

`curl --data-binary @FILE http://127.0.0.1:8000/` then tells the kind of a file. For those whom one
device no longer serves. `pip install 'ray[serve]' magika onnxruntime` first.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import kompute_dml as dml

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parent / "demo"))
from ray_data import Classifier, Devices


class Service(Classifier):
    """A replica: a classifier that answers requests."""

    async def __call__(self, request: Any) -> dict[str, str]:  # type: ignore[override]
        import numpy as np

        content = np.array([await request.body()], object)
        answer = super().__call__({"bytes": content, "path": np.array([""])})
        return {"label": answer["label"][0], "device": self.device}


def application() -> Any:
    """What `serve.run` takes: as many replicas as there are devices."""
    import ray
    from ray import serve

    uuids = [adapter.uuid for adapter in dml.list_devices()]
    devices = ray.remote(num_cpus=0)(Devices).remote(uuids)
    deployment = serve.deployment(
        num_replicas=len(uuids), ray_actor_options={"num_cpus": 0.1})(Service)
    return deployment.bind(devices)


if __name__ == "__main__":
    from ray import serve

    serve.run(application(), blocking=True)
