"""The names under which ONNX Runtime knows the provider and its memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from ..onnx.operators import long_rope
from ..spec import snake_case
from . import VENDOR_ID


class Identity(NamedTuple):
    """Names that ONNX Runtime, or a program above it, tells providers by."""

    provider: str
    memory: str
    vendor: int
    """The number of the devices' and the memory's vendor."""


OWN = Identity("KomputeDmlExecutionProvider", "KomputeDml", VENDOR_ID)
WEBGPU = Identity("WebGpuExecutionProvider", "WebGPU_Buf", 0)
"""ONNX Runtime's WebGPU provider. onnxruntime-genai keeps caches on the devices of providers that
it knows by name, and finds this one's memory through ONNX Runtime alone."""

_current = OWN


def current() -> Identity:
    """The identity of the library's last registration."""
    return _current


def take(registration: str) -> None:
    """Take the identity that goes with the name of a registration: OWN but for WEBGPU's."""
    global _current
    _current = WEBGPU if registration == WEBGPU.provider else OWN


def own_options(entries: Mapping[str, str]) -> dict[str, str]:
    """A session's options as this provider has them. Under WEBGPU's name, those that only WebGPU's
    provider has, which are written in camelCase, say nothing here but for those that this one has
    under another name; and all nodes are claimed unless they say otherwise, so that caches stay on
    the device."""
    if _current is not WEBGPU:
        return dict(entries)
    kept = {k: v for k, v in entries.items() if not re.fullmatch("[a-z]+([A-Z][a-z0-9]*)+", k)}
    shared = {snake_case(k): v for k, v in entries.items() if snake_case(k) in _SHARED}
    return {"claim": "all", **shared, **kept}


_SHARED = {"enable_graph_capture", long_rope.ATTRIBUTE}
"""Options of WebGPU's provider that this one has, too."""
