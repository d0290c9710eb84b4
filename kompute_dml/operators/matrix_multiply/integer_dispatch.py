"""The dispatches of integer products."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...lowering.builder import PlanBuilder
from ...lowering.plan import UNUSED, Operand
from ...runtime.shader_library import Variant
from .product import MAX_K, SHADER, SLOTS, Product
from .repacking import Repacked

if TYPE_CHECKING:
    from .kernels import IntegerKernel

FINISH = SHADER + "_finish"


def _ahead(k: int, most: int) -> dict[str, int]:
    """The vectors of 16 that each of 32 lanes reads at once: up to ``most``, the same number each
    time."""
    count = -(-k // (16 * 32))
    times = -(-count // most)
    ahead = -(-count // times)
    return {"AHEAD": ahead, "WHOLE": k % (16 * 32 * ahead) == 0}


def _count_shift(product: Product, k: int, parts: int) -> int:
    """The bits of a signed sum of 8-bit products, if a word of 64 bits can hold two sums and a
    count of added parts; else 0."""
    reach = k
    for side in "AB":
        plain = product.kinds[f"{side}_SIGNED"] and not product.kinds[f"HAS_{side}_ZERO"]
        reach *= 128 if plain else 255
    bits = reach.bit_length() + 1
    return bits if 1 < parts <= 1 << max(0, 64 - 2 * bits) else 0


class IntegerDispatch:
    """The dispatches that compute ``product`` with ``kernel``."""

    def __init__(self, product: Product, kernel: IntegerKernel, p: PlanBuilder) -> None:
        self.product, self.kernel, self.p = product, kernel, p
        self.variant = p.library.get(*kernel.variant.split("."))
        self.repacked = Repacked(product, kernel.k, p, kernel.needs_sums) if kernel.k else None
        begins = range(0, product.k, MAX_K)
        # Sums over several dispatches have 8 bytes.
        self.partial = p.temporary(
            8, product.batches * product.rows * product.columns) if len(begins) > 1 else None
        # Sides whose sums separate workgroups of the product compute.
        self.made = [side for side in "ab" if kernel.makes_sums and product.needs_sums(side)
                     and self.repacked is not None and self.repacked.sides[side].sums is None]
        self.made_sums = UNUSED
        if self.made:
            field = "row_sums_offset" if "a" in self.made else "column_sums_offset"
            count = sum(map(product.row_count, self.made))
            self.made_sums = p.temporary(4, count)._replace(offset_field=field)
        self.zeroed = self._zeroed(min(MAX_K, product.k))
        for index in range(product.outer):
            for begin in begins:
                self._multiply(index, begin)
            if self.partial is not None:
                self._finish(index)

    def _zeroed(self, k: int) -> Operand:
        """Zeroed memory. With separate workgroups, it counts those that have arrived. With split-K,
        it has the sums of each tile, a count of parts, and a word of alignment to 64 bits."""
        if self.made:
            return self.p.zeroed(4, 1)
        if "parts" in self.variant.push_fields and (
                self.kernel.parts(self.product, k, self.variant, self.p.device) > 1):
            sums = self.kernel.rows * self.kernel.columns + 2
            return self.p.zeroed(4, self.kernel.tiles(self.product) * sums)
        return UNUSED

    def _operands(self, index: int, begin: int, k: int) -> dict[str, Any]:
        operands = {name: self.product.operand(self.p, name, index, begin, k) for name in SLOTS}
        if self.partial is None:
            return operands
        # The sums take the output's binding. A last dispatch writes the output.
        del operands["out"]
        return {**operands, "partial": self.partial}

    def _flags(self, variant: Variant, begin: int, unfinished: bool
               ) -> tuple[dict[str, int], dict[str, int]]:
        """Push fields and specialization constants for the kind of product."""
        kinds = {**self.product.kinds, "CONTINUES": begin > 0, "UNFINISHED": unfinished,
                 "INTEGER": self.product.integer, "SCALES_FIRST": self.product.scales_first}
        if "flags" in variant.push_fields:
            return {"flags": sum(on << bit for bit, on in enumerate(kinds.values()))}, {}
        return {}, {name: int(on) for name, on in kinds.items()}

    def _multiply(self, index: int, begin: int) -> None:
        product, kernel, variant, repacked = self.product, self.kernel, self.variant, self.repacked
        k = min(MAX_K, product.k - begin)
        groups = kernel.tiles(product)
        operands = self._operands(index, begin, k)
        output = [*operands.values()][-1]
        flags, spec = self._flags(variant, begin, self.partial is not None)
        push: dict[str, Any] = {**product.push(), "K": k, **flags}
        if repacked is not None:
            push |= repacked.strides()
            spec |= repacked.spec("REPACKED")
        if "parts" in variant.push_fields:
            parts = kernel.parts(product, k, variant, self.p.device)
            groups *= parts
            if repacked is not None:
                operands |= {side: repacked.elements(side, index, begin, k) for side in "ab"}
            operands |= {"a_vectors": operands["a"], "b_vectors": operands["b"],
                         "zeroed": self.zeroed if parts > 1 else UNUSED}
            push |= {"parts": parts, "count_shift": _count_shift(product, k, parts)}
        elif repacked is not None:
            operands |= {"a": UNUSED, "b": UNUSED}
            operands |= {f"{side}_vectors": repacked.elements(side, index, begin, k)
                         for side in "ab"}
            operands |= {"row_sums": repacked.sums("a", index, begin),
                         "column_sums": repacked.sums("b", index, begin),
                         "out_vectors": output, "out_pairs": output, "y_zero": UNUSED}
            if product.quantized:
                operands |= {"bias": self.p.read("output_scale_tensor"),
                             "y_zero": self.p.read("output_zero_point_tensor")._replace(
                                 offset_field="partial_offset")}
                spec |= {"QUANTIZED": True, "HAS_Y_ZERO": product.y_zero is not None,
                         "Y_SIGNED": product.y_signed}
            spec |= repacked.spec("SUMMED")
            if kernel.makes_sums:
                groups += kernel.summing(product, self.made)
                # A binding that the shader may write to must not be an input.
                operands |= {"made_sums": self.made_sums, "zeroed": self.zeroed} if self.made else {
                    "made_sums": output, "zeroed": output}
            else:
                push["sum_count"] = repacked.sum_count(k)
                spec["SUMS_IN_PARTS"] = repacked.sum_count(k) > 1
        if "AHEAD" in variant.spec_ids:
            spec |= _ahead(k, most=variant.spec_ids["AHEAD"][1])
        if not kernel.lowers:  # unsigned elements stay unsigned
            spec |= {"A_SIGNED": True, "B_SIGNED": True}
        self.p.dispatch(variant, groups, push=push, spec=spec, **operands)

    def _finish(self, index: int) -> None:
        """Dispatch what turns the sums of all dispatches into outputs."""
        product, p = self.product, self.p
        assert self.partial is not None
        variant = p.library.get(FINISH)
        operands: dict[str, Any] = {
            name: product.operand(p, name, index, 0, product.k) for name in SLOTS}
        # The shader does not read these bindings.
        operands |= {"a_zero": UNUSED, "b": UNUSED, "b_zero": UNUSED}
        del operands["a"]
        flags, spec = self._flags(variant, 1, False)
        width = 2 * math.prod(variant.workgroup_size)
        p.dispatch(
            variant, product.batches * product.rows * -(-product.columns // width),
            push={**product.push(), "K": product.k, **flags}, spec=spec,
            partial=self.partial.reading(), **operands)
