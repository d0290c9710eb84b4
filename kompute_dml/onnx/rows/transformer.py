"""Rows of attention, recurrent networks and random numbers."""

from __future__ import annotations

from .. import (
    attention,
    attention_parts,
    linear_attention,
    normalization,
    random,
    shared_caches,
    transformer,
)
from ..graph import OnnxNode
from ..row import MICROSOFT, Mapping, same_types


def _trained(node: OnnxNode) -> str | None:
    """Why a batch normalization by its input's statistics is refused, or None."""
    if not node.attributes.get("training_mode", 0):
        return "training_mode=0"
    x = node.inputs[0]
    if x is None or x.shape is None or len(x.shape) < 2:
        return "an input of unknown rank"
    return same_types(node)


def _recurrent(
    kind: str, states: tuple[str, ...] = (), attributes: tuple[str, ...] = ()
) -> Mapping:
    return Mapping(
        kind, (1, 3, 7, 14, 22), kind, attention.recurrent(kind),
        fields=("InputTensor", "WeightTensor", "RecurrenceTensor", "BiasTensor", None,
                "HiddenInitTensor", *states),
        attributes=("hidden_size", "direction", "activations", "activation_alpha",
                    "activation_beta", "clip", "layout", "output_sequence", *attributes),
        refuses=attention.recurrent_refusal, multiplies=True)


