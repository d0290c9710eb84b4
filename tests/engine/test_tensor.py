"""Tensors: upload, download, views."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kompute_dml as dml


@pytest.mark.parametrize("data_type", [t for t in dml.DataType if t.bits >= 8], ids=str)
def test_round_trip_keeps_every_bit(
    data_type: dml.DataType, device: dml.Device, rng: np.random.Generator
) -> None:
    for count in (1, 2, 3, 5, 257):
        raw = np.frombuffer(rng.bytes(count * data_type.itemsize), data_type.dtype)
        t = device.tensor(raw)
        assert t.data_type is data_type
        assert t.numpy().tobytes() == raw.tobytes()


@pytest.mark.parametrize("make", [
    lambda x: x, lambda x: x.T, lambda x: x[::2], lambda x: x[:, ::-1], lambda x: x[1:, 2:],
    np.asfortranarray, lambda x: np.broadcast_to(x[0], (4, 6)), lambda x: x.tolist(),
    lambda x: x.astype(">f4"), lambda x: x[2], lambda x: x.reshape(2, 2, 3, 1, 2),
], ids=["packed", "transposed", "stepped", "reversed", "sliced", "fortran", "broadcast", "list",
        "big-endian", "row", "five"])
def test_upload_of_any_array(make: Any, device: dml.Device) -> None:
    given_array = make(np.arange(24, dtype=np.float32).reshape(4, 6))
    t = device.tensor(given_array, "float32")
    assert t.sizes == np.shape(given_array)
    assert t.desc.is_packed
    assert (t.numpy() == np.asarray(given_array)).all()


def test_properties(device: dml.Device) -> None:
    t = device.tensor(np.zeros((2, 3, 5), np.float16))
    assert t.sizes == t.shape == (2, 3, 5)
    assert t.strides == (15, 5, 1)
    assert t.data_type is dml.DataType.FLOAT16
    assert t.dtype == np.float16
    assert (t.ndim, t.size, t.nbytes, len(t)) == (3, 30, 60, 2)
    assert t.device is device
    assert t.desc == dml.TensorDesc("float16", [2, 3, 5])
    assert t.summary() == f"<Tensor FLOAT16 [2, 3, 5], on {device.adapter.name!r}>"
    assert "strides=[1, 5, 15]" in t.T.summary()


def test_numbers_have_no_dimensions(device: dml.Device) -> None:
    """DirectML's description of them has one."""
    for t in (device.tensor(np.float32(3)), device.tensor(np.float32([3]))[0]):
        assert t.sizes == t.shape == t.strides == () and t.ndim == 0 and t.size == 1
        assert t.desc.sizes == (1,) and t.nbytes == 4
        assert t.item() == t.tolist() == 3.0 and t.numpy().shape == np.asarray(t).shape == ()
        assert t.reshape(1, 1).shape == (1, 1) and t[None].shape == (1,) and t[()].shape == ()
        assert t.broadcast_to(2, 3).numpy().tolist() == [[3] * 3] * 2
        assert np.from_dlpack(t).shape == () and repr(t) == "tensor(3., dtype=float32)"
        with pytest.raises(TypeError, match="no dimensions"):
            len(t)
        with pytest.raises(TypeError, match="no dimensions"):
            iter(t)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 3)])
def test_tensors_without_elements(shape: Any, device: dml.Device) -> None:
    array = np.zeros(shape, np.float32)
    for t in (device.tensor(array), device.empty(shape), dml.zeros(shape, device=device)):
        assert t.shape == t.numpy().shape == shape and t.size == t.nbytes == 0
        assert t.tolist() == array.tolist() and len(t) == len(array)
        assert (t + 1).shape == np.exp(t).shape == dml.activation_relu(t).shape == shape
        assert t.T.shape == array.T.shape and t.reshape(-1).shape == (0,)
        assert t.sum().item() == 0 and t.prod().item() == 1 and not t.any() and t.all()
        t[...] = 5
        assert repr(t) == f"tensor({np.array2string(array)}, dtype=float32)"
        with pytest.raises(dml.ValidationError, match="an element"):
            t.max()
        with pytest.raises(dml.ValidationError, match="have elements"):
            dml.reduce(t, function="SUM", axes=[0])


