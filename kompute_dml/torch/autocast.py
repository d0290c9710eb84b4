"""``torch.autocast("kompute")``: which operators compute in FLOAT16 or BFLOAT16, and which in
FLOAT32, as PyTorch lists them for CUDA.

https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import memory
from .table import overload

_LOWER = (
    "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "addr", "chain_matmul",
    "linalg_multi_dot", "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "lstm_cell",
    "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention",
)
_FLOAT32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p",
    "reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "softplus", "layer_norm", "native_layer_norm", "group_norm", "norm.Scalar",
    "norm.ScalarOpt_dim", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss",
    "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss",
    "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
    "pdist", "cdist", "renorm", "logsumexp", "prod", "prod.dim_int", "cumprod", "cumsum",
    "sum", "sum.dim_IntList", "softmax.int", "log_softmax.int",
)
_WIDEST = ("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler",
           "index_put", "scatter_add", "tensordot", "cat", "stack")
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _cast(tree: object, dtype: torch.dtype) -> Any:
    def cast(x: torch.Tensor) -> torch.Tensor:
        eligible = x.is_floating_point() and x.dtype != torch.float64 and (
            x.device.type == memory.NAME)
        return x.to(dtype) if eligible and x.dtype != dtype else x

    return pytree.tree_map_only(torch.Tensor, cast, tree)


def _run(op: Any, kind: str, *args: Any, **kwargs: Any) -> Any:
    if kind == "lower":
        dtype = torch.get_autocast_dtype(memory.NAME)
    elif kind == "widest":
        floats = [x.dtype for x in pytree.tree_leaves((args, kwargs))
                  if isinstance(x, torch.Tensor) and x.is_floating_point()]
        dtype = functools.reduce(torch.promote_types, floats, torch.float16)
    else:
        dtype = torch.float32
    with torch._C._ExcludeDispatchKeyGuard(_KEYS):
        args, kwargs = _cast((args, kwargs), dtype)
        return op(*args, **kwargs)


def _refused(*args: object, **kwargs: object) -> Any:
    raise RuntimeError(
        "binary_cross_entropy under autocast is unsafe: use binary_cross_entropy_with_logits")


def register() -> tuple[object, ...]:
    """Register the casts. The result must live as long as the process."""
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = torch.library.Library("aten", "IMPL")
    for kind, names in (("lower", _LOWER), ("float32", _FLOAT32), ("widest", _WIDEST)):
        for name in names:
            op = overload(name)
            if op is not None:
                library.impl(name, functools.partial(_run, op, kind), "AutocastPrivateUse1")
    library.impl("binary_cross_entropy", _refused, "AutocastPrivateUse1")
    return everything, library
