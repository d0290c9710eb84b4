"""ONNX graphs on DirectML's operators: the mapping table, fusion, regions and their plans.

Only :mod:`.backend`, which reads ONNX models, imports onnx or onnxruntime.
"""
