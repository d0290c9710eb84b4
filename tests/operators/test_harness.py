"""The harness finds the effects of a wrong shader or plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import harness
import kompute_dml as dml
from harness import Case, Run, check
from layouts import PACKED, SLICED

FLOATS = {"input_tensor": dml.DataType.FLOAT32, "output_tensor": dml.DataType.FLOAT32}
LEVELS = ("function", "descriptor")


def identity(values: np.ndarray, level: str = "function") -> Run:
    """A copy of rows with gaps around them."""
    case = Case(
        "ACTIVATION_IDENTITY", "trial", dict.fromkeys(FLOATS, values.shape),
        lambda inputs, attributes, types: inputs["input_tensor"],
        lambda x, attributes, types, out: dml.activation_identity(x["input_tensor"], out=out),
        values={"input_tensor": values}, compare="stepwise",
    )
    return Run(case, FLOATS, dict.fromkeys(FLOATS, SLICED), level)


def spoiled(
    monkeypatch: pytest.MonkeyPatch, level: str, spoil: Callable[[dict[str, np.ndarray]], None]
) -> None:
    """Let ``spoil`` change the operands' memory after a run."""
    plain = harness._LEVELS[level]

    def run(run: Run, device: Any, operands: Any, *more: Any) -> dict[int, np.ndarray]:
        after = {key: base.copy() for key, base in plain(run, device, operands, *more).items()}
        spoil({name: after[id(operand)] for name, operand in operands.items()})
        return after

    monkeypatch.setitem(harness._LEVELS, level, run)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("wrong", "words"), [
    (1.0, ""), (np.nextafter(np.float32(1), np.float32(2)), "output_tensor: more than 0 ulp off"),
    (np.nan, "output_tensor: NaN differs"), (np.inf, "output_tensor: infinity differs"),
])
def test_a_wrong_result_is_found(
    level: str, wrong: float, words: str, monkeypatch: pytest.MonkeyPatch, device: dml.Device,
    rng: np.random.Generator,
) -> None:
    def spoil(after: dict[str, np.ndarray]) -> None:
        after["output_tensor"][2, 3] = wrong

    spoiled(monkeypatch, level, spoil)
    run = identity(np.ones((3, 5), np.float32), level=level)
    if words:
        with pytest.raises(AssertionError, match=words):
            check(run, device, rng)
    else:
        check(run, device, rng)


@pytest.mark.parametrize("level", LEVELS)
def test_a_zero_of_the_wrong_sign_is_found(
    level: str, monkeypatch: pytest.MonkeyPatch, device: dml.Device, rng: np.random.Generator
) -> None:
    def spoil(after: dict[str, np.ndarray]) -> None:
        after["output_tensor"][1, 1] = -0.0

    spoiled(monkeypatch, level, spoil)
    with pytest.raises(AssertionError, match="more than 0 ulp off in 1 of 15"):
        check(identity(np.zeros((3, 5), np.float32), level=level), device, rng)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("name", "at"), [
    ("output_tensor", (0, 0)), ("output_tensor", (1, 6)), ("output_tensor", (4, 6)),
    ("input_tensor", (0, 0)), ("input_tensor", (2, 3)),
])
def test_a_byte_that_changed_beside_the_result_is_found(
    level: str, name: str, at: tuple[int, int], monkeypatch: pytest.MonkeyPatch,
    device: dml.Device, rng: np.random.Generator,
) -> None:
    def spoil(after: dict[str, np.ndarray]) -> None:
        after[name].view(np.uint8)[at[0], 4 * at[1]] ^= 1

    spoiled(monkeypatch, level, spoil)
    with pytest.raises(AssertionError, match=f"outside of the result, .* around {name}"):
        check(identity(np.ones((3, 5), np.float32), level=level), device, rng)


@pytest.mark.parametrize("at", [0, -1])
def test_a_byte_that_changed_between_the_operands_is_found(
    at: int, monkeypatch: pytest.MonkeyPatch, device: dml.Device, rng: np.random.Generator
) -> None:
    read = dml.Buffer.read

    def spoiled_read(buffer: dml.Buffer, *arguments: Any) -> np.ndarray:
        result = read(buffer, *arguments).copy()
        result[at] ^= 1
        return result

    monkeypatch.setattr(dml.Buffer, "read", spoiled_read)
    with pytest.raises(AssertionError, match="bytes between the operands changed"):
        check(identity(np.ones((3, 5), np.float32), level="descriptor"), device, rng)


def test_another_tensor_than_out_is_found(device: dml.Device, rng: np.random.Generator) -> None:
    run = identity(np.ones((3, 5), np.float32))
    fresh = dataclasses.replace(
        run.case, call=lambda x, attributes, types, out: dml.activation_identity(x["input_tensor"]))
    with pytest.raises(AssertionError, match="it must return out"):
        check(Run(fresh, FLOATS, run.layouts, "function"), device, rng)


def test_arrays_are_compared_too(device: dml.Device, rng: np.random.Generator) -> None:
    run = identity(np.ones((3, 5), np.float32))
    off = dataclasses.replace(
        run.case, reference=lambda inputs, *_: inputs["input_tensor"] + np.float32(1))
    with pytest.raises(AssertionError, match="more than 0 ulp off in 15 of 15"):
        check(Run(off, FLOATS, dict.fromkeys(FLOATS, PACKED), "arrays"), device, rng)
