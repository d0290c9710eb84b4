"""Graphs written as expressions: functions of tensors that have no values yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import UnsupportedError, ValidationError, expect
from ..operators.base import OperatorDesc
from ..tensors import Tensor
from .active import Taker, innermost
from .array import Array
from .builder import FEW, Builder
from .memory import MemoryUse, Storage
from .recorded import RecordedPlan

if TYPE_CHECKING:
    from ..device import Device

if TYPE_CHECKING:
    def _operator(self: Expression, other: Any, /) -> Expression: ...


class Expression(Tensor):
    """A result of a graph: a tensor without values. Its views are expressions, too.

    Python's operators call the functions of the same meaning.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Type and sizes, for messages."""
        packed = "" if self.desc.is_packed else f", strides={list(self.strides)}"
        return f"<Expression {self.data_type} {list(self.sizes)}{packed}>"

    if TYPE_CHECKING:  # what is set below
        __add__ = __sub__ = __mul__ = __truediv__ = __mod__ = __pow__ = __matmul__ = _operator
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmod__ = __rpow__ = _operator
        __rmatmul__ = _operator
        __lt__ = __le__ = __gt__ = __ge__ = _operator

        def __neg__(self) -> Expression: ...

        def __abs__(self) -> Expression: ...

    def __bool__(self) -> NoReturn:
        raise UnsupportedError(f"bool: {self!r} has no values before its graph runs")


def _applied(name: str, swapped: bool = False) -> Callable[..., Any]:
    def apply(*operands: Any) -> Any:
        from ..functions import functions

        return functions()[name](*(reversed(operands) if swapped else operands))

    return apply


for _symbol, _name in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide",
    "mod": "modulus_floor", "pow": "pow", "matmul": "gemm", "and": "bit_and", "or": "bit_or",
    "xor": "bit_xor", "lshift": "bit_shift_left", "rshift": "bit_shift_right",
}.items():
    setattr(Expression, f"__{_symbol}__", _applied(_name))
    setattr(Expression, f"__i{_symbol}__", _applied(_name))  # gives the name a new value
    setattr(Expression, f"__r{_symbol}__", _applied(_name, swapped=True))
for _symbol, _name in {
    "neg": "negate", "abs": "abs", "invert": "bit_not", "lt": "logical_less_than",
    "le": "logical_less_than_or_equal", "gt": "logical_greater_than",
    "ge": "logical_greater_than_or_equal",
}.items():
    setattr(Expression, f"__{_symbol}__", _applied(_name))


