"""Operators of training: the optimizer's step and batch normalization."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..desc import TensorDesc
from ..errors import expect
from ..layout import begin_with_vectors, memory_order
from ..lowering import copy, measured
from ..lowering.activation import fused_activation
from ..lowering.builder import PlanBuilder
from ..lowering.copy import CopyView, copied
from ..lowering.elementwise import float_bits
from ..lowering.plan import TEMPORARY, UNUSED, Operand
from ..lowering.walk import Walk
from .base import Infer, OperatorDesc, Output, operator

_ADAM = ("parameters", "first_moment", "second_moment")


def _stepped(d: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    x = d.input_parameters_tensor
    return {f"output_{name}_tensor": Output(x.sizes, x.data_type) for name in _ADAM}


def _check_adam(d: OperatorDesc, strict: bool) -> None:
    name, step = d.operator.name, d.training_step_tensor
    expect(step.element_count == 1, name, "TrainingStepTensor.Sizes", "be all 1", list(step.sizes))
    for field in ("Beta1", "Beta2"):
        beta = getattr(d, field.lower())
        expect(0 <= beta <= 1, name, field, "be in [0, 1]", beta)


@operator("ADAM_OPTIMIZER", output=_stepped, shaders=("adam_optimizer", *copy.SHADERS),
          check=_check_adam)
def AdamOptimizerOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    """Tensors with another layout are copied through packed temporary memory."""
    inputs = {"x": "input_parameters_tensor", "m": "input_first_moment_tensor",
              "v": "input_second_moment_tensor", "g": "gradient_tensor"}
    outputs = {f"new_{letter}": f"output_{name}_tensor" for letter, name in zip("xmv", _ADAM)}
    x = d.input_parameters_tensor
    slots = (*inputs.values(), *outputs.values())
    tensors: list[TensorDesc] = [getattr(d, slot) for slot in slots]
    order = memory_order(x.strides)
    together = Walk(*([v[a] for a in order] for v in (x.sizes, *(t.strides for t in tensors))))
    packed = TensorDesc.packed(x.data_type, x.sizes)
    direct = {slot for slot, t in zip(slots, tensors) if together.contiguous or t.is_packed}

    def beside(slot: str) -> tuple[Operand, CopyView, CopyView]:
        duplicate = p.temporary(x.data_type.itemsize, x.element_count)
        return (duplicate, CopyView.whole(slot, getattr(d, slot)),
                CopyView(TEMPORARY, packed, packed.strides, duplicate.offset))

    operands: dict[str, Operand] = {}
    for name, slot in inputs.items():
        if slot in direct:
            operands[name] = p.read(slot)
            continue
        made, there, here = beside(slot)
        p.add(copied(p, x.sizes, there, here))
        operands[name] = made.reading()
    operands["step"] = p.read("training_step_tensor")
    after = []
    for name, slot in outputs.items():
        if slot in direct:
            operands[name] = p.write(slot)
            continue
        operands[name], there, here = beside(slot)
        after.append(copied(p, x.sizes, here, there))

    vectors = all(getattr(d, slot).is_aligned for slot in direct)
    each = 16 // x.data_type.itemsize if vectors else 1
    local_size = p.device.local_size
    beta1, beta2 = (float(np.float32(b)) for b in (d.beta1, d.beta2))
    floats = {
        "learning_rate": d.learning_rate, "beta1": beta1, "beta2": beta2, "rest1": 1 - beta1,
        "rest2": 1 - beta2, "log_beta1": math.log(max(beta1, 1e-37)),
        "log_beta2": math.log(max(beta2, 1e-37)), "epsilon": d.epsilon,
    }
    p.dispatch(
        "adam_optimizer", -(-x.element_count // (each * local_size)),
        push={"count": x.element_count, **{k: float_bits(f) for k, f in floats.items()}},
        spec={"LOCAL_SIZE": local_size, "TYPE": x.data_type.code, "VECTORS": vectors},
        **operands,  # type: ignore[arg-type]
    )
    for dispatch in after:
        p.add(dispatch)


# Batch normalization. The elements of a row share a mean. Rows lie along axes where Scale has size
# 1.


def _check_scale(d: OperatorDesc, strict: bool) -> None:
    x, scale = d.input_tensor, d.scale_tensor
    for i, (n, size) in enumerate(zip(scale.sizes, x.sizes)):
        expect(n in (1, size), d.operator.name, f"ScaleTensor.Sizes[{i}]",
               f"be 1 or {size} (InputTensor.Sizes[{i}])", n)


def _of_rows(output: str, *sums: str) -> Infer:
    """``output`` has the input's sizes, ``sums`` have those of the scale."""
    def infer(d: OperatorDesc) -> Mapping[str, Output | list[Output]]:
        x, scale = d.input_tensor, d.scale_tensor
        return {output: Output(x.sizes, x.data_type),
                **{field: Output(scale.sizes, x.data_type) for field in sums}}

    return infer


