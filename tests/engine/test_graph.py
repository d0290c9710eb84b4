"""Graphs of operators, compiled into one dispatchable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kompute_dml as dml
from kompute_dml import ConstantDataGraphNodeDesc as Constant
from kompute_dml import InputGraphEdgeDesc as In
from kompute_dml import IntermediateGraphEdgeDesc as Link
from kompute_dml import OperatorGraphNodeDesc as Node
from kompute_dml import OutputGraphEdgeDesc as Out
from kompute_dml.graph.wiring import check
from switches import long_pipelines

OWNED = dml.TensorFlags.OWNED_BY_DML
I32 = "int32"


def _tensor(*sizes: int, data_type: str = I32, **more: Any) -> dml.TensorDesc:
    return dml.TensorDesc(dml.DataType.of(data_type), sizes, **more)


def _binary(device: dml.Device, name: str, a: dml.TensorDesc, b: dml.TensorDesc | None = None,
            output: dml.TensorDesc | None = None) -> Node:
    kind = getattr(dml, f"ElementWise{name}OperatorDesc")
    desc = kind(a_tensor=a, b_tensor=b or a, output_tensor=output or _tensor(*a.sizes))
    return Node(device.create_operator(desc), name.lower())


def _unary(device: dml.Device, name: str, x: dml.TensorDesc, y: dml.TensorDesc | None = None
           ) -> Node:
    desc = getattr(dml, f"{name}OperatorDesc")(input_tensor=x, output_tensor=y or x)
    return Node(device.create_operator(desc), name.lower())


def _buffer(device: dml.Device, data: bytes) -> dml.BufferBinding:
    buffer = device.create_buffer(-(-len(data) // 4) * 4)
    buffer.write(data)
    return dml.BufferBinding(buffer)


def _scratch(device: dml.Device, size: int) -> dml.BufferBinding | None:
    """Memory whose contents are not zeros."""
    return _buffer(device, b"\xcd" * size) if size else None


class Graph:
    """A compiled and initialized graph. ``owned`` are the arrays of owned inputs, by number."""

    def __init__(
        self, device: dml.Device, desc: dml.GraphDesc | dml.CompiledGraph,
        owned: dict[int, np.ndarray] | None = None,
    ) -> None:
        self.device = device
        compiled = desc if isinstance(desc, dml.CompiledGraph) else device.compile_graph(desc)
        self.compiled = compiled
        properties = compiled.binding_properties
        self.temporary = _scratch(device, properties.temporary_resource_size)
        self.persistent = _scratch(device, properties.persistent_resource_size)
        self.sizes = [need.size for need in compiled.needs]
        initializer = device.create_operator_initializer([compiled])
        table = device.create_binding_table(initializer)
        given = owned or {}
        table.bind_inputs([[_buffer(device, given[i].tobytes()) if i in given else None
                            for i in range(compiled.binding_counts[0])]])
        table.bind_outputs([self.persistent])
        size = initializer.binding_properties.temporary_resource_size
        table.bind_temporary_resource(_scratch(device, size))
        device.record_dispatch(initializer, table)

    def bind(self, *inputs: np.ndarray | None
             ) -> tuple[dml.BindingTable, list[dml.BufferBinding]]:
        table = self.device.create_binding_table(self.compiled)
        table.bind_inputs([None if x is None else _buffer(self.device, x.tobytes())
                           for x in inputs])
        count = self.compiled.binding_counts[1]
        outputs = [_buffer(self.device, b"\xcd" * n) for n in self.sizes[len(inputs):][:count]]
        table.bind_outputs(outputs)
        table.bind_temporary_resource(self.temporary)
        table.bind_persistent_resource(self.persistent)
        return table, outputs

    def run(self, *inputs: np.ndarray | None, dtype: Any = np.int32) -> list[np.ndarray]:
        table, outputs = self.bind(*inputs)
        self.device.record_dispatch(self.compiled, table)
        return [y.buffer.read().view(dtype) for y in outputs]


def _difference_of_squares(device: dml.Device, n: int = 64) -> dml.GraphDesc:
    """Output 0 is ``(a + b) * (a - b)``, output 1 ``a + b``. The product is the first node."""
    x = _tensor(n)
    return dml.GraphDesc(
        2, 2,
        [_binary(device, "Multiply", x), _binary(device, "Add", x), _binary(device, "Subtract", x)],
        [In(0, 1, 0), In(1, 1, 1), In(0, 2, 0), In(1, 2, 1)],
        [Out(0, 0, 0), Out(1, 0, 1)],
        [Link(1, 0, 0, 0), Link(2, 0, 0, 1)],
    )


def _whole(rng: np.random.Generator, *sizes: int) -> np.ndarray:
    return rng.integers(-99, 99, sizes).astype(np.int32)


# Values


def test_a_graph_computes_on_any_buffers(device: dml.Device, rng: np.random.Generator) -> None:
    graph = Graph(device, _difference_of_squares(device))
    assert graph.compiled.binding_properties == (4, 256, 0)
    for _ in range(2):
        a, b = _whole(rng, 64), _whole(rng, 64)
        product, total = graph.run(a, b)
        np.testing.assert_array_equal(product, a * a - b * b)
        np.testing.assert_array_equal(total, a + b)


def test_a_recorded_graph_is_replayed(device: dml.Device) -> None:
    graph = Graph(device, _difference_of_squares(device))
    first = np.full(64, 3, np.int32)
    table, outputs = graph.bind(first, first)
    with device.record() as recording:
        device.record_dispatch(graph.compiled, table)
    for y in outputs:
        y.buffer.write(np.zeros(64, np.int32))
    recording.replay()
    assert (outputs[1].buffer.read().view(np.int32) == 6).all()


def test_one_tensor_may_be_two_outputs(device: dml.Device, rng: np.random.Generator) -> None:
    desc = _difference_of_squares(device)
    desc = replace(desc, output_count=3, output_edges=[*desc.output_edges, Out(0, 0, 2)])
    a, b = _whole(rng, 64), _whole(rng, 64)
    product, _, again = Graph(device, desc).run(a, b)
    np.testing.assert_array_equal(product, a * a - b * b)
    np.testing.assert_array_equal(again, product)


def test_nodes_that_no_output_needs_are_left_out(
    device: dml.Device, rng: np.random.Generator
) -> None:
    """Here the difference, and the nodes that only it reads."""
    desc = _difference_of_squares(device)
    desc = replace(desc, input_count=4, output_count=1, output_edges=[Out(1, 0, 0)],
                   nodes=[*desc.nodes, Constant(bytes(256))],
                   input_edges=[*desc.input_edges[:2], In(2, 2, 0)],
                   intermediate_edges=[*desc.intermediate_edges, Link(3, 0, 2, 1)])
    graph = Graph(device, desc)
    assert len(graph.compiled.variants) == 1 and not graph.compiled.needs_initialization
    a, b = _whole(rng, 64), _whole(rng, 64)
    np.testing.assert_array_equal(graph.run(a, b, None, None)[0], a + b)


def test_an_edge_carries_bytes(device: dml.Device, rng: np.random.Generator) -> None:
    """The consumer's own description counts: here transposed and UINT32."""
    twice = _binary(device, "Add", _tensor(6, 8))
    transposed = _tensor(8, 6, data_type="uint32", strides=(1, 8))
    inverted = _unary(device, "ElementWiseBitNot", transposed, _tensor(8, 6, data_type="uint32"))
    desc = dml.GraphDesc(1, 1, [twice, inverted], [In(0, 0, 0), In(0, 0, 1)], [Out(1, 0, 0)],
                         [Link(0, 0, 1, 0)])
    x = _whole(rng, 6, 8)
    (y,) = Graph(device, desc).run(x)
    np.testing.assert_array_equal(y.reshape(8, 6), ~(2 * x).T)


