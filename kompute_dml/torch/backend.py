"""``torch.compile(model, backend="kompute_dml")``: graphs of AOTAutograd as plans.

A graph is lowered once for each set of sizes and layouts. Its inputs are bound by reference:
tensors of the device as they are; parameters on the host by copies that stay on the device and are
uploaded again when PyTorch counts a new version; other tensors of the host are uploaded. What the
forward graph saves for the backward graph stays on the device.

https://docs.pytorch.org/docs/stable/torch.compiler_custom_backends.html
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.attention
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from ..desc import TensorDesc
from ..errors import DeviceLostError, DmlError, OutOfMemoryError
from ..graph.array import Array
from ..graph.expression import Expression, Graph, _array, _expression
from ..graph.open_plan import OpenBuilder, OpenPlan
from ..graph.recorded import RecordedPlan
from ..graph.size_pattern import SizePattern
from ..graph.switches import OPEN_SIZES, disabled
from ..layout import is_packed, packed_strides
from ..runtime.heap import ALIGNMENT, AllocationPart, Place
from ..sizes import SizeTrace, any_open, evaluator, is_open
from ..tensors import Tensor
from . import fallback, memory, types
from .decompositions import decompositions
from .rows import random
from .shared import SharedResults
from .table import COMPLEX, LOWERINGS, enter_others, lowered
from .types import Unsupported
from .values import Value

Arguments = Sequence[Any]  # tensors, and numbers for sizes
_NEVER = 1 << 30
MAX_SIZES, MAX_OPEN = 256, 16
"""The most sets of sizes and layouts of a graph, and the most plans for many sizes."""
_STAGED = object()
"""A tensor of the host that is uploaded with others."""
_SMALL, _TOGETHER = 256 << 10, 16 << 20
"""The most bytes of an output that shares memory with others, and of what they share."""


class Statistics:
    """What tests ask: how often plans were made, and what was uploaded."""

    plans = 0
    lists = 0
    """Those of the plans that serve eager operators of lists."""
    uploads = 0
    fallbacks = 0
    """Graphs that were split because of nodes without a lowering."""


statistics = Statistics()


class Mirror:
    """The copy of a parameter of the host on the device, as of one version."""

    def __init__(self, x: torch.Tensor) -> None:
        self._sample = _sample(x)
        self.version = x._version
        self.count = 0
        """How often it was uploaded anew."""
        copy = memory.upload(x)
        assert copy is not None
        self.tensor = copy

    def refresh(self, x: torch.Tensor) -> None:
        """Upload again if PyTorch has counted a new version, or elements differ that are looked
        at: ``x.data`` changes without a count."""
        if x._version == self.version and _sample(x) == self._sample:
            return
        statistics.uploads += 1
        t, host = self.tensor, memory.host_array(x)
        t.device.write(t.allocation, t.byte_offset, host.reshape(-1).view(np.uint8))
        self.version, self._sample = x._version, _sample(x)
        self.count += 1


def _sample(x: torch.Tensor) -> bytes:
    """A few elements, spread over the whole tensor."""
    if x.dtype == torch.bfloat16 or not x.is_contiguous():
        return b""
    flat: np.ndarray = x.detach().numpy().reshape(-1)
    return flat[:: max(1, flat.size // 16)].tobytes()


class Mirrors:
    """Parameters of the host that are on the device, by their memory: ``Module.to`` refuses
    tensors that have weak references."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[object, ...], Mirror] = {}

    def find(self, x: torch.Tensor) -> Mirror | None:
        return self._by_place.get(_place(x))

    def take(self, x: torch.Tensor) -> Mirror:
        mirror = self.find(x)
        if mirror is None:
            key = _place(x)
            mirror = self._by_place[key] = Mirror(x)
            weakref.finalize(x.untyped_storage(), self._by_place.pop, key, None)
        return mirror


