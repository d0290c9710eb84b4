"""The execution provider: ONNX Runtime's tables of functions, filled with Python callbacks.

Three objects have a table: the factory, a provider per session, and a kernel per region. The
callbacks are made once and find their object through the pointer at the end of its table. So a
session leaves nothing behind.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from .. import __version__
from ..device import shared_device
from ..errors import UnsupportedError, ValidationError, expect
from ..graph.planner import uncollected
from ..hints import hint
from ..onnx import cost
from ..onnx.fusion import fuse
from ..onnx.graph import OnnxGraph, OnnxNode, constants
from ..onnx.mapping import TABLE
from ..onnx.operators import long_rope
from ..onnx.operators.quantized import PREPACKED
from ..onnx.partition import joined, regions, tears
from ..onnx.placement import Placement, Rows, place
from ..onnx.region import Constants
from ..runtime.adapters import choose, list_devices
from ..spec import FeatureLevel
from . import allocation, capi, capture, identity
from .capi import CData, alive, api, callback, ffi, guarded, keep, let_go
from .graph import GraphReader
from .kernel import RegionKernel
from .profiling import Profiler
from .replaced import Replaced, asking
from .trace import Trace

EP_NAME = identity.OWN.provider
OPTIONS = {
    "adapter": "index, UUID or part of the name of the Vulkan device",
    "feature_level": "DirectML's, such as 6.4: operators newer than it are left to others",
    "claim": "'auto' (regions that take less time than on the CPU), 'all', or names of operators",
    "strict": "'True': no node may be left to others",
    "memory": "'device' or 'host': where tensors lie that are not bound",
    capture.OPTION: "'True': runs with the same tensors on the device are replayed",
    long_rope.ATTRIBUTE: "the first row of the cosines for long texts, after those for short ones",
    "profile": "a file for the time of each region and dispatch, as trace events",
}
_AUTO, _ALL = "auto", "all"
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_NO_CONTEXT = ("ep.context_enable: regions are compiled when a session is made and have no form in "
               "a model, which is written without any")
_CPU = "CPU"
"""Where nodes run that no region has."""
_NAMED = 20
"""The most nodes that an error names, and the most regions that a warning explains."""

_names = {who: ffi.new("char[]", who.provider.encode()) for who in (identity.OWN, identity.WEBGPU)}
_vendor = ffi.new("char[]", b"kompute_dml")
_version = ffi.new("char[]", __version__.encode())


class Options:
    """The options of a session."""

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
        memory = entries.get("memory") or "device"
        if memory not in ("device", "host"):
            raise ValidationError(
                f"{EP_NAME}: expected memory to be 'device' or 'host', but got {memory!r}")
        self.on_device = memory == "device"
        self.strict = _flag(entries, "strict")
        self.captures = _flag(entries, capture.OPTION)
        if self.captures and not self.on_device:
            raise ValidationError(f"{EP_NAME}: {capture.OPTION} needs memory to be 'device'")
        offset = entries.get(long_rope.ATTRIBUTE) or "0"
        if not offset.isdecimal():
            raise ValidationError(f"{EP_NAME}: expected {long_rope.ATTRIBUTE} to be a number of "
                                  f"rows, but got {offset!r}")
        self.long_rope = int(offset)
        self.claimed_names = {name.strip() for name in wanted.split(",")} - {""}
        if not (self.claims_all or self.claims_worthwhile):
            _check_names(self.claimed_names)
        self.feature_level = FeatureLevel.of(entries.get("feature_level") or FeatureLevel.FL_6_4)


def _flag(entries: dict[str, str], name: str) -> bool:
    text = entries.get(name) or "false"
    if text.lower() not in _FLAGS:
        raise ValidationError(f"{EP_NAME}: expected {name} to be True or False, but got {text!r}")
    return _FLAGS[text.lower()]


def _check_names(claimed: set[str]) -> None:
    known = {f"{r.domain}.{r.op}" if r.domain else r.op for r in TABLE}
    known |= {row.op for row in TABLE}
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


class Decisions(list[Decision]):
    """The decisions about the models of several sessions."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__()
        self._sessions: list[list[Decision]] = []
        self.quiet = quiet
        """Whether no warning says that nothing of a model is claimed: the decisions show it."""

    def tell(self, session: list[Decision]) -> None:
        """Take the decisions of a session as they are now, instead of those it told before."""
        if all(known is not session for known in self._sessions):
            self._sessions.append(session)
        self[:] = [decision for known in self._sessions for decision in known]

    def tell_all(self, other: Decisions) -> None:
        for session in other._sessions:
            self.tell(session)


