"""ONNX Runtime's execution providers side by side: what opens a session on each."""

from __future__ import annotations

import gc
import importlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import onnxruntime as kompute
from ..errors import UnsupportedError

if TYPE_CHECKING:
    import onnxruntime

Open = Callable[[Path], Any]
"""Makes an ``onnxruntime.InferenceSession`` of a file."""

_KEEPS_ASSIGNMENT = "session.record_ep_graph_assignment_info"


def ours(adapter: str) -> Open:
    """This package's provider, which takes each node that it has."""
    kompute.register()
    return lambda path: kompute.session(str(path), _options(), claim="all", adapter=adapter)


def _cpu() -> Open:
    import onnxruntime

    return lambda path: onnxruntime.InferenceSession(
        str(path), _options(), providers=["CPUExecutionProvider"])


def _webgpu() -> Open:
    package = importlib.import_module("onnxruntime_ep_webgpu")
    # Dawn looks for its own adapter, also where ONNX Runtime finds no GPU.
    os.environ.setdefault("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")
    return _plugin(package.get_ep_name(), package.get_library_path(), {})


def _ggml() -> Open:
    package = importlib.import_module("onnxruntime_ggml")
    os.environ.setdefault("ORT_GGML_LOG", "error")
    return _plugin(package.EP_NAME, package.library_path(), {"device": "gpu"})


def _plugin(name: str, library: str, entries: dict[str, str]) -> Open:
    import onnxruntime

    def devices() -> list[Any]:
        return [d for d in onnxruntime.get_ep_devices() if d.ep_name == name]

    if not devices():
        onnxruntime.register_execution_provider_library(name, library)
    if not (chosen := devices()[:1]):
        raise UnsupportedError("it finds no device")

    def open_session(path: Path) -> Any:
        options = _options()
        options.add_provider_for_devices(chosen, entries)
        session = onnxruntime.InferenceSession(str(path), options, enable_fallback=False)
        # Nothing is known of a provider that took all nodes before they were assigned.
        assigned = {part.ep_name for part in session.get_provider_graph_assignment_info()}
        if assigned and name not in assigned:
            raise UnsupportedError("it leaves every node to the CPU")
        return session

    return open_session


def _options() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    options.add_session_config_entry(_KEEPS_ASSIGNMENT, "1")
    return options


PROVIDERS: dict[str, tuple[Callable[[], Open], str]] = {
    "onnxruntime": (_cpu, "onnxruntime"),
    "webgpu": (_webgpu, "onnxruntime-ep-webgpu"),
    "ggml": (_ggml, "onnxruntime-ggml"),
}
"""By name: what makes a provider ready, and the package to install."""


def ready(make: Callable[[], Open]) -> Open:
    """A provider that has run once, so that no model's time holds the start of the library."""
    opened = make()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "product.onnx"
        path.write_bytes(_smallest())
        session = opened(path)
        run(session, {"x": _eye()})
    return opened


def in_turns(
    providers: Mapping[str, Open], path: Path, most: int, least: int, seconds: float
) -> dict[str, float | None]:
    """By name, the median of the milliseconds that each provider takes for a session; None for one
    that fails. Sessions are made in turns. After so many seconds no turn begins, if there were
    enough."""
    took: dict[str, list[float]] = {name: [] for name in providers}
    left = dict(providers)
    end = time.monotonic() + seconds
    for turn in range(most):
        if turn >= least and time.monotonic() > end:
            break
        for name, opened in [*left.items()]:
            gc.collect()  # else a provider in Python may collect another one's garbage
            begin = time.perf_counter()
            try:
                session = opened(path)
            except Exception:  # of any library
                del left[name]
                continue
            took[name].append((time.perf_counter() - begin) * 1e3)
            del session  # before the next one is made
    return {name: statistics.median(took[name]) if name in left else None for name in providers}


def run(session: onnxruntime.InferenceSession, feed: dict[str, np.ndarray]) -> Any:
    """The first result. An exporter leaves out what a model does not read."""
    return session.run(None, {x.name: feed[x.name] for x in session.get_inputs()})[0]


def _eye() -> Any:
    return np.eye(32, dtype=np.float32)


def _smallest() -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [32, 32]) for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "smallest", [x],
                              [y], [numpy_helper.from_array(_eye(), "w")])
    model: Any = helper.make_model(graph, ir_version=8,
                                   opset_imports=[helper.make_opsetid("", 17)])
    return model.SerializeToString()


def choose(names: Iterable[str]) -> tuple[dict[str, Open], list[str]]:
    """The providers among these names that are ready, and a line about each that is not."""
    providers, left_out = {}, []
    for name in names:
        make, package = PROVIDERS[name]
        try:
            providers[name] = ready(make)
        except ModuleNotFoundError:
            left_out.append(f"{name} is left out: {package} is not installed")
        except Exception as error:  # of any library
            # ONNX Runtime begins with the place in its source.
            left_out.append(f"{name} is left out: {' '.join(str(error).split())[-150:]}")
    return providers, left_out
