"""ONNX's backend interface: whole models and single nodes on a Vulkan device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from .. import onnxruntime
from ..device import Device, default_device, shared_device
from ..errors import DmlError, UnsupportedError
from .fusion import fuse
from .graph import OnnxGraph
from .model import NUMPYS_BFLOAT16, check_inputs, load, read
from .placement import place
from .region import Region

_VULKAN = "VULKAN"


def _device(name: str) -> Device:
    """``VULKAN`` and ``CPU`` are the default device; ``VULKAN:1`` and ``VULKAN:name`` are the
    shared device of an adapter.

    ONNX's tests only use the device names CPU and CUDA. Here CPU means that inputs and outputs are
    in host memory.
    """
    kind, _, adapter = name.partition(":")
    if kind.upper() not in ("CPU", _VULKAN):
        raise UnsupportedError(f"expected a device VULKAN, VULKAN:<adapter> or CPU, but got {name}")
    if not adapter or kind.upper() == "CPU":
        return default_device()
    return shared_device(adapter)


class PreparedModel(BackendRep):
    """A model on a device, ready to run."""

    def __init__(self, graph: OnnxGraph, device: Device) -> None:
        nodes = fuse(graph, device.runtime.engine.max_buffer)
        if reasons := place(nodes, device, outputs=graph.outputs).reasons:
            raise UnsupportedError(
                "these nodes cannot run on DirectML's operators: " + "; ".join(
                    f"{n.label}{f' {n.name!r}' if n.name else ''} ({why})"
                    for n, why in reasons.items()
                )
            )
        self._graph = graph
        self._region = Region(device, nodes, graph.inputs, graph.outputs)

    def run(self, inputs: Any, **options: Any) -> tuple[np.ndarray, ...]:
        """The outputs for inputs in order, inputs by name, or a single array. BFLOAT16 is that of
        the package ml_dtypes."""
        outputs = self._graph.outputs
        results = self._region.run(check_inputs(self._graph, inputs))
        return _named([value.name for value in outputs], [
            y.view(NUMPYS_BFLOAT16) if value.is_bfloat16 else y
            for value, y in zip(outputs, results)])


class _Session(BackendRep):
    """A model on ONNX Runtime, which runs the nodes that this package cannot run."""

    def __init__(self, model: onnx.ModelProto, device: Device) -> None:
        self._graph = read(model)
        self._session = onnxruntime.session(
            model.SerializeToString(), adapter=device.adapter.index, claim="all"
        )

    def run(self, inputs: Any, **options: Any) -> tuple[np.ndarray, ...]:
        arrays = check_inputs(self._graph, inputs)
        feed = {value.name: array for value, array in zip(self._graph.inputs, arrays)}
        names = [value.name for value in self._graph.outputs]
        return _named(names, self._session.run(names, feed))


def _named(names: Sequence[str], arrays: Sequence[np.ndarray]) -> Any:
    return namedtupledict("Outputs", names)(*arrays)


class KomputeDmlBackend(Backend):
    """Runs ONNX models on DirectML's operators."""

    @classmethod
    def is_compatible(cls, model: Any, device: str = _VULKAN, **options: Any) -> bool:
        """Whether every node of the model can run."""
        try:
            cls.prepare(model, device, **options)
        except DmlError:
            return False
        return True

    @classmethod
    def prepare(
        cls, model: Any, device: str = _VULKAN, *, fallback: bool = False, **options: Any
    ) -> BackendRep:
        """A model (ModelProto, bytes or path) ready to run.

        Raises UnsupportedError with the names of all nodes that cannot run. With ``fallback`` these
        run on ONNX Runtime's CPU provider instead. Raises ValidationError for an invalid model.
        """
        proto, target = load(model), _device(device)
        graph = read(proto)
        try:
            return PreparedModel(graph, target)
        except UnsupportedError:
            if not fallback or any(v.is_bfloat16 for v in (*graph.inputs, *graph.outputs)):
                raise  # ONNX Runtime takes no BFLOAT16 of NumPy
        return _Session(proto, target)

    @classmethod
    def run_model(
        cls, model: Any, inputs: Any, device: str = _VULKAN, **options: Any
    ) -> tuple[np.ndarray, ...]:
        """The outputs of a model."""
        return cls.prepare(model, device, **options).run(inputs)

    @classmethod
    def run_node(
        cls, node: onnx.NodeProto, inputs: Any, device: str = _VULKAN,
        outputs_info: Any = None, *, opset_version: int | None = None, **options: Any,
    ) -> tuple[np.ndarray, ...]:
        """The outputs of a single node. The default operator set is the newest."""
        names = [name for name in node.input if name]
        arrays = [inputs[n] for n in names] if isinstance(inputs, dict) else list(inputs)
        typed = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype), np.shape(x)
            )
            for name, x in zip(names, arrays)
        ]
        outputs = [
            onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name
        ]
        graph = onnx.helper.make_graph([node], "node", typed, outputs)
        version = opset_version or onnx.defs.onnx_opset_version()
        domains = {"": version, **({node.domain: 1} if node.domain else {})}
        imports = [onnx.helper.make_opsetid(d, v) for d, v in domains.items()]
        model = onnx.helper.make_model(graph, opset_imports=imports)
        return PreparedModel(read(model), _device(device)).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is a device of this name."""
        try:
            _device(device)
        except DmlError:
            return False
        return True
