"""ONNX graphs onto DirectML's operators: the mapping table, fusion, regions and their plans.

Nothing here imports onnx or onnxruntime but :mod:`.backend`, which reads ONNX models.
"""
