"""Measuring the kernels that lowerings choose from, for :mod:`kompute_dml.tuning` to keep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import tuning
from ..cases import Scale
from ..device import Device
from ..dtypes import DataType
from .attention import attention
from .case import Case, Recipe
from .convolution import convolution
from .gemm import gemm
from .limits import HEADS, LAYERS
from .pooling import pooling
from .products import BenchProduct, product
from .quantized_convolution import quantized_convolution
from .reduction import first_k
from .resampling import resampled
from .timing import Loop, measure, repeats
from .training import GRADIENTS

_WORTH = 1.03
"""The speedup from which a kernel replaces the default one. Less may be noise."""
_HOPELESS = 2.0
"""A kernel that once took so many times as long as the best is not measured again."""
_SAMPLE_MS = 1.0


@dataclass(frozen=True)
class TuningChoice:
    """The measurements of one piece of work."""

    case: Case
    work: str
    ms: dict[str, float]
    """Milliseconds by kernel, the default first. Kernels with wrong values are left out."""
    wrong: dict[str, str]
    """What is wrong with the values of the other kernels."""

    @property
    def best(self) -> str:
        first = next(iter(self.ms))
        best = min(self.ms, key=lambda name: self.ms[name])
        return best if self.ms[first] / self.ms[best] >= _WORTH else first


def recipes() -> Iterator[Recipe]:
    """The cases to tune, at full scale: products of integers and of floats, layers of convolutions,
    TOP_K, attention, then pooling, resampling and their gradients. Products take turns by their
    numbers of rows (1, 32, ...), so that a run cut short has measured each number."""
    for k, n in ((1024, 1024), (4096, 4096), (512, 512), (512, 2048), (2048, 512),
                 (4096, 16384), (16384, 4096)):
        for m in (1, 32, 512, 4, 16, 128, 2048):
            for along in (True, False):
                yield product(BenchProduct(k_contiguous_b=along, full=True), m, k, n)
                yield gemm(DataType.FLOAT16, m, k, n, trans_b=along)
            yield gemm(DataType.FLOAT32, m, k, n)
    for layer in LAYERS:
        for data_type in (DataType.FLOAT16, DataType.FLOAT32):
            yield convolution(data_type, layer, constant=False)
            if layer.groups > 1:  # the kernels for other layouts are others
                yield convolution(data_type, layer, channels_last=False, constant=False)
        if layer.groups == layer.stride == 1:
            yield quantized_convolution(layer)
    for rows, columns in ((65536, 2048), (16384, 16384), (512, 131072)):
        for data_type in (DataType.FLOAT32, DataType.FLOAT16):
            yield first_k(data_type, rows, columns)
    for heads, *_ in HEADS:
        yield attention(heads)
    for data_type in (DataType.FLOAT32, DataType.FLOAT16):
        for last in (False, True):
            for what in ("max", "average"):
                yield pooling(data_type, what, last)
        yield resampled(data_type)
    yield from (r for r in GRADIENTS if "POOLING" in r.operator or "RESAMPLE" in r.operator)


def choices(
    device: Device, recipe: Recipe, scale: Scale, loop: Loop | None = None
) -> Iterator[TuningChoice]:
    """The time of each kernel, for each choice that the lowering of a case has."""
    for case in recipe.make(device, scale):
        device.compiled.clear()
        with tuning.trial({}) as first:
            case.dispatch()
        for work, names in first.asked.items():
            times: dict[str, float] = {}
            wrong: dict[str, str] = {}
            for name in names if len(names) > 1 else ():
                device.compiled.clear()
                with tuning.trial({work: name}):
                    if problem := case.check(case.dispatch()):
                        wrong[name] = problem
                    else:
                        times[name] = _time(device, case, loop, min(times.values(), default=None))
            if times:
                yield TuningChoice(case, work, times, wrong)
    device.compiled.clear()  # they use kernels from before the choice


def _time(device: Device, case: Case, loop: Loop | None, best: float | None) -> float:
    """Milliseconds of a dispatch, once it has run."""

    def median(loop: Loop) -> float:
        timings = measure(device, case.dispatch, loop)
        return (timings.gpu or timings.cpu).hot.median

    if loop is not None:
        return median(loop)
    once = median(Loop(iterations=2))
    if best is not None and once > _HOPELESS * best:
        return once
    return median(Loop(iterations=6, repeat=repeats(once, _SAMPLE_MS, 8)))
