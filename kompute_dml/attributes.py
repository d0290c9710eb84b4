"""Structures and enumerations that operators take as attributes."""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True)
class ScaleBias:
    """DML_SCALE_BIAS: ``x * scale + bias`` replaces the input x. Both are FLOAT."""

    scale: float = 1.0
    bias: float = 0.0


@dataclass(frozen=True)
class Size2d:
    """DML_SIZE_2D. Both are UINT."""

    width: int
    height: int


class AxisDirection(enum.IntEnum):
    """DML_AXIS_DIRECTION."""

    INCREASING = 0
    DECREASING = 1


class ConvolutionMode(enum.IntEnum):
    """DML_CONVOLUTION_MODE."""

    CONVOLUTION = 0
    """The filter is mirrored."""
    CROSS_CORRELATION = 1
    """As in ONNX and PyTorch."""


class ConvolutionDirection(enum.IntEnum):
    """DML_CONVOLUTION_DIRECTION."""

    FORWARD = 0
    BACKWARD = 1
    """A transposed convolution."""


class DepthSpaceOrder(enum.IntEnum):
    """DML_DEPTH_SPACE_ORDER: the order of a block's parts in the channels."""

    DEPTH_COLUMN_ROW = 0
    COLUMN_ROW_DEPTH = 1


class InterpolationMode(enum.IntEnum):
    """DML_INTERPOLATION_MODE."""

    NEAREST_NEIGHBOR = 0
    LINEAR = 1


class IsInfinityMode(enum.IntEnum):
    """DML_IS_INFINITY_MODE."""

    EITHER = 0
    POSITIVE = 1
    NEGATIVE = 2


class MatrixTransform(enum.IntEnum):
    """DML_MATRIX_TRANSFORM."""

    NONE = 0
    TRANSPOSE = 1


class MultiheadAttentionMaskType(enum.IntEnum):
    """DML_MULTIHEAD_ATTENTION_MASK_TYPE."""

    NONE = 0
    KEY_SEQUENCE_LENGTH = 1
    KEY_SEQUENCE_END_START = 2
    KEY_QUERY_SEQUENCE_LENGTH_START_END = 3
    BOOLEAN = 4


class PaddingMode(enum.IntEnum):
    """DML_PADDING_MODE."""

    CONSTANT = 0
    EDGE = 1
    REFLECTION = 2
    SYMMETRIC = 3
    WRAP = 4


class QuantizationType(enum.IntEnum):
    """DML_QUANTIZATION_TYPE."""

    NONE = 0
    SCALE = 1
    SCALE_ZERO_POINT = 2


class RandomGeneratorType(enum.IntEnum):
    """DML_RANDOM_GENERATOR_TYPE."""

    PHILOX_4X32_10 = 0


class RecurrentNetworkDirection(enum.IntEnum):
    """DML_RECURRENT_NETWORK_DIRECTION."""

    FORWARD = 0
    BACKWARD = 1
    BIDIRECTIONAL = 2


class ReduceFunction(enum.IntEnum):
    """DML_REDUCE_FUNCTION."""

    ARGMAX = 0
    ARGMIN = 1
    AVERAGE = 2
    L1 = 3
    L2 = 4
    LOG_SUM = 5
    LOG_SUM_EXP = 6
    MAX = 7
    MIN = 8
    MULTIPLY = 9
    SUM = 10
    SUM_SQUARE = 11


class RoundingMode(enum.IntEnum):
    """DML_ROUNDING_MODE."""

    HALVES_TO_NEAREST_EVEN = 0
    TOWARD_ZERO = 1
    TOWARD_INFINITY = 2
    """To the nearest; halves away from zero."""


ENUMS: dict[str, type[enum.IntEnum]] = {
    f"DML_{name}": kind
    for name, kind in {
        "AXIS_DIRECTION": AxisDirection,
        "CONVOLUTION_DIRECTION": ConvolutionDirection,
        "CONVOLUTION_MODE": ConvolutionMode,
        "DEPTH_SPACE_ORDER": DepthSpaceOrder,
        "INTERPOLATION_MODE": InterpolationMode,
        "IS_INFINITY_MODE": IsInfinityMode,
        "MATRIX_TRANSFORM": MatrixTransform,
        "MULTIHEAD_ATTENTION_MASK_TYPE": MultiheadAttentionMaskType,
        "PADDING_MODE": PaddingMode,
        "QUANTIZATION_TYPE": QuantizationType,
        "RANDOM_GENERATOR_TYPE": RandomGeneratorType,
        "RECURRENT_NETWORK_DIRECTION": RecurrentNetworkDirection,
        "REDUCE_FUNCTION": ReduceFunction,
        "ROUNDING_MODE": RoundingMode,
    }.items()
}
"""Enumerations by DirectML's name. DML_TENSOR_DATA_TYPE is :class:`~.dtypes.DataType`."""
