"""The mapping table against the operators that this package implements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml

pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("onnxruntime", reason="the models are compared with ONNX Runtime's")

import onnx.defs

import kompute_dml.onnx_backend as backend
from kompute_dml.graph import builder
from kompute_dml.onnx import mapping
from kompute_dml.onnx.backend import PreparedModel
from kompute_dml.onnx.fusion import fuse
from kompute_dml.onnx.graph import OnnxNode, OnnxValue
from kompute_dml.onnx.mapping import FAMILIES, TABLE
from kompute_dml.onnx.model import read
from kompute_dml.onnx.row import MICROSOFT, Mapping
from kompute_dml.operators import base
from kompute_dml.runtime.heap import ALIGNMENT
from kompute_dml.runtime.windows import Windows
from onnx_graphs import FLOAT, INT8, INT64, UINT8, cpu, model, needs_provider, node

_OPSET = min(28, onnx.defs.onnx_opset_version())
"""The newest operator set that the table was checked with."""

WITHOUT_ROW = {
    "ACTIVATION_HARDMAX": "ACTIVATION_HARDMAX1 serves Hardmax",
    "ACTIVATION_LOG_SOFTMAX": "ACTIVATION_LOG_SOFTMAX1 serves LogSoftmax",
    "ACTIVATION_RELU_GRAD": "no ONNX operator",
    "ACTIVATION_SOFTMAX": "ACTIVATION_SOFTMAX1 serves Softmax",
    "ELEMENT_WISE_ADD1": "Add, and the activation behind it",
    "ELEMENT_WISE_ATAN_YX": "no ONNX operator",
    "ELEMENT_WISE_BIT_COUNT": "no ONNX operator",
    "ELEMENT_WISE_CLIP": "CLIP1 serves Clip",
    "ELEMENT_WISE_CLIP_GRAD": "no ONNX operator",
    "ELEMENT_WISE_CLIP_GRAD1": "no ONNX operator",
    "ELEMENT_WISE_CONSTANT_POW": "POW serves Pow",
    "ELEMENT_WISE_DIFFERENCE_SQUARE": "no ONNX operator",
    "ELEMENT_WISE_TANH": "ACTIVATION_TANH serves Tanh",
    "ELEMENT_WISE_THRESHOLD": "no ONNX operator",
}


def test_the_table_has_the_rows_of_each_file_once() -> None:
    folder = Path(mapping.__file__).parent / "operators"
    files = {p.stem for p in folder.glob("*.py") if "\nROWS: " in p.read_text("utf-8")}
    assert sorted(family.__name__.rpartition(".")[2] for family in FAMILIES) == sorted(files)


def test_no_row_stands_twice() -> None:
    rows = [(row.domain, row.op, row.since, row.operator, row.fields, row.attributes, row.refuses)
            for row in TABLE]
    assert len(rows) == len(set(rows))


def test_every_elementwise_operator_and_activation_has_a_row_or_a_reason() -> None:
    rows = {row.operator for row in TABLE}
    names = {name.removeprefix("DML_OPERATOR_") for name in base.definitions()}
    implemented = {n for n in names if n.startswith(("ELEMENT_WISE_", "ACTIVATION_"))}
    assert implemented - rows == WITHOUT_ROW.keys()


# What ONNX Runtime's docs/OperatorKernels.md lists for its DirectML provider.
PROVIDER = """
Abs Acos Acosh Add Affine And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization
BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Col2Im Concat
ConcatFromSequence ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh Crop CumSum DFT
DepthToSpace DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand
EyeLike Flatten Floor GRU Gather GatherElements GatherND Gemm GlobalAveragePool GlobalLpPool
GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization HardSigmoid Hardmax Identity If
ImageScaler InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less
LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max MaxPool MaxRoiPool
MaxUnpool Mean MeanVarianceNormalization MemcpyFromHost MemcpyToHost Min Mod Mul Neg NonZero Not
OneHot OptionalGetElement OptionalHasElement Or PRelu Pad ParametricSoftplus Pow QLinearConv
QLinearMatMul QuantizeLinear RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize
ReverseSequence RoiAlign Round STFT ScaledTanh Scatter ScatterElements ScatterND Selu SequenceAt
SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Shrink Sigmoid
Sign SimplifiedLayerNormalization Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split
Sqrt Squeeze Sub Sum Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where
Xor
"""
PROVIDER_MICROSOFT = """
Attention BiasAdd BiasGelu BiasSplitGelu ConvTransposeWithDynamicPads DequantizeLinear
DynamicQuantizeMatMul EmbedLayerNormalization FastGelu FusedMatMul FusedMatMulActivation Gelu
GroupNorm GroupQueryAttention MatMulIntegerToFloat MatMulNBits MultiHeadAttention NhwcConv
QAttention QLinearAdd QLinearAveragePool QLinearConcat QLinearGlobalAveragePool QLinearSigmoid
QuantizeLinear QuickGelu RotaryEmbedding SkipLayerNormalization SkipSimplifiedLayerNormalization
"""
WITHOUT_ROW_THERE = {
    **dict.fromkeys(("Shape", "Size"), "the host knows sizes while it plans"),
    **dict.fromkeys(("MemcpyFromHost", "MemcpyToHost"), "ONNX Runtime's own, not a model's"),
    **dict.fromkeys(("OptionalGetElement", "OptionalHasElement", "ConcatFromSequence",
                     *(f"Sequence{kind}" for kind in (
                         "At", "Construct", "Empty", "Erase", "Insert", "Length"))),
                    "no tensors: a plug-in provider is given none"),
}


def test_every_operator_of_the_directml_provider_has_a_row_or_a_reason() -> None:
    wanted = {*(("", op) for op in PROVIDER.split()),
              *(("com.microsoft", op) for op in PROVIDER_MICROSOFT.split())}
    rows = {(row.domain, row.op) for row in TABLE}
    assert {op for _, op in wanted - rows} == WITHOUT_ROW_THERE.keys()


BUILDERS = """
Attention BiasGelu CausalConvWithState EmbedLayerNormalization FastGelu FusedMatMul
GatedAdd GatedDeltaNet GatedRMSNorm GatherBlockQuantized Gelu GroupQueryAttention LinearAttention
LinearAttentionGate MRotaryEmbedding MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight
MatMulNBits MoE MultiHeadAttention PagedAttention QMoE QuickGelu RotaryEmbedding
SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization SparseAttention
VarlenCausalConvWithState
"""
"""What onnxruntime-genai's builder (0.18) and the optimizer of optimum's exports write."""
WITHOUT_ROW_OF_BUILDERS = {
    **dict.fromkeys(("GatedDeltaNet", "PagedAttention", "VarlenCausalConvWithState"),
                    "written for an engine that packs texts of many requests"),
    **dict.fromkeys(("MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight"),
                    "numbers of 4 and 8 bits that are floats, which DirectML does not have"),
    "SparseAttention": "a mask of blocks, of Phi-3 small alone",
}


def test_every_operator_of_builders_has_a_row_and_a_test_or_a_reason() -> None:
    rows = {row.op for row in TABLE if row.domain == "com.microsoft"}
    left = {*BUILDERS.split()} - rows
    assert left == WITHOUT_ROW_OF_BUILDERS.keys()
    others = ("test_onnx_mapping.py", "test_new_sizes.py")  # which compare no values
    here = Path(__file__).parent
    files = [*here.glob("test_*.py"), here.parent / "random_microsoft.py"]
    tests = "".join(file.read_text() for file in files if file.name not in others)
    assert {op for op in {*BUILDERS.split()} - left if f'"{op}"' not in tests} == set()


def test_rows_know_every_version_and_attribute_of_their_operators() -> None:
    """No other test would find a missing version: its nodes are refused, and so are its node
    tests."""
    if _OPSET < 24:
        pytest.skip("this onnx is older than the newest operators of the table")
    known: dict[str, set[int]] = {}
    attributes: dict[str, set[str]] = {}
    for row in TABLE:
        if not row.domain:
            known.setdefault(row.op, set()).update(row.since)
            attributes.setdefault(row.op, {"consumed_inputs"}).update(row.attributes)
    schemas = [s for s in onnx.defs.get_all_schemas_with_history()
               if not s.domain and s.name in known and s.since_version <= _OPSET]
    assert known.keys() - {s.name for s in schemas} == {
        "Affine", "Crop", "ImageScaler", "ParametricSoftplus", "ScaledTanh",
        "SimplifiedLayerNormalization"}  # ONNX Runtime's own
    assert {(s.name, s.since_version) for s in schemas
            if s.since_version not in known[s.name] and not s.deprecated} == set()
    assert {(s.name, a) for s in schemas
            for a in s.attributes.keys() - attributes[s.name]} == set()


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("shapes", [((3, 5), (3, 5)), ((2, 3, 5), (5,)), ((1,), (4, 1)), ((), ())])
def test_quantized_sum(kind: type, shapes: tuple, rng: np.random.Generator) -> None:
    info = np.iinfo(kind)
    a, b = (rng.integers(info.min, info.max, s).astype(kind) for s in shapes)
    constants = {
        "as": np.float32(0.02), "az": kind(3), "bs": np.float32(0.07), "bz": kind(9),
        "ys": np.float32(0.05), "yz": kind(11),
    }
    number = UINT8 if kind is np.uint8 else INT8
    built = model(
        [node("QLinearAdd", "a as az b bs bz ys yz", "y", "com.microsoft")],
        [("a", number, shapes[0]), ("b", number, shapes[1])],
        [("y", number, np.broadcast_shapes(*shapes))],
        {name: np.asarray(value) for name, value in constants.items()},
    )
    (got,) = backend.run_model(built, [a, b])
    expected = cpu(built).run(None, {"a": a, "b": b})[0]
    assert got.dtype == expected.dtype and got.shape == expected.shape
    # ONNX Runtime multiplies by the reciprocal of the scale, so ties may be rounded differently.
    assert np.abs(got.astype(int) - expected.astype(int)).max() <= 1


def test_mean(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, 3)).astype(np.float32), np.float32([[1], [2]])
    infos = [("a", FLOAT, [2, 3]), ("b", FLOAT, [2, 1])]
    two = model([node("Mean", "a b", "y")], infos, [("y", FLOAT, [2, 3])])
    (got,) = backend.run_model(two, [a, b])
    np.testing.assert_allclose(got, (a + b) / 2, rtol=1e-6)


# Placement of nodes, and results of regions


def _claims(*nodes: onnx.NodeProto, inputs: list, outputs: list, constants: Any = None,
            opset: int = 17) -> list[Mapping | str]:
    graph = read(onnx.load_model_from_string(model(nodes, inputs, outputs, constants, opset)))
    return [mapping.candidate(n, dml.default_device()) for n in fuse(graph)]


def test_the_reason_tells_what_no_level_has_from_what_this_one_has_not(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    x = OnnxValue("x", np.dtype("float32"), (3,))
    gelu = OnnxNode("Gelu", "", 20, (x,), (x,), {})
    device = dml.Device(feature_level="5.0")
    assert "needs feature level 5_1, not 5_0" in str(mapping.candidate(gelu, device))
    left = {n: d for n, d in base.definitions().items() if "GELU" not in n}
    monkeypatch.setattr(base, "definitions", lambda: left)
    reason = "DML_OPERATOR_ACTIVATION_GELU is not implemented"
    assert mapping.candidate(gelu, device) == reason
    device.close()


def test_what_no_row_understands_is_refused(device: dml.Device) -> None:
    x, y = (OnnxValue(t, np.dtype(t), (3,)) for t in ("float32", "uint8"))
    many, double = (OnnxValue(t, np.dtype(t), sizes) for t, sizes in
                    (("float32", (None,) * 9), ("float64", (None,))))
    half = OnnxValue("half", np.dtype("float16"), (3,))
    one = OnnxValue("one", np.dtype("float32"), ())
    asked, on, off = (OnnxValue("training", np.dtype("bool"), (), value) for value in
                      (None, np.array(True), np.array(False)))
    assert isinstance(mapping.candidate(OnnxNode("Dropout", "", 13, (x, None, off), (x,)), device),
                      Mapping)
    for node_, reason in (
        (OnnxNode("Relu", "", 99, (x,), (x,)), "version 99"),
        (OnnxNode("Relu", "", 14, (x,), (x,), {"slope": 1.0}), "attribute slope"),
        (OnnxNode("Relu", "", 14, (many,), (many,)), "more than 8 dimensions"),
        (OnnxNode("Sigmoid", "", 13, (double,), (double,)), "InputTensor cannot be FLOAT64"),
        (OnnxNode("Dropout", "", 13, (x, None, on), (x,)), "only inference"),
        (OnnxNode("Dropout", "", 13, (x, None, asked), (x,)), "only inference"),
        (OnnxNode("Cast", "", 19, (x,), (x,), {"to": 8}), "a cast to this data type"),
        (OnnxNode("DequantizeLinear", "", 23, (y, one), (half,), {"output_dtype": 10}),
         "of its own"),
        (OnnxNode("MatMulNBits", "com.microsoft", 1, (x, y, x, half), (x,), {}), "packed as B"),
        *((OnnxNode("QuantizeLinear", "", 21, (x, OnnxValue("s", one.dtype, shape)), (y,)),
           "more than one dimension") for shape in ((1, 3), None)),
    ):
        assert reason in str(mapping.candidate(node_, device))


def test_forms_of_multi_head_attention(device: dml.Device) -> None:
    q, k4, qkv, kv = (OnnxValue(f"x{i}", np.dtype("float32"), sizes) for i, sizes in enumerate((
        (2, None, 8), (2, 2, None, 4), (2, None, 2, 3, 4), (2, None, 2, 2, 4))))
    older, unknown = dml.Device(feature_level="6.2"), OnnxValue("u", np.dtype("float32"), None)

    def found(*inputs: OnnxValue | None, on: Any = device, outputs: Any = (q,), **more: int) -> Any:
        made = OnnxNode("MultiHeadAttention", MICROSOFT, 1, inputs, outputs,
                        {"num_heads": 2, **more})
        row = mapping.candidate(made, on)
        return row if isinstance(row, str) else row.operator

    for inputs in ((qkv,), (q, kv), (q, kv, None), (q, q, q), (q, k4, k4)):
        for on in (device, older):
            assert found(*inputs, on=on) == "MULTIHEAD_ATTENTION"
        assert found(*inputs, unidirectional=1) == "MULTIHEAD_ATTENTION1"
        assert "needs feature level 6_3, not 6_2" in found(*inputs, on=older, unidirectional=1)
        assert "product of queries and keys" in found(*inputs, outputs=(q, None, None, q))
    for inputs, ranks in (
        ((q,), "3, None, None"), ((q, q), "3, 3, None"), ((qkv, kv), "5, 5, None"),
        ((q, kv, q), "3, 5, 3"), ((q, k4, q), "3, 4, 3"),
    ):
        assert f"of ranks {ranks}" in found(*inputs)
    assert "unknown rank" in found(q, unknown)
    assert "cache_indirection" in found(q, q, q, *[None] * 6, q)
    older.close()


_CHAIN = [
    node("MatMulInteger", "a b az bz", "s"), node("Cast", "s", "c", to=FLOAT),
    node("Mul", "c a_scale", "p"), node("Mul", "p b_scale", "q"), node("Add", "q bias", "y"),
]
_MATRICES = [("a", UINT8, [4, 8]), ("b", INT8, [8, 6])]


def _fused(nodes: list, outputs: str = "y", **shapes: list[int]) -> list[str]:
    sizes = {"az": [], "bz": [6], "a_scale": [4, 1], "b_scale": [6], "bias": [6], **shapes}
    constants = {name: np.ones(shape, np.float32) for name, shape in sizes.items()}
    constants |= {"az": np.ones(sizes["az"], np.uint8), "bz": np.ones(sizes["bz"], np.int8)}
    built = model(nodes, _MATRICES, [(name, FLOAT, None) for name in outputs.split()], constants)
    return [n.op for n in fuse(read(onnx.load_model_from_string(built)))]


def test_chains_that_are_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = ["MatMulIntegerToFloat"]
    monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", "integer_products")
    assert _fused(_CHAIN) == [n.op_type for n in _CHAIN]
    monkeypatch.delenv("KOMPUTE_DML_DISABLE_PASSES")
    assert _fused(_CHAIN) == rest
    assert _fused(_CHAIN, bias=[4, 6]) == rest
    assert _fused(_CHAIN[:4], "q") == rest
    assert _fused([*_CHAIN[:2], node("Mul", "a_scale c", "p"), node("Mul", "b_scale p", "q"),
                   node("Add", "bias q", "y")]) == rest
    # A value in the middle that others read must be computed.
    assert _fused(_CHAIN, "y c") == [n.op_type for n in _CHAIN]
    assert _fused(_CHAIN, "y q") == [*rest, "Add"]
    assert _fused([*_CHAIN, node("Neg", "q", "z")], "y z") == [*rest, "Add", "Neg"]
    # Nodes with the same name only, and values that are never floats.
    assert _fused([*_CHAIN[:2], node("Mul", "c a_scale", "y", "elsewhere")])[1:] == ["Cast", "Mul"]
    whole = node("Cast", "s", "c", to=INT64)
    assert _fused([_CHAIN[0], whole, node("Mul", "c a_scale", "y")])[1:] == ["Cast", "Mul"]
    # B's scale before A's, scales of another tensor, and a bias that broadcasts the result.
    assert _fused(_CHAIN, a_scale=[6], b_scale=[4, 1]) == [*rest, "Mul", "Add"]
    assert _fused(_CHAIN, a_scale=[4, 6]) == [n.op_type for n in _CHAIN]
    assert _fused(_CHAIN, bias=[1, 4, 6]) == [*rest, "Add"]


@pytest.mark.parametrize("unknown", ["a", "b"])
def test_matrices_of_unknown_rank_begin_no_chain(unknown: str) -> None:
    infos = [(name, kind, None if name == unknown else sizes) for name, kind, sizes in _MATRICES]
    nodes = [node("MatMulInteger", "a b", "s"), *_CHAIN[1:3]]
    built = model(nodes, infos, [("p", FLOAT, None)], {"a_scale": np.float32(2)})
    ops = [n.op for n in fuse(read(onnx.load_model_from_string(built)))]
    assert ops == [n.op_type for n in nodes]


@needs_provider
@pytest.mark.parametrize("larger, sizes", [("a_scale", [4, 1]), ("bias", [4, 6])])
def test_what_makes_the_result_larger_comes_after_the_product(
    larger: str, sizes: list[int], rng: np.random.Generator
) -> None:
    """Only a run shows that A has one row, and the other operand several."""
    a, b = rng.integers(0, 99, (1, 8), np.uint8), rng.integers(-99, 99, (8, 6), np.int8)
    more = {"a_scale": np.float32(0.5), "b_scale": np.float32(2), "bias": np.float32(3)}
    many = rng.random(sizes, np.float32)
    built = model(
        [node("MatMulInteger", "a b", "s"), *_CHAIN[1:]],
        [("a", UINT8, ["rows", 8]), (larger, FLOAT, ["n", sizes[1]])], [("y", FLOAT, [4, 6])],
        {"b": b, **{name: value for name, value in more.items() if name != larger}})
    got = backend.prepare(built, fallback=True).run([a, many])[0]
    more[larger] = many
    expected = a.astype(np.float32) @ b * more["a_scale"] * more["b_scale"] + more["bias"]
    assert got.shape == expected.shape == (4, 6)
    np.testing.assert_array_equal(got, expected)


@needs_provider
@pytest.mark.parametrize("a, b, factor, fused", [
    ([4, 8], [8], [4, 1], False), ([8], [8, 6], [1, 6], False), ([4, 8], [8], [1, 1], False),
    ([8, 8], [8], [8], False), ([8], [2, 8, 6], [2, 1], False), ([8], [8, 6], [6], True),
    ([8], [2, 8, 6], [1, 6], True), ([4, 8], [2, 8, 6], [4, 1], True),
    ([2, 4, 8], [8, 6], [1, 1, 6], True),
], ids=str)
def test_factors_of_products_of_vectors_and_stacks(
    a: list[int], b: list[int], factor: list[int], fused: bool, rng: np.random.Generator
) -> None:
    """The product of a vector has fewer dimensions, so factors for a matrix's rows broadcast it."""
    values = rng.integers(0, 99, a, np.uint8), rng.integers(-99, 99, b, np.int8)
    factors = rng.random(factor, np.float32)
    expected = (values[0].astype(np.int64) @ values[1]).astype(np.float32) * factors
    built = model([node("MatMulInteger", "a b", "s"), node("Cast", "s", "c", to=FLOAT),
                   node("Mul", "c factors", "y")],
                  [("a", UINT8, a), ("b", INT8, b)], [("y", FLOAT, [None] * expected.ndim)],
                  {"factors": factors})
    ops = [n.op for n in fuse(read(onnx.load_model_from_string(built)))]
    assert (ops == ["MatMulIntegerToFloat"]) == fused
    (got,) = backend.prepare(built, fallback=True).run(values)
    assert got.shape == expected.shape
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("depth", [0, 5])
@pytest.mark.parametrize("a_scale", [[], [4], [4, 1], [1, 1]])
@pytest.mark.parametrize("a_sizes, b_sizes", [([2, 3, 4], []), ([4], []), ([3, 4], [3]),
                                             ([2, 3, 4], [2, 3]), ([2, 1, 3, 4], [2, 2, 1])])
