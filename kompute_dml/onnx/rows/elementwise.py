"""Rows of elementwise operators and activations."""

from __future__ import annotations

from ...graph.array import BOOL
from .. import composed, doubles, lowerings
from ..graph import DTYPES, OnnxNode
from ..row import COPY, FOLDED, MICROSOFT, TWO, Mapping, elementwise, only, same_types

_ARITHMETIC = (7, 13, 14)
_UNARY = (1, 6, 13)
_TRIGONOMETRIC = (7, 22)
_HYPERBOLIC = (9, 22)
_COMPARISON = (7, 9, 11, 13, 19)
_ACTIVATION = (1, 6, 13, 14, 16, 22)


def _two_inputs(node: OnnxNode) -> str | None:
    return None if len(node.inputs) == 2 else "the mean of more or fewer than two"


def _cast(node: OnnxNode) -> str | None:
    dtype = DTYPES.get(node.attributes.get("to", 0))
    if dtype is None or dtype == BOOL:
        return "a cast to this data type"
    return None


def _cast_to_bool(node: OnnxNode) -> str | None:
    return None if DTYPES.get(node.attributes.get("to", 0)) == BOOL else "a cast to this data type"


def _either_infinity(node: OnnxNode) -> str | None:
    signs = [node.attributes.get(f"detect_{s}", 1) for s in ("positive", "negative")]
    return None if any(signs) else "nothing to detect"


def _of_doubles(op: str, since: tuple[int, ...], operator: str, build: lowerings.Build,
                attributes: tuple[str, ...] = ()) -> Mapping:
    """``operator`` is the last that reads bits. A general row for the types that it computes comes
    later."""
    return Mapping(op, since, "ELEMENT_WISE_" + operator, build, fields=(None,),
                   attributes=attributes, results=(None,), refuses=doubles.of_doubles)


def _infinity_of_doubles(node: OnnxNode) -> str | None:
    return doubles.of_doubles(node) or _either_infinity(node)


_COMPARISONS = (
    ("Equal", _COMPARISON, "EQUALS"), ("Greater", _COMPARISON, "GREATER_THAN"),
    ("Less", _COMPARISON, "LESS_THAN"),
    ("GreaterOrEqual", (12, 16), "GREATER_THAN_OR_EQUAL"),
    ("LessOrEqual", (12, 16), "LESS_THAN_OR_EQUAL"))
_DOUBLES = (
    _of_doubles("Abs", _UNARY, "BIT_AND", doubles.magnitude),
    _of_doubles("Neg", _UNARY, "BIT_XOR", doubles.negate),
    _of_doubles("IsNaN", (9, 13, 20), "LOGICAL_GREATER_THAN", doubles.is_nan),
    Mapping("IsInf", (10, 20), "ELEMENT_WISE_LOGICAL_EQUALS", doubles.is_infinity, fields=(None,),
        attributes=("detect_negative", "detect_positive"), results=(None,),
        refuses=_infinity_of_doubles),
    _of_doubles("Max", FOLDED, "IF", doubles.extreme("LOGICAL_GREATER_THAN_OR_EQUAL")),
    _of_doubles("Min", FOLDED, "IF", doubles.extreme("LOGICAL_LESS_THAN_OR_EQUAL")),
    *(_of_doubles(op, since, f"LOGICAL_{name}", doubles.compared(f"LOGICAL_{name}"))
      for op, since, name in _COMPARISONS))

