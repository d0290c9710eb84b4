"""Gradients of pooling. Each element sums the gradients of the windows that it counts in, in their
order."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import expect
from ..layout import Ints, begin_with_vectors, packed_strides, pad_left
from ..lowering import measured
from ..lowering.builder import PlanBuilder
from ..lowering.kernel import Kernel, choose
from ..lowering.neighbours import Neighbours
from ..lowering.plan import UNUSED
from ..lowering.planes import General, Images, Planes, block_strides
from ..runtime.traits import DeviceTraits
from .base import OperatorDesc, like, operator
from .gradients import refuse_long_sums
from .pooling import (
    MOST_ALONG,
    WINDOWS,
    WINNERS_OF_HALVES,
    Blocks,
    PoolingWindow,
    blocks_of,
    planes,
    window_of,
    winners,
)

_HALVES = "pooling_grad_planes_halves"
_PAIRS = "pooling_grad_pairs"
"""The shader for windows of 3 x 3 that move by 2."""
_MOST_IN_ONE_PASS = 3
"""The most elements along an axis of a window whose gradients take one pass."""
_STRIP_ROWS = 16
"""The rows that an invocation goes down then."""
_PAIRS_ROWS = 8, 28
"""The fewest and the most rows of an invocation of ``_PAIRS``."""
_PAIRS_COLUMNS = {"first": 8, "last": 4}
_PAIRS_GROUPS = {"first": 2, "last": 14}
"""The workgroups that they form."""
_LOCAL_SIZE = 256
_TALL = 2
_MOST_STRIDE = 4
"""The largest stride of a window in pooling_grad_planes.comp."""


def _pooling_window(d: OperatorDesc) -> PoolingWindow:
    """The checked window. The incoming gradient must have the sizes of the pooling's output."""
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


def _check_pooling(d: OperatorDesc, strict: bool) -> None:
    _pooling_window(d)


def _packed_like(t: TensorDesc) -> Ints:
    """The strides of a packed tensor whose dimensions have the order of ``t`` in memory."""
    order = sorted(range(t.dimension_count), key=lambda i: (t.sizes[i] > 1, -t.strides[i]))
    steps = packed_strides([t.sizes[i] for i in order])
    return tuple(steps[order.index(i)] for i in range(t.dimension_count))


def _first_windows(window: PoolingWindow) -> tuple[list[int], list[int]]:
    """By axis, the first window that reaches into element 0, and how many elements before it that
    window begins."""
    firsts = [-(-(start - k + 1) // s) for start, k, s in zip(
        window.start, window.sizes, window.strides)]
    return firsts, [start - first * s for start, first, s in zip(
        window.start, firsts, window.strides)]


def _is_faster(window: PoolingWindow, layout: str, traits: DeviceTraits) -> bool:
    """Whether one pass of ``_HALVES`` takes less time than two passes."""
    return max(window.strides) <= measured.figure(traits, _HALVES, f"stride_{layout}")