def _product(device: dml.Device, k: int, n: int, flags: dml.TensorFlags) -> Node:
    """INT8 {5, k} by {k, n} with one scale each: inputs 0, 1, 3 and 4. Input 3 has the flags."""
    return Node(device.create_operator(dml.MatrixMultiplyIntegerToFloatOperatorDesc(
        a_tensor=_tensor(5, k, data_type="int8"), a_scale_tensor=_tensor(1, 1, data_type="float32"),
        b_tensor=_tensor(k, n, data_type="int8", flags=flags),
        b_scale_tensor=_tensor(1, 1, data_type="float32"),
        output_tensor=_tensor(5, n, data_type="float32"),
    )), "product")


@pytest.mark.parametrize("by", ["owned", "constant", "bound"])
def test_weights(by: str, device: dml.Device, rng: np.random.Generator) -> None:
    """Initialization keeps owned weights and constants: repacked for the product, unchanged for the
    second reader."""
    k, n = 64, 64
    weights = rng.integers(-9, 9, (k, n)).astype(np.int8)
    flags = OWNED if by == "owned" else dml.TensorFlags.NONE
    flat = _tensor(k * n, data_type="int8", flags=flags)
    nodes = [
        _product(device, k, n, flags),
        _unary(device, "ElementWiseAbs", flat, flat.replace(flags=dml.TensorFlags.NONE)),
        Constant(np.float32(0.5).tobytes(), "scale"), Constant(weights.tobytes(), "weights"),
    ]
    inputs, links = [In(0, 0, 0)], [Link(2, 0, 0, 1), Link(2, 0, 0, 4)]
    if by == "constant":
        links += [Link(3, 0, 0, 3), Link(3, 0, 1, 0)]
    else:
        inputs += [In(1, 0, 3), In(1, 1, 0)]
    desc = dml.GraphDesc(2, 2, nodes, inputs, [Out(0, 0, 0), Out(1, 0, 1)], links)
    graph = Graph(device, desc, {1: weights} if by == "owned" else None)
    if by != "bound":
        alone = device.compile_graph(replace(
            desc, output_count=1, output_edges=desc.output_edges[:1]))
        sizes = [g.binding_properties.persistent_resource_size for g in (alone, graph.compiled)]
        own_form = device.compile_operator(_product(device, k, n, OWNED).operator).plan.repacked
        assert sizes[0] >= weights.nbytes
        assert sizes[1] - sizes[0] == (weights.nbytes if own_form else 0)
    for _ in range(2):
        a = rng.integers(-9, 9, (5, k)).astype(np.int8)
        table, outputs = graph.bind(a, weights if by == "bound" else None)
        device.record_dispatch(graph.compiled, table)
        y, size = (y.buffer.read() for y in outputs)
        np.testing.assert_array_equal(
            y.view(np.float32).reshape(5, n), 0.25 * (a.astype(np.int32) @ weights))
        np.testing.assert_array_equal(size.view(np.int8), abs(weights).reshape(-1))


