"""A call with a signature that was seen before takes a short way, and numbers are uploaded once.

Both compute and refuse what they did before.
"""

from __future__ import annotations

import decimal
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import device as device_module
from kompute_dml.functions import call_cache, functions
from kompute_dml.runtime.transfer import Transfer

pytestmark = pytest.mark.values


@pytest.fixture
def short(own: dml.Device, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that took the short way."""
    names: list[str] = []
    repeat = call_cache._Call.repeat

    def noted(self: Any, *args: Any) -> Any:
        names.append(self.compiled.name)
        return repeat(self, *args)

    monkeypatch.setattr(call_cache._Call, "repeat", noted)
    return names


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each upload."""
    sizes: list[int] = []
    upload = Transfer.upload

    def noted(self: Transfer, data: np.ndarray, *args: Any) -> None:
        sizes.append(data.nbytes)
        upload(self, data, *args)

    monkeypatch.setattr(Transfer, "upload", noted)
    return sizes


def _same(found: Any, expected: Any) -> None:
    several = isinstance(found, tuple)
    for y, z in zip(found if several else [found], expected if several else [expected]):
        np.testing.assert_allclose(y.numpy(), z, rtol=2e-6, strict=True)


def _softmax(x: np.ndarray) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


_CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[list[int]]]] = {
    "softmax": (lambda x: dml.activation_softmax1(x, axes=[-1]), _softmax, [[2, 5]]),
    "gemm": (dml.gemm, np.matmul, [[3, 4], [4, 2]]),
    "gemm that broadcasts": (dml.gemm, np.matmul, [[2, 1, 3, 4], [4, 2]]),
    "convolution": (lambda x, w: dml.convolution(x, w, strides=2), lambda x, w: x[:, :, ::2] * w,
                    [[1, 1, 6], [1, 1, 1]]),
    "join": (lambda a, b: dml.join([a, b], axis=0), lambda a, b: np.concatenate([a, b]),
             [[2, 3], [1, 3]]),
    "split": (lambda x: dml.split(x, sections=[1, 2]), lambda x: (x[:1], x[1:]), [[3, 2]]),
    "subtract": (dml.subtract, np.subtract, [[2, 3], [3]]),
    "a number first": (lambda x: functions()["subtract"](1.5, x),
                       lambda x: np.float32(1.5) - x, [[2, 3]]),
}


@pytest.mark.parametrize("name", _CALLS)
def test_other_elements_of_one_signature(name: str, own: dml.Device, short: list[str]) -> None:
    ours, numpys, sizes = _CALLS[name]
    rng = np.random.default_rng(7)
    for _ in range(3):
        arrays = [rng.random(s, np.float32) for s in sizes]
        _same(ours(*map(own.tensor, arrays)), numpys(*arrays))
    assert len(short) == 2


def test_arguments_keep_their_places(own: dml.Device, short: list[str]) -> None:
    a, b = np.float32([1, 2]), np.float32([10, 40])
    x, y = own.tensor(a), own.tensor(b)
    for _ in range(2):
        _same(functions()["subtract"](x, x), a - a)
        _same(functions()["subtract"](x, y), a - b)
        _same(functions()["subtract"](y, x), b - a)
        _same(functions()["subtract"](b=x, a=y), b - a)
        z = own.empty([2])
        assert functions()["subtract"](x, y, out=z) is z
        _same(z, a - b)
        assert functions()["subtract"](z, y, out=z) is z
        _same(z, a - b - b)
        assert functions()["subtract"](y, z, out=z) is z
        _same(z, b - (a - b - b))
    assert len(short) == 8  # all of the second round, and subtract(y, x) of the first


def test_views_into_one_tensor(own: dml.Device, short: list[str]) -> None:
    data = np.arange(8, dtype=np.float32).reshape(2, 4)  # rows of 16 bytes: equal descriptions
    whole = own.tensor(data)
    for first, second in ((0, 0), (0, 1), (1, 0), (0, 1)):
        _same(functions()["subtract"](whole[first], whole[second]), data[first] - data[second])
    assert not short  # which of the two a slot is cannot be told


def test_a_signature_has_every_bit_of_an_attribute(own: dml.Device) -> None:
    x = own.tensor(np.float32([1, 2]))
    for alpha, beta in ((0.0, 0.0), (-0.0, -0.0), (0.0, 0.0), (np.nan, 1), (1.0, 1)):
        found = dml.activation_linear(x, alpha=alpha, beta=beta).numpy()
        expected = np.float32(alpha) * np.float32([1, 2]) + np.float32(beta)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("wrong", [1.0, decimal.Decimal(1), "1", None])
def test_bad_attributes_after_a_good_one(wrong: Any, own: dml.Device) -> None:
    x = own.tensor(np.ones((2, 3), np.float32))
    with pytest.raises(dml.ValidationError) as before:
        dml.join([x, x], axis=wrong)
    for _ in range(2):
        dml.join([x, x], axis=1)
    with pytest.raises(dml.ValidationError) as after:
        dml.join([x, x], axis=wrong)
    assert str(after.value) == str(before.value)


def test_bad_tensors_after_good_ones(own: dml.Device, device: dml.Device) -> None:
    x, y, memory = own.empty([4]), own.empty([4]), own.empty([8])
    for _ in range(2):
        functions()["subtract"](x, y, out=memory[:4])
    with pytest.raises(dml.ValidationError, match="identical where they overlap"):
        functions()["subtract"](memory[1:5], y, out=memory[:4])
    with pytest.raises(dml.ValidationError, match="on one device"):
        functions()["subtract"](x, device.empty([4]), out=memory[:4])
    x.free()
    with pytest.raises(dml.ValidationError, match="a_tensor to be alive"):
        functions()["subtract"](x, y, out=memory[:4])


