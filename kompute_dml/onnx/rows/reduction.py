"""Rows of reductions, softmax, normalizations and Fourier transforms."""

from __future__ import annotations

from ...attributes import ReduceFunction
from .. import fourier, lowerings, normalization, reduction
from ..graph import OnnxNode
from ..row import FLOAT, MICROSOFT, Mapping, same_types

_SOFTMAX = tuple((op, f"ACTIVATION_{name}1") for op, name in (
    ("Softmax", "SOFTMAX"), ("LogSoftmax", "LOG_SOFTMAX"), ("Hardmax", "HARDMAX")))


def _normalization(node: OnnxNode) -> str | None:
    """Statistics are computed in float32. Only LayerNormalization outputs them."""
    has_statistics = node.op == "LayerNormalization"
    if not has_statistics and any(value is not None for value in node.outputs[1:3]):
        return "mean and variance as outputs"
    if node.attributes.get("training_mode", 0):
        return "training_mode=1"
    if node.op == "BatchNormalization" and node.since < 7 and not node.attributes.get("is_test", 0):
        return "is_test=0"
    if node.attributes.get("stash_type", FLOAT) != FLOAT:
        return "statistics in another precision than float32"
    return same_types(node)


ROWS: tuple[Mapping, ...] = (
    # Reductions
    *[Mapping(op, since, "REDUCE", reduction.reduction(function), host=(1,),
          function="DML_REDUCE_FUNCTION_" + function.name,
          attributes=("axes", "keepdims", "noop_with_empty_axes"))
      for op, since, function in (
          ("ReduceSum", (1, 11, 13), ReduceFunction.SUM),
          ("ReduceMean", (1, 11, 13, 18), ReduceFunction.AVERAGE),
          ("ReduceProd", (1, 11, 13, 18), ReduceFunction.MULTIPLY),
          ("ReduceMax", (1, 11, 12, 13, 18, 20), ReduceFunction.MAX),
          ("ReduceMin", (1, 11, 12, 13, 18, 20), ReduceFunction.MIN),
          ("ReduceL1", (1, 11, 13, 18), ReduceFunction.L1),
          ("ReduceL2", (1, 11, 13, 18), ReduceFunction.L2),
          ("ReduceLogSum", (1, 11, 13, 18, 28), ReduceFunction.LOG_SUM),
          ("ReduceLogSumExp", (1, 11, 13, 18, 28), ReduceFunction.LOG_SUM_EXP),
          ("ReduceSumSquare", (1, 11, 13, 18), ReduceFunction.SUM_SQUARE))],
    *[Mapping(op, (1, 11, 12, 13), op.upper(), reduction.argument(op.upper()),
          attributes=("axis", "keepdims", "select_last_index")) for op in ("ArgMax", "ArgMin")],
    Mapping("TopK", (1, 10, 11, 24), "TOP_K1", reduction.top_k, host=(1,),
        results=("OutputValueTensor", None),
        attributes=("axis", "k", "largest", "sorted")),
    Mapping("CumSum", (11, 14), "CUMULATIVE_SUMMATION",
        reduction.cumulative("CUMULATIVE_SUMMATION", "has_exclusive_sum"), host=(1,),
        attributes=("exclusive", "reverse")),
    Mapping("CumProd", (26,), "CUMULATIVE_PRODUCT",
        reduction.cumulative("CUMULATIVE_PRODUCT", "has_exclusive_product"), host=(1,),
        attributes=("exclusive", "reverse")),
    # Softmax and normalizations
    *[Mapping(op, (13,), operator, lowerings.along_axis(operator), attributes=("axis",))
      for op, operator in _SOFTMAX],
    *[Mapping(op, (1, 11), operator, normalization.flattened(operator), attributes=("axis",))
      for op, operator in _SOFTMAX],
    *[Mapping("LayerNormalization", since, "MEAN_VARIANCE_NORMALIZATION2",
          normalization.layers(True), domain, attributes=("axis", "epsilon", "stash_type"),
          results=("OutputTensor", None), refuses=_normalization)
      for since, domain in (((1, 17), ""), ((1,), MICROSOFT))],
    *[Mapping(op, since, "MEAN_VARIANCE_NORMALIZATION2", normalization.layers(False), domain,
          attributes=("axis", "epsilon", "stash_type"), refuses=_normalization)
      for op, since, domain in (("RMSNormalization", (23,), ""),
                                ("SimplifiedLayerNormalization", (1,), ""),
                                ("SimplifiedLayerNormalization", (1,), MICROSOFT))],
    *[Mapping(op, (1,), "MEAN_VARIANCE_NORMALIZATION2", normalization.skip_layers(use_mean),
          MICROSOFT, fields=("InputTensor",), attributes=("epsilon",), refuses=_normalization)
      for op, use_mean in (("SkipLayerNormalization", True),
                           ("SkipSimplifiedLayerNormalization", False))],
    Mapping("InstanceNormalization", (1, 6, 22), "MEAN_VARIANCE_NORMALIZATION1",
        normalization.instances, attributes=("epsilon",), refuses=_normalization),
    Mapping("GroupNormalization", (18, 21), "MEAN_VARIANCE_NORMALIZATION1", normalization.groups,
        attributes=("epsilon", "num_groups", "stash_type"), refuses=_normalization),
    Mapping("MeanVarianceNormalization", (1, 9, 13), "MEAN_VARIANCE_NORMALIZATION1",
        normalization.mean_variance,
        attributes=("across_channels", "axes", "normalize_variance")),
    *[Mapping(op, (1,), "MEAN_VARIANCE_NORMALIZATION1", normalization.grouped(op != "GroupNorm"),
          MICROSOFT, fields=("InputTensor",), results=("OutputTensor",) * 2,
          attributes=("activation", "channels_last", "epsilon", "groups"))
      for op in ("GroupNorm", "SkipGroupNorm")],
    Mapping("BatchNormalization", (1, 6, 7, 9, 14, 15), "BATCH_NORMALIZATION",
        normalization.batch, fields=("InputTensor",),
        attributes=("epsilon", "is_test", "momentum", "spatial", "training_mode"),
        refuses=_normalization),
    Mapping("LRN", (1, 13), "LOCAL_RESPONSE_NORMALIZATION", normalization.neighbours,
        attributes=("alpha", "beta", "bias", "size")),
    Mapping("LpNormalization", (1, 22), "LP_NORMALIZATION", normalization.norms,
        attributes=("axis", "p")),
    # Fourier transforms
    Mapping("DFT", (17, 20), "GEMM", fourier.dft, fields=("ATensor", None, None), host=(1, 2),
        attributes=("axis", "inverse", "onesided"), multiplies=True),
    Mapping("STFT", (17,), "GEMM", fourier.stft, fields=("ATensor", None, "ATensor", None),
        attributes=("onesided",), host=(1, 3), multiplies=True),
)
