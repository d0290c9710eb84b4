"""The DirectML operator for each ONNX operator: one mapping each.

A mapping is active if its DirectML operator is implemented at the device's feature level for the
data types. So a new operator needs only its mapping.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .. import spec
from ..attributes import ReduceFunction
from ..desc import MAX_DIMENSIONS
from ..errors import DmlError, UnsupportedError
from ..graph.array import BOOL, Array, device_type
from ..graph.builder import Builder, supported
from ..operators import base
from . import (
    attention,
    attention_parts,
    composed,
    convolution,
    einsum,
    fourier,
    gather,
    legacy,
    linear_attention,
    losses,
    lowerings,
    microsoft,
    movement,
    normalization,
    pooling,
    products,
    quantized,
    random,
    reduction,
    sampling,
    transformer,
)
from .graph import DTYPES, Node, Value

if TYPE_CHECKING:
    from ..device import Device

MICROSOFT = "com.microsoft"
_OF_MEMORY = {"consumed_inputs"}
"""Attributes by which ONNX's first versions told where a result may lie."""
_FLOAT = 1
"""float32's number among ONNX's data types."""
Refusal = Callable[[Node], "str | None"]
WITHOUT_EFFECT: dict[str, object] = {
    "left_window_size": -1, "right_window_size": -1,
    "qk_norm_epsilon": 9.999999974752427e-07,  # 1e-6, as a float32
    "weight_prepacked": 0,
}
"""Attributes that say nothing at these values, which are their defaults: ONNX Runtime spells them
out, whether a model has them or not."""


@dataclass(frozen=True)
class Mapping:
    """An ONNX operator, or a use of it."""

    op: str
    since: tuple[int, ...]
    """Versions of the operator that this mapping understands."""
    operator: str
    """The DirectML operator, without ``DML_OPERATOR_``. For views, the one that copies them."""
    build: lowerings.Build
    domain: str = ""
    fields: tuple[str | None, ...] = ()
    """The DirectML tensor of each input, if the order differs from DirectML's. The last one also
    stands for all further inputs."""
    attributes: tuple[str, ...] = ()
    """Supported attributes. Nodes with others are refused."""
    host: tuple[int, ...] = ()
    """Inputs whose values the plan depends on, so that the host must know them."""
    refuses: Refusal = lambda node: None
    """Why this mapping refuses the node, or None."""
    multiplies: bool = False
    """Whether it is a product or a convolution: work that is worth a transfer."""
    results: tuple[str | None, ...] = ()
    """The DirectML tensor of each output, if its type differs from the table's."""

    @property
    def is_view(self) -> bool:
        """Whether it computes nothing."""
        return self.operator == _COPY

    def refusal(self, node: Node, device: Device) -> str | None:
        """Why this mapping refuses ``node`` on ``device``, or None."""
        if node.since not in self.since:
            return f"version {node.since} of the operator is not known, only {self.since}"
        known = {*self.attributes, *_OF_MEMORY}
        unknown = {name for name, value in node.attributes.items()
                   if name not in known and value != WITHOUT_EFFECT.get(name)}
        if unknown:
            return f"attribute {', '.join(sorted(unknown))} is not understood"
        return self.refuses(node) or self._refuses_types(node, device)

    def _refuses_types(self, node: Node, device: Device) -> str | None:
        name = "DML_OPERATOR_" + self.operator
        entry = spec.operator(name)
        if name not in base.definitions():
            return f"{name} is not implemented"
        if supported(device, name, entry.tensors[0].name) is None:
            return f"{name} needs feature level {entry.introduced}, not {device.feature_level}"
        tensors = entry.support_at(device.feature_level) or {}
        most = device._runtime.engine.max_buffer
        for i, value in enumerate(node.inputs):
            if value is not None:
                field = None if i in self.host else self._input_field(i)
                if reason := _refuses_value(value, field, tensors, most):
                    return f"input {i}: {reason}"
        for i, value in enumerate(node.outputs):
            if value is not None:
                field = self._output_field(i)
                if reason := _refuses_value(value, field, tensors, most):
                    return f"output {i}: {reason}"
        return None

    def _output_field(self, index: int) -> str | None:
        fields = self.results or tuple(
            f.name for f in spec.operator("DML_OPERATOR_" + self.operator).outputs)
        return fields[index] if index < len(fields) else None

    def _input_field(self, index: int) -> str | None:
        fields = self.fields
        if not fields:
            fields = tuple(f.name for f in spec.operator("DML_OPERATOR_" + self.operator).inputs)
        return fields[min(index, len(fields) - 1)] if fields else None


def _refuses_value(
    value: Value, field: str | None, tensors: dict[str, spec.TensorSupport], most: int
) -> str | None:
    """``most`` is the largest buffer of the device, in bytes."""
    if value.dtype is None:
        return f"{value.name!r} is not a tensor of a type that DirectML has"
    if value.shape is not None and len(value.shape) > MAX_DIMENSIONS:
        return f"{value.name!r} has more than {MAX_DIMENSIONS} dimensions"
    if value.nbytes > most:
        return f"{value.name!r} takes {value.nbytes} bytes, of {most} in a buffer at most"
    if field in tensors and device_type(value.dtype) not in tensors[field].data_types:
        return f"{field} cannot be {device_type(value.dtype)} at this feature level"
    return None


def match(node: Node, device: Device) -> Mapping | str:
    """The mapping of ``node`` on ``device``, or why there is none."""
    mapping = candidate(node, device)
    return mapping if isinstance(mapping, str) else _trial(mapping, node, device) or mapping


def find(node: Node, device: Device) -> Mapping:
    """The mapping of a node that was matched before. Raises UnsupportedError."""
    mapping = candidate(node, device)
    if isinstance(mapping, str):
        raise UnsupportedError(f"{node.label} {node.name!r}: {mapping}")
    return mapping


