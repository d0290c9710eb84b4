"""PlanBuilder, with which a lowering writes its plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from .. import tuning
from ..desc import tensor_of
from ..errors import UnsupportedError
from ..layout import Ints, extent
from ..runtime import traits
from ..runtime.adapters import Adapter
from ..runtime.shader_library import ShaderLibrary, Variant
from . import measured
from .plan import (
    PARAMS,
    PERSISTENT,
    TEMPORARY,
    UNUSED,
    ZEROED,
    Dispatch,
    Operand,
    Plan,
    Target,
    reads,
)

if TYPE_CHECKING:
    from ..operators.base import OperatorDesc

ALIGNMENT = 256
"""Ranges of the temporary and the persistent resource begin at multiples of it, in bytes."""
T = TypeVar("T")


_ON_MATRIX_UNITS = {
    "f16": ("gemm_coopmat", "t128"),
    "bf16": ("gemm_coopmat", "t128", "bfloat16"),
    "i8": ("matrix_multiply_integer_to_float_coopmat", "t128"),
    "u8": ("matrix_multiply_integer_to_float_coopmat", "t128"),
}
"""A variant that needs what all kernels on matrix units need, by the type of the elements."""


def target_of(library: ShaderLibrary, adapter: Adapter) -> Target:
    """The view of a device that lowerings get. It has no matrix units for a type whose kernels were
    not built, or need features that kp has not enabled."""
    device = traits.of(adapter)
    usable = tuple(m for m in device.cooperative_matrices
                   if m.a in _ON_MATRIX_UNITS and library.find(*_ON_MATRIX_UNITS[m.a]))
    emulated = traits.emulation()
    key = tuning.device_key(adapter) + (f", as {emulated}" if emulated else "")
    return Target(library, replace(device, cooperative_matrices=usable), key)


class PlanBuilder:
    """Collects dispatches, hands out memory, and places the words of the params buffer.

    Slots are named by the fields of ``desc``: ``"input_tensor"``, ``"input_tensors[2]"``.
    """

    def __init__(self, target: Target, desc: OperatorDesc) -> None:
        self.target = target
        self.library = target.library
        self.device = target.traits
        self.desc = desc
        self._execute: list[Dispatch] = []
        self._initialize: list[Dispatch] = []
        self._bytes = {TEMPORARY: 0, PERSISTENT: 0, ZEROED: 0}
        self._repacked: set[str] = set()
        self._params: list[int] = []
        self._placed: dict[Ints, int] = {}

    # Operands

    def tensor(self, slot: str) -> Any:
        """The description of a slot's tensor. None where the tensor is absent."""
        return tensor_of(self.desc, slot)

    def read(self, slot: str, offset: int = 0, length: int | None = None) -> Operand:
        """The tensor of a slot, read. :data:`UNUSED` where it is absent.

        ``offset`` and ``length`` count elements; the default is all that the tensor reaches.
        """
        t = self.tensor(slot)
        if t is None:
            return UNUSED
        if t.data_type.bits < 8:  # counted in bytes of two elements
            total = extent(t.sizes, t.strides)
            return Operand(slot, None, 1, (total + 1) // 2 if length is None else length, offset)
        return reads(slot, t, None, offset, length)

    def write(self, slot: str, offset: int = 0, length: int | None = None) -> Operand:
        """The tensor of a slot, written. :data:`UNUSED` where it is absent."""
        o = self.read(slot, offset, length)
        return o if o is UNUSED else Operand(slot, None, o.itemsize, o.length, offset, writes=True)

    def read_tail(self) -> dict[str, Any]:
        """The binding of a fused tail's tensor; empty without a tail."""
        return {"tail": self.read("tail_tensor")} if getattr(self.desc, "tail", None) else {}

    @property
    def tail_is_aligned(self) -> bool:
        """Whether vectors of the output are vectors of the tail's tensor, which has its strides."""
        tail = getattr(self.desc, "tail_tensor", None)
        return tail is None or bool(tail.is_aligned)

    def temporary(self, itemsize: int, length: int) -> Operand:
        """Scratch memory of the dispatch, written; ``.reading()`` reads it."""
        return self._take(TEMPORARY, itemsize, length)

    def persistent(self, field: str, itemsize: int, length: int) -> Operand:
        """Memory that initialization fills with a form of ``field``, which is OWNED_BY_DML."""
        self._repacked.add(field)
        return self._take(PERSISTENT, itemsize, length)

    def zeroed(self, itemsize: int, length: int) -> Operand:
        """Memory that is zero before a dispatch. The dispatch must leave it zero."""
        return self._take(ZEROED, itemsize, length)

    def _take(self, slot: str, itemsize: int, length: int) -> Operand:
        begin = -(-self._bytes[slot] // ALIGNMENT) * ALIGNMENT
        self._bytes[slot] = begin + itemsize * length
        return Operand(slot, None, itemsize, length, begin // itemsize, writes=True)

    # Dispatches

    def dispatch(
        self,
        shader: str | Variant,
        groups: int,
        *,
        params: Iterable[int] | None = None,
        spec: Mapping[str, int] | None = None,
        push: Mapping[str, int | Sequence[int]] | None = None,
        once: bool = False,
        **operands: Operand,
    ) -> None:
        """Add a dispatch of ``<shader>.<axes>`` with ``groups`` workgroups.

        ``operands`` come in the order of the shader's bindings. The push field ``<name>_offset``
        takes the beginning of each. ``params`` are words of the last binding, which begin at the
        push field ``params_offset``. With ``once`` the dispatch runs at initialization.
        """
        variant = self.library.get(*shader.split(".")) if isinstance(shader, str) else shader
        bound = []
        for name, operand in operands.items():
            field = f"{name}_offset"
            if (operand.offset_field != field and operand.slot is not None
                    and field in variant.push_fields):
                operand = operand._replace(offset_field=field)
            bound.append(operand)
        words = tuple(params or ())
        if params is not None:
            bound.append(self._place(words))
        constants = dict(spec or {})
        if "EXACT_UNITS" in variant.spec_ids:
            constants.setdefault("EXACT_UNITS", self.device.exact_units)
        if "WALK_RANK" in variant.spec_ids and self.device.is_cpu:
            constants.setdefault("WALK_RANK", words[0])
        dispatch = Dispatch(variant, groups, tuple(bound), push or {}, constants)
        (self._initialize if once else self._execute).append(dispatch)

    def expect_shared(self, shader: str) -> None:
        """Raise UnsupportedError if the device has less shared memory than a workgroup of a shader
        takes, for an operator without another kernel."""
        takes, has = self.library.get(shader).shared_bytes, self.device.max_shared_memory
        if takes > has:
            raise UnsupportedError(
                f"{self.desc.operator.name}: a workgroup takes {takes} bytes of shared memory, but "
                f"the device has {has}")

    def _place(self, words: Ints) -> Operand:
        """The place of words in the plan's params. Equal words are placed once."""
        at = self._placed.get(words)
        if at is None:
            at = self._placed[words] = len(self._params)
            self._params += words
        return Operand(PARAMS, "params_offset", 4, len(words), at)

    def add(self, dispatch: Dispatch) -> None:
        """Add a dispatch that was made elsewhere and uses no memory except the tensors."""
        self._execute.append(dispatch)

    def include(self, plan: Plan, slots: Mapping[str, Operand] | None = None) -> None:
        """Add all of another plan. Its memory is merged with the memory of this plan.

        ``slots`` maps slots of that plan to ranges of this plan. Other slots keep their names.
        """
        base = {
            slot: -(-self._bytes[slot] // ALIGNMENT) * ALIGNMENT for slot in self._bytes
        } | {PARAMS: 4 * len(self._params)}

        def moved(operand: Operand) -> Operand:
            if slots and operand.slot is not None and operand.slot in slots:
                to = slots[operand.slot]
                first = to.offset * to.itemsize
                return operand._replace(slot=to.slot,
                                        offset=operand.offset + first // operand.itemsize)
            first = base.get(operand.slot or "", 0)
            return operand._replace(offset=operand.offset + first // operand.itemsize)

        for into, dispatches in ((self._execute, plan.execute),
                                 (self._initialize, plan.initialize)):
            into += [replace(d, operands=tuple(map(moved, d.operands))) for d in dispatches]
        sizes = (plan.temporary_bytes, plan.persistent_bytes, plan.zeroed_bytes)
        for slot, size in zip((TEMPORARY, PERSISTENT, ZEROED), sizes):
            if size:
                self._bytes[slot] = base[slot] + size
        self._params += plan.params
        self._repacked |= plan.repacked

    def choose(self, work: str, candidates: Sequence[T], name: Callable[[T], str] = str) -> T:
        """The kernel that was measured to be fastest for this work on this device, or on those of
        its class, else the first. ``work`` is a :func:`kompute_dml.tuning.work_key`."""
        if tuning.has(self.target.device_key, work):
            names = [name(c) for c in candidates]
            return candidates[tuning.pick(self.target.device_key, work, names)]
        known = measured.choices(self.device.device_class).get(work)
        return next((c for c in candidates if name(c) == known), candidates[0])

    def build(self) -> Plan:
        """The plan."""
        return Plan(
            tuple(self._execute), tuple(self._initialize), self._bytes[TEMPORARY],
            self._bytes[PERSISTENT], frozenset(self._repacked), self._bytes[ZEROED],
            tuple(self._params),
        )


