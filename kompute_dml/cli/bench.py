"""``kompute-dml bench``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from . import options

if TYPE_CHECKING:
    from ..bench.case import Recipe
    from ..bench.rows import BenchRow
    from ..bench.timing import Loop
    from ..cases import Scale
    from ..device import Device
    from ..runtime.adapters import Adapter

_USUAL = "usual"
"""--peers without names."""

_SUITES = {
    "operators": "each operator once",
    "limits": "operators with goals for a large GPU",
    "families": "operators with goals, but no copies and no MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
    "elementwise": "unary and binary operators; the goal is the speed of copying",
    "movement": "slices, joins, padding and tiles; the goals are shares of copying",
    "numpy": "each operator beside NumPy; the goal is a tenth of NumPy's speed",
    "models": "whole models on ONNX Runtime, from NumPy's arrays to NumPy's arrays",
    "generation": "tokens a second of decoders with random weights, which take up to\n"
                  "               16 GB of the temporary folder",
    "torch": "PyTorch's networks on the device kompute: eager, compiled, training steps",
}
"""What ``--suite`` takes, and what it times."""
_NOTES = "\b\nSuites:\n{}\n\n{}".format(
    "\n".join(f"  {name:11}  {text}" for name, text in _SUITES.items()), options.CLOCKS)


@click.command(epilog=_NOTES, short_help="Measure the operators, or whole models.")
@click.argument("model", required=False, type=click.Path(path_type=Path))
@options.adapter
@options.timing
@click.option("--suite", default="operators", show_default=True,
              type=click.Choice(tuple(_SUITES)), help="What to time; the list is below.")
@options.emulation
@click.option("--filter", "pattern", default="", metavar="TEXT",
              help="Only cases with TEXT in the name of their operator, model or types. Upper and "
                   "lower case are the same.")
@click.option("--scale", "scale_name", type=click.Choice(["tiny", "small", "middle", "large"]),
              help="Sizes of the cases. By default those for the speed at which the device copies.")
@click.option("--peers", is_flag=False, flag_value=_USUAL, default="", metavar="[NAMES]",
              help="Time these libraries beside the device, where they are installed. Operators: "
                   "torch (on the same GPU where CUDA has it, else on the CPU), onnxruntime and "
                   "numpy; without NAMES the first two. Models: torch (on the same GPU only), "
                   "onnxruntime (on the CPU), and the providers webgpu and ggml for ONNX Runtime. "
                   "Decoders: llama.cpp (of cyllama-vulkan), torch and webgpu. Suite torch: eager, "
                   "graphs and inductor on CUDA, and eager on the CPU where there is no CUDA.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=210.0,
              show_default=True, metavar="S",
              help="With --suite models, generation or torch: begin no model after so many "
                   "seconds.")
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
    emulated: str | None,
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

    Parts of a case's values are compared with NumPy before and after timing. The values of MODEL
    are not checked.

    The rate is TOPS for matrix products and the like, and GB/s for others. It uses the GPU clock,
    or the CPU clock without one. 'of copy' divides the bandwidth by that of copying packed FLOAT32
    data in the same run. That copy is the device's or, if it is faster, PyTorch's. 'faster than'
    has the speedup over a peer. 'reached/goal' has what was reached of a suite's goal.

    Without -i, -r and -t the numbers of samples and dispatches follow from a case's speed.

    On a GPU with CUDA a CUDA context is held during the run, because for Vulkan alone the
    driver lowers the clock between submits.

    With --as, families have the goals of devices without matrix units. Many of these goals are
    ratios to the device as it is, which is measured, too.
    """
    import sys

    from ..bench import baseline
    from ..bench.timing import Loop
    from ..errors import expect
    from ..runtime import traits

    if emulated:
        click.get_current_context().with_resource(traits.emulated(emulated))
    if plot is not None:
        expect(plot.suffix.lower() == ".svg", "--plot", "FILE", "end in .svg", plot)
    if kept:
        _draw_kept(kept, plot)
        return
    old = None if against is None else baseline.load(against)
    counted = any(v is not None for v in (iterations, repeat, milliseconds))
    loop = Loop(iterations or 11, repeat or 1, milliseconds, warmup) if counted else None
    command = _command(sys.argv[1:])
    measures: dict[str, Callable[..., tuple[dict[str, Any], Sequence[Any], str]]] = {
        "models": _whole_models, "generation": _generation,
        "torch": partial(_networks, scale_name)}
    if suite in measures:
        asked = _Asked(adapter, pattern, peers, loop, command)
        run, rows, table = measures[suite](asked, seconds, output)
    else:
        asked = _Asked(adapter, pattern, "numpy" if suite == "numpy" and not peers else peers,
                       loop, command)
        run, rows, table = _operators(asked, suite, scale_name, model)
    _tell(run, rows, table, layout, verbosity, None if old is None else (str(against), old))
    if output is not None:
        _keep(run, output)
    if plot is not None:
        from ..bench.plot import picture
        from ..files import replaced

        with replaced(plot) as path:
            path.write_text(picture(*((None, run) if suite == "models" else (run,))), "utf-8")
    wrong = [row for row in rows if not row.ok]
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
    from dataclasses import replace

    from .. import Device
    from ..bench import cases, formats
    from ..bench import peers as peers_module
    from ..bench.case import AS_IT_IS, AS_MANY_BYTES, SCALES, Recipe
    from ..bench.rows import copy_bandwidth, run_recipe, suitable_scale
    from ..errors import ValidationError
    from ..runtime import clock, traits

    first, *rest = cases.SUITES[suite]
    if traits.emulation():
        rest = [replace(recipe, goals=(recipe.without_units,)) for recipe in rest]
    if not any(_matches(recipe, asked.pattern) for recipe in (first, *rest)):
        raise ValidationError(f"--filter: no case of this suite has {asked.pattern!r} in its "
                              "operator or types")
    device = Device(asked.adapter)
    names = peers_module.USUAL if asked.peers == _USUAL else asked.peers
    libraries = peers_module.choose(names, device.adapter)
    click.get_current_context().with_resource(clock.held(device.adapter))
    loop = asked.loop
    scale = SCALES[scale_name] if scale_name else suitable_scale(device, cases.COPY)

    (copy_row,) = run_recipe(device, first, loop, scale, libraries)
    copy = copy_bandwidth(copy_row)
    measured = {first: [copy_row.with_copy(copy)]}
    if model is not None:
        timed = [copy_row.with_copy(copy)]
        timed += [row.with_copy(copy) for row in _model(device, loop, model)]
    else:
        chosen = [recipe for recipe in rest if _matches(recipe, asked.pattern)]
        # What goals name is measured, even where it is not shown.
        compared = [against for recipe in chosen for against, _ in recipe.goals
                    if isinstance(against, Recipe)]
        for recipe in _shown([*dict.fromkeys([*chosen, *compared])]):
            rows = run_recipe(device, recipe, loop, scale, libraries)
            measured[recipe] = [row.with_copy(copy) for row in rows]
        others = {recipe: rows[0] for recipe, rows in measured.items() if rows}
        copies = {row.bytes: cases.copy_of(row.bytes)
                  for recipe in chosen for row in measured[recipe]
                  for against, _ in recipe.goals if against == AS_MANY_BYTES and row.ok}
        copy_of = {}
        for nbytes, recipe in zip(copies, _shown([*copies.values()])):
            (row,) = run_recipe(device, recipe, loop, scale, libraries)
            copy_of[nbytes] = copy_bandwidth(row)
        shown = ([first] if _matches(first, asked.pattern) else []) + chosen
        wanted = [recipe for recipe in shown
                  if any(against == AS_IT_IS for against, _ in recipe.goals)]
        as_it_is = _as_it_is(device.adapter, wanted, loop, scale) if wanted else {}
        timed = [
            row.judged(recipe, others, copy_of, own)
            for recipe in shown
            for row, own in zip(measured[recipe], as_it_is.get(recipe, itertools.repeat(None)))
        ]
    return formats.document(timed, device, copy, asked.command), timed, formats.as_table(timed)


