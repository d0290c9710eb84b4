"""The kernels of products of integers: which serve a product, and their dispatches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...lowering.plan import TEMPORARY, UNUSED, ZEROED, Dispatch, Operand, Plan, Target
from ...runtime.shader_library import Variant
from ...runtime.traits import DeviceTraits
from .product import MAX_DEPTH, SHADER, SLOTS, Product
from .repacking import LINES, SUMS, PreparedLines, Scratch, is_ready, lies_ready


@dataclass(frozen=True)
class Kernel:
    """A shader variant, and the part of the output that one workgroup of it makes."""

    shader: str
    axes: str
    """Joined by hyphens."""
    rows: int
    columns: int
    depth: int = 0
    """Prepared lines are filled up to a multiple of this; 0 for shaders that take any strides."""
    needs_sums: bool = False
    """Whether it cannot add up lines on its way."""
    lowers: bool = True
    """Whether unsigned numbers become signed ones; else both sides are unsigned, lie ready and have
    no zero points."""
    makes_sums: bool = False
    """Whether workgroups of its own add up lines, each as many as a tile has rows."""
    busy: int = 0
    """Workgroups that it takes to keep a device busy: where there are fewer tiles, several share
    the depth of one. 0 for shaders that cannot."""

    @property
    def name(self) -> str:
        return f"{self.shader.removeprefix(SHADER).strip('_')}-{self.axes}".strip("-")

    def variant(self, target: Target) -> Variant | None:
        """The shader variant, where the device may run it."""
        variant = target.library.find(self.shader, *self.axes.split("-"))
        fits = variant is not None and (
            variant.shared_bytes <= target.traits.max_shared_memory
            and math.prod(variant.workgroup_size) <= target.traits.max_invocations
        )
        return variant if fits else None

    def tiles(self, product: Product) -> int:
        """Workgroups of one dispatch."""
        return product.batches * -(-product.rows // self.rows) * -(-product.columns // self.columns)

    def counts(self, product: Product, variant: Variant) -> bool:
        """Whether the workgroups that make sums, and the others, are few enough to be counted in
        one word."""
        if not self.makes_sums:
            return True
        _, bit = variant.spec_ids["TILES_BIT"]
        return self.summing(product, "ab") < 1 << bit and self.tiles(product) < 1 << 32 - bit

    def summing(self, product: Product, sides: Iterable[str]) -> int:
        """Workgroups that add up the lines of these sides."""
        return sum(-(-product.lines(side) // self.rows) for side in sides)

    def parts(self, product: Product, depth: int, variant: Variant) -> int:
        """Workgroups that share the depth of a tile: of equal parts, as far as these go."""
        if not self.busy:
            return 1
        _, vectors = variant.spec_ids["PART_VECTORS"]
        pieces = -(-depth // (16 * vectors))
        wanted = max(1, self.busy // self.tiles(product))
        return -(-pieces // -(-pieces // wanted))


_WIDE = {
    width: [Kernel(SHADER, f"{width}-flat", 4, 64), Kernel(SHADER, f"{width}-square", 64, 64)]
    for width in ("b16", "b32")
}
_DOT = Kernel(SHADER + "_packed", "dot", 64, 64)
_CORE = Kernel(SHADER + "_packed", "core", 64, 64)
_COOPMAT = {
    axis: Kernel(SHADER + "_coopmat", axis, rows, columns, depth,
                 needs_sums=axis == "t128w", lowers=axis != "t128u", makes_sums=axis == "t128s")
    for axis, rows, columns, depth in (
        ("t128", 128, 128, 64), ("t128s", 128, 128, 128), ("t128w", 128, 128, 128),
        ("t128u", 128, 128, 128), ("t128d", 128, 128, 128),
        ("t96x128", 96, 128, 128), ("t64x96", 64, 96, 256), ("t48x96", 48, 96, 256),
        ("t64", 64, 64, 128), ("t64d", 64, 64, 256),
        ("t32", 32, 32, 128), ("t32d", 32, 32, 256), ("t16", 16, 32, 256),
    )
}
_FEW_ROWS = {
    "along": [
        Kernel(SHADER + "_few_rows", f"along-r{rows}", rows, width, 16)
        for rows, width in ((1, 8), (2, 16), (4, 8), (8, 16))
    ],
    "across": [
        Kernel(SHADER + "_few_rows", f"{axis}-r{rows}", rows, 128, busy=busy)
        for axis in ("across64", "across")
        for rows, busy in ((1, 896), (2, 896), (4, 660), (8, 264))
    ],
}
_FEW_ROWS_SUBGROUPS = [
    Kernel(SHADER + "_few_rows_subgroups", f"r{rows}", rows, columns, 16)
    for rows, columns in ((1, 4), (4, 16))
]
_FEW_ROWS_COOPMAT = {
    axis: Kernel(SHADER + "_few_rows_coopmat", axis, 16, 32, depth)
    for axis, depth in (("along", 16), ("along8", 16), ("across", 0))
}
_TURNED = [
    Kernel(SHADER + "_few_rows_turned", f"r{rows}", rows, 128, busy=128) for rows in (16, 32)
]
_NOT_PLAIN = ("A_SIGNED", "B_SIGNED", "HAS_A_ZERO", "HAS_B_ZERO")
SHADERS = (
    *(SHADER + suffix
      for suffix in ("", "_packed", "_few_rows", "_few_rows_subgroups", "_few_rows_coopmat",
                     "_few_rows_turned", "_coopmat")),
    LINES, SUMS,
)


def candidates(product: Product, target: Target) -> list[Kernel]:
    """The kernels that this device may run on a product, what should be fastest first."""
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
        and all(is_ready(product, side, _COOPMAT["t128u"].depth) for side in "ab")
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
        if all(t.owned_by_dml or is_ready(product, side, k.depth)
               for side, t in (("a", product.a), ("b", product.b)))
    ]
    # Preparing lines is a dispatch of its own: small products are done sooner without.
    work = product.outer * product.batches * product.rows * product.columns * product.depth
    if best not in ready and ready and work < 1 << 25:
        best = ready[-1]
    elif best not in ready and work < 1 << 21:
        return [*scalar, *matrix]
    matrix.sort(key=lambda kernel: kernel is not best)
    return [*matrix, *scalar]


def _few_rows(product: Product, cooperative: bool) -> list[Kernel]:
    """The kernels for the rows of a vector or some more, where they can read A and B."""
    a, b, rows = product.a, product.b, product.rows
    if product.depth % 16:
        return []
    # Where rows of B begin, and end: at words?
    numbers = (b.base_alignment, *product.steps["b"], b.strides[-2], product.columns)
    if all(t.owned_by_dml or is_ready(product, side, 16) for side, t in (("a", a), ("b", b))):
        side, matrix = "along", [_FEW_ROWS_COOPMAT["along"], _FEW_ROWS_COOPMAT["along8"]]
        # Tiles get more subgroups where there is one tile per core. Larger tiles would leave cores
        # idle.
        few = product.batches * -(-product.columns // matrix[0].columns) < 200
        if few:
            matrix.reverse()
        most = 32 if few else 16
    elif lies_ready(product, "a", 16) and b.strides[-1] == 1 and not any(n % 4 for n in numbers):
        side, matrix, most = "across", [_FEW_ROWS_COOPMAT["across"]], 64
        if not any(n % 16 for n in numbers):
            matrix.append(_TURNED[rows > 16])
            # Wide tiles read faster, once there is much to read, and much to turn beforehand.
            much = product.depth * product.columns >= 12 << 20
            if much or max(product.depth, product.columns) >= 8192:
                matrix.reverse()
                most = 128
    else:
        return []
    dots = [k for k in _FEW_ROWS[side] if k.rows >= rows]
    # Subgroups of 32 (elsewhere that may be the most they are), which store words and hand on no
    # sums.
    whole_words = not product.kinds["HALF"] and product.depth <= MAX_DEPTH
    if side == "along" and cooperative and whole_words:
        alone = [k for k in _FEW_ROWS_SUBGROUPS if k.rows >= rows]
        # Lanes of four rows ask for one vector at a time: it takes many to keep a device busy.
        busy = rows == 1 or (rows > 2 and product.columns >= 8192)
        dots = [*alone, *dots] if busy else [*dots, *alone]
    matrices = matrix if rows <= most and cooperative else []
    return [*matrices, *dots] if rows > 4 else [*dots, *matrices]


def _best_tile(product: Product, cores: int, unsigned: bool, aside: bool) -> str:
    """The largest tile that keeps all cores busy, and of two sizes the one that takes one wave
    instead of two; as measured on an H200. ``aside``: workgroups of their own may make sums."""
    if product.rows <= 16:
        return "t16"
    tiles = {axis: kernel.tiles(product) for axis, kernel in _COOPMAT.items()}
    if tiles["t128"] > cores:
        if unsigned:
            return "t128u"
        summed = [side for side in "ab" if product.needs_sums(side)
                  and not product.side(side)[0].owned_by_dml]
        ready = [side for side in summed if is_ready(product, side, _COOPMAT["t128w"].depth)]
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
        return once[0] if once and product.depth >= 1024 else "t64"
    if tiles["t64"] >= 64:
        return "t64d" if product.depth >= 2048 else "t64"
    return "t32d" if product.depth >= 1024 else "t32"


def _sums_aside(
    product: Product, cores: int, summed: list[str], tiles: int, gathers: bool
) -> bool:
    """Whether workgroups of their own should make sums: not where tiles are soon done, nor where
    they take one more turn of the device or what ``gathers`` sums before is as fast, unless turns
    are many (or FLOAT16 ends them)."""
    if not summed or product.depth < 2048:
        return False
    places = 2 * cores
    turns = -(-tiles // places)
    groups = _COOPMAT["t128s"].summing(product, summed)
    many = 4 if product.kinds["HALF"] else 8
    adds_none = -(-(tiles + groups) // places) == turns
    return turns >= (2 if adds_none and not gathers else many)


def _multiplies(traits: DeviceTraits, kind: str) -> bool:
    """Whether the device multiplies matrices as the cooperative-matrix shaders were written to:
    of signed ("i") or unsigned ("u") bytes."""
    return traits.multiplies(16, 16, 32, f"{kind}8", f"{kind}32")


def _ahead(depth: int, most: int) -> dict[str, int]:
    """How many vectors of 16 each of 32 lanes asks for at once: up to ``most``, as many each
    time."""
    count = -(-depth // (16 * 32))
    times = -(-count // most)
    ahead = -(-count // times)
    return {"AHEAD": ahead, "WHOLE": depth % (16 * 32 * ahead) == 0}


def _count_shift(product: Product, depth: int, parts: int) -> int:
    """Bits that a sum of 8-bit products takes, with its sign, where a word of 64 that holds two can
    count the parts that were added, too; else 0."""
    reach = depth
    for side in "AB":
        plain = product.kinds[f"{side}_SIGNED"] and not product.kinds[f"HAS_{side}_ZERO"]
        reach *= 128 if plain else 255
    bits = reach.bit_length() + 1
    return bits if 1 < parts <= 1 << max(0, 64 - 2 * bits) else 0


def lower(product: Product, kernel: Kernel, target: Target) -> Plan:
    """The plan that computes ``product`` with ``kernel``."""
    variant = target.library.get(kernel.shader, *kernel.axes.split("-"))
    temporary = Scratch(TEMPORARY)
    ends = range(0, product.depth, MAX_DEPTH)
    partial = prepared = made_sums = None
    if len(ends) > 1:  # sums that one dispatch hands to the next have 8 bytes
        count = product.batches * product.rows * product.columns
        partial = temporary.take("partial_offset", 8, count)
    if kernel.depth:
        prepared = PreparedLines(product, kernel.depth, target, temporary, kernel.needs_sums)
    # Sides whose lines are summed by workgroups of the product's own.
    made = [side for side in "ab" if kernel.makes_sums and product.needs_sums(side)
            and prepared is not None and prepared.sides[side].sums is None]
    if made:
        field = "row_sums_offset" if "a" in made else "column_sums_offset"
        made_sums = temporary.take(field, 4, sum(map(product.lines, made)))
    # The workgroups that have come; or the sums of each tile, how many have added theirs, and one
    # word more, so that the next tile's sums begin at 64 bits.
    words = 1 if made else kernel.tiles(product) * (kernel.rows * kernel.columns + 2)
    zeroed = Operand(ZEROED, "zeroed_offset", 4, words, writes=True)

    def dispatch(index: int, begin: int) -> Dispatch:
        depth = min(MAX_DEPTH, product.depth - begin)
        groups = kernel.tiles(product)
        operands = [product.operand(name, index, begin, depth) for name in SLOTS]
        output = replace(operands[-1], offset_field=None)
        # A binding that the shader may write to must not stand on an input.
        operands.append(partial or output)
        push = {**product.push(), "depth": depth}
        unfinished = begin + depth < product.depth
        known = {**product.kinds, "CONTINUES": begin > 0, "UNFINISHED": unfinished,
                 "INTEGER": product.integer}
        if "flags" in variant.push_fields:
            push["flags"] = sum(on << bit for bit, on in enumerate(known.values()))
            known = {}
        if prepared is not None:
            push |= prepared.strides()
            known |= prepared.spec("PREPARED")
        if "parts" in variant.push_fields:
            parts = kernel.parts(product, depth, variant)
            groups *= parts
            if prepared is not None:
                operands[0], operands[3] = prepared.lines(index, begin, depth)
            operands += [replace(operands[i], offset_field=None) for i in (0, 3)]
            operands.append(zeroed if parts > 1 else UNUSED)
            push |= {"parts": parts, "count_shift": _count_shift(product, depth, parts)}
        elif prepared is not None:
            operands[0] = operands[3] = UNUSED
            operands += [*prepared.lines(index, begin, depth), *prepared.line_sums(index, begin)]
            operands += [output, output]
            known |= prepared.spec("SUMMED")
            if kernel.makes_sums:
                groups += kernel.summing(product, made)
                operands += [made_sums, zeroed] if made_sums else [output, output]
            else:
                push["sum_count"] = prepared.sum_count(depth)
                known["SUMS_IN_PARTS"] = prepared.sum_count(depth) > 1
        if "EXACT_UNITS" in variant.spec_ids:
            known["EXACT_UNITS"] = target.traits.exact_units
        if "AHEAD" in variant.spec_ids:
            known |= _ahead(depth, most=variant.spec_ids["AHEAD"][1])
        if not kernel.lowers:  # all numbers are taken as they lie, as signed ones are
            known |= {"A_SIGNED": True, "B_SIGNED": True}
        return Dispatch(variant, groups, tuple(operands), push, known)

    main = [dispatch(i, begin) for i in range(product.outer) for begin in ends]
    plan = Plan(tuple(main), temporary_bytes=temporary.bytes,
                zeroed_bytes=4 * words if any(zeroed in d.operands for d in main) else 0)
    if prepared is None:
        return plan
    return replace(
        plan, execute=(*prepared.execute, *main), initialize=tuple(prepared.initialize),
        persistent_bytes=prepared.persistent.bytes, repacked=frozenset(prepared.repacked),
    )
