"""Lowers a copy from one layout to another: by rows, in pieces or in tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..desc import TensorDesc
from ..layout import Ints, are_of_vectors, coalesce, memory_order, power_of_two, product
from ..runtime.traits import DeviceTraits
from ..tuning import work_key
from .builder import PlanBuilder
from .kernel import Kernel, choose
from .plan import Dispatch, Operand
from .walk import runs_of

_LOCAL_SIZE = 256
_NEAR = 16
"""Neighbouring vectors that a workgroup should at least read and write."""
_TILE_VECTORS = 1024
"""16 KiB: the shared memory that every device has."""
_TILE_SIDE = 64
"""The most elements along a side of a tile."""
_Push = dict[str, int | Sequence[int]]
_Way = tuple[int, _Push, dict[str, int]]
"""Workgroups, push fields and constants."""


class CopyView(NamedTuple):
    """The elements of a tensor that a copy walks, from ``start`` on. Strides may be 0 or
    negative."""

    slot: str
    desc: TensorDesc
    strides: Ints
    start: int = 0

    @classmethod
    def whole(cls, slot: str, desc: TensorDesc) -> CopyView:
        """All of the tensor."""
        return cls(slot, desc, desc.strides)

    @property
    def is_aligned(self) -> bool:
        """Whether it begins at a multiple of 16 bytes."""
        return self.desc.is_aligned and self.start * self.desc.data_type.itemsize % 16 == 0

    def operand(self, sizes: Ints, offset_field: str, writes: bool) -> Operand:
        reach = [(n - 1) * s for n, s in zip(sizes, self.strides)]
        below, above = (sum(f(r, 0) for r in reach) for f in (min, max))
        return Operand(self.slot, offset_field, self.desc.data_type.itemsize, above - below + 1,
                       self.start + below, writes, -below)


class Copy:
    """A copy between two views: the fewest dimensions, in the order of the output's memory."""

    def __init__(self, sizes: Ints, x: CopyView, y: CopyView) -> None:
        self.operands = x.operand(sizes, "in_offset", False), y.operand(sizes, "out_offset", True)
        self.type = x.desc.data_type
        self.sizes, self.in_strides, self.out_strides = in_order_of_output(
            sizes, x.strides, y.strides)
        self.each = 16 // self.type.itemsize
        """Elements of a vector."""
        self.is_aligned = x.is_aligned and y.is_aligned

    @property
    def work(self) -> str:
        turned = "" if self.in_strides[-1] == 1 else " turned"
        return work_key(f"copy {self.type.width}{turned}", *self.sizes)


class CopyKernel(Kernel[Copy]):
    """A kernel of copies. Its estimate is a rank."""

    file: str
    constants_decide = True

    def shader(self, problem: Copy) -> str:
        return f"{self.file}.{problem.type.width}"

    def way(self, problem: Copy, traits: DeviceTraits) -> _Way | None:
        """How it copies; None if it cannot."""
        raise NotImplementedError

    def dispatch(self, problem: Copy, p: PlanBuilder) -> Dispatch:
        way = self.way(problem, p.device)
        assert way is not None
        groups, push, spec = way
        return Dispatch(p.library.get(self.file, problem.type.width), groups, problem.operands,
                        push, {"LOCAL_SIZE": _LOCAL_SIZE, **spec})

    def lower(self, problem: Copy, p: PlanBuilder) -> None:
        p.add(self.dispatch(problem, p))


class _Pieces(CopyKernel):
    """Whole vectors that are contiguous in both tensors, with outer dimensions in another order."""

    name, file = "pieces", "activation_identity_pieces"

    def serves(self, problem: Copy, traits: DeviceTraits) -> str | None:
        return None if self.way(problem, traits) else "no vectors with two dimensions around"

    def way(self, problem: Copy, traits: DeviceTraits) -> _Way | None:
        return _pieces(problem.sizes, problem.in_strides, problem.out_strides, problem.each)


class _Tiles(CopyKernel):
    """Tiles of which input and output have different contiguous dimensions."""

    name, file = "tiles", "activation_identity_tiles"
    cost = 1.0

    def serves(self, problem: Copy, traits: DeviceTraits) -> str | None:
        return None if self.way(problem, traits) else "the same dimension is contiguous, or short"

    def way(self, problem: Copy, traits: DeviceTraits) -> _Way | None:
        return _tiles(problem.sizes, problem.in_strides, problem.out_strides, problem.each,
                      problem.each if traits.is_cpu else 1)


