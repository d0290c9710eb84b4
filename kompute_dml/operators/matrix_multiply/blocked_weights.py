"""GEMM by a B of 4- or 8-bit elements in blocks. Graphs make it from DEQUANTIZE and GEMM."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...attributes import QuantizationType
from ...desc import TensorDesc
from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel, choose
from ...lowering.plan import Plan, Target
from ...runtime.shader_library import Variant
from ...runtime.traits import DeviceTraits
from ...sizes import said
from ...spec import Field
from ...tuning import work_key
from ..base import OperatorDesc, fields_of, widened
from ..quantize_blocks import DequantizeOperatorDesc
from .float_dispatch import dispatch_product, matrix_views, oriented
from .float_kernels import height_of_fragments
from .float_product import FloatLaunch, FloatProduct, MatrixView
from .gemm import GemmOperatorDesc

_HEIGHTS = (1, 2, 4, 8)
_COLUMNS = 4
"""As the shader has it: those of an invocation."""
_HELD_BYTES = 1 << 14
"""The most bytes of A in shared memory."""
_LONGEST_A = 1 << 14
"""The most of K of a part, where A lies in shared memory."""


def most_rows(traits: DeviceTraits) -> int:
    """The most rows of A that the kernel is for. With more of them, multiplying takes the time, for
    which GEMM has better kernels."""
    return 8 if traits.slow_barriers else 16


def fits(b: TensorDesc, block: int) -> bool:
    """Whether the kernel can read a B whose description has columns and K, in this order."""
    vector, word = (n // b.data_type.bits for n in (128, 32))
    return (b.strides[1] == 1 and b.strides[0] % word == 0 and b.base_alignment % 4 == 0
            and (block % vector == 0 or block == 16))


class BlockedProduct(FloatProduct):
    """A product by such a B."""

    def __init__(self, p: PlanBuilder) -> None:
        d = p.desc
        y, b = d.output_tensor, d.b_tensor
        k = oriented(d.a_tensor.sizes, d.trans_a)[-1]
        output = MatrixView(p.write("output_tensor"), y.strides, y.base_alignment)
        super().__init__(y.sizes, k, y.data_type.itemsize, matrix_views(p, output))
        self.desc, self.bits = d, b.data_type.bits
        self.vector = 128 // self.bits
        """Elements of B in 16 bytes."""
        self.b_vectors = self.steps["b"][1] % self.vector == 0 and b.base_alignment % 16 == 0 and (
            d.block_size * d.b_scale_tensor.sizes[-1] % self.vector == 0)

    @property
    def group_step(self) -> int:
        return self.columns

    @property
    def work(self) -> str:
        return work_key(f"gemm f{8 * self.itemsize} u{self.bits}", self.rows, self.k, self.columns,
                        self.batches)


class _Fused(Kernel[BlockedProduct]):
    """A kernel that reads B in blocks."""

    variant: str

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.variant.replace(".", "-") + "-split"

    def shader(self, g: BlockedProduct) -> str:
        return self.variant

    def takes(self, g: BlockedProduct, variant: Variant, traits: DeviceTraits) -> tuple[int, int]:
        return self.launch(g, traits).spec["LOCAL_SIZE"], variant.shared_bytes

    def launch(self, g: BlockedProduct, traits: DeviceTraits) -> FloatLaunch:
        """What it runs."""
        raise NotImplementedError

    def more_spec(self, g: BlockedProduct) -> dict[str, int]:
        """Constants that only its shader has."""
        return {}

    def lower(self, g: BlockedProduct, p: PlanBuilder) -> None:
        d = g.desc
        zero, scales = d.b_zero_point_tensor, d.b_scale_tensor
        push = {"scale_column": scales.strides[-2], "scale_block": scales.strides[-1]}
        if zero is not None:
            push |= {"zero_column": zero.strides[-2], "zero_block": zero.strides[-1]}
        spec = {"SIGNED": d.b_tensor.data_type.is_signed, "HAS_ZERO": zero is not None,
                "BLOCK": d.block_size, **self.more_spec(g)}
        dispatch_product(
            p, g, self.launch(g, p.device), more_push=push, more_spec=spec,
            scale=p.read("b_scale_tensor"),
            zero=p.read("b_scale_tensor" if zero is None else "b_zero_point_tensor"))


@dataclass(frozen=True)
class _BlockedRows(_Fused):
    """Tiles of rows in shared memory. Up to "tiles" of them read B in less time than it takes to
    dequantize it. For one or two rows, K is shared by the number of workgroups that keeps the cores
    busiest."""

    height: int

    @property
    def variant(self) -> str:  # type: ignore[override]
        return f"gemm_blocked_weights.r{self.height}"

    def serves(self, g: BlockedProduct, traits: DeviceTraits) -> str | None:
        height = next((n for n in _HEIGHTS if n >= g.rows), _HEIGHTS[-1])
        is_less = self.height < height and not traits.is_cpu and (
            g.rows <= self.height * measured.count(traits, "gemm_blocked_weights", "tiles"))
        return None if self.height == height or is_less else f"it has {said(g.rows)} rows"

    def estimate(self, g: BlockedProduct, traits: DeviceTraits) -> float:
        # The least tiles. Where theirs have too many registers, more read B as often.
        return 1.0 + g.rows / (1024 * self.height)

    def launch(self, g: BlockedProduct, traits: DeviceTraits) -> FloatLaunch:
        known = measured.figures(traits.device_class, "gemm_blocked_weights")
        height, vector = self.height, g.vector
        wide = g.columns >= known["columns"]
        # Cores of a GPU with little shared memory have it for one workgroup: two shall fit.
        most = traits.max_shared_memory // (2 if traits.is_cpu else 3)
        held_bytes = min(_HELD_BYTES, 1 << most.bit_length() - 1)
        lanes = 32 if wide or height > 2 else 64
        invocations = 256
        if not traits.is_cpu and ((height == 4 and wide) or height == 8 >= g.rows):
            # Less waits at a barrier. More tiles of rows would read A too often.
            invocations = 128
            if height == 4:
                lanes, held_bytes = 16, min(held_bytes, _HELD_BYTES // 2)
        # Shared memory has floats where it takes many instructions to make them.
        floats = not traits.exact_units or known["floats"] > 0
        held = held_bytes // (height * vector * (4 if floats else g.itemsize))
        lanes = min(held, traits.subgroup_size if traits.is_cpu else lanes)
        launch = FloatLaunch(
            self.variant, height, invocations // lanes * _COLUMNS, lanes * vector,
            longest=lanes * vector * (traits.max_loop_passes // 2),
            spec={"LOCAL_SIZE": invocations, "LANES": lanes, "HELD": held,
                  "HOLDS_FLOATS": floats})
        if traits.is_cpu or height > 2:
            return launch
        # Workgroups for which a core has registers.
        at_once = measured.count(traits, self.variant, "at_once")
        tiles, places = launch.tiles(g), at_once * traits.cores

        def time(parts: int) -> float:
            return -(-tiles * parts // places) / parts + known["part"] * parts

        steps = -(-g.k // launch.k)
        counts = {-(-steps // -(-steps // n)) for n in range(1, int(known["parts"]) + 1)}
        return replace(launch, parts=min(sorted(counts), key=time))

    def more_spec(self, g: BlockedProduct) -> dict[str, int]:
        return {"BITS": g.bits, "A_VECTORS": g.vectors("a", 16 // g.itemsize) == "k",
                "B_VECTORS": g.b_vectors}


@dataclass(frozen=True)
class _BlockedOnUnits(_Fused):
    """Left operands of matrix units come from memory. B has four bits."""

    height: int

    @property
    def variant(self) -> str:  # type: ignore[override]
        return f"gemm_blocked_weights_coopmat.r{self.height}"

    def serves(self, g: BlockedProduct, traits: DeviceTraits) -> str | None:
        if g.bits != 4 or not g.b_vectors or g.desc.block_size % g.vector:
            return "B has no vectors of 4 bits, or blocks are none"
        if height_of_fragments(g, traits) != self.height:
            return f"it has {said(g.rows)} rows, or the device no such matrix units"
        return None

    def estimate(self, g: BlockedProduct, traits: DeviceTraits) -> float:
        worth = measured.figure(traits, "gemm_blocked_weights_coopmat", "worth")
        return 0.0 if g.k * g.columns >= worth else 2.0

    def launch(self, g: BlockedProduct, traits: DeviceTraits) -> FloatLaunch:
        # Subgroups, those of them that divide K, fragments of 16 columns for each, vectors of A
        # that an invocation reads at a time: the fastest of many.
        every = measured.figures(traits.device_class, "gemm_blocked_weights_coopmat")
        known = measured.figures(traits.device_class, self.variant)
        columns, step, longest = g.columns * g.batches, int(known["step"]), 1 << 31
        of = "wide_" if self.height == 1 and columns >= every["columns"] else ""
        subgroups, along, count = (int(known[of + n]) for n in ("subgroups", "along", "fragments"))
        if self.height == 1:  # A lies in shared memory as a whole
            longest = _LONGEST_A
            if not of and columns <= 16 * traits.cores:
                along = subgroups
            reads = -(-min(-(-g.k // step) * step, longest) // (8 * 32 * subgroups))
        else:
            reads = int(known["reads"])
        spec = {"LOCAL_SIZE": 32 * subgroups, "SUBGROUPS_K": along, "FRAGMENTS": count,
                "A_READS": reads,
                "A_VECTORS": g.vectors("a", 8) == "k" and not g.views["a"].padded,
                "ENDS_INSIDE": g.k % step != 0}
        return FloatLaunch(self.variant, self.height, subgroups // along * 16 * count, step * along,
                           longest=longest, busy=traits.cores, spec=spec)

    def more_spec(self, g: BlockedProduct) -> dict[str, int]:
        scales = g.desc.b_scale_tensor
        if g.rows > 1:
            return {}
        return {"SCALE_PAIRS": g.desc.block_size == g.vector and scales.strides[1] == 1 and (
            scales.strides[0] % 2 == 0 and scales.base_alignment % 4 == 0)}


class _Dequantized(Kernel[BlockedProduct]):
    """Both operators one by one: for devices that bind few buffers, or where that was measured to
    be faster."""

    name = "dequantize"
    cost = 3.0

    def lower(self, g: BlockedProduct, p: PlanBuilder) -> None:
        d = g.desc
        scale, zero = d.b_scale_tensor, d.b_zero_point_tensor
        columns, blocks = scale.sizes
        weights = TensorDesc(scale.data_type, (columns, blocks * d.block_size))
        dequantized = p.temporary(scale.data_type.itemsize, weights.element_count)
        parts = (scale,) if zero is None else (scale, zero)
        dequantize = DequantizeOperatorDesc(
            input_tensor=TensorDesc(
                d.b_tensor.data_type, weights.sizes, (d.b_tensor.strides[-1], 1)),
            quantization_tensors=parts, output_tensor=weights,
            quantization_type=QuantizationType(len(parts)))
        p.include(dequantize.operator.lower(dequantize, p.target), {
            "input_tensor": p.read("b_tensor"), "quantization_tensors[0]": p.read("b_scale_tensor"),
            "quantization_tensors[1]": p.read("b_zero_point_tensor"), "output_tensor": dequantized})
        b = d.b_tensor
        product = GemmOperatorDesc(**fields_of(GemmOperatorDesc, d) | {"b_tensor": TensorDesc(
            weights.data_type, b.sizes, (*[0] * (len(b.sizes) - 2), 1, weights.sizes[1]))})
        p.include(product.operator.lower(product, p.target), {"b_tensor": dequantized.reading()})


ROWS: tuple[Kernel[BlockedProduct], ...] = tuple(map(_BlockedRows, _HEIGHTS))
KERNELS: tuple[Kernel[BlockedProduct], ...] = (
    *ROWS, *map(_BlockedOnUnits, (1, 8, 16)), _Dequantized())


def _lower(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    g = BlockedProduct(p)
    choose(KERNELS, g, p).lower(g, p)
    return p.build()


BlockedGemmDesc: Any = widened(
    GemmOperatorDesc, Field("BScaleTensor", "input", "TENSOR_DESC", True),
    Field("BZeroPointTensor", "input", "TENSOR_DESC", True),
    Field("BlockSize", "attribute", "UINT", True), lower=_lower)
"""B is K x columns, not transposed, with K contiguous. Scales and zero points are columns x
blocks."""
