"""Results of a graph that share memory: views of each other, and of arguments.

PyTorch's programs may change one of them and read the other one. What a graph saves for its
backward graph is often a view of a parameter or of a result, and needs no memory of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sympy
import torch
from torch.fx import Node

from . import memory, versions
from .types import SPECS

_as_strided = versions.redispatching(torch.ops.aten.as_strided.default)
_VIEWING = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.CPU)
"""Where a view is made, past the device's function: the CPU's kernel serves (see device.py)."""


class _SharedView(NamedTuple):
    """A result: an end, or a view of one."""

    end: int
    dtype: torch.dtype | None = None
    """None for the end itself."""
    rank: int = 0
    first: int = 0
    """Of its sizes, strides and offset among the numbers. The offset counts from the end's."""
    saved: bool = False
    """Whether only the backward graph gets it."""


class SharedResults:
    """The outputs of a graph as its ends, which have memory of their own, and views of them."""

    def __init__(self, outputs: Sequence[Any], arguments: Sequence[Node],
                 written: dict[Node, Node], saved_from: int) -> None:
        """Outputs from ``saved_from`` on stay on the device. Those before it go where PyTorch
        expects them. The arguments ``written`` have other elements afterwards, which are those of
        a value. PyTorch may make a view of such an argument that lies in it as an output lies in
        the value, so these outputs are views of it, too."""
        self.ends: list[Any] = []
        self.saved_from = saved_from
        self._symbols: dict[sympy.Expr, int] = {
            x.node.expr: i for i, n in enumerate(arguments)
            if isinstance(x := n.meta.get("val"), torch.SymInt) and x.node.expr.is_Symbol}
        self._views: list[_SharedView] = []
        self._read: list[Any] = []
        """The numbers of views, some of which are expressions."""
        bases = {n: self._base(n) for n in outputs if isinstance(n, Node)}
        viewed = Counter(bases.values())
        sharing: dict[Any, int] = {}
        for j, node in enumerate(outputs):
            if j == saved_from:
                self.saved_from = len(self.ends)
            if not isinstance(node, Node):
                self._views.append(self._end(node))
                continue
            base = bases[node]
            host = j < saved_from and _of(node) is not None and _of(node).device.type == "cpu"
            if base in written or not (
                    viewed[base] > 1 or base.op == "placeholder" or _repeats(node)
                    or base in written.values()):
                base = node
            known = sharing.get((base, host))
            if known is None:
                known = sharing[base, host] = len(self.ends)
                self.ends.append(base)
            self._views.append(_SharedView(known) if base is node else self._view(
                node, base, known, j >= saved_from))
        if saved_from >= len(outputs):
            self.saved_from = saved_from
        self._are_ends = self._views == [_SharedView(j) for j in range(len(outputs))]
        self._numbers: Callable[..., Any] | None = None
        if any(isinstance(n, sympy.Expr) for n in self._read):
            self._numbers = sympy.lambdify([*self._symbols], self._read, "math")

    def _end(self, x: Any) -> _SharedView:
        self.ends.append(x)
        return _SharedView(len(self.ends) - 1)

    def _base(self, node: Node) -> Node:
        """The value that a node is a view of, or the node."""
        x, base = _of(node), node
        if x is None or x.is_conj() or x.is_neg():
            return node
        while (before := next((n for n in base.all_input_nodes if _storage(n) == _storage(node)),
                              None)) is not None:
            base = before
        y = _of(base)
        if y is None or y.is_conj() or y.is_neg() or not self._serves(base, y) or (
                x.dtype not in SPECS) or any(self._number(n) is None for n in _form(x, y)):
            return node
        return base

    def _serves(self, base: Node, y: torch.Tensor) -> bool:
        """Whether views can be described by places in the value's memory."""
        if base.op == "placeholder":
            return y.device.type == memory.NAME
        if base.op != "call_function" or y.dtype not in SPECS or not _is(y.storage_offset(), 0):
            return False
        sizes, step = [*zip(y.shape, y.stride())][::-1], 1
        if all(isinstance(n, int) for pair in sizes for n in pair):
            sizes.sort(key=lambda pair: (pair[1], pair[0]))  # where sizes are open, all is packed
        for n, s in sizes:
            if not _is(n, 1) and not _is(s, step):
                return False
            step = step * n
        return _is(y.untyped_storage().nbytes(), y.numel() * y.element_size())

    def _number(self, n: Any) -> Any:
        """A number, or an expression of arguments. None for what no argument says."""
        if isinstance(n, int):
            return n
        found = n.node.expr
        if found.is_Integer:
            return int(found)
        return found if found.free_symbols <= self._symbols.keys() else None

    def _view(self, node: Node, base: Node, end: int, saved: bool) -> _SharedView:
        x, y = _of(node), _of(base)
        if x.dtype == y.dtype and x.ndim == y.ndim and all(map(_is, _form(x, y), _form(y, y))):
            return _SharedView(end) if saved else _SharedView(end, x.dtype, -1)
        first = len(self._read)
        self._read += [self._number(n) for n in _form(x, y)]
        return _SharedView(end, x.dtype, x.ndim, first, saved)

    def of(self, ends: list[Any], args: Sequence[Any]) -> list[Any]:
        """The outputs, of the ends and the graph's arguments."""
        if self._are_ends:
            return ends
        numbers = self._read
        if self._numbers is not None:
            numbers = self._numbers(*[args[i] for i in self._symbols.values()])
        results = []
        for end, dtype, rank, first, saved in self._views:
            x = ends[end]
            if dtype is not None:
                if not saved:  # PyTorch's gradients go by results, not from one to another
                    x = x.detach()
                if rank >= 0:
                    x = _viewed(x, dtype, numbers[first:first + rank],
                                numbers[first + rank:first + 2 * rank], numbers[first + 2 * rank])
            results.append(x)
        return results