_told: ContextVar[Decisions | None] = ContextVar("decisions", default=None)


@contextmanager
def decisions(quiet: bool = False) -> Iterator[Decisions]:
    """Collects the decisions about models of sessions that are created inside the block.

    ``quiet``: these sessions do not warn that nothing is claimed.
    """
    outer = _told.get()
    told = Decisions(quiet or (outer is not None and outer.quiet))
    token = _told.set(told)
    try:
        yield told
    finally:
        _told.reset(token)
        if outer is not None:
            outer.tell_all(told)


def check_strict(decided: Sequence[Decision]) -> None:
    """Raise UnsupportedError if a node runs on the CPU."""
    left = [d for d in decided if d.where == _CPU]
    if left:
        more = f"; and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        raise UnsupportedError(
            f"strict: {len(left)} of {len(decided)} nodes would be left to the CPU: "
            + "; ".join(f"{d.operator} {d.node!r} ({d.why})" for d in left[:_NAMED]) + more
        )


def _numbered(graphs: Sequence[Sequence[Decision]]) -> Iterator[Decision]:
    """The decisions about several graphs, whose regions are numbered on."""
    count = 0
    for decided in graphs:
        places = sorted({d.where for d in decided} - {_CPU},
                        key=lambda where: int(where.split()[1]))
        names = {where: f"region {count + i}" for i, where in enumerate(places)}
        count += len(names)
        yield from (replace(d, where=names.get(d.where, _CPU)) for d in decided)


