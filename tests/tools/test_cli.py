"""The command line: output, exit codes, and errors in one line."""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import kompute_dml as dml
from kompute_dml import __main__ as entry
from kompute_dml import spec
from kompute_dml.bench import cases
from kompute_dml.bench.case import Case, Recipe
from kompute_dml.cli import cli, progress
from kompute_dml.cli.devices import show
from kompute_dml.files import replaced
from kompute_dml.operators.base import definitions

MODELS = Path(__file__).parents[1] / "models"


def call(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(a) for a in arguments])


def succeed(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def fail(*arguments: object) -> str:
    """The only line on stderr of a call that ends with exit code 1."""
    result = call(*arguments)
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("module", ["kompute_dml", "kompute_dml.cli"])
def test_module_and_quick_help(module):
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", module, "--help"],
        capture_output=True, text=True, check=True,
    )
    assert "selftest" in done.stdout
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert not imported & {"numpy", "kp", "vulkan", "matplotlib", "onnxruntime"}


@pytest.mark.parametrize("command", cli.commands)
def test_every_command_has_help(command):
    assert "Usage: " in succeed(command, "--help")


@pytest.mark.parametrize("command", ["bench", "run"])
def test_clocks_are_explained(command):
    text = succeed(command, "--help")
    assert "the device's own timestamps" in text
    assert "the host's clock" in text


def test_devices():
    adapters = dml.list_devices()
    text = succeed("devices")
    assert all(f"{a.index}: {a.name}" in text for a in adapters)
    records = json.loads(succeed("devices", "--json"))
    assert [r["name"] for r in records] == [a.name for a in adapters]
    assert set(records[0]["features"]) == adapters[0].features


