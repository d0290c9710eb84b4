"""An execution provider for ONNX Runtime: ONNX models on any Vulkan GPU.

    import onnxruntime
    import kompute_dml.onnxruntime as kompute

    kompute.register()
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices(kompute.devices()[:1], {})
    session = onnxruntime.InferenceSession("model.onnx", options)

or, in one line, ``session = kompute.session("model.onnx")``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import UnsupportedError, ValidationError
from ..runtime.adapters import choose
from ..runtime.kp_engine import import_kp
from ..toolchain import native
from ..toolchain.system import ToolchainError
from . import in_file

__all__ = [
    "VENDOR_ID", "devices", "explain", "get_ep_name", "get_ep_names", "get_library_path",
    "is_registered", "register", "session", "unregister",
]

VENDOR_ID = 0x4B44
"""The vendor of device memory, for ``OrtValue.ortvalue_from_numpy(x, "gpu", adapter, VENDOR_ID)``.
No PCI vendor has this number, so no other provider claims this memory."""
ANOTHER = (
    "the provider is registered with another ONNX Runtime of this process: onnxruntime's module "
    "and onnxruntime-genai have one each, and the provider works with one at a time")
_INSTALL = "pip install onnxruntime cffi, with Python 3.11 or newer"


def get_ep_name() -> str:
    """The provider's name: KomputeDmlExecutionProvider."""
    return _provider().EP_NAME


def get_ep_names() -> list[str]:
    """The names of the library's providers: one."""
    return [get_ep_name()]


def get_library_path() -> str:
    """The provider library, ready to be registered under any name.

    Raises UnsupportedError if it was not built, with the way to build it.
    """
    path = native.library()
    try:
        native.build()
    except (ToolchainError, OSError) as error:
        if not path.is_file():
            raise UnsupportedError(
                f"{path.name} was not built when kompute-dml was installed, and cannot be built "
                f"now: {error}"
            ) from None
    _provider().load(str(path))
    return str(path)


def register() -> None:
    """Register the provider with ONNX Runtime. Does nothing if it is registered already.

    Raises UnsupportedError for an ONNX Runtime that is too old, or beside another one that has the
    provider (onnxruntime-genai's), NoDeviceError without a Vulkan driver or kp.
    """
    if is_registered():
        return
    # These raise errors now that ONNX Runtime would wrap when a session is created.
    choose(None)
    import_kp()
    ort, path = _onnxruntime(), get_library_path()
    try:
        ort.register_execution_provider_library(get_ep_name(), path)
    except Exception as error:  # ONNX Runtime's exceptions have no class in common
        if ANOTHER in str(error):
            raise UnsupportedError(ANOTHER) from None
        raise


def unregister() -> None:
    """Unregister the provider.

    Raises ValidationError while a session or a value in device memory uses it.
    """
    if is_registered():
        _provider().check_unused()
        _onnxruntime().unregister_execution_provider_library(get_ep_name())


def is_registered() -> bool:
    """Whether the provider is registered."""
    return any(d.ep_name == get_ep_name() for d in _onnxruntime().get_ep_devices())


def devices() -> list[Any]:
    """ONNX Runtime's devices of this provider, one per Vulkan adapter, the preferred one first.

    ``device.ep_metadata`` holds the adapter's index, name, type and driver.
    """
    register()
    return [d for d in _onnxruntime().get_ep_devices() if d.ep_name == get_ep_name()]


def session(
    model: str | bytes | os.PathLike[str], session_options: Any = None, **options: Any
) -> Any:
    """An ``onnxruntime.InferenceSession`` of a file or of bytes, with this provider first.

    ``options`` are the provider's: adapter, feature_level, claim, strict, memory,
    enable_graph_capture, multi_rotary_cache_concat_offset, profile. Nodes that it does not claim
    run on ONNX Runtime's CPU provider; with ``strict`` there must be none. ``session_options`` take
    the provider up, so each session has its own.
    """
    adapter = options.pop("adapter", None)
    index = str(choose(adapter).index)
    device = next(d for d in devices() if d.ep_metadata["adapter"] == index)
    ort = _onnxruntime()
    wanted = session_options or ort.SessionOptions()
    claim = options.get("claim")
    if claim is not None and not isinstance(claim, str):
        options["claim"] = ",".join(claim)
    texts = {name: str(value) for name, value in options.items() if value is not None}
    provider = _provider()
    asked = provider.Options(texts)  # ONNX Runtime would only print its errors
    wanted.add_provider_for_devices([device], texts)
    with provider.decisions() as decisions:
        try:
            return ort.InferenceSession(
                in_file.model_of(model, wanted), wanted, enable_fallback=False)
        finally:
            if asked.strict:
                provider.check_strict(decisions)


def explain(model: str | bytes | os.PathLike[str], **options: object) -> None:
    """Print where each node of a model runs, and why. ``options`` are those of :func:`session`.

    The nodes are those after ONNX Runtime's optimization. If no session can be made, the last line
    says why.
    """
    decisions, error = decided(model, **options)
    print(report(decisions))
    if error is not None:
        print(f"No session can be made: {error}")


def report(decisions: Sequence[Any]) -> str:
    """The lines that :func:`explain` prints of decisions."""
    width = max((len(d.operator) for d in decisions), default=0)
    lines = [f"{d.where:10}  {d.operator:{width}}  {d.node}: {d.why}" for d in decisions]
    regions = {d.where for d in decisions} - {"CPU"}
    left = sum(d.where == "CPU" for d in decisions)
    summary = (f"{_counted(len(decisions), 'node')}: {len(decisions) - left} in "
               f"{_counted(len(regions), 'region')}, {left} on the CPU")
    return "\n".join([*lines, summary])


def _counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def decided(
    model: str | bytes | os.PathLike[str], **options: object
) -> tuple[list[Any], Exception | None]:
    """The decisions that :func:`explain` prints: each node's ``operator``, name (``node``),
    ``where`` it runs, and ``why``. The second result is why no session can be made, if none can.

    Raises what :func:`session` raises before a node is looked at.
    """
    failure = None
    with _provider().decisions(quiet=True) as decisions:
        try:
            session(model, **options)
        except Exception as error:  # ONNX Runtime's exceptions have no class in common
            if not decisions:
                raise
            failure = error
    return list(decisions), failure


@contextmanager
def own_errors(what: str) -> Iterator[None]:
    """ONNX Runtime's exceptions, which have no class in common, as this package's."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise ValidationError(f"{what}: {error}") from None


def _provider() -> Any:
    try:
        return importlib.import_module(".provider", __name__)
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"{error.name} is needed for this: {_INSTALL}") from None


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise UnsupportedError(f"onnxruntime is needed for this: {_INSTALL}") from None
    capi = importlib.import_module(".capi", __name__)  # which needs cffi
    major, minor = (int(part) for part in onnxruntime.__version__.split(".")[:2])
    if (major, minor) < (1, capi.API_VERSION):
        raise UnsupportedError(capi.unsupported_version(onnxruntime.__version__))
    return onnxruntime
