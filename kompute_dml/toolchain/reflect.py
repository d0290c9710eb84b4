"""Reflection of SPIR-V compute shaders: capabilities, constants, push block, bindings, sizes."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from typing import Any

MAGIC = 0x07230203

# Opcodes, storage classes and decorations of the SPIR-V specification.
_NAME, _MEMBER_NAME, _EXTENSION, _EXECUTION_MODE, _CAPABILITY = 5, 6, 10, 16, 17
_TYPE_BOOL, _TYPE_INT, _TYPE_FLOAT, _TYPE_VECTOR = 20, 21, 22, 23
_TYPE_ARRAY, _TYPE_STRUCT, _TYPE_POINTER = 28, 30, 32
_CONSTANT, _CONSTANT_COMPOSITE = 43, 44
_SPEC_TRUE, _SPEC_FALSE, _SPEC_CONSTANT, _SPEC_COMPOSITE, _SPEC_OP = 48, 49, 50, 51, 52
_VARIABLE, _DECORATE, _MEMBER_DECORATE, _EXECUTION_MODE_ID = 59, 71, 72, 331
_COMPOSITE_EXTRACT = 81
_OPERATIONS: dict[int, Callable[..., int]] = {
    128: operator.add, 130: operator.sub, 132: operator.mul, 134: operator.floordiv,
    137: operator.mod, 169: lambda condition, x, y: x if condition else y,
    170: operator.eq, 171: operator.ne, 172: operator.gt, 174: operator.ge, 176: operator.lt,
    178: operator.le, 194: operator.rshift, 196: operator.lshift, 199: operator.and_,
}
"""Operations on unsigned numbers, by opcode."""
_WORKGROUP, _PUSH_CONSTANT, _STORAGE_BUFFER = 4, 9, 12
_SPEC_ID, _BUILT_IN, _BINDING, _OFFSET, _ARRAY_STRIDE = 1, 11, 33, 35, 6
_LOCAL_SIZE, _LOCAL_SIZE_ID, _WORKGROUP_SIZE = 17, 38, 25

_CAPABILITIES = {
    1: "Shader", 9: "Float16", 10: "Float64", 11: "Int64", 12: "Int64Atomics", 22: "Int16",
    39: "Int8", 61: "GroupNonUniform", 62: "GroupNonUniformVote", 63: "GroupNonUniformArithmetic",
    64: "GroupNonUniformBallot", 65: "GroupNonUniformShuffle",
    66: "GroupNonUniformShuffleRelative", 67: "GroupNonUniformClustered",
    68: "GroupNonUniformQuad", 4423: "SubgroupBallotKHR", 4431: "SubgroupVoteKHR",
    4433: "StorageBuffer16BitAccess", 4434: "UniformAndStorageBuffer16BitAccess",
    4435: "StoragePushConstant16", 4441: "VariablePointersStorageBuffer",
    4442: "VariablePointers", 4448: "StorageBuffer8BitAccess",
    4449: "UniformAndStorageBuffer8BitAccess", 4450: "StoragePushConstant8",
    4464: "DenormPreserve", 4465: "DenormFlushToZero", 4466: "SignedZeroInfNanPreserve",
    4467: "RoundingModeRTE", 4468: "RoundingModeRTZ", 5055: "ShaderClockKHR",
    5116: "BFloat16TypeKHR", 5117: "BFloat16DotProductKHR", 5118: "BFloat16CooperativeMatrixKHR",
    5345: "VulkanMemoryModel", 5346: "VulkanMemoryModelDeviceScope",
    5347: "PhysicalStorageBufferAddresses", 5357: "CooperativeMatrixNV",
    6016: "DotProductInputAll", 6017: "DotProductInput4x8Bit",
    6018: "DotProductInput4x8BitPacked", 6019: "DotProduct", 6022: "CooperativeMatrixKHR",
    6033: "AtomicFloat32AddEXT", 6034: "AtomicFloat64AddEXT", 6095: "AtomicFloat16AddEXT",
}  # fmt: skip


class ReflectionError(ValueError):
    """A shader has declarations that the package does not support."""


class _ReflectedModule:
    """The relevant instructions, grouped by what they define."""

    def __init__(self, binary: bytes) -> None:
        words = struct.unpack(f"<{len(binary) // 4}I", binary[: len(binary) // 4 * 4])
        if len(words) < 5 or words[0] != MAGIC:
            raise ReflectionError("expected a little-endian SPIR-V module")
        self.capabilities: list[int] = []
        self.extensions: list[str] = []
        self.names: dict[int, str] = {}
        self.member_names: dict[tuple[int, int], str] = {}
        self.decorations: dict[tuple[int, int], int] = {}  # (id, decoration) -> first operand
        self.member_offsets: dict[tuple[int, int], int] = {}
        self.types: dict[int, tuple[int, tuple[int, ...]]] = {}  # id -> opcode, operands
        self.constants: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.variables: list[tuple[int, int, int]] = []  # id, pointer type, storage class
        self.local_size: tuple[int, ...] = (1, 1, 1)
        self.local_size_ids: tuple[int, ...] = ()
        at = 5
        while at < len(words):
            length, opcode = words[at] >> 16, words[at] & 0xFFFF
            if length == 0:
                raise ReflectionError("the SPIR-V module is damaged")
            self._read(opcode, words[at + 1 : at + length])
            at += length

    def _read(self, opcode: int, a: tuple[int, ...]) -> None:
        if opcode == _CAPABILITY:
            self.capabilities.append(a[0])
        elif opcode == _EXTENSION:
            self.extensions.append(_text(a))
        elif opcode == _NAME:
            self.names[a[0]] = _text(a[1:])
        elif opcode == _MEMBER_NAME:
            self.member_names[a[0], a[1]] = _text(a[2:])
        elif opcode == _DECORATE:
            self.decorations[a[0], a[1]] = a[2] if len(a) > 2 else 0
        elif opcode == _MEMBER_DECORATE and a[2] == _OFFSET:
            self.member_offsets[a[0], a[1]] = a[3]
        elif opcode == _EXECUTION_MODE and a[1] == _LOCAL_SIZE:
            self.local_size = a[2:5]
        elif opcode == _EXECUTION_MODE_ID and a[1] == _LOCAL_SIZE_ID:
            self.local_size_ids = a[2:5]
        elif _TYPE_BOOL <= opcode <= _TYPE_POINTER:
            self.types[a[0]] = opcode, a[1:]
        elif _CONSTANT <= opcode <= _CONSTANT_COMPOSITE or _SPEC_TRUE <= opcode <= _SPEC_OP:
            self.constants[a[1]] = opcode, (a[0], *a[2:])
            composite = opcode in (_CONSTANT_COMPOSITE, _SPEC_COMPOSITE)
            if composite and self.decorations.get((a[1], _BUILT_IN)) == _WORKGROUP_SIZE:
                self.local_size_ids = a[2:5]
        elif opcode == _VARIABLE:
            self.variables.append((a[1], a[0], a[2]))

    def variables_in(self, storage: int) -> list[tuple[int, int]]:
        """(variable, the type it points to) in a storage class."""
        return [(v, self.types[p][1][1]) for v, p, s in self.variables if s == storage]

    def value(self, constant: int) -> int:
        """The word of a scalar constant, or the default of a specialization constant."""
        opcode, operands = self.constants.get(constant, (0, ()))
        if opcode in (_SPEC_TRUE, _SPEC_FALSE):
            return int(opcode == _SPEC_TRUE)
        if opcode == _SPEC_OP:
            return self._computed(*operands[1:])
        if opcode not in (_CONSTANT, _SPEC_CONSTANT) or len(operands) != 2:
            raise ReflectionError("expected sizes and constants to be plain 32-bit constants")
        return operands[1]

    def _computed(self, operation: int, *operands: int) -> int:
        """The result of an operation on constants, for their defaults."""
        if operation == _COMPOSITE_EXTRACT:
            return self.value(self.constants[operands[0]][1][1 + operands[1]])
        if operation not in _OPERATIONS:
            raise ReflectionError("expected sizes and constants to be sums, products or quotients")
        return _OPERATIONS[operation](*map(self.value, operands)) & 0xFFFFFFFF

    def bytes_of(self, type_id: int) -> int:
        """The size of a value in shared memory, packed."""
        opcode, operands = self.types[type_id]
        if opcode == _TYPE_BOOL:
            return 4
        if opcode in (_TYPE_INT, _TYPE_FLOAT):
            return operands[0] // 8
        if opcode == _TYPE_VECTOR:
            return operands[1] * self.bytes_of(operands[0])
        if opcode == _TYPE_ARRAY:
            return self.value(operands[1]) * self.bytes_of(operands[0])
        if opcode == _TYPE_STRUCT:
            return sum(map(self.bytes_of, operands))
        raise ReflectionError(f"shared memory holds a type of opcode {opcode}")

    def is_vector(self, type_id: int) -> bool:
        """Whether it is a vector of 16 bytes, or an array of such vectors."""
        opcode, operands = self.types[type_id]
        if opcode == _TYPE_ARRAY:
            return self.is_vector(operands[0])
        return opcode == _TYPE_VECTOR and self.bytes_of(type_id) == 16


def vectors_in_shared_memory(binary: bytes) -> list[int]:
    """The bytes before each shared variable of vectors of 16 bytes, where a compiler puts one
    variable after the other. Sizes are those of the constants' defaults."""
    module, at, found = _ReflectedModule(binary), 0, []
    for _, type_id in module.variables_in(_WORKGROUP):
        if module.is_vector(type_id):
            found.append(at)
        at += module.bytes_of(type_id)
    return found


