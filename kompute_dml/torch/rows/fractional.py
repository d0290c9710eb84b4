"""Fractional max pooling: windows that begin where random numbers say, and its gradient."""

from __future__ import annotations

import math

from ..table import call, lowers
from ..values import F32, I64, Sizes, Unsupported, Value, cast, expanded, full, resized


def _begins(samples: Value, size: int, window: int, count: int) -> Value:
    """Where the windows of a dimension begin, {images, count}."""
    images = samples.numel
    last = full((images, 1), size - window, I64)
    if count == 1:
        return last
    step = (size - window) / (count - 1)
    one = resized(cast(samples, F32), (images, 1))
    numbers = cast(call("arange", count - 1), F32)

    def whole(x: Value) -> Value:
        return cast(call("floor", call("mul.Tensor", x, step)), I64)

    return call("cat", [call("sub.Tensor", whole(call("add.Tensor", one, numbers)), whole(one)),
                        last], 1)


@lowers("fractional_max_pool2d", "fractional_max_pool3d")
def fractional_max_pool(x: Value, window: Sizes, output_size: Sizes, samples: Value
                        ) -> tuple[Value, ...]:
    rank = len(window)
    sizes, before = x.shape[-rank:], x.shape[:-rank]
    images, taken, count = math.prod(before), math.prod(window), math.prod(output_size)
    if not x.numel or not count or not x.dtype.is_floating_point:
        raise Unsupported(f"fractional pools of {x!r}")
    samples = resized(samples, (images, rank))
    at = full((images, *[1] * (2 * rank)), 0, I64)
    for d in range(rank):
        # The numbers of an image name its last dimension first; those of a volume do not.
        begins = _begins(call("select.int", samples, 1, rank - 1 - d if rank == 2 else d),
                         sizes[d], window[d], output_size[d])
        shape = [images, *[1] * (2 * rank)]
        shape[1 + d] = output_size[d]
        inner = [1] * (2 * rank + 1)
        inner[1 + rank + d] = window[d]
        here = call("add.Tensor", resized(begins, shape),
                    resized(call("arange", window[d]), inner))
        at = call("add.Tensor", call("mul.Tensor", at, sizes[d]), here)
    at = resized(expanded(at, (images, *output_size, *window)), (images, count * taken))
    values = call("gather", resized(x, (images, math.prod(sizes))), 1, at)
    y, first = call("max.dim", resized(values, (images, count, taken)), 2, True)
    places = call("gather", resized(at, (images, count, taken)), 2, first)
    return tuple(resized(v, (*before, *output_size)) for v in (y, places))


@lowers("fractional_max_pool2d_backward", "fractional_max_pool3d_backward")
def fractional_max_pool_backward(g: Value, x: Value, window: Sizes, output_size: Sizes,
                                 places: Value) -> Value:
    rank = len(window)
    images, count = math.prod(x.shape[:-rank]), math.prod(output_size)
    if not g.numel:
        raise Unsupported(f"the gradient of {g!r}")
    flat = full((images, math.prod(x.shape[-rank:])), 0, g.dtype)
    y = call("scatter_add", flat, 1, resized(places, (images, count)),
             resized(g, (images, count)))
    return resized(y, x.shape)
