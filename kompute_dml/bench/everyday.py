"""An ordinary case of each operator that no other module here measures: a table of short entries.

A new operator needs an entry here and nothing else: inputs, the function's arguments, and what
NumPy makes of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..attributes import InterpolationMode, ReduceFunction, Size2d
from ..dtypes import DataType
from ..operators.base import definitions
from .case import TINY, Case, Recipe, Scale, shape, touched_bytes
from .values import Pattern, host, numbers

_CHECKED = 1 << 16
"""Elements of the first input that are checked at each end of it, and at least one item."""


class _Given(NamedTuple):
    """An input of random numbers."""

    sizes: tuple[int, ...]
    low: float = 0.1
    high: float = 0.9
    dtype: Any = np.float32
    shared: bool = False
    """Whether all items of the output need all of it. Other inputs have an item for each."""


class _Work(NamedTuple):
    reference: Callable[..., Any]
    """NumPy's, of some items of the inputs: one array for each output."""
    inputs: tuple[Any, ...]
    """:class:`_Given`, or small arrays that are shared."""
    arguments: dict[str, Any]
    out: tuple[int, ...] | None
    """The output's sizes where the arguments do not tell them."""
    operations: int
    room: float
    """What a float may be off, as a part of the largest one."""
    call: Callable[..., Any]
    """(the function, inputs and arguments) -> outputs."""


def _work(reference: Callable[..., Any], *inputs: Any, out: tuple[int, ...] | None = None,
          operations: int = 0, room: float = 1e-5,
          call: Callable[..., Any] = lambda f, /, *inputs, **arguments: f(
              *inputs, **arguments), **arguments: Any) -> _Work:
    return _Work(reference, inputs, arguments, out, operations, room, call)


def _tuple(outputs: Any) -> tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def _recipe(name: str, entry: Callable[[Scale], _Work]) -> Recipe:
    operator = "DML_OPERATOR_" + name
    # Sizes depend on the scale, types do not.
    types = DataType.of(np.dtype(entry(TINY).inputs[0].dtype).name).family

    def make(device: Any, scale: Scale) -> Iterator[Case]:
        import kompute_dml as dml

        w = entry(scale)
        function = getattr(dml, definitions()[operator].function_name)
        patterns = [numbers(g.dtype, math.prod(g.sizes), g.low, g.high, 4 + i)
                    if isinstance(g, _Given) else Pattern(g.reshape(-1), g.size)
                    for i, g in enumerate(w.inputs)]
        sizes = [g.sizes if isinstance(g, _Given) else g.shape for g in w.inputs]
        inputs = [p.tensor(device).reshape(*n) for p, n in zip(patterns, sizes)]
        made = None if w.out is None else device.empty(w.out, inputs[0].data_type)
        outputs = w.call(function, *inputs, **w.arguments, out=made)
        yield Case(
            operator, types, shape(sizes[0]),
            lambda: w.call(function, *inputs, **w.arguments, out=outputs),
            _check(w, patterns, sizes),
            touched_bytes(t.desc for t in (*inputs, *_tuple(outputs))), w.operations)

    return Recipe(operator, types, make)


