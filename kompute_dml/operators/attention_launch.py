"""How kernels of attention divide the work, and their dispatches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..lowering import measured
from ..lowering.builder import PlanBuilder
from ..lowering.elementwise import float_bits
from ..lowering.kernel import Kernel
from ..lowering.plan import UNUSED
from ..lowering.walk import Walk
from ..runtime.shader_library import Variant
from ..runtime.traits import DeviceTraits
from .attention_problem import Attention


@dataclass(frozen=True)
class Launch:
    """The constants of a kernel, and how it divides the work."""

    tiles: int
    """Workgroups for each key head, without parts of the keys."""
    keys: int
    """A part of the keys is a multiple of this."""
    spec: Mapping[str, int]
    push: Mapping[str, int] = field(default_factory=dict)
    busy: int = 2
    """The keys are divided if there are fewer workgroups for each core."""
    least: int = 4
    """The least tiles of keys in a part, if there are enough."""
    most: int = 1 << 30
    makes_parts: bool = False
    """Whether another shader finishes its outputs, even of a single part."""
    finishes: bool = False
    """Whether it combines the parts itself."""
    shares: int = 1
    """Partial results for each part."""
    shared: int = 0
    """Bytes of shared memory of a workgroup, where constants decide; else 0."""

    def split(self, a: Attention, traits: DeviceTraits) -> tuple[int, int]:
        """The number of parts of the keys, enough to fill the device, and the keys of a part."""
        tiles = -(-a.reach // self.keys)
        wanted = min(max(1, self.busy * traits.cores // (self.tiles * a.stacks)),
                     -(-tiles // self.least))
        span = min(-(-tiles // wanted), self.most)
        passes = 2 * (2 * a.h.head_size + 256)  # of a tile, and as many to be sure
        span = min(tiles, span, max(1, traits.max_loop_passes // passes))
        return -(-tiles // span), span * self.keys


class AttentionKernel(Kernel[Attention]):
    """A kernel of attention. Its estimate is a rank."""

    def launch(self, a: Attention, traits: DeviceTraits) -> Launch:
        """What it runs."""
        raise NotImplementedError

    def takes(self, a: Attention, variant: Variant, traits: DeviceTraits) -> tuple[int, int]:
        launch = self.launch(a, traits)
        return launch.spec["LOCAL_SIZE"], launch.shared or variant.shared_bytes

    def lower(self, a: Attention, p: PlanBuilder) -> None:
        """Dispatch it, in parts of the keys where that fills the device."""
        h, desc, kernel = a.h, a.desc, self.launch(a, p.device)
        groups, (parts, span) = kernel.tiles * a.stacks, kernel.split(a, p.device)
        split = not kernel.finishes and (parts > 1 or kernel.makes_parts or a.sinks)
        rows = h.batches * h.heads * h.queries
        to = p.write("output_tensor")
        more: dict[str, Any] = {}
        if split:
            to = p.temporary(4, rows * parts * kernel.shares * (h.value_size + 2))
        if kernel.finishes:
            more["records"] = p.temporary(4, rows * parts * kernel.shares * (h.value_size + 4))
            more["arrived"] = p.zeroed(4, groups)
        bias = desc.relative_position_bias_tensor
        relative = bias.strides[-4:] if bias is not None else (0,) * 4
        lengths = getattr(desc, h.lengths) if h.lengths else None
        by = (*(x.strides for x in a.lines), a.y_strides)
        variant = p.library.get(*self.shader(a).split("."))
        spec = {"TYPE": a.type.code, "OF_BFLOAT16": a.is_bfloat16,
                "RELATIVE": bias is not None, "MASK": int(desc.mask_type),
                "CAUSAL": h.lengths is not None, "SPLIT": split, "WINDOW": a.window,
                "SOFT_CAP": float_bits(a.soft_cap), **kernel.spec}
        p.dispatch(
            variant, groups * parts,
            q=a.query.operand, k=a.key.operand, v=a.value.operand, mask=p.read("mask_tensor"),
            relative=p.read("relative_position_bias_tensor"),
            lengths=p.read(h.lengths) if h.lengths else UNUSED, y=to, **more,
            params=[*(x[3] for x in by), *relative, *a.mask_strides],
            push={"batches": h.batches, "key_heads": h.key_heads,
                  "group": h.heads // h.key_heads, "queries": h.queries, "keys": h.keys,
                  "parts": parts, "span": span, "scale": float_bits(desc.scale),
                  "filter_value": float_bits(desc.mask_filter_value),
                  "lengths_stride": lengths.strides[-1] if lengths else 0, **kernel.push,
                  **{f"{name}_by": x[:3] for name, x in zip("qkvy", by)}},
            spec={name: value for name, value in spec.items() if name in variant.spec_ids})
        if split:
            sizes, local_size = (h.batches, h.heads, h.queries, h.value_size), min(
                256, p.device.max_invocations)
            walk, each = Walk(sizes, a.y_strides), 4 if h.value_size % 4 == 0 else 1
            p.dispatch(
                "attention_combine", -(-walk.count // (each * local_size)),
                records=to.reading(), y=p.write("output_tensor"),
                sink=p.read("sink_tensor") if a.sinks else UNUSED, params=walk.words,
                push={"count": walk.count, "value_size": h.value_size,
                      "parts": parts * kernel.shares, "y_step": a.y_strides[3],
                      "queries": h.queries, "heads": h.heads},
                spec={"LOCAL_SIZE": local_size, "TYPE": a.type.code, "FOURS": each == 4,
                      "SINK": a.sinks, "OF_BFLOAT16": a.is_bfloat16})


def has_many_keys(a: Attention, traits: DeviceTraits) -> bool:
    """Whether all queries together see so many keys that parts of them pay off."""
    return a.reach >= measured.figure(traits, "attention", "many_keys")
