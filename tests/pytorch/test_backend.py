"""torch.compile(backend="kompute_dml") against PyTorch on the CPU."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from kompute_dml.runtime.kp_engine import CommandList, Dispatches  # noqa: E402
from kompute_dml.torch import fallback, memory  # noqa: E402
from kompute_dml.torch.counters import statistics  # noqa: E402
from kompute_dml.torch.mirrors import mirrors  # noqa: E402
from kompute_dml.torch.program import Program  # noqa: E402

BEFORE_2_11 = torch.__version__.startswith("2.10.")
nn, functional = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is no help, and every test draws the same numbers."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")
    torch._dynamo.reset()
    torch.manual_seed(0)


class Residual(nn.Module):
    """A residual block, as ResNet's, between a stem and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8),
                                  nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.block = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16),
                                   nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1, groups=4),
                                   nn.BatchNorm2d(16))
        self.shortcut = nn.Conv2d(8, 16, 1, 2, bias=False)
        self.end = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.end(torch.relu(self.block(x) + self.shortcut(x)))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5),
                         nn.Softmax(-1))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (4, 20)), "residual": (Residual, (2, 3, 33, 33)),
}


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, against the largest element."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    assert found.device == expected.device
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("case", CASES)
def test_inference(case: str) -> None:
    made, sizes = CASES[case]
    model, x = made().eval(), torch.randn(sizes)
    compiled = torch.compile(model, backend="kompute_dml", fullgraph=True)
    with torch.no_grad():
        assert relative(compiled(x), model(x)) < 2e-6
        before = statistics.plans
        assert relative(compiled(2 * x), model(2 * x)) < 2e-6
        assert statistics.plans == before


@pytest.mark.parametrize("change", ["counted", "uncounted"])
def test_parameters_that_change_are_uploaded(change: str) -> None:
    model, x = nn.Linear(6, 3), torch.randn(2, 6)
    compiled = torch.compile(model, backend="kompute_dml")
    with torch.no_grad():
        compiled(x)
        (model.weight if change == "counted" else model.weight.data).mul_(3.0)
        assert relative(compiled(x), model(x)) < 1e-6


@pytest.mark.parametrize("case", CASES)
def test_training(case: str) -> None:
    """The same losses and gradients as PyTorch's for five steps of SGD."""
    made, sizes = CASES[case]
    models = [made(), made()]
    models[1].load_state_dict(models[0].state_dict())
    steps = [models[0], torch.compile(models[1], backend="kompute_dml", fullgraph=True)]
    optimizers = [torch.optim.SGD(m.parameters(), 0.05, momentum=0.9) for m in models]
    x, labels = torch.randn(sizes), torch.randint(0, 5, sizes[:1])
    for _ in range(5):
        losses = []
        for step, optimizer in zip(steps, optimizers):
            optimizer.zero_grad()
            losses.append(functional.cross_entropy(step(x), labels))
            losses[-1].backward()
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-4)
        for (name, p), (_, q) in zip(models[0].named_parameters(), models[1].named_parameters()):
            assert q.grad is not None and p.grad is not None, name
            largest = max(p.grad.abs().max().item(), 1e-3)
            assert (p.grad - q.grad).abs().max().item() < 1e-4 * largest + 1e-7, name
        for optimizer in optimizers:
            optimizer.step()


class Language(nn.Module):
    """An embedding whose weights are those of the last layer, around a transformer's layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.last = nn.Linear(16, 11, bias=False)
        self.last.weight = self.table.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self.last(self.layer(self.table(tokens)))
        return functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("where", ["cpu", "kompute"])
def test_language_model_trains(where: str) -> None:
    """Four steps of AdamW, of tensors of the host and of the device."""
    models = [Language(), Language()]
    models[1].load_state_dict(models[0].state_dict())
    models[1] = models[1].to(where)
    tokens = torch.randint(0, 11, (2, 7))
    losses: list[list[float]] = [[], []]
    steps = [models[0], torch.compile(models[1], backend="kompute_dml", fullgraph=True)]
    for model, step, found in zip(models, steps, losses):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for _ in range(4):
            optimizer.zero_grad()
            loss = step(tokens.to(next(model.parameters()).device))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[0][-1] < losses[0][0]


class SingularValues(nn.Module):
    """A network around an operator that has no lowering, nor have its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.layers[0](x))
        return self.layers[1](y).sum() * torch.linalg.svdvals(y + torch.eye(3, device=x.device))[0]


