"""Requests a second of the showcase's service: python benchmarks/service.py [CLIP]

It starts examples/immich/service.py on each of --adapters in turn (the default device, and "cpu",
ONNX Runtime's CPU provider), and sends it a picture again and again from so many clients at once.
CLIP is a folder of encoders; by default one with random weights. A line has requests a second, the
median and the 99th percentile of the time that a request took, and what the processes hold.

``--soak 3600`` goes on for an hour with the last number of clients, a line every minute, and fails
where the processes hold over a tenth more in the last minute than after the first quarter.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from tabulate import tabulate

SERVICE = Path(__file__).parents[1] / "examples" / "immich" / "service.py"
START_SECONDS = 600


class Row(NamedTuple):
    adapter: str
    clients: int
    a_second: float
    median_ms: float
    percentile_99_ms: float
    mebibytes: float


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clip", nargs="?", help="a folder of CLIP's encoders")
    parser.add_argument("--adapters", nargs="+", default=["0", "cpu"])
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=20, help="of each number of clients")
    parser.add_argument("--soak", type=float, default=0, help="seconds with the last of them")
    parser.add_argument("--picture", type=Path, help="a file; by default noise of 640 x 480")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    content = options.picture.read_bytes() if options.picture else noise()
    rows, grew = [], False
    for adapter in options.adapters:
        with served(options.clip, adapter) as (port, process):
            for clients in options.clients:
                rows.append(measured(adapter, port, process, clients, options.seconds, content))
            if options.soak:
                held = soaked(adapter, port, process, options.clients[-1], options.soak, content)
                grew |= grows(held)
    print(json.dumps([row._asdict() for row in rows]) if options.json
          else tabulate(rows, [name.replace("_", " ") for name in Row._fields], floatfmt=".1f"))
    if grew:
        sys.exit("the service grows")


def noise() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


@contextlib.contextmanager
def served(clip: str | None, adapter: str) -> Iterator[tuple[int, int]]:
    """The port and the process of a service that has answered once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, str(SERVICE), *([clip] if clip else []), "--adapter", adapter,
             "--port", str(port), "--forget"]
    process = subprocess.Popen(words, stdout=sys.stderr)
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"the service on {adapter} does not start")
            with contextlib.suppress(OSError):
                once(http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS), noise())
                break
            time.sleep(0.2)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def once(connection: http.client.HTTPConnection, content: bytes) -> float:
    """Send a picture, and return the seconds until its answer was read."""
    start = time.perf_counter()
    connection.request("POST", "/pictures?name=x", content)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {text!r}")
    return time.perf_counter() - start


def measured(adapter: str, port: int, process: int, clients: int, seconds: float,
             content: bytes) -> Row:
    """What so many clients get that ask again as soon as they are answered."""
    end = time.monotonic() + seconds

    def client(_: int) -> list[float]:
        connection, taken = http.client.HTTPConnection("127.0.0.1", port), []
        while not taken or time.monotonic() < end:
            taken.append(once(connection, content))
        return taken

    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        taken = [t for client_taken in pool.map(client, range(clients)) for t in client_taken]
    whole = time.perf_counter() - start
    return Row(adapter, clients, len(taken) / whole, 1e3 * statistics.median(taken),
               1e3 * float(np.percentile(taken, 99)), held_by(process) / 2**20)


def soaked(adapter: str, port: int, process: int, clients: int, seconds: float,
           content: bytes) -> list[float]:
    """What the processes hold, in MiB, once a minute, or ten times in all if that is shorter."""
    each, held = min(60.0, seconds / 10), []
    for minute in range(round(seconds / each)):
        row = measured(adapter, port, process, clients, each, content)
        held.append(row.mebibytes)
        print(f"{(minute + 1) * each:6.0f} s: {row.a_second:.1f} a second, 99th percentile "
              f"{row.percentile_99_ms:.1f} ms, {row.mebibytes:.0f} MiB", file=sys.stderr)
    return held


def grows(held: list[float]) -> bool:
    """Whether the last is over a tenth more than what was held after the first quarter."""
    return held[-1] > 1.1 * held[len(held) // 4]


def held_by(process: int) -> int:
    """The bytes of a process's own memory and of all its children's."""
    own = 4096 * int(Path(f"/proc/{process}/statm").read_text().split()[1])
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return own + sum(held_by(int(child)) for child in children)


if __name__ == "__main__":
    main()
