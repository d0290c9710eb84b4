"""What NumPy, PyTorch and ONNX call the functions here. Suggestions and benchmarks take theirs from
this record."""

from __future__ import annotations

from typing import NamedTuple


class Names(NamedTuple):
    """Names of a function elsewhere, with spaces between several."""

    numpy: str = ""
    torch: str = ""
    """In ``torch``. The first one is the function that benchmarks compare with."""
    onnx: str = ""
    """ONNX's operator, where its inputs and attributes are those here."""


NAMES: dict[str, Names] = {
    "abs": Names("absolute fabs", "", "Abs"),
    "acos": Names("arccos", "", "Acos"),
    "acosh": Names("arccosh", "", "Acosh"),
    "activation_celu": Names("", "celu", "Celu"),
    "activation_elu": Names("", "nn.functional.elu", "Elu"),
    "activation_gelu": Names("", "nn.functional.gelu", ""),
    "activation_hard_sigmoid": Names("", "", "HardSigmoid"),
    "activation_hard_swish": Names("", "nn.functional.hardswish", "HardSwish"),
    "activation_leaky_relu": Names("", "nn.functional.leaky_relu", "LeakyRelu"),
    "activation_parameterized_relu": Names("", "prelu", ""),
    "activation_relu": Names("", "relu", "Relu"),
    "activation_scaled_elu": Names("", "selu", "Selu"),
    "activation_sigmoid": Names("", "sigmoid", "Sigmoid"),
    "activation_softplus": Names("", "nn.functional.softplus", "Softplus"),
    "activation_softsign": Names("", "nn.functional.softsign", "Softsign"),
    "activation_swish": Names("", "nn.functional.silu", ""),
    "activation_tanh": Names("", "tanh", "Tanh"),
    "activation_thresholded_relu": Names("", "", "ThresholdedRelu"),
    "add": Names("add", "", "Add"),
    "add1": Names("", "add", "Add"),
    "asin": Names("arcsin", "", "Asin"),
    "asinh": Names("arcsinh", "", "Asinh"),
    "atan": Names("arctan", "", "Atan"),
    "atan_yx": Names("arctan2", "atan2", ""),
    "atanh": Names("arctanh", "", "Atanh"),
    "average_pooling": Names("", "avg_pool2d", ""),
    "batch_normalization": Names("", "batch_norm", ""),
    "bit_and": Names("bitwise_and", "bitwise_and", ""),
    "bit_count": Names("bitwise_count", "", ""),
    "bit_not": Names("invert", "bitwise_not", ""),
    "bit_or": Names("bitwise_or", "bitwise_or", ""),
    "bit_shift_left": Names("left_shift", "", ""),
    "bit_shift_right": Names("right_shift", "", ""),
    "bit_xor": Names("bitwise_xor", "bitwise_xor", ""),
    "bool_": Names("", "bool", ""),
    "ceil": Names("ceil", "", "Ceil"),
    "clip": Names("", "clamp", ""),
    "convolution": Names("", "conv1d conv2d conv3d", ""),
    "cos": Names("cos", "", "Cos"),
    "cosh": Names("cosh", "", "Cosh"),
    "divide": Names("divide true_divide", "div", "Div"),
    "erf": Names("", "", "Erf"),
    "exp": Names("exp", "", "Exp"),
    "float16": Names("", "half", ""),
    "floor": Names("floor", "", "Floor"),
    "identity": Names("", "clone", "Identity"),
    "if_": Names("", "where", ""),
    "int64": Names("", "long", ""),
    "is_infinity": Names("isinf", "isinf", "IsInf"),
    "is_nan": Names("isnan", "isnan", "IsNaN"),
    "join": Names("concatenate concat", "cat", ""),
    "log": Names("log", "", "Log"),
    "logical_and": Names("logical_and", "", ""),
    "logical_equals": Names("equal", "eq", "Equal"),
    "logical_greater_than": Names("greater", "gt", "Greater"),
    "logical_greater_than_or_equal": Names("greater_equal", "ge", "GreaterOrEqual"),
    "logical_less_than": Names("less", "lt", "Less"),
    "logical_less_than_or_equal": Names("less_equal", "le", "LessOrEqual"),
    "logical_not": Names("logical_not", "", ""),
    "logical_or": Names("logical_or", "", ""),
    "logical_xor": Names("logical_xor", "", ""),
    "gemm": Names("matmul", "", ""),
    "max": Names("maximum", "maximum", "Max"),
    "max_pooling": Names("", "max_pool2d", ""),
    "mean": Names("", "", "Mean"),
    "mean_variance_normalization1": Names("", "group_norm layer_norm", ""),
    "min": Names("minimum", "minimum", "Min"),
    "modulus_floor": Names("remainder mod", "", ""),
    "modulus_truncate": Names("fmod", "", ""),
    "multihead_attention": Names("", "scaled_dot_product_attention", ""),
    "multiply": Names("multiply", "mul", "Mul"),
    "negate": Names("negative", "neg", "Neg"),
    "pow": Names("power", "", "Pow"),
    "recip": Names("reciprocal", "reciprocal", "Reciprocal"),
    "resample": Names("", "interpolate", ""),
    "round": Names("rint", "", "Round"),
    "sign": Names("sign", "", "Sign"),
    "sin": Names("sin", "", "Sin"),
    "sinh": Names("sinh", "", "Sinh"),
    "split": Names("", "chunk", ""),
    "sqrt": Names("sqrt", "", "Sqrt"),
    "subtract": Names("subtract", "sub", "Sub"),
    "take": Names("", "embedding index_select", ""),
    "tan": Names("tan", "", "Tan"),
    "tanh": Names("tanh", "", "Tanh"),
    "matmul": Names("", "bmm mm", ""),
    "equal": Names("", "eq", ""),
    "not_equal": Names("", "ne", ""),
    "less": Names("", "lt", ""),
    "less_equal": Names("", "le", ""),
    "greater": Names("", "gt", ""),
    "greater_equal": Names("", "ge", ""),
}
"""By the name here. Of two functions with the same name elsewhere, hints name the last one."""


OURS = {name: function for function, names in NAMES.items() for name in names.numpy.split()}
"""NumPy's name -> the name here."""


def torch_name(function: str) -> str:
    """PyTorch's function, whose name is the same where none is listed."""
    return NAMES.get(function, Names()).torch.split(" ")[0] or function


def aliases() -> dict[str, str]:
    """Another library's name -> the name here, where they differ."""
    functions = {}
    for function, names in NAMES.items():
        for name in f"{names.numpy} {names.torch}".split():
            functions[name.rpartition(".")[2]] = function
    return {name: function for name, function in functions.items()
            if name != function and f"activation_{name}" != function}