def candidate(node: Node, device: Device) -> Mapping | str:
    """The mapping of ``node`` by the tables, or why there is none."""
    reason = "no mapping has this operator"
    rows = _by_operator().get((node.domain, node.op), [])
    for mapping in [row for row in rows if node.since in row.since] or rows:
        refused = mapping.refusal(node, device)
        if refused is None:
            return mapping
        reason = refused
    return reason


def _trial(mapping: Mapping, node: Node, device: Device) -> str | None:
    """Why the node does not compile on the device, which may lack a feature, or None."""
    builder = Builder(device, trial=True)
    inputs: list[Array | None] = []
    certain = True
    for i, value in enumerate(node.inputs):
        if value is None or value.dtype is None:
            inputs.append(None)
            continue
        if i in mapping.host and value.constant is None:
            return None  # everything depends on a value that only a run knows
        shape = value.shape or ()
        certain = certain and value.shape is not None and None not in shape
        array = builder.new([1 if n is None else n for n in shape], value.dtype)
        inputs.append(replace(array, host=value.constant))
    try:
        mapping.build(builder, node, inputs)
    except UnsupportedError as error:
        return str(error)
    except Exception as error:  # whatever a model makes go wrong
        # Substitutes for unknown sizes need not fit together.
        return said(error) if certain else None
    return None


def said(error: Exception) -> str:
    """What to say of whatever a model made go wrong."""
    if isinstance(error, KeyError):
        return f"not known: {error}"
    return str(error) if isinstance(error, (DmlError, ValueError, LookupError)) else repr(error)


@functools.cache
def _by_operator() -> dict[tuple[str, str], list[Mapping]]:
    result: dict[tuple[str, str], list[Mapping]] = {}
    for mapping in TABLE:
        result.setdefault((mapping.domain, mapping.op), []).append(mapping)
    return result


# Reasons to refuse a node


def _attribute(name: str, value: object, default: object) -> Refusal:
    """Refuse nodes with another value of an attribute."""

    def refuses(node: Node) -> str | None:
        got = node.attributes.get(name, default)
        return None if got == value else f"{name}={got!r}"

    return refuses


def _dropout(node: Node) -> str | None:
    training = node.input(2)
    if training is not None and (training.constant is None or training.constant.any()):
        return "only inference: training_mode must be a constant false"
    return None if node.since >= 7 or node.attributes.get("is_test", 0) else "is_test=0"


def _two_inputs(node: Node) -> str | None:
    return None if len(node.inputs) == 2 else "the mean of more or fewer than two"


def _same_types(node: Node) -> str | None:
    dtypes = {v.dtype for v in node.inputs if v is not None}
    return None if len(dtypes) == 1 else "the inputs differ in data type"


def _cast(node: Node) -> str | None:
    dtype = DTYPES.get(node.attributes.get("to", 0))
    if dtype is None or dtype == BOOL:
        return "a cast to this data type"
    return None


def _cast_to_bool(node: Node) -> str | None:
    return None if DTYPES.get(node.attributes.get("to", 0)) == BOOL else "a cast to this data type"


def _either_infinity(node: Node) -> str | None:
    signs = [node.attributes.get(f"detect_{s}", 1) for s in ("positive", "negative")]
    return None if any(signs) else "nothing to detect"


def _quantization(node: Node) -> str | None:
    if node.attributes.get("precision", 0) not in (0, _FLOAT):
        return "a quotient in another precision than float32"
    scale = node.input(1)
    if scale is None or scale.shape is None or (
            len(scale.shape) > 1 and not node.attributes.get("block_size", 0)):
        return "a scale that may have more than one dimension"
    out = node.outputs[0]
    if node.attributes.get("output_dtype", 0) and node.op == "DequantizeLinear" and (
            out is None or out.dtype != scale.dtype):
        return "an output type of its own"
    return None


def _matrices(node: Node) -> str | None:
    for value in node.inputs[:2]:
        if value is None or value.shape is None or len(value.shape) < 1:
            return "matrices of unknown rank"
    return None


def _qlinear_matrices(node: Node) -> str | None:
    for index, axis in ((1, -2), (2, -2), (4, -1), (5, -1), (6, -2), (7, -2)):
        vector = node.input(index)
        if vector is None or vector.shape is None:
            return "a scale or zero point of unknown shape"
        if len(vector.shape) > 1 and any(
                n != 1 for d, n in enumerate(vector.shape, -len(vector.shape)) if d != axis):
            return "a scale or zero point for each batch"
    for value in (node.input(0), node.input(3)):
        if value is None or value.shape is None or len(value.shape) < 1:
            return "matrices of unknown rank"
    return None


def _vectors(*, a: tuple[int, ...], b: tuple[int, ...]) -> Refusal:
    """Refuse scales and zero points of A's rows and B's columns that vary over batches."""
    axes = {**dict.fromkeys(a, -2), **dict.fromkeys(b, -1)}

    def refuses(node: Node) -> str | None:
        for i, axis in axes.items():
            vector = node.input(i)
            if vector is None:
                continue
            if vector.shape is None:
                return "a scale or zero point of unknown shape"
            if any(n != 1 for d, n in enumerate(vector.shape, -len(vector.shape))
                   if d != axis and len(vector.shape) > 1):
                return "a scale or zero point for each batch"
        return _matrices(node)

    return refuses


def _counted(node: Node) -> str | None:
    out = node.outputs[0]
    if out is None or out.shape is None or None in out.shape:
        return "how many elements are found is known only after a run"
    return None
def _normalization(node: Node) -> str | None:
    """Statistics are computed in float32. Only LayerNormalization outputs them."""
    has_statistics = node.op == "LayerNormalization"
    if not has_statistics and any(value is not None for value in node.outputs[1:3]):
        return "mean and variance as outputs"
    if node.attributes.get("training_mode", 0):
        return "training_mode=1"
    if node.op == "BatchNormalization" and node.since < 7 and not node.attributes.get("is_test", 0):
        return "is_test=0"
    if node.attributes.get("stash_type", _FLOAT) != _FLOAT:
        return "statistics in another precision than float32"
    return _same_types(node)


