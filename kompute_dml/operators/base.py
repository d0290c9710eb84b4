"""The base of every operator: descriptor classes made from the specification, and checks.

An operator module calls :func:`define` for each operator, or decorates the function that builds its
plan with :func:`operator`. Both make the descriptor class (``DiagonalMatrix1OperatorDesc`` ...) and
register a :class:`Definition`. The functions, the stubs, the command line, DxDispatch and the
support table are made from the registry.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from keyword import iskeyword
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from .. import spec
from ..attributes import ENUMS, ReduceFunction, ScaleBias, Size2d
from ..desc import MAX_DIMENSIONS, TensorDesc, tensor_of
from ..dtypes import DataType
from ..errors import UnsupportedError, expect, refuse, whole
from ..layout import Ints
from ..lowering.builder import PlanBuilder
from ..lowering.plan import Plan, Target
from ..spec import FeatureLevel, Field, OperatorSpec, TensorSupport

if TYPE_CHECKING:
    from typing_extensions import Self

Lower = Callable[[Any, Target], Plan]
Check = Callable[[Any, bool], None]
Same = Iterable[tuple[tuple[str, ...], tuple[str, ...]]]
Newer = Callable[[Any], Iterable[tuple[FeatureLevel, str, str, Any]]]
"""Values that need a later feature level: (level, field, the older rule, value)."""


class Output(NamedTuple):
    """Sizes and type of an output, as they follow from inputs and attributes."""

    sizes: Ints
    data_type: DataType | None
    """None if the caller chooses it."""


Infer = Callable[[Any], Mapping[str, Output | list[Output]]]
"""Outputs by field, from a description of inputs and attributes. Raises ValidationError if these
make no output."""

_INT_RANGES = {
    "INT": (-(2**31), 2**31 - 1), "UINT": (0, 2**32 - 1), "UINT64": (0, 2**64 - 1), "BOOL": (0, 1),
}


class _Signature:
    """The signature of a descriptor class: its fields, by name."""

    def __get__(self, desc: OperatorDesc, desc_class: type[OperatorDesc]) -> inspect.Signature:
        place = inspect.Parameter
        return inspect.Signature([
            place(f.name, place.KEYWORD_ONLY,
                  default=place.empty if f.default is dataclasses.MISSING else f.default)
            for f in dataclasses.fields(desc_class)
        ])


@dataclasses.dataclass(init=False, repr=False, eq=False)
class OperatorDesc:
    """Base of every ``...OperatorDesc``: DirectML's structure, fields in snake case.

    Arrays are tuples. The attributes that count their elements may be left out. A member of an
    enumeration may be given by its name.

    It behaves as a frozen dataclass. Its methods serve all classes: making those of a dataclass for
    each class would take most of the time of an import.
    """

    __signature__ = _Signature()

    def __init__(self, **values: object) -> None:
        mine, fields = self.__dict__, self.operator.fields
        mine.update(fields.defaults)
        mine.update(values)
        if len(mine) > len(fields.defaults) or not fields.required <= values.keys():
            self._refuse(values)
        for name in fields.arrays:
            if isinstance(value := mine[name], (list, np.ndarray)):
                mine[name] = tuple(value)
        for name, members in fields.enums:
            if isinstance(value := mine[name], str):
                mine[name] = members.get(value.upper(), value)
        for name, count in fields.counted:
            if mine[count] is None and isinstance(value := mine[name], tuple):
                mine[count] = len(value)

    def _refuse(self, values: Mapping[str, object]) -> NoReturn:
        try:
            inspect.signature(type(self)).bind(**values)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}() {error}") from None
        raise AssertionError("only what the signature refuses comes here")

    if TYPE_CHECKING:  # the fields of each class are known when it is made

        def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *self.__dict__.values()))

    def changed(self, **fields: object) -> Self:
        """A copy with other fields, in a fifth of the time of :func:`dataclasses.replace`."""
        return type(self)(**{**self.__dict__, **fields})

    @property
    def operator(self) -> Definition:
        """The definition this descriptor belongs to."""
        return _by_class[type(self)]


def definition_of(desc_class: type[OperatorDesc]) -> Definition:
    """The definition that descriptions of this class belong to."""
    return _by_class[desc_class]


Given = Sequence[tuple[Field, TensorDesc]]
"""The tensors of a description that are not absent, by field."""


class _Fields(NamedTuple):
    """What the fields of a descriptor class are."""

    defaults: Mapping[str, Any]
    """All fields, in their order. Required ones have none of use."""
    required: frozenset[str]
    arrays: tuple[str, ...]
    enums: tuple[tuple[str, Mapping[str, Any]], ...]
    """Fields of an enumeration, and its members by name."""
    counted: tuple[tuple[str, str], ...]
    """Arrays, and the attributes that count their elements."""


@dataclasses.dataclass(frozen=True)
class Definition:
    """An implemented operator."""

    spec: OperatorSpec
    desc_class: type[OperatorDesc]
    lower: Lower
    check: Check
    same: Callable[[bool], Same]
    newer: Newer
    in_place: bool
    shaders: tuple[str, ...]
    """Shaders that its lowering may choose from."""
    infer: Infer | None
    """None if the outputs may have any sizes that the table allows."""
    defaults: Mapping[str, Any]
    """Defaults of its function's keyword arguments."""
    broadcasts: bool
    """Whether its function broadcasts the inputs to one another."""
    owned: bool
    """Whether inputs may be OWNED_BY_DML."""
    any_size: bool
    """Whether a device that has shaders for some sizes of tensors, and windows, has them for
    all."""

    @property
    def name(self) -> str:
        return self.spec.name

    @functools.cached_property
    def short_name(self) -> str:
        """DirectML's name without its prefix."""
        return self.name.removeprefix("DML_OPERATOR_")

    @functools.cached_property
    def function_name(self) -> str:
        """The operator's name at function level: DirectML's, without its prefixes."""
        name = self.short_name.removeprefix("ELEMENT_WISE_").lower()
        return f"{name}_" if iskeyword(name) else name

    @functools.cached_property
    def fields(self) -> _Fields:
        """What the constructor of the descriptor class reads."""
        fields = self.spec.fields
        defaults = {n: f.default for n, f in self.desc_class.__dataclass_fields__.items()}
        return _Fields(
            defaults, frozenset(n for n, x in defaults.items() if x is dataclasses.MISSING),
            tuple(f.snake for f in fields if f.is_array),
            tuple((f.snake, ENUMS[f.enum].__members__) for f in fields
                  if not f.is_array and f.enum in ENUMS),
            tuple((f.snake, spec.snake_case(f.count_field)) for f in fields if f.count_field),
        )

    @functools.cached_property
    def kinds(self) -> tuple[str, ...]:
        """The fields that are neither arrays nor sizes: tensors, numbers and enumerations."""
        return tuple(f.snake for f in self.spec.fields
                     if not f.is_array and (f.type != "UINT" or f.enum))

    @functools.cached_property
    def _tensors(self) -> tuple[tuple[Field, ...], bool]:
        """The tensors, inputs first, and whether one of them is an array."""
        tensors = (*self.spec.inputs, *self.spec.outputs)
        return tensors, any(f.is_array for f in tensors)

    def slots(self, desc: OperatorDesc) -> tuple[Field, ...]:
        """The tensors of ``desc``, inputs first. An array gives a field for each element."""
        tensors, has_array = self._tensors
        if not has_array:
            return tensors
        result: list[Field] = []
        for f in tensors:
            if f.is_array:
                result += [_element(f, i) for i in range(len(getattr(desc, f.snake)))]
            else:
                result.append(f)
        return tuple(result)

    def support(self, desc: OperatorDesc, level: FeatureLevel) -> dict[str, TensorSupport] | None:
        """The support table for ``desc`` at ``level``."""
        return self.spec.support_at(level, _function(desc))

    def check_fields(
        self, desc: OperatorDesc, kinds: Iterable[str] = ("input", "output", "attribute")
    ) -> None:
        """Raise if a field's value has the wrong type, or an array's length differs from its
        count."""
        for f in self.spec.fields:
            if f.kind in kinds and f.name not in self.spec.count_fields:
                check_field(self.name, f, getattr(desc, f.snake), self.spec)
        for f in self.spec.fields:
            if f.count_field and f.kind in kinds:
                count = whole(self.name, f.count_field,
                              getattr(desc, spec.snake_case(f.count_field)))
                length = len(getattr(desc, f.snake))
                expect(count == length, self.name, f.count_field, f"be {length} (as many as "
                       f"{f.name} has)", count)

    def validate(self, desc: OperatorDesc, level: FeatureLevel, strict: bool) -> None:
        """Raise if ``desc`` is not valid at a feature level. ``strict`` refuses extensions."""
        self.check_fields(desc)
        present = [(f, t) for f in self.slots(desc)
                   if (t := tensor_of(desc, f.snake)) is not None]
        self._check_support(desc, present, level)
        for tensors, properties in self.same(strict):
            self._check_same(present, tensors, properties)
        for f, tensor in present:
            if f.kind == "input" and not self.owned and tensor.owned_by_dml:
                refuse(self.name, f"{f.name}.Flags", "be NONE", "OWNED_BY_DML")
            if f.kind != "output":
                continue
            if tensor.overlaps_itself:
                refuse(
                    self.name, f"{f.name}.Strides",
                    "give every element of an output an address of its own",
                    f"Sizes {list(tensor.sizes)} with Strides {list(tensor.strides)}",
                )
            if tensor.owned_by_dml:
                refuse(self.name, f"{f.name}.Flags", "be NONE (only inputs may be OWNED_BY_DML)",
                       "OWNED_BY_DML")
        self._check_outputs(desc, present)
        self.check(desc, strict)
        self._check_fused(desc, level)
        for since, field, rule, got in self.newer(desc):
            if level < since:
                raise self._unsupported(field, rule, got, level, since)

    def _check_support(self, desc: OperatorDesc, present: Given, level: FeatureLevel) -> None:
        table = self.support(desc, level)
        if table is None:
            raise UnsupportedError(
                f"{self.name}: needs feature level {self.spec.introduced}, "
                f"but the device was created at {level}"
            )
        for f, tensor in present:
            support = table.get(name := f.name.partition("[")[0])
            if support is None:
                continue
            low, high = support.dimension_counts
            if tensor.data_type in support.data_types and low <= tensor.dimension_count <= high:
                continue
            default = tensor.data_type is DataType.FLOAT64 and DataType.FLOAT32 in (
                support.data_types)
            for ok, field, rule, got, allowed in (
                (tensor.data_type in support.data_types, "DataType",
                 f"be one of {', '.join(map(str, support.data_types))}",
                 "FLOAT64 (NumPy's default: use np.float32)" if default else tensor.data_type,
                 lambda s, t=tensor: t.data_type in s.data_types),
                (low <= tensor.dimension_count <= high, "DimensionCount",
                 f"be {low}" if low == high else f"be in [{low}, {high}]",
                 tensor.dimension_count,
                 lambda s, t=tensor: s.dimension_counts[0] <= t.dimension_count
                 <= s.dimension_counts[1]),
            ):
                if ok:
                    continue
                since = [
                    row.since for row in self.spec.support
                    if row.since > level and name in row.tensors and allowed(row.tensors[name])
                    and (not row.functions or _function(desc) in row.functions)
                ]
                if since:
                    raise self._unsupported(f"{f.name}.{field}", rule, got, level, min(since))
                refuse(self.name, f"{f.name}.{field}", rule, got)

    def _check_outputs(self, desc: OperatorDesc, present: Given) -> None:
        """Raise if a present output does not have the sizes that follow from the inputs."""
        inferred: dict[str, Output] = {}
        for name, outputs in (self.infer(desc) if self.infer else {}).items():
            inferred |= ({f"{name}[{i}]": m for i, m in enumerate(outputs)}
                         if isinstance(outputs, list) else {name: outputs})
        for f, tensor in present:
            output = inferred.get(f.snake)
            if output is not None and tensor.sizes != output.sizes:
                refuse(self.name, f"{f.name}.Sizes", f"be {list(output.sizes)}",
                       list(tensor.sizes))

    def _check_fused(self, desc: OperatorDesc, level: FeatureLevel) -> None:
        """Raise if the fused activation is none that this operator may fuse, or has tensors."""
        fused = getattr(desc, "fused_activation", None)
        if fused is None or "fused_activation" not in {f.snake for f in self.spec.fields}:
            return
        since = self.spec.fuses.get(fused.operator.name)
        expect(since is not None, self.name, "FusedActivation",
               "be an activation that can be fused", fused.operator.name)
        if since is not None and level < since:
            raise self._unsupported("FusedActivation", "be an activation that exists",
                                    fused.operator.name, level, since)
        for f in fused.operator.spec.fields:
            value = getattr(fused, f.snake)
            if f.is_tensor:
                expect(value is None, self.name, f"FusedActivation.{f.name}", "be None", value)
            else:
                check_field(fused.operator.name, f, value, fused.operator.spec)
        for newer, field, rule, got in fused.operator.newer(fused):
            if level < newer:
                raise self._unsupported(f"FusedActivation.{field}", rule, got, level, newer)

    def _unsupported(
        self, field: str, rule: str, got: object, level: FeatureLevel, since: FeatureLevel
    ) -> UnsupportedError:
        return UnsupportedError(
            f"{self.name}: expected {field} to {rule} at feature level {level}, but got {got}, "
            f"which feature level {since} brings"
        )

    def _check_same(
        self, every: Given, tensors: tuple[str, ...], properties: tuple[str, ...]
    ) -> None:
        present = [(f.name, t) for n in tensors for f, t in every
                   if f.name == n or f.name.partition("[")[0] == n]
        for prop in properties:
            field, get = _PROPERTIES[prop]
            for name, tensor in present[:-1]:
                last_name, last = present[-1]
                if (value := get(tensor)) != (other := get(last)):
                    refuse(self.name, f"{name}.{field}", f"equal {last_name}.{field}",
                           value, other)