def test_constants_are_rounded_up_to_words_and_need_not_live_on(device: dml.Device) -> None:
    data = bytearray(b"\1\2\3")
    x = _tensor(3, data_type="uint8")
    desc = dml.GraphDesc(1, 1, [_binary(device, "BitXor", x, output=x), Constant(data)],  # type: ignore[arg-type]
                         [In(0, 0, 0)], [Out(0, 0, 0)], [Link(1, 0, 0, 1)])
    compiled = device.compile_graph(desc)
    data[:] = b"\0\0\0"
    assert compiled.binding_properties.persistent_resource_size == 4
    (y,) = Graph(device, compiled).run(np.uint8([1, 1, 1, 0]), dtype=np.uint8)
    assert y[:3].tolist() == [0, 3, 2]


@pytest.mark.parametrize("strides, nbytes", [((8, 1), 256), ((1, 8), 512)])
def test_values_that_are_never_alive_together_share_memory(
    strides: tuple[int, int], nbytes: int, device: dml.Device, rng: np.random.Generator
) -> None:
    """Two values of a chain, or one if each operator may write over its input."""
    count = 7
    x, y = _tensor(8, 8, strides=strides), _tensor(8, 8)
    chain = [_unary(device, "ElementWiseNegate", x, y) for _ in range(count)]
    desc = dml.GraphDesc(1, 1, chain, [In(0, 0, 0)], [Out(count - 1, 0, 0)],
                         [Link(i, 0, i + 1, 0) for i in range(count - 1)])
    graph = Graph(device, desc)
    assert graph.compiled.binding_properties.temporary_resource_size == nbytes
    values = _whole(rng, 8, 8)
    expected = -values if strides == (8, 1) else -values.T
    np.testing.assert_array_equal(graph.run(values)[0].reshape(8, 8), expected)


