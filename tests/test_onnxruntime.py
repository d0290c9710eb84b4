"""The execution provider inside ONNX Runtime, against ONNX Runtime's CPU provider."""

from __future__ import annotations

import dataclasses
import gc
import json
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

import kompute_dml.onnxruntime as kompute  # noqa: E402
from kompute_dml.onnx.graph import Graph, Node, Value  # noqa: E402
from kompute_dml.onnx.partition import regions  # noqa: E402
from kompute_dml.onnx.region import MAX_PLANS, Region  # noqa: E402
from kompute_dml.onnxruntime import capi, provider  # noqa: E402
from kompute_dml.operators import base  # noqa: E402
from kompute_dml.operators.plan import (  # noqa: E402
    PERSISTENT,
    Dispatch,
    Operand,
    Plan,
    Target,
)
from kompute_dml.toolchain import native  # noqa: E402
from onnx_graphs import (  # noqa: E402
    FLOAT,
    INT8,
    INT64,
    UINT8,
    cpu,
    model,
    node,
    options,
    placement,
    quantized_dense,
    weights,
)

pytestmark = pytest.mark.skipif(
    not native.library().is_file() and native.compiler() is None,
    reason="the provider library is not built, and there is no C compiler",
)
NAME = kompute.get_ep_name()
K, N = 40, 24


def session(model: bytes, optimize: bool = True, **given: Any) -> Any:
    return kompute.session(model, session_options=options(optimize), **given)


@pytest.fixture
def dense(rng: np.random.Generator) -> bytes:
    constants: dict[str, np.ndarray] = {}
    nodes = quantized_dense(rng, "x", "y", K, N, constants)
    return model(nodes, [("x", FLOAT, ["n", K])], [("y", FLOAT, ["n", N])], constants)


def test_registration() -> None:
    kompute.register()
    kompute.register()
    assert kompute.is_registered()
    found = kompute.devices()
    assert [d.ep_name for d in found] == [NAME] * len(dml.list_devices())
    names = {d.ep_metadata["adapter_name"] for d in found}
    assert names == {a.name for a in dml.list_devices()}
    assert Path(kompute.get_library_path()).is_file()


def test_as_onnx_runtime_documents_it(dense: bytes, rng: np.random.Generator) -> None:
    kompute.register()
    given = ort.SessionOptions()
    given.add_provider_for_devices(kompute.devices()[:1], {})
    made = ort.InferenceSession(dense, given)
    assert made.get_providers()[0] == NAME
    x = rng.standard_normal((3, K)).astype(np.float32)
    assert made.run(None, {"x": x})[0].shape == (3, N)


def test_quantized_layer_is_claimed_and_exact(dense: bytes, rng: np.random.Generator) -> None:
    ours, theirs = session(dense, False, claim="MatMulInteger"), cpu(dense, False)
    assert placement(ours, NAME) == ["Add", "Cast", "MatMulInteger", "Mul"]
    for rows in (1, 5, 0, 67, 5):
        x = rng.standard_normal((rows, K)).astype(np.float32)
        got, expected = ours.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0]
        assert got.shape == expected.shape and (got == expected).all()


@pytest.mark.parametrize("chain", ["scale", "column", "row column", "scale column bias", "column2"])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_fused_chains(chain: str, kind: Any, rng: np.random.Generator) -> None:
    """Each chain in front of what must not be part of it."""
    constants = {
        "b": weights(rng, K, N), "scale": np.array([0.25], np.float32),
        "column": rng.random(N).astype(np.float32), "bias": rng.random(N).astype(np.float32),
        "row": rng.random((3, 1)).astype(np.float32),
        "column2": rng.random((1, N)).astype(np.float32), "last": np.float32(3).reshape(()),
    }
    nodes = [node("MatMulInteger", "a b", "sums"), node("Cast", "sums", "f0", to=FLOAT)]
    for i, factor in enumerate(chain.split()):
        nodes.append(node("Add" if factor == "bias" else "Mul", f"f{i} {factor}", f"f{i + 1}"))
    nodes.append(node("Sub", f"{nodes[-1].output[0]} last", "y"))
    onnx_kind = UINT8 if kind is np.uint8 else INT8
    built = model(nodes, [("a", onnx_kind, [3, K])], [("y", FLOAT, [3, N])], constants)
    ours = session(built, False, claim="MatMulInteger")
    assert placement(ours, NAME) == sorted(n.op_type for n in nodes[:-1])
    a = rng.integers(0, 127, (3, K)).astype(kind)
    assert (ours.run(None, {"a": a})[0] == cpu(built, False).run(None, {"a": a})[0]).all()


