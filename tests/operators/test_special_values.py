"""Every float operator at zeros, infinities, NaN and denormals; on FLOAT16 at all of its numbers.

The references are those of the cases. A device may treat float32 denormals as 0 in operands and
results of sums and products.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from cases import CASES
from harness import Case
from kompute_dml import DataType
from kompute_dml.runtime import traits
from tolerance import LOST, compare

pytestmark = pytest.mark.values

_SMALLEST = 2.0**-126  # the smallest normal number
_SPECIAL = [0.0, _SMALLEST, 1.5 * _SMALLEST, 0.5, 1.0, 1.5, 2.5, np.pi, 88.75, 1e10, 2.0**127,
            float(np.finfo(np.float32).max), np.inf, np.nan]
_DENORMAL = [2.0**-149, 2.0**-140, 0.75 * _SMALLEST]

# Operators that keep denormals, as documented: they select, compare, divide, round to whole numbers
# or change signs.
_KEEPS = {
    "ABS", "NEGATE", "SIGN", "CEIL", "FLOOR", "ROUND", "IDENTITY", "CLIP", "CLIP1", "THRESHOLD",
    "MAX", "MIN", "IF", "IS_NAN", "IS_INFINITY", "DIVIDE", "RECIP", "SQRT", "BIT_COUNT",
    "BIT_AND", "BIT_OR", "BIT_XOR", "BIT_NOT", "LOGICAL_EQUALS", "LOGICAL_GREATER_THAN",
    "LOGICAL_GREATER_THAN_OR_EQUAL", "LOGICAL_LESS_THAN", "LOGICAL_LESS_THAN_OR_EQUAL",
    "RELU", "THRESHOLDED_RELU", "MODULUS_TRUNCATE",
}


_FAMILIES = ("elementwise_unary", "elementwise_binary", "activation")


def _of_one_float_type(data_type: DataType) -> list[Any]:
    return list(_cases(data_type))


def _cases(data_type: DataType) -> Iterator[Any]:
    for case in CASES:
        if len(case.sizes[case.output]) != 1 or case.definition.spec.family not in _FAMILIES:
            continue
        for types in case.all_types():
            kinds = {types[n] for n in case.inputs if types[n] is not DataType.UINT8}
            if kinds == {data_type}:
                yield pytest.param(
                    case, types, id=f"{case.operator.lower()}-{case.name}-"
                    + ".".join(dict.fromkeys(t.family for t in types.values())))


def _call(
    case: Case, types: Any, x: dict[str, np.ndarray], device: dml.Device | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The result on a device, else on the default one, and what is expected."""
    attributes = case.attributes_for(types)
    with np.errstate(all="ignore"):
        expected = case.reference(x, attributes, types)
    assert isinstance(expected, np.ndarray)
    given = x if device is None else {n: device.tensor(a) for n, a in x.items()}
    return case.call(given, attributes, types, None).numpy(), expected


def _inputs(case: Case, types: Any, *columns: np.ndarray) -> dict[str, np.ndarray]:
    """``columns`` for the inputs, in order. Conditions get zeros and ones."""
    rest = iter(columns)
    return {n: (np.arange(columns[0].size) % 2).astype(np.uint8) if types[n] is DataType.UINT8
            else next(rest) for n in case.inputs}


def _columns(case: Case, types: Any) -> int:
    return sum(types[n] is not DataType.UINT8 for n in case.inputs)


@pytest.mark.parametrize(("case", "types"), _of_one_float_type(DataType.FLOAT16))
def test_all_of_float16(case: Case, types: Any, rng: np.random.Generator) -> None:
    x = np.arange(2**16, dtype=np.uint16)
    columns = [x, *(rng.permutation(x) for _ in range(_columns(case, types) - 1))]
    given = _inputs(case, types, *(c.view(np.float16) for c in columns))
    problem = compare(*_call(case, types, given), case.compare)
    assert not problem, problem


def _signed(values: list[float]) -> np.ndarray:
    return np.array([s * v for v in values for s in (1, -1)], np.float32)


@pytest.mark.parametrize(("case", "types"), _of_one_float_type(DataType.FLOAT32))
def test_special_values_of_float32(case: Case, types: Any, rng: np.random.Generator) -> None:
    special = np.array(list(itertools.product(_signed(_SPECIAL),
                                              repeat=_columns(case, types)))).T
    bits = np.frombuffer(rng.bytes(4 * 2000 * len(special)), np.float32).reshape(len(special), -1)
    bits = np.where(np.abs(bits) < _SMALLEST, np.float32(1), bits)
    columns = np.concatenate([special, bits], axis=1).astype(np.float32)
    got, expected = _call(case, types, _inputs(case, types, *columns))
    # Operators that keep denormals may round twice. Others may have denormal intermediate results.
    problem = compare(got, expected, case.compare, 2.0**-149 if _keeps(case) else LOST)
    assert not problem, problem


