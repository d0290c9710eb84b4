"""What is measured of each operator, with NumPy's word on the values.

The same cases, at a tiny scale, are the self-test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..desc import TensorDesc
from ..dtypes import DataType
from ..operators.base import definitions
from .elementwise import REFERENCES, Reference, close

CHECKED_ROWS = 128
"""Rows of a large matrix product that are compared with NumPy's."""


@dataclass(frozen=True)
class Scale:
    """How big the cases are."""

    elements: int
    """Of a case that walks through memory."""
    side: int
    """Of a square matrix."""
    products: tuple[tuple[int, int, int], ...]
    """(M, K, N) of matrix products."""


TINY = Scale(1013, 13, ((5, 37, 7),))
_SMALL = Scale(1 << 20, 1024, ((256, 256, 256), (1, 1024, 1024)))
_MIDDLE = Scale(1 << 24, 4096, ((1024, 1024, 1024), (1, 4096, 4096)))
_LARGE = Scale(1 << 26, 8192, ((4096, 4096, 4096), (1, 4096, 4096)))
SCALES = {"cpu": _SMALL, "other": _SMALL, "virtual": _MIDDLE, "integrated": _MIDDLE,
          "discrete": _LARGE}
"""By the adapter's type."""


@dataclass(frozen=True)
class Case:
    """Something to dispatch, again and again, into the same output."""

    operator: str
    types: str
    sizes: str
    dispatch: Callable[[], Any]
    check: Callable[[], str]
    """Compares what the last dispatch computed with NumPy: what is wrong, or nothing."""
    bytes: int
    """Read and written, each element once."""
    operations: int = 0
    """Multiplications and additions; 0 where data only moves."""


@dataclass(frozen=True)
class Recipe:
    """How to make cases once there is a device."""

    operator: str
    types: str
    make: Callable[[Any, Scale], Iterable[Case]]


def touched_bytes(descs: Iterable[TensorDesc]) -> int:
    """Bytes of the tensors' elements, those repeated by a stride of 0 counted once."""
    total = 0
    for desc in descs:
        count = 1
        for size, stride in zip(desc.sizes, desc.strides):
            count *= size if stride else 1
        total += count * desc.data_type.itemsize
    return total


def product_operations(a: TensorDesc, output: TensorDesc) -> int:
    """Multiplications and additions of a matrix product."""
    return 2 * output.element_count * a.sizes[-1]


def _same_bits(got: np.ndarray, expected: np.ndarray) -> str:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"expected {expected.dtype}{expected.shape}, but got {got.dtype}{got.shape}"
    bits = f"u{got.itemsize}"
    wrong = np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(expected).view(bits)
    if not wrong.any():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(wrong))
    return (f"{int(wrong.sum())} of {wrong.size} elements differ, the first at {list(at)}: "
            f"expected {expected[at]}, but got {got[at]}")


def _identity(data_type: DataType, transposed: bool) -> Recipe:
    def make(device: Any, scale: Scale) -> Iterator[Case]:
        import kompute_dml as dml

        words = np.random.default_rng(1).integers(0, 2**16, scale.elements * 2, np.uint16)
        host = words.view(data_type.dtype)[: scale.elements]
        if transposed:
            host = host[: scale.side**2].reshape(scale.side, -1)
        x = device.tensor(host)
        if transposed:
            x, host = x.T, host.T
        out = device.empty(host.shape, data_type)
        yield Case(
            name, types, _sizes(host.shape),
            lambda: dml.activation_identity(x, out=out),
            lambda: _same_bits(out.numpy(), host),
            touched_bytes((x.desc, out.desc)),
        )

    name = "DML_OPERATOR_ACTIVATION_IDENTITY"
    types = data_type.family + (" transposed" if transposed else "")
    return Recipe(name, types, make)


def _diagonal(data_type: DataType) -> Recipe:
    def make(device: Any, scale: Scale) -> Iterator[Case]:
        import kompute_dml as dml

        out = device.empty((scale.side, scale.side), data_type)
        expected = np.eye(scale.side, k=1, dtype=data_type.dtype) * data_type.dtype.type(3)
        yield Case(
            name, data_type.family, _sizes(out.sizes),
            lambda: dml.diagonal_matrix(
                out.sizes, offset=1, value=3.0, data_type=data_type, out=out),
            lambda: _same_bits(out.numpy(), expected),
            touched_bytes((out.desc,)),
        )

    name = "DML_OPERATOR_DIAGONAL_MATRIX"
    return Recipe(name, data_type.family, make)


