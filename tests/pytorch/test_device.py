"""The device ``kompute`` of PyTorch against the CPU."""

from __future__ import annotations

import copy
import gc
import io
import math
import os
import pickle
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")
from kompute_dml.errors import OutOfMemoryError  # noqa: E402
from kompute_dml.torch import directml, memory  # noqa: E402

DEVICE = "kompute"


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is no help, and every test draws the same numbers."""
    monkeypatch.setenv("KOMPUTE_DML_TORCH_FALLBACK", "0")
    torch.manual_seed(0)


def test_memory_goes_with_the_last_view() -> None:
    x = torch.ones(4, 5, device=DEVICE)
    view, allocation = x[1:], weakref.ref(memory.allocation_of(x))
    del x
    gc.collect()
    assert view.sum().item() == 15 and allocation() is not None
    del view
    gc.collect()
    assert allocation() is None


def test_memory_goes_while_an_exception_passes() -> None:
    x = torch.ones(3, device=DEVICE)
    allocation = weakref.ref(memory.allocation_of(x))

    def fail(y: Any) -> None:
        y += 1
        del y
        raise KeyError("expected")

    held = [x]
    del x
    with pytest.raises(KeyError, match="expected"):
        fail(held.pop())
    gc.collect()
    assert allocation() is None


def written_by_columns(x: Any) -> Any:
    """The columns of a tensor that does not lie in the order of its dimensions."""
    y = torch.zeros_like(x.t())
    for i in range(y.shape[1]):
        y[:, i] = (i + 1) * x[i]
    assert y.stride() == x.t().stride()
    return (y * torch.arange(float(y.numel()), device=y.device).view(y.shape)).sum()


def encoded(x: Any) -> Any:
    """What PyTorch's own layers give without gradients, by masks and without. An encoder of the CPU
    gives 0 for padding, so that is left out."""
    torch.manual_seed(0)
    tokens = x.view(2, 2, 6)
    padding = torch.tensor([[False, False], [False, True]], device=x.device)
    results = []
    for first, kind in ((False, "relu"), (True, "gelu")):
        encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(
            6, 2, 8, 0.0, kind, batch_first=True, norm_first=first), 2,
            enable_nested_tensor=not first)
        encoder = encoder.to(x.device).eval()
        attention = encoder.layers[0].self_attn
        with torch.no_grad():
            y = encoder(tokens, src_key_padding_mask=padding)
            results += [y[0], y[1, :1], encoder(tokens, mask=torch.ones(
                2, 2, dtype=torch.bool, device=x.device).triu(1))]
            results += [*attention(tokens, tokens, tokens, padding),
                        *attention(tokens, tokens, tokens, average_attn_weights=False)]
    return tuple(results)


EACH: dict[str, Callable[[Any], Any]] = {
    "views": lambda x: x.t()[1:, ::2].reshape(-1)[1:] + 1,
    "in place through a view": lambda x: x.clone()[0].mul_(3),
    "masks": lambda x: x[x > 0.5],
    "index_put": lambda x: x.clone().index_put((x > 0.5,), torch.tensor(2.0, device=x.device)),
    "two indices apart": lambda x: x.view(2, 2, 6)[torch.tensor([1, 0], device=x.device), :,
                                                  torch.tensor([3, 5], device=x.device)],
    "nonzero": lambda x: (x > 0.5).nonzero(),
    "unique": lambda x: torch.unique((x * 3).long(), return_inverse=True, return_counts=True),
    "sort": lambda x: x.sort(-1, descending=True),
    "NaN is the largest": lambda x: torch.where(x > 1, torch.nan, x).amax(0),
    "narrow integers wrap": lambda x: (x * 1000).to(torch.int64).to(torch.int8),
    "BFLOAT16": lambda x: (x.bfloat16() * 3 + 1).float(),
    "FLOAT16": lambda x: (x.half() @ x.half().t()).float(),
    "INT64 cumsum": lambda x: (x * 9).long().cumsum(1),
    "no elements": lambda x: torch.cat([x[:0], x]).sum(0),
    "no dimensions": lambda x: x.sum() / 7,
    "flip": lambda x: x.flip(0, 1),
    "remainder": lambda x: torch.remainder(x, -0.3),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (6,)),
    "interpolate": lambda x: torch.nn.functional.interpolate(x.view(1, 1, 4, 6), scale_factor=2),
    "index_add": lambda x: x.index_add(0, torch.tensor([3, 1, 3, 3], device=x.device), x + 1),
    "index_put sums": lambda x: x.index_put((torch.tensor([2, 2, 0], device=x.device),), x[:3],
                                            accumulate=True),
    "scatter_reduce": lambda x: x.scatter_reduce(1, (x > 0).long(), x, "amax"),
    "special functions": lambda x: torch.stack([
        torch.erfc(x), torch.lgamma(4 * x), torch.digamma(3 * x), torch.erfinv(x / 3),
        torch.i0(2 * x), torch.special.i0e(5 * x), torch.special.i1(2 * x),
        torch.special.i1e(5 * x), torch.special.ndtri(torch.sigmoid(x))]),
    "cummax": lambda x: (*(x * 2).round().cummax(1), *x.where(x < 1, torch.nan).cummin(0)),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "medians": lambda x: (x.median(), x.nanmedian(), *x.median(1),
                          *x.where(x < 1, torch.nan).nanmedian(1)),
    "uneven maxima": lambda x: torch.nn.functional.adaptive_max_pool2d(
        x.view(1, 4, 6), (3, 4), return_indices=True),
    "pools of volumes": lambda x: (
        torch.nn.functional.adaptive_avg_pool3d(x.view(1, 2, 3, 4), (1, 2, 3)),
        torch.nn.functional.max_pool3d(x.view(1, 1, 2, 3, 4), 2, 1),
        torch.nn.functional.avg_pool3d(x.view(1, 1, 2, 3, 4), 2, 1)),
    "averages of windows that are cut": lambda x: torch.nn.functional.avg_pool2d(
        x[None], 3, 2, 1, ceil_mode=True),
    "solvers": lambda x: (*torch.linalg.slogdet(x[:3, :3]), *torch.linalg.lu(x[:3]),
                          torch.linalg.inv(x[1:, 1:4]), torch.linalg.solve(x[:2, :2], x[:2]),
                          torch.linalg.solve_triangular(x[:3, :3], x[:3, 3:], upper=True)),
    "factors": lambda x: (*torch.linalg.qr(x[:, :3]), torch.linalg.cholesky(x[:3] @ x[:3].t())),
    "gradient of a determinant": lambda x: torch.autograd.functional.jacobian(
        torch.linalg.det, x[:3, :3].contiguous()),
    "Bessel functions": lambda x: torch.stack([
        getattr(torch.special, name)(3 * x.abs() + 0.1) for name in (
            "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_k0",
            "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
            "spherical_bessel_j0")]),
    "zeta": lambda x: (torch.special.zeta(x.abs() + 1.5, x.abs() + 0.1), x.polygamma(2)),
    "polynomials": lambda x: torch.stack([
        getattr(torch.special, f"{name}_polynomial_{kind}")(
            x / 2, torch.arange(-1, 11, 2, device=x.device)) for name, kinds in (
            ("chebyshev", "tuvw"), ("shifted_chebyshev", "t"), ("hermite", ("he",)),
            ("laguerre", "l"), ("legendre", "p")) for kind in kinds]),
    "gradients of resampled images": lambda x: tuple(torch.autograd.functional.jacobian(
        lambda y, mode=mode, options=options: torch.nn.functional.interpolate(
            y[None, None], **options, mode=mode).square().sum(), x) for mode, options in (
        ("nearest", {"scale_factor": 2}), ("nearest-exact", {"size": (3, 7)}),
        ("bilinear", {"size": (5, 4), "align_corners": True}), ("bicubic", {"size": (6, 9)}))),
    "gradient of padding": lambda x: torch.autograd.functional.jacobian(
        lambda y: torch.nn.functional.pad(y[None], (2, 1, -1, 3), "replicate").square().sum(), x),
    "sign bits": lambda x: (x.signbit(), (-0 * x).signbit(), x.copysign(-x.flip(0))),
    "the next number": lambda x: torch.nextafter(*torch.meshgrid(*[torch.tensor(
        [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, torch.inf, -torch.inf, torch.nan],
        device=x.device)] * 2, indexing="ij")).view(torch.int32),
    "gradients of distances": lambda x: tuple(torch.autograd.functional.jacobian(
        lambda y, p=p: torch.cdist(y, x[:3], p=p).sum() + torch.pdist(y, p).sum(), x)
        for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, torch.inf)),
    "gradients of margins": lambda x: tuple(torch.autograd.functional.jacobian(
        lambda y, f=f: f(y), x) for f in (
            lambda y: torch.nn.functional.multi_margin_loss(
                y, torch.tensor([3, 0, 5, 1], device=x.device), 2, 0.5, reduction="none"),
            lambda y: torch.nn.functional.multi_margin_loss(
                y, torch.tensor([3, 0, 5, 1], device=x.device), weight=x[0].abs()),
            lambda y: torch.nn.functional.multilabel_margin_loss(y, torch.tensor(
                [[3, 0, -1, 1, 2, 0], [5, 4, 3, 2, 1, 0], [-1, 0, 0, 0, 0, 0], [2] + [-1] * 5],
                device=x.device), reduction="sum"))),
    "gradients of weights by size and direction": lambda x: torch.autograd.functional.jacobian(
        lambda v, g: torch._weight_norm(v, g, 0).square().sum(), (x, x[:, :1])),
    "places of triangles": lambda x: tuple(f(*sizes, device=x.device) for f in (
        torch.tril_indices, torch.triu_indices) for sizes in ((4, 6), (3, 2, -1), (5, 5, 2))),
    "layers of transformers": encoded,
    "gradient of slices that are written": lambda x: torch.autograd.functional.jacobian(
        written_by_columns, x),
    "uneven pool": lambda x: torch.nn.functional.adaptive_avg_pool2d(x.view(1, 4, 6), (3, 4)),
}


NARROW: dict[str, Callable[[Any], Any]] = {
    "orders": lambda x: (*x.sort(1, descending=True), *x.kthvalue(2, 0), x.median(), x.mode(1)[0],
                         *torch.unique(x, return_counts=True)),
    "sign bits": lambda x: (x.signbit(), (-0 * x).signbit(), (x * 0).signbit()),
    "rounded quotients": lambda x: (x // 0.3, x % 0.3, x.div(0.7, rounding_mode="trunc"),
                                    x // (x[0] / 4), x % (x[1] / 5)),
}


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_floats_of_two_bytes_are_numbers(name: str, dtype: Any) -> None:
    x = torch.randn(4, 6).to(dtype)
    for a, b in zip(NARROW[name](x.to(DEVICE)), NARROW[name](x), strict=True):
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_numbers_wrap_before_they_are_divided(dtype: Any) -> None:
    x = torch.tensor([0, 5, 100, 127]).to(dtype)
    for change in (lambda y: y // -1, lambda y: y % 300, lambda y: torch.fmod(y, -3),
                   lambda y: y.div(-2, rounding_mode="trunc"), lambda y: y * 300 - 1000):
        assert torch.equal(change(x.to(DEVICE)).cpu(), change(x))


def test_statistics_of_one_number() -> None:
    x = torch.tensor(2.0)
    for y in (x, x.to(DEVICE)):
        assert y.var(correction=0).item() == 0 and y.std(0).isnan().item()


@pytest.mark.parametrize("wrong", [
    lambda x: x & x, torch.bitwise_not, lambda x: x - (x > 0), lambda x: True - x.long(),
    lambda x: torch.ones((), device=x.device).copy_(x[0, :1])])
def test_what_the_cpu_refuses_is_refused(wrong: Callable[[Any], Any],
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KOMPUTE_DML_TORCH_FALLBACK")
    for x in (torch.randn(4, 6), torch.randn(4, 6).to(DEVICE)):
        with warnings.catch_warnings(), pytest.raises(RuntimeError):
            warnings.simplefilter("ignore")
            wrong(x)


@pytest.mark.parametrize("name", EACH)
def test_operators(name: str) -> None:
    x = torch.randn(4, 6)
    expected, found = EACH[name](x), EACH[name](x.to(DEVICE))
    if not isinstance(expected, tuple):
        expected, found = (expected,), (found,)
    for a, b in zip(found, expected, strict=True):
        assert a.device.type == DEVICE
        torch.testing.assert_close(a.cpu(), b, rtol=2e-3 if name == "FLOAT16" else 1.3e-6,
                                   atol=2e-3 if name == "FLOAT16" else 1e-5, equal_nan=True)


def test_training_is_the_same() -> None:
    """Losses of four steps, with clipped gradients."""
    nn = torch.nn
    host = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 4))
    x, labels = torch.randn(4, 3, 8, 8), torch.randint(0, 4, (4,))
    losses = []
    for model, where in ((host, "cpu"), (copy.deepcopy(host).to(DEVICE), DEVICE)):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        losses.append([])
        for _ in range(4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(where)), labels.to(where))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_tied_weights_stay_tied() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.last.weight = self.first.weight

        def forward(self, x: Any) -> Any:
            return self.last(self.first(x)).square().sum()

    host, x = Tied(), torch.randn(2, 4)
    ours = copy.deepcopy(host).to(DEVICE)
    assert ours.last.weight is ours.first.weight
    host(x).backward()
    ours(x.to(DEVICE)).backward()
    torch.testing.assert_close(ours.first.weight.grad.cpu(), host.first.weight.grad)


def test_a_parameter_that_moves_is_the_same_object() -> None:
    """Optimizers, hooks, weak references and what was computed before have it."""
    layer = torch.nn.utils.weight_norm(torch.nn.Linear(3, 3))
    weight, calls = layer.weight_g, list[str]()
    weight.mine, weak = 5, weakref.ref(weight)
    weight.register_hook(lambda gradient: calls.append("hook"))
    weight.register_post_accumulate_grad_hook(lambda x: calls.append("after"))
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)
    (2 * layer(torch.ones(2, 3)).sum()).backward()
    graph, gradient = layer(torch.ones(2, 3)).sum(), weight.grad.clone()
    expected = weight.detach() - 0.5 * gradient
    calls.clear()
    layer.to(DEVICE)
    assert layer.weight_g is weight is weak() and weight.device.type == DEVICE
    assert weight.mine == 5 and weight.grad.device.type == DEVICE
    torch.testing.assert_close(weight.grad.cpu(), gradient)
    optimizer.step()
    torch.testing.assert_close(weight.detach().cpu(), expected)
    layer(torch.ones(2, 3, device=DEVICE)).sum().backward()
    assert calls == ["hook", "after"]
    with pytest.raises(RuntimeError, match="move it before the forward pass"):
        graph.backward()
    assert layer.cpu().weight_g is weight and weight.device.type == "cpu"


def test_modules_of_the_host_are_converted_as_ever() -> None:
    layer = torch.nn.Linear(3, 3)
    weak, loss = weakref.ref(layer.weight), (layer.weight.square() * layer.weight).sum()
    assert layer.double().weight is weak() and loss.requires_grad
    assert not torch.__future__.get_swap_module_params_on_conversion()


def test_lazy_modules_move() -> None:
    layer = torch.nn.LazyLinear(3).to(DEVICE)
    assert layer(torch.ones(2, 4, device=DEVICE)).shape == (2, 3)
    assert layer.weight.device.type == DEVICE and layer.weight.shape == (3, 4)


@pytest.mark.parametrize("target", ["cpu", DEVICE])
def test_saved_tensors_load(target: str) -> None:
    file, x = io.BytesIO(), torch.arange(6, device=DEVICE).view(2, 3)
    torch.save({"x": x.t()}, file)
    file.seek(0)
    loaded = torch.load(file, map_location=target)["x"]
    assert loaded.device.type == target and loaded.tolist() == x.t().tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders_feed_the_device(workers: int) -> None:
    """Workers are forked after the device was opened. They use the CPU."""
    torch.ones(1, device=DEVICE)
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    loader = torch.utils.data.DataLoader(data, 2, pin_memory=True, num_workers=workers)
    assert [x.to(DEVICE, non_blocking=True).tolist() for x, in loader] == [[0, 1], [2, 3], [4, 5]]


class Touching(torch.utils.data.Dataset):
    """Its elements are made by a function."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