class Provider:
    """The provider of one session."""

    def __init__(
        self, options: Options, replaced: Replaced, *, compiles_ahead: bool = False
    ) -> None:
        """``replaced`` are initializers that the session's options have. ``compiles_ahead``: the
        model is written with compiled regions. There is no form for these, so the nodes stay as
        they are."""
        self.options = options
        self.replaced = replaced
        self.compiles_ahead = compiles_ahead
        self.device = shared_device(options.adapter, options.feature_level)
        self.trace = Trace(options.profile) if options.profile else None
        self.profiler: Profiler | None = None
        """ONNX Runtime's profiler, if it profiles the session."""
        self._constants: dict[int, int] = {}
        """Bytes of the constants that regions will hold, by their addresses on the host."""
        self.has_claimed = False
        self.lends = True
        """Whether inputs may be lent to runs. Inputs of nested graphs may not: they are values of
        the graph around, whose memory is used again within a run."""
        self.decisions: list[Decision] = []
        """About the nodes that there are now."""
        self._compiled: list[list[Decision]] = []
        """About those of each graph's compiled regions, which ONNX Runtime does not show again."""
        self._by_graph: dict[object, list[Decision]] = {}
        """About each graph, by its key, the last one at the end."""
        self._is_whole = False
        """Whether all graphs of the model were looked at. Then ONNX Runtime may begin again, with
        the nodes of functions in the place of their calls."""
        self._warning: str | None = None
        """What to say if no node is claimed in the end."""
        self.failure: Exception | None = None
        """What kept this from looking at the model, if anything did."""
        self.results: set[str] = set()
        """Names of the model's outputs."""
        self.reader: GraphReader | None = None
        """The last graph that was looked at, whose regions are compiled next, ..."""
        self.rows: Rows = {}
        """... and what serves its nodes."""
        self.kernels = 0
        """Regions that were compiled."""
        self.capture: capture.Capture | None = None
        if options.captures:
            if api().release < capture.SINCE:
                raise UnsupportedError(
                    f"{EP_NAME}: {capture.OPTION} needs ONNX Runtime 1.{capture.SINCE} or newer")
            self.capture = capture.Capture(lambda: self.results, lambda: self.kernels)
        self.handle = ffi.new_handle(self)
        self.table = ffi.new("Ep *", {
            "version": capi.EP_VERSION, "GetName": _ep_name, "GetCapability": _get_capability,
            "Compile": _compile, "ReleaseNodeComputeInfos": _release_kernels,
            "OnRunStart": _on_run_start, "OnRunEnd": _on_run_end,
            "GetKernelRegistry": _get_kernel_registry,
            "GetDefaultMemoryDevice": _get_default_memory_device,
            "CreateProfiler": _create_profiler, "IsGraphCaptureEnabled": capture.is_enabled,
            "IsGraphCaptured": capture.is_captured, "ReplayGraph": capture.replay,
            "ReleaseCapturedGraph": capture.release,
            "OnSessionInitializationEnd": _on_session_initialization_end, "self": self.handle,
        })

    def finish(self) -> None:
        """Warn if no node was claimed. Raise UnsupportedError if there is a node left to the CPU
        that must not be. Once ONNX Runtime has inlined all functions."""
        if self._warning is not None:
            if (told := _told.get()) is None or not told.quiet:
                warnings.warn(self._warning, stacklevel=2)
            self._warning = None
        if wrong := [d for d in self.decisions if d.why == PREPACKED]:
            warnings.warn(f"{EP_NAME}: {len(wrong)} nodes such as {wrong[0].operator} "
                          f"{wrong[0].node!r}: {PREPACKED}", stacklevel=2)
        self.check_strict()

    def check_strict(self) -> None:
        """Raise UnsupportedError if there is a node left to the CPU that must not be."""
        if not self.options.strict:
            return
        if self.failure is not None:
            raise UnsupportedError(f"strict: all nodes are left to the CPU: {self.failure!r}")
        check_strict(self.decisions)

    def traces(self) -> list[Trace]:
        """The traces that record the times of runs."""
        profiled = self.profiler.trace if self.profiler else None
        return [t for t in (self.trace, profiled) if t is not None]

    def wanted_regions(self, reader: GraphReader) -> list[list[OnnxNode]]:
        """The regions to claim, in the original graph's nodes."""
        long_rope.mark(reader.graph.nodes, self.options.long_rope)
        if self.options.captures:
            long_rope.follow_lengths(reader.graph.nodes, reader.graph.outputs)
        if not reader.is_nested:
            self.results = {v.name for v in reader.graph.outputs}
        most = self.device.runtime.engine.max_buffer
        nodes = fuse(reader.graph, most)
        placed, wanted = self._parts(reader, nodes)
        if tears(nodes, wanted):
            nodes = fuse(reader.graph, most, sharing=False)
            placed, wanted = self._parts(reader, nodes)
        if self._is_whole:
            self._by_graph.clear()
        self._is_whole = not reader.is_nested  # nested graphs come before the graph around them
        self._by_graph.pop(reader.key, None)
        self._by_graph[reader.key] = self._decided(nodes, placed, wanted)
        self.decisions[:] = _numbered([*self._compiled, *self._by_graph.values()])
        if (told := _told.get()) is not None:
            told.tell(self.decisions)
        self.has_claimed |= bool(wanted)
        if reader.is_nested and wanted:
            self.lends = False
        if not reader.is_nested:
            self._warning = (
                None if self.has_claimed or not nodes
                else f"{EP_NAME}: {_NO_CONTEXT}" if self.compiles_ahead
                else self._idle(len(reader.graph.nodes), placed))
        return [[original for n in region for original in n.originals] for region in wanted]

    def _parts(
        self, reader: GraphReader, nodes: list[OnnxNode]
    ) -> tuple[Placement, list[list[OnnxNode]]]:
        """Where a graph's nodes run, and the regions to claim."""
        placed = place(nodes, self.device, self._names, reader.graph.outputs,
                       is_nested=reader.is_nested)
        self.rows = placed.rows
        wanted = []
        parts = regions(nodes, placed.__contains__)
        for region, refused in zip(parts, self._refusals(parts, nodes, placed, reader.graph)):
            reason = (_NO_CONTEXT if self.compiles_ahead
                      else refused or self._without_room(region))
            if reason is None:
                wanted.append(region)
            else:
                placed.reasons.update(dict.fromkeys(region, reason))
        return placed, joined(nodes, wanted)

    def note_compiled(self) -> None:
        """The regions of the graph that was looked at last are compiled."""
        key, decided = self._by_graph.popitem()
        self._compiled.append([d for d in decided if d.where != _CPU])
        self._by_graph[key] = [d for d in decided if d.where == _CPU]

    def _without_room(self, region: Sequence[OnnxNode]) -> str | None:
        """Why the device cannot hold the constants of a region besides all others, or None."""
        needed = {x.ctypes.data: x.nbytes for x in constants(region).values() if x.size}
        room = self.device.adapter.device_memory - self.device.memory_used
        if sum((self._constants | needed).values()) > room:
            return (f"its region's constants take {sum(needed.values())} bytes, of "
                    f"{max(room - sum(self._constants.values()), 0)} that the device has left")
        self._constants |= needed
        return None

    def _refusals(
        self, parts: Sequence[Sequence[OnnxNode]], nodes: Sequence[OnnxNode], placed: Placement,
        graph: OnnxGraph,
    ) -> list[str | None]:
        """For each region why it is not claimed, or None."""
        options = self.options
        if not (options.claims_all or options.claims_worthwhile):
            return [None] * len(parts)
        return cost.refusals(parts, placed, OnnxGraph(list(nodes), graph.inputs, graph.outputs),
                             everything=options.claims_all)

    def _decided(
        self, nodes: Sequence[OnnxNode], placed: Placement, wanted: Sequence[Sequence[OnnxNode]]
    ) -> list[Decision]:
        number = {node: i for i, region in enumerate(wanted) for node in region}
        decided = []
        for node in nodes:
            if node not in number:
                where, why = _CPU, placed.reasons[node]
            elif node in placed.host:
                where, why = f"region {number[node]}", "evaluated on the host while planning"
            else:
                row = placed.rows[node]
                where = f"region {number[node]}"
                why = "a view" if row.is_view else f"DML_OPERATOR_{row.operator}"
            decided += [Decision(part.label, part.name, where, why) for part in node.originals]
        return decided

    def _idle(self, count: int, placed: Placement) -> str:
        """The warning for a model of which this provider runs no node."""
        missing: set[str] = set()
        unnamed: set[str] = set()
        refused: dict[str, set[str]] = {}  # by reason
        for node, reason in placed.reasons.items():
            group = (refused.setdefault(reason, set()) if node in placed
                     else missing if self._names(node) else unnamed)
            group.update(part.label for part in node.originals)
        text = f"{EP_NAME} runs 0 of {count} nodes of this model"
        if missing:
            text += f"; not implemented, or not as they are used here: {_listed(missing)}"
        if unnamed:
            text += ("; the claim does not name these, which ONNX Runtime's optimization left: "
                     + _listed(unnamed))
        if any(reason.endswith(cost.ALL_TAKES_IT) for reason in refused):
            text += ("; the claim 'auto' takes only regions that are estimated to gain time, 'all' "
                     "takes more")
        others = [f"{_listed(labels)} ({reason})" for reason, labels in refused.items()
                  if not reason.endswith(cost.ALL_TAKES_IT)]
        if others:
            text += f"; left out: {'; '.join(others[:_NAMED])}"
        return text

    def _names(self, node: OnnxNode) -> bool:
        options = self.options
        if options.claims_all or options.claims_worthwhile:
            return True
        return bool(options.claimed_names & {node.op, node.label, *[n.op for n in node.originals]})


