"""``kompute-dml demo``: a trained model, two layers by hand and the whole, on the device."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import click

from ..errors import UnsupportedError
from .options import adapter as adapter_option


@click.command(short_help="Classify files with an int8 model, and compare.")
@adapter_option
@click.option("--files", "folder", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="A directory of files to classify, instead of this Python installation.")
def demo(adapter: str | None, folder: Path | None) -> None:
    """Run layers of a trained model on the device, then the whole, with real files as input.

    The weights are those of magika, Google's file type detector, out of the .onnx file inside its
    PyPI package. The activations are what magika computes of the files. Both are quantized to 8
    bits and multiplied with MATRIX_MULTIPLY_INTEGER_TO_FLOAT; the result is compared with ONNX
    Runtime's on the CPU and with the float product. Then ONNX Runtime classifies the files with
    the whole model, its products on the device, and on its CPU provider. The diagonal operators
    follow, as pictures. The exit code is 1 when a comparison fails.
    """
    _need("onnx", "onnxruntime", "magika")
    from .. import Device
    from .demo_layers import diagonals, model

    start = time.perf_counter()
    device = Device(adapter)
    click.echo(f"Running on '{device.adapter.name}'")
    if device.adapter.is_cpu:
        click.echo("This driver is the CPU posing as a GPU: it shows that results are right, not "
                   "how fast a GPU is.")
    click.echo()
    passed = [*model(device, folder), *diagonals(device)]
    click.echo(f"\n{sum(passed)} of {len(passed)} comparisons hold "
               f"({time.perf_counter() - start:.1f} s)")
    if not all(passed):
        raise click.exceptions.Exit(1)


def _need(*packages: str) -> None:
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    if missing:
        raise UnsupportedError(
            f"the demonstration needs {', '.join(missing)}: in a checkout, "
            "pip install '.[demo]'"
        )
