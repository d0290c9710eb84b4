"""Uploads that a thread makes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.errors import DeviceLostError
from kompute_dml.runtime import uploads
from kompute_dml.runtime.transfer import Transfer
from kompute_dml.runtime.uploads import Uploads


@pytest.fixture
def staged(device: dml.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[dml.Device]:
    """A device whose memory the host does not reach. Each upload has a thread."""
    monkeypatch.setattr(uploads, "LEAST", 0)
    monkeypatch.setenv("KOMPUTE_DML_TEST_STAGED", "1")
    own = dml.Device(device.adapter)
    yield own
    own.close()


def test_arrays_of_any_size_arrive(staged: dml.Device, rng: np.random.Generator) -> None:
    """Some share a slot, some take several, and some end between two words."""
    sizes = [1, 5, 1 << 20, (9 << 20) + 3, 255, 256, (17 << 20) + 1, 2]
    arrays = [rng.integers(0, 256, n, np.uint8) for n in sizes]
    places = [staged.allocate(n, True) for n in sizes]
    apart = Uploads(staged.runtime.transfer)
    for x, place in zip(arrays, places):
        apart.add(x, place)
    usual = sys.getswitchinterval()
    apart.begin()
    beside = staged.tensor(np.arange(1000))  # through slots of its own
    apart.finish()
    assert sys.getswitchinterval() == usual
    again = staged.allocate(sizes[3], True)
    apart.add(arrays[3], again)
    apart.begin()
    apart.finish()
    assert (staged.read(again, 0, sizes[3] // 4 * 4) == arrays[3][: sizes[3] // 4 * 4]).all()
    for x, place in zip(arrays, places):
        padded = staged.read(place, 0, (x.nbytes + 3) // 4 * 4)
        assert (padded[: x.nbytes] == x).all() and not padded[x.nbytes :].any()
    assert (beside.numpy() == np.arange(1000)).all()


def test_what_the_thread_raises_is_raised(
    staged: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object) -> None:
        raise DeviceLostError("it is lost")

    monkeypatch.setattr(Transfer, "send", lose)
    apart = Uploads(staged.runtime.transfer)
    apart.add(np.zeros(1 << 20, np.uint8), staged.allocate(1 << 20, True))
    apart.begin()
    with pytest.raises(DeviceLostError, match="it is lost"):
        apart.finish()
    apart.finish()  # nothing is left
