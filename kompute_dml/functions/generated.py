"""The functions of operators whose arguments are the structure's fields."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .. import spec
from ..dtypes import DataType
from ..errors import expect, integers, whole
from ..operators.base import KEEPS_SIZES, Definition, Each, Output, described
from ..spec import Field
from ..tensors import Tensor
from .broadcasting import Arguments, argument
from .call import as_tensor, device_of, output, run
from .call import chosen as chosen_sizes
from .call_cache import cached_call

if TYPE_CHECKING:
    from ..device import Device
    from ..tensors.types import DataTypeLike
    pass

_AXES = ("axis", "axes")
"""Attributes that may count from the last dimension, as in NumPy."""


def make_function(definition: Definition) -> Callable[..., Any]:
    """The function of an operator: inputs, then attributes as keywords, then ``out``.

    Counts of arrays follow from the arrays. An optional output is made if its keyword is true.
    Operators with several outputs give a tuple. Where inputs do not tell the output's sizes,
    ``output_sizes`` does, by default those of ``out``. Then its type is the first input's.
    """
    entry, name, defaults = definition.spec, definition.function_name, definition.defaults
    inputs, outputs = entry.inputs, entry.outputs
    type_field = next((f.snake for f in entry.fields if f.enum == "DML_TENSOR_DATA_TYPE"), None)
    attributes = [f for f in entry.fields if f.kind == "attribute" and f.snake != type_field
                  and f.name not in entry.count_fields]
    wanted = [f for f in outputs if f.optional]

    place = inspect.Parameter
    parameters = [
        place(argument(f.snake), place.POSITIONAL_OR_KEYWORD,
              default=None if f.optional else place.empty)
        for f in sorted(inputs, key=lambda f: f.optional)
    ]
    of_each = {f: default for f, default in defaults.items() if isinstance(default, Each)}
    for f in attributes:
        default = defaults.get(f.snake, None if f.optional else place.empty)
        annotation: Any = place.empty
        if isinstance(default, Each):
            annotation = "Sequence[{0}] | {0}{1}".format(
                "float" if f.type == "FLOAT_ARRAY" else "int",
                "" if default.value is None else " | None")
            default = place.empty if default.value is None else None
        parameters.append(
            place(f.snake, place.KEYWORD_ONLY, default=default, annotation=annotation))
    if "data_type" in defaults:
        parameters.append(place("data_type", place.KEYWORD_ONLY, default=defaults["data_type"]))
    parameters += [place(argument(f.snake), place.KEYWORD_ONLY, default=False) for f in wanted]
    if definition.infer is None:
        parameters.append(place("output_sizes", place.KEYWORD_ONLY, default=None,
                                annotation="Sequence[int] | None"))
    parameters.append(place("out", place.KEYWORD_ONLY, default=None))
    signature = inspect.Signature(parameters)
    arguments = Arguments(name, signature)

    def call(*args: object, **kwargs: object) -> Any:
        values = arguments.bind(args, kwargs)
        out = values.pop("out")
        sizes, data_type = values.pop("output_sizes", None), values.pop("data_type", None)
        if data_type is None:
            data_type = defaults.get("data_type")
        chosen = data_type is not defaults.get("data_type")
        operands = {f.snake: values.pop(argument(f.snake)) for f in inputs}
        asked = {f.snake for f in wanted if values.pop(argument(f.snake))}
        made_fields = [f for f in outputs if not f.optional or f.snake in asked]
        outs = _outs(name, out, made_fields)
        device = device_of(*_flat(operands.values()), *_flat(outs.values()))
        tensors: dict[str, Any] = _tensors(name, device, inputs, operands)
        first: Any = next(iter(_flat(tensors.values())), None)
        values = {k: _normalized(name, k, v, first) for k, v in values.items()}
        values |= {k: each.numbers(values[k], first.ndim) for k, each in of_each.items()}
        if type_field is not None:
            values[type_field] = DataType.of(data_type)
        descs = {f: _descs(t) for f, t in tensors.items()}
        absent = dict.fromkeys([f.snake for f in outputs])
        known = absent | {f: t.desc for f, t in outs.items() if isinstance(t, Tensor)}
        partial = definition.desc_class(**descs, **known, **values)
        definition.check_fields(partial, ("input", "attribute"))
        if definition.infer is None:
            like = None if out is None else out.sizes
            inferred = {outputs[0].snake: Output(
                chosen_sizes(name, "output_sizes", sizes, like), first.data_type)}
        else:
            inferred = _shaped(
                name, definition.infer(partial), tensors, definition.infer in KEEPS_SIZES)
        results: dict[str, Any] = dict(absent)
        for f in made_fields:
            out_here = outs[f.snake]
            # Where ``infer`` leaves the type open, the caller's is used.
            results[f.snake] = (
                _made(device, name, out_here, inferred[f.snake], data_type, chosen)
                if f.snake in inferred or out_here is None else out_here)
        run(definition.desc_class, device, {**tensors, **results}, **values)
        ordered = [results[f.snake] for f in made_fields]
        return ordered[0] if len(ordered) == 1 else tuple(ordered)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "kompute_dml"
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = _docstring(definition, attributes, wanted, "data_type" in defaults)
    return cached_call(call)


def _flat(values: Iterable[Any]) -> list[Any]:
    return [x for v in values for x in (v if isinstance(v, (list, tuple)) else [v])]


def _outs(name: str, out: Tensor | None, fields: list[Field]) -> dict[str, Any]:
    """``out`` by field; None for results that need new tensors."""
    if len(fields) == 1:
        return {fields[0].snake: out}
    outs = [None] * len(fields) if out is None else out
    expect(isinstance(outs, (tuple, list)) and len(outs) == len(fields), name, "out",
           f"be a tuple of {len(fields)} tensors", out)
    return dict(zip([f.snake for f in fields], outs))


def _tensors(
    name: str, device: Device, fields: tuple[Field, ...], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The inputs as tensors. Python numbers take the type of the first input that is none."""
    result: dict[str, Any] = {}
    first: DataType | None = None
    for f in fields:
        value, field = values[f.snake], argument(f.snake)
        if value is None:
            expect(f.optional, name, field, "be given", None)
            result[f.snake] = None
        elif f.is_array:
            expect(isinstance(value, (tuple, list)), name, field, "be a sequence of tensors", value)
            result[f.snake] = [as_tensor(device, name, f"{field}[{i}]", v)
                               for i, v in enumerate(value)]
        else:
            kind = first if isinstance(value, (bool, int, float)) else None
            result[f.snake] = t = as_tensor(device, name, field, value, kind)
            first = first or t.data_type
    return result


