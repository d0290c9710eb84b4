"""Products of one matrix with several constants become one."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...attributes import MatrixTransform, PaddingMode
from ...desc import MINIMUM_ALIGNMENT, TensorDesc
from ...layout import Ints, is_packed, product, rewalked
from ...lowering import measured
from ...operators.base import bits, definitions
from ..array import described
from ..memory import Storage
from ..node import Node, Nodes, changed, moved
from ..rewrite import rewrite


class _ProductFields(NamedTuple):
    """The fields of an operator that multiplies A by B."""

    row: str
    """A constant that is added: a row for all rows, or absent."""
    shared: tuple[str, ...] = ()
    """What else the products must have in common."""
    by_column: tuple[str, ...] = ()
    """Constants of one element, or one for each of B's columns."""


_KINDS = {
    "GEMM": _ProductFields("c_tensor"),
    "MATRIX_MULTIPLY_INTEGER_TO_FLOAT": _ProductFields(
        "bias_tensor", ("a_scale_tensor", "a_zero_point_tensor"),
        ("b_scale_tensor", "b_zero_point_tensor")),
}


@rewrite("horizontal_fusion",
         "products of one matrix with several constants are one product, also products of "
         "integers. If they have more than 512 rows, attention or products must read them", 180)
def horizontal_fusion(g: Nodes) -> None:
    """Join products that read the same A, each with a constant B, and a constant row added to all
    rows, or none.

    Their Bs are joined once. Readers of a result read columns of the joint result.
    """
    while g.folds and (groups := _groups(g)):
        for group in groups:
            if all(map(g.has, group)):  # not those that read columns of a joint result now
                _join(g, group)


def _groups(g: Nodes) -> list[list[Node]]:
    """Products that may become one."""
    groups: dict[Any, list[Node]] = {}
    for node in g:
        if node.name in _KINDS and (key := _key(g, node)) is not None and (
                _users(g, node, 0, 2 * _width(node)) is not None):
            groups.setdefault(key, []).append(node)
    return [group for group in groups.values() if len(group) > 1]


def _key(g: Nodes, node: Node) -> Any:
    """Equal for products that may become one. None for products that may not."""
    d = node.desc
    kind = _KINDS[node.name]
    y, b = d.output_tensor, d.b_tensor
    fits = (all(node.storages[f].root.constant for f in ("b_tensor", *kind.by_column)
                if f in node.storages)
            and product(y.sizes[:-2]) == 1
            and is_packed(y.sizes, y.strides) and is_packed(b.sizes, b.strides)
            and b.sizes[-1] % _EACH == 0
            and g.is_whole(node.storages["output_tensor"]))
    if node.name == "GEMM":
        fits = fits and d.fused_activation is None and d.trans_b == MatrixTransform.NONE
    row = getattr(d, kind.row)
    if not fits or (row is not None and (
            not node.storages[kind.row].root.constant or getattr(d, "beta", 1) != 1
            or row.strides[-1] != 1 or _by_row(row))):
        return None
    seen = [(f, s.root, s.begin, node.tensor(f)) for f in ("a_tensor", *kind.shared)
            if (s := node.storages.get(f)) is not None]
    more = (d.trans_a, bits(d.alpha)) if node.name == "GEMM" else ()
    # What is joined has one type, and is there for all or for none.
    types = tuple(t and t.data_type for t in (
        y, b, *(getattr(d, f) for f in kind.by_column)))
    return (type(d), *seen, *more, types, len(y.sizes), row is None and _keeps_none(node))


_EACH = 8
"""Elements of a vector of FLOAT16. Each part of the joint result begins with a vector."""
_TAKE_COLUMNS = ("GEMM", "MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION1")
"""Operators whose kernels read matrices by rows, as far apart as they may be."""
_ONLY_PACKED = ("DYNAMIC_QUANTIZE_LINEAR",)
"""Operators that are slow to read anything but whole tensors."""


def _keeps_none(node: Node) -> bool:
    """Whether adding zeros would change the product: only where a sum of zeros may become -0."""
    d = node.desc
    return node.name == "GEMM" and d.alpha <= 0


def _by_row(c: TensorDesc) -> bool:
    return c.sizes[-2] > 1 and c.strides[-2] != 0


def _width(node: Node) -> int:
    return node.tensor("output_tensor").sizes[-1]


def _users(
    g: Nodes, node: Node, begin: int, width: int
) -> list[tuple[Node, str, int, TensorDesc]] | None:
    """The readers of the result, and what they read once it is the columns of a joint result from
    ``begin`` on: the first element, and the tensor. None where a reader cannot."""
    y, users = node.tensor("output_tensor"), []
    # A product of many rows fills a device on its own. Then joining gains little, and what reads
    # its result has to be as fast as before. Elementwise operators are better off as its tail.
    many = y.sizes[-2] > measured.figure(g.traits, "gemm", "joined_rows")
    for user, slot in g.users(node):
        if user.name in _ONLY_PACKED or (many and user.name not in _TAKE_COLUMNS):
            return None
        seen, storage = user.tensor(slot), user.storages[slot]
        at = _in_columns(y, seen, storage.begin, width)
        if at is None or "[" in slot or seen.data_type is not y.data_type:
            return None
        if "addend_tensor" in user.storages:
            return None  # a normalization walks both of its summands alike
        first, strides = at
        # A dimension of size 1 may have any stride: one of whole vectors.
        strides = tuple(s if n > 1 else width for n, s in zip(seen.sizes, strides))
        aligned = (begin + first) * y.data_type.itemsize % MINIMUM_ALIGNMENT
        users.append((user, slot, begin + first, described(
            y.data_type, seen.sizes, strides, aligned & -aligned)))
    return users


