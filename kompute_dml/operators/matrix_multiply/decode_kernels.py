"""The kernels of a decoder's products: a few rows by up to three matrices in one dispatch. A new
one is an entry in ``KERNELS``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...desc import TensorDesc
from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.elementwise import float_bits
from ...lowering.kernel import Kernel, candidates
from ...lowering.plan import Target
from ...runtime.traits import DeviceTraits
from ...sizes import said
from ...tuning import work_key
from ..base import OperatorDesc

SHADER, PLAIN, ROW = "gemm_decode", "gemm_decode_plain", "gemm_decode_row"
PLAIN_ROW = "gemm_decode_plain_row"
MOST_PARTS, MOST_ROWS = 3, 8
INVOCATIONS, LANES = 128, 32
TEAMS = INVOCATIONS // LANES
_HELD_BYTES, _OTHER_BYTES = 40 << 10, 6 << 10
"""The most bytes of rows in shared memory, and what the shader takes beside."""
_PLAIN_INVOCATIONS, _PAIRS_AT_ONCE = 256, 2
_PLAIN_OTHER_BYTES = 40
"""Of shared memory for each invocation of it, beside the rows."""
ACROSS = (8, 4, 2)
"""How many vectors of eight columns a workgroup may take."""
_LARGEST_TEAM, _ROW_INVOCATIONS = 512, 128
"""The most invocations along K, and the least of a workgroup, of the kernel of one row."""
_ROW_COLUMNS = 4
"""Columns of a team of it."""
_ROW_EACH = 32
"""Elements of its vectors, of 4 bits."""
_PLAIN_ROW_INVOCATIONS, _PLAIN_ROW_EACH = 512, 8
"""Invocations of the kernel of one row by FLOAT16, or twice as many for few tiles, and elements of
the row that one has at a time."""
_PLAIN_ROW_ACROSS = (16, *ACROSS)


class DecodePart(NamedTuple):
    """A matrix of a description, its scales and zero points, what is added, and the output."""

    slots: tuple[str, str, str, str, str]
    b: TensorDesc
    scale: TensorDesc | None
    zero: TensorDesc | None
    c: TensorDesc | None
    y: TensorDesc | None


def slots(n: int) -> tuple[str, str, str, str, str]:
    """The slots of part ``n``: B, scales, zero points, C and the output."""
    s = str(n) if n else ""
    return (f"b{s}_tensor", f"b{s}_scale_tensor", f"b{s}_zero_point_tensor", f"c{s}_tensor",
            f"output{s}_tensor")


def parts(d: OperatorDesc) -> Iterator[DecodePart]:
    """The parts of a description."""
    for n in range(MOST_PARTS):
        if getattr(d, slots(n)[0]) is not None:
            yield DecodePart(slots(n), *(getattr(d, slot) for slot in slots(n)))


@dataclass(frozen=True)
class DecodeProblem:
    """Rows times matrices, all in blocks or all plain."""

    rows: int
    k: int
    columns: tuple[int, ...]
    """Of each matrix."""
    bits: int
    """Of an element of a matrix: 4 or 8 in blocks, 16 if they are plain."""
    block: int
    """Elements of a block, if they are in blocks."""
    aligned: bool = True
    """Whether rows begin at multiples of 16 bytes."""

    @property
    def work(self) -> str:
        return work_key(f"decode u{self.bits}", self.rows, self.k, sum(self.columns))

    @property
    def elements(self) -> int:
        """Of all matrices."""
        return self.k * sum(self.columns)

    @property
    def suffix(self) -> str:
        """Of the variants for so many matrices."""
        return f"p{len(self.columns)}"

    @property
    def height(self) -> int:
        """The rows of the kernels that take several, of which some may not be there."""
        return next(n for n in (1, 2, 4, 8) if n >= self.rows)


class DecodeKernel(Kernel[DecodeProblem]):
    """A kernel, and what was measured of it."""

    constants_decide = True
    cost = 1.0

    def pays(self, g: DecodeProblem, traits: DeviceTraits) -> bool:
        """Whether it was measured to take less time than the operators one by one."""
        raise NotImplementedError


class _Several(DecodeKernel):
    """Several rows, in shared memory. They were measured by numbers of rows and of matrices."""

    figures: str

    def pays(self, g: DecodeProblem, traits: DeviceTraits) -> bool:
        known = measured.figures(traits.device_class, self.figures)
        return g.rows <= known["rows"] and len(g.columns) >= known["products"]


@dataclass(frozen=True)
class _DecodeBlocks(_Several):
    """Matrices in blocks. Neighbours read along K."""

    math: str
    """What it computes with: "halves" or "floats"."""
    figures = SHADER

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"blocks-{self.math}"

    def shader(self, g: DecodeProblem) -> str:
        return f"{SHADER}.{self.math}.r{g.height}.{g.suffix}"

    def serves(self, g: DecodeProblem, traits: DeviceTraits) -> str | None:
        if g.bits > 8:
            return "elements are in no blocks"
        if traits.max_invocations < INVOCATIONS:
            return f"a workgroup has {INVOCATIONS} invocations"
        return None

    def estimate(self, g: DecodeProblem, traits: DeviceTraits) -> float:
        return self.cost + 0.5 * (self.math == "floats")

    def pays(self, g: DecodeProblem, traits: DeviceTraits) -> bool:
        # More matrices take as many registers.
        least = f"{SHADER}.{self.math}.r{g.height}.p1"
        return least not in measured.crowded(traits.device_class) and super().pays(g, traits)

    def lower(self, g: DecodeProblem, p: PlanBuilder) -> None:
        d = p.desc
        first, *others = products = [*parts(d)]
        gated, each = bool(d.gated), 128 // g.bits
        known, cores = measured.figures(p.device.device_class, SHADER), p.device.cores
        # With few columns for each core a team takes two: then there are enough teams.
        columns = 4 if gated or sum(g.columns) >= known["few_columns"] * cores else 2
        tile = TEAMS * (columns // 2 if gated else columns)
        starts, tiles = [], first.b.sizes[-1] // tile
        for part in others if not gated else ():
            starts.append(tiles)
            tiles += part.b.sizes[-1] // tile
        room = min(_HELD_BYTES, p.device.max_shared_memory - _OTHER_BYTES)
        fits = room // (16 * g.height * each // 8) - 2
        held = min(-(-g.k // (each * LANES)), max(1, fits // LANES)) * LANES
        # Where the rows stay in shared memory, a workgroup takes several tiles.
        workers = min(tiles, int(known["workers"]) * cores) if held * each >= g.k else tiles
        p.dispatch(
            self.shader(g), workers, **_operands(p, products),
            push={"rows": g.rows, "K": g.k, "tiles": tiles, "workers": workers,
                  "x_row": d.a_tensor.strides[-2], "starts": (*starts, 0, 0)[:2],
                  "y_row": _rows_of_outputs(products), **_of_columns(first, each),
                  "epsilon": float_bits(d.epsilon or 0.0)},
            spec={"LOCAL_SIZE": INVOCATIONS, "BITS": g.bits, **_of_blocks(first, g.block),
                  "LANES": LANES, "HELD": held, "NORMALIZES": d.gamma_tensor is not None,
                  "HAS_C": first.c is not None, "C_ROWS": _has_rows_of_c(first, g.rows),
                  "COLUMNS": columns, "GATED": gated})


class _Plain(_Several):
    """FLOAT16 matrices. Neighbours read along the columns."""

    name = "plain"
    figures = PLAIN

    def shader(self, g: DecodeProblem) -> str:
        return f"{PLAIN}.r{g.height}.{g.suffix}"

    def serves(self, g: DecodeProblem, traits: DeviceTraits) -> str | None:
        if g.bits < 16:
            return "elements are in blocks"
        if traits.max_invocations < _PLAIN_INVOCATIONS:
            return f"a workgroup has {_PLAIN_INVOCATIONS} invocations"
        least = ACROSS[-1]
        return None if traits.subgroup_size >= least else f"subgroups are smaller than {least}"

    def lower(self, g: DecodeProblem, p: PlanBuilder) -> None:
        d = p.desc
        products = [*parts(d)]
        first, gated = products[0], bool(d.gated)
        widths = [part.b.sizes[-1] for part in (products[:1] if gated else products)]
        able = [n for n in ACROSS if n <= p.device.subgroup_size and not any(
            width % (8 * n) for width in widths)]
        # The widest that leaves a tile for each core.
        across = next((n for n in able if sum(widths) >= 8 * n * p.device.cores), able[-1])
        starts, tiles = [], widths[0] // (8 * across)
        for width in widths[1:]:
            starts.append(tiles)
            tiles += width // (8 * across)
        known, invocations = measured.figures(p.device.device_class, PLAIN), 2 * _PLAIN_INVOCATIONS
        # Of few rows and few tiles, a workgroup has twice as many invocations.
        if g.height > known["few_rows"] or tiles > known["few_tiles"] * p.device.cores or (
                p.device.max_invocations < invocations
                or p.device.max_shared_memory < _HELD_BYTES + _PLAIN_OTHER_BYTES * invocations):
            invocations = _PLAIN_INVOCATIONS
        teams = invocations // (2 if gated else 1) // across
        room = min(_HELD_BYTES, p.device.max_shared_memory - _PLAIN_OTHER_BYTES * invocations)
        step = _PAIRS_AT_ONCE * teams
        held = min(-(-g.k // (2 * step)), max(1, room // (4 * g.height) // step)) * step
        most = int(known["workers"]) * p.device.cores
        workers = min(tiles, most) if 2 * held >= g.k else tiles
        p.dispatch(
            self.shader(g), workers, **_operands(p, products),
            push={"rows": g.rows, "K": g.k, "tiles": tiles, "workers": workers,
                  "x_row": d.a_tensor.strides[-2], "starts": (*starts, 0, 0)[:2],
                  "b_row": [part.b.strides[-2] // 8 for part in products],
                  "y_row": _rows_of_outputs(products), "epsilon": float_bits(d.epsilon or 0.0)},
            spec={"LOCAL_SIZE": invocations, "ACROSS": across, "HELD": held,
                  "NORMALIZES": d.gamma_tensor is not None, "HAS_C": first.c is not None,
                  "C_ROWS": _has_rows_of_c(first, g.rows), "GATED": gated})


class _Row(DecodeKernel):
    """One row, whose parts stay in the registers of those who multiply by them. Matrices have 4
    bits."""

    name = "row"

    def shader(self, g: DecodeProblem) -> str:
        return f"{ROW}.{g.suffix}"

    def serves(self, g: DecodeProblem, traits: DeviceTraits) -> str | None:
        if g.bits != 4 or g.block % _ROW_EACH:
            return f"elements have no 4 bits, or blocks are no vectors of {_ROW_EACH}"
        if g.rows > 1:
            return f"it has {said(g.rows)} rows"
        most = min(_LARGEST_TEAM, traits.max_invocations)
        if _team(g, traits) > most:
            return f"K takes {_team(g, traits)} invocations, which are more than {most}"
        return None

    def estimate(self, g: DecodeProblem, traits: DeviceTraits) -> float:
        return 0.0 if self.pays(g, traits) else 2.0

    def pays(self, g: DecodeProblem, traits: DeviceTraits) -> bool:
        # 0 for classes in which it was not measured.
        return g.elements <= measured.figure(traits, ROW, "elements")

    def lower(self, g: DecodeProblem, p: PlanBuilder) -> None:
        d = p.desc
        products = [*parts(d)]
        first, gated, team = products[0], bool(d.gated), _team(g, p.device)
        teams = max(1, min(_ROW_INVOCATIONS, p.device.max_invocations) // team)
        columns = teams * (_ROW_COLUMNS // 2 if gated else _ROW_COLUMNS)
        tiles = [-(-n // columns) for n in (g.columns[:1] if gated else g.columns)]
        # With more invocations than a core runs at a time, they take turns.
        known = measured.figures(p.device.device_class, ROW)
        resident = max(1, int(known["resident"]) // (team * teams)) * p.device.cores
        turns = min(int(known["turns"]), -(-sum(tiles) // resident))
        workers = [-(-n // turns) for n in tiles]
        starts = [sum(workers[:n]) for n in range(1, len(workers))]
        p.dispatch(
            self.shader(g), sum(workers), **_operands(p, products),
            push={"K": g.k, "workers": sum(workers), "starts": (*starts, 0, 0)[:2],
                  "columns": [*g.columns], **_of_columns(first, _ROW_EACH),
                  "epsilon": float_bits(d.epsilon or 0.0)},
            spec={"LOCAL_SIZE": team * teams, **_of_blocks(first, g.block), "TEAM": team,
                  "NORMALIZES": d.gamma_tensor is not None, "HAS_C": first.c is not None,
                  "LEAST": p.device.subgroup_size,
                  "GATED": gated, "TURNS": turns})


class _PlainRow(DecodeKernel):
    """One row by FLOAT16 matrices, for which nothing is waited before they are read."""

    name = "plain-row"

    def shader(self, g: DecodeProblem) -> str:
        return f"{PLAIN_ROW}.{g.suffix}"

    def serves(self, g: DecodeProblem, traits: DeviceTraits) -> str | None:
        if g.bits < 16:
            return "elements are in blocks"
        if g.rows > 1:
            return f"it has {said(g.rows)} rows"
        if not g.aligned or g.k % _PLAIN_ROW_EACH:
            return f"the row is no vectors of {_PLAIN_ROW_EACH}"
        if traits.max_invocations < _PLAIN_ROW_INVOCATIONS:
            return f"a workgroup has {_PLAIN_ROW_INVOCATIONS} invocations"
        least = _PLAIN_ROW_ACROSS[-1]
        return None if traits.subgroup_size >= least else f"subgroups are smaller than {least}"

    def estimate(self, g: DecodeProblem, traits: DeviceTraits) -> float:
        return 0.0 if self.pays(g, traits) else 2.0

    def pays(self, g: DecodeProblem, traits: DeviceTraits) -> bool:
        # 0 for classes in which it was not measured.
        return measured.figure(traits, PLAIN_ROW, "workgroups") > 0

    def lower(self, g: DecodeProblem, p: PlanBuilder) -> None:
        d = p.desc
        products = [*parts(d)]
        first, gated = products[0], bool(d.gated)
        widths, least = g.columns[:1] if gated else g.columns, p.device.subgroup_size
        able = [n for n in _PLAIN_ROW_ACROSS if n <= least and not any(
            width % (8 * n) for width in widths)]
        # The widest that leaves tiles enough, of which a gated one has two matrices.
        enough = p.device.cores * (2 if gated else 1) * measured.figure(
            p.device, PLAIN_ROW, "workgroups")
        across = next((n for n in able if sum(widths) >= 8 * n * enough), able[-1])
        tiles = [width // (8 * across) for width in widths]
        starts = [sum(tiles[:n]) for n in range(1, len(tiles))]
        invocations = _PLAIN_ROW_INVOCATIONS
        if 2 * sum(tiles) <= p.device.cores and 2 * invocations <= p.device.max_invocations:
            invocations *= 2
        p.dispatch(
            self.shader(g), sum(tiles), **_operands(p, products),
            push={"K": g.k, "tiles": sum(tiles), "starts": (*starts, 0, 0)[:2],
                  "b_row": [part.b.strides[-2] // 8 for part in products],
                  "epsilon": float_bits(d.epsilon or 0.0)},
            spec={"LOCAL_SIZE": invocations, "ACROSS": across, "LEAST": least,
                  "NORMALIZES": d.gamma_tensor is not None, "HAS_C": first.c is not None,
                  "GATED": gated})


def _team(g: DecodeProblem, traits: DeviceTraits) -> int:
    """Invocations that divide K, a vector each: whole subgroups."""
    unit = max(32, traits.subgroup_size)
    return -(-g.k // (_ROW_EACH * unit)) * unit


def _operands(p: PlanBuilder, products: Sequence[DecodePart]) -> dict[str, Any]:
    """The buffers of all kernels. Plain matrices have neither scales nor zero points."""
    operands: dict[str, Any] = {"x": p.read("a_tensor"), "gamma": p.read("gamma_tensor")}
    for n, part in enumerate(products):
        b, scale, zero, c, y = part.slots
        blocks = {} if part.scale is None else {"scale": scale, "zero": zero}
        reads = {"b": b, **blocks, "c": c}
        operands |= {f"{name}{n}": p.read(slot) for name, slot in reads.items()}
        # The second matrix of a gated product has no output of its own.
        operands[f"y{n}"] = p.write(y if part.y is not None else "output_tensor")
    return operands


def _of_columns(part: DecodePart, each: int) -> dict[str, int]:
    """Push words: strides between columns, in vectors of B, scales and zero points."""
    scale, zero = part.scale, part.zero
    return {"b_column": part.b.strides[-1] // each,
            "scale_column": 0 if scale is None else scale.strides[0],
            "zero_column": 0 if zero is None else zero.strides[0]}


def _of_blocks(part: DecodePart, block: int) -> dict[str, int]:
    """Constants of matrices in blocks."""
    return {"SIGNED": part.b.data_type.is_signed, "HAS_ZERO": part.zero is not None, "BLOCK": block}


def _has_rows_of_c(part: DecodePart, rows: int) -> bool:
    """Whether C has a row for each row."""
    return part.c is not None and rows > 1 and part.c.strides[-2] != 0


def _rows_of_outputs(products: Sequence[DecodePart]) -> list[int]:
    """The strides between rows of the outputs."""
    return [0 if part.y is None else part.y.strides[-2] for part in products]


KERNELS: tuple[DecodeKernel, ...] = (
    _Row(), _DecodeBlocks("halves"), _DecodeBlocks("floats"), _PlainRow(), _Plain())


def pays(target: Target, g: DecodeProblem) -> bool:
    """Whether a device has a kernel that was measured to gain."""
    able, _ = candidates(KERNELS, g, target)
    return bool(able) and able[0].pays(g, target.traits)
