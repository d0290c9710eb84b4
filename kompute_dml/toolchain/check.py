"""The checks that `make test`, `make validate` and `make lint` run, each with its time.

python -m kompute_dml.toolchain.check test|validate|lint [pytest arguments ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from . import drivers, validation
from .system import ToolchainError, cache_dir, checkout, say

# More would only share the drivers' own threads.
_WORKERS = str(min(4, os.cpu_count() or 1))

# The tests of memory, of order and of what is recorded; those of one operator are the matrix.
_ENGINE = [
    f"tests/test_{name}.py"
    for name in (
        "engine", "errors", "heap", "life_cycle", "process", "recorder", "stress", "tensor",
        "threads", "transfer",
    )
]  # fmt: skip


@dataclass(frozen=True)
class Configuration:
    """What Vulkan lists, and a state of kp."""

    driver: str
    descriptions: tuple[Path, ...]
    stock: bool

    @property
    def name(self) -> str:
        return f"{self.driver}, {'stock' if self.stock else 'fixed'} kp"

    def environment(self) -> dict[str, str]:
        # The second name is what loaders before 1.3.207 know.
        variables = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
        env = {
            name: value
            for name, value in os.environ.items()
            if name not in {"KOMPUTE_DML_DEVICE", "KOMPUTE_DML_KP", "PYTHONPATH"}
        }
        env.update(dict.fromkeys(variables, os.pathsep.join(map(str, self.descriptions))))
        if self.stock:
            env["KOMPUTE_DML_KP"] = "stock"
            env["PYTHONPATH"] = str(cache_dir("kp-stock") / "site")
        return env


def configurations() -> list[Configuration]:
    """All four, less those whose parts this system does not offer."""
    known = {"lavapipe": drivers.lavapipe(), "SwiftShader": drivers.swiftshader()}
    for name, description in known.items():
        if description is None:
            say(f"{name} is not there: its tests are left out")
    # With KOMPUTE_DML_KP=stock, the environment has no other.
    kinds = (True,) if os.environ.get("KOMPUTE_DML_KP") == "stock" else (False, True)
    return [
        Configuration(name, (description,), stock)
        for stock in kinds
        for name, description in known.items()
        if description is not None
    ]


def _pytest(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "pytest", "-q", "-n", _WORKERS, *arguments]


def _run(command: list[str], env: Mapping[str, str] | None = None) -> bool:
    return subprocess.run(command, env=env, cwd=_root()).returncode == 0


def _root() -> Path:
    root = checkout()
    if root is None:
        raise ToolchainError("the checks run in a source checkout only")
    return root


def _validate(configuration: Configuration, arguments: list[str]) -> bool:
    env = configuration.environment()
    if not validation.canary(sys.executable, env, _root()):
        say(f"{validation.LAYER} reported nothing of a known fault: is it installed?")
        return False
    # The layer takes a dispatch to touch all of a buffer bound to it.
    env["KOMPUTE_DML_TEST_WHOLE_BUFFERS"] = "1"
    # It makes everything slow: the long chains shrink to a twentieth.
    env["KOMPUTE_DML_TEST_SCALE"] = "20"
    outcome = validation.validated(_pytest(arguments), env, _root())
    log = cache_dir("validation") / f"{configuration.name.replace(', ', '-').replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(outcome.log)
    for name, count in outcome.messages.most_common():
        reason = validation.ALLOWED.get(name)
        say(f"{count:6} {name}{f' (allowed: {reason})' if reason else ''}")
    faults = sum(outcome.faults.values())
    say(f"validation messages: {faults} faults, {outcome.messages.total() - faults} allowed")
    if faults:
        say(f"the layer's words: {log}")
    return outcome.returncode == 0 and not faults


Check = tuple[str, Callable[[], bool]]


def lint_checks() -> list[Check]:
    return [
        ("stubs", partial(_run, [sys.executable, "-m", "kompute_dml.toolchain", "stubs"])),
        ("ruff", partial(_run, [sys.executable, "-m", "ruff", "check", "--quiet", "."])),
        ("mypy", partial(_run, [sys.executable, "-m", "mypy"])),
    ]


def suite_checks(arguments: list[str]) -> list[Check]:
    """The suite everywhere, but twice nowhere.

    Slow tests run in the first configuration. SwiftShader runs the same shaders with either kp, and
    lavapipe shows that stock kp records them right: of that pair a twelfth of the tests of values
    will do.
    """
    every = configurations()
    checks = []
    for c in every:
        less = [] if c is every[0] else ["-m", "not slow"]
        if c.stock and not every[0].stock and c.driver == "SwiftShader":
            less += ["--sample", "12"]
        checks.append((f"tests: {c.name}", _pytest([*less, *arguments]), c.environment()))
    if every:
        # Discrete graphics cards have memory that the host does not reach.
        env = every[0].environment() | {"KOMPUTE_DML_TEST_STAGED": "1"}
        name = f"engine, memory out of reach: {every[0].name}"
        checks.append((name, _pytest([*_ENGINE, *arguments]), env))
    alike = [c for c in every if c.stock == every[0].stock]
    if len(alike) > 1:
        both = Configuration(
            " and ".join(c.driver for c in alike),
            tuple(d for c in alike for d in c.descriptions), every[0].stock,
        )
        command = _pytest(["-m", "not slow", "tests/test_several_devices.py", *arguments])
        checks.append((f"several devices: {both.name}", command, both.environment()))
    return [(name, partial(_run, command, env)) for name, command, env in checks]


def validation_checks(arguments: list[str]) -> list[Check]:
    return [
        (f"validation: {c.name}", partial(_validate, c, arguments)) for c in configurations()
    ]


def main() -> int:
    job, *arguments = sys.argv[1:] or [""]
    jobs: dict[str, Callable[[], list[Check]]] = {
        "lint": lint_checks,
        "validate": lambda: validation_checks(arguments),
        "test": lambda: [
            *lint_checks(),
            *suite_checks(arguments),
            # A sample: `make validate` runs the whole suite under the layer.
            *validation_checks([
                *_ENGINE, "tests/test_operators.py", "--sample", "10", *arguments
            ]),
        ],
    }
    if job not in jobs:
        print(f"usage: python -m kompute_dml.toolchain.check {'|'.join(jobs)}", file=sys.stderr)
        return 2
    try:
        checks = jobs[job]()
    except ToolchainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    failed = []
    for name, check in checks:
        say(f"\n==> {name}")
        start = time.monotonic()
        passed = check()
        say(f"--- {name}: {'passed' if passed else 'FAILED'} in {time.monotonic() - start:.1f} s")
        if not passed:
            failed.append(name)
    say(f"\n{len(checks) - len(failed)} of {len(checks)} checks passed")
    if failed:
        say(f"failed: {'; '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
