"""Products of floating-point matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from layouts import PACKED, SHIFTED, TRANSPOSED, Sizes

F32, F16 = dml.DataType.FLOAT32, dml.DataType.FLOAT16


def _numbers(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    return rng.normal(0, 1, sizes).astype(data_type.dtype)


def _opposed(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Numbers, each followed by nearly its negative."""
    values = rng.normal(0, 1, sizes) * 2.0 ** rng.integers(0, 8, sizes)
    flat = values.reshape(-1)
    flat[1::2] = -flat[: len(flat) // 2 * 2 : 2] * (1 + 2.0**-8)
    return values.astype(data_type.dtype)


def _transposed(x: np.ndarray, transform: int) -> np.ndarray:
    return np.swapaxes(x, -1, -2) if transform else x


def _terms(x: Arrays, attributes: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The exact result without an activation, and the sum of the terms' magnitudes."""
    a = _transposed(x["a_tensor"].astype(np.float64), attributes["trans_a"])
    b = _transposed(x["b_tensor"].astype(np.float64), attributes["trans_b"])
    alpha, beta = (np.float64(np.float32(attributes[n])) for n in ("alpha", "beta"))
    y, size = alpha * (a @ b), abs(alpha) * (abs(a) @ abs(b))
    if "c_tensor" in x and beta:
        c = beta * x["c_tensor"].astype(np.float64)
        y, size = y + c, size + abs(c)
    return y, size


def _softmax(y: np.ndarray) -> np.ndarray:
    e = np.exp(y - y.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _softmax1(axis: int) -> Any:
    return dml.ActivationSoftmax1OperatorDesc(input_tensor=None, output_tensor=None, axes=(axis,))


_FUSED = {
    None: lambda y: y,
    dml.ActivationReluOperatorDesc(): lambda y: np.maximum(y, 0),
    dml.ActivationLinearOperatorDesc(alpha=0.5, beta=3.0): lambda y: 0.5 * y + 3,
    dml.ElementWiseClipOperatorDesc(
        input_tensor=None, output_tensor=None, scale_bias=None, min=-1.0, max=2.0):
        lambda y: np.clip(y, -1, 2),
}


def _reference(x: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
    y, _ = _terms(x, attributes)
    fused = attributes["fused_activation"]
    if hasattr(fused, "axes"):
        # A softmax takes the sums rounded to the output's type.
        return _softmax(y)
    return _FUSED[fused](y)


def _room(x: Arrays, attributes: Mapping[str, Any]) -> np.ndarray:
    """As accuracy.md says."""
    _, size = _terms(x, attributes)
    k = _transposed(x["a_tensor"], attributes["trans_a"]).shape[-1]
    room = (k + 4) * 2.0**-24 * (size + 4)
    if hasattr(attributes["fused_activation"], "axes"):
        rounding = 2.0**-11 if x["a_tensor"].dtype == np.float16 else 2.0**-24
        y, _ = _terms(x, attributes)
        return _softmax(y) * 4 * (room + rounding * abs(y)).max(-1, keepdims=True) + 2.0**-20
    return room


def gemm(
    name: str, m: int, k: int, n: int, *, batches: Sequence[int] = (), c: bool = False,
    trans_a: int = 0, trans_b: int = 0, alpha: float = 1.0, beta: float = 1.0, fused: Any = None,
    **more: Any,
) -> Case:
    sizes = {
        "a_tensor": (*batches, *((k, m) if trans_a else (m, k))),
        "b_tensor": (*batches, *((n, k) if trans_b else (k, n))),
    }
    if c:
        sizes["c_tensor"] = (*batches, m, n)
    sizes["output_tensor"] = (*batches, m, n)
    return Case(
        "GEMM", name, sizes, _reference, room=_room,
        attributes=dict(trans_a=trans_a, trans_b=trans_b, alpha=alpha, beta=beta,
                        fused_activation=fused),
        **{"values": dict.fromkeys(sizes, _numbers), "layouts": [PACKED], **more})


_RELU, _LINEAR, _CLIP = list(_FUSED)[1:]
_ONE_LEVEL = ["descriptor"]

CASES = [
    gemm("one", 1, 1, 1),
    gemm("plain", 5, 7, 3, layouts=FEW),
    gemm("everything", 5, 19, 7, batches=(2, 3), c=True, alpha=0.5, beta=-2.0, fused=_LINEAR,
         layouts=FEW),
    *(gemm(f"transposed-{a}-{b}", 66, 36, 68, c=True, trans_a=a, trans_b=b, batches=(2,),
           layouts=[PACKED, SHIFTED], levels=_ONE_LEVEL) for a in (0, 1) for b in (0, 1)),
    gemm("unread-c", 3, 4, 5, c=True, beta=0.0, values={
        "a_tensor": _numbers, "b_tensor": _numbers,
        "c_tensor": lambda rng, t, sizes: np.full(sizes, np.nan, t.dtype)}),
    gemm("clip", 4, 5, 6, fused=_CLIP),
    gemm("softmax", 4, 5, 6, batches=(2,), c=True, layouts=[PACKED, SHIFTED],
         fused=_softmax1(2)),
    gemm("cancels", 3, 1000, 5, values=dict.fromkeys(("a_tensor", "b_tensor"), _opposed),
         levels=_ONE_LEVEL),
    # Beyond one tile; many tiles; split-K.
    gemm("past-a-tile", 65, 17, 129, fused=_RELU, levels=_ONE_LEVEL,
         layouts=[PACKED, TRANSPOSED]),
    gemm("many-tiles", 65, 9, 66, batches=(4, 16), levels=_ONE_LEVEL),
    gemm("many-small-tiles", 33, 18, 34, batches=(4, 16), levels=_ONE_LEVEL),
    gemm("shared-k", 17, 2052, 12, c=True, levels=_ONE_LEVEL, layouts=[PACKED, SHIFTED]),
    gemm("rows-of-a-band", 1100, 3, 5, levels=_ONE_LEVEL),
    # A few rows, with K-contiguous and N-contiguous B.
    *(gemm(f"{m}-rows-by-{name}", m, 1040, 264, c=True, trans_b=along, fused=_RELU,
           levels=_ONE_LEVEL)
      for m in (1, 2, 3, 8) for along, name in ((0, "columns"), (1, "k"))),
    gemm("vectors", 1, 64, 8, batches=(3,), trans_b=1, levels=_ONE_LEVEL),
]

_usual = dict(
    a_tensor=dml.TensorDesc(F32, [4, 5]), b_tensor=dml.TensorDesc(F32, [5, 3]), c_tensor=None,
    output_tensor=dml.TensorDesc(F32, [4, 3]), trans_a=0, trans_b=0, alpha=1.0, beta=1.0,
    fused_activation=None)


def _error(name: str, parts: list[str], **fields: Any) -> ErrorCase:
    return ErrorCase("GEMM", name, _usual | fields, parts)


ERRORS = [
    _error("mismatched-k", ["BTensor.Sizes", "[5, 3]", "[6, 3]"],
           b_tensor=dml.TensorDesc(F32, [6, 3])),
    _error("not-transposed", ["BTensor.Sizes", "[5, 5]", "[5, 3]"], trans_b=1),
    _error("output", ["OutputTensor.Sizes", "[4, 3]", "[3, 4]"],
           output_tensor=dml.TensorDesc(F32, [3, 4])),
    _error("c", ["CTensor.Sizes", "[1, 3]"], c_tensor=dml.TensorDesc(F32, [1, 3])),
    _error("types", ["DataType", "FLOAT16"], b_tensor=dml.TensorDesc(F16, [5, 3])),
    _error("vector", ["ATensor.DimensionCount", "[2, 4]"], a_tensor=dml.TensorDesc(F32, [5])),
    _error("transform", ["TransA", "77"], trans_a=77),
    _error("softmax-axis", ["Axes[0]", "[0, 2)", "2"],
           fused_activation=_softmax1(2)),
    _error("not-fusable", ["FusedActivation"],
           fused_activation=dml.ElementWiseAbsOperatorDesc(
               input_tensor=None, output_tensor=None, scale_bias=None)),
]
