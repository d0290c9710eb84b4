"""Regions in ONNX Runtime: their plans, their constants, and how they run."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

from kompute_dml.graph import builder
from kompute_dml.lowering.plan import PERSISTENT, Dispatch, Operand, Plan, Target
from kompute_dml.onnx.region import MAX_PLANS
from kompute_dml.onnxruntime import capi
from kompute_dml.onnxruntime.kernel import RegionKernel
from kompute_dml.operators import base
from kompute_dml.runtime import recorder as recorder_module
from kompute_dml.runtime import windows
from kompute_dml.runtime.kp_engine import CommandList, Engine
from kompute_dml.runtime.transfer import Transfer
from onnx_graphs import (
    FLOAT,
    INT8,
    INT64,
    UINT8,
    cpu,
    exact_cpu,
    model,
    needs_provider,
    node,
    quantized_dense,
    weights,
)
from provider_tools import K, N, last_kernel, session

pytestmark = needs_provider


@pytest.mark.parametrize("op, ahead", [("Relu", 1), ("Trilu", 0)])
def test_regions_of_known_sizes_are_planned_when_they_are_made(op: str, ahead: int) -> None:
    """But not if they also depend on values, such as the diagonal."""
    nodes = [node(op, "x k" if op == "Trilu" else "x", "y")]
    built = model(nodes, [("x", FLOAT, [3, 3]), ("k", INT64, [])], [("y", FLOAT, [3, 3])])
    made = session(built, False, claim="all")
    plans = last_kernel().region._plans
    assert len(plans) == ahead
    y = made.run(None, {"x": np.ones((3, 3), np.float32), "k": np.array(1)})[0]
    np.testing.assert_array_equal(y, np.triu(np.ones((3, 3)), 1) if op == "Trilu" else 1)
    assert len(plans) == 1


def test_a_constant_is_uploaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded, upload = [], builder.upload
    monkeypatch.setattr(
        builder, "upload",
        lambda device, x, *more: uploaded.append(x.tolist()) or upload(device, x, *more))
    built = model([node("Add", "x k", "a"), node("Mul", "a k", "y")], [("x", FLOAT, [2])],
                  [("y", FLOAT, [2])], {"k": np.float32([3, 4])})
    made = session(built, False, claim="all")
    np.testing.assert_array_equal(made.run(None, {"x": np.float32([1, 1])})[0], [12, 20])
    assert uploaded == [[3, 4]]


def test_small_constants_are_uploaded_together(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded, upload = [], builder.upload
    monkeypatch.setattr(
        builder, "upload",
        lambda device, x, *more: uploaded.append(x.shape) or upload(device, x, *more))
    constants = {
        "w": rng.standard_normal((130, 130)).astype(np.float32),
        "none": np.empty((0, 130), np.float32),
        "k": rng.standard_normal(130).astype(np.float32), "one": np.float32([2]),
        "mask": rng.integers(0, 2, (3, 130)).astype(bool)}
    built = model(
        [node("MatMul", "x w", "a"), node("Add", "a k", "b"), node("Mul", "b one", "c"),
         node("Where", "mask c x", "d"), node("Concat", "d none", "y", axis=0)],
        [("x", FLOAT, [3, 130])], [("y", FLOAT, [3, 130])],
        constants)
    made = session(built, False, claim="all")
    assert len(uploaded) == 2 and (130, 130) in uploaded
    x = {"x": rng.standard_normal((3, 130)).astype(np.float32)}
    np.testing.assert_allclose(
        made.run(None, x)[0], cpu(built).run(None, x)[0], rtol=1e-4, atol=1e-4)


def test_a_constant_of_two_regions_is_uploaded_and_prepared_once(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded, upload = [], builder.upload
    monkeypatch.setattr(
        builder, "upload",
        lambda device, x, *more: uploaded.append(x.shape) or upload(device, x, *more))
    w = rng.standard_normal((64, 64)).astype(np.float32)
    nodes = [node("MatMul", "x w", "a"), node("Det", "a", "d"), node("Add", "a d", "b"),
             node("MatMul", "b w", "y")]
    built = model(nodes, [("x", FLOAT, [64, 64])], [("y", FLOAT, [64, 64])], {"w": w})
    made = session(built, False, claim="all")
    kernels = [k for k in capi.alive.values() if isinstance(k, RegionKernel)][-2:]
    assert uploaded == [w.shape] and kernels[0].region._prepared is kernels[1].region._prepared
    x = {"x": (rng.standard_normal((64, 64)) / 64).astype(np.float32)}
    np.testing.assert_allclose(
        made.run(None, x)[0], cpu(built).run(None, x)[0], rtol=1e-4, atol=1e-4)


def test_a_plan_is_recorded_once(
    dense: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, theirs = session(dense), cpu(dense)
    for rows in (3, 5):
        for _ in range(2):
            x = {"x": rng.standard_normal((rows, K)).astype(np.float32)}
            np.testing.assert_allclose(
                made.run(None, x)[0], theirs.run(None, x)[0], rtol=1e-5, atol=1e-5
            )
    region = last_kernel().region
    recordings = [plan._recording for plan in region._plans.values()]
    recorder = region.device.runtime.recorder
    before = recorder.submits
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "record", None)
        if recorder.engine.records_barriers:  # all transfers use windows
            patch.setattr(Transfer, "upload", None)
            patch.setattr(Transfer, "download", None)
        for rows in (3, 5):
            made.run(None, {"x": np.ones((rows, K), np.float32)})
    if recorder.engine.records_barriers:
        assert recorder.submits - before == 2
    for plan in region._plans.values():
        if recorder.engine.host_reads_storage:  # no transfers, only the operators
            steps = [len(compiled.plan.execute) for compiled, _ in plan._steps]
            assert len(plan._recording) == sum(steps)
        plan.run([np.ones(plan._small[0][1].shape, np.float32)], anew=True)
    assert [plan._recording for plan in region._plans.values()] == recordings
    assert None not in recordings


def _plan_of(dense: bytes) -> tuple[Any, Any, Any]:
    """A plan that has run, its input, and its runtime."""
    kept = session(dense)
    region, x = last_kernel().region, [np.ones((3, K), np.float32)]
    kept.run(None, {"x": x[0]})
    return region.plan(x), x, region.device.runtime


def test_all_submits_of_a_plan_are_waited_for(
    dense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MAX_KEPT_BATCH", 2)
    plan, x, _ = _plan_of(dense)
    for _ in range(2):
        plan.run(x)
        assert len(plan._recording.batches) > 1
        assert all(batch.done for batch in plan._recording.batches)


def test_what_an_interrupted_run_reads_is_not_written_before_it_is_done(
    dense: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(batch: Any) -> None:
        raise KeyboardInterrupt

    plan, x, runtime = _plan_of(dense)
    with monkeypatch.context() as patch:
        patch.setattr(runtime.recorder, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            plan.run(x)
    with runtime.lock:
        plan._write(x)
    assert all(batch.done for batch in plan._recording.batches)


def test_what_was_dropped_comes_back_when_a_region_runs(dense: bytes) -> None:
    plan, x, runtime = _plan_of(dense)
    dropped = plan.device.empty([99])
    used = runtime.heap.used
    del dropped
    plan.run(x)
    assert runtime.heap.used < used


@exact_cpu
@pytest.mark.parametrize("reaches", [False, True])
def test_windows_and_what_is_too_large_for_them(
    reaches: bool, dense: bytes, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the host cannot access device memory, all plans share the windows."""
    make = Engine.__init__

    def discrete(self: Engine, adapter: Any) -> None:
        make(self, adapter)
        self.host_writes_storage &= reaches
        self.host_reads_storage &= reaches

    shown, show_host = [], CommandList.show_host
    monkeypatch.setattr(
        CommandList, "show_host", lambda self, x: shown.extend(map(id, x)) or show_host(self, x))
    monkeypatch.setattr(Engine, "__init__", discrete)
    monkeypatch.setattr("kompute_dml.device._shared", {})
    monkeypatch.setattr(windows, "SIZE", 4096)
    monkeypatch.setattr(builder, "WINDOW", 4096)
    first, second, theirs = session(dense), session(dense, claim="MatMulInteger"), cpu(dense)
    large = 1 + 4096 // (4 * N)
    for rows in (3, 5, large, 3):
        x = {"x": rng.standard_normal((rows, K)).astype(np.float32)}
        for made in (first, second, first):
            np.testing.assert_allclose(
                made.run(None, x)[0], theirs.run(None, x)[0], rtol=1e-5, atol=1e-5
            )
    region = last_kernel().region
    engine = region.device.runtime.engine
    *small, too_large = (
        ends.download for ends in sorted(
            (plan._ends for plan in region._plans.values()), key=lambda e: e.outgoing_bytes))
    assert all(map(bool, small)) == engine.records_barriers
    assert bool(too_large) == engine.host_reads_storage
    if engine.records_barriers and not engine.host_reads_storage:
        (shared,) = {window._host for window in small}
        assert id(shared.block.buffer) in shown


