"""QUANTIZE and DEQUANTIZE beside NumPy: blocks of many shapes, and numbers and scales out of the
ordinary, on the paths of a CPU and of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.runtime.traits import DeviceClass

_KINDS = ("int8", "uint8", *(("int4", "uint4") if find_spec("ml_dtypes") else ()))
_BLOCKS = (  # blocks, and elements of each, along the dimensions
    ((3, 5), (4, 16)), ((2, 3), (1, 96)), ((7,), (24,)), ((3, 40), (8, 1)), ((2, 24), (3, 1)),
    ((2, 3, 8), (2, 4, 1)), ((4, 12), (2, 1)), ((1, 1), (3, 8)), ((2, 3), (2, 5)))
_ODD = (np.nan, np.inf, -np.inf, -0.0, 6e4, -6e4, 6e-8)
_ODD_SCALES = (0.0, -1.5, 6e-8, np.inf)


@pytest.fixture(params=["its own", "a GPU's", "a GPU's with exact units"])
def paths(
    request: pytest.FixtureRequest, device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dml.Device]:
    own = dml.Device(device.adapter)
    if request.param != "its own":
        target = own.target
        monkeypatch.setattr(own, "target", replace(target, traits=replace(
            target.traits, device_class=DeviceClass.UNKNOWN, local_size=64,
            exact_units=request.param.endswith("units"))))
    yield own
    own.close()


def _spread(blocks: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    for d, n in enumerate(sizes):
        blocks = np.repeat(blocks, n // blocks.shape[d], d)
    return blocks


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("number", [np.float32, np.float16])
def test_blocks(
    number: type, kind: str, paths: dml.Device, rng: np.random.Generator
) -> None:
    bits, signed = int(kind[-1]), kind[0] == "i"
    low = -(1 << bits - 1) if signed else 0
    high, integers = low + (1 << bits) - 1, dml.DataType.of(kind).dtype
    for i, (blocks, inside) in enumerate(_BLOCKS):
        sizes = [a * b for a, b in zip(blocks, inside)]
        x = rng.normal(0, 30 if bits == 8 else 5, sizes).astype(number)
        scales = rng.uniform(0.25, 2, blocks).astype(number)
        if i % 2:  # many quotients are halves
            x, scales = np.rint(2 * x) / 2, np.exp2(np.rint(scales)).astype(number)
        if i % 3 != 1:
            x.reshape(-1)[rng.integers(0, x.size, len(_ODD))] = _ODD
        if i % 3 == 2:
            scales.reshape(-1)[rng.integers(0, scales.size)] = rng.choice(_ODD_SCALES)
        zeros = rng.integers(low, high + 1, blocks)
        parts = [paths.tensor(scales)]
        if i % 4 < 2:
            parts.append(paths.tensor(zeros.astype(integers)))
        else:
            zeros[:] = 0 if signed else 1 << bits - 1
        by, zero = (_spread(t, sizes).astype(np.float32) for t in (scales, zeros))
        with np.errstate(all="ignore"):
            quotients = x.astype(np.float32) / by
            expected = np.rint(quotients) + zero
            expected = np.clip(np.where(np.isnan(expected), zero, expected), low, high)
            # A quotient may be rounded to a half, or away from one.
            near = abs(abs(quotients - np.floor(quotients)) - 0.5) <= abs(quotients) * 2.0**-20
        near &= number is np.float32 and not i % 2
        got = dml.quantize(paths.tensor(x.astype(number)), parts, data_type=kind,
                           quantization_type=len(parts)).numpy().astype(np.float32)
        assert (abs(got - expected) <= near).all(), (blocks, inside)

        given = rng.integers(low, high + 1, sizes)
        with np.errstate(all="ignore"):
            real = ((given - zero).astype(np.float32) * by).astype(number)
        back = dml.dequantize(paths.tensor(given.astype(integers)), parts,
                              quantization_type=len(parts)).numpy()
        assert np.array_equal(back, real, equal_nan=True), (blocks, inside)
