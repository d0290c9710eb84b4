"""Lines that people type first, on tensors and on NumPy's arrays."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import first_hour
import kompute_dml as dml

pytestmark = pytest.mark.values

_TEXT = (Path(__file__).parents[1] / "first_hour.txt").read_text("utf-8")
_PARTS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", _TEXT, re.MULTILINE | re.DOTALL))


def test_the_list_is_long_enough() -> None:
    assert len(first_hour.lines(_TEXT)) >= 349


@pytest.mark.parametrize("part", _PARTS)
def test_lines_do_as_expected(part: str, device: dml.Device) -> None:
    results = {line: first_hour.outcome(line) for line in first_hour.lines(_PARTS[part])}
    assert {line: r for line, r in results.items() if r.kind != first_hour.OK} == {}


@pytest.mark.parametrize("line, kind", [
    ("A.sum().shape if xp is np else (1,)", first_hour.WRONG),
    ("A + (xp is np)", first_hour.WRONG),
    ("A if xp is np else A.astype('float16').astype('float64') * 0 + A.astype('int32')",
     first_hour.WRONG),
    ("A if xp is np else A.reshape(5, 4).T", first_hour.WRONG),
    ("A[None] if xp is np else A", first_hour.DIFFERS),
    ("V.astype(int) if xp is np else V", first_hour.DIFFERS),
    ("np.frexp(A)", first_hour.REFUSED), ("A if xp is np else A[0].qwerty", first_hour.CONFUSING),
    ("A.sum() -> 7", first_hour.WRONG), ("A.sum() !! no sum", first_hour.DIFFERS),
])
def test_what_is_not_as_expected_is_told(line: str, kind: str, device: dml.Device) -> None:
    """The comparison itself."""
    assert first_hour.outcome(line).kind == kind
