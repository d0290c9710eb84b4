"""The checks that `make test`, `make validate` and `make lint` run, each with its time.

python -m kompute_dml.toolchain.check test|test-all|validate|lint [pytest arguments ...]
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
from .system import ToolchainError, cache_dir, needed_checkout, say, unavailable

# More workers would only share the drivers' threads.
_WORKERS = str(min(4, os.cpu_count() or 1))


def _without(*names: str) -> list[str]:
    return [f"--ignore=tests/engine/test_{name}.py" for name in names]


_PLANS = (
    "conv1x1_as_gemm", "dequantize_convolution", "epilogue", "fusion", "horizontal_fusion",
    "passes", "plan_switches", "random_expressions", "row_pitch", "scale_splitting", "tuning",
    "view_propagation")
# Tables, arithmetic of sizes and choices, for which devices are made up.
_HOST = ("kernels", "layout", "measurements", "names", "sizes", "traits")
# What makes many pipelines, and depends neither on the driver nor on kp, is left out: plans have
# the same kernels everywhere, which the operators' tests run. So is what computes on the host.
_ENGINE = ["tests/engine", *_without("arrays", "expression", *_PLANS, *_HOST)]
# Processes and the choice of devices, kernels and types are the same wherever memory is.
_WITH_MEMORY = [*_ENGINE, *_without(
    "adapters", "clock", "dtypes", "process", "several_devices", "shader_library")]
# Tests of memory, order and recorded commands, which the validation layer checks.
_VALIDATED = [
    f"tests/engine/test_{name}.py"
    for name in ("engine", "hazards", "heap", "life_cycle", "pipelines", "recorder", "transfer",
                 "uploads")
]
# Tests that depend on kp. What a kernel computes depends on the driver alone.
_ON_KP = [*_ENGINE, "tests/operators/test_operators.py"]
# Tests that depend on the driver. The others read tables and need only one. Several devices have
# a check of their own, with both drivers.
_ON_DRIVER = [
    *_ON_KP, *_without("several_devices"),
    *(f"tests/operators/test_{name}.py" for name in (
        "attention", "convolution", "elementwise", "four_bits", "gather", "matrix_multiply_kernels",
        "movement", "pooling_vectors", "random", "random_descs", "rows", "special_values",
    )),
]
# A sample of PyTorch's tests: what a release may rename, eager operators, graphs of each kind, and
# programs whose tensors share memory.
_TORCH = [*(f"tests/pytorch/test_{name}.py" for name in (
    "versions", "device", "random_programs")), *(
    f"tests/pytorch/test_backend.py::test_{name}" for name in (
        "arguments_that_change", "language_model_trains",
        "results_that_begin_a_larger_value_write_over_nothing", "what_has_no_lowering_runs_alone"))]


@dataclass(frozen=True)
class Configuration:
    """A driver and a state of kp."""

    driver: str
    descriptions: tuple[Path, ...]
    stock: bool

    @property
    def name(self) -> str:
        return f"{self.driver}, {'stock' if self.stock else 'fixed'} kp"

    def environment(self) -> dict[str, str]:
        # Loaders before 1.3.207 use the second name.
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
    """All four configurations, without those that this system lacks parts for."""
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


_NO_TESTS = 5
"""pytest's exit code without tests: a chosen operator is not in every part."""


def _pytest(name: str, arguments: list[str]) -> list[str]:
    """Prints the slowest tests, and records how long each takes.

    A crash of a worker ends the run: xdist may wait forever for the one that takes its place.
    """
    durations = cache_dir("durations") / f"{_file_name(name)}.xml"
    return [sys.executable, "-m", "pytest", "-q", "-n", _WORKERS, "--max-worker-restart=0",
            "--durations=10", "--durations-min=1", f"--junitxml={durations}", *arguments]


def _file_name(name: str) -> str:
    return name.replace(",", "").replace(":", "").replace(" ", "-")


