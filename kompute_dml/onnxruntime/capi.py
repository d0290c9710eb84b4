"""The part of ONNX Runtime's C interface that an execution provider needs.

Functions are found by their positions in ONNX Runtime's two tables. The tables grow only at the
end, so positions are valid for the requested version and all later ones.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import cffi
import numpy as np

from ..dtypes import DataType, unpack_halves
from ..errors import DmlError, UnsupportedError, ValidationError
from ..layout import product
from ..onnx.bfloat16 import widened
from ..onnx.graph import BFLOAT16, DTYPES
from . import ANOTHER

API_VERSION = 24
"""The requested interface: the first one that returns shapes without allocating."""
EP_VERSION = 32
"""The newest version with the tables below. An older ONNX Runtime ignores what it does not know."""

_UINT16 = np.dtype(np.uint16)
_FOUR_BITS = {21: DataType.UINT4, 22: DataType.INT4}
"""Data types by TensorProto.DataType."""

ffi = cffi.FFI()
CData: TypeAlias = "cffi.FFI.CData"
"""A value of C: a pointer, a structure or an array."""
ffi.cdef(
    """
typedef struct OrtStatus OrtStatus;

typedef struct {
    const void *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
} OrtApiBase;

typedef struct Factory {
    uint32_t version;
    const char *(*GetName)(const struct Factory *);
    const char *(*GetVendor)(const struct Factory *);
    OrtStatus *(*GetSupportedDevices)(struct Factory *, const void *const *, size_t, void **,
                                      size_t, size_t *);
    OrtStatus *(*CreateEp)(struct Factory *, const void *const *, const void *const *, size_t,
                           const void *, const void *, void **);
    void (*ReleaseEp)(struct Factory *, void *);
    uint32_t (*GetVendorId)(const struct Factory *);
    const char *(*GetVersion)(const struct Factory *);
    void *ValidateCompiledModelCompatibilityInfo;
    OrtStatus *(*CreateAllocator)(struct Factory *, const void *, const void *, void **);
    void (*ReleaseAllocator)(struct Factory *, void *);
    OrtStatus *(*CreateDataTransfer)(struct Factory *, void **);
    bool (*IsStreamAware)(const struct Factory *);
    void *later[32];
} Factory;

typedef struct Ep {
    uint32_t version;
    const char *(*GetName)(const struct Ep *);
    OrtStatus *(*GetCapability)(struct Ep *, const void *, void *);
    OrtStatus *(*Compile)(struct Ep *, const void **, const void **, size_t, void **, void **);
    void (*ReleaseNodeComputeInfos)(struct Ep *, void **, size_t);
    void *before_runs[3];
    OrtStatus *(*OnRunStart)(struct Ep *, const void *);
    OrtStatus *(*OnRunEnd)(struct Ep *, const void *, bool);
    void *before_registry[3];
    OrtStatus *(*GetKernelRegistry)(struct Ep *, const void **);
    void *IsConcurrentRunSupported;
    void *Sync;
    OrtStatus *(*CreateProfiler)(struct Ep *, void **);
    bool (*IsGraphCaptureEnabled)(const struct Ep *);
    bool (*IsGraphCaptured)(const struct Ep *, int);
    OrtStatus *(*ReplayGraph)(struct Ep *, int);
    void *GetGraphCaptureNodeAssignmentPolicy;
    void *GetAvailableResource;
    OrtStatus *(*OnSessionInitializationEnd)(struct Ep *);
    OrtStatus *(*GetDefaultMemoryDevice)(const struct Ep *, const void **);
    OrtStatus *(*ReleaseCapturedGraph)(struct Ep *, int);
    void *later[28];
    void *self;
} Ep;

typedef struct Allocator {
    uint32_t version;
    uintptr_t (*Alloc)(struct Allocator *, size_t);
    void (*Free)(struct Allocator *, uintptr_t);
    const void *(*Info)(const struct Allocator *);
    uintptr_t (*Reserve)(struct Allocator *, size_t);
    void *later[16];
    void *self;
} Allocator;

typedef struct Transfer {
    uint32_t version;
    void (*Release)(struct Transfer *);
    bool (*CanCopy)(const struct Transfer *, const void *, const void *);
    OrtStatus *(*CopyTensors)(struct Transfer *, void **, void **, void **, size_t);
    void *later[8];
    void *self;
} Transfer;

