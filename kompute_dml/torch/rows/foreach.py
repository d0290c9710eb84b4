"""Lists of tensors, as optimizers have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..table import LOWERINGS, call, lowers
from ..values import Unsupported, Value

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
