"""Runs lines that people type first on arrays of NumPy's and on tensors, and compares them.

``PYTHONPATH=tests python tests/first_hour.py FILE`` runs the lines of a file and prints those that
are not as expected. In a line ``xp`` is NumPy or kompute_dml, ``np`` NumPy, ``dml`` kompute_dml.
``A`` is 4 x 5, ``B`` 5 x 3, ``C3`` 2 x 3 x 4, ``S`` 4 x 4 and positive definite, ``V`` a vector of
6 and ``I`` integers of 3 x 4. A line that ends in ``-> text`` has no counterpart in NumPy: its
result has this text. One that ends in ``!! words`` is refused with a message that has these words.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import io
import json
import math
import pickle
import re
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kompute_dml as dml

OK, DIFFERS, REFUSED, CONFUSING, WRONG = "ok", "differs", "refused", "confusing", "wrong"
_NARROW = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(complex): np.dtype(np.complex64)}


class Outcome(NamedTuple):
    """What became of a line."""

    kind: str
    detail: str = ""


def arrays() -> dict[str, Any]:
    """The names of the lines, as arrays."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(4, 5)).astype(np.float32)
    return {
        "A": a, "B": rng.normal(size=(5, 3)).astype(np.float32),
        "C3": rng.normal(size=(2, 3, 4)).astype(np.float32),
        "S": (a @ a.T + np.eye(4)).astype(np.float32), "V": np.float32([3, 1, 2, 5, 4, 1]),
        "I": np.arange(12).reshape(3, 4) - 3}


def _names(xp: Any, folder: str, line: str) -> dict[str, Any]:
    """What a line may name; of the arrays only those that it does name."""
    named = set(re.findall(r"\w+", line))
    made = {k: dml.tensor(v) if xp is dml else v for k, v in arrays().items() if k in named}
    return {**made, "xp": xp, "np": np, "dml": dml, "copy": copy, "json": json, "math": math,
            "pickle": pickle, "folder": folder}


def _run(line: str, names: dict[str, Any]) -> Any:
    """The value of the last statement of a line; what it raises."""
    *before, last = line.split("; ")
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), np.errstate(
                all="ignore"):
            warnings.simplefilter("ignore")
            if before:
                exec("\n".join(before), names)
            try:
                code = compile(last, "<line>", "eval")
            except SyntaxError:
                exec(last, names)
                return None
            return eval(code, names)
    except Exception as error:
        return error


def _plain(value: Any) -> Any:
    """Tensors and scalars as arrays, also inside of tuples and lists."""
    if isinstance(value, dml.Tensor):
        return value.numpy()
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return np.asarray(value) if isinstance(value, (np.generic, np.ndarray)) else value


def _difference(ours: Any, numpys: Any, drawn: bool) -> Outcome:
    """``drawn`` values are random: only sizes and types are compared."""
    if isinstance(numpys, list):
        if not isinstance(ours, list) or len(ours) != len(numpys):
            return Outcome(WRONG, f"{ours!r} for {numpys!r}")
        found = [_difference(a, b, drawn) for a, b in zip(ours, numpys)]
        return next((f for f in found if f.kind != OK), Outcome(OK))
    if isinstance(numpys, np.dtype):
        same = ours in (numpys, _NARROW.get(numpys, numpys))
        return Outcome(OK if same else DIFFERS, f"{ours} for {numpys}")
    number = (np.ndarray, bool, int, float, complex)
    if not isinstance(numpys, number):
        return Outcome(OK) if isinstance(ours, type(numpys)) or ours == numpys else Outcome(
            DIFFERS, f"{type(ours).__name__} for {type(numpys).__name__}")
    if not isinstance(ours, number):
        return Outcome(WRONG, f"{ours!r} for {numpys!r}")
    a, b = np.asarray(ours), np.asarray(numpys)
    kind = _NARROW.get(b.dtype, b.dtype)
    if a.shape != b.shape:
        return Outcome(DIFFERS if a.size == b.size and np.allclose(a.ravel(), b.ravel()) else WRONG,
                       f"sizes {list(a.shape)} for {list(b.shape)}")
    close = drawn or b.dtype.kind not in "biufc" or np.allclose(
        a, b, rtol=2e-5, atol=2e-6, equal_nan=True)
    if not close:
        return Outcome(WRONG, f"{a} for {b}")
    if isinstance(numpys, np.ndarray) and _NARROW.get(a.dtype, a.dtype) != kind:
        return Outcome(DIFFERS, f"{a.dtype} for {b.dtype}")
    return Outcome(OK)


def _says_a_way_out(error: Exception) -> bool:
    return isinstance(error, (dml.DmlError, AttributeError)) and any(
        word in str(error) for word in ("; use ", "; did you mean", "expected", "; "))


def outcome(line: str) -> Outcome:
    """What becomes of a line on tensors, beside NumPy's arrays."""
    with tempfile.TemporaryDirectory() as folder:
        line, arrow, text = line.partition(" -> ")
        line, refusal, words = line.partition(" !! ")
        ours = _run(line, _names(dml, folder, line))
        if refusal:
            if not isinstance(ours, Exception):
                return Outcome(DIFFERS, f"it gives {ours!r}")
            return Outcome(OK) if words in str(ours) else Outcome(CONFUSING, str(ours))
        if arrow:
            if isinstance(ours, Exception):
                return Outcome(REFUSED if _says_a_way_out(ours) else CONFUSING, repr(ours))
            return Outcome(OK) if text in ("", str(ours)) else Outcome(WRONG, str(ours))
        numpys = _run(line, _names(np, folder, line))
        if isinstance(ours, Exception):
            if isinstance(numpys, Exception) and not isinstance(numpys, (NameError,
                                                                         AttributeError)):
                return Outcome(OK)
            return Outcome(REFUSED if _says_a_way_out(ours) else CONFUSING,
                           f"{type(ours).__name__}: {ours}")
        if isinstance(numpys, Exception):
            alone = isinstance(numpys, (NameError, AttributeError, TypeError)) and "dml" in line
            return Outcome(OK) if alone or isinstance(numpys, AttributeError) else Outcome(
                DIFFERS, f"NumPy: {numpys!r}")
        return _difference(_plain(ours), _plain(numpys), "random" in line)


def lines(text: str) -> list[str]:
    """The lines of a list, without headings and remarks."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def main() -> None:
    results = [(line, outcome(line)) for line in lines(Path(sys.argv[1]).read_text("utf-8"))]
    for line, (kind, detail) in results:
        if kind != OK:
            print(f"{kind:9} {line}\n          {' '.join(detail.split())[:300]}")
    print(dict(collections.Counter(kind for _, (kind, _) in results)))


if __name__ == "__main__":
    main()