def _listed(labels: set[str]) -> str:
    return ", ".join(sorted(labels))


# Callbacks


def _owner(table: CData) -> Any:
    return ffi.from_handle(table.self)


@callback("const char *(const Factory *)")
def _factory_name(this: CData) -> Any:
    return _names[identity.current()]


@callback("const char *(const Factory *)")
def _factory_vendor(this: CData) -> Any:
    return _vendor


@callback("const char *(const Factory *)")
def _factory_version(this: CData) -> Any:
    return _version


@callback("uint32_t(const Factory *)")
def _factory_vendor_id(this: CData) -> int:
    return identity.current().vendor


@callback("bool(const Factory *)")
def _is_stream_aware(this: CData) -> bool:
    return False


@guarded("(Factory *, const void *, const void *, void **)")
def _create_allocator(this: CData, memory: CData, options: CData, out: CData) -> None:
    out[0] = allocation.create_allocator(memory)


@callback("void(Factory *, void *)")
def _release_allocator(this: CData, allocator: CData) -> None:
    let_go(allocator)


@guarded("(Factory *, void **)")
def _create_data_transfer(this: CData, out: CData) -> None:
    out[0] = keep(allocation.ProviderTransfer())


_GPU = 1


@guarded("(Factory *, const void *const *, size_t, void **, size_t, size_t *)")
def _get_supported_devices(
    this: CData, hardware: CData, count: int, out: CData, room: int, devices: CData
) -> None:
    """A provider device per Vulkan adapter.

    ONNX Runtime's list of GPUs is often empty in containers, so each adapter has a hardware device
    of its own. It is always a GPU, so that no policy takes it for ONNX Runtime's CPU.
    """
    devices[0] = 0
    ort = api()
    # Without a choice the first one is used, as by ONNX Runtime's policies.
    first = choose(None)
    for adapter in sorted(list_devices(), key=lambda a: a.index != first.index)[:room]:
        about = ort.pairs({
            "adapter": str(adapter.index), "adapter_name": adapter.name,
            "adapter_type": adapter.type, "driver": adapter.driver,
        })
        options = ort.pairs({"adapter": str(adapter.index)})
        device = ort.get(ort.CreateHardwareDevice, "void *", _GPU, identity.current().vendor,
                         adapter.index, _vendor, about)
        ort.check(ort.CreateEpDevice(this, device, about, options, out + devices[0]))
        ort.check(ort.AddAllocatorInfo(
            out[devices[0]], allocation.memory(adapter.index).info))
        devices[0] += 1


