"""The device's time for one token of a decoder, by shader variant.

python benchmarks/token_profile.py 8B-q4 --before 512
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import tempfile
from pathlib import Path

from kompute_dml.bench import decoders, generator

RUNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=decoders.SHAPES)
    parser.add_argument("--before", type=int, default=512, help="tokens that were there before")
    parser.add_argument("--capacity", type=int, default=0)
    asked = parser.parse_args()
    shape = decoders.SHAPES[asked.model]
    with tempfile.TemporaryDirectory() as folder:
        path = decoders.write_onnx(shape, Path(folder)).path
        trace = Path(folder) / "trace.json"
        one = generator.ours(path, shape, profile=trace)
        one.begin(asked.capacity or asked.before + 128, seed=1)
        bound = one.bind(1)
        for n in range(RUNS):
            one.step(bound, [[n]], asked.before + n, asked.before + n + 1)
        del bound, one
        gc.collect()  # the trace is written when the session ends
        raw = json.loads(trace.read_text())
    events = raw["traceEvents"] if isinstance(raw, dict) else raw
    took: collections.Counter[str] = collections.Counter()
    count: collections.Counter[str] = collections.Counter()
    for event in events:
        if event.get("ph") == "X":
            took[event["name"][:50]] += event["dur"]
            count[event["name"][:50]] += 1
    for name, us in took.most_common():
        print(f"{us / RUNS:10.1f} us {count[name] / RUNS:7.1f} x "
              f"{us / count[name]:8.2f} us  {name}")


if __name__ == "__main__":
    main()
