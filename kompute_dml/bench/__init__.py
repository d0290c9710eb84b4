"""Measuring: clocks, the operators' benchmark cases, and the picture of their results."""
