"""Compiles `shaders/<family>/*.comp` to SPIR-V and writes a manifest of the variants.

A shader begins with header lines:

    //@ op DML_OPERATOR_X [DML_OPERATOR_Y ...]        the operators it serves, or - for none
    //@ variants T: b8 b16 b32 ; PATH: packed strided  optional: one file per combination,
                                                      compiled with -DT_b8 -DT=b8 ...
                                                      OP: @UNARY stands for the names x of all
                                                      lines UNARY(x, ...) that it includes
    //@ variants TILE: t64(rows=64, k=8) t32(...)     values may have sizes, all the same ones: the
                                                      shader sees -DTILE_rows=64 -DTILE_k=8, the
                                                      manifest has them. A line that begins with
                                                      four blanks after //@ continues the one before
    //@ without b8.strided b16.strided                optional: combinations that are left out
    //@ tail f32                                      optional: variants with this axis value,
                                                      or all (*), also compile with -DTAIL,
                                                      under names that end with .tail
    //@ bfloat16 t64                                  optional: variants with this axis value also
                                                      compile with -DBFLOAT16, under names that
                                                      end with .bfloat16. Elements of matrices are
                                                      BFLOAT16 in them (bfloat16.py)
    //@ unchecked t64 t32                             optional: variants with these axis values,
                                                      or all (*), get no bounds checks of the
                                                      driver's (runtime/traits.py)
    //@ glslang >= 14                                 optional: left out by an older compiler
    //@ target vulkan1.3                              optional; vulkan1.1 without

Only what changed is compiled again.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import glslang
from .bfloat16 import with_bfloat16
from .reflect import reflect
from .system import PACKAGE, Progress, ToolchainError

MANIFEST = "manifest.json"
DEFAULT_TARGET = "vulkan1.1"
# The size that Vulkan guarantees.
MAX_PUSH_WORDS = 32
_BFLOAT16 = "bfloat16"
_OPERATOR = re.compile(r"DML_OPERATOR_[A-Z0-9_]+")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_VALUE = re.compile(r"(@?\w+)(?:\((\w+=\d+(?:, *\w+=\d+)*)\))?")
_SIZE = re.compile(r"(\w+)=(\d+)")
# Without the compiler's summary lines, which name no place.
_MESSAGE = re.compile(r"(ERROR|WARNING): (?!Linking |\d+ compilation )")
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


class ShaderError(ToolchainError):
    """A shader does not compile, or its header is wrong."""


@dataclass(frozen=True)
class Shader:
    name: str
    path: Path
    operators: tuple[str, ...]
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sizes: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """By axis and value."""
    without: tuple[str, ...] = ()
    tails: tuple[str, ...] = ()
    bfloats: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    target: str = DEFAULT_TARGET
    needs_glslang: int = 0

    def variants(self) -> Iterator[tuple[str, list[str]]]:
        """(variant name, compiler definitions) for each combination of axis values."""
        for values in itertools.product(*self.axes.values()):
            if ".".join(values) in self.without:
                continue
            pairs = list(zip(self.axes, values))
            definitions = [d for axis, v in pairs for d in (f"-D{axis}_{v}", f"-D{axis}={v}")]
            definitions += [f"-D{axis}_{name}={size}" for axis, v in pairs
                            for name, size in self.sizes.get(axis, {}).get(v, {}).items()]
            yield ".".join((self.name, *values)), definitions
            if {*values, "*"} & {*self.tails}:
                yield ".".join((self.name, *values, "tail")), [*definitions, "-DTAIL"]
            if {*values} & {*self.bfloats}:
                yield ".".join((self.name, *values, _BFLOAT16)), [*definitions, "-DBFLOAT16"]

    def sizes_of(self, variant: str) -> dict[str, int]:
        """The sizes of a variant's axis values."""
        values = zip(self.axes, variant.split(".")[1:])
        return {name: size for axis, v in values
                for name, size in self.sizes.get(axis, {}).get(v, {}).items()}


