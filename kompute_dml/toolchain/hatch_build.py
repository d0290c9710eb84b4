"""Compiles the shaders when a wheel or an editable installation is built."""

from __future__ import annotations

import sys
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
        from toolchain import spirv, system

        try:
            self.app.display_info(str(spirv.build(package.parent / "shaders", package / "spirv")))
        except system.ToolchainError as error:
            self.app.abort(str(error))
