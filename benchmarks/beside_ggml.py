"""How many cycles our kernels and ggml's shaders take on AMD's and Intel's GPUs, by machine code.

    PYTHONPATH=.:tests python benchmarks/beside_ggml.py LIBRARY [--device navi21]

It needs what `make vendor-compilers` has built, and ``LIBRARY``, the libggml-vulkan*.so of a
package of llama.cpp (PyPI's cyllama-vulkan has one). It compiles both with Mesa's drivers, and
prints lines of the tables in docs/performance/devices.md: the cycles of the busiest unit that a
multiply-add of 64 lanes takes in the hot loop. For AMD this is RADV's own inverse throughput,
without what lies outside of the loop. For Intel, arithmetic takes a cycle for as many bytes as a
unit is wide. Loops inside of the hot loop count as often as they run, and only products count as
multiply-adds. Neither memory nor waves are in it, so it compares code.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import vendor_compilers
from kompute_dml.runtime.adapters import list_devices
from kompute_dml.runtime.shader_library import described
from kompute_dml.toolchain import vendors

GENERATIONS = {"navi21": 10, "navi31": 11, "gfx1201": 12}
WIDTHS = {"tgl": 32, "dg2": 32, "bmg": 64}
"""Bytes that a unit of Intel's GPUs computes in a cycle."""
_WITH_UNITS = ("navi31", "gfx1201")
_BEGIN = "@@@"
"""What parts the code of pipelines in the driver's output."""


# Instructions


