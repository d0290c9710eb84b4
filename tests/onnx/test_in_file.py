"""Sessions of large files, whose weights ONNX Runtime maps from there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import onnx
import onnxruntime as ort

import kompute_dml.onnxruntime as kompute
from kompute_dml.onnxruntime import in_file
from made_models import BOOL, FLOAT, model, node
from onnx_graphs import needs_provider, options

N = 192
"""Rows and columns of a weight that counts as a large one."""


@pytest.fixture(autouse=True)
def any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of any size count as large ones."""
    monkeypatch.setattr(in_file, "_LEAST_FILE", 1)


def layers(rng: np.random.Generator, shift: int = 0) -> bytes:
    """x [n, N] -> y [n, N] by two large weights and a small one. ``shift`` bytes of a name move
    the weights in the file."""
    constants = {name: (rng.standard_normal((N, N)) / N).astype(np.float32) for name in "ab"}
    constants["k" + "k" * shift] = rng.standard_normal(N).astype(np.float32)
    return model([node("MatMul", "x a", "p"), node("Add", "p k" + "k" * shift, "s"),
                  node("MatMul", "s b", "y")],
                 [("x", FLOAT, ["n", N])], [("y", FLOAT, ["n", N])], constants)


def written(folder: Path, built: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(built)
    return path


@pytest.mark.parametrize("kind", [str, Path])
def test_the_model_is_the_same(
    kind: Callable[[Path], object], tmp_path: Path, rng: np.random.Generator
) -> None:
    """The library onnx reads the weights from the file's folder."""
    built = layers(rng)
    given = options()
    text = in_file.model_of(kind(written(tmp_path, built)), given)  # type: ignore[arg-type]
    assert isinstance(text, bytes) and len(text) < len(built) - 2 * 4 * N * N + 500
    assert given.get_session_config_entry(in_file._FOLDER) == str(tmp_path)
    seen = onnx.load_model_from_string(text)
    onnx.load_external_data_for_model(seen, str(tmp_path))
    for tensor in seen.graph.initializer:  # onnx notes where it has read them
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")
    assert seen == onnx.load_model_from_string(built)


def test_a_link_to_the_file(tmp_path: Path, rng: np.random.Generator) -> None:
    """ONNX Runtime refuses files that links lead out of the model's folder."""
    (tmp_path / "elsewhere").mkdir()
    built = layers(rng)
    (tmp_path / "model.onnx").symlink_to(written(tmp_path / "elsewhere", built))
    given = options()
    text = in_file.model_of(str(tmp_path / "model.onnx"), given)
    assert given.get_session_config_entry(in_file._FOLDER) == str(tmp_path / "elsewhere")
    made, whole = (ort.InferenceSession(each, given, providers=["CPUExecutionProvider"])
                   for each in (text, built))
    x = {"x": np.ones((1, N), np.float32)}
    np.testing.assert_array_equal(made.run(None, x)[0], whole.run(None, x)[0])


@needs_provider
@pytest.mark.parametrize("claim", ["all", "MatMul"])
@pytest.mark.parametrize("shift", range(4))
def test_results_are_the_same(
    claim: str, shift: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    """On the device and on the CPU, wherever in the file the weights begin."""
    built = layers(rng, shift)
    path = written(tmp_path, built)
    assert isinstance(in_file.model_of(path, options()), bytes)
    x = {"x": rng.standard_normal((3, N)).astype(np.float32)}
    results = []
    for each in (str(path), built):
        made = kompute.session(each, session_options=options(), claim=claim)
        results.append(made.run(None, x)[0])
    np.testing.assert_array_equal(*results)


def _by_name(rng: np.random.Generator, folder: Path) -> bytes:
    """A weight in a file beside the model, and another one in the model."""
    whole = onnx.load_model_from_string(layers(rng))
    a, *_ = whole.graph.initializer
    onnx.external_data_helper.set_external_data(a, "beside", length=len(a.raw_data))
    (folder / "beside").write_bytes(a.raw_data)
    a.ClearField("raw_data")
    return bytes(whole.SerializeToString())


def _as_numbers(rng: np.random.Generator, folder: Path) -> bytes:
    """Weights as a list of numbers."""
    whole = onnx.load_model_from_string(layers(rng))
    for tensor in whole.graph.initializer:
        tensor.float_data.extend(np.frombuffer(tensor.raw_data, np.float32).tolist())
        tensor.ClearField("raw_data")
    return bytes(whole.SerializeToString())


def _in_a_branch(rng: np.random.Generator, folder: Path) -> bytes:
    """Weights of nested graphs."""
    branches = {name: onnx.helper.make_graph(
        [node("MatMul", f"x {name}.k", f"{name}.y")], name, [],
        [onnx.helper.make_tensor_value_info(f"{name}.y", FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ones((N, N), np.float32), f"{name}.k")])
        for name in ("then_branch", "else_branch")}
    return model([node("If", "b", "y", **branches)], [("x", FLOAT, [1, N]), ("b", BOOL, [])],
                 [("y", FLOAT, None)])


OTHERS: dict[str, Callable[[np.random.Generator, Path], bytes]] = {
    "weights beside it": _by_name, "numbers": _as_numbers, "branches": _in_a_branch,
    "cut off": lambda rng, folder: layers(rng)[:-1000],
    "no model": lambda rng, folder: rng.bytes(100_000),
    "empty": lambda rng, folder: b"",
}


@pytest.mark.parametrize("kind", OTHERS)
def test_files_that_stay_as_they_are(
    kind: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    path = str(written(tmp_path, OTHERS[kind](rng, tmp_path)))
    assert in_file.model_of(path, options()) is path


def test_small_files_stay_as_they_are(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_file, "_LEAST_FILE", 1 << 20)
    path = written(tmp_path, layers(rng))
    assert in_file.model_of(path, options()) is path


def test_sessions_that_write_a_model(tmp_path: Path, rng: np.random.Generator) -> None:
    """A model that names a file of another folder would be of no use."""
    path = written(tmp_path, layers(rng))
    writes, compiles = options(), options()
    writes.optimized_model_filepath = str(tmp_path / "written.onnx")
    compiles.add_session_config_entry("ep.context_enable", "1")
    for given in (writes, compiles):
        assert in_file.model_of(path, given) is path


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = str(tmp_path / "none.onnx")
    assert in_file.model_of(path, options()) is path
