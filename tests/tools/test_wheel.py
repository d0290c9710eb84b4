"""The contents of the wheel: the package, and nothing that only a checkout needs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import kompute_dml
from kompute_dml.public import PUBLIC

PACKAGE = Path(kompute_dml.__file__).parent
FILES = {p.relative_to(PACKAGE) for p in PACKAGE.rglob("*")
         if p.is_file() and "__pycache__" not in p.parts}

KINDS = {
    ".py": ".", ".pyi": ".", ".typed": ".", ".json": "spec spirv onnx lowering", ".md": "spec _kp",
    ".spv": "spirv", ".c": "onnxruntime", ".h": "onnxruntime", ".so": "onnxruntime _kp",
    ".txt": "toolchain _kp", ".patch": "toolchain",
}
"""Suffix -> the folders with such files; a dot for any folder."""

RUN = {
    "__main__", "cli.__main__", "onnxruntime.__main__", "toolchain.__main__", "toolchain.check",
    "toolchain.bootstrap", "toolchain.hatch_build", "toolchain.hatch_metadata", "toolchain.site",
    "toolchain.vendors", "onnx_backend", "onnxruntime", "onnxruntime.provider", "genai",
    "torch_backend", "torch.directml", "fft", "linalg", "random",
}
"""Modules that are run, or imported by users, PyTorch, provider.c, hatchling, mkdocs, tests."""

WALKED = ("arrays.", "functions.", "operators.", "graph.passes.")
"""Packages that import all of their modules."""


def test_files_are_of_the_kinds_that_their_folders_hold() -> None:
    strange = {str(f) for f in FILES
               if KINDS.get(f.suffix) != "." and f.parts[0] not in KINDS.get(f.suffix, "").split()}
    assert strange == set()


def test_demonstrations_samples_and_tests_are_left_out() -> None:
    kinds = re.compile(r"(^|[/_])(demo|sample|conformance|test|example)s?([/_.]|$)")
    assert [str(f) for f in FILES if kinds.search(str(f))] == []


def _imported(path: Path) -> set[str]:
    """Modules and names of the package that a file imports, with dots."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / path).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {a.name.removeprefix("kompute_dml.") for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = parts[: -node.level] if node.level else ()
            name = (node.module or "").removeprefix("kompute_dml").lstrip(".")
            source = ".".join([*base, *filter(None, [name])])
            found |= {source, *(f"{source}.{a.name}".lstrip(".") for a in node.names)}
    return found


def test_every_module_is_used() -> None:
    modules = {".".join(f.with_suffix("").parts): PACKAGE / f for f in FILES if f.suffix == ".py"}
    used = set(PUBLIC.values()).union(*map(_imported, modules.values()))
    used |= {name.rpartition(".")[0] for name in used}
    unused = {m for m in modules if m.removesuffix(".__init__") not in used | RUN | {"__init__"}
              and not m.startswith(WALKED)}
    assert unused == set()
