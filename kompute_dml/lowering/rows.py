"""Lowers operators that reduce rows and then write all elements: softmax, normalizations.

A team of invocations computes a row, or a part of one (``normalize_rows.comp``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from ..desc import TensorDesc
from ..layout import Ints, power_of_two
from ..runtime.traits import DeviceTraits
from ..sizes import is_open
from . import measured
from .activation import fused_activation
from .builder import PlanBuilder
from .plan import UNUSED
from .walk import Walk, split_dimensions

SHADER = "normalize_rows"
_LOCAL_SIZE = 256
_KEPT, _MOST_KEPT = 4, 8
"""Pieces in the registers of an invocation: enough to hide the latency of reads."""
_PASSES = 63
"""Passes of loops that a piece takes at most."""
_ABSENT, _WALKED, _VECTORS = range(3)
"""Values of the shader's SCALE and BIAS."""
_WHOLE, _PARTIAL, _FINAL = range(3)
"""Values of the shader's STAGE."""
_KNOWN = 3
"""Words that the shader stores for a part."""


class Kind(IntEnum):
    """The shader's KIND."""

    SOFTMAX, LOG_SOFTMAX, HARDMAX, CENTRED, SHIFTED, SQUARES, L1, L2, AS_IT_IS = range(9)


@dataclass(frozen=True)
class Teams:
    """How invocations share rows."""

    team: int
    """Invocations of a team: 1, a part of a subgroup, or a workgroup."""
    local_size: int
    kept: int
    fits: bool
    parts: int = 1
    """Workgroups that share a row."""


