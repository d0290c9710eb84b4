"""Tensors compared with NumPy's arrays: equal expressions give equal values, sizes and types."""

from __future__ import annotations

import builtins
import copy
import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import hints

pytestmark = pytest.mark.values

_FLOATS = np.float32([[-2.5, -0.5, 0.0], [1.5, 2.0, 7.25]])
_INTS = np.int32([[-7, -1, 0], [2, 3, 100]])
_BYTES = np.uint8([[0, 1, 7], [2, 200, 255]])
_TRUTH = np.array([[True, False, True], [False, False, True]])
_ARRAYS = {"float": _FLOATS, "int": _INTS, "byte": _BYTES, "truth": _TRUTH,
           "long": _INTS.astype(np.int64), "half": _FLOATS.astype(np.float16)}


def _same(ours: Any, numpys: Any, tolerance: float = 0.0) -> None:
    """Equal values, sizes and types, except for a float64 that no operand has."""
    expected = np.asarray(numpys)
    assert isinstance(ours, dml.Tensor)
    assert ours.shape == expected.shape
    kind = np.dtype(np.float32) if expected.dtype == np.float64 else expected.dtype
    assert ours.dtype == kind
    values = ours.numpy()
    assert values.dtype == kind
    if tolerance:
        np.testing.assert_allclose(values.reshape(expected.shape), expected, rtol=tolerance,
                                   atol=tolerance)
    else:
        np.testing.assert_array_equal(values.reshape(expected.shape), expected.astype(kind))


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y,
    "/": lambda x, y: x / y, "//": lambda x, y: x // y, "%": lambda x, y: x % y,
    "<": lambda x, y: x < y, "<=": lambda x, y: x <= y, ">": lambda x, y: x > y,
    ">=": lambda x, y: x >= y, "==": lambda x, y: x == y, "!=": lambda x, y: x != y,
    "&": lambda x, y: x & y, "|": lambda x, y: x | y, "^": lambda x, y: x ^ y,
}


@pytest.mark.parametrize("right", ["float", "int", "byte", "truth", "long", "half", 3, 2.0, True])
@pytest.mark.parametrize("left", ["float", "int", "byte", "truth"])
@pytest.mark.parametrize("operator", _OPERATORS)
def test_operators_are_numpys(operator: str, left: str, right: Any, device: dml.Device) -> None:
    x = _ARRAYS[left]
    y = _ARRAYS[right][::-1, ::-1] if isinstance(right, str) else right
    compute = _OPERATORS[operator]
    ours = device.tensor(x), device.tensor(y) if isinstance(right, str) else y
    try:
        with np.errstate(all="ignore"):
            expected, mirrored = compute(x, y), compute(y, x) if operator not in "///%" else None
    except TypeError:
        with pytest.raises(dml.UnsupportedError):
            compute(*ours)
        return
    tolerance = 1e-6 if operator in ("/", "//", "%") else 0.0
    _same(compute(*ours), expected, tolerance)
    if mirrored is not None:
        _same(compute(ours[1], ours[0]), mirrored)


@pytest.mark.parametrize("kind", ["int16", "uint8", "int64"])
def test_shifts_and_powers_of_integers(kind: str, device: dml.Device) -> None:
    x = np.arange(-4 if kind[0] == "i" else 0, 8).astype(kind)
    t = device.tensor(x)
    for n in (0, 1, 3):
        _same(t << n, x << n)
        _same(t >> n, x >> n)
        _same(t**n, x**n)
    _same(2 << device.tensor(np.arange(3, dtype=kind)), 2 << np.arange(3, dtype=kind))
    with pytest.raises(dml.ValidationError, match=r"exponent.*at least 0"):
        t ** -1


def test_powers_of_floats(device: dml.Device) -> None:
    x = np.float32([0.5, 2, 3])
    t = device.tensor(x)
    for exponent in (2, 3, 0.5, -1, x):
        ours = t ** (device.tensor(exponent) if isinstance(exponent, np.ndarray) else exponent)
        _same(ours, x**exponent, 1e-5)
    _same(2**t, 2**x, 1e-5)


def test_unary_operators(device: dml.Device) -> None:
    for x in (_FLOATS, _INTS, _BYTES):
        t = device.tensor(x)
        _same(-t, -x)
        _same(abs(t), abs(x))
        _same(+t, +x)
        if x.dtype.kind != "f":
            _same(~t, ~x)
    _same(~device.tensor(_TRUTH), ~_TRUTH)


