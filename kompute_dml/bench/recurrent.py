"""Cases of LSTM and GRU."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import kompute_dml as dml

from ..cases import Scale
from ..cases import case as cases
from ..cases.sequences import recurrent as reference
from .case import Peer, Recipe
from .ordinary import ordinary

if TYPE_CHECKING:
    import torch

_GATES = {"LSTM": 4, "GRU": 3}
_TORCH = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
"""The gates in PyTorch's order: input, forget, cell, output; reset, update, new."""
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh")}


def recurrent(kind: str, units: int, steps: int, batches: int) -> Recipe:
    """As many inputs as units. GRU multiplies before it resets, as PyTorch's does."""
    gates, late = _GATES[kind], kind == "GRU"

    def entry(s: Scale) -> cases.OperatorCase:
        n, length, count = max(s.of(units), 32), max(s.of(steps), 4), s.of(batches)
        descs = [getattr(dml, f"Activation{a}OperatorDesc")() for a in _ACTIVATIONS[kind]]
        bound = n**-0.5
        more: dict[str, Any] = dict(linear_before_reset=True) if late else {}
        return cases.case(
            reference(gates, late), cases.Given((1, length, count, n), -1, 1),
            *(cases.Given((1, 1, gates * n, n), -bound, bound, shared=True) for _ in range(2)),
            activation_descs=descs, output_sequence=True, room=1e-4,
            operations=2 * length * count * 2 * n * gates * n, **more)

    def torch_peers(torch: ModuleType, x: torch.Tensor, *weights: torch.Tensor) -> Iterator[Peer]:
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        n = x.shape[-1]
        layer = getattr(torch.nn, kind)(n, n, bias=False).to(x.device)
        with torch.no_grad():
            for to, w in zip((layer.weight_ih_l0, layer.weight_hh_l0), weights):
                blocks = w.reshape(gates, n, n)
                to.copy_(torch.cat([blocks[g] for g in _TORCH[kind]]))

        def call() -> Any:
            with torch.no_grad():
                return layer(x[0])[0].unsqueeze(1)

        yield Peer("torch", call)

    return ordinary(f"DML_OPERATOR_{kind}",
                    f"f32 {units} units, {steps} steps, batch {batches}", entry,
                    torch=torch_peers, axis=2)
