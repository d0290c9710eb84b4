"""Pooling: reductions of the elements under a sliding window."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..attributes import ReduceFunction
from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import UnsupportedError, expect, refuse
from ..layout import Ints, begin_with_vectors, coalesce, pad_left, product
from ..lowering import measured
from ..lowering.builder import PlanBuilder
from ..lowering.kernel import Kernel, choose
from ..lowering.neighbours import Neighbours
from ..lowering.plan import UNUSED, Operand
from ..lowering.planes import Images, block_strides
from ..runtime.traits import DeviceTraits
from . import pooling_means
from .base import Each, OperatorDesc, Output, operator
from .reduce import lower as lower_reduction

WINDOWS = ("pooling", "pooling_wide")
_OF_HALVES = "pooling_planes_halves"
WINNERS_OF_HALVES = f"{_OF_HALVES}.winner"
_WHOLE = 32
"""The average of a whole plane of more elements is a reduction."""
_UNROLLED = 32
_LOCAL_SIZE = 256
_LANES = (1, 4, 16, 64)
"""The invocations of a window, unless they are a workgroup. Few: a shader is compiled for each."""
MOST_ALONG = 7
"""The most elements of a small window along an axis, and its largest stride."""
_MOST_STEPS = 16
"""The most elements from a block of columns to the next one, unless they are read word by word."""
_EXACT_SUM = 1 << 23
"""The most 8-bit numbers whose sum fits an INT32."""


class PoolingWindow(NamedTuple):
    """A description's window, by spatial dimension."""

    sizes: Ints
    strides: Ints
    dilations: Ints
    start: Ints
    end: Ints

    @property
    def reach(self) -> Ints:
        """Elements from the window's first to its last one."""
        return tuple((n - 1) * d + 1 for n, d in zip(self.sizes, self.dilations))


def window_of(desc: OperatorDesc, pooled: TensorDesc | None = None) -> PoolingWindow:
    """The checked window of a description. It slides over InputTensor, or ``pooled``."""
    name, x = desc.operator.name, pooled or desc.input_tensor
    rank = x.dimension_count - 2
    fields = {"Strides": desc.strides, "WindowSize": desc.window_size,
              "StartPadding": desc.start_padding, "EndPadding": desc.end_padding}
    if hasattr(desc, "dilations"):
        fields["Dilations"] = desc.dilations
    for field, values in fields.items():
        expect(len(values) == rank, name, field, f"have {rank} elements, one for each dimension "
               "behind the batch and the channel", list(values))
        least = 0 if field.endswith("Padding") else 1
        for i, n in enumerate(values):
            expect(n >= least, name, f"{field}[{i}]", f"be at least {least}", n)
    result = PoolingWindow(tuple(desc.window_size), tuple(desc.strides),
                    tuple(getattr(desc, "dilations", (1,) * rank)),
                    tuple(desc.start_padding), tuple(desc.end_padding))
    for i, (size, reach) in enumerate(zip(x.sizes[2:], result.reach)):
        padded = size + result.start[i] + result.end[i]
        expect(padded < 1 << 30, name, f"StartPadding[{i}] and EndPadding[{i}]",
               "make a padded size below 2^30", padded)
        if reach > padded:
            refuse(name, f"WindowSize[{i}]",
                   f"reach over {padded} elements at most, the padded size", reach)
        expect(result.strides[i] < 1 << 30, name, f"Strides[{i}]", "be below 2^30",
               result.strides[i])
    expect(product(result.sizes) < 1 << 31, name, "WindowSize", "hold fewer than 2^31 elements",
           list(result.sizes))
    return result


