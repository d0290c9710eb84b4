"""Softmax and its kin: each row of the reduced axes is normalized."""

from __future__ import annotations

from typing import Any

from ..lowering.builder import PlanBuilder
from ..lowering.walk import split_dimensions
from .base import axes_in, like, operator


def _check(desc: Any, strict: bool) -> None:
    axes_in(desc.operator.name, desc.axes, desc.input_tensor)


@operator("ACTIVATION_SOFTMAX1", output=like("input_tensor"), shaders=("softmax",), check=_check,
          in_place=False, axes=(-1,))
def ActivationSoftmax1OperatorDesc(d: Any, p: PlanBuilder) -> None:
    x, y = d.input_tensor, d.output_tensor
    rows, columns = split_dimensions(x.sizes, d.axes, x.strides, y.strides)
    how = "subgroups" if p.library.find("softmax", "subgroups") else "tree"
    p.dispatch(
        f"softmax.{how}", rows.count, x=p.read("input_tensor"), y=p.write("output_tensor"),
        params=[*rows.words, *columns.words],
        push={"rows": rows.count, "columns": columns.count, "columns_at": len(rows.words)},
        spec={"LOCAL_SIZE": min(256, p.device.max_invocations), "TYPE": x.data_type.code},
    )
