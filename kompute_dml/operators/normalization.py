"""Normalizations by statistics of rows, given statistics, neighbours or a norm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..desc import TensorDesc
from ..errors import UnsupportedError, expect
from ..layout import product
from ..lowering.activation import fused_activation
from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import float_bits
from ..lowering.rows import SHADER, Kind, broadcast_strides, normalize_rows
from ..lowering.walk import Walk
from ..spec import FeatureLevel
from .base import OperatorDesc, axes_in, axis_in, like, operator

_LOCAL_SIZE = 256
_PIECES = 2
"""Pieces for each invocation of batch normalization."""
_LONG_LINE = 3 * _LOCAL_SIZE * _PIECES
"""The least pieces of a line that workgroups divide on a GPU, if its elements share mean, variance,
scale and bias. Fewer would leave too many invocations of the last workgroup idle."""


def _check_parameters(desc: OperatorDesc, *fields: str) -> None:
    """Raise unless parameters have the input's size or 1 in each dimension, and the output has the
    input's sizes."""
    x = desc.input_tensor
    for f in desc.operator.spec.inputs:
        t: TensorDesc | None = getattr(desc, f.snake)
        if f.name in fields and t is not None:
            expect(all(n in (1, m) for n, m in zip(t.sizes, x.sizes)), desc.operator.name,
                   f"{f.name}.Sizes", f"be 1 or InputTensor's, {list(x.sizes)}", list(t.sizes))


def _check_switch(desc: OperatorDesc, *fields: str) -> None:
    for f in desc.operator.spec.fields:
        if f.name in fields:
            value = getattr(desc, f.snake)
            expect(value in (0, 1), desc.operator.name, f.name, "be 0 or 1", value)


# Mean and variance


def _both_or_neither(desc: OperatorDesc) -> Iterator[tuple[FeatureLevel, str, str, Any]]:
    if (desc.scale_tensor is None) != (desc.bias_tensor is None):
        missing = "ScaleTensor" if desc.scale_tensor is None else "BiasTensor"
        yield FeatureLevel.FL_5_2, missing, "be given where the other is", None


def _channel_sizes(desc: OperatorDesc) -> Iterator[tuple[FeatureLevel, str, str, Any]]:
    yield from _both_or_neither(desc)
    channels = desc.input_tensor.sizes[1:2]
    for name, t in (("ScaleTensor", desc.scale_tensor), ("BiasTensor", desc.bias_tensor)):
        if t is not None and t.sizes[1:2] != channels:
            yield (FeatureLevel.FL_4_0, f"{name}.Sizes", "have the input's channels",
                   list(t.sizes))


def _normalize(
    p: PlanBuilder, d: OperatorDesc, axes: Sequence[int], mean: bool, variance: bool
) -> None:
    kind = {(1, 1): Kind.CENTRED, (1, 0): Kind.SHIFTED, (0, 1): Kind.SQUARES,
            (0, 0): Kind.AS_IT_IS}[int(mean), int(variance)]
    normalize_rows(p, kind, axes, epsilon=float_bits(d.epsilon))


def _check_mvn(desc: OperatorDesc, strict: bool) -> None:
    _check_switch(desc, "CrossChannel", "NormalizeVariance")
    _check_parameters(desc, "ScaleTensor", "BiasTensor")


@operator("MEAN_VARIANCE_NORMALIZATION", output=like("input_tensor"), shaders=(SHADER,),
          check=_check_mvn, newer=_both_or_neither, cross_channel=False, normalize_variance=True,
          epsilon=1e-5)
def MeanVarianceNormalizationOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    axes = (1, 2, 3) if d.cross_channel else (2, 3)
    _normalize(p, d, axes, True, d.normalize_variance)


def _check_mvn1(desc: OperatorDesc, strict: bool) -> None:
    axes_in(desc.operator.name, desc.axes, desc.input_tensor)
    _check_switch(desc, "NormalizeVariance", "UseMean", "UseVariance")
    _check_parameters(desc, "ScaleTensor", "BiasTensor")


@operator("MEAN_VARIANCE_NORMALIZATION1", output=like("input_tensor"), shaders=(SHADER,),
          check=_check_mvn1, newer=_channel_sizes, normalize_variance=True, epsilon=1e-5)
def MeanVarianceNormalization1OperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _normalize(p, d, d.axes, True, d.normalize_variance)


@operator("MEAN_VARIANCE_NORMALIZATION2", output=like("input_tensor"), shaders=(SHADER,),
          check=_check_mvn1, use_mean=True, use_variance=True, epsilon=1e-5)
def MeanVarianceNormalization2OperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _normalize(p, d, d.axes, d.use_mean, d.use_variance)


# Norms


def _check_lp(desc: OperatorDesc, strict: bool) -> None:
    axis_in(desc.operator.name, desc.axis, desc.input_tensor)
    expect(desc.p in (1, 2), desc.operator.name, "P", "be 1 or 2", desc.p)


@operator("LP_NORMALIZATION", output=like("input_tensor"), shaders=(SHADER,), check=_check_lp,
          axis=-1, epsilon=1e-5, p=2)
def LpNormalizationOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    normalize_rows(p, Kind.L1 if d.p == 1 else Kind.L2, (d.axis,), epsilon=float_bits(d.epsilon))


