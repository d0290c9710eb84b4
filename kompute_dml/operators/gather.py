"""Operators with tensors of indices: gathers, scatters, one-hot vectors, and non-zeros."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import expect, refuse
from ..layout import Ints, is_packed, packed_strides, pad_left, power_of_two, product
from ..lowering import measured
from ..lowering.builder import PlanBuilder
from ..lowering.copy import copied_input
from ..lowering.indexed import GATHERS, SCATTERS, Coordinate, Indexed, gather, scatter
from ..lowering.kernel import Kernel, choose
from ..lowering.walk import Walk, reciprocal
from ..runtime.shader_library import Variant
from ..runtime.traits import DeviceTraits
from ..tuning import work_key
from .base import Infer, OperatorDesc, Output, axis_in, operator

_LOCAL_SIZE = 256
_BLOCK = 4096
"""Elements that one workgroup searches for non-zeros."""
_LONGEST_ROW = 8192
"""The most elements of a row whose last updates shared memory can note."""
_MOST_UPDATES = 1 << 16
"""The most updates of such a row."""
_LINES = 64
"""Of a workgroup."""


# GATHER


def _gather_sizes(d: OperatorDesc) -> Output:
    x, indices, name = d.input_tensor, d.indices_tensor, d.operator.name
    axis, count, rank = axis_in(name, d.axis, x), d.index_dimensions, indices.dimension_count
    expect(0 <= count <= rank, name, "IndexDimensions",
           f"be in [0, {rank}] (IndicesTensor has {rank} dimensions)", count)
    first = rank - count
    expect(product(indices.sizes[:first]) == 1, name, "IndicesTensor.Sizes",
           f"have only 1s before the last {count} (IndexDimensions)", list(indices.sizes))
    sizes = (*x.sizes[:axis], *indices.sizes[first:], *x.sizes[axis + 1:])
    surplus = max(len(sizes) - x.dimension_count, 0)
    expect(product(sizes[:surplus]) == 1, name, "InputTensor.Sizes",
           f"begin with {surplus} 1s, so that the output has {x.dimension_count} dimensions",
           list(x.sizes))
    return Output(pad_left(sizes[surplus:], x.dimension_count, 1), x.data_type)


def _output(infer: Callable[[OperatorDesc], Output]) -> Infer:
    return lambda d: {"output_tensor": infer(d)}


@operator("GATHER", output=_output(_gather_sizes), shaders=GATHERS)
def GatherOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    x, indices, y = d.input_tensor, d.indices_tensor, d.output_tensor
    before, after = d.axis, x.dimension_count - d.axis - 1
    first = indices.dimension_count - d.index_dimensions
    sizes = (*x.sizes[:before], *indices.sizes[first:], *x.sizes[before + 1:])
    index_rank = d.index_dimensions
    gather(p, Indexed(
        sizes, _right_aligned(y.strides, len(sizes)),
        (*(0,) * before, *indices.strides[first:], *(0,) * after),
        (*x.strides[:before], *(0,) * index_rank, *x.strides[before + 1:]),
        (*(False,) * before, *(True,) * index_rank, *(False,) * after),
        (Coordinate(x.sizes[d.axis], x.strides[d.axis]),), 0))


def _right_aligned(values: Ints, count: int) -> Ints:
    """The last ``count`` values, filled up with 0 in front."""
    return pad_left(values, count, 0)[-count:] if count else ()


# GATHER_ELEMENTS, SCATTER


def along_axis(indexed: TensorDesc, indices: TensorDesc, listed: TensorDesc, axis: int) -> Indexed:
    """Each element has its own index, which replaces its coordinate on the axis."""
    strides = tuple(0 if d == axis else s for d, s in enumerate(indexed.strides))
    return Indexed(
        indices.sizes, listed.strides, indices.strides, strides, (True,) * len(strides),
        (Coordinate(indexed.sizes[axis], indexed.strides[axis], 1),), 0)


def check_along_axis(d: OperatorDesc, strict: bool) -> None:
    x, indices, name = d.input_tensor, d.indices_tensor, d.operator.name
    axis = axis_in(name, d.axis, x)
    for i, (n, most) in enumerate(zip(indices.sizes, x.sizes)):
        if strict:
            expect(i == axis or n == most, name, f"IndicesTensor.Sizes[{i}]",
                   f"equal InputTensor.Sizes[{i}]", n, most)
        if i != axis and n > most:
            refuse(name, f"IndicesTensor.Sizes[{i}]",
                   f"be at most InputTensor.Sizes[{i}], {most}", n)


@operator("GATHER_ELEMENTS", output=_output(lambda d: Output(d.indices_tensor.sizes,
                                                             d.input_tensor.data_type)),
          shaders=GATHERS, check=check_along_axis, axis=-1)
def GatherElementsOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    gather(p, along_axis(d.input_tensor, d.indices_tensor, d.output_tensor, d.axis))


def _like_input(d: OperatorDesc) -> Output:
    return Output(d.input_tensor.sizes, d.input_tensor.data_type)


@operator("SCATTER", output=_output(_like_input),
          shaders=("scatter_rows", "scatter_columns", *SCATTERS), check=check_along_axis, axis=-1)
def ScatterOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    problem = Updates(d)
    choose(SCATTER_KERNELS, problem, p).lower(problem, p)


class Updates:
    """Updates of lines along an axis, for SCATTER and SCATTER_REDUCE."""

    def __init__(self, d: OperatorDesc) -> None:
        self.desc, self.axis = d, d.axis
        self.size, self.updates = d.input_tensor.sizes[d.axis], d.indices_tensor.sizes[d.axis]
        self.others = [i for i in range(d.input_tensor.dimension_count) if i != d.axis]

    @property
    def work(self) -> str:
        operator = self.desc.operator.function_name
        kind = f"{operator} {self.desc.input_tensor.data_type.width}"
        lines = product([self.desc.indices_tensor.sizes[i] for i in self.others])
        return work_key(kind, lines, self.size, self.updates)

    @property
    def places(self) -> Indexed:
        """Where each update goes, for any layout."""
        d = self.desc
        return along_axis(d.output_tensor, d.indices_tensor, d.updates_tensor, d.axis)

    def lines(self, sizes: Ints, *tensors: TensorDesc) -> Walk:
        return Walk([sizes[i] for i in self.others],
                    *([t.strides[i] for i in self.others] for t in tensors))


class _ScatteredRows(Kernel[Updates]):
    """Contiguous, short rows along the axis, one workgroup for each."""

    name = "rows"
    constants_decide = True

    def shader(self, problem: Updates) -> str:
        return "scatter_rows"

    def _tensors(self, problem: Updates) -> tuple[TensorDesc, ...]:
        d = problem.desc
        return d.updates_tensor, d.indices_tensor, d.input_tensor, d.output_tensor

    def serves(self, problem: Updates, traits: DeviceTraits) -> str | None:
        d = problem.desc
        if problem.size > min(_LONGEST_ROW, traits.max_shared_memory // 8) or (
                problem.updates > _MOST_UPDATES):
            return "rows are long"
        if any(t.strides[problem.axis] != 1 for t in self._tensors(problem)):
            return "rows are not contiguous"
        same = all(d.indices_tensor.sizes[i] == d.input_tensor.sizes[i] for i in problem.others)
        return None if same else "some rows have no updates"

    def lower(self, problem: Updates, p: PlanBuilder) -> None:
        d, size, updates = problem.desc, problem.size, problem.updates
        rows = problem.lines(d.input_tensor.sizes, *self._tensors(problem))
        kind, index = d.input_tensor.data_type, d.indices_tensor.data_type

        def even(t: TensorDesc, n: int) -> bool:
            each = 16 // t.data_type.itemsize
            return t.is_aligned and n % each == 0 and not any(
                t.strides[i] % each for i in problem.others if t.sizes[i] > 1)

        p.dispatch(
            "scatter_rows", rows.count, updates=p.read("updates_tensor"),
            indices=p.read("indices_tensor"), x=p.read("input_tensor"), y=p.write("output_tensor"),
            params=rows.words, push={"rows": rows.count, "size": size, "updates": updates},
            spec={"LOCAL_SIZE": _LOCAL_SIZE, "TYPE": kind.itemsize, "INDEX_TYPE": index.code,
                  "ROOM": max(power_of_two(size), 1024),
                  "EVEN": kind.itemsize in (2, 4) and even(d.indices_tensor, updates)
                  and even(d.input_tensor, size) and even(d.output_tensor, size)})


class Columns(Kernel[Updates]):
    """Many lines along the axis, one invocation of a CPU for each."""

    name, file = "columns", "scatter_columns"
    cost = 1.0

    def shader(self, problem: Updates) -> str:
        return self.file

    def spec(self, d: OperatorDesc) -> dict[str, int]:
        """Its constants of types."""
        return {"TYPE": d.output_tensor.data_type.itemsize}

    def takes(self, problem: Updates, variant: Variant, traits: DeviceTraits) -> tuple[int, int]:
        return _LINES, variant.shared_bytes

    def _lines(self, problem: Updates) -> Walk:
        d = problem.desc
        return problem.lines(d.indices_tensor.sizes, d.updates_tensor, d.indices_tensor,
                             d.output_tensor)

    def serves(self, problem: Updates, traits: DeviceTraits) -> str | None:
        if not traits.is_cpu or problem.updates > traits.max_loop_passes:
            return "for a CPU, and few updates of a line"
        least = measured.count(traits, "scatter_columns", "lines")
        return None if self._lines(problem).count >= least else f"fewer than {least} lines"

    def lower(self, problem: Updates, p: PlanBuilder) -> None:
        d, lines, y = problem.desc, self._lines(problem), problem.desc.output_tensor
        p.add(copied_input(p, d.input_tensor, y))
        p.dispatch(
            self.file, -(-lines.count // _LINES), updates=p.read("updates_tensor"),
            indices=p.read("indices_tensor"), y=p.write("output_tensor"), params=lines.words,
            push={"lines": lines.count, "size": y.sizes[problem.axis], "updates": problem.updates,
                  "steps": tuple(t.strides[problem.axis]
                                 for t in (d.updates_tensor, d.indices_tensor, y))},
            spec={"LOCAL_SIZE": _LINES, "INDEX_TYPE": d.indices_tensor.data_type.code,
                  **self.spec(d)})


class _ScatteredPlaces(Kernel[Updates]):
    """Any layout, in three steps."""

    name = "places"
    cost = 2.0

    def lower(self, problem: Updates, p: PlanBuilder) -> None:
        scatter(p, problem.places)


SCATTER_KERNELS: tuple[Kernel[Updates], ...] = (_ScatteredRows(), Columns(), _ScatteredPlaces())


# GATHER_ND, GATHER_ND1, SCATTER_ND


@dataclass(frozen=True)
class Tuples:
    """The valid dimensions of an operator whose indices' last dimension is a tuple."""

    input_sizes: Ints
    input_strides: Ints
    index_sizes: Ints
    index_strides: Ints
    """Strides of the indices without the tuple's dimension."""
    length: int
    """The number of indices in a tuple."""
    step: int
    batches: int

    @property
    def sizes(self) -> Ints:
        return (*self.index_sizes, *self.input_sizes[self.batches + self.length:])

    def indexed(self, listed: TensorDesc) -> Indexed:
        b, k, outer = self.batches, self.length, len(self.index_sizes)
        chosen = range(b, b + k)
        slice_strides = self.input_strides[b + k:]
        slots = packed_strides(self.input_sizes[b:b + k])
        return Indexed(
            self.sizes, _right_aligned(listed.strides, len(self.sizes)),
            (*self.index_strides, *(0,) * len(slice_strides)),
            (*self.input_strides[:b], *(0,) * (outer - b), *slice_strides),
            (*(True,) * outer, *(False,) * len(slice_strides)),
            tuple(Coordinate(self.input_sizes[i], self.input_strides[i], slots[i - b])
                  for i in chosen), self.step)


