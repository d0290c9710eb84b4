"""Depthwise convolutions: one filter for each channel."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

from ...layout import Ints
from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel
from ...runtime.shader_library import sizes
from ...runtime.traits import DeviceTraits
from ..quantize import made_range
from . import ends
from .layer import Layer
from .problem import Problem

SHADER, ROWS = "convolution_depthwise", "convolution_depthwise_rows"
BYTES, DIRECT = "convolution_depthwise_bytes", "convolution_direct"
_MAX_TAPS, _MAX_SPAN = 7, 24
"""Along an axis: the most taps of a filter, and the most input elements of a row of outputs."""
_SHARED_FOURS = 1024
"""The most vectors of four taps in shared memory."""
_INVOCATIONS = 256
_CHANNELS = 4
"""Channels of an invocation, if they come last."""
_EARLY = 12
"""The most input elements that an invocation reads before the filters, unless a row has more."""
_MAX_KEPT, _MAX_STRIDE = 5, 2
"""The most taps and the longest stride along an axis of ROWS, which keeps a window in registers."""


Constants = tuple[int, dict[str, int]]
"""Workgroups and specialization constants."""


@dataclass(frozen=True)
class Depthwise(Kernel[Layer]):
    """An invocation computes a block of rows and columns of outputs. Its estimate is a rank."""

    block: str

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.block

    def shader(self, layer: Layer) -> str:
        return layer.variant(f"{SHADER}.{self.block}")

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        c, axes = layer.c, layer.c.axes[1:]
        if not layer.is_narrow or not layer.is_depthwise or not layer.is_flat:
            return "not several groups of one channel along two axes"
        taps = [a.filter_size for a in axes]
        spans = [a.input_step + a.tap_step * (n - 1) for a, n in zip(axes, taps)]
        if any(a.transposed for a in c.axes) or max(taps) > _MAX_TAPS or spans[1] >= _MAX_SPAN:
            return "transposed, or too many taps"
        return None

    def size(self, layer: Layer) -> tuple[int, int]:
        """Rows and columns of outputs for each invocation."""
        block = sizes(self.shader(layer))
        return block["rows"], block["columns"]

    def blocks(self, layer: Layer) -> int:
        """Blocks of outputs in all images."""
        (rows, columns), (_, y, x) = self.size(layer), layer.c.axes
        return layer.c.batches * -(-y.out_size // rows) * -(-x.out_size // columns)

    def constants(self, layer: Layer) -> Constants:
        """What differs between the kernels."""
        raise NotImplementedError

    def lower(self, layer: Layer, p: PlanBuilder) -> None:
        c, fused, (y_axis, x_axis) = layer.c, layer.fused, layer.c.axes[1:]
        groups, more = self.constants(layer)
        spec: dict[str, int] = {
            "TYPE": layer.type.code, "HAS_BIAS": layer.tensor("bias_tensor") is not None,
            **fused.spec}
        for name, axis in (("Y", y_axis), ("X", x_axis)):
            spec |= {f"TAPS_{name}": axis.filter_size, f"STRIDE_{name}": axis.input_step}
            if f"DILATION_{name}" in p.library.get(*self.shader(layer).split(".")).spec_ids:
                spec[f"DILATION_{name}"] = axis.tap_step
        p.dispatch(
            self.shader(layer), groups,
            x=p.read("input_tensor"), w=p.read("filter_tensor"), y=p.write("output_tensor"),
            bias=p.read("bias_tensor"), **p.read_tail(), params=fused.words or (0,),
            push={"batches": c.batches, "channels": c.groups,
                  "x_sizes": (y_axis.in_size, x_axis.in_size),
                  "y_sizes": (y_axis.out_size, x_axis.out_size), "padding": _padding(c),
                  "x_strides": (*c.x_strides[:2], *c.x_strides[3:]),
                  "y_strides": (*c.y_strides[:2], *c.y_strides[3:]),
                  "w_strides": (c.w_strides[0], *(
                      s * a.filter_step for s, a in zip(c.w_strides[4:], (y_axis, x_axis)))),
                  "w_first": sum(a.phases[0][0] * s for s, a in zip(
                      c.w_strides[4:], (y_axis, x_axis))),
                  "bias_stride": layer.bias_stride, "activation_at": 0},
            spec=spec | more)


@dataclass(frozen=True)
class _Last(Depthwise):
    """Channels come last, in fours. Large blocks read less, if they are enough for all cores: if
    each has so many invocations. Blocks without a figure were never the fastest."""

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        return super().serves(layer, traits) or (
            None if _is_of_fours(layer) else "channels do not come last, in fours")

    def estimate(self, layer: Layer, traits: DeviceTraits) -> float:
        invocations = self.blocks(layer) * layer.c.groups // _CHANNELS
        if self.block == "last1x1":
            return 0.01  # it fills the most cores
        least = measured.figures(traits.device_class, SHADER).get(f"invocations_{self.block}")
        return 0.1 if least is None or invocations < traits.cores * least else 1 / least / 1000

    def constants(self, layer: Layer) -> Constants:
        c, (y, x) = layer.c, layer.c.axes[1:]
        fours = c.groups // _CHANNELS
        most = min(64, _SHARED_FOURS // (y.filter_size * x.filter_size))
        lanes = max(n for n in range(1, most + 1) if fours % n == 0)
        if 4 * lanes < min(fours, most):
            lanes = min(fours, most)
        places = _INVOCATIONS // lanes
        lines, span = [
            (n - 1) * a.input_step + (a.filter_size - 1) * a.tap_step + 1
            for n, a in zip(self.size(layer), (y, x))]
        return -(-fours // lanes) * -(-self.blocks(layer) // places), {
            "LOCAL_SIZE": lanes * places, "LANES": lanes,
            "EARLY": min(max(_EARLY // span, 1), lines)}


@dataclass(frozen=True)
class _OfBytes(_Last):
    """The same, of bytes: their sums, or floats or bytes made of them."""

    def shader(self, layer: Layer) -> str:
        to = {"sums": "sums", "scaled": "floats", "quantized": "bytes"}[layer.ends]
        return layer.variant(f"{BYTES}.{to}.{self.block}")

    def lower(self, layer: Layer, p: PlanBuilder) -> None:
        c, fused, (y_axis, x_axis) = layer.c, layer.fused, layer.c.axes[1:]
        (zeros, of, strides), end = ends.of_bytes(p), ends.End(p, layer)
        groups, more = self.constants(layer)
        del more["EARLY"]
        spec = {**of, **end.spec, **end.range, **more}
        if layer.ends == "quantized":
            spec |= {"HAS_INPUT_SCALE": True, "OUTPUT_TYPE": layer.output_code}
        for name, axis in (("Y", y_axis), ("X", x_axis)):
            spec |= {f"TAPS_{name}": axis.filter_size, f"STRIDE_{name}": axis.input_step,
                     f"DILATION_{name}": axis.tap_step, f"PADDING_{name}": -axis.phases[0][2]}
        operands: dict[str, Any] = {**zeros, **end.operands}
        if layer.ends == "scaled":
            operands |= {**p.read_tail(), **made_range(p), "params": fused.words or (0,)}
        p.dispatch(
            self.shader(layer), groups,
            x=p.read("input_tensor"), w=p.read("filter_tensor"), y=p.write("output_tensor"),
            **operands,
            push={"batches": c.batches, "channels": c.groups,
                  "x_sizes": (y_axis.in_size, x_axis.in_size),
                  "y_sizes": (y_axis.out_size, x_axis.out_size),
                  "x_strides": (c.x_strides[0], *c.x_strides[3:]),
                  "y_strides": (c.y_strides[0], *c.y_strides[3:]),
                  "w_strides": (c.w_strides[0], *c.w_strides[4:]), **strides, **end.strides},
            spec=spec)


@dataclass(frozen=True)
class _First(Depthwise):
    """Channels come first, or lie in any order. Columns are one, or two halves."""

    cost = 0.05

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        return super().serves(layer, traits) or (
            "channels come last, in fours" if _is_of_fours(layer) else None)

    def constants(self, layer: Layer) -> Constants:
        c, (y, x) = layer.c, layer.c.axes[1:]
        # FLOAT16 moves in words of two, if all rows are whole words.
        strides = (*c.x_strides[:2], c.x_strides[3], *c.y_strides[:2], c.y_strides[3])
        pairs = (layer.type.itemsize == 2 and c.x_strides[4] == c.y_strides[4] == 1
                 and layer.x.is_aligned and layer.tensor("output_tensor").is_aligned
                 and not any(n % 2 for n in (*strides, x.in_size, x.out_size))
                 and x.input_step + x.tap_step * (x.filter_size - 1) < _MAX_SPAN)
        neighbours = 2 if pairs else 1
        lines = -(-x.out_size // neighbours) * -(-y.out_size // self.size(layer)[0])
        return -(-c.batches * c.groups * lines // _INVOCATIONS), {
            "LOCAL_SIZE": _INVOCATIONS, "EACH": neighbours, "ODD": _padding(c)[1] % 2}


@dataclass(frozen=True)
class _DepthwiseRows(_First):
    """Rows in chunks of words: a window stays in registers."""

    rows: int

    def shader(self, layer: Layer) -> str:
        return layer.variant(ROWS)

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        return super().serves(layer, traits) or (
            None if _chunks(layer) else "rows are no whole words, or taps and strides too many")

    def size(self, layer: Layer) -> tuple[int, int]:
        chunk = _chunks(layer) * 4 // layer.type.itemsize
        return self.rows, _columns(chunk, layer.c.axes[2].input_step, layer.type.itemsize)

    def estimate(self, layer: Layer, traits: DeviceTraits) -> float:
        """It is the fastest with 3 x 3 taps up to some strides, if each core has so many
        invocations."""
        c, (y, x), words = layer.c, layer.c.axes[1:], _chunks(layer)
        step, known = x.input_step, measured.figures(traits.device_class, ROWS)
        most, least = (known[f"{name}_{self.rows}"] for name in ("stride", "invocations"))
        faster = (not traits.is_cpu and y.filter_size == x.filter_size == 3
                  and y.input_step == step and step <= most
                  and (words == 4 or (step == 1 and layer.type.itemsize == 2))
                  and self.blocks(layer) * c.groups >= traits.cores * least)
        return (0 if faster else 0.1) + 0.001 / self.rows

    def constants(self, layer: Layer) -> Constants:
        c, x, (rows, columns), words = layer.c, layer.c.axes[2], self.size(layer), _chunks(layer)
        padding = _padding(c)[1]
        phase = -padding % (words * 4 // layer.type.itemsize)
        last = (x.out_size - columns) * x.input_step - padding - phase  # where chunks begin
        return -(-self.blocks(layer) * c.groups // _INVOCATIONS), {
            "LOCAL_SIZE": _INVOCATIONS, "COLUMNS": columns, "ROWS": rows,
            "WORDS": words, "PHASE": phase, "SURE_FROM": padding + phase,
            "SURE_TO": max(x.in_size - last, 0)}


def _columns(chunk: int, stride: int, item: int) -> int:
    """Columns of an invocation of ROWS: whole words, whose windows all begin at the same place of a
    chunk of so many elements."""
    return max(chunk // gcd(chunk, stride), 4 // item)


def _chunks(layer: Layer) -> int:
    """The most words of the chunks that make up all rows, or 0 where ROWS cannot read and write
    them."""
    c, (y, x) = layer.c, layer.c.axes[1:]
    if (c.x_strides[4] != 1 or c.y_strides[4] != 1
            or not (layer.x.is_aligned and layer.tensor("output_tensor").is_aligned)
            or any(a.filter_size > _MAX_KEPT or a.input_step > _MAX_STRIDE or a.tap_step != 1
                   for a in (y, x))):
        return 0
    item = layer.type.itemsize
    read = gcd(*c.x_strides[:2], c.x_strides[3], x.in_size)
    written = gcd(*c.y_strides[:2], c.y_strides[3], x.out_size)
    return next((n for n in (4, 2, 1) if read % (n * 4 // item) == 0
                 and written % _columns(n * 4 // item, x.input_step, item) == 0), 0)


def _is_of_fours(layer: Layer) -> bool:
    """Whether channels of input and output come last, in fours, as those of a tail do."""
    c = layer.c
    return c.groups % _CHANNELS == 0 and layer.tail_is_aligned and all(
        _of_fours(layer, slot, strides) for slot, strides in (
            ("input_tensor", c.x_strides), ("output_tensor", c.y_strides)))


def _of_fours(layer: Layer, slot: str, strides: Ints) -> bool:
    """Whether channels are contiguous, in whole groups of _CHANNELS."""
    others = (strides[0], *strides[2:])
    return (layer.tensor(slot).is_aligned and strides[1] == 1
            and not any(s % _CHANNELS for s in others))


def _padding(c: Problem) -> Ints:
    """Along y and x, before the first element."""
    return tuple(-a.phases[0][2] for a in c.axes[1:])


class Direct(Kernel[Layer]):
    """A sum in each invocation, for narrow groups of any layout."""

    name = "direct"
    cost = 1.0

    def shader(self, layer: Layer) -> str:
        return layer.variant(DIRECT)

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        return None if layer.is_narrow else "not several groups of few channels"

    def lower(self, layer: Layer, p: PlanBuilder) -> None:
        c = layer.c
        words = c.words(c.y_strides)
        along_rows, channels = c.y_strides[1] >= c.y_strides[-1], c.groups * c.out_channels
        fast, slow = (c.rows, channels) if along_rows else (channels, c.rows)
        push = c.push((1, 1, 1), 1, c.y_strides)
        for unused in ("row_tiles", "column_tiles", "splits", "steps"):
            del push[unused]
        p.dispatch(
            self.shader(layer), -(-(-(-fast // 2) * slow * c.phases) // _INVOCATIONS),
            x=p.read("input_tensor"), w=p.read("filter_tensor"), y=p.write("output_tensor"),
            bias=p.read("bias_tensor"),
            **p.read_tail(), params=[*words, *layer.fused.words],
            push={**push, "rows": c.rows, "bias_stride": layer.bias_stride,
                  "activation_at": len(words)},
            spec={"LOCAL_SIZE": _INVOCATIONS, "TYPE": layer.type.code, "ALONG_ROWS": along_rows,
                  "HAS_BIAS": layer.tensor("bias_tensor") is not None, **layer.fused.spec})


OF_FLOATS: tuple[Kernel[Layer], ...] = (
    *(_Last(f"last{block}") for block in ("2x4", "1x4", "4x2", "1x8", "1x1")), _First("first"),
    _DepthwiseRows("rows7", 7), _DepthwiseRows("rows4", 4), Direct())
OF_BYTES: tuple[Kernel[Layer], ...] = tuple(
    _OfBytes(f"last{block}") for block in ("2x4", "1x4", "1x1"))
