"""``kompute-dml bench``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from . import options

_USUAL = "usual"
"""--peers without names."""


@click.command(epilog=options.CLOCKS, short_help="Measure the operators, or a model.")
@click.argument("model", required=False, type=click.Path(path_type=Path))
@options.adapter
@options.timing
@click.option("--suite", default="operators", show_default=True,
              type=click.Choice(
                  ["operators", "limits", "families", "elementwise", "movement", "numpy",
                   "models"]),
              help="The cases: each operator once; goals for a large GPU; of these, all but copies "
                   "and MATRIX_MULTIPLY_INTEGER_TO_FLOAT; elementwise operators in FLOAT32, "
                   "FLOAT16 and INT8, whose goal is the speed of copying; copies of parts, whose "
                   "goals are shares of copying; each operator beside NumPy, whose goal is a "
                   "tenth of NumPy's speed; or whole models on ONNX Runtime, NumPy in to NumPy "
                   "out.")
@click.option("--filter", "pattern", default="", metavar="TEXT",
              help="Only cases whose operator or types (whose model or type) have TEXT in them, in "
                   "any case.")
@click.option("--scale", "scale_name", type=click.Choice(["tiny", "small", "middle", "large"]),
              help="Sizes of the cases. By default those for the speed at which the device copies.")
@click.option("--peers", is_flag=False, flag_value=_USUAL, default="", metavar="[NAMES]",
              help="Time these libraries beside the device, where they are installed: torch (on "
                   "the same GPU where CUDA has it, else on the CPU), onnxruntime, numpy. Without "
                   "names the first two. Beside models: torch (on the same GPU only), onnxruntime "
                   "(on the CPU), webgpu and ggml, which are providers for ONNX Runtime.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=210.0,
              show_default=True, metavar="S",
              help="With --suite models: begin no model after so long.")
@click.option("--against", type=click.Path(path_type=Path), metavar="FILE.json",
              help="Print what moved since the run in FILE.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.json",
              help="Write the run, for --against.")
@click.option("--format", "layout", type=click.Choice(["table", "csv", "json"]),
              default="table", show_default=True, help="What to print.")
@click.option("--json", "layout", flag_value="json", help="The same as --format json.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.svg",
              help="Draw the rows: bandwidths beside copying, and the roofline.")
@click.option("--kept", type=click.Path(path_type=Path), multiple=True, metavar="FILE.json",
              help="With --plot: measure nothing, and draw the run in FILE. A second FILE may have "
                   "whole models, as benchmarks/baseline/nvidia-h200-models.json has.")
def bench(
    model: Path | None,
    adapter: str | None,
    iterations: int | None,
    repeat: int | None,
    milliseconds: float | None,
    warmup: int,
    verbosity: int,
    suite: str,
    pattern: str,
    scale_name: str | None,
    peers: str,
    seconds: float,
    against: Path | None,
    output: Path | None,
    layout: str,
    plot: Path | None,
    kept: tuple[Path, ...],
) -> None:
    """Measure the operators, or the dispatches of MODEL (a DxDispatch JSON model).

    Parts of a case's values are compared with NumPy before and after timing; a model's values are
    not checked. The rate is TOPS for matrix products and the like, else GB/s. 'of copy' is the
    bandwidth relative to copying packed FLOAT32 data in the same run, by the device or, if it is
    faster, by PyTorch. 'faster than' is the speedup over a peer, 'reached/goal' the goal of a
    suite. Rates use the GPU clock, or the CPU clock without one. Without -i, -r and -t the counts
    follow from a case's speed. On an NVIDIA GPU with CUDA a CUDA context is held during the run,
    because for Vulkan alone the driver lowers the clock between submits.
    """
    import sys

    from ..bench import baseline
    from ..bench.timing import Loop
    from ..errors import expect

    if plot is not None:
        expect(plot.suffix.lower() == ".svg", "--plot", "FILE", "end in .svg", plot)
    if kept:
        _draw_kept(kept, plot)
        return
    old = None if against is None else baseline.load(against)
    counted = any(v is not None for v in (iterations, repeat, milliseconds))
    loop = Loop(iterations or 11, repeat or 1, milliseconds, warmup) if counted else None
    command = _command(sys.argv[1:])
    if suite == "models":
        asked = _Asked(adapter, pattern, peers, loop, command)
        run, found, table = _whole_models(asked, seconds, output)
    else:
        asked = _Asked(adapter, pattern, "numpy" if suite == "numpy" and not peers else peers,
                       loop, command)
        run, found, table = _operators(asked, suite, scale_name, model)
    _tell(run, found, table, layout, verbosity, None if old is None else (str(against), old))
    if output is not None:
        _keep(run, output)
    if plot is not None:
        from ..bench.plot import picture
        from ..files import replaced

        with replaced(plot) as path:
            path.write_text(picture(*((None, run) if suite == "models" else (run,))), "utf-8")
    wrong = [row for row in found if not row.ok]
    for row in wrong:
        click.echo(f"error: {row.name}: {row.values}", err=True)
    if wrong:
        raise click.exceptions.Exit(1)


class _Asked(NamedTuple):
    """What all suites know."""

    adapter: str | None
    pattern: str
    peers: str
    loop: Any
    command: str


def _operators(
    asked: _Asked, suite: str, scale_name: str | None, model: Path | None
) -> tuple[dict[str, Any], Sequence[Any], str]:
    """The run, its rows and its table, of operators or of a DxDispatch model."""
    from .. import Device
    from ..bench import cases, formats
    from ..bench import peers as peers_module
    from ..bench.case import SCALES, Recipe
    from ..bench.limits import AS_MANY_BYTES
    from ..bench.rows import copy_bandwidth, run_recipe, suitable_scale
    from ..errors import ValidationError
    from ..runtime import clock

    first, *rest = cases.suite(suite)
    if not any(_matches(limit.recipe, asked.pattern) for limit in (first, *rest)):
        raise ValidationError(f"--filter: no case of this suite has {asked.pattern!r} in its "
                              "operator or types")
    device = Device(asked.adapter)
    names = peers_module.USUAL if asked.peers == _USUAL else asked.peers
    libraries = peers_module.choose(names, device.adapter)
    click.get_current_context().with_resource(clock.held(device.adapter))
    loop = asked.loop
    scale = SCALES[scale_name] if scale_name else suitable_scale(device, cases.COPY)

    (copy_row,) = run_recipe(device, first.recipe, loop, scale, libraries)
    copy = copy_bandwidth(copy_row)
    measured = {first.recipe: [copy_row.with_copy(copy)]}
    if model is not None:
        found = [copy_row.with_copy(copy)]
        found += [row.with_copy(copy) for row in _model(device, loop, model)]
    else:
        chosen = [limit for limit in rest if _matches(limit.recipe, asked.pattern)]
        # What goals name is measured, even where it is not shown.
        compared = [against for limit in chosen for against, _ in limit.goals
                    if isinstance(against, Recipe)]
        recipes = dict.fromkeys([*(limit.recipe for limit in chosen), *compared])
        for recipe in _shown([*recipes]):
            rows = run_recipe(device, recipe, loop, scale, libraries)
            measured[recipe] = [row.with_copy(copy) for row in rows]
        others = {recipe: rows[0] for recipe, rows in measured.items() if rows}
        copies = {row.bytes: cases.copy_of(row.bytes)
                  for limit in chosen for row in measured[limit.recipe]
                  for against, _ in limit.goals if against == AS_MANY_BYTES and row.ok}
        copy_of = {}
        for nbytes, recipe in zip(copies, _shown([*copies.values()])):
            (row,) = run_recipe(device, recipe, loop, scale, libraries)
            copy_of[nbytes] = copy_bandwidth(row)
        found = [
            row.judged(limit, others, copy_of)
            for limit in ([first] if _matches(first.recipe, asked.pattern) else []) + chosen
            for row in measured[limit.recipe]
        ]
    return formats.document(found, device, copy, asked.command), found, formats.as_table(found)


def _whole_models(
    asked: _Asked, seconds: float, output: Path | None
) -> tuple[dict[str, Any], Sequence[Any], str]:
    """The run, its rows and its table, of whole models. What there is of it is kept meanwhile."""
    from tqdm import tqdm

    from ..bench import architectures, formats, models
    from ..errors import ValidationError
    from ..runtime import adapters, clock

    kinds = [kind for kind in architectures.kinds()
             if asked.pattern.lower() in f"{kind.name} {kind.types}".lower()]
    if not kinds:
        raise ValidationError(f"--filter: no model has {asked.pattern!r} in its name or type")
    adapter = adapters.choose(asked.adapter)
    click.get_current_context().with_resource(clock.held(adapter))
    names = models.USUAL if asked.peers == _USUAL else asked.peers
    bench = models.Bench(adapter, names, asked.loop)
    found: list[Any] = []

    def run() -> dict[str, Any]:
        return {**formats.about(adapter, asked.command), "left_out": bench.left_out,
                "models": [row.record() for row in found]}

    with tqdm(total=len(kinds), unit="model", disable=None, leave=False) as bar:
        for row in bench.run(kinds, seconds):
            found.append(row)
            bar.update()
            if output is not None:
                _keep(run(), output)
    lines = [models.as_table(found), *bench.left_out]
    return run(), found, "\n".join(lines)


def _tell(
    run: dict[str, Any], found: Sequence[Any], table: str, layout: str, verbosity: int,
    against: tuple[str, Any] | None,
) -> None:
    """Print a run."""
    import json

    from ..bench import baseline, formats
    from ..bench.timing import report

    for row in found if verbosity else ():
        if row.timings is not None:
            click.echo("\n".join(report(row.name, row.timings, verbosity)), err=True)
    if layout == "json":
        moved = {} if against is None else {
            "against": baseline.against(baseline.records(run), against[1])}
        click.echo(json.dumps({**run, **moved}, indent=2))
        return
    if layout == "csv":
        click.echo(formats.as_csv(found))
        return
    click.echo(f"Running on '{run['device']}'")
    click.echo(table)
    for line in formats.summary(found):
        click.echo(line)
    if against is not None:
        path, old = against
        if old.get("device") != run["device"]:
            click.echo(f"{path} is a run on another device, {old.get('device')!r}")
        click.echo(baseline.against_table(baseline.records(run), old))


def _keep(run: dict[str, Any], output: Path) -> None:
    import json

    from ..files import replaced

    with replaced(output) as path, path.open("w") as file:
        file.write(json.dumps(run, indent=1) + "\n")


def _command(arguments: Sequence[str]) -> str:
    """The command that repeats a run, without its output options."""
    import shlex

    kept = [
        a for before, a in zip(["", *arguments], arguments)
        if before != "--output" and not a.startswith("--output=") and a != "--output"
    ]
    return shlex.join(["kompute-dml", *kept])


def _matches(recipe: Any, pattern: str) -> bool:
    return pattern.lower() in f"{recipe.operator} {recipe.types}".lower()


def _shown(recipes: Sequence[Any]) -> Iterator[Any]:
    """The recipes, with a progress bar on a terminal."""
    from tqdm import tqdm

    from ..bench.rows import short

    with tqdm(recipes, unit="case", disable=None, leave=False) as bar:
        for recipe in bar:
            bar.set_description(f"{short(recipe.operator)} {recipe.types}")
            yield recipe


def _model(device: Any, loop: Any, path: Path) -> Iterator[Any]:
    """The rows of a model's dispatches."""
    from ..bench.case import Case, product_operations, touched_bytes
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
                lambda: None, lambda _: "",
                touched_bytes(tensors),
                product_operations(fields["a_tensor"], fields["output_tensor"]) if product else 0,
            ),
            "unchecked",
            runner.dispatch(command),
        )


def _draw_kept(kept: Sequence[Path], plot: Path | None) -> None:
    from ..bench import baseline
    from ..bench.plot import picture
    from ..errors import ValidationError
    from ..files import replaced

    found = [baseline.load(path) for path in kept]
    runs = [run for run in found if "rows" in run]
    models = [run for run in found if "models" in run]
    if plot is None or len(runs) > 1 or len(models) > 1:
        raise ValidationError("--kept: expected --plot, and at most one run of operators and one "
                              "of models")
    with replaced(plot) as path:
        path.write_text(picture(runs[0] if runs else None, *models), "utf-8")