@pytest.mark.parametrize("before, after, count", [
    ((8, 1), (8, 1), 1), ((1, 8), (8, 1), 2), ((1, 8), (1, 8), 1),
])
def test_a_copy_into_the_same_layout_is_free(
    before: tuple[int, int], after: tuple[int, int], count: int, device: dml.Device,
    rng: np.random.Generator,
) -> None:
    """Except if the copy is an output of the graph."""
    nodes = [_unary(device, "ElementWiseIdentity", _tensor(8, 8, strides=before),
                    _tensor(8, 8, strides=after)),
             _binary(device, "Add", _tensor(8, 8))]
    inputs = [In(0, 0, 0), In(0, 1, 0)]
    desc = dml.GraphDesc(1, 1, nodes, inputs, [Out(1, 0, 0)], [Link(0, 0, 1, 1)])
    graph, x = Graph(device, desc), _whole(rng, 8, 8)
    assert len(graph.compiled.variants) == count
    copied = x if count == 1 else x.T
    np.testing.assert_array_equal(graph.run(x)[0].reshape(8, 8), x + copied)
    both = Graph(device, replace(desc, output_count=2, output_edges=[Out(1, 0, 0), Out(0, 0, 1)]))
    np.testing.assert_array_equal(both.run(x)[1].reshape(8, 8), copied)


@pytest.mark.parametrize("number", range(12))
def test_random_graphs(number: int, device: dml.Device, rng: np.random.Generator) -> None:
    """Exact operators on INT32 in random order, with some transposed inputs."""
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "Add": np.add, "Subtract": np.subtract, "Multiply": np.multiply, "Max": np.maximum,
        "Min": np.minimum,
    }
    x, transposed = _tensor(6, 6), _tensor(6, 6, strides=(1, 6))
    given = [_whole(rng, 6, 6) for _ in range(3)]
    count, constant = 15, _whole(rng, 6, 6)
    places = rng.permutation(count + 1)  # order of the nodes; the last one is the constant
    nodes: list[Any] = [None] * (count + 1)
    nodes[places[-1]] = Constant(constant.tobytes())
    known, inputs, links = [*given, constant], [], []
    for i in range(count):
        name = list(functions)[rng.integers(len(functions))]
        seen, ends = rng.integers(0, len(known), 2), rng.integers(0, 2, 2)
        descs = [transposed if end else x for end in ends]
        nodes[places[i]] = _binary(device, name, *descs, x)
        with np.errstate(over="ignore"):
            known.append(functions[name](*[
                known[s].T if end else known[s] for s, end in zip(seen, ends)]))
        for slot, s in enumerate(seen):
            if s < 3:
                inputs.append(In(int(s), int(places[i]), slot))
            else:
                maker = places[-1] if s == 3 else places[s - 4]
                links.append(Link(int(maker), 0, int(places[i]), slot))
    ends = [count - 1, int(rng.integers(count))]
    outputs = [Out(int(places[end]), 0, i) for i, end in enumerate(ends)]
    desc = dml.GraphDesc(3, 2, nodes, inputs, outputs, links)
    for y, end in zip(Graph(device, desc).run(*given), ends):
        np.testing.assert_array_equal(y.reshape(6, 6), known[end + 4])


def test_nodes_run_by_number_where_edges_leave_it_open(device: dml.Device) -> None:
    chain = [_binary(device, "Add", _tensor(4)) for _ in range(12)]
    desc = dml.GraphDesc(1, 11, chain, [In(0, i, s) for i in range(11) for s in (0, 1)]
                         + [In(0, 11, 0)], [Out(i, 0, i) for i in (0, *range(2, 11))]
                         + [Out(11, 0, 1)], [Link(9, 0, 11, 1)])
    assert list(check(device, desc).nodes) == [0, *range(2, 12)]


# Descriptions that break a rule


def _change(index: int, edge: Any, field: str = "input_edges"
            ) -> Callable[[dml.GraphDesc], dml.GraphDesc]:
    """The description with one edge replaced."""
    def change(desc: dml.GraphDesc) -> dml.GraphDesc:
        edges = list(getattr(desc, field))
        edges[index : index + 1] = [edge]
        return replace(desc, **{field: edges})  # type: ignore[arg-type]

    return change


def _node(desc: dml.GraphDesc, number: int, node: Any) -> dml.GraphDesc:
    nodes = list(desc.nodes)
    nodes[number : number + 1] = [node]
    return replace(desc, nodes=nodes)


_INNER, _OUTER = "intermediate_edges", "output_edges"


