"""Costs of the engine: start, recording, replay, submit, memory, transfers.

    python benchmarks/engine.py [--json]

Every row is the median of repeated measurements on the default device (KOMPUTE_DML_DEVICE chooses
it). Transfers are compared with kp's own, over the same bytes in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import kompute_dml as dml
from kompute_dml.runtime import clock

DISPATCHES = 1000
TRANSFER_BYTES = (64 << 10, 4 << 20, 64 << 20)


class Row(NamedTuple):
    name: str
    value: float
    unit: str
    aim: str = ""


def seconds(work: Callable[[], Any], repeats: int = 15) -> float:
    """Median wall time of ``work()``, after one call that does not count."""
    work()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def identity(device: dml.Device, sizes: list[int]) -> tuple[dml.CompiledOperator, Any, Any]:
    """A compiled ACTIVATION_IDENTITY over ``sizes``, its binding table and its resources."""
    desc = dml.TensorDesc("float32", sizes)
    compiled = device.compile_operator(
        device.create_operator(
            dml.ActivationIdentityOperatorDesc(input_tensor=desc, output_tensor=desc)
        )
    )
    buffers = [device.create_buffer(desc.total_tensor_size_in_bytes) for _ in range(2)]
    table = device.create_binding_table(compiled)
    table.bind_inputs([dml.BufferBinding(buffers[0])])
    table.bind_outputs([dml.BufferBinding(buffers[1])])
    return compiled, table, buffers


def recorded(device: dml.Device, call: Callable[[], Any], repeats: int = 15) -> float:
    """Microseconds of this thread's processor time per call of ``call``.

    The calls are inside a recording, so that nothing is submitted meanwhile. With stock kp a hazard
    ends the submit even there, and its time counts.
    """
    times = []
    for _ in range(repeats):
        with device.record():
            begin = time.thread_time()
            for _ in range(DISPATCHES):
                call()
            times.append((time.thread_time() - begin) / DISPATCHES)
        device.synchronize()
    return 1e6 * statistics.median(times[1:])


# In a process of its own: from the first import to a result on the host.
COLD = """
import json, time
begin = time.perf_counter()
import numpy as np, kompute_dml as dml
imported = time.perf_counter()
device = dml.Device()
opened = time.perf_counter()
dml.activation_identity(device.tensor(np.arange(64, dtype=np.float32))).numpy()
print(json.dumps([imported - begin, opened - imported, time.perf_counter() - opened]))
"""


def cold_rows(device: dml.Device) -> list[Row]:
    # The first run warms the driver's cache of pipelines and the system's of files. It also
    # compiles the modules, as pip does when it installs a package.
    with tempfile.TemporaryDirectory() as compiled:
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": compiled}
        runs = [
            json.loads(subprocess.check_output([sys.executable, "-c", COLD], text=True, env=env))
            for _ in range(6)
        ][1:]
    steps = [statistics.median(step) for step in zip(*runs)]
    aim = "< 1.5" if device.adapter.is_cpu else "< 1"
    names = ("import", "device", "first result")
    return [
        *(Row(f"cold start: {name}", value, "s") for name, value in zip(names, steps)),
        Row("cold start", statistics.median(map(sum, runs)), "s", aim),
    ]


def small_rows(device: dml.Device) -> list[Row]:
    """One submit of many small operators, timed by the device's clock."""
    if not device.runtime.engine.timestamps_valid:
        return []
    x = device.tensor(np.ones((64, 64), np.float32))
    outs = [device.empty([64, 64]) for _ in range(DISPATCHES)]

    def independent() -> None:
        for out in outs:
            dml.activation_relu(x, out=out)

    def chain() -> None:
        last = x
        for out in outs:
            last = dml.activation_relu(last, out=out)

    rows = []
    for name, work in (("independent", independent), ("each on the one before", chain)):
        work()
        device.synchronize()
        times = [device.elapsed(work) / DISPATCHES / 1000 for _ in range(5)]
        label = f"operator over [64, 64], {DISPATCHES} in a submit, {name}"
        rows.append(Row(label, statistics.median(times), "us", "< 5"))
    return rows


