"""Runs a Case of an operator in every possible way, and compares with its reference.

Runs vary the data type (from the specification's table), the layout of each operand, the device's
shader paths, the level (descriptor or function) and, if the operator allows it, running in place.
After each run every byte is checked: results against the reference; inputs and sentinels must be
unchanged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import kompute_dml as dml
from kompute_dml.functions.broadcasting import argument
from kompute_dml.lowering.builder import target_of
from kompute_dml.lowering.plan import Plan, Target
from kompute_dml.operators.base import Definition, definitions
from kompute_dml.runtime.shader_library import SWITCHES, ShaderLibrary
from layouts import ALL, PACKED, SHIFTED, TRANSPOSED, Layout, Sizes
from tolerance import LOST, compare, within

Types = Mapping[str, dml.DataType]
Arrays = Mapping[str, np.ndarray]
Values = Callable[[np.random.Generator, dml.DataType, Sizes], np.ndarray]

FEW = (PACKED, SHIFTED, TRANSPOSED)


def random_bits(rng: np.random.Generator, data_type: dml.DataType, sizes: Sizes) -> np.ndarray:
    """Random bits, which include NaNs with payloads and infinities."""
    raw = rng.bytes(int(np.prod(sizes)) * data_type.itemsize)
    return np.frombuffer(raw, data_type.dtype).reshape(sizes).copy()


def _field(name: str) -> str:
    """``input_tensors[1]`` -> ``input_tensors``."""
    return name.partition("[")[0]


def grouped(named: Mapping[str, Any]) -> dict[str, Any]:
    """Values by field. The elements of an array of tensors become a tuple."""
    result: dict[str, Any] = {}
    for name, value in named.items():
        field = _field(name)
        result[field] = (*result.get(field, ()), value) if field != name else value
    return result


@dataclass(frozen=True)
class Case:
    """A use of an operator.

    Tensors are named by their fields (``input_tensor``, ``input_tensors[0]``). Absent tensors are
    left out.
    """

    operator: str
    """The operator's name without ``DML_OPERATOR_``."""
    name: str
    sizes: Mapping[str, Sequence[int]]
    reference: Callable[[Arrays, Mapping[str, Any], Types], np.ndarray | tuple[np.ndarray, ...]]
    """(inputs, attributes, data types) -> the output, or a tuple of outputs."""
    call: Callable[[Mapping[str, Any], Mapping[str, Any], Types, Any], Any] | None = None
    """The function level: (inputs, attributes, data types, out) -> result, or tuples for several
    outputs. By default the operator's function with arguments by name."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Attributes by field. A callable gets the data types."""
    values: Mapping[str, Values | np.ndarray] = field(default_factory=dict)
    """Contents of inputs, random bits by default."""
    types: Sequence[Types] | None = None
    """Data types; by default all that the specification's table allows."""
    layouts: Sequence[Layout] = ALL
    """Layouts. The first one is packed. Others are tried on each operand alone, and on all."""
    levels: Sequence[str] = ("descriptor", "function", "arrays")
    compare: str = "bits"
    """A row of the tolerance table."""
    room: Callable[[Arrays, Mapping[str, Any]], Any] | None = None
    """(inputs, attributes) -> the largest error of each element of the output as in accuracy.md,
    without the last rounding, or a tuple for several outputs. Replaces ``compare``."""

    @property
    def definition(self) -> Definition:
        return definitions()["DML_OPERATOR_" + self.operator]

    @property
    def outputs(self) -> list[str]:
        fields = [f.snake for f in self.definition.spec.outputs]
        return [name for f in fields for name in self.sizes if _field(name) == f]

    @property
    def output(self) -> str:
        """The first output, which may also be an input."""
        return self.outputs[0]

    @property
    def inputs(self) -> list[str]:
        return [f for f in self.sizes if f not in self.outputs]

    def run_function(
        self, inputs: Mapping[str, Any], attributes: Mapping[str, Any], types: Types, out: Any
    ) -> Any:
        """Call the operator's function."""
        if self.call is not None:
            return self.call(inputs, attributes, types, out)
        definition = self.definition
        arguments = {argument(f): x for f, x in grouped(inputs).items()} | dict(attributes)
        arguments |= {argument(f.snake): True for f in definition.spec.outputs
                      if f.optional and f.snake in self.sizes}
        if "data_type" in definition.defaults and out is None:
            arguments["data_type"] = types[self.outputs[-1]]
        several = any(f.is_array for f in definition.spec.outputs)
        result = getattr(dml, definition.function_name)(**arguments, out=out)
        return tuple(result) if several else result

    def attributes_for(self, types: Types) -> dict[str, Any]:
        return {k: v(types) if callable(v) else v for k, v in self.attributes.items()}

    def all_types(self) -> Sequence[Types]:
        return list(_table_types(self.operator, tuple(self.sizes))) if self.types is None \
            else self.types


