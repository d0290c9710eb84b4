"""Activations: one that only copies, and a table of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..dtypes import DataType
from ..errors import expect
from ..layout import Ints, coalesce, product
from ..spec import FeatureLevel
from .base import define, function
from .call import as_tensor, device_of, output, run
from .elementwise import row
from .frame import parameter, parameters
from .plan import Dispatch, Plan, Target, reads, writes

if TYPE_CHECKING:
    from ..tensor import Tensor

_LOCAL_SIZE = 256
_TILE = 64
"""A dimension of so many elements fills a side of a tile alone."""
_Push = dict[str, int | Sequence[int]]


def _lower_identity(desc: Any, target: Target) -> Plan:
    x, y = desc.input_tensor, desc.output_tensor
    sizes, in_strides, out_strides = _in_order_of_output(x.sizes, x.strides, y.strides)
    each = 16 // x.data_type.itemsize
    tiles = _tiles(sizes, in_strides, out_strides, each)
    if out_strides[-1] == 1 and in_strides[-1] in (0, 1):
        lines = product(sizes[:-1])
        # A line of n elements meets so many vectors at most.
        work = lines * ((sizes[-1] + each - 2) // each + 1)
        push: _Push = dict(count=lines, rank=len(sizes), sizes=sizes, in_strides=in_strides,
                           out_strides=out_strides)
        path, groups, spec = "lines", -(-work // _LOCAL_SIZE), {"WHOLE": 1}
    elif tiles is not None:
        path, (groups, push, spec) = "tiles", tiles
    else:
        count = product(sizes)
        push = dict(count=count, rank=len(sizes), sizes=sizes, in_strides=in_strides,
                    out_strides=out_strides)
        path, groups, spec = "lines", -(-count // _LOCAL_SIZE), {"WHOLE": 0}
    return Plan(
        execute=(
            Dispatch(
                variant=target.library.get("activation_identity", x.data_type.width, path),
                groups=groups,
                operands=(reads("input_tensor", x, "in_offset"),
                          writes("output_tensor", y, "out_offset")),
                push=push,
                spec={"LOCAL_SIZE": _LOCAL_SIZE, **spec},
            ),
        ),
        nothing_in_place=True,
    )


def _in_order_of_output(
    sizes: Ints, in_strides: Ints, out_strides: Ints
) -> tuple[Ints, Ints, Ints]:
    """The fewest dimensions that both walk, the output through memory from first to last."""
    order = sorted(range(len(sizes)), key=lambda d: -out_strides[d])
    merged, strides = coalesce(*(tuple(v[d] for d in order)
                                 for v in (sizes, in_strides, out_strides)))
    return merged, strides[0], strides[1]


def _tiles(
    sizes: Ints, in_strides: Ints, out_strides: Ints, each: int
) -> tuple[int, _Push, dict[str, int]] | None:
    """Groups, push fields and constants of a copy in tiles, or None where it does not fit."""

    def gapless(strides: Ints, taken: tuple[int, ...]) -> tuple[int, ...]:
        """The dimension of stride 1, and where it is short the one that goes on behind it."""
        free = [d for d in range(len(sizes)) if d not in taken]
        inner = next((d for d in free if strides[d] == 1), None)
        if inner is None or sizes[inner] >= _TILE:
            return () if inner is None else (inner,)
        outer = next((d for d in free if d not in (inner, q) and strides[d] == sizes[inner]), None)
        return (inner,) if outer is None else (inner, outer)

    q = next((d for d in range(len(sizes)) if out_strides[d] == 1), -1)
    p_dims = gapless(in_strides, (q,))
    q_dims = gapless(out_strides, p_dims)
    if not p_dims or not q_dims:
        return None
    planes = [d for d in range(len(sizes)) if d not in (*p_dims, *q_dims)]
    if len(planes) > 6:
        return None

    def pair(values: Ints, dims: tuple[int, ...], absent: int) -> Ints:
        return (*(values[d] for d in dims), *(absent,) * (2 - len(dims)))

    p_sizes, q_sizes = pair(sizes, p_dims, 1), pair(sizes, q_dims, 1)
    p_size, q_size, count = product(p_sizes), product(q_sizes), product([sizes[d] for d in planes])
    room = 1024 * each
    tile_p = max(min(16 * each, _power_of_two(p_size)), each)
    tile_q = max(min(room // tile_p, 4 * _TILE, _power_of_two(q_size)), each)
    tile_p = max(min(room // tile_q, 4 * _TILE, _power_of_two(p_size)), each)
    together = min(room // (tile_p * tile_q), _power_of_two(count))
    push: _Push = dict(
        count=count, rank=len(planes),
        sizes=(*p_sizes, *q_sizes, *(sizes[d] for d in planes)),
        in_strides=(*pair(in_strides, q_dims, 0), *(in_strides[d] for d in planes)),
        out_strides=(*pair(out_strides, p_dims, 0), *(out_strides[d] for d in planes)),
    )
    groups = -(-p_size // tile_p) * -(-q_size // tile_q) * -(-count // together)
    return groups, push, dict(TILE_P=tile_p, TILE_Q=tile_q, PLANES=together)


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


ActivationIdentityOperatorDesc = define(
    "ACTIVATION_IDENTITY", _lower_identity, shaders=("activation_identity",)
)


@function
def activation_identity(x: Any, *, out: Tensor | None = None) -> Tensor:
    """Copy every element: ``f(x) = x``, bit for bit (DML_ACTIVATION_IDENTITY_OPERATOR_DESC).

    ``x`` is FLOAT32 or FLOAT16 of 1 to 8 dimensions with any strides, or an array. ``out`` has the
    sizes and type of ``x``; it may be ``x`` itself. Returns ``out`` or a new packed tensor.
    Raises ValidationError or UnsupportedError.
    """
    device = device_of(x, out)
    x = as_tensor(device, x)
    name = "activation_identity"
    y = output(device, out, name, x.sizes, x.data_type)
    run(ActivationIdentityOperatorDesc, device, {"input_tensor": x, "output_tensor": y})
    return y


def _shrink_parameters(desc: Any, data_type: DataType) -> tuple[int, ...]:
    """Integers need -Threshold too, which may be out of reach for a negation."""
    words = parameters(desc, data_type)
    return words if data_type.is_float else (*words, *parameter(-desc.threshold, data_type))


def _check_softplus(desc: Any, strict: bool) -> None:
    expect(desc.steepness > 0, "DML_OPERATOR_ACTIVATION_SOFTPLUS", "Steepness", "be above 0",
           desc.steepness)


def _newer_softplus(desc: Any) -> Iterator[tuple[FeatureLevel, str, str, Any]]:
    if desc.steepness < 1:
        yield FeatureLevel.FL_6_4, "Steepness", "be at least 1", desc.steepness


for _name in ("GELU", "PARAMETERIZED_RELU", "RELU", "SIGMOID", "SOFTSIGN", "TANH"):
    row(f"ACTIVATION_{_name}", _name.lower())

row("ACTIVATION_CELU", "celu", alpha=1.0)
row("ACTIVATION_ELU", "elu", alpha=1.0)
row("ACTIVATION_HARD_SIGMOID", "hard_sigmoid", alpha=0.2, beta=0.5)
row("ACTIVATION_HARD_SWISH", "hard_swish", alpha=1 / 6, beta=0.5)
row("ACTIVATION_LEAKY_RELU", "leaky_relu", alpha=0.01)
row("ACTIVATION_LINEAR", "linear")
row("ACTIVATION_PARAMETRIC_SOFTPLUS", "parametric_softplus")
row("ACTIVATION_SCALED_ELU", "scaled_elu", alpha=1.67326319217681884765625,
    gamma=1.05070102214813232421875)
row("ACTIVATION_SCALED_TANH", "scaled_tanh", alpha=1.0, beta=0.5)
row("ACTIVATION_SHRINK", "shrink", constants=_shrink_parameters, bias=0.0, threshold=0.5)
row("ACTIVATION_SOFTPLUS", "softplus", check=_check_softplus, newer=_newer_softplus,
    steepness=1.0)
row("ACTIVATION_SWISH", "swish", sigmoid_input_scale=1.0)
row("ACTIVATION_THRESHOLDED_RELU", "thresholded_relu", alpha=1.0)
