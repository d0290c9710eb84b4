"""The execution provider: errors, and the lifetimes of sessions."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

ort = pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import onnx  # noqa: E402

import kompute_dml.onnxruntime as kompute  # noqa: E402
from kompute_dml.onnx import mapping  # noqa: E402
from kompute_dml.onnx.graph import OnnxNode, OnnxValue  # noqa: E402
from kompute_dml.onnx.region import Region  # noqa: E402
from kompute_dml.onnxruntime import allocation, capi, provider  # noqa: E402
from kompute_dml.onnxruntime.kernel import RegionKernel  # noqa: E402
from kompute_dml.toolchain import native  # noqa: E402
from onnx_graphs import (  # noqa: E402
    BOOL,
    FLOAT,
    UINT8,
    cpu,
    model,
    needs_provider,
    node,
    placement,
    weights,
)
from provider_tools import (  # noqa: E402
    NAME,
    K,
    N,
    last_kernel,
    session,
)
from switches import SCALE  # noqa: E402
from threads import in_threads  # noqa: E402

pytestmark = needs_provider


def test_a_shape_that_breaks_the_rules_at_run_time(rng: np.random.Generator) -> None:
    constants = {"b": weights(rng, K, N), "s": np.ones(N, np.float32)}
    nodes = [node("MatMulInteger", "a b", "sums"), node("Cast", "sums", "f", to=FLOAT),
             node("Mul", "f s", "y")]
    built = model(nodes, [("a", UINT8, ["n", "k"])], [("y", FLOAT, ["n", N])], constants)
    made = session(built)
    assert "MatMulInteger" in placement(made, NAME)
    with pytest.raises(Exception, match=r"kompute_dml: .*MatMulIntegerToFloat.*matching K"):
        made.run(None, {"a": np.ones((2, K + 1), np.uint8)})
    assert made.run(None, {"a": np.ones((2, K), np.uint8)})[0].shape == (2, N)


def test_what_is_no_model() -> None:
    with pytest.raises(Exception, match="protobuf"):
        session(b"no model")


def test_unknown_options(dense: bytes) -> None:
    with pytest.raises(dml.ValidationError, match=r"has no option colour.*claim: "):
        session(dense, colour="blue")
    with pytest.raises(dml.ValidationError, match=r"feature_level to be one of 1\.0, .*6\.4"):
        session(dense, feature_level="7.7")
    with pytest.raises(dml.NoDeviceError):
        session(dense, adapter="no such adapter")
    for claim, near in (("MatmulIntegr", "MatMulInteger"), (["Abs", "relu"], "Relu")):
        with pytest.raises(dml.ValidationError, match=rf"claim to be .*did you mean .*{near}"):
            session(dense, claim=claim)
    kompute.register()
    given = ort.SessionOptions()
    given.add_provider_for_devices(kompute.devices()[:1], {"claim": "nosuchop"})
    with pytest.raises(Exception, match=r"claim to be .*'nosuchop'"):
        ort.InferenceSession(dense, given, enable_fallback=False)


def _branches(op: str) -> dict[str, Any]:
    return {name: onnx.helper.make_graph(
        [node(op, "x", f"{name}.y")], name, [],
        [onnx.helper.make_tensor_value_info(f"{name}.y", FLOAT, None)])
        for name in ("then_branch", "else_branch")}


@pytest.mark.parametrize("claim, op, words", [
    ("auto", "Det", ["0 of 2 nodes", "are used here: Det; ", "'all' takes more"]),
    ("auto", "Abs", ["0 of 2 nodes of this model; ", "'all' takes more"]),
    ("Relu", "Abs", ["0 of 2 nodes of this model; ", "not name these", "left: Abs, Neg"]),
    ("all", "Det", []), ("all", "If", []),
])
def test_a_session_that_leaves_all_to_the_cpu_says_so_once(
    claim: str, op: str, words: list[str], recwarn: pytest.WarningsRecorder
) -> None:
    last = node(op, "b", "y", **_branches("Det")) if op == "If" else node(op, "n", "y")
    nodes = [node("Neg", "x", "n"), last]
    built = model(nodes, [("x", FLOAT, [2, 2]), ("b", BOOL, [])], [("y", FLOAT, None)])
    session(built, claim=claim)
    said = [str(w.message) for w in recwarn if "KomputeDml" in str(w.message)]
    assert len(said) == bool(words)
    for word in words:
        assert word in said[0]


@pytest.mark.parametrize("claim, ops, expected", [
    ("all", "Transpose", "left out: Transpose (its region computes nothing: "),
    ("auto", "Transpose", "left out: Transpose (its region computes nothing: "),
    ("Abs,Neg", "Neg Abs", "of this model; left out: Abs, Neg (no room)"),
    ("Abs", "Neg Abs", "optimization left: Neg; left out: Abs (no room)"),
])
def test_a_session_says_why_it_left_out_what_the_claim_takes(
    claim: str, ops: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider.Provider, "_without_room", lambda self, region: "no room")
    nodes = [node(op, f"x{i}", f"x{i + 1}") for i, op in enumerate(ops.split())]
    built = model(nodes, [("x0", FLOAT, [2, 2])], [(f"x{len(nodes)}", FLOAT, [2, 2])])
    with pytest.warns(UserWarning, match="0 of") as said:
        session(built, False, claim=claim)
    text = str(said[0].message)
    assert expected in text
    assert "takes more" not in text and ("not name" in text) == (claim == "Abs")


def test_without_kp_the_provider_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kompute, "is_registered", lambda: False)
    monkeypatch.setitem(sys.modules, "kp", None)
    for use in (kompute.register, kompute.devices):
        with pytest.raises(dml.NoDeviceError, match=r"kompute_dml\.toolchain kp"):
            use()


def _fail(*arguments: Any, **more: Any) -> Any:
    raise ZeroDivisionError("by design")


FAILURE = r"kompute_dml: ZeroDivisionError\('by design'\)"


def test_an_exception_in_a_run_becomes_a_status(
    dense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session(dense)
    with monkeypatch.context() as patch:
        patch.setattr(Region, "launch", _fail)
        with pytest.raises(Exception, match=FAILURE):
            made.run(None, {"x": np.ones((1, K), np.float32)})
    assert made.run(None, {"x": np.ones((1, K), np.float32)})[0].shape == (1, N)


@pytest.mark.parametrize("owner", [provider.Provider, RegionKernel],
                         ids=["CreateEp", "Compile"])
def test_an_exception_while_a_session_is_made_becomes_a_status(
    owner: Any, dense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    kompute.register()
    alive = set(capi.alive)
    with monkeypatch.context() as patch:
        patch.setattr(owner, "__init__", _fail)
        with pytest.raises(Exception, match=FAILURE):
            session(dense)
    assert set(capi.alive) == alive
    x = {"x": np.ones((1, K), np.float32)}
    assert session(dense).run(None, x)[0].shape == cpu(dense).run(None, x)[0].shape


def test_an_exception_in_get_capability_leaves_all_to_the_cpu(
    dense: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime logs the status and continues without the provider."""
    monkeypatch.setattr(provider.Provider, "wanted_regions", _fail)
    made = session(dense)
    assert placement(made, NAME) == []
    assert made.run(None, {"x": np.ones((1, K), np.float32)})[0].shape == (1, N)
    assert "kompute_dml: ZeroDivisionError('by design')" in capfd.readouterr().err


