"""The errors that kompute_dml/spec/accuracy.md states are not exceeded."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib import resources
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def _benchmark() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "accuracy.py"
    spec = importlib.util.spec_from_file_location("accuracy_benchmark", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _stated() -> dict[str, tuple[float, float]]:
    text = (resources.files("kompute_dml") / "spec" / "accuracy.md").read_text("utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|", text, re.MULTILINE)
    return {name: (float(single), float(half)) for name, single, half in rows}


_MODULE, _BOUNDS = _benchmark(), _stated()


def test_every_function_is_stated() -> None:
    assert {f.name for f in _MODULE.FUNCTIONS} == set(_BOUNDS)


@pytest.mark.parametrize("function", _MODULE.FUNCTIONS, ids=lambda f: f.name)
@pytest.mark.parametrize("data_type", [np.float32, np.float16], ids=["f32", "f16"])
def test_error_in_ulp(function: object, data_type: type[np.floating]) -> None:
    worst, at = _MODULE.error(function, data_type, samples=1 << 15)
    bound = _BOUNDS[function.name][data_type is np.float16]  # type: ignore[attr-defined]
    assert worst <= bound, f"{worst} ulp at {at}"
