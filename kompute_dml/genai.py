"""onnxruntime-genai's models on any Vulkan GPU.

    import onnxruntime_genai as og
    import kompute_dml.genai

    model = kompute_dml.genai.model("FOLDER")
    generator = og.Generator(model, og.GeneratorParams(model))

onnxruntime-genai keeps caches on a provider's device, and captures graphs, for the providers of its
own list only. So this module, and no other, registers the provider as WebGPU's, with
onnxruntime-genai in this process. It refuses where ONNX Runtime's own WebGPU provider is
registered.
"""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

from .errors import UnsupportedError
from .onnx.operators import long_rope
from .onnxruntime import get_library_path, identity
from .runtime.adapters import choose
from .runtime.kp_engine import import_kp
from .spec import snake_case

__all__ = ["config", "folder_options", "is_registered", "model", "register", "unregister"]

_NAME = "WebGPU"
"""What onnxruntime-genai calls the provider."""
_registered = False


def register() -> None:
    """Register the provider with onnxruntime-genai. Does nothing if it is registered already.

    Raises UnsupportedError where onnxruntime-genai or cffi is missing, where WebGPU's own provider
    is registered, and where this provider is registered with the ``onnxruntime`` module, which has
    another ONNX Runtime; NoDeviceError without a Vulkan driver or kp.
    """
    global _registered
    if _registered:
        return
    og = _genai()
    choose(None)
    import_kp()
    path, name = get_library_path(), identity.WEBGPU.provider
    capi = importlib.import_module(".onnxruntime.capi", __package__)  # which needs cffi
    if name in capi.provider_names(os.environ["ORT_LIB_PATH"]):  # which onnxruntime-genai has set
        raise UnsupportedError(
            f"a provider of the name {name} is registered already, and onnxruntime-genai would not "
            "tell it from this one: unregister it, or use another process")
    try:
        og.register_execution_provider_library(name, path)
    except RuntimeError as error:
        raise UnsupportedError(str(error)) from None
    _registered = True


def unregister() -> None:
    """Unregister the provider. Models and generators must be gone."""
    global _registered
    if _registered:
        _genai().unregister_execution_provider_library(identity.WEBGPU.provider)
        _registered = False


def is_registered() -> bool:
    """Whether the provider is registered with onnxruntime-genai."""
    return _registered


def config(
    folder: str | os.PathLike[str], *, adapter: int | str | None = None, capture: bool = False,
    **options: object,
) -> Any:
    """An ``onnxruntime_genai.Config`` of the model in a folder, on the device.

    ``adapter``: index, UUID or part of the name of the Vulkan device. ``capture``: each token
    replays a captured graph, which takes the device for all nodes and shared caches. ``options``
    are the provider's, as of :func:`kompute_dml.onnxruntime.session`; ``claim`` is "all" if it is
    not given. Raises what :func:`register` raises, and UnsupportedError where the model's
    encoder has session options of its own.
    """
    register()
    _expect_an_encoder_like_the_decoder(folder)
    settings = _genai().Config(str(Path(folder)))
    settings.clear_providers()
    settings.append_provider(_NAME)
    settings.set_decoder_provider_options_hardware_device_id(_NAME, choose(adapter).index)
    if capture:
        settings.set_provider_option(_NAME, "enableGraphCapture", "1")
    for name, value in {**folder_options(folder), **options}.items():
        if value is not None:
            settings.set_provider_option(_NAME, name, str(value))
    return settings


def folder_options(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Options of the provider without which results would be wrong, from a folder's
    ``genai_config.json``: where the angles for long texts begin. Empty without such a file."""
    path = Path(folder) / "genai_config.json"
    described = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    session = described.get("model", {}).get("decoder", {}).get("session_options", {})
    offsets = [str(value) for provider in session.get("provider_options", ())
               for options in provider.values() for name, value in options.items()
               if snake_case(name) == long_rope.ATTRIBUTE]
    return {long_rope.ATTRIBUTE: offsets[0]} if offsets else {}


def _expect_an_encoder_like_the_decoder(folder: str | os.PathLike[str]) -> None:
    """The calls of a Config reach the decoder alone. An encoder with session options of its own
    runs on the CPU, and would write keys and values for the decoder to memory of the device."""
    path = Path(folder) / "genai_config.json"
    if not path.is_file():
        return  # onnxruntime-genai says so
    described = json.loads(path.read_text(encoding="utf-8"))
    if "session_options" in described.get("model", {}).get("encoder", {}):
        raise UnsupportedError(
            "model.encoder in genai_config.json has session_options of its own, with which "
            "onnxruntime-genai runs it on the CPU: remove them, so that it has the decoder's")


def model(
    folder: str | os.PathLike[str], *, adapter: int | str | None = None,
    capture: bool | None = None, **options: object,
) -> Any:
    """An ``onnxruntime_genai.Model`` of a folder, on the device.

    The arguments are those of :func:`config`. ``capture=None`` captures graphs where the device
    runs every node, and does without elsewhere.
    """
    og = _genai()
    if capture is None:
        try:
            return og.Model(config(folder, adapter=adapter, capture=True,
                                   **{**options, "strict": True}))
        except RuntimeError as error:
            if "strict: " not in str(error):
                raise
    return og.Model(config(folder, adapter=adapter, capture=bool(capture), **options))


def _genai() -> Any:
    try:
        import onnxruntime_genai
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"{error.name} is needed for this: pip install onnxruntime-genai") from None
    return onnxruntime_genai
