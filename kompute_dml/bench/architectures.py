"""Well-known architectures with random weights, as ONNX models: those of ``--suite models``.

torchvision's and transformers' classes make them, and PyTorch writes them when they are measured.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UnsupportedError
from . import growing, modules, turns
from .decoders import Shape
from .models import BenchModel, Goal, ModelKind

if TYPE_CHECKING:
    import torch

NEEDED = ("torch", "torchvision", "transformers", "onnx", "onnxruntime")

BOUNDS = {"FLOAT32": 2e-5, "FLOAT16": 3e-2, "INT8": 5e-2}
"""By type: how far a result may be from PyTorch's in FLOAT32, as a part of the largest element.
The CPU provider reaches 2e-6, 1.3e-2 (MobileNet; the others 2e-3) and 1.3e-2."""

_HALF_OF_THE_CPU = ("onnxruntime", 2.0)
_WORDS = 3000


@dataclass(frozen=True, eq=False)
class Architecture:
    name: str
    module: Callable[[], Any]
    inputs: Callable[[], tuple[Any, ...]]
    goals: Mapping[str, tuple[Goal, ...]]
    """By type."""
    axes: tuple[int, ...] = ()
    """The axes of inputs whose sizes the file leaves open."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """By type, where it is not one of :data:`BOUNDS`."""


def kinds() -> list[ModelKind]:
    """Each architecture in each of its types, and those of sizes in turn. Raises UnsupportedError
    without PyTorch."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(f"--suite models makes its models with {', '.join(missing)}: "
                               f"pip install {' '.join(missing)}")
    return [
        ModelKind(architecture.name, types, goals,
             functools.partial(_model, architecture, types))
        for architecture in ARCHITECTURES for types, goals in architecture.goals.items()
    ] + SIZES_IN_TURN


def _of_a_graph(float16: float) -> dict[str, tuple[Goal, ...]]:
    """At most the time of PyTorch's CUDA graph in FLOAT32, and ``float16`` times it in FLOAT16."""
    return {"FLOAT32": (("torch (graph)", 1.0),), "FLOAT16": (("torch (graph)", 1 / float16),)}


_SESSION = (("session ms", 1000.0), ("webgpu's session", 2.0))


def _ms(float32: float, float16: float) -> dict[str, tuple[Goal, ...]]:
    return {"FLOAT32": (("ms", float32),), "FLOAT16": (("ms", float16),)}


# -- modules and inputs


def _resnet() -> Any:
    import torchvision

    return torchvision.models.resnet50()


def _vision(name: str, side: int = 224, **more: object) -> Any:
    """A network of torchvision, whose batch norms know random images."""
    import torchvision

    return _settled(torchvision.models.get_model(name, weights=None, **more), side)


def _settled(model: torch.nn.Module, side: int) -> Any:
    """Batch norms know random images. With others values vanish in FLOAT16."""
    import torch

    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for module in norms:
        module.momentum = None  # statistics are those of the one batch
    if norms:
        with torch.no_grad():
            model.train()(torch.randn(4, 3, side, side))
    return model


def _segmented() -> Any:
    import torch

    model = _vision("deeplabv3_mobilenet_v3_large", weights_backbone=None)

    class Only(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> Any:
            return self.model(x)["out"]

    return Only()


def _of_transformers(model: str, config: str, **fields: object) -> Any:
    """A class of transformers with a configuration."""
    import transformers

    network = getattr(transformers, config)(attn_implementation="eager", **fields)
    return _hidden(getattr(transformers, model)(network))


def _bert(layers: int, width: int, heads: int) -> Any:
    import transformers

    config = transformers.BertConfig(
        vocab_size=_WORDS, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, attn_implementation="eager")
    return _hidden(transformers.BertModel(config, add_pooling_layer=False))


def _whisper() -> Any:
    import transformers

    config = transformers.WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, decoder_layers=1,
        decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536, vocab_size=_WORDS,
        pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
        attn_implementation="eager")
    return _hidden(transformers.WhisperModel(config).encoder)


def _hidden(model: torch.nn.Module) -> Any:
    """A transformer that returns only its last hidden state."""
    import torch

    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> Any:
            return self.model(*inputs)[0]

    return Hidden()


def _image(count: int, side: int = 224) -> tuple[Any, ...]:
    import torch

    return (torch.randn(count, 3, side, side),)


