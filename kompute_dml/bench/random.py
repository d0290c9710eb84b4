"""The case of random numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import kompute_dml as dml

from ..cases import Scale
from ..cases.random import philox
from ..device import Device
from .case import Case, Peer, Recipe, shape, touched_bytes
from .peers import Torch
from .values import Output, host, same_bits

_PARTS = 8
"""Parts that are checked, ..."""
_PART = 1 << 12
"""... and words of each."""


def random_words(count: int = 1 << 28) -> Recipe:
    name, types = "DML_OPERATOR_RANDOM_GENERATOR", "u32 words"

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        n = scale.of(count)
        first = np.array([7, 0, 5, 3, 11, 13], np.uint32)
        state, out = device.tensor(first), device.empty([n], "uint32")

        def check(output: Output) -> str:
            part = min(_PART, n)
            rng = np.random.default_rng(7)
            for start in (0, n - part, *rng.integers(0, n - part + 1, _PARTS)):
                start = int(start) // 4 * 4  # a block has four words
                later = first.copy()
                later[0] += start // 4
                problem = same_bits(host(output[start : start + part]), philox(later, part))
                if problem:
                    return f"{problem} (from word {start})"
            return ""

        def torch_peers(library: Torch) -> Iterator[Peer]:
            torch = library.torch
            filled = torch.empty(n, dtype=torch.int32, device=library.place)
            yield Peer("torch.fill", lambda: filled.fill_(1), checked=False)
            yield Peer("torch.random", lambda: filled.random_(), checked=False)

        yield Case(
            name, types, shape((n,)), lambda: dml.random_generator(state, sizes=(n,), out=out),
            check, touched_bytes((out.desc,)), peers={"torch": torch_peers})

    return Recipe(name, types, make)
