"""The kernels of attention: which of them can do some work, and with which constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..attributes import MultiheadAttentionMaskType as MaskType
from ..layout import Ints
from ..lowering.plan import Operand

SHADERS = ("attention", "attention_blocks", "attention_coopmat", "attention_decode",
           "attention_few_rows")


@dataclass(frozen=True)
class Kernel:
    """A shader, its constants, and how it divides the work."""

    name: str
    shader: str
    tiles: int
    """Workgroups for each key head, without parts of the keys."""
    keys: int
    """A part of the keys is a multiple of this."""
    spec: Mapping[str, int]
    push: Mapping[str, int] = field(default_factory=dict)
    busy: int = 2
    """The keys are divided if there are fewer workgroups for each core."""
    least: int = 4
    """The least tiles of keys in a part, if there are enough."""
    most: int = 1 << 30
    makes_parts: bool = False
    """Whether another shader finishes its outputs, even of a single part."""
    finishes: bool = False
    """Whether it combines the parts itself."""
    shares: int = 1
    """Partial results for each part."""


@dataclass(frozen=True)
class Lines:
    """Queries, keys or values: (batch, head, position, element)."""

    operand: Operand
    strides: Ints
    begins_aligned: bool
    size: int

    def of_vectors(self, each: int) -> bool:
        """Whether each head's elements are whole vectors of ``each`` elements."""
        return self.strides[3] == 1 and not any(
            n % each for n in (*self.strides[:3], self.size, self.operand.offset))

    def aligned(self, itemsize: int) -> bool:
        """Whether they are aligned vectors of 16 bytes wherever the tensor lies."""
        return self.begins_aligned and self.of_vectors(16 // itemsize)


def units(work: Any, lines: Sequence[Lines]) -> list[Kernel]:
    """Kernels for any attention, in float32, with small blocks for each invocation."""
    h = work.h
    columns = 64 if h.value_size <= 64 else 128
    return [Kernel(
        "units", f"attention.c{columns}",
        -(-h.heads // h.key_heads * h.queries // 64) * -(-h.value_size // columns), 64,
        {"LOCAL_SIZE": 256, "VECTORS": all(x.of_vectors(4) for x in lines)},
        {"head_size": h.head_size, "value_size": h.value_size})]


# Blocks of float32

_BLOCKS = {"b32": (128, 32, 64, 128), "b64": (128, 64, 64, 128), "b128": (128, 128, 128, 256),
           "h32": (64, 32, 64, 128), "h64": (64, 64, 64, 128), "h128": (64, 128, 64, 128)}
"""Rows, columns, keys and invocations of a workgroup, by variant."""


def blocks(work: Any, lines: Sequence[Lines]) -> list[Kernel]:
    """Kernels for any attention, in float32, with larger blocks for each invocation."""
    h, y = work.h, work.desc.output_tensor
    group = h.heads // h.key_heads
    vectors = work.type.itemsize == 4 and y.base_alignment % 16 == 0 and y.strides[-1] == 1 and (
        not any(s % 4 for s in (*y.strides[-3:-1], h.value_size)))
    return [Kernel(
        f"blocks-{name}", f"attention_blocks.{name}",
        -(-group * h.queries // rows) * -(-h.value_size // columns), keys,
        {"LOCAL_SIZE": invocations, "VECTORS": all(x.of_vectors(4) for x in lines),
         "BY_ROW": _by_row(work), "STORES_VECTORS": vectors},
        {"head_size": h.head_size, "value_size": h.value_size}, least=256 // keys)
        for name, (rows, columns, keys, invocations) in _BLOCKS.items()]


def _by_row(work: Any) -> bool:
    """Whether masks or biases differ between the rows of a key head."""
    h, desc = work.h, work.desc
    added = [work.mask_strides()] if desc.mask_type == MaskType.BOOLEAN else []
    if (relative := desc.relative_position_bias_tensor) is not None:
        added.append(relative.strides[-4:])
    return any((s[1] and h.heads > h.key_heads) or (s[2] and h.queries > 1) for s in added)


# Few queries

_SPANS = {4: 512, 8: 256}
"""The most keys of a part, by the rows of a variant."""


def few_rows(work: Any, lines: Sequence[Lines]) -> list[Kernel]:
    """Kernels for up to eight queries of a key head, counting all heads that share it."""
    h, itemsize = work.h, work.type.itemsize
    rows = h.heads // h.key_heads * h.queries
    vectors = [x.size * itemsize // 16 for x in lines]
    if rows > 8 or not all(x.aligned(itemsize) for x in lines[1:]) or not all(
            4 <= n <= 64 for n in vectors) or h.keys < 64:
        return []
    served = 4 if rows <= 4 else 8
    return [Kernel(
        f"few-{span}-{busy}", f"attention_few_rows.r{served}", 1, 32,
        {"LOCAL_SIZE": 256, "HEAD_VECTORS": vectors[0], "VALUE_VECTORS": vectors[2]},
        busy=busy, most=span // 32, makes_parts=True)
        for span, busy in ((_SPANS[served] // n, 4 * n) for n in (1, 2, 4))]


# Matrix units

def decoding(work: Any, lines: Sequence[Lines]) -> list[Kernel]:
    """Kernels for up to 16 rows of FLOAT16 on matrix units whose fragments are known."""
    p, h, desc = work.p, work.h, work.desc
    rows = h.heads // h.key_heads * h.queries
    if work.type.itemsize != 2 or p.library.find("attention_decode") is None:
        return []
    if not p.device.multiplies(16, 16, 16, "f16", "f32") or desc.scale < 0:
        return []
    if not p.device.fragments_alike or p.device.max_bindings < 10 or rows > 16:
        return []
    if h.head_size % 32 or h.value_size % 64 or max(h.head_size, h.value_size) > 128:
        return []
    if not all(x.aligned(2) for x in lines):
        return []
    y = desc.output_tensor
    stores_vectors = y.base_alignment % 16 == 0 and y.strides[-1] == 1 and not any(
        s % 8 for s in y.strides[-3:-1])
    return [Kernel(
        f"decode-{subgroups}-{busy}", "attention_decode", 1, 16 * subgroups,
        {"LOCAL_SIZE": 32 * subgroups, "SUBGROUPS": subgroups, "HEAD_SIZE": h.head_size,
         "VALUE_SIZE": h.value_size, "STORES_VECTORS": stores_vectors},
        busy=busy, least=2, finishes=True, shares=subgroups)
        for subgroups, busy in _DECODING]


_DECODING = ((2, 5), (4, 2), (2, 4), (2, 10), (1, 10), (4, 3), (4, 5), (8, 1))
_MATRIX_TILES = ((8, 64, 1, 64, 1), (4, 32, 1, 32, 1), (8, 64, 2, 64, 1))
"""Subgroups, keys of a tile, fragments of 16 rows for each subgroup, keys at a time, and tiles in
shared memory. The fastest for many rows comes first."""
_FEW_QUERIES = 256
"""Smaller tiles are faster up to so many rows."""
_MANY_QUERIES = 512
"""From so many rows on, two fragments are fastest for values of up to _SMALL_VALUES elements."""
_SMALL_VALUES = 64
_SPLIT_KEYS = ((2, 32), (4, 64))
"""Subgroups and keys of a tile whose subgroups take the same rows and divide the keys. The fastest
for many keys comes first."""
_MANY_KEYS = 1024


def matrix_tiles(work: Any, lines: Sequence[Lines]) -> list[Kernel]:
    """Kernels for FLOAT16 on matrix units."""
    p, h, desc = work.p, work.h, work.desc
    sizes = (h.head_size, h.value_size)
    if work.type.itemsize != 2 or p.library.find("attention_coopmat") is None:
        return []
    if not p.device.multiplies(16, 16, 16, "f16", "f32") or desc.scale < 0:
        return []
    if any(n % 16 or n > 256 for n in sizes) or not all(x.aligned(2) for x in lines):
        return []
    rows = h.heads // h.key_heads * h.queries
    tiles = [_matrix_tile(work, *tile) for tile in _MATRIX_TILES]
    if rows <= _FEW_QUERIES or (
            tiles[0][0].tiles * h.batches * h.key_heads < p.device.cores):
        tiles[:2] = tiles[1::-1]
    elif rows >= _MANY_QUERIES and sizes[1] <= _SMALL_VALUES:
        tiles = [tiles[2], *tiles[:2]]
    if rows <= 16:
        split = [_matrix_tile(work, subgroups, keys, 1, keys // subgroups, 1, True)
                 for subgroups, keys in _SPLIT_KEYS]
        tiles = [*split, *tiles] if h.keys >= _MANY_KEYS else [*tiles, *split]
    return [kernel for kernel, shared in tiles if shared <= p.device.max_shared_memory]


def _matrix_tile(work: Any, subgroups: int, keys: int, fragments: int, step: int, buffers: int,
                 split_keys: bool = False) -> tuple[Kernel, int]:
    """The kernel, and its bytes of shared memory."""
    p, h, desc = work.p, work.h, work.desc
    group, sizes, own = h.heads // h.key_heads, (h.head_size, h.value_size), 16 * fragments
    rows, tile = group * h.queries, own if split_keys else subgroups * own
    by_row = _by_row(work)
    added = desc.mask_type != MaskType.NONE or desc.relative_position_bias_tensor is not None
    same, y = p.device.fragments_alike, desc.output_tensor
    tiles, strips = (abs(buffers) or 1) * keys * (sum(sizes) // 8 + 2), subgroups * 80
    vectors = max(tiles, strips) if same else (
        tiles + strips + subgroups * own * (step // 8 + 1) + 64)
    shared = 16 * vectors + 4 * ((abs(buffers) or 1) * keys + tile) + 8 * (tile if by_row else 1)
    stores_vectors = y.base_alignment % 16 == 0 and y.strides[-1] == 1 and not any(
        s % 8 for s in y.strides[-3:-1])
    return Kernel(
        f"matrix-{subgroups}x{own}x{keys}x{step}x{buffers}{'-split' * split_keys}",
        "attention_coopmat",
        -(-rows // tile), keys,
        {"LOCAL_SIZE": 32 * subgroups, "SUBGROUPS": subgroups, "KEYS": keys,
         "FRAGMENTS": fragments, "HEAD_SIZE": sizes[0], "VALUE_SIZE": sizes[1],
         "BY_KEY": added, "BY_ROW": by_row,
         "STEP": step, "BUFFERS": abs(buffers) or 1, "BY_TILE": h.lengths is not None, "AHEAD": buffers <= 0,
         "VECTORS": stores_vectors, "SAME_PLACES": same, "WHOLE": h.queries % 16 == 0,
         "SPLIT_KEYS": split_keys,
         "IDLE": not split_keys and rows <= tile - own, "RAGGED": h.keys % keys != 0},
        least=2, makes_parts=split_keys, shares=subgroups if split_keys else 1), shared
