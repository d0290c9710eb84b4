"""Applications that make sessions of ONNX Runtime and know nothing of this provider.

:func:`activate` puts the provider first in every session that the process makes. What
``KOMPUTE_DML_ORT`` holds says how: words with spaces between them, which are ``1``, ``explain``,
``strict`` and the provider's options, such as ``claim=all``.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from ..errors import ValidationError
from ..runtime.adapters import choose
from . import get_ep_name, in_file, register, report

if TYPE_CHECKING:
    import onnxruntime

VARIABLE = "KOMPUTE_DML_ORT"
_CPU = "CPUExecutionProvider"


class Settings:
    """What ``KOMPUTE_DML_ORT`` asks for."""

    def __init__(self, text: str) -> None:
        """Raises ValidationError for a word or an option that there is not."""
        self.options: dict[str, str] = {}
        """The provider's options."""
        self.explains = False
        """Whether the process prints at its end where each node runs."""
        for word in text.split():
            name, equals, value = word.partition("=")
            if equals:
                self.options[name] = value
            elif word == "strict":
                self.options["strict"] = "True"
            elif word == "explain":
                self.explains = True
            elif word != "1":
                raise ValidationError(f"{VARIABLE}: expected 1, explain, strict or options such as "
                                      f"claim=all, but got {word!r}")
        self.strict = _provider().Options(self.options).strict


class _Process:
    """What the sessions of one process share. A forked child has its own."""

    def __init__(self) -> None:
        self.problem: Exception | None = None
        """Why no session gets the provider, if none does."""
        self.printed: set[str] = set()
        self.explained: list[tuple[str, Sequence[Any]]] = []
        self.sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        """Those with the provider."""
        text = os.environ.get(VARIABLE, "1")
        self.strict = "strict" in text.split()
        try:
            self.settings = Settings(text)
            self.strict = self.settings.strict
            register()
            self.device = choose(self.settings.options.get("adapter")).name
        except Exception as error:  # ONNX Runtime's exceptions have no class in common
            self.problem = error
            return
        if self.settings.explains:
            # Unlike those of atexit, these are called in children of multiprocessing, too.
            util.Finalize(None, self.explain, exitpriority=0)

    def say(self, text: str) -> None:
        """Print a line on stderr, unless it was printed before."""
        line = f"kompute_dml: {' '.join(text.split())}"
        if line not in self.printed:
            self.printed.add(line)
            print(line, file=sys.stderr, flush=True)

    def note(self, session: object, title: str, decisions: Sequence[Any]) -> None:
        """Say what runs where in a session."""
        self.sessions.add(session)
        left = sum(d.where == "CPU" for d in decisions)
        self.say(f"{title}: {len(decisions) - left} of {len(decisions)} nodes on {self.device}, "
                 f"{left} on the CPU")
        if self.settings.explains:
            self.explained.append((title, decisions))

    def explain(self) -> None:
        for title, decisions in self.explained:
            print(f"{title}:\n{report(decisions)}", file=sys.stderr, flush=True)


_lock = threading.RLock()
_process: _Process | None = None
_make: Callable[..., None] | None = None
"""``InferenceSession.__init__`` as ONNX Runtime has it."""


def activate() -> None:
    """Put the provider first in every session that this process makes from now on."""
    global _make
    with _lock:
        if _make is None:
            session = importlib.import_module("onnxruntime").InferenceSession
            _make = session.__init__
            session.__init__ = functools.wraps(_make)(_make_with_us)


def _make_with_us(
    session: onnxruntime.InferenceSession, path_or_bytes: str | bytes | os.PathLike[str],
    sess_options: onnxruntime.SessionOptions | None = None, providers: Any = None,
    provider_options: object = None, **others: Any
) -> None:
    """``InferenceSession.__init__`` with the provider first.

    A model that the provider cannot take gets the providers that the application names. If the
    settings are strict, this raises instead.
    """
    assert _make is not None

    def as_asked() -> None:
        _make(session, path_or_bytes, sess_options, providers, provider_options, **others)

    process = _this_process()
    if sess_options is not None and sess_options.has_providers():
        as_asked()
        return
    if process.problem is not None:
        if process.strict:
            raise process.problem
        process.say(f"models run as the application asks: {process.problem}")
        as_asked()
        return
    if get_ep_name() in [p if isinstance(p, str) else p[0] for p in providers or ()]:
        as_asked()
        return
    title = _title(path_or_bytes)
    options = sess_options or importlib.import_module("onnxruntime").SessionOptions()
    with _provider().decisions(quiet=True) as decisions:
        try:
            _make(session, in_file.model_of(path_or_bytes, options), options,
                  [(get_ep_name(), process.settings.options), _CPU],
                  **{**others, "enable_fallback": 0})
        except Exception as error:
            if process.strict:
                _provider().check_strict(decisions)
                raise
            problem = error
        else:
            if not process.strict and int(others.get("enable_fallback", 1)):
                session.enable_fallback()
            process.note(session, title, [*decisions])
            return
    as_asked()
    process.say(f"{title} runs as the application asks: {problem}")


def _this_process() -> _Process:
    global _process
    with _lock:
        if _process is None:
            _process = _Process()
        return _process


def _title(model: str | bytes | os.PathLike[str]) -> str:
    """The name of a model in messages."""
    if isinstance(model, bytes):
        return f"a model of {len(model)} bytes"
    return os.path.basename(os.fspath(model))


def _provider() -> Any:
    return importlib.import_module(".provider", __package__)


class _OnTheCpu:
    """In a forked child, what is in the place of ONNX Runtime's session of the parent.

    The child has neither the parent's device nor the threads of its session. The first use makes a
    session on the CPU.
    """

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        # It is never freed: its end would wait for the parent's threads.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session._sess))
        self._session = session

    def __getattr__(self, name: str) -> Any:
        session = self._session
        with _lock:
            if session._sess is self:
                _this_process().say("a forked child runs its parent's models on the CPU: only the "
                                    "parent has the device")
                session._sess_options = session._sess_options_initial
                session._create_inference_session([_CPU], None)
        return getattr(session._sess, name)


def _after_fork_in_child() -> None:
    global _lock, _process
    _lock = threading.RLock()  # no thread is left to release it
    if _process is not None:
        for session in list(_process.sessions):
            session._sess = _OnTheCpu(session)
        _process = None


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
