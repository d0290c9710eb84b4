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

from .public import PUBLIC

__version__ = "0.1.0"

def _operators() -> dict[str, Any]:
    functions = importlib.import_module(".functions", __name__).functions()
    arrays = importlib.import_module(".arrays", __name__).functions()
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
    elif name.startswith("_") or name in _modules():
        raise AttributeError(name)  # of a module: the import statement goes on to import it
    else:
        operators = _operators()
        if name not in operators:
            known = {*PUBLIC, *operators}
            instead = importlib.import_module(".instead", __name__).of_module(name, known)
            hint = instead or importlib.import_module(".names", __name__).hint(name, known)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        value = operators[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*PUBLIC, *_operators(), "__version__"})