def test_an_unsupported_operator_set() -> None:
    """ONNX Runtime refuses operator sets that it does not know, and runs those that only it
    knows."""
    built = model([node("Relu", "x", "y")], [("x", FLOAT, [2])], [("y", FLOAT, [2])], opset=99)
    with pytest.raises(Exception, match=r"(?i)opset 99"):
        session(built, claim="all")
    x, y = OnnxValue("x", np.dtype("float32"), (2,)), OnnxValue("y", np.dtype("float32"), (2,))
    reason = mapping.candidate(OnnxNode("Relu", "", 99, (x,), (y,)), dml.default_device())
    assert isinstance(reason, str) and "version 99 of the operator is not known" in reason


def test_a_lost_device(dense: bytes) -> None:
    x = {"x": np.ones((1, K), np.float32)}
    made, other = session(dense), cpu(dense)
    recorder = next(iter(
        k for k in capi.alive.values() if isinstance(k, provider.Provider)
    )).device.runtime.recorder
    recorder.synchronize()
    recorder.lost = dml.DeviceLostError("the device is gone")
    with pytest.raises(Exception, match="kompute_dml: the device is gone"):
        made.run(None, x)
    assert other.run(None, x)[0].shape == (1, N)
    assert session(dense).run(None, x)[0].shape == (1, N)


def test_an_old_onnx_runtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "__version__", "1.23.2")
    with pytest.raises(dml.UnsupportedError, match=r"ONNX Runtime 1\.23\.2 is not supported"):
        kompute.register()
    ffi = capi.ffi
    text = ffi.new("char[]", b"1.22.0")
    base = ffi.new("OrtApiBase *")
    get_api = ffi.callback("const void *(uint32_t)", lambda version: ffi.NULL)
    version = ffi.callback("const char *(void)", lambda: text)
    base.GetApi, base.GetVersionString = get_api, version
    with pytest.raises(dml.UnsupportedError, match=r"1\.22\.0 is not supported"):
        capi.Api(base)


