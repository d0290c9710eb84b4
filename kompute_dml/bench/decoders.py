"""Decoders in the form of Llama with random weights, as ONNX and as GGUF.

Weights are scaled so that activations stay near 1, layer after layer. Numbers come from pools that
are read again and again, so that a model of gigabytes takes seconds to write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

_POOL = 8 << 20
"""The most numbers of a pool."""
_ALIGNMENT = 4096
_ROTATION = 500_000.0
_UNIFORM = 4.61
"""The standard deviation of four bits around their middle, which all values take alike."""
_EPSILON = 1e-5


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    name: str
    layers: int
    width: int
    heads: int
    key_heads: int
    head: int
    """Elements of a head."""
    inner: int
    """The width between the products of a layer's second half."""
    words: int
    """Tokens that there are."""
    bits: int
    """Of a weight: 4 or 8 in blocks, or 16 for FLOAT16."""
    block: int = 32
    positions: int = 8192
    """The most tokens of a text."""

    @property
    def kind(self) -> str:
        """What the weights are, for tables."""
        return "FLOAT16" if self.bits == 16 else f"{self.bits} bits"


SHAPES = {s.name: s for s in (
    Shape("1B-q4", 16, 2048, 32, 8, 64, 8192, 128256, 4),
    Shape("1B-f16", 16, 2048, 32, 8, 64, 8192, 128256, 16),
    Shape("8B-q4", 32, 4096, 32, 8, 128, 14336, 128256, 4),
    Shape("8B-f16", 32, 4096, 32, 8, 128, 14336, 128256, 16),
    Shape("1B-q4-long", 16, 2048, 32, 8, 64, 8192, 128256, 4, positions=32832),
    Shape("tiny-q4", 2, 256, 4, 2, 64, 512, 1024, 4),
    Shape("tiny-f16", 2, 256, 4, 2, 64, 512, 1024, 16),
)}
"""Decoders by name. The tiny ones try the measurement on a CPU driver."""


class Part(NamedTuple):
    """A tensor in the file of weights."""

    offset: int
    nbytes: int
    sizes: tuple[int, ...]
    dtype: str


class Written(NamedTuple):
    """A model's file, and where its weights lie in the file beside it."""

    path: Path
    weights: Path
    parts: dict[str, Part]


