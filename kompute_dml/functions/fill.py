"""Functions of operators that generate their output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..dtypes import DataType, Scalar
from ..errors import expect, integers
from ..operators.elementwise import scalar
from ..operators.fill import DiagonalMatrix1OperatorDesc, DiagonalMatrixOperatorDesc
from ..operators.fill_value import FillValueConstantOperatorDesc, FillValueSequenceOperatorDesc
from .call import as_tensor, device_of, output, run
from .registry import function

if TYPE_CHECKING:
    from ..tensors import Tensor
    from ..tensors.types import DataTypeLike, TensorLike


@function
def diagonal_matrix(
    sizes: Sequence[int],
    *,
    offset: int = 0,
    value: float = 1.0,
    data_type: DataTypeLike = "float32",
    out: Tensor | None = None,
) -> Tensor:
    """``out[..., y, x] = value if y + offset == x else 0`` (DML_DIAGONAL_MATRIX_OPERATOR_DESC).

    ``sizes`` has 2 to 4 entries, the last two height and width, the others batches. ``value`` is
    a FLOAT: rounded to FLOAT32; for integer types truncated toward zero and saturated, NaN as 0.
    All eleven data types. Returns ``out`` or a new packed tensor. Raises ValidationError or
    UnsupportedError.
    """
    name, device = "diagonal_matrix", device_of(out)
    y = output(device, out, name, integers(name, "sizes", sizes), DataType.of(data_type))
    run(
        DiagonalMatrixOperatorDesc, device, {"output_tensor": y},
        offset=offset, value=value,
    )
    return y


@function
def diagonal_matrix1(
    input: TensorLike | None = None,
    *,
    sizes: Sequence[int] | None = None,
    value: object,
    diagonal_fill_begin: int,
    diagonal_fill_end: int,
    data_type: DataTypeLike | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Fill diagonals ``begin <= x - y < end`` with ``value`` (DML_DIAGONAL_MATRIX1_OPERATOR_DESC).

    Elsewhere ``input`` is kept, or 0 without it. ``begin > end`` fills the outside of
    ``[end, begin)`` instead, and ``begin == end`` nothing. ``input`` has 2 to 4 dimensions and any
    strides; without it give ``sizes`` and ``data_type`` (FLOAT32 by default). ``value`` is taken
    bit for bit: a number that the type can hold, a NumPy scalar, or raw bytes. ``out`` may be
    ``input``. Returns ``out`` or a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    name = "diagonal_matrix1"
    device = device_of(input, out)
    if input is None:
        expect(sizes is not None or out is not None, name, "sizes", "be given without input", None)
        shape = (out.sizes if sizes is None  # type: ignore[union-attr]
                 else integers(name, "sizes", sizes))
        kind = DataType.of(data_type or (out.data_type if out is not None else "float32"))
    else:
        input = as_tensor(device, name, "input", input, data_type)
        shape, kind = input.sizes, input.data_type
        expect(sizes is None or integers(name, "sizes", sizes) == shape, name, "sizes",
               f"be {list(shape)}", sizes)
        expect(data_type is None or DataType.of(data_type) is kind, name, "data_type",
               f"be {kind}", data_type)
    y = output(device, out, name, shape, kind)
    run(
        DiagonalMatrix1OperatorDesc, device, {"input_tensor": input, "output_tensor": y},
        value_data_type=kind, value=Scalar.of(value, kind),
        diagonal_fill_begin=diagonal_fill_begin, diagonal_fill_end=diagonal_fill_end,
    )
    return y


@function
def fill_value_constant(
    sizes: Sequence[int], *, value: object, data_type: DataTypeLike = "float32",
    out: Tensor | None = None
) -> Tensor:
    """Every element is ``value`` (DML_FILL_VALUE_CONSTANT_OPERATOR_DESC).

    ``value`` is taken bit for bit: a number that the type can hold, a NumPy scalar, or raw bytes.
    All eleven data types, 1 to 8 dimensions. Returns ``out`` or a new packed tensor. Raises
    ValidationError or UnsupportedError.
    """
    name, device = "fill_value_constant", device_of(out)
    y = output(device, out, name, integers(name, "sizes", sizes), DataType.of(data_type))
    run(FillValueConstantOperatorDesc, device, {"output_tensor": y},
        value_data_type=y.data_type, value=scalar(name, "value", value, y.data_type))
    return y


@function
def fill_value_sequence(
    sizes: Sequence[int], *, value_start: object, value_delta: object,
    data_type: DataTypeLike = "float32", out: Tensor | None = None
) -> Tensor:
    """Element k is ``start + k * delta`` (DML_FILL_VALUE_SEQUENCE_OPERATOR_DESC).

    Elements count in row-major order. Integers wrap; floats are computed in float32, where each
    step is rounded. All data types but FLOAT64, 1 to 8 dimensions. Returns ``out`` or a new packed
    tensor. Raises ValidationError or UnsupportedError.
    """
    name, device = "fill_value_sequence", device_of(out)
    y = output(device, out, name, integers(name, "sizes", sizes), DataType.of(data_type))
    run(FillValueSequenceOperatorDesc, device, {"output_tensor": y}, value_data_type=y.data_type,
        value_start=scalar(name, "value_start", value_start, y.data_type),
        value_delta=scalar(name, "value_delta", value_delta, y.data_type))
    return y
