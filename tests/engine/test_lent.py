"""Results on the host lie in memory of earlier ones that nobody holds."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.runtime import lent

MB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent, "_idle", deque(maxlen=2))


def _address(x: np.ndarray) -> int:
    return x.ctypes.data


def test_memory_comes_back_with_the_last_view() -> None:
    x = lent.empty(8 * MB)
    assert x.flags.writeable and x.dtype == np.uint8 and x.nbytes == 8 * MB
    at, view = _address(x), x[5 * MB :].view(np.float32).reshape(3, -1)
    del x
    other = lent.empty(8 * MB)
    assert not lent._idle and not np.may_share_memory(view, other)
    del view
    assert [_address(m) for m in lent._idle] == [at]
    again = lent.empty(6 * MB)
    assert _address(again) == at and again.nbytes == 6 * MB and not lent._idle


def test_memory_is_not_wasted() -> None:
    large = lent.empty(64 * MB)
    at = _address(large)
    del large
    assert _address(lent.empty(8 * MB)) != at  # 56 MB would lie idle
    assert lent.empty(4 * MB - 1).base is None and lent.empty(129 * MB).base is None


def test_no_more_than_two_lie_idle() -> None:
    many = [lent.empty(4 * MB) for _ in range(5)]
    many.clear()
    assert len(lent._idle) == 2


def test_a_result_that_is_held_keeps_its_elements(device: dml.Device) -> None:
    x = np.arange(2 * MB, dtype=np.float32)
    with dml.Graph(device) as g:
        run = g.compile(-g.input(x.shape))
    first, second = run(x), run(x + 1)
    places = {_address(first), _address(second)}
    assert (first == -x).all() and (second == -x - 1).all() and len(places) == 2
    part = second[7:9]
    del first, second
    third, fourth = run(x + 2), run(x + 3)
    assert _address(third) in places and _address(fourth) not in places
    assert (third == -x - 2).all() and (fourth == -x - 3).all() and (part == [-8, -9]).all()