@guarded("(Factory *, const void *const *, const void *const *, size_t, const void *, "
         "const void *, void **)")
def _create_ep(
    this: CData, hardware: CData, about: CData, count: int, session_options: CData, logger: CData,
    out: CData,
) -> None:
    if count > 1:
        raise ValidationError(
            f"{EP_NAME}: expected one device for a session, but got {count}: "
            "add_provider_for_devices takes one of kompute_dml.onnxruntime.devices()"
        )
    prefix = f"ep.{identity.current().provider.lower()}."
    config = api().options(session_options)
    entries = {
        key[len(prefix):]: value for key, value in config.items()
        if key.lower().startswith(prefix)
    }
    ahead = config.get("ep.context_enable", "0") == "1"
    if asking():
        entries = {}
    options = Options(identity.own_options(entries))
    out[0] = keep(Provider(options, Replaced(session_options), compiles_ahead=ahead))


@callback("void(Factory *, void *)")
def _release_ep(this: CData, ep: CData) -> None:
    provider = let_go(ep)
    if provider is not None:
        _save(provider)


def _save(provider: Provider) -> None:
    if provider.trace is not None:
        try:
            provider.trace.save()
        except OSError as error:
            print(f"kompute_dml: {provider.trace.path} was not written: {error}", file=sys.stderr)


@guarded("(const Ep *, const void **)")
def _get_default_memory_device(this: CData, out: CData) -> None:
    if not _owner(this).options.on_device:
        out[0] = allocation.host_device()


@guarded("(Ep *, void **)")
def _create_profiler(this: CData, out: CData) -> None:
    if api().profiles:
        profiler = _owner(this).profiler = Profiler()
        out[0] = keep(profiler)


@guarded("(Ep *, const void **)")
def _get_kernel_registry(this: CData, out: CData) -> None:
    factory = next(owner for owner in alive.values() if isinstance(owner, Factory))
    out[0] = factory.copies()


@callback("const char *(const Ep *)")
def _ep_name(this: CData) -> Any:
    return _names[identity.current()]


@guarded("(Ep *, const void *, void *)")
def _get_capability(this: CData, graph: CData, support: CData) -> None:
    ort, provider = api(), _owner(this)
    try:
        with uncollected():
            provider.reader = reader = GraphReader(ort, graph, provider.replaced)
            wanted = provider.wanted_regions(reader)
    except Exception as error:
        provider.failure = error
        raise
    # Constants are taken over when a kernel is made; then they are no inputs of the fused node.
    options = ffi.new("FusionOptions *", {
        "version": capi.API_VERSION, "drop_constant_initializers": True,
    })
    for region in wanted:
        nodes = ffi.new("const void *[]", [reader.handles[node] for node in region])
        ort.check(ort.AddNodesToFuse(support, nodes, len(region), options))


