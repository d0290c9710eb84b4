"""SWISH and HARD_SWISH that are spelled out: x times the sigmoid of x."""

from __future__ import annotations

from ..node import OTHER, Node, Nodes, alike, class_of, next_user, output_of
from ..rewrite import rewrite

_GATES = ("ACTIVATION_SIGMOID", "ACTIVATION_HARD_SIGMOID")


@rewrite("swish_pattern", "SWISH and HARD_SWISH that are spelled out are one operator", 80)
def swish_pattern(g: Nodes) -> None:
    for gate in g:
        user = next_user(g, gate, ("ELEMENT_WISE_MULTIPLY",)) if gate.name in _GATES else None
        if user is None:
            continue
        product, slot = user
        x, other = gate.storages["input_tensor"], product.storages[OTHER[slot]]
        same = x.begins_as(other) and alike(
            gate.tensor("input_tensor"), product.tensor(OTHER[slot]))
        if not same or not alike(gate.tensor("input_tensor"), product.tensor(slot)):
            continue
        d = gate.desc
        hard = gate.name == _GATES[1]
        more = {"alpha": d.alpha, "beta": d.beta} if hard else {"sigmoid_input_scale": 1.0}
        swish = class_of("ACTIVATION_HARD_SWISH" if hard else "ACTIVATION_SWISH")(
            input_tensor=gate.tensor("input_tensor"), output_tensor=output_of(product), **more)
        g.replace([gate, product], Node(
            swish, {"input_tensor": x, "output_tensor": product.storages["output_tensor"]},
            product.label))
