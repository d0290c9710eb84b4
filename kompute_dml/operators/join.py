"""JOIN and SPLIT: tensors that lie beside each other in a whole one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..desc import TensorDesc
from ..errors import expect
from ..layout import Ints, product
from ..lowering import copy
from ..lowering.builder import PlanBuilder
from ..lowering.copy import CopyView, copied
from ..lowering.plan import UNUSED, Operand
from ..lowering.walk import Walk, length_of
from .base import OperatorDesc, Output, axis_in, operator

_FEW = 7
"""Tensors that a dispatch of ``join`` takes beside the whole."""
_MANY = 14, 28
"""Those of ``join_many``, which also binds words of the plan."""
_WALKED = 6, 14
"""Those of ``join_walked``."""
_WORDS = 5
"""That its params have of a part, beside the walk."""
_LITTLE = 1 << 18
"""Elements of a part that are moved one by one at most, where a copy of it would be faster."""
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
    _join(p, "output_tensor", d.output_tensor, "input_tensors", d.input_tensors, d.axis)


def _check_split(d: OperatorDesc, strict: bool) -> None:
    x = d.input_tensor
    together = _pieces(d, "output_tensors", x)
    axis = d.axis
    expect(together[axis] == x.sizes[axis], d.operator.name,
           f"the sum of OutputTensors[].Sizes[{axis}]",
           f"equal InputTensor.Sizes[{axis}] = {x.sizes[axis]}", together[axis])


@operator("SPLIT", shaders=_SHADERS, check=_check_split, in_place=False)
def SplitOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _join(p, "input_tensor", d.input_tensor, "output_tensors", d.output_tensors, d.axis)


def _join(
    p: PlanBuilder, whole: str, of: TensorDesc, pieces: str, tensors: Sequence[TensorDesc],
    axis: int,
) -> None:
    """Move ``tensors`` to where they lie in ``whole``; for SPLIT the other way."""
    unit = _unit(p, of, tensors, axis)
    if unit:
        rows = product(of.sizes[:axis])
        widths = [t.element_count * t.data_type.itemsize // unit // rows for t in tensors]
        most = max((n for n in _MANY if n + 2 <= p.device.max_bindings), default=_FEW)
        for first in range(0, len(tensors), most):
            _Rows(p, whole, pieces, unit, rows, widths, first, most).dispatch()
        return
    parts, begin = [], 0
    for i, t in enumerate(tensors):
        piece = CopyView.whole(f"{pieces}[{i}]", t)
        parts.append((piece, CopyView(whole, of, of.strides, begin * of.strides[axis])))
        begin += t.sizes[axis]
    if _walked(p, whole, parts):
        return
    for piece, there in parts:
        views = (piece, there) if whole == "output_tensor" else (there, piece)
        p.add(copied(p, piece.desc.sizes, *views))


def _walked(p: PlanBuilder, whole: str, parts: Sequence[tuple[CopyView, CopyView]]) -> bool:
    """Add dispatches that move many parts each, or return False where a copy of each is better."""
    most = max((n for n in _WALKED if n + 2 <= p.device.max_bindings), default=0)
    if len(parts) == 1 or not most or p.device.is_cpu:
        return False  # a CPU copies long runs (include/runs.glsl)
    joins = whole == "output_tensor"
    walks = []
    for piece, there in parts:
        ends = (piece, there) if joins else (there, piece)
        sizes, *strides = copy.in_order_of_output(piece.desc.sizes, *(v.strides for v in ends))
        walks.append((sizes, *(strides if joins else strides[::-1])))
    rows = all(a[-1] == b[-1] == 1 for _, a, b in walks)
    if not rows and any(product(sizes) > _LITTLE for sizes, _, _ in walks):
        return False
    kind, local_size = parts[0][0].desc.data_type, p.device.local_size
    each, use = 16 // kind.itemsize, p.write if joins else p.read
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
            per_row = (row + each - 2) // each + 1 if rows else 1  # vectors that it may lie in
            groups += -(-walk.count * per_row // local_size)
            operands[f"part{i - first}"] = (p.read if joins else p.write)(parts[i][0].slot)
        p.dispatch(
            f"join_walked.{'join' if joins else 'split'}.p{most}", groups, **operands,
            whole=use(whole), params=[*words, *of_walks],
            spec={"LOCAL_SIZE": local_size, "PARTS": last - first, "BYTES": kind.itemsize,
                  "ROWS": rows},
        )
    return True


def _unit(p: PlanBuilder, of: TensorDesc, tensors: Sequence[TensorDesc], axis: int) -> int:
    """The unit in bytes that divides all rows of all tensors: 16, 4, or 0 where neither does."""
    if len(tensors) == 1 or p.device.max_bindings < _FEW + 1:
        return 0
    if not all(t.is_packed for t in (of, *tensors)):
        return 0
    rows = [product(t.sizes[axis:]) * t.data_type.itemsize for t in tensors]
    for unit in (16, 4):
        if all(n % unit == 0 for n in rows) and all(
                t.base_alignment % unit == 0 for t in (of, *tensors)):
            return unit
    return 0


@dataclass(frozen=True)
class _Rows:
    """One dispatch: at most ``most`` parts from number ``first`` on, in rows of whole units."""

    p: PlanBuilder
    whole: str
    pieces: str
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
        joins = self.whole == "output_tensor"
        parts = [Operand(f"{self.pieces}[{self.first + i}]", None, self.unit, self.rows * width, 0,
                         not joins) for i, width in enumerate(self.widths)]
        parts += [UNUSED] * (bound - len(parts))
        length = (self.rows - 1) * self.pitch + self.begins[-1]
        before = sum(self.all_widths[: self.first])
        return {**{f"part{i}": part for i, part in enumerate(parts)},
                "whole": Operand(self.whole, None, self.unit, length, before, joins)}

    @property
    def _how(self) -> str:
        return "join" if self.whole == "output_tensor" else "split"

    def _few(self) -> None:
        each = _UNITS if self.p.device.is_cpu else 1
        count, local_size = self.rows * self.begins[-1], self.p.device.local_size
        self.p.dispatch(
            f"join.{self._how}", -(-count // (each * local_size)), **self._operands(_FEW),
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
            f"join_many.{self._how}.p{bound}", groups, **self._operands(bound), params=params,
            push={"rows": self.rows, "pitch": self.pitch},
            spec={"LOCAL_SIZE": local_size, "PARTS": len(self.widths), "VECTORS": self.unit == 16,
                  "EACH": each, "ON_CPU": on_cpu},
        )