@pytest.mark.parametrize("sizes", [
    ((2, 3), (3, 4)), ((3,), (3, 2)), ((2, 3), (3,)), ((3,), (3,)), ((2, 1, 2, 3), (4, 3, 2)),
    ((2, 1, 2, 2, 3), (3, 1, 3, 2)),
], ids=str)
def test_matrix_products(sizes: Any, device: dml.Device, rng: np.random.Generator) -> None:
    x, y = (rng.integers(-4, 5, size).astype(np.float32) for size in sizes)
    _same(device.tensor(x) @ device.tensor(y), x @ y)
    _same(x @ device.tensor(y), x @ y)


@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int32", "uint64", "int64"])
@pytest.mark.parametrize("sizes", [((2, 3), (3, 4)), ((2, 1, 2, 3), (4, 3, 2)), ((3,), (3,)),
                                   ((0, 3), (3, 2)), ((2, 0), (0, 2))], ids=str)
def test_products_of_integers_wrap(
        sizes: Any, kind: str, device: dml.Device, rng: np.random.Generator) -> None:
    x, y = (rng.integers(0, 1 << 40, size).astype(kind) for size in sizes)
    _same(device.tensor(x) @ device.tensor(y), x @ y)


def test_a_long_product_of_integers_is_made_in_parts(
        device: dml.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kompute_dml.arrays.matmul._MOST", 24)
    x, y = np.arange(24).reshape(2, 4, 3), np.arange(6).reshape(3, 2)
    _same(device.tensor(x) @ device.tensor(y), x @ y)


@pytest.mark.parametrize("change", [
    lambda x, y: x.__iadd__(y), lambda x, y: x.__isub__(2), lambda x, y: x.__imul__(y),
    lambda x, y: x.__iadd__(y.T) if x.shape[0] == x.shape[1] else x.__iadd__(y),
    lambda x, y: x[:, :2].__imul__(3), lambda x, y: x.__setitem__(0, 5),
    lambda x, y: x.__setitem__((slice(None), 1), y[:, 0]), lambda x, y: x.__setitem__(..., y),
    lambda x, y: x.__setitem__((slice(None), slice(1, None)), x[:, :-1]),
    lambda x, y: x.__setitem__(y > 1, 9), lambda x, y: x.__setitem__([1, 0], y),
    lambda x, y: x.__setitem__((slice(None), [2, 0]), 4), lambda x, y: x.fill(2),
    lambda x, y: x.sort(),
    lambda x, y: x.sort(0), lambda x, y: x.__setitem__([0], [1, 2, 3]),
])
@pytest.mark.parametrize("kind", ["float", "int"])
def test_changes_in_place(change: Any, kind: str, device: dml.Device) -> None:
    x, y = _ARRAYS[kind].copy(), _ARRAYS[kind][::-1].copy()
    t, s = device.tensor(x), device.tensor(y)
    change(x, y)
    change(t, s)
    _same(t, x)
    _same(s, y)


def test_what_overlaps_is_copied_first(device: dml.Device) -> None:
    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    t = device.tensor(x)
    t += t.T
    _same(t, x + x.T)


def test_results_do_not_go_where_they_do_not_fit(device: dml.Device) -> None:
    t = device.tensor(_INTS)
    with pytest.raises(dml.ValidationError, match=r"out\.dtype.*float32"):
        t += 0.5
    with pytest.raises(dml.ValidationError, match=r"out\.sizes"):
        np.add(t, 1, out=device.tensor(np.int32([1])))
    with pytest.raises(dml.UnsupportedError, match=r"tensor\.numpy\(\)"):
        np.add(t, 1, out=_INTS.copy())


def test_float64_becomes_float32_with_one_warning(
        device: dml.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kompute_dml.tensors.types._warned", False)
    t = device.tensor(_FLOATS)
    with pytest.warns(RuntimeWarning, match="become FLOAT32") as caught:
        _same(t * np.ones(3), _FLOATS)
        _same(np.sin(device.tensor(np.zeros(2))), np.float32([0, 0]))
        _same(device.tensor(np.arange(3.0)).sum(), np.float32(3))
        _same(t.T @ np.ones(2), _FLOATS.T @ np.ones(2, np.float32))
        _same(np.concatenate([t, np.ones((1, 3))]), np.vstack([_FLOATS, np.ones((1, 3))]))
    assert len(caught) == 1 and caught[0].filename == __file__
    for scalar in (np.float64(2), 2.0, np.float32(2), np.float16(2), np.int64(2)):
        assert (t * scalar).dtype == np.float32
        assert (device.tensor(_INTS) * scalar).dtype == (
            np.int32 if isinstance(scalar, np.integer) else np.float32)
    assert device.tensor(np.zeros(2)).dtype == np.float64  # it is only stored
    with pytest.raises(dml.UnsupportedError, match=r"FLOAT64.*astype\('float32'\)"):
        t.sum(dtype="float64")
    with pytest.raises(dml.UnsupportedError, match="common integer type"):
        device.tensor(np.int64([1])) + device.tensor(np.uint64([1]))


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(), "sum axis": lambda x: x.sum(0), "sum keep": lambda x: x.sum(
        1, keepdims=True), "mean": lambda x: x.mean(), "mean axis": lambda x: x.mean(axis=1),
    "max": lambda x: x.max(), "min axis": lambda x: x.min(axis=0), "prod": lambda x: x.prod(1),
    "std": lambda x: x.std(), "var": lambda x: x.var(axis=1, ddof=1),
    "any": lambda x: (x > 1).any(), "all": lambda x: (x > -9).all(axis=1),
    "argmax": lambda x: x.argmax(), "argmin axis": lambda x: x.argmin(axis=1),
    "cumsum": lambda x: x.cumsum(), "cumsum axis": lambda x: x.cumsum(axis=1),
    "argsort": lambda x: x.argsort(), "clip": lambda x: x.clip(0, 3),
    "astype": lambda x: x.astype("int64"), "bool": lambda x: x.astype(bool),
    "T": lambda x: x.T, "np.swapaxes": lambda x: np.swapaxes(x, 0, -1),
    "reshape": lambda x: x.T.reshape(6), "ravel": lambda x: x.T.ravel(),
    "flatten": lambda x: x.flatten(), "squeeze": lambda x: x[:, None].squeeze(),
    "swapaxes": lambda x: x.swapaxes(0, 1), "take": lambda x: x.take([1, -1, 0]),
    "repeat": lambda x: x.repeat(2, axis=1), "index": lambda x: x[[1, 0, 1]],
    "index array": lambda x: x[:, np.array([[2, 0], [1, 1]])], "copy": lambda x: x[::, 1:].copy(),
    "np.exp": lambda x: np.exp(x / 8), "np.sqrt": lambda x: np.sqrt(abs(x)),
    "np.tanh": lambda x: np.tanh(x), "np.arctan2": lambda x: np.arctan2(x, 2),
    "np.floor": lambda x: np.floor(x), "np.trunc": lambda x: np.trunc(x),
    "np.sign": lambda x: np.sign(x), "np.square": lambda x: np.square(x),
    "np.isnan": lambda x: np.isnan(x), "np.isfinite": lambda x: np.isfinite(x),
    "np.maximum": lambda x: np.maximum(x, 1), "np.logical_and": lambda x: np.logical_and(x, x > 1),
    "np.logical_not": lambda x: np.logical_not(x), "np.add.reduce": lambda x: np.add.reduce(x),
    "np.sum": lambda x: np.sum(x, axis=1), "np.mean": lambda x: np.mean(x),
    "np.max": lambda x: np.max(x, axis=0), "np.amin": lambda x: np.amin(x),
    "np.std": lambda x: np.std(x, axis=0), "np.median of sort": lambda x: np.sort(x, axis=0),
    "np.sort None": lambda x: np.sort(x, axis=None),
    "np.concatenate": lambda x: np.concatenate([x, x[:1]]),
    "np.stack": lambda x: np.stack([x, x], -1),
    "np.vstack": lambda x: np.vstack([x, x[0]]), "np.hstack": lambda x: np.hstack([x, x]),
    "np.split": lambda x: np.split(x, 3, axis=1)[1],
    "np.split at": lambda x: np.split(x, [1], 1)[1],
    "np.where": lambda x: np.where(x > 1, x, 0), "np.clip": lambda x: np.clip(x, 0, None),
    "np.transpose": lambda x: np.transpose(x), "np.reshape": lambda x: np.reshape(x, (3, -1)),
    "np.moveaxis": lambda x: np.moveaxis(x[None], 0, -1),
    "np.expand_dims": lambda x: np.expand_dims(x, (0, -1)),
    "np.broadcast_to": lambda x: np.broadcast_to(x[:1], (4, 3)), "np.flip": lambda x: np.flip(x),
    "np.flip axis": lambda x: np.flip(x, 1), "np.roll": lambda x: np.roll(x, 1),
    "np.roll axis": lambda x: np.roll(x, -1, axis=1), "np.tile": lambda x: np.tile(x, (2, 1, 2)),
    "np.repeat": lambda x: np.repeat(x, 2), "np.pad": lambda x: np.pad(x, ((1, 0), (0, 2))),
    "np.pad edge": lambda x: np.pad(x, 1, mode="edge"), "np.tril": lambda x: np.tril(x),
    "np.triu": lambda x: np.triu(x, 1), "np.diff": lambda x: np.diff(x),
    "np.take_along_axis": lambda x: np.take_along_axis(x, np.argsort(x, 1), 1),
    "np.zeros_like": lambda x: np.zeros_like(x), "np.full_like": lambda x: np.full_like(x, 3),
    "np.ones_like": lambda x: np.ones_like(x, dtype="int32"),
    "np.outer": lambda x: np.outer(x, x[0]),
    "np.round": lambda x: np.round(x), "np.ptp": lambda x: np.ptp(x, axis=1),
    "np.count_nonzero": lambda x: np.count_nonzero(x, axis=0),
    "np.argmax": lambda x: np.argmax(x, axis=0), "np.cumprod": lambda x: np.cumprod(x, axis=1),
    "np.linalg.norm": lambda x: np.linalg.norm(x.astype("float32")),
    "np.trace": lambda x: np.trace(x, 1), "np.diagonal": lambda x: np.diagonal(x[None], -1, 2, 1),
    "np.diag": lambda x: np.diag(x, 1), "np.diag of a vector": lambda x: np.diag(x[0], -1),
    "np.inner": lambda x: np.inner(x.astype("float32"), x[0].astype("float32")),
    "np.tensordot": lambda x: np.tensordot(x.astype("float32"), x.astype("float32"), ([0], [0])),
    "np.tensordot 0": lambda x: np.tensordot(x.astype("float32"), x[0].astype("float32"), 0),
    "np.average": lambda x: np.average(x, axis=1, weights=abs(x[0]) + 1),
    "np.meshgrid": lambda x: np.meshgrid(x[0, :2], x[1], x[0])[1],
    "np.meshgrid ij": lambda x: np.meshgrid(x[0, :2], x[1], indexing="ij", sparse=True)[1],
    "np.atleast_2d": lambda x: np.atleast_2d(x[0]), "np.atleast_3d": lambda x: np.atleast_3d(x),
}


@pytest.mark.parametrize("kind", ["float", "int"])
@pytest.mark.parametrize("name", _FUNCTIONS)
def test_functions_and_methods_are_numpys(name: str, kind: str, device: dml.Device) -> None:
    x = _ARRAYS[kind]
    _same(_FUNCTIONS[name](device.tensor(x)), _FUNCTIONS[name](x), 3e-6)


@pytest.mark.parametrize("subscripts", [
    "ij,jk->ik", "ij,kj->ik", "ij->ji", "ij->", "ii->i", "ii", "iij->j", "iji->j", "ij,ij->ij",
    "ij,ij", "i,j->ij", "bij,bjk->bik", "bhqd,bhkd->bhqk", "...ij,...jk->...ik", "ij,jk,kl->il",
    "ij,jk", "i...->...", "...i,i->...", "abc,cd,be->ade", "i,ij,j->", "ab,cd -> abcd",
])
def test_einsum_is_numpys(subscripts: str, device: dml.Device, rng: np.random.Generator) -> None:
    spelled = subscripts.replace("...", "xy").partition("->")[0].split(",")
    arrays = [rng.integers(-3, 4, [2 + ord(i) % 3 for i in term.strip()]).astype(np.float32)
              for term in spelled]
    made = np.einsum(subscripts, *map(device.tensor, arrays))
    _same(made, np.einsum(subscripts, *arrays))


@pytest.mark.parametrize("subscripts, count, message", [
    ("ij,jk->ik", 2, "sizes of 'j' to agree"), ("ij", 2, "expected 1 operands, but got 2"),
    ("ijk", 1, "does not fit"), ("ij->k", 1, "but got k"), ("ij->ii", 1, "each once"),
])
def test_bad_einsum(subscripts: str, count: int, message: str, device: dml.Device) -> None:
    with pytest.raises(dml.ValidationError, match=f"^einsum: .*{message}"):
        np.einsum(subscripts, *[device.tensor(_FLOATS)] * count)


_EACH = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)


