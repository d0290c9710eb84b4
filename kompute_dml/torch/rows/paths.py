"""The loss over all paths of labels (CTC): sums over them, one step of time after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..table import call, lowers
from ..values import BOOL, F32, I64, Unsupported, Value, constant, expanded, full, resized

_MOST_STEPS = 2048
Lengths = Value | Sequence[int]


class _Paths:
    """Labels with blanks between them, and which steps go from one to the next but one."""

    def __init__(self, logs: Value, targets: Value, times: Lengths, counts: Lengths, blank: int
                 ) -> None:
        if logs.dtype != F32 or logs.ndim != 3 or not logs.numel:
            raise Unsupported("paths of other types or sizes")
        self.steps, self.batch, self.classes = logs.shape
        if self.steps > _MOST_STEPS:
            raise Unsupported("paths of more steps")
        self.times, self.counts = _read(times), _read(counts)
        labels = _read(targets)
        most = int(self.counts.max(initial=0))
        table: np.ndarray = np.full((self.batch, 2 * most + 1), blank, np.int64)
        ends = np.cumsum(self.counts)
        for i, n in enumerate(self.counts):
            row = labels[i, :n] if labels.ndim == 2 else labels[ends[i] - n:ends[i]]
            table[i, 1:2 * n:2] = row
        if table.min() < 0 or table.max() >= self.classes or (self.times > self.steps).any() or (
                self.counts < 0).any():
            raise Unsupported("labels or lengths beyond what there is")
        leaps = np.zeros(table.shape, bool)
        leaps[:, 2:] = (table[:, 2:] != blank) & (table[:, 2:] != table[:, :-2])
        self.table, self.leaps = table, leaps
        self.width = table.shape[1]
        place = np.arange(self.width)
        self.known = place < 2 * self.counts[:, None] + 1
        self.ends = (place == 2 * self.counts[:, None]) | (
            (place == 2 * self.counts[:, None] - 1) & (self.counts[:, None] > 0))
        self.at = constant(table, I64)

    def chances(self, logs: Value) -> Value:
        """{steps, batch, places}: logarithms of each place's label."""
        at = expanded(resized(self.at, (1, *self.at.shape)), (self.steps, *self.at.shape))
        return call("gather", logs, 2, at)


def _read(x: Lengths) -> np.ndarray:
    if not isinstance(x, Value):
        return np.asarray(x, np.int64)
    return x.elements.numpy().astype(np.int64).reshape(x.shape)


def _penalty(allowed: np.ndarray) -> Value:
    return constant(np.where(allowed, 0, -np.inf).astype(np.float32), F32)


def _truth(x: np.ndarray) -> Value:
    return constant(x.astype(np.uint8), BOOL)


def _shifted(x: Value, by: int) -> Value:
    """Places to the right, or to the left where ``by`` is below 0. From outside comes nothing."""
    n = x.shape[1]
    if abs(by) >= n:
        return full(x.shape, -math.inf, F32)
    gap = full((x.shape[0], abs(by)), -math.inf, F32)
    if by > 0:
        return call("cat", [gap, call("slice.Tensor", x, 1, 0, n - by)], 1)
    return call("cat", [call("slice.Tensor", x, 1, -by, n), gap], 1)


def _sum(x: Value, dim: int) -> Value:
    """The logarithm of a sum of exponentials, -inf where all are."""
    most = call("amax", x, [dim], True)
    shift = call("where.self", call("isinf", most), full((), 0.0, F32), most)
    total = call("sum.dim_IntList", call("exp", call("sub.Tensor", x, shift)), [dim])
    return call("add.Tensor", call("log", total), call("squeeze.dim", shift, dim))


def _joined(*parts: Value) -> Value:
    return _sum(call("stack", list(parts)), 0)


def _levelled(x: Value) -> tuple[Value, Value]:
    """The sums of each batch without their largest one, and that one. So all steps are as exact as
    the first ones."""
    most = call("amax", x, [1], True)
    most = call("where.self", call("isinf", most), full((), 0.0, F32), most)
    return call("sub.Tensor", x, most), most


