"""The kernels of padding, and of tiles, which are padding that repeats. A new one is an entry in
``KERNELS``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import gcd, lcm
from typing import NamedTuple

from ..attributes import PaddingMode
from ..dtypes import Scalar
from ..errors import UnsupportedError
from ..layout import Ints, is_packed, memory_order, power_of_two, product
from ..lowering import measured
from ..lowering.builder import PlanBuilder
from ..lowering.kernel import Kernel, choose
from ..lowering.plan import in_units
from ..lowering.walk import Walk, reciprocal, runs_of
from ..runtime.traits import DeviceTraits
from ..tuning import work_key

_CONSTANT, _REFLECTION, _SYMMETRIC, _WRAP = (
    PaddingMode.CONSTANT, PaddingMode.REFLECTION, PaddingMode.SYMMETRIC, PaddingMode.WRAP)
_MOST_COPIES = 16
"""The most copies that an invocation writes."""
_TILE_NEAR = 32
"""Vectors. Copies that lie nearer are written by neighbours."""
_ELEMENTS, _ROWS, _DENSE, _CHUNKS, _RUNS, _BY_LINES = range(6)
_LINE_PARTS, _LINE_INVOCATIONS = 8, 256
_LEAST_LINES = 256
"""Rows of a workgroup's lines for which there is room in any case, so that few pipelines serve."""
_LONGEST_LINE = {2: 64, 4: _LINE_INVOCATIONS}
"""Words of the lines that are written word by word, by the bytes of an element. Other widths and
longer lines take less time in vectors."""
_LEAST_PLANES = 4 * _LINE_PARTS
"""From so many planes on, they are the lines instead of rows."""
_STAGED_SIZES, _LONGEST_STAGED = (1, 2), 64
"""Bytes of an element, and words of the lines, whose input is kept in shared memory."""
_LEAST_STAGED, _MOST_STAGED = 8000, 20_000
"""Bytes of the output of a turn, if there are so many, and of shared memory."""
_STAGED_WORDS = 1024
"""Its words are a multiple of this."""
_STAGED_INVOCATIONS, _MOST_STAGED_PARTS = 384, 32
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


