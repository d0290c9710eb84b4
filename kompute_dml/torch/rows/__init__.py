"""Lowerings by family. Their import fills the table."""

from . import (  # noqa: F401
    bessel,
    complex,
    composed,
    convolution,
    distances,
    elementwise,
    foreach,
    indices,
    linear_algebra,
    movement,
    normalization,
    polynomials,
    products,
    random,
    recurrent,
    reductions,
    resampling,
    scans,
    selection,
    special,
)