@pytest.mark.parametrize("change, message", [
    (lambda d: 5, "compile_graph: expected desc to be a GraphDesc, but got 5"),
    (lambda d: replace(d, input_count="a"), "InputCount to be an integer, but got 'a'"),
    (lambda d: replace(d, output_count=0), "OutputCount to be at least 1, but got 0"),
    (lambda d: replace(d, input_count=2**70), "InputCount to be at most 1048576, but got 118059"),
    (lambda d: replace(d, nodes=None), "expected Nodes to be a list, but got None"),
    (lambda d: replace(d, output_edges=5), "expected OutputEdges to be a list, but got 5"),
    (lambda d: _node(d, 1, None), r"Nodes\[1\] to be an OperatorGraphNodeDesc or"),
    (lambda d: _node(d, 1, Node(None)), r"Nodes\[1\].Operator to be an Operator, but got None"),
    (lambda d: _node(d, 3, Constant("text")), r"Nodes\[3\].Data to be bytes, but got 'text'"),
    (lambda d: _node(d, 3, Constant(b"")), r"Nodes\[3\].DataSize to be at least 1"),
    (_change(0, Out(0, 0, 0)), r"InputEdges\[0\] to be a InputGraphEdgeDesc, but got Output"),
    (_change(0, In(2, 1, 0)), r"InputEdges\[0\].GraphInputIndex to be below 2 .*inputs of the gr"),
    (_change(0, In(0, 3, 0)), r"InputEdges\[0\].ToNodeIndex to be below 3 .*nodes\), but got 3"),
    (_change(0, In(0, -1, 0)), r"InputEdges\[0\].ToNodeIndex to be below 3 .*but got -1"),
    (_change(0, In(0, 1, 2)), r"ToNodeInputIndex to be below 2 .*inputs of Nodes\[1\] \('add'\)"),
    (_change(0, In(0, 1, 1)), r"InputEdges\[1\].ToNodeInputIndex to be an input that no other ed.*"
                              r"1, which is Nodes\[1\] \('add'\).BTensor"),
    (_change(1, In(0, 2, 1)), "InputEdges.3..ToNodeInputIndex to be an input that no other"),
    (lambda d: replace(d, input_edges=d.input_edges[1:]),
     r"Nodes\[1\] \('add'\).ATensor to be the end of an edge, but got none"),
    (_change(0, Link(1, 1, 0, 0), _INNER), "FromNodeOutputIndex to be below 1 .*outputs of Nodes"),
    (_change(0, Link(0, 0, 0, 0), _INNER), r"lead to no node again, but got Nodes\[0\] \('multip"),
    (_change(0, Out(0, 0, 2), _OUTER), r"OutputEdges\[0\].GraphOutputIndex to be below 2"),
    (_change(0, Out(0, 0, 1), _OUTER), r"OutputEdges\[1\].GraphOutputIndex to be that of no other"),
    (lambda d: replace(d, output_edges=d.output_edges[1:]),
     "output 0 of the graph to be the end of an output edge, but got none"),
    (lambda d: _change(0, Out(3, 0, 0), _OUTER)(_node(d, 3, Constant(b"1234"))),
     r"FromNodeIndex to be an operator \(a copy of a constant takes an IDENTITY\)"),
    (lambda d: _change(0, In(0, 3, 0))(_node(d, 3, Constant(b"1234"))),
     r"ToNodeIndex to be an operator \(a constant has no inputs\), but got 3"),
    (lambda d: _change(0, Link(3, 0, 0, 0), _INNER)(_node(d, 3, Constant(b"1234", "k"))),
     r"Nodes\[0\] \('multiply'\).ATensor to have as many bytes \(TotalTensorSizeInBytes\) as "
     r"Nodes\[3\] \('k'\), but 256 and 4 were given"),
])
def test_rules_of_graphs(change: Any, message: str, device: dml.Device) -> None:
    desc = _difference_of_squares(device)
    with pytest.raises(dml.ValidationError, match=message):
        device.compile_graph(change(desc))


def test_a_circle_is_named(device: dml.Device) -> None:
    nodes = [_binary(device, "Add", _tensor(4)) for _ in range(2)]
    desc = dml.GraphDesc(1, 1, nodes, [In(0, 0, 0), In(0, 1, 0)], [Out(1, 0, 0)],
                         [Link(0, 0, 1, 1), Link(1, 0, 0, 1)])
    with pytest.raises(dml.ValidationError, match=r"lead to no node again.*'add'.*'add'.*'add'"):
        device.compile_graph(desc)


