"""Which ONNX operators run on which of DirectML's: one row each.

A row is active where its DirectML operator is implemented, at the device's feature level, for the
data types at hand; so a new operator needs its row and nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
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
    convolution_rows,
    gather_rows,
    movement_rows,
    normalization_rows,
    pooling_rows,
    products,
    reduction_rows,
    rows,
)
from .graph import DTYPES, Node, Value

if TYPE_CHECKING:
    from ..device import Device

MICROSOFT = "com.microsoft"
_FLOAT = 1
"""float32's number among ONNX's data types."""
Refusal = Callable[[Node], "str | None"]


@dataclass(frozen=True)
class Row:
    """One ONNX operator, or one use of it."""

    op: str
    since: tuple[int, ...]
    """Versions of the operator that this row understands."""
    operator: str
    """The DirectML operator, without ``DML_OPERATOR_``; of views the one that copies them."""
    build: rows.Build
    domain: str = ""
    fields: tuple[str | None, ...] = ()
    """The DirectML tensor of each input, where the order is not DirectML's own; the last one goes
    on for any further inputs."""
    attributes: tuple[str, ...] = ()
    """Attributes that are understood; a node with others is not this row's."""
    host: tuple[int, ...] = ()
    """Inputs whose values decide the plan: the host must know them."""
    refuses: Refusal = lambda node: None
    """Why this row does not serve the node, or None."""
    multiplies: bool = False
    """Whether it is a matrix product: work that is worth a transfer."""
    results: tuple[str | None, ...] = ()
    """The DirectML tensor of each output, where its type is not the table's."""

    def refusal(self, node: Node, device: Device) -> str | None:
        """Why this row does not serve ``node`` on ``device``, or None."""
        if node.since not in self.since:
            return f"version {node.since} of the operator is not known, only {self.since}"
        unknown = node.attributes.keys() - set(self.attributes)
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
        for i, value in enumerate(node.inputs):
            if value is not None:
                field = None if i in self.host else self._input_field(i)
                if reason := _refuses_value(value, field, tensors):
                    return f"input {i}: {reason}"
        for i, value in enumerate(node.outputs):
            if value is not None:
                field = self._output_field(i)
                if reason := _refuses_value(value, field, tensors):
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
    value: Value, field: str | None, tensors: dict[str, spec.TensorSupport]
) -> str | None:
    if value.dtype is None:
        return f"{value.name!r} is not a tensor of a type that DirectML has"
    if value.shape is not None and len(value.shape) > MAX_DIMENSIONS:
        return f"{value.name!r} has more than {MAX_DIMENSIONS} dimensions"
    if field in tensors and device_type(value.dtype) not in tensors[field].data_types:
        return f"{field} cannot be {device_type(value.dtype)} at this feature level"
    return None


def match(node: Node, device: Device) -> Row | str:
    """The row that serves ``node`` on ``device``, or why there is none."""
    row = candidate(node, device)
    return row if isinstance(row, str) else _trial(row, node, device) or row


def find(node: Node, device: Device) -> Row:
    """The row of a node that was matched before. Raises UnsupportedError."""
    row = candidate(node, device)
    if isinstance(row, str):
        raise UnsupportedError(f"{node.label} {node.name!r}: {row}")
    return row


def candidate(node: Node, device: Device) -> Row | str:
    """The row that serves ``node``, as far as the tables tell, or why there is none."""
    reason = "no row of the mapping table has this operator"
    for row in _by_operator().get((node.domain, node.op), ()):
        refused = row.refusal(node, device)
        if refused is None:
            return row
        reason = refused
    return reason


def waits_for_device(node: Node, row: Row, made: Collection[Value | None]) -> bool:
    """Whether the host would have to know a value that is ``made`` on the device."""
    return any((value := node.input(i)) is not None and value in made for i in row.host)


