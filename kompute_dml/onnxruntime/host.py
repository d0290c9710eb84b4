"""A region on the host, for sizes that the device has no room for."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import OutOfMemoryError
from ..onnx.graph import OnnxGraph, OnnxValue, topological
from ..onnx.region import Region
from . import protobuf

_MOST = (1 << 31) - 1
"""The most bytes of a message."""
_MOST_COPIED = 64 << 20
"""The most bytes of constants that are kept for this alone."""


class HostRegion:
    """The nodes of a region as a session of ONNX Runtime's CPU provider, which is made when it is
    first needed."""

    def __init__(
        self, graph: OnnxGraph, constants: Mapping[OnnxValue, np.ndarray], region: Region
    ) -> None:
        """``constants`` are the values that ``graph`` had before ``region`` was made of it. Only
        those that the region does not hold are copied now: ONNX Runtime frees its own. With many of
        these the host does not serve the region."""
        self._graph, self._region = graph, region
        self._constants = list(constants)
        missing = {v: x for v, x in constants.items() if not region.holds(v)}
        self._serves = sum(x.nbytes for x in missing.values()) <= _MOST_COPIED and not any(
            v is not None and v.is_bfloat16 for n in graph.nodes for v in (*n.inputs, *n.outputs))
        self._copies = {v: x.copy() for v, x in missing.items()} if self._serves else {}
        self._lock = threading.Lock()
        self._session: Any = None

    def run(self, inputs: Sequence[np.ndarray], why: OutOfMemoryError) -> list[np.ndarray]:
        """The outputs. Raises ``why`` where the host cannot run the region, too."""
        with self._lock:
            if self._session is None:
                self._session = self._made(why)
        feed = dict(zip((v.name for v in self._graph.inputs), inputs))
        return [np.asarray(y) for y in self._session.run(None, feed)]

    def _made(self, why: OutOfMemoryError) -> Any:
        import onnxruntime

        graph = self._graph
        if not self._serves or any(v.dtype is None for v in self._constants):
            raise why  # NumPy has no integers of 4 bits
        values = {v.name: self._copies[v] if v in self._copies else self._region.constant(v)
                  for v in self._constants}
        if sum(x.nbytes for x in values.values()) > _MOST:
            raise why
        built = protobuf.model(topological(graph.nodes), graph.inputs, graph.outputs, values)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(built, options, providers=["CPUExecutionProvider"])
