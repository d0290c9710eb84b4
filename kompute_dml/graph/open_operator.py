"""Operators whose sizes a plan does not settle: one lowering serves a class of sizes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..compiler import Changed, CompiledOperator, ExecutionFlags, Operator
from ..desc import TensorDesc
from ..layout import Ints
from ..lowering.kernel import ChosenKernels
from ..lowering.plan import Dispatch, Plan
from ..operators.base import OperatorDesc
from ..runtime.pipelines import Shader
from ..sizes import Line, Settled, Size, SizeTrace, about, evaluator, value_of
from .listed import Forms, Unlisted
from .step import compile_repacking, owning, wanted_of

if TYPE_CHECKING:
    from ..device import Device

MAX_CLASSES, MAX_SIZES = 64, 4
"""The most classes of an operator, and the most where each is of some sizes only. The least
recently used one is dropped."""

_MAX_MAGNITUDES = 256
"""The most magnitudes of sizes that a class notes."""


def replaced(value: Any, number: Callable[[Size], int]) -> Any:
    """A description, or a part of one, with other numbers for its open sizes."""
    kind = type(value)
    if kind is Size:
        return number(value)
    if kind is tuple:
        new = tuple([replaced(v, number) for v in value])
        return new if any(a is not b for a, b in zip(new, value)) else value
    if kind is TensorDesc:
        sizes, strides = replaced(value.sizes, number), replaced(value.strides, number)
        total = replaced(value.total_tensor_size_in_bytes, number)
        alignment = replaced(value.guaranteed_base_offset_alignment, number)
        if (sizes is value.sizes and strides is value.strides
                and total is value.total_tensor_size_in_bytes
                and alignment is value.guaranteed_base_offset_alignment):
            return value
        return TensorDesc(value.data_type, sizes, strides, value.flags, total, alignment)
    if isinstance(value, OperatorDesc):
        new_fields = {name: replaced(v, number) for name, v in value.__dict__.items()}
        changes = {name: v for name, v in new_fields.items() if v is not value.__dict__[name]}
        return value.changed(**changes) if changes else value
    return value


def open_sizes(value: Any) -> list[Size]:
    """The open sizes of a description, each once."""
    sizes: dict[Size, None] = {}

    def note(size: Size) -> Size:
        sizes[size] = None
        return size

    replaced(value, note)
    return [*sizes]


class OpenOperator:
    """An operator of open sizes."""

    def __init__(
        self, device: Device, trace: SizeTrace, desc: OperatorDesc, constants: Collection[str],
        flags: ExecutionFlags, label: str = "",
    ) -> None:
        """``desc`` has sizes of ``trace``. Its ``constants`` may be repacked."""
        self._device, self._desc, self._flags = device, desc, flags
        self._constants = wanted_of(desc, constants)
        self._sizes = open_sizes(desc)
        self._evaluate = evaluator(trace, self._sizes)
        self._variables = trace.variables_of(self._sizes)
        self._label = label
        self.classes: list[OperatorClass | SizesOnly] = []
        """The last used one first."""
        self.why = ""
        """Why a lowering serves no more than its sizes, if it does not."""

    def at(self, values: Sequence[int]) -> tuple[OperatorClass | SizesOnly, Sequence[int]]:
        """The class of these values of the trace's variables, and its line's numbers."""
        magnitudes = self._magnitudes(values)
        for i, known in enumerate(self.classes):
            if known.chosen_at(magnitudes) and (numbers := known.of(values)) is not None:
                if i:
                    self.classes.insert(0, self.classes.pop(i))
                return known, numbers
        chosen = self._chosen(values)
        for i, known in enumerate(self.classes):
            if chosen is not None and isinstance(known, OperatorClass) and (
                    known.places == chosen.places) and (numbers := known.of(values)) is not None:
                known.note(magnitudes)
                self.classes.insert(0, self.classes.pop(i))
                return known, numbers
        made = self._lowered(values, chosen)
        if isinstance(made, OperatorClass):
            made.note(magnitudes)
        self.classes.insert(0, made)
        del self.classes[MAX_CLASSES if isinstance(made, OperatorClass) else MAX_SIZES:]
        return made, made.of(values) or ()

    def _magnitudes(self, values: Sequence[int]) -> Ints:
        """About how large the variables of its sizes are."""
        return tuple([about(values[i]) for i in self._variables])

    def shaders_at(self, sizes_to_come: Iterable[Sequence[int]]) -> set[Shader]:
        """The shaders for values that none of its classes serves."""
        shaders, known_sizes = set[Shader](), set[tuple[int, ...]]()
        for values in sizes_to_come:
            magnitudes = self._magnitudes(values)
            if any(known.chosen_at(magnitudes) and known.of(values) is not None
                   for known in self.classes):
                continue
            sizes = tuple(self._evaluate(*values))
            if sizes in known_sizes:
                continue
            known_sizes.add(sizes)
            numbers = dict(zip(self._sizes, sizes))
            with contextlib.suppress(Exception):  # no such sizes come, or they tell what they take
                plan = self._planned(numbers.__getitem__)
                shaders.update((d.variant, d.variant.pack_spec(d.spec).tobytes())
                               for d in (*plan.initialize, *plan.execute))
        return shaders

    def _planned(self, number: Callable[[Size], int]) -> Plan:
        """The plan for these numbers instead of the open sizes."""
        desc = replaced(self._desc, number)
        return self._device.plan(
            Operator(self._device, owning(desc, self._constants)), self._flags)

    def _chosen(self, values: Sequence[int]) -> ChosenKernels | None:
        """The kernels for these values. None where a lowering takes no expressions."""
        if not self.why:
            numbers = dict(zip(self._sizes, self._evaluate(*values)))
            chosen = ChosenKernels()
            try:
                with chosen.noted():
                    self._planned(numbers.__getitem__)
                return chosen
            except Exception as error:  # it is raised again below, if it is one of these sizes
                self.why = self._said(error)
        return None

    def _said(self, error: Exception) -> str:
        return f"{self._label}: {type(error).__name__}: {error}"

    def _lowered(
        self, values: Sequence[int], chosen: ChosenKernels | None
    ) -> OperatorClass | SizesOnly:
        device = self._device
        if chosen is not None:
            trace = SizeTrace()
            trace.label = self._label
            sizes = self._evaluate(*[trace.variable(n) for n in values])
            known = dict(zip(self._sizes, sizes))
            try:
                with chosen.made_again():
                    plan = self._planned(known.__getitem__)
                return OperatorClass(
                    device, trace, plan, owning(self._desc, plan.repacked), self._flags,
                    chosen.places)
            except Exception as error:  # of code that takes no expression: it gets numbers below
                self.why = self._said(error)
        sizes = self._evaluate(*values)
        known = dict(zip(self._sizes, sizes))
        return SizesOnly(self._evaluate, sizes, compile_repacking(
            device, replaced(self._desc, known.__getitem__), self._constants, self._flags))


class SizesOnly:
    """What a lowering for some sizes serves: these sizes."""

    settled: Sequence[Settled] = ()

    def __init__(
        self, evaluate: Callable[..., list[int]], sizes: list[int], compiled: CompiledOperator
    ) -> None:
        self._evaluate, self._sizes, self.compiled = evaluate, sizes, compiled

    def chosen_at(self, magnitudes: Ints) -> bool:
        """Whether it has the kernels for sizes that are about so large, if it serves them."""
        return True

    def of(self, values: Sequence[int]) -> Sequence[int] | None:
        """No numbers. None for values that it does not serve."""
        return () if self._evaluate(*values) == self._sizes else None

    def at(self, values: Sequence[int]) -> CompiledOperator:
        """The operator, which has run nothing."""
        return self.compiled.unused()


class OperatorClass:
    """What one lowering of an operator serves."""

    def __init__(
        self, device: Device, trace: SizeTrace, plan: Plan, desc: OperatorDesc,
        flags: ExecutionFlags, places: Sequence[tuple[int, int]],
    ) -> None:
        self.places = places
        """The choices of kernels."""
        self._magnitudes: set[Ints] = set()
        """About how large sizes are for which these are the choices."""
        self.trace, self.temporary_bytes, self.params = trace, plan.temporary_bytes, plan.params
        """Of the lowering: the last two are open, as is ..."""
        self.changes: list[Changed] = []
        """... what sizes change of each dispatch."""
        execute = []
        for dispatch in plan.execute:
            spec = {name: int(n) for name, n in dispatch.spec.items()}
            execute.append(replace(dispatch, spec=spec))
            push = [(at + i, n) for name, value in dispatch.push.items()
                    for at in (dispatch.variant.push_fields[name][0],)
                    for i, n in enumerate(value if isinstance(value, (tuple, list)) else (value,))
                    if type(n) is Size]
            ranges = any(type(n) is Size for o in dispatch.operands
                         for n in (o.offset, o.length, o.first))
            self.changes.append(
                Changed(dispatch.groups, push, dispatch.operands if ranges else None))
        numbers: list[object] = [plan.temporary_bytes]
        for groups, words, operands in self.changes:
            numbers += [groups, *[n for _, n in words]]
            for o in operands or ():
                numbers += [o.offset, o.length, o.first]
        numbers += plan.params
        initialize = tuple(replaced_dispatch(d, int) for d in plan.initialize)
        settled = replace(plan, execute=tuple(execute), initialize=initialize,
                          persistent_bytes=int(plan.persistent_bytes),
                          zeroed_bytes=int(plan.zeroed_bytes))
        if initialize:
            # What is prepared once is so for all sizes: it depends on the words that it reads.
            for d in initialize:
                for o in d.operands:
                    if o.slot == "params":
                        for n in plan.params[o.offset : o.offset + o.length]:
                            int(n)
        self.settled: Sequence[Settled] = trace.settled
        """Where the lowering took numbers that depend on sizes."""
        self._all = numbers
        self._plan = replace(
            settled, execute=tuple(replaced_dispatch(d, value_of) for d in settled.execute),
            temporary_bytes=value_of(plan.temporary_bytes),
            params=tuple(value_of(n) for n in plan.params))
        self.compiled = CompiledOperator(Operator(device, desc), self._plan, flags)
        self.line = Line(trace)
        """The numbers of its forms, of its scratch memory and of its params, where it serves."""
        self.forms: Forms | None = None
        """Its dispatches in arrays. None where they cannot be."""
        self.of_params: list[int] = []
        """The places of its params in the line, and that of ..."""
        self.of_scratch = 0
        """... the bytes of its scratch memory."""
        try:
            self.of_scratch = self.line.add(plan.temporary_bytes)
            self.of_params = [self.line.add(n) for n in plan.params]
            self.forms = Forms(self.compiled, self.changes, self.line)
        except (Unlisted, TypeError):  # of numbers that are not whole
            self.line = Line(trace)

    def note(self, magnitudes: Ints) -> None:
        """Note that sizes which are about so large have these kernels."""
        if len(self._magnitudes) >= _MAX_MAGNITUDES:
            self._magnitudes.clear()
        self._magnitudes.add(magnitudes)

    def chosen_at(self, magnitudes: Ints) -> bool:
        """Whether it has the kernels for sizes that are about so large, if it serves them."""
        return not self.places or magnitudes in self._magnitudes

    def of(self, values: Sequence[int]) -> Sequence[int] | None:
        """The numbers of its line. None for values that it does not serve."""
        return self.line.of(values)

    @functools.cached_property
    def _numbers(self) -> Callable[..., list[int]]:
        return evaluator(self.trace, self._all)

    def at(self, values: Sequence[int]) -> CompiledOperator:
        """The operator for these values, which has run nothing."""
        numbers = self._numbers(*values)
        left, changes = iter(numbers), []
        temporary_bytes = next(left)
        for groups, words, operands in self.changes:
            groups, words = next(left), [(place, next(left)) for place, _ in words]
            if operands is not None:
                operands = [o._replace(offset=offset, length=length, first=first)
                            for o, offset, length, first in zip(operands, left, left, left)]
            changes.append(Changed(groups, words, operands))
        return self.compiled.over(
            changes, replace(self._plan, temporary_bytes=temporary_bytes, params=tuple(left)))


def replaced_dispatch(dispatch: Dispatch, number: Callable[[Any], Any]) -> Dispatch:
    """A dispatch with other numbers."""
    return replace(
        dispatch, groups=number(dispatch.groups),
        operands=tuple(o._replace(offset=number(o.offset), length=number(o.length),
                                  first=number(o.first)) for o in dispatch.operands),
        push={name: tuple(map(number, value)) if isinstance(value, (tuple, list))
              else number(value) for name, value in dispatch.push.items()},
        spec={name: number(n) for name, n in dispatch.spec.items()})
