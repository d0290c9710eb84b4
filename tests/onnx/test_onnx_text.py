"""Results that ONNX's text defines otherwise than ONNX Runtime's CPU provider computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="its reference has these results")

from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import kompute_dml.onnx_backend as backend


def _model(op: str, x: np.ndarray, others: list[np.ndarray], rank: int, **attributes: Any) -> Any:
    names = [f"c{i}" for i in range(len(others))]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    return helper.make_model(helper.make_graph(
        [helper.make_node(op, ["x", *names], ["y"], **attributes)], "g",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, [None] * rank)],
        [numpy_helper.from_array(c, n) for n, c in zip(names, others)]),
        opset_imports=[helper.make_opsetid("", 22)])


def _check(ours: Any, reference: Any, x: np.ndarray) -> None:
    (got,) = backend.run_model(ours, [x])
    wanted = ReferenceEvaluator(reference).run(None, {"x": x})[0]
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_padding_is_never_negative(mode: str, rng: np.random.Generator) -> None:
    """A stride beyond the kernel: the first window begins at the first element."""
    x = rng.standard_normal((1, 3, 12)).astype(np.float32)
    w = rng.standard_normal((2, 3, 1)).astype(np.float32)
    plain = _model("Conv", x, [w], 3, strides=[4])
    _check(_model("Conv", x, [w], 3, auto_pad=mode, strides=[4]), plain, x)


def test_padding_counts_dilations(rng: np.random.Generator) -> None:
    """Three taps at a distance of 2 reach over 5 elements: 2 of them lie before the first one."""
    x = rng.standard_normal((1, 2, 9)).astype(np.float32)
    w = rng.standard_normal((3, 2, 3)).astype(np.float32)
    plain = _model("Conv", x, [w], 3, dilations=[2], pads=[2, 2])
    _check(_model("Conv", x, [w], 3, auto_pad="SAME_UPPER", dilations=[2]), plain, x)


def test_transposed_sizes_are_the_inputs_times_the_strides(rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 3, 4, 2)).astype(np.float32)
    w = rng.standard_normal((3, 2, 2, 3)).astype(np.float32)
    plain = _model("ConvTranspose", x, [w], 4, strides=[3, 2], output_padding=[1, 0],
                   pads=[0, 0, 0, 1])
    _check(_model("ConvTranspose", x, [w], 4, auto_pad="SAME_UPPER", strides=[3, 2]), plain, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_columns_of_three_padded_axes(dtype: Any, rng: np.random.Generator) -> None:
    """FLOAT64 where the device has it."""
    import kompute_dml as dml

    if dtype is np.float64 and "shaderFloat64" not in dml.default_device().features:
        pytest.skip("needs shaderFloat64")
    x = rng.integers(-9, 10, (2, 4, 30)).astype(dtype)
    made = _model("Col2Im", x, [np.array(n, np.int64) for n in ([6, 7, 6], [1, 2, 2])], 5,
                  strides=[2, 2, 2], dilations=[1, 1, 2], pads=[2, 0, 0, 2, 0, 0])
    _check(made, made, x)
