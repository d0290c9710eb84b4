"""Activations."""

from __future__ import annotations

from functools import partial
from typing import Any

import kompute_dml as dml
from harness import FEW, Case, ErrorCase
from layouts import (
    OUTER_REVERSED,
    OUTER_REVERSED_SHIFTED,
    PACKED,
    REVERSED,
    SHIFTED,
    TRANSPOSED,
)


def identity(name: str, sizes: tuple[int, ...], **more: Any) -> Case:
    return Case(
        "ACTIVATION_IDENTITY",
        name,
        {"input_tensor": sizes, "output_tensor": sizes},
        reference=lambda x, attributes, types: x["input_tensor"],
        call=lambda x, attributes, types, out: dml.activation_identity(x["input_tensor"], out=out),
        **more,
    )


CASES = [
    identity("one", (1,)),
    identity("vector", (7,)),
    identity("past-a-workgroup", (257,), layouts=FEW),
    identity("matrix", (5, 7)),
    identity("cube", (3, 2, 11)),
    identity("four", (2, 3, 5, 7)),
    identity("eight", (2, 1, 3, 2, 1, 2, 3, 5)),
    identity("whole-tiles", (136, 192), layouts=[PACKED, TRANSPOSED]),
    identity("fewer-planes-than-a-tile-holds", (3, 16, 32), layouts=[PACKED, TRANSPOSED]),
    identity("sides-of-two-dimensions", (6, 32, 32, 6), layouts=[PACKED, REVERSED]),
    identity("pieces", (6, 5, 9, 24),
             layouts=[PACKED, SHIFTED, OUTER_REVERSED, OUTER_REVERSED_SHIFTED]),
    identity("many-workgroups", (67, 131), layouts=FEW),
]


def _f32(*sizes: int, **more: Any) -> dml.TensorDesc:
    return dml.TensorDesc("float32", sizes, **more)


_error = partial(ErrorCase, "ACTIVATION_IDENTITY")

ERRORS = [
    _error("integers", dict(input_tensor=dml.TensorDesc("int32", [4]),
                            output_tensor=dml.TensorDesc("int32", [4])),
           ["InputTensor.DataType", "FLOAT32, FLOAT16", "INT32"]),
    _error("types-differ", dict(input_tensor=_f32(4), output_tensor=dml.TensorDesc("float16", [4])),
           ["InputTensor.DataType", "equal OutputTensor.DataType", "FLOAT32", "FLOAT16"]),
    _error("sizes-differ", dict(input_tensor=_f32(4, 3), output_tensor=_f32(3, 4)),
           ["InputTensor.Sizes", "equal OutputTensor.Sizes", "[4, 3]", "[3, 4]"]),
    _error("ranks-differ", dict(input_tensor=_f32(4), output_tensor=_f32(1, 4)),
           ["InputTensor.DimensionCount", "equal OutputTensor.DimensionCount", "1", "2"]),
    _error("stride-0-output", dict(input_tensor=_f32(4), output_tensor=_f32(4, strides=[0])),
           ["OutputTensor.Strides", "address of its own", "[4]", "[0]"]),
    _error("overlapping-output",
           dict(input_tensor=_f32(4, 3), output_tensor=_f32(4, 3, strides=[2, 1])),
           ["OutputTensor.Strides", "address of its own", "[4, 3]", "[2, 1]"]),
    _error("owned-output",
           dict(input_tensor=_f32(4), output_tensor=_f32(4, flags=dml.TensorFlags.OWNED_BY_DML)),
           ["OutputTensor.Flags", "only inputs", "OWNED_BY_DML"]),
    _error("no-input", dict(input_tensor=None, output_tensor=_f32(4)),
           ["InputTensor", "be given", "None"]),
    _error("not-a-desc", dict(input_tensor=[4], output_tensor=_f32(4)),
           ["InputTensor", "be a TensorDesc", "[4]"]),
]
