"""Where DirectML's pages are silent, ONNX Runtime's CPU decides: both have equal results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from onnx_cpu import result, results
from onnx_graphs import RELEASE
from tolerance import compare

pytestmark = pytest.mark.values

f32, f16, i32, u32 = np.float32, np.float16, np.int32, np.uint32

# -- quantization, bit for bit

_TIES = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.5, -127.5, -128.5, 254.5, 255.5, 0.0, -0.0]
_EXTREMES = [np.nan, np.inf, -np.inf, 1e30, -1e30, 3e38, 1e-45, -1e-40]


def _scales(rng: np.random.Generator, *sizes: int) -> np.ndarray:
    return rng.uniform(0.003, 0.3, sizes).astype(f32)


def _integers(rng: np.random.Generator, dtype: Any, *sizes: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, sizes, dtype, endpoint=True)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("scale", [1.0, 2.0, 0.1, 1e-3])
def test_quantize_rounds_and_saturates(rng: np.random.Generator, dtype: str, scale: float) -> None:
    steps = np.array(_TIES + _EXTREMES, f32)
    spread = (rng.normal(size=4000) * 300).astype(f32)
    with np.errstate(over="ignore"):
        x = np.concatenate([steps, steps * f32(scale), spread, spread * f32(scale)])
    for zero in (None, *np.array([0, 3, 127], dtype)):
        expected = result("QuantizeLinear", x, f32(scale), np.dtype(dtype).type(0)
                          if zero is None else zero)
        got = dml.quantize_linear(x, np.array([scale], f32),
                                  None if zero is None else zero.reshape(1), data_type=dtype)
        np.testing.assert_array_equal(got.numpy(), expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantize_along_an_axis(rng: np.random.Generator, dtype: str, axis: int) -> None:
    x = (rng.normal(size=(13, 7, 34)) * 20).astype(f32)
    scale, zero = _scales(rng, x.shape[axis]), _integers(rng, dtype, x.shape[axis])
    got = dml.quantize_linear(x, scale, zero, axis=axis).numpy()
    np.testing.assert_array_equal(got, result("QuantizeLinear", x, scale, zero, axis=axis))


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("real", ["float32", "float16"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32"])
def test_dequantize(rng: np.random.Generator, dtype: str, real: str, axis: int | None) -> None:
    x = _integers(rng, dtype, 31, 17)
    count = () if axis is None else (x.shape[axis],)
    scale = _scales(rng, *count).astype(real)
    # ONNX wants the zero points of int32 to be zeros.
    zero = np.zeros(count, dtype) if dtype == "int32" else _integers(rng, dtype, *count)
    got = dml.dequantize_linear(x, scale, zero, axis=axis).numpy()
    with np.errstate(over="ignore"):
        expected = result("DequantizeLinear", x, scale, zero, axis=axis or 0)
    np.testing.assert_array_equal(got.view(f"u{got.itemsize}"),
                                  expected.view(f"u{got.itemsize}"))


def _fuses_multiply_and_add() -> bool:
    try:
        return " fma " in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not _fuses_multiply_and_add(),
                    reason="ONNX Runtime rounds twice on a processor without fused multiply-add")
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantized_sums(rng: np.random.Generator, dtype: str) -> None:
    # Sums at halves show double rounding.
    halves = f32([[1 / 3, 1 / 6, 1], [0.7, 0.1, 1.4], [0.1, 0.1, 0.6]])
    for a_scale, b_scale, scale in [*halves, *halves, *_scales(rng, 10, 3)]:
        a, b = _integers(rng, dtype, 41, 97), _integers(rng, dtype, 41, 97)
        a_zero, b_zero, zero = _integers(rng, dtype, 3)
        given = (a, a_scale, a_zero, b, b_scale, b_zero, scale, zero)
        got = dml.quantized_linear_add(*(np.asarray(v).reshape(-1) if np.ndim(v) == 0 else v
                                         for v in given)).numpy()
        np.testing.assert_array_equal(got, result("QLinearAdd", *given, domain="com.microsoft"))


_RANGES = {
    "both": (-3, 5), "positive": (1, 2), "negative": (-2, -1), "zeros": (0, 0),
    "uneven": (-0.1, 255), "tiny": (-1e-7, 3e-7), "large": (-1e38, 2e38),
}


@pytest.mark.parametrize("name", _RANGES)
def test_dynamic_quantization(rng: np.random.Generator, name: str) -> None:
    for sizes in ((1,), (37,), (64, 129)):
        _check_dynamic(rng.uniform(*_RANGES[name], sizes).astype(f32))


def _check_dynamic(x: np.ndarray) -> None:
    expected = results("DynamicQuantizeLinear", x, outputs=3)
    for got, wanted in zip(dml.dynamic_quantize_linear(x), expected):
        np.testing.assert_array_equal(got.numpy().reshape(wanted.shape), wanted)


@pytest.mark.parametrize("x", [[np.inf, 1], [-np.inf, 1], [np.inf, -np.inf], [3e38, -3e38],
                               [0, -0.0]], ids=str)
def test_dynamic_quantization_of_ranges_without_a_scale(x: list[float]) -> None:
    _check_dynamic(f32(x))


# -- elementwise


@dataclass(frozen=True)
class Twin:
    """An ONNX node and the call that computes the same."""

    op: str
    call: Callable[..., dml.Tensor]
    inputs: Sequence[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    tolerance: float = 0.0
    """Relative, because ONNX Runtime's functions are approximations, too."""
    domain: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, [self.op, self.label]))

    def check(self) -> str:
        inputs = [np.asarray(x) for x in self.inputs]
        expected = result(self.op, *inputs, domain=self.domain, **self.attributes)
        got = self.call(*inputs).numpy()
        if expected.dtype == np.bool_:
            got = got.astype(np.bool_)
        if not self.tolerance:
            return compare(got, expected, "bits" if got.dtype.kind == "b" else "stepwise")
        for same in (np.isnan, np.isposinf, np.isneginf):
            if (same(got) != same(expected)).any():
                return f"{same.__name__}: {got} instead of {expected}"
        finite = np.isfinite(expected)
        close = np.isclose(got[finite], expected[finite], self.tolerance, self.tolerance)
        return "" if close.all() else f"{got} instead of {expected}"