@pytest.mark.parametrize("where", ["cpu", "kompute"])
def test_what_has_no_lowering_runs_alone(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one warning. What lies before and after it stays on the device."""
    monkeypatch.delenv("KOMPUTE_DML_TORCH_FALLBACK")
    monkeypatch.setattr(fallback, "_warned", set())
    models, x = [SingularValues(), SingularValues()], torch.randn(3, 3)
    models[1].load_state_dict(models[0].state_dict())
    models[1] = models[1].to(where)
    step = torch.compile(models[1], backend="kompute_dml", fullgraph=True)
    with pytest.warns(UserWarning) as warned:
        for _ in range(2):
            for model, run in zip(models, (models[0], step)):
                model.zero_grad()
                loss = run(x.to(next(model.parameters()).device))
                loss.backward()
    texts = [str(w.message) for w in warned if "kompute" in str(w.message)]
    assert len([t for t in texts if "_linalg_svd" in t]) == 1 and len(texts) == len(set(texts))
    assert loss.device.type == where
    for p, q in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(BEFORE_2_11, reason="its graphs keep weak references to parameters")
def test_a_model_moves_after_it_was_compiled_for_the_host() -> None:
    model, x = mlp(), torch.randn(4, 20)
    compiled = torch.compile(model, backend="kompute_dml")
    compiled(x).sum().backward()
    expected = compiled(x).detach()
    moved = model.to("kompute")
    assert moved is model and model[0].weight.device.type == "kompute"
    torch.testing.assert_close(model(x.to("kompute")).cpu(), expected)


def test_parameters_of_freed_models_leave_the_device() -> None:
    gc.collect()
    before = len(mirrors._by_place)
    model = mlp()
    torch.compile(model, backend="kompute_dml")(torch.randn(4, 20))
    assert len(mirrors._by_place) == before + len([*model.parameters()])
    del model
    torch._dynamo.reset()
    gc.collect()
    assert len(mirrors._by_place) == before


def test_what_has_no_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(torch.linalg.svdvals, backend="kompute_dml")
    with pytest.raises(Exception, match="_linalg_svd"):
        compiled(torch.randn(3, 3))


def test_out_of_memory_says_how_much() -> None:
    compiled = torch.compile(lambda x: x[:, None] + x[None], backend="kompute_dml", dynamic=False)
    with pytest.raises(torch.OutOfMemoryError, match=r"\d+ bytes"):
        compiled(torch.ones(65535, device="kompute"))  # 17 GB
    assert compiled(torch.ones(2, device="kompute")).tolist() == [[2, 2], [2, 2]]


def swapped(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    before = a.clone()
    a.copy_(b)
    b.copy_(before)
    return before


def read_after(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    before = a.clone()
    a.mul_(b)
    return before @ b.t() + a.sum()


def through_a_view(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a[1:].add_(b[:-1])
    b.zero_()
    return a * 2


def turned(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.copy_(a.t() + b)
    b.add_(a.cumsum(0))
    return a


def copies(a: torch.Tensor) -> list[torch.Tensor]:
    return [a.clone(), a[1:].clone(), a.t().contiguous(), torch.cat([a[2:], a]), a[:, 1:] + 1]


@pytest.mark.parametrize("offset", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_arguments_that_begin_anywhere(offset: int, dtype: str) -> None:
    x = torch.arange(40).to(getattr(torch, dtype))
    part, ours = (y[offset : offset + 16].view(4, 4) for y in (x, x.to("kompute")))
    compiled = torch.compile(copies, backend="kompute_dml", fullgraph=True)
    for found, expected in zip(compiled(ours), copies(part), strict=True):
        assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("change", [swapped, read_after, through_a_view, turned])
@pytest.mark.parametrize("where", ["cpu", "kompute"])
@pytest.mark.parametrize("offset", [0, 1])
def test_arguments_that_change(change: Callable[..., torch.Tensor], where: str, offset: int
                               ) -> None:
    """Also where they lie in the middle of a storage, packed or not."""
    memories = [torch.randn(2, 40) for _ in range(2)]
    compiled = torch.compile(change, backend="kompute_dml", fullgraph=True)
    for a, b in ([m.clone() for m in memories],
                 [torch.randn(2, 8).t()[:4].t().repeat(2, 3) for _ in range(2)]):
        expected = [x.flatten()[offset : offset + 16].view(4, 4) for x in (a, b)]
        found = [x.clone().to(where).flatten()[offset : offset + 16].view(4, 4) for x in (a, b)]
        for _ in range(3):
            versions = [(x._version, y._version) for x, y in zip(expected, found)]
            y, z = change(*expected), compiled(*found)
            for (before, ours), x, w in zip(versions, expected, found):
                assert (x._version > before) == (w._version > ours)
            for ours, theirs in zip((z, *found), (y, *expected)):
                torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("how", ["mark_dynamic", "dynamic"])
def test_lengths_share_a_graph(how: str) -> None:
    """One graph for all lengths, forward and backward, and no plan for a length that came."""
    host, ours = Language(), Language()
    ours.load_state_dict(host.state_dict())
    ours = ours.to("kompute")
    counters = torch._dynamo.utils.counters
    counters.clear()
    step = torch.compile(ours, fullgraph=True, dynamic=True if how == "dynamic" else None)
    plans = statistics.plans
    for length in (7, 9, 6, 9, 7):
        tokens = torch.randint(0, 11, (2, length))
        x = tokens.to("kompute")
        if how == "mark_dynamic":
            torch._dynamo.mark_dynamic(x, 1, min=3, max=64)
        losses = [host(tokens), step(x)]
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-4)
        for model, loss in zip((host, ours), losses):
            model.zero_grad()
            loss.backward()
        for p, q in zip(host.parameters(), ours.parameters()):
            torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1
    assert statistics.plans <= plans + 2 * 3


@pytest.mark.parametrize("changes", [False, True])
def test_lengths_share_plans(changes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 lengths have a plan for each class of sizes, whose dispatches are recorded by one call. A
    mask that is written in place and a number that depends on the length are those of each
    length."""
    counts: list[int] = []
    record = CommandList.dispatch_all

    def note(self: CommandList, dispatches: Dispatches, *numbers: np.ndarray) -> None:
        counts.append(dispatches.count)
        record(self, dispatches, *numbers)

    monkeypatch.setattr(CommandList, "dispatch_all", note)

    class Masked(Language):
        def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, int]:
            if changes:
                mask.mul_(2).add_(tokens)
            return super().forward(tokens) + mask.mean(), tokens.shape[1] * 3

    host, ours = Masked(), Masked()
    ours.load_state_dict(host.state_dict())
    ours = ours.to("kompute")
    step, plans = torch.compile(ours, fullgraph=True), statistics.plans
    for length in (9, *range(3, 67), 9):
        inputs = torch.randint(0, 11, (2, length)), torch.randn(2, length)
        there = [x.to("kompute") for x in inputs]
        for x in there:
            torch._dynamo.mark_dynamic(x, 1, min=3, max=128)
        with torch.no_grad():
            (loss, count), (expected, number) = step(*there), host(*inputs)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5) and count == number
        torch.testing.assert_close(there[1].cpu(), inputs[1])
    assert statistics.plans - plans <= 16
    assert len(counts) >= 48 or not memory.device().runtime.engine.records_many


