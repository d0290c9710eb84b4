"""New sizes of tensors need no new pipelines: no size is a specialization constant, unless it is
bounded to a few values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are built with onnx")

import onnx
import onnx.helper as helper
from onnx import numpy_helper

import kompute_dml as dml
from kompute_dml.graph.builder import Builder
from kompute_dml.graph.planner import Preparations
from kompute_dml.lowering.plan import Target
from kompute_dml.onnx.fusion import fuse
from kompute_dml.onnx.mapping import TABLE
from kompute_dml.onnx.model import read
from kompute_dml.onnx.placement import place
from kompute_dml.onnx.region import Region
from kompute_dml.runtime.pipelines import Shader
from kompute_dml.runtime.traits import EMULATED, emulated
from kompute_dml.runtime.traits import of as traits_of
from plans import without_pipelines
from record_plans import targets

_EARLY = ((16, 24, 128), (9, 27, 13), (88, 92, 148), (89, 91, 149))
"""The first sizes (h, w, t): whole vectors and odd numbers of elements, short and long ones. A
kernel may tell no other sizes apart."""
_rng = np.random.default_rng(14)
_LATER = [(int(_rng.integers(9, 90)), int(_rng.integers(9, 90)), int(_rng.integers(9, 150)))
          for _ in range(16)]
_TYPES = {"f": "float32", "h": "float16", "i": "int64", "j": "int32", "u": "uint8", "s": "int8",
          "b": "bool"}
IMAGE, ROWS, LINES = "f 1 8 h w", "f 1 t 32", "f 1 8 t"


def _words(text: str) -> list[str]:
    return text.split()


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32) / 8


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


class Case:
    """A node whose inputs have sizes h, w and t. Arrays are constants. A later case of the same
    name is another use of the operator."""

    def __init__(self, op: str, *inputs: str | np.ndarray, outputs: int = 1, opset: int = 20,
                 domain: str = "", result: int = onnx.TensorProto.FLOAT, **attributes: Any) -> None:
        """``result`` is the type of the outputs, where ONNX cannot infer it."""
        self.op, self.inputs, self.outputs, self.opset = op, inputs, outputs, opset
        self.domain, self.result, self.attributes = domain, result, attributes

    def __repr__(self) -> str:
        return ".".join(filter(None, (self.domain, self.op)))


def _microsoft(op: str, *inputs: str | np.ndarray, **more: Any) -> Case:
    return Case(op, *inputs, domain="com.microsoft", **more)


def _quantized(op: str, *inputs: str | np.ndarray, **more: Any) -> Case:
    return _microsoft(op, *inputs, result=onnx.TensorProto.UINT8, **more)


_ONE = _words("""
    Abs Acos Acosh Asin Asinh Atan Atanh Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu
    HardSigmoid HardSwish Hardmax Identity IsInf IsNaN LeakyRelu Log LogSoftmax Mish Neg
    Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt
    Tan Tanh ThresholdedRelu Flatten GlobalAveragePool GlobalLpPool GlobalMaxPool
    MeanVarianceNormalization Dropout
