"""A pass over a graph's operators: products of one matrix with several constants become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..attributes import MatrixTransform, PaddingMode
from ..desc import MINIMUM_ALIGNMENT, TensorDesc
from ..layout import Ints, is_packed, product, rewalked
from ..operators.base import bits, definitions
from .draft import Draft, Drafts, changed, moved
from .memory import Storage

Make = Callable[[int], Storage]
"""Makes a storage of so many bytes."""


class _Kind(NamedTuple):
    """The fields of an operator that multiplies A by B."""

    row: str
    """A constant that is added: a row for all rows, or absent."""
    shared: tuple[str, ...] = ()
    """What else the products must have in common."""
    by_column: tuple[str, ...] = ()
    """Constants of one element, or one for each of B's columns."""


_KINDS = {
    "GEMM": _Kind("c_tensor"),
    "MATRIX_MULTIPLY_INTEGER_TO_FLOAT": _Kind(
        "bias_tensor", ("a_scale_tensor", "a_zero_point_tensor"),
        ("b_scale_tensor", "b_zero_point_tensor")),
}


def join_products(g: Drafts, make: Make) -> None:
    """Join products that read the same A, each with a constant B, and a constant row added to all
    rows, or none.

    Their Bs are joined once. Readers of a result read columns of the joint result.
    """
    while groups := _groups(g):
        for group in groups:
            if all(map(g.has, group)):  # not those that read columns of a joint result now
                _join(g, group, make)


def _groups(g: Drafts) -> list[list[Draft]]:
    """Products that may become one."""
    groups: dict[Any, list[Draft]] = {}
    for draft in g:
        if draft.name in _KINDS and (key := _key(g, draft)) is not None and (
                _users(g, draft, 0, 2 * _width(draft)) is not None):
            groups.setdefault(key, []).append(draft)
    return [group for group in groups.values() if len(group) > 1]


def _key(g: Drafts, draft: Draft) -> Any:
    """Equal for products that may become one. None for products that may not."""
    d: Any = draft.desc
    kind = _KINDS[draft.name]
    y, b = d.output_tensor, d.b_tensor
    fits = (all(draft.storages[f].root.constant for f in ("b_tensor", *kind.by_column)
                if f in draft.storages)
            and product(y.sizes[:-2]) == 1
            and is_packed(y.sizes, y.strides) and is_packed(b.sizes, b.strides)
            and b.sizes[-1] % _EACH == 0
            and g.is_whole(draft.storages["output_tensor"]))
    if draft.name == "GEMM":
        fits = fits and d.fused_activation is None and d.trans_b == MatrixTransform.NONE
    row = getattr(d, kind.row)
    if not fits or (row is not None and (
            not draft.storages[kind.row].root.constant or getattr(d, "beta", 1) != 1
            or row.strides[-1] != 1 or _by_row(row))):
        return None
    seen = [(f, s.root, s.begin, draft.tensor(f)) for f in ("a_tensor", *kind.shared)
            if (s := draft.storages.get(f)) is not None]
    more = (d.trans_a, bits(d.alpha)) if draft.name == "GEMM" else ()
    # What is joined has one type, and is there for all or for none.
    types = tuple(t and t.data_type for t in (
        y, b, *(getattr(d, f) for f in kind.by_column)))
    return (type(d), *seen, *more, types, len(y.sizes), row is None and _keeps_none(draft))


_EACH = 8
"""Elements of a vector of FLOAT16. Each part of the joint result begins with a vector."""
_MANY_ROWS = 512
"""A product of more rows fills a device on its own. Then joining gains little, and what reads its
result has to be as fast as before: the readers are those of _TAKE_COLUMNS. Elementwise operators
are better off as the tail of a product."""
_TAKE_COLUMNS = ("GEMM", "MULTIHEAD_ATTENTION", "MULTIHEAD_ATTENTION1")
"""Operators whose kernels read matrices by rows, as far apart as they may be."""
_ONLY_PACKED = ("DYNAMIC_QUANTIZE_LINEAR",)
"""Operators that are slow to read anything but whole tensors."""


def _keeps_none(draft: Draft) -> bool:
    """Whether adding zeros would change the product: only where a sum of zeros may become -0."""
    d: Any = draft.desc
    return draft.name == "GEMM" and d.alpha <= 0


def _by_row(c: TensorDesc) -> bool:
    return c.sizes[-2] > 1 and c.strides[-2] != 0


def _width(draft: Draft) -> int:
    return draft.tensor("output_tensor").sizes[-1]


def _users(
    g: Drafts, draft: Draft, begin: int, width: int
) -> list[tuple[Draft, str, int, TensorDesc]] | None:
    """The readers of the result, and what they read once it is the columns of a joint result from
    ``begin`` on: the first element, and the tensor. None where a reader cannot."""
    y, found = draft.tensor("output_tensor"), []
    many = y.sizes[-2] > _MANY_ROWS
    for user, slot in g.users(draft):
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
        found.append((user, slot, begin + first, TensorDesc(
            y.data_type, seen.sizes, strides, guaranteed_base_offset_alignment=aligned & -aligned)))
    return found


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