@functools.lru_cache(maxsize=4096)
def _element(f: Field, index: int) -> Field:
    """The field of an element of an array."""
    return dataclasses.replace(f, name=f"{f.name}[{index}]")


_PROPERTIES: dict[str, tuple[str, Callable[[TensorDesc], Any]]] = {
    "data type": ("DataType", lambda t: t.data_type),
    "dimension count": ("DimensionCount", lambda t: t.dimension_count),
    "sizes": ("Sizes", lambda t: list(t.sizes)),
}


_SIMPLE = frozenset({TensorDesc, int, bool, type(None)})


def bits(value: Any) -> Any:
    """An attribute as part of a key. 0.0 equals -0.0 and NaN does not equal NaN, so floats are
    replaced by their bits."""
    kind = type(value)
    if kind in _SIMPLE or (kind is tuple and _SIMPLE.issuperset(map(type, value))):
        return value
    if issubclass(kind, OperatorDesc):
        return (kind, *[v if type(v) in _SIMPLE else bits(v) for v in value.__dict__.values()])
    if isinstance(value, (float, np.floating)):
        return struct.pack("<d", value)
    if isinstance(value, tuple):
        return tuple(map(bits, value))
    if isinstance(value, ScaleBias):
        return (kind, *map(bits, value.__dict__.values()))
    return value