def normalize_rows(
    p: PlanBuilder, kind: Kind, axes: Sequence[int], *, epsilon: int = 0
) -> None:
    """Add the dispatches of an operator whose rows lie along ``axes``.

    Tensors are the slots input_tensor and output_tensor; scale_tensor and bias_tensor are optional.
    ``epsilon`` is the bits of a float. In a graph there may be an addend_tensor, which is added to
    the input first, and a total_tensor for the sum. Both have the input's layout.
    """
    addend, total = (getattr(p.desc, slot, None) for slot in ("addend_tensor", "total_tensor"))
    x, y = p.desc.input_tensor, p.desc.output_tensor
    affine = [getattr(p.desc, slot, None) for slot in ("scale_tensor", "bias_tensor")]
    strides = [x.strides, y.strides, *(broadcast_strides(t, x) for t in affine)]
    rows, columns = split_dimensions(x.sizes, axes, *strides)
    beside = [t for t in (addend, total) if t is not None]
    each, modes, runs = _pieces(x, y, affine, beside, rows, columns)
    pieces = columns.count // each
    subgroups = uses_subgroups(p)
    rows_contiguous = each == 1 and columns.strides[0][-1] != 1 and rows.strides[0][-1] == 1
    teams = share_rows(p.device, subgroups, rows.count, pieces, rows_contiguous)
    span = -(-pieces // teams.parts)
    span = -(-span // teams.team) * teams.team
    parts = -(-pieces // span)
    known = UNUSED if parts == 1 else p.temporary(4, _KNOWN * rows.count * parts)
    fused = fused_activation(p.desc)
    words = [*rows.words, *columns.words, *fused.words]
    at_once = teams.local_size // teams.team

    for stage in (_WHOLE,) if parts == 1 else (_PARTIAL, _FINAL):
        p.dispatch(
            fused.variant(f"{SHADER}.{'subgroups' if subgroups else 'tree'}"),
            -(-rows.count * parts // at_once),
            x=p.read("input_tensor"),
            scale=p.read("scale_tensor") if affine[0] else UNUSED,
            bias=p.read("bias_tensor") if affine[1] else UNUSED,
            y=UNUSED if stage == _PARTIAL else p.write("output_tensor"),
            known=known if stage == _PARTIAL else known.reading(),
            addend=p.read("addend_tensor") if addend else p.read_tail().get("tail", UNUSED),
            total=p.write("total_tensor") if total and stage != _PARTIAL else UNUSED,
            params=words,
            push={"rows": rows.count, "pieces": pieces, "parts": parts, "span": span,
                  "columns_at": len(rows.words),
                  "activation_at": len(rows.words) + len(columns.words), "epsilon": epsilon,
                  "steps": [s[0] for s in columns.strides]},
            spec={"LOCAL_SIZE": teams.local_size, "TYPE": x.data_type.code, "KIND": kind,
                  "TEAM": teams.team, "EACH": each, "KEPT": teams.kept,
                  "FITS": teams.fits and parts == 1, "STAGE": stage,
                  "ONE_DIMENSION": len(columns.sizes) == 1, "RUNS": runs,
                  "SCALE": modes[0], "BIAS": modes[1],
                  **fused.spec, "ADDEND": addend is not None,
                  "TOTAL": total is not None and stage != _PARTIAL},
        )


def uses_subgroups(p: PlanBuilder) -> bool:
    """Whether teams reduce within subgroups. CPUs do not."""
    return not p.device.is_cpu and p.library.find(SHADER, "subgroups") is not None


def broadcast_strides(t: TensorDesc | None, x: TensorDesc) -> Ints:
    """The strides of ``t``, broadcast to the sizes of ``x``."""
    if t is None:
        return (0,) * x.dimension_count
    return tuple(s if n == m else 0 for n, m, s in zip(t.sizes, x.sizes, t.strides))


def _pieces(
    x: TensorDesc, y: TensorDesc, affine: Sequence[TensorDesc | None],
    beside: Sequence[TensorDesc], rows: Walk, columns: Walk,
) -> tuple[int, list[int], bool]:
    """The elements of a piece, the shader's SCALE and BIAS, and whether pieces lie in runs.
    ``beside`` are tensors of the input's layout."""
    whole = 16 // x.data_type.itemsize
    if all(t.is_aligned for t in (x, y, *beside)):
        if (modes := _vectors([x, y, *affine], rows, columns, whole, runs=False)) is not None:
            return whole, modes, False
        # Of sizes that are open each would be a class of its own. Those of planes mostly are, which
        # lie in one piece.
        dense = Walk(columns.sizes, columns.strides[0]).contiguous
        each = 1 if dense or is_open(columns.sizes[-1]) else whole
        while each > 1 and each * x.data_type.itemsize >= 4:
            if (modes := _vectors([x, y, *affine], rows, columns, each, runs=True)) is not None:
                return each, modes, True
            each //= 2
    return 1, [_ABSENT if t is None else _WALKED for t in affine], False


def _vectors(
    tensors: Sequence[TensorDesc | None], rows: Walk, columns: Walk, each: int, *, runs: bool
) -> list[int] | None:
    """The shader's SCALE and BIAS if rows consist of whole vectors, or with ``runs`` if those of
    the columns' last dimension do; else None."""
    def of_vectors(o: int) -> bool:
        t, strides = tensors[o], columns.strides[o]
        if t is None or not t.is_aligned or any(s % each for s in rows.strides[o]):
            return False
        if runs:
            return strides[-1] == 1 and not any(s % each for s in strides[:-1])
        return Walk(columns.sizes, strides).contiguous

    size = columns.sizes[-1] if runs else columns.count
    if size % each or not of_vectors(0) or not of_vectors(1):
        return None
    modes = []
    for o in (2, 3):
        if tensors[o] is None:
            modes.append(_ABSENT)
        elif of_vectors(o):
            modes.append(_VECTORS)
        elif columns.strides[o][-1] == 0 and columns.sizes[-1] % each == 0:
            modes.append(_WALKED)  # all elements of a vector share one
        else:
            return None
    return modes


def share_rows(
    device: DeviceTraits, subgroups: bool, rows: int, pieces: int, rows_contiguous: bool
) -> Teams:
    """The teams for rows of ``pieces`` pieces."""
    if device.is_cpu:
        local, most = min(_LOCAL_SIZE, device.max_invocations), device.max_loop_passes // _PASSES
        # A CPU has few registers, and its driver is slow to compile unrolled loops.
        if pieces <= _KEPT or (pieces <= most and rows >= 64):
            return Teams(1, local, 1, pieces == 1)
        return Teams(local, local, 1, pieces <= local, -(-pieces // (local * most)))
    if pieces <= _KEPT or (rows_contiguous and rows >= 32 * device.cores):
        return Teams(1, min(_LOCAL_SIZE, device.max_invocations), _KEPT, pieces <= _KEPT)
    lanes = device.subgroup_size
    if subgroups and pieces <= _MOST_KEPT * lanes:
        # Two pieces are enough where many rows are in flight.
        team = min(max(power_of_two(-(-pieces // 2)), lanes // 4), lanes)
        return Teams(team, min(_LOCAL_SIZE, device.max_invocations),
                     power_of_two(-(-pieces // team)), True)
    most = min(1024, device.max_invocations)
    # Workgroups for each core, and the least pieces that are worth one: where there are fewer rows
    # than cores, two for each invocation.
    known = measured.figures(device.device_class, "normalize_rows")
    if rows < device.cores:
        if pieces <= 2 * most:
            local = min(max(power_of_two(-(-pieces // 2)), 64), most)
            return Teams(local, local, power_of_two(-(-pieces // local)), True)
        local = min(_LOCAL_SIZE, most)
        parts = max(1, min(int(known["busy_few"]) * device.cores // rows,
                           pieces // int(known["part_few"])))
        return Teams(local, local, _KEPT, False, parts)
    # With many small workgroups on a multiprocessor, few wait at barriers.
    local = min(max(power_of_two(-(-pieces // _MOST_KEPT)), 64), most)
    if pieces <= _MOST_KEPT * local:
        return Teams(local, local, power_of_two(-(-pieces // local)), True)
    parts = max(1, min(int(known["busy"]) * device.cores // rows, pieces // int(known["part"])))
    return Teams(local, local, _KEPT, False, parts)
