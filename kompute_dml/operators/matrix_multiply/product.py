"""The tensors of an integer product as its shaders see them."""

from __future__ import annotations

from typing import Any

from ...desc import TensorDesc
from ...dtypes import DataType
from ...layout import coalesce, extent, pad_left
from ...lowering.builder import PlanBuilder
from ...lowering.plan import UNUSED, Operand
from ...tuning import work_key
from ..base import OperatorDesc

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
VECTORS = {"a_scale": -2, "a_zero": -2, "b_scale": -1, "b_zero": -1}  # the axis of a vector

MAX_K = 1 << 15
"""The longest K of one dispatch. Sums of so many products of 8-bit numbers fit signed 32 bits."""


def vector_stride(t: TensorDesc | None, axis: int) -> int:
    """The stride between the values of rows or columns; 0 if they share one."""
    if t is None:
        return 0
    axis = max(axis, -t.dimension_count)
    return t.strides[axis] if t.sizes[axis] > 1 else 0


class Product:
    """The tensors of a product as stacks of matrices. A dispatch walks ``batches`` of them. Batch
    dimensions that do not merge into one take ``outer`` dispatches."""

    def __init__(self, desc: OperatorDesc) -> None:
        *leading, self.rows, self.k = desc.a_tensor.sizes
        self.columns = desc.b_tensor.sizes[-1]
        self.tensors: dict[str, TensorDesc | None] = {
            name: getattr(desc, slot, None) for name, slot in SLOTS.items()
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
        """(stride of the outer dimension, stride of the batches) by tensor, in elements."""
        self.kinds = {  # in the order of the shader's flags
            "A_SIGNED": desc.a_tensor.data_type.is_signed,
            "B_SIGNED": desc.b_tensor.data_type.is_signed,
            "HAS_A_ZERO": desc.a_zero_point_tensor is not None,
            "HAS_B_ZERO": desc.b_zero_point_tensor is not None,
            "HAS_BIAS": self.tensors["bias"] is not None,
            "HALF": desc.output_tensor.data_type is DataType.FLOAT16,
        }
        y = desc.output_tensor
        self.integer = not y.data_type.is_float
        self.y_signed = y.data_type.is_signed
        self.stores_words = y.sizes[-1] % 4 == 0 and y.strides[-1] == 1 and (
            y.base_alignment % 4 == 0
            and not any(s % 4 for s, n in zip(y.strides[:-1], y.sizes) if n > 1))
        """Whether four columns of an 8-bit output are an aligned word."""
        self.y_scale = getattr(desc, "output_scale_tensor", None)
        self.y_zero = getattr(desc, "output_zero_point_tensor", None)
        self.quantized = self.y_scale is not None
        self.scales_first = bool(getattr(desc, "scales_first", None))
        """Whether A's scale, one number, times B's scale is rounded before sums are scaled. Graphs
        say so."""

    def side(self, name: str) -> tuple[TensorDesc, int, int]:
        """A or B, its axis of K, and its other axis (A's rows or B's columns)."""
        return (self.a, -1, -2) if name == "a" else (self.b, -2, -1)

    def tiles(self, rows: int, columns: int) -> int:
        """Tiles of so many rows and columns that cover the output of one dispatch."""
        return self.batches * -(-self.rows // rows) * -(-self.columns // columns)

    def b_is_multiple(self, of: int) -> bool:
        """Whether every row of B begins and ends at a multiple."""
        b = self.b
        return not any(n % of for n in (
            b.base_alignment, *self.steps["b"], b.strides[-2], self.columns))

    def row_count(self, side: str) -> int:
        """Rows of A, or of B transposed, in all batches that are not repeated."""
        t, _, axis = self.side(side)
        return int(t.sizes[axis]) * (self.batches if self.steps[side][1] else 1)

    def needs_sums(self, side: str) -> bool:
        """Whether the sums of A's rows or B's columns are needed, for the other side's zero points.
        See include/lowered.glsl."""
        other = "B" if side == "a" else "A"
        return self.kinds[f"HAS_{other}_ZERO"] or not self.kinds[f"{other}_SIGNED"]

    @property
    def work(self) -> str:
        """The tuning key. It has the width of elements, and whether K is contiguous (or will be,
        once a constant is repacked)."""
        kinds = []
        for t, k_axis, _ in map(self.side, "ab"):
            contiguous = t.owned_by_dml or t.strides[k_axis] == 1
            kinds.append(f"{t.data_type.width}{'' if contiguous else ' strided'}")
        sizes = self.rows, self.k, self.columns, self.outer * self.batches
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
            values[f"{name}_stride"] = vector_stride(self.tensors[name], axis)
        if self.quantized:
            of_rows = (vector_stride(t, -2) for t in (self.y_scale, self.y_zero))
            values["bias_strides"] = (0, *of_rows)
        return values

    def operand(self, p: PlanBuilder, name: str, index: int, begin: int, k: int) -> Operand:
        """The part of a tensor for outer dispatch ``index``: ``k`` of K, from ``begin`` on."""
        t = self.tensors[name]
        if t is None:
            return UNUSED
        if name not in self.steps:
            return p.read(SLOTS[name])
        step, batch = self.steps[name]
        *_, rows, columns = t.sizes
        offset = index * step
        if name == "a":
            columns, offset = k, offset + begin * t.strides[-1]
        elif name == "b":
            rows, offset = k, offset + begin * t.strides[-2]
        length = extent((self.batches, rows, columns), (batch, *t.strides[-2:]))
        place = p.write if name == "out" else p.read
        return place(SLOTS[name], offset, length)
