"""What each feature level allows: the tables of DirectML's pages, typed in, against every check."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import pytest

import kompute_dml as dml
from kompute_dml.dtypes import Scalar
from kompute_dml.operators.base import OperatorDesc

_ALL = "FLOAT64 FLOAT32 FLOAT16 INT64 INT32 INT16 INT8 UINT64 UINT32 UINT16 UINT8"
_NO_64 = "FLOAT32 FLOAT16 INT32 INT16 INT8 UINT32 UINT16 UINT8"
_INTEGERS = "INT32 INT16 INT8 UINT32 UINT16 UINT8"

# Operator -> since level -> (dimension counts, data types) of the tensor that varies.
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
    scale = dml.TensorDesc("float32", [1])
    return dml.MatrixMultiplyIntegerToFloatOperatorDesc(
        a_tensor=t, a_scale_tensor=scale, b_tensor=t, b_scale_tensor=scale,
        output_tensor=dml.TensorDesc("float32", [1] * dimensions),
    )


def _level(text: str) -> dml.FeatureLevel:
    return dml.FeatureLevel["FL_" + text]


def _brings(operator: str, data_type: dml.DataType, dimensions: int) -> Iterator[dml.FeatureLevel]:
    """The levels whose table takes both."""
    for since, (counts, names) in _TABLES[operator].items():
        if dimensions in counts and data_type.name in names.split():
            yield _level(since)


@pytest.mark.parametrize("level", dml.FeatureLevel, ids=str)
@pytest.mark.parametrize("operator", _TABLES)
def test_table(operator: str, level: dml.FeatureLevel) -> None:
    for data_type, dimensions in itertools.product(dml.DataType, range(1, 9)):
        desc = _desc(operator, data_type, dimensions)
        validate = partial(desc.operator.validate, desc, level, False)
        since = min(_brings(operator, data_type, dimensions), default=None)
        if since is not None and since <= level:
            validate()
        elif since is not None:
            with pytest.raises(dml.UnsupportedError) as refused:
                validate()
            # Where two things are missing, the first one that is found may come earlier.
            named = [f for f in dml.FeatureLevel if f"level {f}" in str(refused.value)]
            assert any(level < f <= since for f in named), str(refused.value)
            assert str(level) in str(refused.value)
        else:
            with pytest.raises(dml.DmlError):
                validate()


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


def test_levels_have_directml_values() -> None:
    assert dml.FeatureLevel.FL_1_0 == 0x1000
    assert dml.FeatureLevel.FL_6_4 == 0x6400
    assert max(dml.FeatureLevel) == dml.FeatureLevel.FL_6_4
    assert str(dml.FeatureLevel.FL_5_1) == "5_1"
