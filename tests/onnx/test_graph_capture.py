"""Graph capture: ONNX Runtime repeats runs with the same tensors without its executor."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

import kompute_dml as dml  # noqa: E402
import kompute_dml.onnxruntime as kompute  # noqa: E402
from kompute_dml.onnx.region import Region  # noqa: E402
from kompute_dml.onnxruntime import allocation, capture, provider  # noqa: E402
from kompute_dml.onnxruntime.kernel import RegionKernel  # noqa: E402
from onnx_graphs import FLOAT, INT64, RELEASE, model, needs_provider, node  # noqa: E402
from provider_tools import session  # noqa: E402
from threads import in_threads  # noqa: E402

pytestmark = [needs_provider, pytest.mark.skipif(
    RELEASE < [1, capture.SINCE], reason="this ONNX Runtime captures no graphs of providers")]
SIZES = (4, 8)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each region that ONNX Runtime's executor runs."""
    calls: list[int] = []
    compute = RegionKernel.compute
    monkeypatch.setattr(RegionKernel, "compute", lambda self, context: (
        calls.append(1), compute(self, context))[1])
    return calls


def _value(x: np.ndarray) -> Any:
    info = kompute.devices()[0].memory_info(ort.OrtDeviceMemoryType.DEFAULT)
    value = ort.OrtValue.ortvalue_from_shape_and_type(x.shape, x.dtype, memory_info=info)
    value.update_inplace(x)
    return value


def _negated_twice() -> bytes:
    return model([node("Neg", "x", "a"), node("Mul", "a two", "y")], [("x", FLOAT, SIZES)],
                 [("y", FLOAT, SIZES)], {"two": np.float32(2)})


class _Bound:
    """A binding of two values on the device."""

    def __init__(self, made: Any, number: int | None = None) -> None:
        self.session = made
        self.x, self.y = (_value(np.zeros(SIZES, np.float32)) for _ in range(2))
        self.binding = made.io_binding()
        self.binding.bind_ortvalue_input("x", self.x)
        self.binding.bind_ortvalue_output("y", self.y)
        self.options = ort.RunOptions()
        if number is not None:
            self.options.add_run_config_entry("gpu_graph_id", str(number))

    def check(self, seed: int) -> None:
        """A run with new numbers."""
        x = np.random.default_rng(seed).standard_normal(SIZES).astype(np.float32)
        self.x.update_inplace(x)
        self.session.run_with_iobinding(self.binding, self.options)
        np.testing.assert_array_equal(self.y.numpy(), -2 * x)


@pytest.fixture(params=["one region", "a region for each node"])
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param != "one region":
        monkeypatch.setattr(provider, "regions", lambda nodes, claimed: [[n] for n in nodes])
    yield session(_negated_twice(), False, claim="all", enable_graph_capture=True)


def test_later_runs_replay_the_first(made: Any, computed: list[int]) -> None:
    bound = _Bound(made)
    bound.check(0)
    regions = len(computed)
    memory = allocation.memory(int(kompute.devices()[0].ep_metadata["adapter"])).bytes
    pieces = len(memory._pieces)
    for seed in range(1, 5):
        bound.check(seed)
    assert len(computed) == regions <= 2
    assert len(memory._pieces) == pieces


def test_without_the_option_every_run_is_executed(computed: list[int]) -> None:
    bound = _Bound(session(_negated_twice(), False, claim="all"))
    for seed in range(3):
        bound.check(seed)
    assert len(computed) == 3


def test_graphs_have_numbers(made: Any, computed: list[int]) -> None:
    """``gpu_graph_id`` of a run's options; -1 is never captured."""
    several = [_Bound(made), _Bound(made, 7), _Bound(made, -1)]
    for bound in several:
        bound.check(0)
    once = len(computed) // 3
    for seed in range(1, 4):
        for bound in several:
            bound.check(seed)
    assert len(computed) == once * 6


def test_other_tensors_are_captured_anew(made: Any, computed: list[int]) -> None:
    for seed in range(3):
        bound = _Bound(made)
        for more in range(3):
            bound.check(10 * seed + more)
        del bound
        gc.collect()
    assert len(computed) in (3, 6)


def test_a_run_that_failed_is_not_replayed(
    made: Any, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, launch = _Bound(made), Region.launch

    def fail_at_the_last(self: Region, *inputs: Any) -> Any:
        if self.outputs[0].name == "y":
            raise ZeroDivisionError("by design")
        return launch(self, *inputs)

    with monkeypatch.context() as patch:
        patch.setattr(Region, "launch", fail_at_the_last)
        with pytest.raises(Exception, match="by design"):
            bound.check(0)
    for seed in range(1, 4):
        bound.check(seed)


def test_threads_have_graphs_of_their_own(made: Any) -> None:
    def work(seed: int) -> None:
        bound = _Bound(made)
        for more in range(5):
            bound.check(10 * seed + more)

    in_threads(3, work)


@pytest.mark.filterwarnings("ignore:KomputeDml")
def test_what_cannot_be_captured(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(SIZES, np.float32)
    with pytest.raises(Exception, match="enable_graph_capture: expected all inputs and outputs to"):
        made.run(None, {"x": x})
    _Bound(made).check(0)
    with pytest.raises(dml.ValidationError, match="needs memory to be 'device'"):
        session(_negated_twice(), enable_graph_capture=True, memory="host")
    with pytest.raises(Exception, match="cannot use the graph capture feature"):
        session(model([node("Det", "x", "y")], [("x", FLOAT, [2, 2])], [("y", FLOAT, [])]),
                claim="all", enable_graph_capture=True)
    monkeypatch.setattr(capture, "SINCE", RELEASE[1] + 1)
    with pytest.raises(Exception, match=r"enable_graph_capture needs ONNX Runtime 1\.\d+ or newer"):
        session(_negated_twice(), enable_graph_capture=True)


def test_other_sizes_than_those_captured() -> None:
    made = session(model([node("Neg", "x", "n"), node("Expand", "n sizes", "y")],
                         [("x", FLOAT, [1]), ("sizes", INT64, [1])], [("y", FLOAT, ["n"])]),
                   False, claim="all", enable_graph_capture=True)
    x, sizes = _value(np.ones(1, np.float32)), _value(np.array([3]))
    y = _value(np.zeros(3, np.float32))
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_input("sizes", sizes)
    binding.bind_ortvalue_output("y", y)
    for number in (5, 6):
        x.update_inplace(np.full(1, number, np.float32))
        made.run_with_iobinding(binding)
        assert y.numpy().tolist() == [-number] * 3
    sizes.update_inplace(np.array([4]))
    with pytest.raises(Exception, match=r"'y' to have the sizes of .* run, \[3\].* \[4\]"):
        made.run_with_iobinding(binding)
