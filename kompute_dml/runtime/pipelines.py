"""Pipelines, by variant and constants, and their bindings to blocks. Both caches are bounded.

A pipeline takes most drivers up to a second. So graphs say early what they need
(:meth:`Pipelines.begin`), and threads compile it while the host plans on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from .heap import Block
from .kp_engine import Engine, Pipeline
from .shader_library import ShaderLibrary, Variant

MAX_PIPELINES = 512
"""The most pipelines that are bound to blocks, ..."""
MAX_BYTES = 1 << 30
"""... and the most bytes, by estimate, of those that are compiled for any blocks. The newest one
stays in any case."""
_BYTES_OF_CPU, _BYTES = 240, 24
"""Bytes of a pipeline for each byte of its shader, of drivers for the CPU and of others. 18
pipelines of a model with products, a convolution and reductions take some 350 MB on lavapipe."""
THREADS, THREADS_OF_CPU = 16, 4
"""The most threads that compile ahead, for a GPU and for a CPU driver, which takes up to gigabytes
for a pipeline."""
SLOW = 256 << 10
"""The least cost to compile of what does not wait until all is known. These are products and
convolutions on matrix units with a tail, which took an H200's driver 870 ms and more; all others of
ResNet-50 took 460 at most."""

Shader = tuple[Variant, bytes]
"""A variant and its constants."""
_Key = tuple[Variant, bytes, tuple[Block, ...], int]


class Compiled:
    """A pipeline for any blocks. Who needs it first compiles it, and others wait."""

    def __init__(self, engine: Engine, variant: Variant, spec: bytes) -> None:
        self._engine = engine
        self._variant = variant
        self._spec = spec
        self._lock = threading.Lock()
        self._made: Any = None

    def get(self) -> Any:
        """kp's pipeline. Raises DmlError; the next call then tries again."""
        with self._lock:
            if self._made is None:
                self._made = self._engine.compile(
                    self._variant, np.frombuffer(self._spec, np.uint32))
            return self._made


class Pipelines:
    """The caches. The least recently used pipeline is dropped first."""

    def __init__(self, engine: Engine, library: ShaderLibrary) -> None:
        self.library = library
        self.made = 0
        """Pipelines bound to blocks so far."""
        self._engine = engine
        self._cache: OrderedDict[_Key, Pipeline] = OrderedDict()
        self._compiled: OrderedDict[Shader, Compiled] = OrderedDict()
        self._living: weakref.WeakValueDictionary[Shader, Compiled] = (
            weakref.WeakValueDictionary())
        """All that somebody holds: the cache, or a plan that needs them at its next run."""
        self.nbytes = 0
        """The estimated bytes of those that are compiled for any blocks."""
        self._users: Counter[Shader] = Counter()
        self.left: deque[Iterable[Shader]] = deque()
        """Shaders whose users have gone, which may happen in any thread: see :meth:`drop_left`."""
        self._abandoned: Collection[Compiled] = ()
        most = THREADS_OF_CPU if engine.adapter.is_cpu else THREADS
        self._ahead = _Ahead(min(most, os.cpu_count() or 1), engine.keep_compiled)

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
            buffers = [b.buffer for b in blocks]
            if self._engine.shares_pipelines:
                compiled = self._shared(variant, spec).get()
                pipeline = self._engine.bound(variant, compiled, buffers)
            else:
                pipeline = self._engine.pipeline(
                    variant, buffers, np.frombuffer(spec, np.uint32), grid)
            self.made += 1
            self._cache[key] = pipeline
            if len(self._cache) > MAX_PIPELINES:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(key)
            if (variant, spec) in self._compiled:  # what is bound is in use
                self._compiled.move_to_end((variant, spec))
        return pipeline

    def begin(self, wanted: Iterable[Shader]) -> list[Compiled]:
        """Let threads compile what :meth:`get` will ask for, the slowest first. It reports what
        goes wrong. Who holds the result keeps them: none is compiled again."""
        if not self._engine.shares_pipelines:
            return []
        keys = sorted(dict.fromkeys(wanted), key=lambda key: -key[0].compile_cost)
        new = {key for key in keys if key not in self._living}
        held = {key: self._shared(*key) for key in keys}
        self._ahead.add([held[key] for key in keys
                         if key in new or self._ahead.is_spare(held[key])])
        return [*held.values()]

    def begin_ahead(self, shaders: Collection[Shader]) -> None:
        """Let threads compile what :meth:`get` may ask for later, once there is nothing else to do,
        while pipelines take at most half of what they may."""
        if not self._engine.shares_pipelines:
            return
        new = []
        for key in sorted(shaders, key=lambda key: key[0].compile_cost):
            if key not in self._living and self.nbytes + self._estimate(key) <= MAX_BYTES // 2:
                new.append(self._shared(*key))
        self._ahead.add_spare(new)

    def _shared(self, variant: Variant, spec: bytes) -> Compiled:
        key = variant, spec
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._living.get(key) or Compiled(self._engine, variant, spec)
            self._compiled[key] = self._living[key] = compiled
            self.nbytes += self._estimate(key)
            oldest = iter([*self._compiled][:-1] if self.nbytes > MAX_BYTES else ())
            while self.nbytes > MAX_BYTES and (shader := next(oldest, None)) is not None:
                self._drop({shader})
        else:
            self._compiled.move_to_end(key)
        return compiled

    def _estimate(self, shader: Shader) -> int:
        """The bytes of a pipeline."""
        of_each = _BYTES_OF_CPU if self._engine.adapter.is_cpu else _BYTES
        return len(shader[0].spirv) * of_each

    def _drop(self, shaders: Collection[Shader], *, unused: bool = False) -> None:
        """Drop what is compiled of shaders. Recordings that have it go on. Those that are
        ``unused`` are not compiled any more, where threads have not begun."""
        for shader in shaders:
            if (compiled := self._compiled.pop(shader, None)) is not None:
                self._ahead.leave_out(compiled, waiting=unused)
                self.nbytes -= self._estimate(shader)
        for key in [k for k in self._cache if k[:2] in shaders]:
            del self._cache[key]

    def use(self, shaders: Iterable[Shader]) -> None:
        """Note a user of each shader, until it is in :attr:`left`."""
        self._users.update(shaders)

    def drop_left(self) -> None:
        """Drop the pipelines whose last user has gone. Those of shaders that never had one stay:
        plain calls use them."""
        gone = set()
        while self.left:
            for shader in self.left.popleft():
                self._users[shader] -= 1
                if self._users[shader] <= 0:
                    del self._users[shader]
                    gone.add(shader)
        if gone:
            self._drop(gone, unused=True)
            _return_freed()

    def forget(self, block: Block) -> None:
        """Drop the pipelines that are bound to ``block``."""
        for key in [k for k in self._cache if block in k[2]]:
            del self._cache[key]

    def stop(self) -> None:
        """Compile nothing ahead any more. Waits for what is being compiled."""
        self._ahead.stop()

    def abandon(self) -> None:
        """Forget the threads of another process, which may hold locks here."""
        # Kept, because kp's destructors would call the driver.
        self._abandoned = [*self._living.values()]
        self._compiled, self.nbytes, self._living = OrderedDict(), 0, weakref.WeakValueDictionary()
        self._ahead = _Ahead(0, lambda: None)
        self._ahead.stop()