def test_slots_count_absent_tensors(device: dml.Device) -> None:
    nodes = [_product(device, 8, 8, dml.TensorFlags.NONE)]
    desc = dml.GraphDesc(1, 1, nodes, [In(0, 0, 2)], [Out(0, 0, 0)])
    with pytest.raises(dml.ValidationError, match=r"InputEdges\[0\].ToNodeInputIndex to be a "
                       r"tensor that the operator has, but got 2, the absent .*AZeroPointTensor"):
        device.compile_graph(desc)


def test_rules_of_owned_tensors(device: dml.Device) -> None:
    owned = _tensor(64, flags=OWNED)
    desc = _difference_of_squares(device)
    differ = _node(desc, 2, _binary(device, "Subtract", owned, _tensor(64)))
    with pytest.raises(dml.ValidationError, match=r"Nodes\[2\] \('subtract'\).ATensor.Flags to "
                       r"equal those of Nodes\[1\] \('add'\).ATensor, .*OWNED_BY_DML and NONE"):
        device.compile_graph(differ)
    inner = _node(desc, 0, _binary(device, "Multiply", owned, _tensor(64)))
    with pytest.raises(dml.ValidationError, match=r"'multiply'\).ATensor.Flags to be NONE"):
        device.compile_graph(inner)


def test_operators_of_another_device(device: dml.Device, own: dml.Device) -> None:
    with pytest.raises(dml.ValidationError, match=r"Nodes\[0\].Operator to be of <Device"):
        own.compile_graph(_difference_of_squares(device))


@pytest.mark.parametrize("level, message", [
    (dml.FeatureLevel.FL_2_0, "graphs need feature level 2_1"),
    (dml.FeatureLevel.FL_6_1, r"Nodes\[0\]: constant nodes need feature level 6_2"),
])
def test_feature_levels(level: dml.FeatureLevel, message: str, device: dml.Device) -> None:
    older = dml.Device(device.adapter, level)
    with pytest.raises(dml.UnsupportedError, match=message):
        older.compile_graph(dml.GraphDesc(0, 1, [Constant(b"1234")]))
    older.close()


# Bindings


@pytest.fixture
def owning(device: dml.Device) -> dml.CompiledGraph:
    """A graph with an input, an owned input, and an input that nothing reads."""
    nodes = [_binary(device, "Add", _tensor(64), _tensor(64, flags=OWNED))]
    return device.compile_graph(
        dml.GraphDesc(3, 1, nodes, [In(0, 0, 0, "x"), In(1, 0, 1)], [Out(0, 0, 0, "y")]))


def _bound(graph: dml.CompiledGraph, inputs: Sequence[Any], output: Any) -> dml.BindingTable:
    table = graph.device.create_binding_table(graph)
    table.bind_inputs(inputs)
    table.bind_outputs([output])
    table.bind_persistent_resource(_scratch(graph.device, 256))
    return table


def test_a_graph_is_initialized_once_and_before_it_runs(
    owning: dml.CompiledGraph, device: dml.Device
) -> None:
    table = _bound(owning, [_scratch(device, 256), None, None], _scratch(device, 256))
    with pytest.raises(dml.ValidationError, match="DML_GRAPH: expected the operator to be initial"):
        device.record_dispatch(owning, table)
    initializer = device.create_operator_initializer([owning])
    assert initializer.binding_properties == (4, 0, 0)
    table = device.create_binding_table(initializer)
    table.bind_outputs([_scratch(device, 256)])
    for given, message in (
        ([None, None, None], r"operators\[0\].input 1 to be bound \(256 bytes\), but got None"),
        ([_scratch(device, 256), _scratch(device, 256), None],
         r"input 0 \('x'\) to be None .*not OWNED_BY_DML"),
    ):
        table.bind_inputs([given])
        with pytest.raises(dml.ValidationError, match=message):
            device.record_dispatch(initializer, table)
    table.bind_inputs([[None, _scratch(device, 256), None]])
    device.record_dispatch(initializer, table)
    with pytest.raises(dml.ValidationError, match="initialized once, but got DML_GRAPH"):
        device.record_dispatch(initializer, table)


