"""Rows of views, movement, indices and filled tensors."""

from __future__ import annotations

from .. import gather, lowerings, movement
from ..graph import OnnxNode
from ..row import COPY, Mapping, only, only_not

_SHAPED = (1, 13, 14, 19, 21, 23, 24, 25)


def _dropout(node: OnnxNode) -> str | None:
    training = node.input(2)
    if training is not None and (training.constant is None or training.constant.any()):
        return "only inference: training_mode must be a constant false"
    return None if node.since >= 7 or node.attributes.get("is_test", 0) else "is_test=0"


def _counted(node: OnnxNode) -> str | None:
    out = node.outputs[0]
    if out is None or out.shape is None or None in out.shape:
        return "how many elements are found is known only after a run"
    return None


ROWS: tuple[Mapping, ...] = (
    # Diagonals
    Mapping("EyeLike", (9, 22), "DIAGONAL_MATRIX", lowerings.eye_like, fields=(None,),
        attributes=("dtype", "k")),
    Mapping("Trilu", (14,), "DIAGONAL_MATRIX1", lowerings.trilu, attributes=("upper",), host=(1,)),
    # Views: nothing is computed, but a region's outputs are copied
    Mapping("Identity", (*_SHAPED, 16), COPY, lowerings.identity),
    Mapping("Dropout", (1, 6, 7, 10, 12, 13, 22), "ACTIVATION_IDENTITY", lowerings.dropout,
        attributes=("is_test", "ratio", "seed"), host=(1, 2), refuses=_dropout,
        results=("OutputTensor", None)),
    Mapping("Reshape", (5, *_SHAPED), COPY, lowerings.reshape, attributes=("allowzero",),
            host=(1,)),
    Mapping("Squeeze", (11, *_SHAPED), COPY, lowerings.squeeze, attributes=("axes",), host=(1,)),
    Mapping("Unsqueeze", (11, *_SHAPED), COPY, lowerings.unsqueeze, attributes=("axes",),
            host=(1,)),
    Mapping("Flatten", (9, 11, *_SHAPED), COPY, lowerings.flatten, attributes=("axis",)),
    Mapping("Transpose", _SHAPED, COPY, lowerings.transpose, attributes=("perm",)),
    Mapping("Expand", (8, 13), COPY, lowerings.expand, host=(1,)),
    # Indices
    Mapping("Gather", (1, 11, 13), "GATHER", gather.gather, attributes=("axis",)),
    Mapping("GatherElements", (11, 13), "GATHER_ELEMENTS", gather.gather_elements,
        attributes=("axis",)),
    Mapping("GatherND", (11, 12, 13), "GATHER_ND1", gather.gather_nd, attributes=("batch_dims",)),
    *(Mapping(op, since, "SCATTER", gather.scatter("SCATTER"), attributes=("axis", "reduction"),
          refuses=only("reduction", "none", "none"))
      for op, since in (("Scatter", (9, 11)), ("ScatterElements", (11, 13, 16, 18)))),
    Mapping("ScatterND", (11, 13, 16, 18), "SCATTER_ND", gather.scatter("SCATTER_ND"),
        attributes=("reduction",), refuses=only("reduction", "none", "none")),
    *(Mapping(op, since, operator, gather.scatter(operator), attributes=attributes,
              refuses=only_not("reduction", "none", "none"))
      for op, since, operator, attributes in (
          ("ScatterElements", (16, 18), "SCATTER_REDUCE", ("axis", "reduction")),
          ("ScatterND", (16, 18), "SCATTER_ND_REDUCE", ("reduction",)))),
    Mapping("OneHot", (9, 11, 28), "ONE_HOT", gather.one_hot, attributes=("axis",), host=(1,),
        fields=(None, None, "ValuesTensor")),
    # Filled with 0 first, then the low words are written.
    Mapping("NonZero", (9, 13), "FILL_VALUE_CONSTANT", gather.nonzero, refuses=_counted,
        fields=(None,)),
    Mapping("Compress", (9, 11, 28), "GATHER", gather.gather, attributes=("axis",),
        refuses=lambda node: "how many elements are kept is known only after a run"),
    # Movement
    Mapping("Slice", (1,), "SLICE1", movement.slice_, attributes=("axes", "ends", "starts")),
    Mapping("Slice", (10, 11, 13), "SLICE1", movement.slice_, host=(1, 2, 3, 4)),
    Mapping("Split", (1, 2, 11, 13, 18), "SPLIT", movement.split,
        attributes=("axis", "num_outputs", "split"), host=(1,)),
    Mapping("Concat", (1, 4, 11, 13), "JOIN", movement.concat, attributes=("axis",)),
    Mapping("Pad", (1, 2, 11, 13, 18, 19, 21, 23, 24, 25), "PADDING1", movement.pad,
        attributes=("mode", "pads", "paddings", "value"), host=(1, 2, 3)),
    Mapping("Tile", (1, 6, 13), "TILE", movement.tile, host=(1, 2)),
    Mapping("DepthToSpace", (1, 11, 13, 28), "DEPTH_TO_SPACE1",
        movement.blocks("DEPTH_TO_SPACE1"), attributes=("blocksize", "mode")),
    Mapping("SpaceToDepth", (1, 13, 28), "SPACE_TO_DEPTH1",
        movement.blocks("SPACE_TO_DEPTH1"), attributes=("blocksize", "mode")),
    Mapping("ReverseSequence", (10, 28), "REVERSE_SUBSEQUENCES", movement.reverse_sequence,
        attributes=("batch_axis", "time_axis"), fields=("InputTensor", None)),
    # Filled tensors: large ones, whose sizes and values the host knows
    Mapping("ConstantOfShape", (9, 20, 21, 23, 24, 25), "FILL_VALUE_CONSTANT",
            movement.constant_of_shape, fields=(None,), attributes=("value",), host=(0,)),
    Mapping("Range", (11, 27), "FILL_VALUE_SEQUENCE", movement.range_, fields=(None,),
            host=(0, 1, 2), attributes=("stash_type",)),
)
