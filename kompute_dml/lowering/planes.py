"""Kernels for planes: each invocation computes a block of a tensor of four dimensions, whose rows
or whose channels are vectors."""

from __future__ import annotations

from ..desc import TensorDesc
from ..layout import Ints
from ..tuning import work_key
from .builder import PlanBuilder


def chosen(p: PlanBuilder, kind: str, layout: str, y: TensorDesc) -> bool:
    """Whether planes are taken for ``y``, not the general kernel. Without a measurement they are,
    except on a CPU."""
    names = ["general", "planes"] if p.device.is_cpu else ["planes", "general"]
    work = work_key(f"{kind} {layout} {y.data_type.family}", y.element_count)
    return p.choose(work, names) == "planes"


def block_strides(t: TensorDesc, channels: int) -> Ints:
    """The strides of a tensor of whose channels an invocation computes so many."""
    return (t.strides[0], t.strides[1] * channels, *t.strides[2:])