def reflect(binary: bytes) -> dict[str, Any]:
    """The manifest's record of a compiled shader.

    Offset and count of a push field are in 32-bit words. A local size with a specialization id but
    no name is called LOCAL_SIZE (then LOCAL_SIZE_Y, LOCAL_SIZE_Z).
    """
    module = _ReflectedModule(binary)
    size_names = dict(zip(module.local_size_ids, ("LOCAL_SIZE", "LOCAL_SIZE_Y", "LOCAL_SIZE_Z")))
    constants = {}
    for (constant, decoration), spec_id in module.decorations.items():
        if decoration == _SPEC_ID:
            name = module.names.get(constant) or size_names.get(constant) or f"constant_{spec_id}"
            if module.constants[constant][0] == _SPEC_OP:
                raise ReflectionError(f"expected a number as the default of constant {name}")
            constants[name] = {"id": spec_id, "default": module.value(constant)}
    size_ids = [module.decorations.get((c, _SPEC_ID)) for c in module.local_size_ids]
    sizes = [module.value(c) for c in module.local_size_ids] or list(module.local_size)
    bindings = [module.decorations[v, _BINDING] for v, _ in module.variables_in(_STORAGE_BUFFER)]
    return {
        "capabilities": sorted(
            _CAPABILITIES.get(number, f"Capability{number}") for number in module.capabilities
        ),
        "extensions": sorted(module.extensions),
        "spec_constants": dict(sorted(constants.items(), key=lambda item: item[1]["id"])),
        "push": _push_block(module),
        "bindings": 1 + max(bindings, default=-1),
        "workgroup_size": sizes,
        "workgroup_size_ids": size_ids or [None, None, None],
        "shared_bytes": sum(module.bytes_of(t) for _, t in module.variables_in(_WORKGROUP)),
    }


