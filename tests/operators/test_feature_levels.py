"""The tables of DirectML's pages, as data, compared with every check of feature levels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import kompute_dml as dml
from cases import CASES
from kompute_dml.dtypes import Scalar
from kompute_dml.operators.base import OperatorDesc, definitions

_ALL = "FLOAT64 FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8"
_NO_64 = "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"
_INTEGERS = "INT32 INT16 INT8 UINT32 UINT16 UINT8"

# Operator -> since level -> (dimension counts, data types) of the varying tensor.
_TABLES: dict[str, dict[str, tuple[range, str]]] = {
    "diagonal_matrix": {
        "5_1": (range(2, 5), _ALL),
        "4_0": (range(2, 5), _NO_64),
        "2_1": (range(4, 5), _NO_64),
        "2_0": (range(4, 5), "FLOAT32 FLOAT16"),
    },
    "diagonal_matrix1": {"5_1": (range(2, 5), _ALL)},
    "activation_identity": {
        "3_0": (range(1, 9), "FLOAT32 FLOAT16"),
        "2_0": (range(4, 6), "FLOAT32 FLOAT16"),
        "1_0": (range(4, 5), "FLOAT32 FLOAT16"),
    },
    "matrix_multiply_integer_to_float": {"6_2": (range(2, 5), _INTEGERS)},
    # Unions of a page's table and the feature level history.
    "activation_shrink": {
        "3_0": (range(1, 9), _NO_64),
        "2_1": (range(4, 6), _NO_64),
        "2_0": (range(4, 6), "FLOAT32 FLOAT16"),
    },
    "constant_pow": {
        "3_0": (range(1, 9), _NO_64),
        "1_0": (range(4, 5), "FLOAT32 FLOAT16"),
    },
    "adam_optimizer": {
        "4_0": (range(1, 9), "FLOAT32 FLOAT16"),
        "3_0": (range(4, 5), "FLOAT32 FLOAT16"),
    },
    "if_": {
        "5_0": (range(1, 9), _ALL),
        "3_0": (range(1, 9), _NO_64),
        "2_1": (range(4, 5), "FLOAT16 " + _INTEGERS),
        "2_0": (range(4, 5), "FLOAT16"),
    },
    "cast": {
        "4_1": (range(1, 9), _ALL),
        "3_1": (range(1, 9), _ALL.removeprefix("FLOAT64 ")),
        "3_0": (range(4, 5), _ALL.removeprefix("FLOAT64 ")),
        "1_0": (range(4, 5), _NO_64),
    },
    # Scalar unions have the output's type at every level.
    "clip1": {"5_0": (range(1, 9), _ALL.removeprefix("FLOAT64 "))},
    "fill_value_constant": {
        "4_1": (range(1, 9), _ALL),
        "4_0": (range(1, 9), _NO_64),
        "2_1": (range(4, 5), _NO_64),
    },
    "fill_value_sequence": {
        "5_0": (range(1, 9), _ALL.removeprefix("FLOAT64 ")),
        "4_0": (range(1, 9), _NO_64),
        "2_1": (range(4, 5), _NO_64),
    },
}


def _same(name: str) -> Callable[..., OperatorDesc]:
    """Makes a description whose tensors are all equal."""

    def make(t: dml.TensorDesc, **attributes: Any) -> OperatorDesc:
        fields = definitions()["DML_OPERATOR_" + name].spec.tensors
        tensors = {f.snake: t for f in fields}
        if name == "ADAM_OPTIMIZER":
            tensors["training_step_tensor"] = t.replace(data_type=dml.DataType.UINT32)
        if name == "ELEMENT_WISE_IF":
            tensors["condition_tensor"] = t.replace(data_type=dml.DataType.UINT8)
        return definitions()["DML_OPERATOR_" + name].desc_class(**tensors, **attributes)

    return make


def _one(data_type: dml.DataType) -> Scalar:
    return Scalar.of(1, data_type)


def _itself(data_type: dml.DataType) -> dml.DataType:
    return data_type


_MORE: dict[str, tuple[Callable[..., OperatorDesc], dict[str, Any]]] = {
    "activation_shrink": (_same("ACTIVATION_SHRINK"), {"bias": 0.5, "threshold": 1.5}),
    "constant_pow": (_same("ELEMENT_WISE_CONSTANT_POW"), {"exponent": 0.5}),
    "adam_optimizer": (_same("ADAM_OPTIMIZER"),
                       {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.9, "epsilon": 1e-8}),
    "if_": (_same("ELEMENT_WISE_IF"), {}),
    "cast": (_same("CAST"), {}),
    "clip1": (_same("ELEMENT_WISE_CLIP1"),
              {"min_max_data_type": _itself, "min": _one, "max": _one}),
    "fill_value_constant": (_same("FILL_VALUE_CONSTANT"),
                            {"value_data_type": _itself, "value": _one}),
    "fill_value_sequence": (_same("FILL_VALUE_SEQUENCE"),
                            {"value_data_type": _itself, "value_start": _one,
                             "value_delta": _one}),
}


def _desc(operator: str, data_type: dml.DataType, dimensions: int) -> OperatorDesc:
    t = dml.TensorDesc(data_type, [1] * dimensions)
    if operator == "diagonal_matrix":
        return dml.DiagonalMatrixOperatorDesc(output_tensor=t, offset=0, value=1.0)
    if operator == "diagonal_matrix1":
        return dml.DiagonalMatrix1OperatorDesc(
            output_tensor=t, value_data_type=data_type, value=Scalar(data_type, 0),
            diagonal_fill_begin=0, diagonal_fill_end=1,
        )
    if operator == "activation_identity":
        return dml.ActivationIdentityOperatorDesc(input_tensor=t, output_tensor=t)
    if operator in _MORE:
        make, attributes = _MORE[operator]
        return make(t, **{k: v(data_type) if callable(v) else v for k, v in attributes.items()})
    scale = dml.TensorDesc("float32", [1])
    return dml.MatrixMultiplyIntegerToFloatOperatorDesc(
        a_tensor=t, a_scale_tensor=scale, b_tensor=t, b_scale_tensor=scale,
        output_tensor=dml.TensorDesc("float32", [1] * dimensions),
    )


def _level(text: str) -> dml.FeatureLevel:
    return dml.FeatureLevel["FL_" + text]


def _brings(operator: str, data_type: dml.DataType, dimensions: int) -> Iterator[dml.FeatureLevel]:
    """The levels whose table allows both."""
    for since, (counts, names) in _TABLES[operator].items():
        if dimensions in counts and data_type.name in names.split():
            yield _level(since)


@pytest.mark.parametrize("level", dml.FeatureLevel, ids=str)
@pytest.mark.parametrize("operator", _TABLES)
def test_table(operator: str, level: dml.FeatureLevel) -> None:
    types = [t for t in dml.DataType if t.bits >= 8]
    for data_type, dimensions in itertools.product(types, range(1, 9)):
        desc = _desc(operator, data_type, dimensions)
        validate = partial(desc.operator.validate, desc, level, False)
        since = min(_brings(operator, data_type, dimensions), default=None)
        if since is not None and since <= level:
            validate()
        elif since is not None:
            with pytest.raises(dml.UnsupportedError) as refused:
                validate()
            # If two things are missing, the message may name one that an earlier level brings.
            named = [f for f in dml.FeatureLevel if f"level {f}" in str(refused.value)]
            assert any(level < f <= since for f in named), str(refused.value)
            assert str(level) in str(refused.value)
        else:
            with pytest.raises(dml.DmlError):
                validate()


def _takes(desc: OperatorDesc, level: dml.FeatureLevel) -> bool:
    """Whether the specification allows a description with consistent tensors."""
    table = desc.operator.spec.support_at(level)
    if table is None or any(since > level for since, *_ in desc.operator.newer(desc)):
        return False
    for field in desc.operator.spec.tensors:
        tensor, support = getattr(desc, field.snake), table[field.name]
        low, high = support.dimension_counts
        if tensor is not None and not (
            tensor.data_type in support.data_types and low <= tensor.dimension_count <= high
        ):
            return False
    return True


_ONE_SIZE = {c.operator: c for c in CASES if c.name == "line" and len({*c.sizes.values()}) == 1}


@pytest.mark.parametrize("operator", _ONE_SIZE)
def test_every_type_at_every_level(operator: str) -> None:
    case = _ONE_SIZE[operator]
    seen = set()
    for types, rank in itertools.product(case.all_types(), (1, 4, 5, 8)):
        tensors = {n: dml.TensorDesc(types[n], [1] * rank) for n in case.sizes}
        desc = case.definition.desc_class(**tensors, **case.attributes_for(types))
        for level in dml.FeatureLevel:
            seen.add(takes := _takes(desc, level))
            if takes:
                desc.operator.validate(desc, level, False)
            else:
                with pytest.raises(dml.UnsupportedError):
                    desc.operator.validate(desc, level, False)
    assert True in seen


def test_a_device_of_a_lower_level() -> None:
    device = dml.Device(feature_level=dml.FeatureLevel.FL_4_0)
    refusals = {
        r"DIAGONAL_MATRIX: .*UINT64, which feature level 5_1 brings":
            _desc("diagonal_matrix", dml.DataType.UINT64, 2),
        r"DIAGONAL_MATRIX1: needs feature level 5_1.* 4_0":
            _desc("diagonal_matrix1", dml.DataType.FLOAT32, 2),
        r"INTEGER_TO_FLOAT: needs feature level 6_2.* 4_0":
            _desc("matrix_multiply_integer_to_float", dml.DataType.INT8, 2),
    }
    for message, desc in refusals.items():
        with pytest.raises(dml.UnsupportedError, match=message):
            device.create_operator(desc)
    result = dml.diagonal_matrix((2, 2), data_type="uint32", out=device.empty((2, 2), "uint32"))
    assert result.numpy().tolist() == [[1, 0], [0, 1]]
    with pytest.raises(dml.UnsupportedError, match="5_1"):
        dml.diagonal_matrix((2, 2), data_type="int64", out=device.empty((2, 2), "int64"))
    device.close()


def test_a_tensor_that_only_a_higher_level_takes() -> None:
    desc = _desc("activation_identity", dml.DataType.FLOAT32, 5)
    with pytest.raises(dml.UnsupportedError, match=r"DimensionCount to be 4 .*1_0.* 5, .*2_0"):
        desc.operator.validate(desc, dml.FeatureLevel.FL_1_0, False)


def _tensors(*names: str, **types: str) -> dict[str, dml.TensorDesc]:
    return {n: dml.TensorDesc(types.get(n, "float32"), [1, 1, 1, 1]) for n in names}


_IN_OUT = _tensors("input_tensor", "output_tensor")
_SUM = _tensors("a_tensor", "b_tensor", "output_tensor")
_CHOICES = {
    "softplus": ("6_4", "Steepness to be at least 1 .* got 0.5",
                 lambda: dml.ActivationSoftplusOperatorDesc(**_IN_OUT, steepness=0.5)),
    "softplus-fused": ("6_4", "FusedActivation.Steepness to be at least 1 .* got 0.5",
                       lambda: dml.ElementWiseAdd1OperatorDesc(
                           **_SUM, fused_activation=dml.ActivationSoftplusOperatorDesc(
                               steepness=0.5))),
    "gelu-fused": ("5_1", "FusedActivation to be .* got DML_OPERATOR_ACTIVATION_GELU",
                   lambda: dml.ElementWiseAdd1OperatorDesc(
                       **_SUM, fused_activation=dml.ActivationGeluOperatorDesc())),
    "exponents-type": ("3_0", "ExponentTensor.DataType to equal InputTensor.DataType .* FLOAT16",
                       lambda: dml.ElementWisePowOperatorDesc(
                           **_tensors("input_tensor", "exponent_tensor", "output_tensor",
                                      exponent_tensor="float16"))),
    "quantize-without-zero-point": (
        "6_2", "ZeroPointTensor to be given .* got None",
        lambda: dml.ElementWiseQuantizeLinearOperatorDesc(
            **_tensors("input_tensor", "scale_tensor", "output_tensor", output_tensor="uint8"))),
    "dequantize-without-zero-point": (
        "6_2", "ZeroPointTensor to be given .* got None",
        lambda: dml.ElementWiseDequantizeLinearOperatorDesc(
            **_tensors("input_tensor", "scale_tensor", "output_tensor", input_tensor="uint8"))),
}


@pytest.mark.parametrize("choice", _CHOICES)
def test_choices_that_only_a_higher_level_takes(choice: str) -> None:
    since, words, make = _CHOICES[choice]
    desc = make()
    for level in dml.FeatureLevel:
        if level >= _level(since):
            desc.operator.validate(desc, level, False)
        elif level >= desc.operator.spec.introduced:
            with pytest.raises(dml.UnsupportedError, match=f"{words}.*level {since} brings"):
                desc.operator.validate(desc, level, False)


@pytest.mark.parametrize("level", dml.FeatureLevel, ids=str)
def test_fused_activations_are_no_newer_than_the_device(level: dml.FeatureLevel) -> None:
    for name in (n for n, d in definitions().items() if d.spec.fusable):
        definition = definitions()[name]
        attributes = {f.snake: 1.0 for f in definition.spec.fields if not f.is_tensor}
        desc = dml.ElementWiseAdd1OperatorDesc(
            **_SUM, fused_activation=definition.desc_class(**attributes))
        if level >= max(definition.spec.introduced, dml.FeatureLevel.FL_2_0):
            desc.operator.validate(desc, level, False)
        else:
            with pytest.raises(dml.UnsupportedError):
                desc.operator.validate(desc, level, False)


@pytest.mark.parametrize("operator", ["clip1", "fill_value_constant", "fill_value_sequence"])
def test_a_scalar_union_has_the_outputs_type(operator: str) -> None:
    for data_type, other in itertools.permutations(map(dml.DataType.of, ("int8", "uint32")), 2):
        make, attributes = _MORE[operator]
        for wrong in ({k: other for k, v in attributes.items() if v is _itself},
                      {k: _one(other) for k, v in attributes.items() if v is _one}):
            given = {k: v(data_type) for k, v in attributes.items()} | wrong
            desc = make(dml.TensorDesc(data_type, [1, 1, 1, 1]), **given)
            with pytest.raises(dml.ValidationError, match=f"{data_type}"):
                desc.operator.validate(desc, dml.FeatureLevel.FL_6_4, False)


def test_levels_have_directml_values() -> None:
    assert dml.FeatureLevel.FL_1_0 == 0x1000
    assert dml.FeatureLevel.FL_6_4 == 0x6400
    assert max(dml.FeatureLevel) == dml.FeatureLevel.FL_6_4
    assert str(dml.FeatureLevel.FL_5_1) == "5_1"
