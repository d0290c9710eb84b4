"""Passes over a graph's operators that make one of several.

:data:`PASSES` names them. ``KOMPUTE_DML_UNFUSED`` lists passes to leave out, or ``all``; it may
also name some optimizations that live elsewhere. Two operators are fused only if nothing else reads
the value between them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from ..errors import ValidationError
from . import epilogues, patterns, spelled
from .chains import fuse_chains
from .draft import Draft, Drafts
from .factors import factors
from .memory import Storage
from .padded import padded_rows
from .pointwise import pointwise
from .quantized_points import quantized_points
from .ranges import ranges
from .repeats import repeats
from .scaled import scaled_convolutions
from .scales import fold_normalizations
from .siblings import Make, join_products
from .tails import tails
from .views import views
from .weights import blocked_weights

if TYPE_CHECKING:
    from ..device import Device
    from ..runtime.traits import DeviceTraits

_SWITCH = "KOMPUTE_DML_UNFUSED"
_DEQUANTIZE = ("DEQUANTIZE", "ELEMENT_WISE_DEQUANTIZE_LINEAR")
_LITTLE = 64 << 10
"""Bytes of a constant that is computed from smaller ones."""
SIBLINGS, FOLDING, BATCH_NORMALIZATIONS = "siblings", "folding", "batch_normalizations"
"""Join products of one matrix; run operators of constants when a plan is built; fold batch
normalizations into convolutions."""
TAILS, POINTWISE, RANGES, PADDED_ROWS = "tails", "pointwise", "ranges", "padded_rows"
QUANTIZED_POINTS = "quantized_points"
"""The last passes: elementwise operators become the end of the operator before them; convolutions
whose filter is one element wide become products of matrices; those of one position quantize their
input; operators find ranges of their results; rows of bytes are written as they will be read."""
CHANNELS_LAST, QDQ, INTEGERS = "channels_last", "qdq", "integer_products"
"""Not passes: outputs of convolutions are channels-last; ONNX products between DequantizeLinear and
QuantizeLinear use 8-bit integers; products of integers are scaled by their kernel."""
VIEWS = "views"
"""A pass, and views that ONNX nodes make."""
MEMORY, IN_PLACE, REPACKING, BRANCHES = "memory", "in_place", "repacking", "branches"
"""Not passes: values share memory; operators write over inputs; constants are repacked once;
operators that do not depend on one another run without a barrier."""


def fuse(
    drafts: Sequence[Draft], free: Collection[Storage], traits: DeviceTraits,
    make: Make | None = None, room: int = 0,
) -> list[Draft]:
    """The operators after all passes. ``free`` are storages that only these operators use.

    ``make`` makes more of them, if operators on constants run when a plan is built. Dequantized
    constants may take ``room`` bytes.
    """
    left = left_out()
    folds = make is not None and FOLDING not in left
    found = Drafts(drafts, free, traits, room if folds else 0)

    def more(nbytes: int) -> Storage:
        assert make is not None
        return found.free(make(nbytes))

    if folds and BATCH_NORMALIZATIONS not in left:
        fold_normalizations(found, more)
    for name, run in PASSES.items():
        if name not in left:
            run(found)
    if folds and SIBLINGS not in left:
        join_products(found, more)
    if TAILS not in left:
        tails(found)
    if POINTWISE not in left:
        pointwise(found)
    if QUANTIZED_POINTS not in left:
        quantized_points(found)
    if RANGES not in left:
        ranges(found)
    if folds and PADDED_ROWS not in left:
        padded_rows(found, more)
    return found.without_dead()


def is_of_constants(draft: Draft, room: int) -> bool:
    """Whether what an operator makes may be made once: of constants, and not much larger.

    Dequantized weights, which are up to eight times as large as the constants, may take ``room``
    bytes.
    """
    outputs, roots = list(draft.slots("output")), {s.root for _, s in draft.slots("input")}
    slot, storage = outputs[0]
    return (
        FOLDING not in left_out() and len(outputs) == 1 and not storage.is_part
        and draft.tensor(slot).total_tensor_size_in_bytes == storage.nbytes
        and all(r.constant for r in roots)
        and storage.nbytes <= max(_LITTLE, 2 * sum(r.nbytes for r in roots),
                                  room if draft.name in _DEQUANTIZE else 0))


def room_for_weights(device: Device, taken: int) -> int:
    """Bytes that dequantized weights may take beside ``taken`` ones: up to a quarter of the device.
    A model with quantized weights may be chosen because memory is short."""
    return max(0, device.adapter.device_memory // 4 - taken)


def left_out() -> frozenset[str]:
    """The passes that ``KOMPUTE_DML_UNFUSED`` switches off."""
    return _named(os.environ.get(_SWITCH, ""))


@functools.lru_cache(maxsize=64)
def _named(text: str) -> frozenset[str]:
    names = {n.strip() for n in text.split(",")} - {""}
    known = {*PASSES, SIBLINGS, FOLDING, BATCH_NORMALIZATIONS, TAILS, POINTWISE, RANGES,
             PADDED_ROWS, QUANTIZED_POINTS, CHANNELS_LAST, QDQ, INTEGERS, MEMORY, IN_PLACE,
             REPACKING, BRANCHES}
    if unknown := names - known - {"all"}:
        raise ValidationError(
            f"{_SWITCH}: expected all or names among {', '.join(sorted(known))}, but got "
            f"{', '.join(sorted(unknown))}")
    return frozenset(known if "all" in names else names)


PASSES: dict[str, Callable[[Drafts], None]] = {
    "repeats": repeats, VIEWS: views, "copies": epilogues.copies,
    "layer_norms": spelled.layer_norms,
    "gelu": patterns.gelu, "tanh_gelus": spelled.tanh_gelus, "gates": patterns.gates,
    "attention": patterns.attention, "blocked_weights": blocked_weights,
    "scaled_convolutions": scaled_convolutions, "sums": epilogues.sums,
    "factors": factors, "residuals": epilogues.residuals,
    "activations": epilogues.activations, "chains": fuse_chains, "joins": epilogues.joins,
}
"""The passes, in the order in which they run."""
