"""Gradients of distances, and of losses that compare scores by margins."""

from __future__ import annotations

import math

import numpy as np

from ..table import call, lowers
from ..values import (
    BOOL,
    F32,
    I64,
    MOST_PAIRS,
    Number,
    Unsupported,
    Value,
    cast,
    constant,
    full,
    resized,
    rounded_once,
)

MEAN = 1
"""PyTorch's reduction by the mean."""


@lowers("_cdist_backward")
def cdist_backward(grad: Value, a: Value, b: Value, p: float, distances: Value) -> Value:
    """The gradient of ``a``. As in PyTorch, it is 0 where a distance is."""
    if not a.numel or not b.numel or p == 0:
        return full(a.shape, 0, a.dtype)
    if a.numel * b.shape[-2] > MOST_PAIRS:
        raise Unsupported("distances of more than 67 million pairs")
    apart = call("sub.Tensor", call("unsqueeze", a, -2), call("unsqueeze", b, -3))
    size, sign = call("abs", apart), call("sgn", apart)
    far = call("unsqueeze", distances, -1)
    if math.isinf(p):
        share = call("where.self", call("eq.Tensor", size, far), sign, full((), 0, a.dtype))
    elif p == 1:
        share = sign
    else:
        there = call("logical_and", call("ne.Scalar", far, 0), call("ne.Scalar", size, 0))
        ratio = call("div.Tensor", size, call("where.self", there, far, full((), 1, a.dtype)))
        share = call("where.self", there, call("mul.Tensor", sign, call(
            "pow.Tensor_Scalar", ratio, p - 1)), full((), 0, a.dtype))
    return call("sum.dim_IntList", call("mul.Tensor", call("unsqueeze", grad, -1), share), [-2])


@lowers("_pdist_backward")
def pdist_backward(grad: Value, x: Value, p: float, distances: Value) -> Value:
    """As for all pairs of rows, each twice."""
    n = x.shape[0]
    if not distances.numel or not x.numel:
        return full(x.shape, 0, x.dtype)
    pairs = distances.numel
    places = np.full((n, n), pairs)  # a zero after the last pair
    places[np.triu_indices(n, 1)] = np.arange(pairs)
    at = constant(np.minimum(places, places.T).reshape(-1).astype(np.int64), I64)

    def square(values: Value) -> Value:
        padded = call("cat", [resized(values, (pairs,)), full((1,), 0, x.dtype)])
        return resized(call("index_select", padded, 0, at), (n, n))

    return cdist_backward(square(grad), x, x, p, square(distances))


@lowers("_embedding_bag_per_sample_weights_backward")
@rounded_once
def bag_weights_backward(grad: Value, weight: Value, indices: Value, offsets: Value, bags: Value,
                         mode: int, padding: int = -1) -> Value:
    """Of each index the product of its row and of its bag's gradient."""
    if mode:
        raise Unsupported("weights of samples for another mode than the sum")
    n = indices.numel
    if not n:
        return full((0,), 0, weight.dtype)
    rows = call("index_select", weight, 0, resized(indices, (n,)))
    of_bags = call("index_select", grad, 0, resized(bags, (n,)))
    products = call("sum.dim_IntList", call("mul.Tensor", rows, of_bags), [-1])
    if padding < 0:
        return products
    return call("where.self", call("eq.Scalar", resized(indices, (n,)), padding),
                full((), 0, products.dtype), products)


