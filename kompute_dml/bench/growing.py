"""A decoder whose caches grow by a row in each run: of small operators, as optimum exports one, or
of those that opset 23 has for decoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from onnx import NodeProto

    from .decoders import Shape

_ROTATION = 1000.0
_LOWEST = -1e9


def decoder(shape: Shape, rng: np.random.Generator, *, small: bool = True) -> bytes:
    """The model with random FLOAT32 weights, of ``small`` operators or of few. Its inputs are
    ``ids`` and ``positions`` [1, length], ``mask`` [1, total] and ``past.<layer>.<key or value>``
    [1, head, past, element], its outputs ``logits`` [1, length, word] and ``now.<layer>.<key or
    value>``. The ``bits`` of the shape are not read."""
    return (_GrowingMaker if small else _FewNodes)(shape, rng).model()


def step(shape: Shape, past: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The inputs of one token after so many others."""
    sizes = (1, shape.key_heads, past, shape.head)
    return {"ids": rng.integers(0, shape.words, (1, 1)),
            "positions": np.array([[past]], np.int64), "mask": np.ones((1, past + 1), np.int64),
            **{f"past.{name}": rng.standard_normal(sizes, np.float32) for name in _caches(shape)}}


def _caches(shape: Shape) -> list[str]:
    return [f"{n}.{kind}" for n in range(shape.layers) for kind in ("key", "value")]


