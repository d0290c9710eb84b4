"""Resampling: the nearest element of the input, or a blend of neighbours, at other coordinates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..attributes import AxisDirection, InterpolationMode
from ..dtypes import DataType
from ..errors import UnsupportedError, expect
from ..layout import Ints, begin_with_vectors, product
from ..lowering.builder import PlanBuilder
from ..lowering.coordinates import DOWN, HALVES_UP, UP, Affine
from ..lowering.elementwise import float_bits
from ..lowering.kernel import Kernel, choose
from ..lowering.neighbours import Neighbours
from ..lowering.planes import General, Images, Planes, block_strides
from ..runtime.traits import LEAST_LOOP_PASSES, DeviceTraits
from ..sizes import is_open
from .base import OperatorDesc, Output, operator

if TYPE_CHECKING:
    from ..desc import TensorDesc

_MOST_SAMPLES = 1 << (LEAST_LOOP_PASSES.bit_length() - 1)
"""The most samples of an antialiased element, a power of two."""
_MOST_SPAN = 6
_MOST_TAPS, _MOST_REPEATED = 16, 1 << 16
"""The most taps of a block along an axis, and the longest axis that is searched for repetition."""
_LOCAL_SIZE = 256


class _ResampledAxis(NamedTuple):
    """A resampled dimension."""

    dimension: int
    line: Affine
    scale: float
    sample_bits: int = 0


def check_scales(desc: OperatorDesc, rank: int) -> None:
    """Raise unless scales and offsets are finite numbers, one for each dimension."""
    name = desc.operator.name
    for field, values in (("Scales", desc.scales),
                          ("InputPixelOffsets", getattr(desc, "input_pixel_offsets", None)),
                          ("OutputPixelOffsets", getattr(desc, "output_pixel_offsets", None))):
        if values is None:
            continue
        expect(len(values) == rank, name, field, f"have {rank} elements, one for each dimension",
               list(values))
        for i, value in enumerate(values):
            rounded = float(np.float32(value)) if abs(value) < 3.5e38 else math.inf
            expect(math.isfinite(rounded), name, f"{field}[{i}]", "be finite", value)
            if field == "Scales":
                expect(rounded > 0, name, f"{field}[{i}]", "be above 0", value)


def _check(desc: OperatorDesc, strict: bool) -> None:
    for n in (*desc.input_tensor.sizes, *desc.output_tensor.sizes):
        expect(n < 1 << 24, desc.operator.name, "InputTensor.Sizes and OutputTensor.Sizes",
               "be below 2^24 (coordinates are FLOAT32)", n)
    axes = _axes(desc)
    if sum(a.sample_bits for a in axes) > math.log2(_MOST_SAMPLES):
        raise UnsupportedError(f"{desc.operator.name}: antialiasing with scales "
                               f"{[a.scale for a in axes]}: more than {_MOST_SAMPLES} samples for "
                               "an element are not supported")


def _output(desc: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    """The output tensor's own sizes. Without one, the input's sizes times the scales, rounded
    down."""
    x, y = desc.input_tensor, desc.output_tensor
    check_scales(desc, x.dimension_count)
    sizes = y.sizes if y is not None else tuple(
        int(min(max(float(np.float32(n * s)), 1.0), 2.0**32 - 1))
        for n, s in zip(x.sizes, desc.scales))
    return {"output_tensor": Output(sizes, x.data_type)}


def _upsampled(desc: OperatorDesc) -> Mapping[str, Output | list[Output]]:
    x, scale = desc.input_tensor, desc.scale_size
    expect(min(scale.width, scale.height) >= 1 and max(scale.width, scale.height) < 1 << 24,
           desc.operator.name, "ScaleSize", "be in [1, 2^24)", scale)
    *outer, height, width = x.sizes
    return {"output_tensor": Output((*outer, height * scale.height, width * scale.width),
                                    x.data_type)}


def _sample_bits(scale: float) -> int:
    """b for the smallest 2^b that makes 2^b * scale at least 1/2."""
    return max(math.ceil(math.log2(0.5 / scale)), 0)


def _axes(d: OperatorDesc) -> list[_ResampledAxis]:
    """The dimensions that are resampled."""
    x, y = d.input_tensor, d.output_tensor
    rank = x.dimension_count
    if hasattr(d, "scale_size"):
        scales = (1.0,) * (rank - 2) + (float(d.scale_size.height), float(d.scale_size.width))
    else:
        scales = d.scales
    in_offsets = getattr(d, "input_pixel_offsets", (0.5,) * rank)
    out_offsets = getattr(d, "output_pixel_offsets", (-0.5,) * rank)
    antialiased = getattr(d, "antialiased", 0) and d.interpolation_mode == InterpolationMode.LINEAR
    result = []
    for i in range(rank):
        scale = float(np.float32(scales[i]))
        same = scale == 1.0 and in_offsets[i] == -out_offsets[i] and x.sizes[i] == y.sizes[i]
        if not same:
            bits = _sample_bits(scale) if antialiased and scale < 0.5 else 0
            line = Affine.of_scale(x.sizes[i], y.sizes[i], scale, in_offsets[i], out_offsets[i])
            result.append(_ResampledAxis(i, line, scale, bits))
    return result


def rounding_of(d: OperatorDesc) -> int:
    """The rounding of the nearest neighbour's coordinate."""
    if not hasattr(d, "rounding_direction"):
        return HALVES_UP
    return UP if d.rounding_direction == AxisDirection.INCREASING else DOWN