class Padding:
    """The dimensions of an output that are padded as one, in the order of its memory."""

    def __init__(self, p: PlanBuilder, mode: int, value: Scalar, start: Sequence[int]) -> None:
        self.desc, self.mode, self.value = p.desc, mode, value
        self.x, self.y = x, y = p.tensor("input_tensor"), p.tensor("output_tensor")
        self.itemsize = y.data_type.itemsize
        self.each = 16 // self.itemsize
        """Elements of a vector."""
        dims: list[_Dimension] = []
        for d in memory_order(y.strides):
            if y.sizes[d] == 1:
                continue
            inner = _Dimension(y.sizes[d], start[d], x.sizes[d], x.strides[d], y.strides[d])
            one = dims[-1].merged(inner, mode) if dims else None
            dims[-1:] = [one] if one else [*dims[-1:], inner]
        self.dims = dims
        *self.outer, self.row = dims or [_Dimension(1, 0, 1, 1, 1)]
        self.rows = product([d.size for d in self.outer])
        self.starts = any(start)
        every = (*self.outer, self.row)
        self.is_packed = self.row.out_stride == 1 and is_packed(
            [d.size for d in every], [d.out_stride for d in every])

    @property
    def work(self) -> str:
        kind = f"padding {self.y.data_type.width} {PaddingMode(self.mode).name.lower()}"
        return work_key(kind, self.rows, self.row.size)

    def chunk(self, traits: DeviceTraits) -> tuple[int, int, int]:
        """Vectors of an invocation, and those at the borders of a row, and of all rows, of a
        workgroup. The last is 0 where vectors with borders are not kept apart."""
        parts = 8 if traits.is_cpu else 1
        margin = self.row.size - self.row.source
        border = (margin + self.each - 2) // self.each + 1
        length = traits.local_size * parts * self.each
        borders = border * ((length + margin + self.each) // self.row.size + 2)
        whole = self.row.in_stride == 1 and self.row.source >= self.each
        # More are more than it is worth to keep apart.
        kept_apart = whole and borders <= _MOST_BORDERS * traits.local_size
        return (parts, border, borders) if kept_apart else (1, 1, 0)

    @functools.cached_property
    def vectors(self) -> int:
        """The most vectors in which the output lies."""
        return (self.rows * self.row.size + self.each - 2) // self.each + 1


class PaddingKernel(Kernel[Padding]):
    """A kernel of padding. Its estimate is a rank."""


class _Path(PaddingKernel):
    """A path of the shader for all layouts."""

    path: int

    def shader(self, problem: Padding) -> str:
        return f"padding.{problem.y.data_type.width}"

    def dispatch(
        self, problem: Padding, p: PlanBuilder, groups: int, push: dict[str, int | Sequence[int]],
        spec: dict[str, int], chunk: tuple[int, int, int] = (1, 1, 0), per_row: int = 0,
    ) -> None:
        row, joins = problem.row, problem.mode == _WRAP and problem.row.start == 0
        parts, border, borders = chunk
        per_row = per_row or row.size
        joins &= (row.size % row.source == 0 and row.in_stride == 1 and row.source >= problem.each
                  and problem.is_packed and self.path in (_DENSE, _CHUNKS, _BY_LINES))
        words = [w for d in (row, *reversed(problem.outer)) for w in d.words(problem.mode)]
        p.dispatch(
            self.shader(problem), groups,
            x=p.read("input_tensor"), y=p.write("output_tensor"), params=words,
            push={"rows": problem.rows, "value": problem.value.words,
                  "per_row": (per_row, *reciprocal(per_row)), "border": border, "borders": borders,
                  **push},
            spec={"LOCAL_SIZE": p.device.local_size, "PATH": self.path, "MODE": problem.mode,
                  "CONTIGUOUS": row.in_stride == 1, "RANK": len(problem.outer), "PARTS": parts,
                  "NARROW": row.size < problem.each, "JOINS": joins,
                  "EVEN": self.path in (_DENSE, _CHUNKS) and problem.y.is_aligned
                  and problem.rows * row.size % problem.each == 0,
                  "REPEATS": p.device.is_cpu and problem.mode == _WRAP and not problem.starts,
                  **spec})


class _Elements(_Path):
    """Any layout, element by element."""

    name, path = "elements", _ELEMENTS
    cost = 6.0

    def lower(self, problem: Padding, p: PlanBuilder) -> None:
        count = problem.rows * problem.row.size
        self.dispatch(problem, p, -(-count // p.device.local_size), {}, {})


class _RowVectors(_Path):
    """Vectors of each row, where rows do not follow each other."""

    name, path = "rows", _ROWS
    cost = 5.0

    def serves(self, problem: Padding, traits: DeviceTraits) -> str | None:
        row = problem.row
        return None if row.out_stride == 1 and not problem.is_packed and (
            row.size >= problem.each) else "rows follow each other, or are no vectors"

    def lower(self, problem: Padding, p: PlanBuilder) -> None:
        per_row = (problem.row.size + problem.each - 2) // problem.each + 1
        self.dispatch(problem, p, -(-problem.rows * per_row // p.device.local_size), {}, {},
                      per_row=per_row)


class _Dense(_Path):
    """Vectors of the whole output."""

    name, path = "dense", _DENSE
    cost = 4.0

    def serves(self, problem: Padding, traits: DeviceTraits) -> str | None:
        return None if problem.is_packed else "the output is not packed"

    def lower(self, problem: Padding, p: PlanBuilder) -> None:
        self.dispatch(problem, p, -(-problem.vectors // p.device.local_size), {}, {})


class _Chunks(_Dense):
    """The same, with those at borders apart."""

    name, path = "chunks", _CHUNKS
    cost = 3.0

    def serves(self, problem: Padding, traits: DeviceTraits) -> str | None:
        if not problem.chunk(traits)[2]:
            return "too many vectors have borders"
        return super().serves(problem, traits)

    def lower(self, problem: Padding, p: PlanBuilder) -> None:
        chunk = problem.chunk(p.device)
        self.dispatch(problem, p, -(-problem.vectors // (p.device.local_size * chunk[0])), {}, {},
                      chunk)


class _PaddedRuns(_Path):
    """Rows that a CPU copies as a whole."""

    name, path = "runs", _RUNS
    cost = 2.0

    def serves(self, problem: Padding, traits: DeviceTraits) -> str | None:
        row = problem.row
        return None if traits.is_cpu and row.in_stride == row.out_stride == 1 and (
            row.source >= _SHORTEST_RUN * problem.each) else "for long rows, on a CPU"

    def lower(self, problem: Padding, p: PlanBuilder) -> None:
        run, per_row, local_size = runs_of(problem.rows, problem.row.size, problem.each)
        self.dispatch(problem, p, -(-problem.rows * per_row // local_size), {"run": run},
                      {"LOCAL_SIZE": local_size}, per_row=per_row)


class _Launch(NamedTuple):
    groups: int
    push: dict[str, int | Sequence[int]]
    spec: dict[str, int]


class _ByLines(_Dense):
    """Short lines, word by word."""

    name, path = "lines", _BY_LINES
    cost = 1.0

    def serves(self, problem: Padding, traits: DeviceTraits) -> str | None:
        reason = None if self._launch(problem, traits) else "lines are long or few, or on a CPU"
        return reason or super().serves(problem, traits)

    def lower(self, problem: Padding, p: PlanBuilder) -> None:
        launch = self._launch(problem, p.device)
        assert launch is not None
        self.dispatch(problem, p, *launch, problem.chunk(p.device))

    def _launch(self, problem: Padding, traits: DeviceTraits) -> _Launch | None:
        y, rows = problem.y, problem.rows
        sizes = [d.size for d in problem.dims]
        in_word = max(4 // y.data_type.itemsize, 1)
        width = sizes[-1] if sizes else 1
        together = in_word // gcd(width, in_word)
        if (traits.is_cpu or not y.is_aligned or rows // together < 4 * _LINE_PARTS
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
        return _Launch(
            -(-rows // (together * of_group)) * slices,
            {"line_words": (words, *reciprocal(words)), "at_once": at_once, "slices": slices},
            {"LOCAL_SIZE": _LINE_INVOCATIONS, "PARTS": _LINE_PARTS, "TOGETHER": together,
             "LINES": max(_LEAST_LINES, power_of_two(of_group * together)), "PLANES": planes},
        )


class _Staged(PaddingKernel):
    """The input of whole rows, or planes, lies in shared memory."""

    name = "staged"
    constants_decide = True
    cost = 0.0

    def shader(self, problem: Padding) -> str:
        return f"padding_staged.{problem.y.data_type.width}"

    def serves(self, problem: Padding, traits: DeviceTraits) -> str | None:
        if problem.itemsize not in _STAGED_SIZES or traits.is_cpu:
            return "elements of more than two bytes, or a CPU"
        return None if self._launch(problem, traits) else "rows are long, few, or have gaps"

    def lower(self, problem: Padding, p: PlanBuilder) -> None:
        launch = self._launch(problem, p.device)
        assert launch is not None
        groups, push, spec = launch
        p.dispatch(self.shader(problem), groups, x=p.read("input_tensor"),
                   y=p.write("output_tensor"), push=push, spec=spec)

    def _launch(self, problem: Padding, traits: DeviceTraits) -> _Launch | None:
        x, y, size, dims = problem.x, problem.y, problem.itemsize, problem.dims
        value, mode = problem.value, problem.mode
        if not y.is_aligned or len(dims) not in (2, 3):
            return None
        *outer, row = dims
        planes = len(outer) == 2
        height, source_height = (outer[1].size, outer[1].source) if planes else (1, 1)
        if (outer[0].size != outer[0].source or row.size < 2 or row.in_stride != 1
                or outer[-1].in_stride != row.source
                or outer[0].in_stride != row.source * source_height
                or not is_packed([d.size for d in dims], [d.out_stride for d in dims])):
            return None
        rows, in_word = outer[0].size * height, 4 // size
        together = in_word // gcd(row.size, in_word)
        words = together * row.size * size // 4
        if words > _LONGEST_STAGED or rows % together:
            return None
        # What a workgroup writes in a turn: whole planes of whole lines.
        of_turn = lcm(height, together)
        while (of_turn * row.size * size < _LEAST_STAGED
                and rows // (2 * of_turn) >= traits.cores):
            of_turn *= 2
        turns = -(-rows // of_turn)
        read, total = (n // height * source_height * row.source for n in (of_turn, rows))
        wide = x.is_aligned and read * size % 16 == total * size % 16 == 0
        whole = x.is_aligned and row.source * size % 4 == 0
        staged = read * size // 4 if whole else -(-read * size // 4) + 1
        lines, most = of_turn // together, min(_STAGED_INVOCATIONS, traits.max_invocations)
        local = {n: -(-n * words // 32) * 32 for n in range(1, most // words + 1)}
        # The fewest invocations that do nothing, in workgroups that are not small.
        at_once = min((n for n in local if local[n] > most // 2),
                      key=lambda n: (-(-lines // n) * local[n], -n))
        parts = -(-lines // at_once)
        entries = at_once * parts * together
        # Few capacities of shared memory, so that few pipelines serve all sizes.
        room = -(-staged // _STAGED_WORDS) * _STAGED_WORDS, power_of_two(entries)
        if (turns < traits.cores or parts > _MOST_STAGED_PARTS
                or 4 * (staged + entries) > _MOST_STAGED
                or 4 * sum(room) > traits.max_shared_memory):
            return None
        of_group = 1
        if read % in_word == 0:  # elements lie in their words alike in all turns
            # Turns of a workgroup, or fewer if a core would run fewer at a time.
            known = measured.figures(traits.device_class, "padding_staged")
            of_group = max(1, min(
                int(known["turns"]), turns // (int(known["at_once"]) * traits.cores)))
        return _Launch(
            -(-turns // of_group),
            {"value": value.words[0], "read": read, "total": total, "lines": rows // together,
             "line_words": (words, *reciprocal(words)), "turn_rows": of_turn, "at_once": at_once,
             "dimensions": [*row.words(mode), *(outer[1].words(mode) if planes else [0] * 10)]},
            {"LOCAL_SIZE": local[at_once], "MODE": mode, "PLANES": planes, "WIDE": wide,
             "WHOLE": whole, "TOGETHER": together, "PARTS": parts,
             "ENTRIES": room[1], "READS": -(-staged // (local[at_once] * (4 if wide else 1))),
             "STAGED": room[0], "TURNS": of_group,
             "EXACT": rows % (of_turn * of_group) == 0 and at_once * parts == lines},
        )


KERNELS: tuple[PaddingKernel, ...] = (
    _Staged(), _ByLines(), _PaddedRuns(), _Chunks(), _Dense(), _RowVectors(), _Elements())


def pad(p: PlanBuilder, problem: Padding) -> None:
    """Write the plan of padding."""
    choose(KERNELS, problem, p).lower(problem, p)


# Tiles


class _RepeatedVectors(PaddingKernel):
    """Rows of whole vectors, of which an invocation writes several copies."""

    name = "copies"
    cost = -1.0

    def shader(self, problem: Padding) -> str:
        return "tile"

    def serves(self, problem: Padding, traits: DeviceTraits) -> str | None:
        x, y, each = problem.x, problem.y, problem.each
        order = self._order(problem)
        if not order or not x.is_aligned or not y.is_aligned:
            return "there is one element, or a tensor is not aligned"
        *outer, row = order
        gaps = x.sizes[row] % each or x.strides[row] != 1 or y.strides[row] != 1 or any(
            t.strides[i] % each for t in (x, y) for i in outer if t.sizes[i] > 1)
        return "rows are no whole vectors" if gaps else None

    def _order(self, problem: Padding) -> list[int]:
        y = problem.y
        return sorted((i for i, n in enumerate(y.sizes) if n > 1), key=lambda i: -y.strides[i])

    def lower(self, problem: Padding, p: PlanBuilder) -> None:
        x, y, each, order = problem.x, problem.y, problem.each, self._order(problem)
        row = order[-1]
        sizes: list[int] = []
        read: list[int] = []
        written: list[int] = []
        copies = [0]
        for i in order:
            n, repeats = x.sizes[i], problem.desc.repeats[i]
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


TILE_KERNELS: tuple[PaddingKernel, ...] = (_RepeatedVectors(), *KERNELS)


def tile(p: PlanBuilder, problem: Padding) -> None:
    """Write the plan of repeated copies."""
    choose(TILE_KERNELS, problem, p).lower(problem, p)
