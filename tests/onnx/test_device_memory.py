"""ONNX Runtime's tensors on the device: OrtValues, bindings, and values between regions."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import onnxruntime as ort
from onnx import helper

import kompute_dml.onnxruntime as kompute
from kompute_dml.graph.recorded import Result
from kompute_dml.onnxruntime import allocation, capi
from kompute_dml.onnxruntime.memory import SMALL, DeviceMemory
from onnx_graphs import BOOL, FLOAT, INT64, cpu, model, needs_provider, node, options, placement
from provider_tools import NAME, session
from threads import in_threads

pytestmark = needs_provider
HEADS, LENGTH, DEPTH = 2, 5, 3


def _info() -> Any:
    return kompute.devices()[0].memory_info(ort.OrtDeviceMemoryType.DEFAULT)


def _memory() -> DeviceMemory:
    return allocation.memory(int(kompute.devices()[0].ep_metadata["adapter"])).bytes


def _on_device(x: np.ndarray) -> Any:
    value = ort.OrtValue.ortvalue_from_shape_and_type(x.shape, x.dtype, memory_info=_info())
    value.update_inplace(x)
    return value


@pytest.mark.parametrize("sizes", [(), (3, 5), (0, 4), (SMALL // 4 + 3,)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool", "uint8"])
def test_a_value_comes_back(sizes: tuple[int, ...], dtype: str, rng: np.random.Generator) -> None:
    x = rng.integers(0, 2 if dtype == "bool" else 100, sizes).astype(dtype)
    value = _on_device(x)
    assert value.device_name() != "cpu"
    np.testing.assert_array_equal(value.numpy(), x)
    other = ort.OrtValue.ortvalue_from_shape_and_type(sizes, x.dtype, memory_info=_info())
    if x.size:
        np.testing.assert_array_equal(other.numpy(), np.zeros_like(x))
    ort.copy_tensors([value], [other])
    value.update_inplace(np.zeros_like(x))
    np.testing.assert_array_equal(other.numpy(), x)


def test_by_vendor(rng: np.random.Generator) -> None:
    x = rng.standard_normal(7).astype(np.float32)
    kompute.register()
    number = int(kompute.devices()[0].ep_metadata["adapter"])
    value = ort.OrtValue.ortvalue_from_numpy(x, "gpu", number, kompute.VENDOR_ID)
    np.testing.assert_array_equal(value.numpy(), x)


def test_memory_is_given_back() -> None:
    before = _memory().used
    values = [_on_device(np.ones(n, np.float32)) for n in (10, SMALL)]
    assert _memory().used >= before + 4 * (SMALL + 10)
    del values
    gc.collect()
    assert _memory().used == before


def test_a_run_reads_its_inputs_where_the_host_has_them(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is bound is copied, because it may change before the run."""
    written: list[int] = []
    write = DeviceMemory.write
    monkeypatch.setattr(DeviceMemory, "write", lambda self, at, data: (
        written.append(data.nbytes), write(self, at, data))[1])
    for n in (10, SMALL):
        made = session(model([node("Neg", "x", "y")], [("x", FLOAT, [n])], [("y", FLOAT, [n])]),
                       claim="all")
        x = rng.standard_normal(n).astype(np.float32)
        for _ in range(2):
            np.testing.assert_array_equal(made.run(None, {"x": x})[0], -x)
        assert not written
        binding, bound = made.io_binding(), x.copy()
        binding.bind_cpu_input("x", bound)
        binding.bind_output("y")
        bound += 1
        made.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), -x)
        assert written.pop() == x.nbytes and not written


