"""A ScaleBias before an operator, and a fused activation after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from cases.elementwise import CASES as _PLAIN
from cases.elementwise import case, converted
from harness import Arrays, Case, ErrorCase, Types


def _behind_a_sum(c: Case) -> list[Case]:
    """ADD1 with the activation of a case."""
    definition = c.definition
    if c.name != "line" or not definition.spec.fusable:
        return []

    def compute(a: np.ndarray, b: np.ndarray, fused_activation: Any) -> Any:
        x = {"input_tensor": (a + b).astype(np.float32)}
        return c.reference(x, c.attributes, {"output_tensor": dml.DataType.FLOAT64})

    name = definition.function_name.removeprefix("activation_").replace("_", "-")
    return case("ELEMENT_WISE_ADD1", compute, "function", label=name,
                fused_activation=definition.desc_class(**c.attributes))


_SCALE_BIAS = dml.ScaleBias(0.5, 1.25)


def _with_scale_bias(c: Case) -> list[Case]:
    """The operator with ScaleBias ``x / 2 + 1.25``, in every type."""
    takes = any(f.type == "SCALE_BIAS" for f in c.definition.spec.fields)
    if not takes or len(c.sizes[c.output]) != 1:
        return []
    types = [t for t in c.all_types() if _computes_as_it_is_typed(c, t)]

    def reference(x: Arrays, given: Mapping[str, Any], types: Types) -> Any:
        first = x["input_tensor"]
        wide = first.dtype if first.dtype == np.float64 else np.dtype(np.float32)
        scaled = first.astype(wide) * wide.type(_SCALE_BIAS.scale) + wide.type(_SCALE_BIAS.bias)
        if first.dtype.kind != "f":
            scaled = converted(scaled, first.dtype)
        rest = {k: v for k, v in given.items() if k != "scale_bias"}
        return c.reference({**x, "input_tensor": scaled}, rest, types)

    name = f"{c.name}-scale-bias"
    # The sum is rounded, so operators that move bits need a tolerance, too.
    compare = "stepwise" if c.compare == "bits" else c.compare
    return [dataclasses.replace(c, name=name, reference=reference, types=types, compare=compare,
                                levels=("function",),
                                attributes={**c.attributes, "scale_bias": _SCALE_BIAS})]


def _computes_as_it_is_typed(c: Case, types: Types) -> bool:
    """False for powers of integers, which are computed in float32. They have their own test."""
    if dml.DataType.FLOAT64 in types.values():
        return "shaderFloat64" in dml.default_device().features
    kinds = {types[n].is_float for n in c.inputs}
    return kinds == {True} or (kinds == {False} and "CONSTANT_POW" not in c.operator)


CASES = [made for c in _PLAIN for made in (*_behind_a_sum(c), *_with_scale_bias(c))]
ERRORS: list[ErrorCase] = []