def _function(desc: OperatorDesc) -> str | None:
    """The function that keys the operator's table, by DirectML's name."""
    value = getattr(desc, "function", None)
    return None if value is None else f"DML_REDUCE_FUNCTION_{ReduceFunction(value).name}"


_DESCRIBED = {
    "TENSOR_DESC": "TensorDesc",
    "TENSOR_DESC_ARRAY": "tuple of TensorDesc",
    "SCALE_BIAS": "ScaleBias (g(x) = x * scale + bias)",
    "SIZE_2D": "Size2d",
    "SCALAR_UNION": "Scalar, number or bytes",
    "OPERATOR_DESC": "description of an activation, without tensors",
    "OPERATOR_DESC_ARRAY": "tuple of descriptions of activations, without tensors",
    "FLOAT_ARRAY": "tuple of FLOAT",
    "UINT_ARRAY": "tuple of UINT",
    "INT_ARRAY": "tuple of INT",
}


def described(f: Field) -> str:
    """The type of a field's values, for docstrings: a class of this package or a C type."""
    if f.enum == "DML_TENSOR_DATA_TYPE":
        what = "DataType"
    else:
        what = ENUMS[f.enum].__name__ if f.enum in ENUMS else _DESCRIBED.get(f.type, f.type)
    return f"{what}, optional" if f.optional else what


