"""Branches on specialization constants that are never taken go before a driver compiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from kompute_dml.runtime.pruned import pruned
from kompute_dml.runtime.shader_library import Variant, _all_variants

_ADD, _RELU = 20, 1  # lowering/activation.py
_LABEL, _CALL, _FUNCTION, _FUNCTION_END, _DECORATE = 248, 57, 54, 56, 71
_TARGETS = {246: (0, 1), 247: (0,), 249: (0,), 250: (1, 2)}
"""Operands of jumps and merges that are labels."""
TAILS = [name for name in _all_variants() if name.endswith(".tail")]


def _instructions(code: bytes) -> Iterator[tuple[int, list[int]]]:
    words = np.frombuffer(code, np.uint32).tolist()
    at = 5
    while at < len(words):
        length = words[at] >> 16
        yield words[at] & 0xFFFF, words[at + 1 : at + length]
        at += length


def _spec(variant: Variant, **values: int) -> np.ndarray:
    return variant.pack_spec({"HAS_TAIL_TENSOR": 1, **values})


def _with_inlined(code: bytes) -> int:
    """The instructions of the first function, with those of each function in place of its calls."""
    sizes: Counter[int] = Counter()
    calls: dict[int, list[int]] = {}
    function = 0
    for opcode, operands in _instructions(code):
        if opcode == _FUNCTION:
            function = operands[1]
            calls[function] = []
        sizes[function] += 1
        if opcode == _CALL:
            calls[function].append(operands[2])

    def size(of: int) -> int:
        return sizes[of] + sum(map(size, calls[of]))

    return size(next(iter(calls)))


@pytest.mark.parametrize("name", TAILS)
def test_a_tail_is_as_small_as_its_steps(name: str) -> None:
    variant = _all_variants()[name]
    add_and_relu = pruned(
        variant.spirv, _spec(variant, TAIL_0=_ADD | 1 << 12, TAIL_1=_RELU | 3 << 8))
    every = _with_inlined(variant.spirv)
    assert _with_inlined(add_and_relu) < every / 4
    assert _with_inlined(pruned(variant.spirv, _spec(variant))) < _with_inlined(add_and_relu)


@pytest.mark.parametrize("name", TAILS)
def test_what_is_left_names_nothing_that_is_gone(name: str) -> None:
    variant = _all_variants()[name]
    code = list(_instructions(pruned(variant.spirv, _spec(variant, TAIL_0=_ADD))))
    labels = {operands[0] for opcode, operands in code if opcode == _LABEL}
    for opcode, operands in code:
        assert all(operands[i] in labels for i in _TARGETS.get(opcode, ()))
    named = {operands[i] for opcode, operands in code if opcode != _DECORATE
             for i in (0, 1) if len(operands) > i}
    assert named >= {operands[0] for opcode, operands in code if opcode == _DECORATE}


def test_without_branches_on_constants_nothing_goes() -> None:
    ticket = _all_variants()["ticket"]
    assert pruned(ticket.spirv, ticket.pack_spec({})) == ticket.spirv