_X = f32([-np.inf, -100, -10, -2.5, -1.5, -1, -0.7, -0.5, -1e-3, -0.0, 0, 1e-3, 0.5, 0.7, 1, 1.5,
          2.5, 3, 10, 88, 100, 1e4, 1e30, np.inf, np.nan])
_Y = _X[np.random.default_rng(1).permutation(_X.size)]
_I, _J = i32([7, -7, 7, -7, 6, 0, 2**31 - 1]), i32([3, 3, -3, -3, 3, 5, 10])


def _pair(x: Any) -> tuple[np.ndarray, np.ndarray]:
    return tuple(v.ravel() for v in np.meshgrid(x, x))  # type: ignore[return-value]


def _unary(names: str, tolerance: float = 0.0) -> list[Twin]:
    """Twins for ``OnnxOperator:function`` pairs, separated by blanks."""
    pairs = [n.split(":") for n in names.split()]
    return [Twin(op, getattr(dml, function), [_X], tolerance=tolerance) for op, function in pairs]


def _binary(names: str, inputs: Sequence[np.ndarray], label: str = "") -> list[Twin]:
    pairs = [n.split(":") for n in names.split()]
    return [Twin(op, getattr(dml, function), inputs, label=label) for op, function in pairs]


def _shift(direction: str, dtype: str) -> Twin:
    bits = 8 * np.dtype(dtype).itemsize
    counts = np.array([0, 1, bits - 1, bits, bits + 1, 2 * bits - 1], dtype)
    function = dml.bit_shift_left if direction == "LEFT" else dml.bit_shift_right
    return Twin("BitShift", function, [np.full(6, -1).astype(dtype), counts],
                {"direction": direction}, f"{direction.lower()}-{dtype}")


_COMPARISONS = ("Equal:logical_equals Greater:logical_greater_than Less:logical_less_than "
                "GreaterOrEqual:logical_greater_than_or_equal "
                "LessOrEqual:logical_less_than_or_equal")
