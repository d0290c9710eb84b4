"""A CAST to a type that has all the numbers, and another CAST back, are a copy. PyTorch's exporter
writes them behind a softmax of FLOAT16 that is asked for in FLOAT32."""

from __future__ import annotations

import numpy as np

from ..node import Node, Nodes, class_of, output_of, seen_as
from ..rewrite import rewrite


@rewrite("casts_back", "a CAST to a wider type and the CAST back are left out", 32)
def casts_back(g: Nodes) -> None:
    """They become a copy, which goes where what made the numbers can write to it."""
    for back in g:
        wide = g.maker(back, "input_tensor") if back.name == "CAST" else None
        if wide is None or wide.name != "CAST" or not _holds(wide) or (
                output_of(back).data_type is not wide.tensor("input_tensor").data_type):
            continue
        x = seen_as(wide, "output_tensor", "input_tensor", back.tensor("input_tensor"))
        if x is None:
            continue
        copy = class_of("ELEMENT_WISE_IDENTITY")(
            input_tensor=x, output_tensor=output_of(back), scale_bias=None)
        old = [wide, back] if g.only_user(wide) == (back, "input_tensor") else [back]
        g.replace(old, Node(copy, {"input_tensor": wide.storages["input_tensor"],
                                   "output_tensor": back.storages["output_tensor"]}, back.label))


def _holds(cast: Node) -> bool:
    """Whether the type that it casts to has all numbers of the other one."""
    of, to = cast.tensor("input_tensor").data_type, output_of(cast).data_type
    return min(of.bits, to.bits) >= 8 and np.can_cast(of.dtype, to.dtype)
