"""FlexAttention, for which PyTorch has kernels by device only.

Two functions of PyTorch's are wrapped, as those of ``patches.py``. It becomes plain operators,
which have gradients and are traced. So Dynamo, which leaves out this package's code,
may look into these functions.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo

from .memory import NAME

_flex: Any = importlib.import_module("torch._higher_order_ops.flex_attention")


def _flexible(before: Callable[..., Any]) -> Callable[..., Any]:
    """FlexAttention by all scores: PyTorch's definition, of operators that Dynamo traces."""
    @torch._dynamo.dont_skip_tracing
    def attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: object,
        block_mask: tuple[Any, ...], scale: float, kernel_options: dict[str, Any], *buffers: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if query.device.type != NAME:
            return before(query, key, value, score_mod, block_mask, scale, kernel_options,
                          *buffers)
        groups = query.size(1) // key.size(1)
        key, value = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
        key, value = (x.expand(query.size(0), -1, -1, -1) for x in (key, value))
        _, scores = _flex._math_attention_inner(
            query, key, value, score_mod, block_mask, scale, kernel_options, *buffers)
        most = scores.amax(-1)
        nothing = most == -math.inf
        sums = torch.where(nothing, -math.inf, scores.logsumexp(-1))
        weights = torch.where(nothing[..., None], 0.0, scores.softmax(-1))
        return (weights.to(query.dtype) @ value.to(query.dtype), sums / math.log(2),
                most / math.log(2))

    return attention


def _checking(before: Callable[..., None]) -> Callable[..., None]:
    """PyTorch lists the devices that have FlexAttention."""
    @torch._dynamo.dont_skip_tracing
    def check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != NAME:
            before(query, key, value)

    return check


def register() -> None:
    """Wrap the functions."""
    flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
    flex.flex_attention_hop = _flexible(flex.flex_attention_hop)
    flex._validate_device = _checking(flex._validate_device)