def _return_freed() -> None:
    """Let the C library return to the system what a driver's compiler has freed, which glibc keeps:
    5 to 10 MB for each pipeline of a driver for the CPU."""
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


class _Ahead:
    """Threads that compile. They end when there is nothing left to do."""

    def __init__(self, most: int, at_end: Callable[[], None]) -> None:
        """There are at most so many. The last one calls ``at_end`` before it ends."""
        self._most = most
        self._at_end = at_end
        self._waiting: deque[Compiled] = deque()
        self._spare: dict[Compiled, None] = {}
        """What is compiled once nothing is waiting."""
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def add(self, new: list[Compiled]) -> None:
        if self._stopped or not new:
            return
        self._waiting.extend(new)
        self._start()

    def add_spare(self, new: list[Compiled]) -> None:
        if self._stopped or not new:
            return
        self._spare.update(dict.fromkeys(new))
        self._start()

    def leave_out(self, compiled: Compiled, *, waiting: bool) -> None:
        """Do not compile it, if it is spare, or ``waiting``, too."""
        self._spare.pop(compiled, None)
        if waiting:
            with contextlib.suppress(ValueError):
                self._waiting.remove(compiled)

    def is_spare(self, compiled: Compiled) -> bool:
        """Whether it is compiled once nothing is waiting."""
        return compiled in self._spare

    def _next(self) -> Compiled:
        """What is to be compiled now. Raises LookupError if there is nothing left."""
        try:
            compiled = self._waiting.popleft()
        except IndexError:
            return self._spare.popitem()[0]
        self._spare.pop(compiled, None)
        return compiled

    @property
    def _has_work(self) -> bool:
        return bool(self._waiting or self._spare)

    def _start(self) -> None:
        """Start a thread, if there is work for one. It starts the next, so that who plans waits
        for one start."""
        # No thread can start while the interpreter ends. Then get() compiles.
        with contextlib.suppress(RuntimeError), self._lock:
            if not self._has_work or self._stopped or len(self._threads) >= self._most:
                return
            thread = threading.Thread(target=self._work, name="kompute_dml-compile", daemon=True)
            self._threads.add(thread)
            try:
                thread.start()
            except BaseException:
                self._threads.discard(thread)
                raise

    def _work(self) -> None:
        try:
            self._start()
            while self._has_more():
                with contextlib.suppress(LookupError):  # another thread has it
                    compiled = self._next()
                    with contextlib.suppress(Exception):  # get() tries again, and reports it
                        compiled.get()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _has_more(self) -> bool:
        """Whether this thread goes on."""
        with self._lock:
            if self._has_work:
                return True
            if self._stopped or len(self._threads) > 1:
                self._threads.discard(threading.current_thread())
                return False
        self._at_end()
        with self._lock:
            if not self._has_work:
                self._threads.discard(threading.current_thread())
            return self._has_work

    def stop(self) -> None:
        self._stopped = True
        self._waiting.clear()
        self._spare.clear()
        with self._lock:
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join()