def rotations(shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, [position, half a head], FLOAT16."""
    steps = _ROTATION ** -(np.arange(0, shape.head, 2) / shape.head)
    angles = np.outer(np.arange(shape.positions), steps)
    return np.cos(angles).astype(np.float16), np.sin(angles).astype(np.float16)


def write_onnx(shape: Shape, folder: Path) -> Written:
    """Write ``model.onnx`` and ``weights.bin``. The inputs are ``input_ids`` [batch, length],
    ``seqlens_k`` [batch], ``total_sequence_length`` [] and ``past.<layer>.<key or value>``
    [batch, head, capacity, element]; the outputs ``logits`` [batch, 1, word] of the last token, and
    ``present.<layer>.<key or value>``."""
    weights = folder / "weights.bin"
    with weights.open("wb") as file:
        maker = _DecoderMaker(shape, file)
        path = folder / "model.onnx"
        path.write_bytes(maker.model().SerializeToString())
    return Written(path, weights, maker.parts)


class _Numbers:
    """Bytes out of pools of random numbers, from changing places on."""

    def __init__(self, seed: int, most: int) -> None:
        self._rng = np.random.default_rng(seed)
        count = min(_POOL, 1 << max(most - 1, 1).bit_length())
        self.normal = self._rng.standard_normal(count, np.float32)
        self.bytes = self._rng.integers(0, 256, count, np.uint8)
        self._scaled: dict[float, np.ndarray] = {}

    def scaled(self, deviation: float) -> np.ndarray:
        """FLOAT16 numbers around 0."""
        if deviation not in self._scaled:
            self._scaled[deviation] = (self.normal * np.float32(deviation)).astype(np.float16)
        return self._scaled[deviation]

    def parts(self, pool: np.ndarray, count: int) -> Iterator[np.ndarray]:
        """So many elements of a pool, in parts."""
        while count > 0:
            first = int(self._rng.integers(0, len(pool) // 2))
            part = pool[first : first + count]
            yield part
            count -= len(part)


class _DecoderMaker:
    """Collects nodes and writes weights."""

    def __init__(self, shape: Shape, file: BinaryIO) -> None:
        self.shape, self._file = shape, file
        self._numbers = _Numbers(0, shape.width * max(shape.inner, shape.words))
        self._nodes: list[NodeProto] = []
        self._tensors: list[TensorProto] = []
        self.parts: dict[str, Part] = {}

    def _node(self, op: str, inputs: list[str], outputs: list[str], **attributes: object) -> str:
        from onnx import helper

        domain = "com.microsoft" if op in _MICROSOFT else ""
        self._nodes.append(helper.make_node(
            op, inputs, outputs, name=next(filter(None, outputs)), domain=domain, **attributes))
        return outputs[0]

    def _external(self, name: str, dtype: str, sizes: tuple[int, ...], pool: np.ndarray) -> str:
        from onnx import TensorProto, helper

        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        offset, count = self._file.tell(), int(np.prod(sizes))
        for part in self._numbers.parts(pool, count):
            self._file.write(part.data)
        nbytes = self._file.tell() - offset
        self.parts[name] = Part(offset, nbytes, sizes, dtype)
        tensor = TensorProto(
            name=name, data_type=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims=sizes,
            data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "weights.bin"), ("offset", offset), ("length", nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        self._tensors.append(tensor)
        return name

    def _small(self, name: str, values: np.ndarray) -> str:
        from onnx import numpy_helper

        self._tensors.append(numpy_helper.from_array(values, name))
        return name

    def _ones(self, name: str) -> str:
        return self._small(name, np.ones(self.shape.width, np.float16))

    def _product(self, x: str, name: str, depth: int, columns: int, gain: float = 1.0) -> str:
        """``x`` by a matrix of weights, [depth, columns]."""
        deviation, y = gain * depth ** -0.5, f"{name}.y"
        shape, numbers = self.shape, self._numbers
        if shape.bits == 16:
            w = self._external(name, "float16", (depth, columns), numbers.scaled(deviation))
            return self._node("MatMul", [x, w], [y])
        blocks, each = depth // shape.block, shape.block * shape.bits // 8
        w = self._external(name, "uint8", (columns, blocks, each), numbers.bytes)
        step = deviation / (_UNIFORM * 2 ** (shape.bits - 4))
        scales = (step * (0.9 + 0.1 * np.abs(numbers.normal[: 1 << 16]))).astype(np.float16)
        s = self._external(f"{name}.scales", "float16", (columns * blocks,), scales)
        return self._node("MatMulNBits", [x, w, s], [y], K=depth, N=columns, bits=shape.bits,
                          block_size=shape.block)

    def model(self) -> Any:
        """The whole model."""
        from onnx import TensorProto, helper

        shape, half = self.shape, TensorProto.FLOAT16
        cache = ["B", shape.key_heads, "P", shape.head]
        names = [f"{n}.{kind}" for n in range(shape.layers) for kind in ("key", "value")]
        inputs = [("input_ids", TensorProto.INT64, ["B", "S"]),
                  ("seqlens_k", TensorProto.INT32, ["B"]),
                  ("total_sequence_length", TensorProto.INT32, []),
                  *((f"past.{name}", half, cache) for name in names)]
        outputs = [("logits", half, ["B", 1, shape.words]),
                   *((f"present.{name}", half, cache) for name in names)]
        embedding = self._external(
            "embedding", "float16", (shape.words, shape.width), self._numbers.scaled(1.0))
        x = self._node("Gather", [embedding, "input_ids"], ["x"], axis=0)
        for name, values in zip(("cos", "sin"), rotations(shape)):
            self._small(name, values)
        a = self._node("SimplifiedLayerNormalization", [x, self._ones("first.weight")], ["first"],
                       axis=-1, epsilon=_EPSILON, stash_type=1)
        for n in range(shape.layers):
            x, a = self._layer(n, x, a)
        last = self._node("Gather", [a, self._small("last.index", np.array([-1], np.int64))],
                          ["last"], axis=1)
        self._product(last, "head", shape.width, shape.words)
        self._nodes[-1].output[0] = "logits"
        graph = helper.make_graph(
            self._nodes, "decoder", [helper.make_tensor_value_info(*i) for i in inputs],
            [helper.make_tensor_value_info(*o) for o in outputs], self._tensors)
        return helper.make_model(graph, ir_version=10, opset_imports=[
            helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])

    def _layer(self, n: int, x: str, a: str) -> tuple[str, str]:
        """The sum after a layer, and that normalized, of the same before it."""
        shape = self.shape
        rows, keys = shape.heads * shape.head, shape.key_heads * shape.head
        q, k, v = (self._product(a, f"{n}.{name}", shape.width, columns)
                   for name, columns in (("q", rows), ("k", keys), ("v", keys)))
        y = self._node(
            "GroupQueryAttention",
            [q, k, v, f"past.{n}.key", f"past.{n}.value", "seqlens_k", "total_sequence_length",
             "cos", "sin"], [f"{n}.attention", f"present.{n}.key", f"present.{n}.value"],
            num_heads=shape.heads, kv_num_heads=shape.key_heads, do_rotary=1,
            scale=shape.head ** -0.5)
        x, a = self._sum(f"{n}.middle", x, self._product(y, f"{n}.o", rows, shape.width, 0.7))
        gate, up = (self._product(a, f"{n}.{name}", shape.width, shape.inner)
                    for name in ("gate", "up"))
        share = self._node("Sigmoid", [gate], [f"{n}.sigmoid"])
        silu = self._node("Mul", [gate, share], [f"{n}.silu"])
        y = self._node("Mul", [silu, up], [f"{n}.inner"])
        y = self._product(y, f"{n}.down", shape.inner, shape.width, 0.7)
        return self._sum(f"{n}.end", x, y)

    def _sum(self, name: str, x: str, y: str) -> tuple[str, str]:
        """The sum, and that normalized."""
        a, total = f"{name}.normal", f"{name}.sum"
        self._node("SkipSimplifiedLayerNormalization", [x, y, self._ones(f"{name}.weight")],
                   [a, "", "", total], epsilon=_EPSILON)
        return total, a


_MICROSOFT = ("GroupQueryAttention", "MatMulNBits", "SkipSimplifiedLayerNormalization")
