"""ONNX models inside of a model file, run by ONNX Runtime with this package's provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import onnxruntime as provider
from ..errors import UnsupportedError, ValidationError
from ..layout import product
from ..onnxruntime import own_errors
from ..runtime.adapters import Adapter

_TYPES = {"float": "f4", "float16": "f2", "double": "f8", "bool": "?",
          **{f"{sign}int{8 * n}": f"{sign or 'i'}{n}" for sign in ("", "u") for n in (1, 2, 4, 8)}}
"""ONNX Runtime's names of data types, and NumPy's."""


@dataclass(frozen=True)
class OnnxModel:
    path: Path
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Sizes by a free dimension's name, ..."""
    denotations: Mapping[str, int] = field(default_factory=dict)
    """... and by its denotation."""
    config: Mapping[str, str] = field(default_factory=dict)
    optimization_level: int = 99
    logging_level: int = 2


@dataclass(frozen=True)
class OnnxTensor:
    """An input or output; free dimensions are None."""

    name: str
    dtype: np.dtype
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, described: Any) -> OnnxTensor:
        kind = described.type.removeprefix("tensor(").removesuffix(")")
        if kind not in _TYPES:
            raise UnsupportedError(
                f"{described.name} is {described.type}, which DirectML does not have")
        shape = tuple(n if isinstance(n, int) and n >= 0 else None for n in described.shape)
        return cls(described.name, np.dtype(_TYPES[kind]), shape)


class Session:
    """A model on a device. Values come and go through the host."""

    def __init__(self, model: OnnxModel, adapter: Adapter) -> None:
        """Raises UnsupportedError without ONNX Runtime, ValidationError for what is no model."""
        provider.register()  # says what is missing
        import onnxruntime

        options = onnxruntime.SessionOptions()
        for name, size in model.dimensions.items():
            options.add_free_dimension_override_by_name(name, size)
        for name, size in model.denotations.items():
            options.add_free_dimension_override_by_denotation(name, size)
        for name, value in model.config.items():
            options.add_session_config_entry(name, value)
        level = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = {
            0: level.ORT_DISABLE_ALL, 1: level.ORT_ENABLE_BASIC, 2: level.ORT_ENABLE_EXTENDED,
        }.get(model.optimization_level, level.ORT_ENABLE_ALL)
        options.log_severity_level = model.logging_level
        with own_errors(str(model.path)):
            self._session = provider.session(
                str(model.path), session_options=options, adapter=adapter.uuid, claim="all")
        self.inputs = [OnnxTensor.of(each) for each in self._session.get_inputs()]
        self.outputs = [OnnxTensor.of(each) for each in self._session.get_outputs()]

    def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with own_errors("ONNX Runtime"):
            arrays = self._session.run(None, feed)
        return {tensor.name: array for tensor, array in zip(self.outputs, arrays)}


def shaped(tensor: OnnxTensor, data: np.ndarray, shape: tuple[int, ...] | None) -> np.ndarray:
    """The first bytes of ``data`` as an input; a free dimension without a shape is 1."""
    sizes = shape or tuple(1 if n is None else n for n in tensor.shape)
    wanted = product(sizes) * tensor.dtype.itemsize
    if wanted > data.size:
        raise ValidationError(
            f"expected {wanted} bytes for {tensor.name} {list(sizes)}, but its resource has "
            f"{data.size}")
    return data[:wanted].view(tensor.dtype).reshape(sizes)
