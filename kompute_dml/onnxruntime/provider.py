"""The execution provider: ONNX Runtime's tables of functions, filled with Python callbacks.

Three objects have a table: the factory, a provider per session, and a kernel per region. The
callbacks are made once and find their object through the pointer at the end of its table, so a
session leaves nothing behind when it goes.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import __version__
from ..device import shared_device
from ..errors import UnsupportedError, ValidationError
from ..names import hint
from ..onnx import mapping
from ..onnx.fusion import fuse
from ..onnx.graph import Graph, Node
from ..onnx.partition import regions
from ..onnx.placement import COMPUTES_NOTHING, Placement, place, refusal
from ..onnx.region import Region
from ..runtime.adapters import choose, list_devices
from ..spec import FeatureLevel
from . import capi
from .capi import api, callback, ffi, guarded
from .graph import GraphReader
from .trace import Trace, now

EP_NAME = "KomputeDmlExecutionProvider"
OPTIONS = {
    "adapter": "index, UUID or part of the name of the Vulkan device",
    "feature_level": "DirectML's, such as 6.4: operators newer than it are left to others",
    "claim": "'auto' (regions that are worth their transfers), 'all', or names of operators",
    "strict": "'True': no node may be left to others",
    "profile": "a file for the time of each region and dispatch, as trace events",
}
_AUTO, _ALL = "auto", "all"
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_NAMED = 20
"""Nodes that an error names."""

_name = ffi.new("char[]", EP_NAME.encode())
_vendor = ffi.new("char[]", b"kompute_dml")
_version = ffi.new("char[]", __version__.encode())


class Options:
    """What a session asks for."""

    def __init__(self, entries: dict[str, str]) -> None:
        """``entries`` by option name. Raises ValidationError."""
        unknown = entries.keys() - OPTIONS.keys()
        if unknown:
            known = "; ".join(f"{name}: {text}" for name, text in OPTIONS.items())
            raise ValidationError(
                f"{EP_NAME} has no option {', '.join(sorted(unknown))}; it has {known}"
            )
        self.adapter = entries.get("adapter") or None
        self.profile = entries.get("profile") or None
        wanted = entries.get("claim") or _AUTO
        self.claims_all = wanted == _ALL
        self.claims_worthwhile = wanted == _AUTO
        strict = entries.get("strict") or "false"
        if strict.lower() not in _FLAGS:
            raise ValidationError(
                f"{EP_NAME}: expected strict to be True or False, but got {strict!r}")
        self.strict = _FLAGS[strict.lower()]
        self.claimed_names = {name.strip() for name in wanted.split(",")} - {""}
        if not (self.claims_all or self.claims_worthwhile):
            _check_names(self.claimed_names)
        self.feature_level = FeatureLevel.of(entries.get("feature_level") or FeatureLevel.FL_6_4)


def _check_names(claimed: set[str]) -> None:
    known = {f"{r.domain}.{r.op}" if r.domain else r.op for r in mapping.TABLE}
    known |= {row.op for row in mapping.TABLE}
    for name in sorted(claimed - known):
        raise ValidationError(
            f"{EP_NAME}: expected claim to be {OPTIONS['claim']} that run on DirectML's, but got "
            f"{name!r}{hint(name, known)}"
        )


# Provider


@dataclass(frozen=True)
class Decision:
    """Where a node of a model runs, and why."""

    operator: str
    node: str
    """The node's name."""
    where: str
    """``region`` and its number, or ``CPU``."""
    why: str


_told: ContextVar[list[Decision] | None] = ContextVar("decisions", default=None)


@contextmanager
def decisions() -> Iterator[list[Decision]]:
    """Collects what is decided about the models of sessions that are made meanwhile."""
    told: list[Decision] = []
    token = _told.set(told)
    try:
        yield told
    finally:
        _told.reset(token)
        if (outer := _told.get()) is not None:
            outer += told


def check_strict(made: Sequence[Decision]) -> None:
    """Raise UnsupportedError where a node is left to the CPU."""
    left = [d for d in made if d.where == "CPU"]
    if left:
        more = f"; and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        raise UnsupportedError(
            f"strict: {len(left)} of {len(made)} nodes would be left to the CPU: "
            + "; ".join(f"{d.operator} {d.node!r} ({d.why})" for d in left[:_NAMED]) + more
        )