@pytest.fixture(scope="module")
def exact_device() -> Iterator[dml.Device]:
    """A device that claims units as exact as those of known GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        real = traits.of
        patch.setattr(traits, "of", lambda adapter: replace(real(adapter), exact_units=True))
        device = dml.Device()
    yield device
    device.close()


@pytest.mark.parametrize(("case", "types"), _of_one_float_type(DataType.FLOAT32))
def test_nan_where_units_are_exact(case: Case, types: Any, exact_device: dml.Device) -> None:
    """This device's units are not, so that numbers are not compared."""
    columns = np.array(list(itertools.product(_signed(_SPECIAL), repeat=_columns(case, types)))).T
    given = _inputs(case, types, *columns.astype(np.float32))
    got, expected = _call(case, types, given, exact_device)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))


@pytest.fixture
def unknown_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[dml.Device]:
    """A device that claims no exact quotients."""
    monkeypatch.setattr(traits, "_IEEE_UNITS", {})
    device = dml.Device()
    yield device
    device.close()


def test_quotients_in_the_range_of_denormals(
    unknown_device: dml.Device, rng: np.random.Generator
) -> None:
    """Also where rounding to 24 bits first would make ties, and with denormal operands."""
    y = rng.uniform(1, 2, 1 << 15) * 2.0 ** rng.integers(-149, 128, 1 << 15)
    y[::4] = 2.0 ** np.floor(np.log2(y[::4]))  # for ties
    x = y * rng.uniform(-1, 1, y.size) * 2.0 ** rng.integers(-150, -123, y.size)
    some = rng.permutation(y.size) < y.size // 4
    x[some] = rng.uniform(-_SMALLEST, _SMALLEST, y.size)[some]
    x, y = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(all="ignore"):
        expected, inverse = x / y, np.float32(1) / y
    for operator, given, exact in ((dml.divide, (x, y), expected), (dml.recip, (y,), inverse)):
        got = operator(*map(unknown_device.tensor, given)).numpy()
        np.testing.assert_array_equal(got.view(np.uint32), exact.view(np.uint32))


def _keeps(case: Case) -> bool:
    name = case.operator.removeprefix("ELEMENT_WISE_").removeprefix("ACTIVATION_")
    return name in _KEEPS and "scale_bias" not in case.attributes


@pytest.mark.parametrize(("case", "types"), _of_one_float_type(DataType.FLOAT32))
def test_denormal_float32(case: Case, types: Any) -> None:
    values = _signed([0.0, 1.0, 3.0, *_DENORMAL])
    columns = np.array(list(itertools.product(values, repeat=_columns(case, types)))).T
    given = _inputs(case, types, *columns)
    got, expected = _call(case, types, given)
    if _keeps(case):
        problem = compare(got, expected, case.compare)
        assert not problem, problem
        return
    flushed = {n: np.where(np.abs(x) < _SMALLEST, np.copysign(np.float32(0), x), x)
               if x.dtype == np.float32 else x for n, x in given.items()}
    # Each input may be flushed or not, and so may the result.
    fits = np.zeros(got.shape, bool)
    for kept in itertools.product([False, True], repeat=len(given)):
        _, expected = _call(case, types, {
            n: given[n] if keep else flushed[n] for n, keep in zip(given, kept)})
        for i in range(got.size):
            one, other = got[i : i + 1], expected[i : i + 1]
            fits[i] |= not compare(one, other, case.compare) \
                or (got.dtype == np.float32 and bool(abs(one) < _SMALLEST > abs(other)))
    assert fits.all(), {n: x[~fits][:4] for n, x in given.items()} | {"got": got[~fits][:4]}


@pytest.mark.filterwarnings("error")
def test_an_attribute_beyond_float32_is_infinite(device: dml.Device) -> None:
    x = device.tensor(np.ones((1, 1, 4, 4), np.float32))
    assert np.isposinf(np.asarray(dml.gemm(x, x, alpha=1e39))).all()
    far_away = np.array([[90, 90, 99, 99]], np.float32)
    y = dml.roi_align(x, far_away, np.zeros(1, np.uint32), output_size=(2, 2),
                      spatial_scale_x=1.0, spatial_scale_y=1.0, out_of_bounds_input_value=1e39)
    assert np.isposinf(np.asarray(y)).all()
