"""Long chains and many threads: the results equal NumPy's.

KOMPUTE_DML_TEST_SCALE=n makes every chain n times shorter (for runs under the validation layer).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import kompute_dml as dml
from switches import SCALE
from threads import in_threads

pytestmark = pytest.mark.stress

_SIDE = 48


class Pair:
    """A square tensor and the array it should equal."""

    def __init__(self, device: dml.Device, array: np.ndarray) -> None:
        self.array = array
        self.tensor = device.tensor(array)

    def check(self) -> None:
        np.testing.assert_array_equal(self.tensor.numpy(), self.array)


class Chain:
    """Random calls on a pool of tensors, repeated in NumPy."""

    def __init__(self, device: dml.Device, rng: np.random.Generator, dtype: str) -> None:
        self.device = device
        self.rng = rng
        self.dtype = dtype
        self.pool = [Pair(device, self.fresh()) for _ in range(5)]

    def fresh(self) -> np.ndarray:
        return self.rng.integers(-99, 99, (_SIDE, _SIDE)).astype(self.dtype)

    def pick(self) -> Pair:
        return self.pool[self.rng.integers(len(self.pool))]

    def window(self) -> tuple[slice, slice]:
        height, width, step = (int(n) for n in self.rng.choice((1, 3, 8, 20), 3))
        step = 1 + (step > 8)
        top = int(self.rng.integers(_SIDE - height * step))
        left = int(self.rng.integers(_SIDE - width))
        return slice(top, top + height * step, step), slice(left, left + width)

    def copy(self) -> None:
        """Copy a window of one tensor to a window of another, or to rows of the same tensor."""
        source, target = self.pick(), self.pick()
        rows, columns = self.window()
        other = self.window()[0].start
        span = rows.stop - rows.start
        if source is target and abs(other - rows.start) < span:
            return
        other = min(other, _SIDE - span)
        if source is target and abs(other - rows.start) < span:
            return
        into = slice(other, other + span, rows.step)
        dml.activation_identity(
            source.tensor[rows, columns], out=target.tensor[into, columns]
        )
        target.array[into, columns] = source.array[rows, columns]

    def transpose(self) -> None:
        """Replace a tensor by a new one while work on the old one is pending."""
        at = int(self.rng.integers(len(self.pool)))
        source = self.pick()
        new = Pair.__new__(Pair)
        new.tensor = dml.activation_identity(source.tensor.T)
        new.array = source.array.T.copy()
        self.pool[at] = new

    def whole(self) -> None:
        source, target = self.pick(), self.pick()
        dml.activation_identity(source.tensor, out=target.tensor)  # sometimes onto itself
        target.array[:] = source.array

    def diagonal(self) -> None:
        target, (rows, columns) = self.pick(), self.window()
        view = target.array[rows, columns]
        offset, value = int(self.rng.integers(-3, 4)), int(self.rng.integers(-9, 9))
        dml.diagonal_matrix(
            view.shape, offset=offset, value=value, data_type=self.dtype,
            out=target.tensor[rows, columns],
        )
        view[:] = np.eye(*view.shape, k=offset) * value

    def fill_in_place(self) -> None:
        target, (rows, columns) = self.pick(), self.window()
        view = target.array[rows, columns]
        begin = int(self.rng.integers(-3, 3))
        end = begin + int(self.rng.integers(1, 4))
        value = int(self.rng.integers(-9, 9))
        part = target.tensor[rows, columns]
        dml.diagonal_matrix1(
            part, value=value, diagonal_fill_begin=begin, diagonal_fill_end=end, out=part
        )
        y, x = np.indices(view.shape)
        view[(begin <= x - y) & (x - y < end)] = value

    def upload(self) -> None:
        self.pool[self.rng.integers(len(self.pool))] = Pair(self.device, self.fresh())

    def overwrite(self) -> None:
        target = self.pick()
        target.array[:] = self.fresh()
        self.device.write(
            target.tensor.allocation, 0, target.array.reshape(-1).view(np.uint8)
        )

    def read(self) -> None:
        self.pick().check()

    def run(self, calls: int) -> None:
        steps: list[Callable[[], None]] = [
            self.copy, self.transpose, self.whole, self.diagonal, self.fill_in_place,
            self.upload, self.overwrite, self.read,
        ]
        weights = np.array([30, 8, 8, 20, 30, 1, 1, 2]) / 100
        for i in self.rng.choice(len(steps), calls, p=weights):
            steps[i]()
        for pair in self.pool:
            pair.check()


@pytest.mark.parametrize("dtype,calls", [("float32", 3_000), ("float16", 1_000)])
def test_a_long_chain_of_dependent_dispatches(
    own: dml.Device, rng: np.random.Generator, dtype: str, calls: int
) -> None:
    Chain(own, rng, dtype).run(calls // SCALE)


def test_a_long_recording_replays_with_other_inputs(
    own: dml.Device, rng: np.random.Generator
) -> None:
    """Replays of a recorded chain work on the new contents of the pool."""
    chain = Chain(own, rng, "float32")
    state = rng.bit_generator.state
    steps = [chain.copy, chain.whole, chain.diagonal, chain.fill_in_place]

    def run() -> None:
        for i in range(400 // SCALE):
            steps[i % len(steps)]()

    with own.record() as recording:
        run()
    for pair in chain.pool:
        pair.check()
    for _ in range(3):
        for pair in chain.pool:
            pair.array[:] = chain.fresh()
            own.write(pair.tensor.allocation, 0, pair.array.reshape(-1).view(np.uint8))
        recording.replay()
        # NumPy's result for the new contents: the same calls, on arrays only.
        mirror = Chain.__new__(Chain)
        mirror.device, mirror.dtype = own, "float32"
        mirror.rng = np.random.default_rng()
        mirror.rng.bit_generator.state = state
        mirror.pool = chain.pool
        with _no_device():
            for i in range(400 // SCALE):
                (mirror.copy, mirror.whole, mirror.diagonal, mirror.fill_in_place)[i % 4]()
        for pair in chain.pool:
            pair.check()


@contextlib.contextmanager
def _no_device() -> Iterator[None]:
    """Inside the block, calls of a chain change only its arrays."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("activation_identity", "diagonal_matrix", "diagonal_matrix1"):
            patch.setattr(dml, name, lambda *args, **kwargs: None)
        yield


