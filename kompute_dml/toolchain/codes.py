"""Writes the codes of operators, which stand in a shader alone, to where Python reads them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .system import PACKAGE, ToolchainError

SOURCE, FILE = Path("include/chain_operators.glsl"), "codes.json"
_CODE = re.compile(r"if \(code == (\d+)u\) result = (?:op_)?(\w+?)(?:imum)?\(")


def write(source: Path | None = None, output: Path | None = None) -> None:
    """Update `output` (the package's `spirv` folder) from `source` (`shaders`)."""
    path = (source or PACKAGE.parent / "shaders") / SOURCE
    codes = {name: int(code) for code, name in _CODE.findall(path.read_text("utf-8"))}
    if sorted(codes.values()) != [*range(1, len(codes) + 1)]:
        raise ToolchainError(f"{path}: expected codes from 1 on, each once, but got {codes}")
    target = (output or PACKAGE / "spirv") / FILE
    text = json.dumps(codes, indent=1) + "\n"
    if not target.is_file() or target.read_text("utf-8") != text:
        target.write_text(text, "utf-8")
