"""``kompute-dml explain``: which nodes of an ONNX model run on the device, and by which kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import options
from .progress import progress

if TYPE_CHECKING:
    from ..lowering.kernel import Choice


@click.command()
@click.argument("model")
@click.option("--kernels", is_flag=True,
              help="List the kernels of each operator that has several: which declined and why, "
              "the estimates of the others, and what was taken. MODEL may be a part of the name of "
              "a benchmark's case, too.")
@click.option("--claim", default="auto", show_default=True,
              help="As the provider's option: auto, all, or names of operators.")
@options.adapter
@options.emulation
@click.option("--feature-level", metavar="LEVEL", help="DirectML's, such as 6.4.")
@options.as_json
def explain(
    model: str, kernels: bool, emulated: str | None, as_json: bool, **given: object
) -> None:
    """Print where each node of an ONNX model runs, and why."""
    import json

    from .. import onnxruntime
    from ..runtime import traits

    if emulated:
        click.get_current_context().with_resource(traits.emulated(emulated))
    if kernels:
        choices = _choices(model, given)
        click.echo(json.dumps([choice._asdict() for choice in choices], indent=2) if as_json
                   else "\n".join(map(str, choices)))
        return
    _check_file(model)
    if not as_json:
        with progress("Compiling"), onnxruntime.own_errors(model):
            onnxruntime.explain(model, **given)
        return
    with progress("Compiling"), onnxruntime.own_errors(model):
        decisions, error = onnxruntime.decided(model, **given)
    click.echo(json.dumps([
        {"operator": d.operator, "node": d.node, "where": d.where, "why": d.why}
        for d in decisions], indent=2))
    if error is not None:
        click.echo(f"No session can be made: {error}", err=True)


def _check_file(model: str) -> None:
    if not Path(model).is_file():
        raise click.BadParameter(f"{model!r} is no file", param_hint="'MODEL'")


def _choices(model: str, more: dict[str, Any]) -> list[Choice]:
    """The choices of a model, or of the cases of the benchmark whose operator or types have such a
    part."""
    from ..lowering.kernel import explained

    with explained() as choices:
        if Path(model).is_file():
            from .. import onnxruntime

            with progress("Compiling"), onnxruntime.own_errors(model):
                onnxruntime.decided(model, **more)
        else:
            _compile_cases(model, more["adapter"])
    return list(dict.fromkeys(choices))


def _compile_cases(part: str, adapter: str | None) -> None:
    from .. import Device
    from ..bench import cases
    from ..bench.rows import suitable_scale

    recipes = dict.fromkeys(r for suite in ("operators", "limits") for r in cases.SUITES[suite]
                            if part.lower() in f"{r.operator} {r.types}".lower())
    if not recipes:
        raise click.BadParameter(f"{part!r} is no file, and no case of the benchmark has it in its "
                                 "operator or types", param_hint="'MODEL'")
    device = Device(adapter)
    scale = suitable_scale(device, cases.COPY)
    with progress("Compiling"):
        for recipe in recipes:
            for case in recipe.make(device, scale):
                case.dispatch()