class _BlocksOfAxis(NamedTuple):
    """An axis whose blocks of output have equal weights and equally spaced taps."""

    begin: int
    step: int
    """Elements of the input from block to block."""
    span: int
    firsts: int
    """The first tap of each output, 4 bits each."""
    weights: tuple[float, ...]
    """Weights of the second taps."""


def _blocks(axis: _ResampledAxis, in_size: int, out_size: int, block: int) -> _BlocksOfAxis | None:
    if out_size > _MOST_REPEATED:
        return None
    if is_open(in_size) or is_open(out_size):
        return _blocks_of_any_size(axis.line, in_size, out_size, block)
    place = axis.line.float_places(out_size, in_size)
    firsts = np.floor(place).astype(np.int64)
    number, at = np.divmod(np.arange(out_size), block)
    step = int(firsts[block] - firsts[0]) if out_size > block else 0
    weights, near = (place - firsts)[:block], (firsts - firsts[0])[:block]
    if (near.min() < 0 or near.max() + 2 > _MOST_TAPS
            or (firsts != firsts[0] + number * step + near[at]).any()
            or (place - firsts != weights[at]).any()):
        return None
    return _BlocksOfAxis(int(firsts[0]), step, int(near.max()) + 2,
                   sum(int(n) << 4 * i for i, n in enumerate(near)), tuple(map(float, weights)))


def _blocks_of_any_size(
    line: Affine, in_size: int, out_size: int, block: int
) -> _BlocksOfAxis | None:
    """The same where FLOAT32 is exact: then blocks are alike if whole elements lie between them."""
    step, first, divisor = line
    if (divisor & (divisor - 1) or step * block % divisor or out_size <= block
            or step * out_size + abs(first) >= 1 << 24 or first < -divisor
            or step * (out_size - 1) + first > in_size * divisor):
        return None
    taps = [divmod(step * i + first, divisor) for i in range(block)]
    near = [tap - taps[0][0] for tap, _ in taps]
    return None if near[-1] + 2 > _MOST_TAPS else _BlocksOfAxis(
        taps[0][0], step * block // divisor, near[-1] + 2,
        sum(n << 4 * i for i, n in enumerate(near)), tuple(rest / divisor for _, rest in taps))


class _ResampleBlocks(NamedTuple):
    """The blocks of planes."""

    name: str
    block: tuple[int, int]
    channels: int
    """Vectors of channels, if they come last."""
    blocks: list[_BlocksOfAxis | None]


