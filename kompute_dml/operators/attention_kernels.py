"""The kernels of attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..lowering import measured
from ..runtime.shader_library import shared_bytes, sizes
from ..runtime.traits import DeviceTraits
from ..sizes import said, within
from . import attention_units
from .attention_launch import AttentionKernel, Launch, has_many_keys
from .attention_problem import Attention

SHADERS = ("attention", "attention_blocks", "attention_coopmat", "attention_decode",
           "attention_few_keys", "attention_few_rows", "attention_lines", "attention_combine")


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
        many = a.rows > 64 and has_many_keys(a, traits) and -(-a.rows // 64) * a.stacks < (
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


KERNELS: tuple[AttentionKernel, ...] = (
    *attention_units.KERNELS,
    *(ByLines(n) for n in (4, 8, 16)),
    *(_FewRows({4: 512 // n, 8: 256 // n}, 4 * n) for n in (1, 2, 4)),
    _AnyAttention(),
    *(_AttentionBlocks(variant, values, is_small) for variant, values, is_small in (
        ("h32", range(33), False), ("h64", range(33, 65), False), ("b64", range(33, 65), False),
        ("b128", range(65, 1 << 32), False), ("s64", range(33, 65), True),
        ("s128", range(65, 1 << 32), True))))