""")
_TWO = _words("Add Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Pow Sub Sum")
_REDUCTIONS = _words("""
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare
""")
_IMAGE_WEIGHTS = _floats(8, 8, 3, 3)
_SCALE = np.float32(0.1), np.uint8(3)
"""A scale and a zero point."""

CASES = [
    *[Case(op, IMAGE) for op in _ONE],
    *[Case(op, IMAGE, IMAGE) for op in _TWO], *[Case(op, IMAGE, _floats(8, 1, 1)) for op in _TWO],
    *[Case(op, IMAGE, _ints(*axes)) for op in _REDUCTIONS for axes in ((2, 3), (3,), (1,))],
    *[Case(op, "b 1 8 h w", "b 1 8 h w") for op in ("And", "Or", "Xor")], Case("Not", "b h w"),
    *[Case(op, "j h w", "j h w") for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mod")],
    Case("BitwiseNot", "j h w"), Case("BitShift", "u h w", "u h w", direction="LEFT"),
    *[Case(op, IMAGE, axis=a) for op in ("ArgMax", "ArgMin") for a in (1, 2, 3)],
    Case("ArgMax", ROWS, axis=1), Case("Clip", IMAGE, np.float32(-1), np.float32(1)),
    Case("Cast", IMAGE, to=onnx.TensorProto.FLOAT16), Case("CastLike", IMAGE, "h 1"),
    Case("Where", "b h w", "f h w", "f h w"), Case("PRelu", IMAGE, _floats(8, 1, 1)),
    Case("Attention", "f 1 t 32", "f 1 t 32", "f 1 t 32", q_num_heads=4, kv_num_heads=4, opset=23),
    Case("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    Case("AveragePool", LINES, kernel_shape=[5]),
    Case("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2]),
    Case("MaxPool", IMAGE, kernel_shape=[9, 9], outputs=2),
    Case("LpPool", IMAGE, kernel_shape=[3, 2], pads=[0, 0, 0, 1]),
    Case("BatchNormalization", IMAGE, *[np.ones(8, np.float32)] * 4),
    Case("CenterCropPad", "f h w", _ints(5, 6)), Case("Col2Im", "f 1 36 16", _ints(6, 6),
                                                      _ints(3, 3)),
    *[Case("Concat", IMAGE, IMAGE, axis=a) for a in (1, 2, 3)],
    Case("Conv", IMAGE, _IMAGE_WEIGHTS, pads=[1, 1, 1, 1]),
    Case("Conv", IMAGE, _IMAGE_WEIGHTS, strides=[2, 2]), Case("Conv", IMAGE, _floats(8, 8, 1, 1)),
    Case("Conv", IMAGE, _floats(8, 1, 3, 3), group=8), Case("Conv", LINES, _floats(8, 8, 3)),
    Case("ConvInteger", "u 1 8 h w", np.ones((8, 8, 3, 3), np.uint8)),
    Case("ConvTranspose", IMAGE, _IMAGE_WEIGHTS, strides=[2, 2]),
    *[Case("CumSum", IMAGE, _ints(a)) for a in (2, 3)],
    *[Case("CumProd", IMAGE, _ints(a), opset=26) for a in (2, 3)],
    Case("DepthToSpace", IMAGE, blocksize=2), Case("SpaceToDepth", "f 1 8 16 t", blocksize=1),
    Case("DequantizeLinear", "u 1 8 h w", np.float32(0.1), np.uint8(3)),
    Case("QuantizeLinear", IMAGE, np.float32(0.1), np.uint8(3)),
    Case("QuantizeLinear", IMAGE, np.ones(8, np.float32), np.zeros(8, np.uint8), axis=1),
    Case("DynamicQuantizeLinear", IMAGE, outputs=3), Case("DFT", "f 1 16 h 1", axis=1, opset=17),
    Case("Einsum", IMAGE, _floats(4, 8), equation="nchw,oc->nohw"),
    Case("Expand", "f h 1 w", _ints(1, 5, 1)), Case("EyeLike", "f h w"),
    *[Case(op, "f t 1 32", _floats(1, gates * 16, 32), _floats(1, gates * 16, 16), hidden_size=16)
      for op, gates in (("GRU", 3), ("LSTM", 4), ("RNN", 1))],
    Case("Gather", _floats(50, 16), "i 1 t"), Case("Gather", IMAGE, _ints(0, 1), axis=1),
    Case("Gather", IMAGE, _ints(0, 1), axis=3), Case("GatherElements", "f h w", "i h 3", axis=1),
    Case("GatherND", "f h w 4", "i t 2"), Case("Gemm", "f t 32", _floats(32, 24), _floats(24)),
    Case("Gemm", "f t h", "f h w"), Case("MatMul", ROWS, _floats(32, 24)),
    Case("MatMul", "f 2 h w", "f 2 w t"), Case("MatMulInteger", "u t 32",
                                               np.ones((32, 24), np.uint8)),
    Case("GridSample", IMAGE, "f 1 t 4 2"), Case("GroupNormalization", IMAGE, _floats(8),
                                                 _floats(8), num_groups=2, opset=21),
    Case("InstanceNormalization", IMAGE, _floats(8), _floats(8)), Case("LRN", IMAGE, size=3),
    Case("LayerNormalization", ROWS, _floats(32), _floats(32)),
    Case("LpNormalization", IMAGE, axis=1), Case("LpNormalization", IMAGE, axis=3),
    Case("RMSNormalization", ROWS, _floats(32), opset=23),
    Case("MaxRoiPool", IMAGE, np.float32([[0, 0, 0, 7, 7]]), pooled_shape=[2, 2]),
    Case("RoiAlign", IMAGE, np.float32([[0, 0, 7, 7]]), _ints(0), output_height=2, output_width=2),
    Case("NegativeLogLikelihoodLoss", "f t 16", "i t"),
    Case("SoftmaxCrossEntropyLoss", "f t 16", "i t"),
    Case("OneHot", "i t", np.array(9), _floats(2)), Case("Trilu", "f h w"),
    *[Case("Pad", IMAGE, _ints(0, 0, 1, 2, 0, 0, 2, 1), mode=m)
      for m in ("constant", "edge", "reflect")],
    Case("QLinearConv", "u 1 8 h w", np.float32(0.1), np.uint8(3), np.ones((8, 8, 3, 3), np.int8),
         np.float32(0.1), np.int8(0), np.float32(0.1), np.uint8(3)),
    Case("QLinearMatMul", "u t 32", np.float32(0.1), np.uint8(3), np.ones((32, 24), np.int8),
         np.float32(0.1), np.int8(0), np.float32(0.1), np.uint8(3)),
    *[Case("Resize", IMAGE, np.float32([]), np.float32([1, 1, *s]), mode=m)
      for m in ("nearest", "linear", "cubic") for s in ((2, 2), (1.5, 1.5), (0.5, 0.5))],
    Case("Resize", IMAGE, np.float32([]), np.float32([]), _ints(1, 8, 24, 24), mode="cubic"),
    Case("Resize", IMAGE, np.float32([]), np.float32([]), _ints(1, 8, 24, 24), mode="linear"),
    Case("Reshape", IMAGE, _ints(1, 8, -1)), Case("Transpose", IMAGE, perm=[0, 2, 3, 1]),
    Case("Transpose", IMAGE, perm=[0, 1, 3, 2]), Case("Transpose", "f h w t", perm=[2, 1, 0]),
    Case("ReverseSequence", "f t 4 8", _ints(3, 4, 5, 6)),
    Case("RotaryEmbedding", "f 1 4 t 8", "f 1 t 4", "f 1 t 4", opset=23),
    Case("ScatterElements", "f h w", "i h 3", "f h 3", axis=1),
    Case("ScatterND", "f h w", "i t 1", "f t w"), Case("Slice", IMAGE, _ints(1), _ints(-1),
                                                       _ints(2)),
    Case("Slice", IMAGE, _ints(1), _ints(-1), _ints(3)), Case("Softmax", IMAGE, axis=1),
    Case("Split", IMAGE, axis=1, num_outputs=2, outputs=2), Case("Squeeze", "f 1 h w", _ints(0)),
    Case("Unsqueeze", "f h w", _ints(0)), Case("STFT", "f 1 t 1", _ints(4), _floats(8)),
    Case("Swish", IMAGE, opset=24), Case("TopK", IMAGE, _ints(4), outputs=2),
    Case("TopK", "f t 8", _ints(4), axis=0, outputs=2), Case("Tile", IMAGE, _ints(1, 1, 2, 3)),
    Case("Tile", ROWS, _ints(1, 2, 1)), Case("Upsample", IMAGE, np.float32([1, 1, 2, 2]), opset=9),
    _microsoft("BiasAdd", ROWS, _floats(32), ROWS), _microsoft("BiasGelu", ROWS, _floats(32)),
    _microsoft("FastGelu", ROWS, _floats(32)), _microsoft("Gelu", ROWS),
    _microsoft("QuickGelu", ROWS), _microsoft("FusedMatMul", ROWS, _floats(32, 24)),
    _microsoft("MultiHeadAttention", ROWS, ROWS, ROWS, num_heads=4),
    _microsoft("SkipLayerNormalization", ROWS, ROWS, _floats(32), _floats(32)),
    _microsoft("SkipSimplifiedLayerNormalization", ROWS, ROWS, _floats(32)),
    _microsoft("DynamicQuantizeMatMul", ROWS, np.ones((32, 24), np.int8), np.float32(0.1)),
    _quantized("QLinearGlobalAveragePool", "u 1 8 h w", np.float32(0.1), np.uint8(3),
               np.float32(0.1), np.uint8(3)),
    _quantized("QLinearAveragePool", "u 1 8 h w", np.float32(0.1), np.uint8(3), np.float32(0.1),
               np.uint8(3), kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    _quantized("QLinearAdd", "u h w", np.float32(0.1), np.uint8(3), "u h w", np.float32(0.1),
               np.uint8(3), np.float32(0.1), np.uint8(3)),
    _microsoft("GroupNorm", "f 1 h w 8", _floats(8), _floats(8), activation=1, groups=2,
               channels_last=1),
    Case("Scatter", "f h w", "i h 3", "f h 3", opset=9, axis=1), Case("BitCast", IMAGE, opset=26,
                                                                      to=onnx.TensorProto.INT32),
    Case("AffineGrid", "f 1 2 3", _ints(1, 1, 5, 6)),
    Case("MaxUnpool", IMAGE, "i 1 8 h w", kernel_shape=[2, 2], strides=[2, 2]),
    Case("TensorScatter", "f 1 4 t 8", "f 1 4 1 8", _ints(2), opset=24),
    _quantized("QuantizeLinear", IMAGE, *_SCALE), _microsoft("DequantizeLinear", "u 1 8 h w",
                                                             *_SCALE),
    _microsoft("FusedConv", IMAGE, _IMAGE_WEIGHTS, activation="Relu"),
    _microsoft("NhwcConv", "f 1 h w 8", _floats(8, 3, 3, 8)),
    _microsoft("FusedGemm", "f t 32", _floats(32, 24), _floats(24), activation="Relu"),
    _microsoft("TransposeMatMul", ROWS, _floats(32, 24)),
    _microsoft("FusedMatMulActivation", ROWS, _floats(32, 24), activation="Relu"),
    _microsoft("GridSample", IMAGE, "f 1 t 4 2"),
    _microsoft("LayerNormalization", ROWS, _floats(32), _floats(32)),
    _microsoft("SimplifiedLayerNormalization", ROWS, _floats(32)), _microsoft("Trilu", "f h w"),
    _quantized("QLinearSigmoid", "u h w", *_SCALE, *_SCALE),
    _quantized("QLinearLeakyRelu", "u h w", *_SCALE, *_SCALE, alpha=0.1),
    _quantized("QLinearMul", "u h w", *_SCALE, "u h w", *_SCALE, *_SCALE),
    _quantized("QLinearSoftmax", "u h w", *_SCALE, *_SCALE, opset=13),
    _quantized("QLinearConcat", *_SCALE, "u h w", *_SCALE, "u h w", *_SCALE, axis=0),
    _quantized("QGemm", "u t 32", *_SCALE, np.ones((32, 24), np.int8), np.float32(0.1), np.int8(0),
               np.zeros(24, np.int32), *_SCALE, alpha=1.0),
    _microsoft("MatMulIntegerToFloat", "u t 32", np.ones((32, 24), np.int8), np.float32(0.1),
               np.float32(0.1), np.uint8(3), np.int8(0)),
    _microsoft("MatMulNBits", ROWS, np.ones((24, 1, 16), np.uint8), np.ones(24, np.float32),
               K=32, N=24, bits=4, block_size=32),
    _microsoft("Attention", ROWS, _floats(32, 96), _floats(96), num_heads=4),
    _microsoft("QAttention", "u 1 t 32", np.ones((32, 96), np.int8), _floats(96),
               np.float32(0.1), np.float32(0.1), num_heads=4),
    _microsoft("BiasSplitGelu", "f 1 t 64", _floats(64)),
    _microsoft("SkipGroupNorm", "f 1 h w 8", _floats(8), _floats(8), "f 1 h w 8", activation=1,
               groups=2, channels_last=1),
    _microsoft("RotaryEmbedding", "f 1 4 t 8", _ints(0).reshape(1, 1), _floats(200, 4),
               _floats(200, 4)),
    _microsoft("EmbedLayerNormalization", "j 1 t", "j 1 t", _floats(50, 32), _floats(200, 32),
               _floats(2, 32), _floats(32), _floats(32), outputs=2),
]

_LEGACY = _words("Affine Crop ImageScaler ParametricSoftplus ScaledTanh")
CASES += [
    *[Case(op, IMAGE) for op in _LEGACY if op not in ("Crop", "ImageScaler")],
    Case("Crop", IMAGE, border=[1, 2, 1, 2]), Case("ImageScaler", IMAGE, scale=2.0, bias=[0.5] * 8),
    *[Case(op, IMAGE, seed=1.0) for op in ("RandomNormalLike", "RandomUniformLike")],
    Case("Multinomial", "f h t", seed=1.0, sample_size=3),
    Case("SimplifiedLayerNormalization", ROWS, _floats(32)),
    Case("SwiGLU", ROWS, ROWS, opset=28),
    *[Case("CausalConvWithState", LINES, _floats(8, 1, 3), outputs=2, domain=domain, opset=28)
      for domain in ("", "com.microsoft")],
    *[Case("LinearAttention", ROWS, ROWS, ROWS, "f 1 4 8 8", outputs=2, domain=domain, opset=28,
           update_rule="linear", q_num_heads=4, kv_num_heads=4)
      for domain in ("", "com.microsoft")],
    _microsoft("DynamicQuantizeLSTM", "f t 1 32", np.ones((1, 32, 64), np.int8),
               np.ones((1, 16, 64), np.int8), _floats(1, 128), *[np.float32([])] * 4,
               np.float32([0.1]), np.int8([0]), np.float32([0.1]), np.int8([0]), hidden_size=16),
    _microsoft("GatherBlockQuantized", np.ones((50, 24), np.uint8), "i 1 t",
               np.ones((50, 3), np.float32), bits=4, block_size=16, gather_axis=0, quantize_axis=1),
    _microsoft("MoE", "f t 16", "f t 4", _floats(4, 8, 16), np.float32([]), _floats(4, 16, 8), k=2,
               activation_type="relu"),
    _microsoft("QMoE", "f t 16", "f t 4", np.ones((4, 8, 8), np.uint8), _floats(4, 8),
               np.float32([]), np.ones((4, 16, 4), np.uint8), _floats(4, 16), k=2,
               activation_type="relu"),
    _microsoft("GatedAdd", ROWS, ROWS, "f 1 t 1"),
    _microsoft("GatedRMSNorm", ROWS, _floats(8), ROWS),
    _microsoft("LinearAttentionGate", ROWS, _floats(32), _floats(32)),
    _microsoft("MRotaryEmbedding", "f 1 4 t 8", "i 3 1 t", _floats(200, 4), _floats(200, 4),
               mrope_section=[2, 1, 1]),
]

CROP = Case("Resize", IMAGE, np.float32([0, 0, 0.1, 0.2, 1, 1, 0.9, 1]), np.float32([]),
            _ints(1, 8, 24, 24), mode="linear",
            coordinate_transformation_mode="tf_crop_and_resize")
"""What is planned for each size."""

_UNTYPED = (*_LEGACY, "GroupNormalization", "SimplifiedLayerNormalization", "SwiGLU",
            "CausalConvWithState", "LinearAttention")
"""Operators of which ONNX does not infer the type of the result."""
_FEW = 6
"""The most values that a specialization constant takes for all sizes."""
_MOST_AHEAD = 24
"""The most pipelines that are compiled for other sizes than those that came."""
_GPUS = ("h200", "no_matrix_units", *EMULATED)
"""Devices that this one plans for: an H200 with its matrix units, another GPU that has all features
but these, and typical ones of each class with the features of this device."""
_BY_VALUES = [("", op) for op in _words("Compress ConstantOfShape If NonZero Range")]
"""Values, not the sizes of inputs, tell their sizes."""
_BY_ATTRIBUTES = [("", op) for op in _words("RandomNormal RandomUniform")]
"""Attributes tell their sizes, so these are the same in all runs."""
_BY_LENGTHS = [("com.microsoft", op) for op in _words("""
    ConvTransposeWithDynamicPads DecoderMaskedMultiHeadAttention GroupQueryAttention
