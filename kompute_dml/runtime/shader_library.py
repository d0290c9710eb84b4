"""The compiled shaders, and which of them a device may run.

The build derives the manifest from the SPIR-V (``toolchain/spirv.py``). It lists the features that
a variant needs, its specialization constants and its push fields.
"""

from __future__ import annotations

import functools
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DmlError, UnsupportedError
from .adapters import UNASKED_FEATURES, Adapter
from .traits import asked_size, usual_subgroup

_SPIRV = Path(__file__).resolve().parents[1] / "spirv"

# SPIR-V capability -> the Vulkan features that allow it. Of other capabilities, only Shader is
# allowed.
_FEATURES_OF: dict[str, tuple[str, ...]] = {
    "Shader": (),
    "GroupNonUniform": (),  # for gl_SubgroupID: a part of Vulkan 1.1
    "GroupNonUniformArithmetic": ("subgroupArithmetic",),
    "GroupNonUniformShuffle": ("subgroupShuffle",),
    "Int8": ("shaderInt8",),
    "Int16": ("shaderInt16",),
    "Int64": ("shaderInt64",),
    "Int64Atomics": ("shaderBufferInt64Atomics",),
    "Float16": ("shaderFloat16",),
    "Float64": ("shaderFloat64",),
    "StorageBuffer8BitAccess": ("storageBuffer8BitAccess",),
    "UniformAndStorageBuffer8BitAccess": ("uniformAndStorageBuffer8BitAccess",),
    "StorageBuffer16BitAccess": ("storageBuffer16BitAccess",),
    "UniformAndStorageBuffer16BitAccess": ("uniformAndStorageBuffer16BitAccess",),
    "DotProduct": ("shaderIntegerDotProduct",),
    "DotProductInput4x8Bit": ("shaderIntegerDotProduct", "shaderInt8"),
    "DotProductInput4x8BitPacked": ("shaderIntegerDotProduct",),
    "VulkanMemoryModel": ("vulkanMemoryModel",),
    "VulkanMemoryModelDeviceScope": ("vulkanMemoryModelDeviceScope",),
    "CooperativeMatrixKHR": ("cooperativeMatrix",),
    "BFloat16TypeKHR": ("shaderBFloat16Type",),
    "BFloat16CooperativeMatrixKHR": ("shaderBFloat16CooperativeMatrix",),
}

# Name for KOMPUTE_DML_DISABLE -> the features that it switches off.
SWITCHES: dict[str, tuple[str, ...]] = {
    "int8": ("shaderInt8", "storageBuffer8BitAccess", "uniformAndStorageBuffer8BitAccess"),
    "int16": ("shaderInt16", "storageBuffer16BitAccess", "uniformAndStorageBuffer16BitAccess"),
    "int64": ("shaderInt64", "shaderBufferInt64Atomics"),
    "float16": ("shaderFloat16",),
    "float64": ("shaderFloat64",),
    "dot": ("shaderIntegerDotProduct",),
    "coopmat": ("cooperativeMatrix",),
    "bfloat16": ("shaderBFloat16Type", "shaderBFloat16CooperativeMatrix"),
}


def disabled_features() -> frozenset[str]:
    """The features that ``KOMPUTE_DML_DISABLE`` (a comma-separated list) switches off."""
    names = [n.strip() for n in os.environ.get("KOMPUTE_DML_DISABLE", "").split(",") if n.strip()]
    unknown = [n for n in names if n not in SWITCHES]
    if unknown:
        raise DmlError(
            f"KOMPUTE_DML_DISABLE: expected names among {', '.join(SWITCHES)}, "
            f"but got {', '.join(unknown)}"
        )
    return frozenset(f for n in names for f in SWITCHES[n])


MAX_CORE_BINDINGS = 8
"""Storage buffers that a device must be able to bind at once."""


