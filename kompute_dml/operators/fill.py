"""Operators that generate their output: the diagonal matrices."""

from __future__ import annotations

from operator import index
from typing import Any

from ..desc import TensorDesc
from ..dtypes import Scalar, saturate
from ..errors import UnsupportedError, ValidationError, expect
from ..layout import are_of_vectors, pad_left, power_of_two
from ..lowering import measured
from ..lowering.builder import PlanBuilder
from ..lowering.plan import UNUSED
from .base import OperatorDesc, operator
from .fill_value import fill

_EACH = 2
"""Vectors that an invocation writes."""
_ELEMENTS, _ROWS, _DENSE = 0, 1, 2


def _lower(
    p: PlanBuilder, x: TensorDesc | None, y: TensorDesc, value: Scalar, begin: int, end: int
) -> None:
    sizes = pad_left(y.sizes, 4, 1)
    in_strides = pad_left(x.strides if x else (), 4, 0)
    out_strides = pad_left(y.strides, 4, 0)
    if out_strides[3] != 1 and out_strides[2] == 1:
        # Walk the transposed matrix, whose rows are contiguous.
        sizes, in_strides, out_strides = (
            (*v[:2], v[3], v[2]) for v in (sizes, in_strides, out_strides))
        begin, end = 1 - end, 1 - begin
    height, width = sizes[2:]
    if height + width > 1 << 31:
        raise UnsupportedError(
            f"a diagonal matrix of {height} rows and {width} columns: more than 2^31 together are "
            "not supported (distances from the diagonal are computed in 32 bits)")
    nbytes = y.element_count * y.data_type.itemsize
    # Where both sides of a branch are executed, separate dispatches are faster for many bytes.
    if (x is None and end - begin == 1 and p.device.masks_all
            and nbytes >= measured.figure(p.device, "diagonal_matrix1", "worth_twice")):
        _zeros_and_diagonal(p, y.replace(sizes=sizes, strides=out_strides), value, begin)
        return
    # Columns count from `height` up, so that column - row is positive. Bounds are clamped to the
    # matrix.
    first, last = (min(max(b + height, 0), height + width) for b in (begin, end))
    each = 16 // y.data_type.itemsize
    count = y.element_count
    lanes, per_row = 1, -(-width // each)
    local_size = p.device.local_size
    walked = (out_strides, in_strides) if x else (out_strides,)
    aligned = y.is_aligned and (x is None or x.is_aligned)
    even = aligned and are_of_vectors(each, width, *walked)
    if y.is_packed and (x is None or x.is_packed) and width % each:
        # Rows are not aligned, so a vector may hold elements of two rows.
        path, groups = _DENSE, -(-(count // each + 2) // (_EACH * local_size))
    elif out_strides[3] == 1:
        path, lanes = _ROWS, min(power_of_two(-(-per_row // _EACH)), local_size)
        groups = -(-count // width * lanes // local_size) * -(-per_row // (_EACH * lanes))
    else:
        path, groups = _ELEMENTS, -(-count // local_size)
    operands: dict[str, Any] = {
        "in": UNUSED if x is None else p.read("input_tensor"), "out": p.write("output_tensor")}
    p.dispatch(
        f"diagonal_matrix1.{y.data_type.width}",
        groups,
        **operands,
        push=dict(
            count=count,
            fill_begin=first,
            fill_end=last,
            value=value.words,
            sizes=sizes,
            in_strides=in_strides,
            out_strides=out_strides,
            lanes=lanes,
        ),
        spec=dict(
            LOCAL_SIZE=local_size,
            PATH=path,
            HAS_INPUT=x is not None,
            INVERT=end < begin,
            EVEN=even,
            ONE_MATRIX=sizes[:2] == (1, 1),
            # Divisions are slow on a CPU.
            ONE_PART=p.device.is_cpu and per_row <= _EACH * lanes,
        ),
    )


def _zeros_and_diagonal(p: PlanBuilder, y: TensorDesc, value: Scalar, offset: int) -> None:
    fill(p, "output_tensor", y, saturate(0, y.data_type))
    row, column = max(-offset, 0), max(offset, 0)
    length = min(y.sizes[-2] - row, y.sizes[-1] - column)
    if length > 0:
        *outer, down, right = y.strides
        diagonal = y.replace(sizes=(*y.sizes[:-2], length), strides=(*outer, down + right))
        fill(p, "output_tensor", diagonal, value, row * down + column * right)


@operator("DIAGONAL_MATRIX", shaders=("diagonal_matrix1", "fill_value"))
def DiagonalMatrixOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    y, offset = d.output_tensor, index(d.offset)
    _lower(p, None, y, saturate(d.value, y.data_type), offset, offset + 1)


def _check_diagonal_matrix1(desc: OperatorDesc, strict: bool) -> None:
    name = "DML_OPERATOR_DIAGONAL_MATRIX1"
    y = desc.output_tensor
    expect(
        desc.value_data_type is y.data_type, name, "ValueDataType",
        "equal OutputTensor.DataType", desc.value_data_type, y.data_type,
    )
    try:
        Scalar.of(desc.value, desc.value_data_type)
    except ValidationError as error:
        raise ValidationError(f"{name}: {error}") from None
    if desc.input_tensor is not None:
        expect(
            desc.input_tensor.sizes == y.sizes, name, "InputTensor.Sizes",
            "equal OutputTensor.Sizes", list(desc.input_tensor.sizes), list(y.sizes),
        )


@operator("DIAGONAL_MATRIX1", shaders=("diagonal_matrix1", "fill_value"),
          check=_check_diagonal_matrix1, in_place=True)
def DiagonalMatrix1OperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _lower(p, d.input_tensor, d.output_tensor, Scalar.of(d.value, d.value_data_type),
           index(d.diagonal_fill_begin), index(d.diagonal_fill_end))
