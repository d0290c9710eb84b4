"""Convolutions of one tap with small constant filters, which lie in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...layout import coalesce
from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.kernel import Kernel
from ...runtime.shader_library import sizes
from ...runtime.traits import DeviceTraits
from ...sizes import said, within
from . import packing
from .layer import Layer
from .packed_filter import careful, filter_in_order

SHADER = "convolution_pointwise_coopmat"
_FRAGMENT, _CHUNK, _STRIP = 16, 32, 64
"""Pixels of a tile, and channels and columns that are packed together."""
_CHUNKS, _PAIRS = 8, 16
"""The most vectors of an invocation that are on their way of each of two pixels, and the most pairs
of a strip and a chunk in a workgroup: all of them are one piece of code."""


class _Split(NamedTuple):
    """How workgroups divide the pixels and the columns."""

    chunks: int
    strips: int
    """Of a workgroup."""
    column_tiles: int
    row_groups: int
    """Workgroups that share the tiles of a column tile."""


@dataclass(frozen=True)
class Pointwise(Kernel[Layer]):
    """A core runs one workgroup at a time, which keeps a part of the filter."""

    tile: str
    strips: range
    """Strips of columns of a workgroup that it is for."""

    @property
    def subgroups(self) -> int:
        return sizes(f"{SHADER}.{self.tile}")["subgroups"]

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"pointwise-{self.tile}"

    def shader(self, layer: Layer) -> str:
        return layer.variant(f"{SHADER}.{self.tile}")

    def serves(self, layer: Layer, traits: DeviceTraits) -> str | None:
        c, (z, *axes) = layer.c, layer.c.axes
        if (reason := layer.lacks_order(traits)) is not None:
            return reason
        if c.groups > 1 or not _FRAGMENT <= c.in_channels <= _CHUNKS * _CHUNK:
            return f"several groups, or not {_FRAGMENT} to {_CHUNKS * _CHUNK} input channels"
        if z.in_size * z.out_size > 1 or any(
                a.transposed or a.filter_size > 1 for a in c.axes) or not all(
                a.phases[0][2] == 0 and (a.out_size - 1) * a.input_step < a.in_size for a in axes):
            return "more than one tap, or pixels outside of the input"
        split = self.split(layer, traits)
        if split is None:
            return "the filter does not fit the shared memory of all cores"
        return None if within(split.strips, self.strips) else (
            f"a workgroup has {said(split.strips)} strips")

    def split(self, layer: Layer, traits: DeviceTraits) -> _Split | None:
        c = layer.c
        chunks, strips = -(-c.in_channels // _CHUNK), -(-c.out_channels // _STRIP)
        room = traits.max_shared_memory // (16 * (256 * chunks + _STRIP // 4))
        column_tiles = -(-strips // max(min(room, _PAIRS // chunks), 1))
        if not room or column_tiles > traits.cores:
            return None
        row_groups = min(traits.cores // column_tiles, -(-c.rows // (_FRAGMENT * self.subgroups)))
        return _Split(chunks, -(-strips // column_tiles), column_tiles, row_groups)

    def estimate(self, layer: Layer, traits: DeviceTraits) -> float:
        """Microseconds. Measured are those of a dispatch, and bytes in one: of tensors, from the L2
        cache for all cores and for one, and of the filter in shared memory; and the outputs whose
        tail's tensor is read in one while others are stored."""
        c, split = layer.c, self.split(layer, traits)
        known = measured.figures(traits.device_class, SHADER)
        assert split is not None
        groups = self.subgroups * split.row_groups
        tiles = -(-c.rows // (_FRAGMENT * groups)) * self.subgroups  # of a core
        rows = _FRAGMENT * tiles * traits.cores / split.column_tiles
        own_filter = split.chunks * split.strips * 2 * _CHUNK * _STRIP
        time = known["start"] + own_filter / known["own_from_l2"] + max(
            2 * rows * (c.in_channels + c.out_channels) / known["bytes"],
            tiles * own_filter / known["shared"],
            2 * rows * (c.in_channels * split.column_tiles + c.out_channels) / known["from_l2"])
        tail = c.rows * c.out_channels / known["tail"] if layer.fused.has_tensor else 0
        return careful(traits) * (time - tail)

    def _together(self, layer: Layer, split: _Split) -> int:
        """Tiles of a subgroup that are on their way: as many as leave the fewest for one subgroup.
        More than one of several strips are too many registers."""
        groups = self.subgroups * split.row_groups

        def most(together: int) -> int:
            return -(-layer.c.rows // (_FRAGMENT * together * groups)) * together

        ways = range(max(_CHUNKS // split.chunks, 1), 0, -1)
        return 1 if split.strips > 1 else min(ways, key=most)

    def lower(self, layer: Layer, p: PlanBuilder) -> None:
        c, fused, split = layer.c, layer.fused, self.split(layer, p.device)
        assert split is not None
        layer_in, x = packing.packed_input(p, c, packing.planned(p, c))
        axes = c.axes[1:]
        steps = [a.input_step for a in axes]
        x_strides = (layer_in.x_strides[0],
                     *(s * n for s, n in zip(layer_in.x_strides[-2:], steps)))
        y_strides = (c.y_strides[0], *c.y_strides[-2:])
        sizes = (c.batches, *(a.out_size for a in axes))
        _, lines = coalesce(sizes, x_strides, y_strides)
        if all(len(each) == 1 for each in lines):  # pixels in one line
            sizes, x_strides, y_strides = (c.rows, 1, 1), (lines[0][0], 0, 0), (lines[1][0], 0, 0)
        p.dispatch(
            self.shader(layer), split.row_groups * split.column_tiles,
            x=x, w=filter_in_order(p, c), y=p.write("output_tensor"),
            bias=p.read("bias_tensor"), **p.read_tail(), params=fused.words or (0,),
            push={"rows": c.rows, "out_channels": c.out_channels, "x_strides": x_strides,
                  "y_strides": y_strides, "bias_stride": layer.bias_stride, "activation_at": 0},
            spec={"HAS_BIAS": layer.tensor("bias_tensor") is not None, "CHUNKS": split.chunks,
                  "STRIPS": split.strips, "TOGETHER": self._together(layer, split),
                  "CHANNELS": layer_in.in_channels, "SIZE_Y": sizes[1], "SIZE_X": sizes[2],
                  "COLUMN_TILES": split.column_tiles, **fused.spec})


# As measured on an H200.
KERNELS: tuple[Kernel[Layer], ...] = (
    Pointwise("s12", range(2)), Pointwise("s16", range(2, _PAIRS + 1)))
