"""Compiles the shaders when a wheel or an editable installation is built."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_TERMINAL = "/dev/tty"


class SpirvBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        package = Path(self.root) / "kompute_dml"
        # Not as a part of the package, whose dependencies are not installed yet.
        sys.path.append(str(package))
        from toolchain import codes, native, spirv, system

        source, output = package.parent / "shaders", package / "spirv"
        try:
            self.app.display_info(str(spirv.build(source, output)))
            codes.write(source, output)
        except system.ToolchainError as error:
            self.app.abort(str(error))
        self._write_stubs()
        content = os.environ.get("KOMPUTE_DML_WHEEL_CONTENT")  # of toolchain/wheel.py
        if content:
            build_data["force_include"][content] = "kompute_dml"
            self._for_this_platform(build_data, os.environ["KOMPUTE_DML_WHEEL_PYTHONS"])
            return
        try:
            built = native.build()
        except system.ToolchainError as error:
            # Only the ONNX Runtime provider needs it, and reports the same when it is used.
            self._warn(
                "WARNING: kompute-dml is being built without its ONNX Runtime provider "
                f"(kompute_dml.onnxruntime): {error}. All else works. Mend that and install again "
                "to have it."
            )
        else:
            build_data["artifacts"].append(built.relative_to(Path(self.root).resolve()).as_posix())
            self._for_this_platform(build_data)

    def _for_this_platform(self, build_data: dict[str, object], pythons: str = "py3") -> None:
        """The provider knows nothing of Python: one wheel per platform serves every version that
        has kp."""
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"{pythons}-none-{platform}"

    def _write_stubs(self) -> None:
        """Write the types of all names that the registry makes. This needs the package and
        NumPy."""
        done = subprocess.run([sys.executable, "-m", "kompute_dml.toolchain", "stubs"],
                              cwd=self.root, capture_output=True, text=True)
        if done.returncode:
            self.app.abort(f"the type stubs cannot be written: {done.stderr.strip()}")

    def _warn(self, text: str) -> None:
        self.app.display_warning(text)
        if not sys.stderr.isatty():
            # pip hides what a build prints, so it is printed on the terminal, if there is one.
            with contextlib.suppress(OSError), open(_TERMINAL, "w", encoding="utf-8") as terminal:
                terminal.write(f"{text}\n")
