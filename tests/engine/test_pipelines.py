"""Pipelines that threads compile ahead, and the file that keeps them for other processes."""

from __future__ import annotations

import dataclasses
import functools
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.graph import step
from kompute_dml.graph.builder import Builder
from kompute_dml.runtime import pipeline_file, pipelines, shader_library, traits
from kompute_dml.runtime.kp_engine import Engine
from kompute_dml.runtime.pipeline_file import PipelineFile
from switches import shared_blocks
from test_process import python, succeeds

Adapter = Any
HEADER = bytes([32, 0, 0, 0, 1, 0, 0, 0]) + bytes(range(24))
DATA = HEADER + b"pipelines" * 100


@pytest.fixture
def adapter(device: dml.Device) -> Adapter:
    return dataclasses.replace(device.adapter, pipeline_header=HEADER)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KOMPUTE_DML_PIPELINES", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def file(folder: Path, adapter: Adapter) -> PipelineFile:
    return PipelineFile(adapter)


# The file


def test_what_was_saved_is_loaded(file: PipelineFile, adapter: Adapter) -> None:
    assert file.load() == b""
    file.save(DATA)
    assert file.path is not None
    assert file.path.name == f"3020100-7060504-{bytes(range(8, 24)).hex()}.bin"
    assert PipelineFile(adapter).load() == DATA
    assert os.listdir(file.path.parent) == [file.path.name], "nothing else stays there"


def test_the_adapter_tells_the_header_of_its_driver(device: dml.Device) -> None:
    engine = device.runtime.engine
    if not engine.shares_pipelines:
        pytest.skip("this kp has no pipelines to share")
    assert engine.manager.pipeline_data().startswith(device.adapter.pipeline_header)


@pytest.mark.parametrize("broken", [
    pytest.param(lambda kept: b"", id="empty"),
    pytest.param(lambda kept: kept[:20], id="nothing but the beginning"),
    pytest.param(lambda kept: kept[:-1], id="cut off"),
    pytest.param(lambda kept: kept + b"x", id="too long"),
    pytest.param(lambda kept: kept[:-9] + b"P" + kept[-8:], id="a byte changed"),
    pytest.param(lambda kept: kept.replace(b"1\n", b"2\n", 1), id="of another format"),
    pytest.param(lambda kept: pipeline_file._before(b"x" + DATA[1:]) + b"x" + DATA[1:],
                 id="of another driver"),
])
def test_a_file_that_is_not_valid_is_ignored_and_replaced(
    file: PipelineFile, adapter: Adapter, broken: Callable[[bytes], bytes]
) -> None:
    file.save(DATA)
    assert file.path is not None
    file.path.write_bytes(broken(file.path.read_bytes()))
    after = PipelineFile(adapter)
    assert after.load() == b""
    after.save(DATA)
    assert PipelineFile(adapter).load() == DATA