def _trial(row: Row, node: Node, device: Device) -> str | None:
    """Why the node does not compile on the device: it may lack a feature that shaders need."""
    builder = Builder(device, trial=True)
    inputs: list[Array | None] = []
    certain = True
    for i, value in enumerate(node.inputs):
        if value is None or value.dtype is None:
            inputs.append(None)
            continue
        if i in row.host and value.constant is None:
            return None  # everything depends on a value that only a run will tell
        shape = value.shape or ()
        certain = certain and value.shape is not None and None not in shape
        array = builder.new([1 if n is None else n for n in shape], value.dtype)
        inputs.append(replace(array, host=value.constant))
    try:
        row.build(builder, node, inputs)
    except UnsupportedError as error:
        return str(error)
    except (DmlError, ValueError, LookupError) as error:
        # Sizes that stand in for unknown ones need not fit together.
        return str(error) if certain else None
    return None


@functools.cache
def _by_operator() -> dict[tuple[str, str], list[Row]]:
    result: dict[tuple[str, str], list[Row]] = {}
    for row in TABLE:
        result.setdefault((row.domain, row.op), []).append(row)
    return result


# Reasons to refuse a node


def _attribute(name: str, value: object, default: object) -> Refusal:
    """Serve nodes with this value of an attribute only."""

    def refuses(node: Node) -> str | None:
        got = node.attributes.get(name, default)
        return None if got == value else f"{name}={got!r}"

    return refuses


def _dropout(node: Node) -> str | None:
    training = node.input(2)
    if training is not None and (training.constant is None or training.constant.any()):
        return "only inference: training_mode must be a constant false"
    return "the mask is not computed" if len(node.outputs) > 1 and node.outputs[1] else None


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


def _either_infinity(node: Node) -> str | None:
    signs = [node.attributes.get(f"detect_{s}", 1) for s in ("positive", "negative")]
    return None if any(signs) else "nothing to detect"


def _quantization(node: Node) -> str | None:
    if node.attributes.get("block_size", 0) or node.attributes.get("output_dtype", 0):
        return "blocks, or an output type of its own"
    if node.attributes.get("precision", 0) not in (0, _FLOAT):
        return "a quotient in another precision than float32"
    scale = node.input(1)
    if scale is None or scale.shape is None or len(scale.shape) > 1:
        return "a scale that may have more than one dimension"
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


def _fused_matrices(node: Node) -> str | None:
    if any(node.attributes.get(f"transBatch{side}", 0) for side in "AB"):
        return "a batch dimension beside the rows"
    return _matrices(node)


def _vectors(*, a: tuple[int, ...], b: tuple[int, ...]) -> Refusal:
    """Scales and zero points, of A's rows and B's columns, that vary over batches are not served.
    """
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
    """Statistics are computed in float32, and are no outputs."""
    if any(value is not None for value in node.outputs[1:3]):
        return "mean and variance as outputs"
    if node.attributes.get("training_mode", 0):
        return "training_mode=1"
    if node.attributes.get("stash_type", _FLOAT) != _FLOAT:
        return "statistics in another precision than float32"
    return _same_types(node)


# The table

_QUANTIZED = (10, 13, 19, 21, 23, 24, 25, 28)
_SHAPED = (1, 13, 14, 19, 21, 23, 24, 25)


def _elementwise(
    op: str, since: tuple[int, ...], operator: str, attributes: rows.Attributes | None = None,
    *, reads: tuple[str, ...] = (), fields: tuple[str | None, ...] = (),
    refuses: Refusal = lambda node: None, domain: str = "",
) -> Row:
    build = rows.elementwise(operator, attributes or rows.constants())
    return Row(op, since, operator, build, domain, fields, reads, refuses=refuses)


_ARITHMETIC = (7, 13, 14)
_UNARY = (6, 13)
_TRIGONOMETRIC = (7, 22)
_HYPERBOLIC = (9, 22)
_FOLDED = (6, 8, 12, 13)
_COMPARISON = (7, 9, 11, 13, 19)
_ACTIVATION = (1, 6, 13, 14, 16, 22)
_TWO = ("ATensor", "BTensor")
_COPY = "ELEMENT_WISE_IDENTITY"
_WINDOW = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
_SOFTMAX = tuple((op, f"ACTIVATION_{name}1") for op, name in (
    ("Softmax", "SOFTMAX"), ("LogSoftmax", "LOG_SOFTMAX"), ("Hardmax", "HARDMAX")))
