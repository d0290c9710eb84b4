"""The kernels of attention: their results, and the choice between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import tuning
from kompute_dml.lowering.builder import target_of
from kompute_dml.lowering.plan import Plan
from kompute_dml.operators import attention_kernels, attention_launch
from kompute_dml.runtime.adapters import CooperativeMatrix
from kompute_dml.runtime.traits import DeviceClass
from plans import shaders_of
from test_convolution import EveryWork
from test_matrix_multiply_kernels import _library_of_everything

VARIANTS = {"attention_combine", "attention_coopmat.turns", "attention_few_rows.r4",
            "attention_few_rows.r8", "attention_lines.r1", "attention_lines.r4",
            "attention_lines.r8", *shaders_of(
    k for k in attention_kernels.KERNELS if k.name.startswith(("blocks", "decode", "few-keys")))}
"""Variants that a device does not choose for few tiles, or at all. The tests below run those that
it has room for."""
_PLAIN = dict(mask_filter_value=-1e4, mask_type=dml.MultiheadAttentionMaskType.NONE)


def test_split_keys_give_what_one_pass_gives(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = (own.tensor(rng.normal(size=(1, n, 16)).astype(np.float32)) for n in (5, 391, 391))
    more = dict(scale=0.25, head_count=2, **_PLAIN)
    whole = dml.multihead_attention(q, k, v, **more).numpy()
    parts = (4, 128)
    monkeypatch.setattr(attention_launch.Launch, "split", lambda *_: parts)
    own.compiled.clear()
    split = dml.multihead_attention(q, k, v, **more).numpy()
    assert VARIANTS & {n for c in own.compiled.values() for n in c.variants}
    np.testing.assert_allclose(split, whole, rtol=1e-5, atol=1e-6)


def _reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, added: np.ndarray,
               ) -> tuple[np.ndarray, np.ndarray]:
    """The result by head, in float64, and the error from FLOAT16 powers on matrix units."""
    scores = scale * (q @ k.swapaxes(2, 3)) + added
    power = np.exp(scores - scores.max(3, keepdims=True))
    total = power.sum(3, keepdims=True)
    sizes = scale * (abs(q) @ abs(k).swapaxes(2, 3)) + abs(np.where(np.isinf(added), 0, added))
    off = 2 * sizes.max(3, keepdims=True) * 2.0**-23 * (q.shape[3] + 8)
    share = 2 * off + 2.0**-23 * (k.shape[2] + 16) + 2.0**-11
    room = (power @ abs(v)) / total * share + 2.0**-30 * abs(v).sum(2, keepdims=True)
    return power @ v / total, room


_WORK = [
    # batches, heads, key heads, queries, keys, sizes, masks and biases
    (2, 4, 2, 2, 300, (64, 64), "none"), (1, 2, 2, 131, 70, (128, 80), "keys"),
    (2, 2, 1, 67, 131, (64, 96), "rows"), (1, 8, 1, 1, 600, (32, 32), "rows"),
    (2, 8, 2, 1, 300, (96, 64), "rows"), (1, 3, 3, 150, 230, (128, 96), "causal"),
    (1, 4, 2, 160, 256, (96, 128), "causal"), (1, 2, 2, 48, 170, (96, 128), "none"),
    (2, 4, 2, 70, 100, (48, 64), "keys"), (2, 3, 3, 1, 200, (128, 96), "none"),
    (1, 4, 1, 1, 90, (80, 64), "keys"), (2, 4, 2, 3, 150, (64, 64), "causal"),
    # heads of half a tile of matrix units
    (1, 2, 2, 160, 77, (40, 40), "none"), (2, 2, 2, 131, 200, (40, 24), "rows"),
    (1, 4, 2, 160, 256, (72, 88), "causal"), (1, 2, 2, 50, 170, (120, 104), "none"),
    (1, 4, 1, 3, 300, (56, 72), "keys"), (1, 2, 2, 70, 130, (64, 40), "keys"),
    (1, 2, 1, 40, 90, (40, 48), "none"),
]


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize("work", _WORK, ids=str)
def test_every_kernel_is_as_close_as_it_should_be(
    own: dml.Device, rng: np.random.Generator, work: Any, kind: Any
) -> None:
    batches, heads, key_heads, queries, keys, (size, value_size), what = work
    q, k, v = (rng.normal(0, 2, (batches, h, n, s)).astype(kind) for h, n, s in (
        (heads, queries, size), (key_heads, keys, size), (key_heads, keys, value_size)))
    past = keys - queries
    if what == "causal":
        later = np.arange(keys) > past + np.arange(queries)[:, None]
        added = np.where(later, -np.inf, 0)[None, None]
    else:
        added = rng.normal(0, 3, {"none": (1, 1, 1, 1), "keys": (batches, 1, 1, keys),
                                  "rows": (1, heads, queries, keys)}[what]).astype(kind)
    by_token = own.tensor(q.transpose(0, 2, 1, 3).reshape(batches, queries, heads * size))
    more: dict[str, Any] = dict(zip(("past_key", "past_value"), map(own.tensor, (k, v))))
    if what == "causal":
        more |= {name: own.tensor(x[:, :, past:].swapaxes(1, 2).reshape(batches, queries, -1))
                 for name, x in (("key", k), ("value", v))}
        more |= dict(past_sequence_lengths=own.tensor(np.full(batches, past, np.int32)),
                     output_present_key=True, output_present_value=True)
    elif what != "none":
        more["relative_position_bias"] = own.tensor(added).broadcast_to(
            batches, heads, queries, keys)
    each = heads // key_heads
    expected, room = _reference(
        q.astype(float), *(np.repeat(x, each, 1).astype(float) for x in (k, v)), size**-0.5,
        0 * added.astype(float) if what == "none" else added.astype(float))
    room += np.spacing(abs(expected).astype(kind)).astype(float)

    def run(name: str) -> tuple[np.ndarray, list[str]]:
        own.compiled.clear()
        with tuning.trial(EveryWork(name)) as tried:
            y = dml.multihead_attention1(
                by_token, scale=size**-0.5, query_head_count=heads,
                key_value_head_count=key_heads, **more, **_PLAIN)
            y = y[0] if what == "causal" else y
            made = y.numpy().reshape(batches, queries, heads, value_size).transpose(0, 2, 1, 3)
        return made, [n for names in tried.asked.values() for n in names]

    _, names = run("")
    assert names and len(set(names)) == len(names)
    for name in names:
        if own.adapter.is_cpu and name.startswith("blocks") and (
                kind == np.float16 or name == "blocks-b64"):
            continue  # they take seconds to compile, and differ only in loads and constants
        made, _ = run(name)
        assert (abs(made - expected) <= room).all(), name


@pytest.mark.parametrize("size", [64, 6])  # in fours, or one by one
def test_parts_of_keys_are_combined_into_any_strides(
    size: int, own: dml.Device, rng: np.random.Generator
) -> None:
    q, k, v = (rng.normal(0, 1, (2, n, 2 * size)).astype(np.float32) for n in (70, 900, 900))
    out = own.empty((2, 2 * size, 70)).transpose(0, 2, 1)
    with tuning.trial(EveryWork("units")):
        y = dml.multihead_attention1(
            *map(own.tensor, (q, k, v)), scale=1.0, query_head_count=2, key_value_head_count=2,
            **_PLAIN, out=out).numpy()
    heads = [x.reshape(2, -1, 2, size).transpose(0, 2, 1, 3).astype(float) for x in (q, k, v)]
    expected, room = _reference(*heads, 1.0, np.zeros((1, 1, 1, 1)))
    made = y.reshape(2, 70, 2, size).transpose(0, 2, 1, 3)
    assert (abs(made - expected) <= room + np.spacing(abs(expected).astype(np.float32))).all()
    (compiled,) = own.compiled.values()
    assert "attention_combine" in compiled.variants


def _plan(heads: int, queries: int, keys: int, size: int, kind: str = "float16",
          known: bool = True) -> Plan:
    """The plan for an H200's matrix units. ``known``: where their elements lie."""
    every = _library_of_everything()
    if every.find("attention_coopmat.usual") is None:
        pytest.skip("the cooperative-matrix shader needs a newer glslang")
    target = target_of(every, replace(
        dml.default_device().adapter, cores=132, subgroup_size=32, max_shared_memory=48 << 10,
        cooperative_matrices=(CooperativeMatrix(
            16, 16, 16, "f16", "f16", "f32", "f32", "subgroup"),)))
    target = replace(target, traits=replace(
        target.traits, device_class=DeviceClass.UNKNOWN, fragments_alike=known, max_bindings=16))
    desc = dml.MultiheadAttentionOperatorDesc(
        query_tensor=dml.TensorDesc(kind, (1, queries, heads * size)),
        key_tensor=dml.TensorDesc(kind, (1, keys, heads * size)),
        value_tensor=dml.TensorDesc(kind, (1, keys, heads * size)),
        output_tensor=dml.TensorDesc(kind, (1, queries, heads * size)),
        scale=1.0, head_count=heads, **_PLAIN)
    return desc.operator.lower(desc, target)


