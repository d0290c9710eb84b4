"""What modules import: layers as docs/architecture.md draws them, no circles, nothing inside of
functions."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

_PACKAGE = Path(__file__).parents[2] / "kompute_dml"
_PAGE = _PACKAGE.parent / "docs" / "architecture.md"
_COMMANDS = ("cli/", "toolchain/__main__.py", "toolchain/hatch_build.py")
"""What imports only what one command needs."""
_OPTIONAL = {
    "PIL", "cffi", "flatbuffers", "kp", "mkdocs", "ml_dtypes", "onnx", "onnxruntime",
    "onnxruntime_genai", "torch", "torchvision", "transformers", "vulkan",
}
"""Packages that may be missing, or whose driver or build may be."""


class _Import(NamedTuple):
    line: int
    target: str
    """A module, or a name in a module."""
    inside: bool
    """Whether it stands inside of a function."""


def _imports(path: Path) -> Iterator[_Import]:
    """What runs: not what only type checkers read."""
    package = ["kompute_dml", *path.relative_to(_PACKAGE).parent.parts]

    def walk(node: ast.AST, inside: bool) -> Iterator[_Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (_Import(child.lineno, a.name, inside) for a in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = package[:len(package) - child.level + 1] if child.level else []
                module = ".".join([*base, *([child.module] if child.module else [])])
                yield from (_Import(child.lineno, f"{module}.{a.name}", inside)
                            for a in child.names)
            elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
                yield from walk(child, inside or isinstance(
                    child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    return walk(ast.parse(path.read_text("utf-8")), False)


def _modules() -> dict[str, Path]:
    """Files of the package by name."""
    return {".".join(["kompute_dml", *p.relative_to(_PACKAGE).with_suffix("").parts]).removesuffix(
        ".__init__"): p for p in _PACKAGE.rglob("*.py")}


@functools.cache
def _edges() -> dict[str, set[str]]:
    """What each module imports of the package."""
    modules = _modules()

    def module_of(target: str) -> str:
        while target and target not in modules:
            target = target.rpartition(".")[0]
        return target

    return {name: {m for i in _imports(path) if (m := module_of(i.target)) and m != name}
            for name, path in modules.items()}


def _layers() -> list[tuple[int, str]]:
    """The beginnings of paths with the number of their row, the longest first."""
    rows = re.findall(r"^\| (`(?!shaders).*?) \|", _PAGE.read_text("utf-8"), re.MULTILINE)
    paths = [(number, name.removeprefix("kompute_dml/"))
             for number, row in enumerate(rows) for name in re.findall("`(.+?)`", row)]
    return sorted(paths, key=lambda row: -len(row[1]))


def test_each_module_imports_its_own_layer_and_lower_ones() -> None:
    layers, modules, wrong = _layers(), _modules(), []

    def layer(name: str) -> int:
        path = modules[name].relative_to(_PACKAGE).as_posix()
        rows = [number for number, begin in layers if path.startswith(begin)]
        assert rows, f"docs/architecture.md has no row for kompute_dml/{path}"
        return rows[0]

    for name, targets in _edges().items():
        wrong += [f"{name} imports {t}" for t in sorted(targets) if layer(t) > layer(name)]
    assert wrong == []
    assert len(layers) > 30 and layer("kompute_dml.errors") < layer("kompute_dml.device")


def test_no_circles() -> None:
    assert list(TopologicalSorter(_edges()).static_order())


def test_nothing_is_imported_inside_of_functions() -> None:
    wrong = []
    for path in _modules().values():
        if path.relative_to(_PACKAGE).as_posix().startswith(_COMMANDS):
            continue
        wrong += [f"{path}:{i.line} imports {i.target}" for i in _imports(path)
                  if i.inside and i.target.split(".")[0] not in _OPTIONAL]
    assert wrong == []
    assert not _OPTIONAL & sys.stdlib_module_names


_PUBLIC = {"_replace", "_asdict", "_exit"}
_PYTORCHS = {
    "_acc", "_apply", "_autograd", "_backward_hooks", "_boxed_call", "_cdata",
    "_dispatch_has_kernel", "_dispatch_has_kernel_for_dispatch_key", "_dynamo",
    "_engine_run_backward", "_foreach_copy_", "_from_dlpack", "_handle", "_int_mm", "_internal",
    "_linalg_check_errors", "_linalg_solve_ex", "_math_attention_inner", "_maybe_max_seqlen",
    "_maybe_min_seqlen", "_op_dk", "_ops", "_pin_memory", "_post_accumulate_grad_hooks",
    "_ragged_idx", "_schema", "_set_from_file", "_side_effectful_functions", "_storage_Use_Count",
    "_swap_tensor_impl", "_tensor_str", "_to_copy", "_validate_device", "_version", "_write_file",
}
_ONNX_RUNTIMES = {"_create_inference_session", "_sess", "_sess_options", "_sess_options_initial"}


def _private(path: Path) -> Iterator[str]:
    """Fields that begin with _ of objects of other files. Those that are public in spite of it are
    left out, and those of PyTorch and ONNX Runtime that have no other name."""
    tree = ast.parse(path.read_text("utf-8"))
    own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
           and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")}
    own |= {target.id for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)
            and isinstance(target := node.target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr) and (
                node.attr not in own | _PUBLIC | _PYTORCHS | _ONNX_RUNTIMES):
            yield f"{path}:{node.lineno} uses {ast.unparse(node)}"


def test_no_file_uses_private_fields_of_another() -> None:
    assert [use for path in _modules().values() for use in _private(path)] == []


def test_few_parameters_are_any() -> None:
    """Below the function level, where a type can be named. This number only falls."""
    parameters = [
        (path, parameter.arg) for name in ("lowering", "operators", "graph")
        for path in (_PACKAGE / name).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
        for parameter in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if parameter.annotation is not None and ast.unparse(parameter.annotation) == "Any"]
    assert len(parameters) <= 11, parameters


def test_the_names_of_classes_are_unique() -> None:
    """But for those of a module's own, which begin with _."""
    classes = Counter(node.name for path in _modules().values()
                      for node in ast.walk(ast.parse(path.read_text("utf-8")))
                      if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    assert {name for name, count in classes.items() if count > 1} == set()


def test_names_of_classes_are_unique() -> None:
    """So a name says which class is meant, in a trace, a search and a talk."""
    names = Counter(node.name for path in _modules().values()
                    for node in ast.walk(ast.parse(path.read_text("utf-8")))
                    if isinstance(node, ast.ClassDef))
    assert {name: n for name, n in names.items() if n > 1} == {}