""")]
"""Values of pads and lengths of caches tell which parts of inputs count. Their kernels are those of
ConvTranspose and MultiHeadAttention."""
_SPELLED_OUT = [("kompute_dml", "Experts"), ("kompute_dml", "GroupedMatMul")]
"""What takes the place of nodes of a model (test_mixtures.py and test_sorted_rows.py)."""
_OTHERS = {*_BY_VALUES, *_BY_ATTRIBUTES, *_BY_LENGTHS, *_SPELLED_OUT}


def model_of(case: Case) -> onnx.ModelProto:
    """A model of the node."""
    names, given, constants = [], [], []
    for i, x in enumerate(case.inputs):
        name = f"x{i}"
        if isinstance(x, str):
            kind, *sizes = x.split()
            given.append(helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(np.dtype(_TYPES[kind])),
                [int(n) if n.isdigit() else n for n in sizes]))
        elif x.shape == (0,):
            name = ""
        else:
            constants.append(numpy_helper.from_array(x, name))
        names.append(name)
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, domain=case.domain, **case.attributes)
    imports = [helper.make_opsetid("", case.opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "sizes", given, [
        helper.make_tensor_value_info(y, case.result, None) if case.domain or case.op in _UNTYPED
        else helper.make_empty_tensor_value_info(y) for y in outputs], constants)
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=imports, ir_version=10))


def region_of(case: Case, device: dml.Device) -> Region:
    read_graph = read(model_of(case))
    nodes = fuse(read_graph)
    found = place(nodes, device)
    assert not found.reasons, list(found.reasons.values())
    return Region(device, nodes, read_graph.inputs, read_graph.outputs)


def shapes_of(case: Case, named: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The sizes of the inputs of a case."""
    return [tuple(int(named.get(n, n)) for n in x.split()[1:])
            for x in case.inputs if isinstance(x, str)]