def test_what_breaks_a_chain_keeps_it_on_the_cpu(rng: np.random.Generator) -> None:
    """A sum that someone else reads, and a factor that widens the product."""
    constants = {"b": weights(rng, K, 1), "wide": np.ones((1, N), np.float32)}
    nodes = [node("MatMulInteger", "a b", "sums"), node("Cast", "sums", "f", to=FLOAT),
             node("Mul", "f wide", "y")]
    inputs = [("a", UINT8, [3, K])]
    built = model(nodes, inputs, [("y", FLOAT, [3, N])], constants)
    a = rng.integers(0, 255, (3, K), dtype=np.uint8)
    assert (session(built).run(None, {"a": a})[0] == cpu(built).run(None, {"a": a})[0]).all()
    built = model(nodes, inputs, [("y", FLOAT, [3, N]), ("sums", 6, [3, 1])], constants)
    for got, wanted in zip(session(built).run(None, {"a": a}), cpu(built).run(None, {"a": a})):
        assert (got == wanted).all()


@pytest.mark.parametrize("shape", [(5,), (2, 3), (1,), (0, 2), (2, 0, 3)], ids=str)
def test_matmul_integer_to_float(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    """com.microsoft's node, as models carry it that were saved after optimization."""
    constants = {"b": weights(rng, K, N), "bs": rng.random(N).astype(np.float32),
                 "bz": np.zeros(N, np.int8), "bias": rng.random(N).astype(np.float32)}
    nodes = [node("MatMulIntegerToFloat", "a b as bs az bz bias", "y", "com.microsoft")]
    leading = [f"d{i}" for i in range(len(shape))]
    built = model(nodes, [("a", UINT8, [*leading, K]), ("as", FLOAT, []), ("az", UINT8, [])],
                  [("y", FLOAT, [*leading, N])], constants)
    ours = session(built)
    assert placement(ours, NAME) == ["MatMulIntegerToFloat"]
    feed = {"a": rng.integers(0, 255, (*shape, K), dtype=np.uint8),
            "as": np.array(0.02, np.float32), "az": np.array(7, np.uint8)}
    got, expected = ours.run(None, feed)[0], cpu(built).run(None, feed)[0]
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


def test_dynamic_quantize_matmul(rng: np.random.Generator) -> None:
    constants = {"b": weights(rng, K, N), "bs": rng.random(N).astype(np.float32),
                 "bias": rng.random(N).astype(np.float32)}
    nodes = [node("DynamicQuantizeMatMul", "x b bs - bias", "y", "com.microsoft")]
    built = model(nodes, [("x", FLOAT, ["n", K])], [("y", FLOAT, ["n", N])], constants)
    ours = session(built)
    assert placement(ours, NAME) == ["DynamicQuantizeMatMul"]
    for x in (rng.standard_normal((5, K)), np.zeros((2, K)), np.full((1, K), 3), np.zeros((0, K))):
        feed = {"x": x.astype(np.float32)}
        got, expected = ours.run(None, feed)[0], cpu(built).run(None, feed)[0]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (0, 4), (70, 3)], ids=str)
def test_identity_eyelike_trilu_dropout(shape: tuple[int, int], rng: np.random.Generator) -> None:
    nodes = [
        node("Identity", "x", "same"), node("Trilu", "same k", "lower", upper=0),
        node("Trilu", "same", "upper"), node("EyeLike", "x", "eye", k=1, dtype=INT64),
        node("Dropout", "x ratio training", "kept"),
    ]
    outputs = [("lower", FLOAT, ["a", "b"]), ("upper", FLOAT, ["a", "b"]),
               ("eye", INT64, ["a", "b"]), ("same", FLOAT, ["a", "b"]), ("kept", FLOAT, ["a", "b"])]
    built = model(nodes, [("x", FLOAT, ["a", "b"]), ("k", INT64, [])], outputs,
                  {"ratio": np.float32(0.5).reshape(()), "training": np.array(False)})
    ours = session(built, False, claim="all")
    assert placement(ours, NAME) == ["Dropout", "EyeLike", "Identity", "Trilu", "Trilu"]
    for k in (0, -1, 2, 2**40, -(2**40)):
        feed = {"x": rng.standard_normal(shape).astype(np.float32), "k": np.array(k)}
        for got, wanted in zip(ours.run(None, feed), cpu(built).run(None, feed)):
            assert got.dtype == wanted.dtype and got.shape == wanted.shape
            assert (got == wanted).all()