ROWS: tuple[Mapping, ...] = (
    # Attention and recurrent networks
    *[Mapping("MultiHeadAttention", (1,), operator, shared_caches.multi_head, MICROSOFT,
          fields=("QueryTensor", "KeyTensor", "ValueTensor", "BiasTensor", "MaskTensor",
                  "RelativePositionBiasTensor", "PastKeyTensor", "PastValueTensor", None, None),
          attributes=("num_heads", "mask_filter_value", "scale", "unidirectional"),
          refuses=refuses, multiplies=True)
      for operator, refuses in (
          ("MULTIHEAD_ATTENTION", attention.both_ways_refusal),
          ("MULTIHEAD_ATTENTION1", shared_caches.multi_head_refusal))],
    Mapping("DecoderMaskedMultiHeadAttention", (1,), "MULTIHEAD_ATTENTION1", shared_caches.masked,
            MICROSOFT,
            fields=("QueryTensor", "KeyTensor", "ValueTensor", "MaskTensor",
                    "RelativePositionBiasTensor", "PastKeyTensor", "PastValueTensor", None, None,
                    None, "BiasTensor"),
            attributes=("mask_filter_value", "num_heads", "output_qk", "past_present_share_buffer",
                        "scale"),
            refuses=shared_caches.masked_refusal, multiplies=True),
    Mapping("Attention", (23, 24, 25), "MULTIHEAD_ATTENTION1", attention.attention,
        fields=("QueryTensor", "KeyTensor", "ValueTensor", None, "PastKeyTensor",
                "PastValueTensor", None),
        attributes=("is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale",
                    "softcap", "softmax_precision"),
        refuses=attention.onnx_attention_refusal, multiplies=True),
    Mapping("Attention", (23, 24, 25), "GEMM", attention_parts.attention,
        fields=("ATensor", "ATensor", "ATensor", None, "ATensor", "ATensor", None),
        attributes=("is_causal", "kv_num_heads", "left_window_size", "q_num_heads",
                    "qk_matmul_output_mode", "right_window_size", "scale", "softcap",
                    "softmax_precision"),
        refuses=attention_parts.refusal, multiplies=True),
    *[Mapping("LinearAttention", since, "GEMM", linear_attention.linear_attention, domain,
          fields=("ATensor",), results=("OutputTensor",) * 2, refuses=linear_attention.refusal,
          attributes=("chunk_size", "kv_num_heads", "q_num_heads", "scale", "state_window",
                      "update_rule"), multiplies=True)
      for since, domain in (((27,), ""), ((1,), MICROSOFT))],
    _recurrent("RNN"),
    _recurrent("GRU", attributes=("linear_before_reset",)),
    _recurrent("LSTM", ("CellMemInitTensor", "PeepholeTensor"), ("input_forget",)),
    Mapping("BatchNormalization", (14, 15), "BATCH_NORMALIZATION_TRAINING",
        normalization.batch_training, fields=("InputTensor",),
        attributes=("epsilon", "momentum", "training_mode"), refuses=_trained),
    Mapping("Attention", (1,), "MULTIHEAD_ATTENTION1", transformer.projected, MICROSOFT,
        fields=("QueryTensor", "QueryTensor", "QueryTensor", "MaskTensor", "PastKeyTensor",
                "RelativePositionBiasTensor", None),
        attributes=("do_rotary", "mask_filter_value", "num_heads", "past_present_share_buffer",
                    "qkv_hidden_sizes", "rotary_embedding_dim", "scale", "unidirectional"),
        refuses=transformer.projected_refusal, multiplies=True),
    Mapping("QAttention", (1,), "MATRIX_MULTIPLY_INTEGER_TO_FLOAT", transformer.quantized,
        MICROSOFT,
        fields=("ATensor", "BTensor", "BiasTensor", "AScaleTensor", "BScaleTensor", None,
                "AZeroPointTensor", "BZeroPointTensor", "OutputTensor"),
        attributes=("do_rotary", "mask_filter_value", "num_heads", "past_present_share_buffer",
                    "scale", "unidirectional"),
        refuses=transformer.projected_refusal, multiplies=True),
    Mapping("GroupQueryAttention", (1,), "MULTIHEAD_ATTENTION1", transformer.grouped, MICROSOFT,
        fields=("QueryTensor", "KeyTensor", "ValueTensor", None, None,
                "PastSequenceLengthsTensor", None, "QueryTensor", "QueryTensor", None,
                "RelativePositionBiasTensor", None, None, None, "QueryTensor", "QueryTensor", None),
        attributes=("causal", "do_rotary", "k_quant_type", "kv_cache_bit_width", "k_norm_epsilon",
                    "kv_num_heads", "local_window_size", "num_heads", "q_norm_epsilon",
                    "qk_norm_epsilon", "qk_output", "rotary_interleaved", "scale",
                    "sliding_window_cache", "smooth_softmax", "softcap", "v_quant_type"),
        results=("OutputTensor", None), host=(6,), alike=transformer.alike_totals,
        refuses=transformer.grouped_refusal, multiplies=True),
    Mapping("RotaryEmbedding", (23,), "ELEMENT_WISE_MULTIPLY", transformer.rotary,
        fields=("ATensor", "ATensor", "ATensor", None),
        attributes=("interleaved", "num_heads", "rotary_embedding_dim"),
        refuses=transformer.rotary_refusal),
    Mapping("RotaryEmbedding", (1,), "ELEMENT_WISE_MULTIPLY", transformer.rotary, MICROSOFT,
        fields=("ATensor", None, "ATensor", "ATensor"),
        attributes=("interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim",
                    "scale"),
        refuses=transformer.rotary_refusal),
    Mapping("MRotaryEmbedding", (1,), "ELEMENT_WISE_MULTIPLY", transformer.rotary_of_places,
        MICROSOFT, fields=("ATensor", None, "ATensor", "ATensor"),
        attributes=("interleaved", "is_packed_batching", "mrope_layout", "mrope_section",
                    "num_heads", "rotary_embedding_dim", "scale"),
        refuses=transformer.rotary_refusal),
    *[Mapping(f"Random{kind}{'Like' * like}", (1, 22), "RANDOM_GENERATOR", random.random(like),
          fields=(None,), results=(None,), refuses=random.refusal,
          attributes=("dtype", "seed", "shape", *parameters))
      for kind, parameters in (("Uniform", ("high", "low")), ("Normal", ("mean", "scale")))
      for like in (False, True)],
)
