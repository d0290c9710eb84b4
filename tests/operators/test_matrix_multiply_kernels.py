"""Every kernel of the matrix product that this device can run, on every layout of A and B."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from cases.matrix_multiply import nearest_float32
from kompute_dml.lowering import kernel as kernels
from kompute_dml.lowering.builder import PlanBuilder, target_of
from kompute_dml.lowering.plan import Operand, Plan, Target
from kompute_dml.operators.matrix_multiply import integer as matrix_multiply
from kompute_dml.operators.matrix_multiply.kernels import KERNELS, FixedKernel, IntegerKernel
from kompute_dml.operators.matrix_multiply.product import SHADER, SLOTS, Product
from kompute_dml.operators.matrix_multiply.repacking import SUMS, Repacked
from kompute_dml.runtime import zeros
from kompute_dml.runtime.adapters import CooperativeMatrix
from kompute_dml.runtime.heap import Allocation, Block
from kompute_dml.runtime.shader_library import ShaderLibrary, _all_variants

# One past tiles, whole tiles, multiples of vectors of 16 and others, and stacks of both.
SHAPES = [
    (1, 1, 1104, 272), (1, 4, 160, 48), (1, 7, 1040, 48), (1, 16, 256, 64), (3, 2, 1104, 20),
    (1, 17, 40, 19), (1, 40, 1104, 272), (1, 129, 257, 131), (1, 128, 128, 128), (3, 20, 64, 36),
]
LAYOUTS = ["packed", "transposed", "padded", "transposed batches", "stepped"]
# Layout of A, layout of B, and the constants among them.
PAIRS = [
    *((a, b, "") for a in LAYOUTS for b in LAYOUTS),
    *((layout, layout, owned) for layout in LAYOUTS for owned in ("a", "b", "ab")),
]


def _strides(layout: str, batch: int, rows: int, columns: int) -> list[int]:
    return {
        "packed": [rows * columns, columns, 1],
        "transposed": [rows * columns, 1, rows],
        "padded": [rows * (columns + 16), columns + 16, 1],
        "transposed batches": [columns, batch * columns, 1],
        "stepped": [2 * rows * columns, 2 * columns, 2],
        "repeated": [0, columns, 1],
    }[layout]


def _in_memory(matrix: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """The memory in which ``strides`` show ``matrix``."""
    last = sum((n - 1) * s for n, s in zip(matrix.shape, strides))
    memory = np.zeros(last + 1, matrix.dtype)
    np.lib.stride_tricks.as_strided(memory, matrix.shape, strides)[...] = matrix
    return memory


def _desc(shape: tuple[int, int, int, int], a_layout: str, b_layout: str, owned: str) -> Any:
    """A product with scales per row and column, and a bias of columns (of elements if B is padded).
    A or B is unsigned, with zero points; or both are, without."""
    batch, m, k, n = shape
    a_type, b_type = (np.uint8, np.int8) if (m + n) % 2 else (np.int8, np.uint8)
    plain = k % 128 == 0
    if plain:
        a_type = b_type = np.uint8
    real = np.float16 if a_layout == "padded" else np.float32

    def matrix(side: str, kind: Any, layout: str, rows: int, columns: int) -> dml.TensorDesc:
        flags = dml.TensorFlags.OWNED_BY_DML if side in owned else dml.TensorFlags.NONE
        return dml.TensorDesc(
            kind, (batch, rows, columns), _strides(layout, batch, rows, columns), flags,
            guaranteed_base_offset_alignment=16,
        )

    return dml.MatrixMultiplyIntegerToFloatOperatorDesc(
        a_tensor=matrix("a", a_type, a_layout, m, k),
        a_scale_tensor=dml.TensorDesc(real, (1, m, 1)),
        a_zero_point_tensor=None if plain else dml.TensorDesc(a_type, (1, m, 1)),
        b_tensor=matrix("b", b_type, b_layout, k, n),
        b_scale_tensor=dml.TensorDesc(real, (1, 1, n)),
        b_zero_point_tensor=None if plain else dml.TensorDesc(b_type, (1, 1, n)),
        bias_tensor=dml.TensorDesc(real, (batch, m, n), [0, n * (b_layout == "padded"), 1]),
        output_tensor=dml.TensorDesc(real, (batch, m, n)),
    )


def candidates(desc: Any, target: Target) -> list[IntegerKernel]:
    """The kernels that can compute a product, the presumably fastest first."""
    able, _ = kernels.candidates(KERNELS, Product(desc), target)
    return able


def plans_of(desc: Any, target: Target) -> Iterator[Plan]:
    """The plan of each kernel that can compute a product."""
    for kernel in candidates(desc, target):
        yield plan_of(desc, kernel, target)


def plan_of(desc: Any, kernel: IntegerKernel, target: Target) -> Plan:
    p = PlanBuilder(target, desc)
    kernel.lower(Product(desc), p)
    return p.build()


_OTHER_UNITS = ("t64k16", "t64m8n16", "t32m8n8")
"""Tiles for matrix units of other shapes than 16 x 16 x 32, or smaller subgroups."""


def variants_tested(target: Target) -> set[str]:
    """Names of the shader variants that the test below runs, or that are for other devices."""
    plans = [plan for shape in SHAPES for pair in PAIRS
             for plan in plans_of(_desc(shape, *pair), target)]
    others = {f"{SHADER}_coopmat.{tile}" for tile in _OTHER_UNITS}
    return others | {d.variant.name for plan in plans for d in (*plan.initialize, *plan.execute)}


def _run(device: dml.Device, compiled: Any, desc: Any, arrays: dict[str, np.ndarray]) -> np.ndarray:
    def bound(name: str) -> dml.BufferBinding | None:
        if name not in arrays:
            return None
        buffer = device.create_buffer(getattr(desc, name).total_tensor_size_in_bytes)
        buffer.write(arrays[name])
        return dml.BufferBinding(buffer)

    def scratch(size: int) -> dml.BufferBinding | None:
        return dml.BufferBinding(device.create_buffer(size)) if size else None

    names = [f.snake for f in desc.operator.spec.inputs]
    bindings = {name: bound(name) for name in names}
    owned = [n for n in names if n in arrays and getattr(desc, n).owned_by_dml]
    properties = compiled.binding_properties
    persistent = scratch(properties.persistent_resource_size)
    if owned:
        initializer = device.create_operator_initializer([compiled])
        table = device.create_binding_table(initializer)
        table.bind_inputs([[bindings[n] if n in owned else None for n in names]])
        table.bind_outputs([persistent])
        table.bind_temporary_resource(
            scratch(initializer.binding_properties.temporary_resource_size)
        )
        device.record_dispatch(initializer, table)
    output = device.create_buffer(desc.output_tensor.total_tensor_size_in_bytes)
    output.write(np.full(output.size_in_bytes // 4, 0x7FC0DEAD, np.uint32))
    table = device.create_binding_table(compiled)
    table.bind_inputs([None if n in owned else bindings[n] for n in names])
    table.bind_outputs([dml.BufferBinding(output)])
    table.bind_temporary_resource(scratch(properties.temporary_resource_size))
    table.bind_persistent_resource(persistent)
    device.record_dispatch(compiled, table)
    kind = desc.output_tensor.data_type.dtype
    sizes = desc.output_tensor.sizes
    return output.read().view(kind)[: int(np.prod(sizes))].reshape(sizes)


@pytest.mark.values
@pytest.mark.parametrize(("a_layout", "b_layout", "owned"), PAIRS)
@pytest.mark.parametrize("shape", SHAPES, ids="x".join("%d" for _ in range(4)).__mod__)
def test_every_kernel_gives_the_exact_sums(
    shape: tuple[int, int, int, int], a_layout: str, b_layout: str, owned: str,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = dml.default_device()
    desc = _desc(shape, a_layout, b_layout, owned)
    real = desc.output_tensor.data_type.dtype

    def integers(tensor: dml.TensorDesc) -> np.ndarray:
        limits = np.iinfo(tensor.data_type.dtype)
        return rng.integers(limits.min, limits.max, tensor.sizes, limits.dtype, endpoint=True)

    def scales(tensor: dml.TensorDesc) -> np.ndarray:
        return (rng.uniform(0.5, 1, tensor.sizes) / 64).astype(real)

    a, b = integers(desc.a_tensor), integers(desc.b_tensor)
    zeros = {name: integers(tensor) for name in ("a_zero_point_tensor", "b_zero_point_tensor")
             if (tensor := getattr(desc, name)) is not None}
    a_zero, b_zero = (zeros.get(f"{side}_zero_point_tensor", 0) for side in "ab")
    a_scale, b_scale = scales(desc.a_scale_tensor), scales(desc.b_scale_tensor)
    bias = rng.normal(0, 9, (shape[1] if b_layout == "padded" else 1, shape[3])).astype(real)
    arrays = {
        "a_tensor": _in_memory(a, desc.a_tensor.strides), "a_scale_tensor": a_scale,
        "b_tensor": _in_memory(b, desc.b_tensor.strides), "b_scale_tensor": b_scale,
        "bias_tensor": bias, **zeros,
    }
    sums = (a.astype(np.int64) - a_zero) @ (b.astype(np.int64) - b_zero)
    expected = nearest_float32(sums) * a_scale.astype(np.float32) * b_scale.astype(np.float32)
    expected = (expected + bias.astype(np.float32)).astype(real)
    target = target_of(device.runtime.library, device.adapter)
    for kernel in candidates(desc, target):
        monkeypatch.setattr(matrix_multiply, "KERNELS", (kernel,))
        compiled = device.compile_operator(device.create_operator(desc))
        y = _run(device, compiled, desc, arrays)
        # Distances in steps: devices may differ in the last bit of scaling.
        np.testing.assert_array_max_ulp(y, expected, 1)


@pytest.mark.values
@pytest.mark.parametrize("columns", [48, 130])
@pytest.mark.parametrize("rows", [1, 4, 20])
@pytest.mark.parametrize("shift, gap", [(0, 0), (16, 16), (4, 0), (1, 0), (0, 4), (0, 1)])
@pytest.mark.parametrize("side", "ab")
@pytest.mark.parametrize("along", [False, True], ids=["row-major", "along-k"])
def test_every_kernel_reads_matrices_that_lie_anywhere(
    along: bool, side: str, shift: int, gap: int, rows: int, columns: int, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One ``side`` begins ``shift`` bytes after a vector, with ``gap`` between batches."""
    device = dml.default_device()
    depth, batches = 64, 3

    def placed(matrices: np.ndarray, shift: int, gap: int) -> dml.Tensor:
        count = matrices[0].size
        memory = rng.integers(-128, 128, shift + batches * (count + gap) + 16, np.int8)
        view = memory[shift:][: batches * (count + gap)].reshape(batches, count + gap)
        view[:, :count] = matrices.reshape(batches, count)
        tensor = device.tensor(memory)[shift : shift + batches * (count + gap)]
        return tensor.reshape(batches, count + gap)[:, :count].reshape(matrices.shape)

    a, b = (rng.integers(-128, 128, (batches, *sizes), np.int8)
            for sizes in ((rows, depth), (depth, columns)))
    x = placed(a, *((shift, gap) if side == "a" else (0, 0)))
    stored = np.ascontiguousarray(b.swapaxes(1, 2)) if along else b
    y = placed(stored, *((shift, gap) if side == "b" else (0, 0)))
    y = y.transpose(0, 2, 1) if along else y
    expected = a.astype(np.int64) @ b

    def run() -> np.ndarray:
        device.compiled.clear()
        return dml.matrix_multiply_integer_to_float(x, 1.0, y, 1.0).numpy()

    np.testing.assert_array_equal(run(), expected)
    (compiled,) = device.compiled.values()
    for kernel in candidates(compiled.operator.desc, device.target)[1:]:
        monkeypatch.setattr(matrix_multiply, "KERNELS", (kernel,))
        np.testing.assert_array_equal(run(), expected)
    device.compiled.clear()


