"""The benchmark of whole models."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import kompute_dml as dml
from kompute_dml.bench import (
    architectures,
    baseline,
    decoders,
    formats,
    growing,
    models,
    modules,
    sessions,
    start,
    turns,
)
from kompute_dml.bench.timing import Clock, Loop
from kompute_dml.cli import cli


def product_kind(types="FLOAT32", goals=(("ms", 1e6),), off=0.0):
    """A model of one product. The expected result is wrong by ``off``."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime", "1.24")

    def make(folder):
        x, w = np.eye(16, 32, dtype="f4"), np.arange(32 * 8, dtype="f4").reshape(32, 8)
        infos = [onnx.helper.make_tensor_value_info(n, 1, d) for n, d in
                 (("x", x.shape), ("y", (16, 8)))]
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]),
             onnx.helper.make_node("Relu", ["h"], ["y"])],
            "g", infos[:1], infos[1:], [onnx.numpy_helper.from_array(w, "w")])
        path = folder / f"{types}.onnx"
        onnx.save(onnx.helper.make_model(
            graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
        return models.BenchModel(path, {"x": x, "unread": x}, x @ w + off, 1e-5)

    return models.ModelKind("product, 16", types, goals, make)


def bench_models(monkeypatch, kinds, *arguments):
    monkeypatch.setattr(architectures, "kinds", lambda: kinds)
    return CliRunner().invoke(cli, ["bench", "--suite", "models", *map(str, arguments)])


def test_models_are_checked_timed_and_kept(monkeypatch, tmp_path):
    """Of three models one is filtered out, and one has a wrong result."""
    kept, starts = tmp_path / "run.json", []

    def started_once(*arguments):
        starts.append(starts[0] if starts else start.started_twice(*arguments))
        return starts[0]

    monkeypatch.setattr(models, "started_twice", started_once)
    kinds = [product_kind(), product_kind("FLOAT16", off=9.0), product_kind("INT8")]
    result = bench_models(monkeypatch, kinds, "--filter", "float", "--peers", "onnxruntime",
                          "-i", 3, "--output", kept, "--plot", tmp_path / "run.svg")
    assert result.exit_code == 1
    assert re.search(r"product, 16 +FLOAT32 .* 2 of 2$", result.stdout, re.MULTILINE)
    assert re.search(r"product, 16 +FLOAT16 .* WRONG$", result.stdout, re.MULTILINE)
    assert "INT8" not in result.stdout
    assert result.stderr.strip().startswith("error: product, 16 FLOAT16: off by ")
    run = baseline.load(kept)
    right, wrong = run["models"]
    assert right["values"] == "ok" and right["off_by"] == 0
    assert right["regions"] == 1 and right["dispatches"] in (None, 1)
    assert right["peers"]["onnxruntime"]["ms"] > 0
    for name in ("ms", "session_ms", "session_first_ms", "first_ms", "cold_session_ms",
                 "cold_first_ms", "warm_session_ms", "warm_first_ms"):
        assert right[name] > 0, name
    beside = right["peers"]["onnxruntime"]
    assert beside["session_ms"] > 0 and beside["session_first_ms"] > 0
    assert wrong["ms"] is None and wrong["peers"] == {}
    assert ">product, 16</text>" in (tmp_path / "run.svg").read_text()
    (moved,) = baseline.against(run["models"], run)
    assert moved["case"] == "product, 16 FLOAT32" and not moved["moved"]
    assert f"| product, 16 | FLOAT32 | {right['ms']:.2f} ms |" in baseline.markdown(run)


@pytest.fixture
def quick_bench(monkeypatch, device):
    """Measures no start in a new process."""
    monkeypatch.setattr(
        models, "started_twice", lambda *_: (start.Start(1.0, 2.0, 1, 3, 4.0, 0.0),) * 2)
    return lambda names="": models.Bench(device.adapter, names, Loop(2))


def test_what_cannot_be_made_or_timed_is_left_out(quick_bench, monkeypatch):
    first = product_kind()

    def fail():
        raise RuntimeError("[somewhere.cc:1] no adapter")

    def missing():
        raise ModuleNotFoundError("x")

    monkeypatch.setitem(sessions.PROVIDERS, "ggml", (fail, "a-package"))
    monkeypatch.setitem(sessions.PROVIDERS, "webgpu", (missing, "a-package"))
    made = quick_bench("webgpu,ggml")
    assert made.left_out == ["webgpu is left out: a-package is not installed",
                             "ggml is left out: [somewhere.cc:1] no adapter"]
    broken = first._replace(types="INT8", make=lambda folder: 1 / 0)
    assert [row.types for row in made.run([broken, first], 60)] == ["FLOAT32"]
    assert made.left_out[2] == (
        "product, 16 INT8 is left out: ZeroDivisionError: division by zero")
    assert list(made.run([first], -1)) == []
    assert made.left_out[3] == "product, 16 FLOAT32 is left out: -1 s are over"
    with pytest.raises(dml.UnsupportedError, match=r"--peers: expected names of torch.* 'numpy'"):
        quick_bench("numpy")


def test_a_peer_that_fails_or_is_wrong_is_a_result(quick_bench, monkeypatch):
    kind = product_kind()

    def wrong():
        session = sessions.PROVIDERS["onnxruntime"][0]()
        return lambda path: SimpleNamespace(
            get_inputs=session(path).get_inputs, run=lambda *_: [np.full((16, 8), np.nan)])

    def lazy():
        def refuse(path):
            if path.name != "product.onnx":
                raise dml.UnsupportedError("it leaves every node to the CPU")
            return sessions.PROVIDERS["onnxruntime"][0]()(path)

        return refuse

    monkeypatch.setitem(sessions.PROVIDERS, "webgpu", (wrong, ""))
    monkeypatch.setitem(sessions.PROVIDERS, "ggml", (lazy, ""))
    (row,) = quick_bench("webgpu,ggml").run([kind], 60)
    assert row.ok and row.ms > 0
    assert row.peers["webgpu"].problem == "off by nan, expected at most 5e-02"
    assert row.peers["ggml"].problem == "UnsupportedError: it leaves every node to the CPU"
    assert {peer.ms for peer in row.peers.values()} == {None}
    table = models.as_table([row])
    assert table.count("failed") == 2


def test_goals_of_models():
    def row(types, ms, **fields):
        cold, warm = (start.Start(90.0, first, 1, 3, 4.0, 0.0) for first in (2000.0, 500.0))
        return models.ModelRow("m", types, "ok", ms, session_ms=50.0, session_first_ms=200.0,
                               first_ms=3000.0, start=cold, warm=warm, **fields)

    peer = models.SessionTime(8.0, session_ms=100.0, session_first_ms=10.0)
    judged = row("INT8", 4.0, peers={"webgpu": peer}).judged(
        (("ms", 2.0), ("webgpu", 1.0), ("FLOAT32", 1.0), ("onnxruntime", 2.0)),
        {"FLOAT32": row("FLOAT32", 6.0)})
    assert [(g.against, g.ratio, g.met) for g in judged.goals] == [
        ("2 ms", 0.5, False), ("webgpu", 2.0, True), ("FLOAT32", 1.5, True),
        ("onnxruntime", None, None), ("warm first run 1000 ms", 2.0, True),
        ("webgpu's session", 2.0, True)]
    assert "4 of 5; 2 ms 0.50/1 MISSED" in models.as_table([judged])
    assert re.search(r" 50 +2000 +500 +4 of 5", models.as_table([judged]))
    judged = row("INT8", 4.0, peers={"webgpu": peer}).judged(
        (("session ms", 40.0), ("webgpu's session", 4.0)), {})
    assert [(g.against, g.ratio, g.met) for g in judged.goals] == [
        ("session 40 ms", 0.8, False), ("webgpu's session", 2.0, False),
        ("warm first run 1000 ms", 2.0, True)]


def test_sessions_are_made_in_turns(monkeypatch):
    """The median counts, garbage is collected before each, and no session outlives its turn."""
    now, events, alive = [0.0], [], []

    class Session:
        def __init__(self, name):
            alive.append(name)
            self.name = name

        def __del__(self):
            alive.remove(self.name)

    def opens(name, seconds):
        takes = iter(seconds)

        def opened(path):
            assert not alive
            events.append(name)
            now[0] += next(takes)
            return Session(name)

        return opened

    monkeypatch.setattr(sessions, "time", SimpleNamespace(
        perf_counter=lambda: now[0], monotonic=lambda: now[0]))
    monkeypatch.setattr(sessions, "gc", SimpleNamespace(collect=lambda: events.append("gc")))

    def took(seconds, *times):
        events.clear()
        return sessions.in_turns(
            {name: opens(name, t) for name, t in zip("ab", times)}, Path(), 5, 3, seconds)

    assert took(99, (1, 9, 2, 3, 4), (5, 1, 1, 1, 1)) == {"a": 3000, "b": 1000}
    assert events == ["gc", "a", "gc", "b"] * 5
    assert took(1, (1, 9, 2, 3, 4)) == {"a": 2000}, "enough of them, and too many seconds"
    assert took(99, (1, 9, 2, 3, 4), (5,)) == {"a": 3000, "b": None}, "the second one fails"


def test_a_new_process_finds_what_the_first_has_kept(monkeypatch):
    """Each model begins with an empty folder, which drivers use, too."""
    seen = []

    def stand_in(command, *, env, **_):
        folder = Path(env["KOMPUTE_DML_PIPELINES"])
        seen.append((folder, bool(list(folder.iterdir()))))
        assert Path(env["__GL_SHADER_DISK_CACHE_PATH"]) == folder
        assert Path(env["MESA_SHADER_CACHE_DIR"]) == folder
        (folder / "kept").touch()
        return SimpleNamespace(returncode=0, stdout=json.dumps(
            dataclasses.asdict(start.Start(float(len(seen)), 2.0, 1, 3, 4.0, 0.0))))

    monkeypatch.setattr(start.subprocess, "run", stand_in)
    cold, warm = start.started_twice(Path("m.onnx"), {"x": np.zeros(1)}, "0")
    assert (cold.session_ms, warm.session_ms) == (1.0, 2.0)
    start.started_twice(Path("m.onnx"), {"x": np.zeros(1)}, "0")
    assert [was for _, was in seen] == [False, True, False, True]
    assert seen[0][0] == seen[1][0] != seen[2][0]


def test_torch_times_calls_and_a_graph_of_the_model():
    """NumPy stands in for PyTorch. A graph's replay writes what its call returned."""
    class Result(np.ndarray):
        cpu = numpy = lambda self: self

    said = np.float32([1, 2])

    class Place:
        def to(self, place):
            return self

        def __call__(self, *inputs):
            return said.view(Result)

    library = SimpleNamespace(
        place="cuda", close=lambda: None, graph=lambda call, repeat: call,
        torch=SimpleNamespace(no_grad=contextlib.nullcontext,
                              cuda=SimpleNamespace(synchronize=lambda: None)))
    model = models.BenchModel(Path(), {}, np.float32([1, 2]), 1e-5, (Place(), (Place(),)))

    def clock(call):
        call()
        return Clock((3.0,), 0)

    found = models._torch(library, model, clock)
    assert {name: time.ms for name, time in found.items()} == {"torch": 3.0, "torch (graph)": 3.0}
    said[1] = 3
    found = models._torch(library, model, clock)
    assert {time.problem for time in found.values()} == {"off by 5.0e-01, expected at most 5e-02"}


def test_a_run_is_told_from_its_trace():
    """Two runs of two regions, the first one cold."""
    def event(kind, name="", us=0):
        return {"cat": kind, "name": name, "dur": us}

    run = [event("region"), event("dispatch", "gemm", 1000), event("dispatch", "transfer", 500),
           event("region"), event("dispatch", "softmax", 2000)]
    cold = [event("region"), event("dispatch", "gemm", 9000), event("region")]
    assert start._of_a_run([{"ph": "M"}, *cold, *run], 2) == (2, 2, 3.0, 0.5)
    assert start._of_a_run([event("region")] * 4, 2) == (2, None, None, None)
    assert start._of_a_run([], 2) == (0, None, None, None)


def test_models_say_what_to_install(monkeypatch):
    monkeypatch.setattr(architectures, "NEEDED", ("numpy", "no_such_torch", "no_such_vision"))
    result = CliRunner().invoke(cli, ["bench", "--suite", "models"])
    assert result.exit_code == 1
    assert result.stderr == (
        "error: --suite models makes its models with no_such_torch, no_such_vision: pip install "
        "no_such_torch no_such_vision\n")
    monkeypatch.setattr(architectures, "NEEDED", ())
    result = CliRunner().invoke(cli, ["bench", "--suite", "models", "--filter", "no such"])
    assert "no model has 'no such' in its name or type" in result.stderr


def growing_kind():
    """Two layers whose caches have 3 to 8 rows; those of 4 and 7 rows run before."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime", "1.24")
    shape = decoders.Shape("tiny", 2, 32, 4, 2, 8, 48, 16, 32)

    def make(folder):
        rng = np.random.default_rng(0)
        path = folder / "tiny.onnx"
        path.write_bytes(growing.decoder(shape, rng))
        return turns.SizedModel(path, lambda past: growing.step(shape, past, rng),
                                *turns.parted(range(3, 9), 3), 1e-4)

    return models.ModelKind("tiny, lengths in turn", "FLOAT32",
                            ((turns.SEEN_BEFORE, 1 / turns.MOST),), make)


def test_a_growing_decoder_is_the_same_of_few_operators():
    onnxruntime = pytest.importorskip("onnxruntime", "1.24")
    shape = decoders.Shape("tiny", 2, 32, 4, 2, 8, 48, 16, 32, positions=8)
    feed = growing.step(shape, 5, np.random.default_rng(1))
    small, few = (onnxruntime.InferenceSession(
        growing.decoder(shape, np.random.default_rng(0), small=small),
        providers=["CPUExecutionProvider"]).run(None, feed) for small in (True, False))
    assert len(small) == len(few) == 1 + 2 * shape.layers
    for x, y in zip(few, small):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_sizes_in_turn_are_new_once_and_compared(monkeypatch, tmp_path):
    kept = tmp_path / "run.json"
    result = bench_models(monkeypatch, [growing_kind()], "--output", kept, "--plot",
                          tmp_path / "run.svg")
    assert result.exit_code == 0, result.output
    assert re.search(r"^tiny, lengths in turn +FLOAT32 +4 .* at most 1.15: (met|MISSED)$",
                     result.stdout, re.MULTILINE)
    (row,) = (run := baseline.load(kept))["models"]
    assert row["values"] == "ok" and row["off_by"] < 1e-4
    assert row["sizes"] == 4 and row["plans"] == 0, "one plan serves all of these sizes"
    assert row["ratio"] == row["ms"] / row["again_ms"]
    (goal,) = row["goals"]
    assert goal["ratio"] == pytest.approx(row["again_ms"] / row["ms"])
    assert f"| tiny, lengths in turn | FLOAT32 | {row['ms']:.2f} ms |" in baseline.markdown(run)
    assert not baseline.against(run["models"], run)[0]["moved"]


def test_wrong_values_of_sizes_in_turn_have_no_times(monkeypatch):
    """The CPU provider's stand-in is wrong in the last cache of the last size only."""
    def stand_in():
        opened = sessions._cpu()

        class Session:
            def __init__(self, path):
                self.session = opened(path)

            def run(self, names, feed):
                *others, cache = self.session.run(names, feed)
                return [*others, cache + (cache.shape[2] == 9)]

        return Session

    monkeypatch.setitem(sessions.PROVIDERS, "onnxruntime", (stand_in, ""))
    result = bench_models(monkeypatch, [growing_kind()], "--format", "json")
    assert result.exit_code == 1
    assert "error: tiny, lengths in turn FLOAT32: off by " in result.stderr
    (row,) = json.loads(result.stdout)["models"]
    assert row["ms"] is row["again_ms"] is None and row["goals"][0]["ratio"] is None


def test_the_goal_of_sizes_in_turn():
    def judged(ms):
        row = turns.TurnsRow("m", "FLOAT32", "ok", 64, ms, again_ms=100.0, plans=64)
        return row.judged(((turns.SEEN_BEFORE, 1 / turns.MOST),))

    assert [judged(ms).goals[0].met for ms in (90.0, 114.9, 115.1)] == [True, True, False]
    assert re.search(r"m +FLOAT32 +64 +230 +100 +2.30 .* at most 1.15: MISSED$",
                     models.as_table([judged(230.0)]))
    both = [models.ModelRow("n", "INT8", "ok"), judged(230.0)]
    assert [len(part.splitlines()) for part in models.as_table(both).split("\n\n")] == [3, 3]
    model, sizes = csv.DictReader(formats.as_csv(both).splitlines())
    assert (model["again_ms"], sizes["again_ms"], sizes["warm_first_ms"]) == ("", "100.0", "")
    assert turns.parted(range(8), 3) == ((0, 2, 3, 5, 6), (1, 4, 7))


def test_sizes_in_turn_are_of_any_size(tmp_path):
    """A detector's file takes images of other sizes than that it was written with."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    torch = pytest.importorskip("torch")
    architecture = architectures.Architecture(
        "any size", modules.detector, lambda: architectures._image(1, 64), {}, axes=(2, 3))
    path = architectures._exported(architecture, "FLOAT32", tmp_path)
    module, _, _ = architectures._made(architecture)
    x = architectures._image_of((96, 32))
    with torch.no_grad():
        expected = module(torch.from_numpy(x["x0"])).numpy()
    result = sessions.run(sessions._cpu()(path), x)
    np.testing.assert_allclose(result, expected, 1e-4, 1e-4)


def test_sizes_in_turn_of_the_suite():
    names = [kind.name for kind in architectures.SIZES_IN_TURN]
    assert all(str(len(sizes.sizes)) in name for name, sizes in zip(
        names, (architectures._LENGTHS, architectures._SIDES, architectures._PASTS)))
    for sizes in (architectures._LENGTHS, architectures._SIDES, architectures._PASTS):
        assert len({*sizes.sizes, *sizes.warm}) == len(sizes.sizes) + len(sizes.warm)
    assert min(architectures._LENGTHS.sizes) == 1 and max(architectures._LENGTHS.sizes) == 512
