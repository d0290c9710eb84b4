"""One ONNX node on ONNX Runtime's CPU provider, as a reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip(
    "onnxruntime", "1.27", reason="older ones shift past the width as the processor does")


def results(
    op: str, *inputs: np.ndarray | None, outputs: int = 1, domain: str = "", opset: int = 21,
    **attributes: Any,
) -> list[np.ndarray]:
    """The outputs of one node. An input of None is absent."""
    given = {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None}
    names = [f"y{i}" for i in range(outputs)]
    helper = onnx.helper
    node = helper.make_node(op, [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)],
                            names, domain=domain, **attributes)
    graph = helper.make_graph(
        [node], op,
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
         for n, x in given.items()],
        [helper.make_empty_tensor_value_info(n) for n in names],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                           providers=["CPUExecutionProvider"])
    return list(session.run(None, given))


def result(op: str, *inputs: np.ndarray | None, **more: Any) -> np.ndarray:
    return results(op, *inputs, **more)[0]
