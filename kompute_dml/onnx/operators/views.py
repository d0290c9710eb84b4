"""Views: nothing is computed, but a region's outputs are copied. Dropout is one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import broadcast_sizes, product
from ...sizes import whole
from ..graph import OnnxNode
from ..lowerings import Inputs, dimension, given, host, named_axes
from ..row import COPY, Mapping


def identity(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    return [given(inputs, 0)]


def dropout(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    """Inference drops nothing. The mask says so; before version 10 it has the input's type."""
    x = given(inputs, 0)
    one = np.ones((), x.dtype if node.since < 10 else np.dtype(bool))
    mask = builder.constant(one).broadcast_to(x.shape)
    return [x, mask][: len(node.outputs)]


def reshape(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, wanted = given(inputs, 0), host(inputs, 1)
    sizes = [whole(n) for n in (() if wanted is None else wanted.reshape(-1))]
    if not node.attributes.get("allowzero", 0):
        sizes = [x.shape[d] if n == 0 else n for d, n in enumerate(sizes)]
    if -1 in sizes:
        known = product([n for n in sizes if n != -1])
        if not known:
            raise ValidationError(f"no size for -1 follows from {sizes} and {list(x.shape)}")
        sizes[sizes.index(-1)] = x.size // known
    return [_reshaped(builder, x, sizes)]


def _reshaped(builder: Builder, x: Array, sizes: Sequence[int]) -> Array:
    if product(sizes) != x.size:
        raise ValidationError(f"{list(x.shape)} cannot take the sizes {list(sizes)}")
    return builder.reshape(x, tuple(sizes))


def flatten(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    axis = node.attributes.get("axis", 1)
    return [_reshaped(builder, x, (product(x.shape[:axis]), product(x.shape[axis:])))]


def squeeze(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, axes = given(inputs, 0), named_axes(node, inputs)
    rank = len(x.shape)
    gone = ({dimension(a, rank) for a in axes} if axes is not None
            else {d for d, n in enumerate(x.shape) if n == 1})
    return [_reshaped(builder, x, [n for d, n in enumerate(x.shape) if d not in gone])]


def unsqueeze(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, axes = given(inputs, 0), named_axes(node, inputs) or []
    rank = len(x.shape) + len(axes)
    new, old = {dimension(a, rank) for a in axes}, iter(x.shape)
    if len(new) < len(axes):
        raise ValidationError(f"expected each axis once, but got {axes}")
    return [_reshaped(builder, x, [1 if d in new else next(old) for d in range(rank)])]


def transpose(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x = given(inputs, 0)
    return [x.transpose(node.attributes.get("perm", list(reversed(range(len(x.shape))))))]


def expand(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    x, wanted = given(inputs, 0), host(inputs, 1)
    sizes = tuple(whole(n) for n in (() if wanted is None else wanted.reshape(-1)))
    return [x.broadcast_to(broadcast_sizes(x.shape, sizes))]


_SHAPED = (1, 13, 14, 19, 21, 23, 24, 25)


def _dropout(node: OnnxNode) -> str | None:
    training = node.input(2)
    if training is not None and (training.constant is None or training.constant.any()):
        return "only inference: training_mode must be a constant false"
    return None if node.since >= 7 or node.attributes.get("is_test", 0) else "is_test=0"


ROWS: tuple[Mapping, ...] = (
    Mapping("Identity", (*_SHAPED, 16), COPY, identity),
    Mapping("Dropout", (1, 6, 7, 10, 12, 13, 22), "ACTIVATION_IDENTITY", dropout,
        attributes=("is_test", "ratio", "seed"), host=(1, 2), refuses=_dropout,
        results=("OutputTensor", None)),
    Mapping("Reshape", (5, *_SHAPED), COPY, reshape, attributes=("allowzero",),
            host=(1,)),
    Mapping("Squeeze", (11, *_SHAPED), COPY, squeeze, attributes=("axes",), host=(1,)),
    Mapping("Unsqueeze", (11, *_SHAPED), COPY, unsqueeze, attributes=("axes",),
            host=(1,)),
    Mapping("Flatten", (9, 11, *_SHAPED), COPY, flatten, attributes=("axis",)),
    Mapping("Transpose", _SHAPED, COPY, transpose, attributes=("perm",)),
    Mapping("Expand", (8, 13), COPY, expand, host=(1,)),
)
