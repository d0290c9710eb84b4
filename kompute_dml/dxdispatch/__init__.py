"""Models in the JSON format of DirectML's DxDispatch, run through the public API.

>>> from kompute_dml import Device, dxdispatch
>>> dxdispatch.Runner(dxdispatch.load("model.json"), Device()).run()
"""

from .model import Model, load, parse
from .runner import Runner

__all__ = ["Model", "Runner", "load", "parse"]
