"""Records the kernels and the plans of many cases, for several devices, without running them.

    PYTHONPATH=.:tests python tests/record_plans.py record FOLDER
    PYTHONPATH=.:tests python tests/record_plans.py compare BEFORE AFTER

A file for each device has one line for each plan: shader, constants, grid, push words, operands,
words and memory. Operators are those that the benchmark's suites, its tuning and the tests' cases
compile, in their order, with what graphs make of them, and drawn_descs.py's. ``record --quick``
leaves the benchmark and the tests out. ``compare`` lists what differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["KOMPUTE_DML_TUNING"] = ""  # what was measured here counts for nothing

import numpy as np

import kompute_dml as dml
import kompute_dml.graph.compiled
from drawn_descs import drawn
from kompute_dml import tuning
from kompute_dml.bench import cases, tune
from kompute_dml.bench.case import SCALES, Recipe
from kompute_dml.cases import TINY, Scale
from kompute_dml.compiler import CompiledOperator
from kompute_dml.device import _shared
from kompute_dml.functions import call, call_cache
from kompute_dml.lowering.builder import target_of
from kompute_dml.lowering.plan import Plan, Target
from kompute_dml.operators.base import OperatorDesc
from kompute_dml.runtime.adapters import Adapter, CooperativeMatrix
from kompute_dml.runtime.shader_library import SWITCHES, ShaderLibrary

SUITES = ("families", "limits", "movement", "elementwise", "operators")
SELFTEST = "selftest"
"""A name among SUITES for what `kompute-dml selftest` computes."""

_SUBGROUPS = frozenset(
    {"subgroupArithmetic", "subgroupShuffle", "subgroupSizeControl", "computeFullSubgroups",
     "vulkanMemoryModel", "vulkanMemoryModelDeviceScope", "timelineSemaphore"})
_EVERY = _SUBGROUPS | {f for features in SWITCHES.values() for f in features}


def _adapter(name: str, driver: str, version: str, kind: str, **more: Any) -> Adapter:
    known: dict[str, Any] = dict(
        max_allocation=1 << 31, max_storage_buffer_range=(1 << 32) - 1, max_storage_buffers=1 << 20,
        max_workgroup_invocations=1024, max_workgroup_size=(1024, 1024, 64),
        max_workgroup_count=((1 << 31) - 1, 65535, 65535), max_shared_memory=48 << 10,
        subgroup_size=32, device_memory=1 << 37, max_push_constants=256, features=_EVERY)
    return Adapter(
        index=0, name=name, type=kind, driver=driver, driver_version=version,
        vulkan_version=(1, 3, 0), uuid="", storage_buffer_alignment=16, timestamp_period=1.0,
        **known | more)


_UNITS = tuple(
    CooperativeMatrix(16, n, depth, of, of, total, total, "subgroup")
    for depth, of, total, columns in (
        (16, "f16", "f32", (8, 16)), (16, "f16", "f16", (8, 16)), (32, "i8", "i32", (8, 16)),
        (32, "u8", "u32", (8, 16))) for n in columns)
ADAPTERS = {
    "h200": _adapter("NVIDIA H200", "NVIDIA", "580.159.04", "discrete", cores=132,
                     cooperative_matrices=_UNITS),
    "no_matrix_units": _adapter(
        "AMD Radeon RX 6800", "radv", "Mesa 25.2.0", "discrete", cores=60, subgroup_size=64,
        max_shared_memory=64 << 10, features=_EVERY - {"cooperativeMatrix"}),
    "lavapipe": _adapter(
        "llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe", "Mesa 22.3.6 (LLVM 15.0.6)", "cpu",
        subgroup_size=8, max_shared_memory=32 << 10, max_storage_buffer_range=1 << 27,
        max_storage_buffers=32, features=_EVERY - {"cooperativeMatrix"}),
    "swiftshader": _adapter(
        "SwiftShader Device (Subzero)", "SwiftShader driver", "5.0.0", "cpu", subgroup_size=4,
        max_shared_memory=32 << 10, max_storage_buffer_range=1 << 30, max_storage_buffers=30,
        max_workgroup_invocations=256, features=_SUBGROUPS | {"shaderIntegerDotProduct"}),
}


def targets() -> dict[str, Target]:
    """What lowerings see of each device."""
    found = {name: target_of(ShaderLibrary(a.features, a.max_storage_buffers), a)
             for name, a in ADAPTERS.items()}
    measured = replace(
        found["h200"].traits, exact_units=True, fragments_alike=True)
    return {**found, "h200": replace(found["h200"], traits=measured)}


# Plans as text


def _text(plan: Plan) -> dict[str, Any]:
    def step(d: Any) -> dict[str, Any]:
        v = d.variant
        return {"shader": v.name, "groups": d.groups, "spec": _named(v.spec_ids, d.spec),
                "push": v.pack_push(d.push).tolist(), "operands": [list(o) for o in d.operands],
                **({"unless_same": d.unless_same} if d.unless_same else {})}

    return {"once": [step(d) for d in plan.initialize], "steps": [step(d) for d in plan.execute],
            "memory": [plan.temporary_bytes, plan.persistent_bytes, plan.zeroed_bytes],
            "repacked": sorted(plan.repacked),
            "words": [w & 0xFFFFFFFF for w in plan.params]}


def _named(known: Mapping[str, tuple[int, int]], spec: Mapping[str, int]) -> dict[str, int]:
    """All constants, also those that have the shader's default."""
    return {name: int(spec.get(name, default)) for name, (_, default) in sorted(known.items())}


