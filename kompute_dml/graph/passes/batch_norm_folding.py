"""A batch normalization with constant parameters is folded into the convolution before it."""

from __future__ import annotations

from ...attributes import ConvolutionDirection, ScaleBias
from ...desc import TensorDesc
from ...layout import packed_strides
from ..memory import Storage
from ..node import Node, Nodes, alike, changed, class_of, fused_by, output_of
from ..rewrite import rewrite

_Value = tuple[Storage, TensorDesc]


@rewrite("batch_norm_folding",
         "a batch normalization of constants goes into the convolution before it", 10)
def batch_norm_folding(g: Nodes) -> None:
    """Scale filter and bias once: operators of constants run when the plan is built."""
    if not g.folds:
        return
    for convolution in g:
        if convolution.name != "CONVOLUTION" or fused_by(convolution) is not None:
            continue
        if (user := g.only_user(convolution)) is None:
            continue
        norm = user[0]
        d = norm.desc
        e = convolution.desc
        if (norm.name != "BATCH_NORMALIZATION" or user[1] != "input_tensor" or not d.spatial
                or e.direction != ConvolutionDirection.FORWARD
                or not alike(output_of(convolution), d.input_tensor)
                or not all(norm.storages[f].root.constant for f in _PARAMETERS)
                or not all(convolution.storages[f].root.constant for f in
                           ("filter_tensor", "bias_tensor") if f in convolution.storages)):
            continue
        filter_, bias = _Scaled(g, convolution, norm).made()
        new = changed(
            convolution, {"filter_tensor": filter_[0], "bias_tensor": bias[0],
                          "output_tensor": norm.storages["output_tensor"]},
            filter_tensor=filter_[1], bias_tensor=bias[1], output_tensor=d.output_tensor,
            fused_activation=fused_by(norm))
        g.replace([convolution, norm], new)


_PARAMETERS = ("mean_tensor", "variance_tensor", "scale_tensor", "bias_tensor")


class _Scaled:
    """The operators that compute a convolution's new filter and bias."""

    def __init__(self, g: Nodes, convolution: Node, norm: Node) -> None:
        self._g = g
        self._convolution, self._norm = convolution, norm
        self._nodes: list[Node] = []
        y = output_of(norm)
        self._sizes = (1, y.sizes[1], *[1] * (len(y.sizes) - 2))

    def made(self) -> tuple[_Value, _Value]:
        mean, variance, scale, bias = (self._vector(self._norm, f) for f in _PARAMETERS)
        d = self._norm.desc
        root = self._apply("ELEMENT_WISE_SQRT", variance, scale_bias=ScaleBias(1.0, d.epsilon))
        factor = self._apply("ELEMENT_WISE_DIVIDE", scale, root)
        w = self._convolution.storages["filter_tensor"], self._convolution.tensor("filter_tensor")
        by_filter = factor[0], TensorDesc(w[1].data_type, w[1].sizes, (
            1, *[0] * (len(w[1].sizes) - 1)))
        filter_ = self._apply("ELEMENT_WISE_MULTIPLY", w, by_filter)
        if "bias_tensor" in self._convolution.storages:
            own = self._vector(self._convolution, "bias_tensor")
            difference = self._apply("ELEMENT_WISE_SUBTRACT", own, mean)
        else:
            difference = self._apply("ELEMENT_WISE_NEGATE", mean)
        shifted = self._apply("ELEMENT_WISE_ADD",
                              self._apply("ELEMENT_WISE_MULTIPLY", difference, factor), bias)
        for node in reversed(self._nodes):
            self._g.insert(node)
        return filter_, shifted

    def _vector(self, node: Node, slot: str) -> _Value:
        """A tensor with one number per channel, or one for all channels."""
        t = node.tensor(slot)
        by = t.strides[1] if t.sizes[1] > 1 else 0
        strides = (0, by, *[0] * (len(self._sizes) - 2))
        return node.storages[slot], TensorDesc(
            t.data_type, self._sizes, strides,
            guaranteed_base_offset_alignment=t.guaranteed_base_offset_alignment)

    def _apply(self, name: str, *values: _Value, **attributes: object) -> _Value:
        sizes = values[0][1].sizes
        y = TensorDesc(values[0][1].data_type, sizes, packed_strides(sizes))
        storage = self._g.make(y.total_tensor_size_in_bytes)
        slots = ("input_tensor",) if len(values) == 1 else ("a_tensor", "b_tensor")
        desc = class_of(name)(**dict(zip(slots, [t for _, t in values])), output_tensor=y,
                              **attributes)
        storages = dict(zip(slots, [s for s, _ in values])) | {"output_tensor": storage}
        self._nodes.append(Node(desc, storages, self._norm.label))
        return storage, y
