"""Graphs of operators: values, memory, and plans that are recorded once and submitted again.

It knows operators' descriptions and nothing of any format that graphs come in.
"""