@pytest.mark.values
@pytest.mark.parametrize(("a_layout", "b_layout", "owned"), [p for p in PAIRS if not p[2]])
@pytest.mark.parametrize("shape", [(1, 700, 200, 400), (2, 480, 272, 496),
                                   (1, 513, 333, 417), (2, 500, 320, 512)])
def test_matrices_are_repacked_and_summed(
    shape: tuple[int, int, int, int], a_layout: str, b_layout: str, owned: str,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On any device, because only the kernels that read the result need matrix units. Here the
    result goes to the output."""
    device = dml.default_device()
    desc = _desc(shape, a_layout, b_layout, owned)
    made: list[Repacked] = []
    gives_sums = device.runtime.library.find(SUMS) is not None

    class IntoOutput(PlanBuilder):
        """A builder whose temporary memory is the output."""

        def temporary(self, itemsize: int, length: int) -> Operand:
            return super().temporary(itemsize, length)._replace(slot="output_tensor")

    class OnlyRepacks(FixedKernel):
        def shader(self, product: Product) -> str:
            return ""

        def lower(self, product: Product, p: PlanBuilder) -> None:
            p.__class__ = IntoOutput
            made.append(Repacked(product, 64, p, gives_sums))

    monkeypatch.setattr(matrix_multiply, "KERNELS", (OnlyRepacks("", 64, 64),))
    arrays = {name: rng.integers(0, 256, getattr(desc, name).sizes, np.uint8)
              for name in ("a_tensor", "b_tensor")}
    memory = {name: _in_memory(x, getattr(desc, name).strides) for name, x in arrays.items()}
    vectors = {name: np.zeros(getattr(desc, name).total_tensor_size_in_bytes, np.uint8)
               for name in SLOTS.values() if name not in arrays}
    compiled = device.compile_operator(device.create_operator(desc))
    got = _run(device, compiled, desc, {**vectors, **memory}).reshape(-1).view(np.uint8)

    depth = shape[2]
    for name, rows in {"a": arrays["a_tensor"], "b": arrays["b_tensor"].swapaxes(1, 2)}.items():
        signed = getattr(desc, f"{name}_tensor").data_type.is_signed
        rows = (rows if signed else rows ^ 0x80).view(np.int8)
        side = made[-1].sides[name]
        if side.elements is not None:
            expected = np.pad(rows, ((0, 0), (0, 0), (0, -depth % 64)))
            at = side.elements.offset
            kept = got[at:][: expected.size].view(np.int8).reshape(expected.shape)
            assert (kept == expected).all()
        if side.sums is None:
            assert not gives_sums
            continue
        chunks = range(0, depth, made[-1].chunk)
        sums = np.stack([rows[..., c : c + made[-1].chunk].sum(-1, np.int32) for c in chunks])
        at = side.sums.offset * 4
        assert (got[at:][: sums.nbytes].view(np.int32).reshape(sums.shape) == sums).all()


def _library_of_everything() -> ShaderLibrary:
    return ShaderLibrary(frozenset().union(*(v.features for v in _all_variants().values())), 64)


@pytest.mark.parametrize("depth", [128, 4096, 14336, 14352])
@pytest.mark.parametrize("columns", [128, 4096, 14336, 128 << 10])
@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_few_rows_by_few_columns_split_k(rows: int, columns: int, depth: int) -> None:
    desc = _desc((1, rows, depth, columns), "packed", "packed", "")
    adapter = replace(dml.default_device().adapter, cooperative_matrices=(), cores=132)
    target = target_of(_library_of_everything(), adapter)
    kernel = candidates(desc, target)[0]
    assert kernel.name == f"few_rows-n_contiguous64-r{rows}"
    parts = kernel.parts(
        Product(desc), depth, target.library.get(*kernel.variant.split(".")), target.traits)
    assert (parts > 1) == (columns <= 14336 and depth > 128)
    # As in the shader: all parts have an equal number of pieces, the last one the rest.
    pieces = -(-depth // (128 if rows in (2, 4) else 256))
    assert (parts - 1) * -(-pieces // parts) < pieces <= parts * -(-pieces // parts)


@pytest.mark.parametrize("replayed", [False, True])
def test_workgroups_that_split_k_leave_their_memory_zero(
    rng: np.random.Generator, replayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeatedly, in a small ring: a sum that is left behind would be added to the next."""
    monkeypatch.setattr(zeros, "_BYTES", 4 << 10)
    device = dml.Device(dml.default_device().adapter)
    if device.runtime.library.find(f"{SHADER}_few_rows", "n_contiguous", "r1") is None:
        pytest.skip("the only kernels that split K need packed dot products")
    a, b = (rng.integers(-128, 128, sizes, np.int8) for sizes in ((1, 2048), (2048, 384)))
    inputs = [device.tensor(x) for x in (a, np.float32([1]), b, np.float32([1]))]
    outs = [device.empty((1, 384)) for _ in range(40)]
    with device.record() if replayed else contextlib.nullcontext() as recording:
        for out in outs:
            dml.matrix_multiply_integer_to_float(*inputs, out=out)
    assert any(c.plan.zeroed_bytes for c in device.compiled.values())
    if recording is not None:
        for out in outs:
            dml.fill_value_constant(out.sizes, value=0.5, out=out)
        recording.replay()
    for out in outs:
        assert (out.numpy() == a.astype(np.int64) @ b).all()
    device.close()


def test_the_ring_of_zeros_hands_out_what_is_its_own() -> None:
    uploads = []

    def upload(data: np.ndarray, to: Allocation, offset: int) -> None:
        uploads.append((to, offset, data.nbytes))
        assert not data.any()

    block = Block(None, 1 << 30)
    ring = zeros.Zeros(lambda nbytes: Allocation(block, 0, nbytes),
                       SimpleNamespace(upload=upload))  # type: ignore[arg-type]
    places = [(ring.take(nbytes), nbytes) for nbytes in (2 << 20, 1 << 20, 1000, 2 << 20, 5 << 20)]
    for slot, nbytes in places:
        assert slot.byte_offset % 256 == 0
        assert slot.byte_offset + nbytes <= slot.allocation.nbytes
    first, second, third, fourth, _ = [slot.byte_offset for slot, _ in places]
    assert (first, second, third, fourth) == (0, 2 << 20, 3 << 20, 0)
    assert uploads == [(slot.allocation, 0, slot.allocation.nbytes)
                       for slot, _ in (places[0], places[4])]


def test_a_ring_that_could_not_be_filled_is_not_taken_for_zeros() -> None:
    """A host buffer may fail for lack of memory, or a wait for it may be interrupted."""
    filled: list[Allocation] = []

    def upload(data: np.ndarray, to: Allocation, offset: int) -> None:
        if not failures:
            filled.append(to)
            return
        raise failures.pop()

    ring = zeros.Zeros(lambda nbytes: Allocation(Block(None, nbytes), 0, nbytes),
                       SimpleNamespace(upload=upload))  # type: ignore[arg-type]
    failures = [dml.OutOfMemoryError("the first")]
    with pytest.raises(dml.OutOfMemoryError):
        ring.take(1000)
    small = ring.take(1000)
    failures = [dml.OutOfMemoryError("a larger one")]
    with pytest.raises(dml.OutOfMemoryError):
        ring.take(small.allocation.nbytes + 1)
    assert [ring.take(1000).allocation, small.allocation] == filled * 2


@pytest.mark.parametrize("owned", ["", "b"])
@pytest.mark.parametrize("in_time", [True, False])
def test_tiles_take_the_sums_of_other_workgroups_or_make_them(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, in_time: bool, owned: str
) -> None:
    """Several workgroups sum each side, in three batches. Repeatedly, because each dispatch begins
    with the count that the one before left."""
    device = dml.Device(dml.default_device().adapter)
    shape = batch, m, k, n = (3, 300, 384, 520)
    desc = _desc(shape, "packed", "transposed", owned)
    target = target_of(device.runtime.library, device.adapter)
    offered = tuple(c for c in candidates(desc, target) if c.makes_sums)
    if not offered:
        pytest.skip("the kernel needs matrix units")
    monkeypatch.setattr(matrix_multiply, "KERNELS", offered)
    a, b = (rng.integers(0, 256, sizes, np.uint8) for sizes in ((batch, m, k), (batch, k, n)))
    arrays = {
        "a_tensor": a, "a_scale_tensor": np.ones(m, np.float32),
        "b_tensor": _in_memory(b, desc.b_tensor.strides), "b_scale_tensor": np.ones(n, np.float32),
        "bias_tensor": np.zeros(n, np.float32),
    }
    for _ in range(4):
        compiled = device.compile_operator(device.create_operator(desc))
        assert compiled.plan.zeroed_bytes
        y = _run(device, compiled, desc, arrays)
        assert (y == a.astype(np.int64) @ b).all()
        ring = device.runtime.zeros._ring
        assert ring is not None
        left = device.read(ring, 0, ring.nbytes).view(np.uint32)
        assert (left == (0 if in_time else left)).all()
        if not in_time:  # a count that never becomes complete
            device.write(ring, 0, np.full(ring.nbytes // 4, 100, np.uint32).view(np.uint8))
    device.close()


@pytest.mark.parametrize(
    ("kind", "x", "y", "depth", "counted"),
    [
        ("int8", -128, 127, 4096, True), ("int8", 127, 127, 4096, True),
        ("uint8", 255, 255, 4096, True),
        ("int8", -128, -128, 8192, True),  # 2, 4 rows: the most parts that can be counted
        ("uint8", 255, 255, 8192, False), ("int8", -128, -128, 16384, False),
    ],
)
@pytest.mark.parametrize("rows", [1, 2, 4, 8])
@pytest.mark.parametrize("half", [False, True])
def test_parts_are_counted_above_the_largest_sums(
    kind: str, x: int, y: int, depth: int, counted: bool, rows: int, half: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matrix_multiply, "KERNELS", tuple(
        k for k in KERNELS if k.file == f"{SHADER}_few_rows"))
    device = dml.default_device()
    if device.runtime.library.find(f"{SHADER}_few_rows", "n_contiguous64", "r1") is None:
        pytest.skip("parts are counted in words of 64 bits")
    a, b = np.full((rows, depth), x, kind), np.full((depth, 132), y, kind)
    a[-1, ::3] = 1
    scale = np.array([2.0**-16 if half else 1], np.float16 if half else np.float32)
    expected = (a.astype(np.int64) @ b) * scale.astype(np.float64)
    device.compiled.clear()
    for _ in range(3):
        got = dml.matrix_multiply_integer_to_float(a, scale, b, np.ones_like(scale)).numpy()
        assert (got == expected.astype(scale.dtype)).all()
    (compiled,) = device.compiled.values()
    device.compiled.clear()
    assert (compiled.plan.execute[0].push["count_shift"] > 0) == counted


def _with_matrix_units(
    kilobytes: int = 48, kinds: str = "i", shape: tuple[int, int, int] = (16, 16, 32),
    own: int = 32, sizes: tuple[int, int] = (0, 0),
) -> Target:
    """A target with an H200's matrix units, for signed ("i") or unsigned ("u") bytes, or with those
    of another shape, and subgroups of ``own`` or of these sizes."""
    every = _library_of_everything()
    if every.find(f"{SHADER}_coopmat", "t128") is None:
        pytest.skip("the cooperative-matrix shader needs a newer glslang")
    shapes = tuple(
        CooperativeMatrix(*shape, f"{t}8", f"{t}8", f"{t}32", f"{t}32", "subgroup")
        for t in kinds
    )
    return target_of(every, replace(
        dml.default_device().adapter, max_shared_memory=kilobytes << 10, subgroup_size=own,
        subgroup_sizes=sizes, features=frozenset({"subgroupSizeControl", "computeFullSubgroups"}),
        cooperative_matrices=shapes, cores=132,
    ))


@pytest.mark.parametrize(("shape", "own", "sizes", "tile"), [
    ((16, 16, 32), 32, (32, 32), "coopmat-t128"),
    ((16, 16, 16), 64, (32, 64), "coopmat-t64k16"),
    ((16, 16, 16), 64, (64, 64), ""),  # nothing is made for 64
    ((8, 16, 32), 32, (16, 32), "coopmat-t64m8n16"),
    ((8, 8, 32), 32, (8, 32), "coopmat-t32m8n8"),
    ((16, 8, 32), 32, (32, 32), ""),  # a shape that no kernel has
])
def test_matrix_units_are_those_that_the_device_lists(
    shape: tuple[int, int, int], own: int, sizes: tuple[int, int], tile: str
) -> None:
    target = _with_matrix_units(shape=shape, own=own, sizes=sizes)
    desc = _desc((1, 2048, 2048, 2048), "packed", "transposed", "")
    names = [kernel.name for kernel in candidates(desc, target)]
    assert names[0] == tile if tile else not any(name.startswith("coopmat") for name in names)
    plan = plan_of(desc, candidates(desc, target)[0], target)
    for dispatch in plan.execute:
        assert dispatch.variant.subgroup_size in (0, own, *sizes)


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "a_layout", "lanes", "kernel"),
    [
        (1, 4096, 4096, "packed", 32, "few_rows_subgroups-r1"),
        (1, 1 << 15, 4096, "packed", 32, "few_rows_subgroups-r1"),
        (1, 1 << 16, 4096, "packed", 32, "few_rows-k_contiguous-r1"),
        (1, 4096, 4096, "padded", 32, "few_rows-k_contiguous-r1"),  # to float16
        (1, 4096, 4096, "packed", 8, "few_rows-k_contiguous-r1"),
        (2, 4096, 8192, "packed", 32, "few_rows-k_contiguous-r2"),
        (3, 4096, 8184, "packed", 32, "few_rows-k_contiguous-r4"),
        (3, 4096, 8192, "packed", 32, "few_rows_subgroups-r4"),
        (4, 4096, 8184, "packed", 32, "few_rows-k_contiguous-r4"),
        (4, 4096, 8192, "packed", 32, "few_rows_subgroups-r4"),
    ],
)
def test_few_rows_are_multiplied_by_subgroups(
    rows: int, depth: int, columns: int, a_layout: str, lanes: int, kernel: str
) -> None:
    target = _with_matrix_units()
    target = replace(target, traits=replace(
        target.traits, subgroup_size=lanes, subgroup_sizes=()))
    desc = _desc((1, rows, depth, columns), a_layout, "transposed", "")
    assert candidates(desc, target)[0].name == kernel


@pytest.mark.parametrize(
    ("rows", "depth", "ahead", "whole"),
    [
        (1, 4096, 8, True), (1, 14336, 7, True), (1, 512 * 13, 7, False), (1, 4096 + 16, 5, False),
        (1, 384, 1, False), (4, 4096, 1, True), (4, 4096 + 16, 1, False),
    ],
)
def test_lanes_read_as_many_vectors_each_time(
    rows: int, depth: int, ahead: int, whole: bool
) -> None:
    target = _with_matrix_units()
    desc = _desc((1, rows, depth, 64), "packed", "transposed", "")
    kernel = next(k for k in candidates(desc, target) if "subgroups" in k.name)
    plan = plan_of(desc, kernel, target)
    assert (plan.execute[0].spec["AHEAD"], plan.execute[0].spec["WHOLE"]) == (ahead, whole)


@pytest.mark.parametrize(
    ("rows", "columns", "kernel"),
    [
        (16, 4096, "few_rows_coopmat-k_contiguous8"), (16, 11008, "few_rows_coopmat-k_contiguous"),
        (32, 4096, "few_rows_coopmat-k_contiguous8"), (32, 11008, "coopmat-t48x96"),
        (33, 4096, "coopmat-t64d"),
    ],
)
def test_few_columns_take_more_subgroups_to_a_tile(rows: int, columns: int, kernel: str) -> None:
    desc = _desc((1, rows, 4096, columns), "packed", "transposed", "")
    assert candidates(desc, _with_matrix_units())[0].name == kernel


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "kernel"),
    [
        (5, 4096, 4096, "transposed-r16"), (16, 4096, 4096, "transposed-r16"),
        (17, 4096, 4096, "transposed-r32"), (128, 4096, 4096, "transposed-r32"),
        (5, 2048, 4096, "coopmat-n_contiguous"), (64, 2048, 4096, "coopmat-n_contiguous"),
        (16, 8192, 512, "transposed-r16"),
        (16, 4096, 8196, "coopmat-n_contiguous"),  # rows are not aligned to vectors
    ],
)
def test_wide_tiles_read_much_of_a_row_major_matrix(
    rows: int, depth: int, columns: int, kernel: str
) -> None:
    desc = _desc((1, rows, depth, columns), "packed", "packed", "")
    assert candidates(desc, _with_matrix_units())[0].name == f"few_rows_{kernel}"