@dataclass(frozen=True)
class Report:
    compiled: int
    kept: int
    removed: int
    left_out: dict[str, str]
    compiler: str

    def __str__(self) -> str:
        parts = [f"{self.compiled} compiled", f"{self.kept} up to date"]
        parts += [f"{self.removed} removed"] if self.removed else []
        parts += [f"{name} left out ({why})" for name, why in self.left_out.items()]
        return f"shaders: {', '.join(parts)}; {self.compiler}"


def build(source: Path | None = None, output: Path | None = None) -> Report:
    """Updates `output` (the package's `spirv` folder) from `source` (`shaders`)."""
    source = source or PACKAGE.parent / "shaders"
    output = output or PACKAGE / "spirv"
    if not source.is_dir():
        raise ToolchainError(f"no shaders to compile: {source} is not there")
    compiler = glslang.find()
    shaders = [parse_header(path) for path in sorted(source.rglob("*.comp"))]
    left_out = {
        shader.name: f"needs glslang >= {shader.needs_glslang}, found {compiler.name}"
        for shader in shaders
        if compiler.version[0] < shader.needs_glslang
    }
    shaders = [shader for shader in shaders if shader.name not in left_out]
    before = _read_manifest(output)
    output.mkdir(parents=True, exist_ok=True)

    entries = {s.name: _entry(s, source, compiler, before, output) for s in shaders}
    work = [
        (shader, variant, definitions)
        for shader in shaders
        for variant, definitions in shader.variants()
        if variant not in entries[shader.name]["variants"]
    ]
    kept = sum(len(entry["variants"]) for entry in entries.values())
    manifest = {"compiler": compiler.name, "shaders": entries, "left_out": left_out}
    # If this is interrupted, no manifest may list a new file under old sources.
    _write_manifest(output, manifest)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = []
        progress = Progress()
        for result in pool.map(lambda job: _attempt(compiler, source, output, *job), work):
            results.append(result)
            progress.show(f"{len(results)} of {len(work)} shaders compiled")
        progress.end()
    errors = [result for result in results if isinstance(result, ShaderError)]
    for (shader, variant, _), record in zip(work, results):
        if isinstance(record, dict):
            entries[shader.name]["variants"][variant] = record
    # Compiled variants are recorded even if others fail.
    for shader in shaders:
        done = entries[shader.name]["variants"]
        ordered = {name: done[name] for name, _ in shader.variants() if name in done}
        entries[shader.name]["variants"] = ordered
    removed = _remove_stale(output, entries)
    _write_manifest(output, manifest)
    if errors:
        raise ShaderError("\n".join(map(str, errors)))
    return Report(len(work), kept, removed, left_out, compiler.name)


def parse_header(path: Path) -> Shader:
    """Reads a shader's header lines."""
    entries: dict[str, str] = {}
    lines = 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("//@"):
            if "//@" in line:
                raise ShaderError(f"{path}:{number}: expected //@ at the start of its line")
            continue
        if number != lines + 1:
            raise ShaderError(f"{path}:{number}: expected header lines to be the first lines")
        lines += 1
        if line.startswith("//@    ") and entries:
            entries[[*entries][-1]] += " " + line[3:].strip()
            continue
        key, _, value = line[3:].strip().partition(" ")
        if key not in _KEYS or key in entries:
            problem = "only once" if key in entries else f"to be one of {', '.join(_KEYS)}"
            raise ShaderError(f"{path}:{number}: expected header key {key!r} {problem}")
        entries[key] = value.strip()
    if "op" not in entries:
        raise ShaderError(f"{path}:1: expected the first lines to hold //@ op ...")
    values: dict[str, Any] = {}
    for number, (key, value) in enumerate(entries.items(), 1):
        name, parse = _KEYS[key]
        try:
            values[name] = parse(value)
        except ValueError as error:
            raise ShaderError(f"{path}:{number}: expected {error}, but got {value!r}") from None
    if "axes" in values:
        axes = values["axes"].items()
        values["axes"] = {axis: _expand(path, [*listed]) for axis, listed in axes}
        values["sizes"] = {axis: listed for axis, listed in axes if any(listed.values())}
    shader = Shader(path.stem, path, **values)
    known = {"*", *itertools.chain(*shader.axes.values())}
    for key, listed in (("unchecked", shader.unchecked), (_BFLOAT16, shader.bfloats)):
        for value in listed:
            if value not in known:
                raise ShaderError(f"{path}: expected {key!r} to name axis values, but got {value}")
    for name in shader.without:
        if name not in map(".".join, itertools.product(*shader.axes.values())):
            raise ShaderError(f"{path}: expected 'without' to name combinations, but got {name}")
    return shader


