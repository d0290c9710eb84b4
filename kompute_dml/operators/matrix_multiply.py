"""MATRIX_MULTIPLY_INTEGER_TO_FLOAT: a product of quantized matrices, scaled to floating point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import spec
from ..desc import TensorDesc
from ..dtypes import DataType
from ..errors import ValidationError, expect
from ..layout import broadcast_sizes, coalesce, extent, pad_left
from ..runtime.adapters import Adapter, CooperativeMatrix
from ..runtime.shader_library import Variant
from .base import Same, define, function
from .call import as_tensor, device_of, output, run
from .plan import TEMPORARY, UNUSED, Dispatch, Operand, Plan, Target, reads, writes

if TYPE_CHECKING:
    from ..device import Device
    from ..tensor import Tensor

_NAME = "DML_OPERATOR_MATRIX_MULTIPLY_INTEGER_TO_FLOAT"
_SHADER = "matrix_multiply_integer_to_float"

# The shader's names for the operator's tensors, in the order of its bindings.
_SLOTS = {
    "a": "a_tensor",
    "a_scale": "a_scale_tensor",
    "a_zero": "a_zero_point_tensor",
    "b": "b_tensor",
    "b_scale": "b_scale_tensor",
    "b_zero": "b_zero_point_tensor",
    "bias": "bias_tensor",
    "out": "output_tensor",
}
_MATRICES = ("a", "b", "bias", "out")
_VECTORS = {"a_scale": -2, "a_zero": -2, "b_scale": -1, "b_zero": -1}  # axis that may be long


def _same(strict: bool) -> Same:
    """The table's constraints; unless strict, A and B may differ in signedness."""
    for tensors, properties in spec.operator(_NAME).same:
        if properties == ("data type",) and "BTensor" in tensors and not strict:
            yield ("ATensor", "AZeroPointTensor"), properties
            yield ("BTensor", "BZeroPointTensor"), properties
        else:
            yield tensors, properties


def _check(desc: Any, strict: bool) -> None:
    a, b, out = desc.a_tensor, desc.b_tensor, desc.output_tensor
    expect(
        a.data_type.itemsize == b.data_type.itemsize, _NAME, "ATensor.DataType",
        "have the width of BTensor.DataType", a.data_type, b.data_type,
    )
    (*batches, m, k), n = a.sizes, b.sizes[-1]
    for tensor, field, sizes, rule in (
        (b, "BTensor", [*batches, k, n], "the leading sizes of ATensor, then {K, N}"),
        (out, "OutputTensor", [*batches, m, n], "the leading sizes of ATensor, then {M, N}"),
        (desc.bias_tensor, "BiasTensor", [*batches, m, n], "the sizes of OutputTensor"),
    ):
        if tensor is not None:
            expect(
                list(tensor.sizes) == sizes, _NAME, f"{field}.Sizes", f"be {sizes} ({rule})",
                list(tensor.sizes),
            )
    for tensor, field, axis, count in (
        (desc.a_scale_tensor, "AScaleTensor", -2, m),
        (desc.a_zero_point_tensor, "AZeroPointTensor", -2, m),
        (desc.b_scale_tensor, "BScaleTensor", -1, n),
        (desc.b_zero_point_tensor, "BZeroPointTensor", -1, n),
    ):
        if tensor is not None:
            _check_vector(tensor, field, axis, count)


def _check_vector(tensor: TensorDesc, field: str, axis: int, count: int) -> None:
    """One value, or ``count`` of them along ``axis`` (of a vector: along its only one)."""
    one = [1] * tensor.dimension_count
    each = one.copy()
    each[max(axis, -len(one))] = count
    per = "row of ATensor" if axis == -2 else "column of BTensor"
    expect(
        list(tensor.sizes) in (one, each), _NAME, f"{field}.Sizes",
        f"be {one} (one value) or {each} (one per {per})", list(tensor.sizes),
    )


