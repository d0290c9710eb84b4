"""Which shaders Metal takes: SPIRV-Cross translates them, as MoltenVK does.

    PYTHONPATH=.:tests python tests/metal.py

Shaders whose features Metal has must be translated, with at most 31 buffers. Those that need more
are listed by what they need: lowerings take others where it lacks.
"""

from __future__ import annotations

import collections
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kompute_dml.runtime.shader_library import manifest, required_features
from kompute_dml.toolchain import debian
from kompute_dml.toolchain.system import ToolchainError, cache_dir

SPIRV = Path(__file__).parents[1] / "kompute_dml" / "spirv"
LANGUAGE = "20300"
"""Metal 2.3, which all GPUs of Apple's have."""
MAX_BUFFERS, MAX_SHARED = 31, 32 << 10
LACKING = frozenset({
    "shaderFloat64", "shaderBufferInt64Atomics", "cooperativeMatrix", "vulkanMemoryModel",
    "vulkanMemoryModelDeviceScope", "shaderIntegerDotProduct"})
"""Features that MoltenVK does not have, or whose instructions SPIRV-Cross does not know."""


def program() -> str:
    """SPIRV-Cross: the system's, or Debian's, unpacked privately. Raises ToolchainError."""
    found = shutil.which("spirv-cross")
    folder = cache_dir("spirv-cross")
    if found is None and not (folder / "usr/bin/spirv-cross").is_file():
        debian.unpack(["spirv-cross"], [debian.codename()], folder)
    return found or str(folder / "usr/bin/spirv-cross")


def problem(spirv_cross: str, name: str, entry: dict) -> str:
    """Why Metal cannot take a shader variant. "" if it can."""
    done = subprocess.run(
        [spirv_cross, "--msl", "--msl-version", LANGUAGE, str(SPIRV / entry["file"])],
        capture_output=True, text=True)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no reason"])[-1]
    if entry["bindings"] + 1 > MAX_BUFFERS:  # push constants are a buffer
        return f"{entry['bindings']} storage buffers"
    return ""


def sorted_out(spirv_cross: str) -> tuple[dict[str, str], dict[str, list[str]], int]:
    """The variants that fail although Metal has what they need, with the reasons; those that need
    what it lacks, by features; and the number of the others."""
    wanted, others = {}, collections.defaultdict(list)
    for entry in manifest()["shaders"].values():
        for name, variant in entry["variants"].items():
            features = required_features(variant["capabilities"])
            lacking = sorted(LACKING if features is None else features & LACKING)
            if variant["shared_bytes"] > MAX_SHARED:
                lacking.append(f"more than {MAX_SHARED >> 10} KiB of shared memory")
            if lacking:
                others[", ".join(lacking)].append(name)
            else:
                wanted[name] = variant
    with ThreadPoolExecutor(2) as pool:
        reasons = pool.map(lambda n: problem(spirv_cross, n, wanted[n]), wanted)
        failed = {name: why for name, why in zip(wanted, reasons) if why}
    return failed, dict(others), len(wanted) - len(failed)


def main() -> int:
    """Print what Metal takes. Returns 1 if it takes less than it should."""
    try:
        found = program()
    except ToolchainError as error:
        print(f"Metal is left out: {str(error).splitlines()[-1]}")
        return 0
    failed, others, passed = sorted_out(found)
    print(f"Metal: {passed} variants pass, {len(failed)} do not")
    for name, why in failed.items():
        print(f"  {name}: {why}")
    for features, names in others.items():
        print(f"  without {features}: {len(names)} variants")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
