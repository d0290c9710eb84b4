"""Bad input is refused with operator, field, rule and values, before anything happens."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from cases import ERRORS
from harness import ErrorCase
from kompute_dml.operators.base import definitions

F32, I8 = dml.DataType.FLOAT32, dml.DataType.INT8
OWNED = dml.TensorFlags.OWNED_BY_DML


@pytest.fixture(scope="module")
def strict_device() -> Iterator[dml.Device]:
    device = dml.Device(strict=True)
    yield device
    device.close()


def _says(error: BaseException, parts: Any) -> None:
    for part in parts:
        assert part in str(error), f"{part!r} is not in {str(error)!r}"


@pytest.mark.parametrize("case", ERRORS, ids=str)
def test_bad_descriptor(case: ErrorCase, device: dml.Device, strict_device: dml.Device) -> None:
    target = strict_device if case.strict else device
    definition = definitions()["DML_OPERATOR_" + case.operator]
    with _nothing_happens(target), pytest.raises(case.error) as caught:
        target.create_operator(definition.desc_class(**case.fields))
    _says(caught.value, [definition.name, *case.parts])
    if case.strict:
        device.create_operator(definition.desc_class(**case.fields))


class _nothing_happens:
    """Checks that nothing is recorded, submitted or kept inside the block."""

    def __init__(self, device: dml.Device) -> None:
        self.device = device

    def _state(self) -> tuple[Any, ...]:
        runtime = self.device.runtime
        batch = runtime.recorder._open
        return (self.device.memory_used, runtime.recorder.submits, batch and batch.count)

    def __enter__(self) -> None:
        gc.disable()  # else memory of earlier tests might be freed meanwhile
        self.device.synchronize()
        self.before = self._state()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        now = self._state()
        gc.enable()
        if error is None:
            assert now == self.before


# Descriptions of tensors

_TENSOR_DESCS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "no-dimensions": (lambda: dml.TensorDesc(F32, []), ["DimensionCount", "[1, 8]", "0"]),
    "nine-dimensions": (lambda: dml.TensorDesc(F32, [1] * 9), ["DimensionCount", "[1, 8]", "9"]),
    "size-0": (lambda: dml.TensorDesc(F32, [2, 0]), ["Sizes[1]", "at least 1", "0"]),
    "size-negative": (lambda: dml.TensorDesc(F32, [-2]), ["Sizes[0]", "at least 1", "-2"]),
    "size-fractional": (lambda: dml.TensorDesc(F32, [2.5]), ["Sizes", "integers", "[2.5]"]),
    "sizes-not-a-list": (lambda: dml.TensorDesc(F32, 4), ["Sizes", "integers", "4"]),
    "too-many-elements": (lambda: dml.TensorDesc(F32, [2**16, 2**16]),
                          [str(2**32 - 1), str(2**32)]),
    "stride-missing": (lambda: dml.TensorDesc(F32, [2, 3], [1]), ["Strides", "1", "2"]),
    "stride-negative": (lambda: dml.TensorDesc(F32, [2, 3], [3, -1]), ["Strides", "[3, -1]"]),
    "total-too-small": (lambda: dml.TensorDesc(F32, [2, 3], total_tensor_size_in_bytes=20),
                        ["TotalTensorSizeInBytes", "24", "20"]),
    "total-too-small-strided": (
        lambda: dml.TensorDesc(I8, [2, 3], [10, 1], total_tensor_size_in_bytes=12),
        ["TotalTensorSizeInBytes", "16", "12"]),
    "total-not-of-words": (lambda: dml.TensorDesc(F32, [2], total_tensor_size_in_bytes=10),
                           ["TotalTensorSizeInBytes", "multiple of 4", "10"]),
    "alignment-odd": (lambda: dml.TensorDesc(F32, [2], guaranteed_base_offset_alignment=24),
                      ["GuaranteedBaseOffsetAlignment", "power of two", "24"]),
    "alignment-below-element": (
        lambda: dml.TensorDesc(F32, [2], guaranteed_base_offset_alignment=2),
        ["GuaranteedBaseOffsetAlignment", "element size 4", "2"]),
    "flags-undefined": (lambda: dml.TensorDesc(F32, [2], flags=3), ["Flags", "OWNED_BY_DML", "3"]),
    "flags-by-name": (lambda: dml.TensorDesc(F32, [2], flags="OWNED_BY_DML"),
                      ["Flags", "OWNED_BY_DML", "'OWNED_BY_DML'"]),
    "unknown-type": (lambda: dml.TensorDesc("complex64", [2]), ["FLOAT32", "complex64"]),
    "type-of-nothing": (lambda: dml.TensorDesc(object(), [2]), ["FLOAT32", "object"]),
    "no-type": (lambda: dml.TensorDesc(None, [2]), ["FLOAT32", "None"]),
    "total-fractional": (lambda: dml.TensorDesc(F32, [2], total_tensor_size_in_bytes=8.0),
                         ["TotalTensorSizeInBytes", "an integer", "8.0"]),
    "alignment-fractional": (
        lambda: dml.TensorDesc(F32, [2], guaranteed_base_offset_alignment=16.0),
        ["GuaranteedBaseOffsetAlignment", "an integer", "16.0"]),
}


@pytest.mark.parametrize("name", _TENSOR_DESCS)
def test_bad_tensor_desc(name: str) -> None:
    make, parts = _TENSOR_DESCS[name]
    with pytest.raises(dml.ValidationError) as caught:
        make()
    _says(caught.value, parts)


# Bindings


class _Bound:
    """An identity of 8 floats with valid bindings in one buffer. Tests break one of them."""

    def __init__(self, device: dml.Device, **more: Any) -> None:
        desc = dml.TensorDesc(F32, [8], **more)
        self.device = device
        self.compiled = device.compile_operator(device.create_operator(
            dml.ActivationIdentityOperatorDesc(input_tensor=desc, output_tensor=desc)
        ))
        self.buffer = device.create_buffer(1024)
        self.buffer.write(bytes(1024))
        self.inputs: list[Any] = [dml.BufferBinding(self.buffer, 0, 32)]
        self.outputs: list[Any] = [dml.BufferBinding(self.buffer, 64, 32)]

    def dispatch(self) -> None:
        table = self.device.create_binding_table(self.compiled)
        table.bind_inputs(self.inputs)
        table.bind_outputs(self.outputs)
        self.device.record_dispatch(self.compiled, table)

    def at(self, offset: int, size: int = 32) -> list[dml.BufferBinding]:
        return [dml.BufferBinding(self.buffer, offset, size)]


def test_the_bound_operator_is_well_bound(device: dml.Device) -> None:
    _Bound(device).dispatch()


def _bad_bindings() -> dict[str, tuple[Callable[[_Bound, dml.Device], None], list[str]]]:
    def spoil(attribute: str, value: Callable[[_Bound, dml.Device], Any]) -> Any:
        return lambda bound, other: setattr(bound, attribute, value(bound, other))

    def foreign(bound: _Bound, other: dml.Device) -> list[dml.BufferBinding]:
        return [dml.BufferBinding(other.create_buffer(64), 0, 32)]

    return {
        "input-unbound": (spoil("inputs", lambda b, o: [None]), ["InputTensor", "be bound"]),
        "output-unbound": (spoil("outputs", lambda b, o: [None]), ["OutputTensor", "be bound"]),
        "no-inputs": (spoil("inputs", lambda b, o: []), ["input bindings", "be 1", "0"]),
        "two-inputs": (spoil("inputs", lambda b, o: b.inputs * 2), ["input bindings", "be 1", "2"]),
        "no-outputs": (spoil("outputs", lambda b, o: []), ["output bindings", "be 1", "0"]),
        "input-misaligned": (spoil("inputs", lambda b, o: b.at(4)),
                             ["Offset of InputTensor", "multiple of 16", "4"]),
        "output-misaligned": (spoil("outputs", lambda b, o: b.at(72)),
                              ["Offset of OutputTensor", "multiple of 16", "72"]),
        "input-short": (spoil("inputs", lambda b, o: b.at(0, 28)),
                        ["SizeInBytes of InputTensor", "at least 32", "28"]),
        "output-short": (spoil("outputs", lambda b, o: b.at(64, 16)),
                         ["SizeInBytes of OutputTensor", "at least 32", "16"]),
        "overlapping": (spoil("outputs", lambda b, o: b.at(16)),
                        ["InputTensor and OutputTensor", "identical"]),
        "input-of-another-device": (spoil("inputs", foreign), ["InputTensor", "lie on"]),
        "output-of-another-device": (spoil("outputs", foreign), ["OutputTensor", "lie on"]),
        "buffer-for-binding": (spoil("inputs", lambda b, o: [b.buffer]),
                               ["InputTensor", "be a BufferBinding"]),
    }


@pytest.mark.parametrize("name", _bad_bindings())
def test_bad_binding(name: str, device: dml.Device, strict_device: dml.Device) -> None:
    spoil, parts = _bad_bindings()[name]
    bound = _Bound(device)
    spoil(bound, strict_device)
    with _nothing_happens(device), pytest.raises(dml.ValidationError) as caught:
        bound.dispatch()
    _says(caught.value, ["DML_OPERATOR_ACTIVATION_IDENTITY", *parts])
    assert not bound.buffer.read().any()


def test_guaranteed_alignment_binds_the_binding(device: dml.Device) -> None:
    bound = _Bound(device, guaranteed_base_offset_alignment=64)
    bound.dispatch()
    bound.outputs = bound.at(96)
    with pytest.raises(dml.ValidationError, match=r"Offset of OutputTensor.*64.*96"):
        bound.dispatch()


@pytest.mark.parametrize(
    "offset, size", [(-16, 32), (1008, 32), (0, 0), (1024, None), (0, 1028)]
)
def test_binding_outside_its_buffer(device: dml.Device, offset: int, size: int | None) -> None:
    buffer = device.create_buffer(1024)
    with pytest.raises(dml.ValidationError, match=r"inside .*1024.* Offset"):
        dml.BufferBinding(buffer, offset, size)  # type: ignore[arg-type]


@pytest.mark.parametrize("offset, size", [(16.0, 16), ("16", None), (16, 16.0)])
def test_binding_of_fractions(device: dml.Device, offset: Any, size: Any) -> None:
    with pytest.raises(dml.ValidationError, match=r"(Offset|SizeInBytes) to be an integer.*16"):
        dml.BufferBinding(device.create_buffer(1024), offset, size)


def test_binding_without_a_buffer() -> None:
    with pytest.raises(dml.ValidationError, match="Buffer"):
        dml.BufferBinding(None)  # type: ignore[arg-type]


def test_operators_that_may_not_run_in_place(device: dml.Device) -> None:
    """The product reads what it would overwrite."""
    t = device.tensor(np.zeros((4, 4), np.int32))
    scale = device.tensor(np.ones(1, np.float32))
    out = device.empty([4, 4])
    alias = dml.Tensor(device, t.allocation, 0, out.desc)
    with _nothing_happens(device), pytest.raises(dml.ValidationError, match="in place"):
        dml.matrix_multiply_integer_to_float(t, scale, t, scale, out=alias)


def test_in_place_needs_equal_layouts(device: dml.Device) -> None:
    t = device.tensor(np.arange(9, dtype=np.float32).reshape(3, 3))
    with _nothing_happens(device), pytest.raises(dml.ValidationError, match=r"layouts .* be equal"):
        dml.activation_identity(t, out=t.T)
    with pytest.raises(dml.ValidationError, match="identical"):
        dml.activation_identity(t[:2], out=t[1:])
    with pytest.raises(dml.ValidationError, match=r"DIAGONAL_MATRIX1.*layouts"):
        dml.diagonal_matrix1(t, value=1, diagonal_fill_begin=0, diagonal_fill_end=1, out=t.T)
    assert (t.numpy() == np.arange(9).reshape(3, 3)).all()


# Objects of the wrong kind


def test_objects_of_another_device(device: dml.Device, strict_device: dml.Device) -> None:
    mine = _Bound(device)
    with pytest.raises(dml.ValidationError, match="compile_operator"):
        strict_device.compile_operator(mine.compiled.operator)
    with pytest.raises(dml.ValidationError, match="create_binding_table"):
        strict_device.create_binding_table(mine.compiled)
    with pytest.raises(dml.ValidationError, match="create_operator_initializer"):
        strict_device.create_operator_initializer([mine.compiled])
    table = device.create_binding_table(mine.compiled)
    with pytest.raises(dml.ValidationError, match="record_dispatch"):
        strict_device.record_dispatch(mine.compiled, table)


def test_table_of_another_operator(device: dml.Device) -> None:
    a, b = _Bound(device), _Bound(device)
    with pytest.raises(dml.ValidationError, match="binding table made for this dispatchable"):
        device.record_dispatch(a.compiled, device.create_binding_table(b.compiled))
    with pytest.raises(dml.ValidationError, match="binding table made for this dispatchable"):
        device.record_dispatch(a.compiled, None)  # type: ignore[arg-type]


def test_tensors_of_two_devices_in_one_call(
    device: dml.Device, strict_device: dml.Device
) -> None:
    x, y = device.tensor([1.0], "float32"), strict_device.tensor([1.0], "float32")
    with pytest.raises(dml.ValidationError, match="one device"):
        dml.activation_identity(x, out=y)


def test_not_a_descriptor(device: dml.Device) -> None:
    with pytest.raises(dml.ValidationError, match="operator desc"):
        device.create_operator({"type": "DML_OPERATOR_DIAGONAL_MATRIX"})  # type: ignore[arg-type]


def test_an_activation_that_is_no_descriptor(device: dml.Device) -> None:
    t = dml.TensorDesc(F32, [2])
    for activation in ("relu", t):
        with pytest.raises(dml.ValidationError, match="FusedActivation to be an operator's desc"):
            device.create_operator(dml.ElementWiseAdd1OperatorDesc(
                a_tensor=t, b_tensor=t, output_tensor=t, fused_activation=activation))


def test_a_scale_that_is_no_scale_bias(device: dml.Device) -> None:
    t = dml.TensorDesc(F32, [2])
    for scale_bias, words in (((2, 1), r"ScaleBias to be a ScaleBias, but got \(2, 1\)"),
                              (dml.ScaleBias(bias="1"), r"ScaleBias\.Bias to be a number")):  # type: ignore[arg-type]
        with pytest.raises(dml.ValidationError, match=words):
            device.create_operator(dml.ElementWiseAbsOperatorDesc(
                input_tensor=t, output_tensor=t, scale_bias=scale_bias))


def test_integers_are_of_32_bits(device: dml.Device) -> None:
    def create(offset: int) -> None:
        device.create_operator(dml.DiagonalMatrixOperatorDesc(
            output_tensor=dml.TensorDesc(F32, [2, 2]), offset=offset, value=1.0))

    for offset in (-(2**31), 2**31 - 1):
        create(offset)
    for offset in (-(2**31) - 1, 2**31):
        with pytest.raises(dml.ValidationError, match=r"Offset to be in \[-2147483648, 21474836"):
            create(offset)


def test_use_after_close() -> None:
    device = dml.Device()
    t = device.tensor(np.ones(3, np.float32))
    bound = _Bound(device)
    device.close()
    for use in (
        t.numpy,
        device.synchronize,
        bound.dispatch,
        bound.buffer.read,
        lambda: bound.buffer.write(bytes(4)),
        lambda: device.tensor([1.0]),
        lambda: device.create_buffer(16),
        lambda: dml.activation_identity(t),
    ):
        with pytest.raises(dml.DmlError, match="closed"):
            use()
    device.close()


def test_use_after_free(device: dml.Device) -> None:
    t, alive = device.tensor(np.ones(3, np.float32)), device.tensor(np.ones(2, np.float32))
    view, bound = t[1:], _Bound(device)
    t.free()
    bound.buffer.free()
    for use in (
        t.numpy,
        view.numpy,
        lambda: dml.activation_identity(t),
        lambda: dml.activation_identity(alive, out=view),
        bound.dispatch,
        bound.buffer.read,
        lambda: bound.buffer.write(bytes(4)),
    ):
        with _nothing_happens(device), pytest.raises(dml.ValidationError, match="freed"):
            use()
    with pytest.raises(dml.ValidationError, match=r"^DML_OPERATOR_ACTIVATION_IDENTITY: .*input"):
        dml.activation_identity(t)


@pytest.mark.parametrize("desc", [
    dml.DiagonalMatrixOperatorDesc(
        output_tensor=dml.TensorDesc("uint8", [1, 1 << 31]), offset=0, value=1.0),
    dml.DynamicQuantizeLinearOperatorDesc(
        input_tensor=dml.TensorDesc(F32, [2**32 - 256], [0]),
        output_tensor=dml.TensorDesc("uint8", [2**32 - 256]),
        output_scale_tensor=dml.TensorDesc(F32, [1]),
        output_zero_point_tensor=dml.TensorDesc("uint8", [1])),
], ids=lambda desc: desc.operator.function_name)
def test_what_32_bits_do_not_count_is_refused(desc: Any, device: dml.Device) -> None:
    with pytest.raises(dml.UnsupportedError, match="not supported"):
        device.compile_operator(device.create_operator(desc))


@pytest.mark.parametrize(("plane", "passes"), [
    ((40_000, 1), 80_000), ((720, 800), 72_720), ((32_000, 8), 64_000)])
def test_planes_of_more_passes_than_a_cpu_makes_are_refused(
    plane: tuple[int, int], passes: int, device: dml.Device
) -> None:
    """Those of a region that is the whole plane. Each row takes one, and each 8 elements."""
    desc = dml.RoiPoolingOperatorDesc(
        input_tensor=dml.TensorDesc(F32, [1, 1, *plane]), roi_tensor=dml.TensorDesc(F32, [1, 5]),
        output_tensor=dml.TensorDesc(F32, [1, 1, 1, 1]), spatial_scale=1.0,
        pooled_size=dml.Size2d(1, 1))
    if passes <= device.target.traits.max_loop_passes:
        assert desc.operator.lower(desc, device.target).execute
    else:
        with pytest.raises(dml.UnsupportedError, match=f"{passes} steps"):
            desc.operator.lower(desc, device.target)


# Buffers


def test_buffer_ranges(device: dml.Device) -> None:
    buffer = device.create_buffer(64)
    for call in (
        lambda: buffer.write(bytes(4), offset=64),
        lambda: buffer.write(bytes(68)),
        lambda: buffer.write(bytes(4), offset=2),
        lambda: buffer.read(60, 8),
        lambda: buffer.read(-4, 4),
        lambda: buffer.read(0, -1),
    ):
        with pytest.raises(dml.ValidationError, match=r"64 bytes.*offset"):
            call()
    for call, words in (
        (lambda: buffer.read("0"), r"Buffer\.read: .*offset.*'0'"),  # type: ignore[arg-type]
        (lambda: buffer.read(0, 4.0), r"Buffer\.read: .*size.*4\.0"),  # type: ignore[arg-type]
        (lambda: buffer.write(bytes(4), 4.0), r"Buffer\.write: .*offset.*4\.0"),  # type: ignore[arg-type]
        (lambda: buffer.write(None), r"Buffer\.write: .*data.*None"),
    ):
        with pytest.raises(dml.ValidationError, match=words):
            call()
    for size in (0, -1):
        with pytest.raises(dml.ValidationError, match=rf"at least 1 byte.*{size}"):
            device.create_buffer(size)
    with pytest.raises(dml.ValidationError, match=r"size_in_bytes to be an integer.*16\.0"):
        device.create_buffer(16.0)  # type: ignore[arg-type]


def test_more_than_the_device_holds(device: dml.Device) -> None:
    with _nothing_happens(device), pytest.raises(dml.OutOfMemoryError) as caught:
        device.empty([2**31], "float64")
    assert str(2**34) in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    assert (device.tensor([1, 2]).numpy() == [1, 2]).all()


# The function level


def _calls(device: dml.Device) -> dict[str, tuple[Callable[[], Any], list[str]]]:
    x = device.tensor(np.ones((3, 4), np.float32))
    whole, scale = device.tensor(np.ones(3, np.int8)), device.empty([1, 1])
    fill = dict(value=1, diagonal_fill_begin=0, diagonal_fill_end=1)
    return {
        "out-sizes": (lambda: dml.activation_identity(x, out=device.empty([4, 3])),
                      ["out.sizes", "[3, 4]", "[4, 3]"]),
        "out-type": (lambda: dml.activation_identity(x, out=device.empty([3, 4], "float16")),
                     ["out.data_type", "FLOAT32", "FLOAT16"]),
        "out-array": (lambda: dml.activation_identity(x, out=np.zeros((3, 4), np.float32)),
                      ["out", "be a Tensor", "ndarray"]),
        "overlapping-out": (
            lambda: dml.activation_identity(
                x, out=device.empty([1, 4]).broadcast_to([3, 4])),
            ["OutputTensor.Strides", "[0, 1]"]),
        "integers": (lambda: dml.activation_identity(np.ones(3, np.int64)),
                     ["InputTensor.DataType", "INT64"]),
        "complex": (lambda: dml.activation_identity(np.ones(3, np.complex64)),
                    ["activation_identity, x", "complex64"]),
        "float64": (lambda: dml.activation_relu(np.ones(3)),
                    ["InputTensor.DataType", "FLOAT64", "use np.float32"]),
        "truth-values": (lambda: dml.cast(x, bool), ["truth values are UINT8", "bool"]),
        "ragged": (lambda: dml.abs([[1.0], [1.0, 2.0]]), ["abs, x", "list", "shape"]),
        "text": (lambda: device.tensor(["a"], "float32"), ["list", "'a'"]),
        "no-input": (lambda: dml.add(x, None), ["add, b", "array", "None"]),
        "no-scale": (lambda: dml.quantize_linear(x, None), ["quantize_linear, scale", "None"]),
        "one-size": (lambda: dml.diagonal_matrix(3), ["diagonal_matrix", "sizes", "integers", "3"]),
        "fractional-sizes": (lambda: dml.fill_value_constant([2.0], value=1.0, out=scale),
                             ["fill_value_constant", "sizes", "integers", "2.0"]),
        "no-type": (lambda: dml.cast(x, data_type=None), ["data type", "None"]),
        "axis": (lambda: dml.quantize_linear(x, np.ones(4, np.float32), axis=2),
                 ["quantize_linear", "axis", "[-2, 2)", "2"]),
        "textual-axis": (lambda: dml.dequantize_linear(whole, np.float32([1.0]), axis="0"),
                         ["dequantize_linear", "axis", "integer", "'0'"]),
        "array-for-a-number": (lambda: dml.clip(x, min=np.zeros(3), max=1.0),
                               ["ELEMENT_WISE_CLIP", "Min", "a number", "array"]),
        "integer-beyond-floats": (lambda: dml.clip(x, min=0, max=10**400),
                                  ["ELEMENT_WISE_CLIP", "Max", "a float can hold", "1000000"]),
        "list-for-a-mode": (lambda: dml.round(x, rounding_mode=[1]),
                            ["ELEMENT_WISE_ROUND", "RoundingMode", "TOWARD_ZERO", "[1]"]),
        "one-of-three-outs": (lambda: dml.dynamic_quantize_linear(x, out=scale),
                              ["dynamic_quantize_linear", "out", "three tensors", "FLOAT32"]),
        "one-bias": (lambda: dml.value_scale_2d(np.ones((1, 1, 2, 2), np.float32), scale=1.0,
                                                bias=1.0),
                     ["value_scale_2d", "bias", "sequence", "1.0"]),
        "empty-array": (lambda: dml.convolution(
            np.ones((1, 0, 3, 3), np.float32), np.ones((1, 1, 3, 3), np.float32)),
                        ["CONVOLUTION", "have elements"]),
        "nine-dimensions": (lambda: dml.activation_identity(np.ones([1] * 9, np.float32)),
                            ["DimensionCount", "9"]),
        "vector-sizes": (lambda: dml.diagonal_matrix([3]), ["DimensionCount", "1"]),
        "size-negative": (lambda: dml.diagonal_matrix([-1, 3]), ["Sizes[0]", "-1"]),
        "unknown-type": (lambda: dml.diagonal_matrix([3, 3], data_type="float8"), ["float8"]),
        "offset": (lambda: dml.diagonal_matrix([3, 3], offset=2**31), ["Offset", str(2**31)]),
        "no-sizes": (lambda: dml.diagonal_matrix1(**fill), ["sizes", "be given"]),
        "two-sizes": (lambda: dml.diagonal_matrix1(x, sizes=[4, 3], **fill),
                      ["sizes", "[3, 4]", "[4, 3]"]),
        "two-types": (lambda: dml.diagonal_matrix1(x, data_type="int8", **fill),
                      ["data_type", "FLOAT32", "int8"]),
        "value": (lambda: dml.diagonal_matrix1(
                      sizes=[3, 3], data_type="int8", **fill | {"value": 128}),
                  ["Value", "INT8 can hold", "128"]),
        "bound": (lambda: dml.diagonal_matrix1(x, **fill | {"diagonal_fill_end": 2**31}),
                  ["DiagonalFillEnd", str(2**31)]),
        "fractional-bound": (lambda: dml.diagonal_matrix1(x, **fill | {"diagonal_fill_end": 0.5}),
                             ["DiagonalFillEnd", "integer", "0.5"]),
        "textual-bound": (lambda: dml.diagonal_matrix1(x, **fill | {"diagonal_fill_begin": "0"}),
                          ["DiagonalFillBegin", "integer", "'0'"]),
        "fraction-for-integers": (
            lambda: dml.add(a=whole, b=1.5),
            ["add: expected b", "a number that INT8 can hold", "1.5"]),
        "number-too-large": (lambda: dml.add(300, whole), ["add: expected a", "INT8", "300"]),
        "array-too-large": (lambda: device.tensor([300], "int8"), ["int8", "300"]),
        "zero-point-too-large": (lambda: dml.quantize_linear(x, 1.0, 300),
                                 ["quantize_linear", "zero_point", "UINT8", "300"]),
        "zero-points-too-small": (
            lambda: dml.dequantize_linear(whole, 1.0, np.int32([-129])),
            ["dequantize_linear", "zero_point", "INT8", "-129"]),
        "fractional-zero-point": (
            lambda: dml.quantized_linear_add(whole, 1.0, 0.5, whole, 1.0, None, 1.0),
            ["quantized_linear_add", "zero point", "INT8", "0.5"]),
        "zero-point-type": (
            lambda: dml.quantize_linear(x, 1.0, device.tensor(np.uint8([3])), data_type="int8"),
            ["ZeroPointTensor.DataType", "UINT8", "INT8"]),
        "outputs-overlap": (
            lambda: dml.dynamic_quantize_linear(x, data_type="int8", out=(
                device.empty([3, 4], "int8"), scale,
                dml.Tensor(device, scale.allocation, 0, dml.TensorDesc(I8, [1, 1])))),
            ["OutputScaleTensor and OutputZeroPointTensor", "not overlap"]),
        "steepness-0": (lambda: dml.activation_softplus(x, steepness=0.0), ["Steepness", "above"]),
    }


@pytest.mark.parametrize("name", [
    "out-sizes", "out-type", "out-array", "overlapping-out", "integers", "complex", "float64",
    "truth-values",
    "ragged", "text", "no-input", "no-scale", "one-size", "fractional-sizes", "no-type", "axis",
    "textual-axis", "array-for-a-number", "integer-beyond-floats", "list-for-a-mode",
    "one-of-three-outs", "one-bias",
    "empty-array", "nine-dimensions", "vector-sizes", "size-negative", "unknown-type", "offset",
    "no-sizes", "two-sizes", "two-types", "value", "bound", "fractional-bound", "textual-bound",
    "fraction-for-integers", "number-too-large", "array-too-large", "zero-point-too-large",
    "zero-points-too-small", "fractional-zero-point", "zero-point-type", "outputs-overlap",
    "steepness-0",
])
def test_bad_call(name: str, device: dml.Device) -> None:
    call, parts = _calls(device)[name]
    with pytest.raises(dml.ValidationError) as caught:
        call()
    _says(caught.value, parts)
    assert (dml.activation_identity(np.ones(2, np.float32)).numpy() == 1).all()


def test_kinds_of_errors_are_pythons_too() -> None:
    assert issubclass(dml.ValidationError, (dml.DmlError, ValueError))
    assert issubclass(dml.ValidationError, ValueError)
    assert issubclass(dml.UnsupportedError, NotImplementedError)
    assert issubclass(dml.OutOfMemoryError, MemoryError)
    assert issubclass(dml.DeviceLostError, RuntimeError)
    assert issubclass(dml.NoDeviceError, RuntimeError)


@pytest.mark.parametrize("adapter", [99, "no such device", "99"])
def test_no_such_device(adapter: int | str) -> None:
    with pytest.raises(dml.NoDeviceError, match=r"those here: \[0\] "):
        dml.Device(adapter)


@pytest.mark.parametrize("arguments", [(1.5,), (0, "6_5"), (0, 0x1001)])
def test_device_of_wrong_arguments(arguments: Any) -> None:
    with pytest.raises(dml.ValidationError, match=r": .*(adapter|feature_level).* but got"):
        dml.Device(*arguments)


@pytest.mark.parametrize("name", [
    "FL_5_2", "5_2", "5.2", "fl_5_2", "DML_FEATURE_LEVEL_5_2", 0x5200, dml.FeatureLevel.FL_5_2,
])
def test_every_name_of_a_feature_level(name: Any) -> None:
    device = dml.Device(feature_level=name)
    assert device.feature_level is dml.FeatureLevel.FL_5_2
    device.close()


def test_arguments_that_a_function_does_not_have() -> None:
    x = np.float32([1.0, 2.0, 5.0])
    with pytest.raises(TypeError, match=r"clip\(\) .*'min'"):
        dml.clip(x)
    with pytest.raises(TypeError, match=r"clip\(\) too many .*by name only: scale_bias, out$"):
        dml.clip(x, 1, 4, None)
    with pytest.raises(TypeError, match=r"add\(\) too many .*by name only: fused_activation, out$"):
        dml.add(x, x, x)


def test_arguments_without_a_default_go_by_place(device: dml.Device) -> None:
    x = device.tensor(np.float32([0, 2, 5]))
    assert dml.clip(x, 1, 4).numpy().tolist() == [1, 2, 4]
    assert dml.cast(x, "int32").data_type is dml.DataType.INT32
    assert dml.constant_pow(x, 2).numpy().tolist() == [0, 4, 25]


def test_members_of_enumerations_by_their_names(device: dml.Device) -> None:
    x = device.tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    for name in ("SUM", "sum"):
        assert dml.reduce(x, function=name, axes=[1]).numpy().ravel().tolist() == [3, 12]
    with pytest.raises(dml.ValidationError, match=r"Function to be one of .*SUM.* got 'TOTAL'"):
        dml.reduce(x, function="TOTAL", axes=[1])


@pytest.mark.parametrize("name, meant", [
    ("hardmax", "activation_hardmax"), ("prelu", "activation_parameterized_relu"),
    ("bitwise_count", "bit_count"), ("Relu", "relu"),
    ("conv2d", r"convolution\?$"), ("clamp", r"clip\?$"), ("layer_norm", "mean_variance_norm"),
    ("ActivationReluDesc", "ActivationReluOperatorDesc"), ("element_wise_add", r"add\?$"),
    ("ELEMENT_WISE_CLIP_GRAD1", r"clip_grad1\?$"),
])
def test_unknown_names_say_which_are_near(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}'; did you mean .*{meant}"):
        getattr(dml, name)
    assert not hasattr(dml, "zzzz")


@pytest.mark.parametrize("name, ours", [
    ("DML_TENSOR_DATA_TYPE_FLOAT32", "DataType.FLOAT32"), ("DML_BUFFER_TENSOR_DESC", "TensorDesc"),
    ("DML_TENSOR_FLAG_OWNED_BY_DML", "TensorFlags.OWNED_BY_DML"),
    ("DML_EXECUTION_FLAG_NONE", "ExecutionFlags.NONE"), ("DML_OPERATOR_GEMM", "GemmOperatorDesc"),
    ("DML_ELEMENT_WISE_ADD1_OPERATOR_DESC", "ElementWiseAdd1OperatorDesc"),
    ("DML_OPERATOR_GRAPH_NODE_DESC", "OperatorGraphNodeDesc"), ("DMLCreateDevice1", "Device"),
    ("DML_FEATURE_LEVEL_5_0", "FeatureLevel.FL_5_0"), ("DML_SCALE_BIAS", "ScaleBias"),
    ("DML_MATRIX_TRANSFORM_TRANSPOSE", "MatrixTransform.TRANSPOSE"),
])
def test_names_of_the_header_say_what_to_use(name: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=rf"'{name}'; use dml\.{ours}$"):
        getattr(dml, name)
    with pytest.raises(AttributeError, match=r"'DML_GRAPH_NONSENSE'$"):
        _ = dml.DML_GRAPH_NONSENSE


def test_methods_in_the_headers_spelling_say_what_to_use(device: dml.Device) -> None:
    x = dml.TensorDesc("float32", [2])
    relu = dml.ActivationReluOperatorDesc(input_tensor=x, output_tensor=x)
    compiled = device.compile_operator(device.create_operator(relu))
    for of, name, ours in ((device, "CreateOperator", "create_operator"),
                           (compiled, "GetBindingProperties", "binding_properties"),
                           (device.create_binding_table(compiled), "BindInputs", "bind_inputs")):
        with pytest.raises(AttributeError, match=f"'{name}'; use {ours}$"):
            getattr(of, name)
    with pytest.raises(AttributeError, match=r"'Evict'$"):
        _ = device.Evict


def test_what_is_no_list_or_flag_is_refused(device: dml.Device) -> None:
    x = dml.TensorDesc("float32", [2], flags=dml.TensorFlags.OWNED_BY_DML)
    y = dml.TensorDesc("float32", [2])
    add = dml.ElementWiseAddOperatorDesc(a_tensor=x, b_tensor=y, output_tensor=y)
    operator = device.create_operator(add)
    compiled = device.compile_operator(operator)
    binding = dml.BufferBinding(device.create_buffer(8))
    initializer = device.create_operator_initializer([compiled])
    table = device.create_binding_table(initializer)
    table.bind_inputs([binding])
    for call, message in (
        (lambda: device.compile_operator(operator, "NONE"), "flags to be dml.ExecutionFlags"),
        (lambda: device.create_operator_initializer(compiled), "operators to be a list"),
        (lambda: table.bind_outputs(binding), "bindings to be a list"),
        (lambda: device.record_dispatch(initializer, table), "inputs of operator 0.* be a list"),
    ):
        with pytest.raises(dml.ValidationError, match=message):
            call()


def test_truth_values_are_bytes(device: dml.Device) -> None:
    for values in (np.array([True, False]), [True, False]):
        t = device.tensor(values)
        assert t.data_type is dml.DataType.UINT8 and t.numpy().tolist() == [1, 0]
    assert dml.logical_and(t, np.array([True, True])).numpy().tolist() == [1, 0]
    assert device.tensor(np.True_).item() == 1


def test_unknown_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOMPUTE_DML_DISABLE", "int9")
    with pytest.raises(dml.DmlError, match=r"KOMPUTE_DML_DISABLE.*coopmat.*int9"):
        dml.Device()
