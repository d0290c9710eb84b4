"""Operators that move elements: slices, joins, padding, tiles and the like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..attributes import DepthSpaceOrder, PaddingMode
from ..desc import TensorDesc
from ..dtypes import Scalar, saturate
from ..errors import expect
from ..layout import Ints, are_of_vectors, power_of_two
from ..lowering import copy
from ..lowering.builder import PlanBuilder
from ..lowering.copy import CopyView, copied
from ..lowering.indexed import Runs
from ..lowering.kernel import Kernel, choose
from ..lowering.walk import Walk, of_vectors
from ..runtime.traits import DeviceTraits
from ..spec import FeatureLevel, snake_case
from ..tuning import work_key
from .base import Infer, OperatorDesc, Output, axis_in, operator
from .elementwise import check_attributes
from .padding import Padding, pad, tile


def _for_each_dimension(desc: OperatorDesc, *fields: str) -> None:
    """Raise unless arrays have an entry for each dimension of the input."""
    source = desc.operator.spec.inputs[0]
    rank = getattr(desc, source.snake).dimension_count
    for f in desc.operator.spec.fields:
        if f.snake in fields:
            got = getattr(desc, f.snake)
            expect(len(got) == rank, desc.operator.name, f.name,
                   f"have {rank} entries ({source.name} has {rank} dimensions)", list(got))


# Slices


def _slice_sizes(d: OperatorDesc) -> dict[str, Output | list[Output]]:
    name, x = d.operator.name, d.input_tensor
    _for_each_dimension(d, "offsets", "sizes", "strides")
    for i, (n, offset, size, stride) in enumerate(zip(x.sizes, d.offsets, d.sizes, d.strides)):
        expect(size > 0, name, f"Sizes[{i}]", "be above 0", size)
        expect(stride > 0, name, f"Strides[{i}]", "be above 0", stride)
        last = offset + stride * (size - 1)
        expect(last < n, name, f"Offsets[{i}] + Strides[{i}] * (Sizes[{i}] - 1)",
               f"be below InputTensor.Sizes[{i}] = {n}", last)
    return {"output_tensor": Output(d.sizes, x.data_type)}


@operator("SLICE", output=_slice_sizes, shaders=copy.SHADERS, in_place=False)
def SliceOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    p.add(copied(p, d.output_tensor.sizes,
                 _slice("input_tensor", d.input_tensor, d.offsets, d.strides),
                 CopyView.whole("output_tensor", d.output_tensor)))


def slice1_sizes(d: OperatorDesc, whole: str = "InputTensor") -> Ints:
    """The largest output sizes for the windows of ``whole`` and their strides. Raises if a window
    is not inside."""
    name, x = d.operator.name, getattr(d, snake_case(whole))
    offsets, windows, strides = (
        d.input_window_offsets, d.input_window_sizes, d.input_window_strides)
    _for_each_dimension(
        d, "input_window_offsets", "input_window_sizes", "input_window_strides")
    for i, (n, offset, window, stride) in enumerate(zip(x.sizes, offsets, windows, strides)):
        expect(window > 0, name, f"InputWindowSizes[{i}]", "be above 0", window)
        expect(stride != 0, name, f"InputWindowStrides[{i}]", "not be 0", stride)
        expect(offset + window <= n, name, f"InputWindowOffsets[{i}] + InputWindowSizes[{i}]",
               f"be at most {whole}.Sizes[{i}] = {n}", offset + window)
    return tuple(1 + (window - 1) // abs(stride) for window, stride in zip(windows, strides))


def _check_slice1(d: OperatorDesc, strict: bool) -> None:
    most = slice1_sizes(d)
    for i, (n, m) in enumerate(zip(d.output_tensor.sizes, most)):
        expect(n <= m, d.operator.name, f"OutputTensor.Sizes[{i}]",
               f"be at most {m} (what the window and its stride make)", n)


@operator("SLICE1", shaders=copy.SHADERS, check=_check_slice1, in_place=False)
def Slice1OperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    p.add(copied(p, d.output_tensor.sizes, slice1_view(d, "input_tensor"),
                 CopyView.whole("output_tensor", d.output_tensor)))


def slice1_view(d: OperatorDesc, whole: str) -> CopyView:
    """The elements of tensor ``whole`` that the windows and their strides select."""
    return _slice(whole, getattr(d, whole), slice1_begins(d), d.input_window_strides)


def slice1_begins(d: OperatorDesc) -> Ints:
    """The coordinates of the first element that the windows and their strides select."""
    return tuple(offset + (window - 1 if stride < 0 else 0) for offset, window, stride in
                 zip(d.input_window_offsets, d.input_window_sizes, d.input_window_strides))


def _slice(slot: str, t: TensorDesc, begins: Sequence[int], steps: Sequence[int]) -> CopyView:
    strides = tuple(a * b for a, b in zip(t.strides, steps))
    return CopyView(slot, t, strides, sum(a * b for a, b in zip(t.strides, begins)))


# Padding


def _padded(d: OperatorDesc) -> dict[str, Output | list[Output]]:
    x = d.input_tensor
    _for_each_dimension(d, "start_padding", "end_padding")
    sizes = tuple(map(sum, zip(x.sizes, d.start_padding, d.end_padding)))
    return {"output_tensor": Output(sizes, x.data_type)}


def _newer_padding(d: OperatorDesc) -> Iterator[tuple[FeatureLevel, str, str, Any]]:
    mode = PaddingMode(d.padding_mode)
    since = {
        PaddingMode.SYMMETRIC: FeatureLevel.FL_3_0, PaddingMode.WRAP: FeatureLevel.FL_6_4}.get(mode)
    if since is not None:
        yield since, "PaddingMode", "be an older mode", mode.name


@operator("PADDING", output=_padded, shaders=("padding", "padding_staged"),
          newer=_newer_padding, in_place=False, padding_mode=PaddingMode.CONSTANT,
          padding_value=0.0)
def PaddingOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    value = saturate(d.padding_value, d.output_tensor.data_type)
    pad(p, Padding(p, d.padding_mode, value, d.start_padding))


@operator("PADDING1", output=_padded, shaders=("padding", "padding_staged"), check=check_attributes,
          newer=_newer_padding, in_place=False)
def Padding1OperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    value = Scalar.of(d.padding_value, d.padding_value_data_type)
    pad(p, Padding(p, d.padding_mode, value, d.start_padding))


def _tiled(d: OperatorDesc) -> dict[str, Output | list[Output]]:
    x = d.input_tensor
    _for_each_dimension(d, "repeats")
    for i, n in enumerate(d.repeats):
        expect(n > 0, d.operator.name, f"Repeats[{i}]", "be above 0", n)
    sizes = tuple(n * m for n, m in zip(x.sizes, d.repeats))
    return {"output_tensor": Output(sizes, x.data_type)}


@operator("TILE", output=_tiled, shaders=("tile", "padding", "padding_staged"), in_place=False)
def TileOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    x = d.input_tensor
    tile(p, Padding(p, PaddingMode.WRAP, saturate(0, x.data_type), (0,) * x.dimension_count))


# Blocks of space, and depth


def _block(d: OperatorDesc, tensor: TensorDesc, depth: bool) -> Ints:
    """The sizes of the other tensor."""
    name, block = d.operator.name, d.block_size
    expect(block > 0, name, "BlockSize", "be above 0", block)
    n, c, h, w = tensor.sizes
    for i, by in ((1, block * block),) if depth else ((2, block), (3, block)):
        expect(tensor.sizes[i] % by == 0, name, f"InputTensor.Sizes[{i}]",
               f"be a multiple of {by} (BlockSize is {block})", tensor.sizes[i])
    if depth:
        return n, c // (block * block), h * block, w * block
    return n, c * block * block, h // block, w // block


def _blocks(depth: bool) -> Infer:
    def infer(d: OperatorDesc) -> Mapping[str, Output | list[Output]]:
        x = d.input_tensor
        expect(x.dimension_count == 4, d.operator.name, "InputTensor.DimensionCount", "be 4",
               x.dimension_count)
        return {"output_tensor": Output(_block(d, x, depth), x.data_type)}

    return infer


_INTERLEAVING = 64
"""Invocations of a workgroup that interleaves rows. More wait longer for each other."""
_EXCHANGED_BYTES = 1 << 14
"""Shared memory that every device has."""
_MOST_ROWS = 8
"""The most rows of the deep tensor for each invocation."""


class SpaceBlocks:
    """Six dimensions: batch, channel, row, row in the block, column, column in the block. The deep
    tensor has the blocks' elements as channels, the wide one side by side."""

    def __init__(self, d: OperatorDesc, to_space: bool) -> None:
        self.x, self.y, self.block, self.to_space = (
            d.input_tensor, d.output_tensor, d.block_size, to_space)
        deep, wide = (self.x, self.y) if to_space else (self.y, self.x)
        b = self.block
        n, c, h, w = deep.sizes
        self.sizes = (n, c // (b * b), h, b, w, b)
        columns_first = getattr(d, "order", 0) == DepthSpaceOrder.COLUMN_ROW_DEPTH
        channel, column = (b * b, 1) if columns_first else (1, c // (b * b))
        s, t = deep.strides, wide.strides
        self.deep = (s[0], channel * s[1], s[2], b * column * s[1], s[3], column * s[1])
        self.wide = (t[0], t[1], b * t[2], t[2], b * t[3], t[3])
        self.each = 16 // self.x.data_type.itemsize

    @property
    def work(self) -> str:
        return work_key(f"depth_space {self.x.data_type.width}", *self.sizes)


class _Interleaved(Kernel[SpaceBlocks]):
    """Rows of whole vectors, which are interleaved."""

    name = "interleaved"
    constants_decide = True

    def shader(self, problem: SpaceBlocks) -> str:
        return f"depth_space.{problem.x.data_type.width}"

    def serves(self, problem: SpaceBlocks, traits: DeviceTraits) -> str | None:
        width, deep, wide = problem.sizes[4], problem.deep, problem.wide
        if not 2 <= problem.block <= _MOST_ROWS:
            return f"blocks are not of 2 to {_MOST_ROWS}"
        even = (problem.x.is_aligned and problem.y.is_aligned
                and are_of_vectors(problem.each, width, (*deep[:4], deep[5], deep[4]))
                and are_of_vectors(problem.each, width, wide[:4] + (1,)) and wide[5] == 1)
        return None if even else "rows are no whole vectors"

    def lower(self, problem: SpaceBlocks, p: PlanBuilder) -> None:
        n, c, h, b, w, _ = problem.sizes
        deep, wide, each, to_space = problem.deep, problem.wide, problem.each, problem.to_space
        in_units, out_units = (*deep[:4], each), (*wide[:4], b * each)
        walk = Walk((n, c, h, b, w // each),
                    *((in_units, out_units) if to_space else (out_units, in_units)))
        local_size, parts = p.device.local_size, 2 if p.device.is_cpu else 1
        if to_space:
            most = power_of_two(_EXCHANGED_BYTES // (b * 18 + 4) + 1) // 2
            local_size, parts = min(local_size if p.device.is_cpu else _INTERLEAVING, most), 1
        p.dispatch(
            self.shader(problem), -(-walk.count // (local_size * parts)),
            x=p.read("input_tensor"), y=p.write("output_tensor"), params=walk.words,
            push={"count": walk.count, "row_stride": deep[5]},
            spec={"LOCAL_SIZE": local_size, "BLOCK": b, "TO_SPACE": to_space, "PARTS": parts,
                  "WALK_RANK": len(walk.sizes),
                  "ROOM": local_size * b * 9 // 8 if to_space else 1,
                  "ROOM_PLACES": local_size if to_space else 1})


class _CopiedBlocks(Kernel[SpaceBlocks]):
    """Any layout, as a copy of six dimensions."""

    name = "copy"
    cost = 1.0

    def lower(self, problem: SpaceBlocks, p: PlanBuilder) -> None:
        strides = (problem.deep, problem.wide) if problem.to_space else (problem.wide, problem.deep)
        p.add(copied(p, problem.sizes, CopyView("input_tensor", problem.x, strides[0]),
                     CopyView("output_tensor", problem.y, strides[1])))


BLOCK_KERNELS: tuple[Kernel[SpaceBlocks], ...] = (_Interleaved(), _CopiedBlocks())


def _move_blocks(d: OperatorDesc, p: PlanBuilder, to_space: bool) -> None:
    problem = SpaceBlocks(d, to_space)
    choose(BLOCK_KERNELS, problem, p).lower(problem, p)


def _to_space(d: OperatorDesc, p: PlanBuilder) -> None:
    _move_blocks(d, p, True)


def _to_depth(d: OperatorDesc, p: PlanBuilder) -> None:
    _move_blocks(d, p, False)


_BLOCK_SHADERS = ("depth_space", *copy.SHADERS)
DepthToSpaceOperatorDesc = operator(
    "DEPTH_TO_SPACE", output=_blocks(True), shaders=_BLOCK_SHADERS, in_place=False)(_to_space)
DepthToSpace1OperatorDesc = operator(
    "DEPTH_TO_SPACE1", output=_blocks(True), shaders=_BLOCK_SHADERS, in_place=False,
    order=DepthSpaceOrder.DEPTH_COLUMN_ROW)(_to_space)
SpaceToDepthOperatorDesc = operator(
    "SPACE_TO_DEPTH", output=_blocks(False), shaders=_BLOCK_SHADERS, in_place=False)(_to_depth)
SpaceToDepth1OperatorDesc = operator(
    "SPACE_TO_DEPTH1", output=_blocks(False), shaders=_BLOCK_SHADERS, in_place=False,
    order=DepthSpaceOrder.DEPTH_COLUMN_ROW)(_to_depth)


# Sequences


def _reversed(d: OperatorDesc) -> dict[str, Output | list[Output]]:
    x, lengths = d.input_tensor, d.sequence_lengths_tensor
    axis = axis_in(d.operator.name, d.axis, x)
    wanted = [1 if i == axis else n for i, n in enumerate(x.sizes)]
    expect(list(lengths.sizes) == wanted, d.operator.name, "SequenceLengthsTensor.Sizes",
           f"be {wanted}", list(lengths.sizes))
    return {"output_tensor": Output(x.sizes, x.data_type)}


_SEQUENCE_PARTS = 2


class Sequences:
    """Lines along an axis of which the first elements are turned round."""

    def __init__(self, d: OperatorDesc) -> None:
        self.x, self.lengths, self.y, self.axis = (
            d.input_tensor, d.sequence_lengths_tensor, d.output_tensor, d.axis)

    @property
    def work(self) -> str:
        return work_key(f"reverse_subsequences {self.x.data_type.width}", *self.x.sizes)

    def walk(self, each: int = 1, last: int = -1) -> Walk:
        """By vectors of ``each`` elements of the last dimension."""
        def off_axis(strides: Ints, on_axis: int = 0) -> Ints:
            return tuple(on_axis if i == self.axis else s for i, s in enumerate(strides))

        sizes = tuple(n // each if i == last else n for i, n in enumerate(self.x.sizes))
        nowhere = (0,) * len(sizes)
        return Walk(sizes, *(of_vectors(s, each, last) for s in (
            off_axis(self.x.strides), off_axis(self.lengths.strides), self.y.strides,
            off_axis(nowhere, 1))))

    def dispatch(self, p: PlanBuilder, walk: Walk, invocations: int, push: dict[str, int],
                 spec: dict[str, int]) -> None:
        p.dispatch(
            "reverse_subsequences", -(-invocations // spec["LOCAL_SIZE"]),
            x=p.read("input_tensor"), lengths=p.read("sequence_lengths_tensor"),
            y=p.write("output_tensor"), params=walk.words,
            push={"count": walk.count, "size": self.x.sizes[self.axis],
                  "stride": self.x.strides[self.axis], **push},
            spec={"LENGTH_WORDS": self.lengths.data_type.itemsize // 4,
                  "TYPE": self.x.data_type.itemsize, **spec})


class _Turned(Kernel[Sequences]):
    """By elements, or by vectors of another dimension."""

    name = "elements"
    cost = 1.0

    def lower(self, problem: Sequences, p: PlanBuilder) -> None:
        x, y = problem.x, problem.y
        last = max((i for i, n in enumerate(x.sizes) if n > 1), default=0)
        each = 16 // x.data_type.itemsize
        if (last == problem.axis or x.sizes[last] % each or not x.is_aligned or not y.is_aligned
                or any(t.strides[last] != 1 or any(
                    s % each for i, s in enumerate(t.strides) if i != last and x.sizes[i] > 1)
                    for t in (x, y))):
            each = 1
        walk, parts = problem.walk(each, last), 1 if p.device.is_cpu else _SEQUENCE_PARTS
        problem.dispatch(
            p, walk, -(-walk.count // parts), {"length_step": problem.lengths.strides[last]},
            {"LOCAL_SIZE": p.device.local_size, "EACH": each, "PARTS": parts})


class _TurnedRows(Kernel[Sequences]):
    """Rows that a CPU copies as a whole."""

    name = "rows"

    def serves(self, problem: Sequences, traits: DeviceTraits) -> str | None:
        rows = Runs.of(traits, problem.walk(), problem.x.data_type.itemsize)
        return None if rows else "for long rows, on a CPU"

    def lower(self, problem: Sequences, p: PlanBuilder) -> None:
        rows = Runs.of(p.device, problem.walk(), problem.x.data_type.itemsize)
        assert rows is not None
        problem.dispatch(p, *rows)


SEQUENCE_KERNELS: tuple[Kernel[Sequences], ...] = (_TurnedRows(), _Turned())


@operator("REVERSE_SUBSEQUENCES", output=_reversed, shaders=("reverse_subsequences",),
          in_place=False)
def ReverseSubsequencesOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    problem = Sequences(d)
    choose(SEQUENCE_KERNELS, problem, p).lower(problem, p)
