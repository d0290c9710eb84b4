"""Rows of operators that several of DirectML's make up, and of what ONNX has dropped."""

from __future__ import annotations

from dataclasses import replace

from ...graph.array import BOOL
from .. import (
    attention,
    composed,
    einsum,
    experts,
    gated,
    gather,
    legacy,
    losses,
    lowerings,
    microsoft,
    movement,
)
from ..graph import OnnxNode
from ..row import COPY, FOLDED, MICROSOFT, TWO, Mapping, Refusal, elementwise, quantization

_DEQUANTIZED = (None,)
"""Quantized tensors. The composed operators check their types."""


def _one_scale(*indices: int) -> Refusal:
    """Refuse nodes with several scales or zero points."""

    def refuses(node: OnnxNode) -> str | None:
        for i in indices:
            if (p := node.input(i)) is not None and (p.shape is None or any(
                    n != 1 for n in p.shape)):
                return "a scale or zero point that may be more than one"
        return None

    return refuses


def _cast_like(node: OnnxNode) -> str | None:
    like = node.input(1)
    return "a cast to this data type" if like is None or like.dtype in (None, BOOL) else None


def _typed(node: OnnxNode) -> str | None:
    """The weights of a loss have the type of the shares."""
    x, weights = node.input(0), node.input(2)
    differ = x is not None and weights is not None and x.dtype != weights.dtype
    return "weights of another type" if differ else None