def _output(desc: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    """The outputs. Sizes are rounded down; a larger output tensor rounds them up."""
    x, y, window = desc.input_tensor, desc.output_tensor, window_of(desc)
    sizes = list(x.sizes[:2])
    for i, reach in enumerate(window.reach):
        room = x.sizes[2 + i] + window.start[i] + window.end[i] - reach
        size = room // window.strides[i] + 1
        more = -(-room // window.strides[i]) + 1
        own = y.sizes[2 + i] if y is not None else size
        sizes.append(more if own == more else size)
    described = Output(tuple(sizes), x.data_type)
    if hasattr(desc, "input_scale_tensor"):
        described = described._replace(data_type=None)
    result: dict[str, Output | list[Output]] = {"output_tensor": described}
    if hasattr(desc, "output_indices_tensor"):
        result["output_indices_tensor"] = described._replace(data_type=None)
    return result


def _check_power(desc: OperatorDesc, strict: bool) -> None:
    expect(desc.p >= 1, desc.operator.name, "P", "be at least 1", desc.p)


_SCALARS = ("input_scale_tensor", "input_zero_point_tensor", "output_scale_tensor",
            "output_zero_point_tensor")


def _check_quantized(desc: OperatorDesc, strict: bool) -> None:
    channels = desc.input_tensor.sizes[1]
    for f in desc.operator.spec.inputs[1:]:
        t = getattr(desc, f.snake)
        if t is None or t.element_count == 1:
            continue
        rank = desc.input_tensor.dimension_count
        sizes = pad_left((channels, *(1,) * (rank - 2)), rank, 1)
        expect(t.sizes in (sizes, (channels,)), desc.operator.name, f"{f.name}.Sizes",
               f"have one element, or be {list(sizes)}", list(t.sizes))
    expect(product(desc.window_size) <= _EXACT_SUM, desc.operator.name, "WindowSize",
           f"hold at most {_EXACT_SUM} elements", list(desc.window_size))


def _channel_stride(t: TensorDesc | None) -> int:
    """The stride between the values of channels."""
    if t is None or t.element_count == 1:
        return 0
    return int(max(s for n, s in zip(t.sizes, t.strides) if n > 1))


class _Shape(NamedTuple):
    """Depth, height and width for the shaders."""

    x_sizes: Ints
    x_strides: Ints
    ends: Ints
    window: Ints
    steps: Ints
    dilations: Ints
    paddings: Ints

    @property
    def is_whole(self) -> bool:
        """Whether the first window is the whole plane."""
        return (self.window == self.x_sizes and not any(self.paddings)
                and all(d == 1 or n == 1 for d, n in zip(self.dilations, self.window)))


def _shape(desc: OperatorDesc, y: TensorDesc) -> _Shape:
    x, w = desc.input_tensor, window_of(desc)
    spatial = x.sizes[2:]
    whole = all(
        n == 1 and d == 1 and start + size <= k for n, size, start, k, d in
        zip(y.sizes[2:], spatial, w.start, w.sizes, w.dilations))
    if whole:
        sizes, (strides,) = coalesce(spatial, x.strides[2:])
        if len(sizes) == 1:  # one contiguous row: only the size counts
            count = product(spatial)
            if getattr(desc, "include_padding", 0):
                count = product([min(k, n + s + e) for k, n, s, e in
                                 zip(w.sizes, spatial, w.start, w.end)])
            return _Shape((1, 1, *sizes), (0, 0, *strides), (1, 1, count), (1, 1, count),
                          (1, 1, 1), (1, 1, 1), (0, 0, 0))

    def three(values: Sequence[int], fill: int) -> Ints:
        return pad_left(values, 3, fill)

    return _Shape(
        three(spatial, 1), three(x.strides[2:], 0),
        three([n + e for n, e in zip(spatial, w.end)], 1),
        three(w.sizes, 1), three(w.strides, 1), three(w.dilations, 1), three(w.start, 0))


class Blocks(NamedTuple):
    """What an invocation of a shader of planes computes, and how it reads."""

    layout: str
    rows: int
    columns: int
    lanes: int = 1
    """Channels."""
    words: int = 1
    """Words of a chunk, if channels come first."""
    phase: int = 0
    """Where the first window of a block begins in its chunk."""
    shader: str = "pooling_planes"


def _chunks(x: TensorDesc, y: TensorDesc, step: int, least: int) -> tuple[int, int] | None:
    """The words of a chunk and the columns of a block, at least ``least``: the most that divide
    rows."""
    if x.strides[3] != 1 or y.strides[3] != 1:
        return None
    per_word = 4 // x.data_type.itemsize
    for words in (4, 2, 1):
        chunk = words * per_word
        if any(n % chunk for n in (*x.strides[:3], x.sizes[3])):
            continue
        columns = max(chunk // math.gcd(chunk, step), least)
        if (columns * step <= _MOST_STEPS or words == 1) and not any(
                n % columns for n in (*y.strides[:3], y.sizes[3])):
            return words, columns
    return None


def blocks_of(op: str, d: OperatorDesc, traits: DeviceTraits, y: TensorDesc, halves: bool
              ) -> Blocks | None:
    """The blocks of pooling_planes.comp, if it can compute ``y``: an output, or (``op`` is winner)
    bytes that say which element of each window is the largest. ``halves``: those of
    pooling_planes_halves.comp, where it can."""
    x, shape = d.input_tensor, _shape(d, y)
    each = 16 // x.data_type.itemsize
    if (x.dimension_count != 4 or x.data_type not in (DataType.FLOAT16, DataType.FLOAT32)
            or max(shape.window) > MOST_ALONG or max(shape.steps) > MOST_ALONG
            or shape.dilations != (1, 1, 1) or not (x.is_aligned and y.is_aligned)
            or len(shape.x_sizes) != 3 or shape.x_sizes[1:] != x.sizes[2:]
            # Comparisons of floats must distinguish denormals, and sums keep NaN.
            or not (op == "average" or traits.exact_units)):
        return None
    overlapping = any(k > s for k, s in zip(shape.window, shape.steps))
    # As measured on an H200: small blocks, as neighbours find in the cache what they share.
    if all(t.sizes[1] % each == 0 and begin_with_vectors(each, t.strides, 1) for t in (x, y)):
        rows, columns = (2, 1 if each == 4 else 2) if overlapping else (1, 1)
        return Blocks("last", rows, columns, each)
    chunks = _chunks(x, y, shape.steps[2], 4 if op == "winner" else each // 4)
    if chunks is None:
        return None
    words, columns = chunks
    phase = -shape.paddings[2] % (words * each // 4)
    if each == 8 and halves:
        return Blocks("first", 1, columns, 1, words, phase, _OF_HALVES)
    return Blocks("first", 2 if each == 8 and overlapping else 1, columns, 1, words, phase)


def planes(
    op: str, d: OperatorDesc, p: PlanBuilder, y: TensorDesc, target: Operand, blocks: Blocks
) -> None:
    """Add the dispatch of the blocks' shader that stores ``y`` in ``target``."""
    x, shape = d.input_tensor, _shape(d, y)
    channels = x.sizes[1] // blocks.lanes
    count = -(-y.sizes[2] // blocks.rows) * -(-y.sizes[3] // blocks.columns)
    variant, more = f"{blocks.shader}.{op}", {}
    if blocks.shader != _OF_HALVES:
        variant, more = f"{variant}.{blocks.layout}", {"TYPE": x.data_type.code}
    p.dispatch(
        variant, -(-x.sizes[0] * channels * count // _LOCAL_SIZE),
        x=p.read("input_tensor"), y=target,
        push={"batches": x.sizes[0], "channels": channels, "x_sizes": x.sizes[2:],
              "y_sizes": y.sizes[2:], "padding": shape.paddings[1:],
              "padded_ends": shape.ends[1:],
              "x_strides": block_strides(x, blocks.lanes),
              "y_strides": block_strides(y, blocks.lanes)},
        spec={"LOCAL_SIZE": _LOCAL_SIZE, "WINDOW_Y": shape.window[1],
              "WINDOW_X": shape.window[2], "STRIDE_Y": shape.steps[1],
              "STRIDE_X": shape.steps[2], "PHASE": blocks.phase, "COLUMNS": blocks.columns,
              "ROWS": blocks.rows, "WORDS": blocks.words,
              "INCLUDE_PADDING": bool(getattr(d, "include_padding", 0)), **more})


@dataclass(frozen=True)
class _Pooling(Images):
    """Pooling: ``op`` of each window."""

    op: str = ""

    @functools.cached_property
    def shape(self) -> _Shape:
        return _shape(self.desc, self.y)

    @functools.cached_property
    def is_global(self) -> bool:
        """Whether it is the average of many elements, of all in a plane."""
        return (self.op == "average" and _taps(self.shape) > _WHOLE and self.shape.is_whole
                and self.y.element_count == product(self.y.sizes[:2]))

    @property
    def indices(self) -> TensorDesc | None:
        return getattr(self.desc, "output_indices_tensor", None)


class _Whole(Kernel[_Pooling]):
    """A reduction of whole planes."""

    name = "reduction"

    def serves(self, problem: _Pooling, traits: DeviceTraits) -> str | None:
        return None if problem.is_global else f"no averages of whole planes above {_WHOLE} elements"

    def estimate(self, problem: _Pooling, traits: DeviceTraits) -> float:
        return 3.0 if traits.is_cpu else -1.0

    def lower(self, problem: _Pooling, p: PlanBuilder) -> None:
        lower_reduction(p, problem.desc, tuple(range(2, problem.y.dimension_count)),
                        ReduceFunction.AVERAGE)


class _Means(_Whole):
    """The same, of whole vectors."""

    name = "means"

    def serves(self, problem: _Pooling, traits: DeviceTraits) -> str | None:
        return super().serves(problem, traits) or pooling_means.declined(problem.desc)

    def estimate(self, problem: _Pooling, traits: DeviceTraits) -> float:
        return 4.0 if traits.is_cpu else -2.0

    def lower(self, problem: _Pooling, p: PlanBuilder) -> None:
        pooling_means.lower(p, problem.desc)


@dataclass(frozen=True)
class _PlanesOfPooling(Kernel[_Pooling]):
    """Small windows over planes of vectors. Which are the fastest except on a CPU."""

    name: str
    halves: bool

    def shader(self, problem: _Pooling) -> str:
        return f"{_OF_HALVES}.{problem.op}" if self.halves else ""

    def serves(self, problem: _Pooling, traits: DeviceTraits) -> str | None:
        if problem.op not in ("average", "max") or problem.indices is not None:
            return "neither averages nor maxima alone"
        if _taps(problem.shape) > _many(traits):
            return "windows are too large"
        blocks = self._blocks(problem, traits)
        if blocks is None:
            return "not small windows over aligned planes of vectors of floats"
        return "not rows of FLOAT16" if self.halves and blocks.shader != _OF_HALVES else None

    def _blocks(self, problem: _Pooling, traits: DeviceTraits) -> Blocks | None:
        return blocks_of(problem.op, problem.desc, traits, problem.y, self.halves)

    def estimate(self, problem: _Pooling, traits: DeviceTraits) -> float:
        return (2.0 if traits.is_cpu else 0.0) - 0.1 * self.halves

    def lower(self, problem: _Pooling, p: PlanBuilder) -> None:
        blocks = self._blocks(problem, p.device)
        assert blocks is not None
        planes(problem.op, problem.desc, p, problem.y, p.write("output_tensor"), blocks)


class _AnyWindows(Kernel[_Pooling]):
    """Windows of any layout."""

    name = "general"
    cost = 1.0

    def lower(self, problem: _Pooling, p: PlanBuilder) -> None:
        indices = problem.indices
        _windows(problem.op, problem.desc, p, problem.y, p.write("output_tensor"), indices,
                 UNUSED if indices is None else p.write("output_indices_tensor"))


KERNELS: tuple[Kernel[_Pooling], ...] = (
    _Means(), _Whole(), _PlanesOfPooling("planes-halves", True), _PlanesOfPooling("planes", False),
    _AnyWindows())


def _pool(op: str, d: OperatorDesc, p: PlanBuilder) -> None:
    problem = _Pooling(d, "pooling", d.output_tensor, op)
    choose(KERNELS, problem, p).lower(problem, p)


def winners(d: OperatorDesc, p: PlanBuilder, windows: TensorDesc, target: Operand) -> None:
    """Add the dispatch that stores the number of the largest element of each window of InputTensor,
    counted over all elements. ``windows`` has their numbers and their layout in ``target``."""
    _windows("max", d, p, windows, UNUSED, windows, target)


def _many(traits: DeviceTraits) -> int:
    """Several invocations share a window from so many elements on."""
    return measured.count(traits, "pooling", "shared_window")


def _taps(shape: _Shape) -> int:
    """The most elements of a window."""
    return product([min(k, n) for k, n in zip(shape.window, shape.x_sizes)])


def _windows(op: str, d: OperatorDesc, p: PlanBuilder, y: TensorDesc, target: Operand,
             indices: TensorDesc | None, made_indices: Operand) -> None:
    """Add the dispatch that reduces each window of any layout."""
    x, shape = d.input_tensor, _shape(d, y)
    taps = _taps(shape)
    wide = taps > _many(p.device)
    most = p.device.max_loop_passes * _LOCAL_SIZE
    if taps > most:
        raise UnsupportedError(f"{d.operator.name}: a window over {taps} elements: more than "
                               f"{most} are not supported on this device")
    rank, near = y.dimension_count, Neighbours(y, p.device)
    inner, along_width = near.inner, near.along_width
    if (wide or not (along_width or (near.share_windows(x) and indices is None))
            or (indices is not None and indices.strides[inner] != 1)
            or (op == "quantized" and inner == 0)):
        near.each = 1
    each = near.each
    outer = [product(x.sizes[1:]), product(x.sizes[2:])] if op == "max" else [0, 1]
    columns = [y.strides, (*x.strides[:2], *(0,) * (rank - 2)), (*outer, *(0,) * (rank - 2))]
    columns += [tuple(int(i == rank - 3 + axis and i > 1) for i in range(rank))
                for axis in range(3)]
    columns.append(indices.strides if indices is not None else (0,) * rank)
    walk = near.walk(*columns)

    operands = {"x": p.read("input_tensor"), "y": target}
    words = list(walk.words)
    spec: dict[str, int] = {}
    if op == "quantized":
        operands |= dict(zip(("x_scale", "x_zero", "y_scale", "y_zero"), map(p.read, _SCALARS)))
        words += [_channel_stride(getattr(d, s)) for s in _SCALARS]
        spec = {"HAS_X_ZERO": d.input_zero_point_tensor is not None,
                "HAS_Y_ZERO": d.output_zero_point_tensor is not None}
    else:
        operands["indices"] = made_indices
        if op == "max":
            spec = {"INDICES": indices is not None, "VALUES": target is not UNUSED,
                    "WIDE_INDICES": indices is not None and indices.data_type.itemsize == 8}
        elif op == "lp":
            spec = {"POWER": d.p}
    spec |= {
        "TYPE": x.data_type.code,
        "OUT_TYPE": y.data_type.code if target is not UNUSED else x.data_type.code,
        "INCLUDE_PADDING": bool(getattr(d, "include_padding", 0)),
        "DILATED": any(n != 1 for n in shape.dilations), "STEP_W": shape.steps[2],
    }
    unrolled = False
    if wide:
        per_lane = 4 * max(1, 16 // x.data_type.itemsize)
        side_by_side = not along_width and x.strides[inner] == 1
        lanes = next((n for n in _LANES if n * per_lane >= taps), _LOCAL_SIZE)
        lanes = min(lanes, 8) if side_by_side else lanes
        lanes = _LOCAL_SIZE if p.device.is_cpu else lanes
        groups = -(-walk.count * lanes // _LOCAL_SIZE)
        spec |= {"LOCAL_SIZE": _LOCAL_SIZE, "SIDE_BY_SIDE": side_by_side,
                 "CONTIGUOUS": shape.x_sizes[:2] == (1, 1) and shape.x_strides[2] == 1
                 and not spec["DILATED"]}
    else:
        local_size = p.device.local_size
        groups = -(-walk.count // local_size)
        # A window that is the whole plane would be compiled for each size of images.
        unrolled = not shape.is_whole and (
            product(shape.window) * each <= (_UNROLLED if along_width else 128)
            or product(shape.window) <= 9)
        spec |= {
            "LOCAL_SIZE": local_size, "EACH": each, "ALONG_WIDTH": along_width,
            "UNROLLED": unrolled,
            "VECTORS": not along_width and near.are_vectors(x),
        }
    push: dict[str, int | Ints] = {
        "count": walk.count, "in_sizes": shape.x_sizes, "padded_ends": shape.ends,
        "steps": shape.steps, "dilations": shape.dilations, "paddings": shape.paddings,
        "x_strides": shape.x_strides, "windows": shape.window}
    if wide:
        push["lane_bits"] = lanes.bit_length() - 1
    window = shape.window if unrolled else (1, 1, 1)
    spec |= dict(zip(("WINDOW_D", "WINDOW_H", "WINDOW_W"), window))
    spec["IEEE_UNITS"] = p.device.ieee_units
    p.dispatch(f"{'pooling_wide' if wide else 'pooling'}.{op}", groups, params=words, push=push,
               spec=spec, **operands)  # type: ignore[arg-type]


def _pooling(name: str, op: str, **more: object) -> Any:
    def build(d: OperatorDesc, p: PlanBuilder) -> None:
        _pool(op, d, p)

    ones, zeros = Each(1, outer=2), Each(0, outer=2)
    defaults: dict[str, Any] = dict(
        window_size=Each(outer=2), strides=ones, start_padding=zeros, end_padding=zeros)
    if (name.endswith(("POOLING1", "POOLING2")) and name != "MAX_POOLING1") or op == "quantized":
        defaults["dilations"] = ones
    if name in ("MAX_POOLING1", "MAX_POOLING2"):
        defaults["data_type"] = "uint32"  # of the indices
    shaders = {
        "average": (*WINDOWS, "pooling_planes", _OF_HALVES, pooling_means.SHADER, "reduction"),
        "max": (*WINDOWS, "pooling_planes", _OF_HALVES)}.get(op, WINDOWS)
    return operator(name, output=_output, shaders=shaders, **defaults, **more)(build)


AveragePoolingOperatorDesc = _pooling("AVERAGE_POOLING", "average", include_padding=0)
AveragePooling1OperatorDesc = _pooling("AVERAGE_POOLING1", "average", include_padding=0)
LpPoolingOperatorDesc = _pooling("LP_POOLING", "lp", check=_check_power, p=2)
LpPooling1OperatorDesc = _pooling("LP_POOLING1", "lp", check=_check_power, p=2)
MaxPoolingOperatorDesc = _pooling("MAX_POOLING", "max")
MaxPooling1OperatorDesc = _pooling("MAX_POOLING1", "max")
MaxPooling2OperatorDesc = _pooling("MAX_POOLING2", "max")
QuantizedLinearAveragePoolingOperatorDesc = _pooling(
    "QUANTIZED_LINEAR_AVERAGE_POOLING", "quantized", check=_check_quantized, include_padding=0,
    data_type="uint8")