@cache
def _table_types(operator: str, fields: tuple[str, ...]) -> tuple[Types, ...]:
    """Every assignment of data types that the table and its equalities allow."""
    definition = definitions()["DML_OPERATOR_" + operator]
    spec = definition.spec
    support = spec.support_at(dml.FeatureLevel.FL_6_4)
    assert support is not None
    group = {f.snake: {f.snake} for f in spec.tensors}
    for tensors, properties in spec.same:
        if "data type" in properties:
            names = {f.snake for f in spec.tensors if f.name in tensors}
            merged = set().union(*(group[n] for n in names))
            group.update(dict.fromkeys(merged, merged))
    groups = {min(group[_field(f)]): [n for n in fields if _field(n) in group[_field(f)]]
              for f in fields}
    choices = []
    for members in groups.values():
        allowed = [support[f.name].data_types for f in spec.tensors
                   if f.snake in {_field(m) for m in members}]
        common = [t for t in allowed[0] if all(t in a for a in allowed)]
        choices.append([dict.fromkeys(members, t) for t in common])
    return tuple({k: v for part in parts for k, v in part.items()}
                 for parts in itertools.product(*choices))


@dataclass(frozen=True)
class Run:
    """One way to run a case: one test."""

    case: Case
    types: Types
    layouts: Mapping[str, Layout]
    level: str
    disabled: str = ""
    """The value of ``KOMPUTE_DML_DISABLE`` for the device."""
    in_place: str = ""
    """The input that is also the output."""

    def description(self) -> Any:
        """Its description. Operands without a layout are packed."""
        descs = {n: self._desc(n, tuple(s)) for n, s in self.case.sizes.items()}
        attributes = self.case.attributes_for(self.types)
        return self.case.definition.desc_class(**grouped(descs), **attributes)

    def plan(self) -> Plan:
        """Its plan on the default device."""
        return self.case.definition.lower(self.description(), target(self.disabled))

    def _desc(self, name: str, sizes: tuple[int, ...]) -> dml.TensorDesc:
        layout, data_type = self.layouts.get(name, PACKED), self.types[name]
        seen = layout.view(np.empty(layout.base_sizes(sizes), data_type.dtype), sizes)
        strides = [s // data_type.itemsize for s in seen.strides]
        return dml.TensorDesc(data_type, sizes, strides=strides)

    def __str__(self) -> str:
        families = dict.fromkeys(t.family for t in self.types.values())
        fields = self.layouts
        if len(set(fields.values())) == 1:
            where = next(iter(fields.values())).name
        else:
            where = "-".join(
                f"{f.removesuffix('_tensor')}.{x}" for f, x in fields.items()
                if x is not self.case.layouts[0]
            )
        parts = [
            self.case.operator.lower(), self.case.name, ".".join(families), where,
            f"in-place.{self.in_place.removesuffix('_tensor')}" if self.in_place else "",
            self.level,
            f"no.{self.disabled.replace(',', '.')}" if self.disabled else "",
        ]
        return "-".join(p for p in parts if p)


class Operand:
    """An operand in host memory: a base array, and the layout's view of it, the tensor."""

    def __init__(self, layout: Layout, sizes: Sizes, base: np.ndarray) -> None:
        self.layout = layout
        self.sizes = sizes
        self.base = base
        self.view: np.ndarray = layout.view(base, sizes)

    @property
    def byte_offset(self) -> int:
        address = self.view.__array_interface__["data"][0]
        return int(address - self.base.__array_interface__["data"][0])

    @property
    def desc(self) -> dml.TensorDesc:
        strides = [s // self.base.itemsize for s in self.view.strides]
        return dml.TensorDesc(dml.DataType.of(self.base.dtype), self.sizes, tuple(strides))

    def tensor(self, device: dml.Device) -> tuple[dml.Tensor, dml.Tensor]:
        """The base and its view on the device."""
        base = device.tensor(self.base)
        return base, self.layout.view(base, self.sizes)


def _operand(run: Run, name: str, rng: np.random.Generator) -> Operand:
    layout, sizes = run.layouts[name], tuple(run.case.sizes[name])
    data_type = run.types[name]
    values = run.case.values.get(name, random_bits)
    base_sizes = layout.base_sizes(sizes)
    if callable(values):
        return Operand(layout, sizes, values(rng, data_type, base_sizes))
    operand = Operand(layout, sizes, random_bits(rng, data_type, base_sizes))
    operand.view[...] = values
    return operand


def check(run: Run, device: dml.Device, rng: np.random.Generator) -> None:
    """Execute a run. Raises AssertionError if something is wrong."""
    case = run.case
    operands = {name: _operand(run, name, rng) for name in case.sizes}
    if run.in_place:
        operands[case.output] = operands[run.in_place]
    attributes = case.attributes_for(run.types)
    inputs = {name: operands[name].view.copy() for name in case.inputs}
    with np.errstate(all="ignore"):
        expected = dict(zip(case.outputs, _all(case.reference(inputs, attributes, run.types))))
    rooms = dict(zip(case.outputs, _all(case.room(inputs, attributes)))) if case.room else {}
    before = {id(o): o.base.copy() for o in operands.values()}
    lost = LOST if case.compare == "function" else 0.0

    if run.level == "arrays":
        views = {n: operands[n].view for n in case.inputs}
        result = case.run_function(views, attributes, run.types, None)
        for name, tensor in zip(case.outputs, _all(result)):
            problem = (within(tensor.numpy(), expected[name], rooms[name]) if name in rooms
                       else compare(tensor.numpy(), expected[name], case.compare, lost))
            assert not problem, f"{name}: {problem}"
        return
    after = _LEVELS[run.level](run, device, operands, attributes, rng)

    for name in case.outputs:
        output = operands[name]
        actual = output.layout.view(after[id(output)], output.sizes)
        problem = (within(actual, expected[name], rooms[name]) if name in rooms
                   else compare(actual, expected[name], case.compare, lost))
        assert not problem, f"{name}: {problem}"
        # The result has a tolerance. All other bytes must not change.
        output.layout.view(before[id(output)], output.sizes)[...] = actual
    for name, operand in operands.items():
        problem = compare(after[id(operand)], before[id(operand)], "bits")
        assert not problem, f"outside of the result, in the memory around {name}: {problem}"


def _all(results: Any) -> tuple[Any, ...]:
    """The results as a tuple."""
    return results if isinstance(results, tuple) else (results,)


def _run_function(
    run: Run, device: dml.Device, operands: Mapping[str, Operand], attributes: Mapping[str, Any],
    rng: np.random.Generator,
) -> dict[int, np.ndarray]:
    placed = {id(o): o.tensor(device) for o in operands.values()}
    views = {name: placed[id(o)][1] for name, o in operands.items()}
    out = tuple(views[n] for n in run.case.outputs)
    result = run.case.run_function({n: views[n] for n in run.case.inputs}, attributes, run.types,
                           out if len(out) > 1 else out[0])
    assert all(r is o for r, o in zip(_all(result), out, strict=True)), "it must return out"
    return {key: base.numpy() for key, (base, _) in placed.items()}


def _run_descriptor(
    run: Run, device: dml.Device, operands: Mapping[str, Operand], attributes: Mapping[str, Any],
    rng: np.random.Generator,
) -> dict[int, np.ndarray]:
    """All operands lie in one buffer, between random bytes."""
    compiled = compile_desc(device, run.case.definition, operands, attributes)
    places: dict[int, int] = {}
    end = 0
    distinct = list({id(o): o for o in operands.values()}.values())  # fewer when in place
    for operand in distinct:
        # The view starts at a multiple of 16, as bindings must.
        places[id(operand)] = end + 16 + (-(end + operand.byte_offset) % 16)
        end = places[id(operand)] + operand.base.nbytes
    host = np.frombuffer(rng.bytes((end + 32) // 4 * 4), np.uint8).copy()
    for operand in distinct:
        at = places[id(operand)]
        host[at : at + operand.base.nbytes] = operand.base.reshape(-1).view(np.uint8)
    buffer = device.create_buffer(host.nbytes)
    buffer.write(host)

    def binding(name: str) -> dml.BufferBinding | None:
        if name not in operands:
            return None
        o = operands[name]
        size = o.desc.total_tensor_size_in_bytes
        return dml.BufferBinding(buffer, places[id(o)] + o.byte_offset, size)

    slots = compiled.tensors
    table = device.create_binding_table(compiled)
    table.bind_inputs([binding(f.snake) for f in slots if f.kind == "input"])
    table.bind_outputs([binding(f.snake) for f in slots if f.kind == "output"])
    scratch = bind_resources(device, compiled, table)
    device.record_dispatch(compiled, table)
    result = buffer.read()
    if scratch is not None:
        size = compiled.binding_properties.temporary_resource_size
        behind = scratch.read(size + -size % 4)
        assert (behind == _GARBAGE).all(), "bytes behind the temporary resource changed"
    after = {}
    for operand in distinct:
        at = places[id(operand)]
        raw = result[at : at + operand.base.nbytes].copy()
        after[id(operand)] = raw.view(operand.base.dtype).reshape(operand.base.shape)
        host[at : at + operand.base.nbytes] = 0
        result[at : at + operand.base.nbytes] = 0
    assert (result == host).all(), "bytes between the operands changed"
    return after


def compile_desc(
    device: dml.Device, definition: Definition, operands: Mapping[str, Operand],
    attributes: Mapping[str, Any],
) -> dml.CompiledOperator:
    descs = {name: operand.desc for name, operand in operands.items()}
    operator = device.create_operator(definition.desc_class(**grouped(descs), **attributes))
    return device.compile_operator(operator)


_GARBAGE, _BEHIND = 0xAB, 1 << 16


def bind_resources(
    device: dml.Device, compiled: dml.CompiledOperator, table: dml.BindingTable
) -> dml.Buffer | None:
    """Bind the temporary resource that ``compiled`` needs, filled with garbage. The returned buffer
    has more garbage after it."""
    size = compiled.binding_properties.temporary_resource_size
    if not size:
        return None
    scratch = device.create_buffer(size + -size % 4 + _BEHIND)
    scratch.write(np.full(scratch.size_in_bytes, _GARBAGE, np.uint8))
    table.bind_temporary_resource(dml.BufferBinding(scratch, 0, size))
    return scratch


_LEVELS = {"function": _run_function, "descriptor": _run_descriptor}


# The matrix of runs


def _layout_sets(case: Case) -> Iterator[dict[str, Layout]]:
    """All operands in the first layout; each alone in every other one; all together in every
    other."""
    first, *others = case.layouts
    plain = dict.fromkeys(case.sizes, first)
    fitting = {
        name: [x for x in others
               if x.fits(tuple(sizes)) and not (x.inputs_only and name in case.outputs)]
        for name, sizes in case.sizes.items()
    }
    yield plain
    if len(case.sizes) > 1:
        for name, layouts in fitting.items():
            for layout in layouts:
                yield plain | {name: layout}
    for layout in others:
        together = {name: layout for name in case.sizes if layout in fitting[name]}
        if len(together) > 1 or len(together) == len(case.sizes):
            yield plain | together


@cache
def switches() -> tuple[str, ...]:
    """The features to disable, step by step, so that this device takes each of its paths."""
    offered = dml.default_device().features  # those that kp has enabled
    names = [n for n in ("coopmat", "dot") if set(SWITCHES[n]) & offered]
    return tuple(",".join(names[:n]) for n in range(len(names) + 1))


def target(disabled: str) -> Target:
    features = {f for n in disabled.split(",") if n for f in SWITCHES[n]}
    device = dml.default_device()
    return target_of(ShaderLibrary(device.features - features, device.adapter.max_storage_buffers),
                     device.adapter)


def _paths(case: Case, types: Types) -> list[str]:
    """The switches that change the shaders of this case."""
    if len(switches()) == 1:
        return [""]
    chosen: dict[tuple[str, ...], str] = {}
    for disabled in switches():
        plan = Run(case, types, {}, "", disabled).plan()
        chosen.setdefault(tuple(d.variant.name for d in plan.execute), disabled)
    return list(chosen.values())


def runs(case: Case) -> Iterator[Run]:
    for types in case.all_types():
        for disabled in _paths(case, types):
            for layouts in _layout_sets(case):
                for level in case.levels:
                    # Arrays are packed when they are uploaded. Two layouts are enough to show it.
                    if level != "arrays" or set(layouts.values()) in ({PACKED}, {TRANSPOSED}):
                        yield Run(case, types, layouts, level, disabled)
        for name in case.inputs if case.definition.in_place else ():
            if case.sizes[name] == case.sizes[case.output] and types[name] is types[case.output]:
                for layout in case.layouts:
                    if layout.fits(tuple(case.sizes[name])) and not layout.inputs_only:
                        layouts = dict.fromkeys(case.sizes, case.layouts[0])
                        layouts |= {name: layout, case.output: layout}
                        for level in ("descriptor", "function"):
                            yield Run(case, types, layouts, level, in_place=name)


@dataclass(frozen=True)
class ErrorCase:
    """A descriptor that must be refused."""

    operator: str
    name: str
    fields: Mapping[str, Any]
    parts: Sequence[str]
    """The required parts of the message: the field's path, the rule, the values."""
    error: type[dml.DmlError] = dml.ValidationError
    strict: bool = False

    def __str__(self) -> str:
        return f"{self.operator.lower()}-{self.name}"