def _join(g: Drafts, group: list[Draft], make: Make) -> None:
    first = group[0]
    d: Any = first.desc
    kind = _KINDS[first.name]
    width = sum(map(_width, group))
    y, b = d.output_tensor, d.b_tensor
    itemsize = y.data_type.itemsize
    sizes = (*y.sizes[:-1], width)
    joint = make((product(sizes) * itemsize + 3) & ~3)
    storages = {"output_tensor": joint, "b_tensor": _joined(
        g, [_columns(draft, "b_tensor", b.sizes[-2]) for draft in group], first.label, make)}
    made: dict[str, Any] = {
        "b_tensor": TensorDesc(b.data_type, (*b.sizes[:-1], width)),
        "output_tensor": TensorDesc(y.data_type, sizes)}
    for field in kind.by_column:
        if field in first.storages:
            storages[field] = _joined(
                g, [_columns(draft, field, 1) for draft in group], first.label, make)
            t = first.tensor(field)
            made[field] = TensorDesc(t.data_type, (*[1] * (len(t.sizes) - 1), width))
    if any(kind.row in draft.storages for draft in group):
        rows, paddings = _rows(group, kind.row, make)
        storages[kind.row] = _joined(g, rows, first.label, make)
        for padding in paddings:
            g.insert(padding)
        made[kind.row] = TensorDesc(y.data_type, sizes, (*[0] * (len(sizes) - 1), 1))
        if "beta" in {f.snake for f in d.operator.spec.fields}:
            made["beta"] = 1.0
    begin = 0
    for draft in group:
        tensors: dict[Draft, dict[str, tuple[Storage, TensorDesc]]] = {}
        for user, slot, first_element, seen in _users(g, draft, begin, width) or ():
            part = joint.part(first_element * itemsize) if first_element else joint
            tensors.setdefault(user, {})[slot] = part, seen  # a square reads the result twice
        for user, fields in tensors.items():
            g.replace([user], changed(user, {slot: part for slot, (part, _) in fields.items()},
                                      **{slot: seen for slot, (_, seen) in fields.items()}))
        begin += _width(draft)
    g.replace(group, changed(first, dict(storages), **made), first=True)


_Columns = tuple[Storage, TensorDesc]
"""Rows of a constant, as a part of a joined matrix."""


def _columns(draft: Draft, slot: str, rows: int) -> _Columns:
    """A constant as ``rows`` rows of the product's columns."""
    t = draft.tensor(slot)
    width = _width(draft)
    by = t.strides[-1] if t.sizes[-1] > 1 else 0
    return draft.storages[slot], moved(t, (rows, width), (width if rows > 1 else 0, by))


def _rows(group: list[Draft], slot: str, make: Make) -> tuple[list[_Columns], list[Draft]]:
    """The rows that are added. Products without one get zeros, by operators that pad the row of
    another."""
    at = [i for i, draft in enumerate(group) if slot in draft.storages]
    found, paddings = [], []
    for i, next_at in zip(at, [*at[1:], len(group)]):
        before = 0 if i != at[0] else sum(map(_width, group[:i]))
        after = sum(map(_width, group[i + 1 : next_at]))
        storage, row = _columns(group[i], slot, 1)
        if before or after:
            whole = TensorDesc(row.data_type, (1, before + row.sizes[1] + after))
            made = make(whole.total_tensor_size_in_bytes)
            padding = definitions()["DML_OPERATOR_PADDING"].desc_class(
                input_tensor=row, output_tensor=whole, padding_mode=PaddingMode.CONSTANT,
                padding_value=0.0, start_padding=(0, before), end_padding=(0, after))
            paddings.append(Draft(padding, {"input_tensor": storage, "output_tensor": made},
                                  group[i].label))
            storage, row = made, whole
        found.append((storage, row))
    return found, paddings


def _joined(g: Drafts, parts: list[_Columns], label: str, make: Make) -> Storage:
    """Constants, joined along their columns."""
    if len(parts) == 1:
        return parts[0][0]
    tensors = [t for _, t in parts]
    storages = {f"input_tensors[{i}]": storage for i, (storage, _) in enumerate(parts)}
    whole = TensorDesc(tensors[0].data_type, (tensors[0].sizes[0], sum(
        t.sizes[1] for t in tensors)))
    made = storages["output_tensor"] = make(whole.total_tensor_size_in_bytes)
    join = definitions()["DML_OPERATOR_JOIN"].desc_class(
        input_tensors=tuple(tensors), output_tensor=whole, axis=1)
    g.insert(Draft(join, storages, label))
    return made
