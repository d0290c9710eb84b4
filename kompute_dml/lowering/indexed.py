"""How tensors of indices lower: gathers, and scatters in three steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from ..desc import TensorDesc
from ..errors import UnsupportedError
from ..layout import Ints, packed_strides, product
from ..runtime.traits import DeviceTraits
from ..tuning import work_key
from .builder import PlanBuilder
from .copy import SHADERS as COPY_SHADERS
from .copy import copied_input
from .kernel import Kernel, choose
from .plan import UNUSED, in_units
from .walk import Walk, of_vectors, runs_of

GATHERS = "gather", "gather_vectors"
SCATTERS = "scatter", *COPY_SHADERS
_LOCAL_SIZE = 256
_ROW_LOCAL_SIZE, _ROW_PARTS = 128, 2
"""Of workgroups that copy a part of one row."""
_SHORTEST_ROW = 64
"""Bytes of a slice that an invocation of a CPU copies as a row."""


@dataclass(frozen=True)
class Coordinate:
    """The axis of the indexed tensor on which one index gives a coordinate."""

    size: int
    stride: int
    slots: int = 0
    """The stride in a packed tensor with an element for each place that updates can have."""


@dataclass(frozen=True)
class Indexed:
    """The elements that move between a listed tensor (a gather's output, a scatter's updates) and
    an indexed one (a gather's input, a scatter's output): all dimensions that either has."""

    sizes: Ints
    listed: Ints
    """Strides of the listed tensor."""
    indices: Ints
    """Strides of the indices, 0 where one serves the whole dimension."""
    indexed: Ints
    """Strides of the indexed tensor, 0 where the indices give the coordinate."""
    tuples: tuple[bool, ...]
    """Which dimensions distinguish tuples of indices. The others make a slice."""
    coordinates: tuple[Coordinate, ...]
    step: int
    """From one index of a tuple to the next."""

    @property
    def last(self) -> int:
        """The last dimension that is walked."""
        return max((d for d, n in enumerate(self.sizes) if n > 1), default=0)

    @property
    def axes(self) -> list[int]:
        """Words of the coordinates, for the params buffer."""
        return [w for c in self.coordinates for w in (c.size, c.stride)]

    def in_blocks(self, listed: TensorDesc, indexed: TensorDesc) -> tuple[int, Indexed]:
        """Bytes of the largest blocks that move as one, and this description counted in blocks."""
        itemsize = listed.data_type.itemsize
        last = self.last
        if not self.sizes or self.tuples[last] or self.listed[last] != 1 or self.indexed[last] != 1:
            return itemsize, self
        # Dimensions of size 1 are not walked.
        steps = [s[d] for s in (self.listed, self.indexed)
                 for d, n in enumerate(self.sizes) if n > 1 and d != last]
        counts = [self.sizes[last], *steps, *(c.stride for c in self.coordinates if c.size > 1)]
        for unit in (16, 8, 4):
            each = unit // itemsize
            if each < 2:
                break
            if any(n % each for n in counts) or any(
                    t.base_alignment % unit for t in (listed, indexed)):
                continue

            def parts(strides: Ints, each: int = each) -> Ints:
                return tuple(1 if d == last else s // each for d, s in enumerate(strides))

            sizes = tuple(n // each if d == last else n for d, n in enumerate(self.sizes))
            coordinates = tuple(replace(c, stride=c.stride // each) for c in self.coordinates)
            return unit, replace(self, sizes=sizes, listed=parts(self.listed),
                                 indexed=parts(self.indexed), coordinates=coordinates)
        return itemsize, self


class Runs(NamedTuple):
    """How a CPU moves slices that are contiguous rows (include/runs.glsl)."""

    rows: Walk
    invocations: int
    push: dict[str, int]
    spec: dict[str, int]

    @classmethod
    def of(cls, device: DeviceTraits, walk: Walk, unit: int) -> Runs | None:
        """Of elements of ``unit`` bytes. The walk's first and third operand hold them."""
        size = walk.sizes[-1]
        moving = [int(i in (0, 2)) for i in range(len(walk.strides))]
        if (not device.is_cpu or [s[-1] for s in walk.strides] != moving
                or size * unit < _SHORTEST_ROW):
            return None
        rows = Walk(walk.sizes[:-1], *(s[:-1] for s in walk.strides))
        run, runs, local_size = runs_of(rows.count, size, 16 // unit)
        return cls(rows, rows.count * runs, {"row_size": size, "runs": runs},
                   {"LOCAL_SIZE": local_size, "RUN": run})


class Gathering:
    """What a gather moves."""

    def __init__(self, p: PlanBuilder, how: Indexed) -> None:
        self.how, d = how, p.desc
        self.x, self.indices, self.y = d.input_tensor, d.indices_tensor, d.output_tensor
        self.itemsize = self.y.data_type.itemsize
        self.elements = Walk(how.sizes, how.listed, how.indices, how.indexed)

    @property
    def work(self) -> str:
        kind = f"gather {self.y.data_type.width} {self.indices.data_type.width}"
        return work_key(kind, self.elements.count, self.indices.element_count)

    def dispatch(
        self, p: PlanBuilder, walk: Walk, invocations: int, push: dict[str, int],
        spec: dict[str, int], unit: int, how: Indexed,
    ) -> None:
        p.dispatch(
            "gather", -(-invocations // spec["LOCAL_SIZE"]),
            x=in_units(p.read("input_tensor"), unit), indices=p.read("indices_tensor"),
            y=in_units(p.write("output_tensor"), unit), params=[*walk.words, *how.axes],
            push={"count": walk.count, "axes_at": len(walk.words), "step": how.step, **push},
            spec={"INDEX_TYPE": self.indices.data_type.code,
                  "COORDINATES": len(self.how.coordinates), "UNIT": unit, **spec})


class _IndexedVectors(Kernel[Gathering]):
    """Indices and output consist of whole vectors, and each element has its own index."""

    name = "vectors"

    def shader(self, problem: Gathering) -> str:
        return "gather_vectors"

    def serves(self, problem: Gathering, traits: DeviceTraits) -> str | None:
        how, last, widths = problem.how, problem.how.last, (1, 2, 4) if traits.is_cpu else (2, 4)
        if (problem.itemsize not in widths or not how.sizes
                or how.sizes[last] * problem.itemsize % 16
                or len(how.coordinates) != 1 or not how.tuples[last]):
            return "an index serves several elements, or they are no vectors"

        def even(t: TensorDesc, strides: Ints) -> bool:
            of = 16 // t.data_type.itemsize
            return t.is_aligned and strides[last] == 1 and not any(
                s % of for i, s in enumerate(strides) if i != last and how.sizes[i] > 1)

        aligned = even(problem.y, how.listed) and even(problem.indices, how.indices)
        return None if aligned else "indices or outputs are no vectors"

    def lower(self, problem: Gathering, p: PlanBuilder) -> None:
        how, last, each = problem.how, problem.how.last, 16 // problem.itemsize

        sizes = tuple(n // each if i == last else n for i, n in enumerate(how.sizes))
        walk = Walk(sizes, *(of_vectors(s, each, last)
                             for s in (how.listed, how.indices, how.indexed)))
        (axis,) = how.coordinates
        p.dispatch(
            "gather_vectors", -(-walk.count // _LOCAL_SIZE), x=p.read("input_tensor"),
            indices=p.read("indices_tensor"), y=p.write("output_tensor"), params=walk.words,
            push={"count": walk.count, "size": axis.size, "stride": axis.stride,
                  "step": how.indexed[last]},
            spec={"LOCAL_SIZE": _LOCAL_SIZE, "TYPE": problem.itemsize,
                  "INDEX_TYPE": problem.indices.data_type.code})


class _IndexedRuns(Kernel[Gathering]):
    """Rows that a CPU copies as a whole."""

    name = "runs"
    cost = 1.0

    def serves(self, problem: Gathering, traits: DeviceTraits) -> str | None:
        runs = Runs.of(traits, problem.elements, problem.itemsize)
        return None if runs else "for long rows, on a CPU"

    def lower(self, problem: Gathering, p: PlanBuilder) -> None:
        runs = Runs.of(p.device, problem.elements, problem.itemsize)
        assert runs is not None
        problem.dispatch(p, *runs, problem.itemsize, problem.how)


class _IndexedBlocks(Kernel[Gathering]):
    """Any layout, by the largest blocks that move as one."""

    name = "blocks"
    cost = 3.0

    def blocks(self, problem: Gathering) -> tuple[int, Indexed, Walk]:
        """Their bytes, what is counted in them, and its walk."""
        unit, how = problem.how.in_blocks(problem.y, problem.x)
        return unit, how, Walk(how.sizes, how.listed, how.indices, how.indexed)

    def lower(self, problem: Gathering, p: PlanBuilder) -> None:
        unit, how, walk = self.blocks(problem)
        parts = 1 if p.device.is_cpu else 4
        problem.dispatch(p, walk, -(-walk.count // parts), {},
                         {"LOCAL_SIZE": _LOCAL_SIZE, "PARTS": parts}, unit, how)


class _BlocksOfRows(_IndexedBlocks):
    """Rows of blocks that one index chooses, in workgroups of their own."""

    name = "rows"
    cost = 2.0

    def _groups(self, walk: Walk) -> int:
        return -(-walk.sizes[-1] // (_ROW_LOCAL_SIZE * _ROW_PARTS))

    def serves(self, problem: Gathering, traits: DeviceTraits) -> str | None:
        walk = self.blocks(problem)[2]
        span = self._groups(walk) * _ROW_LOCAL_SIZE * _ROW_PARTS
        fills = (not traits.is_cpu and len(walk.sizes) > 1 and 8 * span <= 9 * walk.sizes[-1]
                 and [s[-1] for s in walk.strides] == [1, 0, 1])
        return None if fills else "rows fill no workgroups, or a CPU"

    def lower(self, problem: Gathering, p: PlanBuilder) -> None:
        unit, how, walk = self.blocks(problem)
        groups, size = self._groups(walk), walk.sizes[-1]
        walk = Walk(walk.sizes[:-1], *(s[:-1] for s in walk.strides))
        problem.dispatch(
            p, walk, walk.count * groups * _ROW_LOCAL_SIZE, {"row_size": size, "runs": groups},
            {"LOCAL_SIZE": _ROW_LOCAL_SIZE, "PARTS": _ROW_PARTS, "ROWS": True,
             "WALK_RANK": len(walk.sizes)}, unit, how)


GATHER_KERNELS: tuple[Kernel[Gathering], ...] = (
    _IndexedVectors(), _IndexedRuns(), _BlocksOfRows(), _IndexedBlocks())


def gather(p: PlanBuilder, how: Indexed) -> None:
    """Write the plan of a gather."""
    problem = Gathering(p, how)
    choose(GATHER_KERNELS, problem, p).lower(problem, p)


def scatter(p: PlanBuilder, how: Indexed) -> None:
    """The output is the input; then of the updates of each place the last one is written."""
    d = p.desc
    p.add(copied_input(p, d.input_tensor, d.output_tensor))
    slots = product([c.size for c in how.coordinates])
    of_tuples = [n if t else 1 for n, t in zip(how.sizes, how.tuples)]
    # Updates whose indices cannot give the same place have separate slots.
    places: list[int] = []
    for n, s, t in zip(how.sizes, how.indexed, how.tuples):
        places.append(slots if t and s != 0 and n > 1 else 0)
        slots *= n if places[-1] else 1
    if slots * 4 > p.device.max_range:
        raise UnsupportedError(
            f"{d.operator.name}: indices that choose among {slots} places are not supported on "
            f"this device (each takes 4 bytes, of {p.device.max_range} at most)")
    numbers = tuple(s if t else 0 for s, t in zip(packed_strides(of_tuples), how.tuples))
    whole = Walk(how.sizes, how.listed, how.indices, how.indexed, numbers, places)
    runs = Runs.of(p.device, whole, d.output_tensor.data_type.itemsize)
    unit, blocks = how.in_blocks(d.updates_tensor, d.output_tensor)
    if runs:
        unit, blocks = d.output_tensor.data_type.itemsize, how
    indices, claimed = p.read("indices_tensor"), p.zeroed(4, slots)
    tuples = replace(how, sizes=tuple(of_tuples))
    for step, of in enumerate((tuples, blocks, tuples)):
        walk = Walk(of.sizes, of.listed, of.indices, of.indexed, numbers, places)
        writes = step == 1
        invocations = walk.count
        push: dict[str, int] = {}
        spec = {"LOCAL_SIZE": p.device.local_size}
        if runs and writes:
            walk, invocations, push, spec = runs
        p.dispatch(
            "scatter", -(-invocations // spec["LOCAL_SIZE"]),
            x=in_units(p.read("updates_tensor"), unit) if writes else UNUSED, indices=indices,
            y=in_units(p.write("output_tensor"), unit) if writes else UNUSED, slots=claimed,
            params=[*walk.words, *(w for c in of.coordinates for w in (c.size, c.stride, c.slots))],
            push={"count": walk.count, "axes_at": len(walk.words), "step": of.step, **push},
            spec={"STEP": step, "INDEX_TYPE": d.indices_tensor.data_type.code,
                  "COORDINATES": len(of.coordinates), "UNIT": unit, **spec},
        )
