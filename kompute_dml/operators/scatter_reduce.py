"""SCATTER_REDUCE and SCATTER_ND_REDUCE, which DirectML does not have: updates of one place are
added, multiplied, or the least or largest one is taken.

Updates are sorted by the place that they aim at, stably and without atomic operations. Then runs of
equal places are reduced, chunk by chunk. A CPU reduces many lines one after the other instead. So
equal inputs give equal bits each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..attributes import ReduceFunction
from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import UnsupportedError, expect
from ..layout import Ints, product
from ..lowering.builder import PlanBuilder
from ..lowering.copy import SHADERS as COPY_SHADERS
from ..lowering.copy import copied_input
from ..lowering.indexed import Indexed
from ..lowering.kernel import Kernel, choose
from ..lowering.plan import UNUSED, Operand
from ..lowering.walk import Walk
from ..runtime.traits import DeviceTraits
from .base import OperatorDesc, like, operator
from .gather import Columns, Updates, check_along_axis, check_scatter_nd, tuples_of

_FUNCTIONS = (ReduceFunction.SUM, ReduceFunction.MULTIPLY, ReduceFunction.MIN, ReduceFunction.MAX)
"""In the order of the shader's numbers."""
_SHADERS = ("scatter_keys", "sort_keys", "reduce_runs", *COPY_SHADERS)
_LOCAL_SIZE = 256
_SORT_LANES, _SORT_EACH, _DIGIT_BITS = 128, 16, 4
"""Invocations of a workgroup that sorts, keys of each, and bits of a digit (sort_keys.comp)."""
_CHUNK = 32
"""Entries that an invocation reduces (reduce_runs.comp)."""
_MOST = (1 << 32) - 2
"""The most places: their numbers, and two that are none, have 32 bits."""


@dataclass(frozen=True)
class _Updates:
    """Dimensions of updates that have an index of their own, those of the slices that an update
    consists of, and those of the places."""

    numbers: Walk
    """The updates' offsets, and those of indices and places."""
    slices: Walk
    """Offsets of updates and output."""
    places: Walk
    """The output's offsets."""
    axes: tuple[int, ...]
    """Size and stride among the places of each coordinate that indices give."""


def _updates(how: Indexed) -> _Updates:
    """Where one index serves a whole dimension, this dimension belongs to the slices."""
    own = [d for d, n in enumerate(how.sizes) if n > 1 and how.tuples[d]
           and (how.indices[d] != 0 or how.indexed[d] == 0)]
    others = [d for d, n in enumerate(how.sizes) if n > 1 and d not in own]
    count = product([c.size for c in how.coordinates])
    dims = [(c.slots, c.size, c.stride) for c in how.coordinates if c.size > 1]
    to_place = []
    for d in own:
        to_place.append(count if how.indexed[d] else 0)
        if how.indexed[d]:
            dims.append((count, how.sizes[d], how.indexed[d]))
            count *= how.sizes[d]
    dims.sort(reverse=True)

    def walk(dimensions: list[int], *strides: Ints) -> Walk:
        return Walk([how.sizes[d] for d in dimensions],
                    *([s[d] for d in dimensions] for s in strides))

    at = dict(zip(own, to_place))
    places = tuple(at.get(d, 0) for d in range(len(how.sizes)))
    return _Updates(
        walk(own, how.listed, how.indices, places), walk(others, how.listed, how.indexed),
        Walk([n for _, n, _ in dims], [s for _, _, s in dims]),
        tuple(w for c in how.coordinates for w in (c.size, c.slots)))


