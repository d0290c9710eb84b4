"""Lists of the host's numbers in a graph as one tensor each.

Optimizers count the steps of each parameter on the host, and compute with all counts by operators
of lists. PyTorch takes as long for one number of them as for a tensor of all.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
LEAST = 4
"""The fewest numbers of a list that are worth a tensor."""
_OVERLOADS = {"Scalar": ("Scalar", "Tensor_Scalar"), "List": ("Tensor", "Tensor_Tensor"),
              "ScalarAndTensor": ("Scalar",), "default": ("default",)}
"""The overloads that do for a tensor what one of an operator of lists does for its items."""


def stack_numbers(graph: Graph, host: set[Node]) -> None:
    """Replace operators of lists among the nodes ``host``. What takes their place there is added
    to these. The device gets one tensor of a list's results, and reads items of it."""
    stacks: dict[tuple[Node, ...], Node] = {}
    replaced: dict[Node, tuple[Node, list[Node]]] = {}
    for node in [n for n in graph.nodes if n in host]:
        items = sorted((n for n in node.users if n.target is operator.getitem),
                       key=lambda n: n.args[1])
        other = _of_tensor(node)
        if other is None or len(items) < len(node.users) or (
                [n.args[1] for n in items] != [*range(len(node.meta["val"]))]):
            continue
        with graph.inserting_before(node):
            args = [_stacked(graph, x, stacks, host) if isinstance(x, (list, tuple)) else x
                    for x in node.args]
            whole = _inserted(graph, other, args, node.kwargs)
        if whole.meta["val"].dtype != items[0].meta["val"].dtype:
            graph.erase_node(whole)
            continue
        host.add(whole)
        stacks[tuple(items)] = whole
        replaced[node] = whole, items
    for whole, items in reversed(replaced.values()):
        with graph.inserting_after(whole):
            parts = _inserted(graph, aten.unbind.int, (whole,), {})
        host.add(parts)
        for i, item in enumerate(items):
            for user in [*item.users]:
                if user in replaced:
                    continue
                with graph.inserting_before(user):
                    if user in host or user.op == "output" or user.target is aten.copy_.default:
                        read = _inserted(graph, operator.getitem, (parts, i), {})
                        host.add(read)
                    else:
                        read = _inserted(graph, aten.select.int, (whole, 0, i), {})
                user.replace_input_with(item, read)
    for node, (_, items) in reversed(replaced.items()):
        for gone in (*items, node):
            graph.erase_node(gone)
            host.discard(gone)
    for node in [n for n in graph.nodes if n in host and n.target is aten.unbind.int]:
        if not node.users:
            graph.erase_node(node)
            host.discard(node)


def _of_tensor(node: Node) -> Any:
    """The operator of one tensor that does what a node does for lists of numbers. None if it is
    no such node."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    name, _, overload = node.target.name().removeprefix("aten::").partition(".")
    packet = getattr(aten, name.removeprefix("_foreach_"), None)
    lists = [x for x in node.args if isinstance(x, (list, tuple))]
    if not name.startswith("_foreach_") or packet is None or not all(map(_are_numbers, lists)):
        return None
    return next((getattr(packet, o) for o in _OVERLOADS.get(overload or "default", ())
                 if o in packet.overloads()), None)


def _are_numbers(nodes: Sequence[Any]) -> bool:
    values = [n.meta.get("val") for n in nodes if isinstance(n, Node)]
    return LEAST <= len(values) == len(nodes) and all(
        isinstance(x, torch.Tensor) and not x.ndim and x.dtype == values[0].dtype for x in values)


def _stacked(graph: Graph, nodes: Sequence[Any], stacks: dict[tuple[Node, ...], Node],
             host: set[Node]) -> Node:
    known = stacks.get(tuple(nodes))
    if known is None:
        known = stacks[tuple(nodes)] = _inserted(graph, aten.stack.default, ([*nodes],), {})
        host.add(known)
    return known


def _inserted(graph: Graph, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Node:
    """A node of this operator, with what the tracer would know of its value."""
    node = graph.call_function(target, tuple(args), kwargs)
    values, options = torch.fx.node.map_arg((node.args, dict(kwargs)), lambda n: n.meta["val"])
    node.meta["val"] = target(*values, **options)
    return node
