"""Operators of lists, as optimizers call them: one plan for all tensors.

A plan merges the operators of an element, and its commands are recorded once for places in memory
that come again. So an optimizer's step is a few submits.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from ..errors import DmlError, OutOfMemoryError
from .counters import statistics
from .planned import PlannedNodes
from .table import LOWERINGS
from .types import Unsupported

LEAST = 4
"""The fewest tensors of a list that is worth a plan."""


def functional(op: object) -> Any:
    """The operator of lists that gives what ``op`` gives or writes. None if ``op`` is none, or has
    no lowering."""
    if not isinstance(op, torch._ops.OpOverload):
        return None
    name, _, overload = op.name().split("::")[1].partition(".")
    if not name.startswith("_foreach_"):
        return None
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    other = getattr(packet, overload or "default", None)
    return other if other in LOWERINGS else None


class ListPlan:
    """One operator of lists, for tensors of these types, sizes and strides. Callable with the
    tensors, as the signature of a call has them."""

    def __init__(self, op: object, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Raises Unsupported if there is none."""
        other = functional(op)
        if other is None or not isinstance(args[0], (list, tuple)) or len(args[0]) < LEAST:
            raise Unsupported("no list")
        self._in_place = other is not op
        graph, mode = Graph(), FakeTensorMode()
        arguments: dict[int, Node] = {}
        self._arguments: list[int] = []
        """The place among the call's tensors of each argument. No tensor comes twice."""
        at = 0

        def argument(x: torch.Tensor) -> Node:
            nonlocal at
            if id(x) not in arguments:
                arguments[id(x)] = node = graph.placeholder(f"x{at}")
                with mode:
                    node.meta["val"] = torch.empty_strided(
                        x.shape, x.stride(), dtype=x.dtype, device=x.device)
                self._arguments.append(at)
            at += 1
            return arguments[id(x)]

        a, k = pytree.tree_map_only(torch.Tensor, argument, (args, kwargs))
        call = graph.call_function(other, tuple(a), k)
        items = [graph.call_function(operator.getitem, (call, i)) for i in range(len(args[0]))]
        writes = [graph.call_function(torch.ops.aten.copy_.default, (arguments[id(x)], y))
                  for x, y in zip(args[0], items) if self._in_place]
        outputs = [] if self._in_place else items
        graph.output(tuple(outputs))
        self._nodes = PlannedNodes(
            GraphModule(torch.nn.Module(), graph), [call, *items], [*arguments.values()], outputs,
            set(), 0, False, writes, 0)

    def play(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Run it. None for an operator that writes its first list."""
        results = self._nodes([tensors[i] for i in self._arguments])
        return None if self._in_place else results


def planned(
    op: object, args: Sequence[Any], kwargs: dict[str, Any], tensors: Sequence[torch.Tensor]
) -> tuple[ListPlan, list[torch.Tensor] | None] | None:
    """The plan of a call and its result, or None if it can have no plan."""
    try:
        plan = ListPlan(op, args, kwargs)
        result = plan.play(tensors)
        statistics.lists += 1
        return plan, result
    except OutOfMemoryError:
        raise
    except (Unsupported, DmlError):
        return None