@pytest.mark.parametrize("kind", ["float32", "int8", "bool"])
@pytest.mark.parametrize("key", [
    ([0, 1], [2, 0]), (0, [1, 2]), ([1, 0], slice(None), 0), (slice(None), [0, 1], [1, 3]),
    ([0, 1], slice(None), [1, 3]), (..., [0, -1], [1, 3]), (0, ..., [0, 1]), (-1, [-1]),
    (slice(None), 1, slice(1, 3), [0, 4]), ([[0, 1], [1, 0]], [[2], [1]]),
    ([0, 1], [0, 1], [2, 3], [4, -1]), ([0, 1], None, [0, 1]), (None, [0, 1], [0, 1]),
    (_EACH > 50,), (slice(None), np.array([True, False, True])), (0, _EACH[0] % 2 == 0),
    (np.array(1), slice(1, 3)), (np.array(-1), [0, 1]),
    ([False, True], [True, False, True]), (..., [True, False, False, False, True]),
], ids=str)
def test_arrays_of_indices_select_as_numpys(key: Any, kind: str, device: dml.Device) -> None:
    """Reads and writes of one value and of several."""
    x = (_EACH % 7).astype(kind)
    t = device.tensor(x)
    picked = t[key]
    assert picked.shape == x[key].shape
    _same(picked, x[key])
    x[key], t[key] = 1, 1
    _same(t, x)
    if len(np.unique(_EACH[key])) == picked.size:  # else the order of the writes would tell
        x[key] = values = np.arange(picked.size).reshape(picked.shape).astype(kind)
        t[key] = values
        _same(t, x)


