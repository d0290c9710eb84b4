"""``kompute-dml selftest``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from .options import adapter as adapter_option
from .options import as_json as json_option

if TYPE_CHECKING:
    from ..runtime.adapters import Adapter


@click.command(short_help="Compute every operator on every device.")
@adapter_option
@json_option
def selftest(adapter: str | None, as_json: bool) -> None:
    """Compute a small case of every operator on every device, and compare with NumPy."""
    import json

    from tqdm import tqdm

    from ..bench.cases import RECIPES
    from ..runtime.adapters import choose, list_devices

    cases = failures = 0
    records = []
    for each in list_devices() if adapter is None else (choose(adapter),):
        if not as_json:
            click.echo(f"{each.index}: {each.name} ({each.driver} {each.driver_version})")
            click.echo(f"         {'operator':32} data types, what is special, sizes of the output")
        # Lines are progress enough; JSON comes at the end.
        for what, problem in tqdm(_results(each), total=len(RECIPES), unit="case", leave=False,
                                  disable=None if as_json else True):
            cases += 1
            failures += bool(problem)
            if as_json:
                records.append({"device": each.name, "uuid": each.uuid, "case": what,
                                "passes": not problem, "problem": problem})
                continue
            click.echo(f"   {'FAIL' if problem else 'PASS'}  {what}"
                       + (f": {problem}" if problem else ""))
    click.echo(json.dumps(records, indent=2) if as_json
               else f"{cases - failures} of {cases} pass")
    if failures:
        raise click.exceptions.Exit(1)


def _results(adapter: int | str | Adapter | None) -> Iterator[tuple[str, str]]:
    """(case, what is wrong with it) for a device. A device that cannot start is one failure."""
    from .. import Device
    from ..bench.cases import RECIPES
    from ..bench.rows import short
    from ..cases import TINY
    from ..operators.base import definitions

    # Every error is a result, so that the next device is tested.
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
