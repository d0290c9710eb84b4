"""How long it takes to hand memory to CUDA and back. Needs an NVIDIA GPU and PyTorch.

    python benchmarks/cuda_sharing.py [--mib 1024]

By the host's clock, medians after the first time. "on the GPU" also waits until the other side has
run an empty turn. A copy through the host is what sharing replaces.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import kompute_dml as dml
import kompute_dml.cuda as kc


def microseconds(work: Callable[[], Any], before: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        before()
        begin = time.perf_counter()
        kept = work()
        times.append(1e6 * (time.perf_counter() - begin))
        del kept
    return median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    mib = parser.parse_args().mib
    device = dml.default_device()
    x = device.empty([mib << 18])
    begin = time.perf_counter()
    view = kc.view(x)
    first = 1e6 * (time.perf_counter() - begin)
    torch.cuda.set_device(view.__dlpack_device__()[1])
    stream = torch.cuda.current_stream()

    def idle() -> None:
        torch.cuda.synchronize()
        device.synchronize()

    def acquired() -> None:
        idle()
        kc.acquire(x, stream)

    def to_cuda() -> Any:
        return torch.from_dlpack(kc.view(x))

    def there() -> Any:
        array = to_cuda()
        stream.synchronize()
        return array

    def back() -> None:
        kc.release(x, stream)

    def and_back() -> None:
        kc.release(x, stream)
        x[:1].numpy()  # 4 bytes

    print(f"{device.adapter.name}, {mib} MiB, microseconds")
    print(f"the first view                 {first:10.1f}")
    for name, work, before, repeats in (
        ("to PyTorch, the host's part", to_cuda, idle, 200),
        ("to PyTorch, on the GPU", there, idle, 200),
        ("back, the host's part", back, acquired, 200),
        ("back, on the GPU, 4 bytes read", and_back, acquired, 200),
        ("through the host", lambda: torch.from_dlpack(x).cuda(), idle, 3),
    ):
        print(f"{name:30} {microseconds(work, before, repeats):10.1f}")


if __name__ == "__main__":
    main()
