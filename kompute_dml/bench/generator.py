"""Tokens of an ONNX decoder, one after the other, with caches that stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import onnxruntime as kompute
from .decoders import Shape

if TYPE_CHECKING:
    import onnxruntime

_NEVER_CAPTURED = "-1"


class GeneratorBinding(NamedTuple):
    """Inputs and outputs of so many tokens of each text."""

    binding: Any
    ids: Any
    lengths: Any
    logits: Any
    options: Any
    """Options of a run."""


class TokenGenerator:
    """A decoder of :mod:`.decoders` in an ONNX Runtime session. Past and present caches are the
    same memory."""

    def __init__(
        self, session: onnxruntime.InferenceSession, shape: Shape,
        memory: onnxruntime.OrtMemoryInfo | None = None
    ) -> None:
        """``memory`` is ONNX Runtime's description of the device's memory; None for the host's."""
        self.session, self.shape, self._memory = session, shape, memory
        self.caches: list[Any] = []
        self.capacity = 0

    def value(self, x: np.ndarray) -> Any:
        """A tensor with these elements where the session computes."""
        import onnxruntime

        if self._memory is None:
            return onnxruntime.OrtValue.ortvalue_from_numpy(x)
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(
            x.shape, x.dtype, memory_info=self._memory)
        value.update_inplace(np.ascontiguousarray(x))
        return value

    def begin(self, capacity: int, batches: int = 1, seed: int | None = None) -> None:
        """New caches with room for so many tokens of each text. With a ``seed`` they hold numbers,
        as if there had been tokens."""
        shape = self.shape
        sizes = (batches, shape.key_heads, capacity, shape.head)
        rng = None if seed is None else np.random.default_rng(seed)
        self.caches = []
        for _ in range(2 * shape.layers):
            x = np.zeros(sizes, np.float16)
            if rng is not None:
                x[:] = rng.standard_normal((*sizes[:2], 1, sizes[3])).astype(np.float16)
            self.caches.append(self.value(x))
        self.capacity = capacity

    def bind(self, count: int, *, graph: int | None = None, fixed: bool = False
             ) -> GeneratorBinding:
        """A binding for ``count`` tokens of each text. ``graph``: the number of the captured graph;
        None for none. ``fixed``: the total length is the capacity, always."""
        import onnxruntime

        batches = self.caches[0].shape()[0]
        bound = self.session.io_binding()
        ids = self.value(np.zeros((batches, count), np.int64))
        lengths = self.value(np.zeros(batches, np.int32))
        logits = self.value(np.zeros((batches, 1, self.shape.words), np.float16))
        bound.bind_ortvalue_input("input_ids", ids)
        bound.bind_ortvalue_input("seqlens_k", lengths)
        bound.bind_ortvalue_output("logits", logits)
        if fixed:
            total = self.value(np.array(self.capacity, np.int32))
            bound.bind_ortvalue_input("total_sequence_length", total)
        for i, cache in enumerate(self.caches):
            name = f"{i // 2}.{('key', 'value')[i % 2]}"
            bound.bind_ortvalue_input(f"past.{name}", cache)
            bound.bind_ortvalue_output(f"present.{name}", cache)
        options = onnxruntime.RunOptions()
        options.add_run_config_entry(
            "gpu_graph_id", _NEVER_CAPTURED if graph is None else str(graph))
        return GeneratorBinding(
            bound, ids, lengths, logits, None if fixed and graph is None else options)

    def step(self, bound: GeneratorBinding, ids: npt.ArrayLike, before: int | Sequence[int],
             total: int | None = None) -> np.ndarray:
        """The logits after tokens ``ids`` [batch, count], after ``before`` others of each text.
        ``total`` is the longest text's length, unless the binding's is fixed."""
        ids = np.asarray(ids, np.int64)
        bound.ids.update_inplace(ids)
        lengths = np.broadcast_to(np.asarray(before), ids.shape[:1]) + ids.shape[1]
        bound.lengths.update_inplace((lengths - 1).astype(np.int32))
        if total is not None:
            bound.binding.bind_cpu_input("total_sequence_length", np.array(total, np.int32))
        self.session.run_with_iobinding(bound.binding, bound.options)
        return np.array(bound.logits.numpy())  # the CPU's is a view of the binding's memory


def ours(path: Path, shape: Shape, adapter: str | None = None, **entries: object) -> TokenGenerator:
    """A generator on this package's provider, which takes each node."""
    import onnxruntime

    kompute.register()
    device = kompute.devices()[0]
    if adapter is not None:
        device = next(d for d in kompute.devices() if d.ep_metadata["adapter"] == adapter)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_provider_for_devices(
        [device], {"claim": "all", "strict": "True", **{k: str(v) for k, v in entries.items()}})
    session = onnxruntime.InferenceSession(str(path), options)
    memory = device.memory_info(onnxruntime.OrtDeviceMemoryType.DEFAULT)
    return TokenGenerator(session, shape, memory)


def on_cpu(path: Path, shape: Shape) -> TokenGenerator:
    """A generator on ONNX Runtime's CPU provider."""
    import onnxruntime

    return TokenGenerator(onnxruntime.InferenceSession(
        str(path), providers=["CPUExecutionProvider"]), shape)
