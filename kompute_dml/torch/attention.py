"""Attention for which PyTorch has kernels by device only: FlexAttention and jagged tensors.

Each is one function of PyTorch's that is wrapped, as those of ``patches.py``. Both become plain
operators, which have gradients and are traced. So Dynamo, which leaves out this package's code,
may look into these functions.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch._dynamo
import torch.nested._internal.ops
import torch.nn.attention.flex_attention
from torch.nested._internal.nested_tensor import nested_view_from_values_offsets_lengths

from .memory import NAME

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _traced(function: _Function) -> _Function:
    """Dynamo may look into a function of this package."""
    traced: _Function = torch._dynamo.dont_skip_tracing(function)
    return traced


_flex: Any = importlib.import_module("torch._higher_order_ops.flex_attention")


def _flexible(before: Callable[..., Any]) -> Callable[..., Any]:
    """FlexAttention by all scores: PyTorch's definition, of operators that Dynamo traces."""
    @_traced
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
    @_traced
    def check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if query.device.type != NAME:
            before(query, key, value)

    return check


def _jagged(before: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Attention of jagged tensors, with padding and a mask. PyTorch's way for devices without
    kernels goes by strided nested tensors, which end the process here."""
    @_traced
    def attention(
        query: Any, key: Any, value: Any, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        parts = query, key, value
        if query.device.type != NAME or attn_mask is not None or not all(
                getattr(x, "is_nested", False) and x.dim() == 4 and x._ragged_idx == 2
                for x in parts):
            return before(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if any(x.lengths() is not None for x in parts):
            raise NotImplementedError(f"{NAME}: attention of jagged tensors with holes")
        q, k, v = (x.transpose(1, 2).to_padded_tensor(0.0).transpose(1, 2) for x in parts)
        ends = key.offsets()
        places = torch.arange(k.shape[2], device=k.device)
        mask = (places < (ends[1:] - ends[:-1])[:, None])[:, None, None]
        if is_causal:
            mask = mask & (places <= torch.arange(q.shape[2], device=k.device)[:, None])
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, mask, dropout_p, False, scale=scale, enable_gqa=enable_gqa).transpose(1, 2)
        begins = query.offsets()
        row = torch.arange(query.transpose(1, 2).values().shape[0], device=q.device)
        text = torch.searchsorted(begins[1:], row, right=True)
        rows = y[text, row - begins[text]]
        return nested_view_from_values_offsets_lengths(
            rows, query.offsets(), None,
            min_seqlen=query._maybe_min_seqlen, max_seqlen=query._maybe_max_seqlen).transpose(1, 2)

    return attention


def register() -> None:
    """Wrap the functions."""
    flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
    flex.flex_attention_hop = _flexible(flex.flex_attention_hop)
    flex._validate_device = _checking(flex._validate_device)
    jagged: Any = torch.nested._internal.ops
    jagged.jagged_scaled_dot_product_attention = _jagged(
        jagged.jagged_scaled_dot_product_attention)
