"""The same work on this package's device and by its peers, in one process.

    python benchmarks/peers.py [-a DEVICE] [--scale tiny|cpu|integrated|discrete]

Peers take part where they are installed: NumPy and ONNX Runtime on the CPU, PyTorch on CUDA where
it has it, else on the CPU. All times are host times of one call, waiting included, medians; the
device's row shows its own clock as well. What a peer computes is named where it is not the same.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

import kompute_dml as dml
from kompute_dml.bench.cases import RECIPES, SCALES, TINY, Scale
from kompute_dml.bench.rows import run_recipe, scale_of

SECONDS = 0.3
"""Time to spend on each call."""


class Row(NamedTuple):
    work: str
    by: str
    milliseconds: float
    gpu_milliseconds: float | None
    amount: float
    unit: str


def milliseconds(call: Callable[[], Any]) -> float:
    """The median of a call's host time, the first one not counted."""
    call()
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def device_rows(device: dml.Device, scale: Scale) -> Iterator[Row]:
    """This package, its values checked before they are timed."""
    for recipe in RECIPES:
        if (recipe.operator, recipe.types) not in (
            ("DML_OPERATOR_ACTIVATION_IDENTITY", "f32"),
            ("DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT", "i8 x i8 -> f32"),
        ):
            continue
        for row in run_recipe(device, recipe, None, scale):
            if row.host_ms is None:
                raise SystemExit(f"error: {row.operator} {row.sizes}: {row.values}")
            amount, unit = (row.operations, "OPS") if row.operations else (row.bytes, "B/s")
            work = f"{'product' if row.operations else 'copy'} {row.sizes}"
            yield Row(work, device.adapter.name, row.host_ms, row.gpu_ms, amount, unit)


def copy_peers(scale: Scale) -> Iterator[Row]:
    work, size = f"copy [{scale.elements}]", 8 * scale.elements
    host = np.random.default_rng(0).random(scale.elements, np.float32)
    out = np.empty_like(host)
    yield Row(work, "NumPy", milliseconds(lambda: np.copyto(out, host)), None, size, "B/s")
    if importlib.util.find_spec("torch"):
        torch, place, wait = _torch()
        x = torch.from_numpy(host).to(place)
        y = torch.empty_like(x)
        ms = milliseconds(lambda: (y.copy_(x), wait()))
        yield Row(work, f"PyTorch, {place}", ms, None, size, "B/s")


def product_peers(m: int, k: int, n: int) -> Iterator[Row]:
    work, operations = f"product [{m}, {k}] x [{k}, {n}]", 2 * m * k * n
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-128, 128, sizes, np.int8) for sizes in ((m, k), (k, n)))
    if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx"):
        yield Row(work, "ONNX Runtime, CPU (one scale for A)",
                  milliseconds(_onnx_runtime(a, b)), None, operations, "OPS")
    if importlib.util.find_spec("torch"):
        torch, place, wait = _torch()
        x, y = torch.from_numpy(a).to(place), torch.from_numpy(b).to(place)
        try:
            ms = milliseconds(lambda: (torch._int_mm(x, y), wait()))
        except RuntimeError:
            return  # it does not do these sizes: at least 17 rows, and multiples of 8
        yield Row(work, f"PyTorch, {place} (integer sums only)", ms, None, operations, "OPS")


def _torch() -> tuple[Any, str, Callable[[], Any]]:
    import torch

    if torch.cuda.is_available():
        return torch, "cuda", torch.cuda.synchronize
    return torch, "cpu", lambda: None


def _onnx_runtime(a: np.ndarray, b: np.ndarray) -> Callable[[], Any]:
    import onnxruntime
    from onnx import TensorProto, helper

    node = helper.make_node("MatMulIntegerToFloat", ["a", "b", "s", "t"], ["y"],
                            domain="com.microsoft")
    inputs = (("a", TensorProto.INT8, a.shape), ("b", TensorProto.INT8, b.shape),
              ("s", TensorProto.FLOAT, ()), ("t", TensorProto.FLOAT, (b.shape[1],)))
    graph = helper.make_graph(
        [node], "product", [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)])
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=["CPUExecutionProvider"])
    feed = {"a": a, "b": b, "s": np.array(0.5, np.float32),
            "t": np.ones(b.shape[1], np.float32)}
    return lambda: session.run(None, feed)


def _rate(amount: float, milliseconds: float, unit: str) -> str:
    rate = amount / milliseconds * 1e3
    return f"{rate / 1e12:.3g} T{unit}" if rate >= 1e12 else f"{rate / 1e9:.3g} G{unit}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-a", "--adapter", help="index or part of the name of a device")
    parser.add_argument("--scale", choices=("tiny", "cpu", "integrated", "discrete"))
    options = parser.parse_args()
    device = dml.Device(options.adapter)
    scale = {None: scale_of(device), "tiny": TINY, **SCALES}[options.scale]
    rows = [*device_rows(device, scale), *copy_peers(scale)]
    for product in scale.products:
        rows += product_peers(*product)
    rows.sort(key=lambda row: row.work)  # stable: the device stays first
    print(tabulate(
        [(r.work, r.by, f"{r.milliseconds:.3f} ms",
          "-" if r.gpu_milliseconds is None else f"{r.gpu_milliseconds:.3f} ms",
          _rate(r.amount, r.gpu_milliseconds or r.milliseconds, r.unit)) for r in rows],
        headers=("work", "by", "host", "GPU", "rate"),
        colalign=("left", "left", "right", "right", "right"), disable_numparse=True,
    ))


if __name__ == "__main__":
    main()