class _CopiedRows(CopyKernel):
    """Any layout, by vectors of rows or by elements."""

    name, file = "rows", "activation_identity"
    cost = 2.0

    def way(self, problem: Copy, traits: DeviceTraits) -> _Way:
        return _rows(problem.sizes, problem.in_strides, problem.out_strides, problem.each,
                     problem.is_aligned, traits)


KERNELS: tuple[CopyKernel, ...] = (_Pieces(), _Tiles(), _CopiedRows())


SHADERS = tuple(sorted(kernel.file for kernel in KERNELS))


def copied_input(p: PlanBuilder, x: TensorDesc, y: TensorDesc) -> Dispatch:
    """The dispatch that copies ``input_tensor`` into ``output_tensor``, unless they are the same
    memory. Their data types have the same width."""
    views = CopyView.whole("input_tensor", x), CopyView.whole("output_tensor", y)
    return replace(copied(p, x.sizes, *views), unless_same=("input_tensor", "output_tensor"))


def copied(p: PlanBuilder, sizes: Ints, x: CopyView, y: CopyView) -> Dispatch:
    """The dispatch that copies ``x`` into ``y``; ``sizes`` are those of both."""
    problem = Copy(sizes, x, y)
    return choose(KERNELS, problem, p).dispatch(problem, p)


def in_order_of_output(
    sizes: Ints, in_strides: Ints, out_strides: Ints
) -> tuple[Ints, Ints, Ints]:
    """The fewest dimensions that walk both tensors, in the order of the output's memory."""
    order = memory_order(out_strides)
    merged, strides = coalesce(*(tuple(v[d] for d in order)
                                 for v in (sizes, in_strides, out_strides)))
    return merged, strides[0], strides[1]


def _rows(
    sizes: Ints, in_strides: Ints, out_strides: Ints, each: int, aligned: bool,
    traits: DeviceTraits,
) -> _Way:
    """By vectors (WHOLE) where the last dimension of the output is contiguous, else by elements."""
    repeats, gathers = in_strides[-1] == 0, in_strides[-1] not in (0, 1)
    whole = out_strides[-1] == 1 and (not gathers or sizes[-1] >= each)
    moving = [out_strides] if repeats else [in_strides, out_strides]
    even = aligned and are_of_vectors(each, sizes[-1], *moving)
    rows = product(sizes[:-1])
    # The most vectors that a row lies in.
    per_row = sizes[-1] // each if even else (sizes[-1] + each - 2) // each + 1
    work = rows * (per_row if whole else sizes[-1])
    push = dict(count=rows, sizes=sizes[-1], in_strides=in_strides[-1],
                out_strides=out_strides[-1])
    counted = _counted(range(len(sizes) - 1), sizes, in_strides, out_strides)
    parts = 2 if even and traits.is_cpu else 1
    local_size, run = traits.local_size, 0
    if traits.is_cpu and whole and not (even or repeats or gathers):
        run, per_row, local_size = runs_of(rows, sizes[-1], each)
        work = rows * per_row
    return -(-work // (local_size * parts)), push | counted, dict(
        LOCAL_SIZE=local_size, RANK=len(sizes) - 1, WHOLE=whole, EVEN=even, REPEATS=repeats,
        GATHERS=gathers, PARTS=parts, RUN=run, ON_CPU=traits.is_cpu)