typedef struct CopyKernel {
    uint32_t version;
    uint32_t flags;
    OrtStatus *(*Compute)(struct CopyKernel *, void *);
    void (*Release)(struct CopyKernel *);
    void *later[8];
} CopyKernel;

typedef struct Profiler {
    uint32_t version;
    void (*Release)(struct Profiler *);
    OrtStatus *(*StartProfiling)(struct Profiler *, int64_t);
    OrtStatus *(*StartEvent)(struct Profiler *, uint64_t);
    OrtStatus *(*StopEvent)(struct Profiler *, uint64_t, const void *);
    OrtStatus *(*EndProfiling)(struct Profiler *, void *);
    void *later[8];
    void *self;
} Profiler;

typedef OrtStatus *CreateKernel(void *, const void *, CopyKernel **);

typedef struct Kernel {
    uint32_t version;
    OrtStatus *(*CreateState)(struct Kernel *, void *, void **);
    OrtStatus *(*Compute)(struct Kernel *, void *, void *);
    void (*ReleaseState)(struct Kernel *, void *);
    void *later[8];
    void *self;
} Kernel;

typedef struct {
    uint32_t version;
    bool drop_constant_initializers;
    char later[64];
} FusionOptions;

typedef void *CreateFactories(const char *, const OrtApiBase *, const void *, void **, size_t,
                              size_t *);
typedef void *ReleaseFactory(void *);

const OrtApiBase *OrtGetApiBase(void);
void kompute_dml_connect(CreateFactories *, ReleaseFactory *);
void *kompute_dml_nothing(void);

typedef struct {
    void *input;
    void *output;
    void *describe;
    void *data;
    void *size;
} Calls;

OrtStatus *kompute_dml_inputs(const Calls *, const void *, size_t, uintptr_t *, int64_t *, size_t,
                              size_t *);
