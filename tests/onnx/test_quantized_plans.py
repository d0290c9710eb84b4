"""The dispatches of models that ONNX Runtime has quantized, activations as they run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime", reason="results are compared with ONNX Runtime's")

import kompute_dml as dml
import kompute_dml.onnx_backend as backend
from onnx_graphs import FLOAT, cpu, encoder, exact_cpu, model, node, weights
from plans import checked, without_pipelines
from test_convolution import _matrix_units


@exact_cpu
def test_a_layer_of_an_encoder(device: dml.Device, rng: np.random.Generator) -> None:
    """Four ranges and quantizations, four products, attention, GELU and two normalizations."""
    built = encoder(rng, layers=1)
    prepared = backend.prepare(onnx.load_model_from_string(built), "VULKAN")
    x = rng.standard_normal((1, 8, 64)).astype(np.float32)
    plan = prepared._region.plan([x])
    assert len(plan.variants) == 4 * 2 + 4 + 1 + 1 + 2, plan.operators
    (got,), (wanted,) = prepared.run([x]), cpu(built, False).run(None, {"x": x})
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2**-8 * np.abs(wanted).max())


def _text(rng: np.random.Generator, samples: int) -> bytes:
    """The layers of a small reader of text: convolutions, also by channel and of means, and a
    product."""
    constants: dict[str, np.ndarray] = {"axes": np.array([2]), "w_zero": np.zeros(1, np.int8)}
    nodes: list[onnx.NodeProto] = []

    def layer(op: str, x: str, y: str, w: np.ndarray, **attributes: object) -> str:
        channels = (1, len(w), 1, 1) if op == "ConvInteger" else (w.shape[1],)
        constants[f"{y}.w"] = w
        constants[f"{y}.s"] = rng.uniform(1e-3, 2e-3, 1).astype(np.float32)
        constants[f"{y}.b"] = rng.normal(0, 0.1, channels).astype(np.float32)
        nodes.extend([
            node("DynamicQuantizeLinear", x, f"{y}.q {y}.qs {y}.qz"),
            node(op, f"{y}.q {y}.w {y}.qz w_zero", f"{y}.i", **attributes),
            node("Cast", f"{y}.i", f"{y}.f", to=FLOAT), node("Mul", f"{y}.qs {y}.s", f"{y}.qss"),
            node("Mul", f"{y}.f {y}.qss", f"{y}.m"), node("Add", f"{y}.m {y}.b", y)])
        return y

    def conv(x: str, y: str, *w: int, **attributes: object) -> str:
        return layer("ConvInteger", x, y, weights(rng, *w), **attributes)

    def then(op: str, inputs: str, y: str, **attributes: object) -> str:
        nodes.append(node(op, inputs, y, **attributes))
        return y

    x = then("Relu", conv("x", "stem", 48, 3, 3, 3, pads=[1] * 4, strides=[2, 2]), "stem.r")
    mixed = conv(x, "mixed", 48, 1, 3, 3, pads=[1] * 4, group=48)
    means = then("GlobalAveragePool", mixed, "means")
    few = then("Relu", conv(means, "few", 16, 48, 1, 1), "few.r")
    gates = then("HardSigmoid", conv(few, "gates", 48, 16, 1, 1), "gates.h")
    gated = then("Mul", f"{mixed} {gates}", "gated")
    wide = then("HardSwish", conv(gated, "wide", 96, 48, 1, 1), "wide.h")
    x = then("Add", f"{x} {conv(wide, 'narrow', 48, 96, 1, 1)}", "sum")
    x = conv(x, "odd", 120, 48, 4, 1)
    x = then("Squeeze", f"{x} axes", "line")
    x = then("Transpose", x, "rows", perm=[0, 2, 1])
    layer("MatMulInteger", x, "y", weights(rng, 120, 40))
    return model(nodes, [("x", FLOAT, (samples, 3, 8, 32))], [("y", FLOAT, (samples, 16, 40))],
                 constants, opset=14)


_QUANTIZE = "ELEMENT_WISE_QUANTIZE_LINEAR"
_FIRST = "DYNAMIC_QUANTIZE_LINEAR"
_CONVOLUTION = "CONVOLUTION_INTEGER_TO_FLOAT"
TEXT = [
    _FIRST, _CONVOLUTION, _QUANTIZE, _CONVOLUTION, "AVERAGE_POOLING",
    "DYNAMIC_CONVOLUTION", "DYNAMIC_CONVOLUTION", "ELEMENT_WISE_MULTIPLY", _FIRST, _CONVOLUTION,
    _QUANTIZE, _CONVOLUTION, _QUANTIZE, _CONVOLUTION, _QUANTIZE, "MATRIX_MULTIPLY_INTEGER_TO_FLOAT"]


@exact_cpu
@pytest.mark.parametrize("samples", [1, 8])
def test_a_reader_of_text(samples: int, device: dml.Device, rng: np.random.Generator) -> None:
    """A convolution scales its sums, and finds the range by which these are quantized."""
    built = _text(rng, samples)
    prepared = backend.prepare(onnx.load_model_from_string(built), "VULKAN")
    x = rng.standard_normal((samples, 3, 8, 32)).astype(np.float32)
    plan = prepared._region.plan([x])
    assert plan.operators[:11] == TEXT[:11], "the rest depends on where channels lie"
    (got,), (wanted,) = prepared.run([x]), cpu(built, False).run(None, {"x": x})
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2**-8 * np.abs(wanted).max())


LEFT_OUT = "quantization_range,dequantize_convolution,dynamic_quantize_convolution"


@pytest.mark.parametrize("left_out", ["", LEFT_OUT])
@pytest.mark.parametrize("samples", [1, 8])
def test_plans_of_a_reader_of_text_for_matrix_units(
    samples: int, left_out: str, device: dml.Device, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Words, bindings and memory fit the shaders. This needs no device with matrix units."""
    target = _matrix_units()
    without_pipelines(monkeypatch)
    monkeypatch.setattr(device, "target", replace(
        target, traits=replace(target.traits, fragments_alike=True)))
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", left_out)
    prepared = backend.prepare(onnx.load_model_from_string(_text(rng, samples)), "VULKAN")
    plan = prepared._region.plan([np.zeros((samples, 3, 8, 32), np.float32)])
    for compiled, _ in plan._steps:
        checked(compiled.operator.desc, compiled.plan)
    units = [v for v in plan.variants if "coopmat" in v]
    assert len(units) == (5 if samples > 1 else 4)  # 16 rows: another product
    if not left_out:
        assert plan.operators == TEXT
        assert not any("repack" in v for v in plan.variants), "rows are padded"