def _pieces(sizes: Ints, in_strides: Ints, out_strides: Ints, each: int) -> _Way | None:
    """For whole vectors that are contiguous in both tensors, with outer dimensions in another
    order."""
    if len(sizes) < 3 or not are_of_vectors(each, sizes[-1], in_strides, out_strides):
        return None
    outer = range(len(sizes) - 1)
    q = outer[-1]
    p = min((d for d in outer if d != q), key=lambda d: abs(in_strides[d]))
    k_size, p_size, q_size = sizes[-1] // each, sizes[p], sizes[q]
    room = 4 * _LOCAL_SIZE
    tile_k = min(power_of_two(k_size), _LOCAL_SIZE)
    tile_q = min(power_of_two(q_size), max(_NEAR // tile_k, 1))
    tile_p = min(power_of_two(p_size), room // (tile_k * tile_q))
    tile_q = min(power_of_two(q_size), room // (tile_k * tile_p))
    lanes = tile_k * tile_p * tile_q // 4
    if lanes < 1:
        return None
    planes = sorted(set(outer) - {p, q}, key=lambda d: -abs(in_strides[d]))
    count = product([sizes[d] for d in planes])
    push: _Push = dict(
        count=count, sizes=(k_size, p_size, q_size),
        in_strides=(in_strides[p], in_strides[q]),
        out_strides=(out_strides[p], out_strides[q]),
        tile_bits=[n.bit_length() - 1 for n in (tile_k, tile_p, tile_q)],
    )
    tiles = -(-k_size // tile_k) * -(-p_size // tile_p) * -(-q_size // tile_q) * count
    counted = _counted(planes, sizes, in_strides, out_strides)
    return -(-tiles * lanes // _LOCAL_SIZE), push | counted, dict(
        RANK=len(planes))


def _tiles(
    sizes: Ints, in_strides: Ints, out_strides: Ints, each: int, shortest: int
) -> _Way | None:
    """Where the dimensions that are contiguous differ between input and output, unless those of the
    input are shorter."""

    def contiguous(strides: Ints, taken: tuple[int, ...]) -> tuple[int, ...]:
        """The dimension of stride 1. If it is short, also the dimension that continues it."""
        free = [d for d in range(len(sizes)) if d not in taken]
        inner = next((d for d in free if strides[d] == 1), None)
        if inner is None or sizes[inner] >= _TILE_SIDE:
            return () if inner is None else (inner,)
        outer = next((d for d in free if d not in (inner, q) and strides[d] == sizes[inner]), None)
        return (inner,) if outer is None else (inner, outer)

    q = next((d for d in range(len(sizes)) if out_strides[d] == 1), -1)
    p_dims = contiguous(in_strides, (q,))
    q_dims = contiguous(out_strides, p_dims)
    if not p_dims or not q_dims or sizes[p_dims[0]] < shortest:
        return None
    planes = sorted(set(range(len(sizes))) - {*p_dims, *q_dims},
                    key=lambda d: -abs(in_strides[d]))

    def pair(values: Ints, dims: tuple[int, ...], absent: int) -> Ints:
        return (*(values[d] for d in dims), *(absent,) * (2 - len(dims)))

    p_sizes, q_sizes = pair(sizes, p_dims, 1), pair(sizes, q_dims, 1)
    p_size, q_size, count = product(p_sizes), product(q_sizes), product([sizes[d] for d in planes])
    room = min(_TILE_VECTORS, _LOCAL_SIZE * each) * each
    tile_p = max(min(_TILE_SIDE, power_of_two(p_size)), each)
    tile_q = max(min(room // tile_p, power_of_two(q_size)), each)
    tile_p = max(min(room // tile_q, power_of_two(p_size)), each)
    together = min(room // (tile_p * tile_q), power_of_two(count))
    push: _Push = dict(
        count=count, sizes=(*p_sizes, *q_sizes),
        in_strides=pair(in_strides, q_dims, 0), out_strides=pair(out_strides, p_dims, 0),
        tile_bits=[n.bit_length() - 1 for n in (tile_p // each, tile_q // each, together)],
    )
    counted = _counted(planes, sizes, in_strides, out_strides)
    groups = -(-p_size // tile_p) * -(-q_size // tile_q) * -(-count // together)
    return groups, push | counted, dict(
        LOCAL_SIZE=tile_p * tile_q * together // (each * each),
        RANK=len(planes), VECTORS=tile_p * tile_q * together // each)


def _counted(
    dims: Sequence[int], sizes: Ints, in_strides: Ints, out_strides: Ints
) -> _Push:
    """The push fields that include/parts.glsl reads for the dimensions that count parts."""
    below, steps = [], []
    after, taken_back = 1, (0, 0)
    for d in reversed(dims):
        strides = in_strides[d], out_strides[d]
        below.append(after)
        steps.append([s - t for s, t in zip(strides, taken_back)])
        after, taken_back = after * sizes[d], (strides[0] * sizes[d], strides[1] * sizes[d])
    return dict(below=below[::-1], in_steps=[i for i, _ in steps[::-1]],
                out_steps=[o for _, o in steps[::-1]])

