"""Products of few rows by quantized or FLOAT16 weights, as decoders have them for each token, in
few dispatches."""

from __future__ import annotations

from typing import Any

from ...desc import TensorDesc
from ...operators.matrix_multiply import decode, decode_kernels
from ...operators.matrix_multiply.blocked_weights import BlockedGemmDesc
from ..memory import Storage
from ..node import OTHER, Node, Nodes, alike, class_of, fused_by
from ..rewrite import rewrite

ON_CPUS = False
"""Whether drivers that compute on the CPU get these products, too. They multiply faster in others.
"""
_NORMALIZATION = "MEAN_VARIANCE_NORMALIZATION2"


@rewrite("decode_products",
         "up to three products of at most 8 rows are one product, with the RMS normalization "
         "before them and the SwiGLU after them. Their weights are in blocks, or constants of "
         "FLOAT16. A CPU driver keeps them apart", 125)
def decode_products(g: Nodes) -> None:
    if g.traits.is_cpu and not ON_CPUS:
        return
    groups: dict[Any, list[Node]] = {}
    for node in g:
        if (type(node.desc) is BlockedGemmDesc and decode.takes(node.desc)) or _is_plain(node):
            groups.setdefault(_key(node), []).append(node)
    for group in groups.values():
        while group:
            count = next((n for n in range(min(len(group), decode_kernels.MOST_PARTS), 0, -1)
                          if decode.serves(g.target, [node.desc for node in group[:n]])),
                         None)
            if count is None:
                break
            _join(g, group[:count])
            del group[:count]


def _is_plain(node: Node) -> bool:
    return type(node.desc) is class_of("GEMM") and (
        node.storages["b_tensor"].root.constant and decode.takes_plain(node.desc))


def _key(node: Node) -> Any:
    """Equal for products that one dispatch can compute."""
    d = node.desc
    a, c = node.storages["a_tensor"], node.storages.get("c_tensor")
    alone = c is not None and not c.root.constant  # what is added might not be there yet
    by_row = c is not None and d.c_tensor.strides[-2] != 0
    common = (a.root, a.begin, d.a_tensor, c is None, by_row, node if alone else None)
    if _is_plain(node):
        return common
    strides = [t and (t.data_type, t.strides[0], t.sizes[1])
               for t in (d.b_scale_tensor, d.b_zero_point_tensor)]
    return (*common, d.b_tensor.data_type, d.b_tensor.strides[-1], *strides, d.block_size)


def _join(g: Nodes, group: list[Node]) -> None:
    """One node in the place of several products, and of what is around them."""
    first = group[0]
    d = first.desc
    gated = _gate(g, group)
    if gated is not None:
        group = [*gated[:2]]
    old: list[Node] = [*group, *(gated[2:] if gated else ())]
    fields: dict[str, Any] = {
        "a_tensor": first.tensor("a_tensor"), "alpha": 1.0, "beta": 1.0, "trans_a": 0, "trans_b": 0,
        "fused_activation": None, "block_size": getattr(d, "block_size", 0), "epsilon": 0.0,
        "gated": int(gated is not None)}
    storages = {"a_tensor": first.storages["a_tensor"]}
    norm = _norm(g, group)
    if norm is not None:
        old.append(norm)
        root_mean_square = norm.desc
        fields |= {"a_tensor": _rows(norm.tensor("input_tensor"), fields["a_tensor"]),
                   "gamma_tensor": norm.tensor("scale_tensor"),
                   "epsilon": root_mean_square.epsilon}
        storages |= {"a_tensor": norm.storages["input_tensor"],
                     "gamma_tensor": norm.storages["scale_tensor"]}
    for n, node in enumerate(group):
        for slot, to in zip(decode_kernels.slots(0), decode_kernels.slots(n)):
            if slot in node.storages and not (gated and "output" in slot):
                fields[to], storages[to] = node.tensor(slot), node.storages[slot]
    if gated is not None:
        y = gated[-1]
        fields["output_tensor"] = _rows(y.tensor("output_tensor"), first.tensor("output_tensor"))
        storages["output_tensor"] = y.storages["output_tensor"]
    joined = Node(decode.DecodeProductDesc(**fields), storages, first.label)
    # Products of several parts read only constants beside A.
    g.replace(old, joined, first=len(group) > 1)


def _rows(t: TensorDesc, like: TensorDesc) -> TensorDesc:
    """Packed memory as the matrix that ``like`` has."""
    return TensorDesc(t.data_type, like.sizes, like.strides,
                      guaranteed_base_offset_alignment=t.guaranteed_base_offset_alignment)


def _norm(g: Nodes, group: list[Node]) -> Node | None:
    """The normalization by the root mean square that makes A, if only the group reads it."""
    node = g.maker(group[0], "a_tensor")
    if node is None or node.name != _NORMALIZATION or type(node.desc) is not class_of(
            _NORMALIZATION):
        return None
    d = node.desc
    x, y, gamma = d.input_tensor, d.output_tensor, d.scale_tensor
    fits = (not d.use_mean and d.use_variance and d.bias_tensor is None and gamma is not None
            and fused_by(node) is None and tuple(d.axes) == (x.dimension_count - 1,)
            and x.is_packed and y.is_packed and alike(x, y)
            and gamma.strides[-1] == 1 and gamma.sizes[-1] == x.sizes[-1]
            and not any(s for s, n in zip(gamma.strides[:-1], gamma.sizes[:-1]) if n > 1)
            and gamma.data_type is x.data_type and x.base_alignment % 16 == 0
            and gamma.base_alignment % 16 == 0)
    output: Storage = node.storages["output_tensor"]
    if not fits or not g.is_whole(output) or any(
            user not in group or slot != "a_tensor" for user, slot in g.readers(output)):
        return None
    a = group[0].tensor("a_tensor")
    return node if a.is_packed and group[0].storages["a_tensor"].begin == 0 else None


def _gate(g: Nodes, group: list[Node]) -> tuple[Node, Node, Node, Node] | None:
    """The two products of a SwiGLU, its SWISH and its multiplication."""
    if len(group) != 2 or any("c_tensor" in node.storages for node in group):
        return None
    for gate, up in (group, group[::-1]):
        user = g.only_user(gate)
        if user is None or user[0].name != "ACTIVATION_SWISH" or user[
                0].desc.sigmoid_input_scale != 1:
            continue
        swish = user[0]
        last, other = g.only_user(swish), g.only_user(up)
        if last is None or other is None or last[0].name != "ELEMENT_WISE_MULTIPLY" or (
                last[0] is not other[0] or OTHER[last[1]] != other[1]):
            continue
        product = last[0]
        whole = [swish.tensor("input_tensor"), swish.tensor("output_tensor"),
                 *(product.tensor(slot) for slot in ("a_tensor", "b_tensor", "output_tensor"))]
        packed = [gate.tensor("output_tensor"), up.tensor("output_tensor")]
        if all(t.is_packed and t.data_type is packed[0].data_type for t in (*whole, *packed)) and (
                packed[0].sizes == packed[1].sizes) and not getattr(
                    product.desc, "scale_bias", None):
            return gate, up, swish, product
    return None
