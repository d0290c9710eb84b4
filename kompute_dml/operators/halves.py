"""FLOAT32 products on FLOAT16 matrix units (ALLOW_HALF_PRECISION_COMPUTATION)."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..desc import TensorDesc, TensorFlags
from ..dtypes import DataType
from ..layout import memory_order, packed_strides
from ..lowering import measured
from ..lowering.builder import PlanBuilder
from .base import OperatorDesc, definitions


def pay_off(p: PlanBuilder, factors: TensorDesc, work: int) -> bool:
    """Whether a product of FLOAT32 ``factors`` may and should be one of FLOAT16 ones. From so many
    multiplications on, matrix units make up for rounding what they read."""
    return (p.target.halves and factors.data_type is DataType.FLOAT32
            and work >= measured.figure(p.device, "gemm_coopmat", "worth_rounding")
            and p.device.multiplies(16, 16, 16, "f16", "f32"))


def lower(p: PlanBuilder, d: OperatorDesc, slots: tuple[str, str]) -> None:
    """The operator with two of its inputs rounded to FLOAT16. Sums stay FLOAT32.

    Those that are OWNED_BY_DML are rounded once.
    """
    rounded, places = {}, {}
    for slot in slots:
        t: TensorDesc = getattr(d, slot)
        sizes, strides = _without_repeats(t)
        make = p.persistent if t.owned_by_dml else lambda _, *size: p.temporary(*size)
        y = TensorDesc(DataType.FLOAT16, sizes, strides)
        place = make(slot, 2, y.element_count)
        cast: Any = definitions()["DML_OPERATOR_CAST"].desc_class(
            input_tensor=t.replace(sizes=sizes, flags=TensorFlags.NONE), output_tensor=y)
        plan = cast.operator.lower(cast, p.target)
        if t.owned_by_dml:
            plan = dataclasses.replace(plan, execute=(), initialize=plan.execute)
        p.include(plan, {"input_tensor": p.read(slot), "output_tensor": place})
        repeated = tuple(0 if n != m else s for n, m, s in zip(t.sizes, sizes, strides))
        rounded[slot] = TensorDesc(DataType.FLOAT16, t.sizes, repeated)
        places[slot] = place.reading()
    inner = dataclasses.replace(d, **rounded)
    target = dataclasses.replace(p.target, halves=False)
    p.include(inner.operator.lower(inner, target), places)


def _without_repeats(t: TensorDesc) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes of the elements that differ, and strides without gaps in the same order."""
    sizes = [1 if s == 0 else n for n, s in zip(t.sizes, t.strides)]
    order = memory_order(t.strides)
    strides = dict(zip(order, packed_strides([sizes[i] for i in order])))
    return tuple(sizes), tuple(strides[i] for i in range(len(sizes)))
