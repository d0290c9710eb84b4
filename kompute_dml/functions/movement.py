"""Functions of operators that move elements, where the caller chooses sizes of the output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..attributes import PaddingMode
from ..errors import expect, integers, whole
from ..operators.elementwise import scalar
from ..operators.join import SplitOperatorDesc
from ..operators.movement import Padding1OperatorDesc, Slice1OperatorDesc, slice1_sizes
from .call import as_tensor, device_of, output, run
from .registry import function

if TYPE_CHECKING:
    from ..tensors import Tensor
    from ..tensors.types import TensorLike


@function
def slice1(
    x: TensorLike,
    *,
    input_window_offsets: Sequence[int],
    input_window_sizes: Sequence[int],
    input_window_strides: Sequence[int],
    out: Tensor | None = None,
) -> Tensor:
    """``out[c] = x[start + strides * c]`` (DML_SLICE1_OPERATOR_DESC).

    A window of ``x`` begins at ``offsets`` and has ``sizes``. ``start`` is the window's first
    element, or its last where the stride is negative. Any data type, 1 to 8 dimensions, any
    strides. Returns ``out``, which may have fewer elements than the window gives, or a new packed
    tensor with all of them. Raises ValidationError or UnsupportedError.
    """
    name, device = "slice1", device_of(x, out)
    x = as_tensor(device, name, "x", x)
    window = {
        "input_window_offsets": integers(name, "input_window_offsets", input_window_offsets),
        "input_window_sizes": integers(name, "input_window_sizes", input_window_sizes),
        "input_window_strides": integers(name, "input_window_strides", input_window_strides),
    }
    if out is None:
        sizes = slice1_sizes(Slice1OperatorDesc(
            input_tensor=x.desc, output_tensor=None, **window))
        out = device.empty(sizes, x.data_type)
    else:
        expect(hasattr(out, "desc"), name, "out", "be a Tensor", type(out).__name__)
    run(Slice1OperatorDesc, device, {"input_tensor": x, "output_tensor": out}, **window)
    return out


@function
def split(
    x: TensorLike,
    *,
    sections: int | Sequence[int],
    axis: int = 0,
    out: Sequence[Tensor] | None = None,
) -> tuple[Tensor, ...]:
    """Consecutive pieces of ``x`` along ``axis`` (DML_SPLIT_OPERATOR_DESC).

    ``sections`` is the number of equal pieces, or the size of each piece. Any data type, 1 to 8
    dimensions, any strides. Returns the tensors of ``out`` or new packed ones, as a tuple. Raises
    ValidationError or UnsupportedError.
    """
    name = "split"
    outs = () if out is None else tuple(out)
    device = device_of(x, *outs)
    x = as_tensor(device, name, "x", x)
    at = whole(name, "axis", axis)
    expect(-x.ndim <= at < x.ndim, name, "axis", f"be in [-{x.ndim}, {x.ndim})", axis)
    at %= x.ndim
    size = x.sizes[at]
    if isinstance(sections, int):
        expect(sections > 0 and size % sections == 0, name, "sections",
               f"divide x.sizes[{at}] = {size}", sections)
        parts: tuple[int, ...] = (size // sections,) * sections
    else:
        parts = integers(name, "sections", sections)
        expect(parts and min(parts) > 0 and sum(parts) == size, name, "sections",
               f"be sizes that make x.sizes[{at}] = {size}", list(parts))
    expect(out is None or len(outs) == len(parts), name, "out", f"be {len(parts)} tensors",
           len(outs))
    pieces = [
        output(device, outs[i] if outs else None, name, (*x.sizes[:at], n, *x.sizes[at + 1 :]),
               x.data_type)
        for i, n in enumerate(parts)
    ]
    run(SplitOperatorDesc, device, {"input_tensor": x, "output_tensors": pieces},
        output_count=len(pieces), axis=at)
    return tuple(pieces)


@function
def padding1(
    x: TensorLike,
    *,
    start_padding: Sequence[int],
    end_padding: Sequence[int],
    padding_mode: int = PaddingMode.CONSTANT,
    padding_value: object = 0,
    out: Tensor | None = None,
) -> Tensor:
    """``x`` with elements before and after it in each dimension (DML_PADDING1_OPERATOR_DESC).

    ``padding_mode`` is a PaddingMode. ``padding_value`` is taken bit for bit: a number that the
    type can hold, a NumPy scalar, or raw bytes. Any data type, 1 to 8 dimensions, any strides.
    Returns ``out`` or a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    name, device = "padding1", device_of(x, out)
    x = as_tensor(device, name, "x", x)
    start, end = (integers(name, n, v) for n, v in
                  (("start_padding", start_padding), ("end_padding", end_padding)))
    expect(len(start) == len(end) == x.ndim, name, "start_padding and end_padding",
           f"have {x.ndim} entries each", list(start), list(end))
    expect(min(start + end) >= 0, name, "start_padding and end_padding", "be at least 0",
           list(start), list(end))
    sizes = tuple(map(sum, zip(x.sizes, start, end)))
    y = output(device, out, name, sizes, x.data_type)
    run(Padding1OperatorDesc, device, {"input_tensor": x, "output_tensor": y},
        padding_mode=padding_mode, padding_value_data_type=x.data_type,
        padding_value=scalar(name, "padding_value", padding_value, x.data_type),
        start_padding=start, end_padding=end)
    return y