def _push_block(module: _ReflectedModule) -> dict[str, dict[str, int]]:
    fields = {}
    for _, block in module.variables_in(_PUSH_CONSTANT):
        for member, type_id in enumerate(module.types[block][1]):
            name = module.member_names.get((block, member)) or f"member_{member}"
            count = _words(module, type_id)
            offset = module.member_offsets[block, member]
            if count is None or offset % 4:
                raise ReflectionError(
                    f"expected push field {name} to be 32-bit words or an array of them"
                )
            fields[name] = {"offset": offset // 4, "count": count}
    return fields


def _words(module: _ReflectedModule, type_id: int) -> int | None:
    """The number of contiguous 32-bit words of a type; None for any other type."""
    opcode, operands = module.types[type_id]
    if opcode in (_TYPE_INT, _TYPE_FLOAT):
        return 1 if operands[0] == 32 else None
    if opcode not in (_TYPE_VECTOR, _TYPE_ARRAY):
        return None
    element = _words(module, operands[0])
    if element is None:
        return None
    if opcode == _TYPE_VECTOR:
        return operands[1] * element
    if module.decorations.get((type_id, _ARRAY_STRIDE)) != 4 * element:
        return None
    return module.value(operands[1]) * element


def _text(words: tuple[int, ...]) -> str:
    return struct.pack(f"<{len(words)}I", *words).split(b"\0", 1)[0].decode("utf-8")
