"""Neighbouring nodes of an FX graph as plans, one for each set of sizes and layouts or for many.

Inputs are bound by reference: tensors of the device as they are; parameters on the host by copies
that stay on the device and are uploaded again when PyTorch counts a new version; other tensors of
the host are uploaded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from ..desc import TensorDesc
from ..errors import DeviceLostError, DmlError, OutOfMemoryError
from ..graph.array import Array
from ..graph.expression import Expression, Graph, _array, _expression
from ..graph.open_plan import OpenBuilder, OpenPlan
from ..graph.size_pattern import SizePattern
from ..graph.switches import OPEN_SIZES, disabled
from ..runtime.heap import Place
from ..sizes import SizeTrace, any_open, evaluator, is_open
from ..tensors import Tensor
from . import memory, types
from .counters import statistics
from .layouts import dense_order, dense_strides
from .mirrors import mirrors
from .rows import random
from .runs import (
    Arguments,
    ConstantTensor,
    GraphOutput,
    KnownRun,
    MirroredParameter,
    ReadyRun,
    RunOutputs,
    WrittenArgument,
)
from .table import LOWERINGS, lowered
from .types import Unsupported
from .values import Value

NEVER = 1 << 30
"""More outputs than a graph has."""
MAX_SIZES, MAX_OPEN = 256, 16
"""The most sets of sizes and layouts of a graph, and the most plans for many sizes."""
_STAGED = object()
"""A tensor of the host that is uploaded with others."""


class _OpenSizesPlan:
    """A plan for many sizes."""

    def __init__(self, more: tuple[Any, ...], trace: SizeTrace, plan: OpenPlan, form: ReadyRun
                 ) -> None:
        self.more, self._plan, self._form = more, plan, form
        ends: list[GraphOutput | WrittenArgument] = [*form.results, *form.written]
        self._numbers = evaluator(trace, [n for x in ends for n in self._sizes(x)])

    @staticmethod
    def _sizes(x: GraphOutput | WrittenArgument) -> tuple[Any, ...]:
        """The numbers that sizes decide."""
        return x.value.shape if isinstance(x.value, Value) else (x.value,) if is_open(
            x.value) else ()

    def at(self, values: Sequence[int], tensors: Sequence[Tensor | None]) -> ReadyRun | None:
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
        return ReadyRun(plan, form.bound, results, [
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


class PlannedNodes:
    """Nodes with lowerings, as plans on the device. Callable with the values of its arguments."""

    def __init__(
        self, module: GraphModule, nodes: Sequence[Node], arguments: Sequence[Node],
        outputs: Sequence[object], static: set[int], saved_from: int, frozen: bool,
        writes: Sequence[Node] = (), shared_from: int = NEVER,
    ) -> None:
        """See :class:`Program`. Outputs before ``saved_from`` go to the host where PyTorch expects
        them there. ``writes`` are results that go where an argument lies."""
        self.module, self.nodes, self.arguments, self.outputs = module, nodes, arguments, outputs
        self.static, self.saved_from, self.frozen = static, saved_from, frozen
        self.shared_from = shared_from
        members = {*nodes, *writes}
        self._read = [not members.isdisjoint(n.users) for n in arguments]
        self._ready: dict[Any, ReadyRun] = {}
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
        self._open: list[_OpenSizesPlan] = []
        self._known: KnownRun | None = None
        """The last run."""
        self.declined = ""
        """Why there is no plan for many sizes, if one was tried."""

    def __call__(self, args: Arguments) -> list[Any]:
        known = self._known
        if known is not None and (places := known.places(args)) is not None:
            with self._order:
                known.upload(args, places)
                return self._run(known.ready, known.outputs, args, places)
        statistics.looked += 1
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
        outputs = RunOutputs(ready, self.shared_from)
        self._known = self._seen(ready, outputs, args, tensors, key, staged, form)
        return self._run(ready, outputs, args, [
            None if t is None else (t.allocation, t.byte_offset & ~15) for t in tensors])

    def _seen(
        self, ready: ReadyRun, outputs: RunOutputs, args: Arguments,
        tensors: Sequence[Tensor | None], key: Sequence[Any], staged: Sequence[int],
        form: memory.StagedForm | None,
    ) -> KnownRun:
        """What to compare the arguments of the next call with."""
        bound: list[int] = []
        constants: list[ConstantTensor] = []
        mirrored: list[MirroredParameter] = []
        apart = {*staged}
        for i, (x, tensor, described) in enumerate(zip(args, tensors, key)):
            if not self._read[i] or i in apart or tensor is None:
                continue
            constant = self.frozen and i in self._constant
            if x.device.type != memory.NAME:
                mirror = mirrors.take(x)
                mirrored.append(MirroredParameter(i, mirror, mirror.count if constant else -1))
            elif constant:
                constants.append(ConstantTensor(i, *described))
            else:
                bound.append(i)
        return KnownRun(ready, outputs, args, self._read, bound, constants, mirrored, staged, form)

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
                  ) -> ReadyRun | None:
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
            opened = _OpenSizesPlan(more, trace, plan, form)
            ready = opened.at(values, tensors)
        except Exception as error:  # the plan of these sizes alone says what is wrong with them
            self.declined = f"{type(error).__name__}: {error}"
            return None
        statistics.plans += 1
        if ready is not None:
            self._open.insert(0, opened)
        return ready

    def _opened(self, args: Arguments, tensors: list[Tensor | None], builder: OpenBuilder,
                shapes: Sequence[Sequence[int]]) -> tuple[ReadyRun, OpenPlan]:
        """What the plans of many sizes have in common."""
        graph, inputs = _OpenGraph(builder), list[Array]()
        form, ends = self._lowered(graph, args, tensors, inputs, shapes)
        if not ends:
            raise Unsupported("nothing to compute")
        return form, builder.finish_open(inputs, ends, bound=True)

    def _build(self, args: Arguments, tensors: list[Tensor | None]) -> ReadyRun:
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
    ) -> tuple[ReadyRun, list[Array]]:
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
              ) -> tuple[ReadyRun, list[Array]]:
        ends: list[Array] = []
        results: list[GraphOutput] = []
        for j, node in enumerate(self.outputs):
            if isinstance(node, Node) and node in self._places:
                results.append(GraphOutput("argument", self._places[node], None))
                continue
            result = values[node] if isinstance(node, Node) else node
            expected = node.meta.get("val") if isinstance(node, Node) else None
            host = (j < self.saved_from and isinstance(expected, torch.Tensor)
                    and expected.device.type == "cpu")
            if not isinstance(result, Value):
                results.append(GraphOutput("other", 0, result))
            elif result.data is None:
                results.append(GraphOutput("empty", 0, result, host=host))
            else:
                order = expected_order(expected, result)
                data: Tensor = result.data
                if not isinstance(data, Expression):
                    data = graph.as_constant(data)
                if order is not None:
                    data = data.transpose(*order)
                results.append(GraphOutput("value", len(ends), result, order, host))
                ends.append(_array(data, "output"))
        written = [self._written(graph, i, values[node], ends) for i, node in self._writes]
        return ReadyRun(None, bound if ends else [], results, written), ends

    def _written(self, graph: Graph, i: int, result: Value, ends: list[Array]) -> WrittenArgument:
        """The result that goes where an argument lies."""
        expected = self.arguments[i].meta["val"]
        if result.data is None:
            return WrittenArgument(i)
        like = (isinstance(expected, torch.Tensor) and expected.device.type == memory.NAME
                and tuple(expected.shape) == result.shape and expected.dtype == result.dtype)
        data = result.data if isinstance(result.data, Expression) else graph.as_constant(
            result.data)
        ends.append(_array(data, "output"))
        return WrittenArgument(i, len(ends) - 1, result, like=like)

    # Running

    def _run(self, ready: ReadyRun, outputs: RunOutputs, args: Arguments,
             places: Sequence[Place | None]) -> list[Any]:
        """Run over arguments at these places. Outputs have memory of their own, but those that go
        over arguments."""
        bound: list[Place] = []
        if ready.plan is not None:
            inputs: list[Any] = [None if i < 0 else places[i] for i in ready.bound]
            if outputs.states:
                words = [torch.from_numpy(random.new_state()) for _ in outputs.states]
                for at, t in zip(outputs.states, self._states.form(words).upload(words)):
                    inputs[at] = t.allocation, t.byte_offset
            with ready.plan.device.runtime.lock:
                bound = outputs.places(places)
                ready.plan.bind(inputs, bound)
        for place, _ in outputs.over:
            memory.note_write(bound[place][0])
        for w in outputs.written:
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
    order = dense_order(tensor.desc.sizes, tensor.desc.strides)
    return None if order is None else (x.dtype, order, tensor.byte_offset & 15)


def _open_desc(desc: TensorDesc, sizes: Sequence[int]) -> TensorDesc:
    """A description of these sizes, in the same order in memory."""
    order = dense_order(desc.sizes, desc.strides)
    assert order is not None  # else there is no such plan
    return TensorDesc(
        desc.data_type, tuple(sizes), dense_strides(sizes, order),
        guaranteed_base_offset_alignment=desc.guaranteed_base_offset_alignment)


def member_of(module: GraphModule, name: Any) -> Any:
    member: Any = module
    for part in name.split("."):
        member = getattr(member, part)
    return member


def _attribute(graph: Graph, module: GraphModule, name: object) -> Any:
    member = member_of(module, name)
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


def expected_order(expected: object, value: Value) -> tuple[int, ...] | None:
    """The dimensions by falling stride where PyTorch expects a dense layout that is not packed."""
    if not isinstance(expected, torch.Tensor) or value.ndim < 2 or expected.is_contiguous():
        return None
    try:
        strides = [int(s) for s in expected.stride()]
    except (TypeError, RuntimeError):
        return None
    order = dense_order(value.shape, strides)
    return None if order == tuple(range(value.ndim)) else order
