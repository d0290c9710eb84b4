"""What a region would take on a device and on the CPU: ``claim=auto`` compares the two.

The numbers are those of an ordinary graphics card beside an ordinary processor, whatever the
device is: a claim that changed with the machine could be neither read nor tested. They are round,
and only their order of magnitude counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass
from math import sqrt

from ..layout import product
from .graph import OnnxGraph, OnnxNode, OnnxValue, Stack
from .operators import experts, mixture
from .placement import Placement

RUN = 60.0
"""Microseconds of a region's run, whatever is in it: to begin it, to submit, and to wait."""
LAUNCH = 3.0
"""Of a node on the device, ..."""
CALL = 2.0
"""... and on the CPU."""
TRANSFERRED = 5e3
"""Bytes that cross a region's border in a microsecond, with the copies on both sides."""
DEVICE_BYTES, CPU_BYTES = 4e5, 2e4
"""Bytes that nodes read and write in a microsecond."""
DEVICE_PRODUCTS, CPU_PRODUCTS = 4e6, 1e5
"""Multiplications of products and convolutions in a microsecond."""
UNKNOWN = 16
"""What a size counts for that only a run will tell: a batch of short texts, a small image."""
DOUBT = 150.0
"""Microseconds that a graph's regions with products may lose in all: estimates are not better than
that, and what is claimed in vain costs less than what is left out in vain."""

CPU_LACKS = {"Relu": ("int16", "int64"), "Clip": ("int16", "uint16")}
"""Data types of ONNX that ONNX Runtime's CPU provider has no kernels for. A session fails where
nobody claims such a node."""

ALL_TAKES_IT = "claim=all takes it"
"""The end of why a region is left out that is estimated to lose time."""
COMPUTES_NOTHING = "its region computes nothing: it only views values, or works on sizes"


_OF_EXPERTS = {"MoE": experts.multiplications, "QMoE": experts.multiplications,
               "Experts": mixture.multiplications, "GroupedMatMul": mixture.row_multiplications}
"""By operator, whose tokens each take a few experts: those of so many tokens."""


@dataclass(frozen=True)
class Estimate:
    """Microseconds of a run."""

    fixed: float
    transfers: float
    launches: float
    memory: float
    products: float

    @property
    def total(self) -> float:
        return float(sum(astuple(self)))

    def __str__(self) -> str:
        parts = {"to begin": self.fixed, "transfers": self.transfers, "nodes": self.launches,
                 "memory": self.memory, "products": self.products}
        return f"{self.total:.0f} us (" + ", ".join(
            f"{name} {time:.0f}" for name, time in parts.items() if time >= 0.5) + ")"


def elements(value: OnnxValue | None) -> int:
    """Those of a value; unknown sizes count as UNKNOWN."""
    if value is None or value.shape is None:
        return 0 if value is None else UNKNOWN
    return product([UNKNOWN if n is None else n for n in value.shape])


def nbytes(value: OnnxValue | None) -> int:
    itemsize = 4 if value is None or value.dtype is None else value.dtype.itemsize
    return elements(value) * itemsize


def _stacked(value: OnnxValue) -> int:
    """How many of queries, keys and values an input of MultiHeadAttention is a stack of."""
    return (value.shape[3] or 1) if value.shape and len(value.shape) == 5 else 1


