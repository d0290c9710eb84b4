"""How the benchmark times the device, and the libraries beside it."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import uuid
from types import SimpleNamespace

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.bench import cases, limits, peers, products, rows, timing
from kompute_dml.bench.case import SCALES, Case, Peer
from kompute_dml.bench.peers import PeerTime
from kompute_dml.bench.timing import Clock, Loop, Stats, Timings, measure, repeats, report
from kompute_dml.cases import TINY
from kompute_dml.runtime import adapters

# -- clocks


def test_statistics():
    stats = Stats.of([4.0, 1.0, 2.0, 3.0])
    assert (stats.count, stats.average, stats.minimum, stats.median, stats.maximum) == \
        (4, 2.5, 1.0, 2.5, 4.0)
    assert stats.spread == pytest.approx(0.5)
    assert Stats.of([3.0]).spread == 0


@pytest.mark.parametrize(
    ("samples", "warmup", "cold"), [(1, 2, 0), (2, 2, 1), (3, 2, 2), (5, 2, 2), (5, 0, 0)]
)
def test_one_sample_is_always_hot(device, samples, warmup, cold):
    timings = measure(device, lambda: None, Loop(samples, warmup=warmup))
    assert timings.cpu.cold_count == cold
    assert timings.cpu.hot.count == samples - cold


def test_repeats_are_divided_out():
    class Slow:
        calls = 0

        def synchronize(self):
            pass

        def elapsed(self, work):
            self.calls = 0
            work()
            return 2e6 * self.calls

        def dispatch(self):
            self.calls += 1

    fake = Slow()
    timings = measure(fake, fake.dispatch, Loop(iterations=3, repeat=5))
    assert timings.gpu.samples == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("gpu_clock", [True, False])
def test_clocks_tell_what_a_dispatch_took(monkeypatch, gpu_clock):
    """Recording takes 1 ms, running 3 ms. The device's clock measures 2 ms."""
    class Device:
        now, recorded = 100.0, 7  # initial values, not measured

        def synchronize(self):
            self.now += 3e-3 * self.recorded
            self.recorded = 0

        def elapsed(self, work):
            if not gpu_clock:
                raise dml.UnsupportedError("no timestamps")
            work()
            count = self.recorded
            self.synchronize()
            return 2e6 * count

        def dispatch(self):
            self.now += 1e-3
            self.recorded += 1

        def bind(self):
            self.now += 0.5

    device = Device()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: device.now))
    timings = measure(device, device.dispatch, Loop(iterations=3, repeat=5), device.bind)
    assert timings.cpu.samples == pytest.approx((4.0, 4.0, 4.0))
    assert timings.gpu == (Clock((2.0, 2.0, 2.0), 1) if gpu_clock else None)
    # Samples take 20 ms, so the third begins after 40 ms.
    timings = measure(device, device.dispatch, Loop(iterations=9, repeat=5, milliseconds=50))
    assert timings.cpu.samples == pytest.approx((4.0, 4.0, 4.0))


@pytest.mark.parametrize(
    ("ms", "count"), [(0.0, 50), (0.01, 50), (0.5, 4), (0.7, 2), (1.9, 1), (9.0, 1)]
)
def test_repeats_fill_a_sample(ms, count):
    assert repeats(ms, 2.0, 50) == count


def test_what_the_host_does_takes_no_device_timestamps():
    class Host:
        def synchronize(self):
            pass

        def elapsed(self, work):
            raise AssertionError("timestamps are taken")

    timings = measure(Host(), lambda: None, Loop(iterations=2), on_host=True)
    assert timings.gpu is None and timings.cpu.hot.count


def test_without_device_timestamps():
    class Blind:
        def synchronize(self):
            pass

        def elapsed(self, work):
            raise dml.UnsupportedError("no timestamps")

    timings = measure(Blind(), lambda: None, Loop(iterations=2))
    assert timings.gpu is None
    assert report("x", timings, 0)[0].endswith(" ms median (CPU)")


def test_printed_line_is_that_of_dxdispatch():
    timings = Timings(Clock((0.5491,), 0), Clock((0.0061,), 0))
    assert report("sum", timings, 0) == [
        "Dispatch 'sum': 1 iterations, 0.5491 ms median (CPU), 0.0061 ms median (GPU)"
    ]


# -- peers


