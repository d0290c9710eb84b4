"""Images resampled without aliases, and gradients of all resampled and padded ones: products with
the weights of each dimension."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from ..table import call, lowers
from ..values import F32, Number, Sizes, Unsupported, Value, cast, constant, resized

_KINDS = {
    "upsample_nearest": ((1, 2, 3), "upsample_nearest1d"),
    "_upsample_nearest_exact": ((1, 2, 3), "_upsample_nearest_exact1d"),
    "upsample_linear": ((1,), "upsample_linear1d"),
    "upsample_bilinear": ((2,), "upsample_linear1d"),
    "upsample_trilinear": ((3,), "upsample_linear1d"),
    "upsample_bicubic": ((2,), "upsample_bicubic2d"),
}
"""How many dimensions each has, and the operator that resamples one of them."""


@functools.lru_cache(maxsize=256)
def _weights(name: str, inner: int, outer: int, corners: bool | None, scale: float | None
             ) -> torch.Tensor:
    """{outer, inner}: what each output takes of each input, as the CPU resamples the unit vectors.
    """
    function = getattr(torch.ops.aten, name).default
    options = [] if corners is None else [corners]
    one = torch.eye(inner)
    if "2d" in name:
        return function(one[None, None], [outer, inner], *options, scale, None)[0, 0]
    return function(one[None], [outer], *options, scale)[0].t()


def _adjoint(g: Value, weights: Sequence[torch.Tensor]) -> Value:
    """Each of the last dimensions multiplied by its weights {outer, inner}."""
    for d, matrix in enumerate(weights, -len(weights)):
        g = call("transpose.int", g, d, -1)
        outer, inner = matrix.shape
        shape = (*g.shape[:-1], inner)
        rows = resized(call("clone", g), (g.numel // outer, outer))
        factor = cast(constant(matrix.contiguous().numpy(), F32), g.dtype)
        g = call("transpose.int", resized(call("mm", rows, factor), shape), d, -1)
    return g


def _gradient(name: str, rank: int, aligned: bool) -> Callable[..., Value]:
    def run(g: Value, output_size: Sizes, input_size: Sizes, *options: bool | Number | None
            ) -> Value:
        if not g.numel or not g.dtype.is_floating_point:
            raise Unsupported(f"the gradient of {g!r}")
        corners, *scales = options if aligned else (None, *options)
        scales += [None] * (rank - len(scales))
        return _adjoint(g, [
            _weights(name, int(input_size[2 + d]), int(output_size[d]), corners, scales[d])
            for d in range(rank)])

    return run


for _kind, (_ranks, _one) in _KINDS.items():
    for _rank in _ranks:
        lowers(f"{_kind}{_rank}d_backward")(_gradient(_one, _rank, "nearest" not in _kind))


def _antialiased(name: str) -> Callable[..., Value]:
    def run(x: Value, output_size: Sizes, corners: bool, *scales: Number | None) -> Value:
        if not x.numel or not x.dtype.is_floating_point:
            raise Unsupported(f"{name} of {x!r}")
        scales += (None,) * (2 - len(scales))
        return _adjoint(x, [
            _weights(name, x.shape[2 + d], int(output_size[d]), corners, scales[d]).t()
            for d in range(2)])

    return run


for _name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"):
    lowers(_name)(_antialiased(_name))
    lowers(f"{_name}_backward")(_gradient(_name, 2, True))


@lowers("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(g: Value, x: Value, padding: Sizes) -> Value:
    if not g.numel or not x.numel:
        raise Unsupported(f"the gradient of {g!r}")
    pad, sizes = torch.ops.aten.replication_pad1d, x.shape[-(len(padding) // 2):]
    ends = [padding[i:i + 2] for i in range(0, len(padding), 2)][::-1]
    return _adjoint(g, [pad(torch.eye(n), list(end)).t() for n, end in zip(sizes, ends)])