@pytest.mark.parametrize(("work", "shaders"), [
    ((32, 4096, 4096, 128), ["attention_coopmat.turns"]),
    ((32, 4096, 4096, 128, "float32"), ["attention_blocks.b128"]),
    ((384, 128, 128, 32, "float32"), ["attention_blocks.h32"]),
    ((96, 512, 512, 64, "float32"), ["attention_blocks.h64"]),
    ((6, 1500, 1500, 64, "float32"), ["attention_blocks.b64", "attention_combine"]),
    ((12, 128, 128, 32, "float32"), ["attention.c64"]),
    ((2, 64, 4096, 64), ["attention_coopmat.usual", "attention_combine"]),
    ((64, 1, 4096, 128), ["attention_decode"]),
    ((384, 128, 128, 64), ["attention_few_keys"]),
    ((40, 300, 300, 40), ["attention_coopmat.usual"]),
    ((8, 4096, 4096, 40), ["attention_coopmat.usual"]),
    ((8, 1024, 1024, 80), ["attention_coopmat.usual", "attention_combine"]),
    ((8, 128, 128, 40), ["attention_coopmat.usual"]),
    ((40, 300, 300, 36), ["attention_blocks.h64"]),
])
def test_which_kernel_is_taken(work: Any, shaders: list[str]) -> None:
    plan = _plan(*work)
    assert [d.variant.name for d in plan.execute] == shaders