def test_scalars(rng: np.random.Generator) -> None:
    built = model([node("Identity", "x", "i"), node("Identity", "i", "y")],
                  [("x", INT64, [])], [("y", INT64, [])])
    y = session(built, False, claim="all").run(None, {"x": np.array(2**40 + 1)})[0]
    assert y.shape == () and y == 2**40 + 1


def test_claim_option() -> None:
    nodes = [node("Trilu", "x", "t"), node("EyeLike", "x", "e")]
    built = model(nodes, [("x", FLOAT, [3, 3])], [("t", FLOAT, [3, 3]), ("e", FLOAT, [3, 3])])
    assert placement(session(built), NAME) == []
    assert placement(session(built, claim="all"), NAME) == ["EyeLike", "Trilu"]
    assert placement(session(built, claim="Trilu"), NAME) == ["Trilu"]
    assert placement(session(built, claim=["Trilu", "Abs"]), NAME) == ["Trilu"]


def test_feature_level_option(dense: bytes) -> None:
    """Trilu needs DIAGONAL_MATRIX1, of feature level 5.1; the products came with 6.2."""
    built = model([node("Trilu", "x", "t")], [("x", FLOAT, [3, 3])], [("t", FLOAT, [3, 3])])
    assert placement(session(built, claim="all", feature_level="4.1"), NAME) == []
    assert "MatMulInteger" not in placement(session(dense, feature_level="5.2"), NAME)


def test_values_stay_on_the_device_inside_a_region(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node("Trilu", "x", "a"), node("Trilu", "a", "b", upper=0), node("Trilu", "b", "c")]
    built = model(nodes, [("x", FLOAT, [6, 6])], [("c", FLOAT, [6, 6])])
    calls = []
    run = Region.run
    monkeypatch.setattr(Region, "run", lambda self, x: calls.append(self.label) or run(self, x))
    x = rng.standard_normal((6, 6)).astype(np.float32)
    got = session(built, False, claim="all").run(None, {"x": x})[0]
    assert calls == ["Trilu Trilu Trilu"]
    assert (got == np.diag(np.diag(x))).all()


def test_plans_are_bounded(dense: bytes, rng: np.random.Generator) -> None:
    made = session(dense)
    kernels = [k for k in provider._alive.values() if isinstance(k, provider.Kernel)]
    region = kernels[-1].region
    for rows in [*range(1, MAX_PLANS + 5), 1]:
        made.run(None, {"x": np.ones((rows, K), np.float32)})
    assert len(region._plans) == MAX_PLANS


