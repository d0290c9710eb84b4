"""Times well-known architectures on ONNX Runtime with this provider, NumPy in to NumPy out.

python benchmarks/architectures.py [part of a name]

It takes torch, torchvision, transformers and onnx. Weights are random; results are compared with
PyTorch's FLOAT32 ones, relative to the largest. KOMPUTE_DML_HOLD_CLOCK=1 holds an NVIDIA GPU's
clock. MobileNet has no FLOAT16 row: with random weights its values vanish there.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import torchvision
import transformers

import kompute_dml.onnxruntime as kompute

_RUNS = 15


class _Hidden(torch.nn.Module):
    """A transformer that returns only its last hidden state."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(*inputs)[0]


def _bert(layers: int, width: int, heads: int) -> torch.nn.Module:
    config = transformers.BertConfig(
        vocab_size=3000, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, attn_implementation="eager")
    return _Hidden(transformers.BertModel(config, add_pooling_layer=False))


def _whisper() -> torch.nn.Module:
    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, decoder_layers=1,
        decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536, vocab_size=3000,
        pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
        attn_implementation="eager")
    return _Hidden(transformers.WhisperModel(config).encoder)


def _image(count: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(count, 3, 224, 224),)


def _words(count: int, length: int) -> tuple[torch.Tensor, ...]:
    return torch.randint(0, 3000, (count, length)), torch.ones(count, length, dtype=torch.int64)


MODELS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "resnet50, 1": (torchvision.models.resnet50, lambda: _image(1)),
    "resnet50, 32": (torchvision.models.resnet50, lambda: _image(32)),
    "mobilenet_v3_large, 1": (torchvision.models.mobilenet_v3_large, lambda: _image(1)),
    "MiniLM-L6, 1 x 128": (lambda: _bert(6, 384, 12), lambda: _words(1, 128)),
    "MiniLM-L6, 32 x 128": (lambda: _bert(6, 384, 12), lambda: _words(32, 128)),
    "bert-base, 8 x 512": (lambda: _bert(12, 768, 12), lambda: _words(8, 512)),
    "whisper-tiny encoder": (_whisper, lambda: (torch.randn(1, 80, 3000),)),
}


def _session(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path) -> Any:
    path = folder / "model.onnx"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, inputs, str(path), dynamo=False, opset_version=17)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return kompute.session(str(path), session_options=options, claim="all")


def _row(name: str, half: bool) -> str:
    make, inputs_of = MODELS[name]
    torch.manual_seed(0)
    model, inputs = make().eval(), inputs_of()
    with torch.no_grad():
        wanted = model(*inputs).numpy()
    if half:
        model = model.half()
        inputs = tuple(x.half() if x.is_floating_point() else x for x in inputs)
    with tempfile.TemporaryDirectory() as folder:
        session = _session(model, inputs, Path(folder))
        names = [i.name for i in session.get_inputs()]
        feed = {n: x.numpy() for n, x in zip(names, inputs)}
        result = session.run(None, feed)[0].astype(np.float32)
        times = []
        for _ in range(_RUNS):
            start = time.perf_counter()
            session.run(None, feed)
            times.append(1e3 * (time.perf_counter() - start))
    off = np.abs(result - wanted).max() / np.abs(wanted).max()
    return (f"| {name} | {'FLOAT16' if half else 'FLOAT32'} | {statistics.median(times):.2f} ms "
            f"| {off:.1e} |")


def main() -> None:
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    print("| model | type | median | off by |\n| --- | --- | ---: | ---: |")
    for name in MODELS:
        for half in (False, True):
            if part in name and not (half and name.startswith("mobilenet")):
                print(_row(name, half), flush=True)


if __name__ == "__main__":
    main()
