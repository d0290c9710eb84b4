"""The tensors of a product of integers as its shaders walk them."""

from __future__ import annotations

from typing import Any

from ...desc import TensorDesc
from ...dtypes import DataType
from ...layout import coalesce, extent, pad_left
from ...lowering.plan import UNUSED, Operand, reads, writes
from ...tuning import work_key

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
MAX_DEPTH = 1 << 15


class Product:
    """The tensors of a product as stacks of matrices: shaders walk ``batches`` of them, ``outer``
    dispatches take what does not merge into one dimension."""

    def __init__(self, desc: Any) -> None:
        *leading, self.rows, self.depth = desc.a_tensor.sizes
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
        """(step of the outer dimension, step of the batches) by matrix, in elements"""
        self.kinds = {  # in the order of the shaders' flags
            "A_SIGNED": desc.a_tensor.data_type.is_signed,
            "B_SIGNED": desc.b_tensor.data_type.is_signed,
            "HAS_A_ZERO": desc.a_zero_point_tensor is not None,
            "HAS_B_ZERO": desc.b_zero_point_tensor is not None,
            "HAS_BIAS": self.tensors["bias"] is not None,
            "HALF": desc.output_tensor.data_type is DataType.FLOAT16,
        }
        self.integer = not desc.output_tensor.data_type.is_float

    def side(self, name: str) -> tuple[TensorDesc, int, int]:
        """A or B, its axis along the depth, and the one across, that counts its lines."""
        return (self.a, -1, -2) if name == "a" else (self.b, -2, -1)

    def lines(self, side: str) -> int:
        """Of all batches that differ."""
        t, _, across = self.side(side)
        return int(t.sizes[across]) * (self.batches if self.steps[side][1] else 1)

    def needs_sums(self, side: str) -> bool:
        """One side's sums are multiplied by the other's zero points; see include/lowered.glsl."""
        other = "B" if side == "a" else "A"
        return self.kinds[f"HAS_{other}_ZERO"] or not self.kinds[f"{other}_SIGNED"]

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