def _place(x: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors of the same elements, as long as their storage lives."""
    return id(x.untyped_storage()), x.storage_offset(), x.shape, x.stride(), x.dtype


mirrors = Mirrors()


class _Result(NamedTuple):
    """What becomes of an output of the FX graph."""

    kind: str
    """"value", "argument", "empty" or "other"."""
    place: int
    """Of the plan's output or of the argument."""
    value: Any
    order: tuple[int, ...] | None = None
    """The dimensions by falling stride, if PyTorch expects another layout than packed."""
    host: bool = False


class _Written(NamedTuple):
    """A result that goes where an argument lies."""

    target: int
    """The argument that is written."""
    place: int = -1
    """Of the plan's output; -1 for none."""
    value: Value | None = None
    """Its sizes and type."""
    like: bool = False
    """Whether the argument lies on the device and has the result's sizes and type."""
    in_place: bool = False
    """Whether the plan itself writes there."""

    def over(self, plan: RecordedPlan, bound: Sequence[int], tensor: Tensor | None) -> _Written:
        """Let the plan write there if nothing reads the argument afterwards. ``tensor`` is the
        argument's, whose layout is the plan's."""
        if not self.like or tensor is None or not tensor.desc.is_packed or tensor.byte_offset & 15:
            return self
        i = bound.index(self.target) if self.target in bound else -1
        return self._replace(in_place=i < 0 or plan.may_write_over(self.place, i))

    def finish(self, args: Arguments, bound: Sequence[Place]) -> None:
        """Write what the plan has not written."""
        target = args[self.target]
        if self.in_place:
            memory.note_write(target)
        elif self.value is not None:
            with torch.no_grad():
                target.copy_(memory.adopt(
                    bound[self.place][0], self.value.shape, self.value.dtype))


class _Ready(NamedTuple):
    """A plan for one set of sizes and layouts, or what those of many sizes have in common."""

    plan: RecordedPlan | None
    """None if nothing is to be computed."""
    bound: list[int]
    """The argument of each of the plan's inputs; -1 for a state of the random numbers."""
    results: list[_Result]
    written: list[_Written]


class _Outputs:
    """What a run of a plan makes: memory for its outputs, and tensors over it."""

    def __init__(self, ready: _Ready, shared_from: int) -> None:
        """Results from ``shared_from`` on may share memory."""
        self.over = [(w.place, w.target) for w in ready.written if w.in_place]
        """Outputs that go where an argument lies, and that argument."""
        self.states = [at for at, i in enumerate(ready.bound) if i < 0]
        """The plan's inputs that are states of the random numbers."""
        outputs = () if ready.plan is None else ready.plan.outputs
        nbytes = [(y.size * y.dtype.itemsize + 3) & ~3 for y in outputs]
        shared = {r.place for r in ready.results[shared_from:] if r.kind == "value"}
        self.count = len(nbytes)
        self.apart: list[tuple[int, int]] = []
        """Outputs with memory of their own, and its bytes."""
        self.together: list[tuple[list[tuple[int, int, int]], int]] = []
        """Small outputs that share memory, with where each begins and its bytes; and all bytes."""
        written = {place for place, _ in self.over}
        parts: list[tuple[int, int, int]] = []
        end = 0
        for j, n in enumerate(nbytes):
            if j in written:
                continue
            if j not in shared or n > _SMALL:
                self.apart.append((j, n))
                continue
            if end + n > _TOGETHER:
                self.together.append((parts, end))
                parts, end = [], 0
            parts.append((j, end, n))
            end = -(-(end + n) // ALIGNMENT) * ALIGNMENT
        if parts:
            self.together.append((parts, end))
        self.results = [_made(r) for r in ready.results]

    def places(self, args: Sequence[Place | None]) -> list[Place]:
        """Memory for a run. Callers hold the device's lock."""
        allocate = memory.device().runtime.allocate
        places: list[Any] = [None] * self.count
        for j, n in self.apart:
            places[j] = allocate(n), 0
        for parts, nbytes in self.together:
            whole = allocate(nbytes)
            for j, begin, n in parts:
                places[j] = AllocationPart(whole, begin, n), 0
        for j, target in self.over:
            places[j] = args[target]
        return places


class _Made(NamedTuple):
    """How a result becomes a tensor."""

    place: int
    """Of the plan's output; -1 for a tensor without elements."""
    form: memory.CapsuleForm | None = None
    """None for what is no new tensor."""
    host: bool = False
    argument: int = -1
    """The argument that the result is; -1 for ``value``."""
    value: Any = None


def _made(r: _Result) -> _Made:
    if r.kind == "argument":
        return _Made(-1, argument=r.place)
    if r.kind == "other":
        return _Made(-1, value=r.value)
    shape, strides = tuple(r.value.shape), None
    if r.order is not None:
        steps = dict(zip(r.order, packed_strides([shape[d] for d in r.order])))
        strides = tuple([steps[d] for d in range(len(shape))])
    return _Made(r.place if r.kind == "value" else -1, memory.form(shape, r.value.dtype, strides),
                 r.host)


class _Seen(NamedTuple):
    """A tensor of the device that an earlier call had as this argument."""

    argument: int
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    itemsize: int
    shift: int
    """Bytes after a multiple of 16."""
    state: Any
    """What it is if it is a constant."""


class _Mirrored(NamedTuple):
    """A parameter of the host that an earlier call had as this argument."""

    argument: int
    mirror: Mirror
    uploads: int
    """How often the mirror may have been uploaded anew if it is a constant; -1 if it is none."""


class _Known(NamedTuple):
    """A run, and the arguments for which it is right."""

    ready: _Ready
    outputs: _Outputs
    seen: list[_Seen]
    mirrored: list[_Mirrored]
    staged: Sequence[int]
    form: memory.StagedForm | None
    """Where those of ``staged`` are uploaded."""
    others: list[tuple[int, Any]]
    """Numbers, and the sizes and types of tensors without elements."""

    def places(self, args: Arguments) -> list[Place | None] | None:
        """Where the arguments lie, but those that are uploaded. None if they are other ones."""
        for i, described in self.others:
            x = args[i]
            if described != ((tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x):
                return None
        places: list[Place | None] = [None] * len(args)
        for i, dtype, shape, strides, itemsize, shift, state in self.seen:
            x = args[i]
            storage = x.untyped_storage()
            held = getattr(storage, "kompute_dml_allocation", None)
            if held is None:
                return None
            if state is not None:
                if state[0] is not held or state[1:] != (x._version, memory.writes(x)):
                    return None
                continue
            begin = x.storage_offset() * itemsize
            if x.shape != shape or x.stride() != strides or (
                    x.dtype is not dtype or begin & 15 != shift):
                return None
            places[i] = held, begin - shift
        for i, mirror, count in self.mirrored:
            if mirrors.find(args[i]) is not mirror:
                return None
            mirror.refresh(args[i])
            if count >= 0 and count != mirror.count:
                return None
            places[i] = mirror.tensor.allocation, mirror.tensor.byte_offset
        if self.form is not None and not self.form.fits([args[i] for i in self.staged]):
            return None
        return places

    def upload(self, args: Arguments, places: list[Place | None]) -> None:
        """Upload the arguments of the host that come with each call, and say where they lie."""
        if self.form is not None:
            copies = self.form.upload([args[i] for i in self.staged])
            for i, t in zip(self.staged, copies):
                places[i] = t.allocation, t.byte_offset


class _Open:
    """A plan for many sizes."""

    def __init__(self, more: tuple[Any, ...], trace: SizeTrace, plan: OpenPlan, form: _Ready
                 ) -> None:
        self.more, self._plan, self._form = more, plan, form
        ends: list[_Result | _Written] = [*form.results, *form.written]
        self._numbers = evaluator(trace, [n for x in ends for n in self._sizes(x)])

    @staticmethod
    def _sizes(x: _Result | _Written) -> tuple[Any, ...]:
        """The numbers that sizes decide."""
        return x.value.shape if isinstance(x.value, Value) else (x.value,) if is_open(
            x.value) else ()

    def at(self, values: Sequence[int], tensors: Sequence[Tensor | None]) -> _Ready | None:
        """What to run for these values of the variables. None if it does not serve them."""
        plan = self._plan.at(values)
        if plan is None:
            return None
        numbers, form = iter(self._numbers(*values)), self._form

        def settled(x: Any) -> Any:
            sizes = [next(numbers) for _ in self._sizes(x)]
            value = x.value
            if isinstance(value, Value):
                value = Value(None, sizes, value.dtype)
            return x._replace(value=sizes[0] if is_open(value) else value)

        results = [settled(x) for x in form.results]
        return _Ready(plan, form.bound, results, [
            settled(w).over(plan, form.bound, tensors[w.target]) for w in form.written])


class _OpenGraph(Graph):
    """A graph of open sizes."""

    def __init__(self, builder: OpenBuilder) -> None:
        super().__init__(builder.device)
        self._builder: OpenBuilder = builder


class Refused(Unsupported):
    """A node that has no form on the device, and why."""

    def __init__(self, node: Node, reason: str) -> None:
        super().__init__(f"{node.target}: {reason}")
        self.node = node


class Program:
    """An FX graph of ATen's operators. Callable with its arguments.

    Neighbours with lowerings are one :class:`PlannedNodes`. The others run one by one as PyTorch
    runs them eagerly on the device: by a decomposition, or on the CPU with one warning. In a graph
    with tensors of the device, what PyTorch would compute on the host is :class:`HostNodes`.
    """

    def __init__(self, module: GraphModule, static: set[int], saved_from: int, frozen: bool,
                 shared_from: int = _NEVER) -> None:
        """``static`` arguments are parameters and buffers. Outputs from ``saved_from`` on are for
        the backward graph only. With ``frozen`` parameters are constants of the plans, until one
        of them changes. Outputs from ``shared_from`` on go together and may share memory."""
        self.module, self.static, self.frozen = module, static, frozen
        nodes = [*module.graph.nodes]
        self._arguments = [n for n in nodes if n.op == "placeholder"]
        self._writes = [n for n in nodes if _writes_argument(n)]
        """Results that go where an argument lies, at the end."""
        self._shared = SharedResults(
            [n.args[0] if n in self._writes else n for n in nodes[-1].args[0]], self._arguments,
            [n.args[0] for n in self._writes], saved_from)
        self._outputs = self._shared.ends
        self.saved_from = self._shared.saved_from
        self.shared_from = shared_from if shared_from in (0, _NEVER) else self.saved_from
        self._calls = [n for n in nodes if n.op == "call_function" and n not in self._writes]
        self._alone = {n for n in self._calls if _is_missing(n)}
        self._host = _of_host(module, self._arguments, self._calls)
        self.parts: list[PlannedNodes | HostNodes | list[Node]] = []
        """What runs, in order. A list is a node that runs alone, and the items of its result."""
        self._split()

    def _split(self) -> None:
        statistics.fallbacks += bool(self._alone)
        if not self._alone and not self._host:
            self.parts = [PlannedNodes(
                self.module, self._calls, self._arguments, self._outputs, self.static,
                self.saved_from, self.frozen, self._writes, self.shared_from)]
            return
        groups, group_of = self._groups()
        ends = {n for n in (*self._outputs, *[w.args[1] for w in self._writes])
                if isinstance(n, Node)}
        parameters = {self._arguments[i] for i in self.static}
        self.parts = []
        self._written_at_the_end = list(self._writes)
        for group in groups:
            if group[0] in self._alone:
                self.parts.append(group)
                continue
            writes = []
            if group is groups[-1] and group[0] not in self._host:
                writes = [w for w in self._writes if group_of.get(w.args[1]) is group]
                self._written_at_the_end = [w for w in self._writes if w not in writes]
            arguments = [*dict.fromkeys(
                x for n in group for x in n.all_input_nodes
                if x.op != "get_attr" and group_of.get(x) is not group)]
            arguments += [w.args[0] for w in writes if w.args[0] not in arguments]
            outputs = [n for n in group if n in ends or any(
                group_of.get(user) is not group for user in n.users)]
            if group[0] in self._host:
                self.parts.append(HostNodes(self.module, group, arguments, outputs))
                continue
            kept = {*self._outputs, *[w.args[1] for w in self._written_at_the_end]}
            outputs = [n for n in outputs if n in kept or any(
                user not in writes and group_of.get(user) is not group for user in n.users)]
            static = {i for i, x in enumerate(arguments) if x in parameters}
            self.parts.append(PlannedNodes(self.module, group, arguments, outputs, static, 0,
                                           self.frozen, writes))

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
    def __call__(self, *args: object) -> list[Any]:
        while True:
            try:
                first = self.parts[0]
                if not self._alone and not self._host and isinstance(first, PlannedNodes):
                    return self._shared.of(first(args), args)
                return self._shared.of(self._in_parts(args), args)
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
            for node in self._written_at_the_end:
                target, source = node.args[:2]
                values[target].copy_(self._value(source, values))
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

    def _value(self, node: Node, values: dict[Node, Any]) -> Any:
        return _found(self.module, node.target) if node.op == "get_attr" else values[node]

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
    order = _layout(expected, Value(None, y.shape, y.dtype))
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


class PlannedNodes:
    """Nodes with lowerings, as plans on the device. Callable with the values of its arguments."""

    def __init__(
        self, module: GraphModule, nodes: Sequence[Node], arguments: Sequence[Node],
        outputs: Sequence[object], static: set[int], saved_from: int, frozen: bool,
        writes: Sequence[Node] = (), shared_from: int = _NEVER,
    ) -> None:
        """See :class:`Program`. Outputs before ``saved_from`` go to the host where PyTorch expects
        them there. ``writes`` are results that go where an argument lies."""
        self.module, self.nodes, self.arguments, self.outputs = module, nodes, arguments, outputs
        self.static, self.saved_from, self.frozen = static, saved_from, frozen
        self.shared_from = shared_from
        members = {*nodes, *writes}
        self._read = [not members.isdisjoint(n.users) for n in arguments]
        self._ready: dict[Any, _Ready] = {}
        self._lock = threading.Lock()
        self._order = threading.Lock()
        """A call writes over what the one before has staged."""
        self._arguments, self._states = memory.Staging(), memory.Staging()
        self._constants: dict[int, Any] = {}
        self._places = {n: i for i, n in enumerate(arguments)}
        self._writes = [(self._places[n.args[0]], n.args[1]) for n in writes]
        self._constant = static.difference(i for i, _ in self._writes)
        """Arguments that are constants of the plans while the graph is frozen."""
        self._pattern = _pattern_of(arguments)
        """The sizes that PyTorch leaves open, if any."""
        self._open: list[_Open] = []
        self._known: _Known | None = None
        """The last run."""
        self.declined = ""
        """Why there is no plan for many sizes, if one was tried."""

    def __call__(self, args: Arguments) -> list[Any]:
        known = self._known
        if known is not None and (places := known.places(args)) is not None:
            with self._order:
                known.upload(args, places)
                return self._run(known.ready, known.outputs, args, places)
        tensors: list[Tensor | None] = []
        key: list[Any] = []
        staged: list[int] = []
        for i, x in enumerate(args):
            described, tensor = self._argument(i, x) if self._read[i] else (None, None)
            if described is _STAGED:
                staged.append(i)
                described = x.shape, x.dtype
            key.append(described)
            tensors.append(tensor)
        with self._order:
            return self._staged(args, tensors, key, staged)

    def _staged(self, args: Arguments, tensors: list[Tensor | None], key: Sequence[Any],
                staged: Sequence[int]) -> list[Any]:
        """Run, after the arguments of the host are uploaded."""
        form = self._arguments.form([args[i] for i in staged]) if staged else None
        if form is not None:
            for i, tensor in zip(staged, form.upload([args[i] for i in staged])):
                tensors[i] = tensor
        ready = self._ready.get(tuple(key))
        if ready is None:
            with self._lock:
                ready = self._ready[tuple(key)] = self._for_many(args, tensors, key) or (
                    self._build(args, tensors))
                if len(self._ready) > MAX_SIZES:
                    self._ready.pop(next(iter(self._ready)))
        outputs = _Outputs(ready, self.shared_from)
        self._known = self._seen(ready, outputs, args, tensors, key, staged, form)
        return self._run(ready, outputs, args, [
            None if t is None else (t.allocation, t.byte_offset & ~15) for t in tensors])

    def _seen(
        self, ready: _Ready, outputs: _Outputs, args: Arguments, tensors: Sequence[Tensor | None],
        key: Sequence[Any], staged: Sequence[int], form: memory.StagedForm | None,
    ) -> _Known:
        """What to compare the arguments of the next call with."""
        known, apart = _Known(ready, outputs, [], [], staged, form, []), {*staged}
        for i, (x, tensor, described) in enumerate(zip(args, tensors, key)):
            if not self._read[i] or i in apart:
                continue
            constant = self.frozen and i in self._constant
            if tensor is None:
                known.others.append((i, described))
            elif x.device.type == memory.NAME:
                known.seen.append(_Seen(
                    i, x.dtype, x.shape, x.stride(), x.element_size(), tensor.byte_offset & 15,
                    described if constant else None))
            else:
                mirror = mirrors.take(x)
                known.mirrored.append(_Mirrored(i, mirror, mirror.count if constant else -1))
        return known

    def _argument(self, i: int, x: object) -> tuple[Any, Tensor | None]:
        """What a plan depends on, and where the elements are."""
        if not isinstance(x, torch.Tensor):
            return x, None
        if not x.numel():
            return (tuple(x.shape), x.dtype), None
        on_device = x.device.type == memory.NAME
        if self.frozen and i in self._constant:
            state: Any
            if on_device:
                tensor = memory.tensor_of(x)
                assert tensor is not None
                state = tensor.allocation, x._version, memory.writes(x)
            else:
                mirror = mirrors.take(x)
                mirror.refresh(x)
                tensor, state = mirror.tensor, (mirror, mirror.count)
            before = self._constants.setdefault(i, state)
            if before != state:  # parameters that change are no constants
                self.frozen, self._known = False, None
                self._ready.clear()
                return self._argument(i, x)
            return state, tensor
        if on_device:
            tensor = memory.tensor_of(x)
            assert tensor is not None
            return (tensor.desc, tensor.byte_offset & 15), tensor
        if i in self.static or mirrors.find(x) is not None:
            mirror = mirrors.take(x)
            mirror.refresh(x)
            return tuple(x.shape), mirror.tensor
        return _STAGED, None

    # Lowering

    def _for_many(self, args: Arguments, tensors: list[Tensor | None], key: Sequence[Any]
                  ) -> _Ready | None:
        """A plan of one that serves many sizes. None if there is none, and none can be."""
        if self._pattern is None or OPEN_SIZES in disabled():
            return None
        layouts = [_layout_of(x, tensor) for x, tensor in zip(args, tensors)]
        values = self._pattern.read([tuple(x.shape) if isinstance(x, torch.Tensor) else (
            (x,) if isinstance(x, int) else ()) for x in args])
        if values is None or None in layouts:
            return None
        constants = [k for i, k in enumerate(key) if self.frozen and i in self._constant]
        more = *layouts, *constants
        for opened in self._open:
            if opened.more == more and (ready := opened.at(values, tensors)) is not None:
                return ready
        if self.declined or len(self._open) >= MAX_OPEN:
            return None
        trace = SizeTrace()
        variables = tuple([trace.variable(n) for n in values])
        builder = OpenBuilder(memory.device(), trace, values)
        try:
            form, plan = self._opened(args, tensors, builder, self._pattern.over(variables))
            opened = _Open(more, trace, plan, form)
            ready = opened.at(values, tensors)
        except Exception as error:  # the plan of these sizes alone says what is wrong with them
            self.declined = f"{type(error).__name__}: {error}"
            return None
        statistics.plans += 1
        if ready is not None:
            self._open.insert(0, opened)
        return ready

    def _opened(self, args: Arguments, tensors: list[Tensor | None], builder: OpenBuilder,
                shapes: Sequence[Sequence[int]]) -> tuple[_Ready, OpenPlan]:
        """What the plans of many sizes have in common."""
        graph, inputs = _OpenGraph(builder), list[Array]()
        form, ends = self._lowered(graph, args, tensors, inputs, shapes)
        if not ends:
            raise Unsupported("nothing to compute")
        return form, builder.finish_open(inputs, ends, bound=True)

    def _build(self, args: Arguments, tensors: list[Tensor | None]) -> _Ready:
        statistics.plans += 1
        graph, inputs = Graph(memory.device()), list[Array]()
        ready, ends = self._lowered(graph, args, tensors, inputs)
        if not ends:
            return ready
        plan = graph.builder_for("compile").finish(inputs, ends, bound=True)
        return ready._replace(plan=plan, written=[
            w.over(plan, ready.bound, tensors[w.target]) for w in ready.written])

    def _lowered(
        self, graph: Graph, args: Arguments, tensors: list[Tensor | None], inputs: list[Array],
        shapes: Sequence[Sequence[int]] | None = None,
    ) -> tuple[_Ready, list[Array]]:
        """What to run, without a plan, and its outputs. ``shapes`` are open sizes of arguments."""
        values: dict[Node, Any] = {}
        bound: list[int] = []

        def state() -> Tensor:
            words = _input(graph, TensorDesc.packed("uint32", random.STATE))
            inputs.append(_array(words, "state"))
            bound.append(-1)
            return words

        with unset_fake_temporarily(), graph, random.states_from(state):
            for i, node in enumerate(self.arguments):
                if self._read[i]:
                    values[node] = self._input(graph, i, args[i], tensors[i], inputs, bound,
                                               None if shapes is None else shapes[i])
            for node in self.nodes:
                for x in node.all_input_nodes:
                    if x.op == "get_attr" and x not in values:
                        values[x] = _attribute(graph, self.module, x.target)
                values[node] = _called(node, values)
            for node in self.outputs:
                if isinstance(node, Node) and node.op == "get_attr" and node not in values:
                    values[node] = _attribute(graph, self.module, node.target)
            return self._ends(graph, values, bound)

    def _input(self, graph: Graph, i: int, x: object, tensor: Tensor | None, inputs: list[Array],
               bound: list[int], shape: Sequence[int] | None) -> Any:
        """An argument. ``shape`` is its open sizes, or that of a number the number."""
        if not isinstance(x, torch.Tensor):
            return shape[0] if shape and isinstance(x, int) else x
        sizes: Sequence[int] = x.shape if shape is None else shape
        if tensor is None:
            return Value(None, sizes, x.dtype)
        if self.frozen and i in self._constant:
            return Value(graph.as_constant(tensor), x.shape, x.dtype)
        desc = tensor.desc if not any_open(sizes) else _open_desc(tensor.desc, sizes)
        expression = _input(graph, desc, tensor.byte_offset & 15)
        inputs.append(_array(expression, "input"))
        bound.append(i)
        return Value(expression, sizes, x.dtype)

    def _ends(self, graph: Graph, values: dict[Node, Any], bound: list[int]
              ) -> tuple[_Ready, list[Array]]:
        ends: list[Array] = []
        results: list[_Result] = []
        for j, node in enumerate(self.outputs):
            if isinstance(node, Node) and node in self._places:
                results.append(_Result("argument", self._places[node], None))
                continue
            result = values[node] if isinstance(node, Node) else node
            expected = node.meta.get("val") if isinstance(node, Node) else None
            host = (j < self.saved_from and isinstance(expected, torch.Tensor)
                    and expected.device.type == "cpu")
            if not isinstance(result, Value):
                results.append(_Result("other", 0, result))
            elif result.data is None:
                results.append(_Result("empty", 0, result, host=host))
            else:
                order = _layout(expected, result)
                data: Tensor = result.data
                if not isinstance(data, Expression):
                    data = graph.as_constant(data)
                if order is not None:
                    data = data.transpose(*order)
                results.append(_Result("value", len(ends), result, order, host))
                ends.append(_array(data, "output"))
        written = [self._written(graph, i, values[node], ends) for i, node in self._writes]
        return _Ready(None, bound if ends else [], results, written), ends

    def _written(self, graph: Graph, i: int, result: Value, ends: list[Array]) -> _Written:
        """The result that goes where an argument lies."""
        expected = self.arguments[i].meta["val"]
        if result.data is None:
            return _Written(i)
        like = (isinstance(expected, torch.Tensor) and expected.device.type == memory.NAME
                and tuple(expected.shape) == result.shape and expected.dtype == result.dtype)
        data = result.data if isinstance(result.data, Expression) else graph.as_constant(
            result.data)
        ends.append(_array(data, "output"))
        return _Written(i, len(ends) - 1, result, like=like)

    # Running

    def _run(self, ready: _Ready, outputs: _Outputs, args: Arguments,
             places: Sequence[Place | None]) -> list[Any]:
        """Run over arguments at these places. Outputs have memory of their own, but those that go
        over arguments."""
        bound: list[Place] = []
        if ready.plan is not None:
            inputs: list[Any] = [places[i] for i in ready.bound]
            if outputs.states:
                words = [torch.from_numpy(random.new_state()) for _ in outputs.states]
                for at, t in zip(outputs.states, self._states.form(words).upload(words)):
                    inputs[at] = t.allocation, t.byte_offset
            with ready.plan.device.runtime.lock:
                bound = outputs.places(places)
                ready.plan.bind(inputs, bound)
        for w in ready.written:
            w.finish(args, bound)
        results: list[Any] = []
        for place, form, host, argument, value in outputs.results:
            if form is None:
                results.append(value if argument < 0 else args[argument])
                continue
            y = memory.adopt_as(None if place < 0 else bound[place][0], form)
            results.append(memory.to_host(y) if host else y)
        return results


def _input(graph: Graph, desc: TensorDesc, shift: int = 0) -> Tensor:
    """An expression over memory that is bound at each run, ``shift`` bytes after a multiple
    of 16."""
    storage = graph.builder_for("input").storage((shift + desc.nbytes + 3) & ~3)
    graph.written.add(storage)
    return _expression(graph, storage, shift, desc)


def _pattern_of(arguments: Sequence[Node]) -> SizePattern | None:
    """The sizes of arguments, and numbers, that PyTorch leaves open. Each expression that is not
    another one and a number more is a variable. None if there are none."""
    variables: list[Any] = []

    def part(n: object) -> int | tuple[int, int]:
        if not isinstance(n, torch.SymInt):
            return n if isinstance(n, int) else 0
        expression = n.node.expr
        if expression.is_Integer:
            return int(expression)
        for i, known in enumerate(variables):
            if (more := expression - known).is_Integer:
                return i, int(more)
        variables.append(expression)
        return len(variables) - 1, 0

    shapes = []
    for node in arguments:
        x = node.meta.get("val")
        sizes = tuple(x.shape) if isinstance(x, torch.Tensor) else (
            (x,) if isinstance(x, (int, torch.SymInt)) else ())
        shapes.append(tuple(map(part, sizes)))
    return SizePattern(tuple(shapes), (0,) * len(variables)) if variables else None


def _layout_of(x: object, tensor: Tensor | None) -> Any:
    """What an argument's plan depends on besides its sizes. None if it is no dense layout."""
    if not isinstance(x, torch.Tensor):
        return () if isinstance(x, int) else (x,)
    if tensor is None:
        return (x.dtype,)
    order = _order(tensor.desc)
    return None if order is None else (x.dtype, order, tensor.byte_offset & 15)


def _order(desc: TensorDesc) -> tuple[int, ...] | None:
    """The dimensions by falling stride. None if there are gaps between elements."""
    if desc.is_packed:
        return tuple(range(len(desc.sizes)))
    order = sorted(range(len(desc.sizes)), key=lambda d: (-desc.strides[d], d))
    sizes = [desc.sizes[d] for d in order]
    return tuple(order) if is_packed(sizes, [desc.strides[d] for d in order]) else None


def _open_desc(desc: TensorDesc, sizes: Sequence[int]) -> TensorDesc:
    """A description of these sizes, in the same order in memory."""
    order = _order(desc)
    assert order is not None  # else there is no such plan
    steps = dict(zip(order, packed_strides([sizes[d] for d in order])))
    return TensorDesc(
        desc.data_type, tuple(sizes), tuple([steps[d] for d in range(len(sizes))]),
        guaranteed_base_offset_alignment=desc.guaranteed_base_offset_alignment)


def _found(module: GraphModule, name: Any) -> Any:
    member: Any = module
    for part in name.split("."):
        member = getattr(member, part)
    return member


def _attribute(graph: Graph, module: GraphModule, name: object) -> Any:
    member = _found(module, name)
    if not isinstance(member, torch.Tensor):
        return member
    types.spec(member.dtype)
    tensor = (memory.tensor_of(member) if member.device.type == memory.NAME
              else memory.upload(member))
    return Value(None if tensor is None else graph.as_constant(tensor), member.shape, member.dtype)


def _called(node: Node, values: dict[Node, Any]) -> Any:
    args = torch.fx.node.map_arg(node.args, values.__getitem__)
    kwargs = torch.fx.node.map_arg(node.kwargs, values.__getitem__)
    if node.target not in LOWERINGS:
        if str(node.target).startswith("aten.sym_size"):
            return args[0].shape[args[1]]
        if str(node.target).startswith("aten.sym_numel"):
            return args[0].numel
        if isinstance(node.target, torch._ops.OpOverload) or not callable(node.target):
            raise Refused(node, "no lowering")
        return node.target(*args, **kwargs)  # arithmetic of sizes
    if str(node.target).startswith("aten.as_strided"):
        seen = node.args[0].meta["val"]  # its strides count in memory, which is PyTorch's
        if not seen.is_contiguous() or seen.storage_offset():
            raise Refused(node, "of a tensor that is not packed")
    try:
        return lowered(node.target, *args, **kwargs)
    except (OutOfMemoryError, DeviceLostError):
        raise
    except (DmlError, Unsupported, AttributeError, TypeError) as error:
        described = ", ".join(map(repr, args))
        raise Refused(node, f"({described}): {error}") from error


def _layout(expected: object, value: Value) -> tuple[int, ...] | None:
    """The dimensions by falling stride where PyTorch expects a dense layout that is not packed."""
    if not isinstance(expected, torch.Tensor) or value.ndim < 2 or expected.is_contiguous():
        return None
    try:
        strides = [int(s) for s in expected.stride()]
    except (TypeError, RuntimeError):
        return None
    order = sorted(range(value.ndim), key=lambda d: (-strides[d], d))
    step = 1
    for d in reversed(order):
        if value.shape[d] != 1 and strides[d] != step:
            return None
        step *= value.shape[d]
    return None if order == sorted(order) else tuple(order)


def _compiler(kind: str) -> Callable[..., Any]:
    """A compiler of AOTAutograd's forward, backward or inference graphs."""
    def compile_graph(module: GraphModule, example_inputs: Sequence[object]) -> Callable[..., Any]:
        context = TracingContext.try_get()
        meta = getattr(context, "fw_metadata", None)
        static = set(getattr(meta, "static_input_indices", None) or ())
        saved = _NEVER
        if kind == "forward" and meta is not None:  # outputs begin with what effects are ordered by
            saved = meta.num_forward_returns + len(meta.tokens)
        # What is saved goes with the backward graph's run, and gradients when they are set to None.
        shared = {"forward": saved, "backward": 0}.get(kind, _NEVER)
        program = Program(module, set() if kind == "backward" else static, saved,
                          kind == "inference", shared)

        def boxed(args: list[object]) -> list[Any]:
            taken = list(args)
            args.clear()
            return program(*taken)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        boxed.program = program  # type: ignore[attr-defined]
        return boxed

    return compile_graph


def _needs_gradients(module: GraphModule, inputs: Sequence[object]) -> bool:
    """Whether there may be a backward graph. Then PyTorch writes to arguments itself, after it has
    saved what the backward graph wants."""
    return torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad
        for x in (*inputs, *module.parameters(), *module.buffers()))


def backend(module: GraphModule, example_inputs: Sequence[object], **options: object
            ) -> Callable[..., Any]:
    """The backend of torch.compile. Attention is traced as its parts: the fused forms of other
    devices have no decomposition of their backward."""
    enter_others()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        compiled: Callable[..., Any] = aot_autograd(
            fw_compiler=_compiler("forward"), bw_compiler=_compiler("backward"),
            inference_compiler=_compiler("inference"), decompositions=decompositions(),
            keep_inference_input_mutations=not _needs_gradients(module, example_inputs),
        )(module, example_inputs)
    return compiled
