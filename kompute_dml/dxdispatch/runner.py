"""Executes a model: buffers, operators and initialization first, then the commands in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..bench.timing import ONCE, Loop, Timings, measure, report
from ..errors import DmlError, UnsupportedError, ValidationError
from ..files import replaced
from .model import (
    Binding,
    Bindings,
    Dispatch,
    Dispatchable,
    Model,
    Print,
    WriteFile,
)
from .operator import Operator
from .resource import Resource


def operator_desc(operator: Operator) -> Any:
    """The descriptor of the package for ``operator``; UnsupportedError where it is missing."""
    from ..operators.base import definitions

    definition = definitions().get(operator.name)
    if definition is None:
        raise UnsupportedError(
            f"{operator.name} is not implemented by this package (see 'kompute-dml ops')"
        )

    def nested(value: Any) -> Any:
        if isinstance(value, Operator):
            return operator_desc(value)
        if type(value) is tuple:
            return tuple(map(nested, value))
        return value

    return definition.desc_class(**{name: nested(v) for name, v in operator.fields.items()})


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Put ``what`` in front of the package's errors, keeping their kind."""
    try:
        yield
    except DmlError as error:
        raise type(error)(f"{what}: {error}") from error


class Runner:
    """A model on a device. Creating it uploads the resources and initializes the dispatchables.

    ``write`` takes each line of output. Files are written relative to ``output_folder``.
    """

    def __init__(
        self,
        model: Model,
        device: Any,
        *,
        loop: Loop = ONCE,
        verbosity: int = 0,
        write: Callable[[str], Any] = print,
        output_folder: Path = Path(),
    ) -> None:
        self.model = model
        self.device = device
        self.loop = loop
        self.verbosity = verbosity
        self._write = write
        self._output_folder = output_folder
        self._refuse_unsupported()
        descs = {}
        for name, dispatchable in model.dispatchables.items():
            assert dispatchable.operator is not None  # or it was refused
            with _naming(f"dispatchable {name!r}"):
                descs[name] = operator_desc(dispatchable.operator)
        self.buffers = {n: self._upload(r) for n, r in model.resources.items()}
        self.executables: dict[str, _Executable] = {}
        for name, dispatchable in model.dispatchables.items():
            with _naming(f"dispatchable {name!r}"):
                start = time.perf_counter()
                self.executables[name] = _Executable(self, dispatchable, descs[name])
                if verbosity >= 1:
                    write(f"Initialize '{name}': {(time.perf_counter() - start) * 1e3:.4f} ms")

    def run(self) -> None:
        """Execute the commands."""
        for command in self.model.commands:
            match command:
                case Dispatch():
                    timings = self.dispatch(command)
                    for line in report(command.dispatchable, timings, self.verbosity):
                        self._write(line)
                case Print():
                    self._print(command)
                case WriteFile():
                    self._write_file(command)

    def dispatch(self, command: Dispatch) -> Timings:
        """Execute one dispatch command, as often as the loop says."""
        executable = self.executables[command.dispatchable]
        with _naming(f"dispatch of {command.dispatchable!r}"):
            return measure(
                self.device, executable.record, self.loop,
                bind=lambda: executable.bind(command.bindings),
            )

    def contents(self, name: str) -> np.ndarray:
        """What a resource holds now: from its start on, as many values as it had at first.

        That is what DxDispatch prints, wherever the initial values or a binding begin.
        """
        values = self.model.resources[name].values
        return np.frombuffer(self.buffers[name].read(0, values.nbytes).tobytes(), values.dtype)

    def binding(self, source: Binding) -> Any:
        """The range of a buffer that ``source`` stands for."""
        from .. import BufferBinding

        resource, buffer = self.model.resources[source.resource], self.buffers[source.resource]
        item = source.element_size or (resource.data_type.itemsize if resource.data_type else 1)
        offset = source.element_offset * item
        size = _round_up(resource.size) - offset
        if source.element_count is not None:
            wanted = _round_up(source.element_count * item)
            if wanted > size:
                raise ValidationError(
                    f"resource {resource.name!r}: expected {source.element_count} elements of "
                    f"{item} bytes at offset {offset} to lie in its {_round_up(resource.size)} "
                    f"bytes, but they end at {offset + wanted}"
                )
            size = wanted
        if size <= 0:
            raise ValidationError(
                f"resource {resource.name!r}: expected an elementOffset inside its "
                f"{_round_up(resource.size)} bytes, but got {offset} bytes"
            )
        return BufferBinding(buffer, offset, size)

    def _refuse_unsupported(self) -> None:
        for dispatchable in self.model.dispatchables.values():
            if dispatchable.unsupported:
                raise UnsupportedError(
                    f"dispatchable {dispatchable.name!r} {dispatchable.unsupported}"
                )
        for resource in self.model.resources.values():
            if resource.unsupported:
                raise UnsupportedError(f"resource {resource.name!r} {resource.unsupported}")

    def _upload(self, resource: Resource) -> Any:
        with _naming(f"resource {resource.name!r}"):
            # The device first: it refuses sizes that NumPy cannot even count.
            buffer = self.device.create_buffer(_round_up(resource.size))
            contents = np.zeros(buffer.size_in_bytes, np.uint8)
            values = resource.values.view(np.uint8)
            contents[resource.offset : resource.offset + values.size] = values
            buffer.write(contents)
            return buffer

    def _print(self, command: Print) -> None:
        values = self.contents(command.resource)
        if not command.verbose:
            self._write(f"Resource '{command.resource}': {', '.join(map(_text, values))}")
            return
        self._write(f"Resource '{command.resource}':")
        digits, width = 2 * values.itemsize, len(str(values.size - 1))
        for i, (value, bits) in enumerate(zip(values, values.view(f"u{values.itemsize}"))):
            self._write(f"[{i:{width}}] {_text(value)} (0x{bits:0{digits}X})")

    def _write_file(self, command: WriteFile) -> None:
        resource = self.model.resources[command.resource]
        path = self._output_folder / command.path
        suffix = path.suffix.lower()
        if suffix in (".png", ".jpg", ".jpeg"):
            raise UnsupportedError(
                f"writeFile of {command.resource!r}: images are not encoded; write .npy instead"
            )
        data = self.buffers[command.resource].read(0, resource.size).tobytes()
        array = _shaped(data, resource, command) if suffix == ".npy" else None
        try:
            # By its path NumPy would add .npy to a name in capitals.
            with replaced(path) as made, made.open("wb") as file:
                if array is None:
                    file.write(data)
                else:
                    np.save(file, array)
        except OSError as error:
            raise DmlError(f"cannot write {path}: {error.strerror or error}") from None
        except ValueError as error:  # a path with a NUL
            raise DmlError(f"cannot write {str(path)!r}: {error}") from None
        self._write(f"Resource '{command.resource}' written to '{path}'")


