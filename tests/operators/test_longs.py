"""Shaders that move 64-bit numbers. Other tests run them if the device is a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import kompute_dml as dml
from kompute_dml.runtime import kp_engine, longs
from kompute_dml.runtime.longs import by_longs
from kompute_dml.toolchain.reflect import reflect
from test_toolchain import build

SHADER = """\
//@ op -
#version 450
layout(binding = 0) readonly buffer Whole { vec4 whole[]; };
layout(binding = 1) readonly buffer Apart { uvec4 apart[]; };
layout(binding = 2) readonly buffer Counted { uint count; ivec4 counted[]; };
layout(binding = 3) readonly buffer Words { uint words[]; };
layout(binding = 4) writeonly buffer Pairs { uvec2 pairs[]; };
void main() {
    pairs[1] = floatBitsToUint(whole[0].xy) + apart[0].z + uvec2(counted[count].zw) + words[0];
}
"""
"""A shader that accesses its first and last buffers by whole vectors only."""


def element_bits(code: bytes) -> list[int]:
    """The bits of the scalars of each runtime array in a module."""
    body = list(longs._instructions(memoryview(code).cast("I")))
    parts = {a[0]: a[1] for op, a in body if op == longs._TYPE_VECTOR}
    bits = {a[0]: a[1] for op, a in body if op in (longs._TYPE_INT, longs._TYPE_FLOAT)}
    return [bits[parts.get(a[1], a[1])] for op, a in body if op == longs._TYPE_RUNTIME_ARRAY]


def test_whole_vectors_become_longs(tmp_path: Path) -> None:
    build(tmp_path, SHADER)
    code = (tmp_path / "spirv" / "trial.spv").read_bytes()
    changed = by_longs(code)
    assert sorted(element_bits(code)) == [32] * 5
    assert sorted(element_bits(changed)) == [32] * 3 + [64] * 2
    assert by_longs(changed) == changed
    assert reflect(changed)["capabilities"] == ["Int64", *reflect(code)["capabilities"]]


@pytest.mark.parametrize("disabled", ["", "int64"])
def test_a_cpu_gets_them(
    device: dml.Device, disabled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[bytes] = []
    monkeypatch.setattr(kp_engine, "by_longs", lambda code: changed.append(code) or by_longs(code))
    monkeypatch.setenv("KOMPUTE_DML_DISABLE", disabled)
    own = dml.Device(device.adapter)
    dml.identity(own.tensor([1, 2, 3], "uint8")).numpy()
    wanted = own.adapter.is_cpu and "shaderInt64" in own.features
    assert bool(changed) == wanted
    assert not (disabled and wanted)
    own.close()
