"""A product of one row by a constant whose numbers are BFLOAT16."""

from __future__ import annotations

from typing import Any

import numpy as np

import kompute_dml as dml
from kompute_dml.functions.call import device_of, run
from kompute_dml.operators.matrix_multiply.bfloat16 import WidenDesc
from passes import Arrays, Example


def _arrays(rng: np.random.Generator) -> Arrays:
    x, w = (rng.normal(0, 1, sizes).astype(np.float32) for sizes in ((1, 64), (64, 128)))
    return [x, (w.view(np.uint32) >> 16).astype(np.uint16)]


def widened(halves: Any) -> Any:
    """The numbers of an expression of upper halves."""
    graph = device_of(halves)
    y = graph.empty(halves.sizes, "float32")
    run(WidenDesc, graph, {"input_tensor": halves, "output_tensor": y})
    return y


EXAMPLE = Example(lambda x, w: dml.gemm(x, widened(w)), _arrays, close=1e-5)