def test_constants_are_prepared_once(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator that prepares OWNED_BY_DML tensors does so for all sizes together."""
    constants: dict[str, np.ndarray] = {}
    nodes = quantized_dense(rng, "x", "y", 128, 64, constants)
    built = model(nodes, [("x", FLOAT, ["n", 128])], [("y", FLOAT, ["n", 64])], constants)
    name = "DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"
    preparing = dataclasses.replace(base._definitions[name], lower=_prepared_b)
    monkeypatch.setitem(base._definitions, name, preparing)
    monkeypatch.setitem(base._by_class, preparing.desc_class, preparing)
    ours, theirs = session(built, False, claim="MatMulInteger"), cpu(built, False)
    for rows in (1, 5, 67):
        x = rng.standard_normal((rows, 128)).astype(np.float32)
        assert (ours.run(None, {"x": x})[0] == theirs.run(None, {"x": x})[0]).all()
    region = next(k for k in provider._alive.values() if isinstance(k, provider.Kernel)).region
    assert (len(region._plans), len(region._prepared)) == (3, 1)


_PLAIN = base.definitions()["DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"].lower


def _prepared_b(desc: Any, target: Target) -> Plan:
    """The usual lowering, from a copy of B that initialization makes."""
    b = desc.b_tensor
    plain = _PLAIN(desc, target)
    if not b.owned_by_dml:
        return plain
    words = b.total_tensor_size_in_bytes // 4
    source, result = Operand("b_tensor", "in_offset", 4, words), Operand(
        PERSISTENT, "out_offset", 4, words, writes=True
    )
    copy = Dispatch(
        target.library.get("activation_identity", "b32", "lines"), words // 256 + 1,
        (source, result),
        {"count": 1, "rank": 1, "sizes": words, "in_strides": 1, "out_strides": 1},
        {"LOCAL_SIZE": 256, "WHOLE": 1},
    )
    execute = tuple(
        dataclasses.replace(d, operands=tuple(
            dataclasses.replace(o, slot=PERSISTENT) if o.slot == "b_tensor" else o
            for o in d.operands
        ))
        for d in plain.execute
    )
    return Plan(execute, (copy,), plain.temporary_bytes, 4 * words)


def test_regions_do_not_enclose_what_is_not_theirs() -> None:
    """a -> b -> c with b unclaimed, and a -> c: a and c cannot be one."""
    v = {name: Value(name) for name in "xabcde"}

    def make(op: str, inputs: str, output: str) -> Node:
        return Node(op, "", 1, tuple(v[i] for i in inputs), (v[output],))

    nodes = [make("A", "x", "a"), make("B", "a", "b"), make("A", "ab", "c"), make("A", "c", "d"),
             make("A", "a", "e")]
    found = regions(nodes, lambda n: n.op == "A")
    names = [[n.outputs[0].name for n in region if n.outputs[0]] for region in found]
    assert names == [["a", "e"], ["c", "d"]]
    assert Graph(nodes, [v["x"]], [v["e"]]).nodes[0].label == "A"


# What goes wrong


def test_a_shape_that_breaks_the_rules_at_run_time(rng: np.random.Generator) -> None:
    constants = {"b": weights(rng, K, N), "s": np.ones(N, np.float32)}
    nodes = [node("MatMulInteger", "a b", "sums"), node("Cast", "sums", "f", to=FLOAT),
             node("Mul", "f s", "y")]
    built = model(nodes, [("a", UINT8, ["n", "k"])], [("y", FLOAT, ["n", N])], constants)
    made = session(built)
    assert "MatMulInteger" in placement(made, NAME)
    with pytest.raises(Exception, match=r"kompute_dml: .*MatMulIntegerToFloat.*matching depth"):
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


def test_an_exception_in_a_callback_becomes_a_status(
    dense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session(dense)

    def fail(self: Region, inputs: Any) -> Any:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr(Region, "run", fail)
    with pytest.raises(Exception, match=r"kompute_dml: ZeroDivisionError\('by design'\)"):
        made.run(None, {"x": np.ones((1, K), np.float32)})
    monkeypatch.undo()
    assert made.run(None, {"x": np.ones((1, K), np.float32)})[0].shape == (1, N)


def test_a_lost_device(dense: bytes) -> None:
    x = {"x": np.ones((1, K), np.float32)}
    made, other = session(dense), cpu(dense)
    recorder = next(iter(
        k for k in provider._alive.values() if isinstance(k, provider.Provider)
    )).device._runtime.recorder
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


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.stress)])
def test_sessions_leave_nothing_behind(count: int, dense: bytes) -> None:
    x = {"x": np.ones((2, K), np.float32)}
    session(dense).run(None, x)
    gc.collect()
    alive = dict(provider._alive)
    device = provider.shared_device(*next(iter(provider._devices)))
    used = device.memory_used
    for _ in range(count):
        session(dense).run(None, x)
    gc.collect()
    assert provider._alive.keys() == alive.keys()
    assert device.memory_used == used


def test_several_threads(dense: bytes, rng: np.random.Generator) -> None:
    shared, theirs = session(dense), cpu(dense)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        own, numbers = session(dense), np.random.default_rng(seed)
        for rows in (1, 3, 8, 3):
            x = {"x": numbers.standard_normal((rows, K)).astype(np.float32)}
            expected = theirs.run(None, x)[0]
            for made in (shared, own):
                got = made.run(None, x)[0]
                if not np.allclose(got, expected, rtol=1e-5, atol=1e-5):
                    wrong.append((seed, rows))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


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


def test_unregistering(script: Any) -> None:
    done = script(
        "del s\nkompute.unregister(); assert not kompute.is_registered()\n"
        "kompute.register(); assert kompute.is_registered(); print('end')"
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_profile(dense: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    made = session(dense, profile=path)
    for _ in range(3):
        made.run(None, {"x": np.ones((2, K), np.float32)})
    del made
    gc.collect()
    events = json.loads(path.read_text())["traceEvents"]
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    named = [e for e in events if e.get("cat") == "region"]
    assert len(named) == 3 and "MatMulIntegerToFloat" in named[0]["name"]
