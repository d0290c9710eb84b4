"""The implemented operators as data, for ``kompute-dml ops`` and the documents."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from . import operators as _operators  # noqa: F401  (registers them)
from . import spec
from .operators.base import Definition, definitions
from .runtime.shader_library import shaders
from .spec import FeatureLevel


@dataclass(frozen=True)
class Row:
    """One implemented operator."""

    operator: str
    function: str
    introduced: str
    dimension_counts: tuple[int, int]
    data_types: tuple[str, ...]
    """Data types of the first output at the newest feature level."""
    in_place: bool
    variants: tuple[str, ...]
    """Compiled shader variants that it may choose from."""
    page: str


def _row(definition: Definition) -> Row:
    table = definition.spec.support_at(FeatureLevel.FL_6_4)
    assert table is not None  # every level up to 6_4 is in the table
    # The first input, or the first output without inputs.
    tensor = (definition.spec.inputs or definition.spec.outputs)[0]
    support = table[tensor.name]
    compiled = shaders()
    return Row(
        operator=definition.name,
        function=definition.function_name,
        introduced=str(definition.spec.introduced),
        dimension_counts=support.dimension_counts,
        data_types=tuple(str(d) for d in support.data_types),
        in_place=definition.in_place,
        variants=tuple(v for s in definition.shaders for v in compiled.get(s, ())),
        page=definition.spec.page,
    )


def rows() -> list[Row]:
    """Every implemented operator of DirectML's, by name."""
    return [_row(d) for name, d in sorted(definitions().items())
            if name not in spec.extension_names()]


def extensions() -> list[Row]:
    """The operators that DirectML does not have, by name."""
    return [_row(definitions()[name]) for name in sorted(spec.extension_names())]


def missing() -> list[str]:
    """DirectML's operators that are not implemented."""
    return [n for n in spec.operator_names() if n not in definitions()]


def markdown_table(shown: Sequence[Row] | None = None) -> str:
    """A support table of docs/operators.md, without ``shown`` that of DirectML's operators."""
    lines = [
        "| operator | function | since level | dimensions | data types | in place |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows() if shown is None else shown:
        low, high = r.dimension_counts
        dimensions = f"{low} to {high}" if low < high else f"{low}"
        lines.append(
            f"| {r.operator.removeprefix('DML_OPERATOR_')} | `{r.function}` | {r.introduced} "
            f"| {dimensions} | {' '.join(r.data_types)} | {'yes' if r.in_place else 'no'} |"
        )
    return "\n".join(lines)


def counts() -> str:
    """The README's sentence with the numbers of operators."""
    total = len(spec.operator_names())
    absent = [n.removeprefix("DML_OPERATOR_") for n in missing()]
    text = f"{total - len(absent)} of DirectML's {total} operators are here."
    if absent:
        text += f" Missing are {', '.join(absent)}."
    return "\n".join(textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False))
