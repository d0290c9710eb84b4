"""A trained model, two layers by hand and the whole, on the device: python examples/demo/demo.py"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import click

from kompute_dml import Device
from kompute_dml.cli import cli
from kompute_dml.cli.options import adapter as adapter_option
from kompute_dml.errors import UnsupportedError


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
    import layers

    start = time.perf_counter()
    device = Device(adapter)
    click.echo(f"Running on '{device.adapter.name}'")
    if device.adapter.is_cpu:
        click.echo("This driver is the CPU posing as a GPU: it shows that results are right, not "
                   "how fast a GPU is.")
    click.echo()
    closing: list[str] = []
    passed = [*layers.model(device, folder, closing), *layers.diagonals(device)]
    click.echo(f"\n{sum(passed)} of {len(passed)} comparisons hold "
               f"({time.perf_counter() - start:.1f} s)")
    for line in closing:
        click.echo(line)
    if not all(passed):
        raise click.exceptions.Exit(1)


def _need(*packages: str) -> None:
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    if missing:
        raise UnsupportedError(
            f"the demonstration needs {', '.join(missing)}: in a checkout, "
            "pip install '.[demo]'"
        )


if __name__ == "__main__":
    cli.add_command(demo)
    cli(["demo", *sys.argv[1:]], prog_name="kompute-dml")
