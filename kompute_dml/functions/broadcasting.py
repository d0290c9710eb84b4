"""The function level of operators whose inputs broadcast, made from their specification."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from .. import spec
from ..dtypes import DataType, Scalar
from ..errors import ValidationError, refuse
from ..layout import broadcast_sizes
from ..operators.base import Definition, described
from ..tensors import Tensor
from .call import as_tensor, device_of, output, run
from .call_cache import cached_call
from .registry import too_many

if TYPE_CHECKING:
    from ..device import Device


def make_broadcasting(definition: Definition) -> Callable[..., Tensor]:
    """The NumPy-like function of an operator whose inputs are broadcast to one another."""
    entry, name, defaults = definition.spec, definition.function_name, definition.defaults
    inputs = [f.snake for f in entry.inputs]
    result = entry.outputs[0]
    out_name = result.snake
    names = [argument(i) for i in inputs]
    typed_as = next((i for i, f in enumerate(entry.inputs) if _same_type(entry, f, result)), None)
    kin = [_kin(entry, f) for f in entry.inputs]
    type_field = next((f.snake for f in entry.fields if f.enum == "DML_TENSOR_DATA_TYPE"), None)
    attributes = [f for f in entry.fields if not f.is_tensor and f.snake != type_field]

    def call(*args: object, **kwargs: object) -> Tensor:
        values = arguments.bind(args, kwargs)
        operands = [values.pop(n) for n in names]
        out = values.pop("out")
        data_type = values.pop("data_type", None)
        device = device_of(*operands, out)
        tensors = _tensors(name, device, inputs, operands, kin)
        if typed_as is not None:
            data_type = tensors[typed_as].data_type
        elif out is not None and "data_type" not in kwargs:
            data_type = out.data_type
        if not isinstance(data_type, DataType):
            data_type = DataType.of(data_type)
        y = output(device, out, name, tensors[0].sizes, data_type)
        if type_field is not None:
            values[type_field] = y.data_type
        bound: dict[str, Any] = dict(zip(inputs, tensors))
        bound[out_name] = y
        run(definition.desc_class, device, bound, **values)
        return y

    place = inspect.Parameter
    options = {f.snake: defaults.get(f.snake, None if f.optional else place.empty)
               for f in attributes}
    if typed_as is None:
        options["data_type"] = defaults.get("data_type", place.empty)
    needed = [n for n, v in options.items() if v is place.empty]
    keyword_only = {**{n: v for n, v in options.items() if n not in needed}, "out": None}
    signature = inspect.Signature([
        *(place(n, place.POSITIONAL_OR_KEYWORD) for n in (*names, *needed)),
        *(place(n, place.KEYWORD_ONLY, default=v) for n, v in keyword_only.items()),
    ])
    arguments = Arguments(name, signature)
    call.__name__ = call.__qualname__ = name
    call.__module__ = "kompute_dml"
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = _docstring(definition, options)
    return cached_call(call)


class Arguments:
    """What calls of a function are given. ``Signature.bind`` takes as long as all the rest of a
    call, so it only finds out what is wrong."""

    def __init__(self, name: str, signature: inspect.Signature) -> None:
        self._name, self._signature = name, signature
        parameters = signature.parameters.values()
        self._defaults = {p.name: p.default for p in parameters}
        self._needed = [p.name for p in parameters if p.default is p.empty]
        self._positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    def bind(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, Any]:
        """The arguments by name, in the signature's order, defaults included."""
        values = self._defaults.copy()
        values.update(zip(self._positional, args))
        values.update(kwargs)
        if len(values) > len(self._defaults) or len(args) > len(self._positional):
            self._refuse(args, kwargs)
        for name in self._needed:
            if values[name] is inspect.Parameter.empty:
                self._refuse(args, kwargs)
        if args and kwargs:
            for name in self._positional[:len(args)]:
                if name in kwargs:
                    self._refuse(args, kwargs)
        return values

    def _refuse(self, args: tuple[object, ...], kwargs: dict[str, object]) -> NoReturn:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            named = [p.name for p in self._signature.parameters.values()
                     if p.kind is p.KEYWORD_ONLY]
            text = too_many(named) if "too many positional" in str(error) else error
            raise TypeError(f"{self._name}() {text}") from None
        raise AssertionError("only what the signature refuses comes here")


