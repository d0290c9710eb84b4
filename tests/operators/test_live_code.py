"""Shaders without the calls that their specialization constants rule out. All other tests run
what is left."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.runtime import kp_engine
from kompute_dml.runtime.live_code import live_code
from kompute_dml.toolchain.reflect import reflect
from test_toolchain import build

CONDITIONS = {
    "CODE == 7u": lambda code, flag: code == 7,
    "(CODE >> 4u & 15u) != 1u": lambda code, flag: code >> 4 & 15 != 1,
    "CODE % 7u < 3u": lambda code, flag: code % 7 < 3,
    "CODE / 5u >= 2u || FLAG": lambda code, flag: code // 5 >= 2 or flag,
    "!FLAG && CODE != 0u": lambda code, flag: not flag and code != 0,
    "(FLAG ? CODE : 3u) > 2u": lambda code, flag: (code if flag else 3) > 2,
    "(CODE ^ 5u) <= 2u": lambda code, flag: code ^ 5 <= 2,
    "(~CODE & 1u) == 0u": lambda code, flag: code & 1 == 1,
    "(CODE << 3u | 1u) * 3u == 3u": lambda code, flag: code == 0,
    "CODE - 1u > 100u": lambda code, flag: (code - 1) % 2**32 > 100,
    "FLAG == (CODE > 6u)": lambda code, flag: flag == (code > 6),
}
_LISTED = [*CONDITIONS]
SHADER = f"""\
//@ op -
#version 450
layout(constant_id = 0) const uint CODE = 7u;
layout(constant_id = 1) const bool FLAG = true;
layout(binding = 0) buffer Numbers {{ uint numbers[]; }};
{"".join(f"void store_{i}() {{ numbers[{i}] = 1u; }}" for i in range(len(_LISTED)))}
void main() {{
    {"".join(f"if ({condition}) store_{i}();" for i, condition in enumerate(_LISTED))}
}}
"""
NESTED = """\
//@ op -
#version 450
layout(constant_id = 0) const uint CODE = 0u;
layout(constant_id = 1) const int SIGNED = 0;
layout(binding = 0) buffer Numbers { float numbers[]; };
float deep(float x) { precise float y = x * x + 1.0; return y; }
float deeper(float x) { return CODE == 1u ? deep(x) : x; }
float read() { return numbers[0]; }
float chosen(float x) {
    switch (int(x)) {
        case 0: return read();
        case 1: return deeper(x);
        default: return 2.0;
    }
}
void main() {
    float sum = 0.0;
    for (uint i = 0u; i < CODE; i++) {
        if (numbers[i] > 0.0) {
            if (CODE != 2u) sum += chosen(numbers[i]);
            else continue;
        }
        sum += 1.0;
    }
    if (SIGNED < 0) sum += read();
    numbers[1] = sum;
}
"""


def compiled(folder: Path, source: str) -> bytes:
    build(folder, source)
    return (folder / "spirv" / "trial.spv").read_bytes()


def functions(code: bytes) -> int:
    words, at, count = memoryview(code).cast("I"), 5, 0
    while at < len(words):
        count += words[at] & 0xFFFF == 54
        at += words[at] >> 16
    if shutil.which("spirv-val"):
        subprocess.run(["spirv-val", "--target-env", "vulkan1.1", "-"], input=code, check=True)
    return count


def test_conditions_of_constants(tmp_path: Path) -> None:
    code = compiled(tmp_path, SHADER)
    assert functions(code) == 1 + len(CONDITIONS)
    for number in (0, 1, 2, 5, 7, 9, 16, 200):
        for flag in (False, True):
            live = live_code(code, np.array([number, flag], np.uint32))
            expected = sum(map(bool, (c(number, flag) for c in CONDITIONS.values())))
            assert functions(live) == 1 + expected, (number, flag)
    assert live_code(code, np.zeros(0, np.uint32)) == live_code(code, np.array([7, 1], np.uint32))
    assert live_code(code, np.array([7, 1], np.uint32)) is live_code(code, np.uint32([7, 1])), (
        "computed twice")


@pytest.mark.parametrize("number,count", [(0, 4), (1, 5), (2, 2), (3, 4)])
def test_functions_of_functions_stay_while_one_is_called(
    tmp_path: Path, number: int, count: int
) -> None:
    """A loop's bound and a signed number rule nothing out."""
    code = compiled(tmp_path, NESTED)
    live = live_code(code, np.array([number, 5], np.uint32))
    assert functions(live) == count
    assert {**reflect(live), "spec": 0} == {**reflect(code), "spec": 0}


def test_drivers_get_what_is_left(device: dml.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []

    def measured(code: bytes, spec: np.ndarray) -> bytes:
        live = live_code(code, spec)
        sizes.append((len(live), len(code)))
        return live

    monkeypatch.setattr(kp_engine, "live_code", measured)
    own = dml.Device(device.adapter)
    y = dml.activation_elu(own.tensor(np.float32([1, -2]))).numpy()
    np.testing.assert_allclose(y, [1, np.expm1(-2)], rtol=1e-6)
    assert sizes and all(live <= code for live, code in sizes)
    assert any(live < code for live, code in sizes)
    own.close()