def check_field(operator: str, f: Field, value: object, entry: OperatorSpec | None = None) -> None:
    """Raise unless ``value`` has the field's type. (Operators check SCALAR_UNION, which depends on
    a data type.)"""
    if value is None and (f.optional or f.is_tensor):
        expect(f.optional, operator, f.name, "be given", None)
    elif f.is_array:
        if not isinstance(value, tuple):
            refuse(operator, f.name, f"be a {_DESCRIBED[f.type]}", repr(value))
        if f.type == "TENSOR_DESC_ARRAY":
            expect(value, operator, f.name, "have at least one tensor", "()")
        kind = f.type.removesuffix("_ARRAY")
        low, high = _INT_RANGES.get(kind, (0, -1))
        for i, item in enumerate(value):
            if type(item) is not int or not low <= item <= high:
                _check_value(operator, f"{f.name}[{i}]", kind, item)
    elif f.enum == "DML_TENSOR_DATA_TYPE":
        expect(isinstance(value, DataType), operator, f.name, "be a DataType", value)
    elif f.enum in ENUMS:
        members = ENUMS[f.enum]
        if type(value) is not members:
            expect(_is_number(value) and value in list(members), operator, f.name,
                   f"be one of {', '.join(m.name for m in members)}", repr(value))
    else:
        _check_value(operator, f.name, f.type, value)