def _diagonal1(data_type: DataType) -> Recipe:
    def make(device: Any, scale: Scale) -> Iterator[Case]:
        import kompute_dml as dml

        side = scale.side
        host = np.random.default_rng(2).integers(0, 100, (side, side)).astype(data_type.dtype)
        x, out = device.tensor(host), device.empty(host.shape, data_type)
        distance = np.arange(side, dtype=np.int32) - np.arange(side, dtype=np.int32)[:, None]
        band = (distance >= -2) & (distance < 3)
        yield Case(
            name, data_type.family, _sizes(host.shape),
            lambda: dml.diagonal_matrix1(
                x, value=7, diagonal_fill_begin=-2, diagonal_fill_end=3, out=out),
            lambda: _same_bits(out.numpy(), np.where(band, data_type.dtype.type(7), host)),
            touched_bytes((x.desc, out.desc)),
        )

    name = "DML_OPERATOR_DIAGONAL_MATRIX1"
    return Recipe(name, data_type.family, make)


def _product(
    a_type: DataType, b_type: DataType, out_type: DataType, zero_points: bool = False
) -> Recipe:
    def make(device: Any, scale: Scale) -> Iterator[Case]:
        return (case(device, *product) for product in scale.products)

    def case(device: Any, m: int, k: int, n: int) -> Case:
        import kompute_dml as dml

        rng = np.random.default_rng(3)

        def integers(data_type: DataType, sizes: tuple[int, ...]) -> np.ndarray:
            info = np.iinfo(data_type.dtype)
            return rng.integers(info.min, info.max, sizes, data_type.dtype, endpoint=True)

        a, b = integers(a_type, (m, k)), integers(b_type, (k, n))
        # Scales, of the output's type, that keep the results where FLOAT16 has them too.
        reach = float(np.iinfo(a_type.dtype).max) * float(np.iinfo(b_type.dtype).max) * k
        middle = (1000 / reach) ** 0.5
        a_scale, b_scale = (
            (rng.uniform(0.5, 2, sizes) * middle).astype(out_type.dtype)
            for sizes in ((m, 1), (1, n))
        )
        zeros = (integers(a_type, (m, 1)), integers(b_type, (1, n))) if zero_points else None
        inputs = [device.tensor(t) for t in (a, a_scale, b, b_scale)]
        on_device = [device.tensor(z) for z in zeros or ()]
        out = device.empty((m, n), out_type)
        options = dict(zip(("a_zero_point", "b_zero_point"), on_device))

        def check() -> str:
            rows = np.unique(np.linspace(0, m - 1, CHECKED_ROWS, dtype=int))
            # float64 holds every partial sum of these types exactly.
            wide_a, wide_b = a[rows].astype(np.float64), b.astype(np.float64)
            if zeros:
                wide_a, wide_b = wide_a - zeros[0][rows], wide_b - zeros[1]
            expected = (wide_a @ wide_b) * a_scale[rows].astype(np.float64) * b_scale
            error = np.abs(out.numpy()[rows].astype(np.float64) - expected)
            eps = 2.0**-22 if out_type is DataType.FLOAT32 else 2.0**-10
            # A FLOAT16 result may be subnormal, with half of 2**-24 to round by.
            bound = eps * np.abs(expected) + (0 if out_type is DataType.FLOAT32 else 2.0**-24)
            if (error <= bound).all():
                return ""
            return (f"{int((error > bound).sum())} of {error.size} elements are off, the worst "
                    f"by {np.nanmax(error - bound):g} more than rounding explains")

        return Case(
            name, types, f"[{m}, {k}] x [{k}, {n}]",
            lambda: dml.matrix_multiply_integer_to_float(*inputs, **options, out=out),
            check,
            touched_bytes(t.desc for t in (*inputs, *on_device, out)),
            product_operations(inputs[0].desc, out.desc),
        )

    name = "DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"
    types = f"{a_type.family} x {b_type.family} -> {out_type.family}"
    if zero_points:
        types += " zero points"
    return Recipe(name, types, make)


def _elementwise(name: str, reference: Reference) -> Recipe:
    def make(device: Any, scale: Scale) -> Iterator[Case]:
        import kompute_dml as dml

        definition = definitions()[operator]
        compute = getattr(dml, definition.function_name)
        rng = np.random.default_rng(4)
        low, high = reference.low, reference.high
        arrays = [
            rng.uniform(low, high, scale.elements).astype(reference.data_type)
            for _ in definition.spec.inputs
        ]
        inputs = [device.tensor(a) for a in arrays]
        out = compute(*inputs, **reference.attributes)

        def check() -> str:
            wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
            return close(out.numpy(), np.asarray(reference.compute(*wide)))

        yield Case(
            operator, types, _sizes(out.sizes),
            lambda: compute(*inputs, **reference.attributes, out=out), check,
            touched_bytes(t.desc for t in (*inputs, out)), scale.elements,
        )

    operator = "DML_OPERATOR_" + name
    types = DataType.of(reference.data_type).family
    return Recipe(operator, types, make)


