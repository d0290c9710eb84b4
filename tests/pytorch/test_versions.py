"""What this package uses of PyTorch that other releases may lack or rename."""

from __future__ import annotations

import operator
from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.10", reason="torch 2.10 is not installed")
pytest.importorskip("kompute_dml.torch")
from kompute_dml.torch import device, versions  # noqa: E402
from kompute_dml.torch.decompositions import decompositions  # noqa: E402
from kompute_dml.torch.table import LOWERINGS  # noqa: E402

USED = (
    "_C._from_dlpack", "_C._dispatch_has_kernel", "_C._dispatch_has_kernel_for_dispatch_key",
    "_C.DispatchKeySet", "_dynamo.trace_rules.add", "_tensor_str._tensor_str",
    "_TorchCompileInductorWrapper.__call__", "Tensor.pin_memory", "accelerator.synchronize",
    "utils.backend_registration._setup_privateuseone_for_python_backend",
    "_C._swap_tensor_impl", "nn.Module._apply", "storage.UntypedStorage.copy_",
    "_C._acc.DeviceGuard", "autograd.graph._engine_run_backward", "autograd._engine_run_backward",
    "_decomp.core_aten_decompositions", "_guards.TracingContext.try_get",
    "fx.node._side_effectful_functions", "storage.UntypedStorage._write_file",
    "storage.UntypedStorage._set_from_file", "storage.UntypedStorage.resize_",
    "storage.UntypedStorage.nbytes", "_C._dynamo.guards.TensorGuards",
    "ops.aten.as_strided.default._handle.redispatch_boxed",
)


@pytest.mark.parametrize("name", USED)
def test_this_release_has(name: str) -> None:
    assert operator.attrgetter(name)(torch) is not None


COMPLEX = {"_fft_c2r", "_fft_r2c"}
"""Operators of Core ATen whose elements are complex numbers, which DirectML has not."""


def test_core_aten_is_served() -> None:
    """https://docs.pytorch.org/docs/stable/torch.compiler_ir.html#core-aten-ir"""
    own = {*device._OWN, *device._VIEWS}
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)]
    core = [op for packet in packets if hasattr(packet, "overloads")
            for op in (getattr(packet, name) for name in packet.overloads())
            if torch.Tag.core in op.tags]

    def is_served(op: Any) -> bool:
        name = op.name().split("::")[1]
        kinds = LOWERINGS, decompositions(), own
        return any(known in kind for kind in kinds for known in (op, name)) or (
            device._variant(op).functional in LOWERINGS) or (
            torch._C._dispatch_has_kernel_for_dispatch_key(
                op.name(), "CompositeImplicitAutograd"))

    assert len(core) > 150
    assert {op.name().split("::")[1] for op in core if not is_served(op)} <= COMPLEX


@pytest.mark.parametrize("release, wrong", [
    ("2.9.1", True), ("1.13.1+cpu", True), ("2.10.0", False), ("2.13.0+cpu", False),
    ("3.0.0a0+git1234", False)])
def test_older_releases_are_refused(release: str, wrong: bool, monkeypatch: pytest.MonkeyPatch
                                    ) -> None:
    monkeypatch.setattr(torch, "__version__", release)
    if wrong:
        with pytest.raises(ImportError, match="expected PyTorch 2.10 or later, but got "
                           + release[:3]):
            versions.check()
    else:
        versions.check()


def test_a_guard_says_which_tensors_are_alike() -> None:
    x = torch.zeros(4, 6, device="kompute")
    alike = versions.tensor_guard([x, x])
    assert alike(x, torch.zeros(4, 6, device="kompute"))
    others = (x[:, :5], x[:3], torch.zeros(6, 4, device="kompute").t(), x.int(), x.half(), x.cpu(),
              x[0], x[:0], x.to(torch.complex64), None)
    for other in others:
        assert not alike(x, other), other
