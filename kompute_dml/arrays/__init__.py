"""NumPy's functions over tensors: its names, its promotion of types, its arguments.

They call the function level (:mod:`~kompute_dml.functions`), which has DirectML's names and does
not promote types. Where both use a name (``max``), ``kompute_dml`` publishes one function for both.
Importing a module registers its functions, and attaches some of them to tensors.
"""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