def _viewed(x: torch.Tensor, dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[int],
            offset: int) -> torch.Tensor:
    """``offset`` counts elements of ``dtype`` after the first one of ``x``."""
    if x.dtype == dtype:
        y: torch.Tensor = _as_strided(_VIEWING, x, sizes, strides, x.storage_offset() + offset)
        return y
    begin = x.storage_offset() * x.element_size() // dtype.itemsize
    y = torch.empty(0, dtype=dtype, device=x.device)
    return y.set_(x.untyped_storage(), begin + offset, sizes, strides)


def _of(node: Node) -> Any:
    """What the tracer knows of a node's tensor. None if it is none."""
    x = node.meta.get("val")
    return x if isinstance(x, torch.Tensor) else None


def _repeats(node: Node) -> bool:
    """Whether one element in memory is several of a tensor, as ``expand`` makes it."""
    x = _of(node)
    return x is not None and any(_is(s, 0) and not _is(n, 1) for n, s in zip(x.shape, x.stride()))


def _storage(node: Node) -> Any:
    x = node.meta.get("val")
    if isinstance(x, (tuple, list)) and x and isinstance(x[0], torch.Tensor):
        x = x[0]  # of a split, all parts lie in one
    return x.untyped_storage()._cdata if isinstance(x, torch.Tensor) else node


def _form(x: Any, y: Any) -> tuple[Any, ...]:
    """Sizes, strides, and the offset from the beginning of ``y``."""
    ours, theirs = x.storage_offset(), y.storage_offset()
    if x.dtype != y.dtype:
        theirs = theirs * y.element_size() // x.element_size()
    return (*x.shape, *x.stride(), ours - theirs)


def _is(a: Any, b: Any) -> bool:
    """Whether two numbers are equal for all sizes. No size is bound to what it is now."""
    terms = [n.node.expr if isinstance(n, torch.SymInt) else n for n in (a, b)]
    return bool(sympy.expand(terms[0] - terms[1]) == 0)
