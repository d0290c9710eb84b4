"""FX graphs of ATen's operators, in parts that run as plans, one by one, or on the host."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from . import fallback, memory, types
from .counters import statistics
from .numbers import stack_numbers
from .planned import PlannedNodes, Refused, expected_order, member_of
from .runs import Arguments
from .shared import SharedResults
from .table import COMPLEX, LOWERINGS
from .values import Value


class Program:
    """An FX graph of ATen's operators. Callable with the list of its arguments.

    Neighbours with lowerings are one :class:`PlannedNodes`. The others run one by one as PyTorch
    runs them eagerly on the device: by a decomposition, or on the CPU with one warning. In a graph
    with tensors of the device, what PyTorch would compute on the host is :class:`HostNodes`.
    """

    def __init__(self, module: GraphModule, static: set[int], saved_from: int, frozen: bool,
                 backward: bool = False) -> None:
        """``static`` arguments are parameters and buffers. Outputs from ``saved_from`` on are for
        the backward graph only. With ``frozen`` parameters are constants of the plans, until one
        of them changes. What is saved goes with the backward graph's run, and its results are
        gradients, which go when they are set to None: such outputs may share memory."""
        self.module, self.static, self.frozen = module, static, frozen
        nodes = module.graph.nodes
        self._arguments = [n for n in nodes if n.op == "placeholder"]
        self._writes = [n for n in nodes if _writes_argument(n)]
        """Results that go where an argument lies, at the end."""
        self._host = _of_host(module, self._arguments, self._called(nodes))
        stack_numbers(module.graph, self._host)
        self._shared = SharedResults(
            [n.args[0] if n in self._writes else n for n in [*nodes][-1].args[0]],
            self._arguments, {n.args[0]: n.args[1] for n in self._writes}, saved_from)
        self._outputs = self._shared.ends
        self.saved_from = self._shared.saved_from
        self.shared_from = 0 if backward else self.saved_from
        self._calls = self._called(nodes)
        self._alone = {n for n in self._calls if _is_missing(n)}
        self.parts: list[PlannedNodes | HostNodes | list[Node]] = []
        """What runs, in order. A list is a node that runs alone, and the items of its result."""
        self._whole: PlannedNodes | None = None
        """The one part, if it is a plan."""
        self._split()

    def _called(self, nodes: Iterable[Node]) -> list[Node]:
        return [n for n in nodes if n.op == "call_function" and n not in self._writes]

    def _split(self) -> None:
        statistics.fallbacks += bool(self._alone)
        if not self._alone and not self._host:
            self._whole = PlannedNodes(
                self.module, self._calls, self._arguments, self._outputs, self.static,
                self.saved_from, self.frozen, self._writes, self.shared_from)
            self.parts = [self._whole]
            return
        self._whole = None
        groups, group_of = self._groups()
        ends = {n for n in (*self._outputs, *[w.args[1] for w in self._writes])
                if isinstance(n, Node)}
        parameters = {self._arguments[i] for i in self.static}
        self.parts = []
        at_the_end = list(self._writes)
        for group in groups:
            if group[0] in self._alone:
                self.parts.append(group)
                continue
            writes = []
            if group is groups[-1] and group[0] not in self._host:
                writes = [w for w in self._writes if group_of.get(w.args[1]) is group]
                at_the_end = [w for w in self._writes if w not in writes]
            arguments = [*dict.fromkeys(
                x for n in group for x in n.all_input_nodes
                if x.op != "get_attr" and group_of.get(x) is not group)]
            arguments += [w.args[0] for w in writes if w.args[0] not in arguments]
            outputs = [n for n in group if n in ends or any(
                group_of.get(user) is not group for user in n.users)]
            if group[0] in self._host:
                self.parts.append(HostNodes(self.module, group, arguments, outputs))
                continue
            kept = {*self._outputs, *[w.args[1] for w in at_the_end]}
            outputs = [n for n in outputs if n in kept or any(
                user not in writes and group_of.get(user) is not group for user in n.users)]
            static = {i for i, x in enumerate(arguments) if x in parameters}
            self.parts.append(PlannedNodes(self.module, group, arguments, outputs, static, 0,
                                           self.frozen, writes))
        self._written_at_the_end: list[tuple[Any, Any]] = [
            (w.args[0], w.args[1]) for w in at_the_end]

    def _groups(self) -> tuple[list[list[Node]], dict[Node, list[Node]]]:
        """The nodes of each part, and the part of each node. What the host computes from its own
        tensors comes first, so that the rest is one part."""
        stage: dict[Node, int] = {}
        for node in self._calls:
            before = max((stage[x] for x in node.all_input_nodes if x in stage), default=0)
            stage[node] = before + (before % 2 == (node in self._host))
        groups: list[list[Node]] = []
        group_of: dict[Node, list[Node]] = {}
        for node in sorted(self._calls, key=stage.__getitem__):
            last = groups[-1][0] if groups else None
            if node.target is operator.getitem and node.args[0] in group_of:
                group = group_of[node.args[0]]
            elif last is None or node in self._alone or last in self._alone or (
                    (node in self._host) != (last in self._host)):
                group = []
                groups.append(group)
            else:
                group = groups[-1]
            group.append(node)
            group_of[node] = group
        return groups, group_of

    @memory.raises_as_torch
    def __call__(self, args: Arguments) -> list[Any]:
        while True:
            try:
                whole = self._whole
                return self._shared.of(
                    self._in_parts(args) if whole is None else whole(args), args)
            except Refused as error:
                if not isinstance(error.node.target, torch._ops.OpOverload):
                    raise
                self._alone.add(error.node)
                self._split()

    def _in_parts(self, args: Arguments) -> list[Any]:
        values: dict[Node, Any] = dict(zip(self._arguments, args))
        for part in self.parts:
            if not isinstance(part, list):
                values.update(zip(part.outputs, part([values[n] for n in part.arguments])))
                continue
            for node in part:
                values[node] = self._run_alone(node, values)
        with torch.no_grad():
            self._write_at_the_end(values)
        results = []
        for j, node in enumerate(self._outputs):
            y = self._value(node, values) if isinstance(node, Node) else node
            if isinstance(y, torch.Tensor) and y.device.type == memory.NAME:
                if node in self._alone or (node.target is operator.getitem
                                           and node.args[0] in self._alone):
                    y = _as_traced(y, node.meta["val"])
                if j < self.saved_from and node.meta["val"].device.type == "cpu":
                    y = memory.to_host(y)
            results.append(y)
        return results

    def _write_at_the_end(self, values: dict[Node, Any]) -> None:
        """What no plan has written. Tensors of the host, as optimizers count steps by them, are
        written by one call, one after the other."""
        pairs = [(values[target], self._value(source, values))
                 for target, source in self._written_at_the_end]
        if pairs and all(x.is_cpu and y.is_cpu for x, y in pairs):
            torch._foreach_copy_(*map(list, zip(*pairs)))
            return
        for x, y in pairs:
            x.copy_(y)

    def _value(self, node: Node, values: dict[Node, Any]) -> Any:
        return member_of(self.module, node.target) if node.op == "get_attr" else values[node]

    def _run_alone(self, node: Node, values: dict[Node, Any]) -> Any:
        args, kwargs = torch.fx.node.map_arg(
            (node.args, dict(node.kwargs)), lambda n: self._value(n, values))
        target: Any = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return target(*args, **kwargs)
        foreign = [str(x.dtype) for x in pytree.tree_leaves((args, kwargs))
                   if isinstance(x, torch.Tensor) and x.dtype not in types.SPECS]
        if foreign:
            fallback.report(str(target), f"elements of type {foreign[0]}")
        home = torch.device("cpu" if foreign else memory.NAME)
        args, kwargs = pytree.tree_map_only(torch.Tensor, lambda x: x.to(home), (args, kwargs))
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": home}
        with torch.no_grad():
            return target(*args, **kwargs)


def _as_traced(y: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """What ran alone, in the layout that PyTorch expects."""
    order = expected_order(expected, Value(None, y.shape, y.dtype))
    if order is None:
        return y.contiguous() if expected.is_contiguous() else y
    with torch.no_grad():
        return y.permute(order).contiguous().permute([order.index(d) for d in range(y.ndim)])


def _writes_argument(node: Node) -> bool:
    """Whether a node is what AOTAutograd puts at a graph's end for an argument that changes."""
    return node.target is torch.ops.aten.copy_.default and isinstance(node.args[0], Node) and (
        node.args[0].op == "placeholder") and isinstance(node.args[1], Node)