def test_arrays_are_read_at_every_call(own: dml.Device) -> None:
    x, array = own.tensor(np.float32([1, 2])), np.float32([1, 1])
    for value in (3, 4):
        array[:] = value
        _same(dml.add(x, array), np.float32([1, 2]) + value)
    listed = [1.0, 1.0]
    for value in (3.0, 4.0):
        listed[0] = value
        _same(dml.gemm(x.reshape(1, 2), [[value], [1.0]]), np.float32([[value + 2]]))


def test_a_function_of_several_operators(own: dml.Device, short: list[str]) -> None:
    """Only its operators repeat: what one makes is no constant of the other."""
    outer = call_cache.cached_call(lambda x: dml.negate(dml.abs(x)))
    for value in (1, 2, 3):
        _same(outer(own.tensor(np.float32([value, -value]))), np.float32([-value, -value]))
    assert short == ["DML_OPERATOR_ELEMENT_WISE_ABS", "DML_OPERATOR_ELEMENT_WISE_NEGATE"] * 2


def test_graphs_are_not_mixed_up(own: dml.Device) -> None:
    x = own.tensor(np.float32([1, 2]))
    _same(dml.add(x, x), np.float32([2, 4]))
    with dml.Graph(own) as graph:
        given = graph.input([2])
        run = graph.compile(dml.add(dml.add(given, 1.0), x))
    _same(dml.add(x, x), np.float32([2, 4]))
    np.testing.assert_array_equal(run(np.float32([5, 6])), np.float32([7, 9]))


def test_signatures_are_bounded_and_hold_no_tensor(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_cache, "MAX_CALLS", 3)
    x = own.tensor(np.float32([1, 2]))
    functions()["add"](x, x)
    own.synchronize()
    before = own.memory_used
    for n in range(1, 9):
        y = own.empty([2, n, 3])
        functions()["identity"](y)
        functions()["add"](x, x)
    del y
    gc.collect()
    own.synchronize()
    assert own.memory_used == before
    calls = own.compiled.calls
    assert len(calls) == 3 and functions()["add"].__wrapped__ in next(reversed(calls))
    own.compiled.clear()
    assert not calls


# Numbers


def test_a_number_is_uploaded_once(own: dml.Device, uploads: list[int]) -> None:
    x = own.tensor(np.arange(1, 4, dtype=np.float32))
    i = own.tensor(np.arange(1, 4, dtype=np.int32))
    calls: list[Callable[[], Any]] = [
        lambda: x + 1, lambda: 1 - x, lambda: x * np.float32(2.5), lambda: x > 0.5,
        lambda: i << 1, lambda: dml.where(x > 1, x, 0.0), lambda: np.logical_and(x, 1),
        lambda: np.arctan2(x, 1.0), lambda: i + np.int32(7), lambda: dml.add(x, 2.0),
        lambda: dml.quantize_linear(x, 0.5, 3),
    ]
    first = [call().numpy() for call in calls]
    uploads.clear()
    for _ in range(2):
        for call, expected in zip(calls, first):
            np.testing.assert_array_equal(call().numpy(), expected)
    x[:2] + 1  # another signature with the same number
    assert uploads == []
    x + 123
    assert uploads == [4]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "int16", "uint16",
                                   "int32", "uint32", "int64", "uint64"])
def test_numbers_take_the_type_of_the_tensor(dtype: str, own: dml.Device) -> None:
    array = np.arange(4, dtype=dtype)
    x = own.tensor(array)
    for _ in range(2):
        for number in (1, True, 2, *([0.5, -0.0] if array.dtype.kind == "f" else [])):
            np.testing.assert_array_equal((x + number).numpy(), array + number, strict=True)
            np.testing.assert_array_equal((x * number).numpy(), array * number, strict=True)


def test_numbers_that_are_equal_and_not_the_same(own: dml.Device) -> None:
    zero = own.tensor(np.float32([-0.0, 0.0]))
    truth = own.tensor(np.array([True, False]))
    for _ in range(2):
        for value in (0.0, -0.0, np.float32(0.0), np.float32(-0.0)):
            np.testing.assert_array_equal(
                np.signbit((zero + value).numpy()), np.signbit(np.float32([-0.0, 0.0]) + value))
        assert np.isnan((zero + np.nan).numpy()).all()
        assert (zero + 1).numpy().tolist() == [1, 1]
        np.testing.assert_array_equal((own.tensor(np.int32([5])) + 0).numpy(), np.int32([5]),
                                      strict=True)
        assert (truth | True).dtype == bool and (truth | True).numpy().all()
        np.testing.assert_array_equal((truth + 1).numpy(), np.array([True, False]) + 1,
                                      strict=True)
        np.testing.assert_array_equal((truth + True).numpy(), [True, True], strict=True)


def test_kept_numbers_are_bounded_and_never_given_out(
    own: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "MAX_NUMBERS", 4)
    x = own.tensor(np.float32([1]))
    for n in range(8):
        own.number(float(n))
    assert len(own._numbers) == 4
    for make in (lambda: dml.add(x, 3.0), lambda: np.positive(x + 3), lambda: dml.asarray(3.0),
                 lambda: own.tensor(3.0), lambda: dml.where(x > 5, x, 3.0)):
        make()[...] = 77
    assert (x + 3).numpy() == 4 and dml.add(x, 3.0).numpy() == 4
