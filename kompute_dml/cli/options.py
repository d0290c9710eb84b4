"""Options that several commands share; names and meanings are DxDispatch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

CLOCKS = """\b
Clocks:
  GPU   the device's own timestamps, from before the first to after the last dispatch of
        a sample, over their number. It leaves out recording, submitting and waiting, not
        the barriers between them. Needs valid timestamps of the device.
  CPU   the host's clock, from the first dispatch of a sample being recorded until the
        host has waited for the last one (binding is left out), over their number.
"""

adapter = click.option(
    "-a", "--adapter", metavar="NAME",
    help="Device to use: an index, a UUID or a part of a name, as 'kompute-dml devices' lists "
         "them.",
)


def timing(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options ``iterations``, ``repeat``, ``milliseconds``, ``warmup`` and ``verbosity``."""
    for option in reversed((
        click.option("-i", "--dispatch_iterations", "iterations", type=click.IntRange(1),
                     metavar="N", help="Samples to take of each dispatch."),
        click.option("-r", "--dispatch_repeat", "repeat", type=click.IntRange(1), metavar="N",
                     help="Dispatches in a sample; their times are averaged."),
        click.option("-t", "--milliseconds_to_run", "milliseconds", type=click.FloatRange(0),
                     metavar="MS", help="Take samples for this long. Overrides -i."),
        click.option("-w", "--warmup_samples", "warmup", type=click.IntRange(0), default=1,
                     show_default=True, metavar="N",
                     help="First samples that count as cold and are left out of the medians."),
        click.option("-v", "--timing_verbosity", "verbosity", type=click.IntRange(0, 2),
                     default=0, show_default=True,
                     help="0: medians of hot samples; 1: cold and hot statistics; 2: each sample."),
    )):
        command = option(command)
    return command
