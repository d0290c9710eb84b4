"""Executes a model: buffers, operators and initialization first, then the commands in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..bench.timing import ONCE, Loop, Timings, measure, report
from ..bindings import BufferBinding
from ..device import Device
from ..errors import DmlError, UnsupportedError, ValidationError
from ..files import replaced
from . import image
from .executable import Executable, executable, operator_desc
from .model import Binding, DispatchCommand, Model, Print, WriteFile
from .resource import Resource


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
        device: Device,
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
        self.buffers = {n: self._upload(r) for n, r in model.resources.items() if not r.deferred}
        self._made: dict[str, np.ndarray] = {}
        self.executables: dict[str, Executable] = {}
        for name, dispatchable in model.dispatchables.items():
            with _naming(f"dispatchable {name!r}"):
                start = time.perf_counter()
                self.executables[name] = executable(self, dispatchable)
                if verbosity >= 1:
                    write(f"Initialize '{name}': {(time.perf_counter() - start) * 1e3:.4f} ms")

    def run(self) -> None:
        """Execute the commands."""
        for command in self.model.commands:
            match command:
                case DispatchCommand():
                    timings = self.dispatch(command)
                    for line in report(command.dispatchable, timings, self.verbosity):
                        self._write(line)
                case Print():
                    self._print(command)
                case WriteFile():
                    self._write_file(command)

    def dispatch(self, command: DispatchCommand) -> Timings:
        """Execute one dispatch command, as often as the loop says."""
        target = self.executables[command.dispatchable]
        with _naming(f"dispatch of {command.dispatchable!r}"):
            timings = measure(
                target.clock, target.record, self.loop,
                bind=lambda: target.bind(command.bindings),
            )
            target.finish()
            return timings

    def contents(self, name: str) -> np.ndarray:
        """What a resource holds now: from its start on, as many values as it had at first.

        That is what DxDispatch prints, wherever the initial values or a binding begin.
        """
        if self.model.resources[name].deferred:
            if name not in self._made:
                raise ValidationError(f"resource {name!r} is deferred, and nothing filled it yet")
            return self._made[name].reshape(-1)
        values = self.model.resources[name].values
        return np.frombuffer(self.buffers[name].read(0, values.nbytes).tobytes(), values.dtype)

    def binding(self, source: Binding) -> Any:
        """The range of a buffer that ``source`` stands for."""
        resource = self.model.resources[source.resource]
        if resource.deferred:
            raise ValidationError(f"resource {resource.name!r} is deferred: only an output of an "
                                  "ONNX model can size it")
        buffer = self.buffers[source.resource]
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

    def bytes_of(self, source: Binding) -> np.ndarray:
        """What a resource holds, whole."""
        if source.resource in self._made:
            return np.frombuffer(self._made[source.resource].tobytes(), np.uint8)
        resource = self.model.resources[source.resource]
        return np.asarray(self.binding(source).buffer.read(0, resource.size)).view(np.uint8)

    def fill(self, source: Binding, values: np.ndarray) -> None:
        """Write ``values`` to the start of a resource; one that is deferred becomes as large."""
        resource = self.model.resources[source.resource]
        if resource.deferred:
            self._made[resource.name] = values
            return
        if values.nbytes > resource.size:
            raise ValidationError(f"resource {resource.name!r}: expected {values.nbytes} bytes for "
                                  f"{list(values.shape)}, but it has {resource.size}")
        data = self.buffers[resource.name].read(0, _round_up(resource.size)).copy().view(np.uint8)
        data[: values.nbytes] = np.frombuffer(values.tobytes(), np.uint8)
        self.buffers[resource.name].write(data)

    def _refuse_unsupported(self) -> None:
        for dispatchable in self.model.dispatchables.values():
            if dispatchable.unsupported:
                raise UnsupportedError(
                    f"dispatchable {dispatchable.name!r} {dispatchable.unsupported}"
                )
            if dispatchable.operator is not None:
                with _naming(f"dispatchable {dispatchable.name!r}"):
                    operator_desc(dispatchable.operator)

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
        data = (self.contents(command.resource) if resource.deferred
                else self.buffers[command.resource].read(0, resource.size)).tobytes()
        typed = suffix in (".npy", *image.SUFFIXES)
        array = _shaped(data, resource, command) if typed else None
        if array is not None and suffix in image.SUFFIXES:
            data, array = image.encode(array, suffix, f"writeFile of {command.resource!r}"), None
        try:
            # By its path NumPy would add .npy to a name in capitals.
            with replaced(path) as temporary, temporary.open("wb") as file:
                if array is None:
                    file.write(data)
                else:
                    np.save(file, array)
        except OSError as error:
            raise DmlError(f"cannot write {path}: {error.strerror or error}") from None
        except ValueError as error:  # a path with a NUL
            raise DmlError(f"cannot write {str(path)!r}: {error}") from None
        self._write(f"Resource '{command.resource}' written to '{path}'")


def _round_up(size: int) -> int:
    return (size + 3) & ~3


def _text(value: object) -> str:
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
