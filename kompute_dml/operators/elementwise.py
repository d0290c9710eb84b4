"""Elementwise operators: a table, and the frame that lowers all of its rows.

A row names an operator and its operation in the shaders ``elementwise_*``; fields, types, checks
and formula come from the specification.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import spec
from ..attributes import IsInfinityMode, RoundingMode
from ..desc import TensorDesc
from ..dtypes import DataType, Scalar, saturate
from ..errors import ValidationError, expect
from ..layout import Ints, broadcast_sizes, coalesce, extent, product
from ..runtime.shader_library import Variant
from .base import Check, Definition, check_field, define, definitions, function
from .call import as_tensor, device_of, output, run
from .plan import UNUSED, Dispatch, Operand, Plan, Target, reads, writes

if TYPE_CHECKING:
    from ..tensor import Tensor

_LOCAL_SIZE = 256
_MAX_RANK = 5
"""Dimensions that one dispatch walks; each further one (after merging) becomes dispatches."""

_EXACT_UNITS = ("NVIDIA",)
"""Drivers whose fma rounds once and whose float16 conversions are IEEE's, as the tests confirm."""

FLOAT, INTEGER, INTEGER64 = "elementwise_float", "elementwise_integer", "elementwise_integer64"


# -- the frame


def frame(
    target: Target,
    variant: Variant,
    inputs: Sequence[tuple[str | None, TensorDesc] | None],
    result: tuple[str, TensorDesc],
    *,
    push: Mapping[str, int | Sequence[int]] | None = None,
    spec: Mapping[str, int] | None = None,
    more: Sequence[Operand] = (),
    select: tuple[int, int] | None = None,
) -> tuple[Dispatch, ...]:
    """The dispatches of a shader that includes ``elementwise.glsl``.

    ``inputs`` are its operands a, b, c as (field, description), None for one that is absent. An
    operand without a field is no tensor: the shader takes what its strides say as numbers.
    ``result`` is the output in the same form, and ``more`` are bindings of the shader's own.
    ``select`` is (dimension, index) where only that part of the tensors is walked.
    """
    descs = [result[1], *[t[1] for t in inputs if t is not None]]
    whole_sizes, starts = result[1].sizes, [0] * len(descs)
    if select is not None:
        d, i = select
        whole_sizes = (*whole_sizes[:d], 1, *whole_sizes[d + 1 :])
        starts = [i * t.strides[d] for t in descs]
    sizes, walks = coalesce(whole_sizes, *(t.strides for t in descs))
    outer, inner = _split(sizes)
    inner_sizes = tuple(sizes[d] for d in inner)
    steps = [tuple(walk[d] for d in inner) for walk in walks]
    whole = steps[0][-1] == 1
    # EACH of the shader
    width = result[1].data_type.itemsize
    each = max(16 // max(t.data_type.itemsize for t in descs), 4 // width) if whole else 1
    lines = product(inner_sizes[:-1])
    # A line of n elements meets so many vectors at most.
    work = lines * ((inner_sizes[-1] + each - 2) // each + 1 if whole else inner_sizes[-1])

    fields: dict[str, int | Sequence[int]] = {"lines": lines, "rank": len(inner), **(push or {})}
    fields["sizes"], fields["out_strides"] = inner_sizes, steps[0]
    constants: dict[str, int] = {
        "LOCAL_SIZE": _LOCAL_SIZE,
        "WHOLE": whole,
        "ROLLED": target.adapter.type == "cpu",
        "EXACT_UNITS": target.adapter.driver in _EXACT_UNITS,
        "OUT_TYPE": result[1].data_type.code,
        **(spec or {}),
    }
    walk_of: list[tuple[str, int, Ints, Ints] | None] = []
    rest = iter(zip(starts[1:], walks[1:], steps[1:]))
    for name, given in zip("abc", inputs):
        constants.setdefault(f"{name.upper()}_TYPE", given[1].data_type.code if given else 0)
        if given is None:
            walk_of.append(None)
            continue
        start, walk, step = next(rest)
        fields[f"{name}_strides"] = step
        walk_of.append((name, start, walk, step))

    def dispatch(index: Sequence[int]) -> Dispatch:
        def operand(make: Any, slot: tuple[str, TensorDesc], name: str, start: int, walk: Ints,
                    step: Ints) -> Operand:
            skip = start + sum(i * walk[d] for i, d in zip(index, outer))
            made: Operand = make(*slot, f"{name}_offset", skip, extent(inner_sizes, step))
            return made

        operands, numbers = [], {}
        for slot, place in zip(inputs, walk_of):
            if slot is None or place is None:
                operands.append(UNUSED)
            elif slot[0] is None:
                operands.append(UNUSED)
                numbers[f"{place[0]}_offset"] = sum(i * place[2][d] for i, d in zip(index, outer))
            else:
                operands.append(operand(reads, (slot[0], slot[1]), *place))
        made = operand(writes, result, "out", starts[0], walks[0], steps[0])
        return Dispatch(variant, -(-work // _LOCAL_SIZE), (*operands, made, *more),
                        {**fields, **numbers}, constants)

    return tuple(map(dispatch, itertools.product(*(range(sizes[d]) for d in outer))))


def _split(sizes: Ints) -> tuple[list[int], list[int]]:
    """The dimensions left to the host, the shortest ones, and those that a dispatch walks."""
    by_size = sorted(range(len(sizes)), key=lambda d: sizes[d])
    outer = sorted(by_size[: max(len(sizes) - _MAX_RANK, 0)])
    return outer, [d for d in range(len(sizes)) if d not in outer]


def float_bits(value: float) -> int:
    """A FLOAT as the word that a push field takes."""
    with np.errstate(over="ignore"):
        return int(np.float32(value).view(np.uint32))


def parameter(value: Any, data_type: DataType) -> Ints:
    """A FLOAT or SCALAR_UNION attribute as the words that a kernel for ``data_type`` takes."""
    scalar = value if isinstance(value, Scalar) else saturate(value, DataType.FLOAT32
                                                              if data_type.is_float else data_type)
    if data_type.is_float:
        return (float_bits(scalar.item()),)
    if data_type.itemsize == 8:
        return scalar.words
    return (scalar.item() & 0xFFFFFFFF,)


def parameters(desc: Any, data_type: DataType) -> Ints:
    """All such attributes of ``desc``, in the order of its structure."""
    words: list[int] = []
    for f in desc.operator.spec.fields:
        value = getattr(desc, f.snake)
        if f.type == "SCALAR_UNION":
            value = Scalar.of(value, data_type)
        if f.type in ("FLOAT", "SCALAR_UNION"):
            words += parameter(value, data_type)
    return tuple(words)


# -- rows

Code = str | Callable[[Any], str]


def row(
    name: str,
    op: Code = "",
    *,
    shader: str = "",
    on_bits: bool = False,
    constants: Callable[[Any, DataType], Ints] = parameters,
    check: Check = lambda desc, strict: None,
    in_place: bool | None = None,
    **defaults: Any,
) -> Any:
    """Define ``DML_OPERATOR_<name>`` by the name that its operation has in the shaders, or by a
    ``shader`` of its own.

    ``on_bits`` operators take any type as unsigned integers. ``defaults`` are those of the
    function's keyword arguments. Returns the descriptor class.
    """
    entry = spec.operator("DML_OPERATOR_" + name)
    input_names = [f.snake for f in entry.inputs]
    output_name = entry.outputs[0].snake

    def lower(desc: Any, target: Target) -> Plan:
        inputs: list[Any] = [(n, getattr(desc, n)) for n in input_names]
        result = (output_name, getattr(desc, output_name))
        scale_bias = getattr(desc, "scale_bias", None)
        values: dict[str, int] = {}
        push: dict[str, int | Sequence[int]] = {}
        bits = on_bits or (name == "ELEMENT_WISE_IDENTITY" and scale_bias is None)
        types = [t.data_type.unsigned if bits else t.data_type for _, t in inputs]
        if not bits and (words := constants(desc, types[0])):
            push["attributes"] = words
        if scale_bias is not None:
            values["HAS_SCALE_BIAS"] = True
            push |= {"scale": float_bits(scale_bias.scale), "bias": float_bits(scale_bias.bias)}
        for letter, data_type in zip("ABC", types):
            values[f"{letter}_TYPE"] = data_type.code
        if bits and result[1].data_type is inputs[0][1].data_type:
            values["OUT_TYPE"] = types[0].code
        if shader:
            variant = target.library.get(shader)
        else:
            inputs += [None] * (2 - len(inputs))
            variant = target.library.get(_shader(types), op if isinstance(op, str) else op(desc))
        return Plan(frame(target, variant, inputs, result, push=push, spec=values))

    def check_all(desc: Any, strict: bool) -> None:
        check_attributes(desc, strict)
        check(desc, strict)

    shaders = (shader,) if shader else _shaders(entry, on_bits)
    desc_class = define(name, lower, shaders=shaders, check=check_all,
                        in_place=in_place)
    function(make_function(name, defaults))
    return desc_class


def _shader(types: Sequence[DataType]) -> str:
    if DataType.FLOAT64 in types:
        return "elementwise_float64"
    if any(t.is_float for t in types):
        return FLOAT
    return INTEGER64 if any(t.itemsize == 8 for t in types) else INTEGER


def _shaders(entry: spec.OperatorSpec, on_bits: bool) -> tuple[str, ...]:
    """All that :func:`_shader` may choose, at any feature level."""
    types = {t for _, table in entry.support for t in table[entry.inputs[0].name].data_types}
    if on_bits:
        types = {t.unsigned for t in types}
    return tuple(sorted({_shader([t]) for t in types}))


def check_attributes(desc: Any, strict: bool) -> None:
    """Scalar unions are of the output's type; a fused activation is one, without tensors."""
    name, fields = desc.operator.name, desc.operator.spec.fields
    for f in fields:
        value = getattr(desc, f.snake)
        if f.enum == "DML_TENSOR_DATA_TYPE":
            made = desc.output_tensor.data_type
            expect(value is made, name, f.name, "equal OutputTensor.DataType", value, made)
        elif f.type == "SCALAR_UNION":
            try:
                Scalar.of(value, desc.output_tensor.data_type)
            except ValidationError as error:
                raise ValidationError(f"{name}.{f.name}: {error}") from None
        elif f.type == "OPERATOR_DESC" and value is not None:
            fused = value.operator
            expect(fused.spec.fusable, name, f.name, "be an activation that can be fused",
                   fused.name)
            for part in fused.spec.fields:
                given = getattr(value, part.snake)
                if part.is_tensor:
                    expect(given is None, name, f"{f.name}.{part.name}", "be None", given)
                else:
                    check_field(fused.name, part, given)


# -- the function level


def make_function(name: str, defaults: Mapping[str, Any]) -> Callable[..., Tensor]:
    """The NumPy-like function of an operator whose inputs are broadcast to one another.

    ``defaults`` are those of its attributes, and of ``data_type`` where the inputs' types do not
    decide the output's.
    """
    definition = definitions()["DML_OPERATOR_" + name]
    entry, name = definition.spec, definition.function_name
    inputs = [f.snake for f in entry.inputs]
    result = entry.outputs[0]
    typed_as = next((i for i, f in enumerate(entry.inputs) if _same_type(entry, f, result)), None)
    type_field = next((f.snake for f in entry.fields if f.enum == "DML_TENSOR_DATA_TYPE"), None)
    attributes = [f for f in entry.fields if not f.is_tensor and f.snake != type_field]

    def call(*args: Any, **kwargs: Any) -> Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        given = [values.pop(_argument(i)) for i in inputs]
        out = values.pop("out")
        data_type = values.pop("data_type", None)
        device = device_of(*given, out)
        tensors = _tensors(name, device, given)
        if typed_as is not None:
            data_type = tensors[typed_as].data_type
        elif out is not None and "data_type" not in kwargs:
            data_type = out.data_type
        y = output(device, out, name, tensors[0].sizes, DataType.of(data_type))
        if type_field is not None:
            values[type_field] = y.data_type
        bound_tensors = {**dict(zip(inputs, tensors)), result.snake: y}
        run(definition.desc_class, device, bound_tensors, **values)
        return y

    place = inspect.Parameter
    options = {f.snake: defaults.get(f.snake, None if f.optional else place.empty)
               for f in attributes}
    if typed_as is None:
        options["data_type"] = defaults.get("data_type", place.empty)
    signature = inspect.Signature([
        *(place(_argument(i), place.POSITIONAL_OR_KEYWORD) for i in inputs),
        *(place(n, place.KEYWORD_ONLY, default=v) for n, v in options.items()),
        place("out", place.KEYWORD_ONLY, default=None),
    ])
    call.__name__ = call.__qualname__ = name
    call.__module__ = "kompute_dml"
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = _docstring(definition, options)
    return call


def _same_type(entry: spec.OperatorSpec, x: spec.Field, y: spec.Field) -> bool:
    return any({x.name, y.name} <= set(t) and "data type" in of for t, of in entry.same)


def _argument(field: str) -> str:
    """``a_tensor`` -> ``a``; the input of an operator that has one main input is ``x``."""
    return "x" if field == "input_tensor" else field.removesuffix("_tensor")


def _tensors(name: str, device: Any, values: list[Any]) -> list[Tensor]:
    """The inputs as tensors of one size. Python numbers take the type of the first other input."""
    main = next((v for v in values if not isinstance(v, (bool, int, float))), None)
    kind = None if main is None else DataType.of(main.dtype if hasattr(main, "dtype")
                                                 else np.asarray(main).dtype)
    return broadcast(name, [
        as_tensor(device, v, kind if isinstance(v, (bool, int, float)) else None) for v in values
    ])


def broadcast(name: str, tensors: list[Tensor]) -> list[Tensor]:
    """Views of the tensors with one size, by NumPy's rule."""
    if len(tensors) == 1:
        return tensors
    try:
        sizes = broadcast_sizes(*(t.sizes for t in tensors))
    except ValueError:
        given = " and ".join(str(list(t.sizes)) for t in tensors)
        raise ValidationError(f"{name}: expected inputs that broadcast, but got {given}") from None
    return [t if t.sizes == sizes else t.broadcast_to(sizes) for t in tensors]


def _docstring(definition: Definition, options: Mapping[str, Any]) -> str:
    entry = definition.spec
    tables = entry.support[0][1]
    struct = entry.name.replace("DML_OPERATOR_", "DML_") + "_OPERATOR_DESC"
    lines = [f"``{entry.formula}`` ({struct}).", ""]
    for f in entry.inputs:
        low, high = tables[f.name].dimension_counts
        lines.append(f"    {_argument(f.snake)}: {low} to {high} dimensions, any strides, "
                     + " ".join(map(str, tables[f.name].data_types)))
    types = {f.snake: f.type + (", optional" if f.optional else "") for f in entry.fields}
    types["data_type"] = "of the result: " + " ".join(
        map(str, tables[entry.outputs[0].name].data_types))
    lines += [f"    {n}: {types[n]}" for n in options]
    lines += [
        "",
        "Inputs are tensors or arrays."
        + (" They broadcast as in NumPy; Python numbers take the type of another input."
           if len(entry.inputs) > 1 else ""),
        f"``out`` takes the result{' and may be an input' if definition.in_place else ''}; "
        "without it a packed tensor is made. Raises ValidationError or UnsupportedError.",
        f"Page: {entry.page}.",
    ]
    return "\n".join(lines)


# -- the table

for _name in ("ABS", "ACOS", "ACOSH", "ASIN", "ASINH", "ATAN", "ATANH", "CEIL", "COS", "COSH",
              "ERF", "EXP", "FLOOR", "IDENTITY", "LOG", "NEGATE", "RECIP", "SIGN", "SIN", "SINH",
              "SQRT", "TAN", "TANH",
              "ADD", "SUBTRACT", "MULTIPLY", "DIVIDE", "MEAN", "MAX", "MIN", "DIFFERENCE_SQUARE",
              "MODULUS_FLOOR", "MODULUS_TRUNCATE", "ATAN_YX", "POW",
              "LOGICAL_AND", "LOGICAL_NOT", "LOGICAL_OR", "LOGICAL_XOR",
              "BIT_SHIFT_LEFT", "BIT_SHIFT_RIGHT"):
    row(f"ELEMENT_WISE_{_name}", _name.lower())

for _name in ("EQUALS", "GREATER_THAN", "GREATER_THAN_OR_EQUAL", "LESS_THAN", "LESS_THAN_OR_EQUAL"):
    row(f"ELEMENT_WISE_LOGICAL_{_name}", f"logical_{_name.lower()}", data_type="uint8")

for _name in ("AND", "NOT", "OR", "XOR"):
    row(f"ELEMENT_WISE_BIT_{_name}", f"bit_{_name.lower()}", on_bits=True)
row("ELEMENT_WISE_BIT_COUNT", "bit_count", on_bits=True, data_type="uint8")

row("ELEMENT_WISE_IF", shader="elementwise_if")
row("CAST", shader="elementwise_cast")

row("ELEMENT_WISE_CLIP", "clip")
row("ELEMENT_WISE_CLIP1", "clip1")
row("ELEMENT_WISE_THRESHOLD", "threshold")
row("ELEMENT_WISE_CONSTANT_POW", "constant_pow")
row("ELEMENT_WISE_IS_NAN", "is_nan", data_type="uint8")

_INFINITY = {IsInfinityMode.EITHER: "is_infinity", IsInfinityMode.POSITIVE: "is_positive_infinity",
             IsInfinityMode.NEGATIVE: "is_negative_infinity"}
row("ELEMENT_WISE_IS_INFINITY", lambda desc: _INFINITY[desc.infinity_mode],
    infinity_mode=IsInfinityMode.EITHER, data_type="uint8", in_place=False)

_ROUNDING = {RoundingMode.HALVES_TO_NEAREST_EVEN: "round_half_even",
             RoundingMode.TOWARD_ZERO: "truncate", RoundingMode.TOWARD_INFINITY: "round_half_away"}
row("ELEMENT_WISE_ROUND", lambda desc: _ROUNDING[desc.rounding_mode],
    rounding_mode=RoundingMode.HALVES_TO_NEAREST_EVEN)


# ADD1 is ADD with a fused activation; at function level the two are one.

_ADD1 = "elementwise_add1"


def _lower_add1(desc: Any, target: Target) -> Plan:
    fused = desc.fused_activation
    a, b, y = desc.a_tensor, desc.b_tensor, desc.output_tensor
    if fused is None or fused.operator.name == "DML_OPERATOR_ACTIVATION_IDENTITY":
        variant, words = target.library.get(FLOAT, "add"), parameters(desc, y.data_type)
    else:
        name = fused.operator.function_name.removeprefix("activation_")
        variant, words = target.library.get(_ADD1, name), parameters(fused, y.data_type)
    return Plan(frame(target, variant, [("a_tensor", a), ("b_tensor", b)], ("output_tensor", y),
                      push={"attributes": words}))


ElementWiseAdd1OperatorDesc = define(
    "ELEMENT_WISE_ADD1", _lower_add1, shaders=(FLOAT, _ADD1),
    check=check_attributes,
)
_add = make_function("ELEMENT_WISE_ADD", {})
_add1 = function(make_function("ELEMENT_WISE_ADD1", {}))


@function
def add(a: Any, b: Any, *, fused_activation: Any = None, out: Tensor | None = None) -> Tensor:
    if fused_activation is None:
        return _add(a, b, out=out)
    return _add1(a, b, fused_activation=fused_activation, out=out)


add.__doc__ = f"""{_add.__doc__}

With ``fused_activation``, a description such as ``ActivationReluOperatorDesc()``, the sum goes
through that activation before it is rounded (ELEMENT_WISE_ADD1; FLOAT32 and FLOAT16 only).
"""


def _lower_value_scale_2d(desc: Any, target: Target) -> Plan:
    """One dispatch per channel, each a linear activation with a bias of its own."""
    x, y = desc.input_tensor, desc.output_tensor
    variant = target.library.get(FLOAT, "linear")
    dispatches: list[Dispatch] = []
    for channel, bias in enumerate(desc.bias):
        dispatches += frame(
            target, variant, [("input_tensor", x), None], ("output_tensor", y),
            push={"attributes": (float_bits(desc.scale), float_bits(bias))},
            select=(1, channel),
        )
    return Plan(tuple(dispatches))


def _check_value_scale_2d(desc: Any, strict: bool) -> None:
    name, channels = "DML_OPERATOR_VALUE_SCALE_2D", desc.input_tensor.sizes[1]
    expect(desc.channel_count in (1, 3), name, "ChannelCount", "be 1 or 3", desc.channel_count)
    expect(desc.channel_count == channels, name, "ChannelCount", "equal InputTensor.Sizes[1]",
           desc.channel_count, channels)
    expect(len(desc.bias) == channels, name, "Bias", f"have {channels} numbers", list(desc.bias))


ValueScale2dOperatorDesc = define(
    "VALUE_SCALE_2D", _lower_value_scale_2d, shaders=(FLOAT,), check=_check_value_scale_2d,
)


@function
def value_scale_2d(
    x: Any, *, scale: float, bias: Sequence[float], out: Tensor | None = None
) -> Tensor:
    """``y[n, c, h, w] = scale * x[n, c, h, w] + bias[c]`` (DML_VALUE_SCALE_2D_OPERATOR_DESC).

    ``x`` has 4 dimensions with 1 or 3 channels, any strides, FLOAT32 or FLOAT16. Returns ``out`` or
    a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    device = device_of(x, out)
    x = as_tensor(device, x)
    y = output(device, out, "value_scale_2d", x.sizes, x.data_type)
    run(ValueScale2dOperatorDesc, device, {"input_tensor": x, "output_tensor": y},
        scale=scale, channel_count=len(bias), bias=tuple(bias))
    return y
