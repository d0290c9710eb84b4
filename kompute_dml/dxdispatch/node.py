"""A JSON value with its place in the document, for error messages."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from ..dtypes import DataType
from ..errors import ValidationError


def _shorten(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def closest(name: str, known: Collection[str]) -> str:
    """`` (did you mean 'x'?)`` if ``known`` has a name similar to ``name``."""
    match = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


@dataclass(frozen=True)
class NodeModel:
    """A value of a JSON document. The readers raise ValidationError if it is of another kind."""

    value: Any
    source: str
    path: str = ""

    def error(self, message: str) -> ValidationError:
        where = f"{self.source}: {self.path}" if self.path else self.source
        return ValidationError(f"{where}: {message}")

    def fail(self, rule: str) -> NoReturn:
        raise self.error(f"expected {rule}, but got {_shorten(self.value)}")

    # -- objects and arrays

    def known(self, *names: str) -> NodeModel:
        """This object. Raises if it has members other than ``names`` and ``$...``."""
        if not isinstance(self.value, dict):
            self.fail("an object")
        for name in self.value:
            if name not in names and not name.startswith("$"):
                raise self.error(
                    f"unknown field {name!r}{closest(name, names)}; known are {', '.join(names)}"
                )
        return self

    def has(self, name: str) -> bool:
        """Whether the member is present and not null."""
        return isinstance(self.value, dict) and self.value.get(name) is not None

    def get(self, name: str, *aliases: str) -> NodeModel | None:
        """The first member present under any of the names; null counts as absent."""
        if not isinstance(self.value, dict):
            self.fail("an object")
        for each in (name, *aliases):
            if self.has(each):
                return self._child(self.value[each], f".{each}" if self.path else each)
        return None

    def need(self, name: str, *aliases: str) -> NodeModel:
        """As :meth:`get`, for a required member."""
        child = self.get(name, *aliases)
        if child is None:
            raise self.error(f"field {name!r} is required")
        return child

    def members(self) -> Iterator[tuple[str, NodeModel]]:
        if not isinstance(self.value, dict):
            self.fail("an object")
        for name in self.value:
            yield name, self._child(self.value[name], f".{name}" if self.path else name)

    def items(self) -> list[NodeModel]:
        if not isinstance(self.value, list):
            self.fail("an array")
        return [self._child(value, f"[{i}]") for i, value in enumerate(self.value)]

    def _child(self, value: object, step: str) -> NodeModel:
        return NodeModel(value, self.source, self.path + step)

    # -- scalars

    def string(self) -> str:
        if not isinstance(self.value, str):
            self.fail("a string")
        return str(self.value)

    def boolean(self) -> bool:
        if not isinstance(self.value, bool):
            self.fail("true or false")
        return bool(self.value)

    def integer(self, low: int = 0, high: int = 2**64 - 1) -> int:
        value = self.value
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.fail(f"an integer in [{low}, {high}]")
        return int(value)

    def scalar(self, data_type: DataType) -> Any:
        """One value of ``data_type`` as a NumPy scalar."""
        return NodeModel([self.value], self.source, self.path)._typed(data_type, lambda i: self)[0]

    def array(self, data_type: DataType) -> np.ndarray:
        """An array of values of ``data_type``."""
        if not isinstance(self.value, list):
            self.fail("an array")
        return self._typed(data_type, lambda i: self.items()[i])

    def _typed(self, data_type: DataType, element: Any) -> np.ndarray:
        if not data_type.is_float:
            info = np.iinfo(data_type.dtype)
            for i, value in enumerate(self.value):
                if type(value) is not int or not info.min <= value <= info.max:
                    element(i).integer(int(info.min), int(info.max))
            return np.array(self.value, data_type.dtype)
        numbers = []
        for i, value in enumerate(self.value):
            if isinstance(value, str) and value.lower() in ("nan", "inf", "-inf"):
                value = float(value)
            elif type(value) not in (int, float) or abs(value) == math.inf:  # such as 1e999
                element(i).fail('a number, "nan", "inf" or "-inf"')
            try:
                numbers.append(float(value))
            except OverflowError:
                element(i).fail(f"a number that {data_type} can hold")
        wide = np.array(numbers, np.float64)
        with np.errstate(over="ignore"):
            result = wide.astype(data_type.dtype)
        # A string may be an infinity on purpose. A number must not become one.
        lost = np.isinf(result) & np.isfinite(wide)
        if lost.any():
            element(int(np.argmax(lost))).fail(f"a number that {data_type} can hold")
        return result
