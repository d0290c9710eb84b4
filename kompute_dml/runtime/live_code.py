"""Leaves out of a shader what its specialization constants rule out, before a driver sees it.

A shader serves many operators: ``if (CODE == 7u) y = op_elu(x);`` calls a function that few of its
pipelines need. Drivers put functions in the place of their calls before they look which of them can
run. So a chain of elementwise operators took lavapipe 0.8 seconds to compile, whatever was in it,
and takes 0.07 without the calls that no run reaches.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

# Opcodes and a decoration of the SPIR-V specification.
_UNDEF, _NAME, _ENTRY_POINT, _DECORATE, _DECORATE_ID, _SPEC_ID = 1, 5, 15, 71, 332, 1
_TYPE_VOID, _TYPE_BOOL, _TYPE_INT, _TRUE, _FALSE, _CONSTANT = 19, 20, 21, 41, 42, 43
_SPEC_TRUE, _SPEC_FALSE, _SPEC_CONSTANT, _SPEC_OP = 48, 49, 50, 52
_FUNCTION, _FUNCTION_END, _CALL, _LABEL = 54, 56, 57, 248
_BRANCH, _BRANCH_CONDITIONAL, _SWITCH = 249, 250, 251
# Stores, barriers, merges and what ends a block.
_NO_RESULT = frozenset((62, 63, 224, 225, 228, 246, 247, *range(_BRANCH, 256)))
_OPERATIONS: Mapping[int, Callable[..., int]] = {
    128: operator.add, 130: operator.sub, 132: operator.mul,
    134: lambda x, y: x // y if y else 0, 137: lambda x, y: x % y if y else 0,
    164: lambda x, y: bool(x) == bool(y), 165: lambda x, y: bool(x) != bool(y),
    166: lambda x, y: x or y, 167: lambda x, y: x and y, 168: operator.not_,
    169: lambda condition, x, y: x if condition else y,
    170: operator.eq, 171: operator.ne, 172: operator.gt, 174: operator.ge, 176: operator.lt,
    178: operator.le, 194: lambda x, y: x >> min(y, 32), 196: lambda x, y: x << min(y, 32),
    197: operator.or_, 198: operator.xor, 199: operator.and_, 200: operator.invert,
}
"""Operations on truth values and on unsigned numbers of 32 bits, by opcode."""


class _FunctionCall(NamedTuple):
    begin: int
    end: int
    type: int
    result: int
    function: int


class _Block(NamedTuple):
    calls: tuple[_FunctionCall, ...]
    condition: int
    """The truth value that chooses the first of two ``targets``, or else the second. 0: any may be
    next."""
    targets: tuple[int, ...]


class _Function(NamedTuple):
    begin: int
    end: int
    blocks: Mapping[int, _Block]
    """By label, the first one first."""
    ids: frozenset[int]
    """What it defines, itself included."""


class _LiveModule:
    """What depends on specialization constants. Places are those of words."""

    def __init__(self, code: bytes) -> None:
        words = memoryview(code).cast("I")
        self.constants: dict[int, int] = {}
        """Truth values and unsigned numbers, by id."""
        self.specialized: dict[int, tuple[int, int]] = {}
        """The number of each specialization constant, and its default, by id."""
        self.operations: list[tuple[int, Callable[..., int], Sequence[int]]] = []
        """Id, operation and operands."""
        self.notes: list[tuple[int, int, int]] = []
        """Names and decorations: begin, end, and whose they are."""
        self.functions: dict[int, _Function] = {}
        self.entries: list[int] = []
        self.voids: set[int] = set()
        numbers: dict[int, int] = {}
        scalars: set[int] = set()
        instructions = _instructions(words)
        for at, end, opcode in instructions:
            first = words[at + 1]
            if opcode == _FUNCTION:
                self.functions[words[at + 2]] = _function(words, at, instructions)
            elif opcode == _ENTRY_POINT:
                self.entries.append(words[at + 2])
            elif opcode in (_NAME, _DECORATE, _DECORATE_ID):
                self.notes.append((at, end, first))
                if opcode == _DECORATE and words[at + 2] == _SPEC_ID:
                    numbers[first] = words[at + 3]
            elif opcode == _TYPE_VOID:
                self.voids.add(first)
            elif opcode == _TYPE_BOOL or (
                    opcode == _TYPE_INT and (words[at + 2], words[at + 3]) == (32, 0)):
                scalars.add(first)
            elif opcode in (_TRUE, _FALSE):
                self.constants[words[at + 2]] = int(opcode == _TRUE)
            elif opcode in (_SPEC_TRUE, _SPEC_FALSE):
                result = words[at + 2]
                self.specialized[result] = numbers.get(result, -1), int(opcode == _SPEC_TRUE)
            elif first in scalars and opcode == _CONSTANT:
                self.constants[words[at + 2]] = words[at + 3]
            elif first in scalars and opcode == _SPEC_CONSTANT:
                result = words[at + 2]
                self.specialized[result] = numbers.get(result, -1), words[at + 3]
            elif first in scalars and opcode == _SPEC_OP and words[at + 3] in _OPERATIONS:
                self.operations.append((words[at + 2], _OPERATIONS[words[at + 3]],
                                        tuple(words[at + 4 : end])))

    def values(self, spec: np.ndarray) -> dict[int, int]:
        """What is known of truth values and unsigned numbers, by id."""
        known = dict(self.constants)
        for key, (number, default) in self.specialized.items():
            known[key] = int(spec[number]) if 0 <= number < len(spec) else default
        for key, operation, operands in self.operations:
            numbers = [known[i] for i in operands if i in known]
            if len(numbers) == len(operands):
                known[key] = operation(*numbers) & 0xFFFFFFFF
        return known


def _instructions(words: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Begin, end and opcode of each."""
    at = 5
    while at < len(words):
        end = at + (words[at] >> 16)
        yield at, end, words[at] & 0xFFFF
        at = end