def _of_host(module: GraphModule, arguments: Sequence[Node], calls: Sequence[Node]) -> set[Node]:
    """The nodes that PyTorch computes on the host, of tensors there that are not the same at each
    call. None in a graph of the host's tensors only, which runs on the device."""
    devices = {n: {x.device.type for x in pytree.tree_leaves(
        n.meta.get("val")) if isinstance(x, torch.Tensor)} for n in (*arguments, *calls)}
    if not any(memory.NAME in d for d in devices.values()):
        return set()
    changing, stays = {n for n in arguments if "cpu" in devices[n]}, set()
    for node in calls:
        inputs = [x for x in node.all_input_nodes if devices.get(x)]
        if devices[node] != {"cpu"} or any(devices[x] != {"cpu"} for x in inputs):
            changing.add(node)
        elif changing.intersection(inputs):
            changing.add(node)
            stays.add(node)
    for node in reversed(calls):  # and the constants that those read
        if devices[node] == {"cpu"} and stays.intersection(node.users) and node not in changing:
            stays.add(node)
    return stays


def _is_missing(node: Node) -> bool:
    """Whether a node cannot be part of a plan: no lowering, or elements that the device has not.
    What has an effect besides its results, such as an error, runs alone, too."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    if str(node.target).startswith("aten.sym_"):
        return False
    tensors = [x for n in (node, *node.all_input_nodes)
               for x in pytree.tree_leaves(n.meta.get("val")) if isinstance(x, torch.Tensor)]
    if any(x.dtype.is_complex for x in tensors) and node.target not in COMPLEX:
        return True
    return node.target not in LOWERINGS or any(
        x.dtype not in types.SPECS or x.is_conj() or x.is_neg() for x in tensors)


class HostNodes:
    """Nodes that PyTorch computes on the host. Callable with the values of its arguments."""

    def __init__(self, module: GraphModule, nodes: Sequence[Node], arguments: Sequence[Node],
                 outputs: Sequence[Node]) -> None:
        self.nodes, self.arguments, self.outputs = nodes, arguments, outputs
        graph = torch.fx.Graph()
        copies = {n: graph.placeholder(n.name) for n in arguments}
        for node in nodes:
            for x in node.all_input_nodes:
                if x.op == "get_attr" and x not in copies:
                    copies[x] = graph.node_copy(x)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple([copies[n] for n in outputs]))
        self._run = GraphModule(module, graph)

    def __call__(self, args: Arguments) -> tuple[Any, ...]:
        there = [memory.to_host(x) if isinstance(x, torch.Tensor)
                 and x.device.type == memory.NAME else x for x in args]
        with torch.no_grad():
            results: tuple[Any, ...] = self._run(*there)
        return results
