"""The kernels of attention."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..attributes import MultiheadAttentionMaskType as MaskType
from ..dtypes import DataType
from ..layout import Ints
from ..lowering import measured
from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import float_bits
from ..lowering.kernel import Kernel
from ..lowering.plan import UNUSED, Operand
from ..lowering.walk import Walk
from ..runtime.shader_library import Variant, shared_bytes, sizes
from ..runtime.traits import DeviceTraits
from ..sizes import said, within
from ..tuning import work_key

_MOST_ROWS = 16
"""Rows of a key head that one fragment of matrix units holds."""
SHADERS = ("attention", "attention_blocks", "attention_coopmat", "attention_decode",
           "attention_few_keys", "attention_few_rows", "attention_lines", "attention_combine")


class Sizes(Protocol):
    """What kernels ask of heads."""

    heads: int
    key_heads: int
    batches: int
    queries: int
    head_size: int
    value_size: int
    lengths: str | None

    @property
    def keys(self) -> int: ...


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


@dataclass(frozen=True)
class Attention:
    """Queries, keys and values as lines, once biases are added and keys are collected."""

    desc: Any
    h: Sizes
    query: Lines
    key: Lines
    value: Lines
    y_strides: Ints
    """Of the output: batch, head, position, element."""

    @property
    def type(self) -> DataType:
        """The type that shaders take: FLOAT16 for BFLOAT16, too."""
        data_type: DataType = self.desc.output_tensor.data_type
        return DataType.FLOAT16 if self.is_bfloat16 else data_type

    @property
    def is_bfloat16(self) -> bool:
        """Whether elements are BFLOAT16, which descriptions have as UINT16."""
        return bool(self.desc.output_tensor.data_type == DataType.UINT16)

    @property
    def itemsize(self) -> int:
        return self.type.itemsize

    @property
    def lines(self) -> tuple[Lines, Lines, Lines]:
        return self.query, self.key, self.value

    @property
    def work(self) -> str:
        """The tuning key."""
        h = self.h
        kind = "b" if self.is_bfloat16 else "f"
        return work_key(f"attention {kind}{8 * self.itemsize}", self.rows, self.reach, h.head_size,
                        self.stacks)

    @property
    def window(self) -> int:
        """The keys that a query sees at most, of which its own is the last; 0: all before it."""
        return int(getattr(self.desc, "window", None) or 0)

    @property
    def reach(self) -> int:
        """The keys that all queries together see at most."""
        keys = self.h.keys
        return min(keys, self.window + self.h.queries - 1) if self.window else keys

    @property
    def soft_cap(self) -> float:
        """What scores stay below; 0: nothing."""
        return float(getattr(self.desc, "soft_cap", None) or 0)

    @property
    def sinks(self) -> bool:
        """Whether a score of no key takes its share, for each head."""
        return getattr(self.desc, "sink_tensor", None) is not None

    @functools.cached_property
    def rows(self) -> int:
        """Queries of a key head, counting all heads that share it."""
        return self.h.heads // self.h.key_heads * self.h.queries

    @property
    def stacks(self) -> int:
        """Key heads of all batches."""
        return self.h.batches * self.h.key_heads

    @property
    def longest(self) -> int:
        """Elements of a query or of a value, of which there are more."""
        return max(self.h.head_size, self.h.value_size)

    def of_vectors(self, each: int) -> bool:
        """Whether queries, keys and values are whole vectors of ``each`` elements."""
        return all(x.of_vectors(each) for x in self.lines)

    @functools.cached_property
    def are_aligned(self) -> bool:
        """Whether queries, keys and values are aligned vectors of 16 bytes."""
        return all(x.aligned(self.itemsize) for x in self.lines)

    def stores_vectors(self, each: int) -> bool:
        """Whether each head's output consists of aligned vectors of ``each`` elements."""
        y = self.desc.output_tensor
        return y.base_alignment % 16 == 0 and y.strides[-1] == 1 and not any(
            s % each for s in (*y.strides[-3:-1], self.h.value_size))

    @property
    def adds(self) -> bool:
        """Whether there are masks or biases."""
        return (self.desc.mask_type != MaskType.NONE
                or self.desc.relative_position_bias_tensor is not None)

    @functools.cached_property
    def by_row(self) -> bool:
        """Whether masks or biases differ between the rows of a key head."""
        h, desc = self.h, self.desc
        added = [self.mask_strides] if desc.mask_type == MaskType.BOOLEAN else []
        if (relative := desc.relative_position_bias_tensor) is not None:
            added.append(relative.strides[-4:])
        return any((s[1] and h.heads > h.key_heads) or (s[2] and h.queries > 1) for s in added)

    @property
    def mask_strides(self) -> Ints:
        """Strides by batch, head, query and key. For masks of lengths, by batch and row."""
        t, kind = self.desc.mask_tensor, self.desc.mask_type
        if t is None:
            return (0,) * 4
        if kind == MaskType.BOOLEAN:
            return tuple(t.strides[-4:])
        by_row = t.strides[-2] if kind == MaskType.KEY_SEQUENCE_END_START else 0
        return (t.strides[-1], by_row, 0, 0)


