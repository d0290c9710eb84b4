"""Shaders without the branches that their specialization constants never take.

A tail or an activation is a list of ``if (CODE == number)``, of which one is taken. Drivers put the
body of each function in place of each of its calls before they look at branches: with a tail a
shader becomes fifty times as large, and takes a second to compile.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..toolchain.reflect import OPERATIONS

# Opcodes and a decoration of the SPIR-V specification.
_TRUE, _FALSE, _CONSTANT = 41, 42, 43
_SPEC_TRUE, _SPEC_FALSE, _SPEC_CONSTANT, _SPEC_OP = 48, 49, 50, 52
_FUNCTION, _DECORATE, _PHI = 54, 71, 245
_SPEC_ID = 1
# Whole first words: the length of the instruction, and its opcode.
_SELECTION_MERGE, _LABEL, _BRANCH, _BRANCH_CONDITIONAL = (
    length << 16 | opcode for length, opcode in ((3, 247), (2, 248), (2, 249), (4, 250)))


def pruned(code: bytes, spec: np.ndarray) -> bytes:
    """SPIR-V with the same results as ``code`` for these specialization constants, by id."""
    shader = _shader(code)
    words, kept = shader.words.copy(), np.ones(len(shader.words), bool)
    values: dict[int, int | None] = {}
    for at, condition, merge, begins in shader.selections:
        # Blocks follow one another as in the source: those of the condition, the others, the rest.
        value = shader.value(condition, spec, values) if kept[at] else None
        if value is None:
            continue
        taken, first, last = (begins[0], begins[1], merge) if value else (
            begins[1], begins[0], begins[1])
        if shader.has_decorated(first, last):
            continue  # nothing may decorate what is not there
        words[at : at + 2] = _BRANCH, words[taken + 1]
        kept[at + 2 : at + 7] = False
        kept[first:last] = False
    return words[kept].tobytes()


class _Shader:
    """A shader's constants and branches, whatever the specialization constants are."""

    def __init__(self, code: bytes) -> None:
        self.words = np.frombuffer(code, np.uint32)
        self._spec_ids: dict[int, int] = {}
        """Numbers of specialization constants, by their ids."""
        self._constants: dict[int, tuple[int, tuple[int, ...]]] = {}
        """Opcodes and operands, by id."""
        begin = self._read_constants(self.words.tolist())
        labels = self._all(begin, _LABEL)
        places = dict(zip(self.words[labels + 1].tolist(), labels.tolist()))
        merges = self._all(begin, _SELECTION_MERGE)
        merges = merges[self.words[merges + 3] == _BRANCH_CONDITIONAL]
        self.selections = [
            (at, condition, places[merge], (places[yes], places[no]))
            for at, (merge, _, condition, yes, no) in zip(
                merges.tolist(), self.words[merges[:, None] + np.array([1, 3, 4, 5, 6])].tolist())
            if condition in self._constants
            and self.words[places[merge] + 2] & 0xFFFF != _PHI  # its value depends on the branch
        ]
        """The branches on constants: place, condition, and the labels' places of what follows and
        of both ways."""

    def _all(self, begin: int, word: int) -> np.ndarray:
        """The places of a first word, which is none of an id's or a small number's."""
        return np.flatnonzero(self.words[begin:] == word) + begin

    def _read_constants(self, words: list[int]) -> int:
        """Returns where the functions begin."""
        at, decorated = 5, set()
        while words[at] & 0xFFFF != _FUNCTION:
            length, opcode = words[at] >> 16, words[at] & 0xFFFF
            if opcode == _DECORATE:
                decorated.add(words[at + 1])
                if words[at + 2] == _SPEC_ID:
                    self._spec_ids[words[at + 1]] = words[at + 3]
            elif opcode in (_TRUE, _FALSE, _SPEC_TRUE, _SPEC_FALSE) or (
                    opcode in (_CONSTANT, _SPEC_CONSTANT) and length == 4) or opcode == _SPEC_OP:
                self._constants[words[at + 2]] = opcode, tuple(words[at + 3 : at + length])
            at += length
        is_decorated = np.isin(self.words[at:], np.array(sorted(decorated), np.uint32))
        self._decorated = np.concatenate((np.zeros(at + 1, np.int64), np.cumsum(is_decorated)))
        """How many words may be ids with decorations, before each place."""
        return at

    def has_decorated(self, first: int, last: int) -> bool:
        """Whether what lies between two places may have decorations."""
        return bool(self._decorated[first] != self._decorated[last])

    def value(self, constant: int, spec: np.ndarray, known: dict[int, int | None]) -> int | None:
        """The value of a constant, or None. ``known`` are those that were asked for."""
        if constant not in known:
            known[constant] = self._value(constant, spec, known)
        return known[constant]

    def _value(self, constant: int, spec: np.ndarray, known: dict[int, int | None]) -> int | None:
        if constant in self._spec_ids:
            return int(spec[self._spec_ids[constant]])
        opcode, operands = self._constants.get(constant, (0, ()))
        if opcode in (_TRUE, _FALSE):
            return int(opcode == _TRUE)
        if opcode == _CONSTANT:
            return operands[0]
        if opcode != _SPEC_OP or operands[0] not in OPERATIONS:
            return None
        values: list[Any] = [self.value(operand, spec, known) for operand in operands[1:]]
        if None in values:
            return None
        try:
            return int(OPERATIONS[operands[0]](*values)) & 0xFFFFFFFF
        except ZeroDivisionError:  # nothing that runs reads it
            return None


@functools.lru_cache(maxsize=256)
def _shader(code: bytes) -> _Shader:
    return _Shader(code)