def multiplications(node: OnnxNode) -> float:
    """About how many a node that multiplies needs."""
    tensors = [v for v in node.inputs if v is not None]
    if "Conv" in node.op:
        x, w = tensors[0], next((v for v in tensors[1:] if len(v.shape or ()) > 2), None)
        if w is None or not w.shape:
            return elements(x)
        # Each of a result's elements, or of a transposed convolution's input's, meets one filter.
        each = elements(w) / max(w.shape[0] or UNKNOWN, 1)
        return each * elements(x if "Transpose" in node.op else node.outputs[0])
    if of_experts := _OF_EXPERTS.get(node.op):
        rows = elements(tensors[0]) / max((tensors[0].shape or (1,))[-1] or UNKNOWN, 1)
        return of_experts(node, rows)
    if node.op in ("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"):
        sizes = (tensors[0].shape or (None, None))[:2]
        rows = product([UNKNOWN if n is None else n for n in sizes])
        return rows * sum(elements(v) for v in tensors[1:3])
    # M x K by K x N makes M x N: the product of the three is the square of M x K x N.
    counts = [elements(v) for v in tensors]
    if node.op == "MultiHeadAttention":  # stacks are queries, keys and values in one
        counts = [elements(v) // n for v in tensors for n in [_stacked(v)] for _ in range(n)]
    a, b, *_ = [*sorted(counts, reverse=True), 1, 1]
    return sqrt(a * b * max(map(elements, node.outputs), default=1))


def estimates(
    region: Sequence[OnnxNode], placed: Placement, outside: Collection[OnnxValue]
) -> tuple[Estimate, Estimate]:
    """On the device and on the CPU. ``outside`` are values that others read."""
    nodes = [n for n in region if n in placed.rows and n not in placed.host]
    work = [n for n in nodes if not placed.rows[n].is_view]
    results = {v for node in region for v in node.outputs}
    crossing = {v for n in region for v in n.inputs if v is not None and v not in results}
    crossing |= {v for v in results if v is not None and v in outside}
    transferred = sum(nbytes(v) for v in crossing
                      if v.constant is None and not isinstance(v, Stack))
    moved = sum(nbytes(v) for n in work for v in (*n.inputs, *n.outputs) if v is not None)
    products = {n: multiplications(n) for n in work if placed.rows[n].multiplies}
    more = sum(placed.rows[n].repetition(n) * count for n, count in products.items())
    return (
        Estimate(RUN, transferred / TRANSFERRED, LAUNCH * len(work), moved / DEVICE_BYTES,
                 more / DEVICE_PRODUCTS),
        Estimate(0.0, 0.0, CALL * len(nodes), moved / CPU_BYTES,
                 sum(products.values()) / CPU_PRODUCTS),
    )


def _needed(node: OnnxNode) -> bool:
    """Whether the CPU cannot run a node."""
    x = node.input(0)
    return not node.domain and x is not None and x.dtype is not None and (
        x.dtype.name in CPU_LACKS.get(node.op, ()))


def refusals(
    regions: Sequence[Sequence[OnnxNode]], placed: Placement, graph: OnnxGraph,
    everything: bool = False,
) -> list[str | None]:
    """For each region why it is not worth being made, or None. ``everything``: only those that
    compute nothing are not. Regions that the CPU could not run are."""
    reasons: list[str | None] = [None] * len(regions)
    lost: list[tuple[float, int]] = []
    readers: dict[OnnxValue, set[int]] = {}
    number = {node: i for i, region in enumerate(regions) for node in region}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value, set()).add(number.get(node, -1))
    for value in graph.outputs:
        readers.setdefault(value, set()).add(-1)
    for i, region in enumerate(regions):
        rows = [placed.rows[n] for n in region if n in placed.rows and n not in placed.host]
        if all(row.is_view for row in rows):
            reasons[i] = COMPUTES_NOTHING
        if everything or reasons[i] is not None:
            continue
        if any(_needed(n) for n in region):
            continue
        outside = {v for n in region for v in n.outputs if v is not None
                   and readers.get(v, set()) - {i}}
        device, cpu = estimates(region, placed, outside)
        if device.total <= cpu.total:
            continue
        reasons[i] = (f"its region would take about {device} on the device and {cpu} on the CPU: "
                      + ALL_TAKES_IT)
        if any(row.multiplies for row in rows):
            lost.append((device.total - cpu.total, i))
    total = 0.0
    for loss, i in sorted(lost):
        total += loss
        if total <= DOUBT:
            reasons[i] = None
    return reasons
