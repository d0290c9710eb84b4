"""The variants that a device may run, and their constants. No device is needed."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.operators.base import definitions
from kompute_dml.runtime import shader_library
from kompute_dml.runtime.shader_library import (
    SWITCHES,
    ShaderLibrary,
    Variant,
    disabled_features,
    manifest,
    required_features,
)

ALL_FEATURES = frozenset(
    f for features in shader_library._FEATURES_OF.values() for f in features
)


@pytest.fixture(autouse=True)
def _nothing_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KOMPUTE_DML_DISABLE", raising=False)


def variants() -> list[Variant]:
    return list(shader_library._all_variants().values())


@pytest.mark.parametrize("name", sorted(definitions()))
def test_every_operator_has_a_variant_that_needs_nothing(name: str) -> None:
    """Any Vulkan GPU must be able to run the core variants."""
    bare = ShaderLibrary(frozenset())
    own = [v for v in variants() if v.shader in definitions()[name].shaders]
    assert any(bare.allows(v) for v in own), "runs nowhere without optional features"


def test_every_capability_in_the_manifest_is_known() -> None:
    for name, entry in manifest()["shaders"].items():
        for variant, facts in entry["variants"].items():
            assert required_features(facts["capabilities"]) is not None, (name, variant)


def test_an_unknown_capability_is_never_allowed() -> None:
    assert required_features(["Shader", "RayTracingKHR"]) is None
    known = variants()[0]
    odd = dataclasses.replace(known, features=None)
    assert not ShaderLibrary(ALL_FEATURES, 64).allows(odd)


@pytest.mark.parametrize("switch", sorted(SWITCHES))
def test_each_switch_takes_its_features_and_their_variants(
    switch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = ShaderLibrary(ALL_FEATURES, 64)
    monkeypatch.setenv("KOMPUTE_DML_DISABLE", switch)
    assert disabled_features() == set(SWITCHES[switch])
    less = ShaderLibrary(ALL_FEATURES, 64)
    assert less.features == ALL_FEATURES - set(SWITCHES[switch])
    for v in variants():
        assert less.allows(v) == (full.allows(v) and not v.features & set(SWITCHES[switch]))


def test_switches_name_features_that_shaders_may_need() -> None:
    for features in SWITCHES.values():
        assert set(features) <= ALL_FEATURES


@pytest.mark.parametrize("text", ["warp", "int8,warp", "INT8", "shaderInt8"])
def test_an_unknown_switch_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOMPUTE_DML_DISABLE", text)
    with pytest.raises(dml.DmlError, match="KOMPUTE_DML_DISABLE: expected names among"):
        disabled_features()


def test_spaces_and_empty_names_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOMPUTE_DML_DISABLE", " int8 ,, dot,")
    assert disabled_features() == {*SWITCHES["int8"], *SWITCHES["dot"]}


def test_a_variant_that_may_not_run_is_not_found_and_the_reason_is_given() -> None:
    demanding = [v for v in variants() if v.features]
    if not demanding:
        pytest.skip("every variant of this build needs nothing")
    bare = ShaderLibrary(frozenset())
    for v in demanding:
        shader, *axes = v.name.split(".")
        assert bare.find(shader, *axes) is None
        assert ShaderLibrary(ALL_FEATURES, 64).find(shader, *axes) is v
        with pytest.raises(dml.UnsupportedError, match=sorted(v.features)[0]):
            bare.get(shader, *axes)


def test_a_variant_that_was_not_built_is_named_with_those_that_were() -> None:
    bare = ShaderLibrary(frozenset())
    with pytest.raises(dml.UnsupportedError, match=r"identity\.b3;.*identity\.b32"):
        bare.get("activation_identity", "b3")
    with pytest.raises(dml.UnsupportedError, match="there are: none"):
        bare.get("no_such_shader")


def test_spirv_is_what_the_build_wrote() -> None:
    for v in variants():
        code = v.spirv
        assert len(code) % 4 == 0
        assert struct.unpack("<I", code[:4])[0] == 0x07230203, v.name


def _identity() -> Variant:
    return ShaderLibrary(frozenset()).get("activation_identity", "b32")


def test_constants_are_packed_by_name() -> None:
    v = _identity()
    spec = v.pack_spec({"WHOLE": 1})
    assert spec.dtype == np.uint32
    assert spec[v.spec_ids["WHOLE"][0]] == 1
    assert spec[v.spec_ids["LOCAL_SIZE"][0]] == v.spec_ids["LOCAL_SIZE"][1]
    push = v.pack_push({"count": -1, "sizes": [5, 6]})
    assert (push.dtype, len(push)) == (np.dtype(np.uint32), v.push_words)
    assert push[v.push_fields["count"][0]] == 2**32 - 1
    at, words = v.push_fields["sizes"]
    assert push[at : at + words].tolist() == [5, 6] + [0] * (words - 2)
    assert push.sum(dtype=np.uint64) == 2**32 - 1 + 11
    assert 4 * v.push_words <= 128


def test_every_push_block_fits_what_every_device_has() -> None:
    for v in variants():
        assert 4 * v.push_words <= 128, v.name


def test_constants_that_are_not_there_or_too_long_are_refused() -> None:
    v = _identity()
    with pytest.raises(KeyError, match="no push field 'colour'"):
        v.pack_push({"colour": 1})
    with pytest.raises(KeyError, match="no specialization constant 'colour'"):
        v.pack_spec({"colour": 1})
    with pytest.raises(ValueError, match="'out_steps' holds 7, got 8"):
        v.pack_push({"out_steps": [1] * 8})


def test_shaders_that_were_never_compiled_are_an_error_that_says_how(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(shader_library, "_SPIRV", tmp_path)
    manifest.cache_clear()
    try:
        with pytest.raises(dml.DmlError, match="toolchain spirv"):
            manifest()
    finally:
        manifest.cache_clear()


def test_no_shader_binds_more_buffers_than_the_device_allows() -> None:
    few = ShaderLibrary(frozenset(), max_bindings=8)
    name = "quantized_linear_add", "scalars"
    many = ShaderLibrary(frozenset(), max_bindings=9)
    assert few.find(*name) is None and many.find(*name) is not None
    with pytest.raises(dml.UnsupportedError, match=r"binds 9 storage buffers.* allows 8"):
        few.get(*name)


_FAST = {"quantized_linear_add.scalars",
         *(f"join_many.{how}.p{most}" for how in ("join", "split") for most in (14, 28)),
         "join_walked.join.p14", "join_walked.split.p14",
         *(f"convolution_depthwise_bytes.{to}.last{block}" for block in ("1x1", "1x4", "2x4")
           for to in ("bytes", "floats")),
         *(f"convolution_depthwise_bytes.floats.last{block}.tail"
           for block in ("1x1", "1x4", "2x4")),
         "rotary_append"}
"""Variants for which there is a slower one, or two operators, with fewer bindings."""


def test_core_variants_bind_few_buffers() -> None:
    wide = {v.name for v in variants()
            if not v.features and v.bindings > shader_library.MAX_CORE_BINDINGS}
    assert wide == _FAST
