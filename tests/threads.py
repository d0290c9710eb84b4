"""Work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_threads(count: int, work: Callable[[int], Any], seconds: float = 120) -> None:
    """Calls ``work`` with 0, 1 and so on, each in a thread. Fails as the first that failed."""
    failed: list[BaseException] = []

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if failed:
        raise failed[0]
