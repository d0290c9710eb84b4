"""RANDOM_GENERATOR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import kompute_dml as dml
from harness import FEW, Arrays, Case, ErrorCase, Types
from kompute_dml.cases.random import philox
from layouts import PACKED, STEPPED, Sizes

# Of Random123's known answers: counter and key, then the words of one block.
_ANSWERS = {
    "zeros": ([0, 0, 0, 0, 0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    "ones": ([0xFFFFFFFF] * 6, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    "pi": ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0],
           [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
}


def _reference(sizes: Sizes, following: bool) -> Any:
    def reference(x: Arrays, attributes: Mapping[str, Any], types: Types) -> Any:
        state = x["input_state_tensor"].reshape(-1)
        made = philox(state, int(np.prod(sizes))).reshape(sizes)
        if not following:
            return made
        counter = sum(int(word) << (32 * i) for i, word in enumerate(state[:4]))
        counter += -(-made.size // 4)
        words = [counter >> (32 * i) & 0xFFFFFFFF for i in range(4)]
        after = np.array([*words, *state[4:]], np.uint32)
        return made, after.reshape(x["input_state_tensor"].shape)

    return reference


def _random(name: str, state: Sizes, sizes: Sizes, values: Any = None, following: bool = True,
            layouts: Any = FEW, reference: Any = None) -> Case:
    def call(x: Any, given: Mapping[str, Any], types: Types, out: Any) -> Any:
        return dml.random_generator(x["input_state_tensor"], sizes=sizes, output_state=following,
                                    out=out)

    more = {"output_state_tensor": state} if following else {}
    given = {} if values is None else {
        "input_state_tensor": np.array(values, np.uint32).reshape(state)}
    return Case(
        "RANDOM_GENERATOR", name, {"input_state_tensor": state, "output_tensor": sizes, **more},
        reference or _reference(sizes, following), call, attributes={"type": 0}, values=given,
        layouts=layouts)


CASES = [
    *(_random(f"known-{name}", (6,), (4,), state, False, [PACKED],
              lambda x, given, types, answer=answer: np.array(answer, np.uint32))
      for name, (state, answer) in _ANSWERS.items()),
    _random("carries", (1, 6), (3, 7, 5), [0xFFFFFFF0, 0xFFFFFFFF, 0xFFFFFFFF, 5, 6, 7]),
    _random("wraps", (1, 6), (3, 7), [0xFFFFFFFF] * 4 + [6, 7], layouts=[PACKED, STEPPED]),
    _random("past-a-workgroup", (6,), (4103,)),
    _random("wraps-in-a-workgroup", (6,), (9001,), [0xFFFFFA00, 0xFFFFFFFF, 3, 4, 5, 6]),
    _random("eight-dimensions", (1,) * 7 + (6,), (2, 1, 3, 2, 2, 3, 1, 2)),
]

_STATE, _Y = dml.TensorDesc("uint32", [6]), dml.TensorDesc("uint32", [4])
ERRORS = [
    ErrorCase("RANDOM_GENERATOR", "words", dict(
        input_state_tensor=dml.TensorDesc("uint32", [5]), output_tensor=_Y, type=0),
        ["InputStateTensor.Sizes", "6", "[5]"]),
    ErrorCase("RANDOM_GENERATOR", "states", dict(
        input_state_tensor=dml.TensorDesc("uint32", [2, 6]), output_tensor=_Y, type=0),
        ["InputStateTensor.Sizes", "[2, 6]"]),
    ErrorCase("RANDOM_GENERATOR", "type", dict(
        input_state_tensor=_STATE, output_tensor=_Y, type=1), ["Type", "PHILOX_4X32_10", "1"]),
]
