"""Cases at the limits of a large GPU, and their goals.

A goal is a ratio of speeds: to copying the bytes that the case needs, to a peer of the same run,
or to another case. Or it is a number of operations per second, or of microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..dtypes import DataType
from .attention import Heads, attention
from .case import AS_MANY_BYTES, Goal, Recipe
from .convolution import BenchLayer, convolution
from .crossing import MEGABYTES, crossing, most_us
from .gather import gather_elements, gather_rows, nonzero, one_hot, scatter, scatter_rows
from .gemm import gemm, requantized
from .handover import handover
from .movement import (
    broadcast,
    diagonal,
    diagonal1,
    eight,
    identity,
    packed,
    padded,
    small_identities,
    transposed,
)
from .normalization import KINDS, ROWS, images, rows
from .planning import planning
from .pooling import pooling
from .products import BenchProduct, product
from .quantized_convolution import quantized_convolution
from .random import random_words
from .recurrent import recurrent
from .reduction import cumulative, first_k, reduction
from .resampling import aligned, resampled
from .training import GRADIENTS
from .transposed_convolution import transposed_convolution
from .weights import quantization, weights

_SIDE = 16384
_F32, _F16 = DataType.FLOAT32, DataType.FLOAT16
_GRAPH = "torch (graph)"
"""What small products and attention are held to: a launch would take longer than they do."""
_WIDTHS = (DataType.UINT8, DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64)


def _movement() -> Iterator[Recipe]:
    for t, columns in ((_F32, _SIDE), (_F16, 2 * _SIDE)):
        yield identity(t, "packed", packed(_SIDE, columns)).held_to(("copy", 0.97), ("torch", 1.0))
    for t in (_F32, _F16):
        flipped, straight = transposed(_SIDE, _SIDE), packed(_SIDE, _SIDE)
        for what, x, y in (("transposed in", flipped, None), ("transposed out", straight, flipped)):
            yield identity(t, what, x, y).held_to(("copy", 0.80), ("torch", 2.5))
    for t in (_F32, _F16):
        with_gaps = padded(_SIDE, _SIDE, 8)
        for what, x, y in (
            ("padded rows", with_gaps, with_gaps),
            ("broadcast rows", broadcast(_SIDE, _SIDE), None),
            ("outer axes permuted", eight(6, 2, 4, 0, 5, 1, 3, 7), None),
            ("axes reversed", eight(7, 6, 5, 4, 3, 2, 1, 0), None),
        ):
            yield identity(t, what, x, y).held_to(("copy", 0.70))
    for t in _WIDTHS:
        yield diagonal(t, packed(_SIDE, _SIDE)).held_to(("torch.fill", 0.95), ("torch.eye", 1.0))
    for t in _WIDTHS:
        yield diagonal(t, packed(4, _SIDE // 2, _SIDE // 2)).held_to(("torch.fill", 0.95))
    for t in _WIDTHS:
        for kept in ("upper", "lower", "band"):
            recipe = diagonal1(t, kept, packed(_SIDE, _SIDE))
            yield recipe.held_to(("torch", 1.2), ("copy", 0.90))
            if t is _F16:
                with_gaps = padded(_SIDE, _SIDE, 8)
                yield diagonal1(t, kept, packed(_SIDE, _SIDE), with_gaps).held_to((recipe, 0.5))
    yield small_identities(64, 1000).held_to(("us", 5.0))


def _products() -> Iterator[Recipe]:
    def full(out: DataType = _F32, k_contiguous_b: bool = True,
             compiled: bool = False) -> BenchProduct:
        return BenchProduct(out=out, k_contiguous_b=k_contiguous_b, full=True, compiled=compiled)

    cubes: dict[int, tuple[Goal, ...]] = {
        8192: (("torch", 1.5), ("torch.compile", 0.7)),
        4096: (("torch", 2.3), ("torch.compile", 0.8)),
        2048: (("torch.compile", 1.0),),
        1024: (("torch.compile", 1.0),),
    }
    usual: dict[bool, Recipe] = {}
    for side, goals in cubes.items():
        for out in (_F32, _F16):
            yield product(full(out, compiled=True), side, side, side).held_to(*goals)
        for out in (_F32, _F16):
            row_major = full(out, k_contiguous_b=False)
            yield product(row_major, side, side, side).held_to(("torch", 4.0))
        constant = BenchProduct(full=True, constant_b=True, compiled=True)
        yield product(constant, side, side, side).held_to(*goals)

    side = 4096
    for along in (True, False):
        usual[along] = product(BenchProduct(k_contiguous_b=along), side, side, side)
        yield usual[along]
    for kind in (
        BenchProduct(DataType.UINT8, DataType.INT8, k_contiguous_b=True),
        BenchProduct(DataType.UINT8, DataType.UINT8, k_contiguous_b=True),
    ):
        yield product(kind, side, side, side).held_to((usual[True], 0.95))
    for along in (True, False):
        for kind, sizes in (
            (BenchProduct(k_contiguous_b=along), (4095, 4097, 4093)),
            (BenchProduct(k_contiguous_b=along, m_contiguous_a=True), (side,) * 3),
            (BenchProduct(k_contiguous_b=along, padding=16), (side,) * 3),
            (BenchProduct(k_contiguous_b=along, padding=3), (side,) * 3),
        ):
            yield product(kind, *sizes).held_to((usual[along], 0.7))
    for along in (True, False):
        for k, n in ((4096, 4096), (4096, 11008), (4096, 14336), (14336, 4096)):
            for m in (1, 4, 16):
                for independent in (False, True):
                    kind = BenchProduct(k_contiguous_b=along, cold=True, independent=independent)
                    yield product(kind, m, k, n).held_to(("copy", 0.80))
    for k, n in ((384, 384), (384, 1536), (1536, 384), (768, 768), (1536, 1536), (4096, 4096)):
        for m in (128, 384, 512):
            kind = BenchProduct(k_contiguous_b=True)
            yield product(kind, m, k, n).held_to(("torch._int_mm", 1.0))
    for along in (True, False):
        kind = BenchProduct(k_contiguous_b=along, batches=12)
        yield product(kind, 128, 64, 128).held_to(("torch._int_mm", 1.0))
    for t, side, least in ((DataType.INT16, 4096, 3.0), (DataType.INT32, 2048, 1.0)):
        yield product(BenchProduct(t, t), side, side, side).held_to(("TOPS", least))


def _gemms() -> Iterator[Recipe]:
    """Products of floats, and products with quantized outputs."""
    plain: dict[int, Recipe] = {}
    floats: dict[int, Recipe] = {}
    for side, peer, goal in ((8192, "torch", 0.65), (4096, "torch", 0.75), (2048, _GRAPH, 0.75),
                             (1024, _GRAPH, 0.75), (512, _GRAPH, 0.9)):
        plain[side] = gemm(_F16, side, side, side)
        floats[side] = gemm(_F32, side, side, side)
        yield plain[side].held_to((peer, goal), without_units=(floats[side], 1.0))
    for side in (8192, 4096, 2048, 1024):
        yield floats[side].held_to(("torch", 0.85))
    for recipe in (gemm(_F16, *(4096,) * 3, trans_b=True), gemm(_F16, *(4096,) * 3, trans_a=True),
                   gemm(_F16, 4095, 4097, 4093), gemm(_F16, *(4096,) * 3, fused=True)):
        yield recipe.held_to((plain[4096], 0.9), without_units=(plain[4096], 0.9))
    for side in (4096, 2048):
        to_plain = (plain[side], 1.0)
        yield gemm(_F16, side, side, side, constant=True).held_to(to_plain, without_units=to_plain)
    for n in (4096, 11008, 14336):
        for m in (1, 8, 16):
            for trans_b in (False, True):
                few = gemm(_F16, m, 4096, n, trans_b=trans_b, cold=True)
                if m <= 8:
                    yield few.held_to(("copy", 0.8), without_units=("copy", 0.8))
                else:
                    same = gemm(_F32, m, 4096, n, trans_b=trans_b, cold=True)
                    yield few.held_to(("copy", 0.8), without_units=(same, 1.0))
    for m, k, n in ((128, 384, 1536), (128, 3072, 768), (512, 768, 768), (512, 3072, 768)):
        same = gemm(_F32, m, k, n)
        yield gemm(_F16, m, k, n).held_to((_GRAPH, 0.7), without_units=(same, 1.0))
    same = gemm(_F32, 128, 64, 128, batches=96)
    yield gemm(_F16, 128, 64, 128, batches=96).held_to((_GRAPH, 0.7), without_units=(same, 1.0))
    for m, k, n in ((4096,) * 3, (1024,) * 3, (512, 768, 768)):
        same = product(BenchProduct(full=True), m, k, n)
        large = ("TOPS", 80.0) if m == 4096 else (gemm(_F32, m, k, n), 1.0)
        yield same.held_to(without_units=large)
        yield requantized(m, k, n).held_to((same, 0.95), without_units=(same, 0.95))


def _weights() -> Iterator[Recipe]:
    """Weights of 4 bits. A product of one row reads them, and does little else."""
    sizes = ((1, 4096, 4096, 32), (1, 4096, 11008, 32), (1, 11008, 4096, 32),
             *((m, 4096, 11008, 32) for m in (4, 8, 16)), (1, 4096, 11008, 128))
    floats = [weights(_F32, *each) for each in sizes]
    for t in (_F16, _F32):
        for (m, k, n, block), of_floats in zip(sizes, floats):
            goals: tuple[Goal, ...] = (("copy", 0.6),) if m == 1 else ()
            if t is _F32:
                yield of_floats.held_to(*goals)
            else:
                yield weights(t, m, k, n, block).held_to(*goals, without_units=(of_floats, 1.0))
        for way in ("QUANTIZE", "DEQUANTIZE"):
            for across in (False, True):
                yield quantization(t, way, across).held_to((AS_MANY_BYTES, 0.8))


def _gathers() -> Iterator[Recipe]:
    i32, i64 = DataType.INT32, DataType.INT64
    for t in (_F32, _F16):
        yield gather_rows("GATHER", t, i32).held_to((AS_MANY_BYTES, 0.9))
    for index, torch in ((i64, 1.0), (i32, 1.3)):
        yield gather_elements(index).held_to(("torch", torch))
        yield scatter(index).held_to(("torch", 2.0))
        yield one_hot(index).held_to(("torch", 1.0))
    yield scatter_rows().held_to(("torch", 1.0))
    yield nonzero().held_to(("torch", 2.0))


def _pooling() -> Iterator[Recipe]:
    for t in (_F32, _F16):
        for last in (False, True):
            for what in ("max", "average"):
                yield pooling(t, what, last).held_to((AS_MANY_BYTES, 0.85))
            # A copy counts reads and writes. This case only reads.
            yield pooling(t, "global", last).held_to((AS_MANY_BYTES, 0.9))


LAYERS = (
    *(BenchLayer(32, c, c, side, 3) for c, side in ((64, 56), (128, 28), (256, 14), (512, 7))),
    BenchLayer(32, 256, 64, 56, 1), BenchLayer(32, 1024, 256, 14, 1), BenchLayer(32, 3, 64, 224, 7,
                                                                                 2),
    BenchLayer(2, 320, 320, 64, 3), BenchLayer(2, 1280, 1280, 16, 3),
    BenchLayer(1, 64, 64, 56, 3), BenchLayer(1, 512, 512, 7, 3),
    BenchLayer(32, 144, 144, 56, 3, groups=144), BenchLayer(32, 960, 960, 7, 5, groups=960),
)
"""Layers of ResNet-50, a diffusion model and MobileNet."""
_OF_HALVES = {layer: convolution(_F16, layer) for layer in LAYERS}
_OF_FLOATS = {layer: convolution(_F32, layer) for layer in LAYERS}


def _convolutions() -> Iterator[Recipe]:
    for layer in LAYERS:
        if layer.groups > 1:
            least = {_F16: 2.0, _F32: 2.0} if layer.side > 7 else {_F16: 1.0, _F32: 1.0}
        elif layer.batches == 1 or layer.channels == 3:
            least = {_F16: 1.0, _F32: 0.75}
        else:
            least = {_F16: 0.6 if layer.kernel > 1 else 0.7, _F32: 0.75}
        for t, ratio in least.items():
            recipe = (_OF_HALVES if t is _F16 else _OF_FLOATS)[layer]
            goals = ("torch", ratio), ("torch channels-last", ratio)
            if t is _F16:
                yield recipe.held_to(*goals, without_units=(_OF_FLOATS[layer], 1.0))
            else:
                yield recipe.held_to(*goals)


HEADS = (
    (Heads(_F16, 1, 32, 32, 4096, 4096, 128), "torch", 0.45),
    (Heads(_F16, 1, 32, 32, 4096, 4096, 128, causal=True), "torch", 0.45),
    (Heads(_F16, 8, 16, 16, 1024, 1024, 64), "torch", 0.5),
    (Heads(_F16, 32, 12, 12, 128, 128, 64), _GRAPH, 0.7),
    (Heads(_F16, 1, 16, 16, 16384, 16384, 128, causal=True), "torch", 0.45),
    (Heads(_F32, 1, 32, 32, 4096, 4096, 128), "torch", 0.7),
    *((Heads(_F16, 8, 32, 8, 1, keys, 128), "copy", 0.8) for keys in (4096, 16384)),
)
"""Attention, the last two decoding, and the goals."""


def _attention() -> Iterator[Recipe]:
    for kind, peer, goal in HEADS:
        one_query: Goal = ("copy", 0.8)
        without = one_query if peer == "copy" else ("TOPS", 34.0)
        yield attention(kind).held_to((peer, goal), without_units=without)


def _normalizations() -> Iterator[Recipe]:
    for t in (_F32, _F16):
        for kind in KINDS:
            for count, columns in ROWS:
                # A longer row does not stay in a workgroup: it is read again.
                least = 0.9 if columns <= _SIDE else 0.6
                yield rows(kind, t, count, columns).held_to((AS_MANY_BYTES, least))
        yield images(t, per_instance=False).held_to((AS_MANY_BYTES, 0.9))
        yield images(t, per_instance=True).held_to((AS_MANY_BYTES, 0.6))


def _reductions() -> Iterator[Recipe]:
    """A copy counts reads and writes. Reductions only read."""
    wheres = ("last", "first", "middle", "all")
    asked = [(_F32, f, where) for f in ("SUM", "MAX", "ARGMAX") for where in wheres]
    asked += [(_F32, f, where) for f in ("AVERAGE", "SUM_SQUARE") for where in ("last", "first")]
    # A sum of 2^28 elements is no FLOAT16.
    asked += [(_F16, f, where) for f in ("SUM", "ARGMAX") for where in ("last", "first", "middle")]
    asked += [(_F16, f, "all") for f in ("MAX", "ARGMAX")]
    for t, function, where in asked:
        yield reduction(t, function, where).held_to((AS_MANY_BYTES, 0.9))
    for count, columns in ((65536, 2048), (_SIDE, _SIDE)):
        for axis in (1, 0):
            yield cumulative(axis, count, columns).held_to((AS_MANY_BYTES, 0.75))
    yield cumulative(1, 1, 1 << 28).held_to((AS_MANY_BYTES, 0.75))
    for t in (_F32, _F16):
        for count, columns in ROWS[1:]:
            yield first_k(t, count, columns).held_to(("torch", 5.0))


def _images() -> Iterator[Recipe]:
    for t in (_F32, _F16):
        yield resampled(t).held_to((AS_MANY_BYTES, 0.85))
        yield aligned(t).held_to(("torchvision", 1.0))
        for kernel in (2, 4):
            goals = ("torch", 0.7), ("torch channels-last", 0.7)
            if t is _F16:
                floats = transposed_convolution(_F32, kernel)
                yield transposed_convolution(t, kernel).held_to(
                    *goals, without_units=(floats, 1.0))
            else:
                yield transposed_convolution(t, kernel).held_to(*goals)
    for layer in LAYERS[:4]:
        yield quantized_convolution(layer).held_to(
            (_OF_HALVES[layer], 1.2), without_units=("TOPS", 45.0))


def _recurrent() -> Iterator[Recipe]:
    for kind in ("LSTM", "GRU"):
        yield recurrent(kind, 512, 128, 64).held_to(("torch", 0.5))
        yield recurrent(kind, 128, 100, 1).held_to(("torch", 0.4))


def _host() -> Iterator[Recipe]:
    """What the host does: to CUDA and back, each in 50 us, plans of 200 us for a node, and arrays
    that cross the bus."""
    yield handover().held_to(("host us", 100.0))
    yield planning().held_to(("host us", 800_000.0))
    for megabytes in MEGABYTES:
        yield crossing(megabytes).held_to(("host us", most_us(megabytes)))


def _training() -> Iterator[Recipe]:
    yield random_words().held_to(("torch.fill", 0.8))
    for recipe in GRADIENTS:
        yield recipe.held_to((AS_MANY_BYTES, 0.85))


def _all(*parts: Callable[[], Iterator[Recipe]]) -> tuple[Recipe, ...]:
    return tuple(recipe for part in parts for recipe in part())


FAMILIES = _all(
    _gemms, _weights, _gathers, _pooling, _convolutions, _attention, _normalizations, _reductions,
    _images, _recurrent, _training, _host)
LIMITS = (*_all(_movement, _products), *FAMILIES)
