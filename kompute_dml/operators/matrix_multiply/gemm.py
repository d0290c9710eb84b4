"""GEMM: products of floating-point matrices, with C, scales and a fused activation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...attributes import MatrixTransform, PaddingMode
from ...desc import TensorDesc
from ...errors import expect
from ...layout import Ints, packed_strides
from ...lowering.activation import fused_activation
from ...lowering.builder import PlanBuilder
from ...lowering.copy import SHADERS as COPIES
from ...lowering.copy import View, copied
from ...lowering.elementwise import float_bits
from ...lowering.plan import TEMPORARY, UNUSED
from ...lowering.walk import Walk
from .. import halves
from ..base import Output, axes_in, operator
from ..movement import PaddingOperatorDesc
from .float_kernels import (
    COOPMAT,
    PACK,
    SHADERS,
    STRIP,
    FloatKernel,
    FloatProduct,
    MatrixView,
    candidates,
)

_NAME = "DML_OPERATOR_GEMM"
_WORTH_WHOLE_SLICES = 2048
"""The least columns of a packed B for which A is copied so that K fills the last slice: a kernel
whose K ends inside one takes a fifth longer."""

# The description


def oriented(sizes: Ints, transform: int) -> Ints:
    """Sizes or strides after the transform."""
    if transform == MatrixTransform.NONE:
        return sizes
    return (*sizes[:-2], sizes[-1], sizes[-2])


def _infer(d: Any) -> Mapping[str, Output]:
    *batches, m, k = oriented(d.a_tensor.sizes, d.trans_a)
    n = oriented(d.b_tensor.sizes, d.trans_b)[-1]
    sizes = oriented((*batches, k, n), d.trans_b)
    expect(
        d.b_tensor.sizes == sizes, _NAME, "BTensor.Sizes",
        f"be {list(sizes)} (the leading sizes of ATensor, then K and N)", list(d.b_tensor.sizes))
    return {"output_tensor": Output((*batches, m, n), d.a_tensor.data_type)}


def _softmax(d: Any) -> Any:
    """The fused activation if it needs whole rows; else None."""
    fused = d.fused_activation
    name = "" if fused is None else fused.operator.name
    return fused if name.startswith("DML_OPERATOR_ACTIVATION_SOFTMAX") else None


def _check(d: Any, strict: bool) -> None:
    fused = _softmax(d)
    if fused is not None and hasattr(fused, "axes"):
        axes_in(_NAME, fused.axes, d.output_tensor)


# The plan


def matrix_views(d: Any, p: PlanBuilder, y: MatrixView) -> dict[str, MatrixView]:
    """The matrices of a product into ``y``, by the shaders' names."""
    views = {"y": y}
    for name, slot, transform in (("a", "a_tensor", d.trans_a), ("b", "b_tensor", d.trans_b),
                                  ("c", "c_tensor", 0)):
        t = getattr(d, slot)
        if t is not None and (name != "c" or d.beta != 0):
            views[name] = MatrixView(
                p.read(slot), oriented(t.strides, transform), t.base_alignment,
                constant=name == "b" and t.owned_by_dml)
    return views


