"""QUANTIZE and DEQUANTIZE: a scale and a zero point for each block of elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..attributes import QuantizationType
from ..desc import TensorDesc
from ..errors import expect
from ..layout import Ints, begin_with_vectors, coalesce, is_packed
from ..lowering.builder import PlanBuilder
from ..lowering.walk import Walk
from .base import OperatorDesc, Output, operator

_SHADER = "quantize_blocks"
_EACH = 8
"""Elements of a part, if they are contiguous."""
_PARTS = {("quantize", 2): 4, ("quantize", 4): 2, ("dequantize", 2): 2, ("dequantize", 4): 2}
"""Of an invocation, by the bytes of a number."""
_STEPS = {"quantize": (8, 4, 2), "dequantize": (2,)}
"""The first that divides a block: parts that have the same scales. Reciprocals of those take
long."""


def _infer_quantized(d: OperatorDesc) -> Mapping[str, Output]:
    zero = d.quantization_tensors[1:]
    return {"output_tensor": Output(d.input_tensor.sizes, zero[0].data_type if zero else None)}


def _infer_dequantized(d: OperatorDesc) -> Mapping[str, Output]:
    return {"output_tensor": Output(d.input_tensor.sizes, d.quantization_tensors[0].data_type)}


def _check(floats: str, integers: str) -> Any:
    """A check. ``floats`` and ``integers`` are the fields with the types of scale and zero
    point."""
    def check(d: OperatorDesc, strict: bool) -> None:
        name, tensors = d.operator.name, d.quantization_tensors
        kind = QuantizationType(d.quantization_type)
        expect(kind is not QuantizationType.NONE, name, "QuantizationType",
               "be SCALE or SCALE_ZERO_POINT", kind.name)
        expect(len(tensors) == int(kind), name, "QuantizationTensorCount",
               f"be {int(kind)} for {kind.name}", len(tensors))
        sizes = d.input_tensor.sizes
        for i, (t, field) in enumerate(zip(tensors, (floats, integers))):
            from_type = getattr(d, "input_tensor" if field == "InputTensor" else "output_tensor")
            expect(t.data_type is from_type.data_type, name, f"QuantizationTensors[{i}].DataType",
                   f"equal {field}.DataType", t.data_type, from_type.data_type)
            expect(not any(n % m for n, m in zip(sizes, t.sizes)), name,
                   f"QuantizationTensors[{i}].Sizes", f"divide {list(sizes)}", list(t.sizes))
        if len(tensors) > 1:
            expect(tensors[0].sizes == tensors[1].sizes, name, "QuantizationTensors[1].Sizes",
                   "equal QuantizationTensors[0].Sizes", list(tensors[1].sizes),
                   list(tensors[0].sizes))

    return check


def _in_blocks(sizes: Ints, of: TensorDesc, *whole: TensorDesc) -> tuple[Ints, list[Ints]]:
    """Each dimension split into blocks and elements of a block, where the strides of ``of`` are
    0."""
    parts: list[int] = []
    strides: list[list[int]] = [[] for _ in (of, *whole)]
    for d, (n, blocks) in enumerate(zip(sizes, of.sizes)):
        inside = n // blocks
        parts += [blocks, inside]
        strides[0] += [of.strides[d], 0]
        for steps, t in zip(strides[1:], whole):
            steps += [t.strides[d] * inside, t.strides[d]]
    return tuple(parts), [tuple(s) for s in strides]


def _lower(d: OperatorDesc, p: PlanBuilder, way: str) -> None:
    x, y = d.input_tensor, d.output_tensor
    scale, *zeros = d.quantization_tensors
    quantized, number = (y, x) if way == "quantize" else (x, y)
    sizes, (by, of_x, of_y) = _in_blocks(x.sizes, scale, x, y)
    zero = _in_blocks(x.sizes, zeros[0])[1][0] if zeros else (0,) * len(sizes)
    sizes, (of_x, by, zero, of_y) = coalesce(sizes, of_x, by, zero, of_y)
    steps = by[-1], zero[-1]
    to_float32 = way == "dequantize" and number.data_type.itemsize == 4
    # A vector of the output, so that neighbours write neighbours. A CPU converts more at once.
    each = 4 if to_float32 and not p.device.is_cpu else _EACH
    aligned = all(t.base_alignment % 16 == 0 for t in (x, y))
    vectors = aligned and sizes[-1] % each == 0 and all(
        begin_with_vectors(each, s) for s in (of_x, of_y))
    parts, factors_aligned = 1, False
    moved: Ints = 0, 0
    if vectors:
        sizes = (*sizes[:-1], sizes[-1] // each)
        of_x, of_y = ((*s[:-1], each) for s in (of_x, of_y))
        by, zero = ((*s[:-1], s[-1] * each) for s in (by, zero))
        factors_aligned = steps[0] == 1 and (not zeros or steps[1] == 1) and all(
            t.base_alignment % 16 == 0 and not any(n % each for n in s)
            for t, s in zip((scale, *zeros), (by, zero)))
        if not p.device.is_cpu:
            if not any(steps):
                parts = _PARTS[way, number.data_type.itemsize]
            else:
                parts, moved, sizes, of_x, of_y = _stepped(way, sizes, of_x, by, zero, of_y)
    walk = Walk(sizes, of_x, by, zero, of_y)
    # Elements of one word of a packed output are converted together.
    in_word = 32 // y.data_type.bits if is_packed(y.sizes, y.strides) else 1
    words = not vectors and in_word > 1 and y.base_alignment % 4 == 0
    invocations = -(-walk.count // in_word) if words else walk.count
    if not any(steps):
        invocations = -(-invocations // parts)
    p.dispatch(
        f"{_SHADER}.{way}", -(-invocations // p.device.local_size), x=p.read("input_tensor"),
        scale=p.read("quantization_tensors[0]"),
        zero=p.read("quantization_tensors[1]") if zeros else p.read("quantization_tensors[0]"),
        y=p.write("output_tensor"), params=walk.words,
        push={"count": walk.count, "scale_step": steps[0], "zero_step": steps[1],
              "x_step": moved[0], "y_step": moved[1]},
        spec={"LOCAL_SIZE": p.device.local_size, "TYPE": number.data_type.code,
              "BITS": quantized.data_type.bits, "SIGNED": quantized.data_type.is_signed,
              "HAS_ZERO": bool(zeros), "VECTORS": vectors, "WORDS": words,
              "SHARED": not any(steps), "EACH": each, "PARTS": parts,
              "ALIGNED": factors_aligned, "WALK_RANK": len(walk.sizes)},
    )


def _stepped(
    way: str, sizes: Ints, of_x: Ints, by: Ints, zero: Ints, of_y: Ints
) -> tuple[int, Ints, Ints, Ints, Ints]:
    """Parts of an invocation that have the same scales, how far apart they lie in x and in y, and
    sizes and strides of what is walked."""
    for d in reversed(range(len(sizes) - 1)):
        parts = next((n for n in _STEPS[way] if sizes[d] % n == 0), 1)
        if parts > 1 and not by[d] and not zero[d]:
            fewer = tuple(n // parts if i == d else n for i, n in enumerate(sizes))
            x, y = (tuple(n * parts if i == d else n for i, n in enumerate(s))
                    for s in (of_x, of_y))
            return parts, (of_x[d], of_y[d]), fewer, x, y
    return 1, (0, 0), sizes, of_x, of_y


@operator("QUANTIZE", output=_infer_quantized, shaders=(_SHADER,), data_type=None,
          check=_check("InputTensor", "OutputTensor"),
          quantization_type=QuantizationType.SCALE_ZERO_POINT)
def QuantizeOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _lower(d, p, "quantize")


@operator("DEQUANTIZE", output=_infer_dequantized, shaders=(_SHADER,),
          check=_check("OutputTensor", "InputTensor"),
          quantization_type=QuantizationType.SCALE_ZERO_POINT)
def DequantizeOperatorDesc(d: OperatorDesc, p: PlanBuilder) -> None:
    _lower(d, p, "dequantize")
