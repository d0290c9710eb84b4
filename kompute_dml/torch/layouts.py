"""In which order in memory results of operators by element lie.

PyTorch gives them the order of the first tensor that has all of their elements: what is transposed
stays so, and `view` works as on other devices. Other operators have packed results here.

https://docs.pytorch.org/docs/stable/tensor_view.html
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ..layout import is_packed, packed_strides

Order = tuple[int, ...]
"""Dimensions by falling stride."""
CHANNELS_LAST = torch.channels_last, torch.channels_last_3d


def channels_last(rank: int) -> Order:
    """The order of an image whose channels are the last in memory."""
    return 0, *range(2, rank), 1


@functools.cache
def _keeps_order(op: Any) -> bool:
    """Whether PyTorch lays the results of an operator as its tensors lie."""
    name = op._schema.name
    return torch.Tag.pointwise in op.tags or name.endswith("_like") or name in (
        "aten::_to_copy", "aten::native_dropout")


def order_of(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Order | None:
    """The order of an operator's results, or None for packed ones."""
    if not _keeps_order(op):
        return None
    wanted = kwargs.get("memory_format")
    if wanted in CHANNELS_LAST:
        return channels_last(args[0].ndim)
    if wanted not in (None, torch.preserve_format):
        return None
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if all(x.is_contiguous() for x in tensors):
        return None
    shape = torch.broadcast_shapes(*[x.shape for x in tensors])
    for x in tensors:
        strides = x.stride()
        if x.shape == shape and 0 not in strides:
            order = falling(strides)
            return None if order == tuple(range(x.ndim)) else order
    return None


def ordered(x: torch.Tensor, order: Order) -> torch.Tensor:
    """A view whose dimensions are in order. One element is what it is."""
    return x[(None,) * (len(order) - x.ndim)].permute(order) if x.ndim else x


def restored(x: torch.Tensor, order: Order) -> torch.Tensor:
    """The view that :func:`ordered` was made of."""
    return x.permute([order.index(d) for d in range(len(order))])


def back(shape: Sequence[int], order: Order) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes and strides of a result whose packed dimensions are in order."""
    sizes = tuple([shape[order.index(d)] for d in range(len(order))])
    return sizes, dense_strides(sizes, order)


def falling(strides: Sequence[int]) -> Order:
    return tuple(sorted(range(len(strides)), key=lambda d: (-strides[d], d)))


def dense_order(sizes: Sequence[int], strides: Sequence[int]) -> Order | None:
    """The order of elements that lie side by side, each in a place of its own, else None."""
    if is_packed(sizes, strides):
        return tuple(range(len(sizes)))  # whatever the stride of a single element is
    order = falling(strides)
    is_dense = is_packed([sizes[d] for d in order], [strides[d] for d in order])
    return order if is_dense else None


def dense_strides(sizes: Sequence[Any], order: Order) -> tuple[Any, ...]:
    """The strides of elements side by side whose dimensions are in order."""
    steps = dict(zip(order, packed_strides([sizes[d] for d in order])))
    return tuple([steps[d] for d in range(len(sizes))])
