"""Lists of tensors, as optimizers have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..table import LOWERINGS, call, lowers
from ..values import Unsupported, Value, cast

_SAME = ("abs", "neg", "exp", "log", "reciprocal", "rsqrt", "sigmoid", "sign", "sqrt", "tanh",
         "floor", "ceil", "round", "sin", "cos", "tan", "erf", "expm1", "log1p", "log2", "log10",
         "trunc", "acos", "asin", "atan", "sinh", "cosh")
_OF_TWO = {"add": "add.Tensor", "sub": "sub.Tensor", "mul": "mul.Tensor", "div": "div.Tensor",
           "lerp": "lerp.Scalar", "pow": "pow.Tensor_Scalar", "maximum": "maximum",
           "minimum": "minimum", "clamp_max": "clamp_max", "clamp_min": "clamp_min",
           "addcmul": "addcmul", "addcdiv": "addcdiv"}


def _each(name: str) -> Callable[..., list[Value]]:
    def run(*args: Any, **kwargs: Any) -> list[Value]:
        lists = [a for a in args if isinstance(a, (list, tuple))]
        return [call(name, *[a[i] if isinstance(a, (list, tuple)) else a for a in args], **kwargs)
                for i in range(len(lists[0]))]

    return run


for _name, _of in {**{n: n for n in _SAME}, **_OF_TWO}.items():
    _packet = getattr(torch.ops.aten, f"_foreach_{_name}")
    for _overload in _packet.overloads():
        if not _overload.endswith("out"):
            LOWERINGS[getattr(_packet, _overload)] = _each(_of)


@lowers("_foreach_addcmul.ScalarList", "_foreach_addcmul.Tensor")
def addcmul(x: list[Value], a: list[Value], b: list[Value], scales: Any) -> list[Value]:
    return [call("add.Tensor", u, call("mul.Tensor", call("mul.Tensor", v, w), s))
            for u, v, w, s in zip(x, a, b, _scalars(scales, len(x)))]


@lowers("_foreach_addcdiv.ScalarList", "_foreach_addcdiv.Tensor")
def addcdiv(x: list[Value], a: list[Value], b: list[Value], scales: Any) -> list[Value]:
    return [call("add.Tensor", u, call("mul.Tensor", call("div.Tensor", v, w), s))
            for u, v, w, s in zip(x, a, b, _scalars(scales, len(x)))]


def _scalars(scales: Any, count: int) -> list[Any]:
    if isinstance(scales, Value):
        return [call("select.int", scales, 0, i) for i in range(count)]
    return list(scales)


@lowers("_foreach_norm.Scalar")
def norm(x: list[Value], order: Any = 2, dtype: torch.dtype | None = None) -> list[Value]:
    if order != 2:
        raise Unsupported(f"_foreach_norm of order {order}")
    return [call("sqrt", call("sum", call("mul.Tensor", v, v))) for v in x]


@lowers("_foreach_copy")
def copy(x: list[Value], source: list[Value], non_blocking: bool = False) -> list[Value]:
    return [call("copy", u, v) for u, v in zip(x, source)]


@lowers("_foreach_zero")
def zero(x: list[Value]) -> list[Value]:
    return [call("zero", v) for v in x]


Fused = tuple[list[Value], ...]
"""What a fused step of an optimizer gives: parameters, gradients and states."""


def _settled(skip: Value | None, after: Fused, before: Fused) -> Fused:
    """What was there before, where gradients have overflowed."""
    if skip is None:
        return after
    return tuple([call("where.self", call("eq.Scalar", skip, 0), x, y) for x, y in zip(*lists)]
                 for lists in zip(after, before))


def _gradient(g: Value, x: Value, decay: float, maximize: bool) -> Value:
    if maximize:
        g = call("neg", g)
    return call("add.Tensor", g, x, alpha=decay) if decay else g


def _scaled(gradients: Sequence[Value], scale: Value | None) -> list[Value]:
    return [g if scale is None else cast(call("div.Tensor", g, scale), g.dtype)
            for g in gradients]


@lowers("_fused_adam", "_fused_adam.tensor_lr")
def fused_adam(
    x: list[Value], gradients: list[Value], means: list[Value], squares: list[Value],
    largest: list[Value], steps: list[Value], *, lr: Any, beta1: float, beta2: float,
    weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
    grad_scale: Value | None = None, found_inf: Value | None = None, apart: bool = False
) -> Fused:
    """One step of Adam of all parameters. With ``apart`` the decay is AdamW's."""
    before = x, gradients, means, squares, largest
    g = _scaled(gradients, grad_scale)
    after: Fused = [], g, [], [], []
    for i, weight in enumerate(x):
        slope = _gradient(g[i], weight, 0.0 if apart else weight_decay, maximize)
        if apart:
            weight = call("sub.Tensor", weight, call("mul.Tensor", call(
                "mul.Tensor", weight, lr), weight_decay))
        mean = call("lerp.Scalar", means[i], slope, 1 - beta1)
        square = call("addcmul", call("mul.Tensor", squares[i], beta2), slope, slope,
                      value=1 - beta2)
        most = square
        if amsgrad:
            most = call("maximum", largest[i], square)
            after[4].append(most)
        left = [call("rsub.Scalar", call("pow.Scalar", beta, steps[i]), 1)
                for beta in (beta1, beta2)]
        root = call("div.Tensor", call("sqrt", most), call("sqrt", left[1]))
        change = call("div.Tensor", call("div.Tensor", mean, call("add.Tensor", root, eps)),
                      left[0])
        after[0].append(call("sub.Tensor", weight, call("mul.Tensor", change, lr)))
        after[2].append(mean)
        after[3].append(square)
    return _settled(found_inf, after, before)


@lowers("_fused_adamw", "_fused_adamw.tensor_lr")
def fused_adamw(*args: Any, **kwargs: Any) -> Fused:
    return fused_adam(*args, **kwargs, apart=True)


@lowers("_fused_sgd", "_fused_sgd.tensor_lr")
def fused_sgd(
    x: list[Value], gradients: list[Value], buffers: list[Value], *, weight_decay: float,
    momentum: float, lr: Any, dampening: float, nesterov: bool, maximize: bool,
    is_first_step: bool, grad_scale: Value | None = None, found_inf: Value | None = None
) -> Fused:
    """One step of SGD of all parameters."""
    before = x, gradients, buffers
    g = _scaled(gradients, grad_scale)
    after: Fused = [], g, []
    for i, weight in enumerate(x):
        slope = _gradient(g[i], weight, weight_decay, maximize)
        if buffers:
            buffer = slope if is_first_step else call("add.Tensor", call(
                "mul.Tensor", buffers[i], momentum), slope, alpha=1 - dampening)
            after[2].append(buffer)
            slope = call("add.Tensor", slope, buffer, alpha=momentum) if nesterov else buffer
        after[0].append(call("sub.Tensor", weight, call("mul.Tensor", slope, lr)))
    return _settled(found_inf, after, before)
