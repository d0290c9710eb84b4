"""Gradients of operators, in gather form: each element sums, in order, what reached it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..dtypes import saturate
from ..errors import UnsupportedError, expect
from ..layout import Ints, packed_strides, pad_left, product
from ..lowering import copy
from ..lowering.builder import PlanBuilder
from ..lowering.copy import View, copied
from ..lowering.plan import UNUSED, Operand
from ..lowering.walk import Walk
from .base import like, operator
from .elementwise import row
from .fill_value import SHADER, filled
from .movement import slice1_sizes, slice1_view
from .pooling import Window, window_of

_PASSES = 65_000
"""Of nested loops together, a few of a walk aside: lavapipe ends them there."""

row("ACTIVATION_RELU_GRAD", shader="relu_grad")
for _name in ("CLIP_GRAD", "CLIP_GRAD1"):
    row(f"ELEMENT_WISE_{_name}", shader="clip_grad")


# Slices


def _check_slice(d: Any, strict: bool) -> None:
    most = slice1_sizes(d, "OutputGradientTensor")
    for i, (n, m) in enumerate(zip(d.input_gradient_tensor.sizes, most)):
        expect(n <= m, d.operator.name, f"InputGradientTensor.Sizes[{i}]",
               f"be at most {m} (what the window and its stride make)", n)


@operator("SLICE_GRAD", shaders=(SHADER, *copy.SHADERS), check=_check_slice)
def SliceGradOperatorDesc(d: Any, p: PlanBuilder) -> None:
    dx, dy = d.output_gradient_tensor, d.input_gradient_tensor
    p.include(filled(dx, p.target, saturate(0, dx.data_type)),
              {"output_tensor": p.write("output_gradient_tensor")})
    p.add(copied(p.target, dy.sizes, View.whole("input_gradient_tensor", dy),
                 slice1_view(d, "output_gradient_tensor")))


# Pooling


def _pooling_window(d: Any) -> Window:
    """Checked; and the gradient that comes in has the sizes of the pooling's output."""
    x, dy = d.output_gradient_tensor, d.input_gradient_tensor
    window = window_of(d, x)
    name = d.operator.name
    for i in range(x.dimension_count):
        allowed = [x.sizes[i]]
        if i > 1:
            room = (x.sizes[i] + window.start[i - 2] + window.end[i - 2] - window.reach[i - 2])
            step = window.strides[i - 2]
            allowed = sorted({room // step + 1, -(-room // step) + 1})
        expect(dy.sizes[i] in allowed, name, f"InputGradientTensor.Sizes[{i}]",
               f"be {' or '.join(map(str, allowed))}, as pooling makes it", dy.sizes[i])
    return window


def _check_pooling(d: Any, strict: bool) -> None:
    _pooling_window(d)


def _pooling(p: PlanBuilder, d: Any, maximum: bool) -> None:
    dx, dy, window = d.output_gradient_tensor, d.input_gradient_tensor, _pooling_window(d)
    rank = dx.dimension_count
    meeting = [min(-(-k // s), n) for k, s, n in
               zip(window.reach, window.strides, dy.sizes[2:])]
    for loops in (meeting, window.sizes if maximum else ()):
        passes = sum(product(loops[: i + 1]) for i in range(len(loops)))
        if p.device.is_cpu and passes > _PASSES:
            raise UnsupportedError(
                f"{d.operator.name}: windows of {list(window.sizes)} elements with Strides "
                f"{list(window.strides)}: so large ones are not served on this device")

    def three(values: Sequence[int], fill: int) -> Ints:
        return pad_left(values, 3, fill)

    units = [tuple(int(i > 1 and i == rank - 3 + a) for i in range(rank)) for a in range(3)]

    def by_plane(strides: Ints) -> Ints:
        return (*strides[:2], *(0,) * (rank - 2))

    push: dict[str, int | Ints] = {
        "x_sizes": three(dx.sizes[2:], 1), "y_sizes": three(dy.sizes[2:], 1),
        "window": three(window.sizes, 1), "steps": three(window.strides, 1),
        "dilations": three(window.dilations, 1), "paddings": three(window.start, 0),
        "ends": three([n + e for n, e in zip(dx.sizes[2:], window.end)], 1)}
    local_size = p.device.local_size
    spec = {"LOCAL_SIZE": local_size, "TYPE": dx.data_type.code}

    def step(name: str, walk: Walk, strides: Ints, x: Operand, gradient: Operand,
             winners: Operand, made: Operand, **more: int) -> None:
        p.dispatch(
            f"pooling_grad.{name}", -(-walk.count // local_size), x=x, dy=gradient,
            winners=winners, dx=made, params=walk.words,
            push={**push, "count": walk.count, "strides": three(strides[2:], 0)},
            spec={**spec, **more})

    taken = UNUSED
    if maximum:
        x = d.input_tensor
        winners = p.temporary(4, dy.element_count)
        step("winners", Walk(dy.sizes, by_plane(x.strides), *units), x.strides,
             p.read("input_tensor"), UNUSED, winners, UNUSED)
        taken = winners.reading()
    walk = Walk(dx.sizes, dx.strides, by_plane(dy.strides), by_plane(packed_strides(dy.sizes)),
                *units)
    step("maximum" if maximum else "average", walk, dy.strides, UNUSED,
         p.read("input_gradient_tensor"), taken, p.write("output_gradient_tensor"),
         INCLUDE_PADDING=not maximum and bool(d.include_padding))


@operator("AVERAGE_POOLING_GRAD", shaders=("pooling_grad",), check=_check_pooling)
def AveragePoolingGradOperatorDesc(d: Any, p: PlanBuilder) -> None:
    _pooling(p, d, False)


@operator("MAX_POOLING_GRAD", output=like("input_tensor"), shaders=("pooling_grad",),
          check=_check_pooling)
def MaxPoolingGradOperatorDesc(d: Any, p: PlanBuilder) -> None:
    _pooling(p, d, True)
