"""Networks trained on the device ``kompute``, compiled and eager, beside the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")
from kompute_dml.bench import networks, pytorch  # noqa: E402
from kompute_dml.torch import memory  # noqa: E402
from kompute_dml.torch.counters import statistics  # noqa: E402

STEPS = 10
RATES = {"resnet": 1e-3, "unet": 1e-3}


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is no help."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")
    torch._dynamo.reset()


def losses(name: str, device: str, compiled: bool) -> list[float]:
    """Of ten steps of AdamW."""
    work = networks.workload(name).to(device)
    optimizer = torch.optim.AdamW(work.model.parameters(), RATES.get(name, 3e-3))

    def forward(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return work.loss(work.model(x), labels)

    run = torch.compile(forward, fullgraph=True) if compiled else forward
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = run(work.inputs, work.labels)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    return seen


on_cpu = functools.cache(functools.partial(losses, device="cpu", compiled=False))


@pytest.mark.parametrize("name, compiled", [("mlp", True), ("mlp", False), ("lstm", False)])
def test_ten_steps(name: str, compiled: bool) -> None:
    """``bench --suite torch`` checks the other networks, which lavapipe compiles for minutes."""
    before = statistics.plans - statistics.lists, statistics.fallbacks
    seen = losses(name, "kompute", compiled)
    assert seen == pytest.approx(on_cpu(name), rel=1e-4)
    assert seen[-1] < seen[0]
    assert statistics.fallbacks == before[1]
    assert statistics.plans - statistics.lists - before[0] == (2 if compiled else 0)


def test_repeated_steps_record_nothing_anew() -> None:
    """Nor do they wait for the device: what a step frees is there for the next one."""
    work = networks.workload("mlp").to("kompute")
    run = torch.compile(lambda x, labels: work.loss(work.model(x), labels))
    recorder = memory.device().runtime.recorder

    def gradients() -> None:
        torch.autograd.grad(run(work.inputs, work.labels), [*work.model.parameters()])

    for _ in range(5):
        gradients()
    before = recorder.dispatches, recorder.submits
    for _ in range(3):
        gradients()
    assert recorder.dispatches == before[0]  # the first gradient is kept
    assert recorder.submits > before[1]


def recorded_anew(step: Callable[[], None], first: int) -> int:
    """The dispatches that three steps record after so many ``first`` ones, without those that
    upload a counter of steps."""
    runtime = memory.device().runtime

    def recorded() -> int:
        uploads = 0 if runtime.transfer.reaches_storage else runtime.transfer.moves
        return int(runtime.recorder.dispatches - uploads)

    for _ in range(first):
        step()
    before = recorded()
    for _ in range(3):
        step()
    return recorded() - before


def test_repeated_compiled_steps_of_an_optimizer_record_nothing_anew() -> None:
    """Parameters and moments are written where they lie."""
    work = networks.workload("mlp").to("kompute")
    optimizer = torch.optim.AdamW(work.model.parameters(), 1e-3)
    step = torch.compile(optimizer.step)
    work.loss(work.model(work.inputs), work.labels).backward()
    places = [memory.allocation_of(p) for p in work.model.parameters()]
    assert recorded_anew(step, 4) == 0
    assert all(memory.allocation_of(p) is a for p, a in zip(work.model.parameters(), places))


def test_bench_measures_one_operator() -> None:
    """The host's time of an addition, eager and compiled."""
    rows = [*pytorch.NetworkBench("eager", "tiny").run([networks.ONE], 600)]
    assert [row.use for row in rows] == ["eager", "inference"]
    for row in rows:
        assert row.ok and row.ms and row.host_us and row.peers["eager"].ms, row
    assert rows[1].anew == 0
    assert "host us" in pytorch.as_table(rows)


def test_repeated_compiled_steps_with_batch_norms_record_nothing_anew() -> None:
    """Running means are written where they lie, and weights of strides that say nothing, too."""
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 1, bias=False), torch.nn.BatchNorm2d(4)).to("kompute")
    state = [memory.allocation_of(b) for b in network.buffers()]
    run = torch.compile(lambda x: network(x).square().mean())
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3)
    step = torch.compile(optimizer.step)
    x = torch.randn(2, 3, 5, 5).to("kompute")

    def train() -> None:
        optimizer.zero_grad()
        run(x).backward()
        step()

    assert recorded_anew(train, 5) == 0
    assert all(memory.allocation_of(b) is a for b, a in zip(network.buffers(), state))
    assert int(network[1].num_batches_tracked) == 8


def test_a_buffer_that_the_backward_pass_reads_is_as_it_was() -> None:
    """The forward graph changes it after it has read it."""
    scale = torch.full((3,), 2.0)

    def run(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = (x * scale.clone()).sum()
        scale.add_(1)
        return y

    gradients = []
    for device in ("cpu", "kompute"):
        x, buffer = torch.ones(3, device=device, requires_grad=True), scale.to(device, copy=True)
        compiled = torch.compile(run, backend="kompute_dml") if device == "kompute" else run
        y = compiled(x, buffer)
        y.backward()
        gradients.append((y.item(), x.grad.cpu(), buffer.cpu()))
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(*gradients))
