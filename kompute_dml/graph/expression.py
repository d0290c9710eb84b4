"""Graphs written as expressions: functions of tensors that have no values yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..desc import MINIMUM_ALIGNMENT, TensorDesc
from ..device import Device, default_device
from ..dtypes import BOOL, DataType, element_type
from ..errors import UnsupportedError, ValidationError, expect, integers, refuse
from ..layout import Ints
from ..operators.base import OperatorDesc
from ..runtime.heap import Slot
from ..tensors import Tensor
from ..tensors.memory import standing_for
from ..tracing import Tracer, tracing
from .array import Array, device_type
from .builder import FEW, Builder
from .memory import MemoryUse, Storage
from .recorded import RecordedPlan

if TYPE_CHECKING:
    from ..tensors.types import DataTypeLike


class Expression(Tensor):
    """A result of a graph: a tensor without values. Its views are expressions, too.

    Operators and functions give the types that they give of tensors.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Type and sizes, for messages."""
        packed = "" if self.desc.is_packed else f", strides={list(self.strides)}"
        kind = "bool" if self.truth else self.data_type
        return f"<Expression {kind} {list(self.sizes)}{packed}>"

    def __bool__(self) -> NoReturn:
        raise UnsupportedError(f"bool: {self!r} has no values before its graph runs")


for _symbol in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or",
                "xor", "lshift", "rshift"):
    # Values of a graph do not change: the name gets a new one.
    setattr(Expression, f"__i{_symbol}__", getattr(Expression, f"__{_symbol}__"))


class Graph(Tracer):
    """A graph of operators, written as expressions (DirectMLX's Graph).

        with dml.Graph(device) as g:
            x = g.input([8, 64], name="x")
            y = dml.activation_relu(x @ weights + bias)
        run = g.compile(y)
        result = run(array)

    A function of an expression adds an operator to its graph. Inside the ``with`` block a function
    of arrays does, too. Arrays and tensors become constants of the graph, with the values that they
    have when it is compiled.
    """

    def __init__(self, device: Device | None = None) -> None:
        self.device = device or default_device()
        self.inputs: list[Array] = []
        self.names: list[str] = []
        self._builder: Builder | None = Builder(self.device)
        self._taken: dict[int, tuple[Tensor, Storage]] = {}
        self.written: set[Storage] = set()
        self._tokens: list[Token[Tracer | None]] = []

    def __repr__(self) -> str:
        return f"<Graph of {len(self.inputs)} inputs on {self.device!r}>"

    def __enter__(self) -> Graph:
        self._tokens.append(tracing.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        tracing.reset(self._tokens.pop())

    def input(self, sizes: Sequence[int], data_type: DataTypeLike = "float32", *, name: str = ""
              ) -> Expression:
        """A packed tensor that is an argument of every run. ``sizes`` may be (), or hold a 0, and
        ``data_type`` may be bool."""
        kind = element_type(data_type)
        x = self.empty(sizes, device_type(kind))
        x.truth = kind == BOOL
        self.written.add(_place(x)[1])
        name = name or f"input {len(self.inputs)}"
        expect(name not in self.names, "Graph.input", "name", "be new", name)
        self.inputs.append(_array(x, "Graph.input"))
        self.names.append(name)
        return x

    def constant(self, array: Any, data_type: DataTypeLike | None = None) -> Expression:
        """A tensor of these values."""
        x = self.as_constant(self.device.tensor(array, data_type))
        if x.nbytes <= FEW and x.data_type.bits >= 8:
            values = np.ascontiguousarray(array, x.dtype).reshape(-1)
            _begin(x).values = values.view(np.uint8)
        return x

    def compile(self, outputs: Expression | Sequence[Expression]) -> CompiledExpressions:
        """Compile the graph for these outputs. This is possible once.

        Operators that no output needs are left out. Raises an error if the device does not support
        one of the others.
        """
        asked = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        for y in asked:
            owner, storage = _place(y)
            expect(owner is self, "Graph.compile", "outputs", "be expressions of this graph",
                   repr(y))
            expect(storage.root in self.written or storage.root.constant or not y.size,
                   "Graph.compile", "outputs", "be computed by something", repr(y))
        ends = [_array(y, "Graph.compile") for y in asked]
        builder = self.builder_for("compile")
        self._builder = None
        plan = builder.finish(self.inputs, ends)
        return CompiledExpressions(self.names, self.inputs, plan, isinstance(outputs, Tensor))

    # The part of a device's interface that functions use

    def tensor(self, array: Any, data_type: DataTypeLike | None = None) -> Expression:
        """``array`` as a constant."""
        return self.constant(array, data_type)

    number = tensor

    def empty(self, sizes: Sequence[int], data_type: DataTypeLike = "float32") -> Expression:
        """A packed expression, for a function to write."""
        shape = integers("Graph.empty", "sizes", sizes)
        return self.new(standing_for(DataType.of(data_type), shape), shape=shape)

    def new(self, desc: TensorDesc, shape: Ints | None = None) -> Expression:
        """An expression for a result of these sizes."""
        storage: Any = self.builder_for("empty").storage(desc.total_tensor_size_in_bytes)
        return _expression(self, storage, 0, desc, False, shape)

    def add(self, desc: OperatorDesc, tensors: Mapping[str, Tensor]) -> None:
        """Add an operator over these expressions and tensors, by slot."""
        operator = desc.operator
        storages = {slot: self._storage(t) for slot, t in tensors.items()}
        for f in operator.slots(desc):
            storage = storages.get(f.snake)
            if f.kind == "output" and storage is not None:
                fresh = storage.root not in self.written and not storage.root.constant
                expect(fresh or storage.begin, operator.name, f.name,
                       "be written for the first time (values of a graph do not change)",
                       tensors[f.snake])
        self.builder_for(operator.name).add(desc, storages)
        self.written |= {storages[f.snake].root for f in operator.slots(desc)
                          if f.kind == "output" and f.snake in storages}

    def builder_for(self, operation: str) -> Builder:
        """What operators are added to. Raises ValidationError once the graph is compiled."""
        if self._builder is None:
            raise ValidationError(f"{operation}: expected a graph that is not compiled yet")
        return self._builder

    def as_constant(self, tensor: Tensor) -> Expression:
        """A tensor of the device as a constant of the graph."""
        key = id(tensor.allocation)
        if key not in self._taken:
            storage = Storage(tensor.allocation.nbytes, allocation=tensor.allocation, constant=True)
            self._taken[key] = tensor, storage
        return _expression(self, self._taken[key][1], tensor.byte_offset, tensor.desc,
                           tensor.truth, tensor.shape)

    def _storage(self, t: Tensor) -> Storage:
        x = t if _place(t)[0] is self else self.as_constant(t)
        return _begin(x)

    def read(self, *place: object) -> NoReturn:
        """Raises UnsupportedError: expressions have no memory."""
        raise UnsupportedError("an expression has no values before its graph is compiled and run")

    free = write = read


def _expression(
    graph: Any, storage: Any, byte_offset: int, desc: TensorDesc, truth: bool = False,
    shape: Ints | None = None,
) -> Expression:
    """A tensor whose device is a graph, and whose memory is a storage."""
    return Expression(graph, storage, byte_offset, desc, truth, shape)


def _place(t: Tensor) -> tuple[Any, Any]:
    """A tensor's device and memory."""
    return t.device, t.allocation


def _begin(t: Tensor) -> Storage:
    """The storage from the first element of an expression on."""
    storage: Storage = _place(t)[1]
    return storage.part(t.byte_offset) if t.byte_offset else storage


def _array(t: Tensor, operation: str) -> Array:
    expect(t.data_type.bits >= 8, operation, "data_type", "be of whole bytes", t.data_type)
    return Array(t.dtype, t.sizes, t.strides, _begin(t) if t.size else None)


class CompiledExpressions:
    """A compiled graph, which runs on arrays, or on tensors of its device."""

    def __init__(
        self, names: Sequence[str], inputs: Sequence[Array], plan: RecordedPlan, single: bool
    ) -> None:
        self._names, self._inputs, self._plan, self._single = list(names), inputs, plan, single

    def __repr__(self) -> str:
        return f"<CompiledExpressions of {len(self.operators)} operators>"

    @property
    def operators(self) -> list[str]:
        """The operators that run, in order, by DirectML's names without prefix."""
        return self._plan.operators

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the shader variants that run, in order."""
        return self._plan.variants

    @property
    def memory(self) -> MemoryUse:
        """The bytes that values inside share, and the least possible."""
        return self._plan.memory

    def __call__(self, *values: object, out: Tensor | Sequence[Tensor] | None = None) -> Any:
        """Run on arrays or tensors in the order of the inputs. Returns the only output, or a list
        of all.

        Of arrays alone the results are arrays. If a value is a tensor, or with ``out``, they are
        tensors, and nothing passes through the host: a packed tensor is bound where it lies, and
        the results are written to ``out`` or to new tensors. ``out`` is a tensor for each output,
        with its sizes and its type.

        Raises ValidationError for other sizes, types and devices.
        """
        if len(values) != len(self._inputs):
            refuse("a graph", "arguments",
                   f"be {len(self._inputs)} arrays ({', '.join(self._names)})", len(values))
        of_tensors = out is not None or any(isinstance(v, Tensor) for v in values)
        checked = [self._checked(name, x, v, of_tensors)
                   for name, x, v in zip(self._names, self._inputs, values)]
        results = self._bound(checked, out) if of_tensors else self._plan.run(checked)
        return results[0] if self._single else results

    def _checked(self, name: str, x: Array, value: object, of_tensors: bool) -> Any:
        """An argument as a contiguous array, or as a tensor that can be bound."""
        value = value if isinstance(value, Tensor) else np.asarray(value)
        # No texts for what is right: they would take longer than all else here.
        if value.shape != x.shape:
            refuse("a graph", f"{name}.sizes", f"be {list(x.shape)}", list(value.shape))
        if value.dtype != x.dtype:
            refuse("a graph", f"{name}.data_type",
                   f"be {'bool' if x.dtype == BOOL else DataType.of(x.dtype)}", value.dtype)
        device = self._plan.device
        if not isinstance(value, Tensor):
            return device.tensor(value) if of_tensors else np.ascontiguousarray(value)
        if value.device is not device:
            refuse("a graph", f"{name}.device", f"be {device!r}", repr(value.device))
        return value if _can_be_bound(value) else value.copy()

    def _bound(
        self, inputs: Sequence[Tensor], out: Tensor | Sequence[Tensor] | None
    ) -> list[Tensor]:
        device, ends = self._plan.device, self._plan.outputs
        targets: list[Tensor] | None = None
        if out is not None:
            targets = [out] if isinstance(out, Tensor) else list(out)
            expect(len(targets) == len(ends), "a graph", "out", f"be {len(ends)} tensors",
                   len(targets))
            for t, y in zip(targets, ends):
                if t.device is not device or t.shape != y.shape or t.dtype != y.dtype:
                    refuse("a graph", "out", f"be tensors of {device!r}, here {y.dtype} "
                           f"{list(y.shape)}", t.summary())
        results: list[Tensor] = []
        taken = {id(x.allocation) for x in inputs}
        for i, y in enumerate(ends):
            place = targets[i] if targets else None
            if place is None or not _can_be_bound(place) or id(place.allocation) in taken:
                place = device.empty(y.shape, device_type(y.dtype))
                place.truth = y.dtype == BOOL
            taken.add(id(place.allocation))
            results.append(place)
        slots = [[Slot(t.allocation, t.byte_offset) for t in ts] for ts in (inputs, results)]
        self._plan.bind(*slots)
        for i, t in enumerate(targets or ()):
            if t is not results[i]:
                t[...] = results[i]
                results[i] = t
        return results


def _can_be_bound(t: Tensor) -> bool:
    """Whether a plan can use the tensor where it lies."""
    return t.desc.is_packed and t.byte_offset % MINIMUM_ALIGNMENT == 0
