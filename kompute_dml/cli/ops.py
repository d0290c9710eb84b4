"""``kompute-dml ops``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..operators.base import Definition


@click.command(short_help="List the operators.")
@click.option("--json", "as_json", is_flag=True, help="Print per tensor and level, as JSON.")
@click.option("--missing", is_flag=True, help="List DirectML's operators that are not here.")
def ops(as_json: bool, missing: bool) -> None:
    """List the operators: functions, feature levels, dimensions, data types and shaders."""
    from .. import spec
    from ..operators.base import definitions

    implemented = definitions()
    if missing:
        names = [n for n in spec.operator_names() if n not in implemented]
        if as_json:
            click.echo(json.dumps(names, indent=2))
        else:
            for name in names:
                entry = spec.operator(name)
                click.echo(f"{name}  (feature level {entry.introduced}, {entry.family})")
            click.echo(f"{len(names)} of DirectML's {len(spec.operator_names())} operators are "
                       "not here")
        return
    records = [_record(definition) for definition in implemented.values()]
    if as_json:
        click.echo(json.dumps(records, indent=2))
        return
    from tabulate import tabulate

    click.echo(tabulate(
        [_row(r) for r in records],
        headers=("operator", "function", "since", "dimensions", "data types",
                 "shaders, variants of each"),
        tablefmt="plain", disable_numparse=True,
    ))
    beyond = len(spec.extension_names())
    click.echo(f"{len(records) - beyond} of DirectML's {len(spec.operator_names())} operators, and "
               f"{beyond} beyond")


def _record(definition: Definition) -> dict[str, Any]:
    from ..runtime.shader_library import shaders

    built = shaders()
    entry = definition.spec
    return {
        "operator": definition.name,
        "function": definition.function_name,
        "introduced": str(entry.introduced),
        "in_place": definition.in_place,
        "page": entry.page,
        "support": [
            {
                "feature_level": str(level),
                "tensors": {
                    name: {
                        "data_types": [str(d) for d in tensor.data_types],
                        "dimension_counts": list(tensor.dimension_counts),
                    }
                    for name, tensor in tensors.items()
                },
            }
            for level, tensors, _ in entry.support
        ],
        "variants": {s: list(built.get(s, ())) for s in definition.shaders},
    }


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    from ..dtypes import DataType

    newest = record["support"][0]["tensors"].values()
    counts = [c for tensor in newest for c in tensor["dimension_counts"]]
    named = {name for tensor in newest for name in tensor["data_types"]}
    types = [d.family for d in DataType if d.name in named]
    return (
        record["operator"], record["function"], record["introduced"],
        f"{min(counts)} to {max(counts)}", " ".join(types),
        ", ".join(f"{shader} {len(built)}" for shader, built in record["variants"].items()),
    )