def _check_value(operator: str, name: str, kind: str, value: object) -> None:
    if kind == "TENSOR_DESC":
        expect(isinstance(value, TensorDesc), operator, name, "be a TensorDesc", value)
    elif kind == "OPERATOR_DESC":
        expect(isinstance(value, OperatorDesc), operator, name, "be an operator's description",
               repr(value))
    elif kind == "SCALE_BIAS":
        expect(isinstance(value, ScaleBias), operator, name, "be a ScaleBias", repr(value))
        for part in ("Scale", "Bias"):
            _check_float(operator, f"{name}.{part}", getattr(value, part.lower()))
    elif kind == "SIZE_2D":
        expect(isinstance(value, Size2d), operator, name, "be a Size2d", repr(value))
        for part in ("Width", "Height"):
            _check_value(operator, f"{name}.{part}", "UINT", getattr(value, part.lower()))
    elif kind in _INT_RANGES:
        low, high = _INT_RANGES[kind]
        if not low <= (number := whole(operator, name, value)) <= high:
            refuse(operator, name, f"be in [{low}, {high}]", number)
    elif kind == "FLOAT":
        _check_float(operator, name, value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating))


def _check_float(operator: str, name: str, value: Any) -> None:
    expect(_is_number(value), operator, name, "be a number", repr(value))
    try:
        float(value)
    except OverflowError:
        refuse(operator, name, "be a number that a float can hold", value)


