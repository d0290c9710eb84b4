"""Gradients of operators. Each element sums its contributions in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..desc import TensorDesc
from ..dtypes import DataType, saturate
from ..errors import UnsupportedError, expect
from ..layout import begin_with_vectors, is_packed, packed_strides, product
from ..lowering import copy, measured
from ..lowering.builder import PlanBuilder
from ..lowering.copy import CopyView, copied
from ..lowering.elementwise import float_bits
from ..lowering.kernel import Kernel, choose
from ..lowering.plan import UNUSED
from ..lowering.walk import Walk, reciprocal
from ..runtime.traits import DeviceTraits
from ..tuning import work_key
from .base import OperatorDesc, like, operator
from .elementwise import row
from .fill_value import SHADER, fill
from .movement import slice1_begins, slice1_sizes, slice1_view
from .normalization import check_neighbours, refuse_long_windows

_LARGE = 1 << 31
"""Fewer elements have signed distances."""


def refuse_long_sums(d: OperatorDesc, p: PlanBuilder, loops: Sequence[int]) -> None:
    """Raise if a driver would end nested loops too early."""
    passes = sum(product(loops[: i + 1]) for i in range(len(loops)))
    if passes > (most := p.device.max_loop_passes):
        raise UnsupportedError(
            f"{d.operator.name}: up to {product(loops)} elements for one: more than {most}, "
            "with those of the loops around, are not supported on this device")


row("ACTIVATION_RELU_GRAD", shader="relu_grad")
for _name in ("CLIP_GRAD", "CLIP_GRAD1"):
    row(f"ELEMENT_WISE_{_name}", shader="clip_grad")


# Slices


def _check_slice(d: OperatorDesc, strict: bool) -> None:
    most = slice1_sizes(d, "OutputGradientTensor")
    for i, (n, m) in enumerate(zip(d.input_gradient_tensor.sizes, most)):
        expect(n <= m, d.operator.name, f"InputGradientTensor.Sizes[{i}]",
               f"be at most {m} (what the window and its stride make)", n)


@dataclass(frozen=True)
class Sliced:
    """The gradient of a slice, whose steps may go backwards."""

    desc: OperatorDesc

    @property
    def dx(self) -> TensorDesc:
        dx: TensorDesc = self.desc.output_gradient_tensor
        return dx

    @property
    def each(self) -> int:
        """Elements of a vector."""
        return 16 // self.dx.data_type.itemsize

    @property
    def work(self) -> str:
        return work_key(f"slice_grad {self.dx.data_type.width}", self.dx.element_count)


class _SlicedVectors(Kernel[Sliced]):
    """Zeros and elements in one store of a vector."""

    name = "vectors"
    constants_decide = True

    def shader(self, problem: Sliced) -> str:
        return f"slice_grad.{problem.dx.data_type.width}"

    def serves(self, problem: Sliced, traits: DeviceTraits) -> str | None:
        dx, each = problem.dx, problem.each
        if traits.is_cpu and (each <= 4 or abs(problem.desc.input_window_strides[-1]) == 1):
            return "a CPU gains where single elements of one or two bytes would be stored"
        if not (is_packed(dx.sizes, dx.strides) and dx.is_aligned and dx.sizes[-1] % each == 0):
            return "rows are no vectors"
        return None if dx.element_count < _LARGE else f"{_LARGE} elements or more"

    def lower(self, problem: Sliced, p: PlanBuilder) -> None:
        d, dx, each = problem.desc, problem.dx, problem.each
        dy = d.input_gradient_tensor
        begins = slice1_begins(d)
        *outer, row = zip(dx.sizes, begins, d.input_window_strides, dy.sizes, dy.strides)
        words: list[int] = []
        for size, begin, step, count, stride in _merged(outer):
            words[:0] = [size, *reciprocal(size), begin, int(step < 0), abs(step),
                         *reciprocal(abs(step)), count, stride]
        _, begin, step, count, stride = row
        # Whether all vectors meet as many steps, which one load brings.
        hits = each // abs(step)
        even = (step > 0 and hits * step == each and hits * dy.data_type.itemsize in (4, 8)
                and begin // step % hits == 0 and dy.is_aligned
                and begin_with_vectors(hits, dy.strides))
        vectors, per_row = dx.element_count // each, dx.sizes[-1] // each
        local_size = p.device.local_size
        p.dispatch(
            self.shader(problem), -(-vectors // local_size),
            x=p.read("input_gradient_tensor"), y=p.write("output_gradient_tensor"),
            params=words or [0],  # a single row has none
            push={"vectors": vectors, "per_row": [per_row, *reciprocal(per_row)], "begin": begin,
                  "count": count, "stride": stride},
            spec={"LOCAL_SIZE": local_size, "RANK": len(words) // _SLICE_WORDS,
                  "STEP": abs(step), "BACK": step < 0, "EVEN": even,
                  "PHASE": begin % step if even else 0})


class _ZerosAndCopy(Kernel[Sliced]):
    """Zeros, and then a copy of the elements to their places."""

    name = "copy"
    cost = 1.0

    def lower(self, problem: Sliced, p: PlanBuilder) -> None:
        d, dx, dy = problem.desc, problem.dx, problem.desc.input_gradient_tensor
        fill(p, "output_gradient_tensor", dx, saturate(0, dx.data_type))
        p.add(copied(p, dy.sizes, CopyView.whole("input_gradient_tensor", dy),
                     slice1_view(d, "output_gradient_tensor")))


SLICE_KERNELS: tuple[Kernel[Sliced], ...] = (_SlicedVectors(), _ZerosAndCopy())


@operator("SLICE_GRAD", shaders=("slice_grad", SHADER, *copy.SHADERS), check=_check_slice)
def SliceGradOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    problem = Sliced(d)
    choose(SLICE_KERNELS, problem, p).lower(problem, p)


_SLICE_WORDS = 10
"""WORDS of ``slice_grad.comp``."""
_Sliced = tuple[int, int, int, int, int]
"""A dimension: size, begin and step of the slice, the slice's size and stride."""