def test_sizes_that_code_takes_as_numbers_have_plans_of_their_own() -> None:
    """Values are right where no plan serves many sizes, and for layouts of each kind."""
    def pooled(x: torch.Tensor) -> torch.Tensor:
        y = functional.adaptive_avg_pool1d(x, 3) + functional.interpolate(x, 3, mode="linear")
        return torch.cat([y, x[..., 1::2].sum(-1, keepdim=True), x.mT.sum(1)[..., None]], -1)

    compiled = torch.compile(pooled, backend="kompute_dml", fullgraph=True, dynamic=True)
    for length in (7, 9, 12, 9, 16):
        whole = torch.randn(2, 4, length + 3)
        for x in (whole[..., 3:].clone(), whole[..., 3:], whole[:, :, 3:].mT.clone().mT):
            torch.testing.assert_close(compiled(x.to("kompute")).cpu(), pooled(x))
            torch.testing.assert_close(compiled(x), pooled(x))
            part = whole.to("kompute")[..., 3:]
            torch.testing.assert_close(compiled(part).cpu(), pooled(whole[..., 3:]))


@pytest.mark.parametrize("kind", ["AdamW", "NAdam", "SGD"])
def test_a_compiled_training_step_copies_what_lies_on_the_host(kind: str) -> None:
    """That is the counters of steps, which are one upload. A gradient's graph copies nothing."""
    models = [mlp(), mlp()]
    models[1].load_state_dict(models[0].state_dict())
    models[1] = models[1].to("kompute")
    x = torch.randn(4, 20)
    optimizers = [getattr(torch.optim, kind)(m.parameters(), 0.01) for m in models]
    run = torch.compile(models[1], fullgraph=True)
    update = torch.compile(optimizers[1].step)
    transfer = memory.device().runtime.transfer
    moves: list[tuple[int, int]] = []
    for _ in range(4):
        for model, step, optimizer, change in zip(
                models, (models[0], run), optimizers, (optimizers[0].step, update)):
            optimizer.zero_grad()
            there = x.to(next(model.parameters()).device)
            before = transfer.moves
            step(there).square().sum().backward()
            between = transfer.moves
            change()
        moves.append((between - before, transfer.moves - between))
    for p, q in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(q.detach().cpu(), p.detach(), rtol=1e-4, atol=1e-5)
    for p, q in zip(models[0].parameters(), models[1].parameters()):
        for name, ours in optimizers[1].state[q].items():
            theirs = optimizers[0].state[p][name]
            if isinstance(ours, torch.Tensor):
                assert ours.device.type == ("cpu" if ours.ndim == 0 else "kompute"), name
                torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)
    assert moves[2:] == [(0, 0 if kind == "SGD" else 1)] * 2


