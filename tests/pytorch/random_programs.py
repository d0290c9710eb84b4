"""Random programs of PyTorch: eager on the CPU, eager on the device, and compiled on the device.

    PYTHONPATH=.:tests:tests/pytorch python tests/pytorch/random_programs.py FIRST COUNT

All three must give the same results, change their arguments in the same way, and share memory
between results and arguments in the same way. Nothing else on the device may change. A program is
source code, so a failure prints what can be run by hand.
"""

from __future__ import annotations

import linecache
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
from torch.utils import _pytree as pytree

from random_draw import Draw

FLOATS = torch.float32, torch.float32, torch.float32, torch.float16
OTHERS = torch.int64, torch.int32, torch.bool, torch.uint8
_EDGE = 8
"""Elements before and after those of an argument in its storage."""
_DEVICE = "kompute"
AGREED, TOO_LARGE, OF_PYTORCH = "agreed", "too large", "a graph of PyTorch's own differs"
REFUSED = "refused by the CPU"


@dataclass
class Argument:
    """Where an argument lies in one of the storages."""

    storage: int
    sizes: Sequence[int]
    strides: Sequence[int]
    offset: int


@dataclass
class Storage:
    """Elements that arguments are views of."""

    count: int
    dtype: torch.dtype
    seed: int

    def made(self) -> torch.Tensor:
        draw = torch.Generator().manual_seed(self.seed)
        whole = torch.randint(0 if self.dtype in (torch.bool, torch.uint8) else -3, 4,
                              (self.count,), generator=draw)
        return whole.to(self.dtype)