def _one_scale(*indices: int) -> Refusal:
    """Refuse nodes with several scales or zero points."""

    def refuses(node: Node) -> str | None:
        for i in indices:
            if (p := node.input(i)) is not None and (p.shape is None or any(
                    n != 1 for n in p.shape)):
                return "a scale or zero point that may be more than one"
        return None

    return refuses


def _cast_like(node: Node) -> str | None:
    like = node.input(1)
    return "a cast to this data type" if like is None or like.dtype in (None, BOOL) else None
def _trained(node: Node) -> str | None:
    """Why a batch normalization by its input's statistics is refused, or None."""
    if not node.attributes.get("training_mode", 0):
        return "training_mode=0"
    x = node.inputs[0]
    if x is None or x.shape is None or len(x.shape) < 2:
        return "an input of unknown rank"
    return _same_types(node)


def _typed(node: Node) -> str | None:
    """The weights of a loss have the type of the shares."""
    x, weights = node.input(0), node.input(2)
    differ = x is not None and weights is not None and x.dtype != weights.dtype
    return "weights of another type" if differ else None


# The table

_QUANTIZED = (10, 13, 19, 21, 23, 24, 25, 28)
_SHAPED = (1, 13, 14, 19, 21, 23, 24, 25)


def _elementwise(
    op: str, since: tuple[int, ...], operator: str, attributes: lowerings.Attributes | None = None,
    *, reads: tuple[str, ...] = (), fields: tuple[str | None, ...] = (),
    refuses: Refusal = lambda node: None, domain: str = "", tensors: int | None = None,
) -> Mapping:
    build = lowerings.elementwise(
        operator, attributes or lowerings.constants(), tensors=tensors)
    return Mapping(op, since, operator, build, domain, fields, reads, refuses=refuses)


_ARITHMETIC = (7, 13, 14)
_UNARY = (1, 6, 13)
_TRIGONOMETRIC = (7, 22)
_HYPERBOLIC = (9, 22)
_FOLDED = (1, 6, 8, 12, 13)
_COMPARISON = (7, 9, 11, 13, 19)
_ACTIVATION = (1, 6, 13, 14, 16, 22)
_TWO = ("ATensor", "BTensor")
_COPY = "ELEMENT_WISE_IDENTITY"
_WINDOW = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
_DEQUANTIZED = (None,)
"""Quantized tensors. The composed operators check their types."""
_SOFTMAX = tuple((op, f"ACTIVATION_{name}1") for op, name in (
    ("Softmax", "SOFTMAX"), ("LogSoftmax", "LOG_SOFTMAX"), ("Hardmax", "HARDMAX")))
_TRANSPOSED = ("alpha", "transA", "transB", "transBatchA", "transBatchB")
_CONVOLUTION = (1, 11, 22)
_CONVOLVED = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


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


