"""The dispatches of GEMM's products: copies of what has no vectors, and the product itself."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

from ...attributes import MatrixTransform, PaddingMode
from ...desc import TensorDesc
from ...layout import Ints, packed_strides
from ...lowering.activation import NOTHING, Fused, fused_activation
from ...lowering.builder import PlanBuilder
from ...lowering.copy import CopyView, copied
from ...lowering.elementwise import float_bits
from ...lowering.plan import TEMPORARY, UNUSED, Operand
from ...lowering.walk import Walk
from ..base import OperatorDesc
from ..movement import PaddingOperatorDesc
from .float_product import FloatLaunch, FloatProduct, MatrixView


class Alike(enum.IntFlag):
    """What sizes and strides allow, a push field of include/gemm.glsl."""

    Y_VECTORS = 1
    C_VECTORS = 2
    SUM_VECTORS = 4
    A_VECTORS = 8
    B_VECTORS = 16
    ONE_STEP = 32


SUM, _INVOCATIONS = "convolution_sum.float", 256
PACK, STRIP = "gemm_pack", 64
"""Packs B in strips of so many columns, and so many of K at a time."""


def oriented(sizes: Ints, transform: int) -> Ints:
    """Sizes or strides after the transform."""
    if transform == MatrixTransform.NONE:
        return sizes
    return (*sizes[:-2], sizes[-1], sizes[-2])


def row_activation(d: OperatorDesc) -> Any:
    """The fused activation if it needs whole rows; else None."""
    fused = d.fused_activation
    name = "" if fused is None else fused.operator.name
    return fused if name.startswith("DML_OPERATOR_ACTIVATION_SOFTMAX") else None


def matrix_views(p: PlanBuilder, y: MatrixView) -> dict[str, MatrixView]:
    """The matrices of a product into ``y``, by the shaders' names."""
    d, views = p.desc, {"y": y}
    for name, slot, transform in (("a", "a_tensor", d.trans_a), ("b", "b_tensor", d.trans_b),
                                  ("c", "c_tensor", 0), ("groups", "groups_tensor", 0)):
        t = getattr(d, slot, None)
        if t is not None and (name != "c" or d.beta != 0):
            views[name] = MatrixView(
                p.read(slot), oriented(t.strides, transform), t.base_alignment,
                constant=name == "b" and t.owned_by_dml)
    return views


