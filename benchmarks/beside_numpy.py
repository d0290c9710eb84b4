"""Operators on a driver that runs on the CPU, beside NumPy's own functions.

    python benchmarks/beside_numpy.py [--all] [--filter REGEX] [--output FILE.json]

Cases of about 2^20 elements; without --all those of operators that move elements. Times are the
process's processor time, the best of several rounds in turn, so that other work on the machine
counts little. NumPy uses one core. The driver shares its work among all of them, and its time is
divided by their number: what it takes where nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kompute_dml import Device
from kompute_dml.bench import cases, formats
from kompute_dml.bench.case import SCALES, Case
from kompute_dml.bench.peers import NumPy
from kompute_dml.bench.rows import short

ROUNDS = 9
LONG_SECONDS = 0.2
"""A case that takes longer has fewer rounds."""
CORES = len(os.sched_getaffinity(0))


def milliseconds(work: Callable[[], Any], count: int) -> float:
    """Processor time of one call of ``work``."""
    begin = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - begin) * 1e3 / count


def row(device: Device, case: Case) -> dict[str, Any] | None:
    """The figures of a case; None where NumPy has no function for it. Ends where values differ."""
    if problem := case.check(case.dispatch()):
        raise SystemExit(f"{case.operator} {case.types}: {problem}")
    peer = next(iter(case.peers.get("numpy", lambda _: ())(NumPy())), None)
    if peer is None:
        return None
    begin = time.perf_counter()
    device.elapsed(case.dispatch)
    seconds = time.perf_counter() - begin
    count = max(1, min(10, int(0.01 / seconds)))

    def ours() -> None:
        device.elapsed(lambda: [case.dispatch() for _ in range(count)])

    rounds = range(ROUNDS if seconds < LONG_SECONDS else 2)
    times = [(milliseconds(ours, 1) / count / CORES, milliseconds(peer.call, count))
             for _ in rounds]
    ms, numpy_ms = (min(column) for column in zip(*times))
    return {"operator": case.operator, "types": case.types, "sizes": case.sizes, "ms": ms,
            "numpy_ms": numpy_ms, "times_numpy": ms / numpy_ms, "goals": []}


def rows(device: Device, pattern: str, every: bool) -> Iterator[dict[str, Any]]:
    for recipe in cases.SUITES["numpy"]:
        label = f"{recipe.operator} {recipe.types}"
        if (every or recipe.operator in cases.MOVED) and re.search(pattern, label, re.IGNORECASE):
            for case in recipe.make(device, SCALES["small"]):
                if found := row(device, case):
                    yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every operator")
    parser.add_argument("--filter", default="", metavar="REGEX", help="only these operators, types")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="keep the run")
    given = parser.parse_args()
    device = Device()
    found = sorted(rows(device, given.filter, given.all), key=lambda r: -r["times_numpy"])
    print(f"{'times NumPy':>11} {'here, ms':>9} {'NumPy, ms':>9}  case")
    for r in found:
        print(f"{r['times_numpy']:11.1f} {r['ms']:9.3f} {r['numpy_ms']:9.3f}  "
              f"{short(r['operator'])} {r['types']} {r['sizes']}")
    if given.output:
        kept = [a for a in sys.argv[1:] if a not in ("--output", str(given.output))]
        run = formats.document([], device, None, " ".join(
            ["python benchmarks/beside_numpy.py", *kept]))
        given.output.write_text(json.dumps({**run, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