def _plain(d: Any, p: PlanBuilder, y: MatrixView) -> None:
    """Compute the product into ``y``, without an activation that needs whole rows."""
    sizes, kind = d.output_tensor.sizes, d.a_tensor.data_type
    k, views = oriented(d.a_tensor.sizes, d.trans_a)[-1], matrix_views(d, p, y)
    g = FloatProduct(sizes, k, kind.itemsize, views)
    kernel = p.choose(g.work, candidates(g, p), lambda k: k.name)
    if kernel.each == 8:
        a_way, b_way = g.vectors("a", 8), g.vectors("b", 8)
        if kernel.packed_b:
            views["b"] = _packed(p, views["b"], d.b_tensor, d.trans_b, b_way)
            if not a_way or g.columns >= _WORTH_WHOLE_SLICES:
                k = -(-k // kernel.k) * kernel.k  # packed B has zeros there
        elif not b_way:
            views["b"] = _repacked(p, "b", d.b_tensor, d.trans_b)
        if not a_way or k > g.k:
            views["a"] = _repacked(p, "a", d.a_tensor, d.trans_a, k - g.k)
        g = FloatProduct(sizes, k, kind.itemsize, views)
    elif kernel.a_along_k and g.widest("a")[0] != "k":
        views["a"] = _repacked(p, "a", d.a_tensor, d.trans_a, along_k=True)
        g = FloatProduct(sizes, k, kind.itemsize, views)
    steps = [s[0] for s in g.walk.strides] if g.walk.words[0] == 1 else []
    dispatch_product(d, p, g, kernel, more_push={"batch_steps": steps})


def _repacked(
    p: PlanBuilder, side: str, t: TensorDesc, transform: int, zeros: int = 0,
    along_k: bool = False,
) -> MatrixView:
    """A copy of A (or B) whose rows or columns begin with vectors. ``zeros`` more of A's K are
    0. ``along_k``: A's vectors are along K."""
    sizes, strides = oriented(t.sizes, transform), oriented(t.strides, transform)
    sizes = tuple(n if s or i >= len(sizes) - 2 else 1
                  for i, (n, s) in enumerate(zip(sizes, strides)))
    # The axis of the smaller stride becomes contiguous.
    transposed = not along_k and strides[-2] < strides[-1]
    filled = (*sizes[:-1], sizes[-1] + zeros)
    *heads, height, width = oriented(filled, transposed)
    padded = (*heads, height, -(-width // 8) * 8)
    to = oriented(packed_strides(padded), transposed)
    made = p.temporary(t.data_type.itemsize, math.prod(padded))
    x = t.replace(sizes=sizes, strides=strides)
    y = TensorDesc(t.data_type, filled, to)
    if zeros:
        begins = (0,) * len(sizes)
        padding = PaddingOperatorDesc(
            input_tensor=x, output_tensor=y, padding_mode=PaddingMode.CONSTANT, padding_value=0.0,
            start_padding=begins, end_padding=(*begins[:-1], zeros))
        p.include(padding.operator.lower(padding, p.target),
                  {"input_tensor": p.read(f"{side}_tensor"), "output_tensor": made})
    else:
        p.add(copied(p.target, sizes, View.whole(f"{side}_tensor", x),
                     View(TEMPORARY, y, to, made.offset)))
    steps = tuple(0 if n == 1 and i < len(sizes) - 2 else s
                  for i, (n, s) in enumerate(zip(sizes, to)))
    return MatrixView(made.reading(), steps, 16, padded=True)


def _packed(p: PlanBuilder, b: MatrixView, t: TensorDesc, transform: int, way: str) -> MatrixView:
    """B in the order of matrix units. If it is OWNED_BY_DML, it is packed once. ``way``: the axis
    with vectors."""
    *heads, k, columns = oriented(t.sizes, transform)
    *steps, b_k, b_column = b.strides
    heads = [n if s else 1 for n, s in zip(heads, steps)]
    each = STRIP * STRIP * -(-k // STRIP) * -(-columns // STRIP)
    walk = Walk(heads or (1,), steps or (0,))
    make = p.persistent if t.owned_by_dml else lambda _, *size: p.temporary(*size)
    made = make("b_tensor", 2, walk.count * each)
    contiguous = way or {b_column: "mn", b_k: "k"}.get(1, "")
    p.dispatch(
        PACK, walk.count * each // STRIP**2, once=t.owned_by_dml, params=walk.words,
        push={"batches": walk.count, "K": k, "columns": columns, "b_k": b_k, "b_column": b_column},
        spec={"LOCAL_SIZE": 256, "VECTORS": {"k": 1, "mn": 2}.get(contiguous, 0),
              "SHIFTED": contiguous != way},
        b=b.operand, packed=made)
    to = [0 if n == 1 else s * each for n, s in zip(heads, packed_strides(heads))]
    return MatrixView(made.reading(), (*to, 1, each), 16, padded=True)


def dispatch_product(
    d: Any, p: PlanBuilder, g: FloatProduct, kernel: FloatKernel, *,
    more_push: Mapping[str, Any] | None = None, more_spec: Mapping[str, int] | None = None,
    **more: Any,
) -> None:
    """Add the dispatch of a kernel. ``more`` operands are bound after those of all kernels."""
    tiles, part_k = kernel.tiles(g), kernel.part_k(g, p.device.cores)
    parts = -(-g.k // part_k)
    y = g.views["y"].operand
    partial = arrived = y  # a binding that the shader may write to must not be an input
    if parts > 1:
        partial = p.temporary(4, parts * g.batches * g.rows * g.columns)
        arrived = p.zeroed(4, tiles)
    fused = fused_activation(None if _softmax(d) else d)
    push: dict[str, Any] = {
        "batches": g.batches, "rows": g.rows, "K": g.k, "columns": g.columns,
        "alpha": float_bits(d.alpha), "beta": float_bits(d.beta), "part_k": part_k, "parts": parts,
        "activation_at": len(g.walk.words),
    }
    for name, axes in (("a", ("row", "k")), ("b", ("k", "column")), ("c", ("row", "column")),
                       ("y", ("row", "column"))):
        push |= {f"{name}_{axis}": s for axis, s in zip(axes, g.steps.get(name, (0, 0)))}
    (row, column), (c_row, c_column) = g.steps["y"], g.steps.get("c", (0, 0))
    spec: dict[str, int] = {
        "TYPE": d.output_tensor.data_type.code, "HAS_C": "c" in g.views, "SPLIT": parts > 1,
        "Y_VECTORS": column == 1 and p.tail_is_aligned and g.begins_with_vectors("y", 4, row),
        "C_VECTORS": c_column == 1 and g.columns % 4 == 0 and g.begins_with_vectors("c", 4, c_row),
        "C_ROWS": c_row != 0, "SUM_VECTORS": g.columns % 4 == 0, "WALK_RANK": g.walk.words[0],
        **dict(kernel.spec), **fused.spec,
    }
    if kernel.each:
        for side in "a" if kernel.packed_b else "ab":
            way = g.vectors(side, kernel.each)
            stride, k_stride, _ = g.layout(side)
            spec[f"{side.upper()}_MN_CONTIGUOUS"] = way == "mn" if way else stride < k_stride
            if kernel.each == 4:
                spec[f"{side.upper()}_VECTORS"] = bool(way)
        spec["ENDS_INSIDE"] = g.k % kernel.k != 0
    p.dispatch(
        fused.variant(kernel.shader), tiles * parts, params=[*g.walk.words, *fused.words],
        push={**push, **(more_push or {})}, spec={**spec, **(more_spec or {})},
        a=g.views["a"].operand, b=g.views["b"].operand,
        c=g.views["c"].operand if "c" in g.views else UNUSED, y=y, partial=partial,
        arrived=arrived, **more, **p.read_tail())


@operator("GEMM", output=_infer, shaders=(*SHADERS, *COPIES, "padding"), check=_check,
          any_size=True, trans_a=0, trans_b=0, alpha=1.0, beta=1.0)
def GemmOperatorDesc(d: Any, p: PlanBuilder) -> None:
    y, fused = d.output_tensor, _softmax(d)
    k = oriented(d.a_tensor.sizes, d.trans_a)[-1]
    if (y.sizes[-2] > 8 and any(kernel.variant(p) for kernel in COOPMAT)
            and halves.pay_off(p, d.a_tensor, k * math.prod(y.sizes))):
        halves.lower(p, d, ("a_tensor", "b_tensor"))
        return
    if fused is None:
        _plain(d, p, MatrixView(p.write("output_tensor"), y.strides, y.base_alignment))
        return
    x = TensorDesc.packed(y.data_type, y.sizes)
    sums = p.temporary(y.data_type.itemsize, x.element_count)
    _plain(d, p, MatrixView(sums, x.strides, 16))
    activation = replace(fused, input_tensor=x, output_tensor=y)
    p.include(fused.operator.lower(activation, p.target),
              {"input_tensor": sums.reading(), "output_tensor": p.write("output_tensor")})