def _check(w: _Work, patterns: Sequence[Pattern],
           sizes: Sequence[tuple[int, ...]]) -> Callable[[Any], str]:
    """Compares the first and the last items; all where they depend on each other."""
    items = [isinstance(g, _Given) and not g.shared for g in w.inputs]

    def part(i: int, start: int, stop: int) -> np.ndarray:
        each = math.prod(sizes[i][1:])
        at = np.arange(start * each, stop * each) if items[i] else np.arange(math.prod(sizes[i]))
        x = patterns[i].at(at).reshape(-1, *sizes[i][1:])
        return x.astype(np.float64 if x.dtype.kind == "f" else np.int64)

    def check(given: Any) -> str:
        outputs, ends = _tuple(given), {(0, 0)}
        if any(items):
            cut = sizes[items.index(True)]
            count = min(cut[0], max(1, _CHECKED // math.prod(cut[1:])))
            ends = {(0, count), (cut[0] - count, cut[0])}
        for start, stop in sorted(ends):
            expected = _tuple(w.reference(*(part(i, start, stop) for i in range(len(items)))))
            key = slice(start, stop) if any(items) else slice(None)
            for got, wanted in zip(outputs, expected, strict=True):
                if problem := _near(host(got[key]), wanted, w.room):
                    return f"{problem} (from item {start})"
        return ""

    return check


def _near(got: np.ndarray, expected: np.ndarray, room: float) -> str:
    if got.shape != expected.shape:
        return f"expected sizes {list(expected.shape)}, but got {list(got.shape)}"
    off = np.abs(got.astype(np.float64) - expected)
    allowed = room * np.abs(expected).max() if got.dtype.kind == "f" else 0
    worst = np.unravel_index(np.where(np.isnan(off), np.inf, off).argmax(), off.shape)
    # A NaN is not within any bound.
    return "" if off[worst] <= allowed else (
        f"{off[worst]} off at {[int(i) for i in worst]}: "
        f"expected {expected[worst]}, but got {got[worst]}")


# Sizes


def _rows(s: Scale, low: float = 0.1, high: float = 0.9, dtype: Any = np.float32) -> _Given:
    return _Given((s.side, s.side), low, high, dtype)


def _matrix(s: Scale, dtype: Any = np.float32, high: float = 0.9) -> _Given:
    return _Given((s.side, s.side), 0.1, high, dtype, shared=True)


def _images(s: Scale, low: float = 0.1, high: float = 0.9, dtype: Any = np.float32, *,
            smaller: int = 1) -> _Given:
    """Of even sides, or so many times smaller."""
    side = min(s.side, 128) // 2 * 2
    channels = min(64, max(1, s.elements // side**2 // 2))
    count = max(1, s.elements // (channels * side**2))
    return _Given((count, channels, side // smaller, side // smaller), low, high, dtype)


def _per_channel(s: Scale, low: float = 0.1, high: float = 0.9) -> _Given:
    return _Given((1, _images(s).sizes[1], 1, 1), low, high, shared=True)


def _filter(s: Scale, dtype: Any = np.float32, high: float = 0.9) -> _Given:
    """3x3, from as many channels to as many."""
    channels = _images(s).sizes[1]
    return _Given((channels, channels, 3, 3), 0.1, high, dtype, shared=True)


def _one(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array([value], dtype)


def _convolution_operations(s: Scale) -> int:
    n, c, h, w = _images(s).sizes
    return 2 * n * c * c * 9 * (h - 2) * (w - 2)


def _coarse(terms: int) -> np.ndarray:
    """A power of two, by which sums of so many terms fit into bytes."""
    return _one(2.0 ** (math.ceil(math.log2(terms)) - 4))


# What NumPy does


def _windows(x: np.ndarray, step: int = 1) -> np.ndarray:
    """{n, c, h, w, 9} of 3x3."""
    found = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::step, ::step]
    return found.reshape(*found.shape[:4], 9)


def _blocks(x: np.ndarray) -> np.ndarray:
    """{n, c, h/2, w/2, 4} of 2x2."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).swapaxes(3, 4).reshape(n, c, h // 2, w // 2, 4)


def _joined(blocks: np.ndarray) -> np.ndarray:
    n, c, h, w, _ = blocks.shape
    return blocks.reshape(n, c, h, w, 2, 2).swapaxes(3, 4).reshape(n, c, 2 * h, 2 * w)


def _columns(x: np.ndarray) -> np.ndarray:
    n, c = x.shape[:2]
    return np.moveaxis(_blocks(x), 4, 2).reshape(n, 4 * c, -1)


def _image(columns: np.ndarray) -> np.ndarray:
    n, c, count = columns.shape
    side = math.isqrt(count)
    return _joined(np.moveaxis(columns.reshape(n, c // 4, 4, side, side), 2, 4))


def _placed(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Blocks of zeros with a value at one place of each."""
    return _joined(np.where(np.arange(4) == where[..., None], values[..., None], 0))


def _repeated(x: np.ndarray) -> np.ndarray:
    return x.repeat(2, 2).repeat(2, 3)


def _between(n: int) -> np.ndarray:
    """{2n, n}: linear interpolation to twice as many points, of which halves lie at the ends."""
    at = np.clip((np.arange(2 * n) + 0.5) / 2 - 0.5, 0, n - 1)
    return np.maximum(1 - np.abs(at[:, None] - np.arange(n)), 0)


def _doubled(x: np.ndarray) -> np.ndarray:
    return np.asarray(_between(x.shape[2]) @ x @ _between(x.shape[3]).T)


def _doubled_back(x: np.ndarray) -> np.ndarray:
    return np.asarray(_between(x.shape[2] // 2).T @ x @ _between(x.shape[3] // 2))


def _convolved(x: np.ndarray, filter: np.ndarray) -> np.ndarray:
    made = np.tensordot(_windows(x), filter.reshape(*filter.shape[:2], 9), ((1, 4), (1, 2)))
    return np.moveaxis(made, 3, 1)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _largest(x: np.ndarray) -> np.ndarray:
    return (np.arange(x.shape[-1]) == x.argmax(-1)[..., None]).astype(np.float64)


def _normal(x: np.ndarray, axes: Any, scale: Any = 1, bias: Any = 0) -> np.ndarray:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + 1e-5) * scale + bias)


def _top(x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(-x, 1, kind="stable")[:, :k]
    return np.take_along_axis(x, order, 1), order


def _neighbours(x: np.ndarray) -> np.ndarray:
    """Sums of three channels."""
    p = np.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    return np.asarray(p[:, :-2] + p[:, 1:-1] + p[:, 2:])


def _response_gradient(x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """With ``_RESPONSE``'s numbers."""
    s = 1 + 0.5 / 3 * _neighbours(x * x)
    return dy * s**-0.75 - 2 * 0.5 * 0.75 / 3 * x * _neighbours(dy * x * s**-1.75)


def _batch_gradient(
    training: bool, x: Any, dy: Any, mean: Any, variance: Any, scale: Any
) -> Any:
    axes, r = (0, 2, 3), 1 / np.sqrt(variance + 1e-5)
    sums = (dy * (x - mean) * r).sum(axes, keepdims=True), dy.sum(axes, keepdims=True)
    if not training:
        return dy * scale * r, *sums
    xc, dyc = (a - a.mean(axes, keepdims=True) for a in (x, dy))
    slope = (dy * xc).mean(axes, keepdims=True) / (variance + 1e-5)
    return scale * r * (dyc - xc * slope), *sums


def _adam(x: Any, m: Any, v: Any, g: Any, step: Any) -> Any:
    m, v = 0.9 * m + (1 - 0.9) * g, 0.999 * v + (1 - 0.999) * g * g
    rate = np.sqrt(1 - 0.999**3) / (1 - 0.9**3)
    return x - 0.01 * rate * m / (np.sqrt(v) + 1e-8), m, v


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Two heads."""
    q, k, v = (np.stack(np.split(x, 2, 2), 1) for x in (q, k, v))
    y = _softmax(0.125 * q @ k.swapaxes(2, 3)) @ v
    return np.concatenate([y[:, 0], y[:, 1]], 2)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _recurrent(gates: int) -> Callable[..., np.ndarray]:
    def step(a: Any, b: Any, h: Any, c: Any, hidden: np.ndarray) -> tuple[Any, Any]:
        if gates == 1:
            return np.tanh(a[0] + b[0]), c
        if gates == 3:
            z, r = _sigmoid(a[0] + b[0]), _sigmoid(a[1] + b[1])
            return (1 - z) * np.tanh(a[2] + (r * h) @ hidden.T) + z * h, c
        i, o, f = (_sigmoid(x + y) for x, y in zip(a[:3], b[:3]))
        c = f * c + i * np.tanh(a[3] + b[3])
        return o * np.tanh(c), c

    def reference(x: np.ndarray, weight: np.ndarray, recurrence: np.ndarray) -> np.ndarray:
        w, r, results = weight[0, 0], recurrence[0, 0], []
        h = c = np.zeros((x.shape[2], r.shape[1]))
        for part in x[0]:
            a, b = (np.split(y, gates, 1) for y in (part @ w.T, h @ r.T))
            h, c = step(a, b, h, c, r[-r.shape[1] :])
            results.append(h)
        return np.stack(results)[:, None]

    return reference


def _recurrent_work(s: Scale, *activations: str) -> _Work:
    """Four steps."""
    import kompute_dml as dml

    gates, n = {1: 1, 2: 3, 3: 4}[len(activations)], min(s.side, 512)
    return _work(
        _recurrent(gates), _Given((1, 4, n, n), -1, 1, shared=True),
        *(_Given((1, 1, gates * n, n), -0.1, 0.1, shared=True) for _ in range(2)),
        activation_descs=[getattr(dml, f"Activation{a}OperatorDesc")() for a in activations],
        output_sequence=True, operations=2 * 4 * n * 2 * n * gates * n, room=1e-4)


def _philox(count: int, state: np.ndarray) -> np.ndarray:
    """Philox 4x32-10 of a counter below 2^32."""
    low = np.uint64(0xFFFFFFFF)
    words = [np.full(-(-count // 4), int(n), np.uint64) for n in state.reshape(-1)[:4]]
    words[0] += np.arange(len(words[0]), dtype=np.uint64)
    keys = [int(n) for n in state.reshape(-1)[4:6]]
    for _ in range(10):
        a, b = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [b >> np.uint64(32) ^ words[1] ^ np.uint64(keys[0]), b & low,
                 a >> np.uint64(32) ^ words[3] ^ np.uint64(keys[1]), a & low]
        keys = [(k + w) % 2**32 for k, w in zip(keys, (0x9E3779B9, 0xBB67AE85))]
    return np.stack(words, 1).reshape(-1)[:count].astype(np.float64)


def _random(s: Scale) -> _Work:
    n = max(1, s.elements // 16)
    return _work(lambda state: _philox(n, state).reshape(1, 1, 1, n),
                 np.array([[[[7, 0, 5, 3, 11, 13]]]], np.uint32), sizes=(1, 1, 1, n))


# The table

_POOL: dict[str, Any] = dict(window_size=3, strides=2)
_BACK: dict[str, Any] = dict(
    window_size=(2, 2), strides=(2, 2), start_padding=(0, 0), end_padding=(0, 0))
_PATCH: dict[str, Any] = dict(
    window_sizes=(2, 2), strides=(2, 2), dilations=(1, 1), start_padding=(0, 0),
    end_padding=(0, 0))
_RESPONSE: dict[str, Any] = dict(local_size=3, alpha=0.5, beta=0.75, bias=1.0)
_TWICE: dict[str, Any] = dict(scales=(1, 1, 2, 2), interpolation_mode=InterpolationMode.LINEAR)
_CENTRES: dict[str, Any] = dict(input_pixel_offsets=(0.5,) * 4, output_pixel_offsets=(-0.5,) * 4)
_ADAM: dict[str, Any] = dict(learning_rate=0.01, beta1=0.9, beta2=0.999, epsilon=1e-8)
_SUM: dict[str, Any] = dict(function=ReduceFunction.SUM, axes=(-1,))


def _scanned(product: bool) -> Callable[[Scale], _Work]:
    low, high = (0.99, 1.01) if product else (0.1, 0.9)
    return lambda s: _work(lambda x: (np.cumprod if product else np.cumsum)(x, 1),
                           _rows(s, low, high), axis=1, room=1e-4)


def _regions(s: Scale, columns: int) -> np.ndarray:
    """Each image as a whole: {x1, y1, x2, y2}, or with the image's number in front."""
    n, _, h, w = _images(s).sizes
    if columns == 4:
        return np.array([[0, 0, w, h]] * n, np.float32)
    return np.array([[[[i, 0, 0, w - 1, h - 1] for i in range(n)]]], np.float32)


def _numbered(s: Scale) -> np.ndarray:
    return np.arange(_images(s).sizes[0], dtype=np.uint32)


def _aligned(s: Scale) -> _Work:
    return _work(lambda x, roi, batch: _blocks(x).mean(-1), _images(s), _regions(s, 4),
                 _numbered(s), output_size=_images(s, smaller=2).sizes[2:])


def _unpooled(s: Scale) -> _Work:
    x = _images(s, smaller=2)
    n, c, h, w = x.sizes
    places = np.arange(4 * n * c * h * w, dtype=np.uint32).reshape(n, c, 2 * h, 2 * w)
    return _work(lambda x, places: _placed(x, np.zeros(x.shape)), x,
                 np.ascontiguousarray(places[:, :, ::2, ::2]), output_sizes=places.shape)


def _folded(s: Scale) -> _Work:
    n, c, h, w = _images(s).sizes
    return _work(_image, _Given((n, 4 * c, h * w // 4)), sizes=(h, w), **_PATCH)


def _back(s: Scale, reference: Callable[..., Any], **arguments: Any) -> _Work:
    """A gradient of images that are twice as large as what comes in."""
    return _work(reference, _images(s, smaller=2), out=_images(s).sizes, **_BACK, **arguments)


def _resampled_back(s: Scale, **arguments: Any) -> _Work:
    offsets: dict[str, Any] = dict(input_pixel_offsets=(-0.5,) * 4, output_pixel_offsets=(0.5,) * 4)
    return _work(_doubled_back, _images(s), out=_images(s, smaller=2).sizes, **_TWICE, **offsets,
                 **arguments)


def _normalized(s: Scale, *axes: int, **arguments: Any) -> _Work:
    return _work(lambda x, scale, bias: _normal(x, axes, scale, bias), _images(s),
                 _per_channel(s), _per_channel(s), room=1e-4, **arguments)


def _batch_back(s: Scale, training: bool) -> _Work:
    images = [_images(s)._replace(shared=True) for _ in range(2)]
    return _work(partial(_batch_gradient, training), *images,
                 *(_per_channel(s) for _ in range(3)), room=1e-4)


def _heads(s: Scale, **counts: Any) -> _Work:
    length = min(s.side, 512)
    given = _Given((max(1, s.elements // (length * 128)), length, 128), -1, 1)
    return _work(_attention, given, given, given, scale=0.125, room=1e-4,
                 operations=4 * given.sizes[0] * length**2 * 128, **counts)


_Entry = Callable[[Scale], _Work]
_SOFTMAX: dict[str, Callable[..., Any]] = {
    "SOFTMAX": _softmax, "LOG_SOFTMAX": lambda x: np.log(_softmax(x)), "HARDMAX": _largest}
_BYTE = np.uint8


def _each(names: str, entry: _Entry) -> dict[str, _Entry]:
    return dict.fromkeys(names.split(), entry)


_TABLE: dict[str, _Entry] = {
    **{f"ACTIVATION_{name}{newer}": lambda s, f=f: _work(f, _rows(s, -2, 2))  # type: ignore[misc]
       for name, f in _SOFTMAX.items() for newer in ("", "1")},
    "REDUCE": lambda s: _work(lambda x: x.sum(1, keepdims=True), _rows(s), **_SUM),
    "ARGMAX": lambda s: _work(lambda x: x.argmax(1)[:, None], _rows(s), axes=(-1,)),
    "ARGMIN": lambda s: _work(lambda x: x.argmin(1)[:, None], _rows(s), axes=(-1,)),
    "CUMULATIVE_SUMMATION": _scanned(False),
    "CUMULATIVE_PRODUCT": _scanned(True),
    **_each("TOP_K TOP_K1", lambda s: _work(lambda x: _top(x, 5), _rows(s), k=5)),
    # Pooling
    "AVERAGE_POOLING1": lambda s: _work(lambda x: _windows(x, 2).mean(-1), _images(s), **_POOL),
    **_each("LP_POOLING LP_POOLING1", lambda s: _work(
        lambda x: np.sqrt((_windows(x, 2) ** 2).sum(-1)), _images(s), **_POOL)),
    **_each("MAX_POOLING1 MAX_POOLING2", lambda s: _work(
        lambda x: _windows(x, 2).max(-1), _images(s), **_POOL)),
    "QUANTIZED_LINEAR_AVERAGE_POOLING": lambda s: _work(
        lambda x, *_: np.rint(_windows(x, 2).mean(-1)), _images(s, 0, 255, _BYTE), _one(1), _one(1),
        **_POOL),
    "MAX_UNPOOLING": _unpooled,
    "ROI_POOLING": lambda s: _work(
        lambda x, roi: _blocks(x).max(-1), _images(s), _regions(s, 5),
        pooled_size=Size2d(*reversed(_images(s, smaller=2).sizes[2:]))),
    "ROI_ALIGN": _aligned, "ROI_ALIGN1": _aligned,
    # Other sizes
    "UPSAMPLE_2D": lambda s: _work(_repeated, _images(s, smaller=2), scale_size=Size2d(2, 2)),
    "RESAMPLE": lambda s: _work(_doubled, _images(s, smaller=2), **_TWICE),
    **_each("RESAMPLE1 RESAMPLE2 RESAMPLE3", lambda s: _work(
        _doubled, _images(s, smaller=2), **_TWICE, **_CENTRES)),
    "UNFOLD": lambda s: _work(_columns, _images(s), **_PATCH),
    "FOLD": _folded,
    # Normalization
    "BATCH_NORMALIZATION": lambda s: _work(
        lambda x, mean, variance, scale, bias: (x - mean) / np.sqrt(variance + 1e-5) * scale + bias,
        _images(s), *(_per_channel(s) for _ in range(4))),
    "MEAN_VARIANCE_NORMALIZATION": lambda s: _normalized(s, 2, 3),
    "MEAN_VARIANCE_NORMALIZATION1": lambda s: _normalized(s, 1, 2, 3, axes=(1, 2, 3)),
    "MEAN_VARIANCE_NORMALIZATION2": lambda s: _normalized(s, 1, 2, 3, axes=(1, 2, 3)),
    "LP_NORMALIZATION": lambda s: _work(
        lambda x: x / np.sqrt((x * x).sum(1, keepdims=True)), _rows(s)),
    "LOCAL_RESPONSE_NORMALIZATION": lambda s: _work(
        lambda x: x / (1 + 0.5 / 3 * _neighbours(x * x)) ** 0.75, _images(s), **_RESPONSE),
    # Products and convolutions
    "GEMM": lambda s: _work(lambda a, b, c: a @ b + c, _rows(s), _matrix(s), _rows(s),
                            operations=2 * s.side**3),
    "MATRIX_MULTIPLY_INTEGER": lambda s: _work(
        np.matmul, _rows(s, 0, 256, _BYTE), _matrix(s, _BYTE, 256), operations=2 * s.side**3),
    "QUANTIZED_LINEAR_MATRIX_MULTIPLY": lambda s: _work(
        lambda a, _, b, __, y: np.rint(a @ b / y), _rows(s, 0, 4, _BYTE), _one(1),
        _matrix(s, _BYTE, 4), _one(1), _coarse(s.side), operations=2 * s.side**3),
    "CONVOLUTION": lambda s: _work(
        _convolved, _images(s), _filter(s), operations=_convolution_operations(s)),
    "CONVOLUTION_INTEGER": lambda s: _work(
        _convolved, _images(s, 0, 256, _BYTE), _filter(s, _BYTE, 256),
        operations=_convolution_operations(s)),
    "QUANTIZED_LINEAR_CONVOLUTION": lambda s: _work(
        lambda x, _, __, filter, ___, ____, y: np.rint(_convolved(x, filter) / y),
        _images(s, 0, 4, _BYTE), _one(1), _one(0, _BYTE), _filter(s, _BYTE, 4), _one(1),
        _one(0, _BYTE), _coarse(9 * _filter(s).sizes[1]), operations=_convolution_operations(s)),
    "QUANTIZE": lambda s: _work(
        lambda x, scale, zero: np.clip(np.rint(x / scale) + zero, 0, 255), _rows(s, -4, 4),
        _one(1 / 64)[None], _one(128, _BYTE)[None], data_type="uint8",
        call=lambda f, /, x, *q, **more: f(x, q, **more)),
    "DEQUANTIZE": lambda s: _work(
        lambda x, scale, zero: (x - zero) * scale, _rows(s, 0, 256, _BYTE), _one(1 / 64)[None],
        _one(128, _BYTE)[None], call=lambda f, /, x, *q, **more: f(x, q, **more)),
    # Sequences
    "MULTIHEAD_ATTENTION": lambda s: _heads(s, head_count=2),
    "MULTIHEAD_ATTENTION1": lambda s: _heads(s, query_head_count=2, key_value_head_count=2),
    "RNN": lambda s: _recurrent_work(s, "Tanh"),
    "GRU": lambda s: _recurrent_work(s, "Sigmoid", "Tanh"),
    "LSTM": lambda s: _recurrent_work(s, "Sigmoid", "Tanh", "Tanh"),
    "RANDOM_GENERATOR": _random,
    # Gradients
    "ACTIVATION_RELU_GRAD": lambda s: _work(
        lambda x, dy: np.where(x > 0, dy, 0), _rows(s, -1, 1), _rows(s, -1, 1)),
    **_each("ELEMENT_WISE_CLIP_GRAD ELEMENT_WISE_CLIP_GRAD1", lambda s: _work(
        lambda x, dy: np.where((x > 0.25) & (x < 0.5), dy, 0), _rows(s), _rows(s, -1, 1),
        min=0.25, max=0.5)),
    "AVERAGE_POOLING_GRAD": lambda s: _back(s, lambda dy: _repeated(dy) / 4, include_padding=0),
    "MAX_POOLING_GRAD": lambda s: _work(
        lambda x, dy: _placed(dy, _blocks(x).argmax(-1)), _images(s), _images(s, smaller=2),
        dilations=(1, 1), **_BACK),
    "RESAMPLE_GRAD": _resampled_back, "RESAMPLE_GRAD1": _resampled_back,
    "ROI_ALIGN_GRAD": lambda s: _work(
        lambda dy, roi, batch: _repeated(dy) / 4, _images(s, smaller=2), _regions(s, 4),
        _numbered(s), out=_images(s).sizes),
    "SLICE_GRAD": lambda s: _work(
        lambda dy: np.stack([dy, 0 * dy], 2).reshape(len(dy), -1), _rows(s),
        out=(s.side, 2 * s.side), input_window_offsets=(0, 0),
        input_window_sizes=(s.side, 2 * s.side), input_window_strides=(1, 2)),
    "LOCAL_RESPONSE_NORMALIZATION_GRAD": lambda s: _work(
        _response_gradient, _images(s), _images(s, -1, 1), cross_channel=True, **_RESPONSE),
    "BATCH_NORMALIZATION_GRAD": lambda s: _batch_back(s, False),
    "BATCH_NORMALIZATION_TRAINING_GRAD": lambda s: _batch_back(s, True),
    "BATCH_NORMALIZATION_TRAINING": lambda s: _work(
        lambda x, scale, bias: (
            _normal(x, (0, 2, 3), scale, bias), x.mean((0, 2, 3), keepdims=True),
            x.var((0, 2, 3), keepdims=True)),
        _images(s)._replace(shared=True), _per_channel(s), _per_channel(s), room=1e-4),
    "ADAM_OPTIMIZER": lambda s: _work(
        _adam, *(_images(s) for _ in range(4)), np.full((1, 1, 1, 1), 3, np.uint32), **_ADAM),
}

EVERYDAY = tuple(_recipe(name, entry) for name, entry in _TABLE.items()
                 if "DML_OPERATOR_" + name in definitions())
