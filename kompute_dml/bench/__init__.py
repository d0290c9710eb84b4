"""The benchmark: clocks, the operators' cases, and a plot of the results."""