def _plan(desc: OperatorDesc, target: Target) -> dict[str, Any]:
    try:
        with tuning.trial({}):
            return _text(desc.operator.lower(desc, target))
    except dml.DmlError as error:
        return {"refused": type(error).__name__}


# Cases


class _Memory:
    """An allocation that nothing is behind."""

    def __init__(self, nbytes: int) -> None:
        self.block, self.offset, self.nbytes = object(), 0, nbytes

    def free(self) -> None:
        self.block = None


def _stub(target: Target, adapter: Adapter) -> dml.Device:
    """A device that plans for a target, and neither allocates nor runs anything."""
    device: Any = dml.Device()
    device.adapter, device.target = adapter, target
    device.allocate = lambda nbytes, uploaded=False: _Memory(nbytes)
    device.write = lambda *_: None
    device.read = lambda _, offset, nbytes, out=None: np.zeros(nbytes, np.uint8)
    device._record = lambda *_: None
    device.runtime.allocate = lambda nbytes, uploaded=False: _Memory(nbytes)
    device.runtime.windows.upload = device.runtime.windows.download = _nothing
    device.runtime.pipelines.begin = _nothing
    _shared[None] = device  # for calls without tensors
    return device


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _recipes() -> Iterator[tuple[str, Recipe, Scale]]:
    for suite in SUITES:
        is_small = suite == SELFTEST
        for recipe in cases.RECIPES if is_small else cases.SUITES[suite]:
            yield suite, recipe, TINY if is_small else SCALES["large"]
    for recipe in tune.recipes():
        yield "tune", recipe, SCALES["large"]


def descs(target: Target, adapter: Adapter) -> Iterator[tuple[str, OperatorDesc]]:
    """The name of each case, with each description that it compiles."""
    compiled: list[OperatorDesc] = []
    real = CompiledOperator.__init__

    def noting(self: Any, operator: Any, *rest: Any, **more: Any) -> None:
        compiled.append(operator.desc)
        real(self, operator, *rest, **more)

    CompiledOperator.__init__ = noting  # type: ignore[method-assign]
    call.execute = call_cache.execute = _nothing  # type: ignore[assignment]
    device = _stub(target, adapter)
    seen = set()
    for suite, recipe, scale in _recipes():
        if (recipe, scale) in seen:
            continue
        seen.add((recipe, scale))
        device.compiled.clear()
        compiled.clear()
        with tuning.trial({}):
            for case in recipe.make(device, scale):
                if case.on_host:  # it takes real memory
                    continue
                case.dispatch()
                for desc in compiled:
                    yield f"{suite}: {case.operator} {case.types} {case.sizes}", desc
                compiled.clear()
    CompiledOperator.__init__ = real  # type: ignore[method-assign]
    yield from _of_tests()


