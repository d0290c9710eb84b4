"""Operators that move elements: slices, joins, padding, tiles and the like."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd, lcm
from typing import Any

from ..attributes import DepthSpaceOrder, PaddingMode
from ..desc import TensorDesc
from ..dtypes import Scalar, saturate
from ..errors import UnsupportedError, expect
from ..layout import Ints, are_of_vectors, is_packed, memory_order, power_of_two, product
from ..lowering import copy
from ..lowering.builder import PlanBuilder
from ..lowering.copy import View, copied
from ..lowering.indexed import Runs
from ..lowering.plan import in_units
from ..lowering.walk import Walk, reciprocal, runs_of
from ..spec import FeatureLevel, snake_case
from .base import Infer, Output, axis_in, operator
from .elementwise import check_attributes

_CONSTANT, _EDGE, _REFLECTION, _SYMMETRIC, _WRAP = (
    PaddingMode.CONSTANT, PaddingMode.EDGE, PaddingMode.REFLECTION, PaddingMode.SYMMETRIC,
    PaddingMode.WRAP)


def _for_each_dimension(desc: Any, *fields: str) -> None:
    """Raise unless arrays have an entry for each dimension of the input."""
    source = desc.operator.spec.inputs[0]
    rank = getattr(desc, source.snake).dimension_count
    for f in desc.operator.spec.fields:
        if f.snake in fields:
            got = getattr(desc, f.snake)
            expect(len(got) == rank, desc.operator.name, f.name,
                   f"have {rank} entries ({source.name} has {rank} dimensions)", list(got))


# Slices


def _slice_sizes(d: Any) -> dict[str, Output | list[Output]]:
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
def SliceOperatorDesc(d: Any, p: PlanBuilder) -> None:
    p.add(copied(p.target, d.output_tensor.sizes,
                 _slice("input_tensor", d.input_tensor, d.offsets, d.strides),
                 View.whole("output_tensor", d.output_tensor)))


def slice1_sizes(d: Any, whole: str = "InputTensor") -> Ints:
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


def _check_slice1(d: Any, strict: bool) -> None:
    most = slice1_sizes(d)
    for i, (n, m) in enumerate(zip(d.output_tensor.sizes, most)):
        expect(n <= m, d.operator.name, f"OutputTensor.Sizes[{i}]",
               f"be at most {m} (what the window and its stride make)", n)


@operator("SLICE1", shaders=copy.SHADERS, check=_check_slice1, in_place=False)
def Slice1OperatorDesc(d: Any, p: PlanBuilder) -> None:
    p.add(copied(p.target, d.output_tensor.sizes, slice1_view(d, "input_tensor"),
                 View.whole("output_tensor", d.output_tensor)))


def slice1_view(d: Any, whole: str) -> View:
    """The elements of tensor ``whole`` that the windows and their strides select."""
    return _slice(whole, getattr(d, whole), slice1_begins(d), d.input_window_strides)


def slice1_begins(d: Any) -> Ints:
    """The coordinates of the first element that the windows and their strides select."""
    return tuple(offset + (window - 1 if stride < 0 else 0) for offset, window, stride in
                 zip(d.input_window_offsets, d.input_window_sizes, d.input_window_strides))


def _slice(slot: str, t: TensorDesc, begins: Sequence[int], steps: Sequence[int]) -> View:
    strides = tuple(a * b for a, b in zip(t.strides, steps))
    return View(slot, t, strides, sum(a * b for a, b in zip(t.strides, begins)))


# Padding


def _padded(d: Any) -> dict[str, Output | list[Output]]:
    x = d.input_tensor
    _for_each_dimension(d, "start_padding", "end_padding")
    sizes = tuple(map(sum, zip(x.sizes, d.start_padding, d.end_padding)))
    return {"output_tensor": Output(sizes, x.data_type)}


def _newer_padding(d: Any) -> Iterator[tuple[FeatureLevel, str, str, Any]]:
    mode = PaddingMode(d.padding_mode)
    since = {_SYMMETRIC: FeatureLevel.FL_3_0, _WRAP: FeatureLevel.FL_6_4}.get(mode)
    if since is not None:
        yield since, "PaddingMode", "be an older mode", mode.name


@operator("PADDING", output=_padded, shaders=("padding", "padding_staged"),
          newer=_newer_padding, in_place=False, padding_mode=_CONSTANT, padding_value=0.0)
def PaddingOperatorDesc(d: Any, p: PlanBuilder) -> None:
    value = saturate(d.padding_value, d.output_tensor.data_type)
    _pad(p, d.padding_mode, value, d.start_padding)


@operator("PADDING1", output=_padded, shaders=("padding", "padding_staged"), check=check_attributes,
          newer=_newer_padding, in_place=False)
def Padding1OperatorDesc(d: Any, p: PlanBuilder) -> None:
    _pad(p, d.padding_mode, Scalar.of(d.padding_value, d.padding_value_data_type), d.start_padding)


def _tiled(d: Any) -> dict[str, Output | list[Output]]:
    x = d.input_tensor
    _for_each_dimension(d, "repeats")
    for i, n in enumerate(d.repeats):
        expect(n > 0, d.operator.name, f"Repeats[{i}]", "be above 0", n)
    sizes = tuple(n * m for n, m in zip(x.sizes, d.repeats))
    return {"output_tensor": Output(sizes, x.data_type)}


_MOST_COPIES = 16
"""The most copies that an invocation writes."""
_TILE_NEAR = 32
"""Vectors. Copies that lie nearer are written by neighbours."""


@operator("TILE", output=_tiled, shaders=("tile", "padding", "padding_staged"), in_place=False)
def TileOperatorDesc(d: Any, p: PlanBuilder) -> None:
    x = d.input_tensor
    if _tile_vectors(d, p):
        return
    _pad(p, _WRAP, saturate(0, x.data_type), (0,) * x.dimension_count)


def _tile_vectors(d: Any, p: PlanBuilder) -> bool:
    """Add the dispatch if rows are whole vectors. Else return False."""
    x, y = d.input_tensor, d.output_tensor
    each = 16 // x.data_type.itemsize
    order = sorted((i for i, n in enumerate(y.sizes) if n > 1), key=lambda i: -y.strides[i])
    if not order or not x.is_aligned or not y.is_aligned:
        return False
    *outer, row = order
    if x.sizes[row] % each or x.strides[row] != 1 or y.strides[row] != 1 or any(
            t.strides[i] % each for t in (x, y) for i in outer if t.sizes[i] > 1):
        return False
    sizes: list[int] = []
    read: list[int] = []
    written: list[int] = []
    copies = [0]
    for i in order:
        n, repeats = x.sizes[i], d.repeats[i]
        step = n * y.strides[i] // each
        if len(copies) * repeats <= _MOST_COPIES and (
                p.device.is_cpu or step >= _TILE_NEAR):
            copies = [r * step + c for r in range(repeats) for c in copies]
        else:
            sizes, read, written = [*sizes, repeats], [*read, 0], [*written, step]
        unit = each if i == row else 1
        sizes.append(n // unit)
        read.append(x.strides[i] * unit // each)
        written.append(y.strides[i] * unit // each)
    walk = Walk(sizes, read, written)
    p.dispatch(
        "tile", -(-walk.count // p.device.local_size),
        x=in_units(p.read("input_tensor"), 16), y=in_units(p.write("output_tensor"), 16),
        params=walk.words, push={"count": walk.count, "copies": copies},
        spec={"LOCAL_SIZE": p.device.local_size, "COPIES": len(copies),
              "WALK_RANK": len(walk.sizes)},
    )
    return True


_ELEMENTS, _ROWS, _DENSE, _CHUNKS, _RUNS, _BY_LINES = range(6)
_LINE_PARTS, _LINE_INVOCATIONS = 8, 256
_LONGEST_LINE = {2: 64, 4: _LINE_INVOCATIONS}
"""Words of the lines that are written word by word, by the bytes of an element. Other widths and
longer lines take less time in vectors."""
_LEAST_PLANES = 4 * _LINE_PARTS
"""From so many planes on, they are the lines instead of rows."""
_STAGED_SIZES, _LONGEST_STAGED = (1, 2), 64
"""Bytes of an element, and words of the lines, whose input is kept in shared memory."""
_LEAST_STAGED, _MOST_STAGED = 8000, 20_000
"""Bytes of the output of a turn, if there are so many, and of shared memory."""
_STAGED_INVOCATIONS, _MOST_STAGED_PARTS = 384, 32
_STAGED_TURNS = 2
"""Turns of a workgroup."""
_STAGED_GROUPS = 4
"""Workgroups that a core runs at a time. There are fewer turns if there would be fewer."""
_MOST_BORDERS = 16
"""Vectors that an invocation tries for borders."""
_SHORTEST_RUN = 4
"""Vectors of the input that a CPU repeats as a whole."""


class _Dimension:
    """The words of a dimension, or of several dimensions that are padded as one."""

    def __init__(self, size: int, start: int, source: int, in_stride: int, out_stride: int) -> None:
        self.size, self.start, self.source = size, start, source
        self.in_stride, self.out_stride = in_stride, out_stride

    def merged(self, inner: _Dimension, mode: int) -> _Dimension | None:
        """The merge with an ``inner`` dimension, or None if strides or padding prevent it."""
        n = inner.size
        if (inner.source != n or self.in_stride != n * inner.in_stride
                or self.out_stride != n * inner.out_stride
                or (self.source != self.size and mode not in (_CONSTANT, _WRAP))):
            return None
        return _Dimension(self.size * n, self.start * n, self.source * n,
                          inner.in_stride, inner.out_stride)

    def words(self, mode: int) -> Ints:
        period = {_REFLECTION: max(2 * (self.source - 1), 1), _SYMMETRIC: 2 * self.source}.get(
            PaddingMode(mode), self.source)
        if period >> 32:
            raise UnsupportedError(f"padding by reflections of {self.source} elements: more than "
                                   "2^31 are not supported (periods are counted in 32 bits)")
        return (self.size, *reciprocal(self.size), self.start, self.source, period,
                *reciprocal(period), self.in_stride, self.out_stride)


def _pad(p: PlanBuilder, mode: int, value: Scalar, start: Sequence[int]) -> None:
    x, y = p.tensor("input_tensor"), p.tensor("output_tensor")
    each = 16 // y.data_type.itemsize
    dims: list[_Dimension] = []
    # The output is walked in the order of memory.
    for d in memory_order(y.strides):
        if y.sizes[d] == 1:
            continue
        inner = _Dimension(y.sizes[d], start[d], x.sizes[d], x.strides[d], y.strides[d])
        one = dims[-1].merged(inner, mode) if dims else None
        dims[-1:] = [one] if one else [*dims[-1:], inner]
    *outer, row = dims or [_Dimension(1, 0, 1, 1, 1)]
    if _stage(p, mode, value, dims):
        return
    rows = product([d.size for d in outer])
    path, per_row = _ELEMENTS, row.size
    count = rows * per_row
    parts, border, borders, run = 1, 1, 0, 1
    local_size = p.device.local_size
    if p.device.is_cpu and row.in_stride == row.out_stride == 1 and (
            row.source >= _SHORTEST_RUN * each):
        path = _RUNS
        run, per_row, local_size = runs_of(rows, row.size, each)
        count = rows * per_row
    elif row.out_stride == 1:
        if is_packed([d.size for d in (*outer, row)], [d.out_stride for d in (*outer, row)]):
            path, count = _DENSE, (count + each - 2) // each + 1
            if row.in_stride == 1 and row.source >= each:
                path, parts = _CHUNKS, 8 if p.device.is_cpu else 1
                margin = row.size - row.source
                chunk = local_size * parts * each
                border = (margin + each - 2) // each + 1
                borders = border * ((chunk + margin + each) // row.size + 2)
            if borders > _MOST_BORDERS * local_size:  # more than it is worth to keep apart
                path, parts, border, borders = _DENSE, 1, 1, 0
        elif row.size >= each:
            path, per_row = _ROWS, (row.size + each - 2) // each + 1
            count = rows * per_row
    by_lines = _lines(p, [d.size for d in dims], rows) if path in (_DENSE, _CHUNKS) else None
    joins = (mode == _WRAP and row.start == 0 and row.size % row.source == 0
             and row.in_stride == 1 and row.source >= each and path in (_DENSE, _CHUNKS))
    words = [w for d in (row, *reversed(outer)) for w in d.words(mode)]
    groups, push, spec = by_lines or (-(-count // (local_size * parts)), {}, {})
    if by_lines:
        path = _BY_LINES
    p.dispatch(
        f"padding.{y.data_type.width}", groups,
        x=p.read("input_tensor"), y=p.write("output_tensor"), params=words,
        push={"rows": rows, "value": value.words, "per_row": (per_row, *reciprocal(per_row)),
              "borders": borders, **push},
        spec={"LOCAL_SIZE": local_size, "PATH": path, "MODE": mode,
              "CONTIGUOUS": row.in_stride == 1, "RANK": len(outer), "PARTS": parts,
              "BORDER": border, "NARROW": row.size < each, "RUN": run,
              "JOINS": joins, "EVEN": path in (_DENSE, _CHUNKS) and y.is_aligned
              and rows * row.size % each == 0,
              "REPEATS": p.device.is_cpu and mode == _WRAP and not any(start), **spec},
    )


def _lines(
    p: PlanBuilder, sizes: Sequence[int], rows: int
) -> tuple[int, dict[str, int | Sequence[int]], dict[str, int]] | None:
    """Workgroups, push fields and constants of BY_LINES, or None where other paths are better."""
    y = p.tensor("output_tensor")
    in_word = max(4 // y.data_type.itemsize, 1)
    width = sizes[-1] if sizes else 1
    together = in_word // gcd(width, in_word)
    if (p.device.is_cpu or not y.is_aligned or rows // together < 4 * _LINE_PARTS
            or together * width // in_word > _LONGEST_LINE.get(y.data_type.itemsize, 0)):
        return None
    planes = False
    if len(sizes) > 1:
        of_planes = in_word // gcd(sizes[-2] * width, in_word)
        count = rows // sizes[-2]
        planes = count >= _LEAST_PLANES and count % of_planes == 0
        if planes:
            rows, width, together = count, sizes[-2] * width, of_planes
    if rows % together:
        return None
    words = together * width // in_word
    at_once, slices = max(1, _LINE_INVOCATIONS // words), -(-words // _LINE_INVOCATIONS)
    of_group = at_once * _LINE_PARTS
    return (
        -(-rows // (together * of_group)) * slices,
        {"line_words": (words, *reciprocal(words))},
        {"LOCAL_SIZE": -(-words * at_once // (32 * slices)) * 32, "PARTS": _LINE_PARTS,
         "TOGETHER": together, "AT_ONCE": at_once, "LINES": of_group * together,
         "PLANES": planes, "SLICES": slices},
    )


def _stage(p: PlanBuilder, mode: int, value: Scalar, dims: Sequence[_Dimension]) -> bool:
    """Add the dispatch that keeps rows, or planes, in shared memory. False where other paths are
    better, or it cannot serve."""
    x, y = p.tensor("input_tensor"), p.tensor("output_tensor")
    size = y.data_type.itemsize
    if size not in _STAGED_SIZES or p.device.is_cpu or not y.is_aligned or len(dims) not in (2, 3):
        return False
    *outer, row = dims
    planes = len(outer) == 2
    height, source_height = (outer[1].size, outer[1].source) if planes else (1, 1)
    if (outer[0].size != outer[0].source or row.size < 2 or row.in_stride != 1
            or outer[-1].in_stride != row.source
            or outer[0].in_stride != row.source * source_height
            or not is_packed([d.size for d in dims], [d.out_stride for d in dims])):
        return False
    rows, in_word = outer[0].size * height, 4 // size
    together = in_word // gcd(row.size, in_word)
    words = together * row.size * size // 4
    if words > _LONGEST_STAGED or rows % together:
        return False
    # What a workgroup writes in a turn: whole planes of whole lines.
    of_turn = lcm(height, together)
    while (of_turn * row.size * size < _LEAST_STAGED
            and rows // (2 * of_turn) >= p.device.cores):
        of_turn *= 2
    turns = -(-rows // of_turn)
    read, total = (n // height * source_height * row.source for n in (of_turn, rows))
    wide = x.is_aligned and read * size % 16 == total * size % 16 == 0
    whole = x.is_aligned and row.source * size % 4 == 0
    staged = read * size // 4 if whole else -(-read * size // 4) + 1
    lines, most = of_turn // together, min(_STAGED_INVOCATIONS, p.device.max_invocations)
    local = {n: -(-n * words // 32) * 32 for n in range(1, most // words + 1)}
    # The fewest invocations that do nothing, in workgroups that are not small.
    at_once = min((n for n in local if local[n] > most // 2),
                  key=lambda n: (-(-lines // n) * local[n], -n))
    parts = -(-lines // at_once)
    shared = 4 * (staged + at_once * parts * together)
    if (turns < p.device.cores or parts > _MOST_STAGED_PARTS
            or shared > min(_MOST_STAGED, p.device.max_shared_memory)):
        return False
    of_group = 1
    if read % in_word == 0:  # elements lie in their words alike in all turns
        of_group = max(min(_STAGED_TURNS, turns // (_STAGED_GROUPS * p.device.cores)), 1)
    p.dispatch(
        f"padding_staged.{y.data_type.width}", -(-turns // of_group),
        x=p.read("input_tensor"), y=p.write("output_tensor"),
        push={"value": value.words[0], "read": read, "total": total, "lines": rows // together,
              "line_words": (words, *reciprocal(words)),
              "dimensions": [*row.words(mode), *(outer[1].words(mode) if planes else [0] * 10)]},
        spec={"LOCAL_SIZE": local[at_once], "MODE": mode, "PLANES": planes, "WIDE": wide,
              "WHOLE": whole, "TOGETHER": together, "AT_ONCE": at_once, "PARTS": parts,
              "ROWS": of_turn, "READS": -(-staged // (local[at_once] * (4 if wide else 1))),
              "STAGED": staged, "TURNS": of_group,
              "EXACT": rows % (of_turn * of_group) == 0 and at_once * parts == lines},
    )
    return True


# Blocks of space, and depth


def _block(d: Any, tensor: TensorDesc, depth: bool) -> Ints:
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
    def infer(d: Any) -> Mapping[str, Output | list[Output]]:
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


def _move_blocks(d: Any, p: PlanBuilder, depth: bool) -> None:
    """Copy six dimensions: batch, channel, row, row in the block, column, column in the block."""
    x, y, b = d.input_tensor, d.output_tensor, d.block_size
    deep, wide = (x, y) if depth else (y, x)
    n, c, h, w = deep.sizes
    c //= b * b
    sizes = (n, c, h, b, w, b)
    s = deep.strides
    columns_first = getattr(d, "order", 0) == DepthSpaceOrder.COLUMN_ROW_DEPTH
    channel, column = (b * b, 1) if columns_first else (1, c)
    deep_strides = (s[0], channel * s[1], s[2], b * column * s[1], s[3], column * s[1])
    t = wide.strides
    wide_strides = (t[0], t[1], b * t[2], t[2], b * t[3], t[3])
    each = 16 // x.data_type.itemsize
    if (2 <= b <= _MOST_ROWS and x.is_aligned and y.is_aligned
            and are_of_vectors(each, w, (*deep_strides[:4], deep_strides[5], deep_strides[4]))
            and are_of_vectors(each, w, wide_strides[:4] + (1,)) and t[3] == 1):
        units = (n, c, h, b, w // each)
        in_units = (*deep_strides[:4], each)
        out_units = (*wide_strides[:4], b * each)
        walk = Walk(units, *((in_units, out_units) if depth else (out_units, in_units)))
        local_size, parts = p.device.local_size, 2 if p.device.is_cpu else 1
        if depth:
            most = power_of_two(_EXCHANGED_BYTES // (b * 18 + 4) + 1) // 2
            local_size, parts = min(local_size if p.device.is_cpu else _INTERLEAVING, most), 1
        p.dispatch(
            f"depth_space.{x.data_type.width}", -(-walk.count // (local_size * parts)),
            x=p.read("input_tensor"), y=p.write("output_tensor"), params=walk.words,
            push={"count": walk.count, "row_stride": deep_strides[5]},
            spec={"LOCAL_SIZE": local_size, "BLOCK": b, "TO_SPACE": depth, "PARTS": parts,
                  "WALK_RANK": len(walk.sizes), "ROOM": local_size * b * 9 // 8 if depth else 1,
                  "ROOM_PLACES": local_size if depth else 1},
        )
        return
    in_strides, out_strides = (
        (deep_strides, wide_strides) if depth else (wide_strides, deep_strides))
    p.add(copied(p.target, sizes, View("input_tensor", x, in_strides),
                 View("output_tensor", y, out_strides)))


def _to_space(d: Any, p: PlanBuilder) -> None:
    _move_blocks(d, p, True)


def _to_depth(d: Any, p: PlanBuilder) -> None:
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


def _reversed(d: Any) -> dict[str, Output | list[Output]]:
    x, lengths = d.input_tensor, d.sequence_lengths_tensor
    axis = axis_in(d.operator.name, d.axis, x)
    wanted = [1 if i == axis else n for i, n in enumerate(x.sizes)]
    expect(list(lengths.sizes) == wanted, d.operator.name, "SequenceLengthsTensor.Sizes",
           f"be {wanted}", list(lengths.sizes))
    return {"output_tensor": Output(x.sizes, x.data_type)}


_SEQUENCE_PARTS = 2


@operator("REVERSE_SUBSEQUENCES", output=_reversed, shaders=("reverse_subsequences",),
          in_place=False)
def ReverseSubsequencesOperatorDesc(d: Any, p: PlanBuilder) -> None:
    x, lengths, y = d.input_tensor, d.sequence_lengths_tensor, d.output_tensor

    def off_axis(strides: Ints, on_axis: int = 0) -> Ints:
        return tuple(on_axis if i == d.axis else s for i, s in enumerate(strides))

    last = max((i for i, n in enumerate(x.sizes) if n > 1), default=0)
    each = 16 // x.data_type.itemsize
    if (last == d.axis or x.sizes[last] % each or not x.is_aligned or not y.is_aligned
            or any(t.strides[last] != 1 or any(
                s % each for i, s in enumerate(t.strides) if i != last and x.sizes[i] > 1)
                for t in (x, y))):
        each = 1

    def units(strides: Ints) -> Ints:
        return tuple(s * each if i == last else s for i, s in enumerate(strides))

    nowhere = (0,) * len(x.sizes)
    sizes = tuple(n // each if i == last else n for i, n in enumerate(x.sizes))
    walk = Walk(sizes, *map(units, (off_axis(x.strides), off_axis(lengths.strides), y.strides,
                                    off_axis(nowhere, 1))))
    parts = 1 if p.device.is_cpu else _SEQUENCE_PARTS
    invocations, push = -(-walk.count // parts), {"length_step": lengths.strides[last]}
    spec = {"LOCAL_SIZE": p.device.local_size, "EACH": each, "PARTS": parts}
    by_element = Walk(x.sizes, off_axis(x.strides), off_axis(lengths.strides), y.strides,
                      off_axis(nowhere, 1))
    runs = Runs.of(p.device, by_element, x.data_type.itemsize)
    if runs:
        walk, invocations, push, spec = runs.rows, runs.invocations, runs.push, runs.spec
    p.dispatch(
        "reverse_subsequences", -(-invocations // spec["LOCAL_SIZE"]),
        x=p.read("input_tensor"), lengths=p.read("sequence_lengths_tensor"),
        y=p.write("output_tensor"), params=walk.words,
        push={"count": walk.count, "size": x.sizes[d.axis], "stride": x.strides[d.axis], **push},
        spec={"LENGTH_WORDS": lengths.data_type.itemsize // 4, "TYPE": x.data_type.itemsize,
              **spec},
    )