@pytest.mark.parametrize("value", [0, 1])
def test_truth_of_one_element(value: int, device: dml.Device) -> None:
    assert bool(device.tensor(np.uint8([value]))) is bool(value)
    with pytest.raises(ValueError, match="ambiguous"):
        bool(device.tensor(np.uint8([value, 1])))


def test_one_element_or_an_error(device: dml.Device) -> None:
    with pytest.raises(dml.ValidationError, match=r"Tensor\.item.*one element.*\[2\]"):
        device.tensor([1, 2]).item()


@pytest.mark.parametrize("use", [lambda x: np.frexp(x), lambda x: np.linalg.svd(x),
                                 lambda x: np.add(1, 2, out=np.zeros(3), where=x)])
def test_nothing_computes_on_the_host_unseen(use: Any, device: dml.Device) -> None:
    with pytest.raises(dml.UnsupportedError, match=r"numpy\.asarray\(tensor\)|tensor\.numpy\(\)"):
        use(device.tensor(np.float32([1, 2, 3])))


def test_tensors_are_told_apart_by_identity(device: dml.Device) -> None:
    x, y = device.tensor([1]), device.tensor([1])
    assert len({x, y, x}) == 2 and {x: 1, y: 2}[y] == 2
    assert x in [y, x][1:]


def test_asarray(device: dml.Device) -> None:
    t = device.tensor(np.arange(3, dtype=np.int32))
    assert np.asarray(t).dtype == np.int32
    assert np.asarray(t, np.float64).tolist() == [0, 1, 2]
    assert (np.array(t) + np.ones(3)).tolist() == [1, 2, 3]


def test_downloads_are_copies(device: dml.Device) -> None:
    t = device.tensor(np.zeros(3, np.float32))
    copy = t.numpy()
    copy[:] = 1
    assert not t.numpy().any()
    assert t.T.numpy().flags.writeable


_slices = st.builds(slice, st.none() | st.integers(-7, 7), st.none() | st.integers(-7, 7),
                    st.none() | st.integers(-3, 3).filter(bool))
_keys = st.lists(st.one_of(st.integers(-3, 2), _slices, st.none(), st.just(Ellipsis)), max_size=5)


@settings(max_examples=200)
@given(keys=_keys)
def test_indexing_is_numpys(keys: list[Any], device: dml.Device) -> None:
    array = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    t = device.tensor(array)
    key = tuple(keys)
    try:
        expected = array[key]
    except IndexError:
        with pytest.raises(IndexError):
            t[key]
        return
    if expected.ndim > 8:
        with pytest.raises(dml.ValidationError):
            t[key]
        return
    result = t[key]
    assert result.sizes == expected.shape
    assert (result.numpy() == expected).all()
    t[key] = values = np.arange(expected.size, dtype=np.uint8).reshape(expected.shape)
    array[key] = values
    assert (t.numpy() == array).all()


@settings(max_examples=50)
@given(axes=st.permutations(range(4)))
def test_transpose_is_numpys(axes: list[int], device: dml.Device) -> None:
    array = np.arange(2 * 3 * 4 * 5, dtype=np.int16).reshape(2, 3, 4, 5)
    t = device.tensor(array)
    assert (t.transpose(*axes).numpy() == array.transpose(axes)).all()
    assert (t.transpose(axes).numpy() == array.transpose(axes)).all()
    negative = [a - 4 for a in axes]
    assert (t.transpose(negative).numpy() == array.transpose(axes)).all()