def _layout_of(d: OperatorDesc) -> _ResampleBlocks | None:
    x, y, axes = d.input_tensor, d.output_tensor, _axes(d)
    each = 16 // x.data_type.itemsize
    if (y.dimension_count != 4 or sorted(a.dimension for a in axes) != [2, 3]
            or any(a.sample_bits for a in axes) or x.data_type not in (
                DataType.FLOAT16, DataType.FLOAT32) or not (x.is_aligned and y.is_aligned)):
        return None

    def of_vectors(t: TensorDesc, inner: int) -> bool:
        return t.sizes[inner] % each == 0 and begin_with_vectors(each, t.strides, inner)

    if of_vectors(y, 3):
        layout, block, channels = "first", (4, each), x.sizes[1]
    elif of_vectors(y, 1) and of_vectors(x, 1):
        layout, block, channels = "last", (2, 2), x.sizes[1] // each
    else:
        return None
    return _ResampleBlocks(layout, block, channels, [
        _blocks(a, x.sizes[a.dimension], y.sizes[a.dimension], n)
        for a, n in zip(sorted(axes), block)])


class _PlanesOfResample(Planes):
    """Linear, along rows and columns whose blocks are alike."""

    def serves(self, problem: Images, traits: DeviceTraits) -> str | None:
        if problem.desc.interpolation_mode != InterpolationMode.LINEAR:
            return "it is not linear"
        layout = _layout_of(problem.desc)
        if layout is None:
            return "not aligned planes of floats whose rows or channels are vectors"
        return "blocks of places differ" if None in layout.blocks else None

    def lower(self, problem: Images, p: PlanBuilder) -> None:
        x, y, planes = problem.desc.input_tensor, problem.y, _layout_of(problem.desc)
        assert planes is not None
        layout, block, channels, axes = planes
        each = 16 // x.data_type.itemsize
        down, across = (f for f in axes if f is not None)

        def weights(axis: str, values: tuple[float, ...]) -> dict[str, int]:
            return {f"WEIGHT_{axis}{i}": float_bits(w) for i, w in enumerate(values)}

        step = each if layout == "last" else 1
        # What a block takes is a chunk, and a few elements beside it.
        nbytes, chunks = across.step * x.data_type.itemsize, {}
        if (layout == "first" and nbytes in (4, 8, 16)
                and 0 <= -across.begin <= across.span - across.step
                and x.sizes[3] * block[1] == y.sizes[3] * across.step
                and begin_with_vectors(across.step, x.strides, 3)):
            chunks = {"WORDS": nbytes // 4, "LEAD": -across.begin}
        blocks = product([-(-y.sizes[i] // n) for i, n in zip((2, 3), block)])
        p.dispatch(
            f"resample_planes.{layout}", -(-x.sizes[0] * channels * blocks // _LOCAL_SIZE),
            x=p.read("input_tensor"), y=p.write("output_tensor"),
            push={"batches": x.sizes[0], "channels": channels, "x_sizes": x.sizes[2:],
                  "y_sizes": y.sizes[2:], "begin": (down.begin, across.begin),
                  "x_strides": block_strides(x, step), "y_strides": block_strides(y, step),
                  "step": (down.step, across.step)},
            spec={"LOCAL_SIZE": _LOCAL_SIZE, "TYPE": x.data_type.code, "ROWS": block[0],
                  "COLUMNS": block[1], "SPAN_Y": down.span, "SPAN_X": across.span,
                  "FIRST_Y": down.firsts, "FIRST_X": across.firsts, **chunks,
                  **weights("Y", down.weights), **weights("X", across.weights)})


class _AnyResample(General):
    def lower(self, problem: Images, p: PlanBuilder) -> None:
        d, x, y = problem.desc, problem.desc.input_tensor, problem.y
        axes, linear = _axes(d), d.interpolation_mode == InterpolationMode.LINEAR
        rank, near = y.dimension_count, Neighbours(y, p.device)
        inner, resampled = near.inner, [a.dimension for a in axes]
        along = inner in resampled
        if along:  # along the last axis
            axes = [a for a in axes if a.dimension != inner] + [
                a for a in axes if a.dimension == inner]
        elif x.strides[inner] != 1:
            near.each = 1
        each = near.each
        span = 0
        if along and linear and each > 1:
            # One for the second tap, one for rounding.
            reach = math.floor((each - 1) / axes[-1].scale + 1e-3) + 3
            span = reach if reach <= _MOST_SPAN and reach < 2 * each else 0
            if span and p.device.is_cpu:
                span = _MOST_SPAN  # one pipeline for all scales
        columns: list[Ints] = [y.strides, tuple(0 if i in resampled else s
                                                for i, s in enumerate(x.strides))]
        for k in range(4):
            columns.append(tuple(
                int(k < len(axes) and axes[k].dimension == i) for i in range(rank)))
        walk = near.walk(*columns)

        push: dict[str, Any] = {
            "count": walk.count,
            "in_sizes": four([x.sizes[a.dimension] for a in axes]),
            "x_strides": four([x.strides[a.dimension] for a in axes])}
        spec = {"LOCAL_SIZE": p.device.local_size, "TYPE": x.data_type.code, "AXES": len(axes),
                "EACH": each, "ALONG_AXIS": along, "VECTORS": not along and near.are_vectors(x)}
        words = list(walk.words)
        if linear:
            for i, name in enumerate(("steps", "firsts", "divisors")):
                push[name] = four([float_bits(float(a.line.floats[i])) for a in axes])
            push["sample_bits"] = four([a.sample_bits for a in axes])
            spec |= {"SPAN": span, "IEEE_UNITS": p.device.ieee_units}
        else:
            lines = [a.line.rounded(rounding_of(d)) for a in axes]
            numbers = [line.words(y.sizes[a.dimension]) for a, line in zip(axes, lines)]
            spec["TABLES"] = None in numbers
            if None in numbers:
                numbers = []
                for axis, line in zip(axes, lines):
                    numbers.append((len(words), 0, 0, 0))
                    words += line.floors(y.sizes[axis.dimension], x.sizes[axis.dimension]).tolist()
            for i, name in enumerate(("steps", "firsts", "multipliers", "shifts")):
                push[name] = four([n[i] for n in numbers if n is not None])
        p.dispatch(
            f"resample.{'linear' if linear else 'nearest'}", -(-walk.count // p.device.local_size),
            x=p.read("input_tensor"), y=p.write("output_tensor"), params=words, push=push,
            spec=spec)


def four(values: list[int]) -> Ints:
    """Four numbers, the last of which may be 0."""
    return (*values, *(0,) * (4 - len(values)))


KERNELS: tuple[Kernel[Images], ...] = (_PlanesOfResample(), _AnyResample())


def _resample(d: OperatorDesc, p: PlanBuilder) -> None:
    problem = Images(d, "resample", d.output_tensor)
    choose(KERNELS, problem, p).lower(problem, p)


_SHADERS = ("resample", "resample_planes")
_LINEAR = InterpolationMode.LINEAR

Upsample2dOperatorDesc = operator(
    "UPSAMPLE_2D", output=_upsampled, shaders=_SHADERS, check=_check,
    interpolation_mode=InterpolationMode.NEAREST_NEIGHBOR)(_resample)
ResampleOperatorDesc = operator(
    "RESAMPLE", output=_output, shaders=_SHADERS, check=_check,
    interpolation_mode=_LINEAR)(_resample)
Resample1OperatorDesc = operator(
    "RESAMPLE1", output=_output, shaders=_SHADERS, check=_check,
    interpolation_mode=_LINEAR)(_resample)
Resample2OperatorDesc = operator(
    "RESAMPLE2", output=_output, shaders=_SHADERS, check=_check, interpolation_mode=_LINEAR,
    rounding_direction=AxisDirection.DECREASING)(_resample)
Resample3OperatorDesc = operator(
    "RESAMPLE3", output=_output, shaders=_SHADERS, check=_check, interpolation_mode=_LINEAR,
    rounding_direction=AxisDirection.DECREASING, antialiased=0)(_resample)
