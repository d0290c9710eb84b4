"""The backend's inputs and outputs of BFLOAT16 are those of ml_dtypes."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", "1.19", reason="older ones have no BFLOAT16 for NumPy")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="it has BFLOAT16 for NumPy")

import kompute_dml as dml  # noqa: E402
import kompute_dml.onnx_backend as backend  # noqa: E402
from onnx_graphs import FLOAT, model, node  # noqa: E402

_BFLOAT16 = onnx.TensorProto.BFLOAT16


def test_numbers_of_the_backend(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4)).astype(ml_dtypes.bfloat16)
    built = model([node("MatMul", "x w", "z"), node("Cast", "z", "u", to=FLOAT)],
                  [("x", _BFLOAT16, [3, 4])], [("z", _BFLOAT16, [3, 5]), ("u", FLOAT, [3, 5])])
    proto = onnx.load_model_from_string(built)
    w = rng.standard_normal((4, 5)).astype(ml_dtypes.bfloat16)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    z, u = backend.run_model(proto, {"x": x})
    assert z.dtype == ml_dtypes.bfloat16 and u.dtype == np.float32
    wanted = x.astype(np.float32) @ w.astype(np.float32)
    np.testing.assert_allclose(z.astype(np.float32), wanted, rtol=2.0**-8, atol=1e-6)
    np.testing.assert_allclose(u, wanted, rtol=2.0**-8, atol=1e-5)
    with pytest.raises(dml.ValidationError, match="expected input 'x' to be bfloat16"):
        backend.run_model(proto, {"x": x.astype(np.float32)})


def test_numbers_that_decide_sizes_and_constants() -> None:
    """The host reads them, and the device computes with them, too."""
    x, start, limit, delta = (np.asarray(v, ml_dtypes.bfloat16) for v in ([0.5, -3], 1.5, 6, 2))
    built = model(
        [node("Add", "start one", "next"), node("Range", "next limit delta", "r"),
         node("Pad", "x pads start", "p"), node("Clip", "x start limit", "c"),
         node("Mul", "x start", "m"), node("ConstantOfShape", "size", "f", value=
              onnx.helper.make_tensor("v", _BFLOAT16, [1], [2.5]))],
        [("x", _BFLOAT16, [2]), *((name, _BFLOAT16, []) for name in ("start", "limit", "delta"))],
        [(name, _BFLOAT16, ["n"]) for name in "rpcmf"],
        {"pads": np.array([0, 2]), "size": np.array([3])}, opset=25)
    proto = onnx.load_model_from_string(built)
    proto.graph.initializer.append(
        onnx.numpy_helper.from_array(np.asarray(1, ml_dtypes.bfloat16), "one"))
    outputs = backend.run_model(proto, {"x": x, "start": start, "limit": limit, "delta": delta})
    wanted = [2.5, 4.5], [0.5, -3, 1.5, 1.5], [1.5, 1.5], [0.75, -4.5], [2.5] * 3
    for y, numbers in zip(outputs, wanted, strict=True):
        assert y.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(y.astype(np.float32), numbers)
