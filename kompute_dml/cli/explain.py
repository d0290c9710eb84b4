"""``kompute-dml explain``: which nodes of an ONNX model run on the device."""

from __future__ import annotations

from typing import Any

import click

from . import options
from .waiting import waiting


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@click.option("--claim", default="auto", show_default=True,
              help="As the provider's option: auto, all, or names of operators.")
@options.adapter
@click.option("--feature-level", metavar="LEVEL", help="DirectML's, such as 6.4.")
@options.as_json
def explain(model: str, as_json: bool, **given: Any) -> None:
    """Print where each node of an ONNX model runs, and why."""
    import json

    from .. import onnxruntime

    if not as_json:
        with waiting("Compiling"), onnxruntime.own_errors(model):
            onnxruntime.explain(model, **given)
        return
    with waiting("Compiling"), onnxruntime.own_errors(model):
        found = onnxruntime.decided(model, **given)
    click.echo(json.dumps([
        {"operator": d.operator, "node": d.node, "where": d.where, "why": d.why}
        for d in found], indent=2))
