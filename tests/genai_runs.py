"""What onnxruntime-genai writes with a tiny model, on the device and on the CPU, as JSON:
python tests/genai_runs.py FOLDER

It has an ONNX Runtime of its own, with which the provider can be registered in a process that has
not registered it with another.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

import kompute_dml.genai as genai
import kompute_dml.onnxruntime as kompute
import tiny_decoders
from kompute_dml.errors import UnsupportedError
from kompute_dml.onnxruntime import allocation, provider

_TOKENS = 12


def _generator(model: Any, **search: Any) -> Any:
    params = og.GeneratorParams(model)
    params.set_search_options(**{"max_length": 48, "do_sample": False, **search})
    return og.Generator(model, params)


def _go_on(generator: Any, count: int = _TOKENS) -> None:
    for _ in range(count):
        if not generator.is_done():
            generator.generate_next_token()


def _written(generator: Any, texts: int = 1) -> list[list[int]]:
    return [[int(n) for n in generator.get_sequence(i)] for i in range(texts)]


def _search(prompts: Sequence[Sequence[int]], **search: Any) -> Callable[[Any], list[list[int]]]:
    def run(model: Any) -> list[list[int]]:
        generator = _generator(model, batch_size=len(prompts), **search)
        generator.append_tokens(np.array(prompts, np.int32))
        _go_on(generator)
        return _written(generator, len(prompts))

    return run


def _continued(model: Any) -> list[list[int]]:
    """Turns of a user between those of the model."""
    generator = _generator(model)
    for turn in ([3, 5, 7], [9, 11], [13]):
        generator.append_tokens(turn)
        _go_on(generator, 5)
    return _written(generator)


def _rewound(model: Any, **search: Any) -> list[list[int]]:
    """The same prefix with other tokens after it, and again from the start."""
    generator = _generator(model, **search)
    generator.append_tokens([3, 5, 7, 9])
    _go_on(generator, 6)
    before = _written(generator)
    generator.rewind_to(5)
    generator.append_tokens([20, 21])
    _go_on(generator, 6)
    after = _written(generator)
    generator.rewind_to(0)
    generator.append_tokens([3, 5, 7, 9])
    _go_on(generator, 6)
    assert _written(generator) == before
    return [*before, *after]


_LENGTHS = [[3, 5, 7, 9, 11], [0, 0, 0, 2, 4], [0, 6, 8, 10, 12]]
"""Texts of several lengths, which padding begins."""


def _rewound_batch(model: Any, **search: Any) -> list[list[int]]:
    """Texts of several lengths, whose last tokens are taken back and written again."""
    generator = _generator(model, batch_size=len(_LENGTHS), **search)
    generator.append_tokens(np.array(_LENGTHS, np.int32))
    _go_on(generator, 6)
    before = _written(generator, len(_LENGTHS))
    generator.rewind_to(0)
    generator.append_tokens(np.array(_LENGTHS[::-1], np.int32))
    _go_on(generator, 6)
    return [*before, *_written(generator, len(_LENGTHS))]


def _logits(model: Any) -> list[list[float]]:
    """Those of texts of several lengths, after each token and once they were taken back."""
    generator = _generator(model, batch_size=len(_LENGTHS))
    found = []
    for _ in range(2):
        generator.append_tokens(np.array(_LENGTHS, np.int32))
        for _ in range(6):
            found.append(np.asarray(generator.get_logits()).reshape(-1).tolist())
            generator.generate_next_token()
        generator.rewind_to(0)
    return found


RUNS: dict[str, Callable[[Any], list[list[int]]]] = {
    "greedy": _search([[3, 5, 7]]),
    "greedy, a batch": _search([[3, 5, 7], [2, 4, 6]]),
    "top-k": _search([[3, 5, 7]], do_sample=True, top_k=5, temperature=0.8, random_seed=7),
    "top-k, a batch": _search([[3, 5, 7], [2, 4, 6]], do_sample=True, top_k=3, random_seed=7),
    "beams": _search([[3, 5, 7]], num_beams=3, past_present_share_buffer=False),
    "beams, a batch": _search([[3, 5, 7], [2, 4, 6]], num_beams=3,
                              past_present_share_buffer=False),
    "growing caches": _search([[3, 5, 7]], past_present_share_buffer=False),
    "append_tokens": _continued,
    "rewind_to": _rewound,
    "several lengths": _search(_LENGTHS),
    "several lengths, rewind_to": _rewound_batch,
    "several lengths, beams": _search(_LENGTHS, num_beams=2, past_present_share_buffer=False),
    "growing caches, rewind_to": functools.partial(_rewound, past_present_share_buffer=False),
    "growing caches, several lengths": _search(_LENGTHS, past_present_share_buffer=False),
}


def _adapted(folder: Path) -> Callable[[Any], list[list[int]]]:
    """Without an adapter, then with each of two."""
    def run(model: Any) -> list[list[int]]:
        adapters = og.Adapters(model)
        texts = []
        for name in (None, "a", "b"):
            generator = _generator(model)
            if name is not None:
                adapters.load(str(folder / f"{name}.onnx_adapter"), name)
                generator.set_active_adapter(adapters, name)
            generator.append_tokens([3, 5, 7])
            _go_on(generator)
            texts += _written(generator)
        return texts

    return run


def _heard(**search: Any) -> Callable[[Any], list[list[int]]]:
    """What whisper writes of two sounds."""
    def run(model: Any) -> list[list[int]]:
        texts = []
        for seed in range(2):
            sound = np.random.default_rng(seed).standard_normal((
                1, tiny_decoders.GENAI_MELS, tiny_decoders.GENAI_FRAMES), np.float32)
            sound += np.float32(4 * seed)
            inputs = og.NamedTensors()
            inputs["audio_features"] = sound
            inputs["input_ids"] = np.int32([[0, 5, 6]])
            generator = _generator(model, batch_size=1, past_present_share_buffer=False, **search)
            generator.set_inputs(inputs)
            _go_on(generator)
            texts += _written(generator)
        return texts

    return run


def _shown(*, placed: bool) -> Callable[[Any], list[list[int]]]:
    """What is written of two images, of two at once, and of none. Those whose tokens are ``placed``
    may have several sizes."""
    def run(model: Any) -> list[list[int]]:
        texts = []
        grids = [(1, 4, 4)], [(1, 4, 4)], [(1, 4, 4), (1, 2, 6 if placed else 8)], []
        for seed, grid in enumerate(grids):
            rng, text, inputs = np.random.default_rng(seed), [3, 5, 11, 13], og.NamedTensors()
            counts = [t * h * w // 4 for t, h, w in grid]
            for count in counts:
                text += [tiny_decoders.BEFORE_IMAGE, *[tiny_decoders.IMAGE] * count, 9]
            if counts:
                rows = (4 * sum(counts), 48) if placed else (len(counts), 3, 8, 8)
                inputs["pixel_values"] = 3 * rng.standard_normal(rows, np.float32)
                inputs["num_image_tokens"] = np.int64(counts)
                if placed:
                    inputs["image_grid_thw"] = np.int64(grid)
            generator = _generator(model)
            generator.set_inputs(inputs)
            generator.append_tokens(np.int32(text))
            _go_on(generator)
            texts += _written(generator)
        return texts

    return run


def _others(folder: Path) -> dict[str, tuple[Path, Callable[[Any], list[list[int]]]]]:
    """Runs of other models, which are not captured."""
    return {"adapters": (folder / "adapted", _adapted(folder / "adapted")),
            "whisper": (folder / "whisper", _heard()),
            "whisper, beams": (folder / "whisper", _heard(num_beams=3))}


APART = tuple(name for name in RUNS if "growing" in name or "beams" in name)
"""Runs with past and present caches in two places, of which onnxruntime-genai captures none."""


def _captured(folder: Path) -> dict[str, tuple[Path, Callable[[Any], list[list[int]]]]]:
    """Runs of models that see images, and of one with other angles for long texts."""
    return {"long texts": (folder / "long", _search([[3, 5, 7]])),
            "long texts, rewind_to": (folder / "long", _rewound),
            "images": (folder / "images", _shown(placed=False)),
            "images with places": (folder / "placed", _shown(placed=True))}


def _models(folder: Path) -> dict[str, Any]:
    on_cpu = og.Config(str(folder))
    on_cpu.clear_providers()
    return {"cpu": og.Model(on_cpu), "captured": genai.model(folder),
            "not captured": genai.model(folder, capture=False)}


def _uncaptured(folder: Path) -> dict[str, Any]:
    on_cpu = og.Config(str(folder))
    on_cpu.clear_providers()
    return {"cpu": og.Model(on_cpu), "not captured": genai.model(folder, capture=False)}


def _copied(model: Any) -> list[int]:
    """Bytes of each copy by ONNX Runtime while tokens are written."""
    found: list[int] = []
    copy = allocation._copy

    def counted(source: tuple[int, int], target: tuple[int, int], **more: Any) -> None:
        found.append(source[1])
        copy(source, target, **more)

    generator = _generator(model)
    generator.append_tokens([3, 5, 7])
    _go_on(generator, 2)
    allocation._copy = counted
    try:
        _go_on(generator, 4)
    finally:
        allocation._copy = copy
    return found


def _refusal(act: Callable[[], Any]) -> str:
    try:
        act()
    except (UnsupportedError, RuntimeError) as error:
        return str(error)
    return "none"


def main(folder: Path) -> dict[str, Any]:
    name = "WebGpuExecutionProvider"
    og.register_execution_provider_library(name, kompute.get_library_path())
    made: dict[str, Any] = {"beside WebGPU's": _refusal(genai.register)}
    og.unregister_execution_provider_library(name)
    with provider.decisions() as decisions:
        models = _models(folder)
        others = {name: (_uncaptured(where), run) for name, (where, run) in _others(folder).items()}
        others |= {name: (_models(where), run) for name, (where, run) in _captured(folder).items()}
    made["on the CPU"] = [d.operator for d in decisions if d.where == "CPU"]
    made["an encoder's options"] = _refusal(lambda: genai.config(folder / "whisper-own"))
    made["an option"] = _refusal(lambda: genai.model(folder, capture=False, claims="all"))
    made["runs"] = {name: {where: run(model) for where, model in models.items()
                           if where != "captured" or name not in APART}
                    for name, run in RUNS.items()}
    made["runs"] |= {name: {where: run(model) for where, model in made_of.items()}
                     for name, (made_of, run) in others.items()}
    made["logits"] = {where: _logits(model) for where, model in models.items()}
    made["logits, long texts"] = {
        where: _logits(model) for where, model in others["long texts"][0].items()}
    made["captured, caches apart"] = _refusal(lambda: RUNS[APART[0]](models["captured"]))
    made["copies"] = {where: _copied(models[where]) for where in ("captured", "not captured")}
    made["after it"] = _refusal(kompute.devices)
    return made


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