def test_the_host_computes_of_its_tensors_in_a_graph_of_the_device() -> None:
    """Before and after what the device computes, and never twice."""
    def step(a: torch.Tensor, count: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        a.mul_(scale * count)
        total = a.sum().cpu()
        scale.add_(total / 64)
        return (total * scale).to(a.device) + a + torch.tensor(2.0)

    values = [torch.randn(3, 4), torch.zeros(()), torch.ones(())]
    ours = [values[0].to("kompute"), *[x.clone() for x in values[1:]]]
    compiled = torch.compile(step, backend="kompute_dml", fullgraph=True)
    for _ in range(3):
        expected, found = step(*values), compiled(*ours)
        assert found.device.type == "kompute"
        for x, y in zip((expected, *values), (found, *ours)):
            torch.testing.assert_close(y.cpu(), x)


@pytest.mark.parametrize("where", ["cpu", "kompute"])
def test_singular_matrices_raise(where: str) -> None:
    """A check is an effect in the middle of a graph, whose results go where they belong."""
    def solved(x: torch.Tensor) -> torch.Tensor:
        return (torch.linalg.inv(x + 1) * 2).sum()

    compiled = torch.compile(solved, backend="kompute_dml", fullgraph=True)
    x = torch.randn(3, 3) + 2 * torch.eye(3)
    ours = x.to(where, copy=True).requires_grad_()
    expected, found = solved(x.requires_grad_()), compiled(ours)
    expected.backward()
    found.backward()
    assert found.device.type == ours.grad.device.type == where
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours.grad.cpu(), x.grad, rtol=1e-4, atol=1e-4)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        compiled(torch.zeros(3, 3, device=where))


