"""Random graphs of DirectML's operators, whose results several operators read.

A program is a list of steps. The same steps make an expression's graph, a graph's description, or
run one by one. All values are of few shapes, so that few pipelines serve all programs.

    python tests/random_expressions.py FIRST COUNT      computes those of the seeds from FIRST on

with tests in PYTHONPATH.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import kompute_dml as dml
from random_draw import F32, Draw

Shape = tuple[int, ...]
INPUTS: tuple[Shape, ...] = ((6, 8), (6, 8), (8, 6), (2, 4, 6, 6))
DTYPES = F32, np.int32
_LARGEST = 40.0
"""The largest bound of a value, so that rounding stays small."""
_NEAR = 6
"""Operators mostly read one of the latest values."""
_ROUNDING = 1e-5
"""What fusion may change, of the bound of a value. Fifty thousand values were within 1.2e-7."""


class Value(NamedTuple):
    number: int
    shape: Shape
    bound: float


class Step(NamedTuple):
    name: str
    inputs: tuple[int, ...]
    """The numbers of the values that it reads."""
    compute: Callable[..., Any]
    """A function of tensors, or of expressions. It returns one, or as many as it makes."""


class Program:
    """Five to forty operators on inputs of :data:`INPUTS`, FLOAT32 or INT32."""

    def __init__(self, seed: int) -> None:
        self.draw = d = Draw(seed)
        self.whole = d.chance(0.25)
        """Whether it computes with INT32."""
        self.values = [Value(i, shape, 3.0) for i, shape in enumerate(INPUTS)]
        self.steps: list[Step] = []
        kinds = _WHOLE if self.whole else _FLOATS
        count = d.whole(5, 40)
        while len(self.steps) < count:
            d.of(*kinds)(self, d.of(*(self.values[-_NEAR:] if d.chance(0.8) else self.values)))
        read = {i for step in self.steps for i in step.inputs}
        self.outputs = [v for v in self.values[len(INPUTS):] if v.number not in read
                        or d.chance(0.08)]

    def __str__(self) -> str:
        return ", ".join(f"{s.name}{s.inputs}" for s in self.steps)

    def feed(self) -> list[np.ndarray]:
        if self.whole:
            return [self.draw.integers(s, np.int32) for s in INPUTS]
        return [np.clip(self.draw.floats(*s) * F32(0.5), -3, 3) for s in INPUTS]

    def add(self, name: str, inputs: Sequence[Value], compute: Callable[..., Any],
            *made: tuple[Shape, float]) -> None:
        """A step that makes values of these shapes and bounds. None if a bound is too large."""
        if self.whole or all(bound <= _LARGEST for _, bound in made):
            self.steps.append(Step(name, tuple(v.number for v in inputs), compute))
            self.values += [Value(len(self.values) + i, *m) for i, m in enumerate(made)]

    def other(self, x: Value) -> Value:
        """A value of the same shape, which may be the same one."""
        return self.draw.of(*(v for v in self.values[-2 * _NEAR:] if v.shape == x.shape), x)

    def constant(self, *sizes: int, scale: float = 0.25) -> np.ndarray:
        return np.clip(self.draw.floats(*sizes) * F32(scale), -1, 1)

    def results(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of the steps on tensors, or on expressions."""
        known = list(inputs)
        for step in self.steps:
            made = step.compute(*(known[i] for i in step.inputs))
            known += made if isinstance(made, (list, tuple)) else [made]
        return [known[v.number] for v in self.outputs]


Kind = Callable[[Program, Value], None]


def _one(p: Program, x: Value) -> None:
    name, bound = p.draw.of(
        ("negate", x.bound), ("abs", x.bound), ("activation_relu", x.bound), ("tanh", 1.0),
        ("activation_sigmoid", 1.0), ("erf", 1.0), ("activation_softplus", x.bound + 1),
        ("activation_leaky_relu", x.bound), ("activation_gelu", x.bound), ("identity", x.bound))
    p.add(name, [x], getattr(dml, name), (x.shape, bound))


def _clip(p: Program, x: Value) -> None:
    low, high = -p.draw.whole(0, 2), p.draw.whole(1, 3)
    p.add("clip", [x], lambda x: dml.clip(x, low, high), (x.shape, float(max(-low, high))))


