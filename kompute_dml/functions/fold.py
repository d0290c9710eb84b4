"""FOLD, whose output sizes are an argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import integers
from ..layout import product
from ..operators.fold import FoldOperatorDesc
from .call import as_tensor, device_of, output, run
from .registry import function

if TYPE_CHECKING:
    from ..tensors import Tensor
    from ..tensors.types import TensorLike


@function
def fold(
    x: TensorLike, sizes: Sequence[int], *, window_sizes: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], start_padding: Sequence[int], end_padding: Sequence[int],
    out: Tensor | None = None,
) -> Tensor:
    """Sum columns {N, C * window, blocks} into an image (DML_FOLD_OPERATOR_DESC).

    ``sizes`` are the image's spatial sizes. Each attribute has one number for each of them. Raises
    ValidationError or UnsupportedError.
    """
    name, device = "fold", device_of(x, out)
    x = as_tensor(device, name, "x", x)
    spatial, window = integers(name, "sizes", sizes), integers(name, "window_sizes", window_sizes)
    channels = x.sizes[1] // max(product(window), 1) if x.ndim > 1 else 1
    y = output(device, out, name, (x.sizes[0], max(channels, 1), *spatial), x.data_type)
    run(FoldOperatorDesc, device, {"input_tensor": x, "output_tensor": y},
        dimension_count=len(window), window_sizes=window, strides=tuple(strides),
        dilations=tuple(dilations), start_padding=tuple(start_padding),
        end_padding=tuple(end_padding))
    return y
