"""Products of rows in groups, each of which has a matrix of its own: experts of a mixture.

Rows are sorted into tiles of one group each. A product of tiles reads on the device which group a
tile has, and how many tiles have rows. The workgroups of the others leave at once. So the work
follows the rows, but for the last tile of each group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...attributes import QuantizationType
from ...desc import TensorDesc
from ...dtypes import DataType
from ...layout import packed_strides
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel, choose
from ...lowering.plan import Plan, Target
from ...runtime.traits import DeviceTraits
from ...spec import Field
from ..base import OperatorDesc, fields_of, widened
from ..gather import NonzeroCoordinatesOperatorDesc
from ..quantize_blocks import DequantizeOperatorDesc
from .blocked_weights import ROWS, BlockedProduct, fits
from .float_dispatch import matrix_views
from .float_kernels import KERNELS, OF_BFLOAT16
from .float_product import FloatProduct, MatrixView
from .gemm import GemmOperatorDesc

_HEIGHTS, _HEIGHTS_OF_CPU = ((0, 8), (16, 64), (64, 128)), ((0, 4), (8, 32))
"""Rows of a tile, for more than so many rows of a group. A tile of few rows reads its matrix in the
time in which it multiplies. There are few heights, because each has pipelines of its own."""
_FEW_ROWS = 8
_LOCAL_SIZE = 256

T = TypeVar("T")
Tiles = TypeVar("Tiles", bound="RowTiles[Any]")


@dataclass(frozen=True)
class RowTiles(Generic[T]):
    """Rows in tiles of one group each: tensors, or arrays of a graph."""

    groups: T
    """The group of each tile, and how many tiles have rows."""
    rows: T
    """The row at each place."""
    places: T
    """The place of each row, 0 for one that has no group."""
    each: int
    """The rows of a tile."""

    @classmethod
    def of(
        cls: type[Tiles], traits: DeviceTraits, rows: int, groups: int, new: Callable[[int], T]
    ) -> Tiles:
        """Tiles for so many rows of groups. ``new`` makes room for numbers."""
        each = tile_rows(traits, rows, groups)
        tiles = tile_count(rows, groups, each)
        return cls(new(tiles + 1), new(tiles * each), new(rows), each)

    def sorting(self, indices: T) -> dict[str, T]:
        """The tensors of GROUP_ROWS, which fills them."""
        return {"input_tensor": indices, "output_count_tensor": self.groups,
                "output_coordinates_tensor": self.rows, "output_places_tensor": self.places}


def tile_rows(traits: DeviceTraits, rows: int, groups: int) -> int:
    """The rows of a tile, for so many in all groups."""
    if rows < groups:
        return 1
    return next(height for least, height in reversed(
        _HEIGHTS_OF_CPU if traits.is_cpu else _HEIGHTS) if least == 0 or rows > least * groups)


def tile_count(rows: int, groups: int, each: int) -> int:
    """Enough tiles for any groups of so many rows."""
    return rows if each == 1 else (rows + groups * (each - 1)) // each


def _sort(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    indices = d.input_tensor
    words = indices.data_type.itemsize // 4
    read = p.read("input_tensor")
    p.dispatch(
        "group_rows", d.groups + 1,
        indices=read._replace(itemsize=4, length=read.length * words, offset=read.offset * words),
        of_tiles=p.write("output_count_tensor"), rows=p.write("output_coordinates_tensor"),
        places=p.write("output_places_tensor"),
        push={"count": indices.element_count, "step": words * indices.strides[-1],
              "tiles": d.output_count_tensor.element_count - 1, "per": d.per,
              "filler": d.filler},
        spec={"LOCAL_SIZE": min(_LOCAL_SIZE, p.device.max_invocations), "GROUPS": d.groups,
              "EACH": d.each})
    return p.build()


GroupRowsDesc: Any = widened(
    NonzeroCoordinatesOperatorDesc, Field("OutputPlacesTensor", "output", "TENSOR_DESC", True),
    *(Field(name, "attribute", "UINT", True) for name in ("Groups", "Each", "Per", "Filler")),
    name="GROUP_ROWS", lower=_sort, in_place=False, own_rules=True)
"""The input has the group of each row, of 32 or 64 bits. Where there is no such group, the row is
in no tile. OutputCount has the group of each tile of ``each`` rows, and after them the number of
tiles that have rows. OutputCoordinates has the row at each place of the tiles, divided by ``per``,
or ``filler``. OutputPlaces has the place of each row, 0 for rows in no tile."""


@dataclass(frozen=True)
class _DequantizedGroups(Kernel[BlockedProduct]):
    """The matrices of all groups are dequantized first, for many rows."""

    name = "dequantize"

    def estimate(self, g: BlockedProduct, traits: DeviceTraits) -> float:
        return 0.0 if g.rows > _FEW_ROWS else 3.0

    def serves(self, g: BlockedProduct, traits: DeviceTraits) -> str | None:
        nbytes = _weights(g.desc).total_tensor_size_in_bytes
        return None if nbytes <= traits.max_range else f"{nbytes} bytes fit no binding"

    def lower(self, g: BlockedProduct, p: PlanBuilder) -> None:
        d, weights = g.desc, _weights(g.desc)
        scale, zero = d.b_scale_tensor, d.b_zero_point_tensor
        dequantized = p.temporary(weights.data_type.itemsize, weights.element_count)
        parts = (scale,) if zero is None else (scale, zero)
        group, _, column = d.b_tensor.strides
        dequantize = DequantizeOperatorDesc(
            input_tensor=d.b_tensor.replace(sizes=weights.sizes, strides=(group, column, 1)),
            quantization_tensors=parts, output_tensor=weights,
            quantization_type=QuantizationType(len(parts)))
        p.include(dequantize.operator.lower(dequantize, p.target), {
            "input_tensor": p.read("b_tensor"), "quantization_tensors[0]": p.read("b_scale_tensor"),
            "quantization_tensors[1]": p.read("b_zero_point_tensor"), "output_tensor": dequantized})
        group, column, _ = weights.strides
        product = GroupedGemmDesc(**fields_of(GroupedGemmDesc, d) | {
            "b_tensor": TensorDesc(weights.data_type, d.b_tensor.sizes, (group, 1, column)),
            "b_scale_tensor": None, "b_zero_point_tensor": None, "block_size": None})
        p.include(product.operator.lower(product, p.target), {"b_tensor": dequantized.reading()})


def _weights(d: OperatorDesc) -> TensorDesc:
    """The matrices of all groups, dequantized: rows are columns of B."""
    groups, columns, blocks = d.b_scale_tensor.sizes
    sizes = groups, columns, blocks * d.block_size
    return TensorDesc(d.b_scale_tensor.data_type, sizes, packed_strides(sizes))


def _read_as_they_are(d: OperatorDesc, g: BlockedProduct) -> bool:
    """Whether a kernel reads the blocks of all groups, whose columns follow each other."""
    b = d.b_tensor
    scales = [t for t in (d.b_scale_tensor, d.b_zero_point_tensor) if t is not None]
    columns = b.replace(sizes=b.sizes[:0:-1], strides=b.strides[:0:-1])
    return fits(columns, d.block_size) and b.strides[0] == g.columns * b.strides[-1] and all(
        t.strides[0] == g.columns * t.strides[-2] for t in scales)


def _lower(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    if d.b_scale_tensor is not None:
        blocked, other = BlockedProduct(p), _DequantizedGroups()
        kernels = (*ROWS, other) if _read_as_they_are(d, blocked) else (other,)
        choose(kernels, blocked, p).lower(blocked, p)
        return p.build()
    y, is_bfloat16 = d.output_tensor, d.output_tensor.data_type is DataType.UINT16
    g = FloatProduct(
        y.sizes, d.a_tensor.sizes[-1], y.data_type.itemsize,
        matrix_views(p, MatrixView(p.write("output_tensor"), y.strides, y.base_alignment)),
        "bf16" if is_bfloat16 else "")
    choose(OF_BFLOAT16 if is_bfloat16 else KERNELS, g, p).lower(g, p)
    return p.build()


GroupedGemmDesc: Any = widened(
    GemmOperatorDesc, Field("GroupsTensor", "input", "TENSOR_DESC", True),
    Field("BScaleTensor", "input", "TENSOR_DESC", True),
    Field("BZeroPointTensor", "input", "TENSOR_DESC", True),
    Field("BlockSize", "attribute", "UINT", True), name="GROUPED_GEMM", lower=_lower,
    own_rules=True, data_types=(DataType.FLOAT32, DataType.FLOAT16, DataType.UINT16))
"""A is tiles x rows x K, B is groups x K x columns, and Groups is what GROUP_ROWS says of the
tiles. There is no C. With scales and zero points, which are groups x columns x blocks, B has
blocks of ``block_size`` elements along K, which is contiguous. Tiles without rows are not written.
UINT16 is BFLOAT16, on matrix units (multiplies_bfloat16)."""
