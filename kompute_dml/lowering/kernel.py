"""Kernels: several ways to compute one problem.

An operator that has several lists them in one flat tuple and calls :func:`choose`. A kernel says
itself why it cannot compute a problem, and how long it presumably takes. It knows of no other one.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

from ..errors import UnsupportedError
from ..runtime.shader_library import Variant
from ..runtime.traits import DeviceTraits
from . import measured
from .builder import PlanBuilder
from .plan import Target


class KernelProblem(Protocol):
    """What the kernels of an operator compute."""

    @property
    def work(self) -> str:
        """The key of its choice between kernels: a :func:`kompute_dml.tuning.work_key`."""


P = TypeVar("P", bound=KernelProblem)
K = TypeVar("K", bound="Kernel[Any]")


class Kernel(Generic[P]):
    """One way to compute a problem."""

    name: str
    """Its name among the operator's kernels. It stands in files of measured choices."""
    cost: float = 0.0
    """Its :meth:`estimate`, where that is the same for all problems."""
    constants_decide = False
    """Whether constants set its invocations and memory, to what the device has."""

    def serves(self, problem: P, traits: DeviceTraits) -> str | None:
        """None if it can compute the problem on a device of these traits, else the reason why
        not."""

    def shader(self, problem: P) -> str:
        """The shader variant that it runs, or "" where any device has what it takes."""
        return ""

    def forms(self, problem: P, traits: DeviceTraits) -> Iterable[Kernel[P]]:
        """The ways to run it that serve, such as numbers of workgroups that share a sum. The choice
        is among all of them."""
        return (self,)

    def takes(self, problem: P, variant: Variant, traits: DeviceTraits) -> tuple[int, int]:
        """Invocations of a workgroup, and its bytes of shared memory: those of the shader's
        defaults, unless constants decide."""
        if self.constants_decide:
            return 0, 0
        return math.prod(variant.workgroup_size), variant.shared_bytes

    def estimate(self, problem: P, traits: DeviceTraits) -> float:
        """How long it presumably takes. All kernels of an operator count alike: in microseconds, or
        by a rank. Of equal ones the first in the tuple is taken."""
        return self.cost

    def lower(self, problem: P, p: PlanBuilder) -> None:
        """Write the plan."""
        raise NotImplementedError


class Choice(NamedTuple):
    """One choice between kernels, for ``kompute-dml explain --kernels``."""

    operator: str
    work: str
    declined: tuple[tuple[str, str], ...]
    """The kernels that do not serve, and why."""
    able: tuple[tuple[str, float], ...]
    """The others with their estimates, the presumably fastest first."""
    taken: str

    def __str__(self) -> str:
        lines = [f"{self.operator}: {self.taken} ({self.work})"]
        lines += [f"  {name}: {estimate:.4g}" for name, estimate in self.able]
        lines += [f"  {name} declines: {reason}" for name, reason in self.declined]
        return "\n".join(lines)


_noted: ContextVar[list[Choice] | None] = ContextVar("noted", default=None)


@contextlib.contextmanager
def explained() -> Iterator[list[Choice]]:
    """The choices that lowerings make inside the block."""
    choices: list[Choice] = []
    token = _noted.set(choices)
    try:
        yield choices
    finally:
        _noted.reset(token)


class ChosenKernels:
    """The choices of one lowering, for another one of the same description. Of one over open sizes,
    because each comparison of estimates would be a guard there."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []
        """Of each choice in turn: which kernel, and which of its forms."""
        self.again: Iterator[tuple[int, int]] | None = None
        """What is left to be made again."""

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Inside the block, choices are noted."""
        token = _chosen.set(self)
        try:
            yield
        finally:
            _chosen.reset(token)

    @contextlib.contextmanager
    def made_again(self) -> Iterator[None]:
        """Inside the block, the same choices are made as far as these kernels serve."""
        self.again = iter(self.places)
        with self.noted():
            yield


_chosen: ContextVar[ChosenKernels | None] = ContextVar("chosen", default=None)


def _chosen_before(
    kernels: Sequence[K], problem: KernelProblem, p: PlanBuilder, place: tuple[int, int] | None
) -> K | None:
    """The kernel at a place, if it serves."""
    if place is None or place[0] >= len(kernels) or declined(kernels[place[0]], problem, p.target):
        return None
    forms = [*cast("Iterable[K]", kernels[place[0]].forms(problem, p.device))]
    return forms[place[1]] if place[1] < len(forms) else None


def declined(kernel: Kernel[P], problem: P, target: Target) -> str | None:
    """Why a kernel cannot compute a problem on a device. None if it can."""
    traits, library = target.traits, target.library
    reason = kernel.serves(problem, traits)
    if reason is not None or not (name := kernel.shader(problem)):
        return reason
    if (reason := library.missing(name)) is not None:
        return reason
    invocations, shared = kernel.takes(problem, library.get(*name.split(".")), traits)
    for count, most, of in ((invocations, traits.max_invocations, "invocations"),
                            (shared, traits.max_shared_memory, "bytes of shared memory")):
        if count > most:
            return f"a workgroup takes {count} {of}, but the device has {most}"
    return None


def candidates(
    kernels: Sequence[K], problem: KernelProblem, target: Target
) -> tuple[list[K], list[tuple[str, str]]]:
    """The forms of kernels that can compute a problem, the presumably fastest first, and the names
    of the other kernels with their reasons. Those that are too large for the registers of the
    device's class come last."""
    able: list[K] = []
    others = []
    for kernel in kernels:
        if (reason := declined(kernel, problem, target)) is not None:
            others.append((kernel.name, reason))
            continue
        forms = [*cast("Iterable[K]", kernel.forms(problem, target.traits))]
        if not forms:
            others.append((kernel.name, "no form of it fits"))
        able += forms
    crowded = measured.crowded(target.traits.device_class)
    return sorted(able, key=lambda k: (
        k.shader(problem) in crowded, k.estimate(problem, target.traits))), others


def choose(kernels: Sequence[K], problem: KernelProblem, p: PlanBuilder) -> K:
    """The kernel that was measured to be the fastest for such work, else the presumably fastest.

    Raises :class:`~kompute_dml.UnsupportedError` with all reasons if no kernel serves.
    """
    chosen = _chosen.get()
    if chosen is not None and chosen.again is not None and (
            kernel := _chosen_before(kernels, problem, p, next(chosen.again, None))) is not None:
        return kernel
    able, others = candidates(kernels, problem, p.target)
    operator = p.desc.operator.name
    if not able:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in others)
        raise UnsupportedError(f"{operator}: no kernel serves here: {reasons}")
    taken = p.choose(problem.work, able, lambda k: k.name)
    if chosen is not None and chosen.again is None:
        chosen.places.append(next(
            (i, j) for i, k in enumerate(kernels) if declined(k, problem, p.target) is None
            for j, form in enumerate(k.forms(problem, p.device)) if form == taken))
    if _is_asked():
        estimates = tuple((k.name, k.estimate(problem, p.device)) for k in able)
        _note(Choice(operator, problem.work, tuple(others), estimates, taken.name))
    return taken


def _is_asked() -> bool:
    return _noted.get() is not None or bool(os.environ.get("KOMPUTE_DML_EXPLAIN"))


def _note(choice: Choice) -> None:
    choices = _noted.get()
    if choices is None:
        print(choice, file=sys.stderr)
    else:
        choices.append(choice)
