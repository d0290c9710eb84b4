"""Installed beside kompute_dml, for kompute_dml_ort.pth: waits for an import of onnxruntime.

Python imports this at its start if KOMPUTE_DML_ORT is set. kompute_dml itself is imported with
onnxruntime, and not at all in a process that imports no onnxruntime.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAME = "onnxruntime"


class _Finder:
    """Finds onnxruntime as the other finders do, and acts once it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _NAME:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: Any) -> None:
            original(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _activate()

        loader.exec_module = exec_module


def _activate() -> None:
    try:
        from kompute_dml.onnxruntime.applications import activate

        activate()
    except Exception as error:  # the application runs without it
        print(f"kompute_dml: KOMPUTE_DML_ORT has no effect: {error!r}", file=sys.stderr)


sys.meta_path.insert(0, _Finder())