class Graph(Taker):
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
        from ..device import default_device

        self.device = device or default_device()
        self.inputs: list[Array] = []
        self.names: list[str] = []
        self._builder: Builder | None = Builder(self.device)
        self._taken: dict[int, tuple[Tensor, Storage]] = {}
        self._written: set[Storage] = set()
        self._tokens: list[Token[Taker | None]] = []

    def __repr__(self) -> str:
        return f"<Graph of {len(self.inputs)} inputs on {self.device!r}>"

    def __enter__(self) -> Graph:
        self._tokens.append(innermost.set(self))
        return self

    def __exit__(self, *error: object) -> None:
        innermost.reset(self._tokens.pop())

    def input(self, sizes: Sequence[int], data_type: Any = "float32", *, name: str = ""
              ) -> Expression:
        """A packed tensor that is an argument of every run."""
        made = self.empty(sizes, data_type)
        self._written.add(_place(made)[1])
        name = name or f"input {len(self.inputs)}"
        expect(name not in self.names, "Graph.input", "name", "be new", name)
        self.inputs.append(_array(made, "Graph.input"))
        self.names.append(name)
        return made

    def constant(self, array: Any, data_type: Any = None) -> Expression:
        """A tensor of these values."""
        made = self._take(self.device.tensor(array, data_type))
        if made.nbytes <= FEW and made.data_type.bits >= 8:
            values = np.ascontiguousarray(array, made.dtype).reshape(-1)
            _begin(made).values = values.view(np.uint8)
        return made

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
            expect(storage.root in self._written or storage.root.constant, "Graph.compile",
                   "outputs", "be computed by something", repr(y))
        ends = [_array(y, "Graph.compile") for y in asked]
        builder = self._open("compile")
        self._builder = None
        plan = builder.finish(self.inputs, ends)
        return CompiledExpressions(self.names, self.inputs, plan, isinstance(outputs, Tensor))

    # The part of a device's interface that functions use

    def tensor(self, array: Any, data_type: Any = None) -> Expression:
        """``array`` as a constant."""
        return self.constant(array, data_type)

    _number = tensor

    def empty(self, sizes: Sequence[int], data_type: Any = "float32") -> Expression:
        """A packed expression, for a function to write."""
        desc = TensorDesc.packed(data_type, sizes)
        storage: Any = self._open("empty").storage(desc.total_tensor_size_in_bytes)
        return _expression(self, storage, 0, desc)

    def add(self, desc: OperatorDesc, tensors: Mapping[str, Tensor]) -> None:
        """Add an operator over these expressions and tensors, by slot."""
        operator = desc.operator
        storages = {slot: self._storage(t) for slot, t in tensors.items()}
        for f in operator.slots(desc):
            storage = storages.get(f.snake)
            if f.kind == "output" and storage is not None:
                fresh = storage.root not in self._written and not storage.root.constant
                expect(fresh or storage.begin, operator.name, f.name,
                       "be written for the first time (values of a graph do not change)",
                       tensors[f.snake])
        self._open(operator.name).add(desc, storages)
        self._written |= {storages[f.snake].root for f in operator.slots(desc)
                          if f.kind == "output" and f.snake in storages}

    def _open(self, operation: str) -> Builder:
        if self._builder is None:
            raise ValidationError(f"{operation}: expected a graph that is not compiled yet")
        return self._builder

    def _take(self, tensor: Tensor) -> Expression:
        """A tensor of the device as a constant of the graph."""
        key = id(tensor.allocation)
        if key not in self._taken:
            storage = Storage(tensor.allocation.nbytes, allocation=tensor.allocation, constant=True)
            self._taken[key] = tensor, storage
        return _expression(self, self._taken[key][1], tensor.byte_offset, tensor.desc)

    def _storage(self, t: Tensor) -> Storage:
        x = t if _place(t)[0] is self else self._take(t)
        return _begin(x)

    def _read(self, *place: Any) -> NoReturn:
        raise UnsupportedError("an expression has no values before its graph is compiled and run")

    _free = _write = _read


def _expression(graph: Any, storage: Any, byte_offset: int, desc: TensorDesc) -> Expression:
    """A tensor whose device is a graph, and whose memory is a storage."""
    return Expression(graph, storage, byte_offset, desc)


def _place(t: Tensor) -> tuple[Any, Any]:
    """A tensor's device and memory."""
    return t.device, t.allocation


def _begin(t: Tensor) -> Storage:
    """The storage from the first element of an expression on."""
    storage: Storage = _place(t)[1]
    return storage.part(t.byte_offset) if t.byte_offset else storage


def _array(t: Tensor, operation: str) -> Array:
    expect(t.data_type.bits >= 8, operation, "data_type", "be of whole bytes", t.data_type)
    return Array(t.dtype, t.sizes, t.strides, _begin(t))


class CompiledExpressions:
    """A compiled graph, which runs on arrays."""

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
    def memory(self) -> MemoryUse:
        """The bytes that values inside share, and the least possible."""
        return self._plan.memory

    def __call__(self, *arrays: Any) -> Any:
        """Run on arrays in the order of the inputs. Returns the only output, or a list of all."""
        expect(len(arrays) == len(self._inputs), "a graph", "arguments",
               f"be {len(self._inputs)} arrays ({', '.join(self._names)})", len(arrays))
        given = []
        for name, x, array in zip(self._names, self._inputs, arrays):
            value = np.asarray(array)
            expect(value.shape == x.shape, "a graph", f"{name}.sizes", f"be {list(x.shape)}",
                   list(value.shape))
            expect(value.dtype == x.dtype, "a graph", f"{name}.data_type",
                   f"be {DataType.of(x.dtype)}", value.dtype)
            given.append(np.ascontiguousarray(value))
        results = self._plan.run(given)
        return results[0] if self._single else results
