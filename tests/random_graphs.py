"""ONNX graphs of random nodes: the chains, branches and views that compilation changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from random_draw import F16, F32, Draw

Sizes = tuple[int, ...]
_MOST = 60_000
"""Elements of a value that nodes go on from."""
_NEAR = 4
"""Most nodes go on from one of the last values, so that chains are long."""
_OF_ONE = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Erf", "Gelu", "HardSwish", "LeakyRelu", "Elu",
           "Softplus", "HardSigmoid", "Identity")
_OPSET = 20


class RandomGraph:
    """A model under construction. Values have names and sizes, and all one data type."""

    def __init__(self, seed: int) -> None:
        self.draw = d = Draw(seed)
        self.dtype = d.of(F32, F32, F32, F16)
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.inputs: list[tuple[str, Sizes]] = []
        for i in range(d.whole(1, 2)):
            sizes = d.of(
                (d.whole(1, 3), d.of(2, 4, 6, 8, 16), d.whole(3, 12), d.whole(3, 12)),
                (d.whole(1, 3), d.whole(1, 20), d.of(4, 8, 12, 16, 32, 64)),
                (d.whole(1, 40), d.whole(1, 40)))
            self.inputs.append((f"x{i}", sizes))
        self.values = list(self.inputs)
        for _ in range(d.whole(3, 14)):
            name, sizes = d.of(*(self.values[-_NEAR:] if d.chance(0.8) else self.values))
            if np.prod(sizes) <= _MOST:
                d.of(*_STEPS)(self, name, sizes)

    def floats(self, *sizes: int, scale: float = 0.35) -> np.ndarray:
        return (self.draw.floats(*sizes) * F32(scale)).astype(self.dtype)

    def constant(self, x: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(x), name))
        return name

    def numbers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def emit(self, op: str, inputs: Sequence[str], *sizes: Sequence[int], **attributes: Any) -> str:
        names = [f"v{len(self.values) + i}" for i in range(len(sizes))]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        self.values += [(name, tuple(s)) for name, s in zip(names, sizes)]
        return names[0]

    def model(self) -> bytes:
        """The model. Its outputs are what no node reads, and a few other values."""
        d, kind = self.draw, helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        read = {name for node in self.nodes for name in node.input}
        made = [name for name, _ in self.values[len(self.inputs):]
                if name not in read or d.chance(0.1)]
        first = "n" if len(self.inputs) == 1 and d.chance(0.3) else None
        given = [helper.make_tensor_value_info(name, kind, [first or sizes[0], *sizes[1:]])
                 for name, sizes in self.inputs]
        graph = helper.make_graph(self.nodes, "random", given,
                                  [helper.make_empty_tensor_value_info(name) for name in made],
                                  self.constants)
        return bytes(helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10
        ).SerializeToString())

    def feed(self) -> dict[str, np.ndarray]:
        return {name: self.floats(*sizes) for name, sizes in self.inputs}


Step = Callable[[RandomGraph, str, Sizes], None]


def _of_one(g: RandomGraph, x: str, sizes: Sizes) -> None:
    g.emit(g.draw.of(*_OF_ONE), [x], sizes)


def _of_two(g: RandomGraph, x: str, sizes: Sizes) -> None:
    d = g.draw
    alike = [name for name, s in g.values if s == sizes]
    small = [d.of(1, n) for n in sizes][d.whole(0, len(sizes)):]
    other = d.of(*alike) if d.chance() else g.constant(g.floats(*(small if d.chance(0.7) else ())))
    pair = [x, other] if d.chance() else [other, x]
    g.emit(d.of("Add", "Sub", "Mul", "Add", "Max"), pair, sizes)


def _convolution(g: RandomGraph, x: str, sizes: Sizes) -> None:
    d = g.draw
    if len(sizes) != 4:
        return
    groups = d.of(1, 1, sizes[1])
    filters = groups * d.of(1, 2) if groups > 1 else d.of(1, 3, 4, 8, 16)
    side, step, each = d.of(1, 1, 3, 3, 5), d.of(1, 1, 2), sizes[1] // groups
    planes = [(n + 2 * (side // 2) - side) // step + 1 for n in sizes[2:]]
    if min(planes) < 1:
        return
    w = g.floats(filters, each, side, side, scale=0.5 / (side * each**0.5))
    bias = [g.constant(g.floats(filters))] if d.chance() else []
    made = (sizes[0], filters, *planes)
    y = g.emit("Conv", [x, g.constant(w), *bias], made, group=groups, pads=[side // 2] * 4,
               strides=[step] * 2)
    if d.chance(0.4):
        lines = [g.floats(filters) for _ in range(3)]
        lines.append(np.abs(g.floats(filters)) + g.dtype(0.3))
        g.emit("BatchNormalization", [y, *map(g.constant, lines)], made)


def _product(g: RandomGraph, x: str, sizes: Sizes) -> None:
    d, k = g.draw, sizes[-1]
    n = d.of(1, 4, 8, 16, 33, 64)
    w, made = g.floats(k, n, scale=0.5 / k**0.5), (*sizes[:-1], n)
    if len(sizes) == 2 and d.chance():
        g.emit("Gemm", [x, g.constant(w.T), g.constant(g.floats(n))], made, transB=1)
        return
    y = g.emit("MatMul", [x, g.constant(w)], made)
    if d.chance():
        bias = g.constant(g.floats(n))
        g.emit("Add", [y, bias] if d.chance() else [bias, y], made)


def _rows(g: RandomGraph, x: str, sizes: Sizes) -> None:
    d = g.draw
    if d.chance():
        lines = [g.constant(g.floats(sizes[-1])) for _ in range(2)]
        g.emit("LayerNormalization", [x, *lines], sizes, axis=-1, epsilon=1e-2)
    else:
        g.emit(d.of("Softmax", "Softmax", "LogSoftmax"), [x], sizes, axis=d.axis(sizes))


def _view(g: RandomGraph, x: str, sizes: Sizes) -> None:
    d = g.draw
    if d.chance():
        order = [int(a) for a in d.rng.permutation(len(sizes))]
        g.emit("Transpose", [x], [sizes[a] for a in order], perm=order)
        return
    count = int(np.prod(sizes))
    a = d.of(*(n for n in range(1, count + 1) if count % n == 0))
    b = d.of(*(n for n in range(1, count // a + 1) if count // a % n == 0))
    made = d.of((count // a, a), (b, a, count // a // b))
    g.emit("Reshape", [x, g.numbers(*made)], made)


def _part(g: RandomGraph, x: str, sizes: Sizes) -> None:
    d = g.draw
    axis = d.whole(0, len(sizes) - 1)
    n = sizes[axis]

    def of(m: int) -> list[int]:
        return [m if a == axis else size for a, size in enumerate(sizes)]

    if n > 1 and d.chance():
        first = d.whole(1, n - 1)
        g.emit("Split", [x, g.numbers(first, n - first)], of(first), of(n - first), axis=axis)
        return
    begin = d.whole(0, n - 1)
    end, step = d.whole(begin + 1, n), d.of(1, 1, 1, 2)
    g.emit("Slice", [x, *map(g.numbers, (begin, end, axis, step))],
           of(len(range(begin, end, step))))


def _join(g: RandomGraph, x: str, sizes: Sizes) -> None:
    d = g.draw
    axis = d.whole(0, len(sizes) - 1)
    fit = [(name, s) for name, s in g.values if len(s) == len(sizes) and all(
        m == n for a, (m, n) in enumerate(zip(s, sizes)) if a != axis)]
    parts = [(x, sizes), *(d.of(*fit) for _ in range(d.whole(1, 2)))]
    made = list(sizes)
    made[axis] = sum(s[axis] for _, s in parts)
    g.emit("Concat", [name for name, _ in parts], made, axis=axis)


def _reduction(g: RandomGraph, x: str, sizes: Sizes) -> None:
    axes = sorted(a % len(sizes) for a in g.draw.axes(sizes, 1))
    g.emit(g.draw.of("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2"), [x, g.numbers(*axes)],
           [1 if a in axes else n for a, n in enumerate(sizes)], keepdims=1)


def _pooling(g: RandomGraph, x: str, sizes: Sizes) -> None:
    if len(sizes) == 4 and min(sizes[2:]) >= 3:
        g.emit(g.draw.of("MaxPool", "AveragePool"), [x],
               [*sizes[:2], *((n - 3) // 2 + 1 for n in sizes[2:])], kernel_shape=[3, 3],
               strides=[2, 2])


_STEPS: tuple[Step, ...] = (
    _of_one, _of_one, _of_one, _of_two, _of_two, _of_two, _convolution, _convolution, _product,
    _product, _rows, _view, _view, _part, _join, _reduction, _pooling,
)