def axis_in(operator: str, axis: int, tensor: TensorDesc, field: str = "Axis",
            of: str = "InputTensor") -> int:
    """``axis``, which the tensor must have."""
    rank = tensor.dimension_count
    expect(0 <= axis < rank, operator, field,
           f"be in [0, {rank}) ({of} has {rank} dimensions)", axis)
    return int(axis)


def axes_in(operator: str, axes: Ints, tensor: TensorDesc) -> Ints:
    """``axes``, which the tensor must have, each at most once."""
    for i, axis in enumerate(axes):
        axis_in(operator, axis, tensor, f"Axes[{i}]")
    expect(len(set(axes)) == len(axes), operator, "Axes", "name each axis once", list(axes))
    return tuple(axes)


def like(field: str) -> Infer:
    """An :data:`Infer`: the first output has the sizes and the type of an input."""
    def infer(desc: OperatorDesc) -> Mapping[str, Output | list[Output]]:
        x = getattr(desc, field)
        return {desc.operator.spec.outputs[0].snake: Output(x.sizes, x.data_type)}

    KEEPS_SIZES.add(infer)
    return infer


KEEPS_SIZES: set[Infer] = set()
"""Those by :func:`like`, which say what a tensor without elements gives."""


class Each(NamedTuple):
    """The default of an attribute with a number for each dimension. One number stands for all."""

    value: float | None = None
    """None where the caller must give it."""
    outer: int = 0
    """Dimensions in front that have none."""

    def numbers(self, given: Any, rank: int) -> Any:
        """``given``, or the default, for so many dimensions."""
        value = self.value if given is None else given
        if isinstance(value, np.generic):
            value = value.item()
        return (value,) * max(rank - self.outer, 0) if _is_number(value) else value


_definitions: dict[str, Definition] = {}
_seen_definitions = MappingProxyType(_definitions)
_by_class: dict[type, Definition] = {}
_widened: dict[tuple[type[OperatorDesc], str, tuple[Field, ...]], type[OperatorDesc]] = {}


def define(
    name: str,
    lower: Lower,
    *,
    shaders: tuple[str, ...],
    check: Check = lambda desc, strict: None,
    same: Callable[[bool], Same] | None = None,
    newer: Newer = lambda desc: (),
    in_place: bool | None = None,
    infer: Infer | None = None,
    broadcasts: bool = False,
    owned: bool = True,
    any_size: bool = False,
    defaults: Mapping[str, Any] | None = None,
) -> Any:
    """Register ``DML_OPERATOR_<name>`` and return its descriptor class.

    ``check(desc, strict)`` makes checks that the specification table does not have.
    ``same(strict)`` replaces the table's equality constraints, ``in_place`` its statement on
    aliasing. ``newer(desc)`` yields values that need a later feature level, beyond the table.
    ``infer`` gives the outputs. ``owned``: inputs may be OWNED_BY_DML. ``any_size``: a
    device lacks it for some data types, never for some sizes. ``broadcasts`` and ``defaults``
    belong to the function.
    """
    entry = spec.operator("DML_OPERATOR_" + name)
    required, optional = [], []
    for f in entry.fields:
        # An activation without tensors describes a fused activation.
        if f.optional or f.name in entry.count_fields or (f.is_tensor and entry.lacks_tensors):
            optional.append((f.snake, Any, dataclasses.field(default=None, kw_only=True)))
        else:
            required.append((f.snake, Any, dataclasses.field(kw_only=True)))
    camel = "".join(part.capitalize() for part in name.split("_"))
    desc_class = _made(
        f"{camel}OperatorDesc",
        required + optional,
        OperatorDesc,
        {
            "__doc__": f"DML_{name}_OPERATOR_DESC: ``{entry.formula}``.\n\n"
            + "\n".join(f"    {f.snake}: {described(f)}" for f in entry.fields)
            + f"\n\n{entry.url}",
        },
    )
    definition = Definition(
        spec=entry,
        desc_class=desc_class,
        lower=lower,
        check=check,
        same=same or (lambda strict: entry.same),
        newer=newer,
        in_place=entry.in_place if in_place is None else in_place,
        shaders=shaders,
        infer=infer,
        defaults=defaults or {},
        broadcasts=broadcasts,
        owned=owned,
        any_size=any_size,
    )
    _definitions[entry.name] = definition
    _by_class[desc_class] = definition
    return desc_class


