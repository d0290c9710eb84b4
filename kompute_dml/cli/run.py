"""``kompute-dml run``."""

from __future__ import annotations

from pathlib import Path

import click

from . import options
from .progress import line, progress


@click.command(epilog=options.CLOCKS, short_help="Run a DxDispatch JSON model.")
@click.argument("model", required=False, type=click.Path(path_type=Path))
@options.adapter
@click.option("-s", "--show_adapters", is_flag=True,
              help="List the devices instead; 'kompute-dml devices --json' prints JSON.")
@options.timing
@click.option("--output_path", type=click.Path(path_type=Path), default=Path(),
              help="Folder that writeFile is relative to. The current one by default.")
def run(
    model: Path | None,
    adapter: str | None,
    show_adapters: bool,
    iterations: int | None,
    repeat: int | None,
    milliseconds: float | None,
    warmup: int,
    verbosity: int,
    output_path: Path,
) -> None:
    """Run MODEL, a JSON model of DirectML's DxDispatch.

    Its operators are initialized first. Then its commands are executed in order. By default each
    dispatch is sampled once (-i 1), with one dispatch in a sample (-r 1).
    """
    if show_adapters:
        from ..runtime.adapters import list_devices
        from .devices import show

        show(list_devices())
        return
    if model is None:
        raise click.UsageError("Missing argument 'MODEL'.")
    from .. import Device
    from ..bench.timing import Loop
    from ..dxdispatch import Runner, load

    loaded = load(model)
    device = Device(adapter)
    click.echo(f"Running on '{device.adapter.name}'")
    loop = Loop(iterations or 1, repeat or 1, milliseconds, warmup)
    with progress("Running"):
        Runner(
            loaded, device, loop=loop, verbosity=verbosity, write=line, output_folder=output_path,
        ).run()