def test_indices_on_the_device_select_together(device: dml.Device) -> None:
    t = device.tensor(_FLOATS)
    rows, columns = device.tensor(np.int32([1, 0])), device.tensor(np.int64([2, -1]))
    _same(t[rows, columns], _FLOATS[[1, 0], [2, -1]])
    _same(t[dml.arange(2), [0, 1]], _FLOATS[[0, 1], [0, 1]])


def test_not_a_number(device: dml.Device) -> None:
    x = np.float32([1, np.nan, -np.inf, 3])
    t = device.tensor(x)
    for f in (np.isnan, np.isinf, np.isfinite, np.sort, np.argsort, np.max, np.sum,
              lambda x: x != x, lambda x: x == x, lambda x: x.astype(bool)):
        _same(f(t), f(x))  # type: ignore[no-untyped-call, operator]


def test_truth_values_stay_truth_values(device: dml.Device) -> None:
    t = device.tensor(_FLOATS)
    mask = (t > 0) & ~(t > 2) | (t == -0.5)
    expected = (_FLOATS > 0) & ~(_FLOATS > 2) | (_FLOATS == -0.5)
    _same(mask, expected)
    _same(mask.T[1:], expected.T[1:])
    _same(mask.sum(), expected.sum())
    _same(np.concatenate([mask, mask]), np.concatenate([expected, expected]))
    _same(np.sort(mask), np.sort(expected))
    _same(dml.where(mask, t, -1), np.where(expected, _FLOATS, np.float32(-1)))
    _same(dml.identity(mask.view("uint8")), expected.view(np.uint8))


