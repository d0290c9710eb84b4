"""What is checked for some sizes, and then not again for others."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning, validation_cache
from kompute_dml.errors import UnsupportedError
from kompute_dml.graph.step import compile_repacking
from kompute_dml.lowering.builder import target_of
from kompute_dml.lowering.plan import Target
from kompute_dml.operators.base import OperatorDesc, definitions
from kompute_dml.runtime.heap import Slot
from kompute_dml.runtime.shader_library import ShaderLibrary
from kompute_dml.runtime.traits import DeviceClass
from test_convolution import H200_MATRICES, _matrix_units


def _target(of: str) -> Target:
    if of == "matrix units":
        target = _matrix_units()
        return replace(target, traits=replace(target.traits, fragments_alike=True))
    # The device has matrix units, but kp has not enabled their features.
    target = target_of(ShaderLibrary(frozenset()), replace(
        dml.default_device().adapter, cooperative_matrices=H200_MATRICES, subgroup_size=32))
    return replace(target, traits=replace(target.traits, device_class=DeviceClass.UNKNOWN,
                                          slow_barriers=False))


def _tensor(
    kind: str, *sizes: int, last: bool = False, flags: dml.TensorFlags = dml.TensorFlags.NONE
) -> dml.TensorDesc:
    """Packed. ``last``: the second dimension is the one with neighbouring elements."""
    _, c, *rest = sizes
    inner = int(np.prod(rest))
    strides = (c * inner, 1, *(c * int(np.prod(rest[i + 1:])) for i in range(len(rest))))
    return dml.TensorDesc(kind, sizes, strides if last else None, flags=flags)


def _gemm(rng: np.random.Generator, kind: str) -> OperatorDesc:
    m, k, n = (int(x) for x in 2 ** rng.uniform(0, 12, 3))
    batches = int(rng.choice([1, 1, 3]))
    trans_a, trans_b = (int(x) for x in rng.integers(0, 2, 2))
    a = (k, m) if trans_a else (m, k)
    b = (n, k) if trans_b else (k, n)
    return dml.GemmOperatorDesc(
        a_tensor=_tensor(kind, 1, batches, *a), b_tensor=_tensor(kind, 1, batches, *b),
        c_tensor=_tensor(kind, 1, batches, m, n) if rng.random() < 0.5 else None,
        output_tensor=_tensor(kind, 1, batches, m, n, last=rng.random() < 0.2),
        trans_a=trans_a, trans_b=trans_b, alpha=1.0, beta=1.0)


def _convolution(rng: np.random.Generator, kind: str) -> OperatorDesc:
    window, step, apart = (rng.integers(1, n, 2) for n in (6, 4, 3))
    groups = int(rng.choice([1, 1, 4, 32]))
    own, made = (int(x) for x in 2 ** rng.uniform(0, 8, 2))
    if rng.random() < 0.5:  # as networks have them, for which there are more kernels
        window[:], step[:], apart[:] = rng.choice([1, 3, 7]), rng.choice([1, 2]), 1
        own, made = int(rng.choice([3, 16, 64])), int(rng.choice([16, 64, 256]))
    spans = (window - 1) * apart + 1
    start, end = (rng.integers(0, spans) if rng.random() < 0.5 else np.zeros(2, int)
                  for _ in range(2))
    most = rng.choice([8, 80, 300 if groups == 1 else 80])
    few = np.maximum(rng.integers(1, most, 2), start + end)
    many = (few - 1) * step + spans - start - end
    backward = bool(rng.random() < 0.3)
    x, y, w = (few, many, (own, made)) if backward else (many, few, (made, own))
    last = bool(rng.random() < 0.5)
    flags = dml.TensorFlags.OWNED_BY_DML if rng.random() < 0.5 else dml.TensorFlags.NONE
    return dml.ConvolutionOperatorDesc(
        input_tensor=_tensor(kind, 2, groups * own, *map(int, x), last=last),
        filter_tensor=_tensor(kind, groups * w[0], w[1], *map(int, window), last=last, flags=flags),
        output_tensor=_tensor(kind, 2, groups * made, *map(int, y), last=last),
        mode=dml.ConvolutionMode.CROSS_CORRELATION,
        direction=dml.ConvolutionDirection(int(backward)),
        strides=tuple(map(int, step)), dilations=tuple(map(int, apart)),
        start_padding=tuple(map(int, start)), end_padding=tuple(map(int, end)),
        output_padding=(0, 0), group_count=groups)


def _elementwise(name: str, rng: np.random.Generator, kind: str) -> OperatorDesc:
    """Of 2 to 5 dimensions, some of them long; inputs may be repeated along one or transposed."""
    definition = definitions()[name]
    sizes = tuple(int(x) for x in 2 ** rng.uniform(0, 4, int(rng.integers(2, 6))))
    if rng.random() < 0.2:
        sizes = (*sizes[:2], 1 << 17)

    def tensor(field: Any) -> dml.TensorDesc:
        t = _tensor(kind, *sizes, last=rng.random() < 0.3)
        at = int(rng.integers(len(sizes)))
        if field.kind == "output" or rng.random() < 0.6:
            return t
        return t.replace(strides=(*t.strides[:at], 0, *t.strides[at + 1 :]))

    numbers = {f.snake: 2.0 for f in definition.spec.fields if f.type == "FLOAT"}
    return definition.desc_class(
        **{f.snake: tensor(f) for f in definition.spec.tensors}, **numbers)


def _lowers(desc: OperatorDesc, target: Target) -> bool:
    try:
        desc.operator.lower(desc, target)
    except UnsupportedError:
        return False
    return True


_ELEMENTWISE = [f"DML_OPERATOR_{name}" for name in (
    "ACTIVATION_HARD_SWISH", "ACTIVATION_RELU", "ACTIVATION_RELU_GRAD", "ELEMENT_WISE_ADD",
    "ELEMENT_WISE_CLIP_GRAD", "ELEMENT_WISE_IDENTITY", "ELEMENT_WISE_POW", "ELEMENT_WISE_SQRT")]
_MAKERS: dict[str, Any] = {
    "DML_OPERATOR_GEMM": _gemm, "DML_OPERATOR_CONVOLUTION": _convolution,
    **{name: functools.partial(_elementwise, name) for name in _ELEMENTWISE}}


def _kinds(name: str) -> list[str]:
    """The floating-point types of an operator's first tensor, at any feature level."""
    entry = definitions()[name].spec
    types = {t for row in entry.support for t in row.tensors[entry.tensors[0].name].data_types}
    return [kind for kind in ("float32", "float16", "float64") if dml.DataType.of(kind) in types]


