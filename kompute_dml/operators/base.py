"""What every operator shares: descriptor classes made from the specification, and its checks.

An operator module calls :func:`define` for each operator, which returns the descriptor class
(``DiagonalMatrix1OperatorDesc`` ...), and decorates its functions with :func:`function`. The
package's public names, the command line and the support table are read from the two registries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from keyword import iskeyword
from typing import Any, TypeVar

import numpy as np

from .. import spec
from ..attributes import IsInfinityMode, RoundingMode, ScaleBias
from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import UnsupportedError, expect, whole
from ..spec import FeatureLevel, Field, OperatorSpec
from .plan import Plan, Target

Lower = Callable[[Any, Target], Plan]
Check = Callable[[Any, bool], None]
Same = Iterable[tuple[tuple[str, ...], tuple[str, ...]]]
Newer = Callable[[Any], Iterable[tuple[FeatureLevel, str, str, Any]]]
"""Choices of a description that came after its operator: (level, field, the older rule, value)."""

_ENUMS = {"DML_ROUNDING_MODE": RoundingMode, "DML_IS_INFINITY_MODE": IsInfinityMode}
_INT_RANGES = {"INT": (-(2**31), 2**31 - 1), "UINT": (0, 2**32 - 1), "UINT64": (0, 2**64 - 1)}


@dataclasses.dataclass(frozen=True)
class OperatorDesc:
    """Base of every ``...OperatorDesc``: DirectML's structure, fields in snake case."""

    @property
    def operator(self) -> Definition:
        """The definition this descriptor belongs to."""
        return _by_class[type(self)]


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
    """Shaders its lowering may choose from."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def function_name(self) -> str:
        """The operator's name at function level: DirectML's, without its prefixes."""
        name = self.name.removeprefix("DML_OPERATOR_").removeprefix("ELEMENT_WISE_").lower()
        return f"{name}_" if iskeyword(name) else name

    def validate(self, desc: Any, level: FeatureLevel, strict: bool) -> None:
        """Raise what is wrong with ``desc`` at a feature level. ``strict`` refuses extensions."""
        for f in self.spec.fields:
            check_field(self.name, f, getattr(desc, f.snake))
        self._check_support(desc, level)
        for tensors, properties in self.same(strict):
            self._check_same(desc, tensors, properties)
        for f in self.spec.outputs:
            tensor = getattr(desc, f.snake)
            if tensor is not None:
                expect(
                    not tensor.overlaps_itself, self.name, f"{f.name}.Strides",
                    "give every element of an output an address of its own",
                    f"Sizes {list(tensor.sizes)} with Strides {list(tensor.strides)}",
                )
                expect(
                    not tensor.owned_by_dml, self.name, f"{f.name}.Flags",
                    "be NONE (only inputs may be OWNED_BY_DML)", "OWNED_BY_DML",
                )
        self.check(desc, strict)
        for since, field, rule, got in self.newer(desc):
            if level < since:
                raise self._unsupported(field, rule, got, level, since)

    def _check_support(self, desc: Any, level: FeatureLevel) -> None:
        table = self.spec.support_at(level)
        if table is None:
            raise UnsupportedError(
                f"{self.name}: needs feature level {self.spec.introduced}, "
                f"but the device was created at {level}"
            )
        for name, support in table.items():
            tensor = getattr(desc, spec.snake_case(name))
            if tensor is None:
                continue
            low, high = support.dimension_counts
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
                since = [lv for lv, t in self.spec.support if lv > level and allowed(t[name])]
                if since:
                    raise self._unsupported(f"{name}.{field}", rule, got, level, min(since))
                expect(False, self.name, f"{name}.{field}", rule, got)

    def _unsupported(
        self, field: str, rule: str, got: Any, level: FeatureLevel, since: FeatureLevel
    ) -> UnsupportedError:
        return UnsupportedError(
            f"{self.name}: expected {field} to {rule} at feature level {level}, but got {got}, "
            f"which feature level {since} brings"
        )

    def _check_same(
        self, desc: Any, tensors: tuple[str, ...], properties: tuple[str, ...]
    ) -> None:
        present = [(n, t) for n in tensors if (t := getattr(desc, spec.snake_case(n))) is not None]
        for prop in properties:
            field, get = _PROPERTIES[prop]
            for name, tensor in present[:-1]:
                last_name, last = present[-1]
                expect(
                    get(tensor) == get(last), self.name, f"{name}.{field}",
                    f"equal {last_name}.{field}", get(tensor), get(last),
                )


_PROPERTIES: dict[str, tuple[str, Callable[[TensorDesc], Any]]] = {
    "data type": ("DataType", lambda t: t.data_type),
    "dimension count": ("DimensionCount", lambda t: t.dimension_count),
    "sizes": ("Sizes", lambda t: list(t.sizes)),
}


_DESCRIBED = {
    "TENSOR_DESC": "TensorDesc",
    "SCALE_BIAS": "ScaleBias (g(x) = x * scale + bias)",
    "SCALAR_UNION": "Scalar, number or bytes",
    "OPERATOR_DESC": "description of an activation, without tensors",
    "FLOAT_ARRAY": "tuple of FLOAT",
}


def described(f: Field) -> str:
    """What a field takes, for a docstring: a class of this package's or a C type."""
    if f.enum == "DML_TENSOR_DATA_TYPE":
        what = "DataType"
    else:
        what = _ENUMS[f.enum].__name__ if f.enum in _ENUMS else _DESCRIBED.get(f.type, f.type)
    return f"{what}, optional" if f.optional else what


