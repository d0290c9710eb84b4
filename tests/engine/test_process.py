"""Whole processes: exit, children, drivers, environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kompute_dml as dml
from kompute_dml.toolchain import validation

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120


def python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``script`` in a process of its own."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        # The child imports the same modules, also those that PYTHONPATH names (such as another kp).
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths[::-1])), **environment},
        capture_output=True, text=True, timeout=SECONDS,
    )
    # Newer validation layers print there which file they write to.
    result.stdout = re.sub(r"(?m)^Validation Layer Info - .*\n", "", result.stdout)
    return result


def succeeds(script: str, **environment: str) -> str:
    result = python(script, **environment)
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


# The end of a process

PENDING = """
    import numpy as np, kompute_dml as dml
    x = dml.default_device().tensor(np.arange(1 << 14, dtype=np.float32))
    for _ in range(300):
        x = dml.activation_identity(x)
"""


def test_exit_with_work_pending() -> None:
    succeeds(PENDING)


def test_exit_inside_a_recording() -> None:
    succeeds(PENDING + """
    recording = dml.default_device().record()
    recording.__enter__()
    dml.activation_identity(x)
    """)


def test_exit_with_everything_alive_in_a_cycle() -> None:
    succeeds(PENDING + """
    class Node: pass
    node = Node()
    node.self, node.x, node.device = node, x, dml.Device()
    with node.device.record() as node.recording:
        node.y = dml.activation_identity(node.device.tensor(np.ones(9, np.float32)))
    node.recording.replay()
    """)


def test_exit_while_a_thread_records_for_ever() -> None:
    out = succeeds("""
    import atexit, threading
    atexit.register(lambda: print([d.runtime.closed for d in devices]))  # called last
    import kompute_dml as dml
    devices = dml.Device(), dml.Device()
    x, y = (device.tensor([1.0], "float32") for device in devices)
    recorded = threading.Event()
    def record():
        with devices[0].record():
            dml.abs(x, out=x)
            recorded.set()
            threading.Event().wait()
    threading.Thread(target=record, daemon=True).start()
    recorded.wait(60)
    dml.abs(y, out=y)
    """)
    assert out == "[True, True]\n"


def test_exit_by_an_exception() -> None:
    result = python(PENDING + "\n    raise SystemExit(3)")
    assert (result.returncode, result.stderr) == (3, "")


def test_many_devices_come_and_go() -> None:
    out = succeeds("""
    import gc, os, numpy as np, kompute_dml as dml
    def resident():
        return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    for i in range(12):
        device = dml.Device()
        x = device.tensor(np.full(5, i, np.float32))
        assert dml.activation_identity(x).numpy()[0] == i
        del device, x
        gc.collect()
        if i == 3:
            before = resident()
    print((resident() - before) >> 20)
    """)
    assert int(out) < 64, "each device keeps 16 MiB at least while it lives"


# fork

FORK = """
    import os, sys, warnings, numpy as np, kompute_dml as dml
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: drivers have threads
    device = dml.Device()
    x = device.tensor(np.arange(64, dtype=np.float32))
    with device.record() as recording:
        y = dml.activation_identity(x)
    device.synchronize()
    z = dml.activation_identity(y)  # pending
    child = os.fork()
    if child == 0:
        {child}
        sys.stdout.flush()
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    assert (z.numpy() == np.arange(64)).all()
    recording.replay()
    assert (dml.activation_identity(z).numpy() == np.arange(64)).all()
    print("parent computed")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_told_to_make_a_device_of_its_own() -> None:
    out = succeeds(FORK.format(child="""
        for call in (z.numpy, recording.replay, device.synchronize,
                     lambda: dml.activation_identity(x), lambda: device.tensor([1.0])):
            try:
                call()
            except dml.DeviceLostError as error:
                assert "after fork()" in str(error)
            else:
                os._exit(7)
        import gc, weakref
        lists = [weakref.ref(l) for l in device.runtime.engine.command_lists]
        del x, y, z, recording, device, call
        gc.collect()
        if not lists or not all(l() for l in lists):
            os._exit(8)  # kp has called the driver
    """))
    assert out == "parent computed\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_that_uses_nothing_ends_quietly() -> None:
    assert succeeds(FORK.format(child="pass")) == "parent computed\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_keeps_its_exit_code_and_its_output_but_no_exit_handler() -> None:
    result = python("""
    import atexit, ctypes, os, sys, warnings, kompute_dml as dml
    warnings.simplefilter("ignore", DeprecationWarning)
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit"):
        raise SystemExit("skip")
    libc.__cxa_atexit(libc.puts, b"handler", None)  # as the driver has one
    device = dml.Device()
    child = os.fork()
    if child == 0:
        atexit.register(print, "Python's")
        libc.puts(b"C's")
        sys.exit(5)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
    os._exit(0)
    """)
    if result.stderr == "skip\n":
        pytest.skip("this C library has no on_exit")
    assert sorted(result.stdout.split()) == ["5", "C's", "Python's"], result


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_child_forked_before_first_use_computes() -> None:
    out = succeeds("""
    import os, numpy as np, kompute_dml as dml
    child = os.fork()
    assert dml.diagonal_matrix([3, 3]).numpy().sum() == 3
    if child:
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        print("both computed")
    """)
    assert out == "both computed\n"


