"""Memory of a graph's values: separate if they are alive together, else shared."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.graph import memory
from kompute_dml.graph.array import Array
from kompute_dml.graph.builder import Builder
from kompute_dml.graph.memory import Storage, share
from kompute_dml.runtime.heap import ALIGNMENT

_MUCH = 1024
"""So many times as large, a waste of memory is worth another order."""


def _shared(lives: list[tuple[int, int, int]]) -> int:
    """The bytes of a plan for storages (bytes, first step, last step)."""
    storages = [Storage(*life) for life in lives]
    use = share(storages)
    nbytes = use.planned
    assert -(-nbytes // ALIGNMENT) * ALIGNMENT >= use.alive
    assert all(s.offset % ALIGNMENT == 0 for s in storages)
    assert all(s.offset + s.nbytes <= nbytes for s in storages)
    for a, b in itertools.combinations(storages, 2):
        apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
        assert apart or a.last < b.first or b.last < a.first
    return nbytes


def test_storages_that_are_alive_together_lie_apart(rng: np.random.Generator) -> None:
    for _ in range(50):
        lives = np.sort(rng.integers(0, 12, (20, 2)))
        _shared([(int(rng.integers(1, 3000)), int(a), int(b)) for a, b in lives])


@pytest.mark.parametrize("lives, nbytes", [
    *(([(1024, i, i + 1) for i in steps], 2 * 1024)  # a chain: two at a time
      for steps in (range(9), reversed(range(9)))),
    # The last one fits beside the third, after the second.
    ([(4096, 0, 5), (3072, 0, 1), (2048, 2, 5), (1024, 0, 3), (1000, 2, 3)], 8192),
    # Small ones must not come first.
    ([(256, 0, 3), (1024, 0, 1), (256, 1, 2), (2048, 2, 3)], 2048 + 2 * 256),
])
def test_storages_that_are_never_alive_together_share_memory(
    lives: list[tuple[int, int, int]], nbytes: int
) -> None:
    assert _shared([(_MUCH * n, first, last) for n, first, last in lives]) == _MUCH * nbytes


def test_no_order_is_sought_for_a_few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[Sequence[Storage]] = []
    place = memory._place

    def counted(storages: Sequence[Storage]) -> int:
        orders.append(storages)
        return place(storages)

    monkeypatch.setattr(memory, "_place", counted)
    lives = [(1024, 3, 5), (1536, 4, 5), (2048, 2, 2), (1792, 4, 4), (1024, 3, 3), (2048, 2, 3)]
    assert _shared(lives) == 5120 and len(orders) == 1
    assert _shared([(_MUCH * n, first, last) for n, first, last in lives]) < _MUCH * 5120
    assert len(orders) > 2


def test_memory_is_close_to_the_most_that_is_alive_at_once(rng: np.random.Generator) -> None:
    for _ in range(50):
        ends = np.minimum(range(40) + rng.geometric(0.35, 40), 40)
        sizes = _MUCH * ALIGNMENT * rng.integers(1, 40, 40)
        most = max(sum(n for n, a, b in zip(sizes, range(40), ends) if a <= step <= b)
                   for step in range(40))
        use = share([Storage(int(n), a, int(b)) for n, a, b in zip(sizes, range(40), ends)])
        assert use.alive == most
        assert use.planned <= 1.1 * most
        assert str(use).startswith(f"{use.planned} bytes")


def test_a_thousand_operators_are_planned_in_half_a_second(device: dml.Device) -> None:
    def plan(count: int) -> list[str]:
        graph = dml.Graph(device)
        x = value = graph.input([16, 16])
        for i in range(count // 4):
            sums = dml.add(dml.gemm(value, np.full((16, 16), i % 4, np.float32)), x)
            value = dml.multiply(dml.activation_relu(sums), value)
        start = time.process_time()  # unaffected by other processes
        operators = graph.compile(value).operators
        seconds.append(time.process_time() - start)
        return operators

    seconds: list[float] = []
    plan(8)
    assert len(plan(1000)) == 250
    assert seconds[1] < 0.5


def _sum(builder: Builder, a: Array, b: Array) -> Array:
    y = builder.new(a.shape, a.dtype)
    tensors = zip(("a_tensor", "b_tensor", "output_tensor"), (a, b, y))
    builder.emit("ELEMENT_WISE_ADD", {f: (x, x.shape, x.strides) for f, x in tensors})
    return y


@pytest.mark.parametrize("strides, in_place", [((8, 1), True), ((1, 8), False), ((0, 1), False)])
def test_an_operator_writes_over_an_input_that_ends_there(
    strides: tuple[int, int], in_place: bool, device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if all of its inputs in that memory have the layout of the result."""
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "elementwise_fusion,epilogue")
    builder = Builder(device)
    x = builder.new((8, 8), "float32")
    first = _sum(builder, x, x)
    second = _sum(builder, first, first.view((8, 8), strides))
    plan = builder.finish([x], [_sum(builder, second, x)])
    assert first.storage is not None and second.storage is not None
    assert (first.storage.slot() == second.storage.slot()) == in_place
    given = np.arange(64, dtype=np.float32).reshape(8, 8)
    twice = 2 * given
    seen = np.lib.stride_tricks.as_strided(twice, (8, 8), [4 * s for s in strides])
    np.testing.assert_array_equal(plan.run([given])[0], twice + seen + given)


def test_a_value_that_is_read_again_is_not_written_over(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "elementwise_fusion,epilogue")
    builder = Builder(device)
    x = builder.new((64,), "float32")
    first = _sum(builder, x, x)
    second = _sum(builder, first, first)
    plan = builder.finish([x], [_sum(builder, second, first)])
    np.testing.assert_array_equal(plan.run([np.ones(64, np.float32)])[0], 6)


@pytest.mark.parametrize("begins", [(0,), (0, 1), (1, 0), (0, 0), (3, 0, 2)])
def test_a_bound_output_is_written_alone(begins: tuple[int, ...], device: dml.Device) -> None:
    """Some rows of a value, by the first one of each output: also the first rows, which begin
    where the value begins."""
    rows, columns, room = 17, 64, 32
    builder = Builder(device)
    x = builder.new((rows, columns), "float32")
    y = _sum(builder, x, x)
    outputs = [y.view((2, columns), (columns, 1), begin * columns) for begin in begins]
    plan = builder.finish([x], outputs, bound=True)
    expected = np.full((room * (1 + len(begins)), columns), -1, np.float32)
    expected[:rows] = np.arange(rows * columns).reshape(rows, columns)
    whole = device.allocate(expected.nbytes)
    device.write(whole, 0, expected.reshape(-1).view(np.uint8))
    places = [(whole, room * j * columns * 4) for j in range(1 + len(begins))]
    plan.bind(places[:1], places[1:])
    for j, begin in enumerate(begins, 1):
        expected[room * j : room * j + 2] = 2 * expected[begin : begin + 2]
    result = np.empty(expected.nbytes, np.uint8)
    device.read(whole, 0, result.size, result)
    np.testing.assert_array_equal(result.view(np.float32).reshape(expected.shape), expected)
