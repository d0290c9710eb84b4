"""The execution provider of kompute-dml, as ONNX Runtime's plugins are asked for it."""

from kompute_dml.onnxruntime import get_ep_name, get_ep_names, get_library_path

__all__ = ["get_ep_name", "get_ep_names", "get_library_path"]
