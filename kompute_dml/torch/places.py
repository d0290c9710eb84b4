"""Tensors of the host beside those of the device: an error, as beside CUDA's.

Numbers without dimensions may come from the host. So may what operators take as positions or
lengths, and what they copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from .memory import NAME

_FROM_HOST = {
    "index": ("indices",), "_unsafe_index": ("indices",), "index_put": ("indices",),
    "index_put_": ("indices",), "_index_put_impl_": ("indices",), "_index_put_impl": ("indices",),
    "_unsafe_index_put": ("indices",),
    "_pack_padded_sequence": ("lengths",),
    "_ctc_loss": ("targets", "input_lengths", "target_lengths"),
    "_ctc_loss_backward": ("targets", "input_lengths", "target_lengths"),
    "bernoulli": ("p",), "bernoulli_": ("p",),
    "copy": ("src",), "copy_": ("src",), "_foreach_copy": ("src",), "_foreach_copy_": ("src",),
    "slice_scatter": ("src",), "select_scatter": ("src",), "diagonal_scatter": ("src",),
    "as_strided_scatter": ("src",),
}
"""By operator: what may lie on the host."""


def check(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise RuntimeError where an operator gets tensors of several devices."""
    foreign = device = None
    for x in _tensors((*args, *kwargs.values())):
        if x.device.type == NAME:
            device = x.device
        elif x.dim():
            foreign = x.device
    if device is None or foreign is None:
        return
    allowed = _FROM_HOST.get(op._schema.name.split("::")[1], ())
    names = (*[a.name for a in op._schema.arguments[:len(args)]], *kwargs)
    for name, value in zip(names, (*args, *kwargs.values())):
        for x in _tensors((value,)):
            if x.device.type != NAME and x.dim() and name not in allowed:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two "
                    f"devices, {device} and {x.device}! ({name} of {op})")


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from _tensors(x)