OrtStatus *kompute_dml_outputs(const Calls *, void *, size_t, uintptr_t *, const int64_t *);
OrtStatus *kompute_dml_tensors(const Calls *, void **, size_t, uintptr_t *, size_t *);
"""
)

_STATUS = "OrtStatus *(*)"
_COUNT = _STATUS + "(const void *, size_t *)"
_TEXT = _STATUS + "(const void *, const char **)"

# name: (position, type)
_ORT = {
    "CreateStatus": (0, _STATUS + "(int, const char *)"),
    "GetErrorMessage": (2, "const char *(*)(const OrtStatus *)"),
    "CreateEnv": (3, _STATUS + "(int, const char *, void **)"),
    "CreateSessionFromArray": (
        8, _STATUS + "(const void *, const char *, size_t, const void *, void **)"
    ),
    "Run": (
        9, _STATUS + "(void *, const void *, const char *const *, const void *const *, size_t, "
        "const char *const *, size_t, void **)"
    ),
    "SetOptimizedModelFilePath": (11, _STATUS + "(void *, const char *)"),
    "CloneSessionOptions": (12, _STATUS + "(const void *, void **)"),
    "DisableProfiling": (15, _STATUS + "(void *)"),
    "SetSessionLogSeverityLevel": (22, _STATUS + "(void *, int)"),
    "SetSessionGraphOptimizationLevel": (23, _STATUS + "(void *, int)"),
    "SetIntraOpNumThreads": (24, _STATUS + "(void *, int)"),
    "SetInterOpNumThreads": (25, _STATUS + "(void *, int)"),
    "GetTensorMutableData": (51, _STATUS + "(void *, void **)"),
    "CastTypeInfoToTensorInfo": (55, _STATUS + "(const void *, const void **)"),
    "GetTensorElementType": (60, _STATUS + "(const void *, int *)"),
    "GetDimensionsCount": (61, _COUNT),
    "GetDimensions": (62, _STATUS + "(const void *, int64_t *, size_t)"),
    "KernelContext_GetInput": (90, _STATUS + "(const void *, size_t, void **)"),
    "KernelContext_GetOutput": (91, _STATUS + "(void *, size_t, const int64_t *, size_t, void **)"),
    "ReleaseMemoryInfo": (94, "void (*)(void *)"),
    "ReleaseEnv": (92, "void (*)(void *)"),
    "ReleaseStatus": (93, "void (*)(OrtStatus *)"),
    "ReleaseSession": (95, "void (*)(void *)"),
    "ReleaseValue": (96, "void (*)(void *)"),
    "ReleaseSessionOptions": (100, "void (*)(void *)"),
    "AddSessionConfigEntry": (130, _STATUS + "(void *, const char *, const char *)"),
    "ReadOpAttr": (272, _STATUS + "(const void *, int, void *, size_t, size_t *)"),
    "GetValueInfoName": (289, _TEXT),
    "GetValueInfoTypeInfo": (290, _STATUS + "(const void *, const void **)"),
    "CreateKeyValuePairs": (295, "void (*)(void **)"),
    "AddKeyValuePair": (296, "void (*)(void *, const char *, const char *)"),
    "GetKeyValuePairs": (
        298, "void (*)(const void *, const char *const **, const char *const **, size_t *)"
    ),
    "ReleaseKeyValuePairs": (300, "void (*)(void *)"),
    "GetEpDevices": (303, _STATUS + "(const void *, const void *const **, size_t *)"),
    "EpDevice_EpName": (312, "const char *(*)(const void *)"),
    "HardwareDevice_Type": (307, "int (*)(const void *)"),
    "GetTensorSizeInBytes": (318, _COUNT),
    "CreateMemoryInfo_V2": (
        320, _STATUS + "(const char *, int, uint32_t, int32_t, int, size_t, int, void **)"
    ),
    "GetEpApi": (317, "const void *(*)(void)"),
    "ValueInfo_GetInitializerValue": (326, _STATUS + "(const void *, const void **)"),
    "ValueInfo_IsConstantInitializer": (331, _STATUS + "(const void *, bool *)"),
    "Graph_GetName": (333, _TEXT),
    "Graph_GetParentNode": (346, _STATUS + "(const void *, const void **)"),
    "Node_GetId": (348, _COUNT),
    "Node_GetName": (349, _TEXT),
    "Node_GetOperatorType": (350, _TEXT),
    "Node_GetDomain": (351, _TEXT),
    "Node_GetSinceVersion": (352, _STATUS + "(const void *, int *)"),
    "Node_GetNumSubgraphs": (365, _COUNT),
    "Node_GetSubgraphs": (
        366, _STATUS + "(const void *, const void **, size_t, const char **)"
    ),
    "OpAttr_GetTensorAttributeAsOrtValue": (362, _STATUS + "(const void *, void **)"),
    "OpAttr_GetType": (363, _STATUS + "(const void *, int *)"),
    "OpAttr_GetName": (364, _TEXT),
    "TensorTypeAndShape_HasShape": (390, "bool (*)(const void *)"),
    "GetSessionOptionsConfigEntries": (379, _STATUS + "(const void *, void **)"),
    "GetTensorElementTypeAndShapeDataReference": (
        414, _STATUS + "(const void *, int *, const int64_t **, size_t *)"
    ),
}
# The position of each list's count function. The function that fills an array comes next.
_LISTS = {
    "Graph_Inputs": 338, "Graph_Outputs": 340, "Graph_Nodes": 344, "Node_Inputs": 353,
    "Node_Outputs": 355, "Node_ImplicitInputs": 357, "Node_Attributes": 359,
}
# Functions of ONNX Runtime from EP_VERSION on, which has profilers.
_PROFILING = {
    "CreateProfilingEvent": (
        65, _STATUS + "(int, int32_t, int32_t, const char *, int64_t, int64_t, "
        "const char *const *, const char *const *, size_t, void **)"
    ),
    "ReleaseProfilingEvent": (66, "void (*)(void *)"),
    "AddProfilingEvents": (72, _STATUS + "(void *, const void *const *, size_t)"),
}
_EP = {
    "CreateEpDevice": (
        0, _STATUS + "(Factory *, const void *, const void *, const void *, void **)"
    ),
    "AddNodesToFuse": (
        2, _STATUS + "(void *, const void *const *, size_t, const FusionOptions *)"
    ),
    "AddAllocatorInfo": (5, _STATUS + "(void *, const void *)"),
    "MemoryInfo_GetMemoryDevice": (6, "const void *(*)(const void *)"),
    "MemoryDevice_GetDeviceType": (9, "int (*)(const void *)"),
    "MemoryDevice_GetVendorId": (11, "uint32_t (*)(const void *)"),
    "MemoryDevice_GetDeviceId": (12, "uint32_t (*)(const void *)"),
    "CreateHardwareDevice": (
        16, _STATUS + "(int, uint32_t, uint32_t, const char *, const void *, void **)"
    ),
    "CreateKernelRegistry": (18, _STATUS + "(void **)"),
    "ReleaseKernelRegistry": (19, "void (*)(void *)"),
    "KernelRegistry_AddKernel": (
        20, _STATUS + "(void *, const void *, CreateKernel *, void *)"
    ),
    "CreateKernelDefBuilder": (21, _STATUS + "(void **)"),
    "ReleaseKernelDefBuilder": (22, "void (*)(void *)"),
    "KernelDefBuilder_SetOperatorType": (23, _STATUS + "(void *, const char *)"),
    "KernelDefBuilder_SetDomain": (24, _STATUS + "(void *, const char *)"),
    "KernelDefBuilder_SetSinceVersion": (25, _STATUS + "(void *, int, int)"),
    "KernelDefBuilder_SetExecutionProvider": (26, _STATUS + "(void *, const char *)"),
    "KernelDefBuilder_SetInputMemType": (27, _STATUS + "(void *, size_t, int)"),
    "KernelDefBuilder_SetOutputMemType": (28, _STATUS + "(void *, size_t, int)"),
    "KernelDefBuilder_AddTypeConstraint": (
        29, _STATUS + "(void *, const char *, const void *const *, size_t)"
    ),
    "KernelDefBuilder_Build": (32, _STATUS + "(void *, void **)"),
    "ReleaseKernelDef": (33, "void (*)(void *)"),
    "GetTensorDataType": (40, _STATUS + "(int, const void **)"),
}


_FEW = 64
"""Elements of a list that need no memory of their own."""


def array_type(kind: int) -> np.dtype[Any]:
    """The data type of arrays for tensors of an ONNX type; UINT16 for BFLOAT16. Raises
    UnsupportedError for types that NumPy lacks."""
    dtype = _UINT16 if kind == BFLOAT16 else DTYPES.get(kind)
    if dtype is None:
        raise UnsupportedError(f"tensors of ONNX type {kind} have no NumPy counterpart")
    return dtype


class _Outs(threading.local):
    """Reused memory for results through pointers, for calls that must be fast."""

    def __init__(self) -> None:
        self.pointer = ffi.new("void **")
        self.kind = ffi.new("int *")
        self.shape = ffi.new("const int64_t **")
        self.rank = ffi.new("size_t *")
        self.few = ffi.new("const void *[]", _FEW)
        self.kinds: dict[str, Any] = {}
        """Memory for a value of each C type."""


class Api:
    """ONNX Runtime's functions by name."""

    def __init__(self, base: CData) -> None:
        """Raises UnsupportedError when this ONNX Runtime is too old."""
        self.base = base
        table = base.GetApi(API_VERSION)
        self.version: str = ffi.string(base.GetVersionString()).decode()
        self.release = int(self.version.split(".")[1])
        """The second number of the version."""
        if table == ffi.NULL:
            raise UnsupportedError(unsupported_version(self.version))
        self._outs = _Outs()
        self._bind(table, _ORT)
        fills = {n: (p + 1, _STATUS + "(const void *, const void **, size_t)")
                 for n, p in _LISTS.items()}
        self._bind(table, fills, "fill_")
        self._bind(table, {n: (p, _COUNT) for n, p in _LISTS.items()}, "count_")
        self._lists = {n: (getattr(self, f"count_{n}"), getattr(self, f"fill_{n}"))
                       for n in _LISTS}
        self._bind(self.GetEpApi(), _EP)
        self.calls = ffi.new("Calls *", [ffi.cast("void *", f) for f in (
            self.KernelContext_GetInput, self.KernelContext_GetOutput,
            self.GetTensorElementTypeAndShapeDataReference, self.GetTensorMutableData,
            self.GetTensorSizeInBytes)])
        """What the provider library calls."""
        # GetApi() of a later version than this release prints an error.
        self.profiles = self.release >= EP_VERSION
        """Whether providers have profilers."""
        if self.profiles:
            self._bind(self.GetEpApi(), _PROFILING)

    def _bind(
        self, table: CData, functions: dict[str, tuple[int, str]], prefix: str = ""
    ) -> None:
        slots = ffi.cast("void *const *", table)
        for name, (position, signature) in functions.items():
            setattr(self, prefix + name, ffi.cast(signature, slots[position]))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def check(self, status: CData) -> None:
        """Raise the error of a status, if it is one."""
        if status != ffi.NULL:
            message = ffi.string(self.GetErrorMessage(status)).decode(errors="replace")
            self.ReleaseStatus(status)
            raise DmlError(f"ONNX Runtime: {message}")

    def get(self, function: Callable[..., object], kind: str, *arguments: object) -> Any:
        """Call a function and return what it writes through its last argument."""
        kinds = self._outs.kinds
        out = kinds.get(kind) or kinds.setdefault(kind, ffi.new(kind + " *"))
        if status := function(*arguments, out):  # true unless NULL, and faster than a comparison
            self.check(status)
        return out[0]

    def text(self, function: Callable[..., object], of: CData) -> str:
        return ffi.string(self.get(function, "const char *", of)).decode()

    def items(self, what: str, of: CData) -> list[Any]:
        """A list that ONNX Runtime owns, such as ``Graph_Nodes``."""
        count_of, fill = self._lists[what]
        if not (count := self.get(count_of, "size_t", of)):
            return []
        handles = self._outs.few if count <= _FEW else ffi.new("const void *[]", count)
        if status := fill(of, handles, count):
            self.check(status)
        return ffi.unpack(handles, count)

    def sizes(self, value: CData) -> list[int]:
        """The sizes of a tensor."""
        out = self._outs
        self.check(
            self.GetTensorElementTypeAndShapeDataReference(value, out.kind, out.shape, out.rank)
        )
        rank = out.rank[0]
        return ffi.unpack(out.shape[0], rank) if rank else []

    def typed(self, value: CData) -> tuple[list[int], np.dtype[Any] | None]:
        """Sizes and data type. None for types that NumPy lacks."""
        sizes = self.sizes(value)
        return sizes, DTYPES.get(self._outs.kind[0])

    @property
    def is_bfloat16(self) -> bool:
        """Whether the tensor that was asked for last is of BFLOAT16."""
        return bool(self._outs.kind[0] == BFLOAT16)

    def described(self, value: CData) -> tuple[list[int], np.dtype[Any]]:
        """Sizes and data type; BFLOAT16 as UINT16. Raises UnsupportedError for types that NumPy
        lacks."""
        sizes = self.sizes(value)
        return sizes, array_type(self._outs.kind[0])

    def tensor(self, value: CData) -> np.ndarray:
        """An OrtValue's elements, without a copy unless they are of BFLOAT16. Raises
        UnsupportedError for unknown types."""
        sizes, dtype = self.described(value)
        widens = self.is_bfloat16
        x = self.memory(value, sizes, dtype)
        return widened(x) if widens else x

    def four_bits(self, value: CData) -> np.ndarray | None:
        """A tensor's 4-bit integers, one to a byte. None for other types."""
        sizes, data_type = self.sizes(value), _FOUR_BITS.get(self._outs.kind[0])
        if data_type is None:
            return None
        count = product(sizes)
        packed = self.memory(value, [(count + 1) // 2], np.dtype(np.uint8))
        try:
            return unpack_halves(packed, data_type)[:count].reshape(sizes)
        except UnsupportedError:  # without ml_dtypes
            return None

    def address(self, value: CData) -> int:
        """The address of a tensor's elements."""
        out = self._outs.pointer
        self.check(self.GetTensorMutableData(value, out))
        return int(ffi.cast("uintptr_t", out[0]))

    def memory(self, value: CData, sizes: Sequence[int], dtype: np.dtype[np.generic]) -> np.ndarray:
        """The memory of an OrtValue as an array of known sizes and type."""
        count = 1
        for n in sizes:
            count *= n
        if not count:
            return np.empty(sizes, dtype)
        out = self._outs.pointer
        self.check(self.GetTensorMutableData(value, out))
        raw = ffi.buffer(out[0], count * dtype.itemsize)
        return np.frombuffer(raw, dtype).reshape(sizes)

    def output(self, context: CData, index: int, sizes: Sequence[int]) -> Any:
        """An output of the node that is being computed: an OrtValue."""
        out = self._outs.pointer
        self.check(self.KernelContext_GetOutput(context, index, sizes, len(sizes), out))
        return out[0]

    def options(self, session_options: CData) -> dict[str, str]:
        """The configuration entries of a session."""
        pairs = self.get(self.GetSessionOptionsConfigEntries, "void *", session_options)
        try:
            keys, values = ffi.new("const char *const **"), ffi.new("const char *const **")
            count = ffi.new("size_t *")
            self.GetKeyValuePairs(pairs, keys, values, count)
            return {
                ffi.string(keys[0][i]).decode(): ffi.string(values[0][i]).decode()
                for i in range(count[0])
            }
        finally:
            self.ReleaseKeyValuePairs(pairs)

    def pairs(self, entries: dict[str, str]) -> Any:
        """New key-value pairs, released with the last reference."""
        out = ffi.new("void **")
        self.CreateKeyValuePairs(out)
        for key, value in entries.items():
            self.AddKeyValuePair(out[0], key.encode(), value.encode())
        return ffi.gc(out[0], self.ReleaseKeyValuePairs)


def unsupported_version(version: str) -> str:
    return f"ONNX Runtime {version} is not supported: 1.{API_VERSION} or newer is needed"


_NOT_LOADED = "ONNX Runtime has not loaded the provider library yet"
_WARNING = 2
_FAIL, _INVALID_ARGUMENT, _NOT_IMPLEMENTED = 1, 2, 9


def _code(error: BaseException) -> int:
    if isinstance(error, ValidationError):
        return _INVALID_ARGUMENT
    return _NOT_IMPLEMENTED if isinstance(error, UnsupportedError) else _FAIL


_api: Api | None = None
_library: CData | None = None


def api() -> Api:
    """ONNX Runtime's functions. Only callbacks call this, after connect()."""
    if _api is None:
        raise DmlError(_NOT_LOADED)
    return _api


def library() -> CData:
    """The provider library. Only callbacks call this."""
    if _library is None:
        raise DmlError(_NOT_LOADED)
    return _library


def use(library: CData) -> None:
    """Note the provider library."""
    global _library
    _library = library


def connect(base: CData) -> Any:
    """Read ONNX Runtime's tables. Returns an OrtStatus, which is null without an error."""
    global _api
    try:
        if alive and _api is not None and _api.base != base:
            raise UnsupportedError(ANOTHER)
        _api = Api(base)
    except UnsupportedError as error:
        # All versions have its first function.
        create = ffi.cast(_ORT["CreateStatus"][1], ffi.cast("void *const *", base.GetApi(1))[0])
        return create(_NOT_IMPLEMENTED, f"kompute_dml: {error}".encode())
    return ffi.NULL


def provider_names(library: str) -> set[str]:
    """The names of the providers of which ONNX Runtime's library at a path has devices. It must be
    loaded, and its environment made."""
    ort = Api(ffi.dlopen(library).OrtGetApiBase())
    environment = ffi.gc(ort.get(ort.CreateEnv, "void *", _WARNING, b"kompute_dml"), ort.ReleaseEnv)
    devices, count = ffi.new("const void *const **"), ffi.new("size_t *")
    ort.check(ort.GetEpDevices(environment, devices, count))
    return {ffi.string(ort.EpDevice_EpName(devices[0][i])).decode() for i in range(count[0])}


# Objects that ONNX Runtime has pointers to stay here until it releases them.

alive: dict[int, Any] = {}
"""Owners of tables, by the address of the table."""


def _place(pointer: CData) -> int:
    return int(ffi.cast("intptr_t", pointer))


def keep(owner: Any) -> Any:
    """The owner's table, for ONNX Runtime to hold."""
    alive[_place(owner.table)] = owner
    return owner.table


def let_go(table: CData) -> Any:
    """Release a table. Returns its owner, or None."""
    owner = alive.pop(_place(table), None)
    if owner is not None:
        # Its handle holds it. Without it, device memory goes with the last reference.
        owner.__dict__.pop("handle", None)
    return owner


def callback(signature: str) -> Callable[[Callable[..., Any]], Any]:
    """Make a C callback of a function that cannot fail."""
    decorate: Callable[[Callable[..., Any]], Any] = ffi.callback(signature)
    return decorate


def guarded(signature: str) -> Callable[[Callable[..., None]], Any]:
    """Make a C callback that returns an OrtStatus. Exceptions become its message."""

    def decorate(function: Callable[..., None]) -> Any:
        @functools.wraps(function)
        def call(*arguments: object) -> Any:
            try:
                function(*arguments)
            except BaseException as error:
                text = str(error) if isinstance(error, DmlError) else repr(error)
                return api().CreateStatus(_code(error), f"kompute_dml: {text}".encode())
            return ffi.NULL

        return ffi.callback("OrtStatus *" + signature, call)

    return decorate