@dataclass(frozen=True, eq=False)
class Variant:
    """A compiled shader. Compared by identity: a library holds each variant once."""

    name: str
    """``<shader>.<axis values in header order>``."""
    shader: str
    file: str
    features: frozenset[str] | None
    """Vulkan features that it needs. None if this package cannot enable them."""
    spec_ids: Mapping[str, tuple[int, int]]
    """Specialization constant -> (id, default)."""
    push_fields: Mapping[str, tuple[int, int]]
    """Push field -> (word offset, words)."""
    push_words: int
    bindings: int
    workgroup_size: tuple[int, ...]
    """With the defaults of the specialization constants."""
    shared_bytes: int
    unchecked: bool
    """Whether it is faster without bounds checks that a driver adds of itself."""
    sizes: Mapping[str, int]
    """Those of its axis values, which the shader's header lists."""

    @functools.cached_property
    def spirv(self) -> bytes:
        return (_SPIRV / self.file).read_bytes()

    @functools.cached_property
    def compile_cost(self) -> int:
        """An estimate of a driver's time to compile it, to compare with others': its bytes, twice
        those of a shader for matrix units."""
        on_matrix_units = "cooperativeMatrix" in (self.features or ())
        return (_SPIRV / self.file).stat().st_size * (2 if on_matrix_units else 1)

    @property
    def subgroup_size(self) -> int:
        """The size of subgroups that it is made for; 0 for any. Shaders for matrix units have it
        among their sizes, if it is not 32."""
        on_matrix_units = "cooperativeMatrix" in (self.features or ())
        return self.sizes.get("lanes", 32) if on_matrix_units else 0

    def asked_subgroup(self, adapter: Adapter, spec: Sequence[int] | np.ndarray) -> int:
        """The size of subgroups that its pipeline with these constants, by id, must ask an
        adapter's driver for; 0 for none."""
        size = self.subgroup_size
        if not size and UNASKED_FEATURES & (self.features or frozenset()):
            size = usual_subgroup(adapter)
        if not size:
            return 0
        place, usual = self.spec_ids.get("LOCAL_SIZE", (len(spec), self.workgroup_size[0]))
        invocations = int(spec[place]) if place < len(spec) else usual
        return asked_size(adapter, size, invocations)

    def pack_spec(self, values: Mapping[str, int]) -> np.ndarray:
        """The specialization constants as uint32, by id. The shader's defaults fill the rest."""
        return self._pack("specialization constant", values, *self._spec_places)

    def pack_push(self, values: Mapping[str, int | Sequence[int]]) -> np.ndarray:
        """The push block as uint32. Missing fields are 0, negative numbers wrap."""
        return self._pack("push field", values, *self._push_places)

    @functools.cached_property
    def _spec_places(self) -> tuple[dict[str, tuple[int, int]], list[int]]:
        """The place and length of each constant, and the defaults."""
        defaults = [0] * (1 + max((index for index, _ in self.spec_ids.values()), default=-1))
        for index, default in self.spec_ids.values():
            defaults[index] = default
        return {name: (index, 1) for name, (index, _) in self.spec_ids.items()}, defaults

    @functools.cached_property
    def _push_places(self) -> tuple[Mapping[str, tuple[int, int]], list[int]]:
        return self.push_fields, [0] * self.push_words

    def _pack(
        self,
        kind: str,
        values: Mapping[str, int | Sequence[int]],
        places: Mapping[str, tuple[int, int]],
        defaults: Sequence[int],
    ) -> np.ndarray:
        packed = [*defaults]
        for name, value in values.items():
            if name not in places:
                raise KeyError(f"shader {self.name} has no {kind} {name!r}")
            offset, length = places[name]
            items = [value] if isinstance(value, int) else list(value)
            if len(items) > length:
                raise ValueError(f"{self.name}: {kind} {name!r} holds {length}, got {len(items)}")
            packed[offset : offset + len(items)] = [v & 0xFFFFFFFF for v in items]
        return np.array(packed, np.uint32)


@functools.cache
def manifest() -> dict[str, Any]:
    """The build's manifest. Raises DmlError if the shaders are not compiled."""
    return _built("manifest.json")


@functools.cache
def codes() -> dict[str, int]:
    """The codes of activations and of operators of chains, from 1 on, as
    ``include/chain_operators.glsl`` has them: an operator's name without ELEMENT_WISE_ or
    ACTIVATION_, in lower case. Raises DmlError if the shaders are not compiled."""
    return _built("codes.json")