def test_peers_are_checked_and_timed():
    def stand_beside(library):
        yield Peer("right", lambda: "good")
        yield Peer("wrong", lambda: "bad")
        yield Peer("partial", lambda: "bad", checked=False)
        yield Peer("broken", lambda: 1 / 0)

    case = Case("X", "f32", "[1]", lambda: None, lambda x: "" if x == "good" else "off", 1,
                peers={"numpy": stand_beside})
    times = peers.measure([peers.NumPy()], case)
    assert times["right"].ms > 0 and times["partial"].ms > 0
    assert times["wrong"] == PeerTime(problem="off")
    assert times["broken"].problem == "ZeroDivisionError: division by zero"


def test_a_peers_time_is_its_median():
    samples = Stats.of([1.0, 2.0, 60.0])
    library = SimpleNamespace(
        name="numpy", close=lambda: None, times=lambda call: [("", samples), (" (graph)", samples)])
    case = Case("X", "f32", "[1]", lambda: None, lambda _: "", 1,
                peers={"numpy": lambda _: [Peer("x", lambda: None)]})
    assert peers.measure([library], case) == dict.fromkeys(
        ("x", "x (graph)"), PeerTime(2.0, samples.spread))


def test_a_graph_that_fails_leaves_the_time_of_calls():
    def times(call):
        yield "", Stats.of([1.0])
        raise RuntimeError("no capture")

    library = SimpleNamespace(name="numpy", close=lambda: None, times=times)
    case = Case("X", "f32", "[1]", lambda: None, lambda _: "", 1,
                peers={"numpy": lambda _: [Peer("x", lambda: None)]})
    assert peers.measure([library], case) == {
        "x": PeerTime(1.0, 0), "x (graph)": PeerTime(problem="RuntimeError: no capture")}


@pytest.mark.parametrize(("ms", "count"), [(1.0, 20), (40.0, 3), (300.0, 1)])
def test_a_peer_on_the_host_is_timed_by_its_clock(monkeypatch, ms, count):
    now, calls = [0.0], []
    monkeypatch.setattr(peers, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def call():
        calls.append(None)
        now[0] += (ms if len(calls) > 1 or count == 1 else 9 * ms / 2) / 1e3  # slow at first

    (suffix, stats), = peers.NumPy().times(call)
    assert (suffix, stats.count) == ("", count)
    assert stats.minimum == pytest.approx(ms) and stats.maximum == pytest.approx(ms)


@pytest.mark.parametrize(("ms", "graph"), [(0.1, True), (0.3, False)])
def test_a_peer_on_a_gpu_is_timed_by_its_clock(ms, graph):
    """A call from the host takes ``ms``, in a graph a fourth of it."""
    gpu = SimpleNamespace(now=0.0, captured=None)

    class Event:
        def __init__(self, enable_timing):
            self.synchronized = False

        def record(self):
            self.at = gpu.now

        def synchronize(self):
            self.synchronized = True

        def elapsed_time(self, end):
            assert end.synchronized
            return end.at - self.at

    class Graph:
        def replay(self):
            gpu.now += ms / 4 * self.count

    @contextlib.contextmanager
    def capture(graph):
        gpu.captured = 0
        yield
        graph.count, gpu.captured = gpu.captured, None

    def call():
        if gpu.captured is None:
            gpu.now += ms
        else:
            gpu.captured += 1

    stream = SimpleNamespace(wait_stream=lambda other: None)
    library = object.__new__(peers.Torch)
    library.cuda = True
    library.torch = SimpleNamespace(cuda=SimpleNamespace(
        Event=Event, CUDAGraph=Graph, graph=capture, stream=contextlib.nullcontext,
        Stream=lambda: stream, current_stream=lambda: stream))
    times = {suffix: stats.median for suffix, stats in library.times(call)}
    assert times == pytest.approx({"": ms} | ({" (graph)": ms / 4} if graph else {}))


def test_unknown_peers_are_refused(device):
    with pytest.raises(dml.UnsupportedError, match=r"names of torch, .* got 'cupy'"):
        peers.choose("numpy,cupy", device.adapter)


@pytest.mark.parametrize("seen, place", [
    ("ab", 1), ("b", 0), ("a", None), ("", None), ("c", 0), (None, None),
])
def test_torch_runs_on_the_gpu_that_it_stands_beside(device, monkeypatch, seen, place):
    """The GPU with the same UUID, never another one; without one, the CPU."""
    uuids = {letter: str(uuid.UUID(letter * 32)) for letter in "abc"}
    mine, other = (dataclasses.replace(device.adapter, uuid=uuids[letter].replace("-", ""))
                   for letter in "ba")
    monkeypatch.setattr(adapters, "list_devices", lambda: (other, mine))
    chosen = []
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(
        is_available=lambda: seen is not None, device_count=lambda: len(seen),
        get_device_properties=lambda i: SimpleNamespace(uuid=uuids[seen[i]]),
        set_device=chosen.append)))
    library = peers.Torch(mine)
    assert chosen == ([] if place is None else [place])
    assert library.place == ("cpu" if place is None else "cuda")
    assert library.cuda == (place is not None) == (not library.on_host)