def _function(
    words: Sequence[int], begin: int, instructions: Iterator[tuple[int, int, int]]
) -> _Function:
    """The function that begins there. ``instructions`` are those after that."""
    blocks: dict[int, _Block] = {}
    ids = {words[begin + 2]}
    calls: list[_FunctionCall] = []
    label, end = 0, begin
    for at, end, opcode in instructions:
        if opcode == _FUNCTION_END:
            break
        if opcode == _LABEL:
            label, calls = words[at + 1], []
            ids.add(label)
        elif opcode not in _NO_RESULT:
            ids.add(words[at + 2])
            if opcode == _CALL:
                calls.append(_FunctionCall(at, end, *words[at + 1 : at + 4]))
        elif opcode == _BRANCH:
            blocks[label] = _Block(tuple(calls), 0, (words[at + 1],))
        elif opcode == _BRANCH_CONDITIONAL:
            blocks[label] = _Block(tuple(calls), words[at + 1], tuple(words[at + 2 : at + 4]))
        elif opcode >= _SWITCH:  # the numbers between its targets may look like labels
            blocks[label] = _Block(tuple(calls), 0, tuple(words[at + 2 : end]))
    return _Function(begin, end, blocks, frozenset(ids))


_parsed = functools.lru_cache(8)(_LiveModule)
"""Chains and products compile many times one after the other. All modules would take megabytes."""


def live_code(code: bytes, spec: np.ndarray) -> bytes:
    """SPIR-V that does what ``code`` does where its specialization constants are ``spec``, by id.

    Calls that no run reaches become undefined values. Functions go that nobody calls then.
    """
    return _live_code(code, spec.tobytes())


_KEPT = 256
"""Results, of 50 KB on average. The next session of a model needs them again, in threads that take
the interpreter from the one that plans it."""


@functools.lru_cache(_KEPT)
def _live_code(code: bytes, constants: bytes) -> bytes:
    module = _parsed(code)
    known = module.values(np.frombuffer(constants, np.uint32))
    waiting, used = list(module.entries), set(module.entries)
    dead: list[_FunctionCall] = []
    while waiting:
        function = module.functions[waiting.pop()]
        reached = _reached(function, known)
        dead += (c for label, b in function.blocks.items() if label not in reached
                 for c in b.calls)
        new = {c.function for label in reached for c in function.blocks[label].calls} - used
        used |= new
        waiting += new
    unused = [f for number, f in module.functions.items() if number not in used]
    lost = {c.result for c in dead}.union(*(f.ids for f in unused))
    cuts = [(begin, end, b"") for begin, end, target in module.notes if target in lost]
    cuts += [(f.begin, f.end, b"") for f in unused]
    cuts += [(c.begin, c.end, b"" if c.type in module.voids else _undefined(c)) for c in dead]
    parts, at = [], 0
    for begin, end, instead in sorted(cuts):
        parts += [code[4 * at : 4 * begin], instead]
        at = end
    return b"".join((*parts, code[4 * at :]))


def _undefined(call: _FunctionCall) -> bytes:
    return np.array([3 << 16 | _UNDEF, call.type, call.result], np.uint32).tobytes()


def _reached(function: _Function, known: Mapping[int, int]) -> set[int]:
    """The labels of the blocks that a run may reach."""
    first = next(iter(function.blocks))
    waiting, reached = [first], {first}
    while waiting:
        _, condition, targets = function.blocks[waiting.pop()]
        if condition in known:
            targets = targets[:1] if known[condition] else targets[1:]
        new = {t for t in targets if t in function.blocks} - reached
        reached |= new
        waiting += new
    return reached