def tuples_of(d: OperatorDesc) -> Tuples:
    """Check the description and return its dimensions."""
    x, indices, name = d.input_tensor, d.indices_tensor, d.operator.name
    counts = []
    for field, of, t, count in (
            ("InputDimensionCount", "InputTensor", x, d.input_dimension_count),
            ("IndicesDimensionCount", "IndicesTensor", indices, d.indices_dimension_count)):
        rank = t.dimension_count
        expect(1 <= count <= rank, name, field,
               f"be in [1, {rank}] ({of} has {rank} dimensions)", count)
        expect(product(t.sizes[:rank - count]) == 1, name, f"{of}.Sizes",
               f"have only 1s before the last {count} ({field})", list(t.sizes))
        counts.append(rank - count)
    batches, length = getattr(d, "batch_dimension_count", 0), indices.sizes[-1]
    most = min(d.input_dimension_count, d.indices_dimension_count)
    expect(0 <= batches < most, name, "BatchDimensionCount", f"be in [0, {most})", batches)
    room = d.input_dimension_count - batches
    expect(length <= room, name, f"IndicesTensor.Sizes[{indices.dimension_count - 1}]",
           f"be at most {room} (dimensions of InputTensor that are no batches)", length)
    result = Tuples(x.sizes[counts[0]:], x.strides[counts[0]:], indices.sizes[counts[1]:-1],
                     indices.strides[counts[1]:-1], length, indices.strides[-1], batches)
    expect(result.index_sizes[:batches] == result.input_sizes[:batches], name,
           "IndicesTensor.Sizes", f"begin with the input's batches "
           f"{list(result.input_sizes[:batches])}", list(result.index_sizes[:batches]))
    surplus = max(len(result.sizes) - x.dimension_count, 0)
    expect(product(result.sizes[:surplus]) == 1, name, "IndicesTensor.Sizes",
           f"make at most {x.dimension_count} dimensions with the slices of InputTensor",
           list(result.sizes))
    return result


