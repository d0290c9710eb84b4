"""The operators of ONNX by family: what lowers their nodes, and at the end of each module `ROWS`.

:mod:`.mapping`, one package up, puts the rows together.
"""