@pytest.mark.parametrize(("rows", "depth"), [(65, 2048), (129, 4096)])
def test_many_rows_have_a_row_major_matrix_repacked(rows: int, depth: int) -> None:
    desc = _desc((1, rows, depth, 4096), "packed", "packed", "")
    assert not any("few_rows" in k.name for k in candidates(desc, _with_matrix_units()))


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "tile"),
    [
        (128, 1536, 1536, "t32d"), (128, 4096, 4096, "t64d"), (1024, 1024, 1024, "t64"),
        # One wave of 132 multiprocessors. The next smaller tile would take two waves.
        (384, 1536, 1536, "t48x96"), (512, 1536, 1536, "t64x96"), (384, 4096, 4096, "t96x128"),
        (512, 4096, 4096, "t128d"),
        # Sums of both sides are computed by the tiles, by separate workgroups (if these add no
        # wave,
    # or one to many), or by the dispatch that repacks.
        (2048, 2048, 2048, "t128"), (4096, 4096, 4096, "t128"), (4096, 4112, 4096, "t128w"),
        (2560, 2048, 2048, "t128s"), (2560, 1024, 2048, "t128"), (2048, 2048, 4096, "t128"),
        (3072, 3072, 3072, "t128s"), (6144, 4096, 6144, "t128s"),
    ],
)
def test_tiles_are_as_large_as_keeps_a_device_busy(
    rows: int, depth: int, columns: int, tile: str
) -> None:
    desc = _desc((1, rows, depth, columns), "packed", "transposed", "")
    assert candidates(desc, _with_matrix_units())[0].name == f"coopmat-{tile}"