@lowers("_ctc_loss", "_ctc_loss.Tensor")
def ctc_loss(logs: Value, targets: Value, times: Lengths, counts: Lengths, blank: int = 0,
             zero_infinity: bool = False) -> list[Value]:
    """The losses, and the sums over beginnings of paths that the backward pass wants. PyTorch's
    are not levelled."""
    paths = _Paths(logs, targets, times, counts, blank)
    chances, leaps = paths.chances(logs), _penalty(paths.leaps)
    first = np.zeros((paths.batch, paths.width), bool)
    first[:, :2] = True
    now, level = _levelled(call("add.Tensor", call("select.int", chances, 0, 0),
                                _penalty(first & paths.known)))
    steps, levels = [now], [level]
    for t in range(1, paths.steps):
        leap = call("add.Tensor", _shifted(now, 2), leaps)
        now, more = _levelled(call("add.Tensor", _joined(now, _shifted(now, 1), leap),
                                   call("select.int", chances, 0, t)))
        level = call("add.Tensor", level, more)
        steps.append(now)
        levels.append(level)
    begun = call("transpose.int", call("stack", steps), 0, 1)
    last = np.maximum(paths.times - 1, 0).reshape(1, -1, 1)
    at = constant(last, I64)
    final = call("gather", call("stack", steps), 0, expanded(at, (1, paths.batch, paths.width)))
    level = call("gather", call("stack", levels), 0, at)
    total = _sum(call("add.Tensor", call("select.int", final, 0, 0), _penalty(paths.ends)), 1)
    total = call("add.Tensor", total, resized(level, (paths.batch,)))
    nothing = _penalty((paths.times == 0) & (paths.counts == 0))
    return [call("neg", call("where.self", _truth(paths.times > 0), total, nothing)), begun]


@lowers("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def ctc_loss_backward(
    g: Value, logs: Value, targets: Value, times: Lengths, counts: Lengths, loss: Value,
    begun: Value, blank: int, zero_infinity: bool = False,
) -> Value:
    """By sums over the ends of paths, beside those over beginnings. All paths go through one place
    at each step, so that both give the share of each place."""
    paths = _Paths(logs, targets, times, counts, blank)
    chances = paths.chances(logs)
    leaps = _shifted(_penalty(paths.leaps), -2)
    ends = _penalty(paths.ends)
    now = full((paths.batch, paths.width), -math.inf, F32)
    steps = []
    for t in reversed(range(paths.steps)):
        own = call("select.int", chances, 0, t)
        leap = call("add.Tensor", _shifted(now, -2), leaps)
        later = call("add.Tensor", _joined(now, _shifted(now, -1), leap), own)
        last = _truth((paths.times == t + 1).reshape(-1, 1))
        now, _ = _levelled(call("where.self", last, call("add.Tensor", ends, own), later))
        steps.append(now)
    through = call("add.Tensor", call("transpose.int", begun, 0, 1), call("stack", steps[::-1]))
    through = call("where.self", call("isinf", chances), full((), -math.inf, F32),
                   call("sub.Tensor", through, chances))
    share = call("_softmax", through, 2, False)
    at = expanded(resized(paths.at, (1, *paths.at.shape)), share.shape)
    taken = call("scatter_add", full(logs.shape, 0.0, F32), 2, at, share)
    slope = call("mul.Tensor", call("sub.Tensor", call("exp", logs), taken),
                 resized(g, (1, paths.batch, 1)))
    endless = call("isinf", resized(loss, (1, paths.batch, 1)))
    slope = call("where.self", endless, full((), 0.0 if zero_infinity else math.nan, F32), slope)
    inside = np.arange(paths.steps)[:, None, None] < paths.times[None, :, None]
    return call("where.self", _truth(inside), slope, full((), 0.0, F32))