@lowers("_embedding_bag_backward")
@rounded_once
def bag_backward(grad: Value, indices: Value, offsets: Value, bags: Value, counts: Value,
                 largest: Value, words: int, scale_grad: bool, mode: int, sparse: bool,
                 weights: Value | None = None, padding: int = -1) -> Value:
    """Each row's sum of the gradients of the bags that it is in."""
    n = indices.numel
    if scale_grad or sparse or mode == 2 or padding >= 0 or not n:
        raise Unsupported("embedding_bag by max, scaled, sparse, with padding, or of no indices")
    bags = resized(bags, (n,))
    rows = call("index_select", grad, 0, bags)
    if mode == 1:
        rows = call("div.Tensor", rows, cast(resized(call(
            "index_select", counts, 0, bags), (n, 1)), rows.dtype))
    if weights is not None:
        rows = call("mul.Tensor", rows, resized(weights, (n, 1)))
    places = call("expand", resized(cast(indices, I64), (n, 1)), rows.shape)
    return call("scatter_add", full((words, rows.shape[1]), 0, rows.dtype), 0, places, rows)


def _as_rows(x: Value) -> Value:
    return x if x.ndim == 2 else resized(x, (1, x.numel))


def _times(g: Value, grad: Value, reduction: int, rows: int) -> Value:
    """The gradients of all rows, by that of the loss."""
    if reduction == MEAN:
        g = call("div.Tensor", g, float(rows))
    by_row = grad.ndim == 1 and grad.numel == rows and reduction == 0
    return call("mul.Tensor", g, resized(grad, (rows, 1)) if by_row else resized(grad, (1, 1)))


@lowers("multi_margin_loss_backward")
@rounded_once
def multi_margin_backward(grad: Value, x: Value, target: Value, p: Number = 1, margin: Number = 1,
                          weight: Value | None = None, reduction: int = MEAN) -> Value:
    """https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiMarginLoss.html"""
    scores = _as_rows(x)
    rows, classes = scores.shape
    if not x.numel:
        return full(x.shape, 0, x.dtype)
    target = resized(target, (rows, 1))
    excess = call("add.Tensor", call("sub.Tensor", scores, call("gather", scores, 1, target)),
                  float(margin))
    g = cast(call("gt.Scalar", excess, 0), x.dtype)
    if p == 2:
        g = call("mul.Tensor", call("mul.Tensor", g, excess), 2.0)
    if weight is not None:
        own = call("index_select", resized(weight, (classes,)), 0, resized(target, (rows,)))
        g = call("mul.Tensor", g, resized(own, (rows, 1)))
    right = call("eq.Tensor", call("arange", classes), target)
    g = call("where.self", right, full((), 0, g.dtype), g)
    total = call("sum.dim_IntList", g, [1], True)
    g = call("div.Tensor", call("where.self", right, call("neg", total), g), float(classes))
    return resized(_times(g, grad, reduction, rows), x.shape)


@lowers("multilabel_margin_loss_backward")
@rounded_once
def multilabel_margin_backward(grad: Value, x: Value, target: Value, reduction: int,
                               is_target: Value) -> Value:
    """https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiLabelMarginLoss.html"""
    scores, labels, hit = _as_rows(x), _as_rows(target), _as_rows(is_target)
    rows, classes = scores.shape
    if not x.numel:
        return full(x.shape, 0, x.dtype)
    if x.numel * classes > MOST_PAIRS:
        raise Unsupported("margins of more than 67 million pairs")
    ended = call("gt.Scalar", call("cumsum", cast(call("lt.Scalar", labels, 0), I64), 1), 0)
    safe = call("where.self", ended, full((), 0, I64), labels)
    own = call("gather", scores, 1, safe)
    excess = call("add.Tensor", call("sub.Tensor", call("unsqueeze", scores, 1),
                                     call("unsqueeze", own, 2)), 1.0)
    counts = call("logical_and", call("gt.Scalar", excess, 0), call(
        "logical_not", call("logical_or", call("unsqueeze", ended, 2),
                            call("unsqueeze", cast(hit, BOOL), 1))))
    ones = cast(counts, F32)
    g = call("scatter_add", call("sum.dim_IntList", ones, [1]), 1, safe,
             call("neg", call("sum.dim_IntList", ones, [2])))
    g = call("div.Tensor", cast(g, x.dtype), float(classes))
    return resized(_times(g, grad, reduction, rows), x.shape)
