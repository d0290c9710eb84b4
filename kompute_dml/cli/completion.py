"""``kompute-dml completion``."""

from __future__ import annotations

import click


@click.command(short_help="Print what lets a shell complete commands and options.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script for SHELL that completes commands and options."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click has these three
    root = click.get_current_context().find_root()
    click.echo(kind(root.command, {}, "kompute-dml", "_KOMPUTE_DML_COMPLETE").source())