@dataclass(frozen=True)
class Launch:
    """The constants of a kernel, and how it divides the work."""

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
    shared: int = 0
    """Bytes of shared memory of a workgroup, where constants decide; else 0."""

    def split(self, a: Attention, traits: DeviceTraits) -> tuple[int, int]:
        """The number of parts of the keys, enough to fill the device, and the keys of a part."""
        tiles = -(-a.reach // self.keys)
        wanted = min(max(1, self.busy * traits.cores // (self.tiles * a.stacks)),
                     -(-tiles // self.least))
        span = min(-(-tiles // wanted), self.most)
        passes = 2 * (2 * a.h.head_size + 256)  # of a tile, and as many to be sure
        span = min(tiles, span, max(1, traits.max_loop_passes // passes))
        return -(-tiles // span), span * self.keys


class AttentionKernel(Kernel[Attention]):
    """A kernel of attention. Its estimate is a rank."""

    def launch(self, a: Attention, traits: DeviceTraits) -> Launch:
        """What it runs."""
        raise NotImplementedError

    def takes(self, a: Attention, variant: Variant, traits: DeviceTraits) -> tuple[int, int]:
        launch = self.launch(a, traits)
        return launch.spec["LOCAL_SIZE"], launch.shared or variant.shared_bytes

    def lower(self, a: Attention, p: PlanBuilder) -> None:
        """Dispatch it, in parts of the keys where that fills the device."""
        h, desc, kernel = a.h, a.desc, self.launch(a, p.device)
        groups, (parts, span) = kernel.tiles * a.stacks, kernel.split(a, p.device)
        split = not kernel.finishes and (parts > 1 or kernel.makes_parts or a.sinks)
        rows = h.batches * h.heads * h.queries
        to = p.write("output_tensor")
        more: dict[str, Any] = {}
        if split:
            to = p.temporary(4, rows * parts * kernel.shares * (h.value_size + 2))
        if kernel.finishes:
            more["records"] = p.temporary(4, rows * parts * kernel.shares * (h.value_size + 4))
            more["arrived"] = p.zeroed(4, groups)
        bias = desc.relative_position_bias_tensor
        relative = bias.strides[-4:] if bias is not None else (0,) * 4
        lengths = getattr(desc, h.lengths) if h.lengths else None
        by = (*(x.strides for x in a.lines), a.y_strides)
        variant = p.library.get(*self.shader(a).split("."))
        spec = {"TYPE": a.type.code, "OF_BFLOAT16": a.is_bfloat16,
                "RELATIVE": bias is not None, "MASK": int(desc.mask_type),
                "CAUSAL": h.lengths is not None, "SPLIT": split, "WINDOW": a.window,
                "SOFT_CAP": float_bits(a.soft_cap), **kernel.spec}
        p.dispatch(
            variant, groups * parts,
            q=a.query.operand, k=a.key.operand, v=a.value.operand, mask=p.read("mask_tensor"),
            relative=p.read("relative_position_bias_tensor"),
            lengths=p.read(h.lengths) if h.lengths else UNUSED, y=to, **more,
            params=[*(x[3] for x in by), *relative, *a.mask_strides],
            push={"batches": h.batches, "key_heads": h.key_heads,
                  "group": h.heads // h.key_heads, "queries": h.queries, "keys": h.keys,
                  "parts": parts, "span": span, "scale": float_bits(desc.scale),
                  "filter_value": float_bits(desc.mask_filter_value),
                  "lengths_stride": lengths.strides[-1] if lengths else 0, **kernel.push,
                  **{f"{name}_by": x[:3] for name, x in zip("qkvy", by)}},
            spec={name: value for name, value in spec.items() if name in variant.spec_ids})
        if split:
            sizes, local_size = (h.batches, h.heads, h.queries, h.value_size), min(
                256, p.device.max_invocations)
            walk, each = Walk(sizes, a.y_strides), 4 if h.value_size % 4 == 0 else 1
            p.dispatch(
                "attention_combine", -(-walk.count // (each * local_size)),
                records=to.reading(), y=p.write("output_tensor"),
                sink=p.read("sink_tensor") if a.sinks else UNUSED, params=walk.words,
                push={"count": walk.count, "value_size": h.value_size,
                      "parts": parts * kernel.shares, "y_step": a.y_strides[3],
                      "queries": h.queries, "heads": h.heads},
                spec={"LOCAL_SIZE": local_size, "TYPE": a.type.code, "FOURS": each == 4,
                      "SINK": a.sinks, "OF_BFLOAT16": a.is_bfloat16})


def _has_many_keys(a: Attention, traits: DeviceTraits) -> bool:
    return a.reach >= measured.figure(traits, "attention", "many_keys")


# Any attention, in float32


class _AnyAttention(AttentionKernel):
    """Small blocks for each invocation."""

    name = "units"

    def shader(self, a: Attention) -> str:
        return f"attention.c{self._columns(a)}"

    def _columns(self, a: Attention) -> int:
        return 64 if a.h.value_size <= 64 else 128

    def estimate(self, a: Attention, traits: DeviceTraits) -> float:
        return 201

    def launch(self, a: Attention, traits: DeviceTraits) -> Launch:
        h = a.h
        return Launch(
            -(-a.rows // 64) * -(-h.value_size // self._columns(a)), 64,
            {"LOCAL_SIZE": 256, "VECTORS": a.of_vectors(4)},
            {"head_size": h.head_size, "value_size": h.value_size})


@dataclass(frozen=True)
class _AttentionBlocks(AttentionKernel):
    """Large blocks for each invocation."""

    variant: str
    values: range
    """The sizes of values that it is for."""
    is_small: bool = False
    """Whether it is for devices with few registers, where a larger one does not fit."""

    @property
    def _sizes(self) -> Mapping[str, int]:
        return sizes(f"attention_blocks.{self.variant}")

    @property
    def rows(self) -> int:
        return self._sizes["rows"]

    @property
    def keys(self) -> int:
        return self._sizes["keys"]

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"blocks-{self.variant}"

    def shader(self, a: Attention) -> str:
        return f"attention_blocks.{self.variant}"

    def serves(self, a: Attention, traits: DeviceTraits) -> str | None:
        return None if within(a.h.value_size, self.values) else (
            f"values have {said(a.h.value_size)} elements")

    def estimate(self, a: Attention, traits: DeviceTraits) -> float:
        launch = self.launch(a, traits)
        # CPUs compile large blocks slowly. Few workgroups of them leave cores idle.
        fills = launch.tiles * a.stacks * -(-a.reach // (self.keys * launch.least)) >= traits.cores
        rank = 200 if fills and not traits.is_cpu else 202
        # With many keys, and fewer workgroups than cores run of the small ones at a time, larger
        # ones and parts of the keys are faster.
        many = a.rows > 64 and _has_many_keys(a, traits) and -(-a.rows // 64) * a.stacks < (
            measured.figure(traits, "attention_blocks", "at_once") * traits.cores)
        return rank + (0.75 if self.is_small else 0.5 if many == (self.rows == 64) else 0.25)

    def launch(self, a: Attention, traits: DeviceTraits) -> Launch:
        h = a.h
        return Launch(
            -(-a.rows // self.rows) * -(-h.value_size // self._sizes["columns"]), self.keys,
            {"LOCAL_SIZE": 16 * self._sizes["across"], "VECTORS": a.of_vectors(4),
             "ALIGNED": a.are_aligned, "BY_ROW": a.by_row,
             "STORES_VECTORS": a.stores_vectors(4)},
            {"head_size": h.head_size, "value_size": h.value_size}, least=256 // self.keys,
            shared=shared_bytes(self.shader(a)))


# Few queries


class _FewQueries(AttentionKernel):
    """Up to eight queries of a key head, whose keys and values are read once."""

    def serves(self, a: Attention, traits: DeviceTraits) -> str | None:
        if a.rows > 8:
            return f"{said(a.rows)} rows are more than 8"
        if a.h.keys < 64:
            return f"{said(a.h.keys)} keys are fewer than 64"
        if not all(x.aligned(a.itemsize) for x in (a.key, a.value)) or not all(
                4 <= x.size * a.itemsize // 16 <= 64 for x in a.lines):
            return "heads are not 4 to 64 aligned vectors of 16 bytes"
        return None

    def spec(self, a: Attention) -> dict[str, int]:
        """The sizes of heads, in vectors of 16 bytes."""
        query, _, value = (x.size * a.itemsize // 16 for x in a.lines)
        return {"HEAD_VECTORS": query, "VALUE_VECTORS": value}


@dataclass(frozen=True)
class _FewRows(_FewQueries):
    """Keys in short parts, whose scores are in shared memory."""

    spans: Mapping[int, int]
    """The most keys of a part, by the rows of a variant."""
    busy: int

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"few-rows-{self.busy}"

    def _served(self, a: Attention) -> int:
        return 4 if a.rows <= 4 else 8

    def shader(self, a: Attention) -> str:
        return f"attention_few_rows.r{self._served(a)}"

    def estimate(self, a: Attention, traits: DeviceTraits) -> float:
        return 100 + self.busy

    def launch(self, a: Attention, traits: DeviceTraits) -> Launch:
        return Launch(1, 32, {"LOCAL_SIZE": 256, **self.spec(a)},
                      busy=self.busy, most=self.spans[self._served(a)] // 32, makes_parts=True)


_LINES_INVOCATIONS = 128
_LEAST_LANES, _MOST_LANES = 8, 32
_MOST_SUMS = {1: 32, 4: 32, 8: 64}
"""The most FLOAT32 sums of all rows that an invocation of a line holds, by a variant's rows."""


@dataclass(frozen=True)
class ByLines(_FewQueries):
    """Keys in turn by lines of neighbours, who add up a score by themselves."""

    busy: int
    least: int = 4
    """The least tiles of keys in a part."""

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"lines-{self.busy}"

    def _served(self, a: Attention) -> int:
        return next(n for n in (1, 4, 8) if a.rows <= n)

    def shader(self, a: Attention) -> str:
        return f"attention_lines.r{self._served(a)}"

    def sums(self, a: Attention, lanes: int) -> int:
        """Those that an invocation holds, of whole vectors of each row."""
        each = 16 // a.itemsize
        return self._served(a) * each * -(-a.longest // (each * lanes))

    def lanes(self, a: Attention, traits: DeviceTraits) -> int:
        """The invocations of a line: as many as leave each few sums."""
        most = min(traits.subgroup_size, _MOST_LANES)
        lanes, sums = min(most, _LEAST_LANES), measured.figure(traits, "attention_lines", "sums")
        while (lanes < most and self.sums(a, lanes) > sums
               and lanes * (16 // a.itemsize) < a.longest):
            lanes *= 2
        return lanes

    def serves(self, a: Attention, traits: DeviceTraits) -> str | None:
        if (reason := super().serves(a, traits)) is not None:
            return reason
        lanes, served = self.lanes(a, traits), self._served(a)
        if lanes < served:
            return f"subgroups of {lanes} are smaller than {served} rows"
        sums, most = self.sums(a, lanes), _MOST_SUMS[served]
        return None if sums <= most else f"an invocation would hold {sums} sums, more than {most}"

    def estimate(self, a: Attention, traits: DeviceTraits) -> float:
        # Workgroups for each core, of which nobody knows how many there are.
        busy = measured.figure(traits, "attention_lines", "busy")
        return 90 + abs(self.busy - busy) / 16

    def launch(self, a: Attention, traits: DeviceTraits) -> Launch:
        served, lanes = self._served(a), self.lanes(a, traits)
        known = measured.figures(traits.device_class, self.shader(a))
        fours = {name: -(-n // lanes) * (16 // a.itemsize) // 4
                 for name, n in self.spec(a).items()}
        shared = 16 * (served * fours["HEAD_VECTORS"] * lanes
                       + fours["VALUE_VECTORS"] * _LINES_INVOCATIONS)
        return Launch(
            1, 32, {"LOCAL_SIZE": _LINES_INVOCATIONS, "LANES": lanes,
                    "AT_ONCE": int(known["at_once"]), **self.spec(a)},
            busy=self.busy, least=self.least, makes_parts=True,
            shared=shared + 8 * served * _LINES_INVOCATIONS // lanes)


# FLOAT16 on matrix units

_SMALL_VALUES = 64
_FEW_KEYS = 128
_TURNS_KEYS = 64
_DECODING_BINDINGS, _DECODING_SUBGROUPS = 10, 4


class _OfHalves(AttentionKernel):
    """A kernel of FLOAT16 on matrix units."""

    def serves(self, a: Attention, traits: DeviceTraits) -> str | None:
        if a.itemsize != 2 or a.is_bfloat16:
            return "elements are not FLOAT16"
        if not traits.multiplies(16, 16, 16, "f16", "f32"):
            return "the device has no matrix units for FLOAT16"
        if a.desc.scale < 0:
            return "the scale is negative"
        if any(n % 8 or n > 256 for n in (a.h.head_size, a.h.value_size)):
            return "heads are no multiples of 8 elements, up to 256"
        if not a.are_aligned:
            return "heads are no aligned vectors of 16 bytes"
        return self.refuses(a, traits)

    def refuses(self, a: Attention, traits: DeviceTraits) -> str | None:
        """Why it cannot compute what matrix units can."""
        return None


@dataclass(frozen=True)
class _AttentionTile(_OfHalves):
    """Tiles of rows and keys."""

    subgroups: int
    keys: int
    fragments: int = 1
    split_keys: bool = False
    """Whether the subgroups take the same rows and divide the keys."""
    way: str = "usual"

    @property
    def name(self) -> str:  # type: ignore[override]
        split = "-split" if self.split_keys else ""
        return f"matrix-{self.subgroups}x{16 * self.fragments}x{self.keys}{split}"

    @property
    def rows(self) -> int:
        return 16 * self.fragments * (1 if self.split_keys else self.subgroups)

    def serves(self, a: Attention, traits: DeviceTraits) -> str | None:
        # Some compilers have no registers for more, and move some to memory.
        fits = self.fragments == 1 and (
            a.longest <= _SMALL_VALUES or (self.keys == 32 and not self.split_keys))
        if not fits and not traits.fragments_alike:
            return "it is too large where nobody knows where elements of fragments lie"
        return super().serves(a, traits)

    def shader(self, a: Attention) -> str:
        return f"attention_coopmat.{self.way}"

    def ahead(self, a: Attention) -> bool:
        """Whether the next scores are computed ahead."""
        return False

    def launch(self, a: Attention, traits: DeviceTraits) -> Launch:
        h, own, same = a.h, 16 * self.fragments, traits.fragments_alike
        sizes = h.head_size, h.value_size
        # A part takes another dispatch to combine.
        part_keys = measured.count(traits, "attention_coopmat", "part_keys")
        padded = 2 * sum(-(-n // 16) for n in sizes)
        vectors, strips = self.keys * (padded + 2), self.subgroups * 80
        if same:
            vectors = max(vectors, strips)
        else:
            part = self.keys // (self.subgroups if self.split_keys else 1)
            vectors += strips + self.subgroups * own * (part // 8 + 1) + 64
        return Launch(
            -(-a.rows // self.rows), self.keys,
            {"LOCAL_SIZE": 32 * self.subgroups, "SUBGROUPS": self.subgroups, "KEYS": self.keys,
             "FRAGMENTS": self.fragments, "HEAD_SIZE": sizes[0], "VALUE_SIZE": sizes[1],
             "BY_KEY": a.adds or bool(a.soft_cap), "BY_ROW": a.by_row,
             "VECTORS": a.stores_vectors(8), "SAME_PLACES": same,
             "WHOLE": h.queries % 16 == 0 and h.head_size % 16 == 0,
             "SPLIT_KEYS": self.split_keys, "AHEAD": self.ahead(a),
             "IDLE": not self.split_keys and a.rows <= self.rows - own,
             "RAGGED": h.keys % self.keys != 0 or a.window > 0},
            least=2 if self.split_keys else max(2, part_keys // self.keys),
            makes_parts=self.split_keys,
            shares=self.subgroups if self.split_keys else 1,
            shared=16 * vectors + 4 * (self.keys + self.rows) + 8 * (self.rows if a.by_row else 1))


def _are_few(a: Attention, traits: DeviceTraits) -> bool:
    """Whether large tiles leave cores idle."""
    few = measured.figure(traits, "attention_coopmat", "few_rows")
    return a.rows <= few or -(-a.rows // 128) * a.stacks < traits.cores


class _SmallTile(_AttentionTile):
    """The smallest tile."""

    def estimate(self, a: Attention, traits: DeviceTraits) -> float:
        return 21 if _are_few(a, traits) else 23


class _WideTile(_AttentionTile):
    """As many keys, and rows for eight subgroups."""

    def refuses(self, a: Attention, traits: DeviceTraits) -> str | None:
        few = measured.figure(traits, "attention_coopmat", "few_rows")
        fits = 64 < a.rows <= few and 32 < a.h.value_size <= _SMALL_VALUES and (
            -(-a.rows // 128) * a.stacks >= 2 * traits.cores)
        return None if fits else "other sizes were not measured"

    def estimate(self, a: Attention, traits: DeviceTraits) -> float:
        return 20


class _LargeTile(_AttentionTile):
    """The largest tile of one fragment for each subgroup."""

    def ahead(self, a: Attention) -> bool:
        return a.longest > _SMALL_VALUES

    def estimate(self, a: Attention, traits: DeviceTraits) -> float:
        return 22


class _Tall(_AttentionTile):
    """Two fragments for each subgroup."""

    def refuses(self, a: Attention, traits: DeviceTraits) -> str | None:
        many = measured.figure(traits, "attention_coopmat", "many_rows")
        fits = not _are_few(a, traits) and a.rows >= many and (
            a.h.value_size <= _SMALL_VALUES)
        return None if fits else "other sizes were not measured"

    def estimate(self, a: Attention, traits: DeviceTraits) -> float:
        return 20


class _Turns(_AttentionTile):
    """Two fragments for each subgroup, whose queries stay in local memory. See
    attention_coopmat.comp."""

    def refuses(self, a: Attention, traits: DeviceTraits) -> str | None:
        if not _SMALL_VALUES < a.longest <= 128:
            return f"heads have {a.longest} elements"
        if a.adds or a.soft_cap or a.desc.scale <= 0:
            return "there are masks, biases, a soft cap or a scale of 0"
        if not traits.fragments_alike:
            return "nobody knows where elements of fragments lie"
        if a.h.lengths is not None and (a.h.queries % 16 or a.h.keys % _TURNS_KEYS):
            return "a cache's queries or keys are no whole fragments"
        return None

    def estimate(self, a: Attention, traits: DeviceTraits) -> float:
        return 3 if -(-a.rows // 256) * a.stacks >= 2 * traits.cores else 60


class _SplitKeys(_AttentionTile):
    """Up to one fragment of rows. More subgroups are faster for many keys."""

    def refuses(self, a: Attention, traits: DeviceTraits) -> str | None:
        return None if a.rows <= _MOST_ROWS else f"{said(a.rows)} rows are more than {_MOST_ROWS}"

    def estimate(self, a: Attention, traits: DeviceTraits) -> float:
        return (2 if _has_many_keys(a, traits) else 70) + self.subgroups / 8


class _FewKeys(_OfHalves):
    """The scores of all keys stay in registers."""

    name = "few-keys"

    def shader(self, a: Attention) -> str:
        return "attention_few_keys"

    def refuses(self, a: Attention, traits: DeviceTraits) -> str | None:
        if a.h.keys > _FEW_KEYS or a.longest > _SMALL_VALUES:
            return f"more than {_FEW_KEYS} keys, or {_SMALL_VALUES} elements of a head"
        if a.h.head_size % 16 or a.h.value_size % 32 or not a.stores_vectors(8):
            return "heads are no whole tiles, or outputs no vectors"
        if not traits.fragments_alike:
            return "nobody knows where elements of fragments lie"
        if a.h.lengths is not None or a.by_row or a.soft_cap:
            return "there is a cache, a soft cap, or masks or biases by row"
        return None

    def estimate(self, a: Attention, traits: DeviceTraits) -> float:
        return 1 if a.rows > 16 else 80

    def launch(self, a: Attention, traits: DeviceTraits) -> Launch:
        h, rows = a.h, a.rows
        subgroups, keys = min(8, -(-rows // 16)), -(-h.keys // 16) * 16
        return Launch(
            -(-rows // (16 * subgroups)), keys,
            {"LOCAL_SIZE": 32 * subgroups, "SUBGROUPS": subgroups, "KEYS": keys,
             "HEAD_SIZE": h.head_size, "VALUE_SIZE": h.value_size,
             "BY_KEY": a.adds or h.keys != keys, "GROUPED": h.heads != h.key_heads},
            shared=16 * max(keys, 16 * subgroups) * (a.longest // 8 + 1) + 4 * keys)


class _Decode(_OfHalves):
    """Up to 16 rows, with keys and values straight from memory."""

    name = "decode"

    def shader(self, a: Attention) -> str:
        return "attention_decode"

    def refuses(self, a: Attention, traits: DeviceTraits) -> str | None:
        if a.rows > _MOST_ROWS:
            return f"{said(a.rows)} rows are more than {_MOST_ROWS}"
        if not traits.fragments_alike:
            return "nobody knows where elements of fragments lie"
        if traits.max_bindings < _DECODING_BINDINGS:
            return f"it binds {_DECODING_BINDINGS} storage buffers"
        if a.sinks:
            return "it combines parts without a sink"
        if a.h.head_size % 32 or a.h.value_size % 64 or a.longest > 128:
            return "heads are not 32 to 128 elements, values not 64 or 128"
        return None

    def estimate(self, a: Attention, traits: DeviceTraits) -> float:
        # With lengths, the keys are a cache's capacity, of which few may be there.
        many = measured.figure(traits, "attention", "many_keys")
        return 0 if a.h.keys >= many or a.h.lengths else 90

    def launch(self, a: Attention, traits: DeviceTraits) -> Launch:
        return Launch(
            1, 16 * _DECODING_SUBGROUPS,
            {"LOCAL_SIZE": 32 * _DECODING_SUBGROUPS, "SUBGROUPS": _DECODING_SUBGROUPS,
             "HEAD_SIZE": a.h.head_size, "VALUE_SIZE": a.h.value_size,
             "STORES_VECTORS": a.stores_vectors(8)},
            least=2, finishes=True, shares=_DECODING_SUBGROUPS)


KERNELS: tuple[AttentionKernel, ...] = (
    _Decode(), _FewKeys(), _SplitKeys(2, 32, split_keys=True), _SplitKeys(4, 64, split_keys=True),
    _Turns(8, _TURNS_KEYS, 2, way="turns"), _Tall(4, 64, 2), _WideTile(8, 32), _SmallTile(4, 32),
    _LargeTile(8, 64),
    *(ByLines(n) for n in (4, 8, 16)),
    *(_FewRows({4: 512 // n, 8: 256 // n}, 4 * n) for n in (1, 2, 4)),
    _AnyAttention(),
    *(_AttentionBlocks(variant, values, is_small) for variant, values, is_small in (
        ("h32", range(33), False), ("h64", range(33, 65), False), ("b64", range(33, 65), False),
        ("b128", range(65, 1 << 32), False), ("s64", range(33, 65), True),
        ("s128", range(65, 1 << 32), True))))