HELD: list[Any] = []
TOUCHES: dict[str, Callable[[int], Any]] = {
    "new": lambda i: torch.ones(2, device=DEVICE),
    "copied": lambda i: torch.ones(2).to(DEVICE).cpu(),
    "read": lambda i: HELD[0].cpu(),
    "changed": lambda i: HELD[0].add_(1) is None,
    "drawn": lambda i: torch.rand(2, device=DEVICE),
    "batched": lambda i: HELD[0],
    "made of bytes": lambda i: torch.UntypedStorage(8, device=DEVICE).nbytes(),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("way", TOUCHES)
def test_forked_workers_that_touch_the_device_raise(way: str) -> None:
    """As with CUDA: https://docs.pytorch.org/docs/stable/notes/multiprocessing.html. The parent
    computes on. Without the device workers work."""
    HELD[:] = [torch.ones(2, device=DEVICE)]

    def first(make: Callable[[int], Any]) -> Any:
        return next(iter(torch.utils.data.DataLoader(
            Touching(make), 2, num_workers=1, timeout=60, multiprocessing_context="fork")))

    with pytest.raises(RuntimeError, match="start processes by spawn"):
        first(TOUCHES[way])
    assert first(lambda i: torch.manual_seed(i).initial_seed()).tolist() == [0, 1]
    assert HELD[0].add(1).tolist() == [2, 2] and not torch.kompute._is_in_bad_fork()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_asking_whether_there_is_a_device_opens_none() -> None:
    """Packages ask at their import. A child that is forked afterwards has a device of its own."""
    code = """if True:
        import os, torch, kompute_dml.torch
        assert torch.accelerator.is_available() and not torch.kompute.is_initialized()
        child = os.fork()
        if child:
            raise SystemExit(os.waitpid(child, 0)[1])
        assert torch.ones(2, device="kompute").sum().item() == 2"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pickled_tensors() -> None:
    x = torch.arange(6.0, device=DEVICE).view(2, 3).t()
    y = pickle.loads(pickle.dumps(x))
    assert y.device == x.device and y.stride() == x.stride() and torch.equal(y, x)
    model = torch.nn.Linear(3, 2).to(DEVICE)
    again = pickle.loads(pickle.dumps(model))
    assert isinstance(again.weight, torch.nn.Parameter) and again.weight.device == x.device
    assert torch.equal(again.weight, model.weight)


def test_storages_of_the_device() -> None:
    assert torch.UntypedStorage(8, device=DEVICE).nbytes() == 8
    there = torch.UntypedStorage([1, 2, 3], device=DEVICE)
    assert there.device.type == DEVICE and there.cpu().tolist() == [1, 2, 3]
    assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]
    assert torch.UntypedStorage(3, device="meta").device.type == "meta"


def test_storages_give_memory_back_and_take_it_again() -> None:
    x = torch.ones(1 << 16, device=DEVICE)
    storage, allocation = x.untyped_storage(), weakref.ref(memory.allocation_of(x))
    assert storage.resize_(0) is storage and storage.size() == storage.nbytes() == 0
    gc.collect()
    assert allocation() is None
    with pytest.raises(RuntimeError, match="resized to 0 bytes"):
        x + 1
    storage.resize_(1 << 18)
    assert storage.nbytes() == 1 << 18
    x.fill_(3)
    assert x.cpu().tolist()[:: 1 << 15] == [3, 3]
    with pytest.raises(RuntimeError, match="made with 262144 bytes cannot have 262145"):
        storage.resize_((1 << 18) + 1)
    assert torch.ones(3).untyped_storage().resize_(4).nbytes() == 4


def test_state_dicts_go_both_ways() -> None:
    file, ours, host = io.BytesIO(), torch.nn.Linear(3, 2).to(DEVICE), torch.nn.Linear(3, 2)
    torch.save(ours.state_dict(), file)
    file.seek(0)
    host.load_state_dict(torch.load(file, map_location="cpu"))
    torch.testing.assert_close(host.weight, ours.weight.cpu())
    with torch.no_grad():
        host.weight.add_(1)
    ours.load_state_dict(host.state_dict())
    assert ours.weight.device.type == DEVICE
    torch.testing.assert_close(host.weight, ours.weight.cpu())


def test_gradients_pass_writes_through_views() -> None:
    found = []
    for device in ("cpu", DEVICE):
        x = torch.arange(6.0, device=device).view(2, 3).requires_grad_()
        y = x * 2
        y[0].mul_(3)
        y.t()[1:].add_(1)
        y.square().sum().backward()
        found.append(x.grad.cpu())
    torch.testing.assert_close(found[1], found[0])


def test_checkpoints_and_sums_of_gradients() -> None:
    found = []
    for device in ("cpu", DEVICE):
        x = torch.arange(4.0, device=device).requires_grad_()
        for _ in range(2):
            y = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)
            y.sum().backward()
        found.append(x.grad.cpu())
    torch.testing.assert_close(found[1], found[0])


def test_results_that_do_not_fit_are_refused() -> None:
    x = torch.ones(2, device=DEVICE)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        x.add_(torch.ones(3, 2, device=DEVICE))
    with pytest.raises(RuntimeError, match="can't be cast"):
        x.long().add_(x)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(torch.zeros(2, 2, device=DEVICE))


def test_copies_are_apart() -> None:
    x = torch.ones(3, device=DEVICE)
    for made in (copy.deepcopy(x), x.clone()):
        made.zero_()
        assert x.sum().item() == 3 and made.device == x.device


def test_autocast_and_gradient_scaler() -> None:
    model, x = torch.nn.Linear(5, 3).to(DEVICE), torch.randn(2, 5, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=8.0)
    before = model.weight.detach().clone()
    with torch.autocast(DEVICE, torch.float16):
        y = model(x)
        assert y.dtype == torch.float16 and torch.exp(y).dtype == torch.float32
    loss = y.float().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(model.weight.cpu(), before.cpu() - 0.1 * x.cpu().sum(0),
                               rtol=2e-3, atol=2e-3)


FUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "Adam": ("Adam", {"lr": 0.1}),
    "Adam, all of it": ("Adam", {"lr": 0.1, "weight_decay": 0.2, "amsgrad": True,
                                 "maximize": True}),
    "AdamW": ("AdamW", {"lr": 0.1, "weight_decay": 0.3}),
    "AdamW, a rate that is a tensor": ("AdamW", {"lr": torch.tensor(0.1)}),
    "SGD": ("SGD", {"lr": 0.1}),
    "SGD, momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1,
                              "weight_decay": 0.2}),
    "SGD, Nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
}


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("name", FUSED)
def test_fused_optimizers(name: str, scaled: bool) -> None:
    """A step whose gradients overflow changes nothing; GradScaler leaves it to the optimizer."""
    kind, options = FUSED[name]
    values, gradients = [torch.randn(3, 4), torch.randn(5)], [torch.randn(3, 4), torch.randn(5)]
    found = []
    for device, fused in (("cpu", False), (DEVICE, True)):
        parameters = [x.to(device, copy=True).requires_grad_() for x in values]
        optimizer = getattr(torch.optim, kind)(parameters, **options, fused=fused)
        scaler = torch.amp.GradScaler(device, init_scale=4.0, enabled=scaled)
        for step in range(4):
            for p, g in zip(parameters, gradients):
                p.grad = (scaler.scale(g.to(device)) * (step + 1)).clone()
            if scaled and step == 2:
                parameters[1].grad[2] = torch.inf
            scaler.step(optimizer)
            scaler.update()
        states = [x for p in parameters for x in optimizer.state[p].values()
                  if isinstance(x, torch.Tensor)]
        found.append([x.detach().cpu() for x in (*parameters, *states)])
    for ours, theirs in zip(*found[::-1], strict=True):
        torch.testing.assert_close(ours, theirs)


def test_random_numbers_repeat() -> None:
    def draw(generator: Any = None) -> list[Any]:
        x = torch.rand(1000, device=DEVICE, generator=generator)
        return [x.cpu(), torch.nn.functional.dropout(torch.ones(50, device=DEVICE)).cpu()]

    torch.manual_seed(3)
    first = draw()
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(first, draw()))
    assert first[0].min() >= 0 and first[0].max() < 1 and 0.45 < first[0].mean() < 0.55
    mine = draw(torch.Generator().manual_seed(5))[0]
    torch.manual_seed(9)
    assert torch.equal(mine, draw(torch.Generator().manual_seed(5))[0])


def test_dropout_of_gradients_has_the_same_mask() -> None:
    x = torch.ones(64, device=DEVICE, requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.5)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu()) and 0 < (y == 0).sum().item() < 64


def test_out_of_memory_says_how_much() -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"\d+ bytes .* \d+ "):
        torch.empty(1 << 44, device=DEVICE)
    assert (torch.ones(2, device=DEVICE) + 1).tolist() == [2, 2]


LARGE = 1 << 20


def fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more tensors of a megabyte and more."""
    heap = memory.device().runtime.heap
    before = heap.allocate

    def allocate(nbytes: int, uploaded: bool = False) -> Any:
        if nbytes >= LARGE:
            raise OutOfMemoryError(f"{nbytes} bytes were asked for, but {heap.used} are taken")
        return before(nbytes, uploaded)

    monkeypatch.setattr(heap, "allocate", allocate)


def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(f, backend="kompute_dml")


WITHOUT_MEMORY: dict[str, Callable[[Any, Any], Any]] = {
    "an operator": lambda x, host: x + x,
    "a decomposition": lambda x, host: torch.nn.functional.mish(x.expand(LARGE)),
    "in place": lambda x, host: torch.ones(4, device=DEVICE).resize_(LARGE),
    "another type": lambda x, host: x.view(torch.int16)[:LARGE].to(torch.float32),
    "a copy": lambda x, host: x.clone(),
    "an upload": lambda x, host: host.to(DEVICE),
    "an operand of the host": lambda x, host: x.copy_(host),
    "empty": lambda x, host: torch.empty(LARGE, device=DEVICE),
    "strided": lambda x, host: torch.empty_strided((2, LARGE), (1, 2), device=DEVICE),
    "a sequence": lambda x, host: torch.arange(LARGE, device=DEVICE),
    "a storage": lambda x, host: x.untyped_storage().clone(),
    "a module": lambda x, host: torch.nn.Linear(1024, 1024).to(DEVICE),
    "a list": lambda x, host: torch._foreach_mul([x, x], 2.0),
    "gradients": lambda x, host: x.detach().requires_grad_().sum().backward(),
    "the outputs of a plan": lambda x, host: compiled(lambda y: y * 2)(x),
    "a plan of its own": lambda x, host: compiled(lambda y: (y[:, None] * y).sum())(x[:2048]),
    "a parameter of the host": lambda x, host: compiled(lambda y: (y * 2).sum())(host),
    "gradients of a plan": lambda x, host: compiled(lambda y: y.sum())(
        x.detach().requires_grad_()).backward(),
}


@pytest.mark.parametrize("way", WITHOUT_MEMORY)
def test_a_lack_of_memory_is_pytorchs_error(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU, which is forbidden, is not asked. The next step works."""
    x, host = torch.ones(LARGE, device=DEVICE), torch.ones(LARGE)
    with monkeypatch.context() as patch:
        fill(patch)
        with pytest.raises(torch.OutOfMemoryError, match=r"\d+ bytes .* \d+ "):
            WITHOUT_MEMORY[way](x, host)
    assert (x[:2] + 1).tolist() == [2, 2]


def test_the_cpu_helps_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.eye(3, device=DEVICE)
    with pytest.raises(NotImplementedError, match="_linalg_svd"):
        torch.linalg.svdvals(x)
    monkeypatch.delenv("KOMPUTE_DML_TORCH_FALLBACK")
    with pytest.warns(UserWarning, match="_linalg_svd") as warned:
        for _ in range(2):
            assert torch.linalg.svdvals(x).device.type == DEVICE
    assert len(warned) == 1


def test_names_of_the_module() -> None:
    assert torch.accelerator.current_accelerator().type == DEVICE
    torch.accelerator.synchronize()
    held = torch.ones(1000, device=DEVICE)
    assert torch.kompute.memory_allocated() >= held.numel() * 4
    assert repr(held[:2]) == f"tensor([1., 1.], device='{DEVICE}:0')"
    assert directml.device().type == DEVICE and directml.device_count() == 1
    assert directml.device_name() == torch.kompute.get_device_name()
    assert all(0 <= used <= 1 for used in directml.gpu_memory(mb_per_tile=1024))


def test_compile_takes_the_backend_of_the_device() -> None:
    model, x = torch.nn.Linear(5, 3).to(DEVICE), torch.randn(2, 5, device=DEVICE)
    torch._dynamo.reset()
    y = torch.compile(model)(x)
    y.sum().backward()
    assert y.device.type == DEVICE and model.weight.grad.device.type == DEVICE
    torch.testing.assert_close(y.cpu(), model(x).cpu())


FLOAT64 = {
    "add": lambda a, b: a + b, "divide": lambda a, b: a / b, "pow": lambda a, b: a ** b,
    "log": lambda a, b: a.log(), "square": lambda a, b: a ** 2, "times": lambda a, b: a * 3,
    "mixed": lambda a, b: a.float() * b, "bool": lambda a, b: a.bool(),
    "sum": lambda a, b: a.sum(), "where": lambda a, b: torch.where(a > b, a, b),
}


@pytest.mark.parametrize("name", FLOAT64)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_float64_is_right_or_refused(name: str, shape: tuple[int, ...],
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions give FLOAT32 for it, which no tensor of FLOAT64 may hold."""
    torch.manual_seed(0)
    host = [torch.rand(shape, dtype=torch.float64) + 0.5 for _ in range(2)]
    x = [t.to(DEVICE) for t in host]
    expected = FLOAT64[name](*host)
    try:
        torch.testing.assert_close(FLOAT64[name](*x).cpu(), expected)
    except NotImplementedError as error:
        assert "forbids the CPU" in str(error)
    monkeypatch.delenv("KOMPUTE_DML_TORCH_FALLBACK")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(FLOAT64[name](*x).cpu(), expected)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_networks(kind: str, bias: bool) -> None:
    torch.manual_seed(0)
    model, x = getattr(torch.nn, kind)(3, 4, bias=bias, batch_first=True), torch.randn(2, 3, 3)
    found = []
    for device in ("cpu", DEVICE):
        here, inputs = copy.deepcopy(model).to(device), x.clone().to(device).requires_grad_()
        y, state = here(inputs)
        (y.square().sum() + state[-1].sum()).backward()
        found.append([y.detach(), inputs.grad, *[p.grad for p in here.parameters()]])
    for ours, theirs in zip(*found[::-1], strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("turned", [True, False])
def test_gradients_of_a_solution(turned: bool) -> None:
    """PyTorch reads the factors that its own ``solve`` keeps."""
    torch.manual_seed(0)
    a, b = torch.randn(4, 4), torch.randn(4, 2)
    found = []
    for device in ("cpu", DEVICE):
        x, y = (t.clone().to(device).requires_grad_() for t in (a, b))
        z = torch.linalg.solve(x.t() if turned else x, y)
        found.append(torch.autograd.grad(z.square().sum(), [x, y]))
    for ours, theirs in zip(*found[::-1], strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lengths", [
    [3, 0, 40, 21], [5, 5, 5], [0, 300], [0, 1, 0, 2, 0, 0, 0, 1]], ids=str)
def test_rows_of_groups_have_a_matrix_each(lengths: list[int]) -> None:
    """Groups without rows, with fewer rows than a tile has, and of fewer rows than groups."""
    x, matrices = torch.randn(sum(lengths), 6), torch.randn(len(lengths), 6, 5)
    results = []
    for device in ("cpu", DEVICE):
        a, b = (t.to(device).detach().requires_grad_() for t in (x, matrices))
        if device == "cpu":
            y = torch.cat([part @ m for part, m in zip(a.split(lengths), b)])
        else:
            ends = torch.tensor(lengths).cumsum(0).int().to(device)
            y = torch._grouped_mm(a, b, offs=ends)
        y.backward(torch.arange(y.numel(), device=device).reshape(y.shape) / 100)
        results.append([t.detach().cpu() for t in (y, a.grad, b.grad)])
    for expected, y in zip(*results):
        torch.testing.assert_close(y, expected)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_whole_numbers_are_counted_as_on_cuda(dtype: torch.dtype) -> None:
    x = torch.randint(0, 12, (200,), dtype=dtype)
    counts = torch.histc(x.to(DEVICE), bins=4, min=1, max=9)
    assert counts.dtype == dtype
    with pytest.raises(NotImplementedError):  # both ends are 0, so elements tell the range
        torch.histc(x.to(DEVICE), bins=4, min=0.2, max=0.9)
    # (x - 1) * 4 // 8, and 9 in the last one
    assert counts.tolist() == [int(((x >= low) & (x <= high)).sum())
                               for low, high in ((1, 2), (3, 4), (5, 6), (7, 9))]


def dispatches(run: Callable[[], Any]) -> int:
    """How many dispatches a call takes."""
    recorder = memory.device().runtime.recorder
    before = recorder.dispatches
    run()
    return int(recorder.dispatches - before)


def test_an_unsafe_view_is_a_view() -> None:
    """Products of more than two dimensions end with one."""
    x = torch.arange(12.0, device=DEVICE)
    y = torch.ops.aten._unsafe_view(x, (3, 4))
    assert memory.allocation_of(y) is memory.allocation_of(x)
    assert dispatches(lambda: torch.ops.aten._unsafe_view(x, (4, 3))) == 0


@pytest.mark.parametrize("key", [
    (slice(None), "mask"), ("pairs",), ("pairs", "places"), ("places", slice(None), "mask"),
    ("places",), (slice(None), "places"), ("column", "places"), ("all",), ("none",)])
def test_indices_and_masks(key: tuple[Any, ...]) -> None:
    """Places count from the end, too. Masks take as many dimensions as they have."""
    x = torch.arange(60.0).view(5, 4, 3)
    known = {"places": torch.tensor([-1, 2]), "column": torch.tensor([[1], [-2], [0]]),
             "mask": torch.tensor([True, False, True, False]), "pairs": x[:, :, 1] % 19 == 0,
             "all": x % 2 == 0, "none": x < 0}
    if "mask" in key and key[0] == "places":
        known["mask"] = torch.tensor([True, False, True])
    index = tuple([known.get(k, k) if isinstance(k, str) else k for k in key])
    ours = tuple([k.to(DEVICE) if isinstance(k, torch.Tensor) else k for k in index])
    y = x.to(DEVICE)
    assert torch.equal(y[ours].cpu(), x[index])
    x[index] = x[index] * 2 + 1
    y[ours] = y[ours] * 2 + 1
    assert torch.equal(y.cpu(), x)


def test_reading_at_indices_is_one_dispatch() -> None:
    x, places = torch.randn(5, 4).to(DEVICE), torch.tensor([-1, 2]).to(DEVICE)
    for run in (lambda: x[places], lambda: x[:, places]):
        run()  # uploads what it keeps
        assert dispatches(run) == 1


def test_strided_places_beyond_a_tensor_are_refused() -> None:
    """They count in memory, of which a part of a tensor is not the beginning."""
    x = torch.zeros(12, device=DEVICE)[8:]
    with pytest.raises(NotImplementedError, match="beyond 4 elements"):
        torch.as_strided_scatter(x, torch.ones(2, device=DEVICE), (2,), (1,), 9)


@pytest.mark.parametrize("name", ["alone", "others", "first", "spread", "copy", "like", "place"])
def test_results_by_element_lie_as_their_tensors_do(name: str) -> None:
    """Also when they run again. So views of them work as on the CPU."""
    def results(x: torch.Tensor, row: torch.Tensor) -> list[torch.Tensor]:
        turned, part = x.permute(2, 0, 1), x[:, ::2].mT
        return {
            "alone": lambda: [turned.exp(), (turned + 1).permute(1, 2, 0).view(-1), part.relu()],
            "others": lambda: [turned * row, torch.where(turned > 0, turned, row), turned > row],
            "first": lambda: [turned + turned.contiguous(), turned.contiguous() + turned],
            "spread": lambda: [part + part[:1], part[:, :, :1] * part],
            "copy": lambda: [turned.clone(), part.half(), part.clone(
                memory_format=torch.contiguous_format), turned.contiguous()],
            "like": lambda: [torch.zeros_like(turned), torch.full_like(part, 3)],
            "place": lambda: [turned.clone().sub_(2), turned.add_(row), x],
        }[name]()

    for seed in range(4):
        x, row = torch.randn(3, 4, 5, generator=torch.manual_seed(seed)), torch.randn(3, 1)
        ours = x.to(DEVICE), row.to(DEVICE)
        for y, expected in zip(results(*ours), results(x, row), strict=True):
            assert y.stride() == expected.stride() and y.storage_offset() == 0
            assert torch.allclose(y.cpu(), expected, atol=1e-6)


def test_copies_lie_in_memory_as_pytorch_lays_them() -> None:
    """Strides hold between the devices, and channels are last where a call asks for it."""
    x, last = torch.randn(2, 3, 4, 5), torch.channels_last
    there = x.to(DEVICE)
    images = x.to(memory_format=last)
    pairs = (
        (images, images.to(DEVICE)), (images.cpu(), images.to(DEVICE).cpu()),
        (x.mT.clone(), x.mT.to(DEVICE)), (x.mT.clone(), there.mT.cpu()),
        (images, there.to(memory_format=last)), (images, there.contiguous(memory_format=last)),
        (images.half(), there.to(torch.float16, memory_format=last)),
        (images.contiguous(), images.to(DEVICE).contiguous()),
        (torch.ones_like(images), torch.ones_like(images.to(DEVICE))),
        (torch.zeros_like(x, memory_format=last), torch.zeros_like(there, memory_format=last)),
        (images.double(), images.to(DEVICE, torch.float64)),
        (x[..., None].to(memory_format=torch.channels_last_3d),
         there[..., None].to(memory_format=torch.channels_last_3d)),
    )
    for expected, y in pairs:
        assert y.stride() == expected.stride()
        assert y.cpu().equal(expected)
    convolution = torch.nn.Conv2d(3, 4, 3).to(DEVICE, memory_format=last)
    assert convolution.weight.is_contiguous(memory_format=last)


def test_an_operator_of_the_host_that_writes_and_returns(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returns what is new, and not the arguments that it has written and resized."""
    monkeypatch.delenv("KOMPUTE_DML_TORCH_FALLBACK")
    x = torch.linspace(-1, 2, 12).reshape(3, 4)
    found = []
    for device in ("cpu", DEVICE):
        ones = torch.ones(1, dtype=torch.int64, device=device)
        ranges = [torch.tensor(v, device=device) for v in (math.inf, -math.inf)]
        scale = torch.ones(1, device=device)
        zero = torch.zeros(1, dtype=torch.int32, device=device)
        for factor in (1, 2):
            y = torch.fused_moving_avg_obs_fake_quant(
                factor * x.to(device), ones, ones, *ranges, scale, zero, 0.01, 0, 255, 0)
        found.append([t.cpu() for t in (y, *ranges, scale, zero)])
    for expected, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("size", [(6,), (2, 2), (0,), (5000,)])
def test_tensors_are_resized(size: tuple[int, ...]) -> None:
    """What there was stays, and memory that is a little larger than its tensor serves nothing."""
    found = []
    for device in ("cpu", DEVICE):
        x = torch.arange(3.0, device=device)
        x.resize_(size)
        found.append(x.flatten()[:3].cpu())
        assert x.shape == size
    torch.testing.assert_close(*found)
