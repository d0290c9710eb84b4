"""JOIN and SPLIT: tensors that lie beside each other in a whole one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..desc import TensorDesc
from ..errors import expect
from ..layout import Ints, product
from ..lowering import copy, measured
from ..lowering.builder import PlanBuilder
from ..lowering.copy import CopyView, copied
from ..lowering.kernel import Kernel, choose
from ..lowering.plan import UNUSED, Operand
from ..lowering.walk import Walk, length_of
from ..runtime.traits import DeviceTraits
from ..tuning import work_key
from .base import OperatorDesc, Output, axis_in, operator

_FEW = 7
"""Tensors that a dispatch of ``join`` takes beside the whole."""
_MANY = 14, 28
"""Those of ``join_many``, which also binds words of the plan."""
_WALKED = 6, 14
"""Those of ``join_walked``."""
_WORDS = 5
"""That its params have of a part, beside the walk."""
_UNITS = 4
"""That an invocation moves."""
_RUNS_ON_CPU, _LANES_ON_CPU = 1 << 12, 64
_SHADERS = ("join", "join_many", "join_walked", *copy.SHADERS)


def _pieces(d: OperatorDesc, pieces: str, one: TensorDesc) -> Ints:
    """The sizes of the tensors of array ``pieces`` together. Raises where they do not fit, and are
    not like ``one`` but on the axis."""
    tensors = getattr(d, pieces)
    axis = axis_in(d.operator.name, d.axis, one, of="Input" if pieces[0] == "i" else "InputTensor")
    field = next(f.name for f in d.operator.spec.fields if f.snake == pieces)
    wanted = list(one.sizes)
    for i, t in enumerate(tensors):
        expect(t.dimension_count == one.dimension_count, d.operator.name,
               f"{field}[{i}].DimensionCount", f"be {one.dimension_count}", t.dimension_count)
        wanted[axis] = t.sizes[axis]
        expect(list(t.sizes) == wanted, d.operator.name, f"{field}[{i}].Sizes",
               f"be {wanted} (alike on all axes but {axis})", list(t.sizes))
    wanted[axis] = sum(t.sizes[axis] for t in tensors)
    return tuple(wanted)


def _joined(d: OperatorDesc) -> dict[str, Output | list[Output]]:
    first = d.input_tensors[0]
    return {"output_tensor": Output(_pieces(d, "input_tensors", first), first.data_type)}


@operator("JOIN", output=_joined, shaders=_SHADERS, in_place=False)
def JoinOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _move(p, Joined("output_tensor", d.output_tensor, "input_tensors", d.input_tensors, d.axis))


def _check_split(d: OperatorDesc, strict: bool) -> None:
    x = d.input_tensor
    together = _pieces(d, "output_tensors", x)
    axis = d.axis
    expect(together[axis] == x.sizes[axis], d.operator.name,
           f"the sum of OutputTensors[].Sizes[{axis}]",
           f"equal InputTensor.Sizes[{axis}] = {x.sizes[axis]}", together[axis])


@operator("SPLIT", shaders=_SHADERS, check=_check_split, in_place=False)
def SplitOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _move(p, Joined("input_tensor", d.input_tensor, "output_tensors", d.output_tensors, d.axis))


@dataclass(frozen=True)
class Joined:
    """A whole tensor, and those that lie beside each other in it."""

    whole: str
    of: TensorDesc
    """Slot and description of the whole."""
    pieces: str
    tensors: Sequence[TensorDesc]
    """Slot and descriptions of the parts."""
    axis: int

    @property
    def joins(self) -> bool:
        """Whether the parts are moved to the whole, as JOIN does."""
        return self.whole == "output_tensor"

    @property
    def how(self) -> str:
        return "join" if self.joins else "split"

    @property
    def work(self) -> str:
        return work_key(f"{self.how} {self.of.data_type.width}", len(self.tensors),
                        self.of.element_count)

    def parts(self) -> list[tuple[CopyView, CopyView]]:
        """Each part, and where it lies in the whole."""
        parts, begin = [], 0
        for i, t in enumerate(self.tensors):
            there = CopyView(self.whole, self.of, self.of.strides,
                             begin * self.of.strides[self.axis])
            parts.append((CopyView.whole(f"{self.pieces}[{i}]", t), there))
            begin += t.sizes[self.axis]
        return parts


class _JoinedRows(Kernel[Joined]):
    """Packed tensors, whose rows are whole units of 4 or 16 bytes."""

    name = "rows"

    def serves(self, problem: Joined, traits: DeviceTraits) -> str | None:
        if len(problem.tensors) == 1 or traits.max_bindings < _FEW + 1:
            return "for several tensors, and a device that binds them"
        return None if self._unit(problem) else "tensors are not packed, or rows are no units"

    def _unit(self, problem: Joined) -> int:
        """The bytes that divide all rows of all tensors: 16, 4, or 0 where neither does."""
        tensors, axis = problem.tensors, problem.axis
        if not all(t.is_packed for t in (problem.of, *tensors)):
            return 0
        rows = [product(t.sizes[axis:]) * t.data_type.itemsize for t in tensors]
        for unit in (16, 4):
            if all(n % unit == 0 for n in rows) and all(
                    t.base_alignment % unit == 0 for t in (problem.of, *tensors)):
                return unit
        return 0

    def lower(self, problem: Joined, p: PlanBuilder) -> None:
        unit, rows = self._unit(problem), product(problem.of.sizes[:problem.axis])
        widths = [t.element_count * t.data_type.itemsize // unit // rows for t in problem.tensors]
        most = max((n for n in _MANY if n + 2 <= p.device.max_bindings), default=_FEW)
        for first in range(0, len(problem.tensors), most):
            _Span(p, problem, unit, rows, widths, first, most).dispatch()


_Walks = list[tuple[Ints, Ints, Ints]]
"""Sizes and strides of each part, and its strides in the whole."""


def _of_rows(walks: _Walks) -> bool:
    """Whether rows are contiguous."""
    return all(a[-1] == b[-1] == 1 for _, a, b in walks)


class _JoinedWalks(Kernel[Joined]):
    """Any layout, many parts in a dispatch."""

    name = "walked"
    cost = 1.0

    def _most(self, traits: DeviceTraits) -> int:
        return max((n for n in _WALKED if n + 2 <= traits.max_bindings), default=0)

    def _walks(self, problem: Joined) -> _Walks:
        walks: _Walks = []
        for piece, there in problem.parts():
            ends = (piece, there) if problem.joins else (there, piece)
            sizes, one, other = copy.in_order_of_output(
                piece.desc.sizes, *(v.strides for v in ends))
            walks.append((sizes, one, other) if problem.joins else (sizes, other, one))
        return walks

    def serves(self, problem: Joined, traits: DeviceTraits) -> str | None:
        if len(problem.tensors) == 1 or not self._most(traits):
            return "for several tensors, and a device that binds them"
        if traits.is_cpu:
            return "a CPU copies long runs"  # include/runs.glsl
        walks = self._walks(problem)
        # Of more elements a copy is faster, where they are moved one by one.
        most = measured.figure(traits, "join", "elements")
        if _of_rows(walks) or all(product(sizes) <= most for sizes, _, _ in walks):
            return None
        return "a part is large, and rows are not contiguous"

    def lower(self, problem: Joined, p: PlanBuilder) -> None:
        most, walks, parts = self._most(p.device), self._walks(problem), problem.parts()
        rows = _of_rows(walks)
        kind, local_size = problem.of.data_type, p.device.local_size
        each = 16 // kind.itemsize
        of_part, of_whole = (p.read, p.write) if problem.joins else (p.write, p.read)
        for first in range(0, len(parts), most):
            last = min(first + most, len(parts))
            operands: dict[str, Any] = {f"part{i}": UNUSED for i in range(most)}
            words: list[int] = []
            of_walks: list[int] = []
            groups = 0
            for i in range(first, last):
                sizes, *strides = walks[i]
                row = sizes[-1] if rows else 1
                end = -1 if rows else len(sizes)
                walk = Walk(sizes[:end], *(s[:end] for s in strides))
                words += [groups, row, walk.count, parts[i][1].start,
                          _WORDS * (last - first) + len(of_walks)]
                of_walks += walk.words
                # Vectors that a row may lie in.
                per_row = (row + each - 2) // each + 1 if rows else 1
                groups += -(-walk.count * per_row // local_size)
                operands[f"part{i - first}"] = of_part(parts[i][0].slot)
            p.dispatch(
                f"join_walked.{problem.how}.p{most}", groups, **operands,
                whole=of_whole(problem.whole), params=[*words, *of_walks],
                spec={"LOCAL_SIZE": local_size, "PARTS": last - first, "BYTES": kind.itemsize,
                      "ROWS": rows})


class _PartCopies(Kernel[Joined]):
    """A copy of each part."""

    name = "copies"
    cost = 2.0

    def lower(self, problem: Joined, p: PlanBuilder) -> None:
        for piece, there in problem.parts():
            views = (piece, there) if problem.joins else (there, piece)
            p.add(copied(p, piece.desc.sizes, *views))


KERNELS: tuple[Kernel[Joined], ...] = (_JoinedRows(), _JoinedWalks(), _PartCopies())


def _move(p: PlanBuilder, problem: Joined) -> None:
    choose(KERNELS, problem, p).lower(problem, p)


@dataclass(frozen=True)
class _Span:
    """One dispatch: at most ``most`` parts from number ``first`` on, in rows of whole units."""

    p: PlanBuilder
    problem: Joined
    unit: int
    rows: int
    all_widths: Sequence[int]
    """Units in a row of each part."""
    first: int
    most: int

    @property
    def widths(self) -> Sequence[int]:
        return self.all_widths[self.first : self.first + self.most]

    @property
    def begins(self) -> list[int]:
        """Where the parts begin in a row, and where the last one ends."""
        return [sum(self.widths[:i]) for i in range(len(self.widths) + 1)]

    @property
    def pitch(self) -> int:
        return sum(self.all_widths)

    def dispatch(self) -> None:
        if len(self.widths) <= _FEW:
            self._few()
        else:
            self._many(next(n for n in _MANY if n >= len(self.widths)))

    def _operands(self, bound: int) -> dict[str, Any]:
        whole, pieces, joins = self.problem.whole, self.problem.pieces, self.problem.joins
        parts = [Operand(f"{pieces}[{self.first + i}]", None, self.unit, self.rows * width, 0,
                         not joins) for i, width in enumerate(self.widths)]
        parts += [UNUSED] * (bound - len(parts))
        length = (self.rows - 1) * self.pitch + self.begins[-1]
        before = sum(self.all_widths[: self.first])
        return {**{f"part{i}": part for i, part in enumerate(parts)},
                "whole": Operand(whole, None, self.unit, length, before, joins)}

    def _few(self) -> None:
        each = _UNITS if self.p.device.is_cpu else 1
        count, local_size = self.rows * self.begins[-1], self.p.device.local_size
        self.p.dispatch(
            f"join.{self.problem.how}", -(-count // (each * local_size)), **self._operands(_FEW),
            push={"count": count, "pitch": self.pitch, "begins": self.begins},
            spec={"LOCAL_SIZE": local_size, "PARTS": len(self.widths), "VECTORS": self.unit == 16,
                  "EACH": each},
        )

    def _many(self, bound: int) -> None:
        on_cpu, local_size, each = self.p.device.is_cpu, self.p.device.local_size, _UNITS
        if on_cpu:
            local_size = _LANES_ON_CPU
            each = length_of(self.rows * self.begins[-1] // _RUNS_ON_CPU)
        groups, params = 0, []
        for begin, width in zip(self.begins, self.widths):
            params += [groups, begin, width]
            groups += -(-self.rows * width // (each * local_size))
        self.p.dispatch(
            f"join_many.{self.problem.how}.p{bound}", groups, **self._operands(bound),
            params=params, push={"rows": self.rows, "pitch": self.pitch},
            spec={"LOCAL_SIZE": local_size, "PARTS": len(self.widths), "VECTORS": self.unit == 16,
                  "EACH": each, "ON_CPU": on_cpu},
        )