def _made(name: str, fields: list[Any], base: type, namespace: dict[str, Any] | None = None) -> Any:
    """A descriptor class. Its methods are those of :class:`OperatorDesc`."""
    kind = dataclasses.make_dataclass(
        name, fields, bases=(base,), namespace=namespace, init=False, repr=False, eq=False)
    # pickle finds it there. From Python 3.12 on, make_dataclass ignores ``namespace`` here.
    kind.__module__ = "kompute_dml"
    return kind


def widened(
    desc_class: type[OperatorDesc], *more: Field, name: str = "", lower: Lower | None = None,
    in_place: bool = True, fuses: type[OperatorDesc] | None = None,
    data_types: tuple[DataType, ...] = (), own_rules: bool = False,
) -> type[OperatorDesc]:
    """The descriptor class of an operator with optional fields that DirectML's does not have.
    Graphs use it. It is not in the registry. ``in_place``: it may write over inputs, if DirectML's
    operator may. ``fuses``: it fuses the activations that this one does. ``data_types``: those of
    its tensors, if they are others than DirectML's. ``own_rules``: rules of DirectML's operator for
    sizes do not hold."""
    key = desc_class, name, more
    if (wide := _widened.get(key)) is not None:
        return wide
    definition = _by_class[desc_class]
    wide = _made(
        desc_class.__name__,
        [(f.snake, Any, dataclasses.field(default=None, kw_only=True)) for f in more],
        desc_class)
    entry = dataclasses.replace(
        definition.spec, fields=(*definition.spec.fields, *more),
        name=f"DML_OPERATOR_{name}" if name else definition.name,
        fuses=_by_class[fuses].spec.fuses if fuses else definition.spec.fuses,
        support=tuple(row._replace(tensors={
            field: dataclasses.replace(
                support, data_types=data_types or support.data_types,
                dimension_counts=(1, MAX_DIMENSIONS) if own_rules else support.dimension_counts)
            for field, support in row.tensors.items()}) for row in definition.spec.support))
    _by_class[wide] = dataclasses.replace(
        definition, spec=entry, desc_class=wide, lower=lower or definition.lower,
        in_place=definition.in_place and in_place)
    if own_rules:
        _by_class[wide] = dataclasses.replace(
            _by_class[wide], infer=None, check=lambda desc, strict: None, same=lambda strict: ())
    _widened[key] = wide
    return wide


def fields_of(kind: type[OperatorDesc], desc: OperatorDesc) -> dict[str, Any]:
    """The fields that a description shares with those of another kind."""
    return {f.name: getattr(desc, f.name) for f in dataclasses.fields(kind)
            if f.init and hasattr(desc, f.name)}


Build = Callable[[Any, PlanBuilder], None]


def operator(
    name: str, *, shaders: tuple[str, ...], output: Infer | None = None, **more: Any
) -> Callable[[Build], Any]:
    """Register ``DML_OPERATOR_<name>``. The decorated function(description, builder) builds its
    plan, and its name becomes the descriptor class.

    ``output`` gives the outputs. Other keywords are those of :func:`define`, or defaults of the
    function's keyword arguments.
    """
    known = {k: more.pop(k) for k in ("check", "same", "newer", "in_place", "broadcasts", "owned",
                                      "any_size") if k in more}

    def register(build: Build) -> Any:
        def lower(desc: OperatorDesc, target: Target) -> Plan:
            builder = PlanBuilder(target, desc)
            build(desc, builder)
            return builder.build()

        return define(name, lower, shaders=shaders, infer=output, defaults=more, **known)

    return register


def definitions() -> Mapping[str, Definition]:
    """The implemented operators by DirectML name."""
    return _seen_definitions