def _tuple_sizes(d: OperatorDesc) -> Ints:
    sizes, rank = tuples_of(d).sizes, d.input_tensor.dimension_count
    return pad_left(sizes, rank, 1)[-rank:]


def _gathered_tuples(d: OperatorDesc) -> Output:
    return Output(_tuple_sizes(d), d.input_tensor.data_type)


def _gather_tuples(d: OperatorDesc, p: PlanBuilder) -> None:
    gather(p, tuples_of(d).indexed(d.output_tensor))


GatherNdOperatorDesc = operator(
    "GATHER_ND", output=_output(_gathered_tuples), shaders=GATHERS)(_gather_tuples)
GatherNd1OperatorDesc = operator(
    "GATHER_ND1", output=_output(_gathered_tuples), shaders=GATHERS,
    batch_dimension_count=0)(_gather_tuples)


def check_scatter_nd(d: OperatorDesc, strict: bool) -> None:
    sizes = _tuple_sizes(d)
    expect(d.updates_tensor.sizes == sizes, d.operator.name, "UpdatesTensor.Sizes",
           f"be {list(sizes)}", list(d.updates_tensor.sizes))


@operator("SCATTER_ND", output=_output(_like_input), shaders=SCATTERS,
          check=check_scatter_nd)
def ScatterNdOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    y = d.output_tensor
    how = tuples_of(d)
    how = replace(how, input_strides=y.strides[-len(how.input_strides):])
    scatter(p, how.indexed(d.updates_tensor))


