"""What a layer becomes is found out once, and is for the next layer what it would be anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", "1.24", reason="the provider needs onnxruntime >= 1.24")
pytest.importorskip("onnx", reason="the models are built with onnx")
pytest.importorskip("cffi", reason="the provider needs cffi")

from onnx import helper, load_from_string, shape_inference

import kompute_dml as dml
import random_models
from kompute_dml.bench import decoders, growing
from kompute_dml.graph.builder import Builder
from kompute_dml.graph.memory import Storage
from kompute_dml.graph.step import Step, plan_memory
from kompute_dml.layout import Ints
from kompute_dml.onnx import layers
from kompute_dml.onnx.fusion import fuse
from kompute_dml.onnx.model import read
from kompute_dml.onnx.placement import place
from kompute_dml.onnx.region import Region
from onnx_graphs import FLOAT, encoder, model, node
from plans import without_pipelines

Sizes = Mapping[str, Ints]
_SEEDS = 60


class _Left(Exception):
    """The device leaves nodes to the CPU."""


@pytest.fixture(autouse=True)
def _compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    without_pipelines(monkeypatch)


def _region(built: bytes, device: dml.Device, *, told: bool = True) -> Region:
    """A model's region. Only a run knows sizes that are not ``told``, so that nodes which differ in
    them look alike."""
    graph = read(shape_inference.infer_shapes(load_from_string(built)))
    nodes = fuse(graph)
    found = place(nodes, device)
    for value in () if told else {v for n in nodes for v in (*n.inputs, *n.outputs) if v}:
        value.shape = None
    if found.reasons:
        raise _Left(next(iter(found.reasons.values())))
    return Region(device, nodes, graph.inputs, graph.outputs)


def _steps(region: Region, sizes: Sizes, values: Mapping[str, np.ndarray]) -> list[Step]:
    builder = Builder(region.device, region._prepared)
    known = {i: values[v.name] for i, v in enumerate(region.inputs) if v.name in values}
    inputs, outputs = region._emit(builder, [sizes[v.name] for v in region.inputs], known)
    steps = builder.lower(inputs, outputs)
    visible = {a.storage for a in (*inputs, *outputs)}
    plan_memory(steps, [s for s in builder.storages
                        if s.first >= 0 and not s.constant and s not in visible])
    return steps


def _words(region: Region, steps: list[Step]) -> list[Any]:
    """All that a plan's steps are: shaders, constants, grids, words, and where their tensors lie.
    Memory is numbered. Constants count by their bytes: layers share what a plan uploads."""
    numbers: dict[Storage, int] = {}
    contents: dict[Storage, bytes] = {}
    region._prepared.record(region.device)

    def content(root: Storage) -> bytes:
        if root not in contents:
            slot = root.slot()
            contents[root] = region.device.read(
                slot.allocation, slot.byte_offset, root.nbytes).tobytes()
        return contents[root]

    def where(storage: Storage | None) -> Any:
        if storage is None:
            return None
        root = storage.root
        if root.constant:
            return storage.begin, storage.nbytes, content(root)
        return (numbers.setdefault(root, len(numbers)), storage.begin, storage.nbytes, root.nbytes,
                root.offset, root.first, root.last)

    return [(step.compiled.operator.desc, step.compiled.plan, [*map(where, step.storages)])
            for step in steps]


def _anew(region: Region, sizes: Sizes, values: Mapping[str, np.ndarray]) -> list[Any]:
    runs = region._runs
    region._runs = [type(run)(run.nodes, None, run.reads) for run in runs]
    try:
        return _words(region, _steps(region, sizes, values))
    finally:
        region._runs = runs


def _built(region: Region, sizes: Sizes, values: Mapping[str, np.ndarray] | None = None) -> int:
    """How many nodes are built for a plan, which is as it would be anew."""
    counted, add = [], region._add

    def adding(builder: Builder, node: Any, arrays: Any) -> None:
        counted.append(node)
        add(builder, node, arrays)

    region._add = adding  # type: ignore[method-assign]
    try:
        words = _words(region, _steps(region, sizes, values or {}))
    finally:
        region._add = add  # type: ignore[method-assign]
    assert words == _anew(region, sizes, values or {})
    return len(counted)


def _shapes(feed: Mapping[str, np.ndarray]) -> dict[str, Ints]:
    return {name: x.shape for name, x in feed.items()}


def _pictures(rng: np.random.Generator, blocks: int = 4) -> bytes:
    """Blocks of a net of convolutions."""
    constants, nodes, x = {}, [], "x"
    for n in range(blocks):
        y = x
        for part in "ab":
            constants[f"{n}.{part}.w"] = rng.standard_normal((16, 16, 3, 3), np.float32) / 12
            constants[f"{n}.{part}.b"] = rng.standard_normal(16, np.float32)
            for name in ("scale", "shift", "mean", "var"):
                constants[f"{n}.{part}.{name}"] = rng.random(16, np.float32) + 0.5
            nodes += [
                node("Conv", f"{y} {n}.{part}.w {n}.{part}.b", f"{n}.{part}.conv", pads=[1] * 4),
                node("BatchNormalization", f"{n}.{part}.conv " + " ".join(
                    f"{n}.{part}.{name}" for name in ("scale", "shift", "mean", "var")),
                    f"{n}.{part}.normal"),
                node("Relu", f"{n}.{part}.normal", f"{n}.{part}")]
            y = f"{n}.{part}"
        nodes += [node("Add", f"{x} {y}", f"{n}.sum"), node("Sigmoid", f"{n}.sum", f"{n}.gate"),
                  node("Mul", f"{n}.sum {n}.gate", f"{n}.y")]
        x = f"{n}.y"
    return model(nodes, [("x", FLOAT, [1, 16, "h", "w"])], [(x, FLOAT, None)], constants)


_DECODER = decoders.Shape("growing", 16, 64, 4, 2, 16, 128, 64, 32)


def test_a_decoder_is_built_in_one_layer_and_a_bit(
    device: dml.Device, rng: np.random.Generator
) -> None:
    region = _region(growing.decoder(_DECODER, rng), device)
    for n in rng.integers(0, 300, 3).tolist():
        x = growing.step(_DECODER, 16 + n, rng)
        values = {region.inputs[i].name: x[region.inputs[i].name] for i in region.host_inputs}
        assert _built(region, _shapes(x), values) < len(region.nodes) / 5


@pytest.mark.parametrize("quantized", [False, True])
def test_an_encoder_is_built_in_two_layers(
    device: dml.Device, rng: np.random.Generator, quantized: bool
) -> None:
    region = _region(encoder(rng, layers=5, quantized=quantized), device)
    for tokens in (1, *rng.integers(2, 300, 3).tolist()):
        count = _built(region, {"x": (int(rng.integers(1, 3)), tokens, 64)})
        assert count <= len(region.nodes) * 3 / 5


def test_a_net_of_convolutions_is_built_in_two_blocks(
    device: dml.Device, rng: np.random.Generator
) -> None:
    region = _region(_pictures(rng), device)
    for height, width in rng.integers(1, 60, (4, 2)).tolist():
        count = _built(region, {"x": (1, 16, height, width)})
        assert count <= len(region.nodes) / 2


_LAYERS = 4


def _chain(rng: np.random.Generator, differs: str = "") -> bytes:
    """Layers alike, but for what the third one ``differs`` in."""
    constants: dict[str, np.ndarray] = {"flat": np.int64([0, -1]), "more": rng.random(
        (4, 6), np.float32)}
    nodes, x = [], "x"
    given = [("x", FLOAT, ["n", 4, 6])]
    for n in range(_LAYERS):
        other = differs if n == 2 else ""
        constants[f"{n}.sizes"] = np.int64([0, 6, 4] if other == "values" else [0, 4, 6])
        constants[f"{n}.w"] = rng.standard_normal((6, 6)).astype(np.float32)
        b = f"{n}.a" if other == "twice" else "more"
        if other == "input":
            b = "given"
            given.append(("given", FLOAT, [4, 6]))
        order = [0, 2, 1] if other == "values" else [0, 1, 2]
        alpha = {"attribute": 0.5, "sign": -0.0}.get(other, 0.0)
        nodes += [
            node("MatMul", f"{x} {n}.w", f"{n}.a"), node("Add", f"{n}.a {b}", f"{n}.b"),
            helper.make_node("LeakyRelu", [f"{n}.b"], [f"{n}.c"], name=f"{n}.c", alpha=alpha),
            node("Reshape", f"{n}.c flat", f"{n}.d"), node("Tanh", f"{n}.d", f"{n}.e"),
            node("Reshape", f"{n}.e {n}.sizes", f"{n}.f"),
            node("Transpose", f"{n}.f", f"{n}.g", perm=order),
            node("Sigmoid", f"{n}.g", f"{n}.h"),
            node("Identity", f"{n}.h", f"{n}.i"), node("Softmax", f"{n}.i", f"{n}.j", axis=-1)]
        x = f"{n}.j"
    return model(nodes, given, [(x, FLOAT, None)], constants)


@pytest.mark.parametrize("differs", ["", "attribute", "sign", "values", "twice", "input"])
def test_a_layer_that_differs_is_built_as_it_is(
    device: dml.Device, rng: np.random.Generator, differs: str
) -> None:
    region = _region(_chain(rng, differs), device, told=False)
    sizes = {"x": (int(rng.integers(1, 40)), 4, 6), "given": (4, 6)}
    count = _built(region, sizes)
    assert count < len(region.nodes) / (1 if differs else _LAYERS / 2)


def test_layers_of_other_values_are_built_apart(
    device: dml.Device, rng: np.random.Generator
) -> None:
    """Layers alike, whose constants have sizes in another order for every second one."""
    constants: dict[str, np.ndarray] = {}
    nodes, x = [], "x"
    for n in range(6):
        constants[f"{n}.sizes"] = np.int64([0, 2, 12] if n % 2 else [0, 12, 2])
        constants[f"{n}.many"] = np.int64([1, 1, n // 2 + 1])
        nodes += [
            node("Relu", x, f"{n}.a"), node("Reshape", f"{n}.a {n}.sizes", f"{n}.b"),
            node("Softmax", f"{n}.b", f"{n}.c", axis=-1), node("Exp", f"{n}.c", f"{n}.d"),
            node("ReduceSum", f"{n}.d", f"{n}.e"), node("Mul", f"{n}.b {n}.e", f"{n}.f"),
            node("Tile", f"{n}.e {n}.many", f"{n}.g"),
            node("ReduceMax", f"{n}.g", f"{n}.h"), node("Add", f"{n}.f {n}.h", f"{n}.i")]
        x = f"{n}.i"
    region = _region(model(nodes, [("x", FLOAT, [3, 4, 6])], [(x, FLOAT, None)], constants),
                     device, told=False)
    assert _built(region, {"x": (3, 4, 6)}) == len(region.nodes)


@pytest.mark.parametrize("first", ["x", "other0"])
def test_layers_that_read_one_value_twice_are_built_apart(device: dml.Device, first: str) -> None:
    """Each layer reads x and another value. Only for the first layer that may be x."""
    nodes = [node("Identity", first if n == 0 else f"other{n}", f"{n}.other") for n in range(4)]
    for n in range(4):
        nodes += [node("Mul", f"x {n}.other", f"{n}.0"), *[
            node("Sin", f"{n}.{i}", f"{n}.{i + 1}") for i in range(8)]]
    given = [(name, FLOAT, [5, 7]) for name in ("x", *[f"other{n}" for n in range(4)])]
    ends = [(f"{n}.8", FLOAT, None) for n in range(4)]
    region = _region(model(nodes, given, ends), device, told=False)
    assert _built(region, {v.name: (5, 7) for v in region.inputs}) == 4 + (
        2 * 9 if first == "x" else 9)


@pytest.mark.parametrize("last", ["sizes", "strides"])
def test_layers_of_other_sizes_and_strides_are_built_apart(device: dml.Device, last: str) -> None:
    nodes, x = [], "x"
    for n in range(4):
        nodes += [node("Exp", x, f"{n}.0"), *[
            node("Sin", f"{n}.{i}", f"{n}.{i + 1}") for i in range(8)],
            node("Concat", f"{n}.8 {n}.8", f"{n}.9", axis=0) if last == "sizes"
            else node("Transpose", f"{n}.8", f"{n}.9", perm=[1, 0])]
        x = f"{n}.9"
    region = _region(model(nodes, [("x", FLOAT, [5, 5])], [(x, FLOAT, None)]), device, told=False)
    assert _built(region, {"x": (5, 5)}) == (40 if last == "sizes" else 20)


def test_a_layer_hands_on_values_that_the_host_knows(device: dml.Device) -> None:
    """Each layer reads the sizes that the one before has found."""
    nodes, x, sizes = [node("Shape", "x", "sizes")], "x", "sizes"
    for n in range(5):
        nodes += [node("Shape", x, f"{n}.sizes"), node("Reshape", f"{x} flat", f"{n}.0"), *[
            node("Sin", f"{n}.{i}", f"{n}.{i + 1}") for i in range(7)],
            node("Reshape", f"{n}.7 {sizes}", f"{n}.y")]
        x, sizes = f"{n}.y", f"{n}.sizes"
    built = model(nodes, [("x", FLOAT, ["h", "w"])], [(x, FLOAT, None)], {"flat": np.int64([-1])})
    region = _region(built, device, told=False)
    assert _built(region, {"x": (4, 6)}) <= len(region.nodes) / 2


def test_an_error_names_the_node_of_its_layer(device: dml.Device, rng: np.random.Generator) -> None:
    region = _region(_chain(rng), device)
    steps = _steps(region, {"x": (2, 4, 6)}, {})
    builder = Builder(device, region._prepared)
    region._emit(builder, [(2, 4, 6)], {})
    assert steps and {n.label.partition("'")[2][0] for n in builder.nodes} == {*"0123"}
    assert "MatMul '3.a'" in {n.label for n in builder.nodes}


def _repeated(built: bytes, times: int) -> bytes:
    """A model's nodes several times, each time of inputs and constants of their own."""
    source = load_from_string(built)
    target = type(source)()
    target.CopyFrom(source)
    for part in ("node", "input", "output", "initializer"):
        target.graph.ClearField(part)
    for n in range(times):
        for x in source.graph.node:
            copy = target.graph.node.add()
            copy.CopyFrom(x)
            copy.name = f"{x.name or x.output[0]}.{n}"
            copy.input[:] = [v and f"{v}.{n}" for v in x.input]
            copy.output[:] = [v and f"{v}.{n}" for v in x.output]
        for part in ("input", "output", "initializer"):
            for x in getattr(source.graph, part):
                copy = getattr(target.graph, part).add()
                copy.CopyFrom(x)
                copy.name = f"{x.name}.{n}"
    return bytes(target.SerializeToString())