def _run(command: list[str], env: Mapping[str, str] | None = None) -> bool:
    return subprocess.run(command, env=env, cwd=needed_checkout()).returncode == 0


def _run_tests(command: list[str], env: Mapping[str, str]) -> bool:
    return subprocess.run(command, env=env, cwd=needed_checkout()).returncode in (0, _NO_TESTS)


def _validate(configuration: Configuration, arguments: list[str]) -> bool:
    env = configuration.environment()
    if not validation.canary(sys.executable, env, needed_checkout()):
        say(f"{validation.LAYER} reported nothing of a known fault: is it installed?")
        return False
    # For the layer, a dispatch accesses all of its bound buffers.
    env["KOMPUTE_DML_TEST_WHOLE_BUFFERS"] = "1"
    # The layer is slow, so long chains shrink to a twentieth.
    env["KOMPUTE_DML_TEST_SCALE"] = "20"
    command = _pytest(f"validation {configuration.name}", arguments)
    outcome = validation.validated(command, env, needed_checkout())
    log = cache_dir("validation") / f"{_file_name(configuration.name)}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(outcome.log)
    for name, count in outcome.messages.most_common():
        reason = validation.ALLOWED.get(name)
        say(f"{count:6} {name}{f' (allowed: {reason})' if reason else ''}")
    faults = sum(outcome.faults.values())
    say(f"validation messages: {faults} faults, {outcome.messages.total() - faults} allowed")
    if faults:
        say(f"the layer's words: {log}")
    return outcome.returncode in (0, _NO_TESTS) and not faults


Check = tuple[str, Callable[[], bool]]


def lint_checks() -> list[Check]:
    return [
        ("stubs", partial(_run, [sys.executable, "-m", "kompute_dml.toolchain", "stubs"])),
        ("ruff", partial(_run, [sys.executable, "-m", "ruff", "check", "--quiet", "."])),
        ("mypy", partial(_run, [sys.executable, "-m", "mypy"])),
    ]


def _sample(c: Configuration, n: int) -> list[str]:
    """One in ``n`` tests of values. SwiftShader takes seconds to compile a large pipeline."""
    return ["--sample", str(3 * n if c.driver == "SwiftShader" else n)]


def _tests(c: Configuration, arguments: list[str], scale: int = 1) -> Check:
    """The checks of values. ``scale`` divides the lengths of chains."""
    name = f"tests: {c.name}"
    env = c.environment() | {"KOMPUTE_DML_TEST_SCALE": str(scale)}
    return name, partial(_run_tests, _pytest(name, arguments), env)


def suite_checks(arguments: list[str]) -> list[Check]:
    """Everything once, in the first configuration. Other drivers and kps run a sample.

    SwiftShader shows that no optional feature is needed, stock kp that it records the same. What
    neither Vulkan nor kp is part of needs no second run, and both together show nothing new.
    """
    every = configurations()
    checks = [_tests(every[0], arguments)] if every else []
    for c in every[1:]:
        if c.driver != every[0].driver and c.stock != every[0].stock:
            continue
        part = [*_sample(c, 40), *_ON_KP] if c.stock else [*_sample(c, 16), *_ON_DRIVER]
        checks.append(_tests(c, ["-m", "not slow", *part, *arguments], scale=4))
        if c.driver != every[0].driver and not arguments:
            checks.append(_self_test(c))
    return [*checks, *_memory_checks(every, arguments, sampled=True),
            *_several_devices(every, arguments), *_torch_checks(every, _TORCH, arguments)]


def _torch_checks(every: list[Configuration], tests: list[str], arguments: list[str]
                  ) -> list[Check]:
    """Tests of PyTorch, whose packages lie in a folder of their own."""
    folder = cache_dir("torch")
    if not folder.is_dir():
        reason = unavailable("PyTorch")
        why = reason.read_text().splitlines()[0] if reason.is_file() else f"{folder} is missing"
        say(f"PyTorch is not there: its tests are left out ({why})")
        return []
    checks: list[Check] = []
    for c in every[:1]:
        env = c.environment()
        paths = [str(folder), *filter(None, [env.get("PYTHONPATH")])]
        name = f"PyTorch: {c.name}"
        command = _pytest(name, [*tests, *arguments])
        checks.append((name, partial(
            _run_tests, command, env | {"PYTHONPATH": os.pathsep.join(paths)})))
    return checks