def test_products_of_stacks(
    a_sizes: list[int], b_sizes: list[int], a_scale: list[int], depth: int,
    rng: np.random.Generator,
) -> None:
    """One B for all, or one each; scales of rows; and K = 0, which leaves only the bias."""
    sizes = ([*a_sizes, depth], [*b_sizes, depth, 6])
    a, b = (rng.integers(-128, 127, n, np.int8) for n in sizes)
    scales = rng.random(a_scale, np.float32), rng.random(6, np.float32)
    bias = rng.random(6, np.float32)
    built = model(
        [node("MatMulIntegerToFloat", "a b as bs - - bias", "y", "com.microsoft")],
        [("a", INT8, sizes[0]), ("b", INT8, sizes[1])], [("y", FLOAT, [None] * len(sizes[0]))],
        {"as": scales[0], "bs": scales[1], "bias": bias})
    (got,) = backend.run_model(built, [a, b])
    sums = (a.astype(np.int64) @ b).astype(np.float32)
    # A vector scales A's rows.
    of_rows = scales[0][:, None] if len(a_scale) == 1 else scales[0]
    np.testing.assert_array_equal(got, sums * of_rows * scales[1] + bias)


@pytest.mark.parametrize("b, sizes", [([8, 6], [6, 8]), ([1, 8, 6], [6, 8]),
                                      ([2, 8, 6], [2, 3, 8])])