def test_comparisons_with_what_a_type_cannot_hold(device: dml.Device) -> None:
    _same(device.tensor(_BYTES) > -1, _BYTES > -1)
    _same(device.tensor(_BYTES) == 300, _BYTES == 300)


def test_what_is_no_array_is_not_equal(device: dml.Device) -> None:
    t = device.tensor(_INTS)
    _same(t == None, _INTS == None)  # noqa: E711
    _same(t != None, _INTS != None)  # noqa: E711
    _same(t == "x", np.zeros(_INTS.shape, bool))
    assert 100 in t and 101 not in t
    with pytest.raises(TypeError):
        t + "x"


def test_scalars_and_iteration(device: dml.Device) -> None:
    t = device.tensor(_INTS)
    assert float(t[0, 0]) == -7.0 and int(t[1, 2]) == 100 and [10, 20][t[0, 2]] == 10
    assert t.item(1, 2) == t.item(5) == 100
    assert [row.tolist() for row in t] == _INTS.tolist() == t.tolist()
    assert f"{t[1, 2]:5.1f}" == "100.0"
    assert bytes(t) == bytes(t[:]) == _INTS.tobytes() and round(t[1, 2] / 3, 1) == 33.3
    with pytest.raises(dml.ValidationError, match="one element"):
        round(t)
    with pytest.raises(TypeError, match="no integer"):
        [0][device.tensor(np.float32([0]))]


