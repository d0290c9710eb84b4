"""Reader of ``operators.json``: DirectML's operators as data, and of ``extensions.json``: operators
of this package that DirectML does not have, in the same form.

Only this module knows an operator's fields, and its data types and dimension counts for each
feature level. It does not know which operators this package implements.
"""

from __future__ import annotations

import enum
import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..dtypes import DataType
from ..errors import ValidationError


class FeatureLevel(enum.IntEnum):
    """DML_FEATURE_LEVEL: ``major * 0x1000 + minor * 0x100``."""

    FL_1_0 = 0x1000
    FL_2_0 = 0x2000
    FL_2_1 = 0x2100
    FL_3_0 = 0x3000
    FL_3_1 = 0x3100
    FL_4_0 = 0x4000
    FL_4_1 = 0x4100
    FL_5_0 = 0x5000
    FL_5_1 = 0x5100
    FL_5_2 = 0x5200
    FL_6_0 = 0x6000
    FL_6_1 = 0x6100
    FL_6_2 = 0x6200
    FL_6_3 = 0x6300
    FL_6_4 = 0x6400

    def __str__(self) -> str:
        return self.name[3:]

    @classmethod
    def of(cls, value: Any) -> FeatureLevel:
        """The level of a name (``FL_6_4``, ``6_4``, ``6.4``) or of DirectML's number."""
        if isinstance(value, str):
            digits = value.upper().removeprefix("DML_FEATURE_LEVEL_").removeprefix("FL_")
            value = cls.__members__.get("FL_" + digits.replace(".", "_"), value)
        try:
            return cls(value)
        except ValueError:
            names = ", ".join(str(level).replace("_", ".") for level in cls)
            raise ValidationError(
                f"FeatureLevel: expected feature_level to be one of {names}, but got {value!r}"
            ) from None


@dataclass(frozen=True)
class Field:
    """One member of an operator's structure."""

    name: str
    """DirectML's name: ``DiagonalFillBegin``."""
    kind: str
    """``input``, ``output`` or ``attribute``."""
    type: str
    """``TENSOR_DESC``, ``INT``, ``FLOAT``, ``SCALAR_UNION`` ..."""
    optional: bool
    enum: str | None = None
    count_field: str | None = None
    """For an array: the attribute with its length."""

    @functools.cached_property
    def snake(self) -> str:
        return snake_case(self.name)

    @functools.cached_property
    def is_tensor(self) -> bool:
        return self.kind != "attribute"

    @functools.cached_property
    def is_array(self) -> bool:
        return self.type.endswith("_ARRAY")


@dataclass(frozen=True)
class TensorSupport:
    """The support of a tensor of an operator, from a feature level on."""

    dimension_counts: tuple[int, int]
    data_types: tuple[DataType, ...]


class SupportRow(NamedTuple):
    """One row of a page's table."""

    since: FeatureLevel
    tensors: dict[str, TensorSupport]
    functions: frozenset[str]
    """The values of REDUCE's Function that it applies to; empty for all."""


@dataclass(frozen=True)
class OperatorSpec:
    """One operator of DirectML."""

    name: str
    introduced: FeatureLevel
    in_place: bool
    family: str
    fields: tuple[Field, ...]
    support: tuple[SupportRow, ...]
    """The support tables, the newest level first."""
    same: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    """(tensor names, properties among ``data type``, ``dimension count``, ``sizes``)."""
    page: str
    """The page of DirectML's reference, or of this package's documents, as in :attr:`url`."""
    formula: str
    fusable: bool
    """Whether it may be the FusedActivation of every operator that has one."""
    lacks_tensors: bool
    """Whether a description without tensors is some operator's FusedActivation."""
    fuses: dict[str, FeatureLevel]
    """Operators that may be its FusedActivation, and their first feature levels."""

    @property
    def url(self) -> str:
        """The page that describes it: of DirectML's reference, if DirectML has it."""
        if self.name in extension_names():
            return self.page
        return f"https://learn.microsoft.com/windows/win32/api/directml/{self.page}"

    @functools.cached_property
    def tensors(self) -> tuple[Field, ...]:
        return tuple(f for f in self.fields if f.is_tensor)

    @functools.cached_property
    def inputs(self) -> tuple[Field, ...]:
        return tuple(f for f in self.fields if f.kind == "input")

    @functools.cached_property
    def outputs(self) -> tuple[Field, ...]:
        return tuple(f for f in self.fields if f.kind == "output")

    @functools.cached_property
    def count_fields(self) -> frozenset[str]:
        """Attributes that hold the length of an array."""
        return frozenset(f.count_field for f in self.fields if f.count_field)

    def support_at(
        self, level: FeatureLevel, function: str | None = None
    ) -> dict[str, TensorSupport] | None:
        """The support table at ``level``; None if the operator does not exist yet.

        ``function`` chooses a row if a page has a row for each function. Without it the result is
        the union of all rows.
        """
        rows = [r for r in self.support if r.since <= level
                and (not r.functions or function is None or function in r.functions)]
        if not rows:
            return None
        if not rows[0].functions or function is not None:
            return rows[0].tensors
        newest: dict[frozenset[str], SupportRow] = {}
        for row in rows:
            newest.setdefault(row.functions, row)
        return _union([row.tensors for row in newest.values()])


