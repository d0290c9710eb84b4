"""The kernels of attention: which of them can do some work, and with which constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..attributes import MultiheadAttentionMaskType as MaskType
from ..layout import Ints
from ..lowering.plan import Operand

_MANY_KEYS = 1024
SHADERS = ("attention", "attention_blocks", "attention_coopmat", "attention_decode",
           "attention_few_keys", "attention_few_rows")


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


def kernels(work: Any, lines: Sequence[Lines]) -> list[Kernel]:
    """All kernels that can do the work. The one that should be fastest comes first."""
    return [*_matrix_kernels(work, lines), *few_rows(work, lines), *_float_kernels(work, lines)]


def _stores_vectors(work: Any, each: int) -> bool:
    """Whether each head's output consists of aligned vectors of ``each`` elements."""
    y = work.desc.output_tensor
    return y.base_alignment % 16 == 0 and y.strides[-1] == 1 and not any(
        s % each for s in (*y.strides[-3:-1], work.h.value_size))


def _adds(work: Any) -> bool:
    """Whether there are masks or biases."""
    desc = work.desc
    return (desc.mask_type != MaskType.NONE
            or desc.relative_position_bias_tensor is not None)


def _by_row(work: Any) -> bool:
    """Whether masks or biases differ between the rows of a key head."""
    h, desc = work.h, work.desc
    added = [work.mask_strides()] if desc.mask_type == MaskType.BOOLEAN else []
    if (relative := desc.relative_position_bias_tensor) is not None:
        added.append(relative.strides[-4:])
    return any((s[1] and h.heads > h.key_heads) or (s[2] and h.queries > 1) for s in added)


# Any attention, in float32

_BLOCKS = {"h32": (64, 32, 64, 128, 12800), "h64": (64, 64, 64, 128, 12800),
           "b64": (128, 64, 64, 128, 20992), "b128": (128, 128, 128, 256, 41984)}
"""Rows, columns, keys, invocations and bytes of shared memory of a workgroup, by variant."""
_SMALL_BLOCKS_AT_ONCE = 3
"""Workgroups of h32 and h64 that a core runs at a time. With fewer, and _MANY_KEYS, larger ones and
parts of the keys are faster."""