def test_a_file_that_has_grown_too_large_is_begun_anew(
    file: PipelineFile, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.save(DATA)
    monkeypatch.setattr(pipeline_file, "MAX_BYTES", 100)
    assert PipelineFile(adapter).load() == b""


def test_only_what_is_new_is_written(file: PipelineFile, adapter: Adapter) -> None:
    file.save(HEADER)  # a driver that keeps nothing
    file.save(b"not what this driver writes" * 9)
    assert file.path is not None
    assert not file.path.exists()
    file.save(DATA)
    written = file.path.stat().st_ino
    again = PipelineFile(adapter)
    again.save(again.load())
    file.save(DATA)
    assert file.path.stat().st_ino == written


def test_what_another_process_writes_is_seen(file: PipelineFile, adapter: Adapter) -> None:
    assert file.others() == b""
    PipelineFile(adapter).save(DATA)
    assert file.others() == DATA
    assert file.others() == b"", "it is not new any more"
    file.save(DATA + b"more")
    assert file.others() == b"", "it is this file's own"


@pytest.mark.parametrize("place", ["taken by a file", "switched off", "not to be written"])
def test_without_a_folder_nothing_is_kept(
    place: str, tmp_path: Path, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").touch()
    names = {"taken by a file": str(tmp_path / "taken"), "switched off": "",
             "not to be written": "/proc/self"}
    monkeypatch.setenv("KOMPUTE_DML_PIPELINES", names[place])
    file = PipelineFile(adapter)
    file.save(DATA)
    assert (file.load(), file.others()) == (b"", b"")
    assert (file.path is None) == (place == "switched off")


@pytest.fixture
def default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in the user's cache, which is not there yet."""
    monkeypatch.delenv("KOMPUTE_DML_PIPELINES", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home" / "cache" / "kompute_dml" / "pipelines"


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_files_are_for_their_user_alone(default_folder: Path, adapter: Adapter) -> None:
    """Whatever the process's mask is."""
    before = os.umask(0)
    try:
        file = PipelineFile(adapter)
        file.save(DATA)
        assert file.path is not None
        assert (_mode(default_folder), _mode(file.path)) == (0o700, 0o600)
        default_folder.chmod(0o777)
        assert PipelineFile(adapter).load() == b""
        PipelineFile(adapter).save(DATA)  # closes the folder of this package
    finally:
        os.umask(before)
    assert _mode(default_folder) == 0o700 and PipelineFile(adapter).load() == DATA


def _link_to_file(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def _link_to_folder(path: Path) -> None:
    path.parent.rename(path.parent.parent / "elsewhere")
    path.parent.symlink_to(path.parent.parent / "elsewhere")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize("change, is_replaced", [
    (_link_to_file, True), (_link_to_folder, False), (_pipe, True),
    (lambda path: path.chmod(0o620), True), (lambda path: path.chmod(0o602), True),
    (lambda path: path.parent.chmod(0o770), False), (lambda path: path.parent.chmod(0o707), False),
])
def test_what_others_may_have_written_is_not_read(
    file: PipelineFile, adapter: Adapter, change: Callable[[Path], None], is_replaced: bool
) -> None:
    """Links are not followed. A folder that the environment names stays as it is."""
    file.save(DATA)
    assert file.path is not None
    change(file.path)
    left = _mode(file.path.parent)
    after = PipelineFile(adapter)
    assert after.load() == b""
    after.save(DATA)
    assert (PipelineFile(adapter).load() == DATA) == is_replaced
    assert _mode(file.path.parent) == left


@pytest.mark.parametrize("is_there", [False, True])
def test_a_folder_of_another_user_is_left_alone(
    is_there: bool, default_folder: Path, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for root with that user's HOME."""
    if is_there:
        PipelineFile(adapter).save(DATA)
    home = default_folder.parents[2]
    before = sorted((path, path.lstat().st_mtime_ns) for path in home.rglob("*"))
    monkeypatch.setattr(pipeline_file, "_ROOT", -1)
    monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid + 1)
    file = PipelineFile(adapter)
    assert file.load() == b""
    file.save(DATA + b"more")
    assert sorted((path, path.lstat().st_mtime_ns) for path in home.rglob("*")) == before


def test_the_files_lie_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KOMPUTE_DML_PIPELINES")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert pipeline_file.folder() == tmp_path / "kompute_dml" / "pipelines"


def test_threads_that_write_at_once_leave_a_whole_file(
    file: PipelineFile, adapter: Adapter
) -> None:
    def write(n: bytes) -> None:
        own = PipelineFile(adapter)
        for turn in range(200):
            own.save(HEADER + n * (5000 + turn))
            read.append(own.load())

    read: list[bytes] = []
    writers = [threading.Thread(target=write, args=(n,)) for n in (b"1", b"2")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(read) == 400
    assert all(read), "a part of a file"
    assert file.path is not None
    assert os.listdir(file.path.parent) == [file.path.name]


def test_processes_that_write_at_once_leave_a_whole_file(
    file: PipelineFile, adapter: Adapter
) -> None:
    script = f"""
        import dataclasses, sys
        import kompute_dml as dml
        from kompute_dml.runtime.pipeline_file import PipelineFile
        adapter = dataclasses.replace(dml.list_devices()[0], pipeline_header={HEADER!r})
        file = PipelineFile(adapter)
        for turn in range(200):
            file.save({HEADER!r} + b"%d" % turn * WRITER * 5000)
            assert file.load(), "a part of a file"
    """
    results: list[Any] = []
    writers = [threading.Thread(target=lambda n=n: results.append(
        python(script.replace("WRITER", str(n))))) for n in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [(r.returncode, r.stderr) for r in results] == [(0, "")] * 2
    assert file.load().startswith(HEADER)
    assert file.path is not None
    assert os.listdir(file.path.parent) == [file.path.name]


# The device


class _Manager:
    """kp's manager, with other methods."""

    def __init__(self, manager: Any, **methods: Any) -> None:
        self._manager = manager
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


@pytest.fixture
def sharing(own: dml.Device) -> dml.Device:
    """A device whose kp shares pipelines."""
    if not own.runtime.engine.shares_pipelines:
        pytest.skip("this kp has no pipelines to share")
    return own


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """(variant, thread) of each pipeline that is compiled."""
    done: list[tuple[str, str]] = []
    compile = Engine.compile

    def noted(self: Engine, variant: Any, spec: np.ndarray) -> Any:
        done.append((variant.name, threading.current_thread().name))
        return compile(self, variant, spec)

    monkeypatch.setattr(Engine, "compile", noted)
    return done


@pytest.fixture(params=["at the end", "at once"])
def begun(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines are begun when a graph is planned, or each with its operator."""
    monkeypatch.setattr(step, "SLOW", 0 if request.param == "at once" else 1 << 30)


def _graph(device: dml.Device) -> Any:
    """A graph of a reduction and a product, which nothing fuses."""
    a, b = (dml.TensorDesc("float32", [1, 1, 4, 4]) for _ in range(2))
    total = dml.TensorDesc("float32", [1, 1, 4, 1])
    product = dml.GemmOperatorDesc(
        a_tensor=a, b_tensor=b, c_tensor=None, output_tensor=a, trans_a=dml.MatrixTransform.NONE,
        trans_b=dml.MatrixTransform.NONE, alpha=1.0, beta=0.0)
    reduce = dml.ReduceOperatorDesc(function=dml.ReduceFunction.MAX, input_tensor=a,
                                    output_tensor=total, axes=[3])
    return device.compile_graph(dml.GraphDesc(
        input_count=2, output_count=1,
        nodes=[dml.OperatorGraphNodeDesc(device.create_operator(d)) for d in (product, reduce)],
        input_edges=[dml.InputGraphEdgeDesc(i, 0, i) for i in range(2)],
        intermediate_edges=[dml.IntermediateGraphEdgeDesc(0, 0, 1, 0)],
        output_edges=[dml.OutputGraphEdgeDesc(1, 0, 0)],
    ))


def _run(device: dml.Device, graph: Any) -> np.ndarray:
    x, y = device.create_buffer(64), device.create_buffer(16)
    x.write(np.arange(16, dtype=np.float32))
    table = device.create_binding_table(graph)
    table.bind_inputs([dml.BufferBinding(x), dml.BufferBinding(x)])
    table.bind_outputs([dml.BufferBinding(y)])
    if needed := graph.binding_properties.temporary_resource_size:
        table.bind_temporary_resource(dml.BufferBinding(device.create_buffer(needed)))
    device.record_dispatch(graph, table)
    return y.read().view(np.float32)


def _wait(device: dml.Device) -> None:
    _end(device.runtime.pipelines)


def _end(cache: pipelines.Pipelines) -> None:
    end = time.monotonic() + 60
    while cache._ahead._threads and time.monotonic() < end:
        time.sleep(0.001)


EXPECTED = np.arange(16.0).reshape(4, 4) @ np.arange(16.0).reshape(4, 4)


@pytest.mark.usefixtures("begun")
def test_a_graph_is_compiled_in_threads(
    sharing: dml.Device, compiled: list[tuple[str, str]]
) -> None:
    graph = _graph(sharing)
    _wait(sharing)
    assert sorted(name for name, _ in compiled) == sorted(graph.variants)
    assert {thread for _, thread in compiled} == {"kompute_dml-compile"}
    done = len(compiled)
    np.testing.assert_array_equal(_run(sharing, graph), EXPECTED.max(1))
    assert not {name for name, _ in compiled[done:]} & {*graph.variants}, "compiled twice"


class _NoDriver:
    """An engine of a GPU that only notes what it compiles."""

    adapter = type("Adapter", (), {"is_cpu": False})
    shares_pipelines = True

    def __init__(self) -> None:
        self.done: list[str] = []
        self.goes_on = threading.Event()
        self.goes_on.set()

    def compile(self, variant: Any, spec: np.ndarray) -> str:
        assert self.goes_on.wait(60)
        self.done.append(variant.name)
        return str(variant.name)

    def keep_compiled(self) -> None:
        pass


@pytest.fixture
def one_thread() -> tuple[_NoDriver, pipelines.Pipelines]:
    """Pipelines that one thread compiles, without a driver."""
    engine: Any = _NoDriver()
    cache = pipelines.Pipelines(engine, shader_library.ShaderLibrary(frozenset()))
    cache._ahead._most = 1
    return engine, cache


def _of(*names: str) -> list[pipelines.Shader]:
    known = shader_library._all_variants()
    return [(known[name], b"") for name in names]


def test_the_slowest_are_compiled_first(
    one_thread: tuple[_NoDriver, pipelines.Pipelines]
) -> None:
    names = ["elementwise_chain", "gemm_coopmat.t64", "pooling_planes.max.last",
             "gemm_coopmat.t64.tail", "gemm.t64"]
    engine, cache = one_thread
    done = engine.done
    for _ in range(2):
        cache.begin(_of(*names))
        _end(cache)
    order = ["gemm_coopmat.t64.tail", "gemm_coopmat.t64", "elementwise_chain", "gemm.t64",
             "pooling_planes.max.last"]
    assert done == order, "each once"
    assert [v.compile_cost >= pipelines.SLOW for v, _ in cache._compiled] == [True] + [False] * 4


def test_what_may_be_needed_is_compiled_after_what_is(
    one_thread: tuple[_NoDriver, pipelines.Pipelines]
) -> None:
    engine, cache = one_thread
    engine.goes_on.clear()
    cache.begin(_of("one_hot"))
    cache.begin_ahead(_of("tile", "gemm.t64", "scatter"))
    cache.begin_ahead(_of("tile", "one_hot"))
    cache.begin(_of("reduce_lines", "tile"))
    engine.goes_on.set()
    _end(cache)
    assert engine.done[0] == "one_hot"
    assert set(engine.done[1:3]) == {"reduce_lines", "tile"}
    assert engine.done[3:] == ["gemm.t64", "scatter"]


def test_what_may_be_needed_takes_half_of_the_room(
    one_thread: tuple[_NoDriver, pipelines.Pipelines], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, cache = one_thread
    tile, larger = _of("tile", "gemm.t64")
    for room, expected in ((1, []), (0, ["tile"])):
        monkeypatch.setattr(pipelines, "MAX_BYTES", 2 * (cache._estimate(tile) - room))
        cache.begin_ahead([larger, tile])
        _end(cache)
        assert engine.done == expected


def test_what_nobody_uses_any_more_is_not_compiled(
    one_thread: tuple[_NoDriver, pipelines.Pipelines]
) -> None:
    engine, cache = one_thread
    engine.goes_on.clear()
    cache.begin(_of("one_hot"))
    cache.begin(_of("reduce_lines", "gemm.t64"))
    cache.begin_ahead(_of("tile", "scatter"))
    for gone in ("tile", "gemm.t64"):
        cache.use(_of(gone))
        cache.left.append(_of(gone))
    cache.drop_left()
    engine.goes_on.set()
    _end(cache)
    assert engine.done == ["one_hot", "reduce_lines", "scatter"]


def test_what_has_no_room_any_more_is_compiled(
    one_thread: tuple[_NoDriver, pipelines.Pipelines], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its plan holds it, and needs it at its run."""
    engine, cache = one_thread
    engine.goes_on.clear()
    cache.begin(_of("one_hot"))
    held = cache.begin(_of("reduce_lines"))
    monkeypatch.setattr(pipelines, "MAX_BYTES", 1)
    cache.begin(_of("tile"))
    engine.goes_on.set()
    _end(cache)
    assert len(held) == 1 and engine.done == ["one_hot", "reduce_lines", "tile"]


def _noted(device: dml.Device, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pipelines threads are given, each time; 0 for an operator that is compiled."""
    notes: list[int] = []
    add, lower = device.runtime.pipelines._ahead.add, dml.Device.plan

    def added(new: list[Any]) -> None:
        notes.extend([len(new)] if new else [])
        add(new)

    def lowered(*arguments: Any, **others: Any) -> Any:
        notes.append(0)
        return lower(*arguments, **others)

    monkeypatch.setattr(device.runtime.pipelines._ahead, "add", added)
    monkeypatch.setattr(dml.Device, "plan", lowered)
    return notes


@pytest.mark.parametrize(("slow", "expected"), [(0, [0, 1, 0, 1]), (1 << 30, [0, 0, 2])])
def test_slow_pipelines_of_a_graph_are_begun_while_it_is_planned(
    sharing: dml.Device, monkeypatch: pytest.MonkeyPatch, slow: int, expected: list[int]
) -> None:
    monkeypatch.setattr(step, "SLOW", slow)
    notes = _noted(sharing, monkeypatch)
    _graph(sharing)
    assert notes == expected


@pytest.mark.parametrize(("slow", "runs", "expected"), [
    (0, True, [0, 1, 0, 1]), (1 << 30, True, [0, 0, 2]), (0, False, [0, 0])])
def test_slow_pipelines_of_a_plan_are_begun_while_it_is_made(
    sharing: dml.Device, monkeypatch: pytest.MonkeyPatch, slow: int, runs: bool,
    expected: list[int],
) -> None:
    monkeypatch.setattr(step, "SLOW", slow)
    notes = _noted(sharing, monkeypatch)
    builder = Builder(sharing)
    x = builder.new((1, 1, 4, 4), np.float32)
    last = x
    for name, what in (("SUMMATION", "sum"), ("PRODUCT", "product")):
        y = builder.new(x.shape, x.dtype)
        builder.emit(f"CUMULATIVE_{name}", {
            "input_tensor": (last, last.shape, last.strides),
            "output_tensor": (y, y.shape, y.strides),
        }, axis=3, axis_direction=dml.AxisDirection.INCREASING, **{f"has_exclusive_{what}": False})
        last = y
    if runs:
        builder.finish([x], [last])
    else:
        builder.lower([x], [last])
    assert notes == expected


def test_pipelines_are_compiled_at_once() -> None:
    meeting, met = threading.Barrier(3), threading.Semaphore(0)

    class Compiled:
        def get(self) -> None:
            meeting.wait(10)
            met.release()

    ahead = pipelines._Ahead(3, lambda: None)
    ahead.add([Compiled() for _ in range(3)])
    assert all(met.acquire(timeout=10) for _ in range(3))
    ahead.stop()


def test_a_pipeline_is_compiled_once_for_all_blocks(
    sharing: dml.Device, compiled: list[tuple[str, str]]
) -> None:
    cache = sharing.runtime.pipelines
    x, y = (sharing.tensor(np.ones(4 << 20, np.float32)) for _ in range(2))
    assert x.allocation.block is not y.allocation.block
    del compiled[:]
    made = cache.made
    for tensor in (x, y):
        assert dml.activation_relu(tensor).numpy()[-1] == 1
    names = [name for name, _ in compiled]
    assert len(names) == len({*names}) >= 1
    assert cache.made - made >= 2 * len(names)


@pytest.mark.usefixtures("begun")
def test_what_fails_in_a_thread_fails_where_it_is_needed(
    sharing: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile = Engine.compile

    def fails(self: Engine, variant: Any, spec: np.ndarray) -> Any:
        raise dml.OutOfMemoryError(f"making {variant.name}")

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "compile", fails)
        graph = _graph(sharing)
        _wait(sharing)
        with pytest.raises(dml.OutOfMemoryError, match=r"making "):
            _run(sharing, graph)
    assert Engine.compile is compile
    np.testing.assert_array_equal(_run(sharing, graph), EXPECTED.max(1))


@pytest.mark.usefixtures("begun")
def test_who_needs_a_pipeline_waits_for_the_thread_that_compiles_it(
    sharing: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile, begun, go_on = Engine.compile, threading.Event(), threading.Event()
    names = []

    def slow(self: Engine, variant: Any, spec: np.ndarray) -> Any:
        names.append(variant.name)
        begun.set()
        assert go_on.wait(60)
        return compile(self, variant, spec)

    monkeypatch.setattr(Engine, "compile", slow)
    graph = _graph(sharing)
    assert begun.wait(60)
    threading.Timer(0.05, go_on.set).start()
    np.testing.assert_array_equal(_run(sharing, graph), EXPECTED.max(1))
    assert [names.count(name) for name in graph.variants] == [1] * len(graph.variants)


@pytest.mark.usefixtures("begun")
def test_closing_waits_for_what_is_being_compiled_and_leaves_the_rest(
    sharing: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile, begun, names = Engine.compile, threading.Event(), []

    def slow(self: Engine, variant: Any, spec: np.ndarray) -> Any:
        names.append(variant.name)
        begun.set()
        time.sleep(0.1)
        return compile(self, variant, spec)

    monkeypatch.setattr(Engine, "compile", slow)
    sharing.runtime.pipelines._ahead._most = 1
    graph = _graph(sharing)
    assert begun.wait(60)
    sharing.close()
    assert not sharing.runtime.pipelines._ahead._threads
    assert len(names) == 1 < len(graph.variants)
    with pytest.raises(dml.DeviceLostError, match="closed"):
        _run(sharing, graph)


@pytest.mark.usefixtures("begun")
def test_where_no_thread_can_start_the_run_compiles(
    sharing: dml.Device, compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        graph = _graph(sharing)
    assert not compiled
    np.testing.assert_array_equal(_run(sharing, graph), EXPECTED.max(1))
    assert "kompute_dml-compile" not in {thread for _, thread in compiled}


@shared_blocks
def test_compiled_pipelines_are_bounded(
    sharing: dml.Device, compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "MAX_PIPELINES", 2)
    x = sharing.tensor(np.arange(64, dtype=np.float32))
    caches = sharing.runtime.pipelines
    dml.abs(x).numpy()
    dml.negate(x).numpy()
    all_now = [caches._estimate(key) for key in caches._compiled]
    most = sum(all_now) + min(all_now) // 2  # these, but not one more
    monkeypatch.setattr(pipelines, "MAX_BYTES", most)
    for _ in range(2):
        for use in (dml.abs, dml.negate, dml.sqrt):
            use(x).numpy()
            assert caches.nbytes == sum(map(caches._estimate, caches._compiled)) <= most
            assert {key[:2] for key in caches._cache} <= caches._compiled.keys()
    monkeypatch.setattr(pipelines, "MAX_BYTES", 1)
    dml.exp(x).numpy()
    assert len(caches._compiled) == 1, "the newest one stays"
    assert len(compiled) > len({name for name, _ in compiled}), "the oldest were compiled again"


@shared_blocks
def test_a_pipeline_that_runs_again_is_not_dropped(
    sharing: dml.Device, compiled: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = sharing.tensor(np.arange(64, dtype=np.float32))
    caches = sharing.runtime.pipelines
    for use in (dml.abs, dml.negate, dml.floor, dml.ceil):
        use(x).numpy()
    monkeypatch.setattr(pipelines, "MAX_BYTES", caches.nbytes)
    for use in (dml.sqrt, dml.exp, dml.sin):
        before = len(compiled)
        dml.abs(x).numpy()
        assert len(compiled) == before
        use(x).numpy()


@shared_blocks
@pytest.mark.parametrize("kind", ["graph", "expressions"])
def test_a_plan_that_does_not_fit_the_cache_is_compiled_once(
    kind: str, sharing: dml.Device, compiled: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "MAX_BYTES", 1)
    run: Callable[[], np.ndarray]
    if kind == "graph":
        graph = _graph(sharing)
        names, run = graph.variants, functools.partial(_run, sharing, graph)
    else:
        with dml.Graph(sharing) as g:
            x = g.input((4, 4))
            ready = g.compile((x @ x).max(1))
        names, run = ready.variants, functools.partial(
            ready, np.arange(16, dtype=np.float32).reshape(4, 4))
    for _ in range(3):
        np.testing.assert_array_equal(run(), EXPECTED.max(1))
    assert len(names) > 1
    assert sorted(name for name, _ in compiled if name in names) == sorted(names)


@pytest.fixture
def keeping(
    folder: Path, device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dml.Device]:
    """A device whose driver keeps data, which CPU drivers do not, and whose file is a test's."""
    own = dml.Device(device.adapter)
    engine = own.runtime.engine
    if not engine.shares_pipelines:
        pytest.skip("this kp has no pipelines to share")
    header = device.adapter.pipeline_header
    engine.manager = _Manager(engine.manager, pipeline_data=lambda more=b"": (
        max(more, header, key=len) + b"+"))
    yield own
    own.close()


def test_what_was_compiled_is_kept_when_a_graph_is(keeping: dml.Device, folder: Path) -> None:
    _graph(keeping)
    _wait(keeping)
    assert PipelineFile(keeping.adapter).load() == keeping.adapter.pipeline_header + b"+"


def test_what_was_compiled_is_kept_when_a_device_is_closed(keeping: dml.Device) -> None:
    kept = PipelineFile(keeping.adapter)
    kept.save(keeping.adapter.pipeline_header + b"of another process")
    keeping.close()
    assert kept.others().endswith(b"of another process+"), "both are there"


def test_a_driver_that_refuses_its_own_data_begins_anew(sharing: dml.Device) -> None:
    given = []

    def share(data: bytes = b"") -> None:
        given.append(data)
        if data:
            raise RuntimeError("vkCreatePipelineCache: VK_ERROR_UNKNOWN")

    engine = sharing.runtime.engine
    engine.manager = _Manager(engine.manager, share_pipelines=share)
    engine._file = type("File", (), {"load": lambda self: b"data", "path": None})()
    engine._share_pipelines()
    assert given == [b"data", b""]


def test_a_device_opens_with_a_broken_file(folder: Path, device: dml.Device) -> None:
    file = PipelineFile(device.adapter)
    assert file.path is not None
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(b"nonsense" * 1000)
    with_it = dml.Device(device.adapter)
    assert dml.negate(with_it.tensor(np.float32([1]))).numpy() == [-1]
    with_it.close()


def test_a_process_ends_while_threads_compile() -> None:
    succeeds("""
        import sys
        sys.path.insert(0, "tests/engine"); sys.path.insert(0, "tests")
        import kompute_dml as dml
        from test_pipelines import _graph
        _graph(dml.default_device())
    """)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_leaves_its_parents_threads_alone(sharing: dml.Device) -> None:
    assert succeeds("""
        import os, sys, threading, time, warnings
        sys.path.insert(0, "tests/engine"); sys.path.insert(0, "tests")
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: drivers have threads
        import kompute_dml as dml
        from kompute_dml.runtime.kp_engine import Engine
        from test_pipelines import EXPECTED, _graph, _run
        compile, begun = Engine.compile, threading.Event()

        def slow(self, variant, spec):
            begun.set()
            time.sleep(0.2)
            return compile(self, variant, spec)

        device = dml.Device()
        dml.negate(device.tensor([1.0], "float32")).numpy()
        pipelines = device.runtime.pipelines
        Engine.compile = slow
        graph = _graph(device)
        assert begun.wait(60)
        before = len(pipelines._compiled)
        child = os.fork()
        if child == 0:
            assert (len(pipelines._compiled), len(pipelines._abandoned)) == (0, before)
            try:
                _run(device, graph)
            except dml.DeviceLostError:
                sys.exit(0)
            os._exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        assert (_run(device, graph) == EXPECTED.max(1)).all()
        print("both")
    """) == "both\n"


# Bounds checks


@pytest.mark.parametrize(("chooses", "unchecked", "asked"), [
    (True, True, (1,)), (True, False, (2,)), (False, True, ())])
def test_shaders_that_are_faster_so_have_no_checks_of_the_drivers(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch,
    chooses: bool, unchecked: bool, asked: tuple[int, ...],
) -> None:
    engine = device.runtime.engine
    variant = dataclasses.replace(device.runtime.library.get("activation_identity", "b32"),
                                  unchecked=unchecked)
    given: list[Any] = []

    class Manager:
        def pipeline(self, *arguments: Any) -> None:
            given.extend(arguments)

    monkeypatch.setattr(engine, "chooses_checks", chooses)
    monkeypatch.setattr(engine, "manager", Manager())
    engine.compile(variant, variant.pack_spec({}))
    assert tuple(given[4:]) == asked


@pytest.mark.parametrize("unchecked", [True, False])
@pytest.mark.parametrize("kept", ["", "1"])
def test_a_driver_that_adds_checks_is_asked_not_to(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, unchecked: bool, kept: str
) -> None:
    if "pipelineRobustness" not in device.adapter.features:
        pytest.skip("this driver has no VK_EXT_pipeline_robustness")
    monkeypatch.setattr(traits, "_CHECKS_BOUNDS", (device.adapter.driver,))
    monkeypatch.setenv("KOMPUTE_DML_BOUNDS_CHECKS", kept)
    engine = Engine(device.adapter)
    try:
        assert engine.chooses_checks == (engine.shares_pipelines and not kept)
        variant = dataclasses.replace(device.runtime.library.get("activation_identity", "b32"),
                                      unchecked=unchecked)
        if engine.shares_pipelines:
            engine.compile(variant, variant.pack_spec({}))
    finally:
        engine.close()


# Subgroups


@pytest.mark.parametrize((
    "driver", "own", "sizes", "features", "made_for", "invocations", "asked",
), [
    ("radv", 64, (32, 64), "cooperativeMatrix", 32, 256, {"subgroup_size": 32}),
    ("Intel open-source", 32, (8, 32), "cooperativeMatrix", 16, 256, {"subgroup_size": 16}),
    ("radv", 32, (32, 32), "cooperativeMatrix", 32, 256, {}),  # it is the driver's only one
    ("radv", 64, (64, 64), "cooperativeMatrix", 32, 256, {}),  # nobody can have it
    # Others take any, but the one that lowerings know.
    ("radv", 64, (32, 64), "", 0, 256, {"subgroup_size": 64}),
    ("Intel open-source", 32, (8, 32), "", 0, 256, {"subgroup_size": 8}),
    ("turnip", 128, (64, 128), "", 0, 256, {"subgroup_size": 64}),
    ("turnip", 128, (64, 128), "", 0, 32, {}),  # a workgroup is no whole subgroup
    ("NVIDIA", 32, (32, 32), "", 0, 256, {}),
])
def test_shaders_with_subgroups_ask_for_their_size(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, driver: str, own: int,
    sizes: tuple[int, int], features: str, made_for: int, invocations: int, asked: dict[str, int],
) -> None:
    engine = device.runtime.engine
    able = frozenset({"subgroupSizeControl", "computeFullSubgroups"})
    plain = device.runtime.library.get("activation_identity", "b32")
    variant = dataclasses.replace(
        plain, sizes={"lanes": made_for},
        features=frozenset({features or "subgroupArithmetic"}))
    given: dict[str, int] = {}

    class Manager:
        def pipeline(self, *_: Any, **more: int) -> None:
            given.update(more)

    monkeypatch.setattr(engine, "adapter", dataclasses.replace(
        engine.adapter, driver=driver, subgroup_size=own, subgroup_sizes=sizes, features=able))
    monkeypatch.setattr(engine, "manager", Manager())
    spec = variant.pack_spec({"LOCAL_SIZE": invocations})
    engine.compile(variant, spec)
    assert given == asked
    given.clear()
    engine.compile(plain, spec)  # it has no subgroups
    assert not given
    lanes = traits.of(engine.adapter).subgroup_size
    assert made_for or lanes == asked.get("subgroup_size", min(sizes))


def test_a_workgroup_of_a_fixed_size_asks_for_subgroups(device: dml.Device) -> None:
    adapter = dataclasses.replace(
        device.adapter, driver="turnip", subgroup_size=128, subgroup_sizes=(64, 128),
        features=frozenset({"subgroupSizeControl", "computeFullSubgroups"}))
    variant = dataclasses.replace(
        device.runtime.library.get("units"), spec_ids={}, workgroup_size=(192, 1, 1),
        features=frozenset({"subgroupShuffle"}))
    assert variant.asked_subgroup(adapter, variant.pack_spec({})) == 64


def test_a_pipeline_has_the_size_of_subgroups_that_it_asks_for(device: dml.Device) -> None:
    """The driver's own size, which most drivers for CPUs have alone."""
    engine, size = device.runtime.engine, device.adapter.subgroup_size
    if not engine.shares_pipelines or size not in device.target.traits.subgroup_sizes:
        pytest.skip("pipelines cannot ask for a size here")
    variant = device.runtime.library.get("units")
    spec = variant.pack_spec({"LOCAL_SIZE": 64})
    made = engine.manager.pipeline(
        variant.spirv, variant.bindings, spec, variant.push_words, subgroup_size=size)
    assert made is not None