def _two(p: Program, x: Value) -> None:
    y = p.other(x)
    total = x.bound + y.bound
    name, bound = p.draw.of(("add", total), ("subtract", total), ("multiply", x.bound * y.bound),
                            ("max", max(x.bound, y.bound)), ("min", max(x.bound, y.bound)))
    p.add(name, [x, y], getattr(dml, name), (x.shape, bound))


def _with_number(p: Program, x: Value) -> None:
    number = p.draw.of(0.5, 2.0, -1.5, 1 / 3)
    name, bound = p.draw.of(("add", x.bound + 2), ("multiply", x.bound * abs(number)))
    p.add(name, [x], lambda x: getattr(dml, name)(x, number), (x.shape, bound))


def _gate(p: Program, x: Value) -> None:
    """Two operators that read one value, and one that reads both."""
    p.add("sigmoid", [x], dml.activation_sigmoid, (x.shape, 1.0))
    gate = p.values[-1]
    p.add("multiply", [x, gate] if p.draw.chance() else [gate, x], dml.multiply,
          (x.shape, x.bound))


def _spelled_gelu(p: Program, x: Value) -> None:
    number = p.draw.of(2**-0.5, 0.8)
    function = p.draw.of(dml.erf, dml.activation_tanh)
    p.add("multiply", [x], lambda x: dml.multiply(x, number), (x.shape, x.bound))
    p.add("erf or tanh", p.values[-1:], function, (x.shape, 1.0))
    p.add("add", p.values[-1:], lambda x: dml.add(x, 1.0), (x.shape, 2.0))
    p.add("multiply", [x, p.values[-1]], dml.multiply, (x.shape, 2 * x.bound))
    p.add("multiply", p.values[-1:], lambda x: dml.multiply(x, 0.5), (x.shape, x.bound))


def _spelled_normalization(p: Program, x: Value) -> None:
    if x.bound > 3:
        return  # squares grow
    axes = (len(x.shape) - 1,)
    average = dml.ReduceFunction.AVERAGE
    p.add("reduce", [x], lambda x: dml.reduce(x, function=average, axes=axes),
          ((*x.shape[:-1], 1), x.bound))
    p.add("subtract", [x, p.values[-1]], dml.subtract, (x.shape, 2 * x.bound))
    last = p.values[-1]
    p.add("square and reduce", [last], lambda x: dml.reduce(
        dml.multiply(x, x), function=average, axes=axes), ((*x.shape[:-1], 1), _LARGEST))
    p.add("add and root", p.values[-1:], lambda x: dml.sqrt(dml.add(x, 0.1)),
          ((*x.shape[:-1], 1), _LARGEST))
    p.add("divide", [last, p.values[-1]], dml.divide, (x.shape, 4.0))


def _spelled_attention(p: Program, x: Value) -> None:
    k, v = p.other(x), p.other(x)
    if len(x.shape) != 2 or x.bound * k.bound * x.shape[1] > _LARGEST:
        return
    size = x.shape[1]
    p.add("gemm", [x, k], lambda x, k: dml.gemm(x, k, trans_b=True),
          ((x.shape[0], k.shape[0]), x.bound * k.bound * size))
    p.add("multiply", p.values[-1:], lambda x: dml.multiply(x, 1 / size),
          (p.values[-1].shape, p.values[-1].bound))
    p.add("softmax", p.values[-1:], dml.activation_softmax1, (p.values[-1].shape, 1.0))
    p.add("gemm", [p.values[-1], v], dml.gemm, (x.shape, v.bound))


def _largest(p: Program, x: Value) -> None:
    """Two outputs, of which nobody reads the second."""
    if x.shape[-1] % 2 == 0:
        half = x.shape[-1] // 2
        p.add("top_k", [x], lambda x: dml.top_k(x, k=half)[0], ((*x.shape[:-1], half), x.bound))