def test_no_driver_is_one_line(tmp_path):
    environment = {**os.environ, "VK_DRIVER_FILES": str(tmp_path / "none.json"),
                   "VK_ICD_FILENAMES": str(tmp_path / "none.json")}
    done = subprocess.run(
        [sys.executable, "-m", "kompute_dml", "devices"],
        capture_output=True, text=True, env=environment,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "mesa-vulkan-drivers" in line


def test_ops():
    text = succeed("ops")
    assert all(name in text for name in definitions())
    assert f"{len(definitions()) - len(spec.extension_names())} of DirectML's 177 operators" in text
    records = {r["operator"]: r for r in json.loads(succeed("ops", "--json"))}
    assert records.keys() == definitions().keys()
    identity = records["DML_OPERATOR_ACTIVATION_IDENTITY"]
    assert identity["support"][0]["tensors"]["InputTensor"]["dimension_counts"] == [1, 8]
    assert all(any(r["variants"].values()) for r in records.values())
    # Types and dimensions of the newest level.
    name = "DML_OPERATOR_ELEMENT_WISE_ADD"
    assert re.search(f"{name} +add +1_0 +1 to 8 +f32 f16 u32 .* i64 +elementwise_float ", text)
    # The shaders by name, as README.md promises, and the number of variants of each.
    lines = {line.split()[0]: line for line in text.splitlines()}
    for operator, record in records.items():
        assert record["function"] == definitions()[operator].function_name
        for shader, variants in record["variants"].items():
            assert f" {shader} {len(variants)}" in lines[operator]


def test_what_is_no_model_is_one_line(tmp_path):
    pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
    (tmp_path / "model.onnx").write_text("{}")
    assert "model.onnx" in fail("explain", tmp_path / "model.onnx")


def test_missing_ops():
    missing = json.loads(succeed("ops", "--missing", "--json"))
    assert set(missing) | definitions().keys() == {
        *spec.operator_names(), *spec.extension_names()}
    *listed, last = succeed("ops", "--missing").splitlines()
    assert len(listed) == len(missing)
    known = len(spec.operator_names())
    assert last == f"{len(missing)} of DirectML's {known} operators are not here"


@pytest.mark.slow
def test_selftest_passes_on_the_default_device():
    text = succeed("selftest", "-a", dml.default_device().adapter.index)
    assert "PASS" in text and "FAIL" not in text
    count = text.count("PASS")
    assert text.splitlines()[-1] == f"{count} of {count} pass"


def test_selftest_reports_a_wrong_value(monkeypatch):
    def make(device, scale):
        yield Case("DML_OPERATOR_GEMM", "f32", "[1]", lambda: None, lambda _: "off by 1", 4)

    def broken(device, scale):
        raise dml.OutOfMemoryError("too big")

    monkeypatch.setattr(cases, "RECIPES", (
        Recipe("DML_OPERATOR_GEMM", "f32", make),
        Recipe("DML_OPERATOR_JOIN", "f32", broken),
    ))
    result = call("selftest", "-a", dml.default_device().adapter.index)
    assert result.exit_code == 1
    assert "f32 [1]: off by 1" in result.stdout
    assert "OutOfMemoryError: too big" in result.stdout
    assert "FAIL  DIAGONAL_MATRIX: no case computes it" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("0 of ")


def test_selftest_reports_a_device_that_does_not_start(monkeypatch):
    def refuse(adapter):
        raise dml.DeviceLostError("gone")

    index = dml.default_device().adapter.index
    monkeypatch.setattr(dml, "Device", refuse)
    result = call("selftest", "-a", index)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[2:] == [
        "   FAIL  create the device: DeviceLostError: gone", "0 of 1 pass"]


def test_sizes_have_binary_units(capsys):
    adapter = dataclasses.replace(
        dml.list_devices()[0], device_memory=3 << 30, max_allocation=5 << 20,
        max_shared_memory=48 << 10, max_push_constants=256)
    show((adapter,))
    text = capsys.readouterr().out
    for words in ("3 GiB, at most 5 MiB at once", "48 KiB shared", "256 B"):
        assert words in text


def test_run():
    lines = succeed("run", MODELS / "diagonal_matrix.json", "-i", 2, "-r", 3).splitlines()
    assert lines[0] == f"Running on '{dml.default_device().adapter.name}'"
    assert lines[1].startswith("Dispatch 'diagonal': 2 iterations, ")
    assert " ms median (CPU)" in lines[1]
    assert lines[2] == "Resource 'Out': 0, 2.5, 0, 0, 0, 0, 2.5, 0, 0, 0, 0, 2.5"


def test_run_for_a_time_and_verbosely():
    text = succeed("run", MODELS / "diagonal_matrix.json", "-t", 5, "-v", 1, "-w", 0)
    assert "Initialize 'diagonal': " in text
    assert "CPU Timings (Hot)  : " in text and "(Cold)" not in text


def test_run_chooses_and_lists_adapters():
    name = dml.default_device().adapter.name
    model = MODELS / "diagonal_matrix.json"
    assert name in succeed("run", model, "-a", name[:6].upper())
    assert name in succeed("run", "-s")
    assert "'no such device' matches no device" in fail("run", model, "-a", "no such device")


def test_run_refuses(tmp_path):
    assert "No such file" in fail("run", tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{\n  "resources": }')
    assert "bad.json:2:16: malformed JSON (line 2, column 16)" in fail("run", tmp_path / "bad.json")
    (tmp_path / "unknown.json").write_text('{"resource": {}}')
    assert "unknown field 'resource'" in fail("run", tmp_path / "unknown.json")


def test_bench_says_at_once_what_it_cannot_do(tmp_path):
    assert "expected FILE to end in .svg" in fail("bench", "--plot", tmp_path / "plot.xyz")
    assert "no case of this suite has 'quux'" in fail("bench", "--filter", "quux")


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    """The measurements are printed nevertheless."""
    (tmp_path / "file").write_text("")
    arguments = ("bench", "--scale", "tiny", "--filter", "floor", "-i", 1,
                 "--output", tmp_path / "file" / "run.json")
    assert f"{tmp_path / 'file'}" in fail(*arguments)
    assert "ELEMENT_WISE_FLOOR" in call(*arguments).stdout


@pytest.mark.parametrize(
    "arguments",
    [("run",), ("run", "m.json", "-i", "0"), ("run", "m.json", "-v", "3"), ("jump",),
     ("bench", "--format", "xml"), ("bench", "--scales", "tiny")],
)
def test_wrong_usage_is_one_line_and_ends_with_2(arguments):
    done = call(*arguments)
    (line,) = done.stderr.splitlines()
    assert done.exit_code == 2 and line.startswith("error: ") and "--help' has more)" in line


def test_what_the_command_needs_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"needs click, tabulate, tqdm: pip install .*cli"):
        entry.main()


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_help_has_examples_that_parse(command):
    help_text = CliRunner().invoke(cli, [command, "--help"]).output
    (examples,) = re.findall(r"Examples:\n((?:    .*\n)+)", help_text + "\n")
    for line in examples.splitlines():
        words = shlex.split(re.sub(r'^eval "\$\((.*)\)"$', r"\1", line.strip().split(" > ")[0]))
        assert words[:2] == ["kompute-dml", command]
        known = {o for p in cli.commands[command].params for o in p.opts}
        assert {w for w in words[2:] if w.startswith("-")} <= known


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(shell):
    script = CliRunner().invoke(cli, ["completion", shell]).output
    assert "_KOMPUTE_DML_COMPLETE" in script and "kompute-dml" in script
    words = {"COMP_WORDS": "kompute-dml bench --sc",
             "COMP_CWORD": "--sc" if shell == "fish" else "2"}
    asked = {**words, "_KOMPUTE_DML_COMPLETE": f"{shell}_complete"}
    done = CliRunner().invoke(cli, prog_name="kompute-dml", env=asked)
    assert done.exit_code == 0 and "--scale" in done.output and "--suite" not in done.output


_IN_SHELLS = {
    "bash": """eval "$(kompute-dml completion bash)"
        COMP_WORDS=(kompute-dml bench --sc); COMP_CWORD=2
        _kompute_dml_completion kompute-dml
        echo "${COMPREPLY[@]}"
    """,
    "fish": """kompute-dml completion fish | source
        complete -C 'kompute-dml bench --sc'
    """,
    # What shows the candidates works in a line editor alone, so stand-ins print them.
    "zsh": """compdef() { }
        compadd() { print -l -- $completions }
        _describe() { print -l -- $completions_with_descriptions }
        eval "$(kompute-dml completion zsh)"
        words=(kompute-dml bench --sc); CURRENT=3
        _kompute_dml_completion
    """,
}


@pytest.mark.parametrize("shell", _IN_SHELLS)
def test_a_shell_completes(shell, tmp_path):
    """In the shell itself, with a command on its path."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    command = tmp_path / "kompute-dml"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m kompute_dml "$@"\n')
    command.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
           "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([program, "-c", _IN_SHELLS[shell]], env=env, text=True,
                          capture_output=True)
    assert "--scale" in done.stdout and "--suite" not in done.stdout, done.stderr


def test_tables_are_json_too():
    for words in (["bench", "--scale", "tiny", "--filter", "threshold", "--json", "-i", "1"],
                  ["devices", "--json"], ["ops", "--json"],
                  ["tune", "--seconds", "0", "--json"]):
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0 and json.loads(done.stdout), words


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_takes_long_says_so_on_a_terminal(monkeypatch, capsys):
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress.progress("Compiling"):
        pass
    assert "Compiling" not in terminal.getvalue()
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.02)
    with progress.progress("Compiling"):
        time.sleep(0.2)
        progress.line("done")
    shown = terminal.getvalue()
    assert "Compiling: 00:00" in shown
    assert shown.split("\r")[-1].strip() == ""  # it is gone afterwards
    assert capsys.readouterr().out == "done\n"
    monkeypatch.setattr("sys.stderr", io.StringIO())  # no terminal
    with progress.progress("Compiling"):
        time.sleep(0.1)
    assert sys.stderr.getvalue() == ""


def test_an_interrupt_leaves_no_half_of_a_file(tmp_path, monkeypatch):
    """Ctrl-C while the second file is written."""
    def interrupted(*arguments, **options):
        (partial,) = tmp_path.glob(".*run.json")
        assert partial.exists()
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dumps", interrupted)
    (tmp_path / "run.json").write_text("old")
    done = call("bench", "--scale", "tiny", "--filter", "threshold", "-i", 1,
                "--output", tmp_path / "run.json")
    assert done.exit_code == 130 and "Traceback" not in done.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "there" / "run.json"
    with replaced(path) as made:
        made.write_text("old")
    with pytest.raises(KeyboardInterrupt), replaced(path) as made:
        made.write_text("half of the ne")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]