_CONVOLUTION = (1, 11, 22)
_WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

TABLE: tuple[Row, ...] = (
    # Quantized products
    Row("MatMulIntegerToFloat", (1,), "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
        products.matmul_integer_to_float, MICROSOFT,
        fields=("ATensor", "BTensor", "AScaleTensor", "BScaleTensor", "AZeroPointTensor",
                "BZeroPointTensor", "BiasTensor"),
        refuses=_vectors(a=(2, 4), b=(3, 5)), multiplies=True),
    Row("MatMulInteger", (10,), "MATRIX_MULTIPLY_INTEGER", products.matmul_integer,
        fields=("ATensor", "BTensor", "AZeroPointTensor", "BZeroPointTensor"),
        refuses=_vectors(a=(2,), b=(3,)), multiplies=True),
    Row("DynamicQuantizeMatMul", (1,), "MATRIX_MULTIPLY_INTEGER_TO_FLOAT",
        products.dynamic_quantize_matmul, MICROSOFT,
        # A is of the output's type until it is quantized.
        fields=("OutputTensor", "BTensor", "BScaleTensor", "BZeroPointTensor", "BiasTensor"),
        refuses=_vectors(a=(), b=(2, 3)), multiplies=True),
    # Products
    Row("QLinearMatMul", (10, 21), "QUANTIZED_LINEAR_MATRIX_MULTIPLY", products.qlinear_matmul,
        refuses=_qlinear_matrices, multiplies=True),
    Row("MatMul", (1, 9, 13), "GEMM", products.matmul, refuses=_matrices, multiplies=True),
    Row("FusedMatMul", (1,), "GEMM", products.matmul, MICROSOFT,
        attributes=("alpha", "transA", "transB", "transBatchA", "transBatchB"),
        refuses=_fused_matrices, multiplies=True),
    Row("Gemm", (7, 9, 11, 13), "GEMM", products.gemm,
        attributes=("alpha", "beta", "transA", "transB"), refuses=_matrices, multiplies=True),
    # Quantization
    Row("DynamicQuantizeLinear", (11,), "DYNAMIC_QUANTIZE_LINEAR", rows.dynamic_quantize),
    Row("QuantizeLinear", _QUANTIZED, "ELEMENT_WISE_QUANTIZE_LINEAR",
        rows.quantization("ELEMENT_WISE_QUANTIZE_LINEAR"),
        attributes=("axis", "block_size", "output_dtype", "precision", "saturate"),
        refuses=_quantization),
    Row("DequantizeLinear", _QUANTIZED, "ELEMENT_WISE_DEQUANTIZE_LINEAR",
        rows.quantization("ELEMENT_WISE_DEQUANTIZE_LINEAR"),
        attributes=("axis", "block_size", "output_dtype"), refuses=_quantization),
    Row("QLinearAdd", (1,), "ELEMENT_WISE_QUANTIZED_LINEAR_ADD", rows.quantized_sum, MICROSOFT),
    # Diagonals
    Row("EyeLike", (9, 22), "DIAGONAL_MATRIX", rows.eye_like, fields=(None,),
        attributes=("dtype", "k")),
    Row("Trilu", (14,), "DIAGONAL_MATRIX1", rows.trilu, attributes=("upper",), host=(1,)),
    # Views: nothing is computed, but a region's outputs are copied
    Row("Identity", (*_SHAPED, 16), _COPY, rows.identity),
    Row("Dropout", (7, 10, 12, 13, 22), "ACTIVATION_IDENTITY", rows.identity,
        attributes=("ratio", "seed"), host=(1, 2), refuses=_dropout),
    Row("Reshape", (5, *_SHAPED), _COPY, rows.reshape, attributes=("allowzero",), host=(1,)),
    Row("Squeeze", (11, *_SHAPED), _COPY, rows.squeeze, attributes=("axes",), host=(1,)),
    Row("Unsqueeze", (11, *_SHAPED), _COPY, rows.unsqueeze, attributes=("axes",), host=(1,)),
    Row("Flatten", (9, 11, *_SHAPED), _COPY, rows.flatten, attributes=("axis",)),
    Row("Transpose", _SHAPED, _COPY, rows.transpose, attributes=("perm",)),
    Row("Expand", (8, 13), _COPY, rows.expand, host=(1,)),
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
    Row("Max", _FOLDED, "ELEMENT_WISE_MAX", rows.folded("ELEMENT_WISE_MAX"), fields=_TWO),
    Row("Min", _FOLDED, "ELEMENT_WISE_MIN", rows.folded("ELEMENT_WISE_MIN"), fields=_TWO),
    _elementwise("Mean", _FOLDED, "ELEMENT_WISE_MEAN", refuses=_two_inputs),
    Row("Sum", _FOLDED, "ELEMENT_WISE_ADD", rows.folded("ELEMENT_WISE_ADD"), fields=_TWO),
    # One input
    _elementwise("Abs", _UNARY, "ELEMENT_WISE_ABS"),
    _elementwise("Neg", _UNARY, "ELEMENT_WISE_NEGATE"),
    _elementwise("Ceil", _UNARY, "ELEMENT_WISE_CEIL"),
    _elementwise("Floor", _UNARY, "ELEMENT_WISE_FLOOR"),
    # DML_ROUNDING_MODE_HALVES_TO_NEAREST_EVEN
    _elementwise("Round", (11, 22), "ELEMENT_WISE_ROUND", rows.constants(rounding_mode=0)),
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
    _elementwise("IsInf", (10, 20), "ELEMENT_WISE_IS_INFINITY", rows.infinity_mode,
                 reads=("detect_negative", "detect_positive"), refuses=_either_infinity),
    _elementwise("Cast", (6, 9, 13, 19, 21, 23, 24, 25, 28), "CAST",
                 reads=("to", "saturate", "round_mode"), refuses=_cast),
    Row("Clip", (6, 11, 12, 13), "ELEMENT_WISE_CLIP1",
        rows.elementwise("ELEMENT_WISE_CLIP1", rows.clip_bounds, tensors=1),
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
    _elementwise("Softplus", _ACTIVATION, "ACTIVATION_SOFTPLUS", rows.floats(steepness=1.0)),
    _elementwise("LeakyRelu", _ACTIVATION, "ACTIVATION_LEAKY_RELU", rows.floats(alpha=0.01),
                 reads=("alpha",)),
    _elementwise("Elu", _ACTIVATION, "ACTIVATION_ELU", rows.floats(alpha=1.0), reads=("alpha",)),
    _elementwise("Celu", (12, 28), "ACTIVATION_CELU", rows.floats(alpha=1.0), reads=("alpha",)),
    _elementwise("Selu", _ACTIVATION, "ACTIVATION_SCALED_ELU",
                 rows.floats(alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
                 reads=("alpha", "gamma")),
    _elementwise("ThresholdedRelu", (10, 22), "ACTIVATION_THRESHOLDED_RELU",
                 rows.floats(alpha=1.0), reads=("alpha",)),
    _elementwise("HardSigmoid", _ACTIVATION, "ACTIVATION_HARD_SIGMOID",
                 rows.floats(alpha=0.2, beta=0.5), reads=("alpha", "beta")),
    _elementwise("HardSwish", (14, 22), "ACTIVATION_HARD_SWISH",
                 rows.floats(alpha=1 / 6, beta=0.5)),
    _elementwise("Shrink", (9,), "ACTIVATION_SHRINK",
                 rows.floats(bias=0.0, threshold__lambd=0.5), reads=("bias", "lambd")),
    _elementwise("PRelu", (7, 9, 16), "ACTIVATION_PARAMETERIZED_RELU"),
    _elementwise("Gelu", (20,), "ACTIVATION_GELU", reads=("approximate",),
                 refuses=_attribute("approximate", "none", "none")),
    _elementwise("Gelu", (1,), "ACTIVATION_GELU", domain=MICROSOFT),
    _elementwise("Swish", (24,), "ACTIVATION_SWISH",
                 rows.floats(sigmoid_input_scale__alpha=1.0), reads=("alpha",)),
    _elementwise("QuickGelu", (1,), "ACTIVATION_SWISH",
                 rows.floats(sigmoid_input_scale__alpha=1.702), reads=("alpha",),
                 domain=MICROSOFT),
    Row("Softmax", (13,), "ACTIVATION_SOFTMAX1", rows.along_axis("ACTIVATION_SOFTMAX1"),
        attributes=("axis",)),
    Row("LogSoftmax", (13,), "ACTIVATION_LOG_SOFTMAX1",
        rows.along_axis("ACTIVATION_LOG_SOFTMAX1"), attributes=("axis",)),
    Row("Hardmax", (13,), "ACTIVATION_HARDMAX1", rows.along_axis("ACTIVATION_HARDMAX1"),
        attributes=("axis",)),
    # Indices
    Row("Gather", (1, 11, 13), "GATHER", gather_rows.gather, attributes=("axis",)),
    Row("GatherElements", (11, 13), "GATHER_ELEMENTS", gather_rows.gather_elements,
        attributes=("axis",)),
    Row("GatherND", (11, 12, 13), "GATHER_ND1", gather_rows.gather_nd, attributes=("batch_dims",)),
    *(Row(op, since, "SCATTER", gather_rows.scatter, attributes=("axis", "reduction"),
          refuses=_attribute("reduction", "none", "none"))
      for op, since in (("Scatter", (9, 11)), ("ScatterElements", (11, 13, 16, 18)))),
    Row("ScatterND", (11, 13, 16, 18), "SCATTER_ND", gather_rows.scatter_nd,
        attributes=("reduction",), refuses=_attribute("reduction", "none", "none")),
    Row("OneHot", (9, 11, 28), "ONE_HOT", gather_rows.one_hot, attributes=("axis",), host=(1,),
        fields=(None, None, "ValuesTensor")),
    # Filled with 0 first, whose low halves are then written.
    Row("NonZero", (9, 13), "FILL_VALUE_CONSTANT", gather_rows.nonzero, refuses=_counted,
        fields=(None,)),
    Row("Compress", (9, 11, 28), "GATHER", gather_rows.gather, attributes=("axis",),
        refuses=lambda node: "how many elements are kept is known only after a run"),
    # Movement
    Row("Slice", (1,), "SLICE1", movement_rows.slice_, attributes=("axes", "ends", "starts")),
    Row("Slice", (10, 11, 13), "SLICE1", movement_rows.slice_, host=(1, 2, 3, 4)),
    Row("Split", (1, 2, 11, 13, 18), "SPLIT", movement_rows.split,
        attributes=("axis", "num_outputs", "split"), host=(1,)),
    Row("Concat", (1, 4, 11, 13), "JOIN", movement_rows.concat, attributes=("axis",)),
    Row("Pad", (1, 2, 11, 13, 18, 19, 21, 23, 24, 25), "PADDING1", movement_rows.pad,
        attributes=("mode", "pads", "paddings", "value"), host=(1, 2, 3)),
    Row("Tile", (1, 6, 13), "TILE", movement_rows.tile, host=(1, 2)),
    Row("DepthToSpace", (1, 11, 13, 28), "DEPTH_TO_SPACE1",
        movement_rows.blocks("DEPTH_TO_SPACE1"), attributes=("blocksize", "mode")),
    Row("SpaceToDepth", (1, 13, 28), "SPACE_TO_DEPTH1",
        movement_rows.blocks("SPACE_TO_DEPTH1"), attributes=("blocksize", "mode")),
    Row("ReverseSequence", (10, 28), "REVERSE_SUBSEQUENCES", movement_rows.reverse_sequence,
        attributes=("batch_axis", "time_axis"), fields=("InputTensor", None)),
    # Reductions
    *[Row(op, since, "REDUCE", reduction_rows.reduction(function), host=(1,),
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
    *[Row(op, (1, 11, 12, 13), op.upper(), reduction_rows.argument(op.upper()),
          attributes=("axis", "keepdims", "select_last_index")) for op in ("ArgMax", "ArgMin")],
    Row("TopK", (1, 10, 11, 24), "TOP_K1", reduction_rows.top_k, host=(1,),
        results=("OutputValueTensor", None),
        attributes=("axis", "k", "largest", "sorted")),
    Row("CumSum", (11, 14), "CUMULATIVE_SUMMATION",
        reduction_rows.cumulative("CUMULATIVE_SUMMATION", "has_exclusive_sum"), host=(1,),
        attributes=("exclusive", "reverse")),
    Row("CumProd", (26,), "CUMULATIVE_PRODUCT",
        reduction_rows.cumulative("CUMULATIVE_PRODUCT", "has_exclusive_product"), host=(1,),
        attributes=("exclusive", "reverse")),
    # Pooling, regions of interest, resizing
    Row("AveragePool", (1, 7, 10, 11, 19, 22), "AVERAGE_POOLING",
        pooling_rows.pooling("AVERAGE_POOLING", "AVERAGE_POOLING1"),
        attributes=(*_WINDOW, "count_include_pad")),
    Row("LpPool", (1, 2, 11, 18, 22), "LP_POOLING",
        pooling_rows.pooling("LP_POOLING", "LP_POOLING1"), attributes=(*_WINDOW, "p")),
    Row("MaxPool", (1, 8, 10, 11, 12, 22), "MAX_POOLING",
        pooling_rows.pooling("MAX_POOLING", "MAX_POOLING2"),
        attributes=(*_WINDOW, "storage_order"), refuses=_attribute("storage_order", 0, 0)),
    *(Row(f"Global{op}Pool", since, operator, pooling_rows.global_pooling(operator),
          attributes=("p",) if op == "Lp" else ())
      for op, since, operator in (
          ("Average", (1, 22), "AVERAGE_POOLING"), ("Max", (1, 22), "MAX_POOLING"),
          ("Lp", (1, 2, 22), "LP_POOLING"))),
    Row("QLinearAveragePool", (1,), "QUANTIZED_LINEAR_AVERAGE_POOLING",
        pooling_rows.quantized_average(False), MICROSOFT,
        attributes=(*_WINDOW, "count_include_pad", "channels_last")),
    Row("QLinearGlobalAveragePool", (1,), "QUANTIZED_LINEAR_AVERAGE_POOLING",
        pooling_rows.quantized_average(True), MICROSOFT, attributes=("channels_last",)),
    Row("MaxUnpool", (9, 11, 22), "MAX_UNPOOLING", pooling_rows.max_unpooling,
        fields=("InputTensor", None), attributes=("kernel_shape", "pads", "strides"),
        refuses=lambda node: "output_shape" if node.input(2) else None),
    Row("MaxRoiPool", (1, 22), "ROI_POOLING", pooling_rows.roi_pooling,
        attributes=("pooled_shape", "spatial_scale")),
    Row("RoiAlign", (10, 16, 22), "ROI_ALIGN1", pooling_rows.roi_align,
        fields=("InputTensor", "ROITensor", None),
        attributes=("coordinate_transformation_mode", "mode", "output_height", "output_width",
                    "sampling_ratio", "spatial_scale"), refuses=pooling_rows.roi_align_refused),
    Row("Upsample", (7, 9, 10), "RESAMPLE2", pooling_rows.resize, fields=("InputTensor", None),
        attributes=("mode", "scales"), host=(1,), refuses=pooling_rows.resize_refused),
    Row("Resize", (10,), "RESAMPLE2", pooling_rows.resize, fields=("InputTensor", None),
        attributes=("mode",), host=(1,), refuses=pooling_rows.resize_refused),
    Row("Resize", (11, 13, 18, 19), "RESAMPLE2", pooling_rows.resize,
        fields=("InputTensor", None),
        attributes=("antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a",
                    "exclude_outside", "extrapolation_value", "keep_aspect_ratio_policy", "mode",
                    "nearest_mode"),
        host=(1, 2, 3), refuses=pooling_rows.resize_refused),
    # Softmax and normalizations
    *[Row(op, (13,), operator, rows.along_axis(operator), attributes=("axis",))
      for op, operator in _SOFTMAX],
    *[Row(op, (1, 11), operator, normalization_rows.flattened(operator), attributes=("axis",))
      for op, operator in _SOFTMAX],
    *[Row("LayerNormalization", since, "MEAN_VARIANCE_NORMALIZATION2",
          normalization_rows.layers(True), domain, attributes=("axis", "epsilon", "stash_type"),
          refuses=_normalization) for since, domain in (((1, 17), ""), ((1,), MICROSOFT))],
    *[Row(op, since, "MEAN_VARIANCE_NORMALIZATION2", normalization_rows.layers(False), domain,
          attributes=("axis", "epsilon", "stash_type"), refuses=_normalization)
      for op, since, domain in (("RMSNormalization", (23,), ""),
                                ("SimplifiedLayerNormalization", (1,), ""),
                                ("SimplifiedLayerNormalization", (1,), MICROSOFT))],
    *[Row(op, (1,), "MEAN_VARIANCE_NORMALIZATION2", normalization_rows.skip_layers(use_mean),
          MICROSOFT, fields=("InputTensor",), attributes=("epsilon",), refuses=_normalization)
      for op, use_mean in (("SkipLayerNormalization", True),
                           ("SkipSimplifiedLayerNormalization", False))],
    Row("InstanceNormalization", (1, 6, 22), "MEAN_VARIANCE_NORMALIZATION1",
        normalization_rows.instances, attributes=("epsilon",), refuses=_normalization),
    Row("GroupNormalization", (18, 21), "MEAN_VARIANCE_NORMALIZATION1", normalization_rows.groups,
        attributes=("epsilon", "num_groups", "stash_type"), refuses=_normalization),
    Row("MeanVarianceNormalization", (9, 13), "MEAN_VARIANCE_NORMALIZATION1",
        normalization_rows.mean_variance, attributes=("axes",)),
    Row("BatchNormalization", (7, 9, 14, 15), "BATCH_NORMALIZATION", normalization_rows.batch,
        fields=("InputTensor",), attributes=("epsilon", "momentum", "spatial", "training_mode"),
        refuses=_normalization),
    Row("LRN", (1, 13), "LOCAL_RESPONSE_NORMALIZATION", normalization_rows.neighbours,
        attributes=("alpha", "beta", "bias", "size")),
    Row("LpNormalization", (1, 22), "LP_NORMALIZATION", normalization_rows.norms,
        attributes=("axis", "p")),
    # Convolutions
    Row("Conv", _CONVOLUTION, "CONVOLUTION", convolution_rows.convolution,
        attributes=_WINDOW, multiplies=True),
    Row("FusedConv", (1,), "CONVOLUTION", convolution_rows.convolution, MICROSOFT,
        attributes=(*_WINDOW, "activation", "activation_params"),
        refuses=convolution_rows.refuses_activation, multiplies=True),
    Row("ConvTranspose", _CONVOLUTION, "CONVOLUTION", convolution_rows.transposed,
        attributes=(*_WINDOW, "output_padding", "output_shape"), multiplies=True),
    Row("ConvInteger", (10,), "CONVOLUTION_INTEGER", convolution_rows.integer,
        fields=("InputTensor", "FilterTensor", "InputZeroPointTensor", "FilterZeroPointTensor"),
        attributes=_WINDOW, multiplies=True),
    Row("QLinearConv", (10,), "QUANTIZED_LINEAR_CONVOLUTION", convolution_rows.quantized,
        fields=convolution_rows.QUANTIZED_FIELDS, attributes=_WINDOW, multiplies=True),
)
