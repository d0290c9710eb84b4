"""Suggestions for unknown names, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Collection

ALIASES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan_yx", "arctanh": "atanh", "atan2": "atan_yx",
    "avg_pool2d": "average_pooling", "batch_norm": "batch_normalization", "bitwise_and": "bit_and",
    "bitwise_count": "bit_count", "bitwise_or": "bit_or", "bitwise_xor": "bit_xor",
    "bmm": "matmul", "bool": "bool_", "cat": "join", "chunk": "split", "clamp": "clip",
    "concat": "join", "concatenate": "join", "conv1d": "convolution", "conv2d": "convolution",
    "conv3d": "convolution", "div": "divide", "embedding": "take", "eq": "equal",
    "equal": "logical_equals", "fabs": "abs", "fmod": "modulus_truncate",
    "ge": "greater_equal", "greater": "logical_greater_than",
    "greater_equal": "logical_greater_than_or_equal", "group_norm": "mean_variance_normalization1",
    "gt": "greater", "half": "float16", "index_select": "take", "interpolate": "resample",
    "invert": "bit_not", "isinf": "is_infinity", "isnan": "is_nan",
    "layer_norm": "mean_variance_normalization1", "le": "less_equal",
    "left_shift": "bit_shift_left", "less": "logical_less_than",
    "less_equal": "logical_less_than_or_equal", "long": "int64", "lt": "less",
    "matmul": "matrix_multiply", "max_pool2d": "max_pooling", "maximum": "max", "minimum": "min",
    "mm": "matmul", "mul": "multiply", "ne": "not_equal", "neg": "negate", "negative": "negate",
    "power": "pow", "prelu": "activation_parameterized_relu", "reciprocal": "recip",
    "remainder": "modulus_floor", "right_shift": "bit_shift_right", "rint": "round",
    "scaled_dot_product_attention": "multihead_attention", "sub": "subtract",
    "true_divide": "divide", "where": "if_",
}
"""NumPy's or PyTorch's name -> the name here."""


def hint(name: str, known: Collection[str]) -> str:
    """The end of a message that refuses ``name``: similar ``known`` names, the most similar first,
    or ""."""
    # Functions have DirectML's names without this prefix.
    name = name.casefold().removeprefix("element_wise_")
    wanted = ALIASES.get(name, name)
    folded = {k.casefold(): k for k in known}
    found = [wanted] if wanted in folded else sorted(
        (k for k in folded if f"_{wanted}_" in f"_{k}_"), key=len)[:3]
    if not found:
        found = difflib.get_close_matches(wanted, folded, 3, cutoff=0.7)
    return f"; did you mean {' or '.join(folded[k] for k in found)}?" if found else ""
