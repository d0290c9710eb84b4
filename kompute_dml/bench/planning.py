"""Planning of a deep model for sizes that no plan has, by the host's clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, pairwise
from typing import Any

import numpy as np

from ..cases import Scale
from ..device import Device
from ..onnx.graph import OnnxNode, OnnxValue
from ..onnx.placement import place
from ..onnx.region import MAX_PLANS, Region
from .case import Case, Recipe, shape
from .values import close

_WHAT = "plan for new sizes"
_NODES, _COLUMNS = 4000, 32
_FLOAT = np.dtype("float32")


def planning() -> Recipe:
    """4,000 nodes with the same weights are planned for a number of rows that no kept plan has."""

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        count = min(4 * scale.side, _NODES)
        region, weights, bias = _layers(device, count)
        rows = cycle(range(16, 16 + 4 * MAX_PLANS))

        def dispatch() -> tuple[Any, np.ndarray]:
            x = np.linspace(-1, 1, next(rows) * _COLUMNS, dtype=_FLOAT).reshape(-1, _COLUMNS)
            return region.plan([x]), x

        def check(planned: tuple[Any, np.ndarray]) -> str:
            plan, x = planned
            (result,) = plan.run([x])
            for _ in range(count // 4):
                powers = np.exp(np.maximum(x @ weights + bias, 0))
                x = powers / powers.sum(1, keepdims=True)
            return close(result, x)

        yield Case(_WHAT, "f32", shape((count,)), dispatch, check, 0, on_host=True)

    return Recipe(_WHAT, "f32", make)


def _layers(device: Device, count: int) -> tuple[Region, np.ndarray, np.ndarray]:
    """A region of so many nodes, and its constants."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(-0.3, 0.3, (_COLUMNS, _COLUMNS)).astype(_FLOAT)
    bias = rng.uniform(-1, 1, _COLUMNS).astype(_FLOAT)
    w, b = (OnnxValue(name, _FLOAT, x.shape, x) for name, x in (("w", weights), ("b", bias)))
    values = [OnnxValue(f"x{i}", _FLOAT, (None, _COLUMNS)) for i in range(count + 1)]
    kinds = (("MatMul", 13, (w,)), ("Add", 14, (b,)), ("Relu", 14, ()), ("Softmax", 13, ()))
    nodes = [OnnxNode(op, "", since, (x, *constants), (y,), name=y.name)
             for (op, since, constants), (x, y) in zip(cycle(kinds), pairwise(values))]
    placement = place(nodes, device)
    return Region(device, nodes, values[:1], values[-1:], rows=placement.rows), weights, bias
