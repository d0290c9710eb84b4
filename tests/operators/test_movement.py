"""Movement operators with several workgroups, and their numbers of dispatches."""

from __future__ import annotations

import numpy as np
import pytest

import kompute_dml as dml

_NUMPY_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


@pytest.mark.parametrize("count, dispatches", [(1, 1), (2, 1), (7, 1), (8, 2), (14, 2), (15, 3)])
@pytest.mark.parametrize("operator", ["JOIN", "SPLIT"])
def test_seven_tensors_take_one_dispatch(
    operator: str, count: int, dispatches: int, device: dml.Device
) -> None:
    one, whole = (dml.TensorDesc("float32", (3, n)) for n in (8, 8 * count))
    pieces = [one] * count
    desc = (dml.JoinOperatorDesc(input_tensors=pieces, output_tensor=whole, axis=1)
            if operator == "JOIN" else
            dml.SplitOperatorDesc(input_tensor=whole, output_tensors=pieces, axis=1))
    assert len(desc.operator.lower(desc, device._target).execute) == dispatches


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("mode", dml.PaddingMode)
def test_borders_in_several_workgroups(
    mode: dml.PaddingMode, dtype: str, rng: np.random.Generator
) -> None:
    for sizes, start, end in (((3, 90, 70), (0, 2, 3), (0, 1, 4)), ((2500, 17), (1, 0), (0, 2)),
                              ((70_001,), (3,), (9,)), ((2, 5000), (0, 4999), (1, 2))):
        x = rng.integers(0, 100, sizes).astype(dtype)
        more = {"constant_values": 0} if mode == 0 else {}
        expected = np.pad(x, list(zip(start, end)), _NUMPY_MODES[mode], **more)
        got = dml.padding(x, start_padding=start, end_padding=end, padding_mode=mode)
        assert np.array_equal(got.numpy(), expected), (sizes, start, end)


def test_more_copies_than_an_invocation_writes(rng: np.random.Generator) -> None:
    x = rng.integers(0, 100, (2, 3, 8)).astype(np.float32)
    for repeats in ((1, 1, 1), (3, 5, 1), (5, 4, 7), (17, 1, 2), (1, 2, 40)):
        got = dml.tile(x, repeats=repeats)
        assert np.array_equal(got.numpy(), np.tile(x, repeats)), repeats
