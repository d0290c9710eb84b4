"""Graphs of operators: values, memory, and plans that are recorded once and submitted again.

The package knows operators' descriptions, but no file format of graphs.
"""
