"""A bounded cache of pipelines, by variant, constants, blocks and groups."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from .heap import Block
from .kp_engine import Engine, Pipeline
from .shader_library import ShaderLibrary, Variant

MAX_PIPELINES = 512

_Key = tuple[Variant, bytes, tuple[Block, ...], int]


class Pipelines:
    """The cache. The least recently used pipeline is dropped first."""

    def __init__(self, engine: Engine, library: ShaderLibrary) -> None:
        self.library = library
        self.made = 0
        """Pipelines compiled so far."""
        self._engine = engine
        self._cache: OrderedDict[_Key, Pipeline] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cache)

    def get(
        self, variant: Variant, spec: bytes, blocks: tuple[Block, ...], groups: int
    ) -> Pipeline:
        """The pipeline for ``variant`` on ``blocks``, one per binding; ``spec`` is uint32s."""
        grid = 0 if self._engine.resizes_groups else self._engine.grid_key(groups)
        key = (variant, spec, blocks, grid)
        pipeline = self._cache.get(key)
        if pipeline is None:
            pipeline = self._engine.pipeline(
                variant, [b.buffer for b in blocks], np.frombuffer(spec, np.uint32), grid
            )
            self.made += 1
            self._cache[key] = pipeline
            if len(self._cache) > MAX_PIPELINES:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(key)
        return pipeline

    def forget(self, block: Block) -> None:
        """Drop the pipelines that are bound to ``block``."""
        for key in [k for k in self._cache if block in k[2]]:
            del self._cache[key]