_SAME_FLOATS = [0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan]

TWINS = [
    *(Twin("Mod", dml.modulus_floor, [_I.astype(t), _J.astype(t)], label=t)
      for t in ("int8", "int16", "int32", "int64", "uint8", "uint32", "uint64")),
    *(Twin("Mod", dml.modulus_truncate, [_I.astype(t), _J.astype(t)], {"fmod": 1}, f"fmod-{t}")
      for t in ("int8", "int16", "int32", "int64")),
    Twin("Mod", dml.modulus_truncate,
         _pair(f32([7, -7, 3, -3, 0.1, -0.1, 5.5, 0, np.inf, -np.inf, np.nan, 1e30])),
         {"fmod": 1}, "fmod-float32"),
    *(Twin("Div", lambda a, b: dml.divide(a=a, b=b), [_I.astype(t), _J.astype(t)], label=t)
      for t in ("int32", "int64", "uint8", "uint32")),
    *(_shift(d, t) for d in ("LEFT", "RIGHT") for t in ("uint8", "uint32", "uint64")),
    Twin("Round", dml.round, [f32([*_TIES, *_EXTREMES, 0.49999997, 8388609.0, -2.7])]),
    Twin("Pow", dml.pow, _pair(f32([-8, -2, -1, -0.0, 0, 0.5, 1, 2, 3, np.inf, -np.inf, np.nan])),
         label="special"),
    Twin("Pow", dml.pow, _pair(i32([0, 1, 2, 3, 5])), label="int32"),
    Twin("Pow", dml.pow, [i32([9, 3, 2, -2, -3]), f32([0.5, 13, 0.5, 3, 2])], label="mixed"),
    *(Twin("Clip", lambda x, low, high: dml.clip(x, min=float(low), max=float(high)),
           [_X.astype(t) if t == "float32" else np.array([-9, 0, 2, 9], t),
            np.array(low, t), np.array(high, t)], label=f"{t}-{low}-{high}")
      for t in ("float32", "int8", "int32") for low, high in ((-1, 3), (3, 1))),
    *_binary("Min:min Max:max", _pair(f32([1, -1, np.inf, -np.inf]))),
    *_binary("Min:min Max:max", [f32([1, np.nan, np.nan]), f32([np.nan, 1, np.nan])], "nan"),
    Twin("IsInf", dml.is_infinity, [_X]),
    Twin("IsInf", lambda x: dml.is_infinity(x, infinity_mode=dml.IsInfinityMode.POSITIVE), [_X],
         {"detect_negative": 0}, "positive"),
    Twin("IsInf", lambda x: dml.is_infinity(x, infinity_mode=dml.IsInfinityMode.NEGATIVE), [_X],
         {"detect_positive": 0}, "negative"),
    *_binary(_COMPARISONS, _pair(f32(_SAME_FLOATS)), "float32"),
    *_binary(_COMPARISONS, _pair(np.array([-(2**63), -1, 0, 2**40, 2**63 - 1])), "int64"),
    *_binary("Add:add Sub:subtract Mul:multiply Div:divide", _pair(f32(_SAME_FLOATS)), "special"),
    *_binary("Add:add Sub:subtract Mul:multiply",
             _pair(i32([-(2**31), -1, 0, 7, 2**31 - 1])), "wrap"),
    *_binary("BitwiseAnd:bit_and BitwiseOr:bit_or BitwiseXor:bit_xor", _pair(i32([-6, 0, 3]))),
    *_unary("IsNaN:is_nan Abs:abs Neg:negate Floor:floor Ceil:ceil Sqrt:sqrt Reciprocal:recip "
            "Relu:activation_relu"),
    Twin("Sign", dml.sign, [_X]),
    Twin("Sign", dml.sign, [_I], label="int32"),
    Twin("Abs", dml.abs, [np.array([-128, -1, 127], np.int8)], label="int8"),
    Twin("Neg", dml.negate, [np.array([-128, -1, 127], np.int8)], label="int8"),
    Twin("LeakyRelu", lambda x: dml.activation_leaky_relu(x, alpha=0.25), [_X], {"alpha": 0.25}),
    Twin("PRelu", dml.activation_parameterized_relu,
         [f32([-1, 0, np.nan, -np.inf, -2, 3]), f32([0.5, 0.5, 0.5, 0, -1, 4])]),
    Twin("ThresholdedRelu", lambda x: dml.activation_thresholded_relu(x, alpha=0.75), [_X],
         {"alpha": 0.75}),
    Twin("Shrink", lambda x: dml.activation_shrink(x, bias=0.25, threshold=1.5), [_X],
         {"bias": 0.25, "lambd": 1.5}),
    Twin("Cast", lambda x: dml.cast(x, data_type="uint8"), [i32([300, -1, 255, 256])], {"to": 2},
         "narrow"),
    Twin("Cast", lambda x: dml.cast(x, data_type="int32"), [f32([300.7, -3.9, 0.5])], {"to": 6},
         "truncate"),
    Twin("Cast", lambda x: dml.cast(x, data_type="float16"),
         [f32([2049, 2051, 65519, 65520, 1e-8, 3e-8, np.nan])], {"to": 10}, "float16"),
    *_unary("Exp:exp Log:log Sin:sin Cos:cos Tan:tan Asin:asin Acos:acos Atan:atan Sinh:sinh "
            "Cosh:cosh Tanh:tanh Asinh:asinh Acosh:acosh Atanh:atanh Erf:erf "
            "Sigmoid:activation_sigmoid Softplus:activation_softplus "
            "Softsign:activation_softsign Elu:activation_elu Celu:activation_celu "
            "Selu:activation_scaled_elu HardSigmoid:activation_hard_sigmoid", 1e-5),
    Twin("Gelu", dml.activation_gelu, [_X[1:]], tolerance=1e-6, domain="com.microsoft"),
    Twin("HardSwish", dml.activation_hard_swish, [_X], tolerance=1e-6),
]


