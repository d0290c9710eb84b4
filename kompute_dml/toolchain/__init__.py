"""The builds that the package needs before it runs: kp's wheel, the SPIR-V, drivers for tests.

These modules use only the standard library and do not import the rest of the package:
`bootstrap.py` runs them with a bare system Python, without NumPy or kp.
"""