def _shaped(name: str, outputs: Any, tensors: Mapping[str, Any], keeps_sizes: bool) -> Any:
    """Outputs with the shape of the inputs where that is () or has a 0, which no description
    says."""
    shapes = {x.shape for x in _flat(tensors.values()) if x is not None}
    if shapes == {()}:
        return {f: o._replace(sizes=()) if isinstance(o, Output) and o.sizes == (1,) else o
                for f, o in outputs.items()}
    if any(0 in shape for shape in shapes):
        shape, *others = shapes
        expect(keeps_sizes and not others, name, "the inputs", "have elements",
               "a tensor without any")
        return {f: o._replace(sizes=shape) for f, o in outputs.items()}
    return outputs


def _normalized(name: str, field: str, value: object, first: Tensor) -> Any:
    """An attribute as the structure takes it: axes from the front, arrays as tuples."""
    if field in _AXES and value is not None:
        rank = first.ndim
        if field == "axis":
            axis = whole(name, field, value)
            return axis + rank if -rank <= axis < 0 else axis
        axes = (value,) if isinstance(value, int) else value
        return tuple(a + rank if -rank <= a < 0 else a for a in integers(name, field, axes))
    return tuple(value) if isinstance(value, list) else value


def _descs(t: Tensor | list[Tensor] | None) -> Any:
    return tuple(x.desc for x in t) if isinstance(t, list) else None if t is None else t.desc


def _made(
    device: Device, name: str, out: Any, inferred: object,
    data_type: DataTypeLike | None, chosen: bool
) -> Any:
    """``out``, or a new tensor. Its type is that of ``out`` unless the caller chose one."""
    if isinstance(inferred, list):
        outs = [None] * len(inferred) if out is None else list(out)
        expect(len(outs) == len(inferred), name, "out", f"be {len(inferred)} tensors", len(outs))
        return [_made(device, name, o, m, data_type, chosen) for o, m in zip(outs, inferred)]
    assert isinstance(inferred, Output)
    kind = inferred.data_type
    if kind is None:
        kind = DataType.of(data_type) if out is None or chosen else out.data_type
    return output(device, out, name, inferred.sizes, kind)


def _of_each(default: object) -> str:
    """What a docstring adds to an attribute with a number for each dimension."""
    if not isinstance(default, Each):
        return ""
    return ", or one number for all" + (
        "" if default.value is None else f", by default {default.value}")


def _docstring(
    definition: Definition, attributes: list[Field], wanted: list[Field], chooses: bool
) -> str:
    entry = definition.spec
    tables = entry.support_at(spec.FeatureLevel.FL_6_4) or {}
    struct = entry.name.replace("DML_OPERATOR_", "DML_") + "_OPERATOR_DESC"
    lines = [f"``{entry.formula}`` ({struct}).", ""]
    for f in sorted(entry.inputs, key=lambda f: f.optional):
        low, high = tables[f.name].dimension_counts
        lines.append(
            f"    {argument(f.snake)}: {'tensors of ' if f.is_array else ''}{low} to {high} "
            "dimensions, any strides, " + " ".join(map(str, tables[f.name].data_types))
            + (", optional" if f.optional else ""))
    lines += [f"    {f.snake}: {described(f)}{_of_each(definition.defaults.get(f.snake))}"
              for f in attributes]
    if chooses:
        types = " ".join(map(str, tables[entry.outputs[0].name].data_types))
        lines.append(f"    data_type: of the result, {types}")
    lines += [f"    {argument(f.snake)}: whether {f.name} is made, too" for f in wanted]
    if definition.infer is None:
        lines.append("    output_sizes: of the result, by default those of ``out``")
    several = len(entry.outputs) > 1
    lines += [
        "",
        "Inputs are tensors or arrays of these types. Axes may count from the last dimension (-1).",
        f"``out`` takes the result{'s, a tuple' if several else ''}"
        f"{', and may be an input' if definition.in_place else ''}; without it packed tensors are "
        "made.",
        "Raises ValidationError or UnsupportedError.",
        "",
        entry.url,
    ]
    return "\n".join(lines)