def _blocks_of_pairs(
    p: PlanBuilder, dx: TensorDesc, layout: str, channels: int
) -> tuple[int, int, int]:
    """The rows and columns of an invocation of ``_PAIRS``, and the invocations of a workgroup.
    Strips are alike, and so many that no core is idle. Then rounds of workgroups are alike."""
    least, most = _PAIRS_ROWS
    height, columns = dx.sizes[2], _PAIRS_COLUMNS[layout]
    blocks = dx.sizes[0] * channels * -(-dx.sizes[3] // columns)
    at_once = measured.count(p.device, _PAIRS, "at_once")  # invocations of a core
    busy = at_once * p.device.cores // blocks
    strips = max(-(-height // most), min(busy, -(-height // least)))
    rows = 2 * -(-height // (2 * strips))
    invocations, groups = blocks * -(-height // rows), _PAIRS_GROUPS[layout]
    largest = min(at_once // groups, p.device.max_invocations)
    places = groups * p.device.cores
    places *= -(-invocations // (places * largest))
    return rows, columns, min(64 * -(-invocations // (64 * places)), largest)


@dataclass(frozen=True)
class _Gradient(Images):
    """A gradient of pooling: ``y`` is the gradient of what was pooled."""

    maximum: bool = False

    @functools.cached_property
    def window(self) -> PoolingWindow:
        return _pooling_window(self.desc)

    @functools.cached_property
    def planes(self) -> _PoolingGradientBlocks | None:
        """How kernels of planes divide it, if they can."""
        return _layout_of(self.desc, self.window, self.maximum)

    @property
    def winners(self) -> TensorDesc:
        """Bytes that say which element of each window is the largest."""
        dy = self.desc.input_gradient_tensor
        return TensorDesc(DataType.UINT8, dy.sizes, _packed_like(dy))


class _PoolingGradientBlocks(NamedTuple):
    name: str
    rows: int
    columns: int
    """Of an invocation."""
    lanes: int
    chunk: int
    per_word: int


def _layout_of(
    d: OperatorDesc, window: PoolingWindow, maximum: bool
) -> _PoolingGradientBlocks | None:
    dx, dy = d.output_gradient_tensor, d.input_gradient_tensor
    each = 16 // dx.data_type.itemsize
    if (len(window.sizes) != 2
            or dx.dimension_count != 4 or dx.data_type not in (DataType.FLOAT16, DataType.FLOAT32)
            or max(window.sizes) > MOST_ALONG or max(window.strides) > _MOST_STRIDE
            or set(window.dilations) != {1} or not (dx.is_aligned and dy.is_aligned)):
        return None
    rows, columns = window.strides
    lanes, per_word = 1, each // 4
    chunk = each // columns
    if all(t.sizes[1] % each == 0 and begin_with_vectors(each, t.strides, 1) for t in (dx, dy)):
        layout, lanes, chunk = "last", each, per_word
    elif (each % columns == 0 and dx.sizes[3] % each == 0
          and begin_with_vectors(each, dx.strides, 3) and dy.strides[3] == 1):
        layout, columns = "first", each
        while chunk % per_word == 0 and any(n % chunk for n in (*dy.strides[:3], dy.sizes[3])):
            chunk //= 2
        if maximum or each == 8:  # as measured on an H200
            rows *= _TALL
    else:
        return None
    return None if chunk % per_word else _PoolingGradientBlocks(
        layout, rows, columns, lanes, chunk, per_word)


class _OnePass(Planes):
    """Finds the largest elements of FLOAT16 and sums their gradients in one pass."""

    name = "one-pass"

    def shader(self, problem: Images) -> str:
        assert isinstance(problem, _Gradient) and problem.planes is not None
        return f"{self._file(problem)}.{problem.planes.name}"

    def _file(self, problem: _Gradient) -> str:
        return _PAIRS if self._is_of_pairs(problem.window) else _HALVES

    def _is_of_pairs(self, window: PoolingWindow) -> bool:
        return tuple(window.sizes) == (3, 3) and tuple(window.strides) == (2, 2)

    def serves(self, problem: Images, traits: DeviceTraits) -> str | None:
        assert isinstance(problem, _Gradient)
        window, planes_ = problem.window, problem.planes
        if not problem.maximum or problem.y.data_type is not DataType.FLOAT16:
            return "no maxima of FLOAT16"
        if planes_ is None:
            return "not small windows over aligned planes of vectors"
        if not traits.exact_units:
            return "comparisons of FLOAT16 may not be exact"
        if not problem.desc.input_tensor.is_aligned or max(window.sizes) > _MOST_IN_ONE_PASS or any(
                s > n for s, n in zip(window.strides, window.sizes)):
            return "windows are too large or apart, or the input is not aligned"
        if not (self._is_of_pairs(window) or _is_faster(window, planes_.name, traits)):
            return "two passes were measured to be faster"
        return None if _one_pass_blocks(problem.desc, window, planes_.name) else (
            "rows or channels are no words of two")

    def estimate(self, problem: Images, traits: DeviceTraits) -> float:
        return super().estimate(problem, traits) - 0.1

    def lower(self, problem: Images, p: PlanBuilder) -> None:
        assert isinstance(problem, _Gradient) and problem.planes is not None
        d, window, layout = problem.desc, problem.window, problem.planes.name
        x, dy, dx = d.input_tensor, d.input_gradient_tensor, d.output_gradient_tensor
        pairs, name = self._is_of_pairs(window), self._file(problem)
        blocks = _one_pass_blocks(d, window, layout)
        assert blocks is not None
        rows, columns, lanes, chunk = blocks
        firsts, leads = _first_windows(window)
        channels = dx.sizes[1] // lanes
        local_size = _LOCAL_SIZE
        if pairs:
            rows, columns, local_size = _blocks_of_pairs(p, dx, layout, channels)
        count = -(-dx.sizes[2] // rows) * -(-dx.sizes[3] // columns)
        spec = {"LOCAL_SIZE": local_size, "ROWS": rows, "COLUMNS": columns, "LEAD_Y": leads[0],
                "LEAD_X": leads[1], "WORDS": max(chunk // 2, 1), "PHASE": firsts[1] % chunk}
        if not pairs:
            spec.update(WINDOW_Y=window.sizes[0], WINDOW_X=window.sizes[1],
                        STRIDE_Y=window.strides[0], STRIDE_X=window.strides[1],
                        COUNT_X=(columns - 1 + leads[1]) // window.strides[1] + 1)
        p.dispatch(
            f"{name}.{layout}", -(-dx.sizes[0] * channels * count // local_size),
            x=p.read("input_tensor"), dy=p.read("input_gradient_tensor"),
            dx=p.write("output_gradient_tensor"),
            push={"batches": dx.sizes[0], "channels": channels, "x_sizes": dx.sizes[2:],
                  "y_sizes": dy.sizes[2:], "first": firsts, "x_strides": block_strides(x, lanes),
                  "dy_strides": block_strides(dy, lanes), "dx_strides": block_strides(dx, lanes)},
            spec=spec)


def _one_pass_blocks(
    d: OperatorDesc, window: PoolingWindow, layout: str
) -> tuple[int, int, int, int] | None:
    """The rows and columns of an invocation, its channels, and the elements of a chunk."""
    x, dy = d.input_tensor, d.input_gradient_tensor
    rows = max(_STRIP_ROWS // window.strides[0], 1) * window.strides[0]
    if layout == "last":
        columns = max(4 // window.strides[1], 1) * window.strides[1]
        return (rows, columns, 2, 1) if begin_with_vectors(2, x.strides, 1) else None
    if not begin_with_vectors(8, x.strides, 3):
        return None
    chunk = 8 // window.strides[1]
    while chunk % 2 == 0 and any(n % chunk for n in (*dy.strides[:3], dy.sizes[3])):
        chunk //= 2
    return None if chunk % 2 else (rows, 8, 1, chunk)


@dataclass(frozen=True)
class _PlanesOfPoolingGradient(Planes):
    """Small windows over planes of floats."""

    name: str = "planes"
    halves: bool = False
    """Whether FLOAT16 is compared in words."""

    def shader(self, problem: Images) -> str:
        assert isinstance(problem, _Gradient)
        return WINNERS_OF_HALVES if self.halves and problem.maximum else ""

    def serves(self, problem: Images, traits: DeviceTraits) -> str | None:
        assert isinstance(problem, _Gradient)
        if problem.planes is None:
            return "not small windows over aligned planes of vectors"
        if not problem.maximum:
            return "it compares nothing" if self.halves else None
        blocks = self._blocks(problem, traits)
        if blocks is None or blocks.layout != problem.planes.name:
            return "the shader of largest elements cannot read the input"
        return None if not self.halves or blocks.shader.endswith("halves") else "no FLOAT16"

    def _blocks(self, problem: _Gradient, traits: DeviceTraits) -> Blocks | None:
        return blocks_of("winner", problem.desc, traits, problem.winners, self.halves)

    def estimate(self, problem: Images, traits: DeviceTraits) -> float:
        return super().estimate(problem, traits) - 0.01 * self.halves

    def lower(self, problem: Images, p: PlanBuilder) -> None:
        assert isinstance(problem, _Gradient) and problem.planes is not None
        d, dx, window, maximum = problem.desc, problem.y, problem.window, problem.maximum
        dy, winners, op = d.input_gradient_tensor, problem.winners, "max" if maximum else "average"
        layout, rows, columns, lanes, chunk, per_word = problem.planes
        firsts, leads = _first_windows(window)
        counts = [(n - 1 + lead) // s + 1 for n, lead, s in zip(
            (rows, columns), leads, window.strides)]
        blocks = self._blocks(problem, p.device) if maximum else None
        winner_operand = UNUSED
        if blocks is not None:
            stored = p.temporary(1, winners.element_count)
            planes("winner", d, p, winners, stored, blocks)
            winner_operand = stored.reading()
        channels = dx.sizes[1] // lanes
        count = -(-dx.sizes[2] // rows) * -(-dx.sizes[3] // columns)
        p.dispatch(
            f"pooling_grad_planes.{op}.{layout}", -(-dx.sizes[0] * channels * count // _LOCAL_SIZE),
            dy=p.read("input_gradient_tensor"), winners=winner_operand,
            dx=p.write("output_gradient_tensor"),
            push={"batches": dx.sizes[0], "channels": channels, "x_sizes": dx.sizes[2:],
                  "y_sizes": dy.sizes[2:],
                  "padded_ends": [n + e for n, e in zip(dx.sizes[2:], window.end)],
                  "first": firsts, "padding": window.start,
                  "dy_strides": block_strides(dy, lanes), "dx_strides": block_strides(dx, lanes),
                  "winners_strides": block_strides(winners, lanes)},
            spec={"LOCAL_SIZE": _LOCAL_SIZE, "TYPE": dx.data_type.code, "WINDOW_Y": window.sizes[0],
                  "WINDOW_X": window.sizes[1], "STRIDE_Y": window.strides[0],
                  "STRIDE_X": window.strides[1], "ROWS": rows, "COLUMNS": columns,
                  "LEAD_Y": leads[0], "LEAD_X": leads[1], "COUNT_Y": counts[0],
                  "COUNT_X": counts[1], "WORDS": chunk // per_word, "PHASE": firsts[1] % chunk,
                  "INCLUDE_PADDING": not maximum and bool(d.include_padding)})


class _AnyPoolingGradient(General):
    def lower(self, problem: Images, p: PlanBuilder) -> None:
        assert isinstance(problem, _Gradient)
        d, dx, window, maximum = problem.desc, problem.y, problem.window, problem.maximum
        dy = d.input_gradient_tensor
        rank = dx.dimension_count
        refuse_long_sums(d, p, [min(-(-k // s), n) for k, s, n in
                       zip(window.reach, window.strides, dy.sizes[2:])])
        near = Neighbours(dx, p.device)
        if not (near.along_width or near.share_windows(dy)):
            near.each = 1
        stored, strides = UNUSED, (0,) * rank
        if maximum:
            steps = packed_strides([dy.sizes[i] for i in near.order])
            strides = tuple(steps[near.order.index(i)] for i in range(rank))
            stored = p.temporary(4, dy.element_count)
            winners(d, p, TensorDesc(DataType.UINT32, dy.sizes, strides), stored)

        def three(values: Sequence[int], fill: int) -> Ints:
            return pad_left(values, 3, fill)

        def by_plane(strides: Ints) -> Ints:
            return (*strides[:2], *(0,) * (rank - 2))

        units = [tuple(int(i > 1 and i == rank - 3 + a) for i in range(rank)) for a in range(3)]
        numbers = packed_strides(dx.sizes)
        walk = near.walk(dx.strides, by_plane(dy.strides), by_plane(strides), *units, numbers)
        reach, steps = three(window.reach, 1), three(window.strides, 1)
        local_size = p.device.local_size
        p.dispatch(
            f"pooling_grad.{'max' if maximum else 'average'}", -(-walk.count // local_size),
            dy=p.read("input_gradient_tensor"), winners=stored.reading() if maximum else UNUSED,
            dx=p.write("output_gradient_tensor"), params=walk.words,
            push={"count": walk.count, "x_sizes": three(dx.sizes[2:], 1),
                  "y_sizes": three(dy.sizes[2:], 1), "paddings": three(window.start, 0),
                  "ends": three([n + e for n, e in zip(dx.sizes[2:], window.end)], 1),
                  "dy_strides": three(dy.strides[2:], 0), "winners_strides": three(strides[2:], 0),
                  "number_step": numbers[near.inner]},
            spec={"LOCAL_SIZE": local_size, "TYPE": dx.data_type.code, "EACH": near.each,
                  "INCLUDE_PADDING": not maximum and bool(d.include_padding),
                  "ALONG_WIDTH": near.along_width, "VECTORS": near.are_vectors(dy)
                  and not near.along_width,
                  **dict(zip(("REACH_D", "REACH_H", "REACH_W"), reach)),
                  **dict(zip(("STEP_D", "STEP_H", "STEP_W"), steps))})


KERNELS: tuple[Kernel[Images], ...] = (
    _OnePass(), _PlanesOfPoolingGradient("planes-halves", True), _PlanesOfPoolingGradient(),
    _AnyPoolingGradient())


def _pooling(p: PlanBuilder, d: OperatorDesc, maximum: bool) -> None:
    kind = f"pooling_grad {'max' if maximum else 'average'}"
    problem = _Gradient(d, kind, d.output_gradient_tensor, maximum)
    choose(KERNELS, problem, p).lower(problem, p)


@operator("AVERAGE_POOLING_GRAD", shaders=("pooling_grad", "pooling_grad_planes"),
          check=_check_pooling, include_padding=0)
def AveragePoolingGradOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _pooling(p, d, False)


@operator("MAX_POOLING_GRAD", output=like("input_tensor"),
          shaders=("pooling_grad", "pooling_grad_planes", "pooling_planes", _HALVES, _PAIRS,
                   *WINDOWS),
          check=_check_pooling)
def MaxPoolingGradOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _pooling(p, d, True)