def _built(name: str) -> dict[str, Any]:
    try:
        text = (_SPIRV / name).read_text("utf-8")
    except FileNotFoundError:
        raise DmlError(
            "the shaders are not compiled: run 'python -m kompute_dml.toolchain spirv' "
            "(or 'make'), which needs glslangValidator ('apt install glslang-tools')"
        ) from None
    result: dict[str, Any] = json.loads(text)
    return result


def required_features(capabilities: Sequence[str]) -> frozenset[str] | None:
    """The Vulkan features for SPIR-V capabilities; None if a capability is unknown."""
    if any(c not in _FEATURES_OF for c in capabilities):
        return None
    return frozenset(f for c in capabilities for f in _FEATURES_OF[c])


@functools.cache
def _all_variants() -> dict[str, Variant]:
    variants = {}
    for shader, entry in manifest()["shaders"].items():
        for name, v in entry["variants"].items():
            variants[name] = Variant(
                name=name,
                shader=shader,
                file=v["file"],
                features=required_features(v["capabilities"]),
                spec_ids={n: (s["id"], s["default"]) for n, s in v["spec_constants"].items()},
                push_fields={n: (p["offset"], p["count"]) for n, p in v["push"].items()},
                push_words=max((p["offset"] + p["count"] for p in v["push"].values()), default=0),
                bindings=v["bindings"],
                workgroup_size=tuple(v["workgroup_size"]),
                shared_bytes=v["shared_bytes"],
                unchecked=v["unchecked"],
                sizes=v["sizes"],
            )
    return variants


def described(name: str) -> Variant | None:
    """The variant of this name, whether a device can run it or not. None if it was not built."""
    return _all_variants().get(name)


@functools.cache
def sizes(name: str) -> Mapping[str, int]:
    """The sizes of its axis values, as the shader's header lists them. Each is 1 if it was not
    built: no device runs it."""
    variant = described(name)
    return defaultdict(lambda: 1) if variant is None else variant.sizes


def shared_bytes(name: str) -> int:
    """Its bytes of shared memory. 0 if it was not built."""
    variant = described(name)
    return 0 if variant is None else variant.shared_bytes


def shaders() -> dict[str, tuple[str, ...]]:
    """Shader name -> names of all its compiled variants."""
    return {name: tuple(e["variants"]) for name, e in manifest()["shaders"].items()}


class ShaderLibrary:
    """The variants that a device with these enabled features may run."""

    def __init__(self, features: frozenset[str], max_bindings: int = MAX_CORE_BINDINGS) -> None:
        """``max_bindings`` is how many storage buffers a shader may bind."""
        self.features = features - disabled_features()
        self.max_bindings = max_bindings
        self._found: dict[tuple[str, ...], Variant | None] = {}

    def allows(self, variant: Variant) -> bool:
        return (variant.features is not None and variant.features <= self.features
                and variant.bindings <= self.max_bindings)

    def find(self, shader: str, *axes: str) -> Variant | None:
        """The variant ``<shader>.<axes>``, or None if it was not built or may not run here."""
        key = shader, *axes
        if key not in self._found:  # lowerings ask for the same ones again and again
            variant = _all_variants().get(".".join(key))
            self._found[key] = variant if variant is not None and self.allows(variant) else None
        return self._found[key]

    def missing(self, name: str) -> str | None:
        """Why the variant of this name cannot run here. None if it can."""
        shader, *axes = name.split(".")
        if self.find(shader, *axes) is not None:
            return None
        known = _all_variants().get(name)
        if known is None:
            there = ", ".join(shaders().get(shader, ())) or "none"
            return f"no shader variant {name}; of {shader} there are: {there}"
        lacking = sorted((known.features or frozenset()) - self.features)
        if not lacking and known.bindings > self.max_bindings:
            return (f"shader variant {name} binds {known.bindings} storage buffers, but this "
                    f"device allows {self.max_bindings} (maxPerStageDescriptorStorageBuffers)")
        return (f"shader variant {name} needs {', '.join(lacking) or 'features'} that this device "
                "does not have, or kp did not enable")

    def get(self, shader: str, *axes: str) -> Variant:
        """As :meth:`find`, but raises :class:`UnsupportedError` with the reason instead of None."""
        variant = self.find(shader, *axes)
        if variant is None:
            raise UnsupportedError(self.missing(".".join((shader, *axes))))
        return variant