def test_stacks_that_share_b_are_one_matrix(b: list[int], sizes: list[int]) -> None:
    """One product of many rows is faster than many products of few."""
    built = model([node("MatMulIntegerToFloat", "a b s s", "y", "com.microsoft")],
                  [("a", INT8, [2, 3, 8]), ("b", INT8, b)], [("y", FLOAT, [2, 3, 6])],
                  {"s": np.float32(1)})
    prepared = backend.prepare(built)
    assert isinstance(prepared, PreparedModel)
    plan = prepared._region.plan([np.ones(n, np.int8) for n in ([2, 3, 8], b)])
    ((compiled, _),) = plan._steps
    assert list(compiled.operator.desc.a_tensor.sizes) == sizes


def test_each_constant_is_prepared(rng: np.random.Generator) -> None:
    """Constants of equal sizes, by operators that repack them."""
    weights = rng.integers(-128, 127, (2, 128, 64), np.int8)
    built = model(
        [node("MatMulIntegerToFloat", "a b0 s s", "y0", "com.microsoft"),
         node("MatMulIntegerToFloat", "a b1 s s", "y1", "com.microsoft")],
        [("a", INT8, ["rows", 128])], [("y0", FLOAT, ["rows", 64]), ("y1", FLOAT, ["rows", 64])],
        {"b0": weights[0], "b1": weights[1], "s": np.float32(1)})
    prepared = backend.prepare(built)
    for rows in (1, 3, 200):
        a = rng.integers(-128, 127, (rows, 128), np.int8)
        for y, b in zip(prepared.run([a]), weights):
            np.testing.assert_array_equal(y, a.astype(np.int64) @ b)