def _latents() -> tuple[Any, ...]:
    import torch

    return torch.randn(1, 4, 64, 64), torch.full((1,), 500.0), torch.randn(1, 77, 768)


def _sound() -> tuple[Any, ...]:
    import torch

    return (torch.randn(1, 80, 3000),)


def _tokens(count: int, length: int) -> tuple[Any, ...]:
    import torch

    return (torch.randint(0, _WORDS, (count, length)),
            torch.ones(count, length, dtype=torch.int64))


_MINILM = functools.partial(_bert, 6, 384, 12)

ARCHITECTURES = (
    Architecture("resnet50, 1", _resnet, lambda: _image(1), _ms(2.7, 2.0)),
    Architecture("resnet50, 32", _resnet, lambda: _image(32), _ms(15, 8)),
    Architecture("mobilenet_v3_large, 1", functools.partial(_vision, "mobilenet_v3_large"),
                 lambda: _image(1), _ms(1.4, 1.2)),
    Architecture("MiniLM-L6, 1 x 128", _MINILM, lambda: _tokens(1, 128),
                 {**_ms(1.2, 1.0), "INT8": (_HALF_OF_THE_CPU,)}),
    Architecture("MiniLM-L6, 32 x 128", _MINILM, lambda: _tokens(32, 128),
                 {**_ms(4.5, 2.5), "INT8": (_HALF_OF_THE_CPU, ("FLOAT32", 1.0))}),
    Architecture("bert-base, 8 x 512", functools.partial(_bert, 12, 768, 12),
                 lambda: _tokens(8, 512), _ms(27, 12)),
    Architecture("whisper-tiny encoder", _whisper, _sound, _ms(2.3, 1.5)),
    Architecture("yolov8n-like, 1 x 640", lambda: _settled(modules.detector(), 320),
                 lambda: _image(1, 640), _of_a_graph(1.0),
                 bounds={"FLOAT16": 6e-2}),  # the CPU provider reaches 4.0e-2
    Architecture("sd1.5-like unet, 1 x 64", modules.denoiser, _latents,
                 {types: (*goals, *_SESSION) for types, goals in _of_a_graph(1.0).items()}),
    Architecture("esrgan-like, 1 x 128", modules.upscaler, lambda: _image(1, 128),
                 _of_a_graph(1.2)),
    *(Architecture(f"{name}, 1", functools.partial(_vision, name), lambda: _image(1),
                   _of_a_graph(most))
      for name, most in (("densenet121", 1.0), ("swin_t", 1.0), ("convnext_tiny", 1.1),
                         ("efficientnet_b0", 0.9))),
    Architecture("deeplabv3_mobilenet, 1 x 512", _segmented, lambda: _image(1, 512),
                 _of_a_graph(1.2)),
    Architecture("clip vit-b-32, 1", functools.partial(
        _of_transformers, "CLIPVisionModel", "CLIPVisionConfig"), lambda: _image(1),
        _of_a_graph(1.1)),
    Architecture("dinov2-small, 1 x 518", functools.partial(
        _of_transformers, "Dinov2Model", "Dinov2Config", hidden_size=384, num_attention_heads=6,
        image_size=518), lambda: _image(1, 518), _of_a_graph(1.1)),
    Architecture("segformer-b0, 1 x 512", functools.partial(
        _of_transformers, "SegformerForSemanticSegmentation", "SegformerConfig"),
        lambda: _image(1, 512), _of_a_graph(1.1)),
    Architecture("t5-small encoder, 1 x 128", functools.partial(
        _of_transformers, "T5EncoderModel", "T5Config", vocab_size=_WORDS),
        lambda: _tokens(1, 128), _of_a_graph(1.1)),
)


# -- models


def _model(architecture: Architecture, types: str, folder: Path) -> BenchModel:
    module, inputs, expected = _made(architecture)
    peer = None
    if types == "INT8":
        path = _quantized(_exported(architecture, "FLOAT32", folder))
    else:
        path = _exported(architecture, types, folder)
        peer = _in_type(module, inputs, types)
    feed = {f"x{i}": x.numpy() for i, x in enumerate(_in_type(None, inputs, types)[1])}
    return BenchModel(path, feed, expected, {**BOUNDS, **architecture.bounds}[types], peer)


