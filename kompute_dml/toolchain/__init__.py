"""What is built before the package runs: the kp wheel, the SPIR-V, the drivers used in tests.

Standard library only, and nothing here imports the rest of the package: `bootstrap.py` runs these
modules with a bare system Python, before NumPy or kp exist.
"""
