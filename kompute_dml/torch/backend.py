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
from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta
from torch._guards import TracingContext
from torch.fx import GraphModule, Node

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
            _write_arguments(module, meta)
        is_backward = kind == "backward"
        program = Program(module, set() if is_backward else static, saved, kind == "inference",
                          is_backward)

        def boxed(args: list[object]) -> list[Any]:
            results = program(args)
            args.clear()
            return results

        boxed._boxed_call = True  # type: ignore[attr-defined]
        boxed.program = program  # type: ignore[attr-defined]
        return boxed

    return compile_graph


def _write_arguments(module: GraphModule, meta: ViewAndMutationMeta) -> None:
    """Let a forward graph write buffers that it changes, such as running means. AOTAutograd expects
    their new elements as results, which it copies, one call for each. It finds them there. What
    the backward graph reads as it was, or what has gradients, is left to it."""
    graph, first = module.graph, len(meta.tokens)
    (end,) = graph.find_nodes(op="output")
    arguments, results = graph.find_nodes(op="placeholder"), [*end.args[0]]
    with graph.inserting_before(end):
        for j, i in enumerate(meta.mutated_inp_runtime_indices, first):
            state, target, result = meta.input_info[i], arguments[first + i], results[j]
            if state.requires_grad or state.mutates_metadata or not state.mutates_data or (
                    not isinstance(result, Node) or target in results):
                continue
            results[j] = graph.call_function(torch.ops.aten.copy_.default, (target, result))
            results[j].meta["val"] = target.meta["val"]
    end.args = (tuple(results),)


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
