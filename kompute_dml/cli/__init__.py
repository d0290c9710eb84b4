"""The ``kompute-dml`` command. Commands import what they need when they run, so help is quick."""

from __future__ import annotations

import errno
from typing import IO, Any

import click

from .. import __version__
from ..errors import DmlError
from . import bench, completion, devices, explain, ops, options, run, selftest, tune


class _Failure(click.ClickException):
    """Ends the program with one line on stderr and exit code 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"error: {' '.join(self.message.split())}", file=file, err=True)


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DmlError as error:
            raise _Failure(str(error)) from error
        except MemoryError as error:
            raise _Failure(f"the host has too little memory: {error}") from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of a pipe has gone: click ends quietly
                raise
            about = "" if error.filename is None else f"{error.filename}: "
            raise _Failure(f"{about}{error.strerror or error}") from error


@click.group(
    "kompute-dml", cls=_Group, context_settings={"help_option_names": ["-h", "--help"]}
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