@functools.lru_cache(maxsize=1)  # the types of an architecture come one after the other
def _made(architecture: Architecture) -> tuple[Any, tuple[Any, ...], np.ndarray]:
    """The module, its inputs, and its FLOAT32 result on the CPU."""
    import torch

    torch.manual_seed(0)
    module, inputs = architecture.module().eval(), architecture.inputs()
    with torch.no_grad():
        return module, inputs, module(*inputs).numpy()


def _in_type(
    module: torch.nn.Module | None, inputs: tuple[torch.Tensor, ...], types: str
) -> tuple[Any, tuple[Any, ...]]:
    """A copy of the module and its inputs. Only weights are quantized."""
    if types != "FLOAT16":
        return copy.deepcopy(module), inputs
    return (module and copy.deepcopy(module).half(),
            tuple(x.half() if x.is_floating_point() else x for x in inputs))


def _exported(architecture: Architecture, types: str, folder: Path) -> Path:
    """The ONNX file. It is written once."""
    import torch

    path = folder / f"{architecture.name} {types}.onnx"
    if path.is_file():
        return path
    module, inputs, _ = _made(architecture)
    module, inputs = _in_type(module, inputs, types)
    # The exporter runs the module, and a CPU is slow in FLOAT16.
    place = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.no_grad(), _quiet():
        torch.onnx.export(
            module.to(place), tuple(x.to(place) for x in inputs), str(path), dynamo=False,
            opset_version=17, input_names=[f"x{i}" for i in range(len(inputs))],
            dynamic_axes={f"x{i}": {axis: f"size {axis}" for axis in architecture.axes}
                          for i in range(len(inputs) if architecture.axes else 0)})
    return path


# -- sizes in turn


def _sized(
    architecture: Architecture, inputs: Callable[[turns.Size], turns.Feed], sizes: turns.Parted,
    folder: Path,
) -> turns.SizedModel:
    return turns.SizedModel(_exported(architecture, "FLOAT32", folder), inputs, *sizes,
                            BOUNDS["FLOAT32"])


def _decoded(shape: Shape, sizes: turns.Parted, folder: Path) -> turns.SizedModel:
    """Tokens of a decoder whose caches grow; a size is the number of tokens before."""
    rng = np.random.default_rng(0)
    path = folder / f"{shape.name}.onnx"
    path.write_bytes(growing.decoder(shape, rng))
    return turns.SizedModel(path, lambda past: growing.step(shape, _number(past), rng), *sizes,
                            BOUNDS["FLOAT32"])


def _words_of(tokens: turns.Size) -> turns.Feed:
    return {f"x{i}": x.numpy() for i, x in enumerate(_tokens(1, _number(tokens)))}


def _image_of(size: turns.Size) -> turns.Feed:
    assert isinstance(size, tuple)
    return {"x0": np.random.default_rng(0).standard_normal((1, 3, *size), np.float32)}


def _number(size: turns.Size) -> int:
    assert isinstance(size, int)
    return size


_GROWING = Shape("Llama-like", 16, 512, 8, 4, 64, 1408, _WORDS, 32)
_LENGTHS = turns.parted([round(n) for n in np.linspace(1, 512, 72)], 9)
_SIDES = turns.parted([(height, width) for height in range(320, 512, 32)
                       for width in range(320, 448, 32)], 6)
_PASTS = turns.parted([*range(128, 200)], 9)

SIZES_IN_TURN = [
    ModelKind(name, "FLOAT32", ((turns.SEEN_BEFORE, 1 / turns.MOST),), make)
    for name, make in (
        ("MiniLM-L6, 64 lengths in turn", functools.partial(
            _sized, Architecture("MiniLM-L6, 1 x 1 to 512", _MINILM, lambda: _tokens(1, 128), {},
                                 axes=(1,)), _words_of, _LENGTHS)),
        ("yolov8n-like, 20 sizes in turn", functools.partial(
            _sized, Architecture(
                "yolov8n-like, any size", lambda: _settled(modules.detector(), 320),
                lambda: _image(1, 320), {}, axes=(2, 3)), _image_of, _SIDES)),
        ("Llama-like decode, 64 lengths in turn",
         functools.partial(_decoded, _GROWING, _PASTS)))
]
"""Models that run at one size after the other."""


def _quantized(path: Path) -> Path:
    """The model with INT8 weights, whose activations are quantized as it runs."""
    from onnxruntime.quantization import quantize_dynamic

    small = path.with_name(path.name.replace("FLOAT32", "INT8"))
    with _quiet():
        quantize_dynamic(str(path), str(small))
    return small


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the advice of exporters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