def test_torch_gets_a_swapped_matrix_as_it_is_meant_to_be_stored():
    """With a view's own strides, PyTorch would have another layout than the case names."""
    sent = []
    library = object.__new__(peers.Torch)
    library.place = "cpu"
    library.torch = SimpleNamespace(
        from_numpy=lambda array: SimpleNamespace(to=lambda place: sent.append(array)))
    library.send(np.zeros((2, 3), np.int8).T)
    assert sent[0].shape == (3, 2) and sent[0].flags.c_contiguous


class Array(np.ndarray):
    """A NumPy array with the PyTorch methods that the peers call."""

    def transpose(self, x, y):
        return np.swapaxes(self, x, y)

    def contiguous(self):
        return np.ascontiguousarray(self).view(Array)

    def sum(self, axis, keepdim=False, dtype=None):
        return np.add.reduce(self, axis, dtype, keepdims=keepdim)

    def new_zeros(self, *sizes):
        return np.zeros(sizes, self.dtype).view(Array)

    clone, float = np.ndarray.copy, lambda self: self.astype(np.float32)
    to = np.ndarray.astype


K_CONTIGUOUS, ROW_MAJOR, TRANSPOSED = "K-contiguous B", "row-major B", " (B transposed first)"


@pytest.mark.parametrize("fields, given", [
    (dict(k_contiguous_b=True, full=True), {"": K_CONTIGUOUS}),
    (dict(k_contiguous_b=True, full=True, out=dml.DataType.FLOAT16), {"": K_CONTIGUOUS}),
    (dict(constant_b=True, full=True, compiled=True), {"": K_CONTIGUOUS}),
    (dict(full=True), {"": ROW_MAJOR, TRANSPOSED: K_CONTIGUOUS}),
    (dict(cold=True), {"": ROW_MAJOR, TRANSPOSED: K_CONTIGUOUS}),
    (dict(batches=2, k_contiguous_b=True), {"": K_CONTIGUOUS}),
    (dict(batches=2), {"": ROW_MAJOR, TRANSPOSED: K_CONTIGUOUS}),
], ids=str)
def test_torch_multiplies_what_the_case_says(device, fields, given):
    """NumPy stands in for PyTorch: values, and the layout of B in the product."""
    seen = []

    def int_mm(a, b):
        assert a.flags.c_contiguous
        seen.append(K_CONTIGUOUS if b.flags.f_contiguous else ROW_MAJOR)
        return a.astype(np.int32) @ b

    library = object.__new__(peers.Torch)
    library.send = lambda array: np.array(array, order="C").view(Array)
    library.torch = SimpleNamespace(
        int32=np.int32, float16=np.float16, _int_mm=int_mm, cat=np.concatenate,
        addcmul=lambda sum, x, y: (sum + x * y).astype(np.float32),
        compile=lambda call, dynamic: call, _dynamo=SimpleNamespace(reset=lambda: None))
    kind = products.BenchProduct(**fields)
    m = 6 if kind.cold else 40
    (case,) = limits.product(kind, m, 32, 48).make(device, SCALES["large"])
    assert case.check(case.dispatch()) == ""
    names = [f"torch._int_mm{suffix}" for suffix in given]
    if kind.full:
        names += [f"torch{suffix}" for suffix in given]
    made = {peer.name: peer for peer in case.peers["torch"](library)}
    assert [name for name in made if name != "torch.compile"] == names
    assert ("torch.compile" in made) == kind.compiled
    for name, peer in made.items():
        seen.clear()
        result = peer.call()
        assert not peer.checked or case.check(result) == "", name
        assert set(seen) == {given[TRANSPOSED if name.endswith(TRANSPOSED) else ""]}, name


def test_onnxruntime_stands_beside(device):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    for pattern, name in (("ELEMENT_WISE_ADD", "onnxruntime"),
                          ("MATRIX_MULTIPLY", "onnxruntime (one scale for A)")):
        recipe = next(r for r in cases.RECIPES if pattern in r.operator)
        row = next(rows.run_recipe(
            device, recipe, Loop(), TINY, peers.choose("onnxruntime", device.adapter)))
        assert row.peers[name].problem == "" and row.peers[name].ms > 0