def test_errors_while_a_backward_pass_is_traced_break_the_graph() -> None:
    """PyTorch asks the device's guard for its type while the error unwinds."""
    def filled(x: torch.Tensor, where: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        return x.index_fill(0, where, number * 2)

    values = [torch.randn(3), torch.tensor([1]), torch.tensor(2.0)]
    ours = [v.to("kompute") for v in values]
    for x in (values[0], values[2], ours[0], ours[2]):
        x.requires_grad_()
    compiled = torch.compile(filled, backend="kompute_dml")
    expected, found = filled(*values), compiled(*ours)
    grads = [torch.autograd.grad([y], [v[0], v[2]], [torch.ones_like(y)])
             for y, v in ((expected, values), (found, ours))]
    for x, y in zip(*grads):
        torch.testing.assert_close(y.cpu(), x)


def test_arguments_of_the_host_lie_where_they_lay_before() -> None:
    """So what runs is recorded once. Threads do not meet the values of one another."""
    x = torch.ones(6, device="kompute")
    step = torch.compile(lambda x, a, b: x * a + b, backend="kompute_dml")
    wrong = []

    def run(first: int) -> None:
        for n in range(first, first + 20):
            y = step(x, torch.tensor(float(n)), torch.tensor(n / 2))
            if y.cpu().tolist() != [1.5 * n] * 6:
                wrong.append(n)

    run(0)
    runtime = memory.device().runtime
    dispatches, moves = runtime.recorder.dispatches, runtime.transfer.moves
    run(0)
    copies = 0 if runtime.engine.host_writes_storage else runtime.transfer.moves - moves
    assert runtime.recorder.dispatches - dispatches == copies
    threads = [threading.Thread(target=run, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def program(
    function: Callable[..., object], *inputs: torch.Tensor, frozen: bool = False
) -> Program:
    """The function's graph, whose outputs may share memory. The first input is a parameter."""
    module = make_fx(function, tracing_mode="fake")(*inputs)
    return Program(module, {0}, 1 << 30, frozen, backward=True)


@pytest.mark.parametrize("frozen", [True, False])
def test_each_call_looks_at_its_arguments(frozen: bool) -> None:
    """A call like the one before takes the same way, and no other call does."""
    memory_of_many = torch.arange(40.0, device="kompute")
    forms = [memory_of_many[:16].view(4, 4), memory_of_many[16:32].view(4, 4),
             memory_of_many[3:19].view(4, 4), memory_of_many[:16].view(4, 4).t(),
             memory_of_many[:8].view(2, 4), memory_of_many[:0].view(0, 4),
             torch.arange(16, device="kompute", dtype=torch.int32).view(4, 4)]
    weight = torch.ones(4, device="kompute")
    run = program(lambda w, x: (x * w, x + 1), weight, forms[0], frozen=frozen)
    for x in (forms[0], *[y for form in forms for y in (form, form)], forms[0]):
        for y, expected in zip(run([weight, x]), (x.cpu() * weight.cpu(), x.cpu() + 1)):
            torch.testing.assert_close(y.cpu(), expected)
    for change in (weight.mul_, weight.data.add_):
        change(3)
        assert run([weight, forms[0]])[0].cpu().equal(forms[0].cpu() * weight.cpu())
        assert not run.parts[0].frozen, "a weight that changes is no constant"


def test_a_tensor_that_comes_twice_is_known_again() -> None:
    """A backward graph gets what is saved twice so. Two tensors in its place are another call."""
    weight, a, b = (n + torch.arange(4.0, device="kompute") for n in range(3))
    run = program(lambda w, x, y: (w * x, x + 2 * y), weight, a, b)
    for x, y, looks in ((a, a, 1), (a, a, 0), (a, b, 1), (b, a, 0), (b, b, 1), (b, b, 0)):
        before = statistics.looked
        for z, expected in zip(run([weight, x, y]), (
                weight.cpu() * x.cpu(), x.cpu() + 2 * y.cpu())):
            assert z.cpu().equal(expected)
        assert statistics.looked - before == looks


def test_lists_of_the_hosts_numbers_are_one_tensor() -> None:
    """Each optimizer's count of steps is its own, and what follows from it goes to the right
    parameter."""
    count = 6
    host = [torch.tensor(float(i + 1)) for i in range(count)]
    ours = [torch.zeros(3, device="kompute") for _ in range(count)]

    def step(*tensors: torch.Tensor) -> list[torch.Tensor]:
        steps = torch._foreach_add(tensors[:count], 1)
        scales = torch._foreach_sub(torch._foreach_pow(0.5, steps), torch._foreach_neg(steps))
        return [*torch._foreach_add(tensors[count:], scales), *steps, *torch._foreach_mul(steps, 2)]

    run = program(step, *host, *ours)
    results = run([*host, *ours])
    for i, (x, n, y) in enumerate(zip(*[results[k * count:][:count] for k in range(3)])):
        torch.testing.assert_close(x.cpu(), torch.full((3,), i + 2 + 0.5 ** (i + 2)))
        assert n.item() == i + 2 and y.item() == 2 * (i + 2)
    names = [str(n.target) for n in run.parts[0].nodes]
    assert names.count("aten.stack.default") == 1
    assert not any("foreach" in name for name in names)


def test_small_outputs_share_memory_for_as_long_as_one_lives() -> None:
    x, device = torch.arange(100.0, device="kompute"), memory.device()
    run = program(lambda x: (x + 1, x * 2, x - 1), x)
    run([x])
    device.synchronize()
    before = device.memory_used
    a, b, c = run([x])
    assert memory.allocation_of(a).whole is memory.allocation_of(b).whole
    del a, c
    assert device.memory_used > before
    run([x])
    assert b.cpu().equal(x.cpu() * 2)
    del b
    device.synchronize()
    assert device.memory_used == before


@pytest.mark.parametrize("how", ["first", "both"])
def test_results_that_begin_a_larger_value_write_over_nothing(how: str) -> None:
    """Such as the token of a class before all others, and parameters that lie behind it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.LayerNorm(64) for _ in range(8)])
    fast = copy.deepcopy(model).to("kompute")
    x = torch.randn(1, 17, 64)

    def rows(y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(y, [1, 16], 1) if how == "both" else (y[:, :1],)

    run = torch.compile(lambda x: rows(fast(x)))
    with torch.no_grad():
        for _ in range(3):
            for y, expected in zip(run(x.to("kompute")), rows(model(x))):
                torch.testing.assert_close(y.cpu(), expected)
    for name, value in model.state_dict().items():
        assert fast.state_dict()[name].cpu().equal(value)


def test_a_graph_that_makes_all_of_its_tensors_is_ours() -> None:
    """No argument tells that it is not Inductor's."""
    run = torch.compile(lambda n: torch.arange(n, device="kompute") * 2)
    assert run(5).tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("offset", [0, 5])
def test_strided_places_are_written(offset: int) -> None:
    """PyTorch writes so to arguments that lie in each other."""
    def write(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.as_strided_scatter(a, b, (2, 3), (7, 2), offset)

    a, b = torch.arange(24.0).view(4, 6), -torch.ones(2, 3)
    run = torch.compile(write, backend="kompute_dml", fullgraph=True)
    assert run(a.to("kompute"), b.to("kompute")).cpu().equal(write(a, b))


def test_a_view_of_a_changed_argument_lies_where_it_lay() -> None:
    """PyTorch makes the result anew, by sizes, strides and beginning of what the graph gives."""
    form = [2], [3], 8

    def change(x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.as_strided_scatter(x, x.as_strided(*form) * 3, *form)
        x.copy_(y)
        return [y.as_strided(*form)]

    x = torch.arange(17.0)
    ours = x.to("kompute")
    (y,) = program(change, ours)([ours])
    assert (y.stride(), y.storage_offset()) == ((3,), 8)
    assert y.cpu().equal(*change(x)) and ours.cpu().equal(x)


def test_what_is_saved_takes_memory_once() -> None:
    """Views of parameters and of results need none of their own."""
    layer = torch.nn.Linear(256, 256).to("kompute")
    x = torch.randn(256, 256).to("kompute").requires_grad_()
    run, device = torch.compile(lambda x: torch.relu(layer(x))), memory.device()
    run(x)
    device.synchronize()
    before = device.memory_used
    y = run(x)
    assert device.memory_used - before == y.nbytes
    y.sum().backward()
    expected = torch.relu(torch.nn.functional.linear(x, layer.weight, layer.bias))
    assert y.cpu().allclose(expected.cpu(), atol=1e-5)


def test_views_of_what_runs_alone() -> None:
    """They lie as PyTorch expects, also where the operator gives another layout."""
    def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = torch.igamma(x.mT, x.mT)
        return values[1:], values.mT, values

    x = torch.rand(3, 4) + 0.5
    run = torch.compile(parts, backend="kompute_dml", fullgraph=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KOMPUTE_DML_TORCH_FALLBACK")
        found, expected = run(x.to("kompute")), parts(x)
    for y, z in zip(found, expected):
        assert y.stride() == z.stride() and y.cpu().allclose(z)
    found[0].zero_()
    assert found[2][1:].count_nonzero() == 0


def test_random_numbers_need_no_argument() -> None:
    run = torch.compile(lambda: torch.randn(64, device="kompute"), fullgraph=True)
    first, second = run().cpu(), run().cpu()
    assert first.shape == (64,) and not first.equal(second)
    assert 0.5 < first.std() < 1.5


def test_what_the_tracer_cannot_follow_breaks_the_graph() -> None:
    """PyTorch has no meta kernel of geqrf, and tries the device's with tensors without memory."""
    def columns(x: torch.Tensor) -> torch.Tensor:
        return torch.geqrf(x * 2)[0] + 1

    x = torch.rand(4, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KOMPUTE_DML_TORCH_FALLBACK")
        y = torch.compile(columns, backend="kompute_dml")(x.to("kompute"))
    assert y.cpu().allclose(columns(x), atol=1e-5)
