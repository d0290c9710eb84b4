"""How DFT and STFT lower: products with constant matrices.

A short transform is one product. A longer one, of a x b elements, is transforms of a and of b
elements with a factor for each element between them; one of a prime number of elements is a
convolution, which takes transforms of a power of 2 (Bluestein). So every length is served.
"""

from __future__ import annotations

import numpy as np

from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import product
from ..graph import OnnxNode
from ..lowerings import Inputs, converted, dimension, emit_elementwise, given, host
from ..row import Mapping
from . import movement
from .products import product_of

_SHORT = 512
"""Elements of a transform that is one product."""
_FLOAT = np.dtype("float32")


def dft(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, read = given(inputs, 0), node.attributes.get
    rank, one_sided, inverse = len(x.shape), bool(read("onesided", 0)), bool(read("inverse", 0))
    axis = _number(inputs, 2)
    axis = dimension(read("axis", 1 if node.since < 20 else -2) if axis is None else axis, rank)
    if x.shape[-1] not in (1, 2) or axis == rank - 1:
        raise ValidationError(
            f"expected real or complex numbers in the last dimension of {list(x.shape)}, and "
            f"another axis, but got {axis}")
    length, back = _number(inputs, 1), one_sided and inverse
    if length is None:
        length = 2 * (x.shape[axis] - 1) if back else x.shape[axis]
    if length < 1:
        raise ValidationError(f"expected a length of at least 1, but got {length}")
    others = [d for d in range(rank - 1) if d != axis]
    order = [*others, axis, rank - 1]
    x = x.transpose(order)
    front = x.shape[:-2]
    y = transform(builder, builder.reshape(x, (product(front), *x.shape[-2:])), length,
                   inverse, one_sided)
    y = builder.reshape(y, (*front, *y.shape[1:]))
    return [y.transpose([order.index(d) for d in range(rank)])]


def stft(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """The transforms of windows, which are views of the signal."""
    x, window = given(inputs, 0), inputs[2] if len(inputs) > 2 else None
    step, length = _number(inputs, 1), _number(inputs, 3)
    if len(x.shape) == 2:
        x = builder.reshape(x, (*x.shape, 1))
    batches, samples, parts = x.shape
    if length is None:
        length = samples if window is None else window.size
    if not step or step < 1 or not 1 <= length <= samples or (
            window is not None and window.size != length):
        raise ValidationError(
            f"expected steps and windows within {samples} samples, but got steps of {step}, "
            f"windows of {length}")
    frames = (samples - length) // step + 1
    s = x.strides
    y = x.view((batches, frames, length, parts), (s[0], step * s[1], s[1], s[2]))
    if window is not None:
        y = emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY",
                             [y, builder.reshape(window, (length, 1))], x.dtype, {})
    y = transform(builder, builder.reshape(y, (batches * frames, length, parts)), length, False,
                   bool(node.attributes.get("onesided", 1)))
    return [builder.reshape(y, (batches, frames, *y.shape[1:]))]


def _number(inputs: Inputs, index: int) -> int | None:
    values = host(inputs, index)
    return None if values is None else int(values.reshape(-1)[0])


def transform(builder: Builder, x: Array, length: int, inverse: bool, one_sided: bool) -> Array:
    """Of the second of three dimensions; the third one holds the parts of a number."""
    dtype = x.dtype
    x = converted(builder, x, _FLOAT)  # a factor for each element has more digits than FLOAT16
    rows, n, parts = x.shape
    back = inverse and one_sided
    count = min(n, length // 2 + 1 if back else length)
    x = x.view((rows, count, parts), x.strides)
    kept = length // 2 + 1 if one_sided and not inverse else length
    if length <= _SHORT:
        matrix = matrix_of(length, count, kept, parts, inverse, back)
        y = _product(builder, x, matrix, 1 if back else 2)
    else:
        x = _complex(builder, x)
        scale = np.full(count, 1 / length if inverse else 1)
        if inverse:
            x = _times(builder, x, scale * _weights(count, length) if back else scale)
        y = _long(builder, _padded(builder, x, length), inverse)
        y = y.view((rows, kept, 1 if back else 2), y.strides)
    return converted(builder, y, dtype)


def _weights(count: int, length: int) -> np.ndarray:
    """Of one half of a spectrum all numbers but the first and the middle one stand for two, which
    are conjugates of each other: the real part of what is made of them is that of the whole."""
    k = np.arange(count)
    return np.where((k == 0) | (2 * k == length), 1, 2)


def roots_of(a: int, b: int, n: int, inverse: bool) -> np.ndarray:
    """exp(-2 pi i j k / n) for j < a and k < b."""
    turns = np.outer(np.arange(a), np.arange(b)) % n / n
    return np.asarray(np.exp((2j if inverse else -2j) * np.pi * turns))


def matrix_of(
    length: int, count: int, kept: int, parts: int, inverse: bool, back: bool
) -> np.ndarray:
    """From ``count`` numbers, which zeros follow, to the ``kept`` first ones of the transform, or
    to the real ones that half a spectrum goes ``back`` to."""
    roots = roots_of(count, kept, length, inverse) / (length if inverse else 1)
    if back:
        roots = roots * _weights(count, length)[:, None]
    rows = [np.stack([w.real] if back else [w.real, w.imag], -1)
            for w in (roots, 1j * roots)[:parts]]
    return np.stack(rows, 1).reshape(count * parts, -1)


def _product(builder: Builder, x: Array, matrix: np.ndarray, parts: int = 2) -> Array:
    rows, columns = x.shape[0], matrix.shape[1]
    y = product_of(builder, builder.reshape(x, (rows, matrix.shape[0])),
                   builder.constant(matrix.astype(_FLOAT)))
    return builder.reshape(y, (rows, columns // parts, parts))


def _long(builder: Builder, x: Array, inverse: bool) -> Array:
    """The whole transform of complex numbers, without the inverse's factor."""
    rows, n, _ = x.shape
    if n <= _SHORT:
        return _product(builder, x, matrix_of(n, n, n, 2, False, False) if not inverse
                        else matrix_of(n, n, n, 2, True, False) * n)
    a = max(d for d in range(1, _SHORT + 1) if n % d == 0)
    if a == 1:
        return _chirp(builder, x, inverse)
    b = n // a
    # Element b j + k of what is read, and k + a j of what is made.
    x = builder.reshape(x, (rows, a, b, 2)).transpose((0, 2, 1, 3))
    x = _long(builder, builder.reshape(x, (rows * b, a, 2)), inverse)
    x = _times(builder, builder.reshape(x, (rows, b, a, 2)), roots_of(b, a, n, inverse))
    x = builder.reshape(x.transpose((0, 2, 1, 3)), (rows * a, b, 2))
    y = builder.reshape(_long(builder, x, inverse), (rows, a, b, 2))
    return builder.reshape(y.transpose((0, 2, 1, 3)), (rows, n, 2))


def _chirp(builder: Builder, x: Array, inverse: bool) -> Array:
    """Bluestein's: 2 j k is j^2 + k^2 - (j - k)^2, so that what is left is a convolution."""
    n = x.shape[1]
    size = 1 << (2 * n - 2).bit_length()
    turns = np.arange(n, dtype=np.int64) ** 2 % (2 * n) / n
    chirp = np.exp((1j if inverse else -1j) * np.pi * turns)
    kernel = np.zeros(size, complex)
    kernel[:n] = chirp.conj()
    kernel[size - n + 1 :] = chirp[:0:-1].conj()
    x = _padded(builder, _times(builder, x, chirp), size)
    x = _times(builder, _long(builder, x, False), np.fft.fft(kernel) / size)
    y = _long(builder, x, True)
    return _times(builder, y.view((x.shape[0], n, 2), y.strides), chirp)


def _times(builder: Builder, x: Array, factors: np.ndarray) -> Array:
    """Complex numbers by constants, of which there is one for each of the last numbers."""
    parts = [x.view((*x.shape[:-1], 1), x.strides, i * x.strides[-1]) for i in range(2)]
    real, imaginary = (builder.constant(p[..., None].astype(_FLOAT))
                       for p in (np.real(factors), np.imag(factors)))

    def sum_of(operator: str, a: Array, b: Array) -> Array:
        products = [emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", [p, f], _FLOAT, {})
                    for p, f in zip(parts, (a, b))]
        return emit_elementwise(builder, operator, products, _FLOAT, {})

    return movement.joined(builder, [sum_of("ELEMENT_WISE_SUBTRACT", real, imaginary),
                             sum_of("ELEMENT_WISE_ADD", imaginary, real)], -1)


def _zeros(builder: Builder, shape: tuple[int, ...]) -> Array:
    zero: Array = builder.constant(np.zeros((), _FLOAT))
    return zero.broadcast_to(shape)


def _complex(builder: Builder, x: Array) -> Array:
    return x if x.shape[-1] == 2 else movement.joined(builder, [x, _zeros(builder, x.shape)], -1)


def _padded(builder: Builder, x: Array, length: int) -> Array:
    rows, n, parts = x.shape
    if n == length:
        return x
    return movement.joined(builder, [x, _zeros(builder, (rows, length - n, parts))], 1)


ROWS: tuple[Mapping, ...] = (
    Mapping("DFT", (17, 20), "GEMM", dft, fields=("ATensor", None, None), host=(1, 2),
        attributes=("axis", "inverse", "onesided"), multiplies=True),
    Mapping("STFT", (17,), "GEMM", stft, fields=("ATensor", None, "ATensor", None),
        attributes=("onesided",), host=(1, 3), multiplies=True),
)