def _of_tests() -> Iterator[tuple[str, OperatorDesc]]:
    """The cases of the tests: small tensors, in all layouts and types."""
    import cases as tested
    from harness import runs

    seen = set()
    for case in tested.CASES:
        for run in runs(case):
            if run.level != "descriptor" or run.in_place or run.disabled:
                continue
            key = (id(run.case), tuple(run.types.values()), tuple(map(str, run.layouts.values())))
            if key not in seen:
                seen.add(key)
                yield f"tests: {run}", run.description()


def record(folder: Path, quick: bool) -> None:
    """Write a file for each device."""
    folder.mkdir(parents=True, exist_ok=True)
    of = targets()
    files = {name: (folder / f"{name}.jsonl").open("w") for name in of}
    counts: dict[str, int] = {}
    known = () if quick else descs(of["h200"], ADAPTERS["h200"])
    for name, desc in itertools.chain(((f"drawn: {n}", d) for n, d in drawn()), known):
        what = f"{name} | {desc.operator.name.removeprefix('DML_OPERATOR_')}"
        counts[what] = counts.get(what, 0) + 1
        what = f"{what} {counts[what]}"
        for device, target in of.items():
            files[device].write(json.dumps([what, _plan(desc, target)]) + "\n")
    for file in files.values():
        file.close()


# Comparing


def _load(path: Path) -> dict[str, Any]:
    return dict(map(json.loads, path.read_text().splitlines()))


def _shaders(plan: Mapping[str, Any]) -> str:
    return plan.get("refused") or " + ".join(
        f"{s['shader']}[{s['groups']}]" for s in (*plan["once"], *plan["steps"]))


def _difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    if (old := _shaders(a)) != (new := _shaders(b)):
        return f"{old} -> {new}"
    for field in ("memory", "repacked", "words"):
        if a[field] != b[field]:
            return f"{old}: {field} {a[field]} -> {b[field]}"
    for one, other in zip((*a["once"], *a["steps"]), (*b["once"], *b["steps"])):
        for field in one:
            if one[field] != other.get(field):
                return f"{one['shader']}: {field} {one[field]} -> {other.get(field)}"
    return "the order"


def compare(before: Path, after: Path, most: int) -> int:
    """Print what differs. Returns how much does."""
    total = 0
    for path in sorted(before.glob("*.jsonl")):
        old, new = _load(path), _load(after / path.name)
        lines = [f"  {name}: only before" for name in old.keys() - new.keys()]
        lines += [f"  {name}: only after" for name in new.keys() - old.keys()]
        lines += [f"  {name}: {_difference(old[name], new[name])}"
                  for name in old if name in new and old[name] != new[name]]
        print("\n".join([f"{path.stem}: {len(new)} plans, {len(lines)} differ", *lines[:most]]))
        total += len(lines)
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    of = commands.add_parser("record")
    of.add_argument("folder", type=Path)
    of.add_argument("--quick", action="store_true")
    of = commands.add_parser("compare")
    of.add_argument("before", type=Path)
    of.add_argument("after", type=Path)
    of.add_argument("--most", type=int, default=20)
    options = parser.parse_args(arguments)
    if options.command == "record":
        record(options.folder, options.quick)
        return 0
    return int(compare(options.before, options.after, options.most) > 0)


if __name__ == "__main__":
    raise SystemExit(main())