@pytest.mark.parametrize("of", ["no features", "matrix units"])
@pytest.mark.parametrize(("name", "kind"), [(n, kind) for n in _MAKERS for kind in _kinds(n)])
def test_a_device_serves_all_sizes_or_none(
    name: str, kind: str, of: str, rng: np.random.Generator
) -> None:
    assert definitions()[name].any_size
    target = _target(of)
    assert len({_lowers(_MAKERS[name](rng, kind), target) for _ in range(300)}) == 1


def test_what_is_compiled_again_is_as_new(device: dml.Device) -> None:
    """Equal operators of two graphs share the choice of shaders, and nothing that a run changes."""
    own = dml.Device(device.adapter)
    desc = dml.ConvolutionOperatorDesc(
        input_tensor=_tensor("float32", 1, 8, 5, 5), filter_tensor=_tensor("float32", 8, 8, 3, 3),
        output_tensor=_tensor("float32", 1, 8, 3, 3),
        mode=dml.ConvolutionMode.CROSS_CORRELATION, direction=dml.ConvolutionDirection.FORWARD,
        strides=(1, 1), dilations=(1, 1), start_padding=(0, 0), end_padding=(0, 0),
        output_padding=(0, 0), group_count=1)
    first, second = (compile_repacking(own, desc, ()) for _ in range(2))
    assert first is not second and first.plan is second.plan
    made: list[float] = []
    for compiled in (first, second, compile_repacking(own, desc, ())):
        x, w = (own.tensor(np.full(s, 1 + len(made), "f4")) for s in ((1, 8, 5, 5), (8, 8, 3, 3)))
        y = own.empty((1, 8, 3, 3))
        places = {"input_tensor": x, "filter_tensor": w, "output_tensor": y}
        scratch = Slot(own.allocate(compiled.plan.temporary_bytes or 4), 0)
        compiled.run([Slot(places[s].allocation, 0) if s in places
                      else scratch if s == "temporary" else None for s in compiled.slots])
        made.append(float(y.numpy().mean()))
        assert (y.numpy() == made[-1]).all()
    assert made == [72.0, 4 * 72.0, 9 * 72.0]
    assert first._params is not None and second._params is not None
    assert first._params.allocation is not second._params.allocation
    assert compile_repacking(own, desc, ())._params is None
    owned = compile_repacking(own, desc, {"filter_tensor"})
    assert owned.plan is not first.plan, "other constants are repacked"
    flags = dml.ExecutionFlags.DISABLE_META_COMMANDS
    assert compile_repacking(own, desc, (), flags).plan is not first.plan
    with tuning.trial({}):
        tried = compile_repacking(own, desc, ())
        assert tried.plan is not first.plan, "other kernels may be chosen"
        assert compile_repacking(own, desc, ()).plan is tried.plan
    own.target = replace(own.target)  # as when its traits change
    assert compile_repacking(own, desc, ()).plan is not first.plan


def test_few_compiled_operators_are_kept(device: dml.Device, monkeypatch: Any) -> None:
    monkeypatch.setattr(validation_cache, "MAX_COMPILED", 2)
    kept = validation_cache.ValidationCache()
    counts: list[int] = []

    def make() -> Any:
        counts.append(1)
        return compile_repacking(device, dml.ActivationReluOperatorDesc(
            input_tensor=_tensor("float32", 1, 4), output_tensor=_tensor("float32", 1, 4)), ())

    for key in ("a", "b", "a", "c", "a", "c"):
        kept.compiled(device.target, key, make)
    assert len(counts) == 3, "a, b, and c in the place of b"
    kept.compiled(device.target, "b", make)
    assert len(counts) == 4