def _pipelines(case: Case, region: Region, named: Mapping[str, int]) -> set[Shader]:
    """The shaders and constants of a plan for these sizes."""
    shapes = shapes_of(case, named)
    builder = Builder(region.device, region._prepared)
    steps = builder.lower(*region._emit(builder, shapes, {}))
    return {key for step in steps for key in step.compiled.pipelines()}


def _check_few(region: Region, shaders: set[Shader]) -> None:
    """Raise unless each constant takes few values, and few constants of the model are prepared."""
    # Some kernels read a constant in another order. What a size prepares for itself is not kept.
    assert len(region._prepared) <= _FEW, "sizes prepare constants anew"
    values: dict[tuple[str, int], set[int]] = {}
    for variant, spec in shaders:
        for i, word in enumerate(np.frombuffer(spec, np.uint32).tolist()):
            values.setdefault((variant.name, i), set()).add(word)
    assert max(map(len, values.values()), default=0) <= _FEW, values


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sizes_need_no_new_pipelines(
    case: Case, device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pipelines(monkeypatch)
    region = region_of(case, device)
    early, later = (
        set().union(*(_pipelines(case, region, dict(zip("hwt", sizes))) for sizes in some))
        for some in (_EARLY, _LATER))
    _check_few(region, early | later)
    assert not later - early


def as_gpu(name: str, device: dml.Device) -> Target:
    """What lowerings know of a GPU."""
    if name not in EMULATED:
        return targets()[name]
    with emulated(name):
        return replace(device.target, traits=traits_of(device.adapter))


class Begun:
    """Notes the shaders that threads are to compile, instead of compiling them."""

    def __init__(self, device: dml.Device, monkeypatch: pytest.MonkeyPatch) -> None:
        self.needed, self.ahead = set[Shader](), set[Shader]()
        pipelines = device.runtime.pipelines
        monkeypatch.setattr(pipelines, "begin", lambda wanted: self.needed.update(wanted) or [])
        monkeypatch.setattr(pipelines, "begin_ahead", self.ahead.update)
        monkeypatch.setattr(Preparations, "record", lambda self, _: self.pending.clear())


def plan(case: Case, region: Region, sizes: tuple[int, int, int]) -> None:
    shapes = shapes_of(case, dict(zip("hwt", sizes)))
    region.plan([np.empty(s, value.dtype) for s, value in zip(shapes, region.inputs)])


@pytest.mark.slow
@pytest.mark.parametrize("name", _GPUS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_gpu_compiles_nothing_after_the_fourth_size(
    case: Case, name: str, reused: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even ahead."""
    reused.target = as_gpu(name, reused)
    begun = Begun(reused, monkeypatch)
    region = region_of(case, reused)
    for sizes in _EARLY:
        plan(case, region, sizes)
    early, ahead = begun.needed | begun.ahead, len(begun.ahead - begun.needed)
    assert ahead <= _MOST_AHEAD
    for sizes in _LATER:
        plan(case, region, sizes)
    _check_few(region, begun.needed)
    assert not (begun.needed | begun.ahead) - early


def test_every_operator_has_a_case() -> None:
    left = {(row.domain, row.op) for row in TABLE} - {(case.domain, case.op) for case in CASES}
    assert left == _OTHERS, sorted(left ^ _OTHERS)
