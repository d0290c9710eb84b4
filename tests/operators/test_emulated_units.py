"""Convolutions of bytes on matrix units that no device here has: their shader, with matrices in
shared memory instead. Only where an element of a matrix lies is not tested in this way."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml.runtime.adapters import CooperativeMatrix
from kompute_dml.runtime.shader_library import ShaderLibrary, Variant, described
from kompute_dml.toolchain import glslang

SHADERS = Path(__file__).parents[2] / "shaders"
SHAPES = {"t64k16": (16, 16, 16, 32), "t64m8n16": (8, 16, 32, 16), "t32m8n8": (8, 8, 32, 8)}
"""M, N, K and the size of subgroups, by tile."""
MATRICES = """
struct RowFragment { uint from; uint pitch; };
struct ColumnFragment { uint from; uint pitch; };
struct Product { int sums[M * N / LANES]; };

void place(out RowFragment x, uint from, uint pitch) { x = RowFragment(from, pitch); }
void place(out ColumnFragment x, uint from, uint pitch) { x = ColumnFragment(from, pitch); }

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


def _emulated(tile: str, folder: Path) -> Variant:
    """The variant of a tile, without matrix units."""
    text = (SHADERS / "convolution" / "convolution_coopmat.comp").read_text("utf-8")
    for old, new in (
        (r"#extension GL_KHR_(cooperative_matrix|memory_scope_semantics) .*", ""),
        (r"#define (Product|RowFragment|ColumnFragment) coopmat.*", ""),
        (r"\bgl_SubgroupInvocationID\b", "OWN_LANE"),
        (r"\bgl_SubgroupID\b", "(gl_LocalInvocationIndex / LANES)"),
        (r"\bsubgroupMemoryBarrierShared\b", "memoryBarrierShared"),
        (r"\bsubgroupBarrier\b", "barrier"),
        (r"\bcoopMatLoad\(([^,]+), s_slice, ([^;]+?),\s*gl_\w+\)", r"place(\1, \2)"),
        (r"\bcoopMatStore\(([^,]+, [^,]+), s_slice,", r"coopMatStore(\1,"),
        (r"\bgl_CooperativeMatrixLayoutColumnMajor\b", "true"),
        (r"\bgl_CooperativeMatrixLayoutRowMajor\b", "false"),
        (r"\bProduct\(0\)", "no_product()"),
        (r"void main\(\) \{", MATRICES),
    ):
        text, count = re.subn(old, new, text)
        assert count, old
    text = text.replace(
        "#version 450", "#version 450\n#define OWN_LANE (gl_LocalInvocationIndex % LANES)")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("//@"))
    source, binary = folder / "emulated.comp", folder / "emulated.spv"
    source.write_text(text, "utf-8")
    variant = described(f"convolution_coopmat.i8.{tile}")
    assert variant is not None
    sizes = [f"-DTILE_{name}={size}" for name, size in variant.sizes.items()]
    done = subprocess.run(
        [glslang.find().path, "-V", "--target-env", "vulkan1.1", f"-I{SHADERS}",
         f"-I{SHADERS / 'include'}", "-DOF_i8", *sizes, "-o", str(binary), str(source)],
        text=True, capture_output=True)
    assert done.returncode == 0, done.stdout
    variant = replace(variant, name=f"{variant.name}.emulated", features=frozenset())
    variant.__dict__["spirv"] = binary.read_bytes()
    return variant


def _device(own: dml.Device, tile: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a device list the tile's matrix units, and run its shader without them."""
    m, n, depth, lanes = SHAPES[tile]
    adapter = own.adapter
    library = ShaderLibrary(adapter.features - {"cooperativeMatrix"}, adapter.max_storage_buffers)
    variant = _emulated(tile, folder)
    library._found["convolution_coopmat", "i8", tile] = variant
    shape = CooperativeMatrix(m, n, depth, "i8", "i8", "i32", "i32", "subgroup")
    traits = replace(own.target.traits, is_cpu=False, slow_barriers=False, subgroup_sizes=(lanes,),
                     cooperative_matrices=(shape,))
    monkeypatch.setattr(own, "target", replace(own.target, library=library, traits=traits))


def _image(own: dml.Device, values: np.ndarray, last: bool) -> dml.Tensor:
    if last:
        return own.tensor(values).transpose(0, 3, 1, 2)
    return own.tensor(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))


def _sums(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of windows of 3 x 3, with channels last."""
    padded = np.pad(x.astype(np.int64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("nhwcij,oijc->nohw", windows, w.astype(np.int64))


def _bytes(rng: np.random.Generator, kind: str, *sizes: int) -> np.ndarray:
    limits = np.iinfo(kind)
    return rng.integers(limits.min, limits.max + 1, sizes).astype(kind)


def _runs(own: dml.Device, tile: str) -> bool:
    return any(f"{tile}.emulated" in name for compiled in own.compiled.values()
               for name in compiled.variants)


@pytest.mark.parametrize("tile", SHAPES)
@pytest.mark.parametrize(("kinds", "zeros", "last"), [
    (("int8", "int8"), False, True), (("uint8", "int8"), True, True),
    (("uint8", "uint8"), True, False)])
def test_sums_of_bytes(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    tile: str, kinds: tuple[str, str], zeros: bool, last: bool,
) -> None:
    _device(own, tile, tmp_path, monkeypatch)
    x, w = _bytes(rng, kinds[0], 2, 7, 9, 48), _bytes(rng, kinds[1], 72, 3, 3, 48)
    x_zero, w_zero = (_bytes(rng, kind, 1, 1, 1, 1) for kind in kinds)
    points = {"x_zero_point": own.tensor(x_zero), "filter_zero_point": own.tensor(w_zero)}
    y = dml.convolution_integer(
        _image(own, x, last), _image(own, w, last), start_padding=(1, 1), end_padding=(1, 1),
        **(points if zeros else {})).numpy()
    assert _runs(own, tile)
    wide = [t.astype(np.int64) - zeros * zero for t, zero in ((x, x_zero), (w, w_zero))]
    assert (y == _sums(*wide)).all()


@pytest.mark.parametrize("tile", SHAPES)
def test_quantized_bytes(
    own: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    tile: str,
) -> None:
    _device(own, tile, tmp_path, monkeypatch)
    x, w = _bytes(rng, "uint8", 2, 7, 9, 48), _bytes(rng, "int8", 72, 3, 3, 48)
    x_zero, w_zero = _bytes(rng, "uint8", 1, 1, 1, 1), np.zeros((1, 1, 1, 1), np.int8)
    y_zero = np.array([[[[117]]]], np.uint8)
    one, scale = np.ones((1, 1, 1, 1), np.float32), np.full((1, 1, 1, 1), 1024, np.float32)
    bias = rng.integers(-9999, 9999, (1, 72, 1, 1)).astype(np.int32)
    y = dml.quantized_linear_convolution(
        _image(own, x, True), *map(own.tensor, (one, x_zero)), _image(own, w, True),
        *map(own.tensor, (one, w_zero, scale, y_zero, bias)), start_padding=(1, 1),
        end_padding=(1, 1), data_type=dml.DataType.UINT8).numpy()
    assert _runs(own, tile)
    sums = _sums(x.astype(np.int64) - x_zero, w) + bias
    assert (y == np.clip(np.rint(sums / 1024) + 117, 0, 255)).all()