@pytest.mark.parametrize(
    ("side", "tile"), [(2048, "t128"), (3072, "t128s"), (4096, "t128w"), (6144, "t128s")]
)
def test_sums_of_one_side_are_computed_before_or_in_the_product(side: int, tile: str) -> None:
    desc = replace(
        _desc((1, side, side, side), "packed", "transposed", ""),
        b_tensor=dml.TensorDesc(np.int8, (1, side, side), [side * side, 1, side],
                                guaranteed_base_offset_alignment=16),
    )
    product = Product(desc)
    assert [product.needs_sums(side) for side in "ab"] == [False, True]
    assert candidates(desc, _with_matrix_units())[0].name == f"coopmat-{tile}"


@pytest.mark.parametrize(
    ("batches", "side", "layout", "counted"),
    [
        (2047, 128, "packed", True), (2048, 128, "packed", False),
        ((1 << 20) - 1, 16, "repeated", True), (1 << 20, 16, "repeated", False),
    ],
)
def test_separate_workgroups_compute_sums_where_one_word_counts_all_workgroups(
    batches: int, side: int, layout: str, counted: bool
) -> None:
    desc = _desc((batches, side, 128, side), layout, layout, "")
    names = [k.name for k in candidates(desc, _with_matrix_units())]
    assert ("coopmat-t128s" in names) == counted