def test_other_views(device: dml.Device) -> None:
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    t = device.tensor(array)
    assert (t.T.numpy() == array.T).all()
    assert (t.reshape(3, 8).numpy() == array.reshape(3, 8)).all()
    assert (t.reshape([2, -1, 3]).numpy() == array.reshape(2, -1, 3)).all()
    assert (t[:, :3].reshape(4, 3, 1).numpy() == array[:, :3].reshape(4, 3, 1)).all()
    assert (t[:1].broadcast_to(5, 6).numpy() == np.broadcast_to(array[:1], (5, 6))).all()
    assert (t[0].broadcast_to([2, 3, 6]).numpy() == np.broadcast_to(array[0], (2, 3, 6))).all()
    assert (t[1:3].T[2:5:2].numpy() == array[1:3].T[2:5:2]).all()


def test_views_take_the_integers_of_numpy(device: dml.Device) -> None:
    array = np.arange(24, dtype=np.int32).reshape(4, 6)
    t = device.tensor(array)
    flat = t.reshape(np.prod(t.shape))
    assert (flat.numpy() == array.reshape(-1)).all()
    assert flat.reshape(np.int64(-1)).sizes == flat.transpose(np.int8(0)).sizes == (24,)
    assert flat[:1].broadcast_to(np.int16(5)).sizes == (5,)
    assert t.reshape(np.array([2, 12])).sizes == (2, 12)


def test_views_share_memory(device: dml.Device) -> None:
    before = device.memory_used
    t = device.tensor(np.zeros((4, 6), np.uint8))
    one = device.memory_used - before
    views = [t.T, t[1:], t.reshape(24), t[:1].broadcast_to(9, 6)]
    assert device.memory_used - before == one
    dml.diagonal_matrix((4, 3), value=7, data_type="uint8", out=t[:, 1:4])
    assert (np.eye(4, 6, 1) * 7 * (np.arange(6) < 4) == views[0].numpy().T).all()
    assert (views[2].numpy().reshape(4, 6) == t.numpy()).all()


def test_a_view_keeps_the_memory(device: dml.Device) -> None:
    view = device.tensor(np.arange(10, dtype=np.float32))[3:5]
    gc.collect()
    for _ in range(10):
        device.tensor(np.zeros(10, np.float32))
    assert view.numpy().tolist() == [3, 4]


@pytest.mark.parametrize("wrong", [
    lambda t: t[4], lambda t: t[-5], lambda t: t[0, 0, 0], lambda t: t[0.5], lambda t: t["x"],
    lambda t: t[[0, 4]], lambda t: t[[0.5]], lambda t: t[True], lambda t: t[..., ...],
])
def test_bad_indices(wrong: Any, device: dml.Device) -> None:
    with pytest.raises(dml.ValidationError) as caught:
        wrong(device.tensor(np.zeros((4, 6), np.float32)))
    assert isinstance(caught.value, IndexError)


@pytest.mark.parametrize("wrong", [
    lambda t: t[(None,) * 7], lambda t: t.transpose(0),
    lambda t: t.transpose(0, 0), lambda t: t.transpose(0, 2), lambda t: t.reshape(5, 5),
    lambda t: t.reshape(-1, -1), lambda t: t.reshape(0, 24), lambda t: t.T.view(24),
    lambda t: t.broadcast_to(4, 7), lambda t: t.broadcast_to(6), lambda t: t.reshape(2.5),
    lambda t: t.broadcast_to(None), lambda t: t.transpose("01"),
])
def test_bad_views(wrong: Any, device: dml.Device) -> None:
    with pytest.raises(dml.ValidationError):
        wrong(device.tensor(np.zeros((4, 6), np.float32)))


def test_a_tensor_costs_its_bytes_and_little_more(device: dml.Device) -> None:
    device.synchronize()
    before = device.memory_used
    kept = [device.empty([n], "uint8") for n in (1, 255, 256, 257, 1000)]
    assert device.memory_used - before <= sum(t.nbytes for t in kept) + 256 * len(kept)
    del kept
    gc.collect()
    device.synchronize()
    assert device.memory_used <= before
