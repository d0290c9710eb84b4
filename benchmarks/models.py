"""Whole models on ONNX Runtime's providers: python benchmarks/models.py [model ...]

For each model and provider: latency (median of --repeat runs after --warmup), the share of nodes
and of multiply-adds that the provider was given, the largest difference to the CPU provider's
results, and for this package's the number of regions and the time per run that its device spent in
transfers and in operators (device timestamps; none with kp as it is published, and no transfers
where the host reaches the device's memory). "webgpu" is onnxruntime-ep-webgpu, where that is
installed. A last line tells what one call of a region costs beside the work itself.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnxruntime as ort
from tabulate import tabulate

import kompute_dml.onnxruntime as kompute
from kompute_dml.runtime.kp_engine import CommandList

sys.path.append(str(Path(__file__).parents[1] / "examples" / "demo"))
from made_models import FLOAT, cpu, encoder, model, node, options
from real_models import Magika, TextRecognizer, quantized, sample_files

PRODUCTS = {"MatMul", "MatMulInteger", "Gemm", "Conv", "ConvInteger", "MatMulIntegerToFloat"}
CACHE = Path(__file__).parents[1] / ".cache"
WORDS = "embeddings.word_embeddings.weight"
LINE = "The quick brown fox jumps over it"


@dataclass
class Model:
    name: str
    content: bytes
    feed: dict[str, np.ndarray]
    claim: str = "auto"


@dataclass
class Row:
    model: str
    provider: str
    samples: int
    milliseconds: float
    nodes_given: int
    nodes: int
    multiply_adds_given: int
    multiply_adds: int
    difference: float
    """The largest difference, relative to the largest element."""
    regions: int | None = None
    transfer_milliseconds: float | None = None
    operator_milliseconds: float | None = None

    def cells(self) -> list[str]:
        def ms(value: float | None) -> str:
            return "" if value is None else f"{value:.2f}"

        return [
            self.model, self.provider, str(self.samples), ms(self.milliseconds),
            f"{self.nodes_given / self.nodes:.0%} of {self.nodes}",
            f"{self.multiply_adds_given / self.multiply_adds:.1%} of "
            f"{self.multiply_adds / 1e6:.0f} M",
            f"{self.difference:.1e}", str(self.regions or ""),
            ms(self.transfer_milliseconds), ms(self.operator_milliseconds),
        ]


HEADERS = ["model", "provider", "samples", "ms", "nodes given", "multiply-adds given", "difference",
           "regions", "ms in transfers", "ms in operators"]


def _magika(folder: Path) -> Model:
    magika = Magika()
    path = quantized(magika.path, folder / "magika.onnx")
    row = magika.features(next(iter(sample_files().values())))
    return Model("magika int8", Path(path).read_bytes(), {"bytes": row[None]})


def _text(folder: Path) -> Model:
    reader = TextRecognizer()
    path = quantized(reader.path, folder / "text.onnx", op_types_to_quantize=["MatMul"])
    return Model("rapidocr int8", Path(path).read_bytes(), {"x": reader.image(LINE)})


def _text_convolutions(folder: Path) -> Model:
    """All that the tool quantizes by default: convolutions, too."""
    reader = TextRecognizer()
    path = quantized(reader.path, folder / "text.onnx")
    feed = {"x": reader.image(LINE)}
    return Model("rapidocr int8, with convolutions", Path(path).read_bytes(), feed)


def _float_magika(folder: Path) -> Model:
    """A model without integer products, as the next. All implemented nodes are claimed."""
    magika = Magika()
    row = magika.features(next(iter(sample_files().values())))
    return Model("magika float", magika.path.read_bytes(), {"bytes": row[None]}, claim="all")


def _float_text(folder: Path) -> Model:
    reader = TextRecognizer()
    return Model("rapidocr float", reader.path.read_bytes(),
                 {"x": reader.image(LINE)}, claim="all")


def _encoder(folder: Path) -> Model:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 32, 384)).astype(np.float32)
    return Model("random encoder int8", encoder(rng, layers=6, width=384, heads=12), {"x": x})


def _minilm(folder: Path) -> Model:
    path = CACHE / "minilm-int8.onnx"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: benchmarks/make_minilm.py makes it")
    content = path.read_bytes()
    tensors = onnx.load_model_from_string(content).graph.initializer
    words = next(t.dims[0] for t in tensors if t.name == WORDS)
    tokens = np.random.default_rng(0).integers(words, size=(1, 32))
    feed = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    return Model("MiniLM int8", content, feed)


MODELS: dict[str, Callable[[Path], Model]] = {
    "magika": _magika, "float-magika": _float_magika, "text": _text,
    "text-convolutions": _text_convolutions, "float-text": _float_text, "encoder": _encoder,
    "minilm": _minilm,
}


def multiply_adds(given: Model) -> dict[str, int]:
    """The multiply-adds of each matrix product and convolution by node name, from the sizes of a
    run."""
    proto = onnx.load_model_from_string(given.content)
    known = {t.name: tuple(t.dims) for t in proto.graph.initializer}
    products = [n for n in proto.graph.node if n.op_type in PRODUCTS]
    shown = {name for n in products for name in (n.output[0], n.input[1]) if name not in known}
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(n) for n in sorted(shown))
    arrays = cpu(proto.SerializeToString(), False).run(sorted(shown), given.feed)
    sizes = known | {name: a.shape for name, a in zip(sorted(shown), arrays)}
    result = {}
    for product in products:
        weight = sizes[product.input[1]]
        depth = np.prod(weight[1:]) if "Conv" in product.op_type else weight[-2]
        result[product.name] = int(np.prod(sizes[product.output[0]]) * depth)
    return result


def session(provider: str, given: Model, adapter: str | None, profile: Path | None = None) -> Any:
    wanted = options()
    wanted.log_severity_level = 4
    if provider == "cpu":
        return ort.InferenceSession(given.content, wanted, providers=["CPUExecutionProvider"])
    if provider == "webgpu":
        wanted.add_provider_for_devices(_webgpu_devices()[:1], {})
        return ort.InferenceSession(given.content, wanted, enable_fallback=False)
    return kompute.session(
        given.content, session_options=wanted, claim=given.claim, adapter=adapter, profile=profile
    )


def _webgpu_devices() -> list[Any]:
    package = importlib.import_module("onnxruntime_ep_webgpu")
    name = package.get_ep_name()
    if "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER" not in os.environ:
        # Also if ONNX Runtime finds no GPU, because Dawn looks for its own adapter.
        os.environ["ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"] = "1"
        ort.register_execution_provider_library(name, package.get_library_path())
    found = [d for d in ort.get_ep_devices() if d.ep_name == name]
    if not found:
        raise RuntimeError("onnxruntime-ep-webgpu finds no device")
    return found


def device_times(path: Path, runs: int) -> tuple[float, float]:
    """Milliseconds per run in transfers and in operators."""
    events = json.loads(path.read_text())["traceEvents"]
    dispatches = [(e["name"], e["dur"] / 1e3) for e in events if e.get("cat") == "dispatch"]
    transfers = sum(ms for name, ms in dispatches if name == "transfer")
    return transfers / runs, (sum(ms for _, ms in dispatches) - transfers) / runs


def repeated(given: Model, samples: int) -> Model:
    """The model fed with the same sample ``samples`` times."""
    feed = {k: np.repeat(a, samples, axis=0) for k, a in given.feed.items()}
    return replace(given, feed=feed)


def measure(provider: str, given: Model, arguments: argparse.Namespace) -> Row:
    made = session(provider, given, arguments.adapter)
    parts = made.get_provider_graph_assignment_info()
    mine = [p for p in parts if provider == "cpu" or "CPU" not in p.ep_name]
    names = [n.name for p in mine for n in p.get_nodes()]
    work = multiply_adds(given)
    expected = session("cpu", given, None).run(None, given.feed)[0]
    got = made.run(None, given.feed)[0]
    times = []
    for _ in range(arguments.warmup + arguments.repeat):
        begin = time.perf_counter()
        made.run(None, given.feed)
        times.append((time.perf_counter() - begin) * 1e3)
    row = Row(
        given.name, provider, len(next(iter(given.feed.values()))),
        statistics.median(times[arguments.warmup :]),
        len(names), sum(len(p.get_nodes()) for p in parts),
        sum(work.get(n, 0) for n in names), max(sum(work.values()), 1),
        float(np.abs(got - expected).max() / np.abs(expected).max()),
    )
    if provider == "kompute":
        row.regions = len(mine)
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            profiled = session(provider, given, arguments.adapter, trace)
            for _ in range(3):
                profiled.run(None, given.feed)
            del profiled
            row.transfer_milliseconds, row.operator_milliseconds = device_times(trace, 3)
    return row


def region_call(adapter: str | None, calls: int = 1000) -> dict[str, float]:
    """Microseconds for a call of the smallest region: in Python, and from submit to fence."""
    small = Model("", model([node("Trilu", "x", "y")], [("x", FLOAT, [8, 8])],
                            [("y", FLOAT, [8, 8])]), {"x": np.ones((8, 8), np.float32)}, "all")
    ours, theirs = session("kompute", small, adapter), session("cpu", small, None)
    spent = 0.0

    def timed(call: Callable[[Any], None]) -> Callable[[Any], None]:
        def run(self: Any) -> None:
            nonlocal spent
            begin = time.perf_counter()
            call(self)
            spent += time.perf_counter() - begin

        return run

    def each(made: Any) -> float:
        for _ in range(calls // 10):
            made.run(None, small.feed)
        nonlocal spent
        spent, begin = 0.0, time.perf_counter()
        for _ in range(calls):
            made.run(None, small.feed)
        return (time.perf_counter() - begin) / calls * 1e6

    submit, wait = CommandList.submit, CommandList.wait
    CommandList.submit, CommandList.wait = timed(submit), timed(wait)  # type: ignore
    try:
        whole = each(ours)
        device = spent / calls * 1e6
    finally:
        CommandList.submit, CommandList.wait = submit, wait  # type: ignore
    cpu_call = each(theirs)
    return {"host_us": whole - device - cpu_call, "submit_to_fence_us": device,
            "onnxruntime_us": cpu_call}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=f"among {', '.join(MODELS)}; all by default")
    parser.add_argument("--providers", nargs="*", default=["cpu", "kompute", "webgpu"])
    parser.add_argument("--adapter")
    parser.add_argument("--samples", type=int, nargs="*", default=[1], help="samples a run")
    parser.add_argument("--claim", help="what this package's provider claims")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    arguments = parser.parse_args()
    about = kompute.devices()[0].ep_metadata
    print(f"{time.strftime('%Y-%m-%d')}, {about['adapter_name']}, {about['driver']}, "
          f"onnxruntime {ort.__version__}")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.models or MODELS:
            try:
                given = MODELS[name](Path(folder))
            except Exception as error:
                print(f"{name} is left out: {error}")
                continue
            if arguments.claim:
                given = replace(given, claim=arguments.claim)
            for samples, provider in itertools.product(arguments.samples, arguments.providers):
                try:
                    rows.append(measure(provider, repeated(given, samples), arguments))
                except Exception as error:
                    print(f"{given.name} on {provider} is left out: {str(error)[:300]}")
    print(tabulate([r.cells() for r in rows], HEADERS, tablefmt="github", disable_numparse=True))
    call = region_call(arguments.adapter)
    print(f"\nA region call: {call['host_us']:.0f} us in Python, {call['submit_to_fence_us']:.0f} "
          f"us from submit to fence, {call['onnxruntime_us']:.0f} us in ONNX Runtime")
    if arguments.json:
        arguments.json.write_text(json.dumps({
            "date": time.strftime("%Y-%m-%d"), "onnxruntime": ort.__version__, "device": about,
            "region_call": call, "rows": [asdict(r) for r in rows],
        }, indent=1))


if __name__ == "__main__":
    main()