def repacked(p: PlanBuilder, side: str, zeros: int = 0, along_k: bool = False) -> MatrixView:
    """A copy of A (or B) whose rows or columns begin with vectors. ``zeros`` more of A's K are
    0. ``along_k``: A's vectors are along K."""
    t: TensorDesc = getattr(p.desc, f"{side}_tensor")
    transform = getattr(p.desc, f"trans_{side}")
    sizes, strides = oriented(t.sizes, transform), oriented(t.strides, transform)
    sizes = tuple(n if s or i >= len(sizes) - 2 else 1
                  for i, (n, s) in enumerate(zip(sizes, strides)))
    # The axis of the smaller stride becomes contiguous.
    transposed = not along_k and strides[-2] < strides[-1]
    filled = (*sizes[:-1], sizes[-1] + zeros)
    *heads, height, width = oriented(filled, transposed)
    padded = (*heads, height, -(-width // 8) * 8)
    to = oriented(packed_strides(padded), transposed)
    copy = p.temporary(t.data_type.itemsize, math.prod(padded))
    x = t.replace(sizes=sizes, strides=strides)
    y = TensorDesc(t.data_type, filled, to)
    if zeros:
        begins = (0,) * len(sizes)
        padding = PaddingOperatorDesc(
            input_tensor=x, output_tensor=y, padding_mode=PaddingMode.CONSTANT, padding_value=0.0,
            start_padding=begins, end_padding=(*begins[:-1], zeros))
        p.include(padding.operator.lower(padding, p.target),
                  {"input_tensor": p.read(f"{side}_tensor"), "output_tensor": copy})
    else:
        p.add(copied(p, sizes, CopyView.whole(f"{side}_tensor", x),
                     CopyView(TEMPORARY, y, to, copy.offset)))
    steps = tuple(0 if n == 1 and i < len(sizes) - 2 else s
                  for i, (n, s) in enumerate(zip(sizes, to)))
    return MatrixView(copy.reading(), steps, 16, padded=True)


def packed(p: PlanBuilder, b: MatrixView, way: str) -> MatrixView:
    """B in the order of matrix units. If it is OWNED_BY_DML, it is packed once. ``way``: the axis
    with vectors."""
    t: TensorDesc = p.desc.b_tensor
    *heads, k, columns = oriented(t.sizes, p.desc.trans_b)
    *steps, b_k, b_column = b.strides
    heads = [n if s else 1 for n, s in zip(heads, steps)]
    each = STRIP * STRIP * -(-k // STRIP) * -(-columns // STRIP)
    walk = Walk(heads or (1,), steps or (0,))
    make = p.persistent if t.owned_by_dml else lambda _, *size: p.temporary(*size)
    output = make("b_tensor", 2, walk.count * each)
    contiguous = way or {b_column: "mn", b_k: "k"}.get(1, "")
    p.dispatch(
        PACK, walk.count * each // STRIP**2, once=t.owned_by_dml, params=walk.words,
        push={"batches": walk.count, "K": k, "columns": columns, "b_k": b_k, "b_column": b_column},
        spec={"LOCAL_SIZE": 256, "VECTORS": {"k": 1, "mn": 2}.get(contiguous, 0),
              "SHIFTED": contiguous != way},
        b=b.operand, packed=output)
    to = [0 if n == 1 else s * each for n, s in zip(heads, packed_strides(heads))]
    return MatrixView(output.reading(), (*to, 1, each), 16, padded=True)


def _can_add_apart(p: PlanBuilder, g: FloatProduct) -> bool:
    """Whether another dispatch can add up the parts of K: of one dense matrix to which at most a
    row is added. It reads vectors, so each part's sums begin with one."""
    d, (c_row, _) = p.desc, g.steps.get("c", (0, 0))
    return (g.batches == 1 and "groups" not in g.views and not g.is_rounded and d.alpha == 1
            and row_activation(d) is None and g.rows * g.columns % 4 == 0
            and (g.rows == 1 or g.steps["y"][0] == g.columns)
            and (g.columns == 1 or g.steps["y"][1] == 1)
            and ("c" not in g.views or (d.beta == 1 and (c_row == 0 or g.rows == 1))))


def _add_up(p: PlanBuilder, g: FloatProduct, parts: int, partial: Operand, fused: Fused) -> None:
    """Dispatch what adds up the parts of K, and finishes the sums."""
    count, walk = g.rows * g.columns, Walk((g.rows, g.columns), (g.columns, 1))
    p.dispatch(
        fused.variant(SUM), -(-count // (8 * _INVOCATIONS)), sums=partial.reading(),
        y=g.views["y"].operand, bias=g.views["c"].operand if "c" in g.views else UNUSED,
        **p.read_tail(), params=[*walk.words, *fused.words],
        push={"count": count, "splits": parts, "split_stride": count, "positions": 1,
              "channels": g.columns, "activation_at": len(walk.words),
              "bias_stride": g.steps.get("c", (0, 0))[1]},
        spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": p.desc.output_tensor.data_type.code,
              "DENSE": True, "HAS_BIAS": "c" in g.views, **fused.spec})


def dispatch_product(
    p: PlanBuilder, g: FloatProduct, launch: FloatLaunch, *,
    more_push: Mapping[str, Any] | None = None, more_spec: Mapping[str, int] | None = None,
    **more: Any,
) -> None:
    """Add the dispatch of a launch. ``more`` operands are bound after those of all kernels."""
    d = p.desc
    tiles, part_k = launch.tiles(g), launch.part_k(g)
    parts = -(-g.k // part_k)
    y = g.views["y"].operand
    partial = arrived = y  # a binding that the shader may write to must not be an input
    apart = parts >= launch.apart and _can_add_apart(p, g)
    if parts > 1:
        partial = p.temporary(4, parts * g.batches * g.rows * g.columns)
    if parts > 1 and not apart:
        arrived = p.zeroed(4, tiles)
    end = fused_activation(None if row_activation(d) else d)
    fused = NOTHING if apart else end
    push: dict[str, Any] = {
        "batches": g.batches, "rows": g.rows, "K": g.k, "columns": g.columns,
        "alpha": float_bits(d.alpha), "beta": float_bits(d.beta), "part_k": part_k, "parts": parts,
        "activation_at": len(g.walk.words),
    }
    for name, axes in (("a", ("row", "k")), ("b", ("k", "column")), ("c", ("row", "column")),
                       ("y", ("row", "column"))):
        push |= {f"{name}_{axis}": s for axis, s in zip(axes, g.steps.get(name, (0, 0)))}
    beside = g.views.get("c")
    if (groups := g.views.get("groups")) is not None:
        beside = groups
        push["c_column"] = g.group_step
    grouped = {} if groups is None else {"GROUPED": True}
    one_step = bool((more_push or {}).get("batch_steps"))
    (row, column), (c_row, c_column) = g.steps["y"], g.steps.get("c", (0, 0))
    spec: dict[str, int] = {
        "TYPE": d.output_tensor.data_type.code, "HAS_C": "c" in g.views, "SPLIT": parts > 1,
        "ADDED_APART": apart,
        "C_ROWS": c_row != 0, "WALK_RANK": 2 if one_step else g.walk.words[0],
        **launch.spec, **fused.spec, **grouped,
    }
    vectors = {side: bool(g.vectors(side, 4)) for side in "ab"} if launch.each == 4 else {}
    whole = g.columns % 4 == 0
    push["alike"] = sum(bit for bit, is_so in (
        (Alike.Y_VECTORS, column == 1 and p.tail_is_aligned and g.begins_with_vectors("y", 4, row)),
        (Alike.C_VECTORS, c_column == 1 and whole and g.begins_with_vectors("c", 4, c_row)),
        (Alike.SUM_VECTORS, whole), (Alike.A_VECTORS, vectors.get("a")),
        (Alike.B_VECTORS, vectors.get("b")), (Alike.ONE_STEP, one_step)) if is_so)
    if launch.each:
        for side in "a" if launch.packed_b else "ab":
            way = g.vectors(side, launch.each)
            stride, k_stride, _ = g.layout(side)
            spec[f"{side.upper()}_MN_CONTIGUOUS"] = way == "mn" if way else stride < k_stride
        spec["ENDS_INSIDE"] = g.k % launch.k != 0
        if vectors:
            # A driver for CPUs executes both sides of a branch. A minimum costs it little.
            spec["VECTORS"] = 2 if all(vectors.values()) else 0 if p.device.is_cpu else 1
            spec["ENDS_INSIDE"] |= spec["VECTORS"] < 2 or p.device.is_cpu
    name = fused.variant(launch.shader)
    if "ALIKE" in p.library.get(*name.split(".")).spec_ids:
        spec["ALIKE"] = push["alike"]
    p.dispatch(
        name, tiles * parts, params=[*g.walk.words, *fused.words],
        push={**push, **(more_push or {})}, spec={**spec, **(more_spec or {})},
        a=g.views["a"].operand, b=g.views["b"].operand,
        c=UNUSED if beside is None else beside.operand, y=y, partial=partial,
        arrived=arrived, **more, **({} if apart else p.read_tail()))
    if apart:
        _add_up(p, g, parts, partial, end)
