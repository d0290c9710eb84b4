"""ONNX's own node tests, for every node that the mapping table claims.

    python tests/onnx/conformance.py [OPERATOR ...]      prints passed / claimed / all
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from kompute_dml.device import Device, default_device
from kompute_dml.errors import DmlError
from kompute_dml.onnx.backend import PreparedModel
from kompute_dml.onnx.fusion import fuse
from kompute_dml.onnx.model import read
from kompute_dml.onnx.placement import place

_BFLOAT16 = 2.0**-8
"""One unit of BFLOAT16."""
EXCLUDED: dict[str, str] = {
    "test_attention_4d_causal_fp16_expanded":
        "two elements differ by one unit of FLOAT16, whose sums are rounded at other places",
    **dict.fromkeys(("test_dft_inverse", "test_dft_inverse_opset19"),
        "ten elements are 0, where onnx's own transform rounds to 2e-7 of a sum of up to 500"),
    **dict.fromkeys(("test_bernoulli_double_expanded", "test_bernoulli_seed_expanded"),
        "random numbers are RANDOM_GENERATOR's, not those of onnx's reference"),
}
"""Tests that claimed nodes cannot pass, and why."""


@dataclass
class Report:
    all: int = 0
    claimed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    excluded: list[str] = field(default_factory=list)

    @property
    def passed(self) -> int:
        return len(self.claimed) - len(self.failed) - len(self.excluded)

    def __str__(self) -> str:
        return f"{self.passed} passed / {len(self.claimed)} claimed / {self.all} in all"


def run(
    device: Device, operators: Collection[str] | None = None, words: Collection[str] = ("",),
    part: slice = slice(None), *, computes: bool = True,
) -> Report:
    """Run the tests whose nodes all have a row: all, or those of some operators, whose names have
    one of some words, and of these a part. Without ``computes`` they are claimed only."""
    report = Report()
    for case in _cases(operators)[part]:
        if not any(word in case.name for word in words):
            continue
        report.all += 1
        try:
            graph = read(case.model)
            if any(v.dtype is None for v in (*graph.inputs, *graph.outputs)):
                continue
        except DmlError:
            continue
        nodes = fuse(graph)
        if place(nodes, device).reasons:
            continue
        report.claimed.append(case.name)
        if case.name in EXCLUDED:
            report.excluded.append(case.name)
            continue
        if not computes:
            continue
        try:
            _check(case, PreparedModel(graph, device))
        except (DmlError, AssertionError) as error:
            report.failed[case.name] = str(error).strip()
    return report


def _cases(operators: Collection[str] | None) -> list[Any]:
    """onnx builds the tests of an operator when it imports the operator's module."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if operators is None:
            return node.collect_testcases(None)
        wanted = {name.lower() for name in operators}
        for module in pkgutil.iter_modules(node.__path__):
            if module.name.replace("_", "") in wanted:
                importlib.import_module(f"{node.__name__}.{module.name}")
    return [c for c in node._NodeTestCases if c.model.graph.node[0].op_type in operators]


def _check(case: Any, model: PreparedModel) -> None:
    for inputs, expected in case.data_sets:
        results = model.run([_array(x) for x in inputs])
        for got, wanted in zip(results, map(_array, expected), strict=True):
            np.testing.assert_equal((got.dtype, got.shape), (wanted.dtype, wanted.shape))
            # onnx rounds what BFLOAT16 operators are made of, too, and compares as for FLOAT32.
            room = _BFLOAT16 if got.dtype.name == "bfloat16" else 0.0
            np.testing.assert_allclose(got, wanted, max(case.rtol, room), max(case.atol, room))


def _array(value: Any) -> np.ndarray:
    is_proto = isinstance(value, onnx.TensorProto)
    return onnx.numpy_helper.to_array(value) if is_proto else np.asarray(value)


if __name__ == "__main__":
    result = run(default_device(), sys.argv[1:] or None)
    print(result)
    for name, why in result.failed.items():
        print(f"FAILED {name}: {why}")
    raise SystemExit(bool(result.failed))
