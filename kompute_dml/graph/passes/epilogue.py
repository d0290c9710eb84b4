"""Elementwise operators become the epilogue of the operator before, which applies them to its
finished results (``include/tail.glsl``)."""

from __future__ import annotations

from typing import Any

from ...desc import TensorDesc
from ...lowering.activation import ActivationStep
from ...operators import chain
from ...operators.base import widened
from ...spec import Field
from ..node import Node, Nodes, alike, fused_by, output_of, seen_as
from ..rewrite import rewrite

FIELDS = (Field("TailTensor", "input", "TENSOR_DESC", True),
          Field("Tail", "attribute", "STEPS", True))
_MOST_STEPS, _MOST_VALUES = 4, 12
KINDS = ("CONVOLUTION", "CONVOLUTION_INTEGER_TO_FLOAT", "GEMM", "GROUPED_GEMM", "REDUCE",
         "BATCH_NORMALIZATION", "LP_NORMALIZATION",
         "MEAN_VARIANCE_NORMALIZATION", "MEAN_VARIANCE_NORMALIZATION1",
         "MEAN_VARIANCE_NORMALIZATION2", "ACTIVATION_SOFTMAX", "ACTIVATION_SOFTMAX1",
         "ACTIVATION_LOG_SOFTMAX", "ACTIVATION_LOG_SOFTMAX1")
"""Operators whose kernels take a tail."""


@rewrite("epilogue",
         "a product, convolution, reduction or normalization computes the elementwise operators "
         "that follow it. They may read one more tensor, such as a residual", 190)
def epilogue(g: Nodes) -> None:
    for last in g:
        if (tail := _steps(last)) is not None:
            steps, slots = tail
            # The last maker already runs where the fused operator will.
            for slot in sorted(slots, key=lambda s: g.place(g.maker(last, s)), reverse=True):
                if _fuse(g, last, steps, slots, slot):
                    break


def _steps(node: Node) -> tuple[list[ActivationStep], list[str]] | None:
    """An elementwise operator as steps, and the slots of the tensors that these take; or None."""
    slots = [slot for slot, _ in node.slots("input")]
    if isinstance(node.desc, chain.ChainDesc):
        steps: list[ActivationStep] | None = list(node.desc.steps)
    elif not chain.is_step(node.desc) or not output_of(node).data_type.is_float:
        return None
    else:
        numbers = {slot: node.number(slot) for slot in slots}
        slots = [slot for slot in slots if numbers[slot] is None]
        sources = [slots.index(slot) if number is None else number
                   for slot, number in numbers.items()]
        steps = chain.steps_of(node.desc, sources, chain.MOST_TENSORS)
    if steps is None or len(steps) > _MOST_STEPS or (
            sum(len(s.words) for s in steps) > _MOST_VALUES) or len(slots) > 2:
        return None
    return steps, slots


def _fuse(g: Nodes, last: Node, steps: list[ActivationStep], slots: list[str], slot: str) -> bool:
    """Make ``last`` the tail of the operator that makes its input in ``slot``. Returns whether that
    is possible."""
    maker = g.maker(last, slot)
    if maker is None or not _takes_tail(maker) or g.only_user(maker) != (last, slot):
        return False
    own_output = output_of(maker)
    storages = maker.storages | {"output_tensor": last.storages["output_tensor"]}
    y = seen_as(last, slot, "output_tensor", own_output)
    tensor: TensorDesc | None = None
    for other in slots:
        if other != slot:
            tensor = seen_as(last, slot, other, own_output)
            storages["tail_tensor"] = last.storages[other]
            # A shader has one place for both. Some have one binding for this tensor and an addend.
            if tensor is None or not alike(tensor, own_output) or "addend_tensor" in maker.storages:
                return False
    if y is None or not alike(y, own_output):  # another layout might take a slower kernel
        return False
    own = slots.index(slot)
    order = {i: int(i != own) for i in range(chain.MOST_TENSORS)}
    values: dict[str, Any] = {f.snake: getattr(maker.desc, f.snake)
                              for f in maker.desc.operator.spec.fields}
    values |= {"output_tensor": y, "tail_tensor": tensor, "tail": tuple(
        s._replace(sources=tuple(order.get(i, i) for i in s.sources)) for s in steps)}
    desc = widened(type(maker.desc), *FIELDS)(**values)
    g.replace([maker, last], Node(desc, storages, maker.label))
    return True


def _takes_tail(node: Node) -> bool:
    fused = fused_by(node)
    if "b_scale_tensor" in node.storages:
        return False  # blocked weights bind as many tensors as every device has
    return node.name in KINDS and getattr(node.desc, "tail", None) is None and (
        output_of(node).data_type.is_float and len(list(node.slots("output"))) == 1
        and (fused is None or "SOFTMAX" not in fused.operator.name))
