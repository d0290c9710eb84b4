"""Diagonals of matrices."""

from __future__ import annotations

from ...errors import ValidationError
from ...graph.array import Array, device_type
from ...graph.builder import Builder, scalar
from ...layout import packed_strides, product
from ..graph import DTYPES, OnnxNode
from ..lowerings import Inputs, given, host
from ..row import MICROSOFT, Mapping

_MAX_RANK = 4
"""Dimensions that DirectML's products and diagonals take."""
_INT32 = (-(2**31), 2**31 - 1)


def eye_like(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    if len(x.shape) != 2:
        raise ValidationError(f"expected a matrix, but got {list(x.shape)}")
    number = node.attributes.get("dtype")
    y = builder.new(x.shape, x.dtype if number is None else DTYPES[number])
    if y.storage is not None:
        k = min(max(node.attributes.get("k", 0), _INT32[0]), _INT32[1])
        builder.emit("DIAGONAL_MATRIX", {"output_tensor": (y, y.shape, y.strides)},
                     offset=k, value=1.0)
    return [y]


def trilu(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    if len(x.shape) < 2:
        raise ValidationError(f"expected at least 2 dimensions, but got {list(x.shape)}")
    number = host(inputs, 1)
    k = 0 if number is None else int(number.reshape(-1)[0])
    y = builder.new(x.shape, x.dtype)
    if y.storage is None:
        return [y]
    if len(x.shape) > _MAX_RANK:
        x = builder.reshape(x, (product(x.shape[:-2]), *x.shape[-2:]))
    upper = node.attributes.get("upper", 1)
    begin, end = (_INT32[0], k) if upper else (k + 1, _INT32[1])
    begin, end = (min(max(bound, _INT32[0]), _INT32[1]) for bound in (begin, end))
    builder.emit(
        "DIAGONAL_MATRIX1",
        {"input_tensor": (x, x.shape, x.strides),
         "output_tensor": (y, x.shape, packed_strides(x.shape))},
        value_data_type=device_type(x.dtype), value=scalar(0, x.dtype),
        diagonal_fill_begin=begin, diagonal_fill_end=end,
    )
    return [y]


ROWS: tuple[Mapping, ...] = (
    Mapping("EyeLike", (9, 22), "DIAGONAL_MATRIX", eye_like, fields=(None,),
        attributes=("dtype", "k")),
    Mapping("Trilu", (14,), "DIAGONAL_MATRIX1", trilu, attributes=("upper",), host=(1,)),
    Mapping("Trilu", (1,), "DIAGONAL_MATRIX1", trilu, MICROSOFT, attributes=("upper",),
            host=(1,)),
)
