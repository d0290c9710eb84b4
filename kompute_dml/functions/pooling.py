"""Functions of pooling, whose attributes have defaults that depend on the dimensions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..operators import pooling as _pooling  # noqa: F401  (registers them)
from ..operators.base import definitions
from .generated import make_function
from .registry import function

if TYPE_CHECKING:
    from ..tensors.types import TensorLike

_DEFAULTS = {"strides": 1, "start_padding": 0, "end_padding": 0, "dilations": 1}


def _with_defaults(name: str) -> None:
    """Publish the operator's function. An attribute may be one number for all dimensions. By
    default strides and dilations are 1, paddings are 0, and ``data_type`` (of the indices, or of
    the quantized result) is unsigned."""
    unfilled: Callable[..., Any] = make_function(definitions()["DML_OPERATOR_" + name])

    @functools.wraps(unfilled)
    def call(x: TensorLike, *args: object, **kwargs: object) -> Any:
        rank = max(np.ndim(x) if not hasattr(x, "ndim") else x.ndim, 2) - 2
        for field in parameters & {"window_size", *_DEFAULTS}:
            value = kwargs.get(field, _DEFAULTS.get(field))
            if value is None and field in _DEFAULTS:
                value = _DEFAULTS[field]
            if isinstance(value, (int, np.integer)):
                value = (int(value),) * rank
            if value is not None:
                kwargs[field] = value
        if "data_type" in parameters and kwargs.get("out") is None:
            kwargs["data_type"] = kwargs.get("data_type") or typical
        return unfilled(x, *args, **kwargs)

    typical = "uint32" if name.startswith("MAX") else "uint8"
    parameters = set(inspect.signature(unfilled).parameters)
    function(call)


for _name in ("AVERAGE_POOLING", "AVERAGE_POOLING1", "LP_POOLING", "LP_POOLING1", "MAX_POOLING",
              "MAX_POOLING1", "MAX_POOLING2", "QUANTIZED_LINEAR_AVERAGE_POOLING"):
    _with_defaults(_name)