class Provider:
    """The provider of one session."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.device = shared_device(options.adapter, options.feature_level)
        self.trace = Trace(options.profile) if options.profile else None
        self.has_claimed = False
        self.decisions: list[Decision] = []
        self.handle = ffi.new_handle(self)
        self.table = ffi.new("Ep *", {
            "version": capi.API_VERSION, "GetName": _ep_name, "GetCapability": _get_capability,
            "Compile": _compile, "ReleaseNodeComputeInfos": _release_kernels,
            "self": self.handle,
        })

    def wanted_regions(self, reader: GraphReader) -> list[list[Node]]:
        """The regions to claim, in the original graph's nodes."""
        nodes = fuse(reader.graph)
        placed = place(nodes, self.device, self._names)
        wanted = []
        for region in regions(nodes, placed.__contains__):
            reason = self._refusal(region, placed, reader.graph)
            if reason is None:
                wanted.append(region)
            else:
                placed.reasons.update(dict.fromkeys(region, reason))
        decided = self._decided(nodes, placed, wanted)
        self.decisions += decided
        if (told := _told.get()) is not None:
            told += decided
        self.has_claimed |= bool(wanted)
        # Nested graphs come before the one that they are in.
        if nodes and not self.has_claimed and not reader.is_nested:
            warnings.warn(self._idle(len(reader.graph.nodes), placed), stacklevel=2)
        return [[original for n in region for original in n.originals] for region in wanted]

    def _refusal(self, region: Sequence[Node], placed: Placement, graph: Graph) -> str | None:
        """Why a region is not claimed, or None."""
        if not (self.options.claims_all or self.options.claims_worthwhile):
            return None
        inside = set(region)
        outside = set(graph.outputs)
        for node in graph.nodes:
            if node not in inside:
                outside.update(v for v in node.inputs if v is not None)
        reason = refusal(region, placed, outside)
        return None if self.options.claims_all and reason != COMPUTES_NOTHING else reason

    def _decided(
        self, nodes: Sequence[Node], placed: Placement, wanted: Sequence[Sequence[Node]]
    ) -> list[Decision]:
        number = {node: i for i, region in enumerate(wanted) for node in region}
        made = []
        for node in nodes:
            if node not in number:
                where, why = "CPU", placed.reasons[node]
            elif node in placed.host:
                where, why = f"region {number[node]}", "evaluated on the host while planning"
            else:
                row = placed.rows[node]
                where = f"region {number[node]}"
                why = "a view" if row.is_view else f"DML_OPERATOR_{row.operator}"
            made += [Decision(part.label, part.name, where, why) for part in node.originals]
        return made

    def _idle(self, count: int, placed: Placement) -> str:
        """What to say of a model that this provider has no part in."""
        left = {node: node in placed for node in placed.reasons}
        missing = sorted({
            part.label for node, served in left.items() if not served and self._names(node)
            for part in node.originals
        })
        text = f"{EP_NAME} runs 0 of {count} nodes of this model"
        if missing:
            text += f": {', '.join(missing)} are not implemented, or not as they are used here"
        if len(missing) < len({part.label for node in left for part in node.originals}):
            text += "; the claim " + (
                "'auto' takes only regions that are worth their transfers, 'all' takes more"
                if self.options.claims_worthwhile else "leaves the others out"
            )
        return text

    def _names(self, node: Node) -> bool:
        options = self.options
        if options.claims_all or options.claims_worthwhile:
            return True
        return bool(options.claimed_names & {node.op, node.label, *[n.op for n in node.originals]})