ROWS: tuple[Mapping, ...] = (
    # Composed of several operators
    Mapping("Mean", FOLDED, "ELEMENT_WISE_ADD", composed.mean, fields=TWO),
    Mapping("Pow", (12, 13, 15), "ELEMENT_WISE_POW", composed.power,
        fields=("InputTensor", None)),
    Mapping("Mish", (18, 22), "ACTIVATION_SOFTPLUS", composed.mish),
    Mapping("FastGelu", (1,), "ACTIVATION_SIGMOID", composed.fast_gelu, MICROSOFT,
        fields=("InputTensor",)),
    Mapping("BiasGelu", (1,), "ACTIVATION_GELU", composed.bias_gelu, MICROSOFT,
        fields=("InputTensor",)),
    Mapping("Einsum", (12, 28), "GEMM", einsum.einsum, fields=("ATensor",),
        attributes=("equation",), multiplies=True),
    *[Mapping(op, (1,), "GEMM", experts.mixture, MICROSOFT, fields=fields,
        attributes=("activation_alpha", "activation_beta", "activation_type", "k",
                    "normalize_routing_weights", "swiglu_fusion", "swiglu_limit",
                    "swiglu_limit_after_activation", "use_sparse_mixer", *more),
        refuses=experts.refusal, multiplies=True, repetition=experts.repetition)
      for op, fields, more in (("MoE", ("ATensor",), ()), ("QMoE", ("ATensor", None), (
          "accuracy_level", "block_size", "expert_weight_bits", "fc1_expert_weight_bits",
          "fc2_expert_weight_bits", "fc3_expert_weight_bits", "quant_type",
          "weights_prepacked")))],
    Mapping("GatedAdd", (1,), "ELEMENT_WISE_ADD", gated.added, MICROSOFT, fields=TWO,
        refuses=gated.added_refusal),
    Mapping("GatedRMSNorm", (1,), "MEAN_VARIANCE_NORMALIZATION2", gated.normalized, MICROSOFT,
        fields=("InputTensor",), attributes=("activation", "epsilon"),
        refuses=gated.normalized_refusal),
    Mapping("LinearAttentionGate", (1,), "ACTIVATION_SOFTPLUS", gated.decays, MICROSOFT,
        fields=("InputTensor",), results=(None, None)),
    Mapping("SwiGLU", (28,), "ACTIVATION_SWISH", composed.swiglu, fields=("InputTensor",),
        attributes=("alpha",)),
    Mapping("AffineGrid", (20,), "GEMM", composed.affine_grid, fields=("ATensor", None),
        attributes=("align_corners",), host=(1,)),
    Mapping("BitCast", (26,), COPY, composed.bit_cast, attributes=("to",)),
    Mapping("CenterCropPad", (18,), "PADDING1", movement.center_crop_pad, attributes=("axes",),
        host=(1,)),
    Mapping("TensorScatter", (24,), "SCATTER", gather.tensor_scatter,
        fields=("InputTensor", "UpdatesTensor", None), attributes=("axis", "mode")),
    *[Mapping(op, since, "REDUCE", build, fields=("InputTensor", None),
              attributes=("ignore_index", "reduction"), results=("OutputTensor",) * 2,
              refuses=_typed)
      for op, since, build in (
          ("NegativeLogLikelihoodLoss", (12, 13, 22), losses.likelihood),
          ("SoftmaxCrossEntropyLoss", (12, 13), losses.cross_entropy))],
    # com.microsoft's that take several operators
    *[Mapping(op, (1,), "ELEMENT_WISE_DEQUANTIZE_LINEAR", build, MICROSOFT, fields=_DEQUANTIZED,
              attributes=attributes, results=(None,), refuses=_one_scale(*scales))
      for op, build, attributes, scales in (
          ("QLinearMul", microsoft.quantized_product, (), (1, 2, 4, 5, 6, 7)),
          ("QLinearSigmoid", microsoft.quantized(microsoft.sigmoid), (), (1, 2, 3, 4)),
          ("QLinearLeakyRelu", microsoft.quantized(microsoft.leaky_relu), ("alpha",),
           (1, 2, 3, 4)),
          ("QLinearSoftmax", microsoft.quantized(microsoft.softmax), ("axis", "opset"),
           (1, 2, 3, 4)),
          ("QLinearConcat", microsoft.quantized_concat, ("axis",), ()))],
    *[Mapping(f"{op}Linear", (1,), f"ELEMENT_WISE_{op.upper()}_LINEAR",
              lowerings.quantization(f"ELEMENT_WISE_{op.upper()}_LINEAR"), MICROSOFT,
              attributes=("axis", "block_size"), refuses=quantization)
      for op in ("Quantize", "Dequantize")],
    Mapping("DynamicQuantizeLSTM", (1,), "LSTM", microsoft.quantized_lstm, MICROSOFT,
            fields=("InputTensor", None, None, "BiasTensor", None, "HiddenInitTensor",
                    "CellMemInitTensor", "PeepholeTensor", None),
            attributes=("hidden_size", "direction", "activations", "activation_alpha",
                        "activation_beta", "clip", "input_forget"),
            refuses=attention.recurrent_refusal, multiplies=True),
    Mapping("EmbedLayerNormalization", (1,), "MEAN_VARIANCE_NORMALIZATION2",
            microsoft.embed_layers, MICROSOFT,
            fields=(None, None, "InputTensor", "InputTensor", "InputTensor", "ScaleTensor",
                    "BiasTensor", None, None),
            results=("OutputTensor", None, "OutputTensor"),
            attributes=("epsilon", "mask_index_type")),
    Mapping("BiasAdd", (1,), "ELEMENT_WISE_ADD", microsoft.bias_add, MICROSOFT,
            fields=("ATensor", "BTensor")),
    Mapping("BiasSplitGelu", (1,), "ACTIVATION_GELU", microsoft.bias_split_gelu, MICROSOFT,
            fields=("InputTensor",)),
    Mapping("Trilu", (1,), "DIAGONAL_MATRIX1", lowerings.trilu, MICROSOFT, attributes=("upper",),
            host=(1,)),
    elementwise("CastLike", (15, 19, 21, 23, 24, 25, 28), "CAST", reads=("saturate", "round_mode"),
                 fields=("InputTensor", None), refuses=_cast_like, tensors=1),
    # What ONNX has dropped, or ONNX Runtime keeps for old models
    elementwise("Affine", (1,), "ACTIVATION_LINEAR", lowerings.floats(alpha=1.0, beta=0.0),
                 reads=("alpha", "beta")),
    elementwise("ParametricSoftplus", (1,), "ACTIVATION_PARAMETRIC_SOFTPLUS",
                 lowerings.floats(alpha=1.0, beta=1.0), reads=("alpha", "beta")),
    elementwise("ScaledTanh", (1,), "ACTIVATION_SCALED_TANH",
                 lowerings.floats(alpha=1.0, beta=1.0), reads=("alpha", "beta")),
    Mapping("ImageScaler", (1,), "ELEMENT_WISE_ADD", legacy.image_scaler,
        attributes=("bias", "scale")),
    Mapping("Crop", (1,), COPY, legacy.crop, attributes=("border", "scale")),
    *[replace(row, since=since, build=legacy.broadcast(row.build),
              attributes=("axis", "broadcast"))
      for op, since, operator in (
          *((op, (1, 6), f"ELEMENT_WISE_{name}") for op, name in (
              ("Add", "ADD"), ("Sub", "SUBTRACT"), ("Mul", "MULTIPLY"), ("Div", "DIVIDE"))),
          *((op, (1,), f"ELEMENT_WISE_LOGICAL_{name}") for op, name in (
              ("And", "AND"), ("Or", "OR"), ("Xor", "XOR"), ("Equal", "EQUALS"),
              ("Greater", "GREATER_THAN"), ("Less", "LESS_THAN"))),
          ("Pow", (1,), "ELEMENT_WISE_POW"))
      for row in (elementwise(op, since, operator),)],
    Mapping("PRelu", (1, 6), "ACTIVATION_PARAMETERIZED_RELU", legacy.slopes(
        lowerings.elementwise("ACTIVATION_PARAMETERIZED_RELU"))),
    Mapping("Cast", (1,), "CAST", legacy.cast(composed.truth, lowerings.elementwise("CAST")),
        attributes=("to",), refuses=legacy.cast_refusal),
    Mapping("Reshape", (1,), COPY, legacy.reshape_attribute, attributes=("shape",)),
)