def _expand(path: Path, listed: Sequence[str]) -> tuple[str, ...]:
    """Axis values with each ``@MACRO`` replaced by the first arguments of its uses."""
    names: list[str] = []
    for value in listed:
        macro = value.removeprefix("@")
        if macro == value:
            names.append(value)
            continue
        lines = re.compile(rf"^{macro}\((\w+)", re.MULTILINE)
        for file in _closure(path, _root(path)):
            names += lines.findall(file.read_text(encoding="utf-8"))
    if len(set(names)) != len(names) or not names:
        raise ShaderError(f"{path}: expected {' '.join(listed)} to name variants, each once")
    return tuple(names)


def _root(path: Path) -> Path:
    """The folder with `include`: the family's parent, or the shader's own folder."""
    return next((p for p in path.parents if (p / "include").is_dir()), path.parent)


def _parse_operators(text: str) -> tuple[str, ...]:
    if text == "-":
        return ()
    operators = tuple(text.split())
    if not operators or not all(map(_OPERATOR.fullmatch, operators)):
        raise ValueError("operator names DML_OPERATOR_..., or -")
    return operators


def _parse_axes(text: str) -> dict[str, dict[str, dict[str, int]]]:
    """The sizes of each value of each axis."""
    axes: dict[str, dict[str, dict[str, int]]] = {}
    for part in text.split(";"):
        axis, colon, listed = part.partition(":")
        axis, values = axis.strip(), _VALUE.findall(listed)
        names = [axis, *(value.removeprefix("@") for value, _ in values)]
        unique = axis not in axes and len(set(names)) == len(names)
        whole = not _VALUE.sub("", listed).strip()
        if not colon or not values or not unique or not whole or not all(
                map(_NAME.fullmatch, names)):
            raise ValueError("'AXIS: value value(size=1) ; AXIS: value', no name twice")
        axes[axis] = {value: {name: int(size) for name, size in _SIZE.findall(sizes)}
                      for value, sizes in values}
        if len({(*sizes,) for sizes in axes[axis].values()}) > 1:
            raise ValueError(f"the same sizes for all values of {axis}")
    return axes


def _parse_glslang(text: str) -> int:
    version = re.fullmatch(r">=\s*(\d+)", text)
    if version is None:
        raise ValueError("'>= MAJOR'")
    return int(version[1])


def _parse_target(text: str) -> str:
    if re.fullmatch(r"vulkan1\.\d", text) is None:
        raise ValueError("a target such as vulkan1.1")
    return text


_KEYS = {
    "op": ("operators", _parse_operators),
    "variants": ("axes", _parse_axes),
    "without": ("without", lambda text: tuple(text.split())),
    "tail": ("tails", lambda text: tuple(text.split())),
    "bfloat16": ("bfloats", lambda text: tuple(text.split())),
    "unchecked": ("unchecked", lambda text: tuple(text.split())),
    "glslang": ("needs_glslang", _parse_glslang),
    "target": ("target", _parse_target),
}


def _entry(
    shader: Shader, source: Path, compiler: glslang.Compiler, before: dict[str, Any], output: Path
) -> dict[str, Any]:
    """The shader's manifest entry, with the variants that are up to date."""
    digest = hashlib.sha256(repr((compiler.name, shader.target, _own_code(shader))).encode())
    for path in _closure(shader.path, source):
        digest.update(path.read_bytes())
    entry = {
        "operators": list(shader.operators),
        "axes": {axis: list(values) for axis, values in shader.axes.items()},
        "target": shader.target,
        "source": digest.hexdigest()[:16],
        "variants": {},
    }
    old = before.get(shader.name, {})
    if old.get("source") == entry["source"]:
        entry["variants"] = {
            name: old["variants"][name]
            for name, _ in shader.variants()
            if name in old["variants"] and (output / f"{name}.spv").is_file()
        }
    return entry