def _as_it_is(
    adapter: Adapter, recipes: Sequence[Recipe], loop: Loop, scale: Scale
) -> dict[Recipe, list[BenchRow]]:
    """The rows of recipes on a device that no class is emulated on."""
    from .. import Device
    from ..bench.rows import run_recipe
    from ..runtime import traits

    with traits.emulated(""):
        device = Device(adapter)
    rows = {recipe: [*run_recipe(device, recipe, loop, scale)] for recipe in _shown(recipes)}
    device.close()
    return rows


def _whole_models(
    asked: _Asked, seconds: float, output: Path | None
) -> tuple[dict[str, Any], Sequence[Any], str]:
    """The run, its rows and its table, of whole models."""
    from tqdm import tqdm

    from ..bench import architectures, formats, models
    from ..errors import ValidationError

    kinds = [kind for kind in architectures.kinds()
             if asked.pattern.lower() in f"{kind.name} {kind.types}".lower()]
    if not kinds:
        raise ValidationError(f"--filter: no model has {asked.pattern!r} in its name or type")
    adapter = _held(asked)
    names = models.USUAL if asked.peers == _USUAL else asked.peers
    bench = models.Bench(adapter, names, asked.loop)
    about = formats.about(adapter, asked.command)
    with tqdm(total=len(kinds), unit="model", disable=None, leave=False) as bar:
        return _collected(bench, bench.run(kinds, seconds), about, output, models.as_table,
                          lambda _: bar.update())


def _held(asked: _Asked) -> Adapter:
    """The adapter that is asked for, whose clock is held until the command ends."""
    from ..runtime import adapters, clock

    adapter = adapters.choose(asked.adapter)
    click.get_current_context().with_resource(clock.held(adapter))
    return adapter


