"""Products of few rows read quantized weights as they are."""

from __future__ import annotations

from ...desc import TensorDesc
from ...layout import Ints, product
from ...operators.matrix_multiply.blocked_weights import BlockedGemmDesc, fits, most_rows
from ...operators.matrix_multiply.float_dispatch import oriented
from ..node import Node, Nodes, fused_by, moved, output_of
from ..rewrite import rewrite


@rewrite("blocked_weights",
         "a product of up to 16 rows reads weights of 4 or 8 bits itself, without DEQUANTIZE. K "
         "is contiguous. On a CPU it has up to 8 rows, and constants are unpacked as long as there "
         "is room to keep them", 100)
def blocked_weights(g: Nodes) -> None:
    """DEQUANTIZE of a matrix in blocks along K, then GEMM of few rows."""
    most = most_rows(g.traits)
    for gemm in g:
        if gemm.name != "GEMM" or product(gemm.tensor("output_tensor").sizes[:-1]) > most:
            continue
        weights = g.maker(gemm, "b_tensor")
        if weights is None or weights.name != "DEQUANTIZE" or (
                g.only_user(weights) != (gemm, "b_tensor")):
            continue
        if g.traits.slow_barriers and keeps(g, weights):
            continue  # there, multiplying takes longer than reading
        new = _blocked(gemm, weights)
        if new is not None:
            g.replace([weights, gemm], new)


def keeps(g: Nodes, weights: Node) -> bool:
    """Whether the weights are constants that can be kept dequantized, which takes room."""
    nbytes = output_of(weights).total_tensor_size_in_bytes
    kept = nbytes <= g.room and all(s.root.constant for _, s in weights.slots("input"))
    g.room -= nbytes if kept else 0
    return kept


def _blocked(gemm: Node, weights: Node) -> Node | None:
    """A product that reads the quantized elements, or None where its kernel cannot."""
    d = gemm.desc
    fused = fused_by(gemm)
    b, dequantized = gemm.tensor("b_tensor"), weights.tensor("output_tensor")
    *batches, k, columns = oriented(b.sizes, d.trans_b)
    *steps, k_stride, stride = oriented(b.strides, d.trans_b)
    matrix = _matrix(dequantized, dequantized.sizes)
    if matrix is None or (fused is not None and "SOFTMAX" in fused.operator.name) or any(
            s for s, n in zip(steps, batches) if n > 1):
        return None
    # B's columns are rows of the weights, whose last block may reach beyond K.
    height, width = matrix.sizes
    if (columns != height or k > width or (columns > 1 and stride != matrix.strides[0])
            or (k > 1 and k_stride != matrix.strides[1])):
        return None
    quantized = _matrix(weights.tensor("input_tensor"), dequantized.sizes)
    scale, *zeros = (_matrix(weights.tensor(slot), dequantized.sizes)
                     for slot, _ in weights.slots("input") if slot != "input_tensor")
    if quantized is None or scale is None or None in zeros or width % scale.sizes[1]:
        return None
    block = width // scale.sizes[1]
    if not fits(quantized, block):
        return None
    whole = tuple(oriented((*batches, k, columns), 0))
    values = {f.snake: getattr(d, f.snake) for f in d.operator.spec.fields}
    values |= {
        "b_tensor": moved(quantized, whole, (*[0] * len(batches), 1, quantized.strides[0])),
        "trans_b": 0, "b_scale_tensor": scale, "block_size": block,
        "b_zero_point_tensor": zeros[0] if zeros else None}
    storages = gemm.storages | {
        "b_tensor": weights.storages["input_tensor"],
        "b_scale_tensor": weights.storages["quantization_tensors[0]"]}
    if zeros:
        storages["b_zero_point_tensor"] = weights.storages["quantization_tensors[1]"]
    return Node(BlockedGemmDesc(**values), storages, gemm.label)


def _matrix(t: TensorDesc, whole: Ints) -> TensorDesc | None:
    """The last two dimensions of a tensor, with a row for each row of ``whole``. None if there are
    more matrices."""
    sizes, strides = ((1, *t.sizes), (0, *t.strides)) if len(t.sizes) == 1 else (t.sizes, t.strides)
    rows = whole[-2] if len(whole) > 1 else 1
    if product(sizes[:-2]) > 1 or sizes[-2] not in (1, rows):
        return None
    steps = tuple(0 if n == 1 else s for n, s in zip(sizes[-2:], strides[-2:]))
    return moved(t, (rows, sizes[-1]), steps)
