"""The execution provider as its users meet it: registration, options and profiles."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

ort = pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import kompute_dml.onnxruntime as kompute  # noqa: E402
from kompute_dml.onnxruntime import capi, provider  # noqa: E402
from onnx_graphs import (  # noqa: E402
    FLOAT,
    INT64,
    RELEASE,
    model,
    needs_provider,
    node,
    options,
    placement,
)
from provider_tools import NAME, K, N, last_kernel, session  # noqa: E402

pytestmark = needs_provider


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


def test_the_providers_name_serves_as_well(dense: bytes) -> None:
    kompute.register()
    made = ort.InferenceSession(dense, providers=[(NAME, {"claim": "all"}), "CPUExecutionProvider"])
    assert made.get_providers()[0] == NAME
    assert made.get_provider_options()[NAME]["claim"] == "all"


@pytest.mark.parametrize("usual", [True, False], ids=["on", "off"])
def test_no_garbage_is_collected_while_a_session_is_made(
    usual: bool, dense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def fails(*_: Any) -> Any:
        seen.append(gc.isenabled())
        raise ValueError("afterwards")

    was = gc.isenabled()
    try:
        (gc.enable if usual else gc.disable)()
        session(dense)
        assert gc.isenabled() == usual
        monkeypatch.setattr(provider, "RegionKernel", fails)
        with pytest.raises(Exception, match="afterwards"):
            session(dense)
        assert (seen, gc.isenabled()) == ([False], usual)
    finally:
        (gc.enable if was else gc.disable)()


def test_claim_option(dense: bytes) -> None:
    nodes = [node("Trilu", "x", "t"), node("EyeLike", "x", "e")]
    built = model(nodes, [("x", FLOAT, [3, 3])], [("t", FLOAT, [3, 3]), ("e", FLOAT, [3, 3])])
    assert placement(session(built), NAME) == []
    assert placement(session(built, claim="all"), NAME) == ["EyeLike", "Trilu"]
    assert placement(session(built, claim="Trilu"), NAME) == ["Trilu"]
    assert placement(session(built, claim=["Trilu", "Abs"]), NAME) == ["Trilu"]
    # A chain may be claimed by the name of any of its nodes, and of the fused node.
    product = "MatMulIntegerToFloat"
    for claim in ("Cast", product, f"com.microsoft.{product}", f" {product} , Abs"):
        assert "MatMulInteger" in placement(session(dense, False, claim=claim), NAME)


def test_adapter_option(dense: bytes) -> None:
    x = {"x": np.ones((2, K), np.float32)}
    for adapter in dml.list_devices():
        for chosen in (adapter.index, str(adapter.index), adapter.name):
            made = session(dense, adapter=chosen)
            assert made.run(None, x)[0].shape == (2, N)
            device = last_kernel().region.device
            assert device.adapter.name == adapter.name


def test_feature_level_option(dense: bytes) -> None:
    """Trilu needs DIAGONAL_MATRIX1, of feature level 5.1; the products came with 6.2."""
    built = model([node("Trilu", "x", "t")], [("x", FLOAT, [3, 3])], [("t", FLOAT, [3, 3])])
    assert placement(session(built, claim="all", feature_level="4.1"), NAME) == []
    assert "MatMulInteger" not in placement(session(dense, feature_level="5.2"), NAME)
    # The first operators took at least four dimensions.
    added = model([node("Add", "x x", "y")], [("x", FLOAT, [3])], [("y", FLOAT, [3])])
    made = session(added, claim="all", feature_level="1.0")
    assert placement(made, NAME) == ["Add"]
    assert (made.run(None, {"x": np.float32([1, 2, 3])})[0] == [2, 4, 6]).all()
    # A view needs a copy, which 64-bit types have since 4.1.
    x = np.arange(6).reshape(2, 3)
    view = model([node("Transpose", "x", "y")], [("x", INT64, [2, 3])], [("y", INT64, [3, 2])])
    for level, names in (("4.0", []), ("4.1", ["Transpose"])):
        made = session(view, False, claim="Transpose", feature_level=level)
        assert placement(made, NAME) == names
        assert (made.run(None, {"x": x})[0] == x.T).all()
    built = model([node("Transpose", "x", "y")], [("x", FLOAT, [2, 3])], [("y", FLOAT, [3, 2])])
    made, x = session(built, False, claim="Transpose", feature_level="1.0"), x.astype(np.float32)
    assert placement(made, NAME) == ["Transpose"]
    assert (made.run(None, {"x": x})[0] == x.T).all()


def test_onnx_runtimes_own_profile(dense: bytes, tmp_path: Path) -> None:
    if RELEASE < [1, capi.EP_VERSION]:
        pytest.skip("this ONNX Runtime asks providers for no events")
    given = options()
    given.enable_profiling, given.profile_file_prefix = True, str(tmp_path / "profile")
    made, x = kompute.session(dense, session_options=given), {"x": np.ones((2, K), np.float32)}
    for _ in range(2):
        made.run(None, x)
    events = json.loads(Path(made.end_profiling()).read_text())
    runs = [e for e in events if e["name"] == "model_run"]
    regions = [e for e in events if e["cat"] == "Api" and "MatMulInteger" in e["name"]]
    kernels = [e for e in events if e["cat"] == "Kernel"]
    assert len(runs) == len(regions) == 2 and len(kernels) >= 2
    for run, region in zip(runs, regions):
        assert run["ts"] <= region["ts"] <= region["ts"] + region["dur"] <= run["ts"] + run["dur"]
    assert made.run(None, x)[0].shape == (2, N)


@pytest.mark.parametrize("way", ["session", "compiler"])
def test_models_compiled_ahead_stay_as_they_are(way: str, dense: bytes, tmp_path: Path) -> None:
    """A model cannot contain regions, so its nodes are written."""
    path, made = tmp_path / "dense.onnx", tmp_path / "made.onnx"
    path.write_bytes(dense)
    given = options()
    x = {"x": np.ones((2, K), np.float32)}
    with pytest.warns(UserWarning, match="ep.context_enable"):
        if way == "session":
            given.add_session_config_entry("ep.context_enable", "1")
            assert kompute.session(str(path), session_options=given).run(None, x)[0].shape == (2, N)
            return
        given.add_provider_for_devices(kompute.devices()[:1], {})
        ort.ModelCompiler(given, str(path)).compile_to_file(str(made))
    assert "MatMulInteger" in placement(session(str(made)), NAME)


def test_names_that_plug_ins_give() -> None:
    assert kompute.get_ep_names() == [kompute.get_ep_name()] == [NAME]


def test_profile(dense: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    made = session(dense, profile=path)
    for _ in range(3):
        made.run(None, {"x": np.ones((2, K), np.float32)})
    has_times = last_kernel().region.device.runtime.engine.timestamps_valid
    del made
    gc.collect()
    events = json.loads(path.read_text())["traceEvents"]
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    named = [e for e in events if e.get("cat") == "region"]
    assert len(named) == 3 and "MatMulIntegerToFloat" in named[0]["name"]
    products = [e for e in events if e.get("cat") == "dispatch" and "matrix" in e["name"]]
    assert len(products) == (3 if has_times else 0)
    assert all(e["args"]["gpu_us"] > 0 for e in named) == has_times


def test_the_provider_under_its_ecosystems_name(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[2] / "packages" / "onnxruntime-ep-kompute"
    monkeypatch.syspath_prepend(str(folder))
    import onnxruntime_ep_kompute as ep

    assert ep.get_ep_names() == [ep.get_ep_name()] == ["KomputeDmlExecutionProvider"]
    assert Path(ep.get_library_path()).is_file()