@pytest.mark.parametrize("shape, reason", [
    ([2, 1, 1], "for each batch"), (None, "unknown shape"), ([1, 1, 1], None),
])
@pytest.mark.parametrize("op, names, at", [
    ("MatMulIntegerToFloat", "a b s s z z", (2, 3, 4, 5)),
    ("DynamicQuantizeMatMul", "x b s z", (2, 3)),
])
def test_scales_and_zero_points_for_each_batch_are_refused(
    op: str, names: str, at: tuple[int, ...], shape: list[int] | None, reason: str | None
) -> None:
    """Also if the sizes of A are known only in a run."""
    for i in at:
        given = names.split()
        given[i] = "many"
        kind = INT8 if names.split()[i] == "z" else FLOAT
        (row,) = _claims(
            node(op, " ".join(given), "y", "com.microsoft"),
            inputs=[("a", INT8, ["n", 3, 8]), ("x", FLOAT, ["n", 3, 8]), ("b", INT8, [2, 8, 6]),
                    ("many", kind, shape), ("s", FLOAT, []), ("z", INT8, [])],
            outputs=[("y", FLOAT, None)])
        assert isinstance(row, Mapping) if reason is None else reason in str(row)


def test_outputs_that_are_inputs_or_one_another(rng: np.random.Generator) -> None:
    built = model(
        [node("Identity", "x", "same"), node("Add", "x z", "t"), node("Identity", "t", "one"),
         node("Identity", "t", "two"), node("Identity", "k", "kept"),
         node("Transpose", "t", "transposed")],
        [("x", FLOAT, [2, 3]), ("z", FLOAT, [2, 3])],
        [*[(name, FLOAT, [2, 3]) for name in ("same", "one", "two", "x")], ("kept", FLOAT, [2]),
         ("alone", FLOAT, [1]), ("transposed", FLOAT, [3, 2])],
        {"k": np.float32([7, 8]), "alone": np.float32([9])})
    prepared = backend.prepare(built)
    results = []
    for _ in range(2):
        x, z = (rng.random((2, 3), np.float32) for _ in range(2))
        constants = np.float32([7, 8]), np.float32([9])
        results.append((prepared.run([x, z]), [x, x + z, x + z, x, *constants, (x + z).T]))
    for got, expected in results:  # results of the first run outlive the second
        for y, wanted in zip(got, expected, strict=True):
            np.testing.assert_array_equal(y, wanted)


