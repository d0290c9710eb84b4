"""Reader of ``operators.json``: DirectML's operators as data.

The only place that knows an operator's fields, and its data types and dimension counts per
feature level. Nothing here knows which operators this package implements.
"""

from __future__ import annotations

import enum
import functools
import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from ..dtypes import DataType


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
    def of(cls, text: str) -> FeatureLevel:
        """The level that prints as ``text``: ``6_4``."""
        return cls["FL_" + text]


@dataclass(frozen=True)
class Field:
    """One member of an operator's structure."""

    name: str
    """As in DirectML: ``DiagonalFillBegin``."""
    kind: str
    """``input``, ``output`` or ``attribute``."""
    type: str
    """``TENSOR_DESC``, ``INT``, ``FLOAT``, ``SCALAR_UNION`` ..."""
    optional: bool
    enum: str | None = None
    count_field: str | None = None
    """Of an array: the attribute that has its length."""

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
    """What one tensor of an operator may be, from one feature level on."""

    dimension_counts: tuple[int, int]
    data_types: tuple[DataType, ...]


class SupportRow(NamedTuple):
    """One row of a page's table."""

    since: FeatureLevel
    tensors: dict[str, TensorSupport]
    functions: frozenset[str]
    """The values of REDUCE's Function that it holds for; empty for all."""


@dataclass(frozen=True)
class OperatorSpec:
    """One operator of DirectML."""

    name: str
    introduced: FeatureLevel
    in_place: bool
    family: str
    fields: tuple[Field, ...]
    support: tuple[SupportRow, ...]
    """Newest level first."""
    same: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    """(tensor names, properties among ``data type``, ``dimension count``, ``sizes``)."""
    page: str
    """Of DirectML's reference: the name in :attr:`url`."""
    formula: str
    fusable: bool
    """Whether it may be another operator's FusedActivation."""
    fuses: dict[str, FeatureLevel]
    """Operators that may be its FusedActivation, and since when."""

    @property
    def url(self) -> str:
        """The page of DirectML's reference that describes it."""
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
        """Attributes that are the length of an array."""
        return frozenset(f.count_field for f in self.fields if f.count_field)

    def support_at(
        self, level: FeatureLevel, function: str | None = None
    ) -> dict[str, TensorSupport] | None:
        """The table that holds at ``level``; None where the operator is not there yet.

        Where a page has a row per function, ``function`` chooses one. Without it the result holds
        what any function takes.
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
    """What any of the tables admits, tensor by tensor."""
    result = {}
    for name in tables[0]:
        low, high = zip(*(t[name].dimension_counts for t in tables))
        types = dict.fromkeys(d for t in tables for d in t[name].data_types)
        result[name] = TensorSupport((min(low), max(high)), tuple(types))
    return result


def snake_case(name: str) -> str:
    """``DiagonalFillBegin`` -> ``diagonal_fill_begin``, ``AScaleTensor`` -> ``a_scale_tensor``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


@functools.cache
def document() -> dict[str, Any]:
    """``operators.json`` as it stands."""
    text = resources.files(__package__).joinpath("operators.json").read_text("utf-8")
    result: dict[str, Any] = json.loads(text)
    return result


@functools.cache
def operator_names() -> tuple[str, ...]:
    """All of DirectML's operators: ``DML_OPERATOR_...``."""
    return tuple(document()["operators"])


@functools.cache
def operator(name: str) -> OperatorSpec:
    """The entry of ``name`` (``DML_OPERATOR_...``). Raises KeyError."""
    entry = document()["operators"][name]
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
        fuses=_fuses(name),
    )


def _fuses(name: str) -> dict[str, FeatureLevel]:
    """The activations that an operator may fuse."""
    known = document()["fused_activations"]
    operators = document()["operators"]
    if not any(f["type"] == "OPERATOR_DESC" for f in operators[name]["fields"]):
        return {}
    result = {a: FeatureLevel.of(operators[a]["introduced"]) for a in known["activations"]}
    for extra, rule in known["extra"].items():
        if name in rule["only_for"]:
            result[extra] = FeatureLevel.of(rule["feature_level"])
    return result