@guarded("(Ep *, const void **, const void **, size_t, void **, void **)")
def _compile(
    this: CData, graphs: CData, fused: CData, count: int, kernels: CData, contexts: CData
) -> None:
    provider = _owner(this)
    provider.note_compiled()
    if not api().profiles:  # an older ONNX Runtime says nothing of a session's end
        provider.finish()
    shared = Constants()
    with uncollected():
        # Regions change the values that they read, so several have their own.
        whole = provider.reader if count == 1 else None
        readers = (GraphReader(api(), graphs[i], provider.replaced, whole) for i in range(count))
        compiled = [RegionKernel(provider, reader, shared) for reader in readers]
    provider.reader, provider.rows = None, {}
    provider.kernels += count
    for i, kernel in enumerate(compiled):
        kernels[i] = keep(kernel)


@guarded("(Ep *)")
def _on_session_initialization_end(this: CData) -> None:
    # Of what GetCapability reports ONNX Runtime only makes a log entry.
    _owner(this).finish()


@guarded("(Ep *, const void *)")
def _on_run_start(this: CData, options: CData) -> None:
    if not _owner(this).kernels:
        _owner(this).finish()  # an older ONNX Runtime compiles no regions of such a model
    if _owner(this).lends:
        allocation.begin_run()


@guarded("(Ep *, const void *, bool)")
def _on_run_end(this: CData, options: CData, waits: bool) -> None:
    if _owner(this).lends:
        allocation.end_run()


@callback("void(Ep *, void **, size_t)")
def _release_kernels(this: CData, kernels: CData, count: int) -> None:
    runtimes = {kernel.region.device.runtime for i in range(count)
                if (kernel := let_go(kernels[i])) is not None}
    kernel = None
    for runtime in runtimes:
        # Python may collect a session in any thread, also in one that compiles what the holder of
        # the lock waits for. Then the next allocation takes the memory back.
        if runtime.lock.acquire(blocking=False):
            try:
                runtime.collect()
            finally:
                runtime.lock.release()


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
        self._copies: Any = None

    def copies(self) -> Any:
        """The registry of the copies between providers, which sessions share."""
        if self._copies is None:
            self._copies = ffi.gc(
                allocation.copy_kernels(_names[identity.current()]), api().ReleaseKernelRegistry)
        return self._copies


@callback("CreateFactories")
def _create_factories(
    name: CData, base: CData, logger: CData, out: CData, room: int, count: CData
) -> Any:
    status = capi.connect(base)
    if status == ffi.NULL:
        identity.take(ffi.string(name).decode())
        out[0] = keep(Factory())
        count[0] = 1
    return status


@callback("ReleaseFactory")
def _release_factory(factory: CData) -> Any:
    let_go(factory)
    return ffi.NULL


_libraries: dict[str, Any] = {}


def load(path: str) -> None:
    """Connect the C library at ``path`` with this module's callbacks."""
    if path not in _libraries:
        library = _libraries[path] = ffi.dlopen(path)
        capi.use(library)
        library.kompute_dml_connect(_create_factories, _release_factory)


def check_unused() -> None:
    """Raise ValidationError while there is what ONNX Runtime would free without the library."""
    sessions = sum(isinstance(owner, Provider) for owner in alive.values())
    values = sum(memory.bytes.count for memory in allocation.memories.values())
    expect(sessions == values == 0, "unregister", "all sessions and values in device memory",
           "be gone (del them first)", f"{sessions} sessions and {values} values")


@atexit.register
def _let_go() -> None:
    """ONNX Runtime may outlive the interpreter: what it may still call must not need Python."""
    for library in _libraries.values():
        nothing = ffi.addressof(library, "kompute_dml_nothing")
        library.kompute_dml_connect(ffi.NULL, ffi.cast("ReleaseFactory *", nothing))
        for owner in alive.values():
            if isinstance(owner, Provider):
                _save(owner)
            for name in ("ReleaseEp", "ReleaseAllocator", "ReleaseNodeComputeInfos",
                         "ReleaseState", "Free", "Release", "OnRunStart", "OnRunEnd"):
                if hasattr(owner.table, name):
                    kind = ffi.typeof(getattr(owner.table, name))
                    setattr(owner.table, name, ffi.cast(kind, nothing))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
