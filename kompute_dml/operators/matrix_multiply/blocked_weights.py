"""GEMM by a B of 4- or 8-bit elements in blocks. Graphs make it from DEQUANTIZE and GEMM."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ...attributes import QuantizationType
from ...desc import TensorDesc
from ...lowering.builder import PlanBuilder
from ...lowering.plan import Plan, Target
from ...runtime.traits import DeviceTraits
from ...spec import Field
from ...tuning import work_key
from ..base import widened
from ..quantize_blocks import DequantizeOperatorDesc
from .float_kernels import (
    MANY_COLUMNS,
    WORTH_FRAGMENTS,
    FloatKernel,
    FloatProduct,
    MatrixView,
    fragments_of_blocks,
)
from .gemm import GemmOperatorDesc, dispatch_product, matrix_views, oriented

_HEIGHTS = (1, 2, 4, 8)
_COLUMNS = 4
"""As the shader has it: those of an invocation."""
_HELD_BYTES, _HELD_BYTES_OF_LITTLE = 1 << 14, 1 << 12
"""Bytes of A in shared memory, and where a workgroup has less than twice as much."""
_PLACES = {1: 3, 2: 2}
"""Workgroups for which a core has registers, by rows of a tile."""
_MOST_PARTS, _ADDING = 4, 0.4
"""The most parts of K for one or two rows, and the time that each costs, if a tile takes 1. More
rows are slower in parts."""


def most_rows(traits: DeviceTraits) -> int:
    """The most rows of A that the kernel is for. With more of them, multiplying takes the time, for
    which GEMM has better kernels."""
    return 8 if traits.slow_barriers else 16


def fits(b: TensorDesc, block: int) -> bool:
    """Whether the kernel can read a B whose description has columns and K, in this order."""
    vector, word = (n // b.data_type.bits for n in (128, 32))
    return (b.strides[1] == 1 and b.strides[0] % word == 0 and b.base_alignment % 4 == 0
            and (block % vector == 0 or block == 16))


def _kernel(g: FloatProduct, bits: int, device: DeviceTraits) -> FloatKernel:
    """The kernel without matrix units. For one or two rows, K is shared by the number of workgroups
    that keeps the cores busiest."""
    height = next((n for n in _HEIGHTS if n >= g.rows), _HEIGHTS[-1])
    vector = 128 // bits
    much, wide = device.max_shared_memory >= 2 * _HELD_BYTES, g.columns >= MANY_COLUMNS
    held_bytes = _HELD_BYTES if much else _HELD_BYTES_OF_LITTLE
    lanes = 32 if wide or height > 2 else 64
    invocations = 256
    if not device.is_cpu and ((height == 4 and wide) or height == 8 >= g.rows):
        # Less waits at a barrier. More tiles of rows would read A too often.
        invocations = 128
        if height == 4:
            lanes, held_bytes = 16, min(held_bytes, _HELD_BYTES // 2)
    held = held_bytes // (height * vector * g.itemsize)
    lanes = min(held, device.subgroup_size if device.is_cpu else lanes)
    kernel = FloatKernel(
        f"gemm_blocked_weights.r{height}", height, invocations // lanes * _COLUMNS,
        lanes * vector, 0, 0, split=True,
        spec=(("LOCAL_SIZE", invocations), ("LANES", lanes), ("HELD", held)))
    if device.is_cpu or height > 2:
        return kernel
    tiles, places = kernel.tiles(g), _PLACES[height] * device.cores

    def time(parts: int) -> float:
        return -(-tiles * parts // places) / parts + _ADDING * parts

    steps = -(-g.k // kernel.k)
    counts = {-(-steps // -(-steps // n)) for n in range(1, _MOST_PARTS + 1)}
    return replace(kernel, busy=(tiles * min(sorted(counts), key=time) + 0.5) / device.cores)


def _lower(d: Any, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    y, b, zero = d.output_tensor, d.b_tensor, d.b_zero_point_tensor
    scales = d.b_scale_tensor
    k = oriented(d.a_tensor.sizes, d.trans_a)[-1]
    views = matrix_views(d, p, MatrixView(p.write("output_tensor"), y.strides, y.base_alignment))
    g = FloatProduct(y.sizes, k, y.data_type.itemsize, views)
    plain = _kernel(g, b.data_type.bits, p.device)
    able = [plain] if plain.variant(p) else []
    vector = 128 // b.data_type.bits
    b_vectors = g.steps["b"][1] % vector == 0 and b.base_alignment % 16 == 0 and (
        d.block_size * d.b_scale_tensor.sizes[1] % vector == 0)
    best = None
    if b.data_type.bits == 4 and b_vectors and d.block_size % vector == 0:
        best = fragments_of_blocks(g, p)
    if best:
        large = g.k * g.columns >= WORTH_FRAGMENTS
        able = [best, *able] if large else [*able, best]
    work = work_key(f"gemm f{8 * g.itemsize} u{b.data_type.bits}", g.rows, k, g.columns, g.batches)
    kernel = p.choose(work, [*able, None], lambda k: k.name if k else "dequantize")
    if kernel is None:
        _lower_both(d, p)
        return p.build()
    more: dict[str, Any] = {"scale": p.read("b_scale_tensor"), "zero": p.read(
        "b_scale_tensor" if zero is None else "b_zero_point_tensor")}
    push = {"scale_column": d.b_scale_tensor.strides[0], "scale_block": d.b_scale_tensor.strides[1]}
    if zero is not None:
        push |= {"zero_column": zero.strides[0], "zero_block": zero.strides[1]}
    spec = {"SIGNED": b.data_type.is_signed, "HAS_ZERO": zero is not None, "BLOCK": d.block_size}
    if kernel is best and g.rows == 1:
        spec["SCALE_PAIRS"] = d.block_size == vector and scales.strides[1] == 1 and (
            scales.strides[0] % 2 == 0 and scales.base_alignment % 4 == 0)
    if kernel is not best:
        spec |= {"BITS": b.data_type.bits, "A_VECTORS": g.vectors("a", 16 // g.itemsize) == "k",
                 "B_VECTORS": b_vectors}
    dispatch_product(d, p, g, kernel, more_push=push, more_spec=spec, **more)
    return p.build()


def _lower_both(d: Any, p: PlanBuilder) -> None:
    """Both operators one by one: for devices that bind few buffers, or where that was measured to
    be faster."""
    scale, zero = d.b_scale_tensor, d.b_zero_point_tensor
    columns, blocks = scale.sizes
    weights = TensorDesc(scale.data_type, (columns, blocks * d.block_size))
    made = p.temporary(scale.data_type.itemsize, weights.element_count)
    parts = (scale,) if zero is None else (scale, zero)
    dequantize = DequantizeOperatorDesc(
        input_tensor=TensorDesc(d.b_tensor.data_type, weights.sizes, (d.b_tensor.strides[-1], 1)),
        quantization_tensors=parts, output_tensor=weights,
        quantization_type=QuantizationType(len(parts)))
    p.include(dequantize.operator.lower(dequantize, p.target), {
        "input_tensor": p.read("b_tensor"), "quantization_tensors[0]": p.read("b_scale_tensor"),
        "quantization_tensors[1]": p.read("b_zero_point_tensor"), "output_tensor": made})
    b = d.b_tensor
    plain = {f.name: getattr(d, f.name) for f in fields(GemmOperatorDesc) if f.init}
    product = GemmOperatorDesc(**plain | {"b_tensor": TensorDesc(
        weights.data_type, b.sizes, (*[0] * (len(b.sizes) - 2), 1, weights.sizes[1]))})
    p.include(product.operator.lower(product, p.target), {"b_tensor": made.reading()})


BlockedGemmDesc: Any = widened(
    GemmOperatorDesc, Field("BScaleTensor", "input", "TENSOR_DESC", True),
    Field("BZeroPointTensor", "input", "TENSOR_DESC", True),
    Field("BlockSize", "attribute", "UINT", True), lower=_lower)
"""B is K x columns, not transposed, with K contiguous. Scales and zero points are columns x
blocks."""