def _lower(p: PlanBuilder, how: Indexed) -> None:
    d, updates = p.desc, _updates(how)
    x, y = d.input_tensor, d.output_tensor
    p.add(copied_input(p, x, y))
    count, slices, places = updates.numbers.count, updates.slices.count, updates.places.count
    words = 2 if y.data_type.itemsize == 8 else 1
    entry_bytes = 4 * max(count, 2 * -(-count // _CHUNK) * slices * words)
    for what, number, most in (("places", places, _MOST),
                               ("bytes of entries", entry_bytes, p.device.max_range)):
        if number > most:
            raise UnsupportedError(f"{d.operator.name}: {number} {what} are not supported on this "
                                   f"device, which takes {most} at most")
    keys = p.temporary(4, count)
    listed, indices, aimed = updates.numbers.strides
    keyed = Walk(updates.numbers.sizes, indices, aimed)
    p.dispatch(
        "scatter_keys", -(-count // _LOCAL_SIZE), indices=p.read("indices_tensor"), keys=keys,
        params=[*keyed.words, *updates.axes],
        push={"count": count, "places": places, "axes_at": len(keyed.words), "step": how.step},
        spec={"LOCAL_SIZE": _LOCAL_SIZE, "INDEX_TYPE": d.indices_tensor.data_type.code,
              "COORDINATES": len(how.coordinates)})
    keys, order = _sorted(p, keys.reading(), count, places.bit_length())
    numbered = Walk(updates.numbers.sizes, listed)
    params = [*numbered.words, *updates.places.words, *updates.slices.words]
    values, first = UNUSED, True
    while True:
        chunks = -(-count // _CHUNK)
        last = chunks == 1
        made_keys = UNUSED if last else p.temporary(4, 2 * chunks)
        made_values = UNUSED if last else p.temporary(4, 2 * chunks * slices * words)
        p.dispatch(
            "reduce_runs", -(-chunks * slices // _LOCAL_SIZE),
            updates=p.read("updates_tensor") if first else UNUSED,
            numbers=order if first else UNUSED, keys=keys, values=values,
            y=p.write("output_tensor"), made_keys=made_keys, made_values=made_values,
            params=params,
            push={"count": count, "chunks": chunks, "slices": slices, "places": places,
                  "places_at": len(numbered.words),
                  "slices_at": len(numbered.words) + len(updates.places.words)},
            spec={"LOCAL_SIZE": _LOCAL_SIZE, "TYPE": y.data_type.code,
                  "FUNCTION": _FUNCTIONS.index(d.function), "FIRST": first})
        if last:
            return
        keys, values, count, first = made_keys.reading(), made_values.reading(), 2 * chunks, False


def _sorted(p: PlanBuilder, keys: Operand, count: int, bits: int) -> tuple[Operand, Operand]:
    """The keys in order, and where each was. Equal keys keep their order."""
    blocks = -(-count // (_SORT_LANES * _SORT_EACH))
    alone = blocks == 1
    counts = UNUSED if alone else p.temporary(4, blocks << _DIGIT_BITS)
    digits = range(0, bits, _DIGIT_BITS)
    # Digits are sorted from one room into the other.
    rooms = [(p.temporary(4, count), p.temporary(4, count)) for _ in digits[:2]]
    numbers = UNUSED
    for i, shift in enumerate(digits):
        made_keys, made_numbers = rooms[i % 2]

        def step(name: str, groups: int, keys: Operand = UNUSED, numbers: Operand = UNUSED,
                 made_keys: Operand = UNUSED, made_numbers: Operand = UNUSED,
                 shift: int = shift, first: bool = i == 0) -> None:
            p.dispatch(
                f"sort_keys.{name}", groups, keys=keys, numbers=numbers, counts=counts,
                sorted_keys=made_keys, sorted_numbers=made_numbers,
                push={"count": count, "blocks": blocks, "shift": shift},
                spec={"LOCAL_SIZE": _SORT_LANES, "EACH": _SORT_EACH, "FIRST": first,
                      "ALONE": alone})

        if not alone:
            step("count", blocks, keys)
            step("offsets", 1)
        step("move", blocks, keys, numbers, made_keys, made_numbers)
        keys, numbers = made_keys.reading(), made_numbers.reading()
    return keys, numbers


class _ReducedColumns(Columns):
    file = "reduce_lines"

    def serves(self, problem: Updates, traits: DeviceTraits) -> str | None:
        if problem.desc.output_tensor.data_type is DataType.FLOAT16:
            return "FLOAT16 would be rounded at each update"
        return super().serves(problem, traits)

    def spec(self, d: OperatorDesc) -> dict[str, int]:
        return {"TYPE": d.output_tensor.data_type.code, "FUNCTION": _FUNCTIONS.index(d.function)}


class _SortedUpdates(Kernel[Updates]):
    """Any updates, sorted by their places."""

    name = "runs"
    cost = 2.0

    def lower(self, problem: Updates, p: PlanBuilder) -> None:
        _lower(p, problem.places)


KERNELS: tuple[Kernel[Updates], ...] = (_ReducedColumns(), _SortedUpdates())


def _check_function(d: OperatorDesc) -> None:
    names = ", ".join(f.name for f in _FUNCTIONS)
    expect(d.function in _FUNCTIONS, d.operator.name, "Function", f"be one of {names}",
           ReduceFunction(d.function).name)


def _check(d: OperatorDesc, strict: bool) -> None:
    _check_function(d)
    check_along_axis(d, strict)


def _check_nd(d: OperatorDesc, strict: bool) -> None:
    _check_function(d)
    check_scatter_nd(d, strict)


@operator("SCATTER_REDUCE", output=like("input_tensor"), shaders=("reduce_lines", *_SHADERS),
          check=_check, axis=-1, function=ReduceFunction.SUM)
def ScatterReduceOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    problem = Updates(d)
    choose(KERNELS, problem, p).lower(problem, p)


@operator("SCATTER_ND_REDUCE", output=like("input_tensor"), shaders=_SHADERS, check=_check_nd,
          function=ReduceFunction.SUM)
def ScatterNdReduceOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    y: TensorDesc = d.output_tensor
    how = tuples_of(d)
    strides = y.strides[-len(how.input_strides):]
    _lower(p, replace(how, input_strides=strides).indexed(d.updates_tensor))
