"""Which function is meant by a name that this package does not have, for its error messages."""

from __future__ import annotations

import difflib
from collections.abc import Collection

ALIASES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan_yx", "arctanh": "atanh", "bitwise_and": "bit_and",
    "bitwise_count": "bit_count", "bitwise_or": "bit_or", "bitwise_xor": "bit_xor",
    "equal": "logical_equals", "fabs": "abs", "fmod": "modulus_truncate",
    "greater": "logical_greater_than", "greater_equal": "logical_greater_than_or_equal",
    "invert": "bit_not", "isinf": "is_infinity", "isnan": "is_nan",
    "left_shift": "bit_shift_left", "less": "logical_less_than",
    "less_equal": "logical_less_than_or_equal", "matmul": "matrix_multiply", "maximum": "max",
    "minimum": "min", "negative": "negate", "power": "pow",
    "prelu": "activation_parameterized_relu", "reciprocal": "recip", "remainder": "modulus_floor",
    "right_shift": "bit_shift_right", "rint": "round", "true_divide": "divide", "where": "if_",
}
"""Functions that NumPy or PyTorch has under other names, DirectML's being on the right."""


def suggestions(name: str, known: Collection[str]) -> list[str]:
    """Up to three of the ``known`` names that ``name`` may stand for, the likeliest first."""
    name = name.casefold()
    wanted = ALIASES.get(name, name)
    folded = {k.casefold(): k for k in known}
    if wanted in folded:
        return [folded[wanted]]
    longer = sorted((k for k in folded if f"_{wanted}_" in f"_{k}_"), key=len)
    near = longer[:3] or difflib.get_close_matches(wanted, folded, 3)
    return [folded[k] for k in near]


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A question to end a message with; empty where nothing comes near."""
    found = suggestions(name, known)
    return f"; did you mean {' or '.join(found)}?" if found else ""