class Kernel:
    """A compiled region, as ONNX Runtime calls it."""

    def __init__(self, provider: Provider, reader: GraphReader) -> None:
        graph = reader.graph
        self.region = Region(provider.device, fuse(graph), graph.inputs, graph.outputs)
        self.trace = provider.trace
        self.handle = ffi.new_handle(self)
        self.table = ffi.new("Kernel *", {
            "version": capi.API_VERSION, "CreateState": _create_state, "Compute": _compute,
            "ReleaseState": _release_state, "self": self.handle,
        })

    def compute(self, context: Any) -> None:
        ort = api()
        inputs = [ort.input(context, i) for i in range(len(self.region.inputs))]
        for i, y in enumerate(self._run(inputs)):
            ort.output(context, i, y)

    def _run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self.trace is None:
            return self.region.run(inputs)
        results: list[list[np.ndarray]] = []
        plan = self.region.plan(inputs)
        begin = now()
        try:
            times = self.region.device.time(lambda: results.append(plan.run(inputs, anew=True)))
        except UnsupportedError:
            # No timestamps on this device: the host's clock has to do.
            times = []
            results.append(plan.run(inputs))
        self.trace.add(self.region.label, begin, now(), times)
        return results[0]


# Callbacks. What ONNX Runtime holds a pointer to stays in here until it lets go.

_alive: dict[int, Any] = {}


def _address(pointer: Any) -> int:
    return int(ffi.cast("intptr_t", pointer))


def _keep(owner: Any) -> Any:
    _alive[_address(owner.table)] = owner
    return owner.table


def _owner(table: Any) -> Any:
    return ffi.from_handle(table.self)


@callback("const char *(const Factory *)")
def _factory_name(this: Any) -> Any:
    return _name


@callback("const char *(const Factory *)")
def _factory_vendor(this: Any) -> Any:
    return _vendor


@callback("const char *(const Factory *)")
def _factory_version(this: Any) -> Any:
    return _version


@callback("uint32_t(const Factory *)")
def _factory_vendor_id(this: Any) -> int:
    return 0


@callback("bool(const Factory *)")
def _is_stream_aware(this: Any) -> bool:
    return False


@guarded("(Factory *, const void *, const void *, void **)")
def _create_allocator(this: Any, memory: Any, options: Any, out: Any) -> None:
    out[0] = ffi.NULL  # ONNX Runtime's own, for the CPU


@callback("void(Factory *, void *)")
def _release_allocator(this: Any, allocator: Any) -> None:
    pass


@guarded("(Factory *, void **)")
def _create_data_transfer(this: Any, out: Any) -> None:
    out[0] = ffi.NULL


_CPU, _GPU = 0, 1


@guarded("(Factory *, const void *const *, size_t, void **, size_t, size_t *)")
def _get_supported_devices(
    this: Any, hardware: Any, count: int, out: Any, room: int, found: Any
) -> None:
    """A provider device per Vulkan adapter.

    ONNX Runtime's own list of GPUs is often empty in containers, so adapters hang on its CPU: it
    only decides where tensors come from, and that is the CPU's memory.
    """
    found[0] = 0
    ort = api()
    host = next((hardware[i] for i in range(count)
                 if ort.HardwareDevice_Type(hardware[i]) == _CPU), None)
    if host is None:
        return
    # Who chooses none gets the first: ONNX Runtime's policies do.
    first = choose(None)
    for adapter in sorted(list_devices(), key=lambda a: a.index != first.index)[:room]:
        about = ort.pairs({
            "adapter": str(adapter.index), "adapter_name": adapter.name,
            "adapter_type": adapter.type, "driver": adapter.driver,
        })
        options = ort.pairs({"adapter": str(adapter.index)})
        ort.check(ort.CreateEpDevice(this, host, about, options, out + found[0]))
        found[0] += 1


@guarded("(Factory *, const void *const *, const void *const *, size_t, const void *, "
         "const void *, void **)")
def _create_ep(
    this: Any, hardware: Any, about: Any, count: int, session_options: Any, logger: Any, out: Any
) -> None:
    if count > 1:
        raise ValidationError(
            f"{EP_NAME}: expected one device for a session, but got {count}: "
            "add_provider_for_devices takes one of kompute_dml.onnxruntime.devices()"
        )
    prefix = f"ep.{EP_NAME.lower()}."
    entries = {
        key[len(prefix):]: value for key, value in api().options(session_options).items()
        if key.lower().startswith(prefix)
    }
    out[0] = _keep(Provider(Options(entries)))


@callback("void(Factory *, void *)")
def _release_ep(this: Any, ep: Any) -> None:
    provider = _alive.pop(_address(ep), None)
    if provider is not None:
        _save(provider)