@needs_provider
@pytest.mark.parametrize("nodes, y", [
    ([node("BitwiseNot", "k", "made"), node("Trilu", "x made", "y")], [4, 4]),
    ([node("BitwiseNot", "sizes", "made"), node("Reshape", "x made", "y")], [2, 8]),
    ([node("BitwiseNot", "sizes", "made"), node("Expand", "one made", "y")], [2, 8]),
], ids=["Trilu", "Reshape", "Expand"])
def test_values_that_only_the_device_knows(
    nodes: list[onnx.NodeProto], y: list[int], rng: np.random.Generator
) -> None:
    """They do not count as absent, so ONNX Runtime must split the model there."""
    built = model(nodes, [("x", FLOAT, [4, 4]), ("one", FLOAT, [1, 1]), ("k", INT64, []),
                          ("sizes", INT64, [2])], [("y", FLOAT, y)], opset=18)
    with pytest.raises(dml.UnsupportedError, match=r"BitwiseNot 'made' \(the host has to know"):
        backend.prepare(built)
    feed = {"x": rng.standard_normal((4, 4)).astype(np.float32), "one": np.float32([[3]]),
            "k": np.array(~1), "sizes": ~np.array([2, 8])}
    (got,) = backend.prepare(built, fallback=True).run(feed)
    np.testing.assert_array_equal(got, cpu(built).run(None, feed)[0])


