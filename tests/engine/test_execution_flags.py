"""What ExecutionFlags do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.lowering.builder import target_of
from kompute_dml.lowering.plan import PERSISTENT, TEMPORARY
from kompute_dml.operators import halves
from kompute_dml.runtime.adapters import CooperativeMatrix
from kompute_dml.runtime.traits import DeviceClass
from test_matrix_multiply_kernels import _library_of_everything

HALF = dml.ExecutionFlags.ALLOW_HALF_PRECISION_COMPUTATION
PLAIN = dml.ExecutionFlags.DISABLE_META_COMMANDS
VOLATILE = dml.ExecutionFlags.DESCRIPTORS_VOLATILE
F32, OWNED = dml.DataType.FLOAT32, dml.TensorFlags.OWNED_BY_DML


def _gemm(rows: int = 256, k: int = 256, flags: dml.TensorFlags = dml.TensorFlags.NONE) -> Any:
    return dml.GemmOperatorDesc(
        a_tensor=dml.TensorDesc(F32, [2, rows, k]),
        b_tensor=dml.TensorDesc(F32, [2, k, 256], [0, 256, 1], flags=flags),
        c_tensor=dml.TensorDesc(F32, [2, rows, 256]),
        output_tensor=dml.TensorDesc(F32, [2, rows, 256]),
        trans_a=0, trans_b=0, alpha=1.0, beta=1.0)


def _convolution(channels: int = 32, flags: dml.TensorFlags = dml.TensorFlags.NONE,
                 groups: int = 1) -> Any:
    return dml.ConvolutionOperatorDesc(
        input_tensor=dml.TensorDesc(F32, [2, channels, 24, 24]),
        filter_tensor=dml.TensorDesc(F32, [64, channels // groups, 3, 3], flags=flags),
        bias_tensor=dml.TensorDesc(F32, [1, 64, 1, 1]),
        output_tensor=dml.TensorDesc(F32, [2, 64, 24, 24]),
        mode=dml.ConvolutionMode.CROSS_CORRELATION, direction=dml.ConvolutionDirection.FORWARD,
        strides=(1, 1), dilations=(1, 1), start_padding=(1, 1), end_padding=(1, 1),
        output_padding=(0, 0), group_count=groups)


@pytest.fixture
def with_units(own: dml.Device, monkeypatch: pytest.MonkeyPatch) -> dml.Device:
    """What is compiled for it is for an H200's matrix units."""
    every = _library_of_everything()
    if every.find("gemm_coopmat", "t64") is None:
        pytest.skip("the cooperative-matrix shader needs a newer glslang")
    target = target_of(every, replace(
        own.adapter, cores=132, subgroup_size=32, max_shared_memory=48 << 10,
        cooperative_matrices=(
            CooperativeMatrix(16, 16, 16, "f16", "f16", "f32", "f32", "subgroup"),)))
    monkeypatch.setattr(own, "target", replace(
        target, traits=replace(target.traits, device_class=DeviceClass.UNKNOWN,
                               slow_barriers=False)))
    return own


@pytest.mark.parametrize("desc, flags, units", [
    (_gemm(), HALF, True), (_gemm(), HALF | PLAIN, False),
    (_gemm(), dml.ExecutionFlags.NONE, False),
    (_gemm(rows=8, k=4096), HALF, False), (_gemm(rows=16, k=16), HALF, False),
    (_convolution(), HALF, True), (_convolution(), HALF | PLAIN, False),
    (_convolution(), dml.ExecutionFlags.NONE, False), (_convolution(groups=32), HALF, False),
])
def test_half_precision_is_for_large_products_on_matrix_units(
    with_units: dml.Device, desc: Any, flags: dml.ExecutionFlags, units: bool
) -> None:
    compiled = with_units.compile_operator(with_units.create_operator(desc), flags)
    assert any("coopmat" in name for name in compiled.variants) == units
    casts = [name for name in compiled.variants if name.startswith("elementwise_cast")]
    assert len(casts) == 2 * units


@pytest.mark.parametrize("desc, owned", [
    (_gemm(), ""), (_gemm(flags=OWNED), "b_tensor"),
    (_convolution(), ""), (_convolution(flags=OWNED), "filter_tensor"),
], ids=["gemm", "gemm, owned", "convolution", "convolution, owned"])
def test_half_precision_plans_stay_in_their_memory(
    with_units: dml.Device, desc: Any, owned: str
) -> None:
    with tuning.trial({}) as trial:
        compiled = with_units.compile_operator(with_units.create_operator(desc), HALF)
    # No other kernel reads two types, whatever is measured.
    assert all("coopmat" in name for work, names in trial.asked.items() if "gemm" in work
               for name in names)
    plan = compiled.plan
    assert plan.repacked == ({owned} if owned else set())
    assert len(plan.initialize) == bool(owned)  # weights are rounded once
    limits = {f.snake: t.total_tensor_size_in_bytes
              for f in compiled.tensors if (t := compiled.operator.tensor(f)) is not None}
    limits |= {TEMPORARY: plan.temporary_bytes, PERSISTENT: plan.persistent_bytes}
    for d in (*plan.initialize, *plan.execute):
        d.variant.pack_spec(d.spec)
        d.variant.pack_push(d.push)
        for o in d.operands:
            assert o.slot not in limits or (o.offset + o.length) * o.itemsize <= limits[o.slot]
    product = next(d for d in plan.execute if "coopmat" in d.variant.name)
    assert [o.itemsize for o in product.operands[:2]] == [2, 2]


