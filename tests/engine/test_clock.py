"""The clock of an NVIDIA GPU is held during measurements or on request, if CUDA is installed."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from click.testing import CliRunner

import kompute_dml as dml
from kompute_dml.cli import cli
from kompute_dml.runtime import adapters, clock, libcuda

UUIDS = (bytes(range(16)), bytes(range(16, 32)))


class Cuda:
    """A stand-in for libcuda.so.1. Calls named in ``failing`` return an error."""

    def __init__(self, failing=(), uuids=UUIDS):
        self.calls, self.failing, self.uuids = [], failing, uuids

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append(name)
            if name in self.failing:
                return 999
            work = vars(Cuda).get(f"_{name}")
            return work and work(self, *arguments)

        return call

    def _cuDeviceGetCount(self, count):
        count._obj.value = len(self.uuids)

    def _cuDeviceGet(self, device, ordinal):
        device._obj.value = 10 + ordinal

    def _cuDeviceGetUuid(self, uuid, device):
        uuid.raw = self.uuids[device.value - 10]

    def _cuDevicePrimaryCtxRetain(self, context, device):
        self.calls.append(device.value)

    def _cuDevicePrimaryCtxRelease(self, device):
        self.calls.append(device.value)


@pytest.fixture
def nvidia(device):
    return dataclasses.replace(device.adapter, driver="NVIDIA", uuid=UUIDS[1].hex())


@pytest.fixture
def use(monkeypatch):
    def use(cuda):
        monkeypatch.setattr(libcuda.ctypes, "CDLL", lambda name: {"libcuda.so.1": cuda}[name])
        return cuda

    return use


@pytest.fixture
def seen(monkeypatch):
    """The adapters whose clock a stand-in held, and its releases."""
    found = []

    @contextlib.contextmanager
    def held(adapter):
        found.append(adapter)
        yield True
        found.append("released")

    monkeypatch.setattr(clock, "held", held)
    return found


def test_a_context_is_held_on_the_same_device(nvidia, use):
    cuda = use(Cuda())
    with clock.held(nvidia) as holds:
        assert holds
        assert cuda.calls[0] == "cuInit"
        assert cuda.calls[-2:] == ["cuDevicePrimaryCtxRetain", 11]
        cuda.calls.clear()
    assert cuda.calls == ["cuDevicePrimaryCtxRelease", 11]


def test_it_is_released_when_the_work_fails(nvidia, use):
    cuda = use(Cuda())
    with contextlib.suppress(KeyError), clock.held(nvidia):
        raise KeyError
    assert cuda.calls[-2:] == ["cuDevicePrimaryCtxRelease", 11]


def test_a_device_that_cuda_names_otherwise_is_its_first(nvidia, use):
    cuda = use(Cuda())
    with clock.held(dataclasses.replace(nvidia, uuid="00" * 16)) as holds:
        assert holds and cuda.calls[-1] == 10


def test_no_other_gpu_is_held(nvidia, use, monkeypatch):
    """For example, if CUDA_VISIBLE_DEVICES hides the one in use."""
    other = dataclasses.replace(nvidia, index=nvidia.index + 1, uuid=UUIDS[0].hex())
    monkeypatch.setattr(adapters, "list_devices", lambda: (nvidia, other))
    cuda = use(Cuda(uuids=UUIDS[:1]))
    with clock.held(nvidia) as holds:
        assert not holds and "cuDevicePrimaryCtxRetain" not in cuda.calls
    with clock.held(other) as holds:
        assert holds and cuda.calls[-1] == 10


@pytest.mark.parametrize("cuda", [
    Cuda(failing={"cuInit"}), Cuda(failing={"cuDeviceGetCount"}), Cuda(uuids=()),
    Cuda(failing={"cuDevicePrimaryCtxRetain"}),
], ids=["init", "count", "no device", "context"])
def test_nothing_is_held_where_cuda_does_not_work(nvidia, use, cuda):
    use(cuda)
    with clock.held(nvidia) as holds:
        assert not holds
    assert "cuDevicePrimaryCtxRelease" not in cuda.calls


def test_nothing_is_held_without_cuda(nvidia, monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(libcuda.ctypes, "CDLL", missing)
    with clock.held(nvidia) as holds:
        assert not holds


def test_other_drivers_need_no_cuda(nvidia, use):
    cuda = use(Cuda())
    with clock.held(dataclasses.replace(nvidia, driver="llvmpipe")) as holds:
        assert not holds and not cuda.calls


@pytest.mark.parametrize("command", [
    ["bench", "--scale", "tiny", "-i", "1", "--filter", "diagonal_matrix u8"],
    ["tune", "--scale", "tiny", "--seconds", "0"],
], ids=["bench", "tune"])
def test_commands_hold_it_while_they_run(device, seen, command):
    result = CliRunner().invoke(cli, [*command, "-a", str(device.adapter.index)])
    assert result.exit_code == 0, result.output
    assert seen == [device.adapter, "released"]
    assert "CUDA context" in CliRunner().invoke(cli, [command[0], "--help"]).output


@pytest.mark.parametrize("value, holds", [("1", True), ("", False)])
def test_a_device_holds_it_where_that_is_asked_for(device, seen, monkeypatch, value, holds):
    monkeypatch.setenv("KOMPUTE_DML_HOLD_CLOCK", value)
    mine = dml.Device(device.adapter)
    assert seen == [device.adapter] * holds
    mine.close()
    assert seen == [device.adapter, "released"] * holds


def test_devices_have_uuids(device):
    assert len(bytes.fromhex(device.adapter.uuid)) == 16 and int(device.adapter.uuid, 16)
