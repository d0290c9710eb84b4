"""Environment variables that leave passes and other optimizations of graphs out."""

from __future__ import annotations

import functools
import os
import warnings

from ..errors import ValidationError
from . import passes  # noqa: F401  (registers the passes)
from .rewrite import REWRITES

SWITCH, OLD_SWITCH = "KOMPUTE_DML_DISABLE_PASSES", "KOMPUTE_DML_UNFUSED"
"""The variable that lists names of :func:`summaries`, or ``all``; and how it was called."""

CONSTANT_FOLDING, CHANNELS_LAST = "constant_folding", "channels_last"
QDQ, INTEGERS, MIXTURES = "qdq", "integer_products", "mixtures"
MEMORY, IN_PLACE, REPACKING, BRANCHES = "memory", "in_place", "repacking", "branches"
OPEN_SIZES, AHEAD = "open_sizes", "ahead"
_OTHERS = {
    CONSTANT_FOLDING: "operators of constants are computed once. Weights are dequantized as long "
                      "as they take at most a quarter of the device's memory",
    CHANNELS_LAST: "convolutions hand on channels side by side",
    QDQ: "products, convolutions and sums between DequantizeLinear and QuantizeLinear compute with "
         "bytes. A product by constant weights in blocks with DequantizeLinear is MatMulNBits",
    INTEGERS: "MatMulInteger, its cast and scales are one product",
    MIXTURES: "of a sum over experts that masks weigh, those are computed that tokens choose. "
              "Products of rows that a model sorts by their experts are one product",
    REPACKING: "constants are brought once into the order that a kernel reads",
    MEMORY: "values that are never alive together share memory",
    IN_PLACE: "an operator writes over an input that has no later reader",
    OPEN_SIZES: "one plan of a model serves many sizes of its inputs",
    AHEAD: "on a GPU, threads compile what new sizes of a model's inputs may take",
    BRANCHES: "operators that do not depend on one another run without a barrier",
}
"""Optimizations that are no passes."""
RENAMED = {
    "activations": "activation_fusion", "attention": "attention_pattern",
    "batch_normalizations": "batch_norm_folding", "chains": "elementwise_fusion",
    "copies": "copy_elimination", "factors": "scale_splitting", "folding": CONSTANT_FOLDING,
    "gates": "swish_pattern", "gelu": "gelu_pattern", "joins": "concat_in_place",
    "layer_norms": "layer_norm_pattern", "padded_rows": "row_pitch",
    "pointwise": "conv1x1_as_gemm", "quantized_points": "dynamic_quantize_convolution",
    "ranges": "quantization_range", "repeats": "common_subexpressions",
    "residuals": "residual_fusion", "scaled_convolutions": "dequantize_convolution",
    "siblings": "horizontal_fusion", "sums": "bias_fusion", "tails": "epilogue",
    "tanh_gelus": "tanh_gelu_pattern", "views": "view_propagation",
}
"""Names of earlier versions."""


def summaries() -> dict[str, str]:
    """What each name stands for."""
    return {r.name: r.summary for r in REWRITES.values()} | _OTHERS


def disabled() -> frozenset[str]:
    """The passes and other optimizations that are left out.

    Raises ValidationError if a name is unknown.
    """
    names = _named(SWITCH, os.environ.get(SWITCH, ""))
    old = os.environ.get(OLD_SWITCH, "")
    return names | _named(OLD_SWITCH, old) if old else names


@functools.lru_cache(maxsize=64)  # so that a warning is given once
def _named(switch: str, text: str) -> frozenset[str]:
    names = {n.strip() for n in text.split(",")} - {""}
    if switch == OLD_SWITCH:
        warnings.warn(f"{OLD_SWITCH} is called {SWITCH} now", FutureWarning, stacklevel=3)
    for name in sorted(names & RENAMED.keys()):
        warnings.warn(f"{switch}: {name} is called {RENAMED[name]} now", FutureWarning,
                      stacklevel=3)
    names = {RENAMED.get(n, n) for n in names}
    known = summaries().keys()
    if unknown := names - known - {"all"}:
        raise ValidationError(
            f"{switch}: expected all or names among {', '.join(sorted(known))}, but got "
            f"{', '.join(sorted(unknown))}")
    return frozenset(known if "all" in names else names)


def as_table() -> str:
    """The names in Markdown."""
    return "\n".join(["| name | what it does |", "| --- | --- |",
                      *(f"| `{name}` | {summary} |" for name, summary in summaries().items())])