def recording_rows(device: dml.Device) -> list[Row]:
    # All calls write the same tensor, so each waits for the one before: the time includes the
    # barrier.
    compiled, table, _ = identity(device, [64])
    x, out = device.empty([64]), device.empty([64])
    bound = recorded(device, lambda: device.record_dispatch(compiled, table))
    source = device.create_buffer(256)

    def rebind() -> None:
        table.bind_inputs([dml.BufferBinding(source)])
        device.record_dispatch(compiled, table)

    rebound = recorded(device, rebind)
    function = recorded(device, lambda: dml.activation_identity(x, out=out))
    fresh = recorded(device, lambda: dml.activation_identity(x))
    with device.record() as recording:
        for _ in range(DISPATCHES):
            device.record_dispatch(compiled, table)

    def replay() -> None:
        recording.replay()
        device.synchronize()

    with device.record() as single:
        device.record_dispatch(compiled, table)

    def submit() -> None:
        single.replay()
        device.synchronize()

    return [
        Row("recorded dispatch, compiled operator, bindings kept", bound, "us", "< 15"),
        Row("recorded dispatch, compiled operator, bound anew", rebound, "us", "< 15"),
        Row("recorded dispatch, function with out=", function, "us", "< 40"),
        Row("recorded dispatch, function with a new tensor", fresh, "us", "< 40"),
        Row("replayed dispatch, device time included", 1e6 * seconds(replay) / DISPATCHES, "us"),
        Row("submit and wait, one dispatch", 1e6 * seconds(submit, 100), "us"),
    ]


def memory_rows(device: dml.Device) -> list[Row]:
    count, nbytes = 1000, 1000
    device.synchronize()
    before = device.memory_used
    tensors = [device.empty([nbytes // 4]) for _ in range(count)]
    overhead = (device.memory_used - before) / count - nbytes
    del tensors
    return [Row("device memory per tensor of 1000 bytes, beyond its bytes", overhead, "B", "< 256")]


def raw_transfer(device: dml.Device, nbytes: int) -> tuple[float, float]:
    """Seconds in which kp itself uploads and downloads ``nbytes``, between host arrays."""
    engine = device.runtime.engine
    kp, data = engine.kp, np.ones(nbytes // 4, np.float32)
    tensor = engine.manager.tensor_t(data, kp.TensorTypes.device)
    up = engine.manager.sequence().record(kp.OpTensorSyncDevice([tensor]))
    down = engine.manager.sequence().record(kp.OpTensorSyncLocal([tensor]))

    def upload() -> None:
        tensor.data()[:] = data
        up.eval()

    def download() -> None:
        down.eval()
        tensor.data().copy()

    result = seconds(upload), seconds(download)
    tensor.destroy()
    return result


def transfer_rows(device: dml.Device) -> list[Row]:
    rows = []
    for nbytes in TRANSFER_BYTES:
        raw = raw_transfer(device, nbytes)
        data = np.ones(nbytes // 4, np.float32)
        tensor = device.tensor(data)
        buffer = device.create_buffer(nbytes)

        def upload(buffer: dml.Buffer = buffer, data: np.ndarray = data) -> None:
            buffer.write(data)
            device.synchronize()

        label = f"{nbytes >> 10} KiB" if nbytes < 1 << 20 else f"{nbytes >> 20} MiB"
        for what, ours, theirs in (
            ("upload", seconds(upload), raw[0]),
            ("download", seconds(tensor.numpy), raw[1]),
        ):
            rows.append(Row(f"{what} of {label}", nbytes / ours / 1e9, "GB/s"))
            share = 100 * theirs / ours
            rows.append(Row(f"{what} of {label}, share of kp's own rate", share, "%", "> 80"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    as_json = parser.parse_args().json
    device = dml.Device()
    if not as_json:
        print(f"{device.adapter.name}, {device.runtime.engine.description} kp")
    with clock.held(device.adapter):
        for rows in (cold_rows, recording_rows, small_rows, memory_rows, transfer_rows):
            for row in rows(device):
                if as_json:
                    print(json.dumps(row._asdict()))
                else:
                    print(f"{row.name:<64} {row.value:>10.2f} {row.unit:<5} {row.aim}", flush=True)


if __name__ == "__main__":
    main()