def _call(
    name: str,
    types: str,
    inputs: Callable[[np.random.Generator, int], list[np.ndarray]],
    call: Callable[[Any, list[Any], int], Any],
    expected: Callable[[list[np.ndarray], int], np.ndarray],
) -> Recipe:
    """A recipe for an operator that is neither of the kinds above: n elements, one call."""

    def make(device: Any, scale: Scale) -> Iterator[Case]:
        import kompute_dml as dml

        n = scale.elements
        arrays = inputs(np.random.default_rng(5), n)
        tensors = [device.tensor(a) for a in arrays]

        def run() -> Any:
            made = call(dml, tensors, n)
            return made[0] if isinstance(made, tuple) else made

        def check() -> str:
            return close(run().numpy(), expected(arrays, n))

        yield Case(operator, types, f"[{n}]", run, check,
                   touched_bytes(t.desc for t in (*tensors, run())), n)

    operator = "DML_OPERATOR_" + name
    return Recipe(operator, types, make)


def _floats(rng: np.random.Generator, n: int) -> list[np.ndarray]:
    return [rng.uniform(-1, 1, n).astype(np.float32)]


def _bytes(rng: np.random.Generator, n: int) -> list[np.ndarray]:
    return [rng.integers(0, 256, n, np.uint8)]


def _dynamically_quantized(x: np.ndarray) -> np.ndarray:
    low, high = min(x.min(), 0), max(x.max(), 0)
    step = np.float32((high - low) / np.float32(255))
    zero = np.clip(np.rint(-low / step), 0, 255)
    return np.clip(np.rint(x / step) + zero, 0, 255)


_STEP = np.array([1 / 64], np.float32)
_ZERO = np.array([128], np.uint8)

_OTHERS = (
    _call("DYNAMIC_QUANTIZE_LINEAR", "f32 -> u8", _floats,
          lambda dml, t, n: dml.dynamic_quantize_linear(t[0]),
          lambda x, n: _dynamically_quantized(x[0])),
    _call("ELEMENT_WISE_QUANTIZE_LINEAR", "f32 -> u8", _floats,
          lambda dml, t, n: dml.quantize_linear(t[0], _STEP, _ZERO),
          lambda x, n: np.clip(np.rint(x[0] / _STEP) + 128, 0, 255)),
    _call("ELEMENT_WISE_DEQUANTIZE_LINEAR", "u8 -> f32", _bytes,
          lambda dml, t, n: dml.dequantize_linear(t[0], _STEP, _ZERO),
          lambda x, n: (x[0].astype(np.float64) - 128) / 64),
    _call("ELEMENT_WISE_QUANTIZED_LINEAR_ADD", "u8",
          lambda rng, n: [*_bytes(rng, n), *_bytes(rng, n)],
          lambda dml, t, n: dml.quantized_linear_add(
              t[0], _STEP, _ZERO, t[1], _STEP, _ZERO, _STEP, _ZERO),
          lambda x, n: np.clip(x[0].astype(int) + x[1] - 128, 0, 255)),
    _call("ELEMENT_WISE_IF", "u8, f32",
          lambda rng, n: [rng.integers(0, 2, n, np.uint8), *_floats(rng, n), *_floats(rng, n)],
          lambda dml, t, n: dml.if_(*t), lambda x, n: np.where(x[0], x[1], x[2])),
    _call("FILL_VALUE_CONSTANT", "f32", lambda rng, n: [],
          lambda dml, t, n: dml.fill_value_constant([n], value=2.5),
          lambda x, n: np.full(n, 2.5)),
    _call("FILL_VALUE_SEQUENCE", "f32", lambda rng, n: [],
          lambda dml, t, n: dml.fill_value_sequence([n], value_start=1.0, value_delta=0.25),
          lambda x, n: 1 + 0.25 * np.arange(n)),
    _call("VALUE_SCALE_2D", "f32",
          lambda rng, n: [x.reshape(1, 1, 1, n) for x in _floats(rng, n)],
          lambda dml, t, n: dml.value_scale_2d(t[0], scale=2.0, bias=[0.5]),
          lambda x, n: 2 * x[0].astype(np.float64) + 0.5),
)


def _sizes(sizes: Iterable[int]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


COPY = _identity(DataType.FLOAT32, transposed=False)
"""The row that the others' bandwidth is compared with."""

RECIPES: tuple[Recipe, ...] = (
    COPY,
    _identity(DataType.FLOAT16, transposed=False),
    _identity(DataType.FLOAT32, transposed=True),
    *(_diagonal(t) for t in (DataType.FLOAT32, DataType.UINT8, DataType.INT64)),
    *(_diagonal1(t) for t in (DataType.FLOAT32, DataType.INT16, DataType.UINT8)),
    _product(DataType.INT8, DataType.INT8, DataType.FLOAT32),
    _product(DataType.UINT8, DataType.INT8, DataType.FLOAT32, zero_points=True),
    _product(DataType.UINT8, DataType.UINT8, DataType.FLOAT16),
    _product(DataType.INT16, DataType.INT16, DataType.FLOAT32),
    *(_elementwise(name, reference) for name, reference in REFERENCES.items()),
    *_OTHERS,
)
