"""Functions of operators that generate random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..attributes import RandomGeneratorType
from ..dtypes import DataType
from ..errors import expect, integers
from ..operators.random import RandomGeneratorOperatorDesc
from .call import device_of, output, run, whole_numbers
from .registry import function

if TYPE_CHECKING:
    from ..tensors import Tensor


@function
def random_generator(
    input_state: object,
    *,
    sizes: Sequence[int],
    type: RandomGeneratorType = RandomGeneratorType.PHILOX_4X32_10,
    output_state: bool = False,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Words of Philox 4x32-10 (DML_RANDOM_GENERATOR_OPERATOR_DESC).

    ``input_state`` is UINT32 of sizes {1, .., 6}: a counter of four words, the lowest first, and a
    key of two. Element i in row-major order is word ``i % 4`` of block ``counter + i // 4``. With
    ``output_state`` the result is a pair with the next state. Returns ``out``
    (a pair with ``output_state``) or new packed tensors. Raises ValidationError or
    UnsupportedError.
    """
    name = "random_generator"
    outs = out if output_state and out is not None else (out, None)
    expect(isinstance(outs, (tuple, list)) and len(outs) == 2, name, "out",
           "be a tuple of 2 tensors", out)
    device = device_of(input_state, *outs)
    state = whole_numbers(device, name, "input_state", input_state, DataType.UINT32)
    y = output(device, outs[0], name, integers(name, "sizes", sizes), DataType.UINT32)
    following = (output(device, outs[1], name, state.sizes, DataType.UINT32)
                 if output_state else None)
    run(RandomGeneratorOperatorDesc, device,
        {"input_state_tensor": state, "output_tensor": y, "output_state_tensor": following},
        type=type)
    return y if following is None else (y, following)