def test_prints_as_numpy(device: dml.Device) -> None:
    for x in (_FLOATS, _INTS, _TRUTH, np.arange(5000, dtype=np.int16).reshape(10, 500),
              np.arange(2000, dtype=np.float32).reshape(2, 100, 10), np.arange(1200)):
        t = device.tensor(x)
        assert str(t) == str(x)
        assert repr(t).startswith("tensor(") and f"dtype={x.dtype}" in repr(t)
    assert repr(device.tensor(_FLOATS)) == (
        "tensor([[-2.5 , -0.5 ,  0.  ],\n        [ 1.5 ,  2.  ,  7.25]], dtype=float32)")
    t.free()
    assert repr(t).startswith("<Tensor INT64 [1200], on ")


def test_only_what_is_shown_is_read(device: dml.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    t = device.tensor(np.zeros((1000, 1000), np.float32))
    read: list[int] = []
    original = dml.Device.read

    def counted(self: Any, allocation: Any, offset: int, nbytes: int) -> Any:
        read.append(nbytes)
        return original(self, allocation, offset, nbytes)

    monkeypatch.setattr(dml.Device, "read", counted)
    assert "..." in str(t)
    assert sum(read) == 7 * 7 * 4


def test_copies_and_pickles_have_the_values(device: dml.Device) -> None:
    for x in (_FLOATS, _TRUTH, _INTS.T):
        t = device.tensor(x)
        for other in (copy.copy(t), copy.deepcopy([t])[0], pickle.loads(pickle.dumps(t)),
                      t.copy(), t.clone(), dml.array(t)):
            assert other is not t and other.allocation is not t.allocation
            _same(other, x)
    assert dml.asarray(t) is t


def test_dlpack(device: dml.Device) -> None:
    for x in (_FLOATS, _INTS.T):
        t = device.tensor(x)
        assert (np.from_dlpack(t) == x).all()  # type: ignore[arg-type]
        _same(dml.from_dlpack(x), x)
    assert t.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError):
        t.__dlpack__(copy=False)

    class Cuda:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    with pytest.raises(dml.UnsupportedError, match=r"x\.cpu\(\)"):
        dml.from_dlpack(Cuda())


def test_numpy_saves_what_tensors_hold(device: dml.Device) -> None:
    file = io.BytesIO()
    np.save(file, device.tensor(_FLOATS))  # type: ignore[arg-type]
    file.seek(0)
    assert (np.load(file) == _FLOATS).all()


@pytest.mark.parametrize("make", [
    lambda m: m.zeros((2, 3), dtype="int32"), lambda m: m.ones(4, dtype=bool),
    lambda m: m.full((2,), 7), lambda m: m.arange(5), lambda m: m.arange(2, 9, 3),
    lambda m: m.arange(0, 1, 0.25), lambda m: m.eye(3, 4, 1), lambda m: m.asarray([1.5, 2]),
    lambda m: m.array([[True], [False]]), lambda m: m.asarray(3), lambda m: m.linspace(0, 1, 5),
    lambda m: m.zeros(3, dtype=m.float16), lambda m: m.arange(5, dtype=m.uint8),
    lambda m: m.array([1, 2], dtype=m.float32), lambda m: m.full((2, 2), True),
    lambda m: m.concatenate([m.zeros(2, dtype="int8"), m.ones(1, dtype="int16")]),
    lambda m: m.eye(2, dtype=m.int32), lambda m: m.arange(-3, dtype="float32") if 0 else m.ones(1),
])
def test_creation_is_numpys(make: Any) -> None:
    _same(make(dml), make(np))


