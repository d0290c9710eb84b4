"""DirectML's life cycle: create, compile, initialize, bind, dispatch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

OWNED = dml.TensorFlags.OWNED_BY_DML
F32, I8 = dml.DataType.FLOAT32, dml.DataType.INT8


def _compile(device: dml.Device, desc: Any) -> dml.CompiledOperator:
    return device.compile_operator(device.create_operator(desc))


def _identity(device: dml.Device, flags: dml.TensorFlags = dml.TensorFlags.NONE, n: int = 8
              ) -> dml.CompiledOperator:
    return _compile(device, dml.ActivationIdentityOperatorDesc(
        input_tensor=dml.TensorDesc(F32, [n], flags=flags), output_tensor=dml.TensorDesc(F32, [n])
    ))


def _buffer(device: dml.Device, values: Any) -> dml.Buffer:
    data = np.ascontiguousarray(values)
    buffer = device.create_buffer(-(-data.nbytes // 4) * 4)
    buffer.write(data)
    return buffer


def _product(device: dml.Device, a: dml.TensorFlags, b: dml.TensorFlags, scale: dml.TensorFlags
             ) -> dml.CompiledOperator:
    """{3, 5} by {5, 7}."""
    return _compile(device, dml.MatrixMultiplyIntegerToFloatOperatorDesc(
        a_tensor=dml.TensorDesc(I8, [3, 5], flags=a),
        a_scale_tensor=dml.TensorDesc(F32, [1, 1]),
        b_tensor=dml.TensorDesc(I8, [5, 7], flags=b),
        b_scale_tensor=dml.TensorDesc(F32, [1, 7], flags=scale),
        output_tensor=dml.TensorDesc(F32, [3, 7]),
    ))


def _bind(buffer: dml.Buffer) -> dml.BufferBinding:
    return dml.BufferBinding(buffer)


# Without initialization


def test_one_operator_runs_on_any_buffers(device: dml.Device) -> None:
    compiled = _identity(device)
    assert compiled.binding_properties == (2, 0, 0)
    table = device.create_binding_table(compiled)
    for values in (np.arange(8, dtype=np.float32), np.full(8, np.pi, np.float32)):
        source, result = _buffer(device, values), device.create_buffer(32)
        table.bind_inputs([_bind(source)])
        table.bind_outputs([_bind(result)])
        device.record_dispatch(compiled, table)
        assert (result.read().view(np.float32) == values).all()


def test_a_table_may_be_bound_anew_before_what_it_recorded_has_run(device: dml.Device) -> None:
    compiled = _identity(device)
    table = device.create_binding_table(compiled)
    results = [device.create_buffer(32) for _ in range(3)]
    sources = [_buffer(device, np.full(8, i, np.float32)) for i in range(3)]
    for source, result in zip(sources, results):
        table.bind_inputs([_bind(source)])
        table.bind_outputs([_bind(result)])
        device.record_dispatch(compiled, table)
    assert [r.read().view(np.float32)[0] for r in results] == [0, 1, 2]


def test_dispatches_see_each_others_results_in_order(device: dml.Device) -> None:
    compiled = _identity(device)
    buffer = device.create_buffer(64 * 11)
    buffer.write(np.arange(8, dtype=np.float32))
    for i in range(10):
        table = device.create_binding_table(compiled)
        table.bind_inputs([dml.BufferBinding(buffer, 64 * i, 32)])
        table.bind_outputs([dml.BufferBinding(buffer, 64 * (i + 1), 32)])
        device.record_dispatch(compiled, table)
    assert (buffer.read(640, 32).view(np.float32) == np.arange(8)).all()


def test_later_writes_do_not_reach_what_is_recorded(device: dml.Device) -> None:
    compiled = _identity(device)
    source, result = _buffer(device, np.ones(8, np.float32)), device.create_buffer(32)
    table = device.create_binding_table(compiled)
    table.bind_inputs([_bind(source)])
    table.bind_outputs([_bind(result)])
    device.record_dispatch(compiled, table)
    source.write(np.zeros(8, np.float32))
    assert (result.read().view(np.float32) == 1).all()


def test_inputs_may_share_memory(device: dml.Device) -> None:
    compiled = _product(device, *[dml.TensorFlags.NONE] * 3)
    numbers = _buffer(device, np.ones(48, np.int8))
    scales = _buffer(device, np.ones(8, np.float32))
    result = device.create_buffer(84)
    table = device.create_binding_table(compiled)
    table.bind_inputs([_bind(numbers), _bind(scales), None, _bind(numbers), _bind(scales), None,
                       None])
    table.bind_outputs([_bind(result)])
    device.record_dispatch(compiled, table)
    assert (result.read().view(np.float32) == 5).all()


def test_buffers_keep_the_bytes_beside_a_write(device: dml.Device) -> None:
    buffer = _buffer(device, np.arange(16, dtype=np.uint8))
    buffer.write(bytes([100, 101, 102, 103, 104]), offset=4)
    assert buffer.read().tolist() == [*range(4), *range(100, 105), *range(9, 16)]
    assert buffer.read(4, 5).tolist() == [100, 101, 102, 103, 104]


def test_buffers_are_held_by_what_is_recorded(device: dml.Device) -> None:
    compiled = _identity(device)
    table = device.create_binding_table(compiled)
    result = device.create_buffer(32)
    table.bind_inputs([_bind(_buffer(device, np.full(8, 3, np.float32)))])
    table.bind_outputs([_bind(result)])
    device.record_dispatch(compiled, table)
    del table
    others = [_buffer(device, np.zeros(8, np.float32)) for _ in range(20)]
    assert (result.read().view(np.float32) == 3).all()
    assert len(others) == 20


# OWNED_BY_DML


def test_an_owned_input_is_copied_at_initialization(device: dml.Device) -> None:
    compiled = _identity(device, OWNED)
    properties = compiled.binding_properties
    assert properties.persistent_resource_size >= 32
    weights = _buffer(device, np.arange(8, dtype=np.float32))
    persistent = device.create_buffer(properties.persistent_resource_size)
    initializer = device.create_operator_initializer([compiled])
    assert initializer.binding_properties.persistent_resource_size == 0
    table = device.create_binding_table(initializer)
    table.bind_inputs([[_bind(weights)]])
    table.bind_outputs([_bind(persistent)])
    device.record_dispatch(initializer, table)
    weights.write(np.zeros(8, np.float32))  # initialization has copied them

    result = device.create_buffer(32)
    for _ in range(2):
        result.write(bytes(32))
        table = device.create_binding_table(compiled)
        table.bind_inputs([None])
        table.bind_outputs([_bind(result)])
        table.bind_persistent_resource(_bind(persistent))
        device.record_dispatch(compiled, table)
        assert (result.read().view(np.float32) == np.arange(8)).all()


def test_owned_inputs_are_kept_where_vectors_begin(
    device: dml.Device, rng: np.random.Generator
) -> None:
    """Inputs whose size is not a multiple of 16 bytes, one after the other."""
    a, b = (rng.integers(0, 100, 37, np.uint8) for _ in range(2))
    owned = dml.TensorDesc("uint8", [37], flags=OWNED)
    compiled = _compile(device, dml.ElementWiseAddOperatorDesc(
        a_tensor=owned, b_tensor=owned, output_tensor=dml.TensorDesc("uint8", [37])))
    persistent = device.create_buffer(compiled.binding_properties.persistent_resource_size)
    initializer = device.create_operator_initializer([compiled])
    table = device.create_binding_table(initializer)
    table.bind_inputs([[_bind(_buffer(device, np.append(x, [0] * 3).astype(np.uint8)))
                        for x in (a, b)]])
    table.bind_outputs([_bind(persistent)])
    device.record_dispatch(initializer, table)
    result = device.create_buffer(40)
    table = device.create_binding_table(compiled)
    table.bind_inputs([None, None])
    table.bind_outputs([_bind(result)])
    table.bind_persistent_resource(_bind(persistent))
    device.record_dispatch(compiled, table)
    np.testing.assert_array_equal(result.read()[:37], a + b)


@pytest.mark.parametrize("owned", [("b",), ("a", "b", "scale"), ("scale",)], ids=".".join)
def test_product_with_owned_inputs(
    owned: tuple[str, ...], device: dml.Device, rng: np.random.Generator
) -> None:
    a = rng.integers(-128, 128, (3, 5), np.int8)
    b = rng.integers(-128, 128, (5, 7), np.int8)
    scale = np.arange(1, 8, dtype=np.float32)
    flags = [OWNED if n in owned else dml.TensorFlags.NONE for n in ("a", "b", "scale")]
    compiled = _product(device, *flags)
    one = _buffer(device, np.ones(1, np.float32))
    inputs = {
        "a": _bind(_buffer(device, a)), "one": _bind(one), "a_zero": None,
        "b": _bind(_buffer(device, b)), "scale": _bind(_buffer(device, scale)), "b_zero": None,
        "bias": None,
    }
    initializer = device.create_operator_initializer([compiled])
    persistent = device.create_buffer(compiled.binding_properties.persistent_resource_size)
    table = device.create_binding_table(initializer)
    table.bind_inputs([[x if n in owned else None for n, x in inputs.items()]])
    table.bind_outputs([_bind(persistent)])
    temporary = initializer.binding_properties.temporary_resource_size
    if temporary:
        table.bind_temporary_resource(_bind(device.create_buffer(temporary)))
    device.record_dispatch(initializer, table)

    result = device.create_buffer(84)
    table = device.create_binding_table(compiled)
    table.bind_inputs([None if n in owned else x for n, x in inputs.items()])
    table.bind_outputs([_bind(result)])
    table.bind_persistent_resource(_bind(persistent))
    temporary = compiled.binding_properties.temporary_resource_size
    if temporary:
        table.bind_temporary_resource(_bind(device.create_buffer(temporary)))
    device.record_dispatch(compiled, table)
    expected = (a.astype(int) @ b.astype(int)).astype(np.float32) * scale
    assert (result.read().view(np.float32).reshape(3, 7) == expected).all()


def test_one_initializer_for_several_operators(device: dml.Device) -> None:
    one, plain, other = _identity(device, OWNED), _identity(device), _identity(device, OWNED, 4)
    initializer = device.create_operator_initializer()
    initializer.reset([one, plain, other])
    persistent = [
        device.create_buffer(c.binding_properties.persistent_resource_size) for c in (one, other)
    ]
    table = device.create_binding_table(initializer)
    table.bind_inputs([
        [_bind(_buffer(device, np.full(8, 1, np.float32)))], None,
        [_bind(_buffer(device, np.full(4, 2, np.float32)))],
    ])
    table.bind_outputs([_bind(persistent[0]), None, _bind(persistent[1])])
    device.record_dispatch(initializer, table)
    for compiled, resource, value in ((one, persistent[0], 1), (other, persistent[1], 2)):
        result = device.create_buffer(32)
        table = device.create_binding_table(compiled)
        table.bind_inputs([None])
        table.bind_outputs([_bind(result)])
        table.bind_persistent_resource(_bind(resource))
        device.record_dispatch(compiled, table)
        assert result.read().view(np.float32)[0] == value


def test_an_initializer_of_nothing_does_nothing(device: dml.Device) -> None:
    initializer = device.create_operator_initializer()
    device.record_dispatch(initializer, device.create_binding_table(initializer))


class _Owned:
    """An initialized identity of an owned input with valid bindings. Tests break one of them."""

    def __init__(self, device: dml.Device, initialize: bool = True) -> None:
        self.device = device
        self.compiled = _identity(device, OWNED)
        size = self.compiled.binding_properties.persistent_resource_size
        self.weights = _buffer(device, np.arange(8, dtype=np.float32))
        self.persistent = device.create_buffer(size)
        self.result = device.create_buffer(32)
        self.initializer = device.create_operator_initializer([self.compiled])
        self.to_initialize: list[Any] = [[_bind(self.weights)]]
        self.initialized_into: list[Any] = [_bind(self.persistent)]
        self.inputs: list[Any] = [None]
        self.resource: Any = _bind(self.persistent)
        if initialize:
            self.initialize()

    def initialize(self) -> None:
        table = self.device.create_binding_table(self.initializer)
        table.bind_inputs(self.to_initialize)
        table.bind_outputs(self.initialized_into)
        self.device.record_dispatch(self.initializer, table)

    def dispatch(self) -> None:
        table = self.device.create_binding_table(self.compiled)
        table.bind_inputs(self.inputs)
        table.bind_outputs([_bind(self.result)])
        table.bind_persistent_resource(self.resource)
        self.device.record_dispatch(self.compiled, table)


def test_owned_rules(device: dml.Device) -> None:
    fresh = _Owned(device, initialize=False)
    with pytest.raises(dml.ValidationError, match=r"IDENTITY.*be initialized before"):
        fresh.dispatch()
    fresh.initialize()
    with pytest.raises(dml.ValidationError, match=r"INITIALIZER.*operator 0.*initialized once"):
        fresh.initialize()
    fresh.dispatch()
    assert (fresh.result.read().view(np.float32) == np.arange(8)).all()

    bound = _Owned(device)
    bound.inputs = [_bind(bound.weights)]
    with pytest.raises(dml.ValidationError, match=r"InputTensor.*None.*OWNED_BY_DML.*initializer"):
        bound.dispatch()
    bound.inputs, bound.resource = [None], None
    with pytest.raises(dml.ValidationError, match=r"persistent resource.*be bound"):
        bound.dispatch()
    bound.resource = dml.BufferBinding(bound.persistent, 0, 16)
    with pytest.raises(dml.ValidationError, match=r"SizeInBytes of persistent.*16"):
        bound.dispatch()


@pytest.mark.parametrize("what", ["input", "output", "count", "overlap", "not-owned"])
def test_bad_initializer_bindings(what: str, device: dml.Device) -> None:
    bad = _Owned(device, initialize=False)
    match = "INITIALIZER.*"
    if what == "input":
        bad.to_initialize, match = [[None]], match + r"operators\[0\].InputTensor.*be bound"
    elif what == "output":
        bad.initialized_into, match = [None], match + "persistent resource.*be bound"
    elif what == "count":
        bad.to_initialize, match = [[], []], match + "input bindings.*be 1.*2"
    elif what == "overlap":
        bad.to_initialize, match = [[_bind(bad.persistent)]], match + "not to overlap"
    else:
        bad.compiled = _identity(device)
        bad.initializer = device.create_operator_initializer([bad.compiled])
        match += "not OWNED_BY_DML"
    with pytest.raises(dml.ValidationError, match=match):
        bad.initialize()
    assert not bad.compiled.initialized or what == "not-owned"


def test_persistent_memory_may_not_meet_the_output(device: dml.Device) -> None:
    bad = _Owned(device)
    bad.result = bad.persistent
    with pytest.raises(dml.ValidationError, match=r"not to overlap"):
        bad.dispatch()


# In place


def test_in_place(device: dml.Device) -> None:
    compiled = _compile(device, dml.DiagonalMatrix1OperatorDesc(
        input_tensor=dml.TensorDesc(I8, [4, 4]), output_tensor=dml.TensorDesc(I8, [4, 4]),
        value_data_type=I8, value=9, diagonal_fill_begin=0, diagonal_fill_end=1,
    ))
    buffer = _buffer(device, np.ones((4, 4), np.int8))
    table = device.create_binding_table(compiled)
    table.bind_inputs([_bind(buffer)])
    table.bind_outputs([_bind(buffer)])
    device.record_dispatch(compiled, table)
    assert (buffer.read().view(np.int8).reshape(4, 4) == 1 + 8 * np.eye(4)).all()


def test_identical_ranges_of_unequal_layouts(device: dml.Device) -> None:
    compiled = _compile(device, dml.ActivationIdentityOperatorDesc(
        input_tensor=dml.TensorDesc(F32, [2, 2]), output_tensor=dml.TensorDesc(F32, [2, 2], [1, 2]),
    ))
    buffer = _buffer(device, np.ones(4, np.float32))
    table = device.create_binding_table(compiled)
    table.bind_inputs([_bind(buffer)])
    table.bind_outputs([_bind(buffer)])
    with pytest.raises(dml.ValidationError, match="layouts of InputTensor and OutputTensor"):
        device.record_dispatch(compiled, table)


def test_views_that_interleave_without_meeting(device: dml.Device) -> None:
    """The even columns of a matrix are copied to its odd ones."""
    t = device.tensor(np.arange(24, dtype=np.float32).reshape(4, 6))
    left, right = t[:, :3], t[:, 3:]
    dml.activation_identity(left, out=right)
    expected = np.arange(24, dtype=np.float32).reshape(4, 6)
    expected[:, 3:] = expected[:, :3]
    assert (t.numpy() == expected).all()


# Properties of a compiled operator


def test_objects_tell_what_they_are(device: dml.Device) -> None:
    compiled = _identity(device)
    assert "ACTIVATION_IDENTITY" in repr(compiled)
    assert "ACTIVATION_IDENTITY" in repr(compiled.operator)
    assert compiled.variants == ("activation_identity.b32",)
    assert "1 operators" in repr(device.create_operator_initializer([compiled]))
    assert device.adapter.name in repr(device)
    assert "32 bytes" in repr(device.create_buffer(32))
