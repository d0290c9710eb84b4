"""A region of claimed nodes on a device: constants uploaded once, one plan per set of sizes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DmlError, OutOfMemoryError, UnsupportedError, ValidationError
from ..graph.ahead import FIRST_SIZES, Survey, compiles_ahead, sizes_around
from ..graph.array import Array, device_type
from ..graph.builder import Builder
from ..graph.memory import aligned
from ..graph.open_plan import OpenBuilder
from ..graph.planner import Preparations, uncollected
from ..graph.recorded import Input, RecordedPlan, Resident, Result
from ..graph.recordings import Places
from ..graph.size_pattern import SizePattern
from ..graph.step import begin_ahead
from ..graph.switches import OPEN_SIZES, disabled
from ..layout import Ints, packed_strides
from ..operators.matrix_multiply.bfloat16 import VECTOR, WidenDesc
from ..runtime.heap import DEDICATED
from ..runtime.pipelines import Shader
from ..runtime.uploads import Uploads
from ..runtime.windows import SIZE as WINDOW
from ..sizes import Shaped, SizeTrace, any_open, settled
from . import mapping, placement, shapes
from .bfloat16 import STORED, to_bfloat16, to_float, widened
from .graph import OnnxNode, OnnxValue, Stack, uses
from .layers import Layers, label, split
from .open_plans import OpenPlans

if TYPE_CHECKING:
    from ..device import Device

MAX_PLANS = 16
"""The most plans of a region. The least recently used one is dropped first."""
PLANS_SHARE = 16
"""Plans take at most this part of the device's memory, but for the newest one."""
_SETTLES = 64
"""Sizes that come so often, one time after the other, get a plan of their own in the place of one
for many sizes. It has no steps that only compute what follows from sizes."""
_SMALL = 64 << 10
"""The most bytes of a constant that is uploaded with others."""
_PIECE = 1 << 16
"""The numbers of a constant that are looked at at a time."""
_PRODUCTS = ("MatMul", "FusedMatMul", "Gemm", "FusedGemm", "FusedMatMulActivation")
_NODES_AHEAD = 500
"""The most nodes that are planned for other sizes ahead at one of the first sizes, some 0.2 ms
each."""
_STAND_INS = (1, 256)
"""Substitutes for unknown sizes: operators choose other shaders for few rows."""


class Constants:
    """Constants that several regions share, while their memory is held."""

    def __init__(self) -> None:
        self.prepared = Preparations()
        """Constants that operators have prepared."""
        self._arrays: dict[tuple[Any, ...], tuple[np.ndarray, Array]] = {}
        """Arrays by memory, with the values, whose memory must not be reused meanwhile."""
        self._halves: dict[tuple[Any, ...], tuple[np.ndarray, Array]] = {}
        """The same of upper halves."""
        self._stacks: dict[tuple[Any, ...], tuple[Sequence[np.ndarray], Array]] = {}
        """Stacks by the memory of their members."""
        self._uploads: Uploads | None = None

    def uploads(self, device: Device) -> Uploads:
        """What copies them to the device while their region is planned."""
        if self._uploads is None:
            self._uploads = Uploads(device.runtime.transfer)
        return self._uploads

    def finish(self) -> None:
        """Wait until the copies are recorded. The values need not stay."""
        if self._uploads is not None:
            self._uploads.finish()

    def uploaded(self, builder: Builder, wanted: Sequence[np.ndarray]) -> list[Array]:
        """Constants on the device, uploaded once for the same memory, small ones together."""
        keys = [(x.ctypes.data if x.size else 0, x.shape, x.dtype) for x in wanted]
        new = {key: x for key, x in zip(keys, wanted) if key not in self._arrays}
        small = {key: x for key, x in new.items() if x.size and x.nbytes <= _SMALL
                 and device_type(x.dtype).bits >= 8}
        builder.device.reserve(sum(
            aligned(x.nbytes) for x in new.values() if x.nbytes <= DEDICATED))
        if len(small) > 1:
            for key, array in zip(small, builder.constants([*small.values()])):
                self._arrays[key] = small[key], array
        uploads = self.uploads(builder.device)
        for key, x in new.items():
            if key not in self._arrays:
                self._arrays[key] = x, builder.constant(x, uploads)
        uploads.begin()
        return [self._arrays[key][1] for key in keys]

    def stacked(self, builder: Builder, members: Sequence[np.ndarray]) -> Array:
        """Constants of equal sizes on the device, one after the other, uploaded once for the same
        memory."""
        key = tuple(x.ctypes.data for x in members), members[0].shape, members[0].dtype
        if key not in self._stacks:
            self._stacks[key] = members, replace(builder.constant(np.stack(members)), host=None)
        return self._stacks[key][1]

    def upper_halves(self, builder: Builder, x: np.ndarray) -> Array:
        """The upper halves of FLOAT32 numbers on the device, uploaded once for the same memory."""
        key = x.ctypes.data, x.shape
        if key not in self._halves:
            halves = np.ascontiguousarray(x).view(np.uint16)[..., 1::2]
            self._halves[key] = x, builder.constant(
                np.ascontiguousarray(halves), self.uploads(builder.device))
        return self._halves[key][1]


