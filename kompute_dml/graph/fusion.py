"""Runs the passes over a graph's operators, and says which operators of constants run once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .node import LITTLE, Node, Nodes
from .rewrite import REWRITES
from .switches import CONSTANT_FOLDING, disabled

if TYPE_CHECKING:
    from ..device import Device

_DEQUANTIZE = ("DEQUANTIZE", "ELEMENT_WISE_DEQUANTIZE_LINEAR")
_WIDENED = ("BFLOAT16_TO_FLOAT",)
"""Whose results are twice as large as weights that take half the memory so."""
_LITTLE_WEIGHTS = 64 << 10
"""Bytes of dequantized weights if there is no room for larger ones."""


def fuse(g: Nodes) -> list[Node]:
    """The operators that are left after all passes."""
    left_out = disabled()
    for name, rewrite in REWRITES.items():
        if name not in left_out:
            rewrite.run(g)
    return g.without_dead()


def folds() -> bool:
    """Whether operators of constants run when a plan is built."""
    return CONSTANT_FOLDING not in disabled()


def is_of_constants(node: Node, room: int) -> bool:
    """Whether what an operator makes may be made once: of constants, and not much larger.

    Dequantized weights, which are up to eight times as large as the constants, may take ``room``
    bytes.
    """
    for _, storage in node.slots("input"):
        if not storage.is_constant:
            return False
    outputs, roots = list(node.slots("output")), {s.root for _, s in node.slots("input")}
    slot, storage = outputs[0]
    weights = max(room, _LITTLE_WEIGHTS)
    most = weights if node.name in _WIDENED else max(
        2 * sum(r.nbytes for r in roots), weights if node.name in _DEQUANTIZE else LITTLE)
    return (
        folds() and len(outputs) == 1 and not storage.is_part
        and node.tensor(slot).total_tensor_size_in_bytes == storage.nbytes
        and storage.nbytes <= most)


def room_for_weights(device: Device, taken: int) -> int:
    """Bytes that dequantized weights may take beside ``taken`` ones: up to a quarter of the device.
    A model with quantized weights may be chosen because memory is short."""
    return max(0, device.adapter.device_memory // 4 - taken)
