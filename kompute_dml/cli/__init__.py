"""The ``kompute-dml`` command. Commands import what they need when they run, so help is quick."""

from __future__ import annotations

import errno
import sys
from typing import Any

import click

from .. import __version__
from ..errors import DmlError
from . import bench, completion, devices, explain, ops, options, run, selftest, tune

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


class _Commands(click.Group):
    """Ends with one line on stderr where something is wrong: exit code 1, or 2 for usage."""

    def main(self, *arguments: Any, standalone_mode: bool = True, **others: Any) -> Any:
        others["standalone_mode"] = False
        if not standalone_mode:
            return super().main(*arguments, **others)
        try:
            code = super().main(*arguments, **others)
        except click.Abort:
            sys.exit(INTERRUPTED)
        except click.UsageError as error:
            if isinstance(error, click.exceptions.NoArgsIsHelpError):
                error.show()
            else:
                command = error.ctx.command_path if error.ctx else "kompute-dml"
                _tell(f"{error.format_message()} ('{command} --help' has more)")
            sys.exit(error.exit_code)
        except click.ClickException as error:
            _tell(error.format_message())
            sys.exit(error.exit_code)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DmlError as error:
            raise click.ClickException(str(error)) from error
        except MemoryError as error:
            raise click.ClickException(f"the host has too little memory: {error}") from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of a pipe has gone: click ends quietly
                raise
            about = "" if error.filename is None else f"{error.filename}: "
            raise click.ClickException(f"{about}{error.strerror or error}") from error


def _tell(text: str) -> None:
    click.echo(f"error: {' '.join(text.split())}", err=True)


@click.group(
    "kompute-dml", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="kompute-dml")
def cli() -> None:
    """DirectML's operators on any Vulkan GPU."""


for _command in (
    devices.devices, ops.ops, selftest.selftest, run.run, bench.bench, tune.tune,
    explain.explain, completion.completion,
):
    cli.add_command(options.with_examples(_command))


def main() -> None:
    """The entry point of ``kompute-dml``."""
    cli(prog_name="kompute-dml")
