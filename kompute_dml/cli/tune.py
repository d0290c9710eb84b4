"""``kompute-dml tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import adapter as adapter_option
from .options import as_json as json_option


@click.command(short_help="Measure which kernels are fastest here, and keep the choice.")
@adapter_option
@click.option("--scale", "scale_name", type=click.Choice(["tiny", "small", "middle", "large"]),
              help="Sizes of the work. By default those for the speed at which the device copies.")
@click.option("--seconds", type=click.FloatRange(min=0), default=60.0, show_default=True,
              metavar="S", help="Begin no case after so many seconds.")
@click.option("--table", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.json",
              help="Add the kernels that are faster than the default to FILE, a table by class of "
              "device such as kompute_dml/lowering/measured.json.")
@json_option
def tune(
    adapter: str | None, scale_name: str | None, seconds: float, table: Path | None, as_json: bool
) -> None:
    """Measure the kernels for products, convolutions, pooling, resampling, attention and TOP_K.

    The fastest kernel for each size is stored in tuning.json in the user's cache directory.
    KOMPUTE_DML_TUNING names another file. The choice holds for this device, driver and version of
    kompute_dml, and is used from then on. Results of integers never depend on it. Results of floats
    stay within the bounds of accuracy.md.

    On a GPU with CUDA a CUDA context is held during the run, because for Vulkan alone the
    driver lowers the clock between submits.
    """
    import json
    import time

    from tqdm import tqdm

    from .. import Device, tuning
    from ..bench import cases
    from ..bench import tune as bench_tune
    from ..bench.case import SCALES
    from ..bench.rows import suitable_scale
    from ..lowering import measured
    from ..runtime import clock

    device = Device(adapter)
    click.get_current_context().with_resource(clock.held(device.adapter))
    scale = SCALES[scale_name] if scale_name else suitable_scale(device, cases.COPY)
    choices: dict[str, Any] = {}
    recipes = list(bench_tune.recipes())
    done, end = 0, time.monotonic() + seconds
    for recipe in tqdm(recipes, unit="case", disable=None, leave=False):
        if time.monotonic() >= end:
            break
        for choice in bench_tune.choices(device, recipe, scale):
            choices[choice.work] = choice
            tuning.keep(device.adapter, {choice.work: choice.best})
        done += 1
    if table is not None:
        measured.keep(table, device.target.traits.device_class, {
            work: c.best for work, c in choices.items() if c.best != next(iter(c.ms))})
    if as_json:
        click.echo(json.dumps({
            "device": device.adapter.name, "products": len(recipes), "done": done,
            "kept": None if tuning.file() is None or not choices else str(tuning.file()),
            "choices": [{"types": c.case.types, "sizes": c.case.sizes, "taken": c.best,
                         "milliseconds": c.ms, "wrong": c.wrong} for c in choices.values()],
        }, indent=2))
    else:
        _print(device.adapter.name, choices, done, len(recipes), seconds)
    wrong = [(choice, name) for choice in choices.values() for name in choice.wrong]
    for choice, name in wrong:
        click.echo(f"error: {name} for {choice.case.types} {choice.case.sizes}: "
                   f"{choice.wrong[name]}", err=True)
    if wrong:
        raise click.exceptions.Exit(1)


def _print(device: str, choices: dict[str, Any], done: int, products: int, seconds: float) -> None:
    from tabulate import tabulate

    from .. import tuning

    click.echo(f"Running on '{device}'")
    click.echo(tabulate(
        [
            (choice.case.types, choice.case.sizes, choice.best,
             ", ".join(f"{name} {ms * 1e3:.1f} us" for name, ms in choice.ms.items()))
            for choice in choices.values()
        ],
        headers=("types", "sizes", "taken", "measured"), disable_numparse=True,
    ))
    if done < products:
        click.echo(f"{done} of {products} cases were measured in {seconds:g} seconds.")
    path = tuning.file()
    if not choices:
        click.echo("Nothing was kept: each measured case has only one kernel.")
    elif path is None:
        click.echo("Nothing was kept: KOMPUTE_DML_TUNING is empty.")
    else:
        click.echo(f"Kept in {path}")