def check_field(operator: str, f: Field, value: Any) -> None:
    if f.is_tensor:
        if value is None:
            expect(f.optional, operator, f.name, "be given", None)
        else:
            expect(isinstance(value, TensorDesc), operator, f.name, "be a TensorDesc", value)
    elif f.enum == "DML_TENSOR_DATA_TYPE":
        expect(isinstance(value, DataType), operator, f.name, "be a DataType", value)
    elif value is None and f.optional:
        pass
    elif f.type == "SCALE_BIAS":
        expect(isinstance(value, ScaleBias), operator, f.name, "be a ScaleBias", repr(value))
        for part in ("Scale", "Bias"):
            _check_float(operator, f"{f.name}.{part}", getattr(value, part.lower()))
    elif f.type == "OPERATOR_DESC":
        expect(isinstance(value, OperatorDesc), operator, f.name, "be an operator's description",
               repr(value))
    elif f.enum in _ENUMS:
        members = _ENUMS[f.enum]
        expect(value in list(members), operator, f.name,
               f"be one of {', '.join(m.name for m in members)}", repr(value))
    elif f.type in _INT_RANGES:
        low, high = _INT_RANGES[f.type]
        number = whole(operator, f.name, value)
        expect(low <= number <= high, operator, f.name, f"be in [{low}, {high}]", number)
    elif f.type == "FLOAT_ARRAY":
        expect(isinstance(value, (tuple, list)), operator, f.name, "be a tuple of numbers",
               repr(value))
        for i, number in enumerate(value):
            _check_float(operator, f"{f.name}[{i}]", number)
    elif f.type == "FLOAT":
        _check_float(operator, f.name, value)


def _check_float(operator: str, name: str, value: Any) -> None:
    ok = isinstance(value, (int, float, np.integer, np.floating))
    expect(ok, operator, name, "be a number", repr(value))
    try:
        float(value)
    except OverflowError:
        expect(False, operator, name, "be a number that a float can hold", value)


_definitions: dict[str, Definition] = {}
_by_class: dict[type, Definition] = {}
_functions: dict[str, Callable[..., Any]] = {}


def define(
    name: str,
    lower: Lower,
    *,
    shaders: tuple[str, ...],
    check: Check = lambda desc, strict: None,
    same: Callable[[bool], Same] | None = None,
    newer: Newer = lambda desc: (),
    in_place: bool | None = None,
) -> Any:
    """Register ``DML_OPERATOR_<name>`` and return its descriptor class.

    ``check(desc, strict)`` raises what the specification table cannot say. ``same(strict)``
    replaces the table's equality constraints, ``in_place`` its word on aliasing. ``newer(desc)``
    names what the operator's first feature level did not take yet, beyond the table.
    """
    entry = spec.operator("DML_OPERATOR_" + name)
    required, optional = [], []
    for f in entry.fields:
        # Without its tensors an activation describes what another operator fuses.
        if f.optional or (f.is_tensor and entry.fusable):
            optional.append((f.snake, Any, dataclasses.field(default=None, kw_only=True)))
        else:
            required.append((f.snake, Any, dataclasses.field(kw_only=True)))
    camel = "".join(part.capitalize() for part in name.split("_"))
    desc_class = dataclasses.make_dataclass(
        f"{camel}OperatorDesc",
        required + optional,
        bases=(OperatorDesc,),
        frozen=True,
        namespace={
            "__doc__": f"DML_{name}_OPERATOR_DESC: ``{entry.formula}``.\n\n"
            + "\n".join(f"    {f.snake}: {described(f)}" for f in entry.fields)
            + f"\n\n{entry.url}",
            "__module__": "kompute_dml",
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
    )
    _definitions[entry.name] = definition
    _by_class[desc_class] = definition
    return desc_class


F = TypeVar("F", bound=Callable[..., Any])


def function(f: F) -> F:
    """Publish ``f`` as ``kompute_dml.<its name>``."""
    _functions[f.__name__] = f
    return f


def definitions() -> dict[str, Definition]:
    """The implemented operators by DirectML name."""
    return dict(_definitions)


def functions() -> dict[str, Callable[..., Any]]:
    """The function level by name."""
    return dict(_functions)
