"""What a decoder multiplies for each token: a few rows, normalized or not, by up to three matrices
of 4- or 8-bit elements in blocks, or of FLOAT16, in one dispatch. Graphs make it from
normalizations, GEMM and SWISH."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...desc import TensorDesc
from ...dtypes import DataType
from ...layout import product
from ...lowering import measured
from ...lowering.builder import PlanBuilder
from ...lowering.elementwise import float_bits
from ...lowering.plan import Plan, Target
from ...runtime.shader_library import ShaderLibrary
from ...spec import Field
from ..base import OperatorDesc, widened
from .gemm import GemmOperatorDesc

SHADER, PLAIN = "gemm_decode", "gemm_decode_plain"
MOST_PARTS, MOST_ROWS = 3, 8
_INVOCATIONS, _LANES = 128, 32
_TEAMS = _INVOCATIONS // _LANES
_FEW_COLUMNS = 64
"""With fewer columns for each core, a team takes two, else four: then there are enough teams."""
_HELD_BYTES, _OTHER_BYTES = 40 << 10, 6 << 10
"""The most bytes of rows in shared memory, and what the shader takes beside."""
_WORKERS = 4
"""The most workgroups for each core."""
_PLAIN_INVOCATIONS, _PAIRS_AT_ONCE = 256, 2
_FEW_TILES, _FEW_ROWS = 2, 2
"""With no more tiles for each core, and no more rows, a workgroup of the plain kernel has twice as
many invocations."""
_PLAIN_OTHER_BYTES = 40
"""Of shared memory for each invocation of it, beside the rows."""
_ACROSS = (8, 4, 2)
"""How many vectors of eight columns a workgroup may take."""


class DecodePart(NamedTuple):
    """A matrix of a description, its scales and zero points, what is added, and the output."""

    slots: tuple[str, str, str, str, str]
    b: TensorDesc
    scale: TensorDesc | None
    zero: TensorDesc | None
    c: TensorDesc | None
    y: TensorDesc | None


def slots(n: int) -> tuple[str, str, str, str, str]:
    """The slots of part ``n``: B, scales, zero points, C and the output."""
    s = str(n) if n else ""
    return (f"b{s}_tensor", f"b{s}_scale_tensor", f"b{s}_zero_point_tensor", f"c{s}_tensor",
            f"output{s}_tensor")


def parts(d: OperatorDesc) -> Iterator[DecodePart]:
    """The parts of a description."""
    for n in range(MOST_PARTS):
        if getattr(d, slots(n)[0]) is not None:
            yield DecodePart(slots(n), *(getattr(d, slot) for slot in slots(n)))


def tile_columns(gated: bool) -> int:
    """Columns of each matrix must be a multiple of this."""
    return _TEAMS * (2 if gated else 4)


def serves(target: Target, products: Sequence[Any]) -> bool:
    """Whether a device has the kernel for products, all in blocks or all plain, as one, registers
    for those in blocks, and was measured to gain by it."""
    traits, axes = target.traits, ("r1", f"p{len(products)}")
    rows = products[0].output_tensor.sizes[-2]
    height = _height(rows)
    plain = getattr(products[0], "b_scale_tensor", None) is None
    known = measured.figures(traits.device_class, PLAIN if plain else SHADER)
    if rows > known["rows"] or len(products) < known["products"]:
        return False
    if plain:
        shader, invocations = target.library.find(PLAIN, *axes), _PLAIN_INVOCATIONS
    else:
        shader, invocations = target.library.find(SHADER, "floats", *axes), _INVOCATIONS
        least = f"r{height}.p1"  # more products take as many registers
        if f"{SHADER}.{_math(target.library, least)}.{least}" in measured.crowded(
                traits.device_class):
            return False
    return shader is not None and traits.max_invocations >= invocations and (
        not plain or traits.subgroup_size >= _ACROSS[-1])


def takes(d: OperatorDesc) -> bool:
    """Whether the kernel can do a product by blocked weights, alone or beside others."""
    x, b, scale, zero, c, y = (d.a_tensor, d.b_tensor, d.b_scale_tensor, d.b_zero_point_tensor,
                               d.c_tensor, d.output_tensor)
    rows, columns = y.sizes[-2:]
    depth, each = x.sizes[-1], 128 // b.data_type.bits
    halves = all(t is None or t.data_type is DataType.FLOAT16 for t in (x, scale, c, y))
    return bool(
        halves and product(y.sizes[:-2]) == 1 and rows <= MOST_ROWS
        and d.alpha == 1 and (c is None or d.beta == 1) and d.fused_activation is None
        and not d.trans_a and not d.trans_b and depth % each == 0
        and columns % tile_columns(False) == 0
        and x.strides[-1] == 1 and x.base_alignment % 16 == 0 and (
            rows == 1 or x.strides[-2] % 8 == 0)
        and b.base_alignment % 16 == 0 and b.strides[-2] == 1 and b.strides[-1] % each == 0
        and (d.block_size % each == 0 or d.block_size == 16)
        and all(t is None or t.strides[1] == 1 or t.sizes[1] == 1 for t in (scale, zero))
        and all(t is None or (t.strides[-1] == 1 and t.base_alignment % 4 == 0 and (
            rows == 1 or t.strides[-2] % 2 == 0)) for t in (c, y))
        and (c is None or rows == 1 or c.strides[-2] in (0, y.strides[-2])))


def takes_plain(d: OperatorDesc) -> bool:
    """Whether the kernel can do a product by FLOAT16 as it is, alone or beside others."""
    x, b, c, y = d.a_tensor, d.b_tensor, d.c_tensor, d.output_tensor
    rows, columns = y.sizes[-2:]
    return bool(
        all(t is None or t.data_type is DataType.FLOAT16 for t in (x, b, c, y))
        and product(y.sizes[:-2]) == 1 and product(b.sizes[:-2]) == 1 and rows <= MOST_ROWS
        and d.alpha == 1 and (c is None or d.beta == 1) and d.fused_activation is None
        and not d.trans_a and not d.trans_b and x.sizes[-1] % 2 == 0
        and columns % (8 * _ACROSS[-1]) == 0
        and b.strides[-1] == 1 and b.strides[-2] % 8 == 0 and b.base_alignment % 16 == 0
        and all(t is None or (t.strides[-1] == 1 and t.base_alignment % 4 == 0 and (
            rows == 1 or t.strides[-2] % 2 == 0)) for t in (x, c, y))
        and (c is None or rows == 1 or c.strides[-2] in (0, y.strides[-2])))


def _lower(d: OperatorDesc, target: Target) -> Plan:
    return (_lower_plain if d.b_scale_tensor is None else _lower_blocks)(d, target)


def _lower_plain(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    products = [*parts(d)]
    first = products[0]
    x, y = d.a_tensor, d.output_tensor
    rows, depth, gated = y.sizes[-2], x.sizes[-1], bool(d.gated)
    height = _height(rows)
    widths = [part.b.sizes[-1] for part in (products[:1] if gated else products)]
    able = [n for n in _ACROSS if n <= p.device.subgroup_size and not any(
        width % (8 * n) for width in widths)]
    # The widest that leaves a tile for each core.
    across = next((n for n in able if sum(widths) >= 8 * n * p.device.cores), able[-1])
    starts, tiles = [], widths[0] // (8 * across)
    for width in widths[1:]:
        starts.append(tiles)
        tiles += width // (8 * across)
    invocations = 2 * _PLAIN_INVOCATIONS
    if height > _FEW_ROWS or tiles > _FEW_TILES * p.device.cores or (
            p.device.max_invocations < invocations
            or p.device.max_shared_memory < _HELD_BYTES + _PLAIN_OTHER_BYTES * invocations):
        invocations = _PLAIN_INVOCATIONS
    teams = invocations // (2 if gated else 1) // across
    room = min(_HELD_BYTES, p.device.max_shared_memory - _PLAIN_OTHER_BYTES * invocations)
    step = _PAIRS_AT_ONCE * teams
    held = min(-(-depth // (2 * step)), max(1, room // (4 * height) // step)) * step
    workers = min(tiles, _WORKERS * p.device.cores) if 2 * held >= depth else tiles
    p.dispatch(
        f"{PLAIN}.r{height}.p{len(products)}", workers, **_operands(p, products),
        push={"rows": rows, "K": depth, "tiles": tiles, "workers": workers, "x_row": x.strides[-2],
              "starts": (*starts, 0, 0)[:2],
              "b_row": [part.b.strides[-2] // 8 for part in products],
              "y_row": [0 if part.y is None else part.y.strides[-2] for part in products],
              "epsilon": float_bits(d.epsilon or 0.0)},
        spec={"LOCAL_SIZE": invocations, "ACROSS": across, "HELD": held,
              "NORMALIZES": d.gamma_tensor is not None, "HAS_C": first.c is not None,
              "C_ROWS": first.c is not None and rows > 1 and first.c.strides[-2] != 0,
              "GATED": gated})
    return p.build()


def _lower_blocks(d: OperatorDesc, target: Target) -> Plan:
    p = PlanBuilder(target, d)
    first, *others = products = [*parts(d)]
    x, y, b = d.a_tensor, d.output_tensor, first.b
    rows, depth, gated = y.sizes[-2], x.sizes[-1], bool(d.gated)
    each = 128 // b.data_type.bits
    height = _height(rows)
    total = sum(part.b.sizes[-1] for part in products)
    columns = 4 if gated or total >= _FEW_COLUMNS * p.device.cores else 2
    tile = _TEAMS * (columns // 2 if gated else columns)
    starts, tiles = [], first.b.sizes[-1] // tile
    for part in others if not gated else ():
        starts.append(tiles)
        tiles += part.b.sizes[-1] // tile
    room = min(_HELD_BYTES, p.device.max_shared_memory - _OTHER_BYTES)
    fits = room // (16 * height * each // 8) - 2
    held = min(-(-depth // (each * _LANES)), max(1, fits // _LANES)) * _LANES
    scale, zero = first.scale, first.zero
    # Where the rows stay in shared memory, a workgroup takes several tiles.
    workers = min(tiles, _WORKERS * p.device.cores) if held * each >= depth else tiles
    suffix = f"r{height}.p{len(products)}"
    math = _math(p.library, suffix)
    p.dispatch(
        f"{SHADER}.{math}.{suffix}", workers, **_operands(p, products),
        push={"rows": rows, "K": depth, "tiles": tiles, "workers": workers, "x_row": x.strides[-2],
              "starts": (*starts, 0, 0)[:2], "b_column": b.strides[-1] // each,
              "scale_column": 0 if scale is None else scale.strides[0],
              "zero_column": 0 if zero is None else zero.strides[0],
              "y_row": [0 if part.y is None else part.y.strides[-2] for part in products],
              "epsilon": float_bits(d.epsilon or 0.0)},
        spec={"LOCAL_SIZE": _INVOCATIONS, "BITS": b.data_type.bits,
              "SIGNED": b.data_type.is_signed, "HAS_ZERO": zero is not None,
              "BLOCK": d.block_size, "LANES": _LANES, "HELD": held,
              "NORMALIZES": d.gamma_tensor is not None, "HAS_C": first.c is not None,
              "C_ROWS": first.c is not None and rows > 1 and first.c.strides[-2] != 0,
              "COLUMNS": columns, "GATED": gated})
    return p.build()


def _operands(p: PlanBuilder, products: Sequence[DecodePart]) -> dict[str, Any]:
    """The buffers of both kernels. Plain matrices have neither scales nor zero points."""
    operands: dict[str, Any] = {"x": p.read("a_tensor"), "gamma": p.read("gamma_tensor")}
    for n, part in enumerate(products):
        b, scale, zero, c, y = part.slots
        blocks = {} if part.scale is None else {"scale": scale, "zero": zero}
        reads = {"b": b, **blocks, "c": c}
        operands |= {f"{name}{n}": p.read(slot) for name, slot in reads.items()}
        # The second matrix of a gated product has no output of its own.
        operands[f"y{n}"] = p.write(y if part.y is not None else "output_tensor")
    return operands


def _height(rows: int) -> int:
    """The rows of the kernel that takes so many."""
    return next(n for n in (1, 2, 4, 8) if n >= rows)


def _math(library: ShaderLibrary, suffix: str) -> str:
    """How the kernel computes: with FLOAT16 where the device has it."""
    return "halves" if library.find(SHADER, "halves", *suffix.split(".")) else "floats"


def _fields() -> Iterator[Field]:
    yield Field("GammaTensor", "input", "TENSOR_DESC", True)
    for n in ("", "1", "2"):
        if n:
            yield Field(f"B{n}Tensor", "input", "TENSOR_DESC", True)
            yield Field(f"C{n}Tensor", "input", "TENSOR_DESC", True)
        yield Field(f"B{n}ScaleTensor", "input", "TENSOR_DESC", True)
        yield Field(f"B{n}ZeroPointTensor", "input", "TENSOR_DESC", True)
        if n:
            yield Field(f"Output{n}Tensor", "output", "TENSOR_DESC", True)
    yield Field("BlockSize", "attribute", "UINT", True)
    yield Field("Epsilon", "attribute", "FLOAT", True)
    yield Field("Gated", "attribute", "UINT", True)


DecodeProductDesc: Any = widened(
    GemmOperatorDesc, *_fields(), name="DECODE_PRODUCT", lower=_lower, in_place=False)
"""A is normalized by its root mean square and Gamma, if that is there. Each B is FLOAT16, K x
columns, or has the form of :data:`BlockedGemmDesc`'s with scales and zero points. Beside it are C
(a row, or one for each row) and an output. Gated: the output is SiLU of the first product times the
second."""
