"""Every kernel of the matrix product that this device may run, on every layout of A and B."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from cases.matrix_multiply import nearest_float32
from kompute_dml.operators import matrix_multiply
from kompute_dml.operators.matrix_multiply_kernels import Kernel, Product, candidates
from kompute_dml.operators.plan import Target

# One past tiles, whole tiles, what vectors of 16 divide and do not, and stacks of either.
SHAPES = [
    (1, 1, 592, 272), (1, 4, 160, 48), (1, 7, 1040, 33), (1, 16, 256, 64), (1, 17, 40, 19),
    (1, 129, 257, 131), (1, 128, 128, 128), (3, 20, 64, 36),
]
LAYOUTS = ["packed", "transposed", "padded", "turned batches"]
# Layout of A, layout of B, and which of them are constants.
PAIRS = [
    *((a, b, "") for a in LAYOUTS for b in LAYOUTS),
    *((layout, layout, owned) for layout in LAYOUTS for owned in ("b", "ab")),
]


def _lay_out(matrix: np.ndarray, layout: str) -> tuple[np.ndarray, list[int]]:
    """What lies in memory, and the strides that show ``matrix`` in it."""
    batch, rows, columns = matrix.shape
    if layout == "transposed":
        return np.ascontiguousarray(matrix.transpose(0, 2, 1)), [rows * columns, 1, rows]
    if layout == "padded":
        wide = np.zeros((batch, rows, columns + 16), matrix.dtype)
        wide[..., :columns] = matrix
        return wide, [rows * (columns + 16), columns + 16, 1]
    if layout == "turned batches":
        return np.ascontiguousarray(matrix.transpose(1, 0, 2)), [columns, batch * columns, 1]
    return matrix, [rows * columns, columns, 1]


def _kernels(device: dml.Device, desc: Any) -> list[Kernel]:
    return candidates(Product(desc), Target(device._runtime.library, device.adapter))


def _run(device: dml.Device, compiled: Any, desc: Any, arrays: dict[str, np.ndarray]) -> np.ndarray:
    def bound(name: str) -> dml.BufferBinding | None:
        if name not in arrays:
            return None
        buffer = device.create_buffer(-(-arrays[name].nbytes // 4) * 4)
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


@pytest.mark.parametrize(("a_layout", "b_layout", "owned"), PAIRS)
@pytest.mark.parametrize("shape", SHAPES, ids="x".join("%d" for _ in range(4)).__mod__)
def test_every_kernel_gives_the_exact_sums(
    shape: tuple[int, int, int, int], a_layout: str, b_layout: str, owned: str,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = dml.default_device()
    batch, m, k, n = shape
    a_type, b_type = (np.uint8, np.int8) if (m + n) % 2 else (np.int8, np.uint8)
    half = a_layout == "padded"
    scale_type = np.float16 if half else np.float32

    def integers(kind: Any, *sizes: int) -> np.ndarray:
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, sizes, kind, endpoint=True)

    a, b = integers(a_type, batch, m, k), integers(b_type, batch, k, n)
    zeros = integers(a_type, 1, m, 1), integers(b_type, 1, 1, n)
    scales = [(rng.uniform(0.5, 1, s) / 64).astype(scale_type) for s in ((1, m, 1), (1, 1, n))]
    bias = rng.normal(0, 9, (1, 1, n)).astype(scale_type)
    in_memory = {"a_tensor": _lay_out(a, a_layout), "b_tensor": _lay_out(b, b_layout)}

    def desc_of(name: str, array: np.ndarray, sizes: Any, strides: Any = None) -> dml.TensorDesc:
        flags = dml.TensorFlags.OWNED_BY_DML if name[0] in owned else dml.TensorFlags.NONE
        alignment = 16 if name in in_memory else 0
        return dml.TensorDesc(array.dtype, sizes, strides, flags,
                              guaranteed_base_offset_alignment=alignment)

    vectors = {
        "a_scale": scales[0], "a_zero_point": zeros[0], "b_scale": scales[1],
        "b_zero_point": zeros[1],
    }
    fields = {
        name: desc_of(name, array, matrix.shape, strides)
        for (name, (array, strides)), matrix in zip(in_memory.items(), (a, b))
    }
    fields |= {f"{name}_tensor": dml.TensorDesc(v.dtype, v.shape) for name, v in vectors.items()}
    fields["bias_tensor"] = dml.TensorDesc(bias.dtype, (batch, m, n), [0, 0, 1])
    fields["output_tensor"] = dml.TensorDesc(scale_type, (batch, m, n))
    desc = dml.MatrixMultiplyIntegerToFloatOperatorDesc(**fields)
    arrays = {name: array for name, (array, _) in in_memory.items()}
    arrays |= {f"{name}_tensor": v for name, v in vectors.items()} | {"bias_tensor": bias}

    sums = (a.astype(np.int64) - zeros[0]) @ (b.astype(np.int64) - zeros[1])
    expected = nearest_float32(sums) * scales[0].astype(np.float32) * scales[1].astype(np.float32)
    expected = (expected + bias.astype(np.float32)).astype(scale_type)
    for kernel in _kernels(device, desc):
        monkeypatch.setattr(matrix_multiply, "candidates", lambda *_, chosen=kernel: [chosen])
        compiled = device.compile_operator(device.create_operator(desc))
        y = _run(device, compiled, desc, arrays)
        # Steps in a row: a device may round the last bit of scaling differently.
        np.testing.assert_array_max_ulp(y, expected, 1)