def test_without_matrix_units_half_precision_changes_nothing(device: dml.Device) -> None:
    for desc in (_gemm(), _convolution()):
        operator = device.create_operator(desc)
        plans = [device.compile_operator(operator, flags).variants
                 for flags in (dml.ExecutionFlags.NONE, HALF)]
        if not device.adapter.cooperative_matrices:
            assert plans[0] == plans[1]


@pytest.mark.parametrize("owned", [False, True])
def test_a_convolution_of_rounded_factors(
    own: dml.Device, owned: bool, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Sums are FLOAT32; input and filter are rounded to FLOAT16. Any device computes that."""
    monkeypatch.setattr(halves, "pay_off", lambda p, factors, work: p.target.halves)
    desc = _convolution(flags=OWNED if owned else dml.TensorFlags.NONE)
    compiled = own.compile_operator(own.create_operator(desc), HALF)
    x, w, b = (rng.standard_normal(t.sizes).astype(np.float32)
               for t in (desc.input_tensor, desc.filter_tensor, desc.bias_tensor))
    buffers = [own.create_buffer(v.nbytes) for v in (x, w, b)]
    for buffer, v in zip(buffers, (x, w, b)):
        buffer.write(v)
    bound = [dml.BufferBinding(buffer) for buffer in buffers]
    y = own.create_buffer(desc.output_tensor.total_tensor_size_in_bytes)
    needs = compiled.binding_properties
    scratch, kept = (dml.BufferBinding(own.create_buffer(max(n, 4)))
                     for n in (needs.temporary_resource_size, needs.persistent_resource_size))
    if owned:
        initializer = own.create_operator_initializer([compiled])
        table = own.create_binding_table(initializer)
        table.bind_inputs([[None, bound[1], None]])
        table.bind_outputs([kept])
        table.bind_temporary_resource(scratch)
        own.record_dispatch(initializer, table)
    table = own.create_binding_table(compiled)
    table.bind_inputs([bound[0], None if owned else bound[1], bound[2]])
    table.bind_outputs([dml.BufferBinding(y)])
    table.bind_temporary_resource(scratch)
    if owned:
        table.bind_persistent_resource(kept)
    own.record_dispatch(compiled, table)
    got = y.read().view(np.float32).reshape(desc.output_tensor.sizes)

    def rounded(v: np.ndarray) -> np.ndarray:
        return v.astype(np.float16).astype(np.float64)

    padded = np.pad(rounded(x), [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    exact = np.einsum("nchwij,ocij->nohw", windows, rounded(w), optimize=True) + b
    np.testing.assert_allclose(got, exact, rtol=0, atol=1e-4)  # of what is not rounded: 3e-2


def _copy(device: dml.Device, flags: dml.ExecutionFlags) -> dml.CompiledOperator:
    x = dml.TensorDesc(F32, [4])
    return device.compile_operator(device.create_operator(
        dml.ActivationIdentityOperatorDesc(input_tensor=x, output_tensor=x)), flags)


def _graph(device: dml.Device, flags: dml.ExecutionFlags) -> dml.CompiledGraph:
    x = dml.TensorDesc(F32, [4])
    node = device.create_operator(dml.ElementWiseAbsOperatorDesc(input_tensor=x, output_tensor=x))
    return device.compile_graph(dml.GraphDesc(
        input_count=1, output_count=1, nodes=[dml.OperatorGraphNodeDesc(node)],
        input_edges=[dml.InputGraphEdgeDesc(0, 0, 0)],
        output_edges=[dml.OutputGraphEdgeDesc(0, 0, 0)]), flags)


@pytest.mark.parametrize("make", [_copy, _graph])
@pytest.mark.parametrize("flags", [VOLATILE, dml.ExecutionFlags.NONE], ids=["volatile", "fixed"])
def test_bindings_between_recording_and_replaying(
    own: dml.Device, make: Any, flags: dml.ExecutionFlags
) -> None:
    compiled = make(own, flags)
    x, first, second = (own.create_buffer(16) for _ in range(3))
    for buffer in (first, second):
        buffer.write(np.zeros(4, np.float32))
    table = own.create_binding_table(compiled)
    table.bind_inputs([dml.BufferBinding(x)])
    table.bind_outputs([dml.BufferBinding(first)])
    x.write(np.full(4, 1, np.float32))
    with own.record() as recording:
        own.record_dispatch(compiled, table)
    table.bind_outputs([dml.BufferBinding(second)])
    for number in (2, 3):
        x.write(np.full(4, number, np.float32))
        recording.replay()
        got = [b.read().view(np.float32)[0] for b in (first, second)]
        assert got == ([1, number] if flags else [number, 0])
    batches = recording.batches
    recording.replay()  # nothing has changed since: nothing is recorded
    assert recording.batches is batches


def test_a_recording_that_cannot_be_recorded_anew(own: dml.Device) -> None:
    compiled = _copy(own, VOLATILE)
    x, y = own.create_buffer(16), own.create_buffer(16)
    table = own.create_binding_table(compiled)
    table.bind_inputs([dml.BufferBinding(x)])
    table.bind_outputs([dml.BufferBinding(y)])
    ones = own.tensor(np.ones(4, np.float32))
    with own.record() as recording:
        own.record_dispatch(compiled, table)
        dml.abs(ones)
    recording.replay()  # nothing has changed
    table.bind_outputs([dml.BufferBinding(x)])
    with pytest.raises(dml.ValidationError, match="hold nothing but record_dispatch"):
        recording.replay()
    table.bind_outputs([])
    with pytest.raises(dml.ValidationError, match="number of output bindings to be 1"):
        recording.replay()