class Instruction(NamedTuple):
    """An instruction, or two that are issued together."""

    text: str

    @property
    def operations(self) -> list[str]:
        return [part.split()[0].replace("v_dual_", "v_") for part in self.text.split("::")]

    def products(self, lanes: int) -> int:
        """The multiply-adds of a lane."""
        return sum(next((count for pattern, count in _PRODUCTS if re.fullmatch(pattern, name)), 0)
                   if "wmma" not in name else 16**3 // lanes for name in self.operations)

    def cycles(self, lanes: int, generation: int) -> Iterator[tuple[str, int]]:
        """The units that it keeps busy, and for how many cycles, as RADV has it: 64 lanes take
        two turns, but for operations that RDNA3 and later issue in pairs."""
        name = self.operations[0]
        if "wmma" in name:
            yield "vector", 32
        elif name.startswith("v_"):
            slow = 4 if re.match(r"v_(mul_lo|mul_hi|mad_[ui]64)", name) else 1
            alone = generation < 11 or "dpp" in self.text or not re.fullmatch(_IN_PAIRS, name)
            yield "vector", slow * (2 if lanes == 64 and alone else 1)
            if slow > 1 or re.match(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_", name):
                yield "transcendental", 4 * (lanes // 32)
        elif name.startswith("ds_"):
            yield "shared memory", 1
        elif name.startswith(("buffer_", "global_", "flat_")):
            yield "memory", 1
        elif name.startswith("s_") and not name.startswith(_FREE):
            yield "scalar", 1


_PRODUCTS = (
    (r"v_dot4\S*", 4), (r"v_dot2\S*", 2), (r"v_pk_fma_f16", 2),
    (r"v_(fma|fmac|fmaak|fmamk|mad|mac)_(mix_)?(f32|f16)\S*", 1))
_IN_PAIRS = (
    r"v_(fma|fmac|fmaak|fmamk|mul|add|sub|subrev|max|min|max_num|min_num)_(f32|f16)(_e32|_e64)?"
    r"|v_(mov|cndmask)_b(32|16)(_e32|_e64)?")
_FREE = ("s_wait", "s_delay", "s_barrier", "s_cbranch", "s_branch", "s_nop", "s_clause")


class IntelInstruction(NamedTuple):
    """An instruction of an EU."""

    name: str
    lanes: int
    operands: str

    def products(self, lanes: int) -> float:
        """The multiply-adds, for each lane of the subgroup."""
        written = self.operands.split()[0]
        if self.name.startswith("dpas"):
            depth = 16 if ":hf" in self.operands or ":bf" in self.operands else 32
            return 8 * depth * self.lanes / lanes
        if self.name.startswith("dp4a"):
            return 4 * self.lanes / lanes
        is_product = self.name in ("mad", "mac") and written.endswith((":f", ":hf"))
        return self.lanes / lanes if is_product else 0

    def cycles(self, lanes: int, width: int) -> Iterator[tuple[str, float]]:
        """The units that it keeps busy, and for how many cycles. Functions such as exp take four
        times as long as other arithmetic, and a product of matrices eight cycles."""
        if self.name.startswith("dpas"):
            yield "matrices", 8
        elif self.name.startswith("send"):
            yield "memory", 1
        elif not self.name.startswith(_EU_FREE):
            written = self.operands.split()[0].rpartition(":")[2]
            size = _SIZES.get(written, 4)
            slow = 4 if self.name.startswith("math") else 1
            yield "vector", max(1.0, slow * self.lanes * size / width)


_SIZES = {"b": 1, "ub": 1, "w": 2, "uw": 2, "hf": 2, "bf": 2, "q": 8, "uq": 8, "df": 8}
_EU_FREE = ("sync", "nop", "while", "break", "if", "else", "endif", "cont", "halt", "jmpi")


class Code:
    """The machine code of a pipeline, as RADV_DEBUG=shaders prints it last."""

    lines: list[Instruction] | list[IntelInstruction]

    def __init__(self, text: str) -> None:
        self.lines = []
        labels, ends = {}, {}
        for line in text[text.rfind("\nBB0:"):].splitlines():
            if (label := re.match(r"(BB\d+):", line)) is not None:
                labels[label[1]] = len(self.lines)
                continue
            line = line.split(";")[0].strip()
            if re.match(r"[svbdg]\w*_", line):
                self.lines.append(Instruction(line))
                jump = re.match(r"s_c?branch\w*\s+(BB\d+)", line)
                if jump is not None and jump[1] in labels:
                    ends[labels[jump[1]]] = len(self.lines)
        self.loops = sorted(ends.items())

    def products(self, begin: int, end: int, lanes: int) -> float:
        return sum(line.products(lanes) for line in self.lines[begin:end])

    def busiest(self, lanes: int, generation: int, passes: Sequence[int] = ()) -> float:
        """The cycles of the busiest unit for a multiply-add of 64 lanes. The hot loop is the
        innermost that has at least half of the most; or, where loops in it make ``passes``, in
        their order, the one around them."""
        known = [(b, e, self.products(b, e, lanes)) for b, e in self.loops]
        known = [loop for loop in known if loop[2]]
        most = max(count for _, _, count in known)
        begin, end, _ = known[0] if passes else min(
            (loop for loop in known if 2 * loop[2] >= most), key=lambda loop: loop[1] - loop[0])
        inner = [loop[:2] for loop in known[1:] if begin <= loop[0] and loop[1] <= end]
        busy: dict[str, float] = collections.defaultdict(float)
        products = 0.0
        for at, line in enumerate(self.lines[begin:end], begin):
            times = 1
            for (first, last), count in zip(inner, passes):
                times *= count if first <= at < last else 1
            products += times * line.products(lanes)
            for unit, cycles in line.cycles(lanes, generation):
                busy[unit] += times * cycles
        return max(busy.values()) * (64 / lanes) / products


class IntelCode(Code):
    """The same, as INTEL_DEBUG=cs prints it."""

    def __init__(self, text: str) -> None:
        self.lines = []
        labels, self.loops = {}, []
        for line in text[text.rfind("\nNative code for"):].splitlines():
            if (label := re.match(r"(L\d+):", line)) is not None:
                labels[label[1]] = len(self.lines)
            elif (found := re.match(_EU_LINE, line)) is not None:
                name, lanes, operands = found.groups()
                self.lines.append(IntelInstruction(name, int(lanes), operands))
                if name == "while" and (target := operands.split()[0]) in labels:
                    self.loops.append((labels[target], len(self.lines)))
        self.loops.sort()


_EU_LINE = r"\s*(?:\(W\)\s+)?(?:\([^)]*\)\s+)?([a-z][\w.]*) +\((\d+)\)\s+(\S.*)"


# Shaders


@dataclass(frozen=True)
class Row:
    """A product, our kernel with its constants, and ggml's shader with its own, in their order."""

    title: str
    ours: str
    constants: Mapping[str, int]
    theirs: str
    values: Sequence[int]
    passes: Sequence[int] = ()
    """Of our loops in the hot loop."""
    extra: float = 1.0
    """Our multiply-adds for each of the product."""
    devices: Sequence[str] = tuple(GENERATIONS)


def rows(lanes: int) -> list[Row]:
    """What is compared, with ggml's subgroups of ``lanes``."""
    tile = (128, 128, 128, 16, 64, 64, 2, 4, 4, 1, lanes)  # the large one
    units = (128, 128, 128, 16, 64, 64, 2, 16, 16, 16, 32)
    attention = (128, 8, 64, 128, 128, 0, 8, 1, lanes, 0, 0, 0, 1, 1, 2, 2)
    attention_units = (128, 16, 64, 128, 128, 0, 8, 4, 32, 0, 0, 0, 1, 1, 2, 2)
    half, single = {"TYPE": 34, "EXACT_UNITS": 1}, {"TYPE": 36, "EXACT_UNITS": 1}
    along_k = {"VECTORS": 2, "ENDS_INSIDE": 0, "LOCAL_SIZE": 256}
    blocks = {"BITS": 4, "BLOCK": 32, "A_VECTORS": 1, "B_VECTORS": 1, "HOLDS_FLOATS": 1}
    tokens = {"LOCAL_SIZE": 256, "VECTORS": 1, "STORES_VECTORS": 1, "ALIGNED": 1}
    return [
        Row("float32", "gemm.t128", single | along_k, "matmul_f32_f32_aligned", tile),
        Row("float32, K in parts", "gemm.t128", single | along_k | {"SPLIT": 1},
            "matmul_f32_f32_aligned", tile),
        Row("float16", "gemm.t128", half | along_k, "matmul_f16_aligned", tile),
        Row("float16, matrix units", "gemm_coopmat.t128", half | {"ALIKE": 37},
            "matmul_f16_aligned_cm1", units, devices=_WITH_UNITS),
        Row("int8, packed dot products", "convolution_dots.t128x64", {"PLAIN": 1},
            "matmul_q8_0_q8_1", tile),
        Row("4-bit weights, one row", "gemm_blocked_weights.r1",
            half | blocks | {"LANES": 32, "HELD": 128}, "mul_mat_vec_q4_0_f32_f32", (lanes, 2, 1),
            extra=132 / 128),
        Row("4-bit weights, eight rows", "gemm_blocked_weights.r8",
            half | blocks | {"LOCAL_SIZE": 128, "LANES": 16, "HELD": 16},
            "mul_mat_vec_q4_0_f32_f32", (lanes, 2, 8), extra=1152 / 1024),
        Row("4-bit weights, more than 16 rows, once unpacked", "gemm.t128", half | along_k,
            "matmul_q4_0_f16_aligned", tile),
        Row("float16, one row", "gemm_few_rows.k_contiguous.r1", half, "mul_mat_vec_f16_f32_f32",
            (lanes, 2, 1)),
        Row("attention, 128 elements, prompt", "attention_blocks.b128", half | tokens,
            "flash_attn_f32_f16", attention, passes=(16, 8, 8)),
        Row("the same on matrix units", "attention_coopmat.usual",
            {"LOCAL_SIZE": 128, "SUBGROUPS": 4, "KEYS": 32, "VECTORS": 1, "EXACT_UNITS": 1},
            "flash_attn_f32_f16_cm1", attention_units,
            devices=_WITH_UNITS),
    ]


def intel_rows(name: str) -> list[Row]:
    """What is compared on a GPU of Intel's, with ggml's subgroups of 16. Its tile is the medium
    one, and the large one on matrix units, which it takes on Xe2 alone. Attention is left out: what
    ggml sets there is not known."""
    lanes = 16
    tile = (128, 64, 64, 16, lanes, 32, 2, 4, 2, 1, lanes)
    units = (512, 128, 128, 16, lanes, 32, 2, 8, 16, 16, lanes)
    half, single = {"TYPE": 34, "EXACT_UNITS": 1}, {"TYPE": 36, "EXACT_UNITS": 1}
    along_k = {"VECTORS": 2, "ENDS_INSIDE": 0, "LOCAL_SIZE": 128}
    own = {"bmg": "t64m8n16", "dg2": "t32m8n8"}.get(name)
    return [
        Row("float32", "gemm.t32x64", single | along_k, "matmul_f32_f32_aligned", tile),
        *([Row("float16", "gemm.t32x64", half | along_k, "matmul_f16_aligned", tile)]
          if own is None else
          [Row("float16, matrix units", f"gemm_coopmat.{own}", half | {"ALIKE": 37},
               "matmul_f16_aligned_cm1" if name == "bmg" else "matmul_f16_aligned",
               units if name == "bmg" else tile)]),
        Row("int8, packed dot products", "convolution_dots.t64", {"PLAIN": 1},
            "matmul_q8_0_q8_1", tile),
        Row("float16, one row", "gemm_few_rows.k_contiguous.r1", half, "mul_mat_vec_f16_f32_f32",
            (lanes, 2, 1)),
    ]


def shaders(library: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The SPIR-V that a library has under the names of its symbols."""
    data = library.read_bytes()
    sections = subprocess.run(["readelf", "-S", "-W", library], capture_output=True, text=True,
                              check=True).stdout.splitlines()
    words = next(line.split() for line in sections if " .rodata " in line)
    at = words.index(".rodata")
    moved = int(words[at + 3], 16) - int(words[at + 2], 16)
    listed = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True)
    places = {name: int(place, 16) + moved for place, _, name in (
        line.split() for line in listed.stdout.splitlines() if len(line.split()) == 3)}
    found = {}
    for name in names:
        (size,) = struct.unpack_from("<Q", data, places[f"{name}_len"])
        begin = places[f"{name}_data"]
        found[name] = data[begin:begin + size]
    return found


# In a process of the device


def _compile(path: Path) -> None:
    """Make pipelines of a file. The driver prints their code, and this the size of subgroups."""
    import vulkan as vk

    (adapter,) = list_devices()
    device = vendor_compilers._device(vk)
    for line in path.read_text().splitlines():
        name, constants, spirv, size = json.loads(line)
        if spirv:
            variant = SimpleNamespace(
                spirv=Path(spirv).read_bytes(), bindings=7, push_words=32)
            spec = constants
        else:
            variant = described(name)
            spec = [int(x) for x in variant.pack_spec(constants)]
            size = variant.asked_subgroup(adapter, spec)
        print(f"{_BEGIN} {name}", file=sys.stderr, flush=True)
        figures = vendor_compilers._pipeline(vk, device, variant, spec, size)
        sys.stderr.flush()
        print(int(figures["subgroup"]), flush=True)


# In the process that prints


def compared(name: str, library: Path, folder: Path) -> Iterator[tuple[Row, float, float]]:
    """The rows of a device, with our cycles and ggml's."""
    (device,) = (d for d in vendors.DEVICES if d.name == name)
    of_intel = name in WIDTHS
    generation = WIDTHS[name] if of_intel else GENERATIONS[name]
    lanes = 16 if of_intel else 64 if generation < 11 else 32
    known = intel_rows(name) if of_intel else [r for r in rows(lanes) if name in r.devices]
    jobs = []
    for spirv in shaders(library, sorted({row.theirs for row in known})).items():
        (folder / f"{spirv[0]}.spv").write_bytes(spirv[1])
    for row in known:
        jobs.append((row.ours, dict(row.constants), "", 0))
        size = 32 if row.theirs.endswith("_cm1") and not of_intel else lanes
        jobs.append((row.theirs, list(row.values), str(folder / f"{row.theirs}.spv"), size))
    path = folder / "beside.jobs"
    path.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    run = subprocess.run(
        [*vendors.interpreter(folder), __file__, "compile", str(path)], text=True,
        capture_output=True, env={
            **device.environment(folder), "RADV_DEBUG": "shaders,nocache", "INTEL_DEBUG": "cs",
            "PYTHONPATH": os.pathsep.join(sys.path)})
    if run.returncode:
        raise SystemExit(f"{name}: {run.stderr[-500:]}")
    sizes = map(int, run.stdout.split())
    kind = IntelCode if of_intel else Code
    codes = [(kind(text), size) for text, size in zip(run.stderr.split(_BEGIN)[1:], sizes)]
    for row, (ours, size), (theirs, other) in zip(known, codes[::2], codes[1::2], strict=True):
        yield (row, row.extra * ours.busiest(size, generation, row.passes),
               theirs.busiest(other, generation))


def main() -> None:
    if sys.argv[1:2] == ["compile"]:
        _compile(Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("--device", action="append", choices=[*GENERATIONS, *WIDTHS])
    asked = parser.parse_args()
    for name in asked.device or (*GENERATIONS, *WIDTHS):
        for row, ours, theirs in compared(name, asked.library, vendors.ready()):
            print(f"| {name} | {row.title} | {row.ours} | {row.theirs} | {ours:.3f} "
                  f"| {theirs:.3f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("KOMPUTE_DML_TUNING", "")
    main()
