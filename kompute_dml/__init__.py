"""DirectML's operators on any Vulkan GPU, and tensors that behave like NumPy's arrays.

>>> import numpy as np, kompute_dml as dml
>>> dml.diagonal_matrix([3, 3], value=2.0).numpy()
array([[2., 0., 0.],
       [0., 2., 0.],
       [0., 0., 2.]], dtype=float32)
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

from .public import NAMESPACES, PUBLIC

__version__ = "0.1.0"


def _operators() -> dict[str, Any]:
    functions = importlib.import_module(".functions", __name__).functions()
    arrays = importlib.import_module(".arrays.registry", __name__).published()
    base = importlib.import_module(".operators.base", __name__)
    descs = {d.desc_class.__name__: d.desc_class for d in base.definitions().values()}
    return {**functions, **arrays, **descs}


@functools.cache
def _modules() -> frozenset[str]:
    return frozenset(m.name for m in pkgutil.iter_modules(__path__))


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        value = getattr(importlib.import_module(f".{PUBLIC[name]}", __name__), name)
    elif name == "__all__":
        value = [public for public in __dir__() if not public.startswith("_")]
    elif name in NAMESPACES:
        value = importlib.import_module(f".{name}", __name__)
    elif name.startswith("_"):
        raise AttributeError(name)
    elif name in _modules():  # an import statement goes on to import it
        instead = importlib.import_module(".hints", __name__).of_module(name, ())
        raise AttributeError(f"module {__name__!r} has no attribute {name!r} before "
                             f"'import {__name__}.{name}'{instead}")
    else:
        operators = _operators()
        if name not in operators:
            known = {*PUBLIC, *operators}
            hints = importlib.import_module(".hints", __name__)
            hint = hints.of_module(name, known) or hints.hint(name, known)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        value = operators[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*PUBLIC, *_operators(), *NAMESPACES, "__version__"})