# ONE_HOT


_ROWS_AT_ONCE, _ONE_HOT_PARTS = True, 4


def _check_one_hot(d: OperatorDesc, strict: bool) -> None:
    indices, values, y, name = d.indices_tensor, d.values_tensor, d.output_tensor, d.operator.name
    axis = axis_in(name, d.axis, y, of="OutputTensor")
    sizes = [1 if i == axis else n for i, n in enumerate(y.sizes)]
    expect(list(indices.sizes) == sizes, name, "IndicesTensor.Sizes",
           f"be {sizes} (the output's, 1 on Axis)", list(indices.sizes))
    expect(values.element_count >= 2, name, "ValuesTensor.Sizes",
           "have at least two elements: off and on", list(values.sizes))


@operator("ONE_HOT", shaders=("one_hot",), check=_check_one_hot)
def OneHotOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    indices, values, y, axis = d.indices_tensor, d.values_tensor, d.output_tensor, d.axis
    kind = y.data_type
    along = tuple(int(i == axis) for i in range(y.dimension_count))
    read = tuple(0 if a else s for a, s in zip(along, indices.strides))
    last = max((i for i, n in enumerate(y.sizes) if n > 1), default=0)
    each = 16 // kind.itemsize
    if (not y.is_aligned or y.strides[last] != 1 or y.sizes[last] % each
            or any(s % each for i, s in enumerate(y.strides) if i != last and y.sizes[i] > 1)):
        each = 1
    sizes = tuple(n // each if i == last else n for i, n in enumerate(y.sizes))
    walk = Walk(sizes, *(tuple(s * each if i == last else s for i, s in enumerate(strides))
                         for strides in (y.strides, read, along)))
    rows = (_ROWS_AT_ONCE and each > 1 and last == axis and is_packed(y.sizes, y.strides)
            and is_packed(indices.sizes, indices.strides))
    parts = 1 if p.device.is_cpu else _ONE_HOT_PARTS
    per_row = y.sizes[last] // each
    fastest = max(i for i, n in enumerate(values.sizes) if n > 1)
    p.dispatch(
        "one_hot", -(-walk.count // (p.device.local_size * parts)),
        indices=p.read("indices_tensor"), values=p.read("values_tensor"),
        y=p.write("output_tensor"), params=walk.words,
        push={"count": walk.count, "depth": y.sizes[axis], "on_at": values.strides[fastest],
              "position_step": along[last], "index_step": read[last],
              "per_row": (per_row, *reciprocal(per_row))},
        spec={"LOCAL_SIZE": p.device.local_size, "TYPE": kind.itemsize,
              "INDEX_TYPE": indices.data_type.code, "EACH": each, "PARTS": parts, "ROWS": rows},
    )


# NONZERO_COORDINATES


def _nonzero_outputs(d: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    x = d.input_tensor
    outputs: dict[str, Output | list[Output]] = {}
    # _check_nonzero checks descriptions with other valid sizes.
    if d.output_count_tensor is None:
        outputs["output_count_tensor"] = Output((1,), DataType.UINT32)
    if d.output_coordinates_tensor is None:
        outputs["output_coordinates_tensor"] = Output(
            (x.element_count, x.dimension_count), DataType.UINT32)
    return outputs


def _check_nonzero(d: OperatorDesc, strict: bool) -> None:
    x, count, y, name = (d.input_tensor, d.output_count_tensor, d.output_coordinates_tensor,
                         d.operator.name)
    expect(count.element_count == 1, name, "OutputCountTensor.Sizes", "be all 1",
           list(count.sizes))
    rank = x.dimension_count
    first = next((i for i, n in enumerate(x.sizes) if n > 1), rank - 1)
    *outer, rows, columns = y.sizes
    expect(product(outer) == 1 and rows == x.element_count and rank - first <= columns <= rank,
           name, "OutputCoordinatesTensor.Sizes",
           f"be [..., {x.element_count}, N] with N in [{rank - first}, {rank}]", list(y.sizes))


@operator("NONZERO_COORDINATES", output=_nonzero_outputs, check=_check_nonzero,
          shaders=("nonzero_marks", "nonzero_sums", "nonzero_coordinates"))
def NonzeroCoordinatesOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    p.expect_shared("nonzero_coordinates")
    x, y = d.input_tensor, d.output_coordinates_tensor
    count, kind = x.element_count, x.data_type
    blocks = -(-count // _BLOCK)
    walk = Walk(x.sizes, x.strides)
    marks, counts = p.temporary(4, blocks * (_BLOCK // 32)), p.temporary(4, blocks)
    each = 16 // kind.itemsize if x.is_packed and x.is_aligned else 1
    p.dispatch(
        "nonzero_marks", blocks, x=p.read("input_tensor"), marks=marks, counts=counts,
        params=walk.words, push={"count": count},
        spec={"LOCAL_SIZE": 256, "TYPE": kind.code, "EACH": each},
    )
    p.dispatch(
        "nonzero_sums", 1, counts=counts, total=p.write("output_count_tensor"),
        push={"count": blocks}, spec={"LOCAL_SIZE": min(1024, p.device.max_invocations)},
    )
    columns = y.sizes[-1]
    sizes = x.sizes[x.dimension_count - columns:]
    row_stride, column_stride = y.strides[-2:]
    p.dispatch(
        "nonzero_coordinates", blocks, marks=marks.reading(), counts=counts.reading(),
        y=p.write("output_coordinates_tensor"), params=_divisors(sizes),
        push={"blocks": blocks, "coordinates": columns, "row_stride": row_stride,
              "column_stride": column_stride},
        spec={"LOCAL_SIZE": 256,
              "PAIRS": columns == 2 and sizes[1] > 1 and (row_stride, column_stride) == (2, 1)
              and y.base_alignment % 8 == 0},
    )


def _divisors(sizes: Sequence[int]) -> list[int]:
    """Size, multiplier and shift of each dimension, from the last."""
    return [w for n in reversed(sizes) for w in (n, *reciprocal(n))]