def test_rules_of_bindings(owning: dml.CompiledGraph, device: dml.Device) -> None:
    owning.initialized = True
    x, y = _scratch(device, 256), _scratch(device, 256)
    for inputs, output, message in (
        ([x, None], y, "number of input bindings to be 3"),
        ([None, None, None], y, r"input 0 \('x'\) to be bound \(256 bytes\)"),
        ([x, x, None], y, "input 1 to be None .*OWNED_BY_DML: it is bound to the initializer"),
        ([x, None, None], None, r"output 0 \('y'\) to be bound"),
        ([x, None, None], x, r"input 0 .*and output 0 .*not to overlap \(a graph does not run"),
        ([x, None, None], _scratch(device, 252), r"SizeInBytes of output 0 .*to be at least 256"),
    ):
        with pytest.raises(dml.ValidationError, match=message):
            device.record_dispatch(owning, _bound(owning, inputs, output))


# Fusion


def test_parts_are_written_where_they_are_joined(
    device: dml.Device, rng: np.random.Generator
) -> None:
    """The second part lies 68 bytes into the graph's output."""
    parts, whole = (_tensor(17), _tensor(3)), _tensor(20)
    join = dml.JoinOperatorDesc(input_tensors=parts, output_tensor=whole, axis=0)
    desc = dml.GraphDesc(
        2, 1, [_unary(device, "ElementWiseNegate", parts[0]),
               _unary(device, "ElementWiseAbs", parts[1]), Node(device.create_operator(join))],
        [In(0, 0, 0), In(1, 1, 0)], [Out(2, 0, 0)], [Link(0, 0, 2, 0), Link(1, 0, 2, 1)])
    graph = Graph(device, desc)
    assert len(graph.compiled.variants) == 2
    assert graph.compiled.memory.planned == 0
    a, b = _whole(rng, 17), _whole(rng, 3)
    np.testing.assert_array_equal(graph.run(a, b)[0], np.concatenate([-a, abs(b)]))


