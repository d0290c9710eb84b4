"""``torch.compile(model, backend="kompute_dml")``: graphs of AOTAutograd as plans.

A graph is lowered once for each set of sizes and layouts. Its inputs are bound by reference:
tensors of the device as they are; parameters on the host by copies that stay on the device and are
uploaded again when PyTorch counts a new version; other tensors of the host are uploaded. What the
forward graph saves for the backward graph stays on the device.

https://docs.pytorch.org/docs/stable/torch.compiler_custom_backends.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.attention
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch.fx import GraphModule

from .decompositions import decompositions
from .planned import NEVER
from .program import Program
from .table import enter_others


def _compiler(kind: str) -> Callable[..., Any]:
    """A compiler of AOTAutograd's forward, backward or inference graphs."""
    def compile_graph(module: GraphModule, example_inputs: Sequence[object]) -> Callable[..., Any]:
        context = TracingContext.try_get()
        meta = getattr(context, "fw_metadata", None)
        static = set(getattr(meta, "static_input_indices", None) or ())
        saved = NEVER
        if kind == "forward" and meta is not None:  # outputs begin with what effects are ordered by
            saved = meta.num_forward_returns + len(meta.tokens)
        is_backward = kind == "backward"
        program = Program(module, set() if is_backward else static, saved, kind == "inference",
                          is_backward)

        def boxed(args: list[object]) -> list[Any]:
            taken = list(args)
            args.clear()
            return program(*taken)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        boxed.program = program  # type: ignore[attr-defined]
        return boxed

    return compile_graph


def _needs_gradients(module: GraphModule, inputs: Sequence[object]) -> bool:
    """Whether there may be a backward graph. Then PyTorch writes to arguments itself, after it has
    saved what the backward graph wants."""
    return torch.is_grad_enabled() and any(
        isinstance(x, torch.Tensor) and x.requires_grad
        for x in (*inputs, *module.parameters(), *module.buffers()))


def backend(module: GraphModule, example_inputs: Sequence[object], **options: object
            ) -> Callable[..., Any]:
    """The backend of torch.compile. Attention is traced as its parts: the fused forms of other
    devices have no decomposition of their backward."""
    enter_others()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        compiled: Callable[..., Any] = aot_autograd(
            fw_compiler=_compiler("forward"), bw_compiler=_compiler("backward"),
            inference_compiler=_compiler("inference"), decompositions=decompositions(),
            keep_inference_input_mutations=not _needs_gradients(module, example_inputs),
        )(module, example_inputs)
    return compiled
