"""The package as an ONNX backend.

    import kompute_dml.onnx_backend as backend

    outputs = backend.prepare("model.onnx").run(inputs)
"""

from __future__ import annotations

from .errors import UnsupportedError

try:
    from .onnx.backend import KomputeDmlBackend, PreparedModel
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith("onnx"):
        raise
    raise UnsupportedError("onnx is needed for this: pip install onnx") from None

is_compatible = KomputeDmlBackend.is_compatible
prepare = KomputeDmlBackend.prepare
run_model = KomputeDmlBackend.run_model
run_node = KomputeDmlBackend.run_node
supports_device = KomputeDmlBackend.supports_device

__all__ = [
    "KomputeDmlBackend", "PreparedModel", "is_compatible", "prepare", "run_model", "run_node",
    "supports_device",
]
