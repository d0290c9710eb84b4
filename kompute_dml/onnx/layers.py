"""Layers: stretches of nodes that a model repeats. What a layer's nodes become for arrays of some
sizes is what those of the next one become for arrays alike, so it is found out once for a plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..graph.array import Array
from ..graph.builder import Builder
from ..graph.memory import Storage
from ..graph.node import Node
from .graph import OnnxNode, OnnxValue
from .placement import as_key
from .row import Mapping as Row
from .shapes import HOST_BYTES

Arrays = dict[OnnxValue, Array]
Add = Callable[[Builder, OnnxNode, Arrays], None]
"""What adds a node's operators, and its outputs to the arrays."""
_LEAST = 8
"""The fewest nodes of a layer."""
_DISTANCES = 8
"""The most distances between nodes alike that are tried as a layer's length."""


@dataclass(eq=False)
class Stretch:
    """Nodes that follow one another."""

    nodes: Sequence[OnnxNode]
    kind: int | None
    """Equal for layers that compute the same of what they read. None where no other is alike."""
    reads: Sequence[OnnxValue]
    """Values of other nodes, constants and inputs, by their first readers."""


def split(
    nodes: Sequence[OnnxNode], rows: Mapping[OnnxNode, Row], host: Collection[OnnxNode]
) -> list[Stretch]:
    """The nodes in runs, in their order. ``rows`` build nodes, and those in ``host`` may be
    evaluated there."""
    numbers: dict[Hashable, int] = {}
    kinds = [numbers.setdefault(_kind(node, rows, node in host), len(numbers)) for node in nodes]
    runs: list[Stretch] = []
    for first, end in _parts(kinds):
        reads: dict[OnnxValue, int] = {}
        makers: dict[OnnxValue, tuple[int, int]] = {}
        wiring: list[Hashable] = []
        for i, node in enumerate(nodes[first:end]):
            wiring.append((kinds[first + i], *[
                None if v is None else makers.get(v) or reads.setdefault(v, len(reads))
                for v in node.inputs]))
            makers.update({v: (i, at) for at, v in enumerate(node.outputs) if v is not None})
        kind = numbers.setdefault(tuple(wiring), len(numbers))
        runs.append(Stretch(nodes[first:end], kind, tuple(reads)))
    many = Counter(run.kind for run in runs)
    for run in runs:
        if many[run.kind] == 1:
            run.kind = None
    return runs


def _kind(node: OnnxNode, rows: Mapping[OnnxNode, Row], on_host: bool) -> Hashable:
    """Equal for nodes that rows treat alike, but for the arrays that they read. Those of FLOAT64
    look at nodes before them."""
    values = [*node.inputs, None, *node.outputs]
    if any(v is not None and (v.dtype is None or v.dtype == np.float64) for v in values):
        return id(node)
    return (node.op, node.domain, node.since, id(rows.get(node)), on_host,
            tuple(v and (v.dtype.str if v.dtype else "", v.shape, v.constant is None)
                  for v in values),
            tuple((name, as_key(value)) for name, value in node.attributes.items()))


def _parts(kinds: Sequence[int]) -> list[tuple[int, int]]:
    """The ranges of layers, and of what lies between them, in order."""
    parts, left = [], [(0, len(kinds))]
    while left:
        first, end = left.pop()
        best = _longest(kinds[first:end])
        if best is not None:
            at, length, count = best
            begin, after = first + at, first + at + count * length
            parts += [(n, n + length) for n in range(begin, after, length)]
            left += [(first, begin), (after, end)]
        elif first < end:
            parts.append((first, end))
    return sorted(parts)


