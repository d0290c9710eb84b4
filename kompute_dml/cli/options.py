"""Options that several commands share, with the names and meanings of DxDispatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from ..runtime.traits import EMULATED

CLOCKS = """\b
Clocks:
  GPU   the device's own timestamps before the first and after the last dispatch of a
        sample. The time includes barriers, but no recording, submitting or waiting. The
        device must have timestamps.
  CPU   the host's clock, from recording the first dispatch of a sample to the end of the
        wait for the last one. The time does not include binding.
  Both are divided by the number of dispatches.
"""

_EXAMPLES = {
    "bench": """
  kompute-dml bench --scale small
  kompute-dml bench --filter softmax --peers
  kompute-dml bench --suite models --peers --output models.json
  kompute-dml bench --suite families --as unknown-gpu
  kompute-dml bench --output run.json
  kompute-dml bench --against run.json --plot run.svg
  kompute-dml bench --kept run.json --plot run.svg
""",
    "completion": """
  kompute-dml completion bash > ~/.local/share/bash-completion/completions/kompute-dml
  eval "$(kompute-dml completion zsh)"
""",
    "devices": """
  kompute-dml devices
  kompute-dml devices --json
""",
    "explain": """
  kompute-dml explain model.onnx
  kompute-dml explain model.onnx --claim all --json
  kompute-dml explain --kernels gemm --as mobile
""",
    "ops": """
  kompute-dml ops
  kompute-dml ops --missing
""",
    "run": """
  kompute-dml run model.json
  kompute-dml run model.json -a H200 -i 100 -v 1 --output_path results
""",
    "selftest": """
  kompute-dml selftest
  kompute-dml selftest -a llvmpipe --json
""",
    "tune": """
  kompute-dml tune
  kompute-dml tune -a H200 --seconds 600 --json
""",
}


def with_examples(command: click.Command) -> click.Command:
    """The command with its examples at the end of its help."""
    assert command.name is not None
    examples = f"\b\nExamples:{_EXAMPLES[command.name].rstrip()}"
    command.epilog = f"{examples}\n\n{command.epilog}" if command.epilog else examples
    return command


as_json = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")

adapter = click.option(
    "-a", "--adapter", metavar="NAME",
    help="Device to use: an index, a UUID or a part of a name, as 'kompute-dml devices' lists "
         "them. Digits are an index.",
)

emulation = click.option(
    "--as", "emulated", metavar="CLASS", type=click.Choice(tuple(EMULATED)),
    help=f"Take the device as a GPU of this class: {', '.join(EMULATED)}. No more is known of it "
         "then. KOMPUTE_DML_AS does the same for any program.",
)


def timing(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options ``iterations``, ``repeat``, ``milliseconds``, ``warmup`` and ``verbosity``."""
    for option in reversed((
        click.option("-i", "--dispatch_iterations", "iterations", type=click.IntRange(1),
                     metavar="N", help="Samples to take of each dispatch."),
        click.option("-r", "--dispatch_repeat", "repeat", type=click.IntRange(1), metavar="N",
                     help="Dispatches in a sample. Their times are averaged."),
        click.option("-t", "--milliseconds_to_run", "milliseconds", type=click.FloatRange(0),
                     metavar="MS", help="Take samples for this long. Overrides -i."),
        click.option("-w", "--warmup_samples", "warmup", type=click.IntRange(0), default=1,
                     show_default=True, metavar="N",
                     help="First samples that count as cold and are left out of the medians."),
        click.option("-v", "--timing_verbosity", "verbosity", type=click.IntRange(0, 2),
                     default=0, show_default=True, metavar="LEVEL",
                     help="0: medians of hot samples; 1: cold and hot statistics; 2: each sample."),
    )):
        command = option(command)
    return command