class _GrowingMaker:
    """Collects nodes and constants."""

    opset = 18

    def __init__(self, shape: Shape, rng: np.random.Generator) -> None:
        self._shape, self._rng = shape, rng
        self._nodes: list[NodeProto] = []

        def whole(*numbers: int) -> np.ndarray:
            return np.array(numbers, np.int64)

        def real(number: float) -> np.ndarray:
            return np.array(number, np.float32)

        half = _ROTATION ** -(np.arange(0, shape.head, 2) / shape.head)
        self._constants = {
            "embedding": rng.standard_normal((shape.words, shape.width), np.float32),
            "angles": half.astype(np.float32).reshape(1, -1), "two": real(2), "one": real(1),
            "epsilon": real(1e-5), "scale": real(shape.head ** -0.5), "lowest": real(_LOWEST),
            "half": whole(shape.head // 2), "zero": whole(0), "end": whole(shape.head),
            "axis 3": whole(3), "axis 2": whole(2), "axis 1": whole(1), "last": whole(-1),
            "first": np.array(0, np.int64), "second": np.array(1, np.int64),
            "third": np.array(2, np.int64), "repeats": whole(shape.heads // shape.key_heads),
            "groups": whole(shape.key_heads), "size": whole(shape.head),
            "all heads": whole(shape.heads), "width": whole(shape.heads * shape.head)}

    def _add(self, op: str, inputs: Sequence[str], y: str, *more: str, **attributes: object) -> str:
        """A node. ``more`` are the names of its other outputs."""
        from onnx import helper

        self._nodes.append(helper.make_node(op, inputs, [y, *more], name=y, **attributes))
        return y

    def _product(self, x: str, y: str, depth: int, columns: int) -> str:
        w = self._rng.standard_normal((depth, columns), np.float32)
        self._constants[f"{y}.w"] = w * np.float32(depth ** -0.5)
        return self._add("MatMul", [x, f"{y}.w"], y)

    def _normal(self, x: str, y: str) -> str:
        self._constants[f"{y}.w"] = np.ones(self._shape.width, np.float32)
        self._add("Pow", [x, "two"], f"{y}.square")
        self._add("ReduceMean", [f"{y}.square", "last"], f"{y}.mean")
        self._add("Add", [f"{y}.mean", "epsilon"], f"{y}.sum")
        self._add("Sqrt", [f"{y}.sum"], f"{y}.root")
        self._add("Div", [x, f"{y}.root"], f"{y}.ratio")
        return self._add("Mul", [f"{y}.w", f"{y}.ratio"], y)

    def _by_head(self, x: str, y: str, count: str) -> str:
        sizes = self._add("Concat", ["batch", "length", count, "size"], f"{y}.sizes", axis=0)
        split = self._add("Reshape", [x, sizes], f"{y}.split")
        return self._add("Transpose", [split], y, perm=[0, 2, 1, 3])

    def _turned(self, x: str, y: str) -> str:
        """Rotated by the token's position."""
        low = self._add("Slice", [x, "zero", "half", "axis 3"], f"{y}.low")
        high = self._add("Slice", [x, "half", "end", "axis 3"], f"{y}.high")
        negative = self._add("Neg", [high], f"{y}.negative")
        other = self._add("Concat", [negative, low], f"{y}.other", axis=-1)
        return self._add("Add", [self._add("Mul", [x, "cos"], f"{y}.cos"),
                                 self._add("Mul", [other, "sin"], f"{y}.sin")], y)

    def _repeated(self, x: str, y: str) -> str:
        """The heads of keys, as often as those of queries share one."""
        sizes = self._add("Shape", [x], f"{y}.shape")
        total = self._add("Gather", [sizes, "third"], f"{y}.total")
        total = self._add("Unsqueeze", [total, "zero"], f"{y}.total.1")
        sizes = self._add("Concat", ["batch", "groups", "repeats", total, "size"], f"{y}.sizes",
                          axis=0)
        flat = self._add("Concat", ["batch", "all heads", total, "size"], f"{y}.flat", axis=0)
        row = self._add("Unsqueeze", [x, "axis 2"], f"{y}.row")
        return self._add("Reshape", [self._add("Expand", [row, sizes], f"{y}.wide"), flat], y)

    def _begin(self) -> None:
        """The embedding, the rotation and the mask, which all layers read."""
        from onnx import TensorProto

        add = self._add
        add("Gather", ["embedding", "ids"], "x")
        sizes = add("Shape", ["ids"], "ids.shape")
        for name, index in (("batch", "first"), ("length", "second")):
            add("Unsqueeze", [add("Gather", [sizes, index], f"{name}.0"), "zero"], name)
        add("Cast", ["positions"], "positions.float", to=TensorProto.FLOAT)
        add("Unsqueeze", ["positions.float", "axis 2"], "positions.column")
        add("MatMul", ["positions.column", "angles"], "angle.half")
        add("Concat", ["angle.half", "angle.half"], "angle", axis=-1)
        add("Unsqueeze", [add("Cos", ["angle"], "cos.row"), "axis 1"], "cos")
        add("Unsqueeze", [add("Sin", ["angle"], "sin.row"), "axis 1"], "sin")
        add("Cast", ["mask"], "mask.float", to=TensorProto.FLOAT)
        add("Mul", [add("Sub", ["one", "mask.float"], "masked"), "lowest"], "mask.bias")
        add("Unsqueeze", ["mask.bias", "axis 1"], "mask.3")
        add("Unsqueeze", ["mask.3", "axis 1"], "bias")

    def _attended(self, n: int, a: str) -> str:
        shape, add = self._shape, self._add
        rows, keys = shape.heads * shape.head, shape.key_heads * shape.head
        q, k, v = (
            self._by_head(self._product(a, f"{n}.{part}", shape.width, columns),
                          f"{n}.{part}.heads", count)
            for part, columns, count in (("q", rows, "all heads"), ("k", keys, "groups"),
                                         ("v", keys, "groups")))
        q, k = self._turned(q, f"{n}.q.turned"), self._turned(k, f"{n}.k.turned")
        k, v = (add("Concat", [f"past.{n}.{kind}", y], f"now.{n}.{kind}", axis=2)
                for kind, y in (("key", k), ("value", v)))
        columns = add("Transpose", [self._repeated(k, f"{n}.k.all")], f"{n}.k.columns",
                      perm=[0, 1, 3, 2])
        scores = add("Mul", [add("MatMul", [q, columns], f"{n}.scores.all"), "scale"],
                     f"{n}.scores")
        shares = add("Softmax", [add("Add", [scores, "bias"], f"{n}.biased")], f"{n}.shares",
                     axis=-1)
        y = add("MatMul", [shares, self._repeated(v, f"{n}.v.all")], f"{n}.attention")
        flat = add("Concat", ["batch", "length", "width"], f"{n}.flat", axis=0)
        return add("Reshape", [add("Transpose", [y], f"{n}.tokens", perm=[0, 2, 1, 3]), flat],
                   f"{n}.row")

    def _layer(self, n: int, x: str) -> str:
        shape, add = self._shape, self._add
        y = self._attended(n, self._normal(x, f"{n}.first"))
        o = self._product(y, f"{n}.o", shape.heads * shape.head, shape.width)
        x = add("Add", [x, o], f"{n}.middle")
        a = self._normal(x, f"{n}.second")
        gate = self._product(a, f"{n}.gate", shape.width, shape.inner)
        silu = add("Mul", [gate, add("Sigmoid", [gate], f"{n}.sigmoid")], f"{n}.silu")
        up = self._product(a, f"{n}.up", shape.width, shape.inner)
        y = self._product(add("Mul", [silu, up], f"{n}.inner"), f"{n}.down", shape.inner,
                          shape.width)
        return add("Add", [x, y], f"{n}.end")

    def model(self) -> bytes:
        """The whole model."""
        from onnx import ModelProto, TensorProto, helper, numpy_helper

        shape, x = self._shape, "x"
        self._begin()
        for n in range(shape.layers):
            x = self._layer(n, x)
        self._product(self._normal(x, "normal"), "logits", shape.width, shape.words)
        whole, real, caches = TensorProto.INT64, TensorProto.FLOAT, _caches(shape)
        before = [1, shape.key_heads, "past", shape.head]
        inputs = [("ids", whole, [1, "length"]), ("positions", whole, [1, "length"]),
                  ("mask", whole, [1, "total"]),
                  *((f"past.{name}", real, before) for name in caches)]
        outputs = ["logits", *(f"now.{name}" for name in caches)]
        graph = helper.make_graph(
            self._nodes, "decoder", [helper.make_tensor_value_info(*i) for i in inputs],
            [helper.make_tensor_value_info(name, real, None) for name in outputs],
            [numpy_helper.from_array(x, name) for name, x in self._constants.items()])
        model: ModelProto = helper.make_model(
            graph, ir_version=8, opset_imports=[helper.make_opsetid("", self.opset)])
        return model.SerializeToString()


class _FewNodes(_GrowingMaker):
    """The same of the operators that opset 23 has for decoders."""

    opset = 23

    def _normal(self, x: str, y: str) -> str:
        self._constants[f"{y}.w"] = np.ones(self._shape.width, np.float32)
        return self._add("RMSNormalization", [x, f"{y}.w"], y, axis=-1, epsilon=1e-5)

    def _begin(self) -> None:
        add, angles = self._add, np.outer(
            np.arange(self._shape.positions), self._constants["angles"])
        self._constants |= {
            "cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32),
            "axes": np.array([1, 2], np.int64)}
        from onnx import TensorProto

        add("Gather", ["embedding", "ids"], "x")
        add("Cast", ["mask"], "mask.true", to=TensorProto.BOOL)
        add("Unsqueeze", ["mask.true", "axes"], "allowed")

    def _attended(self, n: int, a: str) -> str:
        shape = self._shape
        rows, keys = shape.heads * shape.head, shape.key_heads * shape.head
        q, k, v = (self._product(a, f"{n}.{part}", shape.width, columns)
                   for part, columns in (("q", rows), ("k", keys), ("v", keys)))
        q, k = (self._add("RotaryEmbedding", [x, "cos", "sin", "positions"], f"{x}.turned",
                          num_heads=heads) for x, heads in ((q, shape.heads), (k, shape.key_heads)))
        return self._add(
            "Attention", [q, k, v, "allowed", f"past.{n}.key", f"past.{n}.value"],
            f"{n}.attention", f"now.{n}.key", f"now.{n}.value", q_num_heads=shape.heads,
            kv_num_heads=shape.key_heads, scale=shape.head ** -0.5)
