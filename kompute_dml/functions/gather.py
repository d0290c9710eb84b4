"""Functions of operators with indices whose arguments differ from the structure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import whole
from ..operators.base import axis_in
from ..operators.gather import OneHotOperatorDesc
from .call import as_tensor, device_of, output, run
from .registry import function

if TYPE_CHECKING:
    from ..tensors import Tensor
    from ..tensors.types import TensorLike


@function
def one_hot(
    indices: TensorLike, values: object, *, depth: int | None = None, axis: int = -1,
    out: Tensor | None = None,
) -> Tensor:
    """``out = values[1] where an index points along axis, else values[0]``
    (DML_ONE_HOT_OPERATOR_DESC).

    ``indices`` has size 1 on ``axis`` and the output's sizes elsewhere; INT64 INT32 UINT64 UINT32.
    ``values`` has as many dimensions and at least two elements, of any data type. ``depth`` is the
    output's size on ``axis``, by default that of ``out``. A negative index counts from the end. An
    index outside the axis gives ``values[0]`` alone. Tensors or arrays of 1 to 8 dimensions, any
    strides. Returns ``out`` or a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    name = "one_hot"
    device = device_of(indices, values, out)
    indices = as_tensor(device, name, "indices", indices)
    values = as_tensor(device, name, "values", values)
    at = whole(name, "axis", axis)
    at = axis_in(name, at + indices.ndim if at < 0 else at, indices.desc, "axis", "indices")
    if depth is None and out is not None:
        sizes = out.sizes
    else:
        sizes = (*indices.sizes[:at], whole(name, "depth", depth), *indices.sizes[at + 1:])
    y = output(device, out, name, sizes, values.data_type)
    run(OneHotOperatorDesc, device,
        {"indices_tensor": indices, "values_tensor": values, "output_tensor": y}, axis=at)
    return y
