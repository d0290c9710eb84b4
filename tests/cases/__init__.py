"""The cases of each operator: one module per family, with CASES and ERRORS."""

from __future__ import annotations

import importlib
import pkgutil

from harness import Case, ErrorCase

_MODULES = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]

CASES: list[Case] = [case for m in _MODULES for case in m.CASES]
ERRORS: list[ErrorCase] = [error for m in _MODULES for error in m.ERRORS]
