"""A decoder of tokens as an ONNX model, for generate.py and transcribe.py.

Its inputs are those of the usual exports: input_ids, attention_mask, position_ids, and caches of
keys and values, past* and present*. Where the model's operators write to caches that are as long as
they may grow (GroupQueryAttention, TensorScatter), past and present are the same memory, and one
captured graph serves each token. Elsewhere caches grow with each token, and each length is a new
plan. A model that has a mask of tokens and their positions as inputs needs few plans all the same:
its caches are kept at a length with room, whose first rows the mask hides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import kompute_dml as dml
import kompute_dml.genai as genai
import kompute_dml.onnxruntime as kompute

SHARING = {"GroupQueryAttention", "TensorScatter"}
ROLL = "dropped_rows"
"""An input of :func:`rolled`: rows that each cache loses at its beginning, before it grows."""
LEAST_ROWS = 64
"""Rows of caches with room. Where there is no room, they are doubled."""
TYPES = {"tensor(float16)": np.float16, "tensor(float)": np.float32, "tensor(int64)": np.int64,
         "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


def shares_caches(path: Path) -> bool:
    """Whether a model writes to caches that are as long as they may grow."""
    graph = onnx.load(path, load_external_data=False).graph
    return any(node.op_type in SHARING for node in graph.node)


def rolled(path: Path) -> bytes | None:
    """A model whose caches lose their first rows before they grow; None where caches do not grow,
    or no mask hides rows that are no tokens."""
    built = onnx.load(path, load_external_data=False)
    graph = built.graph
    names = {x.name for x in graph.input}
    pasts = [x.name for x in graph.input if x.name.startswith("past") and "encoder" not in x.name]
    inner = any(a.HasField("g") or a.graphs for node in graph.node for a in node.attribute)
    if inner or not pasts or not {"attention_mask", "position_ids"} <= names:
        return None
    for node in graph.node:
        node.input[:] = [f"{x}.rolled" if x in pasts else x for x in node.input]
    graph.input.append(onnx.helper.make_tensor_value_info(ROLL, onnx.TensorProto.INT64, [1]))
    for name, value in (("rolled.end", 2**62), ("rolled.axis", 2)):
        graph.initializer.append(onnx.numpy_helper.from_array(np.int64([value]), name))
    for at, name in enumerate(pasts):
        graph.node.insert(at, onnx.helper.make_node(
            "Slice", [name, ROLL, "rolled.end", "rolled.axis"], [f"{name}.rolled"],
            f"{name}.rolled"))
    del graph.value_info[:]
    model: Any = built
    return bytes(model.SerializeToString())


class Place:
    """Where a model runs: the preferred device, or the host, to compare with."""

    def __init__(self, on_device: bool = True) -> None:
        self.memory = kompute.devices()[0].memory_info(
            onnxruntime.OrtDeviceMemoryType.DEFAULT) if on_device else None

    def session(
        self, path: Path, *, captures: bool = False, model: bytes | None = None
    ) -> tuple[Any, bool]:
        """A session, and whether it captures graphs, as it can where the device runs each node.
        ``model`` is in the place of the file; its weights are beside the file."""
        more = {"claim": "all", **genai.folder_options(path.parent)}
        if self.memory is None:
            return onnxruntime.InferenceSession(
                str(path), providers=["CPUExecutionProvider"]), False
        if model is not None:
            options = onnxruntime.SessionOptions()
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", str(path.parent.resolve()))
            return kompute.session(model, options, **more), False
        if captures:
            try:
                return kompute.session(
                    str(path), **more, strict=True, enable_graph_capture=True), True
            except dml.UnsupportedError as error:
                print(f"Without graph capture: {error}")
        return kompute.session(str(path), **more), False

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """A tensor of any elements."""
        more = {} if self.memory is None else {"memory_info": self.memory}
        return onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(shape), dtype, **more)

    def value(self, x: np.ndarray) -> Any:
        """A tensor of these elements."""
        made = self.empty(x.shape, x.dtype)
        made.update_inplace(np.ascontiguousarray(x))
        return made


class Decoder:
    """A model, and the tokens that it has read."""

    def __init__(self, path: Path, capacity: int, *, later: Path | None = None,
                 encoded: Any = None, place: Place | None = None) -> None:
        """``capacity``: the most tokens. ``later``: the model for tokens after the first ones, if
        it is another. ``encoded``: what an encoder made of its input, [1, row, element]."""
        self.place = place or Place()
        self.shares = later is None and shares_caches(path)
        grows = later is None and not self.shares and self.place.memory is not None
        edited = rolled(path) if grows else None
        self._first, self._captures = self.place.session(
            path, captures=self.shares, model=edited)
        self._rolls, self._rows = edited is not None, 0
        """Whether caches may have room before the tokens, and their rows."""
        self._spare: dict[str, Any] = {}
        """Caches of the run before the last one, by the output's name."""
        self._later = self._first if later is None else self.place.session(later)[0]
        self.encoded, self.capacity, self.length = encoded, capacity, 0
        self._caches: dict[str, Any] = {}
        """By the input's name."""
        self._single: dict[str, Any] = {}
        """The other inputs, and the logits, for one token and shared caches; and their binding."""
        self._binding: Any = None
        if self.shares:
            for x in self._first.get_inputs():
                if x.name.startswith("past"):
                    _, heads, rows, size = x.shape
                    self.capacity = rows if isinstance(rows, int) else capacity
                    zeros = np.zeros((1, heads, self.capacity, size), TYPES[x.type])
                    self._caches[x.name] = self.place.value(zeros)

    def restart(self, length: int = 0) -> None:
        """Forget all tokens but the first ``length``, which caches that grow cannot."""
        if length and not self.shares:
            raise ValueError("caches that grow forget all tokens, or none")
        self.length = self._rows = length

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """What follows these tokens, which come after those before: a number for each word."""
        end = self.length + len(ids)
        if not ids or end > self.capacity:
            raise ValueError(f"expected 1 to {self.capacity} tokens, but got {end}")
        if self._rolls and self.length and len(ids) == 1:
            self._make_room(end)
        feeds = self._feeds(np.array([ids]), end)
        run = (self._grow if not self.shares else self._run_one if len(ids) == 1
               else self._run_several)
        found = run(feeds, end)
        self._rows += len(ids) - self._dropped(len(ids))
        self.length = end
        return np.asarray(found[0, -1], np.float32)

    def _dropped(self, count: int) -> int:
        """Rows that caches lose before so many tokens are added."""
        return int(count == 1 and self._rows > self.length)

    def _make_room(self, end: int) -> None:
        """Let caches have so many rows at least, the tokens last."""
        rows = LEAST_ROWS
        while rows < end:
            rows *= 2
        rows = min(rows, self.capacity)
        if self._rows >= end:
            return
        for name, cache in self._caches.items():
            x = cache.numpy()
            room = np.zeros((*x.shape[:2], rows - x.shape[2], x.shape[3]), x.dtype)
            self._caches[name] = self.place.value(np.concatenate([room, x], axis=2))
        self._rows, self._spare = rows, {}

    def _feeds(self, ids: np.ndarray, end: int) -> dict[str, np.ndarray]:
        """The inputs that are no caches."""
        begin, dropped = self.length, self._dropped(ids.shape[1])
        total = self.capacity if self.shares else self._rows + ids.shape[1] - dropped
        shown = np.arange(total) < end if self.shares else np.arange(total) >= total - end
        known = {
            "input_ids": ids, "position_ids": np.arange(begin, end)[None],
            "attention_mask": shown[None], ROLL: np.array([dropped]),
            "use_cache_branch": np.array([begin > 0]), "cache_position": np.arange(begin, end),
            "seqlens_k": np.array([end - 1]), "total_sequence_length": np.array(total),
            "num_logits_to_keep": np.array(1)}
        wanted = {x.name: TYPES[x.type] for x in self._session().get_inputs()
                  if not x.name.startswith(("past", "encoder_hidden_states"))}
        if wanted.keys() - known.keys():
            raise SystemExit(f"unknown inputs: {', '.join(sorted(wanted.keys() - known.keys()))}")
        return {name: known[name].astype(kind) for name, kind in wanted.items()}

    def _session(self) -> Any:
        return self._later if self.length else self._first

    def _run_several(self, feeds: Mapping[str, np.ndarray], end: int) -> np.ndarray:
        """A text at once, with shared caches."""
        bound = self._first.io_binding()
        bound.bind_output("logits", "cpu")
        for name, x in feeds.items():
            bound.bind_ortvalue_input(name, self.place.value(x))
        self._run(bound, -1)
        return bound.get_outputs()[0].numpy()

    def _run_one(self, feeds: Mapping[str, np.ndarray], end: int) -> np.ndarray:
        """One token, with shared caches."""
        if self._binding is None:
            self._binding = self._first.io_binding()
            y = next(y for y in self._first.get_outputs() if y.name == "logits")
            self._single = {name: self.place.value(x) for name, x in feeds.items()}
            for name, value in self._single.items():
                self._binding.bind_ortvalue_input(name, value)
            self._single[y.name] = self.place.empty((1, 1, y.shape[2]), TYPES[y.type])
            self._binding.bind_ortvalue_output(y.name, self._single[y.name])
        for name, x in feeds.items():
            self._single[name].update_inplace(x)
        self._run(self._binding, 1)
        return self._single["logits"].numpy()

    def _run(self, bound: Any, graph: int) -> None:
        options = onnxruntime.RunOptions()
        if self._captures:
            options.add_run_config_entry("gpu_graph_id", str(graph))
        for name, cache in self._caches.items():
            bound.bind_ortvalue_input(name, cache)
            bound.bind_ortvalue_output(_present(name), cache)
        self._first.run_with_iobinding(bound, options)

    def _grow(self, feeds: Mapping[str, np.ndarray], end: int) -> np.ndarray:
        """Any number of tokens, with new caches."""
        session, added = self._session(), end - self.length
        bound = session.io_binding()
        bound.bind_output("logits", "cpu")
        for name, x in feeds.items():
            bound.bind_cpu_input(name, x)
        for x in session.get_inputs():
            if x.name == "encoder_hidden_states":
                bound.bind_ortvalue_input(x.name, self.encoded)
            elif x.name.startswith("past") and self.length:
                bound.bind_ortvalue_input(x.name, self._caches[x.name])
            elif x.name.startswith("past"):
                nothing = np.zeros((1, x.shape[1], 0, x.shape[3]), TYPES[x.type])
                bound.bind_cpu_input(x.name, nothing)
        made = {}
        for y in session.get_outputs():
            of_encoder = "encoder" in y.name  # its keys and values are those of the first run
            if y.name.startswith("present") and of_encoder and self.length:
                bound.bind_output(y.name, "cpu")
            elif y.name.startswith("present"):
                rows = (self.encoded.shape()[1] if of_encoder
                        else self._rows + added - self._dropped(added))
                sizes = [1, y.shape[1], rows, y.shape[3]]
                spare = self._spare.get(y.name)
                made[y.name] = spare if spare is not None and spare.shape() == sizes else (
                    self.place.empty(sizes, TYPES[y.type]))
                bound.bind_ortvalue_output(y.name, made[y.name])
        session.run_with_iobinding(bound)
        for x in self._later.get_inputs():
            if _present(x.name) in made:
                if self._rolls and x.name in self._caches:
                    self._spare[_present(x.name)] = self._caches[x.name]
                self._caches[x.name] = made[_present(x.name)]
        return bound.get_outputs()[0].numpy()


def _present(past: str) -> str:
    """The output that an input's values come from."""
    return re.sub("^past(_key_values)?", "present", past)
