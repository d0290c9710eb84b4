"""Rewrites shaders to access buffers as 64-bit numbers, for drivers that run on the CPU.

They load and store components one by one, lane by lane. A vector of four words has four
components. The same bits as 64-bit numbers have two. So ``uvec4 x[]`` becomes ``u64vec2 x[]``,
``uvec2 x[]`` becomes ``uint64_t x[]``, and bitcasts follow the loads and come before the stores.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

# Opcodes, a capability and a storage class of the SPIR-V specification.
_CAPABILITY, _TYPE_INT, _TYPE_FLOAT, _TYPE_VECTOR = 17, 21, 22, 23
_TYPE_RUNTIME_ARRAY, _TYPE_STRUCT, _TYPE_POINTER = 29, 30, 32
_VARIABLE, _LOAD, _STORE, _ACCESS_CHAIN, _BITCAST = 59, 61, 62, 65, 124
_INT64, _STORAGE_BUFFER = 11, 12

_Instruction = tuple[int, Sequence[int]]
"""Opcode and operands."""


@functools.cache
def by_longs(code: bytes) -> bytes:
    """SPIR-V with the same results as ``code``, for a device with shaderInt64."""
    words = memoryview(code).cast("I")
    body = list(_instructions(words))
    if (_CAPABILITY, [_INT64]) in body:
        return code
    arrays = _arrays_of_vectors(body)
    buffers = _buffers(body, arrays)
    if not buffers:
        return code
    ids = itertools.count(words[3])
    types = {2: next(ids), 4: next(ids)}
    pointers = {size: next(ids) for size in types}
    declarations: list[_Instruction] = [
        (_TYPE_INT, [types[2], 64, 0]),
        (_TYPE_VECTOR, [types[4], types[2], 2]),
        *((_TYPE_POINTER, [pointers[size], _STORAGE_BUFFER, types[size]]) for size in types),
    ]
    instructions: list[_Instruction] = [(_CAPABILITY, [_INT64])]
    elements: dict[int, int] = {}  # pointers to elements -> words
    for opcode, operands in body:
        if opcode == _TYPE_RUNTIME_ARRAY and operands[0] in buffers.values():
            instructions += declarations
            declarations = []
            instructions.append((opcode, [operands[0], types[arrays[operands[0]]]]))
        elif opcode == _ACCESS_CHAIN and operands[2] in buffers:
            size = elements[operands[1]] = arrays[buffers[operands[2]]]
            instructions.append((opcode, [pointers[size], *operands[1:]]))
        elif opcode == _LOAD and operands[2] in elements:
            longs = next(ids)
            instructions.append((opcode, [types[elements[operands[2]]], longs, *operands[2:]]))
            instructions.append((_BITCAST, [*operands[:2], longs]))
        elif opcode == _STORE and operands[0] in elements:
            longs = next(ids)
            instructions.append((_BITCAST, [types[elements[operands[0]]], longs, operands[1]]))
            instructions.append((opcode, [operands[0], longs, *operands[2:]]))
        else:
            instructions.append((opcode, operands))
    result = [*words[:3], next(ids), words[4]]
    for opcode, operands in instructions:
        result += [len(operands) + 1 << 16 | opcode, *operands]
    return np.array(result, np.uint32).tobytes()


def _instructions(words: Sequence[int]) -> Iterator[_Instruction]:
    at = 5
    while at < len(words):
        length = words[at] >> 16
        yield words[at] & 0xFFFF, list(words[at + 1 : at + length])
        at += length


def _arrays_of_vectors(body: Sequence[_Instruction]) -> dict[int, int]:
    """Runtime arrays of vectors of two or four words: their ids, and the number of words."""
    scalars = {a[0] for op, a in body if op in (_TYPE_INT, _TYPE_FLOAT) and a[1] == 32}
    vectors = {a[0]: a[2] for op, a in body
               if op == _TYPE_VECTOR and a[1] in scalars and a[2] in (2, 4)}
    return {a[0]: vectors[a[1]] for op, a in body
            if op == _TYPE_RUNTIME_ARRAY and a[1] in vectors}


def _buffers(body: Sequence[_Instruction], arrays: dict[int, int]) -> dict[int, int]:
    """Variables that consist of such an array and are accessed by whole vectors only."""
    blocks = {a[0]: a[1] for op, a in body
              if op == _TYPE_STRUCT and len(a) == 2 and a[1] in arrays}
    pointers = {a[0]: blocks[a[2]] for op, a in body
                if op == _TYPE_POINTER and a[1] == _STORAGE_BUFFER and a[2] in blocks}
    buffers = {a[1]: pointers[a[0]] for op, a in body if op == _VARIABLE and a[0] in pointers}
    chains = [a for op, a in body if op == _ACCESS_CHAIN and a[2] in buffers]
    apart = {buffers[a[2]] for a in chains if len(a) != 5}
    return {variable: array for variable, array in buffers.items() if array not in apart}