# Drivers


def test_without_a_driver_the_error_says_what_to_install(tmp_path: Path) -> None:
    none = str(tmp_path / "no_driver.json")
    out = succeeds("""
    import kompute_dml as dml
    for call in (dml.list_devices, dml.Device, lambda: dml.diagonal_matrix([2, 2])):
        try:
            call()
        except dml.NoDeviceError as error:
            print(error)
    """, VK_DRIVER_FILES=none, VK_ICD_FILENAMES=none)
    assert out.count("apt install") == 3, out


def test_an_adapter_that_is_not_there_is_refused_with_those_that_are() -> None:
    out = succeeds("""
    import kompute_dml as dml
    try:
        dml.Device()
    except dml.NoDeviceError as error:
        print(error)
    """, KOMPUTE_DML_DEVICE="No Such Card")
    assert "KOMPUTE_DML_DEVICE 'No Such Card' matches no device" in out
    assert dml.list_devices()[0].name in out


# Switches


def test_features_can_be_switched_off(device: dml.Device) -> None:
    script = """
    import kompute_dml as dml
    print(",".join(sorted(dml.Device().features)))
    """
    full = set(succeeds(script, KOMPUTE_DML_DISABLE="").split()[0:1] or [""])
    full = {f for names in full for f in names.split(",")}
    less = set(succeeds(script, KOMPUTE_DML_DISABLE="int8, dot,coopmat").strip().split(","))
    assert full - {""} == device.features or os.environ.get("KOMPUTE_DML_DISABLE")
    for gone in ("shaderInt8", "storageBuffer8BitAccess", "shaderIntegerDotProduct",
                 "cooperativeMatrix"):
        assert gone not in less
    assert ("shaderInt16" in less) == ("shaderInt16" in full)


def test_an_unknown_switch_is_named() -> None:
    out = succeeds("""
    import kompute_dml as dml
    try:
        dml.Device()
    except dml.DmlError as error:
        print(error)
    """, KOMPUTE_DML_DISABLE="int8,warp")
    assert "got warp" in out
    assert "int8, int16" in out


# Validation: the layer's silence only counts if it reports a known fault.

CHAIN = """
import numpy as np, kompute_dml as dml
device = dml.Device()
x = device.tensor(np.arange(64, dtype=np.float32))
with device.record() as recording:
    y = dml.activation_identity(x)
    z = dml.activation_identity(y)
    dml.diagonal_matrix([8, 8], out=y.reshape(8, 8))
recording.replay()
assert (z.numpy() == x.numpy()).all()
"""


def validated(device: dml.Device, **environment: str) -> validation.Outcome:
    env = {**os.environ, "KOMPUTE_DML_TEST_WHOLE_BUFFERS": "1", **environment}
    env["PYTHONPATH"] = os.pathsep.join(
        filter(None, [os.environ.get("PYTHONPATH", ""), str(ROOT)])
    )
    if not validation.canary(sys.executable, env, ROOT):
        pytest.skip("the Khronos validation layer is not installed")
    return validation.validated([sys.executable, "-c", CHAIN], env, ROOT)


def test_a_chain_is_clean_under_validation(device: dml.Device) -> None:
    outcome = validated(device)
    assert outcome.returncode == 0
    assert outcome.faults == {}, outcome.log


def test_a_chain_without_barriers_is_not(device: dml.Device) -> None:
    if not device.runtime.engine.records_barriers:
        pytest.skip("this kp records no barriers: a hazard ends the submit, whatever the switch")
    outcome = validated(device, KOMPUTE_DML_TEST_NO_BARRIERS="1")
    assert any(name.startswith("SYNC-HAZARD") for name in outcome.faults), outcome.log