def _merged(dims: Sequence[_Sliced]) -> list[_Sliced]:
    """Neighbours that the slice takes whole become one. Dimensions of size 1 are left out."""
    merged: list[_Sliced] = []
    for size, begin, step, count, stride in dims:
        if size == 1:
            continue
        if merged and (begin, step, count) == (0, 1, size):
            before = merged[-1]
            if before[1:4] == (0, 1, before[0]) and before[4] == count * stride:
                merged[-1] = (before[0] * size, 0, 1, before[0] * size, stride)
                continue
        merged.append((size, begin, step, count, stride))
    return merged


# Neighbours


_LONGEST_KEPT = 8
"""The most elements of a window that an invocation keeps in registers."""
_CHANNELS_LOCAL_SIZE = 64
_ALONG_CHANNELS = "local_response_normalization_channels_grad"
_ALONG_HALVES = "local_response_normalization_channels_halves_grad"
_LEAST_NORMAL = 2.0**-126


@dataclass(frozen=True)
class Response:
    """The gradient of a sum of squares over neighbours."""

    desc: OperatorDesc

    @property
    def before(self) -> int:
        """Neighbours of a window before an element, and ..."""
        return (self.desc.local_size - 1) // 2

    @property
    def after(self) -> int:
        """... after it."""
        return self.desc.local_size // 2

    @property
    def floats(self) -> dict[str, int]:
        """Push fields of all kernels."""
        d = self.desc
        return {"alpha": float_bits(d.alpha / d.local_size), "beta": float_bits(d.beta),
                "bias": float_bits(d.bias)}

    @property
    def work(self) -> str:
        d = self.desc
        kind = f"lrn_grad {d.input_tensor.data_type.width}{' cross' if d.cross_channel else ''}"
        return work_key(kind, d.input_tensor.element_count, d.local_size)


