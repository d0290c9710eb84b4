"""ResNet-50's convolutions at batch 1 and a product of 512^3 on the CPU, beside others.

    python benchmarks/resnet_layers.py

The default device against ONNX Runtime's CPU provider with two threads (the same model of one
layer, NumPy in to NumPy out), and against NumPy: the best of several calls each. "wall" is the time
that passed; "cpu" is the processor time by the number of cores, which hardly changes with what else
runs there. Of the others, whose threads spin, only wall time says anything.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import kompute_dml as dml
import kompute_dml.onnxruntime as kompute

_SECONDS, _LEAST = 1.0, 5
"""Of repeated calls, and how many these are at least."""


class Layer(NamedTuple):
    channels: int
    filters: int
    kernel: int
    stride: int
    side: int

    def __str__(self) -> str:
        window = f"{self.kernel} x {self.kernel} / {self.stride}"
        return f"{self.channels} -> {self.filters}, {window}, {self.side}^2"


LAYERS = [Layer(*sizes) for sizes in (
    (3, 64, 7, 2, 224), (64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56),
    (256, 64, 1, 1, 56), (256, 128, 1, 1, 56), (128, 128, 3, 2, 56), (128, 512, 1, 1, 28),
    (256, 512, 1, 2, 56), (512, 128, 1, 1, 28), (128, 128, 3, 1, 28), (512, 256, 1, 1, 28),
    (256, 256, 3, 2, 28), (256, 1024, 1, 1, 14), (512, 1024, 1, 2, 28), (1024, 256, 1, 1, 14),
    (256, 256, 3, 1, 14), (1024, 512, 1, 1, 14), (512, 512, 3, 2, 14), (512, 2048, 1, 1, 7),
    (1024, 2048, 1, 2, 14), (2048, 512, 1, 1, 7), (512, 512, 3, 1, 7))]


def best(work: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds of ``work()``: wall time, and processor time over the cores."""
    work()
    times, end = [], time.perf_counter() + _SECONDS
    while len(times) < _LEAST or time.perf_counter() < end:
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    wall, cpu = (1e3 * min(column) for column in zip(*times))
    return wall, cpu / (os.cpu_count() or 1)


def model(layer: Layer, w: np.ndarray) -> bytes:
    """The layer alone, with a constant filter."""
    sizes = [1, layer.channels, layer.side, layer.side]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], strides=[layer.stride] * 2,
                          pads=[layer.kernel // 2] * 4)], "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("w", TensorProto.FLOAT, w.shape, w.tobytes(), raw=True)])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def options(threads: int) -> onnxruntime.SessionOptions:
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = threads
    return made


def row(name: str, operations: float, other: float, wall: float, cpu: float) -> str:
    return (f"| {name} | {other:.2f} | {wall:.1f} | {cpu:.1f} | {operations / cpu / 1e6:.1f} | "
            f"{cpu / other:.1f} |")


def convolution(layer: Layer, rng: np.random.Generator) -> str:
    x = rng.standard_normal((1, layer.channels, layer.side, layer.side), np.float32)
    w = rng.standard_normal((layer.filters, layer.channels, *[layer.kernel] * 2), np.float32)
    given = model(layer, w)
    other = onnxruntime.InferenceSession(given, options(2), providers=["CPUExecutionProvider"])
    ours = kompute.session(given, session_options=options(1), claim="all")
    y, expected = (session.run(None, {"x": x})[0] for session in (ours, other))
    np.testing.assert_allclose(y, expected, atol=1e-5 * abs(expected).max())
    wall, cpu = best(lambda: ours.run(None, {"x": x}))
    theirs, _ = best(lambda: other.run(None, {"x": x}))
    return row(str(layer), 2 * w.size * expected[0, 0].size, theirs, wall, cpu)


def product(n: int, device: dml.Device, rng: np.random.Generator) -> str:
    a, b = rng.standard_normal((2, n, n), np.float32)
    given, out = [device.tensor(x) for x in (a, b)], device.empty((n, n), "float32")

    def ours() -> None:
        dml.gemm(*given, out=out)
        device.synchronize()

    wall, cpu = best(ours)
    np.testing.assert_allclose(out.numpy(), a @ b, atol=1e-3)
    other, _ = best(lambda: a @ b)
    return row(f"product, {n}^3", 2 * n**3, other, wall, cpu)


def main() -> None:
    device, rng = dml.default_device(), np.random.default_rng(0)
    print(f"{device.adapter.name}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}\n")
    print("| FLOAT32 | other, ms | wall, ms | cpu, ms | GFLOP/s | cpu / other |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for layer in LAYERS:
        print(convolution(layer, rng), flush=True)
    print(product(512, device, rng))


if __name__ == "__main__":
    main()
