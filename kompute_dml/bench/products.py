"""Cases of MATRIX_MULTIPLY_INTEGER_TO_FLOAT, and the same work by its peers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import kompute_dml as dml

from ..cases import Scale
from ..device import Device
from ..dtypes import DataType
from .case import Case, Peer, Recipe, product_operations, touched_bytes
from .constants import initialized
from .peers import OnnxRuntime, Torch
from .values import Output, host, integers

if TYPE_CHECKING:
    from torch import Tensor

_NAME = "DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"
_CHECKED = 256
"""Rows and columns of an output that are compared with NumPy."""
_COLD_BYTES = 256 << 20
"""Bytes of all copies of B that take turns: more than a cache holds."""
_LEAST_ROWS = 32
"""PyTorch's _int_mm takes at least so many."""

_MAX_CPU_STEPS = 1 << 34
"""Multiplications that ONNX Runtime on the CPU does at most, ..."""
_MAX_NUMPY_STEPS = 1 << 31
"""... and NumPy with integers."""


@dataclass(frozen=True)
class BenchProduct:
    """The kind of a product: data types, layouts, and optional operands."""

    a: DataType = DataType.INT8
    b: DataType = DataType.INT8
    out: DataType = DataType.FLOAT32
    k_contiguous_b: bool = False
    """B has K contiguous, as a weight stored as {N, K}. Else B is row-major, {K, N}."""
    m_contiguous_a: bool = False
    """A has M contiguous."""
    padding: int = 0
    """Elements between the stored rows of A and B."""
    full: bool = False
    """With zero points and a bias."""
    cold: bool = False
    """B is read from memory, not from a cache. Only its bytes count."""
    independent: bool = False
    """Each product has an output of its own and need not wait for the one before it, as for
    queries, keys and values."""
    batches: int = 0
    constant_b: bool = False
    """B is OWNED_BY_DML, so its preparation is not timed. K is contiguous, as in PyTorch's
    weights."""
    compiled: bool = False
    """Whether torch.compile, which takes seconds, is a peer."""

    @property
    def types(self) -> str:
        parts = [f"{self.a.family} x {self.b.family} -> {self.out.family}"]
        parts += ["K-contiguous B"] * self.k_contiguous_b + ["M-contiguous A"] * self.m_contiguous_a
        parts += [f"rows padded by {self.padding}"] * bool(self.padding)
        parts += ["zero points, bias"] * self.full + ["cold B"] * self.cold
        parts += ["independent"] * self.independent
        parts += ["constant B"] * self.constant_b
        return ", ".join(parts)


class _Data:
    """The operands of a product on the host, and the check of its output."""

    def __init__(self, kind: BenchProduct, m: int, k: int, n: int) -> None:
        self.kind = kind
        rng = np.random.default_rng(3)
        lead = (kind.batches,) if kind.batches else ()
        self.a = integers(rng, kind.a, (*lead, m, k))
        stored_b = integers(rng, kind.b, (*lead, n, k) if kind.k_contiguous_b else (*lead, k, n))
        self.b = np.swapaxes(stored_b, -1, -2) if kind.k_contiguous_b else stored_b
        # Scales in the output's type, which keep results in the range of FLOAT16.
        reach = k * np.prod([min(float(np.iinfo(t.dtype).max), 2.0**20) for t in (kind.a, kind.b)])
        middle = (1000 / reach) ** 0.5
        self.a_scale, self.b_scale = (
            (rng.uniform(0.5, 2, sizes) * middle).astype(kind.out.dtype)
            for sizes in ((m, 1), (1, n))
        )
        self.a_zero = np.array([[5]], kind.a.dtype) if kind.full else None
        self.b_zero = np.array([[3]], kind.b.dtype) if kind.full else None
        self.bias = rng.uniform(-1, 1, (1, n)).astype(kind.out.dtype) if kind.full else None

    def check(self, output: Output) -> str:
        """A sample of rows and columns; float64 holds every partial sum exactly."""
        rng = np.random.default_rng(8)
        *lead, m, n = output.shape
        rows, columns = (
            np.unique(np.concatenate([[0, size - 1], rng.integers(0, size, _CHECKED)]))
            for size in (m, n)
        )
        for batch in {(0,) * len(lead), tuple(b - 1 for b in lead)}:
            whole = m * n <= 1 << 24
            block = host(output[batch] if batch else output) if whole else None
            got = np.stack([
                block[r] if block is not None else host(output[batch + (int(r),)]) for r in rows
            ])[:, columns].astype(np.float64)
            a = self.a[batch][rows].astype(np.float64)
            b = self.b[batch][:, columns].astype(np.float64)
            if self.a_zero is not None and self.b_zero is not None:
                a, b = a - float(self.a_zero.item()), b - float(self.b_zero.item())
            expected = (a @ b) * self.a_scale[rows].astype(np.float64)
            expected *= self.b_scale[:, columns]
            size = np.abs(expected)
            if self.bias is not None:
                bias = self.bias[:, columns].astype(np.float64)
                expected, size = expected + bias, size + np.abs(bias)
            # A subnormal FLOAT16 is rounded by up to half of 2**-24.
            half = self.kind.out is DataType.FLOAT16
            bound = (2.0**-10 * size + 2.0**-24) if half else 2.0**-22 * size
            error = np.abs(got - expected)
            if not (error <= bound).all():
                return (f"{int((~(error <= bound)).sum())} of {error.size} elements are off, the "
                        f"worst by {np.nanmax(error - bound):g} more than rounding explains")
        return ""


