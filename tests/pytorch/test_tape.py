"""Eager operators that ran before run again as they did, for other elements."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")
import kompute_dml as dml  # noqa: E402
from kompute_dml.bench import networks  # noqa: E402
from kompute_dml.torch import memory, tape  # noqa: E402
from kompute_dml.torch.device import wrapped  # noqa: E402
from kompute_dml.torch.lists import ListPlan  # noqa: E402
from kompute_dml.torch.values import value  # noqa: E402

DEVICE = "kompute"
ROUNDS = 4


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is no help, every test draws the same numbers, and nothing ran before."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")
    tape._tapes.clear()
    torch.manual_seed(0)


def numbers(*sizes: int, dtype: Any = None) -> tuple[Any, Any]:
    """The same elements on the host and on the device."""
    x = torch.randn(sizes) if dtype is None else torch.randint(0, 9, sizes).to(dtype)
    return x, x.to(DEVICE)


def same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours.cpu(), theirs)


IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda x, y: x.add_(y), "to itself": lambda x, y: x.add_(x),
    "of a number": lambda x, y: x.mul_(1.5),
    "a row": lambda x, y: x[1].sub_(y[2]), "columns": lambda x, y: x[:, 1:3].mul_(y[:, :2]),
    "the same row": lambda x, y: x[1].add_(x[1]), "sums": lambda x, y: x.add_(y.sum(0)),
    "turned": lambda x, y: x.add_(y.t()), "softmax": lambda x, y: x.copy_(x.softmax(0)),
    "addcdiv_": lambda x, y: x.addcdiv_(y, y.abs() + 1, value=0.5),
    "lists": lambda x, y: torch._foreach_addcmul_([x[0], x[1]], [y[0], x[2]], [y[1], x[3]], 0.5),
    "a list of one row": lambda x, y: torch._foreach_add_([x[0], x[0]], [y[0], y[1]]),
    "a list that reads": lambda x, y: torch._foreach_add_([x[0], y[0]], [y[0], x[0]]),
    "numbers of a list": lambda x, y: torch._foreach_div_([x[0], x[1]], [2.0, 3.0]),
    "out": lambda x, y: torch.add(x, y, out=x), "index": lambda x, y: x.masked_fill_(y > 0, 3.0),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(name: str) -> None:
    """Also what lies beside the elements that change, and a view that saw them before."""
    change = IN_PLACE[name]
    for _ in range(ROUNDS):
        (x, ours), (y, other) = numbers(4, 4), numbers(4, 4)
        views = x.flatten(), ours.flatten()
        change(x, y)
        change(ours, other)
        same(views[1], views[0])
        same(other, y)
    assert any(isinstance(t, tape.Tape) for t in tape._tapes.values())


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "bool", "int64", "bfloat16"])
def test_narrow_neighbours_stay(dtype: str) -> None:
    for _ in range(ROUNDS):
        (x, ours), (y, other) = (numbers(11, dtype=getattr(torch, dtype)) for _ in range(2))
        for begin, end in ((1, 4), (4, 9), (0, 3), (5, 11)):
            for a, b in ((x, y), (ours, other)):
                a[begin:end].logical_xor_(b[begin:end]) if dtype == "bool" else (
                    a[begin:end].add_(b[begin:end]))
        same(ours, x)


def kept_between(x: Any, y: Any) -> Any:
    z = dml.add(x, y)
    w = dml.multiply(x, 2.0)
    dml.identity(z, out=x)
    return w


def turned_over(x: Any, y: Any) -> Any:
    dml.identity(dml.identity(x.transpose(1, 0)), out=x)
    return dml.add(x, y)


def shifted(x: Any, y: Any) -> Any:
    dml.identity(dml.add(x.window((slice(None, -1),)), y.window((slice(None, -1),))),
                 out=x.window((slice(1, None),)))
    return dml.negate(x)


def seen_twice(x: Any, y: Any) -> Any:
    z = dml.add(x, y)
    dml.identity(z, out=x)
    return dml.multiply(z, 3.0)


def of_part(x: Any, y: Any) -> Any:
    dml.identity(dml.join([y.window((slice(0, 40),)), x.window((slice(0, 24),))], axis=0), out=x)
    return dml.add(x, 1.0)


@pytest.mark.parametrize("work", [kept_between, turned_over, shifted, seen_twice, of_part])
def test_copies_stay_where_something_reads_the_target(work: Callable[..., Any]) -> None:
    """The same as without a tape, however the operators read what the copy overwrites."""
    def run(work: Any, x: Any, y: Any) -> Any:
        return wrapped(value(work(memory.tensor_of(x), memory.tensor_of(y)), x.shape, x.dtype))

    for _ in range(ROUNDS):
        x, y = torch.randn(64, 64), torch.randn(64, 64)
        plain, ours, other = (t.to(DEVICE) for t in (x, x, y))
        expected = run(work, plain, other)
        found = tape.run(work, (ours, other), {}, run)
        same(found, expected.cpu())
        same(ours, plain.cpu())
    assert any(isinstance(t, tape.Tape) for t in tape._tapes.values())


def test_tensors_that_lie_in_each_other_are_another_call() -> None:
    for _ in range(ROUNDS):
        (x, ours), (y, other) = numbers(12), numbers(12)
        for a, b in (((x[:4], y[:4]), (ours[:4], other[:4])), ((x[:4], x[:4]), (ours[:4],) * 2),
                     ((x[:4], x[4:8]), (ours[:4], ours[4:8])),
                     ((x[4:8], x[:4]), (ours[4:8], ours[:4])),
                     ((x[8:], x[4:8]), (ours[8:], ours[4:8]))):
            same(torch.sub(*b), torch.sub(*a))
            same(torch.atan2(*b), torch.atan2(*a))


def test_arguments_that_differ_are_another_call() -> None:
    for _ in range(ROUNDS):
        x, ours = numbers(3, 4)
        for number in (1, 1.0, True, 2, 0.0, -0.0):
            same(ours * number, x * number)
            same(ours.int() * number, x.int() * number)
            same(torch.full_like(ours, number).atan2(ours), torch.full_like(x, number).atan2(x))
        for dim in (0, 1, -1):
            same(ours.sum(dim), x.sum(dim))
            same(ours.sum(dim, keepdim=True), x.sum(dim, keepdim=True))
        for step in (1, 2):
            same(ours[:, ::step].exp(), x[:, ::step].exp())
            same(ours.t()[::step].exp(), x.t()[::step].exp())


def test_the_default_type_counts() -> None:
    x = torch.ones(3, dtype=torch.int64, device=DEVICE)
    for _ in range(ROUNDS):
        assert (x / 2).dtype == torch.float32
    try:
        torch.set_default_dtype(torch.float16)
        assert (x / 2).dtype == torch.float16
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_reads_elements_reads_them_each_time() -> None:
    for n in (1, 3, 0, 5, 2, 6):
        x = torch.zeros(6)
        x[:n] = torch.arange(1.0, n + 1)
        ours = x.to(DEVICE)
        assert ours.nonzero().flatten().tolist() == list(range(n))
        same(ours[ours > 0], x[x > 0])
        same(torch.unique(ours), torch.unique(x))
        assert bool(ours.any()) == bool(x.any()) and torch.equal(ours, ours.clone())


def test_results_that_grow() -> None:
    """An out tensor without elements takes the result's sizes."""
    for n in (3, 3, 3, 3, 0, 0, 0, 0):
        x, ours = numbers(n, 2)
        out = torch.empty(0, device=DEVICE)
        same(torch.add(ours, ours, out=out), x + x)
        same(out, x + x)
        same(torch.logsumexp(ours, 1), x.logsumexp(1))
        same(torch.nn.functional.soft_margin_loss(ours, ours.sign(), reduction="sum"),
             torch.nn.functional.soft_margin_loss(x, x.sign(), reduction="sum"))


