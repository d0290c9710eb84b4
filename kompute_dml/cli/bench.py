"""``kompute-dml bench``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from . import options


@click.command(epilog=options.CLOCKS, short_help="Measure the operators, or a model.")
@click.argument("model", required=False, type=click.Path(path_type=Path))
@options.adapter
@options.timing
@click.option("--filter", "pattern", default="", metavar="TEXT",
              help="Only cases whose operator or types have TEXT in them, in any case.")
@click.option("--scale", "scale_name", type=click.Choice(["tiny", "cpu", "integrated", "discrete"]),
              help="Sizes of the cases. By default those for the device's type.")
@click.option("--format", "layout", type=click.Choice(["table", "csv", "json"]),
              default="table", show_default=True, help="What to print.")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.png",
              help="Draw the rows against the copy bandwidth (needs matplotlib).")
def bench(
    model: Path | None,
    adapter: str | None,
    iterations: int | None,
    repeat: int | None,
    milliseconds: float | None,
    warmup: int,
    verbosity: int,
    pattern: str,
    scale_name: str | None,
    layout: str,
    plot: Path | None,
) -> None:
    """Measure the operators, or the dispatches of MODEL (a DxDispatch JSON model).

    A case's values are compared with NumPy's before it is timed (of large matrix products 128
    rows; a model's values are not checked). The rate is TOPS where a row computes, else GB/s;
    'of copy' is its bandwidth over that of ACTIVATION_IDENTITY on packed FLOAT32 data, measured
    first in the same run. Rates follow the GPU clock, or the CPU clock where there is none.
    Without -i, -r and -t both counts follow from a case's speed.
    """
    from .. import Device
    from ..bench import rows as rows_module
    from ..bench.cases import SCALES, TINY
    from ..bench.timing import Loop, report

    if plot is not None:
        _need_matplotlib()
    device = Device(adapter)
    counted = any(v is not None for v in (iterations, repeat, milliseconds))
    loop = Loop(iterations or 11, repeat or 1, milliseconds, warmup) if counted else None
    if scale_name is None:
        scale = rows_module.scale_of(device)
    else:
        scale = TINY if scale_name == "tiny" else SCALES[scale_name]

    copy, copy_row = rows_module.copy_bandwidth(device, loop, scale)
    found = [copy_row] if model is not None or _matches(copy_row, pattern) else []
    source = _cases(device, loop, scale, pattern) if model is None else _model(device, loop, model)
    for row in source:
        found.append(row.with_copy(copy))
        if verbosity and row.timings is not None:
            name = f"{row.operator} {row.types} {row.sizes}"
            click.echo("\n".join(report(name, row.timings, verbosity)), err=True)

    if layout == "json":
        click.echo(rows_module.as_json(found, device))
    elif layout == "csv":
        click.echo(rows_module.as_csv(found))
    else:
        click.echo(f"Running on '{device.adapter.name}'")
        click.echo(rows_module.as_table(found))
        if any(row.gpu_ms is None for row in found if row.ok):
            click.echo("No device timestamps here: rates follow the host's clock.")
    if plot is not None:
        from ..bench.plot import draw

        draw(found, device.adapter.name, str(plot))
    wrong = [row for row in found if not row.ok]
    for row in wrong:
        click.echo(f"error: {row.operator} {row.types} {row.sizes}: {row.values}", err=True)
    if wrong:
        raise click.exceptions.Exit(1)


def _matches(case: Any, pattern: str) -> bool:
    return pattern.lower() in f"{case.operator} {case.types}".lower()


def _cases(device: Any, loop: Any, scale: Any, pattern: str) -> Iterator[Any]:
    """The rows of the operators' cases, but the copy's, with a progress bar on a terminal."""
    from tqdm import tqdm

    from ..bench.cases import COPY, RECIPES
    from ..bench.rows import run_recipe, short

    recipes = [r for r in RECIPES if r is not COPY and _matches(r, pattern)]
    with tqdm(recipes, unit="case", disable=None, leave=False) as bar:
        for recipe in bar:
            bar.set_description(f"{short(recipe.operator)} {recipe.types}")
            yield from run_recipe(device, recipe, loop, scale)


def _model(device: Any, loop: Any, path: Path) -> Iterator[Any]:
    """The rows of a model's dispatches."""
    from ..bench.cases import Case, product_operations, touched_bytes
    from ..bench.rows import make_row
    from ..bench.timing import Loop
    from ..desc import TensorDesc
    from ..dxdispatch import Runner, load
    from ..dxdispatch.model import Dispatch

    runner = Runner(load(path), device, loop=loop or Loop(iterations=11, repeat=10))
    for command in runner.model.commands:
        if not isinstance(command, Dispatch):
            continue
        operator = runner.model.dispatchables[command.dispatchable].operator
        fields = operator.fields if operator else {}
        tensors = [t for t in fields.values() if isinstance(t, TensorDesc)]
        product = operator is not None and "a_tensor" in fields and "MATRIX" in operator.name
        yield make_row(
            Case(
                f"'{command.dispatchable}'",
                " ".join(t.data_type.family for t in tensors),
                " ".join("x".join(map(str, t.sizes)) for t in tensors),
                lambda: None, lambda: "",
                touched_bytes(tensors),
                product_operations(fields["a_tensor"], fields["output_tensor"]) if product else 0,
            ),
            "unchecked",
            runner.dispatch(command),
        )


def _need_matplotlib() -> None:
    import importlib.util

    from ..errors import UnsupportedError

    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError("--plot needs matplotlib: pip install 'kompute_dml[plot]'")
