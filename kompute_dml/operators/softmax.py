"""Softmax, LogSoftmax and Hardmax."""

from __future__ import annotations

from typing import Any

from ..errors import expect
from ..lowering.builder import PlanBuilder
from ..lowering.rows import SHADER, Kind, normalize_rows
from .base import OperatorDesc, axes_in, like, operator


def _check_axes(desc: OperatorDesc, strict: bool) -> None:
    axes_in(desc.operator.name, desc.axes, desc.input_tensor)


def _check_rank(desc: OperatorDesc, strict: bool) -> None:
    sizes = desc.input_tensor.sizes
    expect(all(n == 1 for n in sizes[:-2]), desc.operator.name, "InputTensor.Sizes",
           "be 1 except for the last two", list(sizes))


def _along_axes(name: str, kind: Kind) -> Any:
    def build(d: OperatorDesc, p: PlanBuilder) -> None:
        normalize_rows(p, kind, d.axes)

    return operator(name, output=like("input_tensor"), shaders=(SHADER,), check=_check_axes,
                    in_place=False, axes=(-1,))(build)


def _along_last(name: str, kind: Kind) -> Any:
    def build(d: OperatorDesc, p: PlanBuilder) -> None:
        normalize_rows(p, kind, (d.input_tensor.dimension_count - 1,))

    return operator(name, output=like("input_tensor"), shaders=(SHADER,), check=_check_rank,
                    in_place=False)(build)


ActivationSoftmaxOperatorDesc = _along_last("ACTIVATION_SOFTMAX", Kind.SOFTMAX)
ActivationSoftmax1OperatorDesc = _along_axes("ACTIVATION_SOFTMAX1", Kind.SOFTMAX)
ActivationLogSoftmaxOperatorDesc = _along_last("ACTIVATION_LOG_SOFTMAX", Kind.LOG_SOFTMAX)
ActivationLogSoftmax1OperatorDesc = _along_axes("ACTIVATION_LOG_SOFTMAX1", Kind.LOG_SOFTMAX)
ActivationHardmaxOperatorDesc = _along_last("ACTIVATION_HARDMAX", Kind.HARDMAX)
ActivationHardmax1OperatorDesc = _along_axes("ACTIVATION_HARDMAX1", Kind.HARDMAX)
