"""Operators that generate their output: the diagonal matrices."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

from ..desc import TensorDesc
from ..dtypes import Scalar, saturate
from ..errors import UnsupportedError, ValidationError, expect
from ..layout import are_of_vectors, pad_left, power_of_two
from ..lowering.plan import UNUSED, Dispatch, Plan, Target, reads, writes
from .base import define
from .fill_value import filled

if TYPE_CHECKING:
    pass

_EACH = 2
"""Vectors that an invocation makes."""
_ELEMENTS, _LINES, _DENSE = 0, 1, 2
_WORTH_TWICE = 1 << 18
"""Bytes from which on they make zeros, and then a diagonal, sooner than both at once."""


def _lower(
    target: Target, x: TensorDesc | None, y: TensorDesc, value: Scalar, begin: int, end: int
) -> Plan:
    sizes = pad_left(y.sizes, 4, 1)
    in_strides = pad_left(x.strides if x else (), 4, 0)
    out_strides = pad_left(y.strides, 4, 0)
    if out_strides[3] != 1 and out_strides[2] == 1:
        # Walk the transposed matrix, whose rows lie gapless.
        sizes, in_strides, out_strides = (
            (*v[:2], v[3], v[2]) for v in (sizes, in_strides, out_strides))
        begin, end = 1 - end, 1 - begin
    height, width = sizes[2:]
    if height + width > 1 << 31:
        raise UnsupportedError(
            f"a diagonal matrix of {height} rows and {width} columns: more than 2^31 together are "
            "not served (distances from the diagonal are computed in 32 bits)")
    nbytes = y.element_count * y.data_type.itemsize
    if (x is None and end - begin == 1 and nbytes >= _WORTH_TWICE
            and target.traits.masks_all):
        return _zeros_and_diagonal(
            target, y.replace(sizes=sizes, strides=out_strides), value, begin)
    # Columns are counted from `height` up, so that column - row stays positive; bounds beyond
    # the matrix mean what the nearest one inside means.
    first, last = (min(max(b + height, 0), height + width) for b in (begin, end))
    each = 16 // y.data_type.itemsize
    count = y.element_count
    lanes, per_line = 1, -(-width // each)
    local_size = target.traits.local_size
    walked = (out_strides, in_strides) if x else (out_strides,)
    aligned = y.is_aligned and (x is None or x.is_aligned)
    even = aligned and are_of_vectors(each, width, *walked)
    if y.is_packed and (x is None or x.is_packed) and width % each:
        # Rows begin anywhere: what a vector holds may go over into the next row.
        path, groups = _DENSE, -(-(count // each + 2) // (_EACH * local_size))
    elif out_strides[3] == 1:
        path, lanes = _LINES, min(power_of_two(-(-per_line // _EACH)), local_size)
        groups = -(-count // width * lanes // local_size) * -(-per_line // (_EACH * lanes))
    else:
        path, groups = _ELEMENTS, -(-count // local_size)
    return Plan(
        execute=(
            Dispatch(
                variant=target.library.get("diagonal_matrix1", y.data_type.width),
                groups=groups,
                operands=(
                    UNUSED if x is None else reads("input_tensor", x, "in_offset"),
                    writes("output_tensor", y, "out_offset"),
                ),
                push=dict(
                    count=count,
                    fill_begin=first,
                    fill_end=last,
                    value=value.words,
                    sizes=sizes,
                    in_strides=in_strides,
                    out_strides=out_strides,
                ),
                spec=dict(
                    LOCAL_SIZE=local_size,
                    PATH=path,
                    HAS_INPUT=x is not None,
                    INVERT=end < begin,
                    LANES=lanes,
                    EVEN=even,
                    ONE_MATRIX=sizes[:2] == (1, 1),
                    # A division less, which takes its time on a CPU.
                    ONE_PART=target.traits.is_cpu and per_line <= _EACH * lanes,
                ),
            ),
        )
    )


def _zeros_and_diagonal(target: Target, y: TensorDesc, value: Scalar, offset: int) -> Plan:
    dispatches = filled(y, target, saturate(0, y.data_type)).execute
    row, column = max(-offset, 0), max(offset, 0)
    length = min(y.sizes[-2] - row, y.sizes[-1] - column)
    if length > 0:
        *outer, down, right = y.strides
        diagonal = y.replace(sizes=(*y.sizes[:-2], length), strides=(*outer, down + right))
        dispatches += filled(diagonal, target, value, row * down + column * right).execute
    return Plan(dispatches)


def _lower_diagonal_matrix(desc: Any, target: Target) -> Plan:
    y = desc.output_tensor
    value = saturate(desc.value, y.data_type)
    offset = index(desc.offset)
    return _lower(target, None, y, value, offset, offset + 1)


def _lower_diagonal_matrix1(desc: Any, target: Target) -> Plan:
    value = Scalar.of(desc.value, desc.value_data_type)
    return _lower(
        target, desc.input_tensor, desc.output_tensor, value,
        index(desc.diagonal_fill_begin), index(desc.diagonal_fill_end),
    )


def _check_diagonal_matrix1(desc: Any, strict: bool) -> None:
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


DiagonalMatrixOperatorDesc = define(
    "DIAGONAL_MATRIX", _lower_diagonal_matrix, shaders=("diagonal_matrix1", "fill_value")
)
DiagonalMatrix1OperatorDesc = define(
    "DIAGONAL_MATRIX1",
    _lower_diagonal_matrix1,
    shaders=("diagonal_matrix1", "fill_value"),
    check=_check_diagonal_matrix1,
    in_place=True,
)