@pytest.mark.parametrize(("size", "keys"), [(64, {32, 64}), (128, {32})])
@pytest.mark.parametrize("work", [(32, 4096, 4096), (8, 1500, 1500), (2, 64, 4096)])
def test_tiles_are_small_where_nobody_knows_where_elements_lie(
    work: tuple[int, int, int], size: int, keys: set[int]
) -> None:
    """AMD's compiler moves registers to memory in larger ones."""
    (found,) = (d for d in _plan(*work, size, known=False).execute
                if d.variant.name == "attention_coopmat.usual")
    assert found.spec["FRAGMENTS"] == 1 and found.spec["KEYS"] in keys
    assert size <= 64 or not found.spec["SPLIT_KEYS"]


_MANY_TOKENS = 1 << 17
"""FLOAT32 scores of a head between so many would take 64 GiB."""


@pytest.mark.parametrize("kind", ["float16", "float32"])
@pytest.mark.parametrize("queries", [1, _MANY_TOKENS])
def test_memory_does_not_grow_with_scores(kind: str, queries: int) -> None:
    assert _plan(1, queries, _MANY_TOKENS, 64, kind).temporary_bytes <= 128 << 20


def test_many_keys(device: dml.Device, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((1, n, 32)).astype(np.float32)
               for n in (2, _MANY_TOKENS, _MANY_TOKENS))
    y = dml.multihead_attention(*map(device.tensor, (q, k, v)), scale=0.5, head_count=1, **_PLAIN)
    power = q[0].astype(float) @ k[0].T * 0.5
    power = np.exp(power - power.max(1, keepdims=True))
    expected = power @ v[0] / power.sum(1, keepdims=True)
    assert abs(y.numpy()[0] - expected).max() <= 1e-5


@pytest.mark.parametrize(("stride", "dispatches"), [(128, 1), (129, 2)])
def test_past_and_new_keys_are_copied_together(stride: int, dispatches: int) -> None:
    """Unless only one of them consists of vectors. Keys and values are copied side by side."""
    new = dml.TensorDesc("float32", (2, 3, 128), (3 * stride, stride, 1))
    cache = dml.TensorDesc("float32", (2, 2, 16, 64))
    desc = dml.MultiheadAttention1OperatorDesc(
        query_tensor=dml.TensorDesc("float32", (2, 3, 256)), key_tensor=new, value_tensor=new,
        past_key_tensor=cache, past_value_tensor=cache,
        past_sequence_lengths_tensor=dml.TensorDesc("int32", (2,)),
        output_tensor=dml.TensorDesc("float32", (2, 3, 256)), output_present_key_tensor=cache,
        output_present_value_tensor=cache, scale=1.0, query_head_count=4,
        key_value_head_count=2, **_PLAIN)
    plan = desc.operator.lower(desc, dml.default_device().target)
    copies = [d for d in plan.execute if d.variant.name == "attention_cache"]
    assert len(copies) == 2 * dispatches