def test_creation_as_others_spell_it(device: dml.Device) -> None:
    assert dml.zeros(2, 3).shape == dml.empty([2, 3]).shape == (2, 3)
    assert dml.zeros(2, data_type="float16").dtype == dml.float16
    assert dml.ones(2, device=device).device is device
    assert dml.tensor(_INTS, dtype=dml.DataType.FLOAT32).dtype == np.float32
    values, indices = dml.topk(device.tensor(_FLOATS), 2)
    assert values.tolist() == [[0, -0.5], [7.25, 2]] and indices.tolist() == [[2, 1], [2, 1]]
    assert device.tensor(_FLOATS).sum(dim=0, keepdim=True).shape == (1, 3)
    assert dml.arange(0).shape == (0,)


def test_names_beside_directmls(device: dml.Device) -> None:
    t = device.tensor(_FLOATS)
    assert dml.max(t).item() == 7.25 and dml.mean(t, axis=1).shape == (2,)
    _same(dml.max(t, 0.0), np.maximum(_FLOATS, 0))
    _same(dml.relu(t), np.maximum(_FLOATS, 0))
    _same(dml.matmul(t, t.T), _FLOATS @ _FLOATS.T)
    assert np.allclose(dml.softmax(t, dim=0).sum(0).numpy(), 1)
    assert dml.argmax(t, axes=(1,)).data_type is dml.DataType.UINT32
    assert np.allclose(t, _FLOATS) and not np.array_equal(t, t + 1)


@pytest.mark.parametrize("use, message", [
    (lambda x: np.frexp(x), r"numpy\.asarray\(tensor\)"),
    (lambda x: np.linalg.svd(x), r"numpy\.linalg\.svd.*host=True.*asarray"),
    (lambda x: x[[0, 1], [0, 1, 2]], "do not broadcast"),
    (lambda x: x[_FLOATS[:1] > 1], r"be \[2, 3\], but got \[1, 3\]"),
    (lambda x: np.average(x, weights=[1, 2, 3]), "the weights have one"),
    (lambda x: np.diagonal(x, 3), r"within \[2, 3\]"), (lambda x: np.tensordot(x, x, 1), "agree"),
    (lambda x: np.where(x > 1, x), "neither"), (lambda x: x.view(3, 3), "elements"),
    (lambda x: x.T.view(6), "reshape copies"), (lambda x: x & 1, "integers or truth"),
    (lambda x: x.__setitem__(x > 1, x), "broadcast"),
    (lambda x: np.add(x, 1, where=False), "asarray"),
    (lambda x: x[[0, 7]], "out of range"), (lambda x: -(x > 1), "use ~"),
])
def test_refusals_say_what_to_use(use: Any, message: str, device: dml.Device) -> None:
    with pytest.raises(dml.DmlError, match=message):
        use(device.tensor(_FLOATS))


@pytest.mark.parametrize("name, instead", [
    ("cuda", r"use x\.to"), ("backward", "nothing records gradients"),
    ("stride", r"use x\.strides"),
    ("cov", r"use dml\.cov$"), ("atan2", r"use dml\.atan_yx$"), ("grad", "nothing records"),
    ("sigmoid_", r"use dml\.sigmoid with out=x$"), ("leaky_relu", r"use dml\.leaky_relu$"),
])
def test_attributes_of_others_say_what_to_use(
        name: str, instead: str, device: dml.Device) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}'; .*{instead}"):
        getattr(device.tensor(_FLOATS), name)
    assert not hasattr(device.tensor(_FLOATS), "__cuda_array_interface__")
    with pytest.raises(AttributeError, match=r"'zzzz'$"):
        _ = device.tensor(_FLOATS).zzzz


def test_every_function_that_is_used_instead_exists() -> None:
    text = " ".join([*hints._MODULE.values(), *hints._TENSOR.values()])
    for module, name in re.findall(r"\b(dml|numpy)\.(\w+)", text):
        assert hasattr(dml if module == "dml" else np, name), name
    for name in re.findall(r"\bx\.(\w+)", text):
        assert hasattr(dml.Tensor, name), name
    assert not [n for n in hints._TENSOR if hasattr(dml.Tensor, n)]
    assert not [n for n in hints._MODULE if callable(getattr(dml, n, None))]