def _longest(kinds: Sequence[int]) -> tuple[int, int, int] | None:
    """Where most layers follow one another: the first node, the nodes of a layer, and how many
    there are."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for i, kind in enumerate(kinds):
        if kind in last:
            distances[i - last[kind]] += 1
        last[kind] = i
    best, most = None, 0
    for length, _ in distances.most_common(_DISTANCES):
        alike = 0
        for i in range(length, len(kinds)):
            alike = alike + 1 if kinds[i] == kinds[i - length] else 0
            if alike > most and alike >= length >= _LEAST:
                most, best = alike, (i + 1 - alike - length, length, alike // length + 1)
    return best


class _Watched(Array):
    """An array that notes whether its values were asked for."""

    watch: tuple[set[int], int] | None = None
    """Where that is noted, and as which number."""

    @property
    def host(self) -> np.ndarray | None:
        if self.watch is not None:
            self.watch[0].add(self.watch[1])
        return self._host

    @host.setter
    def host(self, values: np.ndarray | None) -> None:
        self._host = values


_Place = int
"""The number of a storage: those of the arrays that a layer reads, then those that it makes, then
parts of both."""


class _LayerView(NamedTuple):
    """An output of a layer that is no array that it reads."""

    dtype: np.dtype[Any]
    shape: Sequence[int]
    strides: Sequence[int]
    place: _Place | None
    host: np.ndarray | None


class _Layer(NamedTuple):
    """What a run became."""

    values: dict[int, Hashable]
    """The values that it depends on, by the number of the array; None where the host has none."""
    storages: list[tuple[int, bool] | Storage]
    """The bytes of each storage, and whether it is a line of channels; or a constant."""
    parts: list[tuple[_Place, int, int]]
    """Of which storage, from which byte on, and of how many."""
    nodes: list[tuple[Node, list[tuple[str, _Place]], int]]
    """Operators, the places of their storages, and the nodes that they are of."""
    outputs: list[list[_LayerView | int | None]]
    """Of each node: an array, the number of one that it reads, or None where it is absent."""
    uploaded: dict[int, _LayerView]
    """Arrays that came to the device, by their numbers."""

    def fits(self, inputs: Sequence[Array]) -> bool:
        """Whether the values are those that it depends on."""
        return all(_raw(inputs[i].host) == raw for i, raw in self.values.items())

    def again(
        self, builder: Builder, run: Stretch, inputs: Sequence[Array], arrays: Arrays
    ) -> None:
        """Add the operators of a run alike."""
        places: list[Any] = [x.storage for x in inputs]
        places += [x if isinstance(x, Storage) else builder.storage_of(*x) for x in self.storages]
        for place, begin, nbytes in self.parts:
            places.append(places[place].part(begin, nbytes))
        labels = [label(node) for node in run.nodes]
        builder.nodes += [node.over({slot: places[at] for slot, at in slots}, labels[of])
                          for node, slots, of in self.nodes]

        def array(x: _LayerView) -> Array:
            return Array(x.dtype, x.shape, x.strides,  # type: ignore[arg-type]
                         None if x.place is None else places[x.place], x.host)

        for i, uploaded in self.uploaded.items():
            arrays[run.reads[i]] = array(uploaded)
        for node, outputs in zip(run.nodes, self.outputs):
            for value, x in zip(node.outputs, outputs):
                if value is not None and x is not None:
                    arrays[value] = inputs[x] if isinstance(x, int) else array(x)


class Layers:
    """Adds the operators of runs to one plan."""

    def __init__(self, builder: Builder, add: Add) -> None:
        self._builder, self._add = builder, add
        self._known: dict[Hashable, list[_Layer]] = {}

    def add(self, run: Stretch, arrays: Arrays) -> None:
        """Add the operators of a run, and its outputs to ``arrays``."""
        inputs = [arrays[v] for v in run.reads]
        alike = None if run.kind is None else self._alike(inputs)
        if alike is None:
            for node in run.nodes:
                self._add(self._builder, node, arrays)
            return
        known = self._known.setdefault((run.kind, alike), [])
        layer = next((layer for layer in known if layer.fits(inputs)), None)
        if layer is not None:
            layer.again(self._builder, run, inputs, arrays)
        elif (layer := self._first(run, inputs, arrays)) is not None:
            known.append(layer)

    def _alike(self, inputs: Sequence[Array]) -> Hashable | None:
        """What a row may ask of arrays, but for their values. None if one is of another kind."""
        parts: list[Hashable] = []
        numbers: dict[Storage, int] = {}
        for x in inputs:
            if type(x) is not Array:
                return None
            s = x.storage
            parts.append((x.dtype.str, x.shape, x.strides, None if s is None else (
                numbers.setdefault(s, len(numbers)), numbers.setdefault(s.root, len(numbers)),
                s.begin, s.nbytes, s.root.nbytes, s.constant, self._builder.is_line(s))))
        return tuple(parts)

    def _first(self, run: Stretch, inputs: Sequence[Array], arrays: Arrays) -> _Layer | None:
        """Add the operators of a run. Returns what they are, unless they depend on more than the
        arrays."""
        builder, asked = self._builder, set[int]()
        watched = [_Watched(x.dtype, x.shape, x.strides, x.storage, x.host) for x in inputs]
        for i, x in enumerate(watched):
            x.watch = asked, i
        local: Arrays = dict(zip(run.reads, watched))
        before = len(builder.storages), len(builder.nodes), builder.expectations
        ends = []
        for node in run.nodes:
            self._add(builder, node, local)
            ends.append(len(builder.nodes))
        numbers = {id(x): i for i, x in enumerate(watched)}
        results = {v: local[v] for node in run.nodes for v in node.outputs if v is not None}
        uploads = {i: local[v] for i, v in enumerate(run.reads) if local[v] is not watched[i]}
        strange = any(type(x) not in (Array, _Watched)
                      for x in (*results.values(), *uploads.values()))
        for v, y in results.items():
            arrays[v] = inputs[numbers[id(y)]] if id(y) in numbers else _plain(y)
        for i, y in uploads.items():
            arrays[run.reads[i]] = _plain(y)
        many = any((raw := inputs[i].host) is not None and raw.nbytes > HOST_BYTES for i in asked)
        if strange or many or builder.expectations != before[2]:
            return None
        places = _StorageNumbers(inputs, builder.storages[before[0]:])
        nodes, of = [], 0
        try:
            for n, operator in enumerate(builder.nodes[before[1]:], before[1]):
                while n >= ends[of]:
                    of += 1
                nodes.append((operator, [(slot, places.of(s)) for slot, s
                                         in operator.storages.items()], of))
            outputs: list[list[_LayerView | int | None]] = [[
                None if v is None else numbers[id(results[v])] if id(results[v]) in numbers
                else places.view(arrays[v]) for v in node.outputs] for node in run.nodes]
            uploaded = {i: places.view(arrays[run.reads[i]]) for i in uploads}
        except LookupError:
            return None
        values = {i: _raw(inputs[i].host) for i in asked}
        return _Layer(values, [s if s.constant else (s.nbytes, builder.is_line(s))
                               for s in places.made], places.parts, nodes, outputs, uploaded)


class _StorageNumbers:
    """The numbers of a layer's storages."""

    def __init__(self, inputs: Sequence[Array], made: Sequence[Storage]) -> None:
        self.made, self.parts = made, list[tuple[_Place, int, int]]()
        self._numbers: dict[Storage, int] = {}
        for i, s in enumerate([*(x.storage for x in inputs), *made]):
            if s is not None:
                self._numbers.setdefault(s, i)
        self._end = len(inputs) + len(made)

    def of(self, storage: Storage) -> _Place:
        """The number of a storage. Raises LookupError if the layer neither reads nor makes it."""
        known = self._numbers.get(storage)
        if known is None:
            whole, begin = storage.cut
            self.parts.append((self.of(whole), begin, storage.nbytes))
            known = self._numbers[storage] = self._end + len(self.parts) - 1
        return known

    def view(self, x: Array) -> _LayerView:
        return _LayerView(x.dtype, x.shape, x.strides, None if x.storage is None
                     else self.of(x.storage), x.host)


def label(node: OnnxNode) -> str:
    """The node's name in errors."""
    return f"{node.label} {node.name!r}"


def _plain(x: Array) -> Array:
    if type(x) is _Watched:
        return Array(x.dtype, x.shape, x.strides, x.storage, x.host)
    return x


def _raw(x: np.ndarray | None) -> Hashable:
    if x is not None and x.dtype == object:  # its bytes are no values
        return tuple(x.reshape(-1).tolist())
    return None if x is None else x.tobytes()
