"""The kernels of attention of FLOAT16 on matrix units."""

from __future__ import annotations

from dataclasses import dataclass

from ..lowering import measured
from ..runtime.traits import DeviceTraits
from ..sizes import said
from .attention_launch import AttentionKernel, Launch, has_many_keys
from .attention_problem import Attention

_MOST_ROWS = 16
"""Rows of a key head that one fragment of matrix units holds."""
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
        return (2 if has_many_keys(a, traits) else 70) + self.subgroups / 8


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
    _LargeTile(8, 64))
