"""``kompute-dml bench``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from . import options


@click.command(epilog=options.CLOCKS, short_help="Measure the operators, or a model.")
@click.argument("model", required=False, type=click.Path(path_type=Path))
@options.adapter
@options.timing
@click.option("--suite", default="operators", show_default=True,
              type=click.Choice(["operators", "limits", "elementwise", "movement", "numpy"]),
              help="The cases: each operator once; goals for a large GPU; elementwise operators in "
                   "FLOAT32, FLOAT16 and INT8, whose goal is the speed of copying; or each "
                   "operator beside NumPy, whose goal is a tenth of NumPy's speed.")
@click.option("--filter", "pattern", default="", metavar="TEXT",
              help="Only cases whose operator or types have TEXT in them, in any case.")
@click.option("--scale", "scale_name", type=click.Choice(["tiny", "small", "middle", "large"]),
              help="Sizes of the cases. By default those for the speed at which the device copies.")
@click.option("--peers", is_flag=False, flag_value="torch,onnxruntime", default="",
              metavar="[NAMES]",
              help="Time these libraries beside the device, where they are installed: torch (on "
                   "the same GPU where CUDA has it, else on the CPU), onnxruntime, numpy. Without "
                   "names the first two.")
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
    import json
    import sys

    from .. import Device
    from ..bench import baseline, cases, formats
    from ..bench import peers as peers_module
    from ..bench.case import SCALES
    from ..bench.rows import copy_bandwidth, run_recipe, suitable_scale
    from ..bench.timing import Loop, report
    from ..errors import ValidationError, expect
    from ..files import replaced
    from ..runtime import clock

    if plot is not None:
        expect(plot.suffix.lower() == ".svg", "--plot", "FILE", "end in .svg", plot)
    if kept:
        _draw_kept(kept, plot)
        return
    old = None if against is None else baseline.load(against)
    first, *rest = cases.suite(suite)
    if not any(_matches(limit.recipe, pattern) for limit in (first, *rest)):
        raise ValidationError(f"--filter: no case of this suite has {pattern!r} in its operator "
                              "or types")
    device = Device(adapter)
    libraries = peers_module.choose(peers or ("numpy" if suite == "numpy" else ""), device.adapter)
    click.get_current_context().with_resource(clock.held(device.adapter))
    counted = any(v is not None for v in (iterations, repeat, milliseconds))
    loop = Loop(iterations or 11, repeat or 1, milliseconds, warmup) if counted else None
    scale = SCALES[scale_name] if scale_name else suitable_scale(device, cases.COPY)

    (copy_row,) = run_recipe(device, first.recipe, loop, scale, libraries)
    copy = copy_bandwidth(copy_row)
    measured = {first.recipe: [copy_row.with_copy(copy)]}
    if model is not None:
        found = [copy_row.with_copy(copy)]
        found += [row.with_copy(copy) for row in _model(device, loop, model)]
    else:
        chosen = [limit for limit in rest if _matches(limit.recipe, pattern)]
        for recipe in _shown([limit.recipe for limit in chosen]):
            rows = run_recipe(device, recipe, loop, scale, libraries)
            measured[recipe] = [row.with_copy(copy) for row in rows]
        others = {recipe: rows[0] for recipe, rows in measured.items() if rows}
        found = [
            row.judged(limit, others)
            for limit in ([first] if _matches(first.recipe, pattern) else []) + chosen
            for row in measured[limit.recipe]
        ]
    for row in found if verbosity else ():
        if row.timings is not None:
            click.echo("\n".join(report(row.name, row.timings, verbosity)), err=True)

    run = formats.document(found, device, copy, _command(sys.argv[1:]))
    if layout == "json":
        moved = {} if old is None else {"against": baseline.against(run["rows"], old)}
        click.echo(json.dumps({**run, **moved}, indent=2))
    elif layout == "csv":
        click.echo(formats.as_csv(found))
    else:
        click.echo(f"Running on '{device.adapter.name}'")
        click.echo(formats.as_table(found))
        for line in formats.summary(found):
            click.echo(line)
        if old is not None:
            if old.get("device") != run["device"]:
                click.echo(f"{against} is a run on another device, {old.get('device')!r}")
            click.echo(baseline.against_table(run["rows"], old))
    if output is not None:
        with replaced(output) as path, path.open("w") as file:
            file.write(json.dumps(run, indent=1) + "\n")
    if plot is not None:
        from ..bench.plot import picture

        with replaced(plot) as path:
            path.write_text(picture(run), "utf-8")
    wrong = [row for row in found if not row.ok]
    for row in wrong:
        click.echo(f"error: {row.operator} {row.types} {row.sizes}: {row.values}", err=True)
    if wrong:
        raise click.exceptions.Exit(1)


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
