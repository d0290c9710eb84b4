"""Says on a terminal what takes long where no part of it can be counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import click

SILENT_SECONDS = 2.0


@contextmanager
def progress(what: str) -> Iterator[None]:
    """After two seconds show ``what`` and the time so far, until the block ends.

    Lines that are printed meanwhile go through :func:`line`.
    """
    from tqdm import tqdm

    with tqdm(bar_format=f"{what}: {{elapsed}}", leave=False, disable=None, delay=1) as bar:
        done = threading.Event()

        def show() -> None:
            while not done.wait(SILENT_SECONDS / 2 if bar.n else SILENT_SECONDS):
                bar.n += 1
                bar.refresh()

        thread = threading.Thread(target=show, daemon=True)
        if not bar.disable:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if not bar.disable:
                thread.join()
                bar.clear()


def line(text: str) -> None:
    """Print a line to stdout, above what is shown."""
    from tqdm import tqdm

    with tqdm.external_write_mode():
        click.echo(text)
