"""The kernels of MATRIX_MULTIPLY_INTEGER_TO_FLOAT: which serve a product, and their dispatches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..desc import TensorDesc
from ..dtypes import DataType
from ..layout import coalesce, extent, pad_left
from ..runtime.adapters import Adapter, CooperativeMatrix
from ..runtime.shader_library import Variant
from ..tuning import work_key
from .plan import (
    PERSISTENT,
    TEMPORARY,
    UNUSED,
    Dispatch,
    Operand,
    Plan,
    Target,
    reads,
    writes,
)

SHADER = "matrix_multiply_integer_to_float"

# The shaders' names for the operator's tensors, in the order of their bindings.
SLOTS = {
    "a": "a_tensor",
    "a_scale": "a_scale_tensor",
    "a_zero": "a_zero_point_tensor",
    "b": "b_tensor",
    "b_scale": "b_scale_tensor",
    "b_zero": "b_zero_point_tensor",
    "bias": "bias_tensor",
    "out": "output_tensor",
}
_MATRICES = ("a", "b", "bias", "out")
VECTORS = {"a_scale": -2, "a_zero": -2, "b_scale": -1, "b_zero": -1}  # axis that may be long

# Sums of this many products of 8-bit numbers and zero points fit 32 bits, signed. (And lavapipe
# silently ends a shader's loops after 65,535 passes in all.)
_MAX_DEPTH = 1 << 15


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

    @property
    def name(self) -> str:
        return f"{self.shader.removeprefix(SHADER).strip('_')}-{self.axes}".strip("-")

    def variant(self, target: Target) -> Variant | None:
        """The shader variant, where the device may run it."""
        return target.library.find(self.shader, *self.axes.split("-"))

    @property
    def shared_bytes(self) -> int:
        """What a shader that reads prepared lines keeps in shared memory: a slice of the lines, a
        vector after each, then their zero points and sums, and the scales of rows."""
        return (self.rows + self.columns) * (self.depth + 16 + 8) + self.rows * 4

    def tiles(self, product: Product) -> int:
        """Workgroups of one dispatch."""
        return product.batches * -(-product.rows // self.rows) * -(-product.columns // self.columns)


_WIDE = {width: Kernel(SHADER, width, 64, 64) for width in ("b16", "b32")}
_DOT = Kernel(SHADER + "_packed", "dot", 64, 64)
_CORE = Kernel(SHADER + "_packed", "core", 64, 64)
_COOPMAT = {
    axis: Kernel(SHADER + "_coopmat", axis, rows, columns, depth)
    for axis, rows, columns, depth in (
        ("t128", 128, 128, 64), ("t128d", 128, 128, 128), ("t64", 64, 64, 128),
        ("t32", 32, 32, 128), ("t32d", 32, 32, 256), ("t16", 16, 32, 256),
    )
}
_FEW_ROWS = {
    side: [Kernel(SHADER + "_few_rows", f"{side}-r{n}", n, columns) for n in (1, 4, 8)]
    for side, columns in (("along", 8), ("across", 32))
}
_LINES = SHADER + "_lines"
SHADERS = tuple(
    SHADER + suffix for suffix in ("", "_packed", "_few_rows", "_coopmat", "_lines")
)


class Product:
    """The tensors of a product as stacks of matrices: shaders walk ``batches`` of them, ``outer``
    dispatches take what does not merge into one dimension."""

    def __init__(self, desc: Any) -> None:
        *leading, self.rows, self.depth = desc.a_tensor.sizes
        self.columns = desc.b_tensor.sizes[-1]
        self.tensors: dict[str, TensorDesc | None] = {
            name: getattr(desc, slot) for name, slot in SLOTS.items()
        }
        self.a, self.b = desc.a_tensor, desc.b_tensor
        matrices = {name: t for name in _MATRICES if (t := self.tensors[name]) is not None}
        merged, walks = coalesce(
            leading or (1,), *(t.strides[:-2] or (0,) for t in matrices.values())
        )
        self.outer, self.batches = pad_left(merged, 2, 1)
        counts = (self.outer, self.batches)
        self.steps = {
            name: tuple(s if n > 1 else 0 for s, n in zip(pad_left(walk, 2, 0), counts))
            for name, walk in zip(matrices, walks)
        }
        """(step of the outer dimension, step of the batches) by matrix, in elements"""
        self.kinds = {  # in the order of the shaders' flags
            "A_SIGNED": desc.a_tensor.data_type.is_signed,
            "B_SIGNED": desc.b_tensor.data_type.is_signed,
            "HAS_A_ZERO": desc.a_zero_point_tensor is not None,
            "HAS_B_ZERO": desc.b_zero_point_tensor is not None,
            "HAS_BIAS": desc.bias_tensor is not None,
            "HALF": desc.output_tensor.data_type is DataType.FLOAT16,
        }

    def side(self, name: str) -> tuple[TensorDesc, int, int]:
        """A or B, its axis along the depth, and the one across, that counts its lines."""
        return (self.a, -1, -2) if name == "a" else (self.b, -2, -1)

    @property
    def work(self) -> str:
        """What products have in common that the same kernel should serve: how wide the numbers are,
        and whether lines along the depth lie gapless, or so once they are prepared."""
        kinds = []
        for t, along, _ in map(self.side, "ab"):
            gapless = t.owned_by_dml or t.strides[along] == 1
            kinds.append(f"{t.data_type.width}{'' if gapless else ' across'}")
        sizes = self.rows, self.depth, self.columns, self.outer * self.batches
        return work_key(" ".join([SHADER, *kinds]), *sizes)

    def push(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "batches": self.batches, "rows": self.rows, "columns": self.columns
        }
        for name, (_, batch) in self.steps.items():
            t = self.tensors[name]
            assert t is not None
            values[f"{name}_strides"] = (batch, *t.strides[-2:])
        for name, axis in VECTORS.items():
            if (t := self.tensors[name]) is not None:
                axis = max(axis, -t.dimension_count)
                values[f"{name}_stride"] = t.strides[axis] if t.sizes[axis] > 1 else 0
        return values

    def operand(self, name: str, index: int, begin: int, depth: int) -> Operand:
        """What dispatch ``index`` of the outer ones touches, ``depth`` elements from ``begin``."""
        t = self.tensors[name]
        if t is None:
            return UNUSED
        if name not in self.steps:
            return reads(SLOTS[name], t, f"{name}_offset")
        make = writes if name == "out" else reads
        step, batch = self.steps[name]
        *_, rows, columns = t.sizes
        offset = index * step
        if name == "a":
            columns, offset = depth, offset + begin * t.strides[-1]
        elif name == "b":
            rows, offset = depth, offset + begin * t.strides[-2]
        length = extent((self.batches, rows, columns), (batch, *t.strides[-2:]))
        return make(SLOTS[name], t, f"{name}_offset", offset, length)


def candidates(product: Product, target: Target) -> list[Kernel]:
    """The kernels that this device may run on a product, what should be fastest first."""
    if product.a.data_type.itemsize > 1:
        return [_WIDE[product.a.data_type.width]]
    scalar = [k for k in (*_few_rows(product), _DOT, _CORE) if k.variant(target)]
    if not _has_cooperative_matrix(target.adapter):
        return scalar
    matrix = [
        k for k in _COOPMAT.values()
        if k.shared_bytes <= target.adapter.max_shared_memory and k.variant(target)
    ]
    if not matrix or scalar[0] not in (_DOT, _CORE):
        return [*scalar, *matrix]
    best = _COOPMAT[_best_tile(product)]
    ready = [
        k for k in matrix
        if all(t.owned_by_dml or _is_ready(product, side, k)
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


def _few_rows(product: Product) -> list[Kernel]:
    """The kernel for the rows of a vector or little more, where it can read 16 bytes at a time."""
    for side, along in (("along", -2), ("across", -1)):
        t = product.b
        other = t.strides[-3 - along]
        wide = 16 if side == "along" else 4
        if (
            t.strides[along] == 1 and t.base_alignment % 16 == 0
            and t.sizes[along] % 16 == 0 and other % 16 == 0
            and all(step % 16 == 0 for step in product.steps["b"])
            and product.a.strides[-1] == 1 and product.a.base_alignment % wide == 0
            and product.depth % wide == 0
            and all(s % wide == 0 for s in (product.a.strides[-2], *product.steps["a"]))
        ):
            return [k for k in _FEW_ROWS[side] if k.rows >= product.rows][:1]
    return []


def _best_tile(product: Product) -> str:
    """As measured on an H200, which has 132 multiprocessors: the largest that keeps it busy."""
    if product.rows <= 16:
        return "t16"
    if (tiles := _COOPMAT["t128"].tiles(product)) >= 96:
        return "t128" if tiles > 132 else "t128d"
    if _COOPMAT["t64"].tiles(product) >= 64:
        return "t64"
    return "t32d" if product.depth >= 2048 else "t32"


def _has_cooperative_matrix(adapter: Adapter) -> bool:
    """Whether the device multiplies as the cooperative-matrix shader was written to."""
    shape = CooperativeMatrix(16, 16, 32, "i8", "i8", "i32", "i32", "subgroup")
    return (
        shape in adapter.cooperative_matrices
        and adapter.subgroup_size == 32
        and adapter.max_workgroup_invocations >= 128
    )


def lower(product: Product, kernel: Kernel, target: Target) -> Plan:
    """The plan that computes ``product`` with ``kernel``."""
    variant = target.library.get(kernel.shader, *kernel.axes.split("-"))
    temporary = _Scratch(TEMPORARY)
    ends = range(0, product.depth, _MAX_DEPTH)
    partial = None
    if len(ends) > 1:  # sums that one dispatch hands to the next have 8 bytes
        count = product.batches * product.rows * product.columns
        partial = temporary.take("partial_offset", 8, count)
    prepared = _Prepared(product, kernel, target, temporary) if kernel.depth else None

    def dispatch(index: int, begin: int) -> Dispatch:
        depth = min(_MAX_DEPTH, product.depth - begin)
        operands = [product.operand(name, index, begin, depth) for name in SLOTS]
        output = replace(operands[-1], offset_field=None)
        # A binding that the shader may write to must not stand on an input.
        operands.append(partial or output)
        push = {**product.push(), "depth": depth}
        unfinished = begin + depth < product.depth
        known = {**product.kinds, "CONTINUES": begin > 0, "UNFINISHED": unfinished}
        if "flags" in variant.push_fields:
            push["flags"] = sum(on << bit for bit, on in enumerate(known.values()))
            known = {}
        if kernel.shader.endswith("_few_rows"):
            operands += [replace(operands[i], offset_field=None) for i in (0, 3)]
        if prepared is not None:
            operands[0] = operands[3] = UNUSED
            operands += [*prepared.operands(index, begin, depth), output]
            push |= prepared.push(depth)
            known |= prepared.spec()
        return Dispatch(variant, kernel.tiles(product), tuple(operands), push, known)

    main = [dispatch(i, begin) for i in range(product.outer) for begin in ends]
    if prepared is None:
        return Plan(tuple(main), temporary_bytes=temporary.bytes)
    return Plan(
        (*prepared.execute, *main), tuple(prepared.initialize), temporary.bytes,
        prepared.persistent.bytes, frozenset(prepared.repacked),
    )


class _Scratch:
    """The temporary or the persistent resource, handed out in ranges."""

    def __init__(self, slot: str) -> None:
        self.slot = slot
        self.bytes = 0

    def take(self, offset_field: str, itemsize: int, length: int) -> Operand:
        begin = -(-self.bytes // 256) * 256
        self.bytes = begin + itemsize * length
        return Operand(self.slot, offset_field, itemsize, length, begin // itemsize, writes=True)


def _is_ready(product: Product, side: str, kernel: Kernel) -> bool:
    """Whether the kernel can read the lines of A or B as they are, 16 elements of the depth at a
    time and none past the end."""
    t, along, across = product.side(side)
    if t.owned_by_dml:
        return False
    line, batches = t.strides[across], product.steps[side]
    return (
        t.strides[along] == 1
        and t.base_alignment % 16 == 0
        and product.depth % kernel.depth == 0
        and all(step % 16 == 0 for step in (line, *batches))
    )


@dataclass(frozen=True)
class _Side:
    """A or B as the kernel reads it."""

    lines: Operand | None
    """None for the tensor itself."""
    sums: Operand | None
    strides: tuple[int, int, int]
    """batch, line, depth"""
    bytes_each: int
    sums_each: int
    """from one outer dispatch to the next"""
    sums_of_chunk: int


class _Prepared:
    """A and B laid out for the matrix units, and the sums of their lines.

    What is OWNED_BY_DML is prepared once, at initialization, and kept.
    """

    def __init__(
        self, product: Product, kernel: Kernel, target: Target, temporary: _Scratch
    ) -> None:
        self.product, self.kernel = product, kernel
        self.variant: Variant = target.library.get(_LINES)
        self.execute: list[Dispatch] = []
        self.initialize: list[Dispatch] = []
        self.repacked: list[str] = []
        self.temporary, self.persistent = temporary, _Scratch(PERSISTENT)
        self.chunk = self._chunk()
        kinds = product.kinds
        # One side's sums are multiplied by the other's zero points; see include/lowered.glsl.
        self.sides = {
            "a": self._prepare("a", kinds["HAS_B_ZERO"] or not kinds["B_SIGNED"]),
            "b": self._prepare("b", kinds["HAS_A_ZERO"] or not kinds["A_SIGNED"]),
        }

    def _chunk(self) -> int:
        """Depth that one workgroup sums: short enough that some 250 of them are at work. It goes by
        B alone, so that a constant B is prepared alike for any number of rows."""
        p = self.product
        blocks = -(-p.columns // 128)
        chunk = _MAX_DEPTH
        while chunk > 128 and blocks * -(-p.depth // chunk) < 250:
            chunk //= 2
        return chunk

    def _prepare(self, side: str, wants_sums: bool) -> _Side:
        p = self.product
        t, along, across = p.side(side)
        outer_step, batch_step = p.steps[side]
        own = (batch_step, t.strides[across], t.strides[along])
        if _is_ready(p, side, self.kernel):
            return _Side(None, None, own, 0, 0, 0)

        count = t.sizes[across]
        batches = p.batches if batch_step else 1
        outer = p.outer if outer_step else 1
        pitch = -(-p.depth // self.kernel.depth) * self.kernel.depth
        chunks = -(-p.depth // self.chunk)
        bytes_each, sums_of_chunk = batches * count * pitch, batches * count
        sums_each = sums_of_chunk * chunks
        scratch = self.persistent if t.owned_by_dml else self.temporary
        into = self.initialize if t.owned_by_dml else self.execute
        if t.owned_by_dml:
            self.repacked.append(SLOTS[side])
        lines = scratch.take("prepared_offset", 1, outer * bytes_each)
        sums = scratch.take("sums_offset", 4, outer * sums_each) if wants_sums else None
        for index in range(outer):
            matrix = replace(p.operand(side, index, 0, p.depth), offset_field="matrix_offset")
            to = _part(lines, index * bytes_each, bytes_each)
            into.append(Dispatch(
                self.variant,
                batches * -(-count // 128) * chunks,
                (
                    matrix, replace(matrix, offset_field=None), to,
                    # A binding that the shader may write to must not stand on an input.
                    replace(to, offset_field=None) if sums is None
                    else _part(sums, index * sums_each, sums_each),
                ),
                {
                    "batches": batches, "lines": count, "depth": p.depth, "chunk": self.chunk,
                    "strides": own, "pitch": pitch, "is_signed": int(t.data_type.is_signed),
                    "keeps_sums": int(wants_sums),
                },
            ))
        return _Side(
            replace(lines, offset_field=f"{side}_offset", writes=False),
            sums and replace(sums, writes=False),
            (count * pitch if batch_step else 0, pitch, 1),
            bytes_each if outer_step else 0, sums_each if outer_step else 0, sums_of_chunk,
        )

    def operands(self, index: int, begin: int, depth: int) -> list[Operand]:
        """Lines of A and of B, sums of rows and of columns."""
        all_lines, all_sums = [], []
        for side, field in (("a", "row_sums_offset"), ("b", "column_sums_offset")):
            s = self.sides[side]
            if s.lines is None:
                all_lines.append(self.product.operand(side, index, begin, depth))
            else:
                first = index * s.bytes_each + begin
                all_lines.append(_part(s.lines, first, s.lines.length - first))
            if s.sums is None:
                all_sums.append(UNUSED)
            else:
                first = index * s.sums_each + begin // self.chunk * s.sums_of_chunk
                part = _part(s.sums, first, s.sums.length - first)
                all_sums.append(replace(part, offset_field=field))
        return all_lines + all_sums

    def push(self, depth: int) -> dict[str, Any]:
        (a_batch, a_line, a_depth), (b_batch, b_line, b_depth) = (
            self.sides[side].strides for side in "ab"
        )
        return {
            "a_strides": (a_batch, a_line, a_depth),
            "b_strides": (b_batch, b_depth, b_line),
            "sum_count": -(-depth // self.chunk),
        }

    def spec(self) -> dict[str, bool]:
        result = {}
        for side, s in self.sides.items():
            result[f"{side.upper()}_PREPARED"] = s.lines is not None
            result[f"{side.upper()}_SUMMED"] = s.sums is not None
        return result


def _part(operand: Operand, first: int, length: int) -> Operand:
    return replace(operand, offset=operand.offset + first, length=length)