@pytest.mark.parametrize("kind", ["nodes", "graphs"])
def test_random_models_that_repeat(
    device: dml.Device, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "_LEAST", 1)
    counts = []
    for seed in range(_SEEDS):
        built, feed, text = random_models.MODELS[kind](seed)
        if all(not x.size for x in feed.values()):
            continue
        values = {f"{name}.{n}": x for n in range(3) for name, x in feed.items()}
        try:
            region = _region(_repeated(built, 3), device)
            given = {v.name: values[v.name] for i, v in enumerate(region.inputs)
                     if i in region.host_inputs}
            counts.append(_built(region, _shapes(values), given) / len(region.nodes))
        except (dml.DmlError, _Left):
            continue
        except AssertionError:
            raise AssertionError(f"{kind} {seed}: {text}") from None
    assert len(counts) > _SEEDS / 2, "the device has most"
    assert np.mean(counts) < 0.6, "most are built once"


def test_layers_are_sought_in_many_nodes_of_any_order(rng: np.random.Generator) -> None:
    for kinds in (rng.integers(0, 2, 20_000).tolist(), [0] * 3000, [*range(3000)],
                  [*range(9), *[*range(20, 92)] * 40, 7, 8, *[*range(100, 120)] * 3]):
        parts = layers._parts(kinds)
        assert [n for first, end in parts for n in range(first, end)] == [*range(len(kinds))]
    assert parts == [(0, 9), *[(9 + 72 * n, 81 + 72 * n) for n in range(40)], (2889, 2891),
                     *[(2891 + 20 * n, 2911 + 20 * n) for n in range(3)]]
