"""Joins and copies in a row that move whole rows are one GATHER."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ...desc import TensorDesc
from ...dtypes import DataType
from ...layout import extent, packed_strides, product
from ...sizes import any_open
from ..array import described
from ..memory import Storage
from ..node import COPIES, LITTLE, Node, Nodes, changed, class_of, has_scale_bias, output_of
from ..rewrite import rewrite

_VECTOR = 16
"""A row is whole vectors of so many bytes."""


@rewrite("moved_rows",
         "joins and copies in a row that move rows of one tensor are one GATHER. Its indices are "
         "computed once", 165)
def moved_rows(g: Nodes) -> None:
    if not g.numbers:
        return
    for last in g:
        if _source(last) is None or any(
                _source(user) is not None and _maker(g, user) is last for user, _ in g.users(last)):
            continue
        chain = [last]
        while (node := _maker(g, chain[0])) is not None and _source(node) is not None:
            chain.insert(0, node)
        if len(chain) > 1 and (row := _row(chain)):
            _gather(g, chain, row)


def _source(node: Node) -> Storage | None:
    """The only tensor whose elements it moves. None for other operators."""
    if node.name != "JOIN" and (node.name not in COPIES or has_scale_bias(node)):
        return None
    roots = {storage.root for _, storage in node.slots("input")}
    types = {node.tensor(slot).data_type for slot in node.storages}
    source = roots.pop() if len(roots) == len(types) == 1 else None
    return None if source is None or source.constant else source


def _maker(g: Nodes, node: Node) -> Node | None:
    """What makes all that it moves, if nothing else reads that."""
    source = _source(node)
    assert source is not None
    makers = {maker for maker, _ in g.writers(source)}
    readers = {reader for reader, _ in g.readers(source)}
    return makers.pop() if len(makers) == 1 and readers == {node} and g.is_whole(source) else None


def _tensors(chain: list[Node]) -> Iterator[tuple[TensorDesc, Storage]]:
    for node in chain:
        for slot, storage in node.storages.items():
            yield node.tensor(slot), storage


def _row(chain: list[Node]) -> int:
    """The elements of the longest rows that all of them move as a whole; 0 if they are no vectors,
    or where what is written has gaps or rows of another dimension."""
    row, size = 0, output_of(chain[0]).data_type.itemsize
    for t, storage in _tensors(chain):
        if any_open((*t.sizes, *t.strides)):
            return 0
        moving = [(n, s) for n, s in zip(t.sizes, t.strides) if n > 1]
        inner = product([n for n, s in moving if s == 1])
        row = math.gcd(row, inner, *[s for _, s in moving if s != 1], storage.begin // size)
    if any(_along(node.tensor(slot)) != _along(output_of(node))
           for node in chain for slot in node.storages):
        return 0
    y = output_of(chain[-1])
    dense = extent(y.sizes, y.strides) == product(y.sizes)
    ends = chain[-1].storages["output_tensor"]
    little = DataType.UINT32.itemsize * max(
        -(-s.root.nbytes // (row * size)) for _, s in _tensors(chain)) <= LITTLE if row else False
    return row if row * size % _VECTOR == 0 and dense and ends.begin == 0 and little else 0


def _along(t: TensorDesc) -> list[int]:
    """The dimensions whose neighbours are neighbours in memory."""
    return [i for i, (n, s) in enumerate(zip(t.sizes, t.strides)) if n > 1 and s == 1]


def _gather(g: Nodes, chain: list[Node], row: int) -> None:
    """Move the numbers of rows once, as the chain moves rows."""
    source, last, kind = _source(chain[0]), chain[-1], DataType.UINT32
    assert source is not None
    first, y = dict(chain[0].slots("input")), output_of(last)
    size = y.data_type.itemsize
    most = max(s.begin // size + extent(t.sizes, t.strides)
               for slot, s in first.items() for t in (chain[0].tensor(slot),))
    rows, count = -(-most // row), product(y.sizes) // row

    def line(t: TensorDesc) -> TensorDesc:
        """Numbers of rows in the place of rows."""
        sizes = tuple(n // row if s == 1 and n > 1 else n for n, s in zip(t.sizes, t.strides))
        return TensorDesc(kind, sizes, tuple(
            s // row if s > 1 else s for s in t.strides))

    numbers = TensorDesc(kind, (rows,), (1,))
    at = {source: g.make(numbers.total_tensor_size_in_bytes)}
    once = [Node(class_of("FILL_VALUE_SEQUENCE")(
        output_tensor=numbers, value_data_type=kind, value_start=0, value_delta=1),
        {"output_tensor": at[source]}, last.label)]
    for node in chain:
        storages: dict[str, Storage | None] = {}
        for slot, s in node.slots("input"):
            whole, begin = at[s.root], s.begin // size // row * kind.itemsize
            storages[slot] = whole.part(begin) if begin else whole
        own = line(output_of(node))
        made = g.make(own.total_tensor_size_in_bytes)
        at[node.storages["output_tensor"].root] = storages["output_tensor"] = made
        fields = {"input_tensors": tuple(map(line, node.desc.input_tensors))} if (
            node.name == "JOIN") else {"input_tensor": line(node.tensor("input_tensor"))}
        once.append(changed(node, storages, **fields, output_tensor=own))
    for node in reversed(once):
        g.insert(node)
    aligned = max((t.guaranteed_base_offset_alignment for slot, s in first.items() if not s.begin
                   for t in (chain[0].tensor(slot),)), default=0)
    desc = class_of("GATHER")(
        input_tensor=described(y.data_type, (rows, row), packed_strides((rows, row)), aligned),
        indices_tensor=TensorDesc(kind, (1, count), (count, 1)),
        output_tensor=described(y.data_type, (count, row), packed_strides((count, row)),
                                y.guaranteed_base_offset_alignment), axis=0, index_dimensions=1)
    g.replace(chain, Node(desc, {
        "input_tensor": source, "indices_tensor": at[last.storages["output_tensor"].root],
        "output_tensor": last.storages["output_tensor"]}, last.label))
