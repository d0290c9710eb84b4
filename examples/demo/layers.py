"""Layers of a trained model by hand, and the diagonal operators."""

from __future__ import annotations

import os
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click

from classify import classify, verdict
from kompute_dml.errors import UnsupportedError, ValidationError
from real_models import Magika

_FILES = 40
_LEAST_BYTES = 64
_LEAST_SNR = 30.0
"""Decibels that 8-bit quantization of this model keeps with room to spare."""


# -- the model and its data


@dataclass(frozen=True)
class _Layer:
    """``activations @ weight + bias``, as the model computes it in float32."""

    title: str
    activations: Any
    weight: Any
    bias: Any


def model(device: Any, folder: Path | None, closing: list[str]) -> Iterator[bool]:
    magika = Magika()
    paths = sysconfig.get_paths()
    roots = [paths["stdlib"], paths["purelib"], paths["platlib"]] if folder is None else [folder]
    files = list(_pick_files(roots))
    if not files:
        raise ValidationError(f"{folder} holds no file of at least {_LEAST_BYTES} bytes")
    click.echo(f"Model        {magika.path.name} of magika {version('magika')}, "
               "a file type detector")
    click.echo(f"Input        {len(files)} files of {folder or 'this Python installation'} "
               f"({len({f.suffix for f in files})} suffixes)")
    yield from _layers(device, magika, files)
    yield from classify(device.adapter, magika, files, closing)


def _layers(device: Any, magika: Magika, files: Sequence[Path]) -> Iterator[bool]:
    import numpy as np

    labels = magika.labels
    windows = np.stack([magika.features_of(f) for f in files])
    convolution, dense, own = _tap(magika.path, windows)
    yield from _product(device, convolution)
    logits = yield from _product(device, dense)

    chosen = [labels[i] for i in logits.argmax(axis=1)]
    expected = [labels[i] for i in own.argmax(axis=1)]
    agree = sum(a == b for a, b in zip(chosen, expected))
    click.echo("\nWhat the device's last layer says of some of the files:")
    shown = sorted({c: i for i, c in reversed(list(enumerate(chosen)))}.items())[:10]
    for label, i in shown:
        click.echo(f"   {files[i].name[:40]:40} {label:12} "
                   + ("as magika says" if label == expected[i] else f"magika: {expected[i]}"))
    # Where the model itself is torn between two labels, 8 bits may tip the scale.
    yield verdict(f"{agree} of {len(files)} files get the label that magika gives in float32",
                   agree >= 0.95 * len(files))


def _pick_files(roots: Sequence[str | Path]) -> Iterator[Path]:
    """Files of the folders, suffix by suffix in turn, in a fixed order."""
    by_suffix: dict[str, list[Path]] = {}
    for root in dict.fromkeys(roots):
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                group = by_suffix.setdefault(path.suffix.lower(), [])
                if len(group) < 8 and path.is_file() and path.stat().st_size >= _LEAST_BYTES:
                    group.append(path)
    rounds = zip_longest(*by_suffix.values())
    found = [path for group in rounds for path in group if path is not None]
    yield from found[:_FILES]


def _tap(path: Path, windows: Any) -> tuple[_Layer, _Layer, Any]:
    """The convolution, the last dense layer, and the model's own answers for ``windows``."""
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import numpy_helper

    model = onnx.load(path)
    nodes = list(model.graph.node)
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    conv = next(n for n in nodes if n.op_type == "Conv")
    dense = [n for n in nodes if n.op_type == "MatMul"][-1]

    def bias_after(node: Any) -> Any:
        """The constant that is added to what ``node`` computes."""
        reached = set(node.output)
        for n in nodes:
            if reached & set(n.input):
                if n.op_type == "Add":
                    return next(weights[i] for i in n.input if i in weights)
                reached |= set(n.output)
        raise UnsupportedError(f"{path}: no bias follows {node.name}")

    taps = [conv.input[0], dense.input[0]]
    for name in taps:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    answers, conv_in, dense_in = session.run(None, {name: windows})

    # The convolution slides along one axis: it is a product of patches of one file and kernels.
    kernel = weights[conv.input[1]][..., 0]
    signal = np.lib.stride_tricks.sliding_window_view(conv_in[0, :, :, 0], kernel.shape[2], axis=1)
    patches = signal.transpose(1, 0, 2).reshape(signal.shape[1], -1)
    out_channels = kernel.shape[0]
    return (
        _Layer("convolution of one file, as a matrix product", np.ascontiguousarray(patches),
               np.ascontiguousarray(kernel.reshape(out_channels, -1).T),
               bias_after(conv).reshape(-1)),
        _Layer("last dense layer, all files", dense_in, weights[dense.input[1]],
               bias_after(dense).reshape(-1)),
        answers,
    )


