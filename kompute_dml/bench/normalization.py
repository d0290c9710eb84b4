"""Cases of softmax and of normalizations, of rows and of images."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cases import Scale
from ..cases import case as cases
from ..cases.images import normal
from ..cases.reduction import softmax
from ..dtypes import DataType
from .case import Peer, Recipe, image_sizes
from .ordinary import ordinary

if TYPE_CHECKING:
    import torch

ROWS = ((1 << 20, 128), (65536, 2048), (16384, 16384), (512, 131072))
KINDS = ("SOFTMAX", "LOG_SOFTMAX", "LAYER", "RMS")
_EPSILON = 1e-5
_OPERATORS = {
    "SOFTMAX": "ACTIVATION_SOFTMAX1", "LOG_SOFTMAX": "ACTIVATION_LOG_SOFTMAX1",
    "LAYER": "MEAN_VARIANCE_NORMALIZATION1", "RMS": "MEAN_VARIANCE_NORMALIZATION2"}


def _room(data_type: DataType) -> float:
    return 2e-3 if data_type is DataType.FLOAT16 else 1e-4


def rows(kind: str, data_type: DataType, count: int, columns: int) -> Recipe:
    """A kind of ``KINDS``. LAYER has a scale and a bias, RMS a scale and no mean."""
    dtype = data_type.dtype

    def entry(s: Scale) -> cases.OperatorCase:
        width = max(s.of(columns), 8)
        x = cases.Given((s.of(count), width), -4, 4, dtype)
        scale, bias = (cases.Given((1, width), low, low + 1, dtype, shared=True)
                       for low in (0.5, -0.5))
        more: dict[str, Any] = dict(axes=(1,), room=_room(data_type))
        if kind == "LAYER":
            return cases.case(lambda x, scale, bias: normal(x, 1, scale, bias), x, scale, bias,
                              epsilon=_EPSILON, **more)
        if kind == "RMS":
            return cases.case(
                lambda x, scale: x / np.sqrt((x * x).mean(1, keepdims=True) + _EPSILON) * scale,
                x, scale, epsilon=_EPSILON, use_mean=False, **more)
        return cases.case(
            softmax if kind == "SOFTMAX" else lambda x: np.log(softmax(x)), x, **more)

    def torch_peers(
        torch: ModuleType, x: torch.Tensor, *parameters: torch.Tensor
    ) -> Iterator[Peer]:
        f, width = torch.nn.functional, x.shape[1:]
        vectors = [t.reshape(-1) for t in parameters]
        yield Peer("torch", {
            "SOFTMAX": lambda: f.softmax(x, 1),
            "LOG_SOFTMAX": lambda: f.log_softmax(x, 1),
            "LAYER": lambda: f.layer_norm(x, width, *vectors, eps=_EPSILON),
            "RMS": lambda: f.rms_norm(x, width, *vectors, eps=_EPSILON),
        }[kind])

    what = f" {kind.lower()}" if kind in ("LAYER", "RMS") else ""
    return ordinary("DML_OPERATOR_" + _OPERATORS[kind],
                    f"{data_type.family}{what} rows of {columns}", entry, torch=torch_peers)


def images(data_type: DataType, per_instance: bool) -> Recipe:
    """Batch normalization by given statistics, or normalization of each plane, with a scale and a
    bias for each channel."""
    dtype = data_type.dtype

    def entry(s: Scale) -> cases.OperatorCase:
        sizes = image_sizes(s)
        x = cases.Given(sizes, -1, 1, dtype)

        def channels(low: float, high: float) -> cases.Given:
            return cases.Given((1, sizes[1], 1, 1), low, high, dtype, shared=True)

        mean, variance, scale, bias = (
            channels(-0.5, 0.5), channels(0.5, 1.5), channels(0.5, 1.5), channels(-1, 1))
        more: dict[str, Any] = dict(epsilon=_EPSILON, room=_room(data_type))
        if per_instance:
            return cases.case(lambda x, scale, bias: normal(x, (2, 3), scale, bias), x, scale,
                              bias, axes=(2, 3), **more)
        return cases.case(
            lambda x, mean, variance, scale, bias:
                (x - mean) / np.sqrt(variance + _EPSILON) * scale + bias,
            x, mean, variance, scale, bias, **more)

    def torch_peers(
        torch: ModuleType, x: torch.Tensor, *parameters: torch.Tensor
    ) -> Iterator[Peer]:
        f, vectors = torch.nn.functional, [t.reshape(-1) for t in parameters]
        if per_instance:
            yield Peer("torch", lambda: f.instance_norm(
                x, weight=vectors[0], bias=vectors[1], eps=_EPSILON))
        else:
            yield Peer("torch", lambda: f.batch_norm(x, *vectors, eps=_EPSILON))

    if per_instance:
        return ordinary("DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1",
                        f"{data_type.family} instance planes", entry, torch=torch_peers)
    return ordinary("DML_OPERATOR_BATCH_NORMALIZATION", f"{data_type.family} batch planes", entry,
                    torch=torch_peers)