def test_random_numbers_are_new_each_time() -> None:
    draws = [torch.rand(8, device=DEVICE).tolist() for _ in range(ROUNDS + 2)]
    masks = [torch.nn.functional.dropout(torch.ones(64, device=DEVICE)).tolist()
             for _ in range(ROUNDS + 2)]
    for values in (draws, masks):
        assert len({tuple(v) for v in values}) == ROUNDS + 2


def test_results_are_apart() -> None:
    """Each call has memory of its own, and what it needs meanwhile goes back."""
    x = torch.randn(1 << 12, device=DEVICE)
    calls = (lambda: x + 1, lambda: torch.nn.functional.gelu(x), lambda: x.sort()[0],
             lambda: x.view(64, 64).softmax(0))
    for call in calls:
        for _ in range(ROUNDS):
            call()
    gc.collect()
    torch.kompute.synchronize()
    before = torch.kompute.memory_allocated()
    results = [call() for call in calls for _ in range(3)]
    assert len({(a.block, a.offset) for a in map(memory.allocation_of, results)}) == len(results)
    torch.kompute.synchronize()
    torch.kompute.memory_allocated()
    assert torch.kompute.memory_allocated() <= before + len(results) * x.numel() * 4
    del results
    gc.collect()
    torch.kompute.synchronize()
    assert torch.kompute.memory_allocated() <= before


