"""An RMS normalization that is spelled out: x / sqrt(mean(x^2) + epsilon), times a scale. Where it
is computed in FLOAT32 between CASTs of FLOAT16, these go, too."""

from __future__ import annotations

from ...desc import TensorDesc
from ...dtypes import DataType
from ...layout import packed_strides
from ..memory import Storage
from ..node import (
    OTHER,
    Node,
    Nodes,
    alike,
    class_of,
    fused_by,
    has_scale_bias,
    moved,
    next_user,
    output_of,
)
from ..norm_parts import along, mean_square, repeated
from ..rewrite import rewrite


@rewrite("rms_norm_pattern",
         "an RMS normalization that is spelled out is MEAN_VARIANCE_NORMALIZATION2", 55)
def rms_norm_pattern(g: Nodes) -> None:
    for root in g:
        if root.name == "ELEMENT_WISE_SQRT" and not has_scale_bias(root):
            _replace(g, root)


def _replace(g: Nodes, root: Node) -> None:
    under = mean_square(g, root)
    if under is None:
        return
    square, mean = under.square, under.mean
    last, between = _scaled(g, root)
    if last is None:
        return
    side = next((s for s in OTHER if g.maker(last, s) is (between[-1] if between else root)), "")
    x_slot = "a_tensor" if last.name == "ELEMENT_WISE_DIVIDE" else OTHER.get(side, "")
    if not side or not x_slot or x_slot == side:
        return
    x, storage = last.tensor(x_slot), last.storages[x_slot]
    packed = moved(x, x.sizes, packed_strides(x.sizes))
    axes = mean.desc.axes
    if not (square.storages[under.slot].begins_as(storage)
            and alike(square.tensor(under.slot), packed) and alike(x, packed)
            and alike(output_of(square), packed) and alike(mean.tensor("input_tensor"), packed)
            and alike(output_of(last), packed) and alike(last.tensor(side), repeated(x, axes))):
        return
    replaced = [square, mean, under.plus, root, *between, last]
    x, storage = _before_cast(g, last, x_slot, x, storage)
    end = _after_cast(g, last, x)
    if end is None:
        return
    replaced += [end] if end is not last else []
    storages, scale = {"input_tensor": storage}, None
    if (user := next_user(g, end, ("ELEMENT_WISE_MULTIPLY",))) is not None and (
            not fused_by(end) and along(user, axes)):
        end, other = user[0], OTHER[user[1]]
        storages["scale_tensor"], scale = end.storages[other], end.tensor(other)
        replaced.append(end)
    storages["output_tensor"] = end.storages["output_tensor"]
    norm = class_of("MEAN_VARIANCE_NORMALIZATION2")(
        input_tensor=x, scale_tensor=scale, bias_tensor=None, output_tensor=output_of(end),
        axes=axes, axis_count=len(axes), use_mean=False, use_variance=True, epsilon=under.epsilon,
        fused_activation=None)
    g.replace(replaced, Node(norm, storages, root.label))


def _scaled(g: Nodes, root: Node) -> tuple[Node | None, list[Node]]:
    """What divides by the root or multiplies by its reciprocal, and what makes the reciprocal."""
    user = g.only_user(root)
    if user is None:
        return None, []
    node, slot = user
    if node.name == "ELEMENT_WISE_DIVIDE" and slot == "b_tensor":
        if node.number("a_tensor") != 1:
            return node, []
    elif node.name != "ELEMENT_WISE_RECIP" or has_scale_bias(node):
        return None, []
    after = g.only_user(node)
    if after is None or after[0].name != "ELEMENT_WISE_MULTIPLY":
        return None, []
    return after[0], [node]


def _before_cast(
    g: Nodes, last: Node, slot: str, x: TensorDesc, storage: Storage
) -> tuple[TensorDesc, Storage]:
    """What was cast to FLOAT32, where it is FLOAT16 in the same order. Statistics are summed in
    FLOAT32 all the same."""
    cast = g.maker(last, slot)
    if cast is None or cast.name != "CAST" or x.data_type is not DataType.FLOAT32 or (
            not _same_order(cast) or not alike(output_of(cast), x)
            or cast.tensor("input_tensor").data_type is not DataType.FLOAT16):
        return x, storage
    return cast.tensor("input_tensor"), cast.storages["input_tensor"]


def _after_cast(g: Nodes, last: Node, x: TensorDesc) -> Node | None:
    """The last operator, behind a CAST to the type that is normalized; None if types differ."""
    if output_of(last).data_type is x.data_type:
        return last
    user = next_user(g, last, ("CAST",))
    if user is None or fused_by(last) or not _same_order(user[0]) or (
            output_of(user[0]).data_type is not x.data_type):
        return None
    return user[0]


def _same_order(cast: Node) -> bool:
    read, written = cast.tensor("input_tensor"), output_of(cast)
    return (read.sizes, read.strides) == (written.sizes, written.strides)
