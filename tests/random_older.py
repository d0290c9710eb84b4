"""Random ONNX nodes of older operator sets, with attributes for what later ones take as inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from random_draw import END, F32, Draw, RandomNode


def older(d: Draw) -> RandomNode:
    sizes = d.sizes(2, 4, 7)
    x, axes = d.floats(*sizes), d.axes(sizes, 1)
    plain = [a % len(sizes) for a in axes]
    return d.of(*_OLDER)(d, x, axes, plain)


def _old(op: str, attributes: dict[str, Any], x: np.ndarray, opset: int, outputs: int = 1
         ) -> RandomNode:
    return RandomNode(op, [x], attributes, outputs, opset=opset, older=True)


def _old_reduction(d: Draw, x: np.ndarray, axes: list[int], plain: list[int]) -> RandomNode:
    function = d.of("Sum", "Max", "Min", "Mean", "Prod", "L1", "L2", "SumSquare", "LogSumExp")
    opset = d.of(7, 11, 12)
    chosen = {"axes": plain if opset == 7 else axes} if d.chance(0.8) else {}
    return _old("Reduce" + function, {"keepdims": d.of(0, 1), **chosen}, x, opset)


def _old_slice(d: Draw, x: np.ndarray, axes: list[int], plain: list[int]) -> RandomNode:
    count = len(plain)
    return _old("Slice", {"axes": plain, "starts": d.wholes(count, -8, 8),
                          "ends": [d.of(d.whole(-8, 8), END) for _ in plain]}, x, d.of(7, 9))


def _old_pad(d: Draw, x: np.ndarray, axes: list[int], plain: list[int]) -> RandomNode:
    mode = d.of("constant", "edge", "reflect")
    pads = [d.whole(-1, 3) if mode == "constant" else d.whole(0, n - 1) for n in x.shape * 2]
    return _old("Pad", {"pads": pads, "mode": mode, "value": 1.5}, x, d.of(7, 10))


def _old_split(d: Draw, x: np.ndarray, axes: list[int], plain: list[int]) -> RandomNode:
    axis = plain[0]
    n = x.shape[axis]
    if n == 1:
        return _old("Split", {"axis": axis}, x, 11)
    first = d.whole(1, n - 1)
    return _old("Split", {"axis": axis, "split": [first, n - first]}, x, d.of(7, 11, 12), 2)


def _old_sizes(d: Draw, x: np.ndarray, axes: list[int], plain: list[int]) -> RandomNode:
    if d.chance():
        return _old("Unsqueeze", {"axes": sorted(plain)}, x, d.of(7, 12))
    ones = x.reshape([1 if a in plain else n for a, n in enumerate(x.shape)]) if all(
        x.shape[a] == 1 for a in plain) else x[tuple(
            slice(0, 1) if a in plain else slice(None) for a in range(x.ndim))]
    return _old("Squeeze", {"axes": plain}, np.ascontiguousarray(ones), d.of(7, 12))


def _old_top_k(d: Draw, x: np.ndarray, axes: list[int], plain: list[int]) -> RandomNode:
    return _old("TopK", {"axis": plain[0], "k": d.whole(1, x.shape[plain[0]])}, x, 9, 2)


def _old_clip(d: Draw, x: np.ndarray, axes: list[int], plain: list[int]) -> RandomNode:
    return _old("Clip", d.some(min=-0.5, max=0.75), x, d.of(7, 10))


def _old_resize(d: Draw, x: np.ndarray, axes: list[int], plain: list[int]) -> RandomNode:
    x = d.floats(*d.wholes(2, 1, 3), *d.wholes(2, 1, 9))
    scales = [1.0, 1.0, d.of(1.0, 2.0, 3.0), d.of(1.0, 2.0, 1.5)]
    mode = {"mode": d.of("nearest", "linear")}
    if d.chance():
        return _old("Upsample", {"scales": scales, **mode}, x, d.of(7, 8))
    return RandomNode(d.of("Upsample", "Resize"), [x, np.array(scales, F32)], mode,
                      opset=d.of(9, 10), older=True, host=(1,))


_OLDER = (_old_reduction, _old_reduction, _old_slice, _old_pad, _old_split, _old_sizes, _old_top_k,
          _old_clip, _old_resize)