def test_sizes_that_do_not_hold_the_elements() -> None:
    built = model([node("Reshape", "x sizes", "y")], [("x", FLOAT, ["n"])], [("y", FLOAT, [2, 2])],
                  {"sizes": np.array([2, 2])})
    prepared = backend.prepare(built)
    assert prepared.run([np.ones(4, np.float32)])[0].shape == (2, 2)
    with pytest.raises(dml.ValidationError, match=r"\[3\] cannot take the sizes \[2, 2\]"):
        prepared.run([np.ones(3, np.float32)])


def test_the_smallest_inputs_share_a_transfer_as_far_as_they_fit(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "WINDOW", 2 * ALIGNMENT)
    sizes = {"a": 999, "b": 64, "c": 63, "d": 65, "unused": 1}
    built = model([node("Neg", x, f"{x}.y") for x in "abcd"],
                  [(x, FLOAT, [n]) for x, n in sizes.items()],
                  [(f"{x}.y", FLOAT, [sizes[x]]) for x in "abcd"])
    values = [np.full(n, i, np.float32) for i, n in enumerate(sizes.values())]
    prepared = backend.prepare(built)
    assert isinstance(prepared, PreparedModel)
    plan = prepared._region.plan(values)
    assert [i for i, _ in plan._small] == [2, 1]
    assert [large.index for large in plan._ends.large] == [0, 3]
    for x, y in zip(values, prepared.run(values)):
        np.testing.assert_array_equal(y, -x)


