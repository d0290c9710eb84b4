"""Puts BFLOAT16 in the place of FLOAT16 in SPIR-V, for compilers that do not know the type.

It serves shaders that only load, multiply and store matrices of such elements.
https://github.khronos.org/SPIRV-Registry/extensions/KHR/SPV_KHR_bfloat16.html
"""

from __future__ import annotations

import array

# Opcodes, capabilities and an encoding of the SPIR-V specification.
_EXTENSION, _CAPABILITY, _TYPE_FLOAT, _MATRIX = 10, 17, 22, 4456
_FLOAT16, _BFLOAT16, _MATRICES_OF_BFLOAT16 = 9, 5116, 5118
_ENCODING = 0
_COMPUTES = range(109, 153)
"""What converts numbers and computes with them, but for the product of matrices."""
_TYPES_OF_TYPES = {23: slice(1, 2), 24: slice(1, 2), 28: slice(1, 2), 29: slice(1, 2),
                   30: slice(1, None), 32: slice(2, 3), 33: slice(1, None)}
"""Where types are among the operands of what makes types of them: vectors, arrays, pointers."""
_NAME = array.array("I", b"SPV_KHR_bfloat16".ljust(20, b"\0"))


def with_bfloat16(code: bytes) -> bytes:
    """SPIR-V in which the elements of matrices are BFLOAT16 instead of FLOAT16. Raises ValueError
    if there is no FLOAT16, or if it stands for anything but elements of matrices."""
    words = array.array("I", code)
    changed, at, half, is_named = words[:5], 5, 0, False
    matrices = set()
    while at < len(words):
        length, opcode = words[at] >> 16, words[at] & 0xFFFF
        instruction = words[at:at + length]
        operands = instruction[1:]
        at += length
        if opcode == _CAPABILITY and operands[0] == _FLOAT16:
            for capability in (_BFLOAT16, _MATRICES_OF_BFLOAT16):
                changed.extend((2 << 16 | _CAPABILITY, capability))
            continue
        if opcode == _EXTENSION and not is_named:
            is_named = True
            changed.append(len(_NAME) + 1 << 16 | _EXTENSION)
            changed.extend(_NAME)
        elif opcode == _TYPE_FLOAT and operands[1] == 16:
            half = operands[0]
            changed.extend((4 << 16 | _TYPE_FLOAT, half, 16, _ENCODING))
            continue
        elif half and opcode == _MATRIX:
            if operands[1] == half:
                matrices.add(operands[0])
        elif half:
            types = operands[_TYPES_OF_TYPES.get(opcode, slice(0, 1))]
            if half in types or (opcode in _COMPUTES and types[0] in matrices):
                raise ValueError(
                    f"expected FLOAT16 only as elements of matrices, but opcode {opcode} has it")
        changed.extend(instruction)
    if not half:
        raise ValueError("expected matrices of FLOAT16")
    return changed.tobytes()
