"""DirectML's operators on any Vulkan GPU.

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
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module. Resolved at first use: the command line's help and the toolchain, which
# builds kp and the shaders, must not need either.
_PUBLIC = {
    "Adapter": "runtime.adapters",
    "list_devices": "runtime.adapters",
    "DataType": "dtypes",
    "Scalar": "dtypes",
    "AxisDirection": "attributes",
    "ConvolutionDirection": "attributes",
    "ConvolutionMode": "attributes",
    "DepthSpaceOrder": "attributes",
    "InterpolationMode": "attributes",
    "IsInfinityMode": "attributes",
    "MatrixTransform": "attributes",
    "MultiheadAttentionMaskType": "attributes",
    "PaddingMode": "attributes",
    "QuantizationType": "attributes",
    "RandomGeneratorType": "attributes",
    "RecurrentNetworkDirection": "attributes",
    "ReduceFunction": "attributes",
    "RoundingMode": "attributes",
    "ScaleBias": "attributes",
    "Size2d": "attributes",
    "TensorDesc": "desc",
    "TensorFlags": "desc",
    "FeatureLevel": "spec",
    "Tensor": "tensor",
    "Device": "device",
    "default_device": "device",
    "BindingProperties": "bindings",
    "BindingTable": "bindings",
    "Buffer": "bindings",
    "BufferBinding": "bindings",
    "CompiledOperator": "compiler",
    "ExecutionFlags": "compiler",
    "Operator": "compiler",
    "OperatorInitializer": "compiler",
    "CompiledGraph": "graph.compiled",
    "ConstantDataGraphNodeDesc": "graph.desc",
    "GraphDesc": "graph.desc",
    "InputGraphEdgeDesc": "graph.desc",
    "IntermediateGraphEdgeDesc": "graph.desc",
    "OperatorGraphNodeDesc": "graph.desc",
    "OutputGraphEdgeDesc": "graph.desc",
    "Recording": "runtime.recorder",
    "DmlError": "errors",
    "ValidationError": "errors",
    "UnsupportedError": "errors",
    "OutOfMemoryError": "errors",
    "DeviceLostError": "errors",
    "NoDeviceError": "errors",
}


def _operators() -> dict[str, Any]:
    functions = importlib.import_module(".functions", __name__).functions()
    base = importlib.import_module(".operators.base", __name__)
    descs = {d.desc_class.__name__: d.desc_class for d in base.definitions().values()}
    return {**functions, **descs}


@functools.cache
def _modules() -> frozenset[str]:
    return frozenset(m.name for m in pkgutil.iter_modules(__path__))


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    elif name == "__all__":
        value = [public for public in __dir__() if not public.startswith("_")]
    elif name.startswith("_") or name in _modules():
        raise AttributeError(name)  # of a module: the import statement goes on to import it
    else:
        operators = _operators()
        if name not in operators:
            names = importlib.import_module(".names", __name__)
            hint = names.hint(name, {*_PUBLIC, *operators})
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        value = operators[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_PUBLIC, *_operators(), "__version__"})


if TYPE_CHECKING:
    from .attributes import (
        IsInfinityMode as IsInfinityMode,
    )
    from .attributes import (
        RoundingMode as RoundingMode,
    )
    from .attributes import (
        ScaleBias as ScaleBias,
    )
    from .bindings import (
        BindingProperties as BindingProperties,
    )
    from .bindings import (
        BindingTable as BindingTable,
    )
    from .bindings import (
        Buffer as Buffer,
    )
    from .bindings import (
        BufferBinding as BufferBinding,
    )
    from .compiler import (
        CompiledOperator as CompiledOperator,
    )
    from .compiler import (
        ExecutionFlags as ExecutionFlags,
    )
    from .compiler import (
        Operator as Operator,
    )
    from .compiler import (
        OperatorInitializer as OperatorInitializer,
    )
    from .desc import TensorDesc as TensorDesc
    from .desc import TensorFlags as TensorFlags
    from .device import Device as Device
    from .device import default_device as default_device
    from .dtypes import DataType as DataType
    from .dtypes import Scalar as Scalar
    from .errors import (
        DeviceLostError as DeviceLostError,
    )
    from .errors import (
        DmlError as DmlError,
    )
    from .errors import (
        NoDeviceError as NoDeviceError,
    )
    from .errors import (
        OutOfMemoryError as OutOfMemoryError,
    )
    from .errors import (
        UnsupportedError as UnsupportedError,
    )
    from .errors import (
        ValidationError as ValidationError,
    )
    from .graph.compiled import (
        CompiledGraph as CompiledGraph,
    )
    from .graph.desc import (
        ConstantDataGraphNodeDesc as ConstantDataGraphNodeDesc,
    )
    from .graph.desc import (
        GraphDesc as GraphDesc,
    )
    from .graph.desc import (
        InputGraphEdgeDesc as InputGraphEdgeDesc,
    )
    from .graph.desc import (
        IntermediateGraphEdgeDesc as IntermediateGraphEdgeDesc,
    )
    from .graph.desc import (
        OperatorGraphNodeDesc as OperatorGraphNodeDesc,
    )
    from .graph.desc import (
        OutputGraphEdgeDesc as OutputGraphEdgeDesc,
    )
    from .runtime.adapters import Adapter as Adapter
    from .runtime.adapters import list_devices as list_devices
    from .runtime.recorder import Recording as Recording
    from .spec import FeatureLevel as FeatureLevel
    from .tensor import Tensor as Tensor
