"""Hazards compared with a model by bytes, and barriers counted on the device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kompute_dml as dml
from kompute_dml.runtime.hazards import Access, Hazards, Intervals, Spans
from kompute_dml.runtime.heap import Allocation, Block
from kompute_dml.runtime.kp_engine import CommandList
from switches import shared_blocks

SPACE = 60
ranges = st.tuples(st.integers(0, SPACE - 1), st.integers(1, 12)).map(
    lambda r: (r[0], min(r[0] + r[1], SPACE))
)
quick = settings(max_examples=150, deadline=None, derandomize=True)


accesses = st.lists(st.lists(st.tuples(st.integers(0, 2), ranges, ranges, st.booleans()),
                             min_size=1, max_size=3), min_size=1, max_size=12)


@quick
@given(accesses)
def test_waits_are_those_of_dispatches_one_by_one_and_hold_where_no_accesses_meet(
    dispatches: list[list[tuple[int, tuple[int, int], tuple[int, int], bool]]],
) -> None:
    """Each access has a range for which waits are found, and another one."""
    memory = [Allocation(Block(None, SPACE), 0, SPACE) for _ in range(3)]
    flat = [(i, *access) for i, own in enumerate(dispatches) for access in own]
    spans = Spans(np.array([i for i, *_ in flat]), [memory[m] for _, m, *_ in flat],
                  np.array([writes for *_, writes in flat]),
                  np.array([a != b for _, _, a, b, _ in flat]))
    first, other = (np.array([access[k] for access in flat]).T for k in (2, 3))
    assert spans.order(*first) and spans.hold(*first[:, spans.watched])
    hazards, expected = Hazards(), []
    for own in dispatches:
        touched: list[Access] = [(memory[m], *a, writes) for m, a, _, writes in own]
        expected.append(not expected or hazards.conflicts(touched))
        if expected[-1]:
            hazards.clear()
        hazards.add(touched)
    assert spans.waits.tolist() == expected
    hazards, enough = Hazards(), True
    for wait, own in zip(expected, dispatches):
        touched = [(memory[m], *b, writes) for m, _, b, writes in own]
        if wait:
            hazards.clear()
        enough = enough and not hazards.conflicts(touched)
        hazards.add(touched)
    assert spans.hold(*other[:, spans.watched]) == enough


@quick
@given(st.lists(ranges, min_size=1, max_size=25), st.lists(ranges, min_size=1, max_size=10))
def test_intervals_equal_a_set_of_bytes(
    added: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    intervals, model = Intervals(*added[0]), set[int]()
    for begin, end in added:
        if model:
            intervals.add(begin, end)
        model |= set(range(begin, end))
        for a, b in asked:
            assert intervals.overlaps(a, b) == bool(model & set(range(a, b)))
    begins, ends = intervals._begins, intervals._ends
    assert set[int]().union(*(range(b, e) for b, e in zip(begins, ends))) == model
    assert all(e < b for e, b in zip(ends, begins[1:])), "those that touch are one"


blocks = [Block(None, SPACE) for _ in range(2)]
accesses = st.lists(
    st.builds(
        lambda block, r, writes: (Allocation(blocks[block], 0, SPACE), *r, writes),
        st.integers(0, 1), ranges, st.booleans(),
    ),
    min_size=1, max_size=4,
)


@quick
@given(st.lists(accesses, max_size=12))
def test_hazards_equal_a_model_of_bytes(dispatches: list[list[Access]]) -> None:
    hazards = Hazards()
    read: set[tuple[Block, int]] = set()
    written: set[tuple[Block, int]] = set()
    for dispatch in dispatches:
        expected = False
        for allocation, begin, end, writes in dispatch:
            touched = {(allocation.block, i) for i in range(begin, end)}
            expected |= bool(touched & written) or (writes and bool(touched & read))
        assert hazards.conflicts(dispatch) == expected
        if expected:
            hazards.clear()
            read.clear()
            written.clear()
        hazards.add(dispatch)
        for allocation, begin, end, writes in dispatch:
            touched = {(allocation.block, i) for i in range(begin, end)}
            (written if writes else read).update(touched)
    touched_blocks = {b for b, _ in read | written}
    assert set(hazards.blocks()) == touched_blocks


Ordered = Callable[[Callable[[], object]], int]


@pytest.fixture
def orderings(device: dml.Device, monkeypatch: pytest.MonkeyPatch) -> Ordered:
    """Counts what orders dispatches: barriers, or submits if kp records no barriers."""
    recorder = device.runtime.recorder
    barriers = 0
    real = CommandList.barrier

    def counting(self: CommandList, buffers: list[object]) -> None:
        nonlocal barriers
        barriers += 1
        real(self, buffers)

    def count(work: Callable[[], object]) -> int:
        nonlocal barriers
        device.synchronize()
        barriers, submits = 0, recorder.submits
        work()
        made = barriers
        device.synchronize()
        if device.runtime.engine.records_barriers:
            assert recorder.submits == submits + 1
            return made
        return recorder.submits - submits - 1

    monkeypatch.setattr(CommandList, "barrier", counting)
    return count


def tensors(device: dml.Device, count: int) -> list[dml.Tensor]:
    return [device.tensor(np.full(64, i, np.float32)) for i in range(count)]


@shared_blocks
@pytest.mark.parametrize("copies, values", [
    pytest.param([(0, 1), (1, 2)], [0, 0, 0], id="read-after-write"),
    pytest.param([(1, 2), (0, 1)], [0, 0, 1], id="write-after-read"),
    pytest.param([(0, 2), (1, 2)], [0, 1, 1], id="write-after-write"),
])
def test_what_depends_on_the_dispatch_before_is_ordered_once(
    copies: list[tuple[int, int]], values: list[int], device: dml.Device, orderings: Ordered
) -> None:
    all_tensors = tensors(device, 3)

    def chain() -> None:
        for source, to in copies:
            dml.activation_identity(all_tensors[source], out=all_tensors[to])

    assert orderings(chain) == 1
    assert [t.numpy().tolist() for t in all_tensors] == [[v] * 64 for v in values]


@shared_blocks
def test_independent_dispatches_are_not_ordered(device: dml.Device, orderings: Ordered) -> None:
    source, *results = tensors(device, 20)

    def fan_out() -> None:
        for r in results:
            dml.activation_identity(source, out=r)

    assert orderings(fan_out) == 0
    assert all((r.numpy() == 0).all() for r in results)


@shared_blocks
def test_halves_of_one_tensor_are_independent(device: dml.Device, orderings: Ordered) -> None:
    a, b, c = tensors(device, 3)

    def halves() -> None:
        dml.activation_identity(a[:32], out=c[:32])
        dml.activation_identity(b[32:], out=c[32:])

    assert orderings(halves) == 0
    np.testing.assert_array_equal(c.numpy(), [0] * 32 + [1] * 32)


@shared_blocks
def test_neighbours_in_one_word_are_ordered(device: dml.Device, orderings: Ordered) -> None:
    """Both dispatches store to the third word, because shaders write whole words."""
    a = device.tensor(np.arange(6, dtype=np.float16))
    out = device.tensor(np.full(6, -1, np.float16))

    def thirds() -> None:
        dml.activation_identity(a[:3], out=out[:3])
        dml.activation_identity(a[3:], out=out[3:])

    assert orderings(thirds) == 1
    np.testing.assert_array_equal(out.numpy(), np.arange(6))


@shared_blocks
def test_one_ordering_serves_all_that_came_before(device: dml.Device, orderings: Ordered) -> None:
    sources, middles, ends = tensors(device, 5), tensors(device, 5), tensors(device, 5)

    def two_layers() -> None:
        for x, y in zip(sources, middles):
            dml.activation_identity(x, out=y)
        for y, z in zip(middles, ends):
            dml.activation_identity(y, out=z)

    assert orderings(two_layers) == 1
    assert [z.numpy()[0] for z in ends] == [0, 1, 2, 3, 4]