# -- the product


def _quantize_rows(x: Any) -> tuple[Any, Any]:
    """UINT8 with zero point 128, and one scale per row."""
    import numpy as np

    scale = np.abs(x).max(axis=1, keepdims=True).astype(np.float32) / np.float32(127)
    scale[scale == 0] = 1
    return np.clip(np.rint(x / scale) + 128, 0, 255).astype(np.uint8), scale


def _quantize_columns(w: Any) -> tuple[Any, Any, Any]:
    """UINT8, and one scale and zero point per column."""
    import numpy as np

    low, high = np.minimum(w.min(axis=0), 0), np.maximum(w.max(axis=0), 0)
    scale = ((high - low) / 255).astype(np.float32)
    scale[scale == 0] = 1
    zero = np.rint(-low / scale).astype(np.uint8)
    return np.clip(np.rint(w / scale) + zero, 0, 255).astype(np.uint8), scale, zero


def _product(device: Any, layer: _Layer) -> Any:
    """Yields what holds of a layer's quantized product; returns the product."""
    import numpy as np

    import kompute_dml as dml
    from kompute_dml.bench.timing import Loop, measure

    (rows, k), columns = layer.activations.shape, layer.weight.shape[1]
    a, a_scale = _quantize_rows(layer.activations)
    b, b_scale, b_zero = _quantize_columns(layer.weight)
    click.echo(f"\n{layer.title[0].upper()}{layer.title[1:]}: "
               f"[{rows}, {k}] x [{k}, {columns}], {layer.weight.size:,} trained weights")
    click.echo("   A: UINT8, a scale per row, zero point 128; "
               "B: UINT8, a scale and a zero point per column")

    inputs = [device.tensor(t) for t in (a, a_scale, b, b_scale.reshape(1, -1))]
    options = {
        "a_zero_point": device.tensor(np.full((1, 1), 128, np.uint8)),
        "b_zero_point": device.tensor(b_zero.reshape(1, -1)),
        "bias": device.tensor(layer.bias.reshape(1, -1)).broadcast_to((rows, columns)),
    }
    out = device.empty((rows, columns))

    def dispatch() -> None:
        dml.matrix_multiply_integer_to_float(*inputs, **options, out=out)

    dispatch()
    got = out.numpy().astype(np.float64)
    timings = measure(device, dispatch, Loop(milliseconds=1000, warmup=0))
    exact = (a.astype(np.float64) - 128) @ (b.astype(np.float64) - b_zero)  # exact: < 2**53
    exact = exact * a_scale * b_scale + layer.bias
    peer, peer_ms = _onnx_runtime(a, a_scale, b, b_scale, b_zero, layer.bias)
    plain = layer.activations.astype(np.float64) @ layer.weight + layer.bias

    operations = 2 * rows * k * columns
    clocks = [("device", timings.cpu)] if timings.gpu is None else [
        ("device, GPU clock", timings.gpu), ("device, host clock", timings.cpu)]
    for what, ms in (*((n, c.hot.median) for n, c in clocks), ("ONNX Runtime, CPU", peer_ms)):
        click.echo(f"   {what:18} {ms:9.3f} ms   {operations / ms / 1e6:8.2f} GOPS")
    # Four roundings to float32, of values no larger than these.
    rounding = 4 * 2.0**-23 * (np.abs(exact) + 2 * np.abs(layer.bias))
    for name, reference in (("NumPy's integers", exact), ("ONNX Runtime", peer)):
        holds = bool((np.abs(got - reference) <= rounding).all())
        yield verdict(f"against {name:16}  {_errors(got, reference)}", holds)
    snr = _snr(got, plain)
    yield verdict(f"against float product     {_errors(got, plain)}", snr >= _LEAST_SNR)
    return got