def test_values_that_a_nested_graph_reads_are_copied(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """ONNX Runtime may use their memory for other values before the run ends."""
    lent: list[int] = []
    lend = allocation.lend
    monkeypatch.setattr(allocation, "lend", lambda memory, at, data: (
        lent.append(data.nbytes), lend(memory, at, data))[1])
    branches = {
        name: helper.make_graph([node(op, "a", f"{op}.b")], name, [],
                                [helper.make_tensor_value_info(f"{op}.b", FLOAT, None)])
        for name, op in (("then_branch", "Abs"), ("else_branch", "Relu"))}
    nested = model([node("Det", "x", "a"), node("If", "which", "y", **branches)],
                   [("x", FLOAT, [3, 2, 2]), ("which", BOOL, [])], [("y", FLOAT, [3])])
    plain = model([node("Abs", "x", "y")], [("x", FLOAT, [3, 2, 2])], [("y", FLOAT, [3, 2, 2])])
    x = rng.standard_normal((3, 2, 2)).astype(np.float32)
    for built, feed, expected in ((nested, {"x": x, "which": np.array(True)}, []),
                                  (plain, {"x": x}, [x.nbytes])):
        got = session(built, False, claim="Abs,Relu").run(None, feed)[0]
        np.testing.assert_allclose(got, cpu(built).run(None, feed)[0], rtol=1e-6)
        assert lent == expected


def test_what_outlives_a_run_is_copied_at_its_end() -> None:
    memory, lent = _memory(), np.arange(4, dtype=np.uint8)
    address = memory.allocate(4)
    for _ in range(2):  # one inside the other
        allocation.begin_run()
    allocation.lend(memory, address, lent)
    allocation.end_run()
    allocation.end_run()
    lent += 1
    np.testing.assert_array_equal(memory.read(address, 4), range(4))
    memory.free(address)


def test_all_parts_of_what_was_lent_are_copied() -> None:
    memory, lent = _memory(), np.arange(12, dtype=np.uint8)
    address = memory.allocate(12)
    allocation.begin_run()
    allocation.lend(memory, address, lent)
    memory.write(address + 4, np.full(4, 99, np.uint8))  # leaves a part before, and one behind
    allocation.end_run()
    lent += 1
    assert memory.read(address, 12).tolist() == [0, 1, 2, 3, 99, 99, 99, 99, 8, 9, 10, 11]
    memory.free(address)


def _cache_step(heads: int, length: int, depth: int) -> bytes:
    """One step of a decoder: the newest key pushes the oldest one out."""
    past = [1, heads, length, depth]
    return model(
        [node("Concat", "past new", "long", axis=2), node("Slice", "long one end two", "present"),
         node("Transpose", "present", "transposed", perm=[0, 1, 3, 2]),
         node("MatMul", "new transposed", "y")],
        [("past", FLOAT, past), ("new", FLOAT, [1, heads, 1, depth])],
        [("present", FLOAT, past), ("y", FLOAT, [1, heads, 1, length])],
        {"one": np.array([1]), "end": np.array([length + 1]), "two": np.array([2])})


class _Steps:
    """Runs the decoder with its cache in two values that are swapped."""

    def __init__(self, heads: int, length: int, depth: int, rng: np.random.Generator) -> None:
        self.session = session(_cache_step(heads, length, depth), claim="all")
        self.past = rng.standard_normal((1, heads, length, depth)).astype(np.float32)
        self.values = [_on_device(self.past), _on_device(np.zeros_like(self.past))]
        self._rng = rng

    def __call__(self) -> None:
        new = self._rng.standard_normal((*self.past.shape[:2], 1, self.past.shape[3]))
        new = new.astype(np.float32)
        binding = self.session.io_binding()
        binding.bind_ortvalue_input("past", self.values[0])
        binding.bind_cpu_input("new", new)
        binding.bind_ortvalue_output("present", self.values[1])
        binding.bind_output("y")
        self.session.run_with_iobinding(binding)
        self.past = np.concatenate([self.past, new], 2)[:, :, 1:]
        y = binding.get_outputs()[1].numpy()
        np.testing.assert_allclose(y, new @ self.past.swapaxes(2, 3), rtol=1e-5, atol=1e-5)
        self.values.reverse()


@pytest.mark.parametrize("length", [LENGTH, SMALL // (4 * HEADS * DEPTH) + 1])
def test_a_cache_stays_on_the_device(
    length: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = _Steps(HEADS, length, DEPTH, rng)
    step()
    touched: list[int] = []
    read, write = DeviceMemory.read, DeviceMemory.write
    monkeypatch.setattr(DeviceMemory, "read", lambda self, at, nbytes: (
        touched.append(nbytes), read(self, at, nbytes))[1])
    monkeypatch.setattr(DeviceMemory, "write", lambda self, at, data: (
        touched.append(data.nbytes), write(self, at, data))[1])
    for _ in range(5):
        step()
    assert touched and step.past.nbytes not in touched
    np.testing.assert_array_equal(step.values[0].numpy(), step.past)


def test_results_outlive_the_next_run(rng: np.random.Generator) -> None:
    """They lie in the plan's memory, and are moved before its next run."""
    made = session(model([node("Neg", "x", "y")], [("x", FLOAT, ["n"])], [("y", FLOAT, ["n"])]),
                   claim="all")
    kept = []
    for n in (4, 4, 4, 7, 4):
        x = rng.standard_normal(n).astype(np.float32)
        binding = made.io_binding()
        binding.bind_cpu_input("x", x)
        y = _on_device(np.zeros(n, np.float32))
        binding.bind_ortvalue_output("y", y)
        made.run_with_iobinding(binding)
        kept.append((x, y))
    for x, y in kept:
        np.testing.assert_array_equal(y.numpy(), -x)


def test_an_output_that_is_an_input_of_the_same_run(rng: np.random.Generator) -> None:
    """Bound in place: the run reads the old values."""
    made = session(model([node("Neg", "x", "y")], [("x", FLOAT, [4])], [("y", FLOAT, [4])]),
                   claim="all")
    x = rng.standard_normal(4).astype(np.float32)
    value = _on_device(x)
    for turn in range(1, 4):
        binding = made.io_binding()
        binding.bind_ortvalue_input("x", value)
        binding.bind_ortvalue_output("y", value)
        made.run_with_iobinding(binding)
        np.testing.assert_array_equal(value.numpy(), (-1) ** turn * x)


@pytest.mark.parametrize("memory", ["host", "device"])
def test_where_tensors_lie_changes_no_result(memory: str, rng: np.random.Generator) -> None:
    """With a CPU node between two regions, and sizes that the host must know."""
    built = model(
        [node("Neg", "x", "a"), node("Det", "a", "d"), node("Add", "d x", "b"),
         node("Reshape", "b sizes", "y")],
        [("x", FLOAT, [3, 3]), ("sizes", INT64, [2])], [("y", FLOAT, ["n", "m"]), ("d", FLOAT, [])])
    made = session(built, False, claim="all", memory=memory)
    assert placement(made, "CPUExecutionProvider").count("Det") == 1
    x = rng.standard_normal((3, 3)).astype(np.float32)
    for sizes in ([9, 1], [1, 9]):
        given = {"x": _on_device(x), "sizes": _on_device(np.array(sizes))}
        got = [v.numpy() for v in made.run_with_ort_values(None, given)]
        wanted = cpu(built).run(None, {"x": x, "sizes": np.array(sizes)})
        for ours, theirs in zip(got, wanted):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_several_threads_share_a_session(rng: np.random.Generator) -> None:
    made = session(model([node("Neg", "x", "y")], [("x", FLOAT, [64])], [("y", FLOAT, [64])]),
                   claim="all")

    def work(seed: int) -> None:
        numbers = np.random.default_rng(seed)
        for _ in range(10):
            x = numbers.standard_normal(64).astype(np.float32)
            y = _on_device(np.zeros(64, np.float32))
            binding = made.io_binding()
            binding.bind_ortvalue_input("x", _on_device(x))
            binding.bind_ortvalue_output("y", y)
            made.run_with_iobinding(binding)
            assert np.array_equal(y.numpy(), -x)

    in_threads(4, work)


def test_copies_are_offered_for_these_devices_only() -> None:
    kompute.register()
    ort_api, ours = capi.api(), allocation.memory(_memory().adapter).info
    other = ort_api.get(ort_api.CreateMemoryInfo_V2, "void *", b"other", 1, 0x10DE, 0, 0, 0, 0)
    host = allocation.host_device()
    ours, other = (ort_api.MemoryInfo_GetMemoryDevice(i) for i in (ours, other))
    null = capi.ffi.NULL
    for ends, wanted in (((ours, host), True), ((host, ours), True), ((ours, ours), True),
                         ((other, host), False), ((ours, other), False), ((other, ours), False)):
        assert allocation._can_copy(null, *ends) == wanted


def test_a_result_is_copied_once(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From where the device puts it to the tensor that ``run`` returns."""
    targets: list[np.ndarray] = []
    copy_to = Result.copy_to

    def noted(self: Result, out: np.ndarray) -> None:
        targets.append(out)
        copy_to(self, out)

    monkeypatch.setattr(Result, "copy_to", noted)
    made = session(model([node("Neg", "x", "y")], [("x", FLOAT, [6])], [("y", FLOAT, [6])]),
                   claim="all")
    x = rng.standard_normal(6).astype(np.float32)
    y = made.run(None, {"x": x})[0]
    np.testing.assert_array_equal(y, -x)
    (target,) = targets
    assert target.ctypes.data == y.ctypes.data


def test_a_run_asks_once_for_all_that_is_copied(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one call of C for the sources and one for the targets, on the way in and on the way
    out."""
    counts: list[int] = []
    copied = allocation.copied

    def noted(values: Any, count: int) -> list[tuple[int, int]]:
        counts.append(count)
        return copied(values, count)

    names = "abcde"
    made = session(model([node("Add", f"{a} {b}", f"y{a}") for a, b in itertools.pairwise(names)],
                         [(a, FLOAT, [6]) for a in names],
                         [(f"y{a}", FLOAT, [6]) for a in names[:-1]]), claim="all")
    feed = {a: rng.standard_normal(6).astype(np.float32) for a in names}
    monkeypatch.setattr(allocation, "copied", noted)
    for (a, b), y in zip(itertools.pairwise(names), made.run(None, feed)):
        np.testing.assert_array_equal(y, feed[a] + feed[b])
    assert counts == [5, 5, 4, 4]


def test_ranges_that_overlap_have_what_came_last(rng: np.random.Generator) -> None:
    memory, size = DeviceMemory(5), 48
    at, expected = memory.allocate(size), np.zeros(size, np.uint8)
    for turn in range(400):
        begin = int(rng.integers(size))
        count = int(rng.integers(1, min(size - begin, 20) + 1))
        data = np.full(count, turn % 255 + 1, np.uint8)
        if turn % 5:
            memory.write(at + begin, data)
            expected[begin : begin + count] = data
        else:
            memory.forget(at + begin, count)
            expected[begin : begin + count] = 0
        assert memory.read(at, size).tolist() == expected.tolist()
        out = np.empty(count, np.uint8)
        memory.read_to(at + begin, out)
        assert out.tolist() == expected[begin : begin + count].tolist()
    memory.free(at)
    assert not memory._pieces and not memory._starts and not memory._at


def test_parts_of_what_an_address_holds() -> None:
    memory, out = DeviceMemory(5), np.empty(6, np.uint8)
    at = memory.allocate(64)
    memory.write(at, np.arange(4, dtype=np.uint8))
    memory.write(at + 4, np.arange(4, 8, dtype=np.uint8))
    for begin, count in ((0, 4), (4, 4), (5, 2), (2, 6)):
        memory.read_to(at + begin, out[:count])
        assert out[:count].tolist() == list(range(begin, begin + count))
    memory.free(at)


def test_what_reaches_beyond_a_part_of_a_value_stays() -> None:
    """ONNX Runtime may reuse a range for several tensors."""
    memory = DeviceMemory(5)
    at = memory.allocate(64)
    memory.write(at, np.arange(16, dtype=np.uint8))
    memory.write(at + 4, np.full(4, 99, np.uint8))
    assert memory.read(at, 16).tolist() == [0, 1, 2, 3, 99, 99, 99, 99, *range(8, 16)]
    assert memory.read(at + 9, 3).tolist() == [9, 10, 11]
    assert memory.read(at + 12, 8).tolist() == [12, 13, 14, 15, 0, 0, 0, 0]
    memory.free(at)
    assert memory.used == 0 and memory.read(at, 2).tolist() == [0, 0]


@pytest.mark.parametrize("policy, ours", [("PREFER_CPU", False), ("PREFER_GPU", True)])
def test_policies(policy: str, ours: bool) -> None:
    kompute.register()
    built = model([node("MatMul", "x x", "y")], [("x", FLOAT, [2, 2])], [("y", FLOAT, [2, 2])])
    chosen = options()
    chosen.set_provider_selection_policy(
        getattr(ort.OrtExecutionProviderDevicePolicy, policy))
    made = ort.InferenceSession(built, chosen)
    assert (made.get_providers()[0] == NAME) == ours
