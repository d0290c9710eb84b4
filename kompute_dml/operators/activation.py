"""Activations: one that only copies, and a table of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..layout import coalesce, is_packed, product
from .base import define, function
from .call import as_tensor, device_of, output, run
from .plan import Dispatch, Plan, Target, reads, writes

if TYPE_CHECKING:
    from ..tensor import Tensor

_LOCAL_SIZE = 256


def _lower_identity(desc: Any, target: Target) -> Plan:
    x, y = desc.input_tensor, desc.output_tensor
    sizes, (in_strides, out_strides) = coalesce(x.sizes, x.strides, y.strides)
    dense = is_packed(sizes, in_strides) and is_packed(sizes, out_strides)
    count = product(sizes)
    # A dense invocation moves 16 bytes, and the ends may lie inside two more.
    work = count * x.data_type.itemsize // 16 + 2 if dense else count
    source = reads("input_tensor", x, "in_offset")
    result = writes("output_tensor", y, "out_offset")
    return Plan(
        execute=(
            Dispatch(
                variant=target.library.get("activation_identity", x.data_type.width),
                groups=-(-work // _LOCAL_SIZE),
                operands=(source, source, result, result),
                push=dict(
                    count=count,
                    rank=len(sizes),
                    sizes=sizes,
                    in_strides=in_strides,
                    out_strides=out_strides,
                ),
                spec=dict(LOCAL_SIZE=_LOCAL_SIZE, DENSE=dense),
            ),
        ),
        nothing_in_place=True,
    )


ActivationIdentityOperatorDesc = define(
    "ACTIVATION_IDENTITY", _lower_identity, shaders=("activation_identity",)
)


@function
def activation_identity(x: Any, *, out: Tensor | None = None) -> Tensor:
    """Copy every element: ``f(x) = x``, bit for bit (DML_ACTIVATION_IDENTITY_OPERATOR_DESC).

    ``x`` is FLOAT32 or FLOAT16 of 1 to 8 dimensions with any strides, or an array. ``out`` has the
    sizes and type of ``x``; it may be ``x`` itself. Returns ``out`` or a new packed tensor.
    Raises ValidationError or UnsupportedError.
    """
    device = device_of(x, out)
    x = as_tensor(device, x)
    name = "activation_identity"
    y = output(device, out, name, x.sizes, x.data_type)
    run(ActivationIdentityOperatorDesc, device, {"input_tensor": x, "output_tensor": y})
    return y
