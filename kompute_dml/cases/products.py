"""Matrix products."""

from __future__ import annotations

import numpy as np

from .case import Entry, case, coarse, matrix, one, rows

_BYTE = np.uint8


CASES: dict[str, Entry] = {
    "GEMM": lambda s: case(lambda a, b, c: a @ b + c, rows(s), matrix(s), rows(s),
                            operations=2 * s.side**3),
    "MATRIX_MULTIPLY_INTEGER_TO_FLOAT": lambda s: case(
        lambda a, a_scale, b, b_scale: a @ b * a_scale * b_scale, rows(s, 0, 256, _BYTE),
        one(1 / 64), matrix(s, _BYTE, 256), one(1 / 32), operations=2 * s.side**3),
    "MATRIX_MULTIPLY_INTEGER": lambda s: case(
        np.matmul, rows(s, 0, 256, _BYTE), matrix(s, _BYTE, 256), operations=2 * s.side**3),
    "QUANTIZED_LINEAR_MATRIX_MULTIPLY": lambda s: case(
        lambda a, _, b, __, y: np.rint(a @ b / y), rows(s, 0, 4, _BYTE), one(1),
        matrix(s, _BYTE, 4), one(1), coarse(s.side), operations=2 * s.side**3),
}
