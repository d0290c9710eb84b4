"""ONNX nodes with random attributes, data types and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from random_draw import END, F16, F32, Draw, Maker, RandomNode, long
from random_microsoft import MICROSOFTS
from random_older import older

# Convolution, pooling, resampling


def _window(d: Draw, kernel: Sequence[int]) -> dict[str, Any]:
    if d.chance(0.3):
        return {"auto_pad": d.of("SAME_UPPER", "SAME_LOWER", "VALID")}
    return {"pads": [d.whole(0, min(3, n - 1)) for n in (*kernel, *kernel)]}


def convolution(d: Draw) -> RandomNode:
    rank, groups = d.of(1, 2, 2, 2, 3), d.of(1, 1, 2, 3)
    channels, filters = (groups * d.whole(1, 5) for _ in range(2))
    kernel = d.wholes(rank, 1, 4)
    x = d.floats(d.whole(1, 3), channels, *d.wholes(rank, 8, 12))
    w = d.floats(filters, channels // groups, *kernel)
    bias = [d.floats(filters)] if d.chance() else []
    return RandomNode("Conv", [x, w, *bias], {
        "group": groups, "kernel_shape": kernel, "dilations": d.wholes(rank, 1, 2),
        "strides": d.wholes(rank, 1, 3), **_window(d, kernel)})


def transposed(d: Draw) -> RandomNode:
    rank, groups = d.of(1, 2, 2), d.of(1, 1, 2)
    channels, filters = groups * d.whole(1, 4), d.whole(1, 4)
    kernel, steps = d.wholes(rank, 1, 4), d.wholes(rank, 1, 3)
    more = {"output_padding": [d.whole(0, s - 1) for s in steps]} if d.chance() else {}
    x = d.floats(d.whole(1, 3), channels, *d.wholes(rank, 2, 8))
    return RandomNode("ConvTranspose", [x, d.floats(channels, filters, *kernel)], {
        "group": groups, "strides": steps, "dilations": d.wholes(rank, 1, 2),
        "pads": [d.whole(0, n - 1) // 2 for n in (*kernel, *kernel)], **more})


def pooling(d: Draw) -> RandomNode:
    op, rank = d.of("MaxPool", "MaxPool", "AveragePool", "LpPool"), d.of(1, 2, 2, 3)
    kernel = d.wholes(rank, 1, 4)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel, "strides": d.wholes(rank, 1, 3), "ceil_mode": d.of(0, 1),
        **_window(d, kernel)}
    # ONNX Runtime ignores dilations where it pads by itself.
    if "pads" in attributes:
        attributes |= d.some(dilations=d.wholes(rank, 1, 3))
    outputs = 1
    if op == "AveragePool":
        attributes["count_include_pad"] = d.of(0, 1)
    elif op == "LpPool":
        attributes["p"] = d.of(1, 2, 3)
    elif d.chance():
        outputs = 2
        attributes["storage_order"] = d.of(0, 0, 1)
    x = d.floats(d.whole(1, 2), d.whole(1, 4), *d.wholes(rank, 10, 14))
    return RandomNode(op, [x], attributes, outputs)


def whole_planes(d: Draw) -> RandomNode:
    return RandomNode(d.of("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"),
                      [d.floats(2, 3, *d.sizes(1, 3))])


def resize(d: Draw) -> RandomNode:
    mode = d.of("nearest", "linear", "cubic")
    attributes = {"mode": mode, "coordinate_transformation_mode": d.of(
        "half_pixel", "pytorch_half_pixel", "asymmetric", "half_pixel_symmetric")}
    # ONNX Runtime rounds scales and offsets, and may so miss the nearest element of a coordinate
    # that lies half-way. These scales are exact, and the other offset is.
    steps: tuple[tuple[float, ...], ...] = ((0.5, 0.7, 1, 2, 1.3, 3), (0.5, 0.6, 1, 2, 2.6))
    if mode == "nearest":
        steps = (0.5, 0.75, 1, 2, 1.5, 4), (0.5, 0.25, 1, 2, 2.5)
        if attributes["coordinate_transformation_mode"] == "half_pixel_symmetric":
            attributes["coordinate_transformation_mode"] = "half_pixel"
        attributes["nearest_mode"] = d.of(
            "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    elif attributes["coordinate_transformation_mode"] != "half_pixel_symmetric" and d.chance(0.3):
        attributes["antialias"] = 1  # of the other mode ONNX Runtime is off its specification
    if mode == "cubic":
        attributes |= {"cubic_coeff_a": d.of(-0.5, -0.75), "exclude_outside": d.of(0, 1)}
    x = d.floats(*d.wholes(2, 1, 3), *d.wholes(2, 1, 9))
    if d.chance():
        scales = np.array([1, 1, *(d.of(*s) for s in steps)], F32)
        return RandomNode("Resize", [x, None, scales], attributes, opset=19, host=(2,))
    sizes = long(*x.shape[:2], *d.wholes(2, 1, 15))
    return RandomNode("Resize", [x, None, None, sizes], attributes, opset=19, host=(3,))


def grid_sample(d: Draw) -> RandomNode:
    grid = (d.rng.random([2, *d.wholes(2, 1, 5), 2]) * 3 - 1.5).astype(F32)
    return RandomNode("GridSample", [d.floats(2, 2, *d.wholes(2, 1, 6)), grid], {
        "mode": d.of("linear", "nearest", "cubic"), "align_corners": d.of(0, 1),
        "padding_mode": d.of("zeros", "border", "reflection")}, opset=20)


def roi_align(d: Draw) -> RandomNode:
    count = d.whole(1, 4)
    begin = d.rng.random([count, 2]) * 4
    rois = np.concatenate([begin, begin + d.rng.random([count, 2]) * 8], 1).astype(F32)
    images = d.integers([count], np.int64, 0, 1)
    return RandomNode("RoiAlign", [d.floats(2, 3, 9, 8), rois, images], {
        "output_height": d.whole(1, 4), "output_width": d.whole(1, 4),
        "sampling_ratio": d.whole(0, 3), "spatial_scale": d.of(0.5, 1.0),
        "coordinate_transformation_mode": d.of("half_pixel", "output_half_pixel")}, opset=16)


# Products


def gemm(d: Draw) -> RandomNode:
    m, k, n = d.wholes(3, 1, 70)
    a, b = d.of(0, 1), d.of(0, 1)
    c = [d.floats(*d.of((m, n), (1, n), (n,), (m, 1), (1,), ()))] if d.chance(0.7) else []
    return RandomNode("Gemm", [d.floats(*((k, m) if a else (m, k))),
                               d.floats(*((n, k) if b else (k, n))), *c],
                      {"transA": a, "transB": b, **d.some(alpha=0.5, beta=2.0)})


def matmul(d: Draw) -> RandomNode:
    m, k, n = d.wholes(3, 1, 40)
    batch = d.sizes(0, 3, 3)
    other = [d.of(1, size) for size in batch][d.whole(0, len(batch)):]
    shapes = [[*batch, m, k], [*other, k, n]]
    if d.chance(0.2):
        shapes[d.of(0, 1)] = [k]
    dtype = d.of(F32, F32, np.int32, np.uint32)
    return RandomNode("MatMul", [d.numbers(shape, dtype) for shape in shapes])


def integer_matmul(d: Draw) -> RandomNode:
    m, k, n = d.wholes(3, 1, 40)
    kinds = d.of((np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8))
    a, b = (d.integers(s, t, -99, 99) for s, t in zip(([m, k], [k, n]), kinds))
    if d.chance():
        return RandomNode("MatMulInteger", [a, b, d.integers([], kinds[0])])
    columns = [n] if d.chance() else []
    scale = np.asarray(d.rng.random(columns) * 0.1 + 0.01).astype(F32)
    return RandomNode("QLinearMatMul", [
        a, F32(0.02), d.integers([], kinds[0]), b, scale, d.integers(columns, kinds[1]), F32(0.5),
        d.integers([], kinds[0])])


def quantized_convolution(d: Draw) -> RandomNode:
    channels, filters, t = d.whole(1, 4), d.whole(1, 4), d.of(np.uint8, np.int8)
    return RandomNode("QLinearConv", [
        d.integers([1, channels, 7, 6], np.uint8, 0, 200), F32(0.02), d.integers([], np.uint8),
        d.integers([filters, channels, 3, 2], t, -99, 99), F32(0.03), np.zeros([], t), F32(0.5),
        d.integers([], np.uint8)], {"pads": [1, 1, 1, 0], "strides": [d.of(1, 2), 1]})


def quantization(d: Draw) -> RandomNode:
    sizes, t = d.sizes(1, 4, 9), d.of(np.int8, np.uint8, np.int16, np.uint16)
    axis = d.axis(sizes)
    per_axis = d.chance()
    count = [sizes[axis]] if per_axis else []
    scale = np.asarray(d.rng.random(count) + 0.05).astype(F32)
    attributes = {"axis": axis} if per_axis else {}
    if d.chance():
        return RandomNode("QuantizeLinear", [d.floats(*sizes) * 9, scale, d.integers(count, t)],
                          attributes)
    return RandomNode("DequantizeLinear", [d.integers(sizes, t, -100, 100), scale,
                                           d.integers(count, t)], attributes)


def einsum(d: Draw) -> RandomNode:
    equation, *shapes = d.of(
        ("ij,jk->ik", (3, 4), (4, 5)), ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
        ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)), ("ii->i", (4, 4)), ("ij->ji", (3, 5)),
        ("i,j->ij", (3,), (4,)), ("bij->b", (2, 3, 4)), ("ij,ij->", (3, 4), (3, 4)),
        ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)), ("abc,cd,de->abe", (2, 3, 4), (4, 5), (5, 2)))
    return RandomNode("Einsum", [d.floats(*s) for s in shapes], {"equation": equation})


# Normalizations, reductions, scans, sorting


def softmax(d: Draw) -> RandomNode:
    sizes = d.sizes(1, 5)
    return RandomNode(d.of("Softmax", "LogSoftmax", "Hardmax"), [d.floats(*sizes)],
                      d.some(axis=d.axis(sizes)), opset=d.of(11, 13, 21))


def of_rows(d: Draw) -> RandomNode:
    sizes = d.sizes(1, 5)
    axis = d.axis(sizes)
    x, scale, bias = d.floats(*sizes), d.floats(*sizes[axis:]), d.floats(*sizes[axis:])
    if d.chance(0.3):
        return RandomNode("RMSNormalization", [x, scale], {"axis": axis}, opset=23)
    return RandomNode("LayerNormalization", [x, scale, *([bias] if d.chance() else [])],
                      {"axis": axis, "epsilon": 1e-3}, d.of(1, 1, 3))


def of_planes(d: Draw) -> RandomNode:
    channels, planes = d.whole(1, 5), d.sizes(1, 3, 9)
    if d.chance():
        return RandomNode("InstanceNormalization", [d.floats(2, channels, *planes),
                                                    d.floats(channels), d.floats(channels)])
    groups = d.whole(1, 3)
    width = channels * groups
    return RandomNode("GroupNormalization", [d.floats(2, width, *planes), d.floats(width),
                                             d.floats(width)], {"num_groups": groups})


def of_batches(d: Draw) -> RandomNode:
    channels, training = d.whole(1, 6), d.of(0, 0, 1)
    lines = [d.floats(channels) for _ in range(3)]
    return RandomNode(
        "BatchNormalization", [d.floats(2, channels, *d.sizes(0, 3)), *lines,
                               np.abs(d.floats(channels)) + F32(0.1)],
        {"training_mode": training, **d.some(epsilon=1e-3, momentum=0.8)}, 3 if training else 1)


def local_response(d: Draw) -> RandomNode:
    return RandomNode("LRN", [d.floats(2, d.whole(1, 8), *d.wholes(2, 1, 6))],
                      {"size": d.of(1, 3, 5, 7), **d.some(alpha=0.1, beta=0.5, bias=2.0)})


def norms(d: Draw) -> RandomNode:
    sizes = d.sizes()
    return RandomNode("LpNormalization", [d.floats(*sizes)],
                      {"axis": d.axis(sizes), "p": d.of(1, 2)})


def reduction(d: Draw) -> RandomNode:
    function = d.of("Sum", "Max", "Min", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp",
                    "SumSquare")
    sizes = d.sizes(1, 5)
    x = d.numbers(sizes, F32, F32, np.int32, np.int64)
    if function == "LogSum":
        x = np.abs(x) + np.ones((), x.dtype)
    axes = d.axes(sizes)
    return RandomNode(
        "Reduce" + function, [x, *([long(*axes)] if axes or d.chance(0.3) else [])],
        {"keepdims": d.of(0, 1), **d.some(noop_with_empty_axes=d.of(0, 1))}, opset=20, host=(1,))


def extreme(d: Draw) -> RandomNode:
    sizes = d.sizes()
    x = d.integers(sizes, d.of(F32, np.int32, np.int8, np.uint8), 0, 3)  # ties
    return RandomNode(d.of("ArgMax", "ArgMin"), [x], {
        "axis": d.axis(sizes), "keepdims": d.of(0, 1), "select_last_index": d.of(0, 1)})


def top_k(d: Draw) -> RandomNode:
    sizes = d.sizes(1, 4, 9)
    axis = d.axis(sizes)
    x = d.rng.permutation(int(np.prod(sizes))).reshape(sizes).astype(d.of(F32, np.int32, np.int64))
    return RandomNode("TopK", [x, long(d.whole(1, sizes[axis]))],
                      {"axis": axis, "largest": d.of(0, 1)}, 2, host=(1,))


def running_sum(d: Draw) -> RandomNode:
    sizes = d.sizes()
    x, axis = d.numbers(sizes, F32, np.int32, np.int64), np.array(d.axis(sizes))
    return RandomNode("CumSum", [x, axis],
                      {"exclusive": d.of(0, 1), "reverse": d.of(0, 1)}, host=(1,))


# Movement


def slice_(d: Draw) -> RandomNode:
    sizes = d.sizes(1, 4, 8)
    axes = d.axes(sizes, 1)
    ends = [d.of(d.whole(-9, 9), END, -END) for _ in axes]
    steps = [d.of(1, 1, 2, -1, -2, 3) for _ in axes]
    return RandomNode("Slice", [d.anything(sizes), long(*d.wholes(len(axes), -9, 9)), long(*ends),
                                long(*axes), long(*steps)], host=(1, 2, 3, 4))


def split(d: Draw) -> RandomNode:
    sizes = d.sizes(1, 4, 9)
    axis = d.axis(sizes)
    count = d.whole(1, min(sizes[axis], 4))
    if d.chance():
        return RandomNode("Split", [d.anything(sizes)], {"axis": axis, "num_outputs": count}, count)
    cuts = sorted(d.wholes(count - 1, 0, sizes[axis]))
    parts = np.diff([0, *cuts, sizes[axis]])
    return RandomNode("Split", [d.anything(sizes), parts], {"axis": axis}, count, host=(1,))


def join(d: Draw) -> RandomNode:
    sizes, t = d.sizes(), d.of(F32, F16, np.int8, np.int64)
    axis, parts = d.axis(sizes), []
    for _ in range(d.whole(1, 5)):
        sizes[axis] = d.whole(1, 5)
        parts.append(d.integers(sizes, t))
    return RandomNode("Concat", parts, {"axis": axis})


def pad(d: Draw) -> RandomNode:
    sizes, mode = d.sizes(1, 4, 7), d.of("constant", "edge", "reflect", "wrap")
    x, axes = d.anything(sizes), d.axes(sizes, 1)
    low, high = (-1, 4) if mode == "constant" else (0, 0)
    pads = [d.whole(low, high or sizes[a] - 1) for a in axes * 2]
    value = np.array(3, x.dtype) if d.chance() else None
    return RandomNode("Pad", [x, long(*pads), value, long(*axes)], {"mode": mode},
                      host=(1, 2, 3))


def repeat(d: Draw) -> RandomNode:
    sizes = d.sizes()
    if d.chance():
        times = long(*d.wholes(len(sizes), 1, 3))
        return RandomNode("Tile", [d.anything(sizes), times], host=(1,))
    wider = [*d.sizes(0, 2, 3), *(n if n > 1 else d.whole(1, 3) for n in sizes)]
    return RandomNode("Expand", [d.anything(sizes), long(*wider)], host=(1,))


def permuted(d: Draw) -> RandomNode:
    sizes = d.sizes(1, 6)
    return RandomNode("Transpose", [d.anything(sizes)],
                      {"perm": [int(a) for a in d.rng.permutation(len(sizes))]})


def blocks(d: Draw) -> RandomNode:
    side = d.whole(1, 3)
    if d.chance():
        x = d.floats(2, side * side * d.whole(1, 3), *d.wholes(2, 1, 4))
        return RandomNode("DepthToSpace", [x], {"blocksize": side, "mode": d.of("DCR", "CRD")})
    x = d.floats(2, d.whole(1, 3), side * d.whole(1, 3), side * d.whole(1, 3))
    return RandomNode("SpaceToDepth", [x], {"blocksize": side})


def reversed_(d: Draw) -> RandomNode:
    sizes, batch = [*d.wholes(2, 1, 6), *d.sizes(0, 2)], d.of(0, 1)
    lengths = d.wholes(sizes[batch], 1, sizes[1 - batch])
    return RandomNode("ReverseSequence", [d.anything(sizes), long(*lengths)],
                      {"batch_axis": batch, "time_axis": 1 - batch})


def gather(d: Draw) -> RandomNode:
    sizes = d.sizes()
    axis, x = d.axis(sizes), d.anything(sizes)
    if d.chance():
        return RandomNode("Gather", [x, d.indices(sizes[axis], d.sizes(0, 3, 4))], {"axis": axis})
    shape = [d.whole(1, n) for n in sizes]
    shape[axis] = d.whole(1, 7)
    return RandomNode("GatherElements", [x, d.indices(sizes[axis], shape)], {"axis": axis})


def gather_nd(d: Draw) -> RandomNode:
    sizes = d.sizes()
    batches = d.whole(0, len(sizes) - 1)
    shape = [*sizes[:batches], *d.sizes(0, 2, 3)]
    if not shape:
        shape = [1]
    places = [d.indices(sizes[batches + i], shape)
              for i in range(d.whole(1, len(sizes) - batches))]
    return RandomNode("GatherND", [d.anything(sizes), np.stack(places, -1)],
                      {"batch_dims": batches})


def scatter(d: Draw) -> RandomNode:
    sizes = d.sizes()
    x = d.numbers(sizes, F32, np.int32)
    if d.chance():
        axis = d.axis(sizes)
        some = tuple(slice(0, d.whole(1, n)) for n in sizes)
        places = np.argsort(d.rng.random(sizes), axis)[some]  # no place twice
        return RandomNode("ScatterElements", [x, places, d.numbers(places.shape, x.dtype)],
                          {"axis": axis}, opset=18)
    near = d.whole(1, len(sizes))
    count = int(np.prod(sizes[:near]))
    flat = d.rng.permutation(count)[:d.whole(1, count)]
    places = np.stack(np.unravel_index(flat, sizes[:near]), -1).astype(np.int64)
    updates = d.numbers([len(flat), *sizes[near:]], x.dtype)
    return RandomNode("ScatterND", [x, places, updates], opset=18)


def scatter_reduction(d: Draw) -> RandomNode:
    """Places may come several times."""
    sizes = d.sizes()
    x = d.numbers(sizes, F32, F16, np.int32, np.int64, np.uint8)
    attributes: dict[str, Any] = {"reduction": d.of("add", "mul", "min", "max")}
    if d.chance():
        axis = d.axis(sizes)
        shape = [d.whole(1, 40) if i == axis else d.whole(1, n) for i, n in enumerate(sizes)]
        places = d.indices(sizes[axis], shape)
        return RandomNode("ScatterElements", [x, places, d.numbers(shape, x.dtype)],
                          {"axis": axis, **attributes}, opset=18)
    near = d.whole(1, len(sizes))
    count = d.whole(1, 40)
    places = np.stack([d.indices(n, [count]) for n in sizes[:near]], -1)
    updates = d.numbers([count, *sizes[near:]], x.dtype)
    return RandomNode("ScatterND", [x, places, updates], attributes, opset=18)


def one_hot(d: Draw) -> RandomNode:
    sizes, depth = d.sizes(1, 3), d.whole(1, 6)
    values = np.array([0, 5], d.of(F32, np.int32, np.int64))
    places = d.integers(sizes, np.int64, -depth, depth)
    return RandomNode("OneHot", [places, np.array(depth), values],
                      {"axis": d.whole(-len(sizes) - 1, len(sizes))}, host=(1, 2))


def triangle(d: Draw) -> RandomNode:
    x = d.numbers(d.sizes(2, 4), F32, np.int64)
    return RandomNode("Trilu", [x, np.array(d.whole(-4, 4))], {"upper": d.of(0, 1)}, host=(1,))


# Elementwise


def of_two(d: Draw) -> RandomNode:
    op = d.of("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "PRelu", "Mod", "Less",
              "Equal", "GreaterOrEqual")
    sizes = d.sizes(0, 4)
    small = [d.of(n, 1) for n in sizes]
    small = small if op == "PRelu" else small[d.whole(0, len(sizes)):]
    whole = op not in ("Pow", "Mean", "PRelu") and d.chance()
    if whole:
        t = d.of(np.int32, np.int64)
        return RandomNode(op, [d.integers(sizes, t, 1, 9), d.integers(small, t, 1, 9)])
    a, b = d.floats(*sizes), d.floats(*small)
    return RandomNode(op, [np.abs(a) if op == "Pow" else a, b], {"fmod": 1} if op == "Mod" else {})


def of_one(d: Draw) -> RandomNode:
    op = d.of(
        "Abs", "Neg", "Exp", "Log", "Sqrt", "Sigmoid", "Tanh", "Erf", "Relu", "LeakyRelu", "Elu",
        "Selu", "Celu", "Gelu", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "Sin", "Cos",
        "ThresholdedRelu", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh",
        "Ceil", "Floor", "Round", "Sign", "IsNaN", "Mish", "Shrink")
    x = d.floats(*d.sizes(0, 4))
    if op in ("Log", "Sqrt", "Acosh"):
        x = np.abs(x) + F32(1)
    elif op in ("Asin", "Acos", "Atanh"):
        x = np.tanh(x)
    return RandomNode(op, [x], opset=20)


# Recurrent networks and attention


def recurrent(d: Draw) -> RandomNode:
    op, gates, kinds = d.of(("RNN", 1, 1), ("GRU", 3, 2), ("LSTM", 4, 3))
    steps, batch, width, units = d.whole(1, 6), d.whole(1, 4), d.whole(1, 5), d.whole(1, 5)
    direction = d.of("forward", "reverse", "bidirectional")
    n = 2 if direction == "bidirectional" else 1
    state = [n, batch, units]
    inputs: list[np.ndarray | None] = [
        d.floats(steps, batch, width), d.floats(n, gates * units, width),
        d.floats(n, gates * units, units), d.floats(n, 2 * gates * units),
        np.array(d.wholes(batch, 1, steps), np.int32), d.floats(*state)]
    if op == "LSTM":
        inputs += [d.floats(*state), d.floats(n, 3 * units)]
    for i, x in enumerate(inputs):
        if x is not None and x.dtype == F32:
            x *= F32(0.3)  # so that states do not grow, and errors with them
        if i > 2 and d.chance():
            inputs[i] = None
    attributes: dict[str, Any] = {"hidden_size": units, "direction": direction}
    if op == "LSTM":
        attributes |= d.some(clip=0.7, input_forget=1)
    elif op == "GRU":
        attributes["linear_before_reset"] = d.of(0, 1)
    if d.chance(0.4):
        attributes["activations"] = [
            d.of("Tanh", "Sigmoid", "Softsign", *(["Relu", "Softplus"] if op == "RNN" else []))
            for _ in range(kinds * n)]  # gates without a bound make states that overflow
    return RandomNode(op, inputs, attributes, 3 if op == "LSTM" else 2, opset=14)


def attention(d: Draw) -> RandomNode:
    batch, heads, size, values = d.whole(1, 3), d.of(2, 4), d.of(4, 8, 16), d.of(4, 8, 16)
    key_heads, queries, keys = d.of(heads, heads // 2), d.whole(1, 9), d.whole(1, 9)
    attributes = d.some(is_causal=d.of(0, 1), scale=0.3, softcap=d.of(0.0, 2.0))
    if d.chance():
        inputs = [d.floats(batch, heads, queries, size), d.floats(batch, key_heads, keys, size),
                  d.floats(batch, key_heads, keys, values)]
    else:
        inputs = [d.floats(batch, queries, heads * size), d.floats(batch, keys, key_heads * size),
                  d.floats(batch, keys, key_heads * values)]
        attributes |= {"q_num_heads": heads, "kv_num_heads": key_heads}
    past = d.whole(1, 4) if d.chance(0.3) else 0
    total = keys + past
    shape = d.of((queries, total), (batch, 1, queries, total), (batch, heads, queries, total))
    allowed = d.rng.random(shape) < 0.8
    allowed[..., 0] = True
    mask = d.of(None, allowed, d.floats(*shape))
    caches = [d.floats(batch, key_heads, past, size),
              d.floats(batch, key_heads, past, values)] if past else []
    return RandomNode("Attention", [*inputs, mask, *caches], attributes, 3 if past else 1, opset=23)


MAKERS: tuple[Maker, ...] = (
    convolution, transposed, pooling, whole_planes, resize, grid_sample, roi_align,
    gemm, matmul, integer_matmul, quantized_convolution, quantization, einsum,
    softmax, of_rows, of_planes, of_batches, local_response, norms, reduction, extreme,
    top_k, running_sum,
    slice_, split, join, pad, repeat, permuted, blocks, reversed_, gather, gather_nd, scatter,
    scatter_reduction, one_hot, triangle, older, older, of_two, of_one, recurrent, attention,
    *MICROSOFTS,
)
