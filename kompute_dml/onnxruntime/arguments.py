"""Tensors that ONNX Runtime gives: to a region, for its results, and to copy. One call of C for
each."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..graph.recorded import RecordedPlan
from ..layout import Ints, product
from .capi import CData, api, array_type, ffi, library

_ROOM = 8
"""Words of an input that are expected: its type, its rank and its sizes."""


class Bound(NamedTuple):
    """A tensor that ONNX Runtime hands to a region."""

    address: int
    shape: Ints
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return product(self.shape) * self.dtype.itemsize


class NodeInputs(NamedTuple):
    """The inputs of a call."""

    addresses: list[int]
    words: bytes
    """Type, rank and sizes of each, as 64-bit integers."""

    def bounds(self) -> list[Bound]:
        """The inputs. BFLOAT16 is UINT16. Raises UnsupportedError for types that NumPy lacks."""
        words, at, inputs = np.frombuffer(self.words, np.int64).tolist(), 0, list[Bound]()
        for address in self.addresses:
            kind, rank = words[at : at + 2]
            shape = tuple(words[at + 2 : at + 2 + rank])
            inputs.append(Bound(address, shape, array_type(kind)))
            at += 2 + rank
        return inputs


def outputs_of(plan: RecordedPlan, addresses: Sequence[int]) -> list[Bound]:
    """The results of a plan at these addresses."""
    return [Bound(*y) for y in zip(addresses, plan.shapes, plan.dtypes)]


class _Copied(threading.local):
    """What C writes of tensors that are copied, in one thread."""

    def __init__(self) -> None:
        self.room = 0
        self.addresses = self.nbytes = ffi.NULL


_copied = _Copied()


def copied(values: CData, count: int) -> list[tuple[int, int]]:
    """The addresses and bytes of tensors."""
    if not count:
        return []
    memory = _copied
    if count > memory.room:
        memory.room = count
        memory.addresses = ffi.new("uintptr_t[]", count)
        memory.nbytes = ffi.new("size_t[]", count)
    ort = api()
    if status := library().kompute_dml_tensors(
            ort.calls, values, count, memory.addresses, memory.nbytes):
        ort.check(status)
    return [*zip(ffi.unpack(memory.addresses, count), ffi.unpack(memory.nbytes, count))]


class _Memory(threading.local):
    """What C writes to, in one thread."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs = ffi.new("uintptr_t[]", inputs)
        self.outputs = ffi.new("uintptr_t[]", outputs)
        self.used = ffi.new("size_t *")
        self.room = _ROOM * inputs
        self.words = ffi.new("int64_t[]", self.room)


class NodeArguments:
    """Fetches the inputs and outputs of a region with so many."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self._library = library()
        self._counts = inputs, outputs
        self._memory = _Memory(inputs, outputs)
        self._sizes = weakref.WeakKeyDictionary[RecordedPlan, Any]()
        """By plan: rank and sizes of each result."""
        self._calls = api().calls

    def inputs(self, context: CData) -> NodeInputs:
        """The inputs of a node that is being computed."""
        memory, count = self._memory, self._counts[0]
        while True:
            if status := self._library.kompute_dml_inputs(
                    self._calls, context, count, memory.inputs, memory.words, memory.room,
                    memory.used):
                api().check(status)
            used = memory.used[0]
            if used <= memory.room:
                return NodeInputs(ffi.unpack(memory.inputs, count) if count else [],
                             ffi.buffer(memory.words, 8 * used)[:])
            memory.room = used
            memory.words = ffi.new("int64_t[]", used)

    def outputs(self, context: CData, plan: RecordedPlan) -> list[int]:
        """The addresses of the results of a plan."""
        sizes = self._sizes.get(plan)
        if sizes is None:
            sizes = self._sizes[plan] = ffi.new(
                "int64_t[]", [n for shape in plan.shapes for n in (len(shape), *shape)])
        memory, count = self._memory, self._counts[1]
        if status := self._library.kompute_dml_outputs(
                self._calls, context, count, memory.outputs, sizes):
            api().check(status)
        return ffi.unpack(memory.outputs, count) if count else []