def _is_bfloat16(x: np.ndarray) -> bool:
    """Whether numbers of FLOAT32 have no lower halves. Most that have are found at once."""
    words = x.reshape(-1).view(np.uint32)
    return not any((words[i : i + _PIECE] & 0xFFFF).any() for i in range(0, words.size, _PIECE))


def _zeros(x: np.ndarray) -> np.ndarray | None:
    """A line of zero points that all are 0, in no more memory than one; None for other arrays."""
    if x.ndim != 1 or x.dtype.itemsize > 1 or x.any():
        return None
    return np.broadcast_to(np.zeros((), x.dtype), x.shape)


class Region:
    """Nodes that run as one. Safe to use from several threads."""

    def __init__(
        self, device: Device, nodes: Sequence[OnnxNode], inputs: Sequence[OnnxValue],
        outputs: Sequence[OnnxValue], shared: Constants | None = None,
        rows: placement.Rows | None = None,
    ) -> None:
        """``nodes`` are in an order in which they can run, and :func:`.place` has placed each:
        ``rows`` are those that it found. ``shared`` has the constants of regions that are made
        together.
        """
        self.device = device
        self.nodes = nodes
        self.inputs = inputs
        self.outputs = outputs
        self._placement = placement.within(nodes, device, rows)
        self.host_inputs = [
            i for i, value in enumerate(inputs) if value in self._placement.wanted
        ]
        """Inputs whose values a plan depends on."""
        self._alike = {i: users for i in self.host_inputs if (users := self._readers(inputs[i]))}
        """The nodes that read such an input, if numbers of it may have the same plan."""
        self._known_limits: dict[tuple[Ints, ...], dict[int, int]] = {}
        self._kept: set[int] = set()
        """Inputs whose memory a plan's output has: it makes no difference where they lie."""
        self._constants: dict[OnnxValue, Array] = {}
        self._halves: dict[OnnxValue, Array] = {}
        """The upper halves of weights that have no lower ones."""
        shared = shared or Constants()
        self._prepared = shared.prepared
        self._plans: dict[Any, RecordedPlan] = {}
        """The least recently used one first. The keys are long, and an OrderedDict computes the
        hash of each where it goes through its values."""
        self._open = OpenPlans()
        self._in_a_row: tuple[Any, int] = None, 0
        """The last key of a plan, and how often it came."""
        self.planned = 0
        """Plans that were built so far."""
        self._new: SizePattern | None = None
        """The pattern of sizes that no plan served before."""
        self._came = 0
        """How many sizes came so far, that had no plan."""
        self._lock = threading.Lock()
        self._shaders: set[Shader] = set()
        """The shaders of all plans. Their pipelines go with the last region that uses them."""
        self._used: tuple[set[Shader] | None, int] = None, 0
        """The last of them that were added, and how many these were."""
        weakref.finalize(
            self, device.runtime.pipelines.left.append, self._shaders).atexit = False
        try:
            self._upload_constants(shared)
            self._runs = split(nodes, self._placement.rows, self._placement.host)
            self._plan_ahead()
        finally:
            shared.finish()

    @property
    def label(self) -> str:
        return " ".join(node.label for node in self.nodes)

    def holds(self, value: OnnxValue) -> bool:
        """Whether it has the values of a constant."""
        return value in self._constants or value in self._halves

    def constant(self, value: OnnxValue) -> np.ndarray:
        """The values of a constant that it holds."""
        if value in self._halves:
            return (self._read(self._halves[value]).astype(np.uint32) << 16).view(np.float32)
        return self._read(self._constants[value])

    def _read(self, x: Array) -> np.ndarray:
        """The values of a constant array."""
        if x.host is not None or x.storage is None:
            return np.ascontiguousarray(_seen(x))
        slot = x.storage.slot()
        data = self.device.read(slot.allocation, slot.byte_offset, x.size * x.dtype.itemsize)
        return data.view(x.dtype).reshape(x.shape)

    def run(self, inputs: Sequence[Input]) -> list[np.ndarray]:
        """The outputs for contiguous ``inputs``. Raises DmlError."""
        return self.plan(inputs).run(inputs)

    def launch(
        self, inputs: Sequence[Input], plan: RecordedPlan | None = None,
        shared: Collection[int] = (), places: Places | None = None,
    ) -> list[Result | None]:
        """Start a run, whose results need not leave the device, with the ``plan`` for these inputs.
        ``shared`` and ``places`` are those of :meth:`.RecordedPlan.launch`. Raises DmlError."""
        return (plan or self.plan(inputs)).launch(inputs, shared=shared, places=places)

    def plan(self, inputs: Sequence[Input]) -> RecordedPlan:
        """The plan for inputs of these sizes. Inputs whose values it depends on are on the host."""
        host_values = {i: x for i in self.host_inputs if isinstance(x := inputs[i], np.ndarray)}
        shapes = [x.shape for x in inputs]
        for i, limit in self.limits(shapes).items():
            if i in host_values and host_values[i].max() <= limit:
                host_values[i] = np.full_like(host_values[i], limit)
        # Large inputs have transfers of their own.
        resident = [i for i, x in enumerate(inputs)
                    if isinstance(x, Resident) and x.nbytes <= WINDOW]
        with self._lock:
            key = self._key(shapes, host_values, resident)
            plan = self._plans.pop(key, None)
            often = self._comes_often(key)
            if plan is None or (often and plan.common is not None):
                known = {i: x.copy() for i, x in host_values.items()}
                if plan is None:
                    plan = self._of_open(shapes, known, resident)
                    if plan is None:
                        plan = self._build(shapes, known, resident)
                    self._compile_ahead(known)
                else:
                    with contextlib.suppress(OutOfMemoryError):
                        plan = self._build(shapes, known, resident)
                self._kept |= plan.kept.keys()
                last = next(reversed(self._plans.values()), None)
                self._plans[self._key(shapes, host_values, resident)] = plan
                self._drop_plans(shares=last is not None and last.memory_of == plan.memory_of)
            else:
                self._plans[key] = plan
        if self._prepared.pending:
            self._prepared.record(self.device)
        return plan

    def _comes_often(self, key: object) -> bool:
        """Whether it is time for a plan for these sizes alone."""
        last, count = self._in_a_row
        count = count + 1 if key == last else 1
        self._in_a_row = key, count
        return count == _SETTLES

    def _drop_plans(self, *, shares: bool) -> None:
        """Drop the least recently used plans where there are too many, or they take too much.
        ``shares`` says that the newest one has the memory of another."""
        most = self.device.adapter.device_memory // PLANS_SHARE

        def taken() -> int:
            """Plans of one open plan share its memory."""
            return sum({plan.memory_of: plan.nbytes for plan in self._plans.values()}.values())

        while len(self._plans) > 1 and (
                len(self._plans) > MAX_PLANS or (not shares and taken() > most)):
            del self._plans[next(iter(self._plans))]

    def _use(self, shaders: set[Shader]) -> None:
        last, count = self._used
        if shaders is last and len(shaders) == count:
            return
        self._used = shaders, len(shaders)
        runtime = self.device.runtime
        with runtime.lock:
            new = shaders - self._shaders
            runtime.pipelines.use(new)
            self._shaders |= new

    def settled(
        self, inputs: Sequence[Input], which: Collection[int], limits: Mapping[int, int]
    ) -> list[object]:
        """What a plan depends on of some inputs, whose sizes do not change: equal for inputs of one
        plan. ``limits`` are those of the sizes."""
        parts: list[object] = []
        for i in which:
            x = inputs[i]
            if i not in self.host_inputs or not isinstance(x, np.ndarray):
                parts.append(isinstance(x, Resident))
            elif i in limits and (x.item() if x.size == 1 else x.max()) <= limits[i]:
                parts.append(limits[i])
            else:
                parts.append(x.tobytes())
        return parts

    def _key(
        self, shapes: Sequence[Ints], host_values: dict[int, np.ndarray], resident: Sequence[int]
    ) -> tuple[Any, ...]:
        return (*shapes, *[x.tobytes() for x in host_values.values()],
                *[i for i in resident if i not in self._kept])

    def _readers(self, value: OnnxValue) -> list[OnnxNode]:
        """The nodes that read an input's numbers, if all are rows that do so on the host."""
        users = [(node, i) for node in self.nodes for i, v in enumerate(node.inputs) if v is value]
        rows = self._placement.rows
        if value in self.outputs or not all(
                node in rows and i in rows[node].host and node not in self._placement.host
                for node, i in users):
            return []
        return [node for node, _ in users]

    def limits(self, shapes: Sequence[Ints]) -> dict[int, int]:
        """By input: the number up to which all have the same plan."""
        if not self._alike:
            return {}
        key = tuple(shapes)
        if (known := self._known_limits.get(key)) is not None:
            return known
        sizes = dict(zip(self.inputs, shapes))
        largest: dict[int, int] = {}
        for i, nodes in self._alike.items():
            limits = {self._placement.rows[node].alike(
                [None if v is None else sizes.get(v, v.shape) for v in node.inputs])
                for node in nodes}
            if len(limits) == 1 and (limit := limits.pop()) is not None:
                largest[i] = limit
        if len(self._known_limits) >= MAX_PLANS:
            self._known_limits.clear()
        self._known_limits[key] = largest
        return largest

    def _upload_constants(self, shared: Constants) -> None:
        """Upload the constants that the device reads."""
        builder = Builder(self.device)
        wanted = {v: v.constant for v in self._device_values() if v.constant is not None}
        for value in self._weights(wanted):
            halves = shared.upper_halves(builder, wanted.pop(value))
            self._halves[value] = replace(halves, host=None)
        self._constants.update(zip(wanted, shared.uploaded(builder, [*wanted.values()])))
        read = [v for node in self.nodes for v in node.inputs if v is not None]
        self._upload_stacks(builder, [*dict.fromkeys(v for v in read if isinstance(v, Stack))],
                            shared)
        for value in (*read, *self.outputs):
            if value.constant is None:
                continue
            # A copy, because the memory of a constant may be freed once the region is made.
            small = value.constant.nbytes <= shapes.HOST_BYTES
            value.constant = value.constant.copy() if small else _zeros(value.constant)
            if value.constant is not None and value not in self._constants:
                self._constants[value] = _on_host(value.constant)
            elif value in self._constants:
                self._constants[value] = replace(self._constants[value], host=value.constant)

    def _upload_stacks(
        self, builder: Builder, stacks: Sequence[Stack], shared: Constants
    ) -> None:
        """Upload the members of stacks, and let go of them where nothing else reads them."""
        left: list[OnnxValue] = []
        for stack in stacks:
            members = [m.constant for m in stack.members if m.constant is not None]
            self._constants[stack] = whole = shared.stacked(builder, members)
            for i, (member, x) in enumerate(zip(stack.members, members)):
                if not self.holds(member):
                    left.append(member)
                    self._constants[member] = whole.view(
                        x.shape, packed_strides(x.shape), i * x.size)
        for member in left:
            member.constant = None

    def _weights(self, wanted: Mapping[OnnxValue, np.ndarray]) -> list[OnnxValue]:
        """Large constants that only products read, as their second factors, and that are BFLOAT16
        in the type of FLOAT32."""
        if "bfloat16_weights" in disabled():
            return []
        users = uses(self.nodes)
        return [v for v, x in wanted.items() if x.dtype == np.float32 and x.ndim == 2
                and x.nbytes > _SMALL and x.size % VECTOR == 0 and v not in self.outputs
                and all(node.op in _PRODUCTS and [u for u in node.inputs if u is v] == [v]
                        and node.input(1) is v for node in users.get(v, ()))
                and x.flags.c_contiguous and _is_bfloat16(x)]

    def _device_values(self) -> Iterator[OnnxValue]:
        """Values that rows and the region's outputs need on the device."""
        for node in self.nodes:
            row = self._placement.rows.get(node)
            if row is not None:
                yield from (v for i, v in enumerate(node.inputs)
                            if v is not None and i not in row.host)
        yield from self.outputs

    def _plan_ahead(self) -> None:
        """Plan now if all sizes are known. Else let operators prepare their constants now."""
        sizes = [v.shape for v in self.inputs]
        if self.host_inputs or None in sizes:
            return
        for stand_in in _STAND_INS:
            shapes = [tuple(stand_in if n is None else n for n in s or ()) for s in sizes]
            if shapes == sizes:
                with contextlib.suppress(OutOfMemoryError):  # the first run says so
                    self._plans[tuple(shapes)] = self._build(shapes, {})
                return
            # Without a plan's memory. Substitutes for unknown sizes need not fit together.
            with contextlib.suppress(DmlError):
                builder = Builder(self.device, self._prepared)
                builder.lower(*self._emit(builder, shapes, {}))
                self._use(builder.shaders)

    def _of_open(
        self, shapes: Sequence[Ints], known: dict[int, np.ndarray], resident: Sequence[int]
    ) -> RecordedPlan | None:
        """A plan of one that serves many sizes. None if there is none, and none can be."""
        if OPEN_SIZES in disabled():
            return None
        values = tuple(x.tobytes() for x in known.values())
        plan = self._open.at(shapes, (values, *[i for i in resident if i not in self._kept]))
        pattern = None if plan is not None else self._open.pattern(shapes)
        self._new = pattern
        if pattern is not None and pattern.shapes not in self._open.declined:
            trace = SizeTrace()
            variables = tuple(trace.variable(n) for n in pattern.values)
            builder = OpenBuilder(self.device, trace, pattern.values, self._prepared)
            builder.shaders |= self._shaders  # what sizes before took is expected
            try:
                with uncollected():
                    inputs, results = self._emit(builder, pattern.over(variables), known)
                    opened = builder.finish_open(inputs, results, [inputs[i] for i in resident])
                    plan = opened.at(pattern.values)
            except Exception as error:  # the sizes' own plan says what is wrong with them
                self._open.declines(pattern, str(error))
                self._explain_open()
                return None
            if plan is not None:
                self.planned += 1
                self._open.add(pattern, (values, *[
                    i for i in resident if i not in opened.kept]), opened)
        if plan is not None and plan.common is not None:
            self._use(plan.common.shaders)
        self._explain_open()
        return plan

    def _compile_ahead(self, known: dict[int, np.ndarray]) -> None:
        """Let threads compile what sizes around new ones take, where no plan for many sizes serves
        them: at the first few sizes, each time a part of it."""
        pattern, self._new = self._new, None
        count, self._came = self._came, self._came + 1
        if pattern is None or count > FIRST_SIZES or not compiles_ahead(self.device):
            return
        around = [v for v in sizes_around(pattern.values) if not self._open.serves(pattern, v)]
        take = _NODES_AHEAD // len(self.nodes)
        shaders: set[Shader] = set()
        for values in around if take >= len(around) else around[(count - 1) * take :][:take]:
            survey = Survey(self.device, self._prepared)
            with contextlib.suppress(Exception):  # no such sizes come, or they tell what they take
                shaders |= survey.shaders_of(*self._emit(survey, pattern.over(values), known))
        begin_ahead(self.device, shaders)
        self._use(shaders)

    def _explain_open(self) -> None:
        """Say what keeps plans from serving all sizes, if that is asked for."""
        if os.environ.get("KOMPUTE_DML_EXPLAIN"):
            for line in self._open.reasons():
                print(line, file=sys.stderr)

    def _build(
        self, shapes: Sequence[Ints], known: dict[int, np.ndarray],
        resident: Collection[int] = (),
    ) -> RecordedPlan:
        builder = Builder(self.device, self._prepared)
        with uncollected():
            inputs, results = self._emit(builder, shapes, known)
            plan = builder.finish(inputs, results, [inputs[i] for i in resident])
        self._use(builder.shaders)
        self.planned += 1
        return plan

    def _emit(
        self, builder: Builder, shapes: Sequence[Ints], known: dict[int, np.ndarray]
    ) -> tuple[list[Array], list[Array]]:
        """Add the operators of all nodes. Returns the arrays of inputs and outputs."""
        arrays = dict(self._constants)
        for value, halves in self._halves.items():
            arrays[value] = y = builder.new(halves.shape, np.float32)
            pair = {"input_tensor": halves, "output_tensor": y}
            builder.add_own(
                WidenDesc(**{slot: x.desc(x.shape, x.strides) for slot, x in pair.items()}),
                {slot: x.storage for slot, x in pair.items() if x.storage is not None})
        inputs = []
        for i, (value, shape) in enumerate(zip(self.inputs, shapes)):
            if value.dtype is None:
                raise ValidationError(f"input {value.name!r} has no data type that this reads")
            stored = STORED if value.is_bfloat16 else value.dtype
            try:
                array = builder.new(shape, stored)
            except OutOfMemoryError as error:
                raise OutOfMemoryError(f"input {value.name!r}: {error}") from None
            inputs.append(array)
            numbers = known.get(i)
            if numbers is not None and value.is_bfloat16:
                # As for constants: nodes compute with the numbers, not with their bits.
                arrays[value] = _on_host(widened(numbers))
            else:
                arrays[value] = replace(array, host=numbers)
        layers = Layers(builder, self._add)
        for run in self._runs:
            layers.add(run, arrays)
        for value in self.outputs:
            _upload(builder, value, arrays)
        return inputs, [to_bfloat16(builder, arrays[v])
                        if v.is_bfloat16 and arrays[v].dtype != STORED else arrays[v]
                        for v in self.outputs]

    def _add(self, builder: Builder, node: OnnxNode, arrays: dict[OnnxValue, Array]) -> None:
        builder.label = label(node)
        if builder.trace is not None:
            builder.trace.label = builder.label
        try:
            results = self._evaluated(builder, node, arrays) or self._built(builder, node, arrays)
            if any(v is not None for v in node.outputs[len(results):]):
                raise ValidationError(
                    f"expected {len(results)} outputs, but {len(node.outputs)} are named")
        except Exception as error:  # every error gets the node's name
            kind: type[Exception] = ValidationError
            if isinstance(error, (DmlError, MemoryError)):
                kind = type(error) if isinstance(error, DmlError) else OutOfMemoryError
            sizes = [None if v is None else list(arrays[v].shape) for v in node.inputs]
            raise kind(f"{node.label} {node.name!r} with inputs of sizes {sizes}: "
                       f"{mapping.said(error)}") from None
        for value, array in zip(node.outputs, results):
            if value is not None:
                arrays[value] = array

    def _evaluated(
        self, builder: Builder, node: OnnxNode, arrays: dict[OnnxValue, Array]
    ) -> Sequence[Array] | None:
        """The node's outputs on the host, if it knows the inputs and the device is not needed."""
        if node not in self._placement.host:
            return None
        if any(arrays[value].host is None for value in shapes.reads(node)):
            return None

        def results_of() -> list[np.ndarray]:
            return shapes.evaluate(
                node, [None if v is None else _seen(arrays[v]) for v in node.inputs])

        if builder.trace is None or node not in self._placement.rows:
            results = results_of()
        elif (open_results := builder.trace.attempt(results_of)) is None:
            return None  # the device makes it in any size
        else:
            results = open_results
        if node in self._placement.rows and any(y.size > shapes.LARGE for y in results):
            return None
        return [_on_host(y, v) for y, v in zip(results, node.outputs)]

    def _built(
        self, builder: Builder, node: OnnxNode, arrays: dict[OnnxValue, Array]
    ) -> Sequence[Array]:
        row = self._placement.rows.get(node)
        if row is None:
            raise UnsupportedError("only the device knows the values of its inputs")
        for i, value in enumerate(node.inputs):
            if value is not None and i not in row.host:
                _upload(builder, value, arrays)
            if value is not None and value.is_bfloat16 and i not in row.stored and (
                    arrays[value].dtype == STORED):
                arrays[value] = to_float(builder, arrays[value])
        outputs = row.build(builder, node, [None if v is None else arrays[v] for v in node.inputs])
        if node.op in _VIEWS and "view_propagation" in disabled():
            return [builder.copy(y) for y in outputs]
        return outputs


_VIEWS = ("Slice", "Split", "Transpose", "Expand", "Tile", "Gather")
"""Nodes whose results are views of their inputs, where strides allow that."""


def _on_host(values: np.ndarray, value: OnnxValue | None = None) -> Array:
    """An array that only the host holds. Open sizes are objects there, of the type of ``value``."""
    dtype = values.dtype
    if dtype.hasobject:
        dtype = (value and value.dtype) or np.dtype(np.int64)
        if not any_open(values.flat):
            values = settled(values, dtype)
    return Array(dtype, values.shape, packed_strides(values.shape), None, values)


def _seen(x: Array) -> np.ndarray:
    """The array's values, or any values of its sizes if the host does not know them."""
    if x.host is None and any_open(x.shape):
        return Shaped(x.shape, x.size)  # type: ignore[return-value]
    return np.broadcast_to(x.dtype.type(0), x.shape) if x.host is None else x.host


def _upload(builder: Builder, value: OnnxValue, arrays: dict[OnnxValue, Array]) -> None:
    """Upload a value that only the host has."""
    x = arrays[value]
    if x.storage is None and x.size and x.host is not None:
        arrays[value] = builder.numbers(x.host, x.dtype)
