"""``kompute-dml selftest``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from .options import adapter as adapter_option


@click.command(short_help="Compute every operator on every device.")
@adapter_option
def selftest(adapter: str | None) -> None:
    """Compute a small case of every operator on every device, and compare with NumPy."""
    from ..runtime.adapters import choose, list_devices

    cases = failures = 0
    for each in list_devices() if adapter is None else (choose(adapter),):
        click.echo(f"{each.index}: {each.name} ({each.driver} {each.driver_version})")
        for what, problem in _results(each):
            cases += 1
            failures += bool(problem)
            click.echo(f"   {'FAIL' if problem else 'PASS'}  {what}"
                       + (f": {problem}" if problem else ""))
    click.echo(f"{cases - failures} of {cases} pass")
    if failures:
        raise click.exceptions.Exit(1)


def _results(adapter: Any) -> Iterator[tuple[str, str]]:
    """(case, what is wrong with it) on a device; a device that cannot start is one failure."""
    from .. import Device
    from ..bench.case import TINY
    from ..bench.cases import RECIPES
    from ..bench.rows import short
    from ..operators.base import definitions

    # Whatever goes wrong is a result here, so that the next device has its turn.
    try:
        device = Device(adapter)
    except Exception as error:
        yield "create the device", _reason(error)
        return
    for recipe in RECIPES:
        name = f"{short(recipe.operator):32} {recipe.types}"
        try:
            for case in recipe.make(device, TINY):
                yield f"{name} {case.sizes}", case.check(case.dispatch())
        except Exception as error:
            yield name, _reason(error)
    for operator in definitions().keys() - {recipe.operator for recipe in RECIPES}:
        yield short(operator), "no case computes it"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