def product(kind: BenchProduct, m: int = 0, k: int = 0, n: int = 0, scaled: bool = True) -> Recipe:
    """Products of these sizes; of the scale's sizes if none are given."""

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        sizes = scale.products
        if m:
            sizes = (tuple(scale.of(x) if scaled else x for x in (m, k, n)),)  # type: ignore
        return (_case(device, kind, *each) for each in sizes)

    return Recipe(_NAME, kind.types, make)


def _case(device: Device, kind: BenchProduct, m: int, k: int, n: int) -> Case:
    data = _Data(kind, m, k, n)
    a = _matrix(device, data.a, kind.m_contiguous_a, kind.padding)
    copies = max(1, _COLD_BYTES // data.b.nbytes) if kind.cold and not device.adapter.is_cpu \
        else 1
    bs = [_matrix(device, data.b, kind.k_contiguous_b, kind.padding) for _ in range(copies)]
    a_scale, b_scale = device.tensor(data.a_scale), device.tensor(data.b_scale)
    options: dict[str, Any] = {
        name: device.tensor(value)
        for name, value in (("a_zero_point", data.a_zero), ("b_zero_point", data.b_zero),
                            ("bias", data.bias))
        if value is not None
    }
    outs = [device.empty((*data.a.shape[:-1], n), kind.out)
            for _ in range(copies if kind.independent else 1)]
    out = outs[0]
    turns = zip(itertools.cycle(bs), itertools.cycle(outs))

    def torch_peers(library: Torch) -> Iterator[Peer]:
        yield from _torch(library, data, copies)

    def onnxruntime_peers(library: OnnxRuntime) -> Iterator[Peer]:
        if data.a.ndim == 2 and m * k * n <= _MAX_CPU_STEPS:
            yield _onnxruntime(library, data)

    def dispatch() -> Any:
        b, out = next(turns)
        return dml.matrix_multiply_integer_to_float(a, a_scale, b, b_scale, **options, out=out)

    counted = (bs[0],) if kind.cold else (a, a_scale, bs[0], b_scale, *options.values(), out)
    batch = f"{kind.batches} of " if kind.batches else ""
    return Case(
        _NAME, kind.types, f"{batch}[{m}, {k}] x [{k}, {n}]",
        _initialized(device, a, a_scale, bs[0], b_scale, options, out) if kind.constant_b
        else dispatch,
        data.check,
        touched_bytes(t.desc for t in counted),
        product_operations(a.desc, out.desc),
        peers={"torch": torch_peers, "onnxruntime": onnxruntime_peers,
               "numpy": lambda library: _numpy(data)},
    )


def _matrix(device: Device, matrix: np.ndarray, transposed: bool, padding: int) -> Any:
    """The matrix on the device, stored row-major or ``transposed``, with ``padding`` between
    rows."""
    stored = np.swapaxes(matrix, -1, -2) if transposed else matrix
    if padding:
        wide = np.zeros((*stored.shape[:-1], stored.shape[-1] + padding), stored.dtype)
        wide[..., : stored.shape[-1]] = stored
        tensor = device.tensor(wide)[..., : stored.shape[-1]]
    else:
        tensor = device.tensor(stored)
    *lead, x, y = range(matrix.ndim)
    return tensor.transpose(*lead, y, x) if transposed else tensor


def _initialized(
    device: Device, a: dml.Tensor, a_scale: dml.Tensor, b: dml.Tensor, b_scale: dml.Tensor,
    options: Mapping[str, dml.Tensor], out: dml.Tensor
) -> Callable[[], object]:
    """Initializes the operator, whose B is OWNED_BY_DML. Returns what dispatches it."""
    tensors = {"a_tensor": a, "a_scale_tensor": a_scale, "b_tensor": b, "b_scale_tensor": b_scale,
               "output_tensor": out, **{f"{name}_tensor": t for name, t in options.items()}}
    if "bias_tensor" in tensors:
        tensors["bias_tensor"] = tensors["bias_tensor"].broadcast_to(out.sizes)
    return initialized(device, dml.MatrixMultiplyIntegerToFloatOperatorDesc, "b_tensor", tensors)


def _torch(library: Torch, data: _Data, copies: int) -> Iterator[Peer]:
    """``_int_mm`` alone, and with the rest of the operator in as few kernels as possible."""
    torch, kind = library.torch, data.kind
    if kind.a.itemsize != 1 or not kind.a.is_signed or not kind.b.is_signed or kind.padding:
        return
    m = data.a.shape[-2]
    a = library.send(data.a)
    if m < _LEAST_ROWS:
        a = torch.cat([a, a.new_zeros(_LEAST_ROWS - m, a.shape[-1])])
    # As on the device: a transposed view of {N, K}, or row-major.
    k_contiguous = kind.k_contiguous_b or kind.constant_b
    stored = library.send(np.swapaxes(data.b, -1, -2) if k_contiguous else data.b)
    bs = [stored if i == 0 else stored.clone() for i in range(copies)]
    bs = [b.transpose(-1, -2) if k_contiguous else b for b in bs]
    turns = itertools.cycle(bs)

    def as_it_lies(b: Tensor) -> Any:
        return b

    def transposed(b: Tensor) -> Any:
        return b.transpose(-1, -2).contiguous().transpose(-1, -2)

    ways = {"": as_it_lies}
    if not k_contiguous:
        # cuBLASLt takes several times as long for a row-major B, so a copy may pay off.
        ways[" (B transposed first)"] = transposed

    def products(way: Callable[[Any], Any]) -> Any:
        b = way(next(turns))
        return [torch._int_mm(x, y) for x, y in zip(a, b)] if kind.batches else torch._int_mm(a, b)

    for suffix, way in ways.items():
        yield Peer(f"torch._int_mm{suffix}", partial(products, way), checked=False)
    if not kind.full or data.a_zero is None or data.b_zero is None:
        return
    a_scale, b_scale, bias = map(library.send, (data.a_scale, data.b_scale, data.bias))
    a_zero, b_zero, k = data.a_zero.item(), data.b_zero.item(), data.a.shape[-1]

    def corrections(b: Tensor) -> Any:
        return (b.sum(0, dtype=torch.int32) - k * b_zero) * a_zero

    # As on the device: only the column sums of a constant B are computed beforehand.
    known = corrections(bs[0]) if kind.constant_b else None

    def pipeline(a: Tensor, b: Tensor) -> Any:
        columns = corrections(b) if known is None else known
        rows = a.sum(1, keepdim=True, dtype=torch.int32) * b_zero
        sums = torch._int_mm(a, b) - columns - rows
        if kind.out is DataType.FLOAT16:
            # FLOAT16 cannot hold the sums, so they are scaled in FLOAT32.
            scaled = sums * a_scale.float() * b_scale.float() + bias.float()
            return scaled.to(torch.float16)
        return torch.addcmul(bias, sums * a_scale, b_scale)

    def whole(way: Callable[[Any], Any]) -> Any:
        return pipeline(a, way(bs[0]))[:m]

    for suffix, way in ways.items():
        yield Peer(f"torch{suffix}", partial(whole, way))
    if kind.compiled:
        torch._dynamo.reset()
        fast = torch.compile(pipeline, dynamic=False)
        yield Peer("torch.compile", lambda: fast(a, bs[0])[:m])


def _onnxruntime(library: OnnxRuntime, data: _Data) -> Peer:
    """The CPU kernel takes a single scale for A, so its values differ from the device's."""
    scale = np.float32
    zero = [np.zeros((), data.a.dtype) if data.a_zero is None else data.a_zero.reshape(()),
            np.zeros((), data.b.dtype) if data.b_zero is None else data.b_zero.reshape(())]
    inputs = [data.a, np.ascontiguousarray(data.b), data.a_scale[0, 0].astype(scale),
              data.b_scale[0].astype(scale), *zero]
    if data.bias is not None:
        inputs.append(data.bias[0].astype(scale))
    inputs = [np.asarray(x) for x in inputs]
    return Peer(
        "onnxruntime (one scale for A)",
        library.session("MatMulIntegerToFloat", inputs, domain="com.microsoft"), checked=False)


def _numpy(data: _Data) -> Iterator[Peer]:
    """As integers, and as the narrowest floats that hold the sums exactly. Products of floats use
    BLAS, which is many times as fast."""
    reach = data.a.shape[-1] * float(np.abs(data.a).max()) * float(np.abs(data.b).max())
    floating = np.float32 if reach <= 2**24 else np.float64

    def product(wide: type[Any]) -> np.ndarray:
        zeros = [wide(0 if z is None else z.item()) for z in (data.a_zero, data.b_zero)]
        sums = (data.a.astype(wide) - zeros[0]) @ (data.b.astype(wide) - zeros[1])
        result = sums * data.a_scale * data.b_scale
        return (result if data.bias is None else result + data.bias).astype(data.kind.out.dtype)

    if data.a.size * data.b.shape[-1] <= _MAX_NUMPY_STEPS:
        integer = np.int32 if reach < 2**31 else np.int64
        yield Peer("numpy", lambda: product(integer))
    yield Peer("numpy (BLAS)", lambda: product(floating))