class _Executable:
    """A compiled and initialized operator with its temporary and persistent resources."""

    def __init__(self, runner: Runner, dispatchable: Dispatchable, desc: Any) -> None:
        self._runner = runner
        self._device = device = runner.device
        assert dispatchable.operator is not None
        self._operator = dispatchable.operator
        self._as_graph = dispatchable.as_graph
        operator = device.create_operator(desc)
        flags = dispatchable.flags
        self._compiled = (device.compile_graph(_graph_of(operator), flags) if self._as_graph
                          else device.compile_operator(operator, flags))
        properties = self._compiled.binding_properties
        self._temporary = self._scratch(properties.temporary_resource_size)
        self._persistent = self._scratch(properties.persistent_resource_size)
        self._table: Any = None

        initializer = device.create_operator_initializer([self._compiled])
        table = device.create_binding_table(initializer)
        table.bind_inputs([self._ranges("input", dispatchable.bindings)])
        if self._persistent is not None:
            table.bind_outputs([self._persistent])
        scratch = self._scratch(initializer.binding_properties.temporary_resource_size)
        if scratch is not None:
            table.bind_temporary_resource(scratch)
        device.record_dispatch(initializer, table)
        device.synchronize()

    def bind(self, bindings: Bindings) -> None:
        self._table = table = self._device.create_binding_table(self._compiled)
        table.bind_inputs(self._ranges("input", bindings))
        table.bind_outputs(self._ranges("output", bindings))
        if self._temporary is not None:
            table.bind_temporary_resource(self._temporary)
        if self._persistent is not None:
            table.bind_persistent_resource(self._persistent)

    def record(self) -> None:
        self._device.record_dispatch(self._compiled, self._table)

    def _ranges(self, kind: str, bindings: Bindings) -> list[Any]:
        """One range per tensor of the structure, in order; None where nothing is bound.

        A graph has no inputs and outputs for tensors that are absent.
        """
        ranges: list[Any] = []
        for f in self._operator.spec.tensors:
            if f.kind != kind:
                continue
            described = self._operator.fields[f.snake]
            if described is None and self._as_graph:
                continue
            count = len(described) if isinstance(described, tuple) else 1
            sources = bindings.get(f.name)
            ranges += map(self._runner.binding, sources) if sources else [None] * count
        return ranges

    def _scratch(self, size: int) -> Any:
        from .. import BufferBinding

        return BufferBinding(self._device.create_buffer(size)) if size else None


def _graph_of(operator: Any) -> Any:
    """A graph of one operator; its inputs and outputs are the tensors that are not absent."""
    from .. import GraphDesc, InputGraphEdgeDesc, OperatorGraphNodeDesc, OutputGraphEdgeDesc
    from ..graph.step import tensors

    given, made = (
        [(i, t.path) for i, t in enumerate(side) if t.desc is not None]
        for side in tensors(operator)
    )
    return GraphDesc(
        len(given), len(made), [OperatorGraphNodeDesc(operator)],
        [InputGraphEdgeDesc(number, 0, slot, name) for number, (slot, name) in enumerate(given)],
        [OutputGraphEdgeDesc(0, slot, number, name) for number, (slot, name) in enumerate(made)],
    )


def _round_up(size: int) -> int:
    return (size + 3) & ~3


def _text(value: Any) -> str:
    return f"{value:g}" if np.issubdtype(type(value), np.floating) else str(value)


def _shaped(data: bytes, resource: Resource, command: WriteFile) -> np.ndarray:
    assert resource.data_type is not None  # or the model was refused
    whole = len(data) // resource.data_type.itemsize * resource.data_type.itemsize
    values = np.frombuffer(data[:whole], resource.data_type.dtype)
    if not command.dimensions:
        return values
    count = int(np.prod(command.dimensions, dtype=object))
    if count > values.size:
        raise ValidationError(
            f"writeFile of {command.resource!r}: expected dimensions to span at most "
            f"{values.size} elements, but {list(command.dimensions)} span {count}"
        )
    try:
        return values[:count].reshape(command.dimensions)
    except ValueError as error:  # more of them than NumPy's arrays may have
        raise ValidationError(f"writeFile of {command.resource!r}: {error}") from None
