"""The package's ordinary case of each operator.

The benchmark times these cases, and the self-test computes them. The other modules add what only
tests need: more sizes, layouts, types and values, and references that are exact for each type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import Arrays, Case, ErrorCase, Types, Values
from kompute_dml.cases import CASES as ORDINARY
from kompute_dml.cases import TINY, OperatorCase
from kompute_dml.cases.case import Given
from kompute_dml.operators.base import OperatorDesc, definitions
from layouts import PACKED


class _LastOperator(dml.Graph):
    """Notes the last operator that a function adds, and its tensors."""

    desc: OperatorDesc
    tensors: Mapping[str, dml.Tensor]

    def add(self, desc: OperatorDesc, tensors: Mapping[str, dml.Tensor]) -> None:
        self.desc, self.tensors = desc, tensors
        super().add(desc, tensors)


def _values(x: Given) -> Values:
    return lambda rng, data_type, sizes: replace(x, sizes=sizes).array(rng)


def _ordinary(name: str) -> Case:
    c: OperatorCase = ORDINARY[name](TINY)
    function = getattr(dml, definitions()[name].function_name)
    with _LastOperator() as graph:
        inputs = [graph.input(x.sizes if isinstance(x, Given) else x.shape, np.dtype(x.dtype))
                  for x in c.inputs]
        c.call(function, *inputs, **c.arguments,
               out=None if c.out is None else graph.empty(c.out, c.out_type))
    desc, tensors = graph.desc, graph.tensors
    fields = [f.snake for f in desc.operator.slots(desc)
              if f.kind == "input" and f.snake in tensors]
    first = {id(tensors[field].allocation): field for field in reversed(fields)}
    # Functions of truth make 0 and 1 of their inputs first.
    arguments = [first.get(id(x.allocation), fields[i]) for i, x in enumerate(inputs)]
    sources = dict(zip(arguments, c.inputs))

    def reference(x: Arrays, attributes: Mapping[str, Any], types: Types) -> tuple[Any, ...]:
        return c.expected(*(x[field] for field in arguments))

    def room(x: Arrays, attributes: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple(c.room * float(np.abs(y).max()) for y in reference(x, attributes, {}))

    def call(x: Mapping[str, Any], attributes: Mapping[str, Any], types: Types, out: Any) -> Any:
        return c.call(function, *(x[field] for field in arguments), **c.arguments, out=out)

    values = {field: sources[first[id(tensors[field].allocation)]] for field in fields}
    return Case(
        name.removeprefix("DML_OPERATOR_"), "ordinary",
        {field: t.sizes for field, t in tensors.items()}, reference, call,
        attributes={f.snake: getattr(desc, f.snake)
                    for f in desc.operator.spec.fields if not f.is_tensor},
        values={field: _values(x) if isinstance(x, Given) else x for field, x in values.items()},
        types=[{field: t.data_type for field, t in tensors.items()}], layouts=(PACKED,),
        levels=("descriptor", "function"), room=room)


CASES = [_ordinary(name) for name in ORDINARY]
ERRORS: list[ErrorCase] = []