_TABLE = (Path(__file__).parents[2] / "docs/coming-from.md").read_text("utf-8")
_LINES = re.findall(r"^\| `(.+?)` \| (.+?) \|$", _TABLE, re.MULTILINE)


def test_the_table_has_what_people_try() -> None:
    assert len(_LINES) >= 120


@pytest.mark.parametrize("tried, happens", _LINES, ids=[line[0] for line in _LINES])
def test_the_table_is_true(tried: str, happens: str, device: dml.Device) -> None:
    """An answer in backticks is the value's text. A name with a colon is an error and a part of its
    message. Other cells are not tested."""
    a = np.float32([[1, -2, 3], [4, 5, -6]])
    x, i = device.tensor(a), device.tensor(a.astype(np.int32))
    names = {"np": np, "dml": dml, "pickle": pickle, "copy": copy, "a": a, "x": x, "i": i,
             "m": x > 0}
    *before, last = tried.split("; ")
    if error := re.match(r"(\w+Error): (.+)", happens):
        kind = getattr(dml, error[1], None) or getattr(builtins, error[1])
        with pytest.raises(kind, match=re.escape(error[2])):
            exec(tried, names)
    elif happens == "in place":
        exec(tried, names)
        assert names["x"] is x and not np.array_equal(x, a)
    elif happens.startswith("`") and "torch" not in tried:
        exec("\n".join(before), names)
        value = eval(last, names)
        assert happens == f"`{value}`" or (
            isinstance(value, float) and value == pytest.approx(float(happens.strip("`"))))
    elif tried.startswith("torch: "):
        check_layer(tried, happens.strip("`"), names, device)
    else:
        assert "torch" in tried


def check_layer(theirs: str, ours: str, names: dict[str, Any], device: dml.Device) -> None:
    """A layer of PyTorch's beside what its own documentation says, in NumPy's terms."""
    rng = np.random.default_rng(3)
    made = {name: rng.random(sizes, np.float32) for name, sizes in {
        "image": (1, 2, 6, 6), "q": (1, 2, 4, 8), "w": (3, 2, 3, 3), "b": 3, "mean": 2, "var": 2,
        "scale": 2, "bias": 2, "w2": (5, 3)}.items()}
    names |= {name: device.tensor(array) for name, array in made.items()}
    labels = np.array([2, 0])
    names["labels"] = device.tensor(labels)
    image, q, x = made["image"], made["q"], names["a"]
    tiles = image.reshape(1, 2, 3, 2, 3, 2)
    around = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(around, (3, 3), (2, 3))[:, :, ::2, ::2]
    scores = np.exp(q @ q.swapaxes(-1, -2) / np.sqrt(8))
    of_channels = [made[name].reshape(1, 2, 1, 1) for name in ("mean", "var", "scale", "bias")]
    expected = {
        "conv2d": lambda: np.einsum("nchwij,kcij->nkhw", windows, made["w"])
        + made["b"].reshape(1, 3, 1, 1),
        "max_pool2d": lambda: tiles.max((3, 5)), "avg_pool2d": lambda: tiles.mean((3, 5)),
        "interpolate": lambda: image.repeat(2, 2).repeat(2, 3),
        "batch_norm": lambda: (image - of_channels[0]) / np.sqrt(of_channels[1] + 1e-5)
        * of_channels[2] + of_channels[3],
        "layer_norm": lambda: (x - x.mean(1, keepdims=True)) / np.sqrt(
            x.var(1, keepdims=True) + 1e-5),
        "scaled_dot_product_attention": lambda: scores / scores.sum(-1, keepdims=True) @ q,
        "cross_entropy": lambda: [-np.mean(
            [r[n] - np.log(np.exp(r).sum()) for r, n in zip(x, labels)])],
        "one_hot": lambda: np.eye(3)[labels], "embedding": lambda: made["w2"][labels],
        "linear": lambda: x @ made["w2"].T,
    }[re.findall(r"\w+", theirs)[1]]()
    np.testing.assert_allclose(eval(ours, names).numpy(), expected, rtol=2e-5, atol=2e-5)
