"""Matrix units that no device here has: shaders for them, with matrices in shared memory instead.
Only where an element of a matrix lies is not tested in this way."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import kompute_dml as dml
from kompute_dml.runtime.adapters import CooperativeMatrix
from kompute_dml.runtime.shader_library import ShaderLibrary, Variant, described
from kompute_dml.runtime.traits import DeviceClass
from kompute_dml.toolchain import glslang

SHADERS = Path(__file__).parents[1] / "shaders"
SHAPES = {"t64k16": (16, 16, 16, 32), "t64m8n16": (8, 16, 32, 16), "t32m8n8": (8, 8, 32, 8)}
"""M, N, K and the size of subgroups, by tile of convolutions of bytes."""
BFLOAT16_SHAPES = {
    "t64": (16, 16, 16, 32), "t32": (16, 16, 16, 32), "t64m8n16": (8, 16, 16, 16),
    "t32m8n8": (8, 8, 16, 8)}
"""The same of products of BFLOAT16."""
MATRICES = """
struct RowFragment { uint from; uint pitch; };
struct ColumnFragment { uint from; uint pitch; };
struct Product { int sums[M * N / LANES]; };

void place(out RowFragment x, uint from, uint pitch, bool _) { x = RowFragment(from, pitch); }
void place(out ColumnFragment x, uint from, uint pitch, bool _) {
    x = ColumnFragment(from, pitch);
}

int byte_at(uint line, uint d) {
    return bitfieldExtract(int(s_slice[line + d / 16u][d / 4u % 4u]), int(d % 4u * 8u), 8);
}

Product no_product() {
    Product p;
    for (uint i = 0u; i < M * N / LANES; ++i) p.sums[i] = 0;
    return p;
}

Product coopMatMulAdd(RowFragment a, ColumnFragment b, Product p) {
    for (uint i = 0u; i < M * N / LANES; ++i) {
        uint n = OWN_LANE + i * LANES;
        uint row = a.from + n / N * a.pitch, column = b.from + n % N * b.pitch;
        for (uint d = 0u; d < DEPTH; ++d) p.sums[i] += byte_at(row, d) * byte_at(column, d);
    }
    return p;
}

void coopMatStore(Product p, uint from, uint pitch, bool by_columns) {
    for (uint i = 0u; i < M * N / LANES; ++i) {
        uint n = OWN_LANE + i * LANES, row = n / N, column = n % N;
        uint at = 4u * from + (by_columns ? column * 4u * pitch + row : row * 4u * pitch + column);
        s_slice[at / 4u][at % 4u] = uint(p.sums[i]);
    }
}

