"""Tensors of the host beside those of the device ``kompute``: errors, as beside CUDA's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")

DEVICE = "kompute"
functional = torch.nn.functional

REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda x, y: x + y, "from the host": lambda x, y: y - x,
    "in place": lambda x, y: x.mul_(y), "product": lambda x, y: x @ y.T,
    "join": lambda x, y: torch.cat([x, y]), "choice": lambda x, y: torch.where(x > 0, x, y),
    "rows": lambda x, y: functional.embedding(torch.tensor([1]), x),
    "gather": lambda x, y: x.gather(0, torch.zeros(1, 4, dtype=torch.int64)),
    "labels": lambda x, y: functional.cross_entropy(x, torch.tensor([0, 1, 2])),
    "statistics": lambda x, y: functional.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "of the host": lambda x, y: y[x > 0], "lists": lambda x, y: torch._foreach_add([x], [y]),
    "equal": torch.equal, "result": lambda x, y: torch.mul(x, x, out=y),
    "on the CPU": lambda x, y: torch.special.airy_ai(x, out=y),
}


@pytest.mark.parametrize("name", REFUSED)
def test_tensors_of_two_devices_are_refused(name: str) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for _ in range(3):  # from the second call on, a known one is repeated
        with pytest.raises(RuntimeError, match="on the same device"):
            REFUSED[name](x.to(DEVICE), y)


def test_what_may_come_from_the_host() -> None:
    host = torch.randn(3, 4)
    x, number = host.to(DEVICE), torch.tensor(2.0)
    for a, b in ((x * number, host * number), (number - x, number - host),
                 (x[torch.tensor([2, 0])], host[[2, 0]]), (x[host > 0], host[host > 0]),
                 (x.clone().copy_(host + 1), host + 1),
                 (x.index_put((torch.tensor([1]),), number),
                  host.index_put((torch.tensor([1]),), number)),
                 (x.clone().masked_fill_(x > 0, number), host.masked_fill(host > 0, number))):
        assert a.device.type == DEVICE
        torch.testing.assert_close(a.cpu(), b)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x[None], torch.tensor([2]), True)
    assert packed.data.tolist() == host[:2].tolist()