TABLE: tuple[Mapping, ...] = (
    # Quantized products
    Mapping("MatMulIntegerToFloat", (1,), "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
        products.matmul_integer_to_float, MICROSOFT,
        fields=("ATensor", "BTensor", "AScaleTensor", "BScaleTensor", "AZeroPointTensor",
                "BZeroPointTensor", "BiasTensor"),
        refuses=_vectors(a=(2, 4), b=(3, 5)), multiplies=True),
    Mapping("MatMulInteger", (10,), "MATRIX_MULTIPLY_INTEGER", products.matmul_integer,
        fields=("ATensor", "BTensor", "AZeroPointTensor", "BZeroPointTensor"),
        refuses=_vectors(a=(2,), b=(3,)), multiplies=True),
    Mapping("DynamicQuantizeMatMul", (1,), "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
        products.dynamic_quantize_matmul, MICROSOFT,
        # A has the output's type until it is quantized.
        fields=("OutputTensor", "BTensor", "BScaleTensor", "BZeroPointTensor", "BiasTensor"),
        refuses=_vectors(a=(), b=(2, 3)), multiplies=True),
    # Products
    Mapping("QLinearMatMul", (10, 21), "QUANTIZED_LINEAR_MATRIX_MULTIPLY", products.qlinear_matmul,
        fields=("ATensor", None, "AZeroPointTensor", "BTensor", None, "BZeroPointTensor", None,
                "OutputZeroPointTensor"),
        refuses=_qlinear_matrices, multiplies=True),
    Mapping("MatMul", (1, 9, 13), "GEMM", products.matmul, refuses=_matrices, multiplies=True),
    Mapping("FusedMatMul", (1,), "GEMM", products.matmul, MICROSOFT,
        attributes=_TRANSPOSED, refuses=_matrices, multiplies=True),
    Mapping("TransposeMatMul", (1,), "GEMM", products.matmul, MICROSOFT, attributes=_TRANSPOSED,
        refuses=_matrices, multiplies=True),
    Mapping("Gemm", (1, 6, 7, 9, 11, 13), "GEMM", products.gemm,
        attributes=("alpha", "beta", "broadcast", "transA", "transB"), refuses=_matrices,
        multiplies=True),
    *[Mapping(op, (1,), "GEMM", products.activated(build), MICROSOFT,
          attributes=(*attributes, "activation", "activation_alpha", "activation_axis",
                      "activation_beta", "activation_gamma"),
          refuses=lambda node: products.activation_refusal(node) or _matrices(node),
          multiplies=True)
      for op, build, attributes in (
          ("FusedGemm", products.gemm, ("alpha", "beta", "transA", "transB")),
          ("FusedMatMulActivation", products.matmul, _TRANSPOSED))],
    Mapping("QGemm", (1,), "MATRIX_MULTIPLY_INTEGER", quantized.qgemm, MICROSOFT,
        fields=("ATensor", None, "AZeroPointTensor", "BTensor", None, "BZeroPointTensor", None),
        attributes=("alpha", "transA", "transB"), results=(None,),
        refuses=quantized.integer_matrices, multiplies=True),
    Mapping("MatMulNBits", (1,), "GEMM", quantized.matmul_bits, MICROSOFT,
        fields=("ATensor", None, "ATensor", None, None, "CTensor"),
        attributes=("K", "N", "accuracy_level", "bits", "block_size"),
        refuses=quantized.blocked_weights, multiplies=True),
    # Quantization
    Mapping("DynamicQuantizeLinear", (11,), "DYNAMIC_QUANTIZE_LINEAR", lowerings.dynamic_quantize),
    Mapping("QuantizeLinear", _QUANTIZED, "ELEMENT_WISE_QUANTIZE_LINEAR",
        quantized.quantization("QUANTIZE"),
        attributes=("axis", "block_size", "output_dtype", "precision", "saturate"),
        refuses=_quantization),
    Mapping("DequantizeLinear", _QUANTIZED, "ELEMENT_WISE_DEQUANTIZE_LINEAR",
        quantized.quantization("DEQUANTIZE"),
        attributes=("axis", "block_size", "output_dtype"), refuses=_quantization),
    Mapping("QLinearAdd", (1,), "ELEMENT_WISE_QUANTIZED_LINEAR_ADD", lowerings.quantized_sum,
            MICROSOFT),
    # Diagonals
    Mapping("EyeLike", (9, 22), "DIAGONAL_MATRIX", lowerings.eye_like, fields=(None,),
        attributes=("dtype", "k")),
    Mapping("Trilu", (14,), "DIAGONAL_MATRIX1", lowerings.trilu, attributes=("upper",), host=(1,)),
    # Views: nothing is computed, but a region's outputs are copied
    Mapping("Identity", (*_SHAPED, 16), _COPY, lowerings.identity),
    Mapping("Dropout", (1, 6, 7, 10, 12, 13, 22), "ACTIVATION_IDENTITY", lowerings.dropout,
        attributes=("is_test", "ratio", "seed"), host=(1, 2), refuses=_dropout,
        results=("OutputTensor", None)),
    Mapping("Reshape", (5, *_SHAPED), _COPY, lowerings.reshape, attributes=("allowzero",),
            host=(1,)),
    Mapping("Squeeze", (11, *_SHAPED), _COPY, lowerings.squeeze, attributes=("axes",), host=(1,)),
    Mapping("Unsqueeze", (11, *_SHAPED), _COPY, lowerings.unsqueeze, attributes=("axes",),
            host=(1,)),
    Mapping("Flatten", (9, 11, *_SHAPED), _COPY, lowerings.flatten, attributes=("axis",)),
    Mapping("Transpose", _SHAPED, _COPY, lowerings.transpose, attributes=("perm",)),
    Mapping("Expand", (8, 13), _COPY, lowerings.expand, host=(1,)),
    # Arithmetic
    _elementwise("Add", _ARITHMETIC, "ELEMENT_WISE_ADD"),
    _elementwise("Sub", _ARITHMETIC, "ELEMENT_WISE_SUBTRACT"),
    _elementwise("Mul", _ARITHMETIC, "ELEMENT_WISE_MULTIPLY"),
    _elementwise("Div", _ARITHMETIC, "ELEMENT_WISE_DIVIDE"),
    _elementwise("Pow", (7, 12, 13, 15), "ELEMENT_WISE_POW", refuses=_same_types,
                 fields=("InputTensor", "ExponentTensor")),
    _elementwise("Mod", (10, 13, 28), "ELEMENT_WISE_MODULUS_TRUNCATE", reads=("fmod",),
                 refuses=_attribute("fmod", 1, 0)),
    _elementwise("Mod", (10, 13, 28), "ELEMENT_WISE_MODULUS_FLOOR", reads=("fmod",),
                 refuses=_attribute("fmod", 0, 0)),
    Mapping("Max", _FOLDED, "ELEMENT_WISE_MAX", lowerings.folded("ELEMENT_WISE_MAX"), fields=_TWO),
    Mapping("Min", _FOLDED, "ELEMENT_WISE_MIN", lowerings.folded("ELEMENT_WISE_MIN"), fields=_TWO),
    _elementwise("Mean", _FOLDED, "ELEMENT_WISE_MEAN", refuses=_two_inputs),
    Mapping("Sum", _FOLDED, "ELEMENT_WISE_ADD", lowerings.folded("ELEMENT_WISE_ADD"), fields=_TWO),
    # One input
    _elementwise("Abs", _UNARY, "ELEMENT_WISE_ABS"),
    _elementwise("Neg", _UNARY, "ELEMENT_WISE_NEGATE"),
    _elementwise("Ceil", _UNARY, "ELEMENT_WISE_CEIL"),
    _elementwise("Floor", _UNARY, "ELEMENT_WISE_FLOOR"),
    # DML_ROUNDING_MODE_HALVES_TO_NEAREST_EVEN
    _elementwise("Round", (11, 22), "ELEMENT_WISE_ROUND", lowerings.constants(rounding_mode=0)),
    _elementwise("Sign", (9, 13), "ELEMENT_WISE_SIGN"),
    _elementwise("Sqrt", _UNARY, "ELEMENT_WISE_SQRT"),
    _elementwise("Reciprocal", _UNARY, "ELEMENT_WISE_RECIP"),
    _elementwise("Exp", _UNARY, "ELEMENT_WISE_EXP"),
    _elementwise("Log", _UNARY, "ELEMENT_WISE_LOG"),
    _elementwise("Erf", (9, 13), "ELEMENT_WISE_ERF"),
    _elementwise("Sin", _TRIGONOMETRIC, "ELEMENT_WISE_SIN"),
    _elementwise("Cos", _TRIGONOMETRIC, "ELEMENT_WISE_COS"),
    _elementwise("Tan", _TRIGONOMETRIC, "ELEMENT_WISE_TAN"),
    _elementwise("Asin", _TRIGONOMETRIC, "ELEMENT_WISE_ASIN"),
    _elementwise("Acos", _TRIGONOMETRIC, "ELEMENT_WISE_ACOS"),
    _elementwise("Atan", _TRIGONOMETRIC, "ELEMENT_WISE_ATAN"),
    _elementwise("Sinh", _HYPERBOLIC, "ELEMENT_WISE_SINH"),
    _elementwise("Cosh", _HYPERBOLIC, "ELEMENT_WISE_COSH"),
    _elementwise("Asinh", _HYPERBOLIC, "ELEMENT_WISE_ASINH"),
    _elementwise("Acosh", _HYPERBOLIC, "ELEMENT_WISE_ACOSH"),
    _elementwise("Atanh", _HYPERBOLIC, "ELEMENT_WISE_ATANH"),
    _elementwise("IsNaN", (9, 13, 20), "ELEMENT_WISE_IS_NAN"),
    _elementwise("IsInf", (10, 20), "ELEMENT_WISE_IS_INFINITY", lowerings.infinity_mode,
                 reads=("detect_negative", "detect_positive"), refuses=_either_infinity),
    Mapping("Cast", (6, 9, 13, 19, 21, 23, 24, 25, 28), "ELEMENT_WISE_LOGICAL_EQUALS",
        composed.truth, attributes=("to", "saturate", "round_mode"), refuses=_cast_to_bool),
    _elementwise("Cast", (6, 9, 13, 19, 21, 23, 24, 25, 28), "CAST",
                 reads=("to", "saturate", "round_mode"), refuses=_cast),
    Mapping("Clip", (1, 6, 11, 12, 13), "ELEMENT_WISE_CLIP1",
        lowerings.elementwise("ELEMENT_WISE_CLIP1", lowerings.clip_bounds, tensors=1),
        attributes=("min", "max"), host=(1, 2)),
    # Logic
    _elementwise("Not", (1,), "ELEMENT_WISE_LOGICAL_NOT"),
    _elementwise("And", (7,), "ELEMENT_WISE_LOGICAL_AND"),
    _elementwise("Or", (7,), "ELEMENT_WISE_LOGICAL_OR"),
    _elementwise("Xor", (7,), "ELEMENT_WISE_LOGICAL_XOR"),
    _elementwise("Equal", _COMPARISON, "ELEMENT_WISE_LOGICAL_EQUALS"),
    _elementwise("Greater", _COMPARISON, "ELEMENT_WISE_LOGICAL_GREATER_THAN"),
    _elementwise("Less", _COMPARISON, "ELEMENT_WISE_LOGICAL_LESS_THAN"),
    _elementwise("GreaterOrEqual", (12, 16), "ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL"),
    _elementwise("LessOrEqual", (12, 16), "ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL"),
    _elementwise("Where", (9, 16), "ELEMENT_WISE_IF"),
    _elementwise("BitwiseAnd", (18,), "ELEMENT_WISE_BIT_AND"),
    _elementwise("BitwiseOr", (18,), "ELEMENT_WISE_BIT_OR"),
    _elementwise("BitwiseXor", (18,), "ELEMENT_WISE_BIT_XOR"),
    _elementwise("BitwiseNot", (18,), "ELEMENT_WISE_BIT_NOT"),
    _elementwise("BitShift", (11, 28), "ELEMENT_WISE_BIT_SHIFT_LEFT", reads=("direction",),
                 refuses=_attribute("direction", "LEFT", None)),
    _elementwise("BitShift", (11, 28), "ELEMENT_WISE_BIT_SHIFT_RIGHT", reads=("direction",),
                 refuses=_attribute("direction", "RIGHT", None)),
    # Activations
    _elementwise("Relu", _ACTIVATION, "ACTIVATION_RELU"),
    _elementwise("Sigmoid", _ACTIVATION, "ACTIVATION_SIGMOID"),
    _elementwise("Tanh", _ACTIVATION, "ACTIVATION_TANH"),
    _elementwise("Softsign", _ACTIVATION, "ACTIVATION_SOFTSIGN"),
    _elementwise("Softplus", _ACTIVATION, "ACTIVATION_SOFTPLUS", lowerings.floats(steepness=1.0)),
    _elementwise("LeakyRelu", _ACTIVATION, "ACTIVATION_LEAKY_RELU", lowerings.floats(alpha=0.01),
                 reads=("alpha",)),
    _elementwise("Elu", _ACTIVATION, "ACTIVATION_ELU", lowerings.floats(alpha=1.0),
                 reads=("alpha",)),
    _elementwise("Celu", (12, 28), "ACTIVATION_CELU", lowerings.floats(alpha=1.0),
                 reads=("alpha",)),
    _elementwise("Selu", _ACTIVATION, "ACTIVATION_SCALED_ELU",
                 lowerings.floats(alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
                 reads=("alpha", "gamma")),
    _elementwise("ThresholdedRelu", (1, 10, 22), "ACTIVATION_THRESHOLDED_RELU",
                 lowerings.floats(alpha=1.0), reads=("alpha",)),
    _elementwise("HardSigmoid", _ACTIVATION, "ACTIVATION_HARD_SIGMOID",
                 lowerings.floats(alpha=0.2, beta=0.5), reads=("alpha", "beta")),
    _elementwise("HardSwish", (14, 22), "ACTIVATION_HARD_SWISH",
                 lowerings.floats(alpha=1 / 6, beta=0.5)),
    _elementwise("Shrink", (9,), "ACTIVATION_SHRINK",
                 lowerings.floats(bias=0.0, threshold__lambd=0.5), reads=("bias", "lambd")),
    _elementwise("PRelu", (7, 9, 16), "ACTIVATION_PARAMETERIZED_RELU"),
    Mapping("Gelu", (20,), "ACTIVATION_SIGMOID", composed.fast_gelu, attributes=("approximate",),
        refuses=_attribute("approximate", "tanh", "none")),
    _elementwise("Gelu", (20,), "ACTIVATION_GELU", reads=("approximate",),
                 refuses=_attribute("approximate", "none", "none")),
    _elementwise("Gelu", (1,), "ACTIVATION_GELU", domain=MICROSOFT),
    _elementwise("Swish", (24,), "ACTIVATION_SWISH",
                 lowerings.floats(sigmoid_input_scale__alpha=1.0), reads=("alpha",)),
    _elementwise("QuickGelu", (1,), "ACTIVATION_SWISH",
                 lowerings.floats(sigmoid_input_scale__alpha=1.702), reads=("alpha",),
                 domain=MICROSOFT),
    Mapping("Softmax", (13,), "ACTIVATION_SOFTMAX1", lowerings.along_axis("ACTIVATION_SOFTMAX1"),
        attributes=("axis",)),
    Mapping("LogSoftmax", (13,), "ACTIVATION_LOG_SOFTMAX1",
        lowerings.along_axis("ACTIVATION_LOG_SOFTMAX1"), attributes=("axis",)),
    Mapping("Hardmax", (13,), "ACTIVATION_HARDMAX1", lowerings.along_axis("ACTIVATION_HARDMAX1"),
        attributes=("axis",)),
    # Indices
    Mapping("Gather", (1, 11, 13), "GATHER", gather.gather, attributes=("axis",)),
    Mapping("GatherElements", (11, 13), "GATHER_ELEMENTS", gather.gather_elements,
        attributes=("axis",)),
    Mapping("GatherND", (11, 12, 13), "GATHER_ND1", gather.gather_nd, attributes=("batch_dims",)),
    *(Mapping(op, since, "SCATTER", gather.scatter("SCATTER"), attributes=("axis", "reduction"),
          refuses=_attribute("reduction", "none", "none"))
      for op, since in (("Scatter", (9, 11)), ("ScatterElements", (11, 13, 16, 18)))),
    Mapping("ScatterND", (11, 13, 16, 18), "SCATTER_ND", gather.scatter("SCATTER_ND"),
        attributes=("reduction",), refuses=_attribute("reduction", "none", "none")),
    Mapping("OneHot", (9, 11, 28), "ONE_HOT", gather.one_hot, attributes=("axis",), host=(1,),
        fields=(None, None, "ValuesTensor")),
    # Filled with 0 first, then the low words are written.
    Mapping("NonZero", (9, 13), "FILL_VALUE_CONSTANT", gather.nonzero, refuses=_counted,
        fields=(None,)),
    Mapping("Compress", (9, 11, 28), "GATHER", gather.gather, attributes=("axis",),
        refuses=lambda node: "how many elements are kept is known only after a run"),
    # Movement
    Mapping("Slice", (1,), "SLICE1", movement.slice_, attributes=("axes", "ends", "starts")),
    Mapping("Slice", (10, 11, 13), "SLICE1", movement.slice_, host=(1, 2, 3, 4)),
    Mapping("Split", (1, 2, 11, 13, 18), "SPLIT", movement.split,
        attributes=("axis", "num_outputs", "split"), host=(1,)),
    Mapping("Concat", (1, 4, 11, 13), "JOIN", movement.concat, attributes=("axis",)),
    Mapping("Pad", (1, 2, 11, 13, 18, 19, 21, 23, 24, 25), "PADDING1", movement.pad,
        attributes=("mode", "pads", "paddings", "value"), host=(1, 2, 3)),
    Mapping("Tile", (1, 6, 13), "TILE", movement.tile, host=(1, 2)),
    Mapping("DepthToSpace", (1, 11, 13, 28), "DEPTH_TO_SPACE1",
        movement.blocks("DEPTH_TO_SPACE1"), attributes=("blocksize", "mode")),
    Mapping("SpaceToDepth", (1, 13, 28), "SPACE_TO_DEPTH1",
        movement.blocks("SPACE_TO_DEPTH1"), attributes=("blocksize", "mode")),
    Mapping("ReverseSequence", (10, 28), "REVERSE_SUBSEQUENCES", movement.reverse_sequence,
        attributes=("batch_axis", "time_axis"), fields=("InputTensor", None)),
    # Reductions
    *[Mapping(op, since, "REDUCE", reduction.reduction(function), host=(1,),
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
    # Pooling, regions of interest, resizing
    Mapping("AveragePool", (1, 7, 10, 11, 19, 22), "AVERAGE_POOLING",
        pooling.pooling("AVERAGE_POOLING", "AVERAGE_POOLING1"),
        attributes=(*_WINDOW, "count_include_pad")),
    Mapping("LpPool", (1, 2, 11, 18, 22), "LP_POOLING",
        pooling.pooling("LP_POOLING", "LP_POOLING1"), attributes=(*_WINDOW, "p")),
    Mapping("MaxPool", (1, 8, 10, 11, 12, 22), "MAX_POOLING",
        pooling.pooling("MAX_POOLING", "MAX_POOLING2"),
        attributes=(*_WINDOW, "storage_order"), refuses=_attribute("storage_order", 0, 0)),
    *(Mapping(f"Global{op}Pool", since, operator, pooling.global_pooling(operator),
          attributes=("p",) if op == "Lp" else ())
      for op, since, operator in (
          ("Average", (1, 22), "AVERAGE_POOLING"), ("Max", (1, 22), "MAX_POOLING"),
          ("Lp", (1, 2, 22), "LP_POOLING"))),
    Mapping("QLinearAveragePool", (1,), "QUANTIZED_LINEAR_AVERAGE_POOLING",
        pooling.quantized_average(False), MICROSOFT,
        attributes=(*_WINDOW, "count_include_pad", "channels_last")),
    Mapping("QLinearGlobalAveragePool", (1,), "QUANTIZED_LINEAR_AVERAGE_POOLING",
        pooling.quantized_average(True), MICROSOFT, attributes=("channels_last",)),
    Mapping("MaxUnpool", (9, 11, 22), "MAX_UNPOOLING", pooling.max_unpooling,
        fields=("InputTensor", None), attributes=("kernel_shape", "pads", "strides"),
        refuses=lambda node: "output_shape" if node.input(2) else None),
    Mapping("MaxRoiPool", (1, 22), "ROI_POOLING", pooling.roi_pooling,
        attributes=("pooled_shape", "spatial_scale")),
    Mapping("RoiAlign", (10, 16, 22), "ROI_ALIGN1", pooling.roi_align,
        fields=("InputTensor", "ROITensor", None),
        attributes=("coordinate_transformation_mode", "mode", "output_height", "output_width",
                    "sampling_ratio", "spatial_scale"), refuses=pooling.roi_align_refused),
    Mapping("Upsample", (1, 7, 9, 10), "RESAMPLE2", pooling.resize,
        fields=("InputTensor", None),
        attributes=("height_scale", "mode", "scales", "width_scale"), host=(1,),
        refuses=pooling.resize_refused),
    Mapping("Resize", (10,), "RESAMPLE2", pooling.resize, fields=("InputTensor", None),
        attributes=("mode",), host=(1,), refuses=pooling.resize_refused),
    Mapping("Resize", (11, 13, 18, 19), "RESAMPLE2", pooling.resize,
        fields=("InputTensor", None),
        attributes=("antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a",
                    "exclude_outside", "extrapolation_value", "keep_aspect_ratio_policy", "mode",
                    "nearest_mode"),
        host=(1, 2, 3), refuses=pooling.resize_refused),
    *[Mapping("GridSample", since, "GATHER_ELEMENTS", sampling.grid_sample, domain,
          fields=("InputTensor", None),
          attributes=("align_corners", "mode", "padding_mode"), refuses=sampling.refusal)
      for since, domain in (((16, 20, 22), ""), ((1,), MICROSOFT))],
    # Fourier transforms
    Mapping("DFT", (17, 20), "GEMM", fourier.dft, fields=("ATensor", None, None), host=(1, 2),
        attributes=("axis", "inverse", "onesided"), multiplies=True),
    Mapping("STFT", (17,), "GEMM", fourier.stft, fields=("ATensor", None, "ATensor", None),
        attributes=("onesided",), host=(1, 3), multiplies=True),
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
    # Convolutions
    Mapping("Conv", _CONVOLUTION, "CONVOLUTION", convolution.convolution,
        attributes=_CONVOLVED, multiplies=True),
    Mapping("FusedConv", (1,), "CONVOLUTION", convolution.convolution, MICROSOFT,
        attributes=(*_CONVOLVED, "activation", "activation_params"),
        refuses=convolution.refuses_activation, multiplies=True),
    Mapping("NhwcConv", (1,), "CONVOLUTION", convolution.channels_last, MICROSOFT,
        attributes=_CONVOLVED, multiplies=True),
    *[Mapping("CausalConvWithState", since, "CONVOLUTION", convolution.causal, domain,
          fields=("InputTensor", "FilterTensor", "BiasTensor", "InputTensor"),
          results=("OutputTensor",) * 2, attributes=("activation", *attributes),
          refuses=convolution.causal_refusal, multiplies=True)
      for since, domain, attributes in (
          ((27,), "", ()), ((1,), MICROSOFT, tuple(convolution.CAUSAL_USUAL)))],
    Mapping("ConvTransposeWithDynamicPads", (1,), "CONVOLUTION",
        convolution.transposed_by_pads, MICROSOFT,
        fields=("InputTensor", "FilterTensor", None, "BiasTensor"), host=(2,),
        attributes=(*(a for a in _CONVOLVED if a != "pads"), "output_padding"), multiplies=True),
    Mapping("ConvTranspose", _CONVOLUTION, "CONVOLUTION", convolution.transposed,
        attributes=(*_CONVOLVED, "output_padding", "output_shape"), multiplies=True),
    Mapping("ConvInteger", (10,), "CONVOLUTION_INTEGER", convolution.integer,
        fields=("InputTensor", "FilterTensor", "InputZeroPointTensor", "FilterZeroPointTensor"),
        attributes=_CONVOLVED, multiplies=True),
    Mapping("QLinearConv", (10,), "QUANTIZED_LINEAR_CONVOLUTION", convolution.quantized,
        fields=convolution.QUANTIZED_FIELDS, attributes=_CONVOLVED, multiplies=True),
    Mapping("Col2Im", (18,), "FOLD", convolution.columns_to_image,
        fields=("InputTensor", None, None), attributes=("dilations", "pads", "strides"),
        host=(1, 2)),
    # Attention and recurrent networks
    Mapping("MultiHeadAttention", (1,), "MULTIHEAD_ATTENTION", attention.multi_head_attention,
        MICROSOFT,
        fields=("QueryTensor", "KeyTensor", "ValueTensor", "BiasTensor", "MaskTensor",
                "RelativePositionBiasTensor", "PastKeyTensor", "PastValueTensor"),
        attributes=("num_heads", "mask_filter_value", "scale", "unidirectional"),
        refuses=attention.attention_refusal, multiplies=True),
    Mapping("Attention", (23, 24, 25), "MULTIHEAD_ATTENTION1", attention.attention,
        fields=("QueryTensor", "KeyTensor", "ValueTensor", None, "PastKeyTensor",
                "PastValueTensor"),
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
        fields=("QueryTensor", "KeyTensor", "ValueTensor", "PastKeyTensor", "PastValueTensor",
                "PastSequenceLengthsTensor", None, "QueryTensor", "QueryTensor", None,
                "RelativePositionBiasTensor", None),
        attributes=("causal", "do_rotary", "k_quant_type", "kv_cache_bit_width", "kv_num_heads",
                    "local_window_size", "num_heads", "qk_output", "rotary_interleaved", "scale",
                    "sliding_window_cache", "smooth_softmax", "softcap", "v_quant_type"),
        host=(6,), refuses=transformer.grouped_refusal, multiplies=True),
    Mapping("RotaryEmbedding", (23,), "ELEMENT_WISE_MULTIPLY", transformer.rotary,
        fields=("ATensor", "ATensor", "ATensor", None),
        attributes=("interleaved", "num_heads", "rotary_embedding_dim"),
        refuses=transformer.rotary_refusal),
    Mapping("RotaryEmbedding", (1,), "ELEMENT_WISE_MULTIPLY", transformer.rotary, MICROSOFT,
        fields=("ATensor", None, "ATensor", "ATensor"),
        attributes=("interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim",
                    "scale"),
        refuses=transformer.rotary_refusal),
    *[Mapping(f"Random{kind}{'Like' * like}", (1, 22), "RANDOM_GENERATOR", random.random(like),
          fields=(None,), results=(None,), refuses=random.refusal,
          attributes=("dtype", "seed", "shape", *parameters))
      for kind, parameters in (("Uniform", ("high", "low")), ("Normal", ("mean", "scale")))
      for like in (False, True)],
    # Composed of several operators
    Mapping("Mean", _FOLDED, "ELEMENT_WISE_ADD", composed.mean, fields=_TWO),
    Mapping("Pow", (12, 13, 15), "ELEMENT_WISE_POW", composed.power,
        fields=("InputTensor", None)),
    Mapping("Mish", (18, 22), "ACTIVATION_SOFTPLUS", composed.mish),
    Mapping("FastGelu", (1,), "ACTIVATION_SIGMOID", composed.fast_gelu, MICROSOFT,
        fields=("InputTensor",)),
    Mapping("BiasGelu", (1,), "ACTIVATION_GELU", composed.bias_gelu, MICROSOFT,
        fields=("InputTensor",)),
    Mapping("Einsum", (12, 28), "GEMM", einsum.einsum, fields=("ATensor",),
        attributes=("equation",), multiplies=True),
    Mapping("SwiGLU", (28,), "ACTIVATION_SWISH", composed.swiglu, fields=("InputTensor",),
        attributes=("alpha",)),
    Mapping("AffineGrid", (20,), "GEMM", composed.affine_grid, fields=("ATensor", None),
        attributes=("align_corners",), host=(1,)),
    Mapping("BitCast", (26,), _COPY, composed.bit_cast, attributes=("to",)),
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
              attributes=("axis", "block_size"), refuses=_quantization)
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
    _elementwise("CastLike", (15, 19, 21, 23, 24, 25, 28), "CAST", reads=("saturate", "round_mode"),
                 fields=("InputTensor", None), refuses=_cast_like, tensors=1),
    # What ONNX has dropped, or ONNX Runtime keeps for old models
    _elementwise("Affine", (1,), "ACTIVATION_LINEAR", lowerings.floats(alpha=1.0, beta=0.0),
                 reads=("alpha", "beta")),
    _elementwise("ParametricSoftplus", (1,), "ACTIVATION_PARAMETRIC_SOFTPLUS",
                 lowerings.floats(alpha=1.0, beta=1.0), reads=("alpha", "beta")),
    _elementwise("ScaledTanh", (1,), "ACTIVATION_SCALED_TANH",
                 lowerings.floats(alpha=1.0, beta=1.0), reads=("alpha", "beta")),
    Mapping("ImageScaler", (1,), "ELEMENT_WISE_ADD", legacy.image_scaler,
        attributes=("bias", "scale")),
    Mapping("Crop", (1,), _COPY, legacy.crop, attributes=("border", "scale")),
    *[replace(row, since=since, build=legacy.broadcast(row.build),
              attributes=("axis", "broadcast"))
      for op, since, operator in (
          *((op, (1, 6), f"ELEMENT_WISE_{name}") for op, name in (
              ("Add", "ADD"), ("Sub", "SUBTRACT"), ("Mul", "MULTIPLY"), ("Div", "DIVIDE"))),
          *((op, (1,), f"ELEMENT_WISE_LOGICAL_{name}") for op, name in (
              ("And", "AND"), ("Or", "OR"), ("Xor", "XOR"), ("Equal", "EQUALS"),
              ("Greater", "GREATER_THAN"), ("Less", "LESS_THAN"))),
          ("Pow", (1,), "ELEMENT_WISE_POW"))
      for row in (_elementwise(op, since, operator),)],
    Mapping("PRelu", (1, 6), "ACTIVATION_PARAMETERIZED_RELU", legacy.slopes(
        lowerings.elementwise("ACTIVATION_PARAMETERIZED_RELU"))),
    Mapping("Cast", (1,), "CAST", legacy.cast(composed.truth, lowerings.elementwise("CAST")),
        attributes=("to",), refuses=legacy.cast_refusal),
    Mapping("Reshape", (1,), _COPY, legacy.reshape_attribute, attributes=("shape",)),
    # Filled tensors: large ones, whose sizes and values the host knows
    Mapping("ConstantOfShape", (9, 20, 21, 23, 24, 25), "FILL_VALUE_CONSTANT",
            movement.constant_of_shape, fields=(None,), attributes=("value",), host=(0,)),
    Mapping("Range", (11, 27), "FILL_VALUE_SEQUENCE", movement.range_, fields=(None,),
            host=(0, 1, 2), attributes=("stash_type",)),
)
