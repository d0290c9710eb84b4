"""Slices, joins, padding, tiles, blocks of depth and reversed subsequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from kompute_dml.cases.movement import to_depth, to_space
from kompute_dml.dtypes import Scalar
from layouts import PACKED, PADDED, REPEATED, SHIFTED, STEPPED, TRANSPOSED, Sizes

_WIDTHS = tuple(dml.DataType.of(t) for t in ("uint8", "float16", "float32", "int64"))
_EIGHT = (2, 1, 3, 2, 2, 3, 1, 2)
_MORE = (*FEW, STEPPED)


def _of_widths(*fields: str, types: Sequence[dml.DataType] = _WIDTHS) -> list[Types]:
    return [dict.fromkeys(fields, t) for t in types]


def _one(
    operator: str, name: str, x: Sizes, y: Sizes, reference: Any, attributes: Mapping[str, Any],
    **more: Any,
) -> Case:
    sizes = {"input_tensor": x, "output_tensor": y}
    more = _usual(*sizes) | more
    return Case(operator, name, sizes, reference, attributes=attributes, **more)


def _usual(*slots: str) -> dict[str, Any]:
    """One type of each width, in a few layouts."""
    return dict(types=_of_widths(*slots), layouts=FEW, levels=("descriptor",))


# Slices


def _slice(name: str, x: Sizes, offsets: Sizes, sizes: Sizes, strides: Sizes, **more: Any) -> Case:
    def reference(a: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
        at = (o + s * np.arange(n) for o, n, s in zip(offsets, sizes, strides))
        return a["input_tensor"][np.ix_(*at)]

    attributes = {"offsets": offsets, "sizes": sizes, "strides": strides}
    return _one("SLICE", name, x, sizes, reference, attributes, **more)


def _slice1(
    name: str, x: Sizes, offsets: Sizes, windows: Sizes, strides: Sizes, **more: Any
) -> Case:
    sizes = tuple(1 + (w - 1) // abs(s) for w, s in zip(windows, strides))

    def reference(a: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
        at = (o + (w - 1 if s < 0 else 0) + s * np.arange(n)
              for o, w, n, s in zip(offsets, windows, sizes, strides))
        return a["input_tensor"][np.ix_(*at)]

    attributes = {"input_window_offsets": offsets, "input_window_sizes": windows,
                  "input_window_strides": strides}
    return _one("SLICE1", name, x, sizes, reference, attributes, **more)


# Joins


def _join(name: str, sizes: Sequence[Sizes], axis: int, **more: Any) -> Case:
    whole = list(sizes[0])
    whole[axis] = sum(s[axis] for s in sizes)
    slots = {f"input_tensors[{i}]": s for i, s in enumerate(sizes)} | {"output_tensor": whole}
    more = _usual(*slots) | more
    return Case(
        "JOIN", name, slots,
        lambda x, attributes, types: np.concatenate(list(x.values()), axis),
        attributes={"axis": axis}, **more)


def _split(name: str, sizes: Sequence[Sizes], axis: int, **more: Any) -> Case:
    whole = list(sizes[0])
    whole[axis] = sum(s[axis] for s in sizes)
    slots = {"input_tensor": whole} | {f"output_tensors[{i}]": s for i, s in enumerate(sizes)}
    more = _usual(*slots) | more
    sections = tuple(s[axis] for s in sizes)

    def call(x: Mapping[str, Any], attributes: Mapping[str, Any], types: Types, out: Any) -> Any:
        outs = out if out is None or isinstance(out, tuple) else (out,)
        return dml.split(x["input_tensor"], sections=sections, axis=axis, out=outs)

    return Case(
        "SPLIT", name, slots,
        lambda x, attributes, types: tuple(
            np.split(x["input_tensor"], np.cumsum(sections)[:-1], axis)),
        attributes={"axis": axis}, call=call, **more)


# Padding

_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")
_VALUE = 3.0


def _pad(
    operator: str, name: str, x: Sizes, start: Sizes, end: Sizes, mode: str, **more: Any
) -> Case:
    def reference(a: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
        pads = list(zip(start, end))
        if mode == "constant":
            return np.pad(a["input_tensor"], pads, constant_values=_VALUE)
        if mode == "reflect":
            # NumPy's rule for one element differs from the formula.
            at = np.ix_(*[_reflected(n, s, e) for n, s, e in zip(x, start, end)])
            return a["input_tensor"][at]
        return np.pad(a["input_tensor"], pads, mode)  # type: ignore[call-overload]

    def call(a: Mapping[str, Any], attributes: Mapping[str, Any], types: Types, out: Any) -> Any:
        given = {k: v for k, v in attributes.items() if k != "padding_value_data_type"}
        return getattr(dml, operator.lower())(a["input_tensor"], **given, out=out)

    attributes: dict[str, Any] = {
        "padding_mode": _MODES.index(mode), "start_padding": start, "end_padding": end}
    if operator == "PADDING":
        attributes["padding_value"] = _VALUE
    else:
        attributes["padding_value_data_type"] = lambda types: types["input_tensor"]
        attributes["padding_value"] = lambda types: Scalar.of(_VALUE, types["input_tensor"]) \
            if types["input_tensor"].is_float else Scalar.of(int(_VALUE), types["input_tensor"])
    sizes = tuple(map(sum, zip(x, start, end)))
    return _one(operator, name, x, sizes, reference, attributes, call=call, **more)


def _reflected(n: int, start: int, end: int) -> np.ndarray:
    period = max(2 * (n - 1), 1)
    m = (np.arange(n + start + end) - start) % period
    return np.where(m < n, m, period - m)


def _tile(name: str, x: Sizes, repeats: Sizes, **more: Any) -> Case:
    sizes = tuple(n * m for n, m in zip(x, repeats))
    return _one(
        "TILE", name, x, sizes, lambda a, attributes, types: np.tile(a["input_tensor"], repeats),
        {"repeats": repeats}, **more)


# Blocks


def _blocks(name: str, deep: Sizes, b: int, **more: Any) -> list[Case]:
    """Both directions, with both operators of each."""
    n, c, h, w = deep
    wide = (n, c // (b * b), h * b, w * b)
    cases = []
    for operator, x, y, move in (("DEPTH_TO_SPACE", deep, wide, to_space),
                                 ("SPACE_TO_DEPTH", wide, deep, to_depth)):
        for suffix, order in (("", 0), ("1", 1)):
            attributes = {"block_size": b} | ({"order": order} if suffix else {})
            cases.append(_one(
                operator + suffix, name, x, y,
                lambda a, attributes, types, move=move: move(
                    a["input_tensor"], attributes["block_size"], attributes.get("order", 0)),
                attributes, **more))
    return cases


# Sequences


def _reverse(name: str, x: Sizes, axis: int, **more: Any) -> Case:
    lengths = tuple(1 if d == axis else n for d, n in enumerate(x))

    def reference(a: Arrays, attributes: Mapping[str, Any], types: Types) -> np.ndarray:
        k = np.arange(x[axis]).reshape([-1 if d == axis else 1 for d in range(len(x))])
        n = np.minimum(a["sequence_lengths_tensor"], np.uint64(x[axis])).astype(np.int64)
        return np.take_along_axis(a["input_tensor"], np.where(k < n, n - 1 - k, k), axis)

    def values(rng: np.random.Generator, t: dml.DataType, sizes: Sizes) -> np.ndarray:
        """Lengths around the size, and one whose lower word is 0."""
        numbers = rng.integers(0, x[axis] + 3, sizes).astype(t.dtype)
        numbers.flat[0] = np.iinfo(t.dtype).max - np.iinfo(np.uint32).max \
            if t.itemsize == 8 else np.iinfo(t.dtype).max
        return numbers

    sizes = {"input_tensor": x, "sequence_lengths_tensor": lengths, "output_tensor": x}
    more = {"levels": ("descriptor",)} | more
    return Case("REVERSE_SUBSEQUENCES", name, sizes, reference, attributes={"axis": axis},
                values={"sequence_lengths_tensor": values}, **more)


_ALL: dict[str, Any] = dict(types=None, layouts=[PACKED], levels=("descriptor", "function"))
_FIVE = (3, 5, 7)

CASES = [
    _slice("all-types", (9,), (2,), (3,), (2,), **_ALL),
    _slice("contiguous", (3, 7, 16), (1, 2, 0), (2, 3, 16), (1, 1, 1)),
    _slice("steps", (5, 7, 40), (1, 0, 3), (2, 3, 18), (2, 3, 2), layouts=_MORE),
    _slice("eight-dimensions", _EIGHT, (1, 0, 0, 0, 1, 0, 0, 1), (1, 1, 2, 2, 1, 2, 1, 1),
           (1, 1, 2, 1, 1, 2, 1, 1), layouts=[PACKED]),
    _slice1("all-types", (9,), (2,), (5,), (-2,), **_ALL),
    _slice1("reversed-rows", (5, 6, 16), (1, 0, 0), (4, 6, 16), (-2, -1, 1)),
    _slice1("reversed", (5, 6, 19), (0, 1, 2), (5, 5, 17), (1, 2, -1), layouts=_MORE),
    _slice1("eight-dimensions", _EIGHT, (0,) * 8, _EIGHT, (-1,) * 8, layouts=[PACKED]),

    _join("all-types", [(2,), (5,)], 0, **_ALL),
    _join("one", [(3, 4)], 1),
    _join("vectors", [(3, 16), (3, 48), (3, 32)], 1),
    _join("words", [(3, 4, 2), (3, 8, 2)], 1, layouts=[PACKED, PADDED]),
    _join("odd", [(5, 3), (5, 2), (5, 7)], 1, levels=("descriptor", "function", "arrays")),
    _join("nine", [(3, 4 + i % 2 * 4) for i in range(9)], 1, layouts=[PACKED]),
    _join("twenty", [(2, 4 + i % 2 * 4) for i in range(20)], 1, layouts=[PACKED]),
    _join("past-a-workgroup", [(70, 16), (70, 80)], 1, layouts=[PACKED]),
    _join("eight-dimensions", [_EIGHT] * 2, 4, layouts=[PACKED]),
    _split("all-types", [(2,), (5,)], 0, **_ALL),
    _split("one", [(3, 4)], 1),
    _split("vectors", [(3, 16), (3, 48), (3, 32)], 1),
    _split("odd", [(5, 3), (5, 2), (5, 7)], 1),
    _split("nine", [(3, 4 + i % 2 * 4) for i in range(9)], 1, layouts=[PACKED]),
    _split("twenty", [(2, 4 + i % 2 * 4) for i in range(20)], 1, layouts=[PACKED]),
    _split("past-a-workgroup", [(70, 16), (70, 80)], 1, layouts=[PACKED]),
    _split("eight-dimensions", [_EIGHT] * 2, 4, layouts=[PACKED]),

    _pad("PADDING", "all-types", (5,), (2,), (1,), "constant", **_ALL),
    _pad("PADDING1", "all-types", (5,), (2,), (1,), "constant", **_ALL),
    _pad("PADDING", "constant", (3, 4, 21), (2, 0, 3), (0, 1, 9), "constant", layouts=_MORE),
    _pad("PADDING1", "constant", (3, 4, 21), (0, 2, 16), (0, 0, 0), "constant", layouts=_MORE),
    *[_pad("PADDING1", mode, (3, 4, 5), (1, 2, 3), (4, 3, 17), mode, layouts=_MORE)
      for mode in _MODES[1:]],
    _pad("PADDING1", "wrap-rows", (3, 4, 32), (1, 2, 0), (4, 3, 0), "wrap", layouts=[PACKED]),
    *[_pad("PADDING", f"many-planes-{mode}", (150, 5, 7), (0, 1, 2), (0, 6, 1), mode,
           layouts=[PACKED, SHIFTED]) for mode in _MODES],
    _pad("PADDING", "reflect-one", (1, 4), (3, 2), (2, 1), "reflect", layouts=[PACKED]),
    _pad("PADDING", "narrow", (9, 1), (0, 1), (1, 1), "edge", layouts=[PACKED, PADDED]),
    _pad("PADDING", "past-a-workgroup", (40, 90), (3, 7), (5, 9), "constant", layouts=[PACKED]),
    _pad("PADDING", "eight-dimensions", _EIGHT, (1, 0, 2, 0, 1, 1, 0, 3),
         (0, 0, 1, 0, 1, 0, 0, 1), "symmetric", layouts=[PACKED]),
    _pad("PADDING1", "eight-dimensions", _EIGHT, (1, 0, 2, 0, 1, 1, 0, 3),
         (0, 0, 1, 0, 1, 0, 0, 1), "reflect", layouts=[PACKED]),
    _tile("all-types", (5,), (3,), **_ALL),
    _tile("planes", (3, 4, 16), (1, 2, 3), layouts=_MORE),
    _tile("rows", (2, 3, 5), (3, 1, 1), layouts=[PACKED, REPEATED]),
    _tile("eight-dimensions", _EIGHT, (1, 2, 2, 1, 2, 1, 3, 1), layouts=[PACKED]),

    *_blocks("all-types", (2, 8, 3, 5), 2, **_ALL),
    *_blocks("vectors", (2, 8, 3, 32), 2, layouts=[PACKED, SHIFTED, TRANSPOSED, PADDED]),
    *_blocks("three", (1, 18, 2, 16), 3, layouts=[PACKED]),
    *_blocks("one", (2, 3, 4, 5), 1, layouts=[PACKED]),
    *_blocks("nine", (1, 81, 2, 16), 9, layouts=[PACKED]),
    *_blocks("planes", (2, 8, 33, 70), 2, layouts=[PACKED]),

    _reverse("all-types", (7,), 0, **_ALL),
    _reverse("middle", _FIVE, 1, layouts=_MORE,
             types=[{"input_tensor": t, "sequence_lengths_tensor": n, "output_tensor": t}
                    for t, n in zip(_WIDTHS, (dml.DataType.UINT32, dml.DataType.UINT64) * 2)]),
    _reverse("last-past-a-workgroup", (3, 700), 1, layouts=[PACKED],
             types=[{"input_tensor": _WIDTHS[1], "sequence_lengths_tensor": dml.DataType.UINT32,
                     "output_tensor": _WIDTHS[1]}]),
    _reverse("eight-dimensions", _EIGHT, 2, layouts=[PACKED],
             types=[{"input_tensor": _WIDTHS[2], "sequence_lengths_tensor": dml.DataType.UINT32,
                     "output_tensor": _WIDTHS[2]}]),
]


def _t(*sizes: int, data_type: str = "float32") -> dml.TensorDesc:
    return dml.TensorDesc(data_type, sizes)


def _xy(x: Sizes, y: Sizes, **attributes: Any) -> dict[str, Any]:
    return dict(input_tensor=_t(*x), output_tensor=_t(*y), **attributes)


def _window(offsets: Sizes, sizes: Sizes, strides: Sizes) -> dict[str, Any]:
    return dict(input_window_offsets=offsets, input_window_sizes=sizes,
                input_window_strides=strides)


_BEYOND = dict(offsets=(2**32 - 1,), sizes=(2,), strides=(2**32 - 1,))
_VALUE1 = dict(padding_value_data_type=dml.DataType.FLOAT32, padding_value=0.0)

ERRORS = [
    ErrorCase("SLICE", "beyond", _xy((9,), (3,), offsets=(5,), sizes=(3,), strides=(2,)),
              ["Offsets[0]", "below InputTensor.Sizes[0] = 9", "9"]),
    ErrorCase("SLICE", "beyond-32-bits", _xy((9,), (2,), **_BEYOND), ["below", "8589934590"]),
    ErrorCase("SLICE", "no-step", _xy((9,), (3,), offsets=(5,), sizes=(3,), strides=(0,)),
              ["Strides[0]", "above 0", "0"]),
    ErrorCase("SLICE", "sizes", _xy((9,), (4,), offsets=(5,), sizes=(3,), strides=(1,)),
              ["OutputTensor.Sizes", "[3]", "[4]"]),
    ErrorCase("SLICE", "entries",
              _xy((9, 2), (3, 1), offsets=(5,), sizes=(3,), strides=(1,)),
              ["Offsets", "2 entries", "[5]"]),
    ErrorCase("SLICE1", "beyond", _xy((9,), (3,), **_window((5,), (5,), (1,))),
              ["InputWindowOffsets[0] + InputWindowSizes[0]", "at most", "9", "10"]),
    ErrorCase("SLICE1", "too-many", _xy((9,), (4,), **_window((0,), (5,), (-2,))),
              ["OutputTensor.Sizes[0]", "at most 3", "4"]),
    ErrorCase("SLICE1", "no-step", _xy((9,), (4,), **_window((0,), (5,), (0,))),
              ["InputWindowStrides[0]", "not be 0"]),
    ErrorCase("JOIN", "sizes", dict(input_tensors=(_t(2, 3), _t(2, 4)), output_tensor=_t(4, 3),
                                    axis=0), ["InputTensors[1].Sizes", "[2, 3]", "[2, 4]"]),
    ErrorCase("JOIN", "sum", dict(input_tensors=(_t(2, 3), _t(2, 3)), output_tensor=_t(3, 3),
                                  axis=0), ["OutputTensor.Sizes", "[4, 3]", "[3, 3]"]),
    ErrorCase("JOIN", "axis", dict(input_tensors=(_t(2, 3),), output_tensor=_t(2, 3), axis=2),
              ["Axis", "[0, 2)", "2"]),
    ErrorCase("JOIN", "none", dict(input_tensors=(), output_tensor=_t(2, 3), axis=0),
              ["InputTensors", "at least one tensor"]),
    ErrorCase("SPLIT", "sum", dict(input_tensor=_t(5, 3), output_tensors=(_t(2, 3), _t(2, 3)),
                                   axis=0), ["the sum of OutputTensors", "= 5", "4"]),
    ErrorCase("SPLIT", "sizes", dict(input_tensor=_t(4, 3), output_tensors=(_t(2, 3), _t(2, 4)),
                                     axis=0), ["OutputTensors[1].Sizes", "[2, 3]", "[2, 4]"]),
    ErrorCase("PADDING", "sizes",
              _xy((4,), (8,), padding_mode=0, padding_value=0.0, start_padding=(1,),
                  end_padding=(2,)), ["OutputTensor.Sizes", "[7]", "[8]"]),
    ErrorCase("PADDING", "mode",
              _xy((4,), (7,), padding_mode=5, padding_value=0.0, start_padding=(1,),
                  end_padding=(2,)), ["PaddingMode", "REFLECTION", "5"]),
    ErrorCase("PADDING", "entries",
              _xy((4,), (7,), padding_mode=0, padding_value=0.0, start_padding=(1, 0),
                  end_padding=(2,), dimension_count=1), ["DimensionCount", "2", "1"]),
    ErrorCase("PADDING1", "value",
              _xy((4,), (7,), padding_mode=0, start_padding=(1,), end_padding=(2,),
                  **_VALUE1 | {"padding_value_data_type": dml.DataType.INT32}),
              ["PaddingValueDataType", "OutputTensor.DataType", "INT32", "FLOAT32"]),
    ErrorCase("TILE", "sizes", _xy((4,), (7,), repeats=(2,)), ["OutputTensor.Sizes", "[8]", "[7]"]),
    ErrorCase("TILE", "nothing", _xy((4,), (4,), repeats=(0,)), ["Repeats[0]", "above 0", "0"]),
    *[ErrorCase(f"DEPTH_TO_SPACE{s}", "channels",
                _xy((1, 6, 2, 2), (1, 1, 4, 4), block_size=2, **order),
                ["InputTensor.Sizes[1]", "multiple of 4", "6"])
      for s, order in (("", {}), ("1", {"order": 0}))],
    *[ErrorCase(f"SPACE_TO_DEPTH{s}", "width",
                _xy((1, 1, 4, 5), (1, 4, 2, 2), block_size=2, **order),
                ["InputTensor.Sizes[3]", "multiple of 2", "5"])
      for s, order in (("", {}), ("1", {"order": 0}))],
    ErrorCase("SPACE_TO_DEPTH", "no-block", _xy((1, 1, 4, 4), (1, 4, 2, 2), block_size=0),
              ["BlockSize", "above 0", "0"]),
    ErrorCase("REVERSE_SUBSEQUENCES", "lengths",
              dict(_xy((4, 3), (4, 3), axis=0),
                   sequence_lengths_tensor=_t(4, 1, data_type="uint32")),
              ["SequenceLengthsTensor.Sizes", "[1, 3]", "[4, 1]"]),
]
