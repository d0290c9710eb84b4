"""Tensors of 2 GiB and more, eager and compiled, where the device binds so much in one buffer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")
from kompute_dml.torch import memory  # noqa: E402

DEVICE = "kompute"
PERIOD = 251
"""Elements count up to here, again and again. All types have these numbers."""
LEAST = 2 << 30
LARGEST = {"float32": 2, "float16": 2, "uint8": 2, "int64": 3}
"""GiB by type. Eight bytes by so many pass the 32-bit words of an element's place, too."""


def _room() -> str | None:
    adapter = memory.opened().adapter
    if adapter.max_storage_buffer_range < LEAST + (1 << 20):
        return f"a buffer of this device has {adapter.max_storage_buffer_range} bytes at most"
    if adapter.device_memory < 24 << 30:
        return "the device has less than 24 GiB of memory"
    return None


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU is no help, and each test begins with free memory."""
    if reason := _room():
        pytest.skip(reason)
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")
    yield
    torch._dynamo.reset()


def ramp(dtype: str) -> torch.Tensor:
    """Rows of 0 to 250, of a little more than 2 GiB."""
    row = torch.arange(PERIOD, device=DEVICE).to(getattr(torch, dtype))
    rows = (LARGEST[dtype] << 30) // (PERIOD * row.element_size()) + 3
    return row.repeat(rows).view(rows, PERIOD)


def places(numel: int, itemsize: int) -> list[int]:
    """Elements at both ends, and beside those that begin at 2^31 and 2^32 bytes."""
    edges = (0, numel, (1 << 31) // itemsize, (1 << 32) // itemsize, numel // 2)
    return sorted({i for edge in edges for i in (edge - 1, edge, edge + 1) if 0 <= i < numel})


def assert_elements(y: torch.Tensor, expected: Callable[[int], float]) -> None:
    """Compare some elements of a packed tensor with a function of their places."""
    flat = y.detach().reshape(-1)
    at = places(flat.numel(), y.element_size())
    found = [flat[i : i + 1].cpu().item() for i in at]
    assert found == [expected(i) for i in at]


def step(i: int) -> int:
    return i % PERIOD


def _whole(x: torch.Tensor) -> None:
    assert_elements(x, step)


def _added(x: torch.Tensor) -> None:
    assert_elements(x + 1, lambda i: step(i) + 1)


def _changed(x: torch.Tensor) -> None:
    x.mul_(0).add_(3)
    assert_elements(x, lambda i: 3)


def _copied(x: torch.Tensor) -> None:
    assert_elements(x.clone(), step)


def _joined(x: torch.Tensor) -> None:
    assert_elements(torch.cat([x[:7], x[7:]]), step)


def _turned(x: torch.Tensor) -> None:
    rows = x.shape[0]
    assert_elements(x.t().contiguous(), lambda i: i // rows)


def _flipped(x: torch.Tensor) -> None:
    assert_elements(x.flip(1), lambda i: PERIOD - 1 - step(i))


def _part(x: torch.Tensor) -> None:
    begin = x.numel() - 1000
    assert_elements(x.view(-1)[begin:] + 1, lambda i: step(begin + i) + 1)


def _written(x: torch.Tensor) -> None:
    x[-1] = 7
    x[0, 0] = 9
    assert x[-1].cpu().tolist() == [7] * PERIOD
    assert x[0, :3].cpu().tolist() == [9, 1, 2] and x[-2, :3].cpu().tolist() == [0, 1, 2]


def _sums(x: torch.Tensor) -> None:
    assert_elements(x.sum(1), lambda i: PERIOD * (PERIOD - 1) // 2)


def _largest(x: torch.Tensor) -> None:
    assert x.max().item() == PERIOD - 1
    assert_elements(x.argmax(1), lambda i: PERIOD - 1)


def _counted(x: torch.Tensor) -> None:
    assert (x == 4).sum().item() == x.shape[0]


def _taken(x: torch.Tensor) -> None:
    last = x.shape[0] - 1
    assert x[torch.tensor([last, 0], device=DEVICE)].cpu().tolist() == [[*range(PERIOD)]] * 2
    assert x.index_select(0, torch.tensor([last], device=DEVICE)).cpu().tolist() == [
        [*range(PERIOD)]]


def _back(x: torch.Tensor) -> None:
    host = x.cpu()
    assert torch.equal(host[0], torch.arange(PERIOD).to(x.dtype))
    assert torch.equal(host[-1], host[0]) and int(host[:, 4].long().sum()) == 4 * len(host)
    assert_elements(host.to(DEVICE), step)


def _graph(x: torch.Tensor) -> None:
    assert_elements(torch.compile(lambda x: torch.relu(x * 2 + 1))(x),
                    lambda i: (2 * step(i) + 1) % (256 if x.dtype == torch.uint8 else 1 << 30))


def _graph_of_sums(x: torch.Tensor) -> None:
    y = torch.compile(lambda x: (x + 1).sum(1))(x)
    assert_elements(y, lambda i: PERIOD * (PERIOD + 1) // 2)


ANY = (_whole, _added, _changed, _copied, _joined, _turned, _flipped, _part, _written, _largest,
       _counted, _taken, _back, _graph)
CASES = [(dtype, case) for dtype in LARGEST for case in (
    *ANY, *((_sums, _graph_of_sums) if dtype != "float16" else ()))]


WIDER = {("float32", _counted), ("float16", _counted), ("float16", _largest), *(
    ("uint8", case) for case in (_added, _changed, _largest, _counted, _graph, _sums,
                                 _graph_of_sums))}
"""What is computed in wider elements, which no buffer holds."""


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("dtype, case", CASES)
def test_elements(dtype: str, case: Callable[[torch.Tensor], None]) -> None:
    x = ramp(dtype)
    if (dtype, case) not in WIDER:
        case(x)
        return
    with pytest.raises(torch.OutOfMemoryError, match=r"\d"):
        case(x)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients(compiled: bool) -> None:
    x = ramp("float32").requires_grad_()
    weight = torch.ones(PERIOD, 2, device=DEVICE, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return ((x @ weight) * 0.5).sum()

    y = (torch.compile(loss) if compiled else loss)(x)
    y.backward()
    assert_elements(x.grad, lambda i: 1.0)
    torch.testing.assert_close(weight.grad.cpu()[:, 0], torch.arange(PERIOD) * 0.5 * x.shape[0])


def test_more_than_a_buffer_has_is_refused() -> None:
    most = memory.opened().adapter.max_storage_buffer_range
    with pytest.raises(torch.OutOfMemoryError, match=r"\d"):
        torch.empty(2 * most, dtype=torch.uint8, device=DEVICE)
    assert math.isfinite(torch.ones(3, device=DEVICE).sum().item())