class _AlongChannels(Kernel[Response]):
    """Each invocation goes along the channels, or a span of them, and reads them once."""

    name = "channels"

    def serves(self, problem: Response, traits: DeviceTraits) -> str | None:
        d = problem.desc
        if not d.cross_channel or traits.is_cpu:
            return "for neighbours among channels, on a GPU"
        return None if d.local_size <= _LONGEST_KEPT else (
            f"a window has more than {_LONGEST_KEPT} elements")

    def lower(self, problem: Response, p: PlanBuilder) -> None:
        d = problem.desc
        x, dy, dx = d.input_tensor, d.input_gradient_tensor, d.output_gradient_tensor
        channels, kept = x.sizes[1], [a for a in range(len(x.sizes)) if a != 1]
        tensors, last = (x, dy, dx), kept[-1]
        # Neighbours of FLOAT16 are read and written together.
        most = next((n for n in (4, 2) if x.data_type is DataType.FLOAT16
                     and x.sizes[last] % n == 0
                     and all(t.is_aligned and begin_with_vectors(n, t.strides, last)
                             for t in tensors)), 1)
        # Powers of halves need no cases of their own where every base is a normal number, or
        # infinite.
        plain = most > 1 and p.device.exact_units and d.alpha >= 0 and d.bias >= _LEAST_NORMAL
        shader = _ALONG_HALVES if plain else _ALONG_CHANNELS
        variant = p.library.get(*measured.roomy(p.device.device_class, [
            f"{shader}.p{n}" for n in ((4, 2) if plain else (4, 2, 1)) if n <= most]).split("."))
        places = variant.sizes["places"]
        sizes = [x.sizes[a] // (places if a == last else 1) for a in kept]
        walk = Walk(sizes, *([t.strides[a] * (places if a == last else 1) for a in kept]
                             for t in tensors))
        # Of invocations a core needs so many to hide the latency of reads.
        busy = measured.count(p.device, _ALONG_CHANNELS, "busy") * p.device.cores
        spans = max(1, min(busy // walk.count, channels // (4 * d.local_size)))
        span = -(-channels // spans)
        spans = -(-channels // span)
        groups = -(-walk.count * spans // _CHANNELS_LOCAL_SIZE)
        spec = {"LOCAL_SIZE": _CHANNELS_LOCAL_SIZE, "BEFORE": problem.before,
                "AFTER": problem.after, "THREE_QUARTERS": d.beta == 0.75 and p.device.exact_units}
        if not plain:
            spec["TYPE"] = x.data_type.code
        p.dispatch(
            variant, groups,
            x=p.read("input_tensor"), dy=p.read("input_gradient_tensor"),
            dx=p.write("output_gradient_tensor"), params=walk.words,
            push={"places": walk.count, "channels": channels, "span": span, "spans": spans,
                  "x_step": x.strides[1], "dy_step": dy.strides[1], "dx_step": dx.strides[1],
                  **problem.floats},
            spec=spec)


class _FactorsAndSums(Kernel[Response]):
    """A factor of each element, and then the sums over them."""

    name = "factors"
    cost = 1.0

    def lower(self, problem: Response, p: PlanBuilder) -> None:
        d, cross, x = problem.desc, bool(problem.desc.cross_channel), problem.desc.input_tensor
        across, along = ((0,) * 4, (0, 1, 0, 0)) if cross else ((0, 0, 1, 0), (0, 0, 0, 1))
        walk = Walk(x.sizes, x.strides, d.input_gradient_tensor.strides,
                    d.output_gradient_tensor.strides, across, along)
        local_size, before, after = p.device.local_size, problem.before, problem.after
        parts = p.temporary(4, 2 * x.element_count)
        packed = tuple(2 * s for s in packed_strides(x.sizes))
        for step, steps, window, operand, dx in (
            ("factors", x.strides, (before, after), parts, UNUSED),
            ("sums", packed, (after, before), parts.reading(), p.write("output_gradient_tensor")),
        ):
            p.dispatch(
                f"local_response_normalization_grad.{step}", -(-walk.count // local_size),
                x=p.read("input_tensor"), dy=p.read("input_gradient_tensor"), parts=operand,
                dx=dx, params=walk.words,
                push={"count": walk.count, "sizes": x.sizes, "steps": steps,
                      "before": window[0], "after": window[1], **problem.floats},
                spec={"LOCAL_SIZE": local_size, "TYPE": x.data_type.code,
                      "CROSS_CHANNEL": cross})


RESPONSE_KERNELS: tuple[Kernel[Response], ...] = (_AlongChannels(), _FactorsAndSums())


@operator("LOCAL_RESPONSE_NORMALIZATION_GRAD", output=like("input_tensor"),
          shaders=("local_response_normalization_grad",
                   _ALONG_CHANNELS, _ALONG_HALVES), check=check_neighbours,
          cross_channel=True, alpha=1e-4, beta=0.75, bias=1.0)
def LocalResponseNormalizationGradOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    refuse_long_windows(d, p)
    problem = Response(d)
    choose(RESPONSE_KERNELS, problem, p).lower(problem, p)
