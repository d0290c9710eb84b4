"""Several devices in one process, in threads, in processes, under the command line and in ONNX.

If Vulkan lists two adapters, of any drivers, the devices are on the first two. Else both are on one
adapter, and tests that need two adapters are skipped.
"""

from __future__ import annotations

import gc
import inspect
import json
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.cli import cli
from kompute_dml.functions import functions
from kompute_dml.operators.base import definitions
from kompute_dml.runtime import adapters
from switches import SCALE
from test_process import ROOT, succeeds

MODELS = Path(__file__).parents[1] / "models"
F32 = np.float32
Pair = tuple[dml.Device, dml.Device]


@pytest.fixture(scope="module")
def two() -> tuple[adapters.Adapter, adapters.Adapter]:
    found = dml.list_devices()
    if len(found) < 2:
        pytest.skip("needs two adapters, but Vulkan lists one")
    return found[0], found[1]


def _open() -> Pair:
    found = dml.list_devices()
    return dml.Device(found[0]), dml.Device(found[1 % len(found)])


def _opened() -> Iterator[Pair]:
    made = _open()
    yield made
    for device in made:
        device.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    yield from _opened()


@pytest.fixture
def brief() -> Iterator[Pair]:
    """Devices that a test may close."""
    yield from _opened()


@pytest.fixture
def no_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the default device is used although another one is named."""

    def refuse() -> None:
        raise AssertionError("the default device was asked for")

    monkeypatch.setattr(dml, "default_device", refuse)
    monkeypatch.setattr("kompute_dml.device.default_device", refuse)


# The choice of a device


def card(index: int, name: str, kind: str, uuid: str) -> adapters.Adapter:
    known = dml.list_devices()[0]
    return replace(known, index=index, name=name, type=kind, uuid=(uuid * 32)[:32])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> tuple[adapters.Adapter, ...]:
    """The adapters of a laptop and a server together."""
    made = (
        card(0, "Maker Graphics", "integrated", "0a"),
        card(1, "Maker RTX 4090 Super", "discrete", "1b"),
        card(2, "Maker RTX 4090", "discrete", "2c"),
        card(3, "Maker RTX 4090", "discrete", "3d"),
        card(4, "softpipe", "cpu", "4e"),
    )
    monkeypatch.setattr(adapters, "list_devices", lambda: made)
    monkeypatch.delenv("KOMPUTE_DML_DEVICE", raising=False)
    return made


@pytest.mark.parametrize("selector, index", [
    (None, 1), (0, 0), ("3", 3), ("softpipe", 4),
    ("maker", 1), ("Graphics", 0),  # discrete before integrated
    ("MAKER RTX 4090", 2), ("rtx 4090", 1),  # a whole name before a part, else the first
    ("3d" * 16, 3), ("GPU-3d3d3d3d-3d3d-3d3d-3d3d-3d3d3d3d3d3d", 3), ("2C" * 16, 2),
])
def test_a_device_is_chosen(
    machine: Any, monkeypatch: pytest.MonkeyPatch, selector: Any, index: int
) -> None:
    assert adapters.choose(selector).index == index
    if selector is not None:
        monkeypatch.setenv("KOMPUTE_DML_DEVICE", str(selector))
        assert adapters.choose().index == index
        assert adapters.choose(4).index == 4, "what is asked for goes before the environment"


@pytest.mark.parametrize("selector", [5, "5", "4090", "3d", "GPU-3d", "Maker 4090"])
def test_no_device_fits(machine: Any, selector: Any) -> None:
    with pytest.raises(dml.NoDeviceError, match=r"\[2\] Maker RTX 4090, \[3\] Maker RTX 4090, "):
        adapters.choose(selector)


@pytest.mark.parametrize("uuids, found", [
    (["3d", "2c", "0a"], 1), (["3d", "0a"], None), (["3d", "5f", "6f"], 1), ([""], 0), ([], None),
])
def test_another_interface_has_the_same_device(
    machine: Any, uuids: list[str], found: int | None
) -> None:
    """The device with the same UUID, else one that is no adapter of Vulkan; never another
    adapter."""
    assert adapters.same_device(machine[2], [(uuid * 32)[:32] for uuid in uuids]) == found


def test_every_adapter_of_the_list_can_be_taken(two: Any) -> None:
    for adapter in two:
        for selector in (adapter, adapter.index, str(adapter.index)):
            device = dml.Device(selector)
            assert device.adapter is adapter
            assert repr(device).startswith(f"<Device {adapter.index} {adapter.name!r}, ")
            device.close()


def test_an_adapter_of_another_list_is_refused(two: Any) -> None:
    """As after a device is unplugged: limits and features would belong to another device."""
    if two[0].name == two[1].name:
        pytest.skip("needs two adapters of different names")
    with pytest.raises(dml.NoDeviceError, match=r"device \d+ to be .*, but it is "):
        dml.Device(replace(two[0], index=two[1].index))


# Tensors of one on the other


def _tensor_parameters(name: str) -> list[str]:
    operator = next(d for d in definitions().values() if d.function_name == name)
    fields = {field.snake for field in operator.spec.tensors}
    return [
        p.name for p in inspect.signature(functions()[name]).parameters.values()
        if p.name == "x" or (p.name == "out" and len(operator.spec.outputs) == 1)
        or (f"{p.name}_tensor" in fields and not isinstance(p.default, bool))
    ]


@pytest.mark.parametrize("name", sorted(functions()))
def test_functions_refuse_tensors_of_two_devices(pair: Pair, name: str) -> None:
    home, foreign = (device.tensor(np.ones((1, 1, 2, 2), F32)) for device in pair)
    needed = inspect.signature(functions()[name]).parameters.values()
    given: dict[str, Any] = {p.name: 1 for p in needed if p.default is p.empty}
    tensors = _tensor_parameters(name)
    for odd in tensors if len(tensors) > 1 else ():
        given |= {p: foreign if p == odd else home for p in tensors}
        with pytest.raises(dml.ValidationError, match="one device") as caught:
            functions()[name](**given)
        text = str(caught.value)
        assert repr(pair[0]) in text and repr(pair[1]) in text and "device.tensor(x)" in text


def _negation(device: dml.Device, flags: Any = dml.TensorFlags.NONE) -> dml.CompiledOperator:
    desc = dml.TensorDesc("float32", [64])
    return device.compile_operator(device.create_operator(dml.ElementWiseNegateOperatorDesc(
        input_tensor=replace(desc, flags=flags), output_tensor=desc)))


def test_tables_and_operators_of_another_device_are_refused(pair: Pair) -> None:
    first, second = pair
    compiled, other = map(_negation, pair)
    mine, theirs = (dml.BufferBinding(device.create_buffer(256)) for device in pair)
    for inputs, outputs, field in ((theirs, mine, "Input"), (mine, theirs, "Output")):
        table = first.create_binding_table(compiled)
        table.bind_inputs([inputs])
        table.bind_outputs([outputs])
        with pytest.raises(dml.ValidationError, match=f"{field}Tensor to lie on .*own") as caught:
            first.record_dispatch(compiled, table)
        assert str(caught.value).endswith(f"but got one of another {second!r}")
    refused: list[Callable[[], Any]] = [
        lambda: first.compile_operator(other.operator),
        lambda: first.create_binding_table(other),
        lambda: first.create_operator_initializer([other]),
        lambda: first.create_operator_initializer().reset([other]),
        lambda: first.record_dispatch(other, second.create_binding_table(other)),
    ]
    for call in refused:
        with pytest.raises(dml.ValidationError, match="expected an object of <Device"):
            call()


@pytest.mark.parametrize("staged", ["", "1"])
def test_device_tensor_brings_a_tensor_over(
    monkeypatch: pytest.MonkeyPatch, staged: str
) -> None:
    """With pending work on both, in any layout, in both directions, also without host access."""
    first, beside = _open()
    beside.close()
    monkeypatch.setenv("KOMPUTE_DML_TEST_STAGED", staged)
    second = dml.Device(beside.adapter)
    x = np.arange(2 * 3 * 5, dtype=np.int16).reshape(2, 3, 5)
    here = dml.negate(first.tensor(x))
    there = dml.add(second.tensor(here.transpose(2, 0, 1)[1:]), np.int16([7]))
    here = dml.multiply(first.tensor(there), first.tensor(there))
    assert here.device is first and there.device is second
    assert (here.numpy() == (7 - x.transpose(2, 0, 1)[1:]) ** 2).all()
    buffer = second.create_buffer(here.nbytes)
    buffer.write(here)
    assert (buffer.read().view(np.int16).reshape(here.sizes) == here.numpy()).all()
    first.close()
    assert (dml.negate(there).numpy() == x.transpose(2, 0, 1)[1:] - 7).all()
    second.close()


# Work on both: compared values are exact on every device


def _product(device: dml.Device, rng: np.random.Generator) -> None:
    m, k, n = int(rng.choice([1, 20])), 96, 40
    a, b = rng.integers(-128, 128, (m, k), np.int8), rng.integers(-128, 128, (k, n), np.int8)
    bias = rng.integers(-99, 99, n).astype(F32)
    zero, half, quarter = np.int8([3]), F32([0.5]), F32([0.25])
    got = dml.matrix_multiply_integer_to_float(
        device.tensor(a), half, b, quarter, a_zero_point=zero, bias=bias)
    assert (got.numpy() == (a.astype(int) - 3) @ b.astype(int) / 8 + bias).all()


def _layouts(device: dml.Device, rng: np.random.Generator) -> None:
    x = rng.integers(-60, 60, (3, int(rng.integers(2, 40)), 5), np.int8)
    y = dml.clip(device.tensor(x).transpose(2, 0, 1), min=-40, max=30)
    z = dml.cast(y[1:, :, 1:], data_type="float16")
    assert (z.numpy() == np.clip(x.transpose(2, 0, 1), -40, 30)[1:, :, 1:]).all()


def _fills(device: dml.Device, rng: np.random.Generator) -> None:
    n, offset = (int(number) for number in rng.integers(2, 30, 2))
    y = dml.diagonal_matrix([n, n], offset=offset, value=2, out=device.empty([n, n]))
    y = dml.diagonal_matrix1(y, value=9.0, diagonal_fill_begin=0, diagonal_fill_end=1, out=y)
    expected = 2 * np.eye(n, k=offset, dtype=F32) + 9 * np.eye(n, dtype=F32)
    assert (y.numpy() == expected).all()


def _quantized(device: dml.Device, rng: np.random.Generator) -> None:
    x = rng.integers(0, 256, int(rng.integers(2, 3000))).astype(F32)
    x[:2] = 0, 255
    y, _, zero = dml.dynamic_quantize_linear(device.tensor(x))
    assert (y.numpy() == x).all() and zero.item() == 0
    assert (dml.dequantize_linear(y, F32([0.5]), zero).numpy() == x / 2).all()


def _recorded(device: dml.Device, rng: np.random.Generator) -> None:
    x = device.tensor(rng.integers(-9, 9, 33).astype(np.int32))
    before = x.numpy()
    with device.record() as recording:
        dml.add(x, x, out=x)
        dml.negate(x, out=x)
    recording.replay()
    assert (x.numpy() == before * 4).all() and len(recording) == 2


def _initialized(device: dml.Device, rng: np.random.Generator) -> None:
    """The life cycle, with an OWNED_BY_DML input."""
    compiled = _negation(device, dml.TensorFlags.OWNED_BY_DML)
    x = rng.standard_normal(64, F32)
    given, kept, result = (dml.BufferBinding(device.create_buffer(n)) for n in (
        256, compiled.binding_properties.persistent_resource_size, 256))
    given.buffer.write(x)
    initializer = device.create_operator_initializer([compiled])
    table = device.create_binding_table(initializer)
    table.bind_inputs([[given]])
    table.bind_outputs([kept])
    device.record_dispatch(initializer, table)
    given.buffer.free()
    table = device.create_binding_table(compiled)
    table.bind_inputs([None])
    table.bind_outputs([result])
    table.bind_persistent_resource(kept)
    device.record_dispatch(compiled, table)
    assert (result.buffer.read().view(F32) == -x).all()


WORK = (_product, _layouts, _fills, _quantized, _recorded, _initialized)


def _rounds(devices: Pair, seed: int, count: int) -> None:
    """Every kind of work on every device, in random order."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        for i in rng.permutation(2 * len(WORK)):
            WORK[i // 2](devices[i % 2], rng)


def test_devices_take_turns(pair: Pair, no_default: None) -> None:
    _rounds(pair, 0, 3)


@pytest.mark.slow
def test_devices_of_different_abilities_take_turns(
    no_default: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two devices of one adapter: with all features, and without optional ones."""
    full = dml.Device()
    monkeypatch.setenv("KOMPUTE_DML_DISABLE", "int8,int16,int64,float16,float64,dot,coopmat")
    core = dml.Device(full.adapter)
    monkeypatch.delenv("KOMPUTE_DML_DISABLE")
    _rounds((full, core), 1, 2)
    assert core.features <= full.features
    core.close()
    full.close()


@pytest.mark.stress
def test_threads_on_both_devices(pair: Pair, no_default: None) -> None:
    """Each thread uses both devices: no thread may hold one lock while it waits for the other."""
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(_rounds, pair, seed, max(1, 4 // SCALE)) for seed in range(4)]:
            done.result()


def test_recordings_of_two_devices_nest(pair: Pair) -> None:
    first, second = pair
    x, y = first.tensor(F32([1, 2])), second.tensor(F32([3, 4]))
    with first.record() as one, second.record() as two:
        dml.add(x, x, out=x)
        dml.negate(y, out=y)
        dml.add(x, x, out=x)
    assert (len(one), len(two)) == (2, 1), "each takes its own device's calls"
    one.replay()
    two.replay()
    assert x.numpy().tolist() == [16, 32] and y.numpy().tolist() == [3, 4]


def test_a_device_is_closed_while_the_other_works(brief: Pair) -> None:
    first, second = brief
    started, go_on = threading.Event(), threading.Event()

    def work() -> None:
        while not go_on.is_set():
            try:
                _layouts(second, np.random.default_rng(5))
            finally:
                started.set()
        _recorded(second, np.random.default_rng(6))

    x = dml.negate(first.tensor(F32([1])))  # pending
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        started.wait()
        first.close()
        go_on.set()
        done.result()
    with pytest.raises(dml.DeviceLostError, match="it was closed"):
        x.numpy()


@pytest.mark.parametrize("order", ["tensors", "devices", "mixed"])
def test_memory_goes_in_any_order(order: str) -> None:
    first, second = _open()
    tensors = [[dml.negate(device.tensor(np.full(1 << 12, i, F32))) for i in range(3)]
               for device in (first, second)]
    first.synchronize()
    second.synchronize()
    used = [device.memory_used for device in (first, second)]
    assert min(used) >= 3 << 14
    if order == "tensors":
        tensors[1].clear()
        assert (first.memory_used, second.memory_used) == (used[0], 0)
        tensors[0].clear()
        assert first.memory_used == 0
    elif order == "devices":
        first.close()
        second.close()
    else:
        tensors[0][1].free()
        first.close()
        assert second.memory_used == used[1]
    runtimes = [first.runtime, second.runtime]
    del first, second, tensors
    gc.collect()
    assert all(runtime.closed for runtime in runtimes)


def test_one_device_is_lost_alone(brief: Pair) -> None:
    x, y = (dml.negate(device.tensor(F32([5]))) for device in brief)
    brief[0].runtime.recorder._lose(dml.DeviceLostError("gone"))
    with pytest.raises(dml.DeviceLostError, match="gone"):
        x.numpy()
    with pytest.raises(dml.DeviceLostError, match="gone"):
        dml.negate(x)
    assert y.item() == -5 and dml.negate(y).item() == 5


# Processes


def _in_a_process(adapter: adapters.Adapter) -> tuple[int, str]:
    """The work of a process with a given device."""
    device = dml.Device(adapter)
    _layouts(device, np.random.default_rng(adapter.index))
    return adapter.index, device.runtime.engine.manager.get_device_properties()["device_name"]


def test_each_process_has_a_device_of_its_own(two: Any) -> None:
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        found = pool.map(_in_a_process, two, chunksize=1)
    assert found == [(a.index, a.name) for a in two]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_each_forked_process_has_a_device_of_its_own() -> None:
    """After a parent that has listed devices, but opened none."""
    out = succeeds("""
    import os, sys, numpy as np, kompute_dml as dml
    adapters = dml.list_devices()[:2]
    children = []
    for adapter in adapters:
        child = os.fork()
        if child == 0:
            device = dml.Device(adapter)
            y = dml.negate(device.tensor(np.float32([adapter.index])))
            assert y.item() == -adapter.index
            sys.exit(0)
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
    print(len(children))
    """)
    assert int(out) == len(dml.list_devices()[:2])


def test_what_stays_in_its_process_says_what_to_send_instead(device: dml.Device) -> None:
    with pytest.raises(TypeError, match=r"<Device .*send device\.adapter"):
        pickle.dumps(device)
    assert pickle.loads(pickle.dumps(device.adapter)) == device.adapter


def test_the_environment_chooses_for_a_process(two: Any) -> None:
    for adapter in two:
        values: list[object] = [adapter.index]
        if two[0].uuid != two[1].uuid:  # two drivers may list the same GPU
            values.append(f"GPU-{adapter.uuid.upper()}")
        for value in values:
            out = succeeds("""
            import numpy as np, kompute_dml as dml
            print(dml.negate(np.float32([1])).device.adapter.index)
            """, KOMPUTE_DML_DEVICE=str(value))
            assert int(out) == adapter.index


def _keep(path: str, adapter: adapters.Adapter, count: int, together: Any) -> None:
    os.environ["KOMPUTE_DML_TUNING"] = path
    together.wait()
    for i in range(count):
        tuning.keep(adapter, {f"work {i}": "kernel"})


def test_two_processes_that_tune_keep_all_that_they_find(device: dml.Device, tmp_path: Path
                                                         ) -> None:
    path, count = tmp_path / "tuning.json", 100
    tuned = [replace(device.adapter, name=name) for name in "ab"]
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(len(tuned))
    processes = [
        context.Process(target=_keep, args=(str(path), adapter, count, together))
        for adapter in tuned]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    kept = json.loads(path.read_text())["devices"]
    assert {key: len(kept[key]) for key in kept} == {tuning.device_key(a): count for a in tuned}
    assert [p.name for p in tmp_path.iterdir()] == ["tuning.json"]


# The command line


def _command(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.mark.parametrize("arguments", [
    ("run", MODELS / "diagonal_matrix.json"),
    ("bench", "--scale", "tiny", "-i", 1, "--filter", "diagonal_matrix u8"),
    # References without NumPy run on the device.
    ("bench", "--scale", "tiny", "-i", 1, "--suite", "elementwise", "--filter", "abs i8"),
    ("tune", "--scale", "tiny", "--seconds", 0),
], ids=lambda arguments: " ".join(map(str, (arguments[0], *arguments[-1:]))))
def test_commands_use_no_other_device(
    two: Any, no_default: None, monkeypatch: pytest.MonkeyPatch, arguments: tuple[object, ...]
) -> None:
    opened = []
    make = dml.Device.__init__

    def init(self: dml.Device, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        opened.append(self.adapter)

    monkeypatch.setattr(dml.Device, "__init__", init)
    for adapter in two:
        opened.clear()
        text = _command(*arguments, "-a", adapter.index).stdout
        assert opened == [adapter] and adapter.name in text


def test_devices_of_one_name_are_told_apart(two: Any) -> None:
    text = _command("devices").stdout
    for adapter in dml.list_devices():
        assert f"{adapter.index}: {adapter.name}" in text
        assert f"UUID            {adapter.uuid}" in text


# ONNX


@pytest.fixture(scope="module")
def onnx_model() -> bytes:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from onnx_graphs import FLOAT, model, node

    constants = {"w": np.arange(12, dtype=F32).reshape(4, 3)}
    nodes = [node("Add", "x w", "s"), node("Relu", "s", "y")]
    return model(nodes, [("x", FLOAT, [4, 3])], [("y", FLOAT, [4, 3])], constants)


def _agrees(run: Callable[[np.ndarray], np.ndarray], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(5):
        x = rng.integers(-20, 20, (4, 3)).astype(F32)
        assert (run(x) == np.maximum(x + np.arange(12).reshape(4, 3), 0)).all()


def _on_threads(runs: list[Callable[[np.ndarray], np.ndarray]]) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(_agrees, runs[i % len(runs)], i) for i in range(8)]:
            done.result()


def test_models_on_two_devices(two: Any, onnx_model: bytes) -> None:
    import kompute_dml.onnx_backend as backend

    made = [backend.prepare(onnx_model, f"VULKAN:{adapter.index}") for adapter in two]
    assert [m._region.device.adapter for m in made] == list(two)
    _on_threads([lambda x, m=m: m.run([x])[0] for m in made])  # type: ignore[misc]
    assert backend.supports_device(f"VULKAN:{two[1].uuid}")


def test_models_of_one_adapter_share_a_device(
    onnx_model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kompute_dml.device._shared", {})
    import kompute_dml.onnx_backend as backend

    index = dml.default_device().adapter.index
    first, second = (backend.prepare(onnx_model, f"VULKAN:{index}") for _ in range(2))
    assert first._region.device is second._region.device
    first._region.device.close()
    third = backend.prepare(onnx_model, f"VULKAN:{index}")
    _agrees(lambda x: third.run([x])[0], 0)


@pytest.fixture
def kompute(onnx_model: bytes) -> Any:
    from onnx_graphs import NO_PROVIDER, provider_works

    if not provider_works:
        pytest.skip(NO_PROVIDER)
    from kompute_dml import onnxruntime as kompute

    return kompute


def _run(session: Any, x: np.ndarray) -> np.ndarray:
    result: np.ndarray = session.run(None, {"x": x})[0]
    return result


def test_sessions_on_two_devices(two: Any, onnx_model: bytes, kompute: Any) -> None:
    import onnxruntime

    from provider_tools import last_kernel

    sessions = []
    for adapter in two:
        sessions.append(kompute.session(onnx_model, adapter=adapter.index, claim="all"))
        assert last_kernel().region.device.adapter is adapter
        (chosen,) = [d for d in kompute.devices()
                     if d.ep_metadata["adapter"] == str(adapter.index)]
        options = onnxruntime.SessionOptions()
        options.add_provider_for_devices([chosen], {"claim": "all"})
        sessions.append(onnxruntime.InferenceSession(onnx_model, options))
        assert last_kernel().region.device.adapter is adapter
    _on_threads([partial(_run, session) for session in sessions])
    del sessions[::2]
    _on_threads([partial(_run, session) for session in sessions])


def test_sessions_of_one_adapter_share_a_device(onnx_model: bytes, kompute: Any) -> None:
    from provider_tools import last_kernel

    adapter = dml.default_device().adapter
    found = set()
    for chosen in (None, adapter.index, str(adapter.index)):
        kept = kompute.session(onnx_model, adapter=chosen, claim="all")
        found.add(last_kernel().region.device)
        _agrees(partial(_run, kept), 0)
    assert len(found) == 1


def test_a_session_takes_one_device(two: Any, onnx_model: bytes, kompute: Any) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_provider_for_devices(kompute.devices()[:2], {"claim": "all"})
    with pytest.raises(Exception, match="expected one device for a session, but got 2"):
        onnxruntime.InferenceSession(onnx_model, options, enable_fallback=False)


def test_onnx_runtimes_own_choice_is_the_default_device(two: Any, kompute: Any) -> None:
    """ONNX Runtime's policies choose the first registered device."""
    for adapter in two:
        out = succeeds("""
        import numpy as np, onnxruntime
        import kompute_dml.onnxruntime as kompute
        from kompute_dml.onnxruntime import capi
        from kompute_dml.onnxruntime.kernel import RegionKernel
        from onnx_graphs import FLOAT, model, node, quantized_dense
        kompute.register()
        constants = {}
        nodes = quantized_dense(np.random.default_rng(0), "x", "y", 8, 8, constants)
        built = model(nodes, [("x", FLOAT, [2, 8])], [("y", FLOAT, [2, 8])], constants)
        options = onnxruntime.SessionOptions()
        options.set_provider_selection_policy(
            onnxruntime.OrtExecutionProviderDevicePolicy.MAX_PERFORMANCE)
        session = onnxruntime.InferenceSession(built, options)
        (kernel,) = [k for k in capi.alive.values() if isinstance(k, RegionKernel)]
        print(kernel.region.device.adapter.index, *[
            d.ep_metadata["adapter"] for d in kompute.devices()][:1])
        """, KOMPUTE_DML_DEVICE=str(adapter.index), PYTHONPATH=os.pathsep.join(
            [*(str(ROOT / folder) for folder in ("tests", "benchmarks", ".")),
             os.environ.get("PYTHONPATH", "")]))
        assert out.split() == [str(adapter.index)] * 2