def _lower(desc: Any, target: Target) -> Plan:
    (*leading, m, k), n = desc.a_tensor.sizes, desc.b_tensor.sizes[-1]
    kernel, variant = _choose(desc, target)
    tiles = -(-m // kernel.tile) * -(-n // kernel.tile)

    # A shader walks one batch dimension; a second one that does not merge becomes dispatches.
    matrices = {name: t for name in _MATRICES if (t := getattr(desc, _SLOTS[name])) is not None}
    merged, walks = coalesce(leading or (1,), *(t.strides[:-2] or (0,) for t in matrices.values()))
    outer, batches = pad_left(merged, 2, 1)
    steps = {name: pad_left(walk, 2, 0) for name, walk in zip(matrices, walks)}

    def operand(name: str, index: int, begin: int, depth: int) -> Operand:
        slot = _SLOTS[name]
        t = getattr(desc, slot)
        if t is None:
            return UNUSED
        if name not in matrices:
            return reads(slot, t, f"{name}_offset")
        make = writes if name == "out" else reads
        step, batch = steps[name]
        *_, rows, columns = t.sizes
        offset = index * step
        if name == "a":
            columns, offset = depth, offset + begin * t.strides[-1]
        elif name == "b":
            rows, offset = depth, offset + begin * t.strides[-2]
        length = extent((batches, rows, columns), (batch, *t.strides[-2:]))
        return make(slot, t, f"{name}_offset", offset, length)

    def dispatch(index: int, begin: int) -> Dispatch:
        depth = min(kernel.max_depth, k - begin)
        operands = [operand(name, index, begin, depth) for name in _SLOTS]
        # A binding that the shader may write to must not stand on an input.
        operands.append(partial or replace(operands[-1], offset_field=None))
        if kernel.reads_vectors:
            operands += (replace(operands[i], offset_field=None) for i in (0, 3))
        known = {**kinds, "CONTINUES": begin > 0, "UNFINISHED": begin + depth < k}
        flags = {"flags": sum(on << bit for bit, on in enumerate(known.values()))}
        specialized = "flags" not in variant.push_fields
        return Dispatch(
            variant,
            batches * tiles,
            tuple(operands),
            {**push, "depth": depth, **({} if specialized else flags)},
            {**constants, **(known if specialized else {})},
        )

    push: dict[str, Any] = {"batches": batches, "rows": m, "columns": n}
    for name, t in matrices.items():
        push[f"{name}_strides"] = (steps[name][1], *t.strides[-2:])
    for name, axis in _VECTORS.items():
        if (t := getattr(desc, _SLOTS[name])) is not None:
            push[f"{name}_stride"] = _vector_stride(t, axis)
    constants = {}
    if kernel is _COOPMAT:
        constants["A_ACROSS"] = bool(_reads_across(desc.a_tensor, -2))
        constants["B_ACROSS"] = bool(_reads_across(desc.b_tensor, -1))
    kinds = {  # in the order of the shaders' flags
        "A_SIGNED": desc.a_tensor.data_type.is_signed,
        "B_SIGNED": desc.b_tensor.data_type.is_signed,
        "HAS_A_ZERO": desc.a_zero_point_tensor is not None,
        "HAS_B_ZERO": desc.b_zero_point_tensor is not None,
        "HAS_BIAS": desc.bias_tensor is not None,
        "HALF": desc.output_tensor.data_type is DataType.FLOAT16,
    }
    # Sums that one dispatch hands to the next have 8 bytes.
    sums = batches * m * n if k > kernel.max_depth else 0
    partial = Operand(TEMPORARY, "partial_offset", 8, sums, writes=True) if sums else None
    return Plan(
        tuple(dispatch(i, begin) for i in range(outer) for begin in range(0, k, kernel.max_depth)),
        temporary_bytes=8 * sums,
    )


def _vector_stride(tensor: TensorDesc, axis: int) -> int:
    axis = max(axis, -tensor.dimension_count)
    return tensor.strides[axis] if tensor.sizes[axis] > 1 else 0


@dataclass(frozen=True)
class _Kernel:
    """What the host must know of a shader: it makes tiles of ``tile`` x ``tile`` outputs.

    ``max_depth`` bounds the K of one dispatch. Sums of 65,536 products of 8-bit numbers fit 32
    bits; and lavapipe silently ends a shader's loops after 65,535 passes in all.
    """

    shader: str
    tile: int
    max_depth: int
    reads_vectors: bool = False
    """Binds A and B once more, as 16-byte vectors."""


_WIDE = _Kernel(_SHADER, 64, 1 << 15)
_PACKED = _Kernel(_SHADER + "_packed", 64, 1 << 15)
_COOPMAT = _Kernel(_SHADER + "_coopmat", 128, 1 << 16, reads_vectors=True)

# Below, an H200 has too little to do, and the smaller tiles of the dot product win.
_MIN_COOPMAT_TILES = 32


def _choose(desc: Any, target: Target) -> tuple[_Kernel, Variant]:
    """The fastest kernel that this device may run."""
    library, a_type = target.library, desc.a_tensor.data_type
    if a_type.itemsize > 1:
        return _WIDE, library.get(_WIDE.shader, a_type.width)
    coopmat = library.find(_COOPMAT.shader)
    if coopmat and _has_cooperative_matrix(target.adapter) and _fills_vectors(desc):
        return _COOPMAT, coopmat
    dot = library.find(_PACKED.shader, "dot")
    return _PACKED, dot or library.get(_PACKED.shader, "core")


def _fills_vectors(desc: Any) -> bool:
    """Whether the product is large enough for 128 x 128 tiles, and read 16 bytes at a time."""
    m, n = desc.output_tensor.sizes[-2:]
    tiles = desc.output_tensor.element_count // (m * n) * -(-m // 128) * -(-n // 128)
    return (
        tiles >= _MIN_COOPMAT_TILES
        and _reads_across(desc.a_tensor, -2) is not None
        and _reads_across(desc.b_tensor, -1) is not None
    )


def _reads_across(t: TensorDesc, lines: int) -> bool | None:
    """Whether vectors of 16 bytes lie across the lines of an 8-bit matrix, along axis ``lines``,
    and not along the depth; None if the one's strides and alignment allow neither."""
    depth = -3 - lines
    for axis, across in ((depth, False), (lines, True)):
        others = [s for d, s in enumerate(t.strides) if d != t.dimension_count + axis]
        if (
            t.strides[axis] == 1
            and t.base_alignment % 16 == 0
            and all(n % 16 == 0 for n in (t.sizes[axis], *others))
        ):
            return across
    return None


def _has_cooperative_matrix(adapter: Adapter) -> bool:
    """Whether the device multiplies as the cooperative-matrix shader was written to."""
    shape = CooperativeMatrix(16, 16, 32, "i8", "i8", "i32", "i32", "subgroup")
    return (
        shape in adapter.cooperative_matrices
        and adapter.subgroup_size == 32
        and adapter.max_workgroup_invocations >= 128
        and adapter.max_shared_memory >= 48 * 1024
    )


MatrixMultiplyIntegerToFloatOperatorDesc = define(
    _NAME.removeprefix("DML_OPERATOR_"),
    _lower,
    shaders=(_WIDE.shader, _PACKED.shader, _COOPMAT.shader),
    check=_check,
    same=_same,
)


@function
def matrix_multiply_integer_to_float(
    a: Any,
    a_scale: Any,
    b: Any,
    b_scale: Any,
    *,
    a_zero_point: Any = None,
    b_zero_point: Any = None,
    bias: Any = None,
    output_data_type: Any = None,
    out: Tensor | None = None,
) -> Tensor:
    """``((a - a_zero_point) @ (b - b_zero_point)) * a_scale * b_scale + bias``, summed exactly
    (DML_MATRIX_MULTIPLY_INTEGER_TO_FLOAT_OPERATOR_DESC).

    ``a`` {.., M, K} and ``b`` {.., K, N} are integers of 8, 16 or 32 bits, of equal width; unless
    the device is strict, one may be signed and the other not. Leading sizes broadcast, and so does
    ``bias`` to {.., M, N}. Scales and zero points are single values, vectors of length M (for
    ``a``) and N (for ``b``), or {.., M, 1} and {.., 1, N}. Zero points have their matrix's type;
    scales and bias have the output's, to which arrays and numbers are converted: FLOAT32 or
    FLOAT16, by default that of ``out``, else of ``a_scale`` where it is FLOAT16, else FLOAT32.

    Returns ``out`` or a new packed tensor. Raises ValidationError or UnsupportedError.
    """
    name = "matrix_multiply_integer_to_float"
    device = device_of(a, a_scale, b, b_scale, a_zero_point, b_zero_point, bias, out)
    a, b = as_tensor(device, a), as_tensor(device, b)
    for field, t in (("a", a), ("b", b)):
        expect(t.ndim >= 2, name, f"{field}.sizes", "have at least 2 dimensions", list(t.sizes))
    try:
        leading = broadcast_sizes(a.sizes[:-2] or (1,), b.sizes[:-2] or (1,))
    except ValueError:
        expect(False, name, "the leading sizes of a and b", "broadcast",
               list(a.sizes), list(b.sizes))
    leading = leading[len(leading) + 2 - max(a.ndim, b.ndim) :]
    sizes = (*leading, a.sizes[-2], b.sizes[-1])

    if output_data_type is None:
        model = getattr(out if out is not None else a_scale, "dtype", None)
        output_data_type = "float16" if model == np.float16 else "float32"
    kind = DataType.of(output_data_type)
    y = output(device, out, name, sizes, kind)
    if bias is not None:
        bias = as_tensor(device, bias, kind)
        try:
            bias = bias.broadcast_to(sizes)
        except ValidationError:
            expect(False, name, "bias.sizes", f"broadcast to {list(sizes)}", list(bias.sizes))
    vectors = {
        "a_scale": as_tensor(device, a_scale, kind),
        "a_zero": _zero_point(device, name, "a_zero_point", a_zero_point, a.data_type),
        "b_scale": as_tensor(device, b_scale, kind),
        "b_zero": _zero_point(device, name, "b_zero_point", b_zero_point, b.data_type),
    }
    rank = max(2, *(t.ndim for t in vectors.values() if t is not None))
    tensors = {
        "a": a.broadcast_to(*leading, *a.sizes[-2:]),
        "b": b.broadcast_to(*leading, *b.sizes[-2:]),
        "bias": bias,
        "out": y,
        **{name: _along(t, _VECTORS[name], rank) for name, t in vectors.items()},
    }
    run(
        MatrixMultiplyIntegerToFloatOperatorDesc,
        device,
        {_SLOTS[name]: t for name, t in tensors.items()},
    )
    return y


def _zero_point(
    device: Device, name: str, field: str, value: Any, data_type: DataType
) -> Tensor | None:
    """``value`` as a tensor of its matrix's type, which must hold every number."""
    if value is None or hasattr(value, "desc"):
        return value
    given = np.asarray(value)
    limits = np.iinfo(data_type.dtype)
    whole = given.dtype.kind in "iu" and limits.min <= given.min() and given.max() <= limits.max
    expect(whole, name, field, f"hold numbers of type {data_type}", value)
    return device.tensor(given.astype(data_type.dtype))


def _along(t: Tensor | None, axis: int, rank: int) -> Tensor | None:
    """A vector laid along its axis; any tensor with sizes of 1 in front until it has ``rank``."""
    if t is None:
        return None
    if t.ndim == 1:
        t = t[:, None] if axis == -2 else t[None, :]
    return t.reshape(pad_left(t.sizes, rank, 1))