def _collected(
    bench: Any, measured: Iterable[Any], about: dict[str, Any], output: Path | None,
    as_table: Callable[[Sequence[Any]], str], after: Callable[[Any], object] = lambda row: None,
) -> tuple[dict[str, Any], Sequence[Any], str]:
    """The run, its rows and its table. What there is of it is kept meanwhile."""
    rows: list[Any] = []

    def run() -> dict[str, Any]:
        return {**about, "left_out": bench.left_out, "models": [row.record() for row in rows]}

    for row in measured:
        rows.append(row)
        after(row)
        if output is not None:
            _keep(run(), output)
    return run(), rows, "\n".join([as_table(rows), *bench.left_out])


def _generation(
    asked: _Asked, seconds: float, output: Path | None
) -> tuple[dict[str, Any], Sequence[Any], str]:
    """The run, its rows and its table, of decoders."""
    from ..bench import formats, generation
    from ..errors import ValidationError

    names = [name for name in generation.MODELS if asked.pattern.lower() in name.lower()]
    if asked.pattern in generation.SMALL:
        names = [asked.pattern]
    if not names:
        raise ValidationError(f"--filter: no model has {asked.pattern!r} in its name, among "
                              f"{', '.join((*generation.MODELS, *generation.SMALL))}")
    adapter = _held(asked)
    bench = generation.GenerationBench(
        str(adapter.index), generation.USUAL if asked.peers == _USUAL else asked.peers)

    def tell(row: Any) -> None:
        click.echo(f"{row.name}: {row.values if row.rate is None else f'{row.rate:.1f}'} "
                   f"{ {name: peer.rate for name, peer in row.peers.items()} or ''}", err=True)

    return _collected(bench, bench.run(names, seconds), formats.about(adapter, asked.command),
                      output, generation.as_table, tell)


def _networks(
    scale_name: str | None, asked: _Asked, seconds: float, output: Path | None
) -> tuple[dict[str, Any], Sequence[Any], str]:
    """The run, its rows and its table, of PyTorch's networks."""
    import importlib.util

    from ..bench import formats
    from ..errors import UnsupportedError, ValidationError

    if importlib.util.find_spec("torch") is None:
        raise UnsupportedError("--suite torch measures PyTorch: pip install 'kompute-dml[torch]'")
    from ..bench import pytorch

    names = [name for name in pytorch.MODELS if asked.pattern.lower() in name]
    if not names:
        raise ValidationError(f"--filter: no network has {asked.pattern!r} in its name, among "
                              f"{', '.join(pytorch.MODELS)}")
    adapter = _held(asked)
    bench = pytorch.NetworkBench(
        ",".join(pytorch.PEERS) if asked.peers == _USUAL else asked.peers, scale_name)
    return _collected(bench, bench.run(names, seconds), formats.about(adapter, asked.command),
                      output, pytorch.as_table)


def _tell(
    run: dict[str, Any], rows: Sequence[Any], table: str, layout: str, verbosity: int,
    against: tuple[str, Any] | None,
) -> None:
    """Print a run."""
    import json

    from ..bench import baseline, formats
    from ..bench.timing import report

    for row in rows if verbosity else ():
        if row.timings is not None:
            click.echo("\n".join(report(row.name, row.timings, verbosity)), err=True)
    if layout == "json":
        moved = {} if against is None else {
            "against": baseline.against(baseline.records(run), against[1])}
        click.echo(json.dumps({**run, **moved}, indent=2))
        return
    if layout == "csv":
        click.echo(formats.as_csv(rows))
        return
    click.echo(f"Running on '{run['device']}'")
    click.echo(table)
    for line in formats.summary(rows):
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


def _matches(recipe: Recipe, pattern: str) -> bool:
    return pattern.lower() in f"{recipe.operator} {recipe.types}".lower()


def _shown(recipes: Sequence[Recipe]) -> Iterator[Recipe]:
    """The recipes, with a progress bar on a terminal."""
    from tqdm import tqdm

    from ..bench.rows import short

    with tqdm(recipes, unit="case", disable=None, leave=False) as bar:
        for recipe in bar:
            bar.set_description(f"{short(recipe.operator)} {recipe.types}")
            yield recipe


def _model(device: Device, loop: Loop, path: Path) -> Iterator[Any]:
    """The rows of a model's dispatches."""
    from ..bench.case import Case, product_operations, touched_bytes
    from ..bench.rows import make_row
    from ..bench.timing import Loop
    from ..desc import TensorDesc
    from ..dxdispatch import Runner, load
    from ..dxdispatch.model import DispatchCommand

    runner = Runner(load(path), device, loop=loop or Loop(iterations=11, repeat=10))
    for command in runner.model.commands:
        if not isinstance(command, DispatchCommand):
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

    documents = [baseline.load(path) for path in kept]
    runs = [run for run in documents if "rows" in run]
    models = [run for run in documents if "models" in run]
    if plot is None or len(runs) > 1 or len(models) > 1:
        raise ValidationError("--kept: expected --plot, and at most one run of operators and one "
                              "of models")
    with replaced(plot) as path:
        path.write_text(picture(runs[0] if runs else None, *models), "utf-8")
