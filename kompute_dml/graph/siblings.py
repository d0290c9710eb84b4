"""A pass over a graph's operators: products of one matrix with several constants become one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..attributes import MatrixTransform
from ..desc import MINIMUM_ALIGNMENT, TensorDesc
from ..layout import is_packed, product, rewalked
from ..operators.base import bits, definitions
from .draft import Draft, Drafts, changed, moved
from .memory import Storage

Make = Callable[[int], Storage]
"""Makes a storage of so many bytes."""


def join_products(g: Drafts, make: Make) -> None:
    """Join GEMMs that read the same A, each with a constant B, and a constant row as C or no C.

    Their Bs are joined once. Readers of a result read columns of the joint result.
    """
    groups: dict[Any, list[Draft]] = {}
    for draft in g:
        if draft.name == "GEMM" and (key := _key(g, draft)) is not None:
            groups.setdefault(key, []).append(draft)
    for group in groups.values():
        group = [d for d in group if _users(g, d, 0, 2 * _width(d)) is not None]
        if len(group) > 1:
            _join(g, group, make)


def _key(g: Drafts, draft: Draft) -> Any:
    """Equal for products that may become one. None for products that may not."""
    d: Any = draft.desc
    y, b = d.output_tensor, d.b_tensor
    root = draft.storages["b_tensor"].root
    fits = (d.fused_activation is None and d.trans_b == MatrixTransform.NONE and root.constant
            and product(y.sizes[:-2]) == 1 and y.sizes[-2] <= _MOST_ROWS
            and is_packed(y.sizes, y.strides) and is_packed(b.sizes, b.strides)
            and b.sizes[-1] % _EACH == 0
            and g.is_whole(draft.storages["output_tensor"]))
    c = d.c_tensor
    if not fits or (c is not None and (not draft.storages["c_tensor"].root.constant or d.beta != 1
                                       or c.strides[-1] != 1 or _by_row(c))):
        return None
    a = draft.storages["a_tensor"]
    return (a.root, a.begin, d.a_tensor, d.trans_a, bits(d.alpha), c is None, len(y.sizes))


_MOST_ROWS = 512
"""A product of more rows fills a device on its own."""
_EACH = 8
"""Elements of a vector of FLOAT16. Each part of the joint result begins with a vector."""


def _by_row(c: TensorDesc) -> bool:
    return c.sizes[-2] > 1 and c.strides[-2] != 0


def _width(draft: Draft) -> int:
    return draft.tensor("output_tensor").sizes[-1]


def _users(g: Drafts, draft: Draft, begin: int, width: int) -> list[tuple[Draft, str, Any]] | None:
    """The readers of the result, and the tensors that they read once it is the columns of a joint
    result from ``begin`` on. None where a reader cannot."""
    y, found = draft.tensor("output_tensor"), []
    for user, slot in g.users(draft):
        seen, storage = user.tensor(slot), user.storages[slot]
        strides = rewalked((y.sizes[-2], y.sizes[-1]), (y.sizes[-1], 1), (width, 1), seen.sizes,
                           seen.strides)
        if strides is None or storage.begin or "[" in slot or (
                seen.data_type is not y.data_type):
            return None
        if "addend_tensor" in user.storages:
            return None  # a normalization walks both of its summands alike
        # A dimension of size 1 may have any stride: one of whole vectors.
        strides = tuple(s if n > 1 else width for n, s in zip(seen.sizes, strides))
        at = begin * y.data_type.itemsize % MINIMUM_ALIGNMENT
        found.append((user, slot, TensorDesc(y.data_type, seen.sizes, strides,
                                             guaranteed_base_offset_alignment=at & -at)))
    return found


def _join(g: Drafts, group: list[Draft], make: Make) -> None:
    first = group[0]
    d: Any = first.desc
    width = sum(map(_width, group))
    y, b = d.output_tensor, d.b_tensor
    itemsize = y.data_type.itemsize
    sizes = (*y.sizes[:-1], width)
    joint = make((product(sizes) * itemsize + 3) & ~3)
    storages = {"a_tensor": first.storages["a_tensor"], "output_tensor": joint,
                "b_tensor": _joined(g, group, "b_tensor", b.sizes[-2], make)}
    made: dict[str, Any] = {
        "b_tensor": TensorDesc(y.data_type, (*b.sizes[:-1], width)),
        "output_tensor": TensorDesc(y.data_type, sizes)}
    if d.c_tensor is not None:
        storages["c_tensor"] = _joined(g, group, "c_tensor", 1, make)
        made["c_tensor"] = TensorDesc(y.data_type, sizes, (*[0] * (len(sizes) - 1), 1))
    begin = 0
    for draft in group:
        part = joint.part(begin * itemsize) if begin else joint
        tensors: dict[Draft, dict[str, Any]] = {}
        for user, slot, seen in _users(g, draft, begin, width) or ():
            tensors.setdefault(user, {})[slot] = seen  # a square reads the result twice
        for user, fields in tensors.items():
            g.replace([user], changed(user, dict.fromkeys(fields, part), **fields))
        begin += _width(draft)
    g.replace(group, changed(first, dict(storages), **made), first=True)


def _joined(g: Drafts, group: list[Draft], slot: str, rows: int, make: Make) -> Storage:
    """The constants of a slot, joined along their columns."""
    tensors, storages = [], {}
    for i, draft in enumerate(group):
        t = draft.tensor(slot)
        tensors.append(moved(t, (rows, t.sizes[-1]), (t.sizes[-1], 1)))
        storages[f"input_tensors[{i}]"] = draft.storages[slot]
    whole = TensorDesc(tensors[0].data_type, (rows, sum(t.sizes[1] for t in tensors)))
    made = storages["output_tensor"] = make(whole.total_tensor_size_in_bytes)
    join = definitions()["DML_OPERATOR_JOIN"].desc_class(
        input_tensors=tuple(tensors), output_tensor=whole, axis=1)
    g.insert(Draft(join, storages, group[0].label))
    return made