def test_without_a_compiler_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda: Path("/nowhere/provider.so"))
    monkeypatch.setattr(native, "SOURCE", native.SOURCE)
    monkeypatch.setattr(native, "build", _no_compiler)
    with pytest.raises(dml.UnsupportedError, match=r"provider\.so was not built.*C compiler"):
        kompute.get_library_path()


def _no_compiler() -> None:
    from kompute_dml.toolchain.system import ToolchainError

    raise ToolchainError("a C compiler is missing")


# Lifetimes


def test_sessions_leave_nothing_behind(dense: bytes) -> None:
    x = {"x": np.ones((2, K), np.float32)}
    made = session(dense)
    made.run(None, x)
    device = last_kernel().region.device
    del made
    gc.collect()
    alive = dict(capi.alive)
    used = device.memory_used
    for _ in range(60 // SCALE + 1):
        session(dense).run(None, x)
    gc.collect()
    assert capi.alive.keys() == alive.keys()
    assert device.memory_used == used


def test_a_session_gives_its_memory_back_at_once(dense: bytes) -> None:
    gc.disable()
    try:
        made = session(dense)
        made.run(None, {"x": np.ones((2, K), np.float32)})
        device = last_kernel().region.device
        used = device.memory_used
        del made
        assert device.memory_used < used
    finally:
        gc.enable()


def test_sessions_and_values_go_in_any_thread(dense: bytes) -> None:
    """Python may collect them in a thread that compiles a pipeline, for which the holder of a lock
    waits."""
    gone: list[Any] = [session(dense)]
    gone[0].run(None, {"x": np.ones((2, K), np.float32)})
    device, memory = last_kernel().region.device, allocation.memories[0].bytes
    info = kompute.devices()[0].memory_info(ort.OrtDeviceMemoryType.DEFAULT)
    gone.append(ort.OrtValue.ortvalue_from_shape_and_type([1 << 20], np.float32, memory_info=info))
    gone[1].update_inplace(np.ones(1 << 20, np.float32))
    used, count = device.memory_used, memory.count
    with device.runtime.lock, memory._lock:
        thread = threading.Thread(target=gone.clear, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    assert memory.count == count - 1
    memory.free(memory.allocate(4))
    device.runtime.collect()
    assert device.memory_used <= used - (4 << 20)


def test_several_threads(dense: bytes, rng: np.random.Generator) -> None:
    shared, theirs = session(dense), cpu(dense)

    def work(seed: int) -> None:
        own, numbers = session(dense), np.random.default_rng(seed)
        for rows in (1, 3, 8, 3):
            x = {"x": numbers.standard_normal((rows, K)).astype(np.float32)}
            expected = theirs.run(None, x)[0]
            for made in (shared, own):
                got = made.run(None, x)[0]
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

    in_threads(4, work)


@pytest.fixture
def script(tmp_path: Path, dense: bytes) -> Iterator[Any]:
    (tmp_path / "model.onnx").write_bytes(dense)
    head = (
        "import numpy as np, kompute_dml.onnxruntime as kompute\n"
        f"s = kompute.session({str(tmp_path / 'model.onnx')!r})\n"
        f"s.run(None, {{'x': np.ones((2, {K}), np.float32)}})\n"
    )

    def run(tail: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", head + tail], capture_output=True, text=True)

    yield run


def test_exit_with_sessions_alive(script: Any) -> None:
    done = script("import builtins; builtins.held = [s]; print('end')")
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


@pytest.mark.parametrize("held, left", [
    ("", "1 sessions and 0"),
    ("v = onnxruntime.OrtValue.ortvalue_from_numpy(np.ones(2, np.float32), 'gpu', 0, "
     "kompute.VENDOR_ID); del s\n", "0 sessions and 1 values"),
])
def test_what_is_in_use_is_not_unregistered(script: Any, held: str, left: str) -> None:
    """ONNX Runtime would free it without the library, and crash."""
    done = script(f"import onnxruntime\n{held}"
                  "try: kompute.unregister()\nexcept ValueError as error: print(error)\n"
                  "assert kompute.is_registered()")
    assert done.returncode == 0 and left in done.stdout, done.stderr


def test_unregistering(script: Any) -> None:
    done = script(
        "del s\nkompute.unregister(); assert not kompute.is_registered()\n"
        "kompute.register(); assert kompute.is_registered(); print('end')"
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
