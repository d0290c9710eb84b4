"""TensorDesc, and the classes of operators' descriptions. (test_errors.py: what they refuse.)"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kompute_dml as dml
from kompute_dml.operators.base import definitions


# (data type, sizes, strides, bytes): DMLCalcBufferTensorSize by hand.
@pytest.mark.parametrize("data_type, sizes, strides, size", [
    ("float32", [1], None, 4), ("uint8", [1], None, 4), ("uint8", [5], None, 8),
    ("float16", [3], None, 8), ("float16", [2, 3], None, 12), ("float64", [2, 3], None, 48),
    ("uint8", [3, 4], [10, 1], 24), ("int16", [2, 2], [7, 3], 24), ("float32", [4, 3], [0, 1], 12),
    ("float32", [9], [0], 4), ("int8", [2, 1, 3], [100, 50, 1], 104),
    ("uint64", [1] * 8, None, 8),
])
def test_byte_size(data_type: str, sizes: list[int], strides: list[int] | None, size: int) -> None:
    desc = dml.TensorDesc(data_type, sizes, strides)
    assert desc.total_tensor_size_in_bytes == size
    assert dml.TensorDesc(data_type, sizes, strides, total_tensor_size_in_bytes=size) == desc


def test_defaults() -> None:
    desc = dml.TensorDesc("float16", [2, 3, 5])
    assert desc.data_type is dml.DataType.FLOAT16
    assert desc.sizes == (2, 3, 5)
    assert desc.strides == (15, 5, 1)
    assert desc.flags == dml.TensorFlags.NONE
    assert desc.guaranteed_base_offset_alignment == 0
    assert desc.dimension_count == 3
    assert desc.element_count == 30
    assert desc.is_packed
    assert not desc.overlaps_itself
    assert not desc.owned_by_dml


def test_is_a_value() -> None:
    one = dml.TensorDesc("int8", (np.int64(2), 3), flags=1)
    other = dml.TensorDesc(np.int8, [2, 3], [3, 1], dml.TensorFlags.OWNED_BY_DML)
    assert one == other and hash(one) == hash(other)
    assert one.owned_by_dml and one.flags is dml.TensorFlags.OWNED_BY_DML
    assert one != other.replace(flags=0)
    assert all(isinstance(n, int) for n in one.sizes)
    with pytest.raises(AttributeError):
        one.sizes = (1,)  # type: ignore[misc]


def test_packed_descriptions_are_shared() -> None:
    desc = dml.TensorDesc.packed("int8", [2, np.int64(3)])
    assert desc == dml.TensorDesc("int8", [2, 3])
    assert desc is dml.TensorDesc.packed(np.int8, (2, 3))
    assert desc != dml.TensorDesc.packed("uint8", (2, 3))
    with pytest.raises(dml.ValidationError, match="integers"):
        dml.TensorDesc.packed("int8", (2.0, 3.0))


def test_replace_works_the_size_out_anew() -> None:
    desc = dml.TensorDesc("int8", [4], total_tensor_size_in_bytes=64)
    assert desc.replace(sizes=[8], strides=None).total_tensor_size_in_bytes == 8
    assert desc.replace(total_tensor_size_in_bytes=128).total_tensor_size_in_bytes == 128


def test_larger_total_and_alignment_are_taken() -> None:
    desc = dml.TensorDesc("float32", [4], total_tensor_size_in_bytes=64,
                          guaranteed_base_offset_alignment=128)
    assert desc.total_tensor_size_in_bytes == 64
    assert desc.guaranteed_base_offset_alignment == 128


_layout = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), min_size=1, max_size=4)


def _addresses(layout: list[tuple[int, int]]) -> np.ndarray:
    coordinates = np.indices([n for n, _ in layout]).reshape(len(layout), -1)
    return np.array([s for _, s in layout]) @ coordinates


@given(_layout)
def test_overlap_is_found(layout: list[tuple[int, int]]) -> None:
    desc = dml.TensorDesc("uint8", [n for n, _ in layout], [s for _, s in layout])
    addresses = _addresses(layout)
    assert desc.overlaps_itself == (len(set(addresses.tolist())) < addresses.size)
    assert desc.total_tensor_size_in_bytes == (int(addresses.max()) + 4) // 4 * 4
    assert desc.is_packed == (addresses.tolist() == list(range(addresses.size)))


def test_an_operators_description_is_a_frozen_dataclass() -> None:
    kind, x = dml.ElementWiseClipOperatorDesc, dml.TensorDesc("float32", [2])
    given = {"min": 0.0, "max": np.nan, "input_tensor": x, "output_tensor": x}
    desc = kind(**given)
    assert repr(desc) == (f"ElementWiseClipOperatorDesc(min=0.0, max=nan, input_tensor={x!r}, "
                          f"output_tensor={x!r}, scale_bias=None)")
    assert [f.name for f in dataclasses.fields(desc)] == [*given, "scale_bias"]
    assert str(inspect.signature(kind)) == (
        "(*, min, max, input_tensor=None, output_tensor=None, scale_bias=None)")
    for equal in (kind(**given), copy.deepcopy(desc), dataclasses.replace(desc)):
        assert equal == desc and hash(equal) == hash(desc)
    for other in (dataclasses.replace(desc, max=1.0), dml.ElementWiseClip1OperatorDesc, None):
        assert desc != other
    one = dataclasses.replace(desc, max=1.0)
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(dataclasses.FrozenInstanceError, match="'min'"):
        desc.min = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError, match="'min'"):
        del desc.min
    for wrong, message in (
        ({}, "ElementWiseClipOperatorDesc.*missing a required.* argument: 'min'"),
        ({**given, "extra": 1}, "unexpected keyword argument 'extra'"),
    ):
        with pytest.raises(TypeError, match=message):
            kind(**wrong)


@pytest.mark.parametrize("name", sorted({
    fused for d in definitions().values() for fused in d.spec.fuses}))
def test_fused_activations_are_described_without_tensors(name: str, device: dml.Device) -> None:
    definition = definitions()[name]
    fields = [f for f in definition.spec.fields if not (f.is_tensor or f.optional)
              and f.name not in definition.spec.count_fields]
    fused = definition.desc_class(**{f.snake: (3,) if f.snake == "axes" else 0.5 for f in fields})
    x = dml.TensorDesc(dml.DataType.FLOAT32, (1, 1, 4, 4))
    device.create_operator(dml.GemmOperatorDesc(
        a_tensor=x, b_tensor=x, output_tensor=x, trans_a=0, trans_b=0, alpha=1.0, beta=0.0,
        fused_activation=fused))
    with pytest.raises(dml.ValidationError, match="InputTensor"):
        device.create_operator(fused)