@pytest.mark.parametrize(("batches", "tile"), [(2047, "t128s"), (2048, "t128w")])
def test_sums_of_too_many_workgroups_are_computed_otherwise(
    batches: int, tile: str
) -> None:
    desc = _desc((batches, 128, 2048, 128), "packed", "transposed", "b")
    assert candidates(desc, _with_matrix_units())[0].name == f"coopmat-{tile}"


@pytest.mark.parametrize(("layout", "owned", "side", "depth", "given", "parts"), [
    ("transposed", "b", 2048, 2048, True, False), ("packed", "b", 2048, 1 << 16, True, False),
    ("transposed", "", 2048, 2048, False, False), ("packed", "", 2048, 2048, False, False),
    ("packed", "", 4096, 4096, True, True),
])
def test_only_a_kernel_that_computes_no_sums_is_given_them_in_parts(
    layout: str, owned: str, side: int, depth: int, given: bool, parts: bool
) -> None:
    target = _with_matrix_units()
    desc = _desc((1, side, depth, side), "packed", layout, owned)
    for dispatch in plan_of(desc, candidates(desc, target)[0], target).execute:
        if "SUMS_IN_PARTS" in dispatch.variant.spec_ids:
            assert (dispatch.spec["B_SUMMED"], dispatch.spec["SUMS_IN_PARTS"]) == (given, parts)


