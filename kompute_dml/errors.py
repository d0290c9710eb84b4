"""The errors that this package raises.

Each class is also one of Python's own, so that callers may catch either. TypeError is raised for
arguments that a function does not have, and for pickling devices. A message reads ``<operator>:
expected <field path> to <rule>, but <values>``; :func:`refuse` composes it.
"""

from __future__ import annotations

from operator import index
from typing import Any, NoReturn


class DmlError(Exception):
    """Base of every error of this package."""


class ValidationError(DmlError, ValueError):
    """A description, an argument or a binding breaks a rule. Nothing was recorded."""


class OutOfRangeError(ValidationError, IndexError):
    """There is no such element or dimension. Iteration over a tensor ends with it."""


class UnsupportedError(DmlError, NotImplementedError):
    """The request is valid, but this feature level, device or build does not support it."""


class OutOfMemoryError(DmlError, MemoryError):
    """The device or the host has no memory left for the request."""


class DeviceLostError(DmlError, RuntimeError):
    """The device is gone. Every later call on it raises this error, too."""


class NoDeviceError(DmlError, RuntimeError):
    """No Vulkan driver, no such adapter, or no usable kp module."""


def shown(value: object) -> str:
    """A value as text for a message. A tensor is described without its elements."""
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(shown, value))
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    summary = getattr(value, "summary", None)
    return str(summary()) if callable(summary) else str(value)


def expect(holds: object, operator: str, field: str, rule: str, *got: object) -> None:
    """:func:`refuse` unless ``holds``."""
    if not holds:
        refuse(operator, field, rule, *got)


def refuse(operator: str, field: str, rule: str, *got: object) -> NoReturn:
    """Raise :class:`ValidationError` in the project's wording.

    ``got`` is the offending value, or the two values that disagree.
    """
    values = " and ".join(map(shown, got))
    raise ValidationError(
        f"{operator}: expected {field} to {rule}, but "
        + (f"{values} were given" if len(got) > 1 else f"got {values}")
    )


def _index(value: Any) -> int:
    """``index(value)``, but a size that a plan leaves open stays so."""
    return value if getattr(value, "stays_open", False) else index(value)


def whole(operator: str, field: str, value: Any) -> int:
    """``value`` as an int. It must be an integer of Python or NumPy."""
    try:
        return _index(value)
    except TypeError:
        raise ValidationError(
            f"{operator}: expected {field} to be an integer, but got {value!r}"
        ) from None


def integers(operator: str, field: str, values: Any) -> tuple[int, ...]:
    """``values`` as ints. They must be integers."""
    try:
        return tuple(map(_index, values))
    except TypeError:
        raise ValidationError(
            f"{operator}: expected {field} to be a sequence of integers, but got {values!r}"
        ) from None


def numbers(operator: str, field: str, values: Any) -> tuple[float, ...]:
    """``values`` as floats. They must be numbers."""
    try:
        return tuple(float(v) for v in values)
    except (TypeError, ValueError):
        raise ValidationError(
            f"{operator}: expected {field} to be a sequence of numbers, but got {values!r}"
        ) from None