def test_a_view_that_is_the_only_output(rng: np.random.Generator) -> None:
    built = model([node("Neg", "x", "t"), node("Transpose", "t", "y")],
                  [("x", FLOAT, [2, 3])], [("y", FLOAT, [3, 2])])
    x = rng.random((2, 3), np.float32)
    np.testing.assert_array_equal(backend.run_model(built, [x])[0], -x.T)


def test_whether_a_node_runs_is_found_out_without_uploads(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale and the zero point are constants."""
    monkeypatch.setattr(builder, "upload", None)
    x = OnnxValue("x", np.dtype("float32"), (0, 4))
    y, scale, zero = (OnnxValue(t, np.dtype(t)) for t in ("uint8", "float32", "uint8"))
    quantize = OnnxNode("DynamicQuantizeLinear", "", 11, (x,), (y, scale, zero))
    assert isinstance(mapping.match(quantize, device), Mapping)


def test_sizes_of_no_dimension_at_all() -> None:
    """A constant without elements."""
    built = model([node("Reshape", "x sizes", "y")], [("x", FLOAT, [1, 1])], [("y", FLOAT, [])],
                  {"sizes": np.zeros(0, np.int64)})
    (y,) = backend.run_model(built, [np.float32([[3]])])
    assert y.shape == () and y == 3


def test_sizes_that_do_not_fit_together_are_named_with_the_node() -> None:
    built = model([node("QLinearAdd", "a s - b s - s -", "y", "com.microsoft")],
                  [("a", UINT8, ["n"]), ("b", UINT8, ["m"])], [("y", UINT8, ["k"])],
                  {"s": np.float32(1)})
    with pytest.raises(dml.ValidationError,
                       match=r"QLinearAdd 'y' .* \[\[3\], \[\], None, \[4\], \[\], None, \[\], N"):
        backend.prepare(built).run([np.ones(3, np.uint8), np.ones(4, np.uint8)])


def test_an_input_of_a_type_that_is_not_read_is_named() -> None:
    built = model([node("Neg", "x", "y")],
                  [("x", FLOAT, [3]), ("words", onnx.TensorProto.STRING, [1])], [("y", FLOAT, [3])])
    with pytest.raises(dml.ValidationError, match="input 'words' has no data type"):
        backend.prepare(built)


def test_equal_results_are_arrays_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if one plain transfer downloads all of them."""
    monkeypatch.setattr(Windows, "_window", lambda *arguments: None)
    built = model([node("Neg", "x", "t"), node("Identity", "t", "one"),
                   node("Identity", "t", "two")],
                  [("x", FLOAT, [3])], [("one", FLOAT, [3]), ("two", FLOAT, [3])])
    one, two = backend.run_model(built, [np.ones(3, np.float32)])
    one[...] = 5
    assert (two == -1).all()


def test_expanded_to_nothing() -> None:
    """The input has elements, the output has none."""
    nodes = [node("Expand", "x sizes", "e"), node("Transpose", "e", "t"),
             node("DynamicQuantizeLinear", "e", "q scale zero")]
    built = model(nodes, [("x", FLOAT, [3, 1])],
                  [("e", FLOAT, [3, 0]), ("t", FLOAT, [0, 3]), ("q", UINT8, [3, 0]),
                   ("scale", FLOAT, []), ("zero", UINT8, [])], {"sizes": np.array([3, 0])})
    results = backend.run_model(built, [np.ones((3, 1), np.float32)])
    assert [y.shape for y in results] == [(3, 0), (0, 3), (3, 0), (), ()]
    assert results.scale == 1 and results.zero == 0


@pytest.mark.parametrize("nodes", [
    [node("Transpose", "x", "t", perm=[1, 0, 2, 4, 3]),
     node("DynamicQuantizeLinear", "t", "y scale zero")],
    [node("Transpose", "x", "t"), node("Trilu", "t", "y", upper=0)],
    [node("Flatten", "x", "t"), node("EyeLike", "t", "y", k=2**40)],
    [node("Flatten", "x", "t", axis=-2), node("EyeLike", "t", "y", k=-1)],
], ids=lambda nodes: nodes[1].op_type)
def test_of_views_and_of_many_dimensions(
    nodes: list[onnx.NodeProto], rng: np.random.Generator
) -> None:
    kind = UINT8 if nodes[1].op_type == "DynamicQuantizeLinear" else FLOAT
    built = model(nodes, [("x", FLOAT, [2, 3, 1, 4, 3])],
                  [("y", kind, [None] * (2 if nodes[0].op_type == "Flatten" else 5))])
    x = rng.standard_normal((2, 3, 1, 4, 3)).astype(np.float32)
    np.testing.assert_array_equal(backend.run_model(built, [x])[0],
                                  cpu(built).run(None, {"x": x})[0])


def test_what_a_step_reads_and_what_it_writes_lie_apart(rng: np.random.Generator) -> None:
    nodes = [node("Neg", "x", "a"), node("Transpose", "a", "transposed"),
             node("Neg", "transposed", "b"), node("Neg", "b", "y")]
    built = model(nodes, [("x", FLOAT, [64, 64])], [("y", FLOAT, [64, 64])])
    x = rng.standard_normal((64, 64)).astype(np.float32)
    np.testing.assert_array_equal(backend.run_model(built, [x])[0], -x.T)


def test_values_that_no_single_buffer_holds_together(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Inputs, inner values and outputs take several buffers. A value that does not fit is named."""
    device = dml.default_device()
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "a w", "b"), node("MatMul", "b w", "c"),
             node("Add", "a b", "d"), node("Add", "d c", "y"), node("MatMul", "c w", "z")]
    sizes = ["n", 32]
    built = model(nodes, [("x", FLOAT, sizes)], [("y", FLOAT, sizes), ("z", FLOAT, sizes)],
                  {"w": rng.standard_normal((32, 32)).astype(np.float32) / 8})
    x = rng.standard_normal((32, 32)).astype(np.float32)
    prepared = backend.prepare(built)
    wanted = cpu(built).run(None, {"x": x})
    monkeypatch.setattr(device.runtime.engine, "max_buffer", x.nbytes)
    for _ in range(2):
        for ours, theirs in zip(prepared.run([x]), wanted):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    places = [p for _, places in prepared._region.plan([x])._steps for p in places if p]
    assert max(p.allocation.nbytes for p in places) == x.nbytes
    with pytest.raises(dml.OutOfMemoryError, match=r"input 'x': expected a tensor to fit a buffer"):
        prepared.run([np.ones((33, 32), np.float32)])
