"""What Immich asks its machine learning service for: CLIP's vectors, faces and text in pictures.

``python examples/immich/pictures.py FOLDER`` makes CLIP's encoders in the form of ViT-B-32, as
Immich's folders have them (``visual/model.onnx`` and ``textual/model.onnx``), with random weights.
The order of search results then means nothing; a folder of Immich's takes their place as it is.
Faces are found by nudenet's detector and text by RapidOCR's models, which pip brings.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import kompute_dml.onnxruntime as kompute

sys.path.append(str(Path(__file__).parents[1]))

MEAN, DEVIATION = (0.481, 0.458, 0.408), (0.269, 0.261, 0.276)
FACES = (1, 12)
"""The classes of nudenet's detector that are faces."""


class Size(NamedTuple):
    """The sizes of a pair of encoders. Those of ViT-B-32 by default."""

    image: int = 224
    patch: int = 32
    width: int = 768
    layers: int = 12
    text_width: int = 512
    text_heads: int = 8
    words: int = 49408
    tokens: int = 77
    embedding: int = 512


class _Graph:
    """Nodes and constants of a model, with weights in random numbers."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(self, value: np.ndarray) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weights(self, *sizes: int) -> str:
        scale = sizes[-2] ** -0.5 if len(sizes) > 1 else 0.1
        return self.constant((self.rng.standard_normal(sizes) * scale).astype(np.float32))

    def normalized(self, x: str, width: int) -> str:
        ones = self.constant(np.ones(width, np.float32))
        return self.add("LayerNormalization", x, ones, self.weights(width), axis=-1)

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        return self.add("Add", self.add("MatMul", x, self.weights(inputs, outputs)),
                        self.weights(outputs))

    def block(self, x: str, width: int, heads: int, mask: str | None) -> str:
        """Attention and two dense layers, each with a sum around it."""
        each = width // heads
        sizes = self.constant(np.array([0, 0, heads, each]))
        h = self.normalized(x, width)
        q, k, v = (self.add("Transpose", self.add("Reshape", self.dense(h, width, width), sizes),
                            perm=perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = self.add("Mul", self.add("MatMul", q, k),
                          self.constant(np.float32(each ** -0.5)))
        if mask is not None:
            scores = self.add("Add", scores, mask)
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        joined = self.add("Reshape", self.add("Transpose", mixed, perm=[0, 2, 1, 3]),
                          self.constant(np.array([0, 0, width])))
        x = self.add("Add", x, self.dense(joined, width, width))
        wide = self.dense(self.normalized(x, width), width, 4 * width)
        gate = self.add("Sigmoid", self.add("Mul", wide, self.constant(np.float32(1.702))))
        return self.add("Add", x, self.dense(self.add("Mul", wide, gate), 4 * width, width))

    def save(self, path: Path, name: str, kind: int, sizes: list[int], result: str,
             embedding: int) -> None:
        self.nodes.append(helper.make_node("Identity", [result], ["embedding"]))
        graph = helper.make_graph(
            self.nodes, path.parent.name, [helper.make_tensor_value_info(name, kind, sizes)],
            [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [1, embedding])],
            self.constants)
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def make(folder: Path, **sizes: int) -> None:
    """Write a visual and a textual encoder with random weights to ``folder``. ``sizes`` are those
    of :class:`Size`."""
    g = _Graph(1)
    s = Size(**sizes)
    patches = g.add("Conv", "image", g.weights(s.width, 3, s.patch, s.patch),
                    strides=[s.patch, s.patch])
    rows = g.add("Transpose", g.add("Reshape", patches, g.constant(np.array([1, s.width, -1]))),
                 perm=[0, 2, 1])
    x = g.add("Concat", g.weights(1, 1, s.width), rows, axis=1)
    x = g.add("Add", x, g.weights((s.image // s.patch) ** 2 + 1, s.width))
    x = g.normalized(x, s.width)
    for _ in range(s.layers):
        x = g.block(x, s.width, max(1, s.width // 64), None)
    first = g.add("Gather", x, g.constant(np.int64(0)), axis=1)
    y = g.add("MatMul", g.normalized(first, s.width), g.weights(s.width, s.embedding))
    g.save(folder / "visual" / "model.onnx", "image", TensorProto.FLOAT,
           [1, 3, s.image, s.image], y, s.embedding)

    g = _Graph(2)
    mask = g.constant(np.triu(np.full((s.tokens, s.tokens), -1e4, np.float32), 1))
    x = g.add("Gather", g.weights(s.words, s.text_width), "text", axis=0)
    x = g.add("Add", x, g.weights(s.tokens, s.text_width))
    for _ in range(s.layers):
        x = g.block(x, s.text_width, s.text_heads, mask)
    last = g.add("ArgMax", "text", axis=1, keepdims=0)  # the end of the text is the largest token
    x = g.add("Gather", g.normalized(x, s.text_width), last, axis=1)
    x = g.add("Reshape", x, g.constant(np.array([1, s.text_width])))
    y = g.add("MatMul", x, g.weights(s.text_width, s.embedding))
    g.save(folder / "textual" / "model.onnx", "text", TensorProto.INT32, [1, s.tokens], y,
           s.embedding)


class Models:
    """The models on one device. ``clip`` is a folder of Immich's, or one that :func:`make` wrote.

    ``adapter`` is an index, a UUID or a part of a name; "cpu" is ONNX Runtime's CPU provider.
    """

    def __init__(self, clip: str, adapter: str | None = None) -> None:
        self.session = _on_the_cpu if adapter == "cpu" else _on(adapter)
        self.visual = self.session(str(Path(clip, "visual", "model.onnx")))
        self.textual = self.session(str(Path(clip, "textual", "model.onnx")))
        self.words = _tokenizer(Path(clip, "textual", "tokenizer.json"))
        self.detector = self.reader = None
        if importlib.util.find_spec("nudenet"):
            self.detector = self.session(_file_of("nudenet", "320n.onnx"))
        if importlib.util.find_spec("rapidocr"):
            from read_text import reader

            self.reader = reader(self.session)

    def look(self, content: bytes) -> dict[str, Any]:
        """What is in a picture: its size, its vector of length 1, faces as (left, top, width,
        height, score), and lines of text as (corners, text, score)."""
        image = Image.open(io.BytesIO(content)).convert("RGB")
        return {"size": image.size, "vector": self._vector(image), "faces": self._faces(image),
                "lines": self._lines(image)}

    def say(self, text: str) -> list[float]:
        """The vector of words, of length 1."""
        asked = self.textual.get_inputs()[0]
        ids = np.zeros(asked.shape, np.int32)
        known = self.words(text)[:ids.shape[1] - 2]
        ids[0, :len(known) + 2] = [END - 1, *known, END]
        return _unit(self.textual.run(None, {asked.name: ids})[0])

    def _vector(self, image: Image.Image) -> list[float]:
        asked = self.visual.get_inputs()[0]
        side = asked.shape[-1]
        scale = side / min(image.size)
        image = image.resize([max(side, round(n * scale)) for n in image.size], Image.BICUBIC)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        pixels = np.asarray(image.crop((left, top, left + side, top + side)), np.float32) / 255
        pixels = (pixels - np.float32(MEAN)) / np.float32(DEVIATION)
        return _unit(self.visual.run(None, {asked.name: pixels.transpose(2, 0, 1)[None]})[0])

    def _faces(self, image: Image.Image) -> list[list[float]]:
        if self.detector is None:
            return []
        scale = max(image.size) / 320
        square = Image.new("RGB", (320, 320))
        square.paste(image.resize([max(1, round(n / scale)) for n in image.size]))
        pixels = np.asarray(square, np.float32).transpose(2, 0, 1)[None] / 255
        found = self.detector.run(None, {self.detector.get_inputs()[0].name: pixels})[0][0].T
        scores = found[:, [4 + face for face in FACES]].max(axis=1)
        best = np.argsort(-scores)[:int((scores > 0.3).sum())]
        kept: list[np.ndarray] = []
        for (x, y, w, h), score in zip(found[best, :4], scores[best]):
            box = np.array([x - w / 2, y - h / 2, w, h, score])
            if all(_overlap(box, other) < 0.45 for other in kept):
                kept.append(box)
        return [[*(box[:4] * scale).tolist(), float(box[4])] for box in kept]

    def _lines(self, image: Image.Image) -> list[Any]:
        if self.reader is None:
            return []
        found = self.reader(np.asarray(image)[:, :, ::-1])
        if found.txts is None:
            return []
        return [(box.tolist(), text, float(score))
                for box, text, score in zip(found.boxes, found.txts, found.scores)]


END = 49407
"""CLIP's token for the end of a text. The one before it begins a text."""


def _on(adapter: str | None) -> Any:
    return lambda path: kompute.session(path, **({} if adapter is None else {"adapter": adapter}))


def _on_the_cpu(path: str) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def _file_of(package: str, name: str) -> str:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).with_name(name))


def _tokenizer(path: Path) -> Any:
    """Words as numbers: by Immich's tokenizer.json, or, with random weights, by their bytes."""
    if not path.exists():
        return lambda text: [zlib.crc32(w.encode()) % 1000 for w in text.lower().split()]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _unit(vector: np.ndarray) -> list[float]:
    flat = vector.reshape(-1).astype(np.float64)
    return (flat / np.linalg.norm(flat)).tolist()


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    """The part of two boxes (left, top, width, height) that both have."""
    sides = np.minimum(a[:2] + a[2:4], b[:2] + b[2:4]) - np.maximum(a[:2], b[:2])
    both = float(np.prod(np.maximum(sides, 0)))
    return both / float(a[2] * a[3] + b[2] * b[3] - both)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