@pytest.mark.parametrize("twin", TWINS, ids=str)
def test_same_as_onnxruntime(twin: Twin) -> None:
    problem = twin.check()
    assert not problem, problem


_LOW = f32([-np.inf])
DISAGREEMENTS = {
    "MIN, MAX of -0.0 and 0.0": Twin("Max", dml.max, [f32([-0.0, 0.0]), f32([0.0, -0.0])]),
    "POW of the integer 0 with a negative exponent": Twin("Pow", dml.pow, [i32([0]), i32([-1])]),
    "POW of integers beyond their range": Twin("Pow", dml.pow, [i32([3]), i32([40])]),
    "POW of negative integers with a fraction": Twin("Pow", dml.pow, [i32([-2]), f32([0.5])]),
    "CAST of NaN and of what the integer type cannot hold": Twin(
        "Cast", lambda x: dml.cast(x, data_type="int32"), [f32([np.nan, 1e20])], {"to": 6}),
    "QUANTIZE_LINEAR of FLOAT16 infinities": Twin(
        "QuantizeLinear", lambda x, scale: dml.quantize_linear(x, scale, data_type="uint8"),
        [f16([np.inf]), f16([0.5])]),
    "GELU of -infinity": Twin("Gelu", dml.activation_gelu, [_LOW], domain="com.microsoft"),
}


def _written() -> dict[str, str]:
    """{question: ONNX Runtime's answer} for the questions that a test can ask."""
    text = (resources.files("kompute_dml") / "spec" / "semantics.md").read_text("utf-8")
    section = text.partition("## Where ONNX Runtime's CPU differs")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", section, re.MULTILINE)[2:]
    return {question: answer for question, answer in rows if "no test" not in question}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_disagreements_are_real(name: str) -> None:
    ended = re.search(r"before ONNX Runtime (\d+)\.(\d+)", _written()[name])
    agrees = ended is not None and [int(number) for number in ended.groups()] <= RELEASE
    assert agrees != bool(DISAGREEMENTS[name].check())


def test_disagreements_are_written_down() -> None:
    assert list(_written()) == list(DISAGREEMENTS)
