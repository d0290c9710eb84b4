"""Applications that know nothing of the provider, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import kompute_dml as dml

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

from kompute_dml.onnxruntime import __main__ as runner
from onnx_graphs import FLOAT, INT64, cpu, model, needs_provider, node
from provider_tools import NAME, K, dense_layer

pytestmark = [needs_provider, pytest.mark.slow]
ROOT = Path(dml.__file__).parents[1]
SECONDS = 600
PREFIX = "kompute_dml: "
RUNNER = ("-m", "kompute_dml.onnxruntime")
APP = """
    import sys
    import numpy as np
    import onnxruntime

    def session(*arguments, **named):
        return onnxruntime.InferenceSession("dense.onnx", *arguments, **named)

    def run(session):
        return session.run(None, {"x": np.load("x.npy")})[0]

    def checked(session):
        np.testing.assert_allclose(run(session), np.load("y.npy"), rtol=0, atol=1e-4)
        return session.get_providers()[0]
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter whose site-packages have what the wheel puts there, and this environment."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    program = folder / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for file in (ROOT / "startup").iterdir():
        if file.is_file():
            (site / file.name).symlink_to(file)
    ours = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH", ""), *ours])
    (site / "others.pth").write_text("\n".join(":".join(paths).split(":")) + "\n")
    return program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of one region, one with a node for the CPU, an input and its result."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    dense = dense_layer(rng)
    x = rng.standard_normal((3, K)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", cpu(dense).run(None, {"x": x})[0])
    (folder / "dense.onnx").write_bytes(dense)
    (folder / "mixed.onnx").write_bytes(model(
        [node("Softmax", "x", "y"), node("NonZero", "x", "n")], [("x", FLOAT, [3, 3])],
        [("y", FLOAT, [3, 3]), ("n", INT64, None)]))
    return folder


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def call(python: Path, folder: Path, tmp_path: Path) -> Run:
    """Runs the application with the code of a test at its end."""

    def call(
        code: str, *before: str, after: tuple[str, ...] = (), app: str | None = None,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "app.py"
        file.write_text(textwrap.dedent(APP) + textwrap.dedent(code))
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "KOMPUTE_DML_ORT")}
        return subprocess.run(
            [python, *before, file if app is None else app, *after], cwd=folder, text=True,
            capture_output=True, timeout=SECONDS, env={**env, **environment})

    return call


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines on stderr of a process that succeeds. Each is one of ours."""
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert all(line.startswith(PREFIX) for line in lines), done.stderr
    return [line.removeprefix(PREFIX) for line in lines]


def dense_line(device: dml.Device, lines: list[str]) -> bool:
    """Whether the only line says that the device runs the whole of dense.onnx."""
    (line,) = lines
    return line.startswith("dense.onnx: ") and f" nodes on {device.adapter.name}, 0 on" in line


def test_the_weights_of_a_large_file_stay_there(call: Run, folder: Path) -> None:
    """Of more than 16 MiB."""
    w = np.ones((2100, 2100), np.float32)
    (folder / "large.onnx").write_bytes(model(
        [node("MatMul", "x w", "y")], [("x", FLOAT, [1, 2100])], [("y", FLOAT, [1, 2100])],
        {"w": w}))
    done = call("""
    s = onnxruntime.InferenceSession("large.onnx")
    print(len(s._model_bytes) < 1000, s.run(None, {"x": np.ones((1, 2100), "f4")})[0].max())
    """, KOMPUTE_DML_ORT="claim=all")
    assert len(told(done)) == 1
    assert done.stdout.split() == ["True", "2100.0"]


def test_the_variable_puts_the_provider_first(call: Run, device: dml.Device) -> None:
    done = call("""
    import importlib.util
    print("kompute_dml" in sys.modules)
    print(checked(session()))
    print(checked(session(providers=["CUDAExecutionProvider", "CPUExecutionProvider"])))
    print(checked(session(None, ["CPUExecutionProvider"], [{}])))
    print(checked(onnxruntime.InferenceSession(
        "dense.onnx", providers=[("CPUExecutionProvider", {})])))
    class Own(onnxruntime.InferenceSession):
        def __init__(self):
            super().__init__("dense.onnx", onnxruntime.SessionOptions())
    print(checked(Own()))
    """, KOMPUTE_DML_ORT="1")
    assert dense_line(device, told(done))
    assert done.stdout.split() == ["True", *[NAME] * 5]


def test_without_the_variable_nothing_changes(call: Run) -> None:
    code = """
    print([name for name in sys.modules if "kompute_dml" in name], checked(session()))
    """
    for value in ("", "0"):
        done = call(code, KOMPUTE_DML_ORT=value)
        assert (told(done), done.stdout) == ([], "[] CPUExecutionProvider\n")


def test_nothing_is_imported_before_onnxruntime(python: Path, folder: Path) -> None:
    """Also where it is looked for, as applications do to learn whether it is installed."""
    done = subprocess.run([python, "-c", textwrap.dedent("""
    import importlib.util, sys
    print(importlib.util.find_spec("onnxruntime").name)
    print([name for name in sys.modules if "kompute_dml" in name or name == "numpy"])
    import onnxruntime
    print(onnxruntime.InferenceSession("dense.onnx").get_providers()[0])
    """)], cwd=folder, text=True, capture_output=True,
        env={**os.environ, "KOMPUTE_DML_ORT": "1", "PYTHONPATH": ""})
    assert done.stdout.splitlines() == ["onnxruntime", "['_kompute_dml_ort']", NAME], done.stderr


def test_a_file_is_run_as_python_runs_it(call: Run, device: dml.Device) -> None:
    done = call("print(__name__, sys.argv[1:], sys.path[0], checked(session()))",
                *RUNNER, "--claim=all", "--strict", after=("--strict", "-m", "x"))
    assert dense_line(device, told(done))
    plain = call("print(__name__, sys.argv[1:], sys.path[0])", after=("--strict", "-m", "x"))
    assert done.stdout == f"{plain.stdout.rstrip()} {NAME}\n"


def test_modules_and_commands_are_run(
    call: Run, device: dml.Device, tmp_path: Path, python: Path
) -> None:
    code = "print(__name__, sys.argv[1:], checked(session()))"
    call("")
    (tmp_path / "program").write_text(f"#!{python}\n" + textwrap.dedent(APP) + code)
    (tmp_path / "shell").write_text('#!/bin/sh\nexec python "$(dirname "$0")/program" "$@"\n')
    for name in ("program", "shell"):
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{python.parent}:{os.environ['PATH']}"
    for done in (
        call(code, *RUNNER, app="shell", after=("--help",), PATH=path),
        call(code, *RUNNER, "-m", app="app", after=("--help",), PYTHONPATH=str(tmp_path)),
    ):
        assert dense_line(device, told(done))
        assert done.stdout == f"__main__ ['--help'] {NAME}\n"


@pytest.mark.parametrize("words, problem", [
    (["--option", "claims=all", __file__], "has no option claims"),
    (["--claim", "Sofmax", __file__], "got 'Sofmax'"),
    (["--option", "claim", __file__], "got 'claim'"),
    (["no-such-command"], "no-such-command is neither a file nor a command"),
])
def test_a_wrong_command_line_is_told(
    words: list[str], problem: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KOMPUTE_DML_ORT", "")
    monkeypatch.setattr(sys, "argv", ["kompute_dml.onnxruntime", *words])
    with pytest.raises(SystemExit) as raised:
        runner.main()
    assert raised.value.code == 2 and problem in capsys.readouterr().err


def test_what_runs_where_is_explained_at_the_end(call: Run) -> None:
    code = """
    onnxruntime.InferenceSession(open("mixed.onnx", "rb").read())
    print("the end", flush=True)
    """
    done = call(code, KOMPUTE_DML_ORT="explain claim=all")
    assert done.returncode == 0 and done.stdout == "the end\n"
    first, title, *rows, last = done.stderr.splitlines()
    assert first.startswith(PREFIX + "a model of ") and "1 of 2 nodes" in first
    assert title in f"{first}:" and last == "2 nodes: 1 in 1 region, 1 on the CPU"
    assert [row.split()[0] for row in sorted(rows)] == ["CPU", "region"]


def test_strict_leaves_no_node_to_the_cpu(call: Run) -> None:
    done = call('onnxruntime.InferenceSession("mixed.onnx")', KOMPUTE_DML_ORT="strict claim=all")
    assert done.returncode == 1
    assert "strict: 1 of 2 nodes would be left to the CPU: NonZero" in done.stderr


def test_nothing_claimed_is_one_line(call: Run) -> None:
    (line,) = told(call('onnxruntime.InferenceSession("mixed.onnx")', KOMPUTE_DML_ORT="claim=Abs"))
    assert line.startswith("mixed.onnx: 0 of 2 nodes on ") and line.endswith("2 on the CPU")


@pytest.mark.parametrize("variable, problem", [
    ("1", "apt install"), ("claims=all", "has no option claims"), ("yes", "got 'yes'"),
])
def test_what_keeps_the_provider_from_working_is_one_line(
    call: Run, variable: str, problem: str
) -> None:
    none = {"VK_DRIVER_FILES": "/nowhere", "VK_ICD_FILENAMES": "/nowhere"}
    done = call("print(checked(session()), checked(session()))", KOMPUTE_DML_ORT=variable,
                **(none if variable == "1" else {}))
    (line,) = told(done)
    assert line.startswith("models run as the application asks: ") and problem in line
    assert done.stdout == "CPUExecutionProvider CPUExecutionProvider\n"


def test_strict_without_a_device_is_an_error(call: Run) -> None:
    done = call("session()", *RUNNER, "--strict", VK_DRIVER_FILES="/nowhere",
                VK_ICD_FILENAMES="/nowhere")
    assert done.returncode == 1 and "NoDeviceError: no Vulkan driver" in done.stderr


def test_faults_of_the_application_stay_its_own(call: Run) -> None:
    code = """
    try:
        onnxruntime.InferenceSession("nothing.onnx")
    except Exception as error:
        print(type(error).__name__, error)
    """
    plain, ours = call(code), call(code, KOMPUTE_DML_ORT="1")
    assert told(plain) == told(ours) == [] and "nothing.onnx" in plain.stdout
    assert plain.stdout == ours.stdout


def test_sessions_that_choose_this_provider_are_left_alone(call: Run) -> None:
    done = call("""
    import kompute_dml.onnxruntime as kompute
    made = kompute.session("dense.onnx", claim="all")
    print(made.get_provider_options()[kompute.get_ep_name()]["claim"])
    made = session(providers=[(kompute.get_ep_name(), {"claim": "Softmax"})])
    print(made.get_provider_options()[kompute.get_ep_name()]["claim"])
    """, "-W", "ignore", KOMPUTE_DML_ORT="claim=auto")
    assert (told(done), done.stdout) == ([], "all\nSoftmax\n")


def test_threads_make_sessions(call: Run, device: dml.Device) -> None:
    done = call("""
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(8) as pool:
        print({*pool.map(lambda _: checked(session()), range(16))})
    """, KOMPUTE_DML_ORT="1")
    assert dense_line(device, told(done)) and done.stdout == f"{{'{NAME}'}}\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_children_compute(call: Run, device: dml.Device) -> None:
    """With the parent's session, and with one of their own where the parent has none."""
    done = call("""
    import multiprocessing
    import os
    fork = multiprocessing.get_context("fork")
    def work(made=None):
        print(checked(made or session()), flush=True)
    def in_child(*arguments):
        child = fork.Process(target=work, args=arguments)
        child.start()
        child.join()
        assert child.exitcode == 0, child.exitcode
    in_child()
    made = session()
    in_child(made)
    pid = os.fork()
    if not pid:
        work(made)
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    work(made)
    """, "-W", "ignore", KOMPUTE_DML_ORT="1")
    lines = told(done)
    on_cpu = "a forked child runs its parent's models on the CPU: only the parent has the device"
    assert done.stdout.split() == [NAME, *["CPUExecutionProvider"] * 2, NAME]
    assert lines.count(on_cpu) == 2 and len(lines) == 4


def test_children_that_are_started_anew_do_the_same(call: Run) -> None:
    done = call("""
    def work():
        print(checked(session()), flush=True)
    if __name__ == "__main__":
        import multiprocessing
        child = multiprocessing.get_context("spawn").Process(target=work)
        child.start()
        child.join()
    """, *RUNNER, "--explain")
    assert done.returncode == 0 and done.stdout == f"{NAME}\n", done.stderr
    assert done.stderr.splitlines()[-1].endswith(", 0 on the CPU"), "explained by the child"