def _own_code(shader: Shader) -> str:
    """A hash of the code that compiles a shader and writes the manifest."""
    names = ("spirv.py", "reflect.py", *(["bfloat16.py"] if shader.bfloats else []))
    files = map(Path(__file__).with_name, names)
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _closure(path: Path, source: Path) -> list[Path]:
    """The file and all that it includes, directly or not, in the order of first inclusion."""
    files = [path]
    for file in files:
        for name in _INCLUDE.findall(file.read_text(encoding="utf-8")):
            places = (file.parent / name, source / name, source / "include" / name)
            include = next((place.resolve() for place in places if place.is_file()), None)
            if include is not None and include not in files:
                files.append(include)
    return files


def _attempt(
    compiler: glslang.Compiler,
    source: Path,
    output: Path,
    shader: Shader,
    variant: str,
    definitions: list[str],
) -> dict[str, Any] | ShaderError:
    try:
        return _compile(compiler, source, output, shader, variant, definitions)
    except ShaderError as error:
        return error


def _compile(
    compiler: glslang.Compiler,
    source: Path,
    output: Path,
    shader: Shader,
    variant: str,
    definitions: list[str],
) -> dict[str, Any]:
    """Compiles one variant and returns its manifest record. A warning is an error."""
    with tempfile.TemporaryDirectory() as scratch:
        binary = Path(scratch) / "shader.spv"
        done = subprocess.run(
            [compiler.path, "-V", "--target-env", shader.target, f"-I{source.name}",
             f"-I{source.name}/include", *definitions, "-o", str(binary),
             f"{source.name}/{shader.path.relative_to(source)}"],
            cwd=source.absolute().parent, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        lines = (line.strip() for line in done.stdout.splitlines())
        messages = [line for line in lines if _MESSAGE.match(line)]
        if done.returncode or messages:
            text = "\n".join(messages) or done.stdout.strip() or f"exit code {done.returncode}"
            raise ShaderError(f"{variant}:\n{text}")
        code = binary.read_bytes()
    try:
        code = with_bfloat16(code) if variant.endswith("." + _BFLOAT16) else code
        record = reflect(code)
    except ValueError as error:
        raise ShaderError(f"{variant}:\nERROR: {shader.path}: {error}") from None
    words = max((f["offset"] + f["count"] for f in record["push"].values()), default=0)
    if words > MAX_PUSH_WORDS:
        raise ShaderError(
            f"{variant}:\nERROR: {shader.path}: expected the push block to have at most "
            f"{4 * MAX_PUSH_WORDS} bytes, but it has {4 * words}"
        )
    file = f"{variant}.spv"
    _write(output / file, without_names(code))
    unchecked = bool({*variant.split("."), "*"} & {*shader.unchecked})
    return {"file": file, "unchecked": unchecked, "sizes": shader.sizes_of(variant), **record}


_NAMES = {2, 3, 4, 5, 6, 7, 8, 317, 330}  # OpSource, OpName, OpMemberName, OpLine and their kin


def without_names(code: bytes) -> bytes:
    """SPIR-V without names and lines. The manifest has the names."""
    words = memoryview(code).cast("I")
    kept = [words[:5]]
    at = 5
    while at < len(words):
        length = words[at] >> 16
        if words[at] & 0xFFFF not in _NAMES:
            kept.append(words[at : at + length])
        at += length
    return b"".join(kept)


def _read_manifest(output: Path) -> dict[str, Any]:
    try:
        shaders = json.loads((output / MANIFEST).read_text(encoding="utf-8"))["shaders"]
    except (FileNotFoundError, ValueError, KeyError):
        return {}
    return dict(shaders)


def _write_manifest(output: Path, manifest: dict[str, Any]) -> None:
    _write(output / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def _remove_stale(output: Path, entries: dict[str, Any]) -> int:
    wanted = {record["file"] for entry in entries.values() for record in entry["variants"].values()}
    stale = [path for path in output.glob("*.spv") if path.name not in wanted]
    for path in stale:
        path.unlink()
    return len(stale)


def _write(path: Path, content: bytes) -> None:
    """Writes in one step, because another process may be reading."""
    if path.is_file() and path.read_bytes() == content:
        return
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)