@dataclass
class Program:
    """A function's source, and the arguments that it takes."""

    lines: list[str]
    storages: list[Storage]
    arguments: list[Argument]
    gradients: bool = False
    """Whether arguments of floats require gradients."""
    dynamic: bool = False

    def source(self) -> str:
        names = ", ".join(f"a{i}" for i in range(len(self.arguments)))
        return "\n    ".join([f"def program({names}):", *self.lines]) + "\n"

    def function(self, name: str = "<random program>") -> Callable[..., Any]:
        text = self.source()
        linecache.cache[name] = len(text), None, text.splitlines(True), name
        scope: dict[str, Any] = {"torch": torch}
        exec(compile(text, name, "exec"), scope)
        found: Callable[..., Any] = scope["program"]
        return found

    def given(self, device: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The storages and the arguments."""
        wholes = [s.made().to(device) for s in self.storages]
        found = []
        for a in self.arguments:
            x = wholes[a.storage].as_strided(a.sizes, a.strides, a.offset)
            if self.gradients and x.dtype.is_floating_point:
                x = x.detach().requires_grad_(True)
            found.append(x)
        return wholes, found


def has_overlap(x: torch.Tensor) -> bool:
    """Whether two places of a tensor are one in memory."""
    places = torch.arange(1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride())) if x.numel()
                          else 0)
    return bool(x.numel()) and places.as_strided(x.shape, x.stride()).unique().numel() < x.numel()


class Writer:
    """Writes a program line by line, and runs each line on the CPU to know what comes of it."""

    def __init__(self, seed: int) -> None:
        self.d = d = Draw(seed)
        self.gradients = d.chance(0.2)
        self.dynamic = d.chance(0.15)
        self.storages: list[Storage] = []
        self.arguments: list[Argument] = []
        self.lines: list[str] = []
        for _ in range(d.whole(1, 3)):
            self._argument()
        self.program = Program(self.lines, self.storages, self.arguments, self.gradients,
                               self.dynamic)
        _, arguments = self.program.given("cpu")
        self.scope: dict[str, Any] = {"torch": torch} | {
            f"a{i}": x for i, x in enumerate(arguments)}
        self.names = [f"a{i}" for i in range(len(arguments))]
        self.count = 0
        wanted = d.whole(2, 9)
        for _ in range(4 * wanted):
            if len(self.lines) >= wanted:
                break
            self._line()
        self._end()

    def _argument(self) -> None:
        d = self.d
        sizes = [d.of(1, 2, 3, 4, 5, 0) if d.chance(0.3) else d.whole(1, 5)
                 for _ in range(d.whole(0, 3))]
        if self.storages and d.chance(0.3):  # a view of the same memory
            at = d.whole(0, len(self.storages) - 1)
        else:
            at = len(self.storages)
            dtype = d.of(*FLOATS) if d.chance(0.75) else d.of(*OTHERS)
            self.storages.append(Storage(0, dtype, d.whole(0, 1 << 20)))
        order = list(range(len(sizes)))
        if d.chance(0.3):
            d.rng.shuffle(order)
        strides, step = [0] * len(sizes), 1
        for k in reversed(order):
            if d.chance(0.15):
                step *= d.whole(1, 2)
            strides[k], step = step, step * max(sizes[k], 1)
        offset = _EDGE if d.chance(0.6) else d.whole(0, _EDGE)
        self.arguments.append(Argument(at, sizes, strides, offset))
        whole = self.storages[at]
        whole.count = max(whole.count, offset + step + _EDGE)

    def _line(self) -> None:
        d = self.d
        text = d.of(self._view, self._view, self._view, self._write, self._write, self._compute)()
        if text is None:
            return
        name, known = f"v{self.count}", dict(self.scope)
        before = {n: (x._version, x.shape) for n, x in self.scope.items()
                  if isinstance(x, torch.Tensor)}
        line = text if text.startswith("!") else f"{name} = {text}"
        line = line.removeprefix("!")
        try:
            exec(line, known)
        except Exception:
            for n, (version, shape) in before.items():
                assert self.scope[n].shape == shape, line
                if self.scope[n]._version != version:
                    raise
            return
        found = known.get(name)
        parts = pytree.tree_leaves(found)
        if found is not None and not (parts and all(
                isinstance(x, torch.Tensor) and x.numel() <= 4000 for x in parts)):
            return
        self.scope.update({n: x for n, x in known.items() if n == name})
        self.lines.append(line)
        if found is None:
            return
        self.count += 1
        if isinstance(found, torch.Tensor):
            self.names.append(name)
            return
        for i in {d.whole(0, len(found) - 1) for _ in range(2)}:
            item = f"v{self.count}"
            self.count += 1
            self.lines.append(f"{item} = {name}[{i}]")
            self.scope[item] = found[i]
            self.names.append(item)

    def _some(self) -> tuple[str, torch.Tensor]:
        name = self.names[-1] if self.d.chance(0.4) else self.d.of(*self.names)
        return name, self.scope[name]

    # What lines are

    def _view(self) -> str | None:
        d = self.d
        n, x = self._some()
        if not x.ndim:
            return d.of(f"{n}.unsqueeze(0)", f"{n}.expand({d.whole(1, 3)})", f"{n}.view(1, 1)",
                        f"{n}.detach()", f"{n}.view(-1)", f"{n}[...]", f"{n}[None]")
        k = d.whole(-x.ndim, x.ndim - 1)
        size = x.shape[k]
        a, b = sorted((d.whole(0, size), d.whole(0, size)))
        other = d.whole(0, x.ndim - 1)
        order = [int(i) for i in d.rng.permutation(x.ndim)]
        parts = [a, b - a, size - b]
        rows = f"{n}.shape[0]"
        index = ", ".join(self._subscript(m) for m in x.shape[:d.whole(1, x.ndim)])
        made = [
            f"{n}[{index}]", f"{n}[{index}]", f"{n}.narrow({k}, {a}, {b - a})",
            f"{n}.select({k}, {d.whole(-size, size - 1) if size else 0})",
            f"{n}.transpose({k}, {other})", f"{n}.permute({order})", f"{n}.unsqueeze({k})",
            f"{n}.squeeze({k})", f"{n}.squeeze()", f"{n}.flatten()", f"{n}.view(-1)",
            f"{n}.reshape({self._sizes(x.numel())})", f"{n}.view({self._sizes(x.numel())})",
            f"{n}.view({rows}, -1)", f"{n}.reshape(-1, {rows})", f"{n}.detach()", f"{n}[None]",
            f"{n}.expand({self._expanded(x.shape)})", f"{n}.split({d.whole(1, 3)}, {k})",
            f"{n}.chunk({d.whole(1, 3)}, {k})", f"{n}.split({parts}, {k})",
            f"{n}.tensor_split([{a}, {b}], {k})", f"{n}.unbind({k})", f"{n}.mT", f"{n}.t()",
            f"{n}.diagonal({d.whole(-1, 1)})", f"{n}.unfold({k}, {max(1, b - a)}, {d.whole(1, 2)})",
            f"{n}.movedim({k}, {other})", f"{n}.view_as({n})", f"{n}.swapaxes({k}, {other})",
            f"{n}.view(torch.{d.of('int32', 'float32', 'int16', 'uint8')})",
            self._strided(n, x), self._strided(n, x),
        ]
        found: str | None = d.of(*made)
        return found

    def _subscript(self, size: int) -> str:
        d = self.d
        a, b = d.whole(-size, size), d.whole(-size, size)
        return str(d.of(f"{d.whole(-size, max(size - 1, -size))}", f"{a}:", f":{b}", f"{a}:{b}",
                        f"::{d.whole(1, 3)}", ":", f"{a}::2", "None"))

    def _sizes(self, count: int) -> list[int]:
        d, sizes, left = self.d, [], count
        for _ in range(d.whole(0, 2)):
            n = d.of(*[m for m in range(1, left + 1) if left % m == 0] or [0])
            sizes.append(n)
            left = left // n if n else 0
        return [*sizes, left]

    def _expanded(self, sizes: Sequence[int]) -> list[int]:
        d = self.d
        return [*d.wholes(d.whole(0, 1), 1, 3),
                *[d.whole(1, 3) if m == 1 else d.of(m, -1) for m in sizes]]

    def _strided(self, n: str, x: torch.Tensor) -> str | None:
        """Strides count in memory, which is that of the CPU only in packed tensors."""
        d = self.d
        if not x.is_contiguous() or not x.numel():
            return None
        sizes = d.sizes(0, 3, 4)
        strides = d.wholes(len(sizes), 0, 4)
        room = x.numel() - 1 - sum((m - 1) * s for m, s in zip(sizes, strides))
        if room < 0:
            return None
        offset = x.storage_offset() + d.whole(0, room)
        if x._base is None and not n.startswith("a"):
            return f"{n}.as_strided({sizes}, {strides}, {offset})"
        if d.whole(0, room) and not x.storage_offset():
            return f"{n}.as_strided({sizes}, {strides})"
        return f"{n}.as_strided({sizes}, {strides}, {n}.storage_offset() + {d.whole(0, room)})"

    def _number(self, x: torch.Tensor) -> str:
        if x.dtype == torch.bool:
            return str(self.d.of("True", "False"))
        return str(self.d.whole(0, 3) if not x.dtype.is_floating_point else self.d.of(
            2, -1, 0.5, 3.0, 0))

    def _like(self, x: torch.Tensor) -> str | None:
        """Another tensor that broadcasts to this one's sizes."""
        fitting = []
        for n in self.names:
            y = self.scope[n]
            try:
                if torch.broadcast_shapes(y.shape, x.shape) == x.shape and torch.can_cast(
                        y.dtype, x.dtype):
                    fitting.append(n)
            except RuntimeError:
                pass
        return str(self.d.of(*fitting)) if fitting else None

    def _places(self, size: int, *sizes: int) -> str:
        """Places below ``size``, as a constant of the device that tensors are on."""
        places = self.d.integers(sizes, "int64", 0, size - 1).tolist()
        return f"torch.tensor({places}, device=a0.device)"

    def _write(self) -> str | None:
        d = self.d
        n, x = self._some()
        if has_overlap(x):
            return None
        y, number = self._like(x), self._number(x)
        made = [f"!{n}.add_({number})", f"!{n}.mul_({number})", f"!{n}.zero_()",
                f"!{n}.fill_({number})", f"!{n}.neg_()", f"!{n}.clamp_(-4, 4)",
                f"{n}.add_({number})", f"{n}.copy_({n}.flip(0))" if x.ndim else None,
                f"!torch.neg({n}, out={n})", f"{n}.unsqueeze_(0)", f"{n}.squeeze_()",
                f"{n}.transpose_(0, -1)", f"{n}.t_()", f"!{n}.detach().add_({number})"]
        if y is not None:
            made += [f"!{n}.add_({y})", f"!{n}.copy_({y})", f"!{n}.mul_({y})", f"!{n}[...] = {y}",
                     f"!{n}.sub_({y}, alpha=2)", f"{n}.copy_({y})",
                     f"!{n}.masked_fill_({y} > 0, {number})", f"!{n}.lerp_({y}, 0.5)",
                     f"!torch.add({n}, {y}, out={n})", f"!torch._foreach_add_([{n}], [{y}])",
                     f"!{n}[{n} > 0] = {number}", f"!{n}.where({n} > 0, {y}).sign_()"]
        if x.ndim and x.shape[0]:
            size = x.shape[0]
            k = d.whole(0, x.ndim - 1)
            count = d.whole(1, 3)
            index = ", ".join(self._subscript(m) for m in x.shape[:d.whole(1, x.ndim)])
            rows, shape = self._places(size, count), [count, *x.shape[1:]]
            source = f"{n}.new_full({shape}, {number})"
            accumulate = d.of("True", "False")
            unique = f"torch.arange({min(count, size)}, device=a0.device)"
            made += [f"!{n}[{index}] = {number}", f"!{n}[{index}] = {number}",
                     f"!{n}[{index}] += {number}", f"!{n}[{index}].mul_({number})",
                     f"!{n}.index_put_(({rows},), {source}, accumulate={accumulate})",
                     f"!{n}.index_put_(({unique},), {n}[:{min(count, size)}] * 2)",
                     f"!{n}.index_add_(0, {rows}, {source})",
                     f"!{n}.index_fill_(0, {rows}, {number})",
                     f"!{n}.index_copy_(0, {unique}, {n}.flip(0)[:{min(count, size)}])",
                     f"!{n}.scatter_(0, {n}.argsort(0), {number})" if x.numel() else None,
                     f"!{n}.diagonal().fill_({number})", f"!{n}.cumsum_({k})",
                     f"!{n}.select({k}, 0).copy_({n}.select({k}, -1))"]
        text: str | None = d.of(*made)
        if text is not None and text.count(n) > 1 and "flip" not in text and self._meet(text, n, y):
            return None
        return text

    def _meet(self, text: str, n: str, y: str | None) -> bool:
        """Whether a line may read what it writes elsewhere, which PyTorch leaves undefined."""
        x, z = self.scope[n], self.scope.get(y) if y is not None and y in text else None
        return z is not None and z is not x and (
            z.untyped_storage().data_ptr() == x.untyped_storage().data_ptr())

    def _compute(self) -> str | None:
        d = self.d
        n, x = self._some()
        y, number = self._like(x), self._number(x)
        k = d.whole(-x.ndim, x.ndim - 1) if x.ndim else 0
        made = [f"{n} * {number}", f"{n} + {number}", f"-{n}", f"{n}.clone()", f"{n}.contiguous()",
                f"{n}.relu()", f"torch.zeros_like({n})", f"{n}.sum()", f"{n}.float()",
                f"{n}.to(torch.{d.of('float32', 'int64', 'float16', 'bool', 'int32')})",
                f"{n} > 0", f"torch.empty_like({n}).copy_({n})", f"{n}.sin()", f"{n}.clone().t()",
                f"{n}.new_ones({d.sizes(0, 3, 3)})", f"torch.ones_like({n})"]
        if x.ndim:
            other = f"torch.arange({x.shape[0]}, device=a0.device)"
            made += [f"{n}.sum({k})", f"{n}.flip({k})", f"{n}.roll(1, {k})", f"{n}.cumsum({k})",
                     f"{n}.repeat({[d.whole(1, 2) for _ in x.shape]})", f"{n}.amax({k})",
                     f"{n}.sort({k}, stable=True)", f"torch.cat([{n}, {n}], {k})",
                     f"torch.stack([{n}, {n}], {k})", f"{n}[{other}]", f"{n}.tril()",
                     f"{n}[{n} > 0]" if d.chance(0.2) else None,
                     f"torch.nn.functional.pad({n}, [{d.whole(-1, 2)}, {d.whole(-1, 2)}])",
                     f"{n}.index_select({k}, {self._places(max(x.shape[k], 1), 2)})",
                     f"{n}.float() @ {n}.float().mT", f"{n}.softmax({k})", f"{n}.mean({k})"]
        if y is not None:
            made += [f"{n} + {y}", f"{n} * {y}", f"torch.where({n} > 0, {n}, {y})",
                     f"torch.maximum({n}, {y})", f"{n} - {y}", f"{n} == {y}"]
        text: str | None = d.of(*made)
        return text

    def _end(self) -> None:
        d = self.d
        results = [d.of(*self.names[len(self.arguments):] or self.names) if d.chance(0.75)
                   else d.of(*self.names) for _ in range(d.whole(1, 4))]
        if d.chance(0.15):
            results.append(results[0])
        if d.chance(0.1):
            results.append(f"{results[0]}.numel()")
        self.lines.append(f"return [{', '.join(results)}]")


def drawn(seed: int) -> Program:
    """The program of a seed."""
    return Writer(seed).program


# Comparison


@dataclass
class Seen:
    """What a call leaves: results, storages, what a change of each of them changes, gradients."""

    results: list[Any]
    storages: list[torch.Tensor]
    gradients: list[torch.Tensor] = field(default_factory=list)
    after: list[torch.Tensor] = field(default_factory=list)


def _host(x: Any) -> Any:
    return x.detach().cpu().clone() if isinstance(x, torch.Tensor) else x


def seen(program: Program, function: Callable[..., Any], device: str) -> Seen:
    """Call it, and note what there is afterwards."""
    wholes, given = program.given(device)
    results = pytree.tree_leaves(function(*given))
    found = Seen([_host(x) for x in results], [_host(x) for x in wholes])
    tensors = [x for x in results if isinstance(x, torch.Tensor)]
    if program.gradients:
        ends = [x for x in tensors if x.requires_grad and x.dtype.is_floating_point]
        inputs = [x for x in given if x.requires_grad]
        if ends:
            loss = [torch.arange(1, x.numel() + 1, dtype=torch.float32, device=device)
                    .to(x.dtype).reshape(x.shape) for x in ends]
            found.gradients = [_host(g) for g in torch.autograd.grad(
                ends, inputs, loss, allow_unused=True)]
    with torch.no_grad():
        for i, x in enumerate(tensors):  # who shares memory with whom
            x = x.detach()
            if x.numel() and not has_overlap(x):
                x.add_(i + 1) if x.dtype != torch.bool else x.logical_not_()
        found.after = [_host(x) for x in (*tensors, *wholes)]
    return found


class Canaries:
    """Small tensors in between which memory is free."""

    def __init__(self) -> None:
        self._kept = [torch.full((n,), 77, dtype=torch.uint8, device=_DEVICE)
                      for n in (16, 64, 100, 256, 500, 1000) for _ in range(8)]
        del self._kept[::2]

    def check(self) -> None:
        for x in self._kept:
            assert bool((x.cpu() == 77).all()), "memory beside the results was overwritten"


def differences(found: Seen, expected: Seen) -> str:
    """What is not the same, or nothing."""
    for name in ("results", "storages", "gradients", "after"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        if len(ours) != len(theirs):
            return f"{name}: {len(ours)} instead of {len(theirs)}"
        for i, (x, y) in enumerate(zip(ours, theirs)):
            if not isinstance(y, torch.Tensor):
                if isinstance(x, torch.Tensor) or x != y:
                    return f"{name}[{i}]: {x} instead of {y}"
                continue
            if not isinstance(x, torch.Tensor):
                return f"{name}[{i}]: {x} instead of a tensor"
            room = 2e-2 if y.dtype == torch.float16 else 1e-4
            try:
                torch.testing.assert_close(x, y, rtol=room, atol=room, equal_nan=True)
            except AssertionError as error:
                return f"{name}[{i}]: {str(error).splitlines()[0]}\n{x}\ninstead of\n{y}"
    return ""


def outcome(program: Program) -> str:
    """:data:`AGREED`, or what is wrong."""
    function = program.function()
    torch._dynamo.reset()
    try:
        expected = seen(program, function, "cpu")
    except RuntimeError:
        return REFUSED
    if any(isinstance(x, torch.Tensor) and x.dtype.is_floating_point and not (
            x.abs() < 3e4).all() for x in (*expected.results, *expected.after)):
        return TOO_LARGE
    canaries = Canaries()
    compiled = torch.compile(function, backend="kompute_dml", dynamic=program.dynamic)
    for name, way, calls in (("eager", function, 2), ("compiled", compiled, 3)):
        for call in range(calls):
            try:
                found = seen(program, way, _DEVICE)
            except Exception as error:
                inner = getattr(error, "inner_exception", None) or error
                return f"{name}, call {call}: {type(inner).__name__}: {str(inner)[:600]}"
            if wrong := differences(found, expected):
                return f"{name}, call {call}: {wrong}"
        canaries.check()
    return AGREED


def is_of_pytorch(program: Program) -> bool:
    """Whether a graph of PyTorch's own differs from the program, too."""
    torch._dynamo.reset()
    function = program.function()
    graph = torch.compile(function, backend="aot_eager", dynamic=program.dynamic)
    try:
        found, expected = (seen(program, f, "cpu") for f in (graph, function))
    except Exception:
        return True
    return bool(differences(found, expected))


def judged(seed: int, kinds: Counter[str] | None = None) -> str:
    """What is wrong with the program of a seed, or nothing. ``kinds`` counts outcomes."""
    program = drawn(seed)
    try:
        found = outcome(program)
    except AssertionError as error:
        found = str(error)
    if found.startswith("compiled") and is_of_pytorch(program):
        found = OF_PYTORCH
    fine = found in (AGREED, OF_PYTORCH, TOO_LARGE, REFUSED)
    if kinds is not None:
        kinds[found if fine else "wrong"] += 1
    return "" if fine else (
        f"--- seed {seed}: {found}\n{program.source()}{program.storages}\n{program.arguments} "
        f"gradients={program.gradients} dynamic={program.dynamic}")


def main() -> None:
    first, count = map(int, sys.argv[1:3])
    import kompute_dml.torch  # noqa: F401

    os.environ["KOMPUTE_DML_TORCH_FALLBACK"] = "0"
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    kinds: Counter[str] = Counter()
    for seed in range(first, first + count):
        if wrong := judged(seed, kinds):
            print(wrong, flush=True)
        if seed % 100 == 99:
            print(seed, dict(kinds), flush=True)


if __name__ == "__main__":
    main()