def _rows(d: OperatorDesc, along: tuple[str, ...], beside: tuple[str, ...]) -> tuple[Walk, Walk,
                                                                                     int]:
    """A walk over rows, of tensors ``along`` (with the input's sizes) and ``beside`` (with the
    scale's sizes), a walk over columns, of ``along``, and how many elements a column has: those
    of a vector, where rows are whole vectors in all tensors."""
    sizes, by_row = d.input_tensor.sizes, d.scale_tensor.sizes
    kept = [a for a, n in enumerate(by_row) if n > 1]
    axes = [a for a, n in enumerate(by_row) if n == 1]
    present = {slot: t for slot in (*along, *beside) if (t := getattr(d, slot)) is not None}
    nothing = (0,) * len(sizes)
    each, last = 16 // d.input_tensor.data_type.itemsize, axes[-1] if axes else 0
    if not axes or not all(
            t.is_aligned and sizes[last] % each == 0 and begin_with_vectors(each, t.strides, last)
            for slot, t in present.items() if slot in along):
        each = 1

    def walk(dims: list[int], slots: tuple[str, ...], each: int = 1) -> Walk:
        strides = [present[slot].strides if slot in present else nothing for slot in slots]
        return Walk([sizes[a] // (each if a == last else 1) for a in dims],
                    *([s[a] * (each if a == last else 1) for a in dims] for s in strides))

    return walk(kept, (*along, *beside)), walk(axes, along, each), each


@dataclass(frozen=True)
class _Parts:
    """Rows divided among workgroups, if there are few rows."""

    rows: int
    columns: int
    parts: int
    span: int
    local_size: int
    column_rank: int
    each: int
    """Elements of a column."""

    @classmethod
    def of(cls, rows: Walk, columns: Walk, each: int, p: PlanBuilder) -> _Parts:
        local_size = min(256, p.device.max_invocations)
        while local_size > 32 and local_size >= 2 * columns.count:
            local_size //= 2  # short rows
        # Rows are divided if there are few workgroups for each core, into parts of some columns.
        # There are not many, because each workgroup of the next step adds them up.
        known = measured.figures(p.device.device_class, "batch_normalization_training")
        busy, least, most = (int(known[name]) for name in ("busy", "columns", "parts"))
        wanted = busy * p.device.cores // rows.count
        parts = max(1, min(wanted, columns.count * each // least, most))
        span = -(-columns.count // parts)
        return cls(rows.count, columns.count, -(-columns.count // span), span, local_size,
                   len(columns.sizes), each)

    @property
    def groups(self) -> int:
        return self.rows * self.parts

    @property
    def push(self) -> dict[str, int]:
        return {"rows": self.rows, "columns": self.columns, "parts": self.parts,
                "span": self.span}

    @property
    def spec(self) -> dict[str, int]:
        return {"LOCAL_SIZE": self.local_size, "COLUMN_RANK": self.column_rank,
                "EACH": self.each}


@operator("BATCH_NORMALIZATION_TRAINING", shaders=("batch_normalization_training",),
          output=_of_rows("output_tensor", "output_mean_tensor", "output_variance_tensor"),
          check=_check_scale, epsilon=1e-5)
def BatchNormalizationTrainingOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    rows, columns, each = _rows(
        d, ("input_tensor", "fused_add_tensor", "output_tensor"),
        ("scale_tensor", "bias_tensor", "output_mean_tensor", "output_variance_tensor"))
    fused, parts = fused_activation(d), _Parts.of(rows, columns, each, p)
    sums = p.temporary(4, 2 * parts.groups)
    by_row = -(-parts.rows // parts.local_size)
    for step, groups, y, variance in (
        ("statistics", parts.groups, UNUSED, UNUSED),
        ("moments", by_row, p.write("output_mean_tensor"), p.write("output_variance_tensor")),
        ("outputs", parts.groups, p.write("output_tensor"), UNUSED),
    ):
        p.dispatch(
            f"batch_normalization_training.{step}", groups, x=p.read("input_tensor"),
            scale=p.read("scale_tensor"), bias=p.read("bias_tensor"),
            added=p.read("fused_add_tensor"),
            sums=sums if step == "statistics" else sums.reading(), y=y, variance=variance,
            params=[*rows.words, *columns.words, *fused.words],
            push={**parts.push, "columns_at": len(rows.words),
                  "activation_at": len(rows.words) + len(columns.words),
                  "epsilon": float_bits(d.epsilon)},
            spec={**parts.spec, "TYPE": d.input_tensor.data_type.code,
                  "ADDS": d.fused_add_tensor is not None, "FUSED_ACTIVATION": fused.code},
        )


def _lower_gradient(d: OperatorDesc, p: PlanBuilder, training: bool) -> None:
    rows, columns, each = _rows(
        d, ("input_tensor", "input_gradient_tensor", "output_gradient_tensor"),
        ("mean_tensor", "variance_tensor", "scale_tensor"))
    parts = _Parts.of(rows, columns, each, p)
    spec = {"TYPE": d.input_tensor.data_type.code}
    epsilon = float_bits(d.epsilon)
    sums = p.temporary(4, 3 * parts.groups)
    for step in ("sums", "outputs") if training else ("sums",):
        p.dispatch(
            f"batch_normalization_gradient.{step}", parts.groups, x=p.read("input_tensor"),
            dy=p.read("input_gradient_tensor"), mean=p.read("mean_tensor"),
            variance=p.read("variance_tensor"), scale=p.read("scale_tensor"), sums=sums,
            dx=UNUSED if training and step == "sums" else p.write("output_gradient_tensor"),
            params=[*rows.words, *columns.words],
            push={**parts.push, "columns_at": len(rows.words), "epsilon": epsilon},
            spec=spec | parts.spec | {"TRAINING": training})
    by_row, *_ = _rows(d, (), ("variance_tensor", "output_scale_gradient_tensor",
                               "output_bias_gradient_tensor"))
    p.dispatch(
        "batch_normalization_rows", -(-parts.rows // p.device.local_size),
        variance=p.read("variance_tensor"), sums=sums.reading(),
        dscale=p.write("output_scale_gradient_tensor"),
        dbias=p.write("output_bias_gradient_tensor"), params=by_row.words,
        push={"rows": parts.rows, "parts": parts.parts, "epsilon": epsilon},
        spec=spec | {"LOCAL_SIZE": p.device.local_size})


_GRADIENT: dict[str, Any] = dict(
    shaders=("batch_normalization_gradient", "batch_normalization_rows"),
    output=_of_rows("output_gradient_tensor", "output_scale_gradient_tensor",
                    "output_bias_gradient_tensor"),
    check=_check_scale, epsilon=1e-5)


@operator("BATCH_NORMALIZATION_GRAD", **_GRADIENT)
def BatchNormalizationGradOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _lower_gradient(d, p, False)


@operator("BATCH_NORMALIZATION_TRAINING_GRAD", **_GRADIENT)
def BatchNormalizationTrainingGradOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _lower_gradient(d, p, True)