def _self_test(c: Configuration) -> Check:
    """An ordinary case of each operator, of which a sample has few."""
    command = [sys.executable, "-m", "kompute_dml", "selftest"]
    return f"self-test: {c.name}", partial(_run, command, c.environment())


def all_checks(arguments: list[str]) -> list[Check]:
    """Everything in every configuration, and more random models, other ones every day: for before a
    release."""
    every = configurations()
    more = ["--wrong-models", "1000", "--random-models", "1000", "--turn", "today"]
    return [*(_tests(c, [*(more if c is every[0] else []), *arguments]) for c in every),
            *_memory_checks(every, arguments), *_several_devices(every, arguments),
            *_torch_checks(every, ["tests/pytorch"], arguments)]


def _memory_checks(
    every: list[Configuration], arguments: list[str], sampled: bool = False
) -> list[Check]:
    """The engine with memory that the host cannot access, as on discrete graphics cards. Values are
    the same there as long as copies are right."""
    checks: list[Check] = []
    for c in every[:1]:
        name = f"engine, memory out of reach: {c.name}"
        env = c.environment() | {"KOMPUTE_DML_TEST_STAGED": "1"}
        sample = _sample(c, 16) if sampled else []
        command = _pytest(name, ["-m", "not slow", *sample, *_WITH_MEMORY, *arguments])
        checks.append((name, partial(_run_tests, command, env)))
    return checks


def _several_devices(every: list[Configuration], arguments: list[str]) -> list[Check]:
    alike = [c for c in every if c.stock == every[0].stock]
    if len(alike) < 2:
        return []
    both = Configuration(
        " and ".join(c.driver for c in alike),
        tuple(d for c in alike for d in c.descriptions), every[0].stock,
    )
    name = f"several devices: {both.name}"
    command = _pytest(name, ["-m", "not slow", "tests/engine/test_several_devices.py", *arguments])
    return [(name, partial(_run_tests, command, both.environment()))]


def validation_checks(arguments: list[str]) -> list[Check]:
    """Tests under the Khronos validation layer, with synchronization validation."""
    return [(f"validation: {c.name}", partial(_validate, c, arguments)) for c in configurations()]


def _sampled_validation(arguments: list[str]) -> list[Check]:
    every = configurations()
    sample = [*_VALIDATED, "tests/operators/test_operators.py", "-m", "not slow and not stress"]
    return [
        (f"validation: {c.name}", partial(_validate, c, [*sample, *_sample(c, 40), *arguments]))
        for c in every if c.stock == every[0].stock
    ]


def main() -> int:
    job, *arguments = sys.argv[1:] or [""]
    jobs: dict[str, Callable[[], list[Check]]] = {
        "lint": lint_checks,
        "validate": lambda: validation_checks(arguments),
        "test": lambda: [
            *lint_checks(), *suite_checks(arguments), *_sampled_validation(arguments)
        ],
        "test-all": lambda: [
            *lint_checks(), *all_checks(arguments), *validation_checks(arguments)
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
    say(f"{len(checks)} checks: {'; '.join(name for name, _ in checks)}")
    whole = time.monotonic()
    for number, (name, check) in enumerate(checks, 1):
        say(f"\n==> {number} of {len(checks)}: {name}")
        start = time.monotonic()
        passed = check()
        say(f"--- {name}: {'passed' if passed else 'FAILED'} in {time.monotonic() - start:.1f} s")
        if not passed:
            failed.append(name)
    say(f"\n{len(checks) - len(failed)} of {len(checks)} checks passed in "
        f"{(time.monotonic() - whole) / 60:.1f} minutes")
    if failed:
        say(f"failed: {'; '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