def test_plans_are_bounded(dense: bytes, rng: np.random.Generator) -> None:
    made = session(dense)
    region = last_kernel().region
    for rows in [*range(1, MAX_PLANS + 1), 1, MAX_PLANS + 1]:
        made.run(None, {"x": np.ones((rows, K), np.float32)})
    assert len(region._plans) == MAX_PLANS
    assert ((1, K),) in region._plans and ((2, K),) not in region._plans, "the oldest use goes"


def test_constants_are_prepared_once(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator repacks a constant when the session is created, and all plans share it."""
    constants: dict[str, np.ndarray] = {}
    nodes = quantized_dense(rng, "x", "y", 128, 64, constants)
    built = model(nodes, [("x", FLOAT, ["n", 128])], [("y", FLOAT, ["n", 64])], constants)
    name = "DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"
    preparing = dataclasses.replace(base._definitions[name], lower=_prepared_b)
    monkeypatch.setitem(base._definitions, name, preparing)
    monkeypatch.setitem(base._by_class, preparing.desc_class, preparing)
    ours, theirs = session(built, False, claim="MatMulInteger"), cpu(built, False)
    region = last_kernel().region
    assert (len(region._plans), len(region._prepared)) == (0, 1)
    assert len(region._prepared.pending) == 1, "the first run begins with it"
    held = [v.constant for n in region.nodes for v in n.inputs if v and v.constant is not None]
    assert held and all(values.flags.owndata for values in held), "memory of ONNX Runtime's"
    assert all(values.nbytes < 128 * 64 for values in held), "the device has B"
    for rows in (1, 67, 300):
        x = rng.standard_normal((rows, 128)).astype(np.float32)
        assert (ours.run(None, {"x": x})[0] == theirs.run(None, {"x": x})[0]).all()
    assert (len(region._plans), len(region._prepared)) == (3, 1) and not region._prepared.pending
    assert [len(p.dispatches) for p in region._prepared] == [1]


def test_views_are_strides_of_their_readers(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch makes each view a copy."""
    bounds = {"begin": np.array([1], np.int64), "end": np.array([4], np.int64)}
    built = model([node("Transpose", "x", "t"), node("Slice", "t begin end", "s"),
                   node("Relu", "s", "y")], [("x", FLOAT, [3, 5])], [("y", FLOAT, [3, 3])], bounds)
    x = rng.standard_normal((3, 5)).astype(np.float32)
    for left_out, dispatches in (("", 1), ("view_propagation", 3)):
        monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", left_out)
        made = session(built, False, claim="all")
        (y,) = made.run(None, {"x": x})
        np.testing.assert_array_equal(y, np.maximum(x.T[1:4], 0))
        (plan,) = last_kernel().region._plans.values()
        assert len(plan._steps) == dispatches


def test_constants_are_prepared_for_each_operator_that_would_do_so_differently(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With known sizes. The bias is as large as B, and is not repacked."""
    def differing(desc: Any, target: Target) -> Plan:
        plan = _prepared_b(desc, target)
        more = tuple(dataclasses.replace(d, groups=d.groups + desc.a_tensor.data_type.is_signed)
                     for d in plan.initialize)
        return dataclasses.replace(plan, initialize=more)

    name = "DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"
    preparing = dataclasses.replace(base._definitions[name], lower=differing)
    monkeypatch.setitem(base._definitions, name, preparing)
    monkeypatch.setitem(base._by_class, preparing.desc_class, preparing)
    kinds = {"a": np.int8, "b": np.uint8, "c": np.int8}
    constants = {"w": weights(rng, 16, 1088), "s": np.float32(1),
                 "bias": rng.integers(-9, 9, 1088).astype(np.float32)}
    products = [node("MatMulIntegerToFloat", f"{x} w s s - - bias", f"{x}.y", "com.microsoft")
                for x in kinds]
    built = model(
        [*products, node("Add", "a.y b.y", "two"), node("Add", "two c.y", "y")],
        [(x, INT8 if kind is np.int8 else UINT8, [67, 16]) for x, kind in kinds.items()],
        [("y", FLOAT, [67, 1088])], constants)
    made = session(built, False, claim="all")
    region = last_kernel().region
    (plan,) = region._plans.values()
    assert [len(p.dispatches) for p in region._prepared] == [1, 1]
    descs = [compiled.operator.desc for compiled, _ in plan._steps]
    owned = [d.bias_tensor.owned_by_dml for d in descs if hasattr(d, "bias_tensor")]
    assert owned == [False] * 3
    feed = {x: rng.integers(0, 127, (67, 16)).astype(kind) for x, kind in kinds.items()}
    sums = sum(x.astype(np.int64) for x in feed.values()) @ constants["w"]
    np.testing.assert_array_equal(made.run(None, feed)[0], sums + 3 * constants["bias"])


_PLAIN = base.definitions()["DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"].lower


def _prepared_b(desc: Any, target: Target) -> Plan:
    """The usual lowering. For many rows, it uses a copy of B that initialization makes."""
    b = desc.b_tensor
    plain = _PLAIN(dataclasses.replace(desc, b_tensor=b.replace(flags=0)), target)
    if not b.owned_by_dml or desc.a_tensor.sizes[-2] < 64:
        return plain
    words = b.total_tensor_size_in_bytes // 4
    source, result = Operand("b_tensor", "in_offset", 4, words), Operand(
        PERSISTENT, "out_offset", 4, words, writes=True
    )
    copy = Dispatch(
        target.library.get("activation_identity", "b32"), words // 256 + 1,
        (source, result),
        {"count": 1, "sizes": words, "in_strides": 1, "out_strides": 1},
        {"LOCAL_SIZE": 256, "WHOLE": 1},
    )
    execute = tuple(
        dataclasses.replace(d, operands=tuple(
            o._replace(slot=PERSISTENT) if o.slot == "b_tensor" else o
            for o in d.operands
        ))
        for d in plain.execute
    )
    return Plan(execute, (copy,), plain.temporary_bytes, 4 * words, frozenset({"b_tensor"}))