def _onnx_runtime(
    a: Any, a_scale: Any, b: Any, b_scale: Any, b_zero: Any, bias: Any
) -> tuple[Any, float]:
    """com.microsoft MatMulIntegerToFloat on the CPU, and milliseconds of one call on all rows.

    Its CPU kernel takes a single scale for A, so the values come from one call for each row.
    """
    import numpy as np
    import onnxruntime
    from onnx import TensorProto, helper

    types = {"a": TensorProto.UINT8, "b": TensorProto.UINT8, "a_scale": TensorProto.FLOAT,
             "b_scale": TensorProto.FLOAT, "a_zero": TensorProto.UINT8,
             "b_zero": TensorProto.UINT8, "bias": TensorProto.FLOAT}
    ranks = {"a": 2, "b": 2, "a_scale": 0, "a_zero": 0}
    node = helper.make_node(
        "MatMulIntegerToFloat", list(types), ["y"], domain="com.microsoft"
    )
    graph = helper.make_graph(
        [node], "product",
        [helper.make_tensor_value_info(n, t, [None] * ranks.get(n, 1)) for n, t in types.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None])],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)])
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feed = {"b": b, "b_scale": b_scale, "a_zero": np.array(128, np.uint8), "b_zero": b_zero,
            "bias": bias}

    def call(rows: Any, scale: Any) -> Any:
        return session.run(None, {**feed, "a": rows, "a_scale": np.array(scale, np.float32)})[0]

    values = np.concatenate([call(a[i : i + 1], a_scale[i, 0]) for i in range(len(a))])
    times = []
    for _ in range(5):
        start = time.perf_counter()
        call(a, a_scale[0, 0])
        times.append((time.perf_counter() - start) * 1e3)
    return values.astype(np.float64), sorted(times)[len(times) // 2]


def _snr(got: Any, reference: Any) -> float:
    import numpy as np

    noise = float(((got - reference) ** 2).sum())
    return float(10 * np.log10(float((reference**2).sum()) / noise)) if noise else float("inf")


def _errors(got: Any, reference: Any) -> str:
    """Relative errors are of the reference or its root mean square, whichever is larger."""
    import numpy as np

    error = np.abs(got - reference)
    rms = float(np.sqrt((reference**2).mean()))
    relative = float((error / np.maximum(np.abs(reference), rms)).max())
    return (f"max abs {error.max():8.2e}   max rel {relative:8.2e}   "
            f"SNR {_snr(got, reference):6.1f} dB")


# -- the diagonal operators


def diagonals(device: Any) -> Iterator[bool]:
    import numpy as np

    import kompute_dml as dml

    sizes = (8, 24)
    out = device.empty(sizes)
    dml.diagonal_matrix(sizes, offset=3, value=1.0, out=out)
    expected = np.eye(*sizes, k=3, dtype=np.float32)
    click.echo("\nDIAGONAL_MATRIX, Offset 3:")
    _picture(out.numpy() != 0)
    yield verdict("equal to NumPy, bit for bit", out.numpy().tobytes() == expected.tobytes())

    lower = np.arange(1, 8 * 24 + 1, dtype=np.int32).reshape(sizes)
    masked = device.empty(sizes, "int32")
    dml.diagonal_matrix1(device.tensor(lower), value=0, diagonal_fill_begin=5,
                         diagonal_fill_end=-2, out=masked)
    distance = np.arange(sizes[1]) - np.arange(sizes[0])[:, None]
    expected = np.where((distance >= -2) & (distance < 5), lower, 0)
    click.echo("\nDIAGONAL_MATRIX1, DiagonalFillBegin 5, DiagonalFillEnd -2, Value 0: "
               "the band of a matrix is kept")
    _picture(masked.numpy() != 0)
    yield verdict("equal to NumPy, bit for bit", masked.numpy().tobytes() == expected.tobytes())


def _picture(filled: Any) -> None:
    for row in filled:
        click.echo("   " + "".join("██" if cell else "· " for cell in row))
