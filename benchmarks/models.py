"""Whole models on ONNX Runtime's providers: python benchmarks/models.py [model ...]

For each model and provider: latency, the share of nodes and of multiply-adds that the provider was
given, and for this package's the time per run that its device spent in transfers and in operators
(device timestamps; none with kp as it is published, and no transfers where the host reaches the
device's memory). "webgpu" is onnxruntime-ep-webgpu, where that is installed. Latency is the median
of --repeat runs after --warmup.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnxruntime as ort
from _pytest.outcomes import Skipped

import kompute_dml.onnxruntime as kompute

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from onnx_graphs import cpu, encoder, options
from real_models import Magika, TextRecognizer, quantized, sample_files

PRODUCTS = {"MatMul", "MatMulInteger", "Gemm", "Conv", "ConvInteger", "MatMulIntegerToFloat"}
MINILM = Path(__file__).parents[1] / ".cache" / "minilm-int8.onnx"


@dataclass
class Model:
    name: str
    content: bytes
    feed: dict[str, np.ndarray]


def _magika(folder: Path) -> Model:
    magika = Magika()
    path = quantized(magika.path, folder / "magika.onnx")
    row = magika.features(next(iter(sample_files().values())))
    return Model("magika int8", Path(path).read_bytes(), {"bytes": row[None]})


def _text(folder: Path) -> Model:
    reader = TextRecognizer()
    path = quantized(reader.path, folder / "text.onnx", op_types_to_quantize=["MatMul"])
    return Model("rapidocr int8", Path(path).read_bytes(),
                 {"x": reader.image("The quick brown fox jumps over it")})


def _encoder(folder: Path) -> Model:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 32, 384)).astype(np.float32)
    return Model("random encoder", encoder(rng, layers=6, width=384, heads=12), {"x": x})


def _minilm(folder: Path) -> Model:
    if not MINILM.is_file():
        raise FileNotFoundError(f"{MINILM} is missing: python benchmarks/make_minilm.py makes it")
    tokens = np.random.default_rng(0).integers(1000, 20000, (1, 32))
    feed = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    return Model("MiniLM int8", MINILM.read_bytes(), feed)


MODELS: dict[str, Callable[[Path], Model]] = {
    "magika": _magika, "text": _text, "encoder": _encoder, "minilm": _minilm,
}


def multiply_adds(model: Model) -> dict[str, int]:
    """Of each matrix product and convolution, by node name: from the sizes that a run meets."""
    proto = onnx.load_model_from_string(model.content)
    known = {t.name: tuple(t.dims) for t in proto.graph.initializer}
    products = [n for n in proto.graph.node if n.op_type in PRODUCTS]
    shown = {name for n in products for name in (n.output[0], n.input[1]) if name not in known}
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in sorted(shown))
    arrays = cpu(proto.SerializeToString(), False).run(sorted(shown), model.feed)
    sizes = known | {name: a.shape for name, a in zip(sorted(shown), arrays)}
    result = {}
    for node in products:
        weight = sizes[node.input[1]]
        depth = np.prod(weight[1:]) if "Conv" in node.op_type else weight[-2]
        result[node.name] = int(np.prod(sizes[node.output[0]]) * depth)
    return result


def session(provider: str, model: Model, profile: Path | None, arguments: Any) -> Any:
    given = options()
    given.log_severity_level = 4
    if provider == "cpu":
        return ort.InferenceSession(model.content, given, providers=["CPUExecutionProvider"])
    if provider == "webgpu":
        package = importlib.import_module("onnxruntime_ep_webgpu")
        name = package.get_ep_name()
        if all(d.ep_name != name for d in ort.get_ep_devices()):
            ort.register_execution_provider_library(name, package.get_library_path())
        found = [d for d in ort.get_ep_devices() if d.ep_name == name]
        given.add_provider_for_devices(found[:1], {})
        return ort.InferenceSession(model.content, given, enable_fallback=False)
    return kompute.session(
        model.content, session_options=given, claim=arguments.claim, adapter=arguments.adapter,
        profile=profile,
    )


def device_times(path: Path, runs: int) -> tuple[float, float]:
    """Milliseconds per run in transfers and in operators."""
    events = json.loads(path.read_text())["traceEvents"]
    dispatches = [(e["name"], e["dur"] / 1e3) for e in events if e.get("cat") == "dispatch"]
    transfers = sum(ms for name, ms in dispatches if name == "transfer")
    return transfers / runs, (sum(ms for _, ms in dispatches) - transfers) / runs


def measure(provider: str, model: Model, arguments: Any) -> str:
    made = session(provider, model, None, arguments)
    parts = made.get_provider_graph_assignment_info()
    nodes = [(part.ep_name, n.name) for part in parts for n in part.get_nodes()]
    mine = [name for ep, name in nodes if provider == "cpu" or "CPU" not in ep]
    work = multiply_adds(model)
    share = sum(work.get(n, 0) for n in mine) / max(sum(work.values()), 1)
    times = []
    for _ in range(arguments.warmup + arguments.repeat):
        begin = time.perf_counter()
        made.run(None, model.feed)
        times.append((time.perf_counter() - begin) * 1e3)
    times = times[arguments.warmup :]
    line = (f"{model.name:16} {provider:8} {statistics.median(times):9.2f} ms  "
            f"{len(mine) / max(len(nodes), 1):6.1%} of {len(nodes)} nodes  {share:6.1%} of "
            f"{sum(work.values()) / 1e6:.0f} M multiply-adds")
    if provider == "kompute":
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            profiled = session(provider, model, trace, arguments)
            for _ in range(3):
                profiled.run(None, model.feed)
            del profiled
            transfers, operators = device_times(trace, 3)
            line += f"  device: {transfers:.2f} ms transfers, {operators:.2f} ms operators"
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"among {', '.join(MODELS)}; all by default")
    parser.add_argument("--providers", nargs="*", default=["cpu", "kompute", "webgpu"])
    parser.add_argument("--claim", default="products")
    parser.add_argument("--adapter")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    arguments = parser.parse_args()
    print(f"onnxruntime {ort.__version__}, {kompute.devices()[0].ep_metadata['adapter_name']}")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models or MODELS:
            try:
                model = MODELS[name](Path(folder))
            except (Exception, Skipped) as error:
                print(f"{name:16} left out: {error}")
                continue
            for provider in arguments.providers:
                try:
                    print(measure(provider, model, arguments), flush=True)
                except Exception as error:
                    print(f"{model.name:16} {provider:8} left out: {str(error)[:200]}")


if __name__ == "__main__":
    main()
