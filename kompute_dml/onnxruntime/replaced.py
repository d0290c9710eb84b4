"""The initializers that ``SessionOptions.add_initializer`` replaces.

ONNX Runtime puts them in place after regions were compiled, and shows them to no provider. So a
session with the same options is made of a model that has nothing but initializers, which are its
outputs, too: those that come out with elements were replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Any

from ..errors import DmlError
from .capi import CData, api, ffi
from .protobuf import content, number

_LEVEL, _NAME = 4, b"kompute_dml"
_FLOAT32, _IR_VERSION, _OPSET = 1, 8, 13
_ENTRIES = {
    "ep.context_enable": "0", "session.load_model_format": "ONNX",
    "session.disable_cpu_ep_fallback": "0", "session.intra_op.allow_spinning": "0",
}


class _State(threading.local):
    asking = False


_state = _State()


def asking() -> bool:
    """Whether this thread makes a session that only shows what is replaced."""
    return _state.asking


class Replaced:
    """The initializers of a session that are replaced, by name."""

    def __init__(self, options: CData) -> None:
        """``options`` are ONNX Runtime's. What is kept is a copy."""
        ort = api()
        self._options = None
        if options != ffi.NULL and not asking():
            self._options = ffi.gc(ort.get(ort.CloneSessionOptions, "void *", options),
                                   ort.ReleaseSessionOptions)
        self._asked: set[str] = set()
        self.values: dict[str, Any] = {}
        """The OrtValues of those that are known to be replaced."""

    def of(self, names: Collection[str]) -> dict[str, Any]:
        """The OrtValues of those of ``names`` that are replaced. They are valid as long as this
        object."""
        new = [n for n in dict.fromkeys(names) if n not in self._asked]
        if new and self._options is not None:
            self._asked.update(new)
            _state.asking = True
            try:
                self.values.update(_given(self._options, new))
            except DmlError:
                # add_external_initializers wants the initializers themselves in a model.
                self._options = None
            finally:
                _state.asking = False
        return {n: self.values[n] for n in names if n in self.values}


def _given(session_options: CData, names: Sequence[str]) -> dict[str, Any]:
    ort = api()
    options = ffi.gc(ort.get(ort.CloneSessionOptions, "void *", session_options),
                     ort.ReleaseSessionOptions)
    for key, value in _ENTRIES.items():
        ort.check(ort.AddSessionConfigEntry(options, key.encode(), value.encode()))
    ort.check(ort.DisableProfiling(options))
    ort.check(ort.SetOptimizedModelFilePath(options, b""))
    ort.check(ort.SetSessionGraphOptimizationLevel(options, 0))
    ort.check(ort.SetIntraOpNumThreads(options, 1))
    ort.check(ort.SetInterOpNumThreads(options, 1))
    ort.check(ort.SetSessionLogSeverityLevel(options, _LEVEL))
    environment = ffi.gc(ort.get(ort.CreateEnv, "void *", _LEVEL, _NAME), ort.ReleaseEnv)
    model = _model(names)
    session = ffi.gc(
        ort.get(ort.CreateSessionFromArray, "void *", environment, model, len(model), options),
        ort.ReleaseSession)
    texts = [ffi.new("char[]", name.encode()) for name in names]
    outputs = ffi.new("void *[]", len(names))
    ort.check(ort.Run(session, ffi.NULL, ffi.NULL, ffi.NULL, 0,
                      ffi.new("const char *[]", texts), len(names), outputs))
    values = {name: ffi.gc(outputs[i], ort.ReleaseValue) for i, name in enumerate(names)}
    return {name: value for name, value in values.items() if ort.sizes(value) != [0]}


def _model(names: Sequence[str]) -> bytes:
    """A model of empty initializers, which are its outputs."""
    graph = content(2, _NAME)
    for name in names:
        text = name.encode()
        graph += content(5, number(1, 0) + number(2, _FLOAT32) + content(8, text) + content(9, b""))
        graph += content(12, content(1, text) + content(2, content(1, number(1, _FLOAT32))))
    return (number(1, _IR_VERSION) + content(7, graph)
            + content(8, content(1, b"") + number(2, _OPSET)))