ROWS: tuple[Mapping, ...] = (
    *_DOUBLES,
    # Arithmetic
    elementwise("Add", _ARITHMETIC, "ELEMENT_WISE_ADD"),
    elementwise("Sub", _ARITHMETIC, "ELEMENT_WISE_SUBTRACT"),
    elementwise("Mul", _ARITHMETIC, "ELEMENT_WISE_MULTIPLY"),
    elementwise("Div", _ARITHMETIC, "ELEMENT_WISE_DIVIDE"),
    elementwise("Pow", (7, 12, 13, 15), "ELEMENT_WISE_POW", refuses=same_types,
                 fields=("InputTensor", "ExponentTensor")),
    elementwise("Mod", (10, 13, 28), "ELEMENT_WISE_MODULUS_TRUNCATE", reads=("fmod",),
                 refuses=only("fmod", 1, 0)),
    elementwise("Mod", (10, 13, 28), "ELEMENT_WISE_MODULUS_FLOOR", reads=("fmod",),
                 refuses=only("fmod", 0, 0)),
    Mapping("Max", FOLDED, "ELEMENT_WISE_MAX", lowerings.folded("ELEMENT_WISE_MAX"), fields=TWO),
    Mapping("Min", FOLDED, "ELEMENT_WISE_MIN", lowerings.folded("ELEMENT_WISE_MIN"), fields=TWO),
    elementwise("Mean", FOLDED, "ELEMENT_WISE_MEAN", refuses=_two_inputs),
    Mapping("Sum", FOLDED, "ELEMENT_WISE_ADD", lowerings.folded("ELEMENT_WISE_ADD"), fields=TWO),
    # One input
    Mapping("Abs", _UNARY, COPY, lowerings.identity, refuses=composed.of_unsigned),
    elementwise("Abs", _UNARY, "ELEMENT_WISE_ABS"),
    elementwise("Neg", _UNARY, "ELEMENT_WISE_NEGATE"),
    elementwise("Ceil", _UNARY, "ELEMENT_WISE_CEIL"),
    elementwise("Floor", _UNARY, "ELEMENT_WISE_FLOOR"),
    # DML_ROUNDING_MODE_HALVES_TO_NEAREST_EVEN
    elementwise("Round", (11, 22), "ELEMENT_WISE_ROUND", lowerings.constants(rounding_mode=0)),
    elementwise("Sign", (9, 13), "ELEMENT_WISE_SIGN"),
    elementwise("Sqrt", _UNARY, "ELEMENT_WISE_SQRT"),
    elementwise("Reciprocal", _UNARY, "ELEMENT_WISE_RECIP"),
    elementwise("Exp", _UNARY, "ELEMENT_WISE_EXP"),
    elementwise("Log", _UNARY, "ELEMENT_WISE_LOG"),
    elementwise("Erf", (9, 13), "ELEMENT_WISE_ERF"),
    elementwise("Sin", _TRIGONOMETRIC, "ELEMENT_WISE_SIN"),
    elementwise("Cos", _TRIGONOMETRIC, "ELEMENT_WISE_COS"),
    elementwise("Tan", _TRIGONOMETRIC, "ELEMENT_WISE_TAN"),
    elementwise("Asin", _TRIGONOMETRIC, "ELEMENT_WISE_ASIN"),
    elementwise("Acos", _TRIGONOMETRIC, "ELEMENT_WISE_ACOS"),
    elementwise("Atan", _TRIGONOMETRIC, "ELEMENT_WISE_ATAN"),
    elementwise("Sinh", _HYPERBOLIC, "ELEMENT_WISE_SINH"),
    elementwise("Cosh", _HYPERBOLIC, "ELEMENT_WISE_COSH"),
    elementwise("Asinh", _HYPERBOLIC, "ELEMENT_WISE_ASINH"),
    elementwise("Acosh", _HYPERBOLIC, "ELEMENT_WISE_ACOSH"),
    elementwise("Atanh", _HYPERBOLIC, "ELEMENT_WISE_ATANH"),
    elementwise("IsNaN", (9, 13, 20), "ELEMENT_WISE_IS_NAN"),
    elementwise("IsInf", (10, 20), "ELEMENT_WISE_IS_INFINITY", lowerings.infinity_mode,
                 reads=("detect_negative", "detect_positive"), refuses=_either_infinity),
    Mapping("Cast", (6, 9, 13, 19, 21, 23, 24, 25, 28), "ELEMENT_WISE_LOGICAL_EQUALS",
        composed.truth, attributes=("to", "saturate", "round_mode"), refuses=_cast_to_bool),
    Mapping("Cast", (6, 9, 13, 19, 21, 23, 24, 25, 28), "CAST", doubles.cast,
        attributes=("to", "saturate", "round_mode"), refuses=_cast, any_size=True),
    Mapping("Clip", (1, 6, 11, 12, 13), "ELEMENT_WISE_CLIP1",
        lowerings.elementwise("ELEMENT_WISE_CLIP1", lowerings.clip_bounds, tensors=1),
        attributes=("min", "max"), host=(1, 2), refuses=composed.clip_refusal),
    Mapping("Clip", (11, 12, 13), "ELEMENT_WISE_MAX", composed.clip, fields=TWO),
    # Logic
    elementwise("Not", (1,), "ELEMENT_WISE_LOGICAL_NOT"),
    elementwise("And", (7,), "ELEMENT_WISE_LOGICAL_AND"),
    elementwise("Or", (7,), "ELEMENT_WISE_LOGICAL_OR"),
    elementwise("Xor", (7,), "ELEMENT_WISE_LOGICAL_XOR"),
    *(elementwise(op, since, f"ELEMENT_WISE_LOGICAL_{name}") for op, since, name in _COMPARISONS),
    elementwise("Where", (9, 16), "ELEMENT_WISE_IF"),
    elementwise("BitwiseAnd", (18,), "ELEMENT_WISE_BIT_AND"),
    elementwise("BitwiseOr", (18,), "ELEMENT_WISE_BIT_OR"),
    elementwise("BitwiseXor", (18,), "ELEMENT_WISE_BIT_XOR"),
    elementwise("BitwiseNot", (18,), "ELEMENT_WISE_BIT_NOT"),
    elementwise("BitShift", (11, 28), "ELEMENT_WISE_BIT_SHIFT_LEFT", reads=("direction",),
                 refuses=only("direction", "LEFT", None)),
    elementwise("BitShift", (11, 28), "ELEMENT_WISE_BIT_SHIFT_RIGHT", reads=("direction",),
                 refuses=only("direction", "RIGHT", None)),
    # Activations
    Mapping("Relu", _ACTIVATION, "ELEMENT_WISE_MAX", composed.integer_relu, fields=("ATensor",),
        refuses=composed.of_integers),
    elementwise("Relu", _ACTIVATION, "ACTIVATION_RELU"),
    elementwise("Sigmoid", _ACTIVATION, "ACTIVATION_SIGMOID"),
    elementwise("Tanh", _ACTIVATION, "ACTIVATION_TANH"),
    elementwise("Softsign", _ACTIVATION, "ACTIVATION_SOFTSIGN"),
    elementwise("Softplus", _ACTIVATION, "ACTIVATION_SOFTPLUS", lowerings.floats(steepness=1.0)),
    elementwise("LeakyRelu", _ACTIVATION, "ACTIVATION_LEAKY_RELU", lowerings.floats(alpha=0.01),
                 reads=("alpha",)),
    elementwise("Elu", _ACTIVATION, "ACTIVATION_ELU", lowerings.floats(alpha=1.0),
                 reads=("alpha",)),
    elementwise("Celu", (12, 28), "ACTIVATION_CELU", lowerings.floats(alpha=1.0),
                 reads=("alpha",)),
    elementwise("Selu", _ACTIVATION, "ACTIVATION_SCALED_ELU",
                 lowerings.floats(alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
                 reads=("alpha", "gamma")),
    elementwise("ThresholdedRelu", (1, 10, 22), "ACTIVATION_THRESHOLDED_RELU",
                 lowerings.floats(alpha=1.0), reads=("alpha",)),
    elementwise("HardSigmoid", _ACTIVATION, "ACTIVATION_HARD_SIGMOID",
                 lowerings.floats(alpha=0.2, beta=0.5), reads=("alpha", "beta")),
    elementwise("HardSwish", (14, 22), "ACTIVATION_HARD_SWISH",
                 lowerings.floats(alpha=1 / 6, beta=0.5)),
    elementwise("Shrink", (9,), "ACTIVATION_SHRINK",
                 lowerings.floats(bias=0.0, threshold__lambd=0.5), reads=("bias", "lambd")),
    elementwise("PRelu", (7, 9, 16), "ACTIVATION_PARAMETERIZED_RELU"),
    Mapping("Gelu", (20,), "ACTIVATION_SIGMOID", composed.fast_gelu, attributes=("approximate",),
        refuses=only("approximate", "tanh", "none")),
    elementwise("Gelu", (20,), "ACTIVATION_GELU", reads=("approximate",),
                 refuses=only("approximate", "none", "none")),
    elementwise("Gelu", (1,), "ACTIVATION_GELU", domain=MICROSOFT),
    elementwise("Swish", (24,), "ACTIVATION_SWISH",
                 lowerings.floats(sigmoid_input_scale__alpha=1.0), reads=("alpha",)),
    elementwise("QuickGelu", (1,), "ACTIVATION_SWISH",
                 lowerings.floats(sigmoid_input_scale__alpha=1.702), reads=("alpha",),
                 domain=MICROSOFT),
    Mapping("Softmax", (13,), "ACTIVATION_SOFTMAX1", lowerings.along_axis("ACTIVATION_SOFTMAX1"),
        attributes=("axis",)),
    Mapping("LogSoftmax", (13,), "ACTIVATION_LOG_SOFTMAX1",
        lowerings.along_axis("ACTIVATION_LOG_SOFTMAX1"), attributes=("axis",)),
    Mapping("Hardmax", (13,), "ACTIVATION_HARDMAX1", lowerings.along_axis("ACTIVATION_HARDMAX1"),
        attributes=("axis",)),
)
