"""The subscripts of einsum, of NumPy's and of ONNX's."""

from __future__ import annotations

from collections.abc import Sequence

from .errors import ValidationError

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def parsed(subscripts: str, shapes: Sequence[Sequence[int]]) -> tuple[list[str], str]:
    """The indices of each operand and of the result, with letters for those of an ellipsis."""
    subscripts = subscripts.replace(" ", "")
    left, arrow, result = subscripts.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ValidationError(f"einsum: expected {len(terms)} operands, but got {len(shapes)}")
    hidden = [len(s) - len(t.replace("...", "")) for s, t in zip(shapes, terms)]
    if any(n < 0 or (n and "..." not in t) for n, t in zip(hidden, terms)):
        raise ValidationError(
            f"einsum: {subscripts} does not fit sizes {[list(s) for s in shapes]}")
    most = "".join(i for i in _LETTERS if i not in subscripts)[:max(hidden)]
    if not arrow:  # those of the ellipsis, then those that occur once, by the alphabet
        letters = left.replace(".", "").replace(",", "")
        result = "..." + "".join(sorted(i for i in set(letters) if letters.count(i) == 1))
    terms = [t.replace("...", most[len(most) - n:] if n else "") for t, n in zip(terms, hidden)]
    return terms, result.replace("...", most)