def _float_kernels(work: Any, lines: Sequence[Lines]) -> list[Kernel]:
    device, h = work.p.device, work.h
    found = _blocks(work, lines)
    # CPUs compile large blocks slowly. Few workgroups of them leave cores idle.
    fills = [k for k in found if k.tiles * h.batches * h.key_heads * -(
        -h.keys // (k.keys * k.least)) >= device.cores]
    if device.is_cpu or not fills:
        return [_units(work, lines), *found]
    return [*fills, _units(work, lines), *(k for k in found if k not in fills)]


def _units(work: Any, lines: Sequence[Lines]) -> Kernel:
    """Small blocks for each invocation."""
    h = work.h
    columns = 64 if h.value_size <= 64 else 128
    return Kernel(
        "units", f"attention.c{columns}",
        -(-h.heads // h.key_heads * h.queries // 64) * -(-h.value_size // columns), 64,
        {"LOCAL_SIZE": 256, "VECTORS": all(x.of_vectors(4) for x in lines)},
        {"head_size": h.head_size, "value_size": h.value_size})


def _blocks(work: Any, lines: Sequence[Lines]) -> list[Kernel]:
    """Large blocks for each invocation."""
    device, h = work.p.device, work.h
    rows = h.heads // h.key_heads * h.queries
    names = ["b128"] if h.value_size > 64 else ["h64", "b64"] if h.value_size > 32 else ["h32"]
    if rows > 64 and h.keys >= _MANY_KEYS and -(-rows // 64) * h.batches * h.key_heads < (
            _SMALL_BLOCKS_AT_ONCE * device.cores):
        names.reverse()
    made = []
    for name in names:
        each, columns, keys, invocations, shared = _BLOCKS[name]
        if shared <= device.max_shared_memory and invocations <= device.max_invocations:
            made.append(Kernel(
                f"blocks-{name}", f"attention_blocks.{name}",
                -(-rows // each) * -(-h.value_size // columns), keys,
                {"LOCAL_SIZE": invocations, "VECTORS": all(x.of_vectors(4) for x in lines),
                 "ALIGNED": work.type.itemsize == 4 and all(x.aligned(4) for x in lines),
                 "BY_ROW": _by_row(work),
                 "STORES_VECTORS": work.type.itemsize == 4 and _stores_vectors(work, 4)},
                {"head_size": h.head_size, "value_size": h.value_size}, least=256 // keys))
    return made


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


# FLOAT16 on matrix units

_FEW_QUERIES = 256
"""Smaller tiles are faster up to so many rows."""
_MANY_QUERIES = 1024
"""From so many rows on, two fragments are fastest for values of up to _SMALL_VALUES elements."""
_SMALL_VALUES = 64
_FEW_KEYS = 128
_TURNS_KEYS = 64
_DECODING_BINDINGS, _DECODING_SUBGROUPS = 10, 4
_SPLIT_KEYS = ((2, 32), (4, 64))
"""Subgroups and keys of a tile whose subgroups take the same rows and divide the keys. The fastest
for many keys comes first."""


def _matrix_kernels(work: Any, lines: Sequence[Lines]) -> list[Kernel]:
    p, h, desc = work.p, work.h, work.desc
    sizes = (h.head_size, h.value_size)
    if work.type.itemsize != 2 or p.library.find("attention_coopmat.usual") is None:
        return []
    if not p.device.multiplies(16, 16, 16, "f16", "f32") or desc.scale < 0:
        return []
    if any(n % 16 or n > 256 for n in sizes) or not all(x.aligned(2) for x in lines):
        return []
    rows, heads = h.heads // h.key_heads * h.queries, h.batches * h.key_heads
    # Subgroups, keys of a tile, fragments, and whether the next scores are computed ahead.
    small = [(4, 32, 1, False)]
    if 64 < rows <= _FEW_QUERIES and 32 < sizes[1] <= _SMALL_VALUES and (
            -(-rows // 128) * heads >= 2 * p.device.cores):
        small.insert(0, (8, 32, 1, False))
    large = (8, 64, 1, max(sizes) > _SMALL_VALUES)
    if rows <= _FEW_QUERIES or -(-rows // 128) * heads < p.device.cores:
        tiles = [*small, large]
    elif rows >= _MANY_QUERIES and sizes[1] <= _SMALL_VALUES:
        tiles = [(4, 64, 2, False), large, *small]
    else:
        tiles = [large, *small]
    made = [_matrix_tile(work, *tile) for tile in tiles]
    if _takes_turns(work):
        turns = _matrix_tile(work, 8, _TURNS_KEYS, 2, False, way="turns")
        made.insert(0 if -(-rows // 256) * heads >= 2 * p.device.cores else len(made), turns)
    if rows <= 16:
        split = [_matrix_tile(work, subgroups, keys, 1, False, True)
                 for subgroups, keys in _SPLIT_KEYS]
        made = [*split, *made] if h.keys >= _MANY_KEYS else [*made, *split]
    if _are_few_keys(work):
        made.insert(0 if rows > 16 else len(made), _few_keys(work, rows))
    found = [kernel for kernel, shared in made if shared <= p.device.max_shared_memory]
    if (decoding := _decoding(work, rows)) is not None:
        found.insert(0 if h.keys >= _MANY_KEYS else len(found), decoding)
    return found


def _takes_turns(work: Any) -> bool:
    """Whether queries may stay in local memory, see attention_coopmat.comp."""
    h, desc = work.h, work.desc
    return bool(
        _SMALL_VALUES < max(h.head_size, h.value_size) <= 128 and not _adds(work)
        and work.p.device.fragments_alike and desc.scale > 0
        and (h.lengths is None or (h.queries % 16 == 0 and h.keys % _TURNS_KEYS == 0)))


def _are_few_keys(work: Any) -> bool:
    """Whether the scores of all keys fit in registers, and the output consists of vectors."""
    h = work.h
    return bool(
        h.keys <= _FEW_KEYS and max(h.head_size, h.value_size) <= _SMALL_VALUES
        and h.value_size % 32 == 0 and work.p.device.fragments_alike and h.lengths is None
        and not _by_row(work) and _stores_vectors(work, 8))


def _few_keys(work: Any, rows: int) -> tuple[Kernel, int]:
    """The kernel, and its bytes of shared memory."""
    h = work.h
    subgroups, keys = min(8, -(-rows // 16)), -(-h.keys // 16) * 16
    pitch = max(h.head_size, h.value_size) // 8 + 1
    return Kernel(
        "few-keys", "attention_few_keys", -(-rows // (16 * subgroups)), keys,
        {"LOCAL_SIZE": 32 * subgroups, "SUBGROUPS": subgroups, "KEYS": keys,
         "HEAD_SIZE": h.head_size, "VALUE_SIZE": h.value_size,
         "BY_KEY": _adds(work) or h.keys != keys, "GROUPED": h.heads != h.key_heads},
    ), 16 * max(keys, 16 * subgroups) * pitch + 4 * keys


def _decoding(work: Any, rows: int) -> Kernel | None:
    """Up to 16 rows, with keys and values straight from memory."""
    device, h = work.p.device, work.h
    if rows > 16 or not device.fragments_alike or device.max_bindings < _DECODING_BINDINGS:
        return None
    if h.head_size % 32 or h.value_size % 64 or max(h.head_size, h.value_size) > 128:
        return None
    return Kernel(
        "decode", "attention_decode", 1, 16 * _DECODING_SUBGROUPS,
        {"LOCAL_SIZE": 32 * _DECODING_SUBGROUPS, "SUBGROUPS": _DECODING_SUBGROUPS,
         "HEAD_SIZE": h.head_size, "VALUE_SIZE": h.value_size,
         "STORES_VECTORS": _stores_vectors(work, 8)},
        least=2, finishes=True, shares=_DECODING_SUBGROUPS)


def _matrix_tile(work: Any, subgroups: int, keys: int, fragments: int, ahead: bool,
                 split_keys: bool = False, way: str = "usual") -> tuple[Kernel, int]:
    """The kernel, and its bytes of shared memory."""
    p, h = work.p, work.h
    group, sizes, own = h.heads // h.key_heads, (h.head_size, h.value_size), 16 * fragments
    rows, tile = group * h.queries, own if split_keys else subgroups * own
    by_row, same = _by_row(work), p.device.fragments_alike
    vectors, strips = keys * (sum(sizes) // 8 + 2), subgroups * 80
    if same:
        vectors = max(vectors, strips)
    else:
        powers = own * (keys // (subgroups if split_keys else 1) // 8 + 1)
        vectors += strips + subgroups * powers + 64
    shared = 16 * vectors + 4 * (keys + tile) + 8 * (tile if by_row else 1)
    return Kernel(
        f"matrix-{subgroups}x{own}x{keys}{'-split' * split_keys}",
        f"attention_coopmat.{way}",
        -(-rows // tile), keys,
        {"LOCAL_SIZE": 32 * subgroups, "SUBGROUPS": subgroups, "KEYS": keys,
         "FRAGMENTS": fragments, "HEAD_SIZE": sizes[0], "VALUE_SIZE": sizes[1],
         "BY_KEY": _adds(work), "BY_ROW": by_row, "VECTORS": _stores_vectors(work, 8),
         "SAME_PLACES": same, "WHOLE": h.queries % 16 == 0, "SPLIT_KEYS": split_keys,
         "AHEAD": ahead, "IDLE": not split_keys and rows <= tile - own,
         "RAGGED": h.keys % keys != 0},
        least=2, makes_parts=split_keys, shares=subgroups if split_keys else 1), shared
