"""The kernels of integer products: which can compute a product, and their dispatches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...lowering.builder import PlanBuilder
from ...lowering.plan import UNUSED, Operand, Target
from ...runtime.shader_library import Variant
from ...runtime.traits import DeviceTraits
from .product import MAX_K, SHADER, SLOTS, Product
from .repacking import REPACK, SUMS, Repacked, has_vectors, is_readable


@dataclass(frozen=True)
class Kernel:
    """A shader variant, and the part of the output that one workgroup of it makes."""

    shader: str
    axes: str
    """Joined by hyphens."""
    rows: int
    columns: int
    k: int = 0
    """Repacked rows are padded to a multiple of this; 0 for shaders that take any strides."""
    needs_sums: bool = False
    """Whether it needs the sums along K, because it does not compute them."""
    lowers: bool = True
    """Whether it makes unsigned numbers signed. Else both sides are unsigned, need no repacking and
    have no zero points."""
    makes_sums: bool = False
    """Whether separate workgroups compute the sums, each for as many rows as a tile has."""
    busy: int = 0
    """Workgroups that keep a device busy. With fewer tiles, several workgroups split K of a tile. 0
    for shaders that cannot split K."""

    @property
    def name(self) -> str:
        return f"{self.shader.removeprefix(SHADER).strip('_')}-{self.axes}".strip("-")

    def variant(self, target: Target) -> Variant | None:
        """The shader variant, or None if the device cannot run it."""
        variant = target.library.find(self.shader, *self.axes.split("-"))
        fits = variant is not None and (
            variant.shared_bytes <= target.traits.max_shared_memory
            and math.prod(variant.workgroup_size) <= target.traits.max_invocations
        )
        return variant if fits else None

    def quantizes(self, product: Product, target: Target) -> bool:
        """Whether it can store quantized sums."""
        variant = self.variant(target)
        return variant is not None and "QUANTIZED" in variant.spec_ids and (
            product.stores_words and product.k <= MAX_K)

    def tiles(self, product: Product) -> int:
        """Workgroups of one dispatch."""
        return product.batches * -(-product.rows // self.rows) * -(-product.columns // self.columns)

    def counts(self, product: Product, variant: Variant) -> bool:
        """Whether one word can count the workgroups that compute sums and the others."""
        if not self.makes_sums:
            return True
        _, bit = variant.spec_ids["TILES_BIT"]
        return self.summing(product, "ab") < 1 << bit and self.tiles(product) < 1 << 32 - bit

    def summing(self, product: Product, sides: Iterable[str]) -> int:
        """Workgroups that compute the sums of these sides."""
        return sum(-(-product.row_count(side) // self.rows) for side in sides)

    def parts(self, product: Product, k: int, variant: Variant) -> int:
        """Workgroups that split K of a tile into parts, equal but for the last one."""
        if not self.busy:
            return 1
        _, vectors = variant.spec_ids["PART_VECTORS"]
        pieces = -(-k // (16 * vectors))
        wanted = max(1, self.busy // self.tiles(product))
        return -(-pieces // -(-pieces // wanted))


_WIDE = {
    width: [Kernel(SHADER, f"{width}-flat", 4, 64), Kernel(SHADER, f"{width}-square", 64, 64)]
    for width in ("b16", "b32")
}
_DOT = Kernel(SHADER + "_packed", "dot", 64, 64)
_CORE = Kernel(SHADER + "_packed", "core", 64, 64)
_COOPMAT = {
    axis: Kernel(SHADER + "_coopmat", axis, rows, columns, k,
                 needs_sums=axis == "t128w", lowers=axis != "t128u", makes_sums=axis == "t128s")
    for axis, rows, columns, k in (
        ("t128", 128, 128, 64), ("t128s", 128, 128, 128), ("t128w", 128, 128, 128),
        ("t128u", 128, 128, 128), ("t128d", 128, 128, 128),
        ("t96x128", 96, 128, 128), ("t64x96", 64, 96, 256), ("t48x96", 48, 96, 256),
        ("t64", 64, 64, 128), ("t64d", 64, 64, 256),
        ("t32", 32, 32, 128), ("t32d", 32, 32, 256), ("t16", 16, 32, 256),
    )
}
_FEW_ROWS = {
    "k": [
        Kernel(SHADER + "_few_rows", f"k_contiguous-r{rows}", rows, width, 16)
        for rows, width in ((1, 8), (2, 16), (4, 8), (8, 16))
    ],
    "n": [
        Kernel(SHADER + "_few_rows", f"{axis}-r{rows}", rows, 128, busy=busy)
        for axis in ("n_contiguous64", "n_contiguous")
        for rows, busy in ((1, 896), (2, 896), (4, 660), (8, 264))
    ],
}
_FEW_ROWS_SUBGROUPS = [
    Kernel(SHADER + "_few_rows_subgroups", f"r{rows}", rows, columns, 16)
    for rows, columns in ((1, 4), (4, 16))
]
_FEW_ROWS_COOPMAT = {
    axis: Kernel(SHADER + "_few_rows_coopmat", axis, 16, 32, k)
    for axis, k in (("k_contiguous", 16), ("k_contiguous8", 16), ("n_contiguous", 0))
}
_TRANSPOSED = [
    Kernel(SHADER + "_few_rows_transposed", f"r{rows}", rows, 128, busy=128) for rows in (16, 32)
]
_NOT_PLAIN = ("A_SIGNED", "B_SIGNED", "HAS_A_ZERO", "HAS_B_ZERO")
FINISH = SHADER + "_finish"
SHADERS = (
    *(SHADER + suffix
      for suffix in ("", "_packed", "_few_rows", "_few_rows_subgroups", "_few_rows_coopmat",
                     "_few_rows_transposed", "_coopmat")),
    REPACK, SUMS, FINISH,
)


def candidates(product: Product, target: Target) -> list[Kernel]:
    """The kernels that this device can run on a product, the presumably fastest first."""
    if product.a.data_type.itemsize > 1:
        flat, square = _WIDE[product.a.data_type.width]
        return [flat, square] if product.rows <= 4 * flat.rows else [square, flat]
    few_rows = _few_rows(product, _multiplies(target.traits, "i"))
    scalar = [k for k in (*few_rows, _DOT, _CORE) if k.variant(target)]
    if not _multiplies(target.traits, "i"):
        return scalar
    unsigned = (
        _multiplies(target.traits, "u")
        and not any(product.kinds[kind] for kind in _NOT_PLAIN)
        and all(is_readable(product, side, _COOPMAT["t128u"].k) for side in "ab")
    )
    matrix = [
        k for k in _COOPMAT.values()
        if (variant := k.variant(target)) and (k.lowers or unsigned) and k.counts(product, variant)
    ]
    if not matrix or scalar[0] not in (_DOT, _CORE):
        return [*scalar, *matrix]
    best = _COOPMAT[_best_tile(product, target.traits.cores, unsigned,
                               _COOPMAT["t128s"] in matrix)]
    ready = [
        k for k in matrix
        if all(t.owned_by_dml or is_readable(product, side, k.k)
               for side, t in (("a", product.a), ("b", product.b)))
    ]
    # Repacking is a separate dispatch: small products take less time without it.
    work = product.outer * product.batches * product.rows * product.columns * product.k
    if best not in ready and ready and work < 1 << 25:
        best = ready[-1]
    elif best not in ready and work < 1 << 21:
        return [*scalar, *matrix]
    matrix.sort(key=lambda kernel: kernel is not best)
    return [*matrix, *scalar]


def _few_rows(product: Product, cooperative: bool) -> list[Kernel]:
    """The kernels for a few rows that can read A and B."""
    a, b, rows = product.a, product.b, product.rows
    if product.k % 16:
        return []
    # Every row of B begins and ends at a multiple of their common divisor.
    numbers = (b.base_alignment, *product.steps["b"], b.strides[-2], product.columns)
    if all(t.owned_by_dml or is_readable(product, side, 16) for side, t in (("a", a), ("b", b))):
        side = "k"
        matrix = [_FEW_ROWS_COOPMAT["k_contiguous"], _FEW_ROWS_COOPMAT["k_contiguous8"]]
        # With one tile per core, tiles get more subgroups. Larger tiles would leave cores idle.
        few = product.batches * -(-product.columns // matrix[0].columns) < 200
        if few:
            matrix.reverse()
        most = 32 if few else 16
    elif has_vectors(product, "a", 16) and b.strides[-1] == 1 and not any(n % 4 for n in numbers):
        side, matrix, most = "n", [_FEW_ROWS_COOPMAT["n_contiguous"]], 64
        if not any(n % 16 for n in numbers):
            matrix.append(_TRANSPOSED[rows > 16])
            # Wide tiles read faster, but have much to transpose before they multiply: they pay off
            # for large matrices.
            much = product.k * product.columns >= 12 << 20
            if much or max(product.k, product.columns) >= 8192:
                matrix.reverse()
                most = 128
    else:
        return []
    dots = [k for k in _FEW_ROWS[side] if k.rows >= rows]
    # These need subgroups of 32, store whole words, and cannot keep sums for another dispatch.
    whole_words = not product.kinds["HALF"] and product.k <= MAX_K
    if side == "k" and cooperative and whole_words:
        alone = [k for k in _FEW_ROWS_SUBGROUPS if k.rows >= rows]
        # With four rows a lane reads one vector at a time, so it takes many lanes to keep a device
        # busy.
        busy = rows == 1 or (rows > 2 and product.columns >= 8192)
        dots = [*alone, *dots] if busy else [*dots, *alone]
    matrices = matrix if rows <= most and cooperative else []
    return [*matrices, *dots] if rows > 4 else [*dots, *matrices]


def _best_tile(product: Product, cores: int, unsigned: bool, aside: bool) -> str:
    """The largest tile that keeps all cores busy, or one that takes one wave instead of two, as
    measured on an H200. ``aside``: separate workgroups may compute sums."""
    if product.rows <= 16:
        return "t16"
    tiles = {axis: kernel.tiles(product) for axis, kernel in _COOPMAT.items()}
    if tiles["t128"] > cores:
        if unsigned:
            return "t128u"
        summed = [side for side in "ab" if product.needs_sums(side)
                  and not product.side(side)[0].owned_by_dml]
        ready = [side for side in summed if is_readable(product, side, _COOPMAT["t128w"].k)]
        # Row sums are computed while a side is repacked. A separate dispatch for the other side
        # pays off from 1,024 tiles on.
        gathers = not ready or (len(ready) == 1 and tiles["t128"] >= 1024)
        aside = aside and (ready == summed or not gathers)
        if aside and _sums_aside(product, cores, summed, tiles["t128"], gathers):
            return "t128s"
        return "t128w" if gathers else "t128"
    if tiles["t64"] > 2 * cores:
        return "t96x128" if tiles["t96x128"] <= cores else "t128d"
    if tiles["t64"] > cores:
        once = [axis for axis in ("t48x96", "t64x96") if tiles[axis] <= cores]
        return once[0] if once and product.k >= 1024 else "t64"
    if tiles["t64"] >= 64:
        return "t64d" if product.k >= 2048 else "t64"
    return "t32d" if product.k >= 1024 else "t32"


def _sums_aside(
    product: Product, cores: int, summed: list[str], tiles: int, gathers: bool
) -> bool:
    """Whether separate workgroups should compute sums. Not if tiles take little time. If they add a
    wave, or a dispatch that ``gathers`` the sums is as fast, they pay off only with many waves
    (fewer for FLOAT16 outputs)."""
    if not summed or product.k < 2048:
        return False
    places = 2 * cores
    waves = -(-tiles // places)
    groups = _COOPMAT["t128s"].summing(product, summed)
    many = 4 if product.kinds["HALF"] else 8
    adds_none = -(-(tiles + groups) // places) == waves
    return waves >= (2 if adds_none and not gathers else many)


def _multiplies(traits: DeviceTraits, kind: str) -> bool:
    """Whether the device multiplies matrices of signed ("i") or unsigned ("u") bytes in the shape
    of the cooperative-matrix shaders."""
    return traits.multiplies(16, 16, 32, f"{kind}8", f"{kind}32")


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


class _Lowering:
    """The dispatches that compute ``product`` with ``kernel``."""

    def __init__(self, product: Product, kernel: Kernel, p: PlanBuilder) -> None:
        self.product, self.kernel, self.p = product, kernel, p
        self.variant = p.library.get(kernel.shader, *kernel.axes.split("-"))
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
                self.kernel.parts(self.product, k, self.variant) > 1):
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
            parts = kernel.parts(product, k, variant)
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


def lower(product: Product, kernel: Kernel, p: PlanBuilder) -> None:
    """Add the dispatches that compute ``product`` with ``kernel``."""
    _Lowering(product, kernel, p)
