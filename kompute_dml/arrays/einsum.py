"""numpy.einsum: diagonals are views, sums over one operand's indices are reductions, and operands
meet two at a time in a matrix product or a product of elements."""

from __future__ import annotations

from ..errors import expect
from ..layout import product
from ..subscripts import parsed
from ..tensors import Tensor
from ..tensors.types import TensorLike
from .matmul import matmul
from .movement import diagonal
from .operand import as_tensor, reshape
from .reductions import sum as sum_over
from .registry import array_function

Term = tuple[Tensor, str]
"""A tensor and the index of each of its axes."""


@array_function()
def einsum(subscripts: str, *operands: TensorLike, optimize: object = None) -> Tensor:
    """Sums of products by indices, as numpy.einsum with a string of subscripts. Operands meet from
    left to right, whatever ``optimize`` is."""
    expect(isinstance(subscripts, str), "einsum", "subscripts", "be a string", subscripts)
    tensors = [as_tensor(x, *operands) for x in operands]
    names, result = parsed(subscripts, [t.sizes for t in tensors])
    terms = [_without_repeats(t, name) for t, name in zip(tensors, names)]
    sizes: dict[str, int] = {}
    for t, name in terms:
        for i, n in zip(name, t.sizes):
            expect(1 in (n, sizes.setdefault(i, n)) or n == sizes[i], "einsum",
                   f"the sizes of {i!r}", "agree", sizes[i], n)
            sizes[i] = max(n, sizes[i])
    expect(set(result) <= set(sizes) and len(set(result)) == len(result), "einsum", "the result",
           "have indices of operands, each once", result)
    joined = terms[0]
    for k, other in enumerate(terms[1:], 1):
        later = result + "".join(name for _, name in terms[k + 1:])
        joined = _multiplied(_summed(joined, later + other[1]),
                             _summed(other, later + joined[1]), later, sizes)
    y, name = _summed(joined, result)
    return y.transpose(*map(name.index, result)) if result else y


def _without_repeats(x: Tensor, name: str) -> Term:
    """An index that an operand repeats steps along all of its axes at once."""
    for i in dict.fromkeys(name):
        while name.count(i) > 1:
            first, second = name.index(i), name.rindex(i)
            expect(x.sizes[first] == x.sizes[second], "einsum", f"the sizes of {i!r}", "agree",
                   x.sizes[first], x.sizes[second])
            x = diagonal(x, 0, first, second)
            name = "".join(j for d, j in enumerate(name) if d not in (first, second)) + i
    return x, name


def _summed(term: Term, needed: str) -> Term:
    """Without the indices that nothing else needs."""
    x, name = term
    axes = tuple(d for d, i in enumerate(name) if i not in needed)
    return (sum_over(x, axes, dtype=x.dtype), "".join(i for i in name if i in needed)) if axes \
        else term


def _multiplied(a: Term, b: Term, later: str, sizes: dict[str, int]) -> Term:
    """The product of two operands, summed over the indices that nothing later needs."""
    (x, left), (y, right) = a, b
    summed = [i for i in left if i in right and i not in later]
    batches = [i for i in left if i in right and i in later]
    if not summed:  # a product of elements
        name = left + "".join(i for i in right if i not in left)
        return _spread(x, left, name) * _spread(y, right, name), name
    rows, columns = ([i for i in n if i not in m] for n, m in ((left, right), (right, left)))

    def matrices(t: Tensor, name: str, *groups: list[str]) -> Tensor:
        t = t.broadcast_to([sizes[i] for i in name])
        t = t.transpose(*(name.index(i) for group in groups for i in group))
        return reshape(t, *(product([sizes[i] for i in group]) for group in groups))

    both = matmul(matrices(x, left, batches, rows, summed),
                  matrices(y, right, batches, summed, columns))
    name = "".join([*batches, *rows, *columns])
    return reshape(both, *(sizes[i] for i in name)), name


def _spread(x: Tensor, name: str, wanted: str) -> Tensor:
    """With the axes of ``wanted``, those that it lacks of size 1."""
    order = [i for i in wanted if i in name]
    t = x.transpose(*map(name.index, order)) if order else x
    return reshape(t, *(x.sizes[name.index(i)] if i in name else 1 for i in wanted))
