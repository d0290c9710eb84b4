"""Text of values, as NumPy prints it. Only the shown elements are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..functions import functions
from ..tensors import Tensor
from ..tensors.attached import attached


def _corners(x: Tensor, edge: int) -> Tensor:
    """The first and last ``edge`` elements of each long dimension, and one in between."""
    for d, n in enumerate(x.sizes):
        if n > 2 * edge:
            before = (slice(None),) * d
            ends = [x.window((*before, slice(edge + 1))), x.window((*before, slice(n - edge, n)))]
            x = functions()["join"](ends, axis=d)
    return x


@attached
def text(x: Tensor, prefix: str = "", **options: Any) -> tuple[str, bool]:
    """``x`` as numpy.array2string prints it, and whether elements are left out."""
    if not x.shape and not prefix:
        return str(x.numpy()[()]), False  # as NumPy's scalars
    settings = {**np.get_printoptions(), **options}
    threshold, edge = settings["threshold"], settings["edgeitems"]
    short = x.size > threshold and any(n > 2 * edge for n in x.sizes) and x.data_type.bits >= 8
    if not short:
        return np.array2string(x.numpy(), separator=", " if prefix else " ", prefix=prefix), False
    shown = _corners(x, edge).numpy().astype(x.dtype, copy=False)
    return np.array2string(shown, separator=", " if prefix else " ", prefix=prefix,
                           threshold=0, edgeitems=edge), True