def _union(tables: list[dict[str, TensorSupport]]) -> dict[str, TensorSupport]:
    """The union of tables, tensor by tensor."""
    result = {}
    for name in tables[0]:
        low, high = zip(*(t[name].dimension_counts for t in tables))
        types = dict.fromkeys(d for t in tables for d in t[name].data_types)
        result[name] = TensorSupport((min(low), max(high)), tuple(types))
    return result


@functools.cache
def snake_case(name: str) -> str:
    """``DiagonalFillBegin`` -> ``diagonal_fill_begin``, ``AScaleTensor`` -> ``a_scale_tensor``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _read(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(Path(__file__).with_name(name).read_text("utf-8"))
    return result


@functools.cache
def document() -> dict[str, Any]:
    """The contents of ``operators.json``."""
    return _read("operators.json")


@functools.cache
def _extensions() -> dict[str, Any]:
    """The operators of ``extensions.json``."""
    result: dict[str, Any] = _read("extensions.json")["operators"]
    return result


@functools.cache
def operator_names() -> tuple[str, ...]:
    """The names of all of DirectML's operators: ``DML_OPERATOR_...``."""
    return tuple(document()["operators"])


@functools.cache
def extension_names() -> tuple[str, ...]:
    """The names of the operators that DirectML does not have, in the same form."""
    return tuple(_extensions())


def _entry(name: str) -> dict[str, Any]:
    extension: dict[str, Any] | None = _extensions().get(name)
    return document()["operators"][name] if extension is None else extension


@functools.cache
def operator(name: str) -> OperatorSpec:
    """The entry of ``name`` (``DML_OPERATOR_...``). Raises KeyError."""
    entry = _entry(name)
    support = [
        SupportRow(
            FeatureLevel.of(row["feature_level"]),
            {
                tensor: TensorSupport(
                    (t["dimension_counts"][0], t["dimension_counts"][1]),
                    tuple(DataType[d] for d in t["data_types"] if d in DataType.__members__),
                )
                for tensor, t in row["tensors"].items()
            },
            frozenset(row.get("functions", ())),
        )
        for row in entry["support"]
    ]
    return OperatorSpec(
        name=name,
        introduced=FeatureLevel.of(entry["introduced"]),
        in_place=entry["in_place"] or bool(entry["in_place_doc"]),
        family=entry["family"],
        fields=tuple(
            Field(f["name"], f["kind"], f["type"], f["optional"], f.get("enum"),
                  f.get("count_field"))
            for f in entry["fields"]
        ),
        support=tuple(sorted(support, key=lambda row: row.since, reverse=True)),
        same=tuple((tuple(s["tensors"]), tuple(s["of"])) for s in entry["same"]),
        page=entry["doc"],
        formula=entry["formula"],
        fusable=name in document()["fused_activations"]["activations"],
        lacks_tensors=name in {*document()["fused_activations"]["activations"],
                               *document()["fused_activations"]["extra"]},
        fuses=_fuses(name),
    )


def _fuses(name: str) -> dict[str, FeatureLevel]:
    """The activations that an operator may fuse."""
    known = document()["fused_activations"]
    operators = document()["operators"]
    if not any(f["type"] == "OPERATOR_DESC" for f in _entry(name)["fields"]):
        return {}
    result = {a: FeatureLevel.of(operators[a]["introduced"]) for a in known["activations"]}
    for extra, rule in known["extra"].items():
        if name in rule["only_for"]:
            result[extra] = FeatureLevel.of(rule["feature_level"])
    return result