@pytest.mark.parametrize(
    ("layout", "owned", "offered"),
    [("transposed", "", True), ("packed", "", False), ("transposed", "b", False)],
)
def test_the_unsigned_tile_takes_what_needs_no_repacking(
    layout: str, owned: str, offered: bool
) -> None:
    def names(depth: int) -> list[str]:
        desc = _desc((1, 4096, depth, 4096), "packed", layout, owned)
        return [k.name for k in candidates(desc, _with_matrix_units(kinds="iu"))]

    assert (names(4096)[0] == "coopmat-t128u") == offered
    assert "coopmat-t128u" not in names(4096 + 64)  # one side is signed, and there are zero points


@pytest.mark.parametrize("kilobytes", [16, 32, 40, 48])
def test_no_tile_asks_for_more_shared_memory_than_there_is(kilobytes: int) -> None:
    desc = _desc((1, 512, 4096, 4096), "packed", "transposed", "")
    target = _with_matrix_units(kilobytes)
    offered = {k.name: target.library.get(*k.variant.split("."))
               for k in candidates(desc, target) if k.k}
    # 128 x 128 tiles with slices of 128 take 40,448 bytes, with slices of 64 24,064.
    assert ("coopmat-t128d" in offered) == (kilobytes >= 40)
    assert ("coopmat-t128" in offered) == (kilobytes >= 32)
    assert all(v.shared_bytes <= kilobytes << 10 for v in offered.values())


@pytest.mark.parametrize(
    ("columns", "k", "fused"), [(512, 256, True), (510, 256, False), (512, 1 << 16, False)])
def test_matrix_units_store_quantized_sums_as_words(columns: int, k: int, fused: bool) -> None:
    one = dml.TensorDesc("float32", (1, 1))
    desc = dml.QuantizedLinearMatrixMultiplyOperatorDesc(
        a_tensor=dml.TensorDesc("int8", (512, k)), a_scale_tensor=one, a_zero_point_tensor=None,
        b_tensor=dml.TensorDesc("int8", (k, columns)), b_scale_tensor=one,
        b_zero_point_tensor=None, output_scale_tensor=one,
        output_zero_point_tensor=dml.TensorDesc("int8", (512, 1)),
        output_tensor=dml.TensorDesc("int8", (512, columns)))
    last = desc.operator.lower(desc, _with_matrix_units()).execute[-1]
    assert (last.variant.shader == "requantize") != fused
    if fused:
        assert last.spec["QUANTIZED"] and last.spec["INTEGER"]
        assert last.push["bias_strides"] == (0, 0, 1)
