"""FOLD and UNFOLD: sliding blocks of an image as columns, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import expect
from ..layout import Ints, packed_strides, product
from ..lowering.builder import PlanBuilder
from ..lowering.walk import Walk, of_vectors, reciprocal
from .base import OperatorDesc, Output, operator
from .convolution.geometry import Window

_INVOCATIONS = 256
_MOST_AXES, _MOST_EACH, _MOST_TAPS = 6, 4, 4
_AXIS_WORDS = 9
_MAX_EXTENT = (1 << 31) - 1


def _windows(d: OperatorDesc) -> list[Window]:
    name = d.operator.name
    for field, values in (("WindowSizes", d.window_sizes), ("Strides", d.strides),
                          ("Dilations", d.dilations)):
        for i, value in enumerate(values):
            expect(value > 0, name, f"{field}[{i}]", "be above 0", value)
    return [Window(*each) for each in zip(d.window_sizes, d.strides, d.dilations, d.start_padding,
                                          d.end_padding)]


def _image(d: OperatorDesc, t: TensorDesc, field: str) -> TensorDesc:
    """{N, C, spatial..}, without leading ones."""
    axes, most = d.dimension_count, t.dimension_count - 2
    expect(0 < axes <= most and all(n == 1 for n in t.sizes[: most - axes]), d.operator.name,
           "DimensionCount", f"be {most} ({field} has sizes {list(t.sizes)}; leading ones may be "
           "left out)", axes)
    return _last(t, axes + 2)


def _last(t: TensorDesc, count: int) -> TensorDesc:
    """The last dimensions of a tensor whose others have size 1."""
    if t.dimension_count == count:
        return t
    return t.replace(sizes=t.sizes[-count:], strides=t.strides[-count:])


_COLUMNS = 3
"""Dimensions of columns: {N, C * window, blocks}."""


def _blocks(d: OperatorDesc, image: TensorDesc) -> list[int]:
    """The number of blocks along each spatial dimension of the image."""
    name = d.operator.name
    blocks = []
    for i, (n, window) in enumerate(zip(image.sizes[2:], _windows(d))):
        padded = n + window.start + window.end
        expect(padded <= _MAX_EXTENT, name, f"the padded size of axis {i}",
               f"be at most {_MAX_EXTENT}", padded)
        expect(window.blocks(n) > 0, name, f"WindowSizes[{i}]",
               f"reach no further than the padded image of {padded}", window.reach)
        blocks.append(window.blocks(n))
    return blocks


def _columns(d: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    x, y = _image(d, d.input_tensor, "InputTensor"), d.output_tensor
    ones = 0 if y is None else max(y.dimension_count - _COLUMNS, 0)
    sizes = (x.sizes[0], x.sizes[1] * product(d.window_sizes), product(_blocks(d, x)))
    return {"output_tensor": Output((*(1,) * ones, *sizes), x.data_type)}


def _each(y: TensorDesc, size: int) -> int:
    """The neighbours along the last dimension, of ``size``, that an invocation computes."""
    each = 16 // y.data_type.itemsize if y.strides[-1] == 1 else 1
    return gcd(each, _MOST_EACH, size)


def _phases(w: Window, tap: int, block: int) -> tuple[int, list[int]]:
    """The most taps that meet a pixel along an axis, and the words of the phases. ``tap`` and
    ``block`` are strides among the columns."""
    words, most, common = [], 0, gcd(w.stride, w.dilation)
    inverse, step = pow(w.dilation // common, -1, w.stride // common), w.stride // common
    for phase in range(w.stride):
        first = phase // common * inverse % step
        count = -(-(w.size - first) // step) if phase % common == 0 and first < w.size else 0
        words += [count, first * tap, (phase - first * w.dilation) // w.stride]
        most = max(most, count)
    return most, words


def _dispatch(d: OperatorDesc, p: PlanBuilder, to: str, walk: Walk, words: list[int],
              spec: dict[str, int], before: int = 0) -> None:
    p.dispatch(
        f"fold.{to}", -(-walk.count // _INVOCATIONS), x=p.read("input_tensor"),
        y=p.write("output_tensor"), params=[*walk.words, *words],
        push={"count": walk.count, "axes_at": len(walk.words), "before": before},
        spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": d.input_tensor.data_type.code,
              "AXES": d.dimension_count, **spec})


def _coordinates(axes: int, *steps: Sequence[int]) -> list[Ints]:
    """For each axis the strides of a walk that returns its coordinate, which moves by each of
    ``steps`` along further dimensions. Unused ones follow, up to six."""
    return [(0, 0, *(s[i] if i == a else 0 for s in steps for i in range(axes)))
            for a in range(_MOST_AXES)]


@operator("UNFOLD", output=_columns, shaders=("fold",))
def UnfoldOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    x, y = _image(d, d.input_tensor, "InputTensor"), _last(d.output_tensor, _COLUMNS)
    blocks, axes, windows = _blocks(d, x), d.dimension_count, _windows(d)
    each = _each(y, blocks[-1])
    by_point = [n * y.strides[1] for n in packed_strides(d.window_sizes)]
    by_block = [n * y.strides[2] for n in packed_strides(blocks)]

    places = _coordinates(axes, d.dilations, d.strides)
    channel = product(d.window_sizes) * y.strides[1]
    walk = Walk((*x.sizes[:2], *d.window_sizes, *blocks[:-1], blocks[-1] // each),
                *(of_vectors(s, each) for s in (
                    (y.strides[0], channel, *by_point, *by_block),
                    (*x.strides[:2], *(0,) * (2 * axes)), *places)))
    words = [n for w, size, stride in zip(windows, x.sizes[2:], x.strides[2:])
             for n in (w.start, size, w.stride, stride)]
    _dispatch(d, p, "columns", walk, words, {"EACH": each},
              sum(w.start * s for w, s in zip(windows, x.strides[2:])))


def _check_fold(d: OperatorDesc, strict: bool) -> None:
    x, y = d.input_tensor, _image(d, d.output_tensor, "OutputTensor")
    sizes = [*[1] * (x.dimension_count - _COLUMNS), y.sizes[0],
             y.sizes[1] * product(d.window_sizes), product(_blocks(d, y))]
    expect(list(x.sizes) == sizes, d.operator.name, "InputTensor.Sizes", f"be {sizes}",
           list(x.sizes))


@operator("FOLD", shaders=("fold",), check=_check_fold)
def FoldOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    x, y = _last(d.input_tensor, _COLUMNS), _image(d, d.output_tensor, "OutputTensor")
    blocks, axes, windows = _blocks(d, y), d.dimension_count, _windows(d)
    each = _each(y, y.sizes[-1])

    channel = product(d.window_sizes) * x.strides[1]
    walk = Walk((*y.sizes[:-1], y.sizes[-1] // each),
                *(of_vectors(s, each) for s in (
                    y.strides, (x.strides[0], channel, *(0,) * axes),
                    *_coordinates(axes, (1,) * axes))))
    heads: list[int] = []
    tails: list[int] = []
    most = 0
    for w, count, tap, block in zip(windows, blocks, packed_strides(d.window_sizes),
                                    packed_strides(blocks)):
        tap, block = tap * x.strides[1], block * x.strides[2]
        most, phases = _phases(w, tap, block)
        common = gcd(w.stride, w.dilation)
        back = w.dilation // common
        heads += [w.start, w.stride, *reciprocal(w.stride), count, back,
                  w.stride // common * tap - back * block, block,
                  len(walk.words) + _AXIS_WORDS * axes + len(tails)]
        tails += phases
    _dispatch(d, p, "image64" if x.data_type is DataType.FLOAT64 else "image", walk,
              [*heads, *tails],
              {"EACH": each, "TAPS": most if most <= _MOST_TAPS else 0})