def _slice(p: Program, x: Value) -> None:
    d = p.draw
    axis = d.whole(0, len(x.shape) - 1)
    n = x.shape[axis]
    if n < 4:
        return
    step = d.of(1, 1, 2)
    sizes = tuple(n // 2 if i == axis else m for i, m in enumerate(x.shape))
    first = [d.whole(0, n - 1 - (n // 2 - 1) * step) if i == axis else 0
             for i in range(len(sizes))]
    steps = [step if i == axis else 1 for i in range(len(sizes))]
    p.add("slice", [x], lambda x: dml.slice(x, offsets=first, sizes=sizes, strides=steps),
          (sizes, x.bound))


def _split(p: Program, x: Value) -> None:
    axis = p.draw.whole(0, len(x.shape) - 1)
    if x.shape[axis] % 2 == 0:
        half = tuple(n // 2 if i == axis else n for i, n in enumerate(x.shape))
        p.add("split", [x], lambda x: dml.split(x, sections=2, axis=axis),
              (half, x.bound), (half, x.bound))


def _tile(p: Program, x: Value) -> None:
    axis = p.draw.whole(0, len(x.shape) - 1)
    if x.shape[axis] <= 4:
        made = tuple(2 * n if i == axis else n for i, n in enumerate(x.shape))
        repeats = [2 if i == axis else 1 for i in range(len(made))]
        p.add("tile", [x], lambda x: dml.tile(x, repeats=repeats), (made, x.bound))


def _join(p: Program, x: Value) -> None:
    axis, y = p.draw.whole(0, len(x.shape) - 1), p.other(x)
    if x.shape[axis] <= 4:
        made = tuple(2 * n if i == axis else n for i, n in enumerate(x.shape))
        p.add("join", [x, y], lambda *parts: dml.join(parts, axis=axis),
              (made, max(x.bound, y.bound)))


def _transpose(p: Program, x: Value) -> None:
    order = [int(i) for i in p.draw.rng.permutation(len(x.shape))]
    made = tuple(x.shape[i] for i in order)
    p.add("transpose", [x], lambda x: dml.identity(dml.transpose(x, order)), (made, x.bound))


def _rows(p: Program, x: Value) -> None:
    axis = p.draw.whole(0, len(x.shape) - 1)
    if p.draw.chance():
        p.add("softmax", [x], lambda x: dml.activation_softmax1(x, axes=(axis,)), (x.shape, 1.0))
    else:
        p.add("normalization", [x], lambda x: dml.mean_variance_normalization1(
            x, axes=(axis,), normalize_variance=True, epsilon=0.1), (x.shape, 4.0))


def _reduce(p: Program, x: Value) -> None:
    axis = p.draw.whole(0, len(x.shape) - 1)
    function = p.draw.of(dml.ReduceFunction.AVERAGE, dml.ReduceFunction.MAX)
    p.add("reduce and subtract", [x], lambda x: dml.subtract(
        x, dml.reduce(x, function=function, axes=(axis,))), (x.shape, 2 * x.bound))


def _product(p: Program, x: Value) -> None:
    if len(x.shape) == 2:
        k, n = x.shape[1], p.draw.of(4, 6, 8)
        w = p.constant(k, n)
        p.add("gemm", [x], lambda x: dml.gemm(x, w), ((x.shape[0], n), x.bound * k * 0.5))


def _scores(p: Program, x: Value) -> None:
    y = p.other(x)
    if len(x.shape) == 2:
        k = x.shape[1]
        p.add("gemm", [x, y], lambda x, y: dml.gemm(x, y, trans_b=True, alpha=1 / k),
              ((x.shape[0], y.shape[0]), x.bound * y.bound))


def _convolution(p: Program, x: Value) -> None:
    if len(x.shape) == 4:
        side, channels = p.draw.of(1, 3), x.shape[1]
        w = p.constant(4, channels, side, side, scale=0.25 / side)
        p.add("convolution", [x], lambda x: dml.convolution(
            x, w, start_padding=[side // 2] * 2, end_padding=[side // 2] * 2),
            ((x.shape[0], 4, *x.shape[2:]), x.bound * channels * side * 0.5))


def _exact_one(p: Program, x: Value) -> None:
    name = p.draw.of("negate", "abs", "bit_not", "identity", "sign")
    p.add(name, [x], getattr(dml, name), (x.shape, 0))


def _exact_two(p: Program, x: Value) -> None:
    name = p.draw.of("add", "subtract", "multiply", "max", "min", "bit_xor", "bit_and")
    p.add(name, [x, p.other(x)], getattr(dml, name), (x.shape, 0))


def _choice(p: Program, x: Value) -> None:
    y, z = p.other(x), p.other(x)
    p.add("choice", [x, y, z], lambda x, y, z: dml.if_(dml.logical_less_than(x, y), z, x),
          (x.shape, max(x.bound, z.bound)))


_MOVES: tuple[Kind, ...] = (_slice, _split, _tile, _join, _transpose)
_WHOLE: tuple[Kind, ...] = (*[_exact_one] * 3, *[_exact_two] * 6, _choice, *_MOVES)
_FLOATS: tuple[Kind, ...] = (
    *[_one] * 4, *[_two] * 5, _clip, _with_number, _gate, *_MOVES, _rows, _reduce,
    *[_product] * 2, _scores, *[_convolution] * 2, _largest, _spelled_gelu,
    _spelled_normalization, _spelled_attention)


class DescribedGraph(dml.Graph):
    """A graph of expressions that also knows its operators' descriptions."""

    def __init__(self, device: dml.Device) -> None:
        super().__init__(device)
        self._added: list[tuple[Any, dict[str, dml.Tensor]]] = []
        self._data: dict[int, bytes] = {}
        """The bytes of each constant, by its memory."""

    def constant(self, array: Any, data_type: Any = None) -> Any:
        made = super().constant(array, data_type)
        self._data[id(made.allocation)] = np.ascontiguousarray(array, made.dtype).tobytes()
        return made

    tensor = _number = constant

    def add(self, desc: Any, tensors: Mapping[str, dml.Tensor]) -> None:
        self._added.append((desc, dict(tensors)))
        super().add(desc, tensors)

    def described(self, inputs: Sequence[dml.Tensor], outputs: Sequence[dml.Tensor]
                  ) -> dml.GraphDesc:
        """What :meth:`dml.Device.compile_graph` takes."""
        nodes: list[Any] = []
        from_inputs, from_outputs, links = [], [], []
        given = {id(x.allocation): i for i, x in enumerate(inputs)}
        makers: dict[int, tuple[int, int]] = {}
        for desc, tensors in self._added:
            number = len(nodes)
            nodes.append(dml.OperatorGraphNodeDesc(self.device.create_operator(desc)))
            counts = {"input": 0, "output": 0}
            for f in desc.operator.slots(desc):
                slot, t = counts[f.kind], tensors.get(f.snake)
                counts[f.kind] += 1
                if t is None:
                    continue
                key = id(t.allocation)
                if f.kind == "output":
                    makers[key] = number, slot
                elif key in given:
                    from_inputs.append(dml.InputGraphEdgeDesc(given[key], number, slot))
                else:
                    if key not in makers:
                        makers[key] = len(nodes), 0
                        nodes.append(dml.ConstantDataGraphNodeDesc(self._data[key]))
                    links.append(dml.IntermediateGraphEdgeDesc(*makers[key], number, slot))
        for i, y in enumerate(outputs):
            from_outputs.append(dml.OutputGraphEdgeDesc(*makers[id(y.allocation)], i))
        return dml.GraphDesc(len(inputs), len(outputs), nodes, from_inputs, from_outputs, links)


class Drawn(NamedTuple):
    """A program as a graph of expressions."""

    program: Program
    graph: DescribedGraph
    inputs: list[dml.Tensor]
    outputs: list[dml.Tensor]


def drawn(device: dml.Device, seed: int) -> Drawn:
    program, graph = Program(seed), DescribedGraph(device)
    inputs = [graph.input(shape, DTYPES[program.whole]) for shape in INPUTS]
    return Drawn(program, graph, inputs, program.results(inputs))


def differs(device: dml.Device, seed: int) -> str:
    """What the compiled graph of a program computes that its operators, one by one, do not; or
    nothing."""
    program, graph, _, outputs = drawn(device, seed)
    feed = program.feed()
    run = graph.compile(outputs)
    results = program.results([device.tensor(x) for x in feed])
    for value, y, expected in zip(program.outputs, run(*feed), results):
        off = np.abs(y.astype(float) - expected.numpy()).max()
        if not off <= (0 if program.whole else _ROUNDING * max(value.bound, 1)):
            return f"seed {seed}: value {value.number} is off by {off:.2g}: {program}"
    return ""


if __name__ == "__main__":
    problems = [text for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2]))
                if (text := differs(dml.default_device(), seed))]
    print(*problems, f"{len(problems)} wrong", sep="\n")
    sys.exit(bool(problems))