# Given statistics

_PARAMETERS = ("mean_tensor", "variance_tensor", "scale_tensor", "bias_tensor")


def _check_batch(desc: OperatorDesc, strict: bool) -> None:
    _check_switch(desc, "Spatial")
    _check_parameters(desc, "MeanTensor", "VarianceTensor", "ScaleTensor", "BiasTensor")


def _spatial(desc: OperatorDesc) -> Iterator[tuple[FeatureLevel, str, str, Any]]:
    x = desc.input_tensor
    for name, t in (("MeanTensor", desc.mean_tensor), ("VarianceTensor", desc.variance_tensor)):
        if not desc.spatial and t.sizes[2:] != x.sizes[2:]:
            yield (FeatureLevel.FL_4_0, f"{name}.Sizes",
                   "have the input's height and width where Spatial is 0", list(t.sizes))


@operator("BATCH_NORMALIZATION", output=like("input_tensor"), shaders=("batch_normalization",),
          check=_check_batch, newer=_spatial, spatial=True, epsilon=1e-5)
def BatchNormalizationOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    x, fused = d.input_tensor, fused_activation(d)
    tensors = [x, d.output_tensor, *(getattr(d, name) for name in _PARAMETERS)]
    walk = Walk(x.sizes, *(broadcast_strides(t, x) for t in tensors))
    each = 16 // x.data_type.itemsize

    def of_vectors(o: int) -> bool:
        return (tensors[o].is_aligned and walk.strides[o][-1] == 1
                and not any(s % each for s in walk.strides[o][:-1]))

    whole = walk.sizes[-1] % each == 0 and of_vectors(0) and of_vectors(1)
    contiguous = whole and all(map(of_vectors, range(2, 6)))
    if not contiguous and (not whole or any(walk.strides[o][-1] for o in range(2, 6))):
        each = 1
    pieces, in_turn = walk.count // each, 1 if p.device.is_cpu else _PIECES
    local = min(_LOCAL_SIZE, p.device.max_invocations)
    groups, push = -(-pieces // (local * in_turn)), {}
    line = walk.sizes[-1] // each
    lines = (not p.device.is_cpu and line >= _LONG_LINE
             and not any(walk.strides[o][-1] for o in range(2, 6)))
    if lines:
        parts = -(-line // (local * in_turn))
        groups = pieces // line * parts
        push = {"line_pieces": line, "line_parts": parts,
                "x_step": walk.strides[0][-1] * each, "y_step": walk.strides[1][-1] * each}
        walk = Walk(walk.sizes[:-1], *(s[:-1] for s in walk.strides))
    p.dispatch(
        fused.variant("batch_normalization"), groups,
        x=p.read("input_tensor"),
        mean=p.read("mean_tensor"), variance=p.read("variance_tensor"),
        scale=p.read("scale_tensor"), bias=p.read("bias_tensor"),
        y=p.write("output_tensor"), **p.read_tail(), params=[*walk.words, *fused.words],
        push={"pieces": pieces, "activation_at": len(walk.words),
              "epsilon": float_bits(d.epsilon), **push},
        spec={"LOCAL_SIZE": local, "TYPE": x.data_type.code, "EACH": each, "PIECES": in_turn,
              "CONTIGUOUS": contiguous, "LINES": lines, "WALK_RANK": len(walk.sizes),
              **fused.spec},
    )


# Neighbours


def _window(desc: OperatorDesc) -> int:
    """The number of elements in the largest window."""
    _, channels, *plane = desc.input_tensor.sizes
    return product([min(desc.local_size, n) for n in
                    ([channels] if desc.cross_channel else plane)])


def refuse_long_windows(desc: OperatorDesc, p: PlanBuilder) -> None:
    if _window(desc) > (longest := p.device.max_loop_passes // 2):
        raise UnsupportedError(
            f"{desc.operator.name}: windows of {_window(desc)} elements: more than "
            f"{longest} are not supported on a CPU")


def check_neighbours(desc: OperatorDesc, strict: bool) -> None:
    _check_switch(desc, "CrossChannel")
    expect(desc.local_size >= 1, desc.operator.name, "LocalSize", "be at least 1", desc.local_size)


@operator("LOCAL_RESPONSE_NORMALIZATION", output=like("input_tensor"),
          shaders=("local_response_normalization",), check=check_neighbours, in_place=False,
          cross_channel=True, alpha=1e-4, beta=0.75, bias=1.0)
def LocalResponseNormalizationOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    x, y = d.input_tensor, d.output_tensor
    refuse_long_windows(d, p)
    walk = Walk(x.sizes, x.strides, y.strides)
    local = min(_LOCAL_SIZE, p.device.max_invocations)
    p.dispatch(
        "local_response_normalization", -(-walk.count // local),
        x=p.read("input_tensor"), y=p.write("output_tensor"), params=walk.words,
        push={"count": walk.count, "sizes": x.sizes, "x_steps": x.strides,
              "before": (d.local_size - 1) // 2, "after": d.local_size // 2,
              "alpha": float_bits(d.alpha / d.local_size), "beta": float_bits(d.beta),
              "bias": float_bits(d.bias)},
        spec={"LOCAL_SIZE": local, "TYPE": x.data_type.code, "CROSS_CHANNEL": d.cross_channel},
    )
