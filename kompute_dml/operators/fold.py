"""FOLD and UNFOLD: sliding blocks of an image as columns, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..desc import TensorDesc
from ..errors import expect
from ..layout import product
from ..lowering.builder import PlanBuilder
from .base import Output, operator
from .convolution.geometry import Window

_INVOCATIONS = 256
_MAX_EXTENT = (1 << 31) - 1


def _windows(d: Any) -> list[Window]:
    name = d.operator.name
    for field, values in (("WindowSizes", d.window_sizes), ("Strides", d.strides),
                          ("Dilations", d.dilations)):
        for i, value in enumerate(values):
            expect(value > 0, name, f"{field}[{i}]", "be above 0", value)
    return [Window(*each) for each in zip(d.window_sizes, d.strides, d.dilations, d.start_padding,
                                          d.end_padding)]


def _blocks(d: Any, image: TensorDesc, field: str) -> list[int]:
    """The number of blocks along each spatial dimension of the image."""
    name, axes = d.operator.name, image.dimension_count - 2
    expect(d.dimension_count == axes, name, "DimensionCount",
           f"be {axes} ({field} has {image.dimension_count} dimensions)", d.dimension_count)
    blocks = []
    for i, (n, window) in enumerate(zip(image.sizes[2:], _windows(d))):
        padded = n + window.start + window.end
        expect(padded <= _MAX_EXTENT, name, f"the padded size of axis {i}",
               f"be at most {_MAX_EXTENT}", padded)
        expect(window.blocks(n) > 0, name, f"WindowSizes[{i}]",
               f"reach no further than the padded image of {padded}", window.reach)
        blocks.append(window.blocks(n))
    return blocks


def _columns(d: Any) -> Mapping[str, Output | list[Output]]:
    x = d.input_tensor
    blocks = _blocks(d, x, "InputTensor")
    return {"output_tensor": Output(
        (x.sizes[0], x.sizes[1] * product(d.window_sizes), product(blocks)), x.data_type)}


def _lower(d: Any, p: PlanBuilder, to: str, image: TensorDesc, columns: TensorDesc,
           blocks: list[int]) -> None:
    words: list[int] = []
    for each in reversed(list(zip(d.window_sizes, d.strides, d.dilations, d.start_padding,
                                  image.sizes[2:], blocks, image.strides[2:]))):
        words += each
    count = product(d.output_tensor.sizes)
    p.dispatch(
        f"fold.{to}", -(-count // _INVOCATIONS), x=p.read("input_tensor"),
        y=p.write("output_tensor"), params=words,
        push={"count": count, "axes": len(blocks), "channels": image.sizes[1],
              "window": product(d.window_sizes), "blocks": product(blocks),
              "pixels": product(image.sizes[2:]), "image_strides": image.strides[:2],
              "column_strides": columns.strides},
        spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": d.input_tensor.data_type.code})


@operator("UNFOLD", output=_columns, shaders=("fold",))
def UnfoldOperatorDesc(d: Any, p: PlanBuilder) -> None:
    image = d.input_tensor
    _lower(d, p, "columns", image, d.output_tensor, _blocks(d, image, "InputTensor"))


def _check_fold(d: Any, strict: bool) -> None:
    x, y = d.input_tensor, d.output_tensor
    blocks = _blocks(d, y, "OutputTensor")
    sizes = [y.sizes[0], y.sizes[1] * product(d.window_sizes), product(blocks)]
    expect(list(x.sizes) == sizes, d.operator.name, "InputTensor.Sizes", f"be {sizes}",
           list(x.sizes))


@operator("FOLD", shaders=("fold",), check=_check_fold)
def FoldOperatorDesc(d: Any, p: PlanBuilder) -> None:
    image = d.output_tensor
    _lower(d, p, "image", image, d.input_tensor, _blocks(d, image, "OutputTensor"))
