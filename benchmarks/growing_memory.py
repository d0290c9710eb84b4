"""The memory of a process that runs a model at hundreds of sizes, in two sessions, and without
them: `python benchmarks/growing_memory.py [SIZES]`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import kompute_dml.onnxruntime as kompute
from kompute_dml.runtime.pipelines import Pipelines

_CHANNELS = 32


def _built() -> bytes:
    """Attention, a convolution and a pool over images of any height and width."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((_CHANNELS, 3, 3, 3)) / 5, "p": rng.standard_normal((32, 32)) / 6}
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c"], ["r"]), node("Reshape", ["r", "flat"], ["f"]),
        node("Transpose", ["f"], ["t"], perm=[0, 2, 1]), node("MatMul", ["t", "p"], ["q"]),
        node("MatMul", ["q", "f"], ["s"]), node("Softmax", ["s"], ["a"]),
        node("MatMul", ["a", "t"], ["o"]), node("GlobalAveragePool", ["r"], ["g"]),
        node("ReduceMean", ["o", "axis"], ["m"]), node("Reshape", ["g", "row"], ["h"]),
        node("Add", ["m", "h"], ["y"])]
    arrays = {name: x.astype(np.float32) for name, x in constants.items()}
    arrays |= {"flat": np.int64([1, _CHANNELS, -1]), "row": np.int64([1, 1, _CHANNELS]),
               "axis": np.int64([1])}
    graph = helper.make_graph(
        nodes, "sizes", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, _CHANNELS])],
        [numpy_helper.from_array(x, name) for name, x in arrays.items()])
    model: Any = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _resident() -> int:
    """MiB of the process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS"))
    return int(line.split()[1]) >> 10


def _report(what: str) -> None:
    gc.collect()
    caches = [x for x in gc.get_objects() if isinstance(x, Pipelines)]
    print(f"{what:34} {_resident():6} MiB, {sum(len(x._compiled) for x in caches):4} compiled, "
          f"{sum(x.nbytes for x in caches) >> 20:5} MiB of pipelines by estimate", flush=True)


def main(count: int) -> None:
    kompute.register()
    built, rng = _built(), np.random.default_rng(1)
    sizes = rng.permutation([(h, w) for h in range(9, 49) for w in range(9, 49)])[: 2 * count]
    sessions = []
    for part in (sizes[:count], sizes[count:]):
        sessions.append(kompute.session(built, claim="all"))
        _report(f"session {len(sessions)}")
        for i, (h, w) in enumerate(part):
            sessions[-1].run(None, {"x": np.ones((1, 3, h, w), np.float32)})
            if i + 1 in (16, count):
                _report(f"session {len(sessions)} after {i + 1} sizes")
    del sessions[0]
    kompute.session(built, claim="all")
    _report("without the first one")
    sessions.clear()
    kompute.session(built, claim="all")
    _report("without both")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