void main() {"""
OF_BFLOAT16 = """
struct RowFragment { uint from; uint pitch; bool by_columns; };
struct ColumnFragment { uint from; uint pitch; bool by_columns; };
struct Sums { float numbers[M * N / LANES]; };

void place(out RowFragment x, uint from, uint pitch, bool by_columns) {
    x = RowFragment(from, pitch, by_columns);
}
void place(out ColumnFragment x, uint from, uint pitch, bool by_columns) {
    x = ColumnFragment(from, pitch, by_columns);
}

float element(uint from, uint pitch, bool by_columns, uint row, uint column) {
    uint at = 8u * from + (by_columns ? column * 8u * pitch + row : row * 8u * pitch + column);
    return uintBitsToFloat(s_slice[at / 8u][at / 2u % 4u] >> 16u * (at % 2u) << 16u);
}

Sums no_sums() {
    Sums p;
    [[dont_unroll]] for (uint i = 0u; i < M * N / LANES; ++i) p.numbers[i] = 0.0;
    return p;
}

Sums coopMatMulAdd(RowFragment a, ColumnFragment b, Sums p) {
    [[dont_unroll]] for (uint i = 0u; i < M * N / LANES; ++i) {
        uint n = OWN_LANE + i * LANES;
        [[dont_unroll]] for (uint d = 0u; d < DEPTH; ++d)
            p.numbers[i] += element(a.from, a.pitch, a.by_columns, n / N, d)
                            * element(b.from, b.pitch, b.by_columns, d, n % N);
    }
    return p;
}

void coopMatStore(Sums p, uint from, uint pitch, bool _) {
    [[dont_unroll]] for (uint i = 0u; i < M * N / LANES; ++i) {
        uint n = OWN_LANE + i * LANES, at = 4u * from + n / N * 4u * pitch + n % N;
        s_slice[at / 4u][at % 4u] = floatBitsToUint(p.numbers[i]);
    }
}

void main() {"""
_Change = tuple[str, str]
_ALWAYS: tuple[_Change, ...] = (
    (r"#extension GL_KHR_(cooperative_matrix|memory_scope_semantics) .*", ""),
    (r"\bgl_SubgroupInvocationID\b", "OWN_LANE"),
    (r"\bgl_SubgroupID\b", "(gl_LocalInvocationIndex / LANES)"),
    (r"\bsubgroupMemoryBarrierShared\b", "memoryBarrierShared"),
    (r"\bsubgroupBarrier\b", "barrier"),
    (r"\bcoopMatLoad\(([^,]+), s_slice, ([^;]+?),[\s\\]*(gl_\w+)\)", r"place(\1, \2, \3)"),
    (r"\bcoopMatStore\(([^,]+, [^,]+), s_slice,", r"coopMatStore(\1,"),
    (r"\bgl_CooperativeMatrixLayoutColumnMajor\b", "true"),
    (r"\bgl_CooperativeMatrixLayoutRowMajor\b", "false"),
)
"""What stands in for matrix units and subgroups."""


def emulated(
    shader: str, name: str, definitions: Sequence[str], changes: Sequence[_Change], folder: Path
) -> Variant:
    """A variant without matrix units."""
    text = (SHADERS / shader).read_text("utf-8")
    for old, new in (*_ALWAYS, *changes):
        text, count = re.subn(old, new, text)
        assert count, old
    text = text.replace(
        "#version 450", "#version 450\n#define OWN_LANE (gl_LocalInvocationIndex % LANES)")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("//@"))
    source, binary = folder / "emulated.comp", folder / "emulated.spv"
    source.write_text(text, "utf-8")
    variant = described(name)
    assert variant is not None
    sizes = [f"-DTILE_{size}={number}" for size, number in variant.sizes.items()]
    done = subprocess.run(
        [glslang.find().path, "-V", "--target-env", "vulkan1.1", f"-I{SHADERS}",
         f"-I{SHADERS / 'include'}", *definitions, *sizes, "-o", str(binary), str(source)],
        text=True, capture_output=True)
    assert done.returncode == 0, done.stdout
    variant = replace(variant, name=f"{variant.name}.emulated", features=frozenset())
    variant.__dict__["spirv"] = binary.read_bytes()
    return variant


def multiply_bytes(
    own: dml.Device, tile: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a device list the tile's matrix units, and run its shader without them."""
    m, n, depth, lanes = SHAPES[tile]
    adapter = own.adapter
    library = ShaderLibrary(adapter.features - {"cooperativeMatrix"}, adapter.max_storage_buffers)
    variant = emulated(
        "convolution/convolution_coopmat.comp", f"convolution_coopmat.i8.{tile}", ["-DOF_i8"],
        [(r"#define (Product|RowFragment|ColumnFragment) coopmat.*", ""),
         (r"\bProduct\(0\)", "no_product()"), (r"void main\(\) \{", MATRICES)], folder)
    library._found["convolution_coopmat", "i8", tile] = variant
    shape = CooperativeMatrix(m, n, depth, "i8", "i8", "i32", "i32", "subgroup")
    traits = replace(own.target.traits, device_class=DeviceClass.UNKNOWN,
                     slow_barriers=False, subgroup_sizes=(lanes,),
                     cooperative_matrices=(shape,))
    monkeypatch.setattr(own, "target", replace(own.target, library=library, traits=traits))


def multiply_bfloat16(
    own: dml.Device, tile: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let a device list the tile's units of BFLOAT16."""
    m, n, depth, lanes = BFLOAT16_SHAPES[tile]
    adapter = own.adapter
    if "storageBuffer16BitAccess" not in adapter.features:
        pytest.skip("the device does not store 16 bits at a time")
    library = ShaderLibrary(adapter.features - {"cooperativeMatrix"}, adapter.max_storage_buffers)
    library._found["gemm_coopmat", tile, "bfloat16"] = emulated(
        "matrix_multiply/gemm_coopmat.comp", f"gemm_coopmat.{tile}.bfloat16",
        ["-DBFLOAT16", f"-DTILE_{tile}"],
        [(r"#define (Sums|RowFragment|ColumnFragment) coopmat.*", ""),
         (r"\bSums\(0\.0\)", "no_sums()"), (r"void main\(\) \{", OF_BFLOAT16)], folder)
    shape = CooperativeMatrix(m, n, depth, "bf16", "bf16", "f32", "f32", "subgroup")
    traits = replace(own.target.traits, device_class=DeviceClass.UNKNOWN,
                     slow_barriers=False, subgroup_sizes=(lanes,),
                     cooperative_matrices=(shape,))
    monkeypatch.setattr(own, "target", replace(own.target, library=library, traits=traits))
