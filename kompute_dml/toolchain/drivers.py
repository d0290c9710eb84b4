"""The two Vulkan drivers for the CPU that the tests run on."""

from __future__ import annotations

import os
from pathlib import Path

from .system import cache_dir


def lavapipe() -> Path | None:
    """The description of Mesa's driver, for VK_DRIVER_FILES."""
    folders = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d")
    return next((p for folder in folders for p in Path(folder).glob("lvp_icd*.json")), None)


def swiftshader() -> Path | None:
    """The description of SwiftShader, a driver without optional features:
    `$KOMPUTE_DML_SWIFTSHADER`, or the private one."""
    chosen = os.environ.get("KOMPUTE_DML_SWIFTSHADER")
    description = Path(chosen) if chosen else cache_dir("swiftshader") / "swiftshader_icd.json"
    return description if description.is_file() else None