def test_eight_threads_on_one_device(own: dml.Device, seed: int) -> None:
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait(30)
        dtype = ("float32", "float16")[number % 2]
        Chain(own, np.random.default_rng([seed, number]), dtype).run(240 // SCALE)

    in_threads(8, work)
    own.synchronize()


def test_a_recording_keeps_other_threads_out(own: dml.Device) -> None:
    """Calls of other threads wait for the end of the recording and are not part of it."""
    x = own.tensor(np.arange(64, dtype=np.float32))
    done = threading.Event()

    def other() -> None:
        dml.activation_identity(x)
        done.set()

    thread = threading.Thread(target=other, daemon=True)
    with own.record() as recording:
        thread.start()
        assert not done.wait(0.2)
        dml.activation_identity(x)
    assert done.wait(30)
    thread.join(30)
    assert len(recording) == 1


def test_tensors_dropped_in_other_threads_come_back(own: dml.Device) -> None:
    x = own.tensor(np.arange(64, dtype=np.float32))
    stop = threading.Event()
    handed: list[dml.Tensor] = []

    def dropper() -> None:
        while not stop.is_set() or handed:
            if handed:
                handed.pop()

    threads = [threading.Thread(target=_quietly(dropper), daemon=True) for _ in range(3)]
    for t in threads:
        t.start()
    for i in range(2000 // SCALE):
        handed.append(dml.activation_identity(x) if i % 2 else own.empty([300]))
    stop.set()
    for t in threads:
        t.join(60)
    own.synchronize()
    assert own.memory_used == 256


def _quietly(work: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            work()
        except IndexError:  # another thread was faster
            run()

    return run
