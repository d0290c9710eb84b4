"""Writes ``__init__.pyi``: every public name with its types, for editors and type checkers.

Functions and descriptions are made from the registry, so a checker cannot see them by itself.
``python -m kompute_dml.toolchain stubs`` writes the file; building a wheel does too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .arrays.registry import published as arrays
from .attributes import ENUMS
from .files import replaced
from .functions import functions
from .operators.base import Definition, definitions
from .public import NAMESPACES, PUBLIC
from .spec import Field

_HEAD = '''\
# Written by `python -m kompute_dml.toolchain stubs`.
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from .operators.base import OperatorDesc
'''
_ALIASES = '''\
TensorLike = Tensor | ArrayLike
DataTypeLike = DataType | str | type | np.dtype[Any]
Axis = int | Sequence[int] | None
DeviceLike = Device | int | str | None
__version__: str
'''
_TYPES = {
    "TENSOR_DESC": "TensorDesc",
    "TENSOR_DESC_ARRAY": "Sequence[TensorDesc]",
    "OPERATOR_DESC": "OperatorDesc",
    "OPERATOR_DESC_ARRAY": "Sequence[OperatorDesc]",
    "SCALE_BIAS": "ScaleBias",
    "SIZE_2D": "Size2d",
    "SCALAR_UNION": "Scalar | float | bytes | np.generic",
    "FLOAT": "float",
    "FLOAT_ARRAY": "Sequence[float]",
    "UINT_ARRAY": "Sequence[int]",
    "INT_ARRAY": "Sequence[int]",
    "BOOL": "bool",
}


_KNOWN = re.compile(
    r"(?:Any|None|TensorLike|DataTypeLike|DeviceLike|Axis|Tensor|Sequence|DataType|Scalar|float|int|bool|str|tuple|list|[\s|,.\[\]])+")
"""Annotations that the stub's own imports explain."""


def attribute_type(f: Field) -> str:
    """What a type checker should take for an attribute, without None."""
    if f.enum == "DML_TENSOR_DATA_TYPE":
        return "DataType"
    if f.enum in ENUMS:
        return f"{ENUMS[f.enum].__name__} | int"
    return _TYPES.get(f.type, "int")


def path() -> Path:
    """Where the file belongs."""
    return Path(__file__).with_name("__init__.pyi")


def write() -> Path:
    """Write the file, where it differs."""
    text = "\n".join([_HEAD, *_imports(), "", _ALIASES, *_descs(), *_functions()]) + "\n"
    if not path().is_file() or path().read_text("utf-8") != text:
        with replaced(path()) as file:
            file.write_text(text, "utf-8")
    return path()


def _imports() -> Iterator[str]:
    for name, module in sorted(PUBLIC.items(), key=lambda item: (item[1], item[0])):
        yield f"from .{module} import {name} as {name}"
    yield from (f"from . import {name} as {name}" for name in NAMESPACES)


def _descs() -> Iterator[str]:
    for definition in definitions().values():
        yield f"class {definition.desc_class.__name__}(OperatorDesc):"
        fields = [(f, _desc_type(definition, f)) for f in definition.spec.fields]
        yield from (f"    {f.snake}: {kind}" for f, kind in fields)
        arguments = ", ".join(
            f"{f.snake}: {kind}{' = ...' if kind.endswith('None') else ''}" for f, kind in fields)
        yield f"    def __init__(self, *, {arguments}) -> None: ..."


def _desc_type(definition: Definition, f: Field) -> str:
    entry = definition.spec
    kind = attribute_type(f)
    left_out = f.optional or f.name in entry.count_fields or (f.is_tensor and entry.lacks_tensors)
    return f"{kind} | None" if left_out else kind


def _functions() -> Iterator[str]:
    known = {d.function_name: d for d in definitions().values()}
    own = functions()
    for name, function in sorted({**own, **arrays()}.items()):
        # NumPy's functions that may be DirectML's have the parameters of these.
        as_directmls = name in own and inspect.signature(function) == inspect.signature(own[name])
        definition = known.get(name) if as_directmls else None
        yield from _overloads(name, *_parts(function, definition))


_OPERAND = re.compile(r"\w+: (Sequence\[)?TensorLike(?! \| None)")


def _overloads(name: str, parts: list[str], result: str) -> Iterator[str]:
    """A function of tensors that returns expressions where an operand is one."""
    operands = [i for i, part in enumerate(parts) if _OPERAND.match(part)]
    of_expressions = result.replace("Tensor", "Expression")
    creates = name.endswith("_like")  # on a device, which an expression has none of
    if not operands or creates or of_expressions == result or "list[" in result:
        yield f"def {name}({', '.join(parts)}) -> {result}: ..."
        return
    for i in operands:
        parameters = [p.replace("TensorLike", "Expression", 1) if i == k else p
                      for k, p in enumerate(parts)]
        yield f"@overload\ndef {name}({', '.join(parameters)}) -> {of_expressions}: ..."
    yield f"@overload\ndef {name}({', '.join(parts)}) -> {result}: ..."


def _parts(
    function: Callable[..., Any], definition: Definition | None
) -> tuple[list[str], str]:
    """The parameters of a function, and its result."""
    signature = inspect.signature(function)
    written = {p.name: p.annotation for p in signature.parameters.values()
               if isinstance(p.annotation, str) and _KNOWN.fullmatch(p.annotation)}
    fields = {} if definition is None else {f.snake: f for f in definition.spec.fields}
    tensors = set() if definition is None else {
        f.snake for f in definition.spec.inputs if not f.is_array}
    parts, keyword_only = [], False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
        keyword_only = keyword_only or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        kind = written.get(p.name)
        if kind in (None, "Any"):
            kind = _argument_type(p, fields, tensors) or kind or "Any"
        if p.default is None and "None" not in kind and kind not in ("Any", "Axis", "DeviceLike"):
            kind += " | None"
        stars = "*" * ((p.kind is p.VAR_POSITIONAL) + 2 * (p.kind is p.VAR_KEYWORD))
        parts.append(f"{stars}{p.name}: {kind}{'' if p.default is p.empty else ' = ...'}")
    result = signature.return_annotation
    if not isinstance(result, str):
        result = "Tensor"
        if definition is not None:
            required = [f for f in definition.spec.outputs if not f.optional]
            if any(f.is_array for f in definition.spec.outputs):
                result = "list[Tensor]"
            elif len(definition.spec.outputs) > 1:
                result = ("Any" if len(required) < len(definition.spec.outputs)
                          else f"tuple[{', '.join(['Tensor'] * len(required))}]")
    return parts, result


def _argument_type(p: inspect.Parameter, fields: dict[str, Field], tensors: set[str]) -> str:
    names = {"x": "input_tensor", "tensors": "input_tensors"}
    name = names.get(p.name, f"{p.name}_tensor")
    if name in tensors or f"{p.name}_tensor" in tensors:
        return "TensorLike"
    if p.name in fields and fields[p.name].type == "TENSOR_DESC_ARRAY":
        return "Sequence[TensorLike]"
    if p.name in fields:
        return attribute_type(fields[p.name])
    if p.name == "out":
        outputs = [f for f in fields.values() if f.kind == "output"]
        return "Tensor" if len(outputs) == 1 else "Any"
    if p.name == "data_type":
        return "DataTypeLike"
    return "bool" if f"{p.name}_tensor" in fields else ""

