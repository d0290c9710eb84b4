"""Cases of reductions, cumulative sums and the first K elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

import kompute_dml as dml

from ..attributes import ReduceFunction
from ..cases import Scale
from ..cases import case as cases
from ..cases.reduction import top
from ..device import Device
from ..dtypes import DataType
from .case import Case, Peer, Recipe, shape, touched_bytes
from .ordinary import ordinary
from .peers import Torch
from .values import Key, Output, Pattern, host, numbers, offsets, room, sampled

if TYPE_CHECKING:
    import torch

_SIDE = 16384
_MATRICES = (_SIDE, _SIDE)
_PARTS = 16
"""Parts of a cumulative sum along columns that are checked, ..."""
_COLUMNS = 32
"""... and columns of each."""

_REFERENCES: dict[str, Callable[..., Any]] = {
    "SUM": np.sum, "MAX": np.max, "AVERAGE": np.mean,
    "SUM_SQUARE": lambda x, *more, **kept: np.sum(x * x, *more, **kept), "ARGMAX": np.argmax}
_AXES = {"last": (1,), "first": (0,), "middle": (1,), "all": (0, 1)}


def _sizes(s: Scale, where: str) -> tuple[int, ...]:
    return tuple(map(s.of, (64, 4096, 1024) if where == "middle" else _MATRICES))


def _operator(function: str) -> tuple[str, dict[str, Any]]:
    """The operator's name and the attributes of its function."""
    if function == "ARGMAX":
        return "DML_OPERATOR_ARGMAX", {}
    return "DML_OPERATOR_REDUCE", dict(function=ReduceFunction[function])


def _torch(function: str, axes: tuple[int, ...]) -> Callable[..., Iterator[Peer]]:
    def peers(torch: ModuleType, x: torch.Tensor) -> Iterator[Peer]:
        axis = None if len(axes) == x.dim() else axes[0]
        along = dict(dim=axes, keepdim=True)
        # Which of equal elements PyTorch finds is not defined. It takes the root of squares.
        yield Peer("torch", {
            "SUM": lambda: x.sum(**along), "MAX": lambda: x.amax(**along),
            "AVERAGE": lambda: x.mean(**along),
            "SUM_SQUARE": lambda: torch.linalg.vector_norm(x, **along),
            "ARGMAX": lambda: x.argmax(axis, keepdim=axis is not None),
        }[function], checked=function not in ("SUM_SQUARE", "ARGMAX"))

    return peers


def _low(function: str) -> float:
    # Sums of equal signs, as a sum that is near 0 says little.
    return -1.0 if function in ("MAX", "ARGMAX") else 0.0


def reduction(data_type: DataType, function: str, where: str) -> Recipe:
    """``where`` is the axis: last, first, middle (of three) or all."""
    name, attributes = _operator(function)
    axes, family = _AXES[where], data_type.family
    types = (f"{family} {where}" if function == "ARGMAX"
             else f"{family} {function.lower()} {where}")
    if where == "all":
        return _whole(name, types, data_type, function, attributes)

    def entry(s: Scale) -> cases.OperatorCase:
        return cases.case(
            lambda x: _REFERENCES[function](x, axes[0], keepdims=True),
            cases.Given(_sizes(s, where), _low(function), 1, data_type.dtype), axes=axes,
            room=room(data_type.dtype), **attributes)

    return ordinary(name, types, entry, torch=_torch(function, axes),
                    axis=1 if where == "first" else 0)