def test_writes_are_counted() -> None:
    """A compiled graph whose parameters are constants hears of each."""
    model, x = torch.nn.Linear(4, 3).to(DEVICE), torch.randn(2, 4, device=DEVICE)
    torch._dynamo.reset()
    run = torch.compile(model)
    with torch.no_grad():
        for _ in range(ROUNDS + 1):
            model.weight.data.mul_(0.5)
            same(run(x), torch.nn.functional.linear(
                x.cpu(), model.weight.detach().cpu(), model.bias.detach().cpu()))


LISTS: dict[str, Callable[[Any, Any], Any]] = {
    "changed": lambda x, y: torch._foreach_add_(x, y, alpha=0.5),
    "changed by numbers": lambda x, y: torch._foreach_mul_(x, 1.5),
    "changed by their own": lambda x, y: torch._foreach_mul_(x, x),
    "changed by a quotient": lambda x, y: torch._foreach_addcdiv_(x, x, [abs(b) + 1 for b in y], 2),
    "changed one after the other": lambda x, y: torch._foreach_add_(x, [*x[1:], x[0]]),
    "new": lambda x, y: torch._foreach_sub(x, y),
    "of one tensor": lambda x, y: torch._foreach_add([x[0]] * 4, [x[0], y[0], y[0], x[0]]),
    "roots": lambda x, y: torch._foreach_sqrt(torch._foreach_abs(x)),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", LISTS)
def test_lists(name: str, turned: bool) -> None:
    """Each list is one plan, which runs again over other tensors."""
    for n in range(ROUNDS):
        pairs = [numbers(4, 4) for _ in range(8)]
        hosts, ours = [[*x] for x in zip(*pairs)]
        if turned:
            hosts[:3], ours[:3] = [x.t() for x in hosts[:3]], [x.t() for x in ours[:3]]
        before = tape.statistics.played
        expected = LISTS[name](hosts[:4], hosts[4:])
        found = LISTS[name](ours[:4], ours[4:])
        assert (found is None) == (expected is None)
        for y, other in zip([*ours, *(found or ())], [*hosts, *(expected or ())]):
            same(y, other)
        if n > 1 and name != "changed one after the other":
            assert tape.statistics.played > before
            assert any(isinstance(known, ListPlan) for known in tape._tapes.values())


def test_lists_of_numbers_and_of_nothing() -> None:
    """Tensors without dimensions, and without elements."""
    for _ in range(ROUNDS):
        pairs = [numbers(), numbers(0, 3), numbers(5), numbers(2, 1, 3)]
        hosts, ours = [[*x] for x in zip(*pairs)]
        for lists in (hosts, ours):
            torch._foreach_add_(lists, 2)
        for y, other in zip([*ours, *torch._foreach_neg(ours)],
                            [*hosts, *torch._foreach_neg(hosts)]):
            same(y, other)


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adam", "RMSprop", "Adagrad"])
def test_optimizers_repeat(kind: str) -> None:
    """The same losses as the CPU's. One list of parameters is one call. From the fourth step on the
    steps record what numbers need, and nothing else."""
    found, counts = [], []
    recorder = memory.device().runtime.recorder
    for device in ("cpu", DEVICE):
        work = networks.workload("mlp").to(device)
        options = {"momentum": 0.9} if kind in ("SGD", "RMSprop") else {}
        optimizer = getattr(torch.optim, kind)(work.model.parameters(), 1e-3, **options)
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = work.loss(work.model(work.inputs), work.labels)
            loss.backward()
            before = recorder.dispatches, tape.statistics.played
            optimizer.step()
            counts.append((recorder.dispatches - before[0], tape.statistics.played - before[1]))
            losses.append(loss.item())
        found.append(losses)
    assert found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-6)
    assert len(set(counts[-3:])) == 1 and counts[-1][1] > 0
    assert counts[-1][0] <= 4 and counts[-1][1] <= 10, counts


def test_a_result_that_reads_nothing_is_kept() -> None:
    """A backward pass begins with ones. Whoever has them may write them."""
    x, recorder = torch.randn(3, 4, device=DEVICE), memory.device().runtime.recorder
    ones = torch.ones(3, 4)
    for _ in range(ROUNDS):
        torch.ones_like(x)
    before = recorder.dispatches
    torch.ones_like(x)
    assert recorder.dispatches == before
    first, second = torch.ones_like(x), torch.ones_like(x)
    first.add_(1)
    del first
    same(second, ones)
    row = torch.ones_like(x)[1]
    same(torch.ones_like(x), ones)
    row.mul_(3)
    del row
    same(torch.ones_like(x), ones)
    with torch.inference_mode():
        torch.ones_like(x)
    assert not torch.ones_like(x).is_inference()
    w = torch.randn(3, 4, device=DEVICE, requires_grad=True)
    for _ in range(ROUNDS):
        w.grad = None
        w.sum().backward()
        same(w.grad, ones)
        w.grad.mul_(2)