def _save(provider: Provider) -> None:
    if provider.trace is not None:
        try:
            provider.trace.save()
        except OSError as error:
            print(f"kompute_dml: {provider.trace.path} was not written: {error}", file=sys.stderr)


@callback("const char *(const Ep *)")
def _ep_name(this: Any) -> Any:
    return _name


@guarded("(Ep *, const void *, void *)")
def _get_capability(this: Any, graph: Any, support: Any) -> None:
    ort = api()
    reader = GraphReader(ort, graph)
    # Constants are taken over when a kernel is made; then they are no inputs of the fused node.
    options = ffi.new("FusionOptions *", {
        "version": capi.API_VERSION, "drop_constant_initializers": True,
    })
    for region in _owner(this).wanted_regions(reader):
        nodes = ffi.new("const void *[]", [reader.handles[node] for node in region])
        ort.check(ort.AddNodesToFuse(support, nodes, len(region), options))


@guarded("(Ep *, const void **, const void **, size_t, void **, void **)")
def _compile(
    this: Any, graphs: Any, fused: Any, count: int, kernels: Any, contexts: Any
) -> None:
    provider = _owner(this)
    if provider.options.strict:  # of what GetCapability reports ONNX Runtime only makes a log entry
        check_strict(provider.decisions)
    made = [Kernel(provider, GraphReader(api(), graphs[i])) for i in range(count)]
    for i, kernel in enumerate(made):
        kernels[i] = _keep(kernel)


@callback("void(Ep *, void **, size_t)")
def _release_kernels(this: Any, kernels: Any, count: int) -> None:
    for i in range(count):
        _alive.pop(_address(kernels[i]), None)


@guarded("(Kernel *, void *, void **)")
def _create_state(this: Any, context: Any, out: Any) -> None:
    out[0] = this


@guarded("(Kernel *, void *, void *)")
def _compute(this: Any, state: Any, context: Any) -> None:
    _owner(this).compute(context)


@callback("void(Kernel *, void *)")
def _release_state(this: Any, state: Any) -> None:
    pass


# The library


class Factory:
    """What makes providers: one for each registration of the library."""

    def __init__(self) -> None:
        self.table = ffi.new("Factory *", {
            "version": capi.API_VERSION, "GetName": _factory_name, "GetVendor": _factory_vendor,
            "GetSupportedDevices": _get_supported_devices, "CreateEp": _create_ep,
            "ReleaseEp": _release_ep, "GetVendorId": _factory_vendor_id,
            "GetVersion": _factory_version, "CreateAllocator": _create_allocator,
            "ReleaseAllocator": _release_allocator, "CreateDataTransfer": _create_data_transfer,
            "IsStreamAware": _is_stream_aware,
        })


@callback("CreateFactories")
def _create_factories(
    name: Any, base: Any, logger: Any, out: Any, room: int, count: Any
) -> Any:
    status = capi.connect(base)
    if status == ffi.NULL:
        out[0] = _keep(Factory())
        count[0] = 1
    return status


@callback("ReleaseFactory")
def _release_factory(factory: Any) -> Any:
    _alive.pop(_address(factory), None)
    return ffi.NULL


_libraries: dict[str, Any] = {}


def load(path: str) -> None:
    """Connect the C library at ``path`` with this module's callbacks."""
    if path not in _libraries:
        library = _libraries[path] = ffi.dlopen(path)
        library.kompute_dml_connect(_create_factories, _release_factory)


@atexit.register
def _let_go() -> None:
    """ONNX Runtime may outlive the interpreter: what it may still call must not need Python."""
    for library in _libraries.values():
        nothing = ffi.addressof(library, "kompute_dml_nothing")
        library.kompute_dml_connect(ffi.NULL, ffi.cast("ReleaseFactory *", nothing))
        for owner in _alive.values():
            if isinstance(owner, Provider):
                _save(owner)
            for name in ("ReleaseEp", "ReleaseAllocator", "ReleaseNodeComputeInfos",
                         "ReleaseState"):
                if hasattr(owner.table, name):
                    kind = ffi.typeof(getattr(owner.table, name))
                    setattr(owner.table, name, ffi.cast(kind, nothing))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
