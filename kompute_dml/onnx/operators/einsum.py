"""How Einsum lowers: diagonals are views, sums over one operand's indices are reductions, and
operands meet two at a time in a matrix product."""

from __future__ import annotations

from ...attributes import ReduceFunction
from ...errors import ValidationError
from ...graph.array import Array
from ...graph.builder import Builder
from ...layout import product
from ...subscripts import parsed
from ..graph import OnnxNode
from ..lowerings import Inputs, emit_elementwise, given
from ..row import Mapping
from .products import product_of
from .reduction import reduced


def einsum(builder: Builder, node: OnnxNode, inputs: Inputs) -> list[Array]:
    arrays = [given(inputs, i) for i in range(len(inputs))]
    terms, result = parsed(node.attributes["equation"], [x.shape for x in arrays])
    operands = [_diagonal(x, term) for x, term in zip(arrays, terms)]
    sizes: dict[str, int] = {}
    for x, term in operands:
        for i, n in zip(term, x.shape):
            if sizes.setdefault(i, n) != n and 1 not in (n, sizes[i]):
                raise ValidationError(f"index {i!r} has sizes {sizes[i]} and {n}")
            sizes[i] = max(sizes[i], n)
    if missing := set(result) - set(sizes):
        raise ValidationError(f"no operand has the index {min(missing)!r} of the result")
    x, term = _summed(builder, *operands[0], "".join([result, *(t for _, t in operands[1:])]))
    for k in range(1, len(operands)):
        needed = "".join([result, *(t for _, t in operands[k + 1:])])
        other = _summed(builder, *operands[k], needed + term)
        x, term = _product(builder, _summed(builder, x, term, needed + other[1]), other, needed)
    x, term = _summed(builder, x, term, result)
    return [x.transpose([term.index(i) for i in result])]


def _diagonal(x: Array, term: str) -> tuple[Array, str]:
    """An index that an operand repeats steps along all of its dimensions at once."""
    once = "".join(dict.fromkeys(term))
    if len(once) == len(term):
        return x, term
    at = {i: [d for d, j in enumerate(term) if j == i] for i in once}
    for i, dims in at.items():
        if len({x.shape[d] for d in dims}) > 1:
            raise ValidationError(f"index {i!r} has sizes {[x.shape[d] for d in dims]}")
    return x.view([x.shape[dims[0]] for dims in at.values()],
                  [sum(x.strides[d] for d in dims) for dims in at.values()]), once


def _summed(builder: Builder, x: Array, term: str, needed: str) -> tuple[Array, str]:
    """Without the indices that nothing else needs."""
    axes = [d for d, i in enumerate(term) if i not in needed]
    if not axes:
        return x, term
    (y,) = reduced(builder, "REDUCE", x, axes, False, x.dtype, function=ReduceFunction.SUM)
    return y, "".join(i for i in term if i in needed)


def _product(
    builder: Builder, a: tuple[Array, str], b: tuple[Array, str], needed: str
) -> tuple[Array, str]:
    """Indices of both are batches, or summed over where nothing else needs them."""
    (x, left), (y, right) = a, b
    both = [i for i in left if i in right]
    summed = [i for i in both if i not in needed]
    if not summed:  # an outer product
        term = left + "".join(i for i in right if i not in left)
        places = [(t, [s.index(i) if i in s else None for i in term]) for t, s in (a, b)]
        seen = [t.view([1 if d is None else t.shape[d] for d in dims],
                       [0 if d is None else t.strides[d] for d in dims]) for t, dims in places]
        return emit_elementwise(builder, "ELEMENT_WISE_MULTIPLY", seen, x.dtype, {}), term
    sizes = dict(zip(left + right, x.shape + y.shape))
    for i in both:
        sizes[i] = max(x.shape[left.index(i)], y.shape[right.index(i)])
    groups = {"batches": [i for i in both if i in needed], "summed": summed,
              "rows": [i for i in left if i not in right],
              "columns": [i for i in right if i not in left]}

    def matrices(t: Array, term: str, *names: str) -> Array:
        order = [groups[name] for name in names]
        t = t.broadcast_to([sizes[i] for i in term])
        t = t.transpose([term.index(i) for group in order for i in group])
        return builder.reshape(t, [product([sizes[i] for i in group]) for group in order])

    multiplied = product_of(builder, matrices(x, left, "batches", "rows", "summed"),
                            matrices(y, right, "batches", "summed", "columns"))
    term = "".join(i for name in ("batches", "rows", "columns") for i in groups[name])
    return builder.reshape(multiplied, [sizes[i] for i in term]), term


ROWS: tuple[Mapping, ...] = (
    Mapping("Einsum", (12, 28), "GEMM", einsum, fields=("ATensor",),
        attributes=("equation",), multiplies=True),
)