def _same_type(entry: spec.OperatorSpec, x: spec.Field, y: spec.Field) -> bool:
    return any({x.name, y.name} <= set(t) and "data type" in of for t, of in entry.same)


def _kin(entry: spec.OperatorSpec, x: spec.Field) -> list[int]:
    """The inputs that give a Python number for ``x`` its type: those that must have the type of
    ``x``, or all others where none must."""
    others = [(i, f) for i, f in enumerate(entry.inputs) if f is not x]
    return [i for i, f in others if _same_type(entry, x, f)] or [i for i, _ in others]


def argument(field: str) -> str:
    """``a_tensor`` -> ``a``; the input of an operator that has one main input is ``x``."""
    return "x" if field == "input_tensor" else field.removesuffix("_tensor")


def _tensors(
    name: str, device: Device, fields: list[str], values: list[Any], kin: list[list[int]]
) -> list[Tensor]:
    """The inputs as tensors of one size. A Python number takes the type of the
    first tensor among its ``kin``, which must hold it."""
    for value in values:
        if not isinstance(value, Tensor):
            break
    else:
        return broadcast(name, values)
    numbers = [i for i, v in enumerate(values) if isinstance(v, (bool, int, float))]
    tensors = {
        i: as_tensor(device, name, argument(field), value)
        for i, (field, value) in enumerate(zip(fields, values)) if i not in numbers
    }
    types = {i: tensor.data_type for i, tensor in tensors.items()}
    for i in numbers:
        field, value = argument(fields[i]), values[i]
        kind = next((types[j] for j in kin[i] if j in types), None)
        if kind is not None:
            try:
                Scalar.of(value, kind)
            except ValidationError:
                refuse(name, field, f"be a number that {kind} can hold", value)
        tensors[i] = as_tensor(device, name, field, value, kind)
    return broadcast(name, [tensors[i] for i in range(len(values))])


def broadcast(name: str, tensors: list[Tensor]) -> list[Tensor]:
    """Views of the tensors with one size, by NumPy's rule."""
    if len(tensors) == 1:
        return tensors
    try:
        sizes = broadcast_sizes(*(t.sizes for t in tensors))
    except ValueError:
        shown = " and ".join(str(list(t.sizes)) for t in tensors)
        raise ValidationError(f"{name}: expected inputs that broadcast, but got {shown}") from None
    return [t if t.sizes == sizes else t.broadcast_to(sizes) for t in tensors]


def _docstring(definition: Definition, options: Mapping[str, object]) -> str:
    entry = definition.spec
    tables = entry.support[0][1]
    struct = entry.name.replace("DML_OPERATOR_", "DML_") + "_OPERATOR_DESC"
    lines = [f"``{entry.formula}`` ({struct}).", ""]
    for f in entry.inputs:
        low, high = tables[f.name].dimension_counts
        lines.append(f"    {argument(f.snake)}: {low} to {high} dimensions, any strides, "
                     + " ".join(map(str, tables[f.name].data_types)))
    types = {f.snake: described(f) for f in entry.fields}
    types["data_type"] = "of the result: " + " ".join(
        map(str, tables[entry.outputs[0].name].data_types))
    lines += [f"    {n}: {types[n]}" for n in options]
    lines += [
        "",
        "Inputs are tensors or arrays of these types."
        + (" They broadcast as in NumPy;\nPython numbers take the type of another input."
           if len(entry.inputs) > 1 else ""),
        f"``out`` takes the result{' and may be an input' if definition.in_place else ''}; "
        "without it a packed tensor is made.",
        "Raises ValidationError or UnsupportedError.",
        "",
        entry.url,
    ]
    return "\n".join(lines)