def _whole(name: str, types: str, data_type: DataType, function: str,
           attributes: dict[str, object]) -> Recipe:
    """All elements of a matrix. The reference adds up its repeated block."""

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        sizes, axes = _sizes(scale, "all"), _AXES["all"]
        pattern = numbers(data_type.dtype, math.prod(sizes), _low(function), 1, 4)
        x = pattern.tensor(device).reshape(*sizes)
        call: Any = dml.argmax if function == "ARGMAX" else dml.reduce
        out = call(x, axes=axes, **attributes)

        def expected() -> float:
            block = pattern.block.astype(np.float64)
            if function in ("MAX", "ARGMAX"):
                return float(_REFERENCES[function](block))
            squares = block * block if function == "SUM_SQUARE" else block
            whole, rest = divmod(pattern.count, len(block))
            total = whole * squares.sum() + squares[:rest].sum()
            return float(total / pattern.count if function == "AVERAGE" else total)

        def check(output: Output) -> str:
            got, wanted = float(host(output).reshape(-1)[0]), expected()
            most = 0.0 if function == "ARGMAX" else abs(wanted) * room(data_type.dtype)
            return "" if abs(got - wanted) <= most else f"{got}, which must be {wanted}"

        def torch_peers(library: Torch) -> Iterator[Peer]:
            return _torch(function, axes)(library.torch, library.tensor(pattern).reshape(*sizes))

        yield Case(name, types, shape(sizes), lambda: call(x, axes=axes, out=out, **attributes),
                   check, touched_bytes((x.desc, out.desc)), peers={"torch": torch_peers})

    return Recipe(name, types, make)


def _before(pattern: Pattern) -> Callable[[np.ndarray], np.ndarray]:
    """The sum of the first n elements of a pattern."""
    block = np.concatenate([[0], np.cumsum(pattern.block.astype(np.float64))])
    length = len(pattern.block)

    def before(n: np.ndarray) -> np.ndarray:
        return np.asarray(n // length * block[-1] + block[n % length])

    return before


def cumulative(axis: int, rows: int, columns: int) -> Recipe:
    """CUMULATIVE_SUMMATION of FLOAT32 along an axis of a matrix."""
    name = "DML_OPERATOR_CUMULATIVE_SUMMATION"
    text = f"{rows} x {columns}" if rows > 1 else "one row"
    types = f"f32 {'last' if axis else 'first'} axis, {text}"

    def make(device: Device, scale: Scale) -> Iterator[Case]:
        sizes = (scale.of(rows), scale.of(columns))
        pattern = numbers(np.float32, math.prod(sizes), 0, 1, 4)
        x, out = pattern.tensor(device).reshape(*sizes), device.empty(sizes)
        before = _before(pattern)

        def near(got: np.ndarray, expected: np.ndarray) -> str:
            worst = float((np.abs(got - expected) / np.maximum(expected, 1)).max())
            return "" if worst <= 1e-4 else f"{worst} off, relative to the sum"

        def along_rows(key: Key) -> np.ndarray:
            at = offsets(key, sizes, (sizes[1], 1))
            return before(at + 1) - before(at // sizes[1] * sizes[1])

        def down_columns(output: Output) -> str:
            rng, wide = np.random.default_rng(7), min(_COLUMNS, sizes[1])
            for row in {0, sizes[0] - 1, *rng.integers(0, sizes[0], _PARTS).tolist()}:
                start = int(rng.integers(0, sizes[1] - wide + 1))
                key = slice(0, row + 1), slice(start, start + wide)
                values = pattern.at(offsets(key, sizes, (sizes[1], 1))).astype(np.float64)
                if problem := near(host(output[row, key[1]]), values.sum(0)):
                    return f"{problem} (in row {row}, from column {start})"
            return ""

        def torch_peers(library: Torch) -> Iterator[Peer]:
            x = library.tensor(pattern).reshape(*sizes)
            yield Peer("torch", lambda: x.cumsum(axis))

        yield Case(
            name, types, shape(sizes), lambda: dml.cumulative_summation(x, axis=axis, out=out),
            sampled(sizes, along_rows, near) if axis else down_columns,
            touched_bytes((x.desc, out.desc)), peers={"torch": torch_peers})

    return Recipe(name, types, make)


def first_k(data_type: DataType, rows: int, columns: int, k: int = 50) -> Recipe:
    """TOP_K along rows."""

    def entry(s: Scale) -> cases.OperatorCase:
        rows_of = cases.Given((s.of(rows), max(s.of(columns), 2 * k)), -1, 1, data_type.dtype)
        return cases.case(lambda x: top(x, k), rows_of, k=k)

    def torch_peers(torch: ModuleType, x: torch.Tensor) -> Iterator[Peer]:
        # PyTorch orders equal elements in some way.
        yield Peer("torch", lambda: x.topk(k, 1), checked=False)

    return ordinary("DML_OPERATOR_TOP_K", f"{data_type.family} K = {k}, rows of {columns}", entry,
                    torch=torch_peers)