@long_pipelines
def test_a_graph_fuses_what_its_nodes_do_one_after_the_other(
    device: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = _tensor(8, 8, data_type="float32")
    gemm = dml.GemmOperatorDesc(a_tensor=x, b_tensor=x, output_tensor=x, trans_a=0, trans_b=0,
                                alpha=1.0, beta=0.0)
    desc = dml.GraphDesc(
        3, 1, [Node(device.create_operator(gemm)), _binary(device, "Add", x, x, x),
               _unary(device, "ActivationTanh", x)],
        [In(0, 0, 0), In(1, 0, 1), In(2, 1, 1)], [Out(2, 0, 0)],
        [Link(0, 0, 1, 0), Link(1, 0, 2, 0)])
    given = [rng.normal(0, 1, (8, 8)).astype(np.float32) for _ in range(3)]
    results = []
    for left, count in (("", 1), ("activation_fusion,epilogue", 2), ("all", 3)):
        monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", left)
        graph = Graph(device, desc)
        assert len(graph.compiled.variants) == count
        results += graph.run(*given, dtype=np.float32)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def _float(*sizes: int, **more: Any) -> dml.TensorDesc:
    return _tensor(*sizes, data_type="float32", **more)


def _counts(
    device: dml.Device, monkeypatch: pytest.MonkeyPatch, desc: dml.GraphDesc, passes: str,
    owned: dict[int, np.ndarray], *given: np.ndarray | None, always: str = "",
) -> tuple[list[int], list[np.ndarray]]:
    """Operators that run with and without some passes, and the first outputs."""
    counts, results = [], []
    for left in (always, f"{always},{passes}"):
        monkeypatch.setenv("KOMPUTE_DML_DISABLE_PASSES", left)
        graph = Graph(device, desc, owned)
        counts.append(len(graph.compiled.variants))
        results.append(graph.run(*given, dtype=np.float32)[0])
    return counts, results


def test_what_constants_make_is_made_at_the_initialization(
    device: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a constant node and of an owned input, in two steps of which a third reads the last."""
    x, owned = _float(64), _float(64, flags=OWNED)
    data = rng.normal(0, 1, (3, 64)).astype(np.float32)
    desc = dml.GraphDesc(
        2, 1, [_binary(device, "Multiply", owned, x, x), _unary(device, "ElementWiseExp", x),
               _binary(device, "Subtract", x, x, x), Constant(data[1].tobytes())],
        [In(0, 0, 0), In(1, 2, 0)], [Out(2, 0, 0)],
        [Link(3, 0, 0, 1), Link(0, 0, 1, 0), Link(1, 0, 2, 1)])
    counts, (got, plain) = _counts(
        device, monkeypatch, desc, "constant_folding", {0: data[0]}, None, data[2],
        always="elementwise_fusion")
    assert counts == [1, 3]
    np.testing.assert_array_equal(got, plain)
    np.testing.assert_allclose(got, data[2] - np.exp(data[0] * data[1]), rtol=1e-5, atol=1e-5)


@long_pipelines
def test_a_batch_normalization_goes_into_the_filter(
    device: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w, y, one = (_float(*sizes) for sizes in (
        (1, 3, 8, 8), (4, 3, 3, 3), (1, 4, 6, 6), (1, 4, 1, 1)))
    two = [1, 1]
    convolution = dml.ConvolutionOperatorDesc(
        input_tensor=x, filter_tensor=w.replace(flags=OWNED), output_tensor=y, mode=1,
        direction=0, strides=two, dilations=two, start_padding=[0, 0], end_padding=[0, 0],
        output_padding=[0, 0], group_count=1)
    wide = one.replace(sizes=y.sizes, strides=(0, 1, 0, 0), total_tensor_size_in_bytes=16)
    norm = dml.BatchNormalizationOperatorDesc(
        input_tensor=y, output_tensor=y, spatial=True, epsilon=1e-3,
        **{f"{name}_tensor": wide for name in ("mean", "variance", "scale", "bias")})
    numbers = rng.uniform(0.5, 2, (4, 4)).astype(np.float32)
    desc = dml.GraphDesc(
        2, 1, [Node(device.create_operator(convolution)), Node(device.create_operator(norm)),
               *(Constant(n.tobytes()) for n in numbers)],
        [In(0, 0, 0), In(1, 0, 1)], [Out(1, 0, 0)],
        [Link(0, 0, 1, 0), *(Link(2 + i, 0, 1, 1 + i) for i in range(4))])
    given, filters = (rng.normal(0, 1, t.sizes).astype(np.float32) for t in (x, w))
    counts, (got, plain) = _counts(
        device, monkeypatch, desc, "batch_norm_folding", {1: filters}, given, None)
    assert counts == [1, 2]
    size = np.abs(plain).max()
    np.testing.assert_allclose(got, plain, rtol=0, atol=2.0**-18 * size)
    assert np.ptp(plain) > 1


@pytest.mark.parametrize("squares", [False, True])
def test_products_of_one_matrix_are_joined(
    squares: bool, device: dml.Device, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``squares``: one operator reads a product twice."""
    a, b, c = _float(1, 1, 5, 16), _float(1, 1, 16, 8), _float(1, 1, 5, 8)
    gemm = dml.GemmOperatorDesc(a_tensor=a, b_tensor=b, output_tensor=c, trans_a=0, trans_b=0,
                                alpha=1.0, beta=0.0)
    values = rng.normal(0, 1, (2, 16, 8)).astype(np.float32)
    desc = dml.GraphDesc(
        1, 1, [Node(device.create_operator(gemm)), Node(device.create_operator(gemm)),
               *(Constant(v.tobytes()) for v in values),
               _binary(device, "Multiply", c, c, c),
               *[_binary(device, "Multiply", c, c, c)] * squares],
        [In(0, 0, 0), In(0, 1, 0)], [Out(4, 0, 0)],
        [Link(2, 0, 0, 1), Link(3, 0, 1, 1), Link(1, 0, 4, 1),
         *([Link(0, 0, 5, 0), Link(0, 0, 5, 1), Link(5, 0, 4, 0)] if squares
           else [Link(0, 0, 4, 0)])])
    given = rng.normal(0, 1, a.sizes).astype(np.float32)
    counts, (got, plain) = _counts(device, monkeypatch, desc, "horizontal_fusion", {}, given,
                                   always="elementwise_fusion,epilogue")
    assert counts == ([3, 4] if squares else [2, 3])
    np.testing.assert_array_equal(got, plain)
    left, right = (given[0, 0].astype(np.float64) @ v for v in values)
    left = left * left if squares else left
    np.testing.assert_allclose(got.reshape(5, 8), left * right, rtol=1e-4, atol=1e-4)
