"""Movement operators with several workgroups, and their numbers of dispatches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.lowering.plan import Dispatch, Target
from kompute_dml.operators import padding
from kompute_dml.runtime.shader_library import ShaderLibrary
from kompute_dml.runtime.traits import DeviceClass
from switches import SWIFTSHADER, long_pipelines

_WALKED = {f"join_walked.{how}.p{most}" for how in ("join", "split") for most in (6, 14)}
"""What joins and splits tensors of any strides on a GPU."""
_STAGED = {"padding_staged.b8", "padding_staged.b16"}
"""What keeps rows and planes that are padded in shared memory."""
VARIANTS = _WALKED | _STAGED
_NUMPY_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


@pytest.fixture(params=["its own", "a GPU's"])
def paths(
    request: pytest.FixtureRequest, device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dml.Device]:
    """A device that takes its own paths through the shaders, or those that a GPU takes."""
    if request.param == "a GPU's" and SWIFTSHADER:
        pytest.skip("lavapipe runs what GPUs take")
    own = dml.Device(device.adapter)
    if request.param == "a GPU's":
        target = own.target
        monkeypatch.setattr(own, "target", replace(target, traits=replace(
            target.traits, device_class=DeviceClass.UNKNOWN,
            local_size=min(256, target.traits.local_size))))
    yield own
    own.close()


def _binding(device: dml.Device, most: int) -> Target:
    """The device, as if a shader could bind so many storage buffers."""
    target = device.target
    return replace(target, traits=replace(target.traits, max_bindings=most),
                   library=ShaderLibrary(target.library.features, most))


@pytest.mark.parametrize(
    "bound, together", [(8, 7), (15, 7), (16, 14), (29, 14), (30, 28), (99, 28)])
@pytest.mark.parametrize("operator", ["JOIN", "SPLIT"])
def test_a_dispatch_takes_as_many_tensors_as_the_device_binds(
    operator: str, bound: int, together: int, device: dml.Device
) -> None:
    target = _binding(device, bound)
    for count in (1, 2, together, together + 1, 3 * together):
        one, whole = (dml.TensorDesc("float32", (3, n)) for n in (8, 8 * count))
        pieces = [one] * count
        desc = (dml.JoinOperatorDesc(input_tensors=pieces, output_tensor=whole, axis=1)
                if operator == "JOIN" else
                dml.SplitOperatorDesc(input_tensor=whole, output_tensors=pieces, axis=1))
        found = desc.operator.lower(desc, target).execute
        assert len(found) == -(-count // together), count


@pytest.mark.parametrize(
    "bound, kind, unit", [(8, "float32", 3), (16, "uint16", 8), (30, "float32", 1)])
def test_many_tensors_are_joined_and_split(
    bound: int, kind: str, unit: int, paths: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if bound > paths.target.traits.max_bindings:
        pytest.skip("the device binds fewer")
    monkeypatch.setattr(paths, "target", _binding(paths, bound))
    widths = rng.integers(1, 30, 45) * unit
    parts = [rng.integers(0, 99, (70, int(n))).astype(kind) for n in widths]
    whole = dml.join([paths.tensor(x) for x in parts], axis=1)
    assert np.array_equal(whole.numpy(), np.concatenate(parts, 1))
    back = dml.split(whole, sections=tuple(map(int, widths)), axis=1)
    assert all(np.array_equal(x.numpy(), y) for x, y in zip(back, parts, strict=True))


@pytest.mark.parametrize("bound", [8, 99])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
def test_tensors_of_any_strides_are_joined_and_split(
    dtype: str, bound: int, paths: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = min(bound, paths.target.traits.max_bindings)
    monkeypatch.setattr(paths, "target", _binding(paths, bound))
    most = 14 if bound >= 16 else 6
    for order, axis in (((0, 1, 2), 1), ((0, 1, 2), 2), ((1, 0, 2), 2), ((2, 0, 1), 2)):
        parts, given = [], []
        for width in map(int, rng.integers(1, 70, 16)):
            sizes = [3, 5, 67]
            sizes[axis] = width
            # Views into the middle of rows, whose dimensions lie in another order.
            whole = rng.integers(0, 200, [sizes[d] + 3 for d in order]).astype(dtype)
            inside = tuple(slice(2, 2 + sizes[d]) for d in order)
            back = tuple(order.index(d) for d in range(3))
            given.append(paths.tensor(whole)[inside].permute(back))
            parts.append(whole[inside].transpose(back))
        expected = np.concatenate(parts, axis)
        surplus = [n + 5 for n in expected.shape]
        marked = rng.integers(0, 200, surplus).astype(dtype)
        out = paths.tensor(marked)
        place = tuple(slice(3, 3 + n) for n in expected.shape)
        dml.join(given, axis=axis, out=out[place])
        marked[place] = expected
        assert np.array_equal(out.numpy(), marked), (order, axis)
        sections = tuple(x.shape[axis] for x in parts)
        for got, part in zip(dml.split(out[place], sections=sections, axis=axis), parts):
            assert np.array_equal(got.numpy(), part), (order, axis)
        for how, kind in (("join", dml.JoinOperatorDesc), ("split", dml.SplitOperatorDesc)):
            last = [key for key in paths.compiled if key[0] is kind][-1]
            names = [d.variant.name for d in paths.compiled[last].plan.execute]
            if paths.target.traits.is_cpu:
                assert len(names) == 16 and not _WALKED & {*names}
            else:
                assert names == [f"join_walked.{how}.p{most}"] * -(-16 // most)


@long_pipelines
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("mode", dml.PaddingMode)
def test_borders_in_several_workgroups(
    mode: dml.PaddingMode, dtype: str, paths: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Elements of all widths in lines.
    monkeypatch.setattr(padding, "_LONGEST_LINE", {1: 32, 2: 64, 4: 256})
    monkeypatch.setattr(padding, "_STAGED_SIZES", ())
    for sizes, start, end in (((3, 90, 70), (0, 2, 3), (0, 1, 4)), ((2500, 17), (1, 0), (0, 2)),
                              ((70_001,), (3,), (9,)), ((2, 5000), (0, 4999), (1, 2)),
                              # Rows of whole words, alone or together.
                              ((8, 31, 62), (0, 2, 3), (1, 1, 5)), ((2000, 3), (1, 1), (7, 1)),
                              ((300, 8), (0, 1), (0, 2)),
                              ((2, 200, 31), (0, 1, 1), (0, 1, 1)),
                              # Planes: several workgroups for each, or one for several.
                              ((33, 62, 60), (0, 3, 3), (0, 3, 3)),
                              ((4, 15, 6, 5), (0, 2, 1, 1), (0, 3, 2, 1))):
        x = rng.integers(0, 100, sizes).astype(dtype)
        more = {"constant_values": 0} if mode == 0 else {}
        expected = np.pad(x, list(zip(start, end)), _NUMPY_MODES[mode], **more)
        got = dml.padding(paths.tensor(x), start_padding=start, end_padding=end, padding_mode=mode)
        assert np.array_equal(got.numpy(), expected), (sizes, start, end)


def _last_plan(device: dml.Device) -> Sequence[Dispatch]:
    return list(device.compiled.values())[-1].plan.execute


@long_pipelines
@pytest.mark.parametrize("dtype", ["uint8", "float16"])
@pytest.mark.parametrize("mode", dml.PaddingMode)
def test_rows_and_planes_are_padded_in_shared_memory(
    mode: dml.PaddingMode, dtype: str, device: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, value = dml.Device(device.adapter), 7
    target = own.target
    monkeypatch.setattr(own, "target", replace(target, traits=replace(
        target.traits, device_class=DeviceClass.UNKNOWN, cores=1)))
    more = {"constant_values": value} if mode == dml.PaddingMode.CONSTANT else {}
    ways = set()
    for sizes, start, end in (
            # As many planes as the turns of all workgroups write, or one more.
            ((48, 64, 64), (0, 3, 3), (0, 3, 3)), ((49, 64, 64), (0, 3, 3), (0, 3, 3)),
            # Planes that are no whole vectors, and then no whole words.
            ((201, 30, 33), (0, 1, 0), (0, 2, 3)), ((50, 7, 7), (0, 1, 1), (0, 1, 1)),
            ((301, 13, 15), (0, 2, 4), (0, 1, 1)),
            # More on a side than there is, and nothing on most sides.
            ((40, 2, 3), (0, 3, 4), (0, 5, 8)), ((24, 20, 64), (0, 5, 0), (0, 0, 0)),
            # Rows: of whole words, of a part of one, and of several with others.
            ((2000, 6), (0, 1), (0, 1)), ((9000, 8), (0, 1), (0, 2)), ((64, 1), (0, 1), (0, 0)),
            ((5002, 3), (0, 1), (0, 4)), ((200, 2, 70), (0, 0, 5), (0, 0, 1))):
        count = int(np.prod(sizes))
        for skipped in (0, 3):
            flat = rng.integers(0, 100, skipped + count).astype(dtype)
            x = flat[skipped:].reshape(sizes)
            expected = np.pad(x, list(zip(start, end)), _NUMPY_MODES[mode], **more)
            # Bytes around the output stay as they are.
            marked = rng.integers(0, 100, expected.size + 96).astype(dtype)
            out = own.tensor(marked)
            inside = slice(32, 32 + expected.size)
            dml.padding(own.tensor(flat)[skipped:].reshape(sizes), start_padding=start,
                        end_padding=end, padding_mode=mode, padding_value=value,
                        out=out[inside].reshape(expected.shape))
            marked[inside] = expected.reshape(-1)
            assert np.array_equal(out.numpy(), marked), (sizes, skipped)
            (dispatch,) = _last_plan(own)
            if dispatch.variant.name in _STAGED:
                ways |= {(name, dispatch.spec[name])
                         for name in ("PLANES", "WIDE", "WHOLE", "EXACT", "TOGETHER", "TURNS")}
    # These take all ways through the shader.
    together = {1: (1, 2, 4), 2: (1, 2)}[np.dtype(dtype).itemsize]
    assert ways >= {(name, on) for name in ("PLANES", "WIDE", "WHOLE", "EXACT") for on in (0, 1)}
    assert ways >= {("TOGETHER", n) for n in together} | {("TURNS", n) for n in (1, 2)}
    own.close()


@pytest.mark.parametrize("dtype, sizes, mode, name, turns", [
    ("float16", (8192, 64, 64), "REFLECTION", "padding_staged.b16", 2),
    ("float16", (8192, 56, 56), "CONSTANT", "padding_staged.b16", 2),
    ("uint8", (8192, 64, 64), "SYMMETRIC", "padding_staged.b8", 2),
    ("uint8", (8192, 122, 122), "CONSTANT", "padding_staged.b8", 2),
    # Few planes are spread over the cores first.
    ("float16", (1000, 64, 64), "REFLECTION", "padding_staged.b16", 1),
    ("float16", (100, 64, 64), "REFLECTION", "padding.b16", 0),
    # Wide elements, large planes and long rows take less time in other ways.
    ("float32", (8192, 64, 64), "REFLECTION", "padding.b32", 0),
    ("int64", (8192, 64, 64), "REFLECTION", "padding.b64", 0),
    ("float16", (2048, 122, 122), "REFLECTION", "padding.b16", 0),
    ("float16", (8192, 8, 512), "CONSTANT", "padding.b16", 0),
])
def test_narrow_elements_of_many_planes_are_staged(
    dtype: str, sizes: tuple[int, ...], mode: str, name: str, turns: int, device: dml.Device,
) -> None:
    traits = replace(device.target.traits, device_class=DeviceClass.UNKNOWN,
                     local_size=256, cores=132,
                     max_invocations=1024, max_shared_memory=49152)
    target = replace(device.target, traits=traits)
    padded = [n + 6 * (i > 0) for i, n in enumerate(sizes)]
    desc = dml.PaddingOperatorDesc(
        input_tensor=dml.TensorDesc(dtype, sizes), output_tensor=dml.TensorDesc(dtype, padded),
        padding_mode=dml.PaddingMode[mode], padding_value=0.0, start_padding=(0, 3, 3),
        end_padding=(0, 3, 3))
    (dispatch,) = desc.operator.lower(desc, target).execute
    assert (dispatch.variant.name, dispatch.spec.get("TURNS", 0)) == (name, turns)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_long_row_is_repeated(
    dtype: str, paths: dml.Device, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 100, (1, 300_007)).astype(dtype)
    assert np.array_equal(dml.tile(paths.tensor(x), repeats=(3, 2)).numpy(), np.tile(x, (3, 2)))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_rows_of_whole_vectors_are_gathered(
    dtype: str, paths: dml.Device, rng: np.random.Generator
) -> None:
    for vectors in (3, 250, 256, 511, 600):
        x = rng.integers(0, 100, (2, 30, vectors * 16 // np.dtype(dtype).itemsize)).astype(dtype)
        chosen = rng.integers(-30, 30, (5, 2)).astype(np.int32)
        got = dml.gather(paths.tensor(x[None]), chosen[None, None], axis=2, index_dimensions=2)
        assert np.array_equal(got.numpy(), x[:, chosen]), vectors
    # Rows that are not contiguous.
    x = rng.integers(0, 100, (256, 30)).astype(dtype)
    got = dml.gather(paths.tensor(x).permute((1, 0)), chosen[:1], axis=0, index_dimensions=1)
    assert np.array_equal(got.numpy(), x.T[chosen[0]])


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "int64"])
def test_long_rows_of_any_alignment(
    dtype: str, paths: dml.Device, rng: np.random.Generator
) -> None:
    x = rng.integers(0, 100, (301, 1003)).astype(dtype)
    given = paths.tensor(x)
    for begin in (0, 1, 2, 3, 5, 8, 15):
        got = dml.slice(given, offsets=(1, begin), sizes=(299, 950), strides=(1, 1))
        assert np.array_equal(got.numpy(), x[1:300, begin : begin + 950]), begin
    left, right = dml.split(given, sections=(401, 602), axis=1)
    assert np.array_equal(left.numpy(), x[:, :401]) and np.array_equal(right.numpy(), x[:, 401:])
    chosen = rng.integers(-301, 400, 290).astype(np.int32)  # some point nowhere
    got = dml.gather(given, chosen[None], axis=0, index_dimensions=1)
    assert np.array_equal(got.numpy(), x[np.minimum(chosen, 300)])
    new = rng.integers(0, 100, (290, 1003)).astype(dtype)
    got = dml.scatter_nd(given, chosen[:, None], new, input_dimension_count=2,
                         indices_dimension_count=2)
    expected = x.copy()
    for i, row in zip(chosen, new):
        if i < 301:
            expected[i] = row
    assert np.array_equal(got.numpy(), expected)


def test_more_copies_than_an_invocation_writes(rng: np.random.Generator) -> None:
    x = rng.integers(0, 100, (2, 3, 8)).astype(np.float32)
    for repeats in ((1, 1, 1), (3, 5, 1), (5, 4, 7), (17, 1, 2), (1, 2, 40)):
        got = dml.tile(x, repeats=repeats)
        assert np.array_equal(got.numpy(), np.tile(x, repeats)), repeats