def _in_columns(y: TensorDesc, seen: TensorDesc, offset: int, width: int
                ) -> tuple[int, Ints] | None:
    """A view of a packed result, as one of columns of a matrix of ``width``: the first element, and
    strides. None where a dimension goes from one row to the next."""
    columns = y.sizes[-1]
    row, column = divmod(offset // y.data_type.itemsize, columns)
    strides, last = [], column
    for n, s in zip(seen.sizes, seen.strides):
        by_row, by_column = divmod(s, columns)
        if n > 1 and by_row and by_column:
            return None
        strides.append(by_row * width + by_column)
        last += (n - 1) * by_column
    if last < columns:
        return row * width + column, tuple(strides)
    whole = None if offset else rewalked(
        (y.sizes[-2], columns), (columns, 1), (width, 1), seen.sizes, seen.strides)
    return None if whole is None else (0, whole)


def _join(g: Nodes, group: list[Node]) -> None:
    first = group[0]
    d = first.desc
    kind = _KINDS[first.name]
    width = sum(map(_width, group))
    y, b = d.output_tensor, d.b_tensor
    itemsize = y.data_type.itemsize
    sizes = (*y.sizes[:-1], width)
    joint = g.make((product(sizes) * itemsize + 3) & ~3)
    storages = {"output_tensor": joint, "b_tensor": _joined(
        g, [_columns(node, "b_tensor", b.sizes[-2]) for node in group], first.label)}
    fields: dict[str, Any] = {
        "b_tensor": TensorDesc(b.data_type, (*b.sizes[:-1], width)),
        "output_tensor": TensorDesc(y.data_type, sizes)}
    for field in kind.by_column:
        if field in first.storages:
            storages[field] = _joined(
                g, [_columns(node, field, 1) for node in group], first.label)
            t = first.tensor(field)
            fields[field] = TensorDesc(t.data_type, (*[1] * (len(t.sizes) - 1), width))
    if any(kind.row in node.storages for node in group):
        rows, paddings = _rows(g, group, kind.row)
        storages[kind.row] = _joined(g, rows, first.label)
        for padding in paddings:
            g.insert(padding)
        fields[kind.row] = TensorDesc(y.data_type, sizes, (*[0] * (len(sizes) - 1), 1))
        if "beta" in {f.snake for f in d.operator.spec.fields}:
            fields["beta"] = 1.0
    begin = 0
    for node in group:
        g.reread([
            (user, slot, joint.part(at * itemsize) if at else joint, seen)
            for user, slot, at, seen in _users(g, node, begin, width) or ()])
        begin += _width(node)
    g.replace(group, changed(first, dict(storages), **fields), first=True)


_Columns = tuple[Storage, TensorDesc]
"""Rows of a constant, as a part of a joined matrix."""


def _columns(node: Node, slot: str, rows: int) -> _Columns:
    """A constant as ``rows`` rows of the product's columns."""
    t = node.tensor(slot)
    width = _width(node)
    by = t.strides[-1] if t.sizes[-1] > 1 else 0
    return node.storages[slot], moved(t, (rows, width), (width if rows > 1 else 0, by))


def _rows(g: Nodes, group: list[Node], slot: str) -> tuple[list[_Columns], list[Node]]:
    """The rows that are added. Products without one get zeros, by operators that pad the row of
    another."""
    at = [i for i, node in enumerate(group) if slot in node.storages]
    rows, paddings = [], []
    for i, next_at in zip(at, [*at[1:], len(group)]):
        before = 0 if i != at[0] else sum(map(_width, group[:i]))
        after = sum(map(_width, group[i + 1 : next_at]))
        storage, row = _columns(group[i], slot, 1)
        if before or after:
            whole = TensorDesc(row.data_type, (1, before + row.sizes[1] + after))
            padded = g.make(whole.total_tensor_size_in_bytes)
            padding = definitions()["DML_OPERATOR_PADDING"].desc_class(
                input_tensor=row, output_tensor=whole, padding_mode=PaddingMode.CONSTANT,
                padding_value=0.0, start_padding=(0, before), end_padding=(0, after))
            paddings.append(Node(padding, {"input_tensor": storage, "output_tensor": padded},
                                  group[i].label))
            storage, row = padded, whole
        rows.append((storage, row))
    return rows, paddings


def _joined(g: Nodes, parts: list[_Columns], label: str) -> Storage:
    """Constants, joined along their columns."""
    if len(parts) == 1:
        return parts[0][0]
    tensors = [t for _, t in parts]
    storages = {f"input_tensors[{i}]": storage for i, (storage, _) in enumerate(parts)}
    whole = TensorDesc(tensors[0].data_type, (tensors[0].sizes[0], sum(
        t.sizes[1] for t in tensors)))
    joint = storages["output_tensor"] = g.make(whole.total_tensor_size_in_bytes)
    join = definitions()["DML_OPERATOR_JOIN"].desc_class(
        input_tensors=tuple(tensors), output_tensor=whole, axis=1)
    g.insert(Node(join, storages, label))
    return joint
