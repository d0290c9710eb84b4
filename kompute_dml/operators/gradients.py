"""Gradients of operators, in gather form: each element sums, in order, what reached it."""

from __future__ import annotations

from .elementwise import row

row("ACTIVATION_RELU_GRAD", shader="relu_grad")
for _name in ("CLIP_GRAD", "CLIP_GRAD1"):
    row(f"ELEMENT_WISE_{_name}", shader="clip_grad")
