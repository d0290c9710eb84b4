"""Compiles the shaders when a wheel or an editable installation is built."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SpirvBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        package = Path(self.root) / "kompute_dml"
        # Not as part of the package, whose dependencies are not there yet.
        sys.path.append(str(package))
        from toolchain import native, spirv, system

        try:
            self.app.display_info(str(spirv.build(package.parent / "shaders", package / "spirv")))
        except system.ToolchainError as error:
            self.app.abort(str(error))
        try:
            built = native.build()
        except system.ToolchainError as error:
            # Only the ONNX Runtime provider needs it, and says the same when it is used.
            self.app.display_warning(str(error))
        else:
            # It knows nothing of Python: one wheel per platform serves every version.
            build_data["artifacts"].append(built.relative_to(Path(self.root).resolve()).as_posix())
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"py3-none-{platform}"
